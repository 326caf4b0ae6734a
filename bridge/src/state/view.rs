//! A view: the state computed from the records of a log.

mod removals;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Mutex, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use self::removals::{KEPT, Removals};
use super::any::AnyLog;
use super::entries::Entries;
use super::fold::{Applied, Fold};
use super::follow::{Followers, Following};
use super::log::{Batch, Bounds, Cursor, Kind, Position, STORED, StateError};
use crate::clock;

/// The progress of a view.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// The position after the last applied record.
    pub applied: Cursor,
    /// The end of the log at the last query: at the start, and every few seconds once the view has caught up.
    pub end: Cursor,
    /// Whether the view has reached that end. From then on it is current, except for very recent records.
    pub is_caught_up: bool,
    /// The number of applied records.
    pub records: u64,
    /// The number of records that were not understood and skipped.
    pub unknown: u64,
    /// The number of entries removed for lack of room.
    pub forgotten: u64,
    /// The number of entries.
    pub entries: usize,
    /// What they take in memory, about.
    pub bytes: usize,
    /// Whether the view has ended.
    pub is_closed: bool,
    /// Why records of other replicas are not seen, if so: the log does not answer queries for its end, or its records are
    /// not read.
    pub silent: Option<Arc<str>>,
    /// Why the last record was not stored, if so. It is no longer reported once a record is stored, or after a minute
    /// without another failure.
    pub unwritten: Option<Arc<str>>,
}

/// The state computed from a log. Cheap to clone; all clones share it. It reflects the applied records only: to see the
/// effect of an append, wait for its position.
pub struct View<F: Fold> {
    shared: Arc<Shared<F>>,
}

/// The task that applies records. Dropping it ends the view.
#[derive(Debug)]
pub struct ViewTask {
    task: AbortOnDropHandle<()>,
}

struct Shared<F: Fold> {
    fold: F,
    log: AnyLog,
    /// The memory limit of all entries.
    memory_bytes: usize,
    state: RwLock<State<F::Entry>>,
    progress: watch::Sender<Progress>,
    last_end: LastEnd,
    /// Whether a log line has said that records are delayed.
    is_delayed: AtomicBool,
}

/// The end of a log at the last query by [`View::latest`], and the time of that query.
#[derive(Debug, Default)]
struct LastEnd(Arc<Mutex<Option<(Instant, Cursor)>>>);

struct State<E> {
    entries: Entries<E>,
    followers: Followers,
    /// The tasks that wait for a position, sorted by position. `None` once the view is closed.
    waiting: Option<BTreeMap<Position, Vec<oneshot::Sender<()>>>>,
    progress: Progress,
    /// How many of the unknown records have been logged.
    reported: u64,
    /// How many keys of removed entries were removed, too, since the last report.
    released: u64,
    /// Whether the log answers queries for its end.
    answers: Check,
    /// Whether its new records are read.
    reads: Check,
    /// Records that removed a key, to be deleted.
    removals: Removals,
    /// When a record was last not stored.
    unwritten_at: Option<Instant>,
    /// When it was last known that the log answers and is read.
    read_at: BothClocks,
    /// Whether to rebuild the state when the log is opened again.
    must_rebuild: bool,
    /// The last applied record at the last query.
    last_applied: Cursor,
    /// The last applied record at the last look at the waiting tasks, and the number of looks in a row that found waiting
    /// tasks and no new record.
    last_look: (Cursor, u32),
}

/// A moment by the monotonic clock, which may stand still while the host is suspended, and by the wall clock, in
/// milliseconds since 1970.
#[derive(Debug, Clone, Copy)]
struct BothClocks {
    monotonic: Instant,
    wall: u64,
}

/// A check of a log that may fail once.
#[derive(Debug, Default)]
struct Check {
    /// How often it failed in a row.
    failures: u32,
    /// Why, the last time.
    problem: Option<Arc<str>>,
}

