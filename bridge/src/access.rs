//! The actions of the bridge on each bus, according to the configuration, and the permissions that they need.

#[cfg(feature = "kafka")]
pub(crate) mod kafka;
#[cfg(feature = "nats")]
pub(crate) mod nats;

use std::fmt;

use a2abus_transports::{Topic, TopicFilter};

use crate::config::{
    BindingConfig, Config, DEFAULT_ROUTE, DestinationConfig, Pattern, StateLog, TransportConfig,
    TransportType, answering,
};
#[cfg(feature = "nats")]
use crate::names::Names;
use crate::names::{Name, Template};
use crate::state::{AGENTS, EXECUTIONS, LOGS, LogLocation, LogSpec, PUSH, RESULTS, STORAGE, TASKS};

/// One thing that the bridge does on one bus.
#[derive(Debug)]
pub(crate) struct Access {
    /// The part of the configuration that needs it, such as `binding requests`.
    pub(crate) owner: String,
    pub(crate) operation: Operation,
}

/// What the bridge does.
#[derive(Debug)]
pub(crate) enum Operation {
    /// Reads topics as a member of a group.
    Read {
        topics: Vec<TopicFilter>,
        /// NATS needs no permission for a group.
        #[cfg(feature = "kafka")]
        group: Name,
    },
    /// Reads a durable JetStream consumer.
    #[cfg(feature = "nats")]
    Durable {
        stream: Name,
        name: Name,
        topics: Vec<TopicFilter>,
    },
    /// Publishes.
    Write(Write),
    /// Reads answers from a topic, or from the subjects below it.
    Replies(Topic),
    /// Reads and writes a log of the state.
    State {
        spec: LogSpec,
        place: LogLocation,
        /// The bridge creates it when it is missing.
        is_created: bool,
    },
}

/// Where the bridge publishes.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) target: Target,
    pub(crate) storage: Storage,
}

/// The topics to which the bridge publishes.
#[derive(Debug)]
pub(crate) enum Target {
    /// One topic.
    Topic(Topic),
    /// Topics named by attributes of events.
    Template {
        template: Template,
        /// Kafka needs permissions for a prefix, whatever the values are.
        #[cfg(feature = "nats")]
        names: Names,
    },
    /// Topics that announcements or requests may name.
    Matching(Pattern),
}

/// What stores the published messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Storage {
    /// Nothing that the bridge needs. The agents that read the topic take care of storage.
    Readers,
    /// As for `Readers`. The topic belongs to those who send requests: the bridge neither creates nor compares it.
    Requesters,
    /// A JetStream stream: publishing fails without one.
    Stream,
    /// A JetStream stream, if there is one: without it dead letters are lost.
    StreamIfAny,
}

/// Everything that the bridge does on one bus.
pub(crate) fn uses(config: &Config, transport: &Name) -> Vec<Access> {
    let mut uses = announcing(config, transport);
    let settings = config.transports.get(transport);
    let kind = settings.map(TransportConfig::transport_type);
    for binding in &config.bindings {
        let owner = format!("binding {}", binding.name);
        if binding.transport == *transport {
            uses.push(Access {
                owner: owner.clone(),
                operation: reading(binding),
            });
            let answers = answers_of(binding).map(|write| Access {
                owner: format!("answers of {owner}"),
                operation: Operation::Write(write),
            });
            uses.extend(answers);
        }
        if binding.dead_letter_transport() == transport {
            let reads_core = binding.durable.is_none()
                && config
                    .transports
                    .get(&binding.transport)
                    .map(TransportConfig::transport_type)
                    == Some(TransportType::Nats);
            let storage = if reads_core {
                Storage::StreamIfAny
            } else {
                Storage::Stream
            };
            let owner = format!("dead letters of {owner}");
            let operation = Operation::Write(Write::to(&binding.dead_letter.topic, storage));
            uses.push(Access { owner, operation });
        }
    }
    let mut is_called = config
        .bindings
        .iter()
        .any(|it| it.transport == *transport && it.reads_core_answers(kind));
    for (owner, destination, answers) in destinations(config) {
        if destination.transport == *transport {
            is_called |= answers;
            let operation = Operation::Write(Write::of(destination));
            uses.push(Access { owner, operation });
        }
    }
    let announced = announced(config, transport);
    is_called |= !announced.is_empty();
    uses.extend(announced);
    uses.extend(state(config, transport, kind));
    if config.calls.enabled && is_called && kind != Some(TransportType::Memory) {
        uses.extend(answers(config, transport));
    }
    uses
}

