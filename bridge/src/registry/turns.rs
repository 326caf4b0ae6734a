//! Turns: only one task of this process at a time works for a key.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, Weak};

use crate::lock::lock;

/// The locks of the keys for which tasks work or wait.
#[derive(Debug)]
pub(super) struct Turns<K>(Mutex<HashMap<K, Weak<tokio::sync::Mutex<()>>>>);

// === impl Turns ===

impl<K: Eq + Hash> Turns<K> {
    /// The lock of a key, which all of its tasks share.
    pub(super) fn of(&self, key: K) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = lock(&self.0);
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = turns.entry(key).or_default();
        turn.upgrade().unwrap_or_else(|| {
            let new = Arc::default();
            *turn = Arc::downgrade(&new);
            new
        })
    }
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}
