//! Decides which offset of a partition may be committed.
//!
//! Deliveries settle in any order; Kafka remembers one number per partition. For each lane (one partition of the
//! subscription) the [`Ledger`] keeps the outstanding offsets in the order of arrival, and returns the offset after the
//! longest settled prefix. Offsets are sparse (compaction, transaction markers), so the prefix is over received
//! offsets, never over `+ 1`.
//!
//! An assignment of a partition is an epoch. We cannot commit anything of an earlier epoch: its outcomes are counted
//! and ignored.
//!
//! Pure: no client, no clock, no lock.

use std::collections::VecDeque;

use crate::delivery::Outcome;

/// The offsets of all partitions of one subscription.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    lanes: Vec<Lane>,
    stale: u64,
}

/// One outstanding offset, as its delivery remembers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    lane: u32,
    epoch: u64,
    sequence: u64,
}

/// Whether the partition of a delivery was still assigned when it was settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TicketState {
    Counted,
    /// The partition was revoked meanwhile, or its topic created again.
    Stale,
}

/// One partition.
#[derive(Debug, Default)]
struct Lane {
    /// The current assignment; even numbers mean that the partition is not assigned.
    epoch: u64,
    /// Received and not in the settled prefix, oldest first.
    ring: VecDeque<Entry>,
    /// The sequence number of the first entry.
    base: u64,
    /// How many entries are [`State::Out`].
    out: usize,
    /// How many entries are [`State::Waiting`].
    waiting: usize,
    /// The offset after the settled prefix of this assignment, or the first offset of a topic that was created again.
    position: Option<i64>,
    /// `position` changed since it was last taken.
    moved: bool,
    /// The topic was created again since that was last taken.
    restarted: bool,
    /// The topic was created again, and the last known commit is still of the old one.
    has_old_commit: bool,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    offset: i64,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Out,
    /// Outstanding, waiting only for an answer.
    Waiting,
    Settled,
    /// Abandoned: the prefix never passes it, and nobody waits for it.
    Abandoned,
}

// === impl Ledger ===

impl Ledger {
    /// A lane for one more partition, which is not assigned yet.
    pub(super) fn add_lane(&mut self) -> u32 {
        self.lanes.push(Lane::default());
        u32::try_from(self.lanes.len() - 1).unwrap_or(u32::MAX)
    }

    /// Starts an assignment of the partition. Offsets of an earlier assignment are forgotten.
    pub(super) fn assign(&mut self, lane: u32) {
        if let Some(lane) = self.lane_mut(lane) {
            let epoch = (lane.epoch | 1) + u64::from(lane.is_assigned()) * 2;
            *lane = Lane {
                epoch,
                ..Lane::default()
            };
        }
    }

    /// Ends the assignment of the partition.
    pub(super) fn revoke(&mut self, lane: u32) {
        if let Some(lane) = self.lane_mut(lane)
            && lane.is_assigned()
        {
            *lane = Lane {
                epoch: lane.epoch + 1,
                ..Lane::default()
            };
        }
    }

    /// The current assignment of the lane, or `None` when it is not assigned.
    pub(super) fn epoch(&self, lane: u32) -> Option<u64> {
        self.lane(lane)
            .filter(|lane| lane.is_assigned())
            .map(|lane| lane.epoch)
    }

    /// Adds an outstanding offset, or returns `None` when the assignment in which it was received is over. Offsets of
    /// one assignment ascend, unless the topic was deleted and created again: then the offsets of the old topic are
    /// forgotten.
    pub(super) fn receive(&mut self, lane: u32, epoch: u64, offset: i64) -> Option<Ticket> {
        let entry = self
            .lane_mut(lane)
            .filter(|lane| lane.is_assigned() && lane.epoch == epoch)?;
        if entry.next().is_some_and(|next| offset < next) {
            entry.restart(offset);
        }
        let sequence = entry.base + entry.ring.len() as u64;
        entry.ring.push_back(Entry {
            offset,
            state: State::Out,
        });
        entry.out += 1;
        Some(Ticket {
            lane,
            epoch,
            sequence,
        })
    }

    /// Whether the assignment of the offset is still the current one.
    pub(super) fn is_current(&self, ticket: Ticket) -> bool {
        self.epoch(ticket.lane) == Some(ticket.epoch)
    }

    /// Records whether only an answer is missing for an offset.
    pub(super) fn set_waiting(&mut self, ticket: Ticket, is_waiting: bool) {
        if let Some(lane) = self
            .lane_mut(ticket.lane)
            .filter(|lane| lane.epoch == ticket.epoch)
        {
            lane.set_waiting(ticket.sequence, is_waiting);
        }
    }

