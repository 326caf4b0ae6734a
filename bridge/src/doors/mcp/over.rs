//! What is over, for other replicas to hear: ends of sessions, and cancels of requests that are not answered here.
//!
//! Whether another replica has a session or a request is not known here, and anybody can make up ids. So the number that
//! each client may record is limited.

use std::sync::Arc;

use a2abus_executor::{Clock, Limit, Quotas, SystemClock, Window};
use a2abus_plugin::Text;
use tracing::Level;

use crate::log_limit::{LogLimit, LogLimits};
use crate::metrics::{LimitScope, Metrics};
use crate::results::Results;
use crate::shares::client_of;
use crate::state::StateError;

/// Notes what is over, as often as its client may.
#[derive(Debug)]
pub(super) struct Over {
    results: Arc<Results>,
    metrics: Arc<Metrics>,
    quotas: Quotas,
    refused: LogLimit,
}

/// Why something is not noted.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotNoted {
    /// Its client has sent too many cancels and session ends recently.
    #[error("this client has sent too many cancels and session ends recently")]
    TooOften {
        /// Seconds until it may again.
        retry_after: u32,
    },
    /// It is not stored.
    #[error(transparent)]
    Failed(#[from] StateError),
}

/// How much one client may note; behind a proxy, all clients together. What is noted is kept for a day.
const MOST: [Limit; 1] = [Limit::new(600, Window::Minute)];
/// The clients that are remembered.
const MOST_CLIENTS: usize = 1_024;

// === impl Over ===

impl Over {
    pub(super) fn new(results: &Arc<Results>, metrics: &Arc<Metrics>, log: &LogLimits) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        Self {
            results: Arc::clone(results),
            metrics: Arc::clone(metrics),
            quotas: Quotas::new(clock, MOST_CLIENTS),
            refused: log.limit(
                Level::WARN,
                "more cancels and ends of sessions of MCP clients were not passed on",
            ),
        }
    }

    /// Lets all replicas know that a session, or a request of one, is over. Returns when this one does.
    ///
    /// # Errors
    /// When it is not noted.
    pub(super) async fn note(&self, caller: &Text, key: &str) -> Result<(), NotNoted> {
        if self.results.is_over(key) {
            return Ok(());
        }
        if let Err(exceeded) = self.quotas.admit(&client_of(caller), &MOST) {
            self.metrics.limited(LimitScope::Over);
            if let Some(suppressed) = self.refused.allow() {
                tracing::warn!(
                    client = %caller, suppressed,
                    "a cancel or the end of a session of an MCP client is not passed on to other replicas: this client sends too many"
                );
            }
            let retry_after = exceeded.retry_after;
            return Err(NotNoted::TooOften { retry_after });
        }
        Ok(self.results.note_over(key).await?)
    }
}
