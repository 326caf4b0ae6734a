//! What does a request made on the bus cost beside a hand-written forwarder? The requester publishes it on one bus, an
//! agent answers it on another subject or topic, and the answer returns to the requester's reply address.
//!
//! NATS core to NATS core: by hand, a subscription whose every message becomes `client.request` to the agent in a task
//! of its own. Kafka to NATS core: by hand, a consumer of a group that stores its offset when the answer is confirmed.
//! Neither baseline detects, maps, bounds or reports anything.
//!
//! An attached HTTP server, called over NATS core, beside two ways by hand: the same POST to the server itself, by the
//! client that the bridge has; and a subscription whose every message becomes that POST. The server is an echo in this
//! process, which works for some microseconds; `A2ABUS_BENCH_MCP` names the URL of a real MCP server with a tool
//! `echo`, as `server-everything` is one.
//!
//! The two take turns, so that both meet the same machine. Printed for each: requests per second, the median time, and
//! the CPU time of this process per request (which includes the requester and the agent, the same for both); medians
//! of the rounds. Needs real servers: `tests/run --brokers-only` prints the two variables to set.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use a2abus_executor::ClientOptions;
use async_nats::Client;
use axum::body::Body;
use bench_support::{SMALL_REQUEST, answer_to, cpu_us, median, run_bridge};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{CommitMode, Consumer as _, StreamConsumer};
use rdkafka::message::{Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{Offset, TopicPartitionList};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// A request that takes longer is lost.
const PATIENCE: Duration = Duration::from_secs(30);
/// Rounds of each of the two.
const ROUNDS: usize = 7;

/// One round: how many requests, and how many at once.
#[derive(Clone, Copy)]
struct Load {
    requests: usize,
    in_flight: usize,
}

/// What one round cost.
#[derive(Clone, Copy)]
struct Cost {
    per_second: f64,
    median_us: f64,
    cpu_us: f64,
}

async fn measure(load: Load, request: impl AsyncFn()) -> Cost {
    let (cpu, begun) = (cpu_us(), Instant::now());
    let times = stream::iter(0..load.requests)
        .map(|_| async {
            let start = Instant::now();
            request().await;
            start.elapsed().as_secs_f64() * 1e6
        })
        .buffer_unordered(load.in_flight)
        .collect::<Vec<_>>()
        .await;
    let count = load.requests as f64;
    Cost {
        per_second: count / begun.elapsed().as_secs_f64(),
        median_us: median(times),
        cpu_us: (cpu_us() - cpu) / count,
    }
}

/// Takes turns between the two and prints the medians.
async fn compare(name: &str, load: Load, by_hand: impl AsyncFn(), through: impl AsyncFn()) {
    let (mut hand, mut bridge) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let costs = (measure(load, &by_hand).await, measure(load, &through).await);
        // The first warms up.
        if round > 0 {
            hand.push(costs.0);
            bridge.push(costs.1);
        }
    }
    let of = |costs: &[Cost], field: fn(&Cost) -> f64| median(costs.iter().map(field).collect());
    println!("{name}, {} in flight:", load.in_flight);
    for (who, costs) in [("by hand", &hand), ("through the bridge", &bridge)] {
        println!(
            "  {who:<20} {:>8.0} requests/s  {:>7.0} us median  {:>6.1} us CPU",
            of(costs, |cost| cost.per_second),
            of(costs, |cost| cost.median_us),
            of(costs, |cost| cost.cpu_us)
        );
    }
    println!(
        "  ratio                {:>8.2}             {:>7.2}            {:>6.2}",
        of(&bridge, |cost| cost.per_second) / of(&hand, |cost| cost.per_second),
        of(&bridge, |cost| cost.median_us) / of(&hand, |cost| cost.median_us),
        of(&bridge, |cost| cost.cpu_us) / of(&hand, |cost| cost.cpu_us)
    );
}

