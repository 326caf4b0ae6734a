//! The endpoints that validate and execute workflows and report their results.

use std::sync::Arc;
use std::time::Duration;

use a2abus_executor::{Agent, Json, Limit, Record, Refusal, RunningElsewhere, StoreError, Usage};
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use tokio::time::sleep;

use super::RestState;
use super::answer::{self, Problem, replayed, value};
use super::request::{self, WaitMode};
use crate::bus::delivery::{BACKOFF, jittered};
use crate::http::respond::json_response;
use crate::workflows::{Begun, NotBegun, Run};

/// The longest pause before an execution is tried again. The clocks of bus and replica differ by little, and a drain
/// waits for the pause to end.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

// === impl RestState ===

impl RestState {
    pub(super) async fn validate(
        &self,
        agent: &Arc<Agent>,
        body: &Bytes,
    ) -> Result<Response, Problem> {
        let request = request::validate(body)?;
        let report = self.workflows.validate(agent, request).await;
        let report = report.ok_or_else(Problem::draining)?;
        Ok(value(StatusCode::OK, &report.to_json()))
    }

    pub(super) async fn execute(
        &self,
        agent: &Arc<Agent>,
        body: &Bytes,
    ) -> Result<Response, Problem> {
        let (request, wait_mode) = request::execute(body)?;
        let mut wait = BACKOFF.0;
        loop {
            match self.workflows.start(agent, request.clone()).await {
                Ok(Begun::New(run)) if wait_mode == WaitMode::Not => {
                    return Ok(accepted(run.execution_id()));
                }
                Ok(Begun::New(run)) => return self.ended(agent, run).await,
                Ok(Begun::Running(follow)) if wait_mode == WaitMode::Not => {
                    return Ok(replayed(accepted(follow.execution_id())));
                }
                Ok(Begun::Running(follow)) => match self.ended_before(agent, follow).await {
                    Some(record) => {
                        return Ok(replayed(self.whole(agent, record, Record::answer).await));
                    }
                    None if self.workflows.is_draining() => return Err(Problem::draining()),
                    // The earlier execution was refused or abandoned, so this one can start, but not before the claim
                    // of the earlier one has ended by the clock of the bus.
                    None => {
                        sleep(jittered(wait)).await;
                        wait = (wait * 2).min(LONGEST_PAUSE);
                    }
                },
                Ok(Begun::Finished(record)) => {
                    return Ok(replayed(self.whole(agent, record, Record::answer).await));
                }
                Err(NotBegun::Refused(Refusal::Busy(most))) => {
                    self.workflows.refused(crate::metrics::RefusalReason::Busy);
                    return Ok(answer::busy(most));
                }
                Err(NotBegun::Refused(Refusal::Store(error))) => return Err(self.store(&error)),
                Err(not_begun) => return Err(problem(&not_begun)),
            }
        }
    }

    /// The record of an execution that is already running; `None` if it was abandoned, or if the bridge is shutting
    /// down and another replica runs it: its client can ask another replica.
    async fn ended_before(&self, agent: &Agent, running: RunningElsewhere) -> Option<Arc<Record>> {
        let is_here = running.is_here();
        tokio::select! {
            biased;
            record = self.workflows.ended(agent, running) => record,
            () = self.workflows.until_finished(), if !is_here => None,
        }
    }

    /// The answer of an execution when it has ended.
    async fn ended(&self, agent: &Agent, run: Run) -> Result<Response, Problem> {
        let id = run.execution_id().clone();
        let record = match run.ended().await {
            Some(record) => record,
            None if self.workflows.is_draining() => return Err(Problem::draining()),
            None => {
                tracing::error!(agent = %agent.id(), execution_id = %id, "an execution failed unexpectedly");
                // Nobody runs it, so its record says that it was abandoned.
                let record = self.record(agent, &id).await?;
                Arc::new(record.ok_or_else(Problem::store)?)
            }
        };
        Ok(self.whole(agent, record, Record::answer).await)
    }

    pub(super) async fn execution(&self, agent: &Agent, id: &str) -> Result<Response, Problem> {
        match self.record(agent, id).await? {
            Some(record) => Ok(self.whole(agent, Arc::new(record), Record::to_value).await),
            None => Err(Problem::no_such_execution()),
        }
    }

