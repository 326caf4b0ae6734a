//! Resources of MCP servers: what clients have subscribed to, and what changes.
//!
//! Source: docs/protocols/mcp.md §9.

use a2abus_plugin::Text;
use serde::{Deserialize, Serialize};

/// A subscription of a client to a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Subscription {
    /// The log key of the session, or the name of a stream without a session.
    pub(crate) subscriber: Text,
    /// The agent that has the resource.
    pub(crate) agent: Text,
    /// The agent's own URI.
    pub(crate) uri: Text,
    /// The URI that the client has used.
    pub(crate) client_uri: Text,
}

/// Where a change was reported first. It may arrive by several routes: in the log, and as an announcement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UpdateSource {
    /// The run of the bridge that has attached the server.
    pub(crate) run: Text,
    /// The number of the change in that run, from 1.
    pub(crate) number: u64,
}

/// A record about resources.
#[derive(Debug, Clone)]
pub(crate) enum ResourceEvent {
    Subscribed(Subscription),
    Unsubscribed(Subscription),
    /// A resource has changed.
    Updated {
        agent: Text,
        uri: Text,
    },
    /// Records were not read.
    Missed,
}

/// The prefixes of the log keys of subscriptions and of changes.
pub(super) const SUBSCRIPTION: &str = "subscription-";
pub(super) const RESOURCE: &str = "resource-";
/// Maximum number of bytes of a URI.
pub(crate) const MAX_URI: usize = 4 << 10;
/// Maximum number of URIs that may contain another.
const MAX_DEPTH: usize = 32;

// === impl Subscription ===

impl Subscription {
    pub(super) fn size_bytes(&self) -> usize {
        [&self.subscriber, &self.agent, &self.uri, &self.client_uri]
            .map(|text| text.len())
            .iter()
            .sum()
    }
}

/// A URI and the URIs of the resources that contain it, the longest first, each with the rest of the URI. A server may
/// report a change of a resource within the one that its client has subscribed to.
pub(crate) fn containing(uri: &str) -> impl Iterator<Item = (&str, &str)> {
    let separators = uri.rmatch_indices(['/', '?', '#']);
    let ends = separators.flat_map(|(at, _)| [at + 1, at]);
    let ends = std::iter::once(uri.len()).chain(ends).take(MAX_DEPTH);
    ends.map(|end| uri.split_at(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_within_its_folders() {
        let found: Vec<_> = containing("file:///a/b?c").collect();
        assert_eq!(
            found[..5],
            [
                ("file:///a/b?c", ""),
                ("file:///a/b?", "c"),
                ("file:///a/b", "?c"),
                ("file:///a/", "b?c"),
                ("file:///a", "/b?c"),
            ]
        );
        assert_eq!(containing(&"/".repeat(1_000)).count(), MAX_DEPTH);
        assert_eq!(containing("").collect::<Vec<_>>(), [("", "")]);
    }
}
