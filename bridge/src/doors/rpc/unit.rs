//! What one unit of a payload is: a request, a notification, or refused.

use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::protocol::jsonrpc::{JsonRpc, RpcBody};
use a2abus_plugin::{DecodeErrorKind, Family, Kind, Refused, Unit, Units};
use bytes::Bytes;

use super::super::Door;
use super::common::Common;
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
    /// To be sent, and not answered.
    Notification(Unit),
    /// Answered by this error.
    Refused(Bytes),
}

/// A request to make.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) unit: Unit,
    /// The recipient of errors.
    pub(super) recipient: Recipient,
    /// Whether its method asks for an answer in parts.
    pub(super) streaming: bool,
}

// === impl Framed ===

impl Framed {
    pub(in crate::doors) fn of(payload: &Bytes, units: Units) -> Self {
        let json = payload.strip_prefix(b"\xef\xbb\xbf").unwrap_or(payload);
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
    /// Sorts a unit, and counts it. What is refused leaves its line in the access log here.
    pub(super) fn of(door: &Door, common: &Common, unit: Result<Unit, Refused>) -> Self {
        let (failure, recipient) = match Self::sort(&door.metrics, common.dialect, unit) {
            Ok(item) => return item,
            Err(refused) => refused,
        };
        common.note_refusal(failure.word());
        Self::Refused(failure.render(&recipient))
    }

    /// `fallback` is the dialect of errors about units whose dialect is unknown.
    fn sort(
        metrics: &Metrics,
        fallback: Dialect,
        unit: Result<Unit, Refused>,
    ) -> Result<Self, (Failure, Recipient)> {
        let unit = unit.map_err(|refused| {
            metrics.refused(refused.error.kind());
            let id = refused.id.as_ref().map(|id| id.token().clone());
            let recipient = id.map_or(Recipient::unknown(fallback), |id| {
                Recipient::new(id, fallback)
            });
            (Failure::refused(&refused), recipient)
        })?;
        let Some(message) = &unit.json_rpc else {
            metrics.refused(DecodeErrorKind::WrongFamily);
            let failure = Failure::other_family(unit.because.family);
            return Err((failure, Recipient::unknown(fallback)));
        };
        match (message.body, &message.id) {
            (RpcBody::Call { streaming }, Some(id)) => {
                metrics.unit(Family::JsonRpc, Kind::Request);
                let recipient = Recipient::new(id.token().clone(), message.dialect);
                Ok(Self::Request(Ask {
                    unit,
                    recipient,
                    streaming,
                }))
            }
            (RpcBody::Call { .. }, None) => {
                metrics.unit(Family::JsonRpc, Kind::Notification);
                Ok(Self::Notification(unit))
            }
            (RpcBody::Result(_) | RpcBody::Error(_), _) => Err(response(metrics, message)),
        }
    }
}

/// A response has no place here. Its id is one that somebody else chose, so that the error does not repeat it.
fn response(metrics: &Metrics, message: &JsonRpc) -> (Failure, Recipient) {
    metrics.refused(DecodeErrorKind::Invalid);
    let what = "this is a JSON-RPC response; expected a request, a notification or a batch of them";
    let failure = Failure::new(Reason::InvalidRequest, what);
    (failure, Recipient::unknown(message.dialect))
}
