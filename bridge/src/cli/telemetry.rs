//! Logs of the process on standard error: text or JSON lines.
//!
//! A thread of its own writes the lines, so nothing else waits if standard error is a pipe that nobody reads, or a file
//! on a slow disk.

use std::convert::Infallible;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use prometheus::IntCounter;
use tokio::time::sleep;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{Directive, LevelFilter};
use tracing_subscriber::reload::Handle;

use crate::cli::output::in_time;
use crate::config::{AsText, LogFilter, LogFormat, TelemetryConfig, TextFormat as _};
use crate::{LogLevels, reload};

/// At most this many lines wait to be written. Further ones are lost.
const QUEUE_LINES: usize = 8_192;
/// Lines that wait are written together, up to this many bytes.
const WRITE_BYTES: usize = 64 << 10;
/// How often lost lines are counted.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// The log of the process. When it is dropped, the lines that wait are written, if that takes about a second at most.
#[derive(Debug)]
#[must_use]
pub(crate) struct Log {
    /// Changes the levels while the process runs. `None` if the variable `A2ABUS_LOG` sets them.
    pub(crate) levels: Option<LogLevels>,
    /// Lines for which there was no room.
    dropped: ErrorCounter,
    /// Lines that could not be written.
    unwritten: Arc<AtomicU64>,
    /// Writes the lines that wait when it is dropped.
    writer: Option<WorkerGuard>,
}

/// Standard error. If a write fails, its lines are lost, but not those that follow.
struct StandardError {
    unwritten: Arc<AtomicU64>,
}

/// The filter in the variable `A2ABUS_LOG`, if it is set.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn filter_of_environment() -> anyhow::Result<Option<LogFilter>> {
    let text = std::env::var("A2ABUS_LOG").ok();
    let filter = text.map(|text| LogFilter::read(&text)).transpose();
    filter.map_err(|why| anyhow::anyhow!("A2ABUS_LOG: {why}"))
}

/// The log of a command without a configuration of its own: warnings.
pub(crate) fn warnings() -> TelemetryConfig {
    TelemetryConfig {
        log: AsText(LogFilter::warn()),
        ..TelemetryConfig::default()
    }
}

/// Starts logging as configured. The variable `A2ABUS_LOG` takes precedence over the configuration.
///
/// # Errors
/// When the filter cannot be read.
pub(crate) fn start(config: &TelemetryConfig) -> anyhow::Result<Log> {
    let variable = filter_of_environment()?;
    let is_fixed = variable.is_some();
    let filter = variable.unwrap_or_else(|| config.log.0.clone());
    let filter = parse_filter(filter.as_str())
        .with_context(|| format!("the log filter {:?} cannot be read", filter.as_str()))?;
    let unwritten = Arc::new(AtomicU64::new(0));
    let stderr = StandardError {
        unwritten: Arc::clone(&unwritten),
    };
    let (lines, writer) = NonBlockingBuilder::default()
        .buffered_lines_limit(QUEUE_LINES)
        .thread_name("log")
        .finish(BufWriter::with_capacity(WRITE_BYTES, stderr));
    let dropped = lines.error_counter();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(lines)
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
    Ok(Log {
        levels: (!is_fixed).then_some(levels),
        dropped,
        unwritten,
        writer: Some(writer),
    })
}

// === impl Log ===

impl Log {
    /// How many lines are lost.
    fn lost(&self) -> u64 {
        self.dropped.dropped_lines() as u64 + self.unwritten.load(Ordering::Relaxed)
    }

    /// Counts the lines that are lost. Logs how many they are once lines can be written again. Never ends.
    pub(crate) async fn count_lost(&self, counter: &IntCounter) -> Infallible {
        let mut reported = 0;
        loop {
            let lost = self.lost();
            let new = lost.saturating_sub(counter.get());
            counter.inc_by(new);
            if new == 0 && lost > reported {
                reported = lost;
                // The total, because an earlier one of these lines may be lost.
                tracing::warn!(
                    lines = lost,
                    "lines of this log were lost since the start: standard error was not read fast enough, or could not be written"
                );
            }
            sleep(COUNT_EVERY).await;
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let writer = self.writer.take();
        // Without room for its message, the guard prints to standard output, which may be the same pipe.
        in_time(move || drop(writer));
    }
}

// === impl StandardError ===

impl Write for StandardError {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        if io::stderr().write_all(lines).is_err() {
            let lost = lines.iter().filter(|byte| **byte == b'\n').count();
            self.unwritten.fetch_add(lost as u64, Ordering::Relaxed);
        }
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The clients of which lines are hidden unless the filter names them, and the directive for that. The NATS client logs
/// every attempt to connect without the cause. A Kafka consumer that lost its place in the group logs that it cannot be
/// closed. The HTTP/2 server logs each flood that it stops, without the client; the bridge logs why it closes the
/// connection.
const HIDDEN: [(&str, &str); 3] = [
    ("async_nats", "async_nats=off"),
    ("h2", "h2=error"),
    ("rdkafka", "rdkafka::consumer::base_consumer=off"),
];

/// The levels of a filter that does not ask for these lines.
const WITHOUT_CLIENTS: [&str; 3] = ["info", "warn", "error"];

/// Parses a filter and adds directives. The changes made by a reload are always logged, unless the filter names their
/// target or turns logging off. Lines of clients are hidden where the bridge logs the failure itself, with its cause.
fn parse_filter(text: &str) -> anyhow::Result<EnvFilter> {
    let mut filter = EnvFilter::try_new(text)?;
    let is_quiet = |part: &str| {
        let mut levels = WITHOUT_CLIENTS.iter();
        levels.any(|level| part.trim().eq_ignore_ascii_case(level))
    };
    if text.split(',').any(is_quiet) {
        for (client, directive) in HIDDEN {
            if !text.contains(client) {
                filter = filter.add_directive(Directive::from_str(directive)?);
            }
        }
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

    #[test]
    fn warnings_of_the_http_2_server_are_hidden_unless_the_filter_names_it() {
        for (text, is_quiet) in [
            ("info", true),
            ("warn", true),
            ("info,h2=warn", false),
            ("debug", false),
        ] {
            let filter = parse_filter(text).unwrap().to_string();
            let quiet = filter.split(',').any(|part| part == "h2=error");
            assert_eq!(quiet, is_quiet, "{text}: {filter}");
        }
    }
}
