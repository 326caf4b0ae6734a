//! A task as a stream of events, which a client can resume.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;

use a2abus_plugin::Text;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::form::Form;
use super::method::Method;
use super::shared::A2a;
use crate::budget::ClientBudget;
use crate::calls::failure::{Failure, Reason};
use crate::calls::{CallError, Calls};
use crate::doors::door;
use crate::http::sse::{Frame, charged_response};
use crate::state::{Lagged, Position};
use crate::tasks::model::{Message, Status};
use crate::tasks::write::{StreamEvent, WriteContext};
use crate::tasks::{LAST_EVENTS_TIMEOUT, Subscription, Task, Tasks, Update};

/// The reader of a stream.
#[derive(Debug, Clone)]
pub(super) struct Reader {
    pub(super) tasks: Arc<Tasks>,
    pub(super) calls: Arc<Calls>,
    /// The task.
    pub(super) task: Text,
    /// The form of its events.
    pub(super) form: Form,
    /// How many messages of its history the first event has at most; `None` means all.
    pub(super) history: Option<usize>,
}

/// The answer to the message that a stream began with.
pub(super) struct OwnAnswer {
    /// Its call.
    pub(super) call: Text,
    /// Ends when the answer is over, with the reason if the message was refused and the task did not end with it.
    pub(super) over: oneshot::Receiver<Message>,
}

/// A running stream.
struct Following {
    reader: Reader,
    context: Text,
    events: TaskEvents,
    /// The answer that the client waits for; `None` if it only follows the task, or once that answer is over.
    own: Option<OwnAnswer>,
    /// The last event that was sent.
    reached: Position,
    budget: ClientBudget,
}

/// The events of a task for one stream.
pub(in crate::doors) struct TaskEvents {
    calls: Arc<Calls>,
    pub(in crate::doors) subscription: Subscription,
    until: Instant,
    /// Whether the bridge is shutting down, and its calls have ended.
    is_ending: bool,
}

/// Why a stream ends before its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::doors) enum StreamEnd {
    /// It has lasted as long as a stream may.
    TimeOver,
    /// The bridge is shutting down.
    Draining,
}

// === impl Reader ===

impl Reader {
    /// Streams the current task and its further events. A client that reconnects gets the missed events instead of the
    /// task.
    ///
    /// # Errors
    /// When there is no room for the task.
    pub(super) fn response(
        self,
        (task, subscription): (Task, Subscription),
        (missed_since, own): (Option<Position>, Option<OwnAnswer>),
        budget: ClientBudget,
    ) -> Result<Response, Failure> {
        let first = match missed_since {
            Some(_) => None,
            None => Some(self.first(&task, &budget)?),
        };
        let is_over = task.status.state.is_terminal() && !subscription.has_missed();
        let following = Following {
            events: TaskEvents::new(&self.calls, subscription),
            own,
            reached: missed_since.unwrap_or(task.position),
            context: task.context,
            reader: self,
            budget,
        };
        let rest = stream::unfold((!is_over).then_some(following), |following| async move {
            following?.next().await
        });
        Ok(charged_response(stream::iter(first).chain(rest)))
    }

    /// The first event, charged: the current task. If there is no room for it, but the agent already has the message,
    /// the event has no messages and no artifacts.
    fn first(&self, task: &Task, budget: &ClientBudget) -> Result<Bytes, Failure> {
        let of = WriteContext::task(self.form.dialect, &self.task, task);
        let whole = self.frame(task.position, &of.first(task, self.history));
        let charged = door::charged_large(budget, whole.text());
        if charged.is_ok() || self.form.method != Method::Stream {
            return charged;
        }
        let brief = self.frame(task.position, &of.first_in_brief(task));
        Ok(budget.replace(brief.text()))
    }

    fn frame(&self, position: Position, written: &StreamEvent) -> Frame {
        Frame {
            event: written.event,
            id: Some(position.to_string()),
            data: self.form.result(&written.result),
        }
    }

    /// The error with which the stream ends before its task.
    fn failure(&self, failure: &Failure) -> Frame {
        Frame {
            event: self.form.error_event(),
            id: None,
            data: self.form.failure(failure).1,
        }
    }
}

// === impl TaskEvents ===

impl TaskEvents {
    pub(in crate::doors) fn new(calls: &Arc<Calls>, subscription: Subscription) -> Self {
        Self {
            calls: Arc::clone(calls),
            subscription,
            until: Instant::now() + calls.stream_timeout(),
            is_ending: false,
        }
    }

    /// The next event.
    pub(in crate::doors) async fn next(&mut self) -> Result<Result<Update, Lagged>, StreamEnd> {
        loop {
            let next = tokio::select! {
                biased;
                next = timeout_at(self.until, self.subscription.next()) => next,
                // A task that ends with the bridge ends very soon.
                () = self.calls.given_up(), if !self.is_ending => {
                    self.is_ending = true;
                    self.until = self.until.min(Instant::now() + LAST_EVENTS_TIMEOUT);
                    continue;
                }
            };
            return match next {
                Ok(Ok(Some(step))) => Ok(Ok(step)),
                Ok(Err(Lagged)) => Ok(Err(Lagged)),
                Err(_) if !self.is_ending => Err(StreamEnd::TimeOver),
                Err(_) | Ok(Ok(None)) => Err(StreamEnd::Draining),
            };
        }
    }
}

