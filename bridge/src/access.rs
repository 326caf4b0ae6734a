//! What does the bridge do on each bus, and which rights does it need there? From the configuration alone.

use std::collections::{BTreeMap, BTreeSet};

use a2abus_transports::{Topic, TopicFilter};

use crate::config::{
    Config, DEFAULT_ROUTE, DestinationConfig, Pattern, PlaceConfig, StateLog, TransportConfig,
    TransportType, answering,
};
use crate::names::{Name, Names, TemplatePart};
use crate::state::{AGENTS, EXECUTIONS, LOGS, LogLocation, LogSpec, PUSH, STORAGE};

/// One thing that the bridge does on one bus.
#[derive(Debug)]
pub(crate) struct Access {
    /// Whose it is, as `binding requests`.
    pub(crate) whose: String,
    pub(crate) operation: Operation,
}

/// What is done.
#[derive(Debug)]
pub(crate) enum Operation {
    /// Topics are read as a member of a group.
    Read {
        topics: Vec<TopicFilter>,
        group: Name,
    },
    /// A durable JetStream consumer is read.
    Durable { stream: Name, name: Name },
    /// Something is published.
    Write(Write),
    /// Answers are read from a topic, or from the subjects below it.
    Replies(Topic),
    /// A log of the state is read and written.
    State {
        spec: LogSpec,
        place: LogLocation,
        /// The bridge creates it when it is missing.
        is_created: bool,
    },
}

/// Where something is published.
#[derive(Debug)]
pub(crate) struct Write {
    /// As it is written, with `{attribute}`.
    pub(crate) place: String,
    /// The topic, where no attribute is part of it.
    pub(crate) topic: Option<Topic>,
    /// What every topic begins with.
    prefix: String,
    /// The pattern of its subjects on NATS.
    pub(crate) pattern: String,
    pub(crate) storage: Storage,
}

/// Who keeps what is published on NATS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Storage {
    /// The consumers of the topic.
    Readers,
    /// A JetStream stream: without one it cannot be published.
    Stream,
    /// A JetStream stream, if there is one; without it dead letters are lost.
    StreamIfAny,
}

/// The rights on NATS.
#[derive(Debug, Default)]
pub(crate) struct Subjects {
    pub(crate) publish: BTreeSet<String>,
    pub(crate) subscribe: BTreeSet<String>,
}

/// Everything that the bridge does on one bus.
pub(crate) fn uses(config: &Config, transport: &Name) -> Vec<Access> {
    let mut uses = announcing(config, transport);
    let settings = config.transports.get(transport);
    let kind = settings.map(TransportConfig::transport_type);
    for binding in &config.bindings {
        let whose = format!("binding {}", binding.name);
        if binding.transport == *transport {
            let operation = match (&binding.stream, &binding.durable) {
                (Some(stream), Some(name)) => Operation::Durable {
                    stream: stream.clone(),
                    name: name.clone(),
                },
                _ => Operation::Read {
                    topics: binding.topics.iter().map(|topic| topic.0.clone()).collect(),
                    group: binding.group.clone(),
                },
            };
            uses.push(Access {
                whose: whose.clone(),
                operation,
            });
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
            let whose = format!("dead letters of {whose}");
            let operation = Operation::Write(Write::to(&binding.dead_letter.topic, storage));
            uses.push(Access { whose, operation });
        }
    }
    let mut is_called = false;
    for (whose, destination, answers) in destinations(config) {
        if destination.transport == *transport {
            is_called |= answers;
            let operation = Operation::Write(Write::of(destination));
            uses.push(Access { whose, operation });
        }
    }
    let announced = announced(config, transport);
    is_called |= !announced.is_empty();
    uses.extend(announced);
    uses.extend(state(config, transport, kind));
    if config.calls.enabled && is_called && kind != Some(TransportType::Memory) {
        uses.push(Access {
            whose: "answers".to_owned(),
            operation: Operation::Replies(config.calls.reply_topic.0.clone()),
        });
    }
    uses
}

/// Where the attached agents are announced.
fn announcing(config: &Config, transport: &Name) -> Vec<Access> {
    let agents = config.agents.iter().filter(|(_, agent)| {
        let to = agent.to.as_ref();
        to.is_some_and(|to| to.transport == *transport)
    });
    let uses = agents.filter_map(|(name, agent)| {
        let topic = agent.attach.as_ref()?.announce.as_ref()?;
        Some(Access {
            whose: format!("agent {name}"),
            // Without a stream the bridges that read at the moment hear it.
            operation: Operation::Write(Write::to(topic, Storage::Readers)),
        })
    });
    uses.collect()
}

