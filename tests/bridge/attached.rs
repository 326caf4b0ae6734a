//! Attached agents: a program on the bus, called through every interface, and the outcome of calls when it misbehaves.

use std::path::PathBuf;
use std::time::Duration;

use a2abus_transports::memory::Memory;
use a2abus_transports::{Address, Consumer, Message, Topic, Transport as _};
use serde_json::{Value, json};
use support::battery::until_closed;
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use crate::a2a::read_events;
use crate::http::{Front, SOON};
use crate::set_up::{self, body, group, next, publish, read};

/// A bridge with the fixture attached as the agent `fixture`.
struct Attached {
    front: Front,
    directory: TempDir,
}

impl Attached {
    async fn open(env: &str) -> Self {
        Self::open_with(env, "").await
    }

    async fn open_with(env: &str, more: &str) -> Self {
        Self::open_for(env, more, "1m").await
    }

    /// With this time limit of calls.
    async fn open_for(env: &str, more: &str, call_timeout: &str) -> Self {
        Self::open_with_limits(env, more, (call_timeout, "5s")).await
    }

    /// With these time limits of calls and of the drain.
    async fn open_with_limits(
        env: &str,
        more: &str,
        (call_timeout, drain_grace): (&str, &str),
    ) -> Self {
        let directory = TempDir::new().unwrap();
        let server = concat!(env!("CARGO_MANIFEST_DIR"), "/support/mcp_server.py");
        let effects = directory.path().join("effects");
        let config = format!(
            "
instance: test
transports: {{ local: {{ type: memory }} }}
agents:
  fixture:
    description: Misbehaves.
    to: {{ transport: local, topic: attached.fixture }}
    attach:
      command: [python3, {server}]
      env: {{ EFFECTS: {effects:?}{env} }}
      directory: {directory:?}
      {more}
calls: {{ timeout: {call_timeout} }}
http: {{ listen: '127.0.0.1:0', drain_grace: {drain_grace} }}
admin: {{ listen: '127.0.0.1:0' }}
",
            directory = directory.path(),
        );
        let front = Front::open_with(&config).await;
        Self { front, directory }
    }

    fn effects(&self) -> PathBuf {
        self.directory.path().join("effects")
    }

