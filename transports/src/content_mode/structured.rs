//! CloudEvents media types, and batches.

use a2abus_plugin::{Event, EventError, EventErrorKind, Limits, format};
use bytes::Bytes;
use serde_json::value::RawValue;

use super::value::duplicate;
use crate::message::Message;

const CLOUDEVENTS: &[u8] = b"application/cloudevents";

/// The kind of body that a CloudEvents media type declares.
pub(super) enum Media {
    /// One event in the JSON format.
    Json,
    /// Several events, and whether they can be read.
    Batch(Result<(), EventError>),
    /// Another format or another character set.
    Unreadable(EventError),
}

/// The content types of a message: the first, and whether there are more.
pub(super) struct ContentType {
    pub(super) first: Option<Bytes>,
    count: usize,
}

// === impl Media ===

impl Media {
    /// `None` for a media type that is not a CloudEvents type. Case does not matter. A format other than JSON is never
    /// treated as JSON.
    pub(super) fn read(media_type: &[u8]) -> Option<Self> {
        let media_type = media_type.trim_ascii();
        let (start, rest) = media_type.split_at_checked(CLOUDEVENTS.len())?;
        if !start.eq_ignore_ascii_case(CLOUDEVENTS) {
            return None;
        }
        let mut parameters = rest.split(|byte| *byte == b';');
        let format = parameters.next().unwrap_or_default().trim_ascii();
        let charset = check_charset(parameters);
        let is = |name: &str| format.eq_ignore_ascii_case(name.as_bytes());
        Some(if is("+json") {
            charset.map_or_else(Self::Unreadable, |()| Self::Json)
        } else if is("-batch+json") {
            Self::Batch(charset)
        } else if format
            .get(..6)
            .is_some_and(|start| start.eq_ignore_ascii_case(b"-batch"))
        {
            Self::Batch(Err(unsupported_format()))
        } else {
            Self::Unreadable(unsupported_format())
        })
    }
}

// === impl ContentType ===

impl ContentType {
    pub(super) fn of(message: &Message) -> Self {
        let mut values = message
            .headers
            .iter()
            .filter(|header| is_content_type(&header.name))
            .filter_map(|header| header.value.as_ref());
        let first = values.next().cloned();
        let count = usize::from(first.is_some()) + values.count();
        Self { first, count }
    }

    /// The event format that the content type declares; `None` for a type that is not a CloudEvents type.
    pub(super) fn media(&self) -> Option<Media> {
        Media::read(self.first.as_deref()?)
    }

    /// The only content type. With two, two readers could see two different events.
    pub(super) fn only(&self) -> Result<Option<&Bytes>, EventError> {
        if self.count > 1 {
            return Err(duplicate("content-type"));
        }
        Ok(self.first.as_ref())
    }
}

pub(super) fn is_content_type(name: &str) -> bool {
    name.eq_ignore_ascii_case("content-type")
}

/// Reads an HTTP message that is a batch of events in the JSON format; `None` when its content type declares something
/// else. Order is kept, and a bad event does not affect the others. Events share the body.
///
/// # Errors
/// `MalformedBatch` when the body is not an array, is larger than `limits.max_bytes`, or has more elements than
/// `limits.max_units`; `UnsupportedFormat`, `UnsupportedCharset`; `DuplicateAttribute` for a second content type. Source:
/// CloudEvents 1.0.2, HTTP protocol binding section 3.3, JSON format section 4.
pub fn read_batch(
    message: &Message,
    limits: &Limits,
) -> Result<Option<Vec<Result<Event, EventError>>>, EventError> {
    let content_type = ContentType::of(message);
    match content_type.media() {
        Some(Media::Batch(readable)) => readable?,
        Some(Media::Json | Media::Unreadable(_)) | None => return Ok(None),
    }
    content_type.only()?;
    let empty = Bytes::new();
    let body = message.body.as_ref().unwrap_or(&empty);
    let malformed =
        |detail| EventError::new(EventErrorKind::MalformedBatch, "").with_detail(detail);
    if body.len() > limits.max_bytes {
        return Err(malformed("the batch is larger than the limit"));
    }
    let members: Vec<&RawValue> =
        serde_json::from_slice(body).map_err(|_| malformed("not a JSON array"))?;
    if members.len() > limits.max_units {
        return Err(malformed("more events than the limit"));
    }
    let events = members
        .iter()
        .map(|member| format::read(&body.slice_ref(member.get().as_bytes()), limits));
    Ok(Some(events.collect()))
}

fn unsupported_format() -> EventError {
    EventError::new(EventErrorKind::UnsupportedFormat, "content-type")
        .with_detail("events are read in the JSON format only")
}

fn check_charset<'a>(parameters: impl Iterator<Item = &'a [u8]>) -> Result<(), EventError> {
    for parameter in parameters {
        let mut halves = parameter.splitn(2, |byte| *byte == b'=');
        let name = halves.next().unwrap_or_default().trim_ascii();
        if !name.eq_ignore_ascii_case(b"charset") {
            continue;
        }
        let value = halves.next().unwrap_or_default().trim_ascii();
        let value = value
            .strip_prefix(b"\"")
            .and_then(|value| value.strip_suffix(b"\""))
            .unwrap_or(value);
        if !value.eq_ignore_ascii_case(b"utf-8") {
            return Err(
                EventError::new(EventErrorKind::UnsupportedCharset, "content-type")
                    .with_detail("events are read in UTF-8 only"),
            );
        }
    }
    Ok(())
}
