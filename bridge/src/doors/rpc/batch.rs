//! Batches: many requests, and one array as the answer.

use std::future::ready;

use a2abus_plugin::Units;
use a2abus_plugin::json::BYTE_ORDER_MARK;
use a2abus_transports::content_mode::ContentMode;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use http::header::CONTENT_TYPE;

use super::super::door::Door;
use super::common::{CallOptions, Common};
use super::head::{CALL_ID, header_of, unpublished_status};
use super::parts::AnswerParts;
use super::reply::{BATCH_TYPE, Reply};
use super::unit::{Item, RefusedItem, RequestItem};
use crate::calls::CallError;
use crate::calls::callid::CallId;
use crate::calls::failure::{Failure, Reason};
use crate::http::respond::accepted;

/// Maximum number of concurrent requests of one batch.
const MAX_CONCURRENT: usize = 64;
/// Maximum number of calls of one batch that the response head names.
const NAMED: usize = 64;

/// The units of a batch, sorted.
struct SortedBatch {
    notifications: Vec<RequestItem>,
    /// In the order of the batch: requests to make, and the errors of refused ones.
    requests: Vec<Result<Box<RequestItem>, Bytes>>,
    /// Whether there is nothing to send.
    is_refused: bool,
    /// Whether all answers are CloudEvents.
    are_events: bool,
}

// === impl SortedBatch ===

impl SortedBatch {
    fn of(door: &Door, common: &Common, units: Units) -> Self {
        let mut notifications = Vec::new();
        let mut requests = Vec::with_capacity(units.len());
        for unit in units {
            // Elements of an array are in structured mode, because they have no headers.
            match Item::of(door, common, unit, ContentMode::Structured) {
                Item::Notification(item) => notifications.push(*item),
                Item::Refused(refused) => requests.push(Err(refused)),
                Item::Request(request) if request.streaming => {
                    requests.push(Err(Box::new(no_streaming(common, *request))));
                }
                Item::Request(request) => requests.push(Ok(request)),
            }
        }
        let is_refused = notifications.is_empty() && requests.iter().all(Result::is_err);
        // One refused element must not make the whole answer unreadable for readers of events.
        let in_events = common.is_event && !is_refused;
        let mut are_events = true;
        let rendered = requests.into_iter().map(|request| {
            let request = request.map_err(|refused| match in_events {
                true => refused.in_event(common),
                false => *refused,
            });
            are_events &= match &request {
                Ok(request) => request.reply.is_event(),
                Err(refused) => refused.reply.is_event(),
            };
            // Nothing of the payload is held while the agents work.
            request.map_err(|refused| refused.body())
        });
        Self {
            requests: rendered.collect(),
            notifications,
            is_refused,
            are_events,
        }
    }
}

/// Makes the requests of a batch, in order and up to 64 concurrently. Meanwhile it sends the notifications one after
/// another. Source: JSON-RPC 2.0 section 6, docs/design.md §7.3.
pub(super) async fn respond(door: &Door, common: &Common, units: Units) -> Response {
    let SortedBatch {
        notifications,
        requests,
        is_refused,
        are_events,
    } = SortedBatch::of(door, common, units);
    // Assigns the ids of the calls that the response will name.
    let calls = requests
        .iter()
        .filter(|request| request.is_ok())
        .take(NAMED);
    let calls: Vec<CallId> = calls
        .map_while(|_| door.calls.channels().new_call().ok())
        .collect();
    let mut ids = calls.iter().copied();
    let answers = requests.into_iter().map(|request| match request {
        Ok(request) => answer(common, request, ids.next()).left_future(),
        Err(error) => ready(error).right_future(),
    });
    let (answers, published) = tokio::join!(
        join_in_order(answers, MAX_CONCURRENT),
        publish_in_order(common, notifications)
    );
    let mut response = match published {
        _ if is_refused => common.refused(common.budget.replace(array(&answers))),
        _ if !answers.is_empty() => {
            let mut response = common.whole(common.budget.replace(array(&answers)));
            if are_events && !common.accepts.is_events_only() {
                response.headers_mut().insert(CONTENT_TYPE, BATCH_TYPE);
            }
            response
        }
        Ok(()) => accepted(),
        Err((error, reply)) => reply.refusal(common, unpublished_status(&error), &error),
    };
    if !calls.is_empty() {
        response.headers_mut().insert(CALL_ID, header_of(&calls));
    }
    response
}

