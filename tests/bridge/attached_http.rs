//! Attached HTTP servers: of MCP, of A2A and of plain JSON-RPC, called through every interface, and the outcome of
//! calls when they misbehave.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use a2abus_transports::{Address, Message, Topic};
use axum::http::StatusCode;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::{Instant, sleep, timeout};

use crate::a2a::read_events;
use crate::http::{Front, SOON};
use crate::set_up::{body, next, publish, read};
use crate::site::{Pings, SLOW_STEP, SLOW_STEPS, Site};

/// A bridge with the site attached in three ways: as `mcp`, as `a2a` and as `rpc`.
struct Attached {
    front: Front,
    site: Site,
    directory: TempDir,
}

impl Attached {
    async fn open() -> Self {
        Self::open_with("concurrency: 4").await
    }

    async fn open_with(more: &str) -> Self {
        Self::open_for(more, SOON).await
    }

    /// With this time limit of calls.
    async fn open_for(more: &str, call_timeout: Duration) -> Self {
        Self::open_at(Site::start().await, more, call_timeout).await
    }

    async fn open_at(site: Site, more: &str, call_timeout: Duration) -> Self {
        let directory = TempDir::new().unwrap();
        let token = directory.path().join("token");
        std::fs::write(&token, "Bearer old").unwrap();
        let agent = |name: &str, description: &str, more: &str| {
            let url = format!("http://{}/{name}", site.address);
            format!(
                "
  {name}:
    {description}
    to: {{ transport: local, topic: attached.{name} }}
    attach:
      url: {url}
      headers: {{ authorization: {{ file: {token:?} }}, x-tenant: blue }}
      {more}"
            )
        };
        let seconds = call_timeout.as_secs();
        let config = format!(
            "
instance: test
transports: {{ local: {{ type: memory }} }}
agents:{}{}{}
calls: {{ timeout: {seconds}s, max_timeout: {seconds}s }}
http: {{ listen: '127.0.0.1:0', drain_grace: 5s }}
admin: {{ listen: '127.0.0.1:0' }}
",
            agent("mcp", "", more),
            agent("a2a", "", "protocol: a2a"),
            agent("rpc", "description: Sums.", "protocol: jsonrpc"),
        );
        let front = Front::open_with(&config).await;
        Self {
            front,
            site,
            directory,
        }
    }

    async fn post(&self, path: &str, body: &Value) -> String {
        let request = self.front.to(path, body.to_string());
        let request = request
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("traceparent", TRACE);
        request.send().await.unwrap().text().await.unwrap()
    }

    async fn ask(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body).await;
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    async fn call(&self, tool: &str) -> Value {
        self.ask("/rpc/mcp", &call(tool)).await
    }

