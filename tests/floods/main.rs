//! What one hostile client does to the process, through real sockets: memory stays bounded and comes back, other
//! clients and the admin listener are answered meanwhile, and nothing panics or stays open.
//!
//! The bridge is a process of its own with the default memory budget, and its agent is behind a real NATS server, so
//! that its memory is not mixed up with that of the attackers. The floods run one after the other, since each looks at
//! the memory of the process. The hostile client comes from 127.0.0.1, the others from 127.0.0.2.

// Helpers of tests stand outside `#[test]` functions, where clippy does not know them for tests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

mod attached;
mod crowd;
mod hostile;

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use support::battery::within;
use support::server::{Kind, free_port, named, program};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::{Child, Command};
use tokio::task::{JoinHandle, JoinSet};

/// Bytes that wait on the bridge for all callers together: the default of `calls.budget_bytes`.
const BUDGET: i64 = 64 << 20;
/// Connections of one client, at most: a quarter of `max_connections`.
const PER_CLIENT: usize = 100;
/// How much the process may grow under any flood.
const MAY_GROW: usize = 200 << 20;
/// The series that counts the requests refused because the budget was used up.
const REFUSED: &str = "a2abus_budget_refused_total";
/// The agent that never answers, for A2A clients too.
const SILENT: &str = "silent";
/// Its URL for A2A clients.
const A2A: &str = "/a2a/agents/silent";
const ATTACKER: [u8; 4] = [127, 0, 0, 1];
const NEIGHBOUR: [u8; 4] = [127, 0, 0, 2];
/// Parts of one streamed answer, and the bytes of each.
const PARTS: usize = 60;
const PART: usize = 256 << 10;

/// A bridge, with an agent behind it.
struct Target {
    door: SocketAddr,
    admin: SocketAddr,
    process: Child,
    log: std::path::PathBuf,
    _directory: tempfile::TempDir,
}

/// Counts are small, so that small floods reach them.
/// A call of A2A goes on as a task when its client leaves, so its timeout is well below the deadline of the test.
fn config(nats: &str, subjects: &str, door: SocketAddr, admin: SocketAddr) -> String {
    format!(
        r#"
transports: {{ bus: {{ type: nats, servers: ["{nats}"] }} }}
default_route: [ {{ transport: bus, topic: "{subjects}.{{targetagent}}" }} ]
agents: {{ {SILENT}: {{ description: Answers nothing. }} }}
a2a: {{ max_requests_per_client: 1000, max_tasks_per_context: 1000 }}
calls: {{ timeout: 20s, max_pending: 200 }}
http:
  listen: "{door}"
  header_timeout: 2s
  idle_timeout: 500ms
  max_connections: 400
  drain_grace: 5s
admin: {{ listen: "{admin}" }}
"#
    )
}

