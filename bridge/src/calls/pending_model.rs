//! The table of pending calls under many interleavings: a call is answered, answered again, failed, given up by its
//! caller and drained at the same time. It ends once, nothing follows its end, and everything that it held is given back.
//!
//! The file of the table is compiled a second time here, with locks and a map that switch threads wherever a real one
//! could.

#[allow(dead_code, unreachable_pub, clippy::duplicate_mod)]
#[path = "pending.rs"]
mod pending;

mod sync {
    pub(crate) use shuttle::sync::atomic::AtomicUsize;
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};
    pub(crate) use shuttle_dashmap::DashMap;
}

use std::sync::Arc;

use a2abus_plugin::Text;
use bytes::Bytes;
use prometheus::{IntCounter, IntGauge};
use shuttle::thread;
use tokio::sync::mpsc;

use self::pending::{CallerMessage, Entry, HandOver, Parts, PendingCalls};
use crate::budget::Budget;
use crate::calls::callid::{CallId, Replica, ReplyId};
use crate::calls::error::CallError;
use crate::calls::part::Part;
use crate::log_limit::LogLimits;

/// How many schedules of each kind are tried.
const SCHEDULES: usize = 3_000;

/// An action that runs concurrently with the call.
type ConcurrentAction = fn(&PendingCalls, CallId) -> HandOver;

const ALL: [ConcurrentAction; 5] = [
    // A stream that ends; an answer in one part; another one; a deadline; the caller leaves.
    |table, call| {
        table.hand_over(call, |_, _| parts(&[false]));
        table.hand_over(call, |_, _| parts(&[false, true]))
    },
    |table, call| table.hand_over(call, |_, _| parts(&[true])),
    |table, call| table.hand_over(call, |_, _| parts(&[false])),
    |table, call| table.fail(call, CallError::Unavailable(Text::from_static("gone"))),
    |table, call| match table.remove(call) {
        true => HandOver::Nothing,
        false => HandOver::Late,
    },
];

#[allow(clippy::unnecessary_wraps)]
fn parts(last: &[bool]) -> Option<Result<Parts, CallError>> {
    let part = |last: &bool| Part::new(Bytes::from_static(b"{}"), *last);
    Some(Ok(last.iter().map(part).collect()))
}

/// Runs all actions on one call concurrently, and checks the state afterwards.
fn one_call() {
    let gauge = |name: &str| IntGauge::new(name, "Of a test.").unwrap();
    let (calls, held) = (gauge("calls"), gauge("held"));
    let refused = IntCounter::new("refused", "Of a test.").unwrap();
    let budget =
        Budget::new(1 << 20, held.clone(), refused, &LogLimits::default()).for_client(None);
    let table = Arc::new(PendingCalls::new(1, calls.clone()));
    let call = CallId::new(Replica(0)).unwrap();
    let (sender, mut receiver) = mpsc::channel(16);
    let entry = Entry {
        _charge: budget.charge(100).unwrap(),
        ..Entry::of_test(ReplyId { call, token: None }, sender, budget)
    };
    assert!(table.register(call, entry));
    let drained = thread::spawn({
        let table = Arc::clone(&table);
        move || shuttle::future::block_on(table.until_empty())
    });
    let running = ALL.map(|action| {
        let table = Arc::clone(&table);
        thread::spawn(move || action(&table, call))
    });
    let results = running.map(|thread| thread.join().unwrap());
    drained.join().unwrap();
    let has_left = results.contains(&HandOver::Nothing);
    let (mut ends, mut after) = (0, 0);
    while let Ok(piece) = receiver.try_recv() {
        after += usize::from(ends > 0);
        ends += usize::from(match *piece {
            CallerMessage::Part(part, _) => part.is_err() || part.is_ok_and(|part| part.last),
            CallerMessage::Waiting | CallerMessage::ClientAnswer(_) => false,
        });
    }
    // Either its caller has left, or it has received the end.
    assert_eq!(ends, usize::from(!has_left), "{results:?}");
    assert_eq!(after, 0, "parts follow the end");
    assert_eq!((table.len(), calls.get(), held.get()), (0, 0, 0));
    drop(receiver);
}

#[test]
fn a_call_ends_once_in_every_order() {
    shuttle::check_random(one_call, SCHEDULES);
    shuttle::check_pct(one_call, SCHEDULES, 3);
}
