use std::pin::pin;

use futures_util::FutureExt as _;
use tokio::time::sleep_until;

use super::*;
use crate::calls::callid::{CallId, Replica};
use crate::state::{MemoryLog, ViewTask};

pub(super) fn tasks() -> (Arc<Tasks>, ViewTask) {
    replica(&MemoryLog::new(TASKS, 1 << 20))
}

/// One of several replicas that share this log.
pub(super) fn replica(log: &MemoryLog) -> (Arc<Tasks>, ViewTask) {
    process(log, None)
}

/// A process that opened this log at this end, if only it uses the log.
fn process(log: &MemoryLog, opened_at: Option<Cursor>) -> (Arc<Tasks>, ViewTask) {
    let (view, task) = View::start(log.clone(), TaskFold, 1 << 20);
    let metrics = Arc::new(Metrics::new().unwrap());
    let tasks = Tasks::new(view, opened_at, &LogLimits::default(), &metrics);
    (Arc::new(tasks), task)
}

/// A server may lose its last records, and be restored from a backup.
#[tokio::test(start_paused = true)]
async fn a_task_is_not_given_up_while_the_log_is_read_again() {
    let log = MemoryLog::new(TASKS, 1 << 20);
    let (tasks, _view) = replica(&log);
    begin(&tasks, "t").await;
    let working = Event::Status(Status::now(State::Working, None));
    tasks.record_for_caller("t", &working).await.unwrap();
    let waiting = Arc::clone(&tasks);
    let ended = tokio::spawn(async move { waiting.at_end("t").await });
    let message = Message {
        id: "said".into(),
        ..failure_message("said")
    };
    let mut recording = std::pin::pin!(tasks.record("t", Event::Said { message }));
    assert!(recording.as_mut().now_or_never().is_none());
    log.lose(2);
    recording.await.unwrap();
    let is_said = |message: &Message| message.id == "said";
    let task = tasks.get("t").unwrap();
    assert!(task.history.iter().any(is_said), "it was recorded again");
    let completed = Event::Status(Status::now(State::Completed, None));
    tasks.record("t", completed).await.unwrap();
    let task = ended.await.unwrap().unwrap();
    assert_eq!(task.status.state, State::Completed);
}

