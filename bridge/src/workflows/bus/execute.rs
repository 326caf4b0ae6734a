//! One request, from its turn to its answer.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use a2abus_executor::{
    Agent, Event, Execution, Executor, Failure, FailureCode, Record, Refusal, Request, Started,
    Value,
};
use a2abus_plugin::Text;
use futures_util::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::WorkflowBinding;
use super::answer::{Answer, News, Refused, events_of};
use super::ask::{Action, Job};
use crate::pipeline::{BACKOFF, jittered};

/// News of one execution that wait for the bus. More is dropped: the run never waits for it.
const QUEUE_NEWS: usize = 64;
/// How long the last news may take, before the answer goes out without them.
const LAST_NEWS: Duration = Duration::from_secs(1);

/// What becomes of a request.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It has an answer.
    Answered(Answer),
    /// The bridge ends before its turn has come.
    GivenUp,
}

/// A run on the threads of the executor.
struct Run {
    executor: Executor,
    agent: Arc<Agent>,
    request: Request,
    progress: Progress,
    cancel: CancellationToken,
    news: mpsc::Sender<News>,
}

/// Whether the bus is told how operations go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It is.
    Told,
    /// It is told of the start and the end only.
    Untold,
}

// === impl WorkflowBinding ===

impl WorkflowBinding {
    /// Does what is asked for. `cancel` ends it; `stop` gives up what has not begun.
    pub(super) async fn outcome(
        &self,
        job: &mut Job,
        cancel: &CancellationToken,
        stop: &CancellationToken,
    ) -> Outcome {
        let name = self.voice.run_as.as_ref().or(job.asker.requester.as_ref()).cloned();
        let agent = name.as_ref().and_then(|name| self.workflows.agent(name));
        let Some(agent) = agent else {
            return Outcome::Answered(Answer::refused(Refused::unknown_agent(name.as_ref())));
        };
        match job.action {
            Action::Validate => self.validate(agent, job).await,
            Action::Execute => self.execute(agent, job, cancel, stop).await,
        }
    }

    async fn validate(&self, agent: Arc<Agent>, job: &mut Job) -> Outcome {
        if is_over(job.asker.deadline) {
            let failure = Failure::new(FailureCode::ExecutionTimeout, "it came too late");
            return Outcome::Answered(Answer::refused(Refused::failure(&failure)));
        }
        let executor = self.workflows.executor().clone();
        let (workflow, input) = (job.workflow.clone(), std::mem::take(&mut job.input));
        let strictness = job.strictness;
        let validating = self.workflows.spawn(async move {
            let report = executor.validate(&agent, &workflow, &input, strictness);
            Answer::report(&Value::from(report.to_json()))
        });
        ended(AbortOnDropHandle::new(validating).await)
    }

    async fn execute(
        &self,
        agent: Arc<Agent>,
        job: &mut Job,
        cancel: &CancellationToken,
        stop: &CancellationToken,
    ) -> Outcome {
        let _turn = tokio::select! {
            biased;
            () = cancel.cancelled() => {
                return Outcome::Answered(Answer::cancelled(job.asker.collaboration_id.as_ref()));
            }
            () = stop.cancelled() => return Outcome::GivenUp,
            turn = self.turns.next(agent.id()) => turn,
            // The executor says what it says of requests that come too late.
            () = until(job.asker.deadline) => None,
        };
        let mut wait = BACKOFF.0;
        loop {
            let (answer, again) = match self.run(&agent, job, cancel).await {
                Ok(outcome) => return outcome,
                Err(Refusal::Busy(_)) => (Answer::refused(Refused::failure(&too_late())), "busy"),
                Err(Refusal::Store(error)) => {
                    tracing::error!(binding = %self.name, %error, source = ?error.0, "executions cannot be recorded");
                    let message = "the execution cannot be recorded";
                    let failure = Failure::new(FailureCode::StorageFailed, message);
                    (Answer::refused(Refused::failure(&failure)), "store")
                }
                Err(refusal) => return Outcome::Answered(refused(&refusal)),
            };
            tracing::debug!(binding = %self.name, agent = %agent.id(), again, "an execution waits");
            if is_over(job.asker.deadline) {
                return Outcome::Answered(answer);
            }
            tokio::select! {
                biased;
                () = cancel.cancelled() => {
                    return Outcome::Answered(Answer::cancelled(job.asker.collaboration_id.as_ref()));
                }
                () = stop.cancelled() => return Outcome::GivenUp,
                () = sleep(jittered(wait)) => wait = (wait * 2).min(BACKOFF.1),
            }
        }
    }

