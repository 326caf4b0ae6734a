//! Reading a durable consumer: pulls within the budget, deliveries, acknowledgements.
//!
//! ```text
//! budget --reserve--> pull --> server --messages--> outstanding --Delivery--> Consumer
//!    ^                                                  |  ^                      |
//!    +------------ permits come back <------------------+  +------- Settlement <-----+
//!                                    \-- +WPI at half of the ack wait, +ACK, -NAK --> server
//! ```
//! One task owns everything. An outcome carries the permit for one more outstanding message until it is processed, so
//! the bounded queue of outcomes always has room and settling never waits.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use a2abus_plugin::Text;
use async_nats::{Client, StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::ReadyChunks;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::{mpsc, watch};
use tokio::task::coop::unconstrained;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::api::with_cause;
use super::consumer::{ConsumerRef, ConsumerState, Limits};
use super::core::{inbound, lane};
use super::headers;
use super::jetstream::position;
use super::ledger::{Info, Ledger, Settlement, ToReader, nak};
use super::link::{Connection, Link, jitter};
use super::pull::{Budget, Pull, Share, Size, Status};
use super::subscribe::subscribe_one;
use super::unreadable::{Found, Stored};
use crate::delivery::{Acknowledger, Delivery, Origin, Outcome};
use crate::error::{TransportError, TransportErrorKind};
use crate::message::{Message, Topic};
use crate::transport::CloseDeadlines;

/// How long an acknowledgement waits for room in the client's queue. A lost acknowledgement means a redelivery.
const ACK_DEADLINE: Duration = Duration::from_secs(5);

/// Pauses before the next search for a lost consumer.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// How long returned messages are collected, so that they go back in their order.
const RETURN_AFTER: Duration = Duration::from_millis(500);

/// How long the server takes to notice that the inbox of our last pull is gone.
const FORGET_PULL: Duration = Duration::from_millis(20);

/// How long the next pull waits for malformed messages to be settled.
const RECOVERY: Duration = Duration::from_secs(10);

/// How often a search is repeated when JetStream does not answer.
const SEARCHES: u32 = 3;

/// How many messages or outcomes are read at once.
const CHUNK: usize = 256;

/// Reads one durable consumer for one subscription.
pub(super) struct DurableReader {
    client: Client,
    link: Arc<Link>,
    consumer: ConsumerRef,
    limits: Limits,
    /// Everything up to this sequence is acknowledged, so a new consumer of this name begins after it.
    settled: u64,
    /// When the consumer was created.
    created: Option<SystemTime>,
    /// What the server has last said about the consumer.
    states: watch::Receiver<ConsumerState>,
    stage: Stage,
    /// Answers to pulls come on `{inbox}.{number of the pull}`.
    inbox: String,
    /// `None` while the connection is down after it was lost during a pull.
    messages: Option<ReadyChunks<Subscriber>>,
    budget: Budget,
    pull: Option<Pull>,
    pulls: u64,
    /// How much the next pull may ask for.
    size: Size,
    repair: Option<BoxFuture<'static, ConsumerState>>,
    /// For malformed messages, after the connection was lost during a pull.
    search: Option<BoxFuture<'static, Result<Found, TransportError>>>,
    failed_searches: u32,
    /// Malformed messages that wait for room in the budget.
    unreadable: VecDeque<Stored>,
    /// Malformed messages that are not settled yet. Their acknowledgements would be lost if a pull brought the next one.
    recovering: HashSet<u64>,
    /// Malformed messages that are settled. Until all messages before them are settled too, a search looks at them
    /// again, and cannot see that they are.
    recovered: BTreeSet<u64>,
    recovery_end: Option<Instant>,
    /// How often in a row a pull was refused.
    refusals: u32,
    /// How often in a row a pull got no answer at all.
    silences: u32,
    ledger: Ledger,
    /// The messages to return to the server, because this subscription accepts no more.
    returned: BTreeMap<u64, Subject>,
    return_at: Option<Instant>,
    deliveries: mpsc::Sender<Delivery>,
    verdicts: mpsc::Receiver<Settlement>,
    verdict_sender: mpsc::Sender<Settlement>,
}

/// Whether the subscription continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Reading,
    /// No new deliveries; outstanding ones may still settle.
    Quiet,
    /// Closed: like `Quiet`, until this time.
    Draining(Instant),
}

