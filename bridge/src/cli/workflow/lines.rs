//! The text output about a workflow.

use a2abus_executor::{OperationStatus, Progress};
use a2abus_models::a2e_workflow::{Code, Issue, Report};

use crate::cli::output::{Output, complain_line, count};

/// Errors, then warnings, one per line: `FILE:LINE: error unknown_operation (check): ...`.
pub(super) fn write(
    report: &Report,
    file: &str,
    mut line: impl FnMut(String) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    report
        .errors
        .iter()
        .chain(&report.warnings)
        .try_for_each(|issue| line(issue_line(issue, file)))
}

fn issue_line(issue: &Issue, file: &str) -> String {
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

/// A hint on permitting an API that is forbidden because of its address.
pub(super) fn hint() {
    complain_line(
        "hint: to permit an API that is not globally reachable by HTTPS, register its base URL in a policy: \
         --policy FILE; `a2abus workflow run --help` shows one",
    );
}

/// Whether something is forbidden because of its address.
pub(super) fn has_forbidden_target(report: &Report) -> bool {
    let mut errors = report.errors.iter();
    errors.any(|issue| issue.code == Code::ForbiddenTarget)
}

/// Whether a value is read that nothing writes, and that is not just misspelt.
pub(super) fn lacks_input(report: &Report) -> bool {
    let mut issues = report.errors.iter().chain(&report.warnings);
    issues.any(|issue| issue.code == Code::PathNotFound && issue.suggestion.is_none())
}

/// The verdict in one line.
pub(super) fn verdict(report: &Report, file: &str, output: &mut Output) -> anyhow::Result<()> {
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

/// `ok    fetch (ApiCall) 12 ms, 2 attempts`.
pub(in crate::cli) fn progress_line(progress: &Progress) -> String {
    let label = match progress.status {
        OperationStatus::Running => "begin",
        OperationStatus::Success => "ok",
        OperationStatus::Failed => "FAIL",
        OperationStatus::Skipped => "skip",
        OperationStatus::Retrying => "retry",
        _ => progress.status.as_str(),
    };
    let mut line = format!(
        "{label:<6} {} ({})",
        progress.operation_id,
        progress.operation_type.as_str()
    );
    if let Some(iteration) = progress.iteration {
        line += &format!(" [{iteration}]");
    }
    match progress.status {
        OperationStatus::Retrying => line += &format!(" in {} ms", progress.duration.as_millis()),
        OperationStatus::Success | OperationStatus::Failed => {
            line += &format!(" {} ms", progress.duration.as_millis());
        }
        _ => {}
    }
    if progress.attempts > 1 {
        line += &format!(", {} attempts", progress.attempts);
    }
    if progress.is_cached {
        line += ", from the cache";
    }
    if let Some(error) = &progress.error {
        line += &format!(": {} {}", error.code.as_str(), error.message);
    }
    line
}
