//! Calls: requests that expect an answer, from the front door over the bus and back.
//!
//! ```text
//! caller ── call ──> register ──> publish ──> … agent … ──> reply leg ── answer ──> pending ──> Answer ──> caller
//! ```
//!
//! The JSON-RPC id of the caller is replaced by the call id on the way out and put back on the way in; nothing else of
//! either body changes. A call is registered before it is published, ends once, and never waits past its deadline.
//! Source: `design` sections 3 and 4.

pub(crate) mod render;
pub(crate) mod said;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::protocol::jsonrpc::{Id, JsonRpc, RpcBody, splice};
use a2abus_plugin::{
    Data, Event, Ids, MapContext, MapOptions, Source, Text, Unit, extension, map_unit,
};
use a2abus_transports::content_mode::Binding;
use a2abus_transports::{
    Guarantee, Header, Health, Receipt, Transport as _, TransportError, TransportErrorKind,
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::timeout_at;

use crate::account::{self, Account, Line};
use crate::answer::Ended;
use crate::budget::{Budget, Spent};
use crate::bus::BusId;
use crate::callid::CallId;
use crate::cancel::{Cancel, Canceller};
use crate::metrics::{Metrics, ReplyOutcome};
use crate::outbound::{From, Outbound, Outgoing, Place, RoutingError};
use crate::pending::{Entry, Fingerprint, Form, Handed, PendingCalls, Piece};
use crate::reply::ReplyLegs;
use crate::shares::{Share, Shares, client};

/// The name of the front door as a binding: what routes match as `binding`, and part of `source`.
pub const DOOR: &str = "http";
/// Who calls over HTTP where the connection does not tell.
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
    /// Memory for requests and answers in hand, in bytes.
    pub budget_bytes: usize,
    /// Parts of one answer that wait for their caller, at most.
    pub max_parts_buffered: usize,
}

/// Everything that makes calls.
#[derive(Debug)]
pub struct Calls {
    outbound: Outbound,
    legs: ReplyLegs,
    pending: PendingCalls,
    of_agents: Arc<Shares<Text>>,
    of_callers: Arc<Shares<Text>>,
    budget: Arc<Budget>,
    limits: CallLimits,
    source: Text,
    options: MapOptions,
    canceller: Canceller,
    metrics: Arc<Metrics>,
    draining: AtomicBool,
    ended: Ended,
}

/// One request to make.
#[derive(Debug)]
pub struct Request {
    /// The JSON-RPC request, decoded.
    pub unit: Unit,
    /// The identity that the call has, where somebody was told it before; else it gets a new one.
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

/// One part of an answer: a whole JSON-RPC message that carries the caller's own id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The JSON text.
    pub body: Bytes,
    /// Whether it is the last one.
    pub last: bool,
    /// The CloudEvent that the agent sent, for callers that are answered with it as it is.
    pub event: Option<Box<Event>>,
}

/// Why a call has no (further) answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// No route takes the request, or it names no agent.
    #[error("no agent {0:?} is known here: no route takes the request")]
    AgentNotFound(Text),
    /// Nobody answered in time.
    #[error("{0}")]
    Timeout(Silence),
    /// The topic, or the stream of a subject, that the request goes to does not exist.
    #[error("{0}")]
    NoTopic(MissingTopic),
    /// Nobody listens at the destination, or the bus is away.
    #[error("the agent cannot be reached: {0}")]
    Unavailable(Text),
    /// As many calls wait as may.
    #[error("{0}")]
    Exhausted(Bound),
    /// The bridge is shutting down.
    #[error("the bridge is shutting down")]
    Draining,
    /// The request cannot be sent as it is.
    #[error("the request cannot be sent: {0}")]
    Refused(Text),
    /// The caller reads its parts too slowly.
    #[error("the caller reads the parts of the answer too slowly")]
    SlowCaller,
    /// The agent answered with something that is no answer.
    #[error("the agent's answer cannot be used: {0}")]
    BadAnswer(Text),
}

