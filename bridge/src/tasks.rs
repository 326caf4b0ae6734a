//! The tasks of A2A callers, stored by the bridge.
//!
//! ```text
//! call ── Answer ──> drive ── Event ──> log ──> TaskFold ──> Task ──> get, list
//!                                                    └─ in order ──> every subscriber
//! ```
//!
//! A task is the fold of its records, and nothing else. An unfinished task has an owner, [`Tasks::drive`], which
//! records the agent's answer. It ends with the call: at the last part of the answer, at the deadline, or when the task
//! is cancelled. Source: docs/protocols/a2a.md §9.

pub(crate) mod fold;
pub(crate) mod model;
pub(crate) mod push;
pub(crate) mod read;
pub(crate) mod write;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use a2abus_plugin::Text;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};
use tokio_util::task::TaskTracker;
use tracing::Level;

pub(crate) use self::fold::{Created, Event, Origin, Task};

use self::fold::{MAX_MESSAGES, TaskFold};
use self::model::{Artifact, Content, Message, Part, Raw, State, Status, TASK_NOT_FOUND};
use self::read::{AnswerPart, ReportedTask};
use crate::calls::callid::{CallId, Replica};
use crate::calls::failure::Failure;
use crate::calls::{self, Answer, CallError};
use crate::clock;
use crate::log_limit::{LogLimit, LogLimits};
use crate::metrics::Metrics;
use crate::object::present;
use crate::shares::{Share, Shares};
use crate::state::body;
use crate::state::{
    ATTENDED, Entries, Following, LATEST, Lagged, Logs, Position, StateError, TASKS, UNATTENDED,
    View,
};

/// The tasks of all agents.
#[derive(Debug)]
pub(crate) struct Tasks {
    view: View<TaskFold>,
    drivers: TaskTracker,
    /// The tasks whose calls this replica makes.
    calls: Arc<Shares<Text>>,
    /// Whether other replicas share the log.
    is_shared: bool,
    /// When the last outage of the log was seen.
    outage: Mutex<Option<Instant>>,
    lost: LogLimit,
    large: LogLimit,
    metrics: Arc<Metrics>,
}

/// A part of an agent's answer, as JSON-RPC.
#[derive(Debug)]
pub(crate) enum AgentAnswer {
    /// A result.
    Result(AnswerPart),
    /// The agent's error, as the whole response.
    Error(calls::Part),
}

/// What a part of an answer means for its call.
enum Taken {
    /// More parts follow.
    More,
    /// It is the last one.
    End,
    /// It is the last one, and the agent works on another message of the task.
    Beside,
}

/// Receives the result of what runs once a message has begun or continued its task, and ends when its answer is over.
pub(crate) type Begun<T> = (
    oneshot::Receiver<Result<T, StateError>>,
    oneshot::Receiver<Infallible>,
);

/// A message of a task, whose answer is recorded.
struct Driven {
    id: Text,
    /// The state that the message found, if the task existed and the agent cannot be working on the message.
    before: Option<State>,
    /// Held until the answer ends. It is released before anything asks whether the agent has another message of the
    /// task, so that of messages that end at the same moment one is the last.
    call: Option<Share<Text>>,
}

/// A task on which its agent may be working for another replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unfinished {
    /// The call that began last.
    pub(crate) last_call: Text,
    /// When its last record was written, in milliseconds since 1970.
    pub(crate) last_record: u64,
}

/// One event of a task, for a subscriber.
#[derive(Debug, Clone)]
pub(crate) struct Update {
    /// Its position in the log, which is also the id of the event.
    pub(crate) position: Position,
    /// The event.
    pub(crate) event: Arc<Event>,
}

/// The events of one task from some position on.
#[derive(Debug)]
pub(crate) struct Subscription {
    /// The events between the position that the subscriber named and the start of the subscription.
    missed: std::vec::IntoIter<Update>,
    following: Following,
}

/// How long the last event of a task may take when the bridge shuts down.
pub(crate) const LAST_EVENTS_TIMEOUT: Duration = Duration::from_millis(500);
/// How long it may take while this replica records it. The door stays open that long, unless the grace period is short.
const LAST_RECORDS_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest interval between searches for tasks without an owner.
const MAX_ORPHAN_INTERVAL: Duration = Duration::from_secs(30);
/// How much longer than a call its task may run.
const ORPHAN_MARGIN: Duration = Duration::from_secs(5);
/// The text of a task that fails because it has no owner.
const ORPHANED: &str = "the bridge that followed the task has stopped";
/// The text of a task that fails because it has no owner and its deadline has passed, or its agent is silent.
const OVERDUE: &str =
    "no answer by the deadline of the call, and the bridge that made the call has stopped";
/// How large the tasks of one page are together, in bytes, as they are written.
const PAGE_BYTES: usize = 4 << 20;
/// The interval between searches for tasks whose deadline has passed.
const OVERDUE_INTERVAL: Duration = Duration::from_secs(5);
/// An answer of the log that takes longer counts as an outage.
const SLOW: Duration = Duration::from_secs(3);
/// How long after an outage of the log the records of other bridges may still be on the way.
const RECOVERY: Duration = Duration::from_secs(40);
/// One task may take this part of the memory.
const LARGEST_TASK: usize = 4;
/// The largest error of an agent that the record of its task contains.
const MAX_ERROR: usize = 64 << 10;
/// How many records a subscriber may lag behind before it must read the task again.
const BEHIND: usize = 256;
/// The id of the artifact with the parts of an answer that is not A2A.
const RESULT: Text = Text::from_static("result");

/// Where a page of a list begins.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PageStart<'a> {
    /// After this many tasks.
    Offset(usize),
    /// After the task with this id, which last changed at this time, in milliseconds since 1970. Tasks that enter or leave
    /// the list between two pages do not shift the rest.
    After { changed: u64, id: &'a str },
}

/// A page of a list.
#[derive(Debug)]
pub(crate) struct Page {
    /// The tasks, as they are written.
    pub(crate) tasks: Vec<String>,
    /// How many tasks the whole list has.
    pub(crate) total: usize,
    /// If more tasks follow this page: when its last task last changed, and the id of that task.
    pub(crate) continues_after: Option<(u64, Text)>,
}

// === impl Tasks ===

impl Tasks {
    /// Opens the log of tasks.
    ///
    /// # Errors
    /// When the log cannot be opened.
    pub(crate) async fn open(
        logs: &Logs,
        log: &LogLimits,
        metrics: &Arc<Metrics>,
    ) -> Result<Arc<Self>, StateError> {
        let view = logs.view(TASKS, TaskFold).await?;
        Ok(Arc::new(Self::new(view, logs.is_shared(), log, metrics)))
    }

