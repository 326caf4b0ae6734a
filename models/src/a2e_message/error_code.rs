//! The codes of `error`, and whether trying again may help.
//! Source: docs/protocols/a2e-messages.md §3.

use super::session::ErrorMessage;
use a2abus_plugin::Text;

/// A code of the documents. On the wire any string is allowed, and the flag on the wire takes precedence over this
/// table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Code {
    /// The word on the wire.
    pub word: &'static str,
    /// Whether the documents say that trying again may help.
    pub retryable: bool,
}

const fn once(word: &'static str) -> Code {
    Code {
        word,
        retryable: false,
    }
}

const fn again(word: &'static str) -> Code {
    Code {
        word,
        retryable: true,
    }
}

/// The codes of the protocol itself, then those of the capabilities.
pub const CODES: [Code; 32] = [
    once("parse_error"),
    again("runtime_error"),
    once("invalid_message"),
    once("version_mismatch"),
    once("unauthorized"),
    once("schema_violation"),
    again("timeout"),
    again("out_of_memory"),
    again("sandbox_crash"),
    once("unknown_tool"),
    once("tool_denied"),
    again("tool_error"),
    once("unknown_skill"),
    again("skill_error"),
    once("unknown_proc"),
    once("proc_dead"),
    once("proc_limit"),
    once("memory_full"),
    once("memory_not_found"),
    once("chain_cycle"),
    again("chain_node_error"),
    once("unknown_action"),
    once("reset_denied"),
    once("mcp_server_not_found"),
    again("mcp_server_unavailable"),
    once("mcp_tool_not_found"),
    once("mcp_resource_not_found"),
    once("mcp_prompt_not_found"),
    again("mcp_transport_error"),
    once("mcp_protocol_error"),
    once("mcp_sampling_refused"),
    once("mcp_capability_missing"),
];

/// Whether the documents say that trying again may help; false for codes they do not have.
#[must_use]
pub fn is_retryable(code: &str) -> bool {
    CODES.iter().any(|row| row.word == code && row.retryable)
}

impl ErrorMessage {
    /// The answer to a request that failed with this code, retryable as the documents say.
    #[must_use]
    pub fn new(req_id: Text, code: &str, message: impl Into<Text>) -> Self {
        Self {
            req_id,
            code: code.into(),
            message: message.into(),
            retryable: is_retryable(code),
            ..Self::default()
        }
    }
}