/// Answers everything that comes on a subject.
async fn nats_agent(url: &str, subject: &str) {
    let agent = async_nats::connect(url).await.expect("the server answers");
    let mut requests = agent
        .subscribe(subject.to_owned())
        .await
        .expect("subscribed");
    agent.flush().await.expect("flushed");
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let Some(reply) = request.reply else { continue };
            let answer = answer_to(&request.payload).into();
            agent.publish(reply, answer).await.expect("published");
        }
    });
}

/// Forwards requests from one subject to another, and their answers back.
async fn nats_forwarder(url: &str, from: &str, to: &str) {
    let client = async_nats::connect(url).await.expect("the server answers");
    let mut requests = client
        .queue_subscribe(from.to_owned(), "forwarder".into())
        .await
        .expect("subscribed");
    client.flush().await.expect("flushed");
    let to = to.to_owned();
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let (client, to) = (client.clone(), to.clone());
            tokio::spawn(async move {
                let Some(reply) = request.reply else { return };
                let answer = client
                    .request(to, request.payload)
                    .await
                    .expect("an answer");
                client
                    .publish(reply, answer.payload)
                    .await
                    .expect("published");
            });
        }
    });
}

async fn nats(url: &str, scale: usize, stop: &CancellationToken) {
    let unique = std::process::id();
    let subjects = ["agent", "hand", "bridge"].map(|name| format!("exchange.{name}.{unique}"));
    let [agent, hand, through] = &subjects;
    nats_agent(url, agent).await;
    nats_forwarder(url, hand, agent).await;
    let config = format!(
        "transports: {{ nats: {{ type: nats, servers: ['{url}'] }} }}
bindings: [{{ name: requests, transport: nats, topics: [{through}] }}]
routes: [{{ name: r, when: {{ targetagent: weather }}, to: [{{ transport: nats, topic: {agent} }}] }}]
http: {{ enabled: false }}
admin: {{ enabled: false }}"
    );
    run_bridge(&config, stop).await;
    let client = async_nats::connect(url).await.expect("the server answers");
    let request = async |subject: &String| {
        let body = Bytes::from_static(SMALL_REQUEST.as_bytes());
        let answer = client
            .request(subject.clone(), body)
            .await
            .expect("an answer");
        assert!(!answer.payload.is_empty());
    };
    for in_flight in [1, 64] {
        let load = Load {
            requests: scale * if in_flight == 1 { 1 } else { 8 },
            in_flight,
        };
        compare(
            "request from NATS core to NATS core",
            load,
            async || request(hand).await,
            async || request(through).await,
        )
        .await;
    }
}

fn client(brokers: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    config
}

fn producer(brokers: &str) -> FutureProducer {
    let mut config = client(brokers);
    config.set("linger.ms", "0").set("acks", "all");
    config.create().expect("a producer")
}

/// A requester on Kafka, whose replies come to partition 0 of a topic of its own.
struct Requester {
    producer: FutureProducer,
    reply_topic: String,
    waiting:
        Arc<std::sync::Mutex<std::collections::HashMap<u64, tokio::sync::oneshot::Sender<()>>>>,
    next: std::sync::atomic::AtomicU64,
}

// === impl Requester ===

impl Requester {
    fn new(brokers: &str, reply_topic: &str) -> Self {
        let consumer: StreamConsumer = client(brokers)
            .set("group.id", "bench")
            .set("enable.auto.commit", "false")
            .create()
            .expect("a consumer");
        let mut partitions = TopicPartitionList::new();
        partitions
            .add_partition_offset(reply_topic, 0, Offset::Beginning)
            .expect("an offset");
        consumer.assign(&partitions).expect("assigned");
        let requester = Self {
            producer: producer(brokers),
            reply_topic: reply_topic.to_owned(),
            waiting: Arc::default(),
            next: Default::default(),
        };
        let waiting = Arc::clone(&requester.waiting);
        tokio::spawn(async move {
            while let Ok(record) = consumer.recv().await {
                let body: serde_json::Value =
                    serde_json::from_slice(record.payload().unwrap_or_default()).expect("JSON");
                let id = body["id"].as_u64().expect("an id of ours");
                if let Some(waiting) = waiting.lock().expect("no panic").remove(&id) {
                    let _ = waiting.send(());
                }
            }
        });
        requester
    }

