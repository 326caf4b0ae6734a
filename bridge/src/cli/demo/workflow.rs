//! The workflow of the demonstration, and the small service whose data it uses.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use a2abus_executor::{
    Agent, Client, ClientOptions, Environment, Event, Executor, MemoryStore, Options, Progress,
    Rates, Record, Request, Started, Status, SystemClock, SystemRandom,
};
use a2abus_models::a2e_workflow::{Apis, Policy};
use anyhow::{Context as _, bail};
use axum::Router;
use axum::routing::get;
use futures_util::StreamExt as _;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::show::WorkflowReport;

/// The data of the service.
fn orders() -> Value {
    json!([
        {"id": 1, "customer": "Ana", "total": 120.5, "paid": true},
        {"id": 2, "customer": "Bo", "total": 80, "paid": false},
        {"id": 3, "customer": "Cy", "total": 300, "paid": true},
        {"id": 4, "customer": "Di", "total": 42, "paid": true},
    ])
}

/// Fetch, filter, sort, store.
fn workflow(base: &str) -> String {
    let operation = |id: &str, operation: Value| json!({"type": "operationUpdate", "operationId": id, "operation": operation});
    let lines = [
        operation(
            "fetch",
            json!({"ApiCall": {"method": "GET", "url": format!("{base}/orders"), "outputPath": "/workflow/orders"}}),
        ),
        operation(
            "paid",
            json!({"FilterData": {"inputPath": "/workflow/orders",
                "conditions": [{"field": "paid", "operator": "==", "value": true}], "outputPath": "/workflow/paid"}}),
        ),
        operation(
            "largest",
            json!({"TransformData": {"inputPath": "/workflow/paid", "transform": "sort",
                "config": {"field": "total", "order": "desc"}, "outputPath": "/workflow/largest"}}),
        ),
        operation(
            "keep",
            json!({"StoreData": {"inputPath": "/workflow/largest", "storage": "localStorage", "key": "paid-orders"}}),
        ),
        json!({"type": "beginExecution", "executionId": "demo-1", "operationOrder": ["fetch", "paid", "largest", "keep"]}),
    ];
    lines.map(|line| line.to_string()).join("\n")
}

/// Runs the workflow against the service.
pub(super) async fn take() -> anyhow::Result<WorkflowReport> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let base = format!("http://{}", listener.local_addr()?);
    let service = Router::new().route(
        "/orders",
        get(|| async { ([(CONTENT_TYPE, "application/json")], orders().to_string()) }),
    );
    let stop = CancellationToken::new();
    let serving =
        axum::serve(listener, service).with_graceful_shutdown(stop.clone().cancelled_owned());
    let serving = tokio::spawn(serving.into_future());
    let workflow = workflow(&base);
    let began = Instant::now();
    let ran = tokio::time::timeout(super::step::TIMEOUT, execute(&base, &workflow)).await;
    let elapsed = began.elapsed();
    stop.cancel();
    serving.await??;
    let (progress, record) = ran.context("the workflow did not end")??;
    let ids: Vec<_> = ["3", "1", "4"].into();
    let largest = record
        .results()
        .and_then(|results| results.get("largest")?.as_array().cloned());
    let got: Vec<String> = largest
        .iter()
        .flatten()
        .filter_map(|order| order.get("id").map(ToString::to_string))
        .collect();
    let problem = (record.status() != Status::Success || got != ids)
        .then(|| "expected the paid orders 3, 1 and 4, the largest first".to_owned());
    Ok(WorkflowReport {
        workflow,
        progress,
        answer: record.answer().to_string(),
        elapsed,
        problem,
    })
}

async fn execute(base: &str, workflow: &str) -> anyhow::Result<(Vec<Progress>, Arc<Record>)> {
    let environment = Environment {
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SystemRandom::new()?),
        http: Arc::new(Client::new(&ClientOptions::default())?),
        store: Arc::new(MemoryStore::default()),
    };
    // A registered base URL may be on this machine.
    let policy = Policy {
        operations: ["ApiCall", "FilterData", "TransformData", "StoreData"]
            .into_iter()
            .collect(),
        apis: Apis::parse([base])?,
        storages: ["localStorage"].into_iter().collect(),
        ..Policy::default()
    };
    let agent = Agent::new("reporter".into(), policy, BTreeMap::new(), Rates::default());
    let executor = Executor::new(environment, Options::default());
    let request = Request {
        workflow: workflow.to_owned().into(),
        ..Request::default()
    };
    let Started::New(mut execution) = executor.execute(&Arc::new(agent), request).await? else {
        bail!("the workflow has already run");
    };
    let mut progress = Vec::new();
    loop {
        match execution
            .next()
            .await
            .context("the workflow ended without a record")?
        {
            Event::Operation(operation) => progress.push(operation),
            Event::Ended { record, .. } => return Ok((progress, record)),
            _ => {}
        }
    }
}
