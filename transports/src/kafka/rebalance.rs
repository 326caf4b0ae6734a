//! The callbacks of a consumer: assigned and revoked partitions, failed commits. They run on the reading thread, inside
//! its poll.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use a2abus_plugin::Text;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::statistics::Statistics;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList, TopicPartitionListElem};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::error::{GRANT, LOG_AGAIN, is_outage, kind};
use super::health::Events;
use super::intake::Intake;
use super::progress::{Ends, Progress};
use crate::error::TransportErrorKind;
use crate::message::Topic;
use crate::transport::{CloseDeadlines, Share};

/// The timeout of a request for the committed offsets. While a member joins its group, the coordinator answers only
/// when the rebalance is over.
pub(super) const COMMITTED_TIMEOUT: Duration = Duration::from_secs(5);

/// A librdkafka consumer.
pub(super) type Client = BaseConsumer<Context>;

/// Serves the callbacks of a client.
pub(super) struct Context {
    events: Events,
    intake: Arc<Intake>,
    leave: EndSignal,
    /// The group, for the log; empty for a reader without one.
    group: Text,
    /// The share of the member.
    share: watch::Sender<Share>,
    /// How long a revocation may wait for outstanding deliveries.
    max_wait: Duration,
    /// Receives the number of records behind the stored offsets.
    lag: Option<watch::Sender<Option<u64>>>,
    /// How far the client has read.
    progress: Mutex<Progress>,
    /// The client is being closed: no outstanding delivery can settle any more.
    closing: AtomicBool,
    /// Another client has replaced this one: the partitions are no longer its own.
    is_replaced: AtomicBool,
    /// The member has had an assignment, which may have been empty.
    has_joined: AtomicBool,
    /// Since when the member waits for the next assignment; `None` while it has one.
    unassigned_since: Mutex<Option<Instant>>,
    refusals: Mutex<Refusals>,
    resets: Mutex<Resets>,
    /// The last commit error in the log, and when.
    commit_error: Mutex<Option<(Code, Instant)>>,
}

/// What the cluster refuses to a reader: its topics, or commits of the partitions that it has.
#[derive(Debug, Default)]
struct Refusals {
    records: bool,
    commits: bool,
}

/// Positions that the broker did not have, by topic and partition, until the first record after them is read.
type Resets = HashMap<(String, i32), i64>;

/// The signal that ends a subscription.
#[derive(Debug, Clone, Default)]
pub(super) struct EndSignal {
    /// Cancelled when the subscription must end.
    pub(super) stop: CancellationToken,
    /// Set before that, if outstanding deliveries may still settle.
    pub(super) deadlines: Arc<OnceLock<CloseDeadlines>>,
}

// === impl Context ===

impl Context {
    pub(super) fn new(
        events: Events,
        intake: Arc<Intake>,
        leave: EndSignal,
        (group, share): (Text, watch::Sender<Share>),
        max_wait: Duration,
        lag: Option<watch::Sender<Option<u64>>>,
    ) -> Self {
        Self {
            events,
            intake,
            leave,
            group,
            share,
            max_wait,
            lag,
            progress: Mutex::default(),
            closing: AtomicBool::new(false),
            is_replaced: AtomicBool::new(false),
            has_joined: AtomicBool::new(false),
            unassigned_since: Mutex::new(Some(Instant::now())),
            refusals: Mutex::default(),
            resets: Mutex::default(),
            commit_error: Mutex::default(),
        }
    }