/// The answers to calls, and the dead letters of those that arrive in the wrong partition.
fn answers(config: &Config, transport: &Name) -> Vec<Access> {
    let replies = Access {
        owner: "answers".to_owned(),
        operation: Operation::Replies(config.calls.reply_topic.0.clone()),
    };
    let misplaced = config.reply_bindings().into_iter();
    let misplaced = misplaced.filter(|binding| binding.transport == *transport);
    let dead_letters = misplaced.map(|binding| Access {
        owner: format!("dead letters of binding {}", binding.name),
        operation: Operation::Write(Write::to(&binding.dead_letter.topic, Storage::Stream)),
    });
    std::iter::once(replies).chain(dead_letters).collect()
}

/// How the bridge reads a binding.
fn reading(binding: &BindingConfig) -> Operation {
    let topics = binding.topics.iter().map(|topic| topic.0.clone()).collect();
    #[cfg(feature = "nats")]
    if let (Some(stream), Some(name)) = (&binding.stream, &binding.durable) {
        return Operation::Durable {
            stream: stream.clone(),
            name: name.clone(),
            topics,
        };
    }
    Operation::Read {
        topics,
        #[cfg(feature = "kafka")]
        group: binding.group.clone(),
    }
}

/// The topics for the answers to requests of a binding, and for their progress. Their readers take care of storage.
fn answers_of(binding: &BindingConfig) -> impl Iterator<Item = Write> {
    let fixed = binding.replies.iter().chain(&binding.progress);
    let fixed = fixed.map(|topic| Write::to(topic, Storage::Readers));
    let named = binding.reply_topics.iter();
    fixed.chain(named.map(|topics| Write::matching(topics, Storage::Requesters)))
}

/// The topics to which the bridge announces attached agents.
fn announcing(config: &Config, transport: &Name) -> Vec<Access> {
    let agents = config.agents.iter().filter(|(_, agent)| {
        let to = agent.to.as_ref();
        to.is_some_and(|to| to.transport == *transport)
    });
    let uses = agents.filter_map(|(name, agent)| {
        let topic = agent.attach.as_ref()?.announce.as_ref()?;
        Some(Access {
            owner: format!("agent {name}"),
            // Without a stream, only bridges that are connected get the announcement; it is repeated.
            operation: Operation::Write(Write::to(topic, Storage::Readers)),
        })
    });
    uses.collect()
}

/// The topics to which the bridge publishes requests for announced agents.
fn announced(config: &Config, transport: &Name) -> Vec<Access> {
    let allowed = config.registry.enabled_destinations().iter();
    let here = allowed.filter(|allowed| allowed.to.transport == *transport);
    let writes = here.flat_map(|allowed| {
        let named = allowed.topics.iter();
        let named = named.map(|topics| Write::matching(topics, Storage::Readers));
        std::iter::once(Write::of(&allowed.to)).chain(named)
    });
    let uses = writes.map(|write| Access {
        owner: "registry".to_owned(),
        operation: Operation::Write(write),
    });
    uses.collect()
}

/// The logs of the state, if they are on this bus.
fn state(config: &Config, transport: &Name, kind: Option<TransportType>) -> Vec<Access> {
    if config.state.place() != StateLog::Transport(transport) {
        return Vec::new();
    }
    let log = |spec| log_use(config, kind?, spec);
    let is_used = |spec: &LogSpec| {
        (config.keeps_tasks() || *spec != TASKS)
            && (config.keeps_results() || *spec != RESULTS)
            && (config.registry.enabled || *spec != AGENTS)
            && (config.keeps_webhooks() || *spec != PUSH)
            && (config.keeps_executions() || ![EXECUTIONS, STORAGE].contains(spec))
    };
    LOGS.into_iter().filter(is_used).filter_map(log).collect()
}

/// How the bridge uses a log of the state on a bus of this type; `None` if a bus of this type cannot store it.
pub(crate) fn log_use(config: &Config, kind: TransportType, spec: LogSpec) -> Option<Access> {
    let place = match kind {
        TransportType::Kafka => LogLocation::on_kafka(&spec, &config.state.prefix.0),
        TransportType::Nats => LogLocation::on_jetstream(&spec, &config.state.prefix.0),
        TransportType::Memory => None,
    };
    Some(Access {
        owner: format!("state {}", spec.name),
        operation: Operation::State {
            spec,
            place: place?,
            is_created: config.state.create,
        },
    })
}

