//! Records that are written late, and requests that wait for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use a2abus_executor::{
    Agent, Change, Clock, Event, Executor, MemoryStore, Options, Record, Refusal, Request, Started,
    Status, Store, StoreDelayed, StoreError, Table, VirtualClock,
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::{agent, begun, executor_on, large, reads_of, record_of, silent};

/// A store whose writes wait for permits.
struct Slow {
    store: MemoryStore,
    gate: Semaphore,
    /// How many writes wait.
    waiting: AtomicUsize,
}

impl Store for Slow {
    reads_of!(store);

    fn write(&self, changes: Vec<Change>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            self.gate.acquire().await.unwrap().forget();
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.store.write(changes).await
        })
    }
}

/// An executor and its store, which holds back the last record of an execution of this agent. Another execution of it
/// was abandoned.
async fn held_back(
    clock: impl Clock + 'static,
    agent: &Arc<Agent>,
) -> (Executor, Arc<Slow>, JoinHandle<Arc<Record>>) {
    let store = Arc::new(Slow {
        store: MemoryStore::default(),
        // The first records of two executions are written.
        gate: Semaphore::new(2),
        waiting: AtomicUsize::new(0),
    });
    let executor = executor_on(clock, silent(), Arc::clone(&store), Options::default());
    let abandoned = executor.execute(agent, large("abandoned", 9)).await;
    drop(begun(abandoned.unwrap()));
    let first = begun(executor.execute(agent, large("first", 9)).await.unwrap());
    let ending = tokio::spawn(first.finish());
    while store.waiting.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    (executor, store, ending)
}

/// A clock that advances only as the test says: its sleeps do not end.
#[derive(Clone, Default)]
struct StoppedClock(VirtualClock);

impl Clock for StoppedClock {
    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn now(&self) -> SystemTime {
        self.0.now()
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn a_request_that_expires_while_it_waits_for_a_write_of_its_agent_does_not_run() {
    let (clock, agent) = (StoppedClock::default(), agent("a"));
    let (executor, store, ending) = held_back(clock.clone(), &agent).await;
    let request = Request {
        deadline: Some(clock.now() + Duration::from_secs(60)),
        ..large("second", 9)
    };
    let mut beginning = Box::pin(executor.execute(&agent, request));
    assert!((&mut beginning).now_or_never().is_none(), "it waits");
    clock.0.advance(Duration::from_secs(61));
    store.gate.add_permits(9);
    let refused = beginning.await;
    assert!(matches!(refused, Err(Refusal::Expired(_))), "{refused:?}");
    assert_eq!(ending.await.unwrap().status(), Status::Success);
}

#[tokio::test]
async fn a_request_does_not_wait_long_for_a_write_of_its_agent() {
    let agent = agent("a");
    // Its sleeps end at once.
    let (executor, store, ending) = held_back(VirtualClock::default(), &agent).await;
    for id in ["second", "abandoned"] {
        let beginning = Box::pin(executor.execute(&agent, large(id, 9)));
        let refused = beginning.now_or_never();
        assert!(
            matches!(refused, Some(Err(Refusal::Store(_)))),
            "{id}: {refused:?}"
        );
    }
    store.gate.add_permits(9);
    assert_eq!(ending.await.unwrap().status(), Status::Success);
    for id in ["second", "abandoned"] {
        let begun = executor.execute(&agent, large(id, 9)).await;
        assert!(matches!(begun, Ok(Started::New(_))), "{id}: {begun:?}");
    }
}

/// A store that can be unavailable for a while, and writes late records once there is a permit.
struct Away {
    store: MemoryStore,
    is_away: AtomicBool,
    gate: Semaphore,
}

impl Away {
    /// The record of an execution of the agent `a`, as it is stored.
    async fn record(&self, id: &str) -> String {
        let stored = self.store.get(Table::Executions, &format!("a\0{id}")).await;
        String::from_utf8(stored.unwrap().unwrap().to_vec()).unwrap()
    }
}

impl Store for Away {
    reads_of!(store);

    fn write(&self, changes: Vec<Change>) -> BoxFuture<'_, Result<(), StoreError>> {
        if self.is_away.load(Ordering::Relaxed) {
            return Box::pin(async { Err(StoreError(StoreDelayed("away".into()).into())) });
        }
        self.store.write(changes)
    }

    fn write_late(&self, changes: Vec<Change>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let _pass = self.gate.acquire().await.unwrap();
            self.store.write(changes).await
        })
    }
}

#[tokio::test]
async fn an_execution_ends_before_its_record_is_stored_late() {
    let store = Arc::new(Away {
        store: MemoryStore::default(),
        is_away: AtomicBool::new(false),
        gate: Semaphore::new(0),
    });
    let mut options = Options::default();
    options.limits.max_concurrent = 1;
    let clock = VirtualClock::default();
    let executor = executor_on(clock, silent(), Arc::clone(&store), options);
    let agent = agent("a");
    let execute = async |id: &str| executor.execute(&agent, large(id, 9)).await;
    let mut execution = begun(execute("first").await.unwrap());
    store.is_away.store(true, Ordering::Relaxed);
    let record = loop {
        if let Event::Ended { record, .. } = execution.next().await.unwrap() {
            break record;
        }
    };
    let rest = execution.next().now_or_never();
    assert!(rest.is_none(), "it is not stored");
    store.is_away.store(false, Ordering::Relaxed);
    // This process knows how it has ended.
    assert!(store.record("first").await.contains("running"));
    let shown = record_of(&executor, &agent, "first").await;
    assert_eq!(shown.answer(), record.answer());
    let Ok(Started::Running(again)) = execute("first").await else {
        panic!("it does not run again");
    };
    let again = again.ended().now_or_never().unwrap().unwrap();
    assert_eq!(again.answer(), record.answer());
    assert!(!executor.cancel(agent.id(), "first"), "it has ended");
    // As many records as executions may be outstanding.
    let refused = execute("second").await;
    assert!(matches!(refused, Err(Refusal::Store(_))), "{refused:?}");

    store.gate.add_permits(1);
    assert!(execution.next().await.is_none());
    let stored = store.record("first").await;
    assert!(stored.contains("success"), "{stored}");
    assert!(!stored.contains("results_removed"), "{stored}");
    assert!(matches!(execute("second").await, Ok(Started::New(_))));
}
