//! What becomes of a request that was interrupted, stopped or refused, and of one that comes again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use a2abus_executor::{
    Agent, Change, Executor, Json, MemoryStore, Options, Record, Refusal, Request, Started, Status,
    Store, StoreError, Table, VirtualClock,
};
use bytes::Bytes;
use futures_util::future::{BoxFuture, join};
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::Semaphore;

use super::{
    GET, POST, Silent, WAIT, World, agent, begin_as, begun, executor_on, finished, named,
    record_of, request, run, silent, workflow,
};

type Executing<'a> = BoxFuture<'a, Result<Started, Refusal>>;

/// A store whose reads of records wait for permits.
struct Gated {
    store: MemoryStore,
    gate: Semaphore,
}

impl Store for Gated {
    fn get<'a>(
        &'a self,
        table: Table,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        Box::pin(async move {
            if table == Table::Executions {
                self.gate.acquire().await.unwrap().forget();
            }
            self.store.get(table, key).await
        })
    }

    fn write(&self, changes: Vec<Change>) -> BoxFuture<'_, Result<(), StoreError>> {
        self.store.write(changes)
    }

    fn scan<'a>(
        &'a self,
        table: Table,
        prefix: &'a str,
        after: &'a str,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, Bytes)>, StoreError>> {
        self.store.scan(table, prefix, after, most)
    }
}

#[tokio::test]
async fn an_execution_that_ends_on_another_replica_while_its_record_is_read_is_not_interrupted() {
    for operation in [POST, r#""Wait":{"duration":0}"#] {
        let world = World::new(0);
        let record = finished(
            world
                .begin(&world.executor(), &workflow(&[operation]))
                .await,
        )
        .await;
        assert_eq!(record.status(), Status::Success);
        let written = world.store.writes.load(Ordering::Relaxed);
        world.store.is_behind.store(true, Ordering::Relaxed);
        let again = world
            .begin(&world.executor(), &workflow(&[operation]))
            .await;
        assert_eq!(finished(again).await.answer(), record.answer());
        assert_eq!(world.store.writes.load(Ordering::Relaxed), written);
    }
}

#[tokio::test]
async fn no_request_that_acts_is_sent_while_that_cannot_be_recorded() {
    // The first write records that it runs, the second that it may have acted.
    let world = World::new(2);
    let executor = world.executor();
    let record = finished(world.begin(&executor, &workflow(&[POST, POST])).await).await;
    assert_eq!(record.status(), Status::PartialSuccess);
    assert_eq!(world.http.requests().len(), 1);
    // If it were marked although the write failed, a process that dies now would repeat the second.
    let writes = world.store.writes.load(Ordering::Relaxed);
    assert_eq!(writes, 4, "running, refused, marked, ended");
}

