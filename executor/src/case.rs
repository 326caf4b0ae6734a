//! Tests of workflows: recorded responses, a virtual clock, and the expected outcome.
//!
//! ```text
//! case ── parse ──> Case ── run ──> Verdict { name, differences }
//! ```
//!
//! A case is a JSON object:
//!
//! | member | meaning |
//! |---|---|
//! | `name` | its name |
//! | `workflow` | the lines: each an object, or a string with the text of the line |
//! | `input` | the initial data model |
//! | `http_fixtures` | `"METHOD URL"` to a list of responses; the last one repeats: `{"status","headers","body"}`, `body_text` instead of `body` if it is not JSON, or `{"error":"connect"}`, `{"error":"timeout"}` |
//! | `credentials` | id to `{"type","value","apis"}`; `apis` are the base URLs it may be sent to, `https://api.example.com` if absent |
//! | `policy` | `operations`, `apis`, `credentials`, `maxOperations`, `maxExecutionTimeMs`, `maxLoopItems`, `fileStorage`; what is absent is permitted, with the API `https://api.example.com` |
//! | `options` | `onError`: `stop` or `continue`; `level`: `strict`, `moderate` or `lenient` |
//! | `expected` | `valid`; if false `errors` (`code`, `level`, `operationId`, in any order); if true `status`, `results` and `model` as a whole, `error` and `errors` in part, and `requests`, `retry_delays_ms` (minimum and maximum of each), `stored`, `waited_ms`, `skipped`, `warnings`; an absent one must be empty |
//!
//! Other members of the case are ignored, unless their name is similar to one of these. Unknown members inside these
//! are refused. A case with a misspelt or repeated member fails with a message.

mod compare;
mod members;
mod recorded;
mod set_up;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use a2abus_models::a2e_workflow::operation::Storage;
use a2abus_models::a2e_workflow::{OperationType, Report, Strictness};
use a2abus_models::{Json, Object};
use a2abus_plugin::Text;
use bytes::Bytes;
use futures_util::StreamExt;

use crate::agent::Agent;
use crate::executor::{Event, Executor, Request, Started};
use crate::failure::Failure;
use crate::record::Record;
use crate::shared::OnError;
use crate::trace::{OperationStatus, Progress};
use crate::virtual_clock::VirtualClock;

pub use recorded::Recorded;

/// A test of a workflow.
#[derive(Debug, Clone)]
pub struct Case {
    name: Text,
    /// The test, or why it cannot be read.
    test: Result<Test, String>,
}

#[derive(Debug, Clone)]
struct Test {
    workflow: Bytes,
    input: Object,
    fixtures: Object,
    agent: Arc<Agent>,
    max_loop_items: Option<usize>,
    on_error: OnError,
    strictness: Strictness,
    expected: Json,
}

/// The result of one test case.
#[derive(Debug, Clone)]
pub struct CaseResult {
    /// The name of the case.
    pub name: Text,
    /// The differences; empty if the test passed.
    pub differences: Vec<String>,
}

/// Why a text is not a test case.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CaseError(String);

/// The results of a run that cases can check.
#[derive(Debug, Default)]
struct Observed {
    report: Report,
    record: Option<Arc<Record>>,
    model: Object,
    /// Why the run did not start.
    refusal: Option<Failure>,
    retry_delays: Vec<Duration>,
    waited: Duration,
    requests: Vec<Json>,
    /// Requests without a recorded response, as `METHOD URL`.
    unanswered: BTreeSet<String>,
    stored: Vec<(Storage, Text, Json)>,
}

// === impl Case ===

