//! An announcement, its origin, and why it is refused.

use std::time::Duration;

use a2abus_plugin::Text;

use super::card::Faults;
use super::record::Owner;
use crate::names::Name;
use crate::state::StateError;

/// Matches any segment of an identity.
pub(super) const ANY: &str = "+";

/// An announcement and its origin.
#[derive(Debug, Clone, Default)]
pub(crate) struct Announcement {
    /// The agent named outside the card.
    pub(crate) agent: Option<Text>,
    pub(crate) owner: Owner,
    pub(crate) lease: Option<Duration>,
    pub(crate) origin: RequestOrigin,
}

/// The origin of a request to the registry.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestOrigin {
    /// The transport that delivered it; `None` over HTTP.
    pub(crate) transport: Option<Name>,
    /// The agent names in the key or subject of its message. The sender may act only for these agents.
    pub(crate) shows: Vec<Text>,
    /// The sender, as the caller of calls that the request causes.
    pub(crate) caller: Option<Text>,
}

/// Why an announcement is refused.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum AnnouncementError {
    /// Agents cannot announce themselves.
    #[error(
        "agents cannot announce themselves here: set registry.enabled, or add the agent to the section `agents`"
    )]
    Disabled,
    /// The card cannot be used.
    #[error("the announcement is refused: {0}")]
    Invalid(Faults),
    /// Another owner has the name.
    #[error("the agent {agent} belongs to {org}/{unit}, until its lease expires")]
    Taken { agent: Text, org: Text, unit: Text },
    /// Too many agents.
    #[error("there are already {0} announced agents (registry.max_agents)")]
    Full(usize),
    /// No agent with this name is announced.
    #[error("no agent {0:?} has announced itself, or its lease has expired")]
    Unknown(Text),
    /// The agent is in the configuration.
    #[error(
        "the agent {0:?} is listed in the configuration of the bridge: it can be removed only there (section `agents`)"
    )]
    Listed(Text),
    /// The announcement is in the log, but was no longer valid when this replica had read it.
    #[error(
        "the announcement of the agent {0:?} was stored, but its lease expired, or it was removed, before this bridge read it: announce the agent again, with a longer lease"
    )]
    Lapsed(Text),
    /// No agent with this name is announced in this organisation and unit.
    #[error("no agent {agent:?} has announced itself in {owner:?}, or its lease has expired")]
    UnknownIn { agent: Text, owner: Text },
    /// The log did not store it.
    #[error("the announcement was not stored: {0}")]
    NotStored(StateError),
}

// === impl RequestOrigin ===

impl RequestOrigin {
    /// Maximum number of bytes of cards or methods in one answer. By default Kafka and NATS accept messages of up to
    /// about 1 MB.
    pub(super) fn page_bytes(&self) -> usize {
        match self.transport {
            Some(_) => 512 << 10,
            None => 4 << 20,
        }
    }
}

// === impl AnnouncementError ===

impl AnnouncementError {
    /// No agent with this name is announced by this owner; a segment that is not given is `+`, any.
    pub(crate) fn unknown_in(agent: Text, org: Option<&str>, unit: Option<&str>) -> Self {
        if org.or(unit).is_none() {
            return Self::Unknown(agent);
        }
        let owner = format!("{}/{}", org.unwrap_or(ANY), unit.unwrap_or(ANY));
        Self::UnknownIn {
            agent,
            owner: owner.into(),
        }
    }

    /// Whether the same announcement may succeed later.
    pub(super) fn is_transient(&self) -> bool {
        matches!(self, Self::NotStored(error) if error.is_transient())
    }
}
