//! Why an E2A message was refused.

use a2abus_plugin::Text;

wire_enum! {
    /// The fault of an E2A message. The name of each kind is stable. Source: docs/protocols/e2a.md §9.
    #[non_exhaustive]
    E2aErrorKind {
        /// Not a JSON object.
        NotAnObject = "not_an_object",
        /// A member of the wrong type.
        BadType = "bad_type",
        /// A member of the right type with a value that is not allowed.
        BadValue = "bad_value",
        /// A number or a time out of range.
        OutOfRange = "out_of_range",
        /// `protocol_version` names an unsupported version.
        UnsupportedVersion = "unsupported_version",
        /// A record without `protocol_version`.
        MissingVersion = "missing_version",
        /// A request without an id to answer.
        MissingId = "missing_id",
        /// A call without a method.
        MissingMethod = "missing_method",
        /// A `response_kind` without an equivalent in the legacy shapes.
        UnsupportedKind = "unsupported_kind",
        /// Neither a record nor a legacy shape.
        UnrecognizedShape = "unrecognized_shape",
        /// An envelope that only carries another request.
        FallbackEnvelope = "fallback_envelope",
        /// A repeated member that affects routing or meaning.
        DuplicateMember = "duplicate_member",
    }
}

/// The refusal of an E2A message: the fault and its path. Never contains a value of the message. Source:
/// docs/protocols/e2a.md §9.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}{}", kind.as_str(), if field.is_empty() { "" } else { " at " }, field)]
#[non_exhaustive]
pub struct E2aError {
    /// The kind of error.
    pub kind: E2aErrorKind,
    /// The dotted path of the member; empty for the message as a whole.
    pub field: Text,
}

impl E2aErrorKind {
    /// The cause, and the cure where the name does not tell it.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::NotAnObject => "expected a JSON object",
            Self::BadType => "the member is missing, or has the wrong type",
            Self::BadValue => "the member has a value that is not allowed",
            Self::OutOfRange => "the number or time is out of range",
            Self::UnsupportedVersion => "protocol_version must be \"1\" or \"1.\" and digits",
            Self::MissingVersion => "a record must have protocol_version",
            Self::MissingId => {
                "the request has no id to answer: give it a jsonrpc_id or a request_id"
            }
            Self::MissingMethod => "the request has no method",
            Self::UnsupportedKind => "this response_kind has no equivalent in the legacy shapes",
            Self::UnrecognizedShape => "expected an E2A record or a legacy answer",
            Self::FallbackEnvelope => {
                "the request only carries another one that its sender could not normalise"
            }
            Self::DuplicateMember => "the member occurs twice: send it once",
        }
    }
}

impl E2aError {
    pub(crate) fn new(kind: E2aErrorKind, field: impl Into<Text>) -> Self {
        Self {
            kind,
            field: field.into(),
        }
    }
}

/// An error about the message as a whole.
impl From<E2aErrorKind> for E2aError {
    fn from(kind: E2aErrorKind) -> Self {
        Self::new(kind, Text::default())
    }
}
