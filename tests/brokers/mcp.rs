//! MCP clients that connect to several replicas. A stream continues on another replica, also if the first one is
//! killed. A cancel and the end of a session apply on every replica.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt as _;
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use support::battery::within;
use support::running::Running;
use support::server::{Kind, named};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::attached::{agent as fixture, effects};
use crate::plain::{nats_client, subscribed, unique};
use crate::replicas::Replica;

/// Steps of one call.
const STEPS: usize = 12;

/// An agent that sends one step for each message on `pace`, then the result, in the protocol of the request (MCP or
/// A2A). It returns the next message that it gets.
async fn agent(
    nats: async_nats::Client,
    mut requests: async_nats::Subscriber,
    mut paces: async_nats::Subscriber,
) -> Value {
    let request = requests.next().await.unwrap();
    let reply_subject = request.reply.unwrap();
    let request: Value = serde_json::from_slice(&request.payload).unwrap();
    let send_message = async |message: Value| {
        let sent = nats
            .publish(reply_subject.clone(), message.to_string().into())
            .await;
        sent.unwrap();
        nats.flush().await.unwrap();
    };
    let is_a2a = request["method"] == "message/stream";
    let status = |state: &str, is_final: bool| {
        let status = json!({ "state": state });
        let result = json!({ "kind": "status-update", "taskId": "t", "contextId": "c", "final": is_final, "status": status });
        json!({ "jsonrpc": "2.0", "id": request["id"], "result": result })
    };
    let token = &request["params"]["_meta"]["progressToken"];
    for step in 1..=STEPS {
        tokio::select! {
            _ = paces.next() => {}
            // A cancel.
            other = requests.next() => return serde_json::from_slice(&other.unwrap().payload).unwrap(),
        }
        let params = json!({ "progressToken": token, "progress": step });
        send_message(match is_a2a {
            true => status("working", false),
            false => {
                json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params })
            }
        })
        .await;
    }
    paces.next().await.unwrap();
    send_message(match is_a2a {
        true => status("completed", true),
        false => json!({ "jsonrpc": "2.0", "id": request["id"], "result": { "content": [] } }),
    })
    .await;
    Value::Null
}

/// A client of one session.
struct Session {
    http: Client,
    id: String,
}

impl Session {
    async fn open(door: &str) -> Self {
        Self::open_with(door, json!({ "elicitation": {} })).await
    }

    async fn open_with(door: &str, capabilities: Value) -> Self {
        let http = Client::builder().no_proxy().build().unwrap();
        let params = json!({ "protocolVersion": "2025-11-25", "capabilities": capabilities });
        let initialize =
            json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
        let response = http.post(url(door)).body(initialize.to_string());
        let response = response
            .header("content-type", "application/json")
            .send()
            .await
            .unwrap();
        let id = response.headers()["mcp-session-id"]
            .to_str()
            .unwrap()
            .to_owned();
        Self { http, id }
    }

    fn with_id(&self, request: RequestBuilder) -> RequestBuilder {
        let request = request.header("mcp-session-id", &self.id);
        request.header("accept", "application/json, text/event-stream")
    }

    fn post(&self, door: &str, body: &Value) -> RequestBuilder {
        let post = self.http.post(url(door)).body(body.to_string());
        self.with_id(post.header("content-type", "application/json"))
    }

    async fn call(&self, door: &str) -> Stream {
        let params = json!({ "name": "walker.walk", "arguments": { "text": "go" }, "_meta": { "progressToken": "p" } });
        let call = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params });
        Stream::of(self.post(door, &call).send().await.unwrap())
    }

    async fn come_back(&self, door: &str, last: &str) -> Response {
        let get = self.with_id(self.http.get(url(door)));
        get.header("last-event-id", last).send().await.unwrap()
    }
}

fn url(door: &str) -> String {
    format!("{door}/mcp")
}

/// A stream as its client reads it.
struct Stream {
    response: Response,
    text: String,
}

impl Stream {
    fn of(response: Response) -> Self {
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let text = String::new();
        Self { response, text }
    }

