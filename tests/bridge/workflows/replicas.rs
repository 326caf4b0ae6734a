//! Other replicas run executions, or the records that replicas share are gone.

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use a2abus_executor::{
    Change, Client, ClientOptions, Environment, MemoryStore, RecordForgotten, Store, StoreError,
    SystemClock, SystemRandom, Table,
};
use a2abus_plugin::Text;
use a2abus_transports::memory::Memory;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde_json::json;
use support::battery::within;
use support::service::Service;
use tokio::sync::Notify;
use tokio::task::yield_now;

use super::stops::cancel_of;
use super::{ROUTES, World, configuration, wait, workflow};

const EXECUTE: (&str, &str) = ("a2amethod", "workflows/execute");

/// What happens when an execution is to begin.
#[derive(Debug, Clone, Copy)]
enum Begins {
    /// It begins.
    Here,
    /// Another replica has begun it, and does not end it.
    Elsewhere,
    /// Its record was removed for lack of memory.
    Nowhere,
}

/// A store that seems to be shared with other replicas.
struct Shared {
    store: MemoryStore,
    begins: Begins,
    /// The names of the last execution.
    names: Mutex<Vec<Text>>,
    /// The names that other replicas were asked to cancel, each after its agent.
    cancelled: Mutex<Vec<(String, String)>>,
    /// Somebody waits for another replica.
    waits: Notify,
}

impl Shared {
    fn new(begins: Begins) -> Arc<Self> {
        Arc::new(Self {
            store: MemoryStore::default(),
            begins,
            names: Mutex::default(),
            cancelled: Mutex::default(),
            waits: Notify::new(),
        })
    }

    /// A bridge that uses it, and that has much time to end.
    async fn world(self: &Arc<Self>, binding: &str) -> World {
        let service = Service::open().await;
        let text = configuration(&service, binding, "", ROUTES);
        let text = text.replace("drain_grace: 20s", "drain_grace: 30m");
        let environment = Environment {
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(SystemRandom::new().unwrap()),
            http: Arc::new(Client::new(&ClientOptions::default()).unwrap()),
            store: Arc::clone(self) as Arc<dyn Store>,
        };
        World::configured(Memory::default(), service, &text, Some(environment)).await
    }

    fn cancelled(&self) -> Vec<(String, String)> {
        self.cancelled.lock().unwrap().clone()
    }
}

impl Store for Shared {
    fn get<'a>(
        &'a self,
        table: Table,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        self.store.get(table, key)
    }

    fn write<'a>(&'a self, changes: Vec<Change>) -> BoxFuture<'a, Result<(), StoreError>> {
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

    fn begin<'a>(
        &'a self,
        changes: Vec<Change>,
        _until: SystemTime,
        names: Vec<Text>,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        *self.names.lock().unwrap() = names;
        Box::pin(async move {
            match self.begins {
                Begins::Here => self.store.write(changes).await.map(|()| true),
                Begins::Elsewhere => Ok(false),
                Begins::Nowhere => Err(StoreError(RecordForgotten.into())),
            }
        })
    }

    fn until_idle<'a>(&'a self, _key: &'a str) -> BoxFuture<'a, ()> {
        self.waits.notify_one();
        Box::pin(std::future::pending())
    }

    fn cancel_named<'a>(
        &'a self,
        agent: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        let mut cancelled = self.cancelled.lock().unwrap();
        cancelled.push((agent.to_owned(), name.to_owned()));
        Box::pin(std::future::ready(Ok(true)))
    }
}

/// Whether a workflow is answered with this error, and settled.
async fn is_answered_with(world: &mut World, code: &str) {
    let lines = workflow("e-1", &[("w", wait(1))]);
    world.send("1", &[EXECUTE], &lines).await;
    let answer = world.answer().await;
    assert_eq!(answer.data["error"]["code"], code, "{}", answer.data);
    assert_eq!(answer.data["execution_id"], json!("e-1"));
    world
        .until_counted("a2abus_settled_total{binding=\"work\"}", 1)
        .await;
}

#[tokio::test]
async fn a_request_whose_record_was_removed_for_lack_of_memory_is_answered_at_once() {
    let mut world = Shared::new(Begins::Nowhere).world("run_as: reporter").await;
    is_answered_with(&mut world, "record_removed").await;
    world.end().await;
}

/// It stays malformed for as long as records are kept, so the request does not wait for it.
#[tokio::test]
async fn a_request_whose_record_is_malformed_is_answered_at_once() {
    let shared = Shared::new(Begins::Here);
    let mut world = shared.world("run_as: reporter").await;
    let malformed = Change {
        table: Table::Executions,
        key: "reporter\0e-1".to_owned(),
        value: Some(Bytes::from_static(b"{")),
    };
    shared.write(vec![malformed]).await.unwrap();
    is_answered_with(&mut world, "storage_failed").await;
    let refused = "a2abus_workflow_refused_total{reason=\"store\"}";
    assert_eq!(world.count(refused), 1);
    world.end().await;
}

#[tokio::test]
async fn a_request_that_another_replica_executes_does_not_delay_the_end_of_the_bridge() {
    let shared = Shared::new(Begins::Elsewhere);
    let world = shared.world("run_as: reporter").await;
    let lines = workflow("e-1", &[("w", wait(1))]);
    world.send("1", &[EXECUTE], &lines).await;
    within("it waits", shared.waits.notified()).await;
    world.end().await;
}

#[tokio::test]
async fn a_client_that_waits_for_another_replica_does_not_delay_the_end_of_the_bridge() {
    let shared = Shared::new(Begins::Elsewhere);
    let world = shared.world("run_as: reporter").await;
    let lines = workflow("e-1", &[("w", wait(1))]);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = client.post(format!("{}/api/v1/workflows/execute", world.door));
    let request = request.header("x-api-key", "key");
    let request = request.json(&json!({ "workflow": lines }));
    let client = tokio::spawn(request.send());
    within("it waits", shared.waits.notified()).await;
    world.end().await;
    let response = client.await.unwrap().unwrap();
    assert_eq!(response.status(), reqwest::StatusCode::SERVICE_UNAVAILABLE);
    assert!(response.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn other_replicas_can_cancel_an_execution_by_each_of_its_names() {
    for binding in ["run_as: reporter", ""] {
        let shared = Shared::new(Begins::Here);
        let mut world = shared.world(binding).await;
        let lines = workflow("e-1", &[("w", wait(1))]);
        let names = [("collaborationid", "task-7"), ("callid", "call-9")];
        let [task, call] = names;
        world.send("1", &[EXECUTE, task, call], &lines).await;
        assert_eq!(world.answer().await.data["status"], "success");
        let known = shared.names.lock().unwrap().clone();
        // The execution is not here any more, so others are asked. The last cancel is not of its requester.
        for (from, name) in [
            ("reporter", "e-1"),
            ("reporter", "task-7"),
            ("reporter", "call-9"),
            ("idler", "e-1"),
        ] {
            let asked = shared.cancelled().len();
            world.publish(cancel_of(from, name)).await;
            within("others are asked", async {
                while shared.cancelled().len() == asked {
                    yield_now().await;
                }
            })
            .await;
            let (agent, shared_name) = shared.cancelled().pop().unwrap();
            let is_own = from == "reporter";
            let is_known = known.iter().any(|known| known.as_str() == shared_name);
            assert_eq!(is_known, is_own, "{name}");
            assert_eq!(agent == "reporter", is_own || !binding.is_empty());
        }
        world.end().await;
    }
}
