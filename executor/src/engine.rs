//! Runs one workflow: in which order, how often, and how failures are handled.
//!
//! Operations run one after the other. Source: docs/protocols/a2e-workflows.md §4 and §9.

mod branch;
mod perform;

use std::collections::BTreeSet;
use std::time::Duration;

use a2abus_models::a2e_workflow::{Operation, OperationKind, OperationType, OutputPath};
use a2abus_models::{Json, Object};
use a2abus_plugin::Text;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;
use crate::call::Redactor;
use crate::failure::{Failure, FailureCode};
use crate::meter::{execution_timeout, too_heavy};
use crate::model::Model;
use crate::plan::Plan;
use crate::shared::{OnError, Shared};
use crate::trace::{OperationStatus, Progress};

/// The inputs of a run.
pub(crate) struct Run<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) agent: &'a Agent,
    pub(crate) plan: &'a Plan,
    pub(crate) on_error: OnError,
    /// The session for `sessionStorage`.
    pub(crate) session: &'a str,
    /// Its deadline, by the clock.
    pub(crate) deadline: Duration,
    pub(crate) cancel: &'a CancellationToken,
    /// The failure of a run that is cancelled.
    pub(crate) why_cancelled: &'a (dyn Fn() -> Failure + Send + Sync),
    pub(crate) report: &'a (dyn Fn(Progress) + Send + Sync),
    /// Called before the first request that must not be repeated.
    pub(crate) before_unsafe:
        &'a (dyn Fn() -> BoxFuture<'static, Result<(), Failure>> + Send + Sync),
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct RunResult {
    /// In the order in which they ended.
    pub(crate) results: Object,
    pub(crate) model: Object,
    /// The failure that ended the run.
    pub(crate) error: Option<Failure>,
    /// The failures after which it continued.
    pub(crate) errors: Vec<Failure>,
    pub(crate) skipped: Vec<Text>,
}

/// The maximum nesting of a value. Texts of at most 128 levels are read, and a record has three more levels than the
/// values in it.
const MAX_DEPTH: usize = 120;

struct Engine<'a> {
    run: Run<'a>,
    model: Model,
    redactor: Redactor,
    results: Object,
    errors: Vec<Failure>,
    /// The memory of all these failures.
    errors_weight: usize,
    /// Operations that have run in the current iteration of the innermost loop, or outside loops.
    ran: BTreeSet<usize>,
    /// All operations that have run.
    ever_ran: BTreeSet<usize>,
    /// Operations of branches that were not taken.
    not_taken: BTreeSet<usize>,
    /// The ids of the loops that are running, the innermost last.
    loops: Vec<Text>,
    /// The value of the last operation that produced data in this iteration. Source: docs/protocols/a2e-workflows.md
    /// §D15.
    last_data: Json,
    runs: usize,
}

/// A failure that is being propagated.
struct Halt {
    failure: Failure,
    /// Whether it ends the run regardless of `onError`.
    is_fatal: bool,
}

/// The outcome of one operation.
struct OperationOutcome {
    result: Result<Json, Halt>,
    attempts: u32,
    is_cached: bool,
}

/// When an operation ran.
#[derive(Clone, Copy, PartialEq)]
enum WhenRun {
    Now,
    Before,
}

pub(crate) async fn run(run: Run<'_>, input: Object) -> RunResult {
    let engine = Engine {
        model: Model::new(input),
        redactor: Redactor::default(),
        results: Object::default(),
        errors: Vec::new(),
        errors_weight: 0,
        ran: BTreeSet::new(),
        ever_ran: BTreeSet::new(),
        not_taken: BTreeSet::new(),
        loops: Vec::new(),
        last_data: Json::Null,
        runs: 0,
        run,
    };
    engine.run().await
}

// === impl Engine ===

impl<'a> Engine<'a> {
    async fn run(mut self) -> RunResult {
        let plan = self.run.plan;
        let mut error = if self.run.cancel.is_cancelled() {
            Some(self.cancelled())
        } else {
            self.check_input().err()
        };
        if error.is_none() {
            error = self.read_stored().await.err();
        }
        if error.is_none() {
            error = self
                .sequence(&plan.roots)
                .await
                .err()
                .map(|halt| halt.failure);
        }
        let skipped = self.skip();
        RunResult {
            results: self.results,
            model: self.model.root().clone(),
            error,
            errors: self.errors,
            skipped,
        }
    }

    fn check_input(&self) -> Result<(), Failure> {
        let max = self.run.shared.limits.max_model_bytes;
        if self.model.weight() > max {
            return Err(too_heavy(max));
        }
        Ok(())
    }

