//! `POST /rpc` accepts requests of every family and answers in the same family. An agent answers on the memory
//! transport.

use std::sync::Arc;
use std::time::{Duration, Instant};

use a2abus_bridge::config::Config;
use a2abus_bridge::metrics::Metrics;
use a2abus_plugin::Limits;
use a2abus_transports::content_mode::{self, Content, ProtocolBinding};
use a2abus_transports::memory::Memory;
use a2abus_transports::{Address, Consumer, Message};
use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};
use support::battery::within;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::http::SOON;
use crate::set_up::{Received, build, publish, read, receive, until_ready};

const CONFIG: &str = "
instance: test
transports: { bus: { type: memory } }
routes: [{ name: agents, when: { targetagent: 'weather*' }, to: [{ transport: bus, topic: 'agents.{targetagent}' }] }]
calls: { timeout: 60s }
http: { listen: '127.0.0.1:0', drain_grace: 5s }
admin: { enabled: false }
";

const TOOL_CALL: &str = r#"{ "type":"tool/call/req","id":"a-1","version":"1.0","ts":1,"tool_name":"ls","arguments":{}}"#;
const TOOL_ANSWER: &str =
    r#"{"type":"tool/call/resp","id":"b","version":"1.0","ts":2,"req_id":"a-1","data":{ "n":1.0}}"#;

/// A bridge with an HTTP listener, and the agent `weather` behind it.
struct World {
    base: String,
    memory: Memory,
    metrics: Arc<Metrics>,
    agent: Consumer,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl World {
    async fn new() -> Self {
        Self::with(CONFIG).await
    }

    async fn with(config: &str) -> Self {
        let memory = Memory::default();
        let config = Config::read("test.yaml", config, []).unwrap();
        let bridge = build(config, |_| &memory).await;
        let base = format!("http://{}", bridge.door_address().unwrap());
        let (metrics, readiness) = (Arc::clone(bridge.metrics()), Arc::clone(bridge.readiness()));
        let agent = read(&memory, "agents.weather").await;
        let stop = CancellationToken::new();
        let running = tokio::spawn(bridge.run(stop.clone()));
        until_ready(&readiness).await;
        Self {
            base,
            memory,
            metrics,
            agent,
            stop,
            running,
        }
    }

    fn post(&self, path: &str, body: impl Into<String>) -> RequestBuilder {
        let client = reqwest::Client::new();
        let request = client.post(format!("{}{path}", self.base)).timeout(SOON);
        request.body(body.into())
    }

    async fn agent_request(&mut self) -> Received {
        receive(&mut self.agent, "the agent has a request").await
    }

    async fn answer(&self, agent_request: &Received, message: Message) {
        let to = Address::topic(agent_request.reply_to.clone().expect("a reply address"));
        publish(&self.memory, &to, message).await;
    }

    /// The response to a request that the agent answers with `answers`, and the request as the agent got it.
    async fn exchange(
        &mut self,
        request: RequestBuilder,
        answers: Vec<Message>,
    ) -> (Response, Received) {
        let sent = tokio::spawn(request.send());
        let agent_request = self.agent_request().await;
        for answer in answers {
            self.answer(&agent_request, answer).await;
        }
        (sent.await.unwrap().unwrap(), agent_request)
    }

    async fn end(self) {
        self.stop.cancel();
        within("the bridge drains", self.running).await.unwrap();
    }
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    let value = response.headers().get(name);
    value.map_or("", |value| value.to_str().unwrap())
}

fn attribute<'a>(message: &'a Message, name: &str) -> &'a str {
    let value = message.headers.get(&format!("ce_{name}"));
    std::str::from_utf8(value.map(AsRef::as_ref).unwrap_or_default()).unwrap()
}

fn text(message: &Message) -> &str {
    std::str::from_utf8(message.body.as_ref().unwrap()).unwrap()
}

