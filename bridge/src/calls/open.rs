//! Prepares a request before it is published: assigns the call id, routes it and registers the call.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::protocol::jsonrpc::{Id, JsonRpc, RpcBody, splice};
use a2abus_plugin::{
    Data, Event, EventError, Family, Ids, MapContext, Source, Text, Time, Value, extension,
    map_unit,
};
use a2abus_transports::{Address, Header, Origin};
use bytes::Bytes;
use tokio::sync::mpsc;

use super::error::{Bound, CallError, NoAnswer, RequestState};
use super::service::{Calls, Request};
use crate::account::{self, Account};
use crate::budget::{Charge, ClientBudget};
use crate::bus::BusId;
use crate::bus::outbound::{Outgoing, Provenance, RoutingError, TrackedRequest};
use crate::calls::callid::{CallId, ReplyId};
use crate::calls::cancel::{CANCELS, Cancel};
use crate::calls::failure::Recipient;
use crate::calls::pending::{CallRequest, CallerMessage, Entry, Fingerprint, Form, Questions};
use crate::calls::question::{Abilities, Client};
use crate::calls::reply_form::ReplyForm;
use crate::clock;
use crate::names::DOOR;
use crate::rules::Rules;
use crate::shares::{Share, client_of};

/// A request that expects an answer, before it is routed.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// The call id, with the token that proves that an answer belongs to the call.
    pub(crate) id: ReplyId,
    /// What the call has replaced in the request.
    pub(crate) original: Original,
    /// The request with the call id, for the agent that answers.
    pub(crate) event: Event,
    /// When its caller stops waiting.
    expires: SystemTime,
    /// The fingerprint of the request as that agent receives it; set by routing.
    fingerprint: OnceCell<Fingerprint>,
    form: Form,
    dialect: Dialect,
    streamed: bool,
    /// How long the caller waits.
    timeouts: Timeouts,
    /// The questions that the caller supports, if it accepts other messages before the answer.
    client: Option<Abilities>,
}

/// How long a caller waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timeouts {
    /// For the answer, or for its first part.
    pub(super) first: Duration,
    /// For each further part.
    pub(super) part: Duration,
    /// For the last part, counted from the request, as long as no part has arrived.
    pub(super) last: Duration,
    /// For the last part, counted from the request, once a part has arrived.
    pub(super) begun: Duration,
}

/// The data and attributes of a received request that its call replaces.
#[derive(Debug)]
pub(crate) struct Original {
    pub(crate) id: Text,
    data: Option<Data>,
    attributes: [Option<Value>; OF_CALL.len()],
}

/// A call that is registered and not yet published.
pub(crate) struct Opened {
    pub(super) id: ReplyId,
    pub(super) parts: mpsc::Receiver<Box<CallerMessage>>,
    pub(super) cancel: Cancel,
    pub(super) timeouts: Timeouts,
    pub(super) is_rpc: bool,
    pub(super) client: Option<Abilities>,
    pub(super) may_have_arrived: Arc<AtomicBool>,
}

/// The memory of a waiting call, in bytes: its entry, its answer, and the tasks and buffers around them.
const PENDING_BYTES: usize = 4 << 10;

/// The attributes that a call sets, besides `id`.
const OF_CALL: [&str; 3] = [
    extension::CALL_ID,
    extension::COLLABORATION_ID,
    extension::EXPIRY_TIME,
];

// === impl Original ===

impl Original {
    fn of(event: &Event) -> Self {
        Self {
            id: event.id().clone(),
            data: event.data().cloned(),
            attributes: OF_CALL.map(|name| event.extension(name).cloned()),
        }
    }

    /// The request as it was received.
    fn restore(&self, event: &Event) -> Result<Event, EventError> {
        let mut event = event.clone();
        event.set("id", self.id.clone())?;
        event.set_data(self.data.clone());
        for (name, value) in OF_CALL.into_iter().zip(&self.attributes) {
            match value {
                Some(value) => event.set(name, value.clone())?,
                None => event.remove(name),
            }
        }
        Ok(event)
    }
}

// === impl Timeouts ===

