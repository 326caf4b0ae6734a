//! A topic, stream or consumer that has to exist, and its settings.

use std::collections::BTreeSet;
use std::time::Duration;

#[cfg(feature = "kafka")]
use a2abus_transports::Topic;
use serde_json::{Map, Value, json};

#[cfg(feature = "nats")]
use super::subjects::lacking;

/// A resource that has to exist.
#[derive(Debug)]
pub(crate) struct Requirement {
    pub(crate) resource: Resource,
    /// The parts of the configuration that need it, such as `binding requests`.
    pub(crate) owners: BTreeSet<String>,
    pub(crate) settings: Vec<Setting>,
    pub(crate) if_missing: IfMissing,
}

/// What the bridge does at start-up if the resource is missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum IfMissing {
    /// It waits until an operator creates the resource.
    #[default]
    Waits,
    /// It creates the topic with the needed number of partitions. The broker's defaults decide the rest.
    #[cfg(feature = "kafka")]
    CreatesPartitions,
    /// It creates the resource with all its settings.
    Creates,
}

/// The resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resource {
    /// A Kafka topic.
    #[cfg(feature = "kafka")]
    Topic(Topic),
    /// Kafka topics that events name, as `agents.{targetagent}`. They are not known in advance.
    #[cfg(feature = "kafka")]
    Named(String),
    /// A JetStream stream. With a subject, any stream that stores it.
    #[cfg(feature = "nats")]
    Stream {
        name: String,
        subject: Option<String>,
    },
    /// A durable JetStream consumer.
    #[cfg(feature = "nats")]
    Consumer { stream: String, name: String },
}

/// One setting, by its name in Kafka or in the JetStream API.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    /// The value at creation; `None` leaves it to the server.
    pub(crate) create: Option<Value>,
    pub(super) must: Constraint,
}

/// The value that an existing resource must have.
#[derive(Debug)]
pub(super) enum Constraint {
    Anything,
    Be(Value),
    AtLeast(u64),
    /// At least two if there are three replicas or more.
    #[cfg(feature = "kafka")]
    InSync,
    /// The stream stores all of the subjects in `whole`, and something of each in `part`.
    #[cfg(feature = "nats")]
    Store {
        whole: Vec<String>,
        part: Vec<String>,
    },
}

/// Counts that the configuration does not contain. Resources are created with them, and existing ones must have at
/// least as many.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Defaults {
    /// Partitions of the topics of agents.
    #[cfg(feature = "kafka")]
    pub(crate) partitions: Option<u32>,
    /// Replicas of topics, and of streams that the configuration does not list.
    pub(crate) replicas: Option<u32>,
}

/// The settings that need no change on a topic that the bridge creates with its partitions and the broker's defaults.
#[cfg(feature = "kafka")]
const RIGHT_BY_DEFAULT: [&str; 3] = ["cleanup.policy", "partitions", "retention.ms"];
/// The JetStream settings that are durations.
const NANOSECONDS: [&str; 3] = ["ack_wait", "duplicate_window", "max_age"];

// === impl Requirement ===

impl Requirement {
    /// The settings at creation.
    pub(crate) fn creation(&self) -> Map<String, Value> {
        let settings = self.settings.iter();
        settings
            .filter_map(|setting| Some((setting.name.to_owned(), setting.create.clone()?)))
            .collect()
    }

    /// The settings it lacks if the bridge creates it at start-up, such as `max.message.bytes=2000000`; `None` if the
    /// bridge does not create it.
    pub(crate) fn lacks_at_start(&self) -> Option<Vec<String>> {
        let is_left_out = |setting: &&Setting| match (self.if_missing, &setting.must) {
            (_, Constraint::Anything) => false,
            #[cfg(feature = "kafka")]
            (IfMissing::CreatesPartitions, _) => !RIGHT_BY_DEFAULT.contains(&setting.name),
            // More replicas are required than the bridge requests.
            (_, Constraint::AtLeast(_)) => setting.name.ends_with("replicas"),
            #[cfg(feature = "kafka")]
            (_, Constraint::InSync) => true,
            _ => false,
        };
        let display = |setting: &Setting| {
            let (name, value) = (setting.name, setting.create.as_ref()?);
            Some(format!("{name}={}", display(name, value)))
        };
        let left_out = self.settings.iter().filter(is_left_out);
        (self.if_missing != IfMissing::Waits).then(|| left_out.filter_map(display).collect())
    }

