//! The records of keys and followed calls.

use super::*;
use proptest::prelude::*;

fn claimed(call: &str) -> Event {
    Event::Claimed(Claim {
        digest: "d".into(),
        call: call.into(),
        until: 1,
    })
}

fn answered(call: &str, body: &str) -> Event {
    Event::Answered {
        call: call.into(),
        response: StoredResponse {
            status: 200,
            headers: Vec::new(),
            body: body.into(),
        },
    }
}

fn released(call: &str) -> Event {
    Event::Released { call: call.into() }
}

fn records(events: &[Event]) -> (Option<Entry>, Vec<Applied>) {
    let mut entry = None;
    let applied = events.iter().enumerate().map(|(index, event)| {
        let record = Record {
            key: "k".into(),
            position: Position::at(index as u64),
            time: 0,
            body: Some(body::write(event)),
        };
        ResultFold.apply(&mut entry, &record)
    });
    let applied = applied.collect();
    (entry, applied)
}

fn fold(events: &[Event]) -> (Option<ClaimedKey>, Vec<Applied>) {
    let (entry, applied) = records(events);
    let claimed = entry.map(|entry| match entry {
        Entry::Key(claimed) => claimed,
        other => panic!("{other:?}"),
    });
    (claimed, applied)
}

fn opened() -> Event {
    Event::Opened(Box::new(OpenedCall::sample()))
}

fn part(index: usize, last: bool) -> Event {
    let body = Bytes::from(index.to_string());
    Event::Part {
        index,
        part: RecordedPart::new(&body, last, Author::Agent),
    }
}

fn bodies(followed: &FollowedCall, first: usize) -> Vec<String> {
    let parts = followed.parts_from(first).into_iter();
    parts.map(|part| part.body.to_string()).collect()
}

#[test]
fn a_call_whose_agent_is_silent_has_an_earlier_deadline() {
    let opened = |part_timeout| OpenedCall {
        until: 100_000,
        part_timeout,
        ..OpenedCall::sample()
    };
    let takeover = clock::whole_milliseconds(TAKEOVER);
    assert_eq!(opened(Some(500)).deadline_after(2_000), 2_500 + takeover);
    assert_eq!(opened(Some(500)).deadline_after(99_999), 100_000);
    // The client may take longer to answer a question.
    assert_eq!(opened(None).deadline_after(2_000), 100_000);
}

#[test]
fn the_parts_of_a_resumable_answer_count_as_those_of_a_stream() {
    let opened = |streamed, session: Option<&'static str>| OpenedCall {
        streamed,
        session: session.map(Text::from_static),
        ..OpenedCall::sample()
    };
    assert!(opened(true, None).has_numbered_parts());
    assert!(opened(false, Some("mcp-session-1")).has_numbered_parts());
    assert!(!opened(false, None).has_numbered_parts());
}

#[test]
fn a_part_of_an_agent_is_recorded_as_before() {
    let text = |by| {
        let part = RecordedPart::new(&Bytes::from_static(b"x"), true, by);
        serde_json::to_string(&Event::Part { index: 2, part }).unwrap()
    };
    let of_agent = r#"{"part":{"index":2,"last":true,"body":"x"}}"#;
    assert_eq!(text(Author::Agent), of_agent);
    let read: Event = serde_json::from_str(&text(Author::Bridge)).unwrap();
    assert!(
        matches!(read, Event::Part { part, index: 2 } if part.by == Author::Bridge),
        "{}",
        text(Author::Bridge)
    );
    serde_json::from_str::<Event>(of_agent).unwrap();
}

#[test]
fn the_parts_of_an_answer_are_counted_up_to_the_first_that_is_missing() {
    let check = |parts: &[Event], expected| {
        let (entry, _) = records(&[&[opened()], parts].concat());
        let Some(Entry::Call(followed)) = entry else {
            panic!("{entry:?}");
        };
        assert_eq!(followed.count(), expected);
    };
    check(&[], 0);
    check(&[part(0, false), part(1, false), part(3, false)], 2);
    check(&[part(1, false)], 0);
    // Later parts change nothing.
    check(&[part(0, false), part(1, true)], usize::MAX);
}

#[test]
fn an_end_can_be_recorded_twice() {
    let (entry, applied) = records(&[Event::Over, Event::Over, part(0, true)]);
    assert!(matches!(entry, Some(Entry::Over)));
    use Applied::{Changed, Unchanged};
    assert_eq!(applied, [Changed, Changed, Unchanged]);
}

#[test]
fn a_subscription_lasts_until_it_is_ended() {
    let subscription = Subscription {
        subscriber: "mcp-session-1".into(),
        agent: "files".into(),
        uri: "file:///a".into(),
        client_uri: "a2abus://files/file:///a".into(),
    };
    let begin = Event::Subscribed(subscription.clone());
    let end = Event::Unsubscribed(subscription);
    let (entry, _) = records(&[begin.clone(), begin.clone()]);
    assert!(matches!(entry, Some(Entry::Subscribed(_))), "{entry:?}");
    let (entry, applied) = records(&[begin, end.clone(), end]);
    assert!(entry.is_none(), "{entry:?}");
    use Applied::{Changed, Unchanged};
    assert_eq!(applied, [Changed, Changed, Unchanged]);
}

