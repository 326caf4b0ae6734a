//! Replicas that share the records of executions and `localStorage`, over real Kafka and real JetStream.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use support::battery::within;
use support::running::Running;
use support::server::{Kind, Private, named};
use support::service::Service;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::plain::unique;

/// The SHA-256 of [`KEY`].
const DIGEST: &str = "0ce085922a9c580b7f12628fa25a993f334a806ec423fef242fba453a6ed2dfc";
const KEY: &str = "one-key";

fn config(u: &str, transport: &str, service: &Service) -> String {
    format!(
        "
instance: test
transports: {{ bus: {transport} }}
state: {{ log: bus, create: true, prefix: {u} }}
calls: {{ enabled: false }}
workflows:
  enabled: true
  apis: [{{ id: service, base_url: '{base}' }}]
  agents: [{{ id: reporter, keys: [{{ sha256: {DIGEST} }}], operations: ['*'], apis: [service], storages: ['*'], rates: {{ requests_per_minute: 100000, requests_per_hour: 100000, requests_per_day: 100000 }} }}]",
        base = service.base,
    )
}

/// A workflow of these operations.
fn workflow(execution: &str, operations: &[(&str, Value)]) -> Value {
    let lines = operations.iter().map(|(id, operation)| {
        json!({"type": "operationUpdate", "operationId": id, "operation": operation}).to_string()
    });
    let order: Vec<&str> = operations.iter().map(|(id, _)| *id).collect();
    let begin =
        json!({"type": "beginExecution", "executionId": execution, "operationOrder": order});
    let lines: Vec<String> = lines.chain([begin.to_string()]).collect();
    json!({ "workflow": lines.join("\n") })
}

async fn call(door: &str, method: Method, path: &str, body: Option<&Value>) -> (StatusCode, Value) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = client.request(method, format!("{door}/api/v1/{path}"));
    let request = request.bearer_auth(KEY);
    let request = match body {
        Some(body) => request.json(body),
        None => request,
    };
    let response = request.send().await.unwrap();
    (response.status(), response.json().await.unwrap_or_default())
}

/// Twenty requests for each of some executions, half of them to each replica: each runs once, and all get its answer.
async fn each_runs_once(transport: &str) {
    let service = Service::open().await;
    let config = config(&unique("executions"), transport, &service);
    let (one, other) = (Running::start(&config).await, Running::start(&config).await);
    let mut requests = JoinSet::new();
    for execution in 0..5 {
        let operations = [("order", service.post("/orders"))];
        let body = Arc::new(workflow(&format!("e-{execution}"), &operations));
        for number in 0..20 {
            let door = [&one, &other][number % 2].door.clone();
            let body = Arc::clone(&body);
            requests.spawn(async move {
                call(&door, Method::POST, "workflows/execute", Some(&body)).await
            });
        }
    }
    let mut answers = 0;
    while let Some(answer) = within("every request is answered", requests.join_next()).await {
        let (status, answer) = answer.unwrap();
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert_eq!(answer["status"], "success", "{answer}");
        answers += 1;
    }
    assert_eq!((answers, service.posts()), (100, 5));

    // While it runs on one replica, the other shows it, and waits for it.
    let held = workflow("held", &[("held", service.post("/held"))]);
    let running = {
        let (door, held) = (one.door.clone(), held.clone());
        tokio::spawn(
            async move { call(&door, Method::POST, "workflows/execute", Some(&held)).await },
        )
    };
    service.until_held(1).await;
    within("the other shows that it runs", async {
        let shown = || call(&other.door, Method::GET, "executions/held", None);
        while shown().await.1["status"] != "running" {}
    })
    .await;
    let waiting = {
        let (door, held) = (other.door.clone(), held.clone());
        tokio::spawn(
            async move { call(&door, Method::POST, "workflows/execute", Some(&held)).await },
        )
    };
    service.release(1);
    let first = within("it ends", running).await.unwrap();
    assert_eq!(first.1["status"], "success");
    assert_eq!(within("the other has it", waiting).await.unwrap(), first);
    assert_eq!(service.held(), 1);

    // Another workflow under the same id is a conflict on either.
    let foreign = workflow("e-1", &[("users", service.get("/users"))]);
    let (status, _) = call(
        &other.door,
        Method::POST,
        "workflows/execute",
        Some(&foreign),
    )
    .await;
    assert_eq!(status, StatusCode::CONFLICT);
    stored_here_is_there(&one, &other, &service).await;
    one.stop().await;

    // One that starts later knows all of it.
    let third = Running::start(&config).await;
    let (_, list) = call(&third.door, Method::GET, "executions", None).await;
    assert_eq!(list["count"], 7, "{list}");
    let (_, record) = call(&third.door, Method::GET, "executions/e-3", None).await;
    let posts = &record["results"]["order"]["posts"];
    assert!(posts.is_number(), "{record}");
    other.stop().await;
    third.stop().await;
}