    /// How long the member has waited for the next assignment; no time while it has one.
    pub(super) fn unassigned_for(&self) -> Duration {
        self.lock_unassigned()
            .map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// The wait for the next assignment begins again: there was nothing to wait for.
    pub(super) fn wait_anew(&self) {
        if let Some(since) = &mut *self.lock_unassigned() {
            *since = Instant::now();
        }
    }

    /// If this is the offset of the first record after a position that the broker did not have: that position.
    pub(super) fn take_reset(&self, topic: &str, partition: i32, offset: i64) -> Option<i64> {
        let mut resets = self.lock_resets();
        if resets.is_empty() {
            return None;
        }
        let key = (topic.to_owned(), partition);
        // Records before it were fetched earlier.
        let position = resets.get(&key).copied().filter(|at| offset >= *at)?;
        resets.remove(&key);
        (offset > position).then_some(position)
    }

    /// Forgets a position that the broker did not have: it was one of an earlier assignment, or of a deleted topic.
    pub(super) fn forget_reset(&self, topic: &str, partition: i32) {
        self.lock_resets().remove(&(topic.to_owned(), partition));
    }

    fn lock_resets(&self) -> MutexGuard<'_, Resets> {
        self.resets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the ends of the paused partitions.
    pub(super) fn note_ends(&self, ends: Ends) {
        self.lock_progress().note_ends(ends);
    }

    fn lock_progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes whether the cluster refuses topics.
    pub(super) fn set_records_refused(&self, is_refused: bool) {
        self.note_refusal(|refusals| refusals.records = is_refused);
        if !is_refused && !self.intake.is_assigned() {
            // An empty share counts as assigned too: this member may never get another one.
            let share = match self.lock_unassigned().is_none() {
                true => Share::Assigned,
                false => Share::Waiting,
            };
            self.share.send_if_modified(|shown| {
                let was_refused = *shown == Share::Refused;
                if was_refused {
                    *shown = share;
                }
                was_refused
            });
        }
    }

    fn note_refusal(&self, change: impl FnOnce(&mut Refusals)) {
        let mut refusals = self.lock_refusals();
        change(&mut refusals);
        let share = refusals.share();
        drop(refusals);
        // A reader without partitions waits for them, whatever was refused before.
        let is_news = self.intake.is_assigned()
            && self
                .share
                .send_if_modified(|shown| std::mem::replace(shown, share) != share);
        if is_news && share == Share::Assigned {
            tracing::info!(group = %self.group, "the Kafka cluster now grants the permissions that it had denied");
        }
    }

    /// Whether the cluster refuses commits, which the log then says.
    pub(super) fn are_commits_refused(&self) -> bool {
        self.lock_refusals().commits
    }

    fn lock_refusals(&self) -> MutexGuard<'_, Refusals> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs a failed commit once, and again when its cause changes or persists: librdkafka repeats it every second.
    fn note_failed_commit(&self, error: &KafkaError, partitions: &TopicPartitionList) {
        let group = &self.group;
        let Some(code) = error.rdkafka_error_code() else {
            return tracing::warn!(%group, %error, "a Kafka commit failed; records may be redelivered");
        };
        let is_refused = kind(code) == TransportErrorKind::Unauthorised;
        // Partitions that are gone are not committed again, so nothing would show that the refusal is over.
        if is_refused && self.intake.is_any_assigned(&self.lanes(partitions)) {
            self.note_refusal(|refusals| refusals.commits = true);
        }
        let mut logged = self
            .commit_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if logged.is_some_and(|(last, at)| last == code && at.elapsed() < LOG_AGAIN) {
            return tracing::debug!(%group, %error, "a Kafka commit failed; records may be redelivered");
        }
        *logged = Some((code, Instant::now()));
        drop(logged);
        if is_refused {
            tracing::error!(%group, %error, fix = GRANT, "the Kafka cluster refuses the commits of the group; records will be redelivered");
        } else {
            tracing::warn!(%group, %error, "a Kafka commit failed; records may be redelivered");
        }
    }

    /// Whether the member has had an assignment.
    pub(super) fn has_joined(&self) -> bool {
        self.has_joined.load(Ordering::Acquire)
    }

    /// From now on nothing waits for deliveries or for the coordinator.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// From now on the callbacks of this client change nothing: another client reads the partitions.
    pub(super) fn replace(&self) {
        self.is_replaced.store(true, Ordering::Release);
        self.close();
        // A reader without a group is assigned nothing by a coordinator: it has its partitions at once.
        self.share.send_replace(match self.group.is_empty() {
            true => Share::Assigned,
            false => Share::Waiting,
        });
    }

    fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Acquire)
    }

    fn lock_unassigned(&self) -> MutexGuard<'_, Option<Instant>> {
        self.unassigned_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn lanes(&self, partitions: &TopicPartitionList) -> Vec<u32> {
        partitions
            .elements()
            .iter()
            .filter_map(|element| self.intake.lane(element.topic(), element.partition()))
            .collect()
    }

    /// Gives partitions up: outstanding deliveries may settle first, and settled offsets are committed.
    fn revoke(&self, client: &Client, lanes: &[u32]) {
        if client.assignment_lost() {
            // The partitions already belong to another member, whose commits ours would overwrite.
            tracing::warn!(group = %self.group, partitions = lanes.len(), "Kafka partitions were lost without a revocation: their unsettled messages are redelivered");
        } else if self.closing.load(Ordering::Acquire) {
            // Closing commits stored offsets, and does not wait for an unavailable coordinator.
            store(client, self.intake.take_moved());
        } else {
            tracing::info!(group = %self.group, partitions = lanes.len(), "Kafka partitions are revoked");
            let deadline = Instant::now() + self.max_wait;
            let until = || self.limited(deadline, |deadlines| deadlines.settle);
            if !self.intake.wait_for_outcomes(lanes, until) {
                tracing::info!(
                    "messages of revoked partitions are still in progress and will be redelivered"
                );
            }
            self.commit(client, lanes);
        }
        self.intake.revoke(lanes);
    }

    /// A deadline; an earlier one when the subscription is being closed.
    fn limited(&self, deadline: Instant, last: impl Fn(&CloseDeadlines) -> Instant) -> Instant {
        match (self.leave.stop.is_cancelled(), self.leave.deadlines.get()) {
            (false, _) => deadline,
            (true, Some(deadlines)) => deadline.min(last(deadlines)),
            (true, None) => Instant::now(),
        }
    }

    /// Commits before the partitions are given up. Without waiting for the answer, the next owner could read the
    /// earlier offsets. A synchronous commit would wait without a deadline.
    fn commit(&self, client: &Client, lanes: &[u32]) {
        store(client, self.intake.take_moved());
        let positions = self.intake.positions(lanes);
        if positions.is_empty() {
            return;
        }
        let until = self.limited(Instant::now() + COMMITTED_TIMEOUT, |deadlines| {
            deadlines.commit
        });
        if !is_committed(client, positions, until) && !self.are_commits_refused() {
            tracing::warn!(group = %self.group, "the Kafka commit of revoked partitions is not confirmed; records may be redelivered");
        }
    }
}