    /// The next event, with its id; `None` at the end.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let value = event.lines().find_map(|line| line.strip_prefix(name));
                    value.map(str::to_owned)
                };
                let found = (field("id: "), field("data: "));
                self.text = rest.to_owned();
                if let (id, Some(data)) = found {
                    let data = serde_json::from_str(&data).unwrap();
                    return Some((id.unwrap_or_default(), data));
                }
                continue;
            }
            let chunk = within("an event comes", self.response.chunk()).await;
            self.text
                .push_str(std::str::from_utf8(&chunk.unwrap()?).unwrap());
        }
    }
}

/// The content of an event: the number of a step, or nothing for the result.
fn step(event: &Value) -> Option<u64> {
    event["params"]["progress"].as_u64()
}

/// The agent on NATS, and the sender of the messages that let it continue.
struct Walker {
    nats: async_nats::Client,
    pace: String,
    working: tokio::task::JoinHandle<Value>,
}

impl Walker {
    async fn start(nats: &str, subject: &str) -> Self {
        let client = nats_client(nats).await;
        let pace = format!("{subject}.pace");
        let requests = client.subscribe(subject.to_owned()).await.unwrap();
        let paces = client.subscribe(pace.clone()).await.unwrap();
        subscribed(&client).await;
        let working = tokio::spawn(agent(client.clone(), requests, paces));
        Self {
            nats: client,
            pace,
            working,
        }
    }

    async fn proceed(&self) {
        self.nats
            .publish(self.pace.clone(), "".into())
            .await
            .unwrap();
        self.nats.flush().await.unwrap();
    }
}

fn config(subject: &str, state: &str, nats: &str) -> String {
    format!(
        "transports: {{ agents: {{ type: nats, servers: ['{nats}'] }}, shared: {state} }}\n\
         agents: {{ walker: {{ description: Walks., to: {{ transport: agents, topic: {subject} }} }} }}\n\
         state: {{ log: shared, create: true, prefix: {} }}\n",
        unique("mcp"),
    )
}

/// State on this NATS.
fn on_nats(nats: &str) -> String {
    format!("{{ type: nats, servers: ['{nats}'] }}")
}

/// Two bridges that share their state, for an agent with this subject.
async fn two_bridges(subject: &str, state: &str, nats: &str) -> [Running; 2] {
    let config = config(subject, state, nats);
    [Running::start(&config).await, Running::start(&config).await]
}

fn doors(bridges: &[Running; 2]) -> [&str; 2] {
    bridges.each_ref().map(|bridge| bridge.door.as_str())
}

async fn stop(bridges: [Running; 2]) {
    for bridge in bridges {
        bridge.stop().await;
    }
}

/// A client of NATS, and the requests that it gets as the agent with this subject.
async fn requests_to(nats: &str, subject: String) -> (async_nats::Client, async_nats::Subscriber) {
    let client = nats_client(nats).await;
    let requests = client.subscribe(subject).await.unwrap();
    subscribed(&client).await;
    (client, requests)
}

/// A call of a session whose agent has sent the first step: the agent, the stream, and the id of its last event.
async fn walking(
    session: &Session,
    door: &str,
    (nats, subject): (&str, &str),
) -> (Walker, Stream, String) {
    let walker = Walker::start(nats, subject).await;
    walker.proceed().await;
    let mut stream = session.call(door).await;
    let (last, event) = stream.next().await.unwrap();
    assert_eq!(step(&event), Some(1));
    (walker, stream, last)
}

/// A session whose agent has asked a question: also the stream of the call, and the question.
async fn questioned(door: &str) -> (Session, Stream, Value) {
    let session = Session::open(door).await;
    let mut stream = session.call(door).await;
    let (_, question) = stream.next().await.unwrap();
    assert_eq!(question["method"], "elicitation/create");
    (session, stream, question)
}

