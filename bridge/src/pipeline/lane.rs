//! The order of one lane.
//!
//! ```text
//! Open ──a copy fails──> Held ──all in flight decided──> First ──confirmed──> SendAgain ──all confirmed──> Open
//!                         ^                                                      │ a copy fails
//!                         └──────────────────────────────────────────────────────┘
//! ```
//! It neither sends nor waits. `M` is a received message, `F` one whose copies failed.

use std::collections::VecDeque;

/// The messages of one lane.
#[derive(Debug)]
pub(super) struct Lane<M, F> {
    /// Messages whose copies failed, in order. All are older than the waiting ones.
    failed: VecDeque<(u64, F)>,
    /// Received messages, in order.
    waiting: VecDeque<(u64, M)>,
    received: u64,
    /// Whether a task of this lane runs.
    is_busy: bool,
    /// The number of messages whose copies are unconfirmed.
    in_flight: usize,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Messages are sent as they arrive.
    Open,
    /// Nothing is sent until everything in flight is decided. Then the first failed message is sent.
    Held,
    /// Only the failed messages are sent again.
    SendAgain,
}

/// The next action of a lane.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Task<M, F> {
    /// A new message, with its number.
    Send(u64, M),
    /// The first failed message, alone, until it is confirmed.
    First(F),
    /// A failed message, without waiting for its confirmation.
    Again(u64, F),
}

impl<M, F> Default for Lane<M, F> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            failed: VecDeque::new(),
            received: 0,
            is_busy: false,
            in_flight: 0,
            phase: Phase::Open,
        }
    }
}

// === impl Lane ===

impl<M, F> Lane<M, F> {
    /// Adds a received message.
    pub(super) fn receive(&mut self, message: M) {
        self.waiting.push_back((self.received, message));
        self.received += 1;
    }

    /// The next task, if the lane is free. It is then busy until [`Lane::sent`] or [`Lane::recovered`].
    pub(super) fn next(&mut self) -> Option<Task<M, F>> {
        if self.is_busy {
            return None;
        }
        let task = match self.phase {
            Phase::Open => self.step(),
            Phase::Held | Phase::SendAgain if self.failed.is_empty() && self.in_flight == 0 => {
                self.phase = Phase::Open;
                self.step()
            }
            Phase::Held if self.in_flight > 0 => None,
            Phase::Held => self
                .failed
                .pop_front()
                .map(|(_, failed)| Task::First(failed)),
            Phase::SendAgain => self
                .failed
                .pop_front()
                .map(|(number, failed)| Task::Again(number, failed)),
        };
        self.is_busy = task.is_some();
        task
    }

    fn step(&mut self) -> Option<Task<M, F>> {
        self.waiting
            .pop_front()
            .map(|(number, message)| Task::Send(number, message))
    }

    /// The copies of the current message were handed to their buses. `has_failed`: one of them was not, and will be sent
    /// again.
    pub(super) fn sent(&mut self, has_failed: bool) {
        self.is_busy = false;
        self.in_flight += 1;
        if has_failed {
            self.phase = Phase::Held;
        }
    }

    /// A copy of a message in flight failed and has to be sent again.
    pub(super) fn hold(&mut self) {
        self.phase = Phase::Held;
    }

    /// All copies of a message, or their replacements, are confirmed.
    pub(super) fn confirmed(&mut self) {
        self.in_flight -= 1;
    }

    /// The number of messages whose copies are unconfirmed.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// A copy of a message failed and has to be sent again.
    pub(super) fn failed(&mut self, number: u64, failed: F) {
        self.in_flight -= 1;
        self.phase = Phase::Held;
        let at = self.failed.partition_point(|(other, _)| *other < number);
        self.failed.insert(at, (number, failed));
    }

    /// The first failed message is confirmed, so the others follow.
    pub(super) fn recovered(&mut self) {
        self.is_busy = false;
        self.phase = Phase::SendAgain;
    }

    /// The messages that have failed, and those that wait.
    pub(super) fn left(&self) -> (impl Iterator<Item = &F>, impl Iterator<Item = &M>) {
        let failed = self.failed.iter().map(|(_, failed)| failed);
        (failed, self.waiting.iter().map(|(_, waiting)| waiting))
    }

