//! Responses: the value, or the failure.
//!
//! Source: docs/protocols/a2e-workflows.md §4.8.

use a2abus_models::Json;
use a2abus_models::a2e_workflow::Code;
use a2abus_plugin::{DecodeErrorKind, Limits};

use crate::call::caller::Caller;
use crate::call::redact::Redactor;
use crate::call::retry::Cause;
use crate::environment::{HttpError, HttpRequest, HttpResponse};
use crate::failure::{Failure, FailureCode};
use crate::value::parse_within;

/// How many characters of a response a failure shows.
const MAX_SHOWN_CHARS: usize = 1_024;
/// How many characters of a content type a failure shows.
const MAX_TYPE_CHARS: usize = 100;
/// The maximum number of members and elements of a response: more do not fit into the data model.
const MAX_MEMBERS: u32 = 2_000_000;

/// A failed attempt.
pub(super) struct Failed {
    pub(super) failure: Failure,
    pub(super) cause: Cause,
    /// The header of this name.
    pub(super) retry_after: Option<String>,
}

/// Accepts a successful response.
pub(super) fn accept(
    answer: Result<HttpResponse, HttpError>,
    request: &HttpRequest,
    caller: &Caller<'_>,
) -> Result<HttpResponse, Failed> {
    match answer {
        Ok(response) if (200..300).contains(&response.status) => {
            if response.body.len() > request.max_response_bytes {
                return Err(no_response(HttpError::TooLarge, request, caller));
            }
            Ok(response)
        }
        Ok(response) => Err(other_status(&response, caller)),
        Err(error) => Err(no_response(error, request, caller)),
    }
}

fn other_status(response: &HttpResponse, caller: &Caller<'_>) -> Failed {
    let status = response.status;
    let failed = |failure: Failure, cause| Failed {
        failure: failure.with("statusCode", u32::from(status)),
        cause,
        retry_after: response.header("retry-after").map(str::to_owned),
    };
    // Cut after redaction, because the cut must not leave the beginning of a secret.
    let shown = |text: &str| -> String {
        let text = caller.redactor.text(text);
        text.chars().take(MAX_SHOWN_CHARS).collect()
    };
    match status {
        304 => {
            let message = "the service answered with status 304: the data has not changed, and is not in the response";
            let failure = Failure::new(FailureCode::RedirectNotFollowed, message);
            let cure =
                "leave out the headers that make the request conditional, such as If-None-Match";
            failed(failure.suggest(cure), Cause::Final)
        }
        300..400 => {
            let message = format!("the service redirects, with status {status}");
            let mut failure = Failure::new(FailureCode::RedirectNotFollowed, message);
            if let Some(location) = response.header("location") {
                failure = failure.with("location", shown(location));
            }
            failed(failure, Cause::Final)
        }
        400.. => {
            let message = format!("the service answered with status {status}");
            let failure = Failure::new(FailureCode::HttpStatus, message)
                .with("response", shown(&String::from_utf8_lossy(&response.body)));
            failed(failure, Cause::Status(status))
        }
        _ => {
            let message = format!("the service answered with status {status}, which is not final");
            failed(
                Failure::new(FailureCode::InvalidResponse, message),
                Cause::Final,
            )
        }
    }
}

fn no_response(error: HttpError, request: &HttpRequest, caller: &Caller<'_>) -> Failed {
    let host = request.target.host().unwrap_or_default();
    let (failure, cause) = match error {
        HttpError::Connect => (
            Failure::new(
                FailureCode::ConnectionFailed,
                format!("no connection to {host}"),
            ),
            Cause::NotConnected,
        ),
        HttpError::Broken => (
            Failure::new(
                FailureCode::ConnectionFailed,
                format!("the connection to {host} failed before the response was complete"),
            ),
            Cause::NoResponse,
        ),
        HttpError::Timeout => (timed_out(host, request, caller), Cause::NoResponse),
        HttpError::TooLarge => (too_large(request.max_response_bytes), Cause::Final),
        HttpError::Forbidden => (
            Failure::new(
                FailureCode::Refused(Code::ForbiddenTarget),
                format!(
                    "{host} may not be called: it has an address that is not globally reachable"
                ),
            ),
            Cause::Final,
        ),
    };
    Failed {
        failure,
        cause,
        retry_after: None,
    }
}

