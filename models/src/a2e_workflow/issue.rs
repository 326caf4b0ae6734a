//! What validation finds.

use crate::json::Json;
use a2abus_plugin::Text;

/// What is wrong, or doubtful, in a workflow. Source: docs/protocols/a2e-workflows.md §3.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Issue {
    /// Whether it makes the workflow invalid.
    pub severity: Severity,
    /// What it is.
    pub code: Code,
    /// What a person should know. Names paths and ids, never values.
    pub message: String,
    /// The operation concerned; `None` for a message that is no operation.
    pub operation_id: Option<Text>,
    /// The line it stands in, from 1.
    pub line: Option<u32>,
    /// What may have been meant.
    pub suggestion: Option<String>,
}

/// Whether an issue makes a workflow invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// It does.
    Error,
    /// It does not.
    Warning,
}

/// The level of validation a code belongs to. Source: docs/protocols/a2e-workflows.md §3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Level {
    /// The form of lines, messages and configurations.
    Structural,
    /// The operation is in the catalog.
    Operation,
    /// The agent may do it.
    Permission,
    /// What is referred to is there.
    Dependency,
    /// Values are of the kinds that are needed.
    Type,
    /// Not an error by itself.
    Warning,
}

/// What an issue is. Source: docs/protocols/a2e-workflows.md §3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are those of the table in the source.
#[non_exhaustive]
pub enum Code {
    InvalidJson,
    NotAnObject,
    UnknownMessageType,
    MissingField,
    InvalidField,
    EmptyWorkflow,
    MissingBeginExecution,
    MultipleBeginExecution,
    UpdateAfterBegin,
    MixedDialects,
    DuplicateOperation,
    DuplicateInOrder,
    MultipleOperationTypes,
    TooManyOperations,
    WorkflowTooLarge,
    InvalidPath,
    ReservedPath,
    ExceedsExecutionTime,
    UnknownOperationType,
    OperationNotPermitted,
    ApiNotPermitted,
    ForbiddenTarget,
    CredentialNotFound,
    CredentialNotPermitted,
    CredentialMisplaced,
    StorageNotPermitted,
    UnknownOperation,
    CyclicReference,
    OrderConflict,
    PathNotFound,
    TypeMismatch,
    UnknownField,
    OperationReplaced,
    IgnoredMessage,
    UnusedOperation,
    EmptyConditions,
    BodyIgnored,
    DeprecatedAlias,
    PathMaybeMissing,
}

/// How much is forgiven. Source: docs/protocols/a2e-workflows.md §D9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Strictness {
    /// Warnings count as errors.
    Strict,
    /// As the table says.
    #[default]
    Moderate,
    /// `path_not_found` and `type_mismatch` are warnings.
    Lenient,
}

/// What validation found. Source: docs/protocols/a2e-workflows.md §3 and §D43.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// What makes the workflow invalid.
    pub errors: Vec<Issue>,
    /// What does not.
    pub warnings: Vec<Issue>,
}

/// The issues found so far, up to a bound.
#[derive(Debug, Clone)]
pub(super) struct Issues {
    found: Vec<Issue>,
    max: usize,
}

// === impl Code ===

impl Code {
    /// Every code, in the order of the source.
    pub const ALL: [Self; 39] = [
        Self::InvalidJson,
        Self::NotAnObject,
        Self::UnknownMessageType,
        Self::MissingField,
        Self::InvalidField,
        Self::EmptyWorkflow,
        Self::MissingBeginExecution,
        Self::MultipleBeginExecution,
        Self::UpdateAfterBegin,
        Self::MixedDialects,
        Self::DuplicateOperation,
        Self::DuplicateInOrder,
        Self::MultipleOperationTypes,
        Self::TooManyOperations,
        Self::WorkflowTooLarge,
        Self::InvalidPath,
        Self::ReservedPath,
        Self::ExceedsExecutionTime,
        Self::UnknownOperationType,
        Self::OperationNotPermitted,
        Self::ApiNotPermitted,
        Self::ForbiddenTarget,
        Self::CredentialNotFound,
        Self::CredentialNotPermitted,
        Self::CredentialMisplaced,
        Self::StorageNotPermitted,
        Self::UnknownOperation,
        Self::CyclicReference,
        Self::OrderConflict,
        Self::PathNotFound,
        Self::TypeMismatch,
        Self::UnknownField,
        Self::OperationReplaced,
        Self::IgnoredMessage,
        Self::UnusedOperation,
        Self::EmptyConditions,
        Self::BodyIgnored,
        Self::DeprecatedAlias,
        Self::PathMaybeMissing,
    ];