    /// Waits until the effects are these.
    async fn until_effects(&self, expected: &[&str]) {
        let start = Instant::now();
        loop {
            let text = std::fs::read_to_string(self.effects()).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            if lines == expected {
                return;
            }
            assert!(start.elapsed() < SOON, "{lines:?}, not {expected:?}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until the metrics have this line.
    async fn until_metric(&self, line: &str) {
        let start = Instant::now();
        loop {
            let metrics = self.front.admin("/metrics").await;
            if metrics.lines().any(|it| it == line) {
                return;
            }
            assert!(start.elapsed() < SOON, "no {line} in {metrics}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn post(&self, path: &str, body: &Value) -> String {
        let request = self.front.to(path, body.to_string());
        let request = request
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        request.send().await.unwrap().text().await.unwrap()
    }

    async fn call(&self, path: &str, tool: &str) -> Value {
        let answer = self.post(path, &call(tool)).await;
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    /// The next announcement of the agent, on the topic `cards`, with this lease.
    async fn until_announced(cards: &mut Consumer, lease: &str) -> Value {
        loop {
            let card = body(&next(cards).await);
            let about = card["capabilities"]["extensions"][0]["params"].clone();
            if about["lease"] == lease {
                return about;
            }
        }
    }

    /// Stops the bridge, and waits until its binding has been told: it announces the agent for the last time.
    async fn begin_to_stop(&self) {
        let mut cards = read(&self.front.memory, "cards").await;
        Self::until_announced(&mut cards, "90s").await;
        self.front.stop.cancel();
        Self::until_announced(&mut cards, "40s").await;
    }

    async fn end(self) {
        self.front.stop.cancel();
        timeout(SOON, self.front.running).await.unwrap().unwrap();
    }
}

fn call(tool: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": tool, "arguments": { "a": 1 } } })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attached_program_is_an_agent_on_every_interface() {
    let attached = Attached::open("").await;
    for path in ["/rpc/fixture", "/mcp/agents/fixture", "/rpc/fixture/mcp"] {
        let answer = attached.call(path, "echo").await;
        let text = &answer["result"]["content"][0]["text"];
        assert_eq!(text, r#"{"a": 1}"#, "{path}: {answer}");
    }
    let answer = attached.call("/mcp", "fixture.echo").await;
    assert!(answer["result"].is_object(), "{answer}");
    let list = json!({ "jsonrpc": "2.0", "id": "l", "method": "tools/list" });
    let list: Value = serde_json::from_str(&attached.post("/mcp", &list).await).unwrap();
    assert_eq!(list["result"]["tools"][0]["name"], "fixture.echo", "{list}");
    // The program has one client, the bridge: every client gets the answer that the bridge got.
    let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    let begin = json!({ "jsonrpc": "2.0", "id": 3, "method": "initialize", "params": params });
    let profile: Value =
        serde_json::from_str(&attached.post("/mcp/agents/fixture", &begin).await).unwrap();
    assert_eq!(profile["result"]["serverInfo"]["version"], "7", "{profile}");
    let answer = attached.call("/rpc/fixture", "tides").await;
    assert_eq!(answer["error"]["code"], -32_602, "{answer}");
    attached.end().await;
}

/// A message of A2A 0.3 with this part, or of 1.0.
fn message(method: &str, part: &Value, skill: Option<&str>) -> Value {
    let (role, kind) = match method {
        "SendMessage" => ("ROLE_USER", Value::Null),
        _ => ("user", "message".into()),
    };
    let mut message =
        json!({ "role": role, "messageId": "m", "contextId": "c", "parts": [part], "kind": kind });
    if let Some(skill) = skill {
        message["metadata"] = json!({ "skillId": skill });
    }
    if kind.is_null() {
        message.as_object_mut().unwrap().remove("kind");
    }
    json!({ "jsonrpc": "2.0", "id": "m-1", "method": method, "params": { "message": message } })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a2a_calls_a_tool_and_its_result_is_the_answer() {
    let attached = Attached::open("").await;
    let ask = async |path: &str, body: &Value| -> Value {
        serde_json::from_str(&attached.post(path, body).await).unwrap()
    };
    let (a2a, rpc) = ("/a2a/agents/fixture", "/rpc/fixture");
    let named = json!({ "tool": "echo", "arguments": { "a": 1 } });
    let old = message(
        "message/send",
        &json!({ "kind": "data", "data": named }),
        None,
    );
    let new = message("SendMessage", &json!({ "data": named }), None);
    let text = json!({ "kind": "text", "text": "hello" });
    let upper = message("message/send", &text, Some("upper"));
    let given = json!({ "kind": "data", "data": { "a": 1 } });
    let given = message("message/send", &given, Some("echo"));
    for path in [a2a, rpc] {
        for (body, expected) in [
            (&old, r#"{"a": 1}"#),
            (&upper, "HELLO"),
            (&given, r#"{"a": 1}"#),
        ] {
            let answer = ask(path, body).await;
            let result = &answer["result"];
            assert_eq!(result["kind"], "message", "{path}: {answer}");
            assert_eq!(result["parts"][0]["text"], expected, "{path}: {answer}");
            assert_eq!(result["contextId"], "c", "{path}: {answer}");
            assert_eq!(answer["id"], "m-1", "{path}: {answer}");
        }
    }
    let sent = attached.front.to(a2a, new.to_string());
    let sent = sent
        .header("content-type", "application/json")
        .header("a2a-version", "1.0");
    let answer: Value = sent.send().await.unwrap().json().await.unwrap();
    let result = &answer["result"]["message"];
    assert_eq!(
        result["parts"],
        json!([{ "text": r#"{"a": 1}"# }]),
        "{answer}"
    );
    assert_eq!(result["role"], "ROLE_AGENT", "{answer}");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a2a_may_be_as_large_as_the_limits_allow() {
    let attached = Attached::open_with("", "\nlimits: { max_members: 1000000 }").await;
    let arguments = json!({ "list": vec![1; 250_000] });
    let part = json!({ "kind": "data", "data": { "tool": "effect", "arguments": arguments } });
    let body = message("message/send", &part, None);
    let answer = attached.post("/rpc/fixture", &body).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["result"]["parts"][0]["text"], "done", "{answer}");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_content_of_a_tool_becomes_a_part_and_a_failure_a_failed_task() {
    let attached = Attached::open("").await;
    let run = async |tool: &str| -> String {
        let part = json!({ "kind": "data", "data": { "tool": tool } });
        let body = message("message/send", &part, None);
        attached.post("/a2a/agents/fixture", &body).await
    };
    let rich = run("rich").await;
    // The bytes of data stay as they are.
    assert!(rich.contains(r#"{"n": 12345678901234567890123}"#), "{rich}");
    let rich: Value = serde_json::from_str(&rich).unwrap();
    let parts = rich["result"]["parts"].as_array().unwrap();
    let kinds: Vec<_> = parts
        .iter()
        .map(|part| part["kind"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        ["file", "file", "text", "file", "data", "data"],
        "{rich}"
    );
    assert_eq!(
        parts[0]["file"],
        json!({ "bytes": "aGk=", "mimeType": "image/png" })
    );
    let link = json!({ "uri": "https://a.example/b", "name": "b", "mimeType": "text/csv" });
    assert_eq!(parts[1]["file"], link);
    assert_eq!(parts[2]["text"], "<p>");
    assert_eq!(parts[2]["metadata"]["uri"], "file:///a");
    assert_eq!(parts[4]["data"]["depth"], 3);
    let refused: Value = serde_json::from_str(&run("refuse").await).unwrap();
    let status = &refused["result"]["status"];
    assert_eq!(status["state"], "failed", "{refused}");
    assert_eq!(status["message"]["parts"][0]["text"], "no", "{refused}");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_without_a_tool_gets_the_names_of_all() {
    let attached = Attached::open("").await;
    let text = json!({ "kind": "text", "text": "hello" });
    let unknown = json!({ "kind": "data", "data": { "tool": "tides" } });
    let list = json!({ "kind": "data", "data": { "tool": "echo", "arguments": [1] } });
    let number = json!({ "kind": "data", "data": { "tool": 3 } });
    let file = json!({ "kind": "file", "file": { "uri": "https://a.example/b" } });
    for (part, skill, expected) in [
        (&list, None, "the arguments of a tool are an object"),
        (&number, None, "the data part: invalid type: integer `3`"),
        (&file, Some("upper"), "neither a data part nor a text"),
        (&text, None, "the message names no tool"),
        (&unknown, None, "there is no tool \"tides\""),
        (&text, Some("tides"), "there is no tool \"tides\""),
        (
            &text,
            Some("echo"),
            "the tool \"echo\" does not take a text",
        ),
    ] {
        let body = message("message/send", part, skill);
        let answer = attached.post("/a2a/agents/fixture", &body).await;
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["error"]["code"], -32_602, "{answer}");
        let why = answer["error"]["message"].as_str().unwrap();
        assert!(why.contains(expected), "{answer}");
        let names_all = why.contains("again, ask, close");
        assert_eq!(names_all, expected.contains(" no tool"), "{answer}");
    }
    let mut two = message("message/send", &unknown, Some("echo"));
    two["params"]["message"]["parts"] = json!([unknown, unknown]);
    let answer = attached.post("/a2a/agents/fixture", &two).await;
    assert!(answer.contains("send one data part"), "{answer}");
    let get = json!({ "jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": { "id": "t" } });
    let answer = attached.post("/rpc/fixture", &get).await;
    assert!(answer.contains("it takes messages only"), "{answer}");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_byte_order_mark_before_a_request_does_not_reach_the_program() {
    let attached = Attached::open("").await;
    let ping = r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#;
    for path in ["/rpc/fixture", "/mcp/agents/fixture"] {
        let request = attached.front.to(path, format!("\u{feff}{ping}"));
        let request = request
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        let answer: Value = request.send().await.unwrap().json().await.unwrap();
        assert_eq!(answer, json!({ "jsonrpc": "2.0", "id": 7, "result": {} }));
    }
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_an_id_is_dropped_and_counted() {
    let attached = Attached::open("").await;
    let part = json!({ "kind": "data", "data": { "tool": "effect" } });
    for mut body in [message("message/send", &part, None), call("effect")] {
        body.as_object_mut().unwrap().remove("id");
        attached.post("/rpc/fixture", &body).await;
    }
    let line = r#"a2abus_dropped_total{binding="agent-fixture",reason="no_id"} 2"#;
    attached.until_metric(line).await;
    // Later calls are executed.
    attached.call("/rpc/fixture", "effect").await;
    attached.until_effects(&["effect"]).await;
    attached.end().await;
}

/// The SDKs of MCP log such requests, and answer nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_the_program_would_ignore_is_refused() {
    let attached = Attached::open_with("", "reply_topics: [answers]").await;
    let mut producer = Producer::new(&attached).await;
    let token = |token: Value| json!({ "_meta": { "progressToken": token } });
    for (params, pointer) in [
        (json!(null), "/params"),
        (json!({ "_meta": null }), "/params/_meta"),
        (json!({ "_meta": 7 }), "/params/_meta"),
        (token(json!(1.5)), "/params/_meta/progressToken"),
        (token(json!(null)), "/params/_meta/progressToken"),
    ] {
        let body = json!({ "jsonrpc": "2.0", "id": 5, "method": "ping", "params": params });
        producer.publish(&body, &[]).await;
        let (_, answer) = producer.next().await;
        assert_eq!(answer["error"]["code"], -32_602, "{params}: {answer}");
        assert_eq!(answer["error"]["data"]["pointer"], pointer, "{answer}");
    }
    for params in [
        json!({}),
        json!({ "_meta": {} }),
        token(json!(-1)),
        token(json!("t")),
    ] {
        let body = json!({ "jsonrpc": "2.0", "id": 5, "method": "ping", "params": params });
        producer.publish(&body, &[]).await;
        let (_, answer) = producer.next().await;
        assert!(answer["result"].is_object(), "{params}: {answer}");
    }
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_but_the_id_of_an_answer_changes() {
    let attached = Attached::open("").await;
    let mut request = call("exact");
    request["id"] = json!("mine");
    let answer = attached.post("/rpc/fixture", &request).await;
    let expected = r#"{ "result" : {"n":1.0e2,  "s":"\u00e9"}, "id":"mine", "jsonrpc":"2.0" }"#;
    assert_eq!(answer, expected);
    attached.end().await;
}

/// The messages that the caller of the tool `progress` gets, for that many steps.
async fn progress_of(attached: &Attached, steps: usize) -> Vec<Value> {
    let mut request = call("progress");
    request["params"]["arguments"] = json!({ "total": steps });
    request["params"]["_meta"] = json!({ "progressToken": "mine" });
    let request = attached
        .front
        .to("/mcp/agents/fixture", request.to_string());
    let request = request
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream");
    let stream = request.send().await.unwrap().text().await.unwrap();
    let parts = read_events(&stream).into_iter();
    parts.map(|event| event.json()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_comes_before_the_answer_with_the_token_of_the_caller() {
    let attached = Attached::open("").await;
    let parts = progress_of(&attached, 2).await;
    let steps: Vec<_> = parts
        .iter()
        .map(|part| &part["params"]["progress"])
        .collect();
    assert_eq!(steps[..2], [&json!(1), &json!(2)], "{parts:?}");
    assert_eq!(parts[0]["params"]["progressToken"], "mine", "{parts:?}");
    assert_eq!(parts[2]["id"], 1, "{parts:?}");
    attached.end().await;
}

/// Many more than the queue of the call has room for.
#[tokio::test(flavor = "multi_thread")]
async fn no_message_before_an_answer_is_lost_however_fast_the_server_sends_them() {
    const STEPS: usize = 1_500;
    let attached = Attached::open("").await;
    let parts = progress_of(&attached, STEPS).await;
    let steps = parts.iter().map(|part| &part["params"]["progress"]);
    let steps: Vec<_> = steps.filter_map(Value::as_u64).collect();
    assert_eq!(steps, (1..=STEPS as u64).collect::<Vec<_>>());
    assert!(parts.last().unwrap()["result"].is_object());
    let metrics = attached.front.admin("/metrics").await;
    let dropped = r#"a2abus_attached_dropped_total{agent="fixture"} 0"#;
    assert!(metrics.contains(dropped), "{metrics}");
    attached.end().await;
}

/// The client does not learn that they are missing.
#[tokio::test(flavor = "multi_thread")]
async fn messages_before_an_answer_that_are_too_large_for_the_bus_are_counted() {
    let attached = Attached::open("").await;
    let mut request = call("progress");
    request["params"]["arguments"] = json!({ "total": 2, "pad": 2 << 20 });
    request["params"]["_meta"] = json!({ "progressToken": "mine" });
    let answer = attached.post("/mcp/agents/fixture", &request).await;
    assert!(answer.contains("done"), "{answer}");
    attached
        .until_metric(r#"a2abus_attached_dropped_total{agent="fixture"} 2"#)
        .await;
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_program_that_ends_fail_at_once_and_it_is_started_again() {
    let attached = Attached::open("").await;
    let (hangs, crashes) = tokio::join!(attached.call("/rpc/fixture", "hang"), async {
        attached.until_effects(&["begun"]).await;
        attached.call("/rpc/fixture", "crash").await
    });
    for answer in [hangs, crashes] {
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(
            message.contains("during the request, which may have been executed"),
            "{answer}"
        );
        assert_eq!(answer["error"]["data"]["reason"], "answer_lost", "{answer}");
    }
    let answer = attached.call("/rpc/fixture", "echo").await;
    assert!(answer["result"].is_object(), "{answer}");
    let metrics = attached.front.admin("/metrics").await;
    assert!(
        metrics.contains("a2abus_attached_starts_total{agent=\"fixture\"} 2"),
        "{metrics}"
    );
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_level_is_set_again_in_the_next_run_of_the_program() {
    let attached = Attached::open("").await;
    let set = json!({ "jsonrpc": "2.0", "id": 1, "method": "logging/setLevel", "params": { "level": "debug" } });
    let answer: Value = serde_json::from_str(&attached.post("/rpc/fixture", &set).await).unwrap();
    assert_eq!(answer["result"], json!({}), "{answer}");
    attached.call("/rpc/fixture", "crash").await;
    let expected = ["logs debug", "crash", "logs debug"];
    attached.until_effects(&expected).await;
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_for_a_task_of_an_earlier_run_says_who_knows_it() {
    let attached = Attached::open("").await;
    let ask = async |method: &str, params: Value| -> Value {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answer = attached.post("/rpc/fixture", &request).await;
        serde_json::from_str(&answer).unwrap()
    };
    let profile = ask("initialize", json!({ "protocolVersion": "2025-11-25" })).await;
    let offered = &profile["result"]["capabilities"];
    assert!(offered["tasks"].is_object(), "{profile}");
    let made = ask("tools/call", json!({ "name": "echo", "task": {} })).await;
    let task = json!({ "taskId": made["result"]["task"]["taskId"] });
    let known = ask("tasks/get", task.clone()).await;
    assert_eq!(known["result"]["status"], "working", "{known}");
    attached.call("/rpc/fixture", "crash").await;
    let unknown = ask("tasks/get", task).await;
    assert_eq!(unknown["error"]["code"], -32_602, "{unknown}");
    let message = unknown["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("Unknown tool"), "{unknown}");
    assert!(message.ends_with("only that one knows it"), "{unknown}");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_and_a_flood_of_log_lines_disturb_no_call() {
    let attached = Attached::open("").await;
    for tool in ["garbage", "shout", "echo"] {
        let answer = attached.call("/rpc/fixture", tool).await;
        assert!(answer["result"].is_object(), "{tool}: {answer}");
    }
    // An answer to a request that it never got.
    attached
        .until_metric(r#"a2abus_attached_dropped_total{agent="fixture"} 1"#)
        .await;
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_a_version_is_an_error() {
    let attached = Attached::open("").await;
    let answer = attached.call("/rpc/fixture", "bare").await;
    assert_eq!(
        answer["error"]["data"]["reason"], "bad_agent_reply",
        "{answer}"
    );
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_ends_in_the_program() {
    let attached = Attached::open("").await;
    let request = call("hang");
    let hanging = attached.post("/rpc/fixture", &request);
    tokio::select! {
        answer = hanging => panic!("it is answered: {answer}"),
        () = attached.until_effects(&["begun"]) => {}
    }
    // The caller has gone.
    attached.until_effects(&["begun", "cancelled"]).await;
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_gets_its_own_environment_and_directory() {
    let attached = Attached::open(", OWN: yes").await;
    let answer = attached.call("/rpc/fixture", "env").await;
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    let names: Vec<&str> = text.split(' ').collect();
    assert!(names.contains(&"OWN") && names.contains(&"PATH"), "{text}");
    assert!(
        !names.iter().any(|name| name.starts_with("CARGO")),
        "{text}"
    );
    let directory = attached.directory.path().canonicalize().unwrap();
    assert!(text.ends_with(directory.to_str().unwrap()), "{text}");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_gets_the_trace_context_of_its_request() {
    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let attached = Attached::open("").await;
    let meta = async |request: reqwest::RequestBuilder| {
        let request = request.header("content-type", "application/json");
        let answer = request.send().await.unwrap().text().await.unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let meta = answer["result"]["content"][0]["text"].as_str().unwrap();
        serde_json::from_str::<Value>(meta).unwrap()
    };
    for path in ["/mcp/agents/fixture", "/rpc/fixture"] {
        let plain = attached.front.to(path, call("meta").to_string());
        let traced = plain.try_clone().unwrap().header("traceparent", TRACE);
        let metadata = meta(traced.header("tracestate", "k=v")).await;
        assert_eq!(metadata["traceparent"], TRACE, "{path}: {metadata}");
        assert_eq!(metadata["tracestate"], "k=v", "{path}: {metadata}");
        assert_eq!(meta(plain).await, Value::Null, "{path}");
    }
    // The client's own values are not changed.
    let mut own = call("meta");
    own["params"]["_meta"] = json!({ "traceparent": TRACE, "x": 1 });
    let own = attached.front.to("/rpc/fixture", own.to_string());
    let metadata = meta(own.header("traceparent", TRACE.replace("b7", "c8"))).await;
    assert_eq!(metadata, json!({ "traceparent": TRACE, "x": 1 }));
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_gets_the_secrets_of_its_environment() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "from a file\n").unwrap();
    let env = format!(
        ", FILE: {{ file: {:?} }}, OTHER: {{ env: PATH }}",
        secret.path()
    );
    let attached = Attached::open(&env).await;
    let path = std::env::var("PATH").unwrap();
    for (name, value) in [("FILE", "from a file"), ("OTHER", path.as_str())] {
        let mut read = call("variable");
        read["params"]["arguments"] = json!({ "name": name });
        let answer = attached.post("/rpc/fixture", &read).await;
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["result"]["content"][0]["text"], value, "{answer}");
    }
    attached.end().await;
}

/// Whether a process is there that has not ended.
fn is_alive(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| &rest[..1]);
    state.is_some_and(|state| state != "Z")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_ignores_the_end_of_its_input_and_sigterm_is_killed() {
    let attached = Attached::open(", STUBBORN: yes").await;
    let answer = attached.call("/rpc/fixture", "processes").await;
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    let processes: Vec<&str> = text.split(' ').collect();
    assert_eq!(processes.len(), 2, "{answer}");
    assert!(processes.iter().all(|it| is_alive(it)), "{answer}");
    attached.end().await;
    let start = Instant::now();
    while processes.iter().any(|it| is_alive(it)) {
        assert!(start.elapsed() < SOON, "{processes:?} are still there");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_arrives_while_the_program_ends_is_handled_by_its_next_run() {
    let attached = Attached::open(", STUBBORN: yes").await;
    let answer = attached.call("/rpc/fixture", "close").await;
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("during the request, which may have been executed"),
        "{answer}"
    );
    let answer = attached.call("/rpc/fixture", "effect").await;
    assert!(answer["result"].is_object(), "{answer}");
    attached.until_effects(&["effect"]).await;
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_program_that_does_not_start_say_why() {
    let attached = Attached::open(", BROKEN: yes").await;
    let answer = attached.call("/rpc/fixture", "echo").await;
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("does not start"), "{answer}");
    assert_eq!(
        answer["error"]["data"]["reason"], "agent_unavailable",
        "{answer}"
    );
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_working_directory_is_named() {
    let front = Front::open_with(
        "
instance: test
transports: { local: { type: memory } }
agents:
  fixture:
    description: Cannot start.
    to: { transport: local, topic: attached.fixture }
    attach: { command: [python3], directory: /nowhere/at/all }
http: { listen: '127.0.0.1:0' }
admin: { listen: '127.0.0.1:0' }
",
    )
    .await;
    let sent = front.to("/rpc/fixture", call("echo").to_string());
    let sent = sent.header("content-type", "application/json").send();
    let answer: Value = sent.await.unwrap().json().await.unwrap();
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("its working directory \"/nowhere/at/all\": No such file"),
        "{answer}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_request_becomes_a_dead_letter_and_its_sender_gets_the_reason() {
    let attached = Attached::open_with("", "reply_topics: [answers]").await;
    let memory: &Memory = &attached.front.memory;
    let mut dlq_messages = read(memory, "a2abus.dlq").await;
    let mut answers = read(memory, "answers").await;
    let address = Address::topic(Topic::new("attached.fixture").unwrap());
    for (place, body) in [("answers", "no JSON"), ("answers", "{}"), ("elsewhere", "")] {
        let body = if body.is_empty() {
            call("effect").to_string()
        } else {
            body.to_owned()
        };
        let mut message = Message::plain(body.clone());
        message.headers.push("ce-replyto", place);
        publish(memory, &address, message).await;
        let dlq_message = next(&mut dlq_messages).await;
        assert_eq!(dlq_message.body.as_deref(), Some(body.as_bytes()));
        if place == "answers" {
            let answer = next(&mut answers).await;
            let error = set_up::body(&answer);
            assert!(error["error"].is_object(), "{error}");
            assert!(answer.headers.get("ce_failurereason").is_none());
        }
    }
    assert!(
        !attached.effects().exists(),
        "a request that wants its answer elsewhere is not done"
    );
    attached.end().await;
}

/// A producer of CloudEvents, and the answers at its topic `answers`.
struct Producer<'a> {
    memory: &'a Memory,
    answers: Consumer,
}

impl<'a> Producer<'a> {
    async fn new(attached: &'a Attached) -> Self {
        let memory: &Memory = &attached.front.memory;
        let answers = read(memory, "answers").await;
        Self { memory, answers }
    }

    /// Publishes a CloudEvent that names a call and expects an answer.
    async fn publish(&self, body: &Value, more: &[(&'static str, &str)]) {
        let mut message = Message::plain(body.to_string());
        let own = [
            ("ce_specversion", "1.0"),
            ("ce_id", "e-1"),
            ("ce_source", "/test"),
            ("ce_type", "test"),
            ("ce_callid", "c-1"),
            ("ce_replyto", "answers"),
            ("content-type", "application/json"),
        ];
        for (name, value) in own.iter().chain(more) {
            message.headers.push(*name, (*value).to_owned());
        }
        let address = Address::topic(Topic::new("attached.fixture").unwrap());
        publish(self.memory, &address, message).await;
    }

    /// The id of the next event that comes back, and its data.
    async fn next(&mut self) -> (String, Value) {
        let answer = next(&mut self.answers).await;
        let id = answer.headers.get("ce_id").unwrap();
        (String::from_utf8(id.to_vec()).unwrap(), body(&answer))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_arrives_after_its_deadline_is_not_executed() {
    let attached = Attached::open_with("", "reply_topics: [answers]").await;
    let mut producer = Producer::new(&attached).await;
    let long_ago = ("ce_expirytime", "2026-01-01T00:00:00Z");
    producer.publish(&call("effect"), &[long_ago]).await;
    let (_, answer) = producer.next().await;
    assert_eq!(answer["error"]["data"]["reason"], "timeout", "{answer}");
    producer.publish(&call("again"), &[]).await;
    assert!(producer.next().await.1["result"].is_object());
    attached.until_effects(&["again"]).await;
    let metrics = attached.front.admin("/metrics").await;
    let dropped = r#"a2abus_dropped_total{binding="agent-fixture",reason="expired"} 1"#;
    assert!(metrics.contains(dropped), "{metrics}");
    attached.end().await;
}

/// The positions of a new bus begin again, so the bridge takes the same request for a redelivered one.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_request_that_was_executed_before_gets_its_answer() {
    let state = TempDir::new().unwrap();
    let more = format!(
        "reply_topics: [answers]\nstate: {{ log: embedded, directory: {:?} }}",
        state.path()
    );
    let attached = Attached::open_with("", &more).await;
    let mut producer = Producer::new(&attached).await;
    producer.publish(&call("effect"), &[]).await;
    let first = producer.next().await;
    assert!(first.1["result"].is_object(), "{}", first.1);
    attached.end().await;
    until_closed(state.path()).await;

    let attached = Attached::open_with("", &more).await;
    let mut producer = Producer::new(&attached).await;
    let long_ago = ("ce_expirytime", "2026-01-01T00:00:00Z");
    producer.publish(&call("effect"), &[long_ago]).await;
    assert_eq!(producer.next().await, first);
    assert!(!attached.effects().exists(), "it is executed again");
    let metrics = attached.front.admin("/metrics").await;
    let dropped = r#"a2abus_dropped_total{binding="agent-fixture",reason="expired"} 1"#;
    assert!(!metrics.contains(dropped), "{metrics}");
    attached.end().await;
}

/// The positions of a new bus begin again, so the second bridge takes the same request for a redelivered one.
#[tokio::test(flavor = "multi_thread")]
async fn a_redelivered_message_of_a2a_gets_its_answer_though_its_tool_is_gone() {
    let state = TempDir::new().unwrap();
    let more = format!(
        "reply_topics: [answers]\nstate: {{ log: embedded, directory: {:?} }}",
        state.path()
    );
    let part = json!({ "kind": "data", "data": { "tool": "effect" } });
    let request = message("message/send", &part, None);
    let attached = Attached::open_with("", &more).await;
    let mut producer = Producer::new(&attached).await;
    producer.publish(&request, &[]).await;
    let first = producer.next().await;
    assert!(first.1["result"].is_object(), "{}", first.1);
    attached.end().await;
    until_closed(state.path()).await;

    let attached = Attached::open_with(", WITHOUT: effect", &more).await;
    let mut producer = Producer::new(&attached).await;
    producer.publish(&request, &[]).await;
    assert_eq!(producer.next().await, first);
    // A new request.
    producer.publish(&request, &[]).await;
    let (_, answer) = producer.next().await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    assert!(!attached.effects().exists(), "it is executed");
    attached.end().await;
}

/// As before. The server of the second bridge does not answer `initialize`.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_server_does_not_start_in_time_gets_its_earlier_answer_or_a_timeout() {
    let state = TempDir::new().unwrap();
    let more = format!(
        "reply_topics: [answers]\nstate: {{ log: embedded, directory: {:?} }}",
        state.path()
    );
    let attached = Attached::open_with("", &more).await;
    let mut producer = Producer::new(&attached).await;
    producer.publish(&call("effect"), &[]).await;
    let first = producer.next().await;
    assert!(first.1["result"].is_object(), "{}", first.1);
    attached.end().await;
    until_closed(state.path()).await;

    let attached = Attached::open_for(", MUTE: yes", &more, "2s").await;
    let mut producer = Producer::new(&attached).await;
    for _ in 0..2 {
        producer.publish(&call("effect"), &[]).await;
    }
    let mut answers = [producer.next().await, producer.next().await];
    answers.sort_by_key(|answer| *answer != first);
    assert_eq!(answers[0], first);
    let (_, second) = &answers[1];
    assert_eq!(second["error"]["data"]["reason"], "timeout", "{second}");
    assert!(!attached.effects().exists(), "it is executed");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_messages_are_two_requests_whatever_they_say_of_themselves() {
    let attached = Attached::open_with("", "reply_topics: [answers]").await;
    let mut producer = Producer::new(&attached).await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        // The answers have equal bodies. A stream that drops duplicate ids must store both.
        let origin = ("ce_origin", "memory/elsewhere/0/7");
        producer.publish(&call("effect"), &[origin]).await;
        let (id, answer) = producer.next().await;
        assert!(answer["result"].is_object(), "{answer}");
        ids.push(id);
    }
    assert_ne!(ids[0], ids[1]);
    attached.until_effects(&["effect", "effect"]).await;
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_client_that_was_asked_answers_a_question() {
    let attached = Attached::open_with("", "concurrency: 1\n      reply_topics: [answers]").await;
    let mut producer = Producer::new(&attached).await;
    producer.publish(&call("ask"), &[]).await;
    let (_, question) = producer.next().await;
    assert_eq!(question["method"], "sampling/createMessage", "{question}");
    let answer =
        |id: &Value, text: &str| json!({ "jsonrpc": "2.0", "id": id, "result": { "text": text } });
    // The program's own id is 0, which anybody can guess.
    for id in [json!(0), json!("0"), Value::Null] {
        producer.publish(&answer(&id, "forged"), &[]).await;
    }
    producer
        .publish(&answer(&question["id"], "mine"), &[])
        .await;
    producer
        .publish(&answer(&question["id"], "more"), &[])
        .await;
    let (_, answer) = producer.next().await;
    assert_eq!(answer["result"]["content"][0]["text"], "mine", "{answer}");
    attached.until_effects(&["mine"]).await;
    let dropped = r#"a2abus_dropped_total{binding="agent-fixture",reason="unasked_answer"} 4"#;
    attached.until_metric(dropped).await;
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cancel_of_a_question_has_the_id_that_its_client_knows() {
    let attached = Attached::open_with("", "concurrency: 1\n      reply_topics: [answers]").await;
    let mut producer = Producer::new(&attached).await;
    producer.publish(&call("withdraw"), &[]).await;
    let (_, question) = producer.next().await;
    assert_eq!(question["method"], "sampling/createMessage", "{question}");
    let (_, cancel) = producer.next().await;
    assert_eq!(cancel["method"], "notifications/cancelled", "{cancel}");
    assert_eq!(cancel["params"]["requestId"], question["id"], "{cancel}");
    // The cancel of an unknown question does not reach the client.
    let (_, answer) = producer.next().await;
    assert!(answer["result"].is_object(), "{answer}");
    attached.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_of_a_cancelled_call_goes_to_no_other_client() {
    let attached = Attached::open_with("", "concurrency: 1\n      reply_topics: [answers]").await;
    let mut producer = Producer::new(&attached).await;
    producer.publish(&call("linger"), &[]).await;
    attached.until_effects(&["begun"]).await;
    let params = json!({ "requestId": 1 });
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
    producer.publish(&cancel, &[]).await;
    // Until the other one ends, the first asks its question.
    let mut poke = call("poke");
    poke["id"] = json!(2);
    producer.publish(&poke, &[]).await;
    let (_, answer) = producer.next().await;
    assert_eq!(
        answer["result"]["content"][0]["text"], "done",
        "a question of another call: {answer}"
    );
    attached.until_effects(&["begun", "refused"]).await;
    // The question, and the late answer.
    attached
        .until_metric(r#"a2abus_attached_dropped_total{agent="fixture"} 2"#)
        .await;
    // It has answered the cancelled call by now.
    producer.publish(&call("ask"), &[]).await;
    let (_, question) = producer.next().await;
    assert_eq!(question["method"], "sampling/createMessage", "{question}");
    attached.end().await;
}

/// The options of an agent that asks, and whose bridge says when it stops.
const STOPS: &str = "concurrency: 1\n      reply_topics: [answers]\n      announce: cards";

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_that_stops_takes_answers_to_questions_and_leaves_new_requests() {
    let attached = Attached::open_with_limits("", STOPS, ("1m", "2m")).await;
    let mut producer = Producer::new(&attached).await;
    producer.publish(&call("ask"), &[]).await;
    let (_, question) = producer.next().await;
    assert_eq!(question["method"], "sampling/createMessage", "{question}");
    attached.begin_to_stop().await;
    let mut new = call("effect");
    new["id"] = json!(2);
    producer.publish(&new, &[]).await;
    let result = json!({ "text": "mine" });
    let answer = json!({ "jsonrpc": "2.0", "id": question["id"], "result": result });
    producer.publish(&answer, &[]).await;
    let (_, answer) = producer.next().await;
    assert_eq!(answer["result"]["content"][0]["text"], "mine", "{answer}");
    let (effects, memory) = (attached.effects(), attached.front.memory.connect());
    timeout(SOON, attached.front.running)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(std::fs::read_to_string(effects).unwrap(), "mine\n");
    // The next process of the group gets the request.
    let requests = memory.subscribe(group("attached.fixture", "agent-fixture"));
    assert_eq!(body(&next(&mut requests.await.unwrap()).await)["id"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_that_stops_takes_the_cancel_of_a_call() {
    let section = STOPS.replace("concurrency: 1", "concurrency: 2");
    let attached = Attached::open_with_limits("", &section, ("1m", "2m")).await;
    let producer = Producer::new(&attached).await;
    let mut other = call("hang");
    other["id"] = json!(2);
    for call in [call("hang"), other] {
        producer.publish(&call, &[]).await;
    }
    attached.until_effects(&["begun", "begun"]).await;
    attached.begin_to_stop().await;
    let cancel = |id: u32| json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } });
    producer.publish(&cancel(1), &[]).await;
    // The program runs until its other call has ended, too.
    attached
        .until_effects(&["begun", "begun", "cancelled"])
        .await;
    producer.publish(&cancel(2), &[]).await;
    attached.end().await;
}

/// Otherwise a restart tells the clients of all bridges that the lists have changed.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_announced_once_all_its_lists_are_read() {
    let attached = Attached::open_with(", HELD_PROMPTS: '1'", "announce: cards").await;
    let mut cards = read(&attached.front.memory, "cards").await;
    let early = timeout(Duration::from_secs(2), cards.recv()).await;
    assert!(early.is_err(), "announced before its prompts are read");
    attached.call("/rpc/fixture", "effect").await;
    let about = Attached::until_announced(&mut cards, "90s").await;
    assert!(about["lists"]["tools"].as_u64().unwrap() > 0, "{about}");
    assert!(about["lists"]["prompts"].as_u64().unwrap() > 0, "{about}");
    attached.end().await;
}

/// A server in a session refuses a request that says that it stands alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_learns_what_the_client_of_a_stateless_request_supports() {
    let attached = Attached::open("").await;
    let declared = json!({ "sampling": {}, "elicitation": { "form": {} } });
    let client = json!({ "name": "t", "version": "1" });
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": declared,
        "io.modelcontextprotocol/clientInfo": client,
    });
    let mut body = call("meta");
    body["params"]["_meta"] = meta;
    let request = attached
        .front
        .to("/mcp/agents/fixture", body.to_string())
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "tools/call")
        .header("mcp-name", "meta");
    let answer = request.send().await.unwrap().text().await.unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let seen = answer["result"]["content"][0]["text"].as_str();
    let seen: Value = serde_json::from_str(seen.unwrap()).unwrap();
    assert_eq!(seen["io.modelcontextprotocol/clientCapabilities"], declared);
    assert_eq!(seen["io.modelcontextprotocol/clientInfo"], client);
    let version = seen.get("io.modelcontextprotocol/protocolVersion");
    assert_eq!(version, None, "{seen}");
    attached.end().await;
}
