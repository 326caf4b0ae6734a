//! What an execution reads and stores, and the limits at which that ends it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use a2abus_executor::{Agent, Executor, Json, OnError, Options, Refusal, Request, Status};
use a2abus_models::a2e_workflow::operation::Storage;

use super::{
    WAIT, World, agent, agent_with, finished, large, members, named, record_of, request, run,
    workflow,
};

/// An operation that stores `/workflow/x`.
fn store_in(storage: &str, key: &str) -> String {
    format!(r#""StoreData":{{"inputPath":"/workflow/x","storage":"{storage}","key":"{key}"}}"#)
}

/// An operation that joins these arrays.
fn join(sources: &[&str], output: &str) -> String {
    format!(r#""MergeData":{{"sources":{sources:?},"strategy":"concat","outputPath":"{output}"}}"#)
}

/// The answer of an execution with this input.
async fn answer_of(
    executor: &Executor,
    agent: &Arc<Agent>,
    lines: String,
    input: &str,
    on_error: OnError,
) -> Json {
    let request = Request {
        input: members(input),
        on_error,
        ..request(lines)
    };
    run(executor, agent, request).await.answer()
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
async fn members_of_the_request_replace_those_that_the_workflow_brings() {
    let world = World::new(0);
    let lines = workflow(&[&join(&["/workflow/a", "/workflow/b"], "/workflow/c")]);
    let begin = r#""beginExecution","input":{"a":[1],"b":[2]}"#;
    let request = Request {
        input: members(r#"{"b":[3],"d":4}"#),
        ..request(lines.replace(r#""beginExecution""#, begin))
    };
    let record = run(&world.executor(), &world.agent, request).await;
    let results = Json::from(record.results().unwrap().clone());
    assert_eq!(results.to_string(), r#"{"o0":[1,3]}"#);
}

#[tokio::test]
async fn stored_values_are_read_by_path() {
    let mut world = World::new(0);
    world.agent = agent_with("tester", &["localStorage", "sessionStorage"]);
    let executor = world.executor();
    let run_in = async |session: &str, id: &str, operations: &[&str], input: &str| {
        let request = Request {
            session: Some(session.into()),
            input: members(input),
            ..request(named(id, operations))
        };
        run(&executor, &world.agent, request).await
    };
    let [local, session] = [
        store_in("localStorage", "a"),
        store_in("sessionStorage", "b/c"),
    ];
    let record = run_in("s", "e-1", &[&local, &session], r#"{"x":[1]}"#).await;
    assert_eq!(record.status(), Status::Success);

    // A later workflow; it also stores a value itself.
    let sources = ["/localStorage/a", "/sessionStorage[\"b/c\"]"];
    let [merge, other] = ["/workflow/c", "/workflow/d"].map(|output| join(&sources, output));
    let operations = [&merge, &local, &other].map(String::as_str);
    let record = run_in("s", "e-2", &operations, r#"{"x":[2]}"#).await;
    let results = Json::from(record.results().unwrap().clone());
    assert_eq!(results.get("o0").unwrap().to_string(), "[1,1]", "{results}");
    assert_eq!(results.get("o2").unwrap().to_string(), "[2,1]", "{results}");

    // Another session does not see it.
    let record = run_in("t", "e-3", &[&merge], "{}").await;
    assert_eq!(record.status(), Status::Failed);
    assert!(record.answer().to_string().contains("path_not_found"));

    // Without permission for a storage an agent cannot read it either.
    let request = request(named("e-4", &[&merge]));
    let refusal = executor.execute(&agent("other"), request).await;
    let refusal = refusal.unwrap_err();
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
async fn an_execution_whose_values_cannot_be_stored_still_ends() {
    let world = World::new(2);
    let executor = world.executor();
    let lines = workflow(&[WAIT]);
    let record = finished(world.begin(&executor, &lines).await).await;
    assert_eq!(record.status(), Status::Success);
    let record = record_of(&executor, &world.agent, "e").await;
    assert_eq!(record.status(), Status::Success);
    assert!(record.results().unwrap().is_empty());
}

#[tokio::test]
async fn values_that_are_stored_and_read_again_have_a_limit_together() {
    let world = World::new(0);
    let mut options = Options::default();
    options.limits.max_model_bytes = 10_000;
    let executor = world.executor_with(options);
    let operations = [
        store_in("localStorage", "a"),
        store_in("localStorage", "b"),
        join(&["/localStorage/a", "/localStorage/b"], "/workflow/c"),
    ];
    let request = Request {
        input: large("e", 6_000).input,
        ..request(workflow(&operations.each_ref().map(String::as_str)))
    };
    let agent = agent_with("a", &["localStorage"]);
    let answer = run(&executor, &agent, request).await.answer();
    let error = answer.get("error").unwrap();
    assert_eq!(error.get("code"), Some(&"limit_exceeded".into()));
    assert_eq!(error.get("operationId"), Some(&"o1".into()));
    for (key, is_stored) in [("a", true), ("b", false)] {
        let stored = executor.stored("a", "", Storage::Local, key).await.unwrap();
        assert_eq!(stored.is_some(), is_stored, "{key}");
    }
}

#[tokio::test]
async fn a_stored_value_is_loaded_once_and_only_while_there_is_time() {
    let world = World::new(0);
    let (executor, agent) = (world.executor(), agent_with("a", &["localStorage"]));
    let answer_to =
        async |lines| answer_of(&executor, &agent, lines, r#"{"x":[1]}"#, OnError::Stop).await;
    let [first, second] = ["k", "l"].map(|key| store_in("localStorage", key));
    answer_to(named("e-1", &[&first, &second])).await;
    let (k, l) = ("/localStorage/k", "/localStorage/l");
    let merge = join(&[k, k, l, k], "/workflow/c");
    let reads = || world.store.value_reads.swap(0, Ordering::Relaxed);
    reads();
    let answer = answer_to(named("e-2", &[&merge])).await;
    let results = answer.get("results").unwrap().to_string();
    assert_eq!(results, r#"{"o0":[1,1,1,1]}"#);
    assert_eq!(reads(), 2);

    *world.store.value_read_takes.lock().unwrap() = Duration::from_secs(31);
    let answer = answer_to(named("e-3", &[&merge])).await;
    assert_eq!(failure_of(&answer), "execution_timeout: no limit");
    assert_eq!(reads(), 1);
}

#[tokio::test]
async fn values_that_are_too_deep_to_be_read_again_are_refused() {
    let world = World::new(0);
    let (executor, agent) = (world.executor(), agent_with("a", &["localStorage"]));
    let twice = |source: &str, output: &str| join(&[source, source], output);
    let steps = |first: &str| format!("/workflow/{first}{}", "/k".repeat(63));
    let operations = [
        twice("/workflow/v", &steps("p")),
        twice("/workflow/p", &steps("q")),
        twice("/workflow/q", "/workflow/o"),
    ];
    let lines = workflow(&operations.each_ref().map(String::as_str));
    let answer = answer_of(&executor, &agent, lines, r#"{"v":[1]}"#, OnError::Stop).await;
    assert_eq!(failure_of(&answer), "limit_exceeded: data_model_levels");
    let stored = record_of(&executor, &agent, "e").await;
    assert_eq!(stored.answer(), answer);

    for (levels, is_stored) in [(120, true), (121, false)] {
        let key = format!("k{levels}");
        let lines = named(&key, &[&store_in("localStorage", &key)]);
        let input = format!(r#"{{"x":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
        let answer = answer_of(&executor, &agent, lines, &input, OnError::Stop).await;
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
async fn a_wait_beyond_the_deadline_ends_the_execution_whatever_its_on_error() {
    let world = World::new(0);
    // A Wait that runs always would make the workflow invalid.
    let branch = r#""Conditional":{"condition":{"path":"/workflow/n","operator":"==","value":1},"ifTrue":["o1"]}"#;
    let operations = [branch, r#""Wait":{"duration":31000}"#, WAIT];
    let lines = workflow(&operations).replace(r#""o0","o1""#, r#""o0""#);
    let (executor, agent) = (world.executor(), &world.agent);
    let answer = answer_of(&executor, agent, lines, r#"{"n":1}"#, OnError::Continue).await;
    let error = answer.get("error").unwrap();
    assert_eq!(error.get("code"), Some(&"execution_timeout".into()));
    assert_eq!(error.get("operationId"), Some(&"o1".into()));
    assert_eq!(answer.get("results").unwrap().to_string(), "{}");
}