async fn a_stream_continues_on_another_replica(state: &str, nats: &str) {
    let subject = unique("walker");
    let bridges = two_bridges(&subject, state, nats).await;
    let [first, other] = doors(&bridges);
    let session = Session::open(first).await;
    let (walker, stream, mut last) = walking(&session, first, (nats, &subject)).await;
    drop(stream);

    // Another session, and another event, are refused.
    let stranger = Session::open(other).await;
    assert_eq!(stranger.come_back(other, &last).await.status(), 400);
    assert_eq!(session.come_back(other, "nonsense.1").await.status(), 400);

    // A client that is cut off after every second event, and comes back to the other replica.
    let mut steps = vec![1];
    'all: for turn in 0.. {
        let door = if turn % 2 == 0 { other } else { first };
        let mut stream = Stream::of(session.come_back(door, &last).await);
        for _ in 0..2 {
            walker.proceed().await;
            let (id, event) = stream.next().await.unwrap();
            last = id;
            match step(&event) {
                Some(step) => steps.push(step),
                None => {
                    assert_eq!(
                        event,
                        json!({ "jsonrpc": "2.0", "id": 7, "result": { "content": [] } })
                    );
                    assert_eq!(stream.next().await, None, "nothing follows the answer");
                    break 'all;
                }
            }
        }
    }
    let all: Vec<u64> = (1..=STEPS as u64).collect();
    assert_eq!(steps, all, "no gap and no repeat");
    assert_eq!(
        within("the agent ends", walker.working).await.unwrap(),
        Value::Null
    );
    stop(bridges).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_mcp_stream_continues_at_another_replica_on_kafka() {
    let (Some(kafka), Some(nats)) = (named(Kind::Kafka), named(Kind::Nats)) else {
        return;
    };
    let state = format!("{{ type: kafka, brokers: ['{kafka}'] }}");
    a_stream_continues_on_another_replica(&state, &nats).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_mcp_stream_continues_at_another_replica_on_jetstream() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    a_stream_continues_on_another_replica(&on_nats(&nats), &nats).await;
}

/// An agent that asks its client a question, and returns what it gets next. If that is the answer, it becomes the
/// result.
async fn asks(nats: async_nats::Client, mut requests: async_nats::Subscriber) -> (Value, Value) {
    let request = requests.next().await.unwrap();
    let reply_subject = request.reply.unwrap();
    let request: Value = serde_json::from_slice(&request.payload).unwrap();
    let send = async |message: Value| {
        let body = message.to_string().into();
        nats.publish(reply_subject.clone(), body).await.unwrap();
        nats.flush().await.unwrap();
    };
    let params = json!({ "message": "Which city?", "requestedSchema": { "type": "object", "properties": {} } });
    send(json!({ "jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": params }))
        .await;
    let next = requests.next().await.unwrap();
    let next: Value = serde_json::from_slice(&next.payload).unwrap();
    if next["id"] == "q" {
        send(json!({ "jsonrpc": "2.0", "id": request["id"], "result": next["result"] })).await;
    }
    (request, next)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_answered_at_another_replica() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let subject = unique("asker");
    let bridges = two_bridges(&subject, &on_nats(&nats), &nats).await;
    let [first, other] = doors(&bridges);
    let (client, requests) = requests_to(&nats, subject).await;
    let asking = tokio::spawn(asks(client, requests));
    let (session, mut stream, question) = questioned(first).await;
    let result = json!({ "action": "accept", "content": { "city": "Oslo" } });
    let answer = |id: &Value| json!({ "jsonrpc": "2.0", "id": id, "result": result });
    // Nobody has asked this.
    let unknown = session.post(other, &answer(&json!("x"))).send().await;
    assert_eq!(unknown.unwrap().status(), 400);
    // A request without a session cannot answer, and a wrong token answers nothing.
    let id = question["id"].as_str().unwrap();
    let alone = session.http.post(url(other));
    let alone = alone.body(answer(&question["id"]).to_string());
    let alone = alone.header("content-type", "application/json").send();
    assert_eq!(alone.await.unwrap().status(), 400);
    let (call, name) = id.split_once('.').unwrap();
    let (start, last) = call.split_at(call.len() - 2);
    let other_token = if last.starts_with('a') { "bb" } else { "aa" };
    let mut forged = answer(&json!(format!("{start}{other_token}.{name}")));
    forged["result"] = json!({ "action": "forged" });
    let forged = session.post(other, &forged).send().await.unwrap();
    assert!([202, 400].contains(&forged.status().as_u16()));
    // The replica of the call does not take the response of another session.
    let mut foreign = answer(&question["id"]);
    foreign["result"] = json!({ "action": "foreign" });
    let stranger = Session::open(other).await;
    let foreign = stranger.post(other, &foreign).send().await.unwrap();
    assert_eq!(foreign.status(), 202);
    let large = json!({ "jsonrpc": "2.0", "id": id, "result": { "text": "x".repeat(300 << 10) } });
    let large = session.post(other, &large).send().await.unwrap();
    assert_eq!(large.status(), 413);
    let answered = session.post(other, &answer(&question["id"])).send().await;
    assert_eq!(answered.unwrap().status(), 202);
    let (_, answer) = stream.next().await.unwrap();
    assert_eq!(answer["result"], result);
    asking.await.unwrap();
    stop(bridges).await;
}

