//! No interface reaches the executor without a key.

use a2abus_transports::Message;
use a2abus_transports::memory::Memory;
use reqwest::{Client, Response, StatusCode};
use serde_json::{Value, json};
use support::battery::within;
use support::service::Service;

use super::{World, workflow};

fn client() -> Client {
    Client::builder().no_proxy().build().unwrap()
}

fn call(lines: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": 7, "method": "workflows/execute", "params": {
        "_agentId": "a2e-executor", "workflow": lines, "sourceagent": "reporter",
    }})
}

async fn post(url: String, headers: &[(&str, &str)], body: &Value) -> Response {
    let mut request = client().post(url).json(body);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    within("an answer", request.send()).await.unwrap()
}

/// A world without `workflows.rpc`, in which a route leads from the HTTP listener to the executor, directly or through
/// another binding.
async fn world(run_as: &str, routes: &str) -> World {
    World::routed(Memory::default(), Service::open().await, run_as, "", routes).await
}

const STRAIGHT: &str = "[{ name: agents, when: { targetagent: '*' }, to: [{ transport: bus, topic: 'agents.{targetagent}' }] }]";
const AROUND: &str = "
  - { name: around, when: { binding: http }, to: [{ transport: bus, topic: relay, mode: structured }] }
  - { name: agents, when: { targetagent: '*' }, to: [{ transport: bus, topic: 'agents.{targetagent}' }] }";

#[tokio::test]
async fn rpc_does_not_lead_to_the_executor() {
    for (run_as, routes) in [
        ("run_as: reporter", STRAIGHT),
        ("", STRAIGHT),
        ("run_as: reporter", AROUND),
        ("", AROUND),
    ] {
        let world = world(run_as, routes).await;
        let lines = workflow("e-1", &[("post", world.service.post("/orders"))]);
        let call = call(&lines);
        let forged = [
            ("ce-sourceagent", "reporter"),
            ("ce-source", "/reporter"),
            ("x-api-key", "not-a-key"),
        ];
        for (path, headers) in [
            ("/rpc/a2e-executor", &[][..]),
            ("/rpc/a2e%2Dexecutor", &[]),
            ("/rpc", &[]),
            ("/rpc", &forged),
            ("/rpc", &[("accept", "text/event-stream")]),
        ] {
            let answer = post(format!("{}{path}", world.door), headers, &call).await;
            let answer = answer.text().await.unwrap();
            assert!(
                answer.contains(r#""code":"rpc_not_permitted""#),
                "{path} {headers:?}: {answer}"
            );
            assert!(answer.contains("workflows.rpc: true"), "{answer}");
        }
        let validate = lines_of("workflows/validate", &lines);
        let batch = json!([call, validate]);
        let answer = post(format!("{}/rpc", world.door), &[], &batch).await;
        let answer: Value = answer.json().await.unwrap();
        for part in answer.as_array().unwrap() {
            assert_eq!(part["error"]["data"]["code"], "rpc_not_permitted");
            assert_eq!(part["error"]["code"], -32600, "{part}");
        }
        nothing_ran(&world).await;
        world.end().await;
    }
}

fn lines_of(method: &str, lines: &str) -> Value {
    let mut call = call(lines);
    call["method"] = method.into();
    call["id"] = 8.into();
    call
}

#[tokio::test]
async fn rpc_does_not_cancel_executions_of_other_interfaces() {
    let mut world = world("run_as: reporter", STRAIGHT).await;
    let lines = workflow("e-1", &[("held", world.service.get("/held"))]);
    world.publish(Message::plain(lines)).await;
    world.service.until_held(1).await;
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "e-1"}});
    let answer = post(format!("{}/rpc/a2e-executor", world.door), &[], &cancel).await;
    assert_eq!(answer.status(), StatusCode::ACCEPTED);
    let dlq_message = world.dead_letter().await;
    let reason = dlq_message.headers.get("bus-dlq-reason").unwrap();
    assert_eq!(reason, "rpc_not_permitted");
    world.service.release(1);
    assert_eq!(world.answer().await.data["status"], "success");
    world.end().await;
}

