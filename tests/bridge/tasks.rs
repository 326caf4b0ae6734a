//! `POST /a2a` and `POST /a2a/agents/{name}`: messages, streams and tasks in three dialects, with an agent on the bus.

use std::sync::Arc;

use a2abus_transports::memory::Memory;
use a2abus_transports::{
    Address, Consumer, Delivery, Message, Outcome, TopicFilter, Transport as _, TransportErrorKind,
};
use reqwest::{RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use support::battery::until_closed;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use crate::a2a::{SseEvent, read_events};
use crate::http::{Front, SOON, request};
use crate::set_up::read;

pub(crate) const CONFIG: &str = r#"
instance: test
transports:
  local: { type: memory }
agents:
  weather: { description: The weather., to: { transport: local, topic: a2a.weather } }
  maps: { description: Maps., streaming: false, to: { transport: local, topic: a2a.maps } }
a2a: { default_agent: weather, max_text_part: 1KiB }
calls: { timeout: 60s }
http: { listen: "127.0.0.1:0", drain_grace: 5s }
admin: { listen: "127.0.0.1:0" }
"#;

/// A bridge with an agent behind it that follows the text of each message.
pub(crate) struct Bus {
    pub(crate) front: Front,
    requests: mpsc::Receiver<Value>,
    /// Lets agents finish that hold a task.
    pub(crate) gate: Arc<Semaphore>,
}

impl Bus {
    pub(crate) async fn open() -> Self {
        Self::open_with(CONFIG).await
    }

    pub(crate) async fn open_with(config: &str) -> Self {
        let front = Front::open_with(config).await;
        let consumer = read(&front.memory, "a2a.>").await;
        let (sender, requests) = mpsc::channel(1_000);
        let gate = Arc::new(Semaphore::new(0));
        let agent = Agent {
            memory: front.memory.connect(),
            gate: Arc::clone(&gate),
            sender,
        };
        tokio::spawn(agent.run(consumer));
        Self {
            front,
            requests,
            gate,
        }
    }

    pub(crate) fn post(&self, body: String) -> RequestBuilder {
        self.front
            .to("/a2a/agents/weather", body)
            .header("content-type", "application/json")
    }

    /// The answer to a request of A2A 0.3.
    pub(crate) async fn ask(&self, method: &str, params: Value) -> Value {
        let response = self
            .post(request("7", method, params))
            .send()
            .await
            .unwrap();
        whole(response).await
    }

    /// The answer to a request of A2A 1.0.
    pub(crate) async fn ask_1_0(&self, method: &str, params: Value) -> Value {
        let sent = self
            .post(request("7", method, params))
            .header("a2a-version", "1.0");
        let response = sent.send().await.unwrap();
        assert_eq!(response.headers()["a2a-version"], "1.0");
        whole(response).await
    }

    /// The answer to a request of the JAF document.
    async fn ask_jaf(&self, method: &str, params: Value) -> Value {
        let sent = self
            .post(request("7", method, params))
            .header("x-a2a-version", "0.3.0");
        whole(sent.send().await.unwrap()).await
    }

    async fn stream(&self, params: Value) -> Stream {
        let sent = self.post(request("7", "message/stream", params)).send();
        Stream::of(sent.await.unwrap())
    }

    /// Waits for the end of a task.
    async fn follow(&self, task: Value) {
        let sent = self.post(request("8", "tasks/resubscribe", task)).send();
        drop(sent.await.unwrap().text().await.unwrap());
    }

    pub(crate) async fn next_request(&mut self) -> Value {
        timeout(SOON, self.requests.recv()).await.unwrap().unwrap()
    }
}

async fn whole(response: Response) -> Value {
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-type"], "application/json");
    response.json().await.unwrap()
}

/// A stream that is read event by event.
pub(crate) struct Stream {
    response: Response,
    read: String,
    consumed: usize,
}

impl Stream {
    pub(crate) fn of(response: Response) -> Self {
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            response,
            read: String::new(),
            consumed: 0,
        }
    }

    /// The next event; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<SseEvent> {
        loop {
            let end = self.read.rfind("\n\n").map_or(0, |end| end + 2);
            let events = read_events(&self.read[..end]);
            if let Some(event) = events.get(self.consumed) {
                self.consumed += 1;
                return Some(event.clone());
            }
            let chunk = timeout(SOON, self.response.chunk())
                .await
                .unwrap()
                .unwrap()?;
            self.read.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    pub(crate) async fn rest(mut self) -> Vec<SseEvent> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

pub(crate) fn message(text: &str) -> Value {
    json!({
        "kind": "message", "role": "user", "messageId": format!("m-{text}"), "contextId": "c-1",
        "parts": [{ "kind": "text", "text": text }],
    })
}

fn user_message(text: &str) -> Value {
    json!({ "message": message(text) })
}

/// An agent that has its own ids for tasks, and follows the text of each message.
struct Agent {
    memory: Memory,
    gate: Arc<Semaphore>,
    sender: mpsc::Sender<Value>,
}

impl Agent {
    async fn run(self, mut consumer: Consumer) {
        let agent = Arc::new(self);
        while let Some(delivery) = consumer.recv().await {
            let agent = Arc::clone(&agent);
            tokio::spawn(async move { agent.answer(delivery).await });
        }
    }

    async fn answer(&self, delivery: Delivery) {
        let Delivery {
            message,
            reply_to,
            acknowledger,
            ..
        } = delivery;
        acknowledger.settle(Outcome::Settled).unwrap();
        let request: Value = serde_json::from_slice(message.body.as_ref().unwrap()).unwrap();
        let mut seen = request.clone();
        seen["key"] = json!(
            message
                .key
                .map(|key| String::from_utf8(key.to_vec()).unwrap())
        );
        let _ = self.sender.send(seen).await;
        let Some(reply_to) = reply_to else { return };
        let send = async |message: Message| {
            let sent = self
                .memory
                .send(&Address::topic(reply_to.clone()), message)
                .await;
            sent.unwrap().await.unwrap();
        };
        let message_of = |member: &str, value: Value| {
            let answer = json!({ "jsonrpc": "2.0", "id": request["id"], member: value });
            Message::plain(answer.to_string())
        };
        let say = async |member: &str, value: Value| send(message_of(member, value)).await;
        let text = request["params"]["message"]["parts"][0]["text"].as_str();
        let own = match text {
            Some("deaf") => "agents-deaf",
            Some("stubborn") => "agents-stubborn",
            _ => "agents-own",
        };
        let status = |state: &str, last: bool| {
            json!({
                "kind": "status-update", "taskId": own, "contextId": "c-1", "final": last,
                "status": { "state": state, "message": {
                    "kind": "message", "role": "agent", "messageId": format!("s-{state}"),
                    "parts": [{ "kind": "text", "text": format!("I am {state}") }],
                } },
            })
        };
        let chunk = |text: &str, append: bool| {
            json!({
                "kind": "artifact-update", "taskId": own, "contextId": "c-1", "append": append, "lastChunk": append,
                "artifact": { "artifactId": "a", "parts": [{ "kind": "text", "text": text }] },
            })
        };
        if request["method"] == "tasks/cancel" {
            if request["params"]["id"] == "agents-deaf" {
                return;
            }
            if request["params"]["id"] == "agents-stubborn" {
                let error = json!({ "code": -32002, "message": "I am busy" });
                return say("error", error).await;
            }
            let task = json!({ "kind": "task", "id": own, "contextId": "c-1", "status": { "state": "canceled" } });
            return say("result", task).await;
        }
        match text {
            Some("message") => {
                let message = json!({
                    "kind": "message", "role": "agent", "messageId": "r-1",
                    "parts": [{ "kind": "text", "text": "sunny" }, { "kind": "data", "data": { "n": 9007199254740993_u64 } }],
                });
                say("result", message).await;
            }
            Some("plain") => say("result", json!("just text")).await,
            Some("garbage") => send(Message::plain("not json".to_owned())).await,
            Some("error") => {
                say(
                    "error",
                    json!({ "code": -32050, "message": "no such city" }),
                )
                .await
            }
            Some("task") => {
                say("result", status("working", false)).await;
                say("result", chunk("sun", false)).await;
                say("result", chunk("ny", true)).await;
                say("result", status("completed", true)).await;
            }
            Some("progress, then a result") => {
                let params = json!({ "progressToken": request["id"], "progress": 1 });
                let progress = json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params });
                send(Message::plain(progress.to_string())).await;
                say("result", json!({ "n": 0 })).await;
            }
            Some(
                pieces @ ("pieces"
                | "pieces, then an error"
                | "large pieces"
                | "large pieces, one by one"),
            ) => {
                let (count, size) = match pieces {
                    "large pieces" => (40, 50_000),
                    "large pieces, one by one" => (12, 50_000),
                    _ => (2, 0),
                };
                for n in 0..count {
                    if pieces.ends_with("one by one") {
                        self.gate.acquire().await.unwrap().forget();
                    }
                    let fill = "x".repeat(size);
                    let mut piece = message_of("result", json!({ "n": n, "fill": fill }));
                    for (name, value) in [
                        ("ce_specversion", "1.0"),
                        ("ce_id", "p"),
                        ("ce_source", "/agent"),
                        ("ce_type", "piece"),
                        ("ce_mcptype", "stream"),
                        ("content-type", "application/json"),
                    ] {
                        piece.headers.push(name, value);
                    }
                    send(piece).await;
                }
                match pieces {
                    "pieces, then an error" => {
                        let error = json!({ "code": -32050, "message": "no more" });
                        say("error", error).await;
                    }
                    _ => say("result", json!({ "n": 2 })).await,
                }
            }
            Some("records") => {
                let delta = |kind: &str, text: &str| json!({ "delta_kind": kind, "delta": text });
                let bodies = [
                    delta("text", "sun"),
                    delta("reasoning", "hm"),
                    delta("text", "ny"),
                    json!({ "result": {} }),
                ];
                for (sequence, body) in bodies.into_iter().enumerate() {
                    let last = body["result"].is_object();
                    let (kind, state) = match last {
                        true => ("e2a.complete", "succeeded"),
                        false => ("e2a.chunk", "in_progress"),
                    };
                    let record = json!({
                        "protocol_version": "1.0", "request_id": request["id"], "sequence": sequence,
                        "is_final": last, "status": state, "response_kind": kind, "body": body,
                    });
                    send(Message::plain(record.to_string())).await;
                }
            }
            Some("snapshot") => {
                let task = json!({
                    "task": { "id": own, "contextId": "c-1", "status": { "state": "TASK_STATE_COMPLETED" },
                        "artifacts": [{ "artifactId": "a", "parts": [{ "text": "sunny" }, { "data": [1] }, { "raw": "QQ==", "filename": "f", "mediaType": "text/x" }] }] },
                });
                say("result", task).await;
            }
            Some("hold") => {
                say("result", status("working", false)).await;
                self.gate.acquire().await.unwrap().forget();
                say("result", chunk("sunny", false)).await;
                say("result", status("completed", true)).await;
            }
            Some("busy") => {
                while self.gate.try_acquire().is_err() {
                    say("result", status("working", false)).await;
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                }
                say("result", status("completed", true)).await;
            }
            Some("late") => {
                self.gate.acquire().await.unwrap().forget();
                say("result", status("completed", true)).await;
            }
            Some("ask") => say("result", status("input-required", true)).await,
            Some("ask later") => {
                self.gate.acquire().await.unwrap().forget();
                let mut asks = status("input-required", true);
                asks["status"]["message"]["messageId"] = json!("s-later");
                asks["status"]["message"]["parts"][0]["text"] = json!("where later?");
                say("result", asks).await;
            }
            Some(asks @ ("ask, not final" | "ask, not final in its headers")) => {
                let mut question = message_of("result", status("input-required", false));
                if asks.ends_with("headers") {
                    question.headers.push("ce_mcptype", "stream");
                    question.headers.push("ce_isfinal", "false");
                }
                send(question).await;
                say("error", json!({ "code": -32603, "message": "the end" })).await;
            }
            Some(refused @ ("refuse" | "refuse later")) => {
                if refused == "refuse later" {
                    self.gate.acquire().await.unwrap().forget();
                }
                say(
                    "error",
                    json!({ "code": -32602, "message": "that is not a city" }),
                )
                .await
            }
            Some("described") => {
                let mut working = status("working", false);
                working["metadata"] = json!({ "session": 1, "step": "first" });
                say("result", working).await;
                let mut artifact = chunk("sunny", false);
                artifact["metadata"] = json!({ "author": "me" });
                artifact["artifact"]["extensions"] = json!(["urn:x"]);
                say("result", artifact).await;
                let mut completed = status("completed", true);
                completed["metadata"] = json!({ "step": "last" });
                say("result", completed).await;
            }
            Some("begin" | "deaf" | "stubborn") => say("result", status("working", false)).await,
            _ => {}
        }
    }
}