/// How often old entries are removed and the end of the log is queried.
const SWEEP: Duration = Duration::from_secs(5);
/// How often waiting tasks are looked at. If no record has been read this often in a row, although a task waits for one
/// that the log has stored, the log is opened again: a reader on JetStream notices only after 10 s that it is lost.
const LOOK: Duration = Duration::from_secs(1);
const LOOKS: u32 = 3;
/// How long an entry stays after the end of its life. A record that extends the life may still be on its way, and the
/// clocks of replicas differ.
const GRACE: Duration = Duration::from_secs(300);
/// The time limit of a query for the end of the log, and how often a check may fail in a row.
const ANSWER: Duration = Duration::from_secs(5);
const FAILURES: u32 = 2;
/// After this many further checks a log that is still not read is opened again.
const REOPENED: u32 = 12;
/// After this time without another failure, a record that was not stored is no longer reported.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// If a log has not been read for this long, deletions in it may be gone: Kafka keeps them for a day, and on JetStream
/// replicas delete them then.
const DELETIONS: Duration = Duration::from_secs(12 * 60 * 60);
/// The first and the longest pause between attempts to read the log.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

// === impl View ===

impl<F: Fold> View<F> {
    /// Starts a task that applies a log from its beginning. All entries together take at most `memory_bytes`.
    #[must_use]
    pub fn start(log: impl Into<AnyLog>, fold: F, memory_bytes: usize) -> (Self, ViewTask) {
        let log: AnyLog = log.into();
        let mut state = State::new();
        if !log.keeps_removals() {
            state.removals.turn_off();
        }
        let shared = Arc::new(Shared {
            fold,
            log,
            memory_bytes,
            state: RwLock::new(state),
            progress: watch::Sender::new(Progress::default()),
            last_end: LastEnd::default(),
            is_delayed: AtomicBool::new(false),
        });
        let task = tokio::spawn(run(CloseOnDrop(Arc::clone(&shared))));
        let task = ViewTask {
            task: AbortOnDropHandle::new(task),
        };
        (Self { shared }, task)
    }

    /// Appends a record to the log, and returns its position once it is stored. The view applies it soon.
    ///
    /// # Errors
    /// [`StateError::Full`] for a new key if there is no room; otherwise the errors of the log.
    pub async fn append(&self, key: &str, body: Option<Bytes>) -> Result<Position, StateError> {
        if body.is_some() {
            self.shared.check_room(key)?;
        }
        self.shared.log.append(key, body).await
    }

    /// Like [`View::append`], with a time limit.
    ///
    /// # Errors
    /// [`StateError::NotStored`] when it takes longer than `deadline`; the record may be stored later. Otherwise like
    /// [`View::append`].
    pub async fn append_within(
        &self,
        key: &str,
        body: Option<Bytes>,
        deadline: Duration,
    ) -> Result<Position, StateError> {
        self.stored(Box::pin(self.append(key, body)), deadline)
            .await
    }