/// A call that nobody answered in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Silence {
    /// How long the caller waited.
    pub after: Duration,
    /// The agent that the request is for; empty where it names none.
    pub agent: Text,
    /// Where the bus has the request, as `Kafka topic agents.weather`; `None` when the bus did not confirm it.
    pub published: Option<Text>,
}

/// A place that the request goes to and that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingTopic {
    /// What is missing, as `Kafka topic agents.weather does not exist`.
    pub what: Text,
    /// Whether the request chose the place, by a value in the topic of the route.
    pub place: Place,
}

/// A request that expects an answer, before it is routed.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// Its identity on the bus.
    pub(crate) call: CallId,
    /// The request.
    pub(crate) event: Event,
    form: Form,
    dialect: Dialect,
    streamed: bool,
    /// How long the caller waits for the answer, or for the next part of it.
    patience: Duration,
    /// How long it waits for the last part.
    whole: Duration,
}

/// What a call that waits costs, in bytes: its entry, its answer, and the tasks and buffers around them.
const PENDING_BYTES: usize = 4 << 10;
/// How long records wait for an earlier one that does not come. Source: `reliability` section 2.3.
const GAP_PATIENCE: Duration = Duration::from_secs(2);

/// The bound that one call too many has reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Bound {
    /// Of all calls: `calls.max_pending`.
    #[error("too many calls are waiting for their answers")]
    Calls,
    /// Of the calls of one agent: `calls.max_pending_per_agent`.
    #[error("too many calls are waiting for the agent {0:?}")]
    Agent(Text),
    /// Of the calls of one caller: `calls.max_pending_per_caller`.
    #[error("too many calls from here are waiting for their answers")]
    Caller,
    /// Of the memory for requests and answers in hand: `calls.budget_bytes`.
    #[error("{0}")]
    Memory(#[from] Spent),
}

/// The answer to one call as it comes. Dropping it before the last part cancels the call.
#[derive(Debug)]
pub struct Answer {
    call: CallId,
    parts: mpsc::Receiver<Piece>,
    confirmations: FuturesUnordered<BoxFuture<'static, (BusId, Result<Receipt, TransportError>)>>,
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
    /// Whether an agent may have the request.
    was_sent: bool,
    /// Whether the request is JSON-RPC: other families know no cancel.
    is_rpc: bool,
    /// Whether a binding publishes the request, and whether it has.
    by_binding: bool,
    is_published: Arc<AtomicBool>,
    /// What to send the agent when the caller goes away.
    cancel: Cancel,
    calls: Arc<Calls>,
}

// === impl Calls ===

impl Calls {
    /// Ready to make calls; `source` is the `source` of the requests, without the caller.
    #[must_use]
    pub fn new(
        outbound: Outbound,
        legs: ReplyLegs,
        limits: CallLimits,
        source: Text,
        canceller: Canceller,
        metrics: Arc<Metrics>,
    ) -> Self {
        let pending = PendingCalls::new(limits.max_pending, metrics.pending_calls.clone());
        let (options, draining) = (MapOptions::default(), AtomicBool::new(false));
        Self {
            outbound,
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
            source,
            options,
            canceller,
            metrics,
            draining,
            ended: Ended::default(),
        }
    }

    /// The calls that wait for an answer.
    #[must_use]
    pub fn pending(&self) -> &PendingCalls {
        &self.pending
    }

