//! The entries of a view: one per key, bounded in bytes and age.

use std::collections::{BTreeSet, HashMap, VecDeque};

use a2abus_plugin::Text;

use super::fold::{Applied, Fold};
use super::log::{Kind, Record};
use crate::clock;

/// The approximate overhead of an entry, besides its key and content.
const ENTRY_BYTES: usize = 192;
/// How many ages of removed keys may remain before they are dropped.
const SPARE_AGES: usize = 1024;
/// The overhead of a key whose entry was removed for lack of room.
const FORGOTTEN_BYTES: usize = 120;
/// These keys may take this part of the limit. The oldest are forgotten altogether: otherwise they would use up the room
/// for entries.
const FORGOTTEN_PART: usize = 4;

/// The entries of a view, by key, and by group where the fold has groups.
#[derive(Debug)]
pub struct Entries<E> {
    stored: HashMap<Text, StoredEntry<E>>,
    groups: HashMap<Text, BTreeSet<Text>>,
    /// Entries in the order in which they ended. Some may have been removed since.
    ended: VecDeque<Text>,
    /// Entries by the time of a record, the oldest first. Some may have newer records, or have been removed.
    ages: VecDeque<(u64, Text)>,
    /// Ended entries that were removed for lack of room. Later records for their keys change nothing.
    forgotten: HashMap<Text, u64>,
    /// Those keys in the order in which they were removed. Some may have expired since.
    forgotten_keys: VecDeque<Text>,
    forgotten_bytes: usize,
    /// All of the above.
    bytes: usize,
}

#[derive(Debug)]
struct StoredEntry<E> {
    /// `None` only while its first record is applied.
    entry: Option<E>,
    group: Option<Text>,
    bytes: usize,
    has_ended: bool,
    /// The time of its last record.
    time: u64,
}

// === impl Entries ===

impl<E> Entries<E> {
    /// The entry of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&E> {
        self.stored.get(key)?.entry.as_ref()
    }

    /// The entries of a group, sorted by key.
    pub fn group<'a>(&'a self, group: &str) -> impl Iterator<Item = (&'a str, &'a E)> {
        let keys = self.groups.get(group).into_iter().flatten();
        keys.filter_map(|key| Some((&**key, self.get(key)?)))
    }

    /// All entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &E)> {
        let stored = self.stored.iter();
        stored.filter_map(|(key, stored)| Some((&**key, stored.entry.as_ref()?)))
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.stored.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stored.is_empty()
    }

    /// Their approximate size in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Applies one record.
    pub(super) fn apply<F: Fold<Entry = E>>(
        &mut self,
        fold: &F,
        kind: Kind,
        record: &Record,
    ) -> Applied {
        if record.key.is_empty() {
            return Applied::Unknown;
        }
        if self.forgotten.contains_key(&record.key) {
            return Applied::Unchanged;
        }
        if kind == Kind::Latest && record.body.is_none() {
            return match self.remove(&record.key) {
                Some(_) => Applied::Changed,
                None => Applied::Unchanged,
            };
        }
        let stored = match self.stored.get_mut(&record.key) {
            Some(stored) => stored,
            None => self.stored.entry(record.key.clone()).or_default(),
        };
        let is_new = stored.entry.is_none();
        let applied = fold.apply(&mut stored.entry, record);
        let Some(entry) = &stored.entry else {
            self.remove(&record.key);
            return applied;
        };
        if applied != Applied::Changed && !is_new {
            return applied;
        }
        stored.time = stored.time.max(record.time);
        let bytes = ENTRY_BYTES + record.key.len() * 2 + fold.size_bytes(entry);
        self.bytes = self.bytes + bytes - stored.bytes;
        stored.bytes = bytes;
        let has_ended = fold.has_ended(entry);
        if has_ended && !stored.has_ended {
            self.ended.push_back(record.key.clone());
        }
        stored.has_ended = has_ended;
        if is_new {
            self.ages.push_back((record.time, record.key.clone()));
        }
        let group = fold.group(entry);
        if group != stored.group.as_deref() {
            let after = group.map(Text::from);
            let before = std::mem::replace(&mut stored.group, after.clone());
            self.regroup(&record.key, before.as_ref(), after);
        }
        applied
    }

    fn regroup(&mut self, key: &Text, before: Option<&Text>, after: Option<Text>) {
        if let Some(before) = before
            && let Some(keys) = self.groups.get_mut(before)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.groups.remove(before);
            }
        }
        if let Some(after) = after {
            self.groups.entry(after).or_default().insert(key.clone());
        }
    }

    fn remove(&mut self, key: &Text) -> Option<StoredEntry<E>> {
        let stored = self.stored.remove(key)?;
        self.bytes -= stored.bytes;
        self.regroup(key, stored.group.as_ref(), None);
        Some(stored)
    }

    /// Removes ended entries, in the order in which they ended, until the rest takes at most `limit` bytes. Returns how
    /// many it removed.
    pub(super) fn make_room(&mut self, limit: usize) -> u64 {
        let mut forgotten = 0;
        while self.bytes > limit {
            let Some(key) = self.ended.pop_front() else {
                break;
            };
            if !self.stored.get(&key).is_some_and(|stored| stored.has_ended) {
                continue;
            }
            if let Some(stored) = self.remove(&key) {
                let bytes = FORGOTTEN_BYTES + key.len();
                self.bytes += bytes;
                self.forgotten_bytes += bytes;
                // Its age remains, so `expire` removes this too.
                self.forgotten.insert(key.clone(), stored.time);
                self.forgotten_keys.push_back(key);
                forgotten += 1;
            }
            while self.forgotten_bytes > limit / FORGOTTEN_PART
                && let Some(oldest) = self.forgotten_keys.pop_front()
            {
                self.release_forgotten(&oldest);
            }
        }
        forgotten
    }

    /// Forgets a key altogether; false if it was not forgotten.
    fn release_forgotten(&mut self, key: &Text) -> bool {
        let is_forgotten = self.forgotten.remove(key).is_some();
        if is_forgotten {
            let bytes = FORGOTTEN_BYTES + key.len();
            self.bytes -= bytes;
            self.forgotten_bytes -= bytes;
        }
        is_forgotten
    }

    /// Removes the entries whose last record the log no longer has.
    pub(super) fn expire(&mut self, kind: Kind, now: u64) {
        self.trim_ages();
        let Kind::Events { max_age } = kind else {
            return;
        };
        let oldest = now.saturating_sub(clock::whole_milliseconds(max_age));
        while let Some((time, _)) = self.ages.front()
            && *time < oldest
        {
            let Some((_, key)) = self.ages.pop_front() else {
                return;
            };
            let last = self.stored.get(&key).map(|stored| stored.time);
            match last.or_else(|| self.forgotten.get(&key).copied()) {
                Some(time) if time >= oldest => self.ages.push_back((time, key)),
                Some(_) if self.release_forgotten(&key) => self.trim_forgotten(),
                Some(_) => drop(self.remove(&key)),
                None => {}
            }
        }
    }

    /// Drops keys that have expired from the front of their order.
    fn trim_forgotten(&mut self) {
        while let Some(oldest) = self.forgotten_keys.front()
            && !self.forgotten.contains_key(oldest)
        {
            self.forgotten_keys.pop_front();
        }
    }

    /// Drops the ages of removed keys once they are the majority.
    fn trim_ages(&mut self) {
        let known = self.stored.len() + self.forgotten.len();
        if self.ages.len() <= 2 * known + SPARE_AGES {
            return;
        }
        let stored = self.stored.iter().map(|(key, stored)| (stored.time, key));
        let forgotten = self.forgotten.iter().map(|(key, time)| (*time, key));
        let ages = stored.chain(forgotten);
        let mut ages: Vec<_> = ages.map(|(time, key)| (time, key.clone())).collect();
        ages.sort_unstable();
        self.ages = ages.into();
    }
}

