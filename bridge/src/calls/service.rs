//! The service that makes calls: its parts, its limits and its interface.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use a2abus_plugin::{MapOptions, Text, Unit};
use a2abus_transports::Header;
use arc_swap::Guard;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::Level;

use super::answer_outcome::EndedCalls;
use super::error::CallError;
use crate::budget::Budget;
use crate::bus::delivery::Publisher;
use crate::bus::outbound::{Outbound, Outgoing};
use crate::calls::callid::{CallId, ReplyId};
use crate::calls::cancel::Canceller;
use crate::calls::pending::PendingCalls;
use crate::calls::reply::ReplyChannels;
use crate::calls::reply_token::ReplyTokens;
use crate::log_limit::{LogLimit, LogLimits};
use crate::metrics::{Metrics, ReplyOutcome};
use crate::rules::Rules;
use crate::shares::Shares;

/// The name of the HTTP listener as a binding: what routes match as `binding`, and part of `source`.
pub const DOOR: &str = "http";
/// The caller over HTTP if the connection has no address.
pub const UNKNOWN_CALLER: &str = "unknown";

/// Bounds on calls.
#[derive(Debug, Clone, Copy)]
pub struct CallLimits {
    /// How long a caller that says nothing waits.
    pub timeout: Duration,
    /// How long any caller may ask to wait.
    pub max_timeout: Duration,
    /// How long a streamed answer may take in all; between two parts it is `timeout`.
    pub stream_timeout: Duration,
    /// Calls that wait for an answer, at most.
    pub max_pending: usize,
    /// Calls that wait for one agent, at most.
    pub max_pending_per_agent: usize,
    /// Calls that one caller waits for, at most.
    pub max_pending_per_caller: usize,
    /// Memory for requests and answers in progress, in bytes.
    pub budget_bytes: usize,
    /// Parts of one answer that wait for their caller, at most.
    pub max_parts_buffered: usize,
}

/// Everything that makes calls.
#[derive(Debug)]
pub struct Calls {
    pub(super) outbound: Outbound,
    pub(super) publisher: Publisher,
    pub(super) channels: ReplyChannels,
    pub(super) pending: PendingCalls,
    pub(super) of_agents: Arc<Shares<Text>>,
    pub(super) of_callers: Arc<Shares<Text>>,
    pub(super) budget: Arc<Budget>,
    pub(super) limits: CallLimits,
    pub(super) tokens: ReplyTokens,
    pub(super) source: Text,
    pub(super) options: MapOptions,
    pub(super) canceller: Canceller,
    pub(super) metrics: Arc<Metrics>,
    pub(super) draining: AtomicBool,
    pub(super) ended: EndedCalls,
    pub(super) cancels_lost: LogLimit,
    /// Copies for destinations that do not answer, which outlive their calls.
    pub(super) beside: TaskTracker,
    pub(super) room_beside: Arc<Semaphore>,
}

/// One request to make.
#[derive(Debug)]
pub struct Request {
    /// When it came: what the access log says of its time counts from here.
    pub arrived: std::time::Instant,
    /// The request, decoded: JSON-RPC, or a message of another family, whose answer stays as its agent writes it.
    pub unit: Unit,
    /// What the data of a CloudEvent are, where `unit` is one and they are one message.
    pub data: Option<Unit>,
    /// The identity that the call has, where its response names it already; else it gets a new one.
    pub call: Option<CallId>,
    /// The agent that the path names; it wins over the one that the payload names.
    pub target: Option<Text>,
    /// How long the caller waits; the default where it says nothing, capped at the maximum.
    pub timeout: Option<Duration>,
    /// Where the caller is, the last segment of the event's `source`.
    pub caller: Text,
    /// Headers of the caller that go with the request.
    pub headers: Vec<Header>,
}

// === impl Calls ===

