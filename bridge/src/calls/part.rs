//! One part of an answer, as its caller gets it.

use a2abus_plugin::Event;
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
    pub event: Option<Box<Event>>,
    /// How a call ends whose last part this is.
    pub outcome: CallOutcome,
}

// === impl Part ===

impl Part {
    /// A part that is no event.
    pub(crate) fn new(body: Bytes, last: bool) -> Self {
        Self {
            body,
            last,
            event: None,
            outcome: CallOutcome::Answered,
        }
    }
}
