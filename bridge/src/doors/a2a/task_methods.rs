//! Tasks: read, listed, followed and cancelled.

use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::{Hint, Text, Unit};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::follow::{OwnAnswer, Reader};
use super::shared::A2a;
use super::work::{A2aRequest, Reply, not_found};
use crate::calls::failure::{Failure, Reason};
use crate::doors::rpc::common::{CallOptions, Common, Target};
use crate::rpc_response::RpcResponse;
use crate::state::Position;
use crate::tasks::model::{State, Status};
use crate::tasks::read::AnswerPart;
use crate::tasks::write::{WriteContext, state};
use crate::tasks::{AgentAnswer, Event, PageStart, Subscription, Task};

// Clients of A2A 1.0 may use the member names of its `.proto`, such as `history_length`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TaskParams {
    id: String,
    #[serde(
        default,
        alias = "history_length",
        deserialize_with = "crate::count::read"
    )]
    history_length: Option<usize>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListParams {
    #[serde(alias = "context_id")]
    context_id: Option<String>,
    status: Option<String>,
    #[serde(alias = "page_size", deserialize_with = "crate::count::read")]
    page_size: Option<usize>,
    #[serde(alias = "page_token")]
    page_token: Option<String>,
    #[serde(alias = "history_length", deserialize_with = "crate::count::read")]
    history_length: Option<usize>,
    #[serde(alias = "status_timestamp_after")]
    status_timestamp_after: Option<String>,
    #[serde(alias = "include_artifacts")]
    include_artifacts: Option<bool>,
}

/// The cancel of a task.
struct Cancel {
    a2a: Arc<A2a>,
    common: Common,
    id: Text,
    context: Text,
    /// The request for the agent; `None` if the agent has no id of its own for the task.
    request: Option<Unit>,
}

/// An agent's answer to a cancel.
enum Cancelled {
    Yes(Option<Box<AnswerPart>>),
    /// It refuses, with this message.
    No(String),
}

/// Tasks of one page of a list: the default and the maximum.
const PAGE: (usize, usize) = (50, 100);

/// The error code of an agent that cannot cancel a task.
const NOT_CANCELABLE: i64 = -32_002;

/// The filter and page of a task list.
struct TaskFilter<'a> {
    start: PageStart<'a>,
    size: usize,
    /// Since 1970.
    after: Option<Duration>,
    state: Option<State>,
}

/// The start of a page from its token, which names the last task of the page before.
fn after(token: &str) -> Option<PageStart<'_>> {
    let (changed, id) = token.split_once('-')?;
    let changed = changed.parse().ok()?;
    Some(PageStart::After { changed, id })
}

// === impl TaskFilter ===

impl<'a> TaskFilter<'a> {
    fn of(params: &'a ListParams) -> Result<Self, Failure> {
        let size = params.page_size.unwrap_or(PAGE.0);
        if !(1..=PAGE.1).contains(&size) {
            return Err(Failure::bad_params(&format!(
                "pageSize must be 1 to {}",
                PAGE.1
            )));
        }
        let token = params.page_token.as_ref().filter(|token| !token.is_empty());
        let start = match token {
            None => PageStart::Offset(0),
            Some(token) => after(token)
                .ok_or_else(|| Failure::bad_params("pageToken is not from an earlier page"))?,
        };
        let after = match &params.status_timestamp_after {
            Some(text) => Some(
                crate::clock::parse(text)
                    .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
                    .ok_or_else(|| {
                        Failure::bad_params("statusTimestampAfter is not an RFC 3339 time")
                    })?,
            ),
            None => None,
        };
        let status = params.status.as_deref();
        let status = status.filter(|status| *status != "TASK_STATE_UNSPECIFIED");
        let wanted_state = status.map(State::read);
        if wanted_state == Some(State::Unknown) {
            let message = "status is not a task state: use TASK_STATE_SUBMITTED, _WORKING, _INPUT_REQUIRED, _AUTH_REQUIRED, _COMPLETED, _CANCELED, _FAILED, _REJECTED, or leave it out";
            return Err(Failure::bad_params(message));
        }
        Ok(Self {
            start,
            size,
            after,
            state: wanted_state,
        })
    }
}

// === impl A2aRequest ===

