//! Reading a topic or a stream as a log: every reader gets all records from a position on, and no position is stored.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tokio::sync::mpsc;
#[cfg(any(feature = "kafka", feature = "nats"))]
use tokio_util::sync::CancellationToken;
use tokio_util::sync::DropGuard;

use crate::message::{Headers, Topic};

/// The topic or stream that is read as a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogSource {
    /// All partitions of a Kafka topic.
    Topic(Topic),
    /// All subjects of a JetStream stream, which has one partition.
    Stream(String),
}

/// The position of a record in its log. As text: `PARTITION-OFFSET`, which is a valid event id.
///
/// All positions of a key are in one partition, in order. Positions of different partitions are not ordered in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition {
    /// The partition; 0 if the log has only one, as on JetStream.
    pub partition: u32,
    /// The offset in the partition, or the sequence of the stream. There may be gaps.
    pub offset: u64,
}

/// A text is not a position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a position like \"0-1042\", got {0:?}")]
pub struct LogPositionError(String);

/// The first and the next position of one partition of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogBounds {
    /// The partition; 0 on JetStream.
    pub partition: u32,
    /// The offset of the first record that still exists; equal to `end` if there is none.
    pub start: u64,
    /// The offset that the next record will get.
    pub end: u64,
}

/// One record of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// Where it is.
    pub position: LogPosition,
    /// When it was written, in milliseconds since 1970: on Kafka by the clock of its writer, unless the topic is
    /// configured otherwise; on JetStream by the clock of the server.
    pub time: u64,
    /// The topic, or the subject; `None` for a subject that is not a legal topic.
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
    /// Partitions that were read up to a position although no record is there: it was compacted away, or belongs to the
    /// broker.
    pub reached: Vec<LogPosition>,
}

/// The reading end of a log. Dropping it ends the reading.
#[derive(Debug)]
pub struct LogReader {
    batches: mpsc::Receiver<LogBatch>,
    ended: EndCause,
    _stop: DropGuard,
}

/// Why the reading has ended. The task that reads sets it before it ends.
pub(crate) type EndCause = Arc<OnceLock<String>>;

/// The body of a record in place of one that the client cannot read: it is not empty, which would delete a key.
const UNREADABLE: &[u8] = b"unreadable";

/// At most this many batches are prepared ahead.
#[cfg(any(feature = "kafka", feature = "nats"))]
const READY: usize = 4;
/// At most this many records per batch.
#[cfg(any(feature = "kafka", feature = "nats"))]
pub(crate) const BATCH_RECORDS: usize = 512;
/// A batch of this many bytes accepts no further record.
#[cfg(any(feature = "kafka", feature = "nats"))]
pub(crate) const BATCH_BYTES: usize = 1 << 20;

// === impl LogRecord ===

impl LogRecord {
    /// A record in place of one that the client cannot read.
    #[cfg(feature = "nats")]
    pub(crate) fn unreadable(position: LogPosition) -> Self {
        Self {
            position,
            time: 0,
            topic: None,
            key: None,
            headers: Headers::new(),
            body: Some(Bytes::from_static(UNREADABLE)),
        }
    }

    /// Whether it is in place of a record that the client cannot read. No other record is without a topic and a time.
    #[must_use]
    pub fn is_unreadable(&self) -> bool {
        self.topic.is_none() && self.time == 0 && self.body.as_deref() == Some(UNREADABLE)
    }

    /// Its approximate size in memory.
    #[cfg(any(feature = "kafka", feature = "nats"))]
    pub(crate) fn size_bytes(&self) -> usize {
        let (key, body) = (self.key.as_ref(), self.body.as_ref());
        size_of::<Self>() + key.map_or(0, Bytes::len) + body.map_or(0, Bytes::len)
    }
}

// === impl LogPosition ===

impl LogPosition {
    /// A position in a log with one partition.
    #[must_use]
    pub const fn at(offset: u64) -> Self {
        Self {
            partition: 0,
            offset,
        }
    }
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.partition, self.offset)
    }
}

impl FromStr for LogPosition {
    type Err = LogPositionError;

    fn from_str(text: &str) -> Result<Self, LogPositionError> {
        let parsed = text.split_once('-').and_then(|(partition, offset)| {
            Some(Self {
                partition: partition.parse().ok()?,
                offset: offset.parse().ok()?,
            })
        });
        // Each position has only one text form, so `+1` and `007` are invalid.
        parsed
            .filter(|position| position.to_string() == text)
            .ok_or_else(|| LogPositionError(text.chars().take(64).collect()))
    }
}

// === impl LogReader ===

impl LogReader {
    /// A reader, the sender that fills it, and the signal that the reader was dropped.
    #[cfg(any(feature = "kafka", feature = "nats"))]
    pub(crate) fn new() -> (Self, mpsc::Sender<LogBatch>, CancellationToken) {
        let (sender, batches) = mpsc::channel(READY);
        let stop = CancellationToken::new();
        let reader = Self {
            batches,
            ended: EndCause::default(),
            _stop: stop.clone().drop_guard(),
        };
        (reader, sender, stop)
    }

    /// The task that reads stores here why it ends.
    #[cfg(any(feature = "kafka", feature = "nats"))]
    pub(crate) fn end_cause(&self) -> EndCause {
        Arc::clone(&self.ended)
    }

    /// Why the reading has ended, if that is known.
    #[must_use]
    pub fn ended_because(&self) -> Option<&str> {
        self.ended.get().map(String::as_str)
    }

    /// The next records; `None` when the reading has ended, because the transport was closed or because the log was
    /// replaced, so that its positions mean something else. Cancel-safe.
    pub async fn next(&mut self) -> Option<LogBatch> {
        self.batches.recv().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_event_ids_and_come_back() {
        let position = LogPosition {
            partition: 3,
            offset: 1042,
        };
        assert_eq!(position.to_string(), "3-1042");
        assert_eq!("3-1042".parse(), Ok(position));
        for text in [
            "",
            "3",
            "-",
            "3-",
            "-1",
            "+3-1",
            "03-1",
            "3-1-1",
            "3-99999999999999999999",
        ] {
            assert!(text.parse::<LogPosition>().is_err(), "{text}");
        }
    }
}
