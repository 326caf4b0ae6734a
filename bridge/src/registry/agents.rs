//! A snapshot of the agents: those of the configuration and the announced ones.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use a2abus_plugin::Text;

use super::card::Card;
use super::record::AnnouncedAgent;
use crate::config::{AgentCardConfig, Config};
use crate::route::Route;

/// Maximum number of agent names in a message that lists them.
const MAX_NAMES: usize = 100;

/// A snapshot of the agents. Immutable.
#[derive(Debug, Clone, Default)]
pub(crate) struct Agents {
    pub(super) agents: BTreeMap<Text, Agent>,
    /// `a2a.default_agent`.
    pub(super) default: Option<Text>,
    /// When they last changed.
    pub(super) changed: Option<SystemTime>,
}

#[derive(Debug, Clone)]
pub(super) struct Agent {
    pub(super) shown: Arc<AgentCardConfig>,
    /// The configured card of an attached agent, before its server completed it.
    pub(super) written: Option<Arc<AgentCardConfig>>,
    /// The card that it announced; `None` for an agent of the configuration.
    pub(super) card: Option<Arc<Card>>,
    pub(super) route: Option<Arc<Route>>,
    /// Why its attached server cannot be reached.
    pub(super) away: Option<Text>,
}

// === impl Agents ===

impl Agents {
    /// The agents of a configuration.
    pub(super) fn listed(config: &Config) -> Self {
        let agents = config.agents.iter().map(|(name, agent)| {
            let written = agent.attach.is_some().then(|| Arc::new(agent.clone()));
            let agent = Agent {
                shown: Arc::new(agent.clone().described()),
                written,
                card: None,
                route: None,
                away: None,
            };
            (name.text().clone(), agent)
        });
        let default = config.a2a.default_agent.as_ref();
        Self {
            agents: agents.collect(),
            default: default.map(|name| name.text().clone()),
            changed: None,
        }
    }

    /// Completes the card of an attached agent from its server's description. Returns whether the card changed.
    pub(super) fn complete(&mut self, name: &Text, card: &AgentCardConfig) -> bool {
        let Some(agent) = self.agents.get_mut(name) else {
            return false;
        };
        let Some(written) = &agent.written else {
            return false;
        };
        let shown = written.completed_by(card.clone()).described();
        let is_new = *agent.shown != shown;
        if is_new {
            agent.shown = Arc::new(shown);
        }
        is_new
    }

    /// Stores why the server of an attached agent cannot be reached. Returns whether that changed.
    pub(super) fn set_away(&mut self, name: &Text, why: Option<&Text>) -> bool {
        let attached = self.agents.get_mut(name).filter(|it| it.written.is_some());
        let Some(agent) = attached.filter(|it| it.away.as_ref() != why) else {
            return false;
        };
        agent.away = why.cloned();
        true
    }

    /// Whether both have the same agents with the same cards and the same availability.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        let same = |((name, one), (other_name, other)): ((&Text, &Agent), (&Text, &Agent))| {
            name == other_name && Arc::ptr_eq(&one.shown, &other.shown) && one.away == other.away
        };
        self.agents.len() == other.agents.len() && self.agents.iter().zip(&other.agents).all(same)
    }

    /// The agent with this name.
    pub(crate) fn get(&self, name: &str) -> Option<(&Text, &Arc<AgentCardConfig>)> {
        let (name, agent) = self.agents.get_key_value(name)?;
        Some((name, &agent.shown))
    }

    /// The agents, ordered by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Text, &Arc<AgentCardConfig>)> {
        self.agents.iter().map(|(name, agent)| (name, &agent.shown))
    }

    /// Why the attached server of an agent cannot be reached; `None` if it can, or if this bridge has not attached the
    /// agent.
    pub(crate) fn away(&self, name: &str) -> Option<&Text> {
        self.agents.get(name)?.away.as_ref()
    }

    /// Whether the attached server of an agent can be reached; `None` for other agents, which the bridge does not
    /// probe.
    pub(crate) fn available(&self, name: &str) -> Option<bool> {
        let agent = self.agents.get(name)?;
        agent.written.is_some().then(|| agent.away.is_none())
    }

    /// Whether the agent has announced itself; `false` for an agent of the configuration.
    pub(crate) fn is_announced(&self, name: &str) -> bool {
        self.agents
            .get(name)
            .is_some_and(|agent| agent.card.is_some())
    }

    /// The first hundred names, for the error when a request names no agent.
    pub(crate) fn names(&self) -> Vec<&str> {
        let names = self.agents.keys().map(Text::as_str);
        names.take(MAX_NAMES).collect()
    }

    /// The agent of a request that names none: `a2a.default_agent`, else the only agent.
    pub(crate) fn default_agent(&self) -> Option<&Text> {
        let only = || self.agents.keys().next().filter(|_| self.agents.len() == 1);
        self.default.as_ref().or_else(only)
    }

    /// When the agents last changed; `None` if they have not changed since the start.
    pub(crate) fn changed(&self) -> Option<SystemTime> {
        self.changed
    }
}

// === impl Agent ===

impl Agent {
    /// Whether the agent comes from this announcement.
    pub(super) fn is_of(&self, entry: &AnnouncedAgent) -> bool {
        let card = self.card.as_ref();
        card.is_some_and(|card| Arc::ptr_eq(card, &entry.card))
    }
}
