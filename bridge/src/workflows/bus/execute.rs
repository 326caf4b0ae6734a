//! Processes one request, from its turn to its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, SystemTime};

use a2abus_executor::{
    Agent, Execution, Failure, FailureCode, Record, Refusal, Request, RunningElsewhere, Started,
    StoreError,
};
use a2abus_plugin::Text;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::WorkflowBinding;
use super::answer::{Disposition, ProgressMessage, WorkflowAnswer};
use super::ask::{Action, Job};
use super::client::WorkflowClient;
use super::refused::WorkflowRefusal;
use super::waiting::StopSignals;
use crate::bus::delivery::{BACKOFF, jittered};
use crate::metrics;
use crate::workflows::NotBegun;

/// Maximum number of progress messages of one execution that wait for the bus. Further ones are dropped, because the
/// run never waits for the bus.
const QUEUE_PROGRESS: usize = 64;
/// How long the last progress messages may take before the answer is published without them.
const LAST_PROGRESS: Duration = Duration::from_secs(1);

// === impl WorkflowBinding ===

impl WorkflowBinding {
    /// Executes the job.
    pub(super) async fn outcome(&self, job: &mut Job, early: StopSignals<'_>) -> Disposition {
        let named = self
            .events
            .run_as
            .as_ref()
            .or(job.client.requester.as_ref());
        let Some(agent) = named.and_then(|name| self.workflows.agent(name)) else {
            self.workflows.refused(metrics::RefusalReason::Forbidden);
            return Disposition::Answered(WorkflowAnswer::refused(WorkflowRefusal::unknown_agent(
                named,
            )));
        };
        let request = Request {
            execution_id: Some(job.client.execution_id()),
            session: job.client.collaboration_id.clone(),
            deadline: job.client.deadline,
            cancel_names: job
                .names()
                .map(|name| name.shared_name(&self.intake.name))
                .collect(),
            ..std::mem::take(&mut job.request)
        };
        match job.action {
            Action::Validate => self.validate(&agent, request, early).await,
            Action::Execute => self.execute(&agent, request, &job.client, early).await,
        }
    }

    async fn validate(
        &self,
        agent: &Arc<Agent>,
        request: Request,
        early: StopSignals<'_>,
    ) -> Disposition {
        if is_over(request.deadline) {
            self.workflows.refused(metrics::RefusalReason::Expired);
            let failure = Failure::expired("its expirytime had passed when it arrived");
            return Disposition::Answered(WorkflowAnswer::failed(&failure));
        }
        match self.workflows.validate(agent, request).await {
            Some(report) => Disposition::Answered(WorkflowAnswer::report(&report.to_json())),
            None => give_up(early).await,
        }
    }

    async fn execute(
        &self,
        agent: &Arc<Agent>,
        mut request: Request,
        client: &WorkflowClient,
        early: StopSignals<'_>,
    ) -> Disposition {
        let _turn = tokio::select! {
            biased;
            () = early.cancel.cancelled() => {
                request.is_cancelled = true;
                None
            }
            () = early.stop.cancelled() => return Disposition::GivenUp,
            turn = self.turns.next(agent.id()) => turn,
            // The executor itself reports a request that arrives after its deadline.
            () = until(request.deadline) => None,
        };
        let (mut wait, mut is_counted) = (BACKOFF.0, false);
        loop {
            let failure = match self.workflows.begin(agent, request.clone()).await {
                Ok(Started::New(execution)) => {
                    return self.run_through(agent, execution, client, early).await;
                }
                Ok(Started::Finished(record)) => return self.again(record, early).await,
                Ok(Started::Running(running)) => match self.wait_for(agent, running, early).await {
                    Some(outcome) => return outcome,
                    // It was abandoned. Nobody can begin it again before its claim ends by the clock of the bus.
                    None => None,
                },
                Err(NotBegun::Draining) => return give_up(early).await,
                Err(NotBegun::Refused(Refusal::Busy(_))) => Some(too_late()),
                Err(NotBegun::Refused(Refusal::Store(error))) => {
                    let is_first = !std::mem::replace(&mut is_counted, true);
                    Some(self.not_recorded(&error, is_first))
                }
                Err(NotBegun::Refused(refusal)) => return Disposition::Answered(refused(&refusal)),
            };
            if let Some(failure) = failure
                && is_over(request.deadline)
            {
                self.workflows.refused(metrics::RefusalReason::Expired);
                return Disposition::Answered(WorkflowAnswer::failed(&failure));
            }
            tokio::select! {
                biased;
                () = early.cancel.cancelled(), if !request.is_cancelled => {
                    request.is_cancelled = true;
                }
                () = early.stop.cancelled() => return Disposition::GivenUp,
                () = sleep(jittered(wait)) => wait = (wait * 2).min(BACKOFF.1),
            }
        }
    }

