//! How far a consumer has read, from the statistics of librdkafka.
//!
//! ```text
//! offsets of a partition   stored ──── application ──── next to fetch ──── last stable ──── end
//!                              in progress      prefetched          control records    open transactions
//! ```
//!
//! A consumer reads up to the last stable offset: the first record of a transaction that is still open, and nothing
//! after it. Source: librdkafka, statistics; KIP-98.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use rdkafka::statistics::{Broker, Partition, Statistics};

/// How long a transaction must keep a partition from being read before it is logged.
const OPEN_TOO_LONG: Duration = Duration::from_secs(10);

type Key = (String, i32);

/// The ends of partitions.
pub(super) type Ends = HashMap<Key, i64>;

/// The progress of one client.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The partitions that are not read to their end, because a transaction is open.
    held_back: HashMap<Key, HeldBack>,
    /// The next offset to fetch when everything that was fetched was settled.
    settled: HashMap<Key, i64>,
    /// The ends of paused partitions.
    ends: Ends,
}

/// A partition that is read up to an open transaction.
#[derive(Debug)]
struct HeldBack {
    at: i64,
    since: Instant,
    is_logged: bool,
}

// === impl Progress ===

impl Progress {
    /// Logs the topics that have not been read to their end for [`OPEN_TOO_LONG`], because a transaction is open.
    pub(super) fn find_open_transactions(&mut self, statistics: &Statistics, now: Instant) {
        let mut before = std::mem::take(&mut self.held_back);
        let mut found: BTreeMap<&str, (u32, i64)> = BTreeMap::new();
        for (topic, partition) in partitions(statistics) {
            let at = partition.ls_offset;
            let is_held_back = at >= 0 && partition.next_offset >= at && partition.hi_offset > at;
            if !is_held_back || !is_fetched(partition, statistics) {
                continue;
            }
            let key = (topic.to_owned(), partition.partition);
            let known = before.remove(&key).filter(|held_back| held_back.at == at);
            let mut held_back = known.unwrap_or(HeldBack {
                at,
                since: now,
                is_logged: false,
            });
            if !held_back.is_logged && now.duration_since(held_back.since) >= OPEN_TOO_LONG {
                held_back.is_logged = true;
                let (partitions, records) = found.entry(topic).or_default();
                (*partitions, *records) = (*partitions + 1, *records + partition.hi_offset - at);
            }
            self.held_back.insert(key, held_back);
        }
        for (topic, (partitions, records)) in found {
            tracing::warn!(
                topic,
                partitions,
                records,
                "a Kafka transaction has been open for more than 10 s: the records after it are read once it has ended, at the latest after the transaction.timeout.ms of its producer"
            );
        }
    }

    /// Notes the ends of the paused partitions, which the statistics do not have.
    pub(super) fn note_ends(&mut self, ends: Ends) {
        self.ends = ends;
    }

    /// The number of records that are not settled yet, in all partitions where it is known. `unsettled` is the offset
    /// of the first delivered record of a partition that is not settled.
    pub(super) fn lag(
        &mut self,
        statistics: &Statistics,
        unsettled: impl Fn(&str, i32) -> Option<i64>,
    ) -> Option<u64> {
        let mut before = std::mem::take(&mut self.settled);
        let mut sum = None;
        for (topic, partition) in partitions(statistics) {
            let key = (topic.to_owned(), partition.partition);
            let known_end = self.ends.get(&key).copied();
            let end = known_end.map_or(partition.hi_offset, |end| end.max(partition.hi_offset));
            let next = partition.next_offset;
            // Records that follow may be control records, which have offsets and are never delivered. The application
            // offset may be after them or not. The queue is that of all partitions.
            let first = unsettled(topic, partition.partition);
            let is_settled = partition.fetchq_cnt == 0 && first.is_none();
            let known = before.remove(&key).filter(|known| *known <= end);
            let settled = if is_settled { Some(next) } else { known };
            // This client may not have stored or committed anything yet.
            let stored = partition.stored_offset.max(partition.committed_offset);
            let stored = stored.max(first.unwrap_or(-1));
            let position = settled.map_or(stored, |settled| settled.max(stored));
            if end < 0 || position < 0 {
                continue;
            }
            if let Some(settled) = settled {
                self.settled.insert(key, settled);
            }
            let lag = u64::try_from(end - position).unwrap_or_default();
            sum = Some(sum.unwrap_or(0) + lag);
        }
        sum
    }
}

/// Whether the offsets of a partition are current: they stay as they were while it is not fetched.
fn is_fetched(partition: &Partition, statistics: &Statistics) -> bool {
    let mut brokers = statistics.brokers.values();
    let is_up = |broker: &Broker| broker.nodeid == partition.broker && broker.state == "UP";
    partition.fetch_state == "active" && brokers.any(is_up)
}

