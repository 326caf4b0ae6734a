//! Every failure in each dialect.

use std::time::Duration;

use super::*;
use crate::calls::error::{Bound, DestinationRefused, RequestState};
use crate::calls::reply_token::Rejection;
use crate::route::NamedBy;
use a2abus_plugin::{Hint, Limits, decode};
use a2abus_transports::TransportErrorKind;

const NOW: &str = "2026-02-02T02:40:00.123Z";

fn timeout() -> CallError {
    CallError::Timeout(Box::new(NoAnswer {
        after: Duration::from_secs(30),
        agent: "weather".into(),
        request: RequestState::Published("Kafka topic agents.weather".into()),
        rejected: None,
    }))
}

fn render(failure: &Failure, id: &str, dialect: Dialect) -> String {
    let body = failure.json_rpc(id, dialect, NOW);
    String::from_utf8(body.to_vec()).unwrap()
}

#[test]
fn the_id_is_echoed_byte_for_byte() {
    let failure = Failure::call(&CallError::Exhausted(Bound::Calls));
    for id in [
        "1",
        "1.0",
        "9007199254740993",
        "\"\"",
        "\"\\u0041\"",
        "null",
        "-0",
        "1e5",
    ] {
        let body = render(&failure, id, Dialect::JsonRpc);
        assert!(
            body.starts_with(&format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"#)),
            "{body}"
        );
        serde_json::from_str::<Value>(&body).unwrap();
    }
}

#[test]
fn every_reason_has_the_code_of_its_dialect() {
    use Dialect::{A2a03, A2a10, Acp, JafDoc, JsonRpc, Mcp};
    let agent = || Text::from("weather");
    let rows = [
        (
            CallError::AgentNotFound(agent()),
            "agent_not_found",
            [-32000, -32602, -32602],
        ),
        (
            CallError::Unavailable(agent()),
            "agent_unavailable",
            [-32002, -32603, -32603],
        ),
        (
            CallError::NoSubscriber(agent()),
            "agent_unavailable",
            [-32002, -32603, -32603],
        ),
        (
            CallError::AnswerLost(agent()),
            "answer_lost",
            [-32006, -32603, -32603],
        ),
        (CallError::Drained, "answer_lost", [-32006, -32603, -32603]),
        (
            CallError::HandedOff,
            "answer_lost",
            [-32006, -32603, -32603],
        ),
        (
            CallError::Moved,
            "agent_unavailable",
            [-32002, -32603, -32603],
        ),
        (
            CallError::Draining,
            "agent_unavailable",
            [-32002, -32603, -32603],
        ),
        (timeout(), "timeout", [-32006, -32603, -32603]),
        (
            CallError::Exhausted(Bound::Agent(agent())),
            "exhausted",
            [-32007, -32603, -32603],
        ),
        (CallError::SlowCaller, "exhausted", [-32007, -32603, -32603]),
        (
            CallError::AnswerDropped,
            "answer_lost",
            [-32006, -32603, -32603],
        ),
        (
            CallError::Refused(agent()),
            "invalid_params",
            [-32602, -32602, -32602],
        ),
        (
            CallError::NotConverted(agent()),
            "convert_failed",
            [-32602, -32602, -32602],
        ),
        (
            CallError::TooLarge(agent()),
            "too_large",
            [-32602, -32602, -32602],
        ),
        (
            CallError::BadAnswer(agent()),
            "bad_agent_reply",
            [-32603, -32006, -32603],
        ),
        (
            CallError::Undeliverable(agent()),
            "reply_undeliverable",
            [-32603, -32603, -32603],
        ),
    ];
    for (error, reason_code, [jaf, a2a, other]) in rows {
        let failure = Failure::call(&error);
        for (dialect, code) in [
            (JafDoc, jaf),
            (A2a03, a2a),
            (Mcp, other),
            (Acp, other),
            (JsonRpc, other),
        ] {
            let body: Value = serde_json::from_str(&render(&failure, "1", dialect)).unwrap();
            assert_eq!(body["error"]["code"], code, "{error:?} {dialect:?}");
            assert_eq!(
                body["error"]["data"]["reason"], reason_code,
                "{error:?} {dialect:?}"
            );
            assert_eq!(body["error"]["data"]["timestamp"], NOW);
        }
        let body: Value = serde_json::from_str(&render(&failure, "1", A2a10)).unwrap();
        assert_eq!(body["error"]["code"], a2a, "{error:?}");
        assert_eq!(body["error"]["data"][0]["domain"], "a2a-protocol.org");
    }
}

#[test]
fn only_a_request_that_was_not_sent_gets_a_status_that_asks_to_repeat_it() {
    let status = |error: &CallError| Failure::of_client(error).status();
    let limit = CallError::Exhausted(Bound::Memory(crate::budget::BudgetExhausted));
    assert_eq!(status(&limit), Some(StatusCode::TOO_MANY_REQUESTS));
    for executed in [CallError::AnswerDropped, CallError::SlowCaller] {
        assert_eq!(status(&executed), None);
        let failure = Failure::of_client(&executed);
        assert_eq!(failure.reason_code(), "answer_lost");
        let over_http = failure.http_status(Dialect::A2a10);
        assert_eq!(over_http, StatusCode::GATEWAY_TIMEOUT);
    }
}

#[test]
fn the_error_table_of_the_vectors() {
    let vectors = include_str!("../../../../tests/vectors/a2a.json");
    let vectors: Value = serde_json::from_str(vectors).unwrap();
    let table = vectors["error_table"].as_array().unwrap();
    assert_eq!(table.len(), 4);
    for row in table {
        let failure = match row["reason"].as_str().unwrap() {
            "task_not_cancelable" => Failure::new(Reason::TaskNotCancelable, "it has ended"),
            "rate_limited" => Failure::of_client(&CallError::Exhausted(Bound::Caller)),
            "agent_not_found" => Failure::call(&CallError::AgentNotFound("w".into())),
            "timeout" => Failure::call(&timeout()),
            other => panic!("{other} is not built"),
        };
        for (name, dialect) in [
            ("jaf-doc", Dialect::JafDoc),
            ("a2a-0.3", Dialect::A2a03),
            ("a2a-1.0", Dialect::A2a10),
        ] {
            let body: Value = serde_json::from_str(&render(&failure, "1", dialect)).unwrap();
            assert_eq!(body["error"]["code"], row[name], "{row} {name}");
        }
        if let Some(status) = row["http_status"].as_u64() {
            let found = failure.status().map(|status| u64::from(status.as_u16()));
            assert_eq!(found, Some(status), "{row}");
        }
    }
}

#[test]
fn a2a_1_0_gets_an_array_of_typed_objects() {
    let failure = Failure::call(&timeout());
    let body: Value = serde_json::from_str(&render(&failure, "7", Dialect::A2a10)).unwrap();
    assert_eq!(
        body["error"]["data"],
        json!([{
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "DEADLINE_EXCEEDED",
            "domain": "a2a-protocol.org",
            "metadata": { "cause": "timeout", "timestamp": NOW, "timeoutMs": "30000" },
        }])
    );
    let failure = Failure::call(&CallError::Refused("the key is too long".into()));
    let body: Value = serde_json::from_str(&render(&failure, "7", Dialect::A2a10)).unwrap();
    let violation = &body["error"]["data"][1]["fieldViolations"][0];
    assert_eq!(violation["field"], "params");
    assert_eq!(
        violation["description"],
        "the request cannot be sent: the key is too long"
    );
}

/// Clients of A2A 1.0 read nothing but typed objects, and in `metadata` nothing but text.
#[test]
fn every_error_for_a2a_1_0_has_typed_objects_only() {
    for failure in [
        Failure::call(&timeout()),
        Failure::bad_params("no").detail(POINTER, "/params/x"),
        Failure::version("no", &["1.0", "0.3"]),
        Failure::unknown_method("m", vec!["a", "b"]),
        Failure::unknown_agent("w", vec!["v"]),
        Failure::too_large("no"),
        Failure::other_family(Family::E2a),
        Failure::of_agent(br#"{"error":{"code":-32001,"message":"gone","data":{"x":[1]}}}"#),
    ] {
        let body: Value = serde_json::from_str(&render(&failure, "1", Dialect::A2a10)).unwrap();
        let data = body["error"]["data"].as_array().unwrap();
        for entry in data {
            let name = entry["@type"].as_str().unwrap();
            let is_typed = name.starts_with("type.googleapis.com/google.rpc.");
            assert!(is_typed, "{body}");
        }
        let metadata = data[0]["metadata"].as_object().unwrap();
        assert!(metadata.values().all(Value::is_string), "{body}");
        assert_eq!(data[0]["domain"], "a2a-protocol.org", "{body}");
    }
}

#[test]
fn a_refused_unit_has_its_fault_and_position() {
    let check = |payload: &'static str, code: i32, reason_code: &str, pointer: Value| {
        let units = decode(&Bytes::from(payload), &Hint::default(), &Limits::default());
        let refused = units[0].as_ref().unwrap_err();
        let body: Value = serde_json::from_str(&render(
            &Failure::refused(&refused.error),
            "1",
            Dialect::JsonRpc,
        ))
        .unwrap();
        assert_eq!(body["error"]["code"], code, "{payload} {body}");
        assert_eq!(
            body["error"]["data"]["reason"], reason_code,
            "{payload} {body}"
        );
        assert_eq!(
            body["error"]["data"]["pointer"], pointer,
            "{payload} {body}"
        );
    };
    check("{", -32700, "not_json", Value::Null);
    check("", -32700, "empty", Value::Null);
    check("1", -32600, "not_an_object", Value::Null);
    check("[]", -32600, "empty_batch", Value::Null);
    check(
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":3}"#,
        -32602,
        "bad_params",
        "/params".into(),
    );
    check(
        r#"{"jsonrpc":"2.0","id":{},"method":"m"}"#,
        -32600,
        "bad_id",
        "/id".into(),
    );
}

#[test]
fn the_error_for_a_bad_name_of_an_agent_names_the_member() {
    let payload = r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"_agentId":"zz zz"}}"#;
    let units = decode(&Bytes::from(payload), &Hint::default(), &Limits::default());
    let failure = Failure::refused(&units[0].as_ref().unwrap_err().error);
    let start = "params._agentId must be a string of 1 to 256 letters";
    assert!(failure.message.starts_with(start), "{}", failure.message);
}

