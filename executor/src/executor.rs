//! The public interface of the crate: validate, execute, query, cancel.

mod execution;
mod request;
mod running;

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use a2abus_models::a2e_workflow::operation::Storage;
use a2abus_models::a2e_workflow::{Document, OperationType, Report, Strictness, Workflow};
use a2abus_models::{Json, Object};
use a2abus_plugin::Text;
use bytes::Bytes;
use tokio::sync::watch;

pub use execution::{Event, Execution, RunningElsewhere};
pub use request::{Refusal, Request};

use crate::agent::Agent;
use crate::archive::{Archive, MalformedRecord, Stored};
use crate::cache::{Cache, Caching};
use crate::call::RetryUnsafe;
use crate::environment::{Environment, StoreError};
use crate::failure::Failure;
use crate::plan::Plan;
use crate::quota::Quotas;
use crate::record::{Record, Status};
use crate::shared::{Limits, Shared};
use crate::store::{FileStore, Storages, StoredValue};
use execution::{Inner, Start};
use running::{Admission, Running, Slot};

/// Validates and executes workflows, for any number of agents. Cheap to clone.
///
/// # Cancel safety
/// An [`Execution`] runs while it is polled. Dropping it abandons it, as if the process had died: [`Executor::record`]
/// reports it as stopped, and the same request runs again; or, if a call that must not be repeated had begun, it is
/// reported as interrupted, and does not run again. The same is true after [`Event::Ended`] until the stream ends: only
/// then is the end stored.
#[derive(Clone)]
pub struct Executor(Arc<Inner>);

/// The configuration of an executor.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// The limits of an execution.
    pub limits: Limits,
    /// Where StoreData writes files; disabled if not set.
    pub files: Option<FileStore>,
    /// Whether requests that may change something are repeated when it is unknown whether they have acted.
    pub retry_unsafe: RetryUnsafe,
    /// How long results are cached.
    pub caching: Caching,
}

/// The result of a request to execute.
#[derive(Debug)]
pub enum Started {
    /// The execution, which runs while it is polled.
    New(Execution),
    /// The same request is already running. Source: docs/protocols/a2e-workflows.md §D45.
    Running(RunningElsewhere),
    /// The same request has run before. Source: docs/protocols/a2e-workflows.md §D45.
    Finished(Arc<Record>),
}

/// The record stored under an id.
enum StoredState {
    /// The final record.
    Ended(Record),
    /// Another process is running it.
    RunsElsewhere,
}

/// At most this many agents and peers are counted at a time.
const MAX_COUNTED: usize = 100_000;

// === impl Executor ===

impl Executor {
    /// An executor in this environment.
    #[must_use]
    pub fn new(environment: Environment, options: Options) -> Self {
        let clock = Arc::clone(&environment.clock);
        let store = Arc::clone(&environment.store);
        let cache = Cache::new(Arc::clone(&clock), options.caching);
        Self(Arc::new(Inner {
            running: Running::default(),
            archive: Archive::new(Arc::clone(&store), options.limits.max_record_bytes),
            shared: Shared {
                cache,
                quotas: Quotas::new(Arc::clone(&clock), MAX_COUNTED),
                storages: Storages::new(store, options.files, clock),
                limits: options.limits,
                retry_unsafe: options.retry_unsafe,
                environment,
            },
        }))
    }

    /// Validates a workflow on all five levels, without running anything. Source: docs/protocols/a2e-workflows.md §3.
    #[must_use]
    pub fn validate(
        &self,
        agent: &Agent,
        workflow: &Bytes,
        input: &Object,
        strictness: Strictness,
    ) -> Report {
        let document = Document::parse(workflow, &self.0.shared.limits.workflow);
        document.validate(agent.policy(), Some(input), strictness)
    }

