//! Attached agents on real buses: a program called by producers that know nothing of a bridge, and a request that comes
//! again after its bridge has died.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use futures_util::StreamExt as _;
use rdkafka::consumer::StreamConsumer;
use serde_json::{Value, json};
use support::battery::within;
use support::running::Running;
use support::server::{Kind, named};
use tempfile::TempDir;
use tokio::process::Command;

use crate::plain::{Plain, nats_client, next, unique};

const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/support/mcp_server.py");

pub(crate) fn agent(directory: &Path, to: &str, more: &str) -> String {
    let effects = directory.join("effects");
    format!(
        "
agents:
  fixture:
    description: Misbehaves.
    to: {to}
    attach: {{ command: [python3, {SERVER}], env: {{ EFFECTS: {effects:?} }}, {more} }}"
    )
}

/// The configuration of a bridge that attaches the program on Kafka. Creates the topics for that.
async fn on_kafka(
    plain: &Plain,
    (kafka, name): (&str, &str),
    directory: &Path,
    timeout: &str,
) -> String {
    for topic in ["fixture", "answers", "dlq"] {
        plain.create(&format!("{name}.{topic}"), 1).await;
    }
    let to = format!("{{ transport: bus, topic: {name}.fixture }}");
    let more = format!("reply_topics: ['{name}.answers'], dead_letter: {name}.dlq");
    format!(
        "
instance: test
transports: {{ bus: {{ type: kafka, brokers: ['{kafka}'] }} }}
calls: {{ timeout: {timeout}, reply_topic: {name}.replies, reply_partitions: 1 }}{}",
        agent(directory, &to, &more)
    )
}

fn call(tool: &str) -> String {
    let params = json!({ "name": tool, "arguments": {} });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string()
}

