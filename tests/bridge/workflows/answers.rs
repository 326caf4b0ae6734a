//! The answers for every form of a workflow.

use a2abus_transports::Message;
use serde_json::json;

use super::{ReplyEvent, World, event, wait, workflow};
use crate::set_up::{next, read};

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn kinds(reply_event: &[ReplyEvent]) -> Vec<String> {
    let kind = |reply_event: &ReplyEvent| {
        let operation = reply_event.data["operationId"].as_str();
        let status = reply_event.data["status"].as_str().unwrap_or_default();
        operation.map_or_else(
            || format!("{} {status}", reply_event.ty),
            |id| format!("{id} {status}"),
        )
    };
    reply_event.iter().map(kind).collect()
}

#[tokio::test]
async fn a_workflow_as_plain_lines_gets_its_progress_in_order_and_then_its_answer() {
    let mut world = World::new().await;
    let filter = json!({"FilterData": {
        "inputPath": "/workflow/got", "outputPath": "/workflow/best",
        "conditions": [{"field": "points", "operator": ">", "value": 2}],
    }});
    let lines = workflow(
        "e-1",
        &[("get", world.service.get("/users")), ("best", filter)],
    );
    let mut message = Message::plain(lines);
    message.headers.put("traceparent", TRACE);
    message.headers.put("x-secret", "stays behind");
    world.publish(message).await;
    let reply_event = world.until_answer().await;
    assert_eq!(
        kinds(&reply_event),
        [
            "a2e.execution.started running",
            "get running",
            "get success",
            "best running",
            "best success",
            "a2e.execution.resp success",
        ]
    );
    for (number, reply_event) in reply_event.iter().enumerate() {
        assert_eq!(
            reply_event.attribute("seq"),
            number.to_string(),
            "{reply_event:?}"
        );
        assert_eq!(reply_event.trace.as_deref(), Some(TRACE.as_bytes()));
        assert_eq!(reply_event.attribute("collaborationid"), "e-1");
        assert_eq!(reply_event.attribute("targetagent"), "reporter");
        assert_eq!(reply_event.attribute("sourceagent"), "a2e-executor");
        assert_eq!(reply_event.attribute("source"), "/a2abus/test/a2e-executor");
        assert_eq!(reply_event.attribute("protocol"), "A2E-EXEC");
        assert_eq!(reply_event.data["execution_id"], "e-1");
    }
    assert_eq!(reply_event[0].data["operations"], 2);
    assert_eq!(reply_event[1].data["operationType"], "ApiCall");
    let results = &reply_event[5].data["results"];
    assert_eq!(results["best"], json!([{"name": "Ada", "points": 3}]));
    assert_eq!(reply_event[5].attribute("a2amethod"), "workflows/execute");
    world
        .until_counted("a2abus_settled_total{binding=\"work\"}", 1)
        .await;
    world.end().await;
}

#[tokio::test]
async fn the_workflow_of_the_guide_runs_with_its_input_in_its_last_line() {
    const GUIDE: &str = include_str!("../../../docs/workflows.md");
    let (_, rest) = GUIDE.split_once("$ cat >best.jsonl <<'END'\n").unwrap();
    let (lines, rest) = rest.split_once("\nEND\n").unwrap();
    let (_, input) = rest.split_once("--input '").unwrap();
    let (input, _) = input.split_once("'\n").unwrap();
    let lines = format!("{},\"input\":{input}}}", lines.strip_suffix('}').unwrap());

    let mut world = World::new().await;
    world.publish(Message::plain(lines)).await;
    let answer = world.answer().await;
    let best = json!([{"name": "Cy", "points": 120, "active": true}]);
    assert_eq!(answer.data["results"]["best"], best, "{answer:?}");
    world.end().await;
}

#[tokio::test]
async fn without_progress_the_start_and_the_answer_are_published() {
    let mut world = World::with("run_as: reporter", "  progress: false").await;
    world
        .publish(Message::plain(workflow("e-1", &[("w", wait(1))])))
        .await;
    let reply_event = world.until_answer().await;
    assert_eq!(
        kinds(&reply_event),
        [
            "a2e.execution.started running",
            "a2e.execution.resp success"
        ]
    );
    assert_eq!(reply_event[1].attribute("seq"), "1");
    world.end().await;
}

#[tokio::test]
async fn a_wrapped_workflow_that_comes_twice_runs_once() {
    let mut world = World::new().await;
    let lines = [
        json!({"operationUpdate": {"workflowId": "w", "operations": [{"id": "post", "operation": world.service.post("/orders")}]}}),
        json!({"beginExecution": {"workflowId": "w", "root": "post"}}),
    ];
    let data = lines.map(|line| line.to_string()).join("\n");
    let method = [("a2amethod", "workflows/execute")];
    world.send("request-1", &method, &data).await;
    let first = world.answer().await;
    world.send("request-1", &method, &data).await;
    let second = world.answer().await;
    assert_eq!(first.data["results"]["post"], json!({"posts": 1}));
    assert_eq!(first, second);
    assert_eq!(world.service.posts(), 1);
    world.end().await;
}

