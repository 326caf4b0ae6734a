//! Cacheable documents, with the headers for conditional requests.
//!
//! Source: RFC 9110 sections 8.8 and 13.1, RFC 9111 section 5.2.

use std::time::SystemTime;

use a2abus_plugin::Text;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, LAST_MODIFIED, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::agents::refusal_of;
use super::limits::holding_bytes;
use crate::budget::ClientBudget;
use crate::doors::door::{self, Refusal};
use crate::shares::Share;

/// How long a client may cache a card.
const CACHED: HeaderValue = HeaderValue::from_static("public, max-age=60");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The current document, or 304 if the client already has it. The document is charged until it is sent, and refused if
/// there is no room. It also holds `share` until then. `varies_by` names the headers of the request that it depends on.
pub(super) fn response(
    document: &Value,
    (changed, varies_by): (SystemTime, HeaderValue),
    request_headers: &HeaderMap,
    budget: &ClientBudget,
    share: Option<Share<Text>>,
) -> Result<Response, Refusal> {
    let body = document.to_string();
    let tag = tag(&body);
    let same = request_headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|one| one.trim().trim_start_matches("W/"))
        .any(|one| one == "*" || one == tag);
    let mut response = if same {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        let body = door::charged_large(budget, Bytes::from(body)).map_err(refusal_of)?;
        Response::new(Body::from(holding_bytes(share, body)))
    };
    let headers = response.headers_mut();
    if !same {
        headers.insert(CONTENT_TYPE, JSON);
    }
    headers.insert(CACHE_CONTROL, CACHED);
    headers.insert(VARY, varies_by);
    for (name, value) in [(ETAG, tag), (LAST_MODIFIED, http_date(changed))] {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
    Ok(response)
}

/// A strong entity tag: the same for the same bytes, on every replica.
fn tag(body: &str) -> String {
    let digest = Sha256::digest(body);
    let hex: String = digest.iter().take(16).map(|b| format!("{b:02x}")).collect();
    format!("\"{hex}\"")
}

fn http_date(time: SystemTime) -> String {
    let time = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
    // It fails only for years after 9999.
    DateTimePrinter::new()
        .timestamp_to_rfc9110_string(&time)
        .unwrap_or_default()
}