    fn new(view: View<TaskFold>, is_shared: bool, log: &LogLimits, metrics: &Arc<Metrics>) -> Self {
        Self {
            view,
            drivers: TaskTracker::new(),
            calls: Shares::new(usize::MAX),
            is_shared,
            outage: Mutex::default(),
            lost: log.limit(Level::ERROR, "more events of tasks were not stored"),
            large: log.limit(
                Level::WARN,
                "more tasks have failed because they were too large",
            ),
            metrics: Arc::clone(metrics),
        }
    }

    /// The current task, as this replica knows it.
    pub(crate) fn get(&self, id: &str) -> Option<Task> {
        self.view.read(|tasks| tasks.get(id).cloned())
    }

    /// The current task, including the records of other replicas.
    ///
    /// # Errors
    /// Like [`Tasks::latest`].
    pub(crate) async fn find(&self, id: &str) -> Result<Option<Task>, StateError> {
        let ended = |task: &Task| task.status.state.is_terminal();
        if let Some(task) = self.get(id).filter(ended) {
            return Ok(Some(task));
        }
        self.latest().await?;
        Ok(self.get(id))
    }

    /// Waits until this replica has applied everything in the log.
    ///
    /// # Errors
    /// When the log is unavailable, or is not read in time.
    pub(crate) async fn latest(&self) -> Result<(), StateError> {
        self.view.latest(LATEST).await
    }

    /// An error if the log does not answer.
    ///
    /// # Errors
    /// [`StateError::Unread`].
    pub(crate) fn check_read(&self) -> Result<(), StateError> {
        self.view.check_read()
    }

    /// Checks that a new task can be stored.
    ///
    /// # Errors
    /// [`StateError::Unread`], [`StateError::Full`].
    pub(crate) fn check_new(&self, id: &str) -> Result<(), StateError> {
        self.view.check_read()?;
        self.view.check_room(id)
    }

