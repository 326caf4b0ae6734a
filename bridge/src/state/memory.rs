//! A log in the memory of one process: nothing survives it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use a2abus_plugin::Text;
use bytes::Bytes;
use tokio::sync::{Notify, mpsc};

use super::log::{
    BATCH_BYTES, Batch, Bounds, Cursor, Kind, LogSpec, Position, Reader, Record, StateError,
    check_key,
};
use crate::clock;
use crate::lock::lock;

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
    /// By offset.
    records: BTreeMap<u64, Record>,
    next: u64,
    /// The offset of the last record of each key, in a log of the kind `Latest`.
    latest: HashMap<Text, u64>,
    /// The deletions that are kept for a while: their times and offsets.
    deletions: VecDeque<(u64, u64)>,
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
        lock(&self.0.stored)
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
            for _ in 0..records {
                partition.records.pop_last();
            }
            let last = partition.records.last_key_value();
            partition.next = last.map_or(0, |(offset, _)| offset + 1);
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

    pub(crate) fn spec(&self) -> &LogSpec {
        &self.0.spec
    }

    pub(crate) async fn append(
        &self,
        key: &str,
        body: Option<Bytes>,
    ) -> Result<Position, StateError> {
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

    pub(crate) async fn read(&self, from: Cursor) -> Result<Reader, StateError> {
        let log = self.clone();
        Ok(Reader::spawn(|batches| log.fill(from, batches)))
    }

    pub(crate) async fn bounds(&self) -> Result<Bounds, StateError> {
        let (mut start, mut end) = (Cursor::start(), Cursor::start());
        for (number, partition) in (0_u32..).zip(&self.stored().partitions) {
            let first = partition.records.first_key_value();
            start.advance(number, first.map_or(partition.next, |(offset, _)| *offset));
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
        let offset = partition.next;
        let position = Position {
            partition: u32::try_from(number).unwrap_or(u32::MAX),
            offset,
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
        partition.records.insert(offset, record);
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
            let mut records = partition.records.range(cursor.next(number)..);
            while batch.len() < enough && bytes < BATCH_BYTES {
                let Some((offset, record)) = records.next() else {
                    // Also past records that were removed at the end.
                    cursor.advance(number, partition.next);
                    break;
                };
                cursor.advance(number, offset + 1);
                bytes += record.size_bytes();
                batch.push(record.clone());
            }
        }
        batch
    }
}

// === impl Partition ===

impl Partition {
    /// Removes the previous record of the same key; returns its size.
    fn displace(&mut self, record: &Record) -> usize {
        let offset = record.position.offset;
        if record.body.is_none() {
            self.deletions.push_back((record.time, offset));
        }
        let before = self.latest.insert(record.key.clone(), offset);
        let before = before.and_then(|before| self.records.remove(&before));
        before.map_or(0, |before| before.size_bytes())
    }

    fn forget_events(&mut self, oldest: u64, limit: usize, bytes: &mut usize) {
        while let Some(first) = self.records.first_entry()
            && (first.get().time < oldest || *bytes > limit)
        {
            *bytes -= first.remove().size_bytes();
        }
    }

    /// Removes expired deletions; returns their size.
    fn forget_deletions(&mut self, oldest: u64) -> usize {
        let mut bytes = 0;
        while let Some(&(time, offset)) = self.deletions.front()
            && time < oldest
        {
            self.deletions.pop_front();
            // If the key was written again, the record is gone.
            if let Some(record) = self.records.remove(&offset) {
                self.latest.remove(&record.key);
                bytes += record.size_bytes();
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