    /// Runs it on the threads of the executor and tells the bus how it goes.
    async fn run(
        &self,
        agent: &Arc<Agent>,
        job: &Job,
        cancel: &CancellationToken,
    ) -> Result<Outcome, Refusal> {
        let asker = &job.asker;
        let (news, mut heard) = mpsc::channel(QUEUE_NEWS);
        let run = Run {
            executor: self.workflows.executor().clone(),
            agent: Arc::clone(agent),
            request: Request {
                workflow: job.workflow.clone(),
                execution_id: Some(asker.execution_id()),
                input: job.input.clone(),
                on_error: job.on_error,
                strictness: job.strictness,
                session: asker.collaboration_id.clone(),
                deadline: asker.deadline,
            },
            progress: self.progress,
            cancel: cancel.clone(),
            news,
        };
        let mut running = AbortOnDropHandle::new(self.workflows.spawn(run.to_its_end()));
        let telling = async {
            while let Some(news) = heard.recv().await {
                self.tell(asker, &news).await;
            }
        };
        let mut telling = std::pin::pin!(telling);
        let result = tokio::select! {
            biased;
            result = &mut running => {
                // The answer is the last of its events, so that what is under way goes first.
                if timeout(LAST_NEWS, telling).await.is_err() {
                    tracing::debug!(binding = %self.name, "the bus is slow: some progress was not told");
                }
                result
            }
            () = &mut telling => running.await,
        };
        match result {
            Ok(Err(refusal)) => Err(refusal),
            Ok(Ok(answer)) => Ok(Outcome::Answered(answer)),
            Err(error) => Ok(ended(Err(error))),
        }
    }
}

// === impl Run ===

impl Run {
    async fn to_its_end(self) -> Result<Answer, Refusal> {
        loop {
            match self.executor.execute(&self.agent, self.request.clone()).await? {
                Started::New(execution) => return Ok(self.follow(execution).await),
                Started::Running(follow) => {
                    let id = follow.execution_id().clone();
                    let mut ended = std::pin::pin!(follow.ended());
                    let record = tokio::select! {
                        record = &mut ended => record,
                        () = self.cancel.cancelled() => {
                            self.end(&id);
                            ended.await
                        }
                    };
                    if let Some(record) = record {
                        return Ok(self.again(&record));
                    }
                    // Whoever ran it gave it up.
                }
                Started::Finished(record) => return Ok(self.again(&record)),
            }
        }
    }

    /// Runs a new execution.
    async fn follow(&self, mut execution: Execution) -> Answer {
        let id = execution.execution_id().clone();
        self.report(News::Started {
            execution_id: id.clone(),
            operations: execution.operations(),
        });
        let (mut seq, mut is_told) = (0, false);
        loop {
            let event = tokio::select! {
                biased;
                () = self.cancel.cancelled(), if !is_told => {
                    is_told = true;
                    self.end(&id);
                    continue;
                }
                event = execution.next() => event,
            };
            match event {
                Some(Event::Operation(progress)) => {
                    if self.progress == Progress::Told {
                        seq += 1;
                        self.report(News::Operation {
                            execution_id: id.clone(),
                            seq,
                            progress: Box::new(progress),
                        });
                    }
                }
                Some(Event::Ended { record, .. }) => return Answer::ended(&record, seq + 1),
                // The stream ends after `Ended`, and kinds of events that are not known yet tell nothing here.
                Some(_) => {}
                None => return Answer::refused(Refused::failure(&interrupted())).of(&id),
            }
        }
    }

    /// The answer of an execution that others have run.
    fn again(&self, record: &Record) -> Answer {
        let before = match self.progress {
            Progress::Told => events_of(record),
            Progress::Untold => 1,
        };
        Answer::ended(record, before)
    }

    fn report(&self, news: News) {
        if self.news.try_send(news).is_err() {
            tracing::debug!(agent = %self.agent.id(), "the bus is slow: progress was not told");
        }
    }

    fn end(&self, execution_id: &Text) {
        if !self.executor.cancel(self.agent.id(), execution_id) {
            tracing::debug!(agent = %self.agent.id(), "cancelled as it ended");
        }
    }
}

/// The answer of a task of the executor.
fn ended(result: Result<Answer, tokio::task::JoinError>) -> Outcome {
    match result {
        Ok(answer) => Outcome::Answered(answer),
        Err(error) if error.is_panic() => {
            tracing::error!(%error, "an execution broke down");
            Outcome::Answered(Answer::refused(Refused::failure(&interrupted())))
        }
        // The threads of the executor have ended.
        Err(_) => Outcome::GivenUp,
    }
}

fn refused(refusal: &Refusal) -> Answer {
    Answer::refused(match refusal {
        Refusal::Invalid(failure) | Refusal::Expired(failure) => Refused::failure(failure),
        Refusal::Conflict(id) => return Answer::refused(Refused::conflict(id)).of(id),
        other => {
            let failure = Failure::new(FailureCode::LimitExceeded, other.to_string());
            Refused::failure(&failure)
        }
    })
}

fn interrupted() -> Failure {
    Failure::new(FailureCode::Interrupted, "the execution broke down")
}

fn too_late() -> Failure {
    let message = "its time was over before the agent had a free place for it";
    Failure::new(FailureCode::ExecutionTimeout, message)
}

fn is_over(deadline: Option<SystemTime>) -> bool {
    deadline.is_some_and(|deadline| deadline <= crate::clock::now())
}

/// Ends at the deadline, if there is one.
async fn until(deadline: Option<SystemTime>) {
    match deadline {
        Some(deadline) => sleep(deadline.duration_since(crate::clock::now()).unwrap_or_default()).await,
        None => std::future::pending().await,
    }
}
