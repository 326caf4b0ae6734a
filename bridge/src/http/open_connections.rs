//! Which connection is closed when the limit is reached and another client waits?
//!
//! The one that has been without a request for longest: clients open connections again, and a client that holds
//! connections for nothing must not keep out those that work.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep;

use super::streams::Streams;

/// How long a connection must have been without a request before it is asked to make room: a client that has just
/// connected is about to send one.
const SETTLED: Duration = Duration::from_millis(500);
/// How long one that was asked may take to close. After that the next is asked: it has declined.
const CLOSES: Duration = Duration::from_secs(1);
/// How often the connections are looked at while a client waits.
const LOOK: Duration = Duration::from_millis(100);

/// The connections of one listener.
#[derive(Debug, Default)]
pub(super) struct OpenConnections(Mutex<ConnectionTable>);

#[derive(Debug, Default)]
struct ConnectionTable {
    next: u64,
    seats: HashMap<u64, OpenConnection>,
}

#[derive(Debug)]
struct OpenConnection {
    streams: Arc<Streams>,
    make_room: Arc<Notify>,
    /// When it was asked to make room. One that has a request by then declines.
    asked: Option<Instant>,
}

/// Removes the connection from the table when it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionGuard {
    seats: Arc<OpenConnections>,
    number: u64,
    make_room: Arc<Notify>,
}

// === impl OpenConnections ===

impl OpenConnections {
    /// Adds a connection with these requests.
    pub(super) fn take(self: &Arc<Self>, streams: &Arc<Streams>) -> ConnectionGuard {
        let make_room = Arc::new(Notify::new());
        let mut taken = self.table();
        let number = taken.next;
        taken.next += 1;
        let seat = OpenConnection {
            streams: Arc::clone(streams),
            make_room: Arc::clone(&make_room),
            asked: None,
        };
        taken.seats.insert(number, seat);
        ConnectionGuard {
            seats: Arc::clone(self),
            number,
            make_room,
        }
    }

    /// Has one connection after another make room, the one that has been idle for longest first. Never returns; drop it
    /// when there is room.
    pub(super) async fn make_room(&self) {
        loop {
            self.ask_longest_idle();
            sleep(LOOK).await;
        }
    }

    /// Asks one connection, unless one is asked already and has not ended yet.
    fn ask_longest_idle(&self) {
        let mut taken = self.table();
        let mut longest: Option<(Duration, &mut OpenConnection)> = None;
        for seat in taken.seats.values_mut() {
            match seat.streams.idle_for() {
                None => seat.asked = None,
                Some(_) if seat.asked.is_some_and(|at| at.elapsed() < CLOSES) => return,
                Some(idle) if idle < SETTLED => {}
                Some(idle) => {
                    if longest.as_ref().is_none_or(|(than, _)| idle > *than) {
                        longest = Some((idle, seat));
                    }
                }
            }
        }
        if let Some((_, seat)) = longest {
            seat.asked = Some(Instant::now());
            seat.make_room.notify_one();
        }
    }

    // Every change leaves it whole, so that a lock poisoned by a panic elsewhere is as good as any.
    fn table(&self) -> MutexGuard<'_, ConnectionTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl ConnectionGuard ===

impl ConnectionGuard {
    /// Waits until this connection is asked to make room. Cancel-safe.
    pub(super) async fn room_requested(&self) {
        self.make_room.notified().await;
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.seats.table().seats.remove(&self.number);
    }
}
