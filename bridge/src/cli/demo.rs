//! `a2abus demo`: shows every step of one call of each kind inside one process.

mod a2a;
mod agents;
mod everything;
mod show;
mod step;
pub(super) mod sums;
mod tck;
mod workflow;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use a2abus_transports::Consumer;
use a2abus_transports::memory::{Memory, MemoryConfig};
use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::agents::ReceivedEvent;
use self::show::{OutputStyle, Report};
use self::step::{Step, TIMEOUT};
use crate::Bridge;
use crate::config::{Config, Name};
use crate::readiness::Readiness;

/// Arguments of `a2abus demo`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  a2abus demo                 # every kind of call and a workflow, step by step
  a2abus demo --json          # the same as JSON lines; the last one is the result
  a2abus demo --serve         # stays up, for curl
  # The agent that the A2A compatibility kits test:
  a2abus demo --agents tck --serve --listen 127.0.0.1:8080
  # The MCP server that the conformance kit of MCP tests, at http://127.0.0.1:8080/mcp/agents/everything:
  a2abus demo --agents everything --serve --listen 127.0.0.1:8080")]
pub(crate) struct DemoArgs {
    /// Print JSON lines; the last one is `{"ok":true,"calls":N,"elapsed_ms":M}`.
    #[arg(long)]
    json: bool,
    /// Keep running after the calls, until Ctrl-C. With `--agents tck` or `everything`, no calls are made.
    #[arg(long)]
    serve: bool,
    /// The agents to start.
    #[arg(long, value_enum, default_value_t = Agents::Samples, requires_ifs([("tck", "serve"), ("everything", "serve")]))]
    agents: Agents,
    /// Address of the HTTP listener; port 0 picks a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Agents {
    /// Three small agents for the calls of the demonstration.
    Samples,
    /// The agent that the compatibility kits of A2A expect: it reacts to the prefix of `messageId`.
    Tck,
    /// The MCP server that the conformance kit of MCP expects.
    Everything,
}

/// A bridge that runs in this process, and its bus.
struct DemoBridge {
    memory: Memory,
    door: SocketAddr,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

/// Runs the demonstration.
///
/// # Errors
/// When a step failed.
pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<()> {
    match args.agents {
        Agents::Samples => samples(args).await,
        Agents::Tck => {
            let config = kit_config(args.listen);
            kit(args, tck::NAME, config, tck::run).await
        }
        Agents::Everything => {
            let config = everything_config(args.listen);
            kit(args, everything::NAME, config, everything::run).await
        }
    }
}

async fn samples(args: DemoArgs) -> anyhow::Result<()> {
    let started = Instant::now();
    let stage = DemoBridge::start(&sample_config(args.listen)?).await?;
    let (seen, mut events) = mpsc::channel(256);
    let agents = agents::start(&stage.memory, &seen, &stage.stop).await?;

    let show = OutputStyle::new(args.json);
    show.opening(stage.door)?;
    let (calls, mut failed) = calls(stage.door, &mut events, show).await?;
    let workflow = workflow::take().await?;
    failed += usize::from(workflow.problem.is_some());
    show.workflow(&workflow)?;
    show.closing(failed, calls, started.elapsed())?;
    // Nobody reads the reports of the agents from here on. An agent that sent one would wait forever.
    drop(events);
    if args.serve && failed == 0 {
        show.curl(stage.door)?;
        tokio::signal::ctrl_c().await?;
    }
    stage.end().await?;
    agents.join_all().await;
    ensure!(
        failed == 0,
        "{failed} of {calls} calls and 1 workflow failed"
    );
    Ok(())
}

/// Makes and shows the calls. Returns how many there were, and how many failed.
async fn calls(
    door: SocketAddr,
    events: &mut mpsc::Receiver<ReceivedEvent>,
    show: OutputStyle,
) -> anyhow::Result<(usize, usize)> {
    let (mut calls, mut failed) = (0, 0);
    let mut shown = |report: &Report| {
        calls += 1;
        failed += usize::from(report.problem.is_some());
        show.step(report)
    };
    for step in step::steps().into_iter().chain([a2a::card()]) {
        shown(&take(&step, door, events).await?)?;
    }
    let streamed = take(&a2a::streamed(), door, events).await?;
    shown(&streamed)?;
    let again = a2a::resubscribed(&streamed.answer);
    shown(&take(&again, door, events).await?)?;
    for step in sums::steps() {
        shown(&take(&step, door, events).await?)?;
    }
    Ok((calls, failed))
}

/// Serves the agent of a kit until Ctrl-C.
async fn kit<R>(
    args: DemoArgs,
    name: &str,
    config: String,
    run: impl FnOnce(Memory, Consumer, CancellationToken) -> R,
) -> anyhow::Result<()>
where
    R: Future<Output = ()> + Send + 'static,
{
    let stage = DemoBridge::start(&config).await?;
    let consumer = agents::subscribe(&stage.memory, name).await?;
    let agent = tokio::spawn(run(stage.memory.clone(), consumer, stage.stop.clone()));
    OutputStyle::new(args.json).kit(stage.door, name)?;
    tokio::signal::ctrl_c().await?;
    stage.end().await?;
    agent.await?;
    Ok(())
}

// === impl DemoBridge ===

impl DemoBridge {
    /// Starts the bridge, and waits until it is ready.
    async fn start(config: &str) -> anyhow::Result<Self> {
        let config = Config::read(
            "the demonstration's own configuration",
            config,
            std::iter::empty(),
        )
        .map_err(|errors| anyhow::anyhow!("{errors}"))?;
        let memory = Memory::new(MemoryConfig::default());
        let name: Name = config
            .transports
            .keys()
            .next()
            .context("the demonstration has one transport")?
            .clone();
        let transports = BTreeMap::from([(name, memory.clone().into())]);
        let bridge = Bridge::build_on(config, transports).await?;
        let door = bridge.door_address().context("the HTTP listener is open")?;
        let readiness = std::sync::Arc::clone(bridge.readiness());
        let stop = CancellationToken::new();
        let running = tokio::spawn(bridge.run(stop.clone()));
        until_ready(&readiness).await?;
        Ok(Self {
            memory,
            door,
            stop,
            running,
        })
    }

