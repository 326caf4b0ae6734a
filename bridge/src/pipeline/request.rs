//! Requests whose requester waits on the bus.

use std::sync::Arc;
use std::time::{Duration, Instant};

use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::{Event, Hint, Kind, Limits, Text, decode, extension, kind_of_event};
use a2abus_transports::{Address, Header};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::state::{Pipeline, Routed, undelivered};
use crate::account::{self, Account};
use crate::bus::deadletter::{Stage, Undelivered};
use crate::bus::headers::spring;
use crate::bus::outbound::{Provenance, Unit};
use crate::calls::callid::{CallId, is_reply_id};
use crate::calls::cancel::CANCELS;
use crate::calls::exchange::room::Place;
use crate::calls::exchange::{
    Cancelled, FailedRequest, RequestIdentity, RequestStatus, Requester, RoutedRequest, Unsettled,
    WaitingRequest,
};
use crate::calls::failure::{Failure, Recipient};
use crate::calls::reply_address;
use crate::calls::reply_form::ReplyForm;
use crate::calls::resolve::ReadAt;
use crate::calls::{Answer, CallError, Exchange, NoAnswer, Opened, RequestState};
use crate::clock;
use crate::stage;

// === impl Pipeline ===

impl Pipeline {
    /// The requester that waits for the answer to an event, if it is a request with a reply address.
    ///
    /// # Errors
    /// When the reply address is not allowed.
    pub(super) fn requester(
        &self,
        at: ReadAt<'_>,
        event: &Event,
    ) -> Result<Option<Requester>, reply_address::Refused> {
        let kind = event.extension_text(extension::MCP_TYPE);
        let is_other = kind.is_some_and(|kind| kind != Kind::Request.as_str());
        if is_other || self.calls.channels().is_empty() {
            return Ok(None);
        }
        let addresses = &self.claims.reply_addresses;
        let named = reply_address::named_by(event, at.message);
        // An event without a kind is a request if its sender waits for an answer.
        if kind.is_none() && named.is_none() && at.reply_to.is_none() {
            return Ok(None);
        }
        let address = match named {
            Some((name, partition)) => {
                let topic = addresses.named(&name, at.reply_to)?;
                match &self.replies {
                    // An agent has copied the headers of the request that it serves to its own request.
                    Some(replies)
                        if addresses.is_of_call(&topic)
                            && !may_be_call(event, &at.rules.limits) =>
                    {
                        Address::topic(replies.clone())
                    }
                    _ => Address {
                        partition,
                        ..Address::topic(topic)
                    },
                }
            }
            None => match (at.reply_to, &self.replies) {
                (Some(inbox), _) => Address::topic(addresses.inbox(inbox)?),
                (None, Some(topic)) => Address::topic(topic.clone()),
                (None, None) => return Ok(None),
            },
        };
        // The recipient of an error is only known once the event is decoded.
        let recipient = Recipient::unknown(Dialect::JsonRpc);
        Ok(Some(self.requester_at(at, Some(event), address, recipient)))
    }

    /// The requester at a reply address, for an event or a refused unit.
    pub(super) fn requester_at(
        &self,
        at: ReadAt<'_>,
        event: Option<&Event>,
        address: Address,
        recipient: Recipient,
    ) -> Requester {
        let attribute = |name| event.and_then(|event| event.extension_text(name)).cloned();
        // A record that is not a CloudEvent may also name its call.
        let header = reply_address::attribute_header(at.message, extension::CALL_ID);
        let call_id = || Text::from_utf8(header?);
        Requester {
            bus: self.intake.bus,
            // The reply address of a call is its own, and no stream stores it.
            may_be_stored: self.intake.reads_jetstream
                && !self.claims.reply_addresses.is_of_call(&address.topic),
            address,
            form: ReplyForm {
                recipient,
                collaboration_id: attribute(extension::COLLABORATION_ID),
                request_id: event
                    .filter(|event| self.has_id(at, event))
                    .map(|event| event.id().clone()),
                call_id: attribute(extension::CALL_ID).or_else(call_id),
                source: self.intake.source.clone(),
                options: self.intake.options.clone(),
                limits: at.rules.limits,
            },
            key: at.message.key.clone(),
            correlation: at.message.headers.get(spring::CORRELATION_ID).cloned(),
            headers: self.passed.of(self.intake.binding, at.message),
            is_redeliverable: at.origin.is_some(),
            topic: at.topic.clone(),
            origin: at.origin.cloned(),
            unit: None,
            dead_letters: Arc::clone(&self.intake.dead_letters),
        }
    }

    /// Whether the sender of a message has set the id of its event.
    fn has_id(&self, at: ReadAt<'_>, event: &Event) -> bool {
        if reply_address::attribute_header(at.message, "id").is_some() {
            return true;
        }
        match at.position() {
            Some(origin) => !event.id().starts_with(origin.as_str()),
            // Only events with these sources get their id from the bridge.
            None => {
                let made = [&self.intake.source, &self.claims.unknown_caller];
                made.iter().all(|source| event.source() != source.text())
            }
        }
    }

