//! Is what is recorded of an execution what happened, whatever fails meanwhile?

// Helpers of tests stand outside `#[test]` functions, where clippy does not know them for tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use a2abus_executor::case::Recorded;
use a2abus_executor::{
    Agent, Change, Environment, Executor, MemoryStore, OnError, Options, Rates, Refusal, Request,
    Started, Status, Store, StoreError, SystemRandom, Table, Value, VirtualClock,
};
use a2abus_plugin::protocol::a2e_workflow::{Apis, Policy};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;

/// A store that refuses the write of this number, from 1.
struct Failing {
    store: MemoryStore,
    writes: AtomicUsize,
    refused: usize,
}

impl Store for Failing {
    fn get<'a>(
        &'a self,
        table: Table,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        self.store.get(table, key)
    }

    fn write(&self, changes: Vec<Change>) -> BoxFuture<'_, Result<(), StoreError>> {
        if self.writes.fetch_add(1, Ordering::Relaxed) + 1 == self.refused {
            return Box::pin(async { Err(StoreError("the disk is full".into())) });
        }
        self.store.write(changes)
    }

    fn scan<'a>(
        &'a self,
        table: Table,
        prefix: &'a str,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, Bytes)>, StoreError>> {
        self.store.scan(table, prefix, most)
    }
}

struct World {
    clock: VirtualClock,
    http: Arc<Recorded>,
    store: Arc<Failing>,
    agent: Arc<Agent>,
}

impl World {
    fn new(refused: usize) -> Self {
        let answers = r#"{"POST https://api.example.com/a":[{"status":201,"headers":{"content-type":"application/json"},"body":1}]}"#;
        let answers = Value::parse(answers.as_bytes()).unwrap();
        let clock = VirtualClock::default();
        let policy = Policy {
            operations: ["*"].into_iter().collect(),
            apis: Apis::parse(["https://api.example.com"]).unwrap(),
            ..Policy::default()
        };
        let agent = Agent::new("tester".into(), policy, BTreeMap::new(), Rates::default());
        Self {
            http: Arc::new(Recorded::new(answers.as_object().unwrap(), clock.clone())),
            clock,
            store: Arc::new(Failing {
                store: MemoryStore::default(),
                writes: AtomicUsize::new(0),
                refused,
            }),
            agent: Arc::new(agent),
        }
    }

    /// A process: what it remembers beside the store ends with it.
    fn executor(&self) -> Executor {
        let environment = Environment {
            clock: Arc::new(self.clock.clone()),
            random: Arc::new(SystemRandom::new().unwrap()),
            http: Arc::clone(&self.http) as Arc<_>,
            store: Arc::clone(&self.store) as Arc<_>,
        };
        Executor::new(environment, Options::default())
    }

    async fn begin(&self, executor: &Executor, lines: &str) -> Started {
        let request = Request {
            workflow: lines.to_owned().into(),
            on_error: OnError::Continue,
            ..Request::default()
        };
        executor.execute(&self.agent, request).await.unwrap()
    }
}

const POST: &str =
    r#""ApiCall":{"method":"POST","url":"https://api.example.com/a","outputPath":"/workflow/a"}"#;
const WAIT: &str = r#""Wait":{"duration":5}"#;

fn workflow(operations: &[&str]) -> String {
    let mut lines = String::new();
    let mut order = Vec::new();
    for (index, operation) in operations.iter().enumerate() {
        lines += &format!(
            "{{\"type\":\"operationUpdate\",\"operationId\":\"o{index}\",\"operation\":{{{operation}}}}}\n"
        );
        order.push(format!("\"o{index}\""));
    }
    let order = order.join(",");
    lines
        + &format!(
            "{{\"type\":\"beginExecution\",\"executionId\":\"e\",\"operationOrder\":[{order}]}}"
        )
}

async fn finished(started: Started) -> Arc<a2abus_executor::Record> {
    match started {
        Started::New(execution) => execution.finish().await,
        Started::Finished(record) => record,
        Started::Running(_) => panic!("it runs nowhere"),
    }
}

#[tokio::test]
async fn no_request_that_acts_is_sent_while_that_cannot_be_recorded() {
    // The first write says that it runs, the second that it may act.
    let world = World::new(2);
    let executor = world.executor();
    let record = finished(world.begin(&executor, &workflow(&[POST, POST])).await).await;
    assert_eq!(record.status(), Status::PartialSuccess);
    assert_eq!(world.http.requests().len(), 1);
    // Were it marked although nothing was written, a process that ends now would repeat the second.
    let writes = world.store.writes.load(Ordering::Relaxed);
    assert_eq!(writes, 4, "running, refused, marked, ended");
}

#[tokio::test]
async fn an_execution_whose_values_cannot_be_stored_has_ended_all_the_same() {
    let world = World::new(2);
    let executor = world.executor();
    let lines = workflow(&[WAIT]);
    let record = finished(world.begin(&executor, &lines).await).await;
    assert_eq!(record.status(), Status::Success);
    let kept = executor
        .record(world.agent.id(), "e")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(kept.status(), Status::Success);
    assert!(kept.results().unwrap().is_empty());
}

#[tokio::test]
async fn what_was_begun_and_had_not_acted_runs_again_and_is_listed_once() {
    let world = World::new(0);
    let lines = workflow(&[WAIT, POST]);
    let Started::New(execution) = world.begin(&world.executor(), &lines).await else {
        panic!("it is new")
    };
    drop(execution);
    let executor = world.executor();
    let stands = executor
        .record(world.agent.id(), "e")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(stands.status(), Status::Failed, "nobody runs it");
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
async fn what_was_begun_and_may_have_acted_is_not_run_again() {
    let world = World::new(0);
    let lines = workflow(&[POST, WAIT]);
    let Started::New(mut execution) = world.begin(&world.executor(), &lines).await else {
        panic!("it is new")
    };
    // The call has begun and ended; the process ends before the rest.
    while world.http.requests().is_empty() {
        execution.next().await;
    }
    drop(execution);
    let executor = world.executor();
    let record = finished(world.begin(&executor, &lines).await).await;
    assert_eq!(record.status(), Status::Failed);
    let error = record.answer().get("error").cloned().unwrap();
    assert_eq!(error.get("code"), Some(&"interrupted".into()));
    assert_eq!(world.http.requests().len(), 1);
}

#[tokio::test]
async fn the_same_request_is_answered_from_its_record_and_another_is_refused() {
    let world = World::new(0);
    let executor = world.executor();
    let first = finished(world.begin(&executor, &workflow(&[POST])).await).await;
    let again = finished(world.begin(&executor, &workflow(&[POST])).await).await;
    assert_eq!(first.answer(), again.answer());
    assert_eq!(world.http.requests().len(), 1);
    let request = Request {
        workflow: workflow(&[WAIT]).into(),
        ..Request::default()
    };
    let other = executor.execute(&world.agent, request).await;
    assert!(matches!(other, Err(Refusal::Conflict(id)) if id == "e"));
}
