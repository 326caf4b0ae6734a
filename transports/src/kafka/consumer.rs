//! Reads with one librdkafka consumer per subscription, on a dedicated thread that polls it forever.
//!
//! ```text
//! librdkafka ──poll──▶ backlog ──[budget]──▶ channel ──▶ Delivery
//!      ▲  ▲               │ no room for long: pause, keep polling
//!      │  └───────────────┘
//!      └── offsets of the settled prefix ◀── Intake ◀── verdict
//! ```
//!
//! The thread also polls while it is paused: librdkafka serves rebalances during a poll, and a member that does not
//! poll loses its partitions. Nothing else polls, so a callback may block.

mod leaving;
mod positions;
mod received;
mod refusals;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::{Arc, mpsc as std_mpsc};
use std::time::{Duration, Instant};

use a2abus_plugin::Text;
use rdkafka::consumer::Consumer as _;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::topic_partition_list::TopicPartitionList;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

use self::received::{Received, receive};
use super::checkup::{Checkup, SILENCE};
use super::config::{KafkaConfig, milliseconds};
use super::error::failed;
use super::health::{Events, Pulse};
use super::intake::{Admission, Budget, Intake, PAUSE_AFTER, PositionStorage};
use super::rebalance::{Client, Context, EndSignal, list};
use super::thread::spawn;
use crate::delivery::{Acknowledger, Delivery};
use crate::error::{TransportError, TransportErrorKind};
use crate::message::Topic;
use crate::transport::{Consumer, LAG_INTERVAL, PausedPartition, Reader, Share};

/// The maximum time a poll blocks, and thus the delay before a stop is noticed or a settled offset is stored.
const TICK: Duration = Duration::from_millis(100);
/// The poll interval of a paused source.
const PAUSED_TICK: Duration = Duration::from_millis(50);
/// After a pause of this length, reading resumes as soon as there is any room.
const LONG_PAUSE: Duration = Duration::from_secs(1);
/// The first and the longest pause before the commit of a topic that was created again is repeated.
const COMMIT_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Pause before a failed client is replaced.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// The maximum time that a revocation waits for deliveries, regardless of the session timeout: far below the maximum
/// poll interval.
const MAX_REVOCATION: Duration = Duration::from_secs(60);
/// The longest session of a member whose work must not wait long for another one. Well above the 6 s that brokers
/// accept at least by default, and three heartbeats long.
const PROMPT_SESSION: Duration = Duration::from_secs(10);
/// How often such a member looks for new partitions. Nobody else reads them.
const PROMPT_REFRESH: Duration = Duration::from_secs(5);
/// The least time that a member gets for its partitions to arrive while the cluster answers, before its client is
/// replaced. Twice as long as a bridge may take to give partitions up.
const MAX_WAIT: Duration = Duration::from_secs(120);
/// A member that is fenced twice within this time shares its `instance_id` with another process. Two such processes
/// fence each other every few seconds; outages are rarer.
const FENCED_AGAIN: Duration = Duration::from_secs(15);
/// A member that is fenced so many times shares it even if replaced clients of this process are not closed yet.
const MAX_FENCED: u32 = 4;

/// A subscription whose topics are known to exist.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) config: Arc<KafkaConfig>,
    pub(super) pulse: Arc<Pulse>,
    /// Stops the reader with its connection.
    pub(super) closing: CancellationToken,
    pub(super) source: Source,
    /// Whether the group notices a dead member within [`PROMPT_SESSION`].
    pub(super) is_prompt: bool,
    pub(super) budget: Budget,
}

/// The subscription.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// These topics, shared with the other members of the group.
    Group { name: Text, topics: Vec<Topic> },
    /// These partitions, from these offsets on.
    Live(Vec<(Topic, i32, i64)>),
}

/// The state that the reading thread keeps across clients.
struct Task {
    plan: Plan,
    intake: Arc<Intake>,
    leave: EndSignal,
    /// The share of the partitions.
    share: watch::Sender<Share>,
    /// Held by the replaced clients that are not closed yet.
    replaced: Arc<()>,
    deliveries: mpsc::Sender<Delivery>,
    /// For members of a group: where the lag is reported.
    lag: Option<watch::Sender<Option<u64>>>,
    /// The topics that no longer exist.
    missing: watch::Sender<Vec<Topic>>,
    /// How many records were removed before they were read.
    removed: watch::Sender<u64>,
    /// Where the reader reports the partitions that are paused because of their own records.
    full: watch::Sender<Vec<PausedPartition>>,
    /// Whether the brokers refuse so short a session as [`PROMPT_SESSION`].
    needs_long_session: Cell<bool>,
}

