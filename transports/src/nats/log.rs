//! Reading a stream as a log: with an ordered consumer, which the server keeps in memory and drops with our connection.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::{Ordered, OrderedConfig, OrderedError};
use futures_util::{FutureExt as _, StreamExt as _};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::api::Api;
use super::core::after;
use super::link::Link;
use super::unreadable::next_unreadable;
use super::{Nats, headers};
use crate::error::{TransportError, TransportErrorKind};
use crate::log::{
    BATCH_BYTES, BATCH_RECORDS, EndCause, LogBatch, LogBounds, LogPosition, LogReader, LogRecord,
};
use crate::message::Topic;

/// How many records the client requests at a time; when only half of them are outstanding, it requests as many again.
/// The default of 500 would take up to 750 MB for records of 1 MB.
const REQUESTED_RECORDS: i64 = 32;

/// How long JetStream may take to show a record. Until it answers, nobody reads the log.
const SHOWN: Duration = Duration::from_secs(2);

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
    api: Api,
    context: jetstream::Context,
    /// How long a request may wait for the connection.
    patience: Duration,
    /// The connection on which it began. Another connection does not know our consumer.
    epoch: u64,
    stream: String,
    /// The next sequence.
    next: u64,
    /// The reading has failed after the records that were passed on last.
    has_failed: bool,
    batches: mpsc::Sender<LogBatch>,
    ended: EndCause,
}

// === impl Nats ===

impl Nats {
    /// The first and the next position of a stream.
    pub(crate) async fn log_bounds(&self, stream: &str) -> Result<Vec<LogBounds>, TransportError> {
        let what = || format!("find the ends of the JetStream stream {stream}");
        let inner = self.inner();
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

    /// Deletes records of a stream, if this user may, and the stream keeps one record of each subject: otherwise the
    /// record before a deleted one would count again. Returns whether both hold. A record that is gone is no error.
    pub(crate) async fn delete_records(
        &self,
        stream: &str,
        records: &[LogPosition],
    ) -> Result<bool, TransportError> {
        let inner = self.inner();
        inner.link.up(inner.request_deadline()).await?;
        let what = || format!("delete records of the JetStream stream {stream}");
        let request = format!("STREAM.MSG.DELETE.{stream}");
        // The log of a server that refuses a request would show an error.
        let connection = *inner.link.connection().borrow();
        let Some(permissions) = self.permissions().await else {
            // A connection that was lost meanwhile says nothing about the user.
            let is_same = *inner.link.connection().borrow() == connection;
            return match is_same && inner.link.is_usable() {
                true => Ok(false),
                false => Err(inner.link.disconnected(&what())),
            };
        };
        if !permissions.may_publish(&inner.api.subject(&request)) {
            return Ok(false);
        }
        let info = inner.api.stream_info(stream).await?;
        let info =
            info.ok_or_else(|| TransportError::new(TransportErrorKind::UnknownTopic, what()))?;
        if info["config"]["max_msgs_per_subject"] != 1 {
            return Ok(false);
        }
        for record in records {
            let sequence = record.offset;
            // There is no need to overwrite the record.
            let body = json!({ "seq": sequence, "no_erase": true });
            if let Err(error) = inner.api.ask(&request, &body).await? {
                tracing::debug!(stream, sequence, %error, "a record of a log was not deleted: probably it is gone");
            }
        }
        Ok(true)
    }

    /// Reads a stream from the given position, or otherwise from its beginning.
    pub(crate) async fn read_log(
        &self,
        stream: &str,
        from: &[LogPosition],
    ) -> Result<LogReader, TransportError> {
        let from = from.iter().find(|from| from.partition == 0);
        let (reader, batches, stop) = LogReader::new();
        let inner = self.inner();
        inner.link.up(inner.request_deadline()).await?;
        let mut reading = Reading {
            link: Arc::clone(&inner.link),
            api: inner.api.clone(),
            context: jetstream::with_prefix(inner.client.clone(), inner.api.prefix()),
            patience: inner.request_timeout,
            epoch: inner.link.connection().borrow().epoch,
            stream: stream.to_owned(),
            // Sequences begin with 1.
            next: from.map_or(1, |from| from.offset.max(1)),
            has_failed: false,
            batches,
            ended: reader.end_cause(),
        };
        if inner.link.replaces() {
            reading.skip_first().await;
        }
        let messages = reading.open().await?;
        let stop_client = inner.stop.clone();
        inner.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = stop_client.cancelled() => {}
                () = reading.run(messages) => {}
            }
        });
        Ok(reader)
    }
}

// === impl Reading ===

impl Reading {
    async fn open(&self) -> Result<Ordered, TransportError> {
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
        let consumer = self.context.create_consumer_on_stream(config, &self.stream);
        let consumer = consumer.await.map_err(|error| failed(error.into()))?;
        consumer
            .messages()
            .await
            .map_err(|error| failed(error.into()))
    }

    /// Runs until nobody reads, or the reading cannot continue.
    async fn run(mut self, mut messages: Ordered) {
        let mut connection = self.link.connection();
        loop {
            let epoch = self.epoch;
            let batch = tokio::select! {
                biased;
                batch = self.batch(&mut messages) => batch,
                // The consumer is on the server of our connection, and may be lost with it.
                _ = connection.wait_for(|now| now.epoch != epoch) => None,
            };
            let sent = match batch {
                Some(batch) => self.batches.send(batch).await.ok(),
                None => match self.reopened().await {
                    Ok(opened) => {
                        messages = opened;
                        Some(())
                    }
                    Err(why) => {
                        let _ = self.ended.set(why);
                        None
                    }
                },
            };
            if sent.is_none() {
                return;
            }
        }
    }

