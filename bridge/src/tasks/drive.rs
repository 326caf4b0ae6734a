//! Records the answers of agents for their tasks.

use std::sync::Arc;

use a2abus_plugin::Text;
use tokio::sync::oneshot;

use super::Tasks;
use super::answer::{AgentAnswer, AgentError, RESULT, differences, failure_message, plain_events};
use super::fold::{Event, Origin, Task};
use super::model::{Message, State, Status, TASK_NOT_FOUND};
use super::read::AnswerPart;
use crate::calls::callid::{CallId, Replica};
use crate::calls::failure::Failure;
use crate::calls::{self, Answer, CallError, NoAnswer, RequestState};
use crate::shares::Share;
use crate::state::{Lagged, StateError, TASKS};

/// What a part of an answer means for its call.
enum Taken {
    /// More parts follow.
    More,
    /// It is the last one.
    End,
    /// It is the last one, and the agent works on another message of the task.
    Beside,
}

/// Receives the result of what runs once a message has begun or continued its task, and ends when its answer is over:
/// with the reason, if the message was refused or not answered and the task did not end with it.
pub(crate) type Begun<T> = (
    oneshot::Receiver<Result<T, StateError>>,
    oneshot::Receiver<Message>,
);

/// A message of a task, whose answer is recorded.
struct Driven {
    id: Text,
    /// The state that the message found, if the task existed and the agent cannot be working on the message any more.
    before: Option<State>,
    /// Held until the answer ends. It is released before anything asks whether the agent has another message of the
    /// task, so that of messages that end at the same moment one is the last.
    call: Option<Share<Text>>,
    /// Why the message was refused, or not answered, if that is recorded only as a message of the history.
    refused: Option<Message>,
}

// === impl Tasks ===

impl Tasks {
    /// Records the agent's answer for an existing task until the answer ends.
    pub(crate) fn drive(self: &Arc<Self>, id: Text, mut answer: Box<Answer>) {
        let tasks = Arc::clone(self);
        let mut message = self.taken_over(id, answer.consumed());
        self.drivers.spawn(async move {
            let driven = tasks.driven(&mut message, &mut answer, None).await;
            tasks.log_lost(&message.id, driven);
        });
    }

    /// A message that another replica has sent. The task has this many parts of its answer; if there are any, the agent
    /// may have begun to work on the message.
    fn taken_over(&self, id: Text, parts: u32) -> Driven {
        let waited = self
            .view
            .read(|tasks| tasks.get(&id).and_then(Task::waited));
        Driven {
            before: waited.filter(|_| parts == 0),
            call: self.calls.take(&id),
            id,
            refused: None,
        }
    }