/// A client and its reading state.
struct Session<'a> {
    task: &'a Task,
    client: Client,
    backlog: VecDeque<Received>,
    /// When all partitions were paused because the budget was exhausted.
    paused: Option<Instant>,
    /// The lane of the last record. The next record usually has the same.
    last_lane: Option<(u32, Topic, i32)>,
    due_at: Instant,
    /// Since the last tick.
    has_received: bool,
    check_gaps_at: Instant,
    /// When to ask for the ends of paused partitions.
    measure_at: Instant,
    /// When to commit the positions of topics that were created again.
    commit_again_at: Instant,
    /// The pause after that.
    commit_again_pause: Duration,
    last_error: Option<(Code, Instant)>,
    /// When the last record arrived.
    received_at: Instant,
    checkup: Checkup,
    /// When the brokers last refused a permission. librdkafka reports that only once, and then goes on asking.
    refused_at: Option<Instant>,
    /// While the cluster refuses topics, or does not have them.
    unreadable: Option<Unreadable>,
}

/// The question whether the cluster still refuses topics, and which do not exist. Only a client of its own can tell:
/// librdkafka reports a refusal once for each partition, goes on asking, and does not report that it gets records
/// again; and its Rust client does not report which topic does not exist.
struct Unreadable {
    /// When the cluster last refused a topic to the reader.
    refused_at: Option<Instant>,
    /// When a topic was last known not to exist.
    missing_at: Option<Instant>,
    /// When that was last logged.
    logged_at: Option<Instant>,
    /// When to ask next.
    ask_at: Instant,
    /// When the question was last asked, and its answer, until that has arrived.
    asked: Option<(Instant, std_mpsc::Receiver<Readable>)>,
}

/// The topics that do not exist, if the others may be read.
type Readable = Result<Vec<Topic>, TransportError>;

/// Why records wait in the backlog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BacklogReason {
    No,
    /// Partitions have too many unsettled offsets, or are held.
    Lanes,
    /// This partition uses its whole share of the budget.
    Share(u32),
    /// Nobody receives the deliveries.
    Channel,
    /// The budget is used up.
    Room {
        /// The next message is too large for the free budget.
        cost: usize,
    },
}

/// Why a session ended.
enum End {
    Stopped,
    Broken(Code),
    /// The client no longer takes part in its group.
    Stuck,
    /// The client has lost the cluster.
    CutOff,
}

/// Starts reading; returns once the client is created and subscribed, or positioned. Holds the token until the reader
/// has ended.
pub(super) async fn start(
    plan: Plan,
    running: TaskTrackerToken,
) -> Result<Consumer, TransportError> {
    let budget = plan.budget;
    let keeping = match plan.source {
        Source::Group { .. } => PositionStorage::Offsets,
        Source::Live(_) => PositionStorage::Nothing,
    };
    // A message that holds its part of the budget finds room in the channel, also beside those of blocked partitions.
    let room = budget.messages.saturating_mul(2);
    let (deliveries, receiver) = mpsc::channel(room.min(Semaphore::MAX_PERMITS));
    let (ready, is_ready) = oneshot::channel();
    let (end, ended) = oneshot::channel();
    let is_member = matches!(plan.source, Source::Group { .. });
    let task = Task {
        intake: Arc::new(Intake::new(keeping, budget)),
        leave: EndSignal {
            stop: plan.closing.clone(),
            deadlines: Arc::default(),
        },
        share: watch::Sender::new(plan.source.first_share()),
        plan,
        replaced: Arc::default(),
        deliveries,
        lag: is_member.then(watch::Sender::default),
        missing: watch::Sender::default(),
        removed: watch::Sender::default(),
        full: watch::Sender::default(),
        needs_long_session: Cell::new(false),
    };
    // Dropping this with the future stops the thread, so nothing stays subscribed.
    let reader = Reader {
        stop: task.leave.stop.clone(),
        ended,
    };
    let consumer = task.consumer(receiver, reader);
    spawn("a2abus-kafka-read", move || {
        let how = task.run(ready);
        drop(task);
        // Fails when nobody waits for the end any more.
        let _ = end.send(how);
        drop(running);
    })?;
    match is_ready.await {
        Ok(result) => result.map(|()| consumer),
        Err(_) => Err(TransportError::new(
            TransportErrorKind::Other,
            "start the reading thread",
        )),
    }
}

