//! A2A messages to an attached MCP server: each calls one of its tools, and the result of the tool is the answer.
//!
//! ```text
//! message/send ── data part, skillId, text ──> tools/call ──> server
//! message, or a failed task <── content ─────── result <────────┘
//! ```
//!
//! Source: docs/protocols/mcp.md §11.

use a2abus_plugin::Text;
use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::protocol::jsonrpc;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::ask::{Request, json_rpc};
use super::link::Tools;
use super::replies::Answer;
use crate::calls::failure::{Failure, Reason};
use crate::object;
use crate::rpc_response::RpcResponse;
use crate::tasks::model::{Content, Message, Part, State, Status, new_id};
use crate::tasks::read::{self, Sender};
use crate::tasks::write::WriteContext;

/// The content of a message that names a tool.
#[derive(Deserialize)]
struct Named<'a> {
    tool: Option<String>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

/// How many tools an error names.
const SHOWN: usize = 20;

/// Whether this method of A2A sends a message.
fn sends_message(method: &str) -> bool {
    matches!(
        method,
        "message/send" | "message/stream" | "SendMessage" | "SendStreamingMessage"
    )
}

/// The message that an A2A request sends, and the id of its context.
///
/// # Errors
/// When it sends no message, or one that cannot be read. No server executes such a request.
pub(super) fn sent(method: &str, body: &[u8]) -> Result<(Message, Option<Text>), Failure> {
    #[derive(Deserialize)]
    struct Sent<'a> {
        #[serde(borrow)]
        params: Option<Params<'a>>,
    }
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(borrow)]
        message: Option<&'a RawValue>,
    }
    if !sends_message(method) {
        return Err(Failure::new(Reason::Unsupported, NO_TASKS));
    }
    let sent: Option<Sent<'_>> = object::from_slice(body).ok();
    let raw = sent.and_then(|sent| sent.params?.message);
    let raw = raw.ok_or_else(|| Failure::bad_params("message is missing"))?;
    let (message, addressed) = read::message(raw, Sender::Client)
        .map_err(|error| Failure::bad_params(&error.to_string()))?;
    let context = addressed.context_id;
    let context: Option<Text> = context.and_then(|id| serde_json::from_str(id.get()).ok());
    Ok((message, context))
}

/// The call of a tool that an A2A request with this message stands for.
///
/// # Errors
/// When the message names no tool of the server.
pub(super) fn request(
    request: &Request,
    (message, context): (Message, Option<Text>),
    tools: &Tools,
) -> Result<Request, Failure> {
    let (tool, arguments) = tool_of(&message, tools)?;
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":{},"method":"tools/call","params":{{"name":{},"arguments":{arguments}}}}}"#,
        request.id,
        Value::from(tool.as_str()),
    );
    let body = Bytes::from(body);
    let mut call = json_rpc(&body)
        .ok_or_else(|| Failure::bad_params("the message cannot be converted into a tool call"))?;
    // Errors have the codes that the requester expects.
    call.dialect = request.message.dialect;
    Ok(Request {
        body,
        message: call,
        method: "tools/call".to_owned(),
        id: request.id.clone(),
        requester: request.requester.clone(),
        left: request.left,
        identity: request.identity.clone(),
        delivery: request.delivery,
        message_context: Some(context.unwrap_or_else(new_id)),
    })
}

/// The answer to a message, from the server's answer to the call of the tool. Errors stay as they are.
pub(super) fn answer(request: &Request, context: &Text, answer: Bytes) -> Answer {
    let result = RpcResponse::of(&answer).result;
    match result {
        Some(result) => {
            let of = request.message.dialect;
            Answer::from(jsonrpc::result(
                &request.id,
                &result_of(result, of, context),
            ))
        }
        None => Answer::from(answer),
    }
}