    /// Registers the request in one unit of a message. Returns its key and its share of the message; `None` for a
    /// redelivery of a request in progress.
    pub(super) fn enter(
        &self,
        at: ReadAt<'_>,
        index: usize,
        routed: &mut Routed,
    ) -> Option<(Option<Text>, Unsettled)> {
        let position = at.origin.map(|origin| {
            let fingerprint = || self.exchanges.fingerprint(at.message);
            let fingerprint = routed.fingerprint.get_or_insert_with(fingerprint);
            // Each binding that reads the message publishes the request.
            Text::from(format!(
                "{}/{origin}#{index}/{fingerprint:x}",
                self.intake.name
            ))
        });
        let share = routed.share(&self.intake.metrics);
        let share = self.exchanges.enter(position.as_ref(), share);
        if share.is_none() {
            self.intake.metrics.dropped("redelivered");
            self.exchanges
                .log_redelivered(&self.intake.name, at.position());
        }
        Some((position, share?))
    }

    /// Publishes a request whose requester waits. Its copies have a call id and a reply address of the bridge.
    pub(super) fn request(
        &self,
        at: ReadAt<'_>,
        unit: Option<&Unit>,
        event: Event,
        mut requester: Requester,
        routed: &mut Routed,
    ) {
        let Some((position, share)) = self.enter(at, index_of(unit), routed) else {
            return;
        };
        requester.unit = unit.map(|unit| unit.index);
        let agent = account::agent_of(&event);
        let how = match self.open(at, unit, event, &mut requester, routed) {
            Ok((answer, place)) => {
                answer.stand_in(self.exchanges.line(&requester));
                RequestStatus::Waits(Box::new(WaitingRequest {
                    answer,
                    cancellable: self.exchanges.cancellable(&requester, &agent),
                    requester,
                    _place: place,
                }))
            }
            Err(error) => {
                let failure = Failure::unpublished_on_bus(&error, &requester.form.recipient);
                self.failed(at, &agent, (failure, requester), routed)
            }
        };
        routed.in_hand.push(RoutedRequest {
            position,
            share,
            how,
        });
    }

    /// Fails a request for this agent. Its error holds a share of the budget, like any other answer.
    pub(super) fn failed(
        &self,
        at: ReadAt<'_>,
        agent: &Text,
        (failure, requester): (Failure, Requester),
        routed: &mut Routed,
    ) -> RequestStatus {
        let size = at.message.size_bytes();
        let place = self.waiting.enter(agent, size, &mut routed.places).ok();
        RequestStatus::Failed(Box::new(FailedRequest {
            failure,
            turn: self.exchanges.line(&requester).turn(),
            requester,
            place,
        }))
    }

