//! Cancels, deadlines, redelivery, many at a time, and the end of the bridge.

use std::sync::Arc;

use a2abus_executor::{Client, ClientOptions, Environment, MemoryStore, SystemClock, SystemRandom};
use a2abus_transports::Message;
use a2abus_transports::memory::Memory;
use serde_json::json;
use support::battery::within;
use support::service::Service;

use super::{ROUTES, ReplyEvent, World, configuration, event, wait, workflow};
use crate::set_up::{next, read};

const EXECUTE: (&str, &str) = ("a2amethod", "workflows/execute");

fn cancel(from: &str) -> Message {
    cancel_of(from, "e-1")
}

pub(super) fn cancel_of(from: &str, name: &str) -> Message {
    cancel_with(&[("sourceagent", from), ("collaborationid", name)])
}

fn cancel_with(attributes: &[(&str, &str)]) -> Message {
    let mut message = event("cancel", attributes, "");
    message
        .headers
        .put("ce_type", "org.apache.eventmesh.a2a.a2e.execution.cancel");
    message
}

#[tokio::test]
async fn only_the_requester_may_cancel_an_execution() {
    let mut world = World::named().await;
    let lines = workflow(
        "e-1",
        &[
            ("held", world.service.get("/held")),
            ("post", world.service.post("/orders")),
        ],
    );
    world.send("1", &[EXECUTE], &lines).await;
    world.service.until_held(1).await;
    world.publish(cancel("idler")).await;
    world
        .until_counted("a2abus_settled_total{binding=\"work\"}", 1)
        .await;
    world.service.release(1);
    let answer = world.answer().await;
    assert_eq!(answer.data["status"], "success", "{}", answer.data);

    let lines = lines.replace("e-1", "e-2");
    world
        .send("2", &[EXECUTE, ("collaborationid", "e-1")], &lines)
        .await;
    world.service.until_held(2).await;
    world.publish(cancel("reporter")).await;
    let answer = world.answer().await;
    assert_eq!(answer.data["status"], "cancelled", "{answer:?}");
    assert_eq!(answer.data["error"]["code"], "cancelled");
    assert_eq!(world.service.posts(), 1);
    world.end().await;
}

#[tokio::test]
async fn a_cancel_may_name_the_call_of_its_request() {
    let mut world = World::named().await;
    let lines = workflow("e-1", &[("held", world.service.get("/held"))]);
    world
        .send("1", &[EXECUTE, ("callid", "call-9")], &lines)
        .await;
    world.service.until_held(1).await;
    world
        .publish(cancel_with(&[
            ("sourceagent", "reporter"),
            ("callid", "call-9"),
        ]))
        .await;
    let answer = world.answer().await;
    assert_eq!(answer.data["status"], "cancelled", "{answer:?}");
    // Without any name it cancels nothing.
    world
        .publish(cancel_with(&[("sourceagent", "reporter")]))
        .await;
    let dead_letter = world.dead_letter().await;
    let detail = dead_letter.headers.get("bus-dlq-detail").unwrap();
    let detail = std::str::from_utf8(detail).unwrap();
    assert!(detail.contains("callid"), "{detail}");
    world.end().await;
}

#[tokio::test]
async fn a_caller_that_disconnects_cancels_its_call() {
    let mut world = World::with("run_as: reporter", "  rpc: true").await;
    let lines = workflow("e-1", &[("held", world.service.get("/held"))]);
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "workflows/execute", "params": {"workflow": lines}});
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = client
        .post(format!("{}/rpc/a2e-executor", world.door))
        .json(&body);
    let calling = tokio::spawn(request.send());
    world.service.until_held(1).await;
    calling.abort();
    // The same workflow, sent again, gets its outcome.
    let series = "a2abus_workflow_executions_ended_total{status=\"cancelled\"}";
    world.until_counted(series, 1).await;
    world.publish(Message::plain(lines)).await;
    assert_eq!(world.answer().await.data["status"], "cancelled");
    world.end().await;
}

#[tokio::test]
async fn a_cancel_in_the_message_of_its_request_cancels_it() {
    let mut world = World::new().await;
    let lines = workflow("e-1", &[("post", world.service.post("/orders"))]);
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "workflows/execute",
        "params": {"_agentId": "a2e-executor", "workflow": lines}});
    let cancel =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}});
    let batch = json!([call, cancel]);
    world.publish(Message::plain(batch.to_string())).await;
    let answer = world.answer().await;
    assert_eq!(answer.data["result"]["status"], "cancelled", "{answer:?}");
    assert_eq!(world.service.posts(), 0);
    world.end().await;
}