/// The event that the reader waits for.
enum Event {
    Stopped,
    Unwanted,
    ConnectionChanged(bool),
    ConsumerSeen(ConsumerState),
    Searched(Result<Found, TransportError>),
    RecoveryOver,
    Verdicts(Vec<Settlement>),
    ProgressDue,
    Repaired(ConsumerState),
    PullSilent,
    Messages(Option<Vec<async_nats::Message>>),
    Reserved(Option<Share>),
    ReturnDue,
    DrainOver,
}

// === impl DurableReader ===

impl DurableReader {
    /// Finds or creates the consumer and subscribes to the inbox. Pulls nothing before [`DurableReader::run`]. The
    /// sender tells the reader what the server says about the consumer from then on.
    pub(super) async fn open(
        client: Client,
        link: Arc<Link>,
        consumer: ConsumerRef,
        budget_bytes: usize,
        deliveries: mpsc::Sender<Delivery>,
    ) -> Result<(Self, watch::Sender<ConsumerState>), TransportError> {
        let state = consumer.ensure(0, None).await?;
        let (tell_state, states) = watch::channel(state);
        let inbox = client.new_inbox();
        let messages = subscribe_one(&client, format!("{inbox}.*"), None).await?;
        let budget = Budget::new(budget_bytes, consumer.max_ack_pending);
        let (verdict_sender, verdicts) = mpsc::channel(budget.all_messages as usize);
        let mut reader = Self {
            client,
            link,
            consumer,
            limits: state.limits,
            settled: state.settled,
            created: state.created,
            states,
            stage: Stage::Reading,
            inbox,
            messages: Some(messages.ready_chunks(CHUNK)),
            budget,
            pull: None,
            pulls: 0,
            size: Size::Free,
            repair: None,
            search: None,
            failed_searches: 0,
            unreadable: VecDeque::new(),
            recovering: HashSet::new(),
            recovered: BTreeSet::new(),
            recovery_end: None,
            refusals: 0,
            silences: 0,
            ledger: Ledger::default(),
            returned: BTreeMap::new(),
            return_at: None,
            deliveries,
            verdicts,
            verdict_sender,
        };
        if reader.link.replaces() {
            // Perhaps a message of this consumer has ended the client before this one.
            reader.begin_search();
        }
        Ok((reader, tell_state))
    }

    /// Runs until it is stopped and outstanding deliveries have settled, or the time for that is over. Without a time
    /// they are returned at once.
    pub(super) async fn run(
        mut self,
        stop: CancellationToken,
        deadlines: Arc<OnceLock<CloseDeadlines>>,
    ) {
        let mut connection = self.link.connection();
        loop {
            if let Stage::Draining(until) = self.stage
                && (self.ledger.is_empty() || Instant::now() >= until)
            {
                break;
            }
            match self.next(&stop, &mut connection).await {
                Event::Stopped => {
                    let until = deadlines.get().map(|it| Instant::from_std(it.settle));
                    self.stop_reading(Stage::Draining(until.unwrap_or_else(Instant::now)))
                        .await;
                }
                Event::Unwanted => self.stop_reading(Stage::Quiet).await,
                Event::ConnectionChanged(is_up) => {
                    if let Err(error) = self.connection_changed(is_up).await {
                        tracing::warn!(consumer = %self.consumer.name, %error, "a durable consumer cannot be read after the reconnect: subscribing again");
                        break;
                    }
                }
                Event::ConsumerSeen(state) => self.update(state),
                Event::Searched(found) => self.searched(found),
                Event::RecoveryOver => self.end_recovery(),
                Event::Verdicts(verdicts) => self.settle_all(verdicts).await,
                Event::ProgressDue => self.send_progress().await,
                Event::Repaired(state) => self.repaired(state),
                Event::PullSilent => {
                    if let Err(error) = self.silent().await {
                        tracing::warn!(consumer = %self.consumer.name, %error, "a durable consumer gets no answers to its pulls: subscribing again");
                        break;
                    }
                }
                Event::Messages(Some(messages)) => {
                    let now = Instant::now();
                    for message in messages {
                        self.received(message, now).await;
                    }
                }
                // The client has closed.
                Event::Messages(None) => break,
                Event::Reserved(share) => self.ask(share).await,
                Event::ReturnDue => self.give_back().await,
                Event::DrainOver => {}
            }
        }
        self.finish().await;
    }

