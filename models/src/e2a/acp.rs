//! Requests and records as ACP, that is JSON-RPC. Source: docs/protocols/e2a.md §6 and §7.

use crate::e2a::a2a::a2a_message_to_prompt;
use crate::e2a::constants::{
    ACP_NOTIFICATION_NAMES, KIND_ACP_JSONRPC_ERROR, KIND_ACP_PROMPT_RESULT, KIND_ERROR, METHOD_EXT,
    METHOD_SESSION_PROMPT, SOURCE_PROTOCOL_ACP,
};
use crate::e2a::envelope::E2aEnvelope;
use crate::e2a::error::{E2aError, E2aErrorKind as Kind};
use crate::e2a::parts::{E2aContext, IdentityOrigin, JsonRpcId, Provenance};
use crate::e2a::read::{non_empty, text_of};
use crate::e2a::response::E2aResponse;
use crate::e2a::write::text_block;
use crate::json::{Json, Number, Object};
use a2abus_plugin::Text;
use a2abus_plugin::protocol::jsonrpc::code;

/// The names that gateways use for ACP methods. Source: docs/protocols/e2a.md §7.3.
const GATEWAY_NAMES: [(&str, &str); 5] = [
    ("chat.send", METHOD_SESSION_PROMPT),
    ("chat.interrupt", "session/cancel"),
    ("session.create", "session/new"),
    ("session.list", "session/list"),
    ("session.fork", "session/fork"),
];

/// An ACP call to be converted to a request. Source: docs/protocols/e2a.md §7.1.
#[derive(Debug, Clone, PartialEq)]
pub struct AcpRequest {
    /// The method.
    pub method: Text,
    /// Its params.
    pub params: Object,
    /// Its id; none for a notification.
    pub jsonrpc_id: Option<JsonRpcId>,
    /// The session, if it is known independently of the params.
    pub session_id: Option<Text>,
    /// The channel through which it arrived.
    pub channel: Option<Text>,
    /// The kind of the sender.
    pub identity_origin: IdentityOrigin,
    /// Additional `provenance.details`, which override existing ones.
    pub details: Object,
}

/// Which E2A features to convert for a pure ACP peer. With all options off, the result equals that of the original.
/// Source: docs/protocols/e2a.md §7.3.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AcpOptions {
    /// Use the ACP names for `chat.send` and similar methods.
    pub map_gateway_names: bool,
    /// Write `sessionId` in addition to `session_id`.
    pub write_session_id_in_camel_case: bool,
    /// Convert an A2A message to a prompt if there is none.
    pub prompt_from_a2a_message: bool,
}

/// Converts an ACP call to a request, without `request_id` and time, which the caller sets.
///
/// Departs: `params.sessionId`, the spelling of ACP, is read too.
/// Source: docs/protocols/e2a.md §7.1.
#[must_use]
pub fn envelope_from_acp_jsonrpc(request: AcpRequest, context: &E2aContext<'_>) -> E2aEnvelope {
    let in_params = ["session_id", "sessionId"]
        .into_iter()
        .filter_map(|name| request.params.get(name)?.as_text());
    let session_id = request
        .session_id
        .iter()
        .chain(in_params)
        .find(|id| !id.is_empty())
        .cloned();
    let mut details = Object::new();
    details.insert("kind", "jsonrpc_request");
    details.insert("jsonrpc_method", request.method.clone());
    if let Some(id) = request.jsonrpc_id.clone() {
        details.insert("jsonrpc_id", id);
    }
    details.extend(&request.details);
    E2aEnvelope {
        provenance: Provenance::converted(SOURCE_PROTOCOL_ACP, details, context),
        jsonrpc_id: request.jsonrpc_id,
        method: Some(request.method),
        params: request.params,
        session_id,
        channel: request.channel,
        identity_origin: request.identity_origin,
        ..E2aEnvelope::default()
    }
}

/// The params of a request, with the `prompt`, `session_id` and `_meta` that ACP requires for the method
/// `session/prompt`.
///
/// Departs: a null `prompt` counts as missing; `session_id` and `_meta` are added to an existing prompt, as in the
/// document; a text member that is not a string is skipped.
///
/// # Errors
/// `bad_type` on `params._meta`.
///
/// Source: docs/protocols/e2a.md §6.
pub fn merge_params_to_acp_prompt(envelope: &E2aEnvelope) -> Result<Object, E2aError> {
    match envelope.method.as_deref() {
        Some(METHOD_SESSION_PROMPT) => prompt_params(envelope, AcpOptions::default()),
        _ => Ok(envelope.params.clone()),
    }
}

fn prompt_params(envelope: &E2aEnvelope, options: AcpOptions) -> Result<Object, E2aError> {
    let mut params = envelope.params.clone();
    if params.get("prompt").is_none_or(Json::is_null)
        && let Some(prompt) = prompt_of(&params, options)
    {
        params.insert("prompt", prompt);
    }
    if let Some(session_id) = non_empty(envelope.session_id.as_ref())
        && !params.contains("session_id")
    {
        params.insert("session_id", session_id.clone());
    }
    if !envelope.acp_meta.is_empty() {
        let mut meta = match params.get("_meta") {
            None | Some(Json::Null) => Object::new(),
            Some(Json::Object(meta)) => meta.clone(),
            Some(_) => return Err(E2aError::new(Kind::BadType, "params._meta")),
        };
        meta.extend(&envelope.acp_meta);
        params.insert("_meta", meta);
    }
    Ok(params)
}

