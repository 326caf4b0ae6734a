//! A log in the memory of one process: nothing survives it.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use a2abus_plugin::Text;
use bytes::Bytes;
use tokio::sync::{Notify, mpsc};

use super::log::{
    BATCH_BYTES, Batch, Bounds, Cursor, Kind, Log, LogSpec, Position, Reader, Record, StateError,
    check_key,
};
use crate::clock;

/// Maximum number of records of one partition in a batch.
const BATCH: usize = 512;
/// How long the deletion of a key is kept, for slow readers.
const DELETIONS: Duration = Duration::from_secs(60 * 60);

/// A log in memory. Clones share it, so two clones can stand for two replicas.
#[derive(Debug, Clone)]
pub struct MemoryLog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    spec: LogSpec,
    /// The size limit of all records; the oldest are removed first.
    limit_bytes: usize,
    stored: Mutex<Stored>,
    appended: Notify,
}

#[derive(Debug)]
struct Stored {
    partitions: Vec<Partition>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Partition {
    /// Sorted by offset. In a log of the kind `Latest`, replaced records are `None`.
    slots: VecDeque<Slot>,
    next: u64,
    /// The offset of the last record of each key.
    latest: HashMap<Text, u64>,
    /// Slots without a record.
    holes: usize,
    /// The deletions that are kept for a while: their times and keys.
    deletions: VecDeque<(u64, Text)>,
}

#[derive(Debug)]
struct Slot {
    offset: u64,
    record: Option<Record>,
}

// === impl MemoryLog ===

impl MemoryLog {
    /// An empty log with one partition, whose records take at most `limit_bytes`.
    #[must_use]
    pub fn new(spec: LogSpec, limit_bytes: usize) -> Self {
        Self::partitioned(spec, limit_bytes, 1)
    }

    /// The same with several partitions: records of different keys are then unordered, as on Kafka.
    #[must_use]
    pub fn partitioned(spec: LogSpec, limit_bytes: usize, partitions: u32) -> Self {
        let partitions = (0..partitions.max(1)).map(|_| Partition::default());
        Self(Arc::new(Shared {
            spec,
            limit_bytes,
            stored: Mutex::new(Stored {
                partitions: partitions.collect(),
                bytes: 0,
            }),
            appended: Notify::new(),
        }))
    }

    fn stored(&self) -> MutexGuard<'_, Stored> {
        let stored = self.0.stored.lock();
        stored.unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a record that is larger than a log of events: the next one would displace it.
    fn check_size(&self, body: Option<&Bytes>) -> Result<(), StateError> {
        let (bytes, limit) = (body.map_or(0, Bytes::len), self.0.limit_bytes);
        if bytes <= limit || self.0.spec.kind == Kind::Latest {
            return Ok(());
        }
        let name = self.0.spec.name;
        Err(StateError::TooLarge { name, bytes, limit })
    }

    /// Loses its last records, like a server that is restored from a backup.
    #[cfg(test)]
    pub(crate) fn lose(&self, records: usize) {
        let mut stored = self.stored();
        for partition in &mut stored.partitions {
            let left = partition.slots.len().saturating_sub(records);
            partition.slots.truncate(left);
            partition.next = partition.slots.back().map_or(0, |slot| slot.offset + 1);
        }
    }

    /// Waits for records after the cursor, and returns them.
    async fn batch(&self, cursor: &mut Cursor) -> Batch {
        loop {
            // Subscribe before reading, so that an append in between is not missed.
            let appended = self.0.appended.notified();
            let records = self.stored().after(cursor);
            if !records.is_empty() {
                let reached = cursor.clone();
                return Batch { records, reached };
            }
            appended.await;
        }
    }

    async fn fill(self, mut cursor: Cursor, batches: mpsc::Sender<Batch>) {
        loop {
            let batch = self.batch(&mut cursor).await;
            if batches.send(batch).await.is_err() {
                return;
            }
        }
    }
}

impl Log for MemoryLog {
    fn spec(&self) -> &LogSpec {
        &self.0.spec
    }

    async fn append(&self, key: &str, body: Option<Bytes>) -> Result<Position, StateError> {
        check_key(key)?;
        self.check_size(body.as_ref())?;
        let position = {
            let mut stored = self.stored();
            let now = clock::milliseconds(clock::now());
            stored.make_room(&self.0.spec, self.0.limit_bytes, now);
            if self.0.spec.kind == Kind::Latest && body.is_some() {
                stored.check_room(&self.0.spec, self.0.limit_bytes)?;
            }
            stored.append(&self.0.spec, key, body, now)
        };
        self.0.appended.notify_waiters();
        Ok(position)
    }

    async fn read(&self, from: Cursor) -> Result<Reader, StateError> {
        let log = self.clone();
        Ok(Reader::spawn(|batches| log.fill(from, batches)))
    }