    /// Opens the log again after its next record, if the client cannot read that record: it closes its connection at such
    /// a message, and would do so again.
    ///
    /// # Errors
    /// Why the reading ends. The owner of the reader begins again with a new one.
    async fn reopened(&mut self) -> Result<Ordered, String> {
        if self.link.up(after(self.patience)).await.is_err() {
            return Err(self.link.cause().to_string());
        }
        self.epoch = self.link.connection().borrow().epoch;
        self.has_failed = false;
        let mut is_skipped = false;
        let why = loop {
            let shown = next_unreadable(&self.api, &self.stream, self.next);
            match timeout(SHOWN, shown).await {
                Ok(Ok(Some(sequence))) => self.skip(sequence).await?,
                Ok(Ok(None)) => break "the connection was lost".to_owned(),
                Ok(Err(error)) => break self.not_shown(&error),
                Err(_) => {
                    let (next, limit) = (self.next, SHOWN.as_secs());
                    break format!("JetStream did not return the record {next} within {limit} s");
                }
            }
            is_skipped = true;
        };
        match is_skipped {
            true => self.open().await.map_err(|error| error.to_string()),
            false => Err(why),
        }
    }

    /// Why it is not known whether the client can read the next record.
    fn not_shown(&self, error: &TransportError) -> String {
        if error.kind() != TransportErrorKind::Unauthorised {
            return error.to_string();
        }
        let (stream, sequence) = (&self.stream, self.next);
        let cure = format!(
            "allow this user STREAM.MSG.GET for the stream, so that such a record is skipped, or delete it: `nats stream rmm {stream} {sequence}`"
        );
        tracing::warn!(%error, stream, sequence, "the connection was lost, perhaps because of the next record of a log: {cure}");
        format!(
            "the connection was lost, perhaps because of the record {sequence} of {stream}: {error}: {cure}"
        )
    }

    /// Passes on a record that nobody understands in place of one that the client cannot read.
    ///
    /// # Errors
    /// If nobody reads.
    async fn skip(&mut self, sequence: u64) -> Result<(), String> {
        let records = vec![self.skipped(sequence)];
        self.pass_on(records).await
    }

    /// Skips the first records that the client cannot read: one of them may have ended the client before this one. If
    /// JetStream does not show them, nothing is skipped.
    async fn skip_first(&mut self) {
        let mut records = Vec::new();
        while records.len() < BATCH_RECORDS {
            let shown = next_unreadable(&self.api, &self.stream, self.next);
            let Ok(Ok(Some(sequence))) = timeout(SHOWN, shown).await else {
                break;
            };
            records.push(self.skipped(sequence));
        }
        if !records.is_empty() {
            // The queue is new and has room. Whoever asked for the reader still waits for it.
            let _ = self.pass_on(records).await;
        }
    }

    /// A record that nobody understands in place of one that the client cannot read, which is the next one.
    fn skipped(&mut self, sequence: u64) -> LogRecord {
        tracing::warn!(
            stream = self.stream,
            sequence,
            "a record of a log is skipped, because its headers or its subject break the format of NATS, or its headers begin with a status"
        );
        self.next = sequence + 1;
        LogRecord::unreadable(LogPosition::at(sequence))
    }

    async fn pass_on(&self, records: Vec<LogRecord>) -> Result<(), String> {
        let batch = LogBatch {
            records,
            reached: Vec::new(),
        };
        let sent = self.batches.send(batch).await;
        sent.map_err(|_| "nobody reads the log".to_owned())
    }

    /// The records that are available, or the first one to arrive; `None` when the reading cannot continue. The records
    /// before a failure are passed on, so that the next reader begins after them: what the client cannot read may be the
    /// record that follows.
    async fn batch(&mut self, messages: &mut Ordered) -> Option<LogBatch> {
        if std::mem::take(&mut self.has_failed) {
            return None;
        }
        let mut batch = LogBatch::default();
        let mut bytes = 0;
        let mut next = Some(messages.next().await);
        while let Some(message) = next {
            match self.next_record(message) {
                Some(record) => {
                    bytes += record.size_bytes();
                    batch.records.push(record);
                }
                None if batch.records.is_empty() => return None,
                None => {
                    self.has_failed = true;
                    break;
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

    /// The record of a message; `None` when the reading has ended or failed.
    fn next_record(
        &mut self,
        message: Option<Result<jetstream::Message, OrderedError>>,
    ) -> Option<LogRecord> {
        let record = message?
            .map_err(Into::into)
            .and_then(|message| self.record(message));
        record
            .inspect_err(|error| {
                tracing::warn!(%error, stream = self.stream, "the JetStream reader of a log failed");
            })
            .ok()
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
            position: LogPosition::at(offset),
            time: u64::try_from(time).unwrap_or(0),
            topic: Topic::new(message.subject.as_str()).ok(),
            key: None,
            headers: headers::read(message.headers.as_ref(), None),
            body: Some(message.payload).filter(|body| !body.is_empty()),
        })
    }
}
