//! Views over logs in memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use super::{
    Applied, Fold, Groups, Kind, Lagged, LogSpec, Logs, MemoryLog, Position, Record, StateError,
    View, ViewTask,
};
use crate::bus::Buses;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::readiness::Readiness;

const LONG: Duration = Duration::from_secs(60);
const EVENTS: LogSpec = LogSpec {
    name: "events",
    kind: Kind::Events {
        life: LONG,
        max_life: LONG,
    },
};
const LATEST: LogSpec = LogSpec {
    name: "latest",
    kind: Kind::Latest,
};
const ROOMY_BYTES: usize = 1 << 20;

/// A job: the first claim wins, parts are stored until the end, and later records change nothing.
struct Jobs;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Job {
    owner: Option<String>,
    parts: Vec<(Position, String)>,
    context: Option<String>,
    has_ended: bool,
}

impl Fold for Jobs {
    type Entry = Job;

    fn apply(&self, entry: &mut Option<Job>, record: &Record) -> Applied {
        let Some(text) = record.body.as_deref().and_then(|b| str::from_utf8(b).ok()) else {
            return Applied::Unknown;
        };
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        if !["claim", "part", "context", "end"].contains(&word) {
            return Applied::Unknown;
        }
        let job = entry.get_or_insert_default();
        match word {
            _ if job.has_ended => return Applied::Unchanged,
            "claim" if job.owner.is_some() => return Applied::Unchanged,
            "claim" => job.owner = Some(rest.to_owned()),
            "part" => job.parts.push((record.position, rest.to_owned())),
            "context" => job.context = Some(rest.to_owned()),
            _ => job.has_ended = true,
        }
        Applied::Changed
    }

    fn size_bytes(&self, job: &Job) -> usize {
        let parts = job.parts.iter().map(|(_, part)| part.len() + 48);
        size_of::<Job>() + parts.sum::<usize>()
    }

    fn has_ended(&self, job: &Job) -> bool {
        job.has_ended
    }

    fn groups<'a>(&self, job: &'a Job) -> Groups<&'a str> {
        [job.context.as_deref(), None]
    }
}

fn body(text: &str) -> Option<Bytes> {
    Some(Bytes::copy_from_slice(text.as_bytes()))
}

fn log() -> MemoryLog {
    MemoryLog::new(EVENTS, 1 << 20)
}

fn replica(log: &MemoryLog) -> (View<Jobs>, ViewTask) {
    View::start(log.clone(), Jobs, ROOMY_BYTES)
}

/// Appends, and waits until the view has it.
async fn commit(view: &View<Jobs>, key: &str, text: &str) -> Position {
    view.commit(key, body(text), LONG).await.unwrap()
}

fn jobs(view: &View<Jobs>) -> Vec<(String, Job)> {
    let mut jobs = view.read(|entries| {
        let jobs = entries.iter();
        jobs.map(|(key, job)| (key.to_owned(), job.clone()))
            .collect::<Vec<_>>()
    });
    jobs.sort_by(|one, other| one.0.cmp(&other.0));
    jobs
}

#[tokio::test]
async fn the_first_claim_wins_and_both_replicas_know() {
    let log = log();
    let (one, _one) = replica(&log);
    let (other, _other) = replica(&log);
    let claims = async |view: &View<Jobs>, name: &str| {
        let position = commit(view, "job", &format!("claim {name}")).await;
        let owner = view.read(|jobs| jobs.get("job").and_then(|job| job.owner.clone()));
        (position, owner.unwrap())
    };
    let ((first, says_one), (second, says_other)) =
        tokio::join!(claims(&one, "one"), claims(&other, "other"));
    assert_eq!(says_one, says_other);
    assert_eq!(says_one, if first < second { "one" } else { "other" });
}

#[tokio::test(start_paused = true)]
async fn the_metrics_of_a_ready_state_show_what_it_has_read() {
    let text =
        "{ transports: { bus: { type: memory } }, default_route: [{ transport: bus, topic: t }] }";
    let config = Config::read("test.yaml", text, []).unwrap();
    let readiness = Arc::new(Readiness::new());
    let metrics = Arc::new(Metrics::new().unwrap());
    let logs = Logs::new(&config, &Buses::new(Vec::new()), &readiness, &metrics);
    let log = logs.open(LATEST).await.unwrap();
    for key in ["one", "other"] {
        log.append(key, body("claim me")).await.unwrap();
    }
    let _view = logs.view(LATEST, Jobs).await.unwrap();
    readiness.started();
    while !readiness.is_ready() {
        tokio::task::yield_now().await;
    }
    let shown = metrics.render().unwrap();
    let entries = "a2abus_state_entries{state=\"latest\"} 2";
    assert!(shown.contains(entries), "{shown}");
}