    async fn request(&self, topic: &str) {
        let id = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (sender, answered) = tokio::sync::oneshot::channel();
        self.waiting.lock().expect("no panic").insert(id, sender);
        let body = SMALL_REQUEST.replace(r#""req-0000000001""#, &id.to_string());
        let partition = 0_i32.to_be_bytes();
        let headers = OwnedHeaders::new()
            .insert(rdkafka::message::Header {
                key: "kafka_replyTopic",
                value: Some(self.reply_topic.as_bytes()),
            })
            .insert(rdkafka::message::Header {
                key: "kafka_replyPartition",
                value: Some(&partition[..]),
            });
        let record = FutureRecord::<(), _>::to(topic)
            .payload(&body)
            .headers(headers);
        let sent = self
            .producer
            .send_result(record)
            .map_err(|(error, _)| error);
        let answered = tokio::time::timeout(PATIENCE, answered);
        answered.await.expect("in time").expect("an answer");
        sent.expect("queued")
            .await
            .expect("confirmed")
            .expect("confirmed");
    }
}

/// Forwards records to a subject, and the answers to the reply topic that each names.
async fn kafka_forwarder(brokers: &str, from: &str, nats: Client, to: &str) {
    let consumer: StreamConsumer = client(brokers)
        .set("group.id", from)
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.offset.store", "false")
        .create()
        .expect("a consumer");
    consumer.subscribe(&[from]).expect("subscribed");
    let (consumer, producer) = (Arc::new(consumer), producer(brokers));
    let to = to.to_owned();
    tokio::spawn(async move {
        let free = Arc::new(Semaphore::new(1_000));
        loop {
            let permit = Arc::clone(&free)
                .acquire_owned()
                .await
                .expect("it stays open");
            let Ok(record) = consumer.recv().await else {
                break;
            };
            let record = record.detach();
            let (consumer, producer) = (Arc::clone(&consumer), producer.clone());
            let (nats, to) = (nats.clone(), to.clone());
            tokio::spawn(async move {
                let header = |name: &str| {
                    let mut headers = record.headers()?.iter();
                    headers.find(|header| header.key == name)?.value
                };
                let topic = header("kafka_replyTopic").expect("a reply topic");
                let topic = std::str::from_utf8(topic).expect("UTF-8");
                let body = Bytes::copy_from_slice(record.payload().unwrap_or_default());
                let answer = nats.request(to, body).await.expect("an answer");
                let reply = FutureRecord::<(), _>::to(topic)
                    .payload(&answer.payload[..])
                    .partition(0);
                let sent = producer.send_result(reply).map_err(|(error, _)| error);
                sent.expect("queued")
                    .await
                    .expect("confirmed")
                    .expect("confirmed");
                // Out of order with others in hand: a real forwarder would keep a window, which costs it more.
                consumer
                    .store_offset(record.topic(), record.partition(), record.offset())
                    .expect("stored");
                drop(permit);
            });
        }
        consumer
            .commit_consumer_state(CommitMode::Sync)
            .expect("committed");
    });
}

async fn kafka(brokers: &str, url: &str, scale: usize, stop: &CancellationToken) {
    let unique = std::process::id();
    let topics = ["hand", "bridge", "replies"].map(|name| format!("exchange.{name}.{unique}"));
    let [hand, through, replies] = &topics;
    let agent = format!("exchange.kafka.{unique}");
    let admin: AdminClient<DefaultClientContext> =
        client(brokers).create().expect("an admin client");
    let new = topics
        .iter()
        .map(|name| NewTopic::new(name, 1, TopicReplication::Fixed(1)));
    let new: Vec<_> = new.collect();
    admin
        .create_topics(&new, &AdminOptions::new())
        .await
        .expect("the topics are made");
    nats_agent(url, &agent).await;
    let nats = async_nats::connect(url).await.expect("the server answers");
    kafka_forwarder(brokers, hand, nats, &agent).await;
    let config = format!(
        "transports:
  kafka: {{ type: kafka, brokers: ['{brokers}'] }}
  nats: {{ type: nats, servers: ['{url}'] }}
bindings: [{{ name: requests, transport: kafka, topics: [{through}], reply_topics: ['{replies}'] }}]
routes: [{{ name: r, when: {{ targetagent: weather }}, to: [{{ transport: nats, topic: {agent} }}] }}]
http: {{ enabled: false }}
admin: {{ enabled: false }}"
    );
    run_bridge(&config, stop).await;
    let requester = Requester::new(brokers, replies);
    for in_flight in [1, 64] {
        let load = Load {
            requests: scale / 4 * if in_flight == 1 { 1 } else { 16 },
            in_flight,
        };
        compare(
            "request from Kafka to NATS core",
            load,
            async || requester.request(hand).await,
            async || requester.request(through).await,
        )
        .await;
    }
}

/// A JSON-RPC service over HTTP; its URL.
async fn http_service() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port");
    let address = listener.local_addr().expect("an address");
    let answer = |request: Bytes| async move {
        ([("content-type", "application/json")], answer_to(&request))
    };
    let router = axum::Router::new().route("/", axum::routing::post(answer));
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}/")
}

