//! From envelopes to CloudEvents. The body is never touched: an event's data are the unit's own bytes.
//!
//! Source: `eventmesh-a2a` section 2, `detection` section 3.

use std::cell::Cell;
use std::fmt::Write as _;

use bytes::Bytes;

use crate::decode::{Hint, Refused, Unit, decode};
use crate::event::{Data, Event};
use crate::extension;
use crate::limits::Limits;
use crate::protocol::dialect::is_streaming;
use crate::protocol::jsonrpc::{Call, JsonRpc, RpcBody};
use crate::protocol::legacy::Legacy;
use crate::protocol::{Envelope, Kind};
use crate::text::Text;

/// How the mapping words what the sources leave open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapOptions {
    /// What every `type` begins with (default `org.apache.eventmesh.a2a.`).
    pub type_prefix: Text,
    /// How a JSON-RPC notification is mapped (decision D1).
    pub notifications: Notifications,
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapped {
    /// The unit.
    pub unit: Unit,
    /// What it is in its exchange.
    pub kind: Kind,
    /// The event; its data are `unit.bytes`, or the data of the event the unit itself is.
    pub event: Event,
}

/// Decodes a payload and maps every unit of it. See [`decode`] for what a unit is.
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
) -> Vec<Result<Mapped, Refused>> {
    let units = decode(payload, hint, limits);
    let mut mapped = Vec::with_capacity(units.len());
    for unit in units {
        mapped.push(unit.map(|unit| map_unit(unit, options, context)));
    }
    mapped
}

/// Maps one decoded unit.
#[must_use]
pub fn map_unit(unit: Unit, options: &MapOptions, context: &MapContext<'_>) -> Mapped {
    let (kind, event) = match &unit.envelope {
        Envelope::CloudEvent(event) => (kind_of_event(event), event.clone()),
        Envelope::JsonRpc(message) => json_rpc(message, &unit.bytes, options, context),
        Envelope::Legacy(message) => legacy(message, &unit.bytes, options, context),
    };
    Mapped { unit, kind, event }
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
    let ty = Text::from(format!("{}unknown", options.type_prefix));
    let mut event = new_event((context.new_id)(), ty, context);
    event.set_data(Some(Data::Bytes(payload.clone())));
    event
}

fn new_event(id: Text, ty: Text, context: &MapContext<'_>) -> Event {
    let mut event = Event::from_checked(id, context.source.clone(), ty);
    if let Some(time) = &context.time {
        event.put_time(time.clone());
    }
    event
}

fn json_rpc(
    message: &JsonRpc,
    body: &Bytes,
    options: &MapOptions,
    context: &MapContext<'_>,
) -> (Kind, Event) {
    let (kind, mut event) = match &message.body {
        RpcBody::Call(call) => call_event(message, call, options, context),
        RpcBody::Result(_) => (Kind::Response, response_event(message, options, context)),
        RpcBody::Error(code) => {
            let mut event = response_event(message, options, context);
            if let Some(code) = code {
                event.put_known(extension::RPC_ERROR_CODE, *code);
            }
            (Kind::Response, event)
        }
    };
    event.put_known(extension::MCP_TYPE, Text::from_static(kind.as_str()));
    event.put_known(extension::PROTOCOL, Text::from_static("A2A"));
    event.put_known(extension::PROTOCOL_VERSION, Text::from_static("2.0"));
    event.put_json(body.clone());
    (kind, event)
}

fn call_event(
    message: &JsonRpc,
    call: &Call,
    options: &MapOptions,
    context: &MapContext<'_>,
) -> (Kind, Event) {
    let kind = match (&message.id, options.notifications) {
        (Some(_), _) | (None, Notifications::AsRequests) => Kind::Request,
        (None, Notifications::AsNotifications) => Kind::Notification,
    };
    let suffix = match kind {
        Kind::Request if is_streaming(&call.method) => ".stream",
        Kind::Request => ".req",
        Kind::Notification | Kind::Response | Kind::Stream => "",
    };
    let id = message
        .id
        .as_ref()
        .and_then(|id| id.text())
        .filter(|text| !text.is_empty());
    let ty = method_type(&options.type_prefix, &call.method, suffix);
    let mut event = new_event(id.unwrap_or_else(context.new_id), ty, context);
    event.put_known(extension::A2A_METHOD, call.method.clone());
    match (&call.topic, &call.target) {
        // A topic names the place itself, so the agent is dropped (decision D5).
        (Some(topic), _) => event.put_subject(topic.clone()),
        (None, Some(target)) => event.put_known(extension::TARGET_AGENT, target.clone()),
        (None, None) => {}
    }
    if let Some(seq) = &call.seq {
        event.put_known(extension::SEQ, seq.clone());
    }
    (kind, event)
}

fn response_event(message: &JsonRpc, options: &MapOptions, context: &MapContext<'_>) -> Event {
    let ty = Text::from(format!("{}common.response", options.type_prefix));
    let mut event = new_event((context.new_id)(), ty, context);
    if let Some(text) = message
        .id
        .as_ref()
        .and_then(|id| id.text())
        .filter(|text| !text.is_empty())
    {
        event.put_known(extension::COLLABORATION_ID, text);
    }
    event
}

/// `<prefix>` + method with `/` as `.` + suffix, built in one allocation.
fn method_type(prefix: &str, method: &str, suffix: &str) -> Text {
    let mut ty = String::with_capacity(prefix.len() + method.len() + suffix.len());
    ty.push_str(prefix);
    let mut words = method.split('/');
    ty.push_str(words.next().unwrap_or_default());
    for word in words {
        ty.push('.');
        ty.push_str(word);
    }
    ty.push_str(suffix);
    Text::from(ty)
}

fn legacy(
    message: &Legacy,
    body: &Bytes,
    options: &MapOptions,
    context: &MapContext<'_>,
) -> (Kind, Event) {
    let kind = message.kind();
    let act = message
        .message_type
        .as_deref()
        .unwrap_or("unknown")
        .to_lowercase();
    let mut ty = String::with_capacity(options.type_prefix.len() + "legacy.".len() + act.len());
    // Writing to a string cannot fail.
    let _ = write!(ty, "{}legacy.{act}", options.type_prefix);
    let mut event = new_event((context.new_id)(), Text::from(ty), context);
    let message_type = message
        .message_type
        .clone()
        .unwrap_or(Text::from_static("UNKNOWN"));
    event.put_known(extension::MESSAGE_TYPE, message_type);
    event.put_known(extension::A2A_METHOD, Text::from(act));
    event.put_known(extension::MCP_TYPE, Text::from_static(kind.as_str()));
    event.put_known(extension::PROTOCOL, Text::from_static("A2A"));
    let named = [
        (extension::SOURCE_AGENT, &message.source_agent),
        (extension::TARGET_AGENT, &message.target_agent),
        (extension::COLLABORATION_ID, &message.correlation_id),
    ];
    for (name, value) in named {
        if let Some(value) = value {
            event.put_known(name, value.clone());
        }
    }
    event.put_json(body.clone());
    (kind, event)
}
