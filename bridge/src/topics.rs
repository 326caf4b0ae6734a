//! What has to exist on a bus before the bridge can work there, and with which settings? From the configuration alone.

pub(crate) mod on_bus;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use a2abus_transports::Topic;
use serde_json::{Map, Value, json};

use crate::access::{Access, Operation, Storage, Write};
use crate::config::{Config, Name, TransportConfig};
use crate::state::{Kind, LogLocation, LogSpec};

/// What is said of topics that nobody knows yet.
pub(crate) const NAMED: &str =
    "their names come from events: create them when you deploy the agents";

/// A resource that has to exist.
#[derive(Debug)]
pub(crate) struct Requirement {
    pub(crate) resource: Resource,
    /// The users of it, for example `binding requests`.
    pub(crate) whose: BTreeSet<String>,
    pub(crate) settings: Vec<Setting>,
    pub(crate) if_missing: IfMissing,
}

/// What the bridge does at start-up if the resource is missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum IfMissing {
    /// It waits until somebody creates it.
    #[default]
    Waits,
    /// It creates it with its partitions; the rest is what brokers do by default.
    CreatesPartitions,
    /// It creates it with all its settings.
    Creates,
}

/// What it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resource {
    /// A topic of Kafka.
    Topic(Topic),
    /// A stream of JetStream; with a subject, any stream that stores it will do.
    Stream {
        name: String,
        subject: Option<String>,
    },
    /// A durable consumer of JetStream.
    Consumer { stream: String, name: String },
    /// Topics or subjects that events name, as `agents.{targetagent}`: nobody knows them yet.
    Named(String),
}

/// One setting, by its name in Kafka or in the JetStream API.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    /// What it is created with; `None` leaves it to the server.
    pub(crate) create: Option<Value>,
    must: Constraint,
}

/// The value that an existing resource must have.
#[derive(Debug)]
enum Constraint {
    Anything,
    Be(Value),
    AtLeast(u64),
    /// At least two where there are three copies or more.
    InSync,
    /// These subjects are all among those that it stores.
    Cover(Vec<String>),
}

/// What the configuration does not say: a thing is created with this, and one that exists must have as many.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Defaults {
    /// Partitions of topics of agents.
    pub(crate) partitions: Option<u32>,
    /// Copies of topics, and of streams that the configuration does not list.
    pub(crate) replicas: Option<u32>,
}

/// What brokers take by default: a larger message needs a topic that says so.
const DEFAULT_MESSAGE_BYTES: u64 = 1_048_588;
/// Settings of topics that are right when the bridge gives the partitions and the broker its defaults.
const RIGHT_BY_DEFAULT: [&str; 3] = ["cleanup.policy", "partitions", "retention.ms"];
/// The settings of JetStream that are durations.
const NANOSECONDS: [&str; 3] = ["ack_wait", "duplicate_window", "max_age"];
/// How long answers are kept: nobody reads them later.
const REPLY_RETENTION: Duration = Duration::from_secs(60 * 60);

/// What a transport needs.
pub(crate) fn requirements(
    config: &Config,
    name: &Name,
    transport: &TransportConfig,
    uses: &[Access],
    defaults: Defaults,
) -> Vec<Requirement> {
    match transport {
        #[cfg(feature = "kafka")]
        TransportConfig::Kafka(kafka) => kafka_topics(config, kafka, uses, defaults),
        #[cfg(feature = "nats")]
        TransportConfig::Nats(nats) => nats_streams(config, name, nats, uses, defaults),
        TransportConfig::Memory(_) => Vec::new(),
    }
}

// === Kafka ===

