//! Authentication and rate limits of agents.

use std::sync::Arc;

use a2abus_executor::{Admitted, Agent, Clock, Exceeded, Limit, Quotas, Usage, Window};
use http::{HeaderMap, header};

use crate::http::Peer;
use crate::shares::client_of;
use crate::workflows::{Directory, Member};

/// Counts requests against the limits.
#[derive(Debug)]
pub(super) struct Gate {
    /// Requests of agents, by id.
    of_agents: Quotas,
    /// Requests without a valid key, by address.
    of_peers: Quotas,
}

/// The caller.
#[derive(Debug)]
pub(super) enum Caller {
    /// An agent with a valid key.
    Member(Arc<Member>),
    /// No key.
    Unknown,
    /// An unknown key.
    WrongKey,
}

/// The header for a key, besides `Authorization`.
const KEY_HEADER: &str = "x-api-key";
/// The limit for requests without a key. Source: docs/protocols/a2e-workflows.md §8.
const WITHOUT_KEY: [Limit; 1] = [Limit::new(60, Window::Minute)];
/// Maximum number of agents that are tracked, more than a configuration can have.
const MAX_AGENTS: usize = 100_000;
/// Maximum number of addresses that are tracked.
const MAX_PEERS: usize = 65_536;

// === impl Caller ===

impl Caller {
    /// The caller that these headers authenticate.
    pub(super) fn of(headers: &HeaderMap, directory: &Directory) -> Self {
        let Some(key) = key(headers) else {
            return Self::Unknown;
        };
        match directory.authenticate(key) {
            Some(member) => Self::Member(Arc::clone(member)),
            None => Self::WrongKey,
        }
    }
}

// === impl Gate ===

impl Gate {
    pub(super) fn new(clock: &Arc<dyn Clock>) -> Self {
        Self {
            of_agents: Quotas::new(Arc::clone(clock), MAX_AGENTS),
            of_peers: Quotas::new(Arc::clone(clock), MAX_PEERS),
        }
    }

    /// How much of its limits an agent has used.
    pub(super) fn usage(&self, agent: &Agent) -> Usage {
        self.of_agents.usage(agent.id())
    }

    /// Counts the request.
    pub(super) fn admit(
        &self,
        caller: &Caller,
        head: &http::request::Parts,
    ) -> Result<Admitted, Exceeded> {
        match caller {
            Caller::Member(member) => {
                let agent = member.agent();
                self.of_agents.admit(agent.id(), &agent.rates().requests())
            }
            Caller::Unknown | Caller::WrongKey => {
                let peer = head.extensions.get::<Peer>();
                let client = peer.map(|peer| client_of(&peer.name)).unwrap_or_default();
                self.of_peers.admit(&client, &WITHOUT_KEY)
            }
        }
    }
}

/// The key in a request. Source: docs/protocols/a2e-workflows.md §D41.
fn key(headers: &HeaderMap) -> Option<&str> {
    let authorization = headers.get(header::AUTHORIZATION);
    let bearer = authorization.and_then(|value| {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    bearer.or_else(|| headers.get(KEY_HEADER)?.to_str().ok())
}
