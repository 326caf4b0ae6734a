//! The families of payloads, and what a decoded payload is.

pub mod a2e_message;
pub mod dialect;
pub mod jsonrpc;
pub mod legacy;

use crate::event::Event;
use crate::protocol::jsonrpc::JsonRpc;
use crate::protocol::legacy::Legacy;

/// A family of payloads that detection tells apart. Source: `detection` section 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// A CloudEvent in structured mode.
    CloudEvent,
    /// JSON-RPC 2.0: MCP, A2A and ACP.
    JsonRpc,
    /// Legacy A2A with FIPA acts.
    Legacy,
    /// An A2E message (agent to environment).
    A2eMessage,
    /// An A2E workflow (agent to execution).
    A2eWorkflow,
    /// E2A (everything to agent).
    E2a,
}

impl Family {
    /// Every family, in the order of detection.
    pub const ALL: [Self; 6] = [
        Self::CloudEvent,
        Self::JsonRpc,
        Self::Legacy,
        Self::A2eMessage,
        Self::A2eWorkflow,
        Self::E2a,
    ];

    /// The stable word of this family.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CloudEvent => "cloudevent",
            Self::JsonRpc => "jsonrpc",
            Self::Legacy => "legacy",
            Self::A2eMessage => "a2e_message",
            Self::A2eWorkflow => "a2e_workflow",
            Self::E2a => "e2a",
        }
    }

    /// The family a word names.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.as_str() == word)
    }
}

/// What an event is in its exchange: the value of the extension `mcptype`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Expects an answer.
    Request,
    /// Expects none.
    Notification,
    /// Ends an exchange.
    Response,
    /// A part of an answer that more parts follow.
    Stream,
}

impl Kind {
    /// The value of `mcptype`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Notification => "notification",
            Self::Response => "response",
            Self::Stream => "stream",
        }
    }

    /// The kind a value of `mcptype` names.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        [
            Self::Request,
            Self::Notification,
            Self::Response,
            Self::Stream,
        ]
        .into_iter()
        .find(|kind| kind.as_str() == word)
    }
}

/// A decoded payload, still in its own protocol. It shares the payload's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Envelope {
    /// A CloudEvent in structured mode.
    CloudEvent(Event),
    /// A JSON-RPC 2.0 request, notification or response.
    JsonRpc(JsonRpc),
    /// A legacy A2A message.
    Legacy(Legacy),
}

impl Envelope {
    /// The family.
    #[must_use]
    pub fn family(&self) -> Family {
        match self {
            Self::CloudEvent(_) => Family::CloudEvent,
            Self::JsonRpc(_) => Family::JsonRpc,
            Self::Legacy(_) => Family::Legacy,
        }
    }
}

/// The longest target, in characters. Source: `eventmesh-a2a` D6.
pub const MAX_TARGET_CHARS: usize = 256;
/// The longest topic named by a payload, in characters. Source: `eventmesh-a2a` D6.
pub const MAX_TOPIC_CHARS: usize = 249;
/// The longest method, in characters. Source: `eventmesh-a2a` D11.
pub const MAX_METHOD_CHARS: usize = 256;
/// The longest text of an id, in bytes.
pub const MAX_ID_BYTES: usize = 1_024;

/// Whether the text may name a target: 1 to 256 of `A-Z a-z 0-9 . _ - / : @ +`, no `..`. Source: `eventmesh-a2a` D6.
#[must_use]
pub fn is_target(text: &str) -> bool {
    is_name(text, MAX_TARGET_CHARS)
}

/// Whether the text may name a topic: as a target, up to 249. Source: `eventmesh-a2a` D6.
#[must_use]
pub fn is_topic(text: &str) -> bool {
    is_name(text, MAX_TOPIC_CHARS)
}

fn is_name(text: &str, max: usize) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._-/:@+".contains(&b);
    (1..=max).contains(&text.len()) && text.bytes().all(allowed) && !text.contains("..")
}

/// Whether the text may be a method: 1 to 256 characters, no control characters or spaces. Source: `eventmesh-a2a` D11.
#[must_use]
pub fn is_method(text: &str) -> bool {
    if text.bytes().all(|b| b.is_ascii_graphic()) {
        return (1..=MAX_METHOD_CHARS).contains(&text.len());
    }
    let visible = |c: char| crate::event::is_string_char(c) && !c.is_whitespace();
    text.chars().count() <= MAX_METHOD_CHARS && text.chars().all(visible)
}
