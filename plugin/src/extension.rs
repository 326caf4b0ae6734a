//! The names of the CloudEvents extensions that this project defines or reads. These strings occur nowhere else.
//!
//! Source: docs/protocols/cloudevents.md §6.

/// The method of a JSON-RPC call, the FIPA act of a legacy message, the type of an A2E message.
pub const A2A_METHOD: &str = "a2amethod";
/// The role of the event in its exchange: `request`, `notification`, `response` or `stream`.
pub const MCP_TYPE: &str = "mcptype";
/// Connects a response to its request.
pub const COLLABORATION_ID: &str = "collaborationid";
/// The target agent; routes match on it.
pub const TARGET_AGENT: &str = "targetagent";
/// The agent that sent the event.
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
/// Why a bridge answered instead of the agent: `data.reason` of the error. Claimed by the sender, not verified.
pub const FAILURE_REASON: &str = "failurereason";
/// Whether a part of an answer is the last one (CloudEvents Boolean).
pub const IS_FINAL: &str = "isfinal";
/// The topic or subject for the answer. Set by the bridge.
pub const REPLY_TO: &str = "replyto";
/// The partition of `replyto` for the answer. Set by the bridge.
pub const REPLY_PARTITION: &str = "replypartition";
/// The topic or subject for progress messages before the answer.
pub const PROGRESS_TO: &str = "progressto";
/// The key of the pending call. Set by the bridge.
pub const CALL_ID: &str = "callid";
/// The RFC 3339 time at which the event expires. Set by the bridge.
pub const EXPIRY_TIME: &str = "expirytime";
/// How many routes the event has passed. Set by the bridge.
pub const HOPS: &str = "hops";
/// The position where the bridge read the event: topic, partition and offset, or stream and sequence. Set by the
/// bridge.
pub const ORIGIN: &str = "origin";
/// W3C trace context; never changed by the bridge.
pub const TRACE_PARENT: &str = "traceparent";
/// Vendor part of the W3C trace context.
pub const TRACE_STATE: &str = "tracestate";
/// The session of an A2E or E2A message.
pub const SESSION_ID: &str = "sessionid";
/// The task of an E2A record, or of a JSON-RPC result.
pub const TASK_ID: &str = "taskid";
/// The state of that task.
pub const TASK_STATE: &str = "taskstate";
/// The context of an E2A record.
pub const CONTEXT_ID: &str = "contextid";
/// The sender's own tracing id; not used for correlation on the bus.
pub const CORRELATION_ID: &str = "correlationid";
/// The type of an A2E message as written.
pub const A2E_TYPE: &str = "a2etype";
/// The capability of an A2E message.
pub const A2E_CAPABILITY: &str = "a2ecapability";
/// The object of an A2E request, such as a tool, a process or a plan.
pub const A2E_OBJECT: &str = "a2eobject";
/// The kind of an A2E event.
pub const A2E_KIND: &str = "a2ekind";
/// The code of an A2E error.
pub const A2E_CODE: &str = "a2ecode";
/// Whether the action that an A2E error reports may be tried again (CloudEvents Boolean).
pub const RETRYABLE: &str = "retryable";
/// The channel of an E2A record.
pub const E2A_CHANNEL: &str = "e2achannel";
/// The kind of an E2A response as written.
pub const E2A_KIND: &str = "e2akind";
/// The status of an E2A response.
pub const E2A_STATUS: &str = "e2astatus";
/// The code of an E2A error, if it is text.
pub const E2A_CODE: &str = "e2acode";
/// The protocol from which an E2A record was converted, if any.
pub const SOURCE_PROTOCOL: &str = "sourceprotocol";