    /// Begins an execution, or finds the one of the same agent, id and workflow.
    /// Source: docs/protocols/a2e-workflows.md §9, §10 and §D45.
    ///
    /// # Errors
    /// Why it is not executed.
    pub async fn execute(
        &self,
        agent: &Arc<Agent>,
        mut request: Request,
    ) -> Result<Started, Refusal> {
        let shared = &self.0.shared;
        let document = Document::parse(&request.workflow, &shared.limits.workflow);
        let report = document.validate(agent.policy(), Some(&request.input), request.strictness);
        let Ok(workflow) = document.into_workflow() else {
            return Err(Refusal::Invalid(Failure::invalid(&report)));
        };
        request.input = whole_input(&workflow, &request.input);
        let id = self.id_of(&workflow, &request);
        let digest = digest(&request.workflow);
        if !report.is_valid() {
            let refusal = Refusal::Invalid(Failure::invalid(&report));
            return self.existing(agent, &id, &digest).await?.ok_or(refusal);
        }
        let max = shared.limits.max_concurrent;
        let limit = (!request.is_cancelled).then_some(max);
        let slot = match self.slot(agent, &id, &digest, limit).await? {
            ControlFlow::Continue(slot) => slot,
            ControlFlow::Break(same) => return Ok(same),
        };
        match self.load_final(agent, &id, &digest).await? {
            Some(StoredState::Ended(record)) => {
                let record = Arc::new(record);
                slot.end(&record);
                return Ok(Started::Finished(record));
            }
            Some(StoredState::RunsElsewhere) => return Ok(self.follow(agent, id, None)),
            None => {}
        }
        if request.is_cancelled {
            slot.cancel.cancel();
        }
        let start = Start {
            agent: Arc::clone(agent),
            plan: Plan::new(workflow),
            execution_id: id.clone(),
            digest: digest.clone(),
            request,
            report,
        };
        if let Some(execution) = Execution::begin(Arc::clone(&self.0), start, slot).await? {
            return Ok(Started::New(execution));
        }
        // Another process was faster, with this or with another workflow.
        let existing = self.existing(agent, &id, &digest).await?;
        Ok(existing.unwrap_or_else(|| self.follow(agent, id, None)))
    }

    /// The slot of an execution, or the execution itself if it already runs or has ended. `limit` is the maximum number
    /// of concurrent executions of the agent.
    async fn slot(
        &self,
        agent: &Agent,
        id: &Text,
        digest: &Text,
        limit: Option<usize>,
    ) -> Result<ControlFlow<Started, Slot>, Refusal> {
        loop {
            match self.0.running.admit(agent.id(), id, digest, limit) {
                Admission::Slot(slot) => return Ok(ControlFlow::Continue(slot)),
                Admission::Running(ended) => {
                    let same = self.follow(agent, id.clone(), Some(ended));
                    return Ok(ControlFlow::Break(same));
                }
                Admission::Conflict(mut holder) => {
                    holder.mark_unchanged();
                    if let Some(same) = self.existing(agent, id, digest).await? {
                        return Ok(ControlFlow::Break(same));
                    }
                    // The stored record is that of this workflow, so the holder is about to be refused, which drops the
                    // sender. Or that record has just expired, and the holder stores its own. Both end this wait.
                    let _: Result<(), _> = holder.changed().await;
                }
                Admission::Full(refusal) => {
                    // A finished execution does not count as concurrent.
                    let same = self.existing(agent, id, digest).await?;
                    return same.map(ControlFlow::Break).ok_or(refusal);
                }
            }
        }
    }

    /// The id of an execution: that of the workflow, or else that of the request.
    fn id_of(&self, workflow: &Workflow, request: &Request) -> Text {
        let named = workflow.execution_id.as_ref();
        let id = named.or(request.execution_id.as_ref()).cloned();
        id.unwrap_or_else(|| self.new_id())
    }

    fn follow(
        &self,
        agent: &Agent,
        id: Text,
        ended: Option<watch::Receiver<Option<Arc<Record>>>>,
    ) -> Started {
        Started::Running(RunningElsewhere::new(
            Arc::clone(&self.0),
            agent.id(),
            id,
            ended,
        ))
    }

    /// The running execution or the final record under this id, if it has the same workflow. Changes nothing, because
    /// only the holder of a slot may. A different workflow with the slot is a conflict, unless the stored record shows
    /// that this workflow has the id: the other one has the slot only until it has read that record.
    async fn existing(
        &self,
        agent: &Agent,
        id: &Text,
        digest: &Text,
    ) -> Result<Option<Started>, Refusal> {
        let is_held = match self.0.running.find(agent.id(), id, digest) {
            Some(Admission::Running(ended)) => {
                return Ok(Some(self.follow(agent, id.clone(), Some(ended))));
            }
            Some(Admission::Conflict(_)) => true,
            _ => false,
        };
        let stored = self.load_stored(agent, id).await?;
        let Some(stored) = stored.filter(|stored| !self.has_expired(&stored.record)) else {
            return match is_held {
                true => Err(Refusal::Conflict(id.clone())),
                false => Ok(None),
            };
        };
        if stored.digest != *digest {
            return Err(Refusal::Conflict(id.clone()));
        }
        let answers = stored.record.answers_again();
        Ok(answers.then(|| Started::Finished(Arc::new(stored.record))))
    }

