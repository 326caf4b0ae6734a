//! When a view opens its log again, which problems it reports, and what a wait for a record costs.

use std::sync::atomic::AtomicUsize;

use futures_util::FutureExt as _;

use super::*;
use crate::state::{Lagged, LogSpec, MemoryLog, Record};

#[test]
fn a_log_is_opened_again_if_tasks_wait_for_its_records_and_none_is_read() {
    let mut state: State<()> = State::new();
    let position = Position::at(7);
    let mut wait = || {
        let (sender, receiver) = oneshot::channel();
        let waiting = state.waiting.as_mut().unwrap();
        waiting.entry(position).or_default().push(sender);
        receiver
    };
    let (first, second) = (wait(), wait());
    let looks = |state: &mut State<()>| (0..=LOOKS).map(|_| state.is_stuck()).collect::<Vec<_>>();
    assert_eq!(looks(&mut state), [false, false, true, false]);
    assert_eq!(looks(&mut state), [false, true, false, false]);
    // Records are read, but not yet that one.
    let mut cursor = Cursor::start();
    for next in 1..=2 * u64::from(LOOKS) {
        cursor.advance(0, next);
        state.reached(&cursor);
        assert!(!state.is_stuck());
    }
    // Nobody waits any more.
    drop((first, second));
    assert!(!looks(&mut state).contains(&true));
}

#[derive(Clone, Copy)]
struct Nothing;

impl Fold for Nothing {
    type Entry = ();

    fn apply(&self, _: &mut Option<()>, _: &Record) -> Applied {
        Applied::Unknown
    }

    fn size_bytes(&self, (): &()) -> usize {
        0
    }

    fn has_ended(&self, (): &()) -> bool {
        false
    }
}

/// A query of a log that is away may hold a thread for a long time.
#[tokio::test(start_paused = true)]
async fn there_is_one_query_at_a_time_whoever_still_waits_for_it() {
    let (last_end, queries) = (LastEnd::default(), Arc::new(AtomicUsize::new(0)));
    let ask = || {
        let queries = Arc::clone(&queries);
        let query = async move {
            queries.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(2 * ANSWER).await;
            Ok(Bounds::default())
        };
        last_end.at(Instant::now(), "test", query)
    };
    for _ in 0..3 {
        assert!(timeout(ANSWER / 2, ask()).await.is_err());
    }
    assert_eq!(queries.load(Ordering::Relaxed), 1);
    let (one, other) = tokio::join!(ask(), ask());
    assert_eq!(one.unwrap(), other.unwrap());
    assert_eq!(queries.load(Ordering::Relaxed), 2, "they share one");
}

#[tokio::test(start_paused = true)]
async fn a_state_is_rebuilt_if_it_may_have_missed_deletions() {
    let events = Kind::Events {
        life: 2 * DELETIONS,
        max_life: 2 * DELETIONS,
    };
    for (kind, is_rebuilt) in [(Kind::Latest, true), (events, false)] {
        let spec = LogSpec { name: "test", kind };
        let (view, _task) = View::start(MemoryLog::new(spec, 1 << 20), Nothing, 1 << 20);
        view.caught_up().await.unwrap();
        tokio::time::sleep(3 * SWEEP).await;
        let ((), mut following) = view.follow(None, 1, |_| ());
        // Nothing asks the log meanwhile.
        tokio::time::advance(DELETIONS + SWEEP).await;
        let next = timeout(3 * SWEEP, following.next()).await;
        let has_lagged = matches!(next, Ok(Err(Lagged)));
        assert_eq!(has_lagged, is_rebuilt, "{kind:?}");
        view.caught_up().await.unwrap();
    }
}

#[test]
fn a_host_that_was_suspended_may_have_missed_deletions() {
    let mut state: State<()> = State::new();
    assert!(!state.may_miss_deletions(Kind::Latest));
    // The monotonic clock stood still.
    state.read_at.wall -= clock::whole_milliseconds(DELETIONS) + 1;
    assert!(state.may_miss_deletions(Kind::Latest));
}