// === impl Refusals ===

impl Refusals {
    /// The share of a reader that has partitions.
    fn share(&self) -> Share {
        match self.records || self.commits {
            true => Share::Refused,
            false => Share::Assigned,
        }
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        if !self.is_replaced() {
            if facility == "OFFSET"
                && let Some((topic, partition, position)) = reset(message)
            {
                let key = (topic.to_owned(), partition);
                self.lock_resets().entry(key).or_insert(position);
            }
            self.events.log(level, facility, message);
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if !self.is_replaced() {
            self.events.error(error, reason);
        }
    }

    fn stats(&self, statistics: Statistics) {
        if self.is_replaced() {
            return;
        }
        let mut progress = self.lock_progress();
        progress.find_open_transactions(&statistics, Instant::now());
        if let Some(lag) = &self.lag {
            let unsettled = |topic: &str, partition| self.intake.unsettled(topic, partition);
            lag.send_replace(progress.lag(&statistics, unsettled));
        }
    }
}

impl ConsumerContext for Context {
    fn pre_rebalance(&self, client: &Client, rebalance: &Rebalance<'_>) {
        if self.is_replaced() {
            return;
        }
        match rebalance {
            Rebalance::Assign(partitions) => {
                let lanes = self.lanes(partitions);
                // With cooperative-sticky they are the new ones only: usually none.
                if lanes.is_empty() {
                    tracing::debug!(group = %self.group, "no further Kafka partitions are assigned");
                } else {
                    tracing::info!(group = %self.group, partitions = lanes.len(), "Kafka partitions are assigned");
                }
                // Another member may have read what follows since.
                for of in partitions.elements() {
                    self.forget_reset(of.topic(), of.partition());
                }
                self.intake.assign(&lanes);
            }
            Rebalance::Revoke(partitions) => self.revoke(client, &self.lanes(partitions)),
            // `BaseConsumer` calls back only for the others.
            Rebalance::Error(_) => {}
        }
    }

