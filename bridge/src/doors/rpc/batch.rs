//! A batch: many requests at a time, one array as the answer.

use a2abus_plugin::json::BYTE_ORDER_MARK;
use a2abus_plugin::{Unit, Units};
use a2abus_transports::content_mode::ContentMode;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};

use super::super::Door;
use super::common::{Common, With};
use super::reply::Reply;
use super::unit::{Ask, Item};
use super::{CALL_ID, header_of, last, parts_of, unpublished_status};
use crate::calls::CallError;
use crate::calls::callid::CallId;
use crate::calls::failure::{Failure, Reason};
use crate::http::respond::accepted;

/// Requests of one batch that are under way at a time.
const AT_A_TIME: usize = 64;
/// Calls of one batch that the response names, so that its head stays small.
const NAMED: usize = 64;

/// Makes the requests of a batch, up to 64 at a time in their order, and beside them sends its notifications one after
/// the other. Source: JSON-RPC 2.0 section 6, docs/design.md §7.3.
pub(super) async fn respond(door: &Door, common: &Common, units: Units) -> Response {
    let mut notifications = Vec::new();
    // In the order of the batch: requests to make, and the errors of what is refused.
    let mut asks: Vec<Result<Ask, Bytes>> = Vec::with_capacity(units.len());
    for unit in units {
        // Nothing around an element of an array could hold the attributes of an event.
        match Item::of(door, common, unit, ContentMode::Structured) {
            Item::Notification(unit, reply) => notifications.push((unit, reply)),
            Item::Refused(error) => asks.push(Err(error)),
            Item::Request(ask) if ask.streaming => asks.push(Err(no_streaming(common, &ask))),
            Item::Request(ask) => asks.push(Ok(ask)),
        }
    }
    // Those that the response names are known before it is made.
    let calls = asks.iter().filter(|ask| ask.is_ok()).take(NAMED);
    let calls: Vec<CallId> = calls
        .map_while(|_| door.calls.channels().new_call().ok())
        .collect();
    let mut ids = calls.iter().copied();
    let answers = asks.into_iter().map(|ask| {
        let call = ask.as_ref().ok().and_then(|_| ids.next());
        answer(common.clone(), ask, call)
    });
    let answers = stream::iter(answers)
        .buffered(AT_A_TIME)
        .collect::<Vec<_>>();
    let (answers, published) = tokio::join!(answers, publish_in_order(common, notifications));
    let mut response = match published {
        _ if !answers.is_empty() => common.whole(common.purse.replace(array(&answers))),
        Ok(()) => accepted(),
        Err((error, reply)) => {
            reply.refusal(common, unpublished_status(&error), &Failure::call(&error))
        }
    };
    if !calls.is_empty() {
        response.headers_mut().insert(CALL_ID, header_of(&calls));
    }
    response
}

async fn answer(common: Common, ask: Result<Ask, Bytes>, call: Option<CallId>) -> Bytes {
    let Ask {
        unit,
        data,
        mut reply,
        ..
    } = match ask {
        Ok(ask) => ask,
        Err(error) => return error,
    };
    if let Some(answered) = common.ask_registry(&unit).await {
        return answered;
    }
    let answer = common
        .call(
            unit,
            call,
            With {
                data,
                ..With::default()
            },
        )
        .await;
    reply.part(last(parts_of(answer)).await).body
}

/// Publishes every notification, within one deadline for all. Returns the first error: only the status can report it,
/// and only where there are no answers.
async fn publish_in_order(
    common: &Common,
    notifications: Vec<(Unit, Reply)>,
) -> Result<(), (CallError, Reply)> {
    let mut published = Ok(());
    for (notification, reply) in notifications {
        if let Err(error) = common.notify(notification).await {
            published = published.and(Err((error, reply)));
        }
    }
    published
}

fn no_streaming(common: &Common, ask: &Ask) -> Bytes {
    let message = "streaming is not available in a batch: send this request by itself";
    let failure = Failure::new(Reason::StreamInBatch, message);
    common.note_refusal(failure.word());
    ask.reply.failure(&failure).body
}

/// The array of documents that are JSON already.
pub(in crate::doors) fn array(documents: &[Bytes]) -> Bytes {
    let length: usize = documents.iter().map(|document| document.len() + 1).sum();
    let mut out = BytesMut::with_capacity(length + 1);
    for (index, document) in documents.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b"[" } else { b"," });
        // A document may begin with a byte-order mark, which an array may not hold.
        out.extend_from_slice(document.strip_prefix(BYTE_ORDER_MARK).unwrap_or(document));
    }
    out.extend_from_slice(b"]");
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_go_into_the_array_as_they_are() {
        let check = |documents: &[&'static str], expected: &str| {
            let documents: Vec<_> = documents
                .iter()
                .map(|document| Bytes::from(*document))
                .collect();
            assert_eq!(array(&documents), expected);
        };
        check(&["{\"id\":1.0}"], "[{\"id\":1.0}]");
        check(&["{\n}", " {\"id\" : 1e5} "], "[{\n}, {\"id\" : 1e5} ]");
        check(&["{}", "\u{feff}{}"], "[{},{}]");
    }
}
