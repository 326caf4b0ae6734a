//! Dispatch: the next deliveries of a member, within its budget.

use std::sync::Weak;

use super::group::{Member, MemberId};
use super::{OutstandingDelivery, State, Store, stale};
use crate::delivery::{Acknowledger, Delivery, Outcome, Settle};
use crate::error::TransportError;
use crate::memory::lane::{CursorState, LaneKey, Next, NextMessage};
use crate::message::Topic;

/// The result of an attempt to give a member one delivery.
enum DispatchResult {
    /// Ask again.
    More,
    /// Nothing is ready, or the budget is spent.
    Done,
    /// The member has stopped receiving.
    Gone,
}

/// The right to settle one delivery. It is weak: an unsettled delivery does not keep an otherwise unused bus alive.
struct Settlement {
    store: Weak<Store>,
    out: OutstandingDelivery,
}

impl Settle for Settlement {
    fn settle(self: Box<Self>, outcome: Outcome) -> Result<(), TransportError> {
        match self.store.upgrade() {
            Some(store) => store.settle(self.out, outcome),
            None => stale(outcome),
        }
    }

    fn is_current(&self) -> bool {
        let store = self.store.upgrade();
        store.is_some_and(|store| store.is_out(&self.out))
    }
}

fn delivery(
    topic: Topic,
    taken: NextMessage,
    out: OutstandingDelivery,
    store: Weak<Store>,
) -> Delivery {
    Delivery {
        message: taken.message,
        reply_to: taken.reply_to,
        origin: Some(taken.position.into()),
        topic,
        lane: u32::try_from(out.key.lane).unwrap_or(u32::MAX),
        attempt: out.attempt,
        acknowledger: Acknowledger::new(Box::new(Settlement { store, out }), None),
    }
}

// === impl State ===

impl State {
    /// Puts the lane into the ready queue of the member that should read it, and serves that member.
    pub(super) fn offer_lane(&mut self, group: u64, key: LaneKey) {
        let Some(target) = self.enqueue(group, key) else {
            return;
        };
        self.serve(MemberId {
            group,
            member: target,
        });
    }

    /// As [`State::offer_lane`], without serving; `None` when the lane has nothing for anybody now.
    pub(super) fn enqueue(&mut self, group: u64, key: LaneKey) -> Option<u64> {
        let lane = self
            .topics
            .get_mut(key.topic)
            .and_then(|log| log.lanes.get_mut(key.lane))?;
        let end = lane.end();
        let cursor = lane.cursor(group)?;
        let target = cursor.target?;
        if cursor.place != CursorState::Idle
            || !cursor.is_free_for_target()
            || cursor.peek(end).is_none()
        {
            return None;
        }
        let member = self.groups.get_mut(&group)?.member(target)?;
        member.push_ready(key);
        cursor.place = CursorState::Ready;
        Some(target)
    }

    pub(super) fn member(&mut self, seat: MemberId) -> Option<&mut Member> {
        self.groups.get_mut(&seat.group)?.member(seat.member)
    }

    pub(super) fn serve_all(&mut self) {
        let seats: Vec<MemberId> = self
            .groups
            .iter()
            .flat_map(|(group, readers)| {
                readers.member_ids().map(|member| MemberId {
                    group: *group,
                    member,
                })
            })
            .collect();
        for seat in seats {
            self.serve(seat);
        }
    }

    /// Gives a member the messages that are ready for it, within its budget.
    pub(super) fn serve(&mut self, seat: MemberId) {
        if self.down.is_some() {
            return;
        }
        loop {
            match self.serve_one(seat) {
                DispatchResult::More => {}
                DispatchResult::Done => return,
                DispatchResult::Gone => {
                    // Its receiver is closed: the lanes go to the rest of the group.
                    self.pause(seat);
                    return;
                }
            }
        }
    }

    fn serve_one(&mut self, seat: MemberId) -> DispatchResult {
        let Some(group) = self.groups.get_mut(&seat.group) else {
            return DispatchResult::Done;
        };
        let Some(member) = group.member(seat.member) else {
            return DispatchResult::Done;
        };
        let Some(key) = member.next_ready() else {
            return DispatchResult::Done;
        };
        let Some((name, lane)) = self.topics.get_mut(key.topic).and_then(|log| {
            let lane = log.lanes.get_mut(key.lane)?;
            Some((log.name.clone(), lane))
        }) else {
            return DispatchResult::Done;
        };
        let (offset, size) = match lane.next_for(seat.group) {
            Next::Nothing => {
                member.pop_ready();
                return DispatchResult::More;
            }
            Next::HeldUntil(due) => {
                member.pop_ready();
                // The task of the member waits for the time.
                member.wake();
                group.hold(due, key);
                return DispatchResult::More;
            }
            Next::Message { offset, size } => (offset, size),
        };
        if !member.has_budget(size) {
            return DispatchResult::Done;
        }
        let Some(permit) = member.permit() else {
            return DispatchResult::Gone;
        };
        let Some(taken) = lane.take_for(seat.group, offset, seat.member) else {
            return DispatchResult::Done;
        };
        let more = taken.more;
        let out = OutstandingDelivery {
            seat,
            key,
            offset,
            attempt: taken.attempt,
        };
        permit.send(delivery(name, taken, out, Weak::clone(&self.store)));
        member.charge(size);
        member.pop_ready();
        if more {
            member.push_ready(key);
        }
        DispatchResult::More
    }
}
