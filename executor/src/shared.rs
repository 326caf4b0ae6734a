//! The state that all executions of an executor share.

use std::time::Duration;

use a2abus_models::a2e_workflow::WorkflowLimits;
use a2abus_models::wire_enum;

use crate::cache::Cache;
use crate::call::RetryUnsafe;
use crate::environment::Environment;
use crate::quota::Quotas;
use crate::store::Storages;

pub(crate) struct Shared {
    pub(crate) environment: Environment,
    pub(crate) limits: Limits,
    pub(crate) cache: Cache,
    pub(crate) quotas: Quotas,
    pub(crate) storages: Storages,
    pub(crate) retry_unsafe: RetryUnsafe,
}

/// The limits of an execution. Source: docs/protocols/a2e-workflows.md §7, limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The limits on the workflow text.
    pub workflow: WorkflowLimits,
    /// The maximum number of operation runs in one execution (default 20,000: 20 operations for each of 1,000 items). A
    /// loop counts as one run, and so does each operation in each of its iterations.
    pub max_operation_runs: usize,
    /// The maximum number of items of a loop (default 1,000).
    pub max_loop_items: usize,
    /// The maximum depth of nested loops (default 3).
    pub max_loop_depth: usize,
    /// The largest data model, in bytes of memory (default 32 MiB). All results together have the same limit, and so have
    /// all failures after which the execution continues.
    pub max_model_bytes: usize,
    /// How often a call is retried after a failure (default 3).
    pub max_retries: u32,
    /// Largest response body, in bytes (default 10 MiB).
    pub max_response_bytes: usize,
    /// The maximum number of concurrent executions of one agent (default 16).
    pub max_concurrent: usize,
    /// How long records are kept (default 24 h).
    pub keep_records: Duration,
    /// The approximate maximum size of one agent's records in bytes (default 64 MiB). Above three quarters of it, its
    /// oldest executions lose their results, and their records say so; above the full amount they lose their records
    /// too.
    pub max_record_bytes: usize,
}

wire_enum! {
    /// How an execution continues when an operation fails. Source: docs/protocols/a2e-workflows.md §9.
    #[derive(Default)]
    OnError {
        /// It ends.
        #[default]
        Stop = "stop",
        /// It continues with the next operation; in a loop with the next item.
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
