//! Many waiting clients: the memory that each needs, and that none needs a thread.
//!
//! `A2ABUS_TEST_CROWD` is how many there are of each kind: `A2ABUS_TEST_CROWD=10000 cargo test --test floods crowd`,
//! with `--release` for the bound of an optimised program. The hard limit of open files (`ulimit -Hn`) has to allow
//! that.

use std::net::SocketAddr;

use bytes::Bytes;
use futures_util::StreamExt as _;
use support::server::{Kind, named};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::{A2A, ATTACKER, Target, connect, http2, post_to, request, until};

/// Resident memory with 10,000 of each kind, at most. What waits is larger in a program that is not optimised.
const MOST: usize = if cfg!(debug_assertions) {
    3 * (512 << 20)
} else {
    512 << 20
};
const MOST_CLIENTS: usize = 10_000;
/// How many connect at a time.
const AT_A_TIME: usize = 64;
/// Calls on one connection of HTTP/2.
const PER_CONNECTION: usize = 32;

/// Raises the limit of open files of this process, and of the bridge that it starts.
fn raise_open_files(needed: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return;
    }
    assert!(
        limit.maximum.is_none_or(|most| most >= needed),
        "{needed} open files are needed, and the hard limit (ulimit -Hn) is {:?}",
        limit.maximum
    );
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
}

/// Every bound is above what the crowd needs.
fn config(nats: &str, subjects: &str, door: SocketAddr, admin: SocketAddr) -> String {
    format!(
        r#"
transports: {{ bus: {{ type: nats, servers: ["{nats}"] }} }}
default_route: [ {{ transport: bus, topic: "{subjects}.{{targetagent}}" }} ]
agents: {{ silent: {{ description: Answers nothing. }} }}
a2a: {{ max_requests_per_client: 50000, max_tasks_per_context: 50000 }}
calls:
  timeout: 10m
  max_timeout: 10m
  max_pending: 50000
  max_pending_per_agent: 50000
  max_pending_per_caller: 50000
  budget_bytes: 512MiB
http:
  listen: "{door}"
  max_connections: 15000
  max_connections_per_client: 15000
  drain_grace: 5s
admin: {{ listen: "{admin}" }}
"#
    )
}

fn message(method: &str, number: usize) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{number},"method":"{method}","params":{{"_agentId":"silent","message":
        {{"role":"user","messageId":"m-{number}","parts":[{{"text":"Oslo"}}]}}}}}}"#
    )
}

/// A client that has read the first event of its stream.
async fn follower(door: SocketAddr, number: usize) -> TcpStream {
    let mut client = connect(ATTACKER, door).await.unwrap();
    let request = post_to(A2A, &message("message/stream", number));
    client.write_all(request.as_bytes()).await.unwrap();
    let (mut read, mut buffer) = (Vec::new(), [0; 4_096]);
    while !read.ends_with(b"\n\n\r\n") {
        let count = client.read(&mut buffer).await.unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&buffer[..count]);
    }
    let read = String::from_utf8(read).unwrap();
    assert!(
        read.contains("text/event-stream") && read.contains("submitted"),
        "{read}"
    );
    client
}

/// One connection with unanswered calls.
async fn callers(door: SocketAddr, count: usize) {
    let (client, driver) = http2(door).await;
    let mut answers = Vec::new();
    for number in 0..count {
        let mut ready = client.clone().ready().await.unwrap();
        let (answer, mut body) = ready.send_request(request(A2A), false).unwrap();
        let call = Bytes::from(message("message/send", number));
        body.send_data(call, true).unwrap();
        answers.push(answer);
    }
    futures_util::future::join_all(answers).await;
    drop(driver);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_that_waits_costs_little_memory_and_no_threads() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let count = std::env::var("A2ABUS_TEST_CROWD").map_or(500, |count| count.parse().unwrap());
    // One for each stream, and some for the connections of the calls, of the broker, and others.
    raise_open_files(count as u64 + (count / PER_CONNECTION) as u64 + 500);
    let target = Target::start(&nats, config).await;
    for _ in 0..100 {
        target.serves_others().await;
    }
    let (idle, threads) = (target.resident(), target.threads());
    println!("idle: {} KiB, {threads} threads", idle >> 10);

    let followers = futures_util::stream::iter(0..count);
    let followers: Vec<_> = followers
        .map(|number| follower(target.door, number))
        .buffer_unordered(AT_A_TIME)
        .collect()
        .await;
    let followed = target.resident();
    println!("{count} streams: {} KiB", followed >> 10);

    let mut calls = JoinSet::new();
    for first in (0..count).step_by(PER_CONNECTION) {
        calls.spawn(callers(target.door, PER_CONNECTION.min(count - first)));
    }
    // The task of each stream is a call too.
    let waiting = i64::try_from(2 * count).unwrap();
    // Each tenth has a deadline of its own: a slow machine needs longer for ten thousand.
    for tenth in 1..=10 {
        let so_many = waiting / 2 + waiting * tenth / 20;
        until("all of them wait", async || {
            target.metric("a2abus_pending_calls").await >= so_many
        })
        .await;
    }
    assert_eq!(target.metric("a2abus_pending_calls").await, waiting);
    target.serves_others().await;
    let resident = target.resident();
    println!(
        "and {count} calls: {} KiB, {} threads",
        resident >> 10,
        target.threads()
    );
    assert!(
        resident <= idle + (MOST - idle) / MOST_CLIENTS * count,
        "{resident} bytes"
    );
    assert!(target.threads() <= threads, "threads have grown");
    calls.shutdown().await;
    drop(followers);
}
