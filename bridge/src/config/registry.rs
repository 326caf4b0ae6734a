//! The `registry` section: agents that announce themselves.

use std::time::Duration;

use bytesize::ByteSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::routing::DestinationConfig;
use super::value::AsText;
use crate::names::Pattern;

/// Agents that announce themselves: on a topic that a binding with `role: discovery` reads, over HTTP, or with `a2abus
/// agents register`. Agents in `agents` do not need this section. They, and the entries of `routes`, take precedence
/// over announced agents of the same name.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RegistryConfig {
    /// Whether agents can announce themselves. Announcements are stored in the log `agents` of `state`.
    ///
    /// Wrong: callers are not authenticated, so anyone who can reach the HTTP listener or a discovery topic can
    /// announce an agent and gets its requests, unless `agents` lists it or a route names it.
    pub enabled: bool,
    /// Where the requests of announced agents go. An agent whose card names no transport gets the entry for the
    /// transport on which it announced itself, else the first entry.
    ///
    /// Wrong: without an entry, an announced agent gets requests only through `routes`.
    pub destinations: Vec<RegistryDestination>,
    /// How long an agent stays known after its announcement, if its card sets no lease.
    ///
    /// Wrong: agents that announce themselves less often are unknown in the meantime.
    #[schemars(extend("bounds" = ["1s", "365days"]))]
    pub lease: AsText<Duration>,
    /// The longest lease that a card may set; longer ones are shortened.
    #[schemars(extend("bounds" = ["1s", "365days"]))]
    pub max_lease: AsText<Duration>,
    /// Maximum number of announced agents. Further agents are refused.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_agents: u32,
    /// Maximum size of a card. Larger cards are refused.
    #[schemars(extend("bounds" = ["1KiB", "512KiB"]))]
    pub max_card: AsText<ByteSize>,
    /// Which agents may be called: `any` lets requests for unknown agents follow the routes; `known` refuses them at
    /// once with `agent_not_found`. An agent is known if `agents` lists it, a route names it without a pattern, or it
    /// has announced itself.
    ///
    /// Wrong: with `any`, a route like `agents.{targetagent}` publishes requests for every name that callers write.
    pub unknown_agents: UnknownAgents,
}

/// A destination for the requests of announced agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RegistryDestination {
    /// The transport, and the topic for agents that name none, such as `agents.{targetagent}`.
    pub to: DestinationConfig,
    /// The topics on this transport that a card may name instead, by name or with `*` and `?`. Topics of the bridge
    /// itself, and names that begin with `_` or `$`, are never allowed.
    ///
    /// Wrong: with `*` anyone who can announce an agent can make the bridge publish requests to any topic.
    #[serde(default)]
    pub topics: Vec<AsText<Pattern>>,
}

/// What to do with requests for unknown agents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnknownAgents {
    /// They follow the routes.
    #[default]
    Any,
    /// They are refused.
    Known,
}

/// The default of `registry.max_card`; a bridge may expect others to accept cards of this size.
pub(crate) const MAX_CARD_BYTES: u64 = 64 << 10;

// === impl RegistryConfig ===

impl RegistryConfig {
    /// Where the requests of announced agents go; nowhere if the registry is disabled.
    pub(crate) fn enabled_destinations(&self) -> &[RegistryDestination] {
        match self.enabled {
            true => &self.destinations,
            false => &[],
        }
    }
}

impl Default for RegistryConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            destinations: Vec::new(),
            lease: AsText(Duration::from_secs(60)),
            max_lease: AsText(Duration::from_secs(24 * 60 * 60)),
            max_agents: 10_000,
            max_card: AsText(ByteSize::b(MAX_CARD_BYTES)),
            unknown_agents: UnknownAgents::Any,
        }
    }
}
