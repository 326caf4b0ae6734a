//! Why a line was refused, and the `error` that says so.
//! Source: docs/protocols/a2e-messages.md §1.3 and §3.

use std::fmt;

use super::session::ErrorMessage;
use crate::json::Object;
use a2abus_plugin::Kind;
use a2abus_plugin::Text;
use a2abus_plugin::protocol::a2e_message::{capability, is_event, is_known, is_push, kind};

/// What is wrong with a line. The words are stable: they are `detail.reason` of the `error`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Not UTF-8.
    NotUtf8,
    /// Not one JSON value.
    NotJson,
    /// Nested past the limit.
    Depth,
    /// Over another limit: bytes or members of a line, or lines of a payload.
    TooLarge,
    /// `NaN`, an infinity, or a number that reads as one.
    NonFiniteNumber,
    /// JSON, and no object.
    NotAnObject,
    /// A member that decides something stands twice.
    DuplicateMember,
    /// A base key is missing or of the wrong type.
    BadBaseKey,
    /// No `id`, where one is demanded.
    MissingId,
    /// A type that is not known, at an endpoint.
    UnknownType,
    /// Another major version, or two versions that differ.
    UnsupportedVersion,
    /// A required member is missing.
    MissingMember,
    /// A member does not hold what its type says.
    BadMember,
    /// JSON-RPC, which is another protocol.
    JsonRpc,
}

/// The class of a refusal: the code of the `error`. The words are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalKind {
    /// The framing or the JSON is broken.
    ParseError,
    /// No object, or bad base keys.
    InvalidMessage,
    /// A version that is not spoken.
    VersionMismatch,
    /// A member of the type is missing or wrong.
    SchemaViolation,
    /// Not of this protocol; it has no code, since nothing is answered to it.
    NotA2e,
}

/// A line was refused. Never holds the line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {}", self.kind(), InField(&self.0.field), self.0.message)]
pub struct Refusal(Box<Details>);

/// Boxed, so that results stay small where nothing is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Details {
    reason: Reason,
    field: Text,
    message: Text,
    line: LineNames,
}

/// What could be told of a line; empty what could not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineNames {
    /// Its `id`.
    pub id: Text,
    /// Its `req_id`.
    pub req_id: Text,
    /// Its `type`.
    pub type_name: Text,
}

// === impl Reason ===

impl Reason {
    /// The stable word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotUtf8 => "not_utf8",
            Self::NotJson => "not_json",
            Self::Depth => "depth",
            Self::TooLarge => "too_large",
            Self::NonFiniteNumber => "non_finite_number",
            Self::NotAnObject => "not_an_object",
            Self::DuplicateMember => "duplicate_member",
            Self::BadBaseKey => "bad_base_key",
            Self::MissingId => "missing_id",
            Self::UnknownType => "unknown_type",
            Self::UnsupportedVersion => "unsupported_version",
            Self::MissingMember => "missing_member",
            Self::BadMember => "bad_member",
            Self::JsonRpc => "json_rpc",
        }
    }

    /// The class it belongs to.
    #[must_use]
    pub fn kind(self) -> RefusalKind {
        match self {
            Self::NotUtf8
            | Self::NotJson
            | Self::Depth
            | Self::TooLarge
            | Self::NonFiniteNumber => RefusalKind::ParseError,
            Self::NotAnObject
            | Self::DuplicateMember
            | Self::BadBaseKey
            | Self::MissingId
            | Self::UnknownType => RefusalKind::InvalidMessage,
            Self::UnsupportedVersion => RefusalKind::VersionMismatch,
            Self::MissingMember | Self::BadMember => RefusalKind::SchemaViolation,
            Self::JsonRpc => RefusalKind::NotA2e,
        }
    }
}

// === impl RefusalKind ===

impl RefusalKind {
    /// The stable word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ParseError => "parse_error",
            Self::InvalidMessage => "invalid_message",
            Self::VersionMismatch => "version_mismatch",
            Self::SchemaViolation => "schema_violation",
            Self::NotA2e => "not_a2e",
        }
    }
}

impl fmt::Display for RefusalKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl Refusal ===

impl Refusal {
    /// A refusal of a line of which nothing could be told.
    pub(super) fn new(reason: Reason, message: impl Into<Text>) -> Self {
        Self(Box::new(Details {
            reason,
            field: Text::default(),
            message: message.into(),
            line: LineNames::default(),
        }))
    }

    pub(super) fn at(mut self, field: impl Into<Text>) -> Self {
        self.0.field = field.into();
        self
    }

    pub(super) fn about(mut self, line: LineNames) -> Self {
        self.0.line = line;
        self
    }

    /// What is wrong.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.0.reason
    }

    /// The dotted path of the member that is wrong; empty for the line as a whole.
    #[must_use]
    pub fn field(&self) -> &Text {
        &self.0.field
    }

    /// What a person should know.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// What could be told of the line: its id is what an answer is addressed to.
    #[must_use]
    pub fn line(&self) -> &LineNames {
        &self.0.line
    }

    /// The class.
    #[must_use]
    pub fn kind(&self) -> RefusalKind {
        self.0.reason.kind()
    }

    /// The `error` to answer the line with; `None` for another protocol, and for a line that is
    /// itself an answer, an event or a notification. Source: docs/protocols/a2e-messages.md §6.
    #[must_use]
    pub fn to_error(&self) -> Option<ErrorMessage> {
        let LineNames {
            id,
            req_id,
            type_name,
        } = self.line();
        let may_be_request = type_name.is_empty()
            || match kind(type_name, req_id) {
                Kind::Request => true,
                // Of no known shape, it may have been a request too.
                Kind::Notification => {
                    !(is_known(type_name) || is_event(type_name) || is_push(type_name))
                }
                Kind::Response | Kind::Stream => false,
            };
        let is_ours = self.kind() != RefusalKind::NotA2e;
        (is_ours && may_be_request).then(|| self.error(id, self.kind().as_str()))
    }

    /// The `error` that the asker gets instead of an answer that was refused, so that its call
    /// ends; `None` where the line names no call. The asker is not at fault, so the code is
    /// `runtime_error`.
    ///
    /// Source: docs/protocols/a2e-messages.md §1.3.
    #[must_use]
    pub fn in_place_of_answer(&self) -> Option<ErrorMessage> {
        let req_id = &self.line().req_id;
        (!req_id.is_empty()).then(|| self.error(req_id, "runtime_error"))
    }

    fn error(&self, req_id: &Text, code: &str) -> ErrorMessage {
        let Details {
            reason,
            field,
            message,
            line,
        } = &*self.0;
        let mut detail = Object::new();
        detail.insert("reason", reason.as_str());
        if !field.is_empty() {
            detail.insert("field", field.clone());
        }
        ErrorMessage {
            detail,
            capability_name: capability(&line.type_name).unwrap_or_default().into(),
            ..ErrorMessage::new(req_id.clone(), code, message.clone())
        }
    }
}

struct InField<'a>(&'a Text);

impl fmt::Display for InField<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            Ok(())
        } else {
            write!(f, " ({})", self.0)
        }
    }
}
