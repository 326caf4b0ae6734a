//! Chains: sequences of tool and skill nodes.
//!
//! Source: docs/protocols/a2e-messages.md §2.

use super::value::{Generated, Integer};
use crate::json::{Json, Object};
use a2abus_plugin::Text;

records! {
    /// Runs a chain of nodes; each has the form of [`ChainNode`]. `timeout` in seconds.
    "chain/req" => ChainRequest {
        session_id: Text = "",
        chain_id: Generated<Text> = new_id,
        nodes: Vec<Object> = [],
        entry_node: Text = "",
        initial_input: Object = {},
        correlation_id: Text = "",
        streaming: bool = true,
        timeout: Integer = 300,
    }
    /// Progress of a node of a chain.
    "chain/event" => ChainEvent {
        kind: Text = "status",
        req_id: Text = "",
        data: Object = {},
        seq: Integer = 0,
        node_id: Text = "",
        phase: Text = "start",
        output: Json = null,
        error: Text = "",
    }
    /// The result of a chain; `duration_ms` in milliseconds.
    "chain/resp" => ChainResponse {
        req_id: Text = "",
        chain_id: Text = "",
        success: bool = false,
        outputs: Object = {},
        final_output: Json = null,
        duration_ms: Integer = 0,
        nodes_run: Integer = 0,
        error: Option<Object> = null,
    }
    /// A node of a chain. The messages carry nodes as free objects.
    ChainNode {
        node_id: Text,
        kind: NodeKind,
        name: Text = "",
        input: Object = {},
        input_map: Object = {},
        condition: Text = "",
        true_node: Text = "",
        false_node: Text = "",
        items_path: Text = "",
        map_node: Text = "",
        next_node: Text = "",
        on_error: Text = "abort",
    }
}

member_words! {
    /// The action of a node.
    NodeKind {
        #[default]
        Skill = "skill",
        Tool = "tool",
        Branch = "branch",
        Map = "map",
    }
}
