//! One execution, as a stream of events.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use a2abus_models::Object;
use a2abus_models::a2e_workflow::Report;
use a2abus_plugin::Text;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, Stream};
use tokio::sync::watch;

use super::request::{Refusal, Request};
use super::running::{Running, Slot};
use crate::agent::Agent;
use crate::archive::{Archive, Stored};
use crate::engine::{self, Run};
use crate::environment::{Clock, RecordForgotten, StoreDelayed, StoreError};
use crate::failure::{Failure, FailureCode};
use crate::meter::requester_deadline_exceeded;
use crate::plan::Plan;
use crate::record::{Record, RecordInputs};
use crate::shared::Shared;
use crate::trace::Progress;

/// What the executions of an executor share.
pub(super) struct Inner {
    pub(super) shared: Shared,
    pub(super) archive: Archive,
    pub(super) running: Running,
}

/// An execution that runs while it is polled: a stream of [`Event`]s. After [`Event::Ended`] it ends once its record is
/// stored: at once, unless the store is slower than a requester waits.
#[must_use = "an execution runs while it is polled"]
pub struct Execution {
    execution_id: Text,
    operations: usize,
    run: BoxFuture<'static, (Arc<Record>, Object, Option<Recording>)>,
    /// The events reported while the run is polled. Bounded by the number of operation runs.
    reported: Arc<Mutex<VecDeque<Progress>>>,
    ended: Option<(Arc<Record>, Object)>,
    has_ended: bool,
    recording: Option<Recording>,
    is_reduced: Arc<AtomicBool>,
}

/// How often to try to store the whole record of an execution late, before only its end is stored.
const MAX_TRIES: usize = 5;

/// Stores the last record of an execution whose requester has got its answer.
type Recording = BoxFuture<'static, ()>;

/// Waits for an execution that is running elsewhere, in this or another process.
pub struct RunningElsewhere {
    execution_id: Text,
    ended: Option<watch::Receiver<Option<Arc<Record>>>>,
    inner: Arc<Inner>,
    agent: Text,
}

/// How long after its deadline an execution may still end, to allow for clock differences between processes.
const MARGIN: Duration = Duration::from_secs(30);

/// An event of an execution.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// An operation begins, waits or ends.
    Operation(Progress),
    /// The execution has ended. It is recorded, unless the store is slower than a requester waits.
    Ended {
        /// Its record.
        record: Arc<Record>,
        /// The final data model.
        model: Object,
    },
}

/// The inputs of an execution.
pub(super) struct Start {
    pub(super) agent: Arc<Agent>,
    pub(super) plan: Plan,
    pub(super) execution_id: Text,
    pub(super) digest: Text,
    pub(super) request: Request,
    pub(super) report: Report,
}

/// When an execution must end.
#[derive(Debug, Clone, Copy)]
struct Deadline {
    /// By the time of day.
    time: SystemTime,
    /// By the monotonic clock.
    elapsed: Duration,
    /// Whether the requester's deadline is earlier than the agent's limit.
    is_cut_short: bool,
}

// === impl Start ===

impl Start {
    /// The deadline of an execution that starts now.
    ///
    /// # Errors
    /// If the deadline of the requester has passed.
    fn deadline(&self, clock: &dyn Clock) -> Result<Deadline, Refusal> {
        let (now, elapsed) = (clock.now(), clock.elapsed());
        let max = self.agent.policy().max_execution_time;
        let requested = self.request.deadline;
        let left = requested.map(|deadline| deadline.duration_since(now).unwrap_or_default());
        if left.is_some_and(|left| left.is_zero()) {
            return Err(Refusal::Expired(Failure::expired(
                "its expirytime had passed before it began: nothing was executed",
            )));
        }
        let time = left.map_or(max, |left| left.min(max));
        Ok(Deadline {
            time: now + time,
            elapsed: elapsed + time,
            is_cut_short: time < max,
        })
    }
}

// === impl Execution ===

