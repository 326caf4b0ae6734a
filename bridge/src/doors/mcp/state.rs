//! The state that the paths of MCP share.

use std::future::pending;
use std::sync::Arc;

use a2abus_plugin::Text;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Level;

use super::legacy::Streams;
use super::relay::Relay;
use super::running::Running;
use crate::doors::door::Door;
use crate::log_limit::{LogLimit, LogLimits};

/// The state that the paths share.
#[derive(Debug)]
pub(super) struct Mcp {
    pub(super) door: Door,
    /// Separates the agent from the name of a tool or prompt.
    pub(super) separator: Text,
    /// Cancelled when the bridge drains, which ends the open-ended streams.
    pub(super) drain: CancellationToken,
    pub(super) running: Arc<Running>,
    pub(super) relay: Relay,
    /// For items that are left out of the lists of all agents.
    pub(super) unlisted: LogLimit,
    /// For streams that were read too slowly.
    pub(super) missed: LogLimit,
    /// The streams of clients of 2024-11-05.
    pub(super) streams: Arc<Streams>,
    /// Receives what other replicas pass on.
    _relay_follower: AbortOnDropHandle<()>,
}

// === impl Mcp ===

impl Mcp {
    /// Starts to receive what other replicas pass on.
    pub(super) fn open(
        door: Door,
        separator: Text,
        drain: CancellationToken,
        log: &LogLimits,
    ) -> Self {
        let running = Arc::<Running>::default();
        let untaken = log.limit(
            Level::WARN,
            "more answers of MCP clients did not reach their calls",
        );
        let (results, calls) = (Arc::clone(&door.results), Arc::clone(&door.calls));
        let relay_follower = Arc::clone(&running).follow(results, calls, untaken);
        Self {
            relay: Relay::new(&door.results, &door.metrics, log),
            unlisted: log.limit(
                Level::WARN,
                "more items of agents are left out of the lists",
            ),
            missed: log.limit(Level::WARN, "more changes of resources are lost"),
            door,
            separator,
            drain,
            running,
            streams: Arc::default(),
            _relay_follower: AbortOnDropHandle::new(tokio::spawn(relay_follower)),
        }
    }

    /// Cancels a request on this or any other replica.
    pub(super) async fn cancel(&self, caller: &Text, key: &str) {
        if !self.running.cancel(key) && self.door.results.is_shared() {
            // A cancel has no answer, and may be sent for an unknown request. Failures have been logged.
            drop(self.relay.end(caller, key).await);
        }
    }

    /// Resolves when the bridge drains: then the client of a stream can go on at another replica. Never resolves for a
    /// call that `ends_here`, because this replica records its end.
    pub(super) fn drained(
        &self,
        ends_here: bool,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        let drain = self.drain.clone();
        async move {
            match ends_here {
                true => pending().await,
                false => drain.cancelled().await,
            }
        }
    }
}
