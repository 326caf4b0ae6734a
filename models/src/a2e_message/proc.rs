//! Processes on the host.
//!
//! Source: docs/protocols/a2e-messages.md §2.

use super::value::{Integer, Secret};
use crate::json::Object;
use a2abus_plugin::Text;

records! {
    /// Starts a process; `timeout` in seconds, 0 for none.
    "proc/spawn/req" => ProcSpawnRequest {
        session_id: Text = "",
        cmd: Vec<Text> = [],
        cwd: Text = "",
        env: Secret<Object> = {},
        stdin_mode: Text = "pipe",
        timeout: Integer = 0,
    }
    /// Whether the process was started.
    "proc/spawn/resp" => ProcSpawnResponse {
        req_id: Text = "",
        proc_id: Text = "",
        ok: bool = false,
        pid: Integer = 0,
        error: Text = "",
    }
    /// Writes to the standard input of a process.
    "proc/write/req" => ProcWriteRequest {
        proc_id: Text = "",
        data: Text = "",
        eof: bool = false,
    }
    /// Whether the input was accepted.
    "proc/write/resp" => ProcWriteResponse {
        req_id: Text = "",
        proc_id: Text = "",
        ok: bool = false,
        pid: Integer = 0,
        error: Text = "",
    }
    /// Output of a process.
    "proc/read/event" => ProcReadEvent {
        kind: Text = "status",
        req_id: Text = "",
        data: Object = {},
        seq: Integer = 0,
        proc_id: Text = "",
        stream_type: Text = "stdout",
    }
    /// Sends a signal to a process.
    "proc/kill/req" => ProcKillRequest {
        proc_id: Text = "",
        signal: Text = "SIGTERM",
    }
    /// Whether the signal was sent.
    "proc/kill/resp" => ProcKillResponse {
        req_id: Text = "",
        ok: bool = false,
        state: Text = "",
    }
    /// Requests the status of a process.
    "proc/status/req" => ProcStatusRequest {
        proc_id: Text = "",
    }
    /// The status of a process.
    "proc/status/resp" => ProcStatusResponse {
        req_id: Text = "",
        proc_id: Text,
        status: Text,
        error: Text,
    }
}
