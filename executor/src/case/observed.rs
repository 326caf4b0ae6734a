//! What a run did that cases can check.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use a2abus_models::a2e_workflow::operation::Storage;
use a2abus_models::a2e_workflow::{OperationType, Report};
use a2abus_models::{Json, Object};
use a2abus_plugin::Text;

use crate::agent::Agent;
use crate::executor::{Event, Executor};
use crate::failure::Failure;
use crate::record::Record;
use crate::trace::{OperationStatus, Progress};

/// The results of a run that cases can check.
#[derive(Debug, Default)]
pub(super) struct Observed {
    pub(super) report: Report,
    pub(super) record: Option<Arc<Record>>,
    pub(super) model: Object,
    /// Why the run did not start.
    pub(super) refusal: Option<Failure>,
    pub(super) retry_delays: Vec<Duration>,
    pub(super) waited: Duration,
    pub(super) requests: Vec<Json>,
    /// Requests without a recorded response, as `METHOD URL`.
    pub(super) unanswered: BTreeSet<String>,
    pub(super) stored: Vec<(Storage, Text, Json)>,
}

// === impl Observed ===

impl Observed {
    pub(super) fn unanswered(&self) -> impl Iterator<Item = String> {
        let requests = self.unanswered.iter();
        requests.map(|request| format!("the case has no response for {request}"))
    }

    pub(super) fn note(&mut self, event: Event) {
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
    pub(super) async fn read_stores(
        &mut self,
        executor: &Executor,
        agent: &Agent,
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
            let stored = executor.stored(agent.id(), session, storage, key).await;
            let stored = stored.map_err(|error| format!("{error}: {}", error.0))?;
            self.stored
                .push((storage, key.into(), stored.unwrap_or_default()));
        }
        Ok(())
    }
}
