//! Writes tasks, messages and events in a dialect.
//!
//! Source: docs/protocols/a2a.md §1 and §9.

use a2abus_plugin::protocol::dialect::Dialect;
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::json;
use serde_json::value::RawValue;

use super::model::{Artifact, Content, Message, Part, Role, State, Status};
use super::{Event, Task, Update};

/// A value that is serialised in one dialect.
#[derive(Clone, Copy)]
pub(crate) struct InDialect<'a, T> {
    it: &'a T,
    of: WriteContext<'a>,
}

/// The dialect, task and context.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteContext<'a> {
    pub(crate) dialect: Dialect,
    pub(crate) task: Option<&'a str>,
    pub(crate) context: Option<&'a str>,
}

/// A task with a limited history, and with or without artifacts.
struct TaskView<'a> {
    task: &'a Task,
    history: &'a [Message],
    has_artifacts: bool,
}

/// One event of a stream: its type, if the dialect has types, and its result.
pub(crate) struct StreamEvent {
    pub(crate) event: Option<&'static str>,
    pub(crate) result: String,
}

// === impl WriteContext ===

impl<'a> WriteContext<'a> {
    /// Creates the context for a task.
    pub(crate) fn task(dialect: Dialect, id: &'a str, task: &'a Task) -> Self {
        Self {
            dialect,
            task: Some(id),
            context: Some(&task.context),
        }
    }

    fn is_1_0(self) -> bool {
        self.dialect == Dialect::A2a10
    }

    fn is_jaf(self) -> bool {
        self.dialect == Dialect::JafDoc
    }

