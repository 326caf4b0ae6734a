//! The log that the configuration chose: an enum, so that a view needs no type parameter for it.

use bytes::Bytes;

#[cfg(any(feature = "kafka", feature = "nats"))]
use super::bus::BusLog;
use super::embedded::EmbeddedLog;
use super::log::{Bounds, Cursor, Log, LogSpec, Position, Reader, StateError};
use super::memory::MemoryLog;

/// The log that the configuration chose.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum AnyLog {
    /// In memory.
    Memory(MemoryLog),
    /// In a file.
    Embedded(EmbeddedLog),
    #[cfg(any(feature = "kafka", feature = "nats"))]
    /// On Kafka or JetStream.
    Bus(BusLog),
}

// === impl AnyLog ===

impl AnyLog {
    /// Whether the log keeps a record that removes a key for ever, unless it is deleted: JetStream does. Kafka deletes
    /// such records after a day, a file at its next start.
    pub(super) fn keeps_removals(&self) -> bool {
        match self {
            Self::Memory(_) | Self::Embedded(_) => false,
            #[cfg(any(feature = "kafka", feature = "nats"))]
            Self::Bus(log) => log.keeps_removals(),
        }
    }

    /// Deletes such records. Returns whether that is permitted, and brings no earlier record of a key back.
    ///
    /// # Errors
    /// When the log is unavailable.
    pub(super) async fn delete_removals(&self, at: &[Position]) -> Result<bool, StateError> {
        match (self, at) {
            #[cfg(any(feature = "kafka", feature = "nats"))]
            (Self::Bus(log), at) => log.delete_removals(at).await,
            _ => Ok(false),
        }
    }
}

impl From<EmbeddedLog> for AnyLog {
    fn from(log: EmbeddedLog) -> Self {
        Self::Embedded(log)
    }
}

#[cfg(any(feature = "kafka", feature = "nats"))]
impl From<BusLog> for AnyLog {
    fn from(log: BusLog) -> Self {
        Self::Bus(log)
    }
}

impl From<MemoryLog> for AnyLog {
    fn from(log: MemoryLog) -> Self {
        Self::Memory(log)
    }
}

impl Log for AnyLog {
    fn spec(&self) -> &LogSpec {
        match self {
            Self::Memory(log) => log.spec(),
            Self::Embedded(log) => log.spec(),
            #[cfg(any(feature = "kafka", feature = "nats"))]
            Self::Bus(log) => log.spec(),
        }
    }

    async fn append(&self, key: &str, body: Option<Bytes>) -> Result<Position, StateError> {
        let body = body.filter(|body| !body.is_empty());
        match self {
            Self::Memory(log) => log.append(key, body).await,
            Self::Embedded(log) => log.append(key, body).await,
            #[cfg(any(feature = "kafka", feature = "nats"))]
            Self::Bus(log) => log.append(key, body).await,
        }
    }

    async fn append_next(
        &self,
        key: &str,
        body: Option<Bytes>,
        last: Option<Position>,
    ) -> Result<Position, StateError> {
        match (self, last) {
            #[cfg(any(feature = "kafka", feature = "nats"))]
            (Self::Bus(log), last) => log.append_next(key, body, last).await,
            _ => self.append(key, body).await,
        }
    }

    async fn read(&self, from: Cursor) -> Result<Reader, StateError> {
        match self {
            Self::Memory(log) => log.read(from).await,
            Self::Embedded(log) => log.read(from).await,
            #[cfg(any(feature = "kafka", feature = "nats"))]
            Self::Bus(log) => log.read(from).await,
        }
    }

    async fn bounds(&self) -> Result<Bounds, StateError> {
        match self {
            Self::Memory(log) => log.bounds().await,
            Self::Embedded(log) => log.bounds().await,
            #[cfg(any(feature = "kafka", feature = "nats"))]
            Self::Bus(log) => log.bounds().await,
        }
    }
}
