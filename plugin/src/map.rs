//! From units to CloudEvents. The body is never touched: an event's data are the unit's own bytes.
//!
//! Source: docs/protocols/eventmesh-a2a.md §2, docs/protocols/detection.md §3.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;

use bytes::Bytes;

use crate::attribute::{EventId, Source, Time, TypePrefix};
use crate::decode::{Unit, Units, decode_with};
use crate::detect::{Detection, Place};
use crate::event::{Attributes, Data, Event};
use crate::extension;
use crate::hint::Hint;
use crate::limits::Limits;
use crate::protocol::jsonrpc::{Id, JsonRpc};
use crate::protocol::{
    DEFAULT_TYPE_PREFIX, Draft, Family, Form, Kind, Message, Type, kind_of_event,
};
use crate::text::Text;

/// How the mapping words what the sources leave open: take the default, and set what is to differ.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MapOptions {
    /// What every `type` begins with (default `org.apache.eventmesh.a2a.`).
    pub type_prefix: TypePrefix,
    /// How a JSON-RPC notification is mapped (docs/protocols/eventmesh-a2a.md §D1).
    pub notifications: Notifications,
    /// What `mcptype` says of a part that more parts follow.
    pub streams: Streams,
}

/// What `mcptype` says of a part of an answer that more parts follow. Source: docs/protocols/detection.md §3.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Streams {
    /// `stream`.
    #[default]
    AsStreams,
    /// `response`, for consumers that know two values only; `isfinal` then tells the parts apart.
    AsResponses,
}

/// How a JSON-RPC notification is mapped. Source: docs/protocols/eventmesh-a2a.md §D1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notifications {
    /// `mcptype` notification, a type without suffix.
    #[default]
    AsNotifications,
    /// `mcptype` request, a type with `.req`: what EventMesh's code does.
    AsRequests,
}

impl Default for MapOptions {
    fn default() -> Self {
        Self {
            type_prefix: TypePrefix::of_static(DEFAULT_TYPE_PREFIX),
            notifications: Notifications::default(),
            streams: Streams::default(),
        }
    }
}

/// What an event gets that its payload does not hold. The mapping itself makes no ids and reads no clock; all values are
/// checked where they are made, so that every event is valid.
pub struct MapContext<'a> {
    /// The `source` of the events: the place the payloads came from, unique per caller
    /// (docs/protocols/eventmesh-a2a.md §D4).
    pub source: Source,
    /// The `time` of the events, where they should have one and the payload has none.
    pub time: Option<Time>,
    /// Where the ids of the events come from.
    pub ids: Ids<'a>,
}

/// Where the ids of mapped events come from. An event that came as a CloudEvent keeps its own.
#[derive(Clone)]
pub enum Ids<'a> {
    /// The payload, as in EventMesh; a new one where it has none. The numbers and the strings among the JSON-RPC ids of
    /// one batch are told apart where they read alike: beside `1`, `"1"` keeps its quotes.
    ///
    /// Agents count from 1: such an id is unique for one sender at best, until it starts again. Consumers that drop what
    /// has the same `source` and `id` need one of the others.
    Payload(&'a dyn Fn() -> EventId),
    /// A new one for every event.
    Fresh(&'a dyn Fn() -> EventId),
    /// This one with the index of the unit, `ID#0`: where the payload was read, for example, so that a payload that is
    /// delivered again has the same ids, and any other payload has others.
    Given(EventId),
}

impl fmt::Debug for Ids<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Payload(_) => f.write_str("Payload"),
            Self::Fresh(_) => f.write_str("Fresh"),
            Self::Given(id) => f.debug_tuple("Given").field(id).finish(),
        }
    }
}

impl fmt::Debug for MapContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapContext")
            .field("source", &self.source)
            .field("time", &self.time)
            .field("ids", &self.ids)
            .finish()
    }
}

// === impl MapContext ===

impl MapContext<'_> {
    /// A source of ids `PREFIX-0`, `PREFIX-1`, …: for tests and examples, not for a bus. A prefix that cannot be part
    /// of an id is left out.
    pub fn counting(prefix: &str) -> impl Fn() -> EventId {
        let next = Cell::new(0u64);
        move || {
            let number = next.replace(next.get() + 1);
            let id = EventId::new(format!("{prefix}-{number}"));
            id.unwrap_or_else(|_| EventId::of_uuid(number.into()))
        }
    }
}

