//! Positions: what a client commits, what was removed before it was read, and the ends of paused partitions.

use std::time::{Duration, Instant};

use rdkafka::consumer::{CommitMode, Consumer as _};
use rdkafka::error::KafkaResult;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use super::super::error::{KEEP, LOG_AGAIN};
use super::super::progress::Ends;
use super::super::rebalance::{Client, list, store};
use super::received::Received;
use super::{COMMIT_AGAIN, Session};
use crate::transport::LAG_INTERVAL;

/// The timeout of a request for offsets by the reading thread.
const OFFSET_TIMEOUT: Duration = Duration::from_secs(1);

// === impl Session ===

impl Session<'_> {
    /// Warns of records before this one that were removed from the source before they were read, and counts them.
    pub(super) fn find_removed(&mut self, next: &Received, is_first: bool) {
        let (topic, partition, offset) = (next.topic.as_str(), next.partition, next.offset);
        let reset_from = self.client.context().take_reset(topic, partition, offset);
        if reset_from.is_none() && !(is_first && self.is_member()) {
            return;
        }
        let may_ask = offset > 0 && Instant::now() >= self.check_gaps_at;
        let gap = reset_from.map_or(0, |from| offset - from);
        let removed = match reset_from {
            Some(from) if may_ask => {
                removed_between(&self.client, (topic, partition), from, offset)
            }
            None if may_ask => lost_records(&self.client, topic, partition, offset),
            // If nobody says where the log starts now: the broker did not have the record at that position.
            _ => Ok(gap),
        };
        let removed = removed.unwrap_or_else(|error| {
            tracing::debug!(%error, "cannot tell how many records were removed unread");
            // Each question blocks the thread, so do not ask for every partition while nobody answers.
            self.check_gaps_at = Instant::now() + LOG_AGAIN;
            gap
        });
        if let Ok(records @ 1..) = u64::try_from(removed) {
            if self.is_member() {
                // Otherwise the next assignment finds the same gap, if nothing after it is settled by then.
                store(&self.client, vec![(next.topic.clone(), partition, offset)]);
            }
            self.task.removed.send_modify(|all| *all += records);
            tracing::warn!(
                reads = %self.task.plan.source, topic, partition, records, fix = KEEP,
                "records were removed from the source before they were read: they are lost"
            );
        }
    }

    /// Stores positions that moved, for the next commit.
    pub(super) fn store_positions(&mut self) {
        store(&self.client, self.task.intake.take_moved());
        for (topic, partition, position) in self.task.intake.take_restarted() {
            let context = self.client.context();
            context.forget_reset(topic.as_str(), partition);
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

    /// Commits positions on topics that were created again. Of stored positions, librdkafka commits only those above
    /// the last commit, which may be of the old topic. Source: librdkafka 2.12,
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
    pub(super) fn measure_paused(&mut self) {
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
}

/// How many records between the committed offset and the first received one no longer exist.
fn lost_records(client: &Client, topic: &str, partition: i32, first: i64) -> KafkaResult<i64> {
    let mut question = TopicPartitionList::with_capacity(1);
    question.add_partition(topic, partition);
    let answer = client.committed_offsets(question, OFFSET_TIMEOUT)?;
    let committed = answer.find_partition(topic, partition).map(|p| p.offset());
    match committed {
        Some(Offset::Offset(committed)) if committed < first => {
            removed_between(client, (topic, partition), committed, first)
        }
        _ => Ok(0),
    }
}

/// How many records between a position and the next received record no longer exist.
fn removed_between(
    client: &Client,
    (topic, partition): (&str, i32),
    position: i64,
    next: i64,
) -> KafkaResult<i64> {
    // Compaction and transactions leave gaps without loss. Deletion moves the low watermark.
    let (low, _) = client.fetch_watermarks(topic, partition, OFFSET_TIMEOUT)?;
    Ok((low.min(next) - position).max(0))
}

fn ends_of(list: &TopicPartitionList) -> Ends {
    let elements = list.elements();
    let ends = elements.iter().filter_map(|it| match it.offset() {
        Offset::Offset(end) => Some(((it.topic().to_owned(), it.partition()), end)),
        _ => None,
    });
    ends.collect()
}
