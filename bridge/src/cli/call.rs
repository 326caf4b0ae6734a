//! `a2abus call`: one call through the bus from the shell.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use a2abus_plugin::{Hint, Limits, Text, decode};
use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use clap::Args;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::Bridge;
use crate::calls::Request;
use crate::cli::output::Output;
use crate::cli::{load, telemetry};
use crate::config::{LogFilter, Written};

/// Arguments of `a2abus call`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  a2abus call weather tools/call '{\"name\":\"get\",\"arguments\":{\"city\":\"Oslo\"}}'
  a2abus call planner message/stream \"$(cat message.json)\" --timeout 2m
  a2abus call weather notifications/initialized --notify

The routes, transports and limits are those of the configuration; its bindings and doors are not started. Every part of
the answer is printed on a line of its own as it comes. Exit status 1 when the answer is an error or does not come.")]
pub(crate) struct CallArgs {
    /// The agent.
    agent: String,
    /// The JSON-RPC method.
    method: String,
    /// The parameters, a JSON object or array.
    params: Option<String>,
    /// The configuration file.
    #[arg(
        short,
        long,
        env = "A2ABUS_CONFIG",
        value_name = "FILE",
        default_value = "a2abus.yaml"
    )]
    config: PathBuf,
    /// How long to wait for the answer, or for the next part of it.
    #[arg(short, long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    /// Publish a notification and expect no answer.
    #[arg(long)]
    notify: bool,
}

/// How long the bus may take to be reached.
const CONNECT: Duration = Duration::from_secs(30);

/// Makes the call.
///
/// # Errors
/// When the request is wrong, the bus is away, or the answer is an error.
pub(crate) async fn run(args: CallArgs) -> anyhow::Result<()> {
    ensure!(
        a2abus_plugin::protocol::is_target(&args.agent),
        "{:?} is not an agent's name",
        args.agent
    );
    let mut config = load(&args.config)?;
    config.telemetry.log = Written(LogFilter::warn());
    telemetry::start(&config.telemetry)?;
    config.bindings.clear();
    config.http.enabled = false;
    config.admin.enabled = false;
    let bridge = Bridge::build(config).await?.calls_only();
    let (calls, readiness) = (
        std::sync::Arc::clone(bridge.calls()),
        std::sync::Arc::clone(bridge.readiness()),
    );
    let stop = CancellationToken::new();
    let running = tokio::spawn(bridge.run(stop.clone()));
    let result = match until_ready(&readiness).await {
        Ok(()) => make(&calls, &args).await,
        Err(error) => Err(error),
    };
    stop.cancel();
    running.await?;
    result
}

async fn until_ready(readiness: &crate::http::Readiness) -> anyhow::Result<()> {
    let deadline = Instant::now() + CONNECT;
    let mut poll = tokio::time::interval(Duration::from_millis(10));
    while !readiness.is_ready() {
        if Instant::now() > deadline {
            let unmet = readiness
                .report()
                .not_ready
                .into_iter()
                .map(|unmet| format!("{}: {}", unmet.name, unmet.cause));
            bail!("not ready: {}", unmet.collect::<Vec<_>>().join("; "));
        }
        poll.tick().await;
    }
    Ok(())
}

async fn make(calls: &std::sync::Arc<crate::calls::Calls>, args: &CallArgs) -> anyhow::Result<()> {
    let request = request(args)?;
    if args.notify {
        return Ok(calls.notify(request).await?);
    }
    let mut answer = calls.call(request).await?;
    let mut failed = false;
    while let Some(part) = answer.next().await {
        let part = part?;
        Output::new().line(&part.body)?;
        let value: Value = serde_json::from_slice(&part.body)?;
        failed |= value.get("error").is_some();
    }
    ensure!(!failed, "the agent answered with an error");
    Ok(())
}

fn request(args: &CallArgs) -> anyhow::Result<Request> {
    let mut payload = serde_json::json!({"jsonrpc": "2.0", "method": args.method});
    if let Some(params) = &args.params {
        let params: Value = serde_json::from_str(params).context("the parameters are not JSON")?;
        payload
            .as_object_mut()
            .context("an object")?
            .insert("params".to_owned(), params);
    }
    if !args.notify {
        payload
            .as_object_mut()
            .context("an object")?
            .insert("id".to_owned(), Value::from(1));
    }
    let units = decode(
        &Bytes::from(payload.to_string()),
        &Hint::default(),
        &Limits::default(),
    );
    let unit = units.into_iter().next().context("one request")?;
    let unit = unit.map_err(|refused| {
        anyhow::anyhow!(
            "the request is refused: {} {}",
            refused.error,
            refused.error.pointer()
        )
    })?;
    Ok(Request {
        unit,
        target: Some(Text::from(args.agent.as_str())),
        timeout: args.timeout,
        caller: Text::from_static("call"),
    })
}
