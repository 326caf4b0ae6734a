//! Sorts the units of a payload: request, notification, or refused.

use a2abus_plugin::json::BYTE_ORDER_MARK;
use a2abus_plugin::protocol::jsonrpc::RpcBody;
use a2abus_plugin::{DecodeErrorKind, Event, Hint, Kind, Refused, Unit, Units, decode, extension};
use a2abus_transports::content_mode::ContentMode;
use bytes::Bytes;

use super::super::Door;
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
    /// Several values without an array around them, which is not JSON.
    Lines,
}

/// One unit, sorted.
#[derive(Debug)]
pub(super) enum Item {
    /// To be answered by an agent.
    Request(Ask),
    /// To be sent, and not answered but for its failure.
    Notification(Unit, Reply),
    /// Answered by this error.
    Refused(Bytes),
}

/// A request to make.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) unit: Unit,
    /// What its data are, where it is a CloudEvent and they are one message.
    pub(super) data: Option<Unit>,
    /// The form of its answer.
    pub(super) reply: Reply,
    /// Whether its method asks for an answer in parts.
    pub(super) streaming: bool,
}

// === impl Framed ===

impl Framed {
    pub(in crate::doors) fn of(payload: &Bytes, units: Units) -> Self {
        let json = payload.strip_prefix(BYTE_ORDER_MARK).unwrap_or(payload);
        let is_array = json.trim_ascii_start().first() == Some(&b'[');
        // The element of an array is shorter than the array; what is as long is the payload itself.
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

// === impl Item ===

impl Item {
    /// Sorts a unit, and counts it. `mode` is how it came, if it is an event. What is refused leaves its line in the
    /// access log here.
    pub(super) fn of(
        door: &Door,
        common: &Common,
        unit: Result<Unit, Refused>,
        mode: ContentMode,
    ) -> Self {
        let (failure, recipient) = match Self::sort(&door.metrics, common, unit, mode) {
            Ok(item) => return item,
            Err(refused) => refused,
        };
        common.note_refusal(failure.word());
        Self::Refused(failure.render(&recipient))
    }

    fn sort(
        metrics: &Metrics,
        common: &Common,
        unit: Result<Unit, Refused>,
        mode: ContentMode,
    ) -> Result<Self, (Failure, Recipient)> {
        let unit = unit.map_err(|refused| {
            metrics.refused(refused.error.kind());
            let id = refused.id.as_ref().map(|id| id.token().clone());
            let recipient = id.map_or(Recipient::unknown(common.dialect), |id| {
                Recipient::new(id, common.dialect)
            });
            (Failure::refused(&refused), recipient)
        })?;
        let data = unit.event().and_then(|event| data_of(event, common));
        let kind = kind_of(&unit, data.as_ref());
        let is_asking = matches!(kind, Kind::Request | Kind::Notification);
        if !is_asking {
            return Err(response(metrics, &unit));
        }
        metrics.unit(unit.because.family, kind);
        let reply = Reply::to(common, &unit, data.as_ref(), mode);
        if kind == Kind::Notification {
            return Ok(Self::Notification(unit, reply));
        }
        let rpc = data.as_ref().unwrap_or(&unit).json_rpc.as_ref();
        let streaming =
            rpc.is_some_and(|rpc| matches!(rpc.body, RpcBody::Call { streaming: true }));
        Ok(Self::Request(Ask {
            unit,
            data,
            reply,
            streaming,
        }))
    }
}

/// What the data of an event are, if they are one message.
fn data_of(event: &Event, common: &Common) -> Option<Unit> {
    let limits = common.calls.rules().limits;
    let data = decode(&event.body(), &Hint::default(), &limits).into_only();
    data.ok()?.ok()
}

/// Whether a unit expects an answer. An event that does not say so is what its data are.
fn kind_of(unit: &Unit, data: Option<&Unit>) -> Kind {
    let is_marked = |event: &Event| event.extension(extension::MCP_TYPE).is_some();
    let said = unit.event().filter(|event| !is_marked(event)).and(data);
    let said = said.unwrap_or(unit);
    match said.json_rpc.as_ref().map(|rpc| (rpc.body, &rpc.id)) {
        Some((RpcBody::Call { .. }, Some(_))) => Kind::Request,
        Some((RpcBody::Call { .. }, None)) => Kind::Notification,
        Some((RpcBody::Result(_) | RpcBody::Error(_), _)) => Kind::Response,
        None => said.kind(),
    }
}

/// A response has no place here. Its id is one that somebody else chose, so that the error does not repeat it.
fn response(metrics: &Metrics, unit: &Unit) -> (Failure, Recipient) {
    metrics.refused(DecodeErrorKind::Invalid);
    let (what, recipient) = match &unit.json_rpc {
        Some(message) => ("a JSON-RPC response", Recipient::unknown(message.dialect)),
        None => ("an answer", Recipient::of(unit)),
    };
    let what = format!("this is {what}; expected a request, a notification or a batch of them");
    let failure = Failure::new(Reason::InvalidRequest, what);
    (failure, recipient)
}
