//! Parses frames of an agent server into answers in the legacy shapes. Source: docs/protocols/e2a.md §8.

use crate::e2a::constants::{
    CHUNK_LLM_REASONING, DELTA_REASONING, DELTA_TEXT, EVENT_CHAT_DELTA, KIND_ACP_OUTPUT_REQUEST,
    KIND_CHUNK, KIND_COMPLETE, KIND_CRON, KIND_ERROR, KIND_PLAN_APPROVAL_REQUIRED, STATUS_FAILED,
    STATUS_SUCCEEDED, WIRE_LEGACY_AGENT_CHUNK_KEY, WIRE_LEGACY_AGENT_RESPONSE_KEY,
};
use crate::e2a::error::{E2aError, E2aErrorKind as Kind};
use crate::e2a::legacy::{AgentResponse, AgentResponseChunk, filled};
use crate::e2a::read::{Members, text_of};
use crate::e2a::response::{E2aResponse, is_e2a_response_wire_dict, strip_internal_keys};
use crate::json::{Json, Object};
use a2abus_plugin::Text;

/// Parses a frame with a whole answer: a record, or the legacy shape.
///
/// Departs: empty `details` count as missing, so that the message of an error is not lost.
///
/// # Errors
/// Those of [`E2aResponse::parse`]; `unsupported_kind` for a record that is not a whole answer; `unrecognized_shape`
/// for any other frame.
pub fn parse_agent_server_wire_unary(frame: &Json) -> Result<AgentResponse, E2aError> {
    let members = Members::of_message(frame)?;
    if is_e2a_response_wire_dict(frame) {
        let record = E2aResponse::parse(frame)?;
        return match legacy_blob(&record, WIRE_LEGACY_AGENT_RESPONSE_KEY) {
            Some(blob) => AgentResponse::parse(&blob),
            None => response_of(record),
        };
    }
    if has_all(members, &["request_id", "channel_id", "ok"]) {
        return AgentResponse::parse(frame);
    }
    Err(Kind::UnrecognizedShape.into())
}

/// Reads a frame of a stream: a record, or the legacy shape. The metadata of the legacy shape are
/// dropped.
///
/// # Errors
/// Those of [`E2aResponse::parse`]; `unsupported_kind` for a record that cannot be a part; `unrecognized_shape` for any
/// other frame.
pub fn parse_agent_server_wire_chunk(frame: &Json) -> Result<AgentResponseChunk, E2aError> {
    let members = Members::of_message(frame)?;
    if is_e2a_response_wire_dict(frame) {
        let record = E2aResponse::parse(frame)?;
        return match legacy_blob(&record, WIRE_LEGACY_AGENT_CHUNK_KEY) {
            Some(blob) => AgentResponseChunk::parse(&blob),
            None => chunk_of(record),
        };
    }
    let shape = ["request_id", "channel_id", "is_complete", "payload"];
    if has_all(members, &shape) && !members.object().contains("ok") {
        let chunk = AgentResponseChunk::parse(frame)?;
        return Ok(AgentResponseChunk {
            metadata: None,
            ..chunk
        });
    }
    Err(Kind::UnrecognizedShape.into())
}

fn has_all(members: Members<'_>, names: &[&str]) -> bool {
    names.iter().all(|name| members.object().contains(name))
}

/// The whole legacy answer in a record, with the id of the record if it has none.
fn legacy_blob(record: &E2aResponse, key: &str) -> Option<Json> {
    let mut blob = record.metadata.get(key)?.as_object()?.clone();
    let id = blob.get("request_id").map(text_of).unwrap_or_default();
    if id.is_empty() {
        blob.insert("request_id", record.request_id.clone());
    }
    Some(Json::Object(blob))
}

fn response_of(record: E2aResponse) -> Result<AgentResponse, E2aError> {
    let (kind, status) = (record.response_kind.as_str(), record.status.as_str());
    let (ok, payload) = if kind == KIND_COMPLETE && status == STATUS_SUCCEEDED {
        let result = record.body.get("result").and_then(Json::as_object);
        (true, result.cloned().unwrap_or_default())
    } else if kind == KIND_ERROR || status == STATUS_FAILED {
        let details = details(&record.body).unwrap_or_else(|| failure(&record.body));
        (false, details)
    } else {
        return Err(Kind::UnsupportedKind.into());
    };
    Ok(AgentResponse {
        request_id: record.request_id.unwrap_or_default(),
        channel_id: record.channel.unwrap_or_default(),
        ok,
        payload: Json::Object(payload),
        metadata: for_channel(record.metadata),
        // As in the original, which keeps it in parts only.
        agent_ref: None,
    })
}