fn frames(stream: &str) -> Vec<Value> {
    let data = stream
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

/// The head of an event in binary mode.
fn event(request: RequestBuilder, ty: &str) -> RequestBuilder {
    request
        .header("ce-specversion", "1.0")
        .header("ce-id", "mine")
        .header("ce-source", "/me")
        .header("ce-type", ty)
}

#[tokio::test]
async fn a_message_of_another_family_gets_the_unchanged_message_of_its_agent() {
    let mut world = World::new().await;
    let legacy = r#"{"protocol":"A2A","messageType":"REQUEST","sourceAgent":{"agentId":"me"},"targetAgent":{"agentId":"weather"},"payload":{},"metadata":{"correlationId":"c-1"}}"#;
    let legacy_answer = r#"{"protocol":"A2A","messageType":"INFORM","metadata":{"correlationId":"c-1"},"payload":{ }}"#;
    let e2a = r#"{"protocol_version":"1.0","request_id":"r-1","channel":"web","method":"chat.send","params":{"query":"hi"}}"#;
    let e2a_answer = r#"{"protocol_version":"1.0","response_id":"x","request_id":"r-1","sequence":0,"is_final":true,"status":"succeeded","response_kind":"e2a.complete","body":{"result":{}}}"#;
    for (request, answer) in [
        (TOOL_CALL, TOOL_ANSWER),
        (legacy, legacy_answer),
        (e2a, e2a_answer),
    ] {
        let sent = world.post("/rpc/weather", request);
        let (response, agent_request) = world.exchange(sent, vec![Message::plain(answer)]).await;
        assert_eq!(
            text(&agent_request.message),
            request,
            "the bytes stay as they are"
        );
        assert_ne!(attribute(&agent_request.message, "callid"), "");
        assert_eq!(response.status().as_u16(), 200);
        assert_eq!(header(&response, "content-type"), "application/json");
        assert_ne!(header(&response, "x-a2abus-call-id"), "");
        assert_eq!(response.text().await.unwrap(), answer);
    }
    world.end().await;
}

#[tokio::test]
async fn only_errors_are_marked_as_written_in_place_of_a_server() {
    let mut world = World::new().await;
    let error = json!({ "error": { "code": -32603, "message": "m" } });
    let result = json!({ "result": 1 });
    for (answer, reason) in [
        (&error, "timeout"),
        (&error, "agent_unavailable"),
        (&error, "made_up"),
        (&result, "timeout"),
    ] {
        let question = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{}}"#;
        let response_task = tokio::spawn(world.post("/rpc/weather", question).send());
        let agent_request = world.agent_request().await;
        let request: Value = serde_json::from_str(text(&agent_request.message)).unwrap();
        let mut body = json!({ "jsonrpc": "2.0", "id": request["id"] });
        body.as_object_mut()
            .unwrap()
            .extend(answer.as_object().unwrap().clone());
        let mut message = Message::plain(body.to_string());
        for (name, value) in [
            ("ce_specversion", "1.0"),
            ("ce_id", "a-1"),
            ("ce_source", "/agent"),
            ("ce_type", "test"),
            ("ce_failurereason", reason),
            ("content-type", "application/json"),
        ] {
            message.headers.push(name, value);
        }
        world.answer(&agent_request, message).await;
        let received: Value = response_task.await.unwrap().unwrap().json().await.unwrap();
        assert_eq!(received["id"], 7, "{received}");
    }
    let metrics = world.metrics.render().unwrap();
    // An agent has a series of its own once it has answered.
    for (agent, outcome, count) in [
        ("other", "timeout", 1),
        ("other", "unavailable", 1),
        ("weather", "answered", 2),
    ] {
        let line =
            format!("a2abus_agent_calls_total{{agent=\"{agent}\",outcome=\"{outcome}\"}} {count}");
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
    world.end().await;
}

#[tokio::test]
async fn an_answer_in_parts_is_a_stream_or_its_last_part() {
    let mut world = World::new().await;
    let progress = r#"{"type":"tool/call/event","id":"p","version":"1.0","ts":2,"req_id":"a-1","kind":"progress","data":{}}"#;
    let answers = || vec![Message::plain(progress), Message::plain(TOOL_ANSWER)];
    let both = world.post("/rpc/weather", TOOL_CALL);
    let (response, _) = world.exchange(both, answers()).await;
    assert_eq!(header(&response, "content-type"), "text/event-stream");
    let events = frames(&response.text().await.unwrap());
    let types: Vec<_> = events.iter().map(|event| &event["type"]).collect();
    assert_eq!(types, ["tool/call/event", "tool/call/resp"]);

    let json = world.post("/rpc/weather", TOOL_CALL);
    let json = json.header("accept", "application/json");
    let (response, _) = world.exchange(json, answers()).await;
    assert_eq!(response.text().await.unwrap(), TOOL_ANSWER);
    world.end().await;
}

#[tokio::test]
async fn a_failure_is_a_message_of_the_callers_family() {
    let world = World::new().await;
    let response = world.post("/rpc/nobody", TOOL_CALL).send().await.unwrap();
    assert_eq!(response.status().as_u16(), 200);
    let error: Value = response.json().await.unwrap();
    assert_eq!(error["type"], "error");
    assert_eq!(error["req_id"], "a-1");
    assert_eq!(error["detail"]["reason"], "agent_not_found");

    let progress = r#"{"type":"tool/call/event","id":"p","version":"1.0","ts":2,"req_id":"a-1","kind":"progress","data":{}}"#;
    let answer = world.post("/rpc/weather", progress).send().await.unwrap();
    let error: Value = answer.json().await.unwrap();
    assert_eq!(error["detail"]["reason"], "invalid_request");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("this is an answer"), "{message}");
    world.end().await;
}

