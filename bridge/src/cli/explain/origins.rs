//! Where each attribute of an event comes from. Source: docs/protocols/eventmesh-a2a.md §2,
//! docs/protocols/detection.md §3.

use a2abus_plugin::protocol::jsonrpc::{JsonRpc, RpcBody};
use a2abus_plugin::{Event, Family, Kind, Mapped, extension};

use crate::cli::payload::POSITION_PLACEHOLDER;

/// Where an attribute comes from: a member of the payload such as `params._agentId`, or a description.
pub(super) type Origin = &'static str;

/// What an entry point changes in an event before it routes it.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// The attributes that it takes from the data.
    filled: Vec<&'static str>,
    /// The attributes that a sender may not set.
    pub(super) removed: Vec<String>,
    /// Whether the event may not claim its `source`.
    has_own_source: bool,
}

const NEW_ID: Origin = "new";
const POSITION: Origin = "the position of the message, and the index of the unit";
const CLOCK: Origin = "the clock";
const SOURCE: Origin = "where the payload was received";
const CALL: Origin = "the id of the call";
const CALLER: Origin = "the HTTP listener and the address of its caller";
const JSON: Origin = "the payload is JSON";
const FAMILY: Origin = "the payload's family";
const REPLACED: Origin = "the binding: an event may not claim the source of a bridge";
const DATA: Origin = "the data, by fill_from_data";
/// The origin of attributes that this table does not list.
const MAPPING: Origin = "the mapping";

// === impl Changes ===

impl Changes {
    /// What is different in an event; `filled` are the attributes that were taken from its data.
    pub(super) fn between(before: &Event, after: &Event, filled: Vec<&'static str>) -> Self {
        let had = before.extensions().map(|(name, _)| name);
        let removed = had.filter(|name| after.extension(name).is_none());
        Self {
            filled,
            removed: removed.map(ToOwned::to_owned).collect(),
            has_own_source: before.id() != after.id(),
        }
    }
}

/// Every attribute of the event with its origin, in the order of the event. `is_http`: the HTTP listener received it.
pub(super) fn of(mapped: &Mapped, changes: &Changes, is_http: bool) -> Vec<(String, Origin)> {
    let core = mapped.event.core_attributes().map(|(name, _)| name);
    let extensions = mapped.event.extensions().map(|(name, _)| name);
    let known = core.filter(|name| *name != "specversion").chain(extensions);
    let origin = |name| match name {
        "id" if is_http => CALL,
        "source" if is_http => CALLER,
        "source" if changes.has_own_source => REPLACED,
        name if changes.filled.contains(&name) => DATA,
        name => origin(mapped, name),
    };
    known.map(|name| (name.to_owned(), origin(name))).collect()
}

fn origin(mapped: &Mapped, name: &str) -> Origin {
    if name == "id" && mapped.event.id().starts_with(POSITION_PLACEHOLDER) {
        return POSITION;
    }
    let own = match (mapped.detection.family, &mapped.json_rpc) {
        (Family::CloudEvent, _) => Some("the event itself"),
        (_, Some(message)) => json_rpc(message, name),
        (Family::Legacy, _) => legacy(name),
        (Family::A2eMessage, _) => a2e_message(name),
        (Family::A2eWorkflow, _) => a2e_workflow(name),
        (Family::E2a, _) => e2a(mapped, name),
        (Family::JsonRpc, None) => None,
    };
    own.unwrap_or(match name {
        "id" => NEW_ID,
        "source" => SOURCE,
        "time" => CLOCK,
        "datacontenttype" => JSON,
        extension::PROTOCOL => FAMILY,
        _ => MAPPING,
    })
}

fn json_rpc(message: &JsonRpc, name: &str) -> Option<Origin> {
    let is_call = message.is_call();
    let has_id = message
        .id
        .as_ref()
        .and_then(|id| id.text())
        .is_some_and(|text| !text.is_empty());
    Some(match name {
        "id" if is_call && has_id => "id",
        "type" if is_call => "type_prefix and method",
        "type" => "type_prefix",
        "subject" => "params._topic",
        extension::A2A_METHOD => "method",
        extension::MCP_TYPE => match (&message.body, &message.id) {
            (RpcBody::Call { .. }, Some(_)) => "method with an id",
            (RpcBody::Call { .. }, None) => "method without an id",
            (RpcBody::Result(_), _) => "result",
            (RpcBody::Error(_), _) => "error",
        },
        extension::COLLABORATION_ID => "id",
        extension::TARGET_AGENT => "params._agentId",
        extension::SEQ => "params._seq",
        extension::RPC_ERROR_CODE => "error.code",
        extension::PROTOCOL_VERSION => "jsonrpc",
        _ => return None,
    })
}

