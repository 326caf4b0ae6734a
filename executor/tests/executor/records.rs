//! Do records show what happened, whatever fails meanwhile?

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use a2abus_executor::case::Recorded;
use a2abus_executor::{
    Agent, Change, Clock, Environment, Event, Executor, HttpClient, HttpError, HttpRequest,
    HttpResponse, Json, MemoryStore, OnError, Options, Rates, Record, RecordForgotten, Refusal,
    Request, Started, Status, Store, StoreDelayed, StoreError, StoreTooLarge, SystemRandom, Table,
    VirtualClock,
};
use a2abus_models::a2e_workflow::operation::Storage;
use a2abus_models::a2e_workflow::{Apis, Policy};
use a2abus_plugin::Text;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

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
        let environment = Environment {
            clock: Arc::new(self.clock.clone()),
            random: Arc::new(SystemRandom::new().unwrap()),
            http: Arc::clone(&self.http) as Arc<_>,
            store: Arc::clone(&self.store) as Arc<_>,
        };
        Executor::new(environment, options)
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

async fn finished(started: Started) -> Arc<a2abus_executor::Record> {
    match started {
        Started::New(execution) => execution.finish().await,
        Started::Finished(record) => record,
        Started::Running(_) => panic!("it runs nowhere"),
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
async fn members_of_the_request_replace_those_that_the_workflow_brings() {
    let world = World::new(0);
    let executor = world.executor();
    let merge = r#""MergeData":{"sources":["/workflow/a","/workflow/b"],"strategy":"concat","outputPath":"/workflow/c"}"#;
    let lines = workflow(&[merge]);
    let begin = r#""beginExecution","input":{"a":[1],"b":[2]}"#;
    let request = Request {
        workflow: lines.replace(r#""beginExecution""#, begin).into(),
        input: a2abus_executor::parse(br#"{"b":[3],"d":4}"#)
            .unwrap()
            .as_object()
            .unwrap()
            .clone(),
        ..Request::default()
    };
    let record = finished(executor.execute(&world.agent, request).await.unwrap()).await;
    let results = Json::from(record.results().unwrap().clone());
    assert_eq!(results.to_string(), r#"{"o0":[1,3]}"#);
}

#[tokio::test]
async fn stored_values_are_read_by_path() {
    let mut world = World::new(0);
    let policy = Policy {
        operations: ["*"].into_iter().collect(),
        storages: ["localStorage", "sessionStorage"].into_iter().collect(),
        ..Policy::default()
    };
    world.agent = Arc::new(Agent::new(
        "tester".into(),
        policy,
        BTreeMap::new(),
        Rates::default(),
    ));
    let executor = world.executor();
    let run = async |id: &str, session: &str, operations: &[&str], input: &str| {
        let request = Request {
            workflow: named(id, operations).into(),
            session: Some(session.into()),
            input: a2abus_executor::parse(input.as_bytes())
                .unwrap()
                .as_object()
                .unwrap()
                .clone(),
            ..Request::default()
        };
        finished(executor.execute(&world.agent, request).await.unwrap()).await
    };
    let store = |storage: &str, key: &str| {
        format!(r#""StoreData":{{"inputPath":"/workflow/x","storage":"{storage}","key":"{key}"}}"#)
    };
    let join = |first: &str, second: &str| {
        format!(
            r#""MergeData":{{"sources":[{first:?},{second:?}],"strategy":"concat","outputPath":"/workflow/c"}}"#
        )
    };
    let both = [store("localStorage", "a"), store("sessionStorage", "b/c")];
    let both: Vec<&str> = both.iter().map(String::as_str).collect();
    let record = run("e-1", "s", &both, r#"{"x":[1]}"#).await;
    assert_eq!(record.status(), Status::Success);

    // A later workflow; it also stores a value itself.
    let merge = join("/localStorage/a", "/sessionStorage[\"b/c\"]");
    let again = store("localStorage", "a");
    let record = run(
        "e-2",
        "s",
        &[&merge, &again, &merge.replace("/c\"}", "/d\"}")],
        r#"{"x":[2]}"#,
    )
    .await;
    let results = Json::from(record.results().unwrap().clone());
    assert_eq!(results.get("o0").unwrap().to_string(), "[1,1]", "{results}");
    assert_eq!(results.get("o2").unwrap().to_string(), "[2,1]", "{results}");

    // Another session does not see it.
    let record = run("e-3", "t", &[&merge], "{}").await;
    assert_eq!(record.status(), Status::Failed);
    assert!(record.answer().to_string().contains("path_not_found"));

    // Without permission for a storage an agent cannot read it either.
    let policy = Policy {
        operations: ["*"].into_iter().collect(),
        ..Policy::default()
    };
    let other = Agent::new("other".into(), policy, BTreeMap::new(), Rates::default());
    let request = Request {
        workflow: named("e-4", &[&merge]).into(),
        ..Request::default()
    };
    let refusal = executor
        .execute(&Arc::new(other), request)
        .await
        .unwrap_err();
    let Refusal::Invalid(failure) = refusal else {
        panic!("{refusal}")
    };
    assert!(
        failure
            .to_value()
            .to_string()
            .contains("storage_not_permitted")
    );
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
async fn an_execution_whose_values_cannot_be_stored_still_ends() {
    let world = World::new(2);
    let executor = world.executor();
    let lines = workflow(&[WAIT]);
    let record = finished(world.begin(&executor, &lines).await).await;
    assert_eq!(record.status(), Status::Success);
    let record = executor
        .record(world.agent.id(), "e")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(record.status(), Status::Success);
    assert!(record.results().unwrap().is_empty());
}

#[tokio::test]
async fn an_interrupted_execution_that_had_not_acted_runs_again_and_is_listed_once() {
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
async fn an_interrupted_execution_that_may_have_acted_does_not_run_again() {
    let world = World::new(0);
    let lines = workflow(&[POST, WAIT]);
    let Started::New(mut execution) = world.begin(&world.executor(), &lines).await else {
        panic!("it is new")
    };
    // The call has begun and ended; the process dies before the rest.
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

/// An agent with all permissions except calls.
fn agent(id: &str) -> Arc<Agent> {
    let policy = Policy {
        operations: ["*"].into_iter().collect(),
        ..Policy::default()
    };
    let agent = Agent::new(id.into(), policy, BTreeMap::new(), Rates::default());
    Arc::new(agent)
}

async fn begin_as(executor: &Executor, agent: &Arc<Agent>, lines: String) -> Started {
    let request = Request {
        workflow: lines.into(),
        ..Request::default()
    };
    executor.execute(agent, request).await.unwrap()
}

async fn run_as(executor: &Executor, agent: &Arc<Agent>, lines: String) {
    let record = finished(begin_as(executor, agent, lines).await).await;
    assert_eq!(record.status(), Status::Success);
}

#[tokio::test]
async fn expired_records_are_removed_however_many_there_are() {
    let world = World::new(0);
    let executor = world.executor();
    let agents = ["a", "a-b", "b"].map(agent);
    for number in 0..1_100 {
        for agent in &agents {
            run_as(&executor, agent, named(&format!("e{number}"), &[WAIT])).await;
        }
    }
    let Started::New(running) = begin_as(&executor, &agents[1], named("r", &[WAIT])).await else {
        panic!("it is new");
    };
    world.clock.advance(Duration::from_secs(24 * 60 * 60));
    run_as(&executor, &agents[1], named("new", &[WAIT])).await;
    assert_eq!(executor.expire().await.unwrap(), 3_300);
    assert_eq!(executor.expire().await.unwrap(), 0);
    running.finish().await;
    for table in [Table::Executions, Table::Summaries] {
        let left = world.store.scan(table, "", "", 9).await.unwrap();
        assert_eq!(left.len(), 2, "{table:?}: the one that ran and the new one");
    }
    for agent in &agents {
        let record = executor.record(agent.id(), "e7").await.unwrap();
        assert_eq!(record, None);
    }
}

/// A workflow with a result of this size.
fn large(id: &str, bytes: usize) -> (String, Request) {
    let filter = r#""FilterData":{"inputPath":"/workflow/x","conditions":[{"field":"v","operator":"!=","value":0}],"outputPath":"/workflow/y"}"#;
    let lines = named(id, &[filter]);
    let input = format!(r#"{{"x":[{{"v":"{}"}}]}}"#, "v".repeat(bytes));
    let input = a2abus_executor::parse(input.as_bytes()).unwrap();
    let request = Request {
        workflow: lines.clone().into(),
        input: input.as_object().unwrap().clone(),
        ..Request::default()
    };
    (lines, request)
}

#[tokio::test]
async fn the_results_of_the_oldest_executions_go_when_an_agent_has_too_many() {
    const MOST: usize = 200_000;
    let world = World::new(0);
    let options = || {
        let mut options = Options::default();
        options.limits.max_record_bytes = MOST;
        options
    };
    let [agent, other] = ["a", "b"].map(agent);
    let results = async |executor: &Executor, agent: &Arc<Agent>, id: &str| {
        let record = executor.record(agent.id(), id).await.unwrap().unwrap();
        assert_eq!(record.status(), Status::Success);
        record.results().unwrap().len()
    };
    let mut executor = world.executor_with(options());
    let run = async |executor: &Executor, agent, id: &str, bytes| {
        let started = executor.execute(agent, large(id, bytes).1).await.unwrap();
        finished(started).await
    };
    run(&executor, &other, "e0", MOST - 2_000).await;
    let mut newest = 0;
    for number in 0..100 {
        if number == 50 {
            // Another process has none of the earlier records.
            executor = world.executor_with(options());
        }
        let id = format!("e{number}");
        run(&executor, &agent, &id, 10_000).await;
        world.clock.advance(Duration::from_millis(1));
        let found = world.store.scan(Table::Executions, "a", "", 1_000).await;
        let found = found.unwrap();
        let bytes: usize = found.iter().map(|(_, record)| record.len()).sum();
        assert!(bytes < MOST + 100 * 500, "{bytes} bytes after {number}");
        assert_eq!(found.len(), number + 1, "every record is kept");
        assert_eq!(results(&executor, &agent, &id).await, 1);
        newest = number;
    }
    let newest = format!("e{newest}");
    assert_eq!(results(&executor, &agent, &newest).await, 1);
    assert_eq!(results(&executor, &agent, "e90").await, 1, "it has room");
    assert_eq!(results(&executor, &agent, "e0").await, 0);
    assert_eq!(results(&executor, &other, "e0").await, 1, "of another");

    // Records without results remain known, and say that their results were removed.
    let again = executor.execute(&agent, large("e0", 10_000).1).await;
    let Ok(Started::Finished(record)) = again else {
        panic!("it has run");
    };
    assert_eq!(
        record.answer().get("results_removed"),
        Some(&Json::Bool(true))
    );
    assert_eq!(record.reports(), 2, "it began and it succeeded");
    let request = Request {
        workflow: named("e0", &[WAIT]).into(),
        ..Request::default()
    };
    let conflict = executor.execute(&agent, request).await;
    assert!(matches!(conflict, Err(Refusal::Conflict(_))));

    // A record that is too large by itself is kept while it is the newest.
    run(&executor, &agent, "huge", 2 * MOST).await;
    assert_eq!(results(&executor, &agent, "huge").await, 1);
    assert_eq!(results(&executor, &agent, &newest).await, 0);
}

/// An executor whose store holds so many bytes.
fn small(bytes: usize, options: Options) -> (Executor, Arc<MemoryStore>) {
    let store = Arc::new(MemoryStore::new(bytes));
    let world = World::new(0);
    let environment = Environment {
        clock: Arc::new(world.clock.clone()),
        random: Arc::new(SystemRandom::new().unwrap()),
        http: Arc::clone(&world.http) as Arc<_>,
        store: Arc::clone(&store) as Arc<_>,
    };
    (Executor::new(environment, options), store)
}

#[tokio::test]
async fn a_full_store_keeps_the_results_of_other_agents() {
    let (executor, _) = small(200_000, Options::default());
    let [agent, other] = ["a", "b"].map(agent);
    for (agent, id) in [(&other, "e".to_owned())]
        .into_iter()
        .chain((0..60).map(|number| (&agent, format!("e{number}"))))
    {
        let started = executor.execute(agent, large(&id, 10_000).1).await.unwrap();
        finished(started).await;
        let record = executor.record(agent.id(), &id).await.unwrap().unwrap();
        assert_eq!(record.results().unwrap().len(), 1, "{id}");
    }
    let record = executor.record(other.id(), "e").await.unwrap().unwrap();
    assert_eq!(
        record.results().unwrap().len(),
        1,
        "another agent's results"
    );
}

#[tokio::test]
async fn the_oldest_records_go_when_they_are_too_many_without_results() {
    let mut options = Options::default();
    options.limits.max_record_bytes = 40_000;
    let (executor, store) = small(1 << 20, options);
    let agent = agent("a");
    let Started::New(running) = begin_as(&executor, &agent, named("r", &[WAIT])).await else {
        panic!("it is new");
    };
    for number in 0..400 {
        run_as(&executor, &agent, named(&format!("e{number}"), &[WAIT])).await;
    }
    let left = store.scan(Table::Executions, "", "", 1_000).await.unwrap();
    let bytes: usize = left.iter().map(|(_, record)| record.len()).sum();
    assert!((30_000..55_000).contains(&bytes), "{bytes} bytes");
    assert_eq!(executor.record(agent.id(), "e0").await.unwrap(), None);
    for id in ["e399", "e380", "r"] {
        let record = executor.record(agent.id(), id).await.unwrap();
        assert!(record.is_some(), "{id}");
    }
    assert_eq!(running.finish().await.status(), Status::Success);
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
    let Started::New(running) = begin_as(&executor, &agent, named("x", &[WAIT])).await else {
        panic!("it is new");
    };
    let request = Request {
        workflow: named("y", &[WAIT]).into(),
        ..Request::default()
    };
    let refused = executor.execute(&agent, request.clone()).await;
    assert!(matches!(refused, Err(Refusal::Busy(1))), "{refused:?}");
    assert!(executor.record(agent.id(), "y").await.unwrap().is_some());
    // An execution that is cancelled before it begins does not count as concurrent.
    let cancelled = Request {
        is_cancelled: true,
        ..request
    };
    let record = finished(executor.execute(&agent, cancelled).await.unwrap()).await;
    assert_eq!(record.status(), Status::Cancelled);
    running.finish().await;
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

/// The operations of a record: id, state, requests.
fn operations(record: &a2abus_executor::Record) -> Vec<String> {
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
    let silent = Arc::new(Silent::default());
    let environment = Environment {
        clock: Arc::new(world.clock.clone()),
        random: Arc::new(SystemRandom::new().unwrap()),
        http: Arc::clone(&silent) as Arc<_>,
        store: Arc::clone(&world.store) as Arc<_>,
    };
    let executor = Executor::new(environment, Options::default());
    let lines = workflow(&[WAIT, POST]);
    let Started::New(execution) = world.begin(&executor, &lines).await else {
        panic!("it is new");
    };
    let agent = world.agent.id();
    let cancel = async {
        silent.requested.notified().await;
        let record = executor.record(agent, "e").await.unwrap().unwrap();
        assert_eq!(record.status(), Status::Running);
        assert_eq!(operations(&record), ["o0 success 0", "o1 running 0"]);
        assert!(executor.cancel(agent, "e"));
    };
    let (record, ()) = tokio::join!(execution.finish(), cancel);
    assert_eq!(record.status(), Status::Cancelled);
    assert_eq!(operations(&record), ["o0 success 0", "o1 failed 1"]);
    let stored = executor.record(agent, "e").await.unwrap().unwrap();
    assert_eq!(operations(&stored), operations(&record));
}

#[tokio::test]
async fn a_stopped_execution_runs_again_unless_it_may_have_acted() {
    let world = World::new(0);
    let silent = Arc::new(Silent::default());
    let environment = Environment {
        clock: Arc::new(world.clock.clone()),
        random: Arc::new(SystemRandom::new().unwrap()),
        http: Arc::clone(&silent) as Arc<_>,
        store: Arc::clone(&world.store) as Arc<_>,
    };
    let executor = Executor::new(environment, Options::default());
    let agent = world.agent.id();
    let stopped = async |lines: &str, id: &str, is_cancelled: bool| {
        let Started::New(execution) = world.begin(&executor, lines).await else {
            panic!("it is new");
        };
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
    let shown = executor.record(agent, "reads").await.unwrap().unwrap();
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
        workflow: workflow(&[WAIT]).into(),
        cancel_names: vec!["call-1".into()],
        ..Request::default()
    };
    world.store.forgets.store(true, Ordering::Relaxed);
    let refused = executor.execute(&world.agent, request.clone()).await;
    assert!(matches!(refused, Err(Refusal::Forgotten(id)) if id == "e"));
    // It was not running meanwhile, and runs once the store has no trace of it.
    world.store.forgets.store(false, Ordering::Relaxed);
    let record = finished(executor.execute(&world.agent, request).await.unwrap()).await;
    assert_eq!(record.status(), Status::Success);
    assert_eq!(*world.store.names.lock().unwrap(), ["call-1"]);
}

/// A store whose writes wait for permits.
struct Slow {
    store: MemoryStore,
    gate: Semaphore,
    /// How many writes wait.
    waiting: AtomicUsize,
}

impl Store for Slow {
    fn get<'a>(
        &'a self,
        table: Table,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        self.store.get(table, key)
    }

    fn write(&self, changes: Vec<Change>) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            self.gate.acquire().await.unwrap().forget();
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.store.write(changes).await
        })
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

/// An executor and its store, which holds back the last record of an execution of this agent. Another execution of it was
/// abandoned.
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
    let environment = Environment {
        clock: Arc::new(clock),
        random: Arc::new(SystemRandom::new().unwrap()),
        http: Arc::new(Silent::default()),
        store: Arc::clone(&store) as Arc<_>,
    };
    let executor = Executor::new(environment, Options::default());
    let abandoned = executor.execute(agent, large("abandoned", 9).1).await;
    assert!(matches!(abandoned, Ok(Started::New(_))), "{abandoned:?}");
    drop(abandoned);
    let Ok(Started::New(first)) = executor.execute(agent, large("first", 9).1).await else {
        panic!("it is new");
    };
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
        ..large("second", 9).1
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
        let beginning = Box::pin(executor.execute(&agent, large(id, 9).1));
        let refused = beginning.now_or_never();
        assert!(
            matches!(refused, Some(Err(Refusal::Store(_)))),
            "{id}: {refused:?}"
        );
    }
    store.gate.add_permits(9);
    assert_eq!(ending.await.unwrap().status(), Status::Success);
    for id in ["second", "abandoned"] {
        let begun = executor.execute(&agent, large(id, 9).1).await;
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
    fn get<'a>(
        &'a self,
        table: Table,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        self.store.get(table, key)
    }

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
async fn an_execution_ends_before_its_record_is_stored_late() {
    let store = Arc::new(Away {
        store: MemoryStore::default(),
        is_away: AtomicBool::new(false),
        gate: Semaphore::new(0),
    });
    let environment = Environment {
        clock: Arc::new(VirtualClock::default()),
        random: Arc::new(SystemRandom::new().unwrap()),
        http: Arc::new(Silent::default()),
        store: Arc::clone(&store) as Arc<_>,
    };
    let mut options = Options::default();
    options.limits.max_concurrent = 1;
    let (executor, agent) = (Executor::new(environment, options), agent("a"));
    let execute = async |id: &str| executor.execute(&agent, large(id, 9).1).await;
    let Ok(Started::New(mut execution)) = execute("first").await else {
        panic!("it is new");
    };
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
    let shown = executor.record(agent.id(), "first").await.unwrap().unwrap();
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

#[tokio::test]
async fn a_wait_beyond_the_deadline_ends_the_execution_whatever_its_on_error() {
    let world = World::new(0);
    // A Wait that runs always would make the workflow invalid.
    let branch = r#""Conditional":{"condition":{"path":"/workflow/n","operator":"==","value":1},"ifTrue":["o1"]}"#;
    let operations = [branch, r#""Wait":{"duration":31000}"#, WAIT];
    let lines = workflow(&operations).replace(r#""o0","o1""#, r#""o0""#);
    let input = a2abus_executor::parse(br#"{"n":1}"#).unwrap();
    let request = Request {
        workflow: lines.into(),
        input: input.as_object().unwrap().clone(),
        on_error: OnError::Continue,
        ..Request::default()
    };
    let started = world.executor().execute(&world.agent, request).await;
    let answer = finished(started.unwrap()).await.answer();
    let error = answer.get("error").unwrap();
    assert_eq!(error.get("code"), Some(&"execution_timeout".into()));
    assert_eq!(error.get("operationId"), Some(&"o1".into()));
    assert_eq!(answer.get("results").unwrap().to_string(), "{}");
}

#[tokio::test]
async fn values_that_are_stored_and_read_again_have_a_limit_together() {
    let world = World::new(0);
    let policy = Policy {
        operations: ["*"].into_iter().collect(),
        storages: ["localStorage"].into_iter().collect(),
        ..Policy::default()
    };
    let agent = Agent::new("a".into(), policy, BTreeMap::new(), Rates::default());
    let mut options = Options::default();
    options.limits.max_model_bytes = 10_000;
    let executor = world.executor_with(options);
    let store = |key: &str| {
        format!(
            r#""StoreData":{{"inputPath":"/workflow/x","storage":"localStorage","key":"{key}"}}"#
        )
    };
    let merge = r#""MergeData":{"sources":["/localStorage/a","/localStorage/b"],"strategy":"concat","outputPath":"/workflow/c"}"#;
    let request = Request {
        workflow: workflow(&[&store("a"), &store("b"), merge]).into(),
        input: large("e", 6_000).1.input,
        ..Request::default()
    };
    let started = executor.execute(&Arc::new(agent), request).await;
    let answer = finished(started.unwrap()).await.answer();
    let error = answer.get("error").unwrap();
    assert_eq!(error.get("code"), Some(&"limit_exceeded".into()));
    assert_eq!(error.get("operationId"), Some(&"o1".into()));
    for (key, is_stored) in [("a", true), ("b", false)] {
        let stored = executor.stored("a", "", Storage::Local, key).await.unwrap();
        assert_eq!(stored.is_some(), is_stored, "{key}");
    }
}

/// An agent that may use `localStorage`.
fn storing_agent() -> Arc<Agent> {
    let policy = Policy {
        operations: ["*"].into_iter().collect(),
        storages: ["localStorage"].into_iter().collect(),
        ..Policy::default()
    };
    let agent = Agent::new("a".into(), policy, BTreeMap::new(), Rates::default());
    Arc::new(agent)
}

/// The answer of an execution with this input.
async fn answer_of(
    executor: &Executor,
    agent: &Arc<Agent>,
    lines: String,
    input: &str,
    on_error: OnError,
) -> Json {
    let input = a2abus_executor::parse(input.as_bytes()).unwrap();
    let request = Request {
        workflow: lines.into(),
        input: input.as_object().unwrap().clone(),
        on_error,
        ..Request::default()
    };
    finished(executor.execute(agent, request).await.unwrap())
        .await
        .answer()
}

/// The code of the failure that ended an execution, with the limit that was exceeded.
fn failure_of(answer: &Json) -> String {
    let error = answer.get("error").unwrap();
    let code = error.get("code").and_then(Json::as_str).unwrap();
    let limit = error.get("details").unwrap().get("limit");
    let limit = limit.and_then(Json::as_str).unwrap_or("no limit");
    format!("{code}: {limit}")
}

#[tokio::test]
async fn a_stored_value_is_loaded_once_and_only_while_there_is_time() {
    let world = World::new(0);
    let (executor, agent) = (world.executor(), storing_agent());
    let store = |key: &str| {
        format!(
            r#""StoreData":{{"inputPath":"/workflow/x","storage":"localStorage","key":"{key}"}}"#
        )
    };
    let run =
        async |lines| answer_of(&executor, &agent, lines, r#"{"x":[1]}"#, OnError::Stop).await;
    run(named("e-1", &[&store("k"), &store("l")])).await;
    let sources = ["k", "k", "l", "k"].map(|key| format!("\"/localStorage/{key}\""));
    let merge = format!(
        r#""MergeData":{{"sources":[{}],"strategy":"concat","outputPath":"/workflow/c"}}"#,
        sources.join(",")
    );
    let reads = || world.store.value_reads.swap(0, Ordering::Relaxed);
    reads();
    let answer = run(named("e-2", &[&merge])).await;
    let results = answer.get("results").unwrap().to_string();
    assert_eq!(results, r#"{"o0":[1,1,1,1]}"#);
    assert_eq!(reads(), 2);

    *world.store.value_read_takes.lock().unwrap() = Duration::from_secs(31);
    let answer = run(named("e-3", &[&merge])).await;
    assert_eq!(failure_of(&answer), "execution_timeout: no limit");
    assert_eq!(reads(), 1);
}

#[tokio::test]
async fn values_that_are_too_deep_to_be_read_again_are_refused() {
    let world = World::new(0);
    let (executor, agent) = (world.executor(), storing_agent());
    let join = |source: &str, output: &str| {
        format!(
            r#""MergeData":{{"sources":["{source}","{source}"],"strategy":"concat","outputPath":"{output}"}}"#
        )
    };
    let steps = |first: &str| format!("/workflow/{first}{}", "/k".repeat(63));
    let operations = [
        join("/workflow/v", &steps("p")),
        join("/workflow/p", &steps("q")),
        join("/workflow/q", "/workflow/o"),
    ];
    let lines = workflow(&operations.each_ref().map(String::as_str));
    let answer = answer_of(&executor, &agent, lines, r#"{"v":[1]}"#, OnError::Stop).await;
    assert_eq!(failure_of(&answer), "limit_exceeded: data_model_levels");
    let stored = executor.record(agent.id(), "e").await.unwrap().unwrap();
    assert_eq!(stored.answer(), answer);

    for (levels, is_stored) in [(120, true), (121, false)] {
        let key = format!("k{levels}");
        let store = format!(
            r#""StoreData":{{"inputPath":"/workflow/x","storage":"localStorage","key":"{key}"}}"#
        );
        let input = format!(r#"{{"x":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
        let answer = answer_of(
            &executor,
            &agent,
            named(&key, &[&store]),
            &input,
            OnError::Stop,
        )
        .await;
        assert_eq!(answer.get("error").is_none(), is_stored, "{answer}");
        let stored = executor.stored("a", "", Storage::Local, &key).await;
        assert_eq!(stored.unwrap().is_some(), is_stored, "{levels}");
    }
}

#[tokio::test]
async fn failures_after_which_an_execution_continues_have_a_limit_together() {
    let world = World::new(0);
    let mut options = Options::default();
    options.limits.max_model_bytes = 100_000;
    let executor = world.executor_with(options);
    let turns = r#""Loop":{"inputPath":"/workflow/k","operations":["o1"]}"#;
    let read = format!(
        r#""FilterData":{{"inputPath":"/workflow/k/{}","conditions":[],"outputPath":"/workflow/o"}}"#,
        "a".repeat(4_000)
    );
    let lines = workflow(&[turns, &read]).replace(r#""o0","o1""#, r#""o0""#);
    let input = format!(r#"{{"k":[{}]}}"#, vec!["0"; 100].join(","));
    let agent = &world.agent;
    let answer = answer_of(&executor, agent, lines, &input, OnError::Continue).await;
    assert_eq!(failure_of(&answer), "limit_exceeded: failure_bytes");
    let errors = answer.get("errors").and_then(Json::as_array).unwrap();
    assert!((2..20).contains(&errors.len()), "{}", errors.len());
}

#[tokio::test]
async fn results_that_are_too_long_to_be_read_again_are_not_stored() {
    let world = World::new(0);
    let mut options = Options::default();
    options.limits.max_model_bytes = 256 << 20;
    let (executor, agent) = (world.executor_with(options), agent("a"));
    let item = Json::object([("v", Json::from("v".repeat(64 << 20)))]);
    let input = Json::object([("x", Json::from(vec![item]))]);
    let request = Request {
        input: input.as_object().unwrap().clone(),
        ..large("e", 1).1
    };
    let record = finished(executor.execute(&agent, request).await.unwrap()).await;
    assert_eq!(record.status(), Status::Success);
    assert_eq!(record.results().unwrap().len(), 1);
    let stored = executor.record(agent.id(), "e").await.unwrap().unwrap();
    assert_eq!(stored.status(), Status::Success);
    assert_eq!(stored.results().unwrap().len(), 0);
    let is_removed = stored.answer().get("results_removed").cloned();
    assert_eq!(is_removed, Some(Json::Bool(true)));
}

/// A store like a log on a bus, whose messages have at most 1,500 bytes.
struct Narrow(MemoryStore);

impl Store for Narrow {
    fn get<'a>(
        &'a self,
        table: Table,
        key: &'a str,
    ) -> BoxFuture<'a, Result<Option<Bytes>, StoreError>> {
        self.0.get(table, key)
    }

    fn write(&self, changes: Vec<Change>) -> BoxFuture<'_, Result<(), StoreError>> {
        let sizes = changes.iter().filter_map(|change| change.value.as_ref());
        let too_large = sizes.map(Bytes::len).find(|bytes| *bytes > 1_500);
        match too_large {
            None => self.0.write(changes),
            Some(bytes) => Box::pin(async move {
                let cause = format!("a record of {bytes} bytes: at most 1500");
                Err(StoreError(StoreTooLarge(cause.into()).into()))
            }),
        }
    }

    fn scan<'a>(
        &'a self,
        table: Table,
        prefix: &'a str,
        after: &'a str,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, Bytes)>, StoreError>> {
        self.0.scan(table, prefix, after, most)
    }
}

#[tokio::test]
async fn a_record_says_why_its_results_are_not_stored() {
    let environment = Environment {
        clock: Arc::new(VirtualClock::default()),
        random: Arc::new(SystemRandom::new().unwrap()),
        http: Arc::new(Silent::default()),
        store: Arc::new(Narrow(MemoryStore::default())),
    };
    let (executor, agent) = (Executor::new(environment, Options::default()), agent("a"));
    let begun = executor.execute(&agent, large("e", 2_000).1).await;
    let Ok(Started::New(mut execution)) = begun else {
        panic!("it is new");
    };
    let mut record = None;
    while let Some(event) = execution.next().await {
        if let Event::Ended { record: ended, .. } = event {
            record = Some(ended);
        }
    }
    assert!(execution.is_reduced());
    let record = record.unwrap();
    assert_eq!(record.results().unwrap().len(), 1, "a requester that waits");
    let why = record.not_stored().unwrap();
    assert_eq!(why.get("code"), Some(&"limit_exceeded".into()));
    let stored = executor.record(agent.id(), "e").await.unwrap().unwrap();
    assert_eq!(stored.status(), Status::Success);
    assert_eq!(stored.results().unwrap().len(), 0);
    let stored = stored.answer();
    assert_eq!(stored.get("error"), Some(why));
    assert!(stored.to_string().contains("at most 1500"), "{stored}");
}

#[tokio::test]
async fn a_malformed_record_refuses_its_request_and_does_not_end_the_cleanup() {
    const MOST: usize = 200_000;
    let world = World::new(0);
    let mut options = Options::default();
    options.limits.max_record_bytes = MOST;
    let (executor, agent) = (world.executor_with(options), agent("a"));
    let run = async |id: &str| executor.execute(&agent, large(id, 10_000).1).await;
    finished(run("e0").await.unwrap()).await;
    let malformed = Change {
        table: Table::Executions,
        key: "a\0e0".to_owned(),
        value: Some(Bytes::from_static(b"{")),
    };
    world.store.store.write(vec![malformed]).await.unwrap();
    let refused = run("e0").await;
    assert!(
        matches!(&refused, Err(Refusal::Unreadable(id)) if *id == "e0"),
        "{refused:?}"
    );

    for number in 1..60 {
        world.clock.advance(Duration::from_millis(1));
        finished(run(&format!("e{number}")).await.unwrap()).await;
    }
    for table in [Table::Executions, Table::Summaries] {
        let left = world.store.scan(table, "a", "", 1_000).await.unwrap();
        assert_eq!(left.len(), 59, "{table:?}");
        let bytes: usize = left.iter().map(|(_, record)| record.len()).sum();
        assert!(bytes < MOST + 60 * 500, "{table:?}: {bytes} bytes");
    }
    assert!(matches!(run("e0").await, Ok(Started::New(_))));
}
