//! From envelopes to CloudEvents. The body is never touched: an event's data are the unit's own bytes.
//!
//! Source: `eventmesh-a2a` section 2, `detection` section 3.

use std::cell::Cell;
use std::fmt;

use bytes::Bytes;

use crate::decode::{Hint, Unit, Units, decode_with};
use crate::detect::Because;
use crate::event::{Data, Event, Extensions, Parts, Value};
use crate::extension;
use crate::limits::Limits;
use crate::protocol::dialect::is_streaming;
use crate::protocol::jsonrpc::{Call, JsonRpc, RpcBody};
use crate::protocol::{EXTENSION_CAPACITY, Envelope, Kind, MEDIA_TYPE_JSON, Message, Type};
use crate::text::Text;

/// How the mapping words what the sources leave open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapOptions {
    /// What every `type` begins with (default `org.apache.eventmesh.a2a.`).
    pub type_prefix: Text,
    /// How a JSON-RPC notification is mapped (decision D1).
    pub notifications: Notifications,
    /// What `mcptype` says of a part that more parts follow.
    pub streams: Streams,
}

/// What `mcptype` says of a part of an answer that more parts follow. Source: `detection` section 3.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Streams {
    /// `stream`.
    #[default]
    AsStreams,
    /// `response`, for consumers that know two values only; `isfinal` then tells the parts apart.
    AsResponses,
}

/// How a JSON-RPC notification is mapped. Source: `eventmesh-a2a` D1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Notifications {
    /// `mcptype` notification, a type without suffix.
    #[default]
    AsNotifications,
    /// `mcptype` request, a type with `.req`: what EventMesh's code does.
    AsRequests,
}

/// The prefix of EventMesh's event types.
pub const DEFAULT_TYPE_PREFIX: &str = "org.apache.eventmesh.a2a.";

impl Default for MapOptions {
    fn default() -> Self {
        Self {
            type_prefix: Text::from_static(DEFAULT_TYPE_PREFIX),
            notifications: Notifications::default(),
            streams: Streams::default(),
        }
    }
}

/// What an event gets that its payload does not hold. The mapping itself makes no ids and reads no clock.
pub struct MapContext<'a> {
    /// The `source` of the events: the place the payloads came from, unique per caller (decision D4).
    pub source: Text,
    /// The `time` of the events, RFC 3339, where they should have one.
    pub time: Option<Text>,
    /// Makes a new event id, unique within `source`.
    pub new_id: &'a dyn Fn() -> Text,
}

impl std::fmt::Debug for MapContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MapContext")
            .field("source", &self.source)
            .field("time", &self.time)
            .finish_non_exhaustive()
    }
}

// === impl MapContext ===

impl MapContext<'_> {
    /// A source of ids `PREFIX-0`, `PREFIX-1`, …: for tests and examples, not for a bus.
    pub fn counting(prefix: &str) -> impl Fn() -> Text {
        let next = Cell::new(0u64);
        move || {
            let number = next.replace(next.get() + 1);
            Text::from(format!("{prefix}-{number}"))
        }
    }
}

/// A unit and the event it became.
#[derive(Clone, PartialEq, Eq)]
pub struct Mapped {
    /// Which unit of the payload, from 0.
    pub index: usize,
    /// The exact bytes of the unit, shared with the payload.
    pub bytes: Bytes,
    /// Why it is of its family.
    pub because: Because,
    /// What it is in its exchange.
    pub kind: Kind,
    /// What it says, when it is JSON-RPC.
    pub json_rpc: Option<JsonRpc>,
    /// The event; its data are `bytes`, or the data of the event the unit itself is.
    pub event: Event,
}

/// Without the payload: its bytes can be large and are not ours to print.
impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapped")
            .field("index", &self.index)
            .field("because", &self.because)
            .field("kind", &self.kind)
            .field("event", &self.event)
            .finish_non_exhaustive()
    }
}

/// Decodes a payload and maps every unit of it. See [`decode`](crate::decode()) for what a unit is.
///
/// ```
/// use a2abus_plugin::{Hint, Limits, MapContext, MapOptions, map};
///
/// let payload = r#"{"jsonrpc":"2.0","id":"req-1","method":"tools/call","params":{"_agentId":"weather"}}"#;
/// let new_id = MapContext::counting("n");
/// let context = MapContext { source: "/docs".into(), time: None, new_id: &new_id };
/// let units = map(&payload.into(), &Hint::default(), &Limits::default(), &MapOptions::default(), &context);
/// let event = &units[0].as_ref().unwrap().event;
/// assert_eq!(event.ty(), "org.apache.eventmesh.a2a.tools.call.req");
/// assert_eq!(event.extension_text("targetagent").unwrap(), "weather");
/// assert_eq!(event.body(), payload);
/// ```
#[must_use]
pub fn map(
    payload: &Bytes,
    hint: &Hint,
    limits: &Limits,
    options: &MapOptions,
    context: &MapContext<'_>,
) -> Units<Mapped> {
    decode_with(payload, hint, limits, &mut |unit| {
        map_unit(unit, options, context)
    })
}

/// Maps one decoded unit.
#[must_use]
pub fn map_unit(unit: Unit, options: &MapOptions, context: &MapContext<'_>) -> Mapped {
    let Unit {
        index,
        bytes,
        because,
        envelope,
    } = unit;
    let (kind, json_rpc, event) = match envelope {
        Envelope::CloudEvent(event) => (kind_of_event(&event), None, *event),
        Envelope::JsonRpc(message) => {
            let (kind, event) = json_rpc_event(&message, &bytes, options, context);
            (kind, Some(message), event)
        }
        Envelope::Message(message) => {
            let kind = message.kind;
            (kind, None, message_event(message, &bytes, options, context))
        }
    };
    Mapped {
        index,
        bytes,
        because,
        kind,
        json_rpc,
        event,
    }
}

