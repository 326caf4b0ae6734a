//! `POST /rpc` and `POST /rpc/{agent}`: requests, notifications and batches of any family become calls. The answer is
//! one response of the same family.
//!
//! ```text
//! head ──> body ──> decode ──> one unit ──> parts ──> JSON │ SSE
//!                     └──────> batch ─────> one array, in the order of the requests
//! ```
//!
//! Source: docs/design.md §7.

pub(super) mod batch;
pub(super) mod common;
pub(super) mod head;
mod keyed;
pub(super) mod parts;
mod reply;
pub(super) mod unit;

use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::{EventError, EventErrorKind, Hint, Limits, Text, Unit, decode};
use a2abus_transports::Message;
use a2abus_transports::content_mode::{self, Content, ContentMode, ProtocolBinding};
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use bytes::Bytes;
use futures_util::{FutureExt as _, Stream, StreamExt as _, stream};
use http::{HeaderMap, Method, Request, StatusCode, request};
use tokio::time::{Instant, timeout};

use self::common::{AdmittedRequest, CallOptions, Common, Target};
use self::head::{CALL_ID, header_of, status_of, unpublished_status};
use self::keyed::RefusedUnit;
use self::parts::AnswerParts;
use self::reply::Reply;
use self::unit::{Framed, Item, RequestItem};
use super::door::{Answering, Door, IDEMPOTENCY_KEY, Refusal};
use super::permit::{Action, Principal, permit};
use crate::account::Line;
use crate::budget::{Charge, ClientBudget};
use crate::calls::callid::CallId;
use crate::calls::failure::{Failure, Reason, Recipient};
use crate::calls::{CallError, Part, SentCalls};
use crate::http::negotiate::Accepts;
use crate::http::respond::{accepted, refusal};
use crate::http::{negotiate, sse};
use crate::metrics::HttpPath;

/// `POST /rpc`.
pub(super) async fn to_any_agent(
    State(door): State<Arc<Door>>,
    request: Request<Body>,
) -> Response {
    let endpoint = Endpoint::json_rpc(HttpPath::Rpc, Target::InPayload, request.headers());
    let shared = Arc::clone(&door);
    let respond = |common, head, payload| respond(shared, common, head, payload).boxed();
    serve(&door, endpoint, request, respond).await
}

