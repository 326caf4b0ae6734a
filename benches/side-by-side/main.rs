//! How fast is the bridge in each scenario, compared with a loop written by hand and with other programs?
//!
//! ```text
//! cargo build --workspace --release
//! cargo bench --workspace --bench side-by-side -- [SCENARIO...] [--messages N] [--rounds N] [--only NAME]
//! ```
//!
//! Every contestant is a process of its own and moves the same messages (1 KiB each, 4 partitions) from the source to a
//! destination of its own, at least once. They take turns, so that all meet the same machine, and in each round another
//! one begins. Printed are medians and, after ±, half of the range: messages per second, CPU seconds of the process per
//! million messages, and the most memory it had. What is measured begins with the first message at the destination, so
//! that joining a group does not count.
//!
//! The scenarios `http-nats` and `http-kafka` are calls over HTTP to an agent behind a broker.
//!
//! Needs running brokers: `tests/run --brokers-only` prints the two variables to set. `MQ_BRIDGE` and `BENTO` name the
//! programs of those peers; without them they are left out. `A2ABUS` names another binary of the bridge.
#![allow(
    missing_docs,
    // It looks on from outside, without a runtime.
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used
)]

mod brokers;
mod by_hand;
mod calls;
mod contestant;

use std::time::{Duration, Instant};

use bench_support::{is_bench, scale};
use brokers::{Brokers, Scenario};
use contestant::{Contestant, Process, Usage};

/// Nothing takes longer.
const PATIENCE: Duration = Duration::from_secs(180);
/// How often the destination is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// What one contestant did in one round.
#[derive(Clone, Copy)]
struct Score {
    per_second: f64,
    cpu_per_million: f64,
    memory_mib: f64,
}

struct Arguments {
    scenarios: Vec<Scenario>,
    calls: Vec<calls::Bus>,
    messages: u64,
    rounds: usize,
    /// The only contestant.
    only: Option<String>,
}

// === impl Arguments ===

impl Arguments {
    fn read(arguments: &[String]) -> Self {
        let number = |name: &str, otherwise: u64| {
            let at = arguments.iter().position(|argument| argument == name);
            at.map_or(otherwise, |at| arguments[at + 1].parse().expect("a number"))
        };
        let only = arguments.iter().position(|argument| argument == "--only");
        let scenarios = arguments.iter().filter_map(|name| Scenario::named(name));
        let mut scenarios: Vec<Scenario> = scenarios.collect();
        let calls = arguments.iter().filter_map(|name| calls::Bus::named(name));
        let mut calls: Vec<calls::Bus> = calls.collect();
        if scenarios.is_empty() && calls.is_empty() {
            (scenarios, calls) = (Scenario::ALL.to_vec(), calls::Bus::ALL.to_vec());
        }
        Self {
            scenarios,
            calls,
            messages: number("--messages", scale(200_000, 1_000) as u64),
            rounds: usize::try_from(number("--rounds", scale(5, 1) as u64)).expect("few"),
            only: only.map(|at| arguments[at + 1].clone()),
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first_chunk::<2>().map(|a| [&*a[0], &*a[1]]) {
        Some(["by-hand", work]) => return by_hand::run(work),
        Some(["by-hand-proxy", work]) => return calls::run_by_hand(work),
        _ => {}
    }
    let Some(brokers) = Brokers::of_environment() else {
        return println!("skipped: A2ABUS_TEST_KAFKA and A2ABUS_TEST_NATS name no servers");
    };
    let bridge = contestant::bridge();
    if !bridge.exists() {
        return println!(
            "skipped: there is no {}: run cargo build --workspace --release, or name a binary in A2ABUS",
            bridge.display()
        );
    }
    let arguments = Arguments::read(&arguments);
    for scenario in &arguments.scenarios {
        let source = brokers.fill(*scenario, arguments.messages);
        let mut contestants = Contestant::all(*scenario);
        contestants.retain(|who| {
            arguments
                .only
                .as_deref()
                .is_none_or(|only| only == who.name())
        });
        let mut scores = vec![Vec::new(); contestants.len()];
        for round in 0..arguments.rounds {
            for turn in 0..contestants.len() {
                let index = (round + turn) % contestants.len();
                match score(
                    &brokers,
                    *scenario,
                    &source,
                    contestants[index],
                    arguments.messages,
                ) {
                    Ok(score) => scores[index].push(score),
                    // A peer may fail in a round of a bench; a test fails.
                    Err(why) if is_bench() => {
                        eprintln!("{}, round {round}: {why}", contestants[index].name());
                    }
                    Err(why) => panic!("{}: {why}", contestants[index].name()),
                }
            }
        }
        brokers.remove(*scenario, &source);
        table(*scenario, &contestants, &scores);
    }
    for bus in &arguments.calls {
        calls::compare(&brokers, *bus, arguments.rounds, arguments.only.as_deref());
    }
}

/// One round of one contestant.
fn score(
    brokers: &Brokers,
    scenario: Scenario,
    source: &str,
    contestant: Contestant,
    messages: u64,
) -> Result<Score, String> {
    let destination = brokers.open(scenario);
    let process = Process::start(contestant, scenario, brokers, source, &destination.name);
    let start = Instant::now();
    let mut first: Option<(u64, Instant, Usage)> = None;
    loop {
        let count = destination.count();
        let (now, usage) = (Instant::now(), process.usage()?);
        match first {
            None if count > 0 => first = Some((count, now, usage)),
            Some((before, since, used)) if count >= messages => {
                let moved = (count - before) as f64;
                return Ok(Score {
                    per_second: moved / (now - since).as_secs_f64(),
                    cpu_per_million: (usage.cpu - used.cpu).as_secs_f64() * 1e6 / moved,
                    memory_mib: usage.peak_bytes as f64 / f64::from(1 << 20),
                });
            }
            _ => {}
        }
        if start.elapsed() > PATIENCE {
            return Err(format!("{count} of {messages} arrived in {PATIENCE:?}"));
        }
        std::thread::sleep(LOOK);
    }
}

fn table(scenario: Scenario, contestants: &[Contestant], scores: &[Vec<Score>]) {
    let ours = summary(&scores[0], |score| score.per_second).0;
    println!("\n{}", scenario.title());
    println!("| | msg/s | CPU s per million | MiB | a2abus is |");
    println!("|---|---|---|---|---|");
    for (contestant, scores) in contestants.iter().zip(scores) {
        let (speed, speed_range) = summary(scores, |score| score.per_second);
        let (cpu, cpu_range) = summary(scores, |score| score.cpu_per_million);
        let (memory, _) = summary(scores, |score| score.memory_mib);
        println!(
            "| {} | {speed:.0} ± {speed_range:.0} | {cpu:.1} ± {cpu_range:.1} | {memory:.0} | {:.2}x |",
            contestant.name(),
            ours / speed
        );
    }
}

/// The median, and half of the range.
fn summary(scores: &[Score], field: fn(&Score) -> f64) -> (f64, f64) {
    let mut values: Vec<f64> = scores.iter().map(field).collect();
    values.sort_by(f64::total_cmp);
    match (values.first(), values.last()) {
        (Some(least), Some(most)) => (values[values.len() / 2], (most - least) / 2.0),
        _ => (f64::NAN, f64::NAN),
    }
}