impl Timeouts {
    /// A caller that waits for `part` for each part, and for `last` if there are several.
    pub(super) fn new(part: Duration, last: Duration) -> Self {
        Self {
            first: part,
            part,
            last,
            begun: last,
        }
    }
}

// === impl Exchange ===

impl Exchange {
    /// The timeouts. An answer may come in several parts although the request did not announce that.
    fn timeouts(&self) -> Timeouts {
        let shows_progress = matches!(
            self.form,
            Form::JsonRpc {
                progress: Some(_),
                ..
            }
        );
        if self.streamed || self.client.is_some() || shows_progress {
            self.timeouts
        } else {
            let last = self.timeouts.first;
            Timeouts {
                last,
                ..self.timeouts
            }
        }
    }

    /// Sets whether the caller accepts parts that are results.
    fn set_accepts_parts(&mut self, accepts: bool) {
        if let Form::JsonRpc { accepts_parts, .. } = &mut self.form {
            *accepts_parts = accepts;
        }
    }

    /// Sets the client that answers the questions of the agent.
    fn set_client(&mut self, Client { abilities, session }: Client) {
        self.client = Some(abilities);
        if let Form::JsonRpc { questions, .. } = &mut self.form {
            *questions = Questions::All(session);
        }
    }
}

// === impl Calls ===

impl Calls {
    /// Prepares a caller's request for publishing. Returns the registered call and the copies to publish.
    pub(super) fn begin(
        &self,
        call: CallId,
        mut request: Request,
        (client, budget): (Option<Client>, Option<ClientBudget>),
        account: &mut Account,
    ) -> Result<(Opened, Vec<Outgoing>), CallError> {
        let (timeout, arrived) = (request.timeout, request.arrived);
        let (bounds_first_part, accepts_parts) = (request.bounds_first_part, request.accepts_parts);
        let message = request.data.as_ref().unwrap_or(&request.unit);
        let (json_rpc, bytes) = (message.json_rpc.clone(), message.bytes.clone());
        let method = request.method_in_data();
        let caller = request.caller.clone();
        let headers = std::mem::take(&mut request.headers);
        let key = request.key.take();
        let event = self.event(request)?;
        let agent = account::agent_of(&event);
        let rules = self.rules();
        account.is_for(&event, method, rules.names(&agent));
        if clock::is_expired(&event) {
            return Err(CallError::Timeout(Box::new(NoAnswer::unpublished(
                Duration::ZERO,
                &event,
                RequestState::Expired,
            ))));
        }
        let waited = arrived.elapsed();
        let left = clock::time_left(&event).map(|left| left + waited);
        let timeout = timeout.map_or(left, |own| Some(left.map_or(own, |left| left.min(own))));
        let rpc = json_rpc.as_ref().map(|rpc| (rpc, &bytes));
        let mut exchange = self.exchange(call, event, rpc, (timeout, waited))?;
        exchange.event.set("id", call.text())?;
        if let Some(client) = client {
            exchange.set_client(client);
        }
        if let Some(accepts_parts) = accepts_parts {
            exchange.set_accepts_parts(accepts_parts);
        }
        if bounds_first_part {
            let last = self.limits.stream_timeout.max(exchange.timeouts.first);
            let part = self.limits.timeout;
            exchange.timeouts = Timeouts {
                part,
                last,
                begun: last,
                ..exchange.timeouts
            };
        }
        let event_id = exchange.original.id.clone().into();
        let from = Self::of_caller(&rules, &event_id, key.as_ref(), &headers);
        let copies = self.route_call(&mut exchange, from);
        let copies = copies.map_err(|error| CallError::unroutable(&error, &exchange.event))?;
        if let Some(unreadable) = copies.iter().find(|copy| self.lacks_reply_reader(copy)) {
            return Err(self.no_reply_reader(unreadable));
        }
        let opened = self.open(exchange, &copies, Some((&caller, budget)), None)?;
        Ok((opened, copies))
    }

