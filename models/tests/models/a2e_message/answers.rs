//! Which call does a message answer, and how is a refused line answered?

use a2abus_models::a2e_message::env::EnvCloseResponse;
use a2abus_models::a2e_message::error_code::{CODES, is_retryable};
use a2abus_models::a2e_message::session::ErrorMessage;
use a2abus_models::a2e_message::{Body, CallMatcher, Content, Matched, Reason, Record, Refusal};

use super::read;

/// The requester of a line with a number that JSON cannot represent gets an error, because it waits.
#[test]
fn non_finite_numbers_are_refused_with_an_address() {
    for number in ["NaN", "Infinity", "-Infinity", "1e999", "[{\"a\":-1e400}]"] {
        let line = format!(r#"{{"type":"tool/call/req","x":"a\"NaN","n":{number},"id":"c1"}}"#);
        let refusal = read(&line).unwrap_err();
        assert_eq!(refusal.reason(), Reason::NonFiniteNumber, "{number}");
        let error = refusal.to_error().unwrap();
        assert_eq!(
            (error.req_id.as_str(), error.code.as_str()),
            ("c1", "parse_error"),
            "{number}"
        );
        assert_eq!(
            error.detail.to_string(),
            r#"{"reason":"non_finite_number"}"#
        );
        assert_eq!(error.capability_name, "tools");
    }
    let answer =
        read(r#"{"type":"tool/call/resp","id":"x","req_id":"c1","data":{"n":NaN}}"#).unwrap_err();
    assert_eq!(answer.to_error(), None, "nothing answers an answer");
    let error = answer.error_for_requester().unwrap();
    assert_eq!(
        (error.req_id.as_str(), error.code.as_str()),
        ("c1", "runtime_error")
    );
    assert!(error.retryable);
    assert_eq!(
        error.detail.to_string(),
        r#"{"reason":"non_finite_number"}"#
    );
    // Invalid in another way too: none of its content is trusted.
    assert_eq!(read(r#"{"id":"c1","n":NaN"#).unwrap_err().line().id, "");
    let broken = read(r#"{"id":"c1","n":NaNNaN}"#).unwrap_err();
    assert_eq!(broken.reason(), Reason::NotJson);
}

/// Source: docs/protocols/a2e-messages.md §F10.
#[test]
fn a_sampling_answer_with_the_type_of_the_request_is_an_answer() {
    let line = concat!(
        r#"{"type":"mcp/sample/req","id":"x","req_id":"s1","role":"assistant","#,
        r#""content":{"text":"hi"}}"#,
    );
    let Body::McpSampleResponse(answer) = read(line).unwrap().body else {
        panic!("the answer");
    };
    assert_eq!(
        (answer.req_id.as_str(), answer.role.as_str()),
        ("s1", "assistant")
    );
    let mut matcher = CallMatcher::new(8);
    matcher.open("mcp/sample/req", &"s1".into()).unwrap();
    assert_eq!(
        matcher.match_message("mcp/sample/req", "s1", &line.into()),
        Ok(Matched::Unchanged)
    );
    assert_eq!(matcher.open_calls(), 0);
}

#[test]
fn an_answer_without_req_id_gets_that_of_the_oldest_call() {
    let mut matcher = CallMatcher::new(8);
    for (name, id) in [
        ("env/render/req", "r1"),
        ("env/close/req", "c\"1é"),
        ("env/close/req", "c2"),
    ] {
        matcher.open(name, &id.into()).unwrap();
    }
    let mut take = |line: &str| {
        matcher
            .match_message("env/close/resp", "", &line.to_owned().into())
            .unwrap()
    };
    let completed = |line: &str, req_id: &str| Matched::Completed {
        req_id: req_id.into(),
        line: line.to_owned().into(),
    };
    let bytes = " {\"type\" : \"env/close/resp\",\"closed\":true , \"n\":1.50 } \r";
    let expected = concat!(
        " {\"type\" : \"env/close/resp\",\"closed\":true , \"n\":1.50 ,",
        "\"req_id\":\"c\\\"1\\u00e9\"} \r",
    );
    assert_eq!(take(bytes), completed(expected, "c\"1é"));
    // An empty one is replaced.
    let empty = r#"{"req_id":"","type":"env/close/resp"}"#;
    assert_eq!(
        take(empty),
        completed(r#"{"req_id":"c2","type":"env/close/resp"}"#, "c2")
    );
    assert_eq!(take(empty), Matched::Unmatched);
    assert_eq!(matcher.open_calls(), 1);
    assert!(
        matcher.open("env/render/req", &"r1".into()).is_err(),
        "open already"
    );
    assert_eq!(
        matcher.match_message("error", "", &"{}".into()),
        Ok(Matched::Unchanged)
    );
    assert!(
        matcher
            .match_message("env/render/resp", "", &"[]".into())
            .is_err()
    );
    matcher.close("r1");
    assert_eq!(matcher.open_calls(), 0);
    let answer = EnvCloseResponse::default();
    assert_eq!(
        (EnvCloseResponse::TYPE, answer.req_id()),
        ("env/close/resp", "")
    );
}

#[test]
fn errors_are_filled_in() {
    assert_eq!(CODES.len(), 32);
    for code in [
        "runtime_error",
        "timeout",
        "tool_error",
        "mcp_transport_error",
    ] {
        assert!(is_retryable(code), "{code}");
    }
    for code in ["parse_error", "unauthorized", "unknown_tool", "of the peer"] {
        assert!(!is_retryable(code), "{code}");
    }
    let error = ErrorMessage::new("c1".into(), "timeout", "no answer");
    assert!(error.retryable && error.detail.is_empty());

    let message = read(r#"{"type":"skill/nap/req","id":"n1"}"#).unwrap();
    let error = Refusal::unknown_type(&message).to_error().unwrap();
    assert_eq!(
        (error.code.as_str(), error.req_id.as_str()),
        ("invalid_message", "n1")
    );
    assert_eq!(
        error.detail.to_string(),
        r#"{"reason":"unknown_type","field":"type"}"#
    );
    assert_eq!(error.capability_name, "skill");
    let schema = read(r#"{"type":"tool/call/req","id":"c"}"#)
        .unwrap_err()
        .to_error()
        .unwrap();
    assert_eq!(
        schema.detail.to_string(),
        r#"{"reason":"missing_member","field":"arguments"}"#
    );
    assert!(!schema.retryable);
    let bare = read(r#"{"type":"nap","id":"n2","version":"2"}"#).unwrap_err();
    assert_eq!(bare.to_error().unwrap().req_id, "n2", "it may be a request");
    for silent in [
        r#"{"type":"pong","id":5}"#,
        r#"{"type":"shutdown","id":"s","timeout":[]}"#,
        r#"{"type":"tool/event","req_id":"r","seq":[]}"#,
    ] {
        assert_eq!(read(silent).unwrap_err().to_error(), None, "{silent}");
    }
}
