//! Groups and their members.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use a2abus_plugin::Text;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::delivery::Delivery;
use crate::memory::lane::{Cursor, Durability, LaneKey, TopicLog};
use crate::message::Topic;
use crate::transport::TopicFilter;

/// Readers that share one position: a named group, or one live reader.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) keeping: Durability,
    /// A live reader of one partition only.
    partition: Option<usize>,
    /// Everything its members ever subscribed to: topics created later belong to the group by these.
    pub(super) filters: Vec<TopicFilter>,
    pub(super) members: BTreeMap<u64, Member>,
    /// Lanes whose next message a seeded delay holds back, and until when.
    pub(super) held: Vec<(Instant, LaneKey)>,
}

/// A member of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::memory) struct MemberId {
    pub(super) group: u64,
    pub(super) member: u64,
}

/// How a member reads.
#[derive(Debug, Clone)]
pub(in crate::memory) enum Role {
    Group(Text),
    Live { partition: Option<u32> },
}

/// One reader.
#[derive(Debug)]
pub(in crate::memory) struct Member {
    filters: Vec<TopicFilter>,
    deliveries: mpsc::Sender<Delivery>,
    /// Wakes the task that tends this member.
    wake: Arc<Notify>,
    pub(super) accepting: bool,
    pub(super) ready: VecDeque<LaneKey>,
    budget: Budget,
    pub(super) in_flight: Budget,
}

/// An amount of messages, by number and size.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::memory) struct Budget {
    pub(in crate::memory) messages: usize,
    pub(in crate::memory) bytes: usize,
}

// === impl Group ===

impl Group {
    pub(super) fn new(role: &Role) -> Self {
        let (keeping, partition) = match role {
            Role::Group(_) => (Durability::Durable, None),
            Role::Live { partition } => (Durability::Live, *partition),
        };
        Self {
            keeping,
            partition: partition.and_then(|partition| usize::try_from(partition).ok()),
            filters: Vec::new(),
            members: BTreeMap::new(),
            held: Vec::new(),
        }
    }

    /// Whether it subscribed to a topic.
    pub(super) fn reads(&self, topic: &Topic) -> bool {
        matches(&self.filters, topic)
    }

    /// Whether it is a live reader of whole topics.
    pub(super) fn is_live(&self) -> bool {
        self.keeping == Durability::Live && self.partition.is_none()
    }

    /// Gives the group a cursor on every lane of a topic that it subscribed to and does not read yet.
    pub(super) fn attach(&self, id: u64, index: usize, topic: &mut TopicLog) {
        if !self.reads(&topic.name) {
            return;
        }
        let partition = self.partition;
        let able = self.able(&topic.name);
        for (number, lane) in topic.lanes.iter_mut().enumerate() {
            if partition.is_some_and(|partition| partition != number) || lane.cursor(id).is_some() {
                continue;
            }
            let next = match self.keeping {
                Durability::Durable => lane.start(),
                Durability::Live => lane.end(),
            };
            let mut cursor = Cursor::new(id, self.keeping, next);
            cursor.target = target(&able, index + number);
            lane.cursors.push(cursor);
        }
    }

    /// The members that read the lanes of a topic.
    pub(super) fn able(&self, topic: &Topic) -> Vec<u64> {
        let members = self.members.iter();
        let able = members.filter(|(_, it)| it.accepting && matches(&it.filters, topic));
        able.map(|(id, _)| *id).collect()
    }

    pub(super) fn member(&mut self, id: u64) -> Option<&mut Member> {
        self.members.get_mut(&id)
    }

    pub(super) fn member_ids(&self) -> impl Iterator<Item = u64> {
        self.members.keys().copied()
    }

    pub(super) fn hold(&mut self, until: Instant, key: LaneKey) {
        self.held.push((until, key));
    }
}

/// The one of these members that reads a lane: each lane of a topic another one, as far as members go.
pub(super) fn target(able: &[u64], turn: usize) -> Option<u64> {
    able.get(turn.checked_rem(able.len())?).copied()
}

fn matches(filters: &[TopicFilter], topic: &Topic) -> bool {
    filters.iter().any(|filter| filter.matches(topic))
}

// === impl Member ===

impl Member {
    pub(in crate::memory) fn new(
        filters: Vec<TopicFilter>,
        deliveries: mpsc::Sender<Delivery>,
        wake: Arc<Notify>,
        budget: Budget,
    ) -> Self {
        Self {
            filters,
            deliveries,
            wake,
            accepting: true,
            ready: VecDeque::new(),
            budget,
            in_flight: Budget::default(),
        }
    }

    pub(super) fn push_ready(&mut self, key: LaneKey) {
        self.ready.push_back(key);
    }

    /// The lane to serve next, unless the member takes nothing any more.
    pub(super) fn next_ready(&self) -> Option<LaneKey> {
        self.ready.front().copied().filter(|_| self.accepting)
    }

    pub(super) fn pop_ready(&mut self) {
        self.ready.pop_front();
    }

    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Room for one delivery in the channel; `None` if the receiver is gone.
    pub(super) fn permit(&self) -> Option<mpsc::Permit<'_, Delivery>> {
        self.deliveries.try_reserve().ok()
    }

    /// Whether a message of that size may go out. One larger than the whole budget may, when it is alone.
    pub(super) fn has_budget(&self, size: usize) -> bool {
        self.in_flight.messages < self.budget.messages
            && (self.in_flight.messages == 0
                || self.in_flight.bytes.saturating_add(size) <= self.budget.bytes)
    }

    pub(super) fn charge(&mut self, size: usize) {
        self.in_flight.messages += 1;
        self.in_flight.bytes += size;
    }

    pub(super) fn uncharge(&mut self, size: usize) {
        self.in_flight.messages -= 1;
        self.in_flight.bytes -= size;
        if !self.accepting && self.in_flight.messages == 0 {
            self.wake();
        }
    }
}
