//! The transport that the configuration chose. It is an enum, so that the hot path needs no boxed future.

use std::borrow::Borrow;
use std::time::Duration;

use tokio::sync::watch;

use crate::content_mode::ProtocolBinding;
use crate::error::{TransportError, TransportErrorKind};
#[cfg(feature = "kafka")]
use crate::kafka::Kafka;
use crate::log::{LogBounds, LogPosition, LogReader, LogSource};
use crate::memory::Memory;
use crate::message::{Message, Topic};
#[cfg(feature = "nats")]
use crate::nats::Nats;
use crate::transport::{Address, Confirmation, Consumer, Health, Subscription, Transport};

/// One of the transports.
#[derive(Debug, Clone)]
pub enum AnyTransport {
    /// The memory transport, inside the process.
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
    pub fn binding(&self) -> ProtocolBinding {
        match self {
            Self::Memory(_) => ProtocolBinding::Memory,
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => ProtocolBinding::Kafka,
            #[cfg(feature = "nats")]
            Self::Nats(_) => ProtocolBinding::Nats,
        }
    }

    /// How many messages were dropped because they were not read in time: on core NATS received ones, in memory those in
    /// topics that nobody reads. Always 0 on Kafka.
    #[must_use]
    pub fn dropped_messages(&self) -> u64 {
        match self {
            Self::Memory(memory) => memory.dropped_messages(),
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => 0,
            #[cfg(feature = "nats")]
            Self::Nats(nats) => nats.dropped_messages(),
        }
    }
}

/// Logs, on the transports that store messages.
impl AnyTransport {
    /// The first and the next position of each partition of a log.
    ///
    /// # Errors
    /// `UnknownTopic` when the log does not exist; `BadConfig` when this transport has no logs of that kind.
    pub async fn log_bounds(&self, source: &LogSource) -> Result<Vec<LogBounds>, TransportError> {
        match (self, source) {
            #[cfg(feature = "kafka")]
            (Self::Kafka(kafka), LogSource::Topic(topic)) => kafka.log_bounds(topic).await,
            #[cfg(feature = "nats")]
            (Self::Nats(nats), LogSource::Stream(stream)) => nats.log_bounds(stream).await,
            _ => Err(no_log(source)),
        }
    }

    /// Reads a log: every partition from the given position, or otherwise from its beginning, and then what is
    /// appended. No position is stored, and other readers get the same records. The connection is restored as long as
    /// it is still the same log.
    ///
    /// # Errors
    /// `UnknownTopic` when the log does not exist; `BadConfig` when this transport has no logs of that kind; or the
    /// failure that kept the reading from starting.
    pub async fn read_log(
        &self,
        source: &LogSource,
        from: &[LogPosition],
    ) -> Result<LogReader, TransportError> {
        match (self, source, from) {
            #[cfg(feature = "kafka")]
            (Self::Kafka(kafka), LogSource::Topic(topic), from) => {
                kafka.read_log(topic, from).await
            }
            #[cfg(feature = "nats")]
            (Self::Nats(nats), LogSource::Stream(stream), from) => {
                nats.read_log(stream, from).await
            }
            _ => Err(no_log(source)),
        }
    }

    /// Deletes records of a log, if this user may, and the log keeps one record of each key. Returns whether both hold.
    /// A record that is gone is no error.
    ///
    /// # Errors
    /// `BadConfig` when this transport has no such logs, or the failure that kept a record from being deleted.
    pub async fn delete_records(
        &self,
        source: &LogSource,
        records: &[LogPosition],
    ) -> Result<bool, TransportError> {
        match (self, source, records) {
            #[cfg(feature = "nats")]
            (Self::Nats(nats), LogSource::Stream(stream), records) => {
                nats.delete_records(stream, records).await
            }
            _ => Err(no_log(source)),
        }
    }
}

fn no_log(source: &LogSource) -> TransportError {
    let what = match source {
        LogSource::Topic(topic) => format!("read {topic} as a log: this is not Kafka"),
        LogSource::Stream(stream) => format!("read {stream} as a log: this is not JetStream"),
    };
    TransportError::new(TransportErrorKind::BadConfig, what)
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

    async fn send(
        &self,
        to: &Address,
        message: impl Borrow<Message> + Send,
    ) -> Result<Confirmation, TransportError> {
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
