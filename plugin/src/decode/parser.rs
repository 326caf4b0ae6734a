//! What the families share: a member's value, checked for what it becomes.

use std::borrow::Cow;

use bytes::Bytes;

use super::a2e_workflow::Lines;
use super::{BYTE_ORDER_MARK, Hint};
use crate::detect::{Because, Facts, Place};
use crate::error::{DecodeError, DecodeErrorKind};
use crate::event::Event;
use crate::format;
use crate::json::Kind;
use crate::limits::Limits;
use crate::protocol::jsonrpc::JsonRpc;
use crate::protocol::{Draft, Family, MAX_ID_BYTES, is_method, is_target, is_topic};
use crate::text::Text;

/// Turns the facts of one object into what its event will be.
pub(super) struct Parser<'a> {
    /// Where the unit's bytes begin in the payload.
    pub(super) base: usize,
    pub(super) facts: &'a Facts<'a>,
    pub(super) hint: &'a Hint,
}

/// The longest value of an attribute that is not an id, in characters. Source: `e2a` section 10.2.
const MAX_ATTRIBUTE_CHARS: usize = 256;

// === impl Parser ===

impl Parser<'_> {
    /// What the unit is and says. `lines` is told of every line of a workflow, and forgotten at anything else.
    pub(super) fn draft(
        &self,
        bytes: &Bytes,
        limits: &Limits,
        lines: &mut Option<Lines>,
    ) -> Result<(Because, Option<JsonRpc>, Draft), DecodeError> {
        let because = self.family().inspect_err(|_| *lines = None)?;
        if because.family != Family::A2eWorkflow {
            *lines = None;
        }
        let message = match because.family {
            Family::CloudEvent => {
                let event = self.cloud_event(bytes, limits)?;
                return Ok((because, None, Draft::Event(event)));
            }
            Family::JsonRpc => {
                let (json_rpc, message) = self.json_rpc()?;
                return Ok((because, Some(json_rpc), Draft::Message(message)));
            }
            Family::Legacy => self.legacy()?,
            Family::A2eMessage => self.a2e_message()?,
            Family::A2eWorkflow => {
                if let Some(lines) = lines {
                    lines.note(self, because);
                }
                self.workflow_line()?
            }
            Family::E2a => self.e2a()?,
        };
        Ok((because, None, Draft::Message(message)))
    }

    fn family(&self) -> Result<Because, DecodeError> {
        let Some(because) = self.facts.family(self.hint)? else {
            let message = if self.facts.has(Place::Method) {
                "unknown message format: the object has a \"method\" and no \"jsonrpc\":\"2.0\""
            } else {
                "unknown message format: the object has no \"jsonrpc\", \"specversion\", \"a2e\", ... member"
            };
            return Err(self.refused(DecodeErrorKind::Unknown, Place::Root, message));
        };
        match self.hint.family {
            Some(declared) if self.hint.strict && declared != because.family => {
                let message = format!(
                    "this binding carries {} only, the payload is {}",
                    declared.as_str(),
                    because.family.as_str()
                );
                Err(self.refused(DecodeErrorKind::WrongFamily, Place::Root, message))
            }
            _ => Ok(because),
        }
    }

    fn cloud_event(&self, bytes: &Bytes, limits: &Limits) -> Result<Event, DecodeError> {
        let trimmed = if bytes.starts_with(BYTE_ORDER_MARK) {
            bytes.slice(BYTE_ORDER_MARK.len()..)
        } else {
            bytes.clone()
        };
        format::read(&trimmed, limits).map_err(|error| {
            let pointer = match error.attribute() {
                "" => String::new(),
                attribute => format!("/{attribute}"),
            };
            let at = self.facts.span.start();
            DecodeError::new(DecodeErrorKind::BadCloudEvent, at, error.to_string()).at(pointer)
        })
    }

    /// An error about a member, or about the unit where the member is absent.
    pub(super) fn refused(
        &self,
        kind: DecodeErrorKind,
        place: Place,
        message: impl Into<Cow<'static, str>>,
    ) -> DecodeError {
        let span = self.facts.get(place).unwrap_or(self.facts.span);
        DecodeError::new(kind, span.start(), message).at(place.pointer())
    }

    /// A word that becomes `a2amethod` and part of `type`; null counts as absent.
    /// Source: `eventmesh-a2a` D11, for every family `detection` section 3.
    pub(super) fn method(&self, place: Place) -> Result<Option<Text>, DecodeError> {
        const RULE: &str =
            "a method is a string of 1 to 256 characters without spaces or control characters";
        if self.facts.set(place).is_none() {
            return Ok(None);
        }
        match self.facts.text(place).filter(|text| is_method(text)) {
            Some(text) => Ok(Some(text)),
            None => Err(self.refused(DecodeErrorKind::BadMethod, place, RULE)),
        }
    }

    /// A name of an agent. Source: `eventmesh-a2a` D6.
    pub(super) fn target(&self, place: Place) -> Result<Option<Text>, DecodeError> {
        self.name(place, DecodeErrorKind::BadTarget, is_target)
    }

    /// A name of a topic. Source: `eventmesh-a2a` D6.
    pub(super) fn topic(&self, place: Place) -> Result<Option<Text>, DecodeError> {
        self.name(place, DecodeErrorKind::BadTopic, is_topic)
    }

    /// A name that routing uses: a string that passes the check, or an error that says which member.
    fn name(
        &self,
        place: Place,
        kind: DecodeErrorKind,
        check: fn(&str) -> bool,
    ) -> Result<Option<Text>, DecodeError> {
        const RULE: &str = "must be a string of letters, digits and . _ - / : @ + without \"..\", not empty, not too long";
        self.facts.refuse_repeated(&[place])?;
        if !self.facts.has(place) {
            return Ok(None);
        }
        match self.facts.text(place).filter(|text| check(text)) {
            Some(text) => Ok(Some(text)),
            None => Err(self.refused(kind, place, RULE)),
        }
    }

    /// A scalar that becomes an attribute; null counts as absent.
    pub(super) fn scalar(
        &self,
        place: Place,
        kind: DecodeErrorKind,
    ) -> Result<Option<Text>, DecodeError> {
        self.facts.refuse_repeated(&[place])?;
        let Some(span) = self.facts.set(place) else {
            return Ok(None);
        };
        let text = match span.kind() {
            Kind::String => self.facts.text(place),
            Kind::Number => Some(Text::from(self.facts.token(span))),
            Kind::Object | Kind::Array | Kind::Boolean | Kind::Null => None,
        };
        let legal =
            |text: &Text| (1..=MAX_ID_BYTES).contains(&text.len()) && crate::event::is_string(text);
        match text.filter(legal) {
            Some(text) => Ok(Some(text)),
            None => Err(self.refused(kind, place, "must be a short string or a number")),
        }
    }

    /// A string that becomes an attribute where it can, and is left out where it cannot.
    pub(super) fn attribute(&self, place: Place) -> Option<Text> {
        self.facts.text(place).filter(|text| is_attribute(text))
    }

    /// A number.
    pub(super) fn number(&self, place: Place) -> Option<f64> {
        let span = self
            .facts
            .get(place)
            .filter(|span| span.kind() == Kind::Number)?;
        self.facts.token(span).parse().ok()
    }
}

/// Whether the text may be an attribute that is not an id.
pub(super) fn is_attribute(text: &str) -> bool {
    !text.is_empty()
        && (text.len() <= MAX_ATTRIBUTE_CHARS || text.chars().count() <= MAX_ATTRIBUTE_CHARS)
        && crate::event::is_string(text)
}
