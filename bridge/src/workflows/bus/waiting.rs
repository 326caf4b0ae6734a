//! Waiting and running requests, which a cancel can end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;

use super::ask::{Cancel, Job};
use crate::lock::lock;

/// The waiting and running requests, by the names that a cancel may use.
#[derive(Debug, Default)]
pub(super) struct CancellableRequests(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    next: u64,
    by_name: HashMap<Cancel, Vec<(u64, CancellationToken)>>,
}

/// The entry of one request in [`CancellableRequests`]; dropping it removes the request.
#[derive(Debug)]
pub(super) struct Entry {
    entries: Arc<Mutex<Entries>>,
    number: u64,
    names: Vec<Cancel>,
    cancel: CancellationToken,
}

/// The signals that end a request early.
#[derive(Debug, Clone, Copy)]
pub(super) struct StopSignals<'a> {
    /// The requester has cancelled it.
    pub(super) cancel: &'a CancellationToken,
    /// The bridge stops; requests that have not started are abandoned.
    pub(super) stop: &'a CancellationToken,
    /// Whether the bus delivers an abandoned request again.
    pub(super) is_redeliverable: bool,
}

// === impl CancellableRequests ===

impl CancellableRequests {
    /// Adds a request under all its names.
    pub(super) fn enter(&self, job: &Job) -> Entry {
        let cancel = CancellationToken::new();
        let mut names: Vec<Cancel> = Vec::new();
        for name in job.names() {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let mut entries = lock(&self.0);
        let number = entries.next;
        entries.next += 1;
        for name in &names {
            let same = entries.by_name.entry(name.clone()).or_default();
            same.push((number, cancel.clone()));
        }
        Entry {
            entries: Arc::clone(&self.0),
            number,
            names,
            cancel,
        }
    }

    /// Cancels the requests with this name. Returns whether there were any.
    pub(super) fn cancel(&self, cancel: &Cancel) -> bool {
        let entries = lock(&self.0);
        let found = entries.by_name.get(cancel);
        found
            .inspect(|found| found.iter().for_each(|(_, token)| token.cancel()))
            .is_some()
    }
}

// === impl Entry ===

impl std::ops::Deref for Entry {
    type Target = CancellationToken;

    fn deref(&self) -> &CancellationToken {
        &self.cancel
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut entries = lock(&self.entries);
        for name in &self.names {
            if let Some(same) = entries.by_name.get_mut(name) {
                same.retain(|(number, _)| *number != self.number);
                if same.is_empty() {
                    entries.by_name.remove(name);
                }
            }
        }
    }
}