#[tokio::test]
async fn an_event_in_binary_mode_is_answered_in_binary_mode() {
    let mut world = World::new().await;
    let question = r#"{"jsonrpc":"2.0","id":7.0,"method":"tools/call","params":{}}"#;
    let sent = event(world.post("/rpc", question), "com.example.ask")
        .header("content-type", "application/json")
        .header("ce-targetagent", "weather")
        .header("ce-collaborationid", "talk-1")
        .header("ce-replyto", "elsewhere")
        .header("ce-mine", "na%C3%AFve");
    let response_task = tokio::spawn(sent.send());
    let agent_request = world.agent_request().await;
    assert_eq!(attribute(&agent_request.message, "type"), "com.example.ask");
    assert_eq!(attribute(&agent_request.message, "mine"), "naïve");
    assert_eq!(
        attribute(&agent_request.message, "source"),
        "/a2abus/test/http/127.0.0.1"
    );
    assert_ne!(attribute(&agent_request.message, "replyto"), "elsewhere");
    let request: Value = serde_json::from_str(text(&agent_request.message)).unwrap();
    let id = request["id"].as_str().unwrap().to_owned();
    assert_eq!(attribute(&agent_request.message, "callid"), id);
    let answer = json!({"jsonrpc": "2.0", "id": id, "result": "cold"}).to_string();
    world.answer(&agent_request, Message::plain(answer)).await;
    let response = response_task.await.unwrap().unwrap();
    assert_eq!(response.status().as_u16(), 200);
    assert_eq!(header(&response, "ce-specversion"), "1.0");
    assert_eq!(header(&response, "ce-mcptype"), "response");
    assert_eq!(header(&response, "ce-isfinal"), "true");
    assert_eq!(header(&response, "ce-collaborationid"), "talk-1");
    assert_eq!(header(&response, "ce-callid"), "");
    assert_eq!(header(&response, "content-type"), "application/json");
    let body = response.text().await.unwrap();
    assert_eq!(body, r#"{"id":7.0,"jsonrpc":"2.0","result":"cold"}"#);
    let overruled = "a2abus_attributes_overruled_total{attribute=\"replyto\",binding=\"http\"} 1";
    assert!(world.metrics.render().unwrap().contains(overruled));
    world.end().await;
}

#[tokio::test]
async fn data_of_any_kind_pass_as_they_are() {
    let mut world = World::new().await;
    let sent = event(world.post("/rpc/weather", "temp?"), "com.example.ask")
        .header("content-type", "text/plain")
        .header("ce-mcptype", "request");
    let mut answer = Message::plain("-3");
    for (name, value) in [
        ("ce_specversion", "1.0"),
        ("ce_id", "1"),
        ("ce_source", "/weather"),
        ("ce_type", "com.example.answer"),
        ("content-type", "text/plain"),
    ] {
        answer.headers.push(name, value);
    }
    let (response, agent_request) = world.exchange(sent, vec![answer]).await;
    assert_eq!(text(&agent_request.message), "temp?");
    assert_eq!(header(&response, "ce-type"), "com.example.answer");
    assert_eq!(header(&response, "ce-source"), "/weather");
    assert_eq!(header(&response, "content-type"), "text/plain");
    assert_eq!(response.text().await.unwrap(), "-3");
    world.end().await;
}

/// Data of no type would count as JSON.
#[tokio::test]
async fn a_plain_answer_that_is_not_json_has_a_type() {
    let mut world = World::new().await;
    let sent = event(world.post("/rpc/weather", "temp?"), "com.example.ask")
        .header("content-type", "text/plain")
        .header("ce-mcptype", "request");
    let (response, _) = world.exchange(sent, vec![Message::plain("-3 C")]).await;
    assert_eq!(
        header(&response, "content-type"),
        "application/octet-stream"
    );
    assert_eq!(response.text().await.unwrap(), "-3 C");
    world.end().await;
}

/// It ends neither the stream nor the call of a caller of one answer.
#[tokio::test]
async fn a_question_in_a_record_is_a_part_for_a_caller_of_e2a() {
    let mut world = World::new().await;
    let request = r#"{"protocol_version":"1.0","request_id":"r","channel":"web","method":"chat.send","params":{"query":"hi"}}"#;
    let question =
        json!({"jsonrpc": "2.0", "id": 9, "method": "session/request_permission", "params": {}});
    let answers = || {
        vec![
            record(0, "acp.output_request", &question),
            record(1, "e2a.complete", &json!({"result": {"n": 1}})),
        ]
    };
    let sent = world.post("/rpc/weather", request);
    let (response, _) = world.exchange(sent, answers()).await;
    let parts = frames(&response.text().await.unwrap());
    let kinds: Vec<_> = parts.iter().map(|part| &part["response_kind"]).collect();
    assert_eq!(kinds, ["acp.output_request", "e2a.complete"]);

    let sent = world.post("/rpc/weather", request);
    let sent = sent.header("accept", "application/json");
    let (response, _) = world.exchange(sent, answers()).await;
    let last: Value = response.json().await.unwrap();
    assert_eq!(last["body"], json!({"result": {"n": 1}}));
    world.end().await;
}

/// Sent to the agent of the path, it would cancel nothing, and its caller would wait for an answer until the deadline.
#[tokio::test]
async fn a_cancel_with_an_id_is_refused_at_once() {
    let world = World::new().await;
    let cancel = r#"{"jsonrpc":"2.0","id":8,"method":"$/cancel_request","params":{"requestId":7}}"#;
    let response = world.post("/rpc/weather", cancel).send().await.unwrap();
    let error: Value = response.json().await.unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("send it without one"), "{error}");
    world.end().await;
}

