//! Deadlines: the end of the execution interrupts calls.

use super::*;
use crate::testing::{answer, json};

const GET_X: &str = r#"{"method":"GET","url":"https://api.example.com/x"}"#;

fn within(milliseconds: u64, turns: impl IntoIterator<Item = ScriptedResponse>) -> World {
    let mut world = World::new(turns);
    world.deadline = Duration::from_millis(milliseconds);
    world
}

fn slow(milliseconds: u64, turn: ScriptedResponse) -> ScriptedResponse {
    ScriptedResponse {
        takes: Duration::from_millis(milliseconds),
        ..turn
    }
}

#[tokio::test]
async fn an_attempt_has_its_timeout_cut_to_what_is_left() {
    let world = within(100_000, [json(404, "")]);
    world.call(GET_X).await;
    world
        .call(r#"{"method":"GET","url":"https://api.example.com/x","timeout":300000}"#)
        .await;
    world.clock.advance(Duration::from_millis(95_500));
    world.call(GET_X).await;
    let timeouts: Vec<_> = world
        .requests()
        .iter()
        .map(|r| r.timeout.as_millis())
        .collect();
    assert_eq!(timeouts, [30_000, 100_000, 4_500]);
}

#[tokio::test]
async fn a_late_answer_is_a_timeout() {
    let world = within(1_000_000, [slow(40_000, json(200, "1"))]);
    let called = world.call(GET_X).await;
    assert_eq!(failed(&called), ("TimeoutError", "operation_timeout"));
    assert_eq!(detail(&called, "timeout"), Some(30_000_i64.into()));
    assert_eq!(called.attempts, 4);

    let world = within(20_000, [slow(40_000, json(200, "1"))]);
    let called = world.call(GET_X).await;
    assert_eq!(failed(&called), ("TimeoutError", "operation_timeout"));
    assert_eq!(called.attempts, 1, "nothing is left for another");
    assert_eq!(world.clock.elapsed(), Duration::from_millis(20_000));
}

#[tokio::test]
async fn a_late_answer_is_told_from_the_end_of_the_execution() {
    let told = async |milliseconds| {
        let called = within(milliseconds, [slow(400_000, json(200, "1"))])
            .call(GET_X)
            .await;
        let failure = called.result.unwrap_err();
        let suggestions = failure.to_value().get("suggestions").cloned();
        (failure.message, suggestions.unwrap().to_string())
    };
    let (message, suggestions) = told(1_000_000).await;
    assert_eq!(message, "no response from api.example.com within 30000 ms");
    assert!(suggestions.contains("a longer timeout"), "{suggestions}");
    for milliseconds in [20_000, 30_000] {
        let (message, suggestions) = told(milliseconds).await;
        assert_eq!(
            message,
            format!(
                "no response from api.example.com within {milliseconds} ms, the remaining time of the execution"
            )
        );
        assert!(!suggestions.contains("timeout"), "{suggestions}");
        assert!(suggestions.contains("max_execution_time"), "{suggestions}");
    }
}

#[tokio::test]
async fn without_time_left_nothing_is_sent() {
    let world = within(5_000, [json(200, "1")]);
    world.clock.advance(Duration::from_millis(5_000));
    let called = world.call(GET_X).await;
    assert_eq!(failed(&called), ("TimeoutError", "execution_timeout"));
    assert_eq!(called.attempts, 0);
    assert!(world.requests().is_empty());
    let usage = world.quotas.usage("agent");
    assert_eq!(usage.minute, 0, "what is not sent is not counted");
}

#[tokio::test]
async fn a_wait_that_exceeds_what_is_left_is_not_begun() {
    for (milliseconds, attempts, slept) in [
        (900, 1, 0),
        (1_000, 1, 0),
        (1_001, 2, 1_000),
        (3_000, 2, 1_000),
        (3_500, 3, 3_000),
        (60_000, 4, 7_000),
    ] {
        let world = within(milliseconds, [json(500, "")]);
        let called = world.call(GET_X).await;
        assert_eq!(failed(&called), ("ExecutionError", "http_status"));
        assert_eq!(called.attempts, attempts, "{milliseconds} ms");
        let sum: Duration = world.clock.slept().iter().sum();
        assert_eq!(sum.as_millis(), slept, "{milliseconds} ms");
    }
    let asks = answer(503, &[("retry-after", "30")], "");
    let called = within(29_000, [asks]).call(GET_X).await;
    assert_eq!(called.attempts, 1);
}
