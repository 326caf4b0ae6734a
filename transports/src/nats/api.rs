//! The JetStream API: requests, errors, managed streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use a2abus_plugin::Text;
use async_nats::{Client, RequestErrorKind};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::config::{JetStreamConfig, StreamConfig};
use super::link::{Link, Refusal};
use crate::error::{TransportError, TransportErrorKind};
use crate::message::Topic;

/// An error of the JetStream API.
#[derive(Debug, Clone, Deserialize, thiserror::Error)]
#[error("{description}{} ({code}, {err_code})", self.help())]
pub(super) struct ApiError {
    code: u32,
    #[serde(default)]
    pub(super) err_code: u32,
    #[serde(default)]
    description: String,
}

/// `err_code`s of the API. Source: nats-server `errors.json`.
const CONSUMER_NOT_FOUND: u32 = 10_014;
const STREAM_NOT_FOUND: u32 = 10_059;
const INSUFFICIENT_RESOURCES: u32 = 10_023;
const NOT_ENABLED_FOR_ACCOUNT: u32 = 10_039;
const STORAGE_RESOURCES_EXCEEDED: u32 = 10_047;
const MEMORY_RESOURCES_EXCEEDED: u32 = 10_028;
const ACCOUNT_RESOURCES_EXCEEDED: u32 = 10_002;
const MESSAGE_EXCEEDS_MAXIMUM: u32 = 10_054;
const NOT_ENABLED: u32 = 10_076;
const STORE_FAILED: u32 = 10_077;
/// With the last sequence in its description, and without.
const WRONG_LAST_SEQUENCE: [u32; 2] = [10_071, 10_164];
const HEADER_EXCEEDS_MAXIMUM: u32 = 10_097;
const NO_PEERS: u32 = 10_005;
const NAME_TAKEN: u32 = 10_058;
/// No limit of the account applies to this number of replicas.
const NO_LIMITS: u32 = 10_120;
const SUBJECTS_OVERLAP: u32 = 10_065;
const REPLICAS_NOT_SUPPORTED: u32 = 10_074;
const MAXIMUM_CONSUMERS: u32 = 10_026;
const MAXIMUM_STREAMS: u32 = 10_027;
const SEALED: u32 = 10_109;
/// The stream has an earlier message with this id, which its replicas have not stored yet.
const DUPLICATE_IN_PROCESS: u32 = 10_158;
/// The stream, or the JetStream of its servers, does not work at the moment: it is incomplete, unavailable, without a
/// leader, out of order in its cluster, or offline.
const UNAVAILABLE: [u32; 8] = [
    10_004, 10_007, 10_008, 10_009, 10_041, 10_063, 10_118, 10_194,
];
/// A header of the message asks for something that this stream does not do: another stream or id, a lifetime, a batch,
/// a counter, a schedule, a roll-up or a source.
const BAD_HEADER: [u32; 31] = [
    10_060, 10_070, 10_111, 10_165, 10_166, 10_168, 10_170, 10_171, 10_174, 10_175, 10_176, 10_177,
    10_179, 10_180, 10_188, 10_189, 10_190, 10_191, 10_192, 10_193, 10_199, 10_200, 10_201, 10_203,
    10_205, 10_206, 10_207, 10_208, 10_212, 10_223, 10_227,
];

// === impl ApiError ===

impl ApiError {
    pub(super) fn kind(&self) -> TransportErrorKind {
        match self.err_code {
            MESSAGE_EXCEEDS_MAXIMUM | HEADER_EXCEEDS_MAXIMUM => TransportErrorKind::TooLarge,
            STREAM_NOT_FOUND | CONSUMER_NOT_FOUND => TransportErrorKind::UnknownTopic,
            NOT_ENABLED | NOT_ENABLED_FOR_ACCOUNT => TransportErrorKind::BadConfig,
            STORE_FAILED => TransportErrorKind::Full,
            code if WRONG_LAST_SEQUENCE.contains(&code) => TransportErrorKind::Overtaken,
            INSUFFICIENT_RESOURCES
            | ACCOUNT_RESOURCES_EXCEEDED
            | MEMORY_RESOURCES_EXCEEDED
            | STORAGE_RESOURCES_EXCEEDED => TransportErrorKind::Saturated,
            _ if self.code == 400 => TransportErrorKind::BadConfig,
            _ => TransportErrorKind::Other,
        }
    }

