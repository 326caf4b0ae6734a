//! The codes of `error`, and whether a retry may help.
//! Source: docs/protocols/a2e-messages.md §3.

use super::session::ErrorMessage;
use a2abus_plugin::Text;

/// A code of the documents. On the wire any string is allowed, and the flag on the wire takes precedence over this
/// table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Code {
    /// Its name on the wire.
    pub name: &'static str,
    /// Whether the documents say that a retry may help.
    pub retryable: bool,
}

const fn permanent(name: &'static str) -> Code {
    Code {
        name,
        retryable: false,
    }
}

const fn retryable(name: &'static str) -> Code {
    Code {
        name,
        retryable: true,
    }
}

/// The codes of the protocol itself, then those of the capabilities.
pub const CODES: [Code; 32] = [
    permanent("parse_error"),
    retryable("runtime_error"),
    permanent("invalid_message"),
    permanent("version_mismatch"),
    permanent("unauthorized"),
    permanent("schema_violation"),
    retryable("timeout"),
    retryable("out_of_memory"),
    retryable("sandbox_crash"),
    permanent("unknown_tool"),
    permanent("tool_denied"),
    retryable("tool_error"),
    permanent("unknown_skill"),
    retryable("skill_error"),
    permanent("unknown_proc"),
    permanent("proc_dead"),
    permanent("proc_limit"),
    permanent("memory_full"),
    permanent("memory_not_found"),
    permanent("chain_cycle"),
    retryable("chain_node_error"),
    permanent("unknown_action"),
    permanent("reset_denied"),
    permanent("mcp_server_not_found"),
    retryable("mcp_server_unavailable"),
    permanent("mcp_tool_not_found"),
    permanent("mcp_resource_not_found"),
    permanent("mcp_prompt_not_found"),
    retryable("mcp_transport_error"),
    permanent("mcp_protocol_error"),
    permanent("mcp_sampling_refused"),
    permanent("mcp_capability_missing"),
];

/// Whether the documents say that a retry may help; false for codes they do not have.
#[must_use]
pub fn is_retryable(code: &str) -> bool {
    CODES.iter().any(|row| row.name == code && row.retryable)
}

impl ErrorMessage {
    /// The answer to a request that failed with this code, retryable as documented.
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