#[test]
fn the_error_of_an_answer_without_an_end_names_the_limit_that_ended_it() {
    let message = |is_longest| {
        Failure::call(&CallError::Timeout(Box::new(NoAnswer {
            after: Duration::from_secs(8),
            agent: "weather".into(),
            request: RequestState::Unended {
                parts: 4,
                is_longest,
            },
            rejected: None,
        })))
        .message
    };
    assert_eq!(
        message(true),
        "agent \"weather\" did not end its answer within 8000 ms (calls.stream_timeout): 4 parts came"
    );
    assert_eq!(
        message(false),
        "agent \"weather\" did not end its answer within 8000 ms: 4 parts came; raise X-A2A-Timeout to wait longer"
    );
}

#[test]
fn internals_are_not_revealed() {
    let failure = Failure::call(&CallError::Unavailable(
        "kafka-3.internal:9092 refused".into(),
    ));
    let shown = render(&failure, "1", Dialect::JsonRpc);
    assert!(!shown.contains("kafka-3"), "{shown}");
    // Only one of the two causes is true.
    assert!(!shown.contains("subscribes"), "{shown}");
}

#[test]
fn a_silent_agent_and_a_missing_topic_are_named() {
    let message = |error| Failure::call(&error).message;
    assert_eq!(
        message(timeout()),
        "no answer from agent \"weather\" within 30000 ms (published to Kafka topic agents.weather); \
             raise X-A2A-Timeout to wait longer"
    );
    for (request, why) in [
        (
            RequestState::Unconfirmed("NATS subject agents.weather".into()),
            "the bus did not confirm the request within 2 ms (NATS subject agents.weather): the agent may still get it",
        ),
        (
            RequestState::Unsent,
            "not sent within 2 ms: earlier requests of the batch, or waiting for the shared state, used up the time",
        ),
    ] {
        let unpublished = CallError::Timeout(Box::new(NoAnswer {
            after: Duration::from_micros(1_500),
            agent: "weather".into(),
            request,
            rejected: None,
        }));
        assert_eq!(
            message(unpublished),
            format!("{why}; raise X-A2A-Timeout to wait longer")
        );
    }
    let missing = |named_by| {
        Failure::call(&CallError::DestinationRefused(Box::new(
            DestinationRefused {
                what: "Kafka topic agents.k-typo does not exist".into(),
                kind: TransportErrorKind::UnknownTopic,
                named_by,
            },
        )))
    };
    let (chosen, configured) = (missing(NamedBy::Event), missing(NamedBy::Config));
    assert_eq!(chosen.reason_code, "agent_not_found");
    assert_eq!(
        chosen.message,
        "Kafka topic agents.k-typo does not exist: check the name of the agent, or create it"
    );
    assert_eq!(configured.reason_code, "agent_unavailable");
    let silent = CallError::NoSubscriber("NATS subject agents.weather".into());
    assert_eq!(
        message(silent),
        "the agent cannot be reached: nothing subscribes to NATS subject agents.weather; start the agent, or \
             correct its subject or the route"
    );
}

