//! Maps units to CloudEvents. The body is never changed: an event's data are the unit's own bytes.
//!
//! Source: docs/protocols/eventmesh-a2a.md §2, docs/protocols/detection.md §3.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;

use bytes::Bytes;

use crate::attribute::{EventId, Source, Time, TypePrefix};
use crate::decode::{Unit, Units, decode_into};
use crate::detect::Detection;
use crate::event::{Attributes, Data, Event};
use crate::hint::Hint;
use crate::limits::Limits;
use crate::protocol::jsonrpc::{Id, JsonRpc};
use crate::protocol::{DEFAULT_TYPE_PREFIX, Draft, Form, Kind, dialect, kind_of_event};
use crate::text::Text;

/// Options of the mapping: take the default, and change what you need.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MapOptions {
    /// The prefix of every `type` (default `org.apache.eventmesh.a2a.`).
    pub type_prefix: TypePrefix,
    /// How a JSON-RPC notification is mapped (docs/protocols/eventmesh-a2a.md §D1).
    pub notifications: Notifications,
    /// The `mcptype` of a part that is followed by others.
    pub streams: Streams,
}

/// The `mcptype` of a part of an answer that is followed by others. Source: docs/protocols/detection.md §3.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Streams {
    /// `stream`.
    #[default]
    AsStreams,
    /// `response`, for consumers that know only two values; `isfinal` then distinguishes the parts.
    AsResponses,
}

/// How a JSON-RPC notification is mapped. Source: docs/protocols/eventmesh-a2a.md §D1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notifications {
    /// `mcptype` notification, a type without suffix.
    #[default]
    AsNotifications,
    /// `mcptype` request, and a type with `.req`, as in EventMesh's code.
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

/// The attributes of an event that its payload does not contain. The mapping itself neither generates ids nor reads a
/// clock. All values are validated types, so that every event is valid.
pub struct MapContext<'a> {
    /// The `source` of the events: where the payloads came from, unique per caller (docs/protocols/eventmesh-a2a.md
    /// §D4).
    pub source: Source,
    /// The `time` of events whose payload has none, if they should have one.
    pub time: Option<Time>,
    /// Where the ids of the events come from.
    pub ids: Ids<'a>,
}

/// Where the ids of mapped events come from. A CloudEvent keeps its own id.
#[derive(Clone)]
pub enum Ids<'a> {
    /// From the payload, as in EventMesh; a new id if it has none. Numbers and strings among the JSON-RPC ids of one
    /// batch stay distinct: next to `1`, `"1"` keeps its quotes.
    ///
    /// Many agents count from 1, so such an id is unique for one sender at best, and only until it restarts. If a
    /// consumer drops messages with equal `source` and `id`, use one of the other options.
    Payload(&'a dyn Fn() -> EventId),
    /// A new id for every event.
    Fresh(&'a dyn Fn() -> EventId),
    /// This id with the index of the unit, `ID#0`. Use the position of the payload, for example: then a redelivered
    /// payload has the same ids, and any other payload has different ones.
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
    /// A source of ids `PREFIX-0`, `PREFIX-1`, …: for tests and examples, not for a bus. A prefix that is invalid in an
    /// id is omitted.
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
    /// The event id of the unit at `index`; `own` is the id in its payload, or empty.
    fn id(&self, own: Text, index: usize) -> Text {
        match self {
            Self::Payload(_) if !own.is_empty() => own,
            Self::Payload(new) | Self::Fresh(new) => new().into(),
            Self::Given(id) => Text::concat(&[id, "#", itoa::Buffer::new().format(index)]),
        }
    }
}

/// A unit and its event.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mapped {
    /// The index of the unit in the payload, from 0.
    pub index: usize,
    /// The exact bytes of the unit, shared with the payload.
    pub bytes: Bytes,
    /// The rule that detected its family.
    pub detection: Detection,
    /// Its role in the exchange.
    pub kind: Kind,
    /// The JSON-RPC message, if it is one.
    pub json_rpc: Option<JsonRpc>,
    /// The event. Its data are `bytes`, unless the unit itself is an event.
    pub event: Event,
}

// === impl Mapped ===

