//! One part of an answer, in the caller's form.

use a2abus_plugin::Event;
use bytes::Bytes;

use crate::metrics::CallOutcome;

/// One part of an answer: a whole message, which has the caller's own id if it is JSON-RPC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The text.
    pub body: Bytes,
    /// Whether it is the last one.
    pub last: bool,
    /// Whether it is a question of the agent: a JSON-RPC request.
    pub is_question: bool,
    /// The CloudEvent that the agent sent, for callers that get it unchanged.
    pub event: Option<Box<Event>>,
    /// The outcome of the call, if this is the last part.
    pub outcome: CallOutcome,
}

// === impl Part ===

impl Part {
    /// A part that is not an event.
    pub(crate) fn new(body: Bytes, last: bool) -> Self {
        Self {
            body,
            last,
            is_question: false,
            event: None,
            outcome: CallOutcome::Answered,
        }
    }
}
