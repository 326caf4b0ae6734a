//! Reading a topic as a log: a client without a group, on a thread of its own, that reads every partition.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::producer::Producer as _;
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::checkup::Checkup;
use super::config::KafkaConfig;
use super::consumer::random;
use super::error::{LOG_AGAIN, failed, is_outage};
use super::health::{Events, Pulse};
use super::questions::REQUEST_TIMEOUT;
use super::thread::{close_replaced, spawn};
use super::{Kafka, TOPIC_PROPAGATION, record};
use crate::error::{TransportError, TransportErrorKind};
use crate::log::{
    BATCH_BYTES, BATCH_RECORDS, LogBatch, LogBounds, LogPosition, LogReader, LogRecord,
};
use crate::message::Topic;

/// The longest a poll blocks, and so the delay before the end of a reader is noticed.
const TICK: Duration = Duration::from_millis(100);

type Client = BaseConsumer<Events>;

/// The state of the reading thread.
struct Reading {
    config: Arc<KafkaConfig>,
    pulse: Arc<Pulse>,
    topic: Topic,
    /// By partition.
    partitions: Vec<Partition>,
    batches: mpsc::Sender<LogBatch>,
    stop: CancellationToken,
    /// Held by the replaced clients that are not closed yet.
    replaced: Arc<()>,
    last_error: Option<(Code, Instant)>,
}

struct Partition {
    next: u64,
    /// Its end when the reading began, until that is reached.
    end: Option<u64>,
}

// === impl Kafka ===

impl Kafka {
    /// The first and the next offset of each partition of a topic.
    pub(crate) async fn log_bounds(&self, topic: &Topic) -> Result<Vec<LogBounds>, TransportError> {
        let partitions = self.look_up(topic, TOPIC_PROPAGATION).await?;
        let name = topic.clone();
        self.ask(format!("find the ends of {topic}"), move |client| {
            let bounds = |partition: i32| {
                let client = client.client();
                let (start, end) =
                    client.fetch_watermarks(name.as_str(), partition, REQUEST_TIMEOUT)?;
                Ok(LogBounds {
                    partition: u32::try_from(partition).unwrap_or(0),
                    start: u64::try_from(start).unwrap_or(0),
                    end: u64::try_from(end).unwrap_or(0),
                })
            };
            partitions.ids.into_iter().map(bounds).collect()
        })
        .await
    }

    /// Reads all partitions of a topic, each from the given position, or otherwise from its beginning.
    pub(crate) async fn read_log(
        &self,
        topic: &Topic,
        from: &[LogPosition],
    ) -> Result<LogReader, TransportError> {
        let mut bounds = self.log_bounds(topic).await?;
        bounds.sort_by_key(|bounds| bounds.partition);
        let partition = |bounds: LogBounds| {
            let from = from.iter().find(|from| from.partition == bounds.partition);
            Partition {
                next: from.map_or(0, |from| from.offset).max(bounds.start),
                end: Some(bounds.end),
            }
        };
        let (reader, batches, stop) = LogReader::new();
        let mut reading = Reading {
            config: Arc::clone(&self.shared.config),
            pulse: Arc::clone(&self.shared.pulse),
            topic: topic.clone(),
            partitions: bounds.into_iter().map(partition).collect(),
            batches,
            stop,
            replaced: Arc::default(),
            last_error: None,
        };
        let client = reading.client()?;
        let ended = reader.end_cause();
        spawn("a2abus-kafka-log", move || {
            if let Err(error) = reading.read(client) {
                let _ = ended.set(error.to_string());
                tracing::warn!(%error, topic = %reading.topic, "the Kafka reader of a log failed");
            }
        })?;
        Ok(reader)
    }
}

// === impl Reading ===

impl Reading {
    fn client(&self) -> Result<Client, TransportError> {
        let mut config = self.config.live(&format!("a2abus-log-{}", random()))?;
        config
            .set("enable.partition.eof", "true")
            // The bridge writes without transactions. A transaction that another writer left open must not stop every
            // reader.
            .set("isolation.level", "read_uncommitted");
        let what = || format!("read the topic {}", self.topic);
        let events = Events::new("log", Arc::clone(&self.pulse));
        let client: Client = config
            .build()
            .create_with_context(events)
            .map_err(|error| failed(what(), error))?;
        let mut list = TopicPartitionList::new();
        for (number, partition) in (0_i32..).zip(&self.partitions) {
            let offset = Offset::Offset(i64::try_from(partition.next).unwrap_or(i64::MAX));
            list.add_partition_offset(self.topic.as_str(), number, offset)
                .map_err(|error| failed(what(), error))?;
        }
        client
            .assign(&list)
            .map_err(|error| failed(what(), error))?;
        Ok(client)
    }

