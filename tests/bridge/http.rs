//! The HTTP listener, end to end: the memory transport behind it, and an agent that answers there.

use std::sync::Arc;
use std::time::Duration;

use a2abus_bridge::config::Config;
use a2abus_transports::memory::Memory;
use a2abus_transports::{
    Address, Consumer, Delivery, Message, Outcome, Reading, Subscription, TopicFilter,
    Transport as _, TransportErrorKind,
};
use futures_util::StreamExt as _;
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use support::running::Running;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{Barrier, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::set_up::{build, group};

/// Longer than anything here takes, also on a slow machine that stalls, so that a test that hangs fails.
pub(crate) const SOON: Duration = Duration::from_secs(180);

pub(crate) const CONFIG: &str = r#"
instance: test
transports:
  local: { type: memory }
default_route:
  - { transport: local, topic: "agents.{targetagent}" }
calls: { timeout: 60s }
http:
  listen: "127.0.0.1:0"
  drain_grace: 5s
  allowed_origins: ["https://app.example.com"]
admin: { listen: "127.0.0.1:0" }
limits: { max_bytes: 100KiB, max_units: 100 }
"#;

/// A bridge on a memory bus, an agent behind it, and the requests that the agent received.
pub(crate) struct Front {
    pub(crate) base: String,
    admin: String,
    pub(crate) memory: Memory,
    pub(crate) requests: mpsc::Receiver<Value>,
    pub(crate) stop: CancellationToken,
    pub(crate) running: JoinHandle<()>,
    /// Where the agent and the test meet, twice for each request with `held`.
    gate: Arc<Barrier>,
}

impl Front {
    pub(crate) async fn open() -> Self {
        Self::open_with(CONFIG).await
    }

    pub(crate) async fn open_with(config: &str) -> Self {
        Self::open_on(Memory::default(), config).await
    }

    /// The same on this bus.
    pub(crate) async fn open_on(memory: Memory, config: &str) -> Self {
        let config = Config::read("test.yaml", config, []).unwrap();
        let bridge = build(config, |_| &memory).await;
        let base = format!("http://{}", bridge.door_address().unwrap());
        let admin = format!("http://{}", bridge.admin_address().unwrap());
        let (sender, requests) = mpsc::channel(1_000);
        let consumer = memory.subscribe(group("agents.>", "agents")).await.unwrap();
        let gate = Arc::new(Barrier::new(2));
        tokio::spawn(agent(memory.connect(), consumer, sender, Arc::clone(&gate)));
        let stop = CancellationToken::new();
        let running = tokio::spawn(bridge.run(stop.clone()));
        let front = Self {
            base,
            admin,
            memory,
            requests,
            stop,
            running,
            gate,
        };
        let start = Instant::now();
        while reqwest::get(format!("{}/readyz", front.admin))
            .await
            .unwrap()
            .status()
            != StatusCode::OK
        {
            assert!(start.elapsed() < SOON, "the bridge does not become ready");
            sleep(Duration::from_millis(10)).await;
        }
        front
    }

    pub(crate) fn to(&self, path: &str, body: impl Into<String>) -> RequestBuilder {
        let client = reqwest::Client::new();
        client
            .post(format!("{}{path}", self.base))
            .timeout(SOON)
            .body(body.into())
    }

    /// The text of the answer to a request that has one.
    async fn ask(&self, path: &str, body: impl Into<String>) -> String {
        let response = self.to(path, body).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        response.text().await.unwrap()
    }

    /// The response of the admin listener at a path.
    pub(crate) async fn admin(&self, path: &str) -> String {
        let response = reqwest::get(format!("{}{path}", self.admin)).await;
        response.unwrap().text().await.unwrap()
    }

    /// The next message that the agent saw.
    pub(crate) async fn next_request(&mut self) -> Value {
        timeout(SOON, self.requests.recv()).await.unwrap().unwrap()
    }

    /// Waits until the agent has a request with `held`. Called again, it lets the agent answer.
    pub(crate) async fn meet_agent(&self) {
        timeout(SOON, self.gate.wait()).await.unwrap();
    }
}

/// An agent that knows nothing of CloudEvents: it answers plain JSON-RPC on the reply subject.
async fn agent(
    memory: Memory,
    mut consumer: Consumer,
    sender: mpsc::Sender<Value>,
    gate: Arc<Barrier>,
) {
    while let Some(delivery) = consumer.recv().await {
        let Delivery {
            message,
            topic,
            reply_to,
            acknowledger,
            ..
        } = delivery;
        acknowledger.settle(Outcome::Settled).unwrap();
        let request: Value = serde_json::from_slice(message.body.as_ref().unwrap()).unwrap();
        let _ = sender
            .send(json!({ "topic": topic.as_str(), "message": &request }))
            .await;
        let Some(reply_to) = reply_to else { continue };
        let (memory, gate) = (memory.clone(), Arc::clone(&gate));
        tokio::spawn(async move {
            let parameters = &request["params"];
            if parameters["held"] == true {
                gate.wait().await;
                gate.wait().await;
            }
            sleep(Duration::from_millis(
                parameters["ms"].as_u64().unwrap_or(0),
            ))
            .await;
            for result in results(
                request["method"].as_str().unwrap(),
                topic.as_str(),
                parameters,
            ) {
                let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": result });
                let body = match parameters["pretty"].as_bool() {
                    Some(true) => serde_json::to_string_pretty(&answer),
                    _ => serde_json::to_string(&answer),
                };
                let message = Message::plain(body.unwrap());
                let sent = memory
                    .send(&Address::topic(reply_to.clone()), message)
                    .await;
                sent.unwrap().await.unwrap();
            }
        });
    }
}

fn results(method: &str, topic: &str, parameters: &Value) -> Vec<Value> {
    let update = |last: bool| {
        json!({
            "kind": "status-update", "taskId": "t-1", "contextId": "c", "final": last,
            "status": { "state": if last { "completed" } else { "working" } },
        })
    };
    match method {
        "hang" | "tools/call" => Vec::new(),
        "message/stream" => match parameters["hang"].as_bool() {
            Some(true) => vec![update(false)],
            _ => vec![update(false), update(false), update(true)],
        },
        "parts" => vec![update(false), update(true)],
        _ => vec![json!(topic)],
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "callers write json! in place"
)]
pub(crate) fn request(id: &str, method: &str, parameters: Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{parameters}}}"#)
}

