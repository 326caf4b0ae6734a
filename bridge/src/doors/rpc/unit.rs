//! Sorts the units of a payload: request, notification, or refused.

use a2abus_plugin::json::BYTE_ORDER_MARK;
use a2abus_plugin::protocol::jsonrpc::RpcBody;
use a2abus_plugin::{
    DecodeErrorKind, Event, Hint, Kind, Limits, Refused, Unit, Units, decode, extension,
};
use a2abus_transports::content_mode::ContentMode;
use bytes::Bytes;

use super::super::door::Door;
use super::common::Common;
use super::reply::Reply;
use crate::calls::failure::{Failure, Reason, Recipient};
use crate::metrics::Metrics;

/// How the units of a payload are framed.
#[derive(Debug)]
pub(in crate::doors) enum Framed {
    /// One value, or a payload that is refused as a whole.
    One(Result<Unit, Refused>),
    /// A batch, with at least one unit.
    Batch(Units),
    /// Several values without an array, which is not JSON.
    Lines,
}

/// One unit, sorted.
#[derive(Debug)]
pub(super) enum Item {
    /// A request for an agent.
    Request(Box<RequestItem>),
    /// A notification, which is only answered if it fails.
    Notification(Box<RequestItem>),
    /// Refused with an error.
    Refused(Box<RefusedItem>),
}

/// A unit that is refused.
#[derive(Debug)]
pub(super) struct RefusedItem {
    pub(super) failure: Failure,
    /// The form of its error.
    pub(super) reply: Reply,
    pub(super) bytes: Bytes,
}

/// A request or a notification to make.
#[derive(Debug)]
pub(super) struct RequestItem {
    pub(super) unit: Unit,
    /// The decoded data, if it is a CloudEvent and its data is one message.
    pub(super) data: Option<Unit>,
    /// The form of its answer or, for a notification, of its error.
    pub(super) reply: Reply,
    /// Whether its method asks for a stream.
    pub(super) streaming: bool,
}

// === impl Framed ===

impl Framed {
    pub(in crate::doors) fn of(payload: &Bytes, units: Units) -> Self {
        let json = payload.strip_prefix(BYTE_ORDER_MARK).unwrap_or(payload);
        let is_array = json.trim_ascii_start().first() == Some(&b'[');
        // An element of an array is shorter than the payload; a refusal of the same length concerns the whole payload.
        let is_whole = |refused: &Refused| refused.bytes.len() == payload.len();
        match units.into_only() {
            Ok(Err(refused)) if is_whole(&refused) => Self::One(Err(refused)),
            Ok(unit) if !is_array => Self::One(unit),
            Ok(unit) => Self::Batch(unit.into()),
            Err(units) if is_array => Self::Batch(units),
            Err(_) => Self::Lines,
        }
    }
}

// === impl RefusedItem ===

impl RefusedItem {
    /// The same element of a batch of CloudEvents, with an event as its error.
    pub(super) fn in_event(self, common: &Common) -> Self {
        Self {
            reply: self.reply.in_event(common, &self.bytes),
            ..self
        }
    }

    /// Its error.
    pub(super) fn body(&self) -> Bytes {
        self.reply.failure(&self.failure).body
    }
}

// === impl Item ===

impl Item {
    /// Sorts a unit, and counts it. `mode` is its content mode, if it is an event. Records refused units in the access
    /// log.
    pub(super) fn of(
        door: &Door,
        common: &Common,
        unit: Result<Unit, Refused>,
        mode: ContentMode,
    ) -> Self {
        Self::sort(&door.metrics, common, unit, mode).unwrap_or_else(|refused| {
            common.note_refusal(refused.failure.reason_code());
            Self::Refused(refused)
        })
    }

    fn sort(
        metrics: &Metrics,
        common: &Common,
        unit: Result<Unit, Refused>,
        mode: ContentMode,
    ) -> Result<Self, Box<RefusedItem>> {
        let unit = unit.map_err(|refused| {
            metrics.refused(refused.error.kind());
            Box::new(RefusedItem {
                failure: Failure::refused(&refused.error),
                reply: Reply::Message(Recipient::of_refused(&refused, common.dialect)),
                bytes: refused.bytes,
            })
        })?;
        let data = |event| data_of(event, &common.calls.rules().limits);
        let data = unit.event().and_then(data);
        let kind = kind_of(&unit, data.as_ref());
        let is_asking = matches!(kind, Kind::Request | Kind::Notification);
        if !is_asking {
            return Err(response(metrics, &unit));
        }
        metrics.unit(unit.detection.family, kind);
        let reply = Reply::to(common, &unit, data.as_ref(), mode);
        let rpc = data.as_ref().unwrap_or(&unit).json_rpc.as_ref();
        let streaming =
            rpc.is_some_and(|rpc| matches!(rpc.body, RpcBody::Call { streaming: true }));
        let item = Box::new(RequestItem {
            unit,
            data,
            reply,
            streaming,
        });
        Ok(match kind {
            Kind::Notification => Self::Notification(item),
            _ => Self::Request(item),
        })
    }
}

/// The decoded data of an event, if they are one message.
fn data_of(event: &Event, limits: &Limits) -> Option<Unit> {
    let data = decode(&event.body(), &Hint::default(), limits).into_only();
    data.ok()?.ok()
}

/// The kind of an event that a caller sends.
pub(crate) fn kind_of_sent(event: &Event, limits: &Limits) -> Kind {
    let data = data_of(event, limits);
    kind_of(&Unit::of_event(event.clone()), data.as_ref())
}

/// The kind of a unit. If an event does not declare its kind, its data decide.
fn kind_of(unit: &Unit, data: Option<&Unit>) -> Kind {
    let is_marked = |event: &Event| event.extension(extension::MCP_TYPE).is_some();
    let request = unit.event().filter(|event| !is_marked(event)).and(data);
    let request = request.unwrap_or(unit);
    match request.json_rpc.as_ref().map(|rpc| (rpc.body, &rpc.id)) {
        Some((RpcBody::Call { .. }, Some(_))) => Kind::Request,
        Some((RpcBody::Call { .. }, None)) => Kind::Notification,
        Some((RpcBody::Result(_) | RpcBody::Error(_), _)) => Kind::Response,
        None => request.kind(),
    }
}

/// The refusal of a response, which is not expected here. The error does not repeat its id, because the sender did not
/// choose it.
fn response(metrics: &Metrics, unit: &Unit) -> Box<RefusedItem> {
    metrics.refused(DecodeErrorKind::Invalid);
    let (what, recipient) = match &unit.json_rpc {
        Some(message) => ("a JSON-RPC response", Recipient::unknown(message.dialect)),
        None => ("an answer", Recipient::of(unit)),
    };
    let what = format!("this is {what}; expected a request, a notification or a batch of them");
    Box::new(RefusedItem {
        failure: Failure::new(Reason::InvalidRequest, what),
        reply: Reply::Message(recipient),
        bytes: unit.bytes.clone(),
    })
}
