//! Replicas that share their tasks on a bus: a stream goes on at another replica, and each webhook is called by one.

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use support::battery::within;
use support::running::Running;
use support::server::{Kind, named};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::plain::{jetstream_of, nats_client, subscribed, unique};

/// Chunks that the agent makes.
const CHUNKS: usize = 24;
/// Events of a whole stream after the task: working, the chunks, completed.
const EVENTS: usize = CHUNKS + 2;

/// An agent that makes one chunk for each message on `pace`.
async fn agent(
    nats: async_nats::Client,
    mut requests: async_nats::Subscriber,
    mut paces: async_nats::Subscriber,
) {
    let request = requests.next().await.unwrap();
    let place = request.reply.unwrap();
    let request: Value = serde_json::from_slice(&request.payload).unwrap();
    let send_part = async |result: Value| {
        let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": result });
        let sent = nats.publish(place.clone(), answer.to_string().into()).await;
        sent.unwrap();
    };
    let status = |state: &str, last: bool| {
        json!({
            "kind": "status-update", "taskId": "own", "contextId": "c", "final": last, "status": { "state": state },
        })
    };
    send_part(status("working", false)).await;
    for number in 0..CHUNKS {
        paces.next().await.unwrap();
        send_part(json!({
            "kind": "artifact-update", "taskId": "own", "contextId": "c", "append": number > 0, "lastChunk": false,
            "artifact": { "artifactId": "a", "parts": [{ "kind": "text", "text": number.to_string() }] },
        }))
        .await;
    }
    send_part(status("completed", true)).await;
    nats.flush().await.unwrap();
}

/// The state of a stream: its events so far, by id.
struct Follower {
    response: reqwest::Response,
    text: String,
    consumed: usize,
}

impl Follower {
    async fn open(bridge: &Running, body: &Value, last: Option<&str>) -> Self {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let mut sent = client
            .post(format!("{}/a2a/agents/writer", bridge.door))
            .header("content-type", "application/json")
            .header("a2a-version", "1.0");
        if let Some(last) = last {
            sent = sent.header("last-event-id", last);
        }
        let response = sent.body(body.to_string()).send().await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            response,
            text: String::new(),
            consumed: 0,
        }
    }

    /// The next event, with its id; `None` at the end.
    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            let whole = self.text.rfind("\n\n").map_or("", |end| &self.text[..end]);
            let events: Vec<&str> = whole
                .split("\n\n")
                .filter(|event| event.contains("data: "))
                .collect();
            if let Some(event) = events.get(self.consumed) {
                self.consumed += 1;
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
                let data: Value = serde_json::from_str(field("data: ").unwrap()).unwrap();
                return Some((field("id: ").unwrap().to_owned(), data["result"].clone()));
            }
            let chunk = within("an event comes", self.response.chunk()).await;
            self.text
                .push_str(std::str::from_utf8(&chunk.unwrap()?).unwrap());
        }
    }
}

/// A client's listener, which shows the requests that it received.
async fn listener() -> (String, mpsc::Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (sender, called) = mpsc::channel(1_000);
    let take = async |State(sender): State<mpsc::Sender<Value>>, body: String| {
        sender
            .send(serde_json::from_str(&body).unwrap())
            .await
            .unwrap();
    };
    let router = Router::new().route("/hook", post(take)).with_state(sender);
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (url, called)
}

/// The content of an event, for comparison.
fn text_or_state(event: &Value) -> String {
    let text = &event["artifactUpdate"]["artifact"]["parts"][0]["text"];
    let state = &event["statusUpdate"]["status"]["state"];
    let content = text.as_str().or_else(|| state.as_str());
    content.unwrap_or_else(|| panic!("{event}")).to_owned()
}

