//! Reading a topic or a stream as a log: everything it has from a position on, by every reader, and remembered nowhere.

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::message::{Headers, Topic};

/// The topic or stream that is read as a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogSource {
    /// All partitions of a topic of Kafka.
    Topic(Topic),
    /// All subjects of a stream of JetStream, which has one partition.
    Stream(String),
}

/// A place in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition {
    /// The partition; 0 on JetStream.
    pub partition: u32,
    /// The offset, or the sequence of the stream.
    pub offset: u64,
}

/// Where one partition of a log begins and ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogBounds {
    /// The partition; 0 on JetStream.
    pub partition: u32,
    /// The offset of the first record that is still there; where there is none, `end`.
    pub start: u64,
    /// The offset that the next record gets.
    pub end: u64,
}

/// One record of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// Where it is.
    pub position: LogPosition,
    /// When it was written, in milliseconds since 1970: by the clock of its writer on Kafka, unless the topic says
    /// otherwise, and of the server on JetStream.
    pub time: u64,
    /// The topic, or the subject; `None` for a subject that is no legal topic.
    pub topic: Option<Topic>,
    /// The key, on Kafka.
    pub key: Option<Bytes>,
    /// The headers.
    pub headers: Headers,
    /// The body; `None` is Kafka's null, and on NATS an empty payload.
    pub body: Option<Bytes>,
}

/// Records of a log in the order of each partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogBatch {
    /// The records.
    pub records: Vec<LogRecord>,
    /// Partitions of which everything before a position was read, though no record is there: it was compacted away, or
    /// belongs to the broker.
    pub reached: Vec<LogPosition>,
}

/// The reading end of a log. Dropping it ends the reading.
#[derive(Debug)]
pub struct LogReader {
    batches: mpsc::Receiver<LogBatch>,
    _stop: DropGuard,
}

/// Batches that are ready before they are taken, at most.
const READY: usize = 4;
/// Records of one batch, at most.
pub(crate) const BATCH_RECORDS: usize = 512;
/// Bytes after which a batch takes no further record.
pub(crate) const BATCH_BYTES: usize = 1 << 20;

// === impl LogReader ===

impl LogReader {
    /// A reader, what fills it, and what says that it is gone.
    pub(crate) fn new() -> (Self, mpsc::Sender<LogBatch>, CancellationToken) {
        let (sender, batches) = mpsc::channel(READY);
        let stop = CancellationToken::new();
        let reader = Self {
            batches,
            _stop: stop.clone().drop_guard(),
        };
        (reader, sender, stop)
    }

    /// The next records; `None` when the reading has ended, because the transport was closed or because the log is
    /// another one than before, whose positions mean something else. Cancel-safe.
    pub async fn next(&mut self) -> Option<LogBatch> {
        self.batches.recv().await
    }
}

// === impl LogRecord ===

impl LogRecord {
    /// About what it takes in memory.
    pub(crate) fn size_bytes(&self) -> usize {
        let (key, body) = (self.key.as_ref(), self.body.as_ref());
        size_of::<Self>() + key.map_or(0, Bytes::len) + body.map_or(0, Bytes::len)
    }
}