    /// Begins or continues a task, and records the agent's answer for it until the answer ends, whether or not the
    /// caller still waits. `first` holds the parts received so far. `begun` runs after the beginning is recorded and
    /// before anything else is; the receiver gets its result.
    pub(crate) fn begin<T: Send + 'static>(
        self: &Arc<Self>,
        (id, beginning): (Text, Event),
        mut answer: Box<Answer>,
        first: Option<(AnswerPart, bool)>,
        begun: impl Future<Output = T> + Send + 'static,
    ) -> Begun<T> {
        let (tasks, first) = (Arc::clone(self), first.map(Box::new));
        let (sender, receiver) = oneshot::channel();
        let (held, over) = oneshot::channel();
        let begun = Box::pin(begun);
        let mut message = Driven {
            before: self.view.read(|tasks| tasks.get(&id).map(Task::found)),
            call: self.calls.take(&id),
            id,
            refused: None,
        };
        self.drivers.spawn(async move {
            let id = &message.id;
            if let Err(error) = tasks.record(id, beginning).await {
                if let Err(Err(error)) = sender.send(Err(error)) {
                    tasks.log_lost(id, Err(error));
                }
                return;
            }
            // The caller may be gone.
            let _ = sender.send(Ok(begun.await));
            let driven = tasks.driven(&mut message, &mut answer, first).await;
            tasks.rooms.count(&message.id, tasks.sizes());
            tasks.log_lost(&message.id, driven);
            if let Some(why) = message.refused {
                // The caller may be gone.
                let _ = held.send(why);
            }
        });
        (receiver, over)
    }

    fn log_lost(&self, id: &Text, driven: Result<(), StateError>) {
        if let Err(error) = driven
            && let Some(suppressed) = self.lost.allow()
        {
            tracing::error!(task = %id, %error, suppressed, "an event of a task was not stored: the task is no longer updated");
        }
    }

    // A task waits here for the parts of its answer. The code that processes a part is boxed, so that it uses no
    // memory before.
    async fn driven(
        &self,
        message: &mut Driven,
        answer: &mut Answer,
        first: Option<Box<(AnswerPart, bool)>>,
    ) -> Result<(), StateError> {
        let call = answer.call_id().text();
        if let Some(first) = first {
            let from = Origin::of_part(answer, first.1);
            let taken = Box::pin(self.take_result(&message.id, *first, &from)).await?;
            if matches!(taken, Taken::End) {
                return Box::pin(self.finish(message, &call)).await;
            }
        }
        loop {
            let state = self.reread_if_none(|| self.follow_state(&message.id));
            let (mut is_ended, mut subscription) = state.await.ok_or_else(not_stored)?;
            while !is_ended {
                tokio::select! {
                    // The last part also ends the task at another replica. Then the agent must get no cancel.
                    biased;
                    part = answer.next() => {
                        if matches!(part, Some(Err(CallError::HandedOff))) {
                            // Another replica continues the task.
                            return Ok(());
                        }
                        if matches!(&part, Some(Err(error)) if may_be_working(answer, error)) {
                            message.before = None;
                        }
                        let is_last = matches!(&part, Some(Ok(part)) if part.last);
                        let taken = self.take(message, part, Origin::of_part(answer, is_last));
                        match Box::pin(taken).await? {
                            Taken::More => {}
                            Taken::End => return Box::pin(self.finish(message, &call)).await,
                            Taken::Beside => return Ok(()),
                        }
                    },
                    step = subscription.next() => match step {
                        Ok(Some(step)) => is_ended = step.state().is_some_and(State::is_terminal),
                        Ok(None) => return Ok(()),
                        Err(Lagged) => break,
                    },
                }
            }
            if is_ended {
                // The task was cancelled, or has ended while its call continues. An agent with its own id for the task
                // ended it, or got a request to cancel it. Any other agent gets the cancel of a dropped answer.
                let is_named = self.view.read(|tasks| {
                    let task = tasks.get(&message.id);
                    task.is_some_and(|task| task.agents_id.is_some())
                });
                if is_named {
                    answer.close();
                }
                return Ok(());
            }
        }
    }

    /// Processes a part of the answer.
    async fn take(
        &self,
        message: &mut Driven,
        part: Option<Result<calls::Part, CallError>>,
        from: Origin,
    ) -> Result<Taken, StateError> {
        // Once a part has arrived, the agent may be working on the message.
        let before = message.before.take();
        match part {
            None => Ok(Taken::End),
            Some(Err(error)) => {
                let mut why = failure_message(&self.why_unanswered(&message.id, &error));
                // Another replica that has followed the call may record the same.
                why.id = from.call.clone();
                let from = from.ending();
                // The end of the task takes the place of the next part: if another replica has already recorded that
                // part, the task goes on there. As a message, the reason takes no place: the agent may still send the
                // next part, and another replica may record it. If the part has arrived but cannot be used, the
                // reason takes its place.
                let next = from.next();
                let origins = match error {
                    CallError::BadAnswer(_) => [next.at(1, true), next.at(2, true)],
                    _ => [from.after(), next],
                };
                self.record_unanswered((message, before), why, origins)
                    .await
            }
            Some(Ok(part)) => {
                let last = part.last;
                match AgentAnswer::of(part) {
                    Some(AgentAnswer::Result(_)) if !last && self.is_too_large(&message.id, 0) => {
                        self.end_too_large(&message.id, &from).await
                    }
                    Some(AgentAnswer::Result(reported)) => {
                        let reported = (reported, last);
                        self.take_result(&message.id, reported, &from).await
                    }
                    Some(AgentAnswer::Error(part)) => {
                        let error = AgentError::of(&part);
                        let state = before.filter(|_| error.code != Some(TASK_NOT_FOUND));
                        let from = from.ending();
                        // With its origin, so that other replicas know that the part was processed.
                        let origins = [from.at(1, true), from.at(2, true)];
                        self.record_unanswered((message, state), error.message(), origins)
                            .await
                    }
                    // Progress in another protocol.
                    None => {
                        self.record_taken(&message.id, &from).await?;
                        Ok(Taken::of(last))
                    }
                }
            }
        }
    }

    /// Processes a result of the agent. If the log refuses it for good, for example because it is too large, the task
    /// fails.
    async fn take_result(
        &self,
        id: &Text,
        reported: (AnswerPart, bool),
        from: &Origin,
    ) -> Result<Taken, StateError> {
        let last = reported.1;
        match self.record_from(id, reported, from).await {
            Err(error) if !error.is_transient() => {
                if let Some(suppressed) = self.large.allow() {
                    tracing::warn!(task = %id, %error, suppressed, "a task has failed: the log of tasks refuses a part of its answer");
                }
                let why =
                    "the log of tasks refuses a part of the agent's answer, which may be too large";
                self.fail(id, why, from.after()).await
            }
            recorded => recorded.map(|()| Taken::of(last)),
        }
    }

    /// Fails a task that has become too large.
    async fn end_too_large(&self, id: &Text, from: &Origin) -> Result<Taken, StateError> {
        if let Some(suppressed) = self.large.allow() {
            tracing::warn!(task = %id, suppressed, "a task has failed: it takes more than a quarter of the memory for tasks (state.memory)");
        }
        let why = "the answer of the agent is too large: the task takes more than a quarter of the memory for tasks (state.memory)";
        self.fail(id, why, from.at(1, true)).await
    }

    /// Fails a task. Its agent gets a cancel, because nobody takes the rest of the answer.
    async fn fail(&self, id: &Text, why: &str, from: Origin) -> Result<Taken, StateError> {
        let status = Status::now(State::Failed, Some(failure_message(why)));
        let failed = Event::Status(status).from(from);
        self.record(id, failed).await?;
        Ok(Taken::End)
    }

    /// Completes a task whose answer has ended without a final state, unless the agent has another message of it.
    async fn finish(&self, message: &mut Driven, call: &Text) -> Result<(), StateError> {
        message.call = None;
        let id = &message.id;
        let has_ended =
            |task: &Task| !task.status.state.is_at_rest() && !self.works_elsewhere(task, call);
        let has_ended = self.view.read(|tasks| tasks.get(id).is_some_and(has_ended));
        if !has_ended || self.calls.held_by(id) > 0 {
            return Ok(());
        }
        let status = Status::now(State::Completed, None);
        self.record(id, Event::Status(status)).await
    }

    /// Records why a message was refused, or not answered: with the first origin as a message of the history, if the
    /// agent works on another message or has meanwhile asked for input; otherwise with the second origin as the state
    /// of the task.
    async fn record_unanswered(
        &self,
        (message, before): (&mut Driven, Option<State>),
        why: Message,
        [said, ended]: [Origin; 2],
    ) -> Result<Taken, StateError> {
        message.call = None;
        let id = &message.id;
        let is_last_here = self.calls.held_by(id) == 0;
        let after = || is_last_here.then(|| self.state_after(id, before, &ended.call));
        let mut state = after().flatten();
        if state.is_none() {
            let message = why.clone();
            self.record(id, Event::Said { message }.from(said)).await?;
            // If messages end at several replicas at the same moment, one of them is the last in the log: its replica
            // now sees that all others have ended.
            state = after().flatten().filter(|_| !self.is_at_rest(id));
        }
        let Some(state) = state else {
            message.refused = Some(why);
            return Ok(Taken::Beside);
        };
        let status = Event::Status(Status::now(state, Some(why)));
        self.record(id, status.from(ended)).await?;
        // Otherwise another replica has recorded that part.
        Ok(match self.is_at_rest(id) {
            true => Taken::End,
            false => Taken::Beside,
        })
    }

    /// The state of a task after one of its messages was refused, or not answered: if it was waiting for that message, it
    /// waits for another one. `None` if the agent works on a message of another replica, or has asked for input meanwhile.
    fn state_after(&self, id: &str, before: Option<State>, call: &Text) -> Option<State> {
        let is_waiting = |state: State| state.is_at_rest() && !state.is_terminal();
        let waiting = before.filter(|state| is_waiting(*state));
        let is_busy = |task: &Task| {
            let is_last = task.last_call().is_none_or(|last| last == call);
            let has_asked = is_waiting(task.status.state) && (waiting.is_none() || !is_last);
            has_asked || self.works_elsewhere(task, call)
        };
        let is_busy = self.view.read(|tasks| tasks.get(id).is_some_and(is_busy));
        (!is_busy).then(|| waiting.unwrap_or(State::Failed))
    }

    /// Whether the agent works on a message that another replica has sent. A call of the replica of `call` has ended if it
    /// does not hold the task here.
    fn works_elsewhere(&self, task: &Task, call: &Text) -> bool {
        let mut others = task.unended_calls();
        self.is_shared() && others.any(|other| replica_of(other) != replica_of(call))
    }

    /// Why a message of this task was not answered, for its clients.
    fn why_unanswered(&self, id: &str, error: &CallError) -> String {
        let CallError::Timeout(silent) = error else {
            return Failure::call(error).message().to_owned();
        };
        let mut silent = NoAnswer::clone(silent);
        if silent.agent.is_empty() {
            // A replica that continues the call of another one has no request that names the agent.
            let agent_of = |task: &Task| task.agent.clone();
            let agent = self.view.read(|tasks| tasks.get(id).map(agent_of));
            silent.agent = agent.unwrap_or_default();
        }
        match silent.request {
            RequestState::Unended { .. } => {
                format!("{silent}; raise X-A2A-Timeout or calls.stream_timeout to wait longer")
            }
            // `calls.timeout` may be the limit, which a client cannot raise.
            _ => silent.to_string(),
        }
    }

    /// Whether a task has ended or waits for its client, or is not stored.
    fn is_at_rest(&self, id: &str) -> bool {
        let is_at_rest = |task: &Task| task.status.state.is_at_rest();
        let task_is = |task: Option<&Task>| task.is_none_or(is_at_rest);
        self.view.read(|tasks| task_is(tasks.get(id)))
    }

    /// Records an agent's update of a task for a caller.
    pub(crate) async fn record_update(
        &self,
        id: &Text,
        reported: AnswerPart,
    ) -> Result<(), StateError> {
        for (_, event) in self.events_of(id, (reported, true), false) {
            self.record_for_caller(id, &event).await?;
        }
        Ok(())
    }

    /// Records the events in a part of the answer to a call.
    async fn record_from(
        &self,
        id: &Text,
        reported: (AnswerPart, bool),
        from: &Origin,
    ) -> Result<(), StateError> {
        let events = self.events_of(id, reported, from.part > 1);
        let Some(last) = events.last().map(|(number, _)| *number) else {
            return self.record_taken(id, from).await;
        };
        let events = events.into_iter();
        let events = events.map(|(number, event)| event.from(from.at(number, number == last)));
        self.record_all(id, events).await
    }

    /// Records that a part contained nothing new, because another replica may wait for its events, or for the end of the
    /// answer.
    async fn record_taken(&self, id: &Text, from: &Origin) -> Result<(), StateError> {
        let is_end = self.is_shared() && from.ends_answer;
        if !is_end && !from.call.parse().is_ok_and(CallId::is_followed) {
            return Ok(());
        }
        self.record(id, Event::Taken.from(from.clone())).await
    }

    /// The events in a part of an answer, numbered in an order that is the same for every replica. Events without news
    /// keep their numbers too. `last` tells whether it is the last part, `continues` whether others precede it.
    fn events_of(
        &self,
        id: &Text,
        (reported, last): (AnswerPart, bool),
        continues: bool,
    ) -> Vec<(u32, Event)> {
        let numbered = |events: Vec<Event>| (1..).zip(events).collect();
        let named = |task: Option<Text>| task.map(|task| Event::Named { task });
        match reported {
            AnswerPart::Task(reported) => match self.get(id) {
                Some(task) => differences(reported, &task),
                None => Vec::new(),
            },
            AnswerPart::Message(message) => {
                let state = if last {
                    State::Completed
                } else {
                    State::Working
                };
                numbered(vec![Event::Status(Status::now(state, Some(message)))])
            }
            AnswerPart::Status { task, status } => {
                let event = Event::Status(status);
                numbered(named(task).into_iter().chain([event]).collect())
            }
            AnswerPart::Artifact {
                task,
                artifact,
                append,
                last,
                metadata,
            } => {
                let event = Event::Artifact {
                    artifact,
                    append,
                    last,
                    metadata,
                };
                numbered(named(task).into_iter().chain([event]).collect())
            }
            AnswerPart::Plain(json) => {
                let (is_new, has_result) = self.view.read(|tasks| {
                    let task = tasks.get(id);
                    let is_new = |task: &Task| task.status.state == State::Submitted;
                    let has_result = |task: &Task| task.artifacts.iter().any(|it| it.id == RESULT);
                    (task.is_some_and(is_new), task.is_some_and(has_result))
                });
                plain_events(json, last, (is_new, continues && has_result))
            }
        }
    }
}

/// The error for a task that is still driven, although it has been removed.
fn not_stored() -> StateError {
    StateError::Unread {
        name: TASKS.name,
        why: Arc::from("the task is no longer stored"),
    }
}

/// Whether an agent may be working on a message whose answer ended with this error. An answer that cannot be used is over.
fn may_be_working(answer: &Answer, error: &CallError) -> bool {
    !answer.is_undelivered(error) && !matches!(error, CallError::BadAnswer(_))
}

/// The replica that made a call.
fn replica_of(call: &Text) -> Option<Replica> {
    call.parse().ok().map(CallId::replica)
}

// === impl Taken ===

impl Taken {
    /// What a part means, depending on whether it is the last one.
    fn of(last: bool) -> Self {
        if last { Self::End } else { Self::More }
    }
}

#[cfg(test)]
mod tests;