/// The topics that a Kafka transport needs.
#[cfg(feature = "kafka")]
fn kafka_topics(
    config: &Config,
    kafka: &a2abus_transports::kafka::KafkaConfig,
    uses: &[Access],
    defaults: Defaults,
) -> Vec<Requirement> {
    let bytes = u64::from(kafka.max_message_bytes);
    let mut needs = TopicNeeds::default();
    let mut named = Vec::new();
    for used in uses {
        match &used.operation {
            Operation::Read { topics, .. } => {
                for topic in topics.iter().filter_map(|filter| filter.as_topic()) {
                    needs.add(&topic, &used.whose, IfMissing::Waits, Vec::new());
                }
            }
            Operation::Durable { .. } => {}
            Operation::Write(write) => match &write.topic {
                Some(topic) => {
                    let (mut if_missing, mut settings) =
                        (IfMissing::Waits, vec![message_bytes(bytes)]);
                    if write.storage != Storage::Readers {
                        if_missing = IfMissing::CreatesPartitions;
                        settings.push(Setting::created("partitions", Some(json!(1))));
                        settings.push(in_sync(defaults));
                    }
                    needs.add(topic, &used.whose, if_missing, settings);
                }
                None => named.push(Requirement::named(write, &used.whose)),
            },
            Operation::Replies(topic) => {
                let settings = reply_settings(config, bytes);
                needs.add(topic, &used.whose, IfMissing::CreatesPartitions, settings);
            }
            Operation::State {
                spec,
                place: LogLocation::Topic(topic),
                is_created,
            } => {
                let settings = log_settings(spec, bytes, defaults);
                needs.add(topic, &used.whose, created(*is_created), settings);
            }
            Operation::State { .. } => {}
        }
    }
    needs.with(defaults).chain(named).collect()
}

/// The topics that are needed.
#[cfg(feature = "kafka")]
#[derive(Default)]
struct TopicNeeds(BTreeMap<Topic, TopicNeed>);

/// One of them: whose it is, what the bridge does without it, and its settings.
#[cfg(feature = "kafka")]
#[derive(Default)]
struct TopicNeed {
    whose: BTreeSet<String>,
    if_missing: IfMissing,
    settings: Vec<Setting>,
}

#[cfg(feature = "kafka")]
impl TopicNeeds {
    /// One more use of a topic. Its settings win over those of earlier uses.
    fn add(&mut self, topic: &Topic, whose: &str, if_missing: IfMissing, more: Vec<Setting>) {
        let need = self.0.entry(topic.clone()).or_default();
        need.whose.insert(whose.to_owned());
        need.if_missing = need.if_missing.max(if_missing);
        for setting in more {
            put(&mut need.settings, setting);
        }
    }

    /// The topics with all their settings.
    fn with(self, defaults: Defaults) -> impl Iterator<Item = Requirement> {
        self.0.into_iter().map(move |(topic, need)| {
            let TopicNeed {
                whose,
                if_missing,
                mut settings,
            } = need;
            if settings.iter().all(|setting| setting.name != "partitions") {
                settings.push(Setting::asked("partitions", defaults.partitions));
            }
            settings.push(Setting::asked("replicas", defaults.replicas));
            if settings
                .iter()
                .all(|setting| setting.name != "cleanup.policy")
            {
                // Compaction would drop all but the last message of a key.
                settings.push(Setting::be("cleanup.policy", json!("delete")));
            }
            Requirement {
                resource: Resource::Topic(topic),
                whose,
                settings,
                if_missing,
            }
        })
    }
}

/// What a topic must take, so that every message of the bridge fits.
#[cfg(feature = "kafka")]
fn message_bytes(bytes: u64) -> Setting {
    let large = (bytes > DEFAULT_MESSAGE_BYTES).then(|| json!(bytes));
    Setting::at_least("max.message.bytes", bytes, large)
}

#[cfg(feature = "kafka")]
fn reply_settings(config: &Config, bytes: u64) -> Vec<Setting> {
    let calls = &config.calls;
    let partitions = u64::from(calls.reply_partitions);
    let longest = calls.max_timeout.0.max(calls.stream_timeout.0);
    let kept = milliseconds(longest.max(REPLY_RETENTION));
    vec![
        Setting::at_least("partitions", partitions, Some(json!(partitions))),
        message_bytes(bytes),
        Setting::at_least("retention.ms", milliseconds(longest), Some(json!(kept))),
    ]
}