    async fn bounds(&self) -> Result<Bounds, StateError> {
        let (mut start, mut end) = (Cursor::start(), Cursor::start());
        for (number, partition) in (0_u32..).zip(&self.stored().partitions) {
            let first = partition.slots.front().map(|slot| slot.offset);
            start.advance(number, first.unwrap_or(partition.next));
            end.advance(number, partition.next);
        }
        Ok(Bounds { start, end })
    }
}

// === impl Stored ===

impl Stored {
    fn append(&mut self, spec: &LogSpec, key: &str, body: Option<Bytes>, time: u64) -> Position {
        let number = partition_of(key, self.partitions.len());
        let partition = &mut self.partitions[number];
        let position = Position {
            partition: u32::try_from(number).unwrap_or(u32::MAX),
            offset: partition.next,
        };
        let record = Record {
            key: Text::from(key),
            position,
            time,
            body,
        };
        self.bytes += record.size_bytes();
        partition.next += 1;
        if spec.kind == Kind::Latest {
            self.bytes -= partition.displace(&record);
        }
        partition.slots.push_back(Slot {
            offset: position.offset,
            record: Some(record),
        });
        position
    }

    fn check_room(&self, spec: &LogSpec, limit: usize) -> Result<(), StateError> {
        if self.bytes > limit {
            return Err(StateError::Full {
                name: spec.name,
                bytes: self.bytes,
                limit,
            });
        }
        Ok(())
    }

    /// Removes records that are too old. In a log of events, also removes the oldest records while it exceeds the size
    /// limit.
    fn make_room(&mut self, spec: &LogSpec, limit: usize, now: u64) {
        for partition in &mut self.partitions {
            match spec.kind.max_age() {
                Some(max_age) => {
                    let oldest = now.saturating_sub(clock::whole_milliseconds(max_age));
                    partition.forget_events(oldest, limit, &mut self.bytes);
                }
                None => {
                    let oldest = now.saturating_sub(clock::whole_milliseconds(DELETIONS));
                    self.bytes -= partition.forget_deletions(oldest);
                }
            }
        }
    }

    /// A batch of records from the cursor on. Moves the cursor past them.
    fn after(&self, cursor: &mut Cursor) -> Vec<Record> {
        let mut batch = Vec::new();
        for (number, partition) in (0_u32..).zip(&self.partitions) {
            let (enough, mut bytes) = (batch.len() + BATCH, 0);
            let first = partition.find(cursor.next(number));
            for slot in partition.slots.range(first..) {
                if batch.len() == enough || bytes >= BATCH_BYTES {
                    break;
                }
                cursor.advance(number, slot.offset + 1);
                bytes += slot.record.as_ref().map_or(0, Record::size_bytes);
                batch.extend(slot.record.clone());
            }
        }
        batch
    }
}

// === impl Partition ===

impl Partition {
    /// The index of the first slot at or after an offset.
    fn find(&self, offset: u64) -> usize {
        self.slots.partition_point(|slot| slot.offset < offset)
    }

    /// Removes the previous record of the same key; returns its size.
    fn displace(&mut self, record: &Record) -> usize {
        if record.body.is_none() {
            self.deletions.push_back((record.time, record.key.clone()));
        }
        let offset = record.position.offset;
        match self.latest.insert(record.key.clone(), offset) {
            Some(before) => self.empty(before),
            None => 0,
        }
    }

    /// Removes the record at an offset; returns its size.
    fn empty(&mut self, offset: u64) -> usize {
        let index = self.find(offset);
        let slot = self.slots.get_mut(index);
        let record = slot.and_then(|slot| slot.record.take());
        self.holes += 1;
        if self.holes > self.slots.len() / 2 {
            self.slots.retain(|slot| slot.record.is_some());
            self.holes = 0;
        }
        record.map_or(0, |record| record.size_bytes())
    }

    fn forget_events(&mut self, oldest: u64, limit: usize, bytes: &mut usize) {
        while let Some(record) = self.slots.front().and_then(|slot| slot.record.as_ref()) {
            if record.time >= oldest && *bytes <= limit {
                return;
            }
            *bytes -= record.size_bytes();
            self.slots.pop_front();
        }
    }

    /// Removes expired deletions; returns their size.
    fn forget_deletions(&mut self, oldest: u64) -> usize {
        let mut bytes = 0;
        while let Some((time, _)) = self.deletions.front()
            && *time < oldest
        {
            let key = self.deletions.pop_front().map(|(_, key)| key);
            let Some((key, offset)) =
                key.and_then(|key| self.latest.get(&key).copied().map(|offset| (key, offset)))
            else {
                continue;
            };
            let index = self.find(offset);
            let record = self.slots.get(index).and_then(|slot| slot.record.as_ref());
            // The key may have been written again since.
            if record.is_some_and(|record| record.body.is_none() && record.time < oldest) {
                self.latest.remove(&key);
                bytes += self.empty(offset);
            }
        }
        bytes
    }
}

fn partition_of(key: &str, partitions: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let count = u64::try_from(partitions).unwrap_or(u64::MAX).max(1);
    usize::try_from(hasher.finish() % count).unwrap_or(0)
}
