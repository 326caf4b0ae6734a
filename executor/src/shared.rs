//! The state that all executions of an executor share.

use std::time::Duration;

use a2abus_models::a2e_workflow::WorkflowLimits;
use a2abus_models::words;

use crate::cache::Cache;
use crate::call::RetryUnsafe;
use crate::environment::Environment;
use crate::quota::Quotas;
use crate::store::Keeper;

pub(crate) struct Shared {
    pub(crate) environment: Environment,
    pub(crate) limits: Limits,
    pub(crate) cache: Cache,
    pub(crate) quotas: Quotas,
    pub(crate) keeper: Keeper,
    pub(crate) retry_unsafe: RetryUnsafe,
}

/// The limits of an execution. Source: docs/protocols/a2e-workflows.md §7, limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// What a workflow may cost before it is refused.
    pub workflow: WorkflowLimits,
    /// Most runs of operations in one execution (default 20,000: 20 operations for each of 1,000 items). A loop is a run itself, and so is each operation in each
    /// of its turns.
    pub max_operation_runs: usize,
    /// Most items of a loop (default 1,000).
    pub max_loop_items: usize,
    /// Most loops within each other (default 3).
    pub max_loop_depth: usize,
    /// Heaviest data model, in bytes of memory (default 32 MiB). The results together have the
    /// same limit.
    pub max_model_bytes: usize,
    /// Most times that a call is sent again after a failure (default 3).
    pub max_retries: u32,
    /// Largest body of an answer, in bytes (default 10 MiB).
    pub max_response_bytes: usize,
    /// Most executions of one agent at a time (default 16).
    pub max_concurrent: usize,
    /// How long records are kept (default 24 h).
    pub keep_records: Duration,
    /// About the most bytes that the records of one agent take (default 64 MiB). Beyond three quarters of it the results
    /// of its oldest executions are removed, and their records say so; beyond the last quarter those records, too.
    pub max_record_bytes: usize,
}

words! {
    /// What becomes of an execution in which an operation fails. Source: docs/protocols/a2e-workflows.md §9.
    #[derive(Default)]
    OnError {
        /// It ends.
        #[default]
        Stop = "stop",
        /// It goes on with the next operation; within a loop with the next item.
        Continue = "continue",
    }
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            workflow: WorkflowLimits::default(),
            max_operation_runs: 20_000,
            max_loop_items: 1_000,
            max_loop_depth: 3,
            max_model_bytes: 32 << 20,
            max_retries: 3,
            max_response_bytes: 10 << 20,
            max_concurrent: 16,
            keep_records: Duration::from_secs(24 * 60 * 60),
            max_record_bytes: 64 << 20,
        }
    }
}
