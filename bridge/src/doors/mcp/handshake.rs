//! The answer to `initialize`: an agent, or all agents, as an MCP server.

use a2abus_plugin::Text;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::revision::Revision;
use super::state::Mcp;
use crate::calls::failure::{Failure, Reason};
use crate::config::{AgentCardConfig, AgentProtocol};
use crate::registry::queries::{AgentQuery, QueryResult};

/// A server, as clients see it. The members are the agent's own JSON.
#[derive(Debug, Deserialize)]
pub(super) struct Profile {
    #[serde(default)]
    capabilities: Option<Box<RawValue>>,
    #[serde(rename = "serverInfo", default)]
    server: Option<Box<RawValue>>,
    #[serde(default)]
    instructions: Option<Box<RawValue>>,
    /// Whether the bridge assumes all of this, because the agent has not answered.
    #[serde(skip)]
    is_assumed: bool,
}

// === impl Profile ===

impl Profile {
    /// All agents as one server.
    pub(super) fn of_all_agents(separator: &str) -> Self {
        let instructions = format!(
            "The agents behind this server share it: their tools and prompts are named AGENT{separator}NAME, and their resources have URIs that begin with a2abus://AGENT/."
        );
        let changing = json!({ "listChanged": true });
        Self {
            capabilities: raw(&json!({
                "tools": changing, "prompts": changing, "completions": {},
                "resources": { "subscribe": true, "listChanged": true },
            })),
            server: raw(&json!({ "name": "a2abus", "version": env!("CARGO_PKG_VERSION") })),
            instructions: raw(&json!(instructions)),
            is_assumed: false,
        }
    }

    /// An agent without a profile, which may have tools.
    fn unknown(agent: &str, version: Option<&str>) -> Self {
        let version = version.unwrap_or("unknown");
        Self {
            capabilities: raw(&json!({ "tools": {} })),
            server: raw(&json!({ "name": agent, "version": version })),
            instructions: None,
            is_assumed: false,
        }
    }

    /// An A2A agent, whose skills are tools.
    fn of_card(agent: &str, card: &AgentCardConfig) -> Self {
        Self {
            capabilities: raw(&json!({ "tools": { "listChanged": true } })),
            server: raw(&json!({ "name": agent, "version": card.version })),
            instructions: raw(&json!(card.description)),
            is_assumed: false,
        }
    }

    fn or(self, other: Self) -> Self {
        Self {
            capabilities: self.capabilities.or(other.capabilities),
            server: self.server.or(other.server),
            instructions: self.instructions,
            is_assumed: false,
        }
    }

    /// Whether the server has this capability, or may have it.
    pub(super) fn may_have(&self, capability: &str) -> bool {
        let capabilities = self.capabilities.as_ref();
        let capabilities = capabilities.and_then(|raw| serde_json::from_str(raw.get()).ok());
        let has = |value: Value| value.get(capability).is_some();
        self.is_assumed || capabilities.is_some_and(has)
    }

    /// The result of `initialize`.
    pub(super) fn initialized(&self, revision: Revision) -> String {
        let mut result = json!({
            "protocolVersion": revision.as_str(),
            "capabilities": self.capabilities,
            "serverInfo": self.server,
        });
        if let Some(instructions) = &self.instructions {
            result["instructions"] = json!(instructions);
        }
        result.to_string()
    }

    /// The result of `server/discover`.
    pub(super) fn discovered(&self) -> String {
        let mut result = json!({
            "resultType": "complete",
            "supportedVersions": [Revision::V2026_07_28.as_str()],
            "capabilities": self.capabilities,
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": { "io.modelcontextprotocol/serverInfo": self.server },
        });
        if let Some(instructions) = &self.instructions {
            result["instructions"] = json!(instructions);
        }
        result.to_string()
    }
}

fn raw(value: &Value) -> Option<Box<RawValue>> {
    RawValue::from_string(value.to_string()).ok()
}

// === impl Mcp ===

impl Mcp {
    /// The server at a path: an agent, with its own answer to `initialize`, or all agents.
    ///
    /// # Errors
    /// When there is no such agent, or it cannot be reached.
    pub(super) async fn profile(
        &self,
        agent: Option<&Text>,
        caller: Text,
    ) -> Result<Profile, Failure> {
        let Some(agent) = agent else {
            return Ok(Profile::of_all_agents(&self.separator));
        };
        let registry = &self.door.registry;
        let agents = registry.now();
        let card = agents.get(agent).map(|(_, card)| &**card);
        let speaks = card.and_then(AgentCardConfig::speaks);
        if let (Some(card), Some(AgentProtocol::A2a)) = (card, speaks) {
            return Ok(Profile::of_card(agent, card));
        }
        let found = registry
            .queries
            .one(agent, AgentQuery::Profile, caller)
            .await;
        let is_assumed = !matches!(found.as_deref(), Some(QueryResult::Items(_)));
        let answered = match found.as_deref() {
            Some(QueryResult::Items(items)) => items.first(),
            Some(QueryResult::Nothing(failure)) => match failure.reason() {
                // The agent may be running without supporting `initialize`.
                Reason::Timeout | Reason::BadAgentReply => None,
                _ => return Err(failure.clone()),
            },
            None => None,
        };
        let answered =
            answered.and_then(|answered| serde_json::from_str::<Profile>(answered.get()).ok());
        let fallback = match (card, speaks) {
            (Some(card), None) => Profile::of_card(agent, card),
            _ => Profile::unknown(agent, card.map(|card| card.version.as_str())),
        };
        Ok(match answered {
            Some(answered) => answered.or(fallback),
            None => Profile {
                is_assumed,
                ..fallback
            },
        })
    }
}
