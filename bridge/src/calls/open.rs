//! What happens to a request before it is published: the call id is put in, it is routed and registered.

use std::cell::OnceCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::protocol::jsonrpc::{Id, JsonRpc, RpcBody, splice};
use a2abus_plugin::{Data, Event, Family, Ids, MapContext, Source, Text, extension, map_unit};
use a2abus_transports::{Address, Header};
use bytes::Bytes;
use tokio::sync::mpsc;

use super::error::{Bound, CallError, NoAnswer};
use super::service::{Calls, DOOR, Request};
use crate::account::{self, Account};
use crate::budget::{Charge, ClientBudget};
use crate::bus::outbound::{Outgoing, Provenance, RoutingError, TrackedRequest};
use crate::calls::callid::{CallId, ReplyId};
use crate::calls::cancel::Cancel;
use crate::calls::failure::Recipient;
use crate::calls::pending::{CallRequest, CallerMessage, Entry, Fingerprint, Form};
use crate::calls::question::Abilities;
use crate::calls::reply_form::ReplyForm;
use crate::clock;
use crate::rules::Rules;
use crate::shares::{Share, client_of};

/// A request that expects an answer, before it is routed.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// Its identity on the bus, with what proves that an answer is one.
    pub(crate) id: ReplyId,
    /// The request as it came.
    pub(crate) plain: Event,
    /// The request for the agent that answers, as it is routed.
    pub(crate) event: Event,
    /// The same as that agent gets it, once it is routed.
    request: OnceCell<Fingerprint>,
    form: Form,
    dialect: Dialect,
    streamed: bool,
    /// How long the caller waits for the answer, or for the next part of it.
    patience: Duration,
    /// How long it waits for the last part.
    whole: Duration,
    /// What it can be asked, where it takes other messages before the answer.
    client: Option<Abilities>,
}

/// A call that is registered and not yet published.
pub(crate) struct Opened {
    pub(super) id: ReplyId,
    pub(super) parts: mpsc::Receiver<CallerMessage>,
    pub(super) cancel: Cancel,
    pub(super) patience: Duration,
    /// How long the whole answer may take.
    pub(super) whole: Duration,
    pub(super) is_rpc: bool,
    pub(super) client: Option<Abilities>,
    pub(super) may_have_arrived: Arc<AtomicBool>,
}

/// What a call that waits costs, in bytes: its entry, its answer, and the tasks and buffers around them.
const PENDING_BYTES: usize = 4 << 10;

// === impl Exchange ===

impl Exchange {
    /// How long its caller waits for the last part: who takes other messages before the answer waits longer.
    fn whole(&self) -> Duration {
        let has_parts = self.streamed || self.client.is_some();
        if has_parts { self.whole } else { self.patience }
    }

    /// Who waits for the answer.
    fn is_of(&mut self, client: Option<Abilities>) {
        self.client = client;
        if let Form::JsonRpc {
            takes_questions, ..
        } = &mut self.form
        {
            *takes_questions = client.is_some();
        }
    }
}

// === impl Calls ===

