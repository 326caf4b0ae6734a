//! The configuration of Kafka, and the librdkafka properties derived from it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use rdkafka::client::{Client, DefaultClientContext};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaType;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::error::failed;
use super::properties::KafkaProperties;
use crate::error::{ConfigProblem, TlsFindings, TransportError, TransportErrorKind};
use crate::message::fnv1a;
use crate::secret::Secret;
use crate::tls_files::{TlsClient, TlsFiles};
use crate::transport::LAG_INTERVAL;

/// A connection to one Kafka cluster. `bridge/CONFIGURATION.md` has the defaults and limits of all keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KafkaConfig {
    /// The brokers to connect to first, each `host:port`, or `host` for port 9092: a list, or one string with commas.
    /// The client discovers the rest of the cluster. If none of them answers, the transport is unavailable until one
    /// does.
    #[serde(deserialize_with = "one_or_many")]
    #[schemars(with = "OneOrMany", extend("minItems" = 1))]
    pub brokers: Vec<String>,

    /// The name of this client in the logs, metrics and quotas of brokers.
    #[serde(default = "default_client_id")]
    #[schemars(length(min = 1))]
    pub client_id: String,

    /// TLS to the brokers. Without it, traffic is not encrypted.
    pub tls: Option<KafkaTls>,

    /// How to log in. If absent, the bridge connects anonymously.
    pub sasl: Option<KafkaSasl>,

    /// How long a message that a binding forwards waits for others, to be sent in one request. `0s`: it waits only for
    /// earlier messages of its topic, if many are in flight. It must be less than `message_timeout`.
    ///
    /// With `1ms`, a bridge under load moves up to 1.5 times as many messages as with `0s`, with up to a quarter less
    /// CPU. Calls over HTTP, their answers, and what workflows publish never linger.
    #[serde(
        default = "default_linger",
        with = "crate::human_duration",
        rename = "linger"
    )]
    #[schemars(with = "String", extend("format" = "duration", "bounds" = ["0s", "1s"]))]
    pub linger: Duration,

    /// How long the client tries to deliver a message before its confirmation fails. More than `linger`.
    ///
    /// Wrong: too short: failures during a leader election. Too long: failures are reported late.
    #[serde(default = "default_message_timeout", with = "crate::human_duration")]
    #[schemars(with = "String", extend("format" = "duration", "bounds" = ["1s", "15m"]))]
    pub message_timeout: Duration,

    /// Maximum size of a sent message, and roughly of a request, in bytes. A larger message is refused as `too_large`
    /// without a request to the broker.
    ///
    /// Wrong: larger than the smallest `max.message.bytes` of the topics that the bridge writes to: the broker then
    /// refuses whole requests, including the small messages in them.
    #[serde(default = "default_max_message_bytes")]
    #[schemars(range(min = 1_000, max = 1_000_000_000))]
    pub max_message_bytes: u32,

    /// Compression of sent messages; `none` has the lowest latency. Received messages may have any compression.
    #[serde(default)]
    pub compression: Compression,

    /// How long the group waits for a silent member before it gives its partitions to others.
    ///
    /// - It must be within the broker's `group.min.session.timeout.ms` and `group.max.session.timeout.ms`.
    /// - When partitions move, messages in progress have half of `session_timeout` to settle, at most 60 s.
    /// - The group `REPLY_TOPIC.forward`, which forwards answers, uses at most 10 s, unless the broker requires more.
    ///
    /// Wrong: too short: partitions move under load. Too long: messages in the partitions of a process that died wait
    /// that long.
    #[serde(default = "default_session_timeout", with = "crate::human_duration")]
    #[schemars(with = "String", extend("format" = "duration", "bounds" = ["1s", "30m"]))]
    pub session_timeout: Duration,

    /// Static membership: a name of this process that stays the same after a restart and that no other process has. A
    /// restart within `session_timeout` then moves no partitions.
    ///
    /// Wrong: a second process with the same name ends the subscriptions of the first, which is not ready until it is
    /// restarted, but still serves HTTP.
    #[schemars(length(min = 1))]
    pub instance_id: Option<String>,

    /// Further librdkafka properties, passed to the producer and the consumers. A property is refused if it has its own
    /// key here, if a guarantee depends on it, or if librdkafka does not know it or does not accept its value.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    pub properties: KafkaProperties,
}

