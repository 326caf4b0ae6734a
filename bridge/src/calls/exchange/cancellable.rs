//! The requests on the bus that their requesters may cancel.
//!
//! The requester knows its request by its own id; the agent knows it by the reply id. A cancel therefore ends the call,
//! and the agent gets a cancel with the reply id. If several waiting requests have the same identity, a cancel ends none
//! of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use a2abus_plugin::Text;
use a2abus_transports::Topic;
use bytes::Bytes;
use tokio::sync::Notify;

use crate::recent::Recent;

/// All requests that may be cancelled.
#[derive(Debug, Clone)]
pub(super) struct Cancellables(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    waiting: HashMap<RequestIdentity, Vec<Waiting>>,
    /// The requests that have ended. A cancel of one of them must reach nobody: the agent may work on a request of
    /// somebody else that has the same id.
    ended: Recent<RequestIdentity>,
}

/// Maximum number of ended requests that are remembered.
const MAX_ENDED: usize = 4_096;

/// One request.
#[derive(Debug)]
struct Waiting {
    /// Its agent; empty if it names none.
    agent: Text,
    cancelled: Arc<Notify>,
}

/// What a request and its cancel have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RequestIdentity {
    /// The binding that read it.
    pub(crate) binding: Text,
    /// The topic that it was read from.
    pub(crate) topic: Topic,
    /// The key of its message.
    pub(crate) key: Option<Bytes>,
    /// Its id, as JSON.
    pub(crate) id: Text,
}

/// The entry of one request, until it is dropped.
#[derive(Debug)]
pub(crate) struct Cancellable {
    all: Cancellables,
    identity: RequestIdentity,
    cancelled: Arc<Notify>,
}

/// The result of a cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// No such request is known here.
    Unknown,
    /// The request has ended.
    Late,
    /// It is cancelled.
    Only,
    /// Several requests have this identity.
    Several,
}

// === impl Cancellables ===

impl Default for Cancellables {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            waiting: HashMap::new(),
            ended: Recent::new(MAX_ENDED),
        })))
    }
}

impl Cancellables {
    pub(super) fn enter(&self, identity: RequestIdentity, agent: Text) -> Cancellable {
        let entry = Cancellable {
            all: self.clone(),
            identity,
            cancelled: Arc::default(),
        };
        let mut all = self.all();
        let same = all.waiting.entry(entry.identity.clone()).or_default();
        let cancelled = Arc::clone(&entry.cancelled);
        same.push(Waiting { agent, cancelled });
        drop(all);
        entry
    }

    /// Cancels the request for this agent, or for any one if it is empty.
    pub(super) fn cancel(&self, identity: &RequestIdentity, agent: &Text) -> Cancelled {
        let all = self.all();
        let same = all.waiting.get(identity).into_iter().flatten();
        let mut same = same.filter(|request| agent.is_empty() || request.agent == *agent);
        match (same.next(), same.next()) {
            (None, _) if all.ended.contains(identity) => Cancelled::Late,
            (None, _) => Cancelled::Unknown,
            (Some(only), None) => {
                only.cancelled.notify_one();
                Cancelled::Only
            }
            (Some(_), Some(_)) => Cancelled::Several,
        }
    }

    // Ignores poisoning: each change leaves the map consistent.
    fn all(&self) -> MutexGuard<'_, State> {
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
        if let Some(same) = all.waiting.get_mut(&self.identity) {
            same.retain(|other| !Arc::ptr_eq(&other.cancelled, &self.cancelled));
            if same.is_empty()
                && let Some((identity, _)) = all.waiting.remove_entry(&self.identity)
            {
                all.ended.insert(identity, ());
            }
        }
    }
}
