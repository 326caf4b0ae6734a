//! Does the table of pending calls deliver each answer once?

use std::sync::Arc;

use a2abus_models::e2a::Trust;
use a2abus_plugin::{Limits, Text};
use bytes::Bytes;
use prometheus::IntGauge;
use tokio::sync::mpsc;

use crate::budget::Budget;
use crate::calls::callid::{CallId, Replica, ReplyId};
use crate::calls::error::CallError;
use crate::calls::part::Part;
use crate::calls::pending::{
    CallRequest, CallerMessage, Entry, Fingerprint, Form, HandOver, Parts, PendingCalls, Questions,
};
use crate::calls::{answer_unit, render};
use crate::log_limit::LogLimits;

fn entry(capacity: usize) -> (Entry, mpsc::Receiver<Box<CallerMessage>>) {
    let (parts, receiver) = mpsc::channel(capacity);
    let call = CallId::new(Replica(0)).unwrap();
    let refused = prometheus::IntCounter::new("refused", "Refusals.").unwrap();
    let budget = Budget::new(1 << 20, gauge(), refused, &LogLimits::default()).for_client(None);
    let entry = Entry::of_test(ReplyId { call, token: None }, parts, budget);
    (entry, receiver)
}

fn received(receiver: &mut mpsc::Receiver<Box<CallerMessage>>) -> Result<Part, CallError> {
    match *receiver.try_recv().unwrap() {
        CallerMessage::Part(part, _) => part,
        CallerMessage::Waiting | CallerMessage::ClientAnswer(_) => panic!("a part is missing"),
    }
}

fn gauge() -> IntGauge {
    IntGauge::new("pending", "Calls.").unwrap()
}

#[allow(clippy::unnecessary_wraps)]
fn part(last: bool) -> Option<Result<Parts, CallError>> {
    let body = Bytes::from_static(b"{}");
    Some(Ok(smallvec::smallvec![Part::new(body, last)]))
}

#[test]
fn a_last_part_is_delivered_once() {
    let (table, call) = (
        PendingCalls::new(8, gauge()),
        CallId::new(Replica(0)).unwrap(),
    );
    let (entry, mut receiver) = entry(8);
    assert!(table.register(call, entry));
    assert_eq!(table.hand_over(call, |_, _| part(false)), HandOver::Over);
    assert_eq!(table.hand_over(call, |_, _| part(true)), HandOver::Over);
    assert_eq!(table.hand_over(call, |_, _| part(true)), HandOver::Late);
    assert!(!received(&mut receiver).unwrap().last);
    assert!(received(&mut receiver).unwrap().last);
    assert!(receiver.try_recv().is_err());
    assert!(table.is_empty());
}

#[test]
fn a_full_table_refuses_and_a_slow_caller_is_cut_off() {
    let table = PendingCalls::new(1, gauge());
    let (first, second) = (
        CallId::new(Replica(0)).unwrap(),
        CallId::new(Replica(0)).unwrap(),
    );
    let (entry_1, receiver) = entry(1);
    assert!(table.register(first, entry_1));
    assert!(!table.register(second, entry(1).0));
    assert_eq!(table.hand_over(first, |_, _| part(false)), HandOver::Over);
    assert_eq!(table.hand_over(first, |_, _| part(false)), HandOver::Late);
    assert!(table.is_empty());
    drop(receiver);
}

#[test]
fn rendering_the_answer_of_one_call_holds_up_no_other() {
    let table = PendingCalls::new(2_000, gauge());
    let call = CallId::new(Replica(0)).unwrap();
    let (own, _receiver) = entry(1);
    assert!(table.register(call, own));
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let table = &table;
        let handed = table.hand_over(call, |_, _| {
            // Enough calls to meet every shard of the table.
            scope.spawn(move || {
                for _ in 0..1_000 {
                    let other = CallId::new(Replica(0)).unwrap();
                    assert!(table.register(other, entry(1).0));
                    assert!(table.remove(other));
                }
                done.send(()).unwrap();
            });
            let others = is_done.recv_timeout(std::time::Duration::from_secs(20));
            others.expect("other calls come and go");
            part(true)
        });
        assert_eq!(handed, HandOver::Over);
    });
}

#[test]
fn calls_fail_with_the_cause_of_their_bus() {
    let table = PendingCalls::new(8, gauge());
    let call = CallId::new(Replica(0)).unwrap();
    let (entry, mut receiver) = entry(1);
    assert!(table.register(call, entry));
    let error = CallError::Unavailable(Text::from_static("gone"));
    assert_eq!(table.fail_where(|entry| entry.request.streamed, &error), 1);
    assert_eq!(received(&mut receiver), Err(error));
}

#[test]
fn records_that_are_collected_use_the_budget_of_the_caller() {
    let table = PendingCalls::new(8, gauge());
    let call = CallId::new(Replica(0)).unwrap();
    let (mut entry, mut receiver) = entry(8);
    let form = Form::JsonRpc {
        id: Text::from_static("1"),
        progress: None,
        accepts_parts: false,
        questions: Questions::Refused,
    };
    let (id, fingerprint) = (ReplyId { call, token: None }, Fingerprint::none());
    let request = CallRequest::new(id, form, false, Text::default(), fingerprint);
    entry.request = Arc::new(request);
    assert!(table.register(call, entry));
    // The budget is 1 MiB.
    let (text, limits) = ("x".repeat(100 << 10), Limits::default());
    let hand_over = |sequence: usize| {
        let record = format!(
            r#"{{"protocol_version":"1.0","response_id":"r{sequence}","request_id":"{call}","sequence":{sequence},"is_final":false,"status":"in_progress","response_kind":"e2a.chunk","body":{{"delta_kind":"text","delta":"{text}"}}}}"#
        );
        for unit in answer_unit::units(&record.into(), None, Trust::Untrusted, &limits) {
            table.hand_over(call, |request, progress| {
                let fold = &mut progress.fold;
                Some(render::parts_of(request, fold, &unit, &limits))
            });
        }
    };
    (0..10).for_each(hand_over);
    assert!(receiver.try_recv().is_err());
    hand_over(10);
    assert_eq!(received(&mut receiver), Err(CallError::AnswerDropped));
    assert!(table.is_empty());
}

#[test]
fn a_request_that_was_handed_to_a_bus_does_not_count_as_unsent() {
    let table = PendingCalls::new(8, gauge());
    let [sent, unsent] = [(); 2].map(|()| CallId::new(Replica(0)).unwrap());
    let receivers = [sent, unsent].map(|call| {
        let (entry, receiver) = entry(8);
        assert!(table.register(call, entry));
        receiver
    });
    table.note_published(sent);
    for call in [sent, unsent] {
        table.fail_unsent(call, CallError::Moved);
    }
    assert!(table.may_have_arrived(sent) && !table.may_have_arrived(unsent));
    let [mut sent, mut unsent] = receivers;
    assert!(sent.try_recv().is_err(), "it goes on");
    assert_eq!(received(&mut unsent).unwrap_err(), CallError::Moved);
}
