//! The requests on the bus that their requesters may cancel.
//!
//! The requester knows its request by its own id; the agent knows it by the reply id. A cancel therefore ends the call,
//! and the agent gets a cancel with the reply id. If several waiting requests have the same identity, a cancel ends none
//! of them.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex};

use a2abus_plugin::Text;
use a2abus_transports::Topic;
use bytes::Bytes;
use tokio::sync::Notify;

use crate::lock::lock;
use crate::recent::Recent;

/// All requests that may be cancelled.
#[derive(Debug, Clone)]
pub(super) struct Cancellables(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    waiting: HashMap<RequestIdentity, Vec<Waiting>>,
    /// The requests that have ended, with and without their agents. A cancel of one of them must reach nobody: the agent
    /// may work on a request of somebody else that has the same id. Only hashes are stored, because the key of a message
    /// keeps the whole message in memory.
    ended: Recent<u64>,
    hasher: RandomState,
}

/// Maximum number of ended requests that are remembered, two entries for each.
const MAX_ENDED: usize = 2 * 4_096;

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

// === impl State ===

impl State {
    fn note_ended(&mut self, identity: &RequestIdentity, agent: &Text) {
        // A cancel may name no agent.
        for agent in [agent, &Text::default()] {
            let hash = self.hasher.hash_one((identity, agent));
            self.ended.insert(hash, ());
        }
    }

    /// Whether a request for this agent has ended, or for any one if it is empty.
    fn has_ended(&self, identity: &RequestIdentity, agent: &Text) -> bool {
        self.ended
            .contains(&self.hasher.hash_one((identity, agent)))
    }
}

// === impl Cancellables ===

impl Default for Cancellables {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            waiting: HashMap::new(),
            ended: Recent::new(MAX_ENDED),
            hasher: RandomState::new(),
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
        let mut all = lock(&self.0);
        let same = all.waiting.entry(entry.identity.clone()).or_default();
        let cancelled = Arc::clone(&entry.cancelled);
        same.push(Waiting { agent, cancelled });
        drop(all);
        entry
    }

    /// Cancels the request for this agent, or for any one if it is empty.
    pub(super) fn cancel(&self, identity: &RequestIdentity, agent: &Text) -> Cancelled {
        let all = lock(&self.0);
        let same = all.waiting.get(identity).into_iter().flatten();
        let mut same = same.filter(|request| agent.is_empty() || request.agent == *agent);
        match (same.next(), same.next()) {
            (None, _) if all.has_ended(identity, agent) => Cancelled::Late,
            (None, _) => Cancelled::Unknown,
            (Some(only), None) => {
                only.cancelled.notify_one();
                Cancelled::Only
            }
            (Some(_), Some(_)) => Cancelled::Several,
        }
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
        let mut all = lock(&self.all.0);
        let Some(same) = all.waiting.get_mut(&self.identity) else {
            return;
        };
        let is_this = |other: &Waiting| Arc::ptr_eq(&other.cancelled, &self.cancelled);
        let Some(ended) = same.iter().position(is_this).map(|at| same.remove(at)) else {
            return;
        };
        if same.is_empty() {
            all.waiting.remove(&self.identity);
        }
        all.note_ended(&self.identity, &ended.agent);
    }
}
