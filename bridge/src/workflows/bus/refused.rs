//! Why the executor does not do what a message asks of it.

use a2abus_executor::{Failure, FailureCode, Json};
use a2abus_plugin::Text;
use a2abus_plugin::protocol::jsonrpc::code;

use crate::metrics;

/// Why a request is refused.
#[derive(Debug)]
pub(super) struct WorkflowRefusal {
    /// The code of a JSON-RPC error.
    pub(super) rpc_code: i32,
    /// The error object of docs/protocols/a2e-workflows.md §9.
    pub(super) error: Json,
}

// === impl WorkflowRefusal ===

impl WorkflowRefusal {
    /// An error object of this type and code, with one suggestion.
    pub(super) fn new(
        rpc_code: i32,
        kind: &str,
        code: &str,
        message: String,
        suggestion: &str,
    ) -> Self {
        let error = Json::object([
            ("type", Json::from(kind)),
            ("code", code.into()),
            ("message", message.into()),
            ("operationId", Json::Null),
            ("details", Json::object::<Text>([])),
            ("suggestions", vec![Json::from(suggestion)].into()),
        ]);
        Self { rpc_code, error }
    }

    /// The stable word of the error.
    pub(super) fn code(&self) -> &str {
        let code = self.error.get("code").and_then(Json::as_str);
        code.unwrap_or_default()
    }

    /// What it is among the refusals that are counted.
    pub(super) fn counts_as(&self) -> metrics::RefusalReason {
        match self.error.get("type").and_then(Json::as_str) {
            Some("PermissionError") => metrics::RefusalReason::Forbidden,
            _ => metrics::RefusalReason::Malformed,
        }
    }

    /// What is asked for cannot be understood.
    pub(super) fn request(rpc_code: i32, code: &str, message: String) -> Self {
        let suggestion = "send {\"workflow\": \"<JSON Lines>\"}, with input, onError and level where they are needed";
        Self::new(rpc_code, "ValidationError", code, message, suggestion)
    }

    /// Callers of the HTTP door show no key.
    pub(super) fn rpc() -> Self {
        Self::new(
            code::INVALID_REQUEST,
            "PermissionError",
            "rpc_not_permitted",
            "workflows are not executed for callers of POST /rpc: nothing says who they are"
                .to_owned(),
            "send it to POST /api/v1/workflows/execute with an API key, or ask the operator to set workflows.rpc: true",
        )
    }

    /// The answer may not go where the request says.
    pub(super) fn place(message: String) -> Self {
        Self::new(
            code::INVALID_PARAMS,
            "PermissionError",
            crate::calls::reply_place::Refused::REASON,
            message,
            "leave out replyto and progressto, or ask the operator to add the topic to reply_topics of the binding",
        )
    }

    /// Nobody of the requester's name may execute anything.
    pub(super) fn unknown_agent(agent: Option<&Text>) -> Self {
        let message = match agent {
            Some(agent) => format!("no agent {agent:?} may execute workflows here"),
            None => "nobody is named in whose name it is to run".to_owned(),
        };
        let suggestion =
            "ask the operator to add the agent, and name it in the attribute sourceagent";
        Self::new(
            code::INVALID_PARAMS,
            "PermissionError",
            "agent_not_permitted",
            message,
            suggestion,
        )
    }

    /// Another workflow has its execution id. Source: docs/protocols/a2e-workflows.md §D45.
    pub(super) fn conflict(execution_id: &Text) -> Self {
        let message = format!("another workflow has run under the execution id {execution_id}");
        let suggestion = "give the workflow an executionId of its own";
        Self::new(
            code::INVALID_PARAMS,
            "ValidationError",
            "execution_id_conflict",
            message,
            suggestion,
        )
    }

    /// A failure of the executor.
    pub(super) fn failure(failure: &Failure) -> Self {
        let rpc_code = match failure.code {
            FailureCode::Invalid(_) | FailureCode::Refused(_) => code::INVALID_PARAMS,
            _ => code::INTERNAL_ERROR,
        };
        Self {
            rpc_code,
            error: failure.to_value(),
        }
    }
}