/// The settings of a log of the state.
#[cfg(feature = "kafka")]
fn log_settings(spec: &LogSpec, bytes: u64, defaults: Defaults) -> Vec<Setting> {
    // One partition keeps the order of all keys, and reads faster than any writer writes.
    let mut settings = vec![
        Setting::created("partitions", Some(json!(1))),
        message_bytes(bytes),
    ];
    match spec.kind {
        Kind::Events { max_age } => {
            let kept = milliseconds(max_age);
            settings.push(Setting::be("cleanup.policy", json!("delete")));
            settings.push(Setting::at_least("retention.ms", kept, Some(json!(kept))));
        }
        Kind::Latest => settings.push(Setting::be("cleanup.policy", json!("compact"))),
    }
    settings.push(in_sync(defaults));
    settings
}

/// How many copies must have a record before it is confirmed. With one, a confirmed record is lost with its broker.
#[cfg(feature = "kafka")]
fn in_sync(defaults: Defaults) -> Setting {
    let copies = defaults.replicas.filter(|replicas| *replicas >= 3);
    Setting {
        name: "min.insync.replicas",
        create: copies.map(|_| json!(2)),
        must: Constraint::InSync,
    }
}

#[cfg(feature = "kafka")]
fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

// === NATS ===

/// The streams, and then the consumers, that a NATS transport needs.
#[cfg(feature = "nats")]
fn nats_streams(
    config: &Config,
    transport: &Name,
    nats: &a2abus_transports::nats::NatsConfig,
    uses: &[Access],
    defaults: Defaults,
) -> Vec<Requirement> {
    let copies = defaults.replicas;
    let if_missing = created(nats.jetstream.manage);
    let streams = nats.jetstream.streams.iter();
    let mut streams: Vec<Requirement> = streams.map(|stream| listed(stream, if_missing)).collect();
    let mut consumers = Vec::new();
    let bindings = config.bindings.iter();
    for binding in bindings.filter(|binding| binding.transport == *transport) {
        let (Some(stream), Some(name)) = (&binding.stream, &binding.durable) else {
            continue;
        };
        let topics = binding.topics.iter();
        let topics = topics.map(|topic| topic.0.as_str().to_owned());
        let topics: Vec<String> = topics.collect();
        let whose = format!("binding {}", binding.name);
        read_stream(&mut streams, stream, &topics, &whose, copies);
        consumers.push(Requirement {
            resource: Resource::Consumer {
                stream: stream.to_string(),
                name: name.to_string(),
            },
            whose: BTreeSet::from([whose]),
            settings: consumer(&nats.jetstream, &topics, binding.budget_messages),
            if_missing,
        });
    }
    for used in uses {
        match &used.operation {
            Operation::State {
                spec,
                place,
                is_created,
            } => {
                let log = log_stream(spec, place, &used.whose, copies);
                streams.extend(log.map(|log| Requirement {
                    if_missing: created(*is_created),
                    ..log
                }));
            }
            // A subject of core NATS needs nothing.
            Operation::Write(write) if write.storage != Storage::Readers => {
                store(&mut streams, write, &used.whose, copies);
            }
            _ => {}
        }
    }
    streams.into_iter().chain(consumers).collect()
}

/// The stream that a binding reads these subjects from.
#[cfg(feature = "nats")]
fn read_stream(
    streams: &mut Vec<Requirement>,
    stream: &Name,
    topics: &[String],
    whose: &str,
    copies: Option<u32>,
) {
    let known = streams.iter_mut().find(
        |requirement| matches!(&requirement.resource, Resource::Stream { name, .. } if *name == stream.as_str()),
    );
    match known {
        Some(requirement) => {
            requirement.cover(topics);
            requirement.whose.insert(whose.to_owned());
        }
        None => {
            let (name, topics) = (stream.to_string(), topics.to_vec());
            streams.push(Requirement::stream(name, None, whose, topics, copies));
        }
    }
}