    async fn next(
        &mut self,
        stop: &CancellationToken,
        connection: &mut watch::Receiver<Connection>,
    ) -> Event {
        // A change since the last event is not marked as seen: it is an event too.
        let up = connection.borrow().up;
        let reading = self.stage == Stage::Reading;
        let drain_end = match self.stage {
            Stage::Draining(until) => Some(until),
            Stage::Reading | Stage::Quiet => None,
        };
        let progress = self.ledger.next_progress().filter(|_| up);
        let watchdog = self.pull.as_ref().map(|pull| pull.watchdog);
        let return_at = self.return_at.filter(|_| up);
        // A pull reserves the whole budget, and would bring the malformed messages again.
        let is_recovering = !self.unreadable.is_empty() || !self.recovering.is_empty();
        let is_searching = self.search.is_some() || is_recovering;
        let is_busy = self.pull.is_some() || self.repair.is_some() || is_searching;
        let ask = reading && up && !is_busy && self.messages.is_some();
        let max_payload = self.client.max_payload();
        let mut verdicts = Vec::new();
        tokio::select! {
            biased;
            () = stop.cancelled(), if drain_end.is_none() => Event::Stopped,
            () = self.deliveries.closed(), if reading => Event::Unwanted,
            Ok(()) = connection.changed() => Event::ConnectionChanged(connection.borrow().up),
            Ok(()) = self.states.changed() => Event::ConsumerSeen(*self.states.borrow()),
            // Kept while the connection is down: the client's queue would lose them.
            _ = self.verdicts.recv_many(&mut verdicts, CHUNK), if up => Event::Verdicts(verdicts),
            () = sleep_until(progress) => Event::ProgressDue,
            state = ended(&mut self.repair) => Event::Repaired(state),
            found = ended(&mut self.search), if reading => Event::Searched(found),
            () = sleep_until(watchdog) => Event::PullSilent,
            messages = next_of(&mut self.messages), if reading => Event::Messages(messages),
            share = self.budget.reserve(self.size, self.limits, max_payload), if ask => {
                Event::Reserved(share)
            }
            () = sleep_until(return_at) => Event::ReturnDue,
            () = sleep_until(self.recovery_end), if reading => Event::RecoveryOver,
            () = sleep_until(drain_end) => Event::DrainOver,
        }
    }

    /// The connection was lost, or has come back. If it comes back at once, the server continues the pull of the lost
    /// connection, because the client subscribes to the same inbox again. So a new inbox is used.
    async fn connection_changed(&mut self, is_up: bool) -> Result<(), TransportError> {
        // The pulls of the new connection are counted anew.
        if std::mem::take(&mut self.silences) > 1 {
            self.link.report(&self.consumer.title(), None);
        }
        if self.pull.is_some() {
            self.take_received().await;
            self.pull = None;
            self.messages = None;
        }
        if is_up && self.messages.is_none() && self.stage == Stage::Reading {
            self.take_new_inbox().await?;
            self.end_recovery();
            self.failed_searches = 0;
            self.begin_search();
        }
        Ok(())
    }

    async fn take_new_inbox(&mut self) -> Result<(), TransportError> {
        self.inbox = self.client.new_inbox();
        let subject = format!("{}.*", self.inbox);
        let messages = subscribe_one(&self.client, subject, None).await?;
        self.messages = Some(messages.ready_chunks(CHUNK));
        Ok(())
    }

