//! `a2abus workflow`: validates, runs and tests A2E workflows from the shell.

mod profile;
mod run;
mod storage;
mod test;
mod validate;

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use a2abus_executor::{Object, Value};
use a2abus_models::a2e_workflow::{Code, Issue, Report, Strictness};
use anyhow::Context as _;
use bytes::Bytes;
use clap::{Args, Subcommand};

pub(super) use self::run::shown;
use super::output::{Output, complain_line};
use super::{Misuse, Status};

/// Arguments of `a2abus workflow`.
#[derive(Debug, Args)]
pub(crate) struct WorkflowArgs {
    #[command(subcommand)]
    command: WorkflowCommand,
}

#[derive(Debug, Subcommand)]
enum WorkflowCommand {
    /// Tells everything that is wrong with a workflow, and runs nothing.
    Validate(validate::ValidateArgs),
    /// Runs a workflow in this process and prints its results.
    Run(run::RunArgs),
    /// Runs workflows against recorded answers on a virtual clock, and compares.
    Test(test::TestArgs),
    /// Shows or removes what workflows of an agent have stored, in a running bridge.
    Storage(storage::StorageArgs),
}

/// Which workflow, in whose name, with what.
#[derive(Debug, Args)]
struct Asked {
    /// The workflow, as JSON Lines; standard input without it, or when it is `-`.
    file: Option<PathBuf>,
    /// What the data model holds at the start: a JSON object, or `@FILE` with one.
    #[arg(long, value_name = "JSON", value_parser = input, default_value = "{}", hide_default_value = true)]
    input: Object,
    /// A configuration whose section `workflows` says what the agent may do. Without it every operation is permitted,
    /// every API that is globally reachable, and no credential.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// The agent of that configuration; needed when it has several.
    #[arg(long, value_name = "ID", requires = "policy")]
    agent: Option<String>,
    /// How strictly it is judged: strict, moderate or lenient.
    #[arg(long, value_name = "LEVEL", value_parser = level, default_value = "moderate")]
    level: Strictness,
}

/// Does what is asked.
///
/// # Errors
/// When the command is misused or reading or writing fails.
pub(crate) fn run(args: WorkflowArgs) -> anyhow::Result<Status> {
    match args.command {
        WorkflowCommand::Validate(args) => validate::run(&args),
        WorkflowCommand::Run(args) => super::block_on(run::run(args)),
        WorkflowCommand::Test(args) => super::block_on(test::run(&args)),
        WorkflowCommand::Storage(args) => super::block_on(storage::run(args)),
    }
}

fn input(text: &str) -> Result<Object, String> {
    let read;
    let text = match text.strip_prefix('@') {
        None => text.as_bytes(),
        Some(path) => {
            read = fs::read(path).map_err(|error| format!("{path}: {error}"))?;
            &read
        }
    };
    match Value::parse(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(format!(
            "a JSON object is needed, and this is {}",
            other.kind()
        )),
        Err(error) => Err(error.to_string()),
    }
}

fn level(text: &str) -> Result<Strictness, String> {
    Strictness::from_word(text).ok_or_else(|| "strict, moderate or lenient".to_owned())
}

// === impl Asked ===

impl Asked {
    fn workflow(&self) -> anyhow::Result<Bytes> {
        read(self.file.as_deref())
    }

    /// How people call the workflow.
    fn shown(&self) -> String {
        match &self.file {
            Some(path) if path.as_os_str() != "-" => path.display().to_string(),
            _ => "standard input".to_owned(),
        }
    }
}

fn read(file: Option<&Path>) -> anyhow::Result<Bytes> {
    match file {
        Some(path) if path.as_os_str() != "-" => fs::read(path)
            .map(Bytes::from)
            .map_err(|error| Misuse(format!("{} cannot be read: {error}", path.display())).into()),
        _ => {
            let mut document = Vec::new();
            io::stdin()
                .read_to_end(&mut document)
                .context("reading failed")?;
            Ok(document.into())
        }
    }
}

/// Errors, then warnings, a line each: `FILE:LINE: error unknown_operation (check): ...`.
fn tell(
    report: &Report,
    file: &str,
    mut line: impl FnMut(String) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    report
        .errors
        .iter()
        .chain(&report.warnings)
        .try_for_each(|issue| line(told(issue, file)))
}

fn told(issue: &Issue, file: &str) -> String {
    let place = issue
        .line
        .map(|line| format!(":{line}"))
        .unwrap_or_default();
    let of = issue
        .operation_id
        .as_ref()
        .map(|id| format!(" ({id})"))
        .unwrap_or_default();
    let suggestion = issue
        .suggestion
        .as_ref()
        .map(|text| format!("; {text}"))
        .unwrap_or_default();
    let (severity, code) = (issue.severity.as_str(), issue.code.as_str());
    format!(
        "{file}{place}: {severity} {code}{of}: {}{suggestion}",
        issue.message
    )
}

/// Tells how to permit what is forbidden for where it is; otherwise nobody would guess that it can be.
fn hint() {
    complain_line(
        "hint: an API that is not globally reachable by HTTPS is permitted by a policy that registers its base URL: \
         --policy FILE; `a2abus workflow run --help` shows one",
    );
}

/// Whether something is forbidden for where it is.
fn has_forbidden_target(report: &Report) -> bool {
    let mut errors = report.errors.iter();
    errors.any(|issue| issue.code == Code::ForbiddenTarget)
}

/// Whether something is read that nothing writes, and that is not nearly something which is written.
fn lacks_input(report: &Report) -> bool {
    let mut issues = report.errors.iter().chain(&report.warnings);
    issues.any(|issue| issue.code == Code::PathNotFound && issue.suggestion.is_none())
}

/// The verdict in one line.
fn verdict(report: &Report, file: &str, output: &mut Output) -> anyhow::Result<()> {
    let warnings = match report.warnings.len() {
        0 => String::new(),
        n => format!(", {}", count(n, "warning")),
    };
    output.line(if report.is_valid() {
        format!("{file} is valid{warnings}")
    } else {
        format!(
            "{file} is not valid: {}{warnings}",
            count(report.errors.len(), "error")
        )
    })
}

fn count(n: usize, noun: &str) -> String {
    if n == 1 {
        format!("1 {noun}")
    } else {
        format!("{n} {noun}s")
    }
}
