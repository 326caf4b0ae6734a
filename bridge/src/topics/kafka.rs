//! What the bridge needs on Kafka.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use a2abus_transports::kafka::{Kafka, KafkaConfig};
use a2abus_transports::{Topic, TransportError};
use serde_json::{Map, Value, json};

use super::requirement::{
    Constraint, Defaults, IfMissing, Requirement, Resource, Setting, created, display, put,
};
use crate::access::{Access, Operation, Storage, Target};
use crate::config::Config;
use crate::state::{LogLocation, LogSpec};

/// The largest message that brokers accept by default.
const DEFAULT_MESSAGE_BYTES: u64 = 1_048_588;
/// How long answers are stored.
const REPLY_RETENTION: Duration = Duration::from_secs(60 * 60);

/// The topics that a Kafka transport needs.
pub(super) fn topics(
    config: &Config,
    kafka: &KafkaConfig,
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
                    needs.add(&topic, &used.owner, IfMissing::Waits, Vec::new());
                }
            }
            #[cfg(feature = "nats")]
            Operation::Durable { .. } => {}
            // Those who send requests create these topics, with the settings that they need.
            Operation::Write(write) if write.storage == Storage::Requesters => {}
            Operation::Write(write) => match write.target.topic() {
                Some(topic) => {
                    let (mut if_missing, mut settings) =
                        (IfMissing::Waits, vec![message_bytes(bytes)]);
                    if write.is_stored() {
                        if_missing = IfMissing::CreatesPartitions;
                        settings.push(Setting::created("partitions", Some(json!(1))));
                        settings.push(in_sync(defaults));
                    }
                    needs.add(topic, &used.owner, if_missing, settings);
                }
                None => named.push(Requirement::named(&write.target, &used.owner)),
            },
            Operation::Replies(topic) => {
                let settings = reply_settings(config, bytes);
                needs.add(topic, &used.owner, IfMissing::CreatesPartitions, settings);
            }
            Operation::State {
                spec,
                place: LogLocation::Topic(topic),
                is_created,
            } => {
                let settings = log_settings(spec, bytes, defaults);
                needs.add(topic, &used.owner, created(*is_created), settings);
            }
            Operation::State { .. } => {}
        }
    }
    needs.with(defaults).chain(named).collect()
}

/// The needed topics.
#[derive(Default)]
struct TopicNeeds(BTreeMap<Topic, TopicNeed>);

/// The need for one topic.
#[derive(Default)]
struct TopicNeed {
    owners: BTreeSet<String>,
    if_missing: IfMissing,
    settings: Vec<Setting>,
}

impl TopicNeeds {
    /// Adds a use of a topic. Its settings replace those of earlier uses.
    fn add(&mut self, topic: &Topic, owner: &str, if_missing: IfMissing, more: Vec<Setting>) {
        let need = self.0.entry(topic.clone()).or_default();
        need.owners.insert(owner.to_owned());
        need.if_missing = need.if_missing.max(if_missing);
        for setting in more {
            put(&mut need.settings, setting);
        }
    }

    /// The topics with all their settings.
    fn with(self, defaults: Defaults) -> impl Iterator<Item = Requirement> {
        self.0.into_iter().map(move |(topic, need)| {
            let TopicNeed {
                owners,
                if_missing,
                mut settings,
            } = need;
            if settings.iter().all(|setting| setting.name != "partitions") {
                settings.push(Setting::optional("partitions", defaults.partitions));
            }
            settings.push(Setting::optional("replicas", defaults.replicas));
            if settings
                .iter()
                .all(|setting| setting.name != "cleanup.policy")
            {
                // Compaction would delete all but the last message of a key.
                settings.push(Setting::be("cleanup.policy", json!("delete")));
            }
            Requirement {
                resource: Resource::Topic(topic),
                owners,
                settings,
                if_missing,
            }
        })
    }
}

/// The size that a topic must accept, so that every message of the bridge fits.
fn message_bytes(bytes: u64) -> Setting {
    let large = (bytes > DEFAULT_MESSAGE_BYTES).then(|| json!(bytes));
    Setting::at_least("max.message.bytes", bytes, large)
}

fn reply_settings(config: &Config, bytes: u64) -> Vec<Setting> {
    let calls = &config.calls;
    let partitions = u64::from(calls.reply_partitions);
    let longest = calls.max_timeout.0.max(calls.stream_timeout.0);
    let retention = milliseconds(longest.max(REPLY_RETENTION));
    vec![
        Setting::at_least("partitions", partitions, Some(json!(partitions))),
        message_bytes(bytes),
        Setting::at_least(
            "retention.ms",
            milliseconds(longest),
            Some(json!(retention)),
        ),
    ]
}

