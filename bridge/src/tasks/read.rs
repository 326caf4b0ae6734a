//! Reads messages and answers of any A2A version.
//!
//! It is lenient: it accepts both spellings of states and roles, parts with and without `kind`, and results with and
//! without a wrapper. Source: docs/protocols/a2a.md §1 and §9.

use a2abus_plugin::Text;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::model::{Artifact, Content, Message, Part, Raw, Role, State, Status, new_id};
use crate::object::{self, Object, present};

/// One part of an agent's answer.
#[derive(Debug, Clone)]
pub(crate) enum AnswerPart {
    /// A whole task.
    Task(ReportedTask),
    /// A message, which is a complete answer.
    Message(Message),
    /// A change of state of its task.
    Status {
        /// The agent's own id of the task.
        task: Option<Text>,
        /// The state.
        status: Status,
    },
    /// An artifact of its task, or a part of one.
    Artifact {
        /// The agent's own id of the task.
        task: Option<Text>,
        /// The artifact.
        artifact: Artifact,
        /// Whether to append the parts to the artifact with the same id.
        append: bool,
        /// Whether this is the last part of the artifact.
        last: bool,
        /// Of the event. A JSON object.
        metadata: Option<Raw>,
    },
    /// A result that is not A2A.
    Plain(Raw),
}

/// A task as an agent reports it.
#[derive(Debug, Clone)]
pub(crate) struct ReportedTask {
    /// The agent's own id.
    pub(crate) id: Option<Text>,
    pub(crate) status: Option<Status>,
    pub(crate) artifacts: Vec<Artifact>,
    /// The messages of the agent so far.
    pub(crate) history: Vec<Message>,
}

/// Why JSON is not a valid message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadMessage {
    /// Required members are missing.
    #[error("the message has no {}", .0.join(", no "))]
    Missing(Vec<&'static str>),
    /// The role is not one of user, agent, system.
    #[error("the role of a message is user, agent or system, not {0:?}")]
    Role(String),
    /// `kind` is something else.
    #[error("Message kind must be 'message'")]
    Kind,
    /// It has no parts.
    #[error("Message parts cannot be empty")]
    NoParts,
    /// A part has no content.
    #[error(
        "parts[{0}] has no content: it needs one of text, data, raw, url, or a file with bytes or uri"
    )]
    EmptyPart(usize),
    /// A part has several contents, so that the agent would have to choose one.
    #[error("parts[{part}] has more than one content ({}): send one part for each", .members.join(" and "))]
    SeveralContents {
        /// Its position.
        part: usize,
        /// The contents.
        members: Vec<&'static str>,
    },
    /// The content of a file is not base64.
    #[error(
        "parts[{part}].{member} is not base64: encode the bytes as base64 (standard or URL-safe)"
    )]
    NotBase64 {
        /// The position of its part.
        part: usize,
        /// The member.
        member: &'static str,
    },
    /// A member has the wrong type.
    #[error("the message cannot be read: {0}")]
    Unreadable(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireMessage<'a> {
    kind: Option<Text>,
    role: Option<Text>,
    #[serde(borrow)]
    parts: Option<Vec<&'a RawValue>>,
    // The names in the `.proto` of A2A 1.0 are accepted too.
    #[serde(alias = "message_id")]
    message_id: Option<Text>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    extensions: Option<Vec<Text>>,
    #[serde(alias = "reference_task_ids")]
    reference_task_ids: Option<Vec<Text>>,
    // Present also as `null`, so that they can be replaced.
    #[serde(borrow, default, deserialize_with = "present", alias = "task_id")]
    task_id: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present", alias = "context_id")]
    context_id: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WirePart<'a> {
    kind: Option<Text>,
    text: Option<String>,
    /// Also `null`, which is data if there is no other content.
    #[serde(borrow, default, deserialize_with = "present")]
    data: Option<&'a RawValue>,
    file: Option<Object<WireFile>>,
    raw: Option<String>,
    url: Option<String>,
    filename: Option<Text>,
    #[serde(alias = "media_type")]
    media_type: Option<Text>,
    mime_type: Option<Text>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireFile {
    bytes: Option<String>,
    uri: Option<String>,
    name: Option<Text>,
    mime_type: Option<Text>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireArtifact<'a> {
    artifact_id: Option<Text>,
    name: Option<String>,
    description: Option<String>,
    #[serde(borrow)]
    parts: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    extensions: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct WireStatus<'a> {
    state: Option<Text>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    timestamp: Option<Text>,
}

/// Every member that a result of A2A may have.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireResult<'a> {
    kind: Option<Text>,
    id: Option<Text>,
    task_id: Option<Text>,
    #[serde(borrow)]
    status: Option<WireStatus<'a>>,
    #[serde(borrow)]
    artifacts: Option<Vec<WireArtifact<'a>>>,
    #[serde(borrow)]
    history: Option<Vec<&'a RawValue>>,
    #[serde(borrow)]
    artifact: Option<WireArtifact<'a>>,
    append: Option<bool>,
    last_chunk: Option<bool>,
    role: Option<Text>,
    #[serde(borrow)]
    parts: Option<Vec<&'a RawValue>>,
    #[serde(borrow, alias = "message_id")]
    message_id: Option<&'a RawValue>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    extensions: Option<&'a RawValue>,
    #[serde(borrow, alias = "reference_task_ids")]
    reference_task_ids: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    task: Option<&'a RawValue>,
    #[serde(borrow)]
    status_update: Option<&'a RawValue>,
    #[serde(borrow)]
    artifact_update: Option<&'a RawValue>,
}

