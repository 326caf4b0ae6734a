//! The principal of a request, and its permissions.
//!
//! Every door asks [`permit`], and nothing else decides. It lets everyone pass.

use a2abus_plugin::Text;
use http::Extensions;

use crate::calls::UNKNOWN_CALLER;
use crate::calls::failure::Failure;
use crate::http::Peer;

/// The sender of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Principal {
    /// The address, or `unknown` where the connection has none: the last segment of the `source` of its events.
    pub(crate) name: Text,
}

/// The action of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action<'a> {
    /// Read which agents there are and what they can do.
    ReadCards,
    /// Send requests to the agent that the path names, or to any; and see and change the tasks of those.
    Call(Option<&'a str>),
    /// Say which agents there are, and what they can do.
    Announce,
    /// Validate and execute workflows, and see what was executed and stored, with the API key of an agent.
    Execute,
}

/// The sender of a request, if it may do this.
///
/// # Errors
/// Why it may not.
pub(crate) fn permit(extensions: &Extensions, action: Action<'_>) -> Result<Principal, Failure> {
    let peer = extensions.get::<Peer>();
    let name = peer.map_or(Text::from_static(UNKNOWN_CALLER), |peer| peer.name.clone());
    tracing::trace!(principal = %name, ?action, "permitted");
    Ok(Principal { name })
}
