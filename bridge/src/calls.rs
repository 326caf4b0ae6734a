//! Calls: requests that expect an answer, from the HTTP listener over the bus and back.
//!
//! ```text
//! caller ── call ──> register ──> publish ──> … agent … ──> reply leg ── answer ──> pending ──> Answer ──> caller
//! ```
//!
//! The JSON-RPC id of the caller is replaced by the call id on the way out and put back on the way in; nothing else of
//! either body changes. A call is registered before it is published, ends once, and never waits past its deadline.
//!
//! `impl Calls` is in four files: here what others may ask of it, in `calls/open.rs` what comes before a request is
//! published, in `calls/publish.rs` requests, notifications and cancels on their way to the bus, and in
//! [`crate::calls::resolve`] what comes back. Source: docs/design.md §1, §2 and §5.

mod answer;
mod answered;
pub mod callid;
pub mod cancel;
pub(crate) mod error;
pub mod exchange;
pub(crate) mod failure;
mod open;
mod part;
pub mod pending;
#[cfg(test)]
mod pending_model;
#[cfg(test)]
mod pending_tests;
mod publish;
pub(crate) mod question;
pub(crate) mod render;
pub mod reply;
pub(crate) mod reply_form;
pub mod reply_place;
pub(crate) mod reply_reader;
pub mod reply_token;
pub mod resolve;
pub(crate) mod said;
mod sync;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use a2abus_plugin::{MapOptions, Text, Unit};
use a2abus_transports::Header;
use arc_swap::Guard;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::Level;

pub use answer::Answer;
pub(crate) use answer::{Prepared, Reached};
pub(crate) use answered::Ended;
pub use answered::{Answered, Unanswerable};
pub use error::{Bound, CallError, NotTaken, Silence};
pub(crate) use open::{Exchange, Opened};
pub use part::Part;
use question::Abilities;

use crate::account::Account;
use crate::budget::Budget;
use crate::bus::delivery::Publisher;
use crate::bus::outbound::{Outbound, Outgoing};
use crate::calls::callid::{CallId, ReplyId};
use crate::calls::cancel::Canceller;
use crate::calls::pending::{PendingCalls, Piece};
use crate::calls::reply::ReplyLegs;
use crate::calls::reply_token::ReplyTokens;
use crate::metrics::{Metrics, ReplyOutcome};
use crate::rules::Rules;
use crate::seldom::{LogLimits, Seldom};
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
    outbound: Outbound,
    publisher: Publisher,
    legs: ReplyLegs,
    pending: PendingCalls,
    of_agents: Arc<Shares<Text>>,
    of_callers: Arc<Shares<Text>>,
    budget: Arc<Budget>,
    limits: CallLimits,
    tokens: ReplyTokens,
    source: Text,
    options: MapOptions,
    canceller: Canceller,
    metrics: Arc<Metrics>,
    draining: AtomicBool,
    ended: Ended,
    cancels_lost: Seldom,
    /// Copies for destinations that do not answer, which outlive their calls.
    beside: TaskTracker,
    room_beside: Arc<Semaphore>,
}

/// One request to make.
#[derive(Debug)]
pub struct Request {
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
        (legs, tokens): (ReplyLegs, ReplyTokens),
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
            legs,
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
            ended: Ended::new(log),
            cancels_lost: log.seldom(Level::WARN, "more cancels were not published"),
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
        self.legs.is_ours(call) && !self.pending.contains(call)
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
    pub fn legs(&self) -> &ReplyLegs {
        &self.legs
    }

    /// What verifies answers.
    pub(crate) fn tokens(&self) -> &ReplyTokens {
        &self.tokens
    }

    /// The calls that ended lately.
    pub(crate) fn ended(&self) -> &Ended {
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

    /// Publishes a request and returns its answer to wait for. What the bus takes at once is handed over when this
    /// returns.
    ///
    /// # Errors
    /// By kind. What goes wrong after this returns is an error of [`Answer::next`].
    pub async fn call(self: &Arc<Self>, request: Request) -> Result<Answer, CallError> {
        self.prepare(request, None)?.publish().await
    }

    /// Registers the call of a request, which is to be published. With `client`, the caller takes other messages before
    /// the answer, and can be asked something: such an answer may take as long as a streamed one.
    pub(crate) fn prepare(
        self: &Arc<Self>,
        request: Request,
        client: Option<Abilities>,
    ) -> Result<Prepared, CallError> {
        let call = self.id_of(&request)?;
        let mut account = Account::open(&self.metrics, call, request.caller.clone());
        let (opened, copies) = match self.begin(call, request, client, &mut account) {
            Ok(begun) => begun,
            Err(error) => {
                account.failed(&error);
                return Err(error);
            }
        };
        let answer = opened.answer(account, self);
        Ok(Prepared { answer, copies })
    }

    /// The answer to a call of another replica, whose parts come from a record: those after the first `taken`. It may take
    /// `left` more.
    pub(crate) fn resume(
        self: &Arc<Self>,
        call: CallId,
        (agent, left): (Text, Duration),
        taken: usize,
        parts: mpsc::Receiver<Piece>,
    ) -> Answer {
        let account = Account::open(&self.metrics, call, agent);
        let mut answer = Answer::resumed(call, left, parts, account, self);
        answer.taken = u32::try_from(taken).unwrap_or(u32::MAX);
        answer
    }

    fn id_of(&self, request: &Request) -> Result<CallId, CallError> {
        request.call.map_or_else(|| self.new_call(), Ok)
    }

    /// A call id of this replica.
    ///
    /// # Errors
    /// When the operating system gives no random numbers.
    pub(crate) fn new_call(&self) -> Result<CallId, CallError> {
        let call = self.legs.new_call();
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
        copy.is_awaited && !self.legs.is_reading(copy.bus)
    }

    /// Waits until the answers to copies that were read at `since` can be read, as long as a caller waits by default.
    /// The calls of those whose answers cannot be read by then fail.
    pub(crate) async fn until_answers_are_read(&self, copies: &[Outgoing], since: Instant) {
        let reading = async {
            for copy in copies {
                self.legs.until_reading(copy.bus).await;
            }
        };
        let deadline = since + self.limits.timeout;
        drop(tokio::time::timeout_at(deadline, reading).await);
        for copy in copies.iter().filter(|copy| self.is_deaf(copy)) {
            self.unheard(copy);
        }
    }
}
