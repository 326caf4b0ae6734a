//! Where do executions run? On a runtime of their own, so that a heavy workflow takes no time from the path of a
//! message; and in turns of their agents, so that it takes none from the workflows of others.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use a2abus_executor::{Event, Execution, Executor, Progress, Record};
use a2abus_plugin::Text;
use futures_util::StreamExt as _;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::turns::AgentTurns;
use crate::metrics::Metrics;

/// The threads that executions run on. They end when this is dropped.
#[derive(Debug)]
pub(super) struct Workers {
    runtime: Mutex<Option<Runtime>>,
    handle: Handle,
    /// The threads that each agent may have at a time.
    turns: AgentTurns,
    tasks: TaskTracker,
    cancel: CancellationToken,
}

/// One execution to be run.
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

/// How many agents find threads at the same time, at least: one alone has no more than its share.
const AGENTS: usize = 4;
/// How long a cancelled execution may take to end and be recorded.
const LAST_WORDS: Duration = Duration::from_secs(5);

// === impl Workers ===

impl Workers {
    pub(super) fn start(threads: u16) -> std::io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(usize::from(threads))
            .thread_name("a2abus-workflow")
            .on_thread_start(give_way)
            .enable_all()
            .build()?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Mutex::new(Some(runtime)),
            turns: AgentTurns::new((usize::from(threads) / AGENTS).max(1)),
            tasks: TaskTracker::new(),
            cancel: CancellationToken::new(),
        })
    }

    /// Does something short there for an agent; `None` when the threads have ended.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        agent: &Text,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        self.handle.spawn(self.turns.take(agent, work)).await.ok()
    }

    /// Runs an execution to its end and returns its record.
    pub(super) fn run(
        &self,
        task: Task,
        on_progress: impl FnMut(Progress) + Send + 'static,
        ended: oneshot::Sender<Arc<Record>>,
    ) {
        let cancel = self.cancel.clone();
        let agent = task.agent.clone();
        let run = async move {
            if let Some(record) = task.run(on_progress, &cancel).await {
                // Nobody may wait for it any more.
                let _ = ended.send(record);
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

    /// Waits until nothing runs, at most so long; then cancels what is left.
    pub(super) async fn finish(&self, patience: Duration) {
        self.drain();
        if timeout(patience, self.tasks.wait()).await.is_err() {
            tracing::warn!(
                executions = self.tasks.len(),
                "the grace period is over: executions of workflows are cancelled"
            );
            self.cancel.cancel();
            if timeout(LAST_WORDS, self.tasks.wait()).await.is_err() {
                tracing::error!("workflow executions did not end: they are abandoned");
            }
        }
        self.stop();
    }

    fn stop(&self) {
        let mut runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A runtime that is dropped where tasks run waits for its threads, which is not allowed there.
impl Drop for Workers {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Lets the threads that carry messages go first.
fn give_way() {
    // Elsewhere the priority would be that of the whole process.
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, 5) {
        tracing::debug!(%error, "the priority of executions could not be lowered: they run at that of the bridge");
    }
}

// === impl Task ===

impl Task {
    async fn run(
        mut self,
        mut on_progress: impl FnMut(Progress) + Send,
        cancel: &CancellationToken,
    ) -> Option<Arc<Record>> {
        let mut counted = AbandonGuard::begin(&self.metrics);
        let mut is_cancelled = false;
        loop {
            let event = tokio::select! {
                biased;
                () = cancel.cancelled(), if !is_cancelled => {
                    is_cancelled = true;
                    let id = self.execution.execution_id();
                    let was_there = self.executor.cancel(&self.agent, id);
                    tracing::debug!(execution_id = %id, was_there, "cancelled");
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
                    return Some(record);
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
