//! The answer of an A2A agent, as a tool result.

use std::fmt::Write as _;

use a2abus_plugin::Text;
use a2abus_plugin::protocol::jsonrpc;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use crate::calls;
use crate::calls::failure::{Failure, Reason, Recipient};
use crate::doors::mcp::revision::Revision;
use crate::results::Skill;
use crate::rpc_response::RpcResponse;
use crate::tasks::AgentAnswer;
use crate::tasks::model::{Artifact, Content, Message, Part, Raw, State};
use crate::tasks::read::AnswerPart;

/// Collects the messages of an agent into a tool result.
#[derive(Debug)]
pub(in crate::doors::mcp) struct SkillResponse {
    context: Text,
    /// The client's progress token, as JSON.
    token: Option<Text>,
    /// Whether the client supports resource links.
    has_links: bool,
    steps: u64,
    state: Option<State>,
    /// The agent's own id of the task.
    task: Option<Text>,
    message: Option<Message>,
    artifacts: Vec<Artifact>,
    /// An answer that is not A2A.
    plain: Option<Raw>,
    /// The size of the parts so far, and its limit, in bytes.
    bytes: usize,
    max_bytes: usize,
}

/// The result of `tools/call`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ToolResult<'a> {
    content: Vec<Item>,
    #[serde(skip_serializing_if = "Option::is_none")]
    structured_content: Option<Structured<'a>>,
    is_error: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Structured<'a> {
    state: &'static str,
    context_id: &'a Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    task_id: Option<&'a Text>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    data: Vec<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RawValue>,
}

