//! What one hostile client does to the front door, through real sockets: memory stays bounded and comes back, other
//! clients and the operators' door are answered meanwhile, and nothing panics or stays open.
//!
//! The floods run one after the other, since each looks at the memory of the process. The hostile client comes from
//! 127.0.0.1, the others from 127.0.0.2.

// Helpers of tests stand outside `#[test]` functions, where clippy does not know them for tests.
#![allow(clippy::unwrap_used, clippy::panic)]

mod hostile;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use a2abus_bridge::Bridge;
use a2abus_bridge::config::Config;
use a2abus_bridge::metrics::Metrics;
use a2abus_transports::memory::{Memory, MemoryConfig};
use a2abus_transports::{
    Address, AnyTransport, Consumer, Delivery, Message, Outcome, Reading, Subscription,
    TopicFilter, Transport as _,
};
use bytes::Bytes;
use serde_json::{Value, json};
use support::battery::within;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

/// Small bounds, so that small floods reach them.
const CONFIG: &str = r#"
transports: { local: { type: memory } }
default_route: [ { transport: local, topic: "agents.{targetagent}" } ]
calls: { timeout: 60s, budget_bytes: 16MiB, max_pending: 200 }
http:
  listen: "127.0.0.1:0"
  header_timeout: 2s
  idle_timeout: 500ms
  max_connections: 400
  drain_grace: 5s
admin: { listen: "127.0.0.1:0" }
"#;
/// Connections of one client, at most: a quarter of `max_connections`.
const PER_CLIENT: usize = 100;
/// `calls.budget_bytes`.
const BUDGET: i64 = 16 << 20;
/// What the process may grow by under any flood: the budget twice, since what is charged is copied once onto the bus,
/// and the buffers of sockets and of the attackers, who are in this process as well.
const MAY_GROW: usize = 128 << 20;
const ATTACKER: [u8; 4] = [127, 0, 0, 1];
const NEIGHBOUR: [u8; 4] = [127, 0, 0, 2];
/// Parts of one streamed answer, and the bytes of each.
const PARTS: usize = 30;
const PART: usize = 256 << 10;

/// What the bus of the test keeps of answers that are read: so many topics, with so many bytes each.
const BUS_TOPICS: usize = 32;
const BUS_TOPIC: usize = 600 << 10;

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// A bridge with an agent behind it.
struct Target {
    door: SocketAddr,
    admin: SocketAddr,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Target {
    async fn start() -> Self {
        let memory = Memory::new(MemoryConfig {
            // So that what the bus keeps of answers is not taken for what the door keeps.
            capacity_bytes: NonZeroUsize::new(BUS_TOPIC).unwrap(),
            max_topics: NonZeroUsize::new(BUS_TOPICS).unwrap(),
            ..MemoryConfig::default()
        });
        let config = Config::read("test.yaml", CONFIG, []).unwrap();
        let name = config.transports.keys().next().unwrap().clone();
        let transports = BTreeMap::from([(name, AnyTransport::Memory(memory.connect()))]);
        let bridge = Bridge::build_on(config, transports).await.unwrap();
        let subscription = Subscription {
            topics: vec![TopicFilter::new("agents.>").unwrap()],
            reading: Reading::Group("agents".into()),
            budget_bytes: 16 << 20,
            budget_messages: 4_096,
        };
        let consumer = memory.subscribe(subscription).await.unwrap();
        tokio::spawn(agent(memory.connect(), consumer));
        let readiness = Arc::clone(bridge.readiness());
        let stop = CancellationToken::new();
        let target = Self {
            door: bridge.door_address().unwrap(),
            admin: bridge.admin_address().unwrap(),
            metrics: Arc::clone(bridge.metrics()),
            running: tokio::spawn(bridge.run(stop.clone())),
            stop,
        };
        until("the bridge is ready", || readiness.is_ready()).await;
        target
    }

    /// The value of a series.
    fn metric(&self, series: &str) -> i64 {
        let text = self.metrics.render().unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse().unwrap())
    }

    fn held(&self) -> i64 {
        self.metric("a2abus_held_bytes")
    }

    fn connections(&self) -> i64 {
        self.metric("a2abus_http_connections{door=\"http\"}")
    }

