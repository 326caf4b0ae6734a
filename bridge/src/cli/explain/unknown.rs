//! Payloads of an unknown format that `on_unknown` of their binding forwards.

use a2abus_plugin::{DecodeErrorKind, Event, Kind, format};
use serde::Serialize;

use super::routing::{RouteOutput, Routing};
use crate::cli::payload::{PayloadOptions, Refusal};
use crate::config::{OnUnknown, Role};

/// A payload that is forwarded.
pub(super) struct ForwardedUnknown<'a> {
    pub(super) refusal: &'a Refusal,
    pub(super) how: OnUnknown,
    /// The event that is routed and, with `wrap`, published.
    pub(super) event: Event,
    pub(super) route: RouteOutput,
}

/// Its JSON line, without the event.
#[derive(Serialize)]
struct Line<'a> {
    index: usize,
    ok: bool,
    family: &'static str,
    on_unknown: OnUnknown,
    because: &'a str,
    route: &'a RouteOutput,
}

// === impl ForwardedUnknown ===

impl<'a> ForwardedUnknown<'a> {
    /// `None` if the payload is refused: it is of a known family, or its binding does not forward others.
    pub(super) fn of(
        refusal: &'a Refusal,
        options: &PayloadOptions,
        routing: Option<&Routing<'_>>,
    ) -> Option<Self> {
        let routing = routing?;
        let binding = routing.binding()?;
        let is_carried = refusal.kind == DecodeErrorKind::Unknown
            && !refusal.has_sender
            && binding.role == Role::Events
            && binding.effective_on_unknown() != OnUnknown::Reject;
        is_carried.then(|| {
            let event = options.wrapped(&refusal.bytes);
            let address = options.reply_address(&event);
            let route = routing.output(&event, Kind::Notification, address.as_ref());
            let how = binding.effective_on_unknown();
            let route = match how {
                OnUnknown::Pass => route.unchanged(),
                OnUnknown::Wrap | OnUnknown::Reject => route,
            };
            Self {
                refusal,
                how,
                event,
                route,
            }
        })
    }

    pub(super) fn line(&self) -> Vec<u8> {
        let line = Line {
            index: self.refusal.index,
            ok: true,
            family: "unknown",
            on_unknown: self.how,
            because: &self.refusal.message,
            route: &self.route,
        };
        // Serialising values with string keys cannot fail.
        let mut line = serde_json::to_vec(&line).unwrap_or_else(|_| b"{}".to_vec());
        if self.how == OnUnknown::Wrap {
            line.pop();
            line.extend_from_slice(b",\"event\":");
            format::write(&self.event, &mut line);
            line.push(b'}');
        }
        line
    }
}
