//! The commands of the program `a2abus`.
//!
//! Each command has a file. A command returns a [`Status`] or an error; `main` prints the error with its causes in one
//! line.

mod agents;
mod attach;
mod bridge_client;
mod call;
mod check;
mod command;
mod convert;
#[cfg(any(feature = "kafka", feature = "nats"))]
mod dead_letters;
mod demo;
mod explain;
mod map;
mod output;
mod payload;
#[cfg(any(feature = "kafka", feature = "nats"))]
mod reach;
mod serve;
mod stdio;
mod telemetry;
#[cfg(any(feature = "kafka", feature = "nats"))]
mod topics;
mod workflow;

use clap::{Parser, Subcommand};

pub use self::command::Status;
pub use self::output::complain;

use self::command::{Misuse, block_on};
use self::output::Closed;

/// Connects AI agents to Kafka and NATS: MCP, A2A and ACP requests become CloudEvents, and answers
/// return to the callers.
#[derive(Debug, Parser)]
#[command(
    name = "a2abus",
    version,
    max_term_width = 100,
    after_help = "Exit status:
  0  success
  1  failure: a refused payload, an invalid configuration, a failed call
  2  wrong usage of the command
  130  `serve` or `attach` after a second signal

Errors go to standard error, one line each. `a2abus COMMAND --help` shows examples."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs example calls and a workflow in one process, without brokers or configuration.
    Demo(demo::DemoArgs),
    /// The MCP server of the demonstration, on standard input and output.
    #[command(hide = true)]
    DemoServer,
    /// Runs the bridge.
    Serve(serve::ServeArgs),
    /// Puts one MCP server, A2A server or JSON-RPC service on a bus as an agent, without a configuration.
    Attach(attach::AttachArgs),
    /// Checks a configuration, its secrets and TLS files; with --connect also brokers, topics, streams and permissions.
    Check(check::CheckArgs),
    /// Shows or creates the topics, streams and consumers that a configuration needs; shows permissions.
    #[cfg(any(feature = "kafka", feature = "nats"))]
    Topics(topics::TopicsArgs),
    /// Lists, shows and resends the messages that could not be delivered.
    #[cfg(any(feature = "kafka", feature = "nats"))]
    DeadLetters(dead_letters::DeadLettersArgs),
    /// Turns payloads into CloudEvents, one JSON line each.
    Map(map::MapArgs),
    /// Shows how a payload is detected, the origin of every attribute, and the destinations of the event.
    Explain(explain::ExplainArgs),
    /// Converts one JSON document between the forms of a protocol.
    Convert(convert::ConvertArgs),
    /// Lists, shows, announces, removes and watches the agents that a running bridge knows.
    Agents(agents::AgentsArgs),
    /// Calls an agent through the bus.
    Call(call::CallArgs),
    /// Serves the agents of a bridge to an MCP client over standard input and output.
    Stdio(stdio::StdioArgs),
    /// Validates, runs and tests workflows (JSON Lines).
    Workflow(workflow::WorkflowArgs),
}

/// Parses the command line of the process and runs the command. An invalid command line ends the process with status 2.
///
/// # Errors
/// Why the command failed.
pub fn run() -> anyhow::Result<Status> {
    let is_serve = std::env::args_os()
        .nth(1)
        .is_some_and(|command| command == "serve");
    let listening = is_serve.then(serve::Listening::start).transpose()?;
    match Cli::parse().command {
        Command::Demo(args) => block_on(demo::run(args)).map(success),
        Command::DemoServer => demo::sums::serve().map(success),
        Command::Attach(args) => block_on(attach::run(args)),
        Command::Serve(args) => {
            let listening = listening.map_or_else(serve::Listening::start, Ok)?;
            serve::run(&args, listening)
        }
        Command::Agents(args) => block_on(agents::run(args)),
        Command::Call(args) => block_on(call::run(args)).map(success),
        Command::Stdio(args) => block_on(stdio::run(args)).map(success),
        Command::Workflow(args) => workflow::run(args),
        Command::Check(args) => block_on(check::run(args)),
        #[cfg(any(feature = "kafka", feature = "nats"))]
        Command::Topics(args) => block_on(topics::run(args)),
        #[cfg(any(feature = "kafka", feature = "nats"))]
        Command::DeadLetters(args) => block_on(dead_letters::run(args)),
        Command::Map(args) => map::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Convert(args) => convert::run(&args),
    }
}

fn success((): ()) -> Status {
    Status::Success
}

/// The status of an error that is not reported: the reader of the output, such as `head`, has closed it.
#[must_use]
pub fn quiet_status(error: &anyhow::Error) -> Option<Status> {
    error.is::<Closed>().then_some(Status::Success)
}

/// The status of an error.
#[must_use]
pub fn status_of(error: &anyhow::Error) -> Status {
    if error.is::<Misuse>() {
        Status::Usage
    } else {
        Status::Failure
    }
}
