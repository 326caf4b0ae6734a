//! The configuration of JetStream: its domain, its streams, and whether the bridge manages them.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::message::Topic;
use crate::transport::{TopicFilter, overlap};

/// JetStream: streams and durable consumers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JetStreamConfig {
    /// The JetStream domain. By default, the server's own.
    ///
    /// Wrong: with a domain that does not exist, every JetStream request fails, because no server answers it.
    pub domain: Option<String>,

    /// Create and update the streams below and the durable consumers that bindings name. With `false` they must exist;
    /// missing ones are reported.
    #[serde(default)]
    pub manage: bool,

    /// How long the server waits for the acknowledgement of a message before it redelivers it, for consumers created
    /// here. The bridge extends it at half time while it processes the message, so that it expires only if this process
    /// ends, or has no connection for half of this time.
    ///
    /// Wrong: too short: duplicates after a short interruption.
    #[serde(default = "default_ack_wait", with = "crate::human_duration")]
    #[schemars(with = "String", extend("format" = "duration", "bounds" = ["1s", "1h"]))]
    pub ack_wait: Duration,

    /// The streams to create and update; used if `manage` is true.
    #[serde(default)]
    pub streams: Vec<StreamConfig>,
}

/// One managed stream. Settings that are not listed here stay as they are on an existing stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamConfig {
    /// The name of the stream: letters, digits, `_` and `-`.
    pub name: String,

    /// The subjects it stores, with the wildcards `*` and `>`. No two streams may store the same subject.
    #[schemars(extend("minItems" = 1))]
    pub subjects: Vec<String>,

    /// Number of replicas in the cluster, preferably odd.
    ///
    /// Wrong: with one replica, a stream is lost with its server.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 1, max = 5))]
    pub replicas: u32,

    /// Where messages are stored. It cannot be changed once the stream exists.
    #[serde(default)]
    pub storage: StreamStorage,

    /// How long a message is stored, at least `100ms`.
    ///
    /// Wrong: shorter than the longest outage of a reader: messages are lost.
    #[serde(
        default,
        with = "optional_duration",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<String>", extend("format" = "duration", "default_words" = "forever"))]
    pub max_age: Option<Duration>,

    /// How long a message id is remembered, so that a duplicate is not stored again; at least `100ms`, and not above
    /// `max_age`.
    ///
    /// Wrong: shorter than twice the longest restart: duplicates are stored.
    #[serde(default = "default_duplicate_window", with = "crate::human_duration")]
    #[schemars(with = "String", extend("format" = "duration"))]
    pub duplicate_window: Duration,
}

/// Where a stream stores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StreamStorage {
    /// On disk.
    #[default]
    File,
    /// In memory: gone with the server.
    Memory,
}

// === impl JetStreamConfig ===

impl Default for JetStreamConfig {
    fn default() -> Self {
        Self {
            domain: None,
            manage: false,
            ack_wait: default_ack_wait(),
            streams: Vec::new(),
        }
    }
}

impl JetStreamConfig {
    pub(super) fn problems(&self, unless: &mut impl FnMut(bool, &str, &str)) {
        let domain = self.domain.as_deref();
        unless(
            domain.is_none_or(is_name),
            "jetstream.domain",
            "must be one word",
        );
        for (index, stream) in self.streams.iter().enumerate() {
            let path = format!("jetstream.streams[{index}]");
            let mut earlier = self.streams.iter().take(index);
            unless(
                earlier.all(|other| other.name != stream.name),
                &format!("{path}.name"),
                &format!("{:?} is listed twice", stream.name),
            );
            stream.problems(&mut |holds, key: &str, message: &str| {
                unless(holds, &format!("{path}.{key}"), message);
            });
            self.overlaps(index, unless);
        }
    }