#[tokio::test]
async fn a_workflow_is_validated_on_request() {
    let mut world = World::new().await;
    let method = [("a2amethod", "workflows/validate")];
    let lines = workflow("e-1", &[("post", world.service.post("/orders"))]);
    world.send("1", &method, &lines).await;
    let answer = world.until_answer().await;
    assert_eq!(answer.len(), 1, "nothing runs: {answer:?}");
    assert_eq!(
        answer[0].data,
        json!({"valid": true, "errors": [], "warnings": []})
    );
    world
        .send("2", &method, &workflow("e-2", &[("w", json!({"Nap": {}}))]))
        .await;
    let answer = world.answer().await;
    assert_eq!(answer.data["valid"], false);
    assert_eq!(answer.data["errors"][0]["code"], "unknown_operation_type");
    assert_eq!(world.service.posts(), 0);
    world.end().await;
}

#[tokio::test]
async fn an_invalid_workflow_is_answered_with_all_its_problems() {
    let mut world = World::new().await;
    world
        .publish(Message::plain(workflow(
            "e-1",
            &[("w", json!({"Nap": {}}))],
        )))
        .await;
    let reply_event = world.until_answer().await;
    assert_eq!(kinds(&reply_event), ["a2e.execution.resp failed"]);
    let error = &reply_event[0].data["error"];
    assert_eq!(error["type"], "ValidationError");
    assert_eq!(
        error["details"]["errors"][0]["code"],
        "unknown_operation_type"
    );
    assert_eq!(reply_event[0].attribute("collaborationid"), "e-1");
    world.end().await;
}

#[tokio::test]
async fn a_refused_workflow_is_named_by_its_execution_id() {
    let mut world = World::with("run_as: reporter", "  rpc: true").await;
    let invalid = workflow("e-1", &[("w", json!({"Nap": {}}))]);
    let named = [("collaborationid", "mine")];
    world.send("1", &named, &invalid).await;
    let answer = world.answer().await;
    assert_eq!(answer.data["execution_id"], "e-1", "{answer:?}");
    assert_eq!(answer.attribute("collaborationid"), "e-1");
    // The wrapped form has no execution id. The header counts, unless it is the reply id of a call.
    let wrapped = r#"{"beginExecution":{"workflowId":"w","root":"r"}}"#;
    let reply_id = "3z4o7pvdltpxhb7ons6pxngf6ahkwiuwjwxmgwmnqffhdksltcmq";
    for (id, name, shown) in [("2", "mine", json!("mine")), ("3", reply_id, json!(null))] {
        world.send(id, &[("collaborationid", name)], wrapped).await;
        let answer = world.answer().await;
        assert_eq!(answer.data["status"], "failed", "{answer:?}");
        assert_eq!(answer.data["execution_id"], shown, "{answer:?}");
        assert_eq!(answer.attribute("collaborationid"), name);
    }
    let begin = json!({"type": "beginExecution", "executionId": "e-4", "operationOrder": ["w"]});
    let answer = world.call(&begin).await;
    assert_eq!(answer["status"], "failed", "{answer}");
    assert_eq!(answer["execution_id"], "e-4", "{answer}");
    world.end().await;
}

#[tokio::test]
async fn a_call_with_a_misspelt_member_is_refused() {
    let world = World::with("run_as: reporter", "  rpc: true").await;
    let lines = workflow("e-1", &[("w", wait(1))]);
    for (params, reason) in [
        (
            json!({"workflow": lines, "onerror": "continue"}),
            r#"unknown member "onerror"; known are workflow, input"#,
        ),
        (json!({"workflow": [lines]}), "workflow must be a string"),
    ] {
        let call =
            json!({"jsonrpc": "2.0", "id": 7, "method": "workflows/execute", "params": params});
        let answer = world.call(&call).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.starts_with(reason), "{message}");
    }
    world.end().await;
}

#[tokio::test]
async fn an_event_may_hold_what_a_request_over_http_would() {
    let mut world = World::new().await;
    let filter = json!({"FilterData": {
        "inputPath": "/workflow/rows", "outputPath": "/workflow/kept",
        "conditions": [{"field": ".", "operator": ">", "value": 1}],
    }});
    let data = json!({"workflow": workflow("e-1", &[("f", filter)]), "input": {"rows": [1, 2, 3]}});
    let method = [
        ("a2amethod", "workflows/execute"),
        ("datacontenttype", "application/json"),
    ];
    world.send("1", &method, &data.to_string()).await;
    assert_eq!(world.answer().await.data["results"]["f"], json!([2, 3]));
    world.end().await;
}