fn result_of(result: &RawValue, dialect: Dialect, context: &Text) -> String {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct ToolResult<'a> {
        #[serde(borrow)]
        content: Vec<&'a RawValue>,
        #[serde(borrow)]
        structured_content: Option<&'a RawValue>,
        is_error: bool,
    }
    let read: ToolResult<'_> = object::from_slice(result.get().as_bytes()).unwrap_or_default();
    let data = read.structured_content.map(data_part);
    let mut parts: Vec<Part> = read.content.into_iter().map(part).chain(data).collect();
    if parts.is_empty() {
        parts.push(data_part(result));
    }
    let message = Message::of_agent(parts);
    let task = new_id();
    let of = WriteContext {
        dialect: match dialect {
            Dialect::A2a10 => Dialect::A2a10,
            _ => Dialect::A2a03,
        },
        task: read.is_error.then_some(&*task),
        context: Some(context),
    };
    if !read.is_error {
        return of.message(&message);
    }
    // A2A has no message that reports a failure.
    of.task_in(&Status::now(State::Failed, Some(message)))
}

/// The tool that a message names, and its arguments as JSON.
fn tool_of(message: &Message, tools: &Tools) -> Result<(Text, String), Failure> {
    let (tool, data) = match (skill_of(message)?, data_of(message)?) {
        (Some(skill), data) => (known(&skill, tools)?, data.map(RawValue::get)),
        (None, Some(data)) => {
            let named: Named<'_> = object::from_slice(data.get().as_bytes())
                .map_err(|error| Failure::bad_params(&format!("the data part: {error}")))?;
            match named.tool {
                Some(tool) => (
                    known(&tool, tools)?,
                    Some(named.arguments.map_or("{}", RawValue::get)),
                ),
                None => (only(tools)?, Some(data.get())),
            }
        }
        (None, None) => (only(tools)?, None),
    };
    match data {
        Some(arguments) if arguments.starts_with('{') => Ok((tool, arguments.to_owned())),
        Some(_) => Err(Failure::bad_params("the arguments of a tool are an object")),
        None => {
            let arguments = text_arguments(message, &tool, tools)?;
            Ok((tool, arguments))
        }
    }
}

/// The data part of a message.
fn data_of(message: &Message) -> Result<Option<&RawValue>, Failure> {
    let mut data = message.parts.iter().filter_map(|part| match &part.content {
        Content::Data(data) => Some(&**data),
        _ => None,
    });
    match (data.next(), data.next()) {
        (first, None) => Ok(first),
        (_, Some(_)) => Err(Failure::bad_params(
            "a message to this agent calls one tool: send one data part",
        )),
    }
}

/// The text of a message as the argument of a tool.
fn text_arguments(message: &Message, tool: &Text, tools: &Tools) -> Result<String, Failure> {
    let texts = message.parts.iter().filter_map(|part| match &part.content {
        Content::Text(text) => Some(text.as_str()),
        _ => None,
    });
    let texts: Vec<&str> = texts.collect();
    let argument = tools.get(tool).and_then(|it| it.text.as_deref());
    match (argument, &texts[..]) {
        (Some(argument), [_, ..]) => Ok(json!({ argument: texts.join("\n") }).to_string()),
        (Some(_), []) => Err(Failure::bad_params(
            "the message has neither a data part nor a text",
        )),
        (None, _) => Err(Failure::bad_params(&format!(
            "the tool {tool:?} does not take a text: send its arguments as a data part"
        ))),
    }
}

/// The skill that the metadata of a message names.
fn skill_of(message: &Message) -> Result<Option<String>, Failure> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Metadata {
        skill_id: Option<String>,
        #[serde(default)]
        skill: Value,
    }
    let Some(metadata) = &message.metadata else {
        return Ok(None);
    };
    let read: Metadata = object::from_slice(metadata.get().as_bytes())
        .map_err(|error| Failure::bad_params(&format!("metadata of the message: {error}")))?;
    Ok(read.skill_id.or(read.skill.as_str().map(str::to_owned)))
}

