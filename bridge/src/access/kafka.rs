//! The ACLs that the user of the bridge needs on Kafka.

use std::collections::{BTreeMap, BTreeSet};

use a2abus_transports::kafka::KafkaConfig;

use super::{Access, Operation, Target, literal_prefix};
use crate::names::TemplatePart;
use crate::state::LogLocation;

/// The resource of an ACL.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Resource {
    /// `topic` or `group`.
    pub(crate) kind: &'static str,
    /// The name, or the prefix of the names.
    pub(crate) name: String,
    pub(crate) prefixed: bool,
}

/// The operations to publish to a topic.
const WRITE: &[&str] = &["Write", "Describe"];

/// The operations that the user of the bridge needs on each resource.
pub(crate) fn rights(uses: &[Access]) -> BTreeMap<Resource, BTreeSet<&'static str>> {
    let mut rights = rights_to_work(uses);
    for (resource, operations) in &mut rights {
        // The bridge does not need this, but `topics plan` compares the settings of topics whose name is known.
        if resource.kind == "topic" && !resource.prefixed && resource.name != "*" {
            operations.insert("DescribeConfigs");
        }
    }
    rights
}

/// The operations without those of `topics plan`.
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
            #[cfg(feature = "nats")]
            Operation::Durable { .. } => {}
            Operation::Write(write) => match (write.target.topic(), prefix(&write.target).as_str())
            {
                // The bridge creates missing topics of dead letters.
                (Some(name), _) if write.is_stored() => {
                    let operations = &["Write", "Describe", "Create"];
                    give(literal("topic", name.as_str()), operations);
                }
                (Some(name), _) => give(literal("topic", name.as_str()), WRITE),
                (None, "") => give(literal("topic", "*"), WRITE),
                (None, prefix) => {
                    let prefixed = Resource {
                        prefixed: true,
                        ..literal("topic", prefix)
                    };
                    give(prefixed, WRITE);
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

/// The prefix of all topics.
fn prefix(target: &Target) -> String {
    match target {
        Target::Topic(topic) => topic.to_string(),
        Target::Template { template, .. } => {
            let parts = template.parts().iter();
            let literals = parts.map_while(|part| match part {
                TemplatePart::Literal(text) => Some(text.as_str()),
                TemplatePart::Attribute(_) => None,
            });
            literals.collect()
        }
        Target::Matching(pattern) => literal_prefix(pattern).to_owned(),
    }
}

/// The operations on the topic of a log.
fn log_operations(is_created: bool) -> &'static [&'static str] {
    match is_created {
        true => &["Read", "Write", "Describe", "Create"],
        false => &["Read", "Write", "Describe"],
    }
}

/// The `kafka-acls.sh` commands that grant these operations.
pub(crate) fn acls(config: &KafkaConfig, uses: &[Access]) -> Vec<String> {
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
    rights(uses).into_iter().map(line).collect()
}