    /// Takes over what the server says about the consumer.
    fn update(&mut self, state: ConsumerState) {
        if state.created != self.created {
            // A new consumer delivers them again.
            self.recovered.clear();
        }
        self.created = state.created;
        self.settled = state.settled;
        let ack_wait = state.limits.ack_wait;
        if ack_wait < self.limits.ack_wait {
            self.ledger.hasten(Instant::now() + ack_wait / 2);
        }
        self.limits = state.limits;
    }

    fn repaired(&mut self, state: ConsumerState) {
        self.repair = None;
        self.update(state);
    }

    /// Looks for malformed messages. The answer comes after everything that was sent before, so also after their
    /// acknowledgements.
    fn begin_search(&mut self) {
        let mut known = self.ledger.sequences();
        known.extend(&self.recovered);
        let (consumer, pause) = (self.consumer.clone(), FIRST_PAUSE * self.failed_searches);
        let search = async move {
            tokio::time::sleep(pause).await;
            consumer.unreadable(known).await
        };
        self.search = Some(search.boxed());
    }

    /// The next pull no longer waits for malformed messages.
    fn end_recovery(&mut self) {
        self.unreadable.clear();
        self.recovering.clear();
        self.recovery_end = None;
    }

    /// Takes the messages that had arrived when the connection was lost.
    async fn take_received(&mut self) {
        let now = Instant::now();
        while let Some(Some(messages)) = unconstrained(next_of(&mut self.messages)).now_or_never() {
            for message in messages {
                self.received(message, now).await;
            }
        }
    }

    fn searched(&mut self, found: Result<Found, TransportError>) {
        self.search = None;
        let (stream, consumer) = (&self.consumer.stream, &self.consumer.name);
        let name = self.consumer.search_title();
        match found {
            Ok(Found { settled, found }) => {
                self.link.report(&name, None);
                self.recovered.retain(|sequence| *sequence > settled);
                if let Some(first) = found.first() {
                    tracing::warn!(
                        %stream, %consumer, messages = found.len(), sequence = first.info.sequence, subject = first.subject,
                        "malformed messages have interrupted the connection to NATS: they are read from the stream instead"
                    );
                }
                self.recovery_end = (!found.is_empty()).then(|| Instant::now() + RECOVERY);
                self.unreadable.extend(found);
                self.deliver_unreadable();
            }
            // JetStream may not be back yet.
            Err(error)
                if error.kind() != TransportErrorKind::Unauthorised
                    && self.failed_searches < SEARCHES =>
            {
                tracing::debug!(%consumer, %error, "the search for malformed messages failed: trying again");
                self.failed_searches += 1;
                self.begin_search();
            }
            Err(error) => {
                tracing::warn!(%stream, %consumer, %error, "the connection to NATS was interrupted, and the stream cannot be searched for malformed messages, which would interrupt it again");
                let is_forbidden = error.kind() == TransportErrorKind::Unauthorised;
                let cause = is_forbidden.then(|| Text::from(error.to_string()));
                self.link.report(&name, cause);
            }
        }
    }

    /// Delivers malformed messages, as far as the budget permits.
    fn deliver_unreadable(&mut self) {
        let now = Instant::now();
        while let Some(stored) = self.unreadable.front() {
            // More than the whole budget is never free.
            let bytes = stored.size_bytes();
            let Some(share) = self.budget.spare(bytes) else {
                return;
            };
            let is_known = self.ledger.renew(&stored.info, &stored.reply);
            let (lane, reply, info) = (lane(&stored.subject), stored.reply.clone(), stored.info);
            let message = stored.message().filter(|_| !is_known);
            self.unreadable.pop_front();
            if let Some(message) = message {
                self.recovering.insert(info.sequence);
                self.deliver((message, lane), reply, info, share, now);
            }
        }
    }

