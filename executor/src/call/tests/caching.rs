//! Which responses are reused.

use super::*;
use crate::testing::{answer, json};

const GET_X: &str = r#"{"method":"GET","url":"https://api.example.com/x"}"#;

#[tokio::test]
async fn a_repeated_get_is_served_from_the_cache_without_quota() {
    let harness = Harness::new([json(200, r#"{"v":1}"#), json(200, r#"{"v":2}"#)]);
    let first = harness.call(GET_X).await;
    let second = harness.call(GET_X).await;
    assert_eq!((first.cached, first.attempts), (false, 1));
    assert_eq!((second.cached, second.attempts), (true, 0));
    assert_eq!(second.result.unwrap(), first.result.unwrap());
    assert_eq!(harness.requests().len(), 1);
    assert_eq!(harness.quotas.usage("agent").minute, 1);
    harness.clock.advance(Duration::from_secs(300));
    let third = harness.call(GET_X).await;
    assert_eq!(third.result.unwrap().to_string(), r#"{"v":2}"#);
}

#[tokio::test]
async fn null_is_cached() {
    let harness = Harness::new([answer(204, &[], "")]);
    harness.call(GET_X).await;
    let called = harness.call(GET_X).await;
    assert!(called.cached);
    assert_eq!(called.result.unwrap(), Json::Null);
}

#[tokio::test]
async fn different_requests_have_different_cache_entries() {
    let harness = Harness::new([json(200, "1")]).input(r#"{"a":1,"b":2}"#);
    let configs = [
        get("https://api.example.com/x"),
        get("https://api.example.com/x?q=1"),
        get("https://api.example.com/x?q={/workflow/b}"),
        r#"{"method":"GET","url":"https://api.example.com/x","headers":{"A":"1"}}"#.into(),
        r#"{"method":"GET","url":"https://api.example.com/x","headers":{"A":"2"}}"#.into(),
        r#"{"method":"GET","url":"https://api.example.com/x","headers":{"B":"2"}}"#.into(),
    ];
    for config in &configs {
        assert!(!harness.call(config).await.cached, "{config}");
    }
    for config in &configs {
        assert!(harness.call(config).await.cached, "{config}");
    }
    for same in [
        get("https://API.example.com:443/x"),
        get("https://api.example.com/x?q={/workflow/a}"),
        r#"{"method":"GET","url":"https://api.example.com/x","timeout":5000}"#.into(),
        r#"{"method":"GET","url":"https://api.example.com/x","headers":{"a":{"path":"/workflow/b"}}}"#.into(),
    ] {
        assert!(harness.call(&same).await.cached, "{same}");
    }
}

#[tokio::test]
async fn agents_do_not_share_responses() {
    let harness = Harness::new([json(200, "1")]);
    harness.call(GET_X).await;
    let other = agent("other", &[API], []);
    assert!(!harness.call_as(&other, GET_X).await.cached);
    assert_eq!(harness.requests().len(), 2);
}

#[tokio::test]
async fn an_agent_that_lost_its_permission_gets_nothing_from_the_cache() {
    let harness = Harness::new([json(200, "1")]);
    harness.call(GET_X).await;
    let without = agent("agent", &["https://other.example"], []);
    let called = harness.call_as(&without, GET_X).await;
    assert_eq!(failed(&called), ("PermissionError", "api_not_permitted"));
}

#[tokio::test]
async fn a_changed_secret_misses_the_cache() {
    let config = r#"{"method":"GET","url":"https://api.example.com/x",
        "headers":{"A":{"credentialRef":{"id":"c"}}}}"#;
    let harness = Harness::new([json(200, "1")]);
    let with = |secret: &str| {
        agent(
            "agent",
            &[API],
            [("c", credential(CredentialKind::ApiKey, secret, &[API]))],
        )
    };
    assert!(!harness.call_as(&with("first-secret"), config).await.cached);
    assert!(harness.call_as(&with("first-secret"), config).await.cached);
    assert!(!harness.call_as(&with("other-secret"), config).await.cached);
}

#[tokio::test]
async fn only_successful_get_responses_are_cached() {
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        let harness = Harness::new([json(200, "1")]);
        let config = format!(r#"{{"method":"{method}","url":"{API}/x"}}"#);
        for _ in 0..2 {
            assert!(!harness.call(&config).await.cached);
        }
        assert_eq!(harness.requests().len(), 2);
    }
    for response in [json(404, "1"), json(200, "{"), json(302, "")] {
        let harness = Harness::new([response]);
        for _ in 0..2 {
            assert!(harness.call(GET_X).await.result.is_err());
        }
        assert_eq!(harness.requests().len(), 2);
    }
}

#[tokio::test]
async fn no_store_is_respected_on_either_side() {
    let json_type = ("content-type", "application/json");
    for value in ["no-store", "private, No-Store", "max-age=0,no-store "] {
        let harness = Harness::new([answer(200, &[json_type, ("cache-control", value)], "1")]);
        for _ in 0..2 {
            assert!(!harness.call(GET_X).await.cached, "{value}");
        }
        let request = format!(
            r#"{{"method":"GET","url":"{API}/x","headers":{{"Cache-Control":"{value}"}}}}"#
        );
        let harness = Harness::new([json(200, "1")]);
        for _ in 0..2 {
            assert!(!harness.call(&request).await.cached, "{value}");
        }
    }
    for value in ["no-cache", "max-age=60", "x-no-store"] {
        let harness = Harness::new([answer(200, &[json_type, ("cache-control", value)], "1")]);
        harness.call(GET_X).await;
        assert!(harness.call(GET_X).await.cached, "{value}");
    }
}

#[tokio::test]
async fn a_change_evicts_cached_responses_from_its_origin() {
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        for (status, drops) in [(200, true), (204, true), (404, false), (500, false)] {
            let mut responses = vec![json(200, "1"), json(200, "2")];
            responses.extend((0..4).map(|_| json(status, "")));
            let mut harness = Harness::new(responses);
            harness.agent = agent("agent", &[API, "https://other.example"], []);
            let there = get("https://other.example/x");
            harness.call(GET_X).await;
            harness.call(&there).await;
            let change = format!(r#"{{"method":"{method}","url":"{API}/elsewhere"}}"#);
            harness.call(&change).await;
            assert!(harness.call(&there).await.cached, "{method} {status}");
            assert_eq!(
                harness.call(GET_X).await.cached,
                !drops,
                "{method} {status}"
            );
        }
    }
}
