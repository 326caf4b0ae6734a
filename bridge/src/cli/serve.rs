//! `a2abus serve`: the bridge.

use std::path::PathBuf;

use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::Bridge;
use crate::cli::{load, telemetry};

/// Arguments of `a2abus serve`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  a2abus serve -c a2abus.yaml
  A2ABUS_HTTP__LISTEN=0.0.0.0:8080 a2abus serve -c a2abus.yaml

SIGTERM or Ctrl-C drains: work in hand is finished within http.drain_grace. A second signal ends at once; nothing is
lost, since what is not settled is delivered again.")]
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

/// Runs the bridge until a signal.
///
/// # Errors
/// When the configuration is wrong or a listener cannot be opened.
pub(crate) async fn run(args: ServeArgs) -> anyhow::Result<()> {
    let config = load(&args.config)?;
    telemetry::start(&config.telemetry)?;
    let bridge = Bridge::build(config).await?;
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
    let mut running = tokio::spawn(bridge.run(stop.clone()));
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    loop {
        tokio::select! {
            ended = &mut running => return Ok(ended?),
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if stop.is_cancelled() {
            tracing::warn!(
                "a second signal: ending at once; what is not settled is delivered again"
            );
            std::process::exit(INTERRUPTED);
        }
        stop.cancel();
    }
}