    /// Waits until something holds.
    async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let start = Instant::now();
        while !holds().await {
            assert!(start.elapsed() < SOON, "{what}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn end(self) {
        self.front.stop.cancel();
        timeout(SOON, self.front.running).await.unwrap().unwrap();
    }
}

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn call(tool: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": tool, "arguments": { "a": 1 } } })
}

fn rpc(method: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": "mine", "method": method, "params": { "n": 1 } })
}

fn message(method: &str, configuration: &Value) -> Value {
    let message = json!({ "kind": "message", "messageId": "m", "role": "user", "parts": [{ "kind": "text", "text": "hello" }] });
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": { "message": message, "configuration": configuration } })
}

fn reason(answer: &Value) -> &str {
    answer["error"]["data"]["reason"]
        .as_str()
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_too_large_for_the_bus_is_an_error_at_once() {
    let attached = Attached::open().await;
    let mut request = call("echo");
    // In the answer, the arguments are text in JSON, where each quotation mark takes twice as many bytes: more than 1 MiB.
    request["params"]["arguments"] = json!({ "quotes": "\"".repeat(300_000) });
    let answer = attached.ask("/rpc/mcp", &request).await;
    assert_eq!(reason(&answer), "reply_undeliverable", "{answer}");
    let why = answer["error"]["message"].as_str().unwrap();
    assert!(why.contains("raise this limit"), "{answer}");
    assert!(why.contains("max_message_bytes"), "{answer}");
    let answer = attached.call("echo").await;
    assert!(answer["result"].is_object(), "{answer}");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_server_without_sessions_name_the_cure() {
    let site = Site::start().await;
    site.recorder.has_no_sessions.store(true, Ordering::SeqCst);
    let attached = Attached::open_at(site, "concurrency: 4", SOON).await;
    let answer = attached.call("echo").await;
    assert_eq!(reason(&answer), "agent_unavailable", "{answer}");
    let why = answer["error"]["message"].as_str().unwrap();
    assert!(why.contains("let the server accept `initialize`"), "{why}");
    assert!(!why.contains("cannot be reached"), "{why}");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_mcp_server_over_http_is_an_agent_on_every_interface() {
    let attached = Attached::open().await;
    for path in ["/rpc/mcp", "/mcp/agents/mcp"] {
        let answer = attached.ask(path, &call("echo")).await;
        assert_eq!(
            answer["result"]["content"][0]["text"], r#"{"a":1}"#,
            "{answer}"
        );
    }
    let answer = attached.ask("/mcp", &call("mcp.echo")).await;
    assert!(answer["result"].is_object(), "{answer}");
    let answer = attached.post("/rpc/mcp", &call("exact")).await;
    assert_eq!(
        answer,
        r#"{ "result" : {"n":1.0e2,  "s":"\u00e9"}, "id":1, "jsonrpc":"2.0" }"#
    );
    // One session for all, with the revision that the server chose, and the headers of the configuration.
    assert_eq!(attached.site.recorder.of("initialize").len(), 1);
    let (headers, _) = attached.site.recorder.of("tools/call").pop().unwrap();
    assert_eq!(headers["mcp-session-id"], "s-1");
    assert_eq!(headers["mcp-protocol-version"], "2025-06-18");
    assert_eq!(headers["x-tenant"], "blue");
    assert_eq!(headers["authorization"], "Bearer old");
    assert!(
        headers["traceparent"]
            .to_str()
            .unwrap()
            .starts_with(&TRACE[..35]),
        "{headers:?}"
    );
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trace_context_in_a_request_of_mcp_is_that_of_its_event() {
    let attached = Attached::open().await;
    let mut request = call("effect");
    request["params"]["_meta"] = json!({ "traceparent": TRACE, "tracestate": "k=v" });
    let other = TRACE.replace("b7", "c8");
    for (path, header, expected) in [
        ("/mcp/agents/mcp", None, TRACE),
        // That of HTTP wins.
        ("/mcp/agents/mcp", Some(&other), other.as_str()),
    ] {
        let mut post = attached.front.to(path, request.to_string());
        post = post.header("content-type", "application/json");
        if let Some(header) = header {
            post = post.header("traceparent", header);
        }
        let answer = post.send().await.unwrap().text().await.unwrap();
        assert!(answer.contains("done"), "{answer}");
        let (headers, body) = attached.site.recorder.of("tools/call").pop().unwrap();
        assert_eq!(headers["traceparent"], expected);
        assert_eq!(
            headers.contains_key("tracestate"),
            header.is_none(),
            "{headers:?}"
        );
        assert_eq!(body["params"]["_meta"]["traceparent"], TRACE);
    }
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_card_of_an_agent_is_made_from_the_lists_of_its_server() {
    let attached = Attached::open().await;
    let card = async |agent: &str| -> Value {
        let url = format!("{}/a2a/agents/{agent}/card", attached.front.base);
        let card = reqwest::get(url).await.unwrap().text().await.unwrap();
        serde_json::from_str(&card).unwrap()
    };
    attached
        .until("the card of tools", async || {
            card("mcp").await["skills"][0]["id"] == "echo"
        })
        .await;
    attached
        .until("the card of the server", async || {
            card("a2a").await["skills"][0]["id"] == "add"
        })
        .await;
    let tools = card("mcp").await;
    assert_eq!(tools["description"], "Does what tests need.", "{tools}");
    assert_eq!(tools["version"], "7", "{tools}");
    let own = card("a2a").await;
    assert_eq!(own["description"], "A site of tests.", "{own}");
    let provider = json!({ "organization": "Tests", "url": "https://example.com" });
    assert_eq!(own["provider"], provider, "{own}");
    assert_eq!(own["documentationUrl"], "https://example.com/docs");
    assert_eq!(own["iconUrl"], "https://example.com/icon.png");
    let extensions = json!([{ "uri": "urn:tests:ui", "params": { "n": 1 } }]);
    assert_eq!(own["capabilities"]["extensions"], extensions, "{own}");
    assert!(tools.get("provider").is_none(), "{tools}");
    assert!(tools["capabilities"].get("extensions").is_none(), "{tools}");
    let url = own["url"].as_str().unwrap();
    assert!(url.starts_with(&attached.front.base), "{own}");
    // The skills of an A2A agent are tools on the MCP interface.
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let tools = attached.post("/mcp/agents/a2a", &list).await;
    assert!(tools.contains("\"add\""), "{tools}");
    // Configured values take precedence.
    assert_eq!(card("rpc").await["description"], "Sums.");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_could_not_be_read_is_read_again() {
    for list in ["tools/list", "prompts/list", "resources/templates/list"] {
        let site = Site::start().await;
        let away = StatusCode::SERVICE_UNAVAILABLE;
        site.recorder.refusals.lock().unwrap().insert(list, away);
        let attached = Attached::open_at(site, "concurrency: 4", SOON).await;
        attached
            .until("the list is read again", async || {
                attached.site.recorder.of(list).len() > 1
            })
            .await;
        for other in ["tools/list", "prompts/list"] {
            let times = attached.site.recorder.of(other).len();
            assert_eq!(times, 1 + usize::from(other == list), "{other} with {list}");
        }
        attached
            .until("the card", async || {
                let card = format!("{}/a2a/agents/mcp/card", attached.front.base);
                let card = reqwest::get(card).await.unwrap().text().await.unwrap();
                card.contains("echo")
            })
            .await;
        attached.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn skills_that_cannot_be_tools_are_left_out_and_counted() {
    let attached = Attached::open().await;
    let ids = async |agent: &str| -> Vec<String> {
        let url = format!("{}/a2a/agents/{agent}/card", attached.front.base);
        let card = reqwest::get(url).await.unwrap().text().await.unwrap();
        let card: Value = serde_json::from_str(&card).unwrap();
        let skills = card["skills"].as_array().unwrap().iter();
        skills
            .map(|skill| skill["id"].as_str().unwrap().to_owned())
            .collect()
    };
    for (agent, expected) in [
        ("mcp", &["echo", "effect", "hang"][..]),
        ("a2a", &["add"][..]),
    ] {
        let is_described = attached.until("the card", async || ids(agent).await == expected);
        is_described.await;
        let metrics = attached.front.admin("/metrics").await;
        let line = format!("a2abus_attached_unusable_skills{{agent=\"{agent}\"}} 2");
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let list = attached.ask("/mcp", &list).await;
    let tools = list["result"]["tools"].as_array().unwrap().iter();
    let names: Vec<_> = tools.map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a2a.add", "mcp.echo", "mcp.effect", "mcp.hang"]);
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_calls_free_their_share_at_once() {
    // The connection of a cancelled call stays open for this time.
    const PARTING: Duration = Duration::from_secs(2);
    // At most 20 calls are posted at a time, with 64 other messages.
    let attached = Attached::open_with("concurrency: 20").await;
    let recorder = &attached.site.recorder;
    let batch = Value::Array(vec![call("hang"); 20]).to_string();
    let (start, mut fastest) = (Instant::now(), Duration::MAX);
    loop {
        for _ in 0..5 {
            let (before, posted) = (recorder.hung.load(Ordering::SeqCst), Instant::now());
            let request = attached.front.to("/rpc/mcp", batch.clone());
            let request = request.header("content-type", "application/json");
            let arrived = async || recorder.hung.load(Ordering::SeqCst) == before + 20;
            tokio::select! {
                answer = request.send() => panic!("it is answered: {answer:?}"),
                () = attached.until("the calls", arrived) => {}
            }
            fastest = fastest.min(posted.elapsed());
        }
        let answer = attached.call("echo").await;
        assert!(answer["result"].is_object(), "{answer}");
        if recorder.hanging.load(Ordering::SeqCst) > 84 {
            break;
        }
        if start.elapsed() > SOON / 3 {
            // A slow machine cannot cancel that many within this time.
            assert!(fastest > PARTING / 20, "a call waits for cancelled ones");
            println!("left out: {fastest:?} for 20 calls is too slow to cancel 84 in time");
            break;
        }
    }
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_headers_of_a_request_have_one_bound() {
    let attached = Attached::open().await;
    let mut request = call("effect");
    request["params"]["_meta"] = json!({ "traceparent": TRACE, "tracestate": "k=v" });
    let mut post = attached.front.to("/mcp/agents/mcp", request.to_string());
    post = post.header("content-type", "application/json");
    for number in 0..70 {
        post = post.header(format!("x-b3-{number}"), "1");
    }
    let answer = post.send().await.unwrap().text().await.unwrap();
    assert!(answer.contains("done"), "{answer}");
    let (headers, _) = attached.site.recorder.of("tools/call").pop().unwrap();
    let passed = headers.keys().filter(|name| {
        let name = name.as_str();
        name.starts_with("x-b3-") || name.starts_with("trace")
    });
    assert_eq!(passed.count(), 64);
    assert_eq!(headers["traceparent"], TRACE);
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_card_no_more_is_read_than_a_card_may_have() {
    let site = Site::start().await;
    let config = format!(
        "
instance: test
transports: {{ local: {{ type: memory }} }}
agents:
  endless:
    description: It has no end.
    to: {{ transport: local, topic: attached.endless }}
    attach: {{ url: 'http://{}/endless', protocol: a2a }}
http: {{ listen: '127.0.0.1:0' }}
admin: {{ listen: '127.0.0.1:0' }}
",
        site.address
    );
    let front = Front::open_with(&config).await;
    let start = Instant::now();
    let read = || site.recorder.read_of_card.lock().unwrap().first().copied();
    while read().is_none() {
        assert!(start.elapsed() < SOON, "it is read without an end");
        sleep(Duration::from_millis(10)).await;
    }
    assert!(read() < Some(16 << 20), "{:?} bytes were read", read());
    front.stop.cancel();
    timeout(SOON, front.running).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_comes_before_the_answer_of_a_stream() {
    let attached = Attached::open().await;
    let mut request = call("progress");
    request["params"]["_meta"] = json!({ "progressToken": "mine" });
    let stream = attached.post("/mcp/agents/mcp", &request).await;
    let parts: Vec<Value> = read_events(&stream)
        .into_iter()
        .map(|event| event.json())
        .collect();
    assert_eq!(parts[0]["params"]["progressToken"], "mine", "{parts:?}");
    assert_eq!(parts[1]["params"]["progress"], 2, "{parts:?}");
    assert_eq!(parts[2]["id"], 1, "{parts:?}");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_ends_in_the_server() {
    let attached = Attached::open().await;
    let until_called = attached.until("the call", async || {
        attached.site.recorder.calls("hang") == 1
    });
    tokio::select! {
        answer = attached.call("hang") => panic!("it is answered: {answer}"),
        () = until_called => {}
    }
    // The caller has gone.
    let is_cancelled = async || {
        !attached
            .site
            .recorder
            .of("notifications/cancelled")
            .is_empty()
    };
    attached.until("the cancel", is_cancelled).await;
    let (_, call) = attached.site.recorder.of("tools/call").pop().unwrap();
    let (_, cancel) = attached
        .site
        .recorder
        .of("notifications/cancelled")
        .pop()
        .unwrap();
    assert_eq!(cancel["params"]["requestId"], call["id"]);
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_started_again_gets_a_new_session() {
    let mut attached = Attached::open().await;
    let answer = attached.call("effect").await;
    assert!(answer["result"].is_object(), "{answer}");
    attached.site.begin().await;
    let start = Instant::now();
    loop {
        // Until the bridge has noticed, its calls wait or say why they fail.
        let answer = attached.call("effect").await;
        if answer["result"].is_object() {
            break;
        }
        let known = ["agent_unavailable", "answer_lost"];
        assert!(known.contains(&reason(&answer)), "{answer}");
        assert!(start.elapsed() < SOON, "{answer}");
    }
    let (headers, _) = attached.site.recorder.of("tools/call").pop().unwrap();
    assert_ne!(headers["mcp-session-id"], "s-1");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_forgotten_its_session_stays_available() {
    let attached = Attached::open().await;
    attached.call("effect").await;
    let url = format!("{}/a2a/agents/mcp", attached.front.base);
    let shown = async || reqwest::get(&url).await.unwrap().text().await.unwrap();
    for session in 1..4 {
        attached.site.recorder.forget_sessions();
        let start = Instant::now();
        // The call that finds out may fail: the server may have begun it.
        while !attached.call("effect").await["result"].is_object() {
            assert!(start.elapsed() < SOON, "{}", shown().await);
            let entry = shown().await;
            assert!(entry.contains(r#""available":true"#), "{entry}");
        }
        let (headers, _) = attached.site.recorder.of("tools/call").pop().unwrap();
        assert_ne!(headers["mcp-session-id"], format!("s-{session}"));
    }
    let ready = attached.front.admin("/readyz").await;
    assert!(!ready.contains("degraded"), "{ready}");
    attached.end().await;
}

/// A 404 means an unknown session, or something that the server does not know in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_answered_with_404_in_a_known_session_is_not_repeated_for_ever() {
    for (pings, most) in [(Pings::Answered, 1), (Pings::Unknown, 2)] {
        let attached = Attached::open().await;
        *attached.site.recorder.pings.lock().unwrap() = pings;
        let answer = attached.call("unknown").await;
        assert_eq!(answer["error"]["code"], -32_601, "{answer}");
        assert_eq!(answer["error"]["message"], "what is that?", "{answer}");
        assert_eq!(attached.site.recorder.calls("unknown"), most);
        let answer = attached.call("echo").await;
        assert!(answer["result"].is_object(), "{answer}");
        assert_eq!(attached.site.recorder.of("initialize").len(), most);
        attached.end().await;
    }
}

/// It may be slow, or know no pings.
#[tokio::test(flavor = "multi_thread")]
async fn the_calls_of_a_server_that_answers_no_ping_go_on() {
    let attached = Attached::open().await;
    let recorder = Arc::clone(&attached.site.recorder);
    *recorder.pings.lock().unwrap() = Pings::Ignored;
    let waits = attached.front.to("/rpc/mcp", call("wait").to_string());
    let waits = tokio::spawn(async move { waits.send().await.unwrap().text().await.unwrap() });
    attached
        .until("the call", async || recorder.calls("wait") == 1)
        .await;
    let answer = attached.call("break").await;
    assert_eq!(reason(&answer), "answer_lost", "{answer}");
    attached
        .until("the next session", async || {
            recorder.of("initialize").len() == 2
        })
        .await;
    let answer = attached.call("echo").await;
    assert!(answer["result"].is_object(), "{answer}");
    recorder.released.cancel();
    let answer: Value = serde_json::from_str(&waits.await.unwrap()).unwrap();
    assert_eq!(answer["result"]["content"][0]["text"], "done", "{answer}");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_server_that_ends_fail_with_the_cause() {
    let mut attached = Attached::open().await;
    let front = attached.front.to("/rpc/mcp", call("hang").to_string());
    let hanging = tokio::spawn(async move { front.send().await.unwrap().text().await.unwrap() });
    attached
        .until("the call", async || {
            attached.site.recorder.calls("hang") == 1
        })
        .await;
    attached.site.end();
    let answer: Value = serde_json::from_str(&hanging.await.unwrap()).unwrap();
    assert_eq!(reason(&answer), "answer_lost", "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("may have been executed"), "{answer}");
    for path in ["/rpc/mcp", "/rpc/rpc"] {
        let body = if path == "/rpc/mcp" {
            call("effect")
        } else {
            rpc("add")
        };
        let answer = attached.ask(path, &body).await;
        assert_eq!(reason(&answer), "agent_unavailable", "{path}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("refused"), "{path}: {answer}");
    }
    assert_eq!(attached.site.recorder.calls("effect"), 0);
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_shuts_down_answers_the_calls_that_it_has() {
    let mut attached = Attached::open().await;
    let calls: Vec<_> = (0..3)
        .map(|_| attached.front.to("/rpc/mcp", call("wait").to_string()))
        .map(|call| tokio::spawn(async move { call.send().await.unwrap().text().await.unwrap() }))
        .collect();
    let recorder = Arc::clone(&attached.site.recorder);
    attached
        .until("the calls", async || recorder.calls("wait") == 3)
        .await;
    attached.site.shut_down();
    // New calls fail once the bridge cannot open another session.
    attached
        .until("an error", async || {
            reason(&attached.call("effect").await) == "agent_unavailable"
        })
        .await;
    recorder.released.cancel();
    for call in calls {
        let answer: Value = serde_json::from_str(&call.await.unwrap()).unwrap();
        assert_eq!(answer["result"]["content"][0]["text"], "done", "{answer}");
    }
    attached.site.begin().await;
    attached
        .until("the next session", async || {
            attached.call("effect").await["result"].is_object()
        })
        .await;
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_a_request_that_did_not_reach_the_server_is_free_again() {
    let mut attached = Attached::open().await;
    attached.call("effect").await;
    attached.site.end();
    let keyed = async |attached: &Attached| -> Value {
        let request = attached.front.to("/rpc/rpc", rpc("add").to_string());
        let request = request.header("idempotency-key", "k");
        request.send().await.unwrap().json().await.unwrap()
    };
    let answer = keyed(&attached).await;
    assert_eq!(reason(&answer), "agent_unavailable", "{answer}");
    attached.site.begin().await;
    let answer = keyed(&attached).await;
    assert!(answer["result"] != Value::Null, "{answer}");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_server_is_reported_and_its_calls_are_not_answered() {
    let mut attached = Attached::open().await;
    let send = message("message/send", &json!({ "blocking": true }));
    let calls = [("mcp", call("effect")), ("a2a", send), ("rpc", rpc("add"))];
    let available = async |attached: &Attached, agent: &str| -> (Value, String) {
        let url = format!("{}/a2a/agents/{agent}", attached.front.base);
        let text = reqwest::get(url).await.unwrap().text().await.unwrap();
        let entry: Value = serde_json::from_str(&text).unwrap();
        let cause = entry["cause"].as_str().unwrap_or_default().to_owned();
        (entry["available"].clone(), cause)
    };
    for (agent, body) in &calls {
        let answer = attached.ask(&format!("/rpc/{agent}"), body).await;
        assert!(answer["result"] != Value::Null, "{agent}: {answer}");
        assert_eq!(available(&attached, agent).await.0, true, "{agent}");
    }
    attached.site.end();
    for (agent, body) in &calls {
        let is_unavailable = async || {
            let answer = attached.ask(&format!("/rpc/{agent}"), body).await;
            reason(&answer) == "agent_unavailable"
        };
        attached.until("an error", is_unavailable).await;
        let is_shown = async || {
            let (is_available, cause) = available(&attached, agent).await;
            is_available == false && cause.contains("refused")
        };
        attached.until("the cause in the list", is_shown).await;
        let ready: Value = serde_json::from_str(&attached.front.admin("/readyz").await).unwrap();
        let name = format!("agent {agent}");
        let mut degraded = ready["degraded"].as_array().unwrap().iter();
        let shown = degraded.find(|it| it["name"] == name.as_str());
        let shown = shown.unwrap_or_else(|| panic!("{agent}: {ready}"));
        assert!(
            shown["cause"].as_str().unwrap().contains("refused"),
            "{ready}"
        );
        assert_eq!(ready["ready"], true, "{ready}");
        let metrics = attached.front.admin("/metrics").await;
        let count = |outcome: &str| {
            let start =
                format!("a2abus_agent_calls_total{{agent=\"{agent}\",outcome=\"{outcome}\"}} ");
            let mut lines = metrics.lines();
            lines
                .find_map(|line| line.strip_prefix(&start))
                .map(str::to_owned)
        };
        assert_eq!(
            count("answered").as_deref(),
            Some("1"),
            "{agent}: {metrics}"
        );
        assert!(count("unavailable").is_some(), "{agent}: {metrics}");
    }
    // The side that calls the server does not know the dialect of this client.
    let jaf = attached.front.to("/a2a/agents/a2a", calls[1].1.to_string());
    let jaf = jaf.header("content-type", "application/json");
    let refused = jaf.header("x-a2a-version", "0.3.0").send().await.unwrap();
    let refused: Value = refused.json().await.unwrap();
    assert_eq!(refused["error"]["code"], -32_002, "{refused}");
    let data = &refused["error"]["data"];
    assert_eq!(data["reason"], "agent_unavailable", "{refused}");
    assert_eq!(data["requestId"], refused["id"], "{refused}");
    attached.site.begin().await;
    for (agent, body) in &calls {
        let is_back = async || {
            let answer = attached.ask(&format!("/rpc/{agent}"), body).await;
            answer["result"] != Value::Null && available(&attached, agent).await.0 == true
        };
        attached.until("the server", is_back).await;
    }
    let ready = attached.front.admin("/readyz").await;
    assert!(!ready.contains("degraded"), "{ready}");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unused_server_is_shown_as_unavailable_too() {
    let refusing = Refusing::new();
    let address = refusing.address();
    let agents = ["mcp", "a2a", "jsonrpc"];
    let agent = |protocol: &str| {
        format!(
            "
  {protocol}:
    description: Nobody is there.
    to: {{ transport: local, topic: attached.{protocol} }}
    attach: {{ url: 'http://{address}/', protocol: {protocol} }}"
        )
    };
    let config = format!(
        "
instance: test
transports: {{ local: {{ type: memory }} }}
agents:{}
http: {{ listen: '127.0.0.1:0' }}
admin: {{ listen: '127.0.0.1:0' }}
",
        agents.map(agent).concat()
    );
    let front = Front::open_with(&config).await;
    let start = Instant::now();
    loop {
        let ready = front.admin("/readyz").await;
        if agents
            .iter()
            .all(|it| ready.contains(&format!("agent {it}")))
        {
            break;
        }
        assert!(start.elapsed() < SOON, "{ready}");
        sleep(Duration::from_millis(10)).await;
    }
    front.stop.cancel();
    timeout(SOON, front.running).await.unwrap().unwrap();
}

/// A bridge whose agent `silent` is a server at this address, read by a binding too.
/// An address that refuses connections, and that nobody else can use meanwhile.
struct Refusing(TcpSocket);

impl Refusing {
    fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Self(socket)
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    /// Accepts connections from now on.
    fn listen(self) -> TcpListener {
        self.0.listen(16).unwrap()
    }
}

async fn silent(address: SocketAddr) -> Front {
    let config = format!(
        "
instance: test
transports: {{ local: {{ type: memory }} }}
agents:
  silent:
    description: Says nothing.
    to: {{ transport: local, topic: attached.silent }}
    attach: {{ url: 'http://{address}/', protocol: jsonrpc, announce: cards }}
bindings:
  - {{ name: requests, transport: local, topics: [requests], reply_topics: [answers] }}
http: {{ listen: '127.0.0.1:0' }}
admin: {{ listen: '127.0.0.1:0' }}
"
    );
    Front::open_with(&config).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_request_to_an_unavailable_server_gets_an_error_with_its_own_id() {
    let refusing = Refusing::new();
    let front = silent(refusing.address()).await;
    let mut answers = read(&front.memory, "answers").await;
    let event = [
        ("specversion", "1.0"),
        ("id", "e-1"),
        ("source", "/test"),
        ("type", "test"),
        ("targetagent", "silent"),
        ("replyto", "answers"),
    ];
    let ask = r#"{"jsonrpc":"2.0","id":7.0,"method":"add","params":{}}"#;
    let mut message = Message::plain(ask);
    let mut posted = front.to("/rpc", ask);
    for (name, value) in event {
        message.headers.push(format!("ce_{name}"), value);
        posted = posted.header(format!("ce-{name}"), value);
    }
    message.headers.push("content-type", "application/json");
    let place = Address::topic(Topic::new("requests").unwrap());
    publish(&front.memory, &place, message).await;
    let received = next(&mut answers).await.body.unwrap_or_default();
    let posted = posted.header("content-type", "application/json");
    let response = posted.send().await.unwrap().text().await.unwrap();
    for text in [std::str::from_utf8(&received).unwrap(), &response] {
        let answer: Value = serde_json::from_str(text).unwrap();
        assert_eq!(answer["id"].to_string(), "7.0", "{text}");
        assert_eq!(reason(&answer), "agent_unavailable", "{text}");
    }
    front.stop.cancel();
    timeout(SOON, front.running).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_there_once_it_takes_connections_whatever_it_does_with_them() {
    let refusing = Refusing::new();
    let front = silent(refusing.address()).await;
    let mut cards = read(&front.memory, "cards").await;
    let start = Instant::now();
    while !front.admin("/readyz").await.contains("agent silent") {
        assert!(start.elapsed() < SOON, "it is away");
        sleep(Duration::from_millis(10)).await;
    }
    let listener = refusing.listen();
    let closing = tokio::spawn(async move {
        loop {
            drop(listener.accept().await);
        }
    });
    let card = body(&next(&mut cards).await);
    assert_eq!(card["name"], "silent");
    assert!(!front.admin("/readyz").await.contains("degraded"));
    closing.abort();
    front.stop.cancel();
    timeout(SOON, front.running).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_that_stops_shortens_the_lease_of_its_agents() {
    let refusing = Refusing::new();
    let front = silent(refusing.address()).await;
    let mut cards = read(&front.memory, "cards").await;
    let mut lease = async || {
        let card = body(&next(&mut cards).await);
        card["capabilities"]["extensions"][0]["params"]["lease"].clone()
    };
    let listener = refusing.listen();
    let closing = tokio::spawn(async move {
        loop {
            drop(listener.accept().await);
        }
    });
    assert_eq!(lease().await, "90s");
    front.stop.cancel();
    // Another announcement may have come first.
    while lease().await != "40s" {}
    closing.abort();
    timeout(SOON, front.running).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_server_changes_no_mcp_list() {
    let mut site = Site::start().await;
    let front = silent(site.address).await;
    let url = format!("{}/mcp", front.base);
    let http = reqwest::Client::new();
    let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    let initialize = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
    let request = front.to("/mcp", initialize.to_string());
    let request = request
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream");
    let response = request.send().await.unwrap();
    let listening = http
        .get(&url)
        .header("accept", "text/event-stream")
        .header("mcp-session-id", &response.headers()["mcp-session-id"]);
    let listening = listening.send().await.unwrap();
    assert_eq!(listening.status(), 200);
    site.end();
    for is_away in [true, false] {
        let start = Instant::now();
        loop {
            let call = front.to("/rpc/silent", rpc("add").to_string());
            call.send().await.unwrap();
            if front.admin("/readyz").await.contains("agent silent") == is_away {
                break;
            }
            assert!(start.elapsed() < SOON, "away: {is_away}");
        }
        site.begin().await;
    }
    front.stop.cancel();
    let received = timeout(SOON, listening.text()).await.unwrap().unwrap();
    assert!(!received.contains("list_changed"), "{received}");
    timeout(SOON, front.running).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_answer_fails_only_its_call() {
    let attached = Attached::open().await;
    for (path, body, word) in [
        ("/rpc/mcp", call("garbage"), "no answer"),
        ("/rpc/mcp", call("away"), "503"),
        ("/rpc/rpc", rpc("garbage"), "no answer"),
        ("/rpc/rpc", rpc("away"), "503"),
    ] {
        let answer = attached.ask(path, &body).await;
        // The server may have executed it before it failed.
        assert_eq!(reason(&answer), "answer_lost", "{path}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(word), "{word}: {answer}");
    }
    let answer = attached.call("echo").await;
    assert!(answer["result"].is_object(), "{answer}");
    assert_eq!(attached.site.recorder.of("initialize").len(), 1);
    attached.end().await;
}

/// An MCP client that answers questions of servers.
struct Client {
    http: reqwest::Client,
    url: String,
    session: Option<String>,
}

impl Client {
    async fn open(attached: &Attached) -> Self {
        let mut client = Self {
            http: reqwest::Client::new(),
            url: format!("{}/mcp/agents/mcp", attached.front.base),
            session: None,
        };
        let params = json!({ "protocolVersion": "2025-06-18", "capabilities": { "sampling": {} }, "clientInfo": { "name": "t", "version": "1" } });
        let initialize =
            json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        let response = client.post(&initialize).await;
        let session = response.headers()["mcp-session-id"].to_str().unwrap();
        client.session = Some(session.to_owned());
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        client.post(&initialized).await;
        client
    }

    async fn post(&self, body: &Value) -> reqwest::Response {
        let request = self.http.post(&self.url).timeout(SOON);
        let mut request = request
            .body(body.to_string())
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        if let Some(session) = &self.session {
            request = request.header("mcp-session-id", session);
        }
        request.send().await.unwrap()
    }

    /// The answer of a tool. Its questions are answered with "blue".
    async fn call(&self, tool: &str) -> String {
        let mut response = self.post(&call(tool)).await;
        let is_stream = response.headers()["content-type"] == "text/event-stream";
        let (mut text, mut answered) = (String::new(), false);
        while let Some(piece) = response.chunk().await.unwrap() {
            text += std::str::from_utf8(&piece).unwrap();
            let end = text.rfind("\n\n").filter(|_| is_stream);
            let whole = end.map_or(0, |end| end + 2);
            let events = read_events(&text[..whole]).into_iter();
            let events = events.map(|event| event.json());
            let mut questions = events.filter(|it| it["method"] == "sampling/createMessage");
            if let Some(question) = questions.next().filter(|_| !answered) {
                let content = json!({ "type": "text", "text": "blue" });
                let result = json!({ "role": "assistant", "content": content, "model": "m" });
                let response = json!({ "jsonrpc": "2.0", "id": question["id"], "result": result });
                self.post(&response).await;
                answered = true;
            }
        }
        let last = match is_stream {
            true => read_events(&text).pop().unwrap().json(),
            false => serde_json::from_str(&text).unwrap(),
        };
        let sampled = last["result"]["content"][0]["text"].as_str();
        sampled.unwrap_or_else(|| panic!("{text}")).to_owned()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_of_the_server_goes_to_the_client_of_its_only_call() {
    let attached = Attached::open_with("concurrency: 1").await;
    let client = Client::open(&attached).await;
    assert_eq!(client.call("ask").await, "blue");
    assert_eq!(client.call("ask_beside").await, "blue");
    attached.end().await;
}

/// Nobody can answer it, and while the server waits for that, it takes no other call.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_client_leaves_with_a_question_makes_room_for_others() {
    let attached = Attached::open_with("concurrency: 1").await;
    let client = Client::open(&attached).await;
    let mut response = client.post(&call("ask")).await;
    let question = response.chunk().await.unwrap().unwrap();
    let question = read_events(std::str::from_utf8(&question).unwrap())[0].json();
    assert_eq!(question["method"], "sampling/createMessage", "{question}");
    drop(response);
    let answer = attached.call("echo").await;
    assert!(answer["result"].is_object(), "{answer}");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_on_the_response_of_a_call_goes_to_its_client_whatever_else_the_server_does() {
    let attached = Attached::open_with("concurrency: 2").await;
    let client = Client::open(&attached).await;
    let (_, output) = attached.site.recorder.of("initialize").remove(0);
    let elicitation = &output["params"]["capabilities"]["elicitation"];
    assert!(elicitation.is_object(), "{output}");
    let calls = async {
        attached
            .until("the other call", async || {
                attached.site.recorder.calls("hang") == 1
            })
            .await;
        let named = client.call("ask").await;
        (named, client.call("ask_beside").await)
    };
    tokio::select! {
        answer = attached.call("hang") => panic!("it is answered: {answer}"),
        (named, unnamed) = calls => {
            assert_eq!(named, "blue");
            assert!(unnamed.contains("several calls"), "{unnamed}");
        }
    }
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_can_ask_after_a_call_was_cancelled() {
    let attached = Attached::open_with("concurrency: 1").await;
    let client = Client::open(&attached).await;
    let cancels = || attached.site.recorder.of("notifications/cancelled").len();
    let cancel = async |tool: &str| {
        let before = cancels();
        let until_called =
            attached.until("the call", async || attached.site.recorder.calls(tool) == 1);
        tokio::select! {
            answer = attached.call(tool) => panic!("it is answered: {answer}"),
            () = until_called => {}
        }
        let cancelled = attached.until("the cancel", async || cancels() > before);
        cancelled.await;
    };
    // One that the server answers when it is cancelled.
    cancel("obey").await;
    let can_ask = attached.until("a question beside the calls", async || {
        client.call("ask_beside").await == "blue"
    });
    can_ask.await;
    // One that it never answers.
    cancel("hang").await;
    assert_eq!(client.call("ask").await, "blue");
    let unknown = client.call("ask_beside").await;
    assert!(unknown.contains("cancelled"), "{unknown}");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_announces_changed_tools_outside_its_requests() {
    let attached = Attached::open().await;
    let lists = || attached.site.recorder.of("tools/list").len();
    attached.until("the tools", async || lists() == 1).await;
    let changed = json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" });
    attached
        .until("the changed tools", async || {
            attached.site.recorder.say_beside(&changed).await;
            lists() > 1
        })
        .await;
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stream_of_a_session_is_opened_once_the_server_no_longer_refuses_it() {
    for status in [
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::BAD_REQUEST,
        // The session still answers a ping.
        StatusCode::NOT_FOUND,
    ] {
        let site = Site::start().await;
        site.recorder.refusals.lock().unwrap().insert("GET", status);
        let attached = Attached::open_at(site, "concurrency: 4", SOON).await;
        let lists = || attached.site.recorder.of("tools/list").len();
        // The bridge may have missed changes before the stream was open.
        attached
            .until("all lists are read again", async || lists() > 1)
            .await;
        let before = lists();
        let changed = json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" });
        attached
            .until("the changed tools", async || {
                attached.site.recorder.say_beside(&changed).await;
                lists() > before
            })
            .await;
        attached.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_hears_only_of_the_list_that_has_changed() {
    let attached = Attached::open().await;
    let lists = || attached.site.recorder.of("tools/list").len();
    attached.until("the tools", async || lists() == 1).await;
    // The last list that the bridge reads at the start. A list that is read later has changed.
    let templates = || attached.site.recorder.of("resources/templates/list").len();
    attached
        .until("the templates", async || templates() == 1)
        .await;
    let client = Client::open(&attached).await;
    let get = client.http.get(&client.url);
    let get = get.header("accept", "text/event-stream");
    let get = get.header("mcp-session-id", client.session.as_ref().unwrap());
    let mut stream = get.send().await.unwrap();
    for list in ["resources", "prompts", "tools"] {
        let method = format!("notifications/{list}/list_changed");
        let changed = json!({ "jsonrpc": "2.0", "method": method });
        let changes = &attached.site.recorder.changes;
        changes.lock().unwrap().insert(list, "new".to_owned());
        // Said again, it changes nothing.
        let mut received = String::new();
        let start = Instant::now();
        while read_events(&received).is_empty() {
            assert!(start.elapsed() < SOON, "{list}");
            attached.site.recorder.say_beside(&changed).await;
            let chunk = timeout(Duration::from_millis(50), stream.chunk());
            if let Ok(chunk) = chunk.await {
                received += std::str::from_utf8(&chunk.unwrap().unwrap()).unwrap();
            }
        }
        let events = read_events(&received);
        let methods: Vec<Value> = events
            .iter()
            .map(|it| it.json()["method"].clone())
            .collect();
        assert_eq!(methods, [method]);
    }
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_server_gets_the_bytes_of_a_request_and_its_answer_passes() {
    let attached = Attached::open().await;
    let body = r#"{"jsonrpc": "2.0",  "id":"mine", "method":"exact", "params":{"n":1.0e2}}"#;
    let request = attached.front.to("/rpc/rpc", body);
    let request = request.header("content-type", "application/json");
    let answer = request.send().await.unwrap().text().await.unwrap();
    // The bridge replaces the id of its caller by its own, and back.
    let (before, after) = body.split_once(r#""mine""#).unwrap();
    assert!(
        answer.starts_with(r#"{ "id":"mine", "result" : "#),
        "{answer}"
    );
    assert!(
        answer.contains(before) && answer.contains(after),
        "{answer}"
    );
    let stream = attached.post("/rpc/rpc", &rpc("parts")).await;
    assert!(stream.contains("\"result\":7"), "{stream}");
    let refused = attached.ask("/rpc/rpc", &rpc("refuse")).await;
    assert_eq!(refused["error"]["message"], "no", "{refused}");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_parts_of_an_a2a_stream_come_one_by_one() {
    let attached = Attached::open().await;
    for path in ["/rpc/a2a", "/a2a/agents/a2a"] {
        let stream = attached
            .post(path, &message("message/stream", &json!({})))
            .await;
        let parts: Vec<Value> = read_events(&stream)
            .into_iter()
            .map(|event| event.json())
            .collect();
        let states = parts
            .iter()
            .map(|part| part["result"]["status"]["state"].as_str().unwrap_or("-"));
        assert_eq!(
            states.collect::<Vec<_>>(),
            ["submitted", "working", "completed"],
            "{path}: {stream}"
        );
    }
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_task_is_followed_to_its_end() {
    let attached = Attached::open().await;
    let at_once = json!({ "blocking": false });
    // A client that sends a request to the server directly gets its answer.
    let answer = attached
        .ask("/rpc/a2a", &message("message/send", &at_once))
        .await;
    assert_eq!(answer["result"]["status"]["state"], "working", "{answer}");
    let answer = attached
        .ask("/a2a/agents/a2a", &message("message/send", &at_once))
        .await;
    let task = answer["result"]["id"].clone();
    assert!(task.is_string(), "{answer}");
    let get = json!({ "jsonrpc": "2.0", "id": 2, "method": "tasks/get", "params": { "id": task } });
    attached
        .until("the end of the task", async || {
            let task = attached.ask("/a2a/agents/a2a", &get).await;
            task["result"]["status"]["state"] == "completed"
        })
        .await;
    // A response that is no answer did not end it.
    assert!(*attached.site.recorder.task_polls.lock().unwrap() > 2);
    // Nobody follows the task of the first call, so no message is published about it after its answer.
    let metrics = attached.front.admin("/metrics").await;
    let late = r#"a2abus_replies_total{outcome="late"} "#;
    let late = metrics.lines().find_map(|line| line.strip_prefix(late));
    assert!(matches!(late, None | Some("0")), "{late:?} late answers");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_with_news_may_take_longer_than_its_timeout() {
    let attached = Attached::open_for("concurrency: 4", SLOW_STEP * (SLOW_STEPS - 1)).await;
    let slow = |method: &str| {
        let mut request = message(method, &json!({ "blocking": false }));
        request["params"]["metadata"] = json!({ "slow": true });
        request
    };
    let stream = async |path: &str| {
        let stream = attached.post(path, &slow("message/stream")).await;
        let last = read_events(&stream).pop().unwrap().json();
        let state = &last["result"]["status"]["state"];
        assert_eq!(state, "completed", "{path}: {stream}");
    };
    let streams = async { tokio::join!(stream("/rpc/a2a"), stream("/a2a/agents/a2a")) };
    let tool = async {
        let mut request = call("slow");
        request["params"]["_meta"] = json!({ "progressToken": "mine" });
        let stream = attached.post("/mcp/agents/mcp", &request).await;
        let last = read_events(&stream).pop().unwrap().json();
        assert_eq!(last["result"]["content"][0]["text"], "done", "{stream}");
    };
    let task = async {
        let answer = attached.ask("/a2a/agents/a2a", &slow("message/send")).await;
        let get = json!({ "jsonrpc": "2.0", "id": 2, "method": "tasks/get", "params": { "id": answer["result"]["id"] } });
        for expected in ["working", "completed"] {
            attached
                .until(expected, async || {
                    let task = attached.ask("/a2a/agents/a2a", &get).await;
                    let state = &task["result"]["status"]["state"];
                    assert_ne!(state, "failed", "{task}");
                    state == expected
                })
                .await;
        }
    };
    tokio::join!(streams, tool, task);
    assert!(attached.site.recorder.of("tasks/cancel").is_empty());
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_a2a_1_0_gets_the_version_header() {
    let attached = Attached::open().await;
    let message = json!({ "messageId": "m", "role": "ROLE_USER", "parts": [{ "text": "hello" }] });
    let send = json!({ "jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": { "message": message } });
    let answer = attached.ask("/rpc/a2a", &send).await;
    assert_eq!(answer["result"]["message"]["messageId"], "m", "{answer}");
    let (headers, _) = attached.site.recorder.of("SendMessage").pop().unwrap();
    assert_eq!(headers["a2a-version"], "1.0");
    attached
        .ask("/rpc/a2a", &self::message("message/send", &json!({})))
        .await;
    let (headers, _) = attached.site.recorder.of("message/send").pop().unwrap();
    assert!(!headers.contains_key("a2a-version"), "{headers:?}");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_one_version_of_a2a_gets_the_requests_of_the_other() {
    let site = Site::start().await;
    let agent = |name: &str| {
        format!(
            "
  {name}:
    to: {{ transport: local, topic: attached.{name} }}
    attach: {{ url: 'http://{}/{name}', protocol: a2a }}",
            site.address
        )
    };
    let config = format!(
        "
instance: test
transports: {{ local: {{ type: memory }} }}
agents:{}{}{}
http: {{ listen: '127.0.0.1:0', drain_grace: 5s }}
admin: {{ listen: '127.0.0.1:0' }}
",
        agent("new"),
        agent("old"),
        agent("changing"),
    );
    let attached = Attached {
        front: Front::open_with(&config).await,
        site,
        directory: TempDir::new().unwrap(),
    };
    attached
        .until("the cards have been read", async || {
            let tools = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
            let tools = attached.ask("/mcp", &tools).await;
            tools["result"]["tools"].as_array().map(Vec::len) == Some(3)
        })
        .await;
    for path in ["/rpc/new", "/a2a/agents/new"] {
        let sent = message("message/send", &json!({ "blocking": true }));
        let answer = attached.ask(path, &sent).await;
        let result = &answer["result"];
        assert_eq!(result["kind"], "message", "{path}: {answer}");
        assert_eq!(result["role"], "agent", "{path}: {answer}");
        let text = json!({ "kind": "text", "text": "new" });
        assert_eq!(result["parts"][0], text, "{path}: {answer}");
        let stream = message("message/stream", &json!({}));
        let stream = attached.post(path, &stream).await;
        let events = read_events(&stream).into_iter();
        let results = events.map(|event| event.json()["result"].take());
        let states = results.map(|result| result["status"]["state"].clone());
        assert_eq!(
            states.collect::<Vec<_>>(),
            ["submitted", "working", "completed"],
            "{path}: {stream}"
        );
    }
    for (headers, body) in attached.site.recorder.of("SendMessage") {
        assert_eq!(headers["a2a-version"], "1.0");
        let message = &body["params"]["message"];
        assert_eq!(message.get("kind"), None, "{body}");
        assert_eq!(message["role"], "ROLE_USER", "{body}");
    }
    let arguments = json!({ "text": "hello" });
    let skill = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": "add", "arguments": arguments } });
    let answer = attached.ask("/mcp/agents/new", &skill).await;
    assert_eq!(answer["result"]["content"][0]["text"], "new", "{answer}");
    let parts = json!([{ "text": "hello" }]);
    let sent = json!({ "messageId": "m", "role": "ROLE_USER", "parts": parts });
    let sent = json!({ "jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": { "message": sent } });
    let answer = attached.ask("/rpc/old", &sent).await;
    let answered = &answer["result"]["message"];
    assert_eq!(answered["role"], "ROLE_AGENT", "{answer}");
    assert_eq!(answered["parts"], json!([{ "text": "old" }]), "{answer}");
    // Another server may run at the same URL at any time.
    for (has_changed, text) in [(false, "old"), (true, "new"), (false, "old")] {
        let recorder = &attached.site.recorder;
        recorder.has_changed.store(has_changed, Ordering::SeqCst);
        let answer = attached.ask("/rpc/changing", &sent).await;
        let part = &answer["result"]["message"]["parts"][0];
        assert_eq!(part["text"], text, "{answer}");
        let v0_3 = message("message/send", &json!({ "blocking": true }));
        let answer = attached.ask("/rpc/changing", &v0_3).await;
        assert_eq!(answer["result"]["parts"][0]["text"], text, "{answer}");
    }
    let mut list = sent.clone();
    list["method"] = json!("ListTasks");
    let answer = attached.ask("/rpc/old", &list).await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("no equivalent of ListTasks"), "{answer}");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_a2a_server_gets_the_extensions_and_messages_without_an_answer() {
    let attached = Attached::open().await;
    for (header, method, sent_as) in [
        ("a2a-extensions", "message/send", "x-a2a-extensions"),
        ("x-a2a-extensions", "SendMessage", "a2a-extensions"),
    ] {
        let request = message(method, &json!({})).to_string();
        let request = attached.front.to("/rpc/a2a", request);
        request.header(header, "urn:e1").send().await.unwrap();
        let (headers, _) = attached.site.recorder.of(method).pop().unwrap();
        assert_eq!(headers[sent_as], "urn:e1", "{headers:?}");
    }
    let url = format!("http://{}/new", attached.site.address);
    let config = format!(
        "
instance: test
transports: {{ local: {{ type: memory }} }}
agents: {{ new: {{ to: {{ transport: local, topic: attached.new }}, attach: {{ url: '{url}', protocol: a2a }} }} }}
http: {{ listen: '127.0.0.1:0', drain_grace: 5s }}
admin: {{ listen: '127.0.0.1:0' }}
"
    );
    let front = Front::open_with(&config).await;
    let mut unanswered = message("message/send", &json!({}));
    unanswered.as_object_mut().unwrap().remove("id");
    let recorder = &attached.site.recorder;
    // It is not translated until the card has been read.
    attached
        .until("the message in the version of the server", async || {
            let request = front.to("/rpc/new", unanswered.to_string());
            request.send().await.unwrap();
            let received = recorder.of("SendMessage");
            received.iter().any(|(_, body)| body.get("id").is_none())
        })
        .await;
    front.stop.cancel();
    timeout(SOON, front.running).await.unwrap().unwrap();
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_names_no_tool_of_an_mcp_server_is_refused_with_the_fix() {
    let attached = Attached::open().await;
    for path in ["/rpc/mcp", "/a2a/agents/mcp"] {
        let answer = attached
            .ask(path, &message("message/send", &json!({})))
            .await;
        assert_eq!(reason(&answer), "invalid_params", "{path}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("metadata.skillId") && message.contains("echo"),
            "{path}: {answer}"
        );
    }
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_read_again_after_the_server_has_refused_it() {
    let attached = Attached::open().await;
    let answer = attached.ask("/rpc/rpc", &rpc("secret")).await;
    assert_eq!(reason(&answer), "agent_unavailable", "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("401") && !message.contains("old"),
        "{answer}"
    );
    std::fs::write(attached.directory.path().join("token"), "Bearer new\n").unwrap();
    let answer = attached.ask("/rpc/rpc", &rpc("secret")).await;
    assert_eq!(answer["result"], "done", "{answer}");
    attached.end().await;
}

fn about_resource(id: u32, method: &str, uri: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": { "uri": uri } })
}

/// The stream of notifications for one client.
struct Listening {
    stream: reqwest::Response,
    received: String,
}

impl Listening {
    async fn open(client: &Client) -> Self {
        let get = client.http.get(&client.url);
        let get = get.header("accept", "text/event-stream");
        let get = get.header("mcp-session-id", client.session.as_ref().unwrap());
        Self {
            stream: get.send().await.unwrap(),
            received: String::new(),
        }
    }

    /// The URIs of all changed resources so far, once there is a new one. The server repeats its message until then.
    async fn uris(&mut self, site: &Site, message: &Value) -> Vec<String> {
        let start = Instant::now();
        let before = read_events(&self.received).len();
        while read_events(&self.received).len() == before {
            assert!(start.elapsed() < SOON, "{}", self.received);
            site.recorder.say_beside(message).await;
            let chunk = timeout(Duration::from_millis(50), self.stream.chunk());
            if let Ok(chunk) = chunk.await {
                self.received += std::str::from_utf8(&chunk.unwrap().unwrap()).unwrap();
            }
        }
        let events = read_events(&self.received).into_iter();
        let uri = |event: Value| event["params"]["uri"].as_str().unwrap().to_owned();
        let mut uris: Vec<String> = events.map(|event| uri(event.json())).collect();
        uris.dedup();
        uris
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_change_of_a_resource_reaches_the_clients_that_have_subscribed_to_it() {
    let mut attached = Attached::open().await;
    let updated = |uri: &str| json!({ "jsonrpc": "2.0", "method": "notifications/resources/updated", "params": { "uri": uri } });
    let clients = [
        Client::open(&attached).await,
        Client::open(&attached).await,
        Client::open(&attached).await,
    ];
    let [one, two, three] = &clients;
    let change = async |client: &Client, method: &str, uri: &str| {
        let answer = client.post(&about_resource(1, method, uri)).await;
        let answer: Value = answer.json().await.unwrap();
        assert_eq!(answer["result"], json!({}), "{answer}");
    };
    change(one, "resources/subscribe", "site:a").await;
    let mut first = Listening::open(one).await;
    let mut second = Listening::open(two).await;
    // A subscription counts for a stream that is open already, too.
    change(two, "resources/subscribe", "site:b").await;
    change(three, "resources/subscribe", "site:a").await;
    let of_a = first.uris(&attached.site, &updated("site:a/within")).await;
    assert_eq!(of_a, ["site:a/within"]);
    let of_b = second.uris(&attached.site, &updated("site:b")).await;
    assert_eq!(of_b, ["site:b"]);

    // The server is told when the last client has ended its subscription.
    let ended = || attached.site.recorder.of("resources/unsubscribe").len();
    change(one, "resources/unsubscribe", "site:a").await;
    assert_eq!(ended(), 0);
    change(three, "resources/unsubscribe", "site:a").await;
    assert_eq!(ended(), 1);
    let metric = r#"a2abus_attached_dropped_total{agent="mcp"}"#;
    attached
        .until("the change that nobody wants", async || {
            attached.site.recorder.say_beside(&updated("site:a")).await;
            let metrics = attached.front.admin("/metrics").await;
            let mut lines = metrics.lines().filter(|line| line.starts_with(metric));
            lines.next().is_some_and(|line| !line.ends_with(" 0"))
        })
        .await;

    // A server that was started again is asked to watch the resource again.
    attached.site.begin().await;
    let of_b = second.uris(&attached.site, &updated("site:b/new")).await;
    assert_eq!(of_b, ["site:b", "site:b/new"]);
    // The change may come before.
    attached
        .until("the resource is watched in the new session", async || {
            let asked = attached.site.recorder.of("resources/subscribe");
            asked.iter().any(|(headers, asked)| {
                headers["mcp-session-id"] != "s-1" && asked["params"]["uri"] == "site:b"
            })
        })
        .await;

    // The end of its session ends a subscription.
    let delete = two.http.delete(&two.url);
    let delete = delete.header("mcp-session-id", two.session.as_ref().unwrap());
    assert_eq!(delete.send().await.unwrap().status(), 204);
    attached
        .until("the end of the last subscription", async || {
            attached.site.recorder.of("resources/unsubscribe").len() == 2
        })
        .await;
    attached.end().await;
}