    /// Sends a pull for the reserved part of the budget.
    async fn ask(&mut self, share: Option<Share>) {
        // `None` only if the semaphore was closed, which never happens.
        let Some(share) = share else { return };
        self.pulls += 1;
        let max_payload = self.client.max_payload();
        let pull = Pull::new(self.pulls, share, self.size, self.limits, max_payload);
        let (stream, name) = (&self.consumer.stream, &self.consumer.name);
        let request = format!("CONSUMER.MSG.NEXT.{stream}.{name}");
        let sent = self.client.publish_with_reply(
            self.consumer.api.subject(&request),
            format!("{}.{}", self.inbox, self.pulls),
            pull.request(self.limits).to_string().into(),
        );
        match tokio::time::timeout(ACK_DEADLINE, sent).await {
            Ok(Ok(())) => self.pull = Some(pull),
            // Checked again in the next iteration; the loop ends when the client has closed.
            Ok(Err(error)) => tracing::debug!(%error, "could not request messages"),
            Err(_) => tracing::debug!("could not request messages in time"),
        }
    }

    async fn received(&mut self, message: async_nats::Message, now: Instant) {
        let reply = message.reply.clone();
        let info = reply.as_deref().and_then(Info::parse);
        // A stored message may have a status too.
        if let (Some(status), None) = (message.status, &info) {
            return self.status(status, &message, now);
        }
        self.accepted();
        let share = self.take_share(&message, now);
        let Some((reply, info)) = reply.zip(info) else {
            tracing::debug!("a message without a JetStream reply subject was ignored");
            return;
        };
        if self.ledger.renew(&info, &reply) {
            // An earlier delivery of the message is still in progress here; its outcome counts for this one too.
            return;
        }
        match share {
            Some(share) => {
                let lane = lane(&message.subject);
                if let Some(message) = inbound(message) {
                    self.deliver((message, lane), reply, info, share, now);
                }
            }
            // More than was asked for, after a pull was ended too early: return it.
            None => self.publish_ack(reply, nak(info.attempt)).await,
        }
    }

    fn deliver(
        &mut self,
        ((topic, message), lane): ((Topic, Message), u32),
        reply: Subject,
        info: Info,
        share: Share,
        now: Instant,
    ) {
        let progress = now + self.limits.ack_wait / 2;
        let delivery = self.ledger.deliver(&info, reply, progress);
        let settle = ToReader {
            sequence: info.sequence,
            delivery,
            attempt: info.attempt,
            message: share.messages,
            verdicts: self.verdict_sender.clone(),
        };
        let delivery = Delivery {
            message,
            topic,
            reply_to: None,
            origin: Some(Origin {
                position: position(&self.consumer.stream, info.sequence),
                time: info.time,
            }),
            lane,
            attempt: info.attempt,
            acknowledger: Acknowledger::new(Box::new(settle), Some(share.bytes)),
        };
        // Never full: the budget is the bound. If the queue is closed the delivery is dropped, which abandons it.
        if self.deliveries.try_send(delivery).is_err() {
            tracing::debug!("deliveries are no longer read");
        }
    }

    /// Takes one message and its bytes from the pull's reservation, or from the free budget.
    fn take_share(&mut self, message: &async_nats::Message, now: Instant) -> Option<Share> {
        let overhead = headers::memory(message.headers.as_ref());
        let Some(pull) = &mut self.pull else {
            return self.budget.spare(message.length + overhead);
        };
        pull.alive(now);
        let share = pull.take(message.length, overhead);
        if pull.is_over() {
            self.pull = None;
            self.size = Size::Free;
        }
        share
    }

    fn status(&mut self, status: StatusCode, message: &async_nats::Message, now: Instant) {
        let number = message
            .subject
            .rsplit('.')
            .next()
            .and_then(|word| word.parse().ok());
        let current = |pull: &&mut Pull| number.is_some_and(|number| pull.is_number(number));
        let Some(pull) = self.pull.as_mut().filter(current) else {
            // About a pull that was ended before.
            return;
        };
        let description = message.description.as_deref().unwrap_or_default();
        let status = Status::read(status, description);
        match status {
            Status::Alive => {
                pull.alive(now);
                return self.accepted();
            }
            Status::PullOver => {
                self.size = Size::Free;
                self.accepted();
            }
            Status::TooLarge => {
                self.size = pull.after_too_large();
                self.accepted();
            }
            Status::ConsumerLost => {
                // "No responders" has no description.
                let code = message.status.map(|code| format!("status {code}"));
                let code = code.filter(|_| description.is_empty());
                self.repair(code.as_deref().unwrap_or(description));
            }
        }
        self.pull = None;
    }