#[test]
fn a_change_that_arrives_twice_counts_once() {
    let updated = Event::Updated {
        agent: "files".into(),
        uri: "file:///a".into(),
    };
    let (_, applied) = records(&[updated.clone(), updated]);
    assert_eq!(applied, [Applied::Changed, Applied::Unchanged]);
}

#[test]
fn a_part_is_recorded_once_by_whichever_replica() {
    let opened = opened();
    // Two replicas record, each in order.
    let orders = [[0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 1, 2], [0, 1, 0, 1, 2, 2]];
    for order in orders {
        let parts = order.map(|index| part(index, index == 2));
        let events: Vec<Event> = [opened.clone()].into_iter().chain(parts).collect();
        let (entry, _) = records(&events);
        let Some(Entry::Call(followed)) = entry else {
            panic!("{entry:?}");
        };
        assert_eq!(bodies(&followed, 0), ["0", "1", "2"]);
    }
    // Parts that the task of the call has are not recorded: the first one recorded may be any.
    let (entry, applied) = records(&[part(0, true), opened, part(1, true), part(2, true)]);
    use Applied::{Changed, Unchanged};
    assert_eq!(applied, [Unchanged, Changed, Changed, Unchanged]);
    let Some(Entry::Call(followed)) = entry else {
        panic!("{entry:?}");
    };
    let from = |first| followed.parts_from(first).len();
    assert_eq!([from(0), from(1), from(2)], [0, 1, 0]);
}

#[test]
fn a_part_has_its_number_wherever_a_replica_begins() {
    // One has seen that the task has two parts, the other one not yet.
    let late = [part(2, false), part(3, true)];
    let early = [
        part(0, false),
        part(1, false),
        part(2, false),
        part(3, true),
    ];
    for split in 0..=early.len() {
        let (before, after) = early.split_at(split);
        let events = [&[opened()], before, &late, after].concat();
        for length in 0..=events.len() {
            let (entry, _) = records(&events[..length]);
            let Some(Entry::Call(followed)) = entry else {
                continue;
            };
            // A reader that starts at a part gets this part and all later ones, and no other.
            for first in 0..4 {
                let read = bodies(&followed, first);
                let right: Vec<String> = (first..)
                    .map(|it| it.to_string())
                    .take(read.len())
                    .collect();
                assert_eq!(read, right, "{length} of {events:?}");
            }
        }
        let (entry, _) = records(&events);
        let Some(Entry::Call(followed)) = entry else {
            panic!("{entry:?}");
        };
        assert_eq!(bodies(&followed, 0).len(), 4, "{events:?}");
    }
}

#[test]
fn the_first_claim_and_the_first_answer_win() {
    use Applied::{Changed, Unchanged};
    let (entry, applied) = fold(&[
        answered("a", "too early"),
        claimed("a"),
        claimed("b"),
        answered("b", "of another"),
        answered("a", "first"),
        answered("a", "second"),
        released("a"),
    ]);
    assert_eq!(
        applied,
        [
            Unchanged, Changed, Unchanged, Unchanged, Changed, Unchanged, Unchanged
        ]
    );
    let outcome = entry.unwrap().outcome;
    assert!(matches!(outcome, Some(ClaimOutcome::Answered(answer)) if &*answer.body == "first"));
}

#[test]
fn an_answer_replaces_its_loss() {
    let lost = |call: &str| Event::Unkept { call: call.into() };
    let (entry, _) = fold(&[claimed("a"), lost("a"), answered("b", "of another")]);
    assert!(matches!(entry.unwrap().outcome, Some(ClaimOutcome::Unkept)));
    let (entry, _) = fold(&[claimed("a"), lost("a"), answered("a", "late"), lost("a")]);
    let outcome = entry.unwrap().outcome;
    assert!(matches!(outcome, Some(ClaimOutcome::Answered(answer)) if &*answer.body == "late"));
}

#[test]
fn a_key_that_was_given_back_may_be_claimed_again() {
    let (entry, _) = fold(&[claimed("a"), released("b"), released("a"), claimed("b")]);
    assert_eq!(entry.unwrap().claim.call, "b");
}

proptest! {
    #[test]
    fn an_answer_is_never_replaced(picks in prop::collection::vec(0_usize..7, 0..40)) {
        let all = [
            claimed("a"), claimed("b"), released("a"), released("b"),
            answered("a", "1"), answered("b", "2"), Event::Unkept { call: "a".into() },
        ];
        let events: Vec<Event> = picks.iter().filter_map(|pick| all.get(*pick).cloned()).collect();
        let mut ended: Option<String> = None;
        for length in 0..=events.len() {
            let (entry, _) = fold(events.get(..length).unwrap_or_default());
            let now = entry.and_then(|entry| entry.outcome).map(|outcome| format!("{outcome:?}"));
            if let Some(ended) = &ended {
                prop_assert_eq!(now.as_ref(), Some(ended));
            }
            // Its answer may still arrive after it counted as lost.
            ended = now.filter(|outcome| outcome != "Unkept");
        }
    }
}
