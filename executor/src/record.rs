//! The record of an execution: its stored form and its reported form.
//!
//! Source: docs/protocols/a2e-workflows.md §9 and §D44 to §D46.

use std::time::{Duration, SystemTime};

use a2abus_models::a2e_workflow::Report;
use a2abus_models::wire_enum;
use a2abus_models::{Array, Json, Object};
use a2abus_plugin::Text;

use crate::engine::RunResult;
use crate::failure::{Failure, FailureCode};
use crate::shared::OnError;
use crate::trace::{Trace, milliseconds};

/// The record of an execution.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    execution_id: Text,
    status: Status,
    started: SystemTime,
    /// How many operation events were reported.
    reports: usize,
    /// Why its results are not stored.
    not_stored: Option<Json>,
    /// Whether this copy was made when its execution was found abandoned.
    is_newly_interrupted: bool,
    /// The members of the record on the wire.
    members: Object,
}

wire_enum! {
    /// The status of an execution. Source: docs/protocols/a2e-workflows.md §9.
    #[non_exhaustive]
    Status {
        /// It is accepted.
        Pending = "pending",
        /// It runs.
        Running = "running",
        /// Everything succeeded.
        Success = "success",
        /// It continued after a failure, and something succeeded.
        PartialSuccess = "partial_success",
        /// It ended with a failure, or nothing succeeded.
        Failed = "failed",
        /// It was cancelled.
        Cancelled = "cancelled",
    }
}

/// The number of reports of an abandoned execution, where the real one is unknown: the highest `seq` of an event.
const UNKNOWN_REPORTS: usize = 0x7fff_ffff;

/// The member of a record that marks removed results.
const RESULTS_REMOVED: &str = "results_removed";

/// The inputs of a record besides the run itself.
pub(crate) struct RecordInputs<'a> {
    pub(crate) execution_id: &'a Text,
    pub(crate) started: SystemTime,
    pub(crate) duration: Duration,
    pub(crate) on_error: OnError,
    pub(crate) warnings: &'a Report,
    pub(crate) trace: &'a Trace,
}

// === impl Status ===

impl Status {
    /// Whether it is final.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Pending | Self::Running)
    }
}

// === impl Record ===

impl Record {
    /// The record of an execution that begins.
    pub(crate) fn running(execution_id: &Text, started: SystemTime) -> Self {
        let members = [
            ("execution_id", execution_id.clone().into()),
            ("status", Status::Running.as_str().into()),
            ("results", Object::default().into()),
            ("started_at", timestamp(started)),
            ("completed_at", Json::Null),
            ("duration_ms", Json::Null),
            ("operations", Array::default().into()),
        ];
        Self::new(execution_id, Status::Running, started, members)
    }

    pub(crate) fn ended(inputs: &RecordInputs<'_>, ended: &RunResult) -> Self {
        let status = status(ended, inputs.on_error);
        let mut members = vec![
            ("execution_id", inputs.execution_id.clone().into()),
            ("status", status.as_str().into()),
            ("results", ended.results.clone().into()),
            ("started_at", timestamp(inputs.started)),
            ("completed_at", timestamp(inputs.started + inputs.duration)),
            ("duration_ms", milliseconds(inputs.duration)),
        ];
        members.extend(
            ended
                .error
                .as_ref()
                .map(|error| ("error", error.to_value())),
        );
        let mut errors: Vec<Json> = ended.errors.iter().map(Failure::to_value).collect();
        if inputs.on_error == OnError::Continue {
            errors.extend(ended.error.as_ref().map(Failure::to_value));
        }
        if !errors.is_empty() {
            members.push(("errors", errors.into()));
        }
        if !ended.skipped.is_empty() {
            let skipped: Vec<Json> = ended.skipped.iter().cloned().map(Json::from).collect();
            members.push(("skipped", skipped.into()));
        }
        if !inputs.warnings.warnings.is_empty() {
            let warnings = inputs.warnings.to_json();
            members.extend(
                warnings
                    .get("warnings")
                    .map(|list| ("warnings", list.clone())),
            );
        }
        members.push(("operations", inputs.trace.entries().into()));
        Self::new(inputs.execution_id, status, inputs.started, members)
            .reported(inputs.trace.reports())
    }

