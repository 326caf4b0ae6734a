//! The principal of a request, and its permissions.
//!
//! Every door calls [`permit`], which alone decides. At present it permits everything.

use a2abus_plugin::Text;
use http::Extensions;

use crate::calls::UNKNOWN_CALLER;
use crate::calls::failure::Failure;
use crate::http::Peer;

/// The sender of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Principal {
    /// The address, or `unknown` if the connection has none. It is the last segment of the `source` of its events.
    pub(crate) name: Text,
}

/// The action of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action<'a> {
    /// Read the list of agents and their cards.
    ReadCards,
    /// Send requests to the agent in the path, or to any agent; read and change their tasks.
    Call(Option<&'a str>),
    /// Announce and remove agents.
    Announce,
    /// Validate and execute workflows, and read executions and storage, with an agent's API key.
    Execute,
}

/// The sender of a request, if the action is permitted.
///
/// # Errors
/// Why it is not permitted.
pub(crate) fn permit(extensions: &Extensions, action: Action<'_>) -> Result<Principal, Failure> {
    let peer = extensions.get::<Peer>();
    let name = peer.map_or(Text::from_static(UNKNOWN_CALLER), |peer| peer.name.clone());
    tracing::trace!(principal = %name, ?action, "permitted");
    Ok(Principal { name })
}
