//! Requests that come again while the first is answered or given up, under many interleavings: each is answered once,
//! and none is lost.
//!
//! The file of the table is compiled a second time here, with locks and a map that switch threads wherever a real one
//! could.

#[allow(dead_code, unreachable_pub, clippy::duplicate_mod)]
#[path = "running.rs"]
mod running;

mod sync {
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};
    pub(crate) use shuttle_dashmap::DashMap;
    pub(crate) use shuttle_dashmap::mapref::entry::Entry;
}

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use a2abus_plugin::Text;
use shuttle::thread;

use self::running::{EntryState, Running};

/// Schedules of each kind that are tried.
const SCHEDULES: usize = 3_000;

/// A share of a message: whether this replica may answer it.
type Share = Arc<AtomicBool>;

fn table() -> (Arc<Running<Share, ()>>, Text) {
    let (table, position) = (Arc::new(Running::default()), Text::from_static("here"));
    let first = table.enter(&position, Share::default(), |()| false);
    assert!(matches!(first, EntryState::New(_)));
    (table, position)
}

/// The first one may no longer be answered by this replica; it comes again in the same moment.
fn given_up() {
    let (table, position) = table();
    let again = Share::new(AtomicBool::new(true));
    let entering = thread::spawn({
        let (table, position) = (Arc::clone(&table), position.clone());
        move || table.enter(&position, again, |()| false)
    });
    let may_answer = |share: &Share| share.load(Ordering::Relaxed).then_some(());
    let begun = table.begin_again(&position, may_answer);
    match (begun, entering.join().unwrap()) {
        (Some(()), EntryState::Waits) | (None, EntryState::New(_)) => {}
        (begun, entered) => panic!("lost, or answered twice: {begun:?} {entered:?}"),
    }
}

/// The first one is answered; it comes again in the same moment.
fn answered() {
    let (table, position) = table();
    let entering = thread::spawn({
        let (table, position) = (Arc::clone(&table), position.clone());
        move || table.enter(&position, Share::default(), |()| false)
    });
    let waited = table.finish(&position, ()).len();
    match (waited, entering.join().unwrap()) {
        (1, EntryState::Waits) | (0, EntryState::Answered(_, ())) => {}
        (waited, entered) => panic!("lost, or answered twice: {waited} {entered:?}"),
    }
}

#[test]
fn a_request_that_comes_again_is_answered_once_in_every_order() {
    for happening in [given_up, answered] {
        shuttle::check_random(happening, SCHEDULES);
        shuttle::check_pct(happening, SCHEDULES, 3);
    }
}
