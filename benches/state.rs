//! What does shared state cost?
//!
//! `fold`: records of tasks per second that one view applies on one core, from a log in memory; and the bytes that a
//! kept task takes, by the view's own count and by the process's. A task has a message of the client, two states, an
//! artifact in two parts, and its end.
//!
//! `visible`: the time from an append on one replica until the other replica's view has applied it, one after the
//! other, beside a producer and a consumer by hand with the same settings. The two take turns, so that both meet the
//! same machine. Needs real servers: `tests/run --brokers-only` prints the two variables to set.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

use std::time::{Duration, Instant};

use a2abus_bridge::Bridge;
use a2abus_bridge::config::Config;
use a2abus_bridge::state::{AnyLog, Applied, Fold, Kind, LogSpec, MemoryLog, Record, TASKS, View};
use async_nats::jetstream;
use bench_support::scale;
use bytes::Bytes;
use futures_util::StreamExt as _;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{Offset, TopicPartitionList};
use serde::Deserialize;
use tokio::runtime::{Builder, Runtime};

/// Records of one task: created, working, an artifact in two parts, completed.
const PER_TASK: usize = 5;
const PATIENCE: Duration = Duration::from_secs(30);

fn tasks_kept() -> usize {
    scale(100_000, 100)
}

/// Appends of one round.
fn appends() -> usize {
    scale(200, 5)
}

/// Rounds of each of the two.
fn rounds() -> usize {
    scale(5, 1)
}

/// For `visible`: the last state of a task, and how many events it had.
struct Tasks;

#[derive(Debug, Default)]
struct Task {
    state: String,
    events: u32,
}

#[derive(Deserialize)]
struct Event<'a> {
    state: &'a str,
}

impl Fold for Tasks {
    type Entry = Task;

    fn apply(&self, entry: &mut Option<Task>, record: &Record) -> Applied {
        let body = record.body.as_deref().unwrap_or_default();
        let Ok(event) = serde_json::from_slice::<Event<'_>>(body) else {
            return Applied::Unknown;
        };
        let task = entry.get_or_insert_default();
        task.events += 1;
        event.state.clone_into(&mut task.state);
        Applied::Changed
    }

    fn size_bytes(&self, task: &Task) -> usize {
        size_of::<Task>() + task.state.len()
    }
}

fn event(task: usize, state: &str) -> Bytes {
    Bytes::from(format!(
        r#"{{"v":1,"kind":"status-update","taskId":"task-{task:08}","contextId":"context-{:06}","state":"{state}","timestamp":"2026-01-01T00:00:00.000Z"}}"#,
        task / 10
    ))
}

