//! Why a payload or an event was refused.

use std::borrow::Cow;
use std::fmt;

use crate::text::Text;

/// The fault of a payload. The name of each kind ([`DecodeErrorKind::as_str`]) is stable: it is the reason of a dead
/// letter and the label of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecodeErrorKind {
    /// No bytes, or white space only.
    Empty,
    /// The bytes are not UTF-8.
    NotUtf8,
    /// The bytes are not one JSON value, or not one per line.
    NotJson,
    /// Over a limit on bytes, members or units.
    TooLarge,
    /// Nested too deeply.
    TooDeep,
    /// A JSON value that is not an object where one is required.
    NotAnObject,
    /// An array without elements.
    EmptyBatch,
    /// `jsonrpc` or `specversion` names an unsupported version.
    UnsupportedVersion,
    /// A repeated member that affects detection or routing.
    DuplicateMember,
    /// A JSON-RPC `id` that is neither string, number nor null.
    BadId,
    /// A method that is not a string of 1 to 256 visible characters.
    BadMethod,
    /// `params` that are neither an object nor, for a method that allows it, an array.
    BadParams,
    /// An `error` without an integer `code` and a string `message`.
    BadError,
    /// A target that is not a valid name.
    BadTarget,
    /// A topic that is not a valid name.
    BadTopic,
    /// `_seq` that is neither a string nor a number.
    BadSeq,
    /// An E2A response without a `protocol_version`.
    MissingVersion,
    /// An A2E message without an `id`, where ids are required.
    MissingId,
    /// A line of a workflow without a collaboration id that connects it to the other lines.
    MissingCollaborationId,
    /// Any other member with a wrong type or value.
    BadMember,
    /// A message inside an E2A message that is not trusted, or is another one.
    BadValue,
    /// A JSON-RPC object with both `result` and `error`.
    BothResultAndError,
    /// A JSON-RPC object that is neither request, notification nor response.
    Invalid,
    /// A CloudEvent that breaks the CloudEvents specification.
    BadCloudEvent,
    /// No family recognises the object.
    Unknown,
    /// The object belongs to another family than the required one.
    WrongFamily,
    /// An A2E message about the connection itself, where such messages are refused.
    LinkLocal,
}

impl DecodeErrorKind {
    /// The stable name of this kind.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::NotUtf8 => "not_utf8",
            Self::NotJson => "not_json",
            Self::TooLarge => "too_large",
            Self::TooDeep => "too_deep",
            Self::NotAnObject => "not_an_object",
            Self::EmptyBatch => "empty_batch",
            Self::UnsupportedVersion => "unsupported_version",
            Self::DuplicateMember => "duplicate_member",
            Self::BadId => "bad_id",
            Self::BadMethod => "bad_method",
            Self::BadParams => "bad_params",
            Self::BadError => "bad_error",
            Self::BadTarget => "bad_target",
            Self::BadTopic => "bad_topic",
            Self::BadSeq => "bad_seq",
            Self::MissingVersion => "missing_version",
            Self::MissingId => "missing_id",
            Self::MissingCollaborationId => "missing_collaborationid",
            Self::BadMember => "bad_member",
            Self::BadValue => "bad_value",
            Self::BothResultAndError => "both_result_and_error",
            Self::Invalid => "invalid",
            Self::BadCloudEvent => "bad_cloudevent",
            Self::Unknown => "unknown",
            Self::WrongFamily => "wrong_family",
            Self::LinkLocal => "link_local",
        }
    }
}

impl fmt::Display for DecodeErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A payload, or one unit of it, was refused: the fault, and its position. Never contains the payload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.0.message)]
pub struct DecodeError(Box<Problem>);

/// Boxed, so that results stay small on the path without errors.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Problem {
    kind: DecodeErrorKind,
    message: Cow<'static, str>,
    pointer: Cow<'static, str>,
    offset: usize,
}

impl DecodeError {
    /// An error about a unit, at an offset in the payload.
    #[must_use]
    pub fn new(
        kind: DecodeErrorKind,
        offset: usize,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self(Box::new(Problem {
            kind,
            message: message.into(),
            pointer: Cow::Borrowed(""),
            offset,
        }))
    }

