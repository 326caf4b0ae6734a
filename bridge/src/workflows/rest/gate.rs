//! Who asks, and may it ask once more?

use std::sync::Arc;

use a2abus_executor::{Admitted, Exceeded, Limit, Window};
use http::{HeaderMap, header};

use super::Rest;
use crate::http::Peer;
use crate::workflows::Member;

/// Who asks.
#[derive(Debug)]
pub(super) enum Caller {
    /// An agent that has shown its key.
    Member(Arc<Member>),
    /// Nobody who says so.
    Unknown,
    /// Somebody with a key that nobody has.
    WrongKey,
}

/// The header for a key, beside `Authorization`.
const KEY_HEADER: &str = "x-api-key";
/// How often one may ask without a key. Source: docs/protocols/a2e-workflows.md §8.
const WITHOUT_KEY: [Limit; 1] = [Limit::new(60, Window::Minute)];
/// The agents whose requests are remembered: more than configurations hold.
pub(super) const MAX_AGENTS: usize = 100_000;
/// The addresses whose requests are remembered.
pub(super) const MAX_PEERS: usize = 65_536;

// === impl Rest ===

impl Rest {
    pub(super) fn identify(&self, headers: &HeaderMap) -> Caller {
        let Some(key) = key(headers) else {
            return Caller::Unknown;
        };
        match self.workflows.directory().authenticate(key) {
            Some(member) => Caller::Member(Arc::clone(member)),
            None => Caller::WrongKey,
        }
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
                let peer = peer.map_or_else(String::new, |Peer(address)| address.to_string());
                self.of_peers.admit(&peer, &WITHOUT_KEY)
            }
        }
    }
}

/// The key that a request shows. Source: docs/protocols/a2e-workflows.md §D41.
fn key(headers: &HeaderMap) -> Option<&str> {
    let authorization = headers.get(header::AUTHORIZATION);
    let bearer = authorization.and_then(|value| {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
    });
    bearer.or_else(|| headers.get(KEY_HEADER)?.to_str().ok())
}
