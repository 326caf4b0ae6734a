//! Passes what MCP clients send to this replica on to the others: ends of sessions, cancels, answers to questions, and
//! subscriptions to resources.
//!
//! This replica does not know which sessions, requests and questions other replicas have, and any client can invent
//! ids, so each client may pass on only a limited number.

use std::sync::Arc;

use a2abus_executor::{Clock, Limit, Quotas, SystemClock, Window};
use a2abus_plugin::Text;
use http::StatusCode;
use tracing::Level;

use super::session::KEY;
use crate::calls::failure::{Failure, Reason};
use crate::calls::question::PassedAnswer;
use crate::doors::door::Refusal;
use crate::log_limit::{LogLimit, LogLimits};
use crate::metrics::{LimitScope, Metrics};
use crate::results::{Results, Subscription};
use crate::shares::client_of;
use crate::state::StateError;

/// Passes messages of clients on to other replicas, within a limit per client.
#[derive(Debug)]
pub(super) struct Relay {
    results: Arc<Results>,
    metrics: Arc<Metrics>,
    quotas: Quotas,
    refused: LogLimit,
}

/// Why something is not passed on.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotRelayed {
    /// Its client has sent too much of it recently.
    #[error(
        "this client has sent too many cancellations, session ends, answers and subscriptions in the last minute"
    )]
    TooOften {
        /// Seconds until the client may try again.
        retry_after: u32,
    },
    /// An answer is too large for the log.
    #[error(
        "this answer has more than {LARGEST} bytes, so only the replica that asked can take it"
    )]
    TooLarge,
    /// The log did not store it.
    #[error(transparent)]
    Failed(#[from] StateError),
}

/// The limit per client; all clients behind one proxy count as one. The log keeps records for 50 hours.
const RATE_LIMITS: [Limit; 1] = [Limit::new(600, Window::Minute)];
/// The largest answer that is passed on, in bytes.
const LARGEST: usize = 256 << 10;
/// Maximum number of clients that are tracked.
const MAX_CLIENTS: usize = 1_024;

// === impl NotRelayed ===

impl NotRelayed {
    /// The response to its client.
    pub(super) fn refusal(self) -> Refusal {
        let message = self.to_string();
        match self {
            Self::TooOften { retry_after } => {
                let failure =
                    Failure::new(Reason::RateLimited, format!("{message}: try again later"));
                let failure = failure.detail("retryAfterSeconds", retry_after);
                (StatusCode::TOO_MANY_REQUESTS, failure)
            }
            Self::TooLarge => {
                let failure = Failure::new(Reason::Exhausted, message);
                (StatusCode::PAYLOAD_TOO_LARGE, failure)
            }
            Self::Failed(error) => {
                tracing::warn!(%error, "a message of an MCP client was not recorded in the log `results`");
                let message = "the bridge cannot record this now (log `results`): try again later";
                let failure = Failure::new(Reason::AgentUnavailable, message);
                (StatusCode::SERVICE_UNAVAILABLE, failure)
            }
        }
    }
}

// === impl Relay ===

impl Relay {
    pub(super) fn new(results: &Arc<Results>, metrics: &Arc<Metrics>, log: &LogLimits) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        Self {
            results: Arc::clone(results),
            metrics: Arc::clone(metrics),
            quotas: Quotas::new(clock, MAX_CLIENTS),
            refused: log.limit(
                Level::WARN,
                "more messages of MCP clients were not passed on to other replicas",
            ),
        }
    }

    /// Records for all replicas that a session, or a request of a session, is over. Returns when this replica has read
    /// the record.
    ///
    /// # Errors
    /// When it is not recorded.
    pub(super) async fn end(&self, caller: &Text, key: &str) -> Result<(), NotRelayed> {
        // A request may have the id of one that was cancelled before.
        if key.starts_with(KEY) && self.results.is_over(key) {
            return Ok(());
        }
        self.admit(caller)?;
        Ok(self.results.note_over(key).await?)
    }

    /// Passes a client's answer on to the replica whose call has asked the question.
    ///
    /// # Errors
    /// When it is not passed on.
    pub(super) async fn answer(
        &self,
        caller: &Text,
        answer: PassedAnswer,
    ) -> Result<(), NotRelayed> {
        if answer.body.len() > LARGEST {
            return Err(NotRelayed::TooLarge);
        }
        self.admit(caller)?;
        Ok(self.results.pass_client_answer(answer).await?)
    }

    /// Records a subscription to a resource for all replicas. Returns when this replica has read the record.
    ///
    /// # Errors
    /// When it is not recorded.
    pub(super) async fn subscribe(
        &self,
        caller: &Text,
        subscription: Subscription,
    ) -> Result<(), NotRelayed> {
        self.admit(caller)?;
        Ok(self.results.subscribe(subscription).await?)
    }

    /// Records the end of a subscription. Returns whether other clients still have a subscription to the resource.
    ///
    /// # Errors
    /// When it is not recorded.
    pub(super) async fn unsubscribe(
        &self,
        caller: &Text,
        subscription: &Subscription,
    ) -> Result<bool, NotRelayed> {
        self.admit(caller)?;
        Ok(self.results.unsubscribe(subscription).await?)
    }

    /// Counts a message of a client.
    ///
    /// # Errors
    /// When the client has sent too many.
    pub(super) fn admit(&self, caller: &Text) -> Result<(), NotRelayed> {
        let Err(exceeded) = self.quotas.admit(&client_of(caller), &RATE_LIMITS) else {
            return Ok(());
        };
        self.metrics.limited(LimitScope::Over);
        if let Some(suppressed) = self.refused.allow() {
            tracing::warn!(
                client = %caller, suppressed,
                "a cancel, an answer, a subscription or the end of a session of an MCP client is not passed on to other replicas: this client sends too many"
            );
        }
        let retry_after = exceeded.retry_after;
        Err(NotRelayed::TooOften { retry_after })
    }
}