    /// Prepares a request that expects an answer. In the payload of a JSON-RPC request (`rpc`: its message and bytes),
    /// the call id replaces the caller's id and progress token; nothing else changes. `requested` is the timeout that
    /// the caller asks for, if any; `waited` is how much of it has passed.
    ///
    /// # Errors
    /// When `rpc` is a JSON-RPC message that expects no answer, or a cancel with an id.
    pub(crate) fn exchange(
        &self,
        call: CallId,
        mut event: Event,
        rpc: Option<(&JsonRpc, &Bytes)>,
        (requested, waited): (Option<Duration>, Duration),
    ) -> Result<Exchange, CallError> {
        let timeout = self.timeout_for(requested);
        let stream_timeout = requested.map_or(self.limits.stream_timeout, |_| timeout);
        let original = Original::of(&event);
        let expires = clock::now() + timeout.saturating_sub(waited);
        let expiry = Text::from(Time::from(expires));
        let target = event.extension_text(extension::TARGET_AGENT);
        let reply_id = self.tokens.reply_id(call, target, &expiry);
        let id = reply_id.text();
        let (form, dialect, streamed) = match rpc {
            None => {
                let has_family = event.extension(extension::PROTOCOL).is_some();
                (Form::Untouched { has_family }, Dialect::JsonRpc, true)
            }
            Some((message, bytes)) => {
                let (Some(own), RpcBody::Call { streaming }) = (&message.id, message.body) else {
                    return Err(CallError::not_a_request());
                };
                let method = event.extension_text(extension::A2A_METHOD);
                if let Some(method) = method.filter(|method| CANCELS.contains(&method.as_str())) {
                    return Err(CallError::cancel_with_id(method.as_str()));
                }
                let progress = message.progress.as_deref();
                event.set_data(Some(Data::from(with_token(
                    bytes,
                    own,
                    progress,
                    &Text::concat(&["\"", &id, "\""]),
                ))));
                let form = Form::JsonRpc {
                    id: own.token().clone(),
                    questions: Questions::Refused,
                    accepts_parts: streaming,
                    progress: progress.map(|token| token.token().clone()),
                };
                (form, message.dialect, streaming)
            }
        };
        for (name, value) in OF_CALL.into_iter().zip([id.clone(), id, expiry]) {
            event.set(name, value)?;
        }
        Ok(Exchange {
            id: reply_id,
            original,
            event,
            expires,
            fingerprint: OnceCell::new(),
            form,
            dialect,
            streamed,
            timeouts: Timeouts::new(timeout, stream_timeout),
            client: None,
        })
    }

    /// Registers a call whose `copies` are about to be published. It counts against the limit of its agent, and of its
    /// caller if there is one. The caller's budget is looked up if it is not known. If a bus stores the message of the
    /// request until it is answered (`stored_by`), the call survives an outage of the agent's bus, once it is sent.
    ///
    /// # Errors
    /// When too many calls are waiting, or the bridge is draining.
    pub(crate) fn open(
        &self,
        exchange: Exchange,
        copies: &[Outgoing],
        caller: Option<(&Text, Option<ClientBudget>)>,
        stored_by: Option<BusId>,
    ) -> Result<Opened, CallError> {
        let timeouts = exchange.timeouts();
        let Exchange {
            id,
            event,
            fingerprint,
            form,
            dialect,
            streamed,
            client,
            ..
        } = exchange;
        let (is_rpc, may_have_arrived) = (matches!(form, Form::JsonRpc { .. }), Arc::default());
        let target = event.extension_text(extension::TARGET_AGENT).cloned();
        let (fingerprint, (caller, budget)) = (fingerprint.into_inner(), caller.unzip());
        let shares = self.shares(target.clone().unwrap_or_default(), caller)?;
        let (budget, charge) = self.memory_of(caller, budget.flatten())?;
        let (sender, parts) = mpsc::channel(self.limits.max_parts_buffered);
        let agent = target.clone().unwrap_or_default();
        let fingerprint = fingerprint.unwrap_or_else(|| Fingerprint::of(&event));
        let request = CallRequest::new(id, form, streamed, agent, fingerprint);
        let entry = Entry {
            parts: sender,
            request: Arc::new(request),
            bus: bus_of(copies),
            is_kept: AtomicBool::new(stored_by.is_some()),
            stored_by,
            may_have_arrived: Arc::clone(&may_have_arrived),
            line: None,
            shares,
            budget,
            _charge: charge,
        };
        // Requests that were read from the bus before the drain began are still answered.
        if caller.is_some() && self.draining.load(Ordering::Relaxed) {
            return Err(CallError::Draining);
        }
        if !self.pending.register(id.call, entry) {
            return Err(CallError::Exhausted(Bound::Calls));
        }
        Ok(Opened {
            id,
            parts,
            cancel: Cancel::new(id, dialect, target, copies),
            timeouts,
            is_rpc,
            client,
            may_have_arrived,
        })
    }

