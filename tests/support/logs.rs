//! The named cases that every log of the state passes, with views of it in two replicas.
//!
//! A [`Logs`] says how to make a log and how another replica opens it; [`run`] runs one [`Case`] against it.

use std::future::Future;
use std::time::Duration;

use a2abus_bridge::state::{
    AnyLog, Applied, Cursor, Entries, Fold, Kind, LogSpec, MAX_KEY_BYTES, Position, Record,
    StateError, View, ViewTask,
};
use bytes::Bytes;

use crate::battery::{DEADLINE, within};

/// Where logs are made.
pub trait Logs: Sync {
    /// A new empty log.
    fn create(&self, spec: LogSpec) -> impl Future<Output = String> + Send;

    /// The log of that name, as one replica has it.
    fn open(&self, spec: LogSpec, name: &str) -> impl Future<Output = AnyLog> + Send;

    /// A body that is larger than the log takes.
    fn oversize_bytes(&self) -> Option<usize>;

    /// Releases an unused log, as the end of a process does.
    fn restart(&self, _name: &str) {}
}

/// One case of the battery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the names are the sentences; the functions below say the rest"
)]
pub enum Case {
    PositionsGrow,
    HistoryThenLive,
    ReadFromAnywhere,
    AnyKey,
    TheLastRecordOfAKey,
    OneClaimWins,
    RestartsAgree,
    StreamsResume,
    Oversize,
    NothingIsLostByARestart,
}

/// All cases.
pub const CASES: [Case; 10] = [
    Case::PositionsGrow,
    Case::HistoryThenLive,
    Case::ReadFromAnywhere,
    Case::AnyKey,
    Case::TheLastRecordOfAKey,
    Case::OneClaimWins,
    Case::RestartsAgree,
    Case::StreamsResume,
    Case::Oversize,
    Case::NothingIsLostByARestart,
];

const EVENTS: LogSpec = LogSpec {
    name: "events",
    kind: Kind::Events {
        life: Duration::from_secs(3_600),
        max_life: Duration::from_secs(3_600),
    },
};
const LATEST: LogSpec = LogSpec {
    name: "latest",
    kind: Kind::Latest,
};
const ROOMY_BYTES: usize = 64 << 20;

/// Stores the records of each key in order, and its first owner.
#[derive(Debug)]
pub struct History;

/// The records of one key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Item {
    /// The first claim.
    pub owner: Option<String>,
    /// The rest.
    pub parts: Vec<(Position, Bytes)>,
}

impl Fold for History {
    type Entry = Item;

    fn apply(&self, entry: &mut Option<Item>, record: &Record) -> Applied {
        let Some(body) = &record.body else {
            return Applied::Unknown;
        };
        let item = entry.get_or_insert_default();
        match body.strip_prefix(b"claim ") {
            Some(_) if item.owner.is_some() => return Applied::Unchanged,
            Some(name) => item.owner = Some(String::from_utf8_lossy(name).into_owned()),
            None => item.parts.push((record.position, body.clone())),
        }
        Applied::Changed
    }

    fn size_bytes(&self, item: &Item) -> usize {
        let parts = item.parts.iter().map(|(_, part)| part.len() + 64);
        parts.sum::<usize>()
    }
}

/// Runs one case.
pub async fn run(case: Case, logs: &impl Logs) {
    match case {
        Case::PositionsGrow => positions_grow(logs).await,
        Case::HistoryThenLive => history_then_live(logs).await,
        Case::ReadFromAnywhere => read_from_anywhere(logs).await,
        Case::AnyKey => any_key(logs).await,
        Case::TheLastRecordOfAKey => the_last_record_of_a_key(logs).await,
        Case::OneClaimWins => one_claim_wins(logs).await,
        Case::RestartsAgree => restarts_agree(logs).await,
        Case::StreamsResume => streams_resume(logs).await,
        Case::Oversize => oversize(logs).await,
        Case::NothingIsLostByARestart => nothing_is_lost_by_a_restart(logs).await,
    }
}

