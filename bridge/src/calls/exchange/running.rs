//! The requests on the bus that are being answered, and those that were, by where they were read.
//!
//! A request that its source delivers again is answered once: while the first one waits for its answer, the second waits
//! with it; once it is answered, the second is done at once. Only if nobody may answer the first one any more is the
//! second a new request. Each decision is one step under the lock of the position.

use std::sync::PoisonError;

use a2abus_plugin::Text;

use super::sync::{DashMap, Entry, Mutex, MutexGuard};
use crate::recent::Recent;

/// The requests that are being answered or were lately; `S` is a share of the message that a request was read in.
#[derive(Debug)]
pub(super) struct Running<S> {
    /// The shares of those that came again.
    running: DashMap<Text, Vec<S>>,
    answered: Mutex<Recent<Text>>,
}

/// The state of a request that was read.
#[derive(Debug)]
pub(super) enum EntryState<S> {
    /// It is a new one.
    New(S),
    /// It waits for the answer to the first one.
    Waits,
    /// It was answered.
    Answered(S),
}

/// The most requests that are remembered once they are answered.
const MAX_RECENT: usize = 65_536;

impl<S> Default for Running<S> {
    fn default() -> Self {
        Self {
            running: DashMap::new(),
            answered: Mutex::new(Recent::new(MAX_RECENT)),
        }
    }
}

// === impl Running ===

impl<S> Running<S> {
    /// Enters the request that was read at this position.
    pub(super) fn enter(&self, position: &Text, share: S) -> EntryState<S> {
        match self.running.entry(position.clone()) {
            Entry::Occupied(mut entry) => {
                entry.get_mut().push(share);
                EntryState::Waits
            }
            // What is answered is put there before it is taken out here.
            Entry::Vacant(_) if self.answered().contains(position) => EntryState::Answered(share),
            Entry::Vacant(entry) => {
                entry.insert(Vec::new());
                EntryState::New(share)
            }
        }
    }

    /// What `begin` gives for the first share of those that came again which gives anything. If none does, the request
    /// is left: one that comes again is either found here or is a new request.
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

    /// The request is answered. Gives back the shares of those that came again.
    pub(super) fn finish(&self, position: &Text) -> Vec<S> {
        self.answered().insert(position.clone(), ());
        let waiting = self.running.remove(position);
        waiting.map(|(_, shares)| shares).unwrap_or_default()
    }

    /// The request is left to its source, which delivers it again.
    pub(super) fn leave(&self, position: &Text) {
        drop(self.running.remove(position));
    }

    fn answered(&self) -> MutexGuard<'_, Recent<Text>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
