//! Failures of an execution, as they are reported to its agent.

use a2abus_models::a2e_workflow::{Code, Report};
use a2abus_models::{Json, Object};
use a2abus_plugin::Text;

use crate::environment::{StoreError, StoreTooLarge};

/// Why an operation or an execution failed. Its texts contain paths and ids, but no secrets or file names of the host.
/// Source: docs/protocols/a2e-workflows.md §9.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// Its kind.
    pub code: FailureCode,
    /// A message for people.
    pub message: String,
    /// The operation that failed; `None` for the execution as a whole.
    pub operation_id: Option<Text>,
    /// Numbers and values that explain it.
    pub details: Object,
    /// A suggestion, if it differs from the usual one for this code.
    pub(crate) suggestion: Option<&'static str>,
}

/// The kind of a failure. Source: docs/protocols/a2e-workflows.md §9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)] // The names are those of the source.
pub enum FailureCode {
    /// The workflow is not valid; the code of its first error.
    Invalid(Code),
    /// A missing permission that only the run could detect.
    Refused(Code),
    OperationTimeout,
    ExecutionTimeout,
    PathNotFound,
    TypeMismatch,
    InvalidValue,
    InvalidResponse,
    ResponseTooLarge,
    HttpStatus,
    ConnectionFailed,
    RedirectNotFollowed,
    LimitExceeded,
    RateLimited,
    StorageFailed,
    Cancelled,
    /// Its process died or was stopped, and a call that must not be repeated had begun.
    Interrupted,
    /// The same, and no such call had begun: the same request runs again.
    Stopped,
}

/// What a client can do about results that are too large to be stored.
const RETURN_LESS: &str = "let the workflow return less, for example with a select; or ask the operator to let the store accept larger records (on a bus: larger messages)";

// === impl FailureCode ===

impl FailureCode {
    /// The `type` and the `code` on the wire.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Invalid(code) => ("ValidationError", code.as_str()),
            Self::Refused(code) => ("PermissionError", code.as_str()),
            Self::OperationTimeout => ("TimeoutError", "operation_timeout"),
            Self::ExecutionTimeout => ("TimeoutError", "execution_timeout"),
            Self::PathNotFound => ("DataError", "path_not_found"),
            Self::TypeMismatch => ("DataError", "type_mismatch"),
            Self::InvalidValue => ("DataError", "invalid_value"),
            Self::InvalidResponse => ("DataError", "invalid_response"),
            Self::ResponseTooLarge => ("DataError", "response_too_large"),
            Self::HttpStatus => ("ExecutionError", "http_status"),
            Self::ConnectionFailed => ("ExecutionError", "connection_failed"),
            Self::RedirectNotFollowed => ("ExecutionError", "redirect_not_followed"),
            Self::LimitExceeded => ("ExecutionError", "limit_exceeded"),
            Self::RateLimited => ("ExecutionError", "rate_limited"),
            Self::StorageFailed => ("ExecutionError", "storage_failed"),
            Self::Cancelled => ("ExecutionError", "cancelled"),
            Self::Interrupted => ("ExecutionError", "interrupted"),
            Self::Stopped => ("ExecutionError", "stopped"),
        }
    }

    /// The `type` on the wire, such as `DataError`.
    #[must_use]
    pub const fn type_name(self) -> &'static str {
        self.names().0
    }

    /// The `code` on the wire, such as `path_not_found`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.names().1
    }

    /// The usual suggestion.
    pub(crate) const fn suggestion(self) -> &'static str {
        match self {
            Self::Invalid(_) => "correct the errors listed in details and send the workflow again",
            Self::Refused(_) => "see the capabilities for the permitted APIs and credentials",
            Self::OperationTimeout => "give the call a longer timeout, or request less data",
            Self::ExecutionTimeout => {
                "split the workflow, use fewer waits and calls, or ask the operator for a longer max_execution_time"
            }
            Self::PathNotFound => "test the path with a Conditional (exists) before it is read",
            Self::TypeMismatch => "convert the value to the required type with TransformData",
            Self::InvalidValue => "use a string, a number or a Boolean here",
            Self::InvalidResponse => "call an endpoint that answers with JSON or text",
            Self::ResponseTooLarge => "ask for a smaller page of the data",
            Self::HttpStatus => "see statusCode and response in details",
            Self::ConnectionFailed => "try again later; the operator's log shows the cause",
            Self::RedirectNotFollowed => "call the redirect target directly",
            Self::LimitExceeded => "process less data, or split the work into several workflows",
            Self::RateLimited => "wait for retry_after seconds and try again",
            Self::StorageFailed => "store a smaller value, or ask the operator about the storage",
            Self::Cancelled => "send it again under a new execution id if it is still needed",
            Self::Interrupted => {
                "check the effects of the calls that had begun, then send the workflow under a new execution id"
            }
            Self::Stopped => "send it again, also under the same execution id",
        }
    }
}

