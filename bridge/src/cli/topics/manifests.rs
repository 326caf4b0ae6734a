//! The needed topics as Kubernetes manifests: KafkaTopic and KafkaUser of Strimzi, Stream and Consumer of NACK.

#[cfg(feature = "nats")]
pub(super) mod nack;
#[cfg(feature = "kafka")]
pub(super) mod strimzi;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::super::command::Misuse;
use super::super::output::Output;
use crate::config::{Name, TransportConfig, TransportType};

/// The transports of one type. Prints which others are left out.
fn of_type<'a>(
    transports: &[(&'a Name, &'a TransportConfig)],
    (transport_type, type_name): (TransportType, &str),
    format: &str,
    output: &mut Output,
) -> anyhow::Result<Vec<(&'a Name, &'a TransportConfig)>> {
    let (chosen, others): (Vec<_>, Vec<_>) = transports
        .iter()
        .copied()
        .partition(|(_, transport)| transport.transport_type() == transport_type);
    let others = others.iter().map(|(name, _)| name.as_str());
    let others = Vec::from_iter(others).join(", ");
    if chosen.is_empty() {
        let message =
            format!("--output {format} is for transports of type {type_name}, not for {others}");
        return Err(Misuse(message).into());
    }
    if !others.is_empty() {
        output.line(format!("# not of type {type_name}, and left out: {others}"))?;
    }
    Ok(chosen)
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
    let shortened: String = changed.chars().take(240).collect();
    format!("{}-{hash}", shortened.trim_matches(['-', '.']))
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
