//! `POST /a2a` and `POST /a2a/agents/{name}`: JSON-RPC in the three dialects of A2A.

use std::borrow::Cow;
use std::sync::Arc;

use a2abus_plugin::json::BYTE_ORDER_MARK;
use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::{Refused, Unit, Units, decode, extension};
use axum::body::Body;
use axum::response::Response;
use bytes::{Buf as _, Bytes};
use futures_util::FutureExt as _;
use http::header::CONNECTION;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Version as HttpVersion};
use serde_json::Value;

use super::form::{Envelope, error_event};
use super::limits::{LIMIT, REMAINING, RESET, WINDOW, holding};
use super::method::Method;
use super::parsed::{ParsedRequest, Version};
use super::shared::A2a;
use super::work::{A2aRequest, Head, Reply};
use crate::calls::failure::{Failure, Reason, Recipient};
use crate::config::ClientDialect;
use crate::doors::door::{Answering, Refusal};
use crate::doors::permit::{Action, Principal, permit};
use crate::doors::rpc;
use crate::doors::rpc::Endpoint;
use crate::doors::rpc::batch::{array, join_in_order};
use crate::doors::rpc::common::{Common, Target};
use crate::doors::rpc::unit::Framed;
use crate::http::respond::refusal;
use crate::http::{negotiate, sse};
use crate::metrics::HttpPath;

const TRACE: HeaderName = HeaderName::from_static("x-a2a-trace-id");
/// The headers of responses that web pages may read.
pub(crate) const EXPOSED: [HeaderName; 7] = [
    TRACE,
    A2A_VERSION,
    JAF_VERSION,
    LIMIT,
    REMAINING,
    RESET,
    WINDOW,
];
const A2A_VERSION: HeaderName = HeaderName::from_static("a2a-version");
const JAF_VERSION: HeaderName = HeaderName::from_static("x-a2a-version");
/// Maximum number of concurrent requests of one batch.
const MAX_CONCURRENT: usize = 16;

/// Answers a request for the agent in the path, or for the one that the request or the configuration names.
pub(super) async fn serve(a2a: &Arc<A2a>, target: Target, request: Request<Body>) -> Response {
    let path = match target {
        Target::InPayload => HttpPath::A2a,
        Target::Agent(_) | Target::NotAName => HttpPath::A2aAgent,
    };
    let endpoint = Endpoint::json_rpc(path, target, request.headers());
    let shared = Arc::clone(a2a);
    framed(a2a, endpoint, request, |common, head, body| {
        respond(shared, common, head, body).boxed()
    })
    .await
}

/// Answers a request of any binding, with the common headers of answers to A2A clients. The request counts against its
/// client's limit until the last byte of the response, also while it waits for another request with the same
/// idempotency key.
pub(in crate::doors) async fn framed(
    a2a: &A2a,
    endpoint: Endpoint,
    request: Request<Body>,
    answered: impl FnOnce(Common, Parts, Bytes) -> Answering,
) -> Response {
    let stays_open = stays_open(&request);
    let trace = request.headers().get(TRACE).cloned();
    let caller = permit(request.extensions(), Action::Call(endpoint.target.name()));
    let caller = caller.ok().map(|Principal { name }| name);
    let (limits, metrics) = (&a2a.settings.at_a_time, &a2a.door.metrics);
    // A caller without permission is refused later.
    let recipient = endpoint.recipient.clone();
    let share = caller.as_ref().map(|name| limits.request(name, 1, metrics));
    let mut response = match share.transpose() {
        Ok(share) => holding(
            share,
            rpc::serve(&a2a.door, endpoint, request, answered).await,
        ),
        Err((status, failure)) => {
            metrics.http_request(endpoint.path, status);
            (endpoint.refusal)(status, &failure, &recipient)
        }
    };
    let is_stream = sse::is_stream(response.headers());
    let headers = response.headers_mut();
    if is_stream && stays_open {
        headers.insert(CONNECTION, HeaderValue::from_static("keep-alive"));
    }
    if let Some(trace) = trace {
        headers.insert(TRACE, trace);
    }
    if let Some(name) = caller {
        limits.show(&name, headers);
    }
    response
}

