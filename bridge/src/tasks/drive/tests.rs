use bytes::Bytes;
use serde_json::json;
use serde_json::value::to_raw_value;

use super::*;
use crate::state::MemoryLog;
use crate::tasks::fold::MAX_MESSAGES;
use crate::tasks::model::Content;
use crate::tasks::read::{self, ReportedTask};
use crate::tasks::tests::{begin, replica, tasks};

fn state(tasks: &Tasks) -> State {
    tasks.get("t").unwrap().status.state
}

/// Sends another message of the task `t`, and returns the origin of the last part of its answer.
async fn send(tasks: &Tasks, replica: u16) -> Origin {
    let call = CallId::new(Replica(replica)).unwrap();
    let message = failure_message("more");
    let continued = Event::Continued { message }.from(Origin::beginning(call));
    tasks.record_for_caller("t", &continued).await.unwrap();
    last_part(call)
}

fn last_part(call: CallId) -> Origin {
    Origin {
        part: 1,
        ends: true,
        ends_answer: true,
        ..Origin::beginning(call)
    }
}

/// The last part of the answer to the first message of the task `t`.
fn last_of_first(tasks: &Tasks) -> Origin {
    let call = tasks.get("t").unwrap().last_call().cloned();
    last_part(call.unwrap().parse().unwrap())
}

fn without_call(before: Option<State>) -> Driven {
    Driven {
        id: "t".into(),
        before,
        call: None,
        refused: None,
    }
}

fn part(body: &str) -> Option<Result<calls::Part, CallError>> {
    let body = Bytes::copy_from_slice(body.as_bytes());
    Some(Ok(calls::Part::new(body, true)))
}

const REFUSAL: &str = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"busy"}}"#;