/// A replica with a view of a log.
pub type Replica = (View<History>, ViewTask);

/// A new log, and how many replicas with a view of it.
pub async fn replicas<const N: usize>(logs: &impl Logs, spec: LogSpec) -> (String, [Replica; N]) {
    let name = logs.create(spec.clone()).await;
    let mut replicas = Vec::new();
    for _ in 0..N {
        replicas.push(replica(logs, &spec, &name).await);
    }
    let replicas = <[Replica; N]>::try_from(replicas);
    (name, replicas.expect("as many as asked for"))
}

async fn replica(logs: &impl Logs, spec: &LogSpec, name: &str) -> Replica {
    View::start(logs.open(spec.clone(), name).await, History, ROOMY_BYTES)
}

fn body(text: impl AsRef<str>) -> Option<Bytes> {
    Some(Bytes::copy_from_slice(text.as_ref().as_bytes()))
}

/// Appends, and waits until the view has it.
pub async fn commit(view: &View<History>, key: &str, text: impl AsRef<str>) -> Position {
    let position = view.commit(key, body(text), DEADLINE).await;
    position.expect("appended and applied")
}

fn items(entries: &Entries<Item>) -> Vec<(String, Item)> {
    let mut items: Vec<_> = entries
        .iter()
        .map(|(key, item)| (key.to_owned(), item.clone()))
        .collect();
    items.sort_by(|one, other| one.0.cmp(&other.0));
    items
}

/// Waits until a view has reached the current end of the log.
async fn at_the_end(log: &AnyLog, view: &View<History>) {
    let end = log.bounds().await.expect("the log has an end").end;
    let mut progress = view.progress();
    let reached = progress.wait_for(|progress| progress.applied.behind(&end) == 0);
    drop(
        within("the end of the log", reached)
            .await
            .expect("the view lives"),
    );
}

async fn positions_grow(logs: &impl Logs) {
    let name = logs.create(EVENTS).await;
    let log = logs.open(EVENTS, &name).await;
    let start = log.bounds().await.unwrap_or_default();
    assert_eq!(start.start, start.end, "a new log is empty");
    let mut last = None;
    for number in 0..50 {
        let position = log.append("key", body(format!("{number}"))).await;
        let position = position.expect("appended");
        assert!(last < Some(position), "{last:?} {position}");
        last = Some(position);
    }
    let end = log.bounds().await.expect("the log has an end").end;
    assert!(last.is_some_and(|last| end.has_passed(last)), "{end:?}");
    assert_eq!(start.end.behind(&end), 50);
}

async fn history_then_live(logs: &impl Logs) {
    let name = logs.create(EVENTS).await;
    let log = logs.open(EVENTS, &name).await;
    let mut appended = Vec::new();
    let append = async |number: u32| {
        let key = format!("key {}", number % 7);
        let position = log.append(&key, body(number.to_string())).await;
        (position.expect("appended"), key, body(number.to_string()))
    };
    for number in 0..100 {
        appended.push(append(number).await);
    }
    let mut reader = log.read(Cursor::start()).await.expect("reading starts");
    for number in 100..200 {
        appended.push(append(number).await);
    }
    let mut read = Vec::new();
    while read.len() < appended.len() {
        let batch = within("records", reader.next())
            .await
            .expect("the log goes on");
        for record in batch.records {
            assert!(batch.reached.has_passed(record.position));
            assert!(record.time > 1_700_000_000_000, "{}", record.time);
            read.push((record.position, record.key.to_string(), record.body));
        }
    }
    // The order between partitions is undefined.
    read.sort();
    appended.sort();
    assert_eq!(read, appended);
}