/// What requests for announced agents are written to.
fn announced(config: &Config, transport: &Name) -> Vec<Access> {
    let here = places(config).filter(|place| place.to.transport == *transport);
    let writes = here.flat_map(|place| {
        let named = place.topics.iter().map(|topics| Write::matching(topics));
        std::iter::once(Write::of(&place.to)).chain(named)
    });
    let uses = writes.map(|write| Access {
        whose: "registry".to_owned(),
        operation: Operation::Write(write),
    });
    uses.collect()
}

/// Where requests of announced agents go.
pub(crate) fn places(config: &Config) -> impl Iterator<Item = &PlaceConfig> {
    let registry = Some(&config.registry).filter(|registry| registry.enabled);
    registry.into_iter().flat_map(|registry| &registry.places)
}

/// The logs of the state, where they are on this bus.
fn state(config: &Config, transport: &Name, kind: Option<TransportType>) -> Vec<Access> {
    if config.state.place() != StateLog::Transport(transport) {
        return Vec::new();
    }
    let log = |spec| log_use(config, kind?, spec);
    let is_used = |spec: &LogSpec| {
        (config.registry.enabled || *spec != AGENTS)
            && (config.a2a.push_notifications.enabled || *spec != PUSH)
            && (config.keeps_executions() || ![EXECUTIONS, STORAGE].contains(spec))
    };
    LOGS.into_iter().filter(is_used).filter_map(log).collect()
}

/// What a log of the state is on a bus of this type; `None` where it cannot be.
pub(crate) fn log_use(config: &Config, kind: TransportType, spec: LogSpec) -> Option<Access> {
    let place = match kind {
        TransportType::Kafka => LogLocation::on_kafka(&spec, &config.state.prefix.0),
        TransportType::Nats => LogLocation::on_jetstream(&spec, &config.state.prefix.0),
        TransportType::Memory => None,
    };
    Some(Access {
        whose: format!("state {}", spec.name),
        operation: Operation::State {
            spec,
            place: place?,
            is_created: config.state.create,
        },
    })
}

/// Every destination, with the name of its route, and whether requests are answered from there.
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

// === impl Access ===

impl Access {
    /// Where it is, if it is a log of the state.
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
        Self {
            place: topic.to_string(),
            topic: Some(topic.clone()),
            prefix: topic.to_string(),
            pattern: topic.to_string(),
            storage,
        }
    }

    /// Topics that an announcement may name.
    fn matching(topics: &Pattern) -> Self {
        let text = topics.text();
        match Topic::new(text.clone()) {
            Ok(topic) => Self::to(&topic, Storage::Readers),
            Err(_) => {
                let end = text.find(['*', '?', '[', '{']).unwrap_or(text.len());
                let prefix = text.get(..end).unwrap_or_default().to_owned();
                let words = prefix.rsplit_once('.').map_or("", |(words, _)| words);
                Self {
                    place: text.to_string(),
                    topic: None,
                    // The rest may hold dots.
                    pattern: [words, ">"].join(".").trim_start_matches('.').to_owned(),
                    prefix,
                    storage: Storage::Readers,
                }
            }
        }
    }

    fn of(destination: &DestinationConfig) -> Self {
        let storage = if destination.stored {
            Storage::Stream
        } else {
            Storage::Readers
        };
        let template = &destination.topic.0;
        if let Some(Ok(topic)) = template.as_literal().map(Topic::new) {
            return Self::to(&topic, storage);
        }
        let literal = |part: &TemplatePart| match part {
            TemplatePart::Literal(text) => Some(text.to_string()),
            TemplatePart::Attribute(_) => None,
        };
        let prefix: String = template.parts().iter().map_while(literal).collect();
        // A value is one word, or, where it may have dots, any number of them.
        let shape: String = template
            .parts()
            .iter()
            .map(|part| literal(part).unwrap_or_else(|| "\0".to_owned()))
            .collect();
        let mut pattern = Vec::new();
        for word in shape.split('.') {
            match word.contains('\0') {
                false => pattern.push(word),
                true if destination.names == Names::Dotted => {
                    pattern.push(">");
                    break;
                }
                true => pattern.push("*"),
            }
        }
        Self {
            place: template.to_string(),
            topic: None,
            prefix,
            pattern: pattern.join("."),
            storage,
        }
    }
}

// === Kafka ===

