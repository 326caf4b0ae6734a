//! Which changes to agents wait for a restart.
//!
//! The server of an attached agent, and the binding that reads its requests, are created when the process starts. Until
//! a restart the agent keeps its `attach`, and also its `to`: otherwise requests would go to a topic that nobody reads.
//! For the same reason an attached agent is added or removed only by a restart.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::config::{AgentCardConfig, Change, Config, RouteConfig};
use crate::names::Name;

/// The agents that are attached, or would be after a restart.
#[derive(Debug)]
pub(super) struct Attached<'a> {
    running: &'a Config,
    next: &'a Config,
    names: BTreeSet<&'a Name>,
}

/// The part of the file that names them. Agents with cards have routes of their own.
pub(super) const AGENTS: &str = "agents";
/// The members of an attached agent that only a restart changes.
const KEPT: [&str; 2] = ["to", "attach"];

// === impl Attached ===

impl<'a> Attached<'a> {
    pub(super) fn new(running: &'a Config, next: &'a Config) -> Self {
        let agents = running.agents.iter().chain(&next.agents);
        let attached = agents.filter(|(_, agent)| agent.attach.is_some());
        Self {
            running,
            next,
            names: attached.map(|(name, _)| name).collect(),
        }
    }

    /// The agents until the restart.
    pub(super) fn agents(&self) -> BTreeMap<Name, AgentCardConfig> {
        let mut agents = self.next.agents.clone();
        for &name in &self.names {
            match (self.running.agents.get(name), agents.get_mut(name)) {
                (Some(running), Some(agent)) => {
                    agent.to.clone_from(&running.to);
                    agent.attach.clone_from(&running.attach);
                }
                (Some(running), None) => {
                    agents.insert(name.clone(), running.clone());
                }
                (None, _) => {
                    agents.remove(name);
                }
            }
        }
        agents
    }

    /// The routes until the restart.
    pub(super) fn routes(&self) -> Vec<RouteConfig> {
        let of = |config: &Config| {
            let agents = self.names.iter().filter_map(|name| {
                let agent = config.agents.get(*name)?;
                agent.route(name.as_str())
            });
            agents.collect::<Vec<_>>()
        };
        let waiting: BTreeSet<Name> = of(self.next).into_iter().map(|route| route.name).collect();
        let routes = self.next.routes.iter();
        let routes = routes.filter(|route| !waiting.contains(&route.name));
        routes.cloned().chain(of(self.running)).collect()
    }

    /// Whether a change waits for the restart.
    pub(super) fn holds(&self, change: &Change) -> bool {
        let Some((agent, member)) = change.member_in(AGENTS) else {
            return false;
        };
        let Some(name) = self.names.iter().find(|name| name.as_str() == agent) else {
            return false;
        };
        let is_in_both =
            self.running.agents.contains_key(*name) && self.next.agents.contains_key(*name);
        !is_in_both || KEPT.contains(&member)
    }

    /// Replaces what waits for the restart, in a document of the new configuration, by the values in use.
    pub(super) fn restore(&self, document: &mut Value) {
        let Some(document) = document.as_object_mut() else {
            return;
        };
        let agents = document
            .entry(AGENTS)
            .or_insert_with(|| Value::Object(Map::new()));
        let Some(agents) = agents.as_object_mut() else {
            return;
        };
        for name in self.names.iter().map(|name| name.as_str()) {
            let running = self.running.document.get(AGENTS);
            let running = running.and_then(|agents| agents.get(name));
            match (running, agents.get_mut(name).and_then(Value::as_object_mut)) {
                (Some(running), Some(agent)) => {
                    for member in KEPT {
                        set(agent, member, running.get(member));
                    }
                }
                (running, _) => set(agents, name, running),
            }
        }
    }
}

fn set(members: &mut Map<String, Value>, key: &str, value: Option<&Value>) {
    match value {
        Some(value) => drop(members.insert(key.to_owned(), value.clone())),
        None => drop(members.remove(key)),
    }
}
