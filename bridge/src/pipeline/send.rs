//! Sends the copies of a message: hands them to their buses in order, awaits their confirmations, and retries failed
//! copies or replaces them with dead letters, as [`crate::bus::delivery`] decides.

use std::future::poll_fn;
use std::mem;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use a2abus_transports::{Confirmation, Receipt, TransportError, TransportErrorKind};
use futures_util::FutureExt as _;
use smallvec::SmallVec;
use tokio::task::coop::{consume_budget, unconstrained};
use tokio::time::{Duration, Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use super::state::{Original, Pipeline, Received};
use crate::bus::deadletter::{Reason, Stage, Undelivered};
use crate::bus::delivery::{FailureAction, Holder, Sent};
use crate::bus::outbound::Outgoing;
use crate::calls::callid::shown_topic;
use crate::calls::error::CallError;
use crate::calls::reply::in_place_of_refused;
use crate::clock;
use crate::restart::chain;

/// How often to look for failed messages in the lanes, and for waiting copies and messages that are no longer wanted.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The result of a task that had to wait.
pub(super) enum Done {
    /// The copies of a message were handed to their buses.
    Sent(InFlight),
    /// The first failed message is confirmed, except its copies beside a request.
    Recovered(Unconfirmed),
    /// Copies beside requests were sent. Messages that still have copies have to wait again.
    Beside(Vec<Unconfirmed>),
    /// Its lane is left to the next reader of the source.
    Left,
}

/// Signals to the tasks of a lane.
#[derive(Default, Clone)]
pub(super) struct Signals {
    /// Cancelled when a message fails: the task that waits stops, because its message is a later one.
    pub(super) earlier_failed: CancellationToken,
    /// Set while copies beside requests wait: later ones wait behind them.
    pub(super) beside_waits: Arc<AtomicBool>,
}

/// A message while its copies are handed to their buses. Those after the last result remain.
pub(super) struct Sending {
    pub(super) in_flight: InFlight,
    /// When the message was received.
    since: Instant,
    span: Span,
}

/// A message whose copies are unconfirmed.
pub(super) struct InFlight {
    pub(super) lane: u32,
    /// Its number in its lane.
    pub(super) number: u64,
    copies: Vec<Outgoing>,
    /// The result of handing over each of them, in the same order.
    handed: SmallVec<[Handed; 1]>,
    /// When the copies were handed to their buses.
    sent: Instant,
    pub(super) original: Original,
}

/// What is known about a message in flight.
pub(super) enum Known {
    /// All its copies are confirmed, or one has failed.
    First(InFlight),
    /// All its copies are decided.
    Decided(Decided),
}

/// The result for one copy.
struct Handed {
    /// `None` if it was not sent, because an earlier message failed while it waited, or because it is beside a request,
    /// and waits for earlier ones or for its bus.
    result: Option<SendResult>,
    /// Set if the copy was held before.
    holder: Option<Holder>,
}

/// The result of handing a copy to its bus.
enum SendResult {
    Waiting(Confirmation),
    Confirmed,
    /// Its bus accepted it into its queue, and then failed.
    Unconfirmed(TransportError),
    Failed(TransportError),
}

/// A copy that has to be sent again. Without a holder, its destination has not failed: it waits for an earlier message
/// or, beside a request, for its bus.
pub(super) type HeldCopy = (Outgoing, Option<Holder>);

/// A message with copies that have to be sent again.
pub(super) struct Unconfirmed {
    /// Its number in its lane.
    pub(super) number: u64,
    pub(super) copies: Vec<HeldCopy>,
    pub(super) original: Original,
}

/// The result of the wait for the confirmations of one message.
pub(super) struct Decided {
    pub(super) lane: u32,
    pub(super) number: u64,
    pub(super) original: Original,
    /// The copies to send again.
    pub(super) again: Vec<HeldCopy>,
    /// Why the first of them failed, except those beside a request.
    pub(super) failure: Option<TransportErrorKind>,
}

// === impl Pipeline ===

impl Pipeline {
    /// Hands the copies of a message to their buses as far as that needs no wait. Returns whether all were.
    pub(super) fn hand_over(&self, step: &mut Sending, signals: &Signals) -> bool {
        let Sending {
            in_flight, span, ..
        } = step;
        let InFlight {
            copies,
            handed,
            original,
            ..
        } = in_flight;
        let lacks_reply_reader = |copy: &Outgoing| self.calls.lacks_reply_reader(copy);
        if copies.iter().any(lacks_reply_reader) {
            return false;
        }
        let _span = span.enter();
        copies.retain(|copy| {
            let is_wanted = self.is_wanted(copy);
            if !is_wanted {
                self.unwanted(copy, original);
            }
            is_wanted
        });
        for copy in &*copies {
            if self.waits_beside(copy, signals) {
                handed.push(Handed::unsent(None));
                continue;
            }
            // A copy that would have to wait is not sent here, so the work is limited by the messages received at once.
            let result = unconstrained(self.publisher.send(copy)).now_or_never();
            handed.push(match result {
                Some(result) => self.handed(copy, result, None),
                None if copy.is_beside => Handed::unsent(None),
                None => return false,
            });
        }
        true
    }

    /// Whether a copy beside a request is not sent now, so that its bus does not delay calls: the bus is down, or earlier
    /// such copies of the lane wait.
    fn waits_beside(&self, copy: &Outgoing, signals: &Signals) -> bool {
        let beside_waits = || signals.beside_waits.load(Ordering::Relaxed);
        copy.is_beside && (beside_waits() || self.calls.outage(copy.bus).is_some())
    }

    /// How the destination of a copy fails, as far as is known.
    pub(super) fn failure(&self, copy: &Outgoing) -> Option<TransportErrorKind> {
        let known = self.publisher.known_failure(copy);
        let known = known.map(|error| error.kind());
        known.or_else(|| {
            let outage = self.calls.outage(copy.bus);
            outage.map(|_| TransportErrorKind::Disconnected)
        })
    }

    /// Records the result of a hand-over. A copy may arrive before it is confirmed, so that a cancel has to follow it.
    fn handed(
        &self,
        copy: &Outgoing,
        result: Result<Confirmation, TransportError>,
        holder: Option<Holder>,
    ) -> Handed {
        if result.is_ok() {
            self.calls.note_published(copy);
        }
        Handed::of(result, holder)
    }

    /// Hands over the remaining copies of a message, until an earlier message fails. A request is handed over last,
    /// once the bridge reads its reply topic: the agent may answer at once.
    pub(super) async fn finish(&self, step: Sending, signals: Signals) -> (u32, Done) {
        let Sending {
            mut in_flight,
            since,
            span,
        } = step;
        let publish = async {
            let left = in_flight.copies.split_off(in_flight.handed.len());
            let lacks_reply_reader = |copy: &Outgoing| self.calls.lacks_reply_reader(copy);
            let (not_ready, ready): (Vec<_>, Vec<_>) =
                left.into_iter().partition(lacks_reply_reader);
            let fresh = |copy| (copy, None);
            let ready = ready.into_iter().map(fresh);
            self.publish(ready, &mut in_flight, &signals).await;
            if !not_ready.is_empty() {
                tokio::select! {
                    () = self.calls.wait_for_reply_readers(&not_ready, since) => {}
                    () = self.until_unwanted(&not_ready) => {}
                }
                let not_ready = not_ready.into_iter().map(fresh);
                self.publish(not_ready, &mut in_flight, &signals).await;
            }
        };
        publish.instrument(span).await;
        (in_flight.lane, Done::Sent(in_flight))
    }

    /// Sends the failed copies again, until an earlier message fails.
    pub(super) async fn resend(
        &self,
        lane: u32,
        failed: Unconfirmed,
        signals: Signals,
    ) -> (u32, Done) {
        let Unconfirmed {
            number,
            copies,
            original,
        } = failed;
        let mut in_flight = InFlight::new(lane, number, Vec::new(), original);
        let copies = copies.into_iter();
        self.publish(copies, &mut in_flight, &signals).await;
        (lane, Done::Sent(in_flight))
    }

    /// Sends the copies until they are confirmed, except those beside a request.
    pub(super) async fn recover(&self, lane: u32, mut failed: Unconfirmed) -> (u32, Done) {
        let is_beside = |(copy, _): &HeldCopy| copy.is_beside;
        let (beside, copies) = failed.copies.into_iter().partition(is_beside);
        self.until_all_confirmed(copies, &failed.original).await;
        failed.copies = beside;
        (lane, Done::Recovered(failed))
    }

    /// Sends the copies of messages that wait only for copies beside a request: those of the first message until they
    /// are confirmed, and then the others, more and more at once, until one fails.
    pub(super) async fn recover_beside(
        &self,
        lane: u32,
        mut first: Unconfirmed,
        rest: Vec<Unconfirmed>,
    ) -> (u32, Done) {
        let copies = mem::take(&mut first.copies);
        self.until_all_confirmed(copies, &first.original).await;
        let (mut done, signals) = (vec![first], Signals::default());
        // A full topic would refuse all but the first again and again.
        let (mut rest, mut at_once) = (rest.into_iter(), 1);
        loop {
            let mut sent = Vec::new();
            for message in rest.by_ref().take(at_once) {
                // There may be many, and other lanes have their turn too.
                consume_budget().await;
                let (number, copies) = (message.number, message.copies.into_iter());
                let mut in_flight = InFlight::new(lane, number, Vec::new(), message.original);
                self.publish(copies, &mut in_flight, &signals).await;
                let has_failed = in_flight.has_failed_copy();
                sent.push(in_flight);
                if has_failed {
                    break;
                }
            }
            let mut are_confirmed = !sent.is_empty();
            for in_flight in sent {
                let decided = self.confirm(in_flight).await;
                are_confirmed &= decided.again.is_empty();
                done.push(Unconfirmed {
                    number: decided.number,
                    copies: decided.again,
                    original: decided.original,
                });
            }
            if !are_confirmed {
                break;
            }
            at_once *= 2;
        }
        done.extend(rest);
        (lane, Done::Beside(done))
    }

    async fn until_all_confirmed(&self, copies: Vec<HeldCopy>, original: &Original) {
        for (copy, holder) in copies {
            let is_beside = copy.is_beside;
            self.until_confirmed(copy, original).await;
            if let Some(holder) = holder
                && !is_beside
                && !original.is_current()
            {
                holder.moved();
            }
        }
    }

    /// Whether a copy that has waited should still be sent: not if it has expired, or if its call has ended.
    pub(super) fn is_wanted(&self, copy: &Outgoing) -> bool {
        if copy.dead_letter.is_some() {
            return true;
        }
        let has_ended = |call| self.calls.has_ended(call);
        !copy.expires.is_some_and(clock::is_over) && !copy.awaited_call().is_some_and(has_ended)
    }

    /// Waits until none of these copies is wanted.
    async fn until_unwanted(&self, copies: &[Outgoing]) {
        while copies.iter().any(|copy| self.is_wanted(copy)) {
            sleep(CHECK_INTERVAL).await;
        }
    }

    /// Counts and logs a copy that is no longer wanted, except if another replica sends it.
    pub(super) fn unwanted(&self, copy: &Outgoing, original: &Original) {
        // A copy that is still wanted is left to the next reader with its message.
        if has_moved(copy, original) || self.is_wanted(copy) {
            // If this replica has read the request again, that one waits for the answer to this one, and gets the
            // error.
            if let Some(call) = copy.awaited_call() {
                self.calls.pending().fail_unsent(call, CallError::Moved);
            }
            return tracing::debug!(
                topic = %shown_topic(copy.address.topic.as_str()),
                "a copy is not sent again, because its partition has moved"
            );
        }
        let is_expired = copy.expires.is_some_and(clock::is_over);
        if copy.may_have_arrived && copy.is_awaited {
            // Its requester has got the answer, or the error of a call without an answer.
            return tracing::debug!(
                topic = %shown_topic(copy.address.topic.as_str()), is_expired,
                "a request is not sent again: its call has ended, and it may have arrived"
            );
        }
        let reason = if is_expired { "expired" } else { "call_ended" };
        let of = Undelivered {
            agent: copy.agent.as_ref(),
            call: copy.call.clone(),
            ..original.undelivered()
        };
        self.intake.dead_letters.dropped(&of, reason);
    }

    /// Hands the copies that are still wanted to their buses, in order. Waits only while a bus accepts nothing and the
    /// copy is wanted, and only until an earlier message of the lane fails: that message has to be sent again first.
    /// Does not wait for a copy beside a request.
    async fn publish(
        &self,
        copies: impl Iterator<Item = HeldCopy>,
        in_flight: &mut InFlight,
        signals: &Signals,
    ) {
        for (copy, holder) in copies {
            let has_moved = has_moved(&copy, &in_flight.original);
            if has_moved || !self.is_wanted(&copy) {
                self.unwanted(&copy, &in_flight.original);
                if let Some(holder) = holder.filter(|_| has_moved) {
                    holder.moved();
                }
                continue;
            }
            let handed = if copy.is_beside {
                let send = || unconstrained(self.publisher.send(&copy)).now_or_never();
                let waits = self.waits_beside(&copy, signals);
                match (!waits).then(send).flatten() {
                    Some(result) => self.handed(&copy, result, holder),
                    None => Handed::unsent(holder),
                }
            } else {
                tokio::select! {
                    biased;
                    () = signals.earlier_failed.cancelled() => Handed::unsent(holder),
                    result = self.publisher.send(&copy) => self.handed(&copy, result, holder),
                    () = self.until_unwanted(slice::from_ref(&copy)) => {
                        self.unwanted(&copy, &in_flight.original);
                        continue;
                    }
                }
            };
            in_flight.copies.push(copy);
            in_flight.handed.push(handed);
        }
        in_flight.sent = Instant::now();
    }

    /// Whether a copy has failed, as far as is known, and has to be sent again before later messages. Copies beside a
    /// request never have to.
    pub(super) fn holds(&self, in_flight: &InFlight) -> bool {
        let is_hold = |copy: &Outgoing, error: &TransportError| {
            self.publisher.failure_action(copy, error) == FailureAction::Hold
        };
        let holds = |(copy, handed): (&Outgoing, &Handed)| match &handed.result {
            None => true,
            Some(SendResult::Failed(error)) => is_hold(copy, error),
            Some(SendResult::Unconfirmed(error)) => {
                !self.publisher.must_not_repeat(copy, error) && is_hold(copy, error)
            }
            Some(SendResult::Waiting(_) | SendResult::Confirmed) => false,
        };
        let copies = in_flight.copies.iter().zip(&in_flight.handed);
        let mut copies = copies.filter(|(copy, _)| !copy.is_beside);
        copies.any(holds)
    }

    /// Records that every copy of a message is confirmed.
    pub(super) fn record_confirmed(&self, in_flight: InFlight, now: Instant) -> Original {
        for copy in &in_flight.copies {
            self.confirmed(copy, now - in_flight.sent);
        }
        in_flight.original
    }

    fn confirmed(&self, copy: &Outgoing, after: Duration) {
        self.publisher.confirmed(copy, after);
        self.calls.note_confirmed(copy);
    }

    /// Waits for the confirmation of every copy. A copy that can never be delivered becomes a dead letter at once,
    /// which holds no lane.
    pub(super) async fn confirm(&self, in_flight: InFlight) -> Decided {
        let InFlight {
            lane,
            number,
            copies,
            handed,
            sent,
            original,
            ..
        } = in_flight;
        let (mut again, mut failure) = (Vec::new(), None);
        for (copy, handed) in copies.into_iter().zip(handed) {
            if let Err((held, kind)) = self.delivered(copy, handed, sent, &original).await {
                failure = failure.or(kind.filter(|_| !held.0.is_beside));
                again.push(held);
            }
        }
        Decided {
            lane,
            number,
            original,
            again,
            failure,
        }
    }

    /// Waits until a copy, or its replacement, is confirmed. Returns the copy that has to be sent again, if any. A
    /// request that may have arrived, and that must not be sent again or is refused now, is left to its answer or its
    /// deadline.
    async fn delivered(
        &self,
        mut copy: Outgoing,
        handed: Handed,
        mut sent: Instant,
        original: &Original,
    ) -> Result<(), (HeldCopy, Option<TransportErrorKind>)> {
        let Handed { result, holder } = handed;
        let Some(mut result) = result else {
            return Err(((copy, holder), None));
        };
        loop {
            let (error, is_handed_over) = match result.decided().await {
                Ok(()) => {
                    self.confirmed(&copy, sent.elapsed());
                    return Ok(());
                }
                Err(failed) => failed,
            };
            if is_handed_over && self.publisher.must_not_repeat(&copy, &error) {
                self.publisher.unconfirmed(&copy, &error);
                return Ok(());
            }
            copy.may_have_arrived |= is_handed_over && error.leaves_open();
            if self.publisher.failure_action(&copy, &error) == FailureAction::Hold {
                let holder = self.publisher.held(&copy, &error);
                return Err(((copy, Some(holder)), Some(error.kind())));
            }
            self.publisher.refused(&copy, &error);
            let error = match copy.may_have_arrived {
                true if copy.is_awaited => {
                    self.publisher.unconfirmed(&copy, &error);
                    return Ok(());
                }
                true => error.after_unconfirmed(),
                false => error,
            };
            match self.replacement(copy, &error, original) {
                Some(dead_letter) => copy = dead_letter,
                None => return Ok(()),
            }
            sent = Instant::now();
            result = self.publisher.send(&copy).await.into();
        }
    }

    /// Sends a copy, or its replacement, until it is confirmed.
    async fn until_confirmed(&self, copy: Outgoing, original: &Original) {
        let mut copy = Some(copy);
        while let Some(sending) = copy {
            let is_handed_over = AtomicBool::new(sending.may_have_arrived);
            let is_wanted = || self.is_wanted(&sending) && !has_moved(&sending, original);
            let handed_over = || {
                is_handed_over.store(true, Ordering::Relaxed);
                self.calls.note_published(&sending);
            };
            // The bus may not answer for a long time. A copy that may be on its way waits for the result.
            let until_unwanted = async {
                while is_wanted() || is_handed_over.load(Ordering::Relaxed) {
                    sleep(CHECK_INTERVAL).await;
                }
            };
            let publisher = &self.publisher;
            let sent = publisher.until_confirmed_if(&sending, is_wanted, handed_over);
            let sent = tokio::select! {
                biased;
                sent = sent => sent,
                () = until_unwanted => Ok(Sent::NotWanted {
                    may_have_arrived: false,
                }),
            };
            copy = match sent {
                Ok(Sent::Confirmed) => {
                    self.calls.note_confirmed(&sending);
                    None
                }
                Ok(Sent::Unknown) => None,
                Ok(Sent::NotWanted { may_have_arrived }) => {
                    let unwanted = Outgoing {
                        may_have_arrived,
                        ..sending
                    };
                    self.unwanted(&unwanted, original);
                    None
                }
                Err(error) => self.replacement(sending, &error, original),
            };
        }
    }

    /// The replacement for a copy that can never be delivered. Copies are given up only here, and a call that waits for
    /// one (`copy.call`) fails.
    fn replacement(
        &self,
        copy: Outgoing,
        error: &TransportError,
        original: &Original,
    ) -> Option<Outgoing> {
        if copy.dead_letter.is_some() {
            return self.intake.dead_letters.replacement(copy, error);
        }
        self.calls.undeliverable(&copy, error);
        let reason = Reason {
            code: error.kind().as_str(),
            stage: Stage::Publish,
            detail: format!(
                "{}: {}",
                shown_topic(copy.address.topic.as_str()),
                chain(error)
            ),
            unit: copy.unit.as_ref().map(|unit| unit.index),
        };
        let of = Undelivered {
            agent: copy.agent.as_ref(),
            call: copy.call.clone(),
            ..original.undelivered()
        };
        if let Some(error) = in_place_of_refused(&copy, error) {
            self.intake.dead_letters.dropped(&of, "reply_undeliverable");
            return Some(error);
        }
        let (is_beside, body) = (copy.is_beside, copy.unit.map(|unit| unit.bytes));
        let dead_letter = self.intake.dead_letters.dead_letter(&of, body, &reason);
        Some(Outgoing {
            is_beside,
            ..dead_letter
        })
    }
}

/// Whether another reader sends a copy, because its partition has moved. Copies beside a request are sent here too: if
/// this process reads the request again, it sends none. If another one does, they arrive twice.
fn has_moved(copy: &Outgoing, original: &Original) -> bool {
    !copy.is_beside && !original.is_current()
}

// === impl Sending ===

impl Sending {
    pub(super) fn new(lane: u32, number: u64, received: Received) -> Self {
        let Received {
            copies,
            original,
            since,
            span,
        } = received;
        Self {
            in_flight: InFlight::new(lane, number, copies, original),
            since,
            span,
        }
    }
}

// === impl InFlight ===

impl InFlight {
    fn new(lane: u32, number: u64, copies: Vec<Outgoing>, original: Original) -> Self {
        Self {
            lane,
            number,
            copies,
            handed: SmallVec::new(),
            sent: Instant::now(),
            original,
        }
    }

    /// Whether a copy has failed, as far as is known.
    pub(super) fn has_failed_copy(&self) -> bool {
        self.handed.iter().any(Handed::has_failed)
    }

    /// Whether it has copies beside a request.
    pub(super) fn has_beside(&self) -> bool {
        self.copies.iter().any(|copy| copy.is_beside)
    }

    /// Whether one of those has failed, as far as is known.
    pub(super) fn lacks_beside(&self) -> bool {
        let mut copies = self.copies.iter().zip(&self.handed);
        copies.any(|(copy, handed)| copy.is_beside && handed.has_failed())
    }

    /// Waits until every copy is confirmed, or one has failed: a copy for another destination may take long.
    pub(super) async fn known(mut self) -> Self {
        poll_fn(|cx| {
            let mut is_waiting = false;
            for handed in &mut self.handed {
                match handed.poll_confirmation(cx) {
                    Poll::Pending => is_waiting = true,
                    Poll::Ready(()) if matches!(handed.result, Some(SendResult::Confirmed)) => {}
                    Poll::Ready(()) => return Poll::Ready(()),
                }
            }
            match is_waiting {
                true => Poll::Pending,
                false => Poll::Ready(()),
            }
        })
        .await;
        self
    }

    /// Whether every copy is confirmed by now.
    pub(super) fn is_confirmed(&mut self) -> bool {
        let mut handed = self.handed.iter_mut();
        handed.all(|handed| {
            handed.look();
            matches!(handed.result, Some(SendResult::Confirmed))
        })
    }

    /// Whether a copy has failed by now.
    pub(super) fn has_failed(&mut self) -> bool {
        self.handed.iter_mut().for_each(Handed::look);
        self.has_failed_copy()
    }
}

// === impl Handed ===

impl Handed {
    fn of(result: Result<Confirmation, TransportError>, holder: Option<Holder>) -> Self {
        Self {
            result: Some(result.into()),
            holder,
        }
    }

    fn unsent(holder: Option<Holder>) -> Self {
        Self {
            result: None,
            holder,
        }
    }

    /// Whether the copy was not sent, or has failed by now.
    fn has_failed(&self) -> bool {
        matches!(
            self.result,
            None | Some(SendResult::Failed(_) | SendResult::Unconfirmed(_))
        )
    }

    /// Takes the confirmation, if it has come.
    fn look(&mut self) {
        if let Some(SendResult::Waiting(confirmation)) = &mut self.result
            && let Some(confirmed) = confirmation.now()
        {
            self.result = Some(confirmed.into());
        }
    }

    /// Waits for the confirmation, and takes it.
    fn poll_confirmation(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(SendResult::Waiting(confirmation)) = &mut self.result {
            let confirmed = ready!(confirmation.poll_unpin(cx));
            self.result = Some(confirmed.into());
        }
        Poll::Ready(())
    }
}

// === impl SendResult ===

impl SendResult {
    /// Waits for the confirmation. With an error, also returns whether the bus had accepted the copy into its queue.
    async fn decided(self) -> Result<(), (TransportError, bool)> {
        match self {
            Self::Waiting(confirmation) => {
                confirmation.await.map(drop).map_err(|error| (error, true))
            }
            Self::Confirmed => Ok(()),
            Self::Unconfirmed(error) => Err((error, true)),
            Self::Failed(error) => Err((error, false)),
        }
    }
}

impl From<Result<Receipt, TransportError>> for SendResult {
    fn from(confirmed: Result<Receipt, TransportError>) -> Self {
        match confirmed {
            Ok(_) => Self::Confirmed,
            Err(error) => Self::Unconfirmed(error),
        }
    }
}

impl From<Result<Confirmation, TransportError>> for SendResult {
    fn from(handed: Result<Confirmation, TransportError>) -> Self {
        match handed {
            Ok(confirmation) => Self::Waiting(confirmation),
            Err(error) => Self::Failed(error),
        }
    }
}
