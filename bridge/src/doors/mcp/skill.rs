//! A2A agents for MCP clients: each skill is a tool, and a tool call sends a message.
//!
//! ```text
//! tools/call ── Arguments ──> message/send ──> agent ── parts ──> SkillResponse ──> notifications/progress, result
//! ```
//!
//! Source: docs/protocols/mcp.md §12.

pub(super) mod response;

use std::sync::Arc;

use a2abus_plugin::protocol::jsonrpc::RpcBody;
use a2abus_plugin::{Hint, Text, Unit};
use axum::response::Response;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use self::response::{SkillResponse, refused};
use super::envelope::{Params, check_marked, text};
use super::post::McpRequest;
use super::session::Session;
use super::state::Mcp;
use crate::calls::failure::Failure;
use crate::config::{AgentCardConfig, AgentProtocol, SkillConfig};
use crate::doors::rpc::common::Target;
use crate::object::{self, Object};
use crate::registry::queries::AgentQuery;
use crate::results::Skill;
use crate::tasks::model::new_id;
use crate::tasks::read::is_base64;

/// The arguments of a tool.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Arguments<'a> {
    text: String,
    #[serde(default, borrow)]
    data: Option<&'a RawValue>,
    #[serde(default)]
    files: Vec<Object<File>>,
    #[serde(default)]
    context_id: Option<Text>,
    #[serde(default)]
    task_id: Option<Text>,
}

/// A file, with the same members for clients and for A2A 0.3.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, expecting = "an object")]
struct File {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uri: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mime_type: Option<String>,
}

/// The request to an agent. Source: A2A 0.3, `message/send`.
#[derive(Serialize)]
struct Sent<'a> {
    jsonrpc: &'static str,
    id: &'a RawValue,
    method: &'static str,
    params: SentParams<'a>,
}

#[derive(Serialize)]
struct SentParams<'a> {
    message: Message<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Message<'a> {
    kind: &'static str,
    message_id: Text,
    role: &'static str,
    parts: Vec<Part<'a>>,
    context_id: &'a Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    task_id: Option<&'a Text>,
    metadata: Value,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Part<'a> {
    Text { text: &'a str },
    File { file: &'a File },
    Data { data: &'a RawValue },
}

// === impl Arguments ===

impl<'a> Arguments<'a> {
    /// Reads the arguments of a call.
    ///
    /// # Errors
    /// What is wrong with them.
    fn read(arguments: Option<&'a RawValue>) -> Result<Self, String> {
        let arguments = arguments.map_or("{}", RawValue::get);
        let arguments: Self = object::from_slice(arguments.as_bytes())
            .map_err(|error| format!("the arguments: {error}"))?;
        for (index, Object(file)) in arguments.files.iter().enumerate() {
            if file.bytes.is_some() == file.uri.is_some() {
                return Err(format!(
                    "files[{index}] must have either bytes or uri, not both"
                ));
            }
            if file.bytes.as_deref().is_some_and(|bytes| !is_base64(bytes)) {
                return Err(format!("files[{index}].bytes is not base64"));
            }
        }
        Ok(arguments)
    }
}

// === impl Mcp ===

impl Mcp {
    /// Whether an agent declares the protocol A2A.
    pub(super) fn is_a2a(&self, agent: Option<&str>) -> bool {
        let agents = self.door.registry.now();
        let card = agent.and_then(|agent| agents.get(agent));
        card.is_some_and(|(_, card)| card.speaks() == Some(AgentProtocol::A2a))
    }

    /// The card of an agent whose skills are offered as tools; `None` for any other agent.
    async fn a2a(&self, agent: &Text, caller: &Text) -> Option<Arc<AgentCardConfig>> {
        let registry = &self.door.registry;
        let card = registry
            .now()
            .get(agent)
            .map(|(_, card)| Arc::clone(card))?;
        let has_tools = match card.speaks() {
            Some(protocol) => protocol == AgentProtocol::Mcp,
            None => {
                let found = registry
                    .queries
                    .one(agent, AgentQuery::Tools, caller.clone())
                    .await;
                found.is_some_and(|found| !found.items().is_empty())
            }
        };
        (!has_tools).then_some(card)
    }
}

/// The list items of an A2A agent: its skills as tools; other lists are empty.
pub(super) fn items(card: &AgentCardConfig, question: AgentQuery) -> Vec<Box<RawValue>> {
    match question {
        AgentQuery::Tools => card.skills.iter().filter_map(tool).collect(),
        AgentQuery::Profile
        | AgentQuery::Prompts
        | AgentQuery::Resources
        | AgentQuery::Templates => Vec::new(),
    }
}

fn tool(skill: &SkillConfig) -> Option<Box<RawValue>> {
    let mut description = skill.description.clone();
    for example in &skill.examples {
        description.push_str("\nExample: ");
        description.push_str(example);
    }
    let string = |what: &str| json!({ "type": "string", "description": what });
    let tool = json!({
        "name": skill.id,
        "title": skill.name.as_ref().unwrap_or(&skill.id),
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": {
                "text": string("The message text for the agent"),
                "data": { "type": "object", "description": "Data for the agent" },
                "files": { "type": "array", "description": "Files for the agent", "items": {
                    "type": "object",
                    "properties": {
                        "bytes": string("The content in base64"),
                        "uri": string("The URI of the content, instead of bytes"),
                        "name": string("The name of the file"),
                        "mimeType": string("The media type of the content"),
                    },
                    "additionalProperties": false,
                } },
                "contextId": string("The contextId of an earlier result, to continue its conversation"),
                "taskId": string("The taskId of an earlier result that asks for input, to answer it"),
            },
            "required": ["text"],
            "additionalProperties": false,
        },
        "outputSchema": {
            "type": "object",
            "properties": {
                "state": string("The state of the task: completed, input-required, failed, ..."),
                "contextId": { "type": "string" },
                "taskId": { "type": "string" },
                "data": { "type": "array", "description": "The data parts of the answer", "items": {} },
            },
            "required": ["state", "contextId"],
        },
    });
    RawValue::from_string(tool.to_string()).ok()
}