    /// The word on the wire and the level.
    const fn row(self) -> (&'static str, Level) {
        use Level::{Dependency, Operation, Permission, Structural, Type, Warning};
        match self {
            Self::InvalidJson => ("invalid_json", Structural),
            Self::NotAnObject => ("not_an_object", Structural),
            Self::UnknownMessageType => ("unknown_message_type", Structural),
            Self::MissingField => ("missing_field", Structural),
            Self::InvalidField => ("invalid_field", Structural),
            Self::EmptyWorkflow => ("empty_workflow", Structural),
            Self::MissingBeginExecution => ("missing_begin_execution", Structural),
            Self::MultipleBeginExecution => ("multiple_begin_execution", Structural),
            Self::UpdateAfterBegin => ("update_after_begin", Structural),
            Self::MixedDialects => ("mixed_dialects", Structural),
            Self::DuplicateOperation => ("duplicate_operation", Structural),
            Self::DuplicateInOrder => ("duplicate_in_order", Structural),
            Self::MultipleOperationTypes => ("multiple_operation_types", Structural),
            Self::TooManyOperations => ("too_many_operations", Structural),
            Self::WorkflowTooLarge => ("workflow_too_large", Structural),
            Self::InvalidPath => ("invalid_path", Structural),
            Self::ReservedPath => ("reserved_path", Structural),
            Self::ExceedsExecutionTime => ("exceeds_execution_time", Structural),
            Self::UnknownOperationType => ("unknown_operation_type", Operation),
            Self::OperationNotPermitted => ("operation_not_permitted", Permission),
            Self::ApiNotPermitted => ("api_not_permitted", Permission),
            Self::ForbiddenTarget => ("forbidden_target", Permission),
            Self::CredentialNotFound => ("credential_not_found", Permission),
            Self::CredentialNotPermitted => ("credential_not_permitted", Permission),
            Self::CredentialMisplaced => ("credential_misplaced", Permission),
            Self::StorageNotPermitted => ("storage_not_permitted", Permission),
            Self::UnknownOperation => ("unknown_operation", Dependency),
            Self::CyclicReference => ("cyclic_reference", Dependency),
            Self::OrderConflict => ("order_conflict", Dependency),
            Self::PathNotFound => ("path_not_found", Dependency),
            Self::TypeMismatch => ("type_mismatch", Type),
            Self::UnknownField => ("unknown_field", Warning),
            Self::OperationReplaced => ("operation_replaced", Warning),
            Self::IgnoredMessage => ("ignored_message", Warning),
            Self::UnusedOperation => ("unused_operation", Warning),
            Self::EmptyConditions => ("empty_conditions", Warning),
            Self::BodyIgnored => ("body_ignored", Warning),
            Self::DeprecatedAlias => ("deprecated_alias", Warning),
            Self::PathMaybeMissing => ("path_maybe_missing", Warning),
        }
    }

    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.row().0
    }

    /// The level it belongs to.
    #[must_use]
    pub const fn level(self) -> Level {
        self.row().1
    }

    fn severity(self, strictness: Strictness) -> Severity {
        let forgiven = match strictness {
            Strictness::Strict => false,
            Strictness::Moderate => self.level() == Level::Warning,
            Strictness::Lenient => {
                self.level() == Level::Warning
                    || matches!(self, Self::PathNotFound | Self::TypeMismatch)
            }
        };
        if forgiven {
            Severity::Warning
        } else {
            Severity::Error
        }
    }
}

impl Level {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Structural => "structural",
            Self::Operation => "operation",
            Self::Permission => "permission",
            Self::Dependency => "dependency",
            Self::Type => "type",
            Self::Warning => "warning",
        }
    }
}

impl Severity {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

impl Strictness {
    /// The strictness a word names: `strict`, `moderate` or `lenient`.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "strict" => Some(Self::Strict),
            "moderate" => Some(Self::Moderate),
            "lenient" => Some(Self::Lenient),
            _ => None,
        }
    }
}

