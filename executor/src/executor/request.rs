//! A request to execute a workflow, and why it is refused.

use std::time::SystemTime;

use a2abus_models::Object;
use a2abus_models::a2e_workflow::Strictness;
use a2abus_plugin::Text;
use bytes::Bytes;

use crate::environment::StoreError;
use crate::failure::Failure;
use crate::shared::OnError;

/// A request to execute a workflow. Source: docs/protocols/a2e-workflows.md §10.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// The workflow as JSON Lines.
    pub workflow: Bytes,
    /// The id of the execution, unless the workflow names one; a random id if both are missing. A client that may
    /// repeat a request should give the same id each time.
    pub execution_id: Option<Text>,
    /// The initial data model. Its members override those of the workflow's own input.
    pub input: Object,
    /// What to do if an operation fails.
    pub on_error: OnError,
    /// How strictly the workflow is validated.
    pub strictness: Strictness,
    /// The session for `sessionStorage`; the execution if there is none.
    pub session: Option<Text>,
    /// The deadline of the requester.
    pub deadline: Option<SystemTime>,
    /// Whether it was cancelled before it began. Nothing of it is run; this is recorded, so that a repeated request
    /// does not run it either. It does not count as a concurrent execution. Like any other request, it is refused if it
    /// is invalid or late.
    pub is_cancelled: bool,
    /// The names by which [`Executor::cancel_named_elsewhere`](crate::Executor::cancel_named_elsewhere) finds it.
    pub cancel_names: Vec<Text>,
}

/// Why a request is not executed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The workflow is not valid.
    #[error("{0}")]
    Invalid(Failure),
    /// The deadline has passed.
    #[error("{0}")]
    Expired(Failure),
    /// Another workflow has run under the same id.
    #[error("the execution id {0} belongs to a different workflow")]
    Conflict(Text),
    /// It has run, and its record was removed for lack of memory.
    #[error("the execution {0} has run, and its record was removed because memory was full")]
    Forgotten(Text),
    /// Its record is malformed, so nobody knows whether it has run. This stays so until the record expires.
    #[error("the record of the execution {0} cannot be read")]
    Unreadable(Text),
    /// The agent already has its maximum of concurrent executions.
    #[error("{0} executions are already running, the limit of the agent")]
    Busy(usize),
    /// The store does not work.
    #[error(transparent)]
    Store(#[from] StoreError),
}
