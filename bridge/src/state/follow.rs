//! Followers of a view, which receive the records that it applies.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use a2abus_plugin::Text;
use tokio::sync::mpsc;

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
        match self.records.recv().await {
            None if self.has_lagged.load(Ordering::Acquire) => Err(Lagged),
            next => Ok(next),
        }
    }

    /// The next record, if it is available now. Unlike one poll of [`Following::next`], it does not depend on the
    /// task's cooperative budget.
    pub fn now(&mut self) -> Option<Record> {
        self.records.try_recv().ok()
    }
}

// === impl Followers ===

impl Followers {
    /// Adds a follower of one key, or of all keys, that may lag behind by `capacity` records.
    pub(super) fn add(&mut self, key: Option<&str>, capacity: usize) -> Following {
        let (sender, records) = mpsc::channel(capacity.max(1));
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
        self.of_all.retain(|follower| follower.take(record));
        if let Some(followers) = self.of_key.get_mut(&record.key) {
            followers.retain(|follower| follower.take(record));
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
    fn take(&self, record: &Record) -> bool {
        match self.records.try_send(record.clone()) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.has_lagged.store(true, Ordering::Release);
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
    use futures_util::FutureExt as _;
    use tokio::task::coop;

    use super::super::log::Position;
    use super::*;

    #[tokio::test]
    async fn what_is_there_is_seen_by_a_task_that_has_done_much() {
        let mut followers = Followers::default();
        let mut following = followers.add(None, 2);
        assert_eq!(following.now(), None);
        let record = Record {
            key: "k".into(),
            position: Position {
                partition: 0,
                offset: 1,
            },
            time: 0,
            body: None,
        };
        followers.publish(&record);
        while coop::has_budget_remaining() {
            coop::consume_budget().await;
        }
        assert_eq!(
            following.next().now_or_never(),
            None,
            "it would have to yield"
        );
        assert_eq!(following.now(), Some(record));
    }
}