/// Metadata without internal keys.
fn for_channel(mut metadata: Object) -> Option<Object> {
    strip_internal_keys(&mut metadata);
    filled(metadata)
}

fn details(body: &Object) -> Option<Object> {
    let details = body.get("details").and_then(Json::as_object);
    details.filter(|details| !details.is_empty()).cloned()
}

fn failure(body: &Object) -> Object {
    let message = body.get("message").map(text_of).unwrap_or_default();
    let message = if message.is_empty() {
        Text::from_static("Agent error")
    } else {
        message
    };
    let mut failure = Object::new();
    failure.insert("error", message);
    failure.insert("code", member(body, "code"));
    failure
}

fn chunk_of(record: E2aResponse) -> Result<AgentResponseChunk, E2aError> {
    let body = &record.body;
    let (payload, is_complete) = match (record.response_kind.as_str(), record.is_final) {
        (KIND_COMPLETE, true) => (completion(body), true),
        (KIND_ERROR, true) => (details(body).unwrap_or_else(|| body.clone()), true),
        (KIND_CHUNK, false) => (part(body), false),
        (KIND_CRON, _) => {
            let names = ["action", "status", "data", "message"];
            (event("cron.response", body, &names, &Json::Null), true)
        }
        (KIND_ACP_OUTPUT_REQUEST, _) => {
            let mut payload = event(KIND_ACP_OUTPUT_REQUEST, body, &[], &Json::Null);
            payload.insert("jsonrpc", body.clone());
            (payload, false)
        }
        (KIND_PLAN_APPROVAL_REQUIRED, _) => {
            let names = ["plan_content", "plan_slug", "plan_path"];
            let mut payload = event(KIND_PLAN_APPROVAL_REQUIRED, body, &names, &"".into());
            payload.insert("session_id", record.session_id.clone().unwrap_or_default());
            (payload, true)
        }
        _ => return Err(Kind::UnsupportedKind.into()),
    };
    Ok(AgentResponseChunk {
        request_id: record.request_id.unwrap_or_default(),
        channel_id: record.channel.unwrap_or_default(),
        payload: Json::Object(payload),
        is_complete,
        agent_ref: record.agent_ref,
        metadata: for_channel(record.metadata),
    })
}

/// The result; an empty one is the end mark, and anything but an object has no content.
fn completion(body: &Object) -> Object {
    match body.get("result").and_then(Json::as_object) {
        Some(result) if result.is_empty() => {
            Object::from_iter([(Text::from_static("is_complete"), Json::Bool(true))])
        }
        result => result.cloned().unwrap_or_default(),
    }
}

/// The named members of a body as an event, with `absent` for absent members.
fn event(event_type: &'static str, body: &Object, names: &[&'static str], absent: &Json) -> Object {
    let mut event = Object::new();
    event.insert("event_type", event_type);
    for name in names {
        let value = body.get(name).unwrap_or(absent);
        event.insert(Text::from_static(name), value.clone());
    }
    event
}

fn member(body: &Object, name: &str) -> Json {
    body.get(name).cloned().unwrap_or_default()
}

fn part(body: &Object) -> Object {
    let string = |name: &str| body.get(name).and_then(Json::as_str);
    let kind = string("delta_kind");
    let is_text = matches!(kind, Some(DELTA_TEXT | DELTA_REASONING));
    if is_text || string("event_type") == Some(EVENT_CHAT_DELTA) {
        return text_part(body, kind == Some(DELTA_REASONING));
    }
    let event_type = body.get("event_type").filter(|event| !event.is_null());
    let mut payload = Object::new();
    match body.get("delta") {
        Some(Json::Object(delta)) => payload.extend(delta),
        Some(delta) if !delta.is_null() => {
            payload.insert("content", delta.clone());
        }
        _ => {}
    }
    if let Some(event_type) = event_type
        && !payload.contains("event_type")
    {
        payload.insert("event_type", event_type.clone());
    }
    payload
}

/// Reverses the encoder: restores the members that it stored beside the text.
fn text_part(body: &Object, is_reasoning: bool) -> Object {
    let mut payload = Object::new();
    payload.insert("event_type", EVENT_CHAT_DELTA);
    let delta = body.get("delta").filter(|delta| !delta.is_null());
    payload.insert("content", delta.cloned().unwrap_or("".into()));
    if is_reasoning {
        payload.insert("source_chunk_type", CHUNK_LLM_REASONING);
    }
    for (name, value) in body.iter() {
        let own = matches!(name.as_str(), "delta_kind" | "delta");
        let optional = ["source_chunk_type", "role", "member_name"];
        let says_nothing = value.is_null() && optional.contains(&name.as_str());
        if !own && !says_nothing && !payload.contains(name) {
            payload.insert(name.clone(), value.clone());
        }
    }
    payload
}