impl Execution {
    /// Records that it runs, before anything runs. `None` if another process runs it.
    pub(super) async fn begin(
        inner: Arc<Inner>,
        start: Start,
        slot: Slot,
    ) -> Result<Option<Self>, Refusal> {
        let (clock, agent) = (&inner.shared.environment.clock, start.agent.id());
        let turn = inner.archive.turn(agent, clock.as_ref()).await;
        let turn = turn.inspect_err(|error| not_stored(error, agent, &start.execution_id))?;
        // The wait for the turn may have been long, so the time of the execution begins only now.
        let deadline = start.deadline(clock.as_ref())?;
        let stored = Stored {
            record: Record::running(&start.execution_id, clock.now()),
            digest: start.digest.clone(),
            has_begun_unsafe: false,
        };
        let names = start.request.cancel_names.as_slice();
        let claim = (deadline.time + MARGIN, names);
        let begun = inner.archive.begin(turn, agent, &stored, claim).await;
        if !begun.map_err(|error| not_begun(error, agent, &start.execution_id))? {
            return Ok(None);
        }
        slot.note_begun();
        let reported = Arc::new(Mutex::new(VecDeque::new()));
        let queue = Arc::clone(&reported);
        let (trace, is_reduced) = (slot.trace.clone(), Arc::clone(&slot.is_reduced));
        let report = move |progress| {
            trace.note(&progress);
            queue
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push_back(progress);
        };
        Ok(Some(Self {
            execution_id: start.execution_id.clone(),
            operations: start.plan.len(),
            run: run(inner, start, deadline, stored, slot, report).boxed(),
            reported,
            ended: None,
            has_ended: false,
            recording: None,
            is_reduced,
        }))
    }

    /// The id of the execution.
    #[must_use]
    pub fn execution_id(&self) -> &Text {
        &self.execution_id
    }

    /// Whether its record is stored without its results. Known once the stream has ended.
    #[must_use]
    pub fn is_reduced(&self) -> bool {
        self.is_reduced.load(Ordering::Relaxed)
    }

    /// How many operations are defined.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.operations
    }

    /// Runs it to its end, stores its record, and drops the events.
    pub async fn finish(self) -> Arc<Record> {
        let (record, recording) = match self.ended {
            Some((record, _)) => (record, self.recording),
            None => {
                let (record, _, recording) = self.run.await;
                (record, recording)
            }
        };
        if let Some(recording) = recording {
            recording.await;
        }
        record
    }
}

impl Stream for Execution {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.has_ended {
            if let Some(recording) = &mut self.recording {
                ready!(recording.poll_unpin(context));
                self.recording = None;
            }
            return Poll::Ready(None);
        }
        let reported = |this: &Self| {
            this.reported
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop_front()
        };
        if let Some(progress) = reported(&self) {
            return Poll::Ready(Some(Event::Operation(progress)));
        }
        if self.ended.is_none()
            && let Poll::Ready((record, model, recording)) = self.run.poll_unpin(context)
        {
            self.ended = Some((record, model));
            self.recording = recording;
        }
        if let Some(progress) = reported(&self) {
            return Poll::Ready(Some(Event::Operation(progress)));
        }
        let Some((record, model)) = &mut self.ended else {
            return Poll::Pending;
        };
        // The model may be large, and storing the record may take long.
        let (record, model) = (Arc::clone(record), std::mem::take(model));
        self.has_ended = true;
        Poll::Ready(Some(Event::Ended { record, model }))
    }
}

impl fmt::Debug for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Execution")
            .field("execution_id", &self.execution_id)
            .finish_non_exhaustive()
    }
}

// === impl RunningElsewhere ===

impl RunningElsewhere {
    pub(super) fn new(
        inner: Arc<Inner>,
        agent: &Text,
        execution_id: Text,
        ended: Option<watch::Receiver<Option<Arc<Record>>>>,
    ) -> Self {
        Self {
            execution_id,
            ended,
            inner,
            agent: agent.clone(),
        }
    }

    /// The id of the execution.
    #[must_use]
    pub fn execution_id(&self) -> &Text {
        &self.execution_id
    }

    /// Whether it runs in this process.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.ended.is_some()
    }

    /// Its record when it ends; `None` if it was abandoned, or stopped in another process so that it may run again.
    pub async fn ended(self) -> Option<Arc<Record>> {
        if let Some(mut ended) = self.ended
            && let Ok(record) = ended.wait_for(Option::is_some).await
        {
            return record.clone();
        }
        let archive = &self.inner.archive;
        let stored = archive
            .ended_elsewhere(&self.agent, &self.execution_id)
            .await;
        let stored = stored.inspect_err(|error| {
            tracing::error!(
                agent = %self.agent, execution_id = %self.execution_id, error = &*error.0,
                "the record of an execution cannot be read"
            );
        });
        let record = stored.ok().flatten()?.record;
        record.answers_again().then(|| Arc::new(record))
    }
}

impl fmt::Debug for RunningElsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningElsewhere")
            .field("execution_id", &self.execution_id)
            .finish_non_exhaustive()
    }
}

