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

use std::collections::VecDeque;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::{Arc, mpsc as std_mpsc};
use std::time::{Duration, Instant};

use a2abus_plugin::Text;
use rdkafka::consumer::{CommitMode, Consumer as _};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::checkup::{Checkup, SILENCE};
use super::config::{KafkaConfig, milliseconds};
use super::error::{GRANT, LOG_AGAIN, failed, is_outage, kind};
use super::health::{Events, Pulse};
use super::intake::{Admission, Budget, Intake, PAUSE_AFTER, PositionStorage};
use super::progress::Ends;
use super::questions::may_read;
use super::rebalance::{Client, Context, EndSignal, list, store};
use super::record;
use super::thread::spawn;
use super::writer::position;
use crate::delivery::{Acknowledger, Delivery, Origin};
use crate::error::{TransportError, TransportErrorKind};
use crate::message::{Message, Topic};
use crate::transport::{Consumer, LAG_INTERVAL, PausedPartition, Reader, Share};

/// The maximum time a poll blocks, and thus the delay before a stop is noticed or a settled offset is stored.
const TICK: Duration = Duration::from_millis(100);
/// The poll interval of a paused source.
const PAUSED_TICK: Duration = Duration::from_millis(50);
/// After a pause of this length, reading resumes as soon as there is any room.
const LONG_PAUSE: Duration = Duration::from_secs(1);
/// The first and the longest pause before the commit of a topic that was created again is repeated.
const COMMIT_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The timeout of a request for offsets by the reading thread.
const OFFSET_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause before a failed client is replaced.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// The maximum time that a revocation waits for deliveries, regardless of the session timeout: far below the maximum
/// poll interval.
const MAX_REVOCATION: Duration = Duration::from_secs(60);
/// How long a member at least may wait for its partitions while the cluster answers. Twice as long as a bridge may take
/// to give partitions up.
const MAX_WAIT: Duration = Duration::from_secs(120);
/// For how long a refusal explains that a member gets no partitions.
const MAX_REFUSED_WAIT: Duration = Duration::from_secs(20 * 60);
/// After this time the cluster is asked again whether it still refuses topics.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// A member that is fenced twice within this time shares its `instance_id` with another process. Two such processes fence
/// each other every few seconds; outages are rarer.
const FENCED_AGAIN: Duration = Duration::from_secs(15);
/// The same, even if replaced clients of this process are not closed yet.
const MAX_FENCED: u32 = 4;

/// A subscription whose topics are known to exist.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) config: Arc<KafkaConfig>,
    pub(super) pulse: Arc<Pulse>,
    /// Stops the reader with its connection.
    pub(super) closing: CancellationToken,
    pub(super) source: Source,
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
    /// Where the reader reports the partitions that are paused because of their own records.
    full: watch::Sender<Vec<PausedPartition>>,
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
    /// While the cluster refuses topics.
    unreadable: Option<Unreadable>,
}

/// The question whether the cluster still refuses topics. Only a client of its own can tell: librdkafka reports a refusal
/// once for each partition, goes on asking, and does not report that it gets records again.
struct Unreadable {
    /// When the cluster last refused a topic to the reader.
    refused_at: Instant,
    /// When to ask next.
    ask_at: Instant,
    /// When the question was last asked, and its answer, until that has arrived.
    asked: Option<(Instant, std_mpsc::Receiver<Result<(), TransportError>>)>,
}

/// A record on its way to the channel.
struct Received {
    lane: u32,
    epoch: u64,
    topic: Topic,
    partition: i32,
    offset: i64,
    time: Option<i64>,
    message: Message,
}

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

