//! One ordered log and how far each group has read it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use a2abus_plugin::Text;
use tokio::time::Instant;

use crate::message::{Message, Topic};

/// A topic: its lanes, and what they hold together.
#[derive(Debug)]
pub(super) struct TopicLog {
    pub(super) name: Topic,
    pub(super) lanes: Vec<Lane>,
    pub(super) messages: usize,
    pub(super) bytes: usize,
    /// Whether a reader has asked for it by name, rather than only a sender having used it.
    pub(super) is_asked_for: bool,
    /// Whether live readers that have left had read all that it holds.
    pub(super) was_read: bool,
    /// The order in which topics were created.
    pub(super) created: u64,
    /// The lane of the next message without a key.
    round_robin: usize,
}

/// A lane of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LaneKey {
    pub(super) topic: usize,
    pub(super) lane: usize,
}

/// One partition: messages in order, from `first` on.
#[derive(Debug)]
pub(super) struct Lane {
    first: u64,
    entries: VecDeque<Entry>,
    pub(super) cursors: Vec<Cursor>,
}

/// One stored message.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) message: Message,
    pub(super) reply_to: Option<Topic>,
    /// Its position, as text.
    pub(super) position: Text,
    pub(super) size: usize,
    /// A seeded delay: not delivered before.
    pub(super) not_before: Option<Instant>,
}

/// How far one group has read one lane.
#[derive(Debug)]
pub(super) struct Cursor {
    pub(super) group: u64,
    pub(super) keeping: Durability,
    /// The member that should read this lane.
    pub(super) target: Option<u64>,
    /// The member that has unsettled deliveries of this lane. No other member gets any until they are settled.
    holder: Option<u64>,
    in_flight: usize,
    /// The first offset for this group.
    began: u64,
    next: u64,
    open: BTreeMap<u64, Open>,
    returned: BTreeSet<u64>,
    pub(super) place: CursorState,
}

/// Whether messages wait for this group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Durability {
    /// A group: messages that it settles may be forgotten, and abandoned ones are delivered again.
    Durable,
    /// A live reader: nothing is delivered twice.
    Live,
}

/// Where a cursor waits for its next delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CursorState {
    Idle,
    /// In the ready queue of its target.
    Ready,
    /// Its next message is held back by a seeded delay.
    Held,
}

/// The next message of a lane for a group.
pub(super) enum Next {
    Nothing,
    HeldUntil(Instant),
    Message { offset: u64, size: usize },
}

/// A message on its way to a member.
pub(super) struct NextMessage {
    pub(super) message: Message,
    pub(super) reply_to: Option<Topic>,
    pub(super) position: Text,
    pub(super) attempt: u32,
    /// Whether the group can have more of this lane.
    pub(super) more: bool,
}

#[derive(Debug)]
struct Open {
    attempt: u32,
    holder: Option<u64>,
}

// === impl TopicLog ===

impl TopicLog {
    /// A topic whose offsets begin with `first`.
    pub(super) fn new(name: Topic, lanes: usize, first: u64) -> Self {
        Self {
            name,
            lanes: (0..lanes).map(|_| Lane::new(first)).collect(),
            messages: 0,
            bytes: 0,
            is_asked_for: false,
            was_read: false,
            created: 0,
            round_robin: 0,
        }
    }

    /// Whether only senders have used it: nobody reads it, and nobody has asked for it by name.
    pub(super) fn is_unread(&self) -> bool {
        let mut lanes = self.lanes.iter();
        !self.is_asked_for && !self.lanes.is_empty() && lanes.all(|lane| lane.cursors.is_empty())
    }

    /// Whether it exists for live readers alone: no group reads it, and nobody has asked for it by name.
    pub(super) fn is_for_live_readers_alone(&self) -> bool {
        let mut cursors = self.lanes.iter().flat_map(|lane| &lane.cursors).peekable();
        !self.is_asked_for
            && cursors.peek().is_some()
            && cursors.all(|cursor| cursor.keeping == Durability::Live)
    }