/// TLS to the brokers. The broker's certificate is always verified. The files are read at start-up: restart the bridge
/// after you renew a certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KafkaTls {
    /// Certificates of the authorities that sign the brokers' certificates. Path of a PEM file. By default, the
    /// system's certificates are used.
    pub ca_file: Option<PathBuf>,
    /// The client certificate with its chain, for brokers that require one. Path of a PEM file; needs `key_file`.
    pub cert_file: Option<PathBuf>,
    /// The key of the client certificate. Path of a PEM file; needs `cert_file`.
    pub key_file: Option<PathBuf>,
    /// The password of the key. Needs `key_file`.
    pub key_password: Option<Secret>,
    /// Accept a trusted certificate for any host name.
    ///
    /// Wrong: with `true`, any holder of such a certificate can impersonate the broker.
    #[serde(default)]
    pub insecure_skip_hostname: bool,
}

/// How to log in to the brokers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KafkaSasl {
    /// The mechanism.
    pub mechanism: SaslMechanism,
    /// The user.
    #[schemars(length(min = 1))]
    pub username: String,
    /// The password. If it comes from a file, the bridge reads the file again when the cluster refuses the old
    /// password; reading then pauses for up to a minute. Otherwise restart the bridge after you change it.
    pub password: Secret,
    /// Allow `PLAIN` without TLS.
    ///
    /// Wrong: with `true`, anyone on the network can read the password.
    #[serde(default)]
    pub insecure_plaintext: bool,
}

/// A SASL mechanism of this build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SaslMechanism {
    /// Sends the password.
    #[serde(rename = "PLAIN")]
    Plain,
    /// Challenge-response with SHA-256.
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    /// Challenge-response with SHA-512.
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
}

/// Compression of sent messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// None.
    #[default]
    None,
    /// Fast, with little CPU.
    Lz4,
    /// The smallest messages.
    Zstd,
    /// For old brokers and consumers.
    Gzip,
}

/// The schema of [`KafkaConfig::brokers`].
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// The memory of messages waiting for the broker, in KiB. More if the largest message needs more than half of it.
const PRODUCER_QUEUE_KIB: u32 = 64 * 1024;

// === impl KafkaConfig ===