    /// Whether an event cancels a request that was read by this binding. The agent then gets the cancel of its call,
    /// and not this one, whose id it does not know.
    pub(super) fn cancels(&self, at: ReadAt<'_>, event: &Event) -> bool {
        #[derive(Deserialize)]
        struct Cancel<'a> {
            #[serde(borrow)]
            params: Params<'a>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            #[serde(borrow)]
            request_id: &'a RawValue,
        }
        let method = event.extension_text(extension::A2A_METHOD);
        let is_cancel = method.is_some_and(|method| CANCELS.contains(&method.as_str()));
        if !is_cancel || kind_of_event(event) != Kind::Notification {
            return false;
        }
        let body = event.body();
        let Ok(Cancel { params }) = serde_json::from_slice(&body) else {
            return false;
        };
        let identity = RequestIdentity {
            binding: self.intake.name.clone(),
            topic: at.topic.clone(),
            key: at.message.key.clone(),
            id: params.request_id.get().into(),
        };
        let agent = event.extension_text(extension::TARGET_AGENT);
        let agent = agent.cloned().unwrap_or_default();
        match self.exchanges.cancel(&identity, &agent) {
            Cancelled::Unknown => false,
            Cancelled::Only => {
                tracing::debug!(binding = %self.intake.name, id = %identity.id, "a requester has cancelled its request");
                true
            }
            Cancelled::Several => self.drop_cancel(at, event, "ambiguous_cancel"),
            Cancelled::Late => self.drop_cancel(at, event, "late_cancel"),
        }
    }

    /// Counts and logs a cancel that reaches nobody. Always `true`.
    fn drop_cancel(&self, at: ReadAt<'_>, event: &Event, reason: &'static str) -> bool {
        let of = undelivered(at).with_event(Some(event));
        self.intake.dead_letters.dropped(&of, reason);
        true
    }

    fn open(
        &self,
        at: ReadAt<'_>,
        unit: Option<&Unit>,
        mut event: Event,
        requester: &mut Requester,
        routed: &mut Routed,
    ) -> Result<(Box<Answer>, Arc<Place>), CallError> {
        self.add_reply_address(at, &mut event);
        let call = self.calls.new_call()?;
        let mut account = Account::open(
            &self.intake.counts,
            call,
            self.intake.name.clone(),
            Instant::now(),
        );
        let agent = account::agent_of(&event);
        account.is_for(&event, None, at.rules.names(&agent));
        let opened = self.exchange(call, event, requester).and_then(|exchange| {
            let size = at.message.size_bytes();
            let place = self.waiting.enter(&agent, size, &mut routed.places);
            let place = place.map_err(CallError::Exhausted)?;
            let opened = self.publishable(at, unit, exchange, requester, routed)?;
            Ok((opened, place))
        });
        match opened {
            Ok((opened, place)) => {
                let mut answer = opened.answer(account, &self.calls);
                answer.is_redeliverable = requester.is_redeliverable;
                Ok((answer, place))
            }
            Err(error) => {
                account.failed(&error);
                if let CallError::Exhausted(_) = error {
                    let of = Undelivered {
                        agent: Some(&agent),
                        ..undelivered(at)
                    };
                    self.intake.dead_letters.dropped(&of, "exhausted");
                }
                Err(error)
            }
        }
    }

    /// The request that the agent gets.
    fn exchange(
        &self,
        call: CallId,
        event: Event,
        requester: &mut Requester,
    ) -> Result<Exchange, CallError> {
        let decoded = decoded(&event, &requester.form.limits);
        if let Some(unit) = &decoded {
            requester.form.recipient = Recipient::of(unit);
        }
        let rpc = decoded.as_ref().and_then(|unit| {
            let message = unit.json_rpc.as_ref()?;
            message.id.as_ref().filter(|_| message.is_call())?;
            Some((message, &unit.bytes))
        });
        if clock::is_expired(&event) {
            return Err(CallError::Timeout(Box::new(NoAnswer::unpublished(
                Duration::ZERO,
                &event,
                RequestState::Expired,
            ))));
        }
        let left = clock::time_left(&event);
        self.calls
            .exchange(call, event, rpc, (left, Duration::ZERO))
    }

    /// Routes and registers a request.
    fn publishable(
        &self,
        at: ReadAt<'_>,
        unit: Option<&Unit>,
        mut exchange: Exchange,
        requester: &Requester,
        routed: &mut Routed,
    ) -> Result<Opened, CallError> {
        let from = self.provenance(at, unit, &requester.headers);
        // Routing may change the event, and a dead letter shows it as it was.
        let event = exchange.event.clone();
        let copies = stage::route().in_scope(|| self.calls.route_call(&mut exchange, from));
        let copies = copies.map_err(|error| {
            self.count_unrouted(&error);
            let reason = error.reason();
            let dead_letter =
                self.dead_letter(at, unit, Some(&event), reason, Stage::Route, &error);
            routed.copies.push(dead_letter);
            CallError::unroutable(&error, &event)
        })?;
        let stored_by = requester.is_redeliverable.then_some(requester.bus);
        // `publish` sets `may_linger`. The call must keep the addresses with it, so that a cancel waits like its
        // request, and does not overtake it.
        let before = routed.copies.len();
        routed.publish(copies, unit);
        let copies = routed.copies.get(before..).unwrap_or_default();
        let opened = self.calls.open(exchange, copies, None, stored_by);
        let opened = opened.and_then(|opened| self.calls.reachable(opened, copies, stored_by));
        match &opened {
            Ok(_) => {}
            // The other destinations get the request as if the bus of its agent had failed a moment later.
            Err(CallError::Unavailable(_)) => {
                let copies = routed.copies.split_off(before);
                let beside = copies.into_iter().filter(|copy| copy.is_beside);
                routed.copies.extend(beside);
            }
            Err(_) => routed.copies.truncate(before),
        }
        opened
    }

    /// Where an event comes from, and the headers that its copies keep.
    pub(super) fn provenance<'a>(
        &'a self,
        at: ReadAt<'a>,
        unit: Option<&Unit>,
        headers: &'a [Header],
    ) -> Provenance<'a> {
        Provenance {
            rules: at.rules,
            binding: &self.intake.name,
            reader: &self.intake.reader,
            key: at.message.key.as_ref(),
            origin: at.origin.map(|origin| (origin, index_of(unit))),
            headers,
        }
    }
}

pub(super) fn index_of(unit: Option<&Unit>) -> usize {
    unit.map_or(0, |unit| unit.index)
}

/// Whether a request may be a call of a bridge. Its JSON-RPC id is then a reply id.
fn may_be_call(event: &Event, limits: &Limits) -> bool {
    let decoded = decoded(event, limits);
    let id = decoded.and_then(|unit| unit.json_rpc?.id);
    id.is_none_or(|id| is_reply_id(id.token()))
}

/// The recipient of an event's error.
pub(super) fn recipient_of(event: &Event, limits: &Limits) -> Recipient {
    let unit = decoded(event, limits);
    unit.map_or(Recipient::unknown(Dialect::JsonRpc), |unit| {
        Recipient::of(&unit)
    })
}

fn decoded(event: &Event, limits: &Limits) -> Option<a2abus_plugin::Unit> {
    let mut hint = Hint::default();
    // Its binding has accepted it.
    hint.e2a_trusted = true;
    let units = decode(&event.body(), &hint, limits);
    units.into_only().ok()?.ok()
}
