//! `a2abus workflow run`.

use std::io::IsTerminal as _;

use a2abus_executor::{Event, Execution, Json, OnError, Record, Refusal, Request, Started, Status};
use a2abus_models::a2e_workflow::Code;
use anyhow::bail;
use clap::Args;
use futures_util::StreamExt as _;
use tokio::signal::unix::{SignalKind, signal};

use super::execution_args::ExecutionArgs;
use super::profile::Profile;
use super::{lines, profile};
use crate::cli::output::{Output, complain_line};
use crate::cli::{command, telemetry};

/// Arguments of `a2abus workflow run`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  a2abus workflow run report.jsonl
  a2abus workflow run report.jsonl --policy a2abus.yaml --agent reporter > answer.json
  a2abus workflow run report.jsonl --input @users.json | jq .results

Standard output is one JSON object, like the response of the REST API: {\"execution_id\":…,\"status\":…,
\"results\":{…},\"duration_ms\":…}, with \"error\", \"errors\", \"skipped\" and \"warnings\" if there are any.

On a terminal, standard error shows the start and end of each operation. It also has the log, such as the causes of \
failed connections. Values that StoreData puts into localStorage \
and sessionStorage are lost when the command ends. Ctrl-C cancels.

A policy that permits an API on this machine:
  workflows:
    enabled: true
    apis: [{id: local, base_url: \"http://127.0.0.1:8080\"}]
    agents: [{id: me, operations: [\"*\"], apis: [local], storages: [\"*\"]}]

Exit status 1 unless the status is success.")]
pub(super) struct RunArgs {
    #[command(flatten)]
    execution: ExecutionArgs,
    /// What to do if an operation fails: stop or continue.
    #[arg(long, value_name = "ACTION", value_parser = on_error, default_value = "stop")]
    on_error: OnError,
    /// Show the operations on standard error, even if it is not a terminal.
    #[arg(long)]
    progress: bool,
}

fn on_error(text: &str) -> Result<OnError, String> {
    OnError::from_name(text).ok_or_else(|| "expected stop or continue".to_owned())
}

/// Runs the workflow.
///
/// # Errors
/// When the usage is wrong, or reading or writing fails; a failed workflow is output, not an error.
pub(super) async fn run(args: RunArgs) -> anyhow::Result<command::Status> {
    // The causes of failed connections are not part of the answer.
    let _log = telemetry::start(&telemetry::warnings())?;
    let execution = &args.execution;
    let workflow = execution.workflow()?;
    let profile = profile::of(execution)?;
    let report = profile.validate(&workflow, &execution.input, execution.level);
    lines::write(&report, &execution.display_name(), |line| {
        complain_line(&line);
        Ok(())
    })?;
    if lines::has_forbidden_target(&report) {
        lines::hint();
    }
    let request = Request {
        workflow,
        input: execution.input.clone(),
        on_error: args.on_error,
        strictness: execution.level,
        ..Request::default()
    };
    let mut output = Output::new();
    let started = profile.executor.execute(&profile.agent, request).await;
    let execution = match started {
        Ok(Started::New(execution)) => execution,
        Ok(Started::Running(_) | Started::Finished(_)) => bail!("the execution has already run"),
        Err(Refusal::Invalid(failure)) => {
            let error = Json::object([("error", failure.to_value())]);
            output.line(error.to_string())?;
            return Ok(command::Status::Failure);
        }
        Err(refusal) => bail!(refusal),
    };
    let shows = args.progress || std::io::stderr().is_terminal();
    let record = watch(&profile, execution, shows).await?;
    let answer = record.answer();
    output.line(answer.to_string())?;
    if was_forbidden(&answer) {
        lines::hint();
    }
    Ok(match record.status() {
        Status::Success => command::Status::Success,
        _ => command::Status::Failure,
    })
}

/// Whether an operation failed because the address of its target is forbidden.
fn was_forbidden(answer: &Json) -> bool {
    let errors = answer.get("errors").and_then(Json::as_array);
    let mut all = errors.into_iter().flatten().chain(answer.get("error"));
    let forbidden = Code::ForbiddenTarget.as_str();
    all.any(|error| error.get("code").and_then(Json::as_str) == Some(forbidden))
}

async fn watch(
    profile: &Profile,
    mut execution: Execution,
    shows: bool,
) -> anyhow::Result<std::sync::Arc<Record>> {
    let id = execution.execution_id().clone();
    let mut interrupt = signal(SignalKind::interrupt())?;
    loop {
        let event = tokio::select! {
            event = execution.next() => event,
            _ = interrupt.recv() => {
                // It ends with the status cancelled as soon as the running operation stops.
                let _was_running = profile.executor.cancel(profile.agent.id(), &id);
                continue;
            }
        };
        match event {
            Some(Event::Operation(progress)) if shows => {
                complain_line(&lines::progress_line(&progress))
            }
            Some(Event::Ended { record, .. }) => return Ok(record),
            Some(_) => {}
            None => bail!("the execution ended without a record"),
        }
    }
}