/// Runs it to its end and records the result, or returns what records it later.
async fn run(
    inner: Arc<Inner>,
    start: Start,
    deadline: Deadline,
    mut stored: Stored,
    slot: Slot,
    report: impl Fn(Progress) + Send + Sync,
) -> (Arc<Record>, Object, Option<Recording>) {
    let clock = &inner.shared.environment.clock;
    let unsafe_mark = Arc::new(UnsafeMark {
        inner: Arc::clone(&inner),
        agent: start.agent.id().clone(),
        stored: stored.clone(),
        is_set: AtomicBool::new(false),
    });
    let before_unsafe = {
        let unsafe_mark = Arc::clone(&unsafe_mark);
        move || Arc::clone(&unsafe_mark).set().boxed()
    };
    let why_cancelled = || match slot.is_stopped() {
        true => Failure::stopped(unsafe_mark.is_set.load(Ordering::Relaxed)),
        false => Failure::new(FailureCode::Cancelled, "the execution was cancelled"),
    };
    let began = clock.elapsed();
    let session = start.request.session.as_ref();
    let run = Run {
        shared: &inner.shared,
        agent: start.agent.as_ref(),
        plan: &start.plan,
        on_error: start.request.on_error,
        session: session.unwrap_or(&start.execution_id),
        deadline: deadline.elapsed,
        cancel: &slot.cancel,
        why_cancelled: &why_cancelled,
        report: &report,
        before_unsafe: &before_unsafe,
    };
    let name = (start.agent.id(), &start.execution_id);
    let mut ended = until_ended(&inner, name, &slot, engine::run(run, start.request.input)).await;
    if deadline.is_cut_short {
        ended.error = ended.error.map(requester_deadline_exceeded);
    }
    let inputs = RecordInputs {
        execution_id: &start.execution_id,
        started: stored.record.started(),
        duration: clock.elapsed().saturating_sub(began),
        on_error: start.request.on_error,
        warnings: &start.report,
        trace: &slot.trace,
    };
    stored.record = Record::ended(&inputs, &ended);
    stored.has_begun_unsafe = unsafe_mark.is_set.load(Ordering::Relaxed);
    let (record, recording) = record_end(inner, start.agent.id(), stored, slot).await;
    (record, ended.model, recording)
}

/// Records the end of an execution. Returns what records it later, if the store is slower than a requester waits.
async fn record_end(
    inner: Arc<Inner>,
    agent: &Text,
    stored: Stored,
    slot: Slot,
) -> (Arc<Record>, Option<Recording>) {
    let saved = save_last(&inner, agent, &stored).await;
    let mut record = stored.record.clone();
    if let Ok(Some(why)) = &saved {
        slot.is_reduced.store(true, Ordering::Relaxed);
        record = record.not_stored_because(why);
    }
    let record = Arc::new(record);
    slot.end(&record);
    let recording = saved.err().and_then(|error| {
        let unrecorded = UnrecordedEnd::of(agent, &record);
        // With any other cause, `unrecorded` is dropped here, and logs that the end stays unrecorded.
        let cause = error.0.downcast_ref::<StoreDelayed>()?;
        tracing::warn!(
            %agent, execution_id = %record.execution_id(), error = &*cause.0,
            "an execution has ended, and its record is not stored yet: the requester gets the answer, and the record is stored later"
        );
        Some(unrecorded.save(inner, stored, slot).boxed())
    });
    (record, recording)
}

/// Runs an execution to its end; another process may cancel it.
async fn until_ended<T>(
    inner: &Inner,
    (agent, execution_id): (&Text, &Text),
    slot: &Slot,
    running: impl Future<Output = T>,
) -> T {
    let mut running = pin!(running);
    tokio::select! {
        biased;
        ended = &mut running => ended,
        () = inner.archive.until_cancelled(agent, execution_id) => {
            slot.cancel.cancel();
            running.await
        }
    }
}

/// Records, before the first request that must not be repeated, that one may have been sent.
struct UnsafeMark {
    inner: Arc<Inner>,
    agent: Text,
    stored: Stored,
    is_set: AtomicBool,
}