// === impl Ids ===

impl Ids<'_> {
    /// The id of the unit at `index`, whose payload has this one or an empty one.
    fn id(&self, own: Text, index: usize) -> Text {
        match self {
            Self::Payload(_) if !own.is_empty() => own,
            Self::Payload(new) | Self::Fresh(new) => new().into(),
            Self::Given(id) => Text::from(format!("{id}#{index}")),
        }
    }
}

/// A unit and the event it became.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mapped {
    /// Which unit of the payload, from 0.
    pub index: usize,
    /// The exact bytes of the unit, shared with the payload.
    pub bytes: Bytes,
    /// Why it is of its family.
    pub because: Detection,
    /// What it is in its exchange.
    pub kind: Kind,
    /// What it says, when it is JSON-RPC.
    pub json_rpc: Option<JsonRpc>,
    /// The event; its data are `bytes`, or the data of the event the unit itself is.
    pub event: Event,
}

// === impl Mapped ===

impl Mapped {
    /// A unit that its transport says is this CloudEvent: rule 1 of detection.
    #[must_use]
    pub fn of_event(index: usize, bytes: Bytes, event: Event) -> Self {
        Self {
            index,
            bytes,
            because: Detection {
                family: Family::CloudEvent,
                rule: 1,
                member: Place::Specversion.name(),
            },
            kind: kind_of_event(&event),
            json_rpc: None,
            event,
        }
    }
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
/// use a2abus_plugin::{Hint, Ids, Limits, MapContext, MapOptions, Source, map};
///
/// let payload = r#"{"jsonrpc":"2.0","id":"req-1","method":"tools/call","params":{"_agentId":"weather"}}"#;
/// let new_id = MapContext::counting("n");
/// let source = Source::new("/docs").unwrap();
/// let context = MapContext { source, time: None, ids: Ids::Payload(&new_id) };
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
    let mut units = decode_with(payload, hint, limits, &mut |unit| {
        map_unit(unit, options, context)
    });
    if units.len() > 1 && matches!(context.ids, Ids::Payload(_)) {
        tell_ids_apart(&mut units);
    }
    units
}

/// Numbers and strings that read alike as ids of calls: the strings take their quotes with them.
/// Source: docs/protocols/eventmesh-a2a.md §D2.
fn tell_ids_apart(units: &mut Units<Mapped>) {
    let id_of = |mapped: &Mapped| -> Option<Id> {
        let json_rpc = mapped.json_rpc.as_ref()?;
        json_rpc.id.clone().filter(|_| json_rpc.is_call())
    };
    let is_string = |token: &str| token.starts_with('"');
    // Only a string that reads as a number, or is spelt with escapes, may be like a number.
    let may_be_number = |token: &str| {
        let first = token.as_bytes().get(1);
        is_string(token) && first.is_some_and(|b| b.is_ascii_digit() || b"-\\".contains(b))
    };
    let ids = || units.iter().flatten().filter_map(id_of);
    if !ids().any(|id| may_be_number(id.token())) || ids().all(|id| is_string(id.token())) {
        return;
    }
    let numbers: HashSet<Text> = ids()
        .map(|id| id.token().clone())
        .filter(|token| !is_string(token))
        .collect();
    for mapped in units.iter_mut().flatten() {
        let id = id_of(mapped).filter(|id| may_be_number(id.token()));
        let Some(id) = id else { continue };
        if id.text().is_some_and(|text| numbers.contains(&text)) {
            let set = mapped.event.set("id", id.token().clone());
            debug_assert!(set.is_ok(), "the token of an id is text");
        }
    }
}

