//! The answer to one call, as its caller takes it: parts, deadlines, and the cancel when the caller goes away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use a2abus_plugin::Text;
use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_transports::{Health, Transport as _, TransportError};
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

use super::error::{CallError, NoAnswer};
use super::open::Opened;
use super::part::Part;
use super::render;
use super::service::Calls;
use crate::account::Account;
use crate::bus::outbound::Outgoing;
use crate::calls::callid::{CallId, ReplyId};
use crate::calls::cancel::Cancel;
use crate::calls::pending::{CallRequest, CallerMessage, HandOver};
use crate::calls::question::{Abilities, Question};

/// How long records wait for an earlier one that does not come. Source: docs/design.md §5.
const GAP_PATIENCE: Duration = Duration::from_secs(2);

/// The answer to one call as it comes. Dropping it before the last part cancels the call.
#[derive(Debug)]
pub struct Answer {
    id: ReplyId,
    parts: mpsc::Receiver<CallerMessage>,
    /// The copy of the request that is to be answered, while the bus has not confirmed it. None where a binding publishes
    /// it.
    publishing: Publishing,
    /// When the wait for the next part is over.
    deadline: Instant,
    /// When the whole answer must be there.
    last_deadline: Instant,
    /// When records that wait for an earlier one have waited enough.
    gap_deadline: Option<Instant>,
    /// How long the caller waits for a part.
    patience: Duration,
    account: Account,
    ended: bool,
    /// Set once an agent may have the request.
    may_have_arrived: Arc<AtomicBool>,
    /// Whether the request is JSON-RPC: other families know no cancel.
    is_rpc: bool,
    /// The cancel for the agent, if the caller disconnects.
    cancel: Cancel,
    calls: Arc<Calls>,
    reached: Option<SentCalls>,
    /// How many parts the caller has got.
    pub(super) taken: u32,
    /// Whether other replicas can take the answer.
    is_followed: bool,
    /// The questions that the caller supports.
    client: Option<Abilities>,
    /// Whether the part that comes now is a question to the caller.
    is_asking: bool,
}

/// A call that is registered and not yet published.
pub(crate) struct Prepared {
    pub(super) answer: Answer,
    pub(super) copies: Vec<Outgoing>,
}

/// How many calls of one caller an agent may have got. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct SentCalls(Arc<SentCallCounts>);

#[derive(Debug, Default)]
struct SentCallCounts {
    calls: AtomicUsize,
    /// Whether an answer was left to other replicas.
    is_left: AtomicBool,
}

/// A copy of a request, and what became of it.
type Published = (Outgoing, Result<(), TransportError>);

