//! The state that the reading thread of a subscription shares with its outstanding deliveries: offsets and budget.
//!
//! One lock, held for a few instructions. The thread waits on it for room or for outcomes.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use a2abus_plugin::Text;

use crate::delivery::{Outcome, Settle};
use crate::error::TransportError;
use crate::kafka::offsets::{Ledger, Ticket, TicketState};
use crate::message::Topic;

/// The minimum of the number of offsets per partition that may wait behind an unsettled one; see [`Intake::new`].
const MIN_HELD: usize = 4096;
/// How long the reading thread waits for more room than for one message.
const ROOM_PAUSE: Duration = Duration::from_millis(5);
/// A partition is read while it uses less than four times the free budget. So one partition of which nothing settles
/// uses at most 4/5, two use 8/9 together, and so on: the others always have a part. Source: A. K. Choudhury and E. L.
/// Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998.
const SHARE: Halves = Halves(8);
/// What a partition uses when there is room for several messages.
const ROOMY: Halves = Halves(7);
/// What a held partition uses when it is read again.
const RESUMED: Halves = Halves(2);
/// How long the budget, or the share of a partition, may be used up before partitions are paused. A pause discards
/// prefetched records.
pub(super) const PAUSE_AFTER: Duration = Duration::from_millis(200);
/// The interval at which the waiting reading thread checks for other work.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The shared state of one subscription.
#[derive(Debug)]
pub(super) struct Intake {
    state: Mutex<State>,
    changed: Condvar,
    keeping: PositionStorage,
    budget: Budget,
    max_held: usize,
}

/// Whether positions are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PositionStorage {
    Offsets,
    Nothing,
}

/// Limits on outstanding deliveries.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Budget {
    pub(super) bytes: usize,
    pub(super) messages: usize,
}

/// One partition of the subscription; its index in the list is its lane.
#[derive(Debug)]
struct AssignedPartition {
    topic: Topic,
    partition: i32,
    /// Whether nothing has been received since it was assigned.
    fresh: bool,
    /// The offset after the last delivered record.
    next: Option<i64>,
    /// Whether librdkafka was last told to pause it. It remembers that when the partition goes to another member, and
    /// does not read the partition when it comes back.
    paused: bool,
    /// Assigned since librdkafka was last told.
    is_new: bool,
    /// What its outstanding deliveries use of the budget, including those of earlier assignments.
    used: Budget,
    /// Not read, because it uses its share of the budget and little of that becomes free.
    is_held: bool,
    /// Whether a delivery has settled since [`Intake::note_progress`].
    has_settled: bool,
    /// When that last was the case, or nothing was outstanding.
    progressed: Instant,
}

/// The answer to [`Intake::admit`].
#[derive(Debug)]
pub(super) enum Admission {
    /// The record may be delivered.
    Granted(Settlement),
    /// Its partition was revoked after it was received.
    Stale,
    /// The budget is used up.
    NoRoom,
    /// Its partition uses its whole share of the budget.
    NoShare,
    /// Its partition has too many offsets behind one that does not settle, or is held.
    LaneFull,
}

/// Partitions to pause and to resume.
#[derive(Debug, Default)]
pub(super) struct FlowChange {
    /// All partitions with too many records of their own, as `TOPIC/PARTITION`.
    pub(super) full: Vec<Text>,
    pub(super) pause: Vec<(Topic, i32)>,
    pub(super) resume: Vec<(Topic, i32)>,
}

/// Settles one delivery and releases its room.
#[derive(Debug)]
pub(super) struct Settlement {
    intake: Arc<Intake>,
    lane: u32,
    ticket: Option<Ticket>,
    cost: usize,
}

#[derive(Debug)]
struct State {
    ledger: Ledger,
    places: Vec<AssignedPartition>,
    budget: Budget,
    used: Budget,
    /// What the reading thread waits for. Waking it earlier would be a needless system call.
    awaited: Option<Awaited>,
}

/// A part of the budget, in halves of what is free.
#[derive(Debug, Clone, Copy)]
struct Halves(usize);