#[test]
fn the_error_for_a_request_without_an_agent_says_where_to_name_it() {
    let nobody = CallError::AgentNotFound(Text::default());
    let sender = |family| match family {
        Family::JsonRpc => Recipient::unknown(Dialect::JsonRpc),
        family => Recipient::Message { family, id: None },
    };
    for (family, place) in [
        (Family::JsonRpc, "params._agentId"),
        (Family::A2eMessage, "_agentId"),
        (Family::A2eWorkflow, "_agentId of its line beginExecution"),
        (Family::Legacy, "targetAgent.agentId"),
        (Family::E2a, "params._agentId, agent_id or agent_ref.id"),
    ] {
        let message = Failure::of_message(&nobody, family).message;
        let start = format!(
            "the request names no agent: name it in {place} or in the path, /rpc/{{agent}}"
        );
        assert!(message.starts_with(&start), "{message}");
        assert_eq!(
            Failure::unpublished_on_bus(&nobody, &sender(family)).message,
            format!(
                "the request names no agent: name it in the attribute targetagent or, if the message is not a \
                     CloudEvent, in {place}"
            )
        );
    }
    assert_eq!(
        Failure::of_message(&nobody, Family::CloudEvent).message,
        "the request names no agent: name it in the attribute targetagent or in the path, /rpc/{agent}"
    );
}