#[tokio::test]
async fn an_event_in_structured_mode_is_answered_in_structured_mode() {
    let mut world = World::new().await;
    let event = json!({
        "specversion": "1.0", "id": "mine", "source": "/me", "type": "ask", "targetagent": "weather",
        "collaborationid": "talk-1", "data": serde_json::from_str::<Value>(TOOL_CALL).unwrap(),
    });
    for content_type in ["application/cloudevents+json", "application/json"] {
        let sent = world.post("/rpc", event.to_string());
        let sent = sent.header("content-type", content_type);
        let (response, agent_request) = world
            .exchange(sent, vec![Message::plain(TOOL_ANSWER)])
            .await;
        let read = content_mode::read(
            ProtocolBinding::Memory,
            &agent_request.message,
            &Limits::default(),
        );
        assert!(matches!(read, Ok(Content::Event(_))));
        let kind = header(&response, "content-type");
        assert_eq!(kind, "application/cloudevents+json");
        let answer: Value = response.json().await.unwrap();
        assert_eq!(answer["specversion"], "1.0");
        assert_eq!(answer["collaborationid"], "talk-1");
        assert_eq!(answer["isfinal"], true);
        assert_eq!(answer["data"]["req_id"], "a-1");
    }
    let nobody = event.to_string().replace("\"weather\"", "\"nobody\"");
    let answer: Value = world
        .post("/rpc", nobody)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(answer["data"]["detail"]["reason"], "agent_not_found");
    assert_eq!(answer["collaborationid"], "talk-1");
    world.end().await;
}

#[tokio::test]
async fn a_stream_for_an_event_is_of_events() {
    let mut world = World::new().await;
    let question = r#"{"jsonrpc":"2.0","id":7,"method":"message/stream","params":{}}"#;
    let sent = event(world.post("/rpc/weather", question), "ask");
    let response_task = tokio::spawn(sent.send());
    let agent_request = world.agent_request().await;
    let request: Value = serde_json::from_str(text(&agent_request.message)).unwrap();
    for (state, is_final) in [("working", false), ("completed", true)] {
        let update = json!({"jsonrpc": "2.0", "id": request["id"], "result": {
            "kind": "status-update", "taskId": "t", "contextId": "c", "final": is_final,
            "status": {"state": state},
        }});
        world
            .answer(&agent_request, Message::plain(update.to_string()))
            .await;
    }
    let response = response_task.await.unwrap().unwrap();
    assert_eq!(header(&response, "content-type"), "text/event-stream");
    let events = frames(&response.text().await.unwrap());
    assert!(events.iter().all(|event| event["data"]["id"] == 7));
    let kinds = events
        .iter()
        .map(|event| (&event["mcptype"], &event["isfinal"]));
    let kinds: Vec<_> = kinds.collect();
    let expected = [
        (&json!("stream"), &json!(false)),
        (&json!("response"), &json!(true)),
    ];
    assert_eq!(kinds, expected);
    world.end().await;
}

