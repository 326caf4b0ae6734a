use std::sync::Arc;

use a2abus_executor::{Change, Store as _, Table};
use proptest::prelude::*;

use super::*;
use crate::state::{MemoryLog, ViewTask};

const LOG_BYTES: usize = 16 << 20;

/// The logs, and the stores of the replicas that share them.
struct World {
    logs: [MemoryLog; 2],
    tasks: Vec<(ViewTask, ViewTask)>,
}

impl World {
    fn new() -> Self {
        let log = |spec| MemoryLog::partitioned(spec, LOG_BYTES, 3);
        Self {
            logs: [log(EXECUTIONS), log(STORAGE)],
            tasks: Vec::new(),
        }
    }

    /// A replica that starts.
    async fn replica(&mut self) -> Arc<SharedStore> {
        self.replica_with(LOG_BYTES).await
    }

    async fn replica_with(&mut self, memory_bytes: usize) -> Arc<SharedStore> {
        let [executions, values] = self.logs.clone();
        let (executions, first) = View::start(executions, ExecutionFold, memory_bytes);
        let (values, second) = View::start(values, ValueFold, memory_bytes);
        executions.caught_up().await.unwrap();
        values.caught_up().await.unwrap();
        self.tasks.push((first, second));
        Arc::new(SharedStore::new(executions, values, false))
    }
}

fn key(number: u8) -> String {
    format!("agent\0e-{number}")
}