/// Whether the connection is HTTP/1.1, and stays open after this request.
fn stays_open(request: &Request<Body>) -> bool {
    let connection = request.headers().get_all(CONNECTION).iter();
    let mut options = connection.filter_map(|options| options.to_str().ok());
    let closes = |options: &str| {
        let mut options = options.split(',');
        options.any(|option| option.trim().eq_ignore_ascii_case("close"))
    };
    request.version() == HttpVersion::HTTP_11 && !options.any(closes)
}

async fn respond(
    a2a: Arc<A2a>,
    common: Common,
    head: Parts,
    mut payload: Bytes,
) -> Result<Response, Refusal> {
    let a2a = &a2a;
    if payload.starts_with(BYTE_ORDER_MARK) {
        payload.advance(BYTE_ORDER_MARK.len());
    }
    let version = Version::of(&head);
    let mut fallback = version.dialect(negotiate::dialect(&head.headers));
    if version == Version::Absent && is_jaf_by_default(a2a, &common.target) {
        fallback = Dialect::JafDoc;
    }
    let head = head_of(a2a, &head, version, fallback)?;
    let limits = a2a.door.calls.rules().limits;
    let units = decode(&payload, &common.hint, &limits);
    let (size, framed) = (payload.len(), Framed::of(&payload, units));
    drop(payload);
    match framed {
        Framed::One(unit) => Ok(one(a2a, &common, &head, unit).await),
        Framed::Batch(units) => {
            // The batch itself already counts as one.
            let (others, metrics) = (units.len().saturating_sub(1), &a2a.door.metrics);
            let limits = &a2a.settings.at_a_time;
            let _others = limits.request(&common.caller, others, metrics)?;
            rpc::check_amplification(&a2a.door, &common, size, units.len())?;
            Ok(Box::pin(batch(a2a, &common, &head, units)).await)
        }
        Framed::Lines => {
            let message = "more text follows the JSON value; send several requests as one array";
            let failure = Failure::new(Reason::Parse, message);
            Ok(common.whole(failure.render(&Recipient::unknown(head.fallback))))
        }
    }
}

/// Reads a request head. `fallback` is the dialect of errors if the request cannot be read.
pub(super) fn head_of(
    a2a: &A2a,
    head: &Parts,
    version: Version,
    fallback: Dialect,
) -> Result<Head, Refusal> {
    Ok(Head {
        fallback,
        version,
        trace: trace_of(&head.headers),
        last_event: text(&head.headers, sse::LAST_EVENT),
        base: a2a.base(&head.uri, &head.headers)?,
    })
}

async fn one(
    a2a: &Arc<A2a>,
    common: &Common,
    head: &Head,
    unit: Result<Unit, Refused>,
) -> Response {
    let (reply, dialect) = reply(a2a, common, head, unit, false).await;
    let response = match reply {
        Reply::Whole(body) => common.whole(body),
        Reply::Failed(body, event) => common.whole_of_type(body, event),
        Reply::Stream(response) => *response,
        Reply::WithStatus(status, body) => {
            let mut response = refusal(
                status,
                &Failure::new(Reason::Exhausted, ""),
                &Recipient::unknown(dialect),
            );
            *response.body_mut() = Body::from(body);
            response
        }
    };
    of_dialect(response, dialect)
}

/// Adds the version header to a response.
pub(super) fn of_dialect(mut response: Response, dialect: Dialect) -> Response {
    let version = match dialect {
        Dialect::A2a10 => Some((A2A_VERSION, "1.0")),
        Dialect::JafDoc => Some((JAF_VERSION, "0.3.0")),
        _ => None,
    };
    if let Some((name, version)) = version {
        let version = HeaderValue::from_static(version);
        response.headers_mut().insert(name, version);
    }
    response
}