    fn write<T>(self, it: &'a T) -> InDialect<'a, T> {
        InDialect { it, of: self }
    }

    /// A whole task. `history` limits the number of messages; `None` means all.
    pub(crate) fn whole(self, task: &Task, history: Option<usize>, has_artifacts: bool) -> String {
        let most = history.unwrap_or(usize::MAX);
        let skipped = task.history.len().saturating_sub(most);
        let shown = TaskView {
            task,
            history: task.history.get(skipped..).unwrap_or_default(),
            has_artifacts,
        };
        text(&WriteContext::write(self, &shown))
    }

    /// The result of a send that is answered with a task.
    pub(crate) fn answer(self, task: &Task, history: Option<usize>) -> String {
        if self.is_jaf() && matches!(task.status.state, State::Completed) {
            return self.completion(&task.answer(), task.status.metadata.as_deref());
        }
        let whole = self.whole(task, history, true);
        if self.is_1_0() {
            return format!(r#"{{"task":{whole}}}"#);
        }
        whole
    }

    /// The result of a send that is answered with a message, without a task.
    pub(crate) fn message(self, message: &Message) -> String {
        let message = text(&WriteContext::write(self, message));
        if self.is_1_0() {
            return format!(r#"{{"message":{message}}}"#);
        }
        message
    }

    /// The result of a send that is answered with a task of which only the status is known.
    pub(crate) fn task_in(self, status: &Status) -> String {
        let (task, context) = (json!(self.task), json!(self.context));
        let status = text(&WriteContext::write(self, status));
        if self.is_1_0() {
            return format!(
                r#"{{"task":{{"id":{task},"contextId":{context},"status":{status}}}}}"#
            );
        }
        format!(r#"{{"kind":"task","id":{task},"contextId":{context},"status":{status}}}"#)
    }

    /// The completion event of the JAF document.
    fn completion(self, message: &Message, metadata: Option<&RawValue>) -> String {
        self.jaf_part(("completion", true), message, metadata)
    }

    fn jaf_part(
        self,
        (kind, is_final): (&str, bool),
        message: &Message,
        metadata: Option<&RawValue>,
    ) -> String {
        let (task, context) = (json!(self.task), json!(self.context));
        let message = text(&WriteContext::write(self, message));
        let metadata = member("metadata", metadata);
        format!(
            r#"{{"kind":"{kind}","taskId":{task},"contextId":{context},"message":{message}{metadata},"final":{is_final}}}"#
        )
    }

    /// The first event of a stream: the current task.
    pub(crate) fn first(self, task: &Task, history: Option<usize>) -> StreamEvent {
        if self.is_jaf() {
            return self.status(&task.status, task.status.state.is_at_rest());
        }
        let whole = self.whole(task, history, true);
        let result = if self.is_1_0() {
            format!(r#"{{"task":{whole}}}"#)
        } else {
            whole
        };
        StreamEvent {
            event: None,
            result,
        }
    }

    /// The same without messages and artifacts.
    pub(crate) fn first_in_brief(self, task: &Task) -> StreamEvent {
        if self.is_jaf() {
            return self.status(&task.status, task.status.state.is_at_rest());
        }
        StreamEvent {
            event: None,
            result: self.task_in(&task.status),
        }
    }

    /// An event of a task. `task` returns the task after the event, which the JAF document needs.
    pub(crate) fn step(
        self,
        step: &Update,
        task: impl FnOnce() -> Option<Task>,
    ) -> Option<StreamEvent> {
        match &*step.event {
            Event::Status(status) if self.is_jaf() && status.state == State::Completed => {
                let message = match &status.message {
                    Some(message) => message.clone(),
                    None => task()?.answer(),
                };
                Some(StreamEvent {
                    event: Some("completion"),
                    result: self.completion(&message, status.metadata.as_deref()),
                })
            }
            Event::Status(status) => Some(self.status(status, step.is_at_rest() && !step.goes_on)),
            Event::Artifact {
                artifact,
                append,
                last,
                metadata,
            } => Some(self.artifact(artifact, (*append, *last), metadata.as_deref())),
            _ => None,
        }
    }

    /// A status; `is_final` if it is the last event of its stream.
    pub(crate) fn status(self, status: &Status, is_final: bool) -> StreamEvent {
        let (task, context) = (json!(self.task), json!(self.context));
        let written = text(&WriteContext::write(self, status));
        let metadata = member("metadata", status.metadata.as_deref());
        let members =
            format!(r#""taskId":{task},"contextId":{context},"status":{written}{metadata}"#);
        StreamEvent {
            event: self.is_jaf().then_some("status-update"),
            result: if self.is_1_0() {
                format!(r#"{{"statusUpdate":{{{members}}}}}"#)
            } else {
                format!(r#"{{"kind":"status-update",{members},"final":{is_final}}}"#)
            },
        }
    }

    fn artifact(
        self,
        artifact: &Artifact,
        (append, last): (bool, bool),
        metadata: Option<&RawValue>,
    ) -> StreamEvent {
        if self.is_jaf() {
            let mut message = Message::of_agent(artifact.parts.clone());
            message.id = artifact.id.clone();
            return StreamEvent {
                event: Some("partial-completion"),
                result: self.jaf_part(("partial-completion", false), &message, metadata),
            };
        }
        let (task, context) = (json!(self.task), json!(self.context));
        let artifact = text(&WriteContext::write(self, artifact));
        let metadata = member("metadata", metadata);
        let members = format!(
            r#""taskId":{task},"contextId":{context},"artifact":{artifact},"append":{append},"lastChunk":{last}{metadata}"#
        );
        StreamEvent {
            event: None,
            result: if self.is_1_0() {
                format!(r#"{{"artifactUpdate":{{{members}}}}}"#)
            } else {
                format!(r#"{{"kind":"artifact-update",{members}}}"#)
            },
        }
    }
}

/// Serialization of these types cannot fail.
fn text(it: &impl Serialize) -> String {
    serde_json::to_string(it).unwrap_or_default()
}

/// An optional member that follows others.
fn member(name: &str, value: Option<&RawValue>) -> String {
    value.map_or_else(String::new, |value| format!(r#","{name}":{value}"#))
}

/// The name of a state in a dialect.
pub(crate) fn state(state: State, dialect: Dialect) -> &'static str {
    match (state, dialect) {
        (State::Submitted, Dialect::A2a10) => "TASK_STATE_SUBMITTED",
        (State::Working, Dialect::A2a10) => "TASK_STATE_WORKING",
        (State::InputRequired, Dialect::A2a10) => "TASK_STATE_INPUT_REQUIRED",
        (State::AuthRequired, Dialect::A2a10) => "TASK_STATE_AUTH_REQUIRED",
        (State::Completed, Dialect::A2a10) => "TASK_STATE_COMPLETED",
        (State::Canceled, Dialect::A2a10) => "TASK_STATE_CANCELED",
        (State::Failed, Dialect::A2a10) => "TASK_STATE_FAILED",
        (State::Rejected, Dialect::A2a10) => "TASK_STATE_REJECTED",
        (State::Unknown, Dialect::A2a10) => "TASK_STATE_UNSPECIFIED",
        // The JAF document has five states.
        (State::InputRequired | State::AuthRequired | State::Unknown, Dialect::JafDoc) => "working",
        (State::Rejected, Dialect::JafDoc) => "failed",
        (State::Canceled, Dialect::JafDoc) => "cancelled",
        (state, _) => state.as_str(),
    }
}

fn role(role: Role, dialect: Dialect) -> &'static str {
    match (role, dialect) {
        (Role::Agent, Dialect::A2a10) => "ROLE_AGENT",
        (Role::User | Role::System, Dialect::A2a10) => "ROLE_USER",
        (Role::System, Dialect::JafDoc) => "system",
        (Role::Agent, _) => "agent",
        (Role::User | Role::System, _) => "user",
    }
}

// === the shapes ===

impl Serialize for InDialect<'_, TaskView<'_>> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (task, of) = (self.it.task, self.of);
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &of.task)?;
        map.serialize_entry("contextId", &of.context)?;
        if !of.is_1_0() {
            map.serialize_entry("kind", "task")?;
        }
        map.serialize_entry("status", &of.write(&task.status))?;
        if !self.it.history.is_empty() {
            let history: Vec<_> = self.it.history.iter().map(|one| of.write(one)).collect();
            map.serialize_entry("history", &history)?;
        }
        if self.it.has_artifacts && !task.artifacts.is_empty() {
            let artifacts: Vec<_> = task.artifacts.iter().map(|one| of.write(one)).collect();
            map.serialize_entry("artifacts", &artifacts)?;
        }
        if !task.metadata.is_empty() {
            map.serialize_entry("metadata", &task.metadata)?;
        }
        map.end()
    }
}

impl Serialize for InDialect<'_, Status> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (status, of) = (self.it, self.of);
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("state", state(status.state, of.dialect))?;
        if let Some(message) = &status.message {
            map.serialize_entry("message", &of.write(message))?;
        }
        map.serialize_entry("timestamp", &status.timestamp)?;
        map.end()
    }
}

impl Serialize for InDialect<'_, Message> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (message, of) = (self.it, self.of);
        let mut map = serializer.serialize_map(None)?;
        if !of.is_1_0() {
            map.serialize_entry("kind", "message")?;
        }
        map.serialize_entry("messageId", &message.id)?;
        map.serialize_entry("role", role(message.role, of.dialect))?;
        let parts: Vec<_> = message.parts.iter().map(|part| of.write(part)).collect();
        map.serialize_entry("parts", &parts)?;
        if let Some(context) = of.context {
            map.serialize_entry("contextId", context)?;
        }
        if let Some(task) = of.task {
            map.serialize_entry("taskId", task)?;
        }
        if let Some(metadata) = &message.metadata {
            map.serialize_entry("metadata", metadata)?;
        }
        if !message.extensions.is_empty() {
            map.serialize_entry("extensions", &message.extensions)?;
        }
        if !message.references.is_empty() {
            map.serialize_entry("referenceTaskIds", &message.references)?;
        }
        map.end()
    }
}

impl Serialize for InDialect<'_, Artifact> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (artifact, of) = (self.it, self.of);
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("artifactId", &artifact.id)?;
        if let Some(name) = &artifact.name {
            map.serialize_entry("name", name)?;
        }
        if let Some(description) = &artifact.description {
            map.serialize_entry("description", description)?;
        }
        let parts: Vec<_> = artifact.parts.iter().map(|part| of.write(part)).collect();
        map.serialize_entry("parts", &parts)?;
        if let Some(metadata) = &artifact.metadata {
            map.serialize_entry("metadata", metadata)?;
        }
        if !artifact.extensions.is_empty() {
            map.serialize_entry("extensions", &artifact.extensions)?;
        }
        map.end()
    }
}

impl Serialize for InDialect<'_, Part> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Content::Other(whole) = &self.it.content {
            return whole.serialize(serializer);
        }
        if self.of.is_1_0() {
            self.current(serializer)
        } else {
            self.with_kind(serializer)
        }
    }
}