/// The tool with this name. Without a list of tools, the server decides.
fn known(tool: &str, tools: &Tools) -> Result<Text, Failure> {
    match tools.get_key_value(tool) {
        Some((tool, _)) => Ok(tool.clone()),
        None if tools.is_empty() => Ok(tool.into()),
        None => Err(unnamed(&format!("there is no tool {tool:?}"), tools)),
    }
}

/// The tool of a server that has one.
fn only(tools: &Tools) -> Result<Text, Failure> {
    let mut names = tools.keys();
    match (names.next(), names.next()) {
        (Some(only), None) => Ok(only.clone()),
        _ => Err(unnamed("the message names no tool", tools)),
    }
}

fn unnamed(why: &str, tools: &Tools) -> Failure {
    let mut names: Vec<&str> = tools.keys().map(Text::as_str).collect();
    names.sort_unstable();
    let more = if names.len() > SHOWN { ", …" } else { "" };
    names.truncate(SHOWN);
    let names = names.join(", ");
    if names.is_empty() {
        return Failure::bad_params(&format!("{why}, and the server lists none"));
    }
    let message = format!(
        r#"{why}: send a data part {{"tool": NAME, "arguments": {{…}}}}, or set metadata.skillId of the message; the tools are {names}{more}"#
    );
    Failure::bad_params(&message)
}

/// An item of a result as a part. Items that A2A has no part for become data.
fn part(item: &RawValue) -> Part {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Item {
        #[serde(rename = "type")]
        kind: String,
        text: Option<String>,
        data: Option<String>,
        uri: Option<String>,
        name: Option<Text>,
        mime_type: Option<Text>,
        resource: Option<Resource>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Resource {
        uri: Option<Text>,
        mime_type: Option<Text>,
        text: Option<String>,
        blob: Option<String>,
    }
    let read = || {
        let item: Item = object::from_slice(item.get().as_bytes()).ok()?;
        let (content, filename, media_type) = match item.kind.as_str() {
            "text" => (Content::Text(item.text?), None, None),
            "image" | "audio" => (Content::Bytes(item.data?), None, item.mime_type),
            "resource_link" => (Content::Url(item.uri?), item.name, item.mime_type),
            "resource" => {
                let resource = item.resource?;
                let (text, blob) = (resource.text, resource.blob);
                let content = text.map(Content::Text).or(blob.map(Content::Bytes))?;
                (content, resource.uri, resource.mime_type)
            }
            _ => return None,
        };
        // A text has no name in A2A 0.3.
        let metadata = match (&content, &filename) {
            (Content::Text(_), Some(uri)) => to_raw_value(&json!({ "uri": &**uri })).ok(),
            _ => None,
        };
        Some(Part {
            filename,
            media_type,
            metadata,
            ..Part::of(content)
        })
    };
    read().unwrap_or_else(|| data_part(item))
}

fn data_part(data: &RawValue) -> Part {
    Part::of(Content::Data(data.to_owned()))
}

/// The answer to other requests of A2A.
const NO_TASKS: &str =
    "this agent is an MCP server: of A2A, it takes messages only; send it one, or use tools/call";

#[cfg(test)]
mod tests {
    use super::*;

    /// The log is not asked about such requests: see `AttachedBinding::answered`.
    #[test]
    fn requests_that_no_server_executes_are_refused_without_its_tools() {
        let refused = |method: &str, body: &str| sent(method, body.as_bytes()).unwrap_err();
        let other = refused("tasks/get", r#"{"params":{"id":"t"}}"#);
        assert_eq!(other.message(), NO_TASKS);
        for params in ["{}", r#"{"message":{}}"#, r#"{"message":[]}"#] {
            let body = format!(r#"{{"params":{params}}}"#);
            let failure = refused("message/send", &body);
            assert_eq!(failure.reason(), Reason::InvalidParams, "{params}");
        }
    }
}
