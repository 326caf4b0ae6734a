//! A log on the bus: a topic of Kafka, or a stream of JetStream. Any number of replicas share it.

use std::fmt::Write as _;
use std::sync::Arc;

use a2abus_plugin::Text;
use a2abus_transports::{
    Address, AnyTransport, Guarantee, LogBatch, LogBounds, LogRecord, LogSource, Message, Topic,
    Transport as _, TransportError, TransportErrorKind,
};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::location::LogLocation;
use super::log::{
    Batch, Bounds, Cursor, Kind, LogSpec, Position, Reader, Record, StateError, check_key,
};
use crate::names::{escape, unescape};
use crate::topics::{Requirement, on_bus};

/// A log on a bus. Its topic or stream must exist.
#[derive(Debug, Clone)]
pub struct BusLog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    spec: LogSpec,
    transport: AnyTransport,
    place: LogLocation,
    /// How it is created if it is missing.
    missing: Option<Requirement>,
}

/// The header with the key, if the subject contains only its hash.
const KEY_HEADER: &str = "a2abus-key";
/// The longest subject word for a key. It leaves room for the prefix in the longest topic.
const MAX_TOKEN_CHARS: usize = 160;

// === impl BusLog ===

impl BusLog {
    /// A log at a location on a bus.
    #[must_use]
    pub fn new(spec: LogSpec, transport: AnyTransport, place: LogLocation) -> Self {
        Self(Arc::new(Shared {
            spec,
            transport,
            place,
            missing: None,
        }))
    }

    /// The same, created when it is missing.
    pub(super) fn or_create(
        spec: LogSpec,
        transport: AnyTransport,
        place: LogLocation,
        missing: Requirement,
    ) -> Self {
        Self(Arc::new(Shared {
            spec,
            transport,
            place,
            missing: Some(missing),
        }))
    }

    /// The bounds of the log. Creates the log if it is missing and that is configured.
    async fn look(&self) -> Result<Vec<LogBounds>, TransportError> {
        let shared = &*self.0;
        let source = shared.place.source();
        match (shared.transport.log_bounds(&source).await, &shared.missing) {
            (Err(error), Some(missing)) if error.kind() == TransportErrorKind::UnknownTopic => {
                let created = on_bus::create(&shared.transport, missing).await;
                if created.is_ok() {
                    tracing::info!(state = shared.spec.name, log = %shared.place, "created a log of the state");
                }
                // Another replica may have created it by now, with another number of replicas.
                let looked = shared.transport.log_bounds(&source).await;
                looked.map_err(|error| created.err().unwrap_or(error))
            }
            (looked, _) => looked,
        }
    }

    /// See [`super::any::AnyLog::keeps_removals`].
    pub(super) fn keeps_removals(&self) -> bool {
        let shared = &*self.0;
        shared.spec.kind == Kind::Latest && matches!(shared.place, LogLocation::Stream { .. })
    }

    /// See [`super::any::AnyLog::delete_removals`].
    pub(super) async fn delete_removals(&self, at: &[Position]) -> Result<bool, StateError> {
        let source = self.0.place.source();
        let deleted = self.0.transport.delete_records(&source, at).await;
        deleted.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: TransportError) -> StateError {
        let name = self.0.spec.name;
        if error.kind() == TransportErrorKind::Overtaken {
            let last = error.last_sequence().map(Position::at);
            return StateError::Overtaken { name, last };
        }
        StateError::Bus { name, error }
    }

    async fn send(&self, to: &Address, message: Message) -> Result<Position, StateError> {
        let sent = self.0.transport.send(to, message).await;
        let confirmation = sent.map_err(|error| self.failed(error))?;
        let receipt = confirmation.await.map_err(|error| self.failed(error))?;
        let unknown = || {
            let what = "append a record: the bus did not return its position";
            self.failed(TransportError::new(TransportErrorKind::TimedOut, what))
        };
        let origin = receipt.position.as_ref().ok_or_else(unknown)?;
        self.check_stream(origin)
            .map_err(|error| self.failed(error))?;
        receipt.log_position().ok_or_else(unknown)
    }

    /// Checks that the stream that stored a record is the one that is read.
    fn check_stream(&self, origin: &str) -> Result<(), TransportError> {
        let LogLocation::Stream { name, .. } = &self.0.place else {
            return Ok(());
        };
        let stored = origin
            .strip_prefix("j:")
            .and_then(|origin| origin.rsplit_once('/'));
        match stored {
            Some((stream, _)) if stream == name => Ok(()),
            _ => Err(TransportError::new(
                TransportErrorKind::BadConfig,
                format!("append to the stream {name}: {origin} is another one"),
            )),
        }
    }

    pub(super) fn spec(&self) -> &LogSpec {
        &self.0.spec
    }

