//! Does validation of A2E workflows find what the specification says, and nothing else? The shared vectors, one case
//! and one near miss for every code, and properties of every document. Source: docs/protocols/a2e-workflows.md,
//! `tests/vectors/a2e_execution.json`.

mod build;
mod cases;
mod form;
mod meaning;
mod properties;
mod targets;
mod vectors;

use a2abus_models::a2e_workflow::{
    Apis, Document, Issue, Policy, Report, Strictness, WorkflowLimits,
};
use a2abus_models::{Json, Object};
use a2abus_plugin::Limits;
use bytes::Bytes;

/// The default permissions of the vectors.
fn policy() -> Policy {
    Policy {
        operations: ["*"].into_iter().collect(),
        apis: Apis::parse(["https://api.example.com"]).unwrap(),
        credentials: ["*"].into_iter().collect(),
        storages: ["*"].into_iter().collect(),
        ..Policy::default()
    }
}

fn json(text: &str) -> Json {
    Json::parse(&Bytes::copy_from_slice(text.as_bytes()), &Limits::default()).unwrap()
}

fn object(text: &str) -> Object {
    json(text).as_object().unwrap().clone()
}

fn document(text: &str) -> Document {
    Document::parse(
        &Bytes::copy_from_slice(text.as_bytes()),
        &WorkflowLimits::default(),
    )
}

/// Validates with these data in the model.
fn report(text: &str, input: &str) -> Report {
    document(text).validate(&policy(), Some(&object(input)), Strictness::Moderate)
}

/// The issues as `code` or `code@operation`, sorted.
fn codes(issues: &[Issue]) -> Vec<String> {
    let label = |issue: &Issue| match &issue.operation_id {
        Some(id) => format!("{}@{id}", issue.code.as_str()),
        None => issue.code.as_str().to_owned(),
    };
    let mut codes: Vec<_> = issues.iter().map(label).collect();
    codes.sort();
    codes
}

/// Errors and warnings in one list of words.
fn all_issues(report: &Report) -> Vec<String> {
    let mut all = codes(&report.errors);
    all.extend(
        codes(&report.warnings)
            .into_iter()
            .map(|label| format!("warning {label}")),
    );
    all
}