#[tokio::test]
async fn clients_that_show_no_dialect_get_the_one_of_their_agent() {
    let config = CONFIG.replace("The weather.,", "The weather., dialect: jaf-doc,");
    let bus = Bus::open_with(&config).await;
    // Both paths lead to the same agent.
    for path in ["/a2a/agents/weather", "/a2a"] {
        let sent = bus
            .front
            .to(path, request("7", "message/send", user_message("message")));
        let sent = sent.header("content-type", "application/json");
        let answer = whole(sent.send().await.unwrap()).await;
        assert_eq!(answer["result"]["kind"], "completion");
    }
    // A version in the request, and the agents without the setting, are as before.
    let sent = bus.post(request("7", "message/send", user_message("message")));
    let sent = sent.header("a2a-version", "0.3").send();
    let answer = whole(sent.await.unwrap()).await;
    assert_eq!(answer["result"]["kind"], "message");
    let answer = bus.ask_1_0("SendMessage", user_message("message")).await;
    assert!(answer["result"]["message"].is_object());
    let sent = bus.front.to(
        "/a2a/agents/maps",
        request("7", "message/send", user_message("message")),
    );
    let sent = sent.header("content-type", "application/json");
    let answer = whole(sent.send().await.unwrap()).await;
    assert_eq!(answer["result"]["kind"], "message");
}

#[tokio::test]
async fn a_message_is_answered_in_its_own_dialect() {
    let bus = Bus::open().await;
    let answer = bus.ask("message/send", user_message("message")).await;
    assert_eq!(answer["id"], 7);
    let result = &answer["result"];
    assert_eq!(result["kind"], "message");
    assert_eq!(result["role"], "agent");
    assert_eq!(
        result["parts"][0],
        json!({ "kind": "text", "text": "sunny" })
    );
    assert_eq!(result["parts"][1]["data"]["n"], 9_007_199_254_740_993_u64);
    let answer = bus.ask_1_0("SendMessage", user_message("message")).await;
    let message = &answer["result"]["message"];
    assert_eq!(message["role"], "ROLE_AGENT");
    assert_eq!(message["parts"][0], json!({ "text": "sunny" }));
    assert_eq!(message.get("kind"), None);
    let answer = bus.ask_jaf("message/send", user_message("message")).await;
    let result = &answer["result"];
    assert_eq!(result["kind"], "completion");
    assert_eq!(result["final"], true);
    assert_eq!(result["contextId"], "c-1");
    assert_eq!(result["message"]["parts"][0]["text"], "sunny");
    let task = json!({ "id": result["taskId"] });
    let stored = bus.ask_jaf("tasks/get", task).await;
    assert_eq!(stored["result"]["status"]["state"], "completed");
    // An answer that is not A2A becomes a message; an error stays an error.
    let answer = bus.ask("message/send", user_message("plain")).await;
    assert_eq!(answer["result"]["parts"][0]["text"], "just text");
    let answer = bus.ask("message/send", user_message("error")).await;
    assert_eq!(
        answer["error"],
        json!({ "code": -32050, "message": "no such city" })
    );
    // In a stream it ends the task.
    let events = bus.stream(user_message("error")).await.rest().await;
    let last = events.last().unwrap().json();
    let status = &last["result"]["status"];
    assert_eq!(status["state"], "failed", "{last}");
    assert_eq!(status["message"]["parts"][0]["text"], "no such city");
    assert_eq!(
        status["message"]["metadata"]["error"],
        json!({ "code": -32050, "message": "no such city" })
    );
    // The path without an agent is for the default one.
    let body = request("\"x\"", "message/send", user_message("plain"));
    let answer = bus.front.to("/a2a", body).send().await.unwrap();
    assert_eq!(whole(answer).await["id"], "x");
}

#[tokio::test]
async fn a_task_is_stored_and_read_in_any_dialect() {
    let mut bus = Bus::open().await;
    let answer = bus.ask("message/send", user_message("task")).await;
    let task = &answer["result"];
    assert_eq!(task["kind"], "task");
    assert_eq!(task["contextId"], "c-1");
    assert_eq!(task["status"]["state"], "completed");
    let parts = &task["artifacts"][0]["parts"];
    assert_eq!(parts[0]["text"], "sun");
    assert_eq!(parts[1]["text"], "ny");
    let history: Vec<_> = task["history"].as_array().unwrap().iter().collect();
    assert_eq!(history[0]["role"], "user");
    assert_eq!(history[1]["messageId"], "s-working");
    // The agent's own id is its own.
    assert_ne!(task["id"], "agents-own");
    assert_eq!(history[1]["taskId"], task["id"]);
    let request = bus.next_request().await;
    assert_eq!(
        request["params"]["message"],
        message("task"),
        "it is unchanged"
    );
    let current = bus
        .ask_1_0("GetTask", json!({ "id": task["id"], "historyLength": 1 }))
        .await;
    let current = &current["result"];
    assert_eq!(current["status"]["state"], "TASK_STATE_COMPLETED");
    assert_eq!(current["history"].as_array().unwrap().len(), 1);
    assert_eq!(
        current["artifacts"][0]["parts"][0],
        json!({ "text": "sun" })
    );
    let jaf = bus
        .ask_jaf("tasks/get", json!({ "id": task["id"], "historyLength": 0 }))
        .await;
    assert_eq!(jaf["result"]["status"]["state"], "completed");
    assert_eq!(jaf["result"].get("history"), None);
    // An answer in the form of A2A 1.0 is returned in that of 0.3.
    let answer = bus.ask("message/send", user_message("snapshot")).await;
    let parts = &answer["result"]["artifacts"][0]["parts"];
    assert_eq!(
        parts[1],
        json!({ "kind": "data", "data": { "value": [1] } })
    );
    let file = json!({ "bytes": "QQ==", "name": "f", "mimeType": "text/x" });
    assert_eq!(parts[2], json!({ "kind": "file", "file": file }));
}

#[tokio::test]
async fn a_task_survives_a_restart_where_the_state_is_in_files() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().display();
    let config = format!("{CONFIG}state: {{ log: embedded, directory: {state} }}\n");
    let first = Bus::open_with(&config).await;
    let answer = first.ask("message/send", user_message("task")).await;
    let id = answer["result"]["id"].clone();
    assert!(id.is_string(), "{answer}");
    first.front.stop.cancel();
    timeout(SOON, first.front.running).await.unwrap().unwrap();
    until_closed(directory.path()).await;
    let second = Bus::open_with(&config).await;
    let task = second.ask("tasks/get", json!({ "id": id })).await;
    assert_eq!(task["result"]["status"]["state"], "completed", "{task}");
    assert_eq!(task["result"]["artifacts"], answer["result"]["artifacts"]);
}

#[tokio::test]
async fn a_stream_begins_with_the_task_and_has_its_events_in_order() {
    let bus = Bus::open().await;
    let events = bus.stream(user_message("task")).await.rest().await;
    let kinds: Vec<_> = events
        .iter()
        .map(|event| event.json()["result"]["kind"].clone())
        .collect();
    assert_eq!(
        kinds,
        [
            "task",
            "status-update",
            "artifact-update",
            "artifact-update",
            "status-update"
        ]
    );
    assert!(
        events
            .iter()
            .all(|event| event.ty == "message" && event.json()["id"] == 7)
    );
    let last = events[4].json();
    assert_eq!(last["result"]["final"], true);
    assert_eq!(last["result"]["status"]["state"], "completed");
    assert_eq!(events[0].json()["result"]["status"]["state"], "submitted");
    let task = &events[0].json()["result"]["id"];
    assert!(
        events[1..]
            .iter()
            .all(|event| event.json()["result"]["taskId"] == *task)
    );
    let sent = bus.post(request("7", "SendStreamingMessage", user_message("task")));
    let events = Stream::of(sent.header("a2a-version", "1.0").send().await.unwrap())
        .rest()
        .await;
    let members: Vec<_> = events
        .iter()
        .map(|event| {
            event.json()["result"]
                .as_object()
                .unwrap()
                .keys()
                .next()
                .unwrap()
                .clone()
        })
        .collect();
    assert_eq!(
        members,
        [
            "task",
            "statusUpdate",
            "artifactUpdate",
            "artifactUpdate",
            "statusUpdate"
        ]
    );
    let sent = bus.post(request("7", "message/stream", user_message("task")));
    let events = Stream::of(sent.header("x-a2a-version", "0.3.0").send().await.unwrap())
        .rest()
        .await;
    let types: Vec<_> = events.iter().map(|event| event.ty.as_str()).collect();
    let partial = "partial-completion";
    assert_eq!(
        types,
        [
            "status-update",
            "status-update",
            partial,
            partial,
            "completion"
        ]
    );
    assert!(
        events
            .iter()
            .all(|event| event.json()["result"]["kind"] == event.ty.as_str())
    );
    // An agent that answers with a plain message gets a task made.
    let events = bus.stream(user_message("message")).await.rest().await;
    let last = events.last().unwrap().json();
    assert_eq!(
        last["result"]["status"]["message"]["parts"][0]["text"],
        "sunny"
    );
}