/// The ids of a message's task and conversation, as JSON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addressed<'a> {
    pub(crate) task_id: Option<&'a RawValue>,
    pub(crate) context_id: Option<&'a RawValue>,
}

/// Who sent a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    /// A client. Invalid parts are refused, and the error says why.
    Client,
    /// An agent. Nobody could correct its message, so ambiguous parts are accepted.
    Agent,
}

/// Reads a message.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn message(
    json: &RawValue,
    sender: Sender,
) -> Result<(Message, Addressed<'_>), BadMessage> {
    let wire: WireMessage<'_> = object::from_slice(json.get().as_bytes())
        .map_err(|error| BadMessage::Unreadable(error.to_string()))?;
    if wire.kind.is_some_and(|kind| kind != "message") {
        return Err(BadMessage::Kind);
    }
    let missing = [
        ("role", wire.role.is_none()),
        ("parts", wire.parts.is_none()),
        (
            "messageId",
            wire.message_id.as_ref().is_none_or(|id| id.is_empty()),
        ),
    ];
    let missing: Vec<_> = missing.iter().filter(|(_, is)| *is).collect();
    let (Some(role), Some(parts), Some(id), true) =
        (wire.role, wire.parts, wire.message_id, missing.is_empty())
    else {
        return Err(BadMessage::Missing(
            missing.iter().map(|(name, _)| *name).collect(),
        ));
    };
    let role = Role::read(&role).ok_or_else(|| BadMessage::Role(role.to_string()))?;
    if parts.is_empty() {
        return Err(BadMessage::NoParts);
    }
    if sender == Sender::Client {
        check_metadata(wire.metadata, || "metadata".to_owned())?;
    }
    let message = Message {
        id,
        role,
        parts: parts_of(&parts, sender)?,
        metadata: object_of(wire.metadata),
        extensions: wire.extensions.unwrap_or_default(),
        references: wire.reference_task_ids.unwrap_or_default(),
    };
    let addressed = Addressed {
        task_id: wire.task_id,
        context_id: wire.context_id,
    };
    Ok((message, addressed))
}

fn parts_of(parts: &[&RawValue], sender: Sender) -> Result<Vec<Part>, BadMessage> {
    let parts = parts.iter().enumerate();
    parts
        .map(|(index, part)| {
            let wire: WirePart<'_> = object::from_slice(part.get().as_bytes())
                .map_err(|error| BadMessage::Unreadable(format!("parts[{index}]: {error}")))?;
            if sender == Sender::Client {
                check_metadata(wire.metadata, || format!("parts[{index}].metadata"))?;
                wire.check(index)?;
            }
            let read = part_of(wire, part);
            match sender {
                Sender::Client => read.ok_or(BadMessage::EmptyPart(index)),
                Sender::Agent => {
                    Ok(read.unwrap_or_else(|| Part::of(Content::Other((*part).to_owned()))))
                }
            }
        })
        .collect()
}

fn part_of(wire: WirePart<'_>, whole: &RawValue) -> Option<Part> {
    let (mut filename, mut media_type) = (wire.filename, wire.media_type.or(wire.mime_type));
    let (null, data) = match wire.data {
        Some(data) if data.get() == "null" => (Some(data), None),
        data => (None, data),
    };
    let content = if let Some(text) = wire.text {
        Content::Text(text)
    } else if let Some(data) = data {
        Content::Data(data.to_owned())
    } else if let Some(bytes) = wire.raw {
        Content::Bytes(bytes)
    } else if let Some(url) = wire.url {
        Content::Url(url)
    } else if let Some(Object(file)) = wire.file {
        filename = filename.or(file.name);
        media_type = media_type.or(file.mime_type);
        match (file.bytes, file.uri) {
            (Some(bytes), _) => Content::Bytes(bytes),
            (None, uri) => Content::Url(uri?),
        }
    } else if let Some(null) =
        null.filter(|_| wire.kind.as_deref().is_none_or(|kind| kind == "data"))
    {
        Content::Data(null.to_owned())
    } else {
        // The recipient may know this kind.
        wire.kind.filter(|kind| !known_kind(kind))?;
        Content::Other(whole.to_owned())
    };
    Some(Part {
        content,
        filename,
        media_type,
        metadata: object_of(wire.metadata),
    })
}

