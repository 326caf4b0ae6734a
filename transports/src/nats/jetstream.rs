//! JetStream: publications that are confirmed once a stream has stored them, and the API that creates streams and
//! consumers.
//!
//! ```text
//! send --Expected--> replies_for --Receipt--> Confirmation
//!      --publish, reply to INBOX.n--> server --answer on INBOX.n--^
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use async_nats::{Client, RequestErrorKind, StatusCode, Subscriber};
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, broadcast, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::config::{JetStreamConfig, StreamConfig};
use super::core::Verdict;
use super::link::{Link, Refusal, connects};
use crate::error::{TransportError, TransportErrorKind};
use crate::message::Topic;
use crate::transport::{Receipt, TopicFilter};

/// Answers that can be announced ahead of the task that waits for them, at most.
pub(super) const EXPECTED_QUEUE: usize = 1024;

/// An answer that will come on our inbox.
#[derive(Debug)]
pub(super) struct Expected {
    /// The last word of the subject it comes on.
    pub(super) token: u64,
    pub(super) answer: Answer,
    /// Where the question goes, to be told from a refusal.
    pub(super) subject: Topic,
    /// The number of connections there had been before it was asked.
    pub(super) connects: u64,
    pub(super) deadline: Instant,
    pub(super) verdict: Verdict,
    /// The right to have one more unanswered.
    pub(super) permit: Option<OwnedSemaphorePermit>,
}

/// What the answer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// A stream has stored the message, or says why not.
    Stored,
    /// Anything, which shows that the server has seen all that was sent before.
    Echo,
}

/// Waits for the answers on our inbox, for as long as somebody can ask.
pub(super) struct Replies {
    pub(super) client: Client,
    pub(super) link: Arc<Link>,
    pub(super) inbox: Subscriber,
    pub(super) expected: mpsc::Receiver<Expected>,
}

/// The questions without an answer. Deadlines are all as far away, so they pass in the order of asking.
#[derive(Debug, Default)]
struct Unanswered {
    by_token: HashMap<u64, Expected>,
    deadlines: VecDeque<(Instant, u64)>,
}

/// The answer of a stream.
#[derive(Debug, Deserialize)]
struct PubAck {
    #[serde(default)]
    stream: String,
    #[serde(default)]
    seq: u64,
    error: Option<ApiError>,
}

/// An error of the JetStream API.
#[derive(Debug, Clone, Deserialize, thiserror::Error)]
#[error("{description} ({code}, {err_code})")]
pub(super) struct ApiError {
    code: u32,
    #[serde(default)]
    pub(super) err_code: u32,
    #[serde(default)]
    description: String,
}

/// `err_code`s of the API. Source: nats-server `errors.json`.
pub(super) const CONSUMER_NOT_FOUND: u32 = 10_014;
pub(super) const STREAM_NOT_FOUND: u32 = 10_059;
const INSUFFICIENT_RESOURCES: u32 = 10_023;
const NOT_ENABLED_FOR_ACCOUNT: u32 = 10_039;
const STORAGE_RESOURCES_EXCEEDED: u32 = 10_047;
const MEMORY_RESOURCES_EXCEEDED: u32 = 10_028;
const ACCOUNT_RESOURCES_EXCEEDED: u32 = 10_002;
const MESSAGE_EXCEEDS_MAXIMUM: u32 = 10_054;
const NOT_ENABLED: u32 = 10_076;
const STORE_FAILED: u32 = 10_077;
const HEADER_EXCEEDS_MAXIMUM: u32 = 10_097;

// === impl Replies ===

