//! The names and patterns of the configuration, which the rest of the bridge also uses.
//!
//! This module does not depend on the configuration.

mod escape;
mod template;

use std::borrow::Borrow;
use std::fmt;

use a2abus_plugin::{Event, Text, Value};
use a2abus_transports::Topic;
use globset::{Glob, GlobSet, GlobSetBuilder};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use self::template::{Attribute, Template, TemplatePart};

pub(crate) use self::escape::escape;
#[cfg(any(feature = "kafka", feature = "nats"))]
pub(crate) use self::escape::unescape;
pub(crate) use self::template::with_extension;

/// The name of the HTTP listener as a binding: what routes match as `binding`, and part of `source`.
pub(crate) const DOOR: &str = "http";

/// The headers with which tracing systems and proxies correlate messages. Source: W3C Trace Context, W3C Baggage,
/// Zipkin B3.
pub(crate) const TRACE_HEADERS: [&str; 7] = [
    "traceparent",
    "tracestate",
    "baggage",
    "b3",
    "x-b3-*",
    "x-request-id",
    "x-correlation-id",
];

/// The headers of an HTTP request that reach the agent by default: those of [`TRACE_HEADERS`] except
/// `baggage`, which the caller controls, and those of A2A. Source: docs/protocols/a2a.md §6.
pub(crate) const DOOR_HEADERS: [&str; 13] = [
    "traceparent",
    "tracestate",
    "b3",
    "x-b3-*",
    "x-request-id",
    "x-correlation-id",
    "a2a-version",
    "a2a-extensions",
    "x-a2a-version",
    "x-a2a-extensions",
    "x-a2a-client",
    "x-a2a-trace-id",
    "x-a2a-priority",
];

/// The name of a transport, a binding, a route, a group: 1 to 64 of `A-Z a-z 0-9 . _ -`, letter or digit first.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Text);

/// A string condition of a route: an exact value, or a glob if it contains `*`, `?`, `[...]` or `{a,b}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pattern(Text);

/// The value of a `glob` condition.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GlobText(Text);

/// The CloudEvents content mode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Attributes are headers, data is the body.
    #[default]
    Binary,
    /// The whole event is one JSON body.
    Structured,
}

/// How an attribute value becomes part of a topic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Names {
    /// Accept only a topic segment; any other value is an error of that event.
    #[default]
    Refuse,
    /// Write every other byte as `_xHH`, so that two values never share a topic.
    Escape,
    /// Accept topic segments separated by dots (for `subject`); any other value is an error.
    Dotted,
}

/// Sets an attribute of an event. The name and the value must be legal.
pub(crate) fn put(event: &mut Event, name: &str, value: impl Into<Value>) {
    let set = event.set(name, value);
    debug_assert!(set.is_ok(), "{name} and its value are legal");
}

// === impl Name ===

impl Name {
    /// Checks a name.
    ///
    /// # Errors
    /// The rule that the text breaks.
    pub fn new(text: &str) -> Result<Self, String> {
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let first = text
            .bytes()
            .next()
            .is_some_and(|b| b.is_ascii_alphanumeric());
        if first && text.len() <= 64 && text.bytes().all(legal) {
            Ok(Self(text.into()))
        } else {
            Err(
                "not a name: write 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit"
                    .into(),
            )
        }
    }

    /// A name known to be valid.
    pub(crate) const fn from_static(text: &'static str) -> Self {
        Self(Text::from_static(text))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as shared text.
    #[must_use]
    pub fn text(&self) -> &Text {
        &self.0
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

// === impl Pattern, GlobText ===

impl Pattern {
    /// Checks a pattern.
    ///
    /// # Errors
    /// What is wrong with the glob.
    pub fn new(text: &str) -> Result<Self, String> {
        let pattern = Self(text.into());
        if pattern.is_glob() {
            GlobText::new(text)?;
        }
        Ok(pattern)
    }

    /// A pattern known to be valid.
    pub(crate) const fn from_static(text: &'static str) -> Self {
        Self(Text::from_static(text))
    }

    /// What any of the patterns matches.
    ///
    /// # Errors
    /// When a pattern is not a valid glob.
    pub(crate) fn set<'a>(
        patterns: impl IntoIterator<Item = &'a Self>,
    ) -> Result<GlobSet, globset::Error> {
        let mut set = GlobSetBuilder::new();
        for pattern in patterns {
            let text = pattern.0.as_str();
            let literal = globset::escape(text);
            let text = if pattern.is_glob() { text } else { &literal };
            set.add(Glob::new(text)?);
        }
        set.build()
    }

    /// Whether the text is a glob.
    #[must_use]
    pub fn is_glob(&self) -> bool {
        let after = |first: char| self.0.split_once(first).map(|(_, after)| after);
        let is_choice = |after: &str| {
            let comma = after.split_once(',');
            comma.is_some_and(|(_, after)| after.contains('}'))
        };
        self.0.contains(['*', '?'])
            || after('[').is_some_and(|after| after.contains(']'))
            || after('{').is_some_and(is_choice)
    }

    /// Whether a topic can match. A glob can if it has nothing outside its wildcards that a topic cannot have, such as
    /// the `>` of NATS.
    #[must_use]
    pub(crate) fn may_match_a_topic(&self) -> bool {
        if !self.is_glob() {
            return Topic::new(self.0.clone()).is_ok();
        }
        let is_legal = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let mut rest = self.0.chars();
        while let Some(c) = rest.next() {
            let can_match = match c {
                '*' | '?' | '{' | ',' | '}' => true,
                // A class. Its first character belongs to it even if it is a bracket.
                '[' => {
                    let first = rest.next();
                    if matches!(first, Some('!' | '^')) {
                        rest.next();
                    }
                    rest.any(|c| c == ']')
                }
                '\\' => rest.next().is_some_and(is_legal),
                c => is_legal(c),
            };
            if !can_match {
                return false;
            }
        }
        true
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &Text {
        &self.0
    }

    /// The text before the only wildcard, if that is a last `*`: all names with this prefix match.
    #[must_use]
    pub(crate) fn as_prefix(&self) -> Option<&str> {
        let prefix = self.0.strip_suffix('*')?;
        (!prefix.contains(['*', '?', '[', '{', '\\'])).then_some(prefix)
    }
}

impl GlobText {
    /// Checks a glob.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(text: &str) -> Result<Self, String> {
        Glob::new(text)
            .map(|_| Self(text.into()))
            .map_err(|error| format!("not a glob: {}", error.kind()))
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &Text {
        &self.0
    }
}