    /// The same error, about the member at a JSON pointer.
    #[must_use]
    pub fn at(mut self, pointer: impl Into<Cow<'static, str>>) -> Self {
        self.0.pointer = pointer.into();
        self
    }

    /// The kind of error.
    #[must_use]
    pub fn kind(&self) -> DecodeErrorKind {
        self.0.kind
    }

    /// The position as a JSON pointer within the unit; empty for the unit as a whole.
    #[must_use]
    pub fn pointer(&self) -> &str {
        &self.0.pointer
    }

    /// The position as a byte offset from the start of the payload.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.0.offset
    }
}

/// The fault of a CloudEvent or its binding to a transport. The names are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventErrorKind {
    /// An event batch, which the binding does not support.
    BatchUnsupported,
    /// An attribute occurs twice.
    DuplicateAttribute,
    /// A header that the binding forbids.
    ForbiddenHeader,
    /// An attribute name that is not lower-case letters and digits.
    InvalidAttributeName,
    /// An attribute value of the wrong type or with forbidden characters.
    InvalidAttributeValue,
    /// A header value that is not UTF-8.
    InvalidUtf8,
    /// An event batch that is not a JSON array of events.
    MalformedBatch,
    /// `data` or `data_base64` that does not fit its media type.
    MalformedData,
    /// A structured event that is not a JSON object.
    MalformedEvent,
    /// A broken percent escape in a header value.
    MalformedPercent,
    /// A required attribute is absent.
    MissingAttribute,
    /// Nested too deeply.
    TooDeep,
    /// A structured event in a character set other than UTF-8.
    UnsupportedCharset,
    /// A structured event in a format other than JSON.
    UnsupportedFormat,
    /// A `specversion` other than 1.0.
    UnsupportedSpecversion,
}

impl EventErrorKind {
    /// The stable name of this kind.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BatchUnsupported => "batch_unsupported",
            Self::DuplicateAttribute => "duplicate_attribute",
            Self::ForbiddenHeader => "forbidden_header",
            Self::InvalidAttributeName => "invalid_attribute_name",
            Self::InvalidAttributeValue => "invalid_attribute_value",
            Self::InvalidUtf8 => "invalid_utf8",
            Self::MalformedBatch => "malformed_batch",
            Self::MalformedData => "malformed_data",
            Self::MalformedEvent => "malformed_event",
            Self::MalformedPercent => "malformed_percent",
            Self::MissingAttribute => "missing_attribute",
            Self::TooDeep => "too_deep",
            Self::UnsupportedCharset => "unsupported_charset",
            Self::UnsupportedFormat => "unsupported_format",
            Self::UnsupportedSpecversion => "unsupported_specversion",
        }
    }
}

/// An event, or an attribute of one, breaks the CloudEvents specification or its binding.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {detail}", kind.as_str(), AttributeSuffix(attribute))]
pub struct EventError {
    kind: EventErrorKind,
    attribute: Text,
    detail: Cow<'static, str>,
}

impl EventError {
    /// An error about the named attribute or header; the name may be empty.
    #[must_use]
    pub fn new(kind: EventErrorKind, attribute: &str) -> Self {
        let end = attribute
            .char_indices()
            .nth(NAME_SHOWN)
            .map_or(attribute.len(), |(at, _)| at);
        let attribute = Text::from(attribute.get(..end).unwrap_or_default());
        Self {
            kind,
            attribute,
            detail: Cow::Borrowed("refused"),
        }
    }

    /// Adds an explanation for people.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        self.detail = detail.into();
        self
    }

    /// The kind of error.
    #[must_use]
    pub fn kind(&self) -> EventErrorKind {
        self.kind
    }

    /// The attribute or header it is about; empty for the event as a whole.
    #[must_use]
    pub fn attribute(&self) -> &str {
        &self.attribute
    }
}

/// The maximum number of characters of a foreign name in an error message.
const NAME_SHOWN: usize = 64;

struct AttributeSuffix<'a>(&'a Text);

impl fmt::Display for AttributeSuffix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            Ok(())
        } else {
            write!(f, " ({:?})", self.0)
        }
    }
}
