//! The needed topics as Kubernetes manifests: KafkaTopic and KafkaUser of Strimzi, Stream and Consumer of NACK.

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::super::output::Output;
use super::super::{Misuse, Status};
use super::{Common, PlanArgs};
use crate::access;
use crate::config::{Config, Name, TransportConfig, TransportType};
use crate::topics::{self, NAMED, Resource};

/// Prints a KafkaTopic for each topic, and, with --acls, the KafkaUser with its ACLs, as Strimzi has them since 0.49.
pub(super) fn strimzi(
    config: &Config,
    transports: &[(&Name, &TransportConfig)],
    args: &PlanArgs,
) -> anyhow::Result<Status> {
    let mut output = Output::new();
    let is_kafka = |transport: &TransportConfig| transport.transport_type() == TransportType::Kafka;
    for (name, transport) in of_type(transports, is_kafka, ("strimzi", "Kafka"), &mut output)? {
        let uses = access::uses(config, name);
        let all = topics::requirements(config, name, transport, &uses, args.common.defaults());
        if all.is_empty() {
            output.line(format!("# {name}: the configuration needs no topics there"))?;
        }
        for requirement in all {
            let Resource::Topic(topic) = &requirement.resource else {
                let whose = Vec::from_iter(requirement.whose.iter().cloned()).join(", ");
                let (_, place) = requirement.resource.names();
                output.line(format!("# {name}: topics {place} ({whose}): {NAMED}"))?;
                continue;
            };
            let mut settings = requirement.creation();
            let mut spec = Map::new();
            let resource = resource_name(topic.as_str());
            if resource != topic.as_str() {
                spec.insert("topicName".to_owned(), json!(topic.as_str()));
            }
            for name in ["partitions", "replicas"] {
                spec.extend(settings.remove(name).map(|value| (name.to_owned(), value)));
            }
            spec.insert("config".to_owned(), Value::Object(settings));
            document(
                &mut output,
                &strimzi_resource("KafkaTopic", &resource, &args.cluster, &Value::Object(spec)),
            )?;
        }
        #[cfg(feature = "kafka")]
        if let (true, TransportConfig::Kafka(kafka)) = (args.acls, transport) {
            let user = kafka
                .sasl
                .as_ref()
                .map_or("a2abus", |sasl| sasl.username.as_str());
            let spec = user_spec(kafka, &uses);
            document(
                &mut output,
                &strimzi_resource("KafkaUser", &resource_name(user), &args.cluster, &spec),
            )?;
        }
    }
    Ok(Status::Success)
}

fn strimzi_resource(kind: &str, name: &str, cluster: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "kafka.strimzi.io/v1",
        "kind": kind,
        "metadata": {"name": name, "labels": {"strimzi.io/cluster": cluster}},
        "spec": spec,
    })
}

#[cfg(feature = "kafka")]
fn user_spec(kafka: &a2abus_transports::kafka::KafkaConfig, uses: &[access::Access]) -> Value {
    use a2abus_transports::kafka::SaslMechanism;

    let acls: Vec<Value> = access::kafka_rights(uses)
        .into_iter()
        .map(|(resource, operations)| {
            let pattern = match resource.prefixed {
                true => "prefix",
                false => "literal",
            };
            json!({
                "resource": {"type": resource.kind, "name": resource.name, "patternType": pattern},
                "operations": operations,
            })
        })
        .collect();
    let mut spec = json!({"authorization": {"type": "simple", "acls": acls}});
    let sasl = kafka.sasl.as_ref().map(|sasl| sasl.mechanism);
    let has_certificate = kafka
        .tls
        .as_ref()
        .is_some_and(|tls| tls.cert_file.is_some());
    if sasl == Some(SaslMechanism::ScramSha512) {
        spec["authentication"] = json!({"type": "scram-sha-512"});
    } else if sasl.is_none() && has_certificate {
        spec["authentication"] = json!({"type": "tls"});
    }
    spec
}

