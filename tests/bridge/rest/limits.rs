//! How often agents may ask and call, over hours that pass on a virtual clock.

use std::sync::Arc;
use std::time::Duration;

use a2abus_executor::case::Recorded;
use a2abus_executor::{Clock as _, Environment, MemoryStore, Object, SystemRandom, VirtualClock};
use reqwest::{Method, Response, StatusCode};
use serde_json::json;

use super::harness::{
    BLOCKED_KEY, KEY, OTHER_KEY, TestBridge, answer, body, fetch, header, workflow,
};

async fn bridge(clock: &VirtualClock) -> TestBridge {
    let environment = Environment {
        clock: Arc::new(clock.clone()),
        random: Arc::new(SystemRandom::new().unwrap()),
        http: Arc::new(Recorded::new(&Object::default(), clock.clone())),
        store: Arc::new(MemoryStore::default()),
    };
    TestBridge::open_in(Some(environment)).await
}

fn seconds(clock: &VirtualClock) -> u64 {
    let since = clock.now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap().as_secs()
}

/// The values of the three headers.
fn standing(response: &Response) -> (u64, u64, u64) {
    let number = |name| header(response, name).parse().unwrap();
    (
        number("x-ratelimit-limit"),
        number("x-ratelimit-remaining"),
        number("x-ratelimit-reset"),
    )
}

#[tokio::test]
async fn every_window_counts_for_its_full_length() {
    let clock = VirtualClock::default();
    let bridge = bridge(&clock).await;
    // The limits of `other` are the defaults: 60 a minute, 1,000 an hour, 10,000 a day.
    let ask = || {
        let request = bridge.bare(Method::GET, "/api/v1/rate-limit/status");
        answer(request.bearer_auth(OTHER_KEY))
    };
    let start = seconds(&clock);
    for n in 0..60 {
        let response = ask().await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(standing(&response), (60, 59 - n, start + 60));
    }
    clock.advance(Duration::from_secs(45));
    let refused = ask().await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(standing(&refused), (60, 0, start + 60));
    assert_eq!(header(&refused, "retry-after"), "15");
    assert_eq!(
        body(refused).await,
        json!({"error": "Rate limit exceeded", "message": "Rate limit exceeded: 60 requests per minute", "retry_after": 15})
    );
    clock.advance(Duration::from_secs(15));
    // 60 are counted; refused ones are not.
    for _ in 0..15 {
        for _ in 0..60 {
            assert_eq!(ask().await.status(), StatusCode::OK);
        }
        clock.advance(Duration::from_secs(60));
    }
    for _ in 0..40 {
        assert_eq!(ask().await.status(), StatusCode::OK);
    }
    let refused = ask().await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    // The first one was 16 minutes ago.
    let left = 44 * 60;
    assert_eq!(standing(&refused), (1000, 0, seconds(&clock) + left));
    assert_eq!(header(&refused, "retry-after"), left.to_string());
    let message = "Rate limit exceeded: 1000 requests per hour";
    assert_eq!(body(refused).await["message"], message);
    clock.advance(Duration::from_secs(left));
    assert_eq!(ask().await.status(), StatusCode::OK);
    let scraped = bridge.scraped();
    let line = "a2abus_workflow_refused_total{reason=\"rate_limited\"} 2";
    assert!(scraped.contains(line), "{scraped}");
}

#[tokio::test]
async fn an_agent_sees_its_own_usage() {
    let clock = VirtualClock::default();
    let bridge = bridge(&clock).await;
    let call = json!({"ApiCall": {"method": "POST", "url": format!("{}/users", bridge.service.base), "outputPath": "/workflow/x", "headers": {"Idempotency-Key": "k"}}});
    // There is no answer: four attempts, and each counts.
    bridge.run(&workflow("used-1", &[("a", call)])).await;
    let (_, status) = fetch(bridge.get("/api/v1/rate-limit/status")).await;
    assert_eq!(
        status,
        json!({
            "agent_id": "reporter",
            "limits": {"requests_per_minute": 1000, "requests_per_hour": 10000, "requests_per_day": 10000, "api_calls_per_minute": 30, "api_calls_per_hour": 500},
            "usage": {"requests_last_minute": 2, "requests_last_hour": 2, "requests_last_day": 2, "api_calls_last_minute": 4, "api_calls_last_hour": 4},
            "remaining": {"requests_per_minute": 998, "requests_per_hour": 9998, "requests_per_day": 9998, "api_calls_per_minute": 26, "api_calls_per_hour": 496},
        })
    );
    clock.advance(Duration::from_secs(3_000));
    let (_, status) = fetch(bridge.get("/api/v1/rate-limit/status")).await;
    assert_eq!(status["usage"]["requests_last_minute"], 1);
    assert_eq!(status["usage"]["requests_last_hour"], 3);
    assert_eq!(status["usage"]["api_calls_last_minute"], 0);
    assert_eq!(status["usage"]["api_calls_last_hour"], 4);
}

#[tokio::test]
async fn clients_without_a_key_are_limited_by_address() {
    let clock = VirtualClock::default();
    let bridge = bridge(&clock).await;
    for n in 0..60 {
        let mut request = bridge.bare(Method::GET, "/api/v1/capabilities");
        if n % 2 == 0 {
            request = request.bearer_auth(format!("guess-{n}"));
        }
        let response = answer(request).await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(standing(&response).1, 59 - n);
    }
    let guess = bridge
        .bare(Method::GET, "/api/v1/capabilities")
        .bearer_auth("guess");
    assert_eq!(answer(guess).await.status(), StatusCode::TOO_MANY_REQUESTS);
    let bare = bridge.bare(Method::GET, "/api/v1/openapi.json");
    assert_eq!(answer(bare).await.status(), StatusCode::TOO_MANY_REQUESTS);
    let known = bridge
        .bare(Method::GET, "/api/v1/capabilities")
        .bearer_auth(KEY);
    assert_eq!(answer(known).await.status(), StatusCode::OK);
    for _ in 0..100 {
        let health = answer(bridge.bare(Method::GET, "/health")).await;
        assert_eq!(health.status(), StatusCode::OK);
        assert_eq!(header(&health, "x-ratelimit-limit"), "");
    }
    clock.advance(Duration::from_secs(60));
    let bare = bridge.bare(Method::GET, "/api/v1/openapi.json");
    assert_eq!(answer(bare).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn an_agent_without_requests_has_none() {
    let bridge = bridge(&VirtualClock::default()).await;
    let request = bridge
        .bare(Method::GET, "/api/v1/capabilities")
        .bearer_auth(BLOCKED_KEY);
    let response = answer(request).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(standing(&response).0, 0);
    assert_eq!(header(&response, "retry-after"), "60");
}
