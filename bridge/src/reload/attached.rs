//! Which changes to attached agents wait for a restart.
//!
//! The server of an attached agent, and the binding that reads its requests, are created when the process starts. Until
//! a restart the agent keeps its `attach`. A change of the topic it reads, or of which agents are attached, holds back
//! all routes and agents: otherwise requests would go to a topic that nobody reads, or that the old server reads.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::config::{AgentCardConfig, Change, Config};
use crate::names::Name;

/// The agents of the running configuration and of the next one.
#[derive(Debug)]
pub(super) struct Attached<'a> {
    running: &'a Config,
    next: &'a Config,
}

/// Why a change has no effect yet, if there is no other reason.
pub(super) const RESTART: &str = "needs a restart";
/// The part of the file that names the agents. Agents with cards have routes of their own.
pub(super) const AGENTS: &str = "agents";
/// The member of an agent that says how it is attached.
const ATTACH: &str = "attach";

// === impl Attached ===

impl<'a> Attached<'a> {
    pub(super) fn new(running: &'a Config, next: &'a Config) -> Self {
        Self { running, next }
    }

    /// Why routes and agents stay as they are until a restart, if they do.
    pub(super) fn routing_obstacle(&self) -> Option<String> {
        let (running, next) = (&self.running.agents, &self.next.agents);
        running.keys().chain(next.keys()).find_map(|name| {
            let attached = |agents: &'a BTreeMap<Name, AgentCardConfig>| {
                agents.get(name).filter(|agent| agent.attach.is_some())
            };
            let change = match (attached(running), attached(next)) {
                (None, Some(_)) => " is attached only now",
                (Some(_), None) => " is no longer attached",
                (Some(running), Some(next)) if running.to != next.to => {
                    ", which is attached, gets another `to`"
                }
                _ => return None,
            };
            Some(format!("{RESTART}: agent {name}{change}"))
        })
    }

    /// Whether a change waits for the restart.
    pub(super) fn holds(&self, change: &Change) -> bool {
        change
            .member_in(AGENTS)
            .is_some_and(|(_, member)| member == ATTACH)
    }

    /// Replaces each `attach` in a document by the one in use.
    pub(super) fn restore(&self, document: &mut Value) {
        let agents = document.get_mut(AGENTS).and_then(Value::as_object_mut);
        for (name, agent) in agents.into_iter().flatten() {
            let Some(agent) = agent.as_object_mut() else {
                continue;
            };
            let path = [AGENTS, name, ATTACH];
            let running = &self.running.document;
            set(
                agent,
                ATTACH,
                path.iter().try_fold(running, |value, key| value.get(key)),
            );
        }
    }
}

/// Sets a member, or removes it.
pub(super) fn set(members: &mut Map<String, Value>, key: &str, value: Option<&Value>) {
    match value {
        Some(value) => drop(members.insert(key.to_owned(), value.clone())),
        None => drop(members.remove(key)),
    }
}