/// What an event that came as a CloudEvent is in its exchange: what its `mcptype` says, else a notification.
#[must_use]
pub fn kind_of_event(event: &Event) -> Kind {
    let kind = event
        .extension_text(extension::MCP_TYPE)
        .and_then(|word| Kind::from_word(word));
    kind.unwrap_or(Kind::Notification)
}

/// An event that wraps a payload no family recognises, untouched. Source: `detection` section 2, `on_unknown: wrap`.
#[must_use]
pub fn wrap_unknown(payload: &Bytes, options: &MapOptions, context: &MapContext<'_>) -> Event {
    Event::from_parts(Parts {
        id: (context.new_id)(),
        source: context.source.clone(),
        ty: event_type(&options.type_prefix, "", "unknown", ""),
        datacontenttype: None,
        subject: None,
        time: context.time.clone(),
        extensions: Extensions::new(),
        data: Data::Bytes(payload.clone()),
    })
}

fn json_rpc_event(
    message: &JsonRpc,
    body: &Bytes,
    options: &MapOptions,
    context: &MapContext<'_>,
) -> (Kind, Event) {
    let mut extensions = Extensions::with_capacity(EXTENSION_CAPACITY);
    let mut put = |name, value| extensions.push((Text::from_static(name), value));
    let id = message.id.as_ref().and_then(|id| id.text());
    let id = id.filter(|text| !text.is_empty());
    put(extension::PROTOCOL, Text::from_static("A2A").into());
    put(extension::PROTOCOL_VERSION, Text::from_static("2.0").into());
    let prefix = &options.type_prefix;
    let (kind, id, ty, subject) = match &message.body {
        RpcBody::Call(call) => {
            let (kind, suffix) = kind_of_call(message, call, options);
            put(extension::A2A_METHOD, call.method.clone().into());
            // A topic names the place itself, so the agent is dropped (decision D5).
            if let (None, Some(target)) = (&call.topic, &call.target) {
                put(extension::TARGET_AGENT, target.clone().into());
            }
            if let Some(seq) = &call.seq {
                put(extension::SEQ, seq.clone().into());
            }
            let ty = event_type(prefix, "", &call.method, suffix);
            (kind, id, ty, call.topic.clone())
        }
        RpcBody::Result(_) | RpcBody::Error(_) => {
            if let Some(id) = id {
                put(extension::COLLABORATION_ID, id.into());
            }
            if let RpcBody::Error(Some(code)) = message.body {
                put(extension::RPC_ERROR_CODE, code.into());
            }
            let ty = event_type(prefix, "", "common.response", "");
            (Kind::Response, None, ty, None)
        }
    };
    put(extension::MCP_TYPE, mcp_type(kind, options));
    let event = Event::from_parts(Parts {
        id: id.unwrap_or_else(context.new_id),
        source: context.source.clone(),
        ty,
        datacontenttype: Some(MEDIA_TYPE_JSON),
        subject,
        time: context.time.clone(),
        extensions,
        data: Data::Json(body.clone()),
    });
    (kind, event)
}

/// What a call is in its exchange, and the end of its type.
fn kind_of_call(message: &JsonRpc, call: &Call, options: &MapOptions) -> (Kind, &'static str) {
    if message.id.is_none() && options.notifications == Notifications::AsNotifications {
        (Kind::Notification, "")
    } else if is_streaming(&call.method) {
        (Kind::Request, ".stream")
    } else {
        (Kind::Request, ".req")
    }
}

fn message_event(
    message: Message,
    body: &Bytes,
    options: &MapOptions,
    context: &MapContext<'_>,
) -> Event {
    let Message {
        kind,
        ty: Type {
            category,
            name,
            suffix,
        },
        id,
        subject,
        time,
        media_type,
        mut extensions,
    } = message;
    extensions.push((
        Text::from_static(extension::MCP_TYPE),
        mcp_type(kind, options),
    ));
    let data = if media_type == MEDIA_TYPE_JSON {
        Data::Json(body.clone())
    } else {
        Data::Bytes(body.clone())
    };
    Event::from_parts(Parts {
        id: id.unwrap_or_else(context.new_id),
        source: context.source.clone(),
        ty: event_type(&options.type_prefix, category, &name, suffix),
        datacontenttype: Some(media_type),
        subject,
        time: time.or_else(|| context.time.clone()),
        extensions,
        data,
    })
}

fn mcp_type(kind: Kind, options: &MapOptions) -> Value {
    let word = match (kind, options.streams) {
        (Kind::Stream, Streams::AsResponses) => Kind::Response,
        (kind, _) => kind,
    };
    Text::from_static(word.as_str()).into()
}

/// `<prefix><category><name, its slashes as dots><suffix>`, put together on the stack where it is short enough.
fn event_type(prefix: &str, category: &str, name: &str, suffix: &str) -> Text {
    let mut buffer = [0u8; 128];
    let mut at = 0;
    let mut fits = true;
    for part in [prefix, category, name, suffix] {
        match buffer.get_mut(at..at + part.len()) {
            Some(room) => room.copy_from_slice(part.as_bytes()),
            None => fits = false,
        }
        at += part.len();
    }
    let named = prefix.len() + category.len();
    match buffer.get_mut(..at).filter(|_| fits) {
        Some(ty) => {
            for byte in ty
                .iter_mut()
                .skip(named)
                .take(name.len())
                .filter(|b| **b == b'/')
            {
                *byte = b'.';
            }
            Text::from_utf8(ty).unwrap_or_default()
        }
        None => Text::from(format!(
            "{prefix}{category}{}{suffix}",
            name.replace('/', ".")
        )),
    }
}
