//! Sessions: handshake, liveness, end, errors, progress.
//!
//! Source: docs/protocols/a2e-messages.md §2.

use super::value::{Float, Generated, Integer, Secret};
use crate::json::Object;
use a2abus_plugin::Text;

records! {
    /// Opens a session: identity and capabilities of the agent.
    "handshake/req" => HandshakeRequest {
        agent_id: Text = "",
        agent_caps: Vec<Text> = [],
        auth_token: Secret<Text> = "",
    }
    /// Accepts or refuses a session.
    "handshake/resp" => HandshakeResponse {
        req_id: Text = "",
        session_id: Generated<Text> = new_id,
        accepted_caps: Vec<Capability> = [],
        max_parallel: Integer = 4,
        ok: bool = true,
        reason: Text = "",
    }
    /// Checks whether the peer is alive.
    "ping" => Ping {}
    /// Answers a ping.
    "pong" => Pong {
        req_id: Text = "",
        uptime_seconds: Float = 0.0,
    }
    /// Asks the host to finish and close, within `timeout` seconds; not answered.
    "shutdown" => Shutdown {
        timeout: Integer = 10,
    }
    /// The answer to a request that failed.
    "error" => ErrorMessage {
        req_id: Text = "",
        code: Text,
        message: Text = "",
        detail: Object = {},
        retryable: bool = false,
        capability_name: Text = "",
    }
    /// Progress of a call of any capability.
    "invoke/event" => InvokeEvent {
        kind: Text = "status",
        req_id: Text = "",
        data: Object = {},
        seq: Integer = 0,
    }
    /// A capability that the host offers. Unknown names are carried as text.
    Capability {
        capability: Text,
        enabled: bool = true,
        metadata: Object = {},
    }
}
