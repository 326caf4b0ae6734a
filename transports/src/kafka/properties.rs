//! What may be passed to librdkafka by name, and what may be shown of it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use crate::error::ConfigProblem;

/// Further librdkafka properties by name. `Debug` and `Serialize` print `***` for the value of a property that is for a
/// secret: such a configuration is refused, and may have been printed before that.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct KafkaProperties(BTreeMap<String, String>);

/// Properties that are for a secret, and what to use for it. A secret may not stand in a configuration: it would be
/// read by everybody who reads that, and not be read anew when it changes.
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

/// Words in the name of a property that is for a secret.
const SECRET_WORDS: &[&str] = &[
    "credential",
    "jaas",
    "key.pem",
    "passphrase",
    "password",
    "secret",
    "token",
];

/// Properties nobody may pass: they have a key above, or a guarantee rests on them.
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
    /// The properties as they are, which may not be shown.
    pub(super) fn to_map(&self) -> BTreeMap<String, String> {
        self.0.clone()
    }

    /// What is wrong with each that may not be passed, after its place.
    pub(super) fn problems(&self) -> impl Iterator<Item = ConfigProblem> {
        self.0.keys().filter_map(|key| {
            let problem = if let Some(instead) = secret(key) {
                &format!("a secret may not be in the configuration; {instead}")
            } else if is_owned(key) {
                "is set by a2abus; use its own key if there is one"
            } else {
                return None;
            };
            Some(ConfigProblem::new(format!("properties.{key}"), problem))
        })
    }

    /// The properties as they may be shown.
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

/// What to use instead of a property that is for a secret, if it is one.
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
