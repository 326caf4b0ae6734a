//! The threads of executions. Executions run on a separate runtime, so that heavy workflows do not delay messages. They
//! run in turns of their agents, so that they do not delay workflows of other agents.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use a2abus_executor::{Event, Execution, Executor, Progress, Record};
use a2abus_plugin::Text;
use futures_util::StreamExt as _;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::turns::AgentTurns;
use crate::lock::lock;
use crate::metrics::Metrics;

/// The threads that executions run on. They end when this is dropped.
#[derive(Debug)]
pub(super) struct Workers {
    runtime: Mutex<Option<Runtime>>,
    handle: Handle,
    /// Limits the threads that each agent uses at a time.
    turns: AgentTurns,
    tasks: TaskTracker,
    /// Has one token for each task whose execution has ended and whose record is not stored yet.
    unrecorded: TaskTracker,
    /// The grace period is over: running executions end now.
    stop: CancellationToken,
    /// Cancelled once a drain has ended all executions.
    finished: CancellationToken,
}

/// An execution to run.
pub(super) struct Task {
    pub(super) executor: Executor,
    pub(super) agent: Text,
    pub(super) execution: Execution,
    pub(super) metrics: Arc<Metrics>,
}

/// Counts an execution as abandoned when it is dropped before its end.
struct AbandonGuard {
    metrics: Arc<Metrics>,
    is_over: bool,
}

/// At least this many agents can run at the same time, because each agent gets at most its share of the threads.
const AGENTS: usize = 4;
/// How long a stopped execution may take to end and be recorded.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

// === impl Workers ===

impl Workers {
    pub(super) fn start(threads: u16) -> std::io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(usize::from(threads))
            .thread_name("a2abus-workflow")
            .on_thread_start(lower_priority)
            .enable_all()
            .build()?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Mutex::new(Some(runtime)),
            turns: AgentTurns::new((usize::from(threads) / AGENTS).max(1)),
            tasks: TaskTracker::new(),
            unrecorded: TaskTracker::new(),
            stop: CancellationToken::new(),
            finished: CancellationToken::new(),
        })
    }

    /// Runs a task for an agent on these threads, as long as somebody waits for it; `None` when the threads have
    /// stopped.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        agent: &Text,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let task = self.handle.spawn(self.turns.take(agent, work));
        AbortOnDropHandle::new(task).await.ok()
    }

    /// Like [`Workers::ask`], for a task that a drain waits for. It runs to its end even if nobody waits any more.
    pub(super) async fn finish_task<T: Send + 'static>(
        &self,
        agent: &Text,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let work = self.turns.take(agent, work);
        self.tasks.spawn_on(work, &self.handle).await.ok()
    }

    /// Runs an execution to its end and returns its record. The task then goes on until the record is stored.
    pub(super) fn run(
        &self,
        task: Task,
        on_progress: impl FnMut(Progress) + Send + 'static,
        ended: oneshot::Sender<Arc<Record>>,
    ) {
        let (stop, unrecorded) = (self.stop.clone(), self.unrecorded.clone());
        let (agent, metrics) = (task.agent.clone(), Arc::clone(&task.metrics));
        let run = async move {
            if let Some((record, mut execution)) = task.run(on_progress, &stop).await {
                let _unrecorded = unrecorded.token();
                // The receiver may be gone.
                let _ = ended.send(record);
                while execution.next().await.is_some() {}
                if execution.is_reduced() {
                    metrics.workflow_results_not_stored();
                }
            }
        };
        let run = self.turns.take(&agent, run);
        self.tasks.spawn_on(run, &self.handle);
    }

    pub(super) fn are_draining(&self) -> bool {
        self.tasks.is_closed()
    }

    pub(super) fn drain(&self) {
        self.tasks.close();
    }

    /// Waits at most `grace` for running executions, then stops the rest. The threads still answer queries, until the
    /// listener and the bindings end, unless executions are abandoned.
    pub(super) async fn finish(&self, grace: Duration) {
        self.finish_executions(grace).await;
        self.finished.cancel();
    }

    /// Resolves once a drain has ended all executions of this replica.
    pub(super) fn finished(&self) -> WaitForCancellationFuture<'_> {
        self.finished.cancelled()
    }

    async fn finish_executions(&self, grace: Duration) {
        self.drain();
        if timeout(grace, self.tasks.wait()).await.is_ok() {
            return;
        }
        let (executions, unrecorded) = self.left();
        if executions > 0 {
            tracing::warn!(
                executions,
                "the grace period is over: executions of workflows are stopped; those whose request is delivered again run again elsewhere, unless a call that may change something had begun (a longer http.drain_grace lets them end)"
            );
        }
        if unrecorded > 0 {
            tracing::warn!(
                executions = unrecorded,
                "the grace period is over, and the records of executions that have ended are not stored yet"
            );
        }
        self.stop.cancel();
        if timeout(STOP_TIMEOUT, self.tasks.wait()).await.is_ok() {
            return;
        }
        let (executions, unrecorded) = self.left();
        if executions > 0 {
            tracing::error!(
                executions,
                "workflow executions did not finish in time and were abandoned"
            );
        }
        if unrecorded > 0 {
            tracing::error!(
                executions = unrecorded,
                "executions have ended and were answered, but their records are not stored, or not with all values: the next process may report them as interrupted"
            );
        }
        self.end_threads();
    }

    /// How many tasks run, and how many have ended and wait for the store.
    fn left(&self) -> (usize, usize) {
        let unrecorded = self.unrecorded.len();
        (self.tasks.len().saturating_sub(unrecorded), unrecorded)
    }

    fn end_threads(&self) {
        let mut runtime = lock(&self.runtime);
        if let Some(runtime) = runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Dropping a runtime inside an async task would block on its threads, which panics.
impl Drop for Workers {
    fn drop(&mut self) {
        self.end_threads();
    }
}

/// Gives this thread a lower priority than the threads that process messages.
fn lower_priority() {
    // On other systems this would set the priority of the whole process.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, 5) {
        tracing::debug!(%error, "the priority of executions could not be lowered: they run at the priority of the bridge");
    }
}

