//! The requests that are being answered, so that a cancel finds them, whichever replica it comes to.
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

/// The requests of all sessions that are being answered here, by their key on the log.
#[derive(Debug, Default)]
pub(super) struct Running(Mutex<HashMap<Text, Entry>>);

#[derive(Debug)]
struct Entry {
    /// The key of its session.
    session: Text,
    cancelled: CancellationToken,
}

/// One request, until it is dropped.
#[derive(Debug)]
pub(super) struct Cancellable {
    /// Where it can be found; `None` for a request outside any session.
    place: Option<(Arc<Running>, Text)>,
    cancelled: CancellationToken,
}

// === impl Running ===

impl Running {
    /// A request that begins; `id` is a JSON token.
    pub(super) fn begin(self: &Arc<Self>, session: Option<&Session>, id: &str) -> Cancellable {
        let cancelled = CancellationToken::new();
        let place = session.map(|session| {
            let key = session.key_of(id);
            let entry = Entry {
                session: session.key(),
                cancelled: cancelled.clone(),
            };
            self.open().insert(key.clone(), entry);
            (Arc::clone(self), key)
        });
        Cancellable { place, cancelled }
    }

    /// Cancels a request; whether it is here.
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

    /// Cancels what is cancelled at any replica, until the log ends.
    pub(super) async fn follow(self: Arc<Self>, results: Arc<Results>) {
        let mut following = results.follow_all();
        loop {
            match following.next().await {
                Ok(Some(record)) if record.key.starts_with(KEY) => self.end(&record.key),
                Ok(Some(record)) => drop(self.cancel(&record.key)),
                Ok(None) => return,
                Err(Lagged) => {
                    tracing::warn!(
                        "cancels of MCP clients at other replicas may be lost: their log was read too slowly"
                    );
                    following = results.follow_all();
                }
            }
        }
    }

    // Every change leaves it whole, so that a lock poisoned by a panic elsewhere is as good as any.
    fn open(&self) -> MutexGuard<'_, HashMap<Text, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Cancellable ===

impl Cancellable {
    /// Cancelled once its client says so.
    pub(super) fn token(&self) -> &CancellationToken {
        &self.cancelled
    }
}

impl Drop for Cancellable {
    fn drop(&mut self) {
        if let Some((running, key)) = self.place.take() {
            running.open().remove(&key);
        }
    }
}
