//! Checks of member values that all families share.

use std::borrow::Cow;

use crate::detect::{Facts, MemberPath};
use crate::error::{DecodeError, DecodeErrorKind};
use crate::hint::Hint;
use crate::json::Kind;
use crate::protocol::{MAX_ID_BYTES, is_method, is_target, is_topic};
use crate::text::Text;

/// Turns the facts of one object into the draft of its event.
pub(super) struct Parser<'a> {
    /// The offset of the unit's bytes in the payload.
    pub(super) base: usize,
    pub(super) facts: &'a Facts<'a>,
    pub(super) hint: &'a Hint,
}

/// The longest value of an attribute that is not an id, in characters.
/// Source: docs/protocols/e2a.md §10.2.
const MAX_ATTRIBUTE_CHARS: usize = 256;

// === impl Parser ===

impl Parser<'_> {
    /// An error about a member, or about the unit if the member is absent.
    pub(super) fn refused(
        &self,
        kind: DecodeErrorKind,
        path: MemberPath,
        message: impl Into<Cow<'static, str>>,
    ) -> DecodeError {
        let span = self.facts.get(path).unwrap_or(self.facts.span);
        DecodeError::new(kind, span.start(), message).at(path.pointer())
    }

    /// A value that becomes `a2amethod` and part of `type`; null counts as absent.
    /// Source: docs/protocols/eventmesh-a2a.md §D11, for every family
    /// docs/protocols/detection.md §3.
    pub(super) fn method(&self, path: MemberPath) -> Result<Option<Text>, DecodeError> {
        const RULE: &str =
            "a method is a string of 1 to 256 characters without spaces or control characters";
        if self.facts.non_null(path).is_none() {
            return Ok(None);
        }
        match self.facts.text(path).filter(|text| is_method(text)) {
            Some(text) => Ok(Some(text)),
            None => Err(self.refused(DecodeErrorKind::BadMethod, path, RULE)),
        }
    }

    /// A name of an agent. Source: docs/protocols/eventmesh-a2a.md §D6.
    pub(super) fn target(&self, path: MemberPath) -> Result<Option<Text>, DecodeError> {
        const RULE: &str =
            "must be a string of 1 to 256 letters, digits and . _ - / : @ + without \"..\"";
        self.name(path, (DecodeErrorKind::BadTarget, RULE), is_target)
    }

    /// A name of a topic. Source: docs/protocols/eventmesh-a2a.md §D6.
    pub(super) fn topic(&self, path: MemberPath) -> Result<Option<Text>, DecodeError> {
        const RULE: &str =
            "must be a string of 1 to 249 letters, digits and . _ - / : @ + without \"..\"";
        self.name(path, (DecodeErrorKind::BadTopic, RULE), is_topic)
    }

    /// A name used for routing: a valid string, or an error that names the member.
    fn name(
        &self,
        path: MemberPath,
        (kind, rule): (DecodeErrorKind, &'static str),
        check: fn(&str) -> bool,
    ) -> Result<Option<Text>, DecodeError> {
        self.facts.refuse_repeated(&[path])?;
        if !self.facts.has(path) {
            return Ok(None);
        }
        match self.facts.text(path).filter(|text| check(text)) {
            Some(text) => Ok(Some(text)),
            None => Err(self.refused(kind, path, rule)),
        }
    }

    /// A scalar that becomes an attribute; null counts as absent.
    pub(super) fn scalar(
        &self,
        path: MemberPath,
        kind: DecodeErrorKind,
    ) -> Result<Option<Text>, DecodeError> {
        self.facts.refuse_repeated(&[path])?;
        let Some(span) = self.facts.non_null(path) else {
            return Ok(None);
        };
        let text = match span.kind() {
            Kind::String => self.facts.text(path),
            Kind::Number => Some(Text::from(self.facts.token(span))),
            Kind::Object | Kind::Array | Kind::Boolean | Kind::Null => None,
        };
        let legal =
            |text: &Text| (1..=MAX_ID_BYTES).contains(&text.len()) && crate::event::is_string(text);
        match text.filter(legal) {
            Some(text) => Ok(Some(text)),
            None => Err(self.refused(kind, path, "must be a short string or a number")),
        }
    }

    /// A string that becomes an attribute if it is valid, and is omitted otherwise.
    pub(super) fn attribute(&self, path: MemberPath) -> Option<Text> {
        self.facts.text(path).filter(|text| is_attribute(text))
    }

    /// A number.
    pub(super) fn number(&self, path: MemberPath) -> Option<f64> {
        let span = self
            .facts
            .get(path)
            .filter(|span| span.kind() == Kind::Number)?;
        self.facts.token(span).parse().ok()
    }
}

/// Whether the text is valid for an attribute that is not an id.
pub(super) fn is_attribute(text: &str) -> bool {
    !text.is_empty()
        && (text.len() <= MAX_ATTRIBUTE_CHARS || text.chars().count() <= MAX_ATTRIBUTE_CHARS)
        && crate::event::is_string(text)
}

/// The integer that a text writes, such as `3` or `3.0`.
pub(super) fn integer(text: &str) -> Option<i64> {
    let whole = |number: &f64| number.fract() == 0.0 && number.abs() < 9e15;
    // An integer, well within 64 bits.
    #[allow(clippy::cast_possible_truncation)]
    let rounded = |number: f64| number as i64;
    let number = || text.parse::<f64>().ok().filter(whole).map(rounded);
    text.parse::<i64>().ok().or_else(number)
}
