//! A workflow, and the limits of its document.

use a2abus_plugin::Text;

use crate::a2e_message::Secret;
use crate::a2e_workflow::operation::OperationKind;
use crate::a2e_workflow::storage::Storage;
use crate::json::{Json, Object};

/// A workflow whose form is valid. Source: docs/protocols/a2e-workflows.md §1.
#[derive(Debug, Clone, PartialEq)]
pub struct Workflow {
    /// `executionId`; the wrapped dialect has none.
    pub execution_id: Option<Text>,
    /// `_agentId` of the begin line: the requested executor.
    pub agent: Option<Text>,
    /// `input` of the begin line: initial data, in addition to the input of the request.
    pub input: Object,
    /// The dialect it was written in.
    pub dialect: Dialect,
    /// The operations in order of definition.
    pub operations: Vec<Operation>,
    /// The ids in order of execution.
    pub order: Vec<Text>,
    /// The stored values that its paths read, by storage and key.
    pub stored: Vec<(Storage, Text)>,
}

/// One operation of a workflow. Equality ignores the line.
#[derive(Debug, Clone)]
pub struct Operation {
    /// Its id.
    pub id: Text,
    /// The line that defines it, from 1.
    pub line: u32,
    /// The operation with its parameters.
    pub kind: OperationKind,
    /// Its original configuration. A `Secret`, because authors put secrets into headers.
    pub config: Secret<Json>,
}

/// How messages are written. Source: docs/protocols/a2e-workflows.md §D1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Messages with a `type`, as specified.
    Flat,
    /// Messages wrapped in one member, as the original implementation reads them.
    Wrapped,
}

/// Limits above which a workflow is refused. Source: docs/protocols/a2e-workflows.md §7, limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkflowLimits {
    /// Largest line, in bytes (default 256 KiB).
    pub max_line_bytes: usize,
    /// Largest document, in bytes (default 1 MiB).
    pub max_bytes: usize,
    /// Deepest nesting within a line, at most 128 (default 64).
    pub max_depth: u32,
    /// The maximum number of listed issues (default 1,000); one more reports that there are others.
    pub max_issues: usize,
}

// === impl Workflow ===

impl Workflow {
    /// The operation of this id.
    #[must_use]
    pub fn operation(&self, id: &str) -> Option<&Operation> {
        self.operations.iter().find(|operation| operation.id == id)
    }
}

impl PartialEq for Operation {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && self.kind == other.kind
    }
}

impl Default for WorkflowLimits {
    fn default() -> Self {
        Self {
            max_line_bytes: 256 << 10,
            max_bytes: 1 << 20,
            max_depth: 64,
            max_issues: 1_000,
        }
    }
}