    /// Records the outcome of an offset.
    pub(super) fn settle(&mut self, ticket: Ticket, outcome: Outcome) -> TicketState {
        let state = match outcome {
            Outcome::Settled => State::Settled,
            Outcome::Abandoned => State::Abandoned,
        };
        let counted = self
            .lane_mut(ticket.lane)
            .filter(|lane| lane.epoch == ticket.epoch)
            .is_some_and(|lane| lane.settle(ticket.sequence, state));
        if counted {
            TicketState::Counted
        } else {
            self.stale += 1;
            TicketState::Stale
        }
    }

    /// Lanes whose position moved since the last call, with the offset to commit.
    pub(super) fn take_moved(&mut self) -> Vec<(u32, i64)> {
        let mut moved = Vec::new();
        for (index, lane) in (0_u32..).zip(&mut self.lanes) {
            if std::mem::take(&mut lane.moved)
                && let Some(position) = lane.position
            {
                moved.push((index, position));
            }
        }
        moved
    }

    /// Lanes whose topic was created again since the last call.
    pub(super) fn take_restarted(&mut self) -> Vec<u32> {
        let lanes = (0_u32..).zip(&mut self.lanes);
        let restarted =
            lanes.filter_map(|(index, lane)| std::mem::take(&mut lane.restarted).then_some(index));
        restarted.collect()
    }

    /// Lanes whose topic was created again, and whose last known commit is of the old topic.
    pub(super) fn with_old_commits(&self) -> Vec<u32> {
        let lanes = (0_u32..).zip(&self.lanes);
        let old = lanes.filter_map(|(index, lane)| lane.has_old_commit.then_some(index));
        old.collect()
    }

    /// Notes a commit of a lane. One above its position is of the topic before it was created again.
    pub(super) fn committed(&mut self, lane: u32, offset: i64) {
        if let Some(lane) = self.lane_mut(lane)
            && lane.position.is_some_and(|position| offset <= position)
        {
            lane.has_old_commit = false;
        }
    }

    /// The offset to commit for a lane, whether taken before or not; `None` while nothing of this assignment is
    /// settled.
    pub(super) fn position(&self, lane: u32) -> Option<i64> {
        self.lane(lane).and_then(|lane| lane.position)
    }

    /// The first received offset of a lane that is not settled.
    pub(super) fn unsettled(&self, lane: u32) -> Option<i64> {
        let first = self.lane(lane)?.ring.front();
        first.map(|first| first.offset)
    }

    /// The number of outstanding offsets that do not just wait for an answer.
    pub(super) fn out(&self, lane: u32) -> usize {
        self.lane(lane).map_or(0, |lane| lane.out)
    }

    /// The sequence number of the oldest outstanding offset that does not just wait for an answer.
    pub(super) fn oldest_out(&self, lane: u32) -> Option<u64> {
        let lane = self.lane(lane).filter(|lane| lane.out > 0)?;
        let index = lane
            .ring
            .iter()
            .position(|entry| entry.state == State::Out)?;
        Some(lane.base + index as u64)
    }

    /// How many offsets are outstanding on all lanes, including those that wait for an answer.
    pub(super) fn all_out(&self) -> usize {
        self.lanes.iter().map(|lane| lane.out + lane.waiting).sum()
    }

    /// How many offsets are remembered because the oldest of them is not settled.
    pub(super) fn held(&self, lane: u32) -> usize {
        self.lane(lane).map_or(0, |lane| lane.ring.len())
    }

    /// The number of outcomes that came too late.
    pub(super) fn stale(&self) -> u64 {
        self.stale
    }

    fn lane(&self, lane: u32) -> Option<&Lane> {
        self.lanes.get(usize::try_from(lane).ok()?)
    }

    fn lane_mut(&mut self, lane: u32) -> Option<&mut Lane> {
        self.lanes.get_mut(usize::try_from(lane).ok()?)
    }
}

// === impl Lane ===

impl Lane {
    fn is_assigned(&self) -> bool {
        self.epoch % 2 == 1
    }

    /// The lowest offset that may come next.
    fn next(&self) -> Option<i64> {
        let last = self.ring.back();
        last.map(|last| last.offset + 1).or(self.position)
    }

    /// Forgets all offsets. Outcomes of outstanding ones come too late.
    fn restart(&mut self, first: i64) {
        *self = Self {
            epoch: self.epoch,
            base: self.base + self.ring.len() as u64,
            position: Some(first),
            moved: true,
            restarted: true,
            has_old_commit: true,
            ..Self::default()
        };
    }

