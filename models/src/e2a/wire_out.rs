//! Encodes answers in the legacy shapes as records. Source: docs/protocols/e2a.md §8.

use crate::e2a::constants::{
    CHUNK_LLM_REASONING, CODE_AGENT_ERROR, CODE_CHAT_ERROR, CODE_INVALID_JSON,
    CODE_WIRE_ENCODE_ERROR, DELTA_CUSTOM, DELTA_REASONING, DELTA_TEXT, EVENT_CHAT_DELTA,
    KIND_CHUNK, KIND_COMPLETE, KIND_ERROR, SOURCE_PROTOCOL_E2A, STATUS_FAILED, STATUS_IN_PROGRESS,
    STATUS_SUCCEEDED, WIRE_LEGACY_AGENT_CHUNK_KEY, WIRE_LEGACY_AGENT_RESPONSE_KEY,
    WIRE_SERVER_PUSH_KEY,
};
use crate::e2a::error::E2aError;
use crate::e2a::legacy::{AgentResponse, AgentResponseChunk};
use crate::e2a::parts::{E2aContext, Provenance};
use crate::e2a::read::{Members, is_truthy, non_empty, text_of};
use crate::e2a::response::{E2aResponse, strip_internal_keys};
use crate::e2a::write::object;
use crate::json::{Json, Object};
use a2abus_plugin::Text;

/// The members of a record that the legacy shapes lack.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct RecordOptions {
    /// The id of the record; a new one if absent.
    pub response_id: Option<Text>,
    /// Its sequence number, from 0.
    pub sequence: i64,
}

/// The kind of a body, and its status.
struct Content {
    kind: &'static str,
    status: &'static str,
    body: Object,
}

impl Content {
    fn complete(result: &Json) -> Self {
        Self {
            kind: KIND_COMPLETE,
            status: STATUS_SUCCEEDED,
            body: object([("result", or_empty(result))]),
        }
    }

    fn error(code: &'static str, message: Text, details: Json) -> Self {
        Self {
            kind: KIND_ERROR,
            status: STATUS_FAILED,
            body: object([
                ("code", code.into()),
                ("message", message.into()),
                ("details", details),
            ]),
        }
    }

    fn part(body: Object) -> Self {
        Self {
            kind: KIND_CHUNK,
            status: STATUS_IN_PROGRESS,
            body,
        }
    }

    /// The record, with the members that all records of this module share.
    fn record(self, details: Object, context: &E2aContext<'_>) -> E2aResponse {
        E2aResponse {
            status: Text::from_static(self.status),
            response_kind: Text::from_static(self.kind),
            timestamp: Some(context.now.clone()),
            provenance: Provenance::converted(SOURCE_PROTOCOL_E2A, details, context),
            body: self.body,
            ..E2aResponse::default()
        }
    }
}

/// Encodes a whole answer as a final record.
#[must_use]
pub fn encode_agent_response_for_wire(
    response: &AgentResponse,
    options: RecordOptions,
    context: &E2aContext<'_>,
) -> E2aResponse {
    let outcome = if response.ok {
        Content::complete(&response.payload)
    } else {
        let message = message(&response.payload, &["error", "message"], "Agent error");
        Content::error(CODE_AGENT_ERROR, message, or_empty(&response.payload))
    };
    let details = object([
        ("kind", "legacy_agent_response".into()),
        ("ok", response.ok.into()),
    ]);
    let record = E2aResponse {
        is_final: true,
        ..outcome.record(details, context)
    };
    let metadata = response.metadata.clone();
    address(
        record,
        [&response.request_id, &response.channel_id],
        (response.agent_ref.clone(), metadata),
        options,
        context,
    )
}