#[tokio::test]
async fn an_event_without_a_request_is_accepted_once_it_is_on_the_bus() {
    let mut world = World::new().await;
    let sent = event(world.post("/rpc/weather", "snow"), "com.example.told");
    let response = sent
        .header("content-type", "text/plain")
        .send()
        .await
        .unwrap();
    assert_eq!(response.status().as_u16(), 202);
    let agent_request = world.agent_request().await;
    assert_eq!(
        (text(&agent_request.message), agent_request.reply_to),
        ("snow", None)
    );
    assert_eq!(
        attribute(&agent_request.message, "type"),
        "com.example.told"
    );

    let sent = event(world.post("/rpc/nobody", "snow"), "com.example.told");
    let response = sent
        .header("content-type", "text/plain")
        .send()
        .await
        .unwrap();
    assert_eq!(response.status().as_u16(), 400);
    assert_eq!(header(&response, "ce-mcptype"), "response");
    let error: Value = response.json().await.unwrap();
    assert_eq!(error["error"]["data"]["reason"], "agent_not_found");
    world.end().await;
}

#[tokio::test]
async fn a_broken_event_is_refused_with_the_reason() {
    let world = World::new().await;
    let broken = |name: &'static str, value: &'static str| {
        world
            .post("/rpc/weather", "{}")
            .header("ce-specversion", "1.0")
            .header(name, value)
    };
    for (name, value, what) in [
        ("ce-id", "1", "source"),
        ("ce-datacontenttype", "text/plain", "Content-Type"),
        ("ce-mine", "%zz", "mine"),
        ("ce-mine", "100%", "send the event in structured mode"),
        ("ce-mine", "%ff", "percent-encode the value"),
    ] {
        let response = broken(name, value).send().await.unwrap();
        assert_eq!(response.status().as_u16(), 400, "{name}");
        let answer: Value = response.json().await.unwrap();
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(what), "{message}");
    }
    // Senders of events read only the status.
    let untimely =
        json!({"specversion": "1.0", "id": "1", "source": "/me", "type": "t", "time": "yesterday"});
    let older = json!({"specversion": "0.3", "id": "1", "source": "/me", "type": "t"});
    for (content_type, body) in [
        ("application/cloudevents+json", untimely.to_string()),
        ("application/cloudevents+json", older.to_string()),
        ("application/cloudevents+json", "{".to_owned()),
        ("application/cloudevents+json", "{}{}".to_owned()),
        (
            "application/cloudevents-batch+json",
            json!([untimely, older]).to_string(),
        ),
    ] {
        let sent = world
            .post("/rpc/weather", body.clone())
            .header("content-type", content_type);
        let response = sent.send().await.unwrap();
        assert_eq!(response.status().as_u16(), 400, "{body}");
        let answer: Value = response.json().await.unwrap();
        let first = answer.get(0).unwrap_or(&answer);
        assert!(first["error"]["code"].is_number(), "{answer}");
    }
    let avro = world
        .post("/rpc/weather", "x")
        .header("content-type", "application/cloudevents+avro");
    let refused = avro.send().await.unwrap();
    assert_eq!(refused.status().as_u16(), 415);
    let error: Value = refused.json().await.unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("application/cloudevents+json, or in binary mode"),
        "{message}"
    );
    world.end().await;
}

