//! The common parts of all logs: records, cursors, readers and errors.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use a2abus_transports::{Disposition, TransportError, TransportErrorKind};
pub use a2abus_transports::{LogPosition as Position, LogPositionError as PositionError};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::seal::SealError;

/// The longest key of a record, in bytes.
pub const MAX_KEY_BYTES: usize = 512;

/// How long a caller waits until its record is stored and read back.
pub(crate) const ATTENDED: Duration = Duration::from_secs(10);
/// How long to wait for the records of other replicas.
pub(crate) const LATEST: Duration = Duration::from_secs(5);
/// How long a caller waits for the log when its answer is known or its time is up.
pub(crate) const STORED: Duration = Duration::from_secs(2);
/// How long a record may take that no caller waits for: longer than any bus tries to store it.
pub(crate) const UNATTENDED: Duration = Duration::from_secs(17 * 60);
/// A batch of this many bytes accepts no further record. While a batch is applied, nobody can read the view.
pub(super) const BATCH_BYTES: usize = 1 << 20;
/// How many batches a reader prefetches.
const READY_BATCHES: usize = 4;

/// The name of a log, and which records it keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSpec {
    /// One word, such as `tasks`: letters, digits, `-` and `_`.
    pub name: &'static str,
    /// Which records it keeps.
    pub kind: Kind,
}

/// Which records a log keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// All records of the last [`Kind::max_age`]. For records that a fold may refuse, or if the history matters.
    Events {
        /// How long an entry exists after its last change.
        life: Duration,
        /// How long an entry exists after its first record, even if it still changes.
        max_life: Duration,
    },
    /// The last record of each key. Even a record that the fold refuses replaces the previous one, so such a log must
    /// not contain records that can be refused.
    Latest,
}

/// The progress of a reader: the next offset of each partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cursor(Vec<u64>);

/// A record of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its key.
    pub key: Text,
    /// Its position.
    pub position: Position,
    /// When it was appended, in milliseconds since 1970, by the clock of the log or the writer. The time is part of the
    /// record, so all readers see the same time.
    pub time: u64,
    /// What was appended; `None` deletes the key.
    pub body: Option<Bytes>,
}

/// The bounds of a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The position of the first record that it still has.
    pub start: Cursor,
    /// The position after the last record. A reader at this position has read everything.
    pub end: Cursor,
}

/// Records in the order of the log, and the position of the reader after them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// The records.
    pub records: Vec<Record>,
    /// The position of the reader after them. It may skip offsets without a record.
    pub reached: Cursor,
}

/// The records of a log in order, in batches.
#[derive(Debug)]
pub struct Reader {
    batches: mpsc::Receiver<Batch>,
    _task: AbortOnDropHandle<()>,
}

/// Errors of logs and views.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// A key is empty or too long.
    #[error("a key of {0} bytes: keys have 1 to {MAX_KEY_BYTES} bytes")]
    BadKey(usize),
    /// There is no room for another entry, because all entries are still in use.
    #[error("the state {name} is full: it has {bytes} bytes, and state.memory allows {limit}")]
    Full {
        /// The log.
        name: &'static str,
        /// The size of the entries.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A record is larger than the whole log, which is in memory.
    #[error(
        "a record of {bytes} bytes is too large for the state {name}: state.memory allows {limit}"
    )]
    TooLarge {
        /// The log.
        name: &'static str,
        /// The size of the record.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The log has not stored the record in time.
    #[error("the state {name} has not stored a record within {waited:.1?}")]
    NotStored {
        /// The log.
        name: &'static str,
        /// How long the caller waited.
        waited: Duration,
    },
    /// The record was stored, but the view did not apply it in time.
    #[error(
        "the record at {position} of {name} was stored, but this replica is behind: it has not read it back in {waited:?}"
    )]
    NotApplied {
        /// The log.
        name: &'static str,
        /// The record.
        position: Position,
        /// How long the caller waited.
        waited: Duration,
    },
    /// The view does not read its log.
    #[error("the state {name}: {why}")]
    Unread {
        /// The log.
        name: &'static str,
        /// Why.
        why: Arc<str>,
    },
    /// The view has not caught up with the log in time.
    #[error("the state {name} has not caught up with its log in {waited:?}")]
    Behind {
        /// The log.
        name: &'static str,
        /// How long the caller waited.
        waited: Duration,
    },
    /// Another replica has appended a record of the key.
    #[error("another replica changed the state {name} at the same time")]
    Overtaken {
        /// The log.
        name: &'static str,
        /// That record, if it is known.
        last: Option<Position>,
    },
    /// The log or the view was closed, or the log was replaced.
    #[error("the state {0} was closed or replaced")]
    Closed(&'static str),
    /// The file of an embedded log cannot be used.
    #[error("the state {name}: {}: {error}{}", path.display(), cure(error))]
    Disk {
        /// The log.
        name: &'static str,
        /// The file, or its directory.
        path: PathBuf,
        /// What failed. Part of the message, so it is not the source.
        error: Arc<redb::Error>,
    },
    /// A secret cannot be encrypted.
    #[error("a secret cannot be stored in {name}: {error}")]
    NotSealed {
        /// The log.
        name: &'static str,
        /// Why.
        #[source]
        error: SealError,
    },
    /// The bus failed.
    #[error("the state {name}: {error}")]
    Bus {
        /// The log.
        name: &'static str,
        /// What failed.
        #[source]
        error: TransportError,
    },
}

