//! What does a call over HTTP cost beside a bare axum echo on the same runtime? Requests per second on 32 connections,
//! bodies of about 200 bytes, and the time to the first event of a stream.
//!
//! The bridge calls an agent in this process over the memory transport: as `POST /rpc/{agent}`, as `message/send` that
//! is answered with a message, as `message/send` that makes a task, and as `tools/call` of MCP. The baseline is axum
//! that sends the body back. The client is in this process too, and costs the same in every row. The baseline has no
//! agent and no bus; the agent's answers are written before, so that it costs little. The second row is the least that
//! a bridge can cost: an axum handler that asks the same agent over the same bus, finds members by substring, and
//! checks nothing.
//!
//! The rows take turns; printed are the medians: requests per second, and the CPU time of the process per request.
//! `A2ABUS_BENCH_SECONDS` (1) is how long a turn takes, `A2ABUS_BENCH_ROUNDS` (3) how many there are. With an argument
//! only the rows whose names contain it run, beside the baseline, and no streams.
#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "benchmarks fail by panicking, and print their figures"
)]

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use a2abus_bridge::Bridge;
use a2abus_bridge::config::Config;
use a2abus_transports::memory::Memory;
use a2abus_transports::{
    Address, AnyTransport, Consumer, Message, Outcome, Reading, Subscription, Topic, TopicFilter,
    Transport as _,
};
use axum::Router;
use axum::routing::post;
use bench_support::{Connection, cpu_us, find, is_whole, median, scale};
use bytes::Bytes;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const CONNECTIONS: usize = 32;
const READY: Duration = Duration::from_secs(30);
const AGENT: &str = "/a2a/agents/weather";

const CONFIG: &str = "
transports: { bus: { type: memory } }
agents: { weather: { description: Answers., to: { transport: bus, topic: agents.weather } } }
calls: { max_pending: 100000, max_pending_per_agent: 100000, max_pending_per_caller: 100000 }
a2a: { max_requests_per_client: 100000, max_tasks_per_context: 100000 }
http: { listen: '127.0.0.1:0' }
admin: { enabled: false }
telemetry: { log: 'off' }
";

/// What the agent answers with is what the text of the message names.
fn message(method: &str, text: &str) -> String {
    let message = json!({"kind": "message", "role": "user", "messageId": "m", "parts": [{"kind": "text", "text": text}]});
    let params = json!({ "message": message });
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string()
}

/// A call of a tool, about as long as a message.
fn tool(name: &str) -> String {
    let arguments =
        json!({ "city": "Oslo", "unit": "degrees Celsius", "days": ["today", "tomorrow"] });
    let params = json!({ "name": name, "arguments": arguments });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string()
}

