//! The log that the configuration chose: an enum, so that a view needs no type parameter for it.

use bytes::Bytes;

use super::log::{Bounds, Cursor, Log, LogSpec, Position, Reader, StateError};
use super::memory::MemoryLog;

/// The log that the configuration chose.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum AnyLog {
    /// In the memory of this process.
    Memory(MemoryLog),
}

// === impl AnyLog ===

impl From<MemoryLog> for AnyLog {
    fn from(log: MemoryLog) -> Self {
        Self::Memory(log)
    }
}

impl Log for AnyLog {
    fn spec(&self) -> &LogSpec {
        match self {
            Self::Memory(log) => log.spec(),
        }
    }

    async fn append(&self, key: &str, body: Option<Bytes>) -> Result<Position, StateError> {
        match self {
            Self::Memory(log) => log.append(key, body).await,
        }
    }

    async fn read(&self, from: Cursor) -> Result<Reader, StateError> {
        match self {
            Self::Memory(log) => log.read(from).await,
        }
    }

    async fn bounds(&self) -> Result<Bounds, StateError> {
        match self {
            Self::Memory(log) => log.bounds().await,
        }
    }
}