impl Replies {
    /// Until it is stopped; what is unanswered then fails as closed.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut unanswered = Unanswered::default();
        let mut connection = self.link.connection();
        let mut refusals = self.link.refusals();
        loop {
            let next_deadline = unanswered.next_deadline();
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                expected = self.expected.recv() => match expected {
                    Some(expected) => self.expect(&mut unanswered, expected),
                    None => return,
                },
                answer = self.inbox.next() => match answer {
                    Some(answer) => self.answered(&mut unanswered, &answer),
                    None => return,
                },
                Ok(()) = connection.changed() => self.fail_lost(&mut unanswered),
                refusal = refusals.recv() => unanswered.refused(refusal),
                () = tokio::time::sleep_until(next_deadline.unwrap_or_else(Instant::now)),
                    if next_deadline.is_some() => unanswered.expire(),
            }
        }
    }

    fn expect(&self, unanswered: &mut Unanswered, expected: Expected) {
        if self.is_lost(&expected) {
            expected.decide(Err(self.lost()));
        } else {
            unanswered.insert(expected);
        }
    }

    fn answered(&mut self, unanswered: &mut Unanswered, answer: &async_nats::Message) {
        // A question is announced before it is asked, but the announcement may still be on its way to us.
        while let Ok(expected) = self.expected.try_recv() {
            self.expect(unanswered, expected);
        }
        let token = answer.subject.rsplit('.').next().unwrap_or_default();
        // An answer that came too late, or that somebody made up, belongs to nothing.
        let expected = token
            .parse()
            .ok()
            .and_then(|token| unanswered.remove(token));
        if let Some(expected) = expected {
            let result = match expected.answer {
                Answer::Echo => Ok(Receipt { position: None }),
                Answer::Stored => stored(&expected.subject, answer),
            };
            expected.decide(result);
        }
    }

    /// Fails what was asked on a connection that is gone: its answer will not come.
    fn fail_lost(&self, unanswered: &mut Unanswered) {
        for expected in unanswered.take(|expected| self.is_lost(expected)) {
            expected.decide(Err(self.lost()));
        }
    }

    fn is_lost(&self, expected: &Expected) -> bool {
        !self.link.is_up() || expected.connects != connects(&self.client)
    }

    fn lost(&self) -> TransportError {
        self.link
            .disconnected("wait for the answer of NATS; the message may or may not be stored")
    }
}

// === impl Expected ===

impl Expected {
    fn decide(self, result: Result<Receipt, TransportError>) {
        drop(self.permit);
        // The caller may have stopped waiting.
        let _ = self.verdict.send(result);
    }
}

// === impl Unanswered ===

impl Unanswered {
    fn insert(&mut self, expected: Expected) {
        if self.deadlines.len() > 4 * self.by_token.len() + 1024 {
            // One slow answer at the front would keep the entries of all quick ones behind it.
            self.deadlines
                .retain(|(_, token)| self.by_token.contains_key(token));
        }
        self.deadlines
            .push_back((expected.deadline, expected.token));
        self.by_token.insert(expected.token, expected);
    }

    fn remove(&mut self, token: u64) -> Option<Expected> {
        let expected = self.by_token.remove(&token);
        if self.by_token.is_empty() {
            self.deadlines.clear();
        }
        expected
    }

    fn take(&mut self, which: impl Fn(&Expected) -> bool) -> Vec<Expected> {
        let taken = self.by_token.extract_if(|_, expected| which(expected));
        taken.map(|(_, expected)| expected).collect()
    }

    fn next_deadline(&mut self) -> Option<Instant> {
        while let Some((deadline, token)) = self.deadlines.front() {
            if self.by_token.contains_key(token) {
                return Some(*deadline);
            }
            self.deadlines.pop_front();
        }
        None
    }

