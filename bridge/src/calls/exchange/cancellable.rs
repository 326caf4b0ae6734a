//! The requests on the bus that their requesters may cancel.
//!
//! A requester knows its request by its own id, its agent by the reply id of the call. So a cancel ends the call, and
//! the agent gets the cancel of that call. Requesters of one binding may use the same id; then none of their requests
//! is cancelled.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use a2abus_plugin::Text;
use tokio::sync::Notify;

/// All requests that may be cancelled.
#[derive(Debug, Clone, Default)]
pub(super) struct Cancellables(Arc<Mutex<ById>>);

/// Requests by their binding and their id as JSON.
type ById = HashMap<(Text, Text), Vec<Arc<Notify>>>;

/// The place of one request, until it is dropped.
#[derive(Debug)]
pub(crate) struct Cancellable {
    all: Cancellables,
    key: (Text, Text),
    cancelled: Arc<Notify>,
}

/// The result of a cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// No request with this id waits here.
    Unknown,
    /// It is cancelled.
    Only,
    /// Several requests have this id.
    Several,
}

// === impl Cancellables ===

impl Cancellables {
    pub(super) fn enter(&self, binding: Text, id: Text) -> Cancellable {
        let entry = Cancellable {
            all: self.clone(),
            key: (binding, id),
            cancelled: Arc::default(),
        };
        let mut all = self.all();
        let same = all.entry(entry.key.clone()).or_default();
        same.push(Arc::clone(&entry.cancelled));
        drop(all);
        entry
    }

    pub(super) fn cancel(&self, binding: &Text, id: Text) -> Cancelled {
        match self.all().get(&(binding.clone(), id)).map(Vec::as_slice) {
            None | Some([]) => Cancelled::Unknown,
            Some([only]) => {
                only.notify_one();
                Cancelled::Only
            }
            Some(_) => Cancelled::Several,
        }
    }

    // Ignores poisoning: each change leaves the map consistent.
    fn all(&self) -> MutexGuard<'_, ById> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Cancellable ===

impl Cancellable {
    /// Waits until the request is cancelled.
    pub(super) async fn cancelled(&self) {
        self.cancelled.notified().await;
    }
}

impl Drop for Cancellable {
    fn drop(&mut self) {
        let mut all = self.all.all();
        if let Some(same) = all.get_mut(&self.key) {
            same.retain(|other| !Arc::ptr_eq(other, &self.cancelled));
            if same.is_empty() {
                all.remove(&self.key);
            }
        }
    }
}