// === impl Source ===

impl Source {
    /// The share of a reader that begins.
    fn first_share(&self) -> Share {
        match self {
            Self::Group { .. } => Share::Waiting,
            Self::Live(_) => Share::Assigned,
        }
    }

    /// The topics that are read.
    fn topics(&self) -> Vec<Topic> {
        match self {
            Self::Group { topics, .. } => topics.clone(),
            Self::Live(starts) => {
                let mut topics: Vec<Topic> =
                    starts.iter().map(|(topic, ..)| topic.clone()).collect();
                topics.dedup();
                topics
            }
        }
    }

    /// The name of the group, for the log; empty without one.
    fn group(&self) -> Text {
        match self {
            Self::Group { name, .. } => name.clone(),
            Self::Live(_) => Text::default(),
        }
    }
}

/// What is read, for the log.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Group { name, topics } => {
                let names: Vec<&str> = topics.iter().map(Topic::as_str).collect();
                write!(f, "group {name}, topics {}", names.join(", "))
            }
            Self::Live(starts) => {
                let topic = starts.first().map_or("", |(topic, ..)| topic.as_str());
                write!(f, "topic {topic}")
            }
        }
    }
}

// === impl Task ===

impl Task {
    /// The receiving end.
    fn consumer(&self, deliveries: mpsc::Receiver<Delivery>, reader: Reader) -> Consumer {
        let consumer = Consumer::new(deliveries, reader)
            .draining(Arc::clone(&self.leave.deadlines))
            .awaiting_assignment(self.share.subscribe(), self.missing.subscribe());
        match &self.lag {
            Some(lag) => consumer
                .with_lag(lag.subscribe())
                .with_removed(self.removed.subscribe())
                .with_paused(self.full.subscribe()),
            None => consumer,
        }
    }

    /// Reads until it is stopped, and replaces clients that fail.
    ///
    /// # Errors
    /// `Fenced` when another process has taken our place in the group.
    fn run(
        &self,
        ready: oneshot::Sender<Result<(), TransportError>>,
    ) -> Result<(), TransportError> {
        let mut session = match Session::open(self) {
            Ok(session) => {
                // Fails when the caller gave up, and has then stopped this reader too.
                let _ = ready.send(Ok(()));
                session
            }
            Err(error) => {
                // `start` returns the error to the caller. Nobody asks for the end of a subscription that never began.
                let _ = ready.send(Err(error));
                return Ok(());
            }
        };
        let mut fenced_before: Option<(Instant, u32)> = None;
        loop {
            match session.read() {
                End::Stopped => {
                    session.close();
                    return Ok(());
                }
                End::Broken(code) => {
                    if self.shares_its_name(code, &mut fenced_before) {
                        return Err(fenced(self.instance_id(), code));
                    }
                    self.log_broken(code);
                }
                End::CutOff => {
                    tracing::warn!(
                        reads = %self.plan.source,
                        "this Kafka consumer gets no response from the cluster, although a new connection does: it is replaced"
                    );
                }
                End::Stuck => {
                    tracing::warn!(
                        reads = %self.plan.source,
                        waited = ?self.max_wait(),
                        "the Kafka consumer gets no partitions, though the cluster answers: it is replaced"
                    );
                }
            }
            session.replace();
            self.intake.revoke_all();
            session = match self.reopen() {
                Some(session) => session,
                None => return Ok(()),
            };
        }
    }

    fn log_broken(&self, code: Code) {
        let reads = &self.plan.source;
        if code == Code::FencedInstanceId {
            let instance_id = self.instance_id();
            tracing::warn!(%reads, instance_id, "the group has removed this Kafka consumer, which is replaced: another process has the same instance_id, or this process was silent for longer than its session_timeout");
        } else {
            tracing::warn!(%reads, %code, "the Kafka consumer failed and is replaced");
        }
    }

    fn instance_id(&self) -> &str {
        self.plan.config.instance_id.as_deref().unwrap_or_default()
    }

    /// How long a member may wait for its partitions while the cluster answers: others give theirs up first, or their
    /// session ends.
    fn max_wait(&self) -> Duration {
        MAX_WAIT.max(self.plan.config.session_timeout + MAX_REVOCATION)
    }

