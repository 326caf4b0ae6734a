//! Manifests for Strimzi.

use a2abus_transports::kafka::{KafkaConfig, SaslMechanism};
use serde_json::{Map, Value, json};

use super::super::super::command::Status;
use super::super::super::output::Output;
use super::super::args::PlanArgs;
use super::{document, of_type, resource_name};
use crate::access;
use crate::config::{Config, Name, TransportConfig, TransportType};
use crate::topics::{self, NAMED, Resource};

/// Prints a KafkaTopic for each topic, and, with --acls, the KafkaUser with its ACLs, in the form of Strimzi 0.49 or
/// newer.
pub(in crate::cli::topics) fn print(
    config: &Config,
    transports: &[(&Name, &TransportConfig)],
    args: &PlanArgs,
) -> anyhow::Result<Status> {
    let mut output = Output::new();
    let kafka = (TransportType::Kafka, "Kafka");
    for (name, transport) in of_type(transports, kafka, "strimzi", &mut output)? {
        let uses = access::uses(config, name);
        let all = topics::requirements(config, (name, transport), &uses, args.common.defaults());
        if all.is_empty() {
            output.line(format!("# {name}: the configuration needs no topics there"))?;
        }
        for requirement in all {
            let Resource::Topic(topic) = &requirement.resource else {
                let owners = Vec::from_iter(requirement.owners.iter().cloned()).join(", ");
                let (_, topics) = requirement.resource.names();
                output.line(format!("# {name}: topics {topics} ({owners}): {NAMED}"))?;
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

fn user_spec(kafka: &KafkaConfig, uses: &[access::Access]) -> Value {
    let acls: Vec<Value> = access::kafka::rights(uses)
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
