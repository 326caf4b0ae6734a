//! How each transport represents a CloudEvent, and how a message declares one.
//!
//! | | Kafka, memory | NATS | HTTP |
//! |---|---|---|---|
//! | attribute header | `ce_` + name, exact case | `ce-` + name, any case | `ce-` + name, any case |
//! | its value | raw UTF-8 | percent-encoded | percent-encoded |
//! | `datacontenttype` | `content-type` | `ce-datacontenttype` | `Content-Type` |
//! | no data | null value | empty payload | empty body |
//! | batch | refused | refused | [`read_batch`] |
//!
//! In binary mode the attributes are headers and the body is the data, shared and never inspected. In structured mode
//! the body is the event in the JSON format. Source: CloudEvents 1.0.2, Kafka, NATS and HTTP protocol bindings.

use a2abus_plugin::event::SPEC_VERSION;
use a2abus_plugin::{
    Data, Event, EventError, EventErrorKind, EventId, Limits, Text, extension, format,
};
use bytes::{Bytes, BytesMut};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::message::{Header, Headers, Message};

mod percent;
mod structured;
mod value;

pub use structured::read_batch;

use structured::{ContentType, Media, is_content_type};
use value::{duplicate, utf8};

/// The protocol binding that maps CloudEvents to messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProtocolBinding {
    /// CloudEvents Kafka protocol binding.
    Kafka,
    /// CloudEvents NATS protocol binding.
    Nats,
    /// The memory transport, which follows the Kafka binding.
    Memory,
    /// CloudEvents HTTP protocol binding.
    Http,
}

/// Where a message carries the attributes of an event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ContentMode {
    /// In headers; the body is the data.
    #[default]
    Binary,
    /// In the body, in the JSON format, with the data.
    Structured,
}

/// The content of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "created once per message and consumed at once; a box would cost an allocation"
)]
pub enum Content {
    /// A CloudEvent.
    Event(Event),
    /// Anything else; payload detection decides what it is.
    Plain {
        /// The content type that the message declares.
        content_type: Option<Text>,
        /// The body; empty when the message has none.
        body: Bytes,
    },
}

/// The attributes of the specification, and their headers in the Kafka and the other bindings.
const CORE: [(&str, &str, &str); 7] = [
    ("specversion", "ce_specversion", "ce-specversion"),
    ("id", "ce_id", "ce-id"),
    ("source", "ce_source", "ce-source"),
    ("type", "ce_type", "ce-type"),
    ("dataschema", "ce_dataschema", "ce-dataschema"),
    ("subject", "ce_subject", "ce-subject"),
    ("time", "ce_time", "ce-time"),
];

/// The extensions of most requests and answers, and their headers in the Kafka and the other bindings.
const FREQUENT: [(&str, &str, &str); 13] = [
    (extension::MCP_TYPE, "ce_mcptype", "ce-mcptype"),
    (extension::PROTOCOL, "ce_protocol", "ce-protocol"),
    (
        extension::PROTOCOL_VERSION,
        "ce_protocolversion",
        "ce-protocolversion",
    ),
    (extension::A2A_METHOD, "ce_a2amethod", "ce-a2amethod"),
    (extension::TARGET_AGENT, "ce_targetagent", "ce-targetagent"),
    (
        extension::COLLABORATION_ID,
        "ce_collaborationid",
        "ce-collaborationid",
    ),
    (extension::CALL_ID, "ce_callid", "ce-callid"),
    (extension::EXPIRY_TIME, "ce_expirytime", "ce-expirytime"),
    (extension::HOPS, "ce_hops", "ce-hops"),
    (extension::REPLY_TO, "ce_replyto", "ce-replyto"),
    (
        extension::REPLY_PARTITION,
        "ce_replypartition",
        "ce-replypartition",
    ),
    (extension::IS_FINAL, "ce_isfinal", "ce-isfinal"),
    (extension::ORIGIN, "ce_origin", "ce-origin"),
];

/// The maximum number of attribute headers, which bounds the cost of the check for repeated attributes.
const MAX_ATTRIBUTES: usize = 256;

const JSON: Text = Text::from_static("application/json");