/// Every destination, with the name of its route, and whether answers come from there.
fn destinations(config: &Config) -> impl Iterator<Item = (String, &DestinationConfig, bool)> {
    let routes = config.routes.iter();
    let routes = routes.map(|route| (route.name.to_string(), route.to.as_slice()));
    let default = (DEFAULT_ROUTE.to_owned(), config.default_route.as_slice());
    routes.chain([default]).flat_map(|(name, to)| {
        let answering = answering(to);
        let places = to.iter().enumerate();
        places.map(move |(index, to)| (format!("route {name}"), to, index == answering))
    })
}

/// The common prefix of all names that match a pattern.
fn literal_prefix(pattern: &Pattern) -> &str {
    let text = pattern.text();
    let end = text.find(['*', '?', '[', '{', '\\']).unwrap_or(text.len());
    text.get(..end).unwrap_or_default()
}

// === impl Access ===

impl Access {
    /// Whether it reads the topics of a binding.
    #[cfg(feature = "nats")]
    pub(crate) fn is_binding(&self) -> bool {
        matches!(
            self.operation,
            Operation::Read { .. } | Operation::Durable { .. }
        )
    }

    /// The location of the log, if this is a log of the state.
    pub(crate) fn place(&self) -> Option<&LogLocation> {
        match &self.operation {
            Operation::State { place, .. } => Some(place),
            _ => None,
        }
    }
}

// === impl Write ===

impl Write {
    fn to(topic: &Topic, storage: Storage) -> Self {
        let target = Target::Topic(topic.clone());
        Self { target, storage }
    }

    /// Whether the bridge needs a stream or a topic that stores the messages.
    pub(crate) fn is_stored(&self) -> bool {
        matches!(self.storage, Storage::Stream | Storage::StreamIfAny)
    }

    /// To the topics that an announcement or a request may name.
    fn matching(topics: &Pattern, storage: Storage) -> Self {
        let topic = Topic::new(topics.text().clone());
        Self {
            target: topic.map_or_else(|_| Target::Matching(topics.clone()), Target::Topic),
            storage,
        }
    }

    fn of(destination: &DestinationConfig) -> Self {
        let template = &destination.topic.0;
        let target = match template.as_literal().map(Topic::new) {
            Some(Ok(topic)) => Target::Topic(topic),
            _ => Target::Template {
                template: template.clone(),
                #[cfg(feature = "nats")]
                names: destination.names,
            },
        };
        let storage = match destination.stored {
            true => Storage::Stream,
            false => Storage::Readers,
        };
        Self { target, storage }
    }
}

// === impl Target ===

impl Target {
    /// The topic, if there is only one.
    pub(crate) fn topic(&self) -> Option<&Topic> {
        match self {
            Self::Topic(topic) => Some(topic),
            Self::Template { .. } | Self::Matching(_) => None,
        }
    }
}

/// As in the configuration.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(topic) => topic.fmt(f),
            Self::Template { template, .. } => template.fmt(f),
            Self::Matching(pattern) => f.write_str(pattern.text()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_for_answers_and_progress_are_written() {
        let text = "
transports: {m: {type: memory}}
bindings:
- {name: in, transport: m, topics: [in], replies: answers, reply_topics: [named, 'clients.*']}
- {name: wf, transport: m, topics: [wf], role: workflows, run_as: a, progress: progress}
default_route: [{transport: m, topic: out}]
workflows: {enabled: true, agents: [{id: a}]}
";
        let config = Config::read("f", text, []).unwrap_or_else(|errors| panic!("{errors}"));
        let written = |used: Access| match used.operation {
            Operation::Write(write) => Some(format!("{}: {}", used.owner, write.target)),
            _ => None,
        };
        let uses = uses(&config, &Name::from_static("m")).into_iter();
        let writes: Vec<String> = uses.filter_map(written).collect();
        assert_eq!(
            writes,
            [
                "answers of binding in: answers",
                "answers of binding in: named",
                "answers of binding in: clients.*",
                "dead letters of binding in: a2abus.dlq",
                "answers of binding wf: progress",
                "dead letters of binding wf: a2abus.dlq",
                "route default: out",
            ]
        );
    }
}