impl UnsafeMark {
    async fn set(self: Arc<Self>) -> Result<(), Failure> {
        if self.is_set.load(Ordering::Relaxed) {
            return Ok(());
        }
        let stored = Stored {
            has_begun_unsafe: true,
            ..self.stored.clone()
        };
        save(&self.inner, &self.agent, &stored).await.map_err(|_| {
            let message =
                "the call was not sent, because it could not be recorded first: without that record it might be sent twice later";
            Failure::new(FailureCode::StorageFailed, message)
        })?;
        self.is_set.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// Stores the final record. The answer is correct either way, and recording that the execution ended matters more than
/// its results. A store that is only slow gets the whole record later. Returns why the results are not stored.
async fn save_last(
    inner: &Inner,
    agent: &Text,
    stored: &Stored,
) -> Result<Option<Failure>, StoreError> {
    let (archive, clock) = (&inner.archive, inner.shared.environment.clock.as_ref());
    let error = match archive.save_last(agent, stored, clock).await {
        Err(error) if !error.0.is::<StoreDelayed>() => error,
        // `record_end` logs what is stored later.
        saved => return saved.map(|()| None),
    };
    let execution_id = stored.record.execution_id();
    let why = Failure::results_not_stored(&error);
    let reduced = archive
        .save_last(agent, &stored.without_values(Some(&why)), clock)
        .await;
    match &reduced {
        Ok(()) => stored_without_results(&error, agent, execution_id),
        // `record_end` logs what is stored later.
        Err(last) if last.0.is::<StoreDelayed>() => {}
        Err(last) => {
            not_stored(&error, agent, execution_id);
            not_stored(last, agent, execution_id);
        }
    }
    reduced.map(|()| Some(why))
}

/// An execution that has ended. If it is dropped before its end is recorded, it logs an error.
struct UnrecordedEnd {
    agent: Text,
    record: Arc<Record>,
    is_recorded: bool,
}

impl UnrecordedEnd {
    fn of(agent: &Text, record: &Arc<Record>) -> Self {
        Self {
            agent: agent.clone(),
            record: Arc::clone(record),
            is_recorded: false,
        }
    }

    /// Records it after its requester has got the answer. Until then the slot answers requests for it.
    async fn save(mut self, inner: Arc<Inner>, stored: Stored, slot: Slot) {
        let (agent, execution_id) = (&self.agent, self.record.execution_id());
        let archive = &inner.archive;
        let is_delayed = |saved: &Result<usize, StoreError>| {
            let error = saved.as_ref().err();
            error.is_some_and(|error| error.0.is::<StoreDelayed>())
        };
        let mut whole = archive.save_late(agent, &stored).await;
        for _ in 1..MAX_TRIES {
            if !is_delayed(&whole) {
                break;
            }
            whole = archive.save_late(agent, &stored).await;
        }
        let mut written = 0;
        if let Err(error) = &whole {
            // Without its values it needs less room.
            let why = Failure::results_not_stored(error);
            match archive.save_end(agent, &stored, &why).await {
                Ok(bytes) => {
                    self.is_recorded = true;
                    written = bytes;
                }
                Err(error) => return not_stored(&error, agent, execution_id),
            }
            whole = archive.save_late(agent, &stored).await;
        }
        let is_whole = match whole {
            Ok(bytes) => {
                self.is_recorded = true;
                written += bytes;
                true
            }
            Err(error) => {
                slot.is_reduced.store(true, Ordering::Relaxed);
                stored_without_results(&error, agent, execution_id);
                false
            }
        };
        // It waits for the turn of the agent, so it comes last.
        archive.count(agent, written).await;
        tracing::info!(%agent, %execution_id, is_whole, "the end of an execution is now recorded");
        drop(slot);
    }
}

impl Drop for UnrecordedEnd {
    fn drop(&mut self) {
        if self.is_recorded {
            return;
        }
        tracing::error!(
            agent = %self.agent, execution_id = %self.record.execution_id(), status = self.record.status().as_str(),
            "an execution has ended, but its end is not recorded; unless another replica has taken it over, its record says that it still runs: if its request is sent again, it runs again or is answered as interrupted"
        );
    }
}

async fn save(inner: &Inner, agent: &Text, stored: &Stored) -> Result<(), StoreError> {
    let clock = inner.shared.environment.clock.as_ref();
    let saved = inner.archive.save(agent, stored, clock).await;
    saved.inspect_err(|error| not_stored(error, agent, stored.record.execution_id()))
}

/// Why an execution does not begin.
fn not_begun(error: StoreError, agent: &Text, execution_id: &Text) -> Refusal {
    if error.0.is::<RecordForgotten>() {
        return Refusal::Forgotten(execution_id.clone());
    }
    not_stored(&error, agent, execution_id);
    Refusal::Store(error)
}

/// Reports that the end of an execution is recorded, but not its values.
fn stored_without_results(error: &StoreError, agent: &Text, execution_id: &Text) {
    tracing::warn!(
        %agent, %execution_id, error = %error.0,
        "the record of an execution is stored without its results (`results_removed`): nobody can ask for them later, so only a requester that waits for the answer may get them; let workflows return less, or let the store accept larger records (a log on a bus: larger messages)"
    );
}

fn not_stored(error: &StoreError, agent: &Text, execution_id: &Text) {
    tracing::error!(
        %agent, %execution_id, error = &*error.0,
        "the record of an execution cannot be stored"
    );
}
