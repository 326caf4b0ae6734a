//! Routes each event of a message, and resolves each answer.

use a2abus_plugin::{Event, extension};

use super::request::index_of;
use super::state::{Pipeline, Routed, undelivered};
use crate::bus::deadletter::{Reason, Stage};
use crate::bus::outbound::{Outgoing, RoutingError, Unit};
use crate::calls::callid::CallId;
use crate::calls::resolve::{ReadAt, answered_call};
use crate::calls::{AnswerOutcome, Unanswerable};
use crate::clock;
use crate::names::put;
use crate::stage;

/// The attributes that `fill_from_data` takes from the data.
pub(crate) const ROUTING_ATTRIBUTES: [&str; 5] = [
    extension::A2A_METHOD,
    extension::MCP_TYPE,
    extension::TARGET_AGENT,
    extension::COLLABORATION_ID,
    "subject",
];

/// Fills in the routing attributes that an event lacks from those of its data.
pub(crate) fn fill_missing(event: &mut Event, inside: &Event) {
    for name in ROUTING_ATTRIBUTES {
        if let (None, Some(value)) = (event.attribute(name), inside.attribute(name)) {
            put(event, name, value);
        }
    }
}

// === impl Pipeline ===

impl Pipeline {
    /// Reads a message on a topic for answers: answers go to their calls, and anything else becomes a dead letter.
    pub(super) fn answers(&self, at: ReadAt<'_>, routed: &mut Routed) {
        for answered in self.calls.take_answers(at, self.intake.binding) {
            match answered {
                AnswerOutcome::Forward(forward) => routed.copies.push(*forward),
                AnswerOutcome::Uncorrelated(Unanswerable { code, detail, unit }) => {
                    let unit = unit.map(|(index, bytes)| Unit { index, bytes });
                    let unit = unit.as_ref();
                    routed.copies.push(self.dead_letter(
                        at,
                        unit,
                        None,
                        code,
                        Stage::Resolve,
                        &detail,
                    ));
                }
                AnswerOutcome::Delivered
                | AnswerOutcome::Late(_)
                | AnswerOutcome::OfCancel(_)
                | AnswerOutcome::Recorded(_)
                | AnswerOutcome::Repeated(_)
                | AnswerOutcome::Foreign(_)
                | AnswerOutcome::Rejected(..)
                | AnswerOutcome::Looped(_)
                | AnswerOutcome::Request(_) => {}
            }
        }
    }

    /// Processes a CloudEvent.
    pub(super) fn event(
        &self,
        at: ReadAt<'_>,
        unit: Option<&Unit>,
        mut event: Event,
        routed: &mut Routed,
    ) {
        let index = index_of(unit);
        let is_own = |event: &Event| self.calls.is_own_request(event);
        self.claims.of_cloudevent(at, index, &mut event, is_own);
        if self.fills_from_data {
            let (intake, limits) = (&self.intake, &at.rules.limits);
            if let Some(inside) = intake.inside(&event, &intake.hint, limits) {
                fill_missing(&mut event, &inside.event);
            }
        }
        self.route(at, unit, event, routed);
    }

    pub(super) fn route(
        &self,
        at: ReadAt<'_>,
        unit: Option<&Unit>,
        mut event: Event,
        routed: &mut Routed,
    ) {
        self.claims.of_event(at, &mut event);
        if self.is_misplaced(at, unit, &event, routed) || self.cancels(at, &event) {
            return;
        }
        if clock::is_expired(&event) {
            let of = undelivered(at).with_event(Some(&event));
            self.intake.dead_letters.dropped(&of, "expired");
            if let Ok(Some(requester)) = self.requester(at, &event) {
                self.request(at, unit, event, requester, routed);
            }
            return;
        }
        match self.requester(at, &event) {
            Ok(Some(requester)) => return self.request(at, unit, event, requester, routed),
            Ok(None) => self.claims.of_untracked(at, &mut event),
            Err(refused) => return self.misdirected(at, unit, &event, &refused, routed),
        }
        self.add_reply_address(at, &mut event);
        self.route_untracked(at, unit, &mut event, routed);
    }