async fn a_stream_continues_on_another_replica(state: &str, nats: &str) {
    let subject = unique("writer");
    let pace = format!("{subject}.pace");
    let (url, mut called) = listener().await;
    let config = format!(
        "transports: {{ agents: {{ type: nats, servers: ['{nats}'] }}, shared: {state} }}\n\
         agents: {{ writer: {{ description: Writes., to: {{ transport: agents, topic: {subject} }} }} }}\n\
         a2a: {{ push_notifications: {{ enabled: true, allowed_urls: ['{url}'] }} }}\n\
         state: {{ log: shared, create: true, prefix: {} }}\n",
        unique("streams"),
    );
    let bridges = [Running::start(&config).await, Running::start(&config).await];
    let client = nats_client(nats).await;
    let requests = client.subscribe(subject).await.unwrap();
    let paces = client.subscribe(pace.clone()).await.unwrap();
    subscribed(&client).await;
    let working = tokio::spawn(agent(client.clone(), requests, paces));
    let proceed = async || {
        client.publish(pace.clone(), "".into()).await.unwrap();
        client.flush().await.unwrap();
    };
    let [first, other] = &bridges;
    let begin = json!({ "jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": {
        "message": { "role": "ROLE_USER", "messageId": "m", "contextId": "c", "parts": [{ "text": "write" }] },
        "configuration": { "taskPushNotificationConfig": { "url": url } },
    }});
    let mut whole = Follower::open(first, &begin, None).await;
    let (mut last, task) = whole.next().await.unwrap();
    let id = task["task"]["id"].as_str().unwrap();
    let follow =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": { "id": id } });
    // A client that comes back to the other replica after every second event, while the task goes on.
    let mut patched = Vec::new();
    for turn in 0.. {
        let bridge = if turn % 2 == 0 { other } else { first };
        let mut follower = Follower::open(bridge, &follow, Some(&last)).await;
        let mut is_over = false;
        for _ in 0..2 {
            proceed().await;
            let Some(event) = follower.next().await else {
                is_over = true;
                break;
            };
            last.clone_from(&event.0);
            patched.push(event);
        }
        if is_over || patched.len() == EVENTS {
            break;
        }
    }
    let mut expected = Vec::new();
    while let Some(event) = whole.next().await {
        expected.push(event);
    }
    assert_eq!(expected.len(), EVENTS);
    assert_eq!(patched, expected, "no gap and no repeat");
    within("the agent ends", working).await.unwrap();
    // The webhook has received each event once, in this order, whichever replica called it.
    for (_, event) in &expected {
        let call = within("the webhook is called", called.recv())
            .await
            .unwrap();
        assert_eq!(text_or_state(&call), text_or_state(event));
    }
    assert!(called.try_recv().is_err(), "nothing is delivered twice");
    for bridge in bridges {
        bridge.stop().await;
    }
    assert!(called.try_recv().is_err(), "nothing is delivered twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_continues_at_another_replica_on_kafka() {
    let (Some(kafka), Some(nats)) = (named(Kind::Kafka), named(Kind::Nats)) else {
        return;
    };
    let state = format!("{{ type: kafka, brokers: ['{kafka}'] }}");
    a_stream_continues_on_another_replica(&state, &nats).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_continues_at_another_replica_on_jetstream() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let state = format!("{{ type: nats, servers: ['{nats}'] }}");
    a_stream_continues_on_another_replica(&state, &nats).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_followed_call_that_no_agent_accepts_fails_before_its_deadline() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let config = format!(
        "transports: {{ bus: {{ type: nats, servers: ['{nats}'], jetstream: {{}} }} }}\n\
         agents: {{ nobody: {{ description: Is away., to: {{ transport: bus, topic: {} }} }} }}\n\
         state: {{ log: bus, create: true, prefix: {} }}\n",
        unique("nobody"),
        unique("streams"),
    );
    let bridge = Running::start(&config).await;
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {
        "message": { "role": "user", "messageId": "m", "parts": [{ "kind": "text", "text": "hello" }] },
    }});
    let answer = bridge.post("/a2a/agents/nobody", request.to_string()).await;
    assert!(answer.body.contains("agent_unavailable"), "{}", answer.body);
    bridge.stop().await;
}

