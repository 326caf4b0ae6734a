//! The end of a client: the subscription closes, or another client replaces it.

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer as _;

use super::super::rebalance::{is_committed, store};
use super::super::thread::{close_apart, close_replaced};
use super::{Session, TICK};
use crate::transport::CloseDeadlines;

/// How long a member that stops may wait for its first assignment. A new group needs about 3 s
/// (`group.initial.rebalance.delay.ms`).
const FIRST_WAIT: Duration = Duration::from_secs(5);
/// How long the close of a client that waits for its assignment is awaited. The coordinator gets the request to leave at
/// once, and answers it after the rebalance.
const LEAVE: Duration = Duration::from_secs(1);

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
        close_replaced(client, &task.replaced);
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
        let until = deadlines.map_or_else(Instant::now, |deadlines| deadlines.commit);
        let is_waiting = self.is_member() && self.leave_without_partitions(until);
        tracing::debug!(
            stale_verdicts = self.task.intake.stale(),
            "the Kafka subscription closes"
        );
        // Closing a client revokes its partitions, commits what is stored, and leaves the group.
        if is_waiting {
            let end = deadlines.map_or_else(Instant::now, |deadlines| deadlines.end);
            self.end_without_assignment(end);
        }
    }

    /// Ends a client that waits for its assignment. If the coordinator answers, it removes the member when the rebalance
    /// ends. The rebalance may be waiting for a dead member, so this does not wait for it to end.
    fn end_without_assignment(self, end: Instant) {
        let is_static = self.task.plan.config.instance_id.is_some();
        tracing::info!(reads = %self.task.plan.source, is_static, "closing a Kafka client that waits for its partitions");
        let (closing, closed) = std::sync::mpsc::channel::<()>();
        close_apart(self.client, closing);
        // Nothing is ever sent: the channel is disconnected when the client is closed.
        let left = LEAVE.min(end.saturating_duration_since(Instant::now()));
        if closed.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            tracing::debug!("the coordinator has not answered yet that the member has left");
        }
    }

    /// Waits for the assignment that the member has asked for, and leaves the group if there are no partitions in it. When
    /// such a client is closed, librdkafka does not leave, and the next rebalance waits until the session ends. Source:
    /// librdkafka 2.12, `rd_kafka_cgrp_revoke_all_rejoin`.
    ///
    /// A member that has never had an assignment leaves when it is closed, so it waits only for a short time. One that
    /// joins again does not. If it is still waiting at `until`, it stays in the group until its session ends.
    ///
    /// Returns whether the member still waits.
    pub(super) fn leave_without_partitions(&mut self, until: Instant) -> bool {
        // A static member keeps its place, so that the process can return to it.
        let is_static = self.task.plan.config.instance_id.is_some();
        let until = match self.client.context().has_joined() {
            _ if is_static => Instant::now(),
            true => until,
            false => until.min(Instant::now() + FIRST_WAIT),
        };
        while self.is_without_partitions(Duration::ZERO)
            && self.cluster_answers()
            && Instant::now() < until
            && self.poll(TICK).is_continue()
        {}
        if self.client.context().unassigned_for() > Duration::ZERO {
            return true;
        }
        let assigned = self.client.assignment();
        if !is_static && assigned.is_ok_and(|partitions| partitions.count() == 0) {
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
            if settled.is_empty()
                || (self.cluster_answers() && is_committed(&self.client, settled, until))
            {
                return;
            }
            if Instant::now() >= until || !self.cluster_answers() {
                return tracing::warn!(
                    "the last Kafka commit is not confirmed; records may be redelivered"
                );
            }
            drop(self.client.poll(TICK));
            // The callback has logged it.
            if self.client.context().are_commits_refused() {
                return;
            }
        }
    }

    fn cluster_answers(&self) -> bool {
        self.task.plan.pulse.answers_for() > Duration::ZERO
    }
}