#[tokio::test]
async fn a_message_about_the_connection_itself_is_refused() {
    let mut world = World::new().await;
    for (ty, path) in [
        ("handshake/req", "/rpc/weather"),
        ("ping", "/rpc/weather"),
        ("shutdown", "/rpc"),
    ] {
        let message =
            json!({"type": ty, "id": "1", "version": "1.0", "ts": 1, "auth_token": "secret"});
        let response = world.post(path, message.to_string()).send().await.unwrap();
        let answer: Value = response.json().await.unwrap();
        assert_eq!(answer["type"], "error", "{answer}");
        assert_eq!(answer["req_id"], "1", "{answer}");
        assert_eq!(answer["detail"]["reason"], "link_local", "{answer}");
        let message = answer["message"].as_str().unwrap();
        assert!(message.contains("is not published"), "{message}");
    }
    // The agent gets only the next one.
    let response = tokio::spawn(world.post("/rpc/weather", TOOL_CALL).send());
    let request = world.agent_request().await;
    assert_eq!(text(&request.message), TOOL_CALL);
    world.answer(&request, Message::plain(TOOL_ANSWER)).await;
    response.await.unwrap().unwrap();
    world.end().await;
}

#[tokio::test]
async fn a_batch_may_mix_families() {
    let mut world = World::new().await;
    let rpc = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{}}"#;
    let batch = format!("[{TOOL_CALL},{rpc}]");
    let response_task = tokio::spawn(world.post("/rpc/weather", batch).send());
    for _ in 0..2 {
        let agent_request = world.agent_request().await;
        let request: Value = serde_json::from_str(text(&agent_request.message)).unwrap();
        let answer = match request["jsonrpc"].is_string() {
            true => json!({"jsonrpc": "2.0", "id": request["id"], "result": 1}).to_string(),
            false => TOOL_ANSWER.to_owned(),
        };
        world.answer(&agent_request, Message::plain(answer)).await;
    }
    let answers: Value = response_task.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(answers[0]["req_id"], "a-1");
    assert_eq!(answers[1]["id"], 7);
    world.end().await;
}