// === impl McpRequest ===

impl McpRequest<'_> {
    /// Sends a request to one agent, or to the agent that its params name.
    pub(super) async fn call_agent(self) -> Response {
        let named = || {
            let params = Params::read(&self.unit.bytes).ok()?;
            text(params.agent).map(Text::from)
        };
        let agent = self.common.target.name().map(Text::from).or_else(named);
        let agent = agent.unwrap_or_default();
        let card = self.mcp.a2a(&agent, &self.common.caller).await;
        if let Err(failure) = self.check_marked(&agent) {
            return self.failed(&failure);
        }
        match (card, self.method.as_str()) {
            (None, _) if self.lacks_task() => {
                let message = "params.taskId is missing: it names the task";
                self.failed(&Failure::bad_params(message))
            }
            (None, _) => self.called(None).await,
            (Some(card), "tools/list") => {
                let tools: Vec<_> = items(&card, AgentQuery::Tools);
                let tools: Vec<&str> = tools.iter().map(|tool| tool.get()).collect();
                self.result(&format!(r#"{{"tools":[{}]}}"#, tools.join(",")))
            }
            (Some(card), "tools/call") => Box::pin(self.sent(agent, &card)).await,
            (Some(card), _) if card.speaks().is_none() => self.called(None).await,
            (Some(_), method) => self.failed(&Failure::unknown_method(method, Vec::new())),
        }
    }

    /// Checks the headers that repeat marked arguments, if the agent's tools are cached. No agent is asked for that.
    fn check_marked(&self, agent: &Text) -> Result<(), Failure> {
        if !self.mode.is_stateless() || self.method != "tools/call" {
            return Ok(());
        }
        let Some(marked) = self.mcp.door.registry.queries.marked_params(agent) else {
            return Ok(());
        };
        let params = Params::read(&self.unit.bytes)?;
        let name = text(params.name).unwrap_or_default();
        check_marked(marked.of_tool(&name), params.arguments, self.headers)
    }

    /// Whether it is about a task, and does not name it. An agent would take it for a request of A2A.
    fn lacks_task(&self) -> bool {
        let is_about_task = matches!(self.method.as_str(), "tasks/get" | "tasks/cancel");
        let params = || Params::read(&self.unit.bytes);
        is_about_task && params().is_ok_and(|params| params.task_id.is_none())
    }

    /// `tools/call` as a message to the agent.
    async fn sent(mut self, agent: Text, card: &AgentCardConfig) -> Response {
        let bytes = self.unit.bytes.clone();
        let params = match Params::read(&bytes) {
            Ok(params) => params,
            Err(failure) => return self.failed(&failure),
        };
        let name = text(params.name).unwrap_or_default();
        let Some(skill) = card.skills.iter().find(|skill| skill.id == name) else {
            if card.speaks().is_none() {
                // The agent may have a tool that it has not listed.
                return self.called(None).await;
            }
            let name: String = name.chars().take(256).collect();
            return self.failed(&Failure::bad_params(&format!("Unknown tool: {name}")));
        };
        let arguments = match Arguments::read(params.arguments) {
            Ok(arguments) => arguments,
            // A tool error lets the model correct its arguments.
            Err(why) => return self.result(&refused(&why)),
        };
        match self.message(&skill.id, &arguments, card.streaming) {
            Ok((unit, skill_response)) => {
                self.common.target = Target::Agent(agent);
                self.unit = unit;
                self.called(Some(skill_response)).await
            }
            Err(failure) => self.failed(&failure),
        }
    }

    /// The message, and the collector of its answer.
    fn message(
        &self,
        skill: &str,
        arguments: &Arguments<'_>,
        streams: bool,
    ) -> Result<(Unit, SkillResponse), Failure> {
        let message = self.unit.json_rpc.as_ref();
        let token = message.and_then(|message| message.progress.as_deref());
        let token = token.map(|token| token.token().clone());
        let context = arguments.context_id.clone().unwrap_or_else(new_id);
        let method = if streams && token.is_some() {
            "message/stream"
        } else {
            "message/send"
        };
        let body = self.request(method, skill, (arguments, &context))?;
        let skill = Skill {
            context,
            progress: token,
        };
        let revision = self.session.map(Session::revision);
        Ok((
            self.unit_of(&body)?,
            SkillResponse::new(skill, revision, self.mcp.door.largest_body()),
        ))
    }

    fn request(
        &self,
        method: &'static str,
        skill: &str,
        (arguments, context): (&Arguments<'_>, &Text),
    ) -> Result<Bytes, Failure> {
        let text = Part::Text {
            text: &arguments.text,
        };
        let data = arguments.data.map(|data| Part::Data { data });
        let files = arguments
            .files
            .iter()
            .map(|Object(file)| Part::File { file });
        let bad = |error: serde_json::Error| Failure::bad_params(&error.to_string());
        let id: &RawValue = serde_json::from_str(self.recipient.id()).map_err(bad)?;
        let sent = Sent {
            jsonrpc: "2.0",
            id,
            method,
            params: SentParams {
                message: Message {
                    kind: "message",
                    message_id: new_id(),
                    role: "user",
                    parts: [text].into_iter().chain(data).chain(files).collect(),
                    context_id: context,
                    task_id: arguments.task_id.as_ref(),
                    metadata: json!({ "skillId": skill }),
                },
            },
        };
        serde_json::to_vec(&sent).map(Bytes::from).map_err(bad)
    }

    fn unit_of(&self, body: &Bytes) -> Result<Unit, Failure> {
        let mut unit = self.mcp.door.calls.unit_of(body, &Hint::default())?;
        if let Some(message) = &mut unit.json_rpc {
            // An agent may report a task before the task ends, even if the request does not stream.
            message.body = RpcBody::Call { streaming: true };
        }
        Ok(unit)
    }
}