/// No other replica could return the answer to the question.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_with_an_open_question_fails_when_its_replica_shuts_down() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let subject = unique("asker");
    let config = config(&subject, &on_nats(&nats), &nats);
    let (_directory, one, other) = Replica::two(&config).await;
    let (client, requests) = requests_to(&nats, subject).await;
    let asking = tokio::spawn(asks(client, requests));
    let (session, mut stream, question) = questioned(&one.door).await;
    one.terminate();
    let (_, error) = stream.next().await.unwrap();
    assert_eq!(error["id"], 7, "{error}");
    assert_eq!(error["error"]["data"]["reason"], "answer_lost", "{error}");
    assert_eq!(stream.next().await, None);
    let (request, cancel) = within("the agent gets a cancel", asking).await.unwrap();
    assert_eq!(cancel["method"], "notifications/cancelled", "{cancel}");
    assert_eq!(cancel["params"]["requestId"], request["id"], "{cancel}");
    let result = json!({ "action": "decline" });
    let answer = json!({ "jsonrpc": "2.0", "id": question["id"], "result": result });
    within("the other replica refuses the answer", async {
        loop {
            let sent = session.post(&other.door, &answer).send().await.unwrap();
            if sent.status() == 400 {
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

/// A call of a client of 2026-07-28 that can be asked.
fn stateless(door: &str, more: &Value) -> reqwest::RequestBuilder {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": { "elicitation": {} },
    });
    let mut params = json!({ "name": "x", "_meta": meta });
    let members = params.as_object_mut().unwrap();
    members.extend(more.as_object().unwrap().clone());
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let post = reqwest::Client::new().post(url(door)).json(&body);
    post.header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "tools/call")
        .header("mcp-name", "x")
}

/// In revision 2026-07-28 the client sends its request again, with the response to the question.
async fn a_stateless_call_continues_at_another_replica(state: &str, nats: &str) {
    let subject = unique("rounds");
    let bridges = two_bridges(&subject, state, nats).await;
    let [first, other] = doors(&bridges);
    let (client, requests) = requests_to(nats, subject).await;
    let asking = tokio::spawn(asks(client.clone(), requests));
    let sent = |request: reqwest::RequestBuilder| async {
        let response = within("an answer", request.send()).await.unwrap();
        response.json::<Value>().await.unwrap()
    };
    let asked = sent(stateless(first, &json!({}))).await;
    let (id, question) = asked["result"]["inputRequests"]
        .as_object()
        .unwrap()
        .iter()
        .next()
        .unwrap();
    assert_eq!(question["method"], "elicitation/create");
    let result = json!({ "action": "accept", "content": { "city": "Oslo" } });
    let more = json!({ "requestState": asked["result"]["requestState"], "inputResponses": { id: result } });
    let answer = sent(stateless(other, &more)).await;
    let expected =
        json!({ "action": "accept", "content": { "city": "Oslo" }, "resultType": "complete" });
    assert_eq!(answer["result"], expected, "{answer}");
    asking.await.unwrap();
    // The answer is recorded: a client that has missed it gets it at any replica.
    assert_eq!(sent(stateless(first, &more)).await, answer);
    stop(bridges).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stateless_call_continues_at_another_replica_on_kafka() {
    let (Some(kafka), Some(nats)) = (named(Kind::Kafka), named(Kind::Nats)) else {
        return;
    };
    let state = format!("{{ type: kafka, brokers: ['{kafka}'] }}");
    a_stateless_call_continues_at_another_replica(&state, &nats).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stateless_call_is_cancelled_at_another_replica() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let subject = unique("rounds");
    let bridges = two_bridges(&subject, &on_nats(&nats), &nats).await;
    let [first, other] = doors(&bridges);
    let (client, mut requests) = requests_to(&nats, subject).await;
    let asked = tokio::spawn(within("a question", stateless(first, &json!({})).send()));
    let request = within("the request", requests.next()).await.unwrap();
    let question = json!({ "jsonrpc": "2.0", "id": "q", "method": "elicitation/create" });
    let question = question.to_string().into();
    client
        .publish(request.reply.unwrap(), question)
        .await
        .unwrap();
    let asked: Value = asked.await.unwrap().unwrap().json().await.unwrap();
    let more = continued(&asked["result"]);
    let waiting = tokio::spawn(stateless(other, &more).send());
    let answer = within("the response", requests.next()).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
    assert_eq!(answer, json!({ "jsonrpc": "2.0", "id": "q", "result": {} }));
    // Closing the connection cancels the call.
    waiting.abort();
    let cancel = within("the cancel", requests.next()).await.unwrap();
    let cancel: Value = serde_json::from_slice(&cancel.payload).unwrap();
    assert_eq!(cancel["method"], "notifications/cancelled", "{cancel}");
    stop(bridges).await;
}

/// What a request has besides its parameters when it is sent again with the answer to the question in this result.
fn continued(result: &Value) -> Value {
    let mut questions = result["inputRequests"].as_object().unwrap().keys();
    let id = questions.next().unwrap();
    json!({ "requestState": result["requestState"], "inputResponses": { id: {} } })
}

/// The call goes on: its client can send the request again to a replica that stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_stops_does_not_cancel_a_stateless_call_of_another() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let subject = unique("rounds");
    let [first, other] = two_bridges(&subject, &on_nats(&nats), &nats).await;
    let (client, mut requests) = requests_to(&nats, subject).await;
    let call = stateless(&first.door, &json!({})).send();
    let asked = tokio::spawn(within("a question", call));
    let request = within("the request", requests.next()).await.unwrap();
    let reply_subject = request.reply.clone().unwrap();
    let send = async |message: Value| {
        let body = message.to_string().into();
        client.publish(reply_subject.clone(), body).await.unwrap();
    };
    send(json!({ "jsonrpc": "2.0", "id": "q", "method": "elicitation/create" })).await;
    let asked: Value = asked.await.unwrap().unwrap().json().await.unwrap();
    let more = continued(&asked["result"]);
    let waiting = tokio::spawn(stateless(&other.door, &more).send());
    within("the response", requests.next()).await.unwrap();
    let stopping = tokio::spawn(other.stop());
    let refused = within("an error", waiting).await.unwrap().unwrap();
    assert_eq!(refused.status(), 503);
    stopping.await.unwrap();
    let request: Value = serde_json::from_slice(&request.payload).unwrap();
    let result = json!({ "content": [] });
    send(json!({ "jsonrpc": "2.0", "id": request["id"], "result": result })).await;
    let again = within("the answer", stateless(&first.door, &more).send()).await;
    let answer: Value = again.unwrap().json().await.unwrap();
    assert_eq!(answer["result"]["content"], json!([]), "{answer}");
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_and_the_end_of_a_session_count_at_every_replica() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let subject = unique("walker");
    let bridges = two_bridges(&subject, &on_nats(&nats), &nats).await;
    let [first, other] = doors(&bridges);
    let session = Session::open(first).await;
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 7 } });
    let by_cancel = session.post(other, &cancel);
    let by_end = session.with_id(session.http.delete(url(other)));
    for (ended_by, status) in [(by_cancel, 202), (by_end, 204)] {
        let (walker, stream, _) = walking(&session, first, (&nats, &subject)).await;
        // The client is gone, and the call goes on.
        drop(stream);
        assert_eq!(ended_by.send().await.unwrap().status(), status);
        let cancelled = within("the agent hears of it", walker.working)
            .await
            .unwrap();
        assert_eq!(cancelled["method"], "notifications/cancelled");
    }
    let ping = json!({ "jsonrpc": "2.0", "id": 8, "method": "ping" });
    within("the session is over at the first replica", async {
        while session.post(first, &ping).send().await.unwrap().status() != 404 {}
    })
    .await;
    stop(bridges).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ends_that_one_client_can_record_are_limited() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let bridge = Running::start(&config(&unique("walker"), &on_nats(&nats), &nats)).await;
    let limited = || {
        let text = bridge.metrics.render().unwrap();
        let line = r#"a2abus_limited_requests_total{limit="mcp_client"} "#;
        let count = text.lines().find_map(|found| found.strip_prefix(line));
        count.unwrap().parse::<usize>().unwrap()
    };
    let mut sent = 0;
    loop {
        let session = Session::open(&bridge.door).await;
        let before = limited();
        // Unknown ones, until no more of them are accepted. Some at a time, so that they all come within a minute.
        while limited() == before {
            let cancels = (sent..sent + 10).map(|id| {
                let params = json!({ "requestId": id });
                let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
                session.post(&bridge.door, &cancel).send()
            });
            for response in futures_util::future::join_all(cancels).await {
                assert_eq!(response.unwrap().status(), 202);
            }
            sent += 10;
            assert!(sent < 10_000, "all are noted");
        }
        let end = session.with_id(session.http.delete(url(&bridge.door)));
        let ended = end.send().await.unwrap();
        if ended.status() == 429 {
            assert!(ended.headers().contains_key("retry-after"));
            break;
        }
        // The first was a minute ago by now, so that it counts no longer.
        assert_eq!(ended.status(), 204);
    }
    assert!(sent > 500, "{sent} are too few for a client");
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_mcp_stream_continues_when_its_replica_is_killed() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let card = "description: Walks.";
    let last = a_stream_continues_after_the_end(&nats, card, true).await;
    assert_eq!(last["result"]["content"], json!([]), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_mcp_stream_continues_when_its_replica_shuts_down() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let card = "description: Walks.";
    let last = a_stream_continues_after_the_end(&nats, card, false).await;
    assert_eq!(last["result"]["content"], json!([]), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stream_of_a_skill_continues_when_its_replica_is_killed() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let card = "description: Walks., protocol: a2a, skills: [ { id: walk, description: Walks. } ]";
    let last = a_stream_continues_after_the_end(&nats, card, true).await;
    let structured = &last["result"]["structuredContent"];
    assert_eq!(structured["state"], "completed", "{last}");
    assert_eq!(structured["taskId"], "t", "{last}");
}

/// Two replicas, each with a server of its own, and the directory in which these write what they are asked.
async fn with_servers(nats: &str) -> (TempDir, Replica, Replica) {
    let (name, directory) = (unique("watched"), tempfile::tempdir().unwrap());
    let to = format!("{{ transport: bus, topic: {name}.fixture }}");
    let config = format!(
        "transports: {{ bus: {{ type: nats, servers: ['{nats}'] }} }}\n\
         state: {{ log: bus, create: true, prefix: {name} }}{}",
        fixture(directory.path(), &to, "concurrency: 4"),
    );
    let one = Replica::start(directory.path(), 1, &config).await;
    let other = Replica::start(directory.path(), 2, &config).await;
    (directory, one, other)
}

/// Each replica has attached a server of its own.
#[tokio::test(flavor = "multi_thread")]
async fn changes_of_a_resource_arrive_after_a_replica_is_killed() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let (directory, mut one, other) = with_servers(&nats).await;
    let session = Session::open(&one.door).await;
    let uri = "a2abus://fixture/site:a";
    let about = |method: &str| json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": { "uri": uri } });
    let subscribe = session.post(&one.door, &about("resources/subscribe"));
    let answer: Value = subscribe.send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["result"], json!({}), "{answer}");

    // A server may be asked twice, by the request of the client and because of the log.
    let asked = |what: &str| {
        let effects = effects(directory.path()).into_iter();
        let asked: BTreeSet<String> = effects.filter(|line| line.ends_with(what)).collect();
        asked.len()
    };
    within("both servers are asked", async {
        while asked(" watches site:a") < 2 {
            sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    one.process.kill().await.unwrap();
    let get = session.with_id(session.http.get(url(&other.door)));
    let mut stream = Stream::of(get.send().await.unwrap());
    let (_, change) = stream.next().await.unwrap();
    assert_eq!(change["method"], "notifications/resources/updated");
    assert_eq!(change["params"]["uri"], uri);

    let unsubscribe = session.post(&other.door, &about("resources/unsubscribe"));
    let answer: Value = unsubscribe.send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["result"], json!({}), "{answer}");
    assert_eq!(asked(" no longer watches site:a"), 1);
}

/// Any bridge may get a request of a client, and each has a server of its own.
#[tokio::test(flavor = "multi_thread")]
async fn subscriptions_begin_and_end_at_the_servers_of_all_replicas() {
    // If a server had to wait for a regular comparison with the log each time, the test would take too long.
    const COUNT: usize = 10;
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let (directory, one, _other) = with_servers(&nats).await;
    let session = Session::open(&one.door).await;
    let change = async |method: &str, number: usize| {
        let params = json!({ "uri": format!("a2abus://fixture/site:{number}") });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answer = session.post(&one.door, &body).send().await.unwrap();
        let answer: Value = answer.json().await.unwrap();
        assert_eq!(answer["result"], json!({}), "{answer}");
    };
    within("both servers are asked each time", async {
        for number in 0..COUNT {
            change("resources/subscribe", number).await;
            while watching(directory.path(), number) < 2 {
                sleep(Duration::from_millis(10)).await;
            }
        }
    })
    .await;
    for number in 0..COUNT {
        change("resources/unsubscribe", number).await;
    }
    within("no server watches anything", async {
        while (0..COUNT).any(|number| watching(directory.path(), number) > 0) {
            sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

/// How many servers watch the resource with this number.
fn watching(directory: &Path, number: usize) -> usize {
    let mut servers = BTreeSet::new();
    for line in effects(directory) {
        let Some(about) = line.strip_suffix(&format!(" site:{number}")) else {
            continue;
        };
        match about.strip_suffix(" no longer watches") {
            Some(server) => servers.remove(server),
            None => servers.insert(about.trim_end_matches(" watches").to_owned()),
        };
    }
    servers.len()
}

/// If the agent falls silent and the replica of the call has stopped, the client does not wait for the longest time
/// that a stream may take.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_nobody_continues_ends() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let subject = unique("walker");
    let config = format!(
        "{}calls: {{ timeout: 20s, stream_timeout: 10m }}\n",
        config(&subject, &on_nats(&nats), &nats)
    );
    let (_directory, mut one, other) = Replica::two(&config).await;
    let session = Session::open_with(&one.door, json!({})).await;
    let (walker, _stream, last) = walking(&session, &one.door, (&nats, &subject)).await;
    one.process.kill().await.unwrap();
    walker.working.abort();
    let mut stream = Stream::of(session.come_back(&other.door, &last).await);
    let (_, error) = stream.next().await.unwrap();
    assert_eq!(error["error"]["data"]["reason"], "answer_lost", "{error}");
    assert_eq!(stream.next().await, None);
}

/// Kills the replica of a call whose agent has this card, or lets it shut down. Returns the last event that the client
/// gets from the other replica.
async fn a_stream_continues_after_the_end(nats: &str, card: &str, is_killed: bool) -> Value {
    let subject = unique("walker");
    let config = config(&subject, &on_nats(nats), nats).replace("description: Walks.", card);
    let (_directory, mut one, other) = Replica::two(&config).await;
    let session = Session::open(&one.door).await;
    let (walker, mut stream, last) = walking(&session, &one.door, (nats, &subject)).await;
    if is_killed {
        one.process.kill().await.unwrap();
    } else {
        one.terminate();
        assert_eq!(stream.next().await, None, "it can come back");
        assert!(one.process.wait().await.unwrap().success());
    }
    for _ in 0..STEPS {
        walker.proceed().await;
    }
    let mut stream = Stream::of(session.come_back(&other.door, &last).await);
    let (mut steps, mut answer) = (vec![1], Value::Null);
    while let Some((_, event)) = stream.next().await {
        steps.extend(step(&event));
        answer = event;
    }
    let all: Vec<u64> = (1..=STEPS as u64).collect();
    assert_eq!(steps, all, "no gap and no repeat, up to {answer}");
    answer
}
