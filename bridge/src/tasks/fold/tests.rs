//! The records of tasks.

use super::*;
use crate::tasks::model::{Content, Role};
use proptest::prelude::*;

fn message(id: &str) -> Message {
    let mut message = Message::of_agent(vec![Part::of(Content::Text(id.to_owned()))]);
    message.id = id.into();
    message.role = Role::User;
    message
}

fn status(state: State) -> Event {
    Event::Status(Status {
        state,
        message: Some(message(&format!("{state:?}"))),
        timestamp: "2026-02-02T02:40:00.000Z".into(),
        metadata: None,
    })
}

fn created() -> Event {
    Event::Created(Created {
        agent: "weather".into(),
        context: "c".into(),
        is_1_0: false,
        message: message("first"),
        timestamp: "2026-02-02T02:40:00.000Z".into(),
    })
}

/// Another version of the bridge reads the same log.
#[test]
fn the_names_of_the_events_in_the_log_stay() {
    let origin = Origin {
        call: "call".into(),
        part: 1,
        event: 1,
        ends: true,
        ends_answer: false,
    };
    let events = [
        ("created", created()),
        (
            "continued",
            Event::Continued {
                message: message("m"),
            },
        ),
        ("named", Event::Named { task: "t".into() }),
        (
            "said",
            Event::Said {
                message: message("m"),
            },
        ),
        ("status", status(State::Working)),
        ("artifact", chunk("a", "text", true)),
        (
            "from_call",
            Event::FromCall {
                origin,
                event: Box::new(Event::Taken),
            },
        ),
    ];
    for (name, event) in events {
        let event = serde_json::to_value(event).unwrap();
        assert_eq!(
            event.as_object().unwrap().keys().collect::<Vec<_>>(),
            [name]
        );
    }
    assert_eq!(serde_json::to_value(Event::Taken).unwrap(), "taken");
}

fn chunk(id: &str, text: &str, append: bool) -> Event {
    Event::Artifact {
        artifact: Artifact {
            id: id.into(),
            name: None,
            description: None,
            parts: vec![Part::of(Content::Text(text.to_owned()))],
            metadata: None,
            extensions: Vec::new(),
        },
        append,
        last: false,
        metadata: None,
    }
}

/// The task that these events make, and what each of them did.
fn fold(events: &[Event]) -> (Option<Task>, Vec<Applied>) {
    let mut entry = None;
    let applied = events.iter().enumerate().map(|(index, event)| {
        let offset = index as u64;
        let record = Record {
            key: "t".into(),
            position: Position::at(offset),
            time: 1_000 + offset,
            body: Some(body::write(event)),
        };
        TaskFold.apply(&mut entry, &record)
    });
    let applied = applied.collect();
    (entry, applied)
}

#[test]
fn a_task_begins_once_and_nothing_leaves_the_end() {
    use Applied::{Changed, Unchanged};
    let events = [
        status(State::Working),
        created(),
        created(),
        status(State::Completed),
        status(State::Canceled),
        chunk("a", "late", false),
    ];
    let (task, applied) = fold(&events);
    assert_eq!(
        applied,
        [Unchanged, Changed, Unchanged, Changed, Unchanged, Unchanged]
    );
    let task = task.unwrap();
    assert_eq!(task.status.state, State::Completed);
    assert!(task.artifacts.is_empty());
    assert_eq!(task.position.offset, 3);
}

#[test]
fn a_task_returns_to_its_state_until_the_agent_reports_something() {
    let continued = || Event::Continued {
        message: message("m"),
    };
    let taken = Event::Taken.from(Origin {
        call: "call".into(),
        part: 1,
        event: 1,
        ends: false,
        ends_answer: false,
    });
    let refused = Event::Said {
        message: message("no"),
    };
    for (then, found) in [
        (refused, State::InputRequired),
        (continued(), State::InputRequired),
        (taken, State::Working),
        (chunk("a", "text", true), State::Working),
        (status(State::Working), State::Working),
    ] {
        let name = format!("{then:?}");
        let asks = status(State::InputRequired);
        let (task, _) = fold(&[created(), asks, continued(), then]);
        assert_eq!(task.unwrap().found(), found, "{name}");
    }
}