#[derive(Serialize)]
#[serde(
    tag = "type",
    rename_all = "snake_case",
    rename_all_fields = "camelCase"
)]
enum Item {
    Text {
        text: String,
    },
    Image {
        data: String,
        mime_type: Text,
    },
    Audio {
        data: String,
        mime_type: Text,
    },
    Resource {
        resource: Blob,
    },
    ResourceLink {
        uri: String,
        name: Text,
        #[serde(skip_serializing_if = "Option::is_none")]
        mime_type: Option<Text>,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Blob {
    uri: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mime_type: Option<Text>,
    blob: String,
}

/// An error result for an invalid call, which is not sent to the agent.
pub(super) fn refused(why: &str) -> String {
    let content = [json!({ "type": "text", "text": why })];
    json!({ "content": content, "isError": true }).to_string()
}

// === impl SkillResponse ===

impl SkillResponse {
    /// The collector for a skill call of a client with this revision. The answer may have at most `max_bytes` bytes.
    pub(in crate::doors::mcp) fn new(
        Skill { context, progress }: Skill,
        revision: Option<Revision>,
        max_bytes: usize,
    ) -> Self {
        Self {
            context,
            token: progress,
            has_links: revision.is_none_or(|revision| revision >= Revision::V2025_06_18),
            steps: 0,
            state: None,
            task: None,
            message: None,
            artifacts: Vec::new(),
            plain: None,
            bytes: 0,
            max_bytes,
        }
    }

    /// The skill call of this answer, in the form of the log.
    pub(in crate::doors::mcp) fn skill(&self) -> Skill {
        Skill {
            context: self.context.clone(),
            progress: self.token.clone(),
        }
    }

    /// The message for the client for a part of the answer, if any.
    pub(in crate::doors::mcp) fn part(
        &mut self,
        part: calls::Part,
        recipient: &Recipient,
    ) -> Option<calls::Part> {
        let last = part.last;
        self.bytes = self.bytes.saturating_add(part.body.len());
        let body = match AgentAnswer::of(part) {
            _ if self.bytes > self.max_bytes => {
                let max_bytes = self.max_bytes;
                let message = format!("the answer of the agent is larger than {max_bytes} bytes");
                return Some(ended(
                    Failure::new(Reason::BadAgentReply, message).render(recipient),
                ));
            }
            Some(AgentAnswer::Error(part)) => self.failed(&part.body),
            Some(AgentAnswer::Result(part)) => {
                let step = (!last).then(|| step(&part));
                self.apply(part);
                match step {
                    Some(step) => return self.progress(&step),
                    None => self.result(None),
                }
            }
            None if last => self.result(None),
            // Progress in another protocol.
            None => return None,
        };
        Some(ended(jsonrpc::result(recipient.id(), &body)))
    }

    /// A progress notification, if the client asked for progress.
    fn progress(&mut self, step: &str) -> Option<calls::Part> {
        let token = self.token.as_deref()?;
        self.steps += 1;
        let (steps, step) = (self.steps, json!(step));
        let body = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{token},"progress":{steps},"message":{step}}}}}"#
        );
        Some(calls::Part::new(body.into(), false))
    }

    fn apply(&mut self, part: AnswerPart) {
        match part {
            AnswerPart::Task(task) => {
                self.task = task.id.or(self.task.take());
                if let Some(status) = task.status {
                    self.state = Some(status.state);
                    self.message = status.message.or(self.message.take());
                }
                if !task.artifacts.is_empty() {
                    self.artifacts = task.artifacts;
                }
                if self.message.is_none() && self.artifacts.is_empty() {
                    self.message = task.history.into_iter().next_back();
                }
            }
            AnswerPart::Message(message) => self.message = Some(message),
            AnswerPart::Status { task, status } => {
                self.task = task.or(self.task.take());
                self.state = Some(status.state);
                self.message = status.message;
            }
            AnswerPart::Artifact {
                task,
                artifact,
                append,
                ..
            } => {
                self.task = task.or(self.task.take());
                self.add(artifact, append);
            }
            AnswerPart::Plain(json) => self.plain = Some(json),
        }
    }

    fn add(&mut self, artifact: Artifact, append: bool) {
        let same = self.artifacts.iter_mut().find(|it| it.id == artifact.id);
        match same {
            Some(same) if append => same.parts.extend(artifact.parts),
            Some(same) => *same = artifact,
            None => self.artifacts.push(artifact),
        }
    }

    /// The tool result for an agent's error.
    fn failed(&mut self, response: &Bytes) -> String {
        self.state = Some(State::Failed);
        self.result(RpcResponse::of(response).error)
    }

    /// The tool result at the end of the answer. Without a final state, the task counts as completed.
    fn result(&self, error: Option<&RawValue>) -> String {
        let state = match self.state {
            Some(state) if state.is_at_rest() => state,
            _ => State::Completed,
        };
        let made = self.artifacts.iter().flat_map(|artifact| &artifact.parts);
        let message = self.message.iter().flat_map(|message| &message.parts);
        let parts: Vec<&Part> = made.chain(message).collect();
        let mut content: Vec<Item> = parts.iter().map(|part| self.item(part)).collect();
        let others = self.plain.as_deref().into_iter().chain(error);
        content.extend(others.map(|json| Item::Text {
            text: plain_text(json),
        }));
        content.extend(self.hint(state).map(|text| Item::Text { text }));
        let data = parts.iter().filter_map(|part| match &part.content {
            Content::Data(json) => Some(&**json),
            _ => None,
        });
        let result = ToolResult {
            content,
            structured_content: Some(Structured {
                state: state.as_str(),
                context_id: &self.context,
                task_id: self.task.as_ref(),
                data: data.chain(self.plain.as_deref()).collect(),
                error,
            }),
            is_error: matches!(state, State::Failed | State::Rejected | State::Canceled),
        };
        // Strings and parsed JSON can always be serialized.
        serde_json::to_string(&result).unwrap_or_default()
    }

    /// Instructions for the model to continue, if the task needs input.
    fn hint(&self, state: State) -> Option<String> {
        let instruction = match state {
            State::InputRequired => "The agent asks for input",
            State::AuthRequired => "The agent asks for authorization",
            _ => return None,
        };
        let mut hint = format!(
            "{instruction}: call this tool again with contextId {:?}",
            self.context
        );
        if let Some(task) = &self.task {
            // Writing to a String cannot fail.
            let _ = write!(hint, " and taskId {task:?}");
        }
        hint.push('.');
        Some(hint)
    }

    fn item(&self, part: &Part) -> Item {
        let kind = part.media_type.clone();
        let is = |what: &str| kind.as_ref().is_some_and(|kind| kind.starts_with(what));
        match &part.content {
            Content::Text(text) => Item::Text { text: text.clone() },
            Content::Data(json) | Content::Other(json) => Item::Text {
                text: json.get().to_owned(),
            },
            Content::Bytes(data) if is("image/") => Item::Image {
                data: data.clone(),
                mime_type: kind.unwrap_or_default(),
            },
            Content::Bytes(data) if is("audio/") => Item::Audio {
                data: data.clone(),
                mime_type: kind.unwrap_or_default(),
            },
            Content::Bytes(data) => Item::Resource {
                resource: Blob {
                    uri: file_uri(part.filename.as_deref().unwrap_or("file")),
                    mime_type: kind,
                    blob: data.clone(),
                },
            },
            Content::Url(uri) if self.has_links => Item::ResourceLink {
                uri: uri.clone(),
                name: part.filename.clone().unwrap_or_else(|| uri.as_str().into()),
                mime_type: kind,
            },
            Content::Url(uri) => Item::Text { text: uri.clone() },
        }
    }
}