async fn read_from_anywhere(logs: &impl Logs) {
    let name = logs.create(EVENTS).await;
    let log = logs.open(EVENTS, &name).await;
    let mut positions = Vec::new();
    for number in 0..20 {
        let position = log.append("key", body(format!("{number}"))).await;
        positions.push(position.expect("appended"));
    }
    for from in [0, 7, 19] {
        let mut cursor = Cursor::start();
        cursor.advance(positions[from].partition, positions[from].offset);
        let mut reader = log.read(cursor).await.expect("reading starts");
        let mut read = Vec::new();
        while read.len() < positions.len() - from {
            let batch = within("records", reader.next())
                .await
                .expect("the log goes on");
            read.extend(batch.records.into_iter().map(|record| record.position));
        }
        assert_eq!(read, positions[from..]);
    }
}

async fn any_key(logs: &impl Logs) {
    let keys = [
        "a".to_owned(),
        "0190b0c1-7d5c-7c1c-8a3e-3f1a2b3c4d5e".to_owned(),
        "agent/key.with_dots and spaces".to_owned(),
        "_x41__".to_owned(),
        "-".to_owned(),
        ">*$%\n\u{e4}\u{1f980}".to_owned(),
        "k".repeat(MAX_KEY_BYTES),
        "\u{1f980}".repeat(MAX_KEY_BYTES / 4),
    ];
    let (_, [(one, _one), (other, _other)]) = replicas(logs, EVENTS).await;
    for key in &keys {
        let position = commit(&one, key, "part").await;
        within("the other", other.applied(position, DEADLINE))
            .await
            .expect("applied");
        let item = other.read(|entries| entries.get(key).cloned());
        assert_eq!(item.map(|item| item.parts.len()), Some(1), "{key}");
    }
    for key in [String::new(), "k".repeat(MAX_KEY_BYTES + 1)] {
        let refused = one.append(&key, body("x")).await;
        assert!(matches!(refused, Err(StateError::BadKey(_))), "{refused:?}");
    }
}

async fn the_last_record_of_a_key(logs: &impl Logs) {
    let (name, [(one, _one), (other, _other)]) = replicas(logs, LATEST).await;
    for number in 0..10 {
        commit(&one, "kept", format!("part {number}")).await;
    }
    commit(&one, "deleted", "part").await;
    let deleted = one
        .commit("deleted", None, DEADLINE)
        .await
        .expect("deleted");
    within("the deletion", other.applied(deleted, DEADLINE))
        .await
        .expect("applied");
    for view in [&one, &other] {
        assert!(view.read(|entries| entries.get("deleted").is_none()));
    }
    let (later, _later) = replica(logs, &LATEST, &name).await;
    within("the later one", later.caught_up())
        .await
        .expect("caught up");
    let last = later.read(|entries| {
        assert!(entries.get("deleted").is_none());
        entries
            .get("kept")
            .and_then(|item| item.parts.last().cloned())
    });
    assert_eq!(last.map(|(_, part)| part), body("part 9"));
}

async fn one_claim_wins(logs: &impl Logs) {
    let (_, [(one, _one), (other, _other)]) = replicas(logs, EVENTS).await;
    for number in 0..20 {
        let key = format!("job {number}");
        let claim = async |view: &View<History>, name: &str| {
            let position = commit(view, &key, format!("claim {name}")).await;
            let owner = view.read(|entries| entries.get(&key).and_then(|job| job.owner.clone()));
            (position, owner)
        };
        let (one, other) = tokio::join!(claim(&one, "one"), claim(&other, "other"));
        assert_eq!(one.1, other.1, "both know who won {key}");
        let first = if one.0 < other.0 { "one" } else { "other" };
        assert_eq!(
            one.1.as_deref(),
            Some(first),
            "the first claim of {key} wins"
        );
    }
}