#[test]
fn pieces_of_an_artifact_are_joined_and_a_whole_one_replaces_them() {
    let text = |task: &Task| -> Vec<String> {
        let parts = task.artifacts.iter().flat_map(|artifact| &artifact.parts);
        parts.map(|part| format!("{:?}", part.content)).collect()
    };
    let events = [created(), chunk("a", "1", true), chunk("a", "2", true)];
    let (task, _) = fold(&events);
    assert_eq!(text(&task.unwrap()).len(), 2);
    let events = [created(), chunk("a", "1", true), chunk("a", "2", false)];
    let (task, _) = fold(&events);
    assert_eq!(text(&task.unwrap()), [r#"Text("2")"#]);
}

#[test]
fn a_repeated_message_id_of_a_client_is_accepted_and_one_of_an_agent_is_ignored() {
    let again = || Event::Continued {
        message: message("first"),
    };
    let message_event = || Event::Said {
        message: message("said"),
    };
    let (task, _) = fold(&[
        created(),
        again(),
        message_event(),
        message_event(),
        again(),
    ]);
    let ids: Vec<_> = task
        .unwrap()
        .history
        .into_iter()
        .map(|one| one.id)
        .collect();
    assert_eq!(ids, ["first", "first", "said", "first"]);
}

#[test]
fn a_message_that_the_task_has_changes_nothing() {
    use Applied::{Changed, Unchanged};
    let said = || Event::Said {
        message: message("said"),
    };
    let (task, applied) = fold(&[created(), said(), said()]);
    assert_eq!(applied, [Changed, Changed, Unchanged]);
    assert_eq!(task.unwrap().position.offset, 1);
}

#[test]
fn a_task_keeps_its_last_messages() {
    let said = (1..=MAX_MESSAGES + 2).map(|number| Event::Said {
        message: message(&number.to_string()),
    });
    let events: Vec<Event> = std::iter::once(created()).chain(said).collect();
    let (task, _) = fold(&events);
    let history = task.unwrap().history;
    let ends = history.first().zip(history.last());
    let (first, last) = ends.map(|(first, last)| (&first.id, &last.id)).unwrap();
    assert_eq!(history.len(), MAX_MESSAGES);
    assert_eq!((first.as_str(), last.as_str()), ("3", "1002"));
}

#[test]
fn a_task_is_updated_by_every_event_that_changes_it() {
    let (artifact, ended) = (chunk("a", "1", true), status(State::Completed));
    let (task, _) = fold(&[created(), artifact.clone()]);
    let task = task.unwrap();
    assert_eq!((task.changed, task.updated), (1_000, 1_001));
    let (task, _) = fold(&[created(), ended, artifact]);
    assert_eq!(task.unwrap().updated, 1_001, "the last one came too late");
}

#[test]
fn a_part_without_new_events_is_taken_and_a_part_with_missing_events_is_not() {
    let origin = |part, event, ends| Origin {
        call: "call".into(),
        part,
        event,
        ends,
        ends_answer: false,
    };
    let named = Event::Named { task: "t-1".into() };
    let (task, applied) = fold(&[
        created(),
        named.from(origin(1, 1, true)),
        Event::Taken.from(origin(2, 0, true)),
    ]);
    let task = task.unwrap();
    assert_eq!(applied.last(), Some(&Applied::Unchanged));
    assert!(task.events.is_empty());
    assert_eq!(task.parts_of("call"), 2);
    let working = Event::Status(Status::now(State::Working, None));
    let (task, _) = fold(&[created(), working.from(origin(3, 1, false))]);
    assert_eq!(task.unwrap().parts_of("call"), 2);
}

#[test]
fn calls_for_the_same_task_are_distinguished() {
    let from = |call: &str, part| Origin {
        call: call.into(),
        part,
        event: 1,
        ends: true,
        ends_answer: false,
    };
    let named = |task: &str| Event::Named { task: task.into() };
    let (task, applied) = fold(&[
        created(),
        named("t-1").from(from("first", 1)),
        named("t-2").from(from("second", 1)),
        named("t-3").from(from("first", 1)),
        named("t-4").from(from("first", 2)),
    ]);
    let task = task.unwrap();
    assert_eq!(applied[3], Applied::Unchanged);
    assert_eq!((task.parts_of("first"), task.parts_of("second")), (2, 1));
    assert_eq!(task.agents_id.as_deref(), Some("t-4"));
}

#[test]
fn a_call_works_on_its_task_until_its_answer_ends_or_the_task_waits() {
    let from = |call: &str, part, ends_answer| Origin {
        call: call.into(),
        part,
        event: 1,
        ends: true,
        ends_answer,
    };
    let begin = |call: &str| {
        let message = message("m");
        Event::Continued { message }.from(from(call, 0, false))
    };
    let working = |from| status(State::Working).from(from);
    let waits = |from| status(State::InputRequired).from(from);
    let check = |events: &[Event], expected: &[&str]| {
        let (task, _) = fold(&[&[created()], events].concat());
        let task = task.unwrap();
        let calls: Vec<&str> = task.unended_calls().map(Text::as_str).collect();
        assert_eq!(calls, expected, "{events:?}");
    };
    let two = [begin("a"), begin("b")];
    let then = |event: Event| [&two[..], &[event]].concat();
    check(&two, &["a", "b"]);
    check(&then(working(from("a", 1, false))), &["a", "b"]);
    check(&then(working(from("a", 1, true))), &["b"]);
    let taken = Event::Taken.from(from("b", 1, true));
    check(&then(taken), &["a"]);
    let waiting = then(waits(from("a", 1, false)));
    check(&waiting, &[]);
    let next = |event: Event| [&waiting[..], &[event]].concat();
    check(&next(begin("c")), &["c"]);
    check(&next(working(from("b", 1, false))), &["b"]);
}

/// An earlier version of the bridge has written it.
#[test]
fn an_origin_without_the_end_of_the_answer_is_read() {
    let old = r#"{"call":"a","part":1,"event":1,"ends":true}"#;
    let origin: Origin = serde_json::from_str(old).unwrap();
    assert!(!origin.ends_answer);
    assert_eq!(serde_json::to_string(&origin).unwrap(), old);
}

#[test]
fn a_call_that_works_is_remembered_longer_than_calls_that_have_ended() {
    let from = |call: String, ends_answer| Origin {
        call: call.into(),
        part: 1,
        event: 1,
        ends: true,
        ends_answer,
    };
    let works = status(State::Working).from(from("works".to_owned(), false));
    let others = (0..2 * MAX_CALLS).map(|number| {
        let said = Event::Said {
            message: message(&number.to_string()),
        };
        said.from(from(format!("call {number}"), true))
    });
    let events: Vec<Event> = [created(), works].into_iter().chain(others).collect();
    let (task, _) = fold(&events);
    let task = task.unwrap();
    assert_eq!(task.parts_of("works"), 1);
    let forgot = task.last_record;
    assert!(!task.may_have_forgotten("works", forgot));
    assert!(task.may_have_forgotten("call 0", forgot));
    assert!(!task.may_have_forgotten("a new one", forgot + 1));
    let last = format!("call {}", 2 * MAX_CALLS - 1);
    assert_eq!(task.last_call(), Some(&Text::from(last)));
}

/// Its replica may have waited for the log for a long time.
#[test]
fn a_failure_that_another_replica_has_overtaken_changes_nothing() {
    let part = |part| Origin {
        call: "call".into(),
        part,
        event: 1,
        ends: true,
        ends_answer: false,
    };
    let failed = || status(State::Failed).from(part(2).next());
    let working = |number| status(State::Working).from(part(number));
    let (task, applied) = fold(&[created(), working(2), working(3), failed()]);
    assert_eq!(applied.last(), Some(&Applied::Unchanged));
    assert_eq!(task.unwrap().status.state, State::Working);
    let (task, _) = fold(&[created(), working(2), failed(), working(3)]);
    assert_eq!(task.unwrap().status.state, State::Failed);
}

#[test]
fn unknown_events_are_counted_and_change_nothing() {
    let record = |body: &'static str| Record {
        key: "t".into(),
        position: Position::at(0),
        time: 0,
        body: Some(Bytes::from_static(body.as_bytes())),
    };
    let mut entry = None;
    for body in [
        "",
        "{",
        r#"{"v":2,"event":{"named":{"task":"x"}}}"#,
        r#"{"v":1,"event":{"odd":{}}}"#,
    ] {
        assert_eq!(TaskFold.apply(&mut entry, &record(body)), Applied::Unknown);
        assert!(entry.is_none());
    }
}

proptest! {
    #[test]
    fn every_order_of_events_makes_a_task_that_keeps_the_rules(
        picks in prop::collection::vec(0_usize..7, 0..40),
    ) {
        let all = [
            created(),
            status(State::Working),
            status(State::InputRequired),
            status(State::Failed),
            chunk("a", "x", true),
            Event::Continued { message: message("next") },
            Event::Named { task: "own".into() },
        ];
        let events: Vec<Event> = picks.iter().filter_map(|pick| all.get(*pick).cloned()).collect();
        let (task, applied) = fold(&events);
        let (again, _) = fold(&events);
        // The same records make the same task.
        prop_assert_eq!(format!("{task:?}"), format!("{again:?}"));
        let begun = picks.iter().position(|pick| *pick == 0);
        prop_assert_eq!(task.is_some(), begun.is_some());
        if let Some(task) = task {
            let after = begun.and_then(|begun| applied.get(begun + 1..)).unwrap_or_default();
            let shown = after.iter().zip(picks.iter().skip(begun.unwrap_or_default() + 1));
            let shown = shown.filter(|(applied, pick)| {
                **applied == Applied::Changed && matches!(**pick, 1..=4)
            });
            prop_assert_eq!(task.events.len(), shown.count());
            let positions: Vec<_> = task.events.iter().map(|(position, _)| *position).collect();
            prop_assert!(positions.is_sorted());
        }
    }
}