    /// How long the group waits for this member when it is silent.
    fn session_timeout(&self) -> Duration {
        let longest = self.plan.config.session_timeout;
        match self.plan.is_prompt && !self.needs_long_session.get() {
            true => longest.min(PROMPT_SESSION),
            false => longest,
        }
    }

    /// Whether the brokers refuse the short session of this member: then it uses the configured one from now on.
    fn is_session_refused(&self, error: &KafkaError) -> bool {
        let is_refused = self.session_timeout() < self.plan.config.session_timeout
            && error.rdkafka_error_code() == Some(Code::InvalidSessionTimeout);
        if is_refused {
            tracing::warn!(
                reads = %self.plan.source, session = ?PROMPT_SESSION,
                "the brokers require longer sessions (group.min.session.timeout.ms): session_timeout is used, so others take over the work of a dead member later"
            );
            self.needs_long_session.set(true);
        }
        is_refused
    }

    /// Whether another process has the same `instance_id`, so that this subscription has to end. Two such processes
    /// fence each other again and again. After an outage longer than its session, the coordinator also fences a member
    /// that no other process has replaced, but only once.
    fn shares_its_name(&self, code: Code, before: &mut Option<(Instant, u32)>) -> bool {
        if code != Code::FencedInstanceId {
            return false;
        }
        let recent = before.filter(|(at, _)| at.elapsed() < FENCED_AGAIN);
        let times = 1 + recent.map_or(0, |(_, times)| times);
        *before = Some((Instant::now(), times));
        // A client that was replaced has the same instance_id until it is closed, and it may never be.
        let is_alone = Arc::strong_count(&self.replaced) == 1;
        times >= 2 && (is_alone || times >= MAX_FENCED)
    }

    /// A new client after a failure, or `None` when the subscription was stopped meanwhile.
    fn reopen(&self) -> Option<Session<'_>> {
        loop {
            let resume_at = Instant::now() + REOPEN_PAUSE;
            self.intake
                .wait_for_stop(resume_at, || self.leave.stop.is_cancelled());
            if self.leave.stop.is_cancelled() {
                return None;
            }
            match Session::open(self) {
                Ok(session) => return Some(session),
                Err(error) => tracing::warn!(%error, "the Kafka consumer cannot be replaced yet"),
            }
        }
    }

    fn context(&self) -> Context {
        Context::new(
            Events::new("consumer", Arc::clone(&self.plan.pulse)),
            Arc::clone(&self.intake),
            self.leave.clone(),
            (self.plan.source.group(), self.share.clone()),
            (self.session_timeout() / 2).min(MAX_REVOCATION),
            self.lag.clone(),
        )
    }

    fn client(&self) -> Result<Client, TransportError> {
        let config = &self.plan.config;
        let create = |properties: super::config::Properties| -> KafkaResult<Client> {
            properties.build().create_with_context(self.context())
        };
        match &self.plan.source {
            Source::Group { name, topics } => {
                let names: Vec<&str> = topics.iter().map(Topic::as_str).collect();
                let mut member = config.member(name, &names, self.session_timeout())?;
                if self.plan.is_prompt {
                    let refresh = milliseconds(PROMPT_REFRESH);
                    member.set("topic.metadata.refresh.interval.ms", refresh);
                }
                create(member).and_then(|client| client.subscribe(&names).map(|()| client))
            }
            Source::Live(starts) => {
                // librdkafka assigns nothing without a group. The group is never joined.
                let mut properties = config.live(&format!("a2abus-live-{}", random()))?;
                // They show open transactions.
                properties.set("statistics.interval.ms", milliseconds(LAG_INTERVAL));
                create(properties)
                    .and_then(|client| client.assign(&self.starts(starts)?).map(|()| client))
            }
        }
        .map_err(|error| failed("create the Kafka consumer", error))
    }

    fn starts(&self, starts: &[(Topic, i32, i64)]) -> KafkaResult<TopicPartitionList> {
        let lanes: Vec<u32> = starts
            .iter()
            .filter_map(|(topic, partition, _)| self.intake.lane(topic.as_str(), *partition))
            .collect();
        self.intake.assign(&lanes);
        // After a client failed: continue at its positions.
        list(starts.iter().map(|(topic, partition, start)| {
            let next = self.intake.next(topic.as_str(), *partition);
            (topic.clone(), *partition, next.unwrap_or(*start))
        }))
    }
}