#[tokio::test(start_paused = true)]
async fn a_message_that_fails_at_one_replica_does_not_end_the_work_for_another() {
    for is_refused in [true, false] {
        let log = MemoryLog::new(TASKS, 1 << 20);
        let ((first, _first), (second, _second)) = (replica(&log), replica(&log));
        begin(&first, "t").await;
        let last = last_of_first(&first);
        let working = Event::Status(Status::now(State::Working, None));
        let working = working.from(Origin::beginning(last.call.parse().unwrap()).at(1, true));
        first.record_for_caller("t", &working).await.unwrap();
        second.latest().await.unwrap();
        let from = send(&second, 2).await;
        let failed = match is_refused {
            true => part(REFUSAL),
            false => Some(Err(CallError::Drained)),
        };
        let mut message = without_call(Some(State::Working));
        let taken = second.take(&mut message, failed, from).await;
        assert!(matches!(taken.unwrap(), Taken::Beside));
        assert_eq!(state(&second), State::Working);
        // The answer for the other replica ends without a state.
        first.latest().await.unwrap();
        let call = last.call.clone();
        let plain = part(r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#);
        let taken = first.take(&mut without_call(None), plain, last).await;
        assert!(matches!(taken.unwrap(), Taken::End));
        first.finish(&mut without_call(None), &call).await.unwrap();
        assert_eq!(state(&first), State::Completed);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_ends_at_one_replica_does_not_end_the_work_for_another() {
    let log = MemoryLog::new(TASKS, 1 << 20);
    let ((first, _first), (second, _second)) = (replica(&log), replica(&log));
    begin(&first, "t").await;
    let last = last_of_first(&first);
    second.latest().await.unwrap();
    let other = send(&second, 2).await;
    first.latest().await.unwrap();
    for (tasks, from, expected) in [
        (&first, last, State::Working),
        (&second, other, State::Completed),
    ] {
        let call = from.call.clone();
        tasks.latest().await.unwrap();
        let plain = part(r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#);
        let taken = tasks.take(&mut without_call(None), plain, from).await;
        assert!(matches!(taken.unwrap(), Taken::End));
        tasks.finish(&mut without_call(None), &call).await.unwrap();
        assert_eq!(state(tasks), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_waits_for_input_after_refusals_at_two_replicas_at_once() {
    let log = MemoryLog::new(TASKS, 1 << 20);
    let ((first, _first), (second, _second)) = (replica(&log), replica(&log));
    begin(&first, "t").await;
    let asks = Event::Status(Status::now(State::InputRequired, None));
    let asks = asks.from(last_of_first(&first));
    first.record_for_caller("t", &asks).await.unwrap();
    let (one, other) = (send(&first, 1).await, send(&second, 2).await);
    first.latest().await.unwrap();
    let before = Some(State::InputRequired);
    let (mut a, mut b) = (without_call(before), without_call(before));
    let (a, b) = tokio::join!(
        first.take(&mut a, part(REFUSAL), one),
        second.take(&mut b, part(REFUSAL), other)
    );
    let ends = (a.unwrap(), b.unwrap());
    assert!(matches!(ends, (Taken::End, _) | (_, Taken::End)));
    first.latest().await.unwrap();
    assert_eq!(state(&first), State::InputRequired);
}

#[tokio::test(start_paused = true)]
async fn a_task_waits_for_input_after_a_refusal_that_another_replica_receives() {
    for (parts, expected) in [(0, State::InputRequired), (1, State::Failed)] {
        let log = MemoryLog::new(TASKS, 1 << 20);
        let ((first, _first), (second, _second)) = (replica(&log), replica(&log));
        begin(&first, "t").await;
        let asks = Event::Status(Status::now(State::InputRequired, None));
        let asks = asks.from(last_of_first(&first));
        first.record_for_caller("t", &asks).await.unwrap();
        let from = send(&first, 1).await;
        second.latest().await.unwrap();
        let mut message = second.taken_over("t".into(), parts);
        let taken = second.take(&mut message, part(REFUSAL), from).await;
        assert!(matches!(taken.unwrap(), Taken::End));
        assert_eq!(state(&second), expected, "{parts}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_fails_with_the_reason_if_its_log_refuses_a_part() {
    let (tasks, _view) = tasks();
    begin(&tasks, "t").await;
    let last = last_of_first(&tasks);
    let large = json!({ "jsonrpc": "2.0", "id": 1, "result": "x".repeat(2 << 20) });
    let large = part(&large.to_string());
    let taken = tasks.take(&mut without_call(None), large, last).await;
    assert!(matches!(taken.unwrap(), Taken::End));
    let status = tasks.get("t").unwrap().status;
    assert_eq!(status.state, State::Failed);
    let why = serde_json::to_string(&status.message).unwrap();
    assert!(why.contains("the log of tasks refuses"), "{why}");
}

#[tokio::test]
async fn a_report_does_not_bring_back_messages_that_are_no_longer_stored() {
    let (tasks, _view) = tasks();
    begin(&tasks, "t").await;
    let numbered = |number: usize| Message {
        id: number.to_string().into(),
        ..failure_message("said")
    };
    let mut task = tasks.get("t").unwrap();
    task.history = (2..=MAX_MESSAGES + 1).map(numbered).collect();
    let report = |last: usize| ReportedTask {
        id: None,
        status: None,
        artifacts: Vec::new(),
        history: (last + 1 - MAX_MESSAGES..=last).map(numbered).collect(),
    };
    assert!(differences(report(MAX_MESSAGES), &task).is_empty());
    let new = differences(report(MAX_MESSAGES + 2), &task);
    assert_eq!(new.len(), 1, "one message is new");
}

/// The agent may send that part later, and another replica record it.
#[tokio::test(start_paused = true)]
async fn a_message_without_an_answer_takes_the_place_of_no_part() {
    let (tasks, _view) = tasks();
    begin(&tasks, "t").await;
    let call = tasks.get("t").unwrap().last_call().cloned().unwrap();
    let from = Origin::beginning(call.parse().unwrap()).at(0, true);
    // The agent works on a message that another replica has sent.
    let continued = Event::Continued {
        message: failure_message("more"),
    };
    let other = CallId::new(Replica(2)).unwrap();
    let continued = continued.from(Origin::beginning(other));
    tasks.record_for_caller("t", &continued).await.unwrap();
    for _replica in 0..2 {
        let mut message = without_call(None);
        let silent = Some(Err(CallError::Drained));
        let taken = tasks.take(&mut message, silent, from.clone()).await;
        assert!(matches!(taken.unwrap(), Taken::Beside));
    }
    let answered = Event::Status(Status::now(State::Completed, None));
    let answered = answered.from(from.next());
    tasks.record_for_caller("t", &answered).await.unwrap();
    let task = tasks.get("t").unwrap();
    assert_eq!(task.status.state, State::Completed);
    assert_eq!(task.history.len(), 3, "it has the reason once");
}

/// Another replica that follows the call records an error in its place.
#[tokio::test(start_paused = true)]
async fn an_answer_that_cannot_be_used_takes_the_place_of_a_part() {
    let (tasks, _view) = tasks();
    begin(&tasks, "t").await;
    let last = last_of_first(&tasks);
    // The agent works on a message that another replica has sent.
    send(&tasks, 2).await;
    let before_it = Origin::beginning(last.call.parse().unwrap()).at(0, true);
    let unusable = Some(Err(CallError::BadAnswer("no JSON".into())));
    for (part, from) in [(unusable, before_it), (part(REFUSAL), last.clone())] {
        let taken = tasks.take(&mut without_call(None), part, from).await;
        assert!(matches!(taken.unwrap(), Taken::Beside));
    }
    assert_eq!(tasks.parts_from("t", &last.call, 0), Some(1));
    let history = tasks.get("t").unwrap().history;
    assert_eq!(history.len(), 3, "it has the reason once");
}

/// An agent may change an artifact that it has reported before.
#[tokio::test(start_paused = true)]
async fn an_artifact_is_known_only_with_the_same_content() {
    let (tasks, _view) = tasks();
    begin(&tasks, "t").await;
    let id = Text::from("t");
    for (text, expected) in [("one", 1), ("one", 0), ("two", 1), ("two", 0)] {
        let task = json!({
            "kind": "task", "id": "own", "status": { "state": "working" },
            "artifacts": [{ "artifactId": "a", "parts": [{ "kind": "text", "text": text }] }],
        });
        let reported = read::result(&to_raw_value(&task).unwrap());
        let events = tasks.events_of(&id, (reported, false), false);
        let is_artifact = |event: &Event| matches!(event, Event::Artifact { .. });
        let artifacts = events.iter().filter(|(_, event)| is_artifact(event));
        assert_eq!(artifacts.count(), expected, "{text}");
        for (_, event) in events {
            tasks.record_for_caller("t", &event).await.unwrap();
        }
    }
}

/// A replica that continues the call of another one does not know its request.
#[tokio::test(start_paused = true)]
async fn the_reason_of_a_failed_task_names_its_agent_and_the_limits() {
    let (tasks, _view) = tasks();
    begin(&tasks, "t").await;
    let unended = NoAnswer {
        after: std::time::Duration::from_secs(15),
        agent: Text::default(),
        request: RequestState::Unended {
            parts: 4,
            is_longest: false,
        },
        rejected: None,
    };
    let part = Some(Err(CallError::Timeout(Box::new(unended))));
    let call = tasks.get("t").unwrap().last_call().cloned().unwrap();
    let from = Origin::beginning(call.parse().unwrap()).at(0, true);
    let taken = tasks.take(&mut without_call(None), part, from).await;
    assert!(matches!(taken.unwrap(), Taken::End));
    let status = tasks.get("t").unwrap().status;
    assert_eq!(status.state, State::Failed);
    let Content::Text(why) = &status.message.as_ref().unwrap().parts[0].content else {
        panic!("{status:?}");
    };
    assert_eq!(
        why,
        "agent \"weather\" did not end its answer within 15000 ms: 4 parts came; raise X-A2A-Timeout or calls.stream_timeout to wait longer"
    );
}
