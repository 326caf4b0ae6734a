//! E2A 1.0 (everything to agent) as typed values: requests and response records, and their conversions to and from
//! neighbouring protocols.
//!
//! ```text
//! JSON ── parse ──> E2aEnvelope ── acp, a2a ──> JSON-RPC, prompts      (requests)
//! JSON ── parse ──> E2aResponse ── acp, a2a ──> JSON-RPC, A2A streams  (records)
//! E2aResponse ... ── Fold ──> one answer, or items in order            (exchanges)
//! AgentRequest, AgentResponse, AgentResponseChunk <── wire ──> both    (the legacy shapes)
//! ```
//!
//! All functions are pure: times, names and ids come in an [`E2aContext`].

mod a2a;
mod acp;
mod constants;
mod envelope;
mod error;
mod fold;
mod legacy;
mod parts;
mod read;
mod record;
mod reply;
mod response;
mod rpc;
mod wire_in;
mod wire_out;
mod write;

pub use a2a::{
    A2aSendMessage, a2a_message_to_prompt, e2a_response_to_a2a_stream_payload,
    envelope_from_a2a_send_message,
};
pub use acp::{
    AcpOptions, AcpRequest, e2a_response_to_acp_jsonrpc_response, envelope_from_acp_jsonrpc,
    envelope_to_acp_jsonrpc_call, merge_params_to_acp_prompt,
};
pub use constants::*;
pub use envelope::E2aEnvelope;
pub use error::{E2aError, E2aErrorKind};
pub use fold::{Fold, FoldLimits, FoldStep, FoldStepKind};
pub use legacy::{
    AgentRequest, AgentResponse, AgentResponseChunk, build_fallback_e2a, e2a_from_agent_fields,
    e2a_to_agent_request,
};
pub use parts::{Auth, E2aContext, IdentityOrigin, JsonRpcId, Provenance, Trust};
pub use reply::{CallMode, Caller, Folded, Reply, reply_for};
pub use response::{E2aResponse, check_version, is_e2a_response_wire_dict, strip_internal_keys};
pub use rpc::envelope_from_jsonrpc_request;
pub use wire_in::{parse_agent_server_wire_chunk, parse_agent_server_wire_unary};
pub use wire_out::{
    RecordOptions, ServerPush, build_server_push_wire, encode_agent_chunk_for_wire,
    encode_agent_response_for_wire, encode_failure_agent_chunk, encode_failure_agent_response,
    encode_json_parse_error_wire,
};

pub use write::Form;

pub(crate) use read::{falsy_object, text_of};

use crate::json::Json;

/// The class of a JSON value on a connection that carries E2A, named as by [`a2abus_plugin::e2a_class`].
#[must_use]
pub fn classify(value: &Json) -> &'static str {
    a2abus_plugin::e2a_class(&value.to_string())
}