/// The answer to a request of the batch. Requests spend most of their time here, so only the parts that are awaited are
/// in this future.
async fn answer(common: &Common, request: Box<RequestItem>, call: Option<CallId>) -> Bytes {
    match Box::pin(publish(common, *request, call)).await {
        Ok((mut parts, mut reply)) => {
            if let Some(call) = parts.call_id() {
                reply.set_call(call);
            }
            reply.part(parts.last().await, common.kept_calls()).body
        }
        Err(answered) => answered,
    }
}

/// Publishes a request. An error is its answer: the bridge has answered it itself.
async fn publish(
    common: &Common,
    request: RequestItem,
    call: Option<CallId>,
) -> Result<(AnswerParts, Reply), Bytes> {
    if let Some(answered) = common.ask_registry(&request.unit).await {
        return Err(answered);
    }
    let options = CallOptions {
        data: request.data,
        ..CallOptions::default()
    };
    let answer = common.call(request.unit, call, options).await;
    Ok((AnswerParts::of(answer), request.reply))
}

/// Publishes every notification, within one deadline for all. Returns the first error: only the status can report it,
/// and only if there are no answers.
async fn publish_in_order(
    common: &Common,
    notifications: Vec<RequestItem>,
) -> Result<(), (CallError, Reply)> {
    let mut published = Ok(());
    for notification in notifications {
        let RequestItem {
            unit, data, reply, ..
        } = notification;
        if let Err(error) = common.notify(unit, data).await {
            published = published.and(Err((error, reply)));
        }
    }
    published
}

fn no_streaming(common: &Common, request: RequestItem) -> RefusedItem {
    let message = "streaming is not available in a batch: send this request by itself";
    let failure = Failure::new(Reason::StreamInBatch, message);
    let RequestItem { unit, reply, .. } = request;
    common.note_refusal_of(&unit, failure.reason_code());
    RefusedItem {
        failure,
        reply,
        bytes: unit.bytes,
    }
}

/// What the futures of an iterator return, in their order. At most `at_a_time` of them are under way, and a slow one
/// holds up no other.
pub(in crate::doors) async fn join_in_order<F: Future>(
    futures: impl Iterator<Item = F>,
    at_a_time: usize,
) -> Vec<F::Output> {
    let mut next = futures.enumerate();
    let mut running = FuturesUnordered::new();
    let mut joined = Vec::new();
    loop {
        let free = at_a_time - running.len();
        let numbered = next.by_ref().take(free).map(|(number, future)| {
            // An async block would hold the future twice.
            future.map(move |output| (number, output))
        });
        running.extend(numbered);
        match running.next().await {
            Some(output) => joined.push(output),
            None => break,
        }
    }
    joined.sort_unstable_by_key(|(number, _)| *number);
    joined.into_iter().map(|(_, output)| output).collect()
}

/// An array of documents, each of which is JSON.
pub(in crate::doors) fn array(documents: &[Bytes]) -> Bytes {
    let length: usize = documents.iter().map(|document| document.len() + 1).sum();
    let mut out = BytesMut::with_capacity(length + 1);
    for (index, document) in documents.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b"[" } else { b"," });
        // A document may begin with a byte-order mark, which must not occur inside an array.
        out.extend_from_slice(document.strip_prefix(BYTE_ORDER_MARK).unwrap_or(document));
    }
    out.extend_from_slice(b"]");
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_not_changed_in_the_array() {
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
