//! What does a call over HTTP cost beside a bare axum echo on the same runtime? Requests per second on 32 connections,
//! bodies of about 200 bytes, and the time to the first event of a stream.
//!
//! The bridge calls an agent in this process over the memory transport: as `POST /rpc/{agent}`, as `message/send` that is
//! answered with a message, as `message/send` that makes a task, and as `tools/call` of MCP. The baseline is axum that sends the body back. The
//! client is in this process too, and costs the same in every row.
//!
//! `A2ABUS_BENCH_SECONDS` (3) is how long each row takes.
#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "benchmarks fail by panicking, and print their figures"
)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use a2abus_bridge::Bridge;
use a2abus_bridge::config::Config;
use a2abus_transports::memory::Memory;
use a2abus_transports::{
    Address, AnyTransport, Consumer, Message, Outcome, Reading, Subscription, TopicFilter,
    Transport as _,
};
use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const CONNECTIONS: usize = 32;
const STREAMS: usize = 2_000;
const READY: Duration = Duration::from_secs(30);

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

/// What the agent sends for a request, in order.
fn answers(request: &Value) -> Vec<Value> {
    if request["method"] == "tools/call" {
        let content = json!([{ "type": "text", "text": "22 degrees" }]);
        return vec![json!({ "content": content, "isError": false })];
    }
    let said = request["params"]["message"]["parts"][0]["text"].as_str();
    let status = |state: &str, last: bool| json!({"kind": "status-update", "taskId": "t", "contextId": "c", "final": last, "status": {"state": state}});
    match said.unwrap_or_default() {
        "task" => vec![json!({
            "kind": "task", "id": "t", "contextId": "c", "status": {"state": "completed"},
        })],
        "stream" => vec![status("working", false), status("completed", true)],
        _ => vec![json!({
            "kind": "message", "role": "agent", "messageId": "a", "parts": [{"kind": "text", "text": "22 degrees"}],
        })],
    }
}

async fn agent(memory: Memory, mut requests: Consumer) {
    while let Some(delivery) = requests.recv().await {
        let request: Value =
            serde_json::from_slice(delivery.message.body.as_deref().unwrap_or_default())
                .expect("a request");
        let _settled = delivery.acknowledger.settle(Outcome::Settled);
        let Some(reply_to) = delivery.reply_to else {
            continue;
        };
        for result in answers(&request) {
            let answer = json!({"jsonrpc": "2.0", "id": request["id"], "result": result});
            let to = Address::topic(reply_to.clone());
            let sent = memory.send(&to, Message::plain(answer.to_string())).await;
            sent.expect("it takes it").await.expect("it stores it");
        }
    }
}