impl A2aRequest<'_> {
    /// A task that is visible under this path: of its agent, or of any agent.
    pub(super) async fn task(&self, id: &str) -> Result<Task, Failure> {
        let task = self.a2a.settings.tasks.find(id).await;
        let task = task.map_err(|error| self.a2a.door.not_read("tasks", &error))?;
        let task = task.filter(|task| self.named().is_none_or(|agent| task.agent == agent));
        task.ok_or_else(|| not_found(id))
    }

    pub(super) async fn get(&self) -> Result<String, Failure> {
        let params: TaskParams = self.parsed.params()?;
        let task = self.task(&params.id).await?;
        let of = WriteContext::task(self.parsed.dialect, &params.id, &task);
        Ok(of.whole(&task, params.history_length, true))
    }

    /// A page of tasks, and how many it has.
    pub(super) async fn list(&self) -> Result<(String, usize), Failure> {
        let params: Option<ListParams> = self.parsed.params().map(Some).or_else(|failure| {
            // All parameters have defaults, so `params` may be missing.
            if failure.message() == "params are missing" {
                Ok(None)
            } else {
                Err(failure)
            }
        })?;
        let params = params.unwrap_or_default();
        let TaskFilter {
            start,
            size,
            after,
            state: wanted_state,
        } = TaskFilter::of(&params)?;
        let agent = self.named();
        let matches = |task: &Task| {
            agent.as_ref().is_none_or(|agent| task.agent == *agent)
                && wanted_state.is_none_or(|state| task.status.state == state)
                && after.is_none_or(|after| Duration::from_millis(task.changed) >= after)
        };
        let context = params.context_id.as_deref();
        let context = context.filter(|context| !context.is_empty());
        let tasks = &self.a2a.settings.tasks;
        let latest = tasks.latest().await;
        latest.map_err(|error| self.a2a.door.not_read("tasks", &error))?;
        let has_artifacts = params.include_artifacts.unwrap_or(false);
        let history = params.history_length.or(Some(0));
        let page = tasks.list(context, matches, (start, size), |id, task| {
            let of = WriteContext::task(self.parsed.dialect, id, task);
            of.whole(task, history, has_artifacts)
        });
        let next = page.continues_after;
        let next = next.map_or_else(String::new, |(changed, id)| format!("{changed}-{id}"));
        let result = format!(
            r#"{{"tasks":[{}],"nextPageToken":{},"pageSize":{size},"totalSize":{}}}"#,
            page.tasks.join(","),
            Value::from(next),
            page.total
        );
        Ok((result, page.tasks.len()))
    }

    pub(super) async fn follow(&self) -> Result<Reply, Failure> {
        let params: TaskParams = self.parsed.params()?;
        let received = self.last_event()?;
        let task = self.task(&params.id).await?;
        if task.status.state.is_terminal() && received.is_none() {
            let name = state(task.status.state, self.parsed.dialect);
            let message = format!("the task has ended ({name}) and has no further events");
            return Err(Failure::new(Reason::Unsupported, message));
        }
        // If earlier events are no longer stored, or the given event does not exist, start again with the current task.
        let last = received.filter(|last| *last <= task.position && task.remembers(*last));
        let id = Text::from(params.id);
        let subscribed = self.a2a.settings.tasks.follow(&id, last);
        let subscribed = subscribed.ok_or_else(|| not_found(&id))?;
        self.check_accepts()?;
        self.stream(id, subscribed, (last, None), None)
    }

    /// Checks that the client accepts a stream.
    pub(super) fn check_accepts(&self) -> Result<(), Failure> {
        if self.common.accepts.events() {
            return Ok(());
        }
        let message =
            "the answer is a stream of events, and Accept does not allow text/event-stream";
        Err(Failure::new(Reason::ContentType, message))
    }

    /// The last event that the client received, from `Last-Event-ID`.
    fn last_event(&self) -> Result<Option<Position>, Failure> {
        let id = self.head.last_event.as_deref();
        let Some(id) = id.filter(|id| !id.is_empty()) else {
            return Ok(None);
        };
        id.parse().map(Some).map_err(|_| {
            Failure::bad_params(&format!(
                "Last-Event-ID: {id:?} is not an event id: send the id of the last event you received, or omit the header"
            ))
        })
    }

    pub(super) fn stream(
        &self,
        task: Text,
        subscribed: (Task, Subscription),
        (missed_since, own): (Option<Position>, Option<OwnAnswer>),
        history: Option<usize>,
    ) -> Result<Reply, Failure> {
        let reader = Reader {
            tasks: Arc::clone(&self.a2a.settings.tasks),
            calls: Arc::clone(&self.a2a.door.calls),
            task,
            form: self.parsed.form(),
            history,
        };
        let from = (missed_since, own);
        let response = reader.response(subscribed, from, self.common.budget.clone());
        Ok(Reply::Stream(Box::new(response?)))
    }

    pub(super) async fn cancel(&self) -> Result<String, Failure> {
        let params: TaskParams = self.parsed.params()?;
        let id = Text::from(params.id.as_str());
        let task = self.task(&id).await?;
        if task.status.state.is_terminal() {
            return Err(not_cancelable(&id, &task, None));
        }
        let tasks = &self.a2a.settings.tasks;
        let cancel = self.cancel_of(&id, &task)?;
        // It continues if the client disconnects.
        let done = tasks.spawn(cancel.done()).await;
        let refused = done.unwrap_or_else(|_| Err(not_known(&id)))?;
        let task = tasks.get(&id).ok_or_else(|| not_found(&id))?;
        if task.status.state != State::Canceled {
            return Err(not_cancelable(&id, &task, refused));
        }
        if self.parsed.dialect == Dialect::JafDoc {
            let (id, timestamp) = (id.as_str(), task.status.timestamp.as_str());
            return Ok(json!({ "id": id, "cancelled": true, "timestamp": timestamp }).to_string());
        }
        Ok(WriteContext::task(self.parsed.dialect, &id, &task).whole(
            &task,
            params.history_length,
            true,
        ))
    }

    /// The cancel of a task. It does not depend on this request.
    fn cancel_of(&self, id: &Text, task: &Task) -> Result<Cancel, Failure> {
        let method = match task.is_1_0 {
            true => "CancelTask",
            false => "tasks/cancel",
        };
        let request = task.agents_id.as_ref().map(|id| {
            let request = json!({
                "jsonrpc": "2.0", "id": 1, "method": method, "params": { "id": id.as_str() },
            });
            self.unit(&Bytes::from(request.to_string()), &Hint::default())
        });
        let common = Common {
            target: Target::Agent(task.agent.clone()),
            timeout: Some(self.a2a.settings.live.load().cancel_timeout),
            arrived: Instant::now(),
            ..Common::clone(&self.common)
        };
        Ok(Cancel {
            a2a: Arc::clone(self.a2a),
            common,
            id: id.clone(),
            context: task.context.clone(),
            request: request.transpose()?,
        })
    }
}