/// If the execution has ended, a longer timeout of the call would not have helped.
fn timed_out(host: &str, request: &HttpRequest, caller: &Caller<'_>) -> Failure {
    let milliseconds = usize::try_from(request.timeout.as_millis()).unwrap_or(usize::MAX);
    let message = format!("no response from {host} within {milliseconds} ms");
    let failure = match caller.time_left() {
        Ok(_) => Failure::new(FailureCode::OperationTimeout, message),
        // The requester or the operator has set the limit.
        Err(_) => Failure::new(
            FailureCode::OperationTimeout,
            format!("{message}, the remaining time of the execution"),
        )
        .suggest(
            "split the workflow, use fewer waits and calls, or give it more time: a later expirytime if the request has one, or a longer max_execution_time (ask the operator)",
        ),
    };
    failure.with("timeout", milliseconds)
}

fn too_large(max: usize) -> Failure {
    let message = format!("the response is larger than {} MiB", max >> 20);
    Failure::new(FailureCode::ResponseTooLarge, message).with("max", max)
}

/// The value of a successful response: its body.
pub(super) fn value(response: &HttpResponse, redactor: &Redactor) -> Result<Json, Failure> {
    if response.status == 204 || response.body.is_empty() {
        return Ok(Json::Null);
    }
    let encoding = response.header("content-encoding").map(str::trim);
    if encoding.is_some_and(|name| !name.is_empty() && !name.eq_ignore_ascii_case("identity")) {
        let message = "the response is compressed, although the request did not allow it";
        let cure = "call an endpoint that does not always compress its responses";
        return Err(invalid(message).suggest(cure));
    }
    let content_type = response.header("content-type").unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default();
    match kind(&essence.trim().to_ascii_lowercase()) {
        Kind::Json => json(&response.body),
        Kind::Text => Ok(text(&response.body)?.into()),
        Kind::Other => Err(invalid(unsupported_type(content_type, redactor))),
    }
}

/// The content type comes from outside: it is cut after redaction.
fn unsupported_type(content_type: &str, redactor: &Redactor) -> String {
    if content_type.is_empty() {
        return "the response has no content type; it must be JSON or text".to_owned();
    }
    let shown = redactor.text(content_type);
    let shown: String = shown.chars().take(MAX_TYPE_CHARS).collect();
    format!("the response is neither JSON nor text; its content type is {shown:?}")
}

enum Kind {
    Json,
    Text,
    Other,
}

fn kind(essence: &str) -> Kind {
    match essence.split_once('/') {
        Some(("application" | "text", "json")) => Kind::Json,
        Some((_, subtype)) if subtype.ends_with("+json") => Kind::Json,
        Some(("text", _)) => Kind::Text,
        _ => Kind::Other,
    }
}

fn json(body: &[u8]) -> Result<Json, Failure> {
    let body = body.strip_prefix(BOM).unwrap_or(body);
    parse_within(body, MAX_MEMBERS).map_err(|error| {
        let offset = error.offset();
        let failure = match error.kind() {
            DecodeErrorKind::TooDeep => {
                let most = Limits::default().max_depth;
                invalid(format!("the response is nested deeper than {most} levels"))
                    .suggest("ask for a part of the data that is nested less deeply")
            }
            DecodeErrorKind::TooLarge => {
                let message = format!("the response has more than {MAX_MEMBERS} members");
                invalid(message).suggest("ask for a smaller page of the data")
            }
            _ => invalid(format!(
                "the response is not valid JSON at byte {offset}: {error}"
            )),
        };
        failure.with("offset", offset)
    })
}

const BOM: &[u8] = "\u{feff}".as_bytes();

