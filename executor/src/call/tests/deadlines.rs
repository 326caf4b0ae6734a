//! Deadlines: the end of the execution interrupts calls.

use super::*;
use crate::testing::{answer, json};

const GET_X: &str = r#"{"method":"GET","url":"https://api.example.com/x"}"#;

fn within(milliseconds: u64, responses: impl IntoIterator<Item = ScriptedResponse>) -> Harness {
    let mut harness = Harness::new(responses);
    harness.deadline = Duration::from_millis(milliseconds);
    harness
}

fn slow(milliseconds: u64, response: ScriptedResponse) -> ScriptedResponse {
    ScriptedResponse {
        takes: Duration::from_millis(milliseconds),
        ..response
    }
}

#[tokio::test]
async fn the_timeout_of_an_attempt_is_capped_by_the_remaining_time() {
    let harness = within(100_000, [json(404, "")]);
    harness.call(GET_X).await;
    harness
        .call(r#"{"method":"GET","url":"https://api.example.com/x","timeout":300000}"#)
        .await;
    harness.clock.advance(Duration::from_millis(95_500));
    harness.call(GET_X).await;
    let timeouts: Vec<_> = harness
        .requests()
        .iter()
        .map(|r| r.timeout.as_millis())
        .collect();
    assert_eq!(timeouts, [30_000, 100_000, 4_500]);
}

#[tokio::test]
async fn a_late_response_is_a_timeout() {
    let harness = within(1_000_000, [slow(40_000, json(200, "1"))]);
    let called = harness.call(GET_X).await;
    assert_eq!(failed(&called), ("TimeoutError", "operation_timeout"));
    assert_eq!(detail(&called, "timeout"), Some(30_000_i64.into()));
    assert_eq!(called.attempts, 4);

    let harness = within(20_000, [slow(40_000, json(200, "1"))]);
    let called = harness.call(GET_X).await;
    assert_eq!(failed(&called), ("TimeoutError", "operation_timeout"));
    assert_eq!(called.attempts, 1, "nothing is left for another");
    assert_eq!(harness.clock.elapsed(), Duration::from_millis(20_000));
}

#[tokio::test]
async fn a_call_timeout_is_distinguished_from_the_execution_deadline() {
    let failure_of = async |milliseconds| {
        let called = within(milliseconds, [slow(400_000, json(200, "1"))])
            .call(GET_X)
            .await;
        let failure = called.result.unwrap_err();
        let suggestions = failure.to_value().get("suggestions").cloned();
        (failure.message, suggestions.unwrap().to_string())
    };
    let (message, suggestions) = failure_of(1_000_000).await;
    assert_eq!(message, "no response from api.example.com within 30000 ms");
    assert!(suggestions.contains("a longer timeout"), "{suggestions}");
    for milliseconds in [20_000, 30_000] {
        let (message, suggestions) = failure_of(milliseconds).await;
        assert_eq!(
            message,
            format!(
                "no response from api.example.com within {milliseconds} ms, the remaining time of the execution"
            )
        );
        assert!(!suggestions.contains("timeout"), "{suggestions}");
        for limit in ["max_execution_time", "expirytime"] {
            assert!(suggestions.contains(limit), "{suggestions}");
        }
    }
}

#[tokio::test]
async fn without_time_left_nothing_is_sent() {
    let harness = within(5_000, [json(200, "1")]);
    harness.clock.advance(Duration::from_millis(5_000));
    let called = harness.call(GET_X).await;
    assert_eq!(failed(&called), ("TimeoutError", "execution_timeout"));
    assert_eq!(called.attempts, 0);
    assert!(harness.requests().is_empty());
    let usage = harness.quotas.usage("agent");
    assert_eq!(usage.minute, 0, "what is not sent is not counted");
}

#[tokio::test]
async fn a_wait_longer_than_the_remaining_time_does_not_start() {
    for (milliseconds, attempts, slept) in [
        (900, 1, 0),
        (1_000, 1, 0),
        (1_001, 2, 1_000),
        (3_000, 2, 1_000),
        (3_500, 3, 3_000),
        (60_000, 4, 7_000),
    ] {
        let harness = within(milliseconds, [json(500, "")]);
        let called = harness.call(GET_X).await;
        assert_eq!(failed(&called), ("ExecutionError", "http_status"));
        assert_eq!(called.attempts, attempts, "{milliseconds} ms");
        let sum: Duration = harness.clock.slept().iter().sum();
        assert_eq!(sum.as_millis(), slept, "{milliseconds} ms");
    }
    let busy = answer(503, &[("retry-after", "30")], "");
    let called = within(29_000, [busy]).call(GET_X).await;
    assert_eq!(called.attempts, 1);
}
