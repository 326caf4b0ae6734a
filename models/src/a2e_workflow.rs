//! A2E workflows (agent to execution): parses documents of JSON Lines, and validates them.
//!
//! ```text
//! bytes ── Document::parse ──> Document ── validate ──> Report { errors, warnings }
//!                                 └── into_workflow ──> Workflow ── to_jsonl ──> text
//! ```
//!
//! Paths, templates, conditions, transforms and targets are parsed once, here, and not again by the executor. Both
//! dialects are read; the flat dialect of the specification is written. Source:
//! docs/protocols/a2e-workflows.md §1 to §4 and §7.

mod config;
mod config_transform;
mod document;
mod facts;
mod fields;
mod flow;
mod graph;
mod issue;
mod message;
pub mod operation;
mod path;
mod policy;
mod storage;
pub mod target;
mod template;
pub mod transform;
mod validate;
mod write;

use bytes::Bytes;

pub use document::Document;
pub use issue::{Code, Issue, Level, Report, Severity, Strictness};
pub use operation::{OperationKind, OperationType};
pub use path::{OutputPath, Path, PathError, RelativePath, Segment};
pub use policy::{Allowed, Apis, CredentialRefusal, Policy, Refusal};
pub use template::{Body, FieldTemplate, Operand, Part, Template};

use crate::a2e_message::Secret;
use crate::json::{Json, Object};
use a2abus_plugin::Text;

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
    pub stored: Vec<(operation::Storage, Text)>,
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
    /// Parses a workflow; its form must be valid. [`Document::validate`] decides whether it may run.
    ///
    /// # Errors
    /// All issues of its form.
    pub fn parse(bytes: &Bytes, limits: &WorkflowLimits) -> Result<Self, Vec<Issue>> {
        Document::parse(bytes, limits).into_workflow()
    }

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