async fn bridge(stop: &CancellationToken) -> (SocketAddr, JoinHandle<()>) {
    let memory = Memory::default();
    let config = Config::read("bench", CONFIG, []).unwrap_or_else(|problems| panic!("{problems}"));
    let name = config.transports.keys().next().expect("a bus").clone();
    let transports = BTreeMap::from([(name, AnyTransport::Memory(memory.connect()))]);
    let bridge = Bridge::build_on(config, transports)
        .await
        .expect("the bridge is built");
    let requests = memory.subscribe(Subscription {
        topics: vec![TopicFilter::new("agents.weather").expect("a topic")],
        reading: Reading::Group("agent".into()),
        budget_bytes: 16 << 20,
        budget_messages: 10_000,
    });
    tokio::spawn(agent(memory.connect(), requests.await.expect("subscribed")));
    let address = bridge.door_address().expect("the listener is open");
    let readiness = Arc::clone(bridge.readiness());
    let running = tokio::spawn(bridge.run(stop.clone()));
    let begun = Instant::now();
    while !readiness.is_ready() {
        assert!(begun.elapsed() < READY, "{:?}", readiness.report());
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

/// A connection that sends one request again and again.
struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    read: Vec<u8>,
}

impl Connection {
    async fn open(address: SocketAddr, path: &str, body: &str) -> Self {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        let stream = TcpStream::connect(address).await.expect("it listens");
        stream.set_nodelay(true).expect("a TCP socket");
        Self {
            stream,
            request: request.into_bytes(),
            read: Vec::with_capacity(64 << 10),
        }
    }

    /// Sends the request, and reads until `is_read` says that it has what it wants.
    async fn send(&mut self, is_read: impl Fn(&[u8]) -> bool) {
        self.read.clear();
        self.stream
            .write_all(&self.request)
            .await
            .expect("it takes it");
        self.until(is_read).await;
    }

    async fn until(&mut self, is_read: impl Fn(&[u8]) -> bool) {
        while !is_read(&self.read) {
            let read = self
                .stream
                .read_buf(&mut self.read)
                .await
                .expect("an answer");
            assert!(read > 0, "closed: {}", String::from_utf8_lossy(&self.read));
        }
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// Whether these bytes are a whole response with a `Content-Length` and the status 200.
fn is_whole(bytes: &[u8]) -> bool {
    let Some(end) = find(bytes, b"\r\n\r\n") else {
        return false;
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let length = head.split("content-length: ").nth(1).expect("a length");
    let digits = length.split("\r\n").next().expect("a line");
    bytes.len() >= end + 4 + digits.trim().parse::<usize>().expect("a number")
}

/// Requests per second on all connections.
async fn throughput(address: SocketAddr, path: &'static str, body: &str, seconds: u64) -> f64 {
    let until = Instant::now() + Duration::from_secs(seconds);
    let begun = Instant::now();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CONNECTIONS {
        let body = body.to_owned();
        clients.spawn(async move {
            let mut connection = Connection::open(address, path, &body).await;
            let mut requests = 0_u32;
            while Instant::now() < until {
                connection.send(is_whole).await;
                requests += 1;
            }
            requests
        });
    }
    let requests: u32 = clients.join_all().await.into_iter().sum();
    f64::from(requests) / begun.elapsed().as_secs_f64()
}

/// The times to the first event of a stream, sorted, one stream after the other.
async fn first_events(address: SocketAddr, path: &str) -> Vec<Duration> {
    let mut connection =
        Connection::open(address, path, &message("message/stream", "stream")).await;
    let mut times = Vec::with_capacity(STREAMS);
    for _ in 0..STREAMS {
        let begun = Instant::now();
        connection
            .send(|read| find(read, b"data: ").is_some())
            .await;
        times.push(begun.elapsed());
        connection.until(|read| read.ends_with(b"0\r\n\r\n")).await;
    }
    times.sort_unstable();
    times
}

fn main() {
    let seconds = std::env::var("A2ABUS_BENCH_SECONDS");
    let seconds = seconds.ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let stop = CancellationToken::new();
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let echo = echo().await;
        let (bridge, running) = bridge(&stop).await;
        const AGENT: &str = "/a2a/agents/weather";
        let plain = message("message/send", "message");
        let task = message("message/send", "task");
        let (of_all, of_one) = (tool("weather.now"), tool("now"));
        let rows = [
            ("axum echo", echo, "/rpc/weather", &plain),
            ("POST /rpc/weather", bridge, "/rpc/weather", &plain),
            (
                "message/send, answered with a message",
                bridge,
                AGENT,
                &plain,
            ),
            ("message/send, answered with a task", bridge, AGENT, &task),
            ("tools/call at /mcp", bridge, "/mcp", &of_all),
            (
                "tools/call at /mcp/agents/weather",
                bridge,
                "/mcp/agents/weather",
                &of_one,
            ),
        ];
        let mut baseline = None;
        for (name, address, path, body) in rows {
            // The first second warms up.
            throughput(address, path, body, 1).await;
            let rate = throughput(address, path, body, seconds).await;
            let baseline = *baseline.get_or_insert(rate);
            println!(
                "{name}: {rate:.0} requests/s, {:.2} of the echo",
                rate / baseline
            );
        }
        for path in ["/rpc/weather", AGENT] {
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