/// The parts of an answer that is not A2A.
#[tokio::test]
async fn a_task_continues_until_the_last_part_of_an_answer_of_another_protocol() {
    let bus = Bus::open().await;
    let task = bus.ask("message/send", user_message("pieces")).await["result"].clone();
    assert_eq!(task["status"]["state"], "completed", "{task}");
    let artifacts = task["artifacts"].as_array().unwrap();
    let pieces = artifacts[0]["parts"].as_array().unwrap();
    let pieces: Vec<_> = pieces.iter().map(|piece| &piece["data"]["n"]).collect();
    assert_eq!(
        (artifacts.len(), pieces),
        (1, vec![&json!(0), &json!(1), &json!(2)])
    );
    let events = bus.stream(user_message("pieces")).await.rest().await;
    let chunks: Vec<_> = events
        .iter()
        .map(|event| event.json()["result"].clone())
        .filter(|event| event["kind"] == "artifact-update")
        .map(|event| (event["append"] == true, event["lastChunk"] == true))
        .collect();
    assert_eq!(chunks, [(false, false), (true, false), (true, true)]);
    // Clients ignore a first chunk that is to be appended.
    let events = bus.stream(user_message("progress, then a result")).await;
    let events = events.rest().await;
    let artifact = events
        .iter()
        .map(|event| event.json()["result"].clone())
        .find(|event| event["kind"] == "artifact-update");
    assert_eq!(artifact.unwrap()["append"], false);
    let failing = user_message("pieces, then an error");
    let task = bus.ask("message/send", failing).await["result"].clone();
    assert_eq!(task["status"]["state"], "failed", "{task}");
    assert_eq!(task["artifacts"][0]["parts"].as_array().unwrap().len(), 2);
}

/// Clients show the text parts. The last record has no content of its own.
#[tokio::test]
async fn the_text_of_an_e2a_agent_becomes_text_parts_of_the_task() {
    let bus = Bus::open().await;
    let blocking = bus.ask("message/send", user_message("records")).await["result"].clone();
    let last = bus.stream(user_message("records")).await.rest().await.pop();
    let streamed = last.unwrap().json()["result"]["taskId"].clone();
    let streamed = bus.ask("tasks/get", json!({ "id": streamed })).await["result"].clone();
    for task in [blocking, streamed] {
        assert_eq!(task["status"]["state"], "completed", "{task}");
        let parts = task["artifacts"][0]["parts"].as_array().unwrap();
        let texts: Vec<_> = parts.iter().map(|part| part["text"].as_str()).collect();
        assert_eq!(texts, [Some("sun"), None, Some("ny")], "{task}");
        assert_eq!(parts[1]["data"]["body"]["delta"], "hm");
    }
}

#[tokio::test]
async fn a_task_that_takes_too_much_of_the_memory_fails() {
    let config = format!("{CONFIG}state: {{ memory: 1MiB }}\n");
    let bus = Bus::open_with(&config).await;
    let task = bus.ask("message/send", user_message("large pieces")).await["result"].clone();
    assert_eq!(task["status"]["state"], "failed", "{}", task["status"]);
    let why = &task["status"]["message"]["parts"][0]["text"];
    assert!(why.as_str().unwrap().contains("too large"), "{why}");
    let id = json!({ "id": task["id"] });
    let read = bus.ask("tasks/get", id).await["result"].clone();
    assert_eq!(read["status"]["state"], "failed");
}

/// Otherwise one client could use up the memory with the messages of one task.
#[tokio::test]
async fn a_message_that_would_make_its_task_too_large_is_refused() {
    let config = format!("{CONFIG}state: {{ memory: 1MiB }}\n");
    let mut bus = Bus::open_with(&config).await;
    let task = bus.ask("message/send", user_message("ask")).await["result"]["id"].clone();
    bus.next_request().await;
    let next = |method: &str| {
        let mut message = message("ask");
        message["taskId"] = task.clone();
        message["metadata"] = json!({ "large": "x".repeat(60 << 10) });
        bus.post(request("7", method, json!({ "message": message })))
    };
    let mut taken = Vec::new();
    let refused = loop {
        let response = next("message/send").send().await.unwrap();
        if response.status() != StatusCode::OK {
            break response;
        }
        taken.push(whole(response).await);
        assert!(taken.len() < 5, "{taken:?}");
    };
    let streamed = next("message/stream").send().await.unwrap();
    for refused in [refused, streamed] {
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        let error = refused.json::<Value>().await.unwrap()["error"].take();
        assert_eq!(error["data"]["reason"], "exhausted", "{error}");
        let why = error["message"].as_str().unwrap();
        assert!(why.contains("without its taskId"), "{why}");
    }
    let state = bus.ask("tasks/get", json!({ "id": task })).await["result"]["status"].take();
    assert_eq!(state["state"], "input-required", "{state}");
    let another = bus.ask("message/send", user_message("plain")).await;
    assert_eq!(another["result"]["kind"], "message", "{another}");
    for _ in &taken {
        let seen = bus.next_request().await;
        assert_eq!(seen["params"]["message"]["messageId"], "m-ask");
    }
    let seen = bus.next_request().await;
    assert_eq!(seen["params"]["message"], message("plain"));
}

/// A task that has not ended cannot be removed, also if it waits for its client.
#[tokio::test]
async fn the_unfinished_tasks_of_one_client_leave_memory_to_the_others() {
    let config = format!("{CONFIG}state: {{ memory: 1MiB }}\n");
    let bus = Bus::open_with(&config).await;
    let client = |address: [u8; 4]| {
        let client = reqwest::Client::builder().local_address(Some(address.into()));
        client.build().unwrap()
    };
    let (one, other) = (client([127, 0, 0, 1]), client([127, 0, 0, 2]));
    let send = |client: &reqwest::Client| {
        let mut message = message("ask");
        message["metadata"] = json!({ "large": "x".repeat(60 << 10) });
        let url = format!("{}/a2a/agents/weather", bus.front.base);
        let sent = client.post(url).header("content-type", "application/json");
        sent.body(request("7", "message/send", json!({ "message": message })))
            .send()
    };
    let mut tasks = Vec::new();
    let refused = loop {
        let response = send(&one).await.unwrap();
        if response.status() != StatusCode::OK {
            break response;
        }
        let task = whole(response).await;
        assert_eq!(task["result"]["status"]["state"], "input-required");
        tasks.push(task["result"]["id"].clone());
        assert!(tasks.len() < 5, "{tasks:?}");
    };
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let error = refused.json::<Value>().await.unwrap()["error"].take();
    assert_eq!(error["data"]["reason"], "exhausted", "{error}");
    let why = error["message"].as_str().unwrap();
    assert!(
        why.contains("this client") && why.contains("cancel"),
        "{why}"
    );
    whole(send(&other).await.unwrap()).await;
    // The client can still answer a task that waits for it.
    let waiting = tasks.remove(0);
    let mut answer = message("task");
    answer["taskId"] = waiting.clone();
    answer["metadata"] = json!({ "large": "x".repeat(30 << 10) });
    let answered = bus.ask("message/send", json!({ "message": answer })).await;
    assert_eq!(answered["result"]["id"], waiting, "{answered}");
    // Once some have ended, there is room again.
    for task in tasks {
        bus.ask("tasks/cancel", json!({ "id": task })).await;
    }
    let again = async { while send(&one).await.unwrap().status() != StatusCode::OK {} };
    timeout(SOON, again).await.unwrap();
}

#[tokio::test]
async fn a_stream_that_its_client_does_not_accept_is_refused_before_its_agent_gets_the_message() {
    let mut bus = Bus::open().await;
    let sent = bus.post(request("7", "message/stream", user_message("task")));
    let refused = sent.header("accept", "application/json").send().await;
    let refused = whole(refused.unwrap()).await;
    assert_eq!(refused["error"]["code"], -32005, "{refused}");
    let part = json!({ "text": "task" });
    let message_1_0 = json!({ "role": "ROLE_USER", "messageId": "m", "parts": [part] });
    let body = json!({ "message": message_1_0 }).to_string();
    let sent = bus.front.to("/a2a/agents/weather/message:stream", body);
    let sent = sent.header("content-type", "application/json");
    let refused = sent.header("accept", "application/json").send().await;
    assert_eq!(refused.unwrap().status(), StatusCode::BAD_REQUEST);
    bus.ask("message/send", user_message("plain")).await;
    let seen = bus.next_request().await;
    assert_eq!(seen["params"]["message"], message("plain"));
}

