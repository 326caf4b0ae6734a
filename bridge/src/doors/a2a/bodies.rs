//! The bodies of webhook calls, and how much memory they may take.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use a2abus_plugin::Text;
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::lock::lock;
use crate::shares::{Share, Shares};
use crate::state::Position;

/// A call of a webhook. Several webhooks of a task may share it.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) body: Bytes,
    /// The event that it reports.
    pub(super) reached: Position,
    /// Whether it is the last event.
    pub(super) last: bool,
    _room: Room,
}

/// The memory of a body, until its calls have ended; `None` for a small one.
pub(super) type Room = Option<(OwnedSemaphorePermit, Share<String>)>;

/// The bodies of the calls in progress.
#[derive(Debug)]
pub(super) struct Bodies {
    room: Arc<Semaphore>,
    /// The share of each host.
    hosts: Arc<Shares<String>>,
    /// The last call for each task, if its body is the whole task.
    whole: Mutex<HashMap<Text, Weak<Call>>>,
}

/// The bodies of other calls take all the memory, or all of the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NoRoom;

/// How many bytes the larger bodies may take together.
const MAX_BYTES: usize = 32 << 20;
/// How many of them the bodies for one host may take, because its receivers may be slow. A body of more bytes is sent
/// when it is the only one for its host.
const MAX_HOST_BYTES: usize = MAX_BYTES / 4;
/// The most that one body counts for. If it had to wait until all other calls have ended, it might wait for ever.
const MAX_BODY_BYTES: usize = MAX_BYTES / 2;
/// A body of at most this many bytes needs no room, so it never waits for larger ones, whose receivers may be slow.
const SMALL: usize = 256 << 10;

// === impl Call ===

impl Call {
    pub(super) fn new((body, room): (Bytes, Room), reached: Position, last: bool) -> Self {
        Self {
            body,
            reached,
            last,
            _room: room,
        }
    }
}

// === impl Bodies ===

impl Bodies {
    /// Room for a body of about this many bytes.
    pub(super) fn room(&self, host: impl FnOnce() -> String, bytes: usize) -> Result<Room, NoRoom> {
        if bytes <= SMALL {
            return Ok(None);
        }
        let mut share = self.hosts.begin(&host());
        if !share.grow(bytes.min(MAX_HOST_BYTES)) {
            return Err(NoRoom);
        }
        let permits = u32::try_from(bytes.min(MAX_BODY_BYTES)).map_err(|_| NoRoom)?;
        let room = Arc::clone(&self.room).try_acquire_many_owned(permits);
        room.map(|room| Some((room, share))).map_err(|_| NoRoom)
    }

    /// The call in progress that reports this event with the whole task.
    pub(super) fn shared(&self, task: &str, at: Position) -> Option<Arc<Call>> {
        let whole = lock(&self.whole);
        let call = whole.get(task).and_then(Weak::upgrade);
        call.filter(|call| call.reached == at)
    }

    /// Shares a call with the other webhooks of its task, as long as it is in progress.
    pub(super) fn share(&self, task: Text, call: &Arc<Call>) {
        let mut whole = lock(&self.whole);
        whole.retain(|_, call| call.strong_count() > 0);
        whole.insert(task, Arc::downgrade(call));
    }
}

impl Default for Bodies {
    fn default() -> Self {
        Self {
            room: Arc::new(Semaphore::new(MAX_BYTES)),
            hosts: Shares::new(MAX_HOST_BYTES),
            whole: Mutex::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room_at(bodies: &Bodies, host: &str, bytes: usize) -> Result<Room, NoRoom> {
        bodies.room(|| host.to_owned(), bytes)
    }

    #[test]
    fn large_bodies_wait_for_one_another_and_small_ones_for_none() {
        let bodies = Bodies::default();
        let first = room_at(&bodies, "a", 3 * MAX_BYTES).unwrap();
        let second = room_at(&bodies, "b", MAX_BODY_BYTES).unwrap();
        assert_eq!(room_at(&bodies, "c", SMALL + 1).unwrap_err(), NoRoom);
        assert!(room_at(&bodies, "c", SMALL).is_ok());
        drop(first);
        assert!(room_at(&bodies, "c", MAX_BODY_BYTES).is_ok());
        drop(second);
    }

    #[test]
    fn the_bodies_for_one_host_leave_room_to_others() {
        let bodies = Bodies::default();
        let slow = room_at(&bodies, "slow", MAX_HOST_BYTES - SMALL).unwrap();
        assert_eq!(room_at(&bodies, "slow", SMALL + 1).unwrap_err(), NoRoom);
        assert!(room_at(&bodies, "other", MAX_BODY_BYTES).is_ok());
        drop(slow);
        assert!(room_at(&bodies, "slow", MAX_BYTES).is_ok());
    }

    #[test]
    fn a_body_is_shared_while_a_call_has_it() {
        let bodies = Bodies::default();
        let at = |position: &str| position.parse::<Position>().unwrap();
        let body = (
            Bytes::from_static(b"{}"),
            room_at(&bodies, "h", MAX_BYTES).unwrap(),
        );
        let first = Arc::new(Call::new(body, at("0-1"), false));
        bodies.share("t".into(), &first);
        let shared = bodies.shared("t", at("0-1")).unwrap();
        assert!(Arc::ptr_eq(&first, &shared));
        assert!(bodies.shared("t", at("0-2")).is_none());
        assert!(bodies.shared("other", at("0-1")).is_none());
        drop((first, shared));
        assert!(bodies.shared("t", at("0-1")).is_none());
        assert!(room_at(&bodies, "h", MAX_BYTES).is_ok());
    }
}