fn text(body: &[u8]) -> Result<&str, Failure> {
    let body = body.strip_prefix(BOM).unwrap_or(body);
    std::str::from_utf8(body).map_err(|_| {
        let failure = invalid("the response is text, but not UTF-8");
        failure.suggest("call an endpoint that answers with JSON, or with text in UTF-8")
    })
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(FailureCode::InvalidResponse, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn check(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Result<String, FailureCode> {
        let header = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let response = HttpResponse {
            status,
            headers: headers.iter().map(header).collect(),
            body: Bytes::copy_from_slice(body),
        };
        value(&response, &Redactor::default())
            .map(|value| value.to_string())
            .map_err(|failure| failure.code)
    }

    #[test]
    fn the_content_type_decides_how_a_response_is_read() {
        let invalid = Err(FailureCode::InvalidResponse);
        for (content_type, body, expected) in [
            ("application/json", "{\"a\": 1}", Ok("{\"a\":1}")),
            ("Application/JSON; charset=utf-8", "[1]", Ok("[1]")),
            ("application/problem+json", "1", Ok("1")),
            ("text/json", "1", Ok("1")),
            ("application/json", "null", Ok("null")),
            ("application/json", "\u{feff}1", Ok("1")),
            ("application/json", "{", invalid),
            ("application/json", "1 2", invalid),
            ("application/json", "<html>", invalid),
            ("application/json", " ", invalid),
            ("text/plain", "hello\nworld", Ok("\"hello\\nworld\"")),
            ("text/html; charset=utf-8", "<p>", Ok("\"<p>\"")),
            ("text/plain", "1", Ok("\"1\"")),
            ("application/xml", "<a/>", invalid),
            ("application/octet-stream", "1", invalid),
            ("application/json-seq", "1", invalid),
            ("json", "1", invalid),
            ("", "1", invalid),
            ("application/xml", "", Ok("null")),
        ] {
            let headers = [("content-type", content_type)];
            let found = check(200, &headers, body.as_bytes());
            let found = found.as_deref().map_err(|code| *code);
            assert_eq!(found, expected, "{content_type} {body:?}");
        }
        assert_eq!(check(200, &[], b"1"), Err(FailureCode::InvalidResponse));
    }

    #[test]
    fn a_response_of_another_type_is_reported_with_its_content_type() {
        let long = "x".repeat(1_000);
        for (headers, expected) in [
            (
                vec![("content-type", "image/png; q=\"1\"")],
                r#"its content type is "image/png; q=\"1\"""#,
            ),
            (vec![("content-type", "")], "has no content type"),
            (vec![], "has no content type"),
            (
                vec![("content-type", long.as_str())],
                &format!("{:?}", &long[..100]),
            ),
        ] {
            let header = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
            let response = HttpResponse {
                status: 200,
                headers: headers.into_iter().map(header).collect(),
                body: Bytes::from_static(b"x"),
            };
            let failure = value(&response, &Redactor::default()).unwrap_err();
            assert!(failure.message.contains(expected), "{}", failure.message);
        }
    }

    #[test]
    fn no_content_and_empty_bodies_are_null() {
        assert_eq!(check(204, &[], b"").as_deref(), Ok("null"));
        assert_eq!(check(204, &[], b"ignored").as_deref(), Ok("null"));
        assert_eq!(check(200, &[], b"").as_deref(), Ok("null"));
    }

    #[test]
    fn unreadable_responses_are_refused() {
        let invalid = Err(FailureCode::InvalidResponse);
        let json = ("content-type", "application/json");
        let text = ("content-type", "text/plain");
        assert_eq!(check(200, &[text], b"caf\xe9"), invalid);
        assert_eq!(check(200, &[json], b"\"caf\xe9\""), invalid);
        assert_eq!(
            check(200, &[json, ("content-encoding", "gzip")], b"1"),
            invalid
        );
        assert!(check(200, &[json, ("content-encoding", "identity")], b"1").is_ok());
    }

    #[test]
    fn the_cure_fits_the_fault_of_a_response() {
        let json = ("content-type", "application/json");
        let compressed = vec![json, ("content-encoding", "gzip")];
        let latin = vec![("content-type", "text/plain")];
        for (headers, body, expected) in [
            (compressed, b"1".as_slice(), "compress"),
            (latin, b"\xe9", "UTF-8"),
            (vec![json], br#"["\ud83d"]"#, "surrogate"),
        ] {
            let header = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
            let response = HttpResponse {
                status: 200,
                headers: headers.into_iter().map(header).collect(),
                body: Bytes::from_static(body),
            };
            let failure = value(&response, &Redactor::default()).unwrap_err();
            let shown = failure.to_value().to_string();
            assert!(shown.contains(expected), "{shown}");
        }
    }

    #[test]
    fn json_beyond_the_limits_is_not_called_invalid() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        let many = format!("[{}0]", "0,".repeat(2_000_000));
        for (body, expected) in [
            (deep, "nested deeper than 128 levels"),
            (many, "more than 2000000 members"),
        ] {
            let response = HttpResponse {
                status: 200,
                headers: vec![("content-type".to_owned(), "application/json".to_owned())],
                body: body.into(),
            };
            let failure = value(&response, &Redactor::default()).unwrap_err();
            assert_eq!(failure.code, FailureCode::InvalidResponse);
            let message = &failure.message;
            assert!(message.contains(expected), "{message}");
            assert!(!message.contains("not valid JSON"), "{message}");
        }
    }
}
