//! Metrics of workflows.

use prometheus::{Error, IntCounter, IntCounterVec, IntGauge};

use super::registrar::{Definition, Registrar, per_value};

/// The metrics of the executor.
#[derive(Debug)]
pub(super) struct WorkflowMetrics {
    pub(super) started: IntCounter,
    pub(super) ended: IntCounterVec,
    pub(super) operations: IntCounterVec,
    pub(super) running: IntGauge,
    pub(super) not_stored: IntCounter,
    pub(super) refused: Vec<IntCounter>,
    pub(super) reloads: Vec<IntCounter>,
}

/// Why a request for a workflow, or about one, was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    /// No key, or an unknown one.
    Unauthorized,
    /// The agent is unknown, or lacks permission.
    Forbidden,
    /// It exceeds the rate limit.
    RateLimited,
    /// The limit of running executions is reached.
    Busy,
    /// The request is malformed.
    Malformed,
    /// The requested item does not exist.
    NotFound,
    /// The body is too large, or has an unsupported type.
    Body,
    /// The workflow is not valid.
    Invalid,
    /// Another workflow has the same id.
    Conflict,
    /// The requester no longer waits for it.
    Expired,
    /// The bridge is being stopped.
    Draining,
    /// Records cannot be read or written.
    Store,
}

/// The result of applying a changed configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReloadOutcome {
    /// The new configuration is in use.
    Applied,
    /// The new configuration is in use, without the keys and credentials whose secrets are missing.
    Partial,
    /// The new configuration is invalid; the old one stays in use.
    Refused,
}

// === impl WorkflowMetrics ===

impl WorkflowMetrics {
    pub(super) fn new(on: &mut Registrar) -> Result<Self, Error> {
        let refused = on.counters(REFUSED)?;
        let reloads = on.counters(RELOADS)?;
        Ok(Self {
            started: on.counter(STARTED)?,
            ended: on.counters(ENDED)?,
            operations: on.counters(OPERATIONS)?,
            running: on.gauge(RUNNING)?,
            not_stored: on.counter(NOT_STORED)?,
            refused: per_value(&refused, &RefusalReason::ALL.map(RefusalReason::as_str))?,
            reloads: per_value(&reloads, &ReloadOutcome::ALL.map(ReloadOutcome::as_str))?,
        })
    }
}

// === impl RefusalReason ===

impl RefusalReason {
    /// Every reason, in the order of declaration.
    pub const ALL: [Self; 12] = [
        Self::Unauthorized,
        Self::Forbidden,
        Self::RateLimited,
        Self::Busy,
        Self::Malformed,
        Self::NotFound,
        Self::Body,
        Self::Invalid,
        Self::Conflict,
        Self::Expired,
        Self::Draining,
        Self::Store,
    ];

    /// The label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::RateLimited => "rate_limited",
            Self::Busy => "busy",
            Self::Malformed => "malformed",
            Self::NotFound => "not_found",
            Self::Body => "body",
            Self::Invalid => "invalid",
            Self::Conflict => "conflict",
            Self::Expired => "expired",
            Self::Draining => "draining",
            Self::Store => "store",
        }
    }
}

// === impl ReloadOutcome ===

impl ReloadOutcome {
    /// Every outcome, in the order of declaration.
    pub const ALL: [Self; 3] = [Self::Applied, Self::Partial, Self::Refused];

    /// The label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Partial => "partial",
            Self::Refused => "refused",
        }
    }
}

/// The status of an execution that did not run to its end.
pub(super) const ABANDONED: &str = "abandoned";

// === the metrics ===

const STARTED: Definition = Definition {
    name: "a2abus_workflow_executions_started_total",
    unit: "executions",
    labels: &[],
    help: "Workflow executions started.",
};
const ENDED: Definition = Definition {
    name: "a2abus_workflow_executions_ended_total",
    unit: "executions",
    labels: &["status"],
    help: "Finished workflow executions, by status; `abandoned` if the execution did not run to its end.",
};
const RUNNING: Definition = Definition {
    name: "a2abus_workflow_executions",
    unit: "executions",
    labels: &[],
    help: "Running workflow executions.",
};
const NOT_STORED: Definition = Definition {
    name: "a2abus_workflow_results_not_stored_total",
    unit: "executions",
    labels: &[],
    help: "Workflow executions whose record is stored without their results, because the store does not accept them.",
};
const OPERATIONS: Definition = Definition {
    name: "a2abus_workflow_operations_total",
    unit: "runs",
    labels: &["type", "status"],
    help: "Operations run in workflows, by type and status.",
};
const REFUSED: Definition = Definition {
    name: "a2abus_workflow_refused_total",
    unit: "requests",
    labels: &["reason"],
    help: "Refused requests to execute or validate workflows, or about executions.",
};
const RELOADS: Definition = Definition {
    name: "a2abus_workflow_reloads_total",
    unit: "reloads",
    labels: &["outcome"],
    help: "Reloads of the agents, APIs and credentials of workflows; partial when a secret was missing.",
};

#[cfg(test)]
mod tests {
    use a2abus_executor::Status;

    use super::*;
    use crate::metrics::Metrics;

    #[test]
    fn each_label_value_has_its_own_counter() {
        let metrics = Metrics::new().unwrap();
        for (index, why) in RefusalReason::ALL.into_iter().enumerate() {
            assert_eq!(why as usize, index);
            metrics.workflow_refused(why);
        }
        for (index, what) in ReloadOutcome::ALL.into_iter().enumerate() {
            assert_eq!(what as usize, index);
            metrics.workflow_reload(what);
        }
        let text = metrics.render().unwrap();
        for reason in RefusalReason::ALL.map(RefusalReason::as_str) {
            let line = format!("a2abus_workflow_refused_total{{reason=\"{reason}\"}} 1");
            assert!(text.contains(&line), "{line}\n{text}");
        }
    }

    #[test]
    fn executions_are_counted_by_how_they_end() {
        let metrics = Metrics::new().unwrap();
        metrics.workflow_started();
        metrics.workflow_started();
        metrics.workflow_ended(Some(Status::PartialSuccess));
        metrics.workflow_ended(None);
        let text = metrics.render().unwrap();
        for line in [
            "a2abus_workflow_executions 0",
            "a2abus_workflow_executions_started_total 2",
            "a2abus_workflow_executions_ended_total{status=\"partial_success\"} 1",
            "a2abus_workflow_executions_ended_total{status=\"abandoned\"} 1",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
