//! Responses and their values.

use super::*;
use crate::environment::{HttpError, HttpResponse};
use crate::testing::{answer, json, no_response};

async fn one(response: ScriptedResponse) -> CallResult {
    let harness = Harness::new([response]);
    harness
        .call(r#"{"method":"POST","url":"https://api.example.com/x","body":1}"#)
        .await
}

#[tokio::test]
async fn each_status_yields_a_value_or_its_failure() {
    for status in [200, 201, 202, 299] {
        assert_eq!(
            one(json(status, "[1]")).await.result.unwrap().to_string(),
            "[1]"
        );
    }
    for status in [300, 301, 302, 303, 304, 307, 308] {
        let response = answer(status, &[("location", "https://elsewhere.example/")], "");
        let called = one(response).await;
        assert_eq!(failed(&called), ("ExecutionError", "redirect_not_followed"));
        let location = (status != 304).then(|| "https://elsewhere.example/".into());
        assert_eq!(
            detail(&called, "location"),
            location,
            "304 does not redirect"
        );
        assert_eq!(called.attempts, 1);
    }
    for status in [400_u16, 401, 404, 418, 500, 599, 999] {
        let called = one(json(status, r#"{"error":1}"#)).await;
        assert_eq!(failed(&called), ("ExecutionError", "http_status"));
        let expected = Json::from(u32::from(status));
        assert_eq!(detail(&called, "statusCode"), Some(expected));
        assert_eq!(detail(&called, "response"), Some(r#"{"error":1}"#.into()));
        assert_eq!(detail(&called, "attempts"), Some(1_i64.into()));
    }
    let called = one(json(100, "")).await;
    assert_eq!(failed(&called), ("DataError", "invalid_response"));
}

#[tokio::test]
async fn a_failure_shows_1024_characters_of_the_response() {
    let called = one(answer(400, &[], &"é".repeat(2_000))).await;
    let shown = detail(&called, "response").unwrap();
    assert_eq!(shown, "é".repeat(1_024).into());
    let mut response = answer(400, &[], "");
    response.answer.as_mut().unwrap().body = Bytes::from_static(b"\xff\xfe!");
    let called = one(response).await;
    assert_eq!(
        detail(&called, "response"),
        Some("\u{fffd}\u{fffd}!".into())
    );
}

#[tokio::test]
async fn a_response_of_10_mib_is_accepted_and_a_larger_one_is_not() {
    let response = |bytes: usize| ScriptedResponse {
        takes: Duration::ZERO,
        answer: Ok(HttpResponse {
            status: 200,
            headers: vec![("content-type".into(), "text/plain".into())],
            body: Bytes::from(vec![b'x'; bytes]),
        }),
    };
    let called = one(response(10 << 20)).await;
    assert_eq!(called.result.unwrap().as_str().unwrap().len(), 10 << 20);
    let called = one(response((10 << 20) + 1)).await;
    assert_eq!(failed(&called), ("DataError", "response_too_large"));
    let called = one(no_response(HttpError::TooLarge)).await;
    assert_eq!(failed(&called), ("DataError", "response_too_large"));
    assert_eq!(called.attempts, 1);
}

#[tokio::test]
async fn a_call_with_an_unreadable_response_is_not_retried() {
    let called = one(json(200, "{")).await;
    assert_eq!(failed(&called), ("DataError", "invalid_response"));
    assert_eq!(called.attempts, 1);
    assert_eq!(detail(&called, "attempts"), Some(1_i64.into()));
}

#[tokio::test]
async fn each_connection_error_has_its_failure() {
    for (error, type_name, code) in [
        (HttpError::Connect, "ExecutionError", "connection_failed"),
        (HttpError::Broken, "ExecutionError", "connection_failed"),
        (HttpError::Timeout, "TimeoutError", "operation_timeout"),
        (HttpError::Forbidden, "PermissionError", "forbidden_target"),
    ] {
        assert_eq!(failed(&one(no_response(error)).await), (type_name, code));
    }
}