impl InDialect<'_, Part> {
    /// In the form of A2A 1.0: the name of the member is the type.
    fn current<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let part = self.it;
        let mut map = serializer.serialize_map(None)?;
        match &part.content {
            Content::Text(text) => map.serialize_entry("text", text)?,
            Content::Bytes(bytes) => map.serialize_entry("raw", bytes)?,
            Content::Url(url) => map.serialize_entry("url", url)?,
            Content::Data(data) | Content::Other(data) => map.serialize_entry("data", data)?,
        }
        if let Some(filename) = &part.filename {
            map.serialize_entry("filename", filename)?;
        }
        if let Some(media_type) = &part.media_type {
            map.serialize_entry("mediaType", media_type)?;
        }
        if let Some(metadata) = &part.metadata {
            map.serialize_entry("metadata", metadata)?;
        }
        map.end()
    }

    /// In the form of A2A 0.3 and the JAF document: with `kind`.
    fn with_kind<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let part = self.it;
        let mut map = serializer.serialize_map(None)?;
        let file = |member: &'static str, place: &str| {
            let mut file = json!({ member: place });
            let named = [("name", &part.filename), ("mimeType", &part.media_type)];
            for (name, value) in named {
                if let Some(value) = value {
                    file[name] = json!(value.as_str());
                }
            }
            file
        };
        match &part.content {
            Content::Text(text) => {
                map.serialize_entry("kind", "text")?;
                map.serialize_entry("text", text)?;
            }
            Content::Bytes(bytes) => {
                map.serialize_entry("kind", "file")?;
                map.serialize_entry("file", &file("bytes", bytes))?;
            }
            Content::Url(url) => {
                map.serialize_entry("kind", "file")?;
                map.serialize_entry("file", &file("uri", url))?;
            }
            Content::Data(data) | Content::Other(data) => {
                map.serialize_entry("kind", "data")?;
                // Their data parts must be objects; A2A 1.0 allows any JSON.
                if data.get().starts_with('{') {
                    map.serialize_entry("data", data)?;
                } else {
                    let wrapped = std::collections::BTreeMap::from([("value", data)]);
                    map.serialize_entry("data", &wrapped)?;
                }
            }
        }
        if let Some(metadata) = &part.metadata {
            map.serialize_entry("metadata", metadata)?;
        }
        map.end()
    }
}
