//! The families of payloads, and the draft of an event.

pub mod a2e_message;
pub mod dialect;
pub mod jsonrpc;
pub mod legacy;

use crate::event::{Attributes, Event, Value};
use crate::extension;
use crate::text::Text;

/// A family of payloads that detection distinguishes. Source: docs/protocols/detection.md §2.
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

    /// The stable name of this family.
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

    /// The family of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.as_str() == name)
    }
}

/// The role of an event in its exchange: the value of the extension `mcptype`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Expects an answer.
    Request,
    /// Expects none.
    Notification,
    /// Ends an exchange.
    Response,
    /// A part of an answer that is followed by others.
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

    /// The kind of a value of `mcptype`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [
            Self::Request,
            Self::Notification,
            Self::Response,
            Self::Stream,
        ]
        .into_iter()
        .find(|kind| kind.as_str() == name)
    }
}

/// The role of a received CloudEvent in its exchange: its `mcptype`, or else a notification.
#[must_use]
pub fn kind_of_event(event: &Event) -> Kind {
    let kind = event
        .extension_text(extension::MCP_TYPE)
        .and_then(|name| Kind::from_name(name));
    kind.unwrap_or(Kind::Notification)
}

/// The prefix of EventMesh's event types.
pub const DEFAULT_TYPE_PREFIX: &str = "org.apache.eventmesh.a2a.";

/// The event of a unit, without the parts that come from the mapping context and options.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Draft {
    /// Its role in the exchange.
    pub(crate) kind: Kind,
    /// The content type of the event's body; `None` if the unit is an event, which stays unchanged.
    pub(crate) form: Option<Form>,
    /// The event so far. For a message, it has no source yet, its type has the default prefix, and its `id` is empty if
    /// a new one is needed.
    pub(crate) event: Event,
}

/// The content of the body of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// One JSON value.
    Json,
    /// JSON values, one per line.
    Lines,
}

/// The event types for calls of a known method, under the default prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallType {
    /// As a request.
    pub(crate) request: &'static str,
    /// As a notification, which has no suffix.
    pub(crate) notification: &'static str,
}

// === impl CallType ===

impl CallType {
    /// For the type of a request and its suffix.
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

/// `<default prefix><category><name, its slashes as dots><suffix>`, built on the stack if it is short enough.
pub(crate) fn event_type(category: &str, name: &str, suffix: &str) -> Text {
    let parts = [DEFAULT_TYPE_PREFIX, category, name, suffix];
    let mut buffer = [0u8; 128];
    let mut at = 0;
    for part in parts {
        let Some(room) = buffer.get_mut(at..at + part.len()) else {
            let name = name.replace('/', ".");
            return Text::from([DEFAULT_TYPE_PREFIX, category, &name, suffix].concat());
        };
        room.copy_from_slice(part.as_bytes());
        at += part.len();
    }
    let named = DEFAULT_TYPE_PREFIX.len() + category.len();
    for byte in buffer.iter_mut().skip(named).take(name.len()) {
        if *byte == b'/' {
            *byte = b'.';
        }
    }
    let ty = buffer.get(..at).and_then(Text::from_utf8);
    ty.unwrap_or_default()
}

// === impl Draft ===

impl Draft {
    /// The draft of a unit that becomes an event of this type.
    pub(crate) fn new(kind: Kind, ty: Text) -> Self {
        let mut attributes = Box::<Attributes>::default();
        attributes.ty = ty;
        Self {
            kind,
            form: Some(Form::Json),
            event: Event(attributes),
        }
    }

    /// The draft of a unit that is already an event.
    pub(crate) fn of_event(event: Event) -> Self {
        Self {
            kind: kind_of_event(&event),
            form: None,
            event,
        }
    }

    /// Adds the last attributes of every event: its role in the exchange, and its protocol.
    pub(crate) fn of_protocol(mut self, protocol: &'static str, version: Option<Text>) -> Self {
        let event = &mut self.event.0;
        event.put(extension::MCP_TYPE, Text::from_static(self.kind.as_str()));
        event.put(extension::PROTOCOL, Text::from_static(protocol));
        event.put_if(extension::PROTOCOL_VERSION, version);
        self
    }