// === impl Cancel ===

impl Cancel {
    /// Asks the agent, and ends the task unless the agent refuses. Returns the message with which it refuses.
    async fn done(mut self) -> Result<Option<String>, Failure> {
        let update = match self.request.take() {
            Some(request) => match self.ask(request).await {
                Cancelled::Yes(update) => update,
                Cancelled::No(why) => return Ok(Some(why)),
            },
            None => None,
        };
        let (tasks, id) = (&self.a2a.settings.tasks, &self.id);
        let stored = async {
            if let Some(update) = update {
                tasks.record_update(id, *update).await?;
            }
            // This has no effect if the task has ended by itself.
            let status = Status::now(State::Canceled, None);
            tasks.record_for_caller(id, &Event::Status(status)).await
        };
        let stored = stored.await;
        stored.map_err(|error| self.a2a.door.not_stored("tasks", &error))?;
        Ok(None)
    }

    /// Asks the agent to cancel the task, and waits a limited time for its answer. Even on an error, the caller no
    /// longer wants the task.
    async fn ask(&self, request: Unit) -> Cancelled {
        let options = CallOptions {
            conversation: Some(&self.context),
            ..CallOptions::default()
        };
        let Ok(answer) = self.common.call(request, None, options).await else {
            return Cancelled::Yes(None);
        };
        let mut answer = answer.without_cancel();
        let part = tokio::select! {
            part = answer.next() => part,
            _ = self.a2a.settings.tasks.at_end(&self.id) => {
                answer.close();
                return Cancelled::Yes(None);
            }
        };
        let Some(Ok(part)) = part else {
            return Cancelled::Yes(None);
        };
        match AgentAnswer::of(part) {
            Some(AgentAnswer::Error(part))
                if RpcResponse::of(&part.body).code() == Some(NOT_CANCELABLE) =>
            {
                let why = RpcResponse::of(&part.body).message();
                Cancelled::No(why.unwrap_or_else(|| "it gives no reason".to_owned()))
            }
            Some(AgentAnswer::Result(
                update @ (AnswerPart::Task(_) | AnswerPart::Status { .. }),
            )) => Cancelled::Yes(Some(Box::new(update))),
            Some(_) | None => Cancelled::Yes(None),
        }
    }
}

/// The error for a cancel that was interrupted.
fn not_known(id: &str) -> Failure {
    let message = format!(
        "the bridge failed or is shutting down: get the task {id:?} later to see whether it is cancelled"
    );
    Failure::new(Reason::AnswerLost, message)
}

/// The error for a task that is not cancelled. If its agent refuses that, `refused` is the message of the agent.
fn not_cancelable(id: &str, task: &Task, refused: Option<String>) -> Failure {
    let name = state(task.status.state, Dialect::A2a03);
    let message = format!("the task {id:?} cannot be cancelled: it is {name}");
    let message = match refused.filter(|_| !task.status.state.is_terminal()) {
        Some(why) => format!("{message}, and its agent refuses to cancel it: {why}"),
        None => message,
    };
    Failure::new(Reason::TaskNotCancelable, message)
}