pub(crate) fn effects(directory: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(directory.join("effects")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Waits until the program has begun.
async fn until_begun(directory: &Path) {
    within("the effect", async {
        while effects(directory).is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_nats_client_calls_an_attached_program() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let (name, directory) = (unique("attached"), TempDir::new().unwrap());
    let to = format!("{{ transport: bus, topic: {name}.fixture }}");
    let bridge = Running::start(&format!(
        "
instance: test
transports: {{ bus: {{ type: nats, servers: ['{nats}'] }} }}
calls: {{ timeout: 1m, reply_topic: {name}.replies }}{}",
        agent(directory.path(), &to, "concurrency: 2")
    ))
    .await;
    let client = nats_client(&nats).await;
    let subject = format!("{name}.fixture");
    for tool in ["echo", "effect", "progress"] {
        let mut request: Value = serde_json::from_str(&call(tool)).unwrap();
        request["params"]["_meta"] = json!({ "progressToken": 7 });
        let pending_answer = client.request(subject.clone(), request.to_string().into());
        let answer = within("the answer", pending_answer).await.unwrap();
        let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
        // Who asks for progress gets it first.
        let is_it = if tool == "progress" {
            answer["params"]["progressToken"] == 7
        } else {
            answer["id"] == 1 && answer["result"].is_object()
        };
        assert!(is_it, "{tool}: {answer}");
    }
    let answer = bridge.post("/rpc/fixture", call("echo")).await;
    assert!(answer.body.contains("result"), "{}", answer.body);
    assert_eq!(effects(directory.path()), ["effect"]);
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_kafka_producer_calls_an_attached_program() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let (plain, name, directory) = (
        Plain::new(&kafka),
        unique("attached"),
        TempDir::new().unwrap(),
    );
    let config = on_kafka(&plain, (&kafka, &name), directory.path(), "1m").await;
    let bridge = Running::start(&config).await;
    let (topic, place) = (format!("{name}.fixture"), format!("{name}.answers"));
    let answers = plain.read(&place, 1);
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = [
        ("kafka_replyTopic", Some(place.as_str())),
        ("kafka_correlationId", Some("c-1")),
        ("traceparent", Some(trace)),
    ];
    for tool in ["effect", "tides"] {
        plain.publish_with(&topic, &headers, &call(tool)).await;
        let answer = within("the answer", next(&answers)).await;
        assert_eq!(answer.headers["kafka_correlationId"], b"c-1");
        assert_eq!(answer.headers["traceparent"], trace.as_bytes());
        let answer: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(answer["id"], 1, "{answer}");
        assert_eq!(answer["result"].is_object(), tool == "effect", "{answer}");
    }
    // A call of a bridge comes back at its own reply address.
    let answer = bridge.post("/rpc/fixture", call("effect")).await;
    assert!(answer.body.contains("done"), "{}", answer.body);
    assert_eq!(effects(directory.path()), ["effect", "effect"]);
    bridge.stop().await;
}

/// An attached program on Kafka, whose requests are recorded on the bus.
struct Recorded {
    plain: Plain,
    directory: TempDir,
    config: String,
    /// The topic of its requests, and the group that reads them.
    topic: String,
    group: String,
    /// The topic of its answers.
    place: String,
    answers: StreamConsumer,
}

impl Recorded {
    async fn open(timeout: &str) -> Option<Self> {
        let kafka = named(Kind::Kafka)?;
        let (plain, name) = (Plain::new(&kafka), unique("attached"));
        let directory = TempDir::new().unwrap();
        let config = on_kafka(&plain, (&kafka, &name), directory.path(), timeout).await;
        let config = format!("{config}\nstate: {{ log: bus, create: true, prefix: {name}.state }}");
        let place = format!("{name}.answers");
        Some(Self {
            answers: plain.read(&place, 1),
            plain,
            directory,
            // Its name is the group, which belongs to this test alone.
            config: config.replace("  fixture:", &format!("  {name}:")),
            topic: format!("{name}.fixture"),
            group: format!("agent-{name}"),
            place,
        })
    }

    /// The configuration of another bridge.
    fn of_another(&self) -> String {
        self.config.replace("instance: test", "instance: another")
    }

    /// The configuration of another bridge, with a program that does not start.
    fn broken(&self) -> String {
        let config = self.of_another();
        let broken = config.replace("[python3, ", "[/nonexistent/program, ");
        assert_ne!(broken, config);
        broken
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_bridge_died_is_not_repeated() {
    a_call_is_lost_with_its_bridge(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_bridge_died_is_lost_although_its_server_does_not_start() {
    a_call_is_lost_with_its_bridge(false).await;
}

async fn a_call_is_lost_with_its_bridge(starts: bool) {
    let Some(world) = Recorded::open("1h, stream_timeout: 1h, max_timeout: 1h").await else {
        return;
    };
    let (plain, directory, config) = (&world.plain, &world.directory, &world.config);
    let (topic, answers) = (&world.topic, &world.answers);
    let headers = [("kafka_replyTopic", Some(world.place.as_str()))];
    let first = config.clone();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let running = runtime.spawn(async move { Running::start(&first).await });
    let bridge = running.await.unwrap();
    plain.publish_with(topic, &headers, &call("hang")).await;
    until_begun(directory.path()).await;
    // All of its tasks end where they are; nothing is settled or answered.
    runtime.shutdown_background();
    drop(bridge);
    let again = match starts {
        true => world.of_another(),
        false => world.broken(),
    };
    let bridge = Running::start(&again).await;
    // Long before the deadline of the call.
    let answer = within("the answer", next(answers)).await;
    let answer: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(answer["error"]["data"]["reason"], "answer_lost", "{answer}");
    assert_eq!(effects(directory.path()), ["begun"]);
    if !starts {
        return bridge.stop().await;
    }
    // Later requests are served.
    plain.publish_with(topic, &headers, &call("again")).await;
    let answer = within("the answer", next(answers)).await;
    let answer: Value = serde_json::from_slice(&answer.body).unwrap();
    assert!(answer["result"].is_object(), "{answer}");
    assert_eq!(effects(directory.path()), ["begun", "again"]);
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redelivered_request_gets_its_stored_answer_even_without_its_server() {
    stored_answer_to(&call("effect")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redelivered_message_of_a2a_gets_its_stored_answer_even_without_its_server() {
    let part = json!({ "kind": "data", "data": { "tool": "effect" } });
    let message = json!({ "role": "user", "messageId": "m", "parts": [part] });
    let params = json!({ "message": message });
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params });
    stored_answer_to(&request.to_string()).await;
}

/// The request calls the tool `effect`.
async fn stored_answer_to(request: &str) {
    let Some(world) = Recorded::open("1m").await else {
        return;
    };
    let (plain, directory, config) = (&world.plain, &world.directory, &world.config);
    let (topic, answers) = (&world.topic, &world.answers);
    let headers = [("kafka_replyTopic", Some(world.place.as_str()))];
    let bridge = Running::start(config).await;
    plain.publish_with(topic, &headers, request).await;
    let first = within("the answer", next(answers)).await;
    plain.publish_with(topic, &headers, &call("again")).await;
    within("the second answer", next(answers)).await;
    bridge.stop().await;
    assert_eq!(effects(directory.path()), ["effect", "again"]);

    plain.rewind(&world.group, topic);
    let bridge = Running::start(&world.broken()).await;
    let stored = within("the stored answer", async {
        loop {
            let answer = next(answers).await;
            if answer.headers["ce_id"] == first.headers["ce_id"] {
                return answer;
            }
        }
    });
    assert_eq!(stored.await.body, first.body);
    bridge.stop().await;

    // With its server, only the request that may be repeated is executed again.
    plain.rewind(&world.group, topic);
    let bridge = Running::start(&world.of_another()).await;
    within("the request is executed again", async {
        while effects(directory.path()).len() < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert_eq!(effects(directory.path()), ["effect", "again", "again"]);
    bridge.stop().await;
}

/// A server that another process attaches. The configuration of this one does not mention it.
async fn an_attached_agent_announces_itself(
    u: &str,
    transport: &str,
    bus: [&str; 2],
    topics: [&str; 2],
) {
    let [read, announce] = topics.map(|topic| format!("{u}.{topic}"));
    let bridge = Running::start(&format!(
        "
instance: test
transports: {{ bus: {transport} }}
bindings: [{{ name: discovery, transport: bus, topics: ['{read}'], group: {u}, role: discovery, dead_letter: {{ topic: {u}.dlq }} }}]
registry: {{ enabled: true, destinations: [{{ to: {{ transport: bus, topic: '{u}.agents.{{targetagent}}' }} }}] }}
calls: {{ timeout: 1m, reply_topic: {u}.replies }}
"
    ))
    .await;
    let _attached = Command::new(support::server::program())
        .args(["attach", "fixture"])
        .args(bus)
        .args(["--topic", &format!("{u}.agents.fixture")])
        .args(["--reply-topic", &format!("{u}.replies*")])
        .args(["--announce", &announce, "--", "python3", SERVER])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let card = format!("{}/a2a/agents/fixture/card", bridge.door);
    within("the agent is found", async {
        while reqwest::get(&card).await.unwrap().status() != 200 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let card = reqwest::get(&card).await.unwrap().text().await.unwrap();
    let card: Value = serde_json::from_str(&card).unwrap();
    assert_eq!(card["skills"][0]["id"], "echo", "{card}");
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let tools = bridge.post("/mcp", list.to_string()).await;
    assert!(tools.body.contains("fixture.echo"), "{}", tools.body);
    let answer = bridge.post("/mcp/agents/fixture", call("echo")).await;
    assert!(answer.body.contains("\"content\""), "{}", answer.body);
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attached_agent_announces_itself_over_nats() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let transport = format!("{{ type: nats, servers: ['{nats}'] }}");
    let topics = ["discovery.*", "discovery.fixture"];
    an_attached_agent_announces_itself(&unique("herald"), &transport, ["--nats", &nats], topics)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attached_agent_announces_itself_over_kafka() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let transport = format!("{{ type: kafka, brokers: ['{kafka}'] }}");
    let (u, plain) = (unique("herald"), Plain::new(&kafka));
    for topic in ["discovery", "agents.fixture"] {
        plain.create(&format!("{u}.{topic}"), 1).await;
    }
    let topics = ["discovery", "discovery"];
    an_attached_agent_announces_itself(&u, &transport, ["--kafka", &kafka], topics).await;
}

/// The server as an agent at the subject `NAME.fixture`.
fn agent_in(directory: &TempDir, name: &str, options: &str) -> String {
    let to = format!("{{ transport: bus, topic: {name}.fixture }}");
    agent(directory.path(), &to, options)
}

/// Two bridges that attach the same agents and share the state.
async fn two_bridges(nats: &str, name: &str, agents: String) -> [Running; 2] {
    let config = format!(
        "
instance: test
transports: {{ bus: {{ type: nats, servers: ['{nats}'] }} }}
state: {{ log: bus, create: true, prefix: {name}.state }}
calls: {{ timeout: 5m, max_timeout: 5m, reply_topic: {name}.replies }}{agents}"
    );
    [Running::start(&config).await, Running::start(&config).await]
}

/// The server tells one of its clients only.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_list_is_read_by_every_bridge_that_attaches_the_server() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let (name, directory) = (unique("attached"), TempDir::new().unwrap());
    let bridges = two_bridges(&nats, &name, agent_in(&directory, &name, "")).await;
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" }).to_string();
    let answer = bridges[0].post("/mcp/agents/fixture", call("grow")).await;
    assert!(answer.body.contains("done"), "{}", answer.body);
    for bridge in &bridges {
        within("the new tool is listed", async {
            let tools = || bridge.post("/mcp", list.clone());
            while !tools().await.body.contains("fixture.grown") {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
        .await;
    }
    for bridge in bridges {
        bridge.stop().await;
    }
}

/// A client sets it at one of them only.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_level_reaches_every_bridge_that_attaches_the_server() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let (name, directory) = (unique("attached"), TempDir::new().unwrap());
    let bridges = two_bridges(&nats, &name, agent_in(&directory, &name, "")).await;
    let set = json!({ "jsonrpc": "2.0", "id": 1, "method": "logging/setLevel", "params": { "level": "debug" } });
    let answer = bridges[0].post("/rpc/fixture", set.to_string()).await;
    assert!(answer.body.contains("result"), "{}", answer.body);
    within("both programs have the level", async {
        while effects(directory.path()) != ["logs debug", "logs debug"] {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    for bridge in bridges {
        bridge.stop().await;
    }
}

/// Each of the programs knows only its own tasks, and any of them may get a request.
#[tokio::test(flavor = "multi_thread")]
async fn programs_of_bridges_that_share_the_state_offer_no_tasks() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let (name, directory) = (unique("attached"), TempDir::new().unwrap());
    let bridges = two_bridges(&nats, &name, agent_in(&directory, &name, "")).await;
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {} });
    let begin = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
    for path in ["/rpc/fixture", "/mcp/agents/fixture"] {
        let answer = bridges[0].post(path, begin.to_string()).await;
        let profile: Value = serde_json::from_str(&answer.body).unwrap();
        let offered = &profile["result"]["capabilities"];
        assert_eq!(*offered, json!({ "tools": {} }), "{path}: {profile}");
    }
    let mut request: Value = serde_json::from_str(&call("echo")).unwrap();
    request["params"]["task"] = json!({ "ttl": 60_000 });
    for path in ["/rpc/fixture", "/mcp/agents/fixture"] {
        let answer = bridges[0].post(path, request.to_string()).await;
        let answer: Value = serde_json::from_str(&answer.body).unwrap();
        let content = &answer["result"]["content"];
        assert!(content.is_array(), "a task at {path}: {answer}");
    }
    for bridge in bridges {
        bridge.stop().await;
    }
}

/// The headers of an event that names a call: only a call can be asked.
fn event_headers() -> async_nats::HeaderMap {
    let mut headers = async_nats::HeaderMap::new();
    for (name, value) in [
        ("ce-specversion", "1.0"),
        ("ce-id", "e-1"),
        ("ce-source", "/test"),
        ("ce-type", "test"),
        ("ce-callid", "c-1"),
        ("content-type", "application/json"),
    ] {
        headers.insert(name, value);
    }
    headers
}

/// On NATS any of the bridges gets a message about a request, not only the one that has the request.
#[tokio::test(flavor = "multi_thread")]
async fn answers_and_cancels_reach_the_bridge_that_has_the_request() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let (name, directory) = (unique("attached"), TempDir::new().unwrap());
    let agent = agent_in(&directory, &name, "concurrency: 1");
    let bridges = two_bridges(&nats, &name, agent).await;
    let client = nats_client(&nats).await;
    let (subject, inbox) = (format!("{name}.fixture"), client.new_inbox());
    let mut answers = client.subscribe(inbox.clone()).await.unwrap();
    let publish = |message: Value| {
        let body = message.to_string().into();
        let headers = event_headers();
        client.publish_with_reply_and_headers(subject.clone(), inbox.clone(), headers, body)
    };
    // So many that chance alone cannot deliver them all correctly.
    const ROUNDS: usize = 10;
    for _ in 0..ROUNDS {
        publish(serde_json::from_str(&call("ask")).unwrap())
            .await
            .unwrap();
        let question = within("the question", answers.next()).await.unwrap();
        let question: Value = serde_json::from_slice(&question.payload).unwrap();
        assert_eq!(question["method"], "sampling/createMessage", "{question}");
        let result = json!({ "text": "mine" });
        let answer = json!({ "jsonrpc": "2.0", "id": question["id"], "result": result });
        publish(answer).await.unwrap();
        let answer = within("the answer", answers.next()).await.unwrap();
        let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
        assert_eq!(answer["result"]["content"][0]["text"], "mine", "{answer}");
    }
    for round in 0..ROUNDS {
        let mut request: Value = serde_json::from_str(&call("hang")).unwrap();
        // As a bridge names its calls.
        let letter = char::from(b'a' + u8::try_from(round).unwrap());
        let id = format!("{}{letter}a", "b".repeat(24));
        request["id"] = json!(id);
        publish(request).await.unwrap();
        let count = |line: &str| {
            effects(directory.path())
                .iter()
                .filter(|it| *it == line)
                .count()
        };
        within("the call begins", async {
            while count("begun") <= round {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        let params = json!({ "requestId": id });
        publish(json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params }))
            .await
            .unwrap();
        within("the call is cancelled", async {
            while count("cancelled") <= round {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }
    for bridge in bridges {
        bridge.stop().await;
    }
}

/// A bridge on NATS that attaches the program, and a client of it.
struct Served {
    name: String,
    directory: TempDir,
    bridge: Running,
    client: async_nats::Client,
    inbox: String,
    answers: async_nats::Subscriber,
    cards: async_nats::Subscriber,
}

impl Served {
    async fn open(nats: &str) -> Self {
        let (name, directory) = (unique("attached"), TempDir::new().unwrap());
        let client = nats_client(nats).await;
        let inbox = client.new_inbox();
        let answers = client.subscribe(inbox.clone()).await.unwrap();
        let cards = client.subscribe(format!("{name}.cards")).await.unwrap();
        client.flush().await.unwrap();
        let options = format!("concurrency: 1, announce: {name}.cards");
        let agent = agent_in(&directory, &name, &options);
        let bridge = Running::start(&format!(
            "
instance: test
transports: {{ bus: {{ type: nats, servers: ['{nats}'] }} }}
calls: {{ timeout: 5m, max_timeout: 5m, reply_topic: {name}.replies }}{agent}"
        ))
        .await;
        Self {
            name,
            directory,
            bridge,
            client,
            inbox,
            answers,
            cards,
        }
    }

    fn subject(&self) -> String {
        format!("{}.fixture", self.name)
    }

    async fn publish(&self, message: &Value) {
        let (body, headers) = (message.to_string().into(), event_headers());
        let (subject, inbox) = (self.subject(), self.inbox.clone());
        let published = self
            .client
            .publish_with_reply_and_headers(subject, inbox, headers, body);
        published.await.unwrap();
    }

    /// The next answer: its header `ce-failurereason`, if it has one, and its body.
    async fn answer(&mut self) -> (Option<String>, Value) {
        let answer = within("the answer", self.answers.next()).await.unwrap();
        let reason = answer.headers.as_ref();
        let reason = reason.and_then(|headers| headers.get("ce-failurereason"));
        let reason = reason.map(|reason| reason.as_str().to_owned());
        (reason, serde_json::from_slice(&answer.payload).unwrap())
    }

    /// Calls the tool that asks. Returns the id of its question.
    async fn question(&mut self) -> Value {
        self.publish(&serde_json::from_str(&call("ask")).unwrap())
            .await;
        let (_, question) = self.answer().await;
        assert_eq!(question["method"], "sampling/createMessage", "{question}");
        question["id"].clone()
    }

    async fn until_announced(&mut self, lease: &str) {
        let lease = format!("\"lease\":\"{lease}\"");
        within("the announcement", async {
            loop {
                let card = self.cards.next().await.unwrap();
                if std::str::from_utf8(&card.payload).unwrap().contains(&lease) {
                    return;
                }
            }
        })
        .await;
    }
}

/// Core NATS gives each message to one process of the queue group, and never again.
#[tokio::test(flavor = "multi_thread")]
async fn a_bridge_that_stops_takes_answers_and_cancels_and_leaves_new_requests_to_others() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let mut served = Served::open(&nats).await;
    served.until_announced("90s").await;
    let question = served.question().await;
    // It waits for its turn.
    let mut waiting: Value = serde_json::from_str(&call("hang")).unwrap();
    waiting["id"] = json!(2);
    served.publish(&waiting).await;
    served.bridge.begin_to_stop();
    served.until_announced("40s").await;
    let group = "agent-fixture".to_owned();
    let other = served.client.queue_subscribe(served.subject(), group);
    let mut other = other.await.unwrap();
    within("it leaves the queue group", async {
        let nothing = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        // So many that chance alone cannot bring them all to the other member.
        let mut in_a_row = 0;
        while in_a_row < 20 {
            served.publish(&nothing).await;
            let next = tokio::time::timeout(Duration::from_millis(200), other.next());
            in_a_row = next.await.map_or(0, |_| in_a_row + 1);
        }
    })
    .await;
    let mut new: Value = serde_json::from_str(&call("effect")).unwrap();
    new["id"] = json!(3);
    served.publish(&new).await;
    within("the new request", async {
        while other.next().await.unwrap().payload != new.to_string() {}
    })
    .await;
    let params = json!({ "requestId": 2 });
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
    served.publish(&cancel).await;
    let result = json!({ "text": "mine" });
    served
        .publish(&json!({ "jsonrpc": "2.0", "id": question, "result": result }))
        .await;
    let (_, answer) = served.answer().await;
    assert_eq!(answer["result"]["content"][0]["text"], "mine", "{answer}");
    served.bridge.stop().await;
    assert_eq!(effects(served.directory.path()), ["mine"]);
}

/// Nobody else would answer it, and its requester would wait until its own deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_has_not_ended_when_its_bridge_stops_gets_answer_lost() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let mut served = Served::open(&nats).await;
    served.question().await;
    // It waits for its turn.
    let mut waiting: Value = serde_json::from_str(&call("effect")).unwrap();
    waiting["id"] = json!(2);
    served.publish(&waiting).await;
    served.client.flush().await.unwrap();
    served.bridge.begin_to_stop();
    let mut reasons = Vec::new();
    for _ in 0..2 {
        let (reason, answer) = served.answer().await;
        let why = answer["error"]["message"].as_str().unwrap();
        assert!(why.contains("stopped"), "{answer}");
        reasons.push((answer["id"].to_string(), reason.unwrap_or_default()));
    }
    reasons.sort();
    let expected = [("1", "answer_lost"), ("2", "agent_unavailable")];
    let expected = expected.map(|(id, reason)| (id.to_owned(), reason.to_owned()));
    assert_eq!(reasons, expected);
    served.bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_a_partition_that_does_not_exist_goes_to_another_one() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let (plain, name) = (Plain::new(&kafka), unique("attached"));
    let directory = TempDir::new().unwrap();
    let config = on_kafka(&plain, (&kafka, &name), directory.path(), "1m").await;
    let bridge = Running::start(&config).await;
    let (topic, place) = (format!("{name}.fixture"), format!("{name}.answers"));
    let answers = plain.read(&place, 1);
    let headers = [
        ("ce_replyto", Some(place.as_str())),
        ("ce_replypartition", Some("99")),
    ];
    plain.publish_with(&topic, &headers, &call("effect")).await;
    let answer = within("the answer", next(&answers)).await;
    let answer: Value = serde_json::from_slice(&answer.body).unwrap();
    assert!(answer["result"].is_object(), "{answer}");
    bridge.stop().await;
}
