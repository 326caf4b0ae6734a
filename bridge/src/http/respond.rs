//! Responses that several doors send.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};

use crate::calls::failure::{Failure, Recipient, SOON};

/// How long a caller should wait before it retries while the bridge is shutting down, in seconds.
pub(crate) const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("5");

/// The number of headers for which nearly every response has room.
const MAX_HEADERS: usize = 12;

/// A JSON document.
pub(crate) fn json_response(status: StatusCode, body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    // The doors add more, and a map that grows hashes its names again.
    headers.reserve(MAX_HEADERS);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A refusal at the HTTP level: with its own status, and the error in the body.
pub(crate) fn refusal(status: StatusCode, failure: &Failure, recipient: &Recipient) -> Response {
    with_status(json_response(status, failure.render(recipient)), status)
}

/// A response that refuses a request, with the headers of its status.
pub(crate) fn with_status(mut response: Response, status: StatusCode) -> Response {
    *response.status_mut() = status;
    let headers = response.headers_mut();
    match status {
        StatusCode::METHOD_NOT_ALLOWED => headers.insert(ALLOW, HeaderValue::from_static("POST")),
        StatusCode::SERVICE_UNAVAILABLE => headers.insert(RETRY_AFTER, RETRY_AFTER_SECONDS),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::CONFLICT => {
            headers.insert(RETRY_AFTER, SOON.into())
        }
        _ => None,
    };
    response
}

/// Accepted, without a body.
pub(crate) fn accepted() -> Response {
    with_status(Response::default(), StatusCode::ACCEPTED)
}

/// Done, without a body.
pub(crate) fn no_content() -> Response {
    with_status(Response::default(), StatusCode::NO_CONTENT)
}