impl Target {
    /// `config` gets the broker, the prefix of its subjects, and the addresses of both listeners.
    async fn start(
        nats: &str,
        config: impl Fn(&str, &str, SocketAddr, SocketAddr) -> String,
    ) -> Self {
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let (door, admin) = (loopback(free_port().await), loopback(free_port().await));
        let subjects = format!("floods{}-{}", std::process::id(), door.port());
        let options = async_nats::ConnectOptions::new().connection_timeout(Duration::from_secs(60));
        let client = options.connect(nats).await.unwrap();
        let requests = client.subscribe(format!("{subjects}.*")).await.unwrap();
        client.flush().await.unwrap();
        tokio::spawn(agent(client, requests));
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a2abus.yaml");
        std::fs::write(&file, config(nats, &subjects, door, admin)).unwrap();
        let log = directory.path().join("log");
        let process = Command::new(program())
            .args(["serve", "-c"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let target = Self {
            door,
            admin,
            process,
            log,
            _directory: directory,
        };
        until("the bridge is ready", async || {
            target
                .get("/readyz")
                .await
                .is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
        })
        .await;
        target
    }

    /// The answer of the admin listener, if there is one.
    async fn get(&self, path: &str) -> Option<String> {
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        exchange(NEIGHBOUR, self.admin, &request).await.ok()
    }

    /// The value of a series.
    async fn metric(&self, series: &str) -> i64 {
        let text = self.get("/metrics").await.unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse().unwrap())
    }

    /// Resident memory of the process, in bytes.
    fn resident(&self) -> usize {
        let id = self.process.id().expect("the bridge runs");
        let statm = std::fs::read_to_string(format!("/proc/{id}/statm")).unwrap();
        let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
        pages * 4_096
    }

    /// Threads of the process.
    fn threads(&self) -> usize {
        let id = self.process.id().expect("the bridge runs");
        std::fs::read_dir(format!("/proc/{id}/task"))
            .unwrap()
            .count()
    }

    /// File descriptors that the process has open.
    fn descriptors(&self) -> usize {
        let id = self.process.id().expect("the bridge runs");
        std::fs::read_dir(format!("/proc/{id}/fd")).unwrap().count()
    }

    async fn connections(&self) -> i64 {
        self.metric("a2abus_http_connections{door=\"http\"}").await
    }

    /// Another client is served, and so is an operator.
    async fn serves_others(&self) {
        let call = r#"{"jsonrpc":"2.0","id":7,"method":"echo","params":{"_agentId":"a"}}"#;
        let answer = within("another client is answered", async {
            exchange(NEIGHBOUR, self.door, &post(call)).await.unwrap()
        });
        let answer = answer.await;
        assert!(answer.contains(r#""result":"echo""#), "{answer}");
        let answer = within("the admin listener answers", self.get("/healthz")).await;
        assert!(answer.unwrap().contains("alive"));
    }

    /// Everything that the flood took is given back.
    async fn recovers(&self) {
        until("memory, connections and calls are given back", async || {
            self.metric("a2abus_held_bytes").await == 0
                && self.connections().await == 0
                && self.metric("a2abus_pending_calls").await == 0
        })
        .await;
    }
}

/// Answers `echo` at once, streams large parts for `message/stream`, and nothing else. The silent one answers nothing.
async fn agent(client: async_nats::Client, mut requests: async_nats::Subscriber) {
    while let Some(message) = requests.next().await {
        let request: Value = serde_json::from_slice(&message.payload).unwrap();
        let Some(reply_to) = message.reply else {
            continue;
        };
        if message.subject.ends_with(SILENT) {
            continue;
        }
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
            let answer = answer.to_string().into();
            client.publish(reply_to.clone(), answer).await.unwrap();
        }
    }
}

fn post(body: &str) -> String {
    post_to("/rpc", body)
}

fn post_to(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

async fn connect(from: [u8; 4], to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    socket.connect(to).await
}

/// The response to a request, until the connection closes.
async fn exchange(from: [u8; 4], to: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = connect(from, to).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    within(what, async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

/// One connection of HTTP/2 whose client answers pings.
async fn http2(to: SocketAddr) -> (h2::client::SendRequest<Bytes>, JoinHandle<()>) {
    let stream = connect(ATTACKER, to).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    let driver = tokio::spawn(async move { drop(connection.await) });
    (client, driver)
}

fn request(path: &str) -> http::Request<()> {
    let request = http::Request::post(format!("http://localhost{path}"));
    request.body(()).unwrap()
}

/// Bodies that never end: of each all but a byte.
async fn unfinished_bodies(target: &Target, path: &'static str) {
    let mut attackers = JoinSet::new();
    let most = Bytes::from(vec![b' '; (1 << 20) - 1]);
    let before = target.metric(REFUSED).await;
    for _ in 0..8 {
        let (client, driver) = http2(target.door).await;
        let most = most.clone();
        attackers.spawn(async move {
            let mut streams = Vec::new();
            for _ in 0..32 {
                let Ok(mut ready) = client.clone().ready().await else {
                    break;
                };
                let Ok((answer, mut body)) = ready.send_request(request(path), false) else {
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
    until("the budget refuses what does not fit", async || {
        target.metric(REFUSED).await > before
    })
    .await;
    target.serves_others().await;
    attackers.shutdown().await;
}

/// Streams of large parts that nobody reads.
async fn unread_streams(target: &Target) {
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"message/stream","params":{"_agentId":"a"}}"#;
    let before = target.metric(REFUSED).await;
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = connect(ATTACKER, target.door).await.unwrap();
        client.write_all(post(call).as_bytes()).await.unwrap();
        clients.push(client);
    }
    until("parts that nobody reads are refused", async || {
        target.metric(REFUSED).await > before
    })
    .await;
    target.serves_others().await;
}

/// As many connections as one client gets, and more.
async fn connections(target: &Target) {
    let closed = "a2abus_http_connections_closed_total{door=\"http\",why=\"too_many\"}";
    let before = target.metric(closed).await;
    let mut clients = Vec::new();
    for _ in 0..PER_CLIENT + 50 {
        clients.push(connect(ATTACKER, target.door).await.unwrap());
    }
    until("connections beyond the bound are closed", async || {
        target.metric(closed).await >= before + 50
    })
    .await;
    target.serves_others().await;
}

/// Calls that wait for ever, on few connections.
async fn long_calls(target: &Target, path: &'static str) {
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"_agentId":"silent",
        "message":{"role":"user","messageId":"m","parts":[{"text":"Oslo"}]}}}"#;
    let mut attackers = JoinSet::new();
    for _ in 0..4 {
        let (client, driver) = http2(target.door).await;
        attackers.spawn(async move {
            let mut answers = Vec::new();
            for _ in 0..32 {
                let mut ready = client.clone().ready().await.unwrap();
                let (answer, mut body) = ready.send_request(request(path), false).unwrap();
                body.send_data(Bytes::from_static(call.as_bytes()), true)
                    .unwrap();
                answers.push(answer);
            }
            futures_util::future::join_all(answers).await;
            drop(driver);
        });
    }
    // A quarter of max_pending.
    until("the client has as many calls as it may", async || {
        target.metric("a2abus_pending_calls").await == 50
    })
    .await;
    target.serves_others().await;
    attackers.shutdown().await;
}

/// Connections that have made a request and answer pings for ever after.
async fn idle_connections(target: &Target) {
    let closed = "a2abus_http_connections_closed_total{door=\"http\",why=\"idle\"}";
    let before = target.metric(closed).await;
    let mut clients = Vec::new();
    for _ in 0..50 {
        let (client, driver) = http2(target.door).await;
        let mut ready = client.ready().await.unwrap();
        let (answer, mut body) = ready.send_request(request("/rpc"), false).unwrap();
        body.send_data(Bytes::from_static(b"{"), true).unwrap();
        let mut answer = answer.await.unwrap().into_body();
        while let Some(data) = answer.data().await {
            data.unwrap();
        }
        clients.push((ready, driver));
    }
    target.serves_others().await;
    until("idle connections are closed", async || {
        target.metric(closed).await >= before + 50 && target.connections().await == 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_client_blocks_the_listener_or_fills_the_memory() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let mut target = Target::start(&nats, config).await;
    // Idle is a bridge that has served ordinary traffic.
    for _ in 0..100 {
        target.serves_others().await;
    }
    target.recovers().await;
    let (idle, descriptors) = (target.resident(), target.descriptors());
    println!("idle: {} KiB", idle >> 10);
    for flood in FLOODS {
        let start = Instant::now();
        let peak = flood.run_watched(&target).await;
        println!(
            "{flood:?}: {:?}, at most {} KiB, then {} KiB",
            start.elapsed(),
            peak >> 10,
            target.resident() >> 10
        );
        assert!(peak < idle + MAY_GROW, "{flood:?} took too much memory");
        until("memory is back within 10 % of idle", async || {
            target.resident() <= idle + idle / 10
        })
        .await;
        println!(
            "back after {:?}: {} KiB",
            start.elapsed(),
            target.resident() >> 10
        );
    }
    until("no descriptor stays open", async || {
        target.descriptors() <= descriptors
    })
    .await;
    target.process.start_kill().unwrap();
    target.process.wait().await.unwrap();
    let log = std::fs::read_to_string(&target.log).unwrap();
    assert!(!log.contains("panicked"), "{log}");
}

const FLOODS: [Flood; 9] = [
    Flood::UnfinishedBodies("/rpc"),
    Flood::UnfinishedBodies(A2A),
    Flood::UnreadStreams,
    Flood::Connections,
    Flood::LongCalls("/rpc"),
    Flood::LongCalls(A2A),
    Flood::IdleConnections,
    Flood::HostileHeads,
    Flood::HostileFrames,
];

#[derive(Debug, Clone, Copy)]
enum Flood {
    /// To this path.
    UnfinishedBodies(&'static str),
    UnreadStreams,
    Connections,
    /// To this path.
    LongCalls(&'static str),
    IdleConnections,
    HostileHeads,
    HostileFrames,
}

impl Flood {
    /// The most memory that the process had until everything was given back.
    async fn run_watched(self, target: &Target) -> usize {
        let flood = async {
            self.run(target).await;
            target.recovers().await;
        };
        let mut peak = 0;
        let watch = async {
            loop {
                peak = peak.max(target.resident());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let watch_budget = async {
            loop {
                // A frame takes the place of its part, so that both are there for a moment.
                assert!(target.metric("a2abus_held_bytes").await <= BUDGET + BUDGET / 2);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::select! {
            () = flood => {}
            () = watch => {}
            () = watch_budget => {}
        }
        peak
    }

    async fn run(self, target: &Target) {
        match self {
            Self::UnfinishedBodies(path) => unfinished_bodies(target, path).await,
            Self::UnreadStreams => unread_streams(target).await,
            Self::Connections => connections(target).await,
            Self::LongCalls(path) => long_calls(target, path).await,
            Self::IdleConnections => idle_connections(target).await,
            Self::HostileHeads => hostile::send_all(target, hostile::heads(500)).await,
            Self::HostileFrames => hostile::send_all(target, hostile::sequences(200)).await,
        }
    }
}