#[tokio::test]
async fn a_workflow_that_arrives_too_late_is_not_run() {
    let mut world = World::named().await;
    let lines = workflow("e-1", &[("post", world.service.post("/orders"))]);
    let late = ("expirytime", "2020-01-01T00:00:00Z");
    world.send("1", &[EXECUTE, late], &lines).await;
    let answer = world.answer().await;
    assert_eq!(answer.data["error"]["type"], "TimeoutError", "{answer:?}");
    let message = "its expirytime had passed before it began: nothing was executed";
    assert_eq!(answer.data["error"]["message"], message);
    // An invalid time does not mean an unlimited deadline.
    let wrong = ("expirytime", "tomorrow");
    world.send("2", &[EXECUTE, wrong], &lines).await;
    let answer = world.answer().await;
    assert_eq!(
        answer.data["error"]["type"], "ValidationError",
        "{answer:?}"
    );
    assert_eq!(world.service.posts(), 0);
    world.end().await;
}

#[tokio::test]
async fn a_workflow_that_comes_again_while_it_runs_runs_once() {
    let mut world = World::named().await;
    let lines = workflow(
        "e-1",
        &[
            ("held", world.service.post("/held")),
            ("post", world.service.post("/orders")),
        ],
    );
    for _ in 0..2 {
        world.send("1", &[EXECUTE], &lines).await;
    }
    world.service.until_held(1).await;
    world.service.release(2);
    let (first, second) = (world.answer().await, world.answer().await);
    assert_eq!(first, second);
    assert_eq!(first.data["status"], "success");
    assert_eq!((world.service.held(), world.service.posts()), (1, 1));
    // Another workflow under its name is refused.
    let other = workflow("e-1", &[("w", wait(1))]);
    world.send("2", &[EXECUTE], &other).await;
    let refused = world.answer().await;
    let error = &refused.data["error"];
    assert_eq!(error["code"], "execution_id_conflict");
    assert_eq!(error["type"], "ExecutionError");
    world.end().await;
}

#[tokio::test]
async fn an_execution_does_not_wait_for_an_unavailable_bus_but_its_answer_does() {
    let mut world = World::named().await;
    let operations = [
        ("held", world.service.get("/held")),
        ("post", world.service.post("/orders")),
    ];
    world
        .send("1", &[EXECUTE], &workflow("e-1", &operations))
        .await;
    world.service.until_held(1).await;
    world.memory.set_down("the cable is out");
    world.service.release(1);
    let ended = "a2abus_workflow_executions_ended_total{status=\"success\"}";
    world.until_counted(ended, 1).await;
    assert_eq!(world.service.posts(), 1);
    let settled = "a2abus_settled_total{binding=\"work\"}";
    assert_eq!(world.count(settled), 0, "nobody has the answer yet");
    world.memory.set_up();
    let answer = world.answer().await;
    assert_eq!(answer.data["status"], "success", "{}", answer.data);
    assert_eq!(world.service.posts(), 1);
    world.end().await;
}

#[tokio::test]
async fn more_than_an_agent_may_run_wait_for_their_turn() {
    const ALL: usize = 20;
    const AT_A_TIME: usize = 16;
    let mut world = World::named().await;
    for number in 0..ALL {
        let lines = workflow(
            &format!("e-{number}"),
            &[("held", world.service.get(&format!("/held?n={number}")))],
        );
        world.send(&format!("{number}"), &[EXECUTE], &lines).await;
    }
    world.service.until_held(AT_A_TIME).await;
    // Another agent has turns of its own, and is served while the others wait.
    let mut others = read(&world.memory, "agents.idler").await;
    world
        .send(
            "x",
            &[EXECUTE, ("sourceagent", "idler")],
            &workflow("e-x", &[("w", wait(1))]),
        )
        .await;
    while !ReplyEvent::of(&next(&mut others).await).is_answer() {}
    assert_eq!(world.service.held(), AT_A_TIME);
    world.service.release(ALL);
    for _ in 0..ALL {
        assert_eq!(world.answer().await.data["status"], "success");
    }
    world
        .until_counted("a2abus_settled_total{binding=\"work\"}", ALL as u64 + 1)
        .await;
    world.end().await;
}

