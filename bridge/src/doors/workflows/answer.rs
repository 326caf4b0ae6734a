//! The form of answers and errors.

use std::time::Duration;

use a2abus_executor::{Admitted, Exceeded, Failure, Json};
use axum::response::Response;
use bytes::Bytes;
use http::header::{ALLOW, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::http::respond::{RETRY_AFTER_SECONDS, json_response};
use crate::metrics::RefusalReason;

/// A request that is refused. Source: docs/protocols/a2e-workflows.md §D42.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    error: Json,
    headers: Vec<(HeaderName, HeaderValue)>,
    why: Option<RefusalReason>,
}

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const REPLAY: HeaderName = HeaderName::from_static("idempotent-replay");

/// The cure if an execution id cannot be used.
const NEW_ID: &str = "give the workflow a new executionId";

/// The headers that scripts of permitted pages may read.
pub(crate) const EXPOSED: [HeaderName; 5] = [LIMIT, REMAINING, RESET, REPLAY, RETRY_AFTER];

/// A value as an answer.
pub(super) fn value(status: StatusCode, value: &Json) -> Response {
    json_response(status, Bytes::from(value.to_string()))
}

/// Marks an answer as the record of an earlier execution. Source: docs/protocols/a2e-workflows.md §D45.
pub(super) fn replayed(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(REPLAY, HeaderValue::from_static("true"));
    response
}

/// Adds the headers with a limit and its usage.
pub(super) fn put_standing(admitted: &Admitted, headers: &mut HeaderMap) {
    // Keep the headers of an answer that already reports another limit.
    if !headers.contains_key(LIMIT) {
        put(
            headers,
            admitted.limit,
            admitted.remaining,
            admitted.reset_unix_seconds(),
        );
    }
}

fn put(headers: &mut HeaderMap, limit: u32, remaining: u32, reset: u64) {
    headers.insert(LIMIT, HeaderValue::from(limit));
    headers.insert(REMAINING, HeaderValue::from(remaining));
    headers.insert(RESET, HeaderValue::from(reset));
}

/// The answer to one request too many. Source: docs/protocols/a2e-workflows.md §8.
pub(super) fn too_many(exceeded: &Exceeded, of: &str) -> Response {
    let rule = format!("{} {of} per {}", exceeded.limit, exceeded.window);
    let mut response = rate_limited(&rule, exceeded.retry_after);
    put(
        response.headers_mut(),
        exceeded.limit,
        0,
        exceeded.reset_unix_seconds(),
    );
    response
}

/// The answer when too many executions are running. It is unknown when one will end, so the client should retry after
/// one second.
pub(super) fn busy(most: usize) -> Response {
    rate_limited(&format!("{most} executions at a time"), 1)
}

fn rate_limited(rule: &str, retry_after: u32) -> Response {
    let message = format!("Rate limit exceeded: {rule}");
    let body = Json::object([
        ("error", Json::from("Rate limit exceeded")),
        ("message", message.into()),
        ("retry_after", retry_after.into()),
    ]);
    let mut response = value(StatusCode::TOO_MANY_REQUESTS, &body);
    response
        .headers_mut()
        .insert(RETRY_AFTER, HeaderValue::from(retry_after));
    response
}

// === impl Problem ===

impl Problem {
    fn new(
        status: StatusCode,
        (kind, code): (&'static str, &'static str),
        message: impl Into<String>,
        why: RefusalReason,
    ) -> Self {
        let error = Json::object([
            ("type", Json::from(kind)),
            ("code", code.into()),
            ("message", message.into().into()),
            ("operationId", Json::Null),
            ("details", Json::object::<&str>([])),
            ("suggestions", Vec::new().into()),
        ]);
        Self {
            status,
            error,
            headers: Vec::new(),
            why: Some(why),
        }
    }

    /// Adds what the client can do.
    fn suggest(mut self, suggestion: &'static str) -> Self {
        if let Json::Object(error) = &mut self.error {
            error.insert("suggestions", vec![Json::from(suggestion)]);
        }
        self
    }

    fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Marks the problem as already counted.
    fn counted(mut self) -> Self {
        self.why = None;
        self
    }

    /// The metric label, if it is not counted yet.
    pub(super) fn counts_as(&self) -> Option<RefusalReason> {
        self.why
    }