    /// The memory for requests and answers in hand.
    #[must_use]
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Where answers come back to.
    #[must_use]
    pub fn legs(&self) -> &ReplyLegs {
        &self.legs
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

    /// Publishes a request and returns its answer to wait for.
    ///
    /// # Errors
    /// By kind. What goes wrong after this returns is told by [`Answer::next`].
    pub async fn call(self: &Arc<Self>, request: Request) -> Result<Answer, CallError> {
        let call = self.id_of(&request)?;
        let mut account = Account::open(&self.metrics, call, request.caller.clone());
        let mut answer = match self.begin(call, request, &mut account) {
            Ok(opened) => opened.answer(account, self),
            Err(error) => {
                account.failed(&error);
                return Err(error);
            }
        };
        // Whoever watches the buses fails the calls it finds when one goes; this one may have come a moment later.
        if let Some(cause) = answer.bus_is_away() {
            return Err(answer.fail(CallError::Unavailable(cause)));
        }
        match answer.publish().await {
            Ok(()) => {
                answer.cancel.forget_bodies();
                Ok(answer)
            }
            Err(error) => Err(answer.fail(error)),
        }
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

    /// Everything before the request is published.
    fn begin(
        &self,
        call: CallId,
        mut request: Request,
        account: &mut Account,
    ) -> Result<Opened, CallError> {
        let timeout = request.timeout;
        let Some(message) = request.unit.json_rpc.clone() else {
            return Err(not_a_request());
        };
        let bytes = request.unit.bytes.clone();
        let caller = request.caller.clone();
        let headers = std::mem::take(&mut request.headers);
        let event = self.event(request)?;
        let agent = account::agent_of(&event);
        account.is_for(&event, self.outbound.names(&agent));
        let rpc = Some((&message, &bytes));
        let mut exchange = self.exchange(call, event, rpc, timeout)?;
        exchange
            .event
            .set("id", Text::from(call.to_string()))
            .map_err(|error| refused(&error))?;
        let copies = self.route(&exchange.event, Some(call), &headers)?;
        if let Some(deaf) = copies.iter().find(|copy| !self.legs.is_reading(copy.bus)) {
            let bus = self
                .outbound
                .buses()
                .get(deaf.bus)
                .map_or("the bus", |bus| bus.name.text());
            return Err(CallError::Unavailable(
                format!("answers from {bus} cannot be read yet").into(),
            ));
        }
        self.open(exchange, copies, Some(&caller), false)
    }

    /// How long a caller waits that asks for this.
    fn patience(&self, wanted: Option<Duration>) -> Duration {
        wanted
            .unwrap_or(self.limits.timeout)
            .min(self.limits.max_timeout)
    }

    /// Prepares a request that expects an answer. In the payload of a JSON-RPC request (`rpc`: its message and bytes)
    /// the call id takes the place of the caller's id and progress token; nothing else changes. The caller waits for
    /// `timeout`; where it says nothing, for the default.
    ///
    /// # Errors
    /// When it is a JSON-RPC message that expects no answer.
    pub(crate) fn exchange(
        &self,
        call: CallId,
        mut event: Event,
        rpc: Option<(&JsonRpc, &Bytes)>,
        timeout: Option<Duration>,
    ) -> Result<Exchange, CallError> {
        let patience = self.patience(timeout);
        let whole = timeout.map_or(self.limits.stream_timeout, |_| patience);
        let id = Text::from(call.to_string());
        let (form, dialect, streamed) = match rpc {
            None => (Form::Untouched, Dialect::JsonRpc, true),
            Some((message, bytes)) => {
                let (Some(own), RpcBody::Call { streaming }) = (&message.id, message.body) else {
                    return Err(not_a_request());
                };
                let progress = message.progress.as_deref();
                event.set_data(Some(Data::from(with_call_id(bytes, own, progress, &id))));
                let form = Form::JsonRpc {
                    id: own.token().clone(),
                    progress: progress.map(|token| token.token().clone()),
                };
                (form, message.dialect, streaming)
            }
        };
        let expiry = crate::clock::rfc3339(crate::clock::now() + patience);
        for (name, value) in [
            (extension::CALL_ID, id.clone()),
            (extension::COLLABORATION_ID, id),
            (extension::EXPIRY_TIME, expiry),
        ] {
            event.set(name, value).map_err(|error| refused(&error))?;
        }
        Ok(Exchange {
            call,
            event,
            form,
            dialect,
            streamed,
            patience,
            whole,
        })
    }

    /// Registers a request whose `copies` are about to be published. It counts against the bound of its agent, and of the
    /// caller where there is one. A request that `is_kept` outlasts an outage of its bus.
    ///
    /// # Errors
    /// When too many calls wait, or the bridge is ending.
    pub(crate) fn open(
        &self,
        exchange: Exchange,
        copies: Vec<Outgoing>,
        caller: Option<&Text>,
        is_kept: bool,
    ) -> Result<Opened, CallError> {
        let Exchange {
            call,
            event,
            form,
            dialect,
            streamed,
            patience,
            whole,
        } = exchange;
        let is_rpc = matches!(form, Form::JsonRpc { .. });
        let target = event.extension_text(extension::TARGET_AGENT).cloned();
        let shares = self.shares(target.clone().unwrap_or_default(), caller)?;
        let purse = self
            .budget
            .purse(caller.and_then(|caller| caller.parse().ok()));
        let charge = purse.charge(PENDING_BYTES);
        let charge = charge.map_err(|spent| CallError::Exhausted(spent.into()))?;
        let (sender, parts) = mpsc::channel(self.limits.max_parts_buffered);
        let is_published = Arc::<AtomicBool>::default();
        let entry = Entry {
            parts: sender,
            form,
            streamed,
            buses: copies.iter().map(|copy| copy.bus).collect(),
            is_kept,
            is_published: Arc::clone(&is_published),
            request: Fingerprint::of(&event),
            fold: Mutex::default(),
            shares,
            purse,
            _charge: charge,
        };
        // A request that was read from the bus before the drain began is answered like those in hand.
        if caller.is_some() && self.draining.load(Ordering::Relaxed) {
            return Err(CallError::Draining);
        }
        if !self.pending.register(call, entry) {
            return Err(CallError::Exhausted(Bound::Calls));
        }
        Ok(Opened {
            call,
            parts,
            cancel: Cancel::new(call, dialect, target, copies),
            patience,
            whole: if streamed { whole } else { patience },
            is_rpc,
            is_published,
        })
    }

    /// The part of their own bounds that the agent and the caller spend on one more call. Calls that name no agent share
    /// one bound.
    fn shares(&self, agent: Text, caller: Option<&Text>) -> Result<Vec<Share<Text>>, CallError> {
        let mut shares = Vec::with_capacity(2);
        if let Some(caller) = caller {
            let address = caller.parse().map(|address| client(address).to_string());
            let client = address.map_or_else(|_| caller.clone(), Text::from);
            let share = self.of_callers.take(&client);
            shares.push(share.ok_or(CallError::Exhausted(Bound::Caller))?);
        }
        let share = self.of_agents.take(&agent);
        shares.push(share.ok_or(CallError::Exhausted(Bound::Agent(agent)))?);
        Ok(shares)
    }

    /// Publishes a notification; it is on the bus when this returns.
    ///
    /// # Errors
    /// By kind.
    pub async fn notify(&self, mut request: Request) -> Result<(), CallError> {
        let started = Instant::now();
        let (call, caller) = (self.id_of(&request)?, request.caller.clone());
        let patience = self.patience(request.timeout);
        let headers = std::mem::take(&mut request.headers);
        let event = self.event(request)?;
        let sent = self.publish_all(&event, &headers, patience, started + patience);
        let sent = sent.await;
        let line = Line {
            call,
            caller: &caller,
            agent: &account::agent_of(&event),
            method: &account::method_of(&event),
            outcome: sent.as_ref().map_or_else(CallError::word, |()| "sent"),
            took: started.elapsed(),
        };
        line.write();
        sent
    }

    async fn publish_all(
        &self,
        event: &Event,
        headers: &[Header],
        patience: Duration,
        deadline: Instant,
    ) -> Result<(), CallError> {
        for copy in self.route(event, None, headers)? {
            let sent = async { self.outbound.send(&copy).await?.await };
            match timeout_at(deadline.into(), sent).await {
                Ok(Ok(_)) => self.published(copy.bus),
                Ok(Err(error)) => return Err(self.unreachable_agent(&error, &copy)),
                Err(_) => return Err(CallError::Timeout(Silence::unpublished(patience, event))),
            }
        }
        Ok(())
    }

    fn published(&self, bus: BusId) {
        if let Some(bus) = self.outbound.buses().get(bus) {
            bus.metrics.published.inc();
        }
    }

    fn route(
        &self,
        event: &Event,
        call: Option<CallId>,
        headers: &[Header],
    ) -> Result<Vec<Outgoing>, CallError> {
        let from = From {
            binding: DOOR,
            key: None,
            origin: None,
            headers,
        };
        let copies = self
            .outbound
            .route(event, from, |bus, event, address| match call {
                Some(call) => self.legs.stamp(call, bus, event, address),
                None => Vec::new(),
            });
        copies.map_err(|error| unroutable(&error, event))
    }

    /// Where a copy goes, as `Kafka topic agents.weather`.
    fn name_of(&self, copy: &Outgoing) -> String {
        let bus = self.outbound.buses().get(copy.bus);
        let kind = match bus.map(|bus| bus.transport.binding()) {
            Some(Binding::Kafka) => "Kafka topic",
            Some(Binding::Nats) => "NATS subject",
            _ => "topic",
        };
        format!("{kind} {}", copy.address.topic)
    }

    /// What a transport's refusal means to a caller.
    fn unreachable_agent(&self, error: &TransportError, copy: &Outgoing) -> CallError {
        match error.kind() {
            TransportErrorKind::UnknownTopic => {
                let missing = match copy.address.guarantee {
                    Guarantee::Stored { .. } => "is taken by no JetStream stream",
                    Guarantee::Default => "does not exist",
                };
                CallError::NoTopic(MissingTopic {
                    what: format!("{} {missing}", self.name_of(copy)).into(),
                    place: copy.place,
                })
            }
            TransportErrorKind::TooLarge | TransportErrorKind::BadMessage => {
                CallError::Refused(error.to_string().into())
            }
            _ => CallError::Unavailable(error.to_string().into()),
        }
    }

    /// The event of a request or notification, for the target that the path names.
    fn event(&self, request: Request) -> Result<Event, CallError> {
        let source = Source::new(format!("{}/{}", self.source, request.caller));
        let context = MapContext {
            source: source.map_err(|error| refused(&error))?,
            time: Some(crate::clock::time()),
            // A call has its call id in place of this one.
            ids: Ids::Fresh(&crate::clock::new_event_id),
        };
        let mut event = map_unit(request.unit, &self.options, &context).event;
        if let Some(target) = request.target {
            let named = event.extension_text(extension::TARGET_AGENT);
            if named.is_some_and(|named| *named != target) {
                self.metrics.target_conflict();
            }
            event
                .set(extension::TARGET_AGENT, target)
                .map_err(|error| refused(&error))?;
        }
        Ok(event)
    }

    /// Notes that the bus has a copy of the request of a call.
    pub(crate) fn note_published(&self, copy: &Outgoing) {
        if let Some(call) = copy.call.as_ref().and_then(|call| call.parse().ok()) {
            self.pending.note_published(call);
        }
    }

    /// Waits until answers that come back on the bus are read, as long as a caller waits by default.
    pub(crate) async fn until_answers_are_read(&self, bus: BusId) {
        let reading = self.legs.until_reading(bus);
        if tokio::time::timeout(self.limits.timeout, reading)
            .await
            .is_err()
        {
            tracing::warn!("a request is published though answers are not read yet");
        }
    }

    /// Fails the call whose request no bus takes, unless another copy of it may be answered.
    pub(crate) fn undeliverable(&self, copy: &Outgoing, error: &TransportError) {
        let Some(call) = copy.call.as_ref().and_then(|call| call.parse().ok()) else {
            return;
        };
        let error = self.unreachable_agent(error, copy);
        self.pending
            .hand_over(call, |entry| (entry.buses.len() == 1).then_some(Err(error)));
    }

    /// Fails every call that went to a bus that is gone.
    pub fn fail_all(&self, bus: BusId, cause: &Text) {
        let failed = self.pending.fail_where(
            |entry| entry.buses.contains(&bus) && !entry.is_kept,
            &CallError::Unavailable(cause.clone()),
        );
        if failed > 0 {
            tracing::warn!(calls = failed, %cause, "a bus is away: its calls failed at once");
        }
    }

    /// Sends the agent the cancel of its protocol.
    pub(crate) async fn send_cancel(&self, cancel: Cancel) {
        let (call, agent) = (cancel.call(), cancel.target().map_or("", Text::as_str));
        let payload = Bytes::from(cancel.payload());
        let limits = a2abus_plugin::Limits::default();
        for unit in a2abus_plugin::decode(&payload, &a2abus_plugin::Hint::default(), &limits)
            .into_iter()
            .flatten()
        {
            let request = Request {
                unit,
                call: None,
                target: cancel.target().cloned(),
                timeout: None,
                caller: Text::from_static("cancel"),
                headers: Vec::new(),
            };
            let Ok(mut event) = self.event(request) else {
                continue;
            };
            // Both values are legal: the target was an attribute before, the call id is base32.
            let marked = event.set(extension::CALL_ID, Text::from(cancel.call().to_string()));
            debug_assert!(marked.is_ok());
            for original in cancel.copies() {
                let Ok(copy) = self.outbound.beside(&event, original) else {
                    continue;
                };
                let sent = async { self.outbound.send(&copy).await?.await };
                match timeout_at((Instant::now() + self.limits.timeout).into(), sent).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => {
                        let error = self.unreachable_agent(&error, &copy);
                        tracing::warn!(agent, %call, "cancel not sent: {error}");
                    }
                    Err(_) => {
                        let place = self.name_of(&copy);
                        tracing::warn!(agent, %call, "cancel not confirmed in time by {place}");
                    }
                }
            }
        }
    }
}

// === impl Silence ===

impl Silence {
    /// A request whose time was over before the bridge read it.
    pub(crate) fn expired(event: &Event) -> Self {
        Self::unpublished(Duration::ZERO, event)
    }