    fn expire(&mut self) {
        let now = Instant::now();
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            let token = self.deadlines.pop_front().map(|(_, token)| token);
            if let Some(expected) = token.and_then(|token| self.by_token.remove(&token)) {
                let what = format!("wait for the answer of NATS to {}", expected.subject);
                expected.decide(Err(TransportError::new(TransportErrorKind::TimedOut, what)));
            }
        }
    }

    /// A refused publication gets no answer; its refusal comes as an error of the connection.
    fn refused(&mut self, refusal: Result<Refusal, broadcast::error::RecvError>) {
        // A lost refusal shows as a question that times out.
        let Ok(Refusal::Publish(subject)) = refusal else {
            return;
        };
        for expected in self.take(|expected| subject == expected.subject.as_str()) {
            let result = match expected.answer {
                // The server has read it, which was the question.
                Answer::Echo => Ok(Receipt { position: None }),
                Answer::Stored => Err(unauthorised(&format!("publish to {subject}"))),
            };
            expected.decide(result);
        }
    }
}

pub(super) fn unauthorised(what: &str) -> TransportError {
    TransportError::new(
        TransportErrorKind::Unauthorised,
        format!("{what}: this NATS user may not"),
    )
}

/// What the answer to a publication says.
fn stored(subject: &Topic, answer: &async_nats::Message) -> Result<Receipt, TransportError> {
    let what = format!("store a message in the stream of {subject}");
    if answer.status == Some(StatusCode::NO_RESPONDERS) {
        return Err(TransportError::new(
            TransportErrorKind::UnknownTopic,
            format!("{what}: no JetStream stream takes this subject"),
        ));
    }
    let ack: PubAck = serde_json::from_slice(&answer.payload).map_err(|error| {
        TransportError::new(TransportErrorKind::Other, what.clone()).caused_by(error)
    })?;
    match ack.error {
        Some(error) => Err(TransportError::new(error.kind(), what).caused_by(error)),
        // A duplicate is stored too: at the sequence of the first.
        None => Ok(Receipt {
            position: Some(position(&ack.stream, ack.seq)),
        }),
    }
}

/// `j:STREAM/SEQUENCE`.
pub(super) fn position(stream: &str, sequence: u64) -> Text {
    Text::from(format!("j:{stream}/{sequence}"))
}

// === impl ApiError ===

impl ApiError {
    fn kind(&self) -> TransportErrorKind {
        match self.err_code {
            MESSAGE_EXCEEDS_MAXIMUM | HEADER_EXCEEDS_MAXIMUM => TransportErrorKind::TooLarge,
            STREAM_NOT_FOUND | CONSUMER_NOT_FOUND => TransportErrorKind::UnknownTopic,
            NOT_ENABLED | NOT_ENABLED_FOR_ACCOUNT => TransportErrorKind::BadConfig,
            STORE_FAILED
            | INSUFFICIENT_RESOURCES
            | ACCOUNT_RESOURCES_EXCEEDED
            | MEMORY_RESOURCES_EXCEEDED
            | STORAGE_RESOURCES_EXCEEDED => TransportErrorKind::Saturated,
            _ if self.code == 400 => TransportErrorKind::BadConfig,
            _ => TransportErrorKind::Other,
        }
    }
}

/// The JetStream API. Its documents are kept as JSON, so that what a newer server or another tool has set on a stream or
/// consumer is not lost when we update it.
#[derive(Debug, Clone)]
pub(super) struct Api {
    client: Client,
    prefix: String,
    config: Arc<JetStreamConfig>,
}

// === impl Api ===

impl Api {
    pub(super) fn new(client: Client, config: JetStreamConfig) -> Self {
        Self {
            client,
            prefix: config.api_prefix(),
            config: Arc::new(config),
        }
    }

    pub(super) fn config(&self) -> &JetStreamConfig {
        &self.config
    }

    /// The subject a request of the API is sent to.
    pub(super) fn subject(&self, request: &str) -> String {
        format!("{}.{request}", self.prefix)
    }