    /// The tasks that `matches` accepts, as `write` writes them, the most recently changed first: at most `size` of
    /// them from the start of the page, and fewer if they are large. `context` limits the list to one conversation.
    pub(crate) fn list(
        &self,
        context: Option<&str>,
        matches: impl Fn(&Task) -> bool,
        (start, size): (PageStart<'_>, usize),
        write: impl Fn(&str, &Task) -> String,
    ) -> Page {
        let (skip, found, total) = self.found(context, &matches, (start, size));
        let mut page = Page {
            tasks: Vec::new(),
            total,
            continues_after: None,
        };
        let (mut last, mut passed, mut bytes) = (None, skip, 0);
        for (changed, id) in found {
            // Each task is read by itself: while one is read, no records are applied.
            let written = self.view.read(|tasks| {
                let task = tasks.get(&id).filter(|task| matches(task))?;
                Some(write(&id, task))
            });
            bytes += written.as_ref().map_or(0, String::len);
            // One fits always: otherwise a client could not get past a large task.
            if bytes > PAGE_BYTES && !page.tasks.is_empty() {
                break;
            }
            // A task that has left the list meanwhile is left out.
            page.tasks.extend(written);
            passed += 1;
            last = Some((changed, id));
        }
        page.continues_after = last.filter(|_| passed < total);
        page
    }

    /// How many tasks of a list precede a page, the time of the last change and the id of each task of the page, and
    /// how many tasks the whole list has.
    fn found(
        &self,
        context: Option<&str>,
        matches: impl Fn(&Task) -> bool,
        (start, size): (PageStart<'_>, usize),
    ) -> (usize, Vec<(u64, Text)>, usize) {
        self.view.read(|tasks| {
            let all: Box<dyn Iterator<Item = (&str, &Task)>> = match context {
                Some(context) => Box::new(tasks.group(context)),
                None => Box::new(tasks.iter()),
            };
            let mut found: Vec<_> = all.filter(|(_, task)| matches(task)).collect();
            found.sort_unstable_by(|(a, x), (b, y)| (y.changed, b).cmp(&(x.changed, a)));
            let total = found.len();
            let skip = match start {
                PageStart::Offset(offset) => offset.min(total),
                PageStart::After { changed, id } => {
                    found.partition_point(|(it, task)| (task.changed, *it) >= (changed, id))
                }
            };
            let page = found.into_iter().skip(skip).take(size);
            let page = page.map(|(id, task)| (task.changed, Text::from(id)));
            (skip, page.collect(), total)
        })
    }

    /// How many tasks of a conversation have not ended and do not wait for their caller.
    pub(crate) fn active_in(&self, context: &str) -> usize {
        let is_active = |task: &Task| !task.status.state.is_at_rest();
        self.view.read(|tasks| {
            let active = tasks.group(context).filter(|(_, task)| is_active(task));
            active.count()
        })
    }

    /// Stores an event, and waits a limited time until the task contains it or has rejected it as too late.
    ///
    /// # Errors
    /// When the event is not stored in time.
    pub(crate) async fn record_for_caller(
        &self,
        id: &str,
        event: &Event,
    ) -> Result<(), StateError> {
        let body = Some(body::write(event));
        let stored = self.view.commit(id, body, ATTENDED).await?;
        self.count(id, event, stored);
        Ok(())
    }

    /// The same for an event that no caller waits for: an outage of the log delays it.
    async fn record(&self, id: &str, event: Event) -> Result<(), StateError> {
        self.record_all(id, [event]).await
    }

    /// The same for several events, in order. It waits once until the task contains them.
    async fn record_all(
        &self,
        id: &str,
        events: impl IntoIterator<Item = Event>,
    ) -> Result<(), StateError> {
        let events: Vec<Event> = events.into_iter().collect();
        let until = Instant::now() + UNATTENDED;
        let stored = loop {
            let stored = self.append_all(id, &events, until).await?;
            let Some(last) = stored.last() else {
                return Ok(());
            };
            let began = Instant::now();
            let left = until.saturating_duration_since(began);
            match self.view.applied(*last, left).await {
                // The log was replaced, perhaps by a copy without these events. The fold takes each of them once.
                Err(StateError::Closed(_)) if !self.is_closed() => self.reread().await?,
                applied => {
                    applied?;
                    self.note_duration(began);
                    break stored;
                }
            }
        };
        for (position, event) in stored.into_iter().zip(&events) {
            self.count(id, event, position);
        }
        Ok(())
    }

    /// Appends events in order, and returns their positions.
    async fn append_all(
        &self,
        id: &str,
        events: &[Event],
        until: Instant,
    ) -> Result<Vec<Position>, StateError> {
        let mut stored = Vec::with_capacity(events.len());
        for event in events {
            let began = Instant::now();
            let body = Some(body::write(event));
            let left = until.saturating_duration_since(began);
            stored.push(self.view.append_again(id, body, left).await?);
            self.note_duration(began);
        }
        Ok(stored)
    }

    fn is_closed(&self) -> bool {
        self.view.progress().borrow().is_closed
    }

    /// Waits until this replica has read the log again, if it was replaced.
    async fn reread(&self) -> Result<(), StateError> {
        let behind = |_| StateError::Behind {
            name: TASKS.name,
            waited: UNATTENDED,
        };
        let read = timeout(UNATTENDED, self.view.caught_up()).await;
        read.map_err(behind)?
    }

    /// What `read` finds of a task, even if this replica has to read the log again first.
    async fn reread_if_none<T>(&self, read: impl Fn() -> Option<T>) -> Option<T> {
        if let Some(found) = read() {
            return Some(found);
        }
        self.reread().await.ok()?;
        read()
    }

    /// Records an outage if the log has taken long for something that began then.
    fn note_duration(&self, began: Instant) {
        if began.elapsed() > SLOW {
            *self.outage.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
    }

    /// Counts the beginning and the end of tasks.
    fn count(&self, id: &str, event: &Event, stored: Position) {
        let task_is_at = |position| {
            self.view
                .read(|tasks| tasks.get(id).is_some_and(|task| task.position == position))
        };
        match event.itself() {
            // If there are several `Created` records, or several final states, only the first counts.
            Event::Created(_) if task_is_at(stored) => self.metrics.task_started(),
            Event::Status(status) if status.state.is_terminal() && task_is_at(stored) => {
                self.metrics.task_ended(status.state.as_str());
            }
            _ => {}
        }
    }

    /// How many parts of the answer to a call a task has recorded; all of them once it has ended, or if that is no longer
    /// known. The call began at `began`, in milliseconds since 1970. `None` if there is no such task.
    pub(crate) fn parts_from(&self, id: &str, call: &str, began: u64) -> Option<usize> {
        self.view.read(|tasks| {
            let task = tasks.get(id)?;
            if task.status.state.is_terminal() || task.may_have_forgotten(call, began) {
                return Some(usize::MAX);
            }
            Some(task.parts_of(call))
        })
    }

    /// The current task, and its events from now on. With `after`, the stored events after that position come first.
    pub(crate) fn follow(&self, id: &str, after: Option<Position>) -> Option<(Task, Subscription)> {
        let (found, following) = self.view.follow(Some(id), BEHIND, |tasks| {
            let task = tasks.get(id)?;
            let missed = after.map(|after| task.steps(after).collect::<Vec<_>>());
            Some((task.clone(), missed.unwrap_or_default()))
        });
        let (task, missed) = found?;
        let missed = missed.into_iter();
        Some((task, Subscription { missed, following }))
    }

    /// Whether a task has events after a position that subscribers receive.
    pub(crate) fn has_news(&self, id: &str, after: Position) -> bool {
        self.view
            .read(|tasks| tasks.get(id).is_some_and(|task| task.has_news(after)))
    }

    /// Whether a task that had ended was removed for lack of room.
    pub(crate) fn is_forgotten(&self, id: &str) -> bool {
        self.view.read(|tasks| tasks.is_forgotten(id))
    }

    /// The first event after a position that subscribers receive, with the context of its task, and whether it is the
    /// last one. `None` if there is none, or if earlier ones are no longer stored.
    pub(crate) fn step_after(&self, id: &str, after: Position) -> Option<(Text, Update, bool)> {
        self.view.read(|tasks| {
            let task = tasks.get(id).filter(|task| task.remembers(after))?;
            let mut steps = task.steps(after);
            let step = steps.next()?;
            let is_last = task.status.state.is_terminal() && steps.next().is_none();
            Some((task.context.clone(), step, is_last))
        })
    }

    /// Whether the task has ended, and its events from now on.
    fn follow_state(&self, id: &str) -> Option<(bool, Subscription)> {
        let (is_ended, following) = self.view.follow(Some(id), BEHIND, |tasks| {
            Some(tasks.get(id)?.status.state.is_terminal())
        });
        Some((is_ended?, Subscription::of(following)))
    }

    /// The records of all tasks from now on.
    pub(crate) fn follow_all(&self) -> Following {
        self.view.follow(None, BEHIND, |_| ()).1
    }

    /// Waits until the task has ended or waits for its caller.
    pub(crate) async fn at_rest(&self, id: &str) -> Option<Task> {
        let is_at_rest = |task: &Task| task.status.state.is_at_rest();
        self.until(id, is_at_rest, State::is_at_rest).await
    }

    /// Waits the same way for the sender of a message: several messages may be in progress, and the answer to another one
    /// may come first. `over` ends when the answer to this message, with the id `call`, is over.
    pub(crate) async fn at_rest_for(
        &self,
        (id, call): (&str, &str),
        over: oneshot::Receiver<Infallible>,
    ) -> Option<Task> {
        let answered = self.until(id, |task| task.rests_for(call), State::is_at_rest);
        tokio::select! {
            biased;
            task = answered => task,
            _ = over => self.at_rest(id).await,
        }
    }

    /// Waits the same way when the bridge shuts down, at most until this time. A task that ends with the bridge ends
    /// very soon, or when the log has what this replica still records of its answer. `None` if that does not happen.
    pub(crate) async fn at_rest_soon(&self, id: &str, until: Instant) -> Option<Option<Task>> {
        let last = until.min(Instant::now() + LAST_RECORDS_TIMEOUT);
        loop {
            let soon = last.min(Instant::now() + LAST_EVENTS_TIMEOUT);
            if let Ok(task) = timeout_at(soon, self.at_rest(id)).await {
                return Some(task);
            }
            if soon == last || self.calls.held_by(&id.into()) == 0 {
                return None;
            }
        }
    }

    /// Waits until the task has ended.
    pub(crate) async fn at_end(&self, id: &str) -> Option<Task> {
        let is_ended = |task: &Task| task.status.state.is_terminal();
        self.until(id, is_ended, State::is_terminal).await
    }

    /// Waits until the task satisfies `is_it`, which it can only do in a state that satisfies `can_be`. `None` if the task
    /// is no longer stored.
    async fn until(
        &self,
        id: &str,
        is_it: impl Fn(&Task) -> bool,
        can_be: impl Fn(State) -> bool,
    ) -> Option<Task> {
        loop {
            let look = || {
                let (found, following) = self.view.follow(Some(id), BEHIND, |tasks| {
                    let task = tasks.get(id)?;
                    Some(is_it(task).then(|| task.clone()))
                });
                Some((found?, following))
            };
            let (found, following) = self.reread_if_none(look).await?;
            if let Some(task) = found {
                return Some(task);
            }
            let mut subscription = Subscription::of(following);
            loop {
                match subscription.next().await {
                    Ok(Some(step)) if !step.state().is_some_and(&can_be) => {}
                    Ok(Some(_)) | Err(Lagged) => break,
                    Ok(None) => return self.get(id),
                }
            }
        }
    }

    /// Records the agent's answer for an existing task until the answer ends.
    pub(crate) fn drive(self: &Arc<Self>, id: Text, mut answer: Box<Answer>) {
        let tasks = Arc::clone(self);
        let mut message = Driven {
            before: None,
            call: self.calls.take(&id),
            id,
        };
        self.drivers.spawn(async move {
            let driven = tasks.driven(&mut message, &mut answer, None).await;
            tasks.log_lost(&message.id, driven);
        });
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
            tasks.log_lost(&message.id, driven);
            drop(held);
        });
        (receiver, over)
    }

    /// Runs work for a task, which continues if the caller drops the handle.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.drivers.spawn(work)
    }

