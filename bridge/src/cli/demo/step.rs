//! The calls that the demonstration makes, and what must come of each.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long any step may take before the demonstration gives up.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// One call to make, and the expected result.
pub(super) struct Step {
    pub(super) title: &'static str,
    pub(super) path: &'static str,
    pub(super) timeout_ms: Option<u64>,
    pub(super) payload: Value,
    /// The agents that must see an event of it.
    pub(super) agents: &'static [&'static str],
    pub(super) expect: fn(&Answer) -> bool,
    /// What `expect` wants, in words.
    pub(super) wanted: &'static str,
}

/// The HTTP response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(super) status: u16,
    /// The JSON documents of the answer: one, or one per event of a stream.
    pub(super) parts: Vec<Value>,
    pub(super) elapsed: Duration,
}

/// The calls of the demonstration, one of each kind.
pub(super) fn steps() -> Vec<Step> {
    vec![
        unary(),
        streamed(),
        batch(),
        notification(),
        unknown_agent(),
        overdue(),
    ]
}

fn call(id: &Value, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

fn tool(agent: &str, city: &str) -> Value {
    json!({"_agentId": agent, "name": "weather", "arguments": {"city": city}})
}

fn unary() -> Step {
    Step {
        title: "unary call",
        path: "/rpc",
        timeout_ms: None,
        payload: call(&json!("req-1"), "tools/call", &tool("echo", "Oslo")),
        agents: &["echo"],
        expect: |answer| {
            answer.status == 200
                && answer.only(|part| part["id"] == "req-1" && part["result"].is_object())
        },
        wanted: "status 200 and one result with the id \"req-1\"",
    }
}

fn streamed() -> Step {
    let message = json!({"message": {"role": "user", "kind": "message", "messageId": "m-1",
        "parts": [{"kind": "text", "text": "Plan a trip to Oslo"}]}});
    Step {
        title: "streamed call, the agent named by the path",
        path: "/rpc/stream",
        timeout_ms: None,
        payload: call(&json!(7), "message/stream", &message),
        agents: &["stream"],
        expect: |answer| {
            let own = answer.parts.iter().all(|part| part["id"] == 7);
            let last = answer
                .parts
                .last()
                .is_some_and(|part| part["result"]["final"] == true);
            answer.status == 200 && answer.parts.len() == 4 && own && last
        },
        wanted: "status 200 and four parts with the id 7, the last one final",
    }
}

fn batch() -> Step {
    Step {
        title: "batch: two calls and a notification",
        path: "/rpc",
        timeout_ms: None,
        payload: json!([
            call(&json!(1), "tools/call", &tool("echo", "Bergen")),
            {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"_agentId": "echo", "progressToken": "t", "progress": 1}},
            call(&json!("1"), "tools/call", &tool("echo", "Tromsø")),
        ]),
        agents: &["echo", "echo", "echo"],
        expect: |answer| {
            let ids = answer.only(|batch| {
                let ids: Vec<&Value> = batch
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|item| &item["id"])
                    .collect();
                ids == [&json!(1), &json!("1")]
            });
            answer.status == 200 && ids
        },
        wanted: "status 200 and two results in request order with the ids 1 and \"1\"",
    }
}

fn notification() -> Step {
    Step {
        title: "notification",
        path: "/rpc",
        timeout_ms: None,
        payload: json!({"jsonrpc": "2.0", "method": "notifications/initialized", "params": {"_agentId": "echo"}}),
        agents: &["echo"],
        expect: |answer| answer.status == 202 && answer.parts.is_empty(),
        wanted: "status 202 and nothing else",
    }
}

fn unknown_agent() -> Step {
    Step {
        title: "unknown agent",
        path: "/rpc",
        timeout_ms: None,
        payload: call(&json!("req-2"), "tools/call", &tool("nobody", "Oslo")),
        agents: &[],
        expect: |answer| {
            answer.only(|part| part["id"] == "req-2" && part["error"]["code"] == -32_602)
        },
        wanted: "the error -32602 with the id \"req-2\"",
    }
}

fn overdue() -> Step {
    Step {
        title: "deadline passed; the agent gets a cancel",
        path: "/rpc",
        timeout_ms: Some(150),
        payload: call(&json!("req-3"), "tools/call", &tool("slow", "Oslo")),
        agents: &["slow", "slow"],
        expect: |answer| {
            answer.only(|part| part["id"] == "req-3" && part["error"]["code"] == -32_603)
        },
        wanted: "the error -32603 with the id \"req-3\"",
    }
}

// === impl Step ===

impl Step {
    /// Makes the call.
    pub(super) async fn post(&self, door: SocketAddr) -> anyhow::Result<Answer> {
        let client = reqwest::Client::builder()
            .timeout(PATIENCE)
            .no_proxy()
            .build()?;
        let mut request = client
            .post(format!("http://{door}{}", self.path))
            .header("content-type", "application/json")
            .body(self.payload.to_string());
        if let Some(timeout) = self.timeout_ms {
            request = request.header("x-a2a-timeout", timeout.to_string());
        }
        let started = Instant::now();
        let response = request.send().await?;
        let status = response.status().as_u16();
        let text = response.text().await?;
        let elapsed = started.elapsed();
        let documents: Vec<&str> = if text.starts_with("data:") || text.starts_with(':') {
            text.lines()
                .filter_map(|line| line.strip_prefix("data:"))
                .collect()
        } else {
            Some(text.as_str())
                .filter(|text| !text.is_empty())
                .into_iter()
                .collect()
        };
        let parts = documents
            .into_iter()
            .map(serde_json::from_str)
            .collect::<Result<_, _>>()?;
        Ok(Answer {
            status,
            parts,
            elapsed,
        })
    }
}

// === impl Answer ===

impl Answer {
    fn only(&self, check: impl FnOnce(&Value) -> bool) -> bool {
        matches!(self.parts.as_slice(), [part] if check(part))
    }
}