impl Mapped {
    /// A unit whose transport declares it to be a CloudEvent (rule 1 of detection).
    #[must_use]
    pub fn of_event(index: usize, bytes: Bytes, event: Event) -> Self {
        Self {
            index,
            bytes,
            detection: Detection::EVENT,
            kind: kind_of_event(&event),
            json_rpc: None,
            event,
        }
    }
}

/// Omits the payload, which can be large and confidential.
impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapped")
            .field("index", &self.index)
            .field("because", &self.detection)
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
    let mut units = Units::empty();
    decode_into(&mut units, payload, hint, limits, &mut |unit| {
        mapped(unit, options, context)
    });
    if units.len() > 1 && matches!(context.ids, Ids::Payload(_)) {
        distinguish_ids(&mut units);
    }
    units
}

/// Keeps numeric and string ids distinct: a string that equals a number keeps its quotes. Source:
/// docs/protocols/eventmesh-a2a.md §D2.
fn distinguish_ids(units: &mut Units<Mapped>) {
    let id_of = |mapped: &Mapped| -> Option<Id> {
        let json_rpc = mapped.json_rpc.as_ref()?;
        json_rpc.id.clone().filter(|_| json_rpc.is_call())
    };
    let is_string = |token: &str| token.starts_with('"');
    // Only a string that looks like a number or has escapes can equal a number.
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
            debug_assert!(set.is_ok(), "the token of an id is valid text");
        }
    }
}

/// Maps one decoded unit.
#[must_use]
pub fn map_unit(unit: Unit, options: &MapOptions, context: &MapContext<'_>) -> Mapped {
    mapped(unit, options, context)
}

/// Inlined, so that the contents of a unit are moved only once.
#[inline(always)]
fn mapped(unit: Unit, options: &MapOptions, context: &MapContext<'_>) -> Mapped {
    let Draft {
        mut kind,
        form,
        event: Event(mut attributes),
    } = unit.draft;
    if let Some(form) = form {
        let is_call = unit.json_rpc.as_ref().is_some_and(JsonRpc::is_call);
        kind = apply_options(&mut attributes, kind, is_call, options);
        fill(
            &mut attributes,
            form,
            unit.bytes.clone(),
            unit.index,
            context,
        );
    }
    Mapped {
        index: unit.index,
        bytes: unit.bytes,
        detection: unit.detection,
        kind,
        json_rpc: unit.json_rpc,
        event: Event::of(attributes),
    }
}

/// An event that wraps a unit of an unknown family unchanged; `index` is its index in the payload. Source:
/// docs/protocols/detection.md §2.
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

/// Applies the mapping options to an event's attributes. Returns the resulting kind.
fn apply_options(event: &mut Attributes, kind: Kind, is_call: bool, options: &MapOptions) -> Kind {
    let mut result = kind;
    if kind == Kind::Notification && options.notifications == Notifications::AsRequests && is_call {
        result = Kind::Request;
        event.set_kind(Kind::Request);
        make_request(event);
    }
    if kind == Kind::Stream && options.streams == Streams::AsResponses {
        event.set_kind(Kind::Response);
    }
    if *options.type_prefix != *DEFAULT_TYPE_PREFIX {
        let ty = event.ty.strip_prefix(DEFAULT_TYPE_PREFIX);
        event.ty = Text::concat(&[&options.type_prefix, ty.unwrap_or_default()]);
    }
    result
}

/// Changes the event type of a notification to that of a request. Source: docs/protocols/eventmesh-a2a.md §D1.
#[cold]
fn make_request(event: &mut Attributes) {
    let known = event.method().and_then(dialect::find_method);
    event.ty = match known {
        Some(known) => Text::from_static(known.ty.request),
        None => Text::concat(&[&event.ty, ".req"]),
    };
}

/// Completes the draft of a message with its source, id, time and body.
fn fill(event: &mut Attributes, form: Form, body: Bytes, index: usize, context: &MapContext<'_>) {
    let (media_type, data) = match form {
        Form::Json => ("application/json", Data::known_json(body)),
        Form::Lines => ("application/x-ndjson", Data::from(body)),
    };
    event.id = context.ids.id(std::mem::take(&mut event.id), index);
    event.source = context.source.text().clone();
    event.datacontenttype = Some(Text::from_static(media_type));
    if event.time.is_none() {
        event.time = context.time.clone().map(Text::from);
    }
    event.data = Some(data);
}