// === impl Kind ===

impl Kind {
    /// How long the log keeps a record; `None` for as long as it is the last one of its key.
    ///
    /// The margin lets a replica that starts now read the first record of every entry that others still have.
    #[must_use]
    pub fn max_age(self) -> Option<Duration> {
        match self {
            Self::Events { max_life, .. } => Some(max_life + max_life / 24),
            Self::Latest => None,
        }
    }
}

/// Whether a file is damaged, or was not written by the database library.
fn is_invalid(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::InvalidData
}

/// What an operator can do about an error of a file.
fn cure(error: &redb::Error) -> &'static str {
    match error {
        redb::Error::DatabaseAlreadyOpen => {
            ": another process uses this file: give each process its own `state.directory`"
        }
        redb::Error::Io(error) if error.kind() == ErrorKind::NotFound => {
            ": create the directory (`state.directory`) before the bridge starts"
        }
        redb::Error::Io(error) if error.kind() == ErrorKind::PermissionDenied => {
            ": let the user of the bridge write to the directory (`state.directory`) and its files"
        }
        redb::Error::Io(error) if !is_invalid(error) => "",
        redb::Error::Io(_) | redb::Error::Corrupted(_) | redb::Error::RepairAborted => {
            ": the file is damaged, or a2abus has not written it: restore it from a backup, or move it away to begin with an empty state"
        }
        _ => "",
    }
}

// === impl StateError ===

impl StateError {
    /// Whether the log has failed, and may work again by itself.
    pub(super) fn is_outage(&self) -> bool {
        use TransportErrorKind::{BadConfig, Closed};
        match self {
            // A client that has failed is replaced.
            Self::Bus { error, .. } => {
                self.is_transient() && !matches!(error.kind(), BadConfig | Closed)
            }
            // The disk may be full for a moment. The file is opened again.
            Self::Disk { error, .. } => match &**error {
                redb::Error::Io(error) => !is_invalid(error),
                redb::Error::PreviousIo | redb::Error::DatabaseAlreadyOpen => true,
                _ => false,
            },
            _ => false,
        }
    }

    /// Whether the error is temporary: a retry of the same record may succeed without any intervention.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::BadKey(_)
            | Self::Full { .. }
            | Self::TooLarge { .. }
            | Self::NotSealed { .. } => false,
            Self::Bus { error, .. } => error.kind().disposition() != Disposition::DeadLetter,
            Self::NotStored { .. }
            | Self::NotApplied { .. }
            | Self::Unread { .. }
            | Self::Behind { .. }
            | Self::Overtaken { .. }
            | Self::Closed(_)
            | Self::Disk { .. } => true,
        }
    }

    /// Whether the record may be stored although the append failed.
    #[must_use]
    pub fn is_uncertain(&self) -> bool {
        match self {
            Self::NotStored { .. } | Self::NotApplied { .. } => true,
            Self::Bus { error, .. } => matches!(
                error.kind(),
                TransportErrorKind::TimedOut
                    | TransportErrorKind::Closed
                    | TransportErrorKind::Fatal
            ),
            // Whether the disk stored it is known only when the disk works again.
            Self::Disk { .. } => true,
            Self::BadKey(_)
            | Self::Full { .. }
            | Self::TooLarge { .. }
            | Self::Unread { .. }
            | Self::Behind { .. }
            | Self::Overtaken { .. }
            | Self::NotSealed { .. }
            | Self::Closed(_) => false,
        }
    }
}

// === impl Cursor ===

impl Cursor {
    /// The beginning of every partition.
    #[must_use]
    pub const fn start() -> Self {
        Self(Vec::new())
    }

    /// The next offset of a partition.
    #[must_use]
    pub fn next(&self, partition: u32) -> u64 {
        usize::try_from(partition)
            .ok()
            .and_then(|index| self.0.get(index))
            .copied()
            .unwrap_or(0)
    }