impl KafkaConfig {
    /// The defaults, with these brokers.
    #[must_use]
    pub fn new(brokers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            brokers: brokers.into_iter().map(Into::into).collect(),
            client_id: default_client_id(),
            tls: None,
            sasl: None,
            linger: default_linger(),
            message_timeout: default_message_timeout(),
            max_message_bytes: default_max_message_bytes(),
            compression: Compression::default(),
            session_timeout: default_session_timeout(),
            instance_id: None,
            properties: KafkaProperties::default(),
        }
    }

    /// The secrets that a client needs, each with the path of the key below this one: `sasl.password`.
    #[must_use]
    pub fn secrets(&self) -> Vec<(&'static str, Secret)> {
        let key = self.tls.as_ref().and_then(|tls| tls.key_password.clone());
        let key = key.map(|secret| ("tls.key_password", secret));
        let password = self.sasl.as_ref().map(|sasl| sasl.password.clone());
        let password = password.map(|secret| ("sasl.password", secret));
        key.into_iter().chain(password).collect()
    }

    /// Everything that is wrong. Touches neither network nor files.
    #[must_use]
    pub fn problems(&self) -> Vec<ConfigProblem> {
        let mut problems = Vec::new();
        let mut unless = |holds: bool, key: &str, message: &str| {
            problems.extend((!holds).then(|| ConfigProblem::new(key, message)));
        };
        let not_empty = "must not be empty";
        unless(
            !self.brokers.is_empty() && self.brokers.iter().all(|broker| is_address(broker)),
            "brokers",
            "write at least one broker, as host or host:port",
        );
        unless(is_word(&self.client_id), "client_id", not_empty);
        let instance = self.instance_id.as_deref();
        unless(instance.is_none_or(is_word), "instance_id", not_empty);
        unless(
            self.linger <= Duration::from_secs(1),
            "linger",
            "at most 1s",
        );
        unless(
            self.linger < self.message_timeout,
            "linger",
            "less than message_timeout",
        );
        let message_timeout = within(self.message_timeout, 1, 15 * 60);
        unless(message_timeout, "message_timeout", "1s to 15m");
        unless(
            (1_000..=1_000_000_000).contains(&self.max_message_bytes),
            "max_message_bytes",
            "1000 to 1000000000",
        );
        let session_timeout = within(self.session_timeout, 1, 30 * 60);
        unless(session_timeout, "session_timeout", "1s to 30m");
        self.security_problems(&mut unless);
        problems.extend(self.properties.problems());
        problems
    }

    /// What librdkafka refuses although it accepts each value alone. Creates a producer and a consumer as the transport
    /// does, but without brokers, so that nothing connects, and ends them. Reads the secrets and the TLS files. The
    /// caller must have reported their own problems, and [`KafkaConfig::problems`].
    #[must_use]
    pub fn refusals(&self) -> Vec<ConfigProblem> {
        // A client would run the plugins.
        if self.properties.has_plugins() {
            return Vec::new();
        }
        let clients = [
            (RDKafkaType::RD_KAFKA_PRODUCER, self.producer(self.linger)),
            (
                RDKafkaType::RD_KAFKA_CONSUMER,
                self.member("check", &[], self.session_timeout)
                    .map(Properties::build),
            ),
        ];
        let refusals = clients
            .into_iter()
            .filter_map(|(kind, config)| self.refusal(kind, config.ok()?));
        let mut refusals = Vec::from_iter(refusals);
        // A rule for all clients refuses both in the same words.
        refusals.dedup();
        refusals
    }

    fn refusal(&self, kind: RDKafkaType, mut config: ClientConfig) -> Option<ConfigProblem> {
        config.remove("bootstrap.servers");
        let created = config
            .create_native_config()
            .and_then(|native| Client::new(&config, native, kind, DefaultClientContext));
        let why = match created.err()? {
            // This text names properties, but contains no value.
            KafkaError::ClientCreation(why) => why,
            error => failed("create the client", error).to_string(),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
        let mut words = why.split(|c| !is_name(c));
        let key = words.find(|word| self.properties.has(word));
        let key = key.map_or_else(String::new, |name| format!("properties.{name}"));
        let message = format!("librdkafka refuses the client: {why}");
        Some(ConfigProblem::new(key, message))
    }

    fn security_problems(&self, unless: &mut impl FnMut(bool, &str, &str)) {
        if let Some(tls) = &self.tls {
            unless(
                tls.cert_file.is_some() == tls.key_file.is_some(),
                "tls",
                "set both cert_file and key_file, or neither",
            );
            unless(
                tls.key_password.is_none() || tls.key_file.is_some(),
                "tls.key_password",
                "needs key_file",
            );
        }
        if let Some(sasl) = &self.sasl {
            unless(
                is_word(&sasl.username),
                "sasl.username",
                "must not be empty",
            );
            let is_plain = sasl.mechanism == SaslMechanism::Plain;
            unless(
                !is_plain || self.tls.is_some() || sasl.insecure_plaintext,
                "sasl.mechanism",
                "PLAIN without tls sends the password unencrypted; set insecure_plaintext to allow it",
            );
        }
    }

    /// The memory of the producer's queue, in KiB. If a message is larger than the queue, librdkafka always reports the
    /// queue as full.
    fn producer_queue_kib(&self) -> u32 {
        PRODUCER_QUEUE_KIB.max(2 * self.max_message_bytes.div_ceil(1_024))
    }

    /// Properties of the producer.
    pub(super) fn producer(&self, linger: Duration) -> Result<ClientConfig, TransportError> {
        let mut config = self.client()?;
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("linger.ms", milliseconds(linger))
            .set("message.timeout.ms", milliseconds(self.message_timeout))
            .set(
                "queue.buffering.max.kbytes",
                self.producer_queue_kib().to_string(),
            )
            .set("compression.type", self.compression.as_str())
            .set("message.max.bytes", self.max_message_bytes.to_string())
            // The partitioner of the Java clients: one key, one partition, whoever writes.
            .set_default("partitioner", "murmur2_random")
            // Topics are created before they are written to, so an unknown one need not be waited for long.
            .set_default("topic.metadata.propagation.max.ms", "10000");
        Ok(config.build())
    }

    /// Properties that every consumer has.
    pub(super) fn consumer(&self, group: &str) -> Result<Properties, TransportError> {
        let mut config = self.client()?;
        config
            .set("group.id", group)
            .set("isolation.level", "read_committed")
            .set("auto.offset.reset", "earliest")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "false")
            // New partitions are found after this time. The default is 5 minutes.
            .set_default("topic.metadata.refresh.interval.ms", "60000")
            // Prefetched records are outside the budget of the subscription, and thrown away by each pause.
            .set_default("queued.max.messages.kbytes", "16384")
            .set_default("queued.min.messages", "1000")
            // With so short a queue the default of a second would let it run dry.
            .set_default("fetch.queue.backoff.ms", "5")
            .set_default("fetch.min.bytes", "1")
            .set_default("fetch.wait.max.ms", "500");
        Ok(config)
    }

    /// Properties of a group member, which commits the offsets that it has stored.
    pub(super) fn member(
        &self,
        group: &str,
        topics: &[&str],
        session_timeout: Duration,
    ) -> Result<Properties, TransportError> {
        let mut config = self.consumer(group)?;
        config
            .set("enable.auto.commit", "true")
            .set("auto.commit.interval.ms", "1000")
            // They show how far behind the group is, and open transactions.
            .set("statistics.interval.ms", milliseconds(LAG_INTERVAL))
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("session.timeout.ms", milliseconds(session_timeout))
            // 300 s, the default, or the session if that is longer: librdkafka refuses less than the session.
            .set(
                "max.poll.interval.ms",
                milliseconds(session_timeout.max(Duration::from_secs(300))),
            );
        if session_timeout < Duration::from_secs(9) || session_timeout < self.session_timeout {
            // Brokers ask for heartbeats well within the session; the default is 3 s. One that is configured is for the
            // configured session.
            let heartbeat = session_timeout.as_millis() / 3;
            config.set("heartbeat.interval.ms", heartbeat.to_string());
        }
        if let Some(instance) = &self.instance_id {
            // Two subscriptions of one group in one process are two members, and must not share a name.
            config.set(
                "group.instance.id",
                format!("{instance}-{:08x}", fingerprint(topics)),
            );
        }
        Ok(config)
    }

    /// Properties of a reader that keeps no position.
    pub(super) fn live(&self, group: &str) -> Result<Properties, TransportError> {
        let mut config = self.consumer(group)?;
        config.set("enable.auto.commit", "false");
        Ok(config)
    }

    /// Properties of any client.
    pub(super) fn client(&self) -> Result<Properties, TransportError> {
        let mut config = Properties::default();
        config
            .set("bootstrap.servers", self.brokers.join(","))
            .set("client.id", &self.client_id)
            .set("security.protocol", self.security_protocol())
            // Neither a metadata request nor a publication creates a topic by accident.
            .set("allow.auto.create.topics", "false")
            .set_default("reconnect.backoff.max.ms", "1000")
            // A broker that was paused may never answer on a connection that was opened meanwhile.
            .set_default("socket.connection.setup.timeout.ms", "10000")
            .set_default("socket.keepalive.enable", "true")
            .set_default("enable.metrics.push", "false");
        if let Some(tls) = &self.tls {
            set_tls(&mut config, tls)?;
        }
        if let Some(sasl) = &self.sasl {
            config
                .set("sasl.mechanisms", sasl.mechanism.as_str())
                .set("sasl.username", &sasl.username)
                .set("sasl.password", reveal("sasl.password", &sasl.password)?);
        }
        config.passed = self.properties.to_map();
        Ok(config)
    }

    /// Reads the TLS files. Returns their problems.
    pub fn tls_findings(&self) -> TlsFindings {
        let findings = self.tls.as_ref().map(KafkaTls::findings);
        findings.unwrap_or_default()
    }

    fn security_protocol(&self) -> &'static str {
        match (self.tls.is_some(), self.sasl.is_some()) {
            (false, false) => "plaintext",
            (true, false) => "ssl",
            (false, true) => "sasl_plaintext",
            (true, true) => "sasl_ssl",
        }
    }
}