// === impl Issue ===

impl Issue {
    /// An issue about the workflow as a whole, of moderate strictness.
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            severity: code.severity(Strictness::Moderate),
            code,
            message: message.into(),
            operation_id: None,
            line: None,
            suggestion: None,
        }
    }

    pub(super) fn about(mut self, operation_id: &Text) -> Self {
        self.operation_id = Some(operation_id.clone());
        self
    }

    pub(super) fn at(mut self, line: u32) -> Self {
        self.line = Some(line);
        self
    }

    pub(super) fn suggest(mut self, suggestion: Option<String>) -> Self {
        self.suggestion = suggestion;
        self
    }

    /// The level of its code.
    #[must_use]
    pub fn level(&self) -> Level {
        self.code.level()
    }

    /// As it is written in answers.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let mut members = vec![
            ("severity", Json::from(self.severity.as_str())),
            ("code", self.code.as_str().into()),
            ("level", self.level().as_str().into()),
            ("message", self.message.as_str().into()),
            ("operationId", self.operation_id.clone().into()),
        ];
        members.extend(self.line.map(|line| ("line", u64::from(line).into())));
        members.extend(
            self.suggestion
                .as_deref()
                .map(|text| ("suggestion", text.into())),
        );
        Json::object(members)
    }
}

// === impl Report ===

impl Report {
    pub(super) fn new(issues: Vec<Issue>, strictness: Strictness) -> Self {
        let mut report = Self::default();
        for mut issue in issues {
            issue.severity = issue.code.severity(strictness);
            match issue.severity {
                Severity::Error => report.errors.push(issue),
                Severity::Warning => report.warnings.push(issue),
            }
        }
        report
    }

    /// Whether the workflow may run.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.errors.is_empty()
    }

    /// `{"valid","errors","warnings"}`.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let list =
            |issues: &[Issue]| Json::from(issues.iter().map(Issue::to_json).collect::<Vec<_>>());
        Json::object([
            ("valid", Json::from(self.is_valid())),
            ("errors", list(&self.errors)),
            ("warnings", list(&self.warnings)),
        ])
    }
}

// === impl Issues ===

impl Issues {
    pub(super) fn new(max: usize) -> Self {
        Self {
            found: Vec::new(),
            max,
        }
    }

    /// Adds an issue. The last one there is room for says that there are more.
    pub(super) fn push(&mut self, issue: Issue) {
        if self.found.len() < self.max {
            self.found.push(issue);
        } else if self.found.len() == self.max {
            let message = format!("more than {} issues; the others are not listed", self.max);
            self.found.push(Issue::new(Code::WorkflowTooLarge, message));
        }
    }

    /// Suggests a name for an issue, unless it would not be listed.
    pub(super) fn nearest<'a>(
        &self,
        name: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> Option<String> {
        if self.found.len() < self.max {
            nearest(name, known)
        } else {
            None
        }
    }

    pub(super) fn as_slice(&self) -> &[Issue] {
        &self.found
    }

    pub(super) fn into_vec(self) -> Vec<Issue> {
        self.found
    }
}

/// A foreign name as far as a message repeats it.
pub(super) fn shown(name: &str) -> String {
    const SHOWN: usize = 100;
    match name.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}...", name.get(..end).unwrap_or_default()),
        None => format!("{name:?}"),
    }
}

/// Suggests the known name that is nearest to one that is not known, if one is near.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    const COMPARED: usize = 32;
    let best = known
        .into_iter()
        .take(COMPARED)
        .filter_map(|other| distance(name, other).map(|distance| (distance, other)))
        .min_by_key(|(distance, _)| *distance)?;
    Some(format!("did you mean {:?}?", best.1))
}

/// The number of characters to change, when it is small against the lengths and they are short; case
/// does not count.
fn distance(a: &str, b: &str) -> Option<usize> {
    const LONGEST: usize = 64;
    let most = a.len().min(b.len()) / 3 + 1;
    if a.len() > LONGEST || a.len().abs_diff(b.len()) > most {
        return None;
    }
    let distance = strsim::levenshtein(&a.to_ascii_lowercase(), &b.to_ascii_lowercase());
    (distance <= most).then_some(distance)
}