    /// Whether its readers have read and settled all of it.
    pub(super) fn is_read(&self) -> bool {
        let is_read = |lane: &Lane| {
            let end = lane.end();
            let mut cursors = lane.cursors.iter();
            cursors.all(|cursor| cursor.floor() == end && cursor.open.is_empty())
        };
        self.lanes.iter().all(is_read)
    }

    /// Whether some reader has read and settled each message that it holds: one that came later has read none of those
    /// before.
    pub(super) fn is_read_from_start(&self) -> bool {
        let is_read = |lane: &Lane| {
            let (start, end) = (lane.start(), lane.end());
            let mut cursors = lane.cursors.iter();
            start == end || cursors.any(|it| it.began <= start && it.floor() == end)
        };
        self.lanes.iter().all(is_read)
    }

    /// The offset after all of its messages.
    pub(super) fn end(&self) -> u64 {
        self.lanes.iter().map(Lane::end).max().unwrap_or_default()
    }

    /// The lane of a message: that of its key, or each in turn.
    pub(super) fn lane_of(&mut self, key: Option<&[u8]>) -> usize {
        let lanes = self.lanes.len().max(1);
        match key {
            Some(key) => (fnv1a(key) % lanes as u64) as usize,
            None => {
                self.round_robin = (self.round_robin + 1) % lanes;
                self.round_robin
            }
        }
    }

    /// Forgets what every reader of a lane has settled; returns whether that made room.
    pub(super) fn trim(&mut self, lane: usize) -> bool {
        let Some(lane) = self.lanes.get_mut(lane) else {
            return false;
        };
        let (messages, bytes) = lane.trim();
        self.messages -= messages;
        self.bytes -= bytes;
        messages > 0
    }
}