    /// The server has accepted a pull.
    fn accepted(&mut self) {
        let was_refused = std::mem::take(&mut self.refusals) > 0;
        let was_silent = std::mem::take(&mut self.silences) > 1;
        if was_refused || was_silent {
            self.link.report(&self.consumer.title(), None);
        }
    }

    /// The server has not answered a pull. If that happens again, it is reported, and the next pull has a new inbox: the
    /// server may have refused the old one, and then sends nothing there, even if it permits it again. The server of an
    /// idle consumer is not silent: it sends heartbeats.
    async fn silent(&mut self) -> Result<(), TransportError> {
        self.pull = None;
        self.silences = self.silences.saturating_add(1);
        tracing::debug!(consumer = %self.consumer.name, "no response to the pull request: sending it again");
        if self.silences > 1 {
            let cause =
                "the server does not answer pulls; if the log names a refused permission, grant it";
            self.link
                .report(&self.consumer.title(), Some(Text::from_static(cause)));
            self.take_received().await;
            self.take_new_inbox().await?;
        }
        Ok(())
    }

    /// Searches for the consumer again, with pauses, until it exists. If its pulls are refused again and again, it is
    /// reported, and the pauses grow.
    fn repair(&mut self, cause: &str) {
        let (consumer, link) = (self.consumer.clone(), Arc::clone(&self.link));
        self.silences = 0;
        self.refusals += 1;
        let refusals = self.refusals;
        if refusals > 1 {
            let cause = format!("the server refuses to deliver messages: {cause}");
            link.report(&consumer.title(), Some(Text::from(cause)));
        }
        tracing::warn!(
            stream = %consumer.stream, consumer = %consumer.name, cause,
            "the durable consumer cannot be read: trying again"
        );
        let (settled, created) = (self.settled, self.created);
        self.repair = Some(
            async move {
                let name = consumer.title();
                let mut pause = MAX_PAUSE.min(FIRST_PAUSE * 2_u32.pow((refusals - 1).min(10)));
                loop {
                    tokio::time::sleep(pause / 2 + jitter(pause / 2)).await;
                    match consumer.ensure(settled, created).await {
                        Ok(state) => {
                            if refusals == 1 {
                                link.report(&name, None);
                            }
                            return state;
                        }
                        Err(error) => {
                            let cause = with_cause(&error);
                            link.report(&name, Some(cause.clone()));
                            tracing::warn!(%cause, "the durable consumer is not available: trying again");
                        }
                    }
                    pause = (pause * 2).min(MAX_PAUSE);
                }
            }
            .boxed(),
        );
    }

    async fn settle_all(&mut self, verdicts: Vec<Settlement>) {
        for verdict in verdicts {
            let sequence = verdict.sequence;
            let is_settled = verdict.outcome == Outcome::Settled;
            self.settle(verdict).await;
            if self.recovering.remove(&sequence) && is_settled {
                self.recovered.insert(sequence);
            }
        }
        self.deliver_unreadable();
        let is_over = self.unreadable.is_empty() && self.recovering.is_empty();
        if is_over && self.recovery_end.take().is_some() {
            self.begin_search();
        }
    }

    async fn settle(&mut self, verdict: Settlement) {
        let Some(reply) = self.ledger.settle(&verdict) else {
            return;
        };
        match (verdict.outcome, self.stage) {
            (Outcome::Settled, _) => self.publish_ack(reply, Bytes::from_static(b"+ACK")).await,
            (Outcome::Abandoned, Stage::Reading) => {
                self.publish_ack(reply, nak(verdict.attempt)).await;
            }
            (Outcome::Abandoned, Stage::Quiet | Stage::Draining(_)) => {
                self.returned.insert(verdict.sequence, reply);
                self.return_at
                    .get_or_insert_with(|| Instant::now() + RETURN_AFTER);
            }
        }
    }