/// A copy that its bus has not confirmed.
struct Publishing(Option<BoxFuture<'static, Published>>);

// === impl Opened ===

impl Opened {
    /// Its answer, to wait for.
    pub(crate) fn answer(self, account: Account, calls: &Arc<Calls>) -> Answer {
        let started = account.started();
        Answer {
            id: self.id,
            parts: self.parts,
            publishing: Publishing(None),
            deadline: started + self.patience,
            last_deadline: started + self.whole,
            gap_deadline: None,
            patience: self.patience,
            account,
            ended: false,
            may_have_arrived: self.may_have_arrived,
            is_rpc: self.is_rpc,
            cancel: self.cancel,
            calls: Arc::clone(calls),
            reached: None,
            taken: 0,
            is_followed: false,
            client: self.client,
            is_asking: false,
        }
    }
}

// === impl Prepared ===

impl Prepared {
    /// The request, and the id that its agent repeats.
    pub(crate) fn asked(&self) -> Option<Arc<CallRequest>> {
        self.answer.calls.pending.asked(self.answer.id.call)
    }

    /// Other replicas know of it, and take its answer if this one stops.
    pub(crate) fn followed(&mut self) {
        self.answer.is_followed = true;
    }

    /// How long its answer may take.
    pub(crate) fn time_left(&self) -> Duration {
        let deadline = self.answer.last_deadline;
        deadline.saturating_duration_since(Instant::now())
    }

    /// As [`Calls::call`].
    pub(crate) async fn publish(self) -> Result<Answer, CallError> {
        let Self { mut answer, copies } = self;
        answer.publish(copies).await?;
        Ok(answer)
    }
}

// === impl SentCalls ===

impl SentCalls {
    /// One more.
    pub(crate) fn add(&self) {
        self.0.calls.fetch_add(1, Ordering::AcqRel);
    }

    /// One less: nobody got it.
    fn take_back(&self) {
        self.0.calls.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether no agent can have got any.
    pub(crate) fn is_nobody(&self) -> bool {
        self.0.calls.load(Ordering::Acquire) == 0
    }

    /// This replica stops before the answer is there; another one takes it.
    fn leave(&self) {
        self.0.is_left.store(true, Ordering::Release);
    }

    /// Whether other replicas are to take the answer.
    pub(crate) fn is_left(&self) -> bool {
        self.0.is_left.load(Ordering::Acquire)
    }
}

// === impl Answer ===

impl Answer {
    /// Counts this call, unless it turns out that no agent can have got it.
    pub(crate) fn counted_by(mut self, reached: &SentCalls) -> Self {
        reached.add();
        self.reached = Some(reached.clone());
        self
    }

    /// An answer that was recorded for another replica, and may take `left` more.
    pub(super) fn resumed(
        call: CallId,
        left: Duration,
        parts: mpsc::Receiver<CallerMessage>,
        account: Account,
        calls: &Arc<Calls>,
    ) -> Self {
        let id = ReplyId { call, token: None };
        let opened = Opened {
            id,
            parts,
            cancel: Cancel::new(id, Dialect::JsonRpc, None, &[]),
            patience: left,
            whole: left,
            is_rpc: false,
            may_have_arrived: Arc::new(AtomicBool::new(true)),
            client: None,
        };
        opened.answer(account, calls)
    }

    /// Whether other replicas can take it.
    pub(crate) fn is_followed(&self) -> bool {
        self.is_followed
    }

    /// How many parts its caller has got.
    pub(crate) fn taken(&self) -> u32 {
        self.taken
    }

    /// Begins to publish the request, and hands to the bus what it takes at once. The rest goes on beside the wait for
    /// the answer, which may well be quicker than the confirmation of its request.
    pub(super) async fn publish(&mut self, copies: Vec<Outgoing>) -> Result<(), CallError> {
        // Whoever watches the buses fails the calls it finds when one goes; this one may have come a moment later.
        if let Some(cause) = self.bus_is_away(&copies) {
            return Err(self.fail(CallError::Unavailable(cause)));
        }
        let mut others = copies;
        let answered = others.iter().position(|copy| copy.call.is_some());
        if let Some(copy) = answered.map(|index| others.remove(index)) {
            let publisher = self.calls.publisher.clone();
            let has_arrived = Arc::clone(&self.may_have_arrived);
            self.publishing = Publishing(Some(Box::pin(async move {
                let handed_over = || has_arrived.store(true, Ordering::Relaxed);
                let published = publisher.for_caller(&copy, handed_over).await;
                (copy, published)
            })));
            if let Some(published) = self.publishing.decided().now_or_never() {
                self.note(&published);
            }
        }
        if !others.is_empty() {
            Box::pin(self.calls.publish_beside(others, self.last_deadline)).await;
        }
        Ok(())
    }

    fn bus_is_away(&self, copies: &[Outgoing]) -> Option<Text> {
        let buses = self.calls.outbound.buses();
        copies.iter().find_map(|copy| {
            let health = buses.get(copy.bus)?.transport.health();
            let health = health.borrow();
            match &*health {
                Health::Up => None,
                Health::Connecting(cause) | Health::Down(cause) => Some(cause.clone()),
            }
        })
    }

    /// Notes what became of a copy. When none is left, the call fails: its error comes as a piece of the answer.
    fn note(&self, (copy, published): &Published) {
        if let Err(error) = published {
            self.calls.undeliverable(copy, error);
        }
    }

    /// The next part; after the last one, or an error, `None`. Waits until the deadline of the call at most.
    /// Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Part, CallError>> {
        if self.ended {
            return None;
        }
        let received = self.receive().await;
        Some(match received {
            Ok(part) => {
                self.calls.metrics.call_parts.inc();
                self.taken += 1;
                // Whoever is asked may take as long as the whole answer may.
                self.deadline = if std::mem::take(&mut self.is_asking) {
                    self.last_deadline
                } else {
                    self.deadline.max(Instant::now() + self.patience)
                };
                if part.last {
                    self.end();
                    self.account.answered(part.outcome);
                } else {
                    self.cancel.note_part(&part.body);
                }
                Ok(part)
            }
            Err(error) => {
                if matches!(error, CallError::Draining) && self.is_followed {
                    self.reached.iter().for_each(SentCalls::leave);
                }
                Err(self.fail(error))
            }
        })
    }

    async fn receive(&mut self) -> Result<Part, CallError> {
        loop {
            let deadline = self.deadline.min(self.last_deadline);
            let wake = self.gap_deadline.map_or(deadline, |gap| gap.min(deadline));
            tokio::select! {
                biased;
                piece = self.parts.recv() => match piece {
                    Some(CallerMessage::Part(Ok(part))) => match self.questioned(part).await {
                        Some(part) => return Ok(part),
                        None => self.deadline = Instant::now() + self.patience,
                    },
                    Some(CallerMessage::Part(Err(error))) => return Err(error),
                    Some(CallerMessage::ClientAnswer(answer)) => {
                        self.deadline = Instant::now() + self.patience;
                        self.say_to_agent(answer).await;
                    }
                    Some(CallerMessage::Waiting) => {
                        self.gap_deadline.get_or_insert_with(|| Instant::now() + GAP_PATIENCE);
                    }
                    // The channel closes without an end only when the caller left no room for a part.
                    None => return Err(CallError::SlowCaller),
                },
                published = self.publishing.decided() => self.note(&published),
                () = tokio::time::sleep_until(wake.into()) => {
                    // The missing record does not come: what waited for it is what there is.
                    self.gap_deadline = None;
                    let is_over = wake == deadline;
                    let released = self.calls.pending.hand_over(self.id.call, |asked, progress| {
                        let parts = render::released(asked, progress);
                        (!parts.is_empty()).then_some(Ok(parts))
                    });
                    // Who is late has met somebody who is delivering the end at this moment.
                    if released == HandOver::Nothing && is_over {
                        return Err(self.silence());
                    }
                }
            }
        }
    }

    /// A part as the caller gets it; `None` for a question that the bridge has answered.
    async fn questioned(&mut self, part: Part) -> Option<Part> {
        let Some(client) = self.client.filter(|_| !part.last) else {
            return Some(part);
        };
        let limits = self.calls.rules().limits;
        match client.asked(self.id, &part.body, &limits) {
            None => Some(part),
            Some(Question::Client(body)) => {
                self.is_asking = true;
                Some(Part { body, ..part })
            }
            Some(Question::Agent(answer)) => {
                self.say_to_agent(answer).await;
                None
            }
        }
    }

    /// Sends something to the place where the request went. Failures are counted and logged there.
    async fn say_to_agent(&mut self, answer: Bytes) {
        let copies = self.calls.copies_beside(&self.cancel, &answer, "client");
        Box::pin(self.calls.publish_beside(copies, self.last_deadline)).await;
    }

    /// Ends the call because its caller waits no longer.
    pub(crate) fn out_of_time(&mut self) -> CallError {
        self.fail(self.silence())
    }

    /// Nobody has answered: whom the request is for, and where it is if the bus has confirmed it.
    fn silence(&self) -> CallError {
        let (calls, copies) = (&self.calls, self.cancel.copies());
        let is_published = self.may_have_arrived() && self.publishing.0.is_none();
        let asked = || copies.iter().filter(|copy| copy.call.is_some());
        let places = || asked().map(|copy| calls.name_of(copy));
        let cause = || copies.iter().find_map(|copy| calls.why_unpublished(copy));
        CallError::Timeout(Box::new(NoAnswer {
            after: self.patience,
            agent: self.cancel.target().cloned().unwrap_or_default(),
            published: is_published.then(|| places().collect::<Vec<_>>().join(", ").into()),
            cause: (!is_published).then(cause).flatten(),
            rejected: self
                .calls
                .pending
                .asked(self.id.call)
                .and_then(|asked| asked.rejected()),
        }))
    }

    /// Ends the call with an error. The agent that has the request gets a cancel, unless it knows better.
    fn fail(&mut self, error: CallError) -> CallError {
        self.end();
        self.account.failed(&error);
        if let Some(reached) = &self.reached
            && (!self.may_have_arrived() || error.is_nobody_there())
        {
            reached.take_back();
        }
        let knows = matches!(
            error,
            CallError::Unavailable(_) | CallError::NotTaken(_) | CallError::BadAnswer(_)
        );
        if !knows {
            self.cancel();
        }
        error
    }

    fn may_have_arrived(&self) -> bool {
        self.may_have_arrived.load(Ordering::Relaxed)
    }

    /// Sends the agent a cancel, if it may have the request.
    fn cancel(&mut self) {
        if self.is_rpc && self.may_have_arrived() {
            self.calls.canceller.send(self.cancel.take());
        }
    }

    /// The identity of the call.
    #[must_use]
    pub fn call_id(&self) -> CallId {
        self.id.call
    }

    /// Ends the call without a cancel: its agent knows that nobody waits for it.
    pub(crate) fn close(mut self) {
        if !self.ended {
            self.end();
            self.account.cancelled();
        }
    }

    fn end(&mut self) {
        self.ended = true;
        self.calls.pending.remove(self.id.call);
        self.calls.ended.note(self.id, self.account.agent());
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.ended {
            self.end();
            self.account.cancelled();
            self.cancel();
        }
    }
}

// === impl Publishing ===

impl Publishing {
    /// Waits until the bus has decided about the copy; for ever where there is none. Cancel-safe.
    async fn decided(&mut self) -> Published {
        let Some(under_way) = &mut self.0 else {
            return std::future::pending().await;
        };
        let published = under_way.await;
        self.0 = None;
        published
    }
}

impl std::fmt::Debug for Publishing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Publishing")
            .field(&self.0.is_some())
            .finish()
    }
}
