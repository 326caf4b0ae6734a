//! The calls of an A2A client: the card, a task with a stream that the client leaves, and the rest of the stream.

use serde_json::{Value, json};

use super::step::{CallResponse, Step, call};

/// The request of an A2A client for the card.
const URL: &str = "/a2a/agents/stream";

pub(super) fn card() -> Step {
    Step {
        title: "A2A: the agent's card",
        path: format!("{URL}/.well-known/agent-card.json"),
        headers: Vec::new(),
        payload: None,
        leaves_after: None,
        agents: &[],
        expect: |answer| {
            let is_its_own = |card: &Value| {
                let url = card["url"].as_str();
                card["name"] == "stream" && url.is_some_and(|url| url.ends_with(URL))
            };
            answer.status == 200 && answer.only(is_its_own)
        },
        expected: "status 200 and the card of \"stream\" with its URL",
    }
}

/// The client disconnects after two events; the task continues.
pub(super) fn streamed() -> Step {
    let message = json!({"message": {"role": "user", "kind": "message", "messageId": "m-2",
        "parts": [{"kind": "text", "text": "Plan a trip to Bergen"}]}});
    Step {
        title: "A2A: a task with a stream, which the client leaves after two events",
        path: URL.into(),
        headers: Vec::new(),
        payload: Some(call(&json!("req-4"), "message/stream", &message)),
        leaves_after: Some(2),
        agents: &["stream"],
        expect: |answer| {
            let kinds = answer.parts.iter().map(|part| &part["result"]["kind"]);
            let kinds: Vec<_> = kinds.collect();
            answer.status == 200 && kinds == ["task", "status-update"]
        },
        expected: "status 200, the task, and one update of it",
    }
}

/// The client resumes the stream after the last event that it received.
pub(super) fn resubscribed(answer: &CallResponse) -> Step {
    let task = answer.parts.first().map(|task| &task["result"]["id"]);
    Step {
        title: "A2A: the rest of that stream",
        path: URL.into(),
        headers: answer
            .last_event
            .iter()
            .map(|id| ("last-event-id", id.clone()))
            .collect(),
        payload: Some(call(
            &json!("req-5"),
            "tasks/resubscribe",
            &json!({ "id": task }),
        )),
        leaves_after: None,
        agents: &[],
        expect: |answer| {
            let texts = answer
                .parts
                .iter()
                .map(|part| &part["result"]["status"]["message"]["parts"][0]["text"]);
            let texts: Vec<_> = texts.collect();
            let all = [
                "looking at flights",
                "looking at hotels",
                "a plan for three days",
            ];
            answer.status == 200 && texts == all
        },
        expected: "status 200 and the three updates that the client has not seen",
    }
}
