//! Logs of the process on standard error: text or JSON lines.

use std::io::{self, IsTerminal as _};

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;

use crate::config::{LogFormat, TelemetryConfig};

/// Starts logging as configured; the variable `A2ABUS_LOG` wins over the configuration.
///
/// # Errors
/// When the filter cannot be read.
pub(crate) fn start(config: &TelemetryConfig) -> anyhow::Result<()> {
    let filter = std::env::var("A2ABUS_LOG").unwrap_or_else(|_| config.log.0.as_str().to_owned());
    let filter = EnvFilter::try_new(&filter)
        .with_context(|| format!("the log filter {filter:?} cannot be read"))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    let started = match config.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("logging cannot start: {error}"))
}