    /// Checks the bus of a request that a binding has read. Call this after the call is registered: when a bus is given
    /// up, only registered calls fail.
    ///
    /// # Errors
    /// When the bus is down. Not if the source of the request is on the same bus (`stored_by`): the requester would get
    /// no error before that bus is back.
    pub(crate) fn reachable(
        &self,
        opened: Opened,
        copies: &[Outgoing],
        stored_by: Option<BusId>,
    ) -> Result<Opened, CallError> {
        let bus = bus_of(copies).filter(|bus| stored_by != Some(*bus));
        match bus.and_then(|bus| self.outage(bus)) {
            None => Ok(opened),
            Some(cause) => {
                self.pending.remove(opened.id.call);
                Err(CallError::Unavailable(cause))
            }
        }
    }

    /// The budget for the parts of the answer, which may be known, and the charge for the call itself.
    fn memory_of(
        &self,
        caller: Option<&Text>,
        known: Option<ClientBudget>,
    ) -> Result<(ClientBudget, Charge), CallError> {
        let found = || {
            let peer = caller.and_then(|caller| caller.parse().ok());
            self.budget.for_client(peer)
        };
        let budget = known.unwrap_or_else(found);
        let charge = budget.charge(PENDING_BYTES);
        let charge = charge.map_err(|spent| CallError::Exhausted(spent.into()))?;
        Ok((budget, charge))
    }

    /// The error for a copy that is not published, because nothing would read its answer yet.
    pub(super) fn no_reply_reader(&self, copy: &Outgoing) -> CallError {
        if self.channels.is_empty() {
            if let Some(suppressed) = self.disabled.allow() {
                let agent = copy.agent.as_deref();
                tracing::warn!(
                    agent,
                    suppressed,
                    "a call is refused: this bridge makes no calls (calls.enabled is false)"
                );
            }
            return CallError::Disabled;
        }
        let bus = self.outbound.buses().get(copy.bus);
        let bus = bus.map_or("the bus", |bus| bus.name.text());
        CallError::Unavailable(format!("answers from {bus} cannot be read yet").into())
    }

    /// Reserves one call within the limits of the agent and the caller. Calls that name no agent share one limit.
    fn shares(&self, agent: Text, caller: Option<&Text>) -> Result<Vec<Share<Text>>, CallError> {
        let mut shares = Vec::with_capacity(2);
        if let Some(caller) = caller {
            let share = self.of_callers.take(&client_of(caller));
            shares.push(share.ok_or(CallError::Exhausted(Bound::Caller))?);
        }
        let share = self.of_agents.take(&agent);
        shares.push(share.ok_or(CallError::Exhausted(Bound::Agent(agent)))?);
        Ok(shares)
    }

    /// Routes a call. The copy that is to be answered gets the reply address. It may be made of the event of the call
    /// itself, so its attributes may be in that event afterwards.
    ///
    /// # Errors
    /// As [`crate::bus::outbound::Outbound::route`].
    pub(crate) fn route_call(
        &self,
        exchange: &mut Exchange,
        from: Provenance<'_>,
    ) -> Result<Vec<Outgoing>, RoutingError> {
        let Exchange {
            id,
            original,
            event,
            expires,
            fingerprint,
            ..
        } = exchange;
        let stamp = |bus, event: &mut Event, address: &mut Address| {
            fingerprint.get_or_init(|| Fingerprint::of(event));
            self.channels.stamp(*id, bus, event, address)
        };
        let to_answer = TrackedRequest {
            call: id.call,
            expires: *expires,
            plain: &|event| original.restore(event),
            stamp: &stamp,
        };
        self.outbound.route(event, from, Some(to_answer))
    }