    /// A request whose time was over before the bus had it.
    fn unpublished(after: Duration, event: &Event) -> Self {
        let agent = event.extension_text(extension::TARGET_AGENT).cloned();
        Self {
            after,
            agent: agent.unwrap_or_default(),
            published: None,
        }
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            after,
            agent,
            published,
        } = self;
        if after.is_zero() {
            return f.write_str("the request had expired before the bridge read it");
        }
        // Rounded up, as callers ask for whole ones.
        let millis = after.as_micros().div_ceil(1_000);
        let Some(published) = published else {
            return write!(
                f,
                "not sent within {millis} ms: the bus did not confirm the request"
            );
        };
        f.write_str("no answer")?;
        if !agent.is_empty() {
            write!(f, " from agent {:?}", agent.as_str())?;
        }
        write!(f, " within {millis} ms (published to {published})")
    }
}

impl fmt::Display for MissingTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

/// A call that is registered and not yet published.
pub(crate) struct Opened {
    call: CallId,
    parts: mpsc::Receiver<Piece>,
    cancel: Cancel,
    patience: Duration,
    /// How long the whole answer may take.
    whole: Duration,
    is_rpc: bool,
    is_published: Arc<AtomicBool>,
}

// === impl Opened ===

impl Opened {
    /// Its answer, to wait for.
    pub(crate) fn answer(self, account: Account, calls: &Arc<Calls>) -> Answer {
        let started = account.started();
        Answer {
            call: self.call,
            parts: self.parts,
            confirmations: FuturesUnordered::new(),
            deadline: started + self.patience,
            last_deadline: started + self.whole,
            gap_deadline: None,
            patience: self.patience,
            account,
            ended: false,
            was_sent: false,
            is_rpc: self.is_rpc,
            is_published: self.is_published,
            by_binding: false,
            cancel: self.cancel,
            calls: Arc::clone(calls),
        }
    }
}

