//! Which reply subjects of NATS a JetStream stream stores.
//!
//! Nothing in a request shows whether its requester reads the answer from a stream. While such a stream has no leader,
//! an answer that is published without asking for a confirmation is lost.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use a2abus_transports::{AnyTransport, Topic};
use tokio::time::{Instant, timeout};

use crate::bus::{Bus, BusId};

/// The subjects that were looked up.
#[derive(Debug, Default)]
pub(super) struct Storage(Mutex<HashMap<(BusId, Topic), (bool, Instant)>>);

/// Maximum number of subjects that are remembered. Beyond it, all are looked up again.
const MAX_KNOWN: usize = 1_024;
/// How long it is remembered that no stream stores a subject.
const ABSENT: Duration = Duration::from_secs(60);
/// How long JetStream may take to answer.
const LOOKUP: Duration = Duration::from_secs(2);

// === impl Storage ===

impl Storage {
    /// Whether a stream stores this reply address. Not if JetStream cannot tell: an account may have none.
    pub(super) async fn stores(&self, id: BusId, bus: &Bus, topic: &Topic) -> bool {
        // An inbox belongs to a requester that is connected.
        if topic.as_str().starts_with('_') {
            return false;
        }
        let key = (id, topic.clone());
        if let Some(known) = self.known(&key) {
            return known;
        }
        let found = match &bus.transport {
            #[cfg(feature = "nats")]
            AnyTransport::Nats(nats) => timeout(LOOKUP, nats.stream_of(topic.as_str())).await,
            _ => return false,
        };
        let is_stored = match found {
            Ok(Ok(stream)) => stream.is_some(),
            Ok(Err(error)) => {
                tracing::debug!(%topic, %error, "cannot tell whether a stream stores the answers");
                false
            }
            Err(_) => {
                tracing::debug!(%topic, "cannot tell whether a stream stores the answers: JetStream does not respond");
                false
            }
        };
        self.note(key, is_stored);
        is_stored
    }

    fn known(&self, key: &(BusId, Topic)) -> Option<bool> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (is_stored, at) = known.get(key)?;
        (*is_stored || at.elapsed() < ABSENT).then_some(*is_stored)
    }

    fn note(&self, key: (BusId, Topic), is_stored: bool) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(key, (is_stored, Instant::now()));
    }
}