/// Maps one decoded unit.
#[must_use]
pub fn map_unit(unit: Unit, options: &MapOptions, context: &MapContext<'_>) -> Mapped {
    let Unit {
        index,
        bytes,
        because,
        json_rpc,
        draft,
    } = unit;
    let (kind, event) = match draft {
        Draft::Event(event) => (kind_of_event(&event), event),
        Draft::Message(mut message) => {
            if let Some(json_rpc) = &json_rpc {
                as_eventmesh_does(json_rpc, &mut message, options);
            }
            let kind = message.kind;
            (kind, event_of(message, &bytes, index, options, context))
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

/// Makes a request of a notification, where that is asked for (docs/protocols/eventmesh-a2a.md §D1).
fn as_eventmesh_does(json_rpc: &JsonRpc, message: &mut Message, options: &MapOptions) {
    if options.notifications == Notifications::AsRequests
        && message.kind == Kind::Notification
        && json_rpc.is_call()
    {
        message.kind = Kind::Request;
        if let Type::Named { suffix, .. } = &mut message.ty {
            *suffix = ".req";
        }
    }
}

/// An event that wraps a unit no family recognises, untouched; `index` is its place in the payload.
/// Source: docs/protocols/detection.md §2.
#[must_use]
pub fn wrap_unknown(
    unit: &Bytes,
    index: usize,
    options: &MapOptions,
    context: &MapContext<'_>,
) -> Event {
    Event::of(Box::new(Attributes {
        id: context.ids.id(Text::default(), index),
        source: context.source.text().clone(),
        ty: Text::from(format!("{}unknown", options.type_prefix)),
        time: context.time.clone().map(Text::from),
        data: Some(Data::from(unit.clone())),
        ..Attributes::default()
    }))
}

fn event_of(
    mut message: Message,
    body: &Bytes,
    index: usize,
    options: &MapOptions,
    context: &MapContext<'_>,
) -> Event {
    let word = mcp_type(message.kind, options);
    message.put(extension::MCP_TYPE, Text::from_static(word));
    message.put(extension::PROTOCOL, Text::from_static(message.protocol));
    let version = message.protocol_version.take();
    message.put_if(extension::PROTOCOL_VERSION, version);
    let (media_type, data) = match message.form {
        Form::Json => ("application/json", Data::known_json(body.clone())),
        Form::Lines => ("application/x-ndjson", Data::from(body.clone())),
    };
    let mut event = message.attributes;
    event.id = context.ids.id(std::mem::take(&mut event.id), index);
    event.source = context.source.text().clone();
    event.ty = event_type(&options.type_prefix, message.kind, &message.ty);
    event.datacontenttype = Some(Text::from_static(media_type));
    if event.time.is_none() {
        event.time = context.time.clone().map(Text::from);
    }
    event.data = Some(data);
    Event::of(event)
}

fn mcp_type(kind: Kind, options: &MapOptions) -> &'static str {
    match (kind, options.streams) {
        (Kind::Stream, Streams::AsResponses) => Kind::Response.as_str(),
        (kind, _) => kind.as_str(),
    }
}

/// The event type under the prefix; that of a known method is not put together again.
fn event_type(prefix: &str, kind: Kind, ty: &Type) -> Text {
    match ty {
        Type::Call(ty) => {
            let whole = match kind {
                Kind::Notification => ty.notification,
                Kind::Request | Kind::Response | Kind::Stream => ty.request,
            };
            match whole.strip_prefix(DEFAULT_TYPE_PREFIX) {
                Some(rest) if prefix != DEFAULT_TYPE_PREFIX => joined([prefix, "", rest, ""]),
                _ => Text::from_static(whole),
            }
        }
        Type::Named {
            category,
            name,
            suffix,
        } => joined([prefix, category, name, suffix]),
    }
}

/// `<prefix><category><name, its slashes as dots><suffix>`, put together on the stack where it is short enough.
fn joined(parts: [&str; 4]) -> Text {
    let [prefix, category, name, suffix] = parts;
    let mut buffer = [0u8; 128];
    let mut at = 0;
    for part in parts {
        let Some(room) = buffer.get_mut(at..at + part.len()) else {
            let name = name.replace('/', ".");
            return Text::from(format!("{prefix}{category}{name}{suffix}"));
        };
        room.copy_from_slice(part.as_bytes());
        at += part.len();
    }
    let named = prefix.len() + category.len();
    for byte in buffer.iter_mut().skip(named).take(name.len()) {
        if *byte == b'/' {
            *byte = b'.';
        }
    }
    let ty = buffer.get(..at).and_then(Text::from_utf8);
    ty.unwrap_or_default()
}