#[tokio::test]
async fn a_replica_that_starts_later_catches_up() {
    let log = log();
    let (one, _one) = replica(&log);
    for number in 0..2_000 {
        one.append(
            &format!("job {}", number % 50),
            body(&format!("part {number}")),
        )
        .await
        .unwrap();
    }
    let last = commit(&one, "job 7", "end").await;
    let (other, _other) = replica(&log);
    other.caught_up().await.unwrap();
    let progress = other.progress().borrow().clone();
    assert!(progress.applied.has_passed(last), "{progress:?}");
    assert_eq!((progress.behind(), progress.records), (0, 2_001));
    assert_eq!(jobs(&one), jobs(&other));
}

#[tokio::test]
async fn a_replica_finds_what_another_has_stored_a_moment_ago() {
    let log = log();
    let (one, _one) = replica(&log);
    let (other, _other) = replica(&log);
    for number in 0..1_000 {
        let key = format!("job {number}");
        one.append(&key, body("part one")).await.unwrap();
        other.latest(Duration::from_secs(60)).await.unwrap();
        assert!(other.read(|jobs| jobs.get(&key).is_some()), "{key}");
    }
}

#[tokio::test]
async fn many_that_wait_for_the_latest_all_find_it() {
    let log = log();
    let (one, _one) = replica(&log);
    let (other, _other) = replica(&log);
    let all = (0..200).map(|number| {
        let (one, other) = (one.clone(), other.clone());
        async move {
            let key = format!("job {number}");
            one.append(&key, body("part one")).await.unwrap();
            other.latest(Duration::from_secs(60)).await.unwrap();
            assert!(other.read(|jobs| jobs.get(&key).is_some()), "{key}");
        }
    });
    futures_util::future::join_all(all).await;
}

#[tokio::test]
async fn an_empty_log_is_caught_up() {
    let (view, _task) = replica(&log());
    view.caught_up().await.unwrap();
}

#[tokio::test]
async fn a_follower_gets_what_changed_since_its_snapshot() {
    let (view, _task) = replica(&log());
    commit(&view, "job", "part one").await;
    let count = |entries: &super::Entries<Job>| entries.get("job").map(|job| job.parts.len());
    let (parts, mut following) = view.follow(Some("job"), 10, count);
    assert_eq!(parts, Some(1));
    commit(&view, "other", "part elsewhere").await;
    commit(&view, "job", "nonsense").await;
    let second = commit(&view, "job", "part two").await;
    let end = commit(&view, "job", "end").await;
    commit(&view, "job", "part too late").await;
    for expected in [second, end] {
        assert_eq!(following.next().await.unwrap().unwrap().position, expected);
    }
    assert_eq!(view.progress().borrow().unknown, 1);
    let (_, mut all) = view.follow(None, 10, |_| ());
    let elsewhere = commit(&view, "other", "end").await;
    assert_eq!(all.next().await.unwrap().unwrap().position, elsewhere);
}

#[tokio::test]
async fn a_slow_follower_knows_that_it_lost_records() {
    let (view, _task) = replica(&log());
    let ((), mut following) = view.follow(Some("job"), 2, |_| ());
    for number in 0..5 {
        commit(&view, "job", &format!("part {number}")).await;
    }
    assert!(following.next().await.unwrap().is_some());
    assert!(following.next().await.unwrap().is_some());
    assert_eq!(following.next().await, Err(Lagged));
}