    /// Like [`View::append_within`], but while the log fails temporarily, for example because it elects a leader, the record
    /// is appended again. It may then be stored twice, which must not change what the fold makes of it.
    ///
    /// # Errors
    /// Like [`View::append_within`].
    pub async fn append_again(
        &self,
        key: &str,
        body: Option<Bytes>,
        deadline: Duration,
    ) -> Result<Position, StateError> {
        let until = Instant::now() + deadline;
        let [mut pause, longest] = PAUSES;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.append_within(key, body.clone(), left).await {
                Err(error) if error.is_outage() && pause < left => {
                    tokio::time::sleep(pause).await;
                    // After some seconds, and once until records are stored again.
                    let is_long = pause < longest && pause * 2 >= longest;
                    if is_long && !self.shared.is_delayed.swap(true, Ordering::Relaxed) {
                        tracing::warn!(%error, "the log of the state did not confirm a record: this one and all later ones are retried");
                    }
                    pause = (pause * 2).min(longest);
                }
                appended => {
                    if appended.is_ok() {
                        self.shared.is_delayed.store(false, Ordering::Relaxed);
                    }
                    return appended;
                }
            }
        }
    }

    /// Appends a record and waits until the view has applied it, for `deadline` in all. Then [`View::read`] shows whether
    /// it won.
    ///
    /// # Errors
    /// Like [`View::append_within`] and [`View::applied`].
    pub async fn commit(
        &self,
        key: &str,
        body: Option<Bytes>,
        deadline: Duration,
    ) -> Result<Position, StateError> {
        let until = Instant::now() + deadline;
        let position = self.append_within(key, body, deadline).await?;
        self.applied_by(position, until, deadline).await?;
        Ok(position)
    }

    /// Like [`View::commit`], with [`View::append_again`].
    ///
    /// # Errors
    /// Like [`View::commit`].
    pub async fn commit_again(
        &self,
        key: &str,
        body: Option<Bytes>,
        deadline: Duration,
    ) -> Result<Position, StateError> {
        let until = Instant::now() + deadline;
        let position = self.append_again(key, body, deadline).await?;
        self.applied_by(position, until, deadline).await?;
        Ok(position)
    }

    /// Like [`View::commit`], if `last` is the position of the latest record of the key; see [`AnyLog::append_next`].
    ///
    /// # Errors
    /// [`StateError::Overtaken`] if it is not; otherwise like [`View::commit`].
    pub async fn commit_next(
        &self,
        key: &str,
        body: Option<Bytes>,
        last: Option<Position>,
        deadline: Duration,
    ) -> Result<Position, StateError> {
        let until = Instant::now() + deadline;
        if body.is_some() {
            self.shared.check_room(key)?;
        }
        let appended = self.shared.log.append_next(key, body, last);
        let position = self.stored(Box::pin(appended), deadline).await?;
        self.applied_by(position, until, deadline).await?;
        Ok(position)
    }

    /// Waits until the view has applied the record at a position.
    ///
    /// # Errors
    /// [`StateError::NotApplied`] when it takes longer than `deadline`, [`StateError::Closed`] when the view ends.
    pub async fn applied(&self, position: Position, deadline: Duration) -> Result<(), StateError> {
        self.applied_by(position, Instant::now() + deadline, deadline)
            .await
    }

    /// Like [`View::applied`], for a caller that waits for `deadline` in all.
    async fn applied_by(
        &self,
        position: Position,
        until: Instant,
        deadline: Duration,
    ) -> Result<(), StateError> {
        let name = self.shared.log.spec().name;
        let Some(applied) = self.shared.wait_for(position)? else {
            return Ok(());
        };
        match timeout_at(until, applied).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(StateError::Closed(name)),
            Err(_) => Err(StateError::NotApplied {
                name,
                position,
                waited: deadline,
            }),
        }
    }

    /// An error if the log does not answer, or its records are not read.
    ///
    /// # Errors
    /// [`StateError::Unread`].
    pub fn check_read(&self) -> Result<(), StateError> {
        let name = self.shared.log.spec().name;
        match &self.shared.progress.borrow().silent {
            Some(why) => Err(StateError::Unread {
                name,
                why: Arc::clone(why),
            }),
            None => Ok(()),
        }
    }

    /// The memory that all entries may take, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.shared.memory_bytes
    }

    /// Refuses a new key while the memory is full and no entry can be removed.
    ///
    /// # Errors
    /// [`StateError::Full`].
    pub fn check_room(&self, key: &str) -> Result<(), StateError> {
        self.shared.check_room(key)
    }

    /// Waits until the log has stored a record. Boxed, because the future of a log is large: without the box, so would be
    /// those of all callers.
    async fn stored(
        &self,
        appended: Pin<Box<impl Future<Output = Result<Position, StateError>>>>,
        deadline: Duration,
    ) -> Result<Position, StateError> {
        let name = self.shared.log.spec().name;
        let waited = deadline;
        let stored = timeout(deadline, appended).await;
        let stored = stored.unwrap_or(Err(StateError::NotStored { name, waited }));
        self.shared.note_stored(&stored);
        stored
    }

    /// Waits until the view has applied everything that is now in the log, from any replica. Concurrent callers share
    /// one query for the end of the log.
    ///
    /// # Errors
    /// [`StateError::Behind`] when it takes longer than `deadline`, [`StateError::Closed`] when the view ends, and those of
    /// the log.
    pub async fn latest(&self, deadline: Duration) -> Result<(), StateError> {
        let name = self.shared.log.spec().name;
        let applied = async {
            let log = self.shared.log.clone();
            let query = async move { log.bounds().await };
            let end = self.shared.last_end.at(Instant::now(), name, query).await?;
            let mut progress = self.progress();
            let is_there = |progress: &Progress| progress.applied.behind(&end) == 0;
            match progress
                .wait_for(|progress| is_there(progress) || progress.is_closed)
                .await
            {
                Ok(progress) if is_there(&progress) => Ok(()),
                _ => Err(StateError::Closed(name)),
            }
        };
        let behind = |_| StateError::Behind {
            name,
            waited: deadline,
        };
        timeout(deadline, applied).await.map_err(behind)?
    }

    /// Reads the entries. This blocks the application of records, so `read` should return quickly.
    pub fn read<T>(&self, read: impl FnOnce(&Entries<F::Entry>) -> T) -> T {
        read(&self.shared.state().entries)
    }

    /// Reads the entries, and atomically starts to follow the records of one key, or of all keys: no record is missed
    /// or seen twice. The follower may lag behind by `capacity` records.
    pub fn follow<T>(
        &self,
        key: Option<&str>,
        capacity: usize,
        read: impl FnOnce(&Entries<F::Entry>) -> T,
    ) -> (T, Following) {
        let mut state = self.shared.state_mut();
        let now = read(&state.entries);
        let following = state.followers.add(key, capacity);
        (now, following)
    }

    /// The current end of the log. Records from there on are appended later.
    ///
    /// # Errors
    /// When the log cannot be asked.
    pub async fn end(&self) -> Result<Cursor, StateError> {
        self.shared.log.bounds().await.map(|bounds| bounds.end)
    }

    /// The progress of the view, as a channel of its changes.
    #[must_use]
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.shared.progress.subscribe()
    }

    /// Waits until the view has applied everything that was in the log at the start.
    ///
    /// # Errors
    /// [`StateError::Closed`] when the view ends before.
    pub async fn caught_up(&self) -> Result<(), StateError> {
        let mut progress = self.progress();
        let is_decided = |progress: &Progress| progress.is_caught_up || progress.is_closed;
        match progress.wait_for(is_decided).await {
            Ok(progress) if progress.is_caught_up => Ok(()),
            _ => Err(StateError::Closed(self.shared.log.spec().name)),
        }
    }
}

