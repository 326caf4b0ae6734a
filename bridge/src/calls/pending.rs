//! The table of calls that wait for an answer.
//!
//! No lock of the table is held while an answer is rendered: each call has a lock of its own, which keeps the parts of
//! its answer in order. The task that removes the entry of a call from the table delivers the end of the call.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, PoisonError};
use std::time::Instant;

use a2abus_models::e2a::Fold;
use a2abus_plugin::{Event, Text};
use bytes::Bytes;
use prometheus::IntGauge;
use smallvec::SmallVec;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc};

use super::sync::{AtomicUsize, DashMap, Mutex, MutexGuard};
use crate::budget::{BudgetExhausted, Charge, ClientBudget};
use crate::bus::BusId;
use crate::bus::line::{Line, Turn};
use crate::calls::callid::{CallId, ReplyId};
use crate::calls::error::CallError;
use crate::calls::part::Part;
use crate::calls::reply_source::KnownSources;
use crate::calls::reply_token::Rejection;
use crate::shares::Share;

/// Calls that wait for an answer, by call id.
#[derive(Debug)]
pub struct PendingCalls {
    table: DashMap<CallId, Entry>,
    count: AtomicUsize,
    max: usize,
    emptied: Notify,
    gauge: IntGauge,
}

/// One call that waits for an answer.
#[derive(Debug)]
pub struct Entry {
    /// Sends the parts to the caller.
    pub parts: CallerQueue,
    /// The request, for rendering its answer.
    pub request: Arc<CallRequest>,
    /// The bus of the copy that is to be answered.
    pub bus: Option<BusId>,
    /// Whether the call survives an outage of its bus. Its request is then published later, or its answer may still
    /// arrive.
    pub is_kept: AtomicBool,
    /// The bus that stores the message of the request until it is answered, if one does.
    pub stored_by: Option<BusId>,
    /// Set once an agent may have received the request.
    pub may_have_arrived: Arc<AtomicBool>,
    /// The line of answers to its requester, if that is on the bus.
    pub(crate) line: Option<Arc<Line>>,
    /// The reservations within the limits of the agent and the caller, released with the entry.
    pub shares: Vec<Share<Text>>,
    /// The budget of parts that wait for the caller.
    pub budget: ClientBudget,
    /// The charge of the entry itself.
    pub _charge: Charge,
}

/// The properties of the request that its answer depends on.
#[derive(Debug)]
pub struct CallRequest {
    /// The form of the answer.
    pub form: Form,
    /// Whether the method answers with a stream.
    pub streamed: bool,
    /// The target agent; empty if the request names none.
    pub agent: Text,
    /// The id that the agent repeats in its answer.
    pub id: ReplyId,
    /// The fingerprint of the request as it was published.
    pub fingerprint: Fingerprint,
    /// Whether a binding published the request, and its bus has confirmed it.
    pub is_confirmed: AtomicBool,
    /// The progress so far. Locked while parts are rendered and handed over, so that they keep their order.
    pub progress: Mutex<Progress>,
}

/// The progress of a call.
#[derive(Debug, Default)]
pub struct Progress {
    /// The E2A records, if the agent answers with any.
    pub fold: Option<Fold>,
    /// The missing E2A record that others wait for, and since when.
    pub missing: Option<(u64, Instant)>,
    /// How many parts were collected for a caller of one answer, and when the last one came.
    pub collected: Option<(u32, Instant)>,
    /// How many parts were handed over to the caller, not counting the final one, and when the latest of them came.
    pub handed_over: Option<(u32, Instant)>,
    /// The charge for the records that wait or are collected. It may be larger than they are now.
    pub charge: Option<Charge>,
    /// Whether the end was handed over. Nothing may follow it, even from tasks that found the call earlier.
    pub is_over: bool,
    /// Why the last answer was rejected, if one was.
    pub rejected: Option<Rejection>,
    /// The records of which it has taken the answer, if they may be read again.
    pub(crate) sources: KnownSources,
}

