//! The head of a response: the ids of its calls, and the status if a call was refused.

use axum::response::Response;
use http::{HeaderName, HeaderValue, StatusCode};

use super::common::Common;
use crate::calls::CallError;
use crate::calls::callid::{CALL_ID_CHARS, CallId};
use crate::calls::failure::{Failure, Recipient};
use crate::http::respond::refusal;

/// The header of every response with the id of its call, as on the bus and in the logs. For a batch it has the ids of
/// its first calls; without a call, an id that is only in the access log.
pub(in crate::doors) const CALL_ID: HeaderName = HeaderName::from_static("x-a2abus-call-id");

/// The value of [`CALL_ID`].
pub(in crate::doors) fn header_of(calls: &[CallId]) -> HeaderValue {
    let mut text = Vec::with_capacity(calls.len() * (CALL_ID_CHARS + 2));
    for call in calls {
        if !text.is_empty() {
            text.extend_from_slice(b", ");
        }
        text.extend_from_slice(&call.characters());
    }
    // Base32 and commas are legal.
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

/// The response to a notification that was not published. It has no answer, so the status reports the result.
pub(in crate::doors) fn not_published(common: &Common, error: &CallError) -> Response {
    refusal(
        unpublished_status(error),
        &Failure::call(error),
        &Recipient::unknown(common.dialect),
    )
}

/// The status for a notification that was not published.
pub(super) fn unpublished_status(error: &CallError) -> StatusCode {
    match error {
        CallError::AgentNotFound(_)
        | CallError::Refused(_)
        | CallError::NotConverted(_)
        | CallError::TooLarge(_) => StatusCode::BAD_REQUEST,
        CallError::DestinationRefused(refused) if refused.is_misnamed() => StatusCode::BAD_REQUEST,
        CallError::Exhausted(_) => StatusCode::TOO_MANY_REQUESTS,
        CallError::Timeout(_)
        | CallError::Disabled
        | CallError::DestinationRefused(_)
        | CallError::Unavailable(_)
        | CallError::NoSubscriber(_)
        | CallError::AnswerLost(_)
        | CallError::Moved
        | CallError::Draining
        | CallError::Drained
        | CallError::HandedOff
        | CallError::SlowCaller
        | CallError::AnswerDropped
        | CallError::BadAnswer(_)
        | CallError::Undeliverable(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// The status for a call whose request was not sent, if a retry may succeed.
pub(in crate::doors) fn status_of(error: &CallError) -> Option<StatusCode> {
    match error {
        CallError::Draining => Some(StatusCode::SERVICE_UNAVAILABLE),
        CallError::Exhausted(_) => Some(StatusCode::TOO_MANY_REQUESTS),
        _ => None,
    }
}