/// Hash of a key: stable across processes and versions, so that a test names its lanes once.
fn fnv1a(key: &[u8]) -> u64 {
    key.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

// === impl Lane ===

impl Lane {
    fn new(first: u64) -> Self {
        Self {
            first,
            entries: VecDeque::new(),
            cursors: Vec::new(),
        }
    }

    /// The offset after the last message.
    pub(super) fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    pub(super) fn start(&self) -> u64 {
        self.first
    }

    /// Appends a message.
    pub(super) fn push(&mut self, entry: Entry) {
        self.entries.push_back(entry);
    }

    pub(super) fn entry(&self, offset: u64) -> Option<&Entry> {
        let index = usize::try_from(offset.checked_sub(self.first)?).ok()?;
        self.entries.get(index)
    }

    pub(super) fn cursor(&mut self, group: u64) -> Option<&mut Cursor> {
        self.cursors.iter_mut().find(|cursor| cursor.group == group)
    }

    /// The next delivery for the target of the group's cursor. If there is none, the cursor is no longer ready.
    pub(super) fn next_for(&mut self, group: u64) -> Next {
        let (first, end) = (self.first, self.end());
        let Some(cursor) = self.cursors.iter_mut().find(|cursor| cursor.group == group) else {
            return Next::Nothing;
        };
        let entry = cursor
            .peek(end)
            .filter(|_| cursor.is_free_for_target())
            .and_then(|offset| {
                let index = usize::try_from(offset.checked_sub(first)?).ok()?;
                Some((offset, self.entries.get(index)?))
            });
        match entry {
            None => {
                cursor.place = CursorState::Idle;
                Next::Nothing
            }
            Some((offset, entry)) => match entry.not_before.filter(|due| *due > Instant::now()) {
                Some(due) => {
                    cursor.place = CursorState::Held;
                    Next::HeldUntil(due)
                }
                None => Next::Message {
                    offset,
                    size: entry.size,
                },
            },
        }
    }

    /// Takes the message that [`Lane::next_for`] named out for a member.
    pub(super) fn take_for(&mut self, group: u64, offset: u64, member: u64) -> Option<NextMessage> {
        let entry = self.entry(offset)?;
        let (message, reply_to) = (entry.message.clone(), entry.reply_to.clone());
        let position = entry.position.clone();
        let end = self.end();
        let cursor = self.cursor(group)?;
        let attempt = cursor.take(offset, member);
        let more = cursor.peek(end).is_some();
        cursor.place = if more {
            CursorState::Ready
        } else {
            CursorState::Idle
        };
        Some(NextMessage {
            message,
            reply_to,
            position,
            attempt,
            more,
        })
    }

    pub(super) fn has_durable_reader(&self) -> bool {
        self.cursors
            .iter()
            .any(|cursor| cursor.keeping == Durability::Durable)
    }

    /// Forgets the entries that every cursor has settled; returns how many, and their bytes.
    fn trim(&mut self) -> (usize, usize) {
        let Some(floor) = self.cursors.iter().map(Cursor::floor).min() else {
            return (0, 0);
        };
        let (mut messages, mut bytes) = (0, 0);
        while self.first < floor
            && let Some(entry) = self.entries.pop_front()
        {
            self.first += 1;
            messages += 1;
            bytes += entry.size;
        }
        (messages, bytes)
    }
}

// === impl Cursor ===

impl Cursor {
    pub(super) fn new(group: u64, keeping: Durability, next: u64) -> Self {
        Self {
            group,
            keeping,
            target: None,
            holder: None,
            in_flight: 0,
            began: next,
            next,
            open: BTreeMap::new(),
            returned: BTreeSet::new(),
            place: CursorState::Idle,
        }
    }

    /// The first offset this group still needs.
    fn floor(&self) -> u64 {
        self.open
            .first_key_value()
            .map_or(self.next, |(offset, _)| *offset)
    }

    /// The offset to deliver next: abandoned messages first, in order, then new ones.
    pub(super) fn peek(&self, end: u64) -> Option<u64> {
        self.returned
            .first()
            .copied()
            .or_else(|| (self.next < end).then_some(self.next))
    }

    /// Whether the target may be given a delivery now.
    pub(super) fn is_free_for_target(&self) -> bool {
        self.target.is_some() && (self.holder.is_none() || self.holder == self.target)
    }

    /// Notes that the peeked offset goes to the member; returns which attempt that is.
    fn take(&mut self, offset: u64, member: u64) -> u32 {
        self.returned.remove(&offset);
        self.next = self.next.max(offset + 1);
        self.holder = Some(member);
        self.in_flight += 1;
        let open = self.open.entry(offset).or_insert(Open {
            attempt: 0,
            holder: None,
        });
        open.attempt = open.attempt.saturating_add(1);
        open.holder = Some(member);
        let attempt = open.attempt;
        debug_assert!(self.is_consistent());
        attempt
    }

    /// Whether this very delivery is still out with that member.
    pub(super) fn is_out(&self, offset: u64, member: u64, attempt: u32) -> bool {
        self.open
            .get(&offset)
            .is_some_and(|open| open.holder == Some(member) && open.attempt == attempt)
    }

    /// Ends a delivery that is out, for good.
    pub(super) fn settle(&mut self, offset: u64) {
        if self.open.remove(&offset).is_some() {
            self.one_less_in_flight();
        }
        debug_assert!(self.is_consistent());
    }

    /// Ends a delivery that is out; it will be delivered again.
    pub(super) fn give_back(&mut self, offset: u64) {
        if let Some(open) = self.open.get_mut(&offset)
            && open.holder.take().is_some()
        {
            self.returned.insert(offset);
            self.one_less_in_flight();
        }
        debug_assert!(self.is_consistent());
    }

    /// Gives back everything that is out with a member that left.
    pub(super) fn give_back_all_of(&mut self, member: u64) {
        let out: Vec<u64> = self
            .open
            .iter()
            .filter(|(_, open)| open.holder == Some(member))
            .map(|(offset, _)| *offset)
            .collect();
        for offset in out {
            self.give_back(offset);
        }
    }

    fn one_less_in_flight(&mut self) {
        self.in_flight -= 1;
        if self.in_flight == 0 {
            self.holder = None;
        }
    }

    /// The invariant of a cursor: each open message is either held by the one holder or waits to be delivered again.
    fn is_consistent(&self) -> bool {
        self.open.len() == self.in_flight + self.returned.len()
            && (self.in_flight == 0) == self.holder.is_none()
    }
}
