//! How often a call is tried.

use super::*;
use crate::environment::HttpError;
use crate::testing::{answer, json, no_response};

const GET_X: &str = r#"{"method":"GET","url":"https://api.example.com/x"}"#;
const POST_X: &str = r#"{"method":"POST","url":"https://api.example.com/x","body":1}"#;

fn milliseconds(harness: &Harness) -> Vec<u128> {
    harness
        .clock
        .slept()
        .iter()
        .map(Duration::as_millis)
        .collect()
}

#[tokio::test]
async fn a_call_is_retried_until_it_succeeds() {
    let harness = Harness::new([json(500, "1"), json(408, "1"), json(200, "[1]")]);
    let called = harness.call(GET_X).await;
    assert_eq!(called.result.unwrap().to_string(), "[1]");
    assert_eq!(called.attempts, 3);
    assert_eq!(milliseconds(&harness), [1_000, 2_000]);
    let retries = harness.retries.lock().unwrap().clone();
    assert_eq!(
        retries,
        [(1, Duration::from_secs(1)), (2, Duration::from_secs(2))]
    );
}

#[tokio::test]
async fn three_retries_are_made_with_growing_delays() {
    for (response, code) in [
        (json(503, "1"), "http_status"),
        (json(500, "1"), "http_status"),
        (json(429, "1"), "http_status"),
        (no_response(HttpError::Connect), "connection_failed"),
        (no_response(HttpError::Broken), "connection_failed"),
        (no_response(HttpError::Timeout), "operation_timeout"),
    ] {
        let mut harness = Harness::new([response]);
        harness.environment.random = Arc::new(FixedBits(u128::MAX));
        let called = harness.call(GET_X).await;
        assert_eq!(failed(&called).1, code);
        assert_eq!((called.attempts, harness.requests().len()), (4, 4));
        assert_eq!(detail(&called, "attempts"), Some(4_i64.into()));
        assert_eq!(milliseconds(&harness), [1_100, 2_200, 4_400]);
    }
}

#[tokio::test]
async fn the_number_of_retries_is_configurable() {
    for max_retries in [0, 1, 5] {
        let mut harness = Harness::new([json(503, "1")]);
        harness.max_retries = max_retries;
        let called = harness.call(GET_X).await;
        assert_eq!(failed(&called).1, "http_status");
        assert_eq!(called.attempts, max_retries + 1);
    }
}

#[tokio::test]
async fn permanent_failures_are_not_retried() {
    for response in [
        json(400, "1"),
        json(404, "1"),
        json(301, "1"),
        json(200, "{"),
        no_response(HttpError::TooLarge),
        no_response(HttpError::Forbidden),
    ] {
        let harness = Harness::new([response]);
        assert_eq!(harness.call(GET_X).await.attempts, 1);
        assert!(harness.clock.slept().is_empty());
    }
}

