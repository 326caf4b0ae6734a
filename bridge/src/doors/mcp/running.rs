//! The requests that are being answered, so that `notifications/cancelled` finds them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use a2abus_plugin::Text;
use tokio_util::sync::CancellationToken;

/// The requests of all sessions that are being answered here.
#[derive(Debug, Default)]
pub(super) struct Running(Mutex<HashMap<Key, CancellationToken>>);

/// The session, and the id of the request as its JSON token.
type Key = (Text, Text);

/// One request, until it is dropped.
#[derive(Debug)]
pub(super) struct Cancellable {
    /// Where it can be found; `None` for a request outside any session.
    place: Option<(Arc<Running>, Key)>,
    cancelled: CancellationToken,
}

// === impl Running ===

impl Running {
    /// A request that begins.
    pub(super) fn begin(self: &Arc<Self>, session: Option<&Text>, id: &Text) -> Cancellable {
        let cancelled = CancellationToken::new();
        let place = session.map(|session| {
            let key = (session.clone(), id.clone());
            self.open().insert(key.clone(), cancelled.clone());
            (Arc::clone(self), key)
        });
        Cancellable { place, cancelled }
    }

    /// Cancels a request; whether it is there.
    pub(super) fn cancel(&self, session: &Text, id: &str) -> bool {
        let found = self.open().remove(&(session.clone(), id.into()));
        found.inspect(CancellationToken::cancel).is_some()
    }

    // Every change leaves it whole, so that a lock poisoned by a panic elsewhere is as good as any.
    fn open(&self) -> MutexGuard<'_, HashMap<Key, CancellationToken>> {
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