// === impl Failure ===

impl Failure {
    /// A failure of the execution as a whole, without details.
    #[must_use]
    pub fn new(code: FailureCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            operation_id: None,
            details: Object::default(),
            suggestion: None,
        }
    }

    /// Adds the operation.
    #[must_use]
    pub fn of(mut self, operation_id: &Text) -> Self {
        self.operation_id = Some(operation_id.clone());
        self
    }

    /// Adds a detail.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Json>) -> Self {
        self.details.insert(Text::from_static(name), value.into());
        self
    }

    /// Its size in memory, in bytes.
    pub(crate) fn weight(&self) -> usize {
        size_of::<Self>() + self.message.len() + Json::from(self.details.clone()).weight()
    }

    /// Sets a suggestion in place of the usual one.
    pub(crate) fn suggest(mut self, suggestion: &'static str) -> Self {
        self.suggestion = Some(suggestion);
        self
    }

    /// The failure of an execution whose process is stopped.
    pub(crate) fn stopped(has_begun_unsafe: bool) -> Self {
        let message = "the bridge was stopped before the execution ended";
        match has_begun_unsafe {
            false => Self::new(FailureCode::Stopped, message).suggest(
                "send it again, also under the same execution id; if executions take this long, ask the operator for a longer http.drain_grace",
            ),
            true => Self::new(FailureCode::Interrupted, message).suggest(
                "check the effects of the calls that had begun, then send the workflow under a new execution id; if executions take this long, ask the operator for a longer http.drain_grace",
            ),
        }
    }

    /// The failure of a request whose deadline has passed before it began.
    #[must_use]
    pub fn expired(message: &'static str) -> Self {
        Self::new(FailureCode::ExecutionTimeout, message)
            .suggest("send it again with a later expirytime, or without one")
    }

    /// The failure of an execution that nobody runs any more, and that has not ended.
    pub(crate) fn abandoned(has_begun_unsafe: bool) -> Self {
        let message = "the execution did not end, for example because its process died";
        let code = match has_begun_unsafe {
            false => FailureCode::Stopped,
            true => FailureCode::Interrupted,
        };
        Self::new(code, message)
    }

    /// Why a record is stored without the results of its execution.
    pub(crate) fn results_not_stored(error: &StoreError) -> Self {
        let Some(cause) = error.0.downcast_ref::<StoreTooLarge>() else {
            let message = "the results are not stored, because the store failed";
            return Self::new(FailureCode::StorageFailed, message)
                .suggest("ask the operator: the log shows the cause");
        };
        let message = format!("the results are too large to be stored: {cause}");
        Self::new(FailureCode::LimitExceeded, message).suggest(RETURN_LESS)
    }

    /// The same for a record that would be too long to be read again.
    pub(crate) fn results_too_long(max: usize) -> Self {
        let message = format!(
            "the results are too large to be stored: the record would have more than {} MiB",
            max >> 20
        );
        Self::new(FailureCode::LimitExceeded, message)
            .with("limit", "record_bytes")
            .with("max", max)
            .suggest(RETURN_LESS)
    }

    /// The failure of an invalid workflow.
    pub(crate) fn invalid(report: &Report) -> Self {
        let first = report.errors.first();
        let code = first.map_or(Code::InvalidField, |issue| issue.code);
        let message = match (first, report.errors.len()) {
            (Some(issue), 1) => format!("the workflow is not valid: {}", issue.message),
            (_, errors) => format!("the workflow has {errors} errors"),
        };
        let report = report.to_json();
        let list = |name| report.get(name).cloned();
        Self::new(FailureCode::Invalid(code), message)
            .with("errors", list("errors"))
            .with("warnings", list("warnings"))
    }

    /// `{"type","code","message","operationId","details","suggestions"}`.
    #[must_use]
    pub fn to_value(&self) -> Json {
        let suggestion = self.suggestion.unwrap_or(self.code.suggestion());
        Json::object([
            ("type", Json::from(self.code.type_name())),
            ("code", self.code.as_str().into()),
            ("message", self.message.as_str().into()),
            ("operationId", self.operation_id.clone().into()),
            ("details", self.details.clone().into()),
            ("suggestions", vec![suggestion.into()].into()),
        ])
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
