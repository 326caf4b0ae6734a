//! The service that makes calls: its parts, its limits and its interface.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use a2abus_plugin::protocol::jsonrpc::RpcBody;
use a2abus_plugin::{Hint, MapOptions, Text, Unit, decode, extension};
use a2abus_transports::Header;
use arc_swap::Guard;
use bytes::Bytes;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use tokio_util::task::TaskTracker;
use tracing::Level;

use super::answer_outcome::EndedCalls;
use super::error::CallError;
use super::failure::{Failure, Reason};
use crate::budget::Budget;
use crate::bus::BusId;
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

/// The caller over HTTP if the connection has no address.
pub const UNKNOWN_CALLER: &str = "unknown";

/// Bounds on calls.
#[derive(Debug, Clone, Copy)]
pub struct CallLimits {
    /// The default timeout.
    pub timeout: Duration,
    /// The longest timeout that a caller may ask for.
    pub max_timeout: Duration,
    /// How long an answer of several parts may take in total; `timeout` limits the time between two parts.
    pub stream_timeout: Duration,
    /// How long a client may take to answer a question of the agent.
    pub question_timeout: Duration,
    /// Maximum number of calls that wait for an answer.
    pub max_pending: usize,
    /// Maximum number of calls that wait for one agent.
    pub max_pending_per_agent: usize,
    /// Maximum number of calls that one caller waits for.
    pub max_pending_per_caller: usize,
    /// Memory for requests and answers in progress, in bytes.
    pub budget_bytes: usize,
    /// Maximum number of parts of one answer that wait for their caller.
    pub max_parts_buffered: usize,
}

/// Makes calls.
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
    /// The buses that stay down, and why.
    pub(super) given_up_buses: watch::Sender<HashMap<BusId, Text>>,
    /// Cancelled when the grace period of the drain is over.
    pub(super) given_up: CancellationToken,
    pub(super) ended: EndedCalls,
    /// Refused calls, if this bridge makes none.
    pub(super) disabled: LogLimit,
    pub(super) unsent: LogLimit,
    bad_answers: LogLimit,
    pub(super) gaps: LogLimit,
    pub(super) refused_questions: LogLimit,
    /// Publishes copies for destinations that do not answer. These tasks may outlive their calls.
    pub(super) background: TaskTracker,
    pub(super) background_permits: Arc<Semaphore>,
}

/// One request to make.
#[derive(Debug)]
pub struct Request {
    /// When it arrived. Its timeout and its duration in the access log count from here.
    pub arrived: std::time::Instant,
    /// The decoded request: JSON-RPC, or a message of another family, whose answer is passed on unchanged.
    pub unit: Unit,
    /// The data of the CloudEvent, if `unit` is one and its data is one message.
    pub data: Option<Unit>,
    /// The call id, if the response already names it; otherwise the call gets a new one.
    pub call: Option<CallId>,
    /// The agent in the path. It overrides the one in the payload.
    pub target: Option<Text>,
    /// How long the caller waits, counted from `arrived`: the default if it does not say, and at most the maximum.
    pub timeout: Option<Duration>,
    /// Whether `timeout` bounds only the first part of the answer. The rest may take as long as without it.
    pub bounds_first_part: bool,
    /// Whether the caller accepts parts that are results; `None` if the method decides, which may stream. Source:
    /// docs/protocols/e2a.md §10.4.
    pub accepts_parts: Option<bool>,
    /// The address of the caller, which is the last segment of the event's `source`.
    pub caller: Text,
    /// The message key. Requests with the same key are published to the same Kafka partition. By default, each call has
    /// a key of its own.
    pub key: Option<Bytes>,
    /// The caller's headers that are passed on.
    pub headers: Vec<Header>,
}

// === impl Request ===

impl Request {
    /// The method that the data of the CloudEvent name.
    pub(super) fn method_in_data(&self) -> Option<Text> {
        let data = self.data.as_ref()?;
        data.extension_text(extension::A2A_METHOD).cloned()
    }
}

// === impl Calls ===