    /// A record. It may be large, so the threads of the executor read it.
    async fn record(&self, agent: &Agent, id: &str) -> Result<Option<Record>, Problem> {
        let executor = self.workflows.executor().clone();
        let (owner, id) = (agent.id().clone(), id.to_owned());
        let read = async move { executor.record(&owner, &id).await };
        let record = self.workflows.ask(agent, read).await;
        let record = record.ok_or_else(Problem::draining)?;
        record.map_err(|error| self.store(&error))
    }

    pub(super) async fn executions(
        &self,
        agent: &Agent,
        query: Option<&str>,
    ) -> Result<Response, Problem> {
        let listing = request::listing(query)?;
        let (executor, id) = (self.workflows.executor().clone(), agent.id().clone());
        let query = async move { executor.records(&id, listing.status, listing.most).await };
        let records = self.workflows.ask(agent, query).await;
        let records = records.ok_or_else(Problem::draining)?;
        let records = records.map_err(|error| self.store(&error))?;
        let list: Vec<Json> = records.iter().map(Record::summary).collect();
        let count = list.len();
        let answer = Json::object([("executions", Json::from(list)), ("count", count.into())]);
        Ok(value(StatusCode::OK, &answer))
    }

    pub(super) fn rate_limit(&self, agent: &Agent) -> Response {
        let requests = self.gate.usage(agent);
        let calls = self.workflows.executor().quotas().usage(agent.id());
        let rows = agent
            .rates()
            .requests()
            .into_iter()
            .map(|limit| ("requests", limit, used(&requests, limit)));
        let rows = rows.chain(
            agent
                .rates()
                .api_calls()
                .into_iter()
                .map(|limit| ("api_calls", limit, used(&calls, limit))),
        );
        let (mut limits, mut usage, mut remaining) = (Vec::new(), Vec::new(), Vec::new());
        for (what, Limit { max, window }, used) in rows {
            let left = usize::try_from(max)
                .unwrap_or(usize::MAX)
                .saturating_sub(used);
            limits.push((format!("{what}_per_{window}"), Json::from(max)));
            usage.push((format!("{what}_last_{window}"), Json::from(used)));
            remaining.push((format!("{what}_per_{window}"), Json::from(left)));
        }
        let answer = Json::object([
            ("agent_id", Json::from(agent.id().clone())),
            ("limits", Json::object(limits)),
            ("usage", Json::object(usage)),
            ("remaining", Json::object(remaining)),
        ]);
        value(StatusCode::OK, &answer)
    }

    /// Serializes a record, which may have many megabytes.
    async fn whole(
        &self,
        agent: &Agent,
        record: Arc<Record>,
        view: fn(&Record) -> Json,
    ) -> Response {
        let text = self.workflows.write(agent, &record, view).await;
        json_response(StatusCode::OK, Bytes::from(text))
    }

    pub(super) fn store(&self, error: &StoreError) -> Problem {
        tracing::error!(
            error = error as &dyn std::error::Error,
            "records of executions cannot be read or written"
        );
        self.workflows.refused(crate::metrics::RefusalReason::Store);
        Problem::store()
    }
}

fn used(usage: &Usage, limit: Limit) -> usize {
    use a2abus_executor::Window;
    match limit.window {
        Window::Minute => usage.minute,
        Window::Hour => usage.hour,
        Window::Day => usage.day,
    }
}

fn accepted(execution_id: &a2abus_plugin::Text) -> Response {
    let answer = Json::object([
        ("execution_id", Json::from(execution_id.clone())),
        ("status", "pending".into()),
    ]);
    value(StatusCode::ACCEPTED, &answer)
}

fn problem(not_begun: &NotBegun) -> Problem {
    match not_begun {
        NotBegun::Draining => Problem::draining(),
        NotBegun::Refused(Refusal::Invalid(failure) | Refusal::Expired(failure)) => {
            Problem::failure(failure)
        }
        NotBegun::Refused(Refusal::Conflict(id)) => Problem::conflict(id),
        NotBegun::Refused(Refusal::Forgotten(id)) => Problem::forgotten(id),
        NotBegun::Refused(Refusal::Unreadable(id)) => Problem::unreadable(id),
        NotBegun::Refused(error) => {
            tracing::error!(
                error = error as &dyn std::error::Error,
                "an execution cannot be recorded"
            );
            Problem::store()
        }
    }
}
