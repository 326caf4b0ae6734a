//! Records ended sessions and cancelled requests, so that other replicas see them.
//!
//! This replica does not know which sessions and requests other replicas have, and any client can invent ids, so each
//! client may record only a limited number.

use std::sync::Arc;

use a2abus_executor::{Clock, Limit, Quotas, SystemClock, Window};
use a2abus_plugin::Text;
use tracing::Level;

use crate::log_limit::{LogLimit, LogLimits};
use crate::metrics::{LimitScope, Metrics};
use crate::results::Results;
use crate::shares::client_of;
use crate::state::StateError;

/// Records ended sessions and cancelled requests, within a limit per client.
#[derive(Debug)]
pub(super) struct EndRecorder {
    results: Arc<Results>,
    metrics: Arc<Metrics>,
    quotas: Quotas,
    refused: LogLimit,
}

/// Why something is not recorded.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotRecorded {
    /// Its client has sent too many cancels and session ends recently.
    #[error("this client has sent too many cancels and session ends recently")]
    TooOften {
        /// Seconds until the client may try again.
        retry_after: u32,
    },
    /// The log did not store it.
    #[error(transparent)]
    Failed(#[from] StateError),
}

/// The limit per client; all clients behind one proxy count as one. Records are kept for a day.
const RATE_LIMITS: [Limit; 1] = [Limit::new(600, Window::Minute)];
/// Maximum number of clients that are tracked.
const MAX_CLIENTS: usize = 1_024;

// === impl Over ===

impl EndRecorder {
    pub(super) fn new(results: &Arc<Results>, metrics: &Arc<Metrics>, log: &LogLimits) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        Self {
            results: Arc::clone(results),
            metrics: Arc::clone(metrics),
            quotas: Quotas::new(clock, MAX_CLIENTS),
            refused: log.limit(
                Level::WARN,
                "more cancels and ends of sessions of MCP clients were not passed on",
            ),
        }
    }

    /// Records for all replicas that a session, or a request of a session, is over. Returns when this replica has read
    /// the record.
    ///
    /// # Errors
    /// When it is not recorded.
    pub(super) async fn note(&self, caller: &Text, key: &str) -> Result<(), NotRecorded> {
        if self.results.is_over(key) {
            return Ok(());
        }
        if let Err(exceeded) = self.quotas.admit(&client_of(caller), &RATE_LIMITS) {
            self.metrics.limited(LimitScope::Over);
            if let Some(suppressed) = self.refused.allow() {
                tracing::warn!(
                    client = %caller, suppressed,
                    "a cancel or the end of a session of an MCP client is not passed on to other replicas: this client sends too many"
                );
            }
            let retry_after = exceeded.retry_after;
            return Err(NotRecorded::TooOften { retry_after });
        }
        Ok(self.results.note_over(key).await?)
    }
}
