//! Payloads that are read although they become no event: the cards of agents that announce themselves, and answers of
//! no known family.

use a2abus_plugin::{DecodeErrorKind, Family, Kind};
use bytes::Bytes;
use serde::Serialize;

use super::routing::{RouteOutput, Routing};
use crate::cli::payload::{PayloadOptions, Refusal, UnitResult};
use crate::config::Role;
use crate::registry::discovery::announced_card;

/// Such a payload, and what happens to it.
#[derive(Serialize)]
pub(super) struct PlainPayload {
    pub(super) index: usize,
    ok: bool,
    family: &'static str,
    /// What it is, as text.
    #[serde(skip)]
    pub(super) what: &'static str,
    pub(super) route: RouteOutput,
}

// === impl PlainPayload ===

impl PlainPayload {
    /// A payload with these units that the registry reads as one card, or does not read at all; `None` for others.
    pub(super) fn card(
        payload: &Bytes,
        units: &[UnitResult],
        options: &PayloadOptions,
        routing: Option<&Routing<'_>>,
    ) -> Option<Self> {
        let routing = routing?;
        let is_event = match units.first()? {
            Ok(mapped) => mapped.detection.family == Family::CloudEvent,
            Err(refusal) => refusal.is_of_event(),
        };
        if is_event || routing.binding()?.role != Role::Discovery {
            return None;
        }
        // The card in a request is a part of the payload.
        if let Ok(card) = announced_card(payload)
            && card?.len() != payload.len()
        {
            return None;
        }
        let mut card = Self {
            index: 0,
            ok: true,
            family: "card",
            what: "the card of an agent",
            route: routing.output(&options.wrapped(payload), Kind::Notification, None),
        };
        if let Some(why) = routing.not_announced(payload) {
            card.route.not_announced(&why);
        }
        Some(card)
    }

    /// A unit in an answer whose headers name a call; `None` for others.
    pub(super) fn answer(
        refusal: &Refusal,
        options: &PayloadOptions,
        routing: Option<&Routing<'_>>,
    ) -> Option<Self> {
        use DecodeErrorKind as K;
        let routing = routing?;
        let is_answer = matches!(refusal.kind, K::Unknown | K::NotAnObject)
            && routing.names_call(&refusal.bytes, options);
        is_answer.then(|| Self {
            index: refusal.index,
            ok: true,
            family: "unknown",
            what: "an answer of no known family",
            route: routing.output(&options.wrapped(&refusal.bytes), Kind::Notification, None),
        })
    }

    pub(super) fn line(&self) -> Vec<u8> {
        // Serialising values with string keys cannot fail.
        serde_json::to_vec(self).unwrap_or_else(|_| b"{}".to_vec())
    }
}