    /// Returns messages without a delay, in their order, so that the next reader gets them in that order.
    ///
    /// The server would offer the first of them to our ended pull, and then queue it behind all others. Hence the
    /// pause, during which it has no other message.
    async fn give_back(&mut self) {
        self.return_at = None;
        let several = self.returned.len() > 1;
        for (index, (_, reply)) in std::mem::take(&mut self.returned).into_iter().enumerate() {
            if several && index == 1 {
                tokio::time::sleep(FORGET_PULL).await;
            }
            self.publish_ack(reply, Bytes::from_static(b"-NAK")).await;
        }
    }

    async fn publish_ack(&mut self, reply: Subject, ack: Bytes) {
        let mut publish = pin!(self.client.publish(reply, ack));
        // There is nearly always room, and a timer for each would cost more than the publication.
        let published = match unconstrained(publish.as_mut()).now_or_never() {
            Some(published) => Ok(published),
            None => tokio::time::timeout(ACK_DEADLINE, publish).await,
        };
        match published {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "an acknowledgement was lost: the message will be redelivered")
            }
            Err(_) => {
                tracing::warn!("an acknowledgement was lost: the message will be redelivered")
            }
        }
    }

    /// Sends a work-in-progress ack for every delivery that has been out for half of the ack wait.
    async fn send_progress(&mut self) {
        let now = Instant::now();
        while let Some(reply) = self.ledger.due(now, now + self.limits.ack_wait / 2) {
            self.publish_ack(reply, Bytes::from_static(b"+WPI")).await;
        }
    }

    /// Ends the pulls and returns messages that came and were not delivered.
    async fn stop_reading(&mut self, stage: Stage) {
        let was_reading = std::mem::replace(&mut self.stage, stage) == Stage::Reading;
        self.pull = None;
        self.repair = None;
        self.search = None;
        self.end_recovery();
        if !was_reading || !self.link.is_up() {
            // The server has ended the pulls itself, and redelivers what was under way to others after the ack wait.
            return;
        }
        let Some(messages) = &mut self.messages else {
            return;
        };
        // Meanwhile the server sends more messages. Those that are not returned come again only after the ack wait, behind
        // later messages.
        let mut connection = self.link.connection();
        let until = Instant::now() + ACK_DEADLINE;
        let drained = messages.get_mut().drain();
        if tokio::time::timeout_at(until, drained).await.is_err() {
            return;
        }
        let mut next = async || {
            tokio::select! {
                biased;
                messages = next_of(&mut self.messages) => messages,
                _ = connection.wait_for(|it| !it.up) => None,
                () = tokio::time::sleep_until(until) => None,
            }
        };
        while let Some(messages) = next().await {
            for message in messages {
                let reply = message.reply.filter(|_| message.status.is_none());
                let info = reply.as_deref().and_then(Info::parse);
                if let (Some(reply), Some(info)) = (reply, info) {
                    self.returned.insert(info.sequence, reply);
                }
            }
        }
        self.return_at = Some(Instant::now() + RETURN_AFTER);
    }

    /// Processes the queued outcomes, returns the remaining deliveries, and makes sure that everything was sent.
    async fn finish(mut self) {
        self.link.report(&self.consumer.title(), None);
        self.link.report(&self.consumer.search_title(), None);
        if !self.link.is_up() {
            return;
        }
        self.stage = Stage::Draining(Instant::now());
        self.verdicts.close();
        while let Ok(verdict) = self.verdicts.try_recv() {
            self.settle(verdict).await;
        }
        self.returned.extend(self.ledger.take_all());
        self.give_back().await;
        if tokio::time::timeout(ACK_DEADLINE, self.client.flush())
            .await
            .is_err()
        {
            tracing::debug!("the last acknowledgements may not have been sent");
        }
    }
}