/// Answers that are no events get what an event needs: a type of their data, an id of their own, and the request that
/// they belong to.
#[tokio::test]
async fn plain_answers_to_events_are_complete_events() {
    let mut world = World::new().await;
    let event = |id: &str| {
        json!({
            "specversion": "1.0", "id": id, "source": "/me", "type": "ask", "mcptype": "request",
            "targetagent": "weather", "data": { "city": id },
        })
    };
    let batch = world.post("/rpc", json!([event("q-1"), event("q-2")]).to_string());
    let batch = batch.header("content-type", "application/cloudevents-batch+json");
    let answers = ["q-1", "q-2"].map(|_| Message::plain(r#"{"snow":"yes"}"#));
    let sent = tokio::spawn(batch.send());
    for answer in answers {
        let agent_request = world.agent_request().await;
        world.answer(&agent_request, answer).await;
    }
    let response = sent.await.unwrap().unwrap();
    assert_eq!(
        header(&response, "content-type"),
        "application/cloudevents-batch+json"
    );
    let answers: Vec<Value> = response.json().await.unwrap();
    assert_ne!(answers[0]["id"], answers[1]["id"]);
    for (answer, request) in answers.iter().zip(["q-1", "q-2"]) {
        assert_eq!(answer["datacontenttype"], "application/json", "{answer}");
        assert_eq!(answer["data"], json!({ "snow": "yes" }), "{answer}");
        assert_eq!(answer["collaborationid"], request, "{answer}");
    }
    world.end().await;
}

#[tokio::test]
async fn a_refused_event_of_a_batch_is_answered_by_an_event() {
    let mut world = World::new().await;
    let event = |id: &str, more: Value| {
        let mut event = json!({
            "specversion": "1.0", "id": id, "source": "/me", "type": "ask", "mcptype": "request",
            "targetagent": "weather", "data": {},
        });
        let members = more.as_object().unwrap().clone();
        event.as_object_mut().unwrap().extend(members);
        event
    };
    let batch = json!([
        event("q-1", json!({})),
        event("q-2", json!({"time": "yesterday"})),
        event(
            "q-3",
            json!({"time": "yesterday", "collaborationid": "talk-3"})
        ),
    ]);
    let sent = world.post("/rpc", batch.to_string());
    let sent = sent.header("content-type", "application/cloudevents-batch+json");
    let answer = Message::plain(r#"{"snow":"yes"}"#);
    let (response, _) = world.exchange(sent, vec![answer]).await;
    assert_eq!(
        header(&response, "content-type"),
        "application/cloudevents-batch+json"
    );
    let answers: Vec<Value> = response.json().await.unwrap();
    let named: Vec<&Value> = answers.iter().map(|it| &it["collaborationid"]).collect();
    assert_eq!(named, ["q-1", "q-2", "talk-3"]);
    for answer in &answers {
        assert_eq!(answer["specversion"], "1.0", "{answer}");
        assert_eq!(answer["mcptype"], "response", "{answer}");
    }
    for refused in &answers[1..] {
        assert!(refused["data"]["error"]["code"].is_number(), "{refused}");
    }
    world.end().await;
}

#[tokio::test]
async fn the_error_for_a_request_without_an_agent_says_where_to_name_it() {
    let world = World::new().await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "m", "params": {"_agentId": "weather"}});
    let event =
        json!({"specversion": "1.0", "id": "1", "source": "/me", "type": "ask", "data": call});
    for (body, pointer, place) in [
        (TOOL_CALL.to_owned(), "/message", "name it in _agentId or"),
        (
            event.to_string(),
            "/data/error/message",
            "name it in the attribute targetagent or",
        ),
    ] {
        let answer: Value = world
            .post("/rpc", body)
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        let message = answer.pointer(pointer).and_then(Value::as_str);
        assert!(message.unwrap().contains(place), "{answer}");
    }
    world.end().await;
}

#[tokio::test]
async fn an_event_carries_the_deadline_of_its_sender() {
    let world = World::new().await;
    let past = event(world.post("/rpc/weather", TOOL_CALL), "ask");
    let past = past.header("ce-expirytime", "2020-01-01T00:00:00Z");
    let response = past.send().await.unwrap();
    let error: Value = response.json().await.unwrap();
    assert_eq!(error["code"], "timeout", "{error}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("a later expirytime"), "{message}");
    world.end().await;
}

fn record(sequence: i64, kind: &str, body: &Value) -> Message {
    let is_final = kind == "e2a.complete";
    let record = json!({
        "protocol_version": "1.0", "request_id": "r", "sequence": sequence, "is_final": is_final,
        "status": "in_progress", "response_kind": kind, "session_id": "s", "body": body,
    });
    Message::plain(record.to_string())
}

/// Answers in the formats of E2A, with their parts for a caller that asks for a stream.
#[tokio::test]
async fn the_parts_of_an_e2a_agent_reach_a_json_rpc_caller_that_asks_for_a_stream() {
    let delta = json!({"delta_kind": "text", "delta": "a"});
    let update = json!({"sessionUpdate": "plan"});
    let chunk = |payload: Value, is_complete: bool| {
        let chunk = json!({"request_id": "r", "channel_id": "web", "payload": payload, "is_complete": is_complete});
        Message::plain(chunk.to_string())
    };
    let result = |result: Value| json!({"jsonrpc": "2.0", "id": 7, "result": result});
    let records = vec![
        record(0, "acp.session_update", &update),
        record(1, "e2a.chunk", &delta),
        record(2, "e2a.complete", &json!({})),
    ];
    let record_frames = vec![
        json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}}),
        result(json!({"response_kind": "e2a.chunk", "body": delta})),
        result(json!({})),
    ];
    let chunks = vec![
        chunk(json!({"event_type": "chat.delta", "content": "a"}), false),
        chunk(json!({"is_complete": true}), true),
    ];
    let body = json!({"delta_kind": "text", "delta": "a", "event_type": "chat.delta", "source_chunk_type": null});
    let chunk_frames = vec![
        result(json!({"response_kind": "e2a.chunk", "body": body})),
        result(json!({})),
    ];
    let mut world = World::new().await;
    for method in [
        "session/prompt",
        "chat.send",
        "tools/call",
        "message/stream",
    ] {
        let request = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": {"name": "x"}});
        for (answers, expected) in [(&records, &record_frames), (&chunks, &chunk_frames)] {
            let sent = world.post("/rpc/weather", request.to_string());
            let sent = sent.header("accept", "text/event-stream");
            let (response, _) = world.exchange(sent, answers.clone()).await;
            let stream = response.text().await.unwrap();
            assert_eq!(frames(&stream), *expected, "{method}");
            let sent = world.post("/rpc/weather", request.to_string());
            let sent = sent.header("accept", "application/json");
            let (response, _) = world.exchange(sent, answers.clone()).await;
            let whole: Value = response.json().await.unwrap();
            assert_eq!(whole, result(json!({"content": "a"})), "{method}");
        }
    }
    world.end().await;
}