impl Calls {
    /// Creates the service. `source` is the `source` of its requests, without the caller.
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
                log,
            ),
            limits,
            tokens,
            source,
            options,
            canceller,
            metrics,
            draining,
            given_up_buses: watch::Sender::new(HashMap::new()),
            given_up: CancellationToken::new(),
            ended: EndedCalls::new(log),
            disabled: log.limit(
                Level::WARN,
                "more calls were refused (calls.enabled is false)",
            ),
            unsent: log.limit(
                Level::WARN,
                "more cancels, or answers of clients, were not sent to agents",
            ),
            bad_answers: log.limit(Level::WARN, "more answers of agents could not be used"),
            gaps: log.limit(Level::WARN, "more answers had missing E2A records"),
            refused_questions: log.limit(Level::WARN, "more questions of agents were refused"),
            background: TaskTracker::new(),
            background_permits: Arc::new(Semaphore::new(
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

    /// Whether this id has the token of a call that this process made, and that is waiting or has ended recently.
    pub(crate) fn has_made(&self, id: ReplyId) -> bool {
        let waiting = self.pending.request(id.call).map(|request| request.id);
        let made = waiting.or_else(|| self.ended.reply_id(id.call));
        made.is_some_and(|made| self.tokens.verify(made, id.token).is_ok())
    }

    /// The memory for requests and answers in progress.
    #[must_use]
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// The current rules. A reader takes them once per message.
    #[must_use]
    pub fn rules(&self) -> Guard<Arc<Rules>> {
        self.outbound.rules()
    }

    /// Decodes a message that is exactly one request.
    pub(crate) fn unit_of(&self, message: &Bytes, hint: &Hint) -> Result<Unit, Failure> {
        let units = decode(message, hint, &self.rules().limits);
        let not_one = |_| Failure::new(Reason::InvalidRequest, "expected exactly one request");
        let unit = units.into_only().map_err(not_one)?;
        unit.map_err(|refused| Failure::refused(&refused.error))
    }

    /// The reply addresses of this replica.
    #[must_use]
    pub fn channels(&self) -> &ReplyChannels {
        &self.channels
    }

    /// Verifies answers.
    pub(crate) fn tokens(&self) -> &ReplyTokens {
        &self.tokens
    }

    /// The calls that ended recently.
    pub(crate) fn ended(&self) -> &EndedCalls {
        &self.ended
    }

    /// Counts the outcome of an answer.
    pub(crate) fn count_reply(&self, outcome: ReplyOutcome) {
        self.metrics.reply(outcome);
    }

    /// Logs that the answer of this agent to a call cannot be used.
    pub(crate) fn log_unusable(&self, (call, agent): (CallId, Option<&str>), why: &str) {
        if let Some(suppressed) = self.bad_answers.allow() {
            tracing::warn!(%call, agent, %why, suppressed, "the answer of an agent cannot be used: its caller gets an error");
        }
    }

    /// Refuses new calls from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Ends what still waits at the end of a drain: pending calls fail, and [`Calls::given_up`] resolves. Returns how
    /// many calls failed.
    pub(crate) fn give_up(&self) -> usize {
        self.given_up.cancel();
        self.pending.fail_where(|_| true, &CallError::Draining)
    }

    /// Resolves when the drain is over, for those who wait for the work of others.
    pub(crate) fn given_up(&self) -> WaitForCancellationFuture<'_> {
        self.given_up.cancelled()
    }

    pub(super) fn id_of(&self, request: &Request) -> Result<CallId, CallError> {
        if let Some(call) = request.call {
            return Ok(call);
        }
        let message = request.unit.json_rpc.as_ref();
        let call = self.new_call()?;
        Ok(match message.map(|message| message.body) {
            Some(RpcBody::Call { streaming: true }) => call.following_task(),
            _ => call,
        })
    }

    /// A call id of this replica.
    ///
    /// # Errors
    /// When the operating system gives no random numbers.
    pub(crate) fn new_call(&self) -> Result<CallId, CallError> {
        let call = self.channels.new_call();
        call.map_err(|error| CallError::Refused(error.to_string().into()))
    }

    /// The timeout for a caller that sets `requested`.
    pub(crate) fn timeout_for(&self, requested: Option<Duration>) -> Duration {
        requested
            .unwrap_or(self.limits.timeout)
            .min(self.limits.max_timeout)
    }

    /// The timeout for a call whose caller can get the answer after its own timeout. Until then the call counts against
    /// the limits of its caller and its agent, so it does not last much longer.
    pub(crate) fn patience(&self, requested: Option<Duration>) -> Duration {
        let longer = self.timeout_for(requested) + self.limits.timeout;
        longer.min(self.limits.max_timeout)
    }

    /// How long a stream may last.
    pub(crate) fn stream_timeout(&self) -> Duration {
        self.limits.stream_timeout
    }

    /// The longest time that any call may take.
    pub(crate) fn longest(&self) -> Duration {
        self.limits.max_timeout.max(self.limits.stream_timeout)
    }

    /// Whether a caller waits for the answer to this copy, but its reply address is not being read.
    pub(crate) fn lacks_reply_reader(&self, copy: &Outgoing) -> bool {
        copy.is_awaited && !self.channels.is_reading(copy.bus)
    }

    /// Waits until the reply addresses of these copies are being read, at most for the default timeout after `since`,
    /// when the copies were received. Then the calls of the remaining copies fail.
    pub(crate) async fn wait_for_reply_readers(&self, copies: &[Outgoing], since: Instant) {
        let reading = async {
            for copy in copies {
                self.channels.until_reading(copy.bus).await;
            }
        };
        let deadline = since + self.limits.timeout;
        drop(tokio::time::timeout_at(deadline, reading).await);
        for copy in copies.iter().filter(|copy| self.lacks_reply_reader(copy)) {
            self.fail_without_reply_reader(copy);
        }
    }
}
