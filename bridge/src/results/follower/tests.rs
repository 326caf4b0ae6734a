//! Messages for calls of other replicas.

use std::cell::RefCell;

use a2abus_models::e2a::Trust;
use a2abus_plugin::{Event, extension};

use super::*;
use crate::calls::answer_unit;

#[tokio::test(start_paused = true)]
async fn a_subscription_lasts_until_the_topic_has_another_number_of_partitions() {
    let unknown = TransportError::new(TransportErrorKind::Disconnected, "count");
    let counts = RefCell::new(vec![Ok(4), Ok(3), Err(unknown), Ok(3)]);
    until_other(3, || {
        let count = counts.borrow_mut().pop().unwrap();
        std::future::ready(count)
    })
    .await;
    assert!(counts.borrow().is_empty());
}

#[test]
fn a_client_can_come_back_once_it_may_have_an_event_id() {
    let ago = |seconds: u64| clock::milliseconds(clock::now()) - seconds * 1_000;
    let mut opened = OpenedCall::sample();
    let now = Instant::now();
    opened.began = ago(1);
    assert!(!knows_event_id(&opened, now));
    // The stream begins after 15 s, by the clock of the other replica.
    opened.began = ago(14);
    assert!(knows_event_id(&opened, now));
    let earlier = now.checked_sub(Duration::from_secs(10)).unwrap();
    assert!(!knows_event_id(&opened, earlier));
}

#[test]
fn the_caller_of_an_answer_that_is_too_large_for_the_log_learns_that_it_is_lost() {
    let loss = loss_of(&OpenedCall::sample());
    assert!(loss.last && loss.by == Author::Bridge);
    let body: serde_json::Value = serde_json::from_str(&loss.body).unwrap();
    assert_eq!(body["id"], 1);
    assert_eq!(body["error"]["data"]["reason"], "answer_lost");
}

/// The replica of the call gives its caller the same error.
#[test]
fn a_message_that_cannot_be_used_ends_the_answer_with_an_error() {
    let (_, mut buffer) = followed();
    let limits = Limits::default();
    for body in ["{ not json", r#"{"jsonrpc":"2.0","id":"x","result":1}"#] {
        let body = body.to_owned().into();
        for unit in answer_unit::units(&body, None, Trust::Untrusted, &limits) {
            buffer.take(None, None, unit);
        }
        for message in std::mem::take(&mut buffer.messages) {
            buffer.render(&message.unit, &limits, message.arrived);
        }
    }
    let parts = buffer.unrecorded();
    let [error] = parts.as_slice() else {
        panic!("{parts:?}");
    };
    assert!(error.last && error.by == Author::Bridge);
    let body: serde_json::Value = serde_json::from_str(&error.body).unwrap();
    assert_eq!(body["id"], 1);
    assert_eq!(body["error"]["data"]["reason"], "bad_agent_reply");
}

#[test]
fn plain_json_with_the_headers_of_the_request_is_an_answer() {
    let (_, mut buffer) = followed();
    let limits = Limits::default();
    let text = Text::from_static;
    let mut request = Event::new(text("1"), text("/test"), text("test")).unwrap();
    request.set(extension::MCP_TYPE, "request").unwrap();
    let body = r#"{"sum":3}"#.into();
    for unit in answer_unit::units(&body, Some(&request), Trust::Untrusted, &limits) {
        buffer.render(&unit, &limits, Instant::now());
    }
    let parts = buffer.unrecorded();
    let [answer] = parts.as_slice() else {
        panic!("{parts:?}");
    };
    let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(
        (&body["id"], &body["result"]["sum"]),
        (&1.into(), &3.into())
    );
}

/// A call, and the buffer for its answer.
fn followed() -> (CallId, AnswerBuffer) {
    let call = CallId::new(crate::calls::callid::Replica(1)).unwrap();
    let buffer = AnswerBuffer {
        request_of: Some(request_of(call, &OpenedCall::sample())),
        ..AnswerBuffer::default()
    };
    (call, buffer)
}

/// Renders a record that arrived at this time. Returns whether one had been missing for too long by then.
fn add(buffer: &mut AnswerBuffer, call: CallId, sequence: usize, arrived: Instant) -> bool {
    let record = format!(
        r#"{{"protocol_version":"1.0","response_id":"r{sequence}","request_id":"{call}","sequence":{sequence},"is_final":false,"status":"in_progress","response_kind":"e2a.chunk","body":{{"delta_kind":"text","delta":"x"}}}}"#
    );
    let limits = Limits::default();
    let mut has_gap = false;
    for unit in answer_unit::units(&record.into(), None, Trust::Untrusted, &limits) {
        buffer.bytes += bytes_of(&unit);
        has_gap |= buffer.render(&unit, &limits, arrived);
    }
    has_gap
}