// === impl WirePart ===

impl WirePart<'_> {
    /// Checks that a part has at most one content, and that bytes are base64. Parts of an unknown kind are forwarded
    /// unchecked.
    fn check(&self, part: usize) -> Result<(), BadMessage> {
        if self.kind.as_deref().is_some_and(|kind| !known_kind(kind)) {
            return Ok(());
        }
        let file = self.file.as_ref().map(|Object(file)| file);
        let file_bytes = file.and_then(|file| file.bytes.as_deref());
        let file_uri = file.and_then(|file| file.uri.as_deref());
        let contents = [
            ("text", self.text.is_some()),
            (
                "data",
                self.data.as_ref().is_some_and(|data| data.get() != "null"),
            ),
            ("raw", self.raw.is_some()),
            ("url", self.url.is_some()),
            ("file.bytes", file_bytes.is_some()),
            ("file.uri", file_uri.is_some()),
        ];
        let present = contents.iter().filter(|(_, is)| *is);
        if present.clone().nth(1).is_some() {
            let members = present.map(|(member, _)| *member).collect();
            return Err(BadMessage::SeveralContents { part, members });
        }
        let files = [("raw", self.raw.as_deref()), ("file.bytes", file_bytes)];
        for (member, text) in files {
            if text.is_some_and(|text| !is_base64(text)) {
                return Err(BadMessage::NotBase64 { part, member });
            }
        }
        Ok(())
    }
}

/// Whether a text is base64, with or without padding, in the standard alphabet or the one that is safe in URLs. The
/// JSON of Protocol Buffers allows all four.
pub(crate) fn is_base64(text: &str) -> bool {
    const STANDARD: u8 = 1;
    const URL_SAFE: u8 = 2;
    const OTHER: u8 = 4;
    let digits = text.trim_end_matches('=');
    let has_right_length = match (digits.len() % 4, text.len() - digits.len()) {
        (0, padding) => padding == 0,
        (2, padding) => matches!(padding, 0 | 2),
        (3, padding) => padding <= 1,
        _ => false,
    };
    // Without an early exit, the compiler checks many bytes at once.
    let seen = digits.bytes().fold(0, |seen, digit| {
        seen | match digit {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' => 0,
            b'+' | b'/' => STANDARD,
            b'-' | b'_' => URL_SAFE,
            _ => OTHER,
        }
    });
    has_right_length && matches!(seen, 0 | STANDARD | URL_SAFE)
}

fn known_kind(kind: &str) -> bool {
    matches!(kind, "text" | "data" | "file")
}

fn is_object(raw: &RawValue) -> bool {
    raw.get().starts_with('{')
}

/// Metadata of a client is an object, or `null`.
fn check_metadata(raw: Option<&RawValue>, member: impl Fn() -> String) -> Result<(), BadMessage> {
    match raw {
        Some(raw) if !is_object(raw) && raw.get() != "null" => {
            let why = format!("{} must be an object", member());
            Err(BadMessage::Unreadable(why))
        }
        _ => Ok(()),
    }
}

fn object_of(raw: Option<&RawValue>) -> Option<Raw> {
    raw.filter(|raw| is_object(raw)).map(RawValue::to_owned)
}

/// Reads the result of an agent's answer.
pub(crate) fn result(json: &RawValue) -> AnswerPart {
    let plain = || AnswerPart::Plain(json.to_owned());
    if json.get() == "null" {
        // Clients of A2A 1.0 cannot read a data part that is `null`.
        let empty = RawValue::from_string("{}".to_owned());
        return empty.map_or_else(|_| plain(), AnswerPart::Plain);
    }
    if !is_object(json) {
        return plain();
    }
    let Ok(wire) = serde_json::from_str::<WireResult<'_>>(json.get()) else {
        return plain();
    };
    if let Some(inner) = wire
        .task
        .or(wire.status_update)
        .or(wire.artifact_update)
        .filter(|_| wire.kind.is_none())
    {
        let inner: Result<WireResult<'_>, _> = serde_json::from_str(inner.get());
        return inner.ok().and_then(read_update).unwrap_or_else(plain);
    }
    if let (None, None, Some(inner)) = (&wire.kind, &wire.status, &wire.message) {
        let message = message(inner, Sender::Agent);
        return message.map_or_else(|_| plain(), |(message, _)| AnswerPart::Message(message));
    }
    if wire.kind.as_deref() == Some("message") || (wire.role.is_some() && wire.parts.is_some()) {
        return message_of(wire).map_or_else(plain, AnswerPart::Message);
    }
    read_update(wire).unwrap_or_else(plain)
}