    /// The kind of the error of a publication. A message waits if the stream may store it later; otherwise somebody has
    /// to repair the stream or the message.
    pub(super) fn kind_of_publication(&self) -> TransportErrorKind {
        match self.err_code {
            // The earlier attempt will be stored, or be forgotten with its leader. Then this one is stored.
            DUPLICATE_IN_PROCESS => TransportErrorKind::TimedOut,
            STORE_FAILED => self.kind_of_store_failure(),
            ACCOUNT_RESOURCES_EXCEEDED | MEMORY_RESOURCES_EXCEEDED | STORAGE_RESOURCES_EXCEEDED => {
                TransportErrorKind::Full
            }
            code if UNAVAILABLE.contains(&code) => TransportErrorKind::Disconnected,
            code if BAD_HEADER.contains(&code) => TransportErrorKind::BadMessage,
            _ => match self.kind() {
                // It has too much to do, or says itself that it is unavailable.
                TransportErrorKind::Other if matches!(self.code, 429 | 503) => {
                    TransportErrorKind::Saturated
                }
                kind => kind,
            },
        }
    }

    /// Only the description says why a stream has not stored a message. Source: `store.go` of nats-server.
    fn kind_of_store_failure(&self) -> TransportErrorKind {
        match self.description.as_str() {
            // This server stops to serve the stream. Others may have stored the message.
            "store is closed" => TransportErrorKind::TimedOut,
            "message too large" => TransportErrorKind::TooLarge,
            // The maximum number of messages or bytes.
            _ => TransportErrorKind::Full,
        }
    }

    /// Whether JetStream refuses the number of replicas: there are too few servers, or the account may not have as
    /// many.
    pub(super) fn refuses_replicas(&self) -> bool {
        self.is_single_server() || matches!(self.err_code, NO_PEERS | NO_LIMITS)
    }

    /// Whether a server without a cluster refuses more than one replica.
    pub(super) fn is_single_server(&self) -> bool {
        self.err_code == REPLICAS_NOT_SUPPORTED
    }

    /// A hint, if there is more to say than the description.
    fn help(&self) -> &'static str {
        match self.err_code {
            NOT_ENABLED | NOT_ENABLED_FOR_ACCOUNT => {
                ": turn it on in the server, and for the account of this user"
            }
            REPLICAS_NOT_SUPPORTED => ": a single server supports only replicas: 1",
            NO_PEERS => {
                ": request at most as many replicas as the cluster has servers with free space"
            }
            SUBJECTS_OVERLAP => {
                ": use that stream, or change the subjects of one of the two streams (`nats stream ls --subject SUBJECT` finds it)"
            }
            NAME_TAKEN => ": compare the two, or choose another name",
            DUPLICATE_IN_PROCESS => ": the stream has not stored the first attempt yet",
            SEALED => ": it never stores a message again; use another stream",
            INSUFFICIENT_RESOURCES
            | ACCOUNT_RESOURCES_EXCEEDED
            | MEMORY_RESOURCES_EXCEEDED
            | STORAGE_RESOURCES_EXCEEDED
            | MAXIMUM_STREAMS
            | MAXIMUM_CONSUMERS => {
                ": raise the limits of the server or the account, or delete unused streams and consumers"
            }
            _ => "",
        }
    }

    /// The sequence in the text: `wrong last sequence: 17`.
    pub(super) fn last_sequence(&self) -> Option<u64> {
        self.description.rsplit_once(": ")?.1.parse().ok()
    }
}

/// The JetStream API. Its documents are kept as JSON, so that an update keeps the settings that a newer server or
/// another tool has made on a stream or consumer.
#[derive(Debug, Clone)]
pub(super) struct Api {
    client: Client,
    link: Arc<Link>,
    prefix: String,
    config: Arc<JetStreamConfig>,
    /// Whether the API has ever said which streams store a subject.
    has_named_streams: Arc<AtomicBool>,
}

// === impl Api ===

impl Api {
    pub(super) fn new(client: Client, link: Arc<Link>, config: JetStreamConfig) -> Self {
        Self {
            client,
            link,
            prefix: config.api_prefix(),
            config: Arc::new(config),
            has_named_streams: Arc::default(),
        }
    }

    pub(super) fn config(&self) -> &JetStreamConfig {
        &self.config
    }

    /// The prefix of the subjects of all requests.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The subject for a request to the API.
    pub(super) fn subject(&self, request: &str) -> String {
        format!("{}.{request}", self.prefix)
    }