    /// The record under this id, if it has the same workflow and answers the request. Call it only while holding the
    /// id's slot, because it records abandoned executions as interrupted, or replaces them.
    async fn load_final(
        &self,
        agent: &Agent,
        id: &Text,
        digest: &Text,
    ) -> Result<Option<StoredState>, Refusal> {
        let archive = &self.0.archive;
        let Some(stored) = self.load_usable(agent, id, digest).await? else {
            return Ok(None);
        };
        if stored.record.answers_again() {
            return Ok(Some(StoredState::Ended(stored.record)));
        }
        if archive.runs_elsewhere(agent.id(), id) {
            return Ok(Some(StoredState::RunsElsewhere));
        }
        // It has ended elsewhere since it was read, or was abandoned.
        let Some(mut stored) = self.load_usable(agent, id, digest).await? else {
            return Ok(None);
        };
        if stored.record.answers_again() {
            return Ok(Some(StoredState::Ended(stored.record)));
        }
        // It had begun, and was abandoned or stopped. Source: docs/protocols/a2e-workflows.md §11.
        let clock = &self.0.shared.environment.clock;
        let mut turn = archive.turn(agent.id(), clock.as_ref()).await?;
        if !stored.has_begun_unsafe {
            // It begins again; its old list entry would remain otherwise.
            archive.remove(&turn, agent.id(), &stored.record).await?;
            return Ok(None);
        }
        stored.record = stored.record.abandoned(true);
        archive.save_in(&mut turn, agent.id(), &stored).await?;
        tracing::warn!(
            agent = %agent.id(), execution_id = %id,
            "an execution is recorded as interrupted: it did not end, for example because its process died, and a call that may change something had begun; check the effects of its calls"
        );
        Ok(Some(StoredState::Ended(stored.record.newly_interrupted())))
    }

    /// The stored record under this id, if it has the same workflow. Removes a record that has expired.
    async fn load_usable(
        &self,
        agent: &Agent,
        id: &Text,
        digest: &Text,
    ) -> Result<Option<Stored>, Refusal> {
        let archive = &self.0.archive;
        let Some(stored) = self.load_stored(agent, id).await? else {
            return Ok(None);
        };
        if self.has_expired(&stored.record) {
            let clock = &self.0.shared.environment.clock;
            let turn = archive.turn(agent.id(), clock.as_ref()).await?;
            archive.remove(&turn, agent.id(), &stored.record).await?;
            return Ok(None);
        }
        if stored.digest != *digest {
            return Err(Refusal::Conflict(id.clone()));
        }
        Ok(Some(stored))
    }

    /// The stored record under this id.
    async fn load_stored(&self, agent: &Agent, id: &Text) -> Result<Option<Stored>, Refusal> {
        let loaded = self.0.archive.load(agent.id(), id).await;
        loaded.map_err(|error| {
            if !error.0.is::<MalformedRecord>() {
                return Refusal::Store(error);
            }
            tracing::error!(
                agent = %agent.id(), execution_id = %id,
                "a request is refused, because its record is malformed"
            );
            Refusal::Unreadable(id.clone())
        })
    }

    /// A random identifier (UUID version 4).
    fn new_id(&self) -> Text {
        let bits = self.0.shared.environment.random.bits();
        let id = uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid();
        id.to_string().into()
    }

    /// Whether a record has expired.
    fn has_expired(&self, record: &Record) -> bool {
        let shared = &self.0.shared;
        let age = shared
            .environment
            .clock
            .now()
            .duration_since(record.started());
        age.is_ok_and(|age| age > shared.limits.keep_records)
    }