#[test]
fn an_expired_request_needs_a_later_deadline_on_every_door() {
    let expired = CallError::Timeout(Box::new(NoAnswer {
        after: Duration::ZERO,
        agent: "weather".into(),
        request: RequestState::Expired,
        rejected: None,
    }));
    let text = "the request had expired before the bridge read it; give the request a later expirytime to wait \
                    longer";
    assert_eq!(Failure::call(&expired).message, text);
    assert_eq!(Failure::on_bus(&expired).message, text);
}

#[test]
fn names_in_messages_are_escaped() {
    let failure = Failure::call(&CallError::AgentNotFound("a\"b\n".into()));
    let body: Value = serde_json::from_str(&render(&failure, "1", Dialect::JafDoc)).unwrap();
    assert_eq!(body["error"]["data"]["agentName"], "a\"b\n");
}

#[test]
fn a_timeout_says_that_the_end_of_the_answer_was_rejected() {
    let timeout = CallError::Timeout(Box::new(NoAnswer {
        after: Duration::from_secs(4),
        agent: "weather".into(),
        request: RequestState::Begun { parts: 2 },
        rejected: Some(Rejection::Duplicate),
    }));
    let message = Failure::call(&timeout).message().to_string();
    assert!(
        message.contains("after part 2; an answer came but was rejected: "),
        "{message}"
    );
    assert!(message.contains("`sequence`"), "{message}");
}
