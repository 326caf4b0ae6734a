//! The reference of the metrics, generated from their definitions.

use super::registrar::Definition;
use super::{CallOutcome, Metrics, ReplyOutcome};
use crate::blessed::assert_written;

const PREFACE: &str = include_str!("reference.md");

/// `METRICS.md`: one row for each metric.
fn reference() -> String {
    let metrics = Metrics::new().unwrap();
    let mut rows: Vec<_> = metrics.definitions().iter().map(row).collect();
    rows.sort_unstable();
    format!(
        "{PREFACE}\n## Metrics\n\n| metric | labels | unit | meaning |\n|---|---|---|---|\n{}",
        rows.concat()
    )
}

fn row(definition: &Definition) -> String {
    let Definition {
        name,
        unit,
        labels,
        help,
    } = definition;
    let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
    format!("| `{name}` | {} | {unit} | {help} |\n", labels.join(", "))
}

#[test]
fn the_reference_in_the_tree_is_the_generated_one() {
    assert_written("METRICS.md", &reference());
}

#[test]
fn the_preface_explains_every_outcome() {
    let calls = CallOutcome::ALL.map(CallOutcome::as_str);
    let replies = ReplyOutcome::ALL.map(ReplyOutcome::as_str);
    for outcome in calls.iter().chain(&replies) {
        let row = format!("| `{outcome}` |");
        assert!(PREFACE.contains(&row), "{outcome}");
    }
}
