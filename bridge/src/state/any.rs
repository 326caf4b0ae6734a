//! The contract of all logs: an enum of the logs that the configuration can choose, so that a view needs no type
//! parameter for it.

use bytes::Bytes;

#[cfg(any(feature = "kafka", feature = "nats"))]
use super::bus::BusLog;
use super::embedded::EmbeddedLog;
use super::log::{Bounds, Cursor, LogSpec, Position, Reader, StateError};
use super::memory::MemoryLog;

/// An ordered sequence of records, where the configuration keeps it. Cheap to clone; all clones share it.
///
/// Every reader sees the records of one key in the same order, the order of the log. Records of different keys are
/// ordered only if the log has one partition.
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
    /// Its name and kind.
    #[must_use]
    pub fn spec(&self) -> &LogSpec {
        match self {
            Self::Memory(log) => log.spec(),
            Self::Embedded(log) => log.spec(),
            #[cfg(any(feature = "kafka", feature = "nats"))]
            Self::Bus(log) => log.spec(),
        }
    }

    /// Appends a record, and returns its position once the log stores it. A body of `None` deletes the key in a log of
    /// the kind [`Kind::Latest`]; an empty body is the same.
    ///
    /// # Errors
    /// When the record was not stored. If [`StateError::is_uncertain`], it may be stored nevertheless. Dropping the
    /// future does not undo the append.
    ///
    /// [`Kind::Latest`]: super::Kind::Latest
    pub async fn append(&self, key: &str, body: Option<Bytes>) -> Result<Position, StateError> {
        let body = body.filter(|body| !body.is_empty());
        match self {
            Self::Memory(log) => log.append(key, body).await,
            Self::Embedded(log) => log.append(key, body).await,
            #[cfg(any(feature = "kafka", feature = "nats"))]
            Self::Bus(log) => log.append(key, body).await,
        }
    }

    /// Appends a record if `last` is the position of the latest record of its key (`None`: there is none). Only
    /// JetStream can check that; other logs always append, and their readers see any record in between.
    ///
    /// # Errors
    /// [`StateError::Overtaken`] if it is not; otherwise like [`AnyLog::append`].
    pub async fn append_next(
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

    /// Reads the records from a cursor on, then each new one as it is appended. Skips records that the log no longer
    /// has. The reader retries forever; it ends when it is dropped or the log is closed.
    ///
    /// # Errors
    /// When reading cannot start.
    pub async fn read(&self, from: Cursor) -> Result<Reader, StateError> {
        match self {
            Self::Memory(log) => log.read(from).await,
            Self::Embedded(log) => log.read(from).await,
            #[cfg(any(feature = "kafka", feature = "nats"))]
            Self::Bus(log) => log.read(from).await,
        }
    }

    /// The current bounds of the log.
    ///
    /// # Errors
    /// When the log is unavailable.
    pub async fn bounds(&self) -> Result<Bounds, StateError> {
        match self {
            Self::Memory(log) => log.bounds().await,
            Self::Embedded(log) => log.bounds().await,
            #[cfg(any(feature = "kafka", feature = "nats"))]
            Self::Bus(log) => log.bounds().await,
        }
    }

    /// Whether the log keeps a record that removes a key until [`AnyLog::delete_removals`] deletes it: JetStream does.
    /// Kafka deletes such records itself after a day; a log in a file deletes them at the next start.
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
