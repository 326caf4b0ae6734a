//! One part of an answer, as its caller gets it.

use a2abus_plugin::{Event, Text, extension};
use bytes::Bytes;

use crate::metrics::CallOutcome;

/// One part of an answer: a whole JSON-RPC message that carries the caller's own id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The JSON text.
    pub body: Bytes,
    /// Whether it is the last one.
    pub last: bool,
    /// The CloudEvent that the agent sent, for callers that are answered with it as it is.
    /// Of an error that the agent's bridge has answered with, the event that says so.
    pub event: Option<Box<Event>>,
}

// === impl Part ===

impl Part {
    /// How a call ends whose last part this is.
    pub(crate) fn outcome(&self) -> CallOutcome {
        let event = self.event.as_deref();
        let reason = event.and_then(|event| event.extension_text(extension::FAILURE_REASON));
        match reason.map(Text::as_str) {
            None => CallOutcome::Answered,
            Some("agent_unavailable") => CallOutcome::Unavailable,
            Some("timeout") => CallOutcome::Timeout,
            Some(_) => CallOutcome::Failed,
        }
    }
}