/// The stream that stores what is written.
#[cfg(feature = "nats")]
fn store(streams: &mut Vec<Requirement>, write: &Write, whose: &str, copies: Option<u32>) {
    let subject = write.pattern.clone();
    if let Some(requirement) = streams
        .iter_mut()
        .find(|requirement| requirement.stores(&subject))
    {
        requirement.whose.insert(whose.to_owned());
        return;
    }
    // A stream for itself: which one of several may have it, nobody has said.
    let name = subject.replace(['.', '*', '>'], "_").to_uppercase();
    let (only, subjects) = (Some(subject.clone()), vec![subject]);
    streams.push(Requirement::stream(name, only, whose, subjects, copies));
}

/// The stream of a log of the state.
#[cfg(feature = "nats")]
fn log_stream(
    spec: &LogSpec,
    place: &LogLocation,
    whose: &str,
    copies: Option<u32>,
) -> Option<Requirement> {
    let LogLocation::Stream { name, prefix } = place else {
        return None;
    };
    let subjects = vec![format!("{prefix}.>")];
    let mut requirement = Requirement::stream(name.clone(), None, whose, subjects, copies);
    let (max_age, last) = match spec.kind {
        Kind::Events { max_age } => (nanoseconds(max_age), -1),
        Kind::Latest => (0, 1),
    };
    for setting in [
        // What is in memory is gone with the server.
        Setting::be("storage", json!("file")),
        // With another policy a record goes when somebody, or nobody, has read it.
        Setting::be("retention", json!("limits")),
        Setting::be("max_age", json!(max_age)),
        Setting::be("max_msgs_per_subject", json!(last)),
    ] {
        put(&mut requirement.settings, setting);
    }
    Some(requirement)
}

/// The thing that a log of the state needs, on the bus of this transport.
pub(crate) fn of_log(
    config: &Config,
    transport: &TransportConfig,
    used: &Access,
) -> Option<Requirement> {
    let uses = std::slice::from_ref(used);
    let defaults = Defaults::default();
    match transport {
        #[cfg(feature = "kafka")]
        TransportConfig::Kafka(kafka) => {
            let mut requirements = kafka_topics(config, kafka, uses, defaults);
            requirements.pop()
        }
        #[cfg(feature = "nats")]
        TransportConfig::Nats(_) => match &used.operation {
            Operation::State { spec, place, .. } => log_stream(spec, place, &used.whose, None),
            _ => None,
        },
        TransportConfig::Memory(_) => None,
    }
}

/// A stream as the configuration lists it.
#[cfg(feature = "nats")]
fn listed(stream: &a2abus_transports::nats::StreamConfig, if_missing: IfMissing) -> Requirement {
    let storage = match stream.storage {
        a2abus_transports::nats::StreamStorage::File => "file",
        a2abus_transports::nats::StreamStorage::Memory => "memory",
    };
    let subjects = Setting {
        name: "subjects",
        create: Some(json!(stream.subjects)),
        must: Constraint::Cover(stream.subjects.clone()),
    };
    Requirement {
        resource: Resource::Stream {
            name: stream.name.clone(),
            subject: None,
        },
        whose: BTreeSet::from(["jetstream.streams".to_owned()]),
        settings: vec![
            subjects,
            Setting::be("storage", json!(storage)),
            Setting::be("num_replicas", json!(stream.replicas)),
            Setting::be("max_age", json!(stream.max_age.map_or(0, nanoseconds))),
            Setting::be(
                "duplicate_window",
                json!(nanoseconds(stream.duplicate_window)),
            ),
        ],
        if_missing,
    }
}