async fn stored_here_is_there(one: &Running, other: &Running, service: &Service) {
    let store = json!({"StoreData": {"inputPath": "/workflow/got", "storage": "localStorage", "key": "users"}});
    let operations = [("got", service.get("/users")), ("kept", store)];
    let body = workflow("stores", &operations);
    let (_, answer) = call(&one.door, Method::POST, "workflows/execute", Some(&body)).await;
    assert_eq!(answer["status"], "success", "{answer}");
    let stored = "storage/localStorage/users";
    let value = within("the other has the value", async {
        loop {
            let (status, value) = call(&other.door, Method::GET, stored, None).await;
            if status == StatusCode::OK {
                return value;
            }
        }
    })
    .await;
    assert!(value.to_string().contains("Ada"), "{value}");
    let (status, _) = call(&other.door, Method::DELETE, stored, None).await;
    assert!(status.is_success(), "{status}");
    within("the first sees that it is gone", async {
        while call(&one.door, Method::GET, stored, None).await.0 != StatusCode::NOT_FOUND {}
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_execution_runs_once_on_replicas_that_share_kafka() {
    if let Some(kafka) = named(Kind::Kafka) {
        each_runs_once(&format!("{{ type: kafka, brokers: ['{kafka}'] }}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_execution_runs_once_on_replicas_that_share_jetstream() {
    if let Some(nats) = named(Kind::Nats) {
        each_runs_once(&format!("{{ type: nats, servers: ['{nats}'] }}")).await;
    }
}

/// An outage of the log that is longer than one attempt to write to it delays an execution, and does not make it fail.
#[tokio::test(flavor = "multi_thread")]
async fn an_execution_continues_after_an_outage_of_its_log() {
    if named(Kind::Nats).is_none() {
        return;
    }
    let Some(log) = Private::start_new(Kind::Nats).await else {
        return;
    };
    let service = Service::open().await;
    let transport = format!("{{ type: nats, servers: ['nats://{}'] }}", log.address());
    let bridge = Running::start(&config(&unique("outage"), &transport, &service)).await;
    let store = json!({"StoreData": {"inputPath": "/workflow/posted", "storage": "localStorage", "key": "posted"}});
    let body = workflow(
        "delayed",
        &[("held", service.post("/held")), ("kept", store)],
    );
    let door = bridge.door.clone();
    let running =
        tokio::spawn(
            async move { call(&door, Method::POST, "workflows/execute", Some(&body)).await },
        );
    service.until_held(1).await;
    log.freeze().await;
    service.release(1);
    // By then one attempt to write has failed.
    within("the log is seen to be silent", async {
        while bridge.report().ready {
            sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    log.thaw().await;
    let (_, answer) = within("it ends", running).await.unwrap();
    assert_eq!(answer["status"], "success", "{answer}");
    let stored = call(
        &bridge.door,
        Method::GET,
        "storage/localStorage/posted",
        None,
    )
    .await;
    assert_eq!(stored.0, StatusCode::OK, "{}", stored.1);
    bridge.stop().await;
}
