//! The end of a client: the subscription closes, or another client replaces it.

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use rdkafka::consumer::{CommitMode, Consumer as _};
use rdkafka::topic_partition_list::TopicPartitionListElem;

use super::super::rebalance::{Client, list, store};
use super::super::thread::spawn;
use super::{Session, TICK};
use crate::message::Topic;
use crate::transport::CloseDeadlines;

/// The timeout of a request for the committed offsets. During a rebalance the coordinator answers only when that is over.
pub(super) const COMMITTED_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a member that stops may wait for the assignment that it has asked for.
const LAST_WAIT: Duration = Duration::from_secs(2);
/// How long a client may take to leave its group during a rebalance. The coordinator gets the request at once and answers
/// it after the rebalance.
const LEAVE: Duration = Duration::from_secs(1);
/// Clients of one subscription that may be closing while another one has replaced them. Some that have lost their
/// coordinator never close.
const MAX_REPLACED: usize = 32;

// === impl Session ===

impl Session<'_> {
    /// Ends a client that another one replaces. A client without its coordinator may take minutes to close, so neither the
    /// new one nor the end of the process waits for it, unless there are many.
    pub(super) fn replace(self) {
        let Self { task, client, .. } = self;
        client.context().replace();
        let open = Arc::strong_count(&task.replaced) - 1;
        if open > 0 {
            tracing::warn!(reads = %task.plan.source, clients = open, "Kafka clients that were replaced are not closed yet; a restart of the process ends them");
        }
        if open >= MAX_REPLACED {
            return drop(client);
        }
        close_apart(client, Arc::clone(&task.replaced));
    }

    /// Waits for outstanding deliveries until the caller's deadline, then leaves the group.
    pub(super) fn close(mut self) {
        self.backlog.clear();
        self.pause();
        let deadlines = self.task.leave.deadlines.get().copied();
        if let Some(CloseDeadlines { settle, .. }) = deadlines {
            while !self.task.intake.wait_for_all(settle) && Instant::now() < settle {
                // A record that comes in spite of the pause is ignored; it is delivered again.
                drop(self.client.poll(Duration::ZERO));
                self.store_positions();
            }
        }
        if let Some(CloseDeadlines { commit, .. }) = deadlines.filter(|_| self.is_member()) {
            self.commit(commit);
        }
        self.client.context().close();
        self.store_positions();
        let now = Instant::now();
        let until = deadlines.map_or(now, |deadlines| deadlines.commit.min(now + LAST_WAIT));
        let is_waiting = self.is_member() && self.leave_without_partitions(until);
        tracing::debug!(
            stale_verdicts = self.task.intake.stale(),
            "the Kafka subscription closes"
        );
        // Closing a client revokes its partitions, commits what is stored, and leaves the group.
        if is_waiting {
            self.leave_during_rebalance();
        }
    }

    /// Leaves a group that has not assigned this member its partitions yet. The coordinator removes the member when the
    /// rebalance ends, which nobody waits for here: it may wait for a member that is dead.
    fn leave_during_rebalance(self) {
        tracing::info!(reads = %self.task.plan.source, "this member leaves its group, which is in a rebalance");
        let (closing, closed) = std::sync::mpsc::channel::<()>();
        close_apart(self.client, closing);
        // Nothing is ever sent: the channel is disconnected when the client is closed.
        if closed.recv_timeout(LEAVE) == Err(RecvTimeoutError::Timeout) {
            tracing::debug!("the coordinator has not answered yet that the member has left");
        }
    }

    /// Waits for the assignment that the member has asked for, and leaves the group if there are no partitions in it. When
    /// such a client is closed, librdkafka does not leave, and the next rebalance waits until the session ends. Source:
    /// librdkafka 2.12, `rd_kafka_cgrp_revoke_all_rejoin`.
    ///
    /// Returns whether the member still waits.
    pub(super) fn leave_without_partitions(&mut self, until: Instant) -> bool {
        while self.is_without_partitions(Duration::ZERO)
            && self.cluster_answers()
            && Instant::now() < until
            && self.poll(TICK).is_continue()
        {}
        if self.client.context().unassigned_for() > Duration::ZERO {
            return true;
        }
        let assigned = self.client.assignment();
        // A static member keeps its place, so that the process can return to it.
        if self.task.plan.config.instance_id.is_none()
            && assigned.is_ok_and(|partitions| partitions.count() == 0)
        {
            self.client.unsubscribe();
        }
        false
    }

    /// Commits what is settled while the member can still take part in a rebalance. Without this, the commit of a
    /// closing client that meets a rebalance is refused, and its records are delivered again. Source: KIP-429.
    fn commit(&self, until: Instant) {
        loop {
            // A rebalance may have discarded positions that were stored before.
            let settled = self.task.intake.settled_positions();
            store(&self.client, settled.clone());
            if settled.is_empty() || (self.cluster_answers() && self.is_committed(settled, until)) {
                return;
            }
            if Instant::now() >= until || !self.cluster_answers() {
                return tracing::warn!(
                    "the last Kafka commit is not confirmed; records may be redelivered"
                );
            }
            drop(self.client.poll(TICK));
        }
    }

    fn cluster_answers(&self) -> bool {
        self.task.plan.pulse.answers_for() > Duration::ZERO
    }

    /// Commits the stored positions, and returns whether the group has these positions. There is no callback for this
    /// commit, so the coordinator is asked.
    fn is_committed(&self, settled: Vec<(Topic, i32, i64)>, until: Instant) -> bool {
        let timeout = COMMITTED_TIMEOUT.min(until.saturating_duration_since(Instant::now()));
        // By name, for the reason in `commit_again`.
        let committed = list(settled)
            .and_then(|settled| {
                self.client.commit(&settled, CommitMode::Async)?;
                Ok(settled)
            })
            .and_then(|settled| {
                let committed = self.client.committed_offsets(settled.clone(), timeout)?;
                let is_behind = |at: &TopicPartitionListElem<'_>| {
                    let found = committed.find_partition(at.topic(), at.partition());
                    found.and_then(|found| found.offset().to_raw()) < at.offset().to_raw()
                };
                Ok(!settled.elements().iter().any(is_behind))
            });
        committed.unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot tell yet whether the last Kafka commit succeeded");
            false
        })
    }
}

/// Closes a client in a thread of its own, which holds a value until then.
fn close_apart(client: Client, held: impl Send + 'static) {
    let closing = spawn("a2abus-kafka-end", move || {
        drop(client);
        drop(held);
    });
    if let Err(error) = closing {
        tracing::warn!(%error, "no thread for closing a Kafka client: its reader closed it");
    }
}
