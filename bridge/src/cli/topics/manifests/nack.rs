//! Manifests for NACK.

use serde_json::{Value, json};

use super::super::super::command::Status;
use super::super::super::output::Output;
use super::super::args::Common;
use super::{document, of_type, resource_name};
use crate::access;
use crate::config::{Config, Name, TransportConfig, TransportType};
use crate::topics::{self, Resource};

/// Prints a Stream for each stream and a Consumer for each durable consumer.
pub(in crate::cli::topics) fn print(
    config: &Config,
    transports: &[(&Name, &TransportConfig)],
    common: &Common,
) -> anyhow::Result<Status> {
    let mut output = Output::new();
    let nats = (TransportType::Nats, "NATS");
    for (name, transport) in of_type(transports, nats, "nack", &mut output)? {
        let uses = access::uses(config, name);
        let all = topics::requirements(config, (name, transport), &uses, common.defaults());
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
                #[cfg(feature = "kafka")]
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