/// The memory that requests and answers use.
async fn held_bytes(bus: &Bus) -> u64 {
    let metrics = bus.front.admin("/metrics").await;
    let mut lines = metrics.lines();
    let held = lines.find_map(|line| line.strip_prefix("a2abus_held_bytes "));
    held.unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_stream_begins_with_its_task_if_there_is_room_for_it() {
    // A client has half of it. The task takes 550 kB.
    let budget = "calls: { budget_bytes: 1MiB,";
    let bus = Bus::open_with(&CONFIG.replace("calls: {", budget)).await;
    let mut made = bus.stream(user_message("large pieces, one by one")).await;
    let task = made.next().await.unwrap().json()["result"]["id"].clone();
    for _ in 0..11 {
        bus.gate.add_permits(1);
        let is_piece = |event: &SseEvent| event.json()["result"]["kind"] == "artifact-update";
        while !is_piece(&made.next().await.unwrap()) {}
    }
    let of_task = |what: &str| {
        format!(
            "{}/a2a/tasks/{}/{what}",
            bus.front.base,
            task.as_str().unwrap()
        )
    };
    let resubscribe = || bus.post(request("8", "tasks/resubscribe", json!({ "id": task })));
    // The heads of these requests use more than half of what the client has.
    let waiting: Vec<_> = (0..7)
        .map(|_| {
            let wait = reqwest::Client::new().get(of_task("wait?timeout=300000"));
            tokio::spawn(wait.header("x-padding", "x".repeat(50_000)).send())
        })
        .collect();
    timeout(SOON, async { while held_bytes(&bus).await < 350_000 {} })
        .await
        .unwrap();
    let over_rest = reqwest::get(of_task("stream")).await.unwrap();
    for refused in [over_rest, resubscribe().send().await.unwrap()] {
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        let refused: Value = refused.json().await.unwrap();
        assert_eq!(refused["error"]["data"]["reason"], "exhausted", "{refused}");
    }
    // The agent gets this message, so its client gets a stream.
    let mut next = message("begin");
    next["taskId"] = task.clone();
    let mut begun = bus.stream(json!({ "message": next })).await;
    let first = begun.next().await.unwrap().json();
    assert_eq!(first["result"]["id"], task, "{first}");
    assert_eq!(first["result"].get("artifacts"), None, "{first}");
    for wait in waiting {
        wait.abort();
    }
    let first = timeout(SOON, async {
        loop {
            let response = resubscribe().send().await.unwrap();
            if response.status() != StatusCode::TOO_MANY_REQUESTS {
                return Stream::of(response).next().await.unwrap().json();
            }
        }
    });
    let first = first.await.unwrap();
    let pieces = first["result"]["artifacts"][0]["parts"].as_array();
    assert_eq!(pieces.map(Vec::len), Some(11), "{}", first["error"]);
}

/// Each event of this stream has the whole task, so events that came meanwhile are one.
#[tokio::test]
async fn a_client_of_eventmesh_gets_each_state_of_a_task_once() {
    let bus = Bus::open().await;
    let configuration = json!({ "blocking": false });
    let params = json!({ "message": message("large pieces"), "configuration": configuration });
    let task = bus.ask("message/send", params).await["result"]["id"].clone();
    let url = format!(
        "{}/a2a/tasks/{}/stream",
        bus.front.base,
        task.as_str().unwrap()
    );
    let events = reqwest::get(url).await.unwrap().text().await.unwrap();
    let events = read_events(&events);
    let offset = |event: &SseEvent| -> u64 {
        let id = event.id.as_ref().unwrap();
        id.split_once('-').unwrap().1.parse().unwrap()
    };
    let offsets: Vec<u64> = events.iter().map(offset).collect();
    assert!(offsets.is_sorted_by(|a, b| a < b), "{offsets:?}");
    let last = events.last().unwrap().json();
    assert_eq!(last["state"], "COMPLETED");
    assert_eq!(last["data"].as_array().map(Vec::len), Some(41));
}

#[tokio::test]
async fn the_error_of_a_request_of_eventmesh_that_reached_its_agent_is_kept_for_its_key() {
    let mut bus = Bus::open().await;
    let mut stream = bus.stream(user_message("stubborn")).await;
    let task = stream.next().await.unwrap().json()["result"]["id"].clone();
    stream.next().await.unwrap();
    bus.next_request().await;
    let url = format!("{}/a2a/tasks/{}", bus.front.base, task.as_str().unwrap());
    for is_replay in [false, true] {
        let cancel = reqwest::Client::new().delete(&url);
        let refused = cancel.header("idempotency-key", "k").send().await.unwrap();
        assert_eq!(refused.status(), StatusCode::CONFLICT);
        let has_mark = refused.headers().contains_key("idempotent-replay");
        assert_eq!(has_mark, is_replay);
        let why = refused.text().await.unwrap();
        assert!(why.contains("refuses to cancel it: I am busy"), "{why}");
    }
    assert_eq!(bus.next_request().await["method"], "tasks/cancel");
    bus.ask("message/send", user_message("plain")).await;
    assert_eq!(bus.next_request().await["method"], "message/send");
}

#[tokio::test]
async fn every_subscriber_gets_the_same_events_and_may_come_back() {
    let bus = Bus::open().await;
    let mut first = bus.stream(user_message("hold")).await;
    let event = first.next().await.unwrap();
    let working = first.next().await.unwrap();
    assert_eq!(working.json()["result"]["status"]["state"], "working");
    let task = event.json()["result"]["id"].clone();
    let follow = || bus.post(request("8", "tasks/resubscribe", json!({ "id": task })));
    let mut second = Stream::of(follow().send().await.unwrap());
    assert_eq!(
        second.next().await.unwrap().json()["result"]["status"]["state"],
        "working"
    );
    // One that has lost everything after its first event.
    let back = follow().header("last-event-id", event.id.clone().unwrap());
    let mut third = Stream::of(back.send().await.unwrap());
    assert_eq!(third.next().await.unwrap().id, working.id);
    bus.gate.add_permits(1);
    let (first, second, third) = (first.rest().await, second.rest().await, third.rest().await);
    assert_eq!(first.len(), 2);
    let what = |events: &[SseEvent]| -> Vec<_> {
        let one = |event: &SseEvent| (event.id.clone(), event.json()["result"].clone());
        events.iter().map(one).collect()
    };
    assert_eq!(what(&first), what(&second));
    assert_eq!(what(&first), what(&third));
    // After the end there are no new events, but missed ones are still available.
    let ended = whole(follow().send().await.unwrap()).await;
    assert_eq!(ended["error"]["code"], -32004);
    let back = follow().header("last-event-id", first[0].id.clone().unwrap());
    let missed = Stream::of(back.send().await.unwrap()).rest().await;
    assert_eq!(what(&missed), what(&first[1..]));
    // An event that is not stored, or never was: the task itself.
    let unknown = follow().header("last-event-id", "0-999999999");
    let whole_task = Stream::of(unknown.send().await.unwrap()).rest().await;
    assert_eq!(whole_task.len(), 1);
    let ended = &whole_task[0].json()["result"];
    assert_eq!(
        (&ended["id"], &ended["status"]["state"]),
        (&task, &json!("completed"))
    );
    let invalid = follow().header("last-event-id", "zzz").send();
    let invalid = whole(invalid.await.unwrap()).await["error"].take();
    assert_eq!(invalid["code"], -32602);
    let message = invalid["message"].as_str().unwrap();
    assert!(message.contains(r#"Last-Event-ID: "zzz""#), "{message}");
    let path = format!(
        "/a2a/agents/weather/tasks/{}:subscribe",
        task.as_str().unwrap()
    );
    let over_rest = bus.front.to(&path, "").header("last-event-id", "zzz");
    let over_rest = over_rest.send().await.unwrap();
    assert_eq!(over_rest.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_drain_that_ends_a_call_fails_its_task_in_every_stream() {
    let config = CONFIG.replace("drain_grace: 5s", "drain_grace: 1s");
    let mut bus = Bus::open_with(&config).await;
    let mut first = bus.stream(user_message("hold")).await;
    let task = first.next().await.unwrap().json()["result"]["id"].clone();
    first.next().await.unwrap();
    bus.next_request().await;
    let follow = request("8", "tasks/resubscribe", json!({ "id": task }));
    let mut resumed = Stream::of(bus.post(follow).send().await.unwrap());
    resumed.next().await.unwrap();
    bus.front.stop.cancel();
    for stream in [first, resumed] {
        let events = stream.rest().await;
        let last = events.last().unwrap().json();
        let status = &last["result"]["status"];
        assert_eq!(status["state"], "failed", "{last}");
        let why = status["message"]["parts"][0]["text"].as_str().unwrap();
        assert!(why.contains("may have executed the request"), "{why}");
    }
}

#[tokio::test]
async fn a_client_that_disconnects_does_not_end_its_task() {
    let mut bus = Bus::open().await;
    let mut stream = bus.stream(user_message("hold")).await;
    let task = stream.next().await.unwrap().json()["result"]["id"].clone();
    stream.next().await.unwrap();
    drop(stream);
    assert_eq!(bus.next_request().await["method"], "message/stream");
    bus.gate.add_permits(1);
    bus.follow(json!({ "id": task })).await;
    let stored = bus.ask("tasks/get", json!({ "id": task })).await;
    assert_eq!(stored["result"]["status"]["state"], "completed");
    assert!(bus.requests.try_recv().is_err(), "the agent got a cancel");
}

#[tokio::test]
async fn a_caller_that_disconnects_before_the_first_part_leaves_a_task() {
    let mut bus = Bus::open().await;
    let sent = bus.post(request("7", "message/send", user_message("late")));
    let caller = tokio::spawn(sent.send());
    assert_eq!(bus.next_request().await["method"], "message/send");
    caller.abort();
    let listed = async {
        loop {
            let listed = bus
                .ask_1_0("ListTasks", json!({ "contextId": "c-1" }))
                .await;
            if let Some(task) = listed["result"]["tasks"].get(0) {
                return task["id"].clone();
            }
            tokio::task::yield_now().await;
        }
    };
    let id = json!({ "id": timeout(SOON, listed).await.unwrap() });
    bus.gate.add_permits(1);
    bus.follow(id.clone()).await;
    let stored = bus.ask("tasks/get", id).await;
    assert_eq!(stored["result"]["status"]["state"], "completed");
    assert!(bus.requests.try_recv().is_err(), "the agent got a cancel");
}

#[tokio::test]
async fn refused_requests_get_an_error_event_with_the_ids_of_the_request() {
    let bus = Bus::open().await;
    for (method, params) in [
        ("message/stream", json!({ "message": {} })),
        ("tasks/resubscribe", json!({ "id": "unknown" })),
        ("message/unknown", json!({})),
        ("message/stream", json!([1])),
    ] {
        let sent = bus
            .post(request("7", method, params))
            .header("accept", "text/event-stream")
            .header("x-a2a-version", "0.3.0")
            .header("x-a2a-trace-id", "trace-1");
        let events = Stream::of(sent.send().await.unwrap()).rest().await;
        let [event] = events.as_slice() else {
            panic!("{method}: one event");
        };
        assert_eq!(event.ty, "error", "{method}");
        let data = &event.json()["error"]["data"];
        assert_eq!(data["requestId"], 7, "{method}: {data}");
        assert_eq!(data["traceId"], "trace-1", "{method}: {data}");
    }
}

#[tokio::test]
async fn a_caller_need_not_wait() {
    let bus = Bus::open().await;
    for (method, configuration) in [
        ("message/send", json!({ "blocking": false })),
        ("SendMessage", json!({ "returnImmediately": true })),
    ] {
        let params = json!({ "message": message("hold"), "configuration": configuration });
        let task = if method == "message/send" {
            bus.ask(method, params).await["result"].clone()
        } else {
            bus.ask_1_0(method, params).await["result"]["task"].clone()
        };
        let state = task["status"]["state"].as_str().unwrap();
        assert!(!state.to_lowercase().contains("completed"), "{task}");
        bus.gate.add_permits(1);
        bus.follow(json!({ "id": task["id"] })).await;
        let stored = bus.ask("tasks/get", json!({ "id": task["id"] })).await;
        assert_eq!(stored["result"]["status"]["state"], "completed");
    }
}

#[tokio::test]
async fn a_caller_waits_for_a_busy_agent_as_long_as_calls_last() {
    let bus = Bus::open_with(&CONFIG.replace("timeout: 60s", "timeout: 8s")).await;
    let task = bus.ask("message/send", user_message("busy")).await["result"].clone();
    assert_eq!(task["status"]["state"], "working", "{task}");
    bus.gate.add_permits(1);
    let id = json!({ "id": task["id"] });
    bus.follow(id.clone()).await;
    let stored = bus.ask("tasks/get", id).await;
    assert_eq!(stored["result"]["status"]["state"], "completed");
}

#[tokio::test]
async fn a_timeout_of_the_caller_does_not_end_a_task_that_has_begun() {
    let bus = Bus::open().await;
    let configured = json!({ "message": message("hold"), "configuration": { "timeout": 4000 } });
    for (params, header) in [
        (configured, "x-unknown"),
        (user_message("hold"), "x-a2a-timeout"),
    ] {
        let sent = bus.post(request("7", "message/send", params));
        let sent = sent.header(header, "4000").send().await.unwrap();
        let task = whole(sent).await["result"].clone();
        assert_eq!(task["status"]["state"], "working", "{task}");
        bus.gate.add_permits(1);
        let id = json!({ "id": task["id"] });
        bus.follow(id.clone()).await;
        let stored = bus.ask("tasks/get", id).await;
        assert_eq!(stored["result"]["status"]["state"], "completed");
    }
    // Nor one that an earlier message began, although the agent says nothing to this message.
    let task = bus.ask("message/send", user_message("ask")).await["result"]["id"].clone();
    let mut next = message("nothing");
    next["taskId"] = task;
    let params = json!({ "message": next, "configuration": { "timeout": 500 } });
    let task = bus.ask("message/send", params).await["result"].clone();
    assert_eq!(task["status"]["state"], "working", "{task}");
}

/// The error is the answer to that key.
#[tokio::test]
async fn a_timeout_with_a_key_asks_for_a_new_key() {
    let bus = Bus::open().await;
    let sent = bus.post(request("7", "message/send", user_message("nothing")));
    let sent = sent.header("idempotency-key", "k");
    let sent = sent.header("x-a2a-timeout", "500").send().await.unwrap();
    let response: Value = sent.json().await.unwrap();
    let why = response["error"]["message"].as_str().unwrap();
    assert!(why.contains("within 500 ms"), "{why}");
    assert!(why.contains("with a new key"), "{why}");
}

#[tokio::test]
async fn a_task_is_cancelled_by_the_agents_own_task_id() {
    let mut bus = Bus::open().await;
    let mut stream = bus.stream(user_message("hold")).await;
    let task = stream.next().await.unwrap().json()["result"]["id"].clone();
    stream.next().await.unwrap();
    bus.next_request().await;
    let cancelled = bus.ask("tasks/cancel", json!({ "id": task })).await;
    assert_eq!(cancelled["result"]["status"]["state"], "canceled");
    let request = bus.next_request().await;
    assert_eq!(request["method"], "tasks/cancel");
    assert_eq!(request["params"], json!({ "id": "agents-own" }));
    let rest = stream.rest().await;
    let last = rest.last().unwrap().json();
    assert_eq!(last["result"]["status"]["state"], "canceled");
    assert_eq!(last["result"]["final"], true);
    let again = bus.ask("tasks/cancel", json!({ "id": task })).await;
    assert_eq!(again["error"]["code"], -32002);
    // Later messages of the agent change nothing.
    bus.gate.add_permits(1);
    let stored = bus.ask_jaf("tasks/get", json!({ "id": task })).await;
    assert_eq!(stored["result"]["status"]["state"], "cancelled");
    // The JAF document answers in a shape of its own.
    let mut stream = bus.stream(user_message("begin")).await;
    let task = stream.next().await.unwrap().json()["result"]["id"].clone();
    stream.next().await.unwrap();
    let cancelled = bus
        .ask("tasks/cancel", json!({ "id": task, "reason": "enough" }))
        .await;
    assert_eq!(cancelled["result"]["id"], task);
    assert_eq!(cancelled["result"]["cancelled"], true);
}

#[tokio::test]
async fn a_task_is_cancelled_although_its_agent_does_not_confirm_it() {
    let config = CONFIG.replace("a2a: {", "a2a: { cancel_timeout: 200ms,");
    let mut bus = Bus::open_with(&config).await;
    let mut stream = bus.stream(user_message("deaf")).await;
    let task = stream.next().await.unwrap().json()["result"]["id"].clone();
    stream.next().await.unwrap();
    bus.next_request().await;
    let cancelled = bus.ask("tasks/cancel", json!({ "id": task })).await;
    assert_eq!(bus.next_request().await["params"]["id"], "agents-deaf");
    assert_eq!(cancelled["result"]["status"]["state"], "canceled");
    // The agent gets no cancel of the cancel.
    bus.ask("message/send", user_message("plain")).await;
    let seen = bus.next_request().await;
    assert_eq!(seen["params"]["message"], message("plain"));
}

#[tokio::test]
async fn a_task_is_cancelled_although_its_client_disconnects_meanwhile() {
    let config = CONFIG.replace("a2a: {", "a2a: { cancel_timeout: 3s,");
    let mut bus = Bus::open_with(&config).await;
    for by_rest in [false, true] {
        let mut stream = bus.stream(user_message("deaf")).await;
        let task = stream.next().await.unwrap().json()["result"]["id"].clone();
        stream.next().await.unwrap();
        let id = json!({ "id": task });
        let sent = match by_rest {
            true => {
                let url = format!("{}/a2a/tasks/{}", bus.front.base, task.as_str().unwrap());
                reqwest::Client::new().delete(url)
            }
            false => bus.post(request("7", "tasks/cancel", id.clone())),
        };
        let caller = tokio::spawn(sent.send());
        // The agent got the message before, and a notification when the first round stopped waiting.
        while bus.next_request().await["method"] != "tasks/cancel" {}
        caller.abort();
        bus.follow(id.clone()).await;
        let stored = bus.ask("tasks/get", id).await;
        assert_eq!(stored["result"]["status"]["state"], "canceled", "{stored}");
    }
}

#[tokio::test]
async fn a_silent_agent_fails_its_task_at_the_deadline() {
    let bus = Bus::open_with(&CONFIG.replace("timeout: 60s", "timeout: 8s")).await;
    let begun = async {
        let task = bus.ask("message/send", user_message("begin")).await["result"]["id"].clone();
        let id = json!({ "id": task });
        bus.follow(id.clone()).await;
        let task = bus.ask("tasks/get", id).await["result"].clone();
        assert_eq!(task["status"]["state"], "failed", "{task}");
        let why = task["status"]["message"]["parts"][0]["text"]
            .as_str()
            .unwrap();
        assert!(
            why.starts_with(
                "agent \"weather\" did not end its answer: nothing came for 8000 ms after part 1"
            ),
            "{why}"
        );
    };
    // So does one that an earlier message began. Its caller gets it as failed.
    let continued = async {
        let task = bus.ask("message/send", user_message("ask")).await["result"]["id"].clone();
        let mut next = message("nothing");
        next["taskId"] = task;
        let failed = bus.ask("message/send", json!({ "message": next })).await;
        assert_eq!(failed["result"]["status"]["state"], "failed", "{failed}");
    };
    // The agent has not reported a task yet.
    let unreported = async {
        let silent = json!({ "message": message("nothing"), "configuration": { "timeout": 300 } });
        let answer = bus.ask("message/send", silent).await;
        assert_eq!(answer["error"]["code"], -32006);
        assert_eq!(answer["error"]["data"]["reason"], "timeout");
    };
    let patient = async {
        let patient = json!({ "message": message("begin"), "configuration": { "timeout": 7000 } });
        let events = bus.stream(patient).await.rest().await;
        assert_eq!(
            events.last().unwrap().json()["result"]["status"]["state"],
            "failed"
        );
    };
    tokio::join!(begun, continued, unreported, patient);
}

/// A client that shows the last message of each event would show the earlier ones again.
#[tokio::test]
async fn the_stream_of_a_continued_task_begins_without_its_earlier_messages() {
    let bus = Bus::open().await;
    for (asked, expected) in [(None, 1), (Some(0), 0), (Some(2), 2), (Some(9), 3)] {
        let response = bus.ask("message/send", user_message("ask")).await;
        let mut next = message("task");
        next["taskId"] = response["result"]["id"].clone();
        let mut params = json!({ "message": next });
        if let Some(most) = asked {
            params["configuration"] = json!({ "historyLength": most });
        }
        let events = bus.stream(params).await.rest().await;
        let first = events[0].json();
        let history = first["result"]["history"].as_array();
        let history = history.map_or(&[][..], Vec::as_slice);
        assert_eq!(history.len(), expected, "{first}");
        if let Some(last) = history.last() {
            assert_eq!(last["parts"][0]["text"], "task", "{first}");
        }
    }
}

#[tokio::test]
async fn a_task_continues_with_the_next_message() {
    let mut bus = Bus::open().await;
    let response = bus.ask("message/send", user_message("ask")).await;
    let task = response["result"]["id"].clone();
    assert_eq!(response["result"]["status"]["state"], "input-required");
    bus.next_request().await;
    let next = |text: &str, context: &str| {
        let mut message = message(text);
        message["taskId"] = task.clone();
        message["contextId"] = json!(context);
        json!({ "message": message })
    };
    let wrong = bus.ask("message/send", next("task", "c-2")).await;
    assert_eq!(wrong["error"]["code"], -32602);
    let completed = bus.ask("message/send", next("task", "c-1")).await;
    assert_eq!(completed["result"]["id"], task);
    assert_eq!(completed["result"]["status"]["state"], "completed");
    let request = bus.next_request().await;
    assert_eq!(request["params"]["message"]["taskId"], "agents-own");
    let after = bus.ask_1_0("SendMessage", next("task", "c-1")).await;
    assert_eq!(after["error"]["code"], -32004);
    let mut unknown = message("task");
    unknown["taskId"] = json!("nobody");
    let unknown = bus.ask("message/send", json!({ "message": unknown })).await;
    assert_eq!(unknown["error"]["code"], -32001);
    // A message without a context gets one, and so does the agent.
    let mut bare = message("ask");
    bare.as_object_mut().unwrap().remove("contextId");
    let mut null = message("ask");
    null["contextId"] = json!(null);
    for message in [bare, null] {
        let answer = bus.ask("message/send", json!({ "message": message })).await;
        let context = answer["result"]["contextId"].as_str().unwrap();
        assert!(!context.is_empty());
        let request = bus.next_request().await;
        assert_eq!(request["params"]["message"]["contextId"], context);
    }
}

/// The requests of a batch run at the same time.
#[tokio::test]
async fn a_task_gets_each_message_of_a_batch() {
    let bus = Bus::open().await;
    let task = bus.ask("message/send", user_message("ask")).await["result"]["id"].clone();
    let sent = ["nothing", "begin"].map(|text| {
        let mut message = message(text);
        message["taskId"] = task.clone();
        let configuration = json!({ "blocking": false });
        let params = json!({ "message": message, "configuration": configuration });
        request("7", "message/send", params)
    });
    let answers = bus.post(format!("[{}]", sent.join(","))).send().await;
    let answers = whole(answers.unwrap()).await;
    for answer in answers.as_array().unwrap() {
        assert_eq!(answer["result"]["id"], task, "{answers}");
    }
    let task = bus.ask("tasks/get", json!({ "id": task })).await["result"].clone();
    let history = task["history"].as_array().unwrap();
    for id in ["m-ask", "m-nothing", "m-begin"] {
        let is_it = |message: &Value| message["messageId"] == id;
        assert!(history.iter().any(is_it), "{id}: {task}");
    }
}

/// Extensions of A2A put their data into metadata.
#[tokio::test]
async fn metadata_of_events_and_tasks_reaches_the_client() {
    let bus = Bus::open().await;
    let events = bus.stream(user_message("described")).await.rest().await;
    let results: Vec<Value> = events
        .iter()
        .map(|event| event.json()["result"].clone())
        .collect();
    let of = |index: usize| &results[results.len() - 3 + index];
    assert_eq!(of(0)["metadata"], json!({ "session": 1, "step": "first" }));
    assert_eq!(of(1)["metadata"], json!({ "author": "me" }));
    assert_eq!(of(1)["artifact"]["extensions"], json!(["urn:x"]));
    assert_eq!(of(2)["metadata"], json!({ "step": "last" }));
    let id = json!({ "id": results[0]["id"] });
    let merged = json!({ "session": 1, "step": "last" });
    let task = bus.ask("tasks/get", id.clone()).await["result"].clone();
    assert_eq!(task["metadata"], merged, "{task}");
    assert_eq!(task["artifacts"][0]["extensions"], json!(["urn:x"]));
    let task = bus.ask_1_0("GetTask", id).await["result"].clone();
    assert_eq!(task["metadata"], merged, "{task}");
}

/// A task that waits for its client still waits if the next message did not reach the agent, or was refused by it.
#[tokio::test]
async fn a_task_survives_a_message_that_its_agent_refuses() {
    let bus = Bus::open().await;
    let response = bus.ask("message/send", user_message("ask")).await;
    let task = response["result"]["id"].clone();
    let next = |text: &str| {
        let mut message = message(text);
        message["taskId"] = task.clone();
        message["contextId"] = json!("c-1");
        json!({ "message": message })
    };
    let refused = bus.ask("message/send", next("refuse")).await["result"].clone();
    assert_eq!(refused["status"]["state"], "input-required", "{refused}");
    let said = &refused["status"]["message"];
    assert_eq!(said["parts"][0]["text"], "that is not a city");
    assert_eq!(said["metadata"]["error"]["code"], -32602);
    let unusable = bus.ask("message/send", next("garbage")).await["result"].clone();
    assert_eq!(unusable["status"]["state"], "input-required", "{unusable}");
    let said = &unusable["status"]["message"]["parts"][0]["text"];
    assert!(said.to_string().contains("cannot be used"), "{said}");
    let agents = || TopicFilter::new("a2a.weather").unwrap();
    let memory = &bus.front.memory;
    memory.set_refused(agents(), Some(TransportErrorKind::Unauthorised));
    let unsent = bus.ask("message/send", next("task")).await["result"].clone();
    assert_eq!(unsent["status"]["state"], "input-required", "{unsent}");
    memory.set_refused(agents(), None);
    let completed = bus.ask("message/send", next("task")).await["result"].clone();
    assert_eq!(completed["status"]["state"], "completed", "{completed}");
}

/// An agent may not say that its question is the end of its answer, as the SDK for Python, and then end without one.
#[tokio::test]
async fn a_task_that_asks_for_input_waits_whatever_follows() {
    for asks in ["ask, not final", "ask, not final in its headers"] {
        let bus = Bus::open().await;
        let response = bus.ask("message/send", user_message(asks)).await;
        let task = &response["result"];
        assert_eq!(task["status"]["state"], "input-required", "{response}");
        timeout(SOON, async {
            let ended = |metrics: String| metrics.contains("\na2abus_pending_calls 0");
            while !ended(bus.front.admin("/metrics").await) {}
        })
        .await
        .unwrap();
        let mut next = message("task");
        next["taskId"] = task["id"].clone();
        let next = bus.ask("message/send", json!({ "message": next })).await;
        assert_eq!(next["result"]["status"]["state"], "completed", "{next}");
    }
}

/// Even if its agent has refused another message meanwhile.
#[tokio::test]
async fn a_message_without_an_answer_ends_a_task_that_has_no_other() {
    let bus = Bus::open_with(&CONFIG.replace("timeout: 60s", "timeout: 8s")).await;
    let mut first = bus.stream(user_message("begin")).await;
    let task = first.next().await.unwrap().json()["result"]["id"].clone();
    let mut second = message("refuse");
    second["taskId"] = task;
    let second = bus.ask("message/send", json!({ "message": second })).await;
    assert!(
        second.to_string().contains("that is not a city"),
        "{second}"
    );
    let last = first.rest().await.pop().unwrap().json();
    assert_eq!(last["result"]["status"]["state"], "failed", "{last}");
}

#[tokio::test]
async fn a_message_without_an_answer_does_not_end_the_work_on_another() {
    let bus = Bus::open_with(&CONFIG.replace("timeout: 60s", "timeout: 8s")).await;
    let mut first = bus.stream(user_message("begin")).await;
    let task = first.next().await.unwrap().json()["result"]["id"].clone();
    let mut second = message("busy");
    second["taskId"] = task.clone();
    let second = bus.stream(json!({ "message": second })).await;
    let get = || bus.ask("tasks/get", json!({ "id": task }));
    let seen = timeout(SOON, async {
        loop {
            let seen = get().await;
            if seen.to_string().contains("did not end its answer") {
                return seen;
            }
        }
    });
    let seen = seen.await.unwrap();
    assert_eq!(seen["result"]["status"]["state"], "working", "{seen}");
    bus.gate.add_permits(1);
    second.rest().await;
    assert_eq!(get().await["result"]["status"]["state"], "completed");
}

/// The refusal of one message does not end the work on another, whichever was sent first.
#[tokio::test]
async fn a_refusal_does_not_interrupt_another_message_of_its_task() {
    for order in [["refuse later", "hold"], ["hold", "refuse"]] {
        let bus = Bus::open().await;
        let response = bus.ask("message/send", user_message("ask")).await;
        let task = response["result"]["id"].clone();
        let is_working = |event: &SseEvent| event.json()["result"]["kind"] == "status-update";
        let mut streams = Vec::new();
        for text in order {
            let mut message = message(text);
            message["taskId"] = task.clone();
            let mut stream = bus.stream(json!({ "message": message })).await;
            if text == "hold" {
                while !is_working(&stream.next().await.unwrap()) {}
            }
            streams.push(stream);
        }
        let get = || bus.ask("tasks/get", json!({ "id": task }));
        if order[0] != "hold" {
            bus.gate.add_permits(1);
        }
        let seen = timeout(SOON, async {
            loop {
                let seen = get().await;
                if seen.to_string().contains("that is not a city") {
                    return seen;
                }
            }
        });
        let seen = seen.await.unwrap();
        assert_eq!(seen["result"]["status"]["state"], "working", "{seen}");
        bus.gate.add_permits(1);
        for stream in streams {
            stream.rest().await;
        }
        assert_eq!(get().await["result"]["status"]["state"], "completed");
    }
}

/// The agent may answer the second of two messages first.
#[tokio::test]
async fn the_sender_of_a_message_gets_its_task_with_the_answer_to_this_message() {
    let bus = Bus::open().await;
    let task = bus.ask("message/send", user_message("ask")).await["result"]["id"].clone();
    let send = async |text: &str| {
        let mut message = message(text);
        message["taskId"] = task.clone();
        bus.ask("message/send", json!({ "message": message })).await
    };
    let others = async {
        let has_begun = async {
            while !bus
                .ask("tasks/get", json!({ "id": task }))
                .await
                .to_string()
                .contains("m-ask later")
            {}
        };
        timeout(SOON, has_begun).await.unwrap();
        let other = send("ask").await;
        bus.gate.add_permits(1);
        other
    };
    let (later, other) = tokio::join!(send("ask later"), others);
    for (response, asks) in [(later, "where later?"), (other, "I am input-required")] {
        let status = &response["result"]["status"];
        assert_eq!(status["state"], "input-required", "{response}");
        assert_eq!(status["message"]["parts"][0]["text"], asks, "{response}");
    }
}

/// The sender of a refused message gets the refusal, and not only what the agent answers to another message.
#[tokio::test]
async fn the_sender_of_a_refused_message_gets_the_refusal() {
    let bus = Bus::open().await;
    let task = bus.ask("message/send", user_message("ask")).await["result"]["id"].clone();
    let next = |text: &str| {
        let mut message = message(text);
        message["taskId"] = task.clone();
        json!({ "message": message })
    };
    let mut first = bus.stream(next("hold")).await;
    while first.next().await.unwrap().json()["result"]["kind"] != "status-update" {}
    let check = |status: &Value| {
        assert_eq!(status["state"], "working", "{status}");
        assert_eq!(status["message"]["parts"][0]["text"], "that is not a city");
    };
    let sent = bus.ask("message/send", next("refuse")).await["result"].clone();
    check(&sent["status"]);
    assert!(
        !sent["history"].to_string().contains("that is not a city"),
        "{sent}"
    );
    let events = bus.stream(next("refuse")).await.rest().await;
    let [begins, last] = events.as_slice() else {
        panic!("{events:?}");
    };
    assert_eq!(begins.json()["result"]["kind"], "task");
    let last = &last.json()["result"];
    check(&last["status"]);
    assert_eq!(last["final"], true, "{last}");
    bus.gate.add_permits(1);
    let last = first.rest().await.pop().unwrap().json();
    assert_eq!(last["result"]["status"]["state"], "completed", "{last}");
}

#[tokio::test]
async fn the_stream_of_a_message_does_not_end_with_the_answer_to_another_one() {
    let bus = Bus::open().await;
    let task = bus.ask("message/send", user_message("ask")).await["result"]["id"].clone();
    let next = |text: &str| {
        let mut message = message(text);
        message["taskId"] = task.clone();
        json!({ "message": message })
    };
    let mut later = bus.stream(next("ask later")).await;
    assert_eq!(later.next().await.unwrap().json()["result"]["kind"], "task");
    let other = bus.ask("message/send", next("ask")).await;
    assert_eq!(
        other["result"]["status"]["state"], "input-required",
        "{other}"
    );
    let check = |event: SseEvent, asks: &str, is_final: bool| {
        let result = &event.json()["result"];
        assert_eq!(result["status"]["state"], "input-required", "{result}");
        assert_eq!(result["status"]["message"]["parts"][0]["text"], asks);
        assert_eq!(result["final"], is_final, "{result}");
    };
    check(later.next().await.unwrap(), "I am input-required", false);
    bus.gate.add_permits(1);
    check(later.next().await.unwrap(), "where later?", true);
    assert!(later.next().await.is_none());
}

/// Others may send messages of the task at the same moment.
#[tokio::test]
async fn the_stream_of_a_message_begins_with_this_message() {
    let bus = Bus::open().await;
    for _ in 0..20 {
        let response = bus.ask("message/send", user_message("ask")).await;
        let send = async |id: &str| {
            let mut message = message("refuse later");
            message["messageId"] = json!(id);
            message["taskId"] = response["result"]["id"].clone();
            let mut stream = bus.stream(json!({ "message": message })).await;
            let first = stream.next().await.unwrap().json();
            let history = first["result"]["history"].as_array().unwrap();
            assert_eq!(history.len(), 1, "{first}");
            assert_eq!(history[0]["messageId"], id, "{first}");
            stream
        };
        let (a, b, c, d) = tokio::join!(send("a"), send("b"), send("c"), send("d"));
        bus.gate.add_permits(4);
        for stream in [a, b, c, d] {
            timeout(SOON, stream.rest()).await.unwrap();
        }
    }
}

/// The agent sends nothing more before its last answer.
#[tokio::test]
async fn a_question_that_was_answered_does_not_end_a_resumed_stream() {
    let bus = Bus::open().await;
    let events = bus.stream(user_message("ask")).await.rest().await;
    let [begins, asks] = events.as_slice() else {
        panic!("{events:?}");
    };
    let task = begins.json()["result"]["id"].clone();
    let mut next = message("late");
    next["taskId"] = task.clone();
    let params = json!({ "message": next, "configuration": { "blocking": false } });
    let answered = bus.ask("message/send", params).await;
    assert_eq!(
        answered["result"]["status"]["state"], "working",
        "{answered}"
    );
    let follow = bus.post(request("8", "tasks/resubscribe", json!({ "id": task })));
    let follow = follow.header("last-event-id", begins.id.clone().unwrap());
    let mut stream = Stream::of(follow.send().await.unwrap());
    let question = stream.next().await.unwrap();
    assert_eq!(question.id, asks.id);
    assert_eq!(question.json()["result"]["final"], false);
    bus.gate.add_permits(1);
    let last = stream.next().await.unwrap().json();
    assert_eq!(last["result"]["status"]["state"], "completed", "{last}");
    assert_eq!(last["result"]["final"], true, "{last}");
    assert!(stream.next().await.is_none());
}

/// Whichever of two refused messages ends last, the task waits for another one.
#[tokio::test]
async fn a_task_waits_for_input_after_two_refusals_at_once() {
    let bus = Bus::open().await;
    for _ in 0..20 {
        let response = bus.ask("message/send", user_message("ask")).await;
        let task = response["result"]["id"].clone();
        let mut streams = Vec::new();
        for _ in 0..2 {
            let mut message = message("refuse later");
            message["taskId"] = task.clone();
            streams.push(bus.stream(json!({ "message": message })).await);
        }
        bus.gate.add_permits(2);
        for stream in streams {
            timeout(SOON, stream.rest()).await.unwrap();
        }
        let task = bus.ask("tasks/get", json!({ "id": task })).await["result"].clone();
        assert_eq!(task["status"]["state"], "input-required", "{task}");
        assert!(task.to_string().contains("that is not a city"), "{task}");
    }
}

#[tokio::test]
async fn the_messages_of_a_context_have_the_same_key() {
    let mut bus = Bus::open().await;
    let task = bus.ask("message/send", user_message("ask")).await["result"].clone();
    let mut next = message("begin");
    next["taskId"] = task["id"].clone();
    let begun = json!({ "message": next, "configuration": { "blocking": false } });
    bus.ask("message/send", begun).await;
    bus.stream(user_message("message")).await.rest().await;
    bus.ask("tasks/cancel", json!({ "id": task["id"] })).await;
    for method in [
        "message/send",
        "message/send",
        "message/stream",
        "tasks/cancel",
    ] {
        let request = bus.next_request().await;
        assert_eq!(
            (&request["method"], &request["key"]),
            (&json!(method), &json!("c-1"))
        );
    }
    let mut message = message("message");
    message["contextId"] = json!("c".repeat(257));
    bus.ask("message/send", json!({ "message": message })).await;
    let key = bus.next_request().await["key"].clone();
    assert_eq!(
        key.as_str().map(str::len),
        Some(26),
        "{key} is not the call id"
    );
}

#[tokio::test]
async fn a_task_that_waits_for_its_client_does_not_count_against_its_context() {
    let limited = CONFIG.replace("a2a: {", "a2a: { max_tasks_per_context: 1,");
    let bus = Bus::open_with(&limited).await;
    for _ in 0..2 {
        let response = bus.ask("message/send", user_message("ask")).await;
        assert_eq!(response["result"]["status"]["state"], "input-required");
    }
    let mut running = bus.stream(user_message("hold")).await;
    running.next().await.unwrap();
    let refused = bus.post(request("8", "message/send", user_message("task")));
    let refused = refused.send().await.unwrap().status();
    assert_eq!(refused, StatusCode::TOO_MANY_REQUESTS);
    bus.gate.add_permits(1);
    running.rest().await;
}

#[tokio::test]
async fn tasks_are_listed_the_last_changed_first() {
    let bus = Bus::open().await;
    let mut made = Vec::new();
    for text in ["task", "ask", "task"] {
        let answer = bus.ask("message/send", user_message(text)).await;
        made.push(answer["result"]["id"].clone());
    }
    let page = bus.ask_1_0("ListTasks", json!({ "pageSize": 2 })).await;
    let page = &page["result"];
    assert_eq!(page["totalSize"], 3);
    assert_eq!(page["tasks"][0]["id"], made[2]);
    assert_eq!(page["tasks"][1]["id"], made[1]);
    assert_eq!(page["tasks"][0].get("artifacts"), None);
    let next =
        json!({ "pageSize": 2, "pageToken": page["nextPageToken"], "includeArtifacts": true });
    // A new task does not shift the next page.
    let waiting = json!({ "status": "TASK_STATE_COMPLETED", "pageSize": 1 });
    let mut more = waiting.clone();
    let first = bus.ask_1_0("ListTasks", waiting).await["result"].clone();
    assert_eq!(first["tasks"][0]["id"], made[2]);
    more["pageToken"] = first["nextPageToken"].clone();
    bus.ask("message/send", user_message("task")).await;
    let rest = bus.ask_1_0("ListTasks", more).await["result"].clone();
    assert_eq!(rest["tasks"][0]["id"], made[0], "{rest}");
    assert_eq!(rest["nextPageToken"], "");
    let page = bus.ask_1_0("ListTasks", next).await;
    assert_eq!(page["result"]["nextPageToken"], "");
    assert_eq!(page["result"]["tasks"][0]["id"], made[0]);
    assert_eq!(
        page["result"]["tasks"][0]["artifacts"][0]["artifactId"],
        "a"
    );
    let filter = json!({ "status": "TASK_STATE_INPUT_REQUIRED", "contextId": "c-1" });
    let tasks = bus.ask_1_0("ListTasks", filter).await;
    assert_eq!(tasks["result"]["totalSize"], 1);
    let none = bus.ask("tasks/list", json!({ "contextId": "c-2" })).await;
    assert_eq!(none["result"]["tasks"], json!([]));
    let wrong = bus.ask_1_0("ListTasks", json!({ "pageSize": 101 })).await;
    assert_eq!(wrong["error"]["code"], -32602);
}

/// Otherwise one page could take all memory for answers.
#[tokio::test]
async fn a_page_of_large_tasks_is_short_and_the_next_one_continues() {
    let bus = Bus::open().await;
    for _ in 0..6 {
        let mut message = message("task");
        message["metadata"] = json!({ "large": "x".repeat(900 << 10) });
        let answer = bus.ask("message/send", json!({ "message": message })).await;
        assert_eq!(answer["result"]["kind"], "task", "{}", answer["error"]);
    }
    let count = |page: &Value| page["tasks"].as_array().unwrap().len();
    let small = bus.ask_1_0("ListTasks", json!({})).await["result"].clone();
    assert_eq!(count(&small), 6, "lists have no messages by default");
    let mut listed = Vec::new();
    let mut params = json!({ "pageSize": 100, "historyLength": 9 });
    loop {
        let page = bus.ask_1_0("ListTasks", params.clone()).await["result"].clone();
        assert_eq!(page["totalSize"], 6);
        listed.push(count(&page));
        if page["nextPageToken"] == "" {
            break;
        }
        params["pageToken"] = page["nextPageToken"].clone();
    }
    assert_eq!(listed, [4, 2]);
    // EventMesh shows no messages of the client, but artifacts.
    for (large, expected) in [(0, 6), (3, 2)] {
        for _ in 0..large {
            bus.ask("message/send", user_message("large pieces")).await;
        }
        let page = reqwest::get(format!("{}/a2a/tasks?limit=100", bus.front.base)).await;
        let page = whole(page.unwrap()).await;
        assert_eq!(
            (&page["total"], &page["count"], &page["hasMore"]),
            (&json!(6 + large), &json!(expected), &json!(large > 0)),
            "{}",
            page["error"]
        );
        assert_eq!(count(&page), expected);
    }
}

/// The answer to a request, once there is room for it: the previous answer is charged until just after its last byte.
async fn with_room(sent: RequestBuilder) -> Value {
    let answered = timeout(SOON, async {
        loop {
            let response = sent.try_clone().unwrap().send().await.unwrap();
            if response.status() != StatusCode::TOO_MANY_REQUESTS {
                return response;
            }
        }
    });
    whole(answered.await.unwrap()).await
}

#[tokio::test]
async fn a_task_that_is_larger_than_the_share_of_its_client_can_be_read() {
    // A client has half of it. The artifact of a task takes 600 kB.
    let budget = "calls: { budget_bytes: 1MiB,";
    let bus = Bus::open_with(&CONFIG.replace("calls: {", budget)).await;
    let post = |method: &str, params: Value| bus.post(request("7", method, params));
    let get = |path: String| reqwest::Client::new().get(format!("{}{path}", bus.front.base));
    let mut ids = Vec::new();
    for _ in 0..2 {
        let mut stream = bus.stream(user_message("large pieces, one by one")).await;
        bus.gate.add_permits(1);
        let first = stream.next().await.unwrap().json();
        ids.push(first["result"]["id"].as_str().unwrap().to_owned());
        while stream.next().await.is_some() {
            bus.gate.add_permits(1);
        }
    }
    let [id, second]: [String; 2] = ids.try_into().unwrap();
    let read = with_room(post("tasks/get", json!({ "id": id }))).await;
    let parts = read["result"]["artifacts"][0]["parts"].as_array();
    assert_eq!(parts.map(Vec::len), Some(13), "{}", read["error"]);
    let path = format!("/a2a/tasks/{id}");
    for path in [path.clone(), format!("{path}/wait")] {
        let read = with_room(get(path)).await;
        assert_eq!(read["state"], "COMPLETED", "{}", read["error"]);
    }

    // With pages of one task, a client can read the whole list.
    let params = |size: usize| json!({ "pageSize": size, "includeArtifacts": true });
    let page = with_room(post("tasks/list", params(1))).await["result"].clone();
    assert_eq!(page["tasks"][0]["id"], second);
    let page = with_room(get("/a2a/tasks?limit=1&offset=1".to_owned())).await;
    assert_eq!(page["tasks"][0]["taskId"], id);

    // Without artifacts, the page is small.
    let small = || with_room(post("tasks/list", json!({})));
    let two = get("/a2a/tasks?limit=2".to_owned());
    for sent in [post("tasks/list", params(2)), two] {
        assert_eq!(small().await["result"]["totalSize"], 2);
        let refused = sent.send().await.unwrap();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    }
    let one = request("7", "tasks/get", json!({ "id": id }));
    let batch = with_room(bus.post(format!("[{one},{one}]"))).await;
    for refused in batch.as_array().unwrap() {
        let error = &refused["error"];
        assert_eq!(error["data"]["reason"], "exhausted", "{error}");
    }
}

#[tokio::test]
async fn an_error_has_the_code_of_the_dialect() {
    let bus = Bus::open().await;
    let code = async |body: &str| {
        let answer = whole(bus.post(body.to_owned()).send().await.unwrap()).await;
        (
            answer["id"].clone(),
            answer["error"]["code"].as_i64().unwrap_or_default(),
        )
    };
    assert_eq!(code("{").await, (Value::Null, -32700));
    assert_eq!(code("[]").await, (Value::Null, -32600));
    assert_eq!(
        code(r#"{"jsonrpc":"2.0","id":{},"method":"tasks/get"}"#)
            .await
            .1,
        -32600
    );
    assert_eq!(
        code(r#"{"jsonrpc":"1.0","id":1,"method":"tasks/get"}"#)
            .await
            .1,
        -32600
    );
    // A request without an id is answered too.
    assert_eq!(
        code(r#"{"jsonrpc":"2.0","method":"foo"}"#).await,
        (Value::Null, -32601)
    );
    assert_eq!(
        code(r#"{"jsonrpc":"2.0","id":3,"method":"tasks/get","params":[]}"#).await,
        (json!(3), -32602)
    );
    assert_eq!(
        code(r#"{"jsonrpc":"2.0","id":3,"method":"tasks/get","params":{}}"#).await,
        (json!(3), -32602)
    );
    assert_eq!(
        code(r#"{"jsonrpc":"2.0","id":3,"method":"tasks/get","params":{"id":"x"}}"#).await,
        (json!(3), -32001)
    );
    let current = r#"{"jsonrpc":"2.0","id":3,"method":"GetTask","params":{"id":"x"}}"#;
    assert_eq!(code(current).await, (json!(3), -32009));
    let refused = whole(bus.post(current.to_owned()).send().await.unwrap()).await;
    // Its name shows that the client speaks 1.0.
    assert_eq!(
        refused["error"]["data"][0]["reason"], "VERSION_NOT_SUPPORTED",
        "{refused}"
    );
    let push = r#"{"jsonrpc":"2.0","id":3,"method":"tasks/pushNotificationConfig/get","params":{"id":"x"}}"#;
    assert_eq!(code(push).await, (json!(3), -32003));
    let part = || json!({ "kind": "text", "text": "x" });
    let bad = [
        json!({ "role": "wizard", "parts": [part()], "messageId": "m" }),
        json!({ "role": "user", "parts": [], "messageId": "m" }),
        json!({ "role": "user", "parts": [part()] }),
        json!({ "role": "user", "parts": [{}], "messageId": "m" }),
        json!({ "role": "user", "parts": ["x"], "messageId": "m" }),
        json!({ "role": "user", "parts": [part()], "messageId": "m", "kind": "task" }),
        json!({ "role": "user", "parts": vec![part(); 101], "messageId": "m" }),
        json!({ "role": "user", "parts": [{ "kind": "text", "text": "x".repeat(1025) }], "messageId": "m" }),
        json!({ "role": "user", "parts": [part()], "messageId": "m", "contextId": 3 }),
        json!("text"),
    ];
    for message in bad {
        let answer = bus.ask("message/send", json!({ "message": message })).await;
        assert_eq!(answer["error"]["code"], -32602, "{message}");
    }
    let missing = bus.ask("message/send", json!({ "message": {} })).await;
    let fields = &missing["error"]["data"]["missing_fields"];
    assert_eq!(*fields, json!(["role", "parts", "messageId"]));
    // A part of an unknown kind is for the agent to judge.
    let odd = json!({ "role": "user", "parts": [{ "kind": "text", "text": "plain" }, { "kind": "smell" }], "messageId": "m" });
    let answer = bus.ask("message/send", json!({ "message": odd })).await;
    assert_eq!(answer["result"]["kind"], "message");
}

/// A message whose second part is this one.
fn with_part(part: &Value) -> Value {
    let parts = json!([{ "text": "plain" }, part]);
    json!({ "message": { "role": "ROLE_USER", "messageId": "m", "parts": parts } })
}

#[tokio::test]
async fn the_content_of_a_file_is_base64() {
    let bus = Bus::open().await;
    let file = |bytes: &str| json!({ "kind": "file", "file": { "bytes": bytes } });
    let raw = |bytes: &str| json!({ "raw": bytes, "filename": "f" });
    // Both alphabets, with and without padding.
    for bytes in [
        "", "AP8=", "AP8", "+/8=", "-_8=", "-_8", "aGkh", "aA==", "aA",
    ] {
        let answer = bus.ask("message/send", with_part(&file(bytes))).await;
        assert_eq!(answer["result"]["kind"], "message", "{bytes}: {answer}");
        let answer = bus.ask_1_0("SendMessage", with_part(&raw(bytes))).await;
        assert_ne!(
            answer["result"]["message"],
            Value::Null,
            "{bytes}: {answer}"
        );
    }
    for bytes in [
        "aGk!", "a", "aaaaa", "aGkh=", "aA=", "aA===", "=", "-/8=", "aG kh", "aä",
    ] {
        let error = bus.ask("message/send", with_part(&file(bytes))).await["error"].take();
        assert_eq!(error["code"], -32602, "{bytes}: {error}");
        assert_eq!(
            error["message"],
            "parts[1].file.bytes is not base64: encode the bytes as base64 (standard or URL-safe)"
        );
        assert_eq!(error["data"]["part_index"], 1);
        let pointer = "/params/message/parts/1/file/bytes";
        assert_eq!(error["data"]["pointer"], pointer);
        let error = bus.ask_1_0("SendMessage", with_part(&raw(bytes))).await["error"].take();
        assert_eq!(error["code"], -32602, "{bytes}: {error}");
        let violation = &error["data"][1]["fieldViolations"][0];
        assert_eq!(violation["field"], "/params/message/parts/1/raw");
    }
}

#[tokio::test]
async fn a_part_has_one_content() {
    let bus = Bus::open().await;
    let two = [
        (json!({ "text": "x", "data": {} }), "text and data"),
        (json!({ "raw": "AP8=", "url": "u" }), "raw and url"),
        (
            json!({ "kind": "file", "file": { "bytes": "AP8=", "uri": "u" } }),
            "file.bytes and file.uri",
        ),
        (
            json!({ "kind": "text", "text": "x", "file": { "uri": "u" } }),
            "text and file.uri",
        ),
    ];
    for (part, contents) in two {
        let asked = [
            bus.ask("message/send", with_part(&part)).await,
            bus.ask_1_0("SendMessage", with_part(&part)).await,
        ];
        for answer in asked {
            let error = &answer["error"];
            assert_eq!(error["code"], -32602, "{part}: {error}");
            let expected =
                format!("parts[1] has more than one content ({contents}): send one part for each");
            assert_eq!(error["message"], expected);
        }
    }
    // A member without a value is no content, and the agent judges a part of an unknown kind.
    for part in [
        json!({ "text": "x", "data": null, "file": { "uri": null } }),
        json!({ "kind": "smell", "text": "x", "data": {} }),
        // Data may be any JSON value.
        json!({ "data": null }),
    ] {
        let answer = bus.ask("message/send", with_part(&part)).await;
        assert_eq!(answer["result"]["kind"], "message", "{part}: {answer}");
    }
}

#[tokio::test]
async fn metadata_is_an_object() {
    let bus = Bus::open().await;
    let of_message = |metadata: Value| {
        let mut params = with_part(&json!({ "text": "x" }));
        params["message"]["metadata"] = metadata;
        params
    };
    let of_part = with_part(&json!({ "text": "x", "metadata": [1] }));
    for (params, member) in [
        (of_message(json!("m")), "metadata"),
        (of_part, "parts[1].metadata"),
    ] {
        let error = bus.ask("message/send", params).await["error"].take();
        assert_eq!(error["code"], -32602, "{error}");
        let why = format!("{member} must be an object");
        assert!(error["message"].as_str().unwrap().contains(&why), "{error}");
    }
    for metadata in [json!(null), json!({ "a": 1 })] {
        let answer = bus.ask("message/send", of_message(metadata)).await;
        assert_eq!(answer["result"]["kind"], "message", "{answer}");
    }
}

#[tokio::test]
async fn errors_have_what_ties_them_to_their_request() {
    let bus = Bus::open().await;
    let body = request("\"r-1\"", "tasks/get", json!({ "id": "nobody" }));
    let sent = bus.post(body).header("x-a2a-trace-id", "t-1").send();
    let response = sent.await.unwrap();
    assert_eq!(response.headers()["x-a2a-trace-id"], "t-1");
    let data = whole(response).await["error"]["data"].clone();
    assert_eq!(data["requestId"], "r-1");
    assert_eq!(data["traceId"], "t-1");
    assert!(data["timestamp"].is_string());
    let body = request("1", "message/send", user_message("task"));
    let sent = bus
        .front
        .to("/a2a/agents/nobody", body)
        .header("x-a2a-version", "0.3.0");
    let error = whole(sent.send().await.unwrap()).await["error"].clone();
    assert_eq!(error["code"], -32000);
    assert_eq!(error["data"]["agentName"], "nobody");
    assert_eq!(error["data"]["availableAgents"], json!(["maps", "weather"]));
    // An agent that does not stream.
    let body = request("1", "message/stream", user_message("task"));
    let sent = bus.front.to("/a2a/agents/maps", body).send().await.unwrap();
    assert_eq!(whole(sent).await["error"]["code"], -32004);
}

#[tokio::test]
async fn a_batch_is_answered_in_order_and_does_not_stream() {
    let bus = Bus::open().await;
    let batch = format!(
        "[{},{},{}]",
        request("1", "message/send", user_message("plain")),
        request("2", "message/stream", user_message("plain")),
        request("3", "tasks/get", json!({ "id": "nobody" })),
    );
    let answers = whole(bus.post(batch.clone()).send().await.unwrap()).await;
    assert_eq!(answers[0]["result"]["parts"][0]["text"], "just text");
    assert_eq!(answers[1]["error"]["code"], -32004);
    assert_eq!(answers[2]["error"]["code"], -32001);
    let current = bus.post(batch).header("a2a-version", "1.0").send();
    let refused = whole(current.await.unwrap()).await;
    assert_eq!(refused["error"]["code"], -32600);
}

#[tokio::test]
async fn the_extended_card_is_the_card() {
    let bus = Bus::open().await;
    let card = bus
        .ask("agent/getAuthenticatedExtendedCard", json!({}))
        .await;
    assert_eq!(card["result"]["name"], "weather");
    let current = bus.ask_1_0("GetExtendedAgentCard", json!({})).await;
    assert_eq!(current["result"]["name"], "weather");
    assert_eq!(current["result"].get("url"), None, "it is of A2A 1.0 alone");
}