impl<F: Fold> Clone for View<F> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<F: Fold> fmt::Debug for View<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("log", &self.shared.log)
            .field("progress", &*self.shared.progress.borrow())
            .finish_non_exhaustive()
    }
}

// === impl Progress ===

impl Progress {
    /// How many offsets remain until the view has caught up.
    #[must_use]
    pub fn behind(&self) -> u64 {
        self.applied.behind(&self.end)
    }
}

// === impl ViewTask ===

impl ViewTask {
    /// Waits until the task ends, which happens only through an error.
    pub async fn ended(&mut self) {
        if let Err(error) = (&mut self.task).await {
            tracing::error!(%error, "this replica no longer follows a log of the state: restart it");
        }
    }
}

// === impl Shared ===

impl<F: Fold> Shared<F> {
    fn state(&self) -> RwLockReadGuard<'_, State<F::Entry>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State<F::Entry>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a new key if there is no room and no entry can be removed.
    fn check_room(&self, key: &str) -> Result<(), StateError> {
        let state = self.state();
        let (bytes, limit) = (state.entries.bytes(), self.memory_bytes);
        if bytes <= limit || state.entries.get(key).is_some() {
            return Ok(());
        }
        let name = self.log.spec().name;
        Err(StateError::Full { name, bytes, limit })
    }

    /// A receiver that resolves once a position is applied; `None` if it already is.
    fn wait_for(&self, position: Position) -> Result<Option<oneshot::Receiver<()>>, StateError> {
        let mut state = self.state_mut();
        if state.progress.applied.has_passed(position) {
            return Ok(None);
        }
        let Some(waiting) = &mut state.waiting else {
            return Err(StateError::Closed(self.log.spec().name));
        };
        let (sender, receiver) = oneshot::channel();
        waiting.entry(position).or_default().push(sender);
        Ok(Some(receiver))
    }