    /// Asks, and returns the answer or the API's error. The client's request timeout applies.
    pub(super) async fn ask(
        &self,
        request: &str,
        body: &Value,
    ) -> Result<Result<Value, ApiError>, TransportError> {
        let what = || format!("ask JetStream for {request}");
        let answer = self
            .client
            .request(self.subject(request), body.to_string().into())
            .await
            .map_err(|error| {
                let kind = match error.kind() {
                    RequestErrorKind::TimedOut => TransportErrorKind::TimedOut,
                    RequestErrorKind::NoResponders => TransportErrorKind::BadConfig,
                    RequestErrorKind::InvalidSubject => TransportErrorKind::BadConfig,
                    RequestErrorKind::MaxPayloadExceeded => TransportErrorKind::TooLarge,
                    RequestErrorKind::Other => TransportErrorKind::Disconnected,
                };
                let hint = match kind {
                    TransportErrorKind::BadConfig => ": the server has no JetStream for this user",
                    _ => "",
                };
                TransportError::new(kind, what() + hint).caused_by(error)
            })?;
        let mut answer: Value = serde_json::from_slice(&answer.payload).map_err(|error| {
            TransportError::new(TransportErrorKind::Other, what()).caused_by(error)
        })?;
        match answer.get_mut("error").map(Value::take) {
            None => Ok(Ok(answer)),
            Some(error) => serde_json::from_value(error).map(Err).map_err(|error| {
                TransportError::new(TransportErrorKind::Other, what()).caused_by(error)
            }),
        }
    }

    /// As [`Api::ask`], with the API's error as an error.
    async fn command(&self, request: &str, body: &Value) -> Result<Value, TransportError> {
        self.ask(request, body)
            .await?
            .map_err(|error| api_error(request, error))
    }

    /// The configuration of a stream or consumer, or `None` when there is none.
    pub(super) async fn info(
        &self,
        request: &str,
        missing: &[u32],
    ) -> Result<Option<Value>, TransportError> {
        match self.ask(request, &json!({})).await? {
            Ok(info) => Ok(Some(info)),
            Err(error) if missing.contains(&error.err_code) => Ok(None),
            Err(error) => Err(api_error(request, error)),
        }
    }

    /// Creates or updates the managed stream that stores the topic, if there is one.
    pub(super) async fn ensure_topic(&self, topic: &Topic) -> Result<(), TransportError> {
        let stores = |stream: &&StreamConfig| {
            let mut filters = stream
                .subjects
                .iter()
                .flat_map(|s| TopicFilter::new(s.as_str()));
            filters.any(|filter| filter.matches(topic))
        };
        match self.config.streams.iter().find(stores) {
            Some(stream) if self.config.manage => self.ensure_stream(stream).await,
            _ => Ok(()),
        }
    }

    /// Creates or updates the stream of that name, if it is a managed one.
    pub(super) async fn ensure_stream_named(&self, name: &str) -> Result<(), TransportError> {
        match self
            .config
            .streams
            .iter()
            .find(|stream| stream.name == name)
        {
            Some(stream) if self.config.manage => self.ensure_stream(stream).await,
            _ => Ok(()),
        }
    }

    async fn ensure_stream(&self, wanted: &StreamConfig) -> Result<(), TransportError> {
        let name = &wanted.name;
        let info = self
            .info(&format!("STREAM.INFO.{name}"), &[STREAM_NOT_FOUND])
            .await?;
        let Some(mut info) = info else {
            tracing::info!(stream = %name, "creating a JetStream stream");
            let request = format!("STREAM.CREATE.{name}");
            return self.command(&request, &new_stream(wanted)).await.map(drop);
        };
        let mut config = info["config"].take();
        if config["storage"] != wanted.storage.as_str() {
            return Err(TransportError::new(
                TransportErrorKind::BadConfig,
                format!(
                    "keep stream {name} in {}: it is in {} storage, which cannot be changed",
                    wanted.storage.as_str(),
                    config["storage"]
                ),
            ));
        }
        let before = config.clone();
        merge(&mut config, stream_settings(wanted));
        if config == before {
            return Ok(());
        }
        tracing::info!(stream = %name, "updating a JetStream stream");
        self.command(&format!("STREAM.UPDATE.{name}"), &config)
            .await
            .map(drop)
    }