#[cfg(feature = "nats")]
fn consumer(
    jetstream: &a2abus_transports::nats::JetStreamConfig,
    topics: &[String],
    budget: u32,
) -> Vec<Setting> {
    let filter = match topics {
        [one] => Setting::be("filter_subject", json!(one)),
        several => Setting::be("filter_subjects", json!(several)),
    };
    vec![
        filter,
        Setting::be("ack_policy", json!("explicit")),
        // The bridge counts attempts itself; a limit of the server would hide messages.
        Setting::be("max_deliver", json!(-1)),
        Setting::created("deliver_policy", Some(json!("all"))),
        Setting::created("ack_wait", Some(json!(nanoseconds(jetstream.ack_wait)))),
        Setting::created("max_ack_pending", Some(json!(budget))),
    ]
}

#[cfg(feature = "nats")]
fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Which of these subjects a stream with this configuration does not store.
fn lacking<'a>(stream: &Map<String, Value>, subjects: &'a [String]) -> Vec<&'a str> {
    // A copy of other streams does not say what is in it.
    if stream.contains_key("mirror") || stream.contains_key("sources") {
        return Vec::new();
    }
    let stored = stream.get("subjects").and_then(Value::as_array);
    let stored = stored.into_iter().flatten().filter_map(Value::as_str);
    let stored: Vec<&str> = stored.collect();
    let subjects = subjects.iter().map(String::as_str);
    subjects
        .filter(|subject| !stored.iter().any(|filter| covers(filter, subject)))
        .collect()
}

/// Whether everything that matches `subject` matches `filter`, too.
fn covers(filter: &str, subject: &str) -> bool {
    let (mut filter, mut subject) = (filter.split('.'), subject.split('.'));
    loop {
        match (filter.next(), subject.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(word)) if word != ">" => {}
            (Some(one), Some(other)) if one == other => {}
            _ => return false,
        }
    }
}

// === impl Requirement ===

impl Requirement {
    /// Something that cannot be created, since its name has attributes in it.
    fn named(write: &Write, whose: &str) -> Self {
        Self {
            resource: Resource::Named(write.place.clone()),
            whose: BTreeSet::from([whose.to_owned()]),
            settings: Vec::new(),
            if_missing: IfMissing::Waits,
        }
    }

    #[cfg(feature = "nats")]
    fn stream(
        name: String,
        subject: Option<String>,
        whose: &str,
        subjects: Vec<String>,
        copies: Option<u32>,
    ) -> Self {
        let stored = Setting {
            name: "subjects",
            create: Some(json!(subjects)),
            must: Constraint::Cover(subjects),
        };
        Self {
            resource: Resource::Stream { name, subject },
            whose: BTreeSet::from([whose.to_owned()]),
            settings: vec![
                stored,
                Setting::created("storage", Some(json!("file"))),
                Setting::asked("num_replicas", copies),
            ],
            if_missing: IfMissing::Waits,
        }
    }

    /// It has to store these subjects, too.
    #[cfg(feature = "nats")]
    fn cover(&mut self, more: &[String]) {
        for setting in &mut self.settings {
            if let Constraint::Cover(subjects) = &mut setting.must {
                subjects.extend(more.iter().cloned());
            }
        }
    }

    /// Whether it will store the subject.
    #[cfg(feature = "nats")]
    fn stores(&self, subject: &str) -> bool {
        self.settings.iter().any(|setting| {
            matches!(&setting.must, Constraint::Cover(subjects) if subjects.iter().any(|filter| covers(filter, subject)))
        })
    }

    /// What it is created with.
    pub(crate) fn creation(&self) -> Map<String, Value> {
        let settings = self.settings.iter();
        settings
            .filter_map(|setting| Some((setting.name.to_owned(), setting.create.clone()?)))
            .collect()
    }

    /// What it lacks if the bridge creates it when it starts, as `max.message.bytes=2000000`; `None` when the bridge does
    /// not create it.
    pub(crate) fn lacks_at_start(&self) -> Option<Vec<String>> {
        let is_left_out = |setting: &&Setting| match (self.if_missing, &setting.must) {
            (_, Constraint::Anything) => false,
            (IfMissing::CreatesPartitions, _) => !RIGHT_BY_DEFAULT.contains(&setting.name),
            // Somebody asks for more copies than the configuration.
            (_, Constraint::AtLeast(_) | Constraint::InSync) => setting.name.ends_with("replicas"),
            _ => false,
        };
        let words = |setting: &Setting| {
            let (name, value) = (setting.name, setting.create.as_ref()?);
            Some(format!("{name}={}", words(name, value)))
        };
        let left_out = self.settings.iter().filter(is_left_out);
        (self.if_missing != IfMissing::Waits).then(|| left_out.filter_map(words).collect())
    }