    /// The provenance of a caller's event. The message ids of its copies are derived from its fresh event id: a retried
    /// copy has the same id, and no other copy does. For a call this is the id that the call id replaces, which only
    /// the agent may see.
    pub(super) fn of_caller<'a>(
        rules: &'a Rules,
        event_id: &'a Origin,
        key: Option<&'a Bytes>,
        headers: &'a [Header],
    ) -> Provenance<'a> {
        Provenance {
            rules,
            binding: DOOR,
            reader: "",
            key,
            origin: Some((event_id, 0)),
            headers,
        }
    }

    /// The event of a request or notification. The target in the path overrides the one in the payload.
    pub(super) fn event(&self, request: Request) -> Result<Event, CallError> {
        let context = MapContext {
            source: Source::new(Text::concat(&[&self.source, "/", &request.caller]))?,
            time: Some(clock::time()),
            // A call replaces this id with its call id.
            ids: Ids::Fresh(&clock::new_event_id),
        };
        let is_event = request.unit.detection.family == Family::CloudEvent;
        let mut event = map_unit(request.unit, &self.options, &context).event;
        if is_event {
            self.override_claims(&mut event, &context)?;
        }
        if let Some(target) = request.target {
            let named = event.extension_text(extension::TARGET_AGENT);
            if named.is_some_and(|named| *named != target) {
                self.metrics.target_conflict();
            }
            event.set(extension::TARGET_AGENT, target)?;
        }
        Ok(event)
    }

    /// Overrides the attributes with which a sender claims an origin or directs answers. The rights of an event depend
    /// on its `source`.
    fn override_claims(
        &self,
        event: &mut Event,
        context: &MapContext<'_>,
    ) -> Result<(), CallError> {
        event.set("source", Text::from(context.source.clone()))?;
        event.set("id", Text::from(clock::new_event_id()))?;
        let is_no_time = clock::expiry(event).is_none();
        for name in OVERRULED {
            let is_kept = name == extension::EXPIRY_TIME && !is_no_time;
            if event.extension(name).is_some() && !is_kept {
                event.remove(name);
                self.metrics.overruled(DOOR, name);
                tracing::debug!(
                    attribute = name,
                    "an attribute that a caller may not set was removed from its event"
                );
            }
        }
        Ok(())
    }

    /// The form of the answer to an event; `None` if it cannot be read.
    pub(crate) fn reply_form(&self, event: Option<&Event>, recipient: Recipient) -> ReplyForm {
        let own = event.and_then(|event| event.extension_text(extension::COLLABORATION_ID));
        ReplyForm {
            recipient,
            collaboration_id: own.cloned(),
            request_id: event.map(|event| event.id().clone()),
            call_id: None,
            source: Source::new(self.source.clone()).unwrap_or_default(),
            options: self.options.clone(),
            limits: self.rules().limits,
        }
    }
}

/// The attributes that HTTP callers may not set. `expirytime` is removed only if it is not a valid time.
pub(crate) const OVERRULED: [&str; 8] = [
    extension::SOURCE_AGENT,
    extension::ORIGIN,
    extension::HOPS,
    extension::REPLY_TO,
    extension::REPLY_PARTITION,
    extension::PROGRESS_TO,
    extension::CALL_ID,
    extension::EXPIRY_TIME,
];

/// The bus of the copy that is to be answered.
fn bus_of(copies: &[Outgoing]) -> Option<BusId> {
    let answered = copies.iter().find(|copy| copy.is_awaited);
    answered.map(|copy| copy.bus)
}

/// Replaces the id and, if there is one, the progress token of a JSON-RPC request with a JSON token.
pub(crate) fn with_token(bytes: &Bytes, id: &Id, progress: Option<&Id>, token: &str) -> Bytes {
    let Some(progress) = progress else {
        return splice(bytes, id.span(), token);
    };
    // Replace the later one first, so that the offset of the other stays valid.
    let (first, second) = if id.span().start < progress.span().start {
        (id, progress)
    } else {
        (progress, id)
    };
    let body = splice(bytes, second.span(), token);
    splice(&body, first.span(), token)
}
