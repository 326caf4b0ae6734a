//! `a2abus demo`: the whole path inside one process, one call of each kind, every step shown.

mod agents;
mod show;
mod workflow;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use a2abus_transports::memory::{Memory, MemoryConfig};
use anyhow::{Context as _, ensure};
use clap::Args;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::agents::Seen;
use self::show::{Report, Show};
use crate::Bridge;
use crate::config::{Config, Name};

/// Arguments of `a2abus demo`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  a2abus demo                 every kind of call and a workflow, step by step
  a2abus demo --json          the same as JSON lines; the last one is the verdict
  a2abus demo --serve         stay up, for curl")]
pub(crate) struct DemoArgs {
    /// Print JSON lines; the last one is `{"ok":true,"calls":N,"elapsed_ms":M}`.
    #[arg(long)]
    json: bool,
    /// Stay up after the calls, until Ctrl-C.
    #[arg(long)]
    serve: bool,
    /// Address of the front door; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

/// How long any step may take before the demonstration gives up.
const PATIENCE: Duration = Duration::from_secs(30);

/// One call to make and what must come of it.
struct Step {
    title: &'static str,
    path: &'static str,
    timeout_ms: Option<u64>,
    payload: Value,
    /// The agents that must see an event of it.
    agents: &'static [&'static str],
    expect: fn(&Answer) -> bool,
    /// What `expect` wants, in words.
    wanted: &'static str,
}

/// What came back over HTTP.
#[derive(Debug)]
pub(crate) struct Answer {
    status: u16,
    /// The JSON documents of the answer: one, or one per event of a stream.
    parts: Vec<Value>,
    elapsed: Duration,
}

/// Runs the demonstration.
///
/// # Errors
/// When anything was not as it should be.
pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<()> {
    let started = Instant::now();
    let memory = Memory::new(MemoryConfig::default());
    let config = config(args.listen)?;
    let name: Name = config
        .transports
        .keys()
        .next()
        .context("the demonstration has one transport")?
        .clone();
    let transports = BTreeMap::from([(name, memory.clone().into())]);
    let bridge = Bridge::build_on(config, transports).await?;
    let door = bridge.door_address().context("the front door is open")?;
    let readiness = std::sync::Arc::clone(bridge.readiness());
    let stop = CancellationToken::new();
    let running = tokio::spawn(bridge.run(stop.clone()));
    let (seen, mut events) = mpsc::channel(256);
    let agents = agents::start(&memory, &seen, &stop).await?;
    until_ready(&readiness).await?;

    let show = Show::new(args.json);
    show.opening(door)?;
    let mut failed = 0;
    let steps = steps();
    let calls = steps.len();
    for step in steps {
        let report = take(&step, door, &mut events).await?;
        failed += usize::from(report.problem.is_some());
        show.step(&report)?;
    }
    let workflow = workflow::take().await?;
    failed += usize::from(workflow.problem.is_some());
    show.workflow(&workflow)?;
    show.closing(failed, calls, started.elapsed())?;
    // From here on nobody looks at what the agents see, and an agent that reported it would wait for ever.
    drop(events);
    if args.serve && failed == 0 {
        show.curl(door)?;
        tokio::signal::ctrl_c().await?;
    }
    stop.cancel();
    running.await?;
    agents.join_all().await;
    ensure!(
        failed == 0,
        "{failed} of {calls} calls and 1 workflow failed"
    );
    Ok(())
}

fn config(listen: SocketAddr) -> anyhow::Result<Config> {
    let text = format!(
        "
instance: demo
transports:
  memory: {{ type: memory }}
routes:
  - name: agents
    when: {{ targetagent: [echo, slow, stream] }}
    to: [{{ transport: memory, topic: 'agents.{{targetagent}}' }}]
http: {{ listen: '{listen}', drain_grace: 2s }}
admin: {{ enabled: false }}
"
    );
    Config::read(
        "the demonstration's own configuration",
        &text,
        std::iter::empty(),
    )
    .map_err(|errors| anyhow::anyhow!("{errors}"))
}

async fn until_ready(readiness: &crate::http::Readiness) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !readiness.is_ready() {
        ensure!(Instant::now() < deadline, "the bridge did not become ready");
        tokio::task::yield_now().await;
    }
    Ok(())
}

fn call(id: &Value, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

fn steps() -> Vec<Step> {
    let tool = |agent: &str, city: &str| json!({"_agentId": agent, "name": "weather", "arguments": {"city": city}});
    let message = json!({"message": {"role": "user", "kind": "message", "messageId": "m-1",
        "parts": [{"kind": "text", "text": "Plan a trip to Oslo"}]}});
    vec![
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
        },
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
        },
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
        },
        Step {
            title: "notification",
            path: "/rpc",
            timeout_ms: None,
            payload: json!({"jsonrpc": "2.0", "method": "notifications/initialized", "params": {"_agentId": "echo"}}),
            agents: &["echo"],
            expect: |answer| answer.status == 202 && answer.parts.is_empty(),
            wanted: "status 202 and nothing else",
        },
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
        },
        Step {
            title: "deadline passed; the agent is told to stop",
            path: "/rpc",
            timeout_ms: Some(150),
            payload: call(&json!("req-3"), "tools/call", &tool("slow", "Oslo")),
            agents: &["slow", "slow"],
            expect: |answer| {
                answer.only(|part| part["id"] == "req-3" && part["error"]["code"] == -32_603)
            },
            wanted: "the error -32603 with the id \"req-3\"",
        },
    ]
}

// === impl Answer ===

impl Answer {
    fn only(&self, check: impl FnOnce(&Value) -> bool) -> bool {
        matches!(self.parts.as_slice(), [part] if check(part))
    }
}

/// Makes one call and gathers what the agents saw of it.
async fn take(
    step: &Step,
    door: SocketAddr,
    events: &mut mpsc::Receiver<Seen>,
) -> anyhow::Result<Report> {
    let answer = post(step, door).await?;
    let mut seen = Vec::new();
    while seen.len() < step.agents.len() {
        match tokio::time::timeout(PATIENCE, events.recv()).await {
            Ok(Some(event)) => seen.push(event),
            Ok(None) | Err(_) => break,
        }
    }
    let names: Vec<&str> = seen.iter().map(|event| event.agent).collect();
    let problem = if !(step.expect)(&answer) {
        Some(format!("expected {}", step.wanted))
    } else if names != step.agents {
        Some(format!(
            "expected events at the agents {:?}, not {names:?}",
            step.agents
        ))
    } else {
        None
    };
    Ok(Report {
        title: step.title,
        path: step.path,
        timeout_ms: step.timeout_ms,
        payload: step.payload.to_string(),
        seen,
        answer,
        problem,
    })
}

async fn post(step: &Step, door: SocketAddr) -> anyhow::Result<Answer> {
    let client = reqwest::Client::builder()
        .timeout(PATIENCE)
        .no_proxy()
        .build()?;
    let mut request = client
        .post(format!("http://{door}{}", step.path))
        .header("content-type", "application/json")
        .body(step.payload.to_string());
    if let Some(timeout) = step.timeout_ms {
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