    /// Where a thing that exists is not as it has to be, in words.
    pub(crate) fn differences(&self, found: &Map<String, Value>) -> Vec<String> {
        let settings = self.settings.iter();
        settings
            .filter_map(|setting| setting.difference(found))
            .collect()
    }
}

fn created(is_created: bool) -> IfMissing {
    match is_created {
        true => IfMissing::Creates,
        false => IfMissing::Waits,
    }
}

/// Adds a setting, in the place of one of that name.
fn put(settings: &mut Vec<Setting>, setting: Setting) {
    settings.retain(|other| other.name != setting.name);
    settings.push(setting);
}

// === impl Resource ===

impl Resource {
    /// What kind of thing it is, and its name.
    pub(crate) fn names(&self) -> (&'static str, String) {
        match self {
            Self::Topic(topic) => ("topic", topic.to_string()),
            Self::Stream {
                name,
                subject: None,
            } => ("stream", name.clone()),
            Self::Stream {
                subject: Some(subject),
                ..
            } => ("stream of", subject.clone()),
            Self::Consumer { stream, name } => ("consumer", format!("{stream}/{name}")),
            Self::Named(place) => ("topics", place.clone()),
        }
    }
}

// === impl Setting ===

impl Setting {
    fn created(name: &'static str, create: Option<Value>) -> Self {
        let must = Constraint::Anything;
        Self { name, create, must }
    }

    fn be(name: &'static str, value: Value) -> Self {
        Self {
            name,
            create: Some(value.clone()),
            must: Constraint::Be(value),
        }
    }

    /// A number that somebody asks for, or the server's.
    fn asked(name: &'static str, count: Option<u32>) -> Self {
        match count {
            Some(count) => Self::at_least(name, count.into(), Some(json!(count))),
            None => Self::created(name, None),
        }
    }

    fn at_least(name: &'static str, least: u64, create: Option<Value>) -> Self {
        let must = Constraint::AtLeast(least);
        Self { name, create, must }
    }

    fn difference(&self, found: &Map<String, Value>) -> Option<String> {
        let name = self.name;
        let is = found.get(name).unwrap_or(&Value::Null);
        let wanted = match &self.must {
            Constraint::Anything => return None,
            Constraint::Be(value) if is == value => return None,
            // Servers leave out what is zero.
            Constraint::Be(value) if is.is_null() && *value == json!(0) => return None,
            Constraint::Be(value) => format!("must be {}", words(name, value)),
            // -1 is no limit.
            Constraint::AtLeast(least)
                if is.as_i64() == Some(-1) || is.as_u64() >= Some(*least) =>
            {
                return None;
            }
            Constraint::AtLeast(least) => format!("must be at least {least}"),
            Constraint::InSync => {
                let copies = found.get("replicas").and_then(Value::as_u64);
                let copies = copies.filter(|copies| *copies >= 3 && is.as_u64() < Some(2))?;
                format!("must be at least 2 of {copies} replicas")
            }
            Constraint::Cover(subjects) => match lacking(found, subjects) {
                missing if missing.is_empty() => return None,
                missing => format!("lacks {}", missing.join(", ")),
            },
        };
        let is = match is {
            Value::Null => "not set".to_owned(),
            value => words(name, value),
        };
        Some(format!("{name} is {is}, {wanted}"))
    }
}