    fn apply(&self, batch: &Batch) {
        let kind = self.log.spec().kind;
        let mut guard = self.state_mut();
        let state = &mut *guard;
        for record in &batch.records {
            // After an error, the log may start with records that were read before.
            if state.progress.applied.has_passed(record.position) {
                continue;
            }
            state.progress.applied.pass(record.position);
            state.progress.records += 1;
            // A message without a key is no record of the state: it belongs to others.
            if kind == Kind::Latest && record.body.is_none() && !record.key.is_empty() {
                state.removals.note(record.time, record.position);
            }
            match state.entries.apply(&self.fold, kind, record) {
                Applied::Changed => state.followers.publish(record),
                Applied::Unchanged => {}
                Applied::Unknown => state.progress.unknown += 1,
            }
        }
        if matches!(kind, Kind::Events { .. }) {
            let limit = self.memory_bytes;
            let removed = state.entries.make_room(&self.fold, limit);
            state.progress.forgotten += removed.entries;
            state.released += removed.keys;
        }
        state.progress.entries = state.entries.len();
        state.progress.bytes = state.entries.bytes();
        state.reached(&batch.reached);
        let progress = state.progress.clone();
        self.progress.send_replace(progress);
    }

    /// Stores the bounds of the log before reading it. The state is rebuilt if the log ends before the last applied
    /// record, because the log was then replaced, or if deletions may be missing.
    fn bounded(&self, bounds: Bounds) {
        let mut state = self.state_mut();
        let name = self.log.spec().name;
        let is_replaced = bounds.end.behind(&state.progress.applied) > 0;
        if is_replaced {
            tracing::warn!(state = name, "the log was replaced: its state is rebuilt");
        } else if state.must_rebuild {
            tracing::warn!(
                state = name,
                "the log was not read for so long that deletions in it may be gone: its state is rebuilt"
            );
        }
        if is_replaced || state.must_rebuild {
            state.rebuild();
            state.must_rebuild = false;
            state.read_at = BothClocks::now();
        }
        state.progress.end = bounds.end;
        state.reached(&bounds.start);
        let progress = state.progress.clone();
        self.progress.send_replace(progress);
    }

    /// Queries the bounds of the log, and records whether it answers.
    async fn ask(&self) -> Result<Bounds, StateError> {
        let name = self.log.spec().name;
        let bounds = timeout(ANSWER, self.log.bounds()).await;
        let bounds = bounds.unwrap_or(Err(StateError::Behind {
            name,
            waited: ANSWER,
        }));
        let problem = bounds.as_ref().err();
        let problem = problem.map(|error| {
            let cause = match error {
                StateError::Bus { error, .. } => error.source(),
                _ => None,
            };
            let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
            format!("its log does not answer: {error}{cause}")
        });
        self.check(|state| &mut state.answers, problem);
        bounds
    }

    /// Records the result of a check. Returns how often it has failed in a row.
    fn check(&self, check: fn(&mut State<F::Entry>) -> &mut Check, problem: Option<String>) -> u32 {
        let mut state = self.state_mut();
        let failures = check(&mut state).note(problem);
        let is_silent = state.progress.silent.is_some();
        let causes = [&state.answers, &state.reads].map(Check::cause);
        state.progress.silent = causes.into_iter().flatten().next();
        let name = self.log.spec().name;
        match (is_silent, &state.progress.silent) {
            (false, Some(cause)) => {
                tracing::warn!(state = name, %cause, "a log of the state is not read");
            }
            (true, None) => tracing::info!(state = name, "the log of the state is read again"),
            _ => {}
        }
        let progress = state.progress.clone();
        self.progress.send_replace(progress);
        failures
    }

    /// Records whether the log stores records. A caller that waited only for a moment shows nothing.
    fn note_stored(&self, stored: &Result<Position, StateError>) {
        let cause: Option<Arc<str>> = match stored {
            Ok(_) if self.progress.borrow().unwritten.is_some() => None,
            Err(StateError::NotStored { waited, .. }) if *waited < STORED / 2 => return,
            Err(error) if error.is_outage() || is_unwritten(error) => {
                Some(error.to_string().into())
            }
            _ => return,
        };
        let name = self.log.spec().name;
        let mut state = self.state_mut();
        state.unwritten_at = cause.as_ref().map(|_| Instant::now());
        match (&state.progress.unwritten, &cause) {
            (None, Some(cause)) => {
                tracing::warn!(state = name, %cause, "a log of the state stores no records");
            }
            (Some(_), None) => {
                tracing::info!(state = name, "the log of the state stores records again")
            }
            _ => {}
        }
        if state.progress.unwritten != cause {
            state.progress.unwritten = cause;
            self.progress.send_replace(state.progress.clone());
        }
    }

