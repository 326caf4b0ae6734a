//! MCP servers behind the host, and their requests to the agent.
//!
//! Source: docs/protocols/a2e-messages.md §2.

use super::value::{Float, Integer, Secret};
use crate::json::Object;
use a2abus_plugin::Text;

records! {
    /// Requests the list of MCP servers.
    "mcp/server/list/req" => McpServerListRequest {
        status_filter: Text = "",
    }
    /// The list of MCP servers.
    "mcp/server/list/resp" => McpServerListResponse {
        req_id: Text = "",
        servers: Vec<Object> = [],
    }
    /// Adds an MCP server.
    "mcp/server/register/req" => McpServerRegisterRequest {
        config: Secret<Object> = {},
    }
    /// The added MCP server.
    "mcp/server/register/resp" => McpServerRegisterResponse {
        req_id: Text = "",
        ok: bool = false,
        server: Object = {},
        error: Text = "",
    }
    /// Removes an MCP server.
    "mcp/server/unregister/req" => McpServerUnregisterRequest {
        server_id: Text = "",
    }
    /// Whether the MCP server was removed.
    "mcp/server/unregister/resp" => McpServerUnregisterResponse {
        req_id: Text = "",
        ok: bool = false,
        server_id: Text = "",
    }
    /// Requests the list of resources.
    "mcp/resource/list/req" => McpResourceListRequest {
        server_id: Text = "",
        cursor: Text = "",
    }
    /// The list of resources.
    "mcp/resource/list/resp" => McpResourceListResponse {
        req_id: Text = "",
        resources: Vec<Object> = [],
        next_cursor: Text = "",
    }
    /// Reads a resource.
    "mcp/resource/read/req" => McpResourceReadRequest {
        uri: Text = "",
        server_id: Text = "",
    }
    /// The contents of a resource.
    "mcp/resource/read/resp" => McpResourceReadResponse {
        req_id: Text = "",
        contents: Vec<Object> = [],
        server_id: Text = "",
        error: Text = "",
    }
    /// Subscribes to changes of a resource.
    "mcp/resource/subscribe/req" => McpResourceSubscribeRequest {
        uri: Text = "",
        server_id: Text = "",
    }
    /// Whether the subscription succeeded.
    "mcp/resource/subscribe/resp" => McpResourceSubscribeResponse {
        req_id: Text = "",
        ok: bool = false,
        error: Text = "",
    }
    /// Requests the list of prompts.
    "mcp/prompt/list/req" => McpPromptListRequest {
        server_id: Text = "",
        cursor: Text = "",
    }
    /// The list of prompts.
    "mcp/prompt/list/resp" => McpPromptListResponse {
        req_id: Text = "",
        prompts: Vec<Object> = [],
        next_cursor: Text = "",
    }
    /// Requests a prompt.
    "mcp/prompt/get/req" => McpPromptGetRequest {
        name: Text = "",
        arguments: Object = {},
        server_id: Text = "",
    }
    /// A prompt with its arguments filled in.
    "mcp/prompt/get/resp" => McpPromptGetResponse {
        req_id: Text = "",
        description: Text = "",
        messages: Vec<Object> = [],
        server_id: Text = "",
        error: Text = "",
    }
    /// The host asks the agent for its roots.
    "mcp/root/list/req" => McpRootListRequest {
        server_id: Text = "",
        mcp_request_id: Text = "",
    }
    /// The roots of the agent.
    "mcp/root/list/resp" => McpRootListResponse {
        req_id: Text = "",
        server_id: Text = "",
        mcp_request_id: Text = "",
        roots: Vec<Object> = [],
    }
    /// The host asks the agent to sample its model.
    "mcp/sample/req" => McpSampleRequest {
        server_id: Text = "",
        mcp_request_id: Text = "",
        messages: Vec<Object> = [],
        model_preferences: Object = {},
        system_prompt: Text = "",
        include_context: Text = "none",
        temperature: Float = 1.0,
        max_tokens: Integer = 1024,
        stop_sequences: Vec<Text> = [],
        metadata: Object = {},
    }
    /// The output of the agent's model.
    "mcp/sample/resp" => McpSampleResponse {
        req_id: Text = "",
        server_id: Text = "",
        mcp_request_id: Text = "",
        role: Text = "assistant",
        content: Object = {},
        model: Text = "",
        stop_reason: Text = "",
        error: Text = "",
    }
    /// A notification of an MCP server: `method` is its MCP name. Not registered in the SDK.
    "mcp/server/push" => McpServerPush {
        server_id: Text = "",
        method: Text = "",
        params: Object = {},
    }
}