// === impl Task ===

impl Task {
    async fn run(
        mut self,
        mut on_progress: impl FnMut(Progress) + Send,
        stop: &CancellationToken,
    ) -> Option<(Arc<Record>, Execution)> {
        let mut counted = AbandonGuard::begin(&self.metrics);
        let mut is_stopped = false;
        loop {
            let event = tokio::select! {
                biased;
                () = stop.cancelled(), if !is_stopped => {
                    is_stopped = true;
                    let id = self.execution.execution_id();
                    let was_there = self.executor.stop(&self.agent, id);
                    tracing::debug!(execution_id = %id, was_there, "stopped");
                    continue;
                }
                event = self.execution.next() => event?,
            };
            match event {
                Event::Operation(progress) => {
                    self.metrics.workflow_operation(&progress);
                    on_progress(progress);
                }
                Event::Ended { record, .. } => {
                    counted.end(&record);
                    return Some((record, self.execution));
                }
                _ => {}
            }
        }
    }
}

// === impl AbandonGuard ===

impl AbandonGuard {
    fn begin(metrics: &Arc<Metrics>) -> Self {
        metrics.workflow_started();
        Self {
            metrics: Arc::clone(metrics),
            is_over: false,
        }
    }

    fn end(&mut self, record: &Record) {
        self.is_over = true;
        self.metrics.workflow_ended(Some(record.status()));
    }
}

impl Drop for AbandonGuard {
    fn drop(&mut self) {
        if !self.is_over {
            self.metrics.workflow_ended(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn queries_are_answered_after_the_last_execution() {
        let workers = Workers::start(1).unwrap();
        workers.finish(Duration::ZERO).await;
        let agent = Text::from_static("reporter");
        assert_eq!(workers.ask(&agent, async { 7 }).await, Some(7));
    }
}
