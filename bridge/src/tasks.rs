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

mod answer;
mod drive;
pub(crate) mod fold;
pub(crate) mod model;
pub(crate) mod push;
pub(crate) mod read;
mod room;
mod subscription;
pub(crate) mod write;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use a2abus_plugin::Text;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout, timeout_at};
use tokio_util::task::TaskTracker;
use tracing::Level;

pub(crate) use self::answer::{AgentAnswer, plain_part};
pub(crate) use self::fold::{Created, Event, Origin, Task};
pub(crate) use self::subscription::{Subscription, Update};

use self::answer::failure_message;
use self::fold::TaskFold;
use self::model::{Message, State, Status};
use self::room::Rooms;
use crate::clock;
use crate::lock::lock;
use crate::log_limit::{LogLimit, LogLimits};
use crate::metrics::Metrics;
use crate::shares::{Share, Shares};
use crate::state::body;
use crate::state::{
    ATTENDED, Cursor, Entries, Fold as _, Following, LATEST, Lagged, Logs, Position, StateError,
    TASKS, UNATTENDED, View,
};

/// The tasks of all agents.
#[derive(Debug)]
pub(crate) struct Tasks {
    view: View<TaskFold>,
    drivers: TaskTracker,
    /// The tasks whose calls this replica makes.
    calls: Arc<Shares<Text>>,
    /// The memory that the unfinished tasks of each client take.
    rooms: Rooms,
    /// The end of the log when this process opened it, if only this process uses it: nobody follows the tasks that were
    /// recorded before.
    opened_at: Option<Cursor>,
    /// When the last outage of the log was seen.
    outage: Mutex<Option<Instant>>,
    lost: LogLimit,
    large: LogLimit,
    failed: LogLimit,
    metrics: Arc<Metrics>,
}

