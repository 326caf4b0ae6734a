//! The load of one agent does not affect the others.

use serde_json::json;

use super::{ReplyEvent, World, wait, workflow};
use crate::set_up::{next, read};

const EXECUTE: (&str, &str) = ("a2amethod", "workflows/execute");
const ELEMENTS: usize = 5_000;
const OPERATIONS: usize = 19;

/// A workflow in which every operation keeps a thread busy for a while.
fn heavy(execution: &str) -> String {
    let operations: Vec<(String, _)> = (0..OPERATIONS)
        .map(|number| {
            let template = format!("{{.}} of {execution} in {number}");
            let map = json!({"TransformData": {
                "inputPath": "/workflow/rows", "transform": "map",
                "config": {"template": template}, "outputPath": "/workflow/made",
            }});
            (format!("o{number}"), map)
        })
        .collect();
    let operations: Vec<(&str, _)> = operations
        .iter()
        .map(|(id, operation)| (id.as_str(), operation.clone()))
        .collect();
    let rows: Vec<usize> = (0..ELEMENTS).map(|row| row % 10).collect();
    let begin = format!(r#""beginExecution","input":{}"#, json!({"rows": rows}));
    workflow(execution, &operations).replace(r#""beginExecution""#, &begin)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_workflows_of_one_agent_do_not_delay_another() {
    const HEAVY: usize = 32;
    let world = World::named().await;
    let mut idler = read(&world.memory, "agents.idler").await;
    for number in 0..HEAVY {
        let execution = format!("heavy-{number}");
        world.send(&execution, &[EXECUTE], &heavy(&execution)).await;
    }
    let operations = "a2abus_workflow_operations_total{status=\"success\",type=\"TransformData\"}";
    // Many of them compute.
    let before = world.until_more(operations, 20).await;

    let light = workflow("light", &[("w", wait(0))]);
    world
        .send("light", &[EXECUTE, ("sourceagent", "idler")], &light)
        .await;
    loop {
        let reply_event = ReplyEvent::of(&next(&mut idler).await);
        if reply_event.is_answer() {
            assert_eq!(reply_event.data["status"], "success", "{reply_event:?}");
            break;
        }
    }
    // In one queue with the others it would have waited for most of them again and again.
    let meanwhile = world.count(operations) - before;
    assert!(
        meanwhile < 16,
        "{meanwhile} heavy operations went before it"
    );
    world.end().await;
}

#[tokio::test]
async fn a_loop_of_a_thousand_items_runs_by_default() {
    let mut world = World::new().await;
    let map = json!({"TransformData": {
        "inputPath": "/workflow/item", "transform": "select",
        "config": {"field": "n"}, "outputPath": "/workflow/picked",
    }});
    let pick = json!({"Conditional": {
        "condition": {"path": "/workflow/picked", "operator": ">", "value": 500}, "ifTrue": ["map"],
    }});
    let each = json!({"Loop": {
        "inputPath": "/workflow/rows", "operations": ["map", "pick"], "outputPath": "/workflow/all",
    }});
    let lines = workflow("e-1", &[("each", each), ("map", map), ("pick", pick)]);
    let rows: Vec<_> = (0..1_000).map(|n| json!({"n": n})).collect();
    let begin = format!(r#""beginExecution","input":{}"#, json!({"rows": rows}));
    let lines = lines
        .replace(r#"["each","map","pick"]"#, r#"["each"]"#)
        .replace(r#""beginExecution""#, &begin);
    world
        .publish(a2abus_transports::Message::plain(lines))
        .await;
    let answer = world.answer().await;
    assert_eq!(answer.data["status"], "success", "{}", answer.data["error"]);
    let all = answer.data["results"]["each"].as_array().unwrap();
    assert_eq!((all.len(), &all[999]), (1_000, &json!(999)));
    world.end().await;
}
