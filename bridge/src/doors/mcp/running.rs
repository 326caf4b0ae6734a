//! The requests in progress, so that a cancel finds them, whichever replica receives it.
//!
//! ```text
//! notifications/cancelled ─┬─> a request that is answered here
//!                          └─> log ──> every replica ──> a request that is answered there
//! DELETE ──> log ──> every replica ──> all requests of the session
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use a2abus_plugin::Text;
use tokio_util::sync::CancellationToken;

use super::session::{KEY, Session};
use crate::results::Results;
use crate::state::Lagged;

/// The requests of all sessions in progress on this replica, by log key.
#[derive(Debug, Default)]
pub(super) struct Running(Mutex<HashMap<Text, Entry>>);

#[derive(Debug)]
struct Entry {
    /// The log key of its session.
    session: Text,
    cancelled: CancellationToken,
}

/// One cancellable request; dropping it removes the entry.
#[derive(Debug)]
pub(super) struct Cancellable {
    /// Its entry; `None` for a request without a session.
    entry: Option<(Arc<Running>, Text)>,
    cancelled: CancellationToken,
}

// === impl Running ===

impl Running {
    /// Registers a request; `id` is JSON.
    pub(super) fn begin(self: &Arc<Self>, session: Option<&Session>, id: &str) -> Cancellable {
        let cancelled = CancellationToken::new();
        let entry = session.map(|session| {
            let key = session.key_of(id);
            let entry = Entry {
                session: session.key(),
                cancelled: cancelled.clone(),
            };
            self.open().insert(key.clone(), entry);
            (Arc::clone(self), key)
        });
        Cancellable { entry, cancelled }
    }

    /// Cancels a request. Returns whether it is on this replica.
    pub(super) fn cancel(&self, key: &str) -> bool {
        let found = self.open().remove(key);
        found.inspect(|found| found.cancelled.cancel()).is_some()
    }

    /// Cancels all requests of a session.
    fn end(&self, session: &str) {
        let requests = self.open();
        let of_session = requests.values().filter(|it| it.session == session);
        of_session.for_each(|it| it.cancelled.cancel());
    }

    /// Applies the cancels of all replicas, until the log ends.
    pub(super) async fn follow(self: Arc<Self>, results: Arc<Results>) {
        let mut following = results.follow_all();
        loop {
            match following.next().await {
                Ok(Some(record)) if record.key.starts_with(KEY) => self.end(&record.key),
                Ok(Some(record)) => drop(self.cancel(&record.key)),
                Ok(None) => return,
                Err(Lagged) => {
                    tracing::warn!(
                        "cancels that MCP clients sent to other replicas may be lost: the log was read too slowly"
                    );
                    following = results.follow_all();
                }
            }
        }
    }

    // Ignores poisoning: each change leaves the map consistent.
    fn open(&self) -> MutexGuard<'_, HashMap<Text, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Cancellable ===

impl Cancellable {
    /// The token that is cancelled when the client cancels the request.
    pub(super) fn token(&self) -> &CancellationToken {
        &self.cancelled
    }
}

impl Drop for Cancellable {
    fn drop(&mut self) {
        if let Some((running, key)) = self.entry.take() {
            running.open().remove(&key);
        }
    }
}
