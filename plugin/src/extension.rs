//! The names of the CloudEvents extensions this project defines or reads; the only place these strings occur.
//!
//! Source: EventMesh A2A section 3.3, `eventmesh-a2a` section 2, CloudEvents extensions 1.0.2.

/// The method of a JSON-RPC call, the FIPA act of a legacy message, the type of an A2E message.
pub const A2A_METHOD: &str = "a2amethod";
/// What the event is in its exchange: `request`, `notification`, `response` or `stream`.
pub const MCP_TYPE: &str = "mcptype";
/// Ties a response to its request.
pub const COLLABORATION_ID: &str = "collaborationid";
/// The agent the event is for; routes are keyed on it.
pub const TARGET_AGENT: &str = "targetagent";
/// The agent the event is from.
pub const SOURCE_AGENT: &str = "sourceagent";
/// The payload's protocol: `A2A`, `A2E`, `A2E-EXEC` or `E2A`.
pub const PROTOCOL: &str = "protocol";
/// The version of the payload's protocol.
pub const PROTOCOL_VERSION: &str = "protocolversion";
/// The FIPA act as the sender wrote it.
pub const MESSAGE_TYPE: &str = "messagetype";
/// The sender's own sequence mark (`params._seq`).
pub const SEQ: &str = "seq";
/// The error code of a JSON-RPC response that carries an error (CloudEvents Integer).
pub const RPC_ERROR_CODE: &str = "rpcerrorcode";
/// Whether a part of an answer is the last one (CloudEvents Boolean).
pub const IS_FINAL: &str = "isfinal";
/// Where the answer goes: a topic or subject. Set by the bridge.
pub const REPLY_TO: &str = "replyto";
/// The partition of `replyto` the answer goes to. Set by the bridge.
pub const REPLY_PARTITION: &str = "replypartition";
/// The key of the pending call. Set by the bridge.
pub const CALL_ID: &str = "callid";
/// RFC 3339 time after which the event is worthless. Set by the bridge.
pub const EXPIRY_TIME: &str = "expirytime";
/// How many routes the event has passed. Set by the bridge.
pub const HOPS: &str = "hops";
/// Where the event was first read: topic, partition and offset, or stream and sequence. Set by the bridge.
pub const ORIGIN: &str = "origin";
/// W3C trace context of the whole journey; never rewritten on the way.
pub const TRACE_PARENT: &str = "traceparent";