/// The partitions that are assigned.
fn partitions(statistics: &Statistics) -> impl Iterator<Item = (&str, &Partition)> {
    let topics = statistics.topics.values();
    topics.flat_map(|topic| {
        let partitions = topic.partitions.values();
        let assigned = partitions.filter(|partition| partition.desired);
        assigned.map(|partition| (topic.topic.as_str(), partition))
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
            desired: true,
            fetch_state: "active".to_owned(),
            broker: 1,
            ..Partition::default()
        };
        let topic = Topic {
            topic: "orders".to_owned(),
            partitions: HashMap::from([(0, partition)]),
            ..Topic::default()
        };
        let broker = Broker {
            nodeid: 1,
            state: "UP".to_owned(),
            ..Broker::default()
        };
        Statistics {
            topics: HashMap::from([("orders".to_owned(), topic)]),
            brokers: HashMap::from([("b:9092/1".to_owned(), broker)]),
            ..Statistics::default()
        }
    }

    fn lag_of(offsets: [i64; 5], prefetched: i64) -> Option<u64> {
        lag(&mut Progress::default(), &statistics(offsets, prefetched))
    }

    /// Everything that was delivered is settled if the next offset of the application is the stored one.
    fn lag(progress: &mut Progress, statistics: &Statistics) -> Option<u64> {
        progress.lag(statistics, |topic, partition| {
            let partition = &statistics.topics[topic].partitions[&partition];
            let is_settled = partition.stored_offset == partition.app_offset;
            (!is_settled).then_some(partition.stored_offset)
        })
    }

    #[test]
    fn control_records_at_the_end_are_no_lag() {
        assert_eq!(lag_of([246, 246, 247, 247, 247], 0), Some(0));
        // The application has passed the control record.
        let passed = statistics([1, 2, 2, 2, 2], 0);
        assert_eq!(Progress::default().lag(&passed, |_, _| None), Some(0));
        // Only aborted records since the start: nothing was delivered.
        assert_eq!(lag_of([-1001, -1001, 52, 52, 52], 0), Some(0));
        // Nor while records of other partitions are in the queue that all partitions share.
        let mut progress = Progress::default();
        let control = [246, 246, 247, 247, 247];
        assert_eq!(lag(&mut progress, &statistics(control, 0)), Some(0));
        assert_eq!(lag(&mut progress, &statistics(control, 9)), Some(0));
        // A topic that was created again.
        assert_eq!(lag(&mut progress, &statistics([3, 3, 9, 9, 9], 9)), Some(6));
    }

    #[test]
    fn records_in_progress_or_prefetched_are_lag() {
        assert_eq!(lag_of([240, 246, 247, 247, 247], 0), Some(7));
        assert_eq!(lag_of([240, 240, 247, 247, 247], 6), Some(7));
        assert_eq!(lag_of([-1001, -1001, -1001, -1001, -1001], 0), None);
    }

    #[test]
    fn records_are_lag_before_anything_of_their_partition_is_settled() {
        let held = statistics([-1001, 246, 247, 247, 247], 0);
        assert_eq!(Progress::default().lag(&held, |_, _| Some(200)), Some(47));
    }

    #[test]
    fn records_behind_the_last_fetched_one_of_a_paused_partition_are_lag() {
        let mut progress = Progress::default();
        progress.note_ends([(("orders".to_owned(), 0), 250)].into());
        let paused = statistics([240, 246, 247, 247, 247], 0);
        assert_eq!(lag(&mut progress, &paused), Some(10));
        progress.note_ends(Ends::new());
        assert_eq!(lag(&mut progress, &paused), Some(7));
    }

    #[test]
    fn records_behind_an_open_transaction_are_lag() {
        assert_eq!(lag_of([100, 100, 100, 100, 201], 0), Some(101));
    }

    #[test]
    fn partitions_of_other_members_are_no_lag() {
        let mut statistics = statistics([-1001, -1001, 100, 100, 201], 0);
        for topic in statistics.topics.values_mut() {
            let partitions = topic.partitions.values_mut();
            partitions.for_each(|partition| partition.desired = false);
        }
        assert_eq!(lag(&mut Progress::default(), &statistics), None);
    }

    #[test]
    fn a_transaction_that_stays_open_is_found() {
        let (mut progress, start) = (Progress::default(), Instant::now());
        let mut at = |statistics, seconds| {
            let now = start + Duration::from_secs(seconds);
            progress.find_open_transactions(&statistics, now);
            let mut held_back = progress.held_back.values();
            held_back.next().map(|held_back| held_back.is_logged)
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
        // Its broker does not answer: the offsets are those of an earlier time.
        let mut stale = statistics([150, 150, 150, 150, 300], 0);
        stale.brokers.clear();
        assert_eq!(at(stale, 30), None);
    }
}
