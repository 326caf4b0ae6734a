//! Thousands of schedules of faults, each decided by a seed: sends that are refused, confirmations that are lost,
//! messages that come twice or late, buses that go away. In each of them nothing is lost, nothing reaches somebody
//! else, no key loses its order, and the bridge ends.
//!
//! `A2ABUS_SCHEDULE=N` runs the schedule N only, with its log.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use a2abus_bridge::config::Config;
use a2abus_transports::memory::{FaultPlan, Memory, MemoryConfig};
use a2abus_transports::{Address, Consumer, Message, Outcome, Topic, Transport as _};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Duration, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::set_up::{body, build, group};

/// How many schedules are run.
const SCHEDULES: u64 = 10_000;
/// Events of each key, which nobody answers.
const EVENTS: usize = 4;
const KEYS: [&str; 2] = ["a", "b"];
/// Requesters; all use the same id.
const REQUESTERS: usize = 3;

/// With `WORKERS` in place of their number.
const CONFIG: &str = "
instance: test
transports: { source: { type: memory }, sink: { type: memory } }
bindings:
  - { name: in, transport: source, topics: [in], workers: WORKERS, reply_topics: ['clients.*'], dead_letter: { topic: dead } }
default_route: [{ transport: sink, topic: unknown }]
routes: [{ name: agents, when: { targetagent: '*' }, to: [{ transport: sink, topic: 'agents.{targetagent}' }] }]
calls: { timeout: 300s }
http: { enabled: false, drain_grace: 300s }
admin: { enabled: false }
";

/// Numbers that follow from a seed.
struct Draw(u64);

impl Draw {
    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        // The generator of Knuth's MMIX; its high bits are good.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        choices[usize::try_from(self.0 >> 33).unwrap() % choices.len()]
    }

    /// A bus, and whether anything goes wrong on it.
    fn bus(&mut self, seed: u64) -> (Memory, bool) {
        let mut plan = FaultPlan {
            refuse: self.one_of(&[0.0, 0.1, 0.3]),
            drop_confirmation: self.one_of(&[0.0, 0.1, 0.3]),
            late_confirmation: self.one_of(&[0.0, 0.0, 0.3]),
            duplicate: self.one_of(&[0.0, 0.1, 0.3]),
            delay: self.one_of(&[0.0, 0.2]),
            disconnect: self.one_of(&[0.0, 0.0, 0.05]),
            ..FaultPlan::default()
        };
        if self.one_of(&[true, false, false, false]) {
            plan = FaultPlan::default();
        }
        let config = MemoryConfig {
            partitions: self.one_of(&[1, 3]).try_into().unwrap(),
            ..MemoryConfig::default()
        };
        let is_faulty = plan != FaultPlan::default();
        (
            Memory::with_config_and_faults(config, seed, plan),
            is_faulty,
        )
    }
}

/// Waits by the clock of the schedule, which stands still while anything can run: longer than many failures in a row
/// make the bridge wait.
async fn within<T>(what: &str, condition: impl Future<Output = T>) -> T {
    let hour = Duration::from_secs(3_600);
    timeout(hour, condition)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within {hour:?}"))
}

async fn read(bus: &Memory, topic: &str) -> Consumer {
    loop {
        if let Ok(consumer) = bus.subscribe(group(topic, "test")).await {
            return consumer;
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// Publishes until the bus has confirmed it, as a careful client does.
async fn publish(bus: Memory, address: Address, message: Message) {
    loop {
        if let Ok(sent) = bus.send(&address, message.clone()).await
            && sent.await.is_ok()
        {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
}

fn topic(name: &str) -> Address {
    Address::topic(Topic::new(name).unwrap())
}

/// The next message, which may come again.
async fn take(consumer: &mut Consumer) -> (Message, Option<Topic>) {
    let delivery = consumer.recv().await.expect("the bus stays");
    // While the bus is down it cannot be settled, and comes again.
    let _ = delivery.acknowledger.settle(Outcome::Settled);
    (delivery.message, delivery.reply_to)
}

/// Answers each request with its own parameters.
async fn agent(bus: Memory, mut requests: Consumer) {
    loop {
        let (request, reply_to) = take(&mut requests).await;
        let request = body(&request);
        let answer = json!({"jsonrpc": "2.0", "id": request["id"], "result": request["params"]});
        let reply_to = Address::topic(reply_to.expect("a reply address"));
        publish(bus.clone(), reply_to, Message::plain(answer.to_string())).await;
    }
}

/// Sends the events of one key, one after the other.
async fn events(bus: Memory, key: &'static str) {
    for number in 0..EVENTS {
        let event = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {"_agentId": key, "n": number}});
        let message = Message {
            key: Some(key.to_owned().into()),
            ..Message::plain(event.to_string())
        };
        publish(bus.clone(), topic("in"), message).await;
    }
}

/// Asks, and waits for the answer: whether it is the agent's. It may be an error, since confirmations may be lost until
/// the deadline; it is never the answer of somebody else. Where nothing goes wrong, one answer comes, and it is the
/// agent's.
async fn requester(bus: Memory, number: usize, is_faulty: bool) -> bool {
    let inbox = format!("clients.{number}");
    let mut answers = read(&bus, &inbox).await;
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"_agentId": "echo", "n": number}});
    let address = Address {
        reply_to: Some(Topic::new(inbox.as_str()).unwrap()),
        ..topic("in")
    };
    publish(bus, address, Message::plain(request.to_string())).await;
    let (answer, _) = take(&mut answers).await;
    let answer = body(&answer);
    assert_eq!(answer["id"], 1, "{answer}");
    let is_answered = answer.get("error").is_none();
    if is_answered {
        assert_eq!(answer["result"]["n"], number, "{answer}");
    }
    if !is_faulty {
        assert!(is_answered, "{answer}");
        let second = timeout(Duration::from_secs(600), take(&mut answers)).await;
        assert!(second.is_err(), "a second answer came");
    }
    is_answered
}