/// The value of a setting as text.
pub(crate) fn words(name: &str, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items = items.iter().map(|item| words(name, item));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_covers_what_every_subject_of_the_other_matches() {
        for (filter, subject) in [
            ("a.b", "a.b"),
            ("a.>", "a.b"),
            ("a.>", "a.*"),
            ("a.>", "a.>"),
            ("*.b", "a.b"),
            (">", "a"),
        ] {
            assert!(covers(filter, subject), "{filter} {subject}");
        }
        for (filter, subject) in [
            ("a.b", "a.c"),
            ("a.b", "a"),
            ("a", "a.b"),
            ("a.*", "a.>"),
            ("a.b", "a.*"),
            ("a.>", "a"),
        ] {
            assert!(!covers(filter, subject), "{filter} {subject}");
        }
    }

    #[test]
    fn what_the_bridge_creates_lacks_what_a_broker_does_not_do_by_default() {
        let mut requirement = Requirement {
            resource: Resource::Topic(Topic::from_static("t")),
            whose: BTreeSet::new(),
            settings: vec![
                Setting::at_least("partitions", 32, Some(json!(32))),
                Setting::at_least("retention.ms", 10, Some(json!(10))),
                Setting::be("cleanup.policy", json!("delete")),
                message_bytes(DEFAULT_MESSAGE_BYTES),
            ],
            if_missing: IfMissing::CreatesPartitions,
        };
        assert_eq!(requirement.lacks_at_start(), Some(Vec::new()));
        put(&mut requirement.settings, message_bytes(2_000_000));
        let lacks = vec!["max.message.bytes=2000000".to_owned()];
        assert_eq!(requirement.lacks_at_start(), Some(lacks));
        requirement.if_missing = IfMissing::Creates;
        assert_eq!(requirement.lacks_at_start(), Some(Vec::new()));
        requirement.if_missing = IfMissing::Waits;
        assert_eq!(requirement.lacks_at_start(), None);
    }

    #[test]
    #[cfg(feature = "kafka")]
    fn of_three_copies_two_must_confirm() {
        let requirement = |replicas| Requirement {
            resource: Resource::Topic(Topic::from_static("t")),
            whose: BTreeSet::new(),
            settings: vec![in_sync(Defaults {
                replicas,
                ..Defaults::default()
            })],
            if_missing: IfMissing::Creates,
        };
        for (replicas, created) in [(None, None), (Some(2), None), (Some(3), Some(&json!(2)))] {
            let creation = requirement(replicas).creation();
            assert_eq!(creation.get("min.insync.replicas"), created);
        }
        let lacks = vec!["min.insync.replicas=2".to_owned()];
        assert_eq!(requirement(Some(3)).lacks_at_start(), Some(lacks));
        assert_eq!(requirement(None).lacks_at_start(), Some(Vec::new()));
        let wrong = "min.insync.replicas is 1, must be at least 2 of 3 replicas";
        for (replicas, in_sync, expected) in [(3, 1, Some(wrong)), (3, 2, None), (2, 1, None)] {
            let found = json!({"replicas": replicas, "min.insync.replicas": in_sync});
            // Whether or not somebody asks for copies.
            for asked in [None, Some(3)] {
                let differences = requirement(asked).differences(found.as_object().unwrap());
                assert_eq!(differences, Vec::from_iter(expected.map(str::to_owned)));
            }
        }
    }

    #[test]
    fn differences_name_what_is_and_what_must_be() {
        let requirement = Requirement {
            resource: Resource::Topic(Topic::from_static("t")),
            whose: BTreeSet::new(),
            settings: vec![
                Setting::at_least("partitions", 32, None),
                Setting::at_least("retention.ms", 10, None),
                Setting::be("cleanup.policy", json!("delete")),
                Setting::created("replicas", Some(json!(3))),
            ],
            if_missing: IfMissing::CreatesPartitions,
        };
        let found = json!({"partitions": 3, "retention.ms": -1, "cleanup.policy": "compact"});
        assert_eq!(
            requirement.differences(found.as_object().unwrap()),
            [
                "partitions is 3, must be at least 32",
                "cleanup.policy is compact, must be delete"
            ]
        );
    }
}