/// Its log answers all the time, and is opened again and again, but its records are not read.
#[tokio::test(start_paused = true)]
async fn a_state_is_rebuilt_once_its_log_is_read_again() {
    let kind = Kind::Latest;
    let spec = LogSpec { name: "test", kind };
    let (view, task) = View::start(MemoryLog::new(spec, 1 << 20), Nothing, 1 << 20);
    view.caught_up().await.unwrap();
    drop(task);
    tokio::time::advance(DELETIONS + SWEEP).await;
    let ((), mut following) = view.follow(None, 1, |_| ());
    let mut is_rebuilt = || matches!(following.next().now_or_never(), Some(Err(Lagged)));
    let shared = &view.shared;
    // It is opened, and nothing is read.
    shared.bounded(Bounds::default());
    shared.bounded(Bounds::default());
    assert!(!is_rebuilt());
    assert!(!shared.is_same().await);
    shared.bounded(Bounds::default());
    assert!(is_rebuilt());
    assert!(shared.is_same().await);
}

#[tokio::test(start_paused = true)]
async fn a_log_that_stores_no_records_is_reported_for_a_minute_or_until_it_stores_one() {
    let spec = LogSpec {
        name: "test",
        kind: Kind::Latest,
    };
    let log = MemoryLog::new(spec, 1 << 20);
    let (view, _task) = View::start(log, Nothing, 1 << 20);
    view.caught_up().await.unwrap();
    let unwritten = || view.progress().borrow().unwritten.clone();
    let fails = async |deadline| {
        let stored = view
            .stored(Box::pin(std::future::pending()), deadline)
            .await;
        assert!(matches!(stored, Err(StateError::NotStored { .. })));
    };
    fails(STORED / 4).await;
    assert_eq!(unwritten(), None);
    fails(STORED).await;
    assert!(unwritten().unwrap().contains("has not stored a record"));
    view.append_within("a", None, STORED).await.unwrap();
    assert_eq!(unwritten(), None);
    fails(STORED).await;
    tokio::time::sleep(FORGOTTEN - SWEEP).await;
    assert!(unwritten().is_some());
    tokio::time::sleep(3 * SWEEP).await;
    assert_eq!(unwritten(), None);
    let full = StateError::Disk {
        name: "test",
        path: "state/test.redb".into(),
        error: Arc::new(redb::Error::Io(std::io::ErrorKind::StorageFull.into())),
    };
    let refused = Box::pin(std::future::ready(Err(full)));
    assert!(view.stored(refused, STORED).await.is_err());
    assert!(unwritten().unwrap().contains("state/test.redb"));
}

/// Every task, and every call with an idempotency key, holds such a future.
#[tokio::test]
async fn the_future_of_a_record_is_small() {
    let spec = LogSpec {
        name: "test",
        kind: Kind::Latest,
    };
    let (view, _task) = View::start(MemoryLog::new(spec, 1 << 20), Nothing, 1 << 20);
    let bytes = size_of_val(&view.commit_again("a", None, STORED));
    assert!(bytes < 1_024, "{bytes} bytes");
}

#[test]
fn records_that_nobody_reads_are_a_problem_of_the_view() {
    let at = |next| {
        let mut cursor = Cursor::start();
        cursor.advance(0, next);
        cursor
    };
    let mut state: State<()> = State::new();
    // While the view starts, it says how many records are left.
    state.progress.end = at(5);
    assert!((0..2).all(|_| state.not_read().is_none()));
    state.reached(&at(5));
    assert!((0..2).all(|_| state.not_read().is_none()));
    state.progress.end = at(8);
    let problem = state.not_read().unwrap();
    assert_eq!(state.reads.note(Some(problem.clone())), 1);
    assert_eq!(state.reads.cause(), None);
    assert_eq!(state.reads.note(Some(problem.clone())), FAILURES);
    assert_eq!(state.reads.cause().as_deref(), Some(problem.as_str()));
    assert!(problem.contains("3 records"), "{problem}");
    state.reached(&at(6));
    assert_eq!(state.not_read(), None);
    assert!(state.not_read().unwrap().contains("2 records"));
    state.reached(&at(8));
    assert_eq!(state.not_read(), None);
    assert_eq!(state.reads.note(None), 0);
    assert_eq!(state.reads.cause(), None);
    // One partition is not read, although another is.
    state.progress.end.advance(1, 4);
    state.progress.end.advance(0, 9);
    assert!(state.not_read().is_some());
    state.reached(&at(9));
    assert!(state.not_read().is_some());
}
