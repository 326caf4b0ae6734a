//! Whether a topic exists, and its settings. The bridge asks before the first message, because librdkafka would hold that
//! message for ten seconds before it reports a missing topic.
//!
//! ```text
//! send --known?--> queue
//!        |no, or no longer believed
//!        +--> ask the cluster --there, or no word--> queue
//!                             --missing, forbidden-> the error, at once and for the next second
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::forbidden;
use crate::error::{TransportError, TransportErrorKind};
use crate::message::Topic;

/// How long a missing topic, or a missing answer, is remembered.
const CACHE_TTL: Duration = Duration::from_secs(1);
/// At most this many topics are remembered.
const MAX_KNOWN: usize = 10_000;
/// At most this many questions of senders to the cluster run at a time, because each holds a thread.
const MAX_LOOKUPS: usize = 8;

/// An existing topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicSettings {
    /// How many partitions it has.
    pub partitions: u32,
    /// The replication factor of the partition with the fewest replicas.
    pub replicas: u32,
    /// Its settings by their names in Kafka, defaults included.
    pub settings: BTreeMap<String, String>,
}

/// The known state of the topics that messages are sent to.
#[derive(Debug)]
pub(super) struct Topics {
    known: RwLock<HashMap<Topic, Known>>,
    asking: Arc<Semaphore>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    verdict: Existence,
    /// `None` means forever: until [`Topics::forget`].
    until: Option<Instant>,
}

/// The state of a topic as the cluster reported it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Existence {
    /// It is there.
    Exists {
        /// How many partitions it had.
        partitions: usize,
    },
    /// It is being created, or the cluster did not answer: the client keeps the message and finds out.
    Undetermined,
    /// It does not exist.
    Missing,
    /// The user is not permitted to see it, and thus not to write to it.
    Forbidden,
}

// === impl Topics ===

impl Default for Topics {
    fn default() -> Self {
        Self {
            known: RwLock::default(),
            asking: Arc::new(Semaphore::new(MAX_LOOKUPS)),
        }
    }
}

impl Topics {
    /// The known state of a topic.
    pub(super) fn known(&self, topic: &Topic) -> Option<Existence> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let known = known.get(topic)?;
        let believed = known.until.is_none_or(|until| until > Instant::now());
        believed.then_some(known.verdict)
    }

    /// Remembers the answer of the cluster.
    pub(super) fn note(&self, topic: &Topic, verdict: Existence) {
        let now = Instant::now();
        let until = (!matches!(verdict, Existence::Exists { .. })).then(|| now + CACHE_TTL);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KNOWN {
            known.retain(|_, known| known.until.is_none_or(|until| until > now));
        }
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(topic.clone(), Known { verdict, until });
    }

    /// Asks again before the next message, because the topic was deleted.
    pub(super) fn forget(&self, topic: &str) {
        let Ok(topic) = Topic::new(topic) else { return };
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.remove(&topic);
    }

    /// Whether as many questions as possible run.
    pub(super) fn is_crowded(&self) -> bool {
        self.asking.available_permits() == 0
    }

    /// Permission to ask. The thread that asks holds it.
    pub(super) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.asking).acquire_owned().await.ok()
    }
}

// === impl Existence ===

impl Existence {
    /// The number of partitions of a topic for which a message can be queued, as far as it is known.
    pub(super) fn into_result(self, topic: &Topic) -> Result<usize, TransportError> {
        match self {
            Self::Exists { partitions } => Ok(partitions),
            Self::Undetermined => Ok(1),
            Self::Missing => Err(TransportError::new(
                TransportErrorKind::UnknownTopic,
                format!("send to the topic {topic}, which does not exist"),
            )),
            Self::Forbidden => Err(TransportError::new(
                TransportErrorKind::Unauthorised,
                forbidden(topic.as_str()),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_existence_of_a_topic_is_remembered_until_it_is_forgotten() {
        let (topics, there) = (Topics::default(), Topic::from_static("there"));
        assert_eq!(topics.known(&there), None);
        let exists = Existence::Exists { partitions: 3 };
        topics.note(&there, exists);
        assert_eq!(topics.known(&there), Some(exists));
        topics.forget("there");
        assert_eq!(topics.known(&there), None);
        topics.note(&there, Existence::Missing);
        assert_eq!(topics.known(&there), Some(Existence::Missing));
    }

    #[test]
    fn few_topics_are_remembered() {
        let topics = Topics::default();
        for number in 0..2 * MAX_KNOWN {
            let topic = Topic::new(number.to_string()).unwrap();
            topics.note(&topic, Existence::Missing);
        }
        assert!(topics.known.read().unwrap().len() <= MAX_KNOWN);
    }
}
