//! The callbacks of a consumer: assigned and revoked partitions, failed commits. They run on the reading thread, inside
//! its poll.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use a2abus_plugin::Text;
use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::statistics::Statistics;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::error::is_outage;
use super::health::Events;
use super::intake::Intake;
use super::progress::{Ends, Progress};
use crate::message::Topic;
use crate::transport::{CloseDeadlines, Share};

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
}

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
        }
    }

    /// How long the member has waited for the next assignment; no time while it has one.
    pub(super) fn unassigned_for(&self) -> Duration {
        self.lock_unassigned()
            .map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Notes the ends of the paused partitions.
    pub(super) fn note_ends(&self, ends: Ends) {
        self.lock_progress().note_ends(ends);
    }

    fn lock_progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
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
        // A reader without a group is assigned nothing by a coordinator.
        if !self.group.is_empty() {
            self.share.send_replace(Share::Waiting);
        }
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
            let until = || match (self.leave.stop.is_cancelled(), self.leave.deadlines.get()) {
                (false, _) => deadline,
                (true, Some(deadlines)) => deadline.min(deadlines.settle),
                (true, None) => Instant::now(),
            };
            if !self.intake.wait_for_outcomes(lanes, until) {
                tracing::info!(
                    "messages of revoked partitions are still in progress and will be redelivered"
                );
            }
            self.commit(client, lanes);
        }
        self.intake.revoke(lanes);
    }

    fn commit(&self, client: &Client, lanes: &[u32]) {
        store(client, self.intake.take_moved());
        let positions = self.intake.positions(lanes);
        if positions.is_empty() {
            return;
        }
        let committed = list(positions).and_then(|list| client.commit(&list, CommitMode::Sync));
        if let Err(error) = committed {
            tracing::warn!(%error, "a Kafka commit failed; records may be redelivered");
        }
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        if !self.is_replaced() {
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
            let has_settled = |topic: &str, partition| self.intake.has_settled(topic, partition);
            lag.send_replace(progress.lag(&statistics, has_settled));
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
                tracing::info!(group = %self.group, partitions = lanes.len(), "Kafka partitions are assigned");
                self.intake.assign(&lanes);
            }
            Rebalance::Revoke(partitions) => self.revoke(client, &self.lanes(partitions)),
            Rebalance::Error(error) => tracing::warn!(%error, "a Kafka rebalance failed"),
        }
    }

    fn post_rebalance(&self, _: &Client, rebalance: &Rebalance<'_>) {
        if self.is_replaced() {
            return;
        }
        match rebalance {
            // An empty assignment is an assignment too: the other members have all partitions.
            Rebalance::Assign(_) => {
                self.share.send_replace(Share::Assigned);
                self.has_joined.store(true, Ordering::Release);
                *self.lock_unassigned() = None;
            }
            // An assignment follows, of all partitions that stay here.
            Rebalance::Revoke(_) => {
                // Partitions that stay here are read meanwhile.
                if !self.intake.is_assigned() {
                    self.share.send_replace(Share::Waiting);
                }
                *self.lock_unassigned() = Some(Instant::now());
            }
            Rebalance::Error(_) => {}
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, _: &TopicPartitionList) {
        if self.is_replaced() {
            return;
        }
        let is_last = self.closing.load(Ordering::Acquire);
        match result {
            Ok(()) | Err(KafkaError::ConsumerCommit(Code::NoOffset)) => {}
            // Stored offsets go with the next commit.
            Err(KafkaError::ConsumerCommit(code))
                if is_outage(code) || (is_old_generation(code) && !is_last) =>
            {
                tracing::debug!(%code, "a Kafka commit has to be repeated");
            }
            Err(error) => {
                tracing::warn!(%error, "a Kafka commit failed; records may be redelivered");
            }
        }
    }
}

/// Whether a commit failed only because the group is in a rebalance. If the partition stays here, its offset can be
/// committed afterwards; if another member gets it, the revocation commits it.
fn is_old_generation(code: Code) -> bool {
    matches!(code, Code::IllegalGeneration | Code::RebalanceInProgress)
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
