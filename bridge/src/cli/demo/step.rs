//! The calls of the demonstration, and the expected results.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long any step may take before the demonstration gives up.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// The headers of a request.
pub(super) type Headers = Vec<(&'static str, String)>;

/// One call to make, and the expected result.
pub(super) struct Step {
    pub(super) title: &'static str,
    pub(super) path: String,
    pub(super) headers: Headers,
    /// The body of a POST; without it the request is a GET.
    pub(super) payload: Option<Value>,
    /// How many events of a stream are read before the caller disconnects; all of them by default.
    pub(super) leaves_after: Option<usize>,
    /// The agents that must receive an event of it.
    pub(super) agents: &'static [&'static str],
    pub(super) expect: fn(&CallResponse) -> bool,
    /// A description of the expected answer.
    pub(super) expected: &'static str,
}

/// The HTTP response.
#[derive(Debug)]
pub(crate) struct CallResponse {
    pub(super) status: u16,
    /// The JSON documents of the answer: one, or one per event of a stream.
    pub(super) parts: Vec<Value>,
    /// The id of the last event of a stream.
    pub(super) last_event: Option<String>,
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

pub(super) fn call(id: &Value, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

fn tool(agent: &str, city: &str) -> Value {
    json!({"_agentId": agent, "name": "weather", "arguments": {"city": city}})
}

fn unary() -> Step {
    Step {
        title: "unary call",
        path: "/rpc".into(),
        headers: Vec::new(),
        payload: Some(call(&json!("req-1"), "tools/call", &tool("echo", "Oslo"))),
        leaves_after: None,
        agents: &["echo"],
        expect: |answer| {
            answer.status == 200
                && answer.only(|part| part["id"] == "req-1" && part["result"].is_object())
        },
        expected: "status 200 and one result with the id \"req-1\"",
    }
}

fn streamed() -> Step {
    let message = json!({"message": {"role": "user", "kind": "message", "messageId": "m-1",
        "parts": [{"kind": "text", "text": "Plan a trip to Oslo"}]}});
    Step {
        title: "streamed call, the agent named by the path",
        path: "/rpc/stream".into(),
        headers: Vec::new(),
        payload: Some(call(&json!(7), "message/stream", &message)),
        leaves_after: None,
        agents: &["stream"],
        expect: |answer| {
            let own = answer.parts.iter().all(|part| part["id"] == 7);
            let last = answer
                .parts
                .last()
                .is_some_and(|part| part["result"]["final"] == true);
            answer.status == 200 && answer.parts.len() == 4 && own && last
        },
        expected: "status 200 and four parts with the id 7, the last one final",
    }
}

fn batch() -> Step {
    Step {
        title: "batch: two calls and a notification",
        path: "/rpc".into(),
        headers: Vec::new(),
        leaves_after: None,
        payload: Some(json!([
            call(&json!(1), "tools/call", &tool("echo", "Bergen")),
            {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"_agentId": "echo", "progressToken": "t", "progress": 1}},
            call(&json!("1"), "tools/call", &tool("echo", "Tromsø")),
        ])),
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
        expected: "status 200 and two results in request order with the ids 1 and \"1\"",
    }
}

fn notification() -> Step {
    Step {
        title: "notification",
        path: "/rpc".into(),
        headers: Vec::new(),
        payload: Some(
            json!({"jsonrpc": "2.0", "method": "notifications/initialized", "params": {"_agentId": "echo"}}),
        ),
        leaves_after: None,
        agents: &["echo"],
        expect: |answer| answer.status == 202 && answer.parts.is_empty(),
        expected: "status 202 and nothing else",
    }
}

fn unknown_agent() -> Step {
    Step {
        title: "unknown agent",
        path: "/rpc".into(),
        headers: Vec::new(),
        payload: Some(call(&json!("req-2"), "tools/call", &tool("nobody", "Oslo"))),
        leaves_after: None,
        agents: &[],
        expect: |answer| {
            answer.only(|part| part["id"] == "req-2" && part["error"]["code"] == -32_602)
        },
        expected: "the error -32602 with the id \"req-2\"",
    }
}

fn overdue() -> Step {
    Step {
        title: "deadline passed; the agent gets a cancel",
        path: "/rpc".into(),
        headers: vec![("x-a2a-timeout", "150".into())],
        payload: Some(call(&json!("req-3"), "tools/call", &tool("slow", "Oslo"))),
        leaves_after: None,
        agents: &["slow", "slow"],
        expect: |answer| {
            answer.only(|part| part["id"] == "req-3" && part["error"]["code"] == -32_603)
        },
        expected: "the error -32603 with the id \"req-3\"",
    }
}

// === impl Step ===

impl Step {
    pub(super) fn method(&self) -> &'static str {
        if self.payload.is_some() {
            "POST"
        } else {
            "GET"
        }
    }

    /// Makes the call.
    pub(super) async fn made(&self, door: SocketAddr) -> anyhow::Result<CallResponse> {
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .no_proxy()
            .build()?;
        let url = format!("http://{door}{}", self.path);
        let mut request = match &self.payload {
            None => client.get(url),
            Some(payload) => client
                .post(url)
                .header("content-type", "application/json")
                .body(payload.to_string()),
        };
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let started = Instant::now();
        let mut response = request.send().await?;
        let status = response.status().as_u16();
        let most = self.leaves_after.unwrap_or(usize::MAX);
        let mut body = Vec::new();
        while events(&body).count() < most {
            let Some(chunk) = response.chunk().await? else {
                break;
            };
            body.extend_from_slice(&chunk);
        }
        let text = String::from_utf8(body)?;
        let is_stream = ["data:", "id:", ":"]
            .iter()
            .any(|start| text.starts_with(start));
        let field = |name: &'static str| {
            let events = events(text.as_bytes()).take(most);
            let lines = events.flat_map(|event| event.split('\n'));
            lines.filter_map(move |line| Some(line.strip_prefix(name)?.trim_start()))
        };
        let documents: Vec<&str> = if is_stream {
            field("data:").collect()
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
        Ok(CallResponse {
            status,
            parts,
            last_event: field("id:").last().map(str::to_owned),
            elapsed: started.elapsed(),
        })
    }
}

/// The complete events of a stream.
fn events(body: &[u8]) -> impl Iterator<Item = &str> {
    let text = std::str::from_utf8(body).unwrap_or_default();
    let whole = text.rfind("\n\n").map_or("", |end| &text[..end]);
    whole.split("\n\n").filter(|event| !event.is_empty())
}

// === impl CallResponse ===

impl CallResponse {
    /// Whether no agent was found.
    pub(super) fn is_unrouted(&self) -> bool {
        self.only(|part| !part["error"].is_null())
    }

    pub(super) fn only(&self, check: impl FnOnce(&Value) -> bool) -> bool {
        matches!(self.parts.as_slice(), [part] if check(part))
    }
}