    /// Reads until the reader is dropped. A client that has lost the cluster is replaced.
    fn read(&mut self, mut client: Client) -> Result<(), TransportError> {
        let mut checkup = Checkup::new();
        while !self.stop.is_cancelled() && !self.pulse.is_stopped() {
            let batch = self.batch(&client)?;
            if !batch.records.is_empty() || !batch.reached.is_empty() {
                checkup = Checkup::new();
                if self.batches.blocking_send(batch).is_err() {
                    break;
                }
            } else if checkup.is_cut_off(client.client(), &self.config, &self.pulse) {
                tracing::warn!(topic = %self.topic, "this Kafka reader of a log gets no response from the cluster, although a new connection does: it is replaced");
                let lost = std::mem::replace(&mut client, self.client()?);
                close_replaced(lost, &self.replaced);
                checkup = Checkup::new();
            }
        }
        Ok(())
    }

    /// The records that are available, or the first one to arrive.
    fn batch(&mut self, client: &Client) -> Result<LogBatch, TransportError> {
        let mut batch = LogBatch::default();
        let mut bytes = 0;
        let mut timeout = TICK;
        while batch.records.len() < BATCH_RECORDS && bytes < BATCH_BYTES {
            match client.poll(timeout) {
                Some(Ok(record)) => {
                    let record = self.record(&record)?;
                    bytes += record.size_bytes();
                    batch.records.push(record);
                }
                Some(Err(KafkaError::PartitionEOF(number))) => {
                    batch.reached.extend(self.at_end(number));
                }
                Some(Err(error)) => {
                    self.note(error)?;
                    break;
                }
                None => break,
            }
            timeout = Duration::ZERO;
        }
        Ok(batch)
    }

    fn record(&mut self, record: &BorrowedMessage<'_>) -> Result<LogRecord, TransportError> {
        let position = LogPosition {
            partition: u32::try_from(record.partition()).unwrap_or(0),
            offset: u64::try_from(record.offset()).unwrap_or(0),
        };
        let index = usize::try_from(position.partition).unwrap_or(usize::MAX);
        match self.partitions.get_mut(index) {
            Some(partition) if position.offset >= partition.next => {
                partition.next = position.offset + 1;
            }
            _ => {
                let what = format!(
                    "continue reading {}: it was deleted and created again",
                    self.topic
                );
                return Err(TransportError::new(TransportErrorKind::UnknownTopic, what));
            }
        }
        let time = record.timestamp().to_millis().unwrap_or(0);
        let message = record::message(record);
        Ok(LogRecord {
            position,
            time: u64::try_from(time).unwrap_or(0),
            topic: Some(self.topic.clone()),
            key: message.key,
            headers: message.headers,
            body: message.body,
        })
    }

    /// The partition's end when the reading began: compaction and transactions can leave no record there.
    fn at_end(&mut self, number: i32) -> Option<LogPosition> {
        let partition = u32::try_from(number).ok()?;
        let index = usize::try_from(partition).ok()?;
        let offset = self.partitions.get_mut(index)?.end.take()?;
        Some(LogPosition { partition, offset })
    }

    /// Logs a temporary error once, and again when it changes or persists.
    ///
    /// # Errors
    /// Permanent errors.
    fn note(&mut self, error: KafkaError) -> Result<(), TransportError> {
        let code = error.rdkafka_error_code();
        let is_fatal = matches!(error, KafkaError::MessageConsumptionFatal(_));
        if is_fatal
            || matches!(
                code,
                Some(Code::UnknownTopicOrPartition | Code::TopicAuthorizationFailed)
            )
        {
            return Err(failed(format!("read the topic {}", self.topic), error));
        }
        // There is no group that would need a permission.
        let is_known = code.is_some_and(|code| {
            let last = self.last_error;
            code == Code::GroupAuthorizationFailed
                || is_outage(code)
                || last.is_some_and(|(last, at)| last == code && at.elapsed() < LOG_AGAIN)
        });
        if is_known {
            tracing::debug!(%error, "the Kafka reader of a log reports an error");
        } else {
            self.last_error = code.map(|code| (code, Instant::now()));
            tracing::warn!(%error, topic = %self.topic, "the Kafka reader of a log reports an error");
        }
        Ok(())
    }
}
