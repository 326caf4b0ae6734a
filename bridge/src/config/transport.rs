//! The `transports` section: the buses.

use a2abus_transports::memory::MemoryConfig;
use a2abus_transports::{ConfigProblem, Secret, TlsFindings, Topic};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One bus, by its `type`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TransportConfig {
    /// Apache Kafka.
    #[cfg(feature = "kafka")]
    Kafka(a2abus_transports::kafka::KafkaConfig),
    /// NATS, core and JetStream.
    #[cfg(feature = "nats")]
    Nats(a2abus_transports::nats::NatsConfig),
    /// In this process; messages are lost when it exits. There are at most 10,000 topics, and those that nobody reads hold
    /// at most 64 MiB together: beyond that, the oldest of them are dropped.
    Memory(MemoryConfig),
}

/// Which bus it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransportType {
    /// Apache Kafka.
    Kafka,
    /// NATS.
    Nats,
    /// Inside this process.
    Memory,
}

impl TransportConfig {
    /// Which bus it is.
    #[must_use]
    pub fn transport_type(&self) -> TransportType {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => TransportType::Kafka,
            #[cfg(feature = "nats")]
            Self::Nats(_) => TransportType::Nats,
            Self::Memory(_) => TransportType::Memory,
        }
    }

    /// The same, but without the creation of streams and consumers.
    #[cfg(any(feature = "kafka", feature = "nats"))]
    pub(crate) fn without_management(&self) -> Self {
        match self {
            #[cfg(feature = "nats")]
            Self::Nats(config) => {
                let mut config = config.clone();
                config.jetstream.manage = false;
                Self::Nats(config)
            }
            other => other.clone(),
        }
    }

    /// The problems that the transport itself finds.
    pub(super) fn problems(&self) -> Vec<ConfigProblem> {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(config) => config.problems(),
            #[cfg(feature = "nats")]
            Self::Nats(config) => config.problems(),
            Self::Memory(_) => Vec::new(),
        }
    }

    /// Values that are allowed but dangerous.
    pub(super) fn warnings(&self) -> Vec<ConfigProblem> {
        match self {
            #[cfg(feature = "nats")]
            Self::Nats(config) => config.warnings(),
            _ => Vec::new(),
        }
    }

    /// The largest message that it sends, in bytes, if the configuration sets it.
    pub(super) fn max_message_bytes(&self) -> Option<u64> {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(config) => Some(config.max_message_bytes.into()),
            // The server sets this limit.
            #[cfg(feature = "nats")]
            Self::Nats(_) => None,
            Self::Memory(config) => u64::try_from(config.max_message_bytes.get()).ok(),
        }
    }

    /// Whether the bridge itself creates a stream that stores the topic.
    pub(super) fn manages(&self, topic: &Topic) -> bool {
        match (self, topic) {
            #[cfg(feature = "nats")]
            (Self::Nats(config), topic) => config.jetstream.manages(topic),
            _ => false,
        }
    }

    /// The secrets it needs, each with its key, such as `sasl.password`.
    pub(super) fn secrets(&self) -> Vec<(&'static str, Secret)> {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(config) => config.secrets(),
            #[cfg(feature = "nats")]
            Self::Nats(config) => config.secrets(),
            Self::Memory(_) => Vec::new(),
        }
    }

    /// Why it could not log in, although its secrets can be read.
    pub(super) fn login_problem(&self) -> Option<ConfigProblem> {
        match self {
            #[cfg(feature = "nats")]
            Self::Nats(config) => config.login_problem(),
            _ => None,
        }
    }

    /// What its client refuses although each value alone is right. Nothing connects.
    pub(super) fn refusals(&self) -> Vec<ConfigProblem> {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(config) => config.refusals(),
            _ => Vec::new(),
        }
    }

    /// Reads its TLS files and its credentials, and returns what is wrong with them.
    pub(crate) fn tls_findings(&self) -> TlsFindings {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(config) => config.tls_findings(),
            #[cfg(feature = "nats")]
            Self::Nats(config) => config.tls_findings(),
            Self::Memory(_) => TlsFindings::default(),
        }
    }
}
