//! Groups and their members: who reads which lane.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::{LaneKey, MemberId, Role, State};
use crate::delivery::Delivery;
use crate::error::{TransportError, TransportErrorKind};
use crate::memory::lane::{Cursor, CursorState, Durability, TopicLog};
use crate::message::Topic;
use crate::transport::TopicFilter;

/// Readers that share one position: a named group, or one live reader.
#[derive(Debug)]
pub(super) struct Group {
    keeping: Durability,
    /// A live reader of one partition only.
    partition: Option<usize>,
    /// Everything its members ever subscribed to: topics created later belong to the group by these.
    filters: Vec<TopicFilter>,
    members: BTreeMap<u64, Member>,
    /// Lanes whose next message a seeded delay holds back, and until when.
    held: Vec<(Instant, LaneKey)>,
}

/// One reader.
#[derive(Debug)]
pub(in crate::memory) struct Member {
    filters: Vec<TopicFilter>,
    deliveries: mpsc::Sender<Delivery>,
    /// Wakes the task that tends this member.
    wake: Arc<Notify>,
    accepting: bool,
    ready: VecDeque<LaneKey>,
    budget: Budget,
    in_flight: Budget,
}

/// An amount of messages, by number and size.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::memory) struct Budget {
    pub(in crate::memory) messages: usize,
    pub(in crate::memory) bytes: usize,
}

// === impl Group ===

impl Group {
    fn new(role: &Role) -> Self {
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
    fn able(&self, topic: &Topic) -> Vec<u64> {
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
fn target(able: &[u64], turn: usize) -> Option<u64> {
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

// === impl State ===

impl State {
    pub(super) fn join(
        &mut self,
        role: &Role,
        filters: &[TopicFilter],
        member: Member,
    ) -> Result<MemberId, TransportError> {
        let partitions = usize::from(self.config.partitions.get());
        for name in filters.iter().filter_map(TopicFilter::as_topic) {
            let index = self.topic(&name, partitions)?;
            let lanes = self.topics.get_mut(index).map_or(0, |topic| {
                topic.is_asked_for = true;
                topic.lanes.len()
            });
            check_partition(role, &name, lanes)?;
        }
        let id = self.group_of(role);
        let seat = MemberId {
            group: id,
            member: self.new_id(),
        };
        let Some(group) = self.groups.get_mut(&id) else {
            debug_assert!(false, "a group that was just found or made is there");
            return Ok(seat);
        };
        for filter in filters {
            if !group.filters.contains(filter) {
                group.filters.push(filter.clone());
            }
        }
        group.members.insert(seat.member, member);
        for (index, topic) in self.topics.iter_mut().enumerate() {
            group.attach(id, index, topic);
        }
        self.rebalance(id);
        Ok(seat)
    }

    fn group_of(&mut self, role: &Role) -> u64 {
        if let Role::Group(name) = role
            && let Some(id) = self.by_group.get(name)
        {
            return *id;
        }
        let id = self.new_id();
        self.groups.insert(id, Group::new(role));
        if let Role::Group(name) = role {
            self.by_group.insert(name.clone(), id);
        }
        id
    }

    /// Gives every lane of the group its member anew, and serves them all. A lane whose member changes is handed over
    /// once the old one has nothing of it in flight.
    fn rebalance(&mut self, id: u64) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        for member in group.members.values_mut() {
            member.ready.clear();
            // The member that watched over delayed messages may be gone.
            member.wake();
        }
        let mut lanes = Vec::new();
        for (index, topic) in self.topics.iter_mut().enumerate() {
            let able = group.able(&topic.name);
            for (number, lane) in topic.lanes.iter_mut().enumerate() {
                let Some(cursor) = lane.cursor(id) else {
                    continue;
                };
                cursor.target = target(&able, index + number);
                if cursor.place == CursorState::Ready {
                    cursor.place = CursorState::Idle;
                }
                lanes.push(LaneKey {
                    topic: index,
                    lane: number,
                });
            }
        }
        for key in lanes {
            self.enqueue(id, key);
        }
        let members: Vec<u64> = self
            .groups
            .get(&id)
            .map(|group| group.member_ids().collect())
            .unwrap_or_default();
        for member in members {
            self.serve(MemberId { group: id, member });
        }
    }

    pub(super) fn pause(&mut self, seat: MemberId) {
        let was_accepting = self
            .member(seat)
            .map(|member| std::mem::replace(&mut member.accepting, false));
        if was_accepting == Some(true) {
            self.rebalance(seat.group);
        }
    }

    pub(super) fn in_flight(&mut self, seat: MemberId) -> usize {
        self.member(seat)
            .map_or(0, |member| member.in_flight.messages)
    }

    /// Takes a member out of its group and returns it. A live reader takes its cursors along.
    pub(super) fn leave(&mut self, seat: MemberId) -> Option<Member> {
        let group = self.groups.get_mut(&seat.group)?;
        let member = group.members.remove(&seat.member);
        match group.keeping {
            Durability::Durable => {
                for lane in self.topics.iter_mut().flat_map(|topic| &mut topic.lanes) {
                    if let Some(cursor) = lane.cursor(seat.group) {
                        cursor.give_back_all_of(seat.member);
                    }
                }
                self.rebalance(seat.group);
            }
            Durability::Live => {
                self.groups.remove(&seat.group);
                self.forget_cursors(seat.group);
            }
        }
        member
    }

    /// Forgets what only that live reader still kept.
    fn forget_cursors(&mut self, group: u64) {
        for topic in &mut self.topics {
            for number in 0..topic.lanes.len() {
                let Some(lane) = topic.lanes.get_mut(number) else {
                    continue;
                };
                lane.cursors.retain(|cursor| cursor.group != group);
                if lane.has_durable_reader() {
                    topic.trim(number);
                }
            }
        }
    }

    pub(super) fn release(&mut self, seat: MemberId) -> Option<Instant> {
        let now = Instant::now();
        let group = self.groups.get_mut(&seat.group)?;
        let due: Vec<LaneKey> = group
            .held
            .extract_if(.., |(until, _)| *until <= now)
            .map(|(_, key)| key)
            .collect();
        let next = group.held.iter().map(|(until, _)| *until).min();
        for key in due {
            let lane = self
                .topics
                .get_mut(key.topic)
                .and_then(|topic| topic.lanes.get_mut(key.lane));
            if let Some(cursor) = lane.and_then(|lane| lane.cursor(seat.group)) {
                cursor.place = CursorState::Idle;
            }
            self.offer_lane(seat.group, key);
        }
        // Serving may have met the next message that is held back.
        let group = self.groups.get(&seat.group)?;
        group.held.iter().map(|(until, _)| *until).min().or(next)
    }
}

fn check_partition(role: &Role, topic: &Topic, lanes: usize) -> Result<(), TransportError> {
    match role {
        Role::Live {
            partition: Some(partition),
        } if usize::try_from(*partition).is_ok_and(|partition| partition >= lanes) => {
            Err(TransportError::new(
                TransportErrorKind::UnknownTopic,
                format!(
                    "read partition {partition} of the memory topic {topic}, which has {lanes}"
                ),
            ))
        }
        Role::Live { .. } | Role::Group(_) => Ok(()),
    }
}
