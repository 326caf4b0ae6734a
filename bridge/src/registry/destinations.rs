//! Where do the requests of an announced agent go?

use std::collections::BTreeMap;

use a2abus_plugin::{Event, Text, extension};
use a2abus_transports::{Topic, TopicFilter};
use globset::GlobSet;

use super::card::Card;
use crate::config::{
    AgentCardConfig, AsText, Config, DestinationConfig, RegistryDestination, Role, RouteConfig,
    TransportConfig, TransportType,
};
use crate::names::{Name, Pattern, Template};
use crate::route::{Route, RouteError};
use crate::state::{LOGS, LogLocation, LogSpec};

/// The destinations that `registry.destinations` allows.
#[derive(Debug)]
pub(super) struct AllowedDestinations {
    destinations: Vec<AllowedDestination>,
    /// The topics that the bridge itself reads and writes, by transport. No card may name them.
    own: Vec<OwnTopics>,
}

/// Topics that the bridge itself reads or writes.
#[derive(Debug)]
struct OwnTopics {
    transport: Name,
    topics: TopicFilter,
    /// The attached agent whose requests they have.
    agent: Option<Text>,
}

#[derive(Debug)]
struct AllowedDestination {
    to: DestinationConfig,
    topics: GlobSet,
}

// === impl AllowedDestinations ===

impl AllowedDestinations {
    /// The allowed destinations of a configuration.
    ///
    /// # Errors
    /// When a pattern is not a valid glob.
    pub(super) fn new(config: &Config) -> Result<Self, globset::Error> {
        let destinations = config
            .registry
            .destinations
            .iter()
            .map(AllowedDestination::new);
        Ok(Self {
            destinations: destinations.collect::<Result<_, _>>()?,
            own: bridge_topics(config),
        })
    }

    /// Whether `registry.destinations` has an entry for a transport.
    pub(super) fn has(&self, transport: &Name) -> bool {
        self.destinations
            .iter()
            .any(|allowed| allowed.to.transport == *transport)
    }

    /// The route of an agent whose card or announcement names this transport. `None` if `registry.destinations` is empty
    /// and the card names no destination.
    ///
    /// # Errors
    /// Why the card may not name this destination, or why the agent's name cannot be part of a topic.
    pub(super) fn route(
        &self,
        agent: &Name,
        transport: Option<&Name>,
        card: &Card,
    ) -> Result<Option<Route>, String> {
        let matches = |allowed: &&AllowedDestination| {
            transport.is_none_or(|name| allowed.to.transport == *name)
        };
        let mut destinations = self.destinations.iter().filter(matches).peekable();
        if destinations.peek().is_none() {
            return match (transport, &card.topic) {
                (None, None) => Ok(None),
                (Some(transport), _) => Err(format!(
                    "requests cannot go to the transport {transport}: registry.destinations has no entry for it"
                )),
                (None, Some(_)) => {
                    Err("a card may not name a topic: registry.destinations is empty".to_owned())
                }
            };
        }
        let Some(topic) = &card.topic else {
            let allowed = destinations.next().map(|allowed| allowed.to.clone());
            return allowed.map(|to| self.route_to(agent, to)).transpose();
        };
        let topic = Topic::new(topic.clone()).map_err(|error| error.to_string())?;
        for allowed in destinations {
            let named = self.route_to(agent, allowed.to.clone())?;
            let is_default = topic_of(&named, agent).is_ok_and(|own| own == topic);
            if is_default {
                return Ok(Some(named));
            }
            if allowed.topics.is_match(topic.as_str()) {
                let to = DestinationConfig {
                    topic: AsText(Template::new(topic.as_str()).map_err(|e| e.to_string())?),
                    ..allowed.to.clone()
                };
                return self.route_to(agent, to).map(Some);
            }
        }
        Err(format!(
            "requests cannot go to the topic {topic}: registry.destinations[].topics does not allow it"
        ))
    }

