//! What every command has: how it ends, how it runs, and how it reads its configuration.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tokio::runtime::Runtime;

use super::output::{complain, complain_json, complain_line, in_time};
use crate::config::{Config, ConfigErrors, LogFormat};

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Exit status 0.
    Success,
    /// Exit status 1: an invalid input, or something failed.
    Failure,
    /// Exit status 2: wrong usage of the command.
    Usage,
}

/// Wrong usage of the command that the command-line parser cannot detect.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Misuse(pub(super) String);

#[derive(Debug, Args)]
pub(crate) struct ConfigFile {
    /// The configuration file.
    #[arg(
        short = 'c',
        long = "config",
        env = "A2ABUS_CONFIG",
        value_name = "FILE",
        default_value = "a2abus.yaml"
    )]
    pub(crate) path: PathBuf,
}

// === impl Status ===

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        Self::from(match status {
            Status::Success => 0,
            Status::Failure => 1,
            Status::Usage => 2,
        })
    }
}

/// Runs a command to its end. Requests to a bus that are still pending do not keep the process alive.
pub(super) fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = Runtime::new()?;
    let done = runtime.block_on(command);
    runtime.shutdown_background();
    done
}

/// Reads a configuration. Its errors and warnings go to standard error, one line each.
///
/// # Errors
/// When the configuration is invalid.
pub(super) fn load(path: &Path) -> anyhow::Result<Config> {
    let config = checked(Config::load(path, std::env::vars_os()))?;
    for warning in &config.warnings {
        complain_line(&warning.in_file(&path.display().to_string()).to_string());
    }
    Ok(config)
}

/// What was read of a configuration; its errors go to standard error.
pub(super) fn checked<T>(loaded: Result<T, ConfigErrors>) -> anyhow::Result<T> {
    loaded.map_err(|errors| anyhow::Error::msg(refused(&errors)))
}

/// How a command with a log ended. Its error is a line of the log: what collects lines in JSON would drop any other.
pub(super) fn logged(format: LogFormat, done: anyhow::Result<()>) -> Status {
    let Err(error) = done else {
        return Status::Success;
    };
    // These commands handle signals, so one that waits here for ever could only be killed.
    in_time(move || match format {
        LogFormat::Json => complain_json(&error),
        LogFormat::Text => complain(&error),
    });
    Status::Failure
}

/// Reads an argument that is a duration.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| "expected a number and a unit, such as 500ms, 30s or 24h".to_owned())
}

fn refused(errors: &ConfigErrors) -> String {
    for problem in errors.problems() {
        complain_line(&problem.in_file(errors.file()).to_string());
    }
    format!("the configuration {} is invalid", errors.file())
}
