//! `a2abus call`: one call through the bus from the shell.

use std::sync::Arc;
use std::time::{Duration, Instant};

use a2abus_plugin::{Hint, Limits, Text, Unit, decode};
use anyhow::{bail, ensure};
use bytes::Bytes;
use clap::Args;
use serde_json::{Map, Value};
use tokio::time::timeout_at;
use tokio_util::sync::CancellationToken;

use crate::Bridge;
use crate::calls::failure::Failure;
use crate::calls::{CallError, Calls, Request};
use crate::cli::command::{ConfigFile, Misuse, duration, load};
use crate::cli::output::Output;
use crate::cli::telemetry;
use crate::config::{AsText, Config, LogFilter, TransportConfig, TransportType};
use crate::lines::on_one_line;
use crate::readiness::Readiness;

/// Arguments of `a2abus call`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  a2abus call weather tools/call '{\"name\":\"get\",\"arguments\":{\"city\":\"Oslo\"}}'
  a2abus call planner message/stream \"$(cat message.json)\" --timeout 2m
  a2abus call weather notifications/initialized --notify

Uses the routes, transports and limits of the configuration; its bindings and HTTP listeners are not started. No bridge \
has to run, except that of an attached agent; a bridge may run with the same file. Agents on a transport of type \
`memory` cannot be called: it exists only inside the process of the bridge. With `state.log: embedded`, whose \
files belong to that bridge, announced agents are not known here. Each part of the answer is printed on its own line as \
it arrives.

Exit status 1 if the answer is an error or does not arrive in time, 2 if an argument is wrong.")]
pub(crate) struct CallArgs {
    /// The agent.
    agent: String,
    /// The JSON-RPC method.
    method: String,
    /// The parameters, a JSON object or array.
    params: Option<String>,
    #[command(flatten)]
    config: ConfigFile,
    /// The time limit, from connecting to the last part of the answer; at most calls.max_timeout. Default: 30 s to
    /// connect, and the timeouts of the section `calls` for the answer.
    #[arg(short, long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
    /// Publish a notification and expect no answer.
    #[arg(long)]
    notify: bool,
}

/// How long connecting may take without --timeout.
const CONNECT: Duration = Duration::from_secs(30);

/// The cause if the deadline passes before any part of the bridge has reported what it waits for.
const STARTING: &str = "still starting";

/// Why a call over memory alone is not made.
const ELSEWHERE: &str = "the agents of this configuration are on a transport of type memory, which exists only inside the process of the bridge: call them at its HTTP listener (POST /rpc/{agent}), or use kafka or nats";

/// Makes the call.
///
/// # Errors
/// [`Misuse`] when an argument is wrong; otherwise when the bus is unavailable, or the answer is an error.
pub(crate) async fn run(args: CallArgs) -> anyhow::Result<()> {
    let began = Instant::now();
    let message = message(&args)?;
    let mut config = load(&args.config.path)?;
    check_timeout(&args, config.calls.max_timeout.0)?;
    let payload = decoded(&message, &Limits::from(&config.limits))?;
    config.telemetry.log = AsText(LogFilter::warn());
    let _log = telemetry::start(&config.telemetry)?;
    if is_inside_process(&config) {
        ensure!(args.notify, "{ELSEWHERE}");
        tracing::warn!("nobody gets the notification: {ELSEWHERE}");
    }
    config.keep_calls_only();
    config.http.enabled = false;
    config.a2a.push_notifications.enabled = false;
    let limit = args.timeout.unwrap_or(CONNECT);
    let deadline = began + limit;
    let Ok(bridge) = timeout_at(deadline.into(), Bridge::build(config)).await else {
        bail!("not connected within {limit:?}: {STARTING}");
    };
    let bridge = bridge?.calls_only();
    let (calls, readiness) = (Arc::clone(bridge.calls()), Arc::clone(bridge.readiness()));
    let stop = CancellationToken::new();
    let running = tokio::spawn(bridge.run(stop.clone()));
    let result = match timeout_at(deadline.into(), until_ready(&readiness)).await {
        Ok(()) => make(&calls, &args, payload, began).await,
        Err(_) => Err(not_ready(&readiness, limit)),
    };
    stop.cancel();
    running.await?;
    result
}

/// Whether no message of this process can reach another one.
fn is_inside_process(config: &Config) -> bool {
    let mut types = config
        .transports
        .values()
        .map(TransportConfig::transport_type);
    !config.transports.is_empty() && types.all(|it| it == TransportType::Memory)
}