    async fn end(self) -> anyhow::Result<()> {
        self.stop.cancel();
        self.running.await?;
        Ok(())
    }
}

/// A bridge on the memory transport with these sections.
fn config(instance: &str, listen: SocketAddr, sections: &str) -> String {
    format!(
        "
instance: {instance}
transports:
  memory: {{ type: memory }}
http: {{ listen: '{listen}', drain_grace: 2s }}
admin: {{ enabled: false }}
{sections}"
    )
}

fn sample_config(listen: SocketAddr) -> anyhow::Result<String> {
    // Without /proc, the name it was started by.
    let program = std::env::current_exe()
        .or_else(|error| std::env::args_os().next().map(Into::into).ok_or(error))
        .context("the path of this program")?;
    let server = json!([program, sums::COMMAND]);
    let name = sums::NAME;
    let sections = format!(
        "
routes:
  - name: agents
    when: {{ targetagent: [echo, slow, stream] }}
    to: [{{ transport: memory, topic: 'agents.{{targetagent}}' }}]
agents:
  stream: {{ description: Plans a trip., skills: [{{ id: plan, description: A plan for three days. }}] }}
  {name}: {{ description: Adds numbers., to: {{ transport: memory, topic: agents.{name} }}, attach: {{ command: {server} }} }}
"
    );
    Ok(config("demo", listen, &sections))
}

fn kit_config(listen: SocketAddr) -> String {
    let name = tck::NAME;
    let sections = format!(
        "
agents:
  {name}:
    description: Acts on how a messageId begins, as the A2A compatibility kits expect.
    to: {{ transport: memory, topic: agents.{name} }}
    input_modes: [text/plain, application/json, application/octet-stream]
    output_modes: [text/plain, application/json]
    skills: [{{ id: kit, name: Compatibility kit, description: Does what a messageId asks for., tags: [test] }}]
a2a:
  max_text_part: 1MiB
  # A kit leaves its streams open.
  max_requests_per_client: 1000
  max_tasks_per_context: 1000
  push_notifications: {{ enabled: true, public_urls: false, allowed_urls: ['https://example.com'], loopback: true, give_up_after: 0s }}
"
    );
    config(name, listen, &sections)
}

fn everything_config(listen: SocketAddr) -> String {
    let name = everything::NAME;
    let sections = format!(
        "
agents:
  {name}:
    description: An MCP server with all that the conformance kit of MCP asks for.
    to: {{ transport: memory, topic: agents.{name} }}
"
    );
    config(name, listen, &sections)
}

async fn until_ready(readiness: &Readiness) -> anyhow::Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    while !readiness.is_ready() {
        ensure!(Instant::now() < deadline, "the bridge did not become ready");
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Makes one call and collects the events that the agents received.
async fn take(
    step: &Step,
    door: SocketAddr,
    events: &mut mpsc::Receiver<ReceivedEvent>,
) -> anyhow::Result<Report> {
    let answer = step.made(door).await?;
    let mut seen = Vec::new();
    while seen.len() < step.agents.len() {
        match tokio::time::timeout(TIMEOUT, events.recv()).await {
            Ok(Some(event)) => seen.push(event),
            Ok(None) | Err(_) => break,
        }
    }
    let names: Vec<&str> = seen.iter().map(|event| event.agent).collect();
    let problem = if !(step.expect)(&answer) {
        Some(format!("expected {}", step.expected))
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
        method: step.method(),
        path: step.path.clone(),
        headers: step.headers.clone(),
        payload: step.payload.as_ref().map(ToString::to_string),
        seen,
        answer,
        problem,
    })
}
