//! The topics, streams and consumers that the configuration needs on a bus, with their settings.

#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
pub(crate) mod on_bus;
mod requirement;
#[cfg(feature = "nats")]
mod subjects;

use crate::access::Access;
use crate::config::{Config, Name, TransportConfig};

pub(crate) use self::requirement::{Defaults, Requirement, Resource, display};

/// The note on topics whose names come from events.
pub(crate) const NAMED: &str =
    "their names come from events: create them when you deploy the agents";

/// What the configuration needs on a bus.
pub(crate) fn requirements(
    config: &Config,
    transport: (&Name, &TransportConfig),
    uses: &[Access],
    defaults: Defaults,
) -> Vec<Requirement> {
    match transport {
        #[cfg(feature = "kafka")]
        (_, TransportConfig::Kafka(kafka)) => kafka::topics(config, kafka, uses, defaults),
        #[cfg(feature = "nats")]
        (name, TransportConfig::Nats(nats)) => nats::streams(config, name, nats, uses, defaults),
        (_, TransportConfig::Memory(_)) => Vec::new(),
    }
}

/// What a log of the state needs on a bus.
pub(crate) fn of_log(
    config: &Config,
    transport: &TransportConfig,
    used: &Access,
) -> Option<Requirement> {
    match (config, transport) {
        #[cfg(feature = "kafka")]
        (config, TransportConfig::Kafka(kafka)) => {
            let uses = std::slice::from_ref(used);
            kafka::topics(config, kafka, uses, Defaults::default()).pop()
        }
        #[cfg(feature = "nats")]
        (_, TransportConfig::Nats(_)) => nats::log(used),
        (_, TransportConfig::Memory(_)) => None,
    }
}