    /// Refuses the bridge's own topics: it publishes with its own permissions, so a card must not choose them. An agent
    /// that this bridge has attached may announce its own topic: that is how other replicas find it.
    fn check_own(&self, agent: &Name, transport: &Name, topic: &Topic) -> Result<(), String> {
        let is_own = |own: &OwnTopics| {
            own.transport == *transport
                && own.topics.matches(topic)
                && own.agent.as_deref() != Some(agent.as_str())
        };
        if topic.as_str().starts_with(['_', '$']) || self.own.iter().any(is_own) {
            return Err(format!(
                "requests cannot go to the topic {topic}: it is one of the bridge's own"
            ));
        }
        Ok(())
    }

    fn route_to(&self, agent: &Name, to: DestinationConfig) -> Result<Route, String> {
        let transport = to.transport.clone();
        let config = RouteConfig {
            name: AgentCardConfig::route_name(agent.as_str())?,
            when: BTreeMap::new(),
            to: vec![to],
            convert: None,
            validate: false,
        };
        let route = Route::announced(&config).map_err(|error| error.to_string())?;
        match topic_of(&route, agent) {
            Ok(topic) => self.check_own(agent, &transport, &topic).map(|()| route),
            // Other attributes of the template come from the requests.
            Err(RouteError::MissingAttribute { .. }) => Ok(route),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The topic for the requests of an agent.
fn topic_of(route: &Route, agent: &Name) -> Result<Topic, RouteError> {
    let bad = |error: &dyn std::fmt::Display| RouteError::BadTopic(error.to_string());
    let event = Event::new("1".into(), "/a2abus".into(), "request".into());
    let mut event = event.map_err(|error| bad(&error))?;
    event
        .set(extension::TARGET_AGENT, agent.text().clone())
        .map_err(|error| bad(&error))?;
    let to = route.destinations().first();
    let to = to.ok_or_else(|| bad(&"there is no destination"))?;
    to.resolve(&event, "", None)
        .map(|resolved| resolved.address.topic)
}

// === impl AllowedDestination ===

impl AllowedDestination {
    fn new(config: &RegistryDestination) -> Result<Self, globset::Error> {
        Ok(Self {
            to: config.to.clone(),
            topics: Pattern::set(config.topics.iter().map(|pattern| &pattern.0))?,
        })
    }
}

/// The topics of the bridge itself: those it reads, and those of dead letters, answers and logs.
fn bridge_topics(config: &Config) -> Vec<OwnTopics> {
    let own_topics = |transport: &Name, topics| OwnTopics {
        transport: transport.clone(),
        topics,
        agent: None,
    };
    let mut own = Vec::new();
    for binding in config.bindings.iter().chain(&config.reply_bindings()) {
        let attached = match binding.role {
            Role::Agent => AgentCardConfig::attached_by(&binding.name),
            _ => None,
        };
        own.extend(binding.topics.iter().map(|topics| OwnTopics {
            agent: attached.map(Text::from),
            ..own_topics(&binding.transport, topics.0.clone())
        }));
        let letters = TopicFilter::from(binding.dead_letter.topic.0.clone());
        own.push(own_topics(binding.dead_letter_transport(), letters));
    }
    for (transport, settings) in &config.transports {
        let replies = &config.calls.reply_topic.0;
        own.push(own_topics(transport, TopicFilter::from(replies.clone())));
        own.extend(below(replies).map(|below| own_topics(transport, below)));
        if config.state.log == *transport {
            let logs = LOGS
                .iter()
                .filter_map(|log| log_topics(log, settings, config));
            own.extend(logs.map(|topics| own_topics(transport, topics)));
        }
    }
    own
}

/// Where a log of the state is stored on this transport.
fn log_topics(log: &LogSpec, transport: &TransportConfig, config: &Config) -> Option<TopicFilter> {
    let prefix = &config.state.prefix.0;
    let location = match transport.transport_type() {
        TransportType::Nats => LogLocation::on_jetstream(log, prefix),
        TransportType::Kafka | TransportType::Memory => LogLocation::on_kafka(log, prefix),
    };
    match location? {
        LogLocation::Topic(topic) => Some(TopicFilter::from(topic)),
        LogLocation::Stream { prefix, .. } => below(&prefix),
    }
}

fn below(topic: &Topic) -> Option<TopicFilter> {
    TopicFilter::new(Text::from(format!("{topic}.>"))).ok()
}
