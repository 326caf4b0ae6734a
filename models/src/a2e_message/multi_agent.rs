//! Subagents. Requests have no `/req` here.
//!
//! Source: docs/protocols/a2e-messages.md §2.

use super::value::Integer;
use crate::json::Object;
use a2abus_plugin::Text;

records! {
    /// Creates a subagent.
    "multi_agent/spawn" => MultiAgentSpawnRequest {
        name: Text,
        role: Text = "",
        model: Text = "default",
        max_steps: Integer = 20,
        metadata: Object = {},
    }
    /// Gives a subagent a task.
    "multi_agent/delegate" => MultiAgentDelegateRequest {
        subagent_id: Text,
        task_name: Text,
        instruction: Text,
        success_criteria: Vec<Text> = [],
    }
    /// Waits for a subagent.
    "multi_agent/await" => MultiAgentAwaitRequest {
        subagent_id: Text,
    }
    /// Requests the list of subagents.
    "multi_agent/list" => MultiAgentListRequest {}
    /// Ends a subagent.
    "multi_agent/terminate" => MultiAgentTerminateRequest {
        subagent_id: Text,
    }
    /// The created subagent.
    "multi_agent/spawn/resp" => MultiAgentSpawnResponse {
        req_id: Text = "",
        subagent_id: Text = "",
        status: Text = "",
    }
    /// Whether the task was accepted.
    "multi_agent/delegate/resp" => MultiAgentDelegateResponse {
        req_id: Text = "",
        accepted: bool = true,
        status: Text = "",
    }
    /// The result of the subagent.
    "multi_agent/await/resp" => MultiAgentAwaitResponse {
        req_id: Text = "",
        subagent_id: Text = "",
        status: Text = "",
        result: Option<Object> = null,
        error: Option<Text> = null,
    }
    /// The list of subagents.
    "multi_agent/list/resp" => MultiAgentListResponse {
        req_id: Text = "",
        subagents: Vec<Object> = [],
    }
    /// Whether the subagent was ended.
    "multi_agent/terminate/resp" => MultiAgentTerminateResponse {
        req_id: Text = "",
        success: bool = false,
        subagent_id: Text = "",
    }
}