fn legacy(name: &str) -> Option<Origin> {
    Some(match name {
        "type" => "type_prefix and messageType",
        extension::A2A_METHOD | extension::MESSAGE_TYPE => "messageType",
        extension::MCP_TYPE => "messageType and metadata.correlationId",
        extension::SOURCE_AGENT => "sourceAgent.agentId",
        extension::TARGET_AGENT => "targetAgent.agentId",
        extension::COLLABORATION_ID => "metadata.correlationId",
        _ => return None,
    })
}

fn a2e_message(name: &str) -> Option<Origin> {
    Some(match name {
        "id" => "id, or new",
        "type" => "type_prefix and type",
        "subject" => "_topic",
        "time" => "ts, or the clock",
        extension::A2A_METHOD | extension::A2E_TYPE => "type",
        extension::MCP_TYPE => "type, and whether there is a req_id",
        extension::IS_FINAL => "type",
        extension::COLLABORATION_ID => "req_id, or the id of a request",
        extension::TARGET_AGENT => "_agentId",
        extension::SESSION_ID => "session_id",
        extension::A2E_CAPABILITY => "capability_name, or type",
        extension::A2E_OBJECT => "the member that names the subject of the request",
        extension::A2E_KIND => "kind",
        extension::SEQ => "seq",
        extension::A2E_CODE => "code",
        extension::RETRYABLE => "retryable",
        extension::CORRELATION_ID => "correlation_id",
        extension::PROTOCOL_VERSION => "version or a2e",
        _ => return None,
    })
}

fn a2e_workflow(name: &str) -> Option<Origin> {
    Some(match name {
        "id" => "executionId, or new",
        "type" => "type_prefix and the kind of line",
        extension::A2A_METHOD | extension::MCP_TYPE => "the kind of line",
        extension::COLLABORATION_ID => "executionId, or the binding",
        extension::TARGET_AGENT => "_agentId of the begin line, or the executor of the binding",
        extension::PROTOCOL_VERSION => FAMILY,
        _ => return None,
    })
}

fn e2a(mapped: &Mapped, name: &str) -> Option<Origin> {
    let is_answer = mapped.event.extension(extension::IS_FINAL).is_some();
    Some(match name {
        "id" if is_answer => "response_id, or request_id and sequence, or new",
        "id" => "request_id, or jsonrpc_id, or new",
        "type" if is_answer => "type_prefix and response_kind",
        "type" => "type_prefix and method",
        "subject" => "params._topic",
        "time" => "timestamp, or the clock",
        extension::A2A_METHOD => "method",
        extension::MCP_TYPE if mapped.kind == Kind::Notification => "no id to answer to",
        extension::MCP_TYPE if is_answer => "is_final",
        extension::MCP_TYPE => "method",
        extension::COLLABORATION_ID => "request_id, or jsonrpc_id",
        extension::TARGET_AGENT => "params._agentId, or agent_id, or agent_ref.id",
        extension::SOURCE_AGENT => "source_agent_id",
        extension::SEQ if is_answer => "sequence",
        extension::SEQ => "params._seq",
        extension::IS_FINAL => "is_final",
        extension::E2A_KIND => "response_kind",
        extension::E2A_STATUS => "status",
        extension::RPC_ERROR_CODE | extension::E2A_CODE => "body.code",
        extension::SESSION_ID => "session_id",
        extension::TASK_ID => "task_id",
        extension::CONTEXT_ID => "context_id",
        extension::E2A_CHANNEL => "channel, or channel_id",
        extension::CORRELATION_ID => "correlation_id",
        extension::TRACE_PARENT | extension::TRACE_STATE => "channel_context",
        extension::SOURCE_PROTOCOL => "provenance.source_protocol",
        extension::PROTOCOL_VERSION => "protocol_version",
        _ => return None,
    })
}
