//! Why an E2A message was refused.

use a2abus_plugin::Text;

/// What is wrong with an E2A message. The word of each kind is stable.
/// Source: docs/protocols/e2a.md §9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum E2aErrorKind {
    /// Not a JSON object.
    NotAnObject,
    /// A member of the wrong type.
    BadType,
    /// A member of the right type with a value that is not allowed.
    BadValue,
    /// A number or a time beyond what can be held.
    OutOfRange,
    /// `protocol_version` names a version that is not spoken.
    UnsupportedVersion,
    /// A record without `protocol_version`.
    MissingVersion,
    /// A request without anything to answer to.
    MissingId,
    /// A call without a method.
    MissingMethod,
    /// A `response_kind` that has no form in the older shapes.
    UnsupportedKind,
    /// Neither a record nor one of the older shapes.
    UnrecognizedShape,
    /// An envelope that only carries another request.
    FallbackEnvelope,
    /// A member that decides something stands twice.
    DuplicateMember,
}

impl E2aErrorKind {
    /// The stable word of this kind.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotAnObject => "not_an_object",
            Self::BadType => "bad_type",
            Self::BadValue => "bad_value",
            Self::OutOfRange => "out_of_range",
            Self::UnsupportedVersion => "unsupported_version",
            Self::MissingVersion => "missing_version",
            Self::MissingId => "missing_id",
            Self::MissingMethod => "missing_method",
            Self::UnsupportedKind => "unsupported_kind",
            Self::UnrecognizedShape => "unrecognized_shape",
            Self::FallbackEnvelope => "fallback_envelope",
            Self::DuplicateMember => "duplicate_member",
        }
    }
}

/// An E2A message was refused: what is wrong, and where. Never holds a value of the message.
/// Source: docs/protocols/e2a.md §9.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}{}", kind.as_str(), if field.is_empty() { "" } else { " at " }, field)]
#[non_exhaustive]
pub struct E2aError {
    /// What is wrong.
    pub kind: E2aErrorKind,
    /// The dotted path of the member; empty for the message as a whole.
    pub field: Text,
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
