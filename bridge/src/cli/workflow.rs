//! `a2abus workflow`: validates, runs and tests A2E workflows from the shell.

mod execution_args;
pub(super) mod lines;
mod profile;
mod run;
mod storage;
mod test;
mod validate;

use clap::{Args, Subcommand};

use super::command::{Status, block_on};

/// Arguments of `a2abus workflow`.
#[derive(Debug, Args)]
pub(crate) struct WorkflowArgs {
    #[command(subcommand)]
    command: WorkflowCommand,
}

#[derive(Debug, Subcommand)]
enum WorkflowCommand {
    /// Reports every problem of a workflow without running it.
    Validate(validate::ValidateArgs),
    /// Runs a workflow in this process and prints its results.
    Run(run::RunArgs),
    /// Runs workflows against recorded API responses on a virtual clock, and compares the results.
    Test(test::TestArgs),
    /// Shows or removes the stored values of an agent in a running bridge.
    Storage(storage::StorageArgs),
}

/// Runs the command.
///
/// # Errors
/// When the usage is wrong, or reading or writing fails.
pub(crate) fn run(args: WorkflowArgs) -> anyhow::Result<Status> {
    match args.command {
        WorkflowCommand::Validate(args) => validate::run(&args),
        WorkflowCommand::Run(args) => block_on(run::run(args)),
        WorkflowCommand::Test(args) => block_on(test::run(&args)),
        WorkflowCommand::Storage(args) => block_on(storage::run(args)),
    }
}