#[tokio::test]
async fn a_post_is_retried_only_if_it_has_not_acted_or_is_idempotent() {
    let keyed = r#"{"method":"POST","url":"https://api.example.com/x","body":1,
        "headers":{"idempotency-KEY":"{/workflow/key}"}}"#;
    for (response, plain) in [
        (json(500, "1"), 1),
        (json(502, "1"), 1),
        (no_response(HttpError::Timeout), 1),
        (no_response(HttpError::Broken), 1),
        (no_response(HttpError::Connect), 4),
        (json(408, "1"), 4),
        (json(429, "1"), 4),
        (json(503, "1"), 4),
    ] {
        let harness = || Harness::new([response.clone()]).input(r#"{"key":"k1"}"#);
        assert_eq!(harness().call(POST_X).await.attempts, plain);
        assert_eq!(harness().call(keyed).await.attempts, 4);
        let no_key = harness().input(r#"{"key":" "}"#).call(keyed).await;
        assert_eq!(no_key.attempts, plain, "a key of nothing is none");
        let mut always = harness();
        always.retry_unsafe = RetryUnsafe::Always;
        assert_eq!(always.call(POST_X).await.attempts, 4);
    }
}

#[tokio::test]
async fn retry_after_sets_the_delay() {
    let harness_with = |after: &str| {
        let first = answer(503, &[("retry-after", after)], "");
        Harness::new([first, json(200, "1")])
    };
    let harness = harness_with("7");
    assert!(harness.call(GET_X).await.result.is_ok());
    assert_eq!(milliseconds(&harness), [7_000]);

    // The clock of the test starts at this time.
    let harness = harness_with("Fri, 15 Jan 2027 08:00:20 GMT");
    assert!(harness.call(GET_X).await.result.is_ok());
    assert_eq!(milliseconds(&harness), [20_000]);

    let harness = harness_with("61");
    let called = harness.call(GET_X).await;
    assert_eq!(failed(&called).1, "http_status");
    assert_eq!(called.attempts, 1);
    assert!(milliseconds(&harness).is_empty());
}

#[tokio::test]
async fn a_retry_after_beyond_the_deadline_is_reported() {
    let failure_of = async |milliseconds, after: &str, responses: usize| {
        let busy = answer(503, &[("retry-after", after)], "");
        let mut harness = Harness::new(std::iter::repeat_n(busy, responses));
        harness.deadline = Duration::from_millis(milliseconds);
        let called = harness.call(GET_X).await;
        let retry_after = detail(&called, "retry_after");
        let failure = called.result.unwrap_err();
        let suggestions = failure.to_value().get("suggestions").cloned();
        let hint = suggestions.unwrap().to_string();
        (
            failure.message,
            retry_after,
            hint.contains("retry_after seconds"),
        )
    };
    let plain = "the service answered with status 503";
    for (milliseconds, after, retry_after, why) in [
        (100_000, "61", 61, "a retry waits 60 s at most"),
        (
            100_000,
            "99999999999999999999999",
            u32::MAX,
            "a retry waits 60 s at most",
        ),
        (29_000, "30", 30, "the execution has no time for that"),
        (30_000, "30", 30, "the execution has no time for that"),
        (
            20_000,
            "Fri, 15 Jan 2027 08:00:30 GMT",
            30,
            "the execution has no time for that",
        ),
    ] {
        let message = format!("{plain} and asked to wait {retry_after} s; {why}");
        let retry_after = Some(Json::from(i64::from(retry_after)));
        assert_eq!(
            failure_of(milliseconds, after, 1).await,
            (message, retry_after, true),
            "{after} in {milliseconds} ms"
        );
    }
    // These do not end because of the service's `Retry-After`.
    for (milliseconds, after) in [(900, "1"), (900, "soon"), (100_000, "1")] {
        assert_eq!(
            failure_of(milliseconds, after, 4).await,
            (plain.to_owned(), None, false),
            "{after} in {milliseconds} ms"
        );
    }
}

#[tokio::test]
async fn every_attempt_counts_against_the_quota() {
    let harness = Harness::new([json(503, "1")]);
    // 30 attempts a minute are seven calls with four attempts, and two more attempts.
    let mut attempts = 0;
    let last = loop {
        let called = harness.call(GET_X).await;
        attempts += called.attempts;
        if failed(&called).1 == "rate_limited" {
            break called;
        }
        harness.clock.advance(Duration::from_millis(1));
    };
    assert_eq!((attempts, harness.requests().len()), (30, 30));
    assert_eq!(last.attempts, 2);
    assert_eq!(failed(&last).0, "ExecutionError");
    assert_eq!(detail(&last, "limit"), Some(30_i64.into()));
    assert_eq!(detail(&last, "window"), Some("minute".into()));
    let wait = detail(&last, "retry_after")
        .unwrap()
        .as_number()
        .unwrap()
        .as_f64();
    harness
        .clock
        .advance(Duration::from_millis(wait as u64 * 1_000));
    assert_eq!(failed(&harness.call(GET_X).await).1, "http_status");
}

#[tokio::test]
async fn the_quota_of_an_hour_holds_over_the_hour() {
    let mut harness = Harness::new([json(404, "1")]);
    harness.deadline = Duration::MAX;
    let mut sent = 0;
    for minute in 0..60 {
        for _ in 0..25 {
            let called = harness.call(GET_X).await;
            if failed(&called).1 == "rate_limited" {
                assert_eq!(called.attempts, 0);
                assert_eq!(detail(&called, "limit"), Some(500_i64.into()));
                assert_eq!(detail(&called, "window"), Some("hour".into()));
                let wait = Json::from(60 * (60_i64 - minute));
                assert_eq!(detail(&called, "retry_after"), Some(wait));
            } else {
                sent += 1;
            }
        }
        harness.clock.advance(Duration::from_secs(60));
    }
    assert_eq!(sent, 500);
    assert_eq!(failed(&harness.call(GET_X).await).1, "http_status");
}

#[tokio::test]
async fn each_agent_has_its_own_quota() {
    let harness = Harness::new([json(404, "1")]);
    for _ in 0..30 {
        harness.call(GET_X).await;
    }
    assert_eq!(failed(&harness.call(GET_X).await).1, "rate_limited");
    let other = agent("other", &[API], []);
    let called = harness.call_as(&other, GET_X).await;
    assert_eq!(failed(&called).1, "http_status");
}