/// A client of HTTP servers, as the bridge has it.
fn http_client() -> Arc<a2abus_executor::Client> {
    let options = ClientOptions {
        idle_per_host: Some(64),
        ..ClientOptions::default()
    };
    Arc::new(a2abus_executor::Client::new(&options).expect("a client"))
}

/// The requests to a server, and how they are sent.
struct Posted {
    url: String,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
}

/// Asks a server, and reads its answer to the end.
async fn post(client: &a2abus_executor::Client, posted: &Posted, body: Bytes) -> Bytes {
    let mut request = axum::http::Request::post(&posted.url);
    for (name, value) in &posted.headers {
        request = request.header(*name, value);
    }
    let response = client.open(request.body(body).expect("a request")).await;
    let body = Body::new(response.expect("a response").into_body());
    let answer = axum::body::to_bytes(body, 1 << 20).await;
    answer.expect("an answer")
}

/// Forwards requests from a subject to a server, and its answers back.
async fn http_forwarder(url: &str, from: &str, posted: Arc<Posted>) {
    let nats = async_nats::connect(url).await.expect("the server answers");
    let mut requests = nats.subscribe(from.to_owned()).await.expect("subscribed");
    nats.flush().await.expect("flushed");
    let client = http_client();
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let (nats, client, posted) = (nats.clone(), Arc::clone(&client), Arc::clone(&posted));
            tokio::spawn(async move {
                let Some(reply) = request.reply else { return };
                let answer = post(&client, &posted, request.payload).await;
                nats.publish(reply, answer).await.expect("published");
            });
        }
    });
}

