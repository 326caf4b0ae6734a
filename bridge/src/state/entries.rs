//! The entries of a view: one per key, bounded in bytes and age.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};

use a2abus_plugin::Text;

use super::fold::{Applied, Fold, Groups};
use super::log::{Kind, Record};
use crate::clock;

/// The approximate overhead of an entry, besides its key and content.
const ENTRY_BYTES: usize = 192;
/// How many ends of removed keys, and ended keys of removed entries, may remain before they are dropped.
const SPARE_ENDS: usize = 1024;
/// The overhead of a key whose entry was removed for lack of room.
const FORGOTTEN_BYTES: usize = 120;
/// These keys may take this part of the limit. The oldest are forgotten altogether: otherwise they would use up the room
/// for entries.
const FORGOTTEN_PART: usize = 4;

/// The limit allows one passing entry (see [`Fold::is_passing`]) for this many of its bytes. These entries then take
/// about a sixteenth of the limit.
const BYTES_PER_PASSING: usize = 8 << 10;

/// The entries of a view, by key, and by group where the fold has groups.
#[derive(Debug)]
pub struct Entries<E> {
    stored: HashMap<Text, StoredEntry<E>>,
    groups: HashMap<Text, BTreeSet<Text>>,
    /// Entries in the order in which they ended. Some may have been removed since.
    ended: VecDeque<Text>,
    /// The same for passing entries.
    passing: VecDeque<Text>,
    /// When the entry of each key ends its life, the next first. Some live longer since, or have been removed.
    ends: BinaryHeap<Reverse<(u64, Text)>>,
    /// Ended entries that were removed for lack of room, with the ends of their lives. Until then, records for their
    /// keys change nothing.
    forgotten: HashMap<Text, u64>,
    /// Those keys in the order in which they were removed. Some may have expired since.
    forgotten_keys: VecDeque<Text>,
    forgotten_bytes: usize,
    /// The bytes of entries that have not ended, which cannot be removed.
    lasting_bytes: usize,
    /// All of the above.
    bytes: usize,
}

#[derive(Debug)]
struct StoredEntry<E> {
    /// `None` only while its first record is applied.
    entry: Option<E>,
    groups: Groups<Text>,
    bytes: usize,
    has_ended: bool,
    /// The time of its first record.
    first: u64,
    /// The end of its life, which later records may extend.
    end: u64,
}

