//! The order of one lane: what it does next, and what has to wait.
//!
//! ```text
//! Open ──a copy fails──> Held ──all in flight decided──> First ──confirmed──> SendAgain ──all confirmed──> Open
//!                         ^                                                      │ a copy fails
//!                         └──────────────────────────────────────────────────────┘
//! ```
//! Pure: it neither sends nor waits. `M` is a message that was received, `F` one whose copies failed.

use std::collections::VecDeque;

/// The messages of one lane.
#[derive(Debug)]
pub(super) struct Lane<M, F> {
    /// In the order they were received.
    waiting: VecDeque<(u64, M)>,
    /// Those whose copies failed, in the same order. All came before those that wait.
    failed: VecDeque<(u64, F)>,
    received: u64,
    /// A task of this lane runs.
    is_busy: bool,
    /// Messages whose copies are with their buses.
    in_flight: usize,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Messages are sent as they come.
    Open,
    /// Nothing is sent until everything in flight is decided; then the first message that failed is.
    Held,
    /// Those that failed are sent again, and nothing else.
    SendAgain,
}

/// The next action of a lane.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Task<M, F> {
    /// A new message, with its number.
    Send(u64, M),
    /// One that failed, alone, until it is confirmed.
    First(F),
    /// One that failed, without waiting for its confirmation.
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
    /// Takes a message from the source.
    pub(super) fn receive(&mut self, message: M) {
        self.waiting.push_back((self.received, message));
        self.received += 1;
    }

    /// The next task, when the lane may do one now. It is busy until [`Lane::sent`] or [`Lane::recovered`].
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

    /// The copies of the current message are with their buses; `has_failed` says that one of them is not, and will be
    /// sent again.
    pub(super) fn sent(&mut self, has_failed: bool) {
        self.is_busy = false;
        self.in_flight += 1;
        if has_failed {
            self.phase = Phase::Held;
        }
    }

    /// All copies of a message are confirmed, or what stands for them.
    pub(super) fn confirmed(&mut self) {
        self.in_flight -= 1;
    }

    /// A copy of a message failed and has to be sent again.
    pub(super) fn failed(&mut self, number: u64, failed: F) {
        self.in_flight -= 1;
        self.phase = Phase::Held;
        let at = self.failed.partition_point(|(other, _)| *other < number);
        self.failed.insert(at, (number, failed));
    }

    /// The first message that failed is confirmed: the others follow.
    pub(super) fn recovered(&mut self) {
        self.is_busy = false;
        self.phase = Phase::SendAgain;
    }

    /// Takes out messages that wait for their turn.
    pub(super) fn remove_waiting(&mut self, is_unwanted: impl Fn(&M) -> bool) -> Vec<M> {
        let mut removed = Vec::new();
        for (number, message) in std::mem::take(&mut self.waiting) {
            if is_unwanted(&message) {
                removed.push(message);
            } else {
                self.waiting.push_back((number, message));
            }
        }
        removed
    }

    /// Whether messages wait for one that failed.
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
    fn what_failed_goes_again_in_order_before_anything_later() {
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
    fn what_fails_again_is_first_again() {
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
    fn a_copy_that_was_not_even_sent_holds_the_lane_at_once() {
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
    fn a_lane_whose_failure_was_settled_otherwise_goes_on() {
        let mut lane = lane(2);
        assert_eq!(lane.next(), Some(Task::Send(0, 0)));
        lane.sent(true);
        lane.confirmed();
        assert_eq!(lane.next(), Some(Task::Send(1, 1)));
    }
}
