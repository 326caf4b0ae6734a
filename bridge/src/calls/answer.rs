//! The answer to one call: its parts, its deadlines, and the cancel when the caller disconnects.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use a2abus_plugin::Text;
use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_transports::TransportError;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

use super::error::{CallError, NoAnswer, RequestState};
use super::open::{Opened, Timeouts};
use super::part::Part;
use super::render;
use super::service::Calls;
use crate::account::Account;
use crate::bus::line::{Line, Turn};
use crate::bus::outbound::Outgoing;
use crate::calls::callid::{CallId, ReplyId};
use crate::calls::cancel::Cancel;
use crate::calls::pending::{CallRequest, CallerMessage, HandOver};
use crate::calls::question::{Abilities, Question, answered_question, cancelled_question};
use crate::metrics::CallOutcome;

/// How long records wait for a missing earlier one. Source: docs/design.md §5.
pub(crate) const GAP_TIMEOUT: Duration = Duration::from_secs(2);

/// How much longer a part may take that another replica has to record. Includes clock differences between replicas.
pub(crate) const TAKEOVER: Duration = Duration::from_secs(10);

/// A deadline that is noticed this much too late means that the process was suspended. The call then waits this much
/// longer.
const STALLED: Duration = Duration::from_secs(1);

/// Maximum number of open questions. If there are more, the answer to the oldest one is dropped.
const MAX_QUESTIONS: usize = 256;

/// The answer to one call, part by part. Dropping it before the last part cancels the call.
pub struct Answer {
    id: ReplyId,
    parts: mpsc::Receiver<Box<CallerMessage>>,
    /// The place of the current part among the answers to its requester.
    turn: Option<Turn>,
    /// The copy of the request that is to be answered, until the bus has confirmed it. None if a binding publishes it.
    publishing: Publishing,
    /// The deadline for the next part.
    deadline: Instant,
    /// The deadline for the last part.
    last_deadline: Instant,
    /// The deadline for the last part, once a part has arrived.
    begun_deadline: Instant,
    /// When records are released although an earlier one is missing.
    gap_deadline: Option<Instant>,
    /// Until when the call waits although a deadline has passed, because the process was suspended.
    grace: Option<Instant>,
    /// How long the caller waits for the next part, and for each part after that.
    timeout: Duration,
    part_timeout: Duration,
    account: Account,
    ended: bool,
    /// Set once an agent may have received the request.
    may_have_arrived: Arc<AtomicBool>,
    /// Set once the fate of the request is known even if the bus has not confirmed it: the agent has answered, or has no
    /// subscription.
    is_answered: Arc<AtomicBool>,
    /// Whether the request is published here, and not by a binding.
    pub(super) is_published_here: bool,
    /// Whether the source of the request delivers it again if it is not answered.
    pub(crate) is_redeliverable: bool,
    /// Whether the request is JSON-RPC, and no cancel itself. Other families have no cancel.
    is_rpc: bool,
    /// The cancel for the agent, if the caller disconnects.
    cancel: Cancel,
    calls: Arc<Calls>,
    sent_calls: Option<SentCalls>,
    /// How many parts the caller has received.
    pub(super) consumed: u32,
    /// Whether other replicas can receive the answer, and it is a single message.
    has_one_part: bool,
    /// Whether the caller can get the rest of the answer from another replica if this one stops. `None` if no other
    /// replica follows the call.
    continues_elsewhere: Option<Arc<AtomicBool>>,
    /// What other replicas record of the answer.
    recorded: Option<Box<RecordedParts>>,
    /// Why this replica no longer receives the answer itself; `None` while it does.
    outage: Option<Text>,
    /// Whether its parts come from the log, as other replicas record them.
    reads_log: bool,
    /// The questions that the caller supports.
    client: Option<Abilities>,
    /// Whether the current part is a question to the caller.
    is_asking: bool,
    /// The ids of the questions that the caller has not answered.
    open_questions: Vec<Text>,
    /// Whether there is such a question.
    has_question: Arc<AtomicBool>,
}

/// A call that is registered and not yet published.
pub(crate) struct Prepared {
    /// Boxed, because it is moved from future to future.
    pub(super) answer: Box<Answer>,
    pub(super) copies: Vec<Outgoing>,
}