// === impl CallError ===

impl CallError {
    /// The stable word of this error: in the access log, and as `data.reason` of a JSON-RPC error.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::AgentNotFound(_) => "agent_not_found",
            Self::Timeout(_) => "timeout",
            Self::Unavailable(_) | Self::Draining => "agent_unavailable",
            Self::NoTopic(missing) => match missing.place {
                Place::FromEvent => "agent_not_found",
                Place::Configured => "agent_unavailable",
            },
            Self::Exhausted(_) | Self::SlowCaller => "exhausted",
            Self::Refused(_) => "invalid_params",
            Self::BadAnswer(_) => "bad_agent_reply",
        }
    }
}

// === impl Answer ===

impl Answer {
    fn bus_is_away(&self) -> Option<Text> {
        let buses = self.calls.outbound.buses();
        self.cancel.copies().iter().find_map(|copy| {
            let health = buses.get(copy.bus)?.transport.health();
            let health = health.borrow();
            match &*health {
                Health::Up => None,
                Health::Down(cause) => Some(cause.clone()),
            }
        })
    }

    /// Hands every copy to its bus; confirmations are awaited beside the answer, which may well be quicker.
    async fn publish(&mut self) -> Result<(), CallError> {
        for copy in self.cancel.copies() {
            match timeout_at(self.deadline.into(), self.calls.outbound.send(copy)).await {
                Ok(Ok(confirmation)) => {
                    let bus = copy.bus;
                    self.was_sent = true;
                    self.confirmations
                        .push(Box::pin(async move { (bus, confirmation.await) }));
                }
                Ok(Err(error)) => return Err(self.calls.unreachable_agent(&error, copy)),
                Err(_) => return Err(self.silence()),
            }
        }
        Ok(())
    }

