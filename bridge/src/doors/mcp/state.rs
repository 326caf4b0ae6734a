//! The state that the paths of MCP share.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Level;

use super::legacy::Streams;
use super::relay::Relay;
use super::running::Running;
use crate::calls::callid::CallId;
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
    /// For inputs that agents need and clients have not declared.
    pub(super) undeclared: LogLimit,
    /// The streams of clients of 2024-11-05.
    pub(super) streams: Arc<Streams>,
    /// Receives what other replicas pass on, and counts the subscriptions.
    _background: AbortOnDropHandle<()>,
}

/// How often subscriptions are counted for the metrics: they also end by their age, and at other replicas.
const COUNT_EVERY: Duration = Duration::from_secs(5);

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
        let following = Arc::clone(&running).follow(results, calls, untaken);
        let counting = count_subscriptions(door.clone());
        let background = async move {
            tokio::select! {
                () = following => {}
                () = counting => {}
            }
        };
        Self {
            relay: Relay::new(&door.results, &door.metrics, log),
            unlisted: log.limit(
                Level::WARN,
                "more items of agents are left out of the lists",
            ),
            missed: log.limit(Level::WARN, "more changes of resources are lost"),
            undeclared: log.limit(
                Level::WARN,
                "more agents ask for input that their clients have not declared",
            ),
            door,
            separator,
            drain,
            running,
            streams: Arc::default(),
            _background: AbortOnDropHandle::new(tokio::spawn(background)),
        }
    }

    /// Cancels a request on this or any other replica.
    pub(super) async fn cancel(&self, caller: &Text, key: &str) {
        if !self.running.cancel(key) && self.door.results.is_shared() {
            // A cancel has no answer, and may be sent for an unknown request. Failures have been logged.
            drop(self.relay.end(caller, key).await);
        }
    }

    /// Whether a call goes on, or can be read to its end, while the bridge drains.
    pub(super) fn has_call(&self, call: CallId) -> bool {
        let is_pending = self.door.calls.pending().contains(call);
        is_pending || self.door.results.has_alone(call, false)
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

/// Counts the subscriptions of all clients for the metrics. Never ends.
async fn count_subscriptions(door: Door) {
    loop {
        let count: usize = {
            let agents = door.registry.now();
            let counts = agents.iter();
            counts
                .map(|(agent, _)| door.results.subscription_count(agent))
                .sum()
        };
        let gauge = door.metrics.mcp_subscriptions();
        gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        sleep(COUNT_EVERY).await;
    }
}
