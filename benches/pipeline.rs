//! What does a message cost on its way through a binding, and does a binding use every core?
//!
//! ```text
//! topic in memory, 16 lanes, full before it begins ──> bridge, or a loop by hand ──> topic of another bus in memory
//! ```
//!
//! The bridge runs on one thread, and on two with as many workers. Two bridges that share nothing show what a second
//! thread can bring on this machine. The loop by hand is one task that sends each message on and settles it, without a
//! look at its bytes. They take turns. Printed are medians: messages per second, CPU time of the process and
//! allocations per message. `A2ABUS_BENCH_ROUNDS` (5) is how many turns there are, `A2ABUS_BENCH_MESSAGES` (100000) how
//! many messages each takes.
#![allow(
    missing_docs,
    unsafe_code,
    // It looks on from outside the runtime.
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "benchmarks fail by panicking, print their figures, and count allocations"
)]

use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeMap;
use std::num::{NonZeroU16, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use a2abus_bridge::Bridge;
use a2abus_bridge::config::Config;
use a2abus_transports::memory::{Memory, MemoryConfig};
use a2abus_transports::{
    Address, AnyTransport, Message, Outcome, Reading, Subscription, Topic, TopicFilter,
    Transport as _,
};
use bench_support::{Filling, cpu_us, median, request, scale};
use bytes::Bytes;
use tikv_jemallocator::Jemalloc;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

/// The allocator of the program, which counts.
struct Counting(AtomicU64);

#[global_allocator]
static ALLOCATOR: Counting = Counting(AtomicU64::new(0));

const KEYS: usize = 1_000;
const BYTES: usize = 1_024;
const READY: Duration = Duration::from_secs(60);

/// With `WORKERS` in place of their number.
const CONFIG: &str = "
transports: { from: { type: memory }, to: { type: memory } }
bindings: [{ name: in, transport: from, topics: [in], group: bench, workers: WORKERS, dead_letter: { transport: to, topic: dead } }]
routes: [{ name: out, when: { targetagent: weather }, to: [{ transport: to, topic: out }] }]
http: { enabled: false }
admin: { enabled: false }
telemetry: { log: 'off' }
";

struct Cost {
    per_second: f64,
    cpu_us: f64,
    allocations: f64,
}

// SAFETY: all calls go to the allocator of the program.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the arguments are those of the caller.
        unsafe { Jemalloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the arguments are those of the caller.
        unsafe { Jemalloc.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.0.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the arguments are those of the caller.
        unsafe { Jemalloc.realloc(at, layout, size) }
    }
}

fn topic(name: &str) -> Topic {
    Topic::new(name).expect("a topic")
}

fn unbounded() -> Memory {
    Memory::new(MemoryConfig {
        partitions: NonZeroU16::new(16).expect("more than none"),
        capacity_messages: NonZeroUsize::MAX,
        capacity_bytes: NonZeroUsize::MAX,
        ..MemoryConfig::default()
    })
}

/// A bus whose topic `in` is full of messages.
async fn loaded(messages: usize) -> Memory {
    let memory = unbounded();
    let (to, body) = (Address::topic(topic("in")), request(BYTES, Filling::Text));
    for index in 0..messages {
        // Each has bytes of its own, as if a client had read it.
        let mut message = Message::plain(Bytes::copy_from_slice(&body));
        message.key = Some((index % KEYS).to_string().into());
        let sent = memory.send(&to, message).await.expect("it takes it");
        sent.await.expect("it stores it");
    }
    memory
}

/// Sends every message on, and settles it.
async fn by_hand(memory: Memory, messages: usize, _: usize) {
    let subscription = Subscription {
        topics: vec![TopicFilter::new("in").expect("a topic")],
        reading: Reading::Group("bench".into()),
        budget_bytes: 16 << 20,
        budget_messages: 10_000,
    };
    let mut source = memory.subscribe(subscription).await.expect("subscribed");
    let (destination, to) = (unbounded(), Address::topic(topic("out")));
    for _ in 0..messages {
        let delivery = source.recv().await.expect("the topic is full");
        let sent = destination.send(&to, delivery.message).await;
        sent.expect("it takes it").await.expect("it stores it");
        let _settled = delivery.acknowledger.settle(Outcome::Settled);
    }
}

async fn through_the_bridge(memory: Memory, messages: usize, workers: usize) {
    let text = CONFIG.replace("WORKERS", &workers.to_string());
    let config = Config::read("bench", &text, []).unwrap_or_else(|problems| panic!("{problems}"));
    let buses = config.transports.keys().cloned();
    let transports = buses.zip([memory, unbounded()].map(AnyTransport::Memory));
    let transports = BTreeMap::from_iter(transports);
    let bridge = Bridge::build_on(config, transports).await;
    let bridge = bridge.expect("the bridge is built");
    let (metrics, stop) = (Arc::clone(bridge.metrics()), CancellationToken::new());
    let running = tokio::spawn(bridge.run(stop.clone()));
    let start = Instant::now();
    let settled = format!("a2abus_settled_total{{binding=\"in\"}} {messages}\n");
    while !metrics.render().expect("text").contains(&settled) {
        assert!(start.elapsed() < READY, "it has not settled {messages}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stop.cancel();
    running.await.expect("the bridge ends in order");
}

/// What it costs to move the messages of full topics, by so many bridges or loops that share nothing, each on so many
/// threads.
fn measure<F: Future<Output = ()> + Send + 'static>(
    (instances, threads): (usize, usize),
    messages: usize,
    work: impl Fn(Memory, usize, usize) -> F,
) -> Cost {
    let loaded = || {
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(threads).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let memory = runtime.block_on(loaded(messages / instances));
        (runtime, memory)
    };
    let loaded: Vec<_> = (0..instances).map(|_| loaded()).collect();
    let (cpu, allocations) = (cpu_us(), ALLOCATOR.0.load(Ordering::Relaxed));
    let started = Instant::now();
    let start = |(runtime, memory): (Runtime, Memory)| {
        let task = runtime.spawn(work(memory, messages / instances, threads));
        (runtime, task)
    };
    let running: Vec<_> = loaded.into_iter().map(start).collect();
    for (runtime, task) in running {
        runtime.block_on(task).expect("it ends in order");
    }
    let count = messages as f64;
    Cost {
        per_second: count / started.elapsed().as_secs_f64(),
        cpu_us: (cpu_us() - cpu) / count,
        allocations: (ALLOCATOR.0.load(Ordering::Relaxed) - allocations) as f64 / count,
    }
}

fn setting(name: &str, default: usize) -> usize {
    let set = std::env::var(name).ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() {
    let messages = setting("A2ABUS_BENCH_MESSAGES", scale(100_000, 100));
    let mut costs: [Vec<Cost>; 4] = Default::default();
    for _ in 0..setting("A2ABUS_BENCH_ROUNDS", scale(5, 1)) {
        costs[0].push(measure((1, 1), messages, by_hand));
        costs[1].push(measure((1, 1), messages, through_the_bridge));
        costs[2].push(measure((1, 2), messages, through_the_bridge));
        costs[3].push(measure((2, 1), messages, through_the_bridge));
    }
    let of = |costs: &[Cost], field: fn(&Cost) -> f64| median(costs.iter().map(field).collect());
    let base = of(&costs[1], |cost| cost.per_second);
    let names = [
        "a loop by hand",
        "the bridge, 1 thread",
        "the bridge, 2 threads",
        "2 bridges, 1 thread each",
    ];
    for (name, costs) in names.iter().zip(&costs) {
        let rate = of(costs, |cost| cost.per_second);
        let (cpu, allocations) = (
            of(costs, |cost| cost.cpu_us),
            of(costs, |cost| cost.allocations),
        );
        let ratio = rate / base;
        println!(
            "{name:<24} {rate:>8.0} messages/s ({ratio:.2}), {cpu:>5.2} us CPU, {allocations:>5.1} allocations"
        );
    }
}
