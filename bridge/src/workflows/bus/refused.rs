//! Refusals of the executor.

use a2abus_executor::{Failure, FailureCode, Json};
use a2abus_models::a2e_workflow::Code;
use a2abus_plugin::protocol::jsonrpc::code;
use a2abus_plugin::{DecodeErrorKind, Family, Refused, Text};

use crate::metrics;
use crate::pipeline::intake::Refusal;

/// Why a request is refused.
#[derive(Debug)]
pub(super) struct WorkflowRefusal {
    /// The code of a JSON-RPC error.
    pub(super) rpc_code: i32,
    /// The error object of docs/protocols/a2e-workflows.md §9.
    pub(super) error: Json,
}

/// The reason code of a request that names an agent that is not the executor.
pub(super) const OTHER_AGENT: &str = "other_agent";

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

    /// The error code.
    pub(super) fn code(&self) -> &str {
        let code = self.error.get("code").and_then(Json::as_str);
        code.unwrap_or_default()
    }

    /// The label of the refusal in metrics.
    pub(super) fn counts_as(&self) -> metrics::RefusalReason {
        match self.error.get("type").and_then(Json::as_str) {
            Some("PermissionError") => metrics::RefusalReason::Forbidden,
            _ => metrics::RefusalReason::Malformed,
        }
    }

    /// The message is not a request to the executor.
    pub(super) fn message(code: &str, message: String) -> Self {
        let suggestion = match code {
            OTHER_AGENT => {
                "name the executor in targetagent (_agentId in a workflow or in the params of JSON-RPC), or name no agent"
            }
            "missing_collaborationid" => {
                "send the whole workflow as one message, or give each of its lines the same header collaborationid"
            }
            _ => {
                "send the JSON Lines of a workflow as the body, or as params.workflow of the JSON-RPC method workflows/execute"
            }
        };
        Self::new(
            code::INVALID_REQUEST,
            "ValidationError",
            code,
            message,
            suggestion,
        )
    }

    /// The message, or the unit of its body, cannot be read.
    pub(super) fn unread(refusal: &Refusal) -> Self {
        let reason = refusal.reason();
        let refused = refusal.unit().filter(|refused| is_workflow(refused));
        let fault = refused.and_then(|refused| Some((refused, fault_of(refused)?)));
        match fault {
            Some((refused, fault)) => Self::line(refused, fault, reason.detail),
            None => Self::message(reason.code, reason.detail),
        }
    }

    /// A line of a workflow cannot be read. The error is the one that REST returns.
    fn line(refused: &Refused, fault: Code, message: String) -> Self {
        let before = refused.bytes.get(..refused.error.offset());
        let lines = before.unwrap_or_default().split(|byte| *byte == b'\n');
        let issue = Json::object([
            ("severity", Json::from("error")),
            ("code", fault.as_str().into()),
            ("level", fault.level().as_str().into()),
            ("message", message.as_str().into()),
            ("operationId", Json::Null),
            ("line", lines.count().into()),
        ]);
        let failure = Failure::new(FailureCode::Invalid(fault), message);
        Self::failure(&failure.with("errors", vec![issue]))
    }

    /// The parameters of the request, or the request in the form of REST, cannot be read.
    pub(super) fn request(rpc_code: i32, code: &str, message: String) -> Self {
        let suggestion =
            "send {\"workflow\": \"<JSON Lines>\"}, with input, onError and level if needed";
        Self::new(rpc_code, "ValidationError", code, message, suggestion)
    }

    /// Callers of `/rpc` send no key.
    pub(super) fn rpc() -> Self {
        Self::new(
            code::INVALID_REQUEST,
            "PermissionError",
            "rpc_not_permitted",
            "callers of POST /rpc are not authenticated, so they may neither execute nor validate workflows"
                .to_owned(),
            "send it to POST /api/v1/workflows/execute or POST /api/v1/workflows/validate with an API key, or ask the operator to set workflows.rpc: true",
        )
    }

    /// The reply address of the request is not allowed.
    pub(super) fn place(message: String) -> Self {
        Self::new(
            code::INVALID_PARAMS,
            "PermissionError",
            crate::calls::reply_address::Refused::REASON,
            message,
            "leave out replyto and progressto, or ask the operator to add the topic to reply_topics of the binding",
        )
    }

    /// The requester is not an agent of the executor.
    pub(super) fn unknown_agent(agent: Option<&Text>) -> Self {
        let message = match agent {
            Some(agent) => format!("no agent {agent:?} may execute workflows here"),
            None => "the request names no agent to run as".to_owned(),
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

    /// Another workflow has the same execution id. Source: docs/protocols/a2e-workflows.md §D45.
    pub(super) fn conflict(execution_id: &Text) -> Self {
        let message =
            format!("the execution id {execution_id} was already used by another workflow");
        let suggestion = "give the workflow a new executionId";
        Self::new(
            code::INVALID_PARAMS,
            "ExecutionError",
            "execution_id_conflict",
            message,
            suggestion,
        )
    }

    /// The execution has run, and its record was removed for lack of memory. Source: docs/protocols/a2e-workflows.md
    /// §D45.
    pub(super) fn forgotten(execution_id: &Text) -> Self {
        let message = format!(
            "the execution {execution_id} has run, and its record was removed because memory was full"
        );
        let suggestion = "give the workflow a new executionId to run it again";
        Self::new(
            code::INVALID_PARAMS,
            "ExecutionError",
            "record_removed",
            message,
            suggestion,
        )
    }

    /// The record of the execution is malformed. Source: docs/protocols/a2e-workflows.md §D45.
    pub(super) fn unreadable(execution_id: &Text) -> Self {
        let message = format!(
            "the record of the execution {execution_id} cannot be read, so it is unknown whether it has run"
        );
        let suggestion = "give the workflow a new executionId to run it";
        Self::new(
            code::INTERNAL_ERROR,
            "ExecutionError",
            FailureCode::StorageFailed.as_str(),
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

/// Whether a refused unit is a whole workflow.
pub(super) fn is_workflow(refused: &Refused) -> bool {
    let sender = refused.sender.as_ref();
    sender.is_some_and(|sender| sender.family == Family::A2eWorkflow)
}

/// The code of a workflow with a line that cannot be read.
fn fault_of(refused: &Refused) -> Option<Code> {
    use DecodeErrorKind as K;
    match refused.error.kind() {
        K::NotJson | K::TooDeep => Some(Code::InvalidJson),
        K::NotAnObject => Some(Code::NotAnObject),
        K::Unknown | K::WrongFamily => Some(Code::UnknownMessageType),
        K::TooLarge => Some(Code::WorkflowTooLarge),
        _ => None,
    }
}