    fn post_rebalance(&self, _: &Client, rebalance: &Rebalance<'_>) {
        if self.is_replaced() {
            return;
        }
        match rebalance {
            // An empty assignment is an assignment too: the other members have all partitions.
            Rebalance::Assign(_) => {
                let share = self.lock_refusals().share();
                self.share.send_replace(share);
                self.has_joined.store(true, Ordering::Release);
                *self.lock_unassigned() = None;
            }
            // The coordinator assigns again. With cooperative-sticky the callback then names the new partitions only.
            Rebalance::Revoke(_) => {
                let mut refusals = self.lock_refusals();
                // What could not be committed may have been in partitions that are gone, so it may not be tried again.
                refusals.commits = false;
                let share = match refusals.records {
                    // The refusal may be the reason why the partitions are gone.
                    true => Share::Refused,
                    false => Share::Waiting,
                };
                drop(refusals);
                // Partitions that stay here are read meanwhile.
                if !self.intake.is_assigned() {
                    self.share.send_replace(share);
                }
                *self.lock_unassigned() = Some(Instant::now());
            }
            Rebalance::Error(_) => {}
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, partitions: &TopicPartitionList) {
        if self.is_replaced() {
            return;
        }
        let is_last = self.closing.load(Ordering::Acquire);
        match result {
            Ok(()) => {
                self.note_refusal(|refusals| refusals.commits = false);
                for of in partitions.elements() {
                    // A partition without a number had nothing to commit.
                    if let (Ok(()), Offset::Offset(offset)) = (of.error(), of.offset()) {
                        self.intake.committed(of.topic(), of.partition(), offset);
                    }
                }
            }
            // There was nothing to commit.
            Err(KafkaError::ConsumerCommit(Code::NoOffset)) => {}
            // Stored offsets go with the next commit, if they are above the last one. For the others, see
            // `Session::commit_again`.
            Err(KafkaError::ConsumerCommit(code))
                if is_outage(code) || (is_old_generation(code) && !is_last) =>
            {
                tracing::debug!(%code, "a Kafka commit has to be repeated");
            }
            Err(error) => self.note_failed_commit(&error, partitions),
        }
    }
}

/// The topic, the partition, and the position that the broker did not have, in the only report of that: a line such as
/// `[thrd:main]: t [0]: offset reset (at offset 10 (leader epoch 0), broker 1) to offset BEGINNING …`. Source:
/// librdkafka 2.12, `rd_kafka_offset_reset`.
fn reset(message: &str) -> Option<(&str, i32, i64)> {
    let (place, at) = message.split_once("]: offset reset (at offset ")?;
    let (topic, partition) = place.rsplit_once(" [")?;
    let topic = topic.rsplit(' ').next()?;
    let position = at.split(' ').next()?.parse().ok()?;
    Some((topic, partition.parse().ok()?, position))
}

/// Whether a commit failed only because the group is in a rebalance. If the partition stays here, its offset can be
/// committed afterwards; if another member gets it, the revocation commits it.
fn is_old_generation(code: Code) -> bool {
    matches!(code, Code::IllegalGeneration | Code::RebalanceInProgress)
}

/// Commits these positions, and returns whether the group has them before the deadline. The commit of a client that
/// closes has no callback, and one during a callback gets it too late, so the coordinator is asked.
pub(super) fn is_committed(
    client: &Client,
    settled: Vec<(Topic, i32, i64)>,
    until: Instant,
) -> bool {
    let timeout = COMMITTED_TIMEOUT.min(until.saturating_duration_since(Instant::now()));
    // By name, for the reason in `commit_again`.
    let committed = list(settled)
        .and_then(|settled| {
            client.commit(&settled, CommitMode::Async)?;
            Ok(settled)
        })
        .and_then(|settled| {
            let committed = client.committed_offsets(settled.clone(), timeout)?;
            let is_behind = |at: &TopicPartitionListElem<'_>| {
                let found = committed.find_partition(at.topic(), at.partition());
                found.and_then(|found| found.offset().to_raw()) < at.offset().to_raw()
            };
            Ok(!settled.elements().iter().any(is_behind))
        });
    committed.unwrap_or_else(|error| {
        tracing::debug!(%error, "cannot tell yet whether a Kafka commit succeeded");
        false
    })
}

/// Stores positions for the next commit.
pub(super) fn store(client: &Client, positions: Vec<(Topic, i32, i64)>) {
    if positions.is_empty() {
        return;
    }
    if let Err(error) = list(positions).and_then(|list| client.store_offsets(&list)) {
        tracing::debug!(%error, "positions could not be stored; their records may be redelivered");
    }
}

pub(super) fn list(
    positions: impl IntoIterator<Item = (Topic, i32, i64)>,
) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::new();
    for (topic, partition, offset) in positions {
        list.add_partition_offset(topic.as_str(), partition, Offset::Offset(offset))?;
    }
    Ok(list)
}