/// What the agent sends for a request, in order: the results of JSON-RPC responses.
fn answers(request: &[u8]) -> &'static [&'static str] {
    const TOOL: &[&str] = &[r#"{"content":[{"type":"text","text":"22 degrees"}],"isError":false}"#];
    const TASK: &[&str] =
        &[r#"{"kind":"task","id":"t","contextId":"c","status":{"state":"completed"}}"#];
    const STREAM: &[&str] = &[
        r#"{"kind":"status-update","taskId":"t","contextId":"c","final":false,"status":{"state":"working"}}"#,
        r#"{"kind":"status-update","taskId":"t","contextId":"c","final":true,"status":{"state":"completed"}}"#,
    ];
    const MESSAGE: &[&str] = &[
        r#"{"kind":"message","role":"agent","messageId":"a","parts":[{"kind":"text","text":"22 degrees"}]}"#,
    ];
    let contains = |what: &str| find(request, what.as_bytes()).is_some();
    if contains(r#""method":"tools/call""#) {
        TOOL
    } else if contains(r#""text":"task""#) {
        TASK
    } else if contains(r#""text":"stream""#) {
        STREAM
    } else {
        MESSAGE
    }
}

/// The id of a request, as the bridge has put it in.
fn id_of(request: &[u8]) -> &str {
    const MEMBER: &[u8] = br#""id":""#;
    let rest = find(request, MEMBER).and_then(|at| request.get(at + MEMBER.len()..));
    let id = rest.and_then(|rest| rest.split(|byte| *byte == b'"').next());
    std::str::from_utf8(id.expect("a request")).expect("an id of the bridge")
}

async fn agent(memory: Memory, mut requests: Consumer) {
    while let Some(delivery) = requests.recv().await {
        let request = delivery.message.body.unwrap_or_default();
        let _settled = delivery.acknowledger.settle(Outcome::Settled);
        let Some(reply_to) = delivery.reply_to else {
            continue;
        };
        let (id, to) = (id_of(&request), Address::topic(reply_to));
        for result in answers(&request) {
            let answer = format!(r#"{{"jsonrpc":"2.0","id":"{id}","result":{result}}}"#);
            let sent = memory.send(&to, Message::plain(answer)).await;
            sent.expect("it takes it").await.expect("it stores it");
        }
    }
}

async fn bridge(memory: &Memory, stop: &CancellationToken) -> (SocketAddr, JoinHandle<()>) {
    let config = Config::read("bench", CONFIG, []).unwrap_or_else(|problems| panic!("{problems}"));
    let name = config.transports.keys().next().expect("a bus").clone();
    let transports = BTreeMap::from([(name, AnyTransport::Memory(memory.connect()))]);
    let bridge = Bridge::build_on(config, transports)
        .await
        .expect("the bridge is built");
    let requests = memory.subscribe(subscription("agents.weather", "agent"));
    tokio::spawn(agent(memory.connect(), requests.await.expect("subscribed")));
    let address = bridge.door_address().expect("the listener is open");
    let readiness = Arc::clone(bridge.readiness());
    let running = tokio::spawn(bridge.run(stop.clone()));
    let start = Instant::now();
    while !readiness.is_ready() {
        assert!(start.elapsed() < READY, "{:?}", readiness.report());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    (address, running)
}

async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let router = Router::new().route("/rpc/weather", post(|body: Bytes| async { body }));
    tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
    address
}

/// An exchange by hand: each request gets an id of its own, by which its answer is found.
struct ByHand {
    bus: Memory,
    next: AtomicU64,
    waiting: Mutex<HashMap<String, oneshot::Sender<Bytes>>>,
}

const HAND_REPLIES: &str = "replies.by-hand";

impl ByHand {
    async fn ask(&self, request: Bytes) -> Bytes {
        let id = self.next.fetch_add(1, Ordering::Relaxed).to_string();
        let body = replaced(&request, br#""id":1"#, format!(r#""id":"{id}""#).as_bytes());
        let (sender, answer) = oneshot::channel();
        self.waiting
            .lock()
            .expect("a map")
            .insert(id.clone(), sender);
        let mut to = Address::topic(Topic::new("agents.weather").expect("a topic"));
        to.reply_to = Some(Topic::new(HAND_REPLIES).expect("a topic"));
        let sent = self.bus.send(&to, Message::plain(body)).await;
        sent.expect("it takes it").await.expect("it stores it");
        let answer = answer.await.expect("an answer");
        replaced(&answer, format!(r#""id":"{id}""#).as_bytes(), br#""id":1"#)
    }

    async fn read(self: Arc<Self>, mut replies: Consumer) {
        while let Some(delivery) = replies.recv().await {
            let answer = delivery.message.body.unwrap_or_default();
            let _settled = delivery.acknowledger.settle(Outcome::Settled);
            let sender = self.waiting.lock().expect("a map").remove(id_of(&answer));
            let _received = sender.expect("somebody waits").send(answer);
        }
    }
}

fn replaced(body: &[u8], from: &[u8], to: &[u8]) -> Bytes {
    let at = find(body, from).expect("it is there");
    [&body[..at], to, &body[at + from.len()..]].concat().into()
}

async fn by_hand(memory: &Memory) -> SocketAddr {
    let by_hand = Arc::new(ByHand {
        bus: memory.connect(),
        next: AtomicU64::default(),
        waiting: Mutex::default(),
    });
    let replies = memory.subscribe(subscription(HAND_REPLIES, "by-hand"));
    tokio::spawn(Arc::clone(&by_hand).read(replies.await.expect("subscribed")));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let ask = post(async move |body: Bytes| by_hand.ask(body).await);
    let router = Router::new().route("/rpc/weather", ask);
    tokio::spawn(async move { axum::serve(listener, router).await.expect("it serves") });
    address
}

fn subscription(topic: &str, group: &str) -> Subscription {
    Subscription {
        topics: vec![TopicFilter::new(topic).expect("a topic")],
        reading: Reading::Group(group.into()),
        budget_bytes: 16 << 20,
        budget_messages: 10_000,
    }
}

/// The requests and their recipients.
struct Row {
    name: &'static str,
    address: SocketAddr,
    path: &'static str,
    body: String,
}

/// Requests per second, and CPU time of this process per request in microseconds.
struct Cost {
    per_second: f64,
    cpu_us: f64,
}

/// What requests on all connections cost.
async fn measure(row: &Row, seconds: u64) -> Cost {
    let Row {
        address,
        path,
        body,
        ..
    } = row;
    let (address, path) = (*address, *path);
    let until = Instant::now() + Duration::from_secs(seconds);
    let (cpu, begun) = (cpu_us(), Instant::now());
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        let body = body.to_owned();
        clients.spawn(async move {
            let mut connection = Connection::open(address, path, &body).await;
            let mut requests = 0_u32;
            loop {
                connection.send(is_whole).await;
                requests += 1;
                if Instant::now() >= until {
                    return requests;
                }
            }
        });
    }
    let requests = f64::from(clients.join_all().await.into_iter().sum::<u32>());
    Cost {
        per_second: requests / begun.elapsed().as_secs_f64(),
        cpu_us: (cpu_us() - cpu) / requests,
    }
}

/// Takes turns between the rows, the first of which is the baseline, and prints the medians.
async fn compare(rows: &[Row], rounds: usize, seconds: u64) {
    let mut costs: Vec<Vec<Cost>> = rows.iter().map(|_| Vec::new()).collect();
    for round in 0..=rounds {
        for (row, costs) in rows.iter().zip(&mut costs) {
            let cost = measure(row, seconds).await;
            // The first warms up.
            if round > 0 {
                costs.push(cost);
            }
        }
    }
    let of = |costs: &[Cost], field: fn(&Cost) -> f64| median(costs.iter().map(field).collect());
    let echo = of(&costs[0], |cost| cost.per_second);
    for (row, costs) in rows.iter().zip(&costs) {
        let (rate, cpu) = (
            of(costs, |cost| cost.per_second),
            of(costs, |cost| cost.cpu_us),
        );
        let (name, ratio) = (row.name, rate / echo);
        println!("{name:<38} {rate:>8.0} requests/s, {ratio:.2} of the echo, {cpu:>6.1} us CPU");
    }
}

/// The times to the first event of a stream, sorted, one stream after the other.
async fn first_events(address: SocketAddr, path: &str) -> Vec<Duration> {
    let mut connection =
        Connection::open(address, path, &message("message/stream", "stream")).await;
    let mut times = Vec::new();
    for _ in 0..scale(2_000, 10) {
        let start = Instant::now();
        connection
            .send(|read| find(read, b"data: ").is_some())
            .await;
        times.push(start.elapsed());
        connection.until(|read| read.ends_with(b"0\r\n\r\n")).await;
    }
    times.sort_unstable();
    times
}

fn rows(echo: SocketAddr, by_hand: SocketAddr, bridge: SocketAddr) -> Vec<Row> {
    let plain = message("message/send", "message");
    let row = |name, path, body: &String| Row {
        name,
        address: bridge,
        path,
        body: body.clone(),
    };
    vec![
        Row {
            address: echo,
            ..row("axum echo", "/rpc/weather", &plain)
        },
        Row {
            address: by_hand,
            ..row("the same exchange by hand", "/rpc/weather", &plain)
        },
        row("POST /rpc/weather", "/rpc/weather", &plain),
        row("message/send, answered with a message", AGENT, &plain),
        row(
            "message/send, answered with a task",
            AGENT,
            &message("message/send", "task"),
        ),
        row("tools/call at /mcp", "/mcp", &tool("weather.now")),
        row(
            "tools/call at /mcp/agents/weather",
            "/mcp/agents/weather",
            &tool("now"),
        ),
    ]
}

fn setting(name: &str, default: usize) -> usize {
    let set = std::env::var(name).ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() {
    let seconds = setting("A2ABUS_BENCH_SECONDS", scale(1, 0)) as u64;
    let rounds = setting("A2ABUS_BENCH_ROUNDS", scale(3, 1));
    let only = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let stop = CancellationToken::new();
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let memory = Memory::default();
        let (bridge, running) = bridge(&memory, &stop).await;
        let mut rows = rows(echo().await, by_hand(&memory).await, bridge);
        if let Some(only) = &only {
            rows.retain(|row| row.address != bridge || row.name.contains(only));
        }
        compare(&rows, rounds, seconds).await;
        let streamed = only.is_none().then_some(["/rpc/weather", AGENT]);
        for path in streamed.into_iter().flatten() {
            let times = first_events(bridge, path).await;
            let at = |share: usize| {
                times
                    .get(times.len() * share / 100)
                    .copied()
                    .unwrap_or_default()
            };
            println!(
                "first event of message/stream at {path}: p50 {:?}, p99 {:?}",
                at(50),
                at(99)
            );
        }
        stop.cancel();
        running.await.expect("the bridge ends in order");
    });
}