async fn sleep_until(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

/// The next messages of a subscription, if there is one.
async fn next_of(
    messages: &mut Option<ReadyChunks<Subscriber>>,
) -> Option<Vec<async_nats::Message>> {
    match messages {
        Some(messages) => messages.next().await,
        None => std::future::pending().await,
    }
}

/// The result of a task, if there is one.
async fn ended<T>(task: &mut Option<BoxFuture<'static, T>>) -> T {
    match task {
        Some(task) => task.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Nats;
    use super::super::mock::{Api, Mock, connect, consumer, listener, up};
    use super::*;
    use crate::transport::Health;

    /// A reader on a server that answers only the requests of the API.
    struct World {
        reader: DurableReader,
        tell_state: watch::Sender<ConsumerState>,
        /// A view of the connection that has not seen it come up.
        connection: watch::Receiver<Connection>,
        stop: CancellationToken,
        _kept: (Nats, Mock, mpsc::Receiver<Delivery>),
    }

    async fn world() -> World {
        let listener = listener().await;
        let nats = connect(&listener.local_addr().unwrap().to_string()).await;
        let link = Arc::clone(&nats.inner().link);
        let connection = link.connection();
        let info = r#"{"config":{"ack_policy":"explicit"},"ack_floor":{"stream_seq":7},"created":"2026-01-01T00:00:00.1Z"}"#;
        let server = Mock::serve(listener, Api::Answer(info));
        up(&nats).await;
        let (deliveries, to_consumer) = mpsc::channel(1);
        let client = nats.inner().client.clone();
        let opened = DurableReader::open(client, link, consumer(&nats), 1000, deliveries).await;
        let (reader, tell_state) = opened.unwrap();
        World {
            reader,
            tell_state,
            connection,
            stop: CancellationToken::new(),
            _kept: (nats, server, to_consumer),
        }
    }

    #[tokio::test]
    async fn a_connection_that_changes_during_an_event_is_the_next_event() {
        let mut world = world().await;
        let event = world.reader.next(&world.stop, &mut world.connection).await;
        assert!(matches!(event, Event::ConnectionChanged(true)));
    }

    #[tokio::test]
    async fn the_reader_follows_the_state_of_the_consumer() {
        let mut world = world().await;
        world.connection.mark_unchanged();
        assert_eq!(world.reader.settled, 7);
        let ack_wait = Duration::from_secs(1);
        let limits = Limits {
            ack_wait,
            ..world.reader.limits
        };
        let state = ConsumerState {
            limits,
            settled: 9,
            created: world.reader.created,
        };
        world.tell_state.send_replace(state);
        let event = world.reader.next(&world.stop, &mut world.connection).await;
        let Event::ConsumerSeen(seen) = event else {
            panic!("another event came first");
        };
        world.reader.update(seen);
        assert_eq!(world.reader.settled, 9);
        assert_eq!(world.reader.limits.ack_wait, ack_wait);
    }

    #[tokio::test]
    async fn unanswered_pulls_are_reported_until_the_server_answers_one() {
        let mut world = world().await;
        let health = world.reader.link.health();
        let inbox = world.reader.inbox.clone();
        world.reader.silent().await.unwrap();
        assert_eq!(*health.borrow(), Health::Up);
        assert_eq!(world.reader.inbox, inbox);
        world.reader.silent().await.unwrap();
        assert!(matches!(*health.borrow(), Health::Impaired(_)));
        // The server may have refused the old one.
        assert_ne!(world.reader.inbox, inbox);
        world.reader.accepted();
        assert_eq!(*health.borrow(), Health::Up);
        // Those of an earlier connection do not count.
        for _ in 0..2 {
            world.reader.silent().await.unwrap();
        }
        world.reader.connection_changed(true).await.unwrap();
        assert_eq!(*health.borrow(), Health::Up);
        world.reader.silent().await.unwrap();
        assert_eq!(*health.borrow(), Health::Up);
    }

    #[tokio::test]
    async fn settled_malformed_messages_are_forgotten_only_with_their_consumer() {
        let mut world = world().await;
        let state = *world.reader.states.borrow();
        assert!(state.created.is_some());
        world.reader.recovered.insert(8);
        world.reader.repaired(state);
        assert!(world.reader.recovered.contains(&8));
        let created = state.created.map(|time| time + Duration::from_millis(1));
        world.reader.update(ConsumerState { created, ..state });
        assert!(world.reader.recovered.is_empty());
    }
}