#[tokio::test]
async fn rest_is_closed_without_a_key() {
    let world = world("run_as: reporter", STRAIGHT).await;
    let lines = workflow("e-1", &[("post", world.service.post("/orders"))]);
    let document = client()
        .get(format!("{}/api/v1/openapi.json", world.door))
        .header("x-api-key", "key");
    let document: Value = document.send().await.unwrap().json().await.unwrap();
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 5);
    let body = json!({"workflow": lines});
    // These two say nothing of anybody.
    let is_open = |path: &str| matches!(path, "/health" | "/api/v1/openapi.json");
    for (path, methods) in paths.iter().filter(|(path, _)| !is_open(path)) {
        for method in methods
            .as_object()
            .unwrap()
            .keys()
            .filter(|key| *key != "parameters")
        {
            let url = format!("{}{}", world.door, path.replace(['{', '}'], ""));
            let method = method.to_uppercase().parse::<reqwest::Method>().unwrap();
            for (url, key) in [
                (url.clone(), None),
                (url.clone(), Some("not-a-key")),
                (url.clone(), Some("")),
                (format!("{url}?x-api-key=key&api_key=key&key=key"), None),
            ] {
                let mut request = client().request(method.clone(), &url).json(&body);
                if let Some(key) = key {
                    request = request.header("x-api-key", key);
                }
                let answer = within("an answer", request.send()).await.unwrap();
                assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{method} {url}");
            }
        }
    }
    for path in [
        "/api/v1/workflows/execute/",
        "/API/v1/workflows/execute",
        "//api/v1/workflows/execute",
        "/api/v1/../v1/workflows/execute",
        "/workflows/execute",
    ] {
        let answer = post(format!("{}{path}", world.door), &[], &body).await;
        assert!(
            answer.status().is_client_error(),
            "{path}: {}",
            answer.status()
        );
    }
    nothing_ran(&world).await;
    world.end().await;
}

#[tokio::test]
async fn the_admin_listener_executes_nothing() {
    let world = world("run_as: reporter", STRAIGHT).await;
    let lines = workflow("e-1", &[("post", world.service.post("/orders"))]);
    for path in ["/rpc/a2e-executor", "/api/v1/workflows/execute"] {
        for body in [call(&lines), json!({"workflow": lines})] {
            let answer = post(
                format!("{}{path}", world.admin),
                &[("x-api-key", "key")],
                &body,
            )
            .await;
            assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{path}");
        }
    }
    nothing_ran(&world).await;
    world.end().await;
}

#[tokio::test]
async fn a_payload_on_the_bus_does_not_identify_its_sender() {
    // Without `run_as`, the attribute of the event names the agent; no member of a payload does.
    let mut world = world("", STRAIGHT).await;
    let lines = workflow("e-1", &[("post", world.service.post("/orders"))]);
    let begin = r#""beginExecution","sourceagent":"reporter","_sourceAgent":"reporter""#;
    let lines = lines.replace(r#""beginExecution""#, begin);
    world.publish(Message::plain(lines.clone())).await;
    world
        .publish(Message::plain(call(&lines).to_string()))
        .await;
    for _ in 0..2 {
        let dlq_message = world.dead_letter().await;
        let reason = dlq_message.headers.get("bus-dlq-reason").unwrap();
        assert_eq!(reason, "no_route", "without a requester there is no answer");
    }
    // Nor does the way through another binding give it a name.
    super::publish(
        &world.memory,
        "relay",
        Message::plain(call(&lines).to_string()),
    )
    .await;
    let dlq_message = world.dead_letter().await;
    assert_eq!(
        dlq_message.headers.get("bus-dlq-reason").unwrap(),
        "no_route"
    );
    // Nor does an attribute that the other binding does not believe.
    let named = [
        ("targetagent", "a2e-executor"),
        ("sourceagent", "reporter"),
        ("a2amethod", "workflows/execute"),
    ];
    let forged = super::event("e-1", &named, &lines);
    super::publish(&world.memory, "relay", forged).await;
    let dlq_message = world.dead_letter().await;
    assert_eq!(
        dlq_message.headers.get("bus-dlq-reason").unwrap(),
        "no_route"
    );
    nothing_ran(&world).await;
    world.end().await;
}

/// Nothing was executed, and the service was not called.
async fn nothing_ran(world: &World) {
    assert_eq!(world.service.posts(), 0);
    assert_eq!(world.count("a2abus_workflow_executions_started_total"), 0);
    let url = format!("{}/api/v1/executions", world.door);
    let request = client().get(url).header("x-api-key", "key");
    let records: Value = request.send().await.unwrap().json().await.unwrap();
    assert_eq!(records["count"], 0, "{records}");
}
