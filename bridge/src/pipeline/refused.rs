//! Units that are refused before they become events, and requests that are refused for the place of their answer.
//!
//! Each becomes a dead letter. Whoever waits for an answer at a reply address gets the error at once: the message may have
//! been a request.

use std::collections::HashMap;

use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::{
    DecodeErrorKind, Event, EventError, Kind, MapContext, Refused, Text, extension, wrap_unknown,
};
use a2abus_transports::Message;
use serde::de::IgnoredAny;

use super::request::language_of_event;
use super::{Pipeline, Routed, undelivered};
use crate::account;
use crate::bus::deadletter::{Reason, Stage};
use crate::bus::outbound::Unit;
use crate::calls::CallError;
use crate::calls::exchange::{InHand, Language};
use crate::calls::failure::{Failure, Reason as FailureReason};
use crate::calls::reply_place;
use crate::calls::resolve::ReadAt;
use crate::config::OnUnknown;

/// The most error replies to one message. If more of its elements are refused, the rest are dead letters only.
const MAX_ERROR_REPLIES: usize = 16;
/// The reason of a message whose elements would repeat its key and headers too often.
const REPEATS: &str = "repeats_too_much";
/// Counts the routes that a payload of no known family has passed.
const PASSED_HOPS: &str = "bus-hops";

// === impl Pipeline ===

impl Pipeline {
    /// A unit that cannot be decoded.
    pub(super) fn refused(
        &self,
        at: ReadAt<'_>,
        refused: &Refused,
        context: &MapContext<'_>,
        routed: &mut Routed,
    ) {
        self.counts.refused(refused.error.kind());
        let is_unknown = refused.error.kind() == DecodeErrorKind::Unknown;
        let wrap = || wrap_unknown(&refused.bytes, refused.index, &self.options, context);
        match self.on_unknown {
            OnUnknown::Wrap if is_unknown => {
                let event = wrap();
                self.route(at, Some(&unit_of(refused)), event, routed);
            }
            OnUnknown::Pass if is_unknown => {
                let event = wrap();
                self.pass(at, &unit_of(refused), event, routed);
            }
            OnUnknown::Reject | OnUnknown::Wrap | OnUnknown::Pass => {
                self.reject(at, refused, routed);
            }
        }
    }

    /// A payload of no known family, on its way as it came; `event` stands for it while it is routed. It is no call of the
    /// bridge: whoever gets it answers its sender.
    fn pass(&self, at: ReadAt<'_>, unit: &Unit, mut event: Event, routed: &mut Routed) {
        // There is no event on the bus to count the hops, so a header of our own does.
        let hops = passed_hops(at.message);
        let counted = event.set(extension::HOPS, hops);
        debug_assert!(counted.is_ok(), "hops are a number");
        self.claims.of_event(at, &mut event);
        if self.is_misplaced(at, Some(unit), &event, routed) {
            return;
        }
        if let Err(refused) = self.requester(at, &event) {
            return self.misdirected(at, Some(unit), &event, &refused, routed);
        }
        let inbox = at
            .reply_to
            .map(|inbox| self.claims.reply_places.inbox(inbox));
        let inbox = inbox.and_then(Result::ok);
        let before = routed.copies.len();
        self.route_unasked(at, Some(unit), &event, routed);
        let copies = routed.copies.iter_mut().skip(before);
        for copy in copies.filter(|copy| copy.dead_letter.is_none()) {
            // On another bus nobody listens there.
            copy.address.reply_to = inbox.clone().filter(|_| copy.bus == self.bus);
            let key = copy.message.key.take();
            copy.message = Message {
                key,
                body: Some(unit.bytes.clone()),
                ..at.message.clone()
            };
            let next = hops.saturating_add(1).to_string();
            copy.message.headers.put(PASSED_HOPS, next);
        }
    }

    /// A message of so many elements that the copies of its key and headers would take too much.
    pub(super) fn repeats(&self, at: ReadAt<'_>, why: String, routed: &mut Routed) {
        let dead_letter = self.dead(at, None, None, REPEATS, Stage::Detect, &why);
        routed.copies.push(dead_letter);
        let language = Language::JsonRpc {
            id: Text::from_static("null"),
            dialect: Dialect::JsonRpc,
        };
        let failure = Failure::new(FailureReason::InvalidRequest, why);
        self.fail(at, None, (0, language), failure, routed);
    }

