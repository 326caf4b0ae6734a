//! How long records and their results are kept, and what goes first when there are too many.

use std::sync::Arc;
use std::time::Duration;

use a2abus_executor::{
    Agent, Change, Event, Executor, Json, MemoryStore, Options, Refusal, Request, Started, Status,
    Store, StoreError, StoreTooLarge, Table, VirtualClock,
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;

use super::{
    WAIT, World, agent, begin_as, begun, executor_on, finished, large, named, reads_of, record_of,
    request, run, silent,
};

async fn run_as(executor: &Executor, agent: &Arc<Agent>, lines: String) {
    let record = run(executor, agent, request(lines)).await;
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
    let running = begun(begin_as(&executor, &agents[1], named("r", &[WAIT])).await);
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
        let record = record_of(executor, agent, id).await;
        assert_eq!(record.status(), Status::Success);
        record.results().unwrap().len()
    };
    let mut executor = world.executor_with(options());
    run(&executor, &other, large("e0", MOST - 2_000)).await;
    let mut newest = 0;
    for number in 0..100 {
        if number == 50 {
            // Another process has none of the earlier records.
            executor = world.executor_with(options());
        }
        let id = format!("e{number}");
        run(&executor, &agent, large(&id, 10_000)).await;
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
    let again = executor.execute(&agent, large("e0", 10_000)).await;
    let Ok(Started::Finished(record)) = again else {
        panic!("it has run");
    };
    assert_eq!(
        record.answer().get("results_removed"),
        Some(&Json::Bool(true))
    );
    assert_eq!(record.reports(), 2, "it began and it succeeded");
    let request = request(named("e0", &[WAIT]));
    let conflict = executor.execute(&agent, request).await;
    assert!(matches!(conflict, Err(Refusal::Conflict(_))));

    // A record that is too large by itself is kept while it is the newest.
    run(&executor, &agent, large("huge", 2 * MOST)).await;
    assert_eq!(results(&executor, &agent, "huge").await, 1);
    assert_eq!(results(&executor, &agent, &newest).await, 0);
}

/// An executor whose store holds so many bytes.
fn small(bytes: usize, options: Options) -> (Executor, Arc<MemoryStore>) {
    let store = Arc::new(MemoryStore::new(bytes));
    let world = World::new(0);
    let executor = executor_on(world.clock, world.http, Arc::clone(&store), options);
    (executor, store)
}

#[tokio::test]
async fn a_full_store_keeps_the_results_of_other_agents() {
    let (executor, _) = small(200_000, Options::default());
    let [agent, other] = ["a", "b"].map(agent);
    for (agent, id) in [(&other, "e".to_owned())]
        .into_iter()
        .chain((0..60).map(|number| (&agent, format!("e{number}"))))
    {
        run(&executor, agent, large(&id, 10_000)).await;
        let record = record_of(&executor, agent, &id).await;
        assert_eq!(record.results().unwrap().len(), 1, "{id}");
    }
    let record = record_of(&executor, &other, "e").await;
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
    let running = begun(begin_as(&executor, &agent, named("r", &[WAIT])).await);
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
async fn results_that_are_too_long_to_be_read_again_are_not_stored() {
    let world = World::new(0);
    let mut options = Options::default();
    options.limits.max_model_bytes = 256 << 20;
    let (executor, agent) = (world.executor_with(options), agent("a"));
    let item = Json::object([("v", Json::from("v".repeat(64 << 20)))]);
    let input = Json::object([("x", Json::from(vec![item]))]);
    let request = Request {
        input: input.as_object().unwrap().clone(),
        ..large("e", 1)
    };
    let record = run(&executor, &agent, request).await;
    assert_eq!(record.status(), Status::Success);
    assert_eq!(record.results().unwrap().len(), 1);
    let stored = record_of(&executor, &agent, "e").await;
    assert_eq!(stored.status(), Status::Success);
    assert_eq!(stored.results().unwrap().len(), 0);
    let is_removed = stored.answer().get("results_removed").cloned();
    assert_eq!(is_removed, Some(Json::Bool(true)));
}

/// A store like a log on a bus, whose messages have at most 1,500 bytes.
struct Narrow(MemoryStore);

impl Store for Narrow {
    reads_of!(0);

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
}

#[tokio::test]
async fn a_record_says_why_its_results_are_not_stored() {
    let (clock, store) = (VirtualClock::default(), Narrow(MemoryStore::default()));
    let executor = executor_on(clock, silent(), Arc::new(store), Options::default());
    let agent = agent("a");
    let mut execution = begun(executor.execute(&agent, large("e", 2_000)).await.unwrap());
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
    let stored = record_of(&executor, &agent, "e").await;
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
    let begin = async |id: &str| executor.execute(&agent, large(id, 10_000)).await;
    finished(begin("e0").await.unwrap()).await;
    let malformed = Change {
        table: Table::Executions,
        key: "a\0e0".to_owned(),
        value: Some(Bytes::from_static(b"{")),
    };
    world.store.store.write(vec![malformed]).await.unwrap();
    let refused = begin("e0").await;
    assert!(
        matches!(&refused, Err(Refusal::Unreadable(id)) if *id == "e0"),
        "{refused:?}"
    );

    for number in 1..60 {
        world.clock.advance(Duration::from_millis(1));
        finished(begin(&format!("e{number}")).await.unwrap()).await;
    }
    for table in [Table::Executions, Table::Summaries] {
        let left = world.store.scan(table, "a", "", 1_000).await.unwrap();
        assert_eq!(left.len(), 59, "{table:?}");
        let bytes: usize = left.iter().map(|(_, record)| record.len()).sum();
        assert!(bytes < MOST + 60 * 500, "{table:?}: {bytes} bytes");
    }
    assert!(matches!(begin("e0").await, Ok(Started::New(_))));
}