/// Answers of one replica are visible on another one at once.
async fn an_answer_is_seen_elsewhere(state: &str, nats: &str) {
    let subject = unique("quick");
    let config = format!(
        "transports: {{ agents: {{ type: nats, servers: ['{nats}'] }}, shared: {state} }}\n\
         agents: {{ quick: {{ description: Waits., to: {{ transport: agents, topic: {subject} }} }} }}\n\
         state: {{ log: shared, create: true, prefix: {} }}\n",
        unique("streams"),
    );
    let bridges = [Running::start(&config).await, Running::start(&config).await];
    let client = nats_client(nats).await;
    let mut requests = client.subscribe(subject).await.unwrap();
    subscribed(&client).await;
    let agent_task = tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let body: Value = serde_json::from_slice(&request.payload).unwrap();
            let result = json!({
                "kind": "task", "id": body["id"], "contextId": body["params"]["message"]["contextId"],
                "status": { "state": "input-required" },
            });
            let answer = json!({ "jsonrpc": "2.0", "id": body["id"], "result": result });
            let sent = client.publish(request.reply.unwrap(), answer.to_string().into());
            sent.await.unwrap();
        }
    });
    let ask = async |bridge: &Running, method: &str, params: Value| {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answer = bridge.post("/a2a/agents/quick", request.to_string()).await;
        let answer: Value = serde_json::from_str(&answer.body).unwrap();
        answer["result"].clone()
    };
    for turn in 0..30 {
        let (one, other) = (&bridges[turn % 2], &bridges[(turn + 1) % 2]);
        let context = format!("c{turn}");
        let message = json!({
            "role": "user", "messageId": format!("m{turn}"), "contextId": context,
            "parts": [{ "kind": "text", "text": "wait" }],
        });
        let task = ask(one, "message/send", json!({ "message": message })).await;
        assert_eq!(task["status"]["state"], "input-required", "{task}");
        let other_task = ask(other, "tasks/get", json!({ "id": task["id"] })).await;
        assert_eq!(
            other_task["status"]["state"], "input-required",
            "{turn}: {other_task}"
        );
        let list = ask(other, "tasks/list", json!({ "contextId": context })).await;
        assert_eq!(list["tasks"][0]["id"], task["id"], "{turn}: {list}");
    }
    agent_task.abort();
    for bridge in bridges {
        bridge.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_seen_at_another_replica_at_once_on_kafka() {
    if let (Some(kafka), Some(nats)) = (named(Kind::Kafka), named(Kind::Nats)) {
        let state = format!("{{ type: kafka, brokers: ['{kafka}'] }}");
        an_answer_is_seen_elsewhere(&state, &nats).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_seen_at_another_replica_at_once_on_jetstream() {
    if let Some(nats) = named(Kind::Nats) {
        let state = format!("{{ type: nats, servers: ['{nats}'], jetstream: {{}} }}");
        an_answer_is_seen_elsewhere(&state, &nats).await;
    }
}

/// Such a stream replies to the reply subject of the request, before the agent answers.
#[tokio::test(flavor = "multi_thread")]
async fn the_reply_of_a_stream_that_stores_the_request_is_not_its_answer() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let u = unique("stored");
    let client = nats_client(&nats).await;
    let stream = async_nats::jetstream::stream::Config {
        name: u.replace('.', "-"),
        subjects: vec![format!("{u}.>")],
        max_messages: 1,
        discard: async_nats::jetstream::stream::DiscardPolicy::New,
        ..Default::default()
    };
    jetstream_of(client.clone())
        .create_stream(stream)
        .await
        .unwrap();
    let bridge = Running::start(&format!(
        "
instance: test
transports: {{ nats: {{ type: nats, servers: ['{nats}'] }} }}
default_route: [{{ transport: nats, topic: '{u}.{{targetagent}}' }}]"
    ))
    .await;
    let mut requests = client.subscribe(format!("{u}.slow")).await.unwrap();
    client.flush().await.unwrap();
    let rejected = async |count: usize| {
        let series = format!(r#"a2abus_replies_total{{outcome="unknown"}} {count}"#);
        within("the reply of the stream is read", async {
            while !bridge.metrics.render().unwrap().contains(&series) {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        })
        .await;
    };
    // The second request finds the stream full.
    for count in 1..=2 {
        let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}"#;
        let agent = async {
            let request = within("a request", requests.next()).await.unwrap();
            rejected(count).await;
            let reply = request.reply.unwrap();
            client
                .publish(reply, r#"{"city":"Oslo"}"#.into())
                .await
                .unwrap();
        };
        let (answered, ()) = tokio::join!(bridge.post("/rpc/slow", call), agent);
        assert!(answered.body.contains("Oslo"), "{}", answered.body);
    }
    bridge.stop().await;
}