fn prompt_of(params: &Object, options: AcpOptions) -> Option<Vec<Json>> {
    let blocks = params.get("content_blocks").and_then(Json::as_array);
    if let Some(blocks) = blocks.filter(|blocks| !blocks.is_empty()) {
        return Some(blocks.to_vec());
    }
    let text = ["text", "content", "query"]
        .into_iter()
        .filter_map(|name| params.get(name)?.as_text())
        .find(|text| !text.is_empty());
    if let Some(text) = text {
        return Some(vec![text_block(text.clone())]);
    }
    let message = params.get("message").and_then(Json::as_object);
    message
        .filter(|_| options.prompt_from_a2a_message)
        .map(a2a_message_to_prompt)
        .filter(|blocks| !blocks.is_empty())
}

/// Converts a request to a JSON-RPC call for an ACP peer.
///
/// Departs: a call without a `jsonrpc_id` gets the `request_id`, and a notification has no id.
///
/// # Errors
/// `missing_method`, `missing_id`, and `bad_type` on `params._meta`.
///
/// Source: docs/protocols/e2a.md §7.3.
pub fn envelope_to_acp_jsonrpc_call(
    envelope: &E2aEnvelope,
    options: AcpOptions,
) -> Result<Object, E2aError> {
    let method = acp_method(envelope, options)?;
    // An extension of the same name is not a prompt.
    let is_prompt =
        method == METHOD_SESSION_PROMPT && envelope.method.as_deref() != Some(METHOD_EXT);
    let mut params = if is_prompt {
        prompt_params(envelope, options)?
    } else {
        envelope.params.clone()
    };
    if options.write_session_id_in_camel_case
        && !params.contains("sessionId")
        && let Some(session_id) = params.get("session_id").cloned()
    {
        params.insert("sessionId", session_id);
    }
    let mut call = Object::new();
    call.insert("jsonrpc", "2.0");
    match (
        &envelope.jsonrpc_id,
        non_empty(envelope.request_id.as_ref()),
    ) {
        (Some(id), _) => {
            call.insert("id", id.clone());
        }
        (None, _) if ACP_NOTIFICATION_NAMES.contains(&method.as_str()) => {}
        (None, Some(id)) => {
            call.insert("id", id.clone());
        }
        (None, None) => return Err(Kind::MissingId.into()),
    }
    call.insert("method", method);
    call.insert("params", params);
    Ok(call)
}

fn acp_method(envelope: &E2aEnvelope, options: AcpOptions) -> Result<Text, E2aError> {
    let method = envelope.method.as_ref().ok_or(Kind::MissingMethod)?;
    if method == METHOD_EXT
        && let Some(extension) = non_empty(envelope.ext_method.as_ref())
    {
        return Ok(extension.clone());
    }
    let mapped = GATEWAY_NAMES
        .iter()
        .find(|(gateway, _)| options.map_gateway_names && method == gateway);
    Ok(mapped.map_or_else(|| method.clone(), |(_, acp)| Text::from_static(acp)))
}

/// The JSON-RPC response that corresponds to a record; `None` for kinds without one.
///
/// Ignores whether the record is final. To answer a caller, use
/// [`reply_for`](super::reply_for), which answers for every kind.
/// Source: docs/protocols/e2a.md §7.4.
#[must_use]
pub fn e2a_response_to_acp_jsonrpc_response(record: &E2aResponse) -> Option<Object> {
    if let Some(projection) = acp_projection(record) {
        let mut response = projection.clone();
        if !response.contains("id") {
            response.insert("id", record.jsonrpc_id.clone());
        }
        return Some(response);
    }
    let id = record.jsonrpc_id.clone();
    match record.response_kind.as_str() {
        KIND_ACP_PROMPT_RESULT => Some(response(id, "result", record.body.clone())),
        KIND_ACP_JSONRPC_ERROR => Some(response(id, "error", record.body.clone())),
        KIND_ERROR => Some(response(id, "error", error_of_body(&record.body))),
        _ => None,
    }
}

/// `projections.acp` when it is a JSON-RPC response.
pub(super) fn acp_projection(record: &E2aResponse) -> Option<&Object> {
    let projection = record.projections.get("acp")?.as_object()?;
    let speaks = projection.get("jsonrpc").and_then(Json::as_str) == Some("2.0");
    let answers = projection.contains("result") || projection.contains("error");
    (speaks && answers).then_some(projection)
}

/// A JSON-RPC response: `outcome` is `result` or `error`.
pub(super) fn response(
    id: Option<JsonRpcId>,
    outcome: &'static str,
    value: impl Into<Json>,
) -> Object {
    let mut response = Object::new();
    response.insert("jsonrpc", "2.0");
    response.insert("id", id);
    response.insert(outcome, value);
    response
}

/// The JSON-RPC error for an `e2a.error` body of any content.
/// Source: docs/protocols/e2a.md §7.4.
pub(super) fn error_of_body(body: &Object) -> Object {
    let mut data = Object::new();
    for name in ["details", "external"] {
        if let Some(value) = body.get(name).filter(|value| !value.is_null()) {
            data.insert(name, value.clone());
        }
    }
    let mut error = Object::new();
    match body.get("code") {
        Some(code) if is_integer(code) => {
            error.insert("code", code.clone());
        }
        code => {
            error.insert("code", i64::from(code::INTERNAL_ERROR));
            if let Some(code) = code.filter(|code| !code.is_null()) {
                data.insert("e2a_code", code.clone());
            }
        }
    }
    error.insert(
        "message",
        body.get("message").map(text_of).unwrap_or_default(),
    );
    if !data.is_empty() {
        error.insert("data", data);
    }
    error
}

/// Whether it is a number without fraction and exponent.
pub(super) fn is_integer(value: &Json) -> bool {
    value.as_number().is_some_and(Number::is_integer)
}
