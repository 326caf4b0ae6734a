//! The executions that run in this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use a2abus_plugin::Text;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::request::Refusal;
use crate::environment::{StoreDelayed, StoreError};
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

pub(super) enum Admission {
    Slot(Slot),
    Running(watch::Receiver<Option<Arc<Record>>>),
    Conflict,
    /// The agent has too many executions that run, or that have ended and are not recorded.
    Full(Refusal),
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
    /// executions, and fewer ended ones whose record is not stored yet.
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
        if let Some(max) = max_concurrent {
            let ended = |entry: &&Entry| entry.record().is_some();
            let runs = |entry: &&Entry| entry.is_counted && !ended(entry);
            if running.values().filter(runs).count() >= max {
                return Admission::Full(Refusal::Busy(max));
            }
            if running.values().filter(ended).count() >= max {
                return Admission::Full(unrecorded(max));
            }
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

    /// The last record of an execution that has ended, and whose record is not stored yet.
    pub(super) fn unrecorded(&self, agent: &Text, execution_id: &str) -> Option<Arc<Record>> {
        let agents = lock(&self.agents);
        agents.get(agent)?.get(execution_id)?.record()
    }

    pub(super) fn cancel(&self, agent: &Text, execution_id: &str) -> bool {
        let agents = lock(&self.agents);
        let entry = agents
            .get(agent)
            .and_then(|running| running.get(execution_id))
            .filter(|entry| entry.record().is_none());
        entry.inspect(|entry| entry.cancel.cancel()).is_some()
    }
}

/// Refuses a request of an agent with this many ended executions whose records are not stored.
fn unrecorded(ended: usize) -> Refusal {
    let cause = format!("the records of {ended} ended executions of the agent are not stored yet");
    Refusal::Store(StoreError(StoreDelayed(cause.into()).into()))
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

    /// The last record, once the execution has ended.
    fn record(&self) -> Option<Arc<Record>> {
        self.ended.borrow().clone()
    }
}

// === impl Slot ===

impl Slot {
    /// Gives the record to all waiting requests, and to those that come until the slot is dropped.
    pub(super) fn end(&self, record: &Arc<Record>) {
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
