//! The transport that configuration chose: an enum, so that the hot path has no boxed future.

use std::time::Duration;

use tokio::sync::watch;

use crate::content_mode::Binding;
use crate::error::TransportError;
#[cfg(feature = "kafka")]
use crate::kafka::Kafka;
use crate::memory::Memory;
use crate::message::{Message, Topic};
#[cfg(feature = "nats")]
use crate::nats::Nats;
use crate::transport::{Address, Confirmation, Consumer, Health, Subscription, Transport};

/// One of the transports.
#[derive(Debug, Clone)]
pub enum AnyTransport {
    /// The bus inside the process.
    Memory(Memory),
    /// Apache Kafka.
    #[cfg(feature = "kafka")]
    Kafka(Kafka),
    /// NATS, core and JetStream.
    #[cfg(feature = "nats")]
    Nats(Nats),
}

// === impl AnyTransport ===

impl AnyTransport {
    /// How this transport writes a CloudEvent.
    #[must_use]
    pub fn binding(&self) -> Binding {
        match self {
            Self::Memory(_) => Binding::Memory,
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => Binding::Kafka,
            #[cfg(feature = "nats")]
            Self::Nats(_) => Binding::Nats,
        }
    }

    /// How many messages were received and dropped because nobody took them in time: of core NATS subscriptions only.
    #[must_use]
    pub fn dropped_messages(&self) -> u64 {
        match self {
            Self::Memory(_) => 0,
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => 0,
            #[cfg(feature = "nats")]
            Self::Nats(nats) => nats.dropped_messages(),
        }
    }
}

impl From<Memory> for AnyTransport {
    fn from(memory: Memory) -> Self {
        Self::Memory(memory)
    }
}

#[cfg(feature = "kafka")]
impl From<Kafka> for AnyTransport {
    fn from(kafka: Kafka) -> Self {
        Self::Kafka(kafka)
    }
}

#[cfg(feature = "nats")]
impl From<Nats> for AnyTransport {
    fn from(nats: Nats) -> Self {
        Self::Nats(nats)
    }
}

impl Transport for AnyTransport {
    async fn subscribe(&self, subscription: Subscription) -> Result<Consumer, TransportError> {
        match self {
            Self::Memory(memory) => memory.subscribe(subscription).await,
            #[cfg(feature = "kafka")]
            Self::Kafka(kafka) => kafka.subscribe(subscription).await,
            #[cfg(feature = "nats")]
            Self::Nats(nats) => nats.subscribe(subscription).await,
        }
    }

    async fn send(&self, to: &Address, message: Message) -> Result<Confirmation, TransportError> {
        match self {
            Self::Memory(memory) => memory.send(to, message).await,
            #[cfg(feature = "kafka")]
            Self::Kafka(kafka) => kafka.send(to, message).await,
            #[cfg(feature = "nats")]
            Self::Nats(nats) => nats.send(to, message).await,
        }
    }

    async fn partitions(&self, topic: &Topic) -> Result<u32, TransportError> {
        match self {
            Self::Memory(memory) => memory.partitions(topic).await,
            #[cfg(feature = "kafka")]
            Self::Kafka(kafka) => kafka.partitions(topic).await,
            #[cfg(feature = "nats")]
            Self::Nats(nats) => nats.partitions(topic).await,
        }
    }

    async fn ensure_topic(&self, topic: &Topic, partitions: u32) -> Result<(), TransportError> {
        match self {
            Self::Memory(memory) => memory.ensure_topic(topic, partitions).await,
            #[cfg(feature = "kafka")]
            Self::Kafka(kafka) => kafka.ensure_topic(topic, partitions).await,
            #[cfg(feature = "nats")]
            Self::Nats(nats) => nats.ensure_topic(topic, partitions).await,
        }
    }

    fn health(&self) -> watch::Receiver<Health> {
        match self {
            Self::Memory(memory) => memory.health(),
            #[cfg(feature = "kafka")]
            Self::Kafka(kafka) => kafka.health(),
            #[cfg(feature = "nats")]
            Self::Nats(nats) => nats.health(),
        }
    }

    async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        match self {
            Self::Memory(memory) => memory.close(deadline).await,
            #[cfg(feature = "kafka")]
            Self::Kafka(kafka) => kafka.close(deadline).await,
            #[cfg(feature = "nats")]
            Self::Nats(nats) => nats.close(deadline).await,
        }
    }
}
