//! The constants of the protocol. Source: docs/protocols/e2a.md §1.

/// The protocol version that is written.
pub const PROTOCOL_VERSION: &str = "1.0";

/// `provenance.source_protocol` of a native message.
pub const SOURCE_PROTOCOL_E2A: &str = "e2a";
/// `provenance.source_protocol` of a message that came from ACP.
pub const SOURCE_PROTOCOL_ACP: &str = "acp";
/// `provenance.source_protocol` of a message that came from A2A.
pub const SOURCE_PROTOCOL_A2A: &str = "a2a";

/// `status` of a successful final record.
pub const STATUS_SUCCEEDED: &str = "succeeded";
/// `status` of a failed final record.
pub const STATUS_FAILED: &str = "failed";
/// `status` of a record that is not final.
pub const STATUS_IN_PROGRESS: &str = "in_progress";

/// `response_kind`: the outcome, in `body.result`.
pub const KIND_COMPLETE: &str = "e2a.complete";
/// `response_kind`: a part, in `body.delta`.
pub const KIND_CHUNK: &str = "e2a.chunk";
/// `response_kind`: a failure, in `body.code` and `body.message`.
pub const KIND_ERROR: &str = "e2a.error";
/// `response_kind`: the params of an ACP `session/update`.
pub const KIND_ACP_SESSION_UPDATE: &str = "acp.session_update";
/// `response_kind`: the result of an ACP `session/prompt`.
pub const KIND_ACP_PROMPT_RESULT: &str = "acp.prompt_result";
/// `response_kind`: a JSON-RPC error object.
pub const KIND_ACP_JSONRPC_ERROR: &str = "acp.jsonrpc_error";
/// `response_kind`: a JSON-RPC request of the agent to the client.
pub const KIND_ACP_OUTPUT_REQUEST: &str = "acp.output_request";
/// `response_kind`: an A2A task.
pub const KIND_A2A_TASK: &str = "a2a.task";
/// `response_kind`: an A2A message.
pub const KIND_A2A_MESSAGE: &str = "a2a.message";
/// `response_kind`: one event of an A2A stream, in `body.branch` and `body.payload`.
pub const KIND_A2A_STREAM_EVENT: &str = "a2a.stream_event";
/// `response_kind`: the result of a timer.
pub const KIND_CRON: &str = "cron";
/// `response_kind`: a plan that waits for a person.
pub const KIND_PLAN_APPROVAL_REQUIRED: &str = "plan.approval_required";

/// The branches of an A2A stream event, with A2A's own names for them.
pub const A2A_STREAM_BRANCHES: [(&str, &str); 4] = [
    ("task", "task"),
    ("message", "message"),
    ("status_update", "statusUpdate"),
    ("artifact_update", "artifactUpdate"),
];

/// `body.delta_kind` of text for the user.
pub const DELTA_TEXT: &str = "text";
/// `body.delta_kind` of the model's reasoning.
pub const DELTA_REASONING: &str = "reasoning";
/// `body.delta_kind` of anything else, as a structure.
pub const DELTA_CUSTOM: &str = "custom";

/// The method of an ACP prompt.
pub const METHOD_SESSION_PROMPT: &str = "session/prompt";
/// The method whose real name is in `ext_method`.
pub const METHOD_EXT: &str = "ext";

/// ACP methods that expect no answer.
pub const ACP_NOTIFICATION_NAMES: [&str; 3] = [
    "session/cancel",
    "session/update",
    "session/elicitation/complete",
];

/// `metadata` key for a whole legacy response.
pub const WIRE_LEGACY_AGENT_RESPONSE_KEY: &str = "_e2a_wire_legacy_agent_response";
/// `metadata` key for a whole legacy chunk.
pub const WIRE_LEGACY_AGENT_CHUNK_KEY: &str = "_e2a_wire_legacy_agent_chunk";
/// `metadata` key for an unsolicited record.
pub const WIRE_SERVER_PUSH_KEY: &str = "_jiuwenswarm_server_push";
/// `metadata` key of the reason of a cancellation.
pub const INTERNAL_CANCEL_SOURCE_KEY: &str = "_jiuwenswarm_cancel_source";
/// The keys that conversions never pass to a channel, and that are never read from the `metadata` of a request.
pub const WIRE_INTERNAL_METADATA_KEYS: [&str; 4] = [
    WIRE_LEGACY_AGENT_RESPONSE_KEY,
    WIRE_LEGACY_AGENT_CHUNK_KEY,
    WIRE_SERVER_PUSH_KEY,
    INTERNAL_CANCEL_SOURCE_KEY,
];
/// `channel_context` key for a request that could not be normalised.
pub const INTERNAL_CONTEXT_KEY: &str = "_jiuwenswarm";
/// Maximum size of a legacy request in a fallback envelope, in bytes of JSON.
pub const MAX_FALLBACK_BYTES: usize = 512_000;

/// `body.code` of a legacy response that is not ok.
pub const CODE_AGENT_ERROR: &str = "E2A.AGENT_ERROR";
/// `body.code` of a record that could not be encoded.
pub const CODE_WIRE_ENCODE_ERROR: &str = "E2A.WIRE_ENCODE_ERROR";
/// `body.code` of the answer to a frame that is not JSON.
pub const CODE_INVALID_JSON: &str = "E2A.INVALID_JSON";
/// `body.code` of a failed stream, and the event type of its last legacy chunk.
pub const CODE_CHAT_ERROR: &str = "chat.error";
/// The code of an answer that exceeds a size limit, in `details` or in `e2a_code`.
pub const CODE_RESPONSE_TOO_LARGE: &str = "response_too_large";

/// `event_type` of a part with text.
pub const EVENT_CHAT_DELTA: &str = "chat.delta";
/// `event_type` of the part that contains the whole answer.
pub const EVENT_CHAT_FINAL: &str = "chat.final";
/// `source_chunk_type` of the model's reasoning.
pub const CHUNK_LLM_REASONING: &str = "llm_reasoning";
