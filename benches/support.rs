//! What the benchmarks share: payloads of stated sizes, and a bridge in this process.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "benchmarks fail by panicking"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use a2abus_bridge::Bridge;
use a2abus_bridge::calls::Calls;
use a2abus_bridge::config::Config;
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

/// A bridge that takes longer to become ready does not become ready.
const PATIENCE: Duration = Duration::from_secs(30);

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

/// Starts a bridge in this process and waits until it is ready; it runs until `stop`.
///
/// # Panics
/// When the configuration is wrong or the bridge does not become ready.
pub async fn run_bridge(text: &str, stop: &CancellationToken) -> Arc<Calls> {
    let config = Config::read("bench", text, std::iter::empty())
        .unwrap_or_else(|problems| panic!("{problems}"));
    let bridge = Bridge::build(config).await.expect("the bridge is built");
    let (calls, readiness) = (Arc::clone(bridge.calls()), Arc::clone(bridge.readiness()));
    tokio::spawn(bridge.run(stop.clone()));
    let deadline = Instant::now() + PATIENCE;
    while !readiness.is_ready() {
        assert!(
            Instant::now() < deadline,
            "the bridge is not ready: {:?}",
            readiness.report()
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    calls
}

/// The JSON-RPC answer to a request, with its id.
///
/// # Panics
/// When the request is not JSON.
#[must_use]
pub fn answer_to(request: &[u8]) -> String {
    let request: serde_json::Value = serde_json::from_slice(request).expect("JSON");
    format!(
        r#"{{"jsonrpc":"2.0","id":{},"result":{{"temperature":22}}}}"#,
        request["id"]
    )
}

/// CPU time of this process so far, in microseconds.
///
/// # Panics
/// Elsewhere than on Linux.
#[must_use]
pub fn cpu_us() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    // The name of the program, in parentheses, may hold spaces.
    let fields = stat.rsplit(')').next().expect("the fields after the name");
    let ticks: Vec<f64> = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse().expect("a number"))
        .collect();
    // A tick is 10 ms on Linux.
    ticks.iter().sum::<f64>() * 10_000.0
}

/// The middle one.
///
/// # Panics
/// Of no values.
#[must_use]
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
