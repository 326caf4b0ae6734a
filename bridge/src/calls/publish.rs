//! Publishes the requests, notifications and cancels of callers, by the delivery policy ([`crate::bus::delivery`]) and
//! until a deadline.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use a2abus_plugin::{Event, Hint, Text, Unit, decode, extension};
use a2abus_transports::content_mode::ProtocolBinding;
use a2abus_transports::{Disposition, Header, TransportError};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::timeout_at;
use tokio_util::sync::CancellationToken;

use super::error::{CallError, NoAnswer, RequestState};
use super::service::{Calls, Request};
use crate::account::{self, Line};
use crate::bus::BusId;
use crate::bus::outbound::Outgoing;
use crate::calls::callid::CallId;
use crate::calls::cancel::{BusQueue, Cancel};
use crate::calls::pending::Entry;
use crate::names::put;

// === impl Calls ===

impl Calls {
    /// Publishes a notification. The bus has confirmed it when this returns.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn notify(&self, request: Request) -> Result<(), CallError> {
        self.notify_with(request, |_| ()).await
    }

    /// The same. `may_arrive` is called with true when a bus has accepted a copy into its queue, because it may arrive
    /// from then on, even if this returns an error. It is called with false if the bus says that it refused that copy.
    pub(crate) async fn notify_with(
        &self,
        mut request: Request,
        may_arrive: impl Fn(bool) + Send + Sync,
    ) -> Result<(), CallError> {
        let started = request.arrived;
        let (call, caller) = (self.id_of(&request)?, request.caller.clone());
        let timeout = self.timeout_for(request.timeout);
        let (headers, key) = (std::mem::take(&mut request.headers), request.key.take());
        let method = request.method_in_data();
        let event = self.event(request)?;
        let with = (key.as_ref(), &*headers);
        let sent = self.publish_all(&event, with, (timeout, started + timeout), &may_arrive);
        let sent = sent.await;
        let line = Line {
            call,
            caller: &caller,
            agent: &account::agent_of(&event),
            method: &account::method_of(&event, method),
            outcome: sent
                .as_ref()
                .map_or_else(CallError::reason_code, |()| "sent"),
            took: started.elapsed(),
        };
        line.write();
        sent
    }

    async fn publish_all(
        &self,
        event: &Event,
        (key, headers): (Option<&Bytes>, &[Header]),
        (timeout, deadline): (Duration, Instant),
        may_arrive: &(impl Fn(bool) + Sync),
    ) -> Result<(), CallError> {
        let copies = {
            let rules = self.rules();
            let event_id = event.id().clone().into();
            let from = Self::of_caller(&rules, &event_id, key, headers);
            self.outbound.route(&mut event.clone(), from, None)
        };
        let copies = copies.map_err(|error| CallError::unroutable(&error, event))?;
        if let Some(cause) = copies.first().and_then(|copy| self.outage(copy.bus)) {
            return Err(CallError::Unavailable(cause));
        }
        // All at once, so that a destination that is down keeps no copy from the others.
        let published = copies.iter().enumerate().map(|(index, copy)| {
            let until = (timeout, deadline);
            self.publish_one((index, copy), event, until, may_arrive)
        });
        let errors = join_all(published).await.into_iter();
        let errors = errors.filter_map(Result::err);
        // A refusal names what an operator has to mend. It matters more than a timeout.
        let first = errors.min_by_key(|error| matches!(error, CallError::Timeout(_)));
        first.map_or(Ok(()), Err)
    }

    /// Publishes the copy of a notification with this index. The first one is for the destination that would answer a
    /// request. As for a request, the outage of a bus that gets another copy does not concern the sender, unless that bus
    /// has the copy already and has not confirmed it.
    async fn publish_one(
        &self,
        (index, copy): (usize, &Outgoing),
        event: &Event,
        (timeout, deadline): (Duration, Instant),
        may_arrive: &(impl Fn(bool) + Sync),
    ) -> Result<(), CallError> {
        let attempts = AtomicU32::new(0);
        let handed_over = || {
            if attempts.fetch_add(1, Ordering::Relaxed) == 0 {
                may_arrive(true);
            }
        };
        // Pinned, so that the reason for which it waits is still known when the time is over.
        let mut published = pin!(self.publisher.for_call(copy, handed_over, None));
        let sent = tokio::select! {
            biased;
            cause = self.until_outage(copy.bus) => Err(cause),
            sent = timeout_at(deadline.into(), published.as_mut()) => Ok(sent),
        };
        let sent = match sent {
            Ok(sent) => sent,
            // It may still be confirmed.
            Err(_) if attempts.load(Ordering::Relaxed) > 0 => {
                timeout_at(deadline.into(), published).await
            }
            Err(cause) if index == 0 => return Err(CallError::Unavailable(cause)),
            Err(_) => {
                let later = vec![copy.clone()];
                Box::pin(self.publish_in_background(later, deadline)).await;
                return Ok(());
            }
        };
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                // An earlier attempt may have arrived, although it was not confirmed.
                let is_only = attempts.load(Ordering::Relaxed) == 1;
                if is_only && error.disposition() != Disposition::Retry {
                    may_arrive(false);
                }
                Err(self.refused_by_bus(&error, copy))
            }
            Err(_) => Err(CallError::Timeout(Box::new(
                self.unpublished(timeout, event, copy),
            ))),
        }
    }

    fn unpublished(&self, after: Duration, event: &Event, copy: &Outgoing) -> NoAnswer {
        let request = match self.why_unpublished(copy) {
            None => RequestState::Unconfirmed(self.name_of(copy).into()),
            why => RequestState::Unaccepted(why),
        };
        NoAnswer::unpublished(after, event, request)
    }

    /// Why a copy waits for its destination, as far as a caller may know. Only the kind of the error is shown, because
    /// the text of the client may reveal internals.
    pub(super) fn why_unpublished(&self, copy: &Outgoing) -> Option<Text> {
        let error = self.publisher.known_failure(copy)?;
        let (name, kind) = (self.name_of(copy), error.kind().as_str());
        Some(format!("{name}: {kind}").into())
    }

    /// The destination of a copy, such as `Kafka topic agents.weather`.
    pub(super) fn name_of(&self, copy: &Outgoing) -> String {
        let bus = self.outbound.buses().get(copy.bus);
        let kind = match bus.map(|bus| bus.transport.binding()) {
            Some(ProtocolBinding::Kafka) => "Kafka topic",
            Some(ProtocolBinding::Nats) => "NATS subject",
            _ => "topic",
        };
        format!("{kind} {}", copy.address.topic)
    }

    fn refused_by_bus(&self, error: &TransportError, copy: &Outgoing) -> CallError {
        CallError::refused_by_bus(copy, &self.name_of(copy), error)
    }

    /// Publishes copies for destinations that do not answer, until the deadline of the call, even if the call ends
    /// before they are confirmed. Copies that the bus accepts without waiting are handed over before this returns.
    pub(super) async fn publish_in_background(&self, copies: Vec<Outgoing>, deadline: Instant) {
        let sent = copies.into_iter().map(|copy| {
            let publisher = self.publisher.clone();
            // The publisher counts and logs failures.
            async move { drop(publisher.for_call(&copy, || (), None).await) }
        });
        let mut sent: FuturesUnordered<_> = sent.collect();
        let begin = std::future::poll_fn(|context| {
            while let Poll::Ready(Some(())) = sent.poll_next_unpin(context) {}
            Poll::Ready(())
        });
        begin.await;
        if sent.is_empty() {
            return;
        }
        // There are as many permits as calls may wait. Without a permit the copies are dropped, which the publisher
        // reports.
        if let Ok(room) = Arc::clone(&self.background_permits).try_acquire_owned() {
            self.background.spawn(async move {
                let all = sent.for_each(|()| std::future::ready(()));
                drop(timeout_at(deadline.into(), all).await);
                drop(room);
            });
        }
    }

    /// Waits until all copies that are published in the background are confirmed or given up.
    pub(crate) async fn until_published(&self) {
        self.background.close();
        self.background.wait().await;
    }

    /// Records that a bus has accepted the request of a call, so that its agent may get it.
    pub(crate) fn note_published(&self, copy: &Outgoing) {
        if let Some(call) = call_of(copy)
            && !self.pending.note_published(call)
            && self.channels.is_ours(call)
            && let Some(cancel) = self.canceller.handed_over(call)
        {
            self.canceller.send(cancel);
        }
    }

    /// Records that a bus has confirmed the request of a call.
    pub(crate) fn note_confirmed(&self, copy: &Outgoing) {
        if let Some(call) = copy.awaited_call() {
            self.pending.note_confirmed(call);
        }
    }

    /// Fails the call of a copy that cannot be delivered. Only the copy that is to be answered names the call.
    pub(crate) fn undeliverable(&self, copy: &Outgoing, error: &TransportError) {
        if let Some(call) = call_of(copy) {
            self.pending.fail(call, self.refused_by_bus(error, copy));
        }
    }

    /// Fails the call of a copy whose answer would not be read.
    pub(super) fn fail_without_reply_reader(&self, copy: &Outgoing) {
        if let Some(call) = call_of(copy) {
            self.pending.fail(call, self.no_reply_reader(copy));
        }
    }

    /// Fails all calls on a bus that stays down, except those that are kept, and new ones until it is back.
    pub fn give_up_bus(&self, bus: BusId, cause: &Text) {
        self.given_up_buses.send_modify(|buses| {
            buses.insert(bus, cause.clone());
        });
        self.fail_where(bus, cause, |_| true);
    }

    /// Fails the calls on a bus that has gone down whose request may have arrived, and whose answer may have several
    /// parts: nobody would notice that one is lost. Those whose request was not sent yet wait until it is back.
    pub fn fail_parts(&self, bus: BusId, cause: &Text) {
        self.fail_where(bus, cause, |entry| {
            entry.request.has_parts() && entry.may_have_arrived.load(Ordering::Relaxed)
        });
    }

    /// A bus is back: calls on it are made again.
    pub fn bus_is_back(&self, bus: BusId) {
        self.given_up_buses
            .send_if_modified(|buses| buses.remove(&bus).is_some());
    }

    /// Why calls on this bus fail until it is back; `None` if they do not.
    pub(crate) fn outage(&self, bus: BusId) -> Option<Text> {
        let cause = self.given_up_buses.borrow().get(&bus).cloned()?;
        // It may be back already.
        (!self.outbound.buses().is_up(bus)).then_some(cause)
    }

    /// Waits until calls on this bus fail. Returns why.
    pub(crate) async fn until_outage(&self, bus: BusId) -> Text {
        let mut given_up = self.given_up_buses.subscribe();
        loop {
            if let Some(cause) = self.outage(bus) {
                return cause;
            }
            if given_up.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Fails the matching calls on a bus that has gone down. A kept call goes on if its request may have arrived, or if
    /// the source of the request is on that bus too: its requester would get no error before the bus is back.
    fn fail_where(&self, bus: BusId, cause: &Text, matches: impl Fn(&Entry) -> bool) {
        let is_unsent = |entry: &Entry| {
            let is_sent = entry.may_have_arrived.load(Ordering::Relaxed);
            let is_stored_there = entry.stored_by == Some(bus);
            entry.bus == Some(bus) && !is_sent && !is_stored_there && matches(entry)
        };
        let is_lost = |entry: &Entry| {
            let is_kept = entry.is_kept.load(Ordering::Relaxed);
            entry.bus == Some(bus) && !is_kept && matches(entry)
        };
        let unsent = self
            .pending
            .fail_where(is_unsent, &CallError::Unavailable(cause.clone()));
        let sent = self
            .pending
            .fail_where(is_lost, &CallError::AnswerLost(cause.clone()));
        let failed = unsent + sent;
        if failed > 0 {
            tracing::warn!(calls = failed, %cause, "a bus is unavailable: the calls on it fail, except those whose answer may still arrive");
        }
    }

    /// Sends the agent a cancel in its protocol.
    pub(crate) async fn send_cancel(&self, cancel: Cancel) {
        let payload = Bytes::from(cancel.payload());
        let Some(copy) = self.follow_up_copy(&cancel, &payload, "cancel") else {
            return;
        };
        let deadline = Instant::now() + self.limits.timeout;
        let published = pin!(self.publisher.for_call(&copy, || (), None));
        let why = match timeout_at(deadline.into(), published).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => self.refused_by_bus(&error, &copy).to_string(),
            Err(_) => format!("not confirmed in time by {}", self.name_of(&copy)),
        };
        self.log_unsent(&cancel, &why);
    }

    /// The copy of a message that follows a call's request to its agent. `None` if the destination of the request is
    /// not known, or if the message cannot be sent, which is logged.
    pub(super) fn follow_up_copy(
        &self,
        cancel: &Cancel,
        payload: &Bytes,
        caller: &'static str,
    ) -> Option<Outgoing> {
        let copy = match decode(payload, &Hint::default(), &self.rules().limits).into_only() {
            Ok(Ok(unit)) => self.follow_up(cancel, unit, caller),
            Ok(Err(refused)) => {
                self.metrics.refused(refused.error.kind());
                Err(refused.error.to_string())
            }
            Err(_) => Err("expected exactly one message".to_owned()),
        };
        copy.unwrap_or_else(|why| {
            self.log_unsent(cancel, &why);
            None
        })
    }

    /// The copy of one such message; `None` if the destination of the request is not known.
    fn follow_up(
        &self,
        cancel: &Cancel,
        unit: Unit,
        caller: &'static str,
    ) -> Result<Option<Outgoing>, String> {
        let Some(original) = cancel.original() else {
            return Ok(None);
        };
        let request = Request {
            arrived: Instant::now(),
            unit,
            data: None,
            call: None,
            target: cancel.target().cloned(),
            timeout: None,
            bounds_first_part: false,
            accepts_parts: None,
            caller: Text::from_static(caller),
            key: None,
            headers: Vec::new(),
        };
        let mut event = self.event(request).map_err(|error| error.to_string())?;
        let id = Text::from(cancel.id().to_string());
        put(&mut event, extension::CALL_ID, id);
        let copy = self.outbound.follow_up(&event, original);
        copy.map(Some).map_err(|error| error.to_string())
    }

    fn log_unsent(&self, cancel: &Cancel, why: &str) {
        if let Some(suppressed) = self.unsent.allow() {
            let agent = cancel.target().map(Text::as_str);
            tracing::warn!(agent, call = %cancel.call(), why, suppressed, "an agent did not get the cancel of its request, or the answer to its question");
        }
    }

    /// Sends cancels concurrently. Each bus has a limit of its own, so that a bus that is down does not delay cancels
    /// on the others. After `stop` it sends those that are queued, and returns.
    pub(crate) async fn send_cancels(
        &self,
        mut cancels: mpsc::Receiver<Cancel>,
        stop: CancellationToken,
    ) {
        let bus_of = |cancel: &Cancel| cancel.original().map(|copy| copy.bus);
        let mut sending = FuturesUnordered::new();
        let mut queues: HashMap<Option<BusId>, BusQueue> = HashMap::new();
        let (mut is_open, mut is_wanted) = (true, true);
        loop {
            let next: Option<Cancel> = tokio::select! {
                biased;
                Some(bus) = sending.next() => queues.get_mut(&bus).and_then(BusQueue::after_one),
                cancel = cancels.recv(), if is_open => {
                    is_open = cancel.is_some();
                    cancel.and_then(|cancel| {
                        let queue = queues.entry(bus_of(&cancel)).or_default();
                        queue.add(cancel, &self.canceller)
                    })
                }
                () = stop.cancelled(), if is_wanted => {
                    is_wanted = false;
                    cancels.close();
                    None
                }
                else => return,
            };
            sending.extend(next.map(|cancel| async move {
                let bus = bus_of(&cancel);
                self.send_cancel(cancel).await;
                bus
            }));
        }
    }
}

/// The call that a copy belongs to.
fn call_of(copy: &Outgoing) -> Option<CallId> {
    copy.call.as_ref()?.parse().ok()
}