    /// Reports why the API does not work, or, with `None`, that it does: see [`Link::report_api`].
    pub(super) fn report(&self, asked_at: Instant, trouble: Option<Text>) {
        self.link.report_api(asked_at, trouble);
    }

    /// Reports that a part of the transport does not work, or, with `None`, that it does: see [`Link::report`].
    pub(super) fn report_part(&self, part: &Text, trouble: Option<Text>) {
        self.link.report(part, trouble);
    }

    /// Sends a request, and returns the answer or the API's error. The client's request timeout applies. A request that
    /// the server does not permit gets no answer: it fails with `Unauthorised` at once.
    pub(super) async fn ask(
        &self,
        request: &str,
        body: &Value,
    ) -> Result<Result<Value, ApiError>, TransportError> {
        let what = || format!("ask JetStream for {request}");
        let subject = self.subject(request);
        let refusals = self.link.refusals();
        let pending = self
            .client
            .request(subject.clone(), body.to_string().into());
        let answer = tokio::select! {
            answer = pending => answer,
            () = forbidden(refusals, &subject) => {
                let user = self.link.user();
                let what = format!("{}: NATS does not permit {user} to publish {subject}", what());
                return Err(TransportError::new(TransportErrorKind::Unauthorised, what));
            }
        };
        let answer = answer.map_err(|error| {
            let kind = match error.kind() {
                RequestErrorKind::TimedOut => TransportErrorKind::TimedOut,
                RequestErrorKind::NoResponders => return self.nobody(&what()),
                RequestErrorKind::InvalidSubject => TransportErrorKind::BadConfig,
                RequestErrorKind::MaxPayloadExceeded => TransportErrorKind::TooLarge,
                RequestErrorKind::Other => TransportErrorKind::Disconnected,
            };
            TransportError::new(kind, what()).caused_by(error)
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

    /// The error when no server answers for JetStream.
    fn nobody(&self, what: &str) -> TransportError {
        let cure = match &self.config.domain {
            Some(domain) => format!("correct jetstream.domain, which is {domain}"),
            None => "turn it on in the server, and for the account of this user".to_owned(),
        };
        let what = format!("{what}: no server has JetStream for this user: {cure}");
        TransportError::new(TransportErrorKind::BadConfig, what)
    }

    /// Asks which streams store a subject.
    ///
    /// # Errors
    /// `BadConfig` when this user has no JetStream. If the API has answered before, it is `Other`: only the servers of
    /// JetStream are away, for example while they restart, or while the link of a leaf node is down.
    pub(super) async fn stream_names(&self, subject: &Topic) -> Result<Value, TransportError> {
        let body = json!({ "subject": subject.as_str() });
        match self.ask("STREAM.NAMES", &body).await {
            Ok(Ok(names)) => {
                self.has_named_streams.store(true, Ordering::Relaxed);
                Ok(names)
            }
            Ok(Err(error)) => Err(api_error("STREAM.NAMES", error)),
            Err(error)
                if error.kind() == TransportErrorKind::BadConfig
                    && self.has_named_streams.load(Ordering::Relaxed) =>
            {
                let what = "ask JetStream for STREAM.NAMES, which it has answered before";
                Err(TransportError::new(TransportErrorKind::Other, what).caused_by(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Like [`Api::ask`], with the API's error as an error.
    pub(super) async fn command(
        &self,
        request: &str,
        body: &Value,
    ) -> Result<Value, TransportError> {
        self.ask(request, body)
            .await?
            .map_err(|error| api_error(request, error))
    }

    /// All that the API says about a stream or consumer: configuration, state and creation time; `None` when there is
    /// none.
    async fn info(&self, request: &str, missing: &[u32]) -> Result<Option<Value>, TransportError> {
        match self.ask(request, &json!({})).await? {
            Ok(info) => Ok(Some(info)),
            Err(error) if missing.contains(&error.err_code) => Ok(None),
            Err(error) => Err(api_error(request, error)),
        }
    }

    /// See [`Api::info`].
    pub(super) async fn stream_info(&self, name: &str) -> Result<Option<Value>, TransportError> {
        let request = format!("STREAM.INFO.{name}");
        self.info(&request, &[STREAM_NOT_FOUND]).await
    }

    /// See [`Api::info`].
    pub(super) async fn consumer_info(
        &self,
        stream: &str,
        name: &str,
    ) -> Result<Option<Value>, TransportError> {
        let request = format!("CONSUMER.INFO.{stream}.{name}");
        self.info(&request, &[CONSUMER_NOT_FOUND, STREAM_NOT_FOUND])
            .await
    }

    /// Creates or updates the managed stream that stores the topic. Returns whether there is one.
    pub(super) async fn ensure_topic(&self, topic: &Topic) -> Result<bool, TransportError> {
        match self.config.stream_of(topic) {
            Some(stream) if self.config.manage => self.ensure_stream(stream).await.map(|()| true),
            _ => Ok(false),
        }
    }

    /// Creates or updates every managed stream, even if one of them fails. A failed stream is logged, and reported as a
    /// part of the transport that does not work, until a later call succeeds.
    ///
    /// # Errors
    /// The first failure.
    pub(super) async fn ensure_streams(&self) -> Result<(), TransportError> {
        let mut outcome = Ok(());
        for stream in self.config.streams.iter().filter(|_| self.config.manage) {
            let made = self.ensure_stream(stream).await;
            let part = Text::from(format!("managed stream {}", stream.name));
            match &made {
                Ok(()) => self.report_part(&part, None),
                // The lost connection is reported.
                Err(error) if error.kind() == TransportErrorKind::Disconnected => {}
                Err(error) => {
                    tracing::error!(
                        stream = %stream.name, error = error as &dyn std::error::Error,
                        "a managed JetStream stream cannot be created or updated: trying again"
                    );
                    self.report_part(&part, Some(with_cause(error)));
                }
            }
            outcome = outcome.and(made);
        }
        outcome
    }

    /// Creates or updates the stream of that name, if it is managed.
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

    async fn ensure_stream(&self, desired: &StreamConfig) -> Result<(), TransportError> {
        let name = &desired.name;
        let Some(mut info) = self.stream_info(name).await? else {
            tracing::info!(stream = %name, "creating a JetStream stream");
            let request = format!("STREAM.CREATE.{name}");
            return self.command(&request, &new_stream(desired)).await.map(drop);
        };
        let mut config = info["config"].take();
        if config["storage"] != desired.storage.as_str() {
            return Err(TransportError::new(
                TransportErrorKind::BadConfig,
                format!(
                    "keep stream {name} in {}: it is in {} storage, which cannot be changed",
                    desired.storage.as_str(),
                    config["storage"]
                ),
            ));
        }
        let before = config.clone();
        merge(&mut config, stream_settings(desired));
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

/// Pending until the server refuses a publication on this subject.
async fn forbidden(mut refusals: broadcast::Receiver<Refusal>, subject: &str) {
    loop {
        match refusals.recv().await {
            Ok(Refusal::Publish(refused)) if refused == *subject => return,
            // Other subjects, and refusals missed among many others.
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

pub(super) fn api_error(request: &str, error: ApiError) -> TransportError {
    TransportError::new(error.kind(), format!("ask JetStream for {request}")).caused_by(error)
}

/// An error with what the API said.
pub(super) fn with_cause(error: &TransportError) -> Text {
    Text::from(match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    })
}

/// The settings of a stream that the configuration decides.
fn stream_settings(desired: &StreamConfig) -> Value {
    json!({
        "subjects": desired.subjects,
        "num_replicas": desired.replicas,
        "max_age": desired.max_age.map_or(0, nanoseconds),
        "duplicate_window": nanoseconds(desired.duplicate_window),
    })
}

fn new_stream(desired: &StreamConfig) -> Value {
    let mut config = json!({
        "name": desired.name,
        "storage": desired.storage.as_str(),
        "retention": "limits",
        "discard": "old",
        "max_consumers": -1,
        "max_msgs": -1,
        "max_bytes": -1,
    });
    merge(&mut config, stream_settings(desired));
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

    #[test]
    fn an_update_preserves_settings_of_others() {
        let mut config = json!({"name": "S", "subjects": ["old"], "max_bytes": 5, "new_key": true});
        let desired: StreamConfig =
            serde_json::from_str(r#"{"name":"S","subjects":["a.>"],"replicas":3}"#).unwrap();
        merge(&mut config, stream_settings(&desired));
        assert_eq!(
            config,
            json!({"name": "S", "subjects": ["a.>"], "max_bytes": 5, "new_key": true,
                "num_replicas": 3, "max_age": 0, "duplicate_window": 120_000_000_000_u64})
        );
    }
}