/// Prints a Stream for each stream and a Consumer for each durable consumer.
pub(super) fn nack(
    config: &Config,
    transports: &[(&Name, &TransportConfig)],
    common: &Common,
) -> anyhow::Result<Status> {
    let mut output = Output::new();
    let is_nats = |transport: &TransportConfig| transport.transport_type() == TransportType::Nats;
    for (name, transport) in of_type(transports, is_nats, ("nack", "NATS"), &mut output)? {
        let uses = access::uses(config, name);
        let all = topics::requirements(config, name, transport, &uses, common.defaults());
        if all.is_empty() {
            output.line(format!(
                "# {name}: the configuration needs no streams there"
            ))?;
        }
        for requirement in all {
            let (kind, resource, mut spec) = match &requirement.resource {
                Resource::Stream { name, .. } => ("Stream", name.clone(), json!({ "name": name })),
                Resource::Consumer { stream, name } => (
                    "Consumer",
                    format!("{stream}-{name}"),
                    json!({ "streamName": stream, "durableName": name }),
                ),
                Resource::Topic(_) | Resource::Named(_) => continue,
            };
            for (setting, value) in requirement.creation() {
                if let Some((name, value)) = nack_setting(&setting, value) {
                    spec[name] = value;
                }
            }
            let manifest = json!({
                "apiVersion": "jetstream.nats.io/v1beta2",
                "kind": kind,
                "metadata": {"name": resource_name(&resource)},
                "spec": spec,
            });
            document(&mut output, &manifest)?;
        }
    }
    Ok(Status::Success)
}

/// The transports of one type; what is printed says which are left out.
fn of_type<'a>(
    transports: &[(&'a Name, &'a TransportConfig)],
    is_meant: impl Fn(&TransportConfig) -> bool,
    (format, wanted): (&str, &str),
    output: &mut Output,
) -> anyhow::Result<Vec<(&'a Name, &'a TransportConfig)>> {
    let (meant, others): (Vec<_>, Vec<_>) = transports
        .iter()
        .copied()
        .partition(|(_, transport)| is_meant(transport));
    let others = others.iter().map(|(name, _)| name.as_str());
    let others = Vec::from_iter(others).join(", ");
    if meant.is_empty() {
        let message =
            format!("--output {format} is for transports of type {wanted}, not for {others}");
        return Err(Misuse(message).into());
    }
    if !others.is_empty() {
        output.line(format!("# not of type {wanted}, and left out: {others}"))?;
    }
    Ok(meant)
}

/// A JetStream API setting in NACK's notation; `None` for a default of both.
fn nack_setting(name: &str, value: Value) -> Option<(&'static str, Value)> {
    let duration = |value: &Value| json!(format!("{}ms", value.as_u64().unwrap_or(0) / 1_000_000));
    Some(match name {
        "subjects" => ("subjects", value),
        "storage" => ("storage", value),
        "num_replicas" => ("replicas", value),
        "max_age" if value == json!(0) => return None,
        "max_age" => ("maxAge", duration(&value)),
        "retention" => ("retention", value),
        "max_msgs_per_subject" => ("maxMsgsPerSubject", value),
        "duplicate_window" => ("duplicateWindow", duration(&value)),
        "filter_subject" => ("filterSubject", value),
        "filter_subjects" => ("filterSubjects", value),
        "ack_policy" => ("ackPolicy", value),
        "ack_wait" => ("ackWait", duration(&value)),
        "deliver_policy" => ("deliverPolicy", value),
        "max_ack_pending" => ("maxAckPending", value),
        "max_deliver" => ("maxDeliver", value),
        _ => return None,
    })
}

/// The name as Kubernetes allows it; a changed name ends in a hash, so that two names stay different.
fn resource_name(name: &str) -> String {
    let legal = |c: char| match c.to_ascii_lowercase() {
        c @ ('a'..='z' | '0'..='9' | '.' | '-') => c,
        _ => '-',
    };
    let changed: String = name.chars().map(legal).collect();
    if changed == name && name.len() <= 253 {
        return changed;
    }
    let digest = Sha256::digest(name);
    let hash: String = digest
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let kept: String = changed.chars().take(240).collect();
    format!("{}-{hash}", kept.trim_matches(['-', '.']))
}

fn document(output: &mut Output, manifest: &Value) -> anyhow::Result<()> {
    let yaml = serde_saphyr::to_string(manifest)?;
    output.line(format!("---\n{}", yaml.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_legal_in_kubernetes_and_stay_different() {
        assert_eq!(resource_name("agents.requests"), "agents.requests");
        let (one, other) = (resource_name("Agents_1"), resource_name("agents-1"));
        assert!(one.starts_with("agents-1-"), "{one}");
        assert_ne!(one, other);
    }
}