    /// Loads the stored values that the paths read. The run sees these values, and what it stores itself.
    async fn read_stored(&mut self) -> Result<(), Failure> {
        let (run, max) = (&self.run, self.run.shared.limits.max_model_bytes);
        for (storage, key) in &run.plan.stored {
            // Reading a large value takes a while, and a store in memory does not yield.
            tokio::task::yield_now().await;
            self.check_bounds()?;
            let storages = &run.shared.storages;
            let stored = storages.stored(run.agent.id(), run.session, *storage, key);
            let stored = stored.await.map_err(|error| {
                tracing::error!(
                    storage = storage.as_str(),
                    error = &*error.0,
                    "a stored value cannot be read"
                );
                let message = format!("{} cannot be read", storage.as_str());
                Failure::new(FailureCode::StorageFailed, message)
            })?;
            if let Some(value) = stored {
                self.model.put_stored(*storage, key.clone(), value);
            }
            if self.model.stored_weight() > max {
                return Err(too_heavy(max));
            }
        }
        Ok(())
    }

    /// Runs operations in order, and returns those that succeeded now. Outside loops the next one runs after a failure
    /// if the run continues; in a loop the iteration ends.
    async fn sequence(&mut self, indices: &[usize]) -> Result<Vec<usize>, Halt> {
        let mut succeeded = Vec::new();
        for index in indices {
            match self.once(*index).await {
                Ok(WhenRun::Now) => succeeded.push(*index),
                Ok(WhenRun::Before) => {}
                Err(halt) if self.loops.is_empty() => self.continue_after(halt)?,
                Err(halt) => return Err(halt),
            }
        }
        Ok(succeeded)
    }

    /// Records a failure and continues, if `onError`, the failure and the memory for failures permit that.
    fn continue_after(&mut self, halt: Halt) -> Result<(), Halt> {
        if halt.is_fatal || self.run.on_error == OnError::Stop {
            return Err(halt);
        }
        let max = self.run.shared.limits.max_model_bytes;
        self.errors_weight = self.errors_weight.saturating_add(halt.failure.weight());
        if self.errors_weight > max {
            return Err(Halt {
                failure: too_many_failures(max),
                is_fatal: true,
            });
        }
        self.errors.push(halt.failure);
        Ok(())
    }

    /// Runs an operation unless it has run in this iteration. Source: docs/protocols/a2e-workflows.md §D13.
    fn once(&mut self, index: usize) -> BoxFuture<'_, Result<WhenRun, Halt>> {
        async move {
            let Some(operation) = self.run.plan.operation(index) else {
                return Ok(WhenRun::Before);
            };
            if !self.ran.insert(index) {
                return Ok(WhenRun::Before);
            }
            self.ever_ran.insert(index);
            // Operations without I/O yield to other tasks in between.
            tokio::task::yield_now().await;
            self.begin(operation)?;
            let began = self.elapsed();
            let outcome = self.perform(operation).await;
            let duration = self.elapsed().saturating_sub(began);
            self.end(operation, duration, outcome)?;
            Ok(WhenRun::Now)
        }
        .boxed()
    }

    /// Reports that an operation begins, if it may.
    fn begin(&mut self, operation: &Operation) -> Result<(), Halt> {
        self.check_bounds().map_err(|failure| Halt {
            failure: self.place(failure, operation),
            is_fatal: true,
        })?;
        self.runs += 1;
        (self.run.report)(self.progress(operation, OperationStatus::Running));
        Ok(())
    }

    fn progress(&self, operation: &Operation, status: OperationStatus) -> Progress {
        let of = operation.kind.operation_type();
        let mut progress = Progress::new(&operation.id, of, status);
        progress.iteration = self.model.iteration();
        progress
    }

    /// Checks between two operations whether the run must end.
    fn check_bounds(&self) -> Result<(), Failure> {
        let max = self.run.shared.limits.max_operation_runs;
        if self.run.cancel.is_cancelled() {
            Err(self.cancelled())
        } else if self.elapsed() >= self.run.deadline {
            Err(execution_timeout())
        } else if self.runs >= max {
            let message = format!("more than {max} operations were run");
            Err(Failure::new(FailureCode::LimitExceeded, message)
                .with("limit", "operation_runs")
                .with("max", max)
                .suggest("process less data, or ask the operator to raise max_operation_runs"))
        } else {
            Ok(())
        }
    }

    /// Stores the value and reports how the operation ended.
    fn end(
        &mut self,
        operation: &Operation,
        duration: Duration,
        outcome: OperationOutcome,
    ) -> Result<(), Halt> {
        let result = outcome
            .result
            .and_then(|value| self.keep(operation, value).map_err(Halt::from));
        let result = result.map_err(|halt| Halt {
            failure: self.place(halt.failure, operation),
            ..halt
        });
        let status = match &result {
            Ok(()) => OperationStatus::Success,
            Err(_) => OperationStatus::Failed,
        };
        // The inner operation has already reported the failure.
        let own = |halt: &&Halt| halt.failure.operation_id.as_ref() == Some(&operation.id);
        let error = result.as_ref().err().filter(own);
        (self.run.report)(Progress {
            attempts: outcome.attempts,
            is_cached: outcome.is_cached,
            duration,
            error: error.map(|halt| halt.failure.clone()),
            ..self.progress(operation, status)
        });
        result
    }

    /// Source: docs/protocols/a2e-workflows.md §D13 to §D15.
    fn keep(&mut self, operation: &Operation, value: Json) -> Result<(), Failure> {
        let steps = output(&operation.kind).map_or(0, |path| path.path().segments().len());
        check_depth(&value, steps)?;
        if let Some(output) = output(&operation.kind) {
            self.write(output, value.clone())?;
        }
        if is_data(operation.kind.operation_type()) {
            self.last_data = value.clone();
        }
        if self.loops.is_empty() {
            let max = self.run.shared.limits.max_model_bytes;
            let weight = Json::from(self.results.clone()).weight();
            if weight.saturating_add(value.weight()) > max {
                return Err(too_heavy(max));
            }
            self.results.insert(operation.id.clone(), value);
        }
        Ok(())
    }

    /// Writes to the data model, within its size limit.
    fn write(&mut self, output: &OutputPath, value: Json) -> Result<(), Failure> {
        let max = self.run.shared.limits.max_model_bytes;
        if self.model.weight().saturating_add(value.weight()) <= max {
            return self.model.write(output, value);
        }
        // Replacing a value may free memory.
        let before = self.model.root().clone();
        self.model.write(output, value)?;
        if self.model.weight() > max {
            self.model.restore(before);
            return Err(too_heavy(max));
        }
        Ok(())
    }

    /// Adds the operation to a failure, unless it is known.
    fn place(&self, failure: Failure, operation: &Operation) -> Failure {
        if failure.operation_id.is_some() {
            return failure;
        }
        let failure = failure.of(&operation.id);
        match (self.model.iteration(), self.loops.last()) {
            (Some(iteration), Some(id)) => failure
                .with("iteration", iteration)
                .with("loop", id.clone()),
            _ => failure,
        }
    }

    /// The operations that never ran because their branch was not taken, in order of definition.
    fn skip(&self) -> Vec<Text> {
        let plan = self.run.plan;
        let decided: Vec<usize> = self.not_taken.difference(&self.ever_ran).copied().collect();
        let mut skipped = plan.reached_from(&decided);
        skipped.extend(decided);
        let skipped = skipped.difference(&self.ever_ran);
        let operations: Vec<_> = skipped.filter_map(|index| plan.operation(*index)).collect();
        for operation in &operations {
            (self.run.report)(self.progress(operation, OperationStatus::Skipped));
        }
        operations
            .into_iter()
            .map(|operation| operation.id.clone())
            .collect()
    }

    fn cancelled(&self) -> Failure {
        (self.run.why_cancelled)()
    }

    fn elapsed(&self) -> Duration {
        self.run.shared.environment.clock.elapsed()
    }

    fn left(&self) -> Duration {
        self.run.deadline.saturating_sub(self.elapsed())
    }
}

