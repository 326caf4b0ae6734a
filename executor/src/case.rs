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
mod observed;
mod recorded;
mod set_up;

use std::sync::Arc;

use a2abus_models::Json;
use a2abus_plugin::Text;
use futures_util::StreamExt;

use crate::executor::{Request, Started};
use crate::virtual_clock::VirtualClock;
use observed::Observed;
use set_up::Test;

pub use recorded::Recorded;

/// A test of a workflow.
#[derive(Debug, Clone)]
pub struct Case {
    name: Text,
    /// The test, or why it cannot be read.
    test: Result<Test, String>,
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
            Some(Json::Array(cases)) => Ok(cases.iter().map(Self::of).collect()),
            Some(_) => error("cases is not an array"),
            None => Ok(vec![Self::of(&json)]),
        }
    }

    fn of(json: &Json) -> Self {
        let name = json.get("name").and_then(Json::as_text);
        // Otherwise one of the two would be ignored, and the test could pass.
        let test = match json.first_repeated() {
            Some(member) => Err(format!("duplicate member {member}")),
            None => Test::read(json),
        };
        Self {
            name: name.cloned().unwrap_or_else(|| "unnamed".into()),
            test,
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
                observed.read_stores(&executor, &self.agent, name).await?;
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