    /// Removes waiting messages.
    pub(super) fn remove_waiting(&mut self, is_unwanted: impl Fn(&M) -> bool) -> Vec<(u64, M)> {
        let mut removed = Vec::new();
        for (number, message) in std::mem::take(&mut self.waiting) {
            if is_unwanted(&message) {
                removed.push((number, message));
            } else {
                self.waiting.push_back((number, message));
            }
        }
        removed
    }

    /// Whether it has no message, in whatever state.
    pub(super) fn is_empty(&self) -> bool {
        let is_idle = !self.is_busy && self.in_flight == 0;
        is_idle && self.waiting.is_empty() && self.failed.is_empty()
    }

    /// Whether messages wait for a failed one.
    pub(super) fn is_held(&self) -> bool {
        self.phase != Phase::Open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(messages: u64) -> Lane<u64, u64> {
        let mut lane = Lane::default();
        for message in 0..messages {
            lane.receive(message);
        }
        lane
    }

    fn send(lane: &mut Lane<u64, u64>) -> u64 {
        let number = match lane.next() {
            Some(Task::Send(number, _) | Task::Again(number, _)) => number,
            other => panic!("{other:?}"),
        };
        lane.sent(false);
        number
    }

    #[test]
    fn failed_messages_are_sent_again_in_order_before_later_ones() {
        let mut lane = lane(8);
        for expected in 0..6 {
            assert_eq!(send(&mut lane), expected);
        }
        lane.failed(4, 4);
        assert_eq!(lane.next(), None, "others are in flight");
        lane.confirmed();
        lane.failed(2, 2);
        lane.failed(5, 5);
        lane.confirmed();
        assert_eq!(lane.next(), None);
        lane.failed(3, 3);
        assert_eq!(lane.next(), Some(Task::First(2)));
        assert_eq!(lane.next(), None, "nothing overtakes the first");
        lane.recovered();
        for expected in 3..6 {
            assert_eq!(send(&mut lane), expected);
        }
        assert_eq!(
            lane.next(),
            None,
            "nothing overtakes those that were sent again"
        );
        assert!(lane.is_held());
        lane.confirmed();
        lane.confirmed();
        assert_eq!(lane.next(), None);
        lane.confirmed();
        assert_eq!(send(&mut lane), 6);
        assert!(!lane.is_held());
        assert_eq!(send(&mut lane), 7);
    }

    #[test]
    fn a_message_that_fails_again_is_first_again() {
        let mut lane = lane(4);
        for _ in 0..3 {
            send(&mut lane);
        }
        for number in 0..3 {
            lane.failed(number, number);
        }
        assert_eq!(lane.next(), Some(Task::First(0)));
        lane.recovered();
        assert_eq!(send(&mut lane), 1);
        assert_eq!(send(&mut lane), 2);
        lane.failed(1, 1);
        assert_eq!(lane.next(), None);
        lane.confirmed();
        assert_eq!(lane.next(), Some(Task::First(1)));
        lane.recovered();
        assert_eq!(send(&mut lane), 3);
    }

    #[test]
    fn a_copy_that_could_not_be_sent_holds_the_lane_at_once() {
        let mut lane = lane(2);
        assert_eq!(lane.next(), Some(Task::Send(0, 0)));
        lane.sent(true);
        assert_eq!(lane.next(), None);
        lane.failed(0, 0);
        assert_eq!(lane.next(), Some(Task::First(0)));
        lane.recovered();
        assert_eq!(lane.next(), Some(Task::Send(1, 1)));
    }

    #[test]
    fn a_lane_is_empty_once_its_last_message_is_confirmed() {
        let mut lane = lane(1);
        assert!(!lane.is_empty());
        assert_eq!(lane.next(), Some(Task::Send(0, 0)));
        assert!(!lane.is_empty(), "it is handed over");
        lane.sent(false);
        assert!(!lane.is_empty(), "it is unconfirmed");
        lane.failed(0, 0);
        assert!(!lane.is_empty());
        assert_eq!(lane.next(), Some(Task::First(0)));
        assert!(!lane.is_empty());
        lane.recovered();
        assert!(lane.is_empty());
    }

    #[test]
    fn a_lane_continues_after_its_failed_message_was_settled() {
        let mut lane = lane(2);
        assert_eq!(lane.next(), Some(Task::Send(0, 0)));
        lane.sent(true);
        lane.confirmed();
        assert_eq!(lane.next(), Some(Task::Send(1, 1)));
    }
}