    /// Reports that an execution cannot be recorded. Counts the first attempt only.
    fn not_recorded(&self, error: &StoreError, is_first: bool) -> Failure {
        if is_first {
            self.workflows.refused(metrics::RefusalReason::Store);
        }
        tracing::error!(binding = %self.intake.name, error = error as &dyn std::error::Error,
            "an execution cannot be recorded: the workflow waits");
        let message = "the execution could not be recorded";
        Failure::new(FailureCode::StorageFailed, message)
    }

    /// Runs an execution on the threads of the executor, and publishes its progress.
    async fn run_through(
        &self,
        agent: &Agent,
        execution: Execution,
        client: &WorkflowClient,
        early: StopSignals<'_>,
    ) -> Disposition {
        let id = execution.execution_id().clone();
        let (sender, queue) = mpsc::channel(QUEUE_PROGRESS);
        let started = ProgressMessage::Started {
            execution_id: id.clone(),
            operations: execution.operations(),
        };
        // The queue is still empty, so this cannot fail.
        let _ = sender.try_send(started);
        let reports_operations = self.workflows.reports_operations();
        let events = Arc::new(AtomicI32::new(1));
        let (count, execution_id) = (Arc::clone(&events), id.clone());
        let run = self.workflows.run(agent, execution, move |progress| {
            if reports_operations {
                let progress = ProgressMessage::Operation {
                    execution_id: execution_id.clone(),
                    seq: count.fetch_add(1, Ordering::Relaxed),
                    progress: Box::new(progress),
                };
                if sender.try_send(progress).is_err() {
                    tracing::debug!(%execution_id, "the bus is slow: progress was not published");
                }
            }
        });
        let mut publishing = std::pin::pin!(self.publish_all(client, queue));
        let mut ended = std::pin::pin!(run.ended());
        let (mut is_cancelled, mut is_published) = (false, false);
        let record = loop {
            tokio::select! {
                biased;
                () = early.cancel.cancelled(), if !is_cancelled => {
                    is_cancelled = true;
                    // It runs here, so nothing is waited for.
                    self.end_anywhere(agent, &id).await;
                }
                record = &mut ended => break record,
                () = &mut publishing, if !is_published => is_published = true,
            }
        };
        // The answer is the last event, so publish the queued progress first.
        if !is_published && timeout(LAST_PROGRESS, publishing).await.is_err() {
            tracing::debug!(binding = %self.intake.name, "the bus is slow: some progress was not published");
        }
        let before = events.load(Ordering::Relaxed);
        match record {
            Some(record) => ended_with(record, before, early).await,
            None => self.without_record(agent, &id, before, early).await,
        }
    }

    /// The result of an execution that has left no record, after `seq` events.
    async fn without_record(
        &self,
        agent: &Agent,
        id: &Text,
        seq: i32,
        early: StopSignals<'_>,
    ) -> Disposition {
        // The next reader of the request finds its record. Nobody else knows what the execution has done.
        if early.is_redeliverable && self.workflows.is_draining() {
            return give_up(early).await;
        }
        tracing::error!(binding = %self.intake.name, execution_id = %id, "an execution failed unexpectedly");
        let executor = self.workflows.executor().clone();
        let (owner, name) = (agent.id().clone(), id.clone());
        let read = async move { executor.record(&owner, &name).await };
        let code = match self.workflows.ask(agent, read).await {
            Some(Ok(Some(record))) if record.may_run_again() => FailureCode::Stopped,
            _ => FailureCode::Interrupted,
        };
        let failure = Failure::new(code, "the execution failed unexpectedly");
        Disposition::Answered(WorkflowAnswer {
            seq,
            ..WorkflowAnswer::failed(&failure).of(id)
        })
    }