/// A message from the reader of answers to the caller.
#[derive(Debug)]
pub enum CallerMessage {
    /// A part of the answer, or why there is none, and its place among the answers to its requester.
    Part(Result<Part, CallError>, Option<Turn>),
    /// Records wait for an earlier one.
    Waiting,
    /// The client's answer to a question of the agent.
    ClientAnswer(Bytes),
}

/// Sends to a caller. Boxed, because a channel allocates room for 32 messages at once, and most callers get one.
pub type CallerQueue = mpsc::Sender<Box<CallerMessage>>;

/// Which JSON-RPC requests of an agent are questions to the client of its call. Any other request makes the call fail.
/// A request in an E2A record is always a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Questions {
    /// Those that MCP or ACP defines. The bridge refuses them, also for callers that do not speak JSON-RPC.
    Refused,
    /// All. If the call has a session, with this log key, only that session may answer them.
    All(Option<Text>),
}

/// The form of an answer.
#[derive(Debug, Clone)]
pub enum Form {
    /// A JSON-RPC response.
    JsonRpc {
        /// The caller's own id, as its JSON token.
        id: Text,
        /// The caller's own progress token, as its JSON token.
        progress: Option<Text>,
        /// Whether the caller accepts parts that are results. Source: docs/protocols/e2a.md §10.4.
        accepts_parts: bool,
        /// Which requests of the agent are questions, and so parts of the answer.
        questions: Questions,
    },
    /// The agent's message, unchanged.
    Untouched {
        /// Whether the request is of a family. Any data may answer an event of no family.
        has_family: bool,
    },
}

/// Parts of an answer: nearly always one.
pub type Parts = SmallVec<[Part; 1]>;

/// Recognises a message without storing it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    id: Text,
    source: Text,
    body: u64,
}

/// Has random keys, so that nobody can construct two bodies with the same hash.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The result of handing a part over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandOver {
    /// The caller has it.
    Over,
    /// The call has ended.
    Late,
    /// There was nothing to hand over: the message is not an answer.
    Nothing,
}

// === impl Fingerprint ===

impl Fingerprint {
    /// The fingerprint of an event.
    #[must_use]
    pub fn of(event: &Event) -> Self {
        Self {
            id: event.id().clone(),
            source: event.source().clone(),
            body: HASHER.hash_one(event.body()),
        }
    }

    /// The fingerprint of no event, for a request that is not known.
    pub(crate) fn none() -> Self {
        Self {
            id: Text::default(),
            source: Text::default(),
            body: 0,
        }
    }
}

// === impl CallRequest ===

impl CallRequest {
    /// A request whose answer has not begun.
    pub(crate) fn new(
        id: ReplyId,
        form: Form,
        streamed: bool,
        agent: Text,
        fingerprint: Fingerprint,
    ) -> Self {
        Self {
            form,
            streamed,
            agent,
            id,
            fingerprint,
            is_confirmed: AtomicBool::new(false),
            progress: Mutex::default(),
        }
    }

    /// Whether its answer may have several parts, so that nobody would notice a missing one.
    #[must_use]
    pub fn has_parts(&self) -> bool {
        let may_have_parts = matches!(
            &self.form,
            Form::JsonRpc { progress, accepts_parts, .. } if progress.is_some() || *accepts_parts
        );
        self.streamed || may_have_parts
    }

    /// Whether an event is the request itself, as it was published.
    #[must_use]
    pub fn is_request(&self, event: &Event) -> bool {
        self.fingerprint == Fingerprint::of(event)
    }

    /// Why the last answer was rejected, if one was.
    #[must_use]
    pub fn rejected(&self) -> Option<Rejection> {
        self.progress().rejected
    }

    /// How many parts were collected for a caller of one answer, and when the last one came.
    pub(crate) fn collected(&self) -> Option<(u32, Instant)> {
        self.progress().collected
    }

