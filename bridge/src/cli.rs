//! What the program `a2abus` can be asked to do.
//!
//! One file a command. A command gives a [`Status`] or an error; `main` prints the error with its causes in one line.

mod call;
mod check;
mod convert;
mod demo;
mod explain;
mod map;
mod output;
mod payload;
mod reach;
mod serve;
mod telemetry;
mod topics;
mod workflow;

use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use clap::{Parser, Subcommand};
use tokio::runtime::Runtime;

use self::output::{Closed, complain_line};
use crate::config::{Config, ConfigErrors};

/// Puts AI agents on Kafka and NATS: MCP, A2A and ACP calls as CloudEvents, and back.
#[derive(Debug, Parser)]
#[command(
    name = "a2abus",
    version,
    max_term_width = 100,
    after_help = "Exit status:
  0  all is well
  1  what was asked about is not right: a refused payload, a wrong configuration, a failed call
  2  the command was used wrongly

Errors go to standard error, one line each. `a2abus COMMAND --help` shows examples."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows the whole path inside one process: nothing to install, nothing to configure.
    Demo(demo::DemoArgs),
    /// Runs the bridge.
    Serve(serve::ServeArgs),
    /// Checks a configuration and that its secrets exist; with --connect, brokers, topics, streams and permissions too.
    Check(check::CheckArgs),
    /// Shows or creates the topics, streams and consumers that a configuration needs, and the permissions.
    Topics(topics::TopicsArgs),
    /// Turns payloads into CloudEvents, one JSON line each.
    Map(map::MapArgs),
    /// Tells what a payload is and why, where every attribute comes from, and where the event goes.
    Explain(explain::ExplainArgs),
    /// Converts one JSON document between the forms of a protocol.
    Convert(convert::ConvertArgs),
    /// Calls an agent through the bus.
    Call(call::CallArgs),
    /// Validates, runs and tests workflows: what an agent wants done, as JSON Lines.
    Workflow(workflow::WorkflowArgs),
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// All is well: 0.
    Right,
    /// The thing asked about is not right: 1.
    Wrong,
    /// The command was used wrongly: 2.
    Misused,
}

/// The command was used wrongly in a way that the command line's grammar cannot tell.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Misuse(pub(crate) String);

// === impl Status ===

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        Self::from(match status {
            Status::Right => 0,
            Status::Wrong => 1,
            Status::Misused => 2,
        })
    }
}

/// Reads the command line of the process and does what it asks. A command line that is wrong ends the process with 2.
///
/// # Errors
/// Whatever keeps the command from being done.
pub fn run() -> anyhow::Result<Status> {
    match Cli::parse().command {
        Command::Demo(args) => block_on(demo::run(args)).map(right),
        Command::Serve(args) => block_on(serve::run(args)).map(right),
        Command::Call(args) => block_on(call::run(args)).map(right),
        Command::Workflow(args) => workflow::run(args),
        Command::Check(args) => block_on(check::run(args)),
        Command::Topics(args) => block_on(topics::run(args)),
        Command::Map(args) => map::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Convert(args) => convert::run(&args),
    }
}

/// Runs a command to its end. A question to a bus that nobody waits for any more does not keep the process.
fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = Runtime::new()?;
    let done = runtime.block_on(command);
    runtime.shutdown_background();
    done
}

fn right((): ()) -> Status {
    Status::Right
}

/// The status of an error nobody needs to hear of: the reader of the output has gone, as `head` does.
#[must_use]
pub fn quiet_status(error: &anyhow::Error) -> Option<Status> {
    error.is::<Closed>().then_some(Status::Right)
}

/// The status of an error.
#[must_use]
pub fn status_of(error: &anyhow::Error) -> Status {
    if error.is::<Misuse>() {
        Status::Misused
    } else {
        Status::Wrong
    }
}

/// Prints an error with its causes on standard error, in one line.
pub fn complain(error: &anyhow::Error) {
    complain_line(&format!("a2abus: {error:#}"));
}

/// Reads a configuration. What is wrong with it, and its warnings, go to standard error, one line each.
///
/// # Errors
/// When anything is wrong.
pub(crate) fn load(path: &Path) -> anyhow::Result<Config> {
    match Config::load(path, std::env::vars_os()) {
        Ok(config) => {
            let file = path.display().to_string();
            for warning in &config.warnings {
                complain_line(&warning.in_file(&file).to_string());
            }
            Ok(config)
        }
        Err(errors) => bail!(refused(&errors)),
    }
}

fn refused(errors: &ConfigErrors) -> String {
    for problem in errors.problems() {
        complain_line(&problem.in_file(errors.file()).to_string());
    }
    format!("the configuration {} is refused", errors.file())
}