    /// Whether an event answers a call on a binding that reads no answers: then it becomes a dead letter.
    pub(super) fn is_misplaced(
        &self,
        at: ReadAt<'_>,
        unit: Option<&Unit>,
        event: &Event,
        routed: &mut Routed,
    ) -> bool {
        let Some(call) = self.calls.misplaced_answer(at, event) else {
            return false;
        };
        routed
            .copies
            .push(self.misplaced_letter(at, unit, event, call));
        true
    }

    /// The dead letter of an answer on a topic that does not accept answers.
    fn misplaced_letter(
        &self,
        at: ReadAt<'_>,
        unit: Option<&Unit>,
        event: &Event,
        call: CallId,
    ) -> Outgoing {
        let detail = format!(
            "it answers the call {call}: answers belong at the reply address of the request, or on a topic that a \
             binding with role: responses reads"
        );
        let reason = "answer_on_request_topic";
        self.dead_letter(at, unit, Some(event), reason, Stage::Resolve, &detail)
    }

    /// Routes an event whose answer the bridge does not handle.
    pub(super) fn route_untracked(
        &self,
        at: ReadAt<'_>,
        unit: Option<&Unit>,
        event: &mut Event,
        routed: &mut Routed,
    ) {
        let headers = self.passed.of(self.intake.binding, at.message);
        let from = self.provenance(at, unit, &headers);
        match stage::route().in_scope(|| self.outbound.route(event, from, None)) {
            Ok(copies) => routed.publish(copies, unit),
            Err(error) => {
                // A route may carry answers of other callers. Without one, the answer to a call is in the wrong place.
                let call = answered_call(event).filter(|_| matches!(error, RoutingError::NoRoute));
                let dead_letter = match call {
                    Some(call) => self.misplaced_letter(at, unit, event, call),
                    None => {
                        self.count_unrouted(&error);
                        let reason = error.reason();
                        self.dead_letter(at, unit, Some(event), reason, Stage::Route, &error)
                    }
                };
                routed.copies.push(dead_letter);
            }
        }
    }

    /// Counts an event that matches no route. Other routing errors are only counted among the dead letters.
    pub(super) fn count_unrouted(&self, error: &RoutingError) {
        if matches!(error, RoutingError::NoRoute | RoutingError::UnknownAgent(_)) {
            self.intake.counts.unrouted.inc();
        }
    }

    /// Puts a reply address on an event, unless it has one.
    pub(super) fn add_reply_address(&self, at: ReadAt<'_>, event: &mut Event) {
        if event.extension(extension::REPLY_TO).is_some() {
            return;
        }
        // The inbox of the sender; otherwise the topic of the binding for answers.
        let reply_to = match at.reply_to {
            Some(inbox) => match self.claims.reply_addresses.inbox(inbox) {
                Ok(inbox) => Some(inbox),
                Err(_) => return self.claims.overruled(extension::REPLY_TO, at),
            },
            None => self.replies.clone(),
        };
        if let Some(address) = reply_to {
            put(event, extension::REPLY_TO, address.as_str());
        }
    }

    /// The dead letter of a message, or of one unit of it, that has no copies.
    pub(super) fn dead_letter(
        &self,
        at: ReadAt<'_>,
        unit: Option<&Unit>,
        event: Option<&Event>,
        code: &'static str,
        stage: Stage,
        detail: &impl ToString,
    ) -> Outgoing {
        let reason = Reason {
            code,
            stage,
            detail: detail.to_string(),
            unit: unit.map(|unit| unit.index),
        };
        let body = unit.map(|unit| unit.bytes.clone());
        let of = undelivered(at).with_event(event);
        self.intake.dead_letters.dead_letter(&of, body, &reason)
    }
}