    /// Refuses subjects of a stream that overlap earlier ones, of this or of another stream, as a server does.
    fn overlaps<'a>(&'a self, index: usize, unless: &mut impl FnMut(bool, &str, &str)) {
        let of_stream = |stream: &'a StreamConfig| {
            let subjects = stream.subjects.iter();
            subjects.map(move |subject| (stream.name.as_str(), subject.as_str()))
        };
        let streams = self.streams.iter();
        let mut taken: Vec<_> = streams.take(index).flat_map(of_stream).collect();
        let own = self.streams.iter().skip(index).take(1).flat_map(of_stream);
        for (number, (name, subject)) in own.enumerate() {
            let mut earlier = taken.iter();
            let other = earlier.find(|(_, other)| overlap(other, subject));
            let message = other.map(|(stream, other)| {
                format!(
                    "{subject:?} overlaps {other:?} of the stream {stream}: the server refuses that, so remove one of them"
                )
            });
            let key = format!("jetstream.streams[{index}].subjects[{number}]");
            unless(
                message.is_none(),
                &key,
                message.as_deref().unwrap_or_default(),
            );
            taken.push((name, subject));
        }
    }

    /// Whether a managed stream takes the topic.
    #[must_use]
    pub fn manages(&self, topic: &Topic) -> bool {
        self.manage && self.stream_of(topic).is_some()
    }

    /// The listed stream that takes the topic.
    pub(in crate::nats) fn stream_of(&self, topic: &Topic) -> Option<&StreamConfig> {
        self.streams.iter().find(|stream| stream.takes(topic))
    }

    /// The prefix of the API's subjects.
    pub(in crate::nats) fn api_prefix(&self) -> String {
        match &self.domain {
            Some(domain) => format!("$JS.{domain}.API"),
            None => "$JS.API".to_owned(),
        }
    }
}

// === impl StreamConfig ===

impl StreamConfig {
    fn takes(&self, topic: &Topic) -> bool {
        let filters = self.subjects.iter();
        let mut filters = filters.flat_map(|subject| TopicFilter::new(subject.as_str()));
        filters.any(|filter| filter.matches(topic))
    }

    fn problems(&self, unless: &mut impl FnMut(bool, &str, &str)) {
        let least = Duration::from_millis(100);
        let word = "must be one word of letters, digits, '_' and '-'";
        unless(is_name(&self.name), "name", word);
        unless(
            !self.subjects.is_empty(),
            "subjects",
            "at least one is needed",
        );
        for (index, subject) in self.subjects.iter().enumerate() {
            let message = format!("{subject:?} is not a subject");
            let is_filter = TopicFilter::new(subject.as_str()).is_ok();
            unless(is_filter, &format!("subjects[{index}]"), &message);
        }
        unless(
            (1..=5).contains(&self.replicas),
            "replicas",
            "must be 1 to 5",
        );
        let (age, window) = (self.max_age, self.duplicate_window);
        let at_least = "must be at least 100ms";
        unless(age.is_none_or(|age| age >= least), "max_age", at_least);
        unless(window >= least, "duplicate_window", at_least);
        unless(
            age.is_none_or(|age| age >= window),
            "duplicate_window",
            "must not be above max_age",
        );
    }
}

// === impl StreamStorage ===

impl StreamStorage {
    /// The word of the JetStream API.
    pub(in crate::nats) fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Memory => "memory",
        }
    }
}

/// A name of a stream, consumer or domain: one word that needs no quoting in a subject.
pub(in crate::nats) fn is_name(name: &str) -> bool {
    (1..=255).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

fn default_ack_wait() -> Duration {
    Duration::from_secs(30)
}

fn default_replicas() -> u32 {
    1
}

fn default_duplicate_window() -> Duration {
    Duration::from_secs(120)
}

/// For `#[serde(with = "optional_duration")]`.
mod optional_duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    struct AsText(#[serde(with = "crate::human_duration")] Duration);

    pub(super) fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        duration.map(AsText).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<AsText>::deserialize(deserializer)?.map(|duration| duration.0))
    }
}
