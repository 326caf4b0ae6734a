//! What the benchmarks share: payloads of stated sizes.

use bytes::Bytes;

/// A JSON-RPC request of 158 bytes, the size of a typical tool call.
pub const SMALL_REQUEST: &str = r#"{"jsonrpc":"2.0","id":"req-0000000001","method":"tools/call","params":{"name":"weather","arguments":{"city":"New York","units":"metric"},"_agentId":"weather"}}"#;

/// What fills the argument of a larger request.
#[derive(Debug, Clone, Copy)]
pub enum Filling {
    /// Prose with escapes and some characters outside ASCII.
    Text,
    /// An array of small objects with numbers.
    Structured,
}

/// A JSON-RPC request of about `bytes` bytes, with the routing member last.
#[must_use]
pub fn request(bytes: usize, filling: Filling) -> Bytes {
    let head = r#"{"jsonrpc":"2.0","id":"req-0000000001","method":"tools/call","params":{"name":"weather","arguments":{"input":"#;
    let tail = r#"},"_agentId":"weather"}}"#;
    let room = bytes.saturating_sub(head.len() + tail.len());
    let unit = match filling {
        Filling::Text => r"The agent answered \u201cyes\u201d, and then: naïve — \n",
        Filling::Structured => r#"{"id":1024,"value":-12.5e3,"ok":true},"#,
    };
    let body = unit.repeat(room / unit.len());
    let argument = match filling {
        Filling::Text => format!("\"{body}\""),
        Filling::Structured => format!("[{}]", body.trim_end_matches(',')),
    };
    Bytes::from(format!("{head}{argument}{tail}"))
}
