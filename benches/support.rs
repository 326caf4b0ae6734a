//! What the benchmarks share: payloads of stated sizes, a bridge in this process, and an HTTP client that costs little.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "benchmarks fail by panicking"
)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use a2abus_bridge::Bridge;
use a2abus_bridge::calls::Calls;
use a2abus_bridge::config::Config;
use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
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

/// How much to do: `bench` by `cargo bench`, `test` by `cargo test`, which only sees that it works.
#[must_use]
pub fn scale(bench: usize, test: usize) -> usize {
    match is_bench() {
        true => bench,
        false => test,
    }
}

/// Whether `cargo bench` runs this program.
#[must_use]
pub fn is_bench() -> bool {
    std::env::args().any(|argument| argument == "--bench")
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

/// A connection that sends one request again and again.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    read: Vec<u8>,
}

impl Connection {
    /// Connects, and prepares the request.
    ///
    /// # Panics
    /// When nobody listens.
    pub async fn open(address: SocketAddr, path: &str, body: &str) -> Self {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        let stream = TcpStream::connect(address).await.expect("it listens");
        stream.set_nodelay(true).expect("a TCP socket");
        Self {
            stream,
            request: request.into_bytes(),
            read: Vec::with_capacity(64 << 10),
        }
    }

    /// Sends the request, and reads until `is_read` says that it has what it wants. Returns what was read.
    ///
    /// # Panics
    /// When the connection ends.
    pub async fn send(&mut self, is_read: impl Fn(&[u8]) -> bool) -> &[u8] {
        self.read.clear();
        self.stream
            .write_all(&self.request)
            .await
            .expect("it takes it");
        self.until(is_read).await;
        &self.read
    }

    /// Reads on.
    ///
    /// # Panics
    /// When the connection ends.
    pub async fn until(&mut self, is_read: impl Fn(&[u8]) -> bool) {
        while !is_read(&self.read) {
            let read = self
                .stream
                .read_buf(&mut self.read)
                .await
                .expect("an answer");
            assert!(read > 0, "closed: {}", String::from_utf8_lossy(&self.read));
        }
    }
}

/// The position of `what`.
#[must_use]
pub fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, what)
}

/// Whether these bytes are a whole response with a `Content-Length` and the status 200.
///
/// # Panics
/// When they are another response.
#[must_use]
pub fn is_whole(bytes: &[u8]) -> bool {
    const LENGTH: &[u8] = b"content-length: ";
    let Some(end) = find(bytes, b"\r\n\r\n") else {
        return false;
    };
    let head = &bytes[..end];
    let shown = || String::from_utf8_lossy(head);
    assert!(head.starts_with(b"HTTP/1.1 200"), "{}", shown());
    let at = find(head, LENGTH).unwrap_or_else(|| panic!("no length: {}", shown()));
    let digits = head[at + LENGTH.len()..].iter();
    let length = digits
        .take_while(|byte| byte.is_ascii_digit())
        .fold(0, |length, digit| 10 * length + usize::from(digit - b'0'));
    bytes.len() >= end + 4 + length
}