    /// Publishes progress until the execution ends.
    async fn publish_all(
        &self,
        client: &WorkflowClient,
        mut queue: mpsc::Receiver<ProgressMessage>,
    ) {
        while let Some(progress) = queue.recv().await {
            self.publish_progress(client, &progress).await;
        }
    }

    /// Waits for an execution that is already running; `None` if it was abandoned.
    async fn wait_for(
        &self,
        agent: &Agent,
        running: RunningElsewhere,
        early: StopSignals<'_>,
    ) -> Option<Disposition> {
        let (id, is_here) = (running.execution_id().clone(), running.is_here());
        let mut ended = std::pin::pin!(self.workflows.ended(agent, running));
        let mut is_cancelled = false;
        loop {
            tokio::select! {
                biased;
                record = &mut ended => return Some(self.again(record?, early).await),
                // Any replica that gets the request again can wait for another one; only this one may know an execution
                // of its own.
                () = early.stop.cancelled(), if !is_here => return Some(Disposition::GivenUp),
                () = early.cancel.cancelled(), if !is_cancelled => {
                    is_cancelled = true;
                    self.end_anywhere(agent, &id).await;
                }
            }
        }
    }

    /// The answer of an execution that has already ended.
    async fn again(&self, record: Arc<Record>, early: StopSignals<'_>) -> Disposition {
        let before = if self.workflows.reports_operations() {
            i32::try_from(record.reports()).map_or(i32::MAX, |reports| reports.saturating_add(1))
        } else {
            1
        };
        ended_with(record, before, early).await
    }
}

/// Leaves the request to other replicas. Waits until this bridge has stopped receiving, because it would get the
/// request again. A source that delivers nothing again does not bring it to another replica: the requester learns at
/// once that it has to send it again.
async fn give_up(early: StopSignals<'_>) -> Disposition {
    if early.is_redeliverable {
        early.stop.cancelled().await;
    }
    Disposition::GivenUp
}

/// The answer of an ended execution, after `seq` events. If this bridge has stopped it, and its request is delivered
/// again, the next reader runs it again. Results can be large, so they are not serialized on the threads that serve the
/// bus.
async fn ended_with(record: Arc<Record>, seq: i32, early: StopSignals<'_>) -> Disposition {
    if early.is_redeliverable && record.may_run_again() {
        tokio::select! {
            biased;
            // Its requester has cancelled it since then, so nobody runs it again.
            () = early.cancel.cancelled() => {}
            () = early.stop.cancelled() => return Disposition::GivenUp,
        }
    }
    let writing = tokio::task::spawn_blocking(move || WorkflowAnswer::ended(&record, seq));
    // The task does not panic, and a running blocking task is not cancelled.
    writing
        .await
        .map_or(Disposition::GivenUp, Disposition::Answered)
}

fn refused(refusal: &Refusal) -> WorkflowAnswer {
    WorkflowAnswer::refused(match refusal {
        Refusal::Invalid(failure) | Refusal::Expired(failure) => WorkflowRefusal::failure(failure),
        Refusal::Conflict(id) => {
            return WorkflowAnswer::refused(WorkflowRefusal::conflict(id)).of(id);
        }
        Refusal::Forgotten(id) => {
            return WorkflowAnswer::refused(WorkflowRefusal::forgotten(id)).of(id);
        }
        Refusal::Unreadable(id) => {
            return WorkflowAnswer::refused(WorkflowRefusal::unreadable(id)).of(id);
        }
        other => {
            let failure = Failure::new(FailureCode::LimitExceeded, other.to_string());
            WorkflowRefusal::failure(&failure)
        }
    })
}

fn too_late() -> Failure {
    Failure::expired(
        "its expirytime passed before the agent had a free slot for it: nothing was executed",
    )
}

fn is_over(deadline: Option<SystemTime>) -> bool {
    deadline.is_some_and(|deadline| deadline <= crate::clock::now())
}

/// Resolves at the deadline, if there is one.
async fn until(deadline: Option<SystemTime>) {
    let Some(deadline) = deadline else {
        return std::future::pending().await;
    };
    sleep(
        deadline
            .duration_since(crate::clock::now())
            .unwrap_or_default(),
    )
    .await;
}
