//! The requests on the bus that are being answered or were answered recently, by the position where they were read.
//!
//! A redelivered request is answered only once. While the first delivery waits for the answer, the second one waits
//! with it; later, it is done as soon as the first one is settled. Only if this replica may no longer answer the first
//! delivery is the second one a new request. Each decision is one step under the lock of the position.

use std::sync::PoisonError;

use a2abus_plugin::Text;

use super::sync::{DashMap, Entry, Mutex, MutexGuard};
use crate::recent::Recent;

/// The requests that are being answered or were answered recently. `S` is a share of the message of a request, and `F`
/// the message that was answered.
#[derive(Debug)]
pub(super) struct Running<S, F> {
    /// The shares of redelivered requests.
    running: DashMap<Text, Vec<S>>,
    answered: Mutex<Recent<Text, F>>,
}

/// The state of a request that was read.
#[derive(Debug)]
pub(super) enum EntryState<S, F> {
    /// It is new.
    New(S),
    /// It waits for the answer to the first one.
    Waits,
    /// It was answered, in this message.
    Answered(S, F),
}

/// Maximum number of answered requests that are remembered.
const MAX_RECENT: usize = 65_536;

impl<S, F> Default for Running<S, F> {
    fn default() -> Self {
        Self {
            running: DashMap::new(),
            answered: Mutex::new(Recent::new(MAX_RECENT)),
        }
    }
}

// === impl Running ===

impl<S, F: Clone> Running<S, F> {
    /// Enters the request that was read at this position. An answered one counts as new if its message `is_abandoned`.
    pub(super) fn enter(
        &self,
        position: &Text,
        share: S,
        is_abandoned: impl Fn(&F) -> bool,
    ) -> EntryState<S, F> {
        match self.running.entry(position.clone()) {
            Entry::Occupied(mut entry) => {
                entry.get_mut().push(share);
                EntryState::Waits
            }
            Entry::Vacant(entry) => {
                // `finish` adds a request there before it removes it here.
                let answered = self.answered().get(position).cloned();
                match answered.filter(|first| !is_abandoned(first)) {
                    Some(first) => EntryState::Answered(share, first),
                    None => {
                        entry.insert(Vec::new());
                        EntryState::New(share)
                    }
                }
            }
        }
    }

    /// The first result that `begin` returns for the redelivered shares. If there is none, removes the request, so that
    /// a later redelivery is a new request.
    pub(super) fn begin_again<P>(
        &self,
        position: &Text,
        begin: impl Fn(&S) -> Option<P>,
    ) -> Option<P> {
        let Entry::Occupied(again) = self.running.entry(position.clone()) else {
            return None;
        };
        let begun = again.get().iter().find_map(begin);
        if begun.is_none() {
            drop(again.remove());
        }
        begun
    }

    /// Records that the request is answered, in this message. Returns the shares of its redeliveries.
    pub(super) fn finish(&self, position: &Text, first: F) -> Vec<S> {
        self.answered().insert(position.clone(), first);
        let waiting = self.running.remove(position);
        waiting.map(|(_, shares)| shares).unwrap_or_default()
    }

    /// Removes the request, which its source delivers again.
    pub(super) fn leave(&self, position: &Text) {
        drop(self.running.remove(position));
    }

    fn answered(&self) -> MutexGuard<'_, Recent<Text, F>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