// === impl Session ===

impl<'a> Session<'a> {
    fn open(task: &'a Task) -> Result<Self, TransportError> {
        let now = Instant::now();
        // The client before this one may have found topics that do not exist.
        let is_missing = !task.missing.borrow().is_empty();
        Ok(Self {
            client: task.client()?,
            task,
            backlog: VecDeque::new(),
            paused: None,
            last_lane: None,
            due_at: now,
            has_received: false,
            check_gaps_at: now,
            measure_at: now,
            commit_again_at: now,
            commit_again_pause: COMMIT_AGAIN.0,
            last_error: None,
            received_at: now,
            checkup: Checkup::new(),
            refused_at: None,
            unreadable: is_missing.then(|| Unreadable::missing(now)),
        })
    }

    fn read(&mut self) -> End {
        while !self.task.leave.stop.is_cancelled() {
            let backlog = self.deliver();
            let polled = match (self.paused, backlog) {
                (None, BacklogReason::Room { cost }) => self.wait_for_room(cost),
                (None, BacklogReason::No) => self.poll(TICK),
                (None, BacklogReason::Lanes) => {
                    self.pause_and_resume();
                    self.poll(TICK)
                }
                (None, BacklogReason::Share(lane)) => self.wait_for_share(lane),
                (None, BacklogReason::Channel) => {
                    self.pause();
                    ControlFlow::Continue(())
                }
                (Some(since), backlog) => self.poll_paused(since, backlog),
            };
            if let ControlFlow::Break(end) = polled {
                return end;
            }
            if self.is_due() {
                self.store_positions();
                self.measure_paused();
                self.task.intake.note_progress();
                self.ask_again();
                self.pause_and_resume();
                if self.is_cut_off() {
                    return End::CutOff;
                }
            }
        }
        End::Stopped
    }

    /// Moves records from the backlog to the channel, in order on each lane.
    fn deliver(&mut self) -> BacklogReason {
        let mut full = Vec::new();
        let mut crowded = None;
        let mut index = 0;
        while let Some(next) = self.backlog.get(index) {
            if full.contains(&next.lane) {
                index += 1;
                continue;
            }
            let cost = next.message.size_bytes();
            let slot = match self.task.deliveries.try_reserve() {
                Ok(slot) => slot,
                Err(TrySendError::Full(())) => return BacklogReason::Channel,
                // Nobody receives any more. Outstanding deliveries may still settle.
                Err(TrySendError::Closed(())) => {
                    self.backlog.clear();
                    self.pause();
                    return BacklogReason::No;
                }
            };
            match self
                .task
                .intake
                .admit(next.lane, next.epoch, next.offset, cost)
            {
                Admission::Granted(settlement) => {
                    if let Some(received) = self.backlog.remove(index) {
                        slot.send(received.delivery(Acknowledger::new(Box::new(settlement), None)));
                    }
                }
                Admission::Stale => drop(self.backlog.remove(index)),
                Admission::NoRoom => return BacklogReason::Room { cost },
                refused @ (Admission::NoShare | Admission::LaneFull) => {
                    if matches!(refused, Admission::NoShare) {
                        crowded = Some(next.lane);
                    }
                    full.push(next.lane);
                    index += 1;
                }
            }
        }
        match crowded {
            Some(lane) => BacklogReason::Share(lane),
            None if full.is_empty() => BacklogReason::No,
            None => BacklogReason::Lanes,
        }
    }

    /// Waits briefly for room without polling, then pauses the partitions.
    fn wait_for_room(&mut self, cost: usize) -> ControlFlow<End> {
        let intake = &self.task.intake;
        if !intake.wait_for_room(cost, PAUSE_AFTER) {
            if intake.find_blocked() {
                self.pause_and_resume();
            } else {
                self.pause();
            }
        }
        ControlFlow::Continue(())
    }

    /// Waits briefly for room in the share of a partition without polling, then pauses the partition.
    fn wait_for_share(&mut self, lane: u32) -> ControlFlow<End> {
        if !self.task.intake.wait_for_share(lane) {
            self.pause_and_resume();
        }
        ControlFlow::Continue(())
    }