/// What an ACL of Kafka is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Resource {
    /// `topic` or `group`.
    pub(crate) kind: &'static str,
    /// Its name, or what all their names begin with.
    pub(crate) name: String,
    pub(crate) prefixed: bool,
}

/// What the user of the bridge may do with what.
#[cfg(feature = "kafka")]
pub(crate) fn kafka_rights(uses: &[Access]) -> BTreeMap<Resource, BTreeSet<&'static str>> {
    let mut rights = rights_to_work(uses);
    for (resource, operations) in &mut rights {
        // Not for the bridge, but for `topics plan`, which compares topics whose name is known.
        if resource.kind == "topic" && !resource.prefixed && resource.name != "*" {
            operations.insert("DescribeConfigs");
        }
    }
    rights
}

#[cfg(feature = "kafka")]
fn rights_to_work(uses: &[Access]) -> BTreeMap<Resource, BTreeSet<&'static str>> {
    let mut rights: BTreeMap<Resource, BTreeSet<&'static str>> = BTreeMap::new();
    let mut give = |resource: Resource, operations: &[&'static str]| {
        rights.entry(resource).or_default().extend(operations);
    };
    let literal = |kind, name: &str| Resource {
        kind,
        name: name.to_owned(),
        prefixed: false,
    };
    for used in uses {
        match &used.operation {
            Operation::Read {
                topics,
                group: name,
            } => {
                for name in topics {
                    give(literal("topic", name.as_str()), &["Read", "Describe"]);
                }
                give(literal("group", name.as_str()), &["Read"]);
            }
            Operation::Durable { .. } => {}
            Operation::Write(write) => match &write.topic {
                // The bridge makes the topics of dead letters that are missing.
                Some(name) if write.storage != Storage::Readers => {
                    give(
                        literal("topic", name.as_str()),
                        &["Write", "Describe", "Create"],
                    );
                }
                Some(name) => give(literal("topic", name.as_str()), &["Write", "Describe"]),
                None if write.prefix.is_empty() => {
                    give(literal("topic", "*"), &["Write", "Describe"]);
                }
                None => {
                    let prefixed = Resource {
                        prefixed: true,
                        ..literal("topic", &write.prefix)
                    };
                    give(prefixed, &["Write", "Describe"]);
                }
            },
            Operation::Replies(name) => {
                give(
                    literal("topic", name.as_str()),
                    &["Read", "Write", "Describe", "Create"],
                );
                give(literal("group", &format!("{name}.forward")), &["Read"]);
            }
            Operation::State {
                place, is_created, ..
            } => {
                if let LogLocation::Topic(name) = place {
                    give(literal("topic", name.as_str()), log_operations(*is_created));
                }
            }
        }
    }
    rights
}

/// What is done to the topic of a log.
#[cfg(feature = "kafka")]
fn log_operations(is_created: bool) -> &'static [&'static str] {
    match is_created {
        true => &["Read", "Write", "Describe", "Create"],
        false => &["Read", "Write", "Describe"],
    }
}

/// The lines of `kafka-acls.sh` that give a principal the rights it needs.
#[cfg(feature = "kafka")]
pub(crate) fn kafka_acls(
    config: &a2abus_transports::kafka::KafkaConfig,
    uses: &[Access],
) -> Vec<String> {
    let user = config
        .sasl
        .as_ref()
        .map_or("PRINCIPAL", |sasl| sasl.username.as_str());
    let broker = config.brokers.first().map_or("BROKER", String::as_str);
    let line = |(resource, operations): (Resource, BTreeSet<&str>)| {
        let operations: Vec<String> = operations
            .into_iter()
            .map(|operation| format!("--operation {operation}"))
            .collect();
        let prefixed = match resource.prefixed {
            true => "--resource-pattern-type prefixed ",
            false => "",
        };
        format!(
            "kafka-acls.sh --bootstrap-server {broker} --add --allow-principal 'User:{user}' {} {prefixed}--{} '{}'",
            operations.join(" "),
            resource.kind,
            resource.name
        )
    };
    kafka_rights(uses).into_iter().map(line).collect()
}

// === NATS ===

/// The question of a user for its permissions.
#[cfg(feature = "nats")]
const USER_INFO: &str = "$SYS.REQ.USER.INFO";