    /// Waits until the work for tasks has ended.
    pub(crate) async fn until_recorded(&self) {
        self.drivers.close();
        self.drivers.wait().await;
    }

    fn log_lost(&self, id: &Text, driven: Result<(), StateError>) {
        if let Err(error) = driven
            && let Some(suppressed) = self.lost.allow()
        {
            tracing::error!(task = %id, %error, suppressed, "an event of a task was not stored: the task is no longer updated");
        }
    }

    /// Fails tasks whose bridge has stopped, because the rest of their answer is unknown. `longest` is the longest time
    /// that a call may take, so a task that has been active for longer has no owner.
    pub(crate) async fn end_orphans(self: Arc<Self>, longest: Duration) {
        let longest = longest + ORPHAN_MARGIN;
        let mut searches = interval((longest / 4).min(MAX_ORPHAN_INTERVAL));
        searches.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            searches.tick().await;
            let oldest = clock::milliseconds(clock::now())
                .saturating_sub(clock::whole_milliseconds(longest));
            let is_orphan = |task: &Task| !task.status.state.is_at_rest() && task.changed < oldest;
            let orphans: Vec<Text> = self.view.read(|tasks| {
                let orphans = tasks.iter().filter(|(_, task)| is_orphan(task));
                orphans.map(|(id, _)| Text::from(id)).collect()
            });
            if !orphans.is_empty() && self.knows_owners().await {
                let is_still = |_: &Text, task: &Task| is_orphan(task);
                self.fail_all(orphans, ORPHANED, is_still).await;
            }
        }
    }

    /// Fails tasks whose deadline has passed and whose bridge has stopped. A bridge that runs ends its own tasks at
    /// their deadline. `deadlines` returns the known deadlines of tasks, in milliseconds since 1970.
    pub(crate) async fn end_overdue<D: Future<Output = HashMap<Text, u64>>>(
        self: Arc<Self>,
        deadlines: impl Fn(HashMap<Text, Unfinished>) -> D,
    ) {
        let mut searches = interval(OVERDUE_INTERVAL);
        searches.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            searches.tick().await;
            let is_active = |task: &Task| !task.status.state.is_at_rest();
            let has_active = self
                .view
                .read(|tasks| tasks.iter().any(|(_, task)| is_active(task)));
            if !has_active || !self.knows_owners().await {
                continue;
            }
            let latest = clock::milliseconds(clock::now())
                .saturating_sub(clock::whole_milliseconds(ORPHAN_MARGIN));
            // Read again: before, this replica may not have known the latest records.
            let before = self.unfinished();
            let deadlines = deadlines(before.clone()).await.into_iter();
            let overdue = deadlines.filter(|(_, deadline)| *deadline < latest);
            let overdue = overdue.map(|(id, _)| id).collect();
            // Its client may have sent another message meanwhile, or its agent a part.
            let is_still = |id: &Text, task: &Task| {
                let now = Unfinished::of(task);
                self.calls.held_by(id) == 0 && now.is_some_and(|now| before.get(id) == Some(&now))
            };
            self.fail_all(overdue, OVERDUE, is_still).await;
        }
    }

    /// The tasks that have not ended and do not wait for their caller, without those whose calls this replica makes.
    fn unfinished(&self) -> HashMap<Text, Unfinished> {
        self.view.read(|tasks| {
            let all = tasks.iter();
            let all = all.filter_map(|(id, task)| Some((Text::from(id), Unfinished::of(task)?)));
            all.filter(|(id, _)| self.calls.held_by(id) == 0).collect()
        })
    }

    /// Whether the log shows what the owners of tasks have done: during an outage of the log, and for some time after it,
    /// their records are still on the way.
    async fn knows_owners(&self) -> bool {
        let asked = Instant::now();
        let answered = self.latest().await;
        let mut outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        if answered.is_err() || asked.elapsed() > SLOW {
            *outage = Some(Instant::now());
        }
        outage.is_none_or(|seen| seen.elapsed() > RECOVERY)
    }

    /// Fails these tasks. The log may take long for each of them, so `is_still` checks each one again just before.
    async fn fail_all(&self, tasks: Vec<Text>, why: &str, is_still: impl Fn(&Text, &Task) -> bool) {
        for id in tasks {
            let is_it = |task: &Task| is_still(&id, task);
            if !self.view.read(|tasks| tasks.get(&id).is_some_and(is_it)) {
                continue;
            }
            let status = Status::now(State::Failed, Some(failure_message(why)));
            let failed = Event::Status(status);
            let began = Instant::now();
            let recorded = self.record_for_caller(&id, &failed).await;
            self.note_duration(began);
            if let Err(error) = recorded {
                tracing::warn!(task = %id, %error, "a task without an owner could not be ended: trying again");
                // The next search finds out whether the log answers, and what it has of the other tasks.
                return;
            }
            tracing::warn!(task = %id, "a task has failed: {why}");
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
                        if matches!(&part, Some(Err(error)) if !answer.is_undelivered(error)) {
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
                let mut why = failure_message(Failure::call(&error).message());
                // Another replica that has followed the call may record the same.
                why.id = from.call.clone();
                let from = from.ending();
                // The end of the task takes the place of the next part: if another replica has already recorded that
                // part, the task goes on there. As a message, the reason takes no place: the agent may still send the
                // next part, and another replica may record it.
                let origins = [from.after(), from.next()];
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

    /// Whether a task with another message of this many bytes takes so much of the memory that others, or its own end,
    /// would not fit.
    pub(crate) fn is_too_large(&self, id: &str, more: usize) -> bool {
        let most = self.view.memory_bytes() / LARGEST_TASK;
        // A record counts twice, see `TaskFold::apply`.
        let is_larger = |task: &Task| task.bytes() + 2 * more > most;
        self.view.read(|tasks| tasks.get(id).is_some_and(is_larger))
    }

    /// Checks that another message of this many bytes can be stored for an existing task. When the memory has no room
    /// for new tasks, it still has some for these messages, so that tasks that wait for their clients can end.
    ///
    /// # Errors
    /// [`StateError::Full`].
    pub(crate) fn check_message(&self, bytes: usize) -> Result<(), StateError> {
        let limit = self.view.memory_bytes();
        let used = self.view.read(Entries::bytes);
        if used + 2 * bytes <= limit.saturating_add(limit / LARGEST_TASK) {
            return Ok(());
        }
        let (name, bytes) = (TASKS.name, used);
        Err(StateError::Full { name, bytes, limit })
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
        self.is_shared && others.any(|other| replica_of(other) != replica_of(call))
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
        let is_end = self.is_shared && from.ends_answer;
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

/// The events in a part of an answer that is not A2A. Each part is added to one artifact. `is_new` tells whether the
/// agent has reported nothing yet, `append` whether the task has the artifact.
fn plain_events(json: model::Raw, last: bool, (is_new, append): (bool, bool)) -> Vec<(u32, Event)> {
    let begins = is_new && !last;
    let working = begins.then(|| (1, Event::Status(Status::now(State::Working, None))));
    let artifact = Artifact {
        id: RESULT,
        name: None,
        description: None,
        parts: vec![plain_part(json)],
        metadata: None,
        extensions: Vec::new(),
    };
    let event = Event::Artifact {
        artifact,
        append,
        last,
        metadata: None,
    };
    let end = last.then(|| (3, Event::Status(Status::now(State::Completed, None))));
    working.into_iter().chain([(2, event)]).chain(end).collect()
}

/// A result that is not A2A, as a data part.
pub(crate) fn plain_part(json: model::Raw) -> Part {
    match serde_json::from_str(json.get()) {
        Ok(text) => Part::of(Content::Text(text)),
        Err(_) => Part::of(Content::Data(json)),
    }
}

/// The differences between a task as its agent reports it and the stored task, each with its number in the report.
fn differences(reported: ReportedTask, task: &Task) -> Vec<(u32, Event)> {
    let named = reported.id.map(|task| Event::Named { task });
    // Earlier messages are no longer stored. They would come in again, after the later ones.
    let is_stored = |message: &Message| task.history.iter().any(|known| known.id == message.id);
    let first_stored = reported.history.iter().position(is_stored);
    let is_full = task.history.len() == MAX_MESSAGES;
    let forgotten = first_stored.filter(|_| is_full).unwrap_or(0);
    let left_out = reported.history.len().saturating_sub(MAX_MESSAGES);
    let left_out = left_out.max(forgotten);
    let messages = reported.history.into_iter().enumerate();
    let messages =
        messages.map(|(index, message)| (index >= left_out).then_some(Event::Said { message }));
    let artifacts = reported.artifacts.into_iter();
    // The agent may add to the artifacts of an unfinished task.
    let last = reported
        .status
        .as_ref()
        .is_none_or(|status| status.state.is_at_rest());
    let artifacts = artifacts.map(|artifact| Event::Artifact {
        artifact,
        append: false,
        last,
        metadata: None,
    });
    let status = reported.status.map(Event::Status);
    let events = named
        .into_iter()
        .map(Some)
        .chain(messages)
        .chain(artifacts.map(Some))
        .chain(status.map(Some));
    // JSON within an artifact can be compared only as text.
    let text = |artifact: &Artifact| serde_json::to_string(artifact).ok();
    let is_known = |event: &Event| match event {
        Event::Artifact { artifact, .. } => {
            let mut known = task.artifacts.iter();
            let known = known.find(|known| known.id == artifact.id);
            known.is_some_and(|known| text(known) == text(artifact))
        }
        Event::Status(status) => {
            let shown = task.status.message.as_ref().map(|message| &message.id);
            let is_shown = |message: &Message| shown == Some(&message.id);
            status.state == task.status.state
                && status.message.as_ref().is_none_or(is_shown)
                && task.has_metadata(status.metadata.as_deref())
        }
        Event::Named { task: named } => task.agents_id.as_ref() == Some(named),
        Event::Said { message } => is_stored(message),
        _ => false,
    };
    (1..)
        .zip(events)
        .filter_map(|(number, event)| Some((number, event.filter(|event| !is_known(event))?)))
        .collect()
}

/// The error for a task that is still driven, although it has been removed.
fn not_stored() -> StateError {
    StateError::Unread {
        name: TASKS.name,
        why: Arc::from("the task is no longer stored"),
    }
}

/// The replica that made a call.
fn replica_of(call: &Text) -> Option<Replica> {
    call.parse().ok().map(CallId::replica)
}

/// The message of a task that has failed, with the reason.
fn failure_message(why: &str) -> Message {
    Message::of_agent(vec![Part::of(Content::Text(why.to_owned()))])
}

/// An error of an agent.
struct AgentError {
    whole: Option<Raw>,
    text: Option<String>,
    code: Option<i64>,
}

// === impl AgentError ===

impl AgentError {
    fn of(part: &calls::Part) -> Self {
        #[derive(Deserialize)]
        struct Response {
            error: Raw,
        }
        #[derive(Deserialize)]
        struct Error {
            code: Option<i64>,
            message: Option<String>,
        }
        let whole = serde_json::from_slice::<Response>(&part.body);
        let whole = whole.ok().map(|response| response.error);
        let read = whole.as_ref();
        let read = read.and_then(|error| serde_json::from_str::<Error>(error.get()).ok());
        let (text, code) = read.map_or((None, None), |error| (error.message, error.code));
        Self { whole, text, code }
    }

    /// The message of its task. Its metadata contains the whole error, unless it is large.
    fn message(self) -> Message {
        let text = self.text.as_deref();
        let text = text.filter(|text| text.len() <= MAX_ERROR);
        let mut message = failure_message(text.unwrap_or("the agent answered with an error"));
        let kept = self.whole.filter(|error| error.get().len() <= MAX_ERROR);
        message.metadata = kept.and_then(|error| to_raw_value(&json!({ "error": error })).ok());
        message
    }
}

// === impl Taken ===

impl Taken {
    /// What a part means, depending on whether it is the last one.
    fn of(last: bool) -> Self {
        if last { Self::End } else { Self::More }
    }
}

// === impl AgentAnswer ===

impl AgentAnswer {
    /// Reads a part; `None` if it is not a response.
    pub(crate) fn of(part: calls::Part) -> Option<Self> {
        #[derive(Deserialize)]
        struct Response<'a> {
            // `null` is a result.
            #[serde(borrow, default, deserialize_with = "present")]
            result: Option<&'a RawValue>,
            #[serde(borrow, default)]
            error: Option<&'a RawValue>,
        }
        let response: Response<'_> = serde_json::from_slice(&part.body).ok()?;
        if response.error.is_some() {
            return Some(Self::Error(part));
        }
        Some(Self::Result(read::result(response.result?)))
    }
}

// === impl Unfinished ===

impl Unfinished {
    /// `None` if the task has ended or waits for its caller, or if its calls are unknown.
    fn of(task: &Task) -> Option<Self> {
        let is_active = !task.status.state.is_at_rest();
        let last_call = task.last_call().filter(|_| is_active)?;
        Some(Self {
            last_call: last_call.clone(),
            last_record: task.last_record,
        })
    }
}

// === impl Update, Subscription ===

impl Update {
    /// The state of the task after this event, if the event changes it.
    fn state(&self) -> Option<State> {
        match &*self.event {
            Event::Status(status) => Some(status.state),
            _ => None,
        }
    }

    /// Whether the task ends or pauses with it.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.state().is_some_and(State::is_at_rest)
    }
}

impl Subscription {
    /// The events from now on.
    fn of(following: Following) -> Self {
        let missed = Vec::new().into_iter();
        Self { missed, following }
    }

    /// Whether there are events that the subscriber has not received yet.
    pub(crate) fn has_missed(&self) -> bool {
        !self.missed.as_slice().is_empty()
    }

    /// The next event; `None` when the bridge shuts down. Cancel-safe.
    ///
    /// # Errors
    /// When the subscriber was too slow. It must subscribe again.
    pub(crate) async fn next(&mut self) -> Result<Option<Update>, Lagged> {
        if let Some(missed) = self.missed.next() {
            return Ok(Some(missed));
        }
        loop {
            let Some(record) = self.following.next().await? else {
                return Ok(None);
            };
            let event = body::read(&record).map(|event: Event| event.parted().0);
            if let Some(event) = event.filter(Event::is_shown) {
                return Ok(Some(Update {
                    position: record.position,
                    event: Arc::new(event),
                }));
            }
        }
    }
}

impl Task {
    /// The events after a position.
    fn steps(&self, after: Position) -> impl Iterator<Item = Update> {
        let events = self.events.iter();
        let steps = events.filter(move |(position, _)| *position > after);
        steps.map(|(position, event)| Update {
            position: *position,
            event: Arc::clone(event),
        })
    }

    /// Whether there are events after a position that subscribers receive.
    pub(crate) fn has_news(&self, after: Position) -> bool {
        let last = self.events.back();
        last.is_some_and(|(position, _)| *position > after)
    }

    /// Whether all events after a position are stored.
    pub(crate) fn remembers(&self, after: Position) -> bool {
        !self.has_forgotten
            || self
                .events
                .front()
                .is_some_and(|(position, _)| *position <= after)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::FutureExt as _;
    use tokio::time::sleep_until;

    use super::*;
    use crate::state::{MemoryLog, ViewOptions, ViewTask};

    fn tasks() -> (Arc<Tasks>, ViewTask) {
        replica(&MemoryLog::new(TASKS, 1 << 20))
    }

    /// One of several replicas that share this log.
    fn replica(log: &MemoryLog) -> (Arc<Tasks>, ViewTask) {
        let options = ViewOptions {
            memory_bytes: 1 << 20,
        };
        let (view, task) = View::start(log.clone(), TaskFold, options);
        let metrics = Arc::new(Metrics::new().unwrap());
        let tasks = Tasks::new(view, true, &LogLimits::default(), &metrics);
        (Arc::new(tasks), task)
    }

    fn state(tasks: &Tasks) -> State {
        tasks.get("t").unwrap().status.state
    }

    /// Sends another message of the task `t`, and returns the origin of the last part of its answer.
    async fn send(tasks: &Tasks, replica: u16) -> Origin {
        let call = CallId::new(Replica(replica)).unwrap();
        let message = failure_message("more");
        let continued = Event::Continued { message }.from(Origin::beginning(call));
        tasks.record_for_caller("t", &continued).await.unwrap();
        last_part(call)
    }

    fn last_part(call: CallId) -> Origin {
        Origin {
            part: 1,
            ends: true,
            ends_answer: true,
            ..Origin::beginning(call)
        }
    }

    /// The last part of the answer to the first message of the task `t`.
    fn last_of_first(tasks: &Tasks) -> Origin {
        let call = tasks.get("t").unwrap().last_call().cloned();
        last_part(call.unwrap().parse().unwrap())
    }

    fn without_call(before: Option<State>) -> Driven {
        Driven {
            id: "t".into(),
            before,
            call: None,
        }
    }

    fn part(body: &str) -> Option<Result<calls::Part, CallError>> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        Some(Ok(calls::Part::new(body, true)))
    }

    const REFUSAL: &str = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"busy"}}"#;

    #[tokio::test(start_paused = true)]
    async fn a_message_that_fails_at_one_replica_does_not_end_the_work_for_another() {
        for is_refused in [true, false] {
            let log = MemoryLog::new(TASKS, 1 << 20);
            let ((first, _first), (second, _second)) = (replica(&log), replica(&log));
            begin(&first, "t").await;
            let last = last_of_first(&first);
            let working = Event::Status(Status::now(State::Working, None));
            let working = working.from(Origin::beginning(last.call.parse().unwrap()).at(1, true));
            first.record_for_caller("t", &working).await.unwrap();
            second.latest().await.unwrap();
            let from = send(&second, 2).await;
            let failed = match is_refused {
                true => part(REFUSAL),
                false => Some(Err(CallError::Drained)),
            };
            let mut message = without_call(Some(State::Working));
            let taken = second.take(&mut message, failed, from).await;
            assert!(matches!(taken.unwrap(), Taken::Beside));
            assert_eq!(state(&second), State::Working);
            // The answer for the other replica ends without a state.
            first.latest().await.unwrap();
            let call = last.call.clone();
            let plain = part(r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#);
            let taken = first.take(&mut without_call(None), plain, last).await;
            assert!(matches!(taken.unwrap(), Taken::End));
            first.finish(&mut without_call(None), &call).await.unwrap();
            assert_eq!(state(&first), State::Completed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_ends_at_one_replica_does_not_end_the_work_for_another() {
        let log = MemoryLog::new(TASKS, 1 << 20);
        let ((first, _first), (second, _second)) = (replica(&log), replica(&log));
        begin(&first, "t").await;
        let last = last_of_first(&first);
        second.latest().await.unwrap();
        let other = send(&second, 2).await;
        first.latest().await.unwrap();
        for (tasks, from, expected) in [
            (&first, last, State::Working),
            (&second, other, State::Completed),
        ] {
            let call = from.call.clone();
            tasks.latest().await.unwrap();
            let plain = part(r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#);
            let taken = tasks.take(&mut without_call(None), plain, from).await;
            assert!(matches!(taken.unwrap(), Taken::End));
            tasks.finish(&mut without_call(None), &call).await.unwrap();
            assert_eq!(state(tasks), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_waits_for_input_after_refusals_at_two_replicas_at_once() {
        let log = MemoryLog::new(TASKS, 1 << 20);
        let ((first, _first), (second, _second)) = (replica(&log), replica(&log));
        begin(&first, "t").await;
        let asks = Event::Status(Status::now(State::InputRequired, None));
        let asks = asks.from(last_of_first(&first));
        first.record_for_caller("t", &asks).await.unwrap();
        let (one, other) = (send(&first, 1).await, send(&second, 2).await);
        first.latest().await.unwrap();
        let before = Some(State::InputRequired);
        let (mut a, mut b) = (without_call(before), without_call(before));
        let (a, b) = tokio::join!(
            first.take(&mut a, part(REFUSAL), one),
            second.take(&mut b, part(REFUSAL), other)
        );
        let ends = (a.unwrap(), b.unwrap());
        assert!(matches!(ends, (Taken::End, _) | (_, Taken::End)));
        first.latest().await.unwrap();
        assert_eq!(state(&first), State::InputRequired);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_fails_with_the_reason_if_its_log_refuses_a_part() {
        let (tasks, _view) = tasks();
        begin(&tasks, "t").await;
        let last = last_of_first(&tasks);
        let large = json!({ "jsonrpc": "2.0", "id": 1, "result": "x".repeat(2 << 20) });
        let large = part(&large.to_string());
        let taken = tasks.take(&mut without_call(None), large, last).await;
        assert!(matches!(taken.unwrap(), Taken::End));
        let status = tasks.get("t").unwrap().status;
        assert_eq!(status.state, State::Failed);
        let why = serde_json::to_string(&status.message).unwrap();
        assert!(why.contains("the log of tasks refuses"), "{why}");
    }

    /// A server may lose its last records, and be restored from a backup.
    #[tokio::test(start_paused = true)]
    async fn a_task_is_not_given_up_while_the_log_is_read_again() {
        let log = MemoryLog::new(TASKS, 1 << 20);
        let (tasks, _view) = replica(&log);
        begin(&tasks, "t").await;
        let working = Event::Status(Status::now(State::Working, None));
        tasks.record_for_caller("t", &working).await.unwrap();
        let waiting = Arc::clone(&tasks);
        let ended = tokio::spawn(async move { waiting.at_end("t").await });
        let message = Message {
            id: "said".into(),
            ..failure_message("said")
        };
        let mut recording = std::pin::pin!(tasks.record("t", Event::Said { message }));
        assert!(recording.as_mut().now_or_never().is_none());
        log.lose(2);
        recording.await.unwrap();
        let is_said = |message: &Message| message.id == "said";
        let task = tasks.get("t").unwrap();
        assert!(task.history.iter().any(is_said), "it was recorded again");
        let completed = Event::Status(Status::now(State::Completed, None));
        tasks.record("t", completed).await.unwrap();
        let task = ended.await.unwrap().unwrap();
        assert_eq!(task.status.state, State::Completed);
    }

    async fn begin(tasks: &Tasks, id: &str) {
        let created = Event::Created(Created {
            agent: "weather".into(),
            context: "c".into(),
            is_1_0: false,
            message: failure_message("hello"),
            timestamp: "2026-02-02T02:40:00.000Z".into(),
        });
        let call = CallId::new(Replica(1)).unwrap();
        let created = created.from(Origin::beginning(call));
        tasks.record_for_caller(id, &created).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_whose_call_this_replica_makes_is_not_overdue() {
        let (tasks, _view) = tasks();
        for id in ["ours", "theirs"] {
            begin(&tasks, id).await;
        }
        let _call = tasks.calls.take(&"ours".into());
        let all_have_passed = |tasks: HashMap<Text, Unfinished>| {
            let deadlines: HashMap<Text, u64> = tasks.into_keys().map(|id| (id, 0)).collect();
            std::future::ready(deadlines)
        };
        let ends = Arc::clone(&tasks).end_overdue(all_have_passed);
        assert!(timeout(3 * OVERDUE_INTERVAL, ends).await.is_err());
        for (id, expected) in [("theirs", State::Failed), ("ours", State::Submitted)] {
            assert_eq!(tasks.get(id).unwrap().status.state, expected, "{id}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_whose_answer_is_still_being_recorded_ends_at_the_end_of_the_bridge() {
        let (tasks, _view) = tasks();
        for (id, expected) in [("theirs", None), ("ours", Some(State::Completed))] {
            begin(&tasks, id).await;
            let _call = expected.map(|_| tasks.calls.take(&id.into()));
            let until = Instant::now() + Duration::from_secs(60);
            let recording = async {
                // The log is slow.
                sleep_until(Instant::now() + 3 * LAST_EVENTS_TIMEOUT).await;
                let completed = Event::Status(Status::now(State::Completed, None));
                tasks.record_for_caller(id, &completed).await.unwrap();
            };
            let (found, ()) = tokio::join!(tasks.at_rest_soon(id, until), recording);
            let state = found.map(|task| task.unwrap().status.state);
            assert_eq!(state, expected, "{id}");
        }
        let _call = tasks.calls.take(&"silent".into());
        begin(&tasks, "silent").await;
        let until = Instant::now() + Duration::from_secs(60);
        assert!(tasks.at_rest_soon("silent", until).await.is_none());
        assert!(Instant::now() < until, "it does not wait for ever");
    }

    #[tokio::test]
    async fn a_report_does_not_bring_back_messages_that_are_no_longer_stored() {
        let (tasks, _view) = tasks();
        begin(&tasks, "t").await;
        let numbered = |number: usize| Message {
            id: number.to_string().into(),
            ..failure_message("said")
        };
        let mut task = tasks.get("t").unwrap();
        task.history = (2..=MAX_MESSAGES + 1).map(numbered).collect();
        let report = |last: usize| ReportedTask {
            id: None,
            status: None,
            artifacts: Vec::new(),
            history: (last + 1 - MAX_MESSAGES..=last).map(numbered).collect(),
        };
        assert!(differences(report(MAX_MESSAGES), &task).is_empty());
        let new = differences(report(MAX_MESSAGES + 2), &task);
        assert_eq!(new.len(), 1, "one message is new");
    }

    /// A part of the answer moves the deadline.
    #[tokio::test(start_paused = true)]
    async fn a_task_with_a_record_since_the_search_is_not_overdue() {
        let (tasks, _view) = tasks();
        begin(&tasks, "t").await;
        let shared = Arc::clone(&tasks);
        let all_have_passed = move |found: HashMap<Text, Unfinished>| {
            let tasks = Arc::clone(&shared);
            async move {
                for (id, before) in &found {
                    // The records of one millisecond have the same time.
                    while tasks.get(id).unwrap().last_record == before.last_record {
                        let recorded = tasks.record_for_caller(id, &Event::Taken);
                        recorded.await.unwrap();
                    }
                }
                let deadlines = found.into_keys().map(|id| (id, 0));
                deadlines.collect::<HashMap<Text, u64>>()
            }
        };
        let ends = Arc::clone(&tasks).end_overdue(all_have_passed);
        assert!(timeout(3 * OVERDUE_INTERVAL, ends).await.is_err());
        assert_eq!(tasks.get("t").unwrap().status.state, State::Submitted);
    }

    #[tokio::test(start_paused = true)]
    async fn each_task_is_checked_just_before_it_is_failed() {
        let (tasks, _view) = tasks();
        for id in ["first", "second"] {
            begin(&tasks, id).await;
        }
        let is_submitted = |_: &Text, task: &Task| task.status.state == State::Submitted;
        let ids = vec!["first".into(), "second".into()];
        let mut failing = Box::pin(tasks.fail_all(ids, OVERDUE, is_submitted));
        let at_once = failing.as_mut().now_or_never();
        assert!(at_once.is_none(), "it waits for its first record");
        let continued = Event::Continued {
            message: failure_message("more"),
        };
        let continued = tasks.record_for_caller("second", &continued);
        continued.await.unwrap();
        failing.await;
        for (id, expected) in [("first", State::Failed), ("second", State::Working)] {
            assert_eq!(tasks.get(id).unwrap().status.state, expected, "{id}");
        }
    }

    /// The agent may send that part later, and another replica record it.
    #[tokio::test(start_paused = true)]
    async fn a_message_without_an_answer_takes_the_place_of_no_part() {
        let (tasks, _view) = tasks();
        begin(&tasks, "t").await;
        let call = tasks.get("t").unwrap().last_call().cloned().unwrap();
        let from = Origin::beginning(call.parse().unwrap()).at(0, true);
        // The agent works on a message that another replica has sent.
        let continued = Event::Continued {
            message: failure_message("more"),
        };
        let other = CallId::new(Replica(2)).unwrap();
        let continued = continued.from(Origin::beginning(other));
        tasks.record_for_caller("t", &continued).await.unwrap();
        for _replica in 0..2 {
            let mut message = without_call(None);
            let silent = Some(Err(CallError::Drained));
            let taken = tasks.take(&mut message, silent, from.clone()).await;
            assert!(matches!(taken.unwrap(), Taken::Beside));
        }
        let answered = Event::Status(Status::now(State::Completed, None));
        let answered = answered.from(from.next());
        tasks.record_for_caller("t", &answered).await.unwrap();
        let task = tasks.get("t").unwrap();
        assert_eq!(task.status.state, State::Completed);
        assert_eq!(task.history.len(), 3, "it has the reason once");
    }

    /// Otherwise tasks that wait for their clients could not end, and nothing would make room.
    #[tokio::test]
    async fn a_full_memory_has_room_for_some_messages_of_existing_tasks() {
        let (tasks, _view) = tasks();
        let large = || failure_message(&"x".repeat(96 << 10));
        let continued = || Event::Continued { message: large() };
        let mut last = 0;
        while tasks.check_new("new").is_ok() {
            last += 1;
            begin(&tasks, &last.to_string()).await;
            let (id, message) = (last.to_string(), continued());
            tasks.record_for_caller(&id, &message).await.unwrap();
        }
        assert_eq!(last, 6, "each one takes a fifth of the memory");
        tasks.check_message(1_000).unwrap();
        let message = continued();
        tasks.record_for_caller("1", &message).await.unwrap();
        let full = tasks.check_message(1_000);
        assert!(matches!(full, Err(StateError::Full { .. })), "{full:?}");
        assert!(tasks.is_too_large("1", 0));
        assert!(!tasks.is_too_large("2", 1_000));
        assert!(tasks.is_too_large("2", 50_000));
    }

    /// An agent may change an artifact that it has reported before.
    #[tokio::test(start_paused = true)]
    async fn an_artifact_is_known_only_with_the_same_content() {
        let (tasks, _view) = tasks();
        begin(&tasks, "t").await;
        let id = Text::from("t");
        for (text, expected) in [("one", 1), ("one", 0), ("two", 1), ("two", 0)] {
            let task = json!({
                "kind": "task", "id": "own", "status": { "state": "working" },
                "artifacts": [{ "artifactId": "a", "parts": [{ "kind": "text", "text": text }] }],
            });
            let reported = read::result(&to_raw_value(&task).unwrap());
            let events = tasks.events_of(&id, (reported, false), false);
            let is_artifact = |event: &Event| matches!(event, Event::Artifact { .. });
            let artifacts = events.iter().filter(|(_, event)| is_artifact(event));
            assert_eq!(artifacts.count(), expected, "{text}");
            for (_, event) in events {
                tasks.record_for_caller("t", &event).await.unwrap();
            }
        }
    }
}