/// The room that the reading thread waits for.
#[derive(Debug, Clone, Copy)]
struct Awaited {
    /// At most this is used.
    total: Budget,
    /// This partition has room for several messages.
    lane: Option<u32>,
}

// === impl Intake ===

impl Intake {
    /// An intake without assignments. Before it is paused, a partition may hold back eight times the budgeted messages,
    /// and at least 4096 offsets. A request that waits for its answer holds back everything that was read after it, and
    /// all of that is repeated if the process dies.
    pub(super) fn new(keeping: PositionStorage, budget: Budget) -> Self {
        Self {
            state: Mutex::new(State {
                ledger: Ledger::default(),
                places: Vec::new(),
                budget,
                used: Budget::default(),
                awaited: None,
            }),
            changed: Condvar::new(),
            keeping,
            budget,
            max_held: budget.messages.saturating_mul(8).max(MIN_HELD),
        }
    }

    /// The lane of a partition, and its topic.
    pub(super) fn lane(&self, topic: &str, partition: i32) -> Option<u32> {
        let mut state = self.state();
        let known = state
            .places
            .iter()
            .position(|place| place.partition == partition && place.topic.as_str() == topic);
        if let Some(lane) = known {
            return u32::try_from(lane).ok();
        }
        let topic = Topic::new(topic).ok()?;
        state.places.push(AssignedPartition {
            topic,
            partition,
            fresh: true,
            next: None,
            paused: false,
            is_new: false,
            used: Budget::default(),
            is_held: false,
            has_settled: false,
            progressed: Instant::now(),
        });
        Some(state.ledger.add_lane())
    }

    /// The topic of a lane.
    pub(super) fn topic(&self, lane: u32) -> Option<Topic> {
        self.state()
            .place_mut(lane)
            .map(|place| place.topic.clone())
    }

    /// Starts a new epoch on these lanes.
    pub(super) fn assign(&self, lanes: &[u32]) {
        let mut state = self.state();
        for lane in lanes {
            state.ledger.assign(*lane);
            if let Some(place) = state.place_mut(*lane) {
                place.fresh = true;
                place.is_new = true;
                place.is_held = false;
            }
        }
    }

    /// Ends the epoch of these lanes.
    pub(super) fn revoke(&self, lanes: &[u32]) {
        let mut state = self.state();
        for lane in lanes {
            state.ledger.revoke(*lane);
        }
    }

    /// Ends the epoch of all lanes, because their client has ended.
    pub(super) fn revoke_all(&self) {
        let mut state = self.state();
        for lane in 0..state.count() {
            state.ledger.revoke(lane);
        }
        for place in &mut state.places {
            place.paused = false;
        }
    }

    /// Whether any lane is assigned.
    pub(super) fn is_assigned(&self) -> bool {
        let state = self.state();
        (0..state.count()).any(|lane| state.ledger.epoch(lane).is_some())
    }

    /// The offset after the last delivered record of a partition.
    pub(super) fn next(&self, topic: &str, partition: i32) -> Option<i64> {
        let lane = self.lane(topic, partition)?;
        self.state().place_mut(lane)?.next
    }

    /// The current assignment of this lane, to which a new record belongs, and whether the record is the first of it.
    pub(super) fn arrive(&self, lane: u32) -> Option<(u64, bool)> {
        let mut state = self.state();
        let epoch = state.ledger.epoch(lane)?;
        let place = state.place_mut(lane)?;
        Some((epoch, std::mem::take(&mut place.fresh)))
    }

    /// Reserves room and an offset for one delivery.
    pub(super) fn admit(
        self: &Arc<Self>,
        lane: u32,
        epoch: u64,
        offset: i64,
        cost: usize,
    ) -> Admission {
        let mut state = self.state();
        if state.ledger.epoch(lane) != Some(epoch) {
            return Admission::Stale;
        }
        if state.ledger.held(lane) >= self.max_held {
            return Admission::LaneFull;
        }
        if !state.uses_at_most(self.before(cost)) {
            return Admission::NoRoom;
        }
        if !state.uses_less(lane, SHARE) {
            let is_held = state.place(lane).is_some_and(|place| place.is_held);
            return if is_held {
                Admission::LaneFull
            } else {
                Admission::NoShare
            };
        }
        let ticket = match self.keeping {
            PositionStorage::Offsets => match state.ledger.receive(lane, epoch, offset) {
                Some(ticket) => Some(ticket),
                None => return Admission::Stale,
            },
            PositionStorage::Nothing => None,
        };
        let cost = cost.min(self.budget.bytes);
        state.used.add(cost);
        if let Some(place) = state.place_mut(lane) {
            place.next = Some(offset + 1);
            place.used.add(cost);
        }
        Admission::Granted(Settlement {
            intake: Arc::clone(self),
            lane,
            ticket,
            cost,
        })
    }