/// Every event arrives, in the order of its key.
async fn listener(mut consumer: Consumer) {
    let mut numbers = BTreeSet::new();
    while numbers.len() < EVENTS {
        let (message, _) = take(&mut consumer).await;
        let number = usize::try_from(body(&message)["params"]["n"].as_u64().unwrap()).unwrap();
        // An event may arrive again; the first arrivals are in order.
        assert!(
            numbers.contains(&number) || number == numbers.len(),
            "{number} after {numbers:?}"
        );
        numbers.insert(number);
    }
}

/// How many requesters have the answer of the agent.
async fn schedule(config: Config, seed: u64) -> usize {
    let mut draw = Draw(seed);
    let ((source, faulty_source), (sink, faulty_sink)) = (draw.bus(seed), draw.bus(!seed));
    let bus = |name: &str| if name == "source" { &source } else { &sink };
    let bridge = build(config, bus).await;
    let readiness = Arc::clone(bridge.readiness());
    let stop = CancellationToken::new();
    let running = tokio::spawn(bridge.run(stop.clone()));
    let (mut work, mut requesters) = (JoinSet::new(), JoinSet::new());
    let echo = tokio::spawn(agent(sink.clone(), read(&sink, "agents.echo").await));
    for key in KEYS {
        let listener = listener(read(&sink, &format!("agents.{key}")).await);
        work.spawn(async move { within(&format!("the events of {key} arrive"), listener).await });
        work.spawn(events(source.clone(), key));
    }
    for number in 0..REQUESTERS {
        let requester = requester(source.clone(), number, faulty_source || faulty_sink);
        requesters.spawn(async move {
            within(&format!("requester {number} is answered"), requester).await
        });
    }
    work.join_all().await;
    let answered = requesters.join_all().await;
    assert!(!echo.is_finished(), "the agent goes on");
    within("the bridge is ready again", async {
        while !readiness.is_ready() {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    stop.cancel();
    within("the bridge drains", running).await.unwrap();
    echo.abort();
    answered
        .into_iter()
        .filter(|is_answered| *is_answered)
        .count()
}

#[test]
fn nothing_is_lost_crossed_or_stuck_in_any_schedule() {
    let one = std::env::var("A2ABUS_SCHEDULE").ok();
    let seeds = match one.map(|seed| seed.parse().expect("a number")) {
        Some(seed) => {
            tracing_subscriber::fmt()
                .with_max_level(tracing::Level::DEBUG)
                .with_ansi(false)
                .with_test_writer()
                .init();
            seed..seed + 1
        }
        None => 0..SCHEDULES,
    };
    let with = |workers| CONFIG.replace("WORKERS", workers);
    let read = |workers| Config::read("test.yaml", &with(workers), []).unwrap();
    let configs = ["1", "3"].map(read);
    let requests = usize::try_from(seeds.end - seeds.start).unwrap() * REQUESTERS;
    let (seeds, answered) = (Mutex::new(seeds), AtomicUsize::new(0));
    let next = || seeds.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                while let Some(seed) = next() {
                    let config = &configs[usize::from(seed % 2 == 1)];
                    answered.fetch_add(run(config, seed), Ordering::Relaxed);
                }
            });
        }
    });
    let answered = answered.into_inner();
    println!("{answered} of {requests} requests have the answer of the agent");
    // An error is right where faults go on until the deadline of the call, which is rare.
    assert!(answered * 100 >= requests * 99, "{answered} of {requests}");
}

fn run(config: &Config, seed: u64) -> usize {
    let _named = Named(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    runtime.unwrap().block_on(schedule(config.clone(), seed))
}

/// Says which schedule failed.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("failed: A2ABUS_SCHEDULE={}", self.0);
        }
    }
}