#[tokio::test]
async fn the_end_of_a_view_ends_everything_that_waits_for_it() {
    let (view, task) = replica(&log());
    view.caught_up().await.unwrap();
    let ((), mut following) = view.follow(None, 2, |_| ());
    let never = Position::at(1_000);
    let waiting = view.clone();
    let waiting = tokio::spawn(async move { waiting.applied(never, LONG).await });
    tokio::task::yield_now().await;
    drop(task);
    assert_eq!(following.next().await, Ok(None));
    for ended in [waiting.await.unwrap(), view.applied(never, LONG).await] {
        assert!(
            matches!(ended, Err(StateError::Closed("events"))),
            "{ended:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_position_that_does_not_come_is_waited_for_until_the_deadline() {
    let (view, _task) = replica(&log());
    let never = Position::at(7);
    let error = view.applied(never, LONG).await.unwrap_err();
    assert!(error.is_uncertain());
    assert_eq!(
        error.to_string(),
        "the record at 0-7 of events was stored, but this replica is behind: it has not read it back in 60s"
    );
}

#[tokio::test]
async fn entries_are_found_by_their_group() {
    let (view, _task) = replica(&log());
    commit(&view, "b", "context red").await;
    commit(&view, "a", "context red").await;
    commit(&view, "c", "context blue").await;
    commit(&view, "b", "context blue").await;
    let keys = |group: &str| {
        view.read(|entries| {
            let keys = entries.group(group);
            keys.map(|(key, _)| key.to_owned()).collect::<Vec<_>>()
        })
    };
    assert_eq!(keys("red"), ["a"]);
    assert_eq!(keys("blue"), ["b", "c"]);
    assert!(keys("green").is_empty());
}

#[tokio::test]
async fn the_first_that_ended_are_forgotten_first_and_stay_forgotten() {
    let memory_bytes = 20_000;
    let (view, _task) = View::start(log(), Jobs, memory_bytes);
    let large = format!("part {}", "x".repeat(3_000));
    commit(&view, "running", &large).await;
    for number in 0..10 {
        let key = format!("job {number}");
        commit(&view, &key, &large).await;
        commit(&view, &key, "end").await;
    }
    let stored: Vec<String> = jobs(&view).into_iter().map(|(key, _)| key).collect();
    assert!(
        stored.contains(&"running".to_owned()) && stored.contains(&"job 9".to_owned()),
        "{stored:?}"
    );
    assert!(!stored.contains(&"job 0".to_owned()), "{stored:?}");
    assert!(view.read(super::Entries::bytes) <= memory_bytes);
    let forgotten = view.progress().borrow().forgotten;
    assert_eq!(stored.len() as u64 + forgotten, 11);
    commit(&view, "job 0", "claim a ghost").await;
    assert_eq!(view.read(|entries| entries.get("job 0").cloned()), None);
}

#[tokio::test]
async fn a_new_key_is_refused_while_all_others_are_needed() {
    let (view, _task) = View::start(log(), Jobs, 5_000);
    let large = format!("part {}", "x".repeat(6_000));
    commit(&view, "job", &large).await;
    let refused = view.append("another", body("claim it")).await.unwrap_err();
    assert!(matches!(refused, StateError::Full { .. }), "{refused}");
    assert!(!refused.is_uncertain());
    // Existing jobs can continue, and their end makes room.
    commit(&view, "job", "end").await;
    commit(&view, "another", "claim it").await;
}

#[tokio::test]
async fn the_last_record_of_a_key_is_what_a_latest_log_keeps() {
    let log = MemoryLog::new(LATEST, 1 << 20);
    let (one, _one) = replica(&log);
    for number in 0..100 {
        commit(&one, "a", &format!("claim {number}")).await;
    }
    commit(&one, "b", "claim b").await;
    one.commit("b", None, LONG).await.unwrap();
    assert_eq!(one.read(super::Entries::len), 1);
    let (other, _other) = replica(&log);
    other.caught_up().await.unwrap();
    assert_eq!(other.progress().borrow().records, 2);
    let owner = other.read(|entries| entries.get("a").unwrap().owner.clone());
    assert_eq!(owner.as_deref(), Some("99"));
    assert_eq!(other.read(super::Entries::len), 1);
}

#[tokio::test]
async fn a_batch_of_large_records_is_short() {
    let log = MemoryLog::new(EVENTS, 8 << 20);
    let large = body(&"x".repeat(700_000));
    for number in 0..3 {
        let key = format!("job {number}");
        log.append(&key, large.clone()).await.unwrap();
    }
    let mut reader = log.read(super::Cursor::start()).await.unwrap();
    for records in [2, 1] {
        assert_eq!(reader.next().await.unwrap().records.len(), records);
    }
}

#[tokio::test]
async fn a_record_that_is_larger_than_its_log_is_refused() {
    let log = log();
    let refused = log.append("job", body(&"x".repeat(2 << 20))).await;
    let error = refused.unwrap_err();
    assert!(matches!(error, StateError::TooLarge { .. }), "{error}");
    assert!(!error.is_transient() && !error.is_uncertain());
    assert_eq!(log.bounds().await.unwrap().end.next(0), 0);
}

#[tokio::test]
async fn keys_that_a_log_cannot_store_are_refused() {
    let log = log();
    for key in [String::new(), "k".repeat(513)] {
        let error = log.append(&key, None).await.unwrap_err();
        assert!(matches!(error, StateError::BadKey(_)), "{error}");
    }
}

/// What a history does: to which job, and what.
fn history() -> impl Strategy<Value = Vec<(u8, String)>> {
    let text = prop_oneof![
        "[ab]".prop_map(|name| format!("claim {name}")),
        "[a-z]{1,4}".prop_map(|part| format!("part {part}")),
        "[xy]".prop_map(|context| format!("context {context}")),
        Just("end".to_owned()),
        Just("nonsense".to_owned()),
    ];
    vec((0..6_u8, text), 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Two replicas with the same log agree: one reads while the other writes, or starts anywhere in between, and
    /// several partitions may be read in any order.
    #[test]
    fn replicas_agree(history in history(), starts in 0..60_usize, partitions in 1..4_u32, threads in 1..3_usize) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let log = MemoryLog::partitioned(EVENTS, 1 << 20, partitions);
            let (one, _one) = replica(&log);
            let mut restarted = replica(&log);
            for (number, (key, text)) in history.iter().enumerate() {
                if number == starts {
                    restarted = replica(&log);
                }
                one.append(&format!("job {key}"), body(text)).await.unwrap();
            }
            let end = log.bounds().await.unwrap().end;
            for (partition, next) in end.partitions().filter(|(_, next)| *next > 0) {
                let last = Position { partition, offset: next - 1 };
                one.applied(last, LONG).await.unwrap();
                restarted.0.applied(last, LONG).await.unwrap();
            }
            prop_assert_eq!(jobs(&one), jobs(&restarted.0));
            Ok(())
        })?;
    }
}