    /// Whether the log is still the same, with the same number of partitions, and is read. If not, it is opened again.
    async fn is_same(&self) -> bool {
        let before = self.state().progress.applied.clone();
        let Ok(bounds) = self.ask().await else {
            return true;
        };
        let problem = self.state_mut().not_read();
        let failures = self.check(|state| &mut state.reads, problem);
        if failures == FAILURES || (failures > 0 && failures.is_multiple_of(REOPENED)) {
            return false;
        }
        let mut state = self.state_mut();
        let partitions = state.progress.end.partitions().count();
        if bounds.end.behind(&before) > 0 || bounds.end.partitions().count() > partitions.max(1) {
            return false;
        }
        if state.may_miss_deletions(self.log.spec().kind) {
            state.must_rebuild = true;
            return false;
        }
        if failures == 0 {
            state.read_at = BothClocks::now();
        }
        // Until then the end stays fixed, so that the view can reach it.
        if state.progress.is_caught_up {
            state.progress.end = bounds.end;
        }
        state.reached(&bounds.start);
        let progress = state.progress.clone();
        self.progress.send_replace(progress);
        true
    }

    /// Logs how many records were not understood, and how many keys were removed, since the last report.
    fn report(&self) {
        let (more, released) = {
            let mut state = self.state_mut();
            let more = state.progress.unknown - state.reported;
            state.reported = state.progress.unknown;
            (more, std::mem::take(&mut state.released))
        };
        let state = self.log.spec().name;
        if more > 0 {
            tracing::warn!(
                state,
                records = more,
                "unreadable records of the state were skipped: another version of the bridge, or another program, wrote them"
            );
        }
        if released > 0 {
            tracing::warn!(
                state,
                keys = released,
                "the keys of removed entries took more than a quarter of state.memory, so the oldest of them were removed, too: a later record with such a key begins a new entry (in results, a repeated request with such an Idempotency-Key is executed again)"
            );
        }
    }

    /// Removes old entries, and waiting tasks and followers that are gone.
    fn sweep(&self) {
        let now = clock::milliseconds(clock::now());
        let mut guard = self.state_mut();
        let state = &mut *guard;
        // Records that are still to be read may extend the life of an entry.
        if state.progress.is_caught_up {
            let grace = clock::whole_milliseconds(GRACE);
            let unfinished = state.entries.expire(now.saturating_sub(grace));
            if unfinished > 0 {
                tracing::info!(
                    state = self.log.spec().name,
                    entries = unfinished,
                    "unfinished entries were removed because they had expired"
                );
            }
        }
        state.followers.sweep();
        if state
            .unwritten_at
            .is_some_and(|at| at.elapsed() > FORGOTTEN)
        {
            (state.unwritten_at, state.progress.unwritten) = (None, None);
            self.progress.send_replace(state.progress.clone());
        }
        if let Some(waiting) = &mut state.waiting {
            waiting.retain(|_, waiting| {
                waiting.retain(|waiting| !waiting.is_closed());
                !waiting.is_empty()
            });
        }
    }