#[tokio::test]
async fn an_interrupted_execution_that_had_not_acted_runs_again_and_is_listed_once() {
    let world = World::new(0);
    let lines = workflow(&[WAIT, POST]);
    let execution = begun(world.begin(&world.executor(), &lines).await);
    drop(execution);
    let executor = world.executor();
    let stands = record_of(&executor, &world.agent, "e").await;
    assert_eq!(stands.status(), Status::Failed, "nobody runs it");
    let error = stands.to_value().get("error").cloned().unwrap();
    assert_eq!(error.get("code"), Some(&"stopped".into()));
    let suggestion = "send it again, also under the same execution id";
    assert!(error.to_string().contains(suggestion), "{error}");
    let failed = executor.records(world.agent.id(), Some(Status::Failed), 9);
    assert_eq!(failed.await.unwrap(), [stands]);
    world.clock.advance(Duration::from_secs(3_600));
    let record = finished(world.begin(&executor, &lines).await).await;
    assert_eq!(record.status(), Status::Success);
    assert_eq!(
        executor
            .records(world.agent.id(), None, 10)
            .await
            .unwrap()
            .len(),
        1
    );
    world.clock.advance(Duration::from_secs(23 * 3_600 + 1_800));
    assert_eq!(executor.expire().await.unwrap(), 0);
    assert!(
        executor
            .record(world.agent.id(), "e")
            .await
            .unwrap()
            .is_some()
    );
    world.clock.advance(Duration::from_secs(3_600));
    assert_eq!(executor.expire().await.unwrap(), 1);
    assert!(
        executor
            .record(world.agent.id(), "e")
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test]
async fn an_interrupted_execution_that_may_have_acted_does_not_run_again() {
    let world = World::new(0);
    let lines = workflow(&[POST, WAIT]);
    let mut execution = begun(world.begin(&world.executor(), &lines).await);
    // The call has begun and ended; the process dies before the rest.
    while world.http.requests().is_empty() {
        execution.next().await;
    }
    drop(execution);
    let executor = world.executor();
    let shown = record_of(&executor, &world.agent, "e").await;
    let record = finished(world.begin(&executor, &lines).await).await;
    assert_eq!(shown.answer(), record.answer());
    assert_eq!(record.status(), Status::Failed);
    let error = record.answer().get("error").cloned().unwrap();
    assert_eq!(error.get("code"), Some(&"interrupted".into()));
    assert_eq!(world.http.requests().len(), 1);
    // Only the request that has found it is told, so that it is counted once.
    assert!(record.is_newly_interrupted());
    // Its answer comes after all its events, however many there were.
    assert_eq!(record.reports(), 0x7fff_ffff);
    let again = finished(world.begin(&executor, &lines).await).await;
    assert_eq!(again.answer(), record.answer());
    assert!(!again.is_newly_interrupted());
    assert_eq!(again.reports(), record.reports());
}

#[tokio::test]
async fn the_same_request_is_answered_from_its_record_and_another_is_refused() {
    let world = World::new(0);
    let executor = world.executor();
    let first = finished(world.begin(&executor, &workflow(&[POST])).await).await;
    let again = finished(world.begin(&executor, &workflow(&[POST])).await).await;
    assert_eq!(first.answer(), again.answer());
    assert_eq!(world.http.requests().len(), 1);
    let request = request(workflow(&[WAIT]));
    let other = executor.execute(&world.agent, request).await;
    assert!(matches!(other, Err(Refusal::Conflict(id)) if id == "e"));
}

/// A request of another workflow and one of the same, with the same id. Both have looked for the execution, and neither
/// has read its record.
fn both_read<'a>(
    executor: &'a Executor,
    agent: &'a Arc<Agent>,
    store: &Gated,
) -> (Executing<'a>, Executing<'a>) {
    store.gate.forget_permits(99);
    let workflows = [&[WAIT, WAIT][..], &[WAIT]];
    let [other, again] = workflows.map(|operations| {
        let request = request(workflow(operations));
        let mut executing: Executing<'_> = Box::pin(executor.execute(agent, request));
        assert!((&mut executing).now_or_never().is_none(), "it reads");
        executing
    });
    store.gate.add_permits(99);
    (other, again)
}

#[tokio::test]
async fn a_request_keeps_its_id_while_another_with_the_same_id_is_being_refused() {
    for has_ended in [true, false] {
        let (agent, silent) = (agent("a"), silent());
        let store = Arc::new(Gated {
            store: MemoryStore::default(),
            gate: Semaphore::new(99),
        });
        let clock = VirtualClock::default();
        let executor = executor_on(clock, silent, Arc::clone(&store), Options::default());
        let first = begun(begin_as(&executor, &agent, workflow(&[WAIT])).await);
        match has_ended {
            true => assert_eq!(first.finish().await.status(), Status::Success),
            false => drop(first),
        }

        let (other, again) = both_read(&executor, &agent, &store);
        let (again, other) = join(again, other).await;
        match again {
            Ok(Started::Finished(record)) if has_ended => {
                assert_eq!(record.status(), Status::Success);
            }
            // It was abandoned, so it runs again.
            Ok(Started::New(execution)) if !has_ended => drop(execution),
            again => panic!("{again:?}"),
        }
        assert!(matches!(other, Err(Refusal::Conflict(id)) if id == "e"));
    }
}

#[tokio::test]
async fn a_request_does_not_wait_for_the_end_of_another_workflow_that_got_its_expired_id() {
    let (agent, silent) = (agent("a"), silent());
    let store = Arc::new(Gated {
        store: MemoryStore::default(),
        gate: Semaphore::new(99),
    });
    let clock = VirtualClock::default();
    let executor = executor_on(
        clock.clone(),
        silent,
        Arc::clone(&store),
        Options::default(),
    );
    drop(begun(begin_as(&executor, &agent, workflow(&[WAIT])).await));

    let (other, mut again) = both_read(&executor, &agent, &store);
    // The record is its own, so the other one will be refused; but the record expires first.
    assert!((&mut again).now_or_never().is_none(), "it waits");
    clock.advance(Duration::from_secs(25 * 3_600));
    let execution = begun(other.await.unwrap());
    let refused = again.now_or_never().expect("it waits for the execution");
    assert!(matches!(refused, Err(Refusal::Conflict(id)) if id == "e"));
    drop(execution);
}

#[tokio::test]
async fn a_request_over_the_limit_changes_no_record() {
    let world = World::new(0);
    let mut options = Options::default();
    options.limits.max_concurrent = 1;
    let executor = world.executor_with(options);
    let agent = agent("a");
    let ended = begin_as(&executor, &agent, named("y", &[WAIT])).await;
    drop(ended);
    let running = begun(begin_as(&executor, &agent, named("x", &[WAIT])).await);
    let request = request(named("y", &[WAIT]));
    let refused = executor.execute(&agent, request.clone()).await;
    assert!(matches!(refused, Err(Refusal::Busy(1))), "{refused:?}");
    assert!(executor.record(agent.id(), "y").await.unwrap().is_some());
    // An execution that is cancelled before it begins does not count as concurrent.
    let cancelled = Request {
        is_cancelled: true,
        ..request
    };
    let record = run(&executor, &agent, cancelled).await;
    assert_eq!(record.status(), Status::Cancelled);
    running.finish().await;
}