impl Calls {
    /// Everything before the request of a caller is published: the call, and the copies to publish.
    pub(super) fn begin(
        &self,
        call: CallId,
        mut request: Request,
        client: Option<Abilities>,
        account: &mut Account,
    ) -> Result<(Opened, Vec<Outgoing>), CallError> {
        let timeout = request.timeout;
        let message = request.data.take().unwrap_or_else(|| request.unit.clone());
        let caller = request.caller.clone();
        let headers = std::mem::take(&mut request.headers);
        let event = self.event(request)?;
        let agent = account::agent_of(&event);
        let rules = self.rules();
        account.is_for(&event, rules.names(&agent));
        if clock::is_expired(&event) {
            return Err(CallError::Timeout(Box::new(NoAnswer::expired(&event))));
        }
        let left = clock::time_left(&event);
        let timeout = timeout.map_or(left, |own| Some(left.map_or(own, |left| left.min(own))));
        let rpc = message.json_rpc.as_ref();
        let rpc = rpc.map(|rpc| (rpc, &message.bytes));
        let mut exchange = self.exchange(call, event, rpc, timeout)?;
        exchange.event.set("id", call.text())?;
        exchange.is_of(client);
        let from = Self::of_caller(&rules, &exchange.plain, &headers);
        let copies = self.route_call(&exchange, from);
        let copies = copies.map_err(|error| CallError::unroutable(&error, &exchange.event))?;
        if let Some(deaf) = copies.iter().find(|copy| self.is_deaf(copy)) {
            return Err(self.cannot_answer(deaf));
        }
        let opened = self.open(exchange, &copies, Some(&caller), false)?;
        Ok((opened, copies))
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
        let plain = event.clone();
        let expiry = clock::rfc3339(clock::now() + patience);
        let target = event.extension_text(extension::TARGET_AGENT);
        let reply_id = self.tokens.reply_id(call, target, &expiry);
        let id = reply_id.text();
        let (form, dialect, streamed) = match rpc {
            None => (Form::Untouched, Dialect::JsonRpc, true),
            Some((message, bytes)) => {
                let (Some(own), RpcBody::Call { streaming }) = (&message.id, message.body) else {
                    return Err(CallError::not_a_request());
                };
                let progress = message.progress.as_deref();
                event.set_data(Some(Data::from(with_token(
                    bytes,
                    own,
                    progress,
                    &Text::concat(&["\"", &id, "\""]),
                ))));
                let form = Form::JsonRpc {
                    id: own.token().clone(),
                    takes_questions: false,
                    progress: progress.map(|token| token.token().clone()),
                };
                (form, message.dialect, streaming)
            }
        };
        for (name, value) in [
            (extension::CALL_ID, id.clone()),
            (extension::COLLABORATION_ID, id),
            (extension::EXPIRY_TIME, expiry),
        ] {
            event.set(name, value)?;
        }
        Ok(Exchange {
            id: reply_id,
            plain,
            event,
            request: OnceCell::new(),
            form,
            dialect,
            streamed,
            patience,
            whole,
            client: None,
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
        copies: &[Outgoing],
        caller: Option<&Text>,
        is_kept: bool,
    ) -> Result<Opened, CallError> {
        let whole = exchange.whole();
        let Exchange {
            id,
            event,
            request,
            form,
            dialect,
            streamed,
            patience,
            client,
            ..
        } = exchange;
        let (is_rpc, may_have_arrived) = (matches!(form, Form::JsonRpc { .. }), Arc::default());
        let request = request.into_inner();
        let target = event.extension_text(extension::TARGET_AGENT).cloned();
        let shares = self.shares(target.clone().unwrap_or_default(), caller)?;
        let (purse, charge) = self.memory_of(caller)?;
        let (sender, parts) = mpsc::channel(self.limits.max_parts_buffered);
        let entry = Entry {
            parts: sender,
            asked: Arc::new(CallRequest {
                form,
                streamed,
                agent: target.clone().unwrap_or_default(),
                id,
                request: request.unwrap_or_else(|| Fingerprint::of(&event)),
                progress: Mutex::default(),
            }),
            buses: copies.iter().map(|copy| copy.bus).collect(),
            is_kept,
            may_have_arrived: Arc::clone(&may_have_arrived),
            shares,
            purse,
            _charge: charge,
        };
        // A request that was read from the bus before the drain began is answered like those in hand.
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
            patience,
            whole,
            is_rpc,
            client,
            may_have_arrived,
        })
    }

    /// What the parts of an answer are charged to, and what the call itself costs.
    fn memory_of(&self, caller: Option<&Text>) -> Result<(ClientBudget, Charge), CallError> {
        let peer = caller.and_then(|caller| caller.parse().ok());
        let purse = self.budget.purse(peer);
        let charge = purse.charge(PENDING_BYTES);
        let charge = charge.map_err(|spent| CallError::Exhausted(spent.into()))?;
        Ok((purse, charge))
    }