    /// The next part; after the last one, or an error, `None`. Waits until the deadline of the call at most.
    /// Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Part, CallError>> {
        if self.ended {
            return None;
        }
        let received = loop {
            let deadline = self.deadline.min(self.last_deadline);
            let wake = self.gap_deadline.map_or(deadline, |gap| gap.min(deadline));
            tokio::select! {
                biased;
                piece = self.parts.recv() => match piece {
                    Some(Piece::Part(part)) => break part,
                    Some(Piece::Waiting) => {
                        self.gap_deadline.get_or_insert_with(|| Instant::now() + GAP_PATIENCE);
                    }
                    // The channel closes without an end only when the caller left no room for a part.
                    None => break Err(CallError::SlowCaller),
                },
                Some((bus, confirmed)) = self.confirmations.next() => match confirmed {
                    Ok(_) => self.calls.published(bus),
                    Err(error) => break Err(self.unconfirmed(&error)),
                },
                () = tokio::time::sleep_until(wake.into()) => {
                    // The missing record does not come: what waited for it is what there is.
                    self.gap_deadline = None;
                    let is_over = wake == deadline;
                    let released = self.calls.pending.hand_over(self.call, |entry| {
                        let parts = render::released(entry);
                        (!parts.is_empty()).then_some(Ok(parts))
                    });
                    // Who is late has met somebody who is delivering the end at this moment.
                    if released == Handed::Request && is_over {
                        break Err(self.silence());
                    }
                }
            }
        };
        Some(match received {
            Ok(part) => {
                self.calls.metrics.call_parts.inc();
                self.deadline = Instant::now() + self.patience;
                if part.last {
                    self.end();
                    self.account.answered();
                } else {
                    self.cancel.note_part(&part.body);
                }
                Ok(part)
            }
            Err(error) => Err(self.fail(error)),
        })
    }

    fn unconfirmed(&self, error: &TransportError) -> CallError {
        let place = self.cancel.copies().first();
        place.map_or_else(
            || CallError::Unavailable(error.to_string().into()),
            |copy| self.calls.unreachable_agent(error, copy),
        )
    }

    /// Nobody has answered: whom the request is for, and where it is if the bus has confirmed all of it.
    fn silence(&self) -> CallError {
        let places = self.cancel.copies().iter();
        let places = places
            .map(|copy| self.calls.name_of(copy))
            .collect::<Vec<_>>();
        let published = self.may_have_arrived() && self.confirmations.is_empty();
        CallError::Timeout(Silence {
            after: self.patience,
            agent: self.cancel.target().cloned().unwrap_or_default(),
            published: published.then(|| places.join(", ").into()),
        })
    }

    /// Ends the call with an error. An agent that has the request is told, unless it knows better.
    fn fail(&mut self, error: CallError) -> CallError {
        self.end();
        self.account.failed(&error);
        let knows = matches!(
            error,
            CallError::Unavailable(_) | CallError::NoTopic(_) | CallError::BadAnswer(_)
        );
        if !knows {
            self.cancel();
        }
        error
    }

    /// Whether an agent may have the request.
    fn may_have_arrived(&self) -> bool {
        if self.by_binding {
            self.is_published.load(Ordering::Relaxed)
        } else {
            self.was_sent
        }
    }

    /// Tells the agent that nobody waits any more, if it may have the request.
    fn cancel(&mut self) {
        if self.is_rpc && self.may_have_arrived() {
            self.calls.canceller.send(self.cancel.take());
        }
    }

    /// The identity of the call.
    #[must_use]
    pub fn call_id(&self) -> CallId {
        self.call
    }

    /// The same, when a binding publishes the request.
    pub(crate) fn published_by_binding(mut self) -> Self {
        self.by_binding = true;
        self.cancel.forget_bodies();
        self
    }

    fn end(&mut self) {
        self.ended = true;
        self.calls.pending.remove(self.call);
        self.calls.ended.note(self.call, self.account.agent());
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

/// How a call ended: the label of its metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The last part reached the caller.
    Answered,
    /// Nobody answered in time.
    Timeout,
    /// The caller went away.
    Cancelled,
    /// The agent or the bus could not be reached.
    Unavailable,
    /// Anything else.
    Failed,
}