async fn restarts_agree(logs: &impl Logs) {
    let (name, [(one, _one), (other, _other)]) = replicas(logs, EVENTS).await;
    let mut views = Vec::new();
    for number in 0..300_u32 {
        // Both write to all keys; others begin to read here and there.
        let writer = if number % 3 == 0 { &other } else { &one };
        let key = format!("key {}", number % 11);
        writer
            .append(&key, body(format!("part {number}")))
            .await
            .expect("appended");
        if number % 100 == 37 {
            views.push(replica(logs, &EVENTS, &name).await);
        }
    }
    views.push(replica(logs, &EVENTS, &name).await);
    let log = logs.open(EVENTS, &name).await;
    at_the_end(&log, &one).await;
    at_the_end(&log, &other).await;
    let expected = one.read(items);
    assert_eq!(
        expected
            .iter()
            .map(|(_, item)| item.parts.len())
            .sum::<usize>(),
        300
    );
    assert_eq!(other.read(items), expected);
    for (view, _task) in &views {
        within("a view", view.caught_up()).await.expect("caught up");
        at_the_end(&log, view).await;
        assert_eq!(view.read(items), expected);
    }
}

/// A subscription of one replica continues on the other, from the id of the last event, without gaps or duplicates.
async fn streams_resume(logs: &impl Logs) {
    let (_, [(one, _one), (other, _other)]) = replicas(logs, EVENTS).await;
    let mut positions = Vec::new();
    let ((), mut following) = one.follow(Some("task"), 100, |_| ());
    for number in 0..5 {
        commit(&one, "task", format!("part {number}")).await;
        commit(&one, "another task", "part").await;
    }
    for _ in 0..3 {
        let record = within("a record", following.next()).await.expect("in time");
        positions.push(record.expect("the view lives").position);
    }
    drop(following);
    let last: Position = positions[2].to_string().parse().expect("an event id");
    // The other replica may not have it yet.
    within("the last event", other.applied(last, DEADLINE))
        .await
        .expect("applied");
    let (missed, mut following) = other.follow(Some("task"), 100, |entries| {
        let parts = entries.get("task").map(|item| item.parts.clone());
        let parts = parts.unwrap_or_default().into_iter();
        parts
            .map(|(position, _)| position)
            .filter(|at| *at > last)
            .collect::<Vec<_>>()
    });
    positions.extend(missed);
    commit(&one, "task", "part 5").await;
    while positions.len() < 6 {
        let record = within("a record", following.next()).await.expect("in time");
        positions.push(record.expect("the view lives").position);
    }
    let all = one
        .read(|entries| entries.get("task").cloned())
        .expect("a story");
    let all: Vec<Position> = all
        .parts
        .into_iter()
        .map(|(position, _)| position)
        .collect();
    assert_eq!(positions, all);
}

async fn oversize(logs: &impl Logs) {
    let Some(bytes) = logs.oversize_bytes() else {
        return;
    };
    let (_, [(view, _task)]) = replicas(logs, EVENTS).await;
    let refused = view.append("key", body("x".repeat(bytes))).await;
    let error = refused.expect_err("it is too large");
    assert!(!error.is_uncertain(), "{error}");
    assert!(error.to_string().contains("too_large"), "{error}");
    commit(&view, "key", "part").await;
}

async fn nothing_is_lost_by_a_restart(logs: &impl Logs) {
    let (name, [(one, task)]) = replicas(logs, EVENTS).await;
    for number in 0..100 {
        one.append(
            &format!("key {}", number % 9),
            body(format!("part {number}")),
        )
        .await
        .expect("appended");
    }
    let last = commit(&one, "key 0", "part 100").await;
    // A commit says nothing about the other partitions.
    let log = logs.open(EVENTS, &name).await;
    at_the_end(&log, &one).await;
    drop(log);
    let expected = one.read(items);
    drop(task);
    drop(one);
    logs.restart(&name);
    let (again, _again) = replica(logs, &EVENTS, &name).await;
    within("the view", again.caught_up())
        .await
        .expect("caught up");
    assert_eq!(again.read(items), expected);
    assert!(commit(&again, "key 0", "part 101").await > last);
}
