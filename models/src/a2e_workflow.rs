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
mod workflow;
mod write;

pub use document::Document;
pub use issue::{Code, Issue, Level, Report, Severity, Strictness};
pub use operation::{OperationKind, OperationType};
pub use path::{OutputPath, Path, PathError, RelativePath, Segment};
pub use policy::{Allowed, Apis, CredentialRefusal, Policy, Refusal};
pub use template::{Body, FieldTemplate, Operand, Part, Template};
pub use workflow::{Dialect, Operation, Workflow, WorkflowLimits};
