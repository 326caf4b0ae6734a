//! Agent cards: one document for clients of all versions.
//!
//! A card has the members of the JAF document, A2A 0.3 and A2A 1.0; each client reads the members that it knows.
//! Source: docs/protocols/a2a.md §8.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::calls::failure::SOON;
use crate::config::{AgentCardConfig, SkillConfig};
use crate::registry::Agents;
use crate::registry::card::about;

/// The protocol version in cards for the JAF document and A2A 0.3.
pub(super) const PROTOCOL_VERSION: &str = "0.3.0";

/// Maximum number of agents in the card of the server.
const MAX_AGENTS: usize = 100;
/// Maximum number of media types in each of its lists.
const MAX_MODES: usize = 100;

/// The interfaces that cards offer, with their URLs.
#[derive(Debug, Clone)]
pub(super) struct OfferedInterfaces {
    /// As JSON-RPC.
    pub(super) json_rpc: String,
    /// As HTTP+JSON: the base URL of the paths.
    pub(super) http: String,
    /// Whether webhooks are supported.
    pub(super) push: bool,
    /// How many requests a client may have in progress.
    pub(super) at_a_time: usize,
}

/// The card of one agent.
pub(super) fn of_agent(name: &str, agent: &AgentCardConfig, offer: &OfferedInterfaces) -> Value {
    let skills = agent.skills.iter().map(|skill| written(&skill.id, skill));
    let mut card = card(
        (name, &agent.description, &agent.version),
        offer,
        agent.streaming,
        (&agent.input_modes, &agent.output_modes),
        &skills.collect::<Vec<_>>(),
    );
    if let Value::Object(members) = &mut card {
        members.extend(about(agent));
    }
    if !agent.extensions.is_empty() {
        card["capabilities"]["extensions"] = json!(agent.extensions);
    }
    card
}

/// The card of the server: the skills of all agents, as `<agent>-<skill>`. An agent without skills is one skill,
/// `<agent>-main`, as JAF writes it.
pub(super) fn of_server(instance: &str, agents: &Agents, offer: &OfferedInterfaces) -> Value {
    let mut skills = Vec::new();
    for (name, agent) in agents.iter().take(MAX_AGENTS) {
        for skill in &agent.skills {
            skills.push(written(&format!("{name}-{}", skill.id), skill));
        }
        if agent.skills.is_empty() {
            skills.push(json!({
                "id": format!("{name}-main"),
                "name": name.as_str(),
                "description": agent.description,
                "tags": [name.as_str()],
                "examples": [],
            }));
        }
    }
    let shown = || agents.iter().take(MAX_AGENTS).map(|(_, agent)| agent);
    let inputs = different(shown().flat_map(|agent| &agent.input_modes));
    let outputs = different(shown().flat_map(|agent| &agent.output_modes));
    let description = format!("Agents on an event bus: {}", agents.names().join(", "));
    let streaming = agents.iter().any(|(_, agent)| agent.streaming);
    card(
        (instance, &description, env!("CARGO_PKG_VERSION")),
        offer,
        streaming,
        (&inputs, &outputs),
        &skills,
    )
}

/// The first [`MAX_MODES`] different media types.
fn different<'a>(media_types: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut known = HashSet::new();
    let new = media_types.filter(|media_type| known.insert(media_type.as_str()));
    new.take(MAX_MODES).cloned().collect()
}

fn card(
    (name, description, version): (&str, &str, &str),
    offer: &OfferedInterfaces,
    streaming: bool,
    (inputs, outputs): (&[String], &[String]),
    skills: &[Value],
) -> Value {
    let OfferedInterfaces {
        json_rpc,
        http,
        push,
        at_a_time,
    } = offer;
    json!({
        "name": name,
        "description": description,
        "version": version,
        "protocolVersion": PROTOCOL_VERSION,
        "url": json_rpc,
        "preferredTransport": "JSONRPC",
        "additionalInterfaces": [
            { "url": json_rpc, "transport": "JSONRPC" },
            { "url": http, "transport": "HTTP+JSON" },
        ],
        "supportedInterfaces": [
            { "url": json_rpc, "protocolBinding": "JSONRPC", "protocolVersion": "1.0" },
            { "url": http, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0" },
            { "url": json_rpc, "protocolBinding": "JSONRPC", "protocolVersion": "0.3" },
            { "url": http, "protocolBinding": "HTTP+JSON", "protocolVersion": "0.3" },
        ],
        "capabilities": {
            "streaming": streaming,
            "pushNotifications": push,
            "stateTransitionHistory": true,
            "contextAccumulation": false,
            "extendedAgentCard": true,
        },
        // Clients are not authenticated, so there is no extended card.
        "supportsAuthenticatedExtendedCard": false,
        "authentication": { "required": false, "schemes": [] },
        // The limit that the X-RateLimit headers show. Source: docs/protocols/a2a.md §9.
        "rateLimit": { "requests": at_a_time, "window": SOON, "burst": at_a_time },
        "defaultInputModes": inputs,
        "defaultOutputModes": outputs,
        "inputModes": modes(inputs),
        "outputModes": modes(outputs),
        "skills": skills,
    })
}

/// Only the members of A2A 1.0.
pub(super) fn current_only(card: Value) -> Value {
    const MEMBERS: [&str; 11] = [
        "name",
        "description",
        "version",
        "provider",
        "documentationUrl",
        "iconUrl",
        "supportedInterfaces",
        "capabilities",
        "defaultInputModes",
        "defaultOutputModes",
        "skills",
    ];
    let Value::Object(members) = card else {
        return card;
    };
    let members = members.into_iter();
    let mut retained: Map<String, Value> = members
        .filter(|(name, _)| MEMBERS.contains(&name.as_str()))
        .collect();
    if let Some(Value::Object(capabilities)) = retained.get_mut("capabilities") {
        capabilities.retain(|name, _| {
            [
                "streaming",
                "pushNotifications",
                "extendedAgentCard",
                "extensions",
            ]
            .contains(&name.as_str())
        });
    }
    Value::Object(retained)
}

fn written(id: &str, skill: &SkillConfig) -> Value {
    json!({
        "id": id,
        "name": skill.name.as_deref().unwrap_or(&skill.id),
        "description": skill.description,
        "tags": skill.tags,
        "examples": skill.examples,
    })
}

/// The JAF names of media types.
fn modes(media_types: &[String]) -> Vec<&'static str> {
    let mut modes = Vec::new();
    for media_type in media_types {
        let mode = match media_type.as_str() {
            text if text == "text" || text.starts_with("text/") => "text",
            data if data == "data" || data.ends_with("json") => "data",
            _ => "file",
        };
        if !modes.contains(&mode) {
            modes.push(mode);
        }
    }
    modes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_media_type_is_listed_once_and_a_hundred_are_listed() {
        let names = |count: usize| (0..count).map(|number| format!("text/{number}"));
        let all: Vec<String> = names(3).chain(names(200)).collect();
        let listed = different(all.iter());
        assert_eq!(listed, names(MAX_MODES).collect::<Vec<_>>());
    }
}