/// An executor whose calls are never answered, and their service.
fn unanswered(world: &World) -> (Executor, Arc<Silent>) {
    let silent = silent();
    let executor = world.executor_calling(Arc::clone(&silent), Options::default());
    (executor, silent)
}

/// The operations of a record: id, state, requests.
fn operations(record: &Record) -> Vec<String> {
    let record = record.to_value();
    let entries = record.get("operations").and_then(Json::as_array).unwrap();
    let entry = |entry: &Json| {
        let [id, status, attempts] =
            ["operationId", "status", "attempts"].map(|name| entry.get(name).unwrap());
        format!("{id} {status} {attempts}").replace('"', "")
    };
    entries.iter().map(entry).collect()
}

#[tokio::test]
async fn operations_are_reported_while_they_run_and_a_cancelled_call_counts_its_request() {
    let world = World::new(0);
    let (executor, silent) = unanswered(&world);
    let lines = workflow(&[WAIT, POST]);
    let execution = begun(world.begin(&executor, &lines).await);
    let agent = world.agent.id();
    let cancel = async {
        silent.requested.notified().await;
        let record = record_of(&executor, &world.agent, "e").await;
        assert_eq!(record.status(), Status::Running);
        assert_eq!(operations(&record), ["o0 success 0", "o1 running 0"]);
        assert!(executor.cancel(agent, "e"));
    };
    let (record, ()) = tokio::join!(execution.finish(), cancel);
    assert_eq!(record.status(), Status::Cancelled);
    assert_eq!(operations(&record), ["o0 success 0", "o1 failed 1"]);
    let stored = record_of(&executor, &world.agent, "e").await;
    assert_eq!(operations(&stored), operations(&record));
}

#[tokio::test]
async fn a_stopped_execution_runs_again_unless_it_may_have_acted() {
    let world = World::new(0);
    let (executor, silent) = unanswered(&world);
    let agent = world.agent.id();
    let stopped = async |lines: &str, id: &str, is_cancelled: bool| {
        let execution = begun(world.begin(&executor, lines).await);
        let stop = async {
            silent.requested.notified().await;
            assert!(!is_cancelled || executor.cancel(agent, id));
            assert!(executor.stop(agent, id));
        };
        tokio::join!(execution.finish(), stop).0
    };
    let code = |record: &Record| {
        let error = record.answer().get("error").cloned().unwrap();
        error.get("code").unwrap().to_string()
    };

    let reads = named("reads", &[WAIT, GET]);
    let record = stopped(&reads, "reads", false).await;
    assert_eq!(record.status(), Status::Failed);
    assert_eq!(code(&record), r#""stopped""#);
    let error = record.answer().to_string();
    assert!(error.contains("http.drain_grace"), "{error}");
    let shown = record_of(&executor, &world.agent, "reads").await;
    assert_eq!(shown.answer(), record.answer());
    let again = world.begin(&world.executor(), &reads).await;
    assert!(matches!(again, Started::New(_)), "{again:?}");

    let acts = named("acts", &[WAIT, POST]);
    let record = stopped(&acts, "acts", false).await;
    assert_eq!(record.status(), Status::Failed);
    assert_eq!(code(&record), r#""interrupted""#);
    let again = finished(world.begin(&world.executor(), &acts).await).await;
    assert_eq!(again.answer(), record.answer());

    let cancelled = named("cancelled", &[GET]);
    let record = stopped(&cancelled, "cancelled", true).await;
    assert_eq!(
        record.status(),
        Status::Cancelled,
        "its requester was first"
    );
}

#[tokio::test]
async fn a_request_whose_record_was_removed_for_lack_of_memory_is_refused() {
    let world = World::new(0);
    let executor = world.executor();
    let request = Request {
        cancel_names: vec!["call-1".into()],
        ..request(workflow(&[WAIT]))
    };
    world.store.forgets.store(true, Ordering::Relaxed);
    let refused = executor.execute(&world.agent, request.clone()).await;
    assert!(matches!(refused, Err(Refusal::Forgotten(id)) if id == "e"));
    // It was not running meanwhile, and runs once the store has no trace of it.
    world.store.forgets.store(false, Ordering::Relaxed);
    let record = run(&executor, &world.agent, request).await;
    assert_eq!(record.status(), Status::Success);
    assert_eq!(*world.store.names.lock().unwrap(), ["call-1"]);
}