    /// Moves past a position. Never moves back.
    pub fn pass(&mut self, position: Position) {
        self.advance(position.partition, position.offset.saturating_add(1));
    }

    /// Moves to an offset of a partition. Never moves back.
    pub fn advance(&mut self, partition: u32, next: u64) {
        let Ok(index) = usize::try_from(partition) else {
            return;
        };
        if self.0.len() <= index {
            self.0.resize(index + 1, 0);
        }
        self.0[index] = self.0[index].max(next);
    }

    /// Whether the position is behind this cursor.
    #[must_use]
    pub fn has_passed(&self, position: Position) -> bool {
        position.offset < self.next(position.partition)
    }

    /// The partitions, each with its next offset.
    pub fn partitions(&self) -> impl Iterator<Item = (u32, u64)> {
        (0_u32..).zip(self.0.iter().copied())
    }

    /// Moves each partition forward to the other cursor's offset, if that is further.
    pub fn merge(&mut self, other: &Self) {
        for (partition, next) in other.partitions() {
            self.advance(partition, next);
        }
    }

    /// How many offsets are between this cursor and an end. Offsets without a record count, too.
    #[must_use]
    pub fn behind(&self, end: &Self) -> u64 {
        end.partitions()
            .map(|(partition, next)| next.saturating_sub(self.next(partition)))
            .sum()
    }
}

// === impl Record ===

impl Record {
    /// Its approximate size in memory.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        size_of::<Self>() + self.key.len() + self.body.as_ref().map_or(0, Bytes::len)
    }
}

// === impl Reader ===

impl Reader {
    /// A reader that a task fills. Each ends with the other.
    pub(super) fn spawn<F>(read: impl FnOnce(mpsc::Sender<Batch>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, batches) = mpsc::channel(READY_BATCHES);
        Self {
            batches,
            _task: AbortOnDropHandle::new(tokio::spawn(read(sender))),
        }
    }

    /// The next records; `None` once the log is closed. Cancel-safe.
    pub async fn next(&mut self) -> Option<Batch> {
        self.batches.recv().await
    }
}

/// Rejects keys that not every log can store.
pub(super) fn check_key(key: &str) -> Result<(), StateError> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        return Err(StateError::BadKey(key.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_waiting_does_not_fix_are_not_transient() {
        let bus = |kind| StateError::Bus {
            name: "agents",
            error: TransportError::new(kind, "why"),
        };
        let full = StateError::Full {
            name: "agents",
            bytes: 2,
            limit: 1,
        };
        assert!(bus(TransportErrorKind::Disconnected).is_transient());
        assert!(!bus(TransportErrorKind::TooLarge).is_transient());
        assert!(!full.is_transient());
        assert!(!StateError::BadKey(0).is_transient());
    }

    #[test]
    fn a_record_is_appended_again_after_an_outage() {
        use TransportErrorKind::{BadConfig, Closed, Disconnected, Fatal, TimedOut, TooLarge};
        let bus = |kind| StateError::Bus {
            name: "agents",
            error: TransportError::new(kind, "why"),
        };
        for kind in [Disconnected, Fatal, TimedOut] {
            assert!(bus(kind).is_outage(), "{kind:?}");
        }
        for kind in [BadConfig, Closed, TooLarge] {
            assert!(!bus(kind).is_outage(), "{kind:?}");
        }
        use std::io::ErrorKind::{InvalidData, StorageFull};
        let io = |kind: std::io::ErrorKind| redb::Error::Io(kind.into());
        for (error, is_outage) in [
            (io(StorageFull), true),
            (redb::Error::PreviousIo, true),
            (redb::Error::DatabaseAlreadyOpen, true),
            (io(InvalidData), false),
            (redb::Error::Corrupted("why".to_owned()), false),
        ] {
            let disk = StateError::Disk {
                name: "agents",
                path: "agents.redb".into(),
                error: Arc::new(error),
            };
            assert_eq!(disk.is_outage(), is_outage, "{disk}");
        }
    }

    #[test]
    fn a_cursor_only_moves_on() {
        let at = |partition, offset| Position { partition, offset };
        let mut cursor = Cursor::start();
        assert!(!cursor.has_passed(at(0, 0)));
        cursor.pass(at(1, 7));
        cursor.pass(at(1, 3));
        assert_eq!(cursor.next(1), 8);
        assert!(cursor.has_passed(at(1, 7)) && !cursor.has_passed(at(1, 8)));
        let mut end = cursor.clone();
        end.advance(0, 5);
        end.advance(1, 10);
        assert_eq!(cursor.behind(&end), 7);
        assert_eq!(end.behind(&cursor), 0);
    }
}
