//! Logs of the process on standard error: text or JSON lines.

use std::io::{self, IsTerminal as _};
use std::str::FromStr as _;

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{Directive, LevelFilter};
use tracing_subscriber::reload::Handle;

use crate::config::{LogFilter, LogFormat, TelemetryConfig, TextFormat as _};
use crate::{LogLevels, reload};

/// The filter in the variable `A2ABUS_LOG`, if it is set.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn filter_of_environment() -> anyhow::Result<Option<LogFilter>> {
    let text = std::env::var("A2ABUS_LOG").ok();
    let filter = text.map(|text| LogFilter::read(&text)).transpose();
    filter.map_err(|why| anyhow::anyhow!("A2ABUS_LOG: {why}"))
}

/// Starts logging as configured, and returns a handle that changes the levels while the process runs. The variable
/// `A2ABUS_LOG` takes precedence over the configuration; with it, the levels cannot change and there is no handle.
///
/// # Errors
/// When the filter cannot be read.
pub(crate) fn start(config: &TelemetryConfig) -> anyhow::Result<Option<LogLevels>> {
    let variable = filter_of_environment()?;
    let is_fixed = variable.is_some();
    let filter = variable.unwrap_or_else(|| config.log.0.clone());
    let filter = parse_filter(filter.as_str())
        .with_context(|| format!("the log filter {:?} cannot be read", filter.as_str()))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    let levels = match config.log_format {
        LogFormat::Text => {
            let builder = builder.with_filter_reloading();
            let levels = levels(builder.reload_handle());
            builder.try_init().map(|()| levels)
        }
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_filter_reloading();
            let levels = levels(builder.reload_handle());
            builder.try_init().map(|()| levels)
        }
    };
    let levels = levels.map_err(|error| anyhow::anyhow!("logging cannot start: {error}"))?;
    Ok((!is_fixed).then_some(levels))
}

/// The module of the NATS client.
const NATS_CLIENT: &str = "async_nats";

/// The levels at which the NATS client logs nothing, unless the filter names it.
const WITHOUT_NATS_CLIENT: [&str; 3] = ["info", "warn", "error"];

/// Parses a filter and adds two directives. The changes made by a reload are always logged, unless the filter names their
/// target or turns logging off. The NATS client is silent: it logs every attempt to connect without the cause, and the
/// bridge logs each failure once with its cause.
fn parse_filter(text: &str) -> anyhow::Result<EnvFilter> {
    let mut filter = EnvFilter::try_new(text)?;
    let is_quiet = |part: &str| {
        let mut levels = WITHOUT_NATS_CLIENT.iter();
        levels.any(|level| part.trim().eq_ignore_ascii_case(level))
    };
    if text.split(',').any(is_quiet) && !text.contains(NATS_CLIENT) {
        filter = filter.add_directive(Directive::from_str(&format!("{NATS_CLIENT}=off"))?);
    }
    if text.contains(reload::TARGET) || filter.max_level_hint() == Some(LevelFilter::OFF) {
        return Ok(filter);
    }
    Ok(filter.add_directive(Directive::from_str(&format!("{}=info", reload::TARGET))?))
}

fn levels<S: 'static>(handle: Handle<EnvFilter, S>) -> LogLevels {
    LogLevels::new(move |filter| {
        let set = parse_filter(filter).map(|filter| handle.reload(filter));
        if !matches!(set, Ok(Ok(()))) {
            tracing::error!(filter, "cannot set the log levels; they do not change");
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nats_client_is_silent_at_info_and_above() {
        for (text, is_quiet) in [
            ("info", true),
            ("INFO,a2abus::access=off", true),
            ("a2abus_bridge=debug, info", true),
            ("info,async_nats=info", false),
            ("debug", false),
            ("warn", true),
            ("a2abus_bridge=debug,Error", true),
            ("async_nats=error", false),
            ("off", false),
        ] {
            let filter = parse_filter(text).unwrap().to_string();
            let quiet = filter.split(',').any(|part| part == "async_nats=off");
            assert_eq!(quiet, is_quiet, "{text}: {filter}");
        }
    }
}
