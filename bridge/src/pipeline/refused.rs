//! Units that cannot become events, and requests that are refused because of their reply address.
//!
//! Each becomes a dead letter. The message may have been a request, so its reply address gets the error at once.

use std::collections::HashMap;

use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::{
    DecodeErrorKind, Event, Family, Hint, Kind, Limits, Refused, Text, decode, extension,
};
use a2abus_transports::{Header, Headers, Message};
use serde::de::IgnoredAny;

use super::intake::{Refusal, UnreadSender};
use super::request::{index_of, recipient_of};
use super::state::{Pipeline, Routed, undelivered};
use crate::account;
use crate::bus::BusId;
use crate::bus::deadletter::Stage;
use crate::bus::headers::{PASSED_HOPS, is_attribute, is_attribute_on};
use crate::bus::outbound::Unit;
use crate::calls::CallError;
use crate::calls::exchange::RoutedRequest;
use crate::calls::failure::{Failure, Reason as FailureReason, Recipient};
use crate::calls::reply_address;
use crate::calls::resolve::ReadAt;
use crate::config::OnUnknown;
use crate::names::put;

/// Maximum number of error replies to one message. If more of its elements are refused, the rest only become dead
/// letters.
const MAX_ERROR_REPLIES: usize = 16;

/// What is known of the sender of a refused unit.
#[derive(Clone, Copy)]
enum Sender<'a> {
    /// Its event.
    Of(&'a Event),
    /// What can be read of its event.
    Unread(&'a UnreadSender),
    /// The headers of its message.
    Headers,
}

// === impl Pipeline ===

impl Pipeline {
    /// Processes a message, or a unit of it, that was refused.
    pub(super) fn refused(&self, at: ReadAt<'_>, refusal: &Refusal, routed: &mut Routed) {
        let unknown = refusal.unknown();
        match (unknown, self.on_unknown) {
            (None, _) | (_, OnUnknown::Reject) => self.reject(at, refusal, routed),
            (Some(refused), on_unknown) => {
                let context = self.context(at.position());
                let (index, bytes) = (refused.index, refused.bytes.clone());
                let event = self.intake.wrapped(&bytes, index, &context);
                let unit = Unit { index, bytes };
                match on_unknown {
                    OnUnknown::Pass => self.pass(at, &unit, event, routed),
                    _ => self.route(at, Some(&unit), event, routed),
                }
            }
        }
    }

    /// Routes a payload of an unknown format unchanged, by the attributes of `event`. The bridge does not handle the
    /// answer: the receiver answers the sender.
    fn pass(&self, at: ReadAt<'_>, unit: &Unit, mut event: Event, routed: &mut Routed) {
        // There is no event on the bus that could count the hops, so a header does.
        let hops = passed_hops(at.message);
        put(&mut event, extension::HOPS, hops);
        self.claims.of_event(at, &mut event);
        if self.is_misplaced(at, Some(unit), &event, routed) {
            return;
        }
        if let Err(refused) = self.requester(at, &event) {
            return self.misdirected(at, Some(unit), &event, &refused, routed);
        }
        let inbox = at
            .reply_to
            .map(|inbox| self.claims.reply_addresses.inbox(inbox));
        let inbox = inbox.and_then(Result::ok);
        let before = routed.copies.len();
        self.route_untracked(at, Some(unit), &mut event, routed);
        let copies = routed.copies.iter_mut().skip(before);
        for copy in copies.filter(|copy| copy.dead_letter.is_none()) {
            // The address is useless on another bus.
            copy.address.reply_to = inbox.clone().filter(|_| copy.bus == self.intake.bus);
            copy.message = Message {
                key: copy.message.key.take(),
                headers: self.passed_headers(at.message, copy.bus),
                body: Some(unit.bytes.clone()),
            };
            let next = hops.saturating_add(1).to_string();
            copy.message.headers.put(PASSED_HOPS, next);
        }
    }

    /// The headers of a payload that is passed on to a bus, without those that could become attributes of CloudEvents
    /// there: nobody has checked them, and they could name any `source`. A copy to the bus where the payload was read
    /// keeps the attributes of that bus, such as the reply address.
    fn passed_headers(&self, message: &Message, to: BusId) -> Headers {
        let (own, binding) = (self.intake.bus, self.intake.binding);
        let keeps = |header: &&Header| {
            !is_attribute(&header.name) || (to == own && is_attribute_on(binding, &header.name))
        };
        let kept: Vec<Header> = message.headers.iter().filter(keeps).cloned().collect();
        Headers::from(kept)
    }

    fn reject(&self, at: ReadAt<'_>, refusal: &Refusal, routed: &mut Routed) {
        let unit = refusal.unit();
        let body = unit.map(|refused| refused.bytes.clone());
        let of = undelivered(at);
        let dead_letters = &self.intake.dead_letters;
        let dead_letter = dead_letters.dead_letter(&of, body, &refusal.reason());
        routed.copies.push(dead_letter);
        let (sender, recipient, failure) = match refusal {
            Refusal::Undecoded(refused) => {
                let failure = Failure::refused(&refused.error);
                (Sender::Headers, of_refused(refused), failure)
            }
            Refusal::Unreadable(error, sender) => {
                let what = format!("the CloudEvent cannot be read: {error}");
                let failure = Failure::new(FailureReason::InvalidRequest, what);
                let recipient = of_unread(sender, &at.rules.limits);
                (Sender::Unread(sender), recipient, failure)
            }
            Refusal::Repeats(why) => {
                let failure = Failure::new(FailureReason::InvalidRequest, why.clone());
                let recipient = Recipient::unknown(Dialect::JsonRpc);
                (Sender::Headers, Some(recipient), failure)
            }
        };
        let Some(recipient) = recipient else { return };
        let index = unit.map_or(0, |refused| refused.index);
        self.fail(at, sender, (index, recipient), failure, routed);
    }

    /// Refuses a request whose reply address is not allowed.
    pub(super) fn misdirected(
        &self,
        at: ReadAt<'_>,
        unit: Option<&Unit>,
        event: &Event,
        refused: &reply_address::Refused,
        routed: &mut Routed,
    ) {
        let reason = reply_address::Refused::REASON;
        let dead_letter = self.dead_letter(at, unit, Some(event), reason, Stage::Receive, refused);
        routed.copies.push(dead_letter);
        let index = index_of(unit);
        let recipient = recipient_of(event, &at.rules.limits);
        let failure = Failure::on_bus(&CallError::Refused(refused.to_string().into()));
        let sender = Sender::Of(event);
        self.fail(at, sender, (index, recipient), failure, routed);
    }

    /// Sends an error to the reply address of a unit, if it has one and the limit for its message is not reached.
    fn fail(
        &self,
        at: ReadAt<'_>,
        sender: Sender<'_>,
        (index, recipient): (usize, Recipient),
        failure: Failure,
        routed: &mut Routed,
    ) {
        let kind_header = reply_address::attribute_header(at.message, extension::MCP_TYPE);
        if kind_header.is_some_and(|kind| kind != Kind::Request.as_str()) {
            return;
        }
        let in_headers = || reply_address::named_in(at.message);
        let (event, named) = match sender {
            Sender::Of(event) => (Some(event), reply_address::named_by(event, at.message)),
            Sender::Unread(unread) => (None, unread.reply_to.clone().or_else(in_headers)),
            Sender::Headers => (None, in_headers()),
        };
        let addresses = &self.claims.reply_addresses;
        let Some(address) = addresses.of_refused(named, at.reply_to) else {
            return;
        };
        if routed.error_replies == MAX_ERROR_REPLIES {
            return;
        }
        routed.error_replies += 1;
        let Some((position, share)) = self.enter(at, index, routed) else {
            return;
        };
        let mut requester = self.requester_at(at, event, address, recipient);
        let form = &mut requester.form;
        if let Recipient::Message {
            family: Family::A2eWorkflow,
            id,
        } = &form.recipient
        {
            form.collaboration_id = form.collaboration_id.take().or_else(|| id.clone());
        }
        if let Sender::Unread(unread) = sender {
            form.request_id.clone_from(&unread.id);
            form.collaboration_id.clone_from(&unread.collaboration_id);
            form.call_id = unread.call_id.clone().or(form.call_id.take());
        }
        let agent = event.map_or_else(Text::default, account::agent_of);
        let how = self.failed(at, &agent, (failure, requester), routed);
        routed.in_hand.push(RoutedRequest {
            position,
            share,
            how,
        });
    }
}

/// The recipient of the error for a refused unit; `None` if nobody waits for an answer to it.
fn of_refused(refused: &Refused) -> Option<Recipient> {
    (!expects_no_answer(refused)).then(|| Recipient::of_refused(refused, Dialect::JsonRpc))
}

/// The recipient of the error for an unreadable event, in the family of its data; `None` if nobody waits for an answer.
fn of_unread(unread: &UnreadSender, limits: &Limits) -> Option<Recipient> {
    let unknown = Recipient::unknown(Dialect::JsonRpc);
    let kind = unread.kind.as_deref();
    if kind.is_some_and(|kind| kind != Kind::Request.as_str()) {
        return None;
    }
    let Some(data) = &unread.data else {
        return Some(unknown);
    };
    match decode(data, &Hint::default(), limits).into_only() {
        Ok(Ok(unit)) if matches!(unit.kind(), Kind::Response | Kind::Stream) => None,
        Ok(Ok(unit)) => Some(Recipient::of(&unit)),
        Ok(Err(refused)) => of_refused(&refused),
        Err(_) => Some(unknown),
    }
}

/// Whether nobody waits for the answer to a refused unit. If it is an answer itself, an error reply could cause an
/// endless exchange.
fn expects_no_answer(refused: &Refused) -> bool {
    use DecodeErrorKind as K;
    match refused.error.kind() {
        K::BothResultAndError | K::BadError | K::MissingVersion => return true,
        K::Empty | K::NotUtf8 | K::NotJson | K::TooDeep | K::TooLarge => return false,
        _ => {}
    }
    if let Some(sender) = &refused.sender {
        return !sender.expects_answer;
    }
    let members: Result<HashMap<String, IgnoredAny>, _> = serde_json::from_slice(&refused.bytes);
    members.is_ok_and(|members| {
        let has = |name: &str| members.contains_key(name);
        !has("method") && (has("result") || has("error"))
    })
}

fn passed_hops(message: &Message) -> i32 {
    let value = message.headers.get(PASSED_HOPS);
    let text = value.and_then(|value| std::str::from_utf8(value).ok());
    // A negative count would defeat the protection against loops.
    let hops: Option<i32> = text.and_then(|text| text.parse().ok());
    hops.unwrap_or(0).max(0)
}
