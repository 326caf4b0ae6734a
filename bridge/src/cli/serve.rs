//! `a2abus serve`: the bridge.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::cli::{load, telemetry};
use crate::config::Config;
use crate::{Bridge, Reloads};

/// Arguments of `a2abus serve`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  a2abus serve -c a2abus.yaml
  A2ABUS_HTTP__LISTEN=0.0.0.0:8080 a2abus serve -c a2abus.yaml

SIGTERM or Ctrl-C drains: work in progress is finished within http.drain_grace. A second signal, at least 100 ms later, \
stops the process at once; unacknowledged messages are delivered again. SIGHUP reads the configuration file again, as does \
a change of the file: routes, limits and log levels are replaced while the process runs.")]
pub(crate) struct ServeArgs {
    /// The configuration file.
    #[arg(
        short,
        long,
        env = "A2ABUS_CONFIG",
        value_name = "FILE",
        default_value = "a2abus.yaml"
    )]
    config: PathBuf,
}

/// Exit status after a second signal, as shells report an interrupted program.
const INTERRUPTED: i32 = 130;
/// A second signal this soon after the first is the same order: a terminal and a supervisor both send one.
const SAME_ORDER: Duration = Duration::from_millis(100);

/// The signals that the process heeds.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

/// Runs the bridge until a signal.
///
/// # Errors
/// When the configuration is wrong or a listener cannot be opened.
pub(crate) async fn run(args: ServeArgs) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let config = load(&args.config)?;
    serve(config, &mut signals).await
}

/// Runs the bridge of a configuration until a signal.
///
/// # Errors
/// When a listener cannot be opened, or a client cannot be made.
pub(super) async fn serve(config: Config, signals: &mut Signals) -> anyhow::Result<()> {
    let levels = telemetry::start(&config.telemetry)?;
    let mut bridge = Bridge::build(config).await?;
    if let Some(levels) = levels {
        bridge = bridge.with_log_levels(levels);
    }
    let (door, admin) = (bridge.door_address(), bridge.admin_address());
    let shown = |address: Option<std::net::SocketAddr>| {
        address.map_or("off".to_owned(), |address| address.to_string())
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        door = shown(door),
        admin = shown(admin),
        "started"
    );
    let stop = CancellationToken::new();
    let reloads = bridge.reloads();
    let mut running = tokio::spawn(bridge.run(stop.clone()));
    let mut stopped: Option<Instant> = None;
    loop {
        tokio::select! {
            ended = &mut running => return Ok(ended?),
            () = signals.order_to_stop(reloads.as_ref()) => {}
        }
        match stopped {
            None => {
                stopped = Some(Instant::now());
                stop.cancel();
            }
            Some(first) if first.elapsed() < SAME_ORDER => {
                tracing::info!("a second signal at once after the first counts as the same");
            }
            Some(_) => {
                tracing::warn!(
                    "a second signal: ending at once; what is not settled is delivered again"
                );
                std::process::exit(INTERRUPTED);
            }
        }
    }
}

// === impl Signals ===

impl Signals {
    /// To be made before anything takes time: a signal that nobody expects ends the process without a drain.
    ///
    /// # Errors
    /// When the system refuses it.
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal that means stop; one that means reload is passed on. Cancel-safe.
    async fn order_to_stop(&mut self, reloads: Option<&Reloads>) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => {
                    tracing::info!("SIGHUP: reading the configuration again");
                    reloads.inspect(|reloads| reloads.request());
                }
            }
        }
    }
}
