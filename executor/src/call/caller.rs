//! The caller of a request.

use std::time::Duration;

use futures_util::future::BoxFuture;

use super::redact::Redactor;
use super::retry::RetryUnsafe;
use crate::agent::Agent;
use crate::cache::Cache;
use crate::environment::Environment;
use crate::failure::Failure;
use crate::meter::execution_timeout;
use crate::quota::Quotas;

/// The caller of a request, and its resources.
pub(crate) struct Caller<'a> {
    pub(crate) agent: &'a Agent,
    pub(crate) environment: &'a Environment,
    pub(crate) cache: &'a Cache,
    pub(crate) quotas: &'a Quotas,
    /// Knows all secrets this execution has used so far.
    pub(crate) redactor: &'a Redactor,
    /// The deadline of the execution, by the clock.
    pub(crate) deadline: Duration,
    pub(crate) retry_unsafe: RetryUnsafe,
    pub(crate) max_retries: u32,
    /// The largest response body.
    pub(crate) max_response_bytes: usize,
    /// Called before each wait, with the number of requests so far and the length of the wait.
    pub(crate) on_retry: &'a (dyn Fn(u32, Duration) + Sync),
    /// Runs once before the first request with a method other than GET. If it fails, no request is sent.
    pub(crate) before_unsafe: &'a (dyn Fn() -> BoxFuture<'a, Result<(), Failure>> + Sync),
}

// === impl Caller ===

impl Caller<'_> {
    /// The time left for the execution, greater than zero.
    pub(super) fn time_left(&self) -> Result<Duration, Failure> {
        let left = self.deadline.checked_sub(self.environment.clock.elapsed());
        left.filter(|left| !left.is_zero())
            .ok_or_else(execution_timeout)
    }
}
