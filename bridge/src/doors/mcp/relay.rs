//! Passes what MCP clients send to this replica on to the others: ends of sessions, cancels, answers to questions, and
//! subscriptions to resources.
//!
//! This replica does not know which sessions, requests and questions other replicas have, and any client can invent
//! ids, so each client may pass on only a limited number.

use std::sync::{Arc, Mutex};

use a2abus_executor::{Clock, Limit, Quotas, SystemClock, Window};
use a2abus_plugin::Text;
use http::StatusCode;
use tokio::sync::oneshot;
use tracing::Level;

use super::places::{self, Places};
use super::session::KEY;
use crate::calls::failure::{Failure, Reason};
use crate::calls::question::PassedAnswer;
use crate::doors::door::Refusal;
use crate::lock::lock;
use crate::log_limit::{LogLimit, LogLimits};
use crate::metrics::{LimitScope, Metrics};
use crate::results::{Results, Subscription};
use crate::shares::client_of;
use crate::state::{RESULTS, StateError};

/// Passes messages of clients on to other replicas, within a limit per client.
#[derive(Debug)]
pub(super) struct Relay {
    results: Arc<Results>,
    metrics: Arc<Metrics>,
    quotas: Quotas,
    places: Mutex<Places>,
    refusals: LogLimit,
    unstored: LogLimit,
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
    /// There is no room for another subscription.
    #[error(
        "no more subscriptions to resources are possible: this client has {max}, or those of all clients take a quarter of state.memory", max = places::MAX
    )]
    TooMany,
    /// The log did not store it.
    #[error(transparent)]
    Failed(StateError),
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
            Self::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, Failure::too_large(message)),
            Self::TooMany => {
                let failure = Failure::new(Reason::Exhausted, format!("{message}; end some first"));
                (StatusCode::TOO_MANY_REQUESTS, failure)
            }
            Self::Failed(error) => {
                let reason = match error {
                    StateError::Full { .. } => Reason::Exhausted,
                    _ => Reason::AgentUnavailable,
                };
                let message = "the bridge cannot record this now (log `results`): try again later";
                let failure = Failure::new(reason, message);
                (StatusCode::SERVICE_UNAVAILABLE, failure)
            }
        }
    }
}

/// The result of a task that goes on even if its client disconnects.
pub(super) async fn recorded<T>(
    result: oneshot::Receiver<Result<T, NotRelayed>>,
) -> Result<T, NotRelayed> {
    // Without a result, the task has panicked.
    let failed = |_| Err(NotRelayed::Failed(StateError::Closed(RESULTS.name)));
    result.await.unwrap_or_else(failed)
}

// === impl Relay ===

impl Relay {
    pub(super) fn new(results: &Arc<Results>, metrics: &Arc<Metrics>, log: &LogLimits) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        Self {
            results: Arc::clone(results),
            metrics: Arc::clone(metrics),
            quotas: Quotas::new(clock, MAX_CLIENTS),
            places: Mutex::default(),
            refusals: log.limit(Level::WARN, "more messages of MCP clients were refused"),
            unstored: log.limit(
                Level::WARN,
                "more messages of MCP clients were not stored in the log",
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
        let what = match key.starts_with(KEY) {
            true => "the end of a session",
            false => "a cancel",
        };
        self.admit(caller, what)?;
        let noted = self.results.note_over(key).await;
        noted.map_err(|error| self.failed(what, error))
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
        let what = "an answer to a question";
        self.admit(caller, what)?;
        let passed = self.results.pass_client_answer(answer).await;
        passed.map_err(|error| self.failed(what, error))
    }

    /// Records a subscription to a resource for all replicas. Returns when this replica has read the record.
    ///
    /// # Errors
    /// When there is no room for it, or it is not recorded.
    pub(super) async fn subscribe(
        &self,
        caller: &Text,
        subscription: &Subscription,
    ) -> Result<(), NotRelayed> {
        let (client, key) = (client_of(caller), Results::subscription_key(subscription));
        let is_renewal = self.results.has_subscription(subscription);
        if !is_renewal && !self.has_place(&client, &key) {
            return Err(self.refused(caller, "a subscription", NotRelayed::TooMany));
        }
        let stored = self.results.subscribe(subscription.clone()).await;
        stored.map_err(|error| self.failed("a subscription", error))?;
        lock(&self.places).keep(client, key);
        Ok(())
    }

    fn has_place(&self, client: &Text, key: &str) -> bool {
        self.results.has_room_for_subscriptions()
            && lock(&self.places).take(client, key, |keys| self.results.retain_subscribed(keys))
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
        let ended = self.results.unsubscribe(subscription).await;
        let what = "the end of a subscription, which now lasts for a day";
        let is_subscribed = ended.map_err(|error| self.failed(what, error))?;
        let key = Results::subscription_key(subscription);
        lock(&self.places).give_back(&client_of(caller), &key);
        Ok(is_subscribed)
    }

    /// Counts a message of a client. `what` is what it contains.
    ///
    /// # Errors
    /// When the client has sent too many.
    pub(super) fn admit(&self, caller: &Text, what: &'static str) -> Result<(), NotRelayed> {
        let Err(exceeded) = self.quotas.admit(&client_of(caller), &RATE_LIMITS) else {
            return Ok(());
        };
        let retry_after = exceeded.retry_after;
        Err(self.refused(caller, what, NotRelayed::TooOften { retry_after }))
    }

    /// Counts and logs what a client may not do now.
    fn refused(&self, caller: &Text, what: &'static str, why: NotRelayed) -> NotRelayed {
        self.metrics.limited(LimitScope::Over);
        if let Some(suppressed) = self.refusals.allow() {
            tracing::warn!(client = %caller, what, %why, suppressed, "a message of an MCP client was refused");
        }
        why
    }

    /// The error for something that the log has not stored.
    fn failed(&self, what: &'static str, error: StateError) -> NotRelayed {
        if let StateError::Full { .. } = error {
            self.metrics.budget_refused.inc();
        }
        if let Some(suppressed) = self.unstored.allow() {
            tracing::warn!(what, %error, suppressed, "the log `results` did not store a message of an MCP client");
        }
        NotRelayed::Failed(error)
    }
}