    /// The wrong settings of an existing resource, as text.
    pub(crate) fn differences(&self, found: &Map<String, Value>) -> Vec<String> {
        let settings = self.settings.iter();
        settings
            .filter_map(|setting| setting.difference(found))
            .collect()
    }
}

pub(super) fn created(is_created: bool) -> IfMissing {
    match is_created {
        true => IfMissing::Creates,
        false => IfMissing::Waits,
    }
}

/// Adds a setting, or replaces the one of that name.
pub(super) fn put(settings: &mut Vec<Setting>, setting: Setting) {
    settings.retain(|other| other.name != setting.name);
    settings.push(setting);
}

// === impl Resource ===

impl Resource {
    /// Its kind and its name.
    pub(crate) fn names(&self) -> (&'static str, String) {
        match self {
            #[cfg(feature = "kafka")]
            Self::Topic(topic) => ("topic", topic.to_string()),
            #[cfg(feature = "kafka")]
            Self::Named(topics) => ("topics", topics.clone()),
            #[cfg(feature = "nats")]
            Self::Stream {
                name,
                subject: None,
            } => ("stream", name.clone()),
            #[cfg(feature = "nats")]
            Self::Stream {
                subject: Some(subject),
                ..
            } => ("stream of", subject.clone()),
            #[cfg(feature = "nats")]
            Self::Consumer { stream, name } => ("consumer", format!("{stream}/{name}")),
        }
    }
}

// === impl Setting ===

impl Setting {
    pub(super) fn created(name: &'static str, create: Option<Value>) -> Self {
        let must = Constraint::Anything;
        Self { name, create, must }
    }

    pub(super) fn be(name: &'static str, value: Value) -> Self {
        Self {
            name,
            create: Some(value.clone()),
            must: Constraint::Be(value),
        }
    }

    /// At least this count, or the server's default.
    pub(super) fn optional(name: &'static str, count: Option<u32>) -> Self {
        match count {
            Some(count) => Self::at_least(name, count.into(), Some(json!(count))),
            None => Self::created(name, None),
        }
    }

    pub(super) fn at_least(name: &'static str, least: u64, create: Option<Value>) -> Self {
        let must = Constraint::AtLeast(least);
        Self { name, create, must }
    }

    fn difference(&self, found: &Map<String, Value>) -> Option<String> {
        let name = self.name;
        let is = found.get(name).unwrap_or(&Value::Null);
        let rule = match &self.must {
            Constraint::Anything => return None,
            Constraint::Be(value) if is == value => return None,
            // Servers leave out zeros.
            Constraint::Be(value) if is.is_null() && *value == json!(0) => return None,
            Constraint::Be(value) => format!("must be {}", display(name, value)),
            // -1 means no limit.
            Constraint::AtLeast(least)
                if is.as_i64() == Some(-1) || is.as_u64() >= Some(*least) =>
            {
                return None;
            }
            Constraint::AtLeast(least) => format!("must be at least {least}"),
            #[cfg(feature = "kafka")]
            Constraint::InSync => {
                let copies = found.get("replicas").and_then(Value::as_u64);
                let copies = copies.filter(|copies| *copies >= 3 && is.as_u64() < Some(2))?;
                format!("must be at least 2 of {copies} replicas")
            }
            #[cfg(feature = "nats")]
            Constraint::Store { whole, part } => match lacking(found, whole, part) {
                missing if missing.is_empty() => return None,
                missing => format!("lacks {}", missing.join(", ")),
            },
        };
        let is = match is {
            Value::Null => "not set".to_owned(),
            value => display(name, value),
        };
        Some(format!("{name} is {is}, {rule}"))
    }
}

/// The value of a setting as text.
pub(crate) fn display(name: &str, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items = items.iter().map(|item| display(name, item));
            items.collect::<Vec<_>>().join(",")
        }
        Value::Number(number) => match (NANOSECONDS.contains(&name), number.as_u64()) {
            (true, Some(nanos)) if nanos > 0 => {
                humantime::format_duration(Duration::from_nanos(nanos)).to_string()
            }
            _ => number.to_string(),
        },
        other => other.to_string(),
    }
}