/// Starts reading; returns once the client is created and subscribed, or positioned. Holds the token until the reader has
/// ended.
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
    let (tell_lag, lag) = watch::channel(None);
    let (full, paused) = watch::channel(Vec::new());
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
        lag: is_member.then_some(tell_lag),
        full,
    };
    // Dropping this with the future stops the thread, so nothing stays subscribed.
    let reader = Reader {
        stop: task.leave.stop.clone(),
        ended,
    };
    let consumer = Consumer::new(receiver, reader)
        .draining(Arc::clone(&task.leave.deadlines))
        .awaiting_assignment(task.share.subscribe());
    let consumer = if is_member {
        consumer.with_lag(lag).with_paused(paused)
    } else {
        consumer
    };
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
                        return Err(fenced(code));
                    }
                    tracing::warn!(reads = %self.plan.source, %code, "the Kafka consumer failed and is replaced");
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

    /// How long a member may wait for its partitions while the cluster answers: others give theirs up first, or their
    /// session ends.
    fn max_wait(&self) -> Duration {
        MAX_WAIT.max(self.plan.config.session_timeout + MAX_REVOCATION)
    }

    /// Whether another process has the same `instance_id`, so that this subscription has to end. Two such processes fence
    /// each other again and again. After an outage longer than its session, the coordinator also fences a member that no
    /// other process has replaced, but only once.
    fn shares_its_name(&self, code: Code, before: &mut Option<(Instant, u32)>) -> bool {
        if code != Code::FencedInstanceId {
            return false;
        }
        let recent = before.filter(|(at, _)| at.elapsed() < FENCED_AGAIN);
        let times = 1 + recent.map_or(0, |(_, times)| times);
        *before = Some((Instant::now(), times));
        // A client that was replaced has the same instance_id until it is closed, and it may never be.
        let is_alone = Arc::strong_count(&self.replaced) == 1;
        let is_shared = times >= 2 && (is_alone || times >= MAX_FENCED);
        if is_shared {
            tracing::error!(reads = %self.plan.source, "another process uses the same instance_id: this subscription ends");
        }
        is_shared
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

    /// Asks whether the topics may be read. The answer comes when it is known; none if the question cannot be asked.
    fn ask_to_read(&self) -> std_mpsc::Receiver<Result<(), TransportError>> {
        let (answer, answered) = std_mpsc::sync_channel(1);
        let (config, pulse) = (Arc::clone(&self.plan.config), Arc::clone(&self.plan.pulse));
        let topics = self.plan.source.topics();
        let asking = spawn("a2abus-kafka-ask", move || {
            // Fails when the client that asked has ended.
            let _ = answer.send(may_read(&config, &pulse, &topics));
        });
        if let Err(error) = asking {
            tracing::warn!(reads = %self.plan.source, %error, "cannot ask whether topics may be read again");
        }
        answered
    }

    fn context(&self) -> Context {
        Context::new(
            Events::new("consumer", Arc::clone(&self.plan.pulse)),
            Arc::clone(&self.intake),
            self.leave.clone(),
            (self.plan.source.group(), self.share.clone()),
            (self.plan.config.session_timeout / 2).min(MAX_REVOCATION),
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
                create(config.member(name, &names)?)
                    .and_then(|client| client.subscribe(&names).map(|()| client))
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
            unreadable: None,
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
            _ => {
                intake.wait_for_half(PAUSED_TICK)
                    || (since.elapsed() > LONG_PAUSE && intake.wait_for_room(0, Duration::ZERO))
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

    /// Asks from time to time whether the cluster still refuses topics, and notes when it no longer does. Does not wait
    /// for the answer.
    fn ask_again(&mut self) {
        let now = Instant::now();
        let Some(unreadable) = &mut self.unreadable else {
            return;
        };
        let Some((asked_at, answer)) = &unreadable.asked else {
            if now >= unreadable.ask_at {
                unreadable.asked = Some((now, self.task.ask_to_read()));
            }
            return;
        };
        let answer = match answer.try_recv() {
            Err(std_mpsc::TryRecvError::Empty) => return,
            Ok(answer) => answer,
            // The thread that asks could not be started.
            Err(std_mpsc::TryRecvError::Disconnected) => Err(TransportError::new(
                TransportErrorKind::Other,
                "ask whether topics may be read",
            )),
        };
        match answer {
            Ok(()) if *asked_at > unreadable.refused_at => {
                self.unreadable = None;
                return self.client.context().set_records_refused(false);
            }
            // A topic was refused after the question.
            Ok(()) => {}
            Err(error) if error.kind() == TransportErrorKind::Unauthorised => {}
            Err(error) => {
                tracing::debug!(reads = %self.task.plan.source, %error, "cannot tell whether topics may be read again");
            }
        }
        (unreadable.asked, unreadable.ask_at) = (None, now + ASK_AGAIN);
    }

    /// Takes one record, or serves one event.
    fn poll(&mut self, timeout: Duration) -> ControlFlow<End> {
        match self.client.poll(timeout) {
            Some(Ok(record)) => {
                self.has_received = true;
                if let Some(received) = receive(&self.task.intake, &mut self.last_lane, &record) {
                    let first = received.1;
                    let received = received.0;
                    drop(record);
                    if first {
                        self.warn_of_gap(&received);
                    }
                    self.backlog.push_back(received);
                }
                ControlFlow::Continue(())
            }
            Some(Err(KafkaError::MessageConsumptionFatal(code))) => {
                ControlFlow::Break(End::Broken(code))
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

    /// Whether the client waits for partitions that it may never get. librdkafka removes the brokers that a response
    /// about the cluster does not name. After a response that names none, as a single broker sends it while it returns
    /// to its cluster, the client sometimes never asks again.
    fn is_stuck(&self) -> bool {
        let max_wait = self.task.max_wait();
        let is_answered = self.task.plan.pulse.answers_for() > max_wait;
        // A refused topic may be the reason why the partitions are gone.
        let waits = self.client.context().unassigned_for();
        let is_refused = self.unreadable.is_some() && waits < MAX_REFUSED_WAIT;
        let is_without = self.is_without_partitions(max_wait) && !is_refused;
        self.is_member() && is_answered && is_without
    }

    /// Whether the client has waited longer than this for partitions, and the cluster has not refused them since.
    fn is_without_partitions(&self, longest: Duration) -> bool {
        let waits = self.client.context().unassigned_for();
        let since_refusal = self.refused_at.map(|at| at.elapsed());
        let is_refused = since_refusal.is_some_and(|since| since < waits.min(MAX_REFUSED_WAIT));
        waits > longest && !is_refused
    }

    /// Logs an error once, and again when it changes or persists.
    fn note(&mut self, error: &KafkaError) {
        let task = self.task;
        let reads = &task.plan.source;
        let Some(code) = error.rdkafka_error_code() else {
            return tracing::warn!(%reads, %error, "the Kafka consumer reports an error");
        };
        // A live reader has no group, so it needs no permission for one.
        let groupless = code == Code::GroupAuthorizationFailed && !self.is_member();
        let is_refusal = kind(code) == TransportErrorKind::Unauthorised && !groupless;
        if is_refusal {
            self.note_refusal(code);
        }
        let is_reported = self
            .last_error
            .is_some_and(|(last, at)| last == code && at.elapsed() < LOG_AGAIN);
        if is_reported || groupless || is_outage(code) {
            return tracing::debug!(%reads, %error, "the Kafka consumer reports an error");
        }
        self.last_error = Some((code, Instant::now()));
        if is_refusal {
            tracing::error!(%reads, %error, fix = GRANT, "the Kafka cluster denies this reader a permission");
        } else {
            tracing::warn!(%reads, %error, "the Kafka consumer reports an error");
        }
    }

    /// Shows that the cluster refuses a permission.
    fn note_refusal(&mut self, code: Code) {
        let now = Instant::now();
        self.refused_at = Some(now);
        if code == Code::TopicAuthorizationFailed {
            let unreadable = self.unreadable.get_or_insert_with(|| Unreadable {
                refused_at: now,
                ask_at: now + ASK_AGAIN,
                asked: None,
            });
            unreadable.refused_at = now;
            self.client.context().set_records_refused(true);
        }
        self.task.share.send_if_modified(|share| {
            let waits = *share == Share::Waiting;
            if waits {
                *share = Share::Refused;
            }
            waits
        });
    }

    /// Warns when records were deleted before they were read.
    fn warn_of_gap(&mut self, first: &Received) {
        if !self.is_member() || first.offset == 0 || Instant::now() < self.check_gaps_at {
            return;
        }
        let lost = lost_records(
            &self.client,
            first.topic.as_str(),
            first.partition,
            first.offset,
        );
        match lost {
            Ok(0) => {}
            Ok(records) => tracing::warn!(
                topic = first.topic.as_str(),
                partition = first.partition,
                records,
                "records were deleted from the source before they were read"
            ),
            Err(error) => {
                tracing::debug!(%error, "cannot tell whether records were deleted unread");
                // Each question blocks the thread, so do not ask for every partition while nobody answers.
                self.check_gaps_at = Instant::now() + LOG_AGAIN;
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

    /// Stores positions that moved, for the next commit.
    fn store_positions(&mut self) {
        store(&self.client, self.task.intake.take_moved());
        for (topic, partition, position) in self.task.intake.take_restarted() {
            self.commit_again_at = Instant::now();
            self.commit_again_pause = COMMIT_AGAIN.0;
            tracing::warn!(
                topic = topic.as_str(),
                partition,
                position,
                "offsets of a Kafka partition went back: its topic was created again, or records were lost"
            );
        }
        self.commit_again();
    }

    /// Commits positions on topics that were created again. Of stored positions, librdkafka commits only those above the
    /// last commit, which may be of the old topic. Source: librdkafka 2.12,
    /// `rd_kafka_topic_partition_list_set_offsets`. It does not report the result of these commits either, so they are
    /// repeated, at longer and longer intervals, until a commit of stored positions succeeds.
    fn commit_again(&mut self) {
        let now = Instant::now();
        if now < self.commit_again_at {
            return;
        }
        let positions = self.task.intake.positions_with_old_commits();
        if positions.is_empty() {
            self.commit_again_pause = COMMIT_AGAIN.0;
            return;
        }
        self.commit_again_at = now + self.commit_again_pause;
        self.commit_again_pause = COMMIT_AGAIN.1.min(self.commit_again_pause * 2);
        let committed =
            list(positions).and_then(|positions| self.client.commit(&positions, CommitMode::Async));
        if let Err(error) = committed {
            tracing::warn!(%error, "a Kafka commit failed; records may be redelivered or skipped");
        }
    }

    /// Asks for the ends of paused partitions, for the lag: librdkafka learns the end of a partition only from what it
    /// fetches. Source: librdkafka 2.12, `rd_kafka_toppar_consumer_lag_req`.
    fn measure_paused(&mut self) {
        let now = Instant::now();
        if self.task.lag.is_none() || now < self.measure_at {
            return;
        }
        self.measure_at = now + LAG_INTERVAL;
        let paused = self.task.intake.paused();
        if paused.is_empty() {
            return self.client.context().note_ends(Ends::new());
        }
        let mut question = TopicPartitionList::with_capacity(paused.len());
        let added = paused.iter().try_for_each(|(topic, partition)| {
            question.add_partition_offset(topic.as_str(), *partition, Offset::End)
        });
        let answer = added.and_then(|()| self.client.offsets_for_times(question, OFFSET_TIMEOUT));
        match answer {
            Ok(ends) => self.client.context().note_ends(ends_of(&ends)),
            Err(error) => tracing::debug!(%error, "the ends of paused partitions are not known"),
        }
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

fn ends_of(list: &TopicPartitionList) -> Ends {
    let elements = list.elements();
    let ends = elements.iter().filter_map(|it| match it.offset() {
        Offset::Offset(end) => Some(((it.topic().to_owned(), it.partition()), end)),
        _ => None,
    });
    ends.collect()
}

/// The error of a subscription that ends because another process has taken its place.
fn fenced(code: Code) -> TransportError {
    let what = "read as a member of a group: another process uses the same instance_id; give each process its own instance_id, and restart this one";
    TransportError::new(TransportErrorKind::Fenced, what).caused_by(code)
}

/// Converts a record, and returns whether it is the first of its assignment; `None` if its partition is not assigned.
fn receive(
    intake: &Intake,
    last_lane: &mut Option<(u32, Topic, i32)>,
    record: &BorrowedMessage<'_>,
) -> Option<(Received, bool)> {
    let (name, partition) = (record.topic(), record.partition());
    let known = last_lane
        .as_ref()
        .filter(|(_, topic, of)| *of == partition && topic.as_str() == name);
    let (lane, topic) = match known {
        Some((lane, topic, _)) => (*lane, topic.clone()),
        None => {
            let lane = intake.lane(name, partition)?;
            let topic = intake.topic(lane)?;
            *last_lane = Some((lane, topic.clone(), partition));
            (lane, topic)
        }
    };
    let (epoch, first) = intake.arrive(lane)?;
    let received = Received {
        lane,
        epoch,
        topic,
        partition,
        offset: record.offset(),
        time: record.timestamp().to_millis(),
        message: record::message(record),
    };
    Some((received, first))
}

/// How many records between the committed offset and the first received one no longer exist.
fn lost_records(client: &Client, topic: &str, partition: i32, first: i64) -> KafkaResult<i64> {
    let mut question = TopicPartitionList::with_capacity(1);
    question.add_partition(topic, partition);
    let answer = client.committed_offsets(question, OFFSET_TIMEOUT)?;
    let committed = answer.find_partition(topic, partition).map(|p| p.offset());
    match committed {
        Some(Offset::Offset(committed)) if committed < first => {
            // Compaction and transactions leave gaps without loss. Deletion moves the low watermark.
            let (low, _) = client.fetch_watermarks(topic, partition, OFFSET_TIMEOUT)?;
            Ok((low - committed).max(0))
        }
        _ => Ok(0),
    }
}

/// Sixteen random hexadecimal digits.
pub(super) fn random() -> String {
    let number = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()));
    format!("{number:016x}")
}

// === impl Received ===

impl Received {
    fn delivery(self, acknowledger: Acknowledger) -> Delivery {
        let origin = Origin {
            position: position(self.topic.as_str(), self.partition, self.offset),
            time: self.time,
        };
        Delivery {
            message: self.message,
            topic: self.topic,
            reply_to: None,
            origin: Some(origin),
            lane: self.lane,
            attempt: 1,
            acknowledger,
        }
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::ClientConfig;
    use rdkafka::consumer::{BaseConsumer, ConsumerContext as _, Rebalance};
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer as _};
    use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr as Response};

    use super::super::health;
    use super::super::rebalance::COMMITTED_TIMEOUT;
    use super::*;
    use crate::delivery::Outcome;
    use crate::transport::{CloseDeadlines, Health};

    const DEADLINE: Duration = Duration::from_secs(30);

    type Cluster = MockCluster<'static, DefaultProducerContext>;

    fn cluster() -> Cluster {
        let cluster = Cluster::new(1).unwrap();
        cluster.create_topic("t", 1, 1).unwrap();
        cluster
    }

    /// A record in the topic `t`.
    fn publish(cluster: &Cluster) {
        let producer: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", cluster.bootstrap_servers())
            .create()
            .unwrap();
        producer
            .send(BaseRecord::<(), _>::to("t").payload("x"))
            .unwrap();
        producer.flush(DEADLINE).unwrap();
    }

    /// Polls until a record is delivered.
    fn delivered(session: &mut Session<'_>, deliveries: &mut mpsc::Receiver<Delivery>) -> Delivery {
        let late = Instant::now() + DEADLINE;
        loop {
            assert!(Instant::now() < late, "no record is delivered");
            assert!(session.poll(TICK).is_continue());
            session.deliver();
            if let Ok(delivery) = deliveries.try_recv() {
                return delivery;
            }
        }
    }

    /// Polls until the member has this share.
    #[track_caller]
    fn until(session: &mut Session<'_>, share: Share) {
        let late = Instant::now() + DEADLINE;
        while *session.task.share.borrow() != share {
            assert!(Instant::now() < late, "it is never {share:?}");
            assert!(session.poll(TICK).is_continue());
            session.ask_again();
        }
    }

    /// A member of the group `g` that reads the topic `t` of this cluster, which answers.
    fn member(brokers: String) -> (Task, mpsc::Receiver<Delivery>) {
        let pulse = Arc::new(Pulse::default());
        health::watch(&pulse, &watch::Sender::new(Health::Up), || {
            pulse.stop();
            Ok(health::Answer::Producer)
        });
        let (deliveries, receiver) = mpsc::channel(1);
        let budget = Budget {
            bytes: 1 << 20,
            messages: 100,
        };
        let task = Task {
            plan: Plan {
                config: Arc::new(KafkaConfig::new([brokers])),
                pulse,
                closing: CancellationToken::new(),
                source: Source::Group {
                    name: Text::from_static("g"),
                    topics: vec![Topic::from_static("t")],
                },
                budget,
            },
            intake: Arc::new(Intake::new(PositionStorage::Offsets, budget)),
            leave: EndSignal::default(),
            share: watch::Sender::new(Share::Waiting),
            replaced: Arc::default(),
            deliveries,
            lag: None,
            full: watch::channel(Vec::new()).0,
        };
        (task, receiver)
    }

    #[test]
    fn a_last_commit_has_time_after_the_deadline_of_deliveries() {
        let cluster = cluster();
        publish(&cluster);
        let (task, mut deliveries) = member(cluster.bootstrap_servers());
        let mut session = Session::open(&task).unwrap();
        let delivery = delivered(&mut session, &mut deliveries);
        delivery.acknowledger.settle(Outcome::Settled).unwrap();
        let refusals = [Response::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS; 3];
        cluster.request_errors(RDKafkaApiKey::OffsetCommit, &refusals);
        let settle = Instant::now();
        let commit = settle + DEADLINE;
        task.leave
            .deadlines
            .set(CloseDeadlines {
                settle,
                commit,
                end: commit,
            })
            .unwrap();
        session.close();
        assert_eq!(committed(&cluster), Offset::Offset(1));
    }

    #[test]
    fn a_member_gets_its_first_partitions_before_it_leaves() {
        let cluster = cluster();
        let (task, _) = member(cluster.bootstrap_servers());
        let mut session = Session::open(&task).unwrap();
        assert_eq!(*task.share.borrow(), Share::Waiting);
        session.leave_without_partitions(Instant::now() + DEADLINE);
        assert_eq!(*task.share.borrow(), Share::Assigned);
        assert_eq!(session.client.assignment().unwrap().count(), 1);
    }

    #[test]
    fn a_member_that_is_refused_is_not_stuck() {
        let cluster = cluster();
        let refusals = [Response::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED; 1_000];
        cluster.request_errors(RDKafkaApiKey::FindCoordinator, &refusals);
        let (task, _deliveries) = member(cluster.bootstrap_servers());
        let mut session = Session::open(&task).unwrap();
        let late = Instant::now() + DEADLINE;
        while session.is_without_partitions(Duration::ZERO) {
            assert!(Instant::now() < late, "no refusal is reported");
            assert!(session.poll(TICK).is_continue());
        }
        // Once it is permitted it gets partitions. If it loses them, it waits again.
        cluster.clear_request_errors(RDKafkaApiKey::FindCoordinator);
        while *task.share.borrow() != Share::Assigned {
            assert!(Instant::now() < late, "no partitions are assigned");
            assert!(session.poll(TICK).is_continue());
        }
        assert!(!session.is_without_partitions(Duration::ZERO));
        session.client.unsubscribe();
        while !session.is_without_partitions(Duration::ZERO) {
            assert!(Instant::now() < late, "the next wait does not count");
            assert!(session.poll(TICK).is_continue());
        }
    }

    #[test]
    fn a_member_waits_longer_than_a_session_and_a_revocation() {
        let (mut task, _) = member("127.0.0.1:1".to_owned());
        assert_eq!(task.max_wait(), MAX_WAIT);
        let session_timeout = Duration::from_secs(10 * 60);
        task.plan.config = Arc::new(KafkaConfig {
            session_timeout,
            ..KafkaConfig::clone(&task.plan.config)
        });
        assert_eq!(task.max_wait(), session_timeout + MAX_REVOCATION);
    }

    /// Asks now whether the topics are still refused, and waits for the answer.
    #[track_caller]
    fn ask(session: &mut Session<'_>) {
        let late = Instant::now() + DEADLINE;
        session.unreadable.as_mut().unwrap().ask_at = Instant::now();
        session.ask_again();
        let is_asked = |unreadable: &Unreadable| unreadable.asked.is_some();
        while session.unreadable.as_ref().is_some_and(is_asked) {
            assert!(Instant::now() < late, "no answer");
            assert!(session.poll(TICK).is_continue());
            session.ask_again();
        }
    }

    #[test]
    fn a_reader_whose_records_are_refused_has_its_share_again_when_they_are_permitted() {
        let cluster = cluster();
        let refusals = [Response::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED; 1_000];
        cluster.request_errors(RDKafkaApiKey::Fetch, &refusals);
        let (task, mut deliveries) = member(cluster.bootstrap_servers());
        let mut session = Session::open(&task).unwrap();
        until(&mut session, Share::Assigned);
        until(&mut session, Share::Refused);
        cluster.clear_request_errors(RDKafkaApiKey::Fetch);
        ask(&mut session);
        assert_eq!(*task.share.borrow(), Share::Assigned);
        publish(&cluster);
        drop(delivered(&mut session, &mut deliveries));
    }

    #[test]
    fn a_permission_that_is_refused_again_before_the_answer_counts_as_refused() {
        let cluster = cluster();
        let (task, _deliveries) = member(cluster.bootstrap_servers());
        let mut session = Session::open(&task).unwrap();
        until(&mut session, Share::Assigned);
        session.note_refusal(Code::TopicAuthorizationFailed);
        session.unreadable.as_mut().unwrap().ask_at = Instant::now();
        session.ask_again();
        session.note_refusal(Code::TopicAuthorizationFailed);
        ask(&mut session);
        assert_eq!(*task.share.borrow(), Share::Refused);
        ask(&mut session);
        assert_eq!(*task.share.borrow(), Share::Assigned);
    }

    /// A topic that the user may not see any more has no partitions, and librdkafka reports that once.
    #[test]
    fn a_member_is_refused_as_long_as_it_may_not_see_its_topic() {
        let cluster = cluster();
        let (mut task, _deliveries) = member(cluster.bootstrap_servers());
        let refresh = [("topic.metadata.refresh.interval.ms", "100")];
        task.plan.config = Arc::new(KafkaConfig {
            properties: refresh.into_iter().collect(),
            ..KafkaConfig::clone(&task.plan.config)
        });
        let mut session = Session::open(&task).unwrap();
        until(&mut session, Share::Assigned);
        let refusal = Response::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
        cluster.topic_error("t", refusal).unwrap();
        until(&mut session, Share::Refused);
        let late = Instant::now() + DEADLINE;
        while task.intake.is_assigned() {
            assert!(Instant::now() < late, "nothing is revoked");
            assert!(session.poll(TICK).is_continue());
        }
        assert_eq!(*task.share.borrow(), Share::Refused);
        ask(&mut session);
        assert_eq!(*task.share.borrow(), Share::Refused);
        assert!(session.unreadable.is_some());
        let granted = Response::RD_KAFKA_RESP_ERR_NO_ERROR;
        cluster.topic_error("t", granted).unwrap();
        ask(&mut session);
        assert!(session.unreadable.is_none());
        assert_eq!(*task.share.borrow(), Share::Waiting);
    }

    #[test]
    fn a_member_whose_share_is_empty_has_it_again_when_its_topic_is_permitted() {
        let cluster = cluster();
        let (task, _deliveries) = member(cluster.bootstrap_servers());
        let mut session = Session::open(&task).unwrap();
        let context = Arc::clone(session.client.context());
        let nothing = TopicPartitionList::new();
        let share = || *task.share.borrow();
        session.note_refusal(Code::TopicAuthorizationFailed);
        assert_eq!(share(), Share::Refused);
        // The other members have all partitions.
        context.post_rebalance(&session.client, &Rebalance::Assign(&nothing));
        assert_eq!(share(), Share::Refused);
        context.set_records_refused(false);
        assert_eq!(share(), Share::Assigned);
        context.post_rebalance(&session.client, &Rebalance::Revoke(&nothing));
        session.note_refusal(Code::TopicAuthorizationFailed);
        assert_eq!(share(), Share::Refused);
        context.set_records_refused(false);
        assert_eq!(share(), Share::Waiting);
    }

    #[test]
    fn a_partition_without_a_leader_does_not_hide_that_its_topic_may_be_read() {
        let cluster = Cluster::new(1).unwrap();
        cluster.create_topic("two", 2, 1).unwrap();
        cluster.partition_leader("two", 0, None).unwrap();
        let (task, _deliveries) = member(cluster.bootstrap_servers());
        let topics = [Topic::from_static("two")];
        may_read(&task.plan.config, &task.plan.pulse, &topics).unwrap();
    }

    #[test]
    fn a_member_whose_commits_are_refused_has_its_share_again_when_they_are_permitted() {
        let cluster = cluster();
        publish(&cluster);
        let refusals = [Response::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED; 1_000];
        cluster.request_errors(RDKafkaApiKey::OffsetCommit, &refusals);
        let (task, mut deliveries) = member(cluster.bootstrap_servers());
        let mut session = Session::open(&task).unwrap();
        let delivery = delivered(&mut session, &mut deliveries);
        assert_eq!(*task.share.borrow(), Share::Assigned);
        delivery.acknowledger.settle(Outcome::Settled).unwrap();
        session.store_positions();
        until(&mut session, Share::Refused);
        cluster.clear_request_errors(RDKafkaApiKey::OffsetCommit);
        until(&mut session, Share::Assigned);
    }

    /// The offset that the group `g` has committed in the topic `t`.
    fn committed(cluster: &Cluster) -> Offset {
        let other: BaseConsumer = ClientConfig::new()
            .set("bootstrap.servers", cluster.bootstrap_servers())
            .set("group.id", "g")
            .create()
            .unwrap();
        let mut partition = TopicPartitionList::new();
        partition.add_partition("t", 0);
        let late = Instant::now() + DEADLINE;
        loop {
            // A client that does not know the coordinator yet may miss the moment when it does.
            match other.committed_offsets(partition.clone(), COMMITTED_TIMEOUT) {
                Ok(committed) => return committed.elements()[0].offset(),
                Err(error) => assert!(Instant::now() < late, "{error}"),
            }
        }
    }

    #[test]
    fn a_refused_commit_of_a_topic_that_was_created_again_is_repeated() {
        let cluster = cluster();
        let (task, _deliveries) = member(cluster.bootstrap_servers());
        let mut session = Session::open(&task).unwrap();
        until(&mut session, Share::Assigned);
        let old = list([(Topic::from_static("t"), 0, 6)]).unwrap();
        session.client.commit(&old, CommitMode::Sync).unwrap();
        let lane = task.intake.lane("t", 0).unwrap();
        let (epoch, _) = task.intake.arrive(lane).unwrap();
        let admit = |offset| task.intake.admit(lane, epoch, offset, 1);
        let _admitted = [5, 0].map(admit);
        let refusal = Response::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED;
        cluster.request_errors(RDKafkaApiKey::OffsetCommit, &[refusal]);
        let late = Instant::now() + DEADLINE;
        session.store_positions();
        assert_eq!(committed(&cluster), Offset::Offset(6));
        while committed(&cluster) != Offset::Offset(0) {
            assert!(Instant::now() < late, "the commit is not repeated");
            assert!(session.poll(TICK).is_continue());
            session.store_positions();
        }
    }

    #[test]
    fn a_refused_commit_of_partitions_that_are_gone_does_not_count() {
        let cluster = cluster();
        let (task, _deliveries) = member(cluster.bootstrap_servers());
        let mut session = Session::open(&task).unwrap();
        until(&mut session, Share::Assigned);
        let partitions = session.client.assignment().unwrap();
        let refused = || Err(KafkaError::ConsumerCommit(Code::GroupAuthorizationFailed));
        let context = Arc::clone(session.client.context());
        context.commit_callback(refused(), &partitions);
        assert_eq!(*task.share.borrow(), Share::Refused);
        session.client.unsubscribe();
        until(&mut session, Share::Waiting);
        // The answer to the commit of the revocation.
        context.commit_callback(refused(), &partitions);
        assert!(!context.are_commits_refused());
    }

    #[test]
    fn a_revocation_does_not_wait_long_for_its_commit() {
        let cluster = cluster();
        publish(&cluster);
        let (task, mut deliveries) = member(cluster.bootstrap_servers());
        let mut session = Session::open(&task).unwrap();
        let delivery = delivered(&mut session, &mut deliveries);
        delivery.acknowledger.settle(Outcome::Settled).unwrap();
        // The coordinator answers after the deadline of this test.
        cluster.broker_round_trip_time(1, 4 * DEADLINE).unwrap();
        session.client.unsubscribe();
        let late = Instant::now() + DEADLINE;
        while task.intake.is_assigned() {
            assert!(Instant::now() < late, "nothing is revoked");
            assert!(session.poll(TICK).is_continue());
        }
        assert!(Instant::now() < late, "the revocation waits");
        // Closing the client would wait for the coordinator too.
        std::mem::forget(session);
    }
}