    /// Deletes old records that removed a key, if the log would keep them for ever, and permits it.
    async fn delete_removals(&self) {
        let name = self.log.spec().name;
        let now = clock::milliseconds(clock::now());
        let oldest = now.saturating_sub(clock::whole_milliseconds(KEPT));
        let due = {
            let state = self.state();
            state.removals.due(oldest, state.progress.applied.next(0))
        };
        if due.is_empty() {
            return;
        }
        let deleting = Box::pin(self.log.delete_removals(&due));
        match timeout(ANSWER, deleting).await {
            Ok(Ok(true)) => self.state_mut().removals.deleted(&due),
            Ok(Ok(false)) => {
                if self.state_mut().removals.refused() {
                    tracing::info!(
                        state = name,
                        "removed names or keys stay in the stream as empty records: to have them deleted after a day, see that the stream has max_msgs_per_subject 1, allow the user to publish STREAM.MSG.DELETE for the stream and $SYS.REQ.USER.INFO, and restart"
                    );
                }
            }
            Ok(Err(error)) => {
                tracing::debug!(state = name, %error, "old records were not deleted: trying again");
            }
            Err(_) => tracing::debug!(state = name, "old records were not deleted: trying again"),
        }
    }

    fn close(&self) {
        let mut state = self.state_mut();
        state.waiting = None;
        state.followers = Followers::default();
        state.progress.is_closed = true;
        let progress = state.progress.clone();
        self.progress.send_replace(progress);
    }
}

// === impl LastEnd ===

impl LastEnd {
    /// The end of the log with this name at `now` or later, with a new query if the last one was earlier. A query may
    /// hold a thread until it is answered, so it goes on if its caller leaves, and there is never more than one.
    async fn at(
        &self,
        now: Instant,
        name: &'static str,
        query: impl Future<Output = Result<Bounds, StateError>> + Send + 'static,
    ) -> Result<Cursor, StateError> {
        let mut last_end = Arc::clone(&self.0).lock_owned().await;
        if let Some((at, end)) = &*last_end
            && *at >= now
        {
            return Ok(end.clone());
        }
        let answered = tokio::spawn(async move {
            let at = Instant::now();
            let end = query.await?.end;
            *last_end = Some((at, end.clone()));
            Ok::<_, StateError>(end)
        });
        answered.await.unwrap_or(Err(StateError::Closed(name)))
    }
}

// === impl State ===

impl<E> State<E> {
    fn new() -> Self {
        Self {
            entries: Entries::default(),
            followers: Followers::default(),
            waiting: Some(BTreeMap::new()),
            progress: Progress::default(),
            reported: 0,
            released: 0,
            answers: Check::default(),
            reads: Check::default(),
            removals: Removals::default(),
            unwritten_at: None,
            read_at: BothClocks::now(),
            must_rebuild: false,
            last_applied: Cursor::start(),
            last_look: (Cursor::start(), 0),
        }
    }

    /// Whether tasks have waited for some time for stored records, and none was read.
    fn is_stuck(&mut self) -> bool {
        let mut waiting = self.waiting.iter().flat_map(BTreeMap::values).flatten();
        let is_waited_for = waiting.any(|waiting| !waiting.is_closed());
        let (last, looks) = &mut self.last_look;
        let is_same = is_waited_for && self.progress.applied == *last;
        *looks = if is_same { *looks + 1 } else { 0 };
        last.clone_from(&self.progress.applied);
        let is_stuck = *looks >= LOOKS;
        if is_stuck {
            // The next reader gets as much time.
            *looks = 0;
        }
        is_stuck
    }

    /// Whether a log that keeps the last record of each key was not read for so long that deletions may be gone. While
    /// the log answers but its records are not read, the state stays as it is.
    fn may_miss_deletions(&self, kind: Kind) -> bool {
        let is_read = self.reads.failures == 0;
        is_read && kind == Kind::Latest && self.read_at.elapsed() > DELETIONS
    }

    /// Clears the state. Followers and waiting tasks have to start again.
    fn rebuild(&mut self) {
        self.entries = Entries::default();
        self.removals.clear();
        self.followers.lose();
        self.waiting = self.waiting.is_some().then(BTreeMap::new);
        self.progress.applied = Cursor::start();
        self.progress.is_caught_up = false;
    }

    /// The problem if a partition had new records at the last query, and none of them was read since then.
    fn not_read(&mut self) -> Option<String> {
        let (applied, last) = (&self.progress.applied, &self.last_applied);
        let mut partitions = self.progress.end.partitions();
        let is_stuck = partitions.any(|(partition, end)| {
            let next = applied.next(partition);
            next < end && next == last.next(partition)
        });
        self.last_applied = self.progress.applied.clone();
        (is_stuck && self.progress.is_caught_up).then(|| {
            let behind = self.progress.behind();
            format!("its log answers, but {behind} records of it have not been read")
        })
    }

