//! The agents of one moment: those of the configuration, and those that have announced themselves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use a2abus_plugin::Text;

use super::card::Card;
use super::record::AnnouncedAgent;
use crate::config::{AgentCardConfig, Config};
use crate::route::Route;

/// Names in a list of what there is, at most.
const MOST_NAMES: usize = 100;

/// A snapshot of the agents. Immutable.
#[derive(Debug, Clone, Default)]
pub(crate) struct Agents {
    pub(super) agents: BTreeMap<Text, Agent>,
    /// The one that the configuration names.
    pub(super) default: Option<Text>,
    /// When they last changed.
    pub(super) changed: Option<SystemTime>,
}

#[derive(Debug, Clone)]
pub(super) struct Agent {
    pub(super) shown: Arc<AgentCardConfig>,
    /// What the configuration says of an attached agent, which its server completes.
    pub(super) written: Option<Arc<AgentCardConfig>>,
    /// The card that it announced; `None` for one that the configuration lists.
    pub(super) card: Option<Arc<Card>>,
    pub(super) route: Option<Arc<Route>>,
    /// Why its server, which this bridge has attached, cannot be reached.
    pub(super) away: Option<Text>,
}

// === impl Agents ===

impl Agents {
    /// Those of a configuration.
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

    /// Completes the card of an attached agent by what its server says; whether that changes it.
    pub(super) fn complete(&mut self, name: &Text, said: &AgentCardConfig) -> bool {
        let Some(agent) = self.agents.get_mut(name) else {
            return false;
        };
        let Some(written) = &agent.written else {
            return false;
        };
        let shown = written.completed_by(said.clone()).described();
        let is_new = *agent.shown != shown;
        if is_new {
            agent.shown = Arc::new(shown);
        }
        is_new
    }

    /// Notes why the server of an attached agent cannot be reached; whether that is news.
    pub(super) fn set_away(&mut self, name: &Text, why: Option<&Text>) -> bool {
        let attached = self.agents.get_mut(name).filter(|it| it.written.is_some());
        let Some(agent) = attached.filter(|it| it.away.as_ref() != why) else {
            return false;
        };
        agent.away = why.cloned();
        true
    }

    /// Whether they are the same agents with the same cards, and the same of them are away.
    pub(super) fn is_as(&self, other: &Self) -> bool {
        let mut both = self.agents.values().zip(other.agents.values());
        self.shows_as(other) && both.all(|(one, other)| one.away == other.away)
    }

    /// Whether they are the same agents with the same cards.
    pub(crate) fn shows_as(&self, other: &Self) -> bool {
        let same = |((name, one), (other_name, other)): ((&Text, &Agent), (&Text, &Agent))| {
            name == other_name && Arc::ptr_eq(&one.shown, &other.shown)
        };
        self.agents.len() == other.agents.len() && self.agents.iter().zip(&other.agents).all(same)
    }

    /// The agent of this name.
    pub(crate) fn get(&self, name: &str) -> Option<(&Text, &Arc<AgentCardConfig>)> {
        let (name, agent) = self.agents.get_key_value(name)?;
        Some((name, &agent.shown))
    }

    /// The agents in the order of their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Text, &Arc<AgentCardConfig>)> {
        self.agents.iter().map(|(name, agent)| (name, &agent.shown))
    }

    /// Why the server of an agent that this bridge has attached cannot be reached; `None` if it can, or of any other agent.
    pub(crate) fn away(&self, name: &str) -> Option<&Text> {
        self.agents.get(name)?.away.as_ref()
    }

    /// Whether the server of an agent that this bridge has attached can be reached; `None` of any other agent: no bridge
    /// asks whether it is there.
    pub(crate) fn available(&self, name: &str) -> Option<bool> {
        let agent = self.agents.get(name)?;
        agent.written.is_some().then(|| agent.away.is_none())
    }

    /// Whether it has announced itself; `false` for one that the configuration lists.
    pub(crate) fn is_announced(&self, name: &str) -> bool {
        self.agents
            .get(name)
            .is_some_and(|agent| agent.card.is_some())
    }

    /// Their names, for somebody who named none of them: the first hundred.
    pub(crate) fn names(&self) -> Vec<&str> {
        let names = self.agents.keys().map(Text::as_str);
        names.take(MOST_NAMES).collect()
    }

    /// The agent of a request that names none: the one that the configuration says, else the only one.
    pub(crate) fn default_agent(&self) -> Option<&Text> {
        let only = || self.agents.keys().next().filter(|_| self.agents.len() == 1);
        self.default.as_ref().or_else(only)
    }

    /// When they last changed; `None` since the start.
    pub(crate) fn changed(&self) -> Option<SystemTime> {
        self.changed
    }
}

// === impl Agent ===

impl Agent {
    /// Whether it is of this announcement.
    pub(super) fn is_of(&self, entry: &AnnouncedAgent) -> bool {
        let card = self.card.as_ref();
        card.is_some_and(|card| Arc::ptr_eq(card, &entry.card))
    }
}
