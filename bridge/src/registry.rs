//! Which agents are there, and what can they do?
//!
//! The agents of the configuration. Nothing here depends on how they are asked.

use std::collections::BTreeMap;

use a2abus_plugin::Text;

use crate::config::{AgentCardConfig, Config};

/// The agents that A2A clients find, by name.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    agents: BTreeMap<Text, AgentCardConfig>,
    default: Option<Text>,
}

// === impl Registry ===

impl Registry {
    /// The agents of a configuration.
    pub(crate) fn new(config: &Config) -> Self {
        let agents = config.agents.iter();
        let agents: BTreeMap<_, _> = agents
            .map(|(name, agent)| (name.text().clone(), agent.clone()))
            .collect();
        let default = config.a2a.default_agent.as_ref();
        let default = default.map(|name| name.text().clone());
        let only = || agents.keys().next().filter(|_| agents.len() == 1).cloned();
        Self {
            default: default.or_else(only),
            agents,
        }
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.agents.is_empty()
    }

    /// The agent of this name.
    pub(crate) fn get(&self, name: &str) -> Option<(&Text, &AgentCardConfig)> {
        self.agents.get_key_value(name)
    }

    /// The agents in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Text, &AgentCardConfig)> {
        self.agents.iter()
    }

    /// The agent of a request that names none.
    pub(crate) fn default_agent(&self) -> Option<&Text> {
        self.default.as_ref()
    }
}
