//! `a2abus demo`: the whole path inside one process, one call of each kind, every step shown.

mod agents;
mod show;
mod step;
mod workflow;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use a2abus_transports::memory::{Memory, MemoryConfig};
use anyhow::{Context as _, ensure};
use clap::Args;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::agents::Seen;
use self::show::{Report, Show};
use self::step::{PATIENCE, Step};
use crate::Bridge;
use crate::config::{Config, Name};
use crate::readiness::Readiness;

/// Arguments of `a2abus demo`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  a2abus demo                 every kind of call and a workflow, step by step
  a2abus demo --json          the same as JSON lines; the last one is the result
  a2abus demo --serve         stay up, for curl")]
pub(crate) struct DemoArgs {
    /// Print JSON lines; the last one is `{"ok":true,"calls":N,"elapsed_ms":M}`.
    #[arg(long)]
    json: bool,
    /// Stay up after the calls, until Ctrl-C.
    #[arg(long)]
    serve: bool,
    /// Address of the HTTP listener; port 0 picks a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

/// Runs the demonstration.
///
/// # Errors
/// When a step failed.
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
    let door = bridge.door_address().context("the HTTP listener is open")?;
    let readiness = std::sync::Arc::clone(bridge.readiness());
    let stop = CancellationToken::new();
    let running = tokio::spawn(bridge.run(stop.clone()));
    let (seen, mut events) = mpsc::channel(256);
    let agents = agents::start(&memory, &seen, &stop).await?;
    until_ready(&readiness).await?;

    let show = Show::new(args.json);
    show.opening(door)?;
    let mut failed = 0;
    let steps = step::steps();
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
    // From here on nobody reads what the agents report; an agent that reported it would wait forever.
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

async fn until_ready(readiness: &Readiness) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !readiness.is_ready() {
        ensure!(Instant::now() < deadline, "the bridge did not become ready");
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// Makes one call and gathers what the agents saw of it.
async fn take(
    step: &Step,
    door: SocketAddr,
    events: &mut mpsc::Receiver<Seen>,
) -> anyhow::Result<Report> {
    let answer = step.post(door).await?;
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