/// Compares three ways to a server: directly, over NATS with a forwarder by hand, over NATS with the bridge.
async fn attached(
    url: &str,
    (name, protocol, posted): (&str, &str, Posted),
    scale: usize,
    stop: &CancellationToken,
) {
    let [hand, through] =
        ["hand", "bridge"].map(|way| format!("attached.{protocol}.{way}.{}", std::process::id()));
    let posted = Arc::new(posted);
    let service = &posted.url;
    http_forwarder(url, &hand, Arc::clone(&posted)).await;
    let config = format!(
        "transports: {{ nats: {{ type: nats, servers: ['{url}'] }} }}
agents: {{ weather: {{ to: {{ transport: nats, topic: {through} }}, attach: {{ url: '{service}', protocol: {protocol}, concurrency: 64 }} }} }}
http: {{ enabled: false }}
admin: {{ enabled: false }}"
    );
    run_bridge(&config, stop).await;
    let nats = async_nats::connect(url).await.expect("the server answers");
    let direct = http_client();
    let request = async |subject: &String| {
        let answer = nats.request(subject.clone(), posted.body.clone()).await;
        let answer = answer.expect("an answer").payload;
        assert!(
            answer.windows(8).any(|part| part == b"\"result\""),
            "{answer:?}"
        );
    };
    for in_flight in [1, 64] {
        let load = Load {
            requests: scale * if in_flight == 1 { 1 } else { 8 },
            in_flight,
        };
        let straight = async || {
            let answer = post(&direct, &posted, posted.body.clone()).await;
            assert!(!answer.is_empty());
        };
        let name = format!("request from NATS core to {name}");
        compare(
            &format!("{name}, bridge and direct POST"),
            load,
            &straight,
            async || {
                request(&through).await;
            },
        )
        .await;
        compare(
            &format!("{name}, bridge and forwarder by hand"),
            load,
            async || request(&hand).await,
            async || {
                request(&through).await;
            },
        )
        .await;
    }
}

/// A call of `echo` of an MCP server, in a session of its own.
async fn mcp_call(url: &str) -> Posted {
    let json = |value: serde_json::Value| Bytes::from(value.to_string());
    let call = serde_json::json!({"jsonrpc": "2.0", "id": "1", "method": "tools/call",
        "params": {"name": "echo", "arguments": {"message": "hello"}}});
    // The revision that the bridge asks for: the server does more for a later one.
    let version = "2025-11-25";
    let mut posted = Posted {
        url: url.to_owned(),
        headers: vec![
            ("content-type", "application/json".to_owned()),
            ("accept", "application/json, text/event-stream".to_owned()),
        ],
        body: json(call),
    };
    let hello = serde_json::json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}});
    let mut request = axum::http::Request::post(url);
    for (name, value) in &posted.headers {
        request = request.header(*name, value);
    }
    let client = http_client();
    let response = client.open(request.body(json(hello)).expect("a request"));
    let response = response.await.expect("a response");
    let session = response.headers().get("mcp-session-id").cloned();
    if let Some(session) = session {
        let session = session.to_str().expect("ASCII").to_owned();
        posted.headers.push(("mcp-session-id", session));
    }
    let version = ("mcp-protocol-version", version.to_owned());
    posted.headers.push(version);
    let ready = serde_json::json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    post(&client, &posted, json(ready)).await;
    posted
}

fn main() {
    let scale = bench_support::scale(2_000, 40);
    let address = |name: &str| {
        std::env::var(name)
            .ok()
            .filter(|address| !address.is_empty())
    };
    let Some(url) = address("A2ABUS_TEST_NATS") else {
        return println!("skipped: A2ABUS_TEST_NATS names no server");
    };
    let runtime = Runtime::new().expect("a runtime");
    let stop = CancellationToken::new();
    runtime.block_on(async {
        nats(&url, scale, &stop).await;
        let echo = Posted {
            url: http_service().await,
            headers: Vec::new(),
            body: Bytes::from_static(SMALL_REQUEST.as_bytes()),
        };
        let echo = ("an attached echo in this process", "jsonrpc", echo);
        attached(&url, echo, scale, &stop).await;
        if let Some(server) = address("A2ABUS_BENCH_MCP") {
            let call = mcp_call(&server).await;
            let server = ("the attached MCP server", "mcp", call);
            attached(&url, server, scale / 4, &stop).await;
        }
        match address("A2ABUS_TEST_KAFKA") {
            Some(brokers) => kafka(&brokers, &url, scale, &stop).await,
            None => println!("skipped: A2ABUS_TEST_KAFKA names no server"),
        }
        stop.cancel();
    });
}