    /// What may be used before a message of this cost is admitted. A message larger than the whole budget is admitted if
    /// nothing else is outstanding.
    fn before(&self, cost: usize) -> Budget {
        Budget {
            bytes: self.budget.bytes - cost.min(self.budget.bytes),
            messages: self.budget.messages - 1,
        }
    }

    /// Waits for room for one message of this cost; false on timeout. Waits a moment longer for an eighth of the budget:
    /// otherwise the thread would wake up for each message that settles.
    pub(super) fn wait_for_room(&self, cost: usize, max_wait: Duration) -> bool {
        let room = self.before(cost);
        self.wait_for_use(self.eighth(room), max_wait.min(ROOM_PAUSE))
            || self.wait_for_use(room, max_wait)
    }

    /// What may be used if there shall be this room, and an eighth of the budget.
    fn eighth(&self, room: Budget) -> Budget {
        let part = |all: usize| all - all / 8;
        Budget {
            bytes: room.bytes.min(part(self.budget.bytes)),
            messages: room.messages.min(part(self.budget.messages)),
        }
    }

    /// Waits until half of the budget is free that held partitions do not use; false on timeout.
    pub(super) fn wait_for_half(&self, max_wait: Duration) -> bool {
        let held = self.state().held();
        let half = |all: usize, held: usize| held + all.saturating_sub(held) / 2;
        let most = Budget {
            bytes: half(self.budget.bytes, held.bytes),
            messages: half(self.budget.messages, held.messages),
        };
        self.wait_for_use(most, max_wait)
    }

    /// Notes which partitions make progress. Called at short intervals.
    pub(super) fn note_progress(&self) {
        let now = Instant::now();
        for place in &mut self.state().places {
            if std::mem::take(&mut place.has_settled) || place.used.messages == 0 {
                place.progressed = now;
            }
        }
    }

    /// Waits until a partition has room for several messages, and a moment longer for an eighth of the budget. False if
    /// it takes longer than [`PAUSE_AFTER`], or if nothing has settled for as long: the partition is then held, until it
    /// uses less than what is free.
    pub(super) fn wait_for_share(&self, lane: u32) -> bool {
        let wait = |total, max_wait| {
            let lane = Some(lane);
            self.wait_for(Awaited { total, lane }, max_wait)
        };
        let progressed = self.state().place(lane).map(|place| place.progressed);
        let is_still = progressed.is_some_and(|at| at.elapsed() > PAUSE_AFTER);
        let has_room = wait(self.eighth(Budget::MAX), ROOM_PAUSE)
            || (!is_still && wait(Budget::MAX, PAUSE_AFTER));
        if let Some(place) = self.state().place_mut(lane) {
            place.is_held = !has_room;
        }
        has_room
    }

    fn wait_for_use(&self, total: Budget, max_wait: Duration) -> bool {
        self.wait_for(Awaited { total, lane: None }, max_wait)
    }

    fn wait_for(&self, room: Awaited, max_wait: Duration) -> bool {
        self.wait(Instant::now() + max_wait, room, |state| state.has(room))
    }