    /// The record of an execution of this agent; records of other agents are not visible. While the execution runs, the
    /// record shows the state of its operations. Source: docs/protocols/a2e-workflows.md §D46.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn record(&self, agent: &Text, id: &str) -> Result<Option<Record>, StoreError> {
        // The stored record may still lack its values.
        if let Some(ended) = self.0.running.unrecorded(agent, id) {
            return Ok(Some(Arc::unwrap_or_clone(ended)));
        }
        let Some(Stored { record, .. }) = self.load(agent, id).await? else {
            return Ok(None);
        };
        if record.status().is_final() {
            return Ok(Some(record));
        }
        if let Some(trace) = self.0.running.trace(agent, id) {
            return Ok(Some(record.with_operations(&trace)));
        }
        if self.0.archive.runs_elsewhere(agent, id) {
            return Ok(Some(record));
        }
        // It has ended since it was read, or was abandoned.
        let stored = self.load(agent, id).await?;
        Ok(stored.map(|stored| {
            if stored.record.status().is_final() {
                stored.record
            } else {
                stored.record.abandoned(stored.has_begun_unsafe)
            }
        }))
    }

    async fn load(&self, agent: &Text, id: &str) -> Result<Option<Stored>, StoreError> {
        let stored = self.0.archive.load(agent, id).await?;
        Ok(stored.filter(|stored| !self.has_expired(&stored.record)))
    }

    /// Summaries of an agent's newest executions, the newest first, optionally only those with one status. Examines the
    /// newest 100,000.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn records(
        &self,
        agent: &Text,
        status: Option<Status>,
        max: usize,
    ) -> Result<Vec<Record>, StoreError> {
        const MAX_EXAMINED: usize = 100_000;
        let is_asked = |record: &Record| status.is_none_or(|status| record.status() == status);
        let mut records = Vec::new();
        let (mut looked_at, mut next) = (0, Some(String::new()));
        while let Some(after) = next.filter(|_| looked_at < MAX_EXAMINED && records.len() < max) {
            let (page, rest) = self.0.archive.summaries(agent, &after).await?;
            looked_at += page.len();
            for summary in page {
                if records.len() >= max {
                    return Ok(records);
                }
                let record = if self.has_expired(&summary) {
                    None
                } else if summary.status().is_final() {
                    Some(summary)
                } else {
                    self.record(agent, summary.execution_id()).await?
                };
                records.extend(record.filter(is_asked));
            }
            next = rest;
        }
        Ok(records)
    }

    /// Cancels an execution of this agent, whichever process runs it. Returns whether there was one.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn cancel_anywhere(&self, agent: &Text, id: &str) -> Result<bool, StoreError> {
        Ok(self.cancel(agent, id) || self.0.archive.cancel_elsewhere(agent, id).await?)
    }

    /// Cancels the executions of this agent in other processes that have this name in [`Request::cancel_names`].
    /// Returns whether there were any.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn cancel_named_elsewhere(
        &self,
        agent: &Text,
        name: &str,
    ) -> Result<bool, StoreError> {
        self.0.archive.cancel_named_elsewhere(agent, name).await
    }

    /// Cancels an execution of this agent in this process. Returns whether there was one.
    #[must_use]
    pub fn cancel(&self, agent: &Text, id: &str) -> bool {
        self.0.running.cancel(agent, id)
    }

    /// Ends an execution of this agent in this process, because the process stops. If a call that must not be repeated
    /// had begun, it is interrupted; otherwise its record says that it was stopped, and the same request runs again.
    /// Returns whether there was one.
    #[must_use]
    pub fn stop(&self, agent: &Text, id: &str) -> bool {
        self.0.running.stop(agent, id)
    }

    /// Removes expired records, and returns their number. Call it from time to time.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn expire(&self) -> Result<usize, StoreError> {
        let now = self.0.shared.environment.clock.now();
        let Some(before) = now.checked_sub(self.limits().keep_records) else {
            return Ok(0);
        };
        let runs = |agent: &Text, id: &str| self.0.running.contains(agent, id);
        self.0.archive.expire(before, runs).await
    }

    /// A value that StoreData has stored.
    ///
    /// # Errors
    /// If the storage fails.
    pub async fn stored(
        &self,
        agent: &str,
        session: &str,
        storage: Storage,
        key: &str,
    ) -> Result<Option<Json>, StoreError> {
        self.0
            .shared
            .storages
            .stored(agent, session, storage, key)
            .await
    }

    /// The values that StoreData has stored for an agent in `localStorage` or `sessionStorage`, ordered by session and
    /// key.
    ///
    /// # Errors
    /// If the storage fails.
    pub async fn list_stored(
        &self,
        agent: &str,
        storage: Storage,
    ) -> Result<Vec<StoredValue>, StoreError> {
        self.0.shared.storages.list(agent, storage).await
    }

    /// Removes a value from `localStorage` or `sessionStorage`. Returns whether there was one.
    ///
    /// # Errors
    /// If the storage fails.
    pub async fn remove_stored(
        &self,
        agent: &str,
        session: &str,
        storage: Storage,
        key: &str,
    ) -> Result<bool, StoreError> {
        let storages = &self.0.shared.storages;
        storages.remove(agent, session, storage, key).await
    }

    /// Removes cached results: of one agent or all, of one operation type or all. Returns how many there were.
    pub fn invalidate(&self, agent: Option<&str>, of: Option<OperationType>) -> usize {
        self.0.shared.cache.invalidate(agent, of)
    }

    /// How much of their limits the agents have used.
    #[must_use]
    pub fn quotas(&self) -> &Quotas {
        &self.0.shared.quotas
    }

    /// The limits of an execution.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.0.shared.limits
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor")
            .field("limits", self.limits())
            .finish_non_exhaustive()
    }
}

/// The initial data model: the input of the workflow, overridden by that of the request.
fn whole_input(workflow: &Workflow, given: &Object) -> Object {
    let mut input: Object = own_input(workflow);
    for (name, value) in given {
        input.insert(name.clone(), value.clone());
    }
    input
}

/// The input that the workflow itself contains.
fn own_input(workflow: &Workflow) -> Object {
    let members = workflow.input.iter();
    members
        .map(|(name, value)| (name.clone(), value.by_value()))
        .collect()
}

/// SHA-256, in hexadecimal.
fn digest(bytes: &[u8]) -> Text {
    use sha2::Digest;
    let digest = sha2::Sha256::digest(bytes);
    digest
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<String>()
        .into()
}
