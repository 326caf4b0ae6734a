//! The results of validation.

use crate::json::Json;
use a2abus_plugin::Text;

/// An error or a warning about a workflow. Source: docs/protocols/a2e-workflows.md §3.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Issue {
    /// Whether it is an error or a warning.
    pub severity: Severity,
    /// Its code.
    pub code: Code,
    /// A message for people. Contains paths and ids, never values.
    pub message: String,
    /// The operation; `None` for a message that is not an operation.
    pub operation_id: Option<Text>,
    /// Its line, from 1.
    pub line: Option<u32>,
    /// A suggestion.
    pub suggestion: Option<String>,
}

wire_enum! {
    /// Whether an issue makes a workflow invalid.
    Severity {
        /// The workflow is invalid.
        Error = "error",
        /// The workflow is valid, but doubtful.
        Warning = "warning",
    }

    /// The level of validation a code belongs to. Source: docs/protocols/a2e-workflows.md §3.
    Level {
        /// The form of lines, messages and configurations.
        Structural = "structural",
        /// The operation is in the catalog.
        Operation = "operation",
        /// The agent may do it.
        Permission = "permission",
        /// References exist.
        Dependency = "dependency",
        /// Values have the required types.
        Type = "type",
        /// Not an error by itself.
        Warning = "warning",
    }

    /// How strict validation is. Source: docs/protocols/a2e-workflows.md §D9.
    #[derive(Default)]
    Strictness {
        /// Warnings count as errors.
        Strict = "strict",
        /// As the table of codes says.
        #[default]
        Moderate = "moderate",
        /// `path_not_found` and `type_mismatch` are warnings.
        Lenient = "lenient",
    }
}

/// Declares the codes by their levels.
macro_rules! codes {
    ($($level:ident { $($code:ident = $word:literal,)+ })+) => {
        wire_enum! {
            /// The code of an issue. Source: docs/protocols/a2e-workflows.md §3.
            #[non_exhaustive]
            Code { $($($code = $word,)+)+ }
        }

        impl Code {
            /// The level it belongs to.
            #[must_use]
            pub const fn level(self) -> Level {
                match self {
                    $($(Self::$code)|+ => Level::$level,)+
                }
            }
        }
    };
}

codes! {
    Structural {
        InvalidJson = "invalid_json",
        NotAnObject = "not_an_object",
        UnknownMessageType = "unknown_message_type",
        MissingField = "missing_field",
        InvalidField = "invalid_field",
        EmptyWorkflow = "empty_workflow",
        MissingBeginExecution = "missing_begin_execution",
        MultipleBeginExecution = "multiple_begin_execution",
        UpdateAfterBegin = "update_after_begin",
        MixedDialects = "mixed_dialects",
        DuplicateOperation = "duplicate_operation",
        DuplicateInOrder = "duplicate_in_order",
        MultipleOperationTypes = "multiple_operation_types",
        TooManyOperations = "too_many_operations",
        WorkflowTooLarge = "workflow_too_large",
        InvalidPath = "invalid_path",
        ReservedPath = "reserved_path",
        ExceedsExecutionTime = "exceeds_execution_time",
    }
    Operation {
        UnknownOperationType = "unknown_operation_type",
    }
    Permission {
        OperationNotPermitted = "operation_not_permitted",
        ApiNotPermitted = "api_not_permitted",
        ForbiddenTarget = "forbidden_target",
        CredentialNotFound = "credential_not_found",
        CredentialNotPermitted = "credential_not_permitted",
        CredentialMisplaced = "credential_misplaced",
        StorageNotPermitted = "storage_not_permitted",
    }
    Dependency {
        UnknownOperation = "unknown_operation",
        CyclicReference = "cyclic_reference",
        OrderConflict = "order_conflict",
        PathNotFound = "path_not_found",
    }
    Type {
        TypeMismatch = "type_mismatch",
    }
    Warning {
        UnknownField = "unknown_field",
        OperationReplaced = "operation_replaced",
        IgnoredMessage = "ignored_message",
        UnusedOperation = "unused_operation",
        EmptyConditions = "empty_conditions",
        BodyIgnored = "body_ignored",
        DeprecatedAlias = "deprecated_alias",
        PathMaybeMissing = "path_maybe_missing",
    }
}

/// The result of validation. Source: docs/protocols/a2e-workflows.md §3 and §D43.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The issues that make the workflow invalid.
    pub errors: Vec<Issue>,
    /// The other issues.
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

// === impl Issue ===

impl Issue {
    /// An issue of the whole workflow, at moderate strictness.
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

    /// Its JSON form in answers.
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

    /// Adds an issue. The last issue within the limit reports that there are more.
    pub(super) fn push(&mut self, issue: Issue) {
        if self.found.len() < self.max {
            self.found.push(issue);
        } else if self.found.len() == self.max {
            let message = format!("more than {} issues; the others are not listed", self.max);
            self.found.push(Issue::new(Code::WorkflowTooLarge, message));
        }
    }

    /// Suggests a name for an issue, unless the list of issues is full.
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

/// A quoted name from the workflow, truncated for messages.
pub(super) fn quote_name(name: &str) -> String {
    const MAX_SHOWN: usize = 100;
    match name.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{:?}...", name.get(..end).unwrap_or_default()),
        None => format!("{name:?}"),
    }
}

/// Suggests the most similar known name, if one is similar enough.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    const COMPARED: usize = 32;
    let best = known
        .into_iter()
        .take(COMPARED)
        .filter_map(|other| distance(name, other).map(|distance| (distance, other)))
        .min_by_key(|(distance, _)| *distance)?;
    Some(format!("did you mean {:?}?", best.1))
}

/// The edit distance, if it is small relative to the lengths and both texts are short. Ignores
/// case.
fn distance(a: &str, b: &str) -> Option<usize> {
    const MAX_CHARS: usize = 64;
    let shorter = a.len().min(b.len());
    // Two changes make almost any other word of three letters.
    let most = if shorter < 4 { 1 } else { shorter / 3 + 1 };
    if a.len() > MAX_CHARS || a.len().abs_diff(b.len()) > most {
        return None;
    }
    let distance = strsim::levenshtein(&a.to_ascii_lowercase(), &b.to_ascii_lowercase());
    (distance <= most).then_some(distance)
}