fn set_tls(config: &mut Properties, tls: &KafkaTls) -> Result<(), TransportError> {
    if let Some(authorities) = tls.ca_file.clone().or_else(system_authorities) {
        config.set("ssl.ca.location", authorities.to_string_lossy());
    }
    if let Some(file) = &tls.cert_file {
        config.set("ssl.certificate.location", file.to_string_lossy());
    }
    if let Some(file) = &tls.key_file {
        config.set("ssl.key.location", file.to_string_lossy());
    }
    if let Some(password) = &tls.key_password {
        config.set("ssl.key.password", reveal("tls.key_password", password)?);
    }
    let check = if tls.insecure_skip_hostname {
        "none"
    } else {
        "https"
    };
    config.set("ssl.endpoint.identification.algorithm", check);
    Ok(())
}

/// Where the system keeps its certificate authorities: the vendored OpenSSL looks where it was built, not where it
/// runs.
fn system_authorities() -> Option<PathBuf> {
    let found = openssl_probe::probe();
    found
        .cert_file
        .or_else(|| found.cert_dir.into_iter().next())
}

fn reveal(key: &str, secret: &Secret) -> Result<String, TransportError> {
    match secret.reveal() {
        Ok(text) => Ok(text.as_str().to_owned()),
        Err(error) => Err(TransportError::new(
            TransportErrorKind::BadConfig,
            format!("read {key}"),
        )
        .caused_by(error)),
    }
}

