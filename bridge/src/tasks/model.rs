//! Messages, artifacts and states of A2A, independent of its versions.
//!
//! Content that only agents and callers understand (metadata, data parts, parts of unknown kinds) is stored as the
//! original JSON text. Source: docs/protocols/a2a.md §9.

use a2abus_plugin::Text;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The code of the error of a server that does not know a task. Source: A2A 0.3 section 8.2, A2A 1.0 section 9.5.
pub(crate) const TASK_NOT_FOUND: i64 = -32_001;

/// The original JSON text.
pub(crate) type Raw = Box<RawValue>;

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// The caller.
    User,
    /// The agent.
    Agent,
    /// Instructions, which only the JAF document has.
    System,
}

/// A message.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Message {
    pub(crate) id: Text,
    pub(crate) role: Role,
    pub(crate) parts: Vec<Part>,
    /// A JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Raw>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) extensions: Vec<Text>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) references: Vec<Text>,
}

/// A part of a message or of an artifact.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) content: Content,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) filename: Option<Text>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) media_type: Option<Text>,
    /// A JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Raw>,
}

/// The content of a part.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Content {
    /// Text.
    Text(String),
    /// A file, as base64.
    Bytes(String),
    /// A file, by its URL.
    Url(String),
    /// JSON.
    Data(Raw),
    /// A part of an unknown kind, as a whole.
    Other(Raw),
}

/// An artifact of an agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Artifact {
    pub(crate) id: Text,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) description: Option<String>,
    pub(crate) parts: Vec<Part>,
    /// A JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Raw>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) extensions: Vec<Text>,
}

/// The state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Submitted,
    Working,
    InputRequired,
    AuthRequired,
    Completed,
    Canceled,
    Failed,
    Rejected,
    Unknown,
}

/// The state of a task, with a message about it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) state: State,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<Message>,
    /// When, as RFC 3339.
    pub(crate) timestamp: Text,
    /// Of the event or the task that reported the state. A JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Raw>,
}

// === impl State ===

impl State {
    /// Reads a state of any A2A version.
    pub(crate) fn read(text: &str) -> Self {
        let bare = text.strip_prefix("TASK_STATE_").unwrap_or(text);
        match bare.to_ascii_lowercase().replace('_', "-").as_str() {
            "submitted" => Self::Submitted,
            "working" => Self::Working,
            "input-required" => Self::InputRequired,
            "auth-required" => Self::AuthRequired,
            "completed" => Self::Completed,
            "canceled" | "cancelled" => Self::Canceled,
            "failed" => Self::Failed,
            "rejected" => Self::Rejected,
            _ => Self::Unknown,
        }
    }

    /// Its name in A2A 0.3.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Working => "working",
            Self::InputRequired => "input-required",
            Self::AuthRequired => "auth-required",
            Self::Completed => "completed",
            Self::Canceled => "canceled",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
            Self::Unknown => "unknown",
        }
    }

    /// Whether the task never leaves it.
    pub(crate) fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Completed | Self::Canceled | Self::Failed | Self::Rejected
        )
    }

    /// Whether the agent has stopped until it gets another message.
    pub(crate) fn is_at_rest(self) -> bool {
        self.is_terminal() || matches!(self, Self::InputRequired | Self::AuthRequired)
    }
}

// === impl Role ===

impl Role {
    /// Reads a role of any A2A version.
    pub(crate) fn read(text: &str) -> Option<Self> {
        match text {
            "user" | "ROLE_USER" => Some(Self::User),
            "agent" | "ROLE_AGENT" => Some(Self::Agent),
            "system" => Some(Self::System),
            _ => None,
        }
    }
}

// === impl Message, Part, Status ===

impl Message {
    /// An agent's message with these parts.
    pub(crate) fn of_agent(parts: Vec<Part>) -> Self {
        Self {
            id: new_id(),
            role: Role::Agent,
            parts,
            metadata: None,
            extensions: Vec::new(),
            references: Vec::new(),
        }
    }
}

impl Part {
    /// A part with only this content.
    pub(crate) fn of(content: Content) -> Self {
        Self {
            content,
            filename: None,
            media_type: None,
            metadata: None,
        }
    }
}

impl Status {
    /// A state that starts now.
    pub(crate) fn now(state: State, message: Option<Message>) -> Self {
        Self {
            state,
            message,
            timestamp: crate::clock::rfc3339(crate::clock::now()),
            metadata: None,
        }
    }
}

/// A new id for a task, context or message.
pub(crate) fn new_id() -> Text {
    Text::from(uuid::Uuid::now_v7().to_string())
}
