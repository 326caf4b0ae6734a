//! Followers of a view, which receive the records that it applies.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use a2abus_plugin::Text;
// Not Tokio's: its queue takes memory for 32 records from the start, and there is one for each stream of a task.
use futures_channel::mpsc;
use futures_util::StreamExt as _;

use super::log::Record;

/// The applied records that changed something, in order, from the start of the subscription on. Dropping it
/// unsubscribes.
#[derive(Debug)]
pub struct Following {
    records: mpsc::Receiver<Record>,
    has_lagged: Arc<AtomicBool>,
}

/// A follower was too slow and has missed records. To recover, read the current state and follow again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the follower was too slow and has missed records")]
pub struct Lagged;

/// All followers of one view.
#[derive(Debug, Default)]
pub(super) struct Followers {
    of_key: HashMap<Text, Vec<Follower>>,
    of_all: Vec<Follower>,
}

#[derive(Debug)]
struct Follower {
    records: mpsc::Sender<Record>,
    has_lagged: Arc<AtomicBool>,
}

// === impl Following ===

impl Following {
    /// The next record; `None` once the view is closed. Cancel-safe.
    ///
    /// # Errors
    /// [`Lagged`] in place of the first missed record.
    pub async fn next(&mut self) -> Result<Option<Record>, Lagged> {
        match self.records.next().await {
            None if self.has_lagged.load(Ordering::Acquire) => Err(Lagged),
            next => Ok(next),
        }
    }

    /// The next record, if it is available now.
    pub fn now(&mut self) -> Option<Record> {
        self.records.try_recv().ok()
    }
}

// === impl Followers ===

impl Followers {
    /// Adds a follower of one key, or of all keys, that may lag behind by `capacity` records.
    pub(super) fn add(&mut self, key: Option<&str>, capacity: usize) -> Following {
        // The sender has one more place of its own.
        let (sender, records) = mpsc::channel(capacity.saturating_sub(1));
        let has_lagged = Arc::new(AtomicBool::new(false));
        let follower = Follower {
            records: sender,
            has_lagged: Arc::clone(&has_lagged),
        };
        match key {
            Some(key) => self.of_key.entry(key.into()).or_default().push(follower),
            None => self.of_all.push(follower),
        }
        Following {
            records,
            has_lagged,
        }
    }

    /// Passes a record on. Never waits.
    pub(super) fn publish(&mut self, record: &Record) {
        self.of_all.retain_mut(|follower| follower.take(record));
        if let Some(followers) = self.of_key.get_mut(&record.key) {
            followers.retain_mut(|follower| follower.take(record));
            if followers.is_empty() {
                self.of_key.remove(&record.key);
            }
        }
    }

    /// Makes all followers lag, because they miss what follows.
    pub(super) fn lose(&mut self) {
        let followers = self.of_key.drain().flat_map(|(_, followers)| followers);
        for follower in followers.chain(self.of_all.drain(..)) {
            follower.has_lagged.store(true, Ordering::Release);
        }
    }

    /// Removes followers that are gone.
    pub(super) fn sweep(&mut self) {
        self.of_all.retain(Follower::is_there);
        self.of_key.retain(|_, followers| {
            followers.retain(Follower::is_there);
            !followers.is_empty()
        });
    }
}

// === impl Follower ===

impl Follower {
    /// Passes a record on. Returns whether the follower remains.
    fn take(&mut self, record: &Record) -> bool {
        match self.records.try_send(record.clone()) {
            Ok(()) => true,
            Err(error) => {
                if error.is_full() {
                    self.has_lagged.store(true, Ordering::Release);
                }
                false
            }
        }
    }

    fn is_there(&self) -> bool {
        !self.records.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use super::super::log::Position;
    use super::*;

    fn record(offset: u64) -> Record {
        Record {
            key: "k".into(),
            position: Position::at(offset),
            time: 0,
            body: None,
        }
    }

    #[tokio::test]
    async fn a_follower_that_lags_by_more_than_its_capacity_gets_an_error() {
        let mut followers = Followers::default();
        let mut following = followers.add(Some("k"), 2);
        assert_eq!(following.now(), None);
        for offset in 1..=3 {
            followers.publish(&record(offset));
        }
        assert_eq!(following.next().await, Ok(Some(record(1))));
        assert_eq!(following.now(), Some(record(2)));
        assert_eq!(following.next().await, Err(Lagged));
    }
}
