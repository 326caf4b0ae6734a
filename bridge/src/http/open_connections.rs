//! Which connection is closed when the limit is reached and another client waits?
//!
//! The connection that has been idle for the longest time. Clients can reconnect, and idle connections must not keep
//! out active clients. If none is idle, the one that has waited for the rest of a slow request for the longest time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep;

use super::streams::Streams;
use crate::lock::lock;

/// How long a connection must be idle before it is asked to make room. A client that has just connected is about to
/// send a request.
const MIN_IDLE: Duration = Duration::from_millis(500);
/// How long a connection that was asked may take to close. After that it has declined, and the next one is asked.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the connections are checked while a client waits.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The connections of one listener.
#[derive(Debug, Default)]
pub(super) struct OpenConnections(Mutex<ConnectionTable>);

#[derive(Debug, Default)]
struct ConnectionTable {
    next: u64,
    connections: HashMap<u64, OpenConnection>,
}

#[derive(Debug)]
struct OpenConnection {
    streams: Arc<Streams>,
    make_room: Arc<Notify>,
    /// When it was asked to make room. It declines if it has a request by then.
    asked_at: Option<Instant>,
}

/// Removes the connection from the table when it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionGuard {
    connections: Arc<OpenConnections>,
    number: u64,
    make_room: Arc<Notify>,
}

// === impl OpenConnections ===

impl OpenConnections {
    /// Adds a connection with these requests.
    pub(super) fn take(self: &Arc<Self>, streams: &Arc<Streams>) -> ConnectionGuard {
        let make_room = Arc::new(Notify::new());
        let mut table = self.table();
        let number = table.next;
        table.next += 1;
        let connection = OpenConnection {
            streams: Arc::clone(streams),
            make_room: Arc::clone(&make_room),
            asked_at: None,
        };
        table.connections.insert(number, connection);
        ConnectionGuard {
            connections: Arc::clone(self),
            number,
            make_room,
        }
    }

    /// Asks connections to make room, one after another, beginning with the one with the longest idle time. Never
    /// returns; drop it when there is room.
    pub(super) async fn make_room(&self) {
        loop {
            self.ask_longest_idle();
            sleep(CHECK_INTERVAL).await;
        }
    }

    /// Asks one connection, unless another one was asked recently and has not closed yet.
    fn ask_longest_idle(&self) {
        let mut table = self.table();
        // An idle connection comes before one with a slow request.
        let mut longest: Option<((bool, Duration), &mut OpenConnection)> = None;
        for connection in table.connections.values_mut() {
            let streams = &connection.streams;
            let idle = streams.idle_for().map(|time| (true, time));
            let spare = idle.or_else(|| Some((false, streams.receiving_for()?)));
            let Some((is_idle, time)) = spare else {
                connection.asked_at = None;
                continue;
            };
            let asked = connection.asked_at;
            if asked.is_some_and(|at| at.elapsed() < CLOSE_TIMEOUT) {
                return;
            }
            let is_spare = !is_idle || time >= MIN_IDLE;
            let is_longer = longest
                .as_ref()
                .is_none_or(|(than, _)| (is_idle, time) > *than);
            if is_spare && is_longer {
                longest = Some(((is_idle, time), connection));
            }
        }
        if let Some((_, connection)) = longest {
            connection.asked_at = Some(Instant::now());
            connection.make_room.notify_one();
        }
    }

    fn table(&self) -> MutexGuard<'_, ConnectionTable> {
        lock(&self.0)
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
        self.connections.table().connections.remove(&self.number);
    }
}