/// The subjects that the user of the bridge publishes and subscribes to.
#[cfg(feature = "nats")]
pub(crate) fn nats_subjects(
    config: &a2abus_transports::nats::NatsConfig,
    uses: &[Access],
) -> Subjects {
    let mut subjects = Subjects::default();
    let api = |request: String| match &config.jetstream.domain {
        Some(domain) => format!("$JS.{domain}.API.{request}"),
        None => format!("$JS.API.{request}"),
    };
    let inbox = format!("{}.>", config.inbox_prefix);
    subjects.publish.insert(inbox.clone());
    // Not for the bridge, but for the test of these permissions.
    subjects.publish.insert(USER_INFO.to_owned());
    subjects.subscribe.insert(inbox);
    for used in uses {
        match &used.operation {
            Operation::Read { topics, .. } => {
                let topics = topics.iter().map(|topic| topic.as_str().to_owned());
                subjects.subscribe.extend(topics);
            }
            Operation::Durable { stream, name } => {
                let read = durable_requests(config, stream, name).into_iter();
                subjects.publish.extend(read.map(api));
                // Servers of a domain put it, and the account, before the stream.
                subjects.publish.insert(match &config.jetstream.domain {
                    Some(_) => "$JS.ACK.>".to_owned(),
                    None => format!("$JS.ACK.{stream}.{name}.>"),
                });
            }
            Operation::Write(write) => {
                subjects.publish.insert(write.pattern.clone());
                if write.storage != Storage::Readers {
                    subjects.publish.insert(api("STREAM.NAMES".to_owned()));
                    // Not for the bridge, but for `topics plan`: nobody knows which stream it is.
                    subjects.publish.insert(api("STREAM.INFO.*".to_owned()));
                }
            }
            Operation::Replies(topic) => {
                subjects.subscribe.insert(format!("{topic}.>"));
                subjects.publish.insert(format!("{topic}.>"));
            }
            Operation::State {
                place: LogLocation::Stream { name, prefix },
                is_created,
                ..
            } => {
                subjects.publish.insert(format!("{prefix}.>"));
                let requests = log_requests(name, *is_created).into_iter();
                subjects.publish.extend(requests.map(api));
            }
            Operation::State { .. } => {}
        }
    }
    let requests = stream_requests(&config.jetstream);
    subjects.publish.extend(requests.map(api));
    subjects
}

/// The requests to the API about the listed streams.
#[cfg(feature = "nats")]
fn stream_requests(
    config: &a2abus_transports::nats::JetStreamConfig,
) -> impl Iterator<Item = String> {
    let requests: &[&str] = match config.manage {
        true => &["STREAM.INFO", "STREAM.CREATE", "STREAM.UPDATE"],
        // For `topics plan`.
        false => &["STREAM.INFO"],
    };
    let streams = config.streams.iter();
    streams.flat_map(move |stream| requests.iter().map(|it| format!("{it}.{}", stream.name)))
}

/// The requests to the API that a log takes: it is read by consumers whose names nobody knows before.
#[cfg(feature = "nats")]
fn log_requests(stream: &str, is_created: bool) -> Vec<String> {
    let mut requests = vec![
        "STREAM.NAMES".to_owned(),
        format!("STREAM.INFO.{stream}"),
        // The client asks for the first one without a name.
        format!("CONSUMER.CREATE.{stream}"),
        format!("CONSUMER.CREATE.{stream}.>"),
        format!("CONSUMER.DELETE.{stream}.>"),
        format!("CONSUMER.MSG.NEXT.{stream}.>"),
    ];
    if is_created {
        requests.push(format!("STREAM.CREATE.{stream}"));
    }
    requests
}

/// The requests to the API that reading a durable consumer takes.
#[cfg(feature = "nats")]
fn durable_requests(
    config: &a2abus_transports::nats::NatsConfig,
    stream: &Name,
    name: &Name,
) -> Vec<String> {
    let mut requests = vec![
        format!("CONSUMER.INFO.{stream}.{name}"),
        format!("CONSUMER.MSG.NEXT.{stream}.{name}"),
        format!("STREAM.INFO.{stream}"),
    ];
    if config.jetstream.manage {
        requests.push(format!("CONSUMER.DURABLE.CREATE.{stream}.{name}"));
    }
    requests
}

// === impl Subjects ===

impl Subjects {
    /// The permissions block of the user in the server's configuration.
    pub(crate) fn block(&self) -> Vec<String> {
        let list = |word: &str, subjects: &BTreeSet<String>| {
            let subjects: Vec<String> = subjects.iter().map(|s| format!("\"{s}\"")).collect();
            format!("  {word}: {{ allow: [{}] }}", subjects.join(", "))
        };
        vec![
            "permissions: {".to_owned(),
            list("publish", &self.publish),
            list("subscribe", &self.subscribe),
            "}".to_owned(),
        ]
    }
}