/// The output path of an operation.
fn output(kind: &OperationKind) -> Option<&OutputPath> {
    match kind {
        OperationKind::ApiCall(call) => Some(&call.output),
        OperationKind::FilterData(filter) => Some(&filter.output),
        OperationKind::TransformData(transform) => Some(&transform.output),
        OperationKind::MergeData(merge) => Some(&merge.output),
        OperationKind::Loop(body) => body.output.as_ref(),
        OperationKind::Conditional(_) | OperationKind::StoreData(_) | OperationKind::Wait(_) => {
            None
        }
    }
}

/// Whether an operation of this type sets the value of an iteration. Source: docs/protocols/a2e-workflows.md §D15.
fn is_data(of: OperationType) -> bool {
    use OperationType::{
        ApiCall, Conditional, FilterData, Loop, MergeData, StoreData, TransformData, Wait,
    };
    match of {
        ApiCall | FilterData | TransformData | MergeData | Loop => true,
        Conditional | StoreData | Wait => false,
    }
}

/// Refuses a value that is too deep at a path with this many steps.
fn check_depth(value: &Json, steps: usize) -> Result<(), Failure> {
    if value.depth() + steps <= MAX_DEPTH {
        return Ok(());
    }
    let message = format!("the data model would have more than {MAX_DEPTH} levels");
    let failure = Failure::new(FailureCode::LimitExceeded, message);
    Err(failure
        .with("limit", "data_model_levels")
        .with("max", MAX_DEPTH))
}

fn too_many_failures(max: usize) -> Failure {
    let message = format!("the failures would exceed their limit of {} MiB", max >> 20);
    Failure::new(FailureCode::LimitExceeded, message)
        .with("limit", "failure_bytes")
        .with("max", max)
}

// === impl Halt ===

impl From<Failure> for Halt {
    fn from(failure: Failure) -> Self {
        Self {
            // No time is left for other operations. Source: docs/protocols/a2e-workflows.md §4.7.
            is_fatal: failure.code == FailureCode::ExecutionTimeout,
            failure,
        }
    }
}

// === impl OperationOutcome ===

impl OperationOutcome {
    fn of(result: Result<Json, Failure>) -> Self {
        Self::from(result.map_err(Halt::from))
    }
}

impl From<Result<Json, Halt>> for OperationOutcome {
    fn from(result: Result<Json, Halt>) -> Self {
        Self {
            result,
            attempts: 0,
            is_cached: false,
        }
    }
}