    /// How many parts of the answer came, and when the last one did.
    pub(crate) fn came(&self) -> Option<(u32, Instant)> {
        let progress = self.progress();
        let both = [progress.handed_over, progress.collected];
        let sum = |(some, first): (u32, Instant), (more, second)| {
            (some.saturating_add(more), first.max(second))
        };
        both.into_iter().flatten().reduce(sum)
    }

    /// Records why an answer was rejected.
    pub fn note_rejected(&self, why: Rejection) {
        self.progress().rejected = Some(why);
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        let progress = self.progress.lock();
        progress.unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Progress ===

impl Progress {
    /// Charges the records that wait or are collected.
    fn charge_records(&mut self, budget: &ClientBudget) -> Result<(), BudgetExhausted> {
        let bytes = self.fold.as_ref().map_or(0, Fold::bytes);
        if bytes == 0 {
            self.charge = None;
            return Ok(());
        }
        match &mut self.charge {
            Some(charge) if charge.bytes() >= bytes => {}
            Some(charge) => charge.grow(bytes - charge.bytes())?,
            none => *none = Some(budget.charge(bytes)?),
        }
        Ok(())
    }

    /// Notes how many parts are collected, after the records that had arrived by this time.
    fn note_collected(&mut self, arrived: Instant) {
        let count = self.fold.as_ref().map_or(0, Fold::collected);
        if count > self.collected.map_or(0, |(known, _)| known) {
            self.collected = Some((count, arrived));
        }
    }

    /// Counts the parts that are handed over now. The final part, which ends the call, and questions do not count.
    fn note_handed_over(&mut self, parts: &Parts) {
        let parts = parts.iter().filter(|part| !part.last && !part.is_question);
        let count = u32::try_from(parts.count()).unwrap_or(u32::MAX);
        if count > 0 {
            let before = self.handed_over.map_or(0, |(before, _)| before);
            self.handed_over = Some((before.saturating_add(count), Instant::now()));
        }
    }

    /// Notes which record is missing, and since when, after the records that had arrived by this time.
    pub(crate) fn note_missing(&mut self, arrived: Instant) {
        let missing = self.fold.as_ref().and_then(Fold::missing);
        let known = self.missing.take();
        self.missing = missing.map(|number| {
            let known = known.filter(|(known, _)| *known == number);
            known.unwrap_or((number, arrived))
        });
    }
}

// === impl PendingCalls ===

impl PendingCalls {
    /// An empty table of at most `max` calls; `gauge` shows how many there are.
    #[must_use]
    pub fn new(max: usize, gauge: IntGauge) -> Self {
        Self {
            table: DashMap::new(),
            count: AtomicUsize::new(0),
            max,
            emptied: Notify::new(),
            gauge,
        }
    }

    /// Waits until there are no calls.
    pub async fn until_empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.is_empty() {
                return;
            }
            emptied.await;
        }
    }