fn to_weather(id: &str, method: &str) -> String {
    request(id, method, json!({ "_agentId": "weather" }))
}

fn content_type(response: &Response) -> &str {
    response.headers()["content-type"].to_str().unwrap()
}

/// The data of each event of a stream.
fn events(stream: &str) -> Vec<Value> {
    let blocks = stream
        .split("\n\n")
        .filter(|block| !block.is_empty() && !block.starts_with(':'));
    let data = |block: &str| {
        let lines: Vec<_> = block
            .lines()
            .map(|line| line.strip_prefix("data: ").unwrap())
            .collect();
        serde_json::from_str(&lines.join("\n")).unwrap()
    };
    blocks.map(data).collect()
}

/// The error of an answer, with its id.
fn error(answer: &str) -> (Value, i64, String) {
    let answer: Value = serde_json::from_str(answer).unwrap();
    let error = &answer["error"];
    let reason = error["data"]["reason"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    (
        answer["id"].clone(),
        error["code"].as_i64().unwrap(),
        reason,
    )
}

#[tokio::test]
async fn a_call_is_answered_with_its_own_id_byte_for_byte() {
    let front = Front::open().await;
    for id in [
        "1",
        "1.0",
        "9007199254740993",
        "\"1\"",
        "\"\"",
        "\"\\u0041\"",
        "-1e5",
        "null",
    ] {
        let answer = front.ask("/rpc", to_weather(id, "echo")).await;
        assert!(answer.contains(&format!(r#""id":{id}"#)), "{id}: {answer}");
        assert!(
            answer.contains(r#""result":"agents.weather""#),
            "{id}: {answer}"
        );
    }
}

#[tokio::test]
async fn the_agent_of_the_path_wins_over_the_one_in_the_payload() {
    let front = Front::open().await;
    let answer = front.ask("/rpc/news", to_weather("1", "echo")).await;
    assert!(answer.contains("agents.news"), "{answer}");
    let answer = front
        .ask("/rpc/%6Eews", request("1", "echo", json!({})))
        .await;
    assert!(answer.contains("agents.news"), "{answer}");
    let metrics = reqwest::get(format!("{}/metrics", front.admin))
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert!(
        metrics.contains("a2abus_target_conflicts_total 1"),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_stream_is_sent_as_events_with_the_callers_id() {
    let front = Front::open().await;
    let response = front
        .to("/rpc", to_weather("1.0", "message/stream"))
        .send()
        .await
        .unwrap();
    assert_eq!(content_type(&response), "text/event-stream");
    assert_eq!(response.headers()["cache-control"], "no-cache");
    assert_eq!(response.headers()["x-accel-buffering"], "no");
    let stream = response.text().await.unwrap();
    assert_eq!(stream.matches(r#""id":1.0,"#).count(), 3, "{stream}");
    let finals: Vec<_> = events(&stream)
        .iter()
        .map(|event| event["result"]["final"].clone())
        .collect();
    assert_eq!(finals, [false, false, true]);
}

#[tokio::test]
async fn a_stream_opens_before_the_agent_speaks() {
    let front = Front::open().await;
    let body = request(
        "1",
        "message/stream",
        json!({ "_agentId": "weather", "held": true }),
    );
    let response = front.to("/rpc", body).send().await.unwrap();
    front.meet_agent().await;
    front.meet_agent().await;
    assert_eq!(events(&response.text().await.unwrap()).len(), 3);
}

#[tokio::test]
async fn an_unrequested_stream_is_streamed_or_reduced_to_its_last_part() {
    let front = Front::open().await;
    let response = front
        .to("/rpc", to_weather("1", "parts"))
        .send()
        .await
        .unwrap();
    assert_eq!(content_type(&response), "text/event-stream");
    assert_eq!(events(&response.text().await.unwrap()).len(), 2);
    let json_only = front
        .to("/rpc", to_weather("1", "parts"))
        .header("accept", "application/json");
    let response = json_only.send().await.unwrap();
    assert_eq!(content_type(&response), "application/json");
    let answer: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    assert_eq!(answer["result"]["final"], true);
}

#[tokio::test]
async fn a_caller_that_accepts_only_events_gets_one() {
    let front = Front::open().await;
    let body = request(
        "1",
        "echo",
        json!({ "_agentId": "weather", "pretty": true }),
    );
    let response = front
        .to("/rpc", body)
        .header("accept", "text/event-stream")
        .send()
        .await
        .unwrap();
    assert_eq!(content_type(&response), "text/event-stream");
    let events = events(&response.text().await.unwrap());
    assert_eq!(
        events,
        [json!({ "jsonrpc": "2.0", "id": 1, "result": "agents.weather" })]
    );
}

#[tokio::test]
async fn a_batch_is_one_array_in_request_order() {
    let mut front = Front::open().await;
    let slow = request("1", "echo", json!({ "_agentId": "weather", "ms": 300 }));
    let notification = r#"{"jsonrpc":"2.0","method":"note","params":{"_agentId":"weather"}}"#;
    let batch = [
        slow,
        notification.to_owned(),
        "7".to_owned(),
        to_weather("1", "echo"),
        to_weather("\"s\"", "message/stream"),
        r#"{"jsonrpc":"2.0","id":5,"method":"message/send","params":3}"#.to_owned(),
    ];
    let answer = front.ask("/rpc", format!("[{}]", batch.join(","))).await;
    let answers: Vec<Value> = serde_json::from_str(&answer).unwrap();
    let summary: Vec<_> = answers
        .iter()
        .map(|answer| (&answer["id"], &answer["error"]["code"]))
        .collect();
    let expected = [
        (json!(1), Value::Null),
        (Value::Null, json!(-32600)),
        (json!(1), Value::Null),
        (json!("s"), json!(-32004)),
        (json!(5), json!(-32602)),
    ];
    assert_eq!(
        summary,
        expected
            .iter()
            .map(|(id, code)| (id, code))
            .collect::<Vec<_>>()
    );
    let mut methods = vec![];
    for _ in 0..3 {
        methods.push(
            front.next_request().await["message"]["method"]
                .as_str()
                .unwrap()
                .to_owned(),
        );
    }
    methods.sort_unstable();
    assert_eq!(methods, ["echo", "echo", "note"]);
}

#[tokio::test]
async fn a_request_without_an_answer_delays_no_other_of_its_batch() {
    let mut front = Front::open().await;
    // More than are under way at a time.
    let mut batch = vec![to_weather("0", "hang")];
    batch.extend((1..100).map(|id| to_weather(&id.to_string(), "echo")));
    let request = front.to("/rpc", format!("[{}]", batch.join(",")));
    let response_task = tokio::spawn(request.header("x-a2a-timeout", "60000").send());
    for _ in 0..batch.len() {
        front.next_request().await;
    }
    response_task.abort();
}

#[tokio::test]
async fn a_request_whose_batch_took_all_the_time_is_not_sent() {
    let front = Front::open_with(&with_calls("timeout: 3s")).await;
    // One more than are under way at a time.
    let batch: Vec<_> = (0..65)
        .map(|id| to_weather(&id.to_string(), "hang"))
        .collect();
    let answer = front.ask("/rpc", format!("[{}]", batch.join(","))).await;
    let errors: Vec<Value> = serde_json::from_str(&answer).unwrap();
    let message = |index: usize| errors[index]["error"]["message"].as_str().unwrap();
    assert!(message(63).starts_with("no answer"), "{}", message(63));
    assert!(message(64).starts_with("not sent"), "{}", message(64));
}

#[tokio::test]
async fn notifications_are_accepted_and_arrive_in_order() {
    let mut front = Front::open().await;
    let notification = |n: u32| {
        format!(r#"{{"jsonrpc":"2.0","method":"n/{n}","params":{{"_agentId":"weather"}}}}"#)
    };
    let response = front.to("/rpc", notification(0)).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    assert_eq!(response.text().await.unwrap(), "");
    let batch: Vec<_> = (1..20).map(notification).collect();
    let response = front
        .to("/rpc", format!("[{}]", batch.join(",")))
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    for n in 0..20 {
        let notification = front.next_request().await;
        assert_eq!(notification["message"]["method"], format!("n/{n}"));
    }
}

#[tokio::test]
async fn the_notifications_of_a_batch_have_one_deadline() {
    let front = Front::open_with(&with_calls("timeout: 500ms")).await;
    let notification = r#"{"jsonrpc":"2.0","method":"n","params":{"_agentId":"weather"}}"#;
    let batch = format!("[{}]", [notification; 100].join(","));
    let weather = TopicFilter::new("agents.weather").unwrap();
    front
        .memory
        .set_refused(weather, Some(TransportErrorKind::TimedOut));
    // One after the other they would take 50 s, which is longer than the client waits.
    let post = front.to("/rpc", batch).timeout(Duration::from_secs(40));
    let response = post.send().await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    let answer = response.text().await.unwrap();
    assert_eq!(error(&answer).2, "timeout");
}

#[tokio::test]
async fn the_timeout_of_a_call_includes_the_time_its_body_took() {
    let front = Front::open().await;
    let text = request("1", "hang", json!({ "_agentId": "weather" }));
    let (head, rest) = text.split_at(10);
    let (head, rest) = (head.to_owned(), rest.to_owned());
    let body = futures_util::stream::iter([head]).chain(futures_util::stream::once(async move {
        sleep(Duration::from_millis(200)).await;
        rest
    }));
    let request = front
        .to("/rpc", "")
        .body(reqwest::Body::wrap_stream(body.map(std::io::Result::Ok)))
        .header("x-a2a-timeout", "2000");
    let answer = request.send().await.unwrap().text().await.unwrap();
    let error: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(error["error"]["data"]["reason"], "timeout", "{answer}");
    // As the caller gave it, though it began to wait before the request could be sent.
    assert_eq!(error["error"]["data"]["timeoutMs"], 2_000, "{answer}");
}

#[tokio::test]
async fn failures_say_why_with_the_callers_id() {
    let front = Front::open().await;
    let no_agent = front.ask("/rpc", request("1.5", "echo", json!({}))).await;
    assert_eq!(
        error(&no_agent),
        (json!(1.5), -32602, "agent_not_found".into())
    );
    let slow = request("\"t\"", "hang", json!({ "_agentId": "weather" }));
    let start = Instant::now();
    let response = front
        .to("/rpc", slow)
        .header("x-a2a-timeout", "200")
        .send()
        .await
        .unwrap();
    assert_eq!(
        error(&response.text().await.unwrap()),
        (json!("t"), -32603, "timeout".into())
    );
    assert!(start.elapsed() >= Duration::from_millis(200) && start.elapsed() < SOON);
    let slow = request(
        "2",
        "message/stream",
        json!({ "_agentId": "weather", "ms": 60_000 }),
    );
    let jaf = front
        .to("/rpc", slow)
        .header("x-a2a-version", "0.3.0")
        .header("x-a2a-timeout", "3000");
    let stream = jaf.send().await.unwrap().text().await.unwrap();
    let codes: Vec<_> = events(&stream)
        .iter()
        .map(|event| event["error"]["code"].clone())
        .collect();
    assert_eq!(codes, [-32006]);
    front.memory.set_down("stopped by the test");
    let away = front.ask("/rpc", to_weather("3", "echo")).await;
    assert_eq!(error(&away), (json!(3), -32603, "agent_unavailable".into()));
    assert!(!away.contains("stopped by the test"), "{away}");
}

#[tokio::test]
async fn only_the_web_pages_that_are_listed_may_call() {
    let front = Front::open().await;
    let from = |origin: &'static str| {
        let request = front.to("/rpc", to_weather("1", "echo"));
        request.header("origin", origin).send()
    };
    for origin in ["https://evil.example.com", "null", "http://127.0.0.1:8080"] {
        let response = from(origin).await.unwrap();
        assert_eq!(response.status(), StatusCode::FORBIDDEN, "{origin}");
        assert_eq!(error(&response.text().await.unwrap()).1, -32600);
    }
    let both = front.to("/rpc", to_weather("1", "echo"));
    let both = both.header("origin", "https://app.example.com");
    let both = both.header("origin", "https://evil.example.com").send();
    assert_eq!(both.await.unwrap().status(), StatusCode::FORBIDDEN);
    let allowed = from("https://app.example.com").await.unwrap();
    assert_eq!(allowed.status(), StatusCode::OK);
    assert_eq!(
        allowed.headers()["access-control-allow-origin"],
        "https://app.example.com"
    );
    let preflight = Client::new()
        .request(Method::OPTIONS, format!("{}/rpc", front.base))
        .header("origin", "https://app.example.com")
        .header("access-control-request-method", "POST")
        .header(
            "access-control-request-headers",
            "authorization,content-type",
        )
        .send()
        .await
        .unwrap();
    let headers = preflight.headers();
    assert_eq!(
        headers["access-control-allow-headers"],
        "authorization,content-type"
    );
    assert_eq!(headers["access-control-max-age"], "3600");
}

#[tokio::test]
async fn a_slash_at_the_end_of_a_path_changes_nothing() {
    let front = Front::open().await;
    for path in ["/rpc/", "/rpc/weather/?x=1"] {
        let response = front.to(path, to_weather("1", "echo")).send().await;
        let response = response.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let answer: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
        assert!(answer.get("result").is_some(), "{path}: {answer}");
    }
    for path in ["/", "//", "/rpc//", "/none/"] {
        let response = front.to(path, to_weather("1", "echo")).send().await;
        assert_eq!(response.unwrap().status(), StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn an_unlisted_host_is_refused_by_both_listeners() {
    let front = Front::open_with(&CONFIG.replace(
        "drain_grace: 5s",
        "drain_grace: 5s\n  allowed_hosts: [a2abus.example]",
    ))
    .await;
    let call = async |host: &'static str| {
        let request = front.to("/rpc", to_weather("1", "echo"));
        request.header("host", host).send().await.unwrap()
    };
    for host in ["localhost:8080", "127.0.0.1", "[::1]:1", "A2abus.Example"] {
        assert_eq!(call(host).await.status(), StatusCode::OK, "{host}");
    }
    let refused = call("evil.example").await;
    assert_eq!(refused.status(), StatusCode::MISDIRECTED_REQUEST);
    assert!(refused.headers().contains_key("x-a2abus-call-id"));
    let refused = refused.text().await.unwrap();
    assert!(
        message(&refused).contains("http.allowed_hosts"),
        "{refused}"
    );
    for path in ["/metrics", "/readyz", "/healthz"] {
        let request = reqwest::Client::new().get(format!("{}{path}", front.admin));
        let refused = request.header("host", "evil.example").send().await.unwrap();
        assert_eq!(refused.status(), StatusCode::MISDIRECTED_REQUEST, "{path}");
        let text = refused.text().await.unwrap();
        assert!(text.contains("admin.allowed_hosts"), "{text}");
    }
}

#[tokio::test]
async fn errors_do_not_name_routes() {
    let front = Front::open_with(&CONFIG.replace(
        "default_route:",
        "routes: [ { name: secret-route, when: { targetagent: 'a*' }, to: [ { transport: local, topic: 'x.{sourceagent}' } ] } ]\ndefault_route:",
    ))
    .await;
    let call = request("1", "echo", json!({ "_agentId": "abc" }));
    let answer = front.ask("/rpc", call).await;
    assert_eq!(error(&answer).2, "invalid_params", "{answer}");
    assert!(message(&answer).contains("sourceagent"), "{answer}");
    assert!(!answer.contains("secret-route"), "{answer}");
}

#[tokio::test]
async fn an_invalid_request_is_refused_before_it_reaches_the_bus() {
    let front = Front::open().await;
    let check =
        async |name: &'static str, value: &'static str, body: &str, status: u16, code: i64| {
            let response = front
                .to("/rpc", body)
                .header(name, value)
                .send()
                .await
                .unwrap();
            assert_eq!(response.status().as_u16(), status, "{name}: {value} {body}");
            let (id, found, _) = error(&response.text().await.unwrap());
            assert_eq!((id, found), (Value::Null, code), "{name}: {value} {body}");
        };
    check("x-x", "x", "{", 200, -32700).await;
    check("x-x", "x", "", 200, -32700).await;
    check("x-x", "x", "[]", 200, -32600).await;
    check(
        "x-x",
        "x",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"m\"}\n{}",
        200,
        -32700,
    )
    .await;
    check(
        "x-x",
        "x",
        r#"{"jsonrpc":"2.0","id":1,"result":1}"#,
        200,
        -32600,
    )
    .await;
    check(
        "x-x",
        "x",
        r#"{"specversion":"1.0","id":"1","type":"t"}"#,
        200,
        -32600,
    )
    .await;
    check("content-type", "text/plain", "hello", 415, -32005).await;
    check("content-encoding", "gzip", "{}", 415, -32005).await;
    check("accept", "text/html", "{}", 406, -32005).await;
    check("x-a2a-timeout", "0", "{}", 400, -32602).await;
    check(
        "x-x",
        "x",
        &format!("\"{}\"", "a".repeat(110 << 10)),
        413,
        -32603,
    )
    .await;
    check(
        "x-x",
        "x",
        &format!("\"{}\"", "a".repeat(4 << 20)),
        413,
        -32603,
    )
    .await;
    let nowhere = r#"[{"jsonrpc":"2.0","method":"m","params":{}}]"#;
    check("x-x", "x", nowhere, 400, -32602).await;
    let response = reqwest::get(format!("{}/rpc", front.base)).await.unwrap();
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(response.headers()["allow"], "POST");
    let bad_name = front
        .ask("/rpc/a%20b", request("7", "echo", json!({})))
        .await;
    assert_eq!(error(&bad_name).0, 7);
    assert_eq!(error(&bad_name).1, -32602);
}

#[tokio::test]
async fn trace_headers_of_the_caller_go_with_its_request() {
    let front = Front::open().await;
    let subscription = Subscription {
        topics: vec![TopicFilter::new("agents.>").unwrap()],
        reading: Reading::Live { partition: None },
        budget_bytes: 1 << 20,
        budget_messages: 16,
    };
    let mut spy = front.memory.subscribe(subscription).await.unwrap();
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let request = front
        .to("/rpc", to_weather("1", "echo"))
        .header("traceparent", trace)
        .header("X-B3-SpanId", "7")
        .header("A2A-Version", "1.0")
        .header("X-A2A-Trace-Id", "t-7")
        .header("X-A2A-Priority", "high")
        .header("baggage", "a=1")
        .header("authorization", "Bearer secret");
    assert_eq!(request.send().await.unwrap().status(), StatusCode::OK);
    let delivery = timeout(SOON, spy.recv()).await.unwrap().unwrap();
    let header = |name: &str| delivery.message.headers.get(name).map(|value| &value[..]);
    assert_eq!(header("traceparent"), Some(trace.as_bytes()));
    assert_eq!(header("x-b3-spanid"), Some(&b"7"[..]));
    assert_eq!(header("a2a-version"), Some(&b"1.0"[..]));
    assert_eq!(header("x-a2a-trace-id"), Some(&b"t-7"[..]));
    assert_eq!(header("x-a2a-priority"), Some(&b"high"[..]));
    // It may be large, and a batch would send it once for each of its requests.
    assert_eq!(header("baggage"), None);
    assert_eq!(header("authorization"), None);
}

/// The same bridge with other bounds on calls.
fn with_calls(calls: &str) -> String {
    CONFIG.replace("calls: { timeout: 60s }", &format!("calls: {{ {calls} }}"))
}

/// Makes calls that wait for ever, and returns once the agent has them all.
async fn hang(front: &mut Front, agent: &str, calls: usize) -> Vec<JoinHandle<()>> {
    let mut waiting = Vec::new();
    for _ in 0..calls {
        let call = front.to(&format!("/rpc/{agent}"), request("1", "hang", json!({})));
        waiting.push(tokio::spawn(async move { drop(call.send().await) }));
        front.next_request().await;
    }
    waiting
}

fn message(response: &str) -> String {
    let response: Value = serde_json::from_str(response).unwrap();
    response["error"]["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn one_slow_agent_does_not_delay_calls_of_others() {
    let calls = "timeout: 30s, max_pending: 8, max_pending_per_caller: 8";
    let mut front = Front::open_with(&with_calls(calls)).await;
    let waiting = hang(&mut front, "slow", 2).await;
    let refused = front.to("/rpc/slow", request("7", "echo", json!({})));
    let refused = refused.send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()["retry-after"], "1");
    let refused = refused.text().await.unwrap();
    assert_eq!(error(&refused), (json!(7), -32603, "exhausted".into()));
    assert!(message(&refused).contains("\"slow\""), "{refused}");
    // A stream is refused before it begins; in a batch only the call is.
    let stream = request("8", "message/stream", json!({}));
    let stream = front.to("/rpc/slow", stream).send().await.unwrap();
    assert_eq!(stream.status(), StatusCode::TOO_MANY_REQUESTS);
    let batch = format!("[{}]", request("9", "echo", json!({})));
    let batch: Value = serde_json::from_str(&front.ask("/rpc/slow", batch).await).unwrap();
    assert_eq!(batch[0]["error"]["data"]["reason"], "exhausted");
    assert_eq!(batch[0]["error"]["data"]["retryAfterSeconds"], 1);
    let other = front
        .ask("/rpc/news", request("1", "echo", json!({})))
        .await;
    assert!(other.contains("agents.news"), "{other}");
    for call in waiting {
        call.abort();
    }
    // The bridge notices that the callers are gone.
    let start = Instant::now();
    while front
        .admin("/metrics")
        .await
        .contains("a2abus_pending_calls 2")
    {
        assert!(start.elapsed() < SOON);
        tokio::task::yield_now().await;
    }
    let again = front
        .ask("/rpc/slow", request("1", "echo", json!({})))
        .await;
    assert!(again.contains("agents.slow"), "{again}");
}

#[tokio::test]
async fn one_caller_cannot_use_all_calls() {
    let calls = "timeout: 30s, max_pending: 8, max_pending_per_agent: 8";
    let mut front = Front::open_with(&with_calls(calls)).await;
    let _waiting = hang(&mut front, "slow", 2).await;
    let refused = front.to("/rpc/news", request("7", "echo", json!({})));
    let refused = refused.send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let refused = refused.text().await.unwrap();
    assert!(
        message(&refused).contains("calls of this caller"),
        "{refused}"
    );
}

#[tokio::test]
async fn every_response_names_its_call() {
    let mut front = Front::open().await;
    let ids = |response: &Response| {
        let ids = response.headers()["x-a2abus-call-id"].to_str().unwrap();
        ids.split(", ").map(str::to_owned).collect::<Vec<_>>()
    };
    // The agent has the id of the call with the reply token after it, which callers and proxies do not see.
    let call_of = |id: &Value| id.as_str().unwrap().split_at(26).0.to_owned();
    for method in ["echo", "message/stream"] {
        let call = front.to("/rpc", to_weather("1", method));
        let response = call.send().await.unwrap();
        let agent_request = front.next_request().await;
        assert_eq!(ids(&response), [call_of(&agent_request["message"]["id"])]);
    }
    let notification = r#"{"jsonrpc":"2.0","method":"note","params":{"_agentId":"weather"}}"#;
    let batch = format!(
        "[{},{notification},7,{}]",
        to_weather("1", "echo"),
        to_weather("1", "echo")
    );
    let response = front.to("/rpc", batch).send().await.unwrap();
    let mut calls = Vec::new();
    while calls.len() < 2 {
        let agent_request = front.next_request().await;
        let id = &agent_request["message"]["id"];
        calls.extend(id.is_string().then(|| call_of(id)));
    }
    let mut named = ids(&response);
    named.sort_unstable();
    calls.sort_unstable();
    assert_eq!(named, calls);
    for (body, status) in [(notification, 202), ("{", 200), ("7", 200)] {
        let response = front.to("/rpc", body).send().await.unwrap();
        assert_eq!(response.status(), status);
        assert_eq!(ids(&response).len(), 1, "{body}");
    }
    let text = front.to("/rpc", "x").header("content-type", "text/plain");
    let response = text.send().await.unwrap();
    assert_eq!(response.status(), 415);
    assert_eq!(ids(&response)[0].len(), 26);
}

#[tokio::test]
async fn the_timeout_of_an_a2a_message_is_heeded_and_the_header_wins() {
    let front = Front::open().await;
    let slow = |timeout: Value| {
        let parameters =
            json!({ "_agentId": "weather", "ms": 1_500, "configuration": { "timeout": timeout } });
        request("1", "message/send", parameters)
    };
    let answer = front.ask("/rpc", slow(json!(150))).await;
    assert_eq!(error(&answer), (json!(1), -32006, "timeout".into()));
    let header = front
        .to("/rpc", slow(json!(150)))
        .header("x-a2a-timeout", "60000");
    let answer = header.send().await.unwrap().text().await.unwrap();
    assert!(answer.contains("agents.weather"), "{answer}");
    // An invalid time is ignored.
    for strange in [json!("150"), json!(0), json!(-1), json!(null), json!(1.5)] {
        let answer = front.ask("/rpc", slow(strange.clone())).await;
        assert!(answer.contains("agents.weather"), "{strange}: {answer}");
    }
}

#[tokio::test]
async fn calls_are_counted_by_agent_and_made_up_names_are_not() {
    let front = Front::open().await;
    front.ask("/rpc", to_weather("1", "echo")).await;
    for n in 0..3 {
        let call = front.to(
            &format!("/rpc/made-up-{n}"),
            request("1", "hang", json!({})),
        );
        call.header("x-a2a-timeout", "1500").send().await.unwrap();
    }
    let metrics = front.admin("/metrics").await;
    for line in [
        "a2abus_agent_calls_total{agent=\"weather\",outcome=\"answered\"} 1",
        "a2abus_agent_calls_total{agent=\"other\",outcome=\"timeout\"} 3",
        "a2abus_agent_call_seconds_count{agent=\"weather\"} 1",
        "a2abus_agent_calls_in_flight{agent=\"other\"} 0",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    assert!(!metrics.contains("made-up"), "{metrics}");
}

#[tokio::test]
async fn the_headers_of_a_batch_count_once_for_each_of_its_requests() {
    let front = Front::open().await;
    let notification = r#"{"jsonrpc":"2.0","method":"n","params":{"_agentId":"weather"}}"#;
    let batch = |units: usize| format!("[{}]", vec![notification; units].join(","));
    let send = async |units: usize| {
        let request = front.to("/rpc", batch(units));
        let request = request.header("tracestate", "x".repeat(8 << 10));
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(send(5).await, 202);
    // 100 times 8 KiB are more than the 100 KiB that a body may have.
    assert_eq!(send(100).await, 413);
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused_with_its_size_and_the_limit() {
    let front = Front::open().await;
    let response = front.to("/rpc", "x".repeat(200_000)).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let answer = response.text().await.unwrap();
    assert!(
        answer.contains("200000 bytes") && answer.contains("102400 are allowed"),
        "{answer}"
    );
    for (header, value) in [("x-a2a-version", "0.3.0"), ("x-a2a-client", "jaf-py/2.6")] {
        let large = front.to("/rpc", "x".repeat(200_000)).header(header, value);
        let answer = large.send().await.unwrap().text().await.unwrap();
        assert_eq!(error(&answer).1, -32007, "{header}: {answer}");
    }

    let bridge = Running::start(
        "
transports: { small: { type: memory, max_message_bytes: 2000 } }
default_route: [{ transport: small, topic: agents }]",
    )
    .await;
    let text = "x".repeat(3_000);
    let call = request("1", "echo", json!({ "_agentId": "weather", "text": text }));
    let answer = bridge.post("/rpc", call).await.body;
    let (id, code, reason) = error(&answer);
    assert_eq!((id, code, &*reason), (json!(1), -32602, "too_large"));
    // The message consists of the call, its headers, and the replacement of its id.
    assert!(
        answer.contains("a message of 3") && answer.contains(" bytes: "),
        "{answer}"
    );
    assert!(
        answer.contains("larger than the 2000 bytes that"),
        "{answer}"
    );
    assert!(answer.contains("raise this limit"), "{answer}");
    assert!(!answer.contains("Base64"), "{answer}");
    bridge.stop().await;
}

#[tokio::test]
async fn a_disconnected_client_cancels_its_call() {
    let mut front = Front::open().await;
    let body = to_weather("1", "tools/call");
    let address = front.base.trim_start_matches("http://").to_owned();
    let mut client = TcpStream::connect(&address).await.unwrap();
    let head = format!(
        "POST /rpc HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    client
        .write_all(format!("{head}{body}").as_bytes())
        .await
        .unwrap();
    let call = front.next_request().await["message"]["id"].clone();
    drop(client);
    let cancel = front.next_request().await;
    assert_eq!(cancel["message"]["method"], "notifications/cancelled");
    assert_eq!(cancel["message"]["params"]["requestId"], call);
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_cancels_its_task() {
    let mut front = Front::open().await;
    let body = request(
        "1",
        "message/stream",
        json!({ "_agentId": "weather", "hang": true }),
    );
    let response = front.to("/rpc", body).send().await.unwrap();
    let mut stream = response.bytes_stream();
    let first = timeout(SOON, stream.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert!(first.starts_with(b"data: "), "{first:?}");
    front.next_request().await;
    drop(stream);
    let cancel = front.next_request().await;
    assert_eq!(cancel["message"]["method"], "tasks/cancel");
    assert_eq!(cancel["message"]["params"]["id"], "t-1");
}

#[tokio::test]
async fn a_call_that_a_drain_ends_may_have_been_done() {
    let mut front = Front::open_with(&CONFIG.replace("drain_grace: 5s", "drain_grace: 1s")).await;
    let body = request("1", "echo", json!({ "_agentId": "weather", "ms": 60_000 }));
    let answer = tokio::spawn(front.to("/rpc", body).send());
    front.next_request().await;
    front.stop.cancel();
    let answer = answer.await.unwrap().unwrap();
    // Clients repeat a 503 by themselves, and the agent would do the work twice.
    assert_eq!(answer.status(), StatusCode::OK);
    let answer: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    assert_eq!(answer["id"], 1, "{answer}");
    assert_eq!(answer["error"]["data"]["reason"], "answer_lost", "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("may have executed the request"),
        "{message}"
    );
    timeout(SOON, front.running).await.unwrap().unwrap();
}

#[tokio::test]
async fn draining_finishes_calls_in_flight_and_takes_no_more() {
    let mut front = Front::open_with(&CONFIG.replace("drain_grace: 5s", "drain_grace: 60s")).await;
    let body = request("1", "echo", json!({ "_agentId": "weather", "ms": 500 }));
    // A connection that is open already when draining begins.
    let address = front.base.trim_start_matches("http://").to_owned();
    let mut late = TcpStream::connect(&address).await.unwrap();
    let late_body = to_weather("2", "echo");
    let head = format!(
        "POST /rpc HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
        late_body.len()
    );
    late.write_all(head.as_bytes()).await.unwrap();
    let answer = tokio::spawn(front.to("/rpc", body).send());
    front.next_request().await;
    front.stop.cancel();
    sleep(Duration::from_millis(50)).await;
    late.write_all(late_body.as_bytes()).await.unwrap();
    let mut refused = String::new();
    timeout(SOON, late.read_to_string(&mut refused))
        .await
        .unwrap()
        .unwrap();
    assert!(
        refused.starts_with("HTTP/1.1 503") && refused.contains("retry-after: "),
        "{refused}"
    );
    let answer = answer.await.unwrap().unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert!(answer.text().await.unwrap().contains("agents.weather"));
    timeout(SOON, front.running).await.unwrap().unwrap();
    assert!(TcpStream::connect(&address).await.is_err());
}

#[tokio::test]
async fn a_page_of_this_server_may_call_it_behind_a_proxy() {
    let hosts = "drain_grace: 5s\n  allowed_hosts: [pub.example]";
    let config = CONFIG.replace("drain_grace: 5s", hosts);
    let config = format!("{config}a2a: {{ public_url: 'https://pub.example:8443/bus' }}\n");
    let front = Front::open_with(&config).await;
    for (host, origin, status) in [
        // The proxy sends the name without its port.
        ("pub.example", "https://pub.example:8443", 200),
        ("pub.example:443", "https://pub.example", 200),
        ("pub.example", "https://pub.example:443", 200),
        ("pub.example:80", "http://pub.example", 200),
        ("pub.example:443", "http://pub.example", 403),
        ("localhost", "https://pub.example", 403),
        ("pub.example", "https://pub.example:8444", 403),
    ] {
        let request = front.to("/rpc", to_weather("1", "echo"));
        let request = request.header("host", host).header("origin", origin);
        let found = request.send().await.unwrap().status();
        assert_eq!(found.as_u16(), status, "{origin} at {host}");
    }
}

#[tokio::test]
async fn a_bridge_that_makes_no_calls_says_so() {
    let front = Front::open_with(&with_calls("enabled: false")).await;
    let refused = front.ask("/rpc", to_weather("1", "echo")).await;
    assert_eq!(error(&refused), (json!(1), -32601, "unsupported".into()));
    let says_why = message(&refused).contains("calls.enabled is false");
    assert!(says_why, "{refused}");
}

#[tokio::test]
async fn a_request_above_a_limit_on_size_has_the_same_reason_before_and_after_it_is_read() {
    let front = Front::open().await;
    let batch = format!("[{}]", vec![to_weather("1", "echo"); 101].join(","));
    let large = "x".repeat(200_000);
    for (body, code, key) in [
        (large, -32603, "limits.max_bytes"),
        (batch, -32600, "limits.max_units"),
    ] {
        let refused = front.to("/rpc", body).send().await.unwrap();
        let refused = refused.text().await.unwrap();
        assert_eq!(error(&refused), (Value::Null, code, "too_large".into()));
        assert!(message(&refused).contains(key), "{refused}");
    }
}
