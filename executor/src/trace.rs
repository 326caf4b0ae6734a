//! Progress and trace of an execution: which operation ran, when, and how it ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use a2abus_models::a2e_workflow::OperationType;
use a2abus_models::wire_enum;
use a2abus_models::{Array, Json};
use a2abus_plugin::Text;

use crate::failure::Failure;

/// The state of one run of one operation. Source: docs/protocols/a2e-workflows.md §10 and §11.
#[derive(Debug, Clone)]
pub struct Progress {
    /// The operation.
    pub operation_id: Text,
    /// Its type.
    pub operation_type: OperationType,
    /// Whether it is running, or how it ended.
    pub status: OperationStatus,
    /// The iteration of the innermost loop, from 0.
    pub iteration: Option<usize>,
    /// How many requests it made.
    pub attempts: u32,
    /// Whether its value came from the cache.
    pub is_cached: bool,
    /// How long it took, or the wait before the next retry; zero while it runs.
    pub duration: Duration,
    /// Why it failed.
    pub error: Option<Failure>,
}

/// The current state of every run of an operation in an execution.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trace(Arc<Mutex<Runs>>);

#[derive(Debug, Default)]
struct Runs {
    runs: Vec<Progress>,
    reports: usize,
}

wire_enum! {
    /// Whether an operation is running, or how it ended.
    #[non_exhaustive]
    OperationStatus {
        /// It runs.
        Running = "running",
        /// It waits for a retry.
        Retrying = "retrying",
        /// It has a value.
        Success = "success",
        /// It has none.
        Failed = "failed",
        /// Its branch was not taken.
        Skipped = "skipped",
    }
}

// === impl OperationStatus ===

impl OperationStatus {
    /// Whether this is the final state of the run.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Running | Self::Retrying)
    }
}

// === impl Progress ===

impl Progress {
    pub(crate) fn new(
        operation_id: &Text,
        operation_type: OperationType,
        status: OperationStatus,
    ) -> Self {
        Self {
            operation_id: operation_id.clone(),
            operation_type,
            status,
            iteration: None,
            attempts: 0,
            is_cached: false,
            duration: Duration::ZERO,
            error: None,
        }
    }

    /// The members of a progress event besides `execution_id`.
    #[must_use]
    pub fn to_value(&self) -> Json {
        let mut members = self.place("operationType");
        members.extend((self.attempts > 0).then(|| ("attempts", self.attempts.into())));
        members.extend(self.is_cached.then_some(("cached", Json::Bool(true))));
        if self.status != OperationStatus::Running {
            members.push(("duration_ms", milliseconds(self.duration)));
        }
        self.with_error(members)
    }

    /// An entry of `operations` in the record.
    fn to_entry(&self) -> Json {
        let mut members = self.place("type");
        members.push(("attempts", self.attempts.into()));
        members.push(("cached", self.is_cached.into()));
        members.push(("duration_ms", milliseconds(self.duration)));
        self.with_error(members)
    }

    fn place(&self, type_name: &'static str) -> Vec<(&'static str, Json)> {
        let mut members = vec![
            ("operationId", Json::from(self.operation_id.clone())),
            (type_name, self.operation_type.as_str().into()),
            ("status", self.status.as_str().into()),
        ];
        members.extend(
            self.iteration
                .map(|iteration| ("iteration", iteration.into())),
        );
        members
    }

    fn with_error(&self, mut members: Vec<(&'static str, Json)>) -> Json {
        members.extend(self.error.as_ref().map(|error| ("error", error.to_value())));
        Json::object(members)
    }
}

// === impl Trace ===

impl Trace {
    /// Records the state of a run of an operation.
    pub(crate) fn note(&self, progress: &Progress) {
        let mut state = self.lock();
        state.reports += 1;
        let runs = &mut state.runs;
        let is_it = |run: &&mut Progress| {
            !run.status.is_final()
                && run.operation_id == progress.operation_id
                && run.iteration == progress.iteration
        };
        let known = match progress.status {
            OperationStatus::Running => None,
            // Of nested runs, the last open one is the innermost.
            _ => runs.iter_mut().rev().find(is_it),
        };
        match known {
            Some(run) => run.clone_from(progress),
            None => runs.push(progress.clone()),
        }
    }

    /// The entries of `operations` in a record.
    pub(crate) fn entries(&self) -> Array {
        self.lock().runs.iter().map(Progress::to_entry).collect()
    }

    /// How many states were recorded.
    pub(crate) fn reports(&self) -> usize {
        self.lock().reports
    }

    fn lock(&self) -> MutexGuard<'_, Runs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn milliseconds(duration: Duration) -> Json {
    i64::try_from(duration.as_millis())
        .unwrap_or(i64::MAX)
        .into()
}
