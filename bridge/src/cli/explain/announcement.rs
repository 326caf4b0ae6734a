//! Cards, by which agents announce themselves on a binding with `role: discovery`.

use a2abus_plugin::{DecodeErrorKind, Kind};
use bytes::Bytes;
use serde::Serialize;

use super::routing::{RouteOutput, Routing};
use crate::calls::failure::Failure;
use crate::cli::payload::{PayloadOptions, Refusal};
use crate::config::Role;
use crate::registry::AnnouncementError;
use crate::registry::card::Card;

/// The card of an agent, and what the registry does with it.
#[derive(Serialize)]
pub(super) struct AnnouncedCard {
    pub(super) index: usize,
    ok: bool,
    family: &'static str,
    pub(super) route: RouteOutput,
}

// === impl AnnouncedCard ===

impl AnnouncedCard {
    /// `None` if the registry does not read the payload as a card. Whether the agent may use its name and destination is
    /// known only to the running bridge.
    pub(super) fn of(
        refusal: &Refusal,
        payload: &Bytes,
        options: &PayloadOptions,
        routing: Option<&Routing<'_>>,
    ) -> Option<Self> {
        use DecodeErrorKind as K;
        let routing = routing?;
        let is_card = routing.binding()?.role == Role::Discovery
            && matches!(
                refusal.kind,
                K::Unknown | K::NotJson | K::NotUtf8 | K::NotAnObject | K::Empty
            );
        if !is_card {
            return None;
        }
        let event = options.wrapped(&refusal.bytes);
        let mut route = routing.output(&event, Kind::Notification, None);
        if let Err(faults) = Card::read(payload, routing.max_card()) {
            let refused = AnnouncementError::Invalid(faults);
            route.detail = Some(refused.to_string());
            route.reason = Some(Failure::from(refused).reason_code().into());
        }
        Some(Self {
            index: refusal.index,
            ok: true,
            family: "card",
            route,
        })
    }

    pub(super) fn line(&self) -> Vec<u8> {
        // Serialising values with string keys cannot fail.
        serde_json::to_vec(self).unwrap_or_else(|_| b"{}".to_vec())
    }
}
