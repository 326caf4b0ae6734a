//! The families of payloads, and what a decoded payload is.

pub mod a2e_message;
pub mod dialect;
pub mod jsonrpc;
pub mod legacy;

use crate::event::{Attributes, Event, Value};
use crate::extension;
use crate::text::Text;

/// A family of payloads that detection tells apart. Source: docs/protocols/detection.md §2.
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

/// What an event that came as a CloudEvent is in its exchange: what its `mcptype` says, else a notification.
#[must_use]
pub fn kind_of_event(event: &Event) -> Kind {
    let kind = event
        .extension_text(extension::MCP_TYPE)
        .and_then(|word| Kind::from_word(word));
    kind.unwrap_or(Kind::Notification)
}

/// The prefix of EventMesh's event types.
pub const DEFAULT_TYPE_PREFIX: &str = "org.apache.eventmesh.a2a.";

/// What the event of a unit will be, but for what only the mapping knows.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Draft {
    /// The unit is a CloudEvent.
    Event(Event),
    /// The unit becomes one.
    Message(Message),
}

/// The event that a message becomes, but for what only the mapping knows.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Message {
    /// What it is in its exchange.
    pub(crate) kind: Kind,
    pub(crate) ty: Type,
    pub(crate) form: Form,
    pub(crate) protocol: &'static str,
    pub(crate) protocol_version: Option<Text>,
    /// What is known of the event; its `id` is empty where it gets a new one.
    pub(crate) attributes: Box<Attributes>,
}

/// What the body of a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// One JSON value.
    Json,
    /// JSON values, one a line.
    Lines,
}

/// An event type, but for its prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Type {
    /// Of what JSON-RPC protocols define.
    Call(CallType),
    /// Of anything else.
    Named {
        category: &'static str,
        /// A name whose slashes become dots.
        name: Text,
        suffix: &'static str,
    },
}

/// The event type of a call of a method that is known, whole, under the default prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallType {
    /// As a request.
    pub(crate) request: &'static str,
    /// As a notification, which has no suffix.
    pub(crate) notification: &'static str,
}

// === impl CallType ===

impl CallType {
    /// Of the type of a request and the suffix it ends in.
    pub(crate) const fn of(request: &'static [u8], suffix: &str) -> Self {
        let (notification, _) = request.split_at(request.len() - suffix.len());
        match (str::from_utf8(request), str::from_utf8(notification)) {
            (Ok(request), Ok(notification)) => Self {
                request,
                notification,
            },
            _ => Self {
                request: "",
                notification: "",
            },
        }
    }
}

// === impl Message ===

impl Message {
    /// `protocol` and its version are the attributes of these names.
    pub(crate) fn new(kind: Kind, ty: Type, protocol: &'static str) -> Self {
        Self {
            kind,
            ty,
            form: Form::Json,
            protocol,
            protocol_version: None,
            attributes: Box::default(),
        }
    }

    /// Adds an extension that is valid, and not there yet.
    pub(crate) fn put(&mut self, name: &'static str, value: impl Into<Value>) {
        let extension = (Text::from_static(name), value.into());
        self.attributes.extensions.push(extension);
    }

    /// As [`Message::put`], where there is a value.
    pub(crate) fn put_if(&mut self, name: &'static str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.put(name, value);
        }
    }
}

/// The longest target, in characters. Source: docs/protocols/eventmesh-a2a.md §D6.
pub const MAX_TARGET_CHARS: usize = 256;
/// The longest topic named by a payload, in characters. Source: docs/protocols/eventmesh-a2a.md §D6.
pub const MAX_TOPIC_CHARS: usize = 249;
/// The longest method, in characters. Source: docs/protocols/eventmesh-a2a.md §D11.
pub const MAX_METHOD_CHARS: usize = 256;
/// The longest text of an id, in bytes.
pub const MAX_ID_BYTES: usize = 1_024;

/// Whether the text may name a target: 1 to 256 of `A-Z a-z 0-9 . _ - / : @ +`, no `..`.
/// Source: docs/protocols/eventmesh-a2a.md §D6.
#[must_use]
pub fn is_target(text: &str) -> bool {
    is_name(text, MAX_TARGET_CHARS)
}

/// Whether the text may name a topic: as a target, up to 249. Source: docs/protocols/eventmesh-a2a.md §D6.
#[must_use]
pub fn is_topic(text: &str) -> bool {
    is_name(text, MAX_TOPIC_CHARS)
}

fn is_name(text: &str, max: usize) -> bool {
    let bytes = text.as_bytes();
    (1..=max).contains(&bytes.len())
        && bytes.iter().all(|byte| NAME_BYTES[usize::from(*byte)])
        && !bytes.windows(2).any(|pair| pair == b"..")
}

/// Which bytes names are made of: a question asked of every byte of every target.
const NAME_BYTES: [bool; 256] = {
    let mut legal = [false; 256];
    let mut byte = 0;
    while byte < legal.len() {
        #[allow(clippy::cast_possible_truncation)] // Less than 256.
        let b = byte as u8;
        legal[byte] = b.is_ascii_alphanumeric()
            || matches!(b, b'.' | b'_' | b'-' | b'/' | b':' | b'@' | b'+');
        byte += 1;
    }
    legal
};

/// Whether the text may be a method: 1 to 256 characters, no control characters or spaces.
/// Source: docs/protocols/eventmesh-a2a.md §D11.
#[must_use]
pub fn is_method(text: &str) -> bool {
    if text.bytes().all(|b| b.is_ascii_graphic()) {
        return (1..=MAX_METHOD_CHARS).contains(&text.len());
    }
    let visible = |c: char| crate::event::is_string_char(c) && !c.is_whitespace();
    text.chars().count() <= MAX_METHOD_CHARS && text.chars().all(visible)
}

/// Whether the text may tie the lines of a workflow together: a short string attribute.
#[must_use]
pub(crate) fn is_collaboration_id(text: &str) -> bool {
    (1..=MAX_ID_BYTES).contains(&text.len()) && crate::event::is_string(text)
}

/// Whether the text may name an operation or an execution: 1 to 100 of `A-Z a-z 0-9 _ -`.
/// Source: docs/protocols/a2e-workflows.md §1.
pub(crate) fn is_operation_id(text: &str) -> bool {
    (1..=100).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}
