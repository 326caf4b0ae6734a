//! Do records show what happened, whatever fails meanwhile?

mod late;
mod repeats;
mod room;
mod values;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use a2abus_executor::case::Recorded;
use a2abus_executor::{
    Agent, Change, Clock, Environment, Execution, Executor, HttpClient, HttpError, HttpRequest,
    HttpResponse, MemoryStore, Object, OnError, Options, Rates, Record, RecordForgotten, Request,
    Started, Store, StoreError, SystemRandom, Table, VirtualClock,
};
use a2abus_models::a2e_workflow::{Apis, Policy};
use a2abus_plugin::Text;
use bytes::Bytes;
use futures_util::future::BoxFuture;

/// The reads of a test's store: those of the store in this member.
macro_rules! reads_of {
    ($store:tt) => {
        fn get<'a>(
            &'a self,
            table: Table,
            key: &'a str,
        ) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
            self.$store.get(table, key)
        }

        fn scan<'a>(
            &'a self,
            table: Table,
            prefix: &'a str,
            after: &'a str,
            most: usize,
        ) -> BoxFuture<'a, Result<Vec<(String, Bytes)>, StoreError>> {
            self.$store.scan(table, prefix, after, most)
        }
    };
}
use reads_of;

/// A store that refuses the write with this number, from 1.
struct Failing {
    store: MemoryStore,
    writes: AtomicUsize,
    refused: usize,
    /// The first value of each key of an execution.
    first: Mutex<BTreeMap<String, Bytes>>,
    /// Whether reads return that value until the test asks whether another process runs it: like a replica that falls
    /// behind.
    is_behind: AtomicBool,
    /// Whether the record of every execution was removed for lack of memory.
    forgets: AtomicBool,
    /// The names of the last execution that began.
    names: Mutex<Vec<Text>>,
    clock: VirtualClock,
    /// How often a value of `localStorage` was read, and how long that takes.
    value_reads: AtomicUsize,
    value_read_takes: Mutex<Duration>,
}

impl Store for Failing {
    fn get<'a>(
        &'a self,
        table: Table,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        if table == Table::Executions && self.is_behind.load(Ordering::Relaxed) {
            let first = self.first.lock().unwrap().get(key).cloned();
            return Box::pin(async { Ok(first) });
        }
        if table == Table::Local {
            self.value_reads.fetch_add(1, Ordering::Relaxed);
            self.clock.advance(*self.value_read_takes.lock().unwrap());
        }
        self.store.get(table, key)
    }

    fn runs_elsewhere(&self, _key: &str) -> bool {
        self.is_behind.store(false, Ordering::Relaxed);
        false
    }

    fn begin<'a>(
        &'a self,
        changes: Vec<Change>,
        _until: SystemTime,
        names: Vec<Text>,
    ) -> BoxFuture<'a, Result<bool, StoreError>> {
        if self.forgets.load(Ordering::Relaxed) {
            return Box::pin(async { Err(StoreError(RecordForgotten.into())) });
        }
        *self.names.lock().unwrap() = names;
        Box::pin(async move { self.write(changes).await.map(|()| true) })
    }

    fn write(&self, changes: Vec<Change>) -> BoxFuture<'_, Result<(), StoreError>> {
        for change in changes
            .iter()
            .filter(|change| change.table == Table::Executions)
        {
            if let Some(value) = &change.value {
                let mut first = self.first.lock().unwrap();
                first
                    .entry(change.key.clone())
                    .or_insert_with(|| value.clone());
            }
        }
        if self.writes.fetch_add(1, Ordering::Relaxed) + 1 == self.refused {
            return Box::pin(async { Err(StoreError("the disk is full".into())) });
        }
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

struct World {
    clock: VirtualClock,
    http: Arc<Recorded>,
    store: Arc<Failing>,
    agent: Arc<Agent>,
}

impl World {
    fn new(refused: usize) -> Self {
        let answers = r#"{"POST https://api.example.com/a":[{"status":201,"headers":{"content-type":"application/json"},"body":1}]}"#;
        let answers = a2abus_executor::parse(answers.as_bytes()).unwrap();
        let clock = VirtualClock::default();
        let policy = Policy {
            operations: ["*"].into_iter().collect(),
            apis: Apis::parse(["https://api.example.com"]).unwrap(),
            ..Policy::default()
        };
        let agent = Agent::new("tester".into(), policy, BTreeMap::new(), Rates::default());
        Self {
            http: Arc::new(Recorded::new(answers.as_object().unwrap(), clock.clone())),
            store: Arc::new(Failing {
                store: MemoryStore::default(),
                writes: AtomicUsize::new(0),
                refused,
                first: Mutex::default(),
                is_behind: AtomicBool::new(false),
                forgets: AtomicBool::new(false),
                names: Mutex::default(),
                clock: clock.clone(),
                value_reads: AtomicUsize::new(0),
                value_read_takes: Mutex::default(),
            }),
            clock,
            agent: Arc::new(agent),
        }
    }