/// Nobody could answer it over this connection.
#[tokio::test]
async fn a_question_of_acp_is_refused_and_the_call_goes_on() {
    let question =
        json!({"jsonrpc": "2.0", "id": 9, "method": "session/request_permission", "params": {}});
    let mut world = World::new().await;
    let mut refused = 0;
    for (method, accept) in [
        ("session/prompt", "text/event-stream"),
        ("session/prompt", "application/json"),
        ("chat.send", "text/event-stream"),
        ("chat.send", "application/json"),
        ("message/send", "application/json"),
    ] {
        for is_e2a in [true, false] {
            let request =
                json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": {"sessionId": "s"}});
            let sent = world.post("/rpc/weather", request.to_string());
            let sent = tokio::spawn(sent.header("accept", accept).send());
            let agent_request = world.agent_request().await;
            let asked = match is_e2a {
                true => record(0, "acp.output_request", &question),
                false => Message::plain(question.to_string()),
            };
            world.answer(&agent_request, asked).await;
            let error: Value =
                serde_json::from_str(text(&world.agent_request().await.message)).unwrap();
            assert_eq!(
                (&error["id"], &error["error"]["code"]),
                (&json!(9), &json!(-32_601))
            );
            let id: Value = serde_json::from_str(text(&agent_request.message)).unwrap();
            let answer = match is_e2a {
                true => record(
                    1,
                    "e2a.complete",
                    &json!({"result": {"stopReason": "end_turn"}}),
                ),
                false => {
                    let answer = json!({"jsonrpc": "2.0", "id": id["id"], "result": {"stopReason": "end_turn"}});
                    Message::plain(answer.to_string())
                }
            };
            world.answer(&agent_request, answer).await;
            let response = sent.await.unwrap().unwrap().text().await.unwrap();
            assert!(
                response.contains(r#""result":{"stopReason":"end_turn"}"#),
                "{response}"
            );
            assert!(!response.contains("request_permission"), "{response}");
            refused += 1;
            let counted = format!("a2abus_questions_refused_total {refused}\n");
            assert!(world.metrics.render().unwrap().contains(&counted));
        }
    }
    world.end().await;
}

/// As without a key: the parts show that the agent is at work.
#[tokio::test]
async fn parts_extend_the_time_of_a_request_with_a_key() {
    let config = CONFIG.replace("timeout: 60s", "timeout: 3s");
    let mut world = World::with(&config).await;
    let request =
        json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "x"}});
    let part = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}});
    for (key, accept) in [
        ("json", "application/json"),
        ("events", "text/event-stream"),
    ] {
        let sent = world.post("/rpc/weather", request.to_string());
        let sent = sent.header("idempotency-key", key).header("accept", accept);
        let sent = tokio::spawn(sent.send());
        let agent_request = world.agent_request().await;
        // Longer than an answer without parts may take.
        let began = Instant::now();
        let mut ticks = tokio::time::interval(Duration::from_millis(100));
        while began.elapsed() < Duration::from_millis(4_500) {
            ticks.tick().await;
            let part = Message::plain(part.to_string());
            world.answer(&agent_request, part).await;
        }
        let id: Value = serde_json::from_str(text(&agent_request.message)).unwrap();
        let answer = json!({"jsonrpc": "2.0", "id": id["id"], "result": {"content": []}});
        let answer = Message::plain(answer.to_string());
        world.answer(&agent_request, answer).await;
        let response = sent.await.unwrap().unwrap().text().await.unwrap();
        assert!(
            response.contains(r#""result":{"content":[]}"#),
            "{key}: {response}"
        );
        let has_parts = response.contains("notifications/message");
        assert_eq!(has_parts, key == "events", "{response}");
    }
    world.end().await;
}

/// The same key would get the same error again.
#[tokio::test]
async fn the_error_that_is_stored_for_a_key_asks_for_a_new_key() {
    let mut world = World::new().await;
    let request = json!({"jsonrpc": "2.0", "id": 7, "method": "session/prompt", "params": {"sessionId": "s"}});
    for is_replay in [false, true] {
        let sent = world.post("/rpc/weather", request.to_string());
        let sent = sent
            .header("idempotency-key", "k")
            .header("accept", "application/json")
            .header("x-a2a-timeout", "300");
        let response = sent.send().await.unwrap();
        assert_eq!(
            response.headers().contains_key("idempotent-replay"),
            is_replay
        );
        let response = response.text().await.unwrap();
        assert!(response.contains("a new Idempotency-Key"), "{response}");
    }
    world.agent_request().await;
    world.end().await;
}
