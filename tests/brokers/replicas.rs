//! Two replicas behind a round robin, and one of them is killed while calls and streams wait for their agent.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use a2abus_transports::kafka::{Kafka, KafkaConfig};
use a2abus_transports::nats::{Nats, NatsConfig};
use a2abus_transports::{
    Address, AnyTransport, Delivery, Health, Message, Outcome, Reading, Subscription, Topic,
    TopicFilter, Transport as _, TransportErrorKind,
};
use rdkafka::consumer::StreamConsumer;
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};
use support::battery::within;
use support::proxy::Proxy;
use support::running::Running;
use support::server::{Kind, Private, free_port, named};
use tempfile::TempDir;
use tokio::process::Child;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep};

use crate::path::serve;
use crate::plain::{Plain, next, unique};

const CALLS: usize = 200;
const STREAMS: usize = 50;
/// How long one caller tries: longer than its calls take, which begin long before the replica is killed if the machine
/// is slow, and than a replica waits before it takes over.
const PATIENCE: Duration = Duration::from_secs(170);

/// One replica, in a process of its own.
pub(crate) struct Replica {
    pub(crate) door: String,
    pub(crate) process: Child,
}

impl Replica {
    pub(crate) async fn start(directory: &Path, number: usize, config: &str) -> Self {
        let (door, admin) = (free_port().await, free_port().await);
        let file = directory.join(format!("{number}.yaml"));
        let ends = format!(
            "http: {{ listen: '127.0.0.1:{door}', max_connections_per_client: 4096, drain_grace: 3s }}\nadmin: {{ listen: '127.0.0.1:{admin}' }}\n"
        );
        std::fs::write(&file, format!("{config}\n{ends}")).unwrap();
        let replica = Self {
            process: serve(&file),
            door: format!("http://127.0.0.1:{door}"),
        };
        within("the replica is ready", async {
            loop {
                let answer = reqwest::get(format!("http://127.0.0.1:{admin}/readyz")).await;
                if answer.is_ok_and(|answer| answer.status().is_success()) {
                    return;
                }
                sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        replica
    }

    /// Two of them, and the directory of their configurations.
    pub(crate) async fn two(config: &str) -> (TempDir, Self, Self) {
        let directory = tempfile::tempdir().unwrap();
        let one = Self::start(directory.path(), 1, config).await;
        let other = Self::start(directory.path(), 2, config).await;
        (directory, one, other)
    }

    /// Asks it to end.
    pub(crate) fn terminate(&self) {
        let pid = i32::try_from(self.process.id().unwrap()).unwrap();
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(pid).unwrap(),
            rustix::process::Signal::TERM,
        )
        .unwrap();
    }
}

/// What a group of the name of a topic reads from it.
fn group(topic: &str) -> Subscription {
    Subscription {
        topics: vec![TopicFilter::new(topic).unwrap()],
        reading: Reading::Group(topic.into()),
        budget_bytes: 16 << 20,
        budget_messages: 4_096,
    }
}

/// An agent that reads requests at once and answers them when the test permits it.
struct Agent {
    bus: AnyTransport,
    /// How often each request came, by its text.
    requests_by_id: Mutex<BTreeMap<String, usize>>,
    /// The reply address of each request, and the reply id.
    requests: Mutex<Vec<(Address, String)>>,
    cancels: AtomicUsize,
    /// How many parts it has sent to requesters of a slow answer.
    drops: AtomicUsize,
    is_let: watch::Sender<bool>,
}

impl Agent {
    async fn start(bus: AnyTransport, topic: &str) -> (Arc<Self>, JoinSet<()>) {
        let agent = Arc::new(Self {
            bus,
            requests_by_id: Mutex::default(),
            requests: Mutex::default(),
            cancels: AtomicUsize::new(0),
            drops: AtomicUsize::new(0),
            is_let: watch::Sender::new(false),
        });
        let mut consumer = agent.bus.subscribe(group(topic)).await.unwrap();
        within("the agent reads", consumer.assigned()).await;
        let mut tasks = JoinSet::new();
        let inside = Arc::clone(&agent);
        tasks.spawn(async move {
            let mut answer_tasks = JoinSet::new();
            while let Some(delivery) = consumer.recv().await {
                answer_tasks.spawn(Arc::clone(&inside).answer(delivery));
            }
        });
        (agent, tasks)
    }

    /// An agent on this NATS, and its subject.
    async fn on_nats(address: &str, name: &str) -> (String, Arc<Self>, JoinSet<()>) {
        let nats = Nats::connect(NatsConfig::new([address]));
        let (nats, topic) = (nats.await.unwrap(), unique(name));
        let (agent, tasks) = Self::start(nats.into(), &topic).await;
        (topic, agent, tasks)
    }

    fn count(&self) -> usize {
        self.requests_by_id.lock().unwrap().values().sum()
    }

    async fn until_asked(&self, count: usize) {
        within("the agent has the requests", async {
            while self.count() < count {
                sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }

    async fn answer(self: Arc<Self>, delivery: Delivery) {
        let request: Value =
            serde_json::from_slice(&delivery.message.body.clone().unwrap()).unwrap();
        let reply_address = reply_address_of(&delivery);
        delivery.acknowledger.settle(Outcome::Settled).unwrap();
        let Some(text) = text_of(&request) else {
            self.cancels.fetch_add(1, Ordering::Relaxed);
            return;
        };
        *self
            .requests_by_id
            .lock()
            .unwrap()
            .entry(text.clone())
            .or_default() += 1;
        let id = request["id"].as_str().unwrap().to_owned();
        self.requests
            .lock()
            .unwrap()
            .push((reply_address.clone(), id));
        if text.ends_with(" later") {
            self.until_let().await;
        }
        match text.as_str() {
            "ask" => {
                let task =
                    json!({ "kind": "task", "id": "own", "status": { "state": "input-required" } });
                return self.reply(&reply_address, &request, task).await;
            }
            "refuse" | "refuse later" => {
                let error = json!({ "code": -32602, "message": "no city" });
                let body = json!({ "jsonrpc": "2.0", "id": request["id"], "error": error });
                return self.send(&reply_address, body.to_string()).await;
            }
            "garble later" => return self.send(&reply_address, "{ not json".to_owned()).await,
            "drip" => return self.drip(&reply_address, &request).await,
            "fall silent" => {
                let task = json!({ "kind": "task", "id": "own", "status": { "state": "working" } });
                return self.reply(&reply_address, &request, task).await;
            }
            _ => {}
        }
        let is_stream = request["method"] == "message/stream";
        if is_stream {
            self.reply(&reply_address, &request, artifact(&text, "first", false))
                .await;
        }
        self.until_let().await;
        if is_stream {
            self.reply(&reply_address, &request, artifact(&text, "second", true))
                .await;
            self.reply(&reply_address, &request, completed()).await;
        } else {
            self.reply(&reply_address, &request, json!({ "echo": text }))
                .await;
        }
    }

    /// Waits until the test permits the answers.
    async fn until_let(&self) {
        let mut is_let = self.is_let.subscribe();
        is_let.wait_for(|is_let| *is_let).await.unwrap();
    }

    async fn send(&self, reply_address: &Address, body: String) {
        let sent = self.bus.send(reply_address, Message::plain(body)).await;
        sent.unwrap().await.unwrap();
    }

    /// Sends a part every second, until the test permits the last one.
    async fn drip(&self, reply_address: &Address, request: &Value) {
        while !*self.is_let.borrow() {
            self.reply(reply_address, request, artifact("drip", "drop", true))
                .await;
            self.drops.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_secs(1)).await;
        }
        self.reply(reply_address, request, completed()).await;
    }

    /// Answers every request like a sender that knows its call id, but not its reply token.
    async fn forge(&self) {
        let requests = std::mem::take(&mut *self.requests.lock().unwrap());
        for (reply_address, id) in requests {
            let mut forged = id.clone();
            let other = if forged.as_bytes()[40] == b'a' {
                "b"
            } else {
                "a"
            };
            forged.replace_range(40..41, other);
            let topic = Topic::new(reply_address.topic.as_str().replace(&id, &forged)).unwrap();
            let reply_address = Address {
                topic,
                ..reply_address
            };
            let request = json!({ "id": forged });
            self.reply(&reply_address, &request, json!({ "echo": "forged" }))
                .await;
        }
    }

    async fn reply(&self, reply_address: &Address, request: &Value, result: Value) {
        let body = json!({ "jsonrpc": "2.0", "id": request["id"], "result": result });
        let send = async || {
            let message = Message::plain(body.to_string());
            self.bus.send(reply_address, message).await.unwrap().await
        };
        // A broker that was away may confirm only a later message: then an agent sends this one again.
        while let Err(error) = send().await {
            assert_eq!(error.kind(), TransportErrorKind::TimedOut, "{error}");
        }
    }
}

/// The text of a request: `params.text`, or the text of its message.
fn text_of(request: &Value) -> Option<String> {
    let text = request["params"]["text"].as_str();
    let part = request.pointer("/params/message/parts/0/text");
    text.or(part.and_then(Value::as_str)).map(str::to_owned)
}

/// The reply address of a request: the reply subject, or the headers that Spring's clients send.
fn reply_address_of(delivery: &Delivery) -> Address {
    let header = |name| delivery.message.headers.get(name);
    if let Some(subject) = &delivery.reply_to {
        return Address::topic(subject.clone());
    }
    let Some(topic) = header("kafka_replyTopic") else {
        // A cancel gets no answer.
        return Address::topic(Topic::from_static("nowhere"));
    };
    let topic = std::str::from_utf8(topic).unwrap();
    let partition = header("kafka_replyPartition").unwrap();
    Address {
        partition: Some(u32::from_be_bytes(partition.to_vec().try_into().unwrap())),
        ..Address::topic(Topic::new(topic).unwrap())
    }
}

fn artifact(text: &str, piece: &str, append: bool) -> Value {
    json!({
        "kind": "artifact-update", "taskId": format!("task-{text}"), "contextId": "c", "append": append,
        "lastChunk": append,
        "artifact": { "artifactId": "a", "parts": [{ "kind": "text", "text": format!("{text} {piece}") }] },
    })
}

fn completed() -> Value {
    json!({
        "kind": "status-update", "taskId": "t", "contextId": "c", "final": true,
        "status": { "state": "completed" },
    })
}

/// The clients of both replicas.
struct Clients {
    http: Client,
    doors: [String; 2],
    turn: AtomicUsize,
}

impl Clients {
    /// The address of the replica whose turn it is.
    fn next(&self) -> &str {
        &self.doors[self.turn.fetch_add(1, Ordering::Relaxed) % 2]
    }

    /// Sends a request until a replica has answered it: with the same key, to one after the other.
    async fn ask(&self, path: &str, key: &str, body: &Value, is_whole: fn(&str) -> bool) -> String {
        let until = Instant::now() + PATIENCE;
        let mut last = String::new();
        while Instant::now() < until {
            let sent = self
                .http
                .post(format!("{}{path}", self.next()))
                .header("content-type", "application/json")
                .header("accept", "application/json, text/event-stream")
                .header("idempotency-key", key)
                .header("x-a2a-timeout", "150000")
                .body(body.to_string())
                .send();
            let Ok(response) = sent.await else {
                continue;
            };
            last = response.text().await.unwrap_or_default();
            if is_whole(&last) {
                return last;
            }
        }
        panic!("{key} was not answered: {last}");
    }
}

fn is_json(body: &str) -> bool {
    let answer: Option<Value> = serde_json::from_str(body).ok();
    // An explicit error names the call.
    answer.is_some_and(|answer| {
        answer["result"].is_object() || answer["error"]["data"]["callId"].is_string()
    })
}

fn is_stream(body: &str) -> bool {
    body.contains(r#""state":"completed""#)
}

/// Replicas that share their state on this transport.
fn config(transport: &str, topic: &str) -> String {
    format!(
        "
transports: {{ bus: {transport} }}
agents: {{ weather: {{ description: The weather., to: {{ transport: bus, topic: {topic} }} }} }}
calls: {{ reply_topic: {topic}.replies, max_timeout: 160s }}
a2a: {{ max_requests_per_client: 1000 }}
state: {{ log: bus, create: true, prefix: {topic} }}
"
    )
}

async fn one_of_two_is_killed(bus: AnyTransport, transport: &str, topic: &str) {
    let config = config(transport, topic);
    let (_directory, mut one, other) = Replica::two(&config).await;
    let (agent, _tasks) = Agent::start(bus, topic).await;
    let clients = Arc::new(Clients {
        http: Client::builder().no_proxy().build().unwrap(),
        doors: [one.door.clone(), other.door.clone()],
        turn: AtomicUsize::new(0),
    });
    let mut callers = JoinSet::new();
    for number in 0..CALLS + STREAMS {
        let clients = Arc::clone(&clients);
        callers.spawn(async move { caller(&clients, number).await });
    }
    agent.until_asked(CALLS + STREAMS).await;
    one.process.kill().await.unwrap();
    agent.forge().await;
    agent.is_let.send_replace(true);
    let mut texts = Vec::new();
    while let Some(caller) = within("a caller has its answer", callers.join_next()).await {
        texts.extend(caller.unwrap());
    }
    let (answered, all) = (texts.len(), CALLS + STREAMS);
    let requests_by_id = agent.requests_by_id.lock().unwrap();
    let doubled: Vec<_> = requests_by_id
        .iter()
        .filter(|(_, times)| **times > 1)
        .collect();
    // Crossed answers and callers that hang have ended the test before.
    println!(
        "{all} callers, answered {answered}, doubled {}",
        doubled.len()
    );
    assert!(doubled.is_empty(), "the agent ran twice: {doubled:?}");
    assert_eq!(answered, all, "every answer was recovered");
}

/// One caller; the text that came back, if an answer did.
async fn caller(clients: &Clients, number: usize) -> Option<String> {
    let text = format!("text-{number}");
    if number < CALLS {
        let body =
            json!({ "jsonrpc": "2.0", "id": number, "method": "echo", "params": { "text": text } });
        let answer = clients.ask("/rpc/weather", &text, &body, is_json).await;
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["id"], number, "crossed");
        let echo = answer["result"]["echo"].as_str()?;
        assert_eq!(echo, text, "crossed");
        return Some(text);
    }
    let message = json!({
        "kind": "message", "role": "user", "messageId": text, "parts": [{ "kind": "text", "text": text }],
    });
    let body = json!({
        "jsonrpc": "2.0", "id": number, "method": "message/stream", "params": { "message": message },
    });
    let path = "/a2a/agents/weather";
    let stream = clients.ask(path, &text, &body, is_stream).await;
    let first = stream.lines().find_map(|line| line.strip_prefix("data: "));
    let first: Value = serde_json::from_str(first.unwrap()).unwrap();
    let task = first["result"]["id"].as_str().unwrap();
    let get = json!({ "jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": { "id": task } });
    let found = clients
        .ask(path, &format!("get-{text}"), &get, is_json)
        .await;
    let found: Value = serde_json::from_str(&found).unwrap();
    let parts = found.pointer("/result/artifacts/0/parts").unwrap();
    let parts: Vec<&str> = parts
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|part| part["text"].as_str())
        .collect();
    assert_eq!(
        parts,
        [format!("{text} first"), format!("{text} second")],
        "{found}"
    );
    Some(text)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_on_nats_is_killed_under_calls_and_streams() {
    let Some(address) = named(Kind::Nats) else {
        return;
    };
    let nats = Nats::connect(NatsConfig::new([address.as_str()]))
        .await
        .unwrap();
    let transport = format!("{{ type: nats, servers: ['{address}'] }}");
    one_of_two_is_killed(nats.into(), &transport, &unique("replicas")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_on_kafka_is_killed_under_calls_and_streams() {
    let Some(address) = named(Kind::Kafka) else {
        return;
    };
    let topic = unique("replicas");
    Plain::new(&address).create(&topic, 3).await;
    let kafka = Kafka::connect(KafkaConfig::new([address.as_str()])).unwrap();
    let transport = format!("{{ type: kafka, brokers: ['{address}'], session_timeout: 6s }}");
    one_of_two_is_killed(kafka.into(), &transport, &topic).await;
}

/// The text of the first artifact of a task that has ended.
async fn text_of_ended(http: &Client, door: &str, task: &Value) -> String {
    let body =
        json!({ "jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": { "id": task } });
    loop {
        let asked = http.post(format!("{door}/a2a/agents/weather")).json(&body);
        let answer: Value = asked.send().await.unwrap().json().await.unwrap();
        if answer["result"]["status"]["state"] == "completed" {
            let parts = answer["result"]["artifacts"][0]["parts"]
                .as_array()
                .unwrap();
            return parts
                .iter()
                .map(|part| part["text"].as_str().unwrap())
                .collect();
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// The partitions of the reply topic of [`Forwarding`].
const PARTITIONS: i32 = 4;

/// Two replicas on Kafka, and an agent that ignores the partition that a request names, so its answers are forwarded.
struct Forwarding {
    plain: Plain,
    replies: String,
    requests: StreamConsumer,
    http: Client,
    one: Replica,
    other: Replica,
    _directory: TempDir,
}

impl Forwarding {
    /// With more settings of the transport and of calls. `None` without Kafka.
    async fn start(name: &str, of_transport: &str, of_calls: &str) -> Option<Self> {
        let address = named(Kind::Kafka)?;
        let (plain, topic) = (Plain::new(&address), unique(name));
        let replies = format!("{topic}.replies");
        plain.create(&topic, 1).await;
        plain.create(&replies, PARTITIONS).await;
        let transport = format!("{{ type: kafka, brokers: ['{address}']{of_transport} }}");
        let with_four = format!("reply_partitions: {PARTITIONS}, {of_calls}max_timeout");
        let config = config(&transport, &topic).replace("max_timeout", &with_four);
        let (directory, one, other) = Replica::two(&config).await;
        Some(Self {
            http: Client::builder().no_proxy().build().unwrap(),
            requests: plain.read(&topic, 1),
            plain,
            replies,
            one,
            other,
            _directory: directory,
        })
    }

    /// Begins a call at this replica.
    fn call(&self, replica: &Replica) -> JoinHandle<reqwest::Result<Response>> {
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "echo", "params": {} });
        let url = format!("{}/rpc/weather", replica.door);
        tokio::spawn(self.http.post(url).json(&call).send())
    }

    /// The id of the next request that the agent gets.
    async fn received(&self) -> Value {
        let request = within("the request", next(&self.requests)).await;
        serde_json::from_slice::<Value>(&request.body).unwrap()["id"].clone()
    }

    /// The agent answers in this partition.
    async fn answer(&self, partition: i32, id: &Value, result: Value) {
        let body = json!({ "jsonrpc": "2.0", "id": id, "result": result });
        self.plain
            .publish(&self.replies, Some(partition), &body.to_string())
            .await;
    }
}

/// The parameters of a message whose sender does not wait for the answer.
fn unblocked(text: &str) -> Value {
    let parts = json!([{ "kind": "text", "text": text }]);
    let message = json!({ "kind": "message", "role": "user", "messageId": "m", "parts": parts });
    json!({ "message": message, "configuration": { "blocking": false } })
}

/// The other replica reads both the parts and the forwarded copies.
#[tokio::test(flavor = "multi_thread")]
async fn forwarded_parts_count_once_at_every_replica() {
    let Some(world) = Forwarding::start("forwarded", "", "").await else {
        return;
    };
    let Forwarding {
        http, one, other, ..
    } = &world;
    // The replicas have joined the group that forwards.
    for partition in 0..PARTITIONS {
        let called = world.call(one);
        let id = world.received().await;
        world.answer(partition, &id, json!({})).await;
        let called = within("the answer", called).await.unwrap().unwrap();
        assert!(called.status().is_success(), "{called:?}");
    }
    let mut ids = Vec::new();
    let mut tasks = Vec::new();
    for _ in 0..PARTITIONS {
        let params = unblocked("go");
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params });
        let sent = http
            .post(format!("{}/a2a/agents/weather", one.door))
            .json(&body);
        let answer: Value = sent.send().await.unwrap().json().await.unwrap();
        tasks.push(answer["result"]["id"].clone());
        ids.push(world.received().await);
    }
    for (partition, id) in (0..).zip(&ids) {
        for number in 0..5 {
            let artifact = json!({ "artifactId": "a", "parts": [{ "kind": "text", "text": number.to_string() }] });
            let update = json!({ "kind": "artifact-update", "taskId": "t", "append": number > 0, "artifact": artifact });
            world.answer(partition, id, update).await;
        }
    }
    // Longer than another replica waits before it takes over an answer that its own replica does not receive.
    sleep(Duration::from_secs(5)).await;
    for (partition, id) in (0..).zip(&ids) {
        world.answer(partition, id, completed()).await;
    }
    for task in &tasks {
        for door in [&one.door, &other.door] {
            let text = within("the task ends", text_of_ended(http, door, task)).await;
            assert_eq!(text, "01234");
        }
    }
}

/// The other replica is killed: the answers in its partitions are forwarded before the calls end, although both take
/// less than `session_timeout`.
#[tokio::test(flavor = "multi_thread")]
async fn answers_in_the_partitions_of_a_killed_replica_are_forwarded_in_time() {
    let (of_transport, of_calls) = (", session_timeout: 160s", "timeout: 100s, ");
    let started = Forwarding::start("forwarded-soon", of_transport, of_calls).await;
    let Some(mut world) = started else {
        return;
    };
    // Before the first round, the replicas join the group that forwards.
    for round in 0..2 {
        let mut calls = Vec::new();
        for partition in 0..PARTITIONS {
            calls.push(world.call(&world.other));
            let id = world.received().await;
            world.answer(partition, &id, json!(partition)).await;
        }
        for called in calls {
            let called = within("the answer", called).await.unwrap().unwrap();
            let answer: Value = called.json().await.unwrap();
            assert!(answer["result"].is_number(), "{answer}");
        }
        if round == 0 {
            world.one.process.kill().await.unwrap();
        }
    }
}

/// Two replicas on NATS, and their agent.
struct Pair {
    one: Replica,
    other: Replica,
    agent: Arc<Agent>,
    _tasks: JoinSet<()>,
    _directory: TempDir,
}

impl Pair {
    /// `None` without NATS.
    async fn start(name: &str) -> Option<Self> {
        Self::start_with(name, |config| config).await
    }

    /// The same with a changed configuration.
    async fn start_with(name: &str, changed: impl Fn(String) -> String) -> Option<Self> {
        let address = named(Kind::Nats)?;
        let (topic, agent, tasks) = Agent::on_nats(&address, name).await;
        let config = config(&format!("{{ type: nats, servers: ['{address}'] }}"), &topic);
        let config = changed(config);
        let (directory, one, other) = Replica::two(&config).await;
        Some(Self {
            one,
            other,
            agent,
            _tasks: tasks,
            _directory: directory,
        })
    }
}

/// A replica shuts down while a stream, a message and a call wait. The other one continues them.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_shuts_down_hands_its_calls_over() {
    let Some(pair) = Pair::start("handed-over").await else {
        return;
    };
    let Pair {
        mut one,
        other,
        agent,
        ..
    } = pair;
    let http = Client::builder().no_proxy().build().unwrap();
    let post = |door: &str, path: &str, body: &Value| {
        let request = http.post(format!("{door}{path}")).json(body);
        request.header("accept", "application/json, text/event-stream")
    };
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "echo", "params": { "text": "call" } });
    let agents = "/a2a/agents/weather";
    let (stream, sent, called) = (
        post(&one.door, agents, &message("message/stream", "stream")),
        post(&one.door, agents, &message("message/send", "send")),
        post(&one.door, "/rpc/weather", &call).header("idempotency-key", "key"),
    );
    let ended = tokio::spawn(async move {
        let text = |request: RequestBuilder| async {
            let response = request.send().await.unwrap();
            (response.status().as_u16(), response.text().await.unwrap())
        };
        tokio::join!(text(stream), text(sent), text(called))
    });
    agent.until_asked(3).await;
    one.terminate();
    let (stream, sent, called) = within("the callers are told", ended).await.unwrap();
    assert!(stream.1.contains("subscribe to it again"), "{stream:?}");
    for (status, (found, body)) in [(200, &sent), (503, &called)] {
        assert_eq!(*found, status, "{body}");
        assert!(body.contains(r#""reason":"answer_lost""#), "{body}");
    }
    let error: Value = serde_json::from_str(&sent.1).unwrap();
    let sent = &error["error"]["data"]["taskId"];
    assert!(sent.is_string(), "{error}");
    assert!(one.process.wait().await.unwrap().success());
    agent.is_let.send_replace(true);
    let first = stream
        .1
        .lines()
        .find_map(|line| line.strip_prefix("data: "));
    let first: Value = serde_json::from_str(first.unwrap()).unwrap();
    let text_of = async |request: RequestBuilder| {
        let response = request.send().await.unwrap();
        response.text().await.unwrap()
    };
    let get = async |id: &Value| {
        let params = json!({ "id": id });
        let get = json!({ "jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": params });
        text_of(post(&other.door, agents, &get)).await
    };
    within("the other replica has the answers", async {
        loop {
            let called = post(&other.door, "/rpc/weather", &call).header("idempotency-key", "key");
            let called = text_of(called).await.contains(r#""echo":"call""#);
            let sent = get(sent).await.contains(r#""echo":"send""#);
            if called && sent && is_stream(&get(&first["result"]["id"]).await) {
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    assert_eq!(agent.count(), 3, "the agent ran twice");
    assert_eq!(agent.cancels.load(Ordering::Relaxed), 0);
}

/// The caller gets the task as it is, with its id. The other replica continues it.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_waits_for_its_task_gets_it_when_the_replica_shuts_down() {
    let Some(pair) = Pair::start("waits").await else {
        return;
    };
    let Pair { mut one, other, .. } = pair;
    let http = Client::builder().no_proxy().build().unwrap();
    let post = |door: &str, body: &Value| {
        let request = http.post(format!("{door}/a2a/agents/weather"));
        request.json(body).header("x-a2a-timeout", "150000")
    };
    let sent = post(&one.door, &message("message/send", "fall silent")).send();
    let caller = tokio::spawn(async move { sent.await.unwrap().json::<Value>().await.unwrap() });
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tasks/list", "params": {} });
    within("the task has begun", async {
        loop {
            let listed = post(&other.door, &list).send().await.unwrap();
            let listed: Value = listed.json().await.unwrap();
            if listed["result"]["tasks"][0]["status"]["state"] == "working" {
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    one.terminate();
    let answer = within("the caller has an answer", caller).await.unwrap();
    let task = &answer["result"];
    assert_eq!(task["status"]["state"], "working", "{answer}");
    assert!(task["id"].is_string(), "{answer}");
    assert!(one.process.wait().await.unwrap().success());
}

/// The text of the status with which a task fails. Its bridge is killed once the task has the state `before`.
async fn failure_of_an_orphan(
    pair: Pair,
    (text, before): (&str, &str),
    timeout: Option<&str>,
) -> String {
    let Pair {
        mut one,
        other,
        agent,
        ..
    } = pair;
    let http = Client::builder().no_proxy().build().unwrap();
    let ask = async |door: &str, method: &str, params: &Value| -> Value {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let mut request = http.post(format!("{door}/a2a/agents/weather")).json(&body);
        if let Some(timeout) = timeout {
            request = request.header("x-a2a-timeout", timeout);
        }
        request.send().await.unwrap().json().await.unwrap()
    };
    let task = ask(&one.door, "message/send", &unblocked(text)).await;
    agent.until_asked(1).await;
    let id = json!({ "id": task["result"]["id"] });
    let status_once = async |state: &str| loop {
        let task = ask(&other.door, "tasks/get", &id).await;
        let status = &task["result"]["status"];
        if status["state"] == state {
            return status.clone();
        }
        sleep(Duration::from_millis(100)).await;
    };
    within("the task has its state", status_once(before)).await;
    one.process.kill().await.unwrap();
    let status = within("the task ends", status_once("failed")).await;
    let why = &status["message"]["parts"][0]["text"];
    why.as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_whose_replica_was_killed_fails_at_its_deadline() {
    let Some(pair) = Pair::start("overdue").await else {
        return;
    };
    let why = failure_of_an_orphan(pair, ("never", "submitted"), Some("30000")).await;
    assert!(
        why.starts_with("no answer by the deadline of the call"),
        "{why}"
    );
}

/// The agent has sent a part, so the call could last for `calls.stream_timeout`.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_whose_replica_was_killed_fails_once_its_agent_is_silent() {
    let short = |config: String| {
        let short = config.replace("max_timeout: 160s", "timeout: 20s");
        assert_ne!(short, config);
        short
    };
    let Some(pair) = Pair::start_with("orphan", short).await else {
        return;
    };
    let why = failure_of_an_orphan(pair, ("fall silent", "working"), None).await;
    assert!(
        why.starts_with("no answer by the deadline of the call"),
        "{why}"
    );
}

/// After the death of a replica, another one waits for an answer while the agent sends parts. A silent agent's answer
/// is lost after `calls.timeout`, not only after `calls.stream_timeout`.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_whose_replica_was_killed_is_lost_once_its_agent_is_silent() {
    let short = |config: String| config.replace("max_timeout: 160s", "timeout: 20s");
    let Some(pair) = Pair::start_with("silent", short).await else {
        return;
    };
    let Pair {
        mut one,
        other,
        agent,
        ..
    } = pair;
    let http = Client::builder().no_proxy().build().unwrap();
    let post = |door: &str, path: &str, (key, body): (&str, &Value)| {
        let request = http.post(format!("{door}{path}")).json(body);
        let request = request.header("accept", "application/json, text/event-stream");
        request.header("idempotency-key", key).send()
    };
    let silent = ("silent", &message("message/send", "never"));
    let drip = ("drip", &message("message/stream", "drip"));
    let (agents, rpc) = ("/a2a/agents/weather", "/rpc/weather");
    let sent = (
        tokio::spawn(post(&one.door, agents, silent)),
        tokio::spawn(post(&one.door, rpc, drip)),
    );
    within("the requests are with the agent", async {
        while agent.count() < 2 || agent.drops.load(Ordering::Relaxed) < 2 {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    one.process.kill().await.unwrap();
    drop(sent);
    let mut lost = false;
    within("the silent answer is lost", async {
        // Without the parts, the other answer would be lost by now as well.
        while !lost || agent.drops.load(Ordering::Relaxed) < 60 {
            let answer = post(&other.door, agents, silent).await.unwrap();
            lost = answer.status() == 504;
            assert!(lost || answer.status() == 409, "{answer:?}");
            let answer = post(&other.door, rpc, drip).await.unwrap();
            assert_eq!(answer.status(), 409);
        }
    })
    .await;
    agent.is_let.send_replace(true);
    within("the slow answer is whole", async {
        loop {
            let answer = post(&other.door, rpc, drip).await.unwrap();
            if is_stream(&answer.text().await.unwrap()) {
                return;
            }
        }
    })
    .await;
    assert_eq!(agent.count(), 2, "the agent ran twice");
}

/// The answer of the agent reaches a caller with a key although the log of keys stops answering meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_cannot_be_stored_reaches_its_caller() {
    let (Some(_), Some(nats)) = (named(Kind::Kafka), named(Kind::Nats)) else {
        return;
    };
    let Some(broker) = Private::start_new(Kind::Kafka).await else {
        return;
    };
    let (topic, agent, _tasks) = Agent::on_nats(&nats, "unstored").await;
    let log = broker.address();
    let bridge = Running::start(&format!(
        "
transports:
  kafka: {{ type: kafka, brokers: ['{log}'], message_timeout: 15m }}
  nats: {{ type: nats, servers: ['{nats}'] }}
agents: {{ weather: {{ description: The weather., to: {{ transport: nats, topic: {topic} }} }} }}
calls: {{ reply_topic: {topic}.replies }}
state: {{ log: kafka, create: true }}"
    ))
    .await;
    let http = Client::builder().no_proxy().build().unwrap();
    let call = |method: &str, text: &str| {
        let params =
            json!({ "text": text, "message": { "messageId": "m", "role": "user", "parts": [] } });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let request = http
            .post(format!("{}/rpc/weather", bridge.door))
            .header("accept", "application/json, text/event-stream")
            .header("idempotency-key", text)
            .json(&body);
        async move { request.send().await.unwrap().text().await.unwrap() }
    };
    let calls = [call("echo", "call"), call("message/stream", "stream")];
    let called = tokio::spawn(futures_util::future::join_all(calls));
    agent.until_asked(2).await;
    broker.freeze().await;
    agent.is_let.send_replace(true);
    let answers = within("the callers have their answers", called).await;
    let answers = answers.unwrap();
    assert!(answers[0].contains(r#""echo":"call""#), "{answers:?}");
    assert!(is_stream(&answers[1]), "{answers:?}");
}

/// A task that cannot be stored while its agent answers is stored after the outage, with the answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_complete_after_an_outage_of_its_log() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let Some(log) = Private::start_new(Kind::Nats).await else {
        return;
    };
    let (topic, agent, _tasks) = Agent::on_nats(&nats, "delayed").await;
    agent.is_let.send_replace(true);
    let servers = log.address();
    let bridge = Running::start(&format!(
        "
transports:
  state: {{ type: nats, servers: ['nats://{servers}'] }}
  nats: {{ type: nats, servers: ['{nats}'] }}
agents: {{ weather: {{ description: The weather., to: {{ transport: nats, topic: {topic} }} }} }}
calls: {{ reply_topic: {topic}.replies }}
state: {{ log: state, create: true }}"
    ))
    .await;
    log.freeze().await;
    let path = "/a2a/agents/weather";
    let parts = json!([{ "kind": "text", "text": "t" }]);
    let message = json!({ "kind": "message", "role": "user", "messageId": "m", "parts": parts });
    let params = json!({ "message": message });
    let body = |method: &str, params: &Value| {
        json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string()
    };
    let refused = bridge.post_within(path, body("message/stream", &params), Some(10_000));
    let refused = within("the caller has an answer", refused).await.body;
    let data = refused.trim().trim_start_matches("data:");
    let data: Value = serde_json::from_str(data).unwrap_or_else(|_| panic!("{refused}"));
    let task = &data["error"]["data"]["taskId"];
    assert!(task.is_string(), "{refused}");
    // By now one attempt to store the task has failed.
    within("the log is seen to be silent", async {
        while bridge.report().ready {
            sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    log.thaw().await;
    within("the task is complete", async {
        loop {
            let get = body("tasks/get", &json!({ "id": task }));
            let found = bridge.post(path, get).await.body;
            if found.contains(r#""state":"completed""#) {
                break;
            }
            assert!(!found.contains(r#""state":"failed""#), "{found}");
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    bridge.stop().await;
}

/// How many messages a transport has confirmed to a bridge.
fn confirmed(bridge: &Running, transport: &str) -> u64 {
    let metrics = bridge.metrics.render().unwrap();
    let count = format!(r#"a2abus_publish_seconds_count{{transport="{transport}"}} "#);
    let mut lines = metrics.lines();
    lines
        .find_map(|line| line.strip_prefix(&count)?.parse().ok())
        .unwrap_or_default()
}

/// Waits until the agent has so many requests, and the bridge knows it.
async fn all_sent((bridge, transport): (&Running, &str), agent: &Agent, count: usize, before: u64) {
    within("the agent has the requests", async {
        while agent.count() < count || confirmed(bridge, transport) < before + count as u64 {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// A message for the agent, as a JSON-RPC request.
fn message(method: &str, text: &str) -> Value {
    let parts = json!([{ "kind": "text", "text": text }]);
    let message = json!({ "kind": "message", "role": "user", "messageId": text, "parts": parts });
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": { "message": message } })
}

/// Other replicas follow the answer to a call with a key, so an outage of its bus does not end it.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_with_a_key_outlives_an_outage_of_its_bus() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let Some(server) = Private::start_new(Kind::Nats).await else {
        return;
    };
    let nats = format!("nats://{}", server.address());
    let (topic, agent, _tasks) = Agent::on_nats(&nats, "outage").await;
    let bridge = Running::start(&state_on_kafka(&kafka, &nats, &topic)).await;
    let http = Client::builder().no_proxy().build().unwrap();
    let call = |key: Option<&str>, method: &str| {
        let params = json!({ "text": key.unwrap_or("keyless") });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let request = http.post(format!("{}/rpc/weather", bridge.door));
        let request = match key {
            Some(key) => request.header("idempotency-key", key),
            None => request,
        };
        tokio::spawn(async move {
            request
                .header("accept", "application/json, text/event-stream")
                .json(&body)
                .send()
                .await
                .unwrap()
                .text()
                .await
                .unwrap()
        })
    };
    let before = confirmed(&bridge, "nats");
    let (keyed, keyless) = (call(Some("keyed"), "echo"), call(None, "echo"));
    // Parts of it may be lost, so nobody could number the later ones.
    let stream = call(Some("stream"), "message/stream");
    all_sent((&bridge, "nats"), &agent, 3, before).await;
    server.kill().await;
    for failed in [keyless, stream] {
        let failed = within("the call fails", failed).await.unwrap();
        assert!(failed.contains(r#""reason":"answer_lost""#), "{failed}");
    }
    server.start().await;
    within("the bridge and the agent are connected", async {
        while !bridge.report().ready || *agent.bus.health().borrow() != Health::Up {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    agent.is_let.send_replace(true);
    let keyed = within("the call with a key is answered", keyed).await;
    let keyed = keyed.unwrap();
    assert!(keyed.contains(r#""echo":"keyed""#), "{keyed}");
    bridge.stop().await;
}

/// A replica that has lost the bus of the agent gets the answers that another one receives.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_another_replica_receives_reaches_its_caller() {
    let (Some(kafka), Some(nats)) = (named(Kind::Kafka), named(Kind::Nats)) else {
        return;
    };
    let (topic, agent, _tasks) = Agent::on_nats(&nats, "passed").await;
    let (proxy, one, other) = one_behind_a_proxy(&kafka, &nats, &topic).await;
    let http = Client::builder().no_proxy().build().unwrap();
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "echo", "params": { "text": "call" } });
    let before = confirmed(&one, "nats");
    let request = http.post(format!("{}/rpc/weather", one.door)).json(&call);
    let request = request.header("idempotency-key", "key");
    let called = tokio::spawn(async move { request.send().await.unwrap().text().await.unwrap() });
    all_sent((&one, "nats"), &agent, 1, before).await;
    cut_off(&one, &proxy).await;
    agent.is_let.send_replace(true);
    let answer = within("the answer", called).await.unwrap();
    assert!(answer.contains(r#""echo":"call""#), "{answer}");
    one.stop().await;
    other.stop().await;
}

/// An agent that answers on a topic with `role: responses`: every replica reads it whole, and takes the parts of its own
/// calls in order.
#[tokio::test(flavor = "multi_thread")]
async fn parts_on_a_topic_for_answers_reach_their_callers_in_order() {
    const PARTS: usize = 20;
    let Some(address) = named(Kind::Nats) else {
        return;
    };
    let topic = unique("whole");
    let nats = Nats::connect(NatsConfig::new([address.as_str()]));
    let bus = AnyTransport::from(nats.await.unwrap());
    let config = format!(
        "
transports: {{ nats: {{ type: nats, servers: ['{address}'] }} }}
bindings: [{{ name: answers, transport: nats, topics: [{topic}.answers], role: responses, group: {topic}, dead_letter: {{ topic: {topic}.dead }} }}]
default_route: [{{ transport: nats, topic: {topic} }}]
calls: {{ reply_topic: {topic}.replies }}"
    );
    let (one, other) = (Running::start(&config).await, Running::start(&config).await);
    let mut requests = bus.subscribe(group(&topic)).await.unwrap();
    let answers = Address::topic(Topic::new(format!("{topic}.answers")).unwrap());
    let http = Client::builder().no_proxy().build().unwrap();
    for (call, bridge) in [&one, &other].into_iter().cycle().take(10).enumerate() {
        let text = format!("call {call}");
        let request = http.post(format!("{}/rpc/weather", bridge.door));
        let request = request.json(&message("message/stream", &text));
        let sent = request.header("accept", "text/event-stream").send();
        let stream = tokio::spawn(async move { sent.await.unwrap().text().await.unwrap() });
        let delivery = within("the request", requests.recv()).await.unwrap();
        let body = delivery.message.body.as_ref().unwrap();
        let id = serde_json::from_slice::<Value>(body).unwrap()["id"].clone();
        delivery.acknowledger.settle(Outcome::Settled).unwrap();
        let parts = (0..PARTS).map(|part| artifact(&text, &format!("part {part}."), part > 0));
        for result in parts.chain([completed()]) {
            let body = json!({ "jsonrpc": "2.0", "id": id, "result": result });
            let sent = bus.send(&answers, Message::plain(body.to_string())).await;
            sent.unwrap().await.unwrap();
        }
        let stream = within("the stream ends", stream).await.unwrap();
        let places: Vec<Option<usize>> = (0..PARTS)
            .map(|part| stream.find(&format!("part {part}.")))
            .collect();
        let are_complete = places.iter().all(Option::is_some);
        assert!(are_complete && places.is_sorted(), "{stream}");
        // The copies that the other replica forwards are ignored.
        let is_once = |part| stream.matches(&format!("part {part}.")).count() == 1;
        assert!((0..PARTS).all(is_once), "{stream}");
    }
    one.stop().await;
    other.stop().await;
}

/// The configuration of one process does not have the topic on which the agent answers.
#[tokio::test(flavor = "multi_thread")]
async fn answers_reach_a_process_that_does_not_read_their_topic() {
    let Some(address) = named(Kind::Nats) else {
        return;
    };
    let topic = unique("unread");
    let nats = Nats::connect(NatsConfig::new([address.as_str()]));
    let bus = AnyTransport::from(nats.await.unwrap());
    let without = format!(
        "
transports: {{ nats: {{ type: nats, servers: ['{address}'] }} }}
default_route: [{{ transport: nats, topic: {topic} }}]
calls: {{ reply_topic: {topic}.replies }}"
    );
    let with = format!(
        "{without}
bindings: [{{ name: answers, transport: nats, topics: [{topic}.answers], role: responses, group: {topic}, dead_letter: {{ topic: {topic}.dead }} }}]"
    );
    let (one, other) = (Running::start(&with).await, Running::start(&without).await);
    let mut requests = bus.subscribe(group(&topic)).await.unwrap();
    let answers = Address::topic(Topic::new(format!("{topic}.answers")).unwrap());
    let http = Client::builder().no_proxy().build().unwrap();
    for bridge in [&other, &one] {
        let request = http.post(format!("{}/rpc/weather", bridge.door));
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "echo", "params": {} });
        let sent = request.json(&call).send();
        let called = tokio::spawn(async move { sent.await.unwrap().text().await.unwrap() });
        let delivery = within("the request", requests.recv()).await.unwrap();
        let body = delivery.message.body.as_ref().unwrap();
        let id = serde_json::from_slice::<Value>(body).unwrap()["id"].clone();
        delivery.acknowledger.settle(Outcome::Settled).unwrap();
        let body = json!({ "jsonrpc": "2.0", "id": id, "result": "the answer" });
        let sent = bus.send(&answers, Message::plain(body.to_string())).await;
        sent.unwrap().await.unwrap();
        let answer = within("the answer", called).await.unwrap();
        assert!(answer.contains("the answer"), "{answer}");
    }
    one.stop().await;
    other.stop().await;
}

/// Two replicas that share their state on Kafka, for an agent on NATS. The first one reaches it through the proxy.
async fn one_behind_a_proxy(kafka: &str, nats: &str, topic: &str) -> (Proxy, Running, Running) {
    let proxy = Proxy::start(nats.trim_start_matches("nats://")).await;
    let behind = format!("nats://{}", proxy.address());
    let one = Running::start(&state_on_kafka(kafka, &behind, topic)).await;
    let other = Running::start(&state_on_kafka(kafka, nats, topic)).await;
    (proxy, one, other)
}

/// A bridge with its state on Kafka, for an agent on NATS. However slow NATS is, each request to the agent is
/// confirmed.
fn state_on_kafka(kafka: &str, nats: &str, topic: &str) -> String {
    format!(
        "
transports:
  kafka: {{ type: kafka, brokers: ['{kafka}'] }}
  nats: {{ type: nats, servers: ['{nats}'], ack_timeout: 2m }}
agents: {{ weather: {{ description: The weather., to: {{ transport: nats, topic: {topic} }} }} }}
calls: {{ reply_topic: {topic}.replies, timeout: 240s, max_timeout: 240s }}
state: {{ log: kafka, create: true, prefix: {topic} }}"
    )
}

/// Cuts a replica off from its bus.
async fn cut_off(replica: &Running, proxy: &Proxy) {
    proxy.cut();
    within("the replica has noticed", async {
        while replica.report().ready {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// A task goes on although the replica that made its call has lost the bus of the agent, and so does a message with a
/// key.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_goes_on_at_another_replica_if_its_own_has_lost_the_bus() {
    let (Some(kafka), Some(nats)) = (named(Kind::Kafka), named(Kind::Nats)) else {
        return;
    };
    let (topic, agent, _tasks) = Agent::on_nats(&nats, "task-outage").await;
    let (proxy, one, other) = one_behind_a_proxy(&kafka, &nats, &topic).await;
    let http = Client::builder().no_proxy().build().unwrap();
    let post = |method: &str, text: &str| {
        let request = http.post(format!("{}/a2a/agents/weather", one.door));
        let request = request.json(&message(method, text));
        let request = request.header("accept", "application/json, text/event-stream");
        let sent = request.header("idempotency-key", text).send();
        tokio::spawn(async move { sent.await.unwrap().text().await.unwrap() })
    };
    let before = confirmed(&one, "nats");
    let (stream, sent) = (
        post("message/stream", "stream"),
        post("message/send", "send"),
    );
    all_sent((&one, "nats"), &agent, 2, before).await;
    cut_off(&one, &proxy).await;
    agent.is_let.send_replace(true);
    let stream = within("the stream ends", stream).await.unwrap();
    assert!(is_stream(&stream), "{stream}");
    for piece in ["stream first", "stream second"] {
        assert_eq!(stream.matches(piece).count(), 1, "{stream}");
    }
    let sent = within("the message has an answer", sent).await.unwrap();
    assert!(sent.contains(r#"{"echo":"send"}"#), "{sent}");
    assert_eq!(agent.count(), 2, "the agent ran twice");
    assert_eq!(agent.cancels.load(Ordering::Relaxed), 0);
    one.stop().await;
    other.stop().await;
}

/// Kafka stores the answers, so the calls on it wait for them during an outage.
#[tokio::test(flavor = "multi_thread")]
async fn calls_and_tasks_outlive_an_outage_of_kafka() {
    let Some(broker) = Private::start_new(Kind::Kafka).await else {
        return;
    };
    let (address, topic) = (broker.address(), unique("outage"));
    Plain::new(&address).create(&topic, 1).await;
    let kafka = Kafka::connect(KafkaConfig::new([address.as_str()])).unwrap();
    let (agent, _tasks) = Agent::start(kafka.into(), &topic).await;
    let bridge = Running::start(&format!(
        "
transports: {{ kafka: {{ type: kafka, brokers: ['{address}'] }} }}
agents: {{ weather: {{ description: The weather., to: {{ transport: kafka, topic: {topic} }} }} }}
calls: {{ reply_topic: {topic}.replies, timeout: 240s, max_timeout: 240s }}"
    ))
    .await;
    let http = Client::builder().no_proxy().build().unwrap();
    let post = |path: &str, body: &Value| {
        let request = http.post(format!("{}{path}", bridge.door)).json(body);
        let sent = request
            .header("accept", "application/json, text/event-stream")
            .send();
        tokio::spawn(async move { sent.await.unwrap().text().await.unwrap() })
    };
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "echo", "params": { "text": "call" } });
    let before = confirmed(&bridge, "kafka");
    let called = post("/rpc/weather", &call);
    let streams = ["/rpc/weather", "/a2a/agents/weather"]
        .map(|path| post(path, &message("message/stream", path)));
    all_sent((&bridge, "kafka"), &agent, 3, before).await;
    broker.kill().await;
    within("the outage is noticed", async {
        while bridge.report().ready {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    broker.start().await;
    agent.is_let.send_replace(true);
    let called = within("the call is answered", called).await.unwrap();
    assert!(called.contains(r#""echo":"call""#), "{called}");
    for stream in streams {
        let stream = within("the stream ends", stream).await.unwrap();
        assert!(is_stream(&stream), "{stream}");
    }
    bridge.stop().await;
}

/// The answer to a request to the agent by A2A.
async fn post(http: &Client, door: &str, method: &str, params: Value) -> Value {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let sent = http.post(format!("{door}/a2a/agents/weather")).json(&body);
    sent.send().await.unwrap().json().await.unwrap()
}

/// A message that the agent refuses leaves its task waiting, also once the other replica has seen the refusal.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_still_waits_after_its_agent_has_refused_a_message() {
    let Some(pair) = Pair::start("refused").await else {
        return;
    };
    let Pair { one, other, .. } = pair;
    let http = Client::builder().no_proxy().build().unwrap();
    let post = async |door: &str, method: &str, params| post(&http, door, method, params).await;
    let message = |text: &str, task: &Value| {
        let parts = json!([{ "kind": "text", "text": text }]);
        json!({ "message": { "kind": "message", "role": "user", "messageId": text, "parts": parts, "taskId": task } })
    };
    let asked = post(&one.door, "message/send", message("ask", &json!(null))).await;
    let task = &asked["result"]["id"];
    let refused = post(&one.door, "message/send", message("refuse", task)).await;
    let state = |answer: &Value| answer["result"]["status"]["state"].clone();
    assert_eq!(state(&refused), "input-required", "{refused}");
    // The other replica takes over calls whose answer is not recorded after three seconds.
    let start = Instant::now();
    within("the other replica shows the task later", async {
        loop {
            let is_later = start.elapsed() >= Duration::from_secs(6);
            let found = post(&other.door, "tasks/get", json!({ "id": task })).await;
            // If its log is slow, it cannot show the task.
            if found["error"].is_null() {
                assert_eq!(state(&found), "input-required", "{found}");
                if is_later {
                    break;
                }
            }
            sleep(Duration::from_millis(200)).await;
        }
    })
    .await;
}

/// The agent refuses a message, or sends an answer that cannot be used, after the replica of the message has shut down.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_still_waits_after_another_replica_has_received_the_refusal() {
    let Some(pair) = Pair::start("refused-later").await else {
        return;
    };
    let Pair {
        mut one,
        other,
        agent,
        ..
    } = pair;
    let http = Client::builder().no_proxy().build().unwrap();
    let post = async |door: &str, method: &str, params| post(&http, door, method, params).await;
    let message = |text: &str, task: &Value, is_blocking: bool| {
        let parts = json!([{ "kind": "text", "text": text }]);
        let message = json!({ "kind": "message", "role": "user", "messageId": text, "parts": parts, "taskId": task });
        json!({ "message": message, "configuration": { "blocking": is_blocking } })
    };
    let mut tasks = Vec::new();
    for (text, why) in [
        ("refuse later", "no city"),
        ("garble later", "cannot be used"),
    ] {
        let asks = message("ask", &Value::Null, true);
        let asked = post(&one.door, "message/send", asks).await;
        let task = asked["result"]["id"].clone();
        let sent = post(&one.door, "message/send", message(text, &task, false)).await;
        assert_eq!(sent["result"]["status"]["state"], "working", "{sent}");
        tasks.push((task, why));
    }
    agent.until_asked(4).await;
    one.terminate();
    assert!(one.process.wait().await.unwrap().success());
    agent.is_let.send_replace(true);
    for (task, why) in tasks {
        let status = within("the message is over", async {
            loop {
                let found = post(&other.door, "tasks/get", json!({ "id": task })).await;
                let status = &found["result"]["status"];
                if status.to_string().contains(why) {
                    return status.clone();
                }
                sleep(Duration::from_millis(200)).await;
            }
        });
        let status = status.await;
        assert_eq!(status["state"], "input-required", "{status}");
    }
}

/// The task of a request that was answered with the task, and stored for its key, is continued by another replica.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_of_an_answered_key_continues_after_its_replica_was_killed() {
    let Some(pair) = Pair::start("keyed-task").await else {
        return;
    };
    let Pair {
        mut one,
        other,
        agent,
        ..
    } = pair;
    let http = Client::builder().no_proxy().build().unwrap();
    let path = "/a2a/agents/weather";
    let params = unblocked("t");
    let send = json!({ "jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params });
    let send = http.post(format!("{}{path}", one.door)).json(&send);
    let sent = send.header("idempotency-key", "key").send().await.unwrap();
    let sent: Value = sent.json().await.unwrap();
    let task = &sent["result"]["id"];
    assert!(task.is_string(), "{sent}");
    agent.until_asked(1).await;
    one.process.kill().await.unwrap();
    agent.is_let.send_replace(true);
    let get = json!({ "jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": { "id": task } });
    within("the task is complete", async {
        loop {
            let get = http.post(format!("{}{path}", other.door)).json(&get);
            let found = get.send().await.unwrap().text().await.unwrap();
            if found.contains(r#""state":"completed""#) {
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    assert_eq!(agent.count(), 1, "the agent ran twice");
}