pub(super) async fn begin(tasks: &Tasks, id: &str) {
    let created = Event::Created(Created {
        agent: "weather".into(),
        context: "c".into(),
        is_1_0: false,
        message: failure_message("hello"),
        timestamp: "2026-02-02T02:40:00.000Z".into(),
    });
    let call = CallId::new(Replica(1)).unwrap();
    let created = created.from(Origin::beginning(call));
    tasks.record_for_caller(id, &created).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_call_this_replica_makes_is_not_overdue() {
    let (tasks, _view) = tasks();
    for id in ["ours", "theirs"] {
        begin(&tasks, id).await;
    }
    let _call = tasks.calls.take(&"ours".into());
    let all_have_passed = |tasks: HashMap<Text, Unfinished>| {
        let deadlines: HashMap<Text, u64> = tasks.into_keys().map(|id| (id, 0)).collect();
        std::future::ready(deadlines)
    };
    let ends = Arc::clone(&tasks).end_overdue(all_have_passed);
    assert!(timeout(3 * OVERDUE_INTERVAL, ends).await.is_err());
    for (id, expected) in [("theirs", State::Failed), ("ours", State::Submitted)] {
        assert_eq!(tasks.get(id).unwrap().status.state, expected, "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn tasks_of_an_earlier_process_fail_at_once_if_no_other_one_can_follow_them() {
    let log = MemoryLog::new(TASKS, 1 << 20);
    let (earlier, _earlier) = replica(&log);
    for id in ["left", "asks", "continued"] {
        begin(&earlier, id).await;
    }
    let asks = Event::Status(Status::now(State::InputRequired, None));
    earlier.record_for_caller("asks", &asks).await.unwrap();
    let end = earlier.view.end().await.unwrap();
    for (opened_at, expected) in [(None, State::Submitted), (Some(end), State::Failed)] {
        let (tasks, _view) = process(&log, opened_at);
        begin(&tasks, "own").await;
        let message = failure_message("more");
        let continued = Event::Continued { message };
        let continued = tasks.record_for_caller("continued", &continued);
        continued.await.unwrap();
        let ends = Arc::clone(&tasks).end_orphans(Duration::from_secs(600));
        assert!(timeout(Duration::from_secs(1), ends).await.is_err());
        for (id, expected) in [
            ("left", expected),
            ("asks", State::InputRequired),
            ("continued", State::Working),
            ("own", State::Submitted),
        ] {
            assert_eq!(tasks.get(id).unwrap().status.state, expected, "{id}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_answer_is_still_being_recorded_ends_at_the_end_of_the_bridge() {
    let (tasks, _view) = tasks();
    for (id, expected) in [("theirs", None), ("ours", Some(State::Completed))] {
        begin(&tasks, id).await;
        let _call = expected.map(|_| tasks.calls.take(&id.into()));
        let resting = pin!(tasks.at_rest(id));
        let until = Instant::now() + Duration::from_secs(60);
        let recording = async {
            // The log is slow.
            sleep_until(Instant::now() + 3 * LAST_EVENTS_TIMEOUT).await;
            let completed = Event::Status(Status::now(State::Completed, None));
            tasks.record_for_caller(id, &completed).await.unwrap();
        };
        let (found, ()) = tokio::join!(tasks.soon((id, until), resting), recording);
        let state = found.map(|task| task.unwrap().status.state);
        assert_eq!(state, expected, "{id}");
    }
    let _call = tasks.calls.take(&"silent".into());
    begin(&tasks, "silent").await;
    let until = Instant::now() + Duration::from_secs(60);
    let resting = pin!(tasks.at_rest("silent"));
    assert!(tasks.soon(("silent", until), resting).await.is_none());
    assert!(Instant::now() < until, "it does not wait for ever");
}

/// The answer to another message is there already.
#[tokio::test(start_paused = true)]
async fn a_sender_waits_for_its_own_answer_at_the_end_of_the_bridge_too() {
    let (tasks, _view) = tasks();
    begin(&tasks, "t").await;
    let own = tasks.get("t").unwrap().last_call().cloned().unwrap();
    let other = CallId::new(Replica(1)).unwrap();
    let message = failure_message("more");
    let continued = Event::Continued { message }.from(Origin::beginning(other));
    tasks.record_for_caller("t", &continued).await.unwrap();
    let asks = |call: CallId, text: &str| {
        let status = Status::now(State::InputRequired, Some(failure_message(text)));
        Event::Status(status).from(Origin::beginning(call).at(1, true))
    };
    let question = asks(other, "the other question");
    tasks.record_for_caller("t", &question).await.unwrap();
    let _call = tasks.calls.take(&"t".into());
    let (_held, over) = oneshot::channel();
    let resting = pin!(tasks.at_rest_for(("t", &own), over));
    let until = Instant::now() + Duration::from_secs(60);
    let recording = async {
        // The log is slow.
        sleep_until(Instant::now() + 3 * LAST_EVENTS_TIMEOUT).await;
        let question = asks(own.parse().unwrap(), "the own question");
        tasks.record_for_caller("t", &question).await.unwrap();
    };
    let (found, ()) = tokio::join!(tasks.soon(("t", until), resting), recording);
    let status = serde_json::to_string(&found.unwrap().unwrap().status).unwrap();
    assert!(status.contains("the own question"), "{status}");
}

#[tokio::test(start_paused = true)]
async fn the_sender_of_a_refused_message_gets_the_reason_while_others_are_in_progress() {
    let (tasks, _view) = tasks();
    begin(&tasks, "t").await;
    let why = failure_message("busy");
    let said = Event::Said {
        message: why.clone(),
    };
    tasks.record_for_caller("t", &said).await.unwrap();
    let (held, over) = oneshot::channel();
    held.send(why.clone()).unwrap();
    let task = tasks.at_rest_for(("t", "call"), over).await.unwrap();
    assert_eq!(task.status.state, State::Submitted);
    assert_eq!(task.status.message.unwrap().id, why.id);
    assert_eq!(
        task.history.len(),
        1,
        "the reason is not there a second time"
    );
}

/// A part of the answer moves the deadline.
#[tokio::test(start_paused = true)]
async fn a_task_with_a_record_since_the_search_is_not_overdue() {
    let (tasks, _view) = tasks();
    begin(&tasks, "t").await;
    let shared = Arc::clone(&tasks);
    let all_have_passed = move |found: HashMap<Text, Unfinished>| {
        let tasks = Arc::clone(&shared);
        async move {
            for (id, before) in &found {
                // The records of one millisecond have the same time.
                while tasks.get(id).unwrap().last_record == before.last_record {
                    let recorded = tasks.record_for_caller(id, &Event::Taken);
                    recorded.await.unwrap();
                }
            }
            let deadlines = found.into_keys().map(|id| (id, 0));
            deadlines.collect::<HashMap<Text, u64>>()
        }
    };
    let ends = Arc::clone(&tasks).end_overdue(all_have_passed);
    assert!(timeout(3 * OVERDUE_INTERVAL, ends).await.is_err());
    assert_eq!(tasks.get("t").unwrap().status.state, State::Submitted);
}

#[tokio::test(start_paused = true)]
async fn each_task_is_checked_just_before_it_is_failed() {
    let (tasks, _view) = tasks();
    for id in ["first", "second"] {
        begin(&tasks, id).await;
    }
    let is_submitted = |_: &Text, task: &Task| task.status.state == State::Submitted;
    let ids = vec!["first".into(), "second".into()];
    let mut failing = Box::pin(tasks.fail_all(ids, OVERDUE, is_submitted));
    let at_once = failing.as_mut().now_or_never();
    assert!(at_once.is_none(), "it waits for its first record");
    let continued = Event::Continued {
        message: failure_message("more"),
    };
    let continued = tasks.record_for_caller("second", &continued);
    continued.await.unwrap();
    failing.await;
    for (id, expected) in [("first", State::Failed), ("second", State::Working)] {
        assert_eq!(tasks.get(id).unwrap().status.state, expected, "{id}");
    }
}

/// Otherwise tasks that wait for their clients could not end, and nothing would make room.
#[tokio::test]
async fn a_full_memory_has_room_for_some_messages_of_existing_tasks() {
    let (tasks, _view) = tasks();
    let large = || failure_message(&"x".repeat(96 << 10));
    let continued = || Event::Continued { message: large() };
    let mut last = 0;
    while tasks.check_new("new").is_ok() {
        last += 1;
        begin(&tasks, &last.to_string()).await;
        let (id, message) = (last.to_string(), continued());
        tasks.record_for_caller(&id, &message).await.unwrap();
    }
    assert_eq!(last, 6, "each one takes a fifth of the memory");
    tasks.check_message(1_000).unwrap();
    let message = continued();
    tasks.record_for_caller("1", &message).await.unwrap();
    let full = tasks.check_message(1_000);
    assert!(matches!(full, Err(StateError::Full { .. })), "{full:?}");
    assert!(tasks.is_too_large("1", 0));
    assert!(!tasks.is_too_large("2", 1_000));
    assert!(tasks.is_too_large("2", 50_000));
}

#[test]
fn the_text_of_an_e2a_record_is_a_text_part() {
    let chunk = |body: &str| format!(r#"{{"response_kind":"e2a.chunk","body":{body}}}"#);
    for (json, expected) in [
        (r#""sunny""#.to_owned(), Some("sunny")),
        (
            chunk(r#"{"delta_kind":"text","delta":"su","event_type":"chat.delta","role":"a"}"#),
            Some("su"),
        ),
        (
            chunk(r#"{"delta_kind":"text","delta":"su","event_type":null}"#),
            Some("su"),
        ),
        (
            chunk(r#"{"delta_kind":"text","delta":"sunny","event_type":"chat.final"}"#),
            None,
        ),
        (chunk(r#"{"delta_kind":"reasoning","delta":"hm"}"#), None),
        (chunk(r#"{"delta_kind":"text","delta":{"n":1}}"#), None),
        (
            r#"{"response_kind":"ext","body":{"delta_kind":"text","delta":"su"}}"#.to_owned(),
            None,
        ),
        ("{}".to_owned(), None),
    ] {
        let part = plain_part(serde_json::from_str(&json).unwrap());
        let text = match &part.content {
            self::model::Content::Text(text) => Some(text.as_str()),
            _ => None,
        };
        assert_eq!(text, expected, "{json}");
    }
}

/// Clients of A2A 1.0 cannot read a data part that is `null`.
#[test]
fn a_result_that_is_null_becomes_an_empty_data_part() {
    let null: model::Raw = serde_json::from_str("null").unwrap();
    let read::AnswerPart::Plain(json) = read::result(&null) else {
        panic!("it is no A2A");
    };
    assert_eq!(json.get(), "{}");
}
