//! The executions that run in this process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
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
    is_stopped: Arc<AtomicBool>,
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
    is_stopped: Arc<AtomicBool>,
    /// Whether its record is stored without its results.
    pub(super) is_reduced: Arc<AtomicBool>,
    ended: watch::Sender<Option<Arc<Record>>>,
    pub(super) trace: Trace,
}

pub(super) enum Admission {
    Slot(Slot),
    Running(watch::Receiver<Option<Arc<Record>>>),
    /// Another workflow has the slot, until the sender of this receiver is dropped. The receiver also notices when the
    /// record of that workflow is stored.
    Conflict(watch::Receiver<Option<Arc<Record>>>),
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
        let (cancel, is_stopped) = (CancellationToken::new(), Arc::default());
        let entry = Entry {
            digest: digest.clone(),
            cancel: cancel.clone(),
            is_stopped: Arc::clone(&is_stopped),
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
            is_stopped,
            is_reduced: Arc::default(),
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
        self.end(agent, execution_id, false)
    }

    /// Like [`Running::cancel`], because the process stops.
    pub(super) fn stop(&self, agent: &Text, execution_id: &str) -> bool {
        self.end(agent, execution_id, true)
    }

    fn end(&self, agent: &Text, execution_id: &str, is_stopped: bool) -> bool {
        let agents = lock(&self.agents);
        let entry = agents
            .get(agent)
            .and_then(|running| running.get(execution_id))
            .filter(|entry| entry.record().is_none());
        let Some(entry) = entry else {
            return false;
        };
        // A cancel by the requester counts more than a stop, whichever comes first.
        if !is_stopped || !entry.cancel.is_cancelled() {
            entry.is_stopped.store(is_stopped, Ordering::Relaxed);
        }
        entry.cancel.cancel();
        true
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
            return Admission::Conflict(self.ended.clone());
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
    /// Whether it was cancelled because the process stops.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Wakes the requests with another workflow: they find its record now.
    pub(super) fn note_begun(&self) {
        self.ended.send_modify(|_| {});
    }

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