    /// Creates or updates a durable consumer.
    pub(super) async fn write_consumer(
        &self,
        stream: &str,
        name: &str,
        config: Value,
    ) -> Result<Value, TransportError> {
        self.command(
            &format!("CONSUMER.DURABLE.CREATE.{stream}.{name}"),
            &json!({ "stream_name": stream, "config": config }),
        )
        .await
    }
}

fn api_error(request: &str, error: ApiError) -> TransportError {
    TransportError::new(error.kind(), format!("ask JetStream for {request}")).caused_by(error)
}

/// The settings of a stream that configuration decides.
fn stream_settings(wanted: &StreamConfig) -> Value {
    json!({
        "subjects": wanted.subjects,
        "num_replicas": wanted.replicas,
        "max_age": wanted.max_age.map_or(0, nanoseconds),
        "duplicate_window": nanoseconds(wanted.duplicate_window),
    })
}

fn new_stream(wanted: &StreamConfig) -> Value {
    let mut config = json!({
        "name": wanted.name,
        "storage": wanted.storage.as_str(),
        "retention": "limits",
        "discard": "old",
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
    });
    merge(&mut config, stream_settings(wanted));
    config
}

/// Sets the keys of an object.
pub(super) fn merge(config: &mut Value, settings: Value) {
    if let (Some(config), Value::Object(settings)) = (config.as_object_mut(), settings) {
        config.extend(settings);
    }
}

/// How the API writes durations.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: Option<StatusCode>, body: &str) -> async_nats::Message {
        async_nats::Message {
            subject: "_INBOX.a.1".into(),
            reply: None,
            payload: body.to_owned().into(),
            headers: None,
            status,
            description: None,
            length: 0,
        }
    }

    fn check(status: Option<StatusCode>, body: &str) -> Result<String, TransportErrorKind> {
        stored(&Topic::new("a.b").unwrap(), &answer(status, body))
            .map(|receipt| receipt.position.unwrap().to_string())
            .map_err(|error| error.kind())
    }

    #[test]
    fn answers_of_a_stream() {
        assert_eq!(check(None, r#"{"stream":"S","seq":7}"#), Ok("j:S/7".into()));
        assert_eq!(
            check(
                None,
                r#"{"stream":"S","seq":7,"domain":"d","duplicate":true}"#
            ),
            Ok("j:S/7".into())
        );
        assert_eq!(
            check(Some(StatusCode::NO_RESPONDERS), ""),
            Err(TransportErrorKind::UnknownTopic)
        );
        for (code, err_code, kind) in [
            (400, 10_054, TransportErrorKind::TooLarge),
            (503, 10_077, TransportErrorKind::Saturated),
            (503, 10_023, TransportErrorKind::Saturated),
            (503, 10_039, TransportErrorKind::BadConfig),
            (500, 1, TransportErrorKind::Other),
        ] {
            let body =
                format!(r#"{{"error":{{"code":{code},"err_code":{err_code},"description":"x"}}}}"#);
            assert_eq!(check(None, &body), Err(kind));
        }
        assert_eq!(check(None, "not json"), Err(TransportErrorKind::Other));
    }

    #[test]
    fn an_update_keeps_what_others_have_set() {
        let mut config = json!({"name": "S", "subjects": ["old"], "max_bytes": 5, "new_key": true});
        let wanted: StreamConfig =
            serde_json::from_str(r#"{"name":"S","subjects":["a.>"],"replicas":3}"#).unwrap();
        merge(&mut config, stream_settings(&wanted));
        assert_eq!(
            config,
            json!({"name": "S", "subjects": ["a.>"], "max_bytes": 5, "new_key": true,
                "num_replicas": 3, "max_age": 0, "duplicate_window": 120_000_000_000_u64})
        );
    }
}