impl Calls {
    /// Ready to make calls; `source` is the `source` of the requests, without the caller.
    #[must_use]
    pub fn new(
        publisher: Publisher,
        (channels, tokens): (ReplyChannels, ReplyTokens),
        limits: CallLimits,
        source: Text,
        canceller: Canceller,
        metrics: Arc<Metrics>,
        log: &LogLimits,
    ) -> Self {
        let pending = PendingCalls::new(limits.max_pending, metrics.pending_calls.clone());
        let (options, draining) = (MapOptions::default(), AtomicBool::new(false));
        Self {
            outbound: publisher.outbound().clone(),
            publisher,
            channels,
            pending,
            of_agents: Shares::new(limits.max_pending_per_agent),
            of_callers: Shares::new(limits.max_pending_per_caller),
            budget: Budget::new(
                limits.budget_bytes,
                metrics.held_bytes.clone(),
                metrics.budget_refused.clone(),
            ),
            limits,
            tokens,
            source,
            options,
            canceller,
            metrics,
            draining,
            ended: EndedCalls::new(log),
            cancels_lost: log.limit(Level::WARN, "more cancels were not published"),
            beside: TaskTracker::new(),
            room_beside: Arc::new(Semaphore::new(
                limits.max_pending.min(Semaphore::MAX_PERMITS),
            )),
        }
    }

    /// The calls that wait for an answer.
    #[must_use]
    pub fn pending(&self) -> &PendingCalls {
        &self.pending
    }

    /// Whether this is a call of this replica that no longer waits.
    pub(crate) fn has_ended(&self, call: CallId) -> bool {
        self.channels.is_ours(call) && !self.pending.contains(call)
    }

    /// Whether this proves to come from somebody who has the request of a call of this process, which waits or ended
    /// lately.
    pub(crate) fn has_made(&self, id: ReplyId) -> bool {
        let waiting = self.pending.asked(id.call).map(|asked| asked.id);
        let made = waiting.or_else(|| self.ended.reply_id(id.call));
        made.is_some_and(|made| self.tokens.verify(made, id.token).is_ok())
    }

    /// The memory for requests and answers in progress.
    #[must_use]
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// The rules for one message that is read now.
    #[must_use]
    pub fn rules(&self) -> Guard<Arc<Rules>> {
        self.outbound.rules()
    }

    /// Where answers come back to.
    #[must_use]
    pub fn channels(&self) -> &ReplyChannels {
        &self.channels
    }

    /// Verifies answers.
    pub(crate) fn tokens(&self) -> &ReplyTokens {
        &self.tokens
    }

    /// The calls that ended lately.
    pub(crate) fn ended(&self) -> &EndedCalls {
        &self.ended
    }

    /// Counts what became of an answer.
    pub(crate) fn count_reply(&self, outcome: ReplyOutcome) {
        self.metrics.reply(outcome);
    }

    /// Refuses new calls from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(super) fn id_of(&self, request: &Request) -> Result<CallId, CallError> {
        request.call.map_or_else(|| self.new_call(), Ok)
    }

    /// A call id of this replica.
    ///
    /// # Errors
    /// When the operating system gives no random numbers.
    pub(crate) fn new_call(&self) -> Result<CallId, CallError> {
        let call = self.channels.new_call();
        call.map_err(|error| CallError::Refused(error.to_string().into()))
    }

    /// How long a caller waits that asks for this.
    pub(crate) fn patience(&self, wanted: Option<Duration>) -> Duration {
        wanted
            .unwrap_or(self.limits.timeout)
            .min(self.limits.max_timeout)
    }

    /// How long a stream may last.
    pub(crate) fn stream_timeout(&self) -> Duration {
        self.limits.stream_timeout
    }

    /// The longest time that any call may take.
    pub(crate) fn longest(&self) -> Duration {
        self.limits.max_timeout.max(self.limits.stream_timeout)
    }

    /// Whether the answer to this copy could not be read now.
    pub(crate) fn is_deaf(&self, copy: &Outgoing) -> bool {
        copy.is_awaited && !self.channels.is_reading(copy.bus)
    }

    /// Waits until the answers to copies that were read at `since` can be read, as long as a caller waits by default.
    /// The calls of those whose answers cannot be read by then fail.
    pub(crate) async fn until_answers_are_read(&self, copies: &[Outgoing], since: Instant) {
        let reading = async {
            for copy in copies {
                self.channels.until_reading(copy.bus).await;
            }
        };
        let deadline = since + self.limits.timeout;
        drop(tokio::time::timeout_at(deadline, reading).await);
        for copy in copies.iter().filter(|copy| self.is_deaf(copy)) {
            self.unheard(copy);
        }
    }
}