/// What writes the record of an execution; `began` is when, as in the keys of lists.
fn changes(number: u8, began: u64, status: &str, what: &str) -> Vec<Change> {
    let change = |table, key, value: String| Change {
        table,
        key,
        value: Some(value.into()),
    };
    let record = format!(r#"{{"record":"{what}"}}"#);
    let summary = format!(r#"{{"bytes":1,"summary":{{"status":"{status}"}}}}"#);
    vec![
        change(Table::Executions, key(number), record),
        change(
            Table::Summaries,
            format!("agent\0{began:03}\0e-{number}"),
            summary,
        ),
    ]
}

fn in_an_hour() -> SystemTime {
    clock::now() + Duration::from_secs(3600)
}

async fn record(store: &SharedStore, number: u8) -> Option<String> {
    let found = store.get(Table::Executions, &key(number)).await.unwrap();
    found.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
}

#[tokio::test]
async fn one_replica_begins_an_execution_and_the_others_wait_for_its_record() {
    let mut world = World::new();
    let (first, second) = (world.replica().await, world.replica().await);
    let begin = |store: &Arc<SharedStore>| {
        let store = Arc::clone(store);
        async move {
            store
                .begin(changes(1, 1, "running", "x"), in_an_hour(), Vec::new())
                .await
                .unwrap()
        }
    };
    let (one, two) = tokio::join!(begin(&first), begin(&second));
    assert!(one ^ two, "exactly one runs it");
    let (runs, waits) = if one {
        (first, second)
    } else {
        (second, first)
    };
    assert!(waits.runs_elsewhere(&key(1)) && !runs.runs_elsewhere(&key(1)));
    // What does not run it writes nothing to its record.
    let foreign = waits.write(changes(1, 1, "success", "foreign")).await;
    assert!(foreign.is_ok(), "{foreign:?}");
    assert_eq!(record(&runs, 1).await.unwrap(), r#"{"record":"x"}"#);

    let waiting = {
        let waits = Arc::clone(&waits);
        tokio::spawn(async move { waits.until_idle(&key(1)).await })
    };
    let cancelled = {
        let runs = Arc::clone(&runs);
        tokio::spawn(async move { runs.until_cancelled(&key(1)).await })
    };
    assert!(waits.cancel(&key(1)).await.unwrap());
    cancelled.await.unwrap();
    runs.write(changes(1, 1, "success", "done")).await.unwrap();
    waiting.await.unwrap();
    assert_eq!(record(&waits, 1).await.unwrap(), r#"{"record":"done"}"#);
    assert!(
        !waits
            .begin(changes(1, 2, "running", "again"), in_an_hour(), Vec::new())
            .await
            .unwrap()
    );
    // One that starts later knows it as well.
    let third = world.replica().await;
    assert_eq!(record(&third, 1).await.unwrap(), r#"{"record":"done"}"#);
    let listed = third
        .scan(Table::Summaries, "agent\0", "", 10)
        .await
        .unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].0, "agent\u{0}001\u{0}e-1");
}

#[tokio::test]
async fn a_replica_whose_time_is_over_writes_nothing_once_another_has_begun() {
    let mut world = World::new();
    let (slow, quick) = (world.replica().await, world.replica().await);
    let over = clock::now() - Duration::from_secs(1);
    assert!(
        slow.begin(changes(1, 1, "running", "slow"), over, Vec::new())
            .await
            .unwrap()
    );
    assert!(!quick.runs_elsewhere(&key(1)));
    quick.until_idle(&key(1)).await;
    assert!(
        quick
            .begin(changes(1, 2, "running", "quick"), in_an_hour(), Vec::new())
            .await
            .unwrap()
    );
    let late = slow.write(changes(1, 1, "success", "slow")).await;
    assert!(late.is_err(), "the run that was replaced is refused");
    assert_eq!(record(&slow, 1).await.unwrap(), r#"{"record":"quick"}"#);
}

#[tokio::test]
async fn an_execution_that_did_not_begin_may_begin_elsewhere_at_once() {
    let mut world = World::new();
    let stuck = world.replica().await;
    // It stores records, but no longer reads them back.
    world.tasks.clear();
    let closed = async {
        while !stuck.executions.progress().borrow().is_closed {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), closed)
        .await
        .unwrap();
    let begun = stuck.begin(changes(1, 1, "running", "x"), in_an_hour(), Vec::new());
    assert!(begun.await.is_err());
    let other = world.replica().await;
    assert!(!other.runs_elsewhere(&key(1)), "nobody runs it");
    let begun = other.begin(changes(1, 2, "running", "y"), in_an_hour(), Vec::new());
    assert!(begun.await.unwrap());
}

#[tokio::test]
async fn a_last_record_that_is_not_stored_in_time_may_be_written_late() {
    let mut world = World::new();
    let store = world.replica().await;
    let begun = store.begin(changes(1, 1, "running", "x"), in_an_hour(), Vec::new());
    assert!(begun.await.unwrap());
    // It stores records, but no longer reads them back.
    world.tasks.clear();
    let ended = store.write(changes(1, 1, "success", "x")).await;
    let error = ended.unwrap_err();
    assert!(error.0.is::<StoreDelayed>(), "{error:?}");
}

#[tokio::test]
async fn an_execution_whose_record_was_removed_for_lack_of_memory_does_not_begin_again() {
    let mut world = World::new();
    let store = world.replica_with(40_000).await;
    let is_forgotten = |number| {
        let at = log_key(&key(number));
        store.executions.read(|entries| entries.is_forgotten(&at))
    };
    let mut number = 0;
    while !is_forgotten(0) {
        let begun = store.begin(changes(number, 1, "running", "x"), in_an_hour(), Vec::new());
        assert!(begun.await.unwrap());
        let ended = store.write(changes(number, 1, "success", "x")).await;
        assert!(ended.is_ok(), "{ended:?}");
        number += 1;
    }
    let at = log_key(&key(0));
    let next_offset = async || {
        let cancelled = Some(body::write(&Event::Cancelled));
        let position = store.executions.append(&at, cancelled).await;
        position.unwrap().offset
    };
    let before = next_offset().await;
    let begun = store.begin(changes(0, 2, "running", "x"), in_an_hour(), Vec::new());
    let error = begun.await.unwrap_err();
    assert!(error.0.is::<RecordForgotten>(), "{error:?}");
    assert_eq!(next_offset().await, before + 1, "nothing was recorded");
}

#[tokio::test]
async fn an_execution_is_cancelled_by_its_names_while_it_runs() {
    let mut world = World::new();
    let (runs, other) = (world.replica().await, world.replica().await);
    let names = vec!["call-1".into(), "task-1".into()];
    let begun = runs.begin(changes(1, 1, "running", "x"), in_an_hour(), names);
    assert!(begun.await.unwrap());
    runs.write(changes(1, 1, "running", "y")).await.unwrap();
    while record(&other, 1).await.as_deref() != Some(r#"{"record":"y"}"#) {
        tokio::task::yield_now().await;
    }
    for (agent, name) in [("agent", "call-2"), ("agen", "call-1"), ("agent", "e-1")] {
        assert!(!other.cancel_named(agent, name).await.unwrap(), "{name}");
    }
    let own = runs.cancel_named("agent", "call-1").await.unwrap();
    assert!(!own, "this replica runs it");
    assert!(other.cancel_named("agent", "task-1").await.unwrap());
    runs.until_cancelled(&key(1)).await;
    runs.write(changes(1, 1, "cancelled", "z")).await.unwrap();
    let third = world.replica().await;
    assert!(!third.cancel_named("agent", "task-1").await.unwrap());
}

#[test]
fn records_of_older_bridges_are_read() {
    let text = r#"{"begun":{"run":"r","until":1,"replaces":null,"execution":{"key":"k","summary_key":"s","record":{},"summary":{},"is_final":false}}}"#;
    let event: Event = serde_json::from_str(text).unwrap();
    assert!(matches!(event, Event::Begun { names, .. } if names.is_empty()));
}

#[tokio::test]
async fn keys_are_listed_page_by_page_for_one_agent_or_all() {
    let mut world = World::new();
    let store = world.replica().await;
    for agent in ["b", "a", "a-b"] {
        for number in [3, 1, 4, 0, 2] {
            let change = Change {
                table: Table::Local,
                key: format!("{agent}\0{number}"),
                value: Some(Bytes::from(number.to_string())),
            };
            store.write(vec![change]).await.unwrap();
        }
    }
    for (prefix, count) in [("a\0", 5), ("a", 10), ("", 15), ("a\0b", 0), ("c\0", 0)] {
        let (mut listed, mut after) = (Vec::new(), String::new());
        loop {
            let page = store.scan(Table::Local, prefix, &after, 2).await.unwrap();
            assert!(page.len() <= 2);
            let Some((last, _)) = page.last() else { break };
            after.clone_from(last);
            listed.extend(page);
        }
        assert_eq!(listed.len(), count, "{prefix:?}");
        assert!(listed.is_sorted());
        let fits = |(key, value): &(String, Bytes)| {
            key.starts_with(prefix) && key.as_bytes().ends_with(value)
        };
        assert!(listed.iter().all(fits), "{prefix:?}: {listed:?}");
    }
}

#[tokio::test]
async fn values_are_shared_and_counted_for_all() {
    let mut world = World::new();
    let (first, second) = (world.replica().await, world.replica().await);
    let put = |name: &str, value: Option<&'static str>| {
        vec![
            Change {
                table: Table::Local,
                key: format!("agent\0{name}"),
                value: value.map(Into::into),
            },
            Change {
                table: Table::Local,
                key: "agent\0".to_owned(),
                value: Some("{}".into()),
            },
        ]
    };
    first.write(put("a", Some("[1, 2]"))).await.unwrap();
    second.write(put("b", Some("3"))).await.unwrap();
    let third = world.replica().await;
    let get = async |key: &str| third.get(Table::Local, key).await.unwrap();
    assert_eq!(get("agent\0a").await.unwrap(), "[1, 2]");
    assert_eq!(get("agent\0").await.unwrap(), r#"{"bytes":7,"entries":2}"#);
    let page = third
        .scan(Table::Local, "agent\0", "agent\0a", 8)
        .await
        .unwrap();
    assert_eq!(page, [("agent\0b".to_owned(), Bytes::from("3"))]);
    third.write(put("a", None)).await.unwrap();
    assert_eq!(third.get(Table::Local, "agent\0a").await.unwrap(), None);
}

/// What a replica does.
#[derive(Debug, Clone)]
enum ReplicaAction {
    Begin(usize, u8),
    Write(usize, u8),
    End(usize, u8),
    /// It ends, and another process takes its place.
    Restart(usize),
}

fn step() -> impl Strategy<Value = ReplicaAction> {
    let (replica, number) = (0..3_usize, 0..2_u8);
    prop_oneof![
        4 => (replica.clone(), number.clone()).prop_map(|(r, n)| ReplicaAction::Begin(r, n)),
        2 => (replica.clone(), number.clone()).prop_map(|(r, n)| ReplicaAction::Write(r, n)),
        1 => (replica.clone(), number).prop_map(|(r, n)| ReplicaAction::End(r, n)),
        1 => replica.prop_map(ReplicaAction::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn an_execution_runs_on_one_replica_in_any_order(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut world = World::new();
            let mut stores = Vec::new();
            for _ in 0..3 {
                stores.push(world.replica().await);
            }
            // Who has begun each execution, and with which words its record was written last.
            let mut begun: HashMap<u8, (usize, String)> = HashMap::new();
            let mut ended = Vec::new();
            for (index, step) in steps.into_iter().enumerate() {
                let what = format!("{index}");
                match step {
                    ReplicaAction::Begin(replica, number) => {
                        let changes = changes(number, 1, "running", &what);
                        let is_new = stores[replica].begin(changes, in_an_hour(), Vec::new()).await.unwrap();
                        match begun.get(&number) {
                            None => assert!(is_new),
                            // Who runs it may begin it anew, unless it has ended.
                            Some((owner, _)) => {
                                let may = *owner == replica && !ended.contains(&number);
                                assert_eq!(is_new, may);
                            }
                        }
                        if is_new {
                            begun.insert(number, (replica, what));
                        }
                    }
                    ReplicaAction::Write(replica, number) | ReplicaAction::End(replica, number) => {
                        let status = if matches!(step, ReplicaAction::End(..)) { "success" } else { "running" };
                        let Some((owner, last)) = begun.get_mut(&number) else { continue };
                        if *owner != replica || ended.contains(&number) {
                            continue;
                        }
                        if status == "success" {
                            ended.push(number);
                        }
                        let written = stores[replica].write(changes(number, 1, status, &what)).await;
                        assert!(written.is_ok(), "{written:?}");
                        *last = what;
                    }
                    ReplicaAction::Restart(replica) => {
                        stores[replica] = world.replica().await;
                        // No replica may run its executions before its deadline.
                        for (owner, _) in begun.values_mut().filter(|(owner, _)| *owner == replica) {
                            *owner = usize::MAX;
                        }
                    }
                }
            }
            stores.push(world.replica().await);
            for (number, (_, last)) in begun {
                for store in &stores {
                    let at = log_key(&key(number));
                    while store.executions.read(|e| e.get(&at).is_none_or(|e| e.record != format!(r#"{{"record":"{last}"}}"#))) {
                        tokio::task::yield_now().await;
                    }
                }
            }
        });
    }
}