/// A task on which its agent may be working for another replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unfinished {
    /// The call that began last.
    pub(crate) last_call: Text,
    /// When its last record was written, in milliseconds since 1970.
    pub(crate) last_record: u64,
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
/// How many records a subscriber may lag behind before it must read the task again.
const BEHIND: usize = 256;

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
        let opened_at = match logs.is_shared() {
            true => None,
            false => Some(view.end().await?),
        };
        Ok(Arc::new(Self::new(view, opened_at, log, metrics)))
    }

    fn new(
        view: View<TaskFold>,
        opened_at: Option<Cursor>,
        log: &LogLimits,
        metrics: &Arc<Metrics>,
    ) -> Self {
        Self {
            rooms: Rooms::new(view.memory_bytes()),
            view,
            drivers: TaskTracker::new(),
            calls: Shares::new(usize::MAX),
            opened_at,
            outage: Mutex::default(),
            lost: log.limit(Level::ERROR, "more events of tasks were not stored"),
            failed: log.limit(Level::WARN, "more tasks without an owner have failed"),
            large: log.limit(
                Level::WARN,
                "more tasks have failed because they were too large",
            ),
            metrics: Arc::clone(metrics),
        }
    }

    /// Whether other replicas share the log.
    fn is_shared(&self) -> bool {
        self.opened_at.is_none()
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

    /// The same for an event whose caller must not send its request again: it is repeated while the log is unavailable.
    pub(crate) async fn record_again(&self, id: &str, event: &Event) -> Result<(), StateError> {
        let body = Some(body::write(event));
        let stored = self.view.commit_again(id, body, ATTENDED).await?;
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
            *lock(&self.outage) = Some(Instant::now());
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

    /// The current task, and its events from now on. With `after`, the stored events after that position come first; if
    /// the task does not rest, it goes on after all of them.
    pub(crate) fn follow(&self, id: &str, after: Option<Position>) -> Option<(Task, Subscription)> {
        let (found, following) = self.view.follow(Some(id), BEHIND, |tasks| {
            let task = tasks.get(id)?;
            let goes_on = !task.status.state.is_at_rest();
            let missed = after.into_iter().flat_map(|after| task.steps(after));
            let missed = missed.map(|step| Update { goes_on, ..step });
            Some((task.clone(), missed.collect::<Vec<_>>()))
        });
        let (task, missed) = found?;
        Some((task, Subscription::new(missed, following)))
    }

    /// Whether a task has events after a position that subscribers receive.
    pub(crate) fn has_news(&self, id: &str, after: Position) -> bool {
        self.view
            .read(|tasks| tasks.get(id).is_some_and(|task| task.has_news(after)))
    }

    /// The status of a task, and whether it has events after a position that subscribers receive.
    pub(crate) fn status_since(&self, id: &str, after: Position) -> Option<(Status, bool)> {
        self.view.read(|tasks| {
            let task = tasks.get(id)?;
            Some((task.status.clone(), task.has_news(after)))
        })
    }

    /// The position of the last record of a task, and its approximate size in memory.
    pub(crate) fn extent(&self, id: &str) -> Option<(Position, usize)> {
        self.view.read(|tasks| {
            let task = tasks.get(id)?;
            Some((task.position, task.bytes()))
        })
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
        Some((is_ended?, Subscription::new(Vec::new(), following)))
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
    /// may come first. `over` ends when the answer to this message, with the id `call`, is over. A sender whose message
    /// was refused, or not answered, gets the current task with the reason, and does not wait for the others.
    pub(crate) async fn at_rest_for(
        &self,
        (id, call): (&str, &str),
        over: oneshot::Receiver<Message>,
    ) -> Option<Task> {
        let answered = self.until(id, |task| task.rests_for(call), State::is_at_rest);
        tokio::select! {
            biased;
            task = answered => task,
            refused = over => match refused {
                Ok(why) => self.get(id).map(|task| match task.status.state.is_terminal() {
                    true => task,
                    false => task.refused(why),
                }),
                Err(_) => self.at_rest(id).await,
            },
        }
    }

    /// Waits on while the bridge shuts down, at most until this time, for the task that `resting` waits for. A task that
    /// ends with the bridge ends very soon, or when the log has what this replica still records of its answer. `None` if
    /// that does not happen.
    pub(crate) async fn soon(
        &self,
        (id, until): (&str, Instant),
        mut resting: Pin<&mut impl Future<Output = Option<Task>>>,
    ) -> Option<Option<Task>> {
        let last = until.min(Instant::now() + LAST_RECORDS_TIMEOUT);
        loop {
            let soon = last.min(Instant::now() + LAST_EVENTS_TIMEOUT);
            if let Ok(task) = timeout_at(soon, resting.as_mut()).await {
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
            let mut subscription = Subscription::new(Vec::new(), following);
            loop {
                match subscription.next().await {
                    Ok(Some(step)) if !step.state().is_some_and(&can_be) => {}
                    Ok(Some(_)) | Err(Lagged) => break,
                    Ok(None) => return self.get(id),
                }
            }
        }
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

    /// Fails tasks whose bridge has stopped, because the rest of their answer is unknown. `longest` is the longest time
    /// that a call may take, so a task that has been active for longer has no owner. Nor has one of an earlier process, if
    /// only this process uses the log.
    pub(crate) async fn end_orphans(self: Arc<Self>, longest: Duration) {
        self.warn_of_left().await;
        let longest = longest + ORPHAN_MARGIN;
        let mut searches = interval((longest / 4).min(MAX_ORPHAN_INTERVAL));
        searches.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            searches.tick().await;
            self.rooms.count_all(self.sizes());
            let oldest = clock::milliseconds(clock::now())
                .saturating_sub(clock::whole_milliseconds(longest));
            let is_orphan = |task: &Task| {
                self.is_left(task) || !task.status.state.is_at_rest() && task.changed < oldest
            };
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

    /// Whether an earlier process has left this task unfinished.
    fn is_left(&self, task: &Task) -> bool {
        let opened_at = self.opened_at.as_ref();
        !task.status.state.is_at_rest()
            && opened_at.is_some_and(|opened_at| opened_at.has_passed(task.position))
    }

    /// Waits until this process knows all tasks, and logs how many of them an earlier process has left unfinished.
    async fn warn_of_left(&self) {
        if self.view.caught_up().await.is_err() {
            return;
        }
        let left = |(_, task): &(&str, &Task)| self.is_left(task);
        let tasks = self.view.read(|tasks| tasks.iter().filter(left).count());
        if tasks > 0 {
            tracing::warn!(
                tasks,
                "an earlier process of this bridge has stopped without ending its tasks: they fail now"
            );
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
        let mut outage = lock(&self.outage);
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
            if let Some(suppressed) = self.failed.allow() {
                tracing::warn!(task = %id, suppressed, "a task has failed: {why}");
            }
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

    /// Room for a message of this many bytes that a client sends; `None` if the unfinished tasks of this client take its
    /// whole share of the memory, which is larger for a message to an existing task. It is released if it is not kept.
    pub(crate) fn room_for(
        &self,
        client: &Text,
        bytes: usize,
        is_continuation: bool,
    ) -> Option<Share<Text>> {
        // A record counts twice, see `TaskFold::apply`.
        let wanted = (2 * bytes, is_continuation);
        self.rooms.take(client, wanted, self.sizes())
    }

    /// Keeps the room of a message, which is now in its task, until the task ends.
    pub(crate) fn keep_room(&self, id: &Text, room: Option<Share<Text>>) {
        if let Some(room) = room {
            self.rooms.keep(id, room, self.sizes());
        }
    }

    /// What a task takes in the memory; `None` if it has ended or is not stored.
    fn sizes(&self) -> impl Fn(&str) -> Option<usize> {
        move |id| {
            self.view.read(|tasks| {
                let task = tasks.get(id);
                let task = task.filter(|task| !task.status.state.is_terminal());
                task.map(|task| TaskFold.size_bytes(task))
            })
        }
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

#[cfg(test)]
mod tests;