#[test]
fn a_missing_record_ends_an_answer_that_was_not_taken_over_yet_and_delays_another() {
    let call = CallId::new(crate::calls::callid::Replica(1)).unwrap();
    for is_adopted in [false, true] {
        let mut buffer = AnswerBuffer {
            request_of: Some(request_of(call, &OpenedCall::sample())),
            is_adopted,
            ..AnswerBuffer::default()
        };
        let began = Instant::now();
        for sequence in [0, 2, 1] {
            assert!(!add(&mut buffer, call, sequence, began));
        }
        let later = began + GAP_TIMEOUT;
        assert!(!buffer.note_gap(later), "it has come");
        assert!(!add(&mut buffer, call, 4, later), "it may come");
        assert_eq!(buffer.count(), 3);
        assert_eq!(buffer.note_gap(later + GAP_TIMEOUT), !is_adopted);
        assert_eq!(buffer.count(), 3 + usize::from(is_adopted));
    }
}

#[test]
fn a_question_in_a_record_is_no_part_and_no_gap() {
    let (call, mut buffer) = followed();
    let began = Instant::now();
    let question = r#"{"jsonrpc":"2.0","id":9,"method":"session/request_permission","params":{}}"#;
    let record = format!(
        r#"{{"protocol_version":"1.0","response_id":"r1","request_id":"{call}","sequence":1,"is_final":false,"status":"in_progress","response_kind":"acp.output_request","body":{question}}}"#
    );
    let limits = Limits::default();
    assert!(!add(&mut buffer, call, 0, began));
    for unit in answer_unit::units(&record.into(), None, Trust::Untrusted, &limits) {
        buffer.render(&unit, &limits, began);
    }
    assert!(!add(&mut buffer, call, 2, began));
    assert!(!buffer.note_gap(began + GAP_TIMEOUT));
    assert_eq!(buffer.count(), 2);
}

/// All records may be rendered at once, when the record of their call arrives.
#[test]
fn a_record_is_missing_from_the_arrival_of_the_later_one() {
    let call = CallId::new(crate::calls::callid::Replica(1)).unwrap();
    for (wait, is_adopted, has_gap, count) in [
        (MISSING / 2, false, false, 3),
        (MISSING, false, true, 3),
        (MISSING, true, false, 3),
        // The replica of the call has continued without it, so its number is already used.
        (GAP_TIMEOUT, true, false, 2),
    ] {
        let mut buffer = AnswerBuffer {
            request_of: Some(request_of(call, &OpenedCall::sample())),
            is_adopted,
            ..AnswerBuffer::default()
        };
        let began = Instant::now();
        add(&mut buffer, call, 0, began);
        add(&mut buffer, call, 2, began);
        let is_late = add(&mut buffer, call, 1, began + wait);
        assert_eq!((is_late, buffer.count()), (has_gap, count), "{wait:?}");
    }
}

#[test]
fn the_oldest_answers_of_unknown_calls_are_dropped_first() {
    let began = Instant::now();
    let call = || CallId::new(crate::calls::callid::Replica(1)).unwrap();
    let mut reading = SubscriptionState {
        buffers: HashMap::new(),
        bytes: 0,
        began: Cursor::default(),
    };
    let calls: Vec<CallId> = (0..8).map(|_| call()).collect();
    for (age, call) in (0..).zip(&calls) {
        let opened = OpenedCall::sample();
        let buffer = AnswerBuffer {
            // Every second one is known, and one was dropped already.
            request_of: (age % 2 == 0).then(|| request_of(*call, &opened)),
            first: began + Duration::from_secs(age),
            bytes: if age == 1 { 0 } else { 100 },
            ..AnswerBuffer::default()
        };
        reading.bytes += buffer.bytes;
        reading.buffers.insert(*call, buffer);
    }
    let excess = |max_bytes| reading.excess(max_bytes);
    assert!(excess(700).is_empty());
    assert_eq!(excess(699), [calls[3]]);
    let [a, b, c, d] = [3, 5, 7, 0].map(|index: usize| calls[index]);
    assert_eq!(excess(300), [a, b, c, d]);
    assert_eq!(excess(0).len(), 7);
}

#[tokio::test(start_paused = true)]
async fn messages_that_are_ignored_use_no_memory() {
    let (call, mut buffer) = followed();
    let answer = format!(r#"{{"jsonrpc":"2.0","id":"{call}","result":1}}"#);
    let limits = Limits::default();
    let mut used = Vec::new();
    for _ in 0..2 {
        for unit in answer_unit::units(&answer.clone().into(), None, Trust::Untrusted, &limits) {
            buffer.take(None, None, unit);
        }
        for message in std::mem::take(&mut buffer.messages) {
            buffer.render(&message.unit, &limits, message.arrived);
        }
        used.push(buffer.bytes);
    }
    assert_eq!(buffer.count(), 1);
    assert_eq!(used[0], used[1]);
}
