//! Deliveries that are not read yet, because there is no memory for their copies.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use a2abus_transports::Delivery;

/// The unread deliveries of each lane, in order. The budget of the subscription counts them.
#[derive(Default)]
pub(super) struct Unread {
    lanes: BTreeMap<u32, VecDeque<Delivery>>,
    /// The lane of the last one that was read.
    last: u32,
}

// === impl Unread ===

impl Unread {
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    pub(super) fn push(&mut self, delivery: Delivery) {
        let lane = self.lanes.entry(delivery.lane).or_default();
        lane.push_back(delivery);
    }

    /// Removes the first delivery of a lane that may be read now. Lanes without a message come first, so that a held lane
    /// does not take the room of the others; the other lanes take turns.
    pub(super) fn next(
        &mut self,
        is_empty: impl Fn(u32) -> bool,
        has_room: impl Fn() -> bool,
    ) -> Option<Delivery> {
        let empty = self.lanes.keys().copied().find(|lane| is_empty(*lane));
        let lane = match empty {
            Some(lane) => lane,
            None if has_room() => self.after_last()?,
            None => return None,
        };
        let deliveries = self.lanes.get_mut(&lane)?;
        let delivery = deliveries.pop_front();
        if deliveries.is_empty() {
            self.lanes.remove(&lane);
        }
        self.last = lane;
        delivery
    }

    /// The lane after the last one; after the highest comes the lowest.
    fn after_last(&self) -> Option<u32> {
        let higher = (Bound::Excluded(self.last), Bound::Unbounded);
        let mut after = self.lanes.range(higher).chain(&self.lanes);
        after.next().map(|(lane, _)| *lane)
    }
}

#[cfg(test)]
mod tests {
    use a2abus_transports::memory::Memory;
    use a2abus_transports::{Address, Message, Topic, Transport as _};

    use super::*;
    use crate::pipeline::tests::subscription;

    #[tokio::test]
    async fn a_lane_with_messages_takes_no_room_of_the_others() {
        let memory = Memory::default();
        let mut consumer = memory.subscribe(subscription("t")).await.unwrap();
        let to = Address::topic(Topic::new("t").unwrap());
        let mut unread = Unread::default();
        for lane in [0, 0, 1, 2, 2] {
            let sent = memory.send(&to, Message::plain("a message")).await;
            sent.unwrap().await.unwrap();
            let mut delivery = consumer.recv().await.unwrap();
            delivery.lane = lane;
            unread.push(delivery);
        }
        let mut next = |empty: Option<u32>, has_room: bool| {
            let delivery = unread.next(|lane| Some(lane) == empty, || has_room);
            delivery.map(|delivery| delivery.lane)
        };
        assert_eq!(next(None, false), None);
        assert_eq!(next(Some(2), true), Some(2), "it has no message");
        for lane in [0, 1, 2, 0] {
            assert_eq!(next(None, true), Some(lane), "they take turns");
        }
        assert_eq!(next(None, true), None);
    }
}