// === impl Following ===

impl Following {
    /// The next event, charged.
    async fn next(mut self) -> Option<(Bytes, Option<Self>)> {
        loop {
            let event = tokio::select! {
                biased;
                event = self.events.next() => event,
                refused = until_over(&mut self.own) => {
                    self.own = None;
                    if let Some(last) = self.last_of_own(refused) {
                        return Some((last, None));
                    }
                    continue;
                }
            };
            match event {
                Err(StreamEnd::Draining) => return Some((self.failed(&drained()), None)),
                // The client can resume with the id of the last event.
                Err(StreamEnd::TimeOver) => return None,
                Ok(Err(Lagged)) => {
                    let (tasks, task) = (&self.reader.tasks, &self.reader.task);
                    let (task, again) = tasks.follow(task, Some(self.reached))?;
                    if !task.remembers(self.reached) {
                        let failure = Failure::call(&CallError::SlowCaller);
                        return Some((self.failed(&failure), None));
                    }
                    self.events.subscription = again;
                }
                Ok(Ok(step)) => {
                    if let Some((event, goes_on)) = self.stepped(step) {
                        return Some((event, goes_on.then_some(self)));
                    }
                }
            }
        }
    }

    /// An event, charged, and whether more follow; `None` if its dialect does not show it.
    fn stepped(&mut self, mut step: Update) -> Option<(Bytes, bool)> {
        // The answer to the message of this client may still come.
        let is_other = |own: &OwnAnswer| step.call.as_ref() != Some(&own.call);
        let is_question = step.is_at_rest() && !step.is_terminal();
        // After a gap, the task may have gone on already.
        let goes_on = step.goes_on || self.events.subscription.has_missed();
        step.goes_on = is_question && (goes_on || self.own.as_ref().is_some_and(is_other));
        let (tasks, task) = (&self.reader.tasks, &self.reader.task);
        let written = self.written().step(&step, || tasks.get(task))?;
        let frame = self.reader.frame(step.position, &written);
        // The completion of the JAF document has the content of all artifacts.
        let event = match door::charged_if_large(&self.budget, frame.text()) {
            Ok(event) => event,
            Err(failure) => return Some((self.failed(&failure), false)),
        };
        self.reached = step.position;
        Some((event, !step.is_at_rest() || step.goes_on))
    }

    /// The last event once the answer that the client waited for is over, charged: why its message was refused, or the
    /// state in which the task rests. `None` if the stream goes on with the task.
    fn last_of_own(&self, refused: Option<Message>) -> Option<Bytes> {
        let (tasks, task) = (&self.reader.tasks, &self.reader.task);
        let (status, has_news) = tasks.status_since(task, self.reached)?;
        let state = status.state;
        let status = match refused {
            Some(why) if !state.is_terminal() => Status::now(state, Some(why)),
            None if state.is_at_rest() && !has_news => status,
            // The event that ends the task is on its way, or the agent works on another message.
            _ => return None,
        };
        let written = self.written().status(&status, true);
        let frame = Frame {
            event: written.event,
            // It is for this client only.
            id: None,
            data: self.reader.form.result(&written.result),
        };
        Some(self.budget.replace(frame.text()))
    }

    fn written(&self) -> WriteContext<'_> {
        WriteContext {
            dialect: self.reader.form.dialect,
            task: Some(&self.reader.task),
            context: Some(&self.context),
        }
    }

    /// The last event of a stream that ends before its task, charged.
    fn failed(&self, failure: &Failure) -> Bytes {
        self.budget.replace(self.reader.failure(failure).text())
    }
}

/// The task once it has ended or waits for its caller, `Some(None)` if there is no such task; `None` if that does not
/// happen in time, or before the bridge stops.
pub(in crate::doors) async fn at_rest(a2a: &A2a, id: &str, until: Instant) -> Option<Option<Task>> {
    until_drained(a2a, (id, until), a2a.settings.tasks.at_rest(id)).await
}

/// The same, for a future that waits until the task is at rest.
pub(super) async fn until_drained(
    a2a: &A2a,
    (id, until): (&str, Instant),
    resting: impl Future<Output = Option<Task>>,
) -> Option<Option<Task>> {
    let mut resting = pin!(resting);
    tokio::select! {
        biased;
        task = timeout_at(until, resting.as_mut()) => return task.ok(),
        () = a2a.door.calls.given_up() => {}
    }
    a2a.settings.tasks.soon((id, until), resting).await
}

/// Waits until this answer is over; forever if there is none. Cancel-safe.
async fn until_over(own: &mut Option<OwnAnswer>) -> Option<Message> {
    match own {
        Some(own) => (&mut own.over).await.ok(),
        None => pending().await,
    }
}

/// The error of a stream that ends with the bridge, while its task goes on. To send the message again would begin another
/// task.
fn drained() -> Failure {
    let message = "the bridge is shutting down, and the task goes on: subscribe to it again";
    Failure::new(Reason::AgentUnavailable, message)
}