    /// False when the entry is unknown or already has its outcome.
    fn settle(&mut self, sequence: u64, state: State) -> bool {
        let Some(entry) = self.entry_mut(sequence) else {
            return false;
        };
        match std::mem::replace(&mut entry.state, state) {
            State::Waiting => self.waiting -= 1,
            _ => self.out -= 1,
        }
        self.advance();
        true
    }

    fn set_waiting(&mut self, sequence: u64, is_waiting: bool) {
        let state = if is_waiting {
            State::Waiting
        } else {
            State::Out
        };
        let Some(entry) = self.entry_mut(sequence) else {
            return;
        };
        match (std::mem::replace(&mut entry.state, state), state) {
            (State::Out, State::Waiting) => {
                self.out -= 1;
                self.waiting += 1;
            }
            (State::Waiting, State::Out) => {
                self.waiting -= 1;
                self.out += 1;
            }
            _ => {}
        }
    }

    /// An entry without an outcome.
    fn entry_mut(&mut self, sequence: u64) -> Option<&mut Entry> {
        let index = usize::try_from(sequence.checked_sub(self.base)?).ok()?;
        let entry = self.ring.get_mut(index)?;
        matches!(entry.state, State::Out | State::Waiting).then_some(entry)
    }

    fn advance(&mut self) {
        while let Some(entry) = self.ring.front()
            && entry.state == State::Settled
        {
            self.position = Some(entry.offset + 1);
            self.moved = true;
            self.base += 1;
            self.ring.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// A ledger with one assigned lane and these outstanding offsets.
    fn out(offsets: &[i64]) -> (Ledger, Vec<Ticket>) {
        let mut ledger = Ledger::default();
        let lane = ledger.add_lane();
        ledger.assign(lane);
        let epoch = ledger.epoch(lane).unwrap();
        let tickets = offsets
            .iter()
            .map(|offset| ledger.receive(lane, epoch, *offset).unwrap())
            .collect();
        (ledger, tickets)
    }

    #[test]
    fn only_the_settled_prefix_is_committed() {
        let (mut ledger, tickets) = out(&[5, 7, 11, 12]);
        let mut check = |index: usize, expected: &[(u32, i64)]| {
            assert_eq!(
                ledger.settle(tickets[index], Outcome::Settled),
                TicketState::Counted
            );
            assert_eq!(ledger.take_moved(), expected);
        };
        check(1, &[]);
        check(0, &[(0, 8)]);
        check(3, &[]);
        check(2, &[(0, 13)]);
        assert_eq!(ledger.held(0), 0);
    }

    #[test]
    fn an_abandoned_offset_is_never_passed_and_never_awaited() {
        let (mut ledger, tickets) = out(&[0, 1, 2]);
        ledger.settle(tickets[1], Outcome::Abandoned);
        ledger.settle(tickets[0], Outcome::Settled);
        ledger.settle(tickets[2], Outcome::Settled);
        assert_eq!(ledger.take_moved(), [(0, 1)]);
        assert_eq!((ledger.out(0), ledger.held(0)), (0, 2));
    }

    #[test]
    fn offsets_of_a_topic_that_was_created_again_replace_the_old_ones() {
        let (mut ledger, old) = out(&[5, 6, 7]);
        ledger.settle(old[0], Outcome::Settled);
        ledger.settle(old[2], Outcome::Settled);
        let epoch = ledger.epoch(0).unwrap();
        let new = ledger.receive(0, epoch, 0).unwrap();
        assert_eq!(ledger.take_moved(), [(0, 0)]);
        assert_eq!(ledger.take_restarted(), [0]);
        assert_eq!(ledger.settle(old[1], Outcome::Settled), TicketState::Stale);
        assert_eq!((ledger.out(0), ledger.held(0)), (1, 1));
        ledger.settle(new, Outcome::Settled);
        assert_eq!(ledger.take_moved(), [(0, 1)]);
        assert!(ledger.take_restarted().is_empty());
        // Again, after everything is settled.
        ledger.receive(0, epoch, 0).unwrap();
        assert_eq!(
            (ledger.position(0), ledger.take_restarted()),
            (Some(0), vec![0])
        );
    }

    #[test]
    fn the_commit_of_a_topic_that_was_created_again_is_old_until_a_later_one_succeeds() {
        let (mut ledger, _) = out(&[5]);
        let epoch = ledger.epoch(0).unwrap();
        let new = ledger.receive(0, epoch, 0).unwrap();
        assert_eq!(ledger.with_old_commits(), [0]);
        ledger.settle(new, Outcome::Settled);
        // The answer to a commit of the old topic.
        ledger.committed(0, 5);
        assert_eq!(ledger.with_old_commits(), [0]);
        ledger.committed(0, 1);
        assert!(ledger.with_old_commits().is_empty());
        ledger.receive(0, epoch, 0).unwrap();
        assert_eq!(ledger.with_old_commits(), [0]);
        ledger.revoke(0);
        assert!(ledger.with_old_commits().is_empty());
    }

    #[test]
    fn an_outcome_of_an_earlier_assignment_is_stale() {
        let (mut ledger, tickets) = out(&[0, 1]);
        ledger.revoke(0);
        assert_eq!(ledger.epoch(0), None);
        assert_eq!(
            ledger.settle(tickets[0], Outcome::Settled),
            TicketState::Stale
        );
        ledger.assign(0);
        assert_eq!(
            ledger.settle(tickets[1], Outcome::Settled),
            TicketState::Stale
        );
        assert_eq!((ledger.stale(), ledger.position(0)), (2, None));
    }

    #[test]
    fn an_assignment_over_an_assignment_is_a_new_epoch() {
        let (mut ledger, tickets) = out(&[0]);
        ledger.assign(0);
        assert_eq!(
            ledger.settle(tickets[0], Outcome::Settled),
            TicketState::Stale
        );
        assert!(ledger.epoch(0).is_some());
    }

    #[test]
    fn a_record_received_before_the_revocation_is_not_handed_out_after_it() {
        let (mut ledger, _) = out(&[]);
        let before = ledger.epoch(0).unwrap();
        ledger.revoke(0);
        ledger.assign(0);
        assert_eq!(ledger.receive(0, before, 3), None);
    }

    #[test]
    fn a_second_outcome_changes_nothing() {
        let (mut ledger, tickets) = out(&[0, 1]);
        ledger.settle(tickets[1], Outcome::Abandoned);
        assert_eq!(
            ledger.settle(tickets[1], Outcome::Settled),
            TicketState::Stale
        );
        ledger.settle(tickets[0], Outcome::Settled);
        assert_eq!(ledger.position(0), Some(1));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Receive {
            lane: u32,
            gap: i64,
        },
        /// The topic was created again: its offsets go back.
        Recreate {
            lane: u32,
            back: i64,
        },
        Wait {
            which: usize,
            is_waiting: bool,
        },
        Settle {
            which: usize,
            outcome: Outcome,
        },
        Revoke {
            lane: u32,
        },
        Assign {
            lane: u32,
        },
        Take,
    }

    fn step() -> impl Strategy<Value = Step> {
        let lane = 0..3_u32;
        prop_oneof![
            6 => (lane.clone(), 1..4_i64).prop_map(|(lane, gap)| Step::Receive { lane, gap }),
            6 => (any::<usize>(), prop_oneof![9 => Just(Outcome::Settled), 1 => Just(Outcome::Abandoned)])
                .prop_map(|(which, outcome)| Step::Settle { which, outcome }),
            1 => (lane.clone(), 0..20_i64).prop_map(|(lane, back)| Step::Recreate { lane, back }),
            2 => any::<(usize, bool)>().prop_map(|(which, is_waiting)| Step::Wait { which, is_waiting }),
            1 => lane.clone().prop_map(|lane| Step::Revoke { lane }),
            1 => lane.prop_map(|lane| Step::Assign { lane }),
            2 => Just(Step::Take),
        ]
    }

    /// The reference model: every offset ever received, with its outcome, without any optimisation.
    #[derive(Default)]
    struct Model {
        assigned: [bool; 3],
        received: [Vec<(i64, Option<Outcome>)>; 3],
        /// Those that wait for an answer, by their index.
        waiting: [BTreeSet<usize>; 3],
        next: [i64; 3],
        /// The first offset of a topic that was created again.
        first: [Option<i64>; 3],
    }

    impl Model {
        fn position(&self, lane: usize) -> Option<i64> {
            self.received[lane]
                .iter()
                .take_while(|(_, verdict)| *verdict == Some(Outcome::Settled))
                .last()
                .map(|(offset, _)| offset + 1)
                .or(self.first[lane])
        }

        fn clear(&mut self, lane: usize, first: Option<i64>) {
            self.received[lane].clear();
            self.waiting[lane].clear();
            self.first[lane] = first;
        }

        fn out(&self, lane: usize) -> usize {
            self.received[lane]
                .iter()
                .enumerate()
                .filter(|(place, (_, verdict))| {
                    verdict.is_none() && !self.waiting[lane].contains(place)
                })
                .count()
        }
    }

    proptest! {
        #[test]
        fn the_ledger_equals_the_model_under_any_interleaving(steps in prop::collection::vec(step(), 1..200)) {
            let mut ledger = Ledger::default();
            let mut model = Model::default();
            for _ in 0..3 {
                ledger.add_lane();
            }
            // Tickets with the lane, the place in the model, and the assignment they belong to.
            let mut tickets: Vec<(Ticket, usize, usize, u64)> = Vec::new();
            let mut assignment = [0_u64; 3];
            let mut committed = [None::<i64>; 3];
            for step in steps {
                match step {
                    Step::Receive { lane, gap } => {
                        let index = lane as usize;
                        let epoch = ledger.epoch(lane);
                        prop_assert_eq!(epoch.is_some(), model.assigned[index]);
                        if let Some(epoch) = epoch {
                            model.next[index] += gap;
                            let ticket = ledger.receive(lane, epoch, model.next[index]).unwrap();
                            tickets.push((ticket, index, model.received[index].len(), assignment[index]));
                            model.received[index].push((model.next[index], None));
                        }
                    }
                    Step::Recreate { lane, back } => {
                        let index = lane as usize;
                        // The first offset of an assignment may be any.
                        let is_known = !model.received[index].is_empty() || model.first[index].is_some();
                        if let Some(epoch) = ledger.epoch(lane).filter(|_| is_known) {
                            model.next[index] -= back;
                            let first = model.next[index];
                            let ticket = ledger.receive(lane, epoch, first).unwrap();
                            model.clear(index, Some(first));
                            assignment[index] += 1;
                            tickets.push((ticket, index, 0, assignment[index]));
                            model.received[index].push((first, None));
                            committed[index] = None;
                            prop_assert!(ledger.take_restarted().contains(&lane));
                        }
                    }
                    Step::Wait { which, is_waiting } => if !tickets.is_empty() {
                        let (ticket, lane, place, of) = tickets[which % tickets.len()];
                        ledger.set_waiting(ticket, is_waiting);
                        if model.assigned[lane] && of == assignment[lane] {
                            match is_waiting {
                                true => model.waiting[lane].insert(place),
                                false => model.waiting[lane].remove(&place),
                            };
                        }
                    },
                    Step::Settle { which, outcome } => if !tickets.is_empty() {
                        let (ticket, lane, place, of) = tickets[which % tickets.len()];
                        let current = model.assigned[lane] && of == assignment[lane];
                        let open = current && model.received[lane][place].1.is_none();
                        let verdict = ledger.settle(ticket, outcome);
                        prop_assert_eq!(verdict == TicketState::Counted, open);
                        if open {
                            model.received[lane][place].1 = Some(outcome);
                        }
                    },
                    Step::Revoke { lane } => {
                        ledger.revoke(lane);
                        model.assigned[lane as usize] = false;
                        model.clear(lane as usize, None);
                        committed[lane as usize] = None;
                    }
                    Step::Assign { lane } => {
                        ledger.assign(lane);
                        model.assigned[lane as usize] = true;
                        model.clear(lane as usize, None);
                        assignment[lane as usize] += 1;
                        committed[lane as usize] = None;
                    }
                    Step::Take => for (lane, position) in ledger.take_moved() {
                        let lane = lane as usize;
                        prop_assert!(model.assigned[lane]);
                        prop_assert!(committed[lane] < Some(position), "a commit goes forward");
                        committed[lane] = Some(position);
                        prop_assert_eq!(Some(position), model.position(lane));
                    },
                }
                for lane in 0..3 {
                    let index = lane as usize;
                    prop_assert_eq!(ledger.position(lane), model.position(index));
                    prop_assert_eq!(ledger.out(lane), model.out(index));
                    let unsettled = model.received[index]
                        .iter()
                        .find(|(_, verdict)| *verdict != Some(Outcome::Settled));
                    if let (Some(position), Some((offset, _))) = (ledger.position(lane), unsettled) {
                        prop_assert!(position <= *offset, "a commit never passes an unsettled offset");
                    }
                }
            }
            let moved = ledger.take_moved();
            for (lane, position) in moved {
                prop_assert_eq!(Some(position), model.position(lane as usize));
            }
        }
    }
}