/// A record of a task, as a bridge writes it.
fn record_of(task: usize, index: usize) -> Bytes {
    let time = r#""timestamp":"2026-01-01T00:00:00.000Z""#;
    let event = match index {
        0 => format!(
            r#"{{"created":{{"agent":"weather","context":"context-{:06}","is_1_0":false,"message":{{"id":"message-{task:08}","role":"user","parts":[{{"content":{{"text":"What will the weather be like in Oslo tomorrow?"}}}}]}},{time}}}}}"#,
            task / 10
        ),
        1 => format!(r#"{{"status":{{"state":"working",{time}}}}}"#),
        2 | 3 => format!(
            r#"{{"artifact":{{"artifact":{{"id":"artifact-1","parts":[{{"content":{{"text":"Sunny, with a light wind from the south. "}}}}]}},"append":{},"last":{}}}}}"#,
            index == 3,
            index == 3
        ),
        _ => format!(r#"{{"status":{{"state":"completed",{time}}}}}"#),
    };
    let part = index;
    Bytes::from(format!(
        r#"{{"v":1,"event":{{"from_call":{{"origin":{{"call":"h3psimqptr3lbutz{task:010}","part":{part},"event":1,"ends":true}},"event":{event}}}}}}}"#
    ))
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0_usize) * 4096
}

fn quantile(times: &mut [f64], at: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times[((times.len() - 1) as f64 * at) as usize]
}

async fn fold() {
    let spec = LogSpec {
        name: "tasks",
        kind: Kind::Events {
            life: Duration::from_secs(3_600),
            max_life: Duration::from_secs(3_600),
        },
    };
    let log = AnyLog::from(MemoryLog::new(spec, 1 << 30));
    for index in 0..PER_TASK {
        for task in 0..tasks_kept() {
            let key = format!("task-{task:08}");
            let body = Some(record_of(task, index));
            log.append(&key, body).await.expect("appended");
        }
    }
    let records = tasks_kept() * PER_TASK;
    let mut rates = Vec::new();
    let mut counted = 0;
    for round in 0..rounds() {
        let (before, begun) = (resident(), Instant::now());
        let (view, _task) = View::start(log.clone(), a2abus_bridge::task_fold(), 1 << 30);
        view.caught_up().await.expect("caught up");
        rates.push(records as f64 / begun.elapsed().as_secs_f64());
        assert_eq!(view.read(|tasks| tasks.len()), tasks_kept());
        counted = view.read(|tasks| tasks.bytes());
        if round == 0 {
            let grown = resident().saturating_sub(before);
            println!(
                "fold: {} bytes per kept task by the process",
                grown / tasks_kept()
            );
        }
    }
    println!(
        "fold: {} bytes per kept task by the view",
        counted / tasks_kept()
    );
    println!(
        "fold: {:.0} records/s on one core (median of {})",
        quantile(&mut rates, 0.5),
        rounds()
    );
}

/// A replica: a bridge whose state is on a bus, and its view of the tasks.
async fn replica(transport: &str, prefix: &str) -> (Bridge, View<Tasks>) {
    let text = format!(
        "transports: {{ bus: {transport} }}\nhttp: {{ listen: '127.0.0.1:0' }}\nadmin: {{ enabled: false }}\nstate: {{ log: bus, create: true, prefix: {prefix} }}\n"
    );
    let config = Config::read("bench", &text, std::iter::empty()).expect("a configuration");
    let bridge = Bridge::build(config).await.expect("the bridge is built");
    let view = bridge.state().view(TASKS, Tasks).await.expect("a view");
    let caught_up = tokio::time::timeout(PATIENCE, view.caught_up()).await;
    caught_up.expect("in time").expect("caught up");
    (bridge, view)
}

/// Milliseconds from each append on one replica until the other has applied it.
async fn through(one: &View<Tasks>, other: &View<Tasks>) -> Vec<f64> {
    let ((), mut following) = other.follow(None, appends(), |_| ());
    let mut times = Vec::new();
    for number in 0..appends() {
        let start = Instant::now();
        let key = format!("task-{number}");
        let appended = one.append(&key, Some(event(number, "working")));
        let (position, record) = tokio::join!(appended, following.next());
        times.push(start.elapsed().as_secs_f64() * 1e3);
        let record = record.expect("in time").expect("the view lives");
        assert_eq!(record.position, position.expect("appended"));
    }
    times
}

/// Takes turns and prints both.
async fn compare(
    name: &str,
    one: &View<Tasks>,
    other: &View<Tasks>,
    mut by_hand: impl AsyncFnMut(usize),
) {
    let (mut hand, mut views) = (Vec::new(), Vec::new());
    for round in 0..=rounds() {
        let mut times = Vec::new();
        for number in 0..appends() {
            let start = Instant::now();
            by_hand(number).await;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        let view_times = through(one, other).await;
        // The first warms up.
        if round > 0 {
            hand.extend(times);
            views.extend(view_times);
        }
    }
    println!("{name}: from the append until the other replica has applied it");
    for (who, times) in [("by hand", &mut hand), ("view", &mut views)] {
        println!(
            "  {who:<8} p50 {:>6.2} ms  p99 {:>6.2} ms",
            quantile(times, 0.5),
            quantile(times, 0.99)
        );
    }
    let ratio = quantile(&mut views, 0.5) / quantile(&mut hand, 0.5);
    println!("  ratio    p50 {ratio:>6.2}");
}

/// A name that no other run has.
fn unique() -> String {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
    format!("bench{}", since.expect("a clock").as_nanos())
}

async fn on_kafka(address: &str) {
    let prefix = unique();
    let transport = format!("{{ type: kafka, brokers: ['{address}'] }}");
    let (_one, one) = replica(&transport, &prefix).await;
    let (_other, other) = replica(&transport, &prefix).await;
    // By hand, on a log of the same kind.
    let hand = unique();
    let (_made, _) = replica(&transport, &hand).await;
    let topic = format!("{hand}.tasks");
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", address);
    let producer: FutureProducer = config
        .clone()
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", "0")
        .create()
        .expect("a producer");
    let consumer: StreamConsumer = config
        .set("group.id", &hand)
        .set("enable.auto.commit", "false")
        .set("fetch.min.bytes", "1")
        .set("fetch.wait.max.ms", "500")
        .set("isolation.level", "read_uncommitted")
        .create()
        .expect("a consumer");
    let mut list = TopicPartitionList::new();
    let added = list.add_partition_offset(&topic, 0, Offset::Beginning);
    added.expect("a partition");
    consumer.assign(&list).expect("assigned");
    compare("kafka", &one, &other, async |number| {
        let body = event(number, "working");
        let key = format!("task-{number}");
        let record = FutureRecord::to(&topic).key(&key).payload(&body[..]);
        let (sent, read) = tokio::join!(producer.send(record, PATIENCE), consumer.recv());
        sent.expect("sent");
        read.expect("read");
    })
    .await;
}

async fn on_jetstream(address: &str) {
    let prefix = unique();
    let transport = format!("{{ type: nats, servers: ['{address}'] }}");
    let (_one, one) = replica(&transport, &prefix).await;
    let (_other, other) = replica(&transport, &prefix).await;
    let hand = unique();
    let (_made, _) = replica(&transport, &hand).await;
    let writer = jetstream::new(async_nats::connect(address).await.expect("connected"));
    let reader = jetstream::new(async_nats::connect(address).await.expect("connected"));
    let config = jetstream::consumer::pull::OrderedConfig::default();
    let stream = format!("{}_TASKS", hand.to_uppercase());
    let consumer = reader.create_consumer_on_stream(config, stream).await;
    let consumer = consumer.expect("a consumer");
    let mut messages = consumer.messages().await.expect("messages");
    compare("jetstream", &one, &other, async |number| {
        let subject = format!("{hand}.tasks.task-{number}");
        let write = async {
            let stored = writer.publish(subject, event(number, "working")).await;
            stored.expect("sent").await.expect("stored");
        };
        let ((), read) = tokio::join!(write, messages.next());
        read.expect("a message").expect("read");
    })
    .await;
}

fn main() {
    // One thread: everything that the fold costs is on one core.
    let one = Builder::new_current_thread().enable_all().build();
    one.expect("a runtime").block_on(fold());
    let runtime = Runtime::new().expect("a runtime");
    for (variable, what) in [
        ("A2ABUS_TEST_KAFKA", "kafka"),
        ("A2ABUS_TEST_NATS", "jetstream"),
    ] {
        match (std::env::var(variable), what) {
            (Ok(address), "kafka") => runtime.block_on(on_kafka(&address)),
            (Ok(address), _) => runtime.block_on(on_jetstream(&address)),
            (Err(_), _) => println!("{what}: left out: {variable} is not set"),
        }
    }
}
