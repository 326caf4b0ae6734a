//! Tools: listing and calling them.
//!
//! Source: docs/protocols/a2e-messages.md §2.

use indexmap::IndexMap;

use super::header::Embedded;
use super::value::{Float, Generated, Integer};
use crate::json::{Json, Object};
use a2abus_plugin::Text;

records! {
    /// Requests the list of tools.
    "tool/list/req" => ToolListRequest {
        filter_kind: Text = "",
        filter_tags: Vec<Text> = [],
        query: Text = "",
        include_deferred: bool = false,
    }
    /// The list of tools.
    "tool/list/resp" => ToolListResponse {
        req_id: Text = "",
        tools: Vec<ToolDefinition> = [],
    }
    /// Calls a tool; `timeout` in seconds.
    "tool/call/req" => ToolCallRequest {
        session_id: Text = "",
        tool_name: Text = "",
        arguments: Object,
        correlation_id: Text = "",
        streaming: bool = false,
        timeout: Integer = 30,
    }
    /// Progress of a tool call.
    "tool/event" => ToolEvent {
        kind: Text = "status",
        req_id: Text = "",
        data: Object = {},
        seq: Integer = 0,
    }
    /// The result of a tool call.
    "tool/call/resp" => ToolCallResponse {
        req_id: Text = "",
        data: ToolResult,
        created_at: Generated<Float> = now,
    }
    /// A parameter of a tool.
    ToolParameter {
        name: Text,
        data_type as "type": Text,
        description: Text,
        required: bool = false,
        choices as "enum": Option<Vec<Text>> = null,
        properties: Option<IndexMap<Text, ToolParameter>> = null,
    }
    /// A tool.
    ToolDefinition {
        name: Text,
        description: Text,
        input_parameters: Vec<ToolParameter> = [],
        output_parameters: Vec<ToolParameter> = [],
        streaming: bool = true,
        idempotent: bool = false,
        tags: Vec<Text> = [],
        version: Text = "1.0.0",
        toolkit: Option<Text> = null,
        defer_loading: bool = false,
    }
    /// The result of a tool call; `duration_ms` in milliseconds. A failure may be reported in `success`.
    ToolResult {
        success: bool,
        tool_name: Text,
        data: Json = null,
        summary: Json = null,
        truncated: Option<bool> = false,
        exit_code: Option<Integer> = null,
        error: Option<Text> = null,
        error_code: Option<Text> = null,
        duration_ms: Integer,
        events: Vec<Embedded<ToolEvent>> = [],
    }
}