/// A task or an update of one.
fn read_update(wire: WireResult<'_>) -> Option<AnswerPart> {
    let task = wire.task_id.clone();
    let metadata = object_of(wire.metadata);
    match wire.kind.as_deref() {
        Some("completion") => {
            let message = read_message(wire.message?)?;
            let completed = Status::now(State::Completed, Some(message));
            Some(AnswerPart::Status {
                task,
                status: Status {
                    metadata,
                    ..completed
                },
            })
        }
        Some("partial-completion") => Some(AnswerPart::Artifact {
            task,
            artifact: artifact_in(read_message(wire.message?)?),
            append: true,
            last: false,
            metadata,
        }),
        _ if wire.artifact.is_some() => Some(AnswerPart::Artifact {
            task,
            artifact: artifact_of(wire.artifact?)?,
            append: wire.append.unwrap_or(false),
            last: wire.last_chunk.unwrap_or(false),
            metadata,
        }),
        Some("status-update") | None if wire.task_id.is_some() => Some(AnswerPart::Status {
            task,
            status: status_of(&wire.status?, metadata),
        }),
        Some("task") | None if wire.status.is_some() => {
            let history = wire.history.unwrap_or_default();
            let artifacts = wire.artifacts.unwrap_or_default();
            Some(AnswerPart::Task(ReportedTask {
                id: wire.id,
                status: wire
                    .status
                    .as_ref()
                    .map(|status| status_of(status, metadata)),
                artifacts: artifacts.into_iter().filter_map(artifact_of).collect(),
                history: history
                    .iter()
                    .filter_map(|json| read_message(json))
                    .filter(|message| message.role == Role::Agent)
                    .collect(),
            }))
        }
        _ => None,
    }
}

/// The artifact that a message of JAF is a part of.
fn artifact_in(message: Message) -> Artifact {
    Artifact {
        id: message.id,
        name: None,
        description: None,
        parts: message.parts,
        metadata: message.metadata,
        extensions: message.extensions,
    }
}

/// An agent's message, which may lack the id or role.
fn read_message(json: &RawValue) -> Option<Message> {
    of_agent(serde_json::from_str(json.get()).ok()?)
}

fn of_agent(wire: WireMessage<'_>) -> Option<Message> {
    Some(Message {
        id: wire.message_id.unwrap_or_else(new_id),
        role: wire
            .role
            .and_then(|role| Role::read(&role))
            .unwrap_or(Role::Agent),
        parts: parts_of(&wire.parts.unwrap_or_default(), Sender::Agent).ok()?,
        metadata: object_of(wire.metadata),
        extensions: wire.extensions.unwrap_or_default(),
        references: wire.reference_task_ids.unwrap_or_default(),
    })
}

/// A message that is a result by itself. Other results may have members of these names with other types, so those are
/// only read here.
fn message_of(wire: WireResult<'_>) -> Option<Message> {
    fn read<T: Default + DeserializeOwned>(raw: Option<&RawValue>) -> Option<T> {
        raw.map_or_else(
            || Some(T::default()),
            |raw| serde_json::from_str(raw.get()).ok(),
        )
    }
    of_agent(WireMessage {
        kind: wire.kind,
        role: wire.role,
        parts: wire.parts,
        message_id: read(wire.message_id)?,
        metadata: wire.metadata,
        extensions: read(wire.extensions)?,
        reference_task_ids: read(wire.reference_task_ids)?,
        task_id: None,
        context_id: None,
    })
}

fn status_of(wire: &WireStatus<'_>, metadata: Option<Raw>) -> Status {
    let time = wire.timestamp.as_deref();
    let time = time.and_then(crate::clock::parse_loosely);
    Status {
        // A2A 1.0 leaves out a state that is not specified.
        state: wire.state.as_deref().map_or(State::Unknown, State::read),
        message: wire.message.and_then(read_message),
        timestamp: crate::clock::rfc3339(time.unwrap_or_else(crate::clock::now)),
        metadata,
    }
}

fn artifact_of(wire: WireArtifact<'_>) -> Option<Artifact> {
    Some(Artifact {
        id: wire
            .artifact_id
            .unwrap_or_else(|| Text::from_static("artifact")),
        name: wire.name,
        description: wire.description,
        // A2A 1.0 leaves out empty lists.
        parts: parts_of(&wire.parts.unwrap_or_default(), Sender::Agent).ok()?,
        metadata: object_of(wire.metadata),
        extensions: wire
            .extensions
            .and_then(|raw| serde_json::from_str(raw.get()).ok())
            .unwrap_or_default(),
    })
}