impl<E> Default for Entries<E> {
    fn default() -> Self {
        Self {
            stored: HashMap::new(),
            groups: HashMap::new(),
            ended: VecDeque::new(),
            ages: VecDeque::new(),
            forgotten: HashMap::new(),
            forgotten_keys: VecDeque::new(),
            forgotten_bytes: 0,
            bytes: 0,
        }
    }
}

// === impl StoredEntry ===

impl<E> Default for StoredEntry<E> {
    fn default() -> Self {
        Self {
            entry: None,
            group: None,
            bytes: 0,
            has_ended: false,
            time: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;
    use crate::state::Position;

    /// Keeps the last body.
    struct Last {
        has_ended: bool,
    }

    impl Fold for Last {
        type Entry = Bytes;

        fn apply(&self, entry: &mut Option<Bytes>, record: &Record) -> Applied {
            entry.clone_from(&record.body);
            Applied::Changed
        }

        fn size_bytes(&self, entry: &Bytes) -> usize {
            entry.len()
        }

        fn has_ended(&self, _: &Bytes) -> bool {
            self.has_ended
        }
    }

    #[test]
    fn removed_keys_leave_room_for_entries() {
        let (mut entries, limit) = (Entries::default(), 100_000);
        let kind = Kind::Events {
            max_age: Duration::from_secs(3_600),
        };
        let record = |number: u64| Record {
            key: Text::from(format!("key-{number}")),
            position: Position {
                partition: 0,
                offset: number,
            },
            time: number,
            body: Some(Bytes::from_static(b"{}")),
        };
        for number in 0..10_000 {
            entries.apply(&Last { has_ended: true }, kind, &record(number));
            entries.make_room(limit);
            assert!(entries.bytes() <= limit);
        }
        assert!(entries.len() > 200, "{} entries", entries.len());
        // A key that was removed a moment ago stays removed.
        let last_removed = 10_000 - entries.len() as u64 - 1;
        let late = entries.apply(&Last { has_ended: true }, kind, &record(last_removed));
        assert_eq!(late, Applied::Unchanged);
        entries.expire(kind, 10_000_000);
        assert_eq!((entries.len(), entries.bytes()), (0, 0));
        assert!(entries.forgotten_keys.is_empty());
    }

    #[test]
    fn keys_that_come_and_go_leave_nothing_behind() {
        let mut entries = Entries::default();
        let kinds = [
            Kind::Latest,
            Kind::Events {
                max_age: Duration::from_secs(60),
            },
        ];
        for (kind, number) in kinds
            .into_iter()
            .flat_map(|kind| (0..5_000).map(move |n| (kind, n)))
        {
            for body in [Some(Bytes::from_static(b"{}")), None] {
                let record = Record {
                    key: Text::from(format!("key-{number}")),
                    position: Position {
                        partition: 0,
                        offset: number,
                    },
                    time: number,
                    body,
                };
                entries.apply(&Last { has_ended: false }, kind, &record);
            }
            entries.expire(kind, number);
        }
        assert_eq!((entries.len(), entries.bytes()), (0, 0));
        assert!(
            entries.ages.len() <= SPARE_AGES + 1,
            "{}",
            entries.ages.len()
        );
    }
}
