//! A bus inside the process, with the whole contract of a transport and without a server: for the demo, the quick start
//! and fast tests.
//!
//! ```text
//! Memory --send--> Store [ topic [ lane: entries + one cursor per group ] ] --dispatch--> Consumer
//!                    ^                                                                      |
//!                    +---------------------------- settle ----------------------------------+
//! ```
//!
//! A topic has a fixed number of lanes (partitions); the key chooses the lane. Each group has one cursor per lane, and
//! at any time one member of the group holds a lane, so that order survives joins, leaves and crashes. A message is
//! forgotten once every group has settled it. A topic without groups keeps its messages, so publishing before
//! subscribing works; only of topics that none but live readers match, such as reply subjects, the last 64 are kept once
//! they have been read. A full topic makes [`Transport::send`] wait. Nothing is ever dropped to make room, except in
//! topics that nobody reads or has asked for by name: when there are too many topics, or when those together hold more
//! than one topic may, the oldest of them are dropped, logged and counted.

use std::borrow::Borrow;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::{TransportError, TransportErrorKind};
use crate::message::{Message, Topic};
use crate::transport::{
    Address, Confirmation, Consumer, Health, QUEUE_DEADLINE, Subscription, TopicFilter, Transport,
};

mod config;
mod faults;
mod lane;
mod store;
mod subscription;

pub use config::MemoryConfig;
pub use faults::FaultPlan;

use faults::Faults;
use store::{SendResult, Store};

/// A connection to a bus in memory. Clones share the connection; [`Memory::connect`] opens another one to the same bus.
#[derive(Clone)]
pub struct Memory {
    store: Arc<Store>,
    closed: CancellationToken,
}

// === impl Memory ===

impl Memory {
    /// A new, empty bus and the first connection to it.
    #[must_use]
    pub fn new(config: MemoryConfig) -> Self {
        Self::with_store(Store::new(config, Faults::none()))
    }

    /// A new bus that fails as the plan says, in the same way for the same seed and the same order of calls.
    #[must_use]
    pub fn with_faults(seed: u64, plan: FaultPlan) -> Self {
        Self::with_store(Store::new(
            MemoryConfig::default(),
            Faults::seeded(seed, plan),
        ))
    }

    /// As [`Memory::with_faults`], with bounds.
    #[must_use]
    pub fn with_config_and_faults(config: MemoryConfig, seed: u64, plan: FaultPlan) -> Self {
        Self::with_store(Store::new(config, Faults::seeded(seed, plan)))
    }

    fn with_store(store: Arc<Store>) -> Self {
        Self {
            store,
            closed: CancellationToken::new(),
        }
    }

    /// Another connection to the same bus, which is closed separately: for a second replica, or an agent.
    #[must_use]
    pub fn connect(&self) -> Self {
        Self::with_store(Arc::clone(&self.store))
    }

    /// Makes the bus unreachable for all connections: sends and subscriptions fail with `Disconnected`, nothing is
    /// delivered, and deliveries settled meanwhile are delivered again afterwards.
    pub fn set_down(&self, cause: impl Into<Text>) {
        self.store.set_down(cause.into());
    }

    /// Makes the bus reachable again.
    pub fn set_up(&self) {
        self.store.set_up();
    }

    /// Makes topics refuse what is sent to them with an error of this kind, for all connections; `None` lets them take
    /// it again.
    pub fn set_refused(&self, topics: TopicFilter, kind: Option<TransportErrorKind>) {
        self.store.set_refused(topics, kind);
    }

    /// How many messages were dropped in topics that nobody read, because others needed the room.
    #[must_use]
    pub fn dropped_messages(&self) -> u64 {
        self.store.dropped()
    }

    fn check_open(&self) -> Result<(), TransportError> {
        if self.closed.is_cancelled() {
            return Err(closed());
        }
        Ok(())
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(MemoryConfig::default())
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("closed", &self.closed.is_cancelled())
            .finish_non_exhaustive()
    }
}

impl Transport for Memory {
    async fn subscribe(&self, subscription: Subscription) -> Result<Consumer, TransportError> {
        self.check_open()?;
        subscription::open(&self.store, &self.closed, subscription)
    }

    async fn send(
        &self,
        to: &Address,
        message: impl Borrow<Message> + Send,
    ) -> Result<Confirmation, TransportError> {
        self.check_open()?;
        // A send that finds room at once neither registers nor reads the clock.
        let mut message = match self.store.offer(to, message.borrow().clone())? {
            SendResult::Taken(confirmation) => return Ok(confirmation),
            SendResult::Full(message) => message,
        };
        let deadline = Instant::now() + QUEUE_DEADLINE;
        loop {
            self.check_open()?;
            // Registered before the store is asked, so that room made in between is not missed.
            let mut room = pin!(self.store.room());
            room.as_mut().enable();
            message = match self.store.offer(to, message)? {
                SendResult::Taken(confirmation) => return Ok(confirmation),
                SendResult::Full(message) => message,
            };
            tokio::select! {
                () = room => {}
                () = self.closed.cancelled() => return Err(closed()),
                () = tokio::time::sleep_until(deadline) => return Err(TransportError::new(
                    TransportErrorKind::Saturated,
                    format!("wait for room in the memory topic {}", to.topic),
                )),
            }
        }
    }

    async fn partitions(&self, topic: &Topic) -> Result<u32, TransportError> {
        self.check_open()?;
        self.store.partitions(topic)
    }

    /// Creates the topic with that many partitions, unless it is there already.
    async fn ensure_topic(&self, topic: &Topic, partitions: u32) -> Result<(), TransportError> {
        self.check_open()?;
        self.store.ensure_topic(topic, partitions)
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.store.health()
    }

    /// Ends this connection and its subscriptions. Sends are confirmed when they return, so there is nothing to wait
    /// for; what was not settled is delivered to the rest of its group.
    async fn close(&self, _deadline: Duration) -> Result<(), TransportError> {
        self.closed.cancel();
        Ok(())
    }
}

fn closed() -> TransportError {
    TransportError::new(
        TransportErrorKind::Closed,
        "use a closed connection to the memory bus",
    )
}

#[cfg(test)]
mod tests;