#[tokio::test]
async fn a_waiting_workflow_can_be_cancelled() {
    let mut world = World::named().await;
    for number in 0..16 {
        let lines = workflow(
            &format!("h-{number}"),
            &[("held", world.service.get(&format!("/held?n={number}")))],
        );
        world.send(&format!("{number}"), &[EXECUTE], &lines).await;
    }
    world.service.until_held(16).await;
    let lines = workflow("e-1", &[("post", world.service.post("/orders"))]);
    // The id of the execution is known from within alone.
    let body = json!({"workflow": lines}).to_string();
    let headers = [EXECUTE, ("collaborationid", "task-7")];
    world.send("x", &headers, &body).await;
    world.publish(cancel("reporter")).await;
    let answer = world.answer().await;
    assert_eq!(
        (&answer.data["execution_id"], &answer.data["status"]),
        (&json!("e-1"), &json!("cancelled"))
    );
    assert_eq!(answer.attribute("collaborationid"), "e-1");
    world.service.release(16);
    for _ in 0..16 {
        world.answer().await;
    }
    // It stays cancelled when it is delivered again.
    world.send("x", &headers, &body).await;
    let again = world.answer().await;
    assert_eq!(again.data, answer.data);
    assert_eq!(world.service.posts(), 0);
    world.end().await;
}

#[tokio::test]
async fn running_workflows_are_finished_and_answered_before_the_bridge_ends() {
    let (memory, service) = (Memory::default(), Service::open().await);
    let mut world = World::on(memory.connect(), service.clone(), "", "").await;
    let lines = workflow("e-1", &[("held", service.post("/held"))]);
    world.send("1", &[EXECUTE], &lines).await;
    service.until_held(1).await;
    world.stop.cancel();
    // Messages that arrive now are left to the next bridge.
    let waiting = workflow("e-2", &[("post", service.post("/orders"))]);
    world.send("2", &[EXECUTE], &waiting).await;
    service.release(1);
    let answer = world.answer().await;
    assert_eq!(
        (&answer.data["execution_id"], &answer.data["status"]),
        (&json!("e-1"), &json!("success"))
    );
    within("the bridge drains", &mut world.running)
        .await
        .unwrap();
    drop(world);

    let mut next = World::on(memory, service.clone(), "", "").await;
    let answer = next.answer().await;
    assert_eq!(
        (&answer.data["execution_id"], &answer.data["status"]),
        (&json!("e-2"), &json!("success"))
    );
    assert_eq!((service.held(), service.posts()), (1, 1));
    next.end().await;
}

#[tokio::test]
async fn a_workflow_that_a_stop_ends_runs_again_unless_it_may_have_acted() {
    let (memory, service) = (Memory::default(), Service::open().await);
    let text = configuration(&service, "", "", ROUTES);
    let text = text.replace("drain_grace: 20s", "drain_grace: 1s");
    let environment = Environment {
        clock: Arc::new(SystemClock::new()),
        random: Arc::new(SystemRandom::new().unwrap()),
        http: Arc::new(Client::new(&ClientOptions::default()).unwrap()),
        store: Arc::new(MemoryStore::default()),
    };
    let open = async |memory| {
        World::configured(memory, service.clone(), &text, Some(environment.clone())).await
    };
    let mut world = open(memory.connect()).await;
    let reads = workflow("e-1", &[("held", service.get("/held"))]);
    let acts = workflow("e-2", &[("held", service.post("/held"))]);
    world.send("1", &[EXECUTE], &reads).await;
    world.send("2", &[EXECUTE], &acts).await;
    service.until_held(2).await;
    world.stop.cancel();
    let answer = world.answer().await.data;
    assert_eq!(answer["execution_id"], "e-2", "{answer}");
    assert_eq!(answer["status"], "failed");
    assert_eq!(answer["error"]["code"], "interrupted");
    within("the bridge drains", &mut world.running)
        .await
        .unwrap();
    drop(world);

    service.release(3);
    let mut next = open(memory).await;
    // The other one may come again too; it is answered from its record.
    let answer = loop {
        let answer = next.answer().await.data;
        if answer["execution_id"] == "e-1" {
            break answer;
        }
    };
    assert_eq!(answer["status"], "success", "{answer}");
    assert_eq!(service.held(), 3, "only the one that reads is sent again");
    next.end().await;
}