/// One array, in the order of the requests. A2A 1.0 has no batches.
async fn batch(a2a: &Arc<A2a>, common: &Common, head: &Head, units: Units) -> Response {
    if head.version == Version::V1_0 {
        let failure = Failure::new(
            Reason::InvalidRequest,
            "A2A 1.0 has no batches: send one request at a time",
        );
        return common.whole(failure.render(&Recipient::unknown(Dialect::A2a10)));
    }
    let replies = units.into_iter().map(|unit| async {
        match reply(a2a, common, head, unit, true).await.0 {
            Reply::Whole(body) | Reply::Failed(body, _) | Reply::WithStatus(_, body) => body,
            // Streaming requests were refused above.
            Reply::Stream(_) => Bytes::new(),
        }
    });
    let replies = join_in_order(replies, MAX_CONCURRENT).await;
    common.whole(common.budget.replace(array(&replies)))
}

/// The answer to one request, and its dialect.
async fn reply(
    a2a: &Arc<A2a>,
    common: &Common,
    head: &Head,
    unit: Result<Unit, Refused>,
    in_batch: bool,
) -> (Reply, Dialect) {
    if let Ok(unit) = &unit
        && let Some(body) = common.ask_registry(unit).await
    {
        return (Reply::Whole(body), head.fallback);
    }
    let fallback = head.fallback;
    let method = unit.as_ref().ok();
    let method = method.and_then(|unit| unit.extension_text(extension::A2A_METHOD).cloned());
    let (parsed, unit) = match ParsedRequest::of(unit, &head.version, fallback) {
        Ok(parsed) => parsed,
        Err((failure, recipient)) => {
            let agent = common.target.name().unwrap_or_default();
            let method = method.as_deref().unwrap_or_default();
            common.note(agent, method, failure.reason_code());
            let body = of_request(failure, recipient.id(), head).render(&recipient);
            let event = error_event(Envelope::JsonRpc, fallback);
            return (Reply::Failed(body, event), fallback);
        }
    };
    let dialect = parsed.dialect;
    let (id, form) = (parsed.id.clone(), parsed.form());
    let streams = matches!(parsed.method, Method::Stream | Method::Follow);
    let done = if in_batch && streams {
        let message = "streaming is not available in a batch: send this request by itself";
        Err(Failure::new(Reason::StreamInBatch, message))
    } else {
        let request = A2aRequest {
            a2a,
            common: Cow::Borrowed(common),
            head,
            parsed,
            in_batch,
        };
        Box::pin(request.done(unit)).await
    };
    let reply =
        done.unwrap_or_else(
            |failure| match form.failure(&of_request(failure, &id, head)) {
                (Some(status), body) if !in_batch => Reply::WithStatus(status, body),
                // Clients of A2A 1.0 tell from the content type whether the stream has started.
                (None, body) if streams && dialect == Dialect::A2a10 => {
                    Reply::WithStatus(StatusCode::OK, body)
                }
                (_, body) => Reply::Failed(body, form.error_event()),
            },
        );
    (reply, dialect)
}

/// Whether requests for an agent that do not show their dialect are in that of the JAF document.
fn is_jaf_by_default(a2a: &A2a, target: &Target) -> bool {
    let agents = a2a.settings.registry.now();
    let agent = match target {
        Target::Agent(agent) => Some(agent),
        Target::InPayload => agents.default_agent(),
        Target::NotAName => None,
    };
    let agent = agent.and_then(|agent| agents.get(agent));
    agent.is_some_and(|(_, agent)| agent.dialect == Some(ClientDialect::JafDoc))
}

/// Adds the ids to a failure that connect it to its request in logs.
pub(super) fn of_request(failure: Failure, id: &str, head: &Head) -> Failure {
    let id: Value = serde_json::from_str(id).unwrap_or_default();
    let failure = if id.is_null() {
        failure
    } else {
        failure.detail("requestId", id)
    };
    match &head.trace {
        Some(trace) => failure.detail("traceId", trace.as_str()),
        None => failure,
    }
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?;
    Some(value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// The trace id of the W3C header, which takes precedence over the A2A header.
fn trace_of(headers: &HeaderMap) -> Option<String> {
    let parent = text(headers, "traceparent");
    let trace = parent.and_then(|parent| Some(parent.split('-').nth(1)?.to_owned()));
    trace.or_else(|| text(headers, "x-a2a-trace-id"))
}
