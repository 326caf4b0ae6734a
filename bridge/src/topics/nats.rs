//! What the bridge needs on NATS.

use std::collections::BTreeSet;
use std::time::Duration;

use a2abus_transports::nats::{
    JetStreamConfig, Nats, NatsConfig, StreamConfig, StreamStorage, covers, stored_subjects,
};
use a2abus_transports::{TransportError, TransportErrorKind};
use serde_json::{Map, Value, json};

use super::requirement::{
    Constraint, Defaults, IfMissing, Requirement, Resource, Setting, created, put,
};
use super::subjects::broadest;
use crate::access::{Access, Operation, nats::pattern};
use crate::config::{Config, Name};
use crate::state::{Kind, LogLocation, LogSpec};

/// The owner of the streams that the configuration lists.
const LISTED: &str = "jetstream.streams";

/// The streams, and then the consumers, that a NATS transport needs.
pub(super) fn streams(
    config: &Config,
    transport: &Name,
    nats: &NatsConfig,
    uses: &[Access],
    defaults: Defaults,
) -> Vec<Requirement> {
    let replicas = defaults.replicas;
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
        let owner = format!("binding {}", binding.name);
        read_stream(&mut streams, stream, &topics, &owner, replicas);
        consumers.push(Requirement {
            resource: Resource::Consumer {
                stream: stream.to_string(),
                name: name.to_string(),
            },
            owners: BTreeSet::from([owner]),
            settings: consumer(&nats.jetstream, &topics, binding.budget_messages),
            if_missing,
        });
    }
    let mut stored = Vec::new();
    for used in uses {
        match &used.operation {
            Operation::State {
                spec,
                place,
                is_created,
            } => {
                let log = log_stream(spec, place, &used.owner, replicas);
                streams.extend(log.map(|log| Requirement {
                    if_missing: created(*is_created),
                    ..log
                }));
            }
            // Core NATS needs nothing.
            Operation::Write(write) if write.is_stored() => {
                stored.push((pattern(&write.target), used.owner.as_str()));
            }
            _ => {}
        }
    }
    store(&mut streams, stored, replicas);
    streams.into_iter().chain(consumers).collect()
}

/// Adds the stream from which a binding reads these subjects.
fn read_stream(
    streams: &mut Vec<Requirement>,
    stream: &Name,
    topics: &[String],
    owner: &str,
    replicas: Option<u32>,
) {
    let known = streams.iter_mut().find(
        |requirement| matches!(&requirement.resource, Resource::Stream { name, .. } if *name == stream.as_str()),
    );
    match known {
        Some(requirement) => {
            requirement.read(topics);
            requirement.owners.insert(owner.to_owned());
        }
        None => {
            let (name, whole) = (stream.to_string(), Vec::new());
            let mut requirement = Requirement::stream(name, None, owner, whole, replicas);
            requirement.read(topics);
            streams.push(requirement);
        }
    }
}

/// Adds streams that store these subjects, each with its owner, unless one of `streams` does.
fn store(streams: &mut Vec<Requirement>, mut subjects: Vec<(String, &str)>, replicas: Option<u32>) {
    let all: Vec<String> = subjects
        .iter()
        .map(|(subject, _)| subject.clone())
        .collect();
    let broad = broadest(&all);
    // The broad subjects come first, so that narrower ones find a stream that already stores them.
    subjects.sort_by_key(|(subject, _)| !broad.contains(subject));
    for (subject, owner) in subjects {
        let mut known = streams.iter_mut();
        if let Some(requirement) = known.find(|requirement| requirement.stores(&subject)) {
            requirement.owners.insert(owner.to_owned());
            continue;
        }
        // A stream of its own: the configuration does not say which of several streams should store it.
        let name = subject.replace(['.', '*', '>'], "_").to_uppercase();
        let (only, subjects) = (Some(subject.clone()), vec![subject]);
        streams.push(Requirement::stream(name, only, owner, subjects, replicas));
    }
}

/// The stream of a log of the state; `None` for any other use.
pub(super) fn log(used: &Access) -> Option<Requirement> {
    match &used.operation {
        Operation::State { spec, place, .. } => log_stream(spec, place, &used.owner, None),
        _ => None,
    }
}