// === impl Outcome ===

impl Outcome {
    pub(crate) fn of(error: &CallError) -> Self {
        match error {
            CallError::Timeout(_) => Self::Timeout,
            CallError::Unavailable(_) | CallError::NoTopic(_) => Self::Unavailable,
            CallError::AgentNotFound(_)
            | CallError::Exhausted(_)
            | CallError::Draining
            | CallError::Refused(_)
            | CallError::SlowCaller
            | CallError::BadAnswer(_) => Self::Failed,
        }
    }

    /// The label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Unavailable => "unavailable",
            Self::Failed => "failed",
        }
    }
}

/// The bytes of a JSON-RPC request with the call id in place of its id and, where it has one, of its progress token.
fn with_call_id(bytes: &Bytes, id: &Id, progress: Option<&Id>, call: &str) -> Bytes {
    let token = format!("\"{call}\"");
    let Some(progress) = progress else {
        return splice(bytes, id.span(), &token);
    };
    // The later one first, so that the place of the other stays what it is.
    let (first, second) = if id.span().start < progress.span().start {
        (id, progress)
    } else {
        (progress, id)
    };
    let body = splice(bytes, second.span(), &token);
    splice(&body, first.span(), &token)
}

/// What it means to a caller that its request cannot be routed.
pub(crate) fn unroutable(error: &RoutingError, event: &Event) -> CallError {
    match (error, event.extension_text(extension::TARGET_AGENT)) {
        (RoutingError::NoRoute, target) => {
            CallError::AgentNotFound(target.cloned().unwrap_or_default())
        }
        // Most destinations are formed of the target.
        (RoutingError::Destination { .. }, None) => CallError::AgentNotFound(Text::default()),
        // Which route it was is the business of operators.
        (RoutingError::Destination { route, cause }, Some(_)) => {
            tracing::debug!(%route, %cause, "the destination of a request cannot be formed");
            CallError::Refused(cause.to_string().into())
        }
        (other, _) => CallError::Refused(other.to_string().into()),
    }
}

fn not_a_request() -> CallError {
    CallError::Refused(Text::from_static("not a JSON-RPC request"))
}

fn refused(error: &a2abus_plugin::EventError) -> CallError {
    CallError::Refused(error.to_string().into())
}
