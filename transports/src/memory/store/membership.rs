//! Joining and leaving groups: which member reads which lane.

use tokio::time::Instant;

use super::State;
use super::group::{Group, Member, MemberId, Role, target};
use crate::error::{TransportError, TransportErrorKind};
use crate::memory::lane::{CursorState, Durability, LaneKey};
use crate::message::Topic;
use crate::transport::TopicFilter;

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
            topic.was_read |= topic.is_read_from_start();
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
        self.recount_unread();
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