/// Encodes a part as a record.
///
/// Departs: every member of a `chat.delta` is kept.
#[must_use]
pub fn encode_agent_chunk_for_wire(
    chunk: &AgentResponseChunk,
    options: RecordOptions,
    context: &E2aContext<'_>,
) -> E2aResponse {
    let details = object([
        ("kind", "legacy_agent_response_chunk".into()),
        ("is_complete", chunk.is_complete.into()),
    ]);
    let record = E2aResponse {
        is_final: chunk.is_complete,
        is_stream: true,
        ..chunk_outcome(chunk).record(details, context)
    };
    address(
        record,
        [&chunk.request_id, &chunk.channel_id],
        (chunk.agent_ref.clone(), chunk.metadata.clone()),
        options,
        context,
    )
}

fn chunk_outcome(chunk: &AgentResponseChunk) -> Content {
    let payload = &chunk.payload;
    let event_type = payload.get("event_type");
    let event = event_type.and_then(Json::as_str);
    match (chunk.is_complete, event) {
        (true, _) if is_end_mark(payload) => Content::complete(&Json::Null),
        (true, Some(CODE_CHAT_ERROR)) => {
            let message = message(payload, &["error"], "");
            Content::error(CODE_CHAT_ERROR, message, payload.clone())
        }
        (true, _) => Content::complete(payload),
        (false, Some(EVENT_CHAT_DELTA)) => Content::part(text_body(payload)),
        (false, _) => Content::part(object([
            ("delta_kind", DELTA_CUSTOM.into()),
            ("delta", or_empty(payload)),
            ("event_type", event_type.cloned().unwrap_or_default()),
        ])),
    }
}

/// Whether it is exactly `{"is_complete": true}`.
fn is_end_mark(payload: &Json) -> bool {
    payload.as_object().is_some_and(|payload| {
        payload.len() == 1 && payload.get("is_complete") == Some(&Json::Bool(true))
    })
}

fn text_body(payload: &Json) -> Object {
    let member = |name| payload.get(name).cloned().unwrap_or_default();
    let chunk_type = member("source_chunk_type");
    let kind = match chunk_type.as_str() {
        Some(CHUNK_LLM_REASONING) => DELTA_REASONING,
        _ => DELTA_TEXT,
    };
    let delta = match member("content") {
        Json::Null => "".into(),
        content => content,
    };
    let mut body = object([
        ("delta_kind", kind.into()),
        ("delta", delta),
        ("event_type", EVENT_CHAT_DELTA.into()),
        ("source_chunk_type", chunk_type),
    ]);
    for (name, value) in payload.as_object().into_iter().flat_map(Object::iter) {
        let says_nothing = matches!(name.as_str(), "role" | "member_name") && value.is_null();
        if name != "content" && !says_nothing && !body.contains(name) {
            body.insert(name.clone(), value.clone());
        }
    }
    body
}

/// A value, or `{}` for a falsy one.
fn or_empty(value: &Json) -> Json {
    if is_truthy(value) {
        value.clone()
    } else {
        Object::new().into()
    }
}

/// The text of the first of these members that is present and not null.
fn message(payload: &Json, names: &[&str], otherwise: &'static str) -> Text {
    let mut values = names
        .iter()
        .filter_map(|name| payload.get(name).filter(|value| !value.is_null()));
    values.next().map_or(Text::from_static(otherwise), text_of)
}

/// Copies the ids, the sequence and other shared members into a record.
fn address(
    record: E2aResponse,
    [request_id, channel_id]: [&Text; 2],
    (agent_ref, metadata): (Option<Object>, Option<Object>),
    options: RecordOptions,
    context: &E2aContext<'_>,
) -> E2aResponse {
    E2aResponse {
        response_id: Some(
            options
                .response_id
                .unwrap_or_else(|| context.new_id.clone()),
        ),
        request_id: non_empty(Some(request_id)).cloned(),
        sequence: options.sequence,
        channel: non_empty(Some(channel_id)).cloned(),
        agent_ref,
        metadata: metadata.unwrap_or_default(),
        ..record
    }
}

