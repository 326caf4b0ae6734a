//! Reading a stream as a log: with an ordered consumer, which the server keeps in memory and drops with our connection.

use std::sync::Arc;

use async_nats::jetstream;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::{Ordered, OrderedConfig};
use futures_util::{FutureExt as _, StreamExt as _};
use serde::Deserialize;
use tokio::sync::mpsc;

use super::link::Link;
use super::{Nats, headers};
use crate::error::{TransportError, TransportErrorKind};
use crate::log::{
    BATCH_BYTES, BATCH_RECORDS, LogBatch, LogBounds, LogPosition, LogReader, LogRecord,
};
use crate::message::Topic;

/// How many records the client requests at a time; when only half of them are outstanding, it requests as many again.
/// The default of 500 would take up to 750 MB for records of 1 MB.
const REQUESTED_RECORDS: i64 = 32;

/// The first and the last sequence of a stream, from the API.
#[derive(Debug, Deserialize)]
struct State {
    messages: u64,
    first_seq: u64,
    last_seq: u64,
}

/// The state of a reading task.
struct Reading {
    link: Arc<Link>,
    /// The connection on which it began. Another connection does not know our consumer.
    epoch: u64,
    stream: String,
    /// The next sequence.
    next: u64,
    batches: mpsc::Sender<LogBatch>,
}

// === impl Nats ===

impl Nats {
    /// The first and the next position of a stream.
    pub(crate) async fn log_bounds(&self, stream: &str) -> Result<Vec<LogBounds>, TransportError> {
        let what = || format!("find the ends of the JetStream stream {stream}");
        let inner = &self.inner;
        inner.link.up(inner.request_deadline()).await?;
        let Some(mut info) = inner.api.stream_info(stream).await? else {
            return Err(TransportError::new(
                TransportErrorKind::UnknownTopic,
                what(),
            ));
        };
        let state: State = serde_json::from_value(info["state"].take()).map_err(|error| {
            TransportError::new(TransportErrorKind::Other, what()).caused_by(error)
        })?;
        let end = state.last_seq + 1;
        let start = if state.messages == 0 {
            end
        } else {
            state.first_seq
        };
        Ok(vec![LogBounds {
            partition: 0,
            start,
            end,
        }])
    }

    /// Reads a stream from the given position, or otherwise from its beginning.
    pub(crate) async fn read_log(
        &self,
        stream: &str,
        from: &[LogPosition],
    ) -> Result<LogReader, TransportError> {
        let from = from.iter().find(|from| from.partition == 0);
        let (reader, batches, stop) = LogReader::new();
        let inner = &self.inner;
        inner.link.up(inner.request_deadline()).await?;
        let reading = Reading {
            link: Arc::clone(&inner.link),
            epoch: inner.link.connection().borrow().epoch,
            stream: stream.to_owned(),
            // Sequences begin with 1.
            next: from.map_or(1, |from| from.offset.max(1)),
            batches,
        };
        let context = jetstream::with_prefix(inner.client.clone(), inner.api.prefix());
        let messages = reading.open(&context).await?;
        let stop_all = inner.stop.clone();
        inner.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = stop_all.cancelled() => {}
                () = reading.run(messages) => {}
            }
        });
        Ok(reader)
    }
}

// === impl Reading ===

impl Reading {
    async fn open(&self, context: &jetstream::Context) -> Result<Ordered, TransportError> {
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
            let what = format!("read the JetStream stream {}: {error}", self.stream);
            TransportError::new(TransportErrorKind::Other, what)
        };
        let config = OrderedConfig {
            deliver_policy: DeliverPolicy::ByStartSequence {
                start_sequence: self.next,
            },
            max_batch: REQUESTED_RECORDS,
            ..OrderedConfig::default()
        };
        let consumer = context.create_consumer_on_stream(config, &self.stream);
        let consumer = consumer.await.map_err(|error| failed(error.into()))?;
        consumer
            .messages()
            .await
            .map_err(|error| failed(error.into()))
    }

    /// Runs until nobody reads, or the reading cannot continue.
    async fn run(mut self, mut messages: Ordered) {
        let mut connection = self.link.connection();
        let epoch = self.epoch;
        loop {
            let batch = tokio::select! {
                batch = self.batch(&mut messages) => batch,
                // The consumer is on the server of our connection, and may be lost with it.
                _ = connection.wait_for(|now| now.epoch != epoch) => return,
            };
            let Some(batch) = batch else { return };
            if self.batches.send(batch).await.is_err() {
                return;
            }
        }
    }

    /// The records that are available, or the first one to arrive; `None` when the reading cannot continue.
    async fn batch(&mut self, messages: &mut Ordered) -> Option<LogBatch> {
        let mut batch = LogBatch::default();
        let mut bytes = 0;
        let mut next = Some(messages.next().await);
        while let Some(message) = next {
            let record = message?
                .map_err(Into::into)
                .and_then(|message| self.record(message));
            match record {
                Ok(record) => {
                    bytes += record.size_bytes();
                    batch.records.push(record);
                }
                Err(error) => {
                    tracing::warn!(%error, stream = self.stream, "the JetStream reader of a log failed");
                    return None;
                }
            }
            let has_room = batch.records.len() < BATCH_RECORDS && bytes < BATCH_BYTES;
            next = match has_room {
                true => messages.next().now_or_never(),
                false => None,
            };
        }
        Some(batch)
    }

    fn record(&mut self, message: jetstream::Message) -> Result<LogRecord, async_nats::Error> {
        let info = message.info()?;
        let offset = info.stream_sequence;
        let time = info.published.unix_timestamp_nanos() / 1_000_000;
        if offset < self.next {
            return Err("the stream was deleted and created again".into());
        }
        self.next = offset + 1;
        let message = message.message;
        Ok(LogRecord {
            position: LogPosition {
                partition: 0,
                offset,
            },
            time: u64::try_from(time).unwrap_or(0),
            topic: Topic::new(message.subject.as_str()).ok(),
            key: None,
            headers: headers::read(message.headers.as_ref(), None),
            body: Some(message.payload).filter(|body| !body.is_empty()),
        })
    }
}
