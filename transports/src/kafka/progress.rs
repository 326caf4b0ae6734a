//! How far a consumer has read, from the statistics of librdkafka.
//!
//! ```text
//! offsets of a partition   stored ──── application ──── next to fetch ──── last stable ──── end
//!                              in progress      prefetched          control records    open transactions
//! ```
//!
//! A consumer reads up to the last stable offset: the first record of a transaction that is still open, and nothing
//! after it. Source: librdkafka, STATISTICS.md; KIP-98.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rdkafka::statistics::{Partition, Statistics};

/// How long a transaction must keep a partition from being read before it is logged.
const OPEN_TOO_LONG: Duration = Duration::from_secs(10);

/// The last stable offsets of the partitions that are not read to their end.
#[derive(Debug, Default)]
pub(super) struct StableOffsets(HashMap<(String, i32), Blocked>);

#[derive(Debug)]
struct Blocked {
    at: i64,
    since: Instant,
    is_logged: bool,
}

// === impl StableOffsets ===

impl StableOffsets {
    /// Logs each open transaction that keeps a partition from being read for longer than [`OPEN_TOO_LONG`].
    pub(super) fn check(&mut self, statistics: &Statistics, now: Instant) {
        let mut before = std::mem::take(&mut self.0);
        for (topic, partition) in partitions(statistics) {
            let at = partition.ls_offset;
            if at < 0 || partition.next_offset < at || partition.hi_offset <= at {
                continue;
            }
            let key = (topic.to_owned(), partition.partition);
            let known = before.remove(&key).filter(|blocked| blocked.at == at);
            let mut blocked = known.unwrap_or(Blocked {
                at,
                since: now,
                is_logged: false,
            });
            if !blocked.is_logged && now.duration_since(blocked.since) >= OPEN_TOO_LONG {
                blocked.is_logged = true;
                tracing::warn!(
                    topic,
                    partition = partition.partition,
                    offset = at,
                    records = partition.hi_offset - at,
                    "a producer has left a Kafka transaction open: the records after it are not read until it ends, at the latest after the producer's transaction.timeout.ms"
                );
            }
            self.0.insert(key, blocked);
        }
    }
}

/// The number of records that are not settled yet, in all partitions where it is known.
pub(super) fn lag_of(statistics: &Statistics) -> Option<u64> {
    let lags = partitions(statistics).filter_map(|(_, partition)| lag(partition));
    lags.fold(None, |sum, lag| Some(sum.unwrap_or(0) + lag))
}

fn lag(partition: &Partition) -> Option<u64> {
    // Everything that was fetched is settled: what follows the last record may be control records, which have offsets
    // and are never delivered.
    let is_settled = partition.fetchq_cnt == 0 && partition.app_offset == partition.stored_offset;
    let position = match is_settled {
        true => partition.next_offset,
        false => partition.stored_offset.max(partition.committed_offset),
    };
    let is_known = partition.hi_offset >= 0 && position >= 0;
    let lag = is_known.then(|| partition.hi_offset - position);
    u64::try_from(lag?.max(0)).ok()
}

fn partitions(statistics: &Statistics) -> impl Iterator<Item = (&str, &Partition)> {
    let topics = statistics.topics.values();
    topics.flat_map(|topic| {
        let partitions = topic.partitions.values();
        partitions.map(|partition| (topic.topic.as_str(), partition))
    })
}

#[cfg(test)]
mod tests {
    use rdkafka::statistics::Topic;

    use super::*;

    /// One partition with these offsets: stored, application, next, last stable, end.
    fn statistics(offsets: [i64; 5], prefetched: i64) -> Statistics {
        let [stored_offset, app_offset, next_offset, ls_offset, hi_offset] = offsets;
        let partition = Partition {
            stored_offset,
            app_offset,
            next_offset,
            ls_offset,
            hi_offset,
            committed_offset: stored_offset,
            fetchq_cnt: prefetched,
            ..Partition::default()
        };
        let topic = Topic {
            topic: "orders".to_owned(),
            partitions: HashMap::from([(0, partition)]),
            ..Topic::default()
        };
        Statistics {
            topics: HashMap::from([("orders".to_owned(), topic)]),
            ..Statistics::default()
        }
    }

    #[test]
    fn control_records_at_the_end_are_no_lag() {
        assert_eq!(lag_of(&statistics([246, 246, 247, 247, 247], 0)), Some(0));
        // Only aborted records since the start: nothing was delivered.
        assert_eq!(lag_of(&statistics([-1001, -1001, 52, 52, 52], 0)), Some(0));
    }

    #[test]
    fn records_in_progress_or_prefetched_are_lag() {
        assert_eq!(lag_of(&statistics([240, 246, 247, 247, 247], 0)), Some(7));
        assert_eq!(lag_of(&statistics([240, 240, 247, 247, 247], 6)), Some(7));
        assert_eq!(
            lag_of(&statistics([-1001, -1001, -1001, -1001, -1001], 0)),
            None
        );
    }

    #[test]
    fn records_behind_an_open_transaction_are_lag() {
        assert_eq!(lag_of(&statistics([100, 100, 100, 100, 201], 0)), Some(101));
    }

    #[test]
    fn a_transaction_that_stays_open_is_found() {
        let (mut stable, start) = (StableOffsets::default(), Instant::now());
        let mut at = |statistics, seconds| {
            stable.check(&statistics, start + Duration::from_secs(seconds));
            let mut blocked = stable.0.values();
            blocked.next().map(|blocked| blocked.is_logged)
        };
        assert_eq!(at(statistics([100, 100, 100, 100, 201], 0), 0), Some(false));
        // Another one.
        assert_eq!(at(statistics([150, 150, 150, 150, 201], 0), 9), Some(false));
        assert_eq!(
            at(statistics([150, 150, 150, 150, 300], 0), 18),
            Some(false)
        );
        assert_eq!(at(statistics([150, 150, 150, 150, 300], 0), 20), Some(true));
        // Not read so far yet: the records before it come first.
        assert_eq!(at(statistics([150, 150, 160, 170, 300], 0), 25), None);
        assert_eq!(at(statistics([301, 301, 301, 301, 301], 0), 30), None);
    }
}
