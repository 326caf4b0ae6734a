//! `a2abus stdio`: an MCP server on standard input and output, for clients that start their servers as programs.
//!
//! It forwards to the MCP interface of a bridge.

mod message;
mod relay;

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use reqwest::Url;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::relay::{MAX_MESSAGE, Relay};
use super::bridge_client::not_http;
use super::command::{Misuse, duration, load};
use super::telemetry;
use crate::Bridge;
use crate::config::{AsText, LogFilter};
use crate::lines::Lines;

/// Arguments of `a2abus stdio`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  a2abus stdio --agent weather
  a2abus stdio --url http://bridge:8080
  a2abus stdio --agent weather -c a2abus.yaml
  a2abus stdio --agent builds --timeout 5m

An entry for the configuration of an editor or a desktop client:
  { \"mcpServers\": { \"weather\": { \"command\": \"a2abus\", \"args\": [\"stdio\", \"--agent\", \"weather\"] } } }

Reads one JSON-RPC message per line and writes the answers in the same way; logs go to standard error. At the end of \
standard input it declines open questions of the agent and finishes the requests in progress. On SIGTERM or SIGINT, \
and when nobody reads its standard output any more, it cancels those requests. With -c it uses the routes and \
transports of the configuration without a running bridge; its bindings, attached agents and listeners are not \
started. It then listens on a random port of 127.0.0.1, which other users of this machine can reach.")]
pub(crate) struct StdioArgs {
    /// The agent whose tools are offered. By default the tools of all agents, named AGENT.TOOL (see mcp.separator).
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// The HTTP listener of a running bridge.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: Url,
    /// A configuration file to use instead of a running bridge.
    #[arg(short, long, value_name = "FILE", conflicts_with = "url")]
    config: Option<PathBuf>,
    /// How long each request may take, at most calls.max_timeout. Default: the timeouts of the section `calls` of the
    /// bridge, which is 30 s until the answer or the next message.
    #[arg(short, long, value_name = "DURATION", value_parser = timeout)]
    timeout: Option<Duration>,
}

/// How long a bridge in this process may take to connect to its buses.
const CONNECT: Duration = Duration::from_secs(30);

/// A bridge that runs in this process.
struct LocalBridge {
    door: SocketAddr,
    stop: CancellationToken,
    running: JoinHandle<()>,
    _log: telemetry::Log,
}

/// Serves until the end of standard input, or a signal.
///
/// # Errors
/// [`Misuse`] when an argument is wrong; otherwise when the bridge cannot start, or standard input cannot be read.
pub(crate) async fn run(args: StdioArgs) -> anyhow::Result<()> {
    if let Some(agent) = &args.agent
        && !a2abus_plugin::protocol::is_target(agent)
    {
        return Err(Misuse(format!("{agent:?} is not a valid agent name")).into());
    }
    let Some(config) = &args.config else {
        if args.url.scheme() != "http" {
            return Err(Misuse(not_http(&args.url)).into());
        }
        let _log = telemetry::start(&telemetry::warnings())?;
        return serve(endpoint(&args.url, args.agent.as_deref()), args.timeout).await;
    };
    let own = LocalBridge::start(config).await?;
    let url = Url::parse(&format!("http://{}", own.door))?;
    let served = serve(endpoint(&url, args.agent.as_deref()), args.timeout).await;
    own.stop.cancel();
    own.running.await?;
    served
}

fn endpoint(bridge: &Url, agent: Option<&str>) -> Url {
    let mut url = bridge.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().push("mcp");
        if let Some(agent) = agent {
            path.push("agents").push(agent);
        }
    }
    url
}

/// A time limit for the header `X-A2A-Timeout`, which has milliseconds.
fn timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        timeout if timeout < Duration::from_millis(1) => Err("must be at least 1ms".to_owned()),
        timeout => Ok(timeout),
    }
}

async fn serve(endpoint: Url, timeout: Option<Duration>) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let input = std::io::stdin().as_fd().try_clone_to_owned();
    let input = tokio::fs::File::from_std(File::from(input?));
    let relay = Relay::new(endpoint, timeout)?;
    let stop = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    relay.run(Lines::new(input, MAX_MESSAGE), stop).await
}

// === impl LocalBridge ===

impl LocalBridge {
    /// Starts a bridge that only makes calls, with a listener on a loopback address.
    async fn start(file: &Path) -> anyhow::Result<Self> {
        let mut config = load(file)?;
        config.telemetry.log = AsText(LogFilter::warn());
        let log = telemetry::start(&config.telemetry)?;
        config.keep_calls_only();
        config.http.enabled = true;
        config.http.listen = AsText(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let bridge = Bridge::build(config).await?.calls_only();
        let door = bridge.door_address().context("the listener is open")?;
        let readiness = std::sync::Arc::clone(bridge.readiness());
        let stop = CancellationToken::new();
        let running = tokio::spawn(bridge.run(stop.clone()));
        if tokio::time::timeout(CONNECT, super::call::until_ready(&readiness))
            .await
            .is_err()
        {
            bail!(super::call::not_ready(&readiness, CONNECT));
        }
        Ok(Self {
            door,
            stop,
            running,
            _log: log,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_is_that_of_one_agent_or_of_all() {
        let bridge = |text| Url::parse(text).unwrap();
        let all = endpoint(&bridge("http://b:8080/"), None);
        assert_eq!(all.as_str(), "http://b:8080/mcp");
        let one = endpoint(&bridge("http://b/prefix"), Some("a/b"));
        assert_eq!(one.as_str(), "http://b/prefix/mcp/agents/a%2Fb");
    }
}