/// Reads a message by the rules of its binding. The data of the event share the body.
///
/// # Errors
/// When the message declares a CloudEvent and breaks a rule, by kind. A message that declares none is
/// [`Content::Plain`], however odd its headers are.
pub fn read(
    binding: ProtocolBinding,
    message: &Message,
    limits: &Limits,
) -> Result<Content, EventError> {
    let body = || message.body.clone().unwrap_or_default();
    let content_type = ContentType::of(message);
    match content_type.media() {
        Some(Media::Json) => {
            content_type.only()?;
            return format::read(&body(), limits).map(Content::Event);
        }
        Some(Media::Unreadable(error)) => return Err(error),
        Some(Media::Batch(_)) => {
            return Err(
                EventError::new(EventErrorKind::BatchUnsupported, "").with_detail(
                    "a batch of events, but one event is expected: send one message for each event, or send the array without this content type",
                ),
            );
        }
        None => {}
    }
    let attributes = || message.headers.iter().filter_map(|h| binding.attribute(h));
    if attributes().any(|(name, value)| name.is("specversion") && value.is_some()) {
        let attributes = Attributes::read(binding, attributes())?;
        return attributes
            .into_event(binding, &content_type, message.body.as_ref())
            .map(Content::Event);
    }
    if binding == ProtocolBinding::Nats
        && message.headers.is_empty()
        && let Some(event) = read_bare(&body(), limits)?
    {
        return Ok(Content::Event(event));
    }
    Ok(Content::Plain {
        content_type: content_type.first.and_then(|value| Text::from_utf8(&value)),
        body: body(),
    })
}

/// What can be read of an event that [`read`] refuses: its attributes with these names, as far as each is legal and
/// occurs once, and its data.
#[must_use]
pub fn read_refused<const N: usize>(
    binding: ProtocolBinding,
    message: &Message,
    names: [&str; N],
    limits: &Limits,
) -> ([Option<Text>; N], Option<Bytes>) {
    let body = message.body.clone();
    let is_json = match ContentType::of(message).media() {
        Some(media) => matches!(media, Media::Json),
        None => binding == ProtocolBinding::Nats && message.headers.is_empty(),
    };
    if is_json {
        return format::read_refused(&body.unwrap_or_default(), names, limits);
    }
    let attribute = |name: &str| {
        let headers = message.headers.iter().filter_map(|h| binding.attribute(h));
        let mut values = headers.filter_map(|(known, value)| value.filter(|_| known.is(name)));
        let value = values.next().filter(|_| values.next().is_none())?;
        let text = binding.decode(name, value).ok()?;
        EventId::new(text).ok().map(Text::from)
    };
    (names.map(attribute), body)
}

/// Writes an event by the rules of the binding; the caller sets the key. The data are shared in binary mode.
///
/// # Errors
/// `InvalidAttributeValue` for a `datacontenttype` that cannot be an HTTP header.
pub fn write(
    binding: ProtocolBinding,
    event: &Event,
    mode: ContentMode,
) -> Result<Message, EventError> {
    match mode {
        ContentMode::Binary => write_binary(binding, event),
        ContentMode::Structured => Ok(write_structured(binding, event)),
    }
}

/// The headers of a message that are not part of its CloudEvents binding, in their order.
pub fn foreign_headers(
    binding: ProtocolBinding,
    message: &Message,
) -> impl Iterator<Item = &Header> {
    message
        .headers
        .iter()
        .filter(move |header| binding.attribute(header).is_none() && !is_content_type(&header.name))
}

/// The key that orders an event: the text of the named attribute, if the event has it. The event is unchanged.
#[must_use]
pub fn key(event: &Event, attribute: &str) -> Option<Bytes> {
    event.attribute(attribute).map(|text| text.to_bytes())
}

fn write_binary(binding: ProtocolBinding, event: &Event) -> Result<Message, EventError> {
    let mut headers = HeaderBlock::with_capacity(CORE.len() + 1 + event.extensions().count());
    for (attribute, kafka, other) in CORE {
        if let Some(value) = event.attribute(attribute) {
            let name = match binding {
                ProtocolBinding::Kafka | ProtocolBinding::Memory => kafka,
                ProtocolBinding::Nats | ProtocolBinding::Http => other,
            };
            headers.encoded(binding, Text::from_static(name), &value);
        }
    }
    if let Some(content_type) = written_content_type(event) {
        match binding {
            ProtocolBinding::Nats => {
                let name = Text::from_static("ce-datacontenttype");
                headers.encoded(binding, name, &content_type);
            }
            ProtocolBinding::Http if !content_type.is_ascii() => {
                let kind = EventErrorKind::InvalidAttributeValue;
                return Err(EventError::new(kind, "datacontenttype")
                    .with_detail("not ASCII, so it cannot be an HTTP Content-Type"));
            }
            ProtocolBinding::Kafka | ProtocolBinding::Memory | ProtocolBinding::Http => {
                headers.raw(Text::from_static("content-type"), &content_type);
            }
        }
    }
    for (name, value) in event.extensions() {
        headers.encoded(binding, binding.header_of(name), &value.to_text());
    }
    Ok(Message {
        key: None,
        headers: headers.headers.into(),
        body: event.data().map(|data| data.bytes().clone()),
    })
}