    /// Adds a call. Returns `false` if the table is full.
    #[must_use]
    pub fn register(&self, call: CallId, entry: Entry) -> bool {
        let grown = self
            .count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
                (count < self.max).then_some(count + 1)
            });
        if grown.is_err() {
            return false;
        }
        let old = self.table.insert(call, entry);
        debug_assert!(old.is_none(), "call ids are unique");
        self.gauge.inc();
        true
    }

    /// Removes a call. Returns whether it was there.
    pub fn remove(&self, call: CallId) -> bool {
        let removed = self.table.remove(&call).is_some();
        if removed {
            self.gauge.dec();
            if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.emptied.notify_waiters();
            }
        }
        removed
    }

    /// Whether this call is pending.
    #[must_use]
    pub fn contains(&self, call: CallId) -> bool {
        self.table.contains_key(&call)
    }

    /// The agent of a pending call.
    #[must_use]
    pub fn agent_of(&self, call: CallId) -> Option<Text> {
        self.table
            .get(&call)
            .map(|entry| entry.request.agent.clone())
    }

    /// The request of a pending call.
    #[must_use]
    pub fn request(&self, call: CallId) -> Option<Arc<CallRequest>> {
        self.table
            .get(&call)
            .map(|entry| Arc::clone(&entry.request))
    }

    /// The number of calls.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether there are no calls.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Hands parts to the waiting caller. `parts` is called only if the call is pending; it returns `None` if the
    /// message is not an answer. The last part, or an error, removes the call from the table, so nothing is delivered
    /// twice.
    pub fn hand_over(
        &self,
        call: CallId,
        parts: impl FnOnce(&CallRequest, &mut Progress) -> Option<Result<Parts, CallError>>,
    ) -> HandOver {
        let Some((request, to, budget)) = self.table.get(&call).map(|entry| {
            let Entry {
                request,
                parts,
                budget,
                line,
                ..
            } = entry.value();
            let to = (parts.clone(), line.clone());
            (Arc::clone(request), to, budget.clone())
        }) else {
            return HandOver::Late;
        };
        let mut progress = request.progress();
        if progress.is_over {
            return HandOver::Late;
        }
        let Some(rendered) = parts(&request, &mut progress) else {
            return HandOver::Nothing;
        };
        let charged = progress.charge_records(&budget);
        let rendered = rendered.and_then(|parts| match charged {
            Ok(()) => Ok(parts),
            Err(BudgetExhausted) => Err(CallError::AnswerDropped),
        });
        if progress.fold.is_some() {
            let now = Instant::now();
            progress.note_missing(now);
            progress.note_collected(now);
        }
        if progress.missing.is_none() && rendered.as_ref().is_ok_and(Parts::is_empty) {
            return HandOver::Over;
        }
        if let Ok(parts) = &rendered {
            progress.note_handed_over(parts);
        }
        let over = &mut progress.is_over;
        match rendered {
            Err(error) => {
                let turn = to.1.as_ref().map(Line::turn);
                let message = CallerMessage::Part(Err(error), turn);
                self.deliver(call, &to.0, message, true, over)
            }
            Ok(parts) => self.deliver_all(call, &to, &budget, parts, over),
        }
    }

    fn deliver_all(
        &self,
        call: CallId,
        (to, line): &(CallerQueue, Option<Arc<Line>>),
        budget: &ClientBudget,
        parts: Parts,
        over: &mut bool,
    ) -> HandOver {
        if parts.is_empty() {
            return self.deliver(call, to, CallerMessage::Waiting, false, over);
        }
        let mut handed = HandOver::Late;
        for part in parts {
            let body = budget.hold(part.body.clone());
            let last = part.last || body.is_err();
            let part = body.map(|body| Part { body, ..part });
            let part = part.map_err(|BudgetExhausted| CallError::AnswerDropped);
            let turn = line.as_ref().map(Line::turn);
            handed = self.deliver(call, to, CallerMessage::Part(part, turn), last, over);
            if last || handed == HandOver::Late {
                break;
            }
        }
        handed
    }

    fn deliver(
        &self,
        call: CallId,
        to: &CallerQueue,
        message: CallerMessage,
        ends: bool,
        over: &mut bool,
    ) -> HandOver {
        *over = ends;
        // Only the task that removes the entry delivers the end. Of two last parts, one is late.
        if ends && !self.remove(call) {
            return HandOver::Late;
        }
        match to.try_send(Box::new(message)) {
            Ok(()) => HandOver::Over,
            Err(TrySendError::Closed(_)) => HandOver::Late,
            Err(TrySendError::Full(_)) => {
                // The caller finds the channel closed after the parts in it, so it knows that parts are missing.
                *over = true;
                self.remove(call);
                HandOver::Late
            }
        }
    }

    /// Sends a message to the caller of a pending call. Returns whether there is one with room for it.
    pub fn send(
        &self,
        call: CallId,
        message: impl FnOnce(Bytes) -> CallerMessage,
        body: Bytes,
    ) -> bool {
        self.table.get(&call).is_some_and(|entry| {
            let held = entry.budget.hold(body);
            held.is_ok_and(|body| entry.parts.try_send(Box::new(message(body))).is_ok())
        })
    }

    /// Sets the line in which the answer of a call waits for its turn.
    pub(crate) fn set_line(&self, call: CallId, line: Arc<Line>) {
        if let Some(mut entry) = self.table.get_mut(&call) {
            entry.line = Some(line);
        }
    }

    /// Records that the bus has the request of a call. Returns whether the call is pending.
    pub fn note_published(&self, call: CallId) -> bool {
        let entry = self.table.get(&call);
        let entry = entry.inspect(|entry| entry.may_have_arrived.store(true, Ordering::Relaxed));
        entry.is_some()
    }

    /// Records that the bus has confirmed the request of a call, which a binding published.
    pub(crate) fn note_confirmed(&self, call: CallId) {
        if let Some(entry) = self.table.get(&call) {
            entry.request.is_confirmed.store(true, Ordering::Relaxed);
        }
    }

    /// Lets a call survive an outage of its bus.
    pub fn keep(&self, call: CallId) {
        if let Some(entry) = self.table.get(&call) {
            entry.is_kept.store(true, Ordering::Relaxed);
        }
    }

    /// Records that a part of the answer to a call was read on this bus, which stores answers. If the request went to
    /// another bus, the call now survives an outage of that one.
    pub(crate) fn note_stored_part(&self, call: CallId, bus: BusId) {
        if let Some(entry) = self.table.get(&call)
            && entry.bus.is_some_and(|own| own != bus)
        {
            entry.is_kept.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a call waits that survives an outage of its bus.
    pub fn is_kept(&self, call: CallId) -> bool {
        let entry = self.table.get(&call);
        entry.is_some_and(|entry| entry.is_kept.load(Ordering::Relaxed))
    }

    /// Fails a call.
    pub fn fail(&self, call: CallId, error: CallError) -> HandOver {
        self.hand_over(call, |_, _| Some(Err(error)))
    }

    /// Whether a call waits whose request an agent may have received.
    pub(crate) fn may_have_arrived(&self, call: CallId) -> bool {
        let entry = self.table.get(&call);
        entry.is_some_and(|entry| entry.may_have_arrived.load(Ordering::Relaxed))
    }

    /// Fails a call whose request was not handed to a bus.
    pub(crate) fn fail_unsent(&self, call: CallId, error: CallError) {
        let entry = self.table.get(&call);
        if entry.is_some_and(|entry| !entry.may_have_arrived.load(Ordering::Relaxed)) {
            self.fail(call, error);
        }
    }

    /// Fails the calls that match. Returns how many.
    pub fn fail_where(&self, matches: impl Fn(&Entry) -> bool, error: &CallError) -> usize {
        let calls: Vec<CallId> = self
            .table
            .iter()
            .filter(|entry| matches(entry.value()))
            .map(|entry| *entry.key())
            .collect();
        calls
            .into_iter()
            .filter(|call| self.fail(*call, error.clone()) == HandOver::Over)
            .count()
    }
}

#[cfg(test)]
impl Entry {
    /// The entry of a call whose answer is a stream and stays as it is.
    pub(crate) fn of_test(id: ReplyId, parts: CallerQueue, budget: ClientBudget) -> Self {
        let form = Form::Untouched { has_family: false };
        let fingerprint = Fingerprint::none();
        let request = CallRequest::new(id, form, true, Text::default(), fingerprint);
        Self {
            parts,
            request: Arc::new(request),
            bus: None,
            is_kept: AtomicBool::new(false),
            stored_by: None,
            may_have_arrived: Arc::default(),
            line: None,
            shares: Vec::new(),
            _charge: budget.charge(0).unwrap(),
            budget,
        }
    }
}
