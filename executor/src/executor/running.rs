//! The executions that run in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use a2abus_plugin::Text;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Executor;
use crate::record::Record;
use crate::trace::Trace;

/// By agent and execution id.
#[derive(Debug, Default)]
pub(super) struct Running {
    agents: Arc<Mutex<Agents>>,
}

type Agents = HashMap<Text, HashMap<Text, Entry>>;

#[derive(Debug)]
struct Entry {
    digest: Text,
    cancel: CancellationToken,
    ended: watch::Receiver<Option<Arc<Record>>>,
    trace: Trace,
    is_counted: bool,
}

/// The exclusive right to run an execution; released when it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    agents: Arc<Mutex<Agents>>,
    agent: Text,
    execution_id: Text,
    pub(super) cancel: CancellationToken,
    ended: watch::Sender<Option<Arc<Record>>>,
    pub(super) trace: Trace,
}

/// Waits for an execution that is running elsewhere, in this or another process.
#[derive(Debug)]
pub struct RunningElsewhere {
    execution_id: Text,
    ended: Option<watch::Receiver<Option<Arc<Record>>>>,
    executor: Executor,
    agent: Text,
}

pub(super) enum Admission {
    Slot(Slot),
    Running(watch::Receiver<Option<Arc<Record>>>),
    Conflict,
    Busy,
}

// === impl Running ===

impl Running {
    /// The execution under this id, if it is running.
    pub(super) fn find(
        &self,
        agent: &Text,
        execution_id: &Text,
        digest: &Text,
    ) -> Option<Admission> {
        let agents = lock(&self.agents);
        let entry = agents.get(agent)?.get(execution_id)?;
        Some(entry.admission(digest))
    }

    /// The right to run it, if nobody else is running it. With a limit, only if the agent has fewer concurrent
    /// executions.
    pub(super) fn admit(
        &self,
        agent: &Text,
        execution_id: &Text,
        digest: &Text,
        max_concurrent: Option<usize>,
    ) -> Admission {
        let mut agents = lock(&self.agents);
        let running = agents.entry(agent.clone()).or_default();
        if let Some(entry) = running.get(execution_id) {
            return entry.admission(digest);
        }
        let taken = running.values().filter(|entry| entry.is_counted).count();
        if max_concurrent.is_some_and(|max_concurrent| taken >= max_concurrent) {
            return Admission::Busy;
        }
        let (sender, ended) = watch::channel(None);
        let cancel = CancellationToken::new();
        let entry = Entry {
            digest: digest.clone(),
            cancel: cancel.clone(),
            ended,
            trace: Trace::default(),
            is_counted: max_concurrent.is_some(),
        };
        let trace = entry.trace.clone();
        running.insert(execution_id.clone(), entry);
        Admission::Slot(Slot {
            agents: Arc::clone(&self.agents),
            agent: agent.clone(),
            execution_id: execution_id.clone(),
            cancel,
            ended: sender,
            trace,
        })
    }

    pub(super) fn contains(&self, agent: &Text, execution_id: &str) -> bool {
        self.trace(agent, execution_id).is_some()
    }

    /// The state of the operations of an execution, if it runs.
    pub(super) fn trace(&self, agent: &Text, execution_id: &str) -> Option<Trace> {
        let agents = lock(&self.agents);
        let entry = agents.get(agent)?.get(execution_id)?;
        Some(entry.trace.clone())
    }

    pub(super) fn cancel(&self, agent: &Text, execution_id: &str) -> bool {
        let agents = lock(&self.agents);
        let entry = agents
            .get(agent)
            .and_then(|running| running.get(execution_id));
        entry.inspect(|entry| entry.cancel.cancel()).is_some()
    }
}

/// No panic under the lock can leave the data half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Entry ===

impl Entry {
    /// The result for another request with the same id.
    fn admission(&self, digest: &Text) -> Admission {
        if self.digest != *digest {
            return Admission::Conflict;
        }
        Admission::Running(self.ended.clone())
    }
}

// === impl Slot ===

impl Slot {
    /// Gives the record to all waiting requests.
    pub(super) fn end(self, record: &Arc<Record>) {
        self.ended.send_replace(Some(Arc::clone(record)));
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut agents = lock(&self.agents);
        if let Some(running) = agents.get_mut(&self.agent) {
            running.remove(&self.execution_id);
            if running.is_empty() {
                agents.remove(&self.agent);
            }
        }
    }
}

// === impl RunningElsewhere ===

impl RunningElsewhere {
    pub(super) fn new(
        executor: Executor,
        agent: &Text,
        execution_id: Text,
        ended: Option<watch::Receiver<Option<Arc<Record>>>>,
    ) -> Self {
        Self {
            execution_id,
            ended,
            executor,
            agent: agent.clone(),
        }
    }

    /// The id of the execution.
    #[must_use]
    pub fn execution_id(&self) -> &Text {
        &self.execution_id
    }

    /// Its record when it ends; `None` if it was abandoned.
    pub async fn ended(self) -> Option<Arc<Record>> {
        if let Some(mut ended) = self.ended
            && let Ok(record) = ended.wait_for(Option::is_some).await
        {
            return record.clone();
        }
        let archive = &self.executor.0.archive;
        let stored = archive
            .ended_elsewhere(&self.agent, &self.execution_id)
            .await;
        let stored = stored.inspect_err(|error| {
            tracing::error!(
                error = &*error.0,
                "the record of an execution cannot be read"
            );
        });
        let record = stored.ok().flatten()?.record;
        record.status().is_final().then(|| Arc::new(record))
    }
}