/// The media type to write. Inline JSON without a media type gets it written out.
fn written_content_type(event: &Event) -> Option<Text> {
    match (event.datacontenttype(), event.data()) {
        (Some(content_type), _) => Some(content_type.clone()),
        (None, Some(data)) => data.is_json().then_some(JSON),
        (None, None) => None,
    }
}

fn write_structured(binding: ProtocolBinding, event: &Event) -> Message {
    let mut body = Vec::with_capacity(512 + event.data().map_or(0, |data| data.bytes().len()));
    format::write(event, &mut body);
    let name = match binding {
        ProtocolBinding::Kafka | ProtocolBinding::Memory | ProtocolBinding::Http => "content-type",
        // The exact spelling matters, because NATS compares names by case unless the reader is lenient.
        ProtocolBinding::Nats => "Content-Type",
    };
    let mut headers = Headers::with_capacity(1);
    headers.push(
        Text::from_static(name),
        Bytes::from_static(b"application/cloudevents+json"),
    );
    Message {
        key: None,
        headers,
        body: Some(body.into()),
    }
}

/// An event that a NATS sender published in the JSON format without any header. `None` when the payload has no
/// `specversion` or is not readable JSON: then payload detection decides.
fn read_bare(body: &Bytes, limits: &Limits) -> Result<Option<Event>, EventError> {
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Ok(None);
    }
    // Most payloads are no events, and need not be parsed to know it. Letters of a name may be written as `\u00..`.
    let has = |text: &[u8]| memchr::memmem::find(body, text).is_some();
    if !has(b"specversion") && !has(b"\\u00") {
        return Ok(None);
    }
    match format::read(body, limits) {
        Ok(event) => Ok(Some(event)),
        Err(error) => match error.kind() {
            EventErrorKind::MalformedEvent
            | EventErrorKind::TooDeep
            | EventErrorKind::DuplicateAttribute => Ok(None),
            EventErrorKind::MissingAttribute if error.attribute() == "specversion" => Ok(None),
            _ => Err(error),
        },
    }
}

/// Headers whose values share one block of memory.
struct HeaderBlock {
    headers: Vec<Header>,
    block: BytesMut,
}

/// Whether a header has the name of an attribute: compared without case where the binding says so.
#[derive(Clone, Copy)]
struct Name<'a> {
    name: &'a str,
    any_case: bool,
}

/// The attributes of an event in binary mode, decoded, none twice.
struct Attributes(Vec<(Text, Text)>);

// === impl ProtocolBinding ===

impl ProtocolBinding {
    fn prefix(self) -> &'static str {
        match self {
            Self::Kafka | Self::Memory => "ce_",
            Self::Nats | Self::Http => "ce-",
        }
    }

    /// The header of an extension.
    fn header_of(self, extension: &str) -> Text {
        let known = FREQUENT.iter().find(|(name, ..)| *name == extension);
        match (known, self) {
            (Some((_, name, _)), Self::Kafka | Self::Memory) => Text::from_static(name),
            (Some((.., name)), Self::Nats | Self::Http) => Text::from_static(name),
            (None, _) => Text::concat(&[self.prefix(), extension]),
        }
    }

    /// The attribute that a header of this binding represents, and its raw value.
    fn attribute(self, header: &Header) -> Option<(Name<'_>, Option<&Bytes>)> {
        let any_case = match self {
            Self::Kafka | Self::Memory => false,
            Self::Nats | Self::Http => true,
        };
        let (prefix, name) = header.name.split_at_checked(self.prefix().len())?;
        let known = if any_case {
            prefix.eq_ignore_ascii_case(self.prefix())
        } else {
            prefix == self.prefix()
        };
        known.then_some((Name { name, any_case }, header.value.as_ref()))
    }

    fn decode(self, name: &str, value: &Bytes) -> Result<Text, EventError> {
        match self {
            Self::Kafka | Self::Memory => utf8(name, value),
            Self::Nats | Self::Http => percent::decode(name, value),
        }
    }
}

// === impl HeaderBlock ===

impl HeaderBlock {
    /// Enough bytes for the values of most events. Larger events use a second block.
    const BLOCK: usize = 512;

