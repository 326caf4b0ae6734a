//! Which librdkafka properties may be set by name, and which values may be printed.

use std::collections::BTreeMap;
use std::fmt;

use rdkafka::config::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;
use serde::{Deserialize, Serialize, Serializer};

use crate::error::ConfigProblem;

/// Further librdkafka properties by name. `Debug` and `Serialize` print `***` for the value of a property that holds a
/// secret: such a configuration is refused, but may have been printed before.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct KafkaProperties(BTreeMap<String, String>);

/// Properties that hold a secret, and what to use instead. A secret must not be in the configuration: everybody who
/// reads the file would see it, and it would not be read again when it changes.
const SECRETS: &[(&str, &str)] = &[
    ("sasl.password", "use sasl.password, a secret reference"),
    (
        "ssl.key.password",
        "use tls.key_password, a secret reference",
    ),
    ("ssl.key.pem", "use tls.key_file"),
    ("ssl_key", "use tls.key_file"),
    (
        "ssl.keystore.password",
        "use tls.cert_file, tls.key_file and tls.key_password",
    ),
];

/// Words in the names of properties that hold a secret.
const SECRET_WORDS: &[&str] = &[
    "credential",
    "jaas",
    "key.pem",
    "passphrase",
    "password",
    "secret",
    "token",
];

/// Properties that cannot be set here: they have a key above, or a guarantee depends on them.
const OWNED: &[&str] = &[
    "acks",
    "allow.auto.create.topics",
    "auto.commit.enable",
    "auto.commit.interval.ms",
    "auto.offset.reset",
    "bootstrap.servers",
    "client.id",
    "compression.codec",
    "compression.type",
    "delivery.report.only.error",
    "delivery.timeout.ms",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.gapless.guarantee",
    "enable.idempotence",
    "enable.partition.eof",
    "enable.sasl.oauthbearer.unsecure.jwt",
    "enable.ssl.certificate.verification",
    "group.id",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "isolation.level",
    "linger.ms",
    "log.queue",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "max.poll.interval.ms",
    "message.max.bytes",
    "message.send.max.retries",
    "message.timeout.ms",
    "metadata.broker.list",
    "partition.assignment.strategy",
    "queue.buffering.max.kbytes",
    "queue.buffering.max.ms",
    "queuing.strategy",
    "request.required.acks",
    "retries",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "security.protocol",
    "session.timeout.ms",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "statistics.interval.ms",
    "transactional.id",
];

// === impl KafkaProperties ===

impl KafkaProperties {
    /// The real properties, which must not be printed.
    pub(super) fn to_map(&self) -> BTreeMap<String, String> {
        self.0.clone()
    }

    /// The fault of each property that must not be set, or that librdkafka refuses.
    pub(super) fn problems(&self) -> impl Iterator<Item = ConfigProblem> {
        self.0.iter().filter_map(move |(key, value)| {
            let problem = if let Some(instead) = secret(key) {
                &format!("a secret may not be in the configuration; {instead}")
            } else if is_owned(key) {
                "is set by a2abus; use its own key if there is one"
            } else {
                self.refusal(key, value)?
            };
            Some(ConfigProblem::new(format!("properties.{key}"), problem))
        })
    }

    /// Whether a property is set here.
    pub(super) fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// Whether a client would load plugins.
    pub(super) fn has_plugins(&self) -> bool {
        self.has("plugin.library.paths")
    }

    /// Why librdkafka refuses a property. Creates no client, so nothing connects.
    fn refusal(&self, key: &str, value: &str) -> Option<&'static str> {
        // They may know the other properties.
        if self.has_plugins() {
            return None;
        }
        let set = ClientConfig::new().set(key, value).create_native_config();
        // librdkafka's text repeats the value, which may be a secret.
        match set.err()? {
            KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..) => {
                Some("librdkafka has no such property")
            }
            _ => Some("librdkafka does not accept this value"),
        }
    }

    /// The properties in a form that may be printed.
    fn visible(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| {
            let value = secret(key).map_or(value.as_str(), |_| "***");
            (key.as_str(), value)
        })
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for KafkaProperties {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(properties: I) -> Self {
        let text = |(key, value): (K, V)| (key.into(), value.into());
        Self(properties.into_iter().map(text).collect())
    }
}

impl fmt::Debug for KafkaProperties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.visible()).finish()
    }
}

impl Serialize for KafkaProperties {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.visible())
    }
}

/// What to use instead of a property, if it holds a secret.
fn secret(key: &str) -> Option<&'static str> {
    let key = key.to_ascii_lowercase();
    let known = SECRETS.iter().find(|(name, _)| *name == key);
    let looks = || SECRET_WORDS.iter().any(|word| key.contains(word));
    match known {
        Some((_, instead)) => Some(instead),
        None if looks() => Some("secrets come from files and the environment; use sasl and tls"),
        None => None,
    }
}

fn is_owned(key: &str) -> bool {
    OWNED.contains(&key) || key.starts_with("test.") || key.starts_with("sasl.oauthbearer.")
}
