//! Where each attribute of an event comes from. Source: `eventmesh-a2a` section 2, `detection` section 3.

use a2abus_plugin::protocol::jsonrpc::{JsonRpc, RpcBody};
use a2abus_plugin::{Envelope, Mapped, extension};

/// Where an attribute comes from: a member of the payload as `params._agentId`, or in words.
pub(super) type Origin = &'static str;

const NEW_ID: Origin = "new";
const CLOCK: Origin = "the clock";
const SOURCE: Origin = "where the payload came in";
const JSON: Origin = "the payload is JSON";
const FAMILY: Origin = "the payload's family";
/// For what a later family adds before this table knows it.
const MAPPING: Origin = "the mapping";

/// Every attribute of the event with its origin, in the event's order.
pub(super) fn of(mapped: &Mapped) -> Vec<(String, Origin)> {
    let core = mapped.event.core_attributes().map(|(name, _)| name);
    let extensions = mapped.event.extensions().map(|(name, _)| name);
    let known = core.filter(|name| *name != "specversion").chain(extensions);
    known
        .map(|name| (name.to_owned(), origin(mapped, name)))
        .collect()
}

fn origin(mapped: &Mapped, name: &str) -> Origin {
    let own = match &mapped.unit.envelope {
        Envelope::CloudEvent(_) => Some("the event itself"),
        Envelope::JsonRpc(message) => json_rpc(message, name),
        Envelope::Legacy(_) => legacy(name),
        _ => None,
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
    let is_call = message.call().is_some();
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
            (RpcBody::Call(_), Some(_)) => "method with an id",
            (RpcBody::Call(_), None) => "method without an id",
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