/// What was removed for lack of room.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Removed {
    /// Entries.
    pub(super) entries: u64,
    /// Keys of entries that were removed before. Their records begin new entries.
    pub(super) keys: u64,
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

    /// Whether the entry of a key was removed for lack of room, and its key is kept.
    pub(crate) fn is_forgotten(&self, key: &str) -> bool {
        self.forgotten.contains_key(key)
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

    /// The part of [`Entries::bytes`] that cannot be removed, because its entries have not ended.
    pub(crate) fn lasting_bytes(&self) -> usize {
        self.lasting_bytes
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
        self.end_life(&record.key, record.time);
        if self.forgotten.contains_key(&record.key) {
            return Applied::Unchanged;
        }
        if kind == Kind::Latest && record.body.is_none() {
            let removed = self.remove(&record.key);
            return removed.map_or(Applied::Unchanged, |_| Applied::Changed);
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
        if is_new {
            stored.first = record.time;
        }
        stored.end = stored.end.max(end(kind, stored.first, record.time));
        let bytes = ENTRY_BYTES + record.key.len() * 2 + fold.size_bytes(entry);
        self.bytes = self.bytes + bytes - stored.bytes;
        self.lasting_bytes -= stored.lasting_bytes();
        stored.bytes = bytes;
        let has_ended = fold.has_ended(entry);
        if has_ended && !stored.has_ended {
            let order = match fold.is_passing(entry) {
                true => &mut self.passing,
                false => &mut self.ended,
            };
            order.push_back(record.key.clone());
        }
        stored.has_ended = has_ended;
        self.lasting_bytes += stored.lasting_bytes();
        if is_new && stored.end != u64::MAX {
            self.ends.push(Reverse((stored.end, record.key.clone())));
        }
        let groups = fold.groups(entry);
        if groups != stored.groups.each_ref().map(Option::as_deref) {
            let after = groups.map(|group| group.map(Text::from));
            let before = std::mem::replace(&mut stored.groups, after.clone());
            self.regroup(&record.key, before, after);
        }
        applied
    }

    /// Removes the entry of a key if its life ended before this time.
    ///
    /// So whether a record finds the entry depends on the times of records alone, and all replicas agree about it.
    fn end_life(&mut self, key: &Text, time: u64) {
        if self.stored.get(key).is_some_and(|stored| stored.end < time) {
            self.remove(key);
        }
        if self.forgotten.get(key).is_some_and(|end| *end < time) {
            self.release_forgotten(key);
        }
    }

    fn regroup(&mut self, key: &Text, before: Groups<Text>, after: Groups<Text>) {
        for before in before.into_iter().flatten() {
            if let Some(keys) = self.groups.get_mut(&before) {
                keys.remove(key);
                if keys.is_empty() {
                    self.groups.remove(&before);
                }
            }
        }
        for after in after.into_iter().flatten() {
            self.groups.entry(after).or_default().insert(key.clone());
        }
    }

    fn remove(&mut self, key: &Text) -> Option<StoredEntry<E>> {
        let mut stored = self.stored.remove(key)?;
        self.bytes -= stored.bytes;
        self.lasting_bytes -= stored.lasting_bytes();
        let groups = std::mem::take(&mut stored.groups);
        self.regroup(key, groups, Groups::default());
        Some(stored)
    }

    /// Removes ended entries, in the order in which they ended, until the rest takes at most `limit` bytes: passing entries
    /// first, if there are many.
    pub(super) fn make_room<F: Fold<Entry = E>>(&mut self, fold: &F, limit: usize) -> Removed {
        let mut removed = Removed::default();
        while self.bytes > limit {
            let next = match self.passing.len() > limit / BYTES_PER_PASSING {
                true => self.passing.pop_front(),
                false => self.ended.pop_front().or_else(|| self.passing.pop_front()),
            };
            let Some(key) = next else {
                break;
            };
            if !self.stored.get(&key).is_some_and(|stored| stored.has_ended) {
                continue;
            }
            let Some(stored) = self.remove(&key) else {
                continue;
            };
            removed.entries += 1;
            let entry = stored.entry.as_ref();
            if entry.is_some_and(|entry| fold.forgets_key(entry)) {
                continue;
            }
            let bytes = FORGOTTEN_BYTES + key.len();
            self.bytes += bytes;
            self.forgotten_bytes += bytes;
            // It remains in `ends`, so `expire` removes this too.
            self.forgotten.insert(key.clone(), stored.end);
            self.forgotten_keys.push_back(key);
            while self.forgotten_bytes > limit / FORGOTTEN_PART
                && let Some(oldest) = self.forgotten_keys.pop_front()
            {
                removed.keys += u64::from(self.release_forgotten(&oldest));
            }
        }
        removed
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

    /// Removes the entries whose life has ended. Returns how many of them could still have changed.
    pub(super) fn expire(&mut self, now: u64) -> u64 {
        self.trim_ends();
        let mut unfinished = 0;
        while let Some(Reverse((end, _))) = self.ends.peek()
            && *end < now
        {
            let Some(Reverse((_, key))) = self.ends.pop() else {
                break;
            };
            let stored = self.stored.get(&key).map(|stored| stored.end);
            match stored.or_else(|| self.forgotten.get(&key).copied()) {
                Some(end) if end >= now => self.ends.push(Reverse((end, key))),
                Some(_) if self.release_forgotten(&key) => self.trim_forgotten(),
                Some(_) => {
                    let removed = self.remove(&key);
                    unfinished += u64::from(removed.is_some_and(|stored| !stored.has_ended));
                }
                None => {}
            }
        }
        self.trim_ended();
        unfinished
    }

    /// Drops ended keys whose entries were removed, from the front of their order, and everywhere once they are the
    /// majority.
    fn trim_ended(&mut self) {
        let stored = &self.stored;
        let has_ended = |key: &Text| stored.get(key).is_some_and(|stored| stored.has_ended);
        for order in [&mut self.ended, &mut self.passing] {
            while order.front().is_some_and(|key| !has_ended(key)) {
                order.pop_front();
            }
            if order.len() > 2 * stored.len() + SPARE_ENDS {
                // A key is in the order once for each time that its entry has ended.
                let mut known = HashSet::new();
                order.retain(|key| has_ended(key) && known.insert(key.clone()));
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

    /// Drops the ends of removed keys once they are the majority.
    fn trim_ends(&mut self) {
        let known = self.stored.len() + self.forgotten.len();
        if self.ends.len() <= 2 * known + SPARE_ENDS {
            return;
        }
        let stored = self.stored.iter().map(|(key, stored)| (stored.end, key));
        let forgotten = self.forgotten.iter().map(|(key, end)| (*end, key));
        let ends = stored.chain(forgotten);
        self.ends = ends.map(|(end, key)| Reverse((end, key.clone()))).collect();
    }
}

/// The end of an entry's life, from the times of its first and last record.
fn end(kind: Kind, first: u64, last: u64) -> u64 {
    match kind {
        Kind::Events { life, max_life } => {
            let [life, max_life] = [life, max_life].map(clock::whole_milliseconds);
            last.saturating_add(life)
                .min(first.saturating_add(max_life))
        }
        Kind::Latest => u64::MAX,
    }
}

impl<E> Default for Entries<E> {
    fn default() -> Self {
        Self {
            stored: HashMap::new(),
            groups: HashMap::new(),
            ended: VecDeque::new(),
            passing: VecDeque::new(),
            ends: BinaryHeap::new(),
            forgotten: HashMap::new(),
            forgotten_keys: VecDeque::new(),
            forgotten_bytes: 0,
            lasting_bytes: 0,
            bytes: 0,
        }
    }
}

// === impl StoredEntry ===

impl<E> StoredEntry<E> {
    /// Its size, as long as it cannot be removed.
    fn lasting_bytes(&self) -> usize {
        if self.has_ended { 0 } else { self.bytes }
    }
}

impl<E> Default for StoredEntry<E> {
    fn default() -> Self {
        Self {
            entry: None,
            groups: Groups::default(),
            bytes: 0,
            has_ended: false,
            first: 0,
            end: 0,
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

    const HOURS: Kind = Kind::Events {
        life: Duration::from_secs(3_600),
        max_life: Duration::from_secs(7_200),
    };

    fn record(key: &str, number: u64, body: Option<&'static [u8]>) -> Record {
        Record {
            key: Text::from(key),
            position: Position::at(number),
            time: number,
            body: body.map(Bytes::from_static),
        }
    }

    #[test]
    fn removed_keys_leave_room_for_entries() {
        let (mut entries, limit, mut released) = (Entries::default(), 100_000, 0);
        let record = |number: u64| record(&format!("key-{number}"), number, Some(b"{}"));
        for number in 0..10_000 {
            entries.apply(&Last { has_ended: true }, HOURS, &record(number));
            let removed = entries.make_room(&Last { has_ended: true }, limit);
            released += removed.keys;
            assert!(entries.bytes() <= limit);
        }
        let kept = entries.forgotten.len() as u64;
        assert_eq!(released, 10_000 - entries.len() as u64 - kept);
        assert!(entries.len() > 200, "{} entries", entries.len());
        // A key that was removed a moment ago stays removed.
        let last_removed = 10_000 - entries.len() as u64 - 1;
        let late = entries.apply(&Last { has_ended: true }, HOURS, &record(last_removed));
        assert_eq!(late, Applied::Unchanged);
        entries.expire(10_000_000);
        assert_eq!((entries.len(), entries.bytes()), (0, 0));
        assert!(entries.forgotten_keys.is_empty());
    }

    #[test]
    fn an_entry_lasts_until_it_ends() {
        let mut entries = Entries::default();
        for (offset, has_ended) in [(0, false), (1, true), (2, false)] {
            let record = record("a", offset, Some(b"{}"));
            entries.apply(&Last { has_ended }, HOURS, &record);
            let lasting = if has_ended { 0 } else { entries.bytes() };
            assert_eq!(entries.lasting_bytes(), lasting);
        }
        entries.expire(u64::MAX);
        assert_eq!((entries.len(), entries.lasting_bytes()), (0, 0));
    }

    /// Keeps the last body. An entry with an empty one is passing, or may be removed together with its key.
    struct Kept {
        is_passing: bool,
    }

    impl Fold for Kept {
        type Entry = Bytes;

        fn apply(&self, entry: &mut Option<Bytes>, record: &Record) -> Applied {
            Last { has_ended: true }.apply(entry, record)
        }

        fn size_bytes(&self, entry: &Bytes) -> usize {
            entry.len()
        }

        fn has_ended(&self, _: &Bytes) -> bool {
            true
        }

        fn forgets_key(&self, entry: &Bytes) -> bool {
            !self.is_passing && entry.is_empty()
        }

        fn is_passing(&self, entry: &Bytes) -> bool {
            self.is_passing && entry.is_empty()
        }
    }

    #[test]
    fn a_key_that_may_be_forgotten_displaces_no_other() {
        let fold = Kept { is_passing: false };
        let (mut entries, limit) = (Entries::default(), 100_000);
        let mut add = |number: u64, body: &'static [u8]| {
            let record = record(&format!("key-{number}"), number, Some(body));
            entries.apply(&fold, HOURS, &record);
            entries.make_room(&fold, limit).keys
        };
        add(0, b"{}");
        let released: u64 = (1..10_000).map(|number| add(number, b"")).sum();
        assert_eq!(released, 0);
        assert!(entries.get("key-0").is_none());
        assert!(entries.is_forgotten("key-0") && !entries.is_forgotten("key-1"));
    }

    #[test]
    fn passing_entries_displace_one_another_and_no_others() {
        let fold = Kept { is_passing: true };
        let (mut entries, limit) = (Entries::default(), 100_000);
        for number in 0..10_000 {
            let body: &'static [u8] = if number == 0 { b"{}" } else { b"" };
            let record = record(&format!("key-{number}"), number, Some(body));
            entries.apply(&fold, HOURS, &record);
            entries.make_room(&fold, limit);
        }
        assert!(entries.bytes() <= limit);
        for kept in ["key-0", "key-9990", "key-9999"] {
            assert!(entries.get(kept).is_some(), "{kept}");
        }
        entries.expire(10_000_000);
        assert!(entries.is_empty() && entries.passing.is_empty());
    }

    #[test]
    fn ended_keys_do_not_outlive_their_entries() {
        let (fold, life) = (Last { has_ended: true }, Duration::from_millis(100));
        let mut entries = Entries::default();
        let mut add = |key: &str, time: u64, life: Duration| {
            let max_life = life;
            let kind = Kind::Events { life, max_life };
            entries.apply(&fold, kind, &record(key, time, Some(b"{}")));
            entries.expire(time);
            entries.ended.len()
        };
        add("first", 0, life);
        assert_eq!(add("second", 1_000, life), 1);
        // An entry that stays does not keep the others in the order.
        add("stays", 2_000, Duration::from_secs(3_600));
        for number in 0..10_000 {
            let ended = add(&format!("key-{number}"), 3_000 + number, life);
            assert!(ended <= SPARE_ENDS + 300, "{ended}");
        }
    }

    #[test]
    fn keys_that_come_and_go_leave_nothing_behind() {
        let mut entries = Entries::default();
        let kinds = [
            Kind::Latest,
            Kind::Events {
                life: Duration::from_secs(60),
                max_life: Duration::from_secs(120),
            },
        ];
        for (kind, number) in kinds
            .into_iter()
            .flat_map(|kind| (0..5_000).map(move |n| (kind, n)))
        {
            for body in [Some(&b"{}"[..]), None] {
                let record = record(&format!("key-{number}"), number, body);
                entries.apply(&Last { has_ended: false }, kind, &record);
            }
            entries.expire(number);
        }
        assert_eq!((entries.len(), entries.bytes()), (0, 0));
        assert!(
            entries.ends.len() <= SPARE_ENDS + 1,
            "{}",
            entries.ends.len()
        );
    }

    /// Keeps the offsets of the records of a key, from its only one with a body.
    struct Offsets;

    impl Fold for Offsets {
        type Entry = Vec<u64>;

        fn apply(&self, entry: &mut Option<Vec<u64>>, record: &Record) -> Applied {
            match entry {
                Some(offsets) => offsets.push(record.position.offset),
                None if record.body.is_some() => *entry = Some(vec![record.position.offset]),
                None => return Applied::Unknown,
            }
            Applied::Changed
        }

        fn size_bytes(&self, _: &Vec<u64>) -> usize {
            0
        }
    }

    proptest::proptest! {
        #[test]
        fn a_replica_that_starts_later_has_the_same_entries(
            records in proptest::collection::vec((0_u64..8, 0_u32..3, proptest::bool::ANY), 1..120)
        ) {
            let [life, max_life] = [20, 48].map(Duration::from_millis);
            let kind = Kind::Events { life, max_life };
            let mut now = 1_000;
            let mut log = Vec::new();
            let mut early = Entries::default();
            let mut keys = 0_u32;
            for ((passed, back, begins), offset) in records.into_iter().zip(0..) {
                now += passed;
                keys += u32::from(begins);
                let position = Position::at(offset);
                let body = begins.then(|| Bytes::from_static(b"{}"));
                let key = if begins { keys } else { keys.saturating_sub(back) };
                let key = Text::from(key.to_string());
                let record = Record { key, position, time: now, body };
                early.apply(&Offsets, kind, &record);
                early.expire(now);
                log.push(record);
            }
            let kept = now - clock::whole_milliseconds(kind.max_age().unwrap());
            let mut late = Entries::default();
            for record in log.iter().filter(|record| record.time >= kept) {
                late.apply(&Offsets, kind, record);
            }
            late.expire(now);
            let sorted = |entries: &Entries<Vec<u64>>| {
                let mut all: Vec<_> = entries
                    .iter()
                    .map(|(key, offsets)| (key.to_owned(), offsets.clone()))
                    .collect();
                all.sort();
                all
            };
            proptest::prop_assert_eq!(sorted(&early), sorted(&late));
            proptest::prop_assert_eq!(early.len(), late.len());
        }
    }
}