    fn with_capacity(headers: usize) -> Self {
        Self {
            headers: Vec::with_capacity(headers),
            block: BytesMut::with_capacity(Self::BLOCK),
        }
    }

    /// Adds a header, encoded as the binding requires.
    fn encoded(&mut self, binding: ProtocolBinding, name: Text, value: &str) {
        match binding {
            ProtocolBinding::Kafka | ProtocolBinding::Memory => self.raw(name, value),
            ProtocolBinding::Nats | ProtocolBinding::Http => {
                percent::encode(value, &mut self.block);
                self.push(name);
            }
        }
    }

    fn raw(&mut self, name: Text, value: &str) {
        self.block.extend_from_slice(value.as_bytes());
        self.push(name);
    }

    /// Adds a header with the bytes that were just written as its value.
    fn push(&mut self, name: Text) {
        let value = Some(self.block.split().freeze());
        self.headers.push(Header { name, value });
    }
}

// === impl Name ===

impl Name<'_> {
    fn is(self, attribute: &str) -> bool {
        if self.any_case {
            self.name.eq_ignore_ascii_case(attribute)
        } else {
            self.name == attribute
        }
    }

    fn to_text(self) -> Text {
        if self.any_case && self.name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            Text::from(self.name.to_ascii_lowercase())
        } else {
            Text::from(self.name)
        }
    }
}

// === impl Attributes ===

impl Attributes {
    /// Decodes the attribute headers. An attribute with a null value counts as absent.
    fn read<'a>(
        binding: ProtocolBinding,
        headers: impl Iterator<Item = (Name<'a>, Option<&'a Bytes>)>,
    ) -> Result<Self, EventError> {
        let mut attributes: Vec<(Text, Text)> = Vec::with_capacity(16);
        for (name, value) in headers {
            let Some(value) = value else { continue };
            let name = name.to_text();
            if binding == ProtocolBinding::Http && name == "datacontenttype" {
                return Err(EventError::new(EventErrorKind::ForbiddenHeader, &name)
                    .with_detail("over HTTP the type of the data is the Content-Type"));
            }
            if attributes.iter().any(|(known, _)| *known == name) {
                return Err(duplicate(&name));
            }
            if attributes.len() == MAX_ATTRIBUTES {
                return Err(EventError::new(EventErrorKind::MalformedEvent, &name)
                    .with_detail("more than 256 attributes"));
            }
            let value = binding.decode(&name, value)?;
            attributes.push((name, value));
        }
        Ok(Self(attributes))
    }

    fn required(&self, name: &str) -> Result<Text, EventError> {
        self.0
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.clone())
            .ok_or_else(|| {
                EventError::new(EventErrorKind::MissingAttribute, name)
                    .with_detail("a required attribute is missing")
            })
    }

    fn into_event(
        self,
        binding: ProtocolBinding,
        content_type: &ContentType,
        body: Option<&Bytes>,
    ) -> Result<Event, EventError> {
        if self.required("specversion")? != SPEC_VERSION {
            let kind = EventErrorKind::UnsupportedSpecversion;
            return Err(EventError::new(kind, "specversion")
                .with_detail("only specversion 1.0 is supported"));
        }
        let mut event = Event::new(
            self.required("id")?,
            self.required("source")?,
            self.required("type")?,
        )?;
        for (name, value) in self.0 {
            match name.as_str() {
                "specversion" | "id" | "source" | "type" => {}
                name => event.set(name, value)?,
            }
        }
        if let Some(value) = content_type.only()? {
            match (event.datacontenttype(), binding) {
                (None, _) => event.set("datacontenttype", utf8("content-type", value)?)?,
                // Some libraries write both, such as the SDK for JavaScript.
                (Some(same), _) if same.as_bytes() == value => {}
                // Headers by which NATS or a library describes the payload. The event takes precedence.
                (Some(_), ProtocolBinding::Nats) => {}
                (
                    Some(_),
                    ProtocolBinding::Kafka | ProtocolBinding::Memory | ProtocolBinding::Http,
                ) => {
                    return Err(duplicate("datacontenttype"));
                }
            }
        }
        let body = match binding {
            ProtocolBinding::Kafka | ProtocolBinding::Memory => body,
            // These bindings cannot distinguish absent data from empty data.
            ProtocolBinding::Nats | ProtocolBinding::Http => body.filter(|body| !body.is_empty()),
        };
        event.set_data(body.cloned().map(Data::from));
        Ok(event)
    }
}

#[cfg(test)]
mod tests;