    /// Another client is served, and so is an operator.
    async fn serves_others(&self) {
        let call = r#"{"jsonrpc":"2.0","id":7,"method":"echo","params":{"_agentId":"a"}}"#;
        let answer = within("another client is answered", async {
            exchange(NEIGHBOUR, self.door, &post(call)).await
        });
        let answer = answer.await;
        assert!(answer.contains(r#""result":"echo""#), "{answer}");
        let health = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let answer = within("the operators' door answers", async {
            exchange(NEIGHBOUR, self.admin, health).await
        });
        assert!(answer.await.contains("alive"));
    }

    /// Everything that the flood took is given back.
    async fn recovers(&self) {
        let all_back = || {
            self.held() == 0 && self.connections() == 0 && self.metric("a2abus_pending_calls") == 0
        };
        until("memory, connections and calls are given back", all_back).await;
    }
}

/// Answers `echo` at once, streams large parts for `message/stream`, and nothing else.
async fn agent(memory: Memory, mut consumer: Consumer) {
    while let Some(delivery) = consumer.recv().await {
        let Delivery {
            message,
            reply_to,
            acknowledger,
            ..
        } = delivery;
        acknowledger.settle(Outcome::Settled).unwrap();
        let request: Value = serde_json::from_slice(message.body.as_ref().unwrap()).unwrap();
        let Some(reply_to) = reply_to else { continue };
        let results = match request["method"].as_str().unwrap() {
            "echo" => vec![json!("echo")],
            "message/stream" => {
                let part = json!({"kind": "status-update", "taskId": "t", "contextId": "c",
                    "final": false, "status": {"state": "working"}, "text": "x".repeat(PART)});
                vec![part; PARTS]
            }
            _ => Vec::new(),
        };
        for result in results {
            let answer = json!({"jsonrpc": "2.0", "id": request["id"], "result": result});
            let message = Message::plain(answer.to_string());
            let sent = memory
                .send(&Address::topic(reply_to.clone()), message)
                .await;
            sent.unwrap().await.unwrap();
        }
    }
}

fn post(body: &str) -> String {
    format!(
        "POST /rpc HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

async fn connect(from: [u8; 4], to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    socket.connect(to).await
}

/// What comes back for a request until the connection closes.
async fn exchange(from: [u8; 4], to: SocketAddr, request: &str) -> String {
    let mut stream = connect(from, to).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    within(what, async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4_096
}

/// One connection of HTTP/2 whose client answers pings.
async fn http2(to: SocketAddr) -> (h2::client::SendRequest<Bytes>, JoinHandle<()>) {
    let stream = connect(ATTACKER, to).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    let driver = tokio::spawn(async move { drop(connection.await) });
    (client, driver)
}

fn request() -> http::Request<()> {
    let request = http::Request::post("http://localhost/rpc");
    request.body(()).unwrap()
}

/// Bodies that never end: of each all but a byte.
async fn unfinished_bodies(target: &Target) {
    let mut attackers = JoinSet::new();
    // All send the same memory, so that theirs is not taken for that of the bridge.
    let most = Bytes::from(vec![b' '; (1 << 20) - 1]);
    for _ in 0..4 {
        let (client, driver) = http2(target.door).await;
        let most = most.clone();
        attackers.spawn(async move {
            let mut streams = Vec::new();
            for _ in 0..32 {
                let Ok(mut ready) = client.clone().ready().await else {
                    break;
                };
                let Ok((answer, mut body)) = ready.send_request(request(), false) else {
                    break;
                };
                body.reserve_capacity(1 << 20);
                let _ = body.send_data(most.clone(), false);
                streams.push((answer, body));
            }
            // Held until the flood is over.
            std::future::pending::<()>().await;
            drop((streams, driver));
        });
    }
    let refused = || target.metric("a2abus_budget_refused_total") > 0;
    until("the budget refuses what does not fit", refused).await;
    target.serves_others().await;
    attackers.shutdown().await;
}

/// Streams of large parts that nobody reads.
async fn unread_streams(target: &Target) {
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"message/stream","params":{"_agentId":"a"}}"#;
    let before = target.metric("a2abus_budget_refused_total");
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = connect(ATTACKER, target.door).await.unwrap();
        client.write_all(post(call).as_bytes()).await.unwrap();
        clients.push(client);
    }
    let refused = || target.metric("a2abus_budget_refused_total") > before;
    until("parts that nobody reads are refused", refused).await;
    target.serves_others().await;
}

/// As many connections as one client gets, and more.
async fn connections(target: &Target) {
    let closed = "a2abus_http_connections_closed_total{door=\"http\",why=\"too_many\"}";
    let before = target.metric(closed);
    let mut clients = Vec::new();
    for _ in 0..PER_CLIENT + 50 {
        clients.push(connect(ATTACKER, target.door).await.unwrap());
    }
    until("connections beyond the bound are closed", || {
        target.metric(closed) >= before + 50
    })
    .await;
    target.serves_others().await;
}

/// Calls that wait for ever, on few connections.
async fn long_calls(target: &Target) {
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"hang","params":{"_agentId":"silent"}}"#;
    let mut attackers = JoinSet::new();
    for _ in 0..4 {
        let (client, driver) = http2(target.door).await;
        attackers.spawn(async move {
            let mut answers = Vec::new();
            for _ in 0..32 {
                let mut ready = client.clone().ready().await.unwrap();
                let (answer, mut body) = ready.send_request(request(), false).unwrap();
                body.send_data(Bytes::from_static(call.as_bytes()), true)
                    .unwrap();
                answers.push(answer);
            }
            futures_util::future::join_all(answers).await;
            drop(driver);
        });
    }
    // A quarter of max_pending.
    until("the client has as many calls as it may", || {
        target.metric("a2abus_pending_calls") == 50
    })
    .await;
    target.serves_others().await;
    attackers.shutdown().await;
}

/// Connections that have made a request and answer pings for ever after.
async fn idle_connections(target: &Target) {
    let closed = "a2abus_http_connections_closed_total{door=\"http\",why=\"idle\"}";
    let before = target.metric(closed);
    let mut clients = Vec::new();
    for _ in 0..50 {
        let (client, driver) = http2(target.door).await;
        let mut ready = client.ready().await.unwrap();
        let (answer, mut body) = ready.send_request(request(), false).unwrap();
        body.send_data(Bytes::from_static(b"{"), true).unwrap();
        let mut answer = answer.await.unwrap().into_body();
        while let Some(data) = answer.data().await {
            data.unwrap();
        }
        clients.push((ready, driver));
    }
    target.serves_others().await;
    until("idle connections are closed", || {
        target.metric(closed) >= before + 50 && target.connections() == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_client_closes_the_door_or_fills_the_memory() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        hook(panic);
    }));
    let target = Arc::new(Target::start().await);
    target.serves_others().await;
    target.recovers().await;
    let idle = resident();
    println!("idle: {} MiB", idle >> 20);
    let peak = Arc::new(AtomicUsize::new(0));
    let watch = tokio::spawn(watch(Arc::clone(&target), Arc::clone(&peak)));
    let mut after = Vec::new();
    for round in 0..2 {
        for flood in FLOODS {
            peak.store(resident(), Ordering::Relaxed);
            let begun = Instant::now();
            flood.run(&target).await;
            target.recovers().await;
            let highest = peak.load(Ordering::Relaxed);
            println!(
                "round {round}, {flood:?}: {:?}, at most {} MiB, then {} MiB",
                begun.elapsed(),
                highest >> 20,
                resident() >> 20
            );
            assert!(highest < idle + MAY_GROW, "{flood:?} took too much memory");
        }
        after.push(resident());
    }
    assert!(
        after[1] <= after[0] + after[0] / 10 + BUS_TOPICS * BUS_TOPIC,
        "the second round left more behind than the first: {after:?}"
    );
    assert_eq!(PANICS.load(Ordering::Relaxed), 0, "nothing panics");
    watch.abort();
    target.stop.cancel();
    until("the bridge ends", || target.running.is_finished()).await;
}

/// Notes the most memory the process had, and holds the budget to its bound.
async fn watch(target: Arc<Target>, peak: Arc<AtomicUsize>) {
    loop {
        peak.fetch_max(resident(), Ordering::Relaxed);
        // A frame takes the place of its part, so that both are there for a moment.
        assert!(target.held() <= BUDGET + BUDGET / 2);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

const FLOODS: [Flood; 7] = [
    Flood::UnfinishedBodies,
    Flood::UnreadStreams,
    Flood::Connections,
    Flood::LongCalls,
    Flood::IdleConnections,
    Flood::HostileHeads,
    Flood::HostileFrames,
];

#[derive(Debug, Clone, Copy)]
enum Flood {
    UnfinishedBodies,
    UnreadStreams,
    Connections,
    LongCalls,
    IdleConnections,
    HostileHeads,
    HostileFrames,
}

impl Flood {
    async fn run(self, target: &Target) {
        match self {
            Self::UnfinishedBodies => unfinished_bodies(target).await,
            Self::UnreadStreams => unread_streams(target).await,
            Self::Connections => connections(target).await,
            Self::LongCalls => long_calls(target).await,
            Self::IdleConnections => idle_connections(target).await,
            Self::HostileHeads => hostile::send_all(target, hostile::heads(500)).await,
            Self::HostileFrames => hostile::send_all(target, hostile::sequences(200)).await,
        }
    }
}