    fn reject(&self, at: ReadAt<'_>, refused: &Refused, routed: &mut Routed) {
        let error = &refused.error;
        let pointer = match error.pointer() {
            "" => String::new(),
            pointer => format!(" ({pointer})"),
        };
        let reason = Reason {
            code: error.kind().as_str(),
            stage: Stage::Detect,
            detail: format!("{error} at byte {}{pointer}", error.offset()),
            unit: Some(refused.index),
        };
        let body = Some(refused.bytes.clone());
        let dead_letter = self
            .dead_letters
            .dead_letter(&undelivered(at), body, &reason);
        routed.copies.push(dead_letter);
        if is_answer(refused) {
            return;
        }
        let id = refused.id.as_ref().map(|id| id.token().clone());
        let language = Language::JsonRpc {
            id: id.unwrap_or_else(|| Text::from_static("null")),
            dialect: Dialect::JsonRpc,
        };
        let failure = Failure::refused(refused);
        self.fail(at, None, (refused.index, language), failure, routed);
    }

    /// A message whose headers are no CloudEvent, though they should be.
    pub(super) fn unreadable(&self, at: ReadAt<'_>, error: &EventError, routed: &mut Routed) {
        let code = error.kind().as_str();
        let dead_letter = self.dead(at, None, None, code, Stage::Receive, error);
        routed.copies.push(dead_letter);
        let language = Language::JsonRpc {
            id: Text::from_static("null"),
            dialect: Dialect::JsonRpc,
        };
        let what = format!("the CloudEvent cannot be read: {error}");
        let failure = Failure::new(FailureReason::InvalidRequest, what);
        self.fail(at, None, (0, language), failure, routed);
    }

    /// A request that names a reply place that it may not name.
    pub(super) fn misdirected(
        &self,
        at: ReadAt<'_>,
        unit: Option<&Unit>,
        event: &Event,
        refused: &reply_place::Refused,
        routed: &mut Routed,
    ) {
        let reason = reply_place::Refused::REASON;
        let dead_letter = self.dead(at, unit, Some(event), reason, Stage::Receive, refused);
        routed.copies.push(dead_letter);
        let index = unit.map_or(0, |unit| unit.index);
        let language = language_of_event(event, &at.rules.limits);
        let failure = Failure::on_bus(&CallError::Refused(refused.to_string().into()));
        self.fail(at, Some(event), (index, language), failure, routed);
    }

    /// Sends an error to whoever waits for the answer to a unit, if anybody may and the message has not had too many.
    fn fail(
        &self,
        at: ReadAt<'_>,
        event: Option<&Event>,
        (index, language): (usize, Language),
        failure: Failure,
        routed: &mut Routed,
    ) {
        let says = reply_place::attribute_header(at.message, extension::MCP_TYPE);
        if says.is_some_and(|kind| kind != Kind::Request.as_str()) {
            return;
        }
        let named = match event {
            Some(event) => reply_place::named_by(event, at.message),
            None => reply_place::named_in(at.message),
        };
        let places = &self.claims.reply_places;
        let Some(address) = places.of_refused(named, at.reply_to) else {
            return;
        };
        if routed.error_replies == MAX_ERROR_REPLIES {
            return;
        }
        routed.error_replies += 1;
        let Some((position, share)) = self.enter(at, index, routed) else {
            return;
        };
        let requester = self.requester_at(at, event, address, language);
        let agent = event.map_or_else(Text::default, account::agent_of);
        let how = self.failed(at, &agent, (failure, requester), routed);
        routed.in_hand.push(InHand {
            position,
            share,
            how,
        });
    }
}

fn unit_of(refused: &Refused) -> Unit {
    Unit {
        index: refused.index,
        bytes: refused.bytes.clone(),
    }
}

/// Whether a unit that was refused is an answer all the same: to answer that could go on for ever.
fn is_answer(refused: &Refused) -> bool {
    use DecodeErrorKind as K;
    match refused.error.kind() {
        K::BothResultAndError | K::BadError | K::MissingVersion => return true,
        K::Empty | K::NotUtf8 | K::NotJson | K::TooDeep | K::TooLarge => return false,
        _ => {}
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
    // Nobody has passed less than no route: what says so would defeat the guard against loops.
    let hops: Option<i32> = text.and_then(|text| text.parse().ok());
    hops.unwrap_or(0).max(0)
}