    fn new(
        execution_id: &Text,
        status: Status,
        started: SystemTime,
        members: impl IntoIterator<Item = (&'static str, Json)>,
    ) -> Self {
        let members = members
            .into_iter()
            .map(|(name, value)| (Text::from_static(name), value));
        Self {
            execution_id: execution_id.clone(),
            status,
            started,
            reports: 0,
            not_stored: None,
            is_newly_interrupted: false,
            members: members.collect(),
        }
    }

    /// The same execution, which was abandoned. It is interrupted if a call that must not be repeated had begun; if
    /// not, the same request runs again.
    pub(crate) fn abandoned(&self, has_begun_unsafe: bool) -> Self {
        let error = Failure::abandoned(has_begun_unsafe);
        let mut record = self.clone();
        record.status = Status::Failed;
        record.reports = UNKNOWN_REPORTS;
        record.members.insert("status", Status::Failed.as_str());
        record.members.insert("error", error.to_value());
        record
    }

    /// The same, marked as the first copy that says that the execution was interrupted.
    pub(crate) fn newly_interrupted(self) -> Self {
        Self {
            is_newly_interrupted: true,
            ..self
        }
    }

    /// Whether the request that got this record has found its execution abandoned, and has recorded it as interrupted.
    #[must_use]
    pub fn is_newly_interrupted(&self) -> bool {
        self.is_newly_interrupted
    }

    /// The same without the parts that may be large: values, trace, and all errors except the one that ended it. If the
    /// store does not accept them, the record says why.
    pub(crate) fn without_values(&self, why: Option<&Failure>) -> Self {
        let retain = |(name, value): (&Text, &Json)| {
            let value = match name.as_str() {
                "errors" | "skipped" | "warnings" => return None,
                "results" => Object::default().into(),
                "operations" => Array::default().into(),
                _ => value.clone(),
            };
            Some((name.clone(), value))
        };
        let removed = (Text::from_static(RESULTS_REMOVED), Json::Bool(true));
        let why = why.map(|why| match self.members.get("error") {
            None => (Text::from_static("error"), why.to_value()),
            Some(_) => (Text::from_static("errors"), vec![why.to_value()].into()),
        });
        let kept = self.members.iter().filter_map(retain);
        Self {
            members: kept.chain(why).chain([removed]).collect(),
            ..self.clone()
        }
    }

    /// The same, with the reason why its results are not stored. Only this copy has them.
    pub(crate) fn not_stored_because(self, why: &Failure) -> Self {
        let not_stored = Some(why.to_value());
        Self { not_stored, ..self }
    }

    /// Why its results are not stored, so that nobody can ask for them later.
    #[must_use]
    pub fn not_stored(&self) -> Option<&Json> {
        self.not_stored.as_ref()
    }

    /// Whether its values were removed.
    pub(crate) fn is_without_values(&self) -> bool {
        self.members.get(RESULTS_REMOVED).is_some()
    }

    /// The same with the current state of the operations.
    pub(crate) fn with_operations(&self, trace: &Trace) -> Self {
        let mut record = self.clone();
        record.members.insert("operations", trace.entries());
        record
    }

    /// Whether its process died or was stopped before it ended, and before a call that must not be repeated had begun:
    /// the same request runs again, and is not answered with this record. Source: docs/protocols/a2e-workflows.md §9.
    #[must_use]
    pub fn may_run_again(&self) -> bool {
        let error = self.members.get("error");
        let code = error.and_then(|error| error.get("code")?.as_str());
        code == Some(FailureCode::Stopped.as_str())
    }

    /// Whether it answers the same request when that comes again.
    pub(crate) fn answers_again(&self) -> bool {
        self.status.is_final() && !self.may_run_again()
    }

    /// Reads a record, or a summary.
    pub(crate) fn read(value: &Json) -> Option<Self> {
        let started: jiff::Timestamp = value.get("started_at")?.as_str()?.parse().ok()?;
        Some(Self {
            execution_id: value.get("execution_id")?.as_str()?.into(),
            status: Status::from_name(value.get("status")?.as_str()?)?,
            started: started.into(),
            reports: 0,
            not_stored: None,
            is_newly_interrupted: false,
            members: value.as_object()?.clone(),
        })
    }

    /// The same with this number of operation events.
    pub(crate) fn reported(self, reports: usize) -> Self {
        Self { reports, ..self }
    }

    /// The id of the execution.
    #[must_use]
    pub fn execution_id(&self) -> &Text {
        &self.execution_id
    }

    /// Its status.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status
    }

    /// When it began.
    #[must_use]
    pub fn started(&self) -> SystemTime {
        self.started
    }

    /// How many operation events were reported: the number of its [`Event::Operation`](crate::Event::Operation)s.
    /// If the execution was abandoned, nobody knows it, and this is the highest number of an event: 2,147,483,647.
    #[must_use]
    pub fn reports(&self) -> usize {
        self.reports
    }

    /// The values of the operations that succeeded.
    #[must_use]
    pub fn results(&self) -> Option<&Object> {
        self.members.get("results").and_then(Json::as_object)
    }

    /// The answer to a request to execute: `{"execution_id","status","results","duration_ms",
    /// "error"?,"errors"?,"skipped"?,"warnings"?}`. Source: docs/protocols/a2e-workflows.md §10.
    #[must_use]
    pub fn answer(&self) -> Json {
        let of_record = ["started_at", "completed_at", "operations"];
        self.without(&of_record)
    }

    /// An entry of a list.
    #[must_use]
    pub fn summary(&self) -> Json {
        self.without(&[
            "results",
            "error",
            "errors",
            "skipped",
            "warnings",
            "operations",
        ])
    }

    fn without(&self, names: &[&str]) -> Json {
        let members = self
            .members
            .iter()
            .filter(|(name, _)| !names.contains(&name.as_str()));
        Json::Object(
            members
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
        )
    }

    /// The whole record. Source: docs/protocols/a2e-workflows.md §10.
    #[must_use]
    pub fn to_value(&self) -> Json {
        self.members.clone().into()
    }
}

/// Source: docs/protocols/a2e-workflows.md §9.
fn status(ended: &RunResult, on_error: OnError) -> Status {
    match (&ended.error, on_error) {
        (Some(error), _) if error.code == FailureCode::Cancelled => Status::Cancelled,
        (Some(error), _)
            if matches!(error.code, FailureCode::Stopped | FailureCode::Interrupted) =>
        {
            Status::Failed
        }
        (None, _) if ended.errors.is_empty() => Status::Success,
        (Some(_), OnError::Stop) => Status::Failed,
        (_, OnError::Continue) if ended.results.is_empty() => Status::Failed,
        (_, OnError::Continue) => Status::PartialSuccess,
        (None, OnError::Stop) => Status::Success,
    }
}

/// RFC 3339, UTC, with milliseconds.
fn timestamp(time: SystemTime) -> Json {
    let Ok(time) = jiff::Timestamp::try_from(time) else {
        return Json::Null;
    };
    format!("{time:.3}").into()
}