/// Counts the calls of one HTTP request that an agent may have received, and its notifications: each at least once.
/// Clones share the count.
#[derive(Debug, Clone, Default)]
pub(crate) struct SentCalls(Arc<SentCallCounts>);

#[derive(Debug, Default)]
struct SentCallCounts {
    calls: AtomicUsize,
    /// Whether another replica receives an answer.
    is_handed_off: AtomicBool,
}

/// A copy of a request, and the result of publishing it.
type Published = (Outgoing, Result<(), TransportError>);

/// The parts of an answer that other replicas record, after the given number. `None` if they record none.
pub(crate) type RecordedParts =
    dyn FnOnce(u32) -> Option<mpsc::Receiver<Box<CallerMessage>>> + Send + Sync;

/// A copy that is being published.
struct Publishing(Option<BoxFuture<'static, Published>>);

// === impl Opened ===

impl Opened {
    /// The answer of this call.
    pub(crate) fn answer(self, account: Account, calls: &Arc<Calls>) -> Box<Answer> {
        let started = account.started();
        Box::new(Answer {
            id: self.id,
            parts: self.parts,
            turn: None,
            publishing: Publishing(None),
            deadline: started + self.timeouts.first,
            last_deadline: started + self.timeouts.last,
            begun_deadline: started + self.timeouts.begun,
            gap_deadline: None,
            grace: None,
            timeout: self.timeouts.first,
            part_timeout: self.timeouts.part,
            account,
            ended: false,
            may_have_arrived: self.may_have_arrived,
            is_answered: Arc::default(),
            is_published_here: false,
            is_redeliverable: false,
            is_rpc: self.is_rpc,
            cancel: self.cancel,
            calls: Arc::clone(calls),
            sent_calls: None,
            consumed: 0,
            has_one_part: false,
            continues_elsewhere: None,
            recorded: None,
            outage: None,
            reads_log: false,
            client: self.client,
            is_asking: false,
            open_questions: Vec::new(),
            has_question: Arc::default(),
        })
    }
}

// === impl Prepared ===

impl Prepared {
    /// The pending request, with the id that the agent repeats.
    pub(crate) fn request(&self) -> Option<Arc<CallRequest>> {
        self.answer.calls.pending.request(self.answer.id.call)
    }

    /// Marks the call as followed: other replicas receive its answer if this one stops. Once the bus has confirmed the
    /// request, the call also outlives an outage of the bus. If the answer is a single message (`has_one_part`), it may
    /// also arrive here after the outage. A longer one continues with the parts that are `recorded`: parts that arrive
    /// here would get wrong numbers if earlier ones were lost. While nobody can get it from another replica
    /// (`continues_elsewhere` is false), the call ends with the drain, and its agent gets a cancel.
    pub(crate) fn set_followed(
        &mut self,
        (has_one_part, continues_elsewhere): (bool, bool),
        recorded: Box<RecordedParts>,
    ) {
        self.answer.has_one_part = has_one_part;
        self.answer.continues_elsewhere = Some(Arc::new(AtomicBool::new(continues_elsewhere)));
        self.answer.recorded = Some(recorded);
    }

    /// How long the agent may send nothing; `None` if its client may take longer to answer a question.
    pub(crate) fn part_timeout(&self) -> Option<Duration> {
        let client = self.answer.client.unwrap_or_default();
        let timeout = self.answer.timeout.max(self.answer.part_timeout);
        (client == Abilities::default()).then_some(timeout)
    }

    /// The time that is left for the answer, if it comes in parts.
    pub(crate) fn time_left(&self) -> Duration {
        let last = self.answer.begun_deadline.max(self.answer.last_deadline);
        last.saturating_duration_since(Instant::now())
    }

    /// When the request is no longer sent, because nothing would wait for its answer.
    pub(crate) fn deadline(&self) -> Instant {
        self.answer.next_deadline()
    }

    /// Publishes it, as [`Calls::call`] does.
    pub(crate) async fn publish(self) -> Result<Box<Answer>, CallError> {
        let Self { mut answer, copies } = self;
        answer.publish(copies).await?;
        Ok(answer)
    }
}

// === impl SentCalls ===

impl SentCalls {
    /// Counts a call.
    pub(crate) fn add(&self) {
        self.0.calls.fetch_add(1, Ordering::AcqRel);
    }

    /// Removes a call that no agent received.
    pub(crate) fn take_back(&self) {
        self.0.calls.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether no agent can have received any.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.calls.load(Ordering::Acquire) == 0
    }

    /// Records that this replica stops before the answer arrives, and another one receives it.
    fn hand_off(&self) {
        self.0.is_handed_off.store(true, Ordering::Release);
    }

    /// Whether another replica receives the answer.
    pub(crate) fn is_handed_off(&self) -> bool {
        self.0.is_handed_off.load(Ordering::Acquire)
    }
}

// === impl Answer ===

impl Answer {
    /// Counts this call in `sent_calls`, until it turns out that no agent can have received it.
    pub(crate) fn counted_by(mut self: Box<Self>, sent_calls: &SentCalls) -> Box<Self> {
        sent_calls.add();
        self.sent_calls = Some(sent_calls.clone());
        self
    }

    /// The answer to a call of another replica, from its record. The limits are for the time until the next part, and
    /// until the last.
    pub(super) fn resumed(
        call: CallId,
        (part, last): (Duration, Duration),
        parts: mpsc::Receiver<Box<CallerMessage>>,
        account: Account,
        calls: &Arc<Calls>,
    ) -> Box<Self> {
        let id = ReplyId { call, token: None };
        let opened = Opened {
            id,
            parts,
            cancel: Cancel::new(id, Dialect::JsonRpc, None, &[]),
            timeouts: Timeouts::new(part, last),
            is_rpc: false,
            may_have_arrived: Arc::new(AtomicBool::new(true)),
            client: None,
        };
        let mut answer = opened.answer(account, calls);
        answer.continues_elsewhere = Some(Arc::new(AtomicBool::new(true)));
        answer.reads_log = true;
        answer
    }

    /// Whether the caller can get the rest from another replica. The code that gives the caller the means to ask there
    /// sets this. `None` if no other replica follows the call.
    pub(crate) fn continues_elsewhere(&self) -> Option<&Arc<AtomicBool>> {
        self.continues_elsewhere.as_ref()
    }

    /// Whether a question to the caller is open, also for whoever has only the parts.
    pub(crate) fn has_question(&self) -> &Arc<AtomicBool> {
        &self.has_question
    }

    /// Whether another replica can take the call over. No other replica can return the answer to an open question.
    fn can_be_handed_off(&self) -> bool {
        let elsewhere = self.continues_elsewhere.as_ref();
        let continues = elsewhere.is_some_and(|continues| continues.load(Ordering::Relaxed));
        continues && self.open_questions.is_empty() && self.may_have_arrived()
    }

    /// Records that the bridge itself makes the call, on behalf of a request that has a line in the access log.
    pub(crate) fn set_own(&mut self) {
        self.account.set_own();
    }

    /// Records that its request is left to its source, whose next reader sends it again.
    pub(crate) fn leave(&mut self) {
        self.account.left();
    }

    /// Records that its requester gets this part, although the source would deliver the request again.
    pub(crate) fn note_part(&mut self, part: &Part) {
        if part.last {
            self.account.answered(part.outcome);
        }
    }

    /// Records that its requester gets this error, although the source would deliver the request again.
    pub(crate) fn note_failed(&mut self, error: &CallError) {
        self.account.failed(error);
    }

    /// The time that is left for it.
    pub(crate) fn time_left(&self) -> Duration {
        self.last_deadline.saturating_duration_since(Instant::now())
    }

    /// The deadline for the next part.
    fn next_deadline(&self) -> Instant {
        self.deadline.min(self.last_deadline)
    }

    /// How many parts its caller has received.
    pub(crate) fn consumed(&self) -> u32 {
        self.consumed
    }

    /// Starts publishing the request. Copies that the bus accepts without waiting are handed over before this returns.
    /// The rest is published while the answer is awaited, which may arrive before the confirmation.
    pub(super) async fn publish(&mut self, copies: Vec<Outgoing>) -> Result<(), CallError> {
        if Instant::now() >= self.next_deadline() {
            let unsent = CallError::Timeout(Box::new(NoAnswer {
                after: self.timeout,
                agent: self.cancel.target().cloned().unwrap_or_default(),
                request: RequestState::Unsent,
                rejected: None,
            }));
            return Err(self.fail(unsent));
        }
        // When a bus goes down, the calls that are registered by then fail. This call may have been registered a moment
        // later.
        if let Some(cause) = self.unavailable_bus(&copies) {
            return Err(self.fail(CallError::Unavailable(cause)));
        }
        let mut others = copies;
        let answered = others.iter().position(|copy| copy.call.is_some());
        if let Some(copy) = answered.map(|index| others.remove(index)) {
            let calls = Arc::clone(&self.calls);
            let has_arrived = Arc::clone(&self.may_have_arrived);
            let is_answered = Arc::clone(&self.is_answered);
            self.publishing = Publishing(Some(Box::pin(async move {
                let handed_over = || has_arrived.store(true, Ordering::Relaxed);
                let publisher = &calls.publisher;
                let published = publisher.for_call(&copy, handed_over, Some(&is_answered));
                let published = published.await;
                (copy, published)
            })));
            if let Some(published) = self.publishing.decided().now_or_never() {
                self.note(&published);
            }
        }
        if !others.is_empty() {
            Box::pin(self.calls.publish_in_background(others, self.last_deadline)).await;
        }
        Ok(())
    }

    fn unavailable_bus(&self, copies: &[Outgoing]) -> Option<Text> {
        // Copies for others wait for their bus.
        let mut answered = copies.iter().filter(|copy| copy.is_awaited);
        answered.find_map(|copy| self.calls.outage(copy.bus))
    }

    /// Handles the result of publishing the copy. If that failed, the call fails: the error arrives as a part of the
    /// answer.
    fn note(&self, (copy, published): &Published) {
        match published {
            Err(error) => self.calls.undeliverable(copy, error),
            // Until then the request would be published again after the outage, and might be executed twice.
            Ok(()) if self.has_one_part || self.calls.channels.stores_answers(copy.bus) => {
                self.calls.pending.keep(self.id.call);
            }
            Ok(()) => {}
        }
    }

    /// The next part; `None` after the last one or an error. Waits at most until the deadline of the call. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Part, CallError>> {
        self.next_before(None).await
    }

    /// The same for a caller who waits no longer than `until`. One timer serves both deadlines.
    pub(crate) async fn next_before(
        &mut self,
        until: Option<Instant>,
    ) -> Option<Result<Part, CallError>> {
        if self.ended {
            return None;
        }
        // Others would wait for it.
        self.turn = None;
        let mut received = self.receive(until).await;
        if let Err(CallError::AnswerLost(cause)) = &received
            && self.continue_from_log(cause)
        {
            received = self.receive(until).await;
        }
        Some(match received {
            Ok(part) => {
                self.is_answered.store(true, Ordering::Relaxed);
                self.calls.metrics.call_parts.inc();
                self.consumed += 1;
                if part.last {
                    // Whoever handed over the last part has noted that the call has ended.
                    match self.reads_log {
                        true => self.end(),
                        false => self.ended = true,
                    }
                    // Whoever returns the answer knows whether such a request is left to its source.
                    if !self.is_redeliverable {
                        self.account.answered(part.outcome);
                    }
                    // A bridge reports that its attached server has not executed the request.
                    if part.outcome == CallOutcome::Unavailable && self.consumed == 1 {
                        self.sent_calls.iter().for_each(SentCalls::take_back);
                    }
                } else {
                    self.extend_deadline(Instant::now());
                    self.cancel.note_part(&part.body);
                }
                Ok(part)
            }
            Err(CallError::Draining) if self.can_be_handed_off() => {
                self.sent_calls.iter().for_each(SentCalls::hand_off);
                Err(self.fail(CallError::HandedOff))
            }
            // Nobody receives the answer, and whoever repeats the request may have the work done twice.
            Err(CallError::Draining) if self.may_have_arrived() => {
                Err(self.fail(CallError::Drained))
            }
            Err(error) => Err(self.fail(error)),
        })
    }

    /// Sets the deadlines after a part: the answer comes in parts, whether or not that was expected.
    fn extend_deadline(&mut self, arrived: Instant) {
        self.timeout = self.part_timeout;
        self.last_deadline = self.begun_deadline;
        let next = if std::mem::take(&mut self.is_asking) {
            self.calls.limits.question_timeout
        } else {
            self.timeout
        };
        self.deadline = self.deadline.max(arrived + next);
    }

    /// How many parts were collected for the caller, who gets only one answer, and when the last part arrived.
    fn collected(&self) -> Option<(u32, Instant)> {
        if self.reads_log {
            return None;
        }
        self.calls.pending.request(self.id.call)?.collected()
    }

    /// Whether there is time left, because parts were collected for the caller since the deadline was set.
    fn has_time_left(&mut self) -> bool {
        if let Some((_, arrived)) = self.collected() {
            self.extend_deadline(arrived);
        }
        Instant::now() < self.next_deadline()
    }

    async fn receive(&mut self, until: Option<Instant>) -> Result<Part, CallError> {
        loop {
            let deadline = self.next_deadline();
            let deadline = until.map_or(deadline, |until| until.min(deadline));
            let deadline = self.grace.map_or(deadline, |grace| grace.max(deadline));
            let wake = self.gap_deadline.map_or(deadline, |gap| gap.min(deadline));
            tokio::select! {
                biased;
                message = self.parts.recv() => match message.map(|message| *message) {
                    Some(CallerMessage::Part(Ok(part), turn)) => {
                        // A question that the bridge answers itself leaves the deadline as it is: other replicas do
                        // not see it.
                        if let Some(part) = self.route_question(part).await {
                            self.turn = turn;
                            return Ok(part);
                        }
                    }
                    Some(CallerMessage::Part(Err(error), turn)) => {
                        self.turn = turn;
                        return Err(error);
                    }
                    Some(CallerMessage::ClientAnswer(answer)) if self.is_answer(&answer) => {
                        // Other questions keep their time.
                        if self.open_questions.is_empty() {
                            self.deadline = Instant::now() + self.timeout;
                        }
                        self.send_to_agent(answer).await;
                    }
                    Some(CallerMessage::ClientAnswer(_)) => {
                        tracing::debug!(call = %self.id.call, "an MCP client has answered a question twice");
                    }
                    Some(CallerMessage::Waiting) => {
                        self.gap_deadline.get_or_insert_with(|| Instant::now() + GAP_TIMEOUT);
                    }
                    // The channel closes without a last part only if the caller left no room for a part.
                    None => return Err(self.lost_by_outage().unwrap_or(CallError::SlowCaller)),
                },
                published = self.publishing.decided() => self.note(&published),
                () = tokio::time::sleep_until(wake.into()) => self.wake_up((wake, deadline), until)?,
            }
        }
    }

    /// Does what is due at `wake`. Fails if that is the deadline, and there is no reason to wait longer.
    fn wake_up(
        &mut self,
        (wake, deadline): (Instant, Instant),
        until: Option<Instant>,
    ) -> Result<(), CallError> {
        let (now, is_over) = (Instant::now(), wake == deadline);
        // The caller may wait for a shorter time than the call may take.
        let is_late = now >= self.next_deadline();
        if is_late && self.has_time_left() {
            return Ok(());
        }
        // Parts that came in time may still be unread.
        if is_over && now.saturating_duration_since(wake) >= STALLED {
            self.grace = Some(now + STALLED);
            return Ok(());
        }
        let released = self.skip_missing(is_late);
        // If the call is no longer pending (`HandOver::Late`), its end is being delivered right now.
        if is_over && released == HandOver::Nothing {
            let lost = is_late.then(|| self.lost_by_outage()).flatten();
            return Err(lost.unwrap_or_else(|| self.timeout_error(until)));
        }
        if released == HandOver::Over && !self.calls.pending.contains(self.id.call) {
            self.note_ended();
        }
        Ok(())
    }

    /// Releases the records that wait for one which has not arrived in time, or not before the end of the call.
    fn skip_missing(&mut self, is_late: bool) -> HandOver {
        self.gap_deadline = None;
        if self.reads_log {
            // Whoever records the answer has put its records in order.
            return HandOver::Nothing;
        }
        let (now, mut wait_until, mut skipped) = (Instant::now(), None, None);
        let released = self
            .calls
            .pending
            .hand_over(self.id.call, |request, progress| {
                let (number, since) = progress.missing?;
                let until = since + GAP_TIMEOUT;
                if now < until && !is_late {
                    // Another one than that for which the timer was set.
                    wait_until = Some(until);
                    return None;
                }
                skipped = Some(number);
                let parts = render::released(request, progress);
                progress.note_missing(now);
                (!parts.is_empty()).then_some(Ok(parts))
            });
        self.gap_deadline = wait_until;
        if let Some(number) = skipped
            && let Some(suppressed) = self.calls.gaps.allow()
        {
            let agent = self.cancel.target().map(Text::as_str);
            tracing::warn!(call = %self.id.call, agent, sequence = number, suppressed, "an E2A record of an answer is missing: the answer goes on without it");
        }
        released
    }

    /// The part for the caller; `None` for a question that the bridge has answered itself.
    async fn route_question(&mut self, part: Part) -> Option<Part> {
        if !part.is_question {
            return Some(self.rename_cancel(part));
        }
        // A caller that is not a client of MCP cannot be asked.
        let client = self.client.unwrap_or_default();
        let limits = self.calls.rules().limits;
        match client.question_in(self.id, &part.body, &limits) {
            // Nobody can answer an unreadable question.
            None => {
                let agent = self.cancel.target().map(Text::as_str);
                self.calls
                    .note_refused_question((self.id.call, agent), &Text::from_static("unreadable"));
                None
            }
            Some(Question::Client { question, own }) => {
                self.is_asking = true;
                if self.open_questions.len() >= MAX_QUESTIONS {
                    self.open_questions.remove(0);
                }
                self.open_questions.push(own);
                self.note_questions();
                let body = question;
                Some(Part { body, ..part })
            }
            Some(Question::Agent(answer)) => {
                self.send_to_agent(answer).await;
                None
            }
            Some(Question::Refused { error, method }) => {
                let agent = self.cancel.target().map(Text::as_str);
                self.calls
                    .note_refused_question((self.id.call, agent), &method);
                self.send_to_agent(error).await;
                None
            }
        }
    }

    /// The part for the caller. If it cancels an open question, the question is closed, and the part gets the id that
    /// the client knows.
    fn rename_cancel(&mut self, part: Part) -> Part {
        if self.open_questions.is_empty() || part.last {
            return part;
        }
        let limits = self.calls.rules().limits;
        let Some((own, body)) = cancelled_question(self.id, &part.body, &limits) else {
            return part;
        };
        let Some(index) = self.open_questions.iter().position(|open| *open == own) else {
            return part;
        };
        self.open_questions.remove(index);
        self.note_questions();
        if self.open_questions.is_empty() {
            // The agent no longer waits for the client.
            self.deadline = Instant::now() + self.timeout;
        }
        Part { body, ..part }
    }

    /// Whether a caller's answer is the first one to a question of this call.
    fn is_answer(&mut self, answer: &Bytes) -> bool {
        let question = answered_question(answer, &self.calls.rules().limits);
        let open = &mut self.open_questions;
        let index = question.and_then(|question| open.iter().position(|own| *own == question));
        let is_answer = index.map(|index| open.remove(index)).is_some();
        self.note_questions();
        is_answer
    }

    fn note_questions(&self) {
        let is_open = !self.open_questions.is_empty();
        self.has_question.store(is_open, Ordering::Relaxed);
    }

    /// Sends a message to the destination of the request. The publisher counts and logs failures.
    async fn send_to_agent(&mut self, answer: Bytes) {
        let copy = self.calls.follow_up_copy(&self.cancel, &answer, "client");
        let copies = copy.into_iter().collect();
        Box::pin(self.calls.publish_in_background(copies, self.last_deadline)).await;
    }

    /// The error if no answer has arrived for a caller who waits no longer than `until`. It names the agent and, if the
    /// bus has confirmed the request, its destination.
    fn timeout_error(&self, until: Option<Instant>) -> CallError {
        let (calls, copy) = (&self.calls, self.cancel.original());
        let parts = self.consumed + self.collected().map_or(0, |(parts, _)| parts);
        let cut = until.filter(|until| *until < self.next_deadline());
        let is_unended = parts > 0 && (cut.is_some() || Instant::now() >= self.last_deadline);
        let limit = cut.unwrap_or(self.last_deadline);
        let limit = limit.saturating_duration_since(self.account.started());
        let destination = || copy.map(|copy| calls.name_of(copy)).unwrap_or_default();
        let cause = copy.and_then(|copy| calls.why_unpublished(copy));
        let request = calls.pending.request(self.id.call);
        let rejected = request.as_ref().and_then(|request| request.rejected());
        // A binding notes the confirmation later than the bus gives it. Until then the request counts as possibly
        // confirmed, unless its destination fails now.
        let is_confirmed =
            request.is_none_or(|request| request.is_confirmed.load(Ordering::Relaxed));
        let outage = copy.and_then(|copy| calls.outage(copy.bus));
        let fails = cause.is_some() || outage.is_some();
        let may_be_published =
            self.is_published_here || is_confirmed || !fails || rejected.is_some();
        let is_published =
            may_be_published && self.may_have_arrived() && self.publishing.0.is_none();
        CallError::Timeout(Box::new(NoAnswer {
            after: if is_unended { limit } else { self.timeout },
            agent: self.cancel.target().cloned().unwrap_or_default(),
            request: if !self.open_questions.is_empty() {
                RequestState::Asked
            } else if is_unended {
                let is_longest = cut.is_none() && limit == calls.limits.stream_timeout;
                RequestState::Unended { parts, is_longest }
            } else if parts > 0 {
                RequestState::Begun { parts }
            } else if is_published {
                RequestState::Published(destination().into())
            } else if self.may_have_arrived() {
                RequestState::Unconfirmed(destination().into())
            } else {
                match cause {
                    None if !self.is_published_here => RequestState::Queued,
                    cause => RequestState::Unaccepted(cause),
                }
            },
            rejected,
        }))
    }

    /// Ends the call with an error. The agent gets a cancel, unless the error shows that it is not working on the
    /// request, or that its answer is still wanted.
    fn fail(&mut self, error: CallError) -> CallError {
        let error = match (error, self.cancel.original()) {
            (CallError::NoSubscriber(_), Some(copy)) => {
                CallError::NoSubscriber(self.calls.name_of(copy).into())
            }
            (error, _) => error,
        };
        // Whoever returns the answer knows whether such a request is left to its source.
        if !self.is_redeliverable {
            self.account.failed(&error);
        }
        let unusable = match &error {
            CallError::BadAnswer(why) => Some(why.as_str()),
            CallError::AnswerDropped => Some("there is no memory for it (calls.budget_bytes)"),
            _ => None,
        };
        if unusable.is_some() || matches!(error, CallError::NoSubscriber(_)) {
            self.is_answered.store(true, Ordering::Relaxed);
        }
        if let Some(why) = unusable {
            let agent = self.cancel.target().map(Text::as_str);
            self.calls.log_unusable((self.id.call, agent), why);
        }
        if let Some(sent_calls) = &self.sent_calls
            && self.is_undelivered(&error)
        {
            sent_calls.take_back();
        }
        // With `HandedOff` the agent's work goes on, for another replica.
        let is_not_cancelled = matches!(
            error,
            CallError::HandedOff
                | CallError::Unavailable(_)
                | CallError::NoSubscriber(_)
                | CallError::Moved
                | CallError::AnswerLost(_)
                | CallError::DestinationRefused(_)
                | CallError::Refused(_)
                | CallError::NotConverted(_)
                | CallError::TooLarge(_)
                | CallError::BadAnswer(_)
        );
        // The task of its lane may still hand a request over whose bus has been given up, and is back.
        let may_follow = matches!(error, CallError::Unavailable(_)) && !self.is_published_here;
        if is_not_cancelled && !may_follow {
            self.end();
        } else {
            self.cancel();
        }
        error
    }

    /// Continues with what other replicas record of the answer, because this one has lost the bus. Returns whether they
    /// record it.
    fn continue_from_log(&mut self, cause: &Text) -> bool {
        let Some(recorded) = self.recorded.take() else {
            return false;
        };
        // A request that is not confirmed would be published again, and might be executed twice. If the agent has sent
        // a part, it has the request, whether the bus has confirmed that or not.
        let has_arrived = self.consumed > 0
            || self.publishing.0.is_none()
            || matches!(self.publishing.decided().now_or_never(), Some((_, Ok(()))));
        let Some(parts) = has_arrived.then(|| recorded(self.consumed)).flatten() else {
            return false;
        };
        self.publishing = Publishing(None);
        let agent = self.account.agent();
        self.calls.ended.note_recorded(self.id, agent);
        self.reads_log = true;
        self.outage = Some(cause.clone());
        self.deadline += TAKEOVER;
        self.parts = parts;
        true
    }

    /// The error if the answer ends early, or does not arrive in time, because of an outage.
    fn lost_by_outage(&mut self) -> Option<CallError> {
        self.outage.take().map(CallError::AnswerLost)
    }

    /// Whether no agent can have received the request of a call that failed with this error.
    pub(crate) fn is_undelivered(&self, error: &CallError) -> bool {
        !self.may_have_arrived() || matches!(error, CallError::NoSubscriber(_))
    }

    fn may_have_arrived(&self) -> bool {
        self.may_have_arrived.load(Ordering::Relaxed)
    }

    /// Ends the call, and sends the agent a cancel if it may have received the request. If the request is handed over
    /// right now, its cancel follows it.
    fn cancel(&mut self) {
        // A request that is published here is not handed over any more.
        let is_early = self.is_rpc && !self.is_published_here && !self.may_have_arrived();
        let mut cancel = Some(self.cancel.take());
        if is_early {
            cancel = cancel.and_then(|cancel| self.calls.canceller.keep(cancel));
        }
        self.end();
        if is_early && cancel.is_none() && self.may_have_arrived() {
            cancel = self.calls.canceller.take(self.id.call);
        }
        let is_sent = is_early || (self.is_rpc && self.may_have_arrived());
        if let Some(cancel) = cancel.filter(|_| is_sent) {
            self.calls.canceller.send(cancel);
        }
    }

    /// Drops the parts that wait for the caller. Returns how many.
    pub(crate) fn discard(&mut self) -> usize {
        self.parts.close();
        let waiting = std::iter::from_fn(|| self.parts.try_recv().ok());
        let parts = waiting.filter(|message| matches!(**message, CallerMessage::Part(Ok(_), _)));
        parts.count()
    }

    /// Lets its parts wait in this line.
    pub(crate) fn stand_in(&self, line: Arc<Line>) {
        self.calls.pending.set_line(self.id.call, line);
    }

    /// The place of the current part among the answers to its requester.
    pub(crate) fn take_turn(&mut self) -> Option<Turn> {
        self.turn.take()
    }

    /// The call id.
    #[must_use]
    pub fn call_id(&self) -> CallId {
        self.id.call
    }

    /// The call id, with the token that proves that an answer is for it.
    pub(crate) fn reply_id(&self) -> ReplyId {
        self.id
    }

    /// Never sends the agent a cancel: the request is a cancel itself.
    pub(crate) fn without_cancel(mut self: Box<Self>) -> Box<Self> {
        self.is_rpc = false;
        self
    }

    /// Ends the call without a cancel, because its agent already knows that nobody waits.
    pub(crate) fn close(&mut self) {
        if !self.ended {
            self.end();
            self.account.cancelled();
        }
    }

    fn end(&mut self) {
        self.ended = true;
        // The call itself may still wait in this process, for its first caller.
        if !self.reads_log {
            self.calls.pending.remove(self.id.call);
            self.note_ended();
        }
    }

    /// Records that the call has ended, for the log lines about later answers.
    fn note_ended(&self) {
        self.calls.ended.note(self.id, self.account.agent());
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("id", &self.id)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.ended {
            self.account.cancelled();
            self.cancel();
        }
    }
}

// === impl Publishing ===

impl Publishing {
    /// Waits until the bus has confirmed or refused the copy; forever if there is none. Cancel-safe.
    async fn decided(&mut self) -> Published {
        let Some(under_way) = &mut self.0 else {
            return std::future::pending().await;
        };
        let published = under_way.await;
        self.0 = None;
        published
    }
}

#[cfg(test)]
mod tests;