    pub(super) async fn append(
        &self,
        key: &str,
        body: Option<Bytes>,
    ) -> Result<Position, StateError> {
        check_key(key)?;
        let message = self.0.place.message(key, body);
        let (to, message) = message.map_err(|error| self.failed(error))?;
        self.send(&to, message).await
    }

    pub(super) async fn append_next(
        &self,
        key: &str,
        body: Option<Bytes>,
        last: Option<Position>,
    ) -> Result<Position, StateError> {
        check_key(key)?;
        let message = self.0.place.message(key, body);
        let (mut to, message) = message.map_err(|error| self.failed(error))?;
        if let LogLocation::Stream { .. } = &self.0.place {
            let after = last.map_or(0, |last| last.offset);
            to.guarantee = Guarantee::StoredNext { after };
        }
        self.send(&to, message).await
    }

    pub(super) async fn read(&self, from: Cursor) -> Result<Reader, StateError> {
        let partitions = from.partitions();
        let from: Vec<Position> = partitions
            .map(|(partition, offset)| Position { partition, offset })
            .collect();
        let source = self.0.place.source();
        let reader = self.0.transport.read_log(&source, &from).await;
        let mut reader = reader.map_err(|error| self.failed(error))?;
        let place = self.0.place.clone();
        Ok(Reader::spawn(|batches| async move {
            while let Some(batch) = reader.next().await {
                if batches.send(place.batch(batch)).await.is_err() {
                    return;
                }
            }
        }))
    }

    pub(super) async fn bounds(&self) -> Result<Bounds, StateError> {
        let partitions = self.look().await;
        let mut bounds = Bounds::default();
        for partition in partitions.map_err(|error| self.failed(error))? {
            bounds.start.advance(partition.partition, partition.start);
            bounds.end.advance(partition.partition, partition.end);
        }
        Ok(bounds)
    }
}

// === impl LogLocation ===

impl LogLocation {
    fn source(&self) -> LogSource {
        match self {
            Self::Topic(topic) => LogSource::Topic(topic.clone()),
            Self::Stream { name, .. } => LogSource::Stream(name.clone()),
        }
    }

    fn message(
        &self,
        key: &str,
        body: Option<Bytes>,
    ) -> Result<(Address, Message), TransportError> {
        let mut message = Message {
            body,
            ..Message::default()
        };
        match self {
            Self::Topic(topic) => {
                message.key = Some(Bytes::copy_from_slice(key.as_bytes()));
                Ok((Address::topic(topic.clone()), message))
            }
            Self::Stream { prefix, .. } => {
                let subject_token = subject_token(key);
                if unescape(&subject_token).as_deref() != Some(key) {
                    message
                        .headers
                        .push(KEY_HEADER, Bytes::copy_from_slice(key.as_bytes()));
                }
                let subject = Topic::new(format!("{}.{subject_token}", prefix.as_str()));
                let mut to = Address::topic(subject.map_err(|error| {
                    let what = "name the subject of a record";
                    TransportError::new(TransportErrorKind::BadMessage, what).caused_by(error)
                })?);
                to.guarantee = Guarantee::Stored { message_id: None };
                Ok((to, message))
            }
        }
    }

    fn batch(&self, batch: LogBatch) -> Batch {
        let mut reached = Cursor::start();
        let mut records = Vec::with_capacity(batch.records.len());
        for record in batch.records {
            reached.pass(record.position);
            records.push(self.record(record));
        }
        for position in batch.reached {
            reached.advance(position.partition, position.offset);
        }
        Batch { records, reached }
    }

    /// A record without a readable key gets an empty key, which no fold knows.
    fn record(&self, record: LogRecord) -> Record {
        let key = match self {
            Self::Topic(_) => record.key.as_deref().and_then(Text::from_utf8),
            Self::Stream { prefix, .. } => {
                let named = record.headers.get(KEY_HEADER);
                named.and_then(|key| Text::from_utf8(key)).or_else(|| {
                    let subject = record.topic.as_ref()?.as_str();
                    let subject_token = subject.strip_prefix(prefix.as_str())?.strip_prefix('.')?;
                    unescape(subject_token).map(Text::from)
                })
            }
        };
        Record {
            key: key.unwrap_or_default(),
            position: record.position,
            time: record.time,
            body: record.body,
        }
    }
}

/// A key as one word of a subject. A key that is too long becomes a hash, and the record contains the key in a header.
fn subject_token(key: &str) -> String {
    let mut subject_token = String::with_capacity(key.len());
    escape(&mut subject_token, key);
    if subject_token.len() > MAX_TOKEN_CHARS {
        subject_token.clear();
        for byte in Sha256::digest(key) {
            // Writing to a string does not fail.
            let _ = write!(subject_token, "{byte:02x}");
        }
    }
    subject_token
}
