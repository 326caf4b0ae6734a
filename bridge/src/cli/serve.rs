//! `a2abus serve`: the bridge.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::cli::command::{ConfigFile, Status, checked, logged};
use crate::cli::telemetry::{self, Log};
use crate::config::Config;
use crate::reload::log_warnings;
use crate::{Bridge, Reloads};

/// Arguments of `a2abus serve`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  a2abus serve -c a2abus.yaml
  A2ABUS_HTTP__LISTEN=0.0.0.0:8080 a2abus serve -c a2abus.yaml

On SIGTERM or Ctrl-C, the bridge takes no new work, finishes work in progress within http.drain_grace, and ends. A \
second signal, at least 100 ms later, ends it at once; unacknowledged messages are delivered again. On SIGHUP, and when \
the file changes, the bridge reloads the configuration: it replaces routes, limits, log levels, agents, the settings of \
a2a, and the agents, APIs and credentials of workflows. Other changes need a restart.")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    config: ConfigFile,
}

/// Exit status after a second signal, as shells report an interrupted program.
const INTERRUPTED: i32 = 130;
/// A second signal this soon after the first is ignored: a terminal and a supervisor may both send one.
const SAME_ORDER: Duration = Duration::from_millis(100);

/// The runtime and the signal handlers, which start before the command line is parsed.
#[derive(Debug)]
pub(crate) struct Listening {
    runtime: Runtime,
    signals: Signals,
}

/// The signals that the process handles.
#[derive(Debug)]
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

/// Runs the bridge until a signal.
///
/// # Errors
/// When the configuration is wrong or a listener cannot be opened.
pub(crate) fn run(args: &ServeArgs, listening: Listening) -> anyhow::Result<Status> {
    let config = checked(Config::load(&args.config.path, std::env::vars_os()))?;
    let format = config.telemetry.log_format;
    Ok(logged(format, start(args, config, listening)))
}

fn start(args: &ServeArgs, config: Config, listening: Listening) -> anyhow::Result<()> {
    let Listening {
        runtime,
        mut signals,
    } = listening;
    let log = telemetry::start(&config.telemetry)?;
    log_warnings(&args.config.path.display().to_string(), &config.warnings);
    let done = runtime.block_on(serve(config, log, &mut signals));
    // Requests to a bus that are still pending do not keep the process alive.
    runtime.shutdown_background();
    done
}

/// Runs the bridge of a configuration until a signal. A reload changes the levels of the log.
///
/// # Errors
/// When a listener cannot be opened, or a client cannot be made.
pub(super) async fn serve(
    config: Config,
    mut log: Log,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    let mut bridge = Bridge::build(config).await?;
    if let Some(levels) = log.levels.take() {
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
    if let Some(place) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = notify_supervisor(&place)
    {
        tracing::warn!(%error, place = %place.display(), "cannot notify systemd that a2abus is up");
    }
    let stop = CancellationToken::new();
    let reloads = bridge.reloads();
    let metrics = Arc::clone(bridge.metrics());
    let mut running = tokio::spawn(bridge.run(stop.clone()));
    let mut stopped: Option<Instant> = None;
    loop {
        tokio::select! {
            ended = &mut running => return Ok(ended?),
            () = signals.stop_signal(reloads.as_ref()) => {}
            never = log.count_lost(metrics.log_lines_lost()) => match never {},
        }
        match stopped {
            None => {
                stopped = Some(Instant::now());
                stop.cancel();
            }
            Some(first) if first.elapsed() < SAME_ORDER => {
                tracing::info!("ignoring a second signal right after the first");
            }
            Some(_) => {
                tracing::warn!(
                    "second signal: exiting at once; unacknowledged messages are delivered again"
                );
                crate::attached::kill_programs();
                drop(log);
                std::process::exit(INTERRUPTED);
            }
        }
    }
}

/// Notifies systemd (`Type=notify`) that the process is up. Before that, systemd sends no SIGHUP.
fn notify_supervisor(place: &OsStr) -> io::Result<()> {
    let address = match place.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(place)?,
    };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address)?;
    Ok(())
}

// === impl Listening ===

impl Listening {
    /// Handles signals from now on. An unhandled signal would end the process without a drain.
    pub(crate) fn start() -> io::Result<Self> {
        let runtime = Runtime::new()?;
        let entered = runtime.enter();
        let signals = Signals::new()?;
        drop(entered);
        Ok(Self { runtime, signals })
    }
}

// === impl Signals ===

impl Signals {
    /// Call it before anything that takes time. An unhandled signal would end the process without a drain.
    ///
    /// # Errors
    /// When the system refuses it.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal to stop. Requests a reload for each SIGHUP, if the configuration is in a file. Cancel-safe.
    async fn stop_signal(&mut self, reloads: Option<&Reloads>) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => match reloads {
                    Some(reloads) => {
                        tracing::info!("SIGHUP: reading the configuration again");
                        reloads.request();
                    }
                    None => tracing::info!(
                        "SIGHUP is ignored: this process does not reload a configuration file"
                    ),
                },
            }
        }
    }
}
