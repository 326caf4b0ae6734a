//! Why a line was refused, and the corresponding `error`. Source: docs/protocols/a2e-messages.md §1.3 and §3.

use std::fmt;

use super::session::ErrorMessage;
use super::value::Violation;
use crate::json::Object;
use a2abus_plugin::Kind;
use a2abus_plugin::Text;
use a2abus_plugin::protocol::a2e_message::{capability, is_event, is_known, is_push, kind};

wire_enum! {
    /// The fault of a line. The names are stable: they are `detail.reason` of the `error`.
    #[non_exhaustive]
    Reason {
        /// Not UTF-8.
        NotUtf8 = "not_utf8",
        /// Not one JSON value.
        NotJson = "not_json",
        /// Nested more deeply than the limit.
        Depth = "depth",
        /// Over another limit: bytes or members of a line, or lines of a payload.
        TooLarge = "too_large",
        /// `NaN`, an infinity, or a number that reads as one.
        NonFiniteNumber = "non_finite_number",
        /// JSON, but not an object.
        NotAnObject = "not_an_object",
        /// A repeated member that determines type, ids or version.
        DuplicateMember = "duplicate_member",
        /// A base key is missing or of the wrong type.
        BadBaseKey = "bad_base_key",
        /// No `id`, although one is required.
        MissingId = "missing_id",
        /// An unknown type, at an endpoint.
        UnknownType = "unknown_type",
        /// An unsupported major version, or two different versions.
        UnsupportedVersion = "unsupported_version",
        /// A required member is missing.
        MissingMember = "missing_member",
        /// A member does not have the type that its message type requires.
        BadMember = "bad_member",
        /// JSON-RPC, which is another protocol.
        JsonRpc = "json_rpc",
    }
}

wire_enum! {
    /// The class of a refusal: the code of the `error`. The names are stable.
    RefusalKind {
        /// The framing or the JSON is broken.
        ParseError = "parse_error",
        /// Not an object, or invalid base keys.
        InvalidMessage = "invalid_message",
        /// An unsupported version.
        VersionMismatch = "version_mismatch",
        /// A member is missing or invalid.
        SchemaViolation = "schema_violation",
        /// Not a message of this protocol. It has no code, because it is not answered.
        NotA2e = "not_a2e",
    }
}

/// A line was refused. Never contains the line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {}", self.kind(), InField(&self.0.field), self.0.message)]
pub struct Refusal(Box<Details>);

/// Boxed, so that results stay small on the path without errors.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Details {
    reason: Reason,
    field: Text,
    message: Text,
    violations: Vec<Violation>,
    line: LineIds,
}

/// The ids of the line; empty if they could not be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineIds {
    /// Its `id`.
    pub id: Text,
    /// Its `req_id`.
    pub req_id: Text,
    /// Its `type`.
    pub type_name: Text,
}

// === impl Reason ===

impl Reason {
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

impl fmt::Display for RefusalKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl Refusal ===

impl Refusal {
    /// A refusal without information about the line.
    pub(super) fn new(reason: Reason, message: impl Into<Text>) -> Self {
        Self(Box::new(Details {
            reason,
            field: Text::default(),
            message: message.into(),
            violations: Vec::new(),
            line: LineIds::default(),
        }))
    }

    pub(super) fn at(mut self, field: impl Into<Text>) -> Self {
        self.0.field = field.into();
        self
    }

    pub(super) fn with(mut self, violations: Vec<Violation>) -> Self {
        self.0.violations = violations;
        self
    }

    pub(super) fn about(mut self, line: LineIds) -> Self {
        self.0.line = line;
        self
    }

    /// The problem.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.0.reason
    }

    /// The dotted path of the invalid member; empty for the line as a whole.
    #[must_use]
    pub fn field(&self) -> &Text {
        &self.0.field
    }

    /// A message for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The invalid members, up to a maximum; the message names the first.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.0.violations
    }

    /// The ids of the line. An answer is addressed to its `id`.
    #[must_use]
    pub fn line(&self) -> &LineIds {
        &self.0.line
    }

    /// The class.
    #[must_use]
    pub fn kind(&self) -> RefusalKind {
        self.0.reason.kind()
    }

    /// The `error` that answers the line; `None` for another protocol, and for a line that is
    /// itself an answer, an event or a notification. Source: docs/protocols/a2e-messages.md §6.
    #[must_use]
    pub fn to_error(&self) -> Option<ErrorMessage> {
        let LineIds {
            id,
            req_id,
            type_name,
        } = self.line();
        let may_be_request = type_name.is_empty()
            || match kind(type_name, req_id) {
                Kind::Request => true,
                // A message of unknown form may have been a request.
                Kind::Notification => {
                    !(is_known(type_name) || is_event(type_name) || is_push(type_name))
                }
                Kind::Response | Kind::Stream => false,
            };
        let is_ours = self.kind() != RefusalKind::NotA2e;
        (is_ours && may_be_request).then(|| self.error(id, self.kind().as_str()))
    }

    /// The `error` for the requester in place of a refused answer, so that its call ends; `None` if the line names no
    /// call. The requester is not at fault, so the code is `runtime_error`.
    ///
    /// Source: docs/protocols/a2e-messages.md §1.3.
    #[must_use]
    pub fn error_for_requester(&self) -> Option<ErrorMessage> {
        let req_id = &self.line().req_id;
        (!req_id.is_empty()).then(|| self.error(req_id, "runtime_error"))
    }

    fn error(&self, req_id: &Text, code: &str) -> ErrorMessage {
        let Details {
            reason,
            field,
            message,
            line,
            ..
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