    /// Serves callbacks while everything is paused, and continues when there is room again.
    fn poll_paused(&mut self, since: Instant, backlog: BacklogReason) -> ControlFlow<End> {
        let intake = &self.task.intake;
        let detached = self.task.deliveries.is_closed();
        let resume = match backlog {
            BacklogReason::Room { cost } => {
                // Others may go on beside blocked partitions.
                !intake.wait_for_room(cost, PAUSED_TICK) && intake.find_blocked()
            }
            _ if detached || backlog == BacklogReason::Channel => {
                intake.wait_for_stop(Instant::now() + PAUSED_TICK, || {
                    self.task.leave.stop.is_cancelled()
                });
                false
            }
            // Half of the budget, so that a nearly used-up budget does not pause and resume with every message.
            // After a rebalance, messages of the earlier assignment may use all of it.
            _ => {
                intake.wait_for_half(PAUSED_TICK)
                    || (since.elapsed() > LONG_PAUSE
                        && (intake.wait_for_room(0, Duration::ZERO) || intake.find_blocked()))
            }
        };
        if resume {
            self.paused = None;
            self.pause_and_resume();
        }
        self.poll(Duration::ZERO)
    }

    fn pause(&mut self) {
        if self.paused.is_none() {
            self.paused = Some(Instant::now());
            self.pause_and_resume();
        }
    }

    /// Pauses and resumes partitions as the budget and their lanes require.
    fn pause_and_resume(&mut self) {
        let pace = self.task.intake.pace(self.paused.is_some());
        self.task.full.send_if_modified(|full| {
            let is_news = *full != pace.full;
            *full = pace.full;
            is_news
        });
        let pause = named(&pace.pause, |list| self.client.pause(list));
        let resume = named(&pace.resume, |list| self.client.resume(list));
        for error in [pause, resume].into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "a Kafka partition could not be paused or resumed");
        }
    }

    /// Takes one record, or serves one event.
    fn poll(&mut self, timeout: Duration) -> ControlFlow<End> {
        match self.client.poll(timeout) {
            Some(Ok(record)) => {
                self.has_received = true;
                let received = receive(&self.task.intake, &mut self.last_lane, &record);
                drop(record);
                if let Some((received, is_first)) = received {
                    self.find_removed(&received, is_first);
                    self.backlog.push_back(received);
                }
                ControlFlow::Continue(())
            }
            Some(Err(KafkaError::MessageConsumptionFatal(code))) => {
                ControlFlow::Break(End::Broken(code))
            }
            Some(Err(error)) if self.task.is_session_refused(&error) => {
                ControlFlow::Break(End::Broken(Code::InvalidSessionTimeout))
            }
            Some(Err(error)) => {
                self.note(&error);
                ControlFlow::Continue(())
            }
            None => {
                // A rebalance may have happened during the poll.
                self.pause_and_resume();
                if self.is_stuck() {
                    return ControlFlow::Break(End::Stuck);
                }
                ControlFlow::Continue(())
            }
        }
    }

    fn is_member(&self) -> bool {
        matches!(self.task.plan.source, Source::Group { .. })
    }

    /// Whether to store positions and to look after the client.
    fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let is_due = now >= self.due_at;
        if is_due {
            self.due_at = now + TICK;
            if std::mem::take(&mut self.has_received) {
                self.received_at = now;
                self.checkup = Checkup::new();
            }
        }
        is_due
    }

    fn is_cut_off(&mut self) -> bool {
        let (client, plan) = (self.client.client(), &self.task.plan);
        self.received_at.elapsed() >= SILENCE
            && self.checkup.is_cut_off(client, &plan.config, &plan.pulse)
    }
}

/// Does something with these partitions, if there are any.
fn named(
    partitions: &[(Topic, i32)],
    act: impl Fn(&TopicPartitionList) -> KafkaResult<()>,
) -> KafkaResult<()> {
    if partitions.is_empty() {
        return Ok(());
    }
    let mut list = TopicPartitionList::with_capacity(partitions.len());
    for (topic, partition) in partitions {
        list.add_partition(topic.as_str(), *partition);
    }
    act(&list)
}

/// The error of a subscription that ends because another process has taken its place.
fn fenced(instance_id: &str, code: Code) -> TransportError {
    let what = format!(
        "read as a member of a group: another process has the same instance_id, {instance_id}; give each process its own, and restart this one"
    );
    TransportError::new(TransportErrorKind::Fenced, what).caused_by(code)
}

/// Sixteen random hexadecimal digits.
pub(super) fn random() -> String {
    let number = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()));
    format!("{number:016x}")
}
