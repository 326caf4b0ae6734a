//! Requests with an `Idempotency-Key`, and the limits per client and per context.

use a2abus_transports::{TopicFilter, TransportErrorKind};
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::http::{Front, SOON, request};

const STREAM: &str = "text/event-stream";

fn call(method: &str, parameters: Value) -> String {
    let mut parameters = parameters;
    parameters["_agentId"] = json!("weather");
    request("1.0", method, parameters)
}

async fn send(front: &Front, key: &str, body: &str) -> Response {
    let sent = front.to("/rpc", body).header("idempotency-key", key).send();
    sent.await.unwrap()
}

/// The answer as it was sent, and whether it is one of an earlier request.
async fn answer(front: &Front, key: &str, body: &str) -> (String, bool) {
    let response = send(front, key, body).await;
    assert_eq!(response.status(), StatusCode::OK);
    let is_replay = response.headers().contains_key("idempotent-replay");
    (response.text().await.unwrap(), is_replay)
}

/// The status and the error of a request that is refused.
async fn refused(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let body: Value = response.json().await.unwrap();
    (status, body["error"]["data"].clone())
}

/// As [`refused`], for a request that is refused because of its key: the error has its id.
async fn refused_for_its_key(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    assert!(text.contains(r#""id":1.0,"#), "{text}");
    let body: Value = serde_json::from_str(&text).unwrap();
    (status, body["error"]["data"].clone())
}

/// How many requests the agent has seen, once it has seen one more.
async fn nothing_else_was_seen(front: &mut Front) {
    front
        .to("/rpc/last", request("9", "echo", json!({})))
        .send()
        .await
        .unwrap();
    assert_eq!(front.next_request().await["topic"], "agents.last");
}

#[tokio::test]
async fn the_same_request_gets_the_same_answer_and_the_agent_runs_once() {
    let mut front = Front::open().await;
    for (key, method, parameters) in [
        ("one", "echo", json!({})),
        ("two", "message/stream", json!({})),
        ("three", "parts", json!({ "pretty": true })),
    ] {
        let body = call(method, parameters);
        let (first, is_replay) = answer(&front, key, &body).await;
        assert!(!is_replay && first.contains("1.0"), "{first}");
        front.next_request().await;
        for quoted in [key.to_owned(), format!("\"{key}\"")] {
            let (again, is_replay) = answer(&front, &quoted, &body).await;
            assert!(is_replay);
            assert_eq!(again, first, "{method}");
        }
    }
    nothing_else_was_seen(&mut front).await;
}

#[tokio::test]
async fn a_replay_has_the_headers_of_the_first_answer() {
    let front = Front::open().await;
    let body = call("message/stream", json!({}));
    let first = send(&front, "k", &body).await;
    let headers = first.headers().clone();
    first.text().await.unwrap();
    let again = send(&front, "k", &body).await;
    assert_eq!(again.headers()["content-type"], STREAM);
    for name in ["content-type", "cache-control", "x-a2abus-call-id"] {
        assert_eq!(again.headers()[name], headers[name], "{name}");
    }
}

#[tokio::test]
async fn a_stream_is_replayed_only_to_a_client_that_accepts_it() {
    let mut front = Front::open().await;
    let body = call("message/stream", json!({}));
    let (first, _) = answer(&front, "k", &body).await;
    front.next_request().await;
    let sent = front
        .to("/rpc", body.as_str())
        .header("idempotency-key", "k");
    let sent = sent.header("accept", "application/json").send().await;
    let (status, data) = refused_for_its_key(sent.unwrap()).await;
    assert_eq!(
        (status, data["reason"].as_str()),
        (406, Some("content_type"))
    );
    let (again, is_replay) = answer(&front, "k", &body).await;
    assert!(is_replay);
    assert_eq!(again, first);
    nothing_else_was_seen(&mut front).await;
}

#[tokio::test]
async fn another_request_with_the_same_key_is_refused() {
    let mut front = Front::open().await;
    answer(&front, "k", &call("echo", json!({}))).await;
    front.next_request().await;
    for (path, body) in [
        ("/rpc", call("echo", json!({ "other": 1 }))),
        ("/rpc/weather", call("echo", json!({}))),
    ] {
        let sent = front.to(path, body).header("idempotency-key", "k").send();
        let (status, data) = refused_for_its_key(sent.await.unwrap()).await;
        assert_eq!(status, 422);
        assert_eq!(data["reason"], "idempotency_key_reused");
        assert_eq!(data["callId"].as_str().map(str::len), Some(26));
    }
    nothing_else_was_seen(&mut front).await;
    let metrics = front.admin("/metrics").await;
    assert!(
        metrics.contains(r#"a2abus_keyed_requests_total{outcome="differs"} 2"#),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_request_that_is_still_answered_is_waited_for() {
    let mut front = Front::open().await;
    let body = call("echo", json!({ "ms": 300 }));
    let sent = (0..8).map(|_| answer(&front, "k", &body));
    let answers = futures_util::future::join_all(sent).await;
    for (answer, _) in &answers {
        assert_eq!(*answer, answers[0].0);
    }
    assert_eq!(
        answers.iter().filter(|(_, is_replay)| !is_replay).count(),
        1
    );
    front.next_request().await;
    nothing_else_was_seen(&mut front).await;
}

#[tokio::test]
async fn a_wait_for_another_answer_ends_with_the_call_id() {
    let mut front = Front::open().await;
    let body = call("hang", json!({}));
    let first = send(&front, "k", &body);
    let second = async {
        front_seen(&front).await;
        let sent = front
            .to("/rpc", body.as_str())
            .header("idempotency-key", "k");
        let response = sent.header("x-a2a-timeout", "50").send().await.unwrap();
        assert!(response.headers().contains_key("retry-after"));
        refused_for_its_key(response).await
    };
    tokio::select! {
        _ = first => panic!("the agent does not answer"),
        (status, data) = second => {
            assert_eq!(status, 409);
            assert_eq!(data["reason"], "in_progress");
            assert_eq!(data["callId"].as_str().map(str::len), Some(26));
        }
    }
    front.next_request().await;
}

/// Waits until the bridge has accepted a request with a key.
async fn front_seen(front: &Front) {
    let start = tokio::time::Instant::now();
    while !front
        .admin("/metrics")
        .await
        .contains(r#"a2abus_keyed_requests_total{outcome="first"} 1"#)
    {
        assert!(start.elapsed() < SOON);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_caller_that_leaves_gets_its_answer_when_it_comes_back() {
    let mut front = Front::open().await;
    let body = call("echo", json!({ "ms": 200 }));
    let left = tokio::spawn(
        front
            .to("/rpc", body.as_str())
            .header("idempotency-key", "k")
            .send(),
    );
    front.next_request().await;
    left.abort();
    drop(left.await);
    let (answer, _) = timeout(SOON, answer(&front, "k", &body)).await.unwrap();
    assert!(answer.contains("agents.weather"));
    nothing_else_was_seen(&mut front).await;
}

#[tokio::test]
async fn an_answer_after_the_timeout_is_for_the_repeated_request() {
    let mut front = Front::open().await;
    let body = call("echo", json!({ "ms": 3_000 }));
    let sent = front
        .to("/rpc", body.as_str())
        .header("idempotency-key", "k")
        .header("x-a2a-timeout", "500");
    let response = sent.send().await.unwrap();
    let call = response.headers()["x-a2abus-call-id"].clone();
    let error: Value = response.json().await.unwrap();
    let data = &error["error"]["data"];
    assert_eq!(
        (&data["reason"], &data["timeoutMs"]),
        (&json!("timeout"), &json!(500)),
        "{error}"
    );
    let metrics = front.admin("/metrics").await;
    assert!(metrics.contains(r#"a2abus_keyed_requests_total{outcome="timeout"} 1"#));
    for is_replay in [false, true] {
        let response = timeout(SOON, send(&front, "k", &body)).await.unwrap();
        assert_eq!(response.headers()["x-a2abus-call-id"], call, "{is_replay}");
        assert!(response.text().await.unwrap().contains("agents.weather"));
    }
    front.next_request().await;
    nothing_else_was_seen(&mut front).await;
}

#[tokio::test]
async fn a_request_that_no_agent_received_is_executed_when_it_is_sent_again() {
    let front = Front::open().await;
    // No agent is named, so the request goes nowhere.
    let body = request("1", "echo", json!({}));
    for _ in 0..2 {
        let (answer, is_replay) = answer(&front, "k", &body).await;
        assert!(answer.contains("agent_not_found"), "{answer}");
        assert!(!is_replay);
    }
}

#[tokio::test]
async fn an_invalid_key_is_refused() {
    let front = Front::open().await;
    let body = call("echo", json!({}));
    let sent = front.to("/rpc", body).header("idempotency-key", "").send();
    let (status, data) = refused_for_its_key(sent.await.unwrap()).await;
    assert_eq!(
        (status, data["reason"].as_str()),
        (400, Some("invalid_params"))
    );
}

/// A bridge with one agent, whose clients may send two requests at a time and have one task in a context.
async fn limited() -> Front {
    let config = crate::a2a::CONFIG.replace(
        "calls:",
        "a2a: { max_requests_per_client: 2, max_tasks_per_context: 1, default_agent: weather }\ncalls:",
    );
    Front::open_with(&config).await
}

fn stream_in(context: &str) -> String {
    let part = json!({ "kind": "text", "text": "hello" });
    let message = json!({
        "kind": "message", "role": "user", "messageId": "m", "contextId": context, "parts": [part],
    });
    request(
        "1",
        "message/stream",
        json!({ "message": message, "hang": true }),
    )
}

#[tokio::test]
async fn concurrent_requests_of_a_client_are_limited() {
    let front = limited().await;
    let open = async |context: &str| {
        let sent = front
            .to("/a2a", stream_in(context))
            .header("content-type", "application/json");
        sent.send().await.unwrap()
    };
    let first = open("a").await;
    assert_eq!(first.headers()["content-type"], STREAM);
    assert_eq!(first.headers()["x-ratelimit-limit"], "2");
    assert_eq!(first.headers()["x-ratelimit-remaining"], "1");
    let second = open("b").await;
    assert_eq!(second.headers()["x-ratelimit-remaining"], "0");
    let third = open("c").await;
    assert!(third.headers().contains_key("retry-after"));
    assert_eq!(third.headers()["x-ratelimit-remaining"], "0");
    let (status, data) = refused(third).await;
    assert_eq!(
        (status, data["reason"].as_str()),
        (429, Some("rate_limited"))
    );
    // A stream frees its share when its client disconnects.
    drop((first, second));
    timeout(SOON, async {
        while open("d").await.status() != StatusCode::OK {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    let metrics = front.admin("/metrics").await;
    assert!(
        metrics.contains(r#"a2abus_limited_requests_total{limit="client"}"#),
        "{metrics}"
    );
}

#[tokio::test]
async fn concurrent_tasks_of_a_context_are_limited() {
    let front = limited().await;
    let open = async |context: &str| {
        let sent = front
            .to("/a2a", stream_in(context))
            .header("content-type", "application/json");
        sent.send().await.unwrap()
    };
    let first = open("a").await;
    assert_eq!(first.headers()["content-type"], STREAM);
    let (status, data) = refused(open("a").await).await;
    assert_eq!(
        (status, data["reason"].as_str()),
        (429, Some("rate_limited"))
    );
    assert_eq!(open("b").await.headers()["content-type"], STREAM);
}

#[tokio::test]
async fn waiting_and_simultaneous_requests_count_as_well() {
    let front = limited().await;
    let stream = stream_in("a");
    let sent = front.to("/a2a", stream.as_str());
    let first = sent.header("idempotency-key", "k").send().await.unwrap();
    assert_eq!(first.headers()["content-type"], STREAM);
    // A batch is as many requests as it has.
    let get = request("1", "tasks/get", json!({ "id": "none" }));
    let batch = |size: usize| format!("[{}]", vec![get.as_str(); size].join(","));
    let sent = front.to("/a2a", batch(2)).send().await.unwrap();
    assert_eq!(sent.status(), 429);
    assert_eq!(
        front.to("/a2a", batch(1)).send().await.unwrap().status(),
        200
    );
    // So does a request that waits for another one with its key, and a wait for a task.
    let sent = front.to("/a2a", stream.as_str());
    let waiting = tokio::spawn(sent.header("idempotency-key", "k").send());
    let wait = format!("{}/a2a/tasks/none/wait", front.base);
    let status = async || reqwest::get(&wait).await.unwrap().status();
    timeout(SOON, async {
        while status().await != StatusCode::TOO_MANY_REQUESTS {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    waiting.abort();
    let metrics = front.admin("/metrics").await;
    assert!(
        metrics.contains(r#"path="/a2a/tasks",status="429""#),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_wait_for_another_answer_is_as_long_as_the_timeout_in_the_message() {
    let mut front = Front::open().await;
    let waits = json!({ "ms": 60_000, "configuration": { "timeout": 300 } });
    let body = call("message/send", waits);
    // Much longer: the header is not a part of the request.
    let first = front
        .to("/rpc", body.as_str())
        .header("idempotency-key", "k")
        .header("x-a2a-timeout", "8000")
        .send();
    let second = async {
        front_seen(&front).await;
        refused_for_its_key(send(&front, "k", &body).await).await
    };
    tokio::select! {
        _ = first => panic!("the second request waits for the answer to the first"),
        (status, data) = second => {
            assert_eq!((status, data["reason"].as_str()), (409, Some("in_progress")));
        }
    }
    front.next_request().await;
}

/// A bridge that publishes each message twice.
const TWICE: &str = r#"
instance: test
transports:
  local: { type: memory }
default_route:
  - { transport: local, topic: "agents.{targetagent}" }
  - { transport: local, topic: "copies.{targetagent}" }
http: { listen: "127.0.0.1:0", drain_grace: 5s }
admin: { listen: "127.0.0.1:0" }
"#;

#[tokio::test]
async fn a_notification_that_has_arrived_at_one_destination_is_not_published_again() {
    let mut front = Front::open_with(TWICE).await;
    let refused = Some(TransportErrorKind::Unauthorised);
    let copies = TopicFilter::new("copies.weather").unwrap();
    front.memory.set_refused(copies, refused);
    let notification = r#"{"jsonrpc":"2.0","method":"note","params":{"_agentId":"weather"}}"#;
    for is_replay in [false, true] {
        let response = send(&front, "k", notification).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        let headers = response.headers();
        assert_eq!(headers.contains_key("idempotent-replay"), is_replay);
    }
    assert_eq!(front.next_request().await["topic"], "agents.weather");
    nothing_else_was_seen(&mut front).await;
}