/// Builds the record for a whole answer that could not be encoded.
#[must_use]
pub fn encode_failure_agent_response(
    response: &AgentResponse,
    options: RecordOptions,
    context: &E2aContext<'_>,
) -> E2aResponse {
    let record = E2aResponse {
        is_final: true,
        ..encode_failure(context)
    };
    let blob = object([(WIRE_LEGACY_AGENT_RESPONSE_KEY, response.to_object().into())]);
    address(
        record,
        [&response.request_id, &response.channel_id],
        (None, Some(blob)),
        options,
        context,
    )
}

/// Builds the record for a part that could not be encoded; final if the part is the
/// last.
#[must_use]
pub fn encode_failure_agent_chunk(
    chunk: &AgentResponseChunk,
    options: RecordOptions,
    context: &E2aContext<'_>,
) -> E2aResponse {
    let record = E2aResponse {
        is_final: chunk.is_complete,
        is_stream: true,
        ..encode_failure(context)
    };
    let blob = object([(WIRE_LEGACY_AGENT_CHUNK_KEY, chunk.to_object().into())]);
    address(
        record,
        [&chunk.request_id, &chunk.channel_id],
        (None, Some(blob)),
        options,
        context,
    )
}

fn encode_failure(context: &E2aContext<'_>) -> E2aResponse {
    let message = Text::from_static("the answer could not be encoded; it is in the metadata");
    let details = object([("kind", "wire_encode_failure".into())]);
    Content::error(CODE_WIRE_ENCODE_ERROR, message, details.clone().into()).record(details, context)
}

/// Builds the answer to a frame that is not JSON, and therefore names no request.
#[must_use]
pub fn encode_json_parse_error_wire(message: Text, context: &E2aContext<'_>) -> E2aResponse {
    let details = object([("kind", "json_parse_error".into())]);
    let outcome = Content::error(CODE_INVALID_JSON, message, Object::new().into());
    E2aResponse {
        response_id: Some(Text::from_static("invalid-json")),
        is_final: true,
        ..outcome.record(details, context)
    }
}

/// An unsolicited message of an agent server.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerPush {
    /// The part; with a `response_kind`, the body.
    pub chunk: AgentResponseChunk,
    /// The session.
    pub session_id: Option<Text>,
    /// The kind; empty for a part.
    pub response_kind: Text,
    /// The body for the kind.
    pub body: Object,
}

impl ServerPush {
    /// Reads the members of a push: those of a chunk, `session_id`, `response_kind` and `body`.
    ///
    /// # Errors
    /// Those of [`AgentResponseChunk::parse`]; `bad_type` with the member.
    pub fn parse(value: &Json) -> Result<Self, E2aError> {
        let members = Members::of_message(value)?;
        Ok(Self {
            chunk: AgentResponseChunk::parse(value)?,
            session_id: members.text("session_id")?,
            response_kind: members.trimmed("response_kind").unwrap_or_default(),
            body: members.free_object("body")?,
        })
    }
}

/// Builds the record of a push.
#[must_use]
pub fn build_server_push_wire(push: &ServerPush, context: &E2aContext<'_>) -> E2aResponse {
    let options = RecordOptions {
        response_id: Some(push.chunk.request_id.clone()),
        sequence: 0,
    };
    let mut record = if push.response_kind.is_empty() {
        encode_agent_chunk_for_wire(&push.chunk, options, context)
    } else {
        pushed_kind(push, options, context)
    };
    record.session_id = non_empty(push.session_id.as_ref()).cloned();
    strip_internal_keys(&mut record.metadata);
    record.metadata.insert(WIRE_SERVER_PUSH_KEY, true);
    record
}

fn pushed_kind(push: &ServerPush, options: RecordOptions, context: &E2aContext<'_>) -> E2aResponse {
    let details = object([("kind", "server_push".into())]);
    let record = E2aResponse {
        is_final: true,
        response_kind: push.response_kind.clone(),
        body: push.body.clone(),
        ..Content::complete(&Json::Null).record(details, context)
    };
    let chunk = &push.chunk;
    address(
        record,
        [&chunk.request_id, &chunk.channel_id],
        (chunk.agent_ref.clone(), chunk.metadata.clone()),
        options,
        context,
    )
}
