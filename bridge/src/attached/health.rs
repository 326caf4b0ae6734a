//! Whether the server of an attached agent can be reached: for `/readyz`, the lists of agents, and its announcement.

use std::sync::{Arc, Mutex};

use a2abus_plugin::Text;

use crate::lock::lock;
use crate::readiness::Readiness;
use crate::registry::Registry;

/// Whether one server can be reached.
#[derive(Debug)]
pub(super) struct Health {
    agent: Text,
    readiness: Arc<Readiness>,
    registry: Arc<Registry>,
    reach: Mutex<Reach>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Reach {
    /// It was not tried yet.
    Unknown,
    Up,
    /// It cannot be reached, and why.
    Away(Text),
}

// === impl Health ===

impl Health {
    pub(super) fn new(agent: &Text, readiness: &Arc<Readiness>, registry: &Arc<Registry>) -> Self {
        Self {
            agent: agent.clone(),
            readiness: Arc::clone(readiness),
            registry: Arc::clone(registry),
            reach: Mutex::new(Reach::Unknown),
        }
    }

    /// Whether it was reached, and has not been away since.
    pub(super) fn is_up(&self) -> bool {
        *lock(&self.reach) == Reach::Up
    }

    /// The server is available. Returns whether that is new.
    pub(super) fn up(&self) -> bool {
        self.set(Reach::Up)
    }

    /// The server is not available. Returns whether that, or the cause, is new.
    pub(super) fn away(&self, why: &str) -> bool {
        self.set(Reach::Away(why.into()))
    }

    /// Updates the readiness and the registry under the lock, so that both end with the same state.
    fn set(&self, new: Reach) -> bool {
        let mut reach = lock(&self.reach);
        if *reach == new {
            return false;
        }
        let condition = format!("agent {}", self.agent);
        match &new {
            Reach::Up | Reach::Unknown => {
                self.readiness.restored(&condition);
                self.registry.set_away(&self.agent, None);
            }
            Reach::Away(why) => {
                self.readiness.degraded(condition, why.to_string());
                self.registry.set_away(&self.agent, Some(why.clone()));
            }
        }
        *reach = new;
        true
    }
}