/// The stream of a log of the state.
fn log_stream(
    spec: &LogSpec,
    place: &LogLocation,
    owner: &str,
    replicas: Option<u32>,
) -> Option<Requirement> {
    let LogLocation::Stream { name, prefix } = place else {
        return None;
    };
    let subjects = vec![format!("{prefix}.>")];
    let mut requirement = Requirement::stream(name.clone(), None, owner, subjects, replicas);
    let max_age = spec.kind.max_age().map_or(0, nanoseconds);
    let last = match spec.kind {
        Kind::Events { .. } => -1,
        Kind::Latest => 1,
    };
    for setting in [
        // A stream in memory is lost with the server.
        Setting::be("storage", json!("file")),
        // Other policies delete records depending on who reads them.
        Setting::be("retention", json!("limits")),
        Setting::be("max_age", json!(max_age)),
        Setting::be("max_msgs_per_subject", json!(last)),
    ] {
        put(&mut requirement.settings, setting);
    }
    Some(requirement)
}

/// A stream that the configuration lists.
fn listed(stream: &StreamConfig, if_missing: IfMissing) -> Requirement {
    let storage = match stream.storage {
        StreamStorage::File => "file",
        StreamStorage::Memory => "memory",
    };
    let subjects = Setting {
        name: "subjects",
        create: Some(json!(stream.subjects)),
        must: Constraint::Store {
            whole: stream.subjects.clone(),
            part: Vec::new(),
        },
    };
    Requirement {
        resource: Resource::Stream {
            name: stream.name.clone(),
            subject: None,
        },
        owners: BTreeSet::from([LISTED.to_owned()]),
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

fn consumer(jetstream: &JetStreamConfig, topics: &[String], budget: u32) -> Vec<Setting> {
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

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The settings of an existing stream; `None` when it does not exist.
pub(super) async fn stream_settings(
    nats: &Nats,
    name: &str,
    subject: Option<&str>,
) -> Result<Option<Map<String, Value>>, TransportError> {
    let name = match subject {
        Some(subject) => nats.stream_of(subject).await?,
        None => Some(name.to_owned()),
    };
    match name {
        Some(name) => Ok(object(nats.stream_config(&name).await?)),
        None => Ok(None),
    }
}

/// Refuses a missing stream that the server would not create, because another one stores some of its subjects.
pub(super) async fn must_be_free(
    nats: &Nats,
    requirement: &Requirement,
) -> Result<(), TransportError> {
    let creation = requirement.creation();
    for subject in stored_subjects(&creation).unwrap_or_default() {
        let other = match nats.stream_of(subject).await {
            Ok(Some(other)) => other,
            Ok(None) => continue,
            // Whoever creates the stream learns it from the server.
            Err(error) if error.kind() == TransportErrorKind::Unauthorised => return Ok(()),
            Err(error) => return Err(error),
        };
        let what = format!(
            "the stream cannot be created: the stream {other} stores some of {subject}: use that stream, or change \
             the subjects of one of them"
        );
        return Err(TransportError::new(TransportErrorKind::BadConfig, what));
    }
    Ok(())
}

/// The settings of an existing consumer; `None` when it does not exist.
pub(super) async fn consumer_settings(
    nats: &Nats,
    stream: &str,
    name: &str,
) -> Result<Option<Map<String, Value>>, TransportError> {
    Ok(object(nats.consumer_config(stream, name).await?))
}

fn object(value: Option<Value>) -> Option<Map<String, Value>> {
    match value {
        Some(Value::Object(members)) => Some(members),
        _ => None,
    }
}

// === impl Requirement ===

impl Requirement {
    fn stream(
        name: String,
        subject: Option<String>,
        owner: &str,
        subjects: Vec<String>,
        replicas: Option<u32>,
    ) -> Self {
        let stored = Setting {
            name: "subjects",
            create: Some(json!(broadest(&subjects))),
            must: Constraint::Store {
                whole: subjects,
                part: Vec::new(),
            },
        };
        Self {
            resource: Resource::Stream { name, subject },
            owners: BTreeSet::from([owner.to_owned()]),
            settings: vec![
                stored,
                Setting::created("storage", Some(json!("file"))),
                Setting::optional("num_replicas", replicas),
            ],
            if_missing: IfMissing::Waits,
        }
    }

    /// Adds subjects that are read from the stream: it need not store all of what a wildcard matches. A stream that the
    /// configuration lists is created with the subjects listed there.
    fn read(&mut self, more: &[String]) {
        let is_listed = self.owners.contains(LISTED);
        for setting in &mut self.settings {
            if let Constraint::Store { whole, part } = &mut setting.must {
                let mut more = more.to_vec();
                more.retain(|subject| !whole.contains(subject) && !part.contains(subject));
                part.extend(more);
                if !is_listed {
                    setting.create = Some(json!(broadest(part)));
                }
            }
        }
    }

    /// Whether the stream stores the subject once it is created.
    fn stores(&self, subject: &str) -> bool {
        let creation = self.creation();
        let stored = stored_subjects(&creation).unwrap_or_default();
        stored.iter().any(|filter| covers(filter, subject))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access;
    use crate::config::TransportConfig;

    /// What bindings and routes on the transport `n` need.
    fn required(listed: &str, more: &str) -> Vec<Requirement> {
        let text = format!(
            "transports: {{n: {{type: nats, servers: ['nats://a'], jetstream: {{streams: [{listed}]}}}}}}\n{more}"
        );
        let config = Config::read("f", &text, []).unwrap_or_else(|errors| panic!("{errors}"));
        let (name, transport) = config.transports.first_key_value().unwrap();
        let TransportConfig::Nats(nats) = transport else {
            panic!("{transport:?}");
        };
        let uses = access::uses(&config, name);
        streams(&config, name, nats, &uses, Defaults::default())
    }

    /// The needed streams with their subjects and owners.
    fn needed(listed: &str, more: &str) -> Vec<(String, Value, String)> {
        let stream = |requirement: Requirement| {
            let Resource::Stream { name, .. } = &requirement.resource else {
                return None;
            };
            let owners = Vec::from_iter(requirement.owners.iter().cloned());
            let subjects = requirement.creation().remove("subjects").unwrap();
            Some((name.clone(), subjects, owners.join(", ")))
        };
        let all = required(listed, more).into_iter();
        all.filter_map(stream).collect()
    }

    fn stream(name: &str, subjects: &[&str], owners: &str) -> (String, Value, String) {
        (name.to_owned(), json!(subjects), owners.to_owned())
    }

    const LETTERS: &str = "{name: L, subjects: [a2abus.dlq]}";

    #[test]
    fn a_stream_is_created_with_the_subjects_of_all_its_bindings() {
        let bindings = "
bindings:
- {name: a, transport: n, topics: [a.in, a.x], stream: S, durable: d1}
- {name: b, transport: n, topics: [b.in, a.in, 'a.*'], stream: S, durable: d2}
default_route: [{transport: n, topic: out}]
";
        let letters = "dead letters of binding a, dead letters of binding b";
        let listed = stream(
            "L",
            &["a2abus.dlq"],
            &format!("{letters}, jetstream.streams"),
        );
        assert_eq!(
            needed(LETTERS, bindings),
            [
                listed.clone(),
                stream("S", &["b.in", "a.*"], "binding a, binding b"),
            ]
        );
        // The configuration says what a listed stream stores.
        let both = format!("{LETTERS}, {{name: S, subjects: [a.in]}}");
        let owners = "binding a, binding b, jetstream.streams";
        assert_eq!(
            needed(&both, bindings),
            [listed, stream("S", &["a.in"], owners)]
        );
    }

    #[test]
    fn a_stream_need_not_store_all_that_a_wildcard_of_a_binding_matches() {
        const BINDING: &str = "
bindings: [{name: a, transport: n, topics: ['ev.*', x], stream: S, durable: d}]
default_route: [{transport: n, topic: out}]
";
        const LISTED: &str = "{name: S, subjects: [ev.a, ev.b, x]}";
        for (listed, subjects, expected) in [
            (LISTED, json!(["ev.a", "ev.b", "x"]), vec![]),
            (
                LISTED,
                json!(["ev.a", "x"]),
                vec!["subjects is ev.a,x, lacks ev.b"],
            ),
            ("", json!(["ev.a", "x"]), vec![]),
            (
                "",
                json!(["ev.a.b", "x"]),
                vec!["subjects is ev.a.b,x, lacks ev.*"],
            ),
        ] {
            let all = required(listed, BINDING);
            let stream = all
                .iter()
                .find(|it| matches!(&it.resource, Resource::Stream { name, .. } if name == "S"));
            let mut found = stream.unwrap().creation();
            found.insert("subjects".to_owned(), subjects);
            assert_eq!(stream.unwrap().differences(&found), expected);
        }
    }

    #[test]
    fn subjects_that_overlap_are_stored_by_one_stream() {
        for (names, subject) in [("refuse", "agents.*"), ("dotted", "agents.>")] {
            let routes = format!(
                "
routes:
- {{name: weather, when: {{targetagent: weather}}, to: [{{transport: n, topic: agents.weather, stored: true}}]}}
- {{name: some, when: {{targetagent: a}}, to: [{{transport: n, topic: 'agents.{{targetagent}}', stored: true}}]}}
default_route: [{{transport: n, topic: 'agents.{{targetagent}}', names: {names}, stored: true}}]
calls: {{enabled: false}}
"
            );
            let owners = "route default, route some, route weather";
            assert_eq!(
                needed("", &routes),
                [stream("AGENTS__", &[subject], owners)]
            );
        }
    }
}