    pub(super) fn unauthorized() -> Self {
        let message = "send the agent's API key as Authorization: Bearer KEY or X-API-Key: KEY";
        Self::new(
            StatusCode::UNAUTHORIZED,
            ("PermissionError", "unauthorized"),
            message,
            RefusalReason::Unauthorized,
        )
        .with(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
    }

    pub(super) fn foreign_origin() -> Self {
        let message = "web pages of this origin may not send requests";
        let codes = ("PermissionError", "origin_not_permitted");
        Self::new(
            StatusCode::FORBIDDEN,
            codes,
            message,
            RefusalReason::Forbidden,
        )
    }

    pub(super) fn not_permitted(why: &str) -> Self {
        let codes = ("PermissionError", "not_permitted");
        Self::new(StatusCode::FORBIDDEN, codes, why, RefusalReason::Forbidden)
    }

    pub(super) fn no_such_call() -> Self {
        let message = "unknown path; GET /api/v1/openapi.json lists the calls";
        let codes = ("RequestError", "not_found");
        Self::new(
            StatusCode::NOT_FOUND,
            codes,
            message,
            RefusalReason::NotFound,
        )
        .suggest("GET /api/v1/openapi.json")
    }

    pub(super) fn no_such_execution() -> Self {
        let message = "this agent has no execution with this id, or its record has been removed";
        let codes = ("RequestError", "execution_not_found");
        Self::new(
            StatusCode::NOT_FOUND,
            codes,
            message,
            RefusalReason::NotFound,
        )
        .suggest("GET /api/v1/executions lists the executions of this agent")
    }

    pub(super) fn no_such_value() -> Self {
        let message = "this agent has no value with this key in this storage";
        let codes = ("RequestError", "value_not_found");
        Self::new(
            StatusCode::NOT_FOUND,
            codes,
            message,
            RefusalReason::NotFound,
        )
        .suggest("GET /api/v1/storage/{storage} lists the keys")
    }

    pub(super) fn storage_not_permitted(storage: &str) -> Self {
        let message = format!("storage {storage} is not permitted to this agent");
        let codes = ("PermissionError", "storage_not_permitted");
        Self::new(
            StatusCode::FORBIDDEN,
            codes,
            message,
            RefusalReason::Forbidden,
        )
    }

    pub(super) fn method_not_allowed(allowed: &'static str) -> Self {
        let message = format!("this path takes {allowed}");
        let codes = ("RequestError", "method_not_allowed");
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Self::new(status, codes, message, RefusalReason::Malformed)
            .with(ALLOW, HeaderValue::from_static(allowed))
    }

    pub(super) fn unsupported_media_type(takes_lines: bool) -> Self {
        let message = match takes_lines {
            true => {
                "the body must be JSON, or the JSON Lines of a workflow: send it with Content-Type: application/json or application/x-ndjson"
            }
            false => "the body must be JSON: send it with Content-Type: application/json",
        };
        let codes = ("RequestError", "unsupported_media_type");
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Self::new(status, codes, message, RefusalReason::Body)
    }

    pub(super) fn too_large(limit_bytes: usize) -> Self {
        let message = format!(
            "the body is larger than {limit_bytes} bytes: send less, or ask the operator for a larger limits.max_bytes"
        );
        let codes = ("RequestError", "too_large");
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            codes,
            message,
            RefusalReason::Body,
        )
    }

    pub(super) fn too_slow(deadline: Duration) -> Self {
        let millis = deadline.as_millis();
        let message = format!("the body did not arrive within {millis} ms (http.header_timeout)");
        let codes = ("TimeoutError", "body_timeout");
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            codes,
            message,
            RefusalReason::Body,
        )
    }

    /// There is no memory for the body at the moment.
    pub(super) fn no_room() -> Self {
        let codes = ("RateLimitError", "exhausted");
        let mut problem = Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            codes,
            "the memory for requests in progress is used up; try again in a moment",
            RefusalReason::Body,
        );
        problem
            .headers
            .push((RETRY_AFTER, HeaderValue::from_static("1")));
        problem
    }

    /// A body or a query that cannot be used.
    pub(super) fn malformed(code: &'static str, message: impl Into<String>) -> Self {
        let codes = ("ValidationError", code);
        Self::new(
            StatusCode::BAD_REQUEST,
            codes,
            message,
            RefusalReason::Malformed,
        )
        .suggest("GET /api/v1/openapi.json describes the request")
    }

    pub(super) fn conflict(execution_id: &str) -> Self {
        let message =
            format!("the execution id {execution_id} was already used by another workflow");
        let codes = ("ExecutionError", "execution_id_conflict");
        Self::new(
            StatusCode::CONFLICT,
            codes,
            message,
            RefusalReason::Conflict,
        )
        .suggest(NEW_ID)
        .counted()
    }

    /// The execution has run, and its record was removed for lack of memory.
    pub(super) fn forgotten(execution_id: &str) -> Self {
        let message = format!(
            "the execution {execution_id} has run, and its record was removed because memory was full; to run it again, give it a new executionId"
        );
        let codes = ("ExecutionError", "record_removed");
        Self::new(StatusCode::CONFLICT, codes, message, RefusalReason::Store)
            .suggest(NEW_ID)
            .counted()
    }

    /// The record of the execution is malformed, so it is unknown whether it has run.
    pub(super) fn unreadable(execution_id: &str) -> Self {
        let message = format!(
            "the record of the execution {execution_id} cannot be read; to run the workflow, give it a new executionId"
        );
        let codes = ("ExecutionError", "storage_failed");
        Self::new(StatusCode::CONFLICT, codes, message, RefusalReason::Store)
            .suggest(NEW_ID)
            .counted()
    }

    pub(super) fn draining() -> Self {
        let message = "the executor is shutting down; try again later, or at another replica";
        let codes = ("ExecutionError", "draining");
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self::new(status, codes, message, RefusalReason::Draining)
            .counted()
            .with(RETRY_AFTER, RETRY_AFTER_SECONDS)
    }

    /// The store failed; the log has the cause.
    pub(super) fn store() -> Self {
        let message = "the records of executions cannot be read or written now";
        let codes = ("ExecutionError", "storage_failed");
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self::new(status, codes, message, RefusalReason::Store)
            .suggest("send the request again in a moment; if this lasts, the log and /readyz of the bridge show an operator the cause")
            .counted()
            .with(RETRY_AFTER, RETRY_AFTER_SECONDS)
    }

    /// A failure of the executor.
    pub(super) fn failure(failure: &Failure) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            error: failure.to_value(),
            headers: Vec::new(),
            why: None,
        }
    }

    pub(super) fn into_response(self) -> Response {
        let body = Json::object([("error", self.error)]);
        let mut response = value(self.status, &body);
        response.headers_mut().extend(self.headers);
        response
    }
}
