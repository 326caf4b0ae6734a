//! Toolkits: named sets of tools.
//!
//! Source: docs/protocols/a2e-messages.md §2.

use super::value::Secret;
use crate::json::Object;
use a2abus_plugin::Text;

records! {
    /// Requests the list of toolkits.
    "toolkit/list/req" => ToolkitListRequest {
        filter_kind: Text = "",
        filter_tags: Vec<Text> = [],
    }
    /// The list of toolkits.
    "toolkit/list/resp" => ToolkitListResponse {
        req_id: Text = "",
        toolkits: Vec<ToolkitDefinition> = [],
    }
    /// Configures a toolkit.
    "toolkit/configure/req" => ToolkitConfigureRequest {
        session_id: Text = "",
        toolkit_name: Text = "",
        config: Secret<Object> = {},
    }
    /// Whether the toolkit was configured.
    "toolkit/configure/resp" => ToolkitConfigureResponse {
        req_id: Text = "",
        toolkit_name: Text = "",
        status: Text = "ok",
        message: Option<Text> = null,
    }
    /// A toolkit.
    ToolkitDefinition {
        name: Text,
        alias: Text = "",
        description: Text = "",
        category: Text = "",
        tags: Vec<Text> = [],
        icon_svg: Option<Text> = null,
        schema: Object = {},
        tools: Vec<Text>,
        configured: bool = false,
        version: Text = "1.0.0",
    }
}