fn check_timeout(args: &CallArgs, longest: Duration) -> Result<(), Misuse> {
    match args.timeout {
        Some(Duration::ZERO) => Err(Misuse("--timeout must be longer than 0".to_owned())),
        Some(timeout) if timeout > longest => Err(Misuse(format!(
            "--timeout is longer than calls.max_timeout, {}",
            humantime::format_duration(longest)
        ))),
        _ => Ok(()),
    }
}

pub(super) async fn until_ready(readiness: &Readiness) {
    let mut poll = tokio::time::interval(Duration::from_millis(10));
    while !readiness.is_ready() {
        poll.tick().await;
    }
}

pub(super) fn not_ready(readiness: &Readiness, limit: Duration) -> anyhow::Error {
    let unmet = readiness.report().not_ready.into_iter();
    let unmet = unmet.map(|unmet| format!("{}: {}", unmet.name, unmet.cause));
    let unmet: Vec<_> = unmet.collect();
    let cause = if unmet.is_empty() {
        STARTING.to_owned()
    } else {
        unmet.join("; ")
    };
    anyhow::anyhow!("not connected within {limit:?}: {cause}")
}

async fn make(
    calls: &Arc<Calls>,
    args: &CallArgs,
    payload: Unit,
    began: Instant,
) -> anyhow::Result<()> {
    let request = Request {
        unit: payload,
        data: None,
        call: None,
        target: Some(Text::from(args.agent.as_str())),
        timeout: args.timeout,
        bounds_first_part: false,
        accepts_parts: None,
        // The caller set the time for everything, connecting included.
        arrived: args.timeout.map_or_else(Instant::now, |_| began),
        caller: Text::from_static("call"),
        key: None,
        headers: Vec::new(),
    };
    if args.notify {
        return Ok(calls.notify(request).await?);
    }
    let mut answer = calls.call(request).await.map_err(told)?;
    let mut failed = false;
    while let Some(part) = answer.next().await {
        let part = part.map_err(told)?;
        Output::new().line(on_one_line(&part.body).trim_ascii_end())?;
        let value: Value = serde_json::from_slice(&part.body)?;
        failed |= value.get("error").is_some_and(|error| !error.is_null());
    }
    ensure!(!failed, "the agent answered with an error");
    Ok(())
}

/// The error as this command prints it. Callers over HTTP do not get every cause, but this one with its cure.
fn told(error: CallError) -> anyhow::Error {
    if matches!(error, CallError::NoSubscriber(_)) {
        return anyhow::anyhow!("{}", Failure::of_client(&error).message());
    }
    error.into()
}

/// The JSON-RPC message of the arguments.
fn message(args: &CallArgs) -> Result<Bytes, Misuse> {
    if !a2abus_plugin::protocol::is_target(&args.agent) {
        return Err(Misuse(format!(
            "{:?} is not a valid agent name",
            args.agent
        )));
    }
    let mut message = Map::new();
    message.insert("jsonrpc".to_owned(), "2.0".into());
    message.insert("method".to_owned(), args.method.as_str().into());
    if let Some(params) = &args.params {
        let params = serde_json::from_str(params)
            .map_err(|error| Misuse(format!("the parameters are not JSON: {error}")))?;
        message.insert("params".to_owned(), params);
    }
    if !args.notify {
        message.insert("id".to_owned(), 1.into());
    }
    Ok(Bytes::from(Value::Object(message).to_string()))
}

fn decoded(message: &Bytes, limits: &Limits) -> Result<Unit, Misuse> {
    match decode(message, &Hint::default(), limits).into_only() {
        Ok(Ok(unit)) => Ok(unit),
        Ok(Err(refused)) => {
            let at = match refused.error.pointer() {
                "" => String::new(),
                pointer => format!("{pointer}: "),
            };
            let why = format!("the request is refused: {at}{}", refused.error);
            Err(Misuse(why))
        }
        Err(_) => Err(Misuse("the request is not one message".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_without_a_subscriber_has_a_cure() {
        let silent = CallError::NoSubscriber(Text::from_static("NATS subject agents.weather"));
        let told = told(silent).to_string();
        assert!(told.contains("NATS subject agents.weather"), "{told}");
        assert!(told.contains("start the agent"), "{told}");
        // The cause of other errors stays.
        let away = CallError::Unavailable(Text::from_static("no broker"));
        assert_eq!(super::told(away.clone()).to_string(), away.to_string());
    }
}