    /// Waits until the only outstanding deliveries of these lanes are those that wait for an answer. Answers are not
    /// awaited, because agents may take arbitrarily long, and the next reader of the partition repeats the request.
    /// False when other deliveries remain, which may still settle meanwhile.
    pub(super) fn wait_for_outcomes(&self, lanes: &[u32], until: impl Fn() -> Instant) -> bool {
        loop {
            let settled = |state: &State| lanes.iter().all(|lane| state.ledger.out(*lane) == 0);
            let now = Instant::now();
            let end = until();
            if self.wait(end.min(now + CHECK_INTERVAL), Awaited::ANY, settled) {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
        }
    }

    /// Waits until nothing is outstanding, or for a short while.
    pub(super) fn wait_for_all(&self, until: Instant) -> bool {
        let until = until.min(Instant::now() + CHECK_INTERVAL);
        self.wait(until, Awaited::ANY, |state| state.ledger.all_out() == 0)
    }

    /// Waits until the deadline or the end of the subscription. The end of the subscription does not notify the lock,
    /// so it is polled.
    pub(super) fn wait_for_stop(&self, until: Instant, stopped: impl Fn() -> bool) {
        while !stopped() && Instant::now() < until {
            let until = until.min(Instant::now() + CHECK_INTERVAL);
            self.wait(until, Awaited::ANY, |_| false);
        }
    }

    /// Checks `done` after every change after which `awaited` holds.
    fn wait(&self, until: Instant, awaited: Awaited, done: impl Fn(&State) -> bool) -> bool {
        let mut state = self.state();
        loop {
            if done(&state) {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state.awaited = Some(awaited);
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            state.awaited = None;
        }
    }

    /// Positions that moved since the last call.
    pub(super) fn take_moved(&self) -> Vec<(Topic, i32, i64)> {
        let mut state = self.state();
        let moved = state.ledger.take_moved();
        let located = moved.into_iter().filter_map(|(lane, position)| {
            let place = state.place_mut(lane)?;
            Some((place.topic.clone(), place.partition, position))
        });
        located.collect()
    }

    /// The positions on topics that were created again since the last call.
    pub(super) fn take_restarted(&self) -> Vec<(Topic, i32, i64)> {
        let lanes = self.state().ledger.take_restarted();
        self.positions(&lanes)
    }

    /// The positions of these lanes, whether they moved or not.
    pub(super) fn positions(&self, lanes: &[u32]) -> Vec<(Topic, i32, i64)> {
        let mut state = self.state();
        let located = lanes.iter().filter_map(|lane| {
            let position = state.ledger.position(*lane)?;
            let place = state.place_mut(*lane)?;
            Some((place.topic.clone(), place.partition, position))
        });
        located.collect()
    }

    /// The positions of all assigned lanes.
    pub(super) fn settled_positions(&self) -> Vec<(Topic, i32, i64)> {
        let lanes = 0..self.state().count();
        self.positions(&lanes.collect::<Vec<_>>())
    }

    /// Which partitions to pause and to resume; `everything` pauses all. A held partition is not reported as full: what
    /// it waits for is.
    pub(super) fn pace(&self, everything: bool) -> FlowChange {
        let mut state = self.state();
        let mut pace = FlowChange::default();
        for lane in 0..state.count() {
            let held = state.ledger.held(lane);
            let assigned = state.ledger.epoch(lane).is_some();
            let is_resumed = state.uses_less(lane, RESUMED);
            let Some(place) = state.place_mut(lane) else {
                continue;
            };
            place.is_held &= !is_resumed;
            let full = held >= self.max_held || (place.paused && held > self.max_held / 2);
            if assigned && full {
                let (topic, partition) = (&place.topic, place.partition);
                pace.full.push(format!("{topic}/{partition}").into());
            }
            let pause = everything || full || place.is_held;
            if !assigned || (pause == place.paused && !(pause && place.is_new)) {
                continue;
            }
            (place.paused, place.is_new) = (pause, false);
            let partition = (place.topic.clone(), place.partition);
            if pause {
                pace.pause.push(partition);
            } else {
                pace.resume.push(partition);
            }
        }
        pace
    }

    /// The number of outcomes that came too late.
    pub(super) fn stale(&self) -> u64 {
        self.state().ledger.stale()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Budget ===

impl Budget {
    const MAX: Self = Self {
        bytes: usize::MAX,
        messages: usize::MAX,
    };

    /// Counts one more message.
    fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.messages += 1;
    }

    /// Counts one message less.
    fn remove(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.messages = self.messages.saturating_sub(1);
    }
}

// === impl Awaited ===

impl Awaited {
    /// Any change.
    const ANY: Self = Self {
        total: Budget::MAX,
        lane: None,
    };
}

// === impl State ===

impl State {
    fn uses_at_most(&self, most: Budget) -> bool {
        self.used.bytes <= most.bytes && self.used.messages <= most.messages
    }

    /// Whether a partition uses less than this. One that uses nothing does.
    fn uses_less(&self, lane: u32, most: Halves) -> bool {
        let Some(place) = self.place(lane) else {
            return true;
        };
        let is_less = |used: usize, all: usize, in_use: usize| {
            let free = all.saturating_sub(in_use);
            used.saturating_mul(2) < free.saturating_mul(most.0)
        };
        let (own, all, in_use) = (place.used, self.budget, self.used);
        own.messages == 0
            || is_less(own.messages, all.messages, in_use.messages)
                && is_less(own.bytes, all.bytes, in_use.bytes)
    }

    /// What held partitions use.
    fn held(&self) -> Budget {
        let held = self.places.iter().filter(|place| place.is_held);
        held.fold(Budget::default(), |sum, place| Budget {
            bytes: sum.bytes + place.used.bytes,
            messages: sum.messages + place.used.messages,
        })
    }

    fn has(&self, room: Awaited) -> bool {
        self.uses_at_most(room.total) && room.lane.is_none_or(|lane| self.uses_less(lane, ROOMY))
    }

    /// Whether the reading thread waits for a change to this state.
    fn is_awaited(&self) -> bool {
        self.awaited.is_some_and(|room| self.has(room))
    }

    fn place(&self, lane: u32) -> Option<&AssignedPartition> {
        self.places.get(usize::try_from(lane).ok()?)
    }

    fn place_mut(&mut self, lane: u32) -> Option<&mut AssignedPartition> {
        self.places.get_mut(usize::try_from(lane).ok()?)
    }

    fn count(&self) -> u32 {
        u32::try_from(self.places.len()).unwrap_or(u32::MAX)
    }
}

// === impl Settlement ===

impl Settle for Settlement {
    /// An outcome that comes after the partition was revoked is counted but is not an error: the record is delivered
    /// again to the new owner in any case.
    fn settle(self: Box<Self>, outcome: Outcome) -> Result<(), TransportError> {
        let mut state = self.intake.state();
        state.used.remove(self.cost);
        if let Some(place) = state.place_mut(self.lane) {
            place.used.remove(self.cost);
            place.has_settled = true;
        }
        let verdict = self.ticket.map_or(TicketState::Counted, |ticket| {
            state.ledger.settle(ticket, outcome)
        });
        let is_awaited = state.is_awaited();
        drop(state);
        if is_awaited {
            self.intake.changed.notify_all();
        }
        if verdict == TicketState::Stale {
            tracing::debug!("a settlement arrived after its partition had moved");
        }
        Ok(())
    }

    fn is_current(&self) -> bool {
        let state = self.intake.state();
        self.ticket
            .is_none_or(|ticket| state.ledger.is_current(ticket))
    }

    fn set_waiting(&self, is_waiting: bool) {
        let Some(ticket) = self.ticket else { return };
        let mut state = self.intake.state();
        state.ledger.set_waiting(ticket, is_waiting);
        let is_awaited = state.is_awaited();
        drop(state);
        if is_awaited {
            self.intake.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intake(keeping: PositionStorage, bytes: usize, messages: usize) -> (Arc<Intake>, u32, u64) {
        let intake = Arc::new(Intake::new(keeping, Budget { bytes, messages }));
        let lane = intake.lane("t", 3).unwrap();
        intake.assign(&[lane]);
        let (epoch, first) = intake.arrive(lane).unwrap();
        assert!(first);
        (intake, lane, epoch)
    }

    fn granted(admission: Admission) -> Box<Settlement> {
        match admission {
            Admission::Granted(settlement) => Box::new(settlement),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_exhausted_budget_admits_nothing_until_a_delivery_settles() {
        let (intake, lane, epoch) = intake(PositionStorage::Offsets, 100, 10);
        let first = granted(intake.admit(lane, epoch, 0, 60));
        assert!(matches!(
            intake.admit(lane, epoch, 1, 60),
            Admission::NoRoom
        ));
        assert!(!intake.wait_for_room(60, Duration::from_millis(1)));
        first.settle(Outcome::Settled).unwrap();
        assert!(intake.wait_for_room(60, Duration::ZERO));
        granted(intake.admit(lane, epoch, 1, 60));
    }

    #[test]
    fn the_reading_thread_is_not_woken_for_each_message() {
        let (intake, lane, epoch) = intake(PositionStorage::Offsets, 1600, 16);
        let other = intake.lane("t", 4).unwrap();
        intake.assign(&[other]);
        // The first partition has used up its share before the whole budget is used up.
        let admit = |offset| {
            let lane = if offset < 13 { lane } else { other };
            granted(intake.admit(lane, epoch, offset, 1))
        };
        let mut out: Vec<_> = (0..16).map(admit).collect();
        let mut settle = || out.pop().unwrap().settle(Outcome::Settled).unwrap();
        let total = |total| Awaited { total, lane: None };
        intake.state().awaited = Some(total(intake.eighth(intake.before(1))));
        settle();
        assert!(!intake.state().is_awaited());
        assert!(intake.wait_for_room(1, Duration::ZERO), "there is room");
        intake.state().awaited = Some(total(intake.eighth(intake.before(1))));
        settle();
        assert!(intake.state().is_awaited());
    }

    #[test]
    fn the_message_count_is_limited_too() {
        let (intake, lane, epoch) = intake(PositionStorage::Offsets, 100, 1);
        let first = granted(intake.admit(lane, epoch, 0, 0));
        assert!(matches!(intake.admit(lane, epoch, 1, 0), Admission::NoRoom));
        first.settle(Outcome::Abandoned).unwrap();
        granted(intake.admit(lane, epoch, 1, 0));
    }

    #[test]
    fn a_message_larger_than_the_budget_takes_all_of_it() {
        let (intake, lane, epoch) = intake(PositionStorage::Offsets, 100, 10);
        let huge = granted(intake.admit(lane, epoch, 0, 1_000_000));
        assert!(matches!(intake.admit(lane, epoch, 1, 1), Admission::NoRoom));
        huge.settle(Outcome::Settled).unwrap();
        assert!(intake.wait_for_half(Duration::ZERO));
    }

    #[test]
    fn a_settled_prefix_moves_the_position_and_a_moved_partition_does_not() {
        let (intake, lane, epoch) = intake(PositionStorage::Offsets, 100, 10);
        let first = granted(intake.admit(lane, epoch, 7, 1));
        let second = granted(intake.admit(lane, epoch, 9, 1));
        second.settle(Outcome::Settled).unwrap();
        assert!(intake.take_moved().is_empty());
        first.settle(Outcome::Settled).unwrap();
        let moved = intake.take_moved();
        assert_eq!(moved, [(Topic::new("t").unwrap(), 3, 10)]);
        let late = granted(intake.admit(lane, epoch, 11, 1));
        assert!(late.is_current());
        intake.revoke(&[lane]);
        assert!(!late.is_current());
        late.settle(Outcome::Settled).unwrap();
        assert_eq!((intake.stale(), intake.positions(&[lane]).len()), (1, 0));
        assert!(matches!(intake.admit(lane, epoch, 12, 1), Admission::Stale));
    }

    #[test]
    fn only_the_partition_behind_an_unsettled_offset_is_paused() {
        let (intake, lane, epoch) = intake(PositionStorage::Offsets, usize::MAX, 10);
        let other = intake.lane("t", 4).unwrap();
        intake.assign(&[other]);
        let forgotten = granted(intake.admit(lane, epoch, 0, 1));
        assert_eq!((intake.next("t", 3), intake.next("t", 4)), (Some(1), None));
        for offset in 1..i64::try_from(MIN_HELD).unwrap() {
            granted(intake.admit(lane, epoch, offset, 1))
                .settle(Outcome::Settled)
                .unwrap();
        }
        assert!(matches!(
            intake.admit(lane, epoch, 5000, 1),
            Admission::LaneFull
        ));
        let pace = intake.pace(false);
        assert_eq!(pace.pause, [(Topic::new("t").unwrap(), 3)]);
        assert_eq!(pace.full, ["t/3"]);
        assert_eq!(intake.pace(false).full, ["t/3"], "as long as it is paused");
        forgotten.settle(Outcome::Settled).unwrap();
        let after = intake.pace(false);
        assert_eq!(after.resume, pace.pause);
        assert!(after.full.is_empty());
        assert!(intake.pace(true).full.is_empty(), "that is the budget");
    }

    /// Admits records until no more are admitted.
    fn fill(intake: &Arc<Intake>, lane: u32, cost: usize) -> Vec<Settlement> {
        let (epoch, _) = intake.arrive(lane).unwrap();
        let mut out = Vec::new();
        while let Admission::Granted(settlement) =
            intake.admit(lane, epoch, i64::try_from(out.len()).unwrap(), cost)
        {
            out.push(settlement);
        }
        out
    }

    #[test]
    fn partitions_of_which_nothing_settles_leave_a_part_of_the_budget_to_the_others() {
        let (intake, lane, _) = intake(PositionStorage::Offsets, 1_000_000, 1_000);
        let lanes = [
            lane,
            intake.lane("t", 4).unwrap(),
            intake.lane("t", 5).unwrap(),
        ];
        intake.assign(&lanes);
        let out: Vec<_> = lanes.iter().map(|lane| fill(&intake, *lane, 1)).collect();
        let admitted: Vec<_> = out.iter().map(Vec::len).collect();
        assert_eq!(admitted, [800, 160, 32]);
        for settlement in out.into_iter().flatten() {
            Box::new(settlement).settle(Outcome::Abandoned).unwrap();
        }
        // The same by bytes.
        let first = fill(&intake, lane, 10_000);
        let second = fill(&intake, lanes[1], 10_000);
        assert_eq!((first.len(), second.len()), (80, 16));
    }

    #[test]
    fn a_held_partition_is_read_again_when_it_uses_less_than_what_is_free() {
        let (intake, lane, epoch) = intake(PositionStorage::Offsets, usize::MAX, 1_000);
        let other = intake.lane("t", 4).unwrap();
        intake.assign(&[other]);
        let mut out = fill(&intake, lane, 1);
        let next = i64::try_from(out.len()).unwrap();
        assert!(matches!(
            intake.admit(lane, epoch, next, 1),
            Admission::NoShare
        ));
        assert!(intake.pace(false).pause.is_empty(), "it may go on at once");
        assert!(!intake.wait_for_share(lane));
        let held = intake.pace(false);
        assert_eq!(held.pause, [(Topic::new("t").unwrap(), 3)]);
        assert!(held.full.is_empty(), "only the budget is short");
        assert!(matches!(
            intake.admit(lane, epoch, next, 1),
            Admission::LaneFull
        ));
        assert!(
            intake.wait_for_half(Duration::ZERO),
            "of what the others have"
        );
        let mut settle = |count: usize| {
            for settlement in out.drain(..count) {
                Box::new(settlement).settle(Outcome::Settled).unwrap();
            }
        };
        settle(300);
        assert!(intake.pace(false).resume.is_empty(), "it uses half of all");
        settle(1);
        assert_eq!(intake.pace(false).resume, held.pause);
        assert!(intake.wait_for_share(lane));
    }

    #[test]
    fn a_held_partition_that_comes_back_is_not_held() {
        let (intake, lane, _) = intake(PositionStorage::Offsets, usize::MAX, 1_000);
        let _out = fill(&intake, lane, 1);
        assert!(!intake.wait_for_share(lane));
        assert_eq!(intake.pace(false).pause.len(), 1);
        intake.revoke(&[lane]);
        intake.assign(&[lane]);
        assert_eq!(intake.pace(false).resume.len(), 1);
        // What is outstanding of the earlier assignment still counts.
        assert!(fill(&intake, lane, 1).is_empty());
    }

    #[test]
    fn a_new_assignment_is_paused_again_when_everything_is() {
        let (intake, lane, _) = intake(PositionStorage::Offsets, 100, 10);
        assert_eq!(intake.pace(true).pause.len(), 1);
        assert!(intake.pace(true).pause.is_empty());
        intake.revoke(&[lane]);
        assert!(intake.pace(true).resume.is_empty());
        intake.assign(&[lane]);
        assert_eq!(intake.pace(true).pause.len(), 1);
        assert_eq!(intake.pace(false).resume.len(), 1);
    }

    #[test]
    fn a_partition_that_was_paused_when_it_left_is_resumed_when_it_comes_back() {
        let (intake, lane, _) = intake(PositionStorage::Offsets, 100, 10);
        assert_eq!(intake.pace(true).pause.len(), 1);
        intake.revoke(&[lane]);
        assert!(intake.pace(false).resume.is_empty(), "it is not assigned");
        intake.assign(&[lane]);
        assert_eq!(intake.pace(false).resume.len(), 1);
        assert_eq!(intake.pace(true).pause.len(), 1);
        // A client that replaces this one has paused nothing.
        intake.revoke_all();
        intake.assign(&[lane]);
        assert!(intake.pace(false).resume.is_empty());
    }

    #[test]
    fn a_live_reader_tracks_only_the_budget() {
        let (intake, lane, epoch) = intake(PositionStorage::Nothing, 100, 1);
        let first = granted(intake.admit(lane, epoch, 0, 1));
        assert!(matches!(intake.admit(lane, epoch, 1, 1), Admission::NoRoom));
        first.settle(Outcome::Abandoned).unwrap();
        granted(intake.admit(lane, epoch, 1, 1));
        assert!(intake.take_moved().is_empty());
    }

    #[test]
    fn waiting_for_outcomes_ends_with_the_last_one_or_at_the_deadline() {
        let (intake, lane, epoch) = intake(PositionStorage::Offsets, 100, 10);
        let out = granted(intake.admit(lane, epoch, 0, 1));
        let soon = Instant::now() + Duration::from_millis(5);
        assert!(!intake.wait_for_outcomes(&[lane], || soon));
        out.settle(Outcome::Abandoned).unwrap();
        assert!(intake.wait_for_outcomes(&[lane], || soon));
    }

    #[test]
    fn a_revocation_waits_for_publications_but_not_for_answers() {
        let (intake, lane, epoch) = intake(PositionStorage::Offsets, 100, 10);
        let request = granted(intake.admit(lane, epoch, 0, 1));
        let event = granted(intake.admit(lane, epoch, 1, 1));
        let now = Instant::now();
        request.set_waiting(true);
        assert!(!intake.wait_for_outcomes(&[lane], || now));
        event.settle(Outcome::Settled).unwrap();
        assert!(intake.wait_for_outcomes(&[lane], || now));
        assert!(!intake.wait_for_all(now), "it is still to be answered");
        // Its answer is on its way to the requester.
        request.set_waiting(false);
        assert!(!intake.wait_for_outcomes(&[lane], || now));
        request.set_waiting(true);
        assert_eq!(intake.take_moved(), [], "nothing behind it is passed");
        request.settle(Outcome::Settled).unwrap();
        assert!(intake.wait_for_all(now));
        assert_eq!(intake.take_moved(), [(Topic::new("t").unwrap(), 3, 2)]);
    }

    #[test]
    fn messages_of_a_lost_partition_change_nothing() {
        let (intake, lane, epoch) = intake(PositionStorage::Offsets, 100, 10);
        let request = granted(intake.admit(lane, epoch, 0, 1));
        intake.revoke(&[lane]);
        intake.assign(&[lane]);
        request.set_waiting(true);
        let (epoch, _) = intake.arrive(lane).unwrap();
        let again = granted(intake.admit(lane, epoch, 0, 1));
        request.settle(Outcome::Settled).unwrap();
        assert!(!intake.wait_for_outcomes(&[lane], Instant::now));
        again.settle(Outcome::Settled).unwrap();
        assert!(intake.wait_for_outcomes(&[lane], Instant::now));
    }
}
