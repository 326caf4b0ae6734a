//! `a2abus workflow validate`.

use clap::Args;

use super::execution_args::ExecutionArgs;
use super::{lines, profile};
use crate::cli::command::Status;
use crate::cli::output::{Output, complain_line};

/// Arguments of `a2abus workflow validate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  a2abus workflow validate report.jsonl
  a2abus workflow validate report.jsonl --policy a2abus.yaml --agent reporter
  a2abus workflow validate report.jsonl --input '{\"users\":[]}' --level strict --json

All problems are reported together. With --json: {\"valid\":…,\"errors\":[…],\"warnings\":[…]}.
Exit status 1 if the workflow is not valid; warnings do not count.")]
pub(super) struct ValidateArgs {
    #[command(flatten)]
    execution: ExecutionArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Validates the workflow.
///
/// # Errors
/// When the usage is wrong, or reading or writing fails; problems of the workflow are output, not errors.
pub(super) fn run(args: &ValidateArgs) -> anyhow::Result<Status> {
    let execution = &args.execution;
    let workflow = execution.workflow()?;
    let profile = profile::of(execution)?;
    let report = profile.validate(&workflow, &execution.input, execution.level);
    let mut output = Output::new();
    if args.json {
        output.line(report.to_json().to_string())?;
    } else {
        lines::write(&report, &execution.display_name(), |line| output.line(line))?;
        lines::verdict(&report, &execution.display_name(), &mut output)?;
        if lines::has_forbidden_target(&report) {
            lines::hint();
        }
        if execution.input.is_empty() && lines::lacks_input(&report) {
            complain_line("hint: give the initial data model with --input JSON or --input @FILE");
        }
    }
    Ok(if report.is_valid() {
        Status::Success
    } else {
        Status::Failure
    })
}