    /// Wakes the tasks that wait for positions before the cursor.
    fn reached(&mut self, cursor: &Cursor) {
        self.progress.applied.merge(cursor);
        let is_there = self.progress.behind() == 0;
        self.progress.is_caught_up |= is_there;
        let Some(waiting) = &mut self.waiting else {
            return;
        };
        for (partition, next) in self.progress.applied.partitions() {
            let at = |offset| Position { partition, offset };
            while let Some((position, _)) = waiting.range(at(0)..at(next)).next() {
                let position = *position;
                for waiting in waiting.remove(&position).into_iter().flatten() {
                    // The waiting task may be gone.
                    let _ = waiting.send(());
                }
            }
        }
    }
}

// === impl BothClocks ===

impl BothClocks {
    fn now() -> Self {
        Self {
            monotonic: Instant::now(),
            wall: clock::milliseconds(clock::now()),
        }
    }

    /// The longer of both times since then.
    fn elapsed(self) -> Duration {
        let wall = clock::milliseconds(clock::now()).saturating_sub(self.wall);
        self.monotonic.elapsed().max(Duration::from_millis(wall))
    }
}

// === impl Check ===

impl Check {
    /// Counts a result. Returns how often the check has failed in a row.
    fn note(&mut self, problem: Option<String>) -> u32 {
        self.failures = problem
            .as_ref()
            .map_or(0, |_| self.failures.saturating_add(1));
        self.problem = problem.map(Arc::from);
        self.failures
    }

    fn cause(&self) -> Option<Arc<str>> {
        self.problem.clone().filter(|_| self.failures >= FAILURES)
    }
}

// === the task ===

/// Closes the view when its task ends for any reason.
struct CloseOnDrop<F: Fold>(Arc<Shared<F>>);

impl<F: Fold> Drop for CloseOnDrop<F> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Applies the log, forever.
async fn run<F: Fold>(view: CloseOnDrop<F>) {
    let [mut pause, longest] = PAUSES;
    loop {
        let (began, before) = (Instant::now(), view.0.state().progress.applied.clone());
        let followed = follow_log(&view.0).await;
        // A reader that lost its connection reads on at once, however often that happens: records wait meanwhile.
        let has_worked = followed.is_ok() && began.elapsed() > LOOK;
        if has_worked || view.0.state().progress.applied != before {
            [pause, _] = PAUSES;
        }
        match followed {
            Ok(()) => tracing::warn!(
                state = view.0.log.spec().name,
                "the log of a state is read again from the last record"
            ),
            Err(error) => tracing::warn!(%error, "cannot read the log of a state: trying again"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

/// Applies all existing and new records until the log ends.
async fn follow_log<F: Fold>(view: &Shared<F>) -> Result<(), StateError> {
    let bounds = view.ask().await?;
    view.bounded(bounds);
    let applied = view.state().progress.applied.clone();
    let mut reader = view.log.read(applied).await?;
    let apply = async {
        while let Some(batch) = reader.next().await {
            view.apply(&batch);
        }
    };
    tokio::select! {
        () = apply => {}
        () = maintain(view) => {}
    }
    Ok(())
}

/// Maintains a view until its log is replaced or no longer read.
async fn maintain<F: Fold>(view: &Shared<F>) {
    let every = |period| {
        let mut ticks = tokio::time::interval_at(Instant::now() + period, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    };
    let (mut sweep, mut look) = (every(SWEEP), every(LOOK));
    loop {
        tokio::select! {
            _ = sweep.tick() => {
                view.sweep();
                view.report();
                if !view.is_same().await {
                    return;
                }
                view.delete_removals().await;
            }
            _ = look.tick() => {
                if view.state_mut().is_stuck() {
                    return;
                }
            }
        }
    }
}

/// Whether the log has not stored a record that it should have.
fn is_unwritten(error: &StateError) -> bool {
    matches!(
        error,
        StateError::NotStored { .. } | StateError::Disk { .. } | StateError::Closed(_)
    )
}