/// The last part for the client.
fn ended(body: Bytes) -> calls::Part {
    calls::Part::new(body, true)
}

/// The URI of a file whose content is only in the result.
fn file_uri(name: &str) -> String {
    let mut uri = String::from("urn:a2a:file:");
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_') {
            uri.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri
}

/// A description of a step, for people.
fn step(part: &AnswerPart) -> String {
    let message = |message: &Option<Message>| message.as_ref().map(|it| text_of(&it.parts));
    let (state, text) = match part {
        AnswerPart::Task(task) => match &task.status {
            Some(status) => (Some(status.state), message(&status.message)),
            None => (None, None),
        },
        AnswerPart::Status { status, .. } => (Some(status.state), message(&status.message)),
        AnswerPart::Message(message) => (None, Some(text_of(&message.parts))),
        AnswerPart::Artifact { artifact, .. } => (None, Some(text_of(&artifact.parts))),
        AnswerPart::Plain(json) => (None, Some(json.get().to_owned())),
    };
    match (state, text.filter(|text| !text.is_empty())) {
        (_, Some(text)) => text,
        (Some(state), None) => state.as_str().to_owned(),
        (None, None) => String::new(),
    }
}

fn text_of(parts: &[Part]) -> String {
    let texts = parts.iter().filter_map(|part| match &part.content {
        Content::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// The message of an error, or the JSON itself.
fn plain_text(json: &RawValue) -> String {
    #[derive(Deserialize)]
    struct Error {
        message: String,
    }
    let error: Option<Error> = serde_json::from_str(json.get()).ok();
    error.map_or_else(|| json.get().to_owned(), |error| error.message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use a2abus_plugin::protocol::dialect::Dialect;
    use serde_json::Value;

    /// What a client gets for an answer in these parts, the last one being the last.
    fn skill_response(token: Option<&str>, results: &[Value]) -> Vec<Value> {
        let skill = Skill {
            context: "c-1".into(),
            progress: token.map(Text::from),
        };
        let mut skill_response = SkillResponse::new(skill, None, 1 << 20);
        let parts = results.iter().enumerate().filter_map(|(index, answer)| {
            let mut body = json!({ "jsonrpc": "2.0", "id": 9 });
            body.as_object_mut()?.extend(answer.as_object()?.clone());
            let last = index + 1 == results.len();
            let part = calls::Part::new(body.to_string().into(), last);
            skill_response.part(part, &Recipient::new("9".into(), Dialect::Mcp))
        });
        let parts = parts.map(|part| serde_json::from_slice(&part.body).unwrap());
        parts.collect()
    }

    fn status(state: &str, text: &str) -> Value {
        let message = json!({ "role": "agent", "messageId": "m", "parts": [{ "kind": "text", "text": text }] });
        json!({ "result": { "kind": "status-update", "taskId": "t-1", "status": { "state": state, "message": message } } })
    }

    #[test]
    fn steps_are_progress_for_clients_that_request_it() {
        let steps = [status("working", "flights"), status("completed", "done")];
        let parts = skill_response(Some("\"p\""), &steps);
        let expected = json!({ "progressToken": "p", "progress": 1, "message": "flights" });
        assert_eq!(parts[0]["params"], expected);
        assert_eq!(
            parts[1]["result"]["content"],
            json!([{ "type": "text", "text": "done" }])
        );
        assert_eq!(skill_response(None, &steps), parts[1..]);
    }

    #[test]
    fn artifacts_become_content_of_their_kind() {
        let piece = |text: &str, append: bool| {
            json!({ "result": { "kind": "artifact-update", "taskId": "t-1", "append": append,
                "artifact": { "artifactId": "a", "parts": [{ "kind": "text", "text": text }] } } })
        };
        let file = |file: Value| json!({ "kind": "file", "file": file });
        let last = json!({ "result": { "kind": "artifact-update", "taskId": "t-1", "artifact": { "artifactId": "b", "parts": [
            { "kind": "data", "data": { "n": 1.0 } },
            file(json!({ "bytes": "AAAA", "mimeType": "image/png" })),
            file(json!({ "bytes": "AAAA", "name": "a b.pdf", "mimeType": "application/pdf" })),
            file(json!({ "uri": "https://example.com/x", "name": "x" })),
        ] } } });
        let parts = skill_response(None, &[piece("one", false), piece("two", true), last]);
        let result = &parts[0]["result"];
        let expected = json!([
            { "type": "text", "text": "one" },
            { "type": "text", "text": "two" },
            { "type": "text", "text": "{\"n\":1.0}" },
            { "type": "image", "data": "AAAA", "mimeType": "image/png" },
            { "type": "resource", "resource": { "uri": "urn:a2a:file:a%20b.pdf", "mimeType": "application/pdf", "blob": "AAAA" } },
            { "type": "resource_link", "uri": "https://example.com/x", "name": "x" },
        ]);
        assert_eq!(result["content"], expected);
        let structured = json!({ "state": "completed", "contextId": "c-1", "taskId": "t-1", "data": [{ "n": 1.0 }] });
        assert_eq!(result["structuredContent"], structured);
        assert_eq!(result["isError"], false);
    }

    #[test]
    fn the_result_tells_the_client_how_to_continue_and_what_has_failed() {
        let result = &skill_response(None, &[status("input-required", "When?")])[0]["result"];
        assert_eq!(result["isError"], false);
        assert_eq!(result["structuredContent"]["taskId"], "t-1");
        let hint = result["content"][1]["text"].as_str().unwrap();
        assert!(
            hint.contains("\"t-1\"") && hint.contains("\"c-1\""),
            "{hint}"
        );
        for state in ["failed", "rejected", "canceled"] {
            assert_eq!(
                skill_response(None, &[status(state, "no")])[0]["result"]["isError"],
                true
            );
        }
        let error = json!({ "error": { "code": -32_001, "message": "no such task" } });
        let failed = &skill_response(None, &[error])[0]["result"];
        assert_eq!(failed["content"][0]["text"], "no such task");
        assert_eq!(failed["structuredContent"]["error"]["code"], -32_001);
        assert_eq!(failed["isError"], true);
    }
}