/// `POST /rpc/{agent}`.
pub(super) async fn to_agent(
    State(door): State<Arc<Door>>,
    path: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Response {
    let target = Target::of_path(path);
    let endpoint = Endpoint::json_rpc(HttpPath::RpcAgent, target, request.headers());
    let shared = Arc::clone(&door);
    let respond = |common, head, payload| respond(shared, common, head, payload).boxed();
    serve(&door, endpoint, request, respond).await
}

/// A path: its target, the methods that it accepts, and the form of its errors.
pub(super) struct Endpoint {
    pub(super) path: HttpPath,
    pub(super) target: Target,
    /// The methods that it accepts.
    pub(super) methods: &'static [Method],
    /// What the headers declare about the body.
    pub(super) hint: Hint,
    /// The recipient of a refusal, if the request cannot be read.
    pub(super) recipient: Recipient,
    /// Creates the response to a request that is refused before it is read.
    pub(super) refusal: fn(StatusCode, &Failure, &Recipient) -> Response,
}

// === impl Endpoint ===

impl Endpoint {
    /// A path for JSON-RPC.
    pub(super) fn json_rpc(path: HttpPath, target: Target, headers: &HeaderMap) -> Self {
        let hint = negotiate::hint(headers);
        Self {
            path,
            target,
            methods: &[Method::POST],
            recipient: Recipient::unknown(negotiate::dialect_of(&hint)),
            hint,
            refusal,
        }
    }
}

/// Admits a request, reads its body, and has it answered by `answered`. A request with an idempotency key is answered
/// only once.
pub(super) async fn serve(
    door: &Door,
    endpoint: Endpoint,
    request: Request<Body>,
    answered: impl FnOnce(Common, request::Parts, Bytes) -> Answering,
) -> Response {
    let arrived = Instant::now();
    let recipient = endpoint.recipient.clone();
    let (path, refused) = (endpoint.path, endpoint.refusal);
    let target = endpoint.target.clone();
    let permitted = permit(request.extensions(), Action::Call(endpoint.target.name()));
    let Ok(call) = door.new_call(path, request.headers()) else {
        let failure = Failure::call(&CallError::Unavailable(Text::default()));
        return refused(StatusCode::SERVICE_UNAVAILABLE, &failure, &recipient);
    };
    let (caller, served) = match permitted {
        Err(failure) => (
            Text::default(),
            Err(((StatusCode::FORBIDDEN, failure), RefusedUnit::default())),
        ),
        Ok(Principal { name: caller }) => {
            // Boxed, so that it uses no memory while the answer is awaited.
            let admitted = Box::pin(admit_request(
                door,
                endpoint,
                (call, caller.clone(), arrived),
                request,
            ));
            let served = match admitted.await {
                // The charge for the head is released when the response begins.
                Ok((taken, _charge)) => keyed::answered(door, path, taken, answered).await,
                Err(refusal) => Err((refusal, RefusedUnit::default())),
            };
            (caller, served)
        }
    };
    let mut response = served.unwrap_or_else(|((status, failure), RefusedUnit { id, method })| {
        let line = Line {
            call,
            caller: &caller,
            agent: target.name().unwrap_or_default(),
            method: &method,
            outcome: failure.reason_code(),
            took: arrived.elapsed(),
        };
        line.write();
        let known = id.map(|id| Recipient::new(id, recipient.dialect()));
        refused(status, &failure, known.as_ref().unwrap_or(&recipient))
    });
    let headers = response.headers_mut();
    if !headers.contains_key(CALL_ID) {
        headers.insert(CALL_ID, header_of(&[call]));
    }
    door.metrics.http_request(path, response.status());
    response
}

/// Checks and reads a request. Returns the charge for its head too.
async fn admit_request(
    door: &Door,
    endpoint: Endpoint,
    (call, caller, arrived): (CallId, Text, Instant),
    request: Request<Body>,
) -> Result<(Box<AdmittedRequest>, Charge), Refusal> {
    let budget = door.client_budget(request.extensions());
    let charge = door.check_in_with(&request, &budget)?;
    let (head, body) = request.into_parts();
    let common = read_head(door, endpoint, (call, caller, arrived, budget), &head)?;
    let body = door.read_body(&head.headers, body, &common.budget).await?;
    Ok((Box::new(AdmittedRequest { common, head, body }), charge))
}

/// All other paths.
pub(super) async fn not_found(State(door): State<Arc<Door>>, headers: HeaderMap) -> Response {
    let status = StatusCode::NOT_FOUND;
    let message = "nothing is served at this path: send JSON-RPC to POST /rpc or /rpc/{agent}, MCP to /mcp or /mcp/agents/{agent}, and A2A, if there are agents, to POST /a2a or /a2a/agents/{agent}, or as HTTP+JSON to /message:send and /tasks, also below /a2a/agents/{agent}; /healthz, /readyz and /metrics are at the address of admin.listen";
    let failure = Failure::new(Reason::InvalidRequest, message);
    door.metrics.http_request(HttpPath::Other, status);
    refusal(
        status,
        &failure,
        &Recipient::unknown(negotiate::dialect(&headers)),
    )
}

/// Answers one HTTP request, up to the head of the response.
async fn respond(
    door: Arc<Door>,
    common: Common,
    head: request::Parts,
    payload: Bytes,
) -> Result<Response, Refusal> {
    let door = &door;
    let limits = door.calls.rules().limits;
    if negotiate::is_binary_event(&head.headers) {
        let unit = read_event(&head.headers, payload, &limits)?;
        drop(head);
        let item = Item::of(door, &common, Ok(unit), ContentMode::Binary);
        return respond_to_one(&common, item).await;
    }
    let units = decode(&payload, &common.hint, &limits);
    let (size, framed) = (payload.len(), Framed::of(&payload, units));
    // Nothing large is held while the agent works.
    drop((payload, head));
    match framed {
        Framed::One(unit) => {
            let item = Item::of(door, &common, unit, ContentMode::Structured);
            respond_to_one(&common, item).await
        }
        Framed::Batch(units) => {
            check_amplification(door, &common, size, units.len())?;
            Ok(Box::pin(batch::respond(door, &common, units)).await)
        }
        Framed::Lines => {
            let message = "more text follows the JSON value; send several requests as one array";
            let failure = Failure::new(Reason::Parse, message);
            common.note_refusal(failure.reason_code());
            let recipient = Recipient::unknown(common.dialect);
            Ok(common.refused(failure.render(&recipient)))
        }
    }
}

/// A CloudEvent in binary mode. Source: CloudEvents 1.0.2, HTTP protocol binding section 3.1.
fn read_event(headers: &HeaderMap, body: Bytes, limits: &Limits) -> Result<Unit, Refusal> {
    let mut message = Message::plain(body);
    for (name, value) in headers {
        let value = Bytes::copy_from_slice(value.as_bytes());
        message.headers.push(Text::from(name.as_str()), value);
    }
    let refused = |why: String| {
        let message = format!("the CloudEvent cannot be read: {why}");
        let failure = Failure::new(Reason::InvalidRequest, message);
        (StatusCode::BAD_REQUEST, failure)
    };
    match content_mode::read(ProtocolBinding::Http, &message, limits) {
        Ok(Content::Event(event)) => Ok(Unit::of_event(event)),
        Ok(Content::Plain { .. }) => Err(refused("it has no ce-specversion".to_owned())),
        // Some SDKs write such values.
        Err(error) if is_badly_encoded(&error) => Err(refused(format!(
            "{error}; percent-encode the value, or send the event in structured mode"
        ))),
        Err(error) => Err(refused(error.to_string())),
    }
}

/// Whether the value of an attribute is not percent-encoded UTF-8.
fn is_badly_encoded(error: &EventError) -> bool {
    matches!(
        error.kind(),
        EventErrorKind::MalformedPercent | EventErrorKind::InvalidUtf8
    )
}

/// Limits the total size of a batch on the bus: each of its requests is sent with all passed headers.
pub(super) fn check_amplification(
    door: &Door,
    common: &Common,
    body: usize,
    units: usize,
) -> Result<(), Refusal> {
    let headers = common.headers.iter();
    let size: usize = headers
        .map(|header| header.name.len() + header.value.as_ref().map_or(0, Bytes::len))
        .sum();
    let limit = door.largest_body();
    if size.saturating_mul(units.saturating_sub(1)) + body <= limit {
        return Ok(());
    }
    let message = format!(
        "each of the {units} requests of this batch is sent with {size} bytes of headers, in total more than {limit} bytes; send fewer requests at a time, or fewer headers"
    );
    Err((StatusCode::PAYLOAD_TOO_LARGE, Failure::too_large(message)))
}

fn read_head(
    door: &Door,
    endpoint: Endpoint,
    (call, caller, arrived, budget): (CallId, Text, Instant, ClientBudget),
    head: &request::Parts,
) -> Result<Common, Refusal> {
    door.check_origin(&head.uri, &head.headers)?;
    if !endpoint.methods.contains(&head.method) {
        let failure = Failure::new(Reason::InvalidRequest, "send requests with POST");
        return Err((StatusCode::METHOD_NOT_ALLOWED, failure));
    }
    // A message of an MCP client may be what a call in progress waits for; it is read first. With a key it is a
    // request.
    let is_mcp = matches!(endpoint.path, HttpPath::Mcp | HttpPath::McpAgent);
    if !is_mcp || head.headers.contains_key(IDEMPOTENCY_KEY) {
        door.check_running()?;
    }
    let is_binary_event = negotiate::is_binary_event(&head.headers);
    let is_json = negotiate::is_json_body(&head.headers) || negotiate::is_lines_body(&head.headers);
    // The data of an event may have any type.
    if !is_json && !is_binary_event {
        return Err(unsupported_type(&head.headers));
    }
    let timeout = timeout_of(&head.headers)?;
    let accepts = accepts_of(&head.headers)?;
    let hint = endpoint.hint;
    Ok(Common {
        calls: Arc::clone(&door.calls),
        registry: Arc::clone(&door.registry),
        may_announce: permit(&head.extensions, Action::Announce).map(drop),
        call,
        target: endpoint.target,
        caller,
        headers: door.passed.of_request(&head.headers),
        budget,
        timeout,
        arrived,
        accepts,
        dialect: negotiate::dialect_of(&hint),
        hint,
        is_event: is_binary_event || negotiate::is_structured_event(&head.headers),
        sent_calls: SentCalls::default(),
        results: Arc::clone(&door.results),
        key: None,
        is_patient: false,
        is_resumed: false,
    })
}

fn unsupported_type(headers: &HeaderMap) -> Refusal {
    let message = match negotiate::is_structured_event(headers) {
        true => {
            "only the JSON format of CloudEvents is supported: send the event with Content-Type: application/cloudevents+json, or in binary mode, with headers ce-…"
        }
        false => "the body must be JSON: send it with Content-Type: application/json",
    };
    let failure = Failure::new(Reason::ContentType, message);
    (StatusCode::UNSUPPORTED_MEDIA_TYPE, failure)
}

fn accepts_of(headers: &HeaderMap) -> Result<Accepts, Refusal> {
    Accepts::of(headers).ok_or_else(|| {
        let message =
            "answers are application/json or text/event-stream, and Accept allows neither";
        let failure = Failure::new(Reason::ContentType, message);
        (StatusCode::NOT_ACCEPTABLE, failure)
    })
}

fn timeout_of(headers: &HeaderMap) -> Result<Option<Duration>, Refusal> {
    negotiate::timeout(headers).map_err(|negotiate::BadTimeout| {
        let message = "X-A2A-Timeout must be one positive integer of milliseconds";
        let failure = Failure::new(Reason::InvalidParams, message);
        (StatusCode::BAD_REQUEST, failure)
    })
}

async fn respond_to_one(common: &Common, item: Item) -> Result<Response, Refusal> {
    match item {
        Item::Refused(refused) => Ok(common.refused(refused.body())),
        Item::Request(item) => Ok(answer(common, item).await),
        Item::Notification(item) => {
            let RequestItem {
                unit, data, reply, ..
            } = *item;
            Ok(match Box::pin(common.notify(unit, data)).await {
                Ok(()) => accepted(),
                Err(error) => reply.refusal(common, unpublished_status(&error), &error),
            })
        }
    }
}

/// The answer to one request: a stream if the method streams and the caller accepts it, otherwise one document. For a
/// caller that accepts only events, the stream starts when the agent has been silent for [`sse::UNTIL_STREAM`].
async fn answer(common: &Common, item: Box<RequestItem>) -> Response {
    if let Some(answered) = common.ask_registry(&item.unit).await {
        return common.whole(answered);
    }
    let RequestItem {
        unit,
        data,
        mut reply,
        streaming,
    } = *item;
    // The stored answer to a key has the status of the whole answer.
    let wants_parts = common.accepts.is_events_only() && common.key.is_none();
    let options = CallOptions {
        data,
        accepts_parts: match common.accepts {
            Accepts::Json => Some(false),
            Accepts::Events | Accepts::Both => wants_parts.then_some(true),
        },
        ..CallOptions::default()
    };
    // Boxed, so that it uses no memory while the answer is awaited.
    let called = Box::pin(common.call(unit, Some(common.call), options));
    let mut parts = AnswerParts::of(called.await);
    if let Some(error) = parts.refused()
        && let Some(status) = status_of(error)
    {
        return reply.refusal(common, status, error);
    }
    // The timeout of a caller limits how long it waits for a whole answer.
    let events = common.accepts.events() && !common.is_patient;
    if streaming && events {
        return stream_of(common, parts.into_stream(), reply);
    }
    let mut part = if wants_parts {
        match timeout(sse::UNTIL_STREAM, parts.next()).await {
            Err(_silence) => return stream_of(common, parts.into_stream(), reply),
            Ok(part) => part,
        }
    } else {
        parts.next().await
    };
    while let Some(Ok(first)) = part.take_if(|part| matches!(part, Ok(part) if !part.last)) {
        if events {
            let parts = stream::iter([Ok(first)]).chain(parts.into_stream());
            return stream_of(common, parts, reply);
        }
        part = parts.next().await;
    }
    let last = part.unwrap_or_else(|| Err(parts::no_end()));
    if let Err(error) = &last
        && let Some(status) = status_of(error)
    {
        return reply.refusal(common, status, error);
    }
    let part = reply.part(last, common.kept_calls());
    reply.whole(common, part)
}

/// A stream of the parts. If it is dropped before the last part, the call is cancelled.
fn stream_of<S>(common: &Common, parts: S, mut reply: Reply) -> Response
where
    S: Stream<Item = Result<Part, CallError>> + Send + 'static,
{
    let kept = common.kept_calls().cloned();
    let texts = parts.map(move |part| reply.part(part, kept.as_ref()).body);
    sse::texts_response(texts, common.budget.clone())
}
