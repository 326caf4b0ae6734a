//! Metrics of announced agents.

use prometheus::{Error, IntCounter, IntGauge};

use super::registrar::{Definition, Registrar, add_one, per_value};

/// The metrics of the registry.
#[derive(Debug)]
pub(super) struct RegistryMetrics {
    events: Vec<IntCounter>,
    pub(super) agents: IntGauge,
}

/// The result of an announcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistryEvent {
    /// It was stored.
    Registered,
    /// Its lease was renewed without a card.
    Renewed,
    /// Its agent was removed.
    Removed,
    /// Its lease expired.
    Expired,
    /// It is invalid, not permitted, or could not be stored.
    Refused,
}

// === impl RegistryMetrics ===

impl RegistryMetrics {
    pub(super) fn new(on: &mut Registrar) -> Result<Self, Error> {
        let events = on.counters(EVENTS)?;
        Ok(Self {
            events: per_value(&events, &RegistryEvent::ALL.map(RegistryEvent::as_str))?,
            agents: on.gauge(AGENTS)?,
        })
    }

    pub(super) fn count(&self, what: RegistryEvent) {
        add_one(&self.events, what as usize);
    }
}

// === impl RegistryEvent ===

impl RegistryEvent {
    /// Every outcome, in the order of declaration.
    pub const ALL: [Self; 5] = [
        Self::Registered,
        Self::Renewed,
        Self::Removed,
        Self::Expired,
        Self::Refused,
    ];

    /// The label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::Renewed => "renewed",
            Self::Removed => "removed",
            Self::Expired => "expired",
            Self::Refused => "refused",
        }
    }
}

const EVENTS: Definition = Definition {
    name: "a2abus_agent_announcements_total",
    unit: "announcements",
    labels: &["outcome"],
    help: "Announcements of agents by outcome; `expired` counts leases that ran out on this replica.",
};
const AGENTS: Definition = Definition {
    name: "a2abus_announced_agents",
    unit: "agents",
    labels: &[],
    help: "Agents that have announced themselves and whose lease has not run out.",
};