    /// Like [`Attributes::put`].
    #[inline(always)]
    pub(crate) fn put(&mut self, name: &'static str, value: impl Into<Value>) {
        self.event.0.put(name, value);
    }

    /// Like [`Attributes::put_if`].
    #[inline(always)]
    pub(crate) fn put_if(&mut self, name: &'static str, value: Option<impl Into<Value>>) {
        self.event.0.put_if(name, value);
    }
}

impl Attributes {
    /// Adds an extension that is valid and not present yet.
    #[inline(always)]
    pub(crate) fn put(&mut self, name: &'static str, value: impl Into<Value>) {
        self.extensions.push(Text::from_static(name), value.into());
    }

    /// Like [`Attributes::put`], if there is a value.
    #[inline(always)]
    pub(crate) fn put_if(&mut self, name: &'static str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.put(name, value);
        }
    }

    /// The `a2amethod` of the event.
    pub(crate) fn method(&self) -> Option<&str> {
        let method = self.extensions.get(extension::A2A_METHOD)?;
        method.as_text().map(Text::as_str)
    }

    /// Sets `mcptype`.
    pub(crate) fn set_kind(&mut self, kind: Kind) {
        if let Some(value) = self.extensions.get_mut(extension::MCP_TYPE) {
            *value = Text::from_static(kind.as_str()).into();
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

/// Whether the text is a valid target name: 1 to 256 of `A-Z a-z 0-9 . _ - / : @ +`, no `..`.
/// Source: docs/protocols/eventmesh-a2a.md §D6.
#[must_use]
pub fn is_target(text: &str) -> bool {
    is_name(text, MAX_TARGET_CHARS)
}

/// Whether the text is a valid topic name: like a target, up to 249. Source: docs/protocols/eventmesh-a2a.md §D6.
#[must_use]
pub fn is_topic(text: &str) -> bool {
    is_name(text, MAX_TOPIC_CHARS)
}

fn is_name(text: &str, max: usize) -> bool {
    let bytes = text.as_bytes();
    let mut seen = 0;
    let is_legal = |byte: &u8| {
        let class = NAME_BYTES[usize::from(*byte)];
        seen |= class;
        class != 0
    };
    (1..=max).contains(&bytes.len())
        && bytes.iter().all(is_legal)
        && (seen & DOT == 0 || !bytes.windows(2).any(|pair| pair == b".."))
}

/// The bytes that a name may contain, except for the dot. A table, because every byte of every target is checked.
const NAME_BYTES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < classes.len() {
        #[allow(clippy::cast_possible_truncation)] // Less than 256.
        let b = byte as u8;
        if b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'/' | b':' | b'@' | b'+') {
            classes[byte] = 1;
        }
        byte += 1;
    }
    classes[b'.' as usize] = DOT;
    classes
};

const DOT: u8 = 2;

/// Whether the text is a valid method name: 1 to 256 characters, no control characters or spaces.
/// Source: docs/protocols/eventmesh-a2a.md §D11.
#[must_use]
pub fn is_method(text: &str) -> bool {
    if text.bytes().all(|b| b.is_ascii_graphic()) {
        return (1..=MAX_METHOD_CHARS).contains(&text.len());
    }
    let visible = |c: char| crate::event::is_string_char(c) && !c.is_whitespace();
    text.chars().count() <= MAX_METHOD_CHARS && text.chars().all(visible)
}

/// Whether the text is a valid collaboration id: a short string attribute.
#[must_use]
pub(crate) fn is_collaboration_id(text: &str) -> bool {
    (1..=MAX_ID_BYTES).contains(&text.len()) && crate::event::is_string(text)
}

/// Whether the text is a valid id of an operation or an execution: 1 to 100 of `A-Z a-z 0-9 _ -`.
/// Source: docs/protocols/a2e-workflows.md §1.
#[must_use]
pub fn is_operation_id(text: &str) -> bool {
    (1..=100).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}