    /// Why the request of this copy is not published: its answer would not be read.
    pub(super) fn cannot_answer(&self, copy: &Outgoing) -> CallError {
        let bus = self.outbound.buses().get(copy.bus);
        let bus = bus.map_or("the bus", |bus| bus.name.text());
        CallError::Unavailable(format!("answers from {bus} cannot be read yet").into())
    }

    /// The part of their own bounds that the agent and the caller spend on one more call. Calls that name no agent share
    /// one bound.
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

    /// The copies of a call: the one that is to be answered has its reply address.
    ///
    /// # Errors
    /// As [`crate::bus::outbound::Outbound::route`].
    pub(crate) fn route_call(
        &self,
        exchange: &Exchange,
        from: Provenance<'_>,
    ) -> Result<Vec<Outgoing>, RoutingError> {
        let stamp = |bus, event: &mut Event, address: &mut Address| {
            exchange.request.get_or_init(|| Fingerprint::of(event));
            self.channels.stamp(exchange.id, bus, event, address)
        };
        let to_answer = TrackedRequest {
            plain: &exchange.plain,
            stamp: &stamp,
        };
        self.outbound.route(&exchange.event, from, Some(to_answer))
    }

    /// Where an event of a caller comes from. Its id is fresh: a copy that is sent again is the same copy, and no other
    /// is. The id of a call is for its agent alone, so that the plain event of a call counts.
    pub(super) fn of_caller<'a>(
        rules: &'a Rules,
        event: &'a Event,
        headers: &'a [Header],
    ) -> Provenance<'a> {
        Provenance {
            rules,
            binding: DOOR,
            key: None,
            origin: Some((event.id(), 0)),
            headers,
        }
    }

    /// The event of a request or notification, for the target that the path names.
    pub(super) fn event(&self, request: Request) -> Result<Event, CallError> {
        let context = MapContext {
            source: Source::new(Text::concat(&[&self.source, "/", &request.caller]))?,
            time: Some(clock::time()),
            // A call has its call id in place of this one.
            ids: Ids::Fresh(&clock::new_event_id),
        };
        let is_event = request.unit.because.family == Family::CloudEvent;
        let mut event = map_unit(request.unit, &self.options, &context).event;
        if is_event {
            self.own(&mut event, &context)?;
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

    /// Takes back what the writer of an event says of its origin, and of where answers go: the rights of an event depend
    /// on its `source`.
    fn own(&self, event: &mut Event, context: &MapContext<'_>) -> Result<(), CallError> {
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

    /// How a caller is answered that sent an event.
    pub(crate) fn reply_form(&self, event: &Event, recipient: Recipient) -> ReplyForm {
        ReplyForm {
            recipient,
            collaboration_id: event.extension_text(extension::COLLABORATION_ID).cloned(),
            call_id: None,
            source: Source::new(self.source.clone()).unwrap_or_default(),
            options: self.options.clone(),
            limits: self.rules().limits,
        }
    }
}

/// The attributes that a caller over HTTP may not set; an `expirytime` only where it is no time.
const OVERRULED: [&str; 8] = [
    extension::SOURCE_AGENT,
    extension::ORIGIN,
    extension::HOPS,
    extension::REPLY_TO,
    extension::REPLY_PARTITION,
    extension::PROGRESS_TO,
    extension::CALL_ID,
    extension::EXPIRY_TIME,
];

/// The bytes of a JSON-RPC request with a JSON token in place of its id and, where it has one, of its progress token.
pub(crate) fn with_token(bytes: &Bytes, id: &Id, progress: Option<&Id>, token: &str) -> Bytes {
    let Some(progress) = progress else {
        return splice(bytes, id.span(), token);
    };
    // The later one first, so that the place of the other stays what it is.
    let (first, second) = if id.span().start < progress.span().start {
        (id, progress)
    } else {
        (progress, id)
    };
    let body = splice(bytes, second.span(), token);
    splice(&body, first.span(), token)
}