#[tokio::test]
async fn a_call_over_http_is_answered_like_any_other() {
    let world = World::with("run_as: reporter", "  rpc: true").await;
    let lines = workflow("e-1", &[("get", world.service.get("/users"))]);
    let call = |method: &str, params| json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
    let answer = world
        .call(&call("workflows/execute", json!({"workflow": lines})))
        .await;
    assert_eq!(answer["id"], 7);
    assert_eq!(answer["result"]["status"], "success", "{answer}");
    assert_eq!(answer["result"]["execution_id"], "e-1");
    assert_eq!(answer["result"]["results"]["get"][1]["name"], "Bo");

    let answer = world
        .call(&call("workflows/validate", json!({"workflow": lines})))
        .await;
    assert_eq!(answer["result"]["valid"], true, "{answer}");

    let invalid = workflow("e-2", &[("w", json!({"Nap": {}}))]);
    let answer = world
        .call(&call("workflows/execute", json!({"workflow": invalid})))
        .await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    assert_eq!(answer["error"]["data"]["type"], "ValidationError");

    let answer = world.call(&call("workflows/execute", json!({}))).await;
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    let answer = world.call(&call("workflows/dance", json!({}))).await;
    assert_eq!(answer["error"]["code"], -32601, "{answer}");
    world.end().await;
}

#[tokio::test]
async fn permissions_are_those_of_the_agent_that_the_event_names() {
    let mut world = World::named().await;
    let method = ("a2amethod", "workflows/execute");
    let lines = workflow("e-1", &[("get", world.service.get("/users"))]);
    world.send("1", &[method], &lines).await;
    assert_eq!(world.answer().await.data["status"], "success");

    let mut others = read(&world.memory, "agents.*").await;
    for (agent, kind) in [
        ("stranger", "PermissionError"),
        ("idler", "ValidationError"),
    ] {
        world
            .send("2", &[method, ("sourceagent", agent)], &lines)
            .await;
        let answer = loop {
            let message = next(&mut others).await;
            let is_answer = message
                .headers
                .get("ce_mcptype")
                .is_some_and(|kind| kind == "response");
            if is_answer
                && message
                    .headers
                    .get("ce_targetagent")
                    .is_some_and(|to| to == agent)
            {
                break ReplyEvent::of(&message);
            }
        };
        assert_eq!(answer.data["error"]["type"], kind, "{answer:?}");
        assert_eq!(answer.data["status"], "failed");
    }
    // A plain payload names no sender, so there is no address for its answer either.
    world
        .publish(Message::plain(workflow("e-3", &[("w", wait(1))])))
        .await;
    assert_eq!(
        world
            .dead_letter()
            .await
            .headers
            .get("bus-dlq-stage")
            .unwrap(),
        "route"
    );
    world.end().await;
}

#[tokio::test]
async fn a_message_without_a_workflow_becomes_a_dead_letter() {
    let mut world = World::new().await;
    for (message, reason) in [
        (Message::plain("hello"), "not_json"),
        (
            Message::plain(r#"{"jsonrpc":"2.0","id":1,"result":1}"#),
            "not_a_workflow",
        ),
        (
            Message::plain(r#"{"jsonrpc":"2.0","method":"workflows/execute","params":{}}"#),
            "not_a_request",
        ),
        (
            event(
                "1",
                &[("mcptype", "response"), ("a2amethod", "workflows/execute")],
                "{}",
            ),
            "not_a_workflow",
        ),
        (
            event(
                "1",
                &[
                    ("targetagent", "weather"),
                    ("a2amethod", "workflows/execute"),
                ],
                "{}",
            ),
            "other_agent",
        ),
        (event("1", &[], "{}"), "not_a_workflow"),
    ] {
        let body = message.body.clone();
        world.publish(message).await;
        let dlq_message = world.dead_letter().await;
        assert_eq!(dlq_message.headers.get("bus-dlq-reason").unwrap(), reason);
        assert_eq!(dlq_message.body, body);
    }
    world.end().await;
}

/// The last event of each of this number of requests.
async fn answers(world: &mut World, requests: usize) -> Vec<ReplyEvent> {
    let mut answers = Vec::new();
    for _ in 0..requests {
        answers.push(world.answer().await);
    }
    answers
}

fn ids(answers: &[ReplyEvent]) -> std::collections::BTreeSet<&str> {
    answers.iter().map(|answer| answer.id.as_str()).collect()
}

#[tokio::test]
async fn answers_that_differ_have_ids_that_differ() {
    let mut world = World::new().await;
    // Callers that all begin to count at one, and two that even ask the same.
    for execution in ["e-7", "e-8", "e-8"] {
        let lines = workflow(execution, &[("w", wait(1))]);
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "workflows/execute",
            "params": {"_agentId": "a2e-executor", "workflow": lines}});
        world.publish(Message::plain(call.to_string())).await;
    }
    let reply_event = answers(&mut world, 3).await;
    for answer in &reply_event {
        assert_eq!(answer.data["result"]["status"], "success", "{answer:?}");
    }
    assert_eq!(ids(&reply_event).len(), 3);

    // A workflow that is refused, and sent again as it should be, twice.
    let right = workflow("e-1", &[("w", wait(1))]);
    let wrong = right.replace("Wait", "Wate");
    for lines in [&wrong, &right, &right] {
        world
            .send("1", &[("a2amethod", "workflows/execute")], lines)
            .await;
    }
    let reply_event = answers(&mut world, 3).await;
    assert_eq!(ids(&reply_event).len(), 2, "{reply_event:?}");
    world.end().await;
}