impl Case {
    /// Reads one case, or a file with `cases`. A malformed case is a case that fails.
    ///
    /// # Errors
    /// When it is neither, or contains no case.
    pub fn parse(text: &[u8]) -> Result<Vec<Self>, CaseError> {
        let error = |why: &str| Err(CaseError(why.to_owned()));
        let json = crate::parse(text).map_err(|error| CaseError(format!("not JSON: {error}")))?;
        let Some(file) = json.as_object() else {
            return error("a case must be an object");
        };
        match file.get("cases") {
            Some(_) if file.repeated().iter().any(|name| name == "cases") => {
                error("duplicate member cases")
            }
            Some(Json::Array(cases)) if cases.is_empty() => error("the file contains no case"),
            Some(Json::Array(cases)) => Ok(cases.iter().map(set_up::case).collect()),
            Some(_) => error("cases is not an array"),
            None => Ok(vec![set_up::case(&json)]),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &Text {
        &self.name
    }

    /// Runs it, on a virtual clock and without a network. Files are written to a temporary directory.
    pub async fn run(&self) -> CaseResult {
        let differences = match &self.test {
            Ok(test) => test.differences(&self.name).await,
            Err(error) => Err(error.clone()),
        };
        CaseResult {
            name: self.name.clone(),
            differences: differences.unwrap_or_else(|error| vec![error]),
        }
    }
}

// === impl Test ===

impl Test {
    async fn differences(&self, name: &Text) -> Result<Vec<String>, String> {
        let observed = self.observe(name).await?;
        let mut differences = compare::compare(&self.expected, &observed);
        if !differences.is_empty() {
            // First, because the others mostly follow from it.
            differences.splice(0..0, observed.unanswered());
        }
        Ok(differences)
    }

    async fn observe(&self, name: &Text) -> Result<Observed, String> {
        let files = tempfile::tempdir().map_err(|error| format!("no directory: {error}"))?;
        let clock = VirtualClock::default();
        let http = Arc::new(Recorded::new(&self.fixtures, clock.clone()));
        let executor = self.executor(clock, Arc::clone(&http), files.path())?;
        let report = executor.validate(&self.agent, &self.workflow, &self.input, self.strictness);
        let mut observed = Observed {
            report,
            ..Observed::default()
        };
        let request = Request {
            workflow: self.workflow.clone(),
            input: self.input.clone(),
            on_error: self.on_error,
            strictness: self.strictness,
            session: Some(name.clone()),
            ..Request::default()
        };
        match executor.execute(&self.agent, request).await {
            Ok(Started::New(mut execution)) => {
                while let Some(event) = execution.next().await {
                    observed.note(event);
                }
                observed.read_stores(&executor, self, name).await?;
            }
            Ok(Started::Running(_) | Started::Finished(_)) => {
                return Err("an execution with this id already exists".into());
            }
            Err(crate::executor::Refusal::Invalid(failure)) => observed.refusal = Some(failure),
            Err(refusal) => return Err(refusal.to_string()),
        }
        observed.requests = http.requests();
        observed.unanswered = http.unanswered();
        Ok(observed)
    }
}

// === impl CaseResult ===

impl CaseResult {
    /// Whether all was as expected.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.differences.is_empty()
    }
}

// === impl Observed ===

impl Observed {
    fn unanswered(&self) -> impl Iterator<Item = String> {
        let requests = self.unanswered.iter();
        requests.map(|request| format!("the case has no response for {request}"))
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::Ended { record, model } => {
                self.record = Some(record);
                self.model = model;
            }
            Event::Operation(progress) => self.note_progress(&progress),
        }
    }

    fn note_progress(&mut self, progress: &Progress) {
        match (progress.operation_type, progress.status) {
            (_, OperationStatus::Retrying) => self.retry_delays.push(progress.duration),
            (OperationType::Wait, OperationStatus::Success) => self.waited += progress.duration,
            _ => {}
        }
    }

    /// Reads the values that the operations stored.
    async fn read_stores(
        &mut self,
        executor: &Executor,
        test: &Test,
        session: &Text,
    ) -> Result<(), String> {
        let results = self
            .record
            .as_ref()
            .and_then(|record| record.results().cloned());
        for (_, result) in &results.unwrap_or_default() {
            let (Some(Json::Bool(true)), Some(storage), Some(key)) = (
                result.get("stored"),
                result.get("storage").and_then(Json::as_str),
                result.get("key").and_then(Json::as_str),
            ) else {
                continue;
            };
            let named = Storage::ALL
                .iter()
                .copied()
                .find(|of| of.as_str() == storage);
            let Some(storage) = named else { continue };
            let stored = executor
                .stored(test.agent.id(), session, storage, key)
                .await;
            let stored = stored.map_err(|error| format!("{error}: {}", error.0))?;
            self.stored
                .push((storage, key.into(), stored.unwrap_or_default()));
        }
        Ok(())
    }
}