// === impl KafkaTls ===

impl KafkaTls {
    /// The problems of the files.
    fn findings(&self) -> TlsFindings {
        let files = TlsFiles {
            // OpenSSL takes a directory as well.
            authorities: self.ca_file.as_deref().filter(|file| !file.is_dir()),
            certificate: self.cert_file.as_deref(),
            key: self.key_file.as_deref(),
            client: TlsClient::OpenSsl {
                has_password: self.key_password.is_some(),
            },
        };
        files.inspect()
    }
}

// === impl SaslMechanism ===

impl SaslMechanism {
    fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

// === impl Compression ===

impl Compression {
    fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
        }
    }
}

/// librdkafka properties in three layers: ours to change, the user's, ours to keep. `Debug` is left out on purpose:
/// passwords are in here.
#[derive(Default)]
pub(super) struct Properties {
    defaults: BTreeMap<&'static str, String>,
    passed: BTreeMap<String, String>,
    fixed: BTreeMap<&'static str, String>,
}

// === impl Properties ===

impl Properties {
    /// A property the user may not change.
    pub(super) fn set(&mut self, key: &'static str, value: impl Into<String>) -> &mut Self {
        self.fixed.insert(key, value.into());
        self
    }

    /// A property the user may change.
    fn set_default(&mut self, key: &'static str, value: impl Into<String>) -> &mut Self {
        self.defaults.insert(key, value.into());
        self
    }

    /// The librdkafka configuration.
    pub(super) fn build(self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set_log_level(RDKafkaLogLevel::Info);
        for (key, value) in self.defaults {
            config.set(key, value);
        }
        for (key, value) in self.passed {
            config.set(key, value);
        }
        for (key, value) in self.fixed {
            config.set(key, value);
        }
        config
    }
}

fn default_client_id() -> String {
    "a2abus".to_owned()
}

fn default_linger() -> Duration {
    Duration::from_millis(1)
}

fn default_message_timeout() -> Duration {
    Duration::from_secs(120)
}

fn default_max_message_bytes() -> u32 {
    1_000_000
}

fn default_session_timeout() -> Duration {
    Duration::from_secs(45)
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(text) => text
            .split(',')
            .map(|broker| broker.trim().to_owned())
            .collect(),
        OneOrMany::Many(list) => list,
    })
}

fn is_address(broker: &str) -> bool {
    is_word(broker)
        && !broker.contains([',', '/'])
        && broker
            .rsplit_once(':')
            .is_none_or(|(_, port)| port.parse::<u16>().is_ok() || broker.ends_with(']'))
}

/// Not empty, and nothing in it that would cut a C string short or start another entry.
fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_control() || c.is_whitespace())
}

fn within(duration: Duration, least_seconds: u64, most_seconds: u64) -> bool {
    (Duration::from_secs(least_seconds)..=Duration::from_secs(most_seconds)).contains(&duration)
}

/// Milliseconds with the fraction that `linger.ms` understands; whole numbers are written without one.
pub(super) fn milliseconds(duration: Duration) -> String {
    let micros = duration.as_micros();
    if micros.is_multiple_of(1000) {
        (micros / 1000).to_string()
    } else {
        format!("{}.{:03}", micros / 1000, micros % 1000)
    }
}

fn fingerprint(topics: &[&str]) -> u32 {
    fnv1a(topics.iter().flat_map(|topic| topic.bytes().chain([b','])))
}

#[cfg(test)]
mod tests;