    /// A process: its state outside the store is lost with it.
    fn executor(&self) -> Executor {
        self.executor_with(Options::default())
    }

    fn executor_with(&self, options: Options) -> Executor {
        self.executor_calling(Arc::clone(&self.http), options)
    }

    /// The same with another service.
    fn executor_calling(&self, http: Arc<impl HttpClient + 'static>, options: Options) -> Executor {
        executor_on(self.clock.clone(), http, Arc::clone(&self.store), options)
    }

    async fn begin(&self, executor: &Executor, lines: &str) -> Started {
        let request = Request {
            on_error: OnError::Continue,
            ..request(lines.to_owned())
        };
        executor.execute(&self.agent, request).await.unwrap()
    }
}

/// An executor in an environment of these parts.
fn executor_on(
    clock: impl Clock + 'static,
    http: Arc<impl HttpClient + 'static>,
    store: Arc<impl Store + 'static>,
    options: Options,
) -> Executor {
    let environment = Environment {
        clock: Arc::new(clock),
        random: Arc::new(SystemRandom::new().unwrap()),
        http,
        store,
    };
    Executor::new(environment, options)
}

const POST: &str =
    r#""ApiCall":{"method":"POST","url":"https://api.example.com/a","outputPath":"/workflow/a"}"#;
const GET: &str =
    r#""ApiCall":{"method":"GET","url":"https://api.example.com/a","outputPath":"/workflow/a"}"#;
const WAIT: &str = r#""Wait":{"duration":5}"#;

fn workflow(operations: &[&str]) -> String {
    named("e", operations)
}

fn named(id: &str, operations: &[&str]) -> String {
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
            "{{\"type\":\"beginExecution\",\"executionId\":\"{id}\",\"operationOrder\":[{order}]}}"
        )
}

/// The members of this JSON object.
fn members(text: &str) -> Object {
    let json = a2abus_executor::parse(text.as_bytes()).unwrap();
    json.as_object().unwrap().clone()
}

/// A request to execute these lines.
fn request(lines: String) -> Request {
    Request {
        workflow: lines.into(),
        ..Request::default()
    }
}

/// An execution that has just begun.
fn begun(started: Started) -> Execution {
    match started {
        Started::New(execution) => execution,
        other => panic!("it is not new: {other:?}"),
    }
}

async fn finished(started: Started) -> Arc<Record> {
    match started {
        Started::New(execution) => execution.finish().await,
        Started::Finished(record) => record,
        Started::Running(_) => panic!("it runs nowhere"),
    }
}

/// An agent with all permissions except calls and storages.
fn agent(id: &str) -> Arc<Agent> {
    agent_with(id, &[])
}

/// The same with these storages.
fn agent_with(id: &str, storages: &[&str]) -> Arc<Agent> {
    let policy = Policy {
        operations: ["*"].into_iter().collect(),
        storages: storages.iter().copied().collect(),
        ..Policy::default()
    };
    let agent = Agent::new(id.into(), policy, BTreeMap::new(), Rates::default());
    Arc::new(agent)
}

async fn begin_as(executor: &Executor, agent: &Arc<Agent>, lines: String) -> Started {
    executor.execute(agent, request(lines)).await.unwrap()
}

/// The record of a request that runs to its end.
async fn run(executor: &Executor, agent: &Arc<Agent>, request: Request) -> Arc<Record> {
    finished(executor.execute(agent, request).await.unwrap()).await
}

/// The record of an execution, as the executor shows it.
async fn record_of(executor: &Executor, agent: &Agent, id: &str) -> Record {
    executor.record(agent.id(), id).await.unwrap().unwrap()
}

/// A request of a workflow with a result of this size.
fn large(id: &str, bytes: usize) -> Request {
    let filter = r#""FilterData":{"inputPath":"/workflow/x","conditions":[{"field":"v","operator":"!=","value":0}],"outputPath":"/workflow/y"}"#;
    let input = format!(r#"{{"x":[{{"v":"{}"}}]}}"#, "v".repeat(bytes));
    Request {
        input: members(&input),
        ..request(named(id, &[filter]))
    }
}

/// A service that never responds.
#[derive(Default)]
struct Silent {
    requested: tokio::sync::Notify,
}

impl HttpClient for Silent {
    fn send(&self, _: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, HttpError>> {
        self.requested.notify_one();
        Box::pin(std::future::pending())
    }
}

fn silent() -> Arc<Silent> {
    Arc::default()
}