/// The settings of a log of the state.
fn log_settings(spec: &LogSpec, bytes: u64, defaults: Defaults) -> Vec<Setting> {
    // One partition keeps the order of all records.
    let mut settings = vec![
        Setting::created("partitions", Some(json!(1))),
        message_bytes(bytes),
    ];
    match spec.kind.max_age() {
        Some(max_age) => {
            let retention = milliseconds(max_age);
            settings.push(Setting::be("cleanup.policy", json!("delete")));
            settings.push(Setting::at_least(
                "retention.ms",
                retention,
                Some(json!(retention)),
            ));
        }
        None => settings.push(Setting::be("cleanup.policy", json!("compact"))),
    }
    settings.push(in_sync(defaults));
    settings
}

/// How many replicas must have a record before it is confirmed. With one, a confirmed record is lost with its broker.
fn in_sync(defaults: Defaults) -> Setting {
    let replicas = defaults.replicas.filter(|replicas| *replicas >= 3);
    Setting {
        name: "min.insync.replicas",
        create: replicas.map(|_| json!(2)),
        must: Constraint::InSync,
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The settings of an existing topic; `None` when it does not exist.
pub(super) async fn settings(
    kafka: &Kafka,
    topic: &Topic,
) -> Result<Option<Map<String, Value>>, TransportError> {
    let Some(topic) = kafka.topic_settings(topic).await? else {
        return Ok(None);
    };
    let settings = topic.settings.into_iter();
    let mut found: Map<_, _> = settings.map(|(name, text)| (name, number(text))).collect();
    found.insert("partitions".to_owned(), json!(topic.partitions));
    found.insert("replicas".to_owned(), json!(topic.replicas));
    Ok(Some(found))
}

/// The value of a setting, which Kafka returns as text.
fn number(text: String) -> Value {
    match text.parse::<i64>() {
        Ok(number) => json!(number),
        Err(_) => Value::String(text),
    }
}

/// Creates a topic.
pub(super) async fn create(
    kafka: &Kafka,
    topic: &Topic,
    mut settings: Map<String, Value>,
) -> Result<(), TransportError> {
    let mut count = |name| {
        let count = settings.remove(name)?.as_u64()?;
        u32::try_from(count).ok()
    };
    let (partitions, replicas) = (count("partitions"), count("replicas"));
    let settings = settings.iter();
    let settings = settings.map(|(name, value)| (name.clone(), display(name, value)));
    kafka
        .create_topic(topic, partitions, replicas, &settings.collect())
        .await
}

// === impl Requirement ===

impl Requirement {
    /// Topics that cannot be created, because their names contain attributes.
    fn named(target: &Target, owner: &str) -> Self {
        Self {
            resource: Resource::Named(target.to_string()),
            owners: BTreeSet::from([owner.to_owned()]),
            settings: Vec::new(),
            if_missing: IfMissing::Waits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access;
    use crate::config::TransportConfig;

    #[test]
    fn a_topic_created_at_start_lacks_settings_beyond_the_defaults_of_the_broker() {
        let mut requirement = Requirement {
            resource: Resource::Topic(Topic::from_static("t")),
            owners: BTreeSet::new(),
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
    fn topics_of_requesters_are_neither_created_nor_compared() {
        let text = "
instance: t
transports: {k: {type: kafka, brokers: ['a:1']}}
bindings: [{name: in, transport: k, topics: [in], reply_topics: [named, 'clients.*']}]
default_route: [{transport: k, topic: out}]
";
        let config = Config::read("f", text, []).unwrap_or_else(|errors| panic!("{errors}"));
        let (name, transport) = config.transports.first_key_value().unwrap();
        let TransportConfig::Kafka(kafka) = transport else {
            panic!("{transport:?}");
        };
        let uses = access::uses(&config, name);
        let needed = topics(&config, kafka, &uses, Defaults::default()).into_iter();
        let needed: Vec<String> = needed.map(|needed| needed.resource.names().1).collect();
        for name in ["in", "out", "named", "clients.*"] {
            let is_needed = needed.iter().any(|needed| needed == name);
            assert_eq!(is_needed, ["in", "out"].contains(&name), "{needed:?}");
        }
    }

    #[test]
    fn two_of_three_replicas_must_confirm() {
        let requirement = |replicas| Requirement {
            resource: Resource::Topic(Topic::from_static("t")),
            owners: BTreeSet::new(),
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
            // Whether or not the configuration requires replicas.
            for required in [None, Some(3)] {
                let differences = requirement(required).differences(found.as_object().unwrap());
                assert_eq!(differences, Vec::from_iter(expected.map(str::to_owned)));
            }
        }
    }

    #[test]
    fn differences_show_the_found_and_the_needed_value() {
        let requirement = Requirement {
            resource: Resource::Topic(Topic::from_static("t")),
            owners: BTreeSet::new(),
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
