//! What is known about each topic that is written to.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::message::Topic;

/// At most this many idle topics are remembered, in addition to those with traffic.
const MAX_TOPICS: usize = 10_000;

/// One value for each topic, forgotten when nothing refers to it and there are many topics.
#[derive(Debug)]
pub(super) struct PerTopic<T>(RwLock<HashMap<Topic, Arc<T>>>);

// === impl PerTopic ===

impl<T> Default for PerTopic<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<T: Default> PerTopic<T> {
    /// The value of a topic. Messages in flight keep it, so that it is not forgotten.
    pub(super) fn get(&self, topic: &Topic) -> Arc<T> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = known.get(topic) {
            return Arc::clone(value);
        }
        drop(known);
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_TOPICS {
            known.retain(|_, value| Arc::strong_count(value) > 1);
        }
        Arc::clone(known.entry(topic.clone()).or_default())
    }

    /// The values of all topics.
    pub(super) fn all(&self) -> Vec<Arc<T>> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.values().cloned().collect()
    }
}
