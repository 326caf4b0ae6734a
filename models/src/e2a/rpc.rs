//! Converts a JSON-RPC request for an agent that speaks E2A.
//! Source: docs/protocols/e2a.md §10.4.

use crate::e2a::a2a::{A2aSendMessage, envelope_from_a2a_send_message};
use crate::e2a::acp::{AcpRequest, envelope_from_acp_jsonrpc};
use crate::e2a::constants::METHOD_SESSION_PROMPT;
use crate::e2a::envelope::E2aEnvelope;
use crate::e2a::error::{E2aError, E2aErrorKind as Kind};
use crate::e2a::parts::{E2aContext, IdentityOrigin};
use crate::e2a::read::Members;
use crate::json::{Json, Object};
use a2abus_plugin::Text;
use a2abus_plugin::protocol::dialect::is_streaming;

/// Methods that send an A2A message, of both versions of A2A and of EventMesh.
const A2A_SEND_METHODS: [&str; 5] = [
    "message/send",
    "message/stream",
    "message/sendStream",
    "SendMessage",
    "SendStreamingMessage",
];

/// Converts a JSON-RPC request to an envelope with a new `request_id`, the current time, and the
/// caller's id as `jsonrpc_id`. The methods of A2A that send a message become a prompt; all others
/// keep their names.
///
/// # Errors
/// `not_an_object`, `duplicate_member`, `missing_method`; `bad_type` with the member.
pub fn envelope_from_jsonrpc_request(
    request: &Json,
    channel: Option<Text>,
    context: &E2aContext<'_>,
) -> Result<E2aEnvelope, E2aError> {
    let members = Members::of_message(request)?;
    let jsonrpc_id = members.jsonrpc_id("id")?;
    let method = members.string("method")?.ok_or(Kind::MissingMethod)?;
    let params = members.optional_object("params")?.unwrap_or_default();
    let is_stream = method == METHOD_SESSION_PROMPT || is_streaming(&method);
    let envelope = if A2A_SEND_METHODS.contains(&method.as_str()) {
        envelope_from_a2a_send_message(send_message(&params, channel)?, context)
    } else {
        let call = AcpRequest {
            method,
            params,
            jsonrpc_id: jsonrpc_id.clone(),
            session_id: None,
            channel,
            identity_origin: IdentityOrigin::User,
            details: Object::new(),
        };
        envelope_from_acp_jsonrpc(call, context)
    };
    Ok(E2aEnvelope {
        request_id: Some(context.new_id.clone()),
        jsonrpc_id,
        timestamp: Some(context.now.clone()),
        is_stream,
        ..envelope
    })
}

fn send_message(params: &Object, channel: Option<Text>) -> Result<A2aSendMessage, E2aError> {
    let members = Members::nested(params, "params.");
    let message = members
        .optional_object("message")?
        .ok_or_else(|| members.error(Kind::BadType, "message"))?;
    let ids = Members::nested(&message, "params.message.");
    Ok(A2aSendMessage {
        task_id: ids.text("taskId")?,
        context_id: ids.text("contextId")?,
        metadata: members.free_object("metadata")?,
        configuration: members.free_object("configuration")?,
        channel,
        identity_origin: IdentityOrigin::User,
        details: Object::new(),
        message: Json::Object(message),
    })
}
