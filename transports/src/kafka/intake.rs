//! The state that the reading thread of a subscription shares with its outstanding deliveries: offsets and budget.
//!
//! One lock, held for a few instructions. The thread waits on it for room or for outcomes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::delivery::{Outcome, Settle};
use crate::error::TransportError;
use crate::kafka::offsets::{Ledger, Ticket, TicketState};
use crate::message::Topic;
use crate::transport::{PauseCause, PausedPartition};

/// The minimum of the number of offsets per partition that may wait behind an unsettled one; see [`Intake::new`].
const MIN_HELD: usize = 4096;
/// How long the reading thread waits for more room than for one message.
const ROOM_PAUSE: Duration = Duration::from_millis(5);
/// How long the oldest outstanding delivery of a partition may be the same before the partition counts as blocked.
const STILL: Duration = Duration::from_secs(3);
/// Shares are compared in eighths.
const EIGHTHS: usize = 8;
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
    /// What its outstanding deliveries use of the budget, including those of earlier assignments, but not those that
    /// wait for an answer: their number has a limit of its own.
    used: Budget,
    /// The sequence number of the oldest of them, and since when.
    oldest: (Option<u64>, Instant),
    /// Whether nothing of it settles. Then it is not read, and the budget does not count what it uses.
    is_blocked: bool,
    /// Not read, because it uses its share of the budget and little of that becomes free.
    is_held: bool,
    /// Not read, because too many offsets wait behind one that does not settle, until half of them are left.
    is_full: bool,
}

/// Whether, and as what, a delivery counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counted {
    Out,
    /// It waits for an answer.
    Waiting,
    Settled,
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
    /// Its partition has too many offsets behind one that does not settle, is blocked, or is held.
    LaneFull,
}

/// Partitions to pause and to resume.
#[derive(Debug, Default)]
pub(super) struct FlowChange {
    /// All partitions that are paused because of their own records.
    pub(super) full: Vec<PausedPartition>,
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
    is_waiting: AtomicBool,
}

#[derive(Debug)]
struct State {
    ledger: Ledger,
    places: Vec<AssignedPartition>,
    budget: Budget,
    /// What all deliveries use, except those of blocked partitions.
    used: Budget,
    /// How many partitions are assigned, and how many of all are blocked.
    assigned: usize,
    blocked: usize,
    /// What the reading thread waits for. Waking it earlier would be a needless system call.
    awaited: Option<Awaited>,
}

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
                assigned: 0,
                blocked: 0,
                awaited: None,
            }),
            changed: Condvar::new(),
            keeping,
            budget,
            max_held: budget.messages.saturating_mul(8).max(MIN_HELD),
        }
    }

    /// The lane of a partition, which is added if it is new.
    pub(super) fn lane(&self, topic: &str, partition: i32) -> Option<u32> {
        let mut state = self.state();
        if let Some(known) = state.lane(topic, partition) {
            return Some(known);
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
            oldest: (None, Instant::now()),
            is_blocked: false,
            is_held: false,
            is_full: false,
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
                place.is_full = false;
            }
        }
        state.count_assigned();
    }

    /// Ends the epoch of these lanes.
    pub(super) fn revoke(&self, lanes: &[u32]) {
        let mut state = self.state();
        for lane in lanes {
            state.ledger.revoke(*lane);
        }
        state.count_assigned();
    }

    /// Ends the epoch of all lanes, because their client has ended.
    pub(super) fn revoke_all(&self) {
        let mut state = self.state();
        for lane in 0..state.count() {
            state.ledger.revoke(lane);
        }
        for place in &mut state.places {
            place.paused = false;
            place.is_full = false;
        }
        state.count_assigned();
    }

    /// Whether any lane is assigned.
    pub(super) fn is_assigned(&self) -> bool {
        let state = self.state();
        (0..state.count()).any(|lane| state.ledger.epoch(lane).is_some())
    }

    /// Whether any of these lanes is assigned.
    pub(super) fn is_any_assigned(&self, lanes: &[u32]) -> bool {
        let state = self.state();
        lanes.iter().any(|lane| state.ledger.epoch(*lane).is_some())
    }

    /// The offset after the last delivered record of a partition.
    pub(super) fn next(&self, topic: &str, partition: i32) -> Option<i64> {
        let state = self.state();
        let lane = state.lane(topic, partition)?;
        state.place(lane)?.next
    }

    /// The offset of the first delivered record of a partition that is not settled.
    pub(super) fn unsettled(&self, topic: &str, partition: i32) -> Option<i64> {
        let state = self.state();
        state.ledger.unsettled(state.lane(topic, partition)?)
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
        let is_paused = |place: &AssignedPartition| place.is_blocked || place.is_held;
        if state.ledger.held(lane) >= self.max_held || state.place(lane).is_some_and(is_paused) {
            return Admission::LaneFull;
        }
        if !state.uses_less(lane, EIGHTHS) {
            return Admission::NoShare;
        }
        if !state.uses_at_most(self.before(cost)) {
            return Admission::NoRoom;
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
            is_waiting: AtomicBool::new(false),
        })
    }

    /// What may be used before a message of this cost is admitted. A message larger than the whole budget is admitted
    /// if nothing else is outstanding.
    fn before(&self, cost: usize) -> Budget {
        Budget {
            bytes: self.budget.bytes - cost.min(self.budget.bytes),
            messages: self.budget.messages - 1,
        }
    }

    /// Waits for room for one message of this cost; false on timeout. Waits a moment longer for an eighth of the
    /// budget: otherwise the thread would wake up for each message that settles.
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

    /// Waits until half of the budget is free; false on timeout.
    pub(super) fn wait_for_half(&self, max_wait: Duration) -> bool {
        let half = Budget {
            bytes: self.budget.bytes / 2,
            messages: self.budget.messages / 2,
        };
        self.wait_for_use(half, max_wait)
    }

    /// Notes the oldest delivery of each partition. A blocked partition that has a new one is read again.
    pub(super) fn note_progress(&self) {
        let (mut state, now) = (self.state(), Instant::now());
        for lane in 0..state.count() {
            let oldest = state.ledger.oldest_out(lane);
            let Some(place) = state.place_mut(lane) else {
                continue;
            };
            let has_none = oldest.is_none() && !self.has_out(place);
            if has_none || oldest != place.oldest.0 {
                place.oldest = (oldest, now);
                state.set_blocked(lane, false);
            }
        }
    }

    /// Whether deliveries of a partition are outstanding whose progress is known. The ledger does not have those of
    /// earlier assignments, which use the budget, too. It has none at all of a reader that stores no positions.
    fn has_out(&self, place: &AssignedPartition) -> bool {
        self.keeping == PositionStorage::Offsets && place.used.messages > 0
    }

    /// Called when the budget is used up. Partitions that use at least an equal share of it, and of which nothing
    /// settles, no longer count. Then each of the others gets an equal share, so at most as much as the budget is used
    /// beside it. Returns whether there is a new one.
    pub(super) fn find_blocked(&self) -> bool {
        let mut state = self.state();
        let mut is_news = false;
        for lane in 0..state.count() {
            let is_still = state.place(lane).is_some_and(|place| {
                self.has_out(place) && !place.is_blocked && place.oldest.1.elapsed() >= STILL
            });
            // A partition that is alone leaves nothing to others.
            if is_still && state.assigned > 1 && !state.uses_less_than_share(lane, EIGHTHS) {
                state.set_blocked(lane, true);
                is_news = true;
            }
        }
        is_news
    }

    /// Waits until a partition has room for several messages in its share. False if that takes longer than
    /// [`PAUSE_AFTER`]: the partition is then held, until it uses less than half of its share.
    pub(super) fn wait_for_share(&self, lane: u32) -> bool {
        let room = Awaited {
            total: Budget::MAX,
            lane: Some(lane),
        };
        let has_room = self.wait_for(room, PAUSE_AFTER);
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

    /// The positions on topics that were created again, as long as the last known commit is of the old topic.
    pub(super) fn positions_with_old_commits(&self) -> Vec<(Topic, i32, i64)> {
        let lanes = self.state().ledger.with_old_commits();
        self.positions(&lanes)
    }

    /// Notes a commit of a partition.
    pub(super) fn committed(&self, topic: &str, partition: i32, offset: i64) {
        let mut state = self.state();
        if let Some(lane) = state.lane(topic, partition) {
            state.ledger.committed(lane, offset);
        }
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

    /// Which partitions to pause and to resume; `everything` pauses all.
    pub(super) fn pace(&self, everything: bool) -> FlowChange {
        let mut state = self.state();
        let mut pace = FlowChange::default();
        for lane in 0..state.count() {
            let held = state.ledger.held(lane);
            let assigned = state.ledger.epoch(lane).is_some();
            let is_resumed = state.uses_less(lane, EIGHTHS / 2);
            let Some(place) = state.place_mut(lane) else {
                continue;
            };
            place.is_held &= !is_resumed;
            place.is_full = held >= self.max_held || (place.is_full && held > self.max_held / 2);
            let is_still = self.has_out(place) && place.oldest.1.elapsed() >= STILL;
            let cause = if place.is_blocked || (place.is_held && is_still) {
                Some(PauseCause::Blocked)
            } else {
                place.is_full.then_some(PauseCause::Behind)
            };
            if let Some(cause) = cause.filter(|_| assigned) {
                let partition = format!("{}/{}", place.topic, place.partition).into();
                pace.full.push(PausedPartition { partition, cause });
            }
            let pause = everything || cause.is_some() || place.is_held;
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

    /// The assigned partitions that are paused.
    pub(super) fn paused(&self) -> Vec<(Topic, i32)> {
        let state = self.state();
        let lanes = (0..).zip(&state.places);
        let paused =
            lanes.filter(|(lane, place)| place.paused && state.ledger.epoch(*lane).is_some());
        paused
            .map(|(_, place)| (place.topic.clone(), place.partition))
            .collect()
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

    /// Whether a partition uses less than these eighths of its share. As long as none is blocked, there are no shares.
    fn uses_less(&self, lane: u32, eighths: usize) -> bool {
        self.blocked == 0 || self.uses_less_than_share(lane, eighths)
    }

    /// Whether a partition uses less than these eighths of an equal share of the budget. One that uses nothing does.
    fn uses_less_than_share(&self, lane: u32, eighths: usize) -> bool {
        let Some(used) = self.place(lane).map(|place| place.used) else {
            return true;
        };
        let is_less = |used: usize, all: usize| {
            let share = (all / self.assigned.max(1)).max(1);
            used.saturating_mul(EIGHTHS) < share.saturating_mul(eighths)
        };
        used.messages == 0
            || (is_less(used.messages, self.budget.messages)
                && is_less(used.bytes, self.budget.bytes))
    }

    fn set_blocked(&mut self, lane: u32, is_blocked: bool) {
        let Some(place) = self.place_mut(lane) else {
            return;
        };
        if std::mem::replace(&mut place.is_blocked, is_blocked) == is_blocked {
            return;
        }
        let of = place.used;
        if is_blocked {
            self.blocked += 1;
            self.used.bytes = self.used.bytes.saturating_sub(of.bytes);
            self.used.messages = self.used.messages.saturating_sub(of.messages);
        } else {
            self.blocked -= 1;
            self.used.bytes += of.bytes;
            self.used.messages += of.messages;
        }
    }

    fn count_assigned(&mut self) {
        let lanes = 0..self.count();
        let assigned = lanes.filter(|lane| self.ledger.epoch(*lane).is_some());
        self.assigned = assigned.count();
    }

    /// Counts a delivery that begins or ends to wait for an answer, or is settled.
    fn recount(&mut self, lane: u32, cost: usize, (before, now): (Counted, Counted)) {
        let Some(place) = self.place_mut(lane) else {
            return;
        };
        let is_blocked = place.is_blocked;
        match (before, now) {
            (Counted::Out, Counted::Waiting | Counted::Settled) => place.used.remove(cost),
            (Counted::Waiting, Counted::Out) => place.used.add(cost),
            _ => {}
        }
        let counts = |counted| match counted {
            Counted::Out => !is_blocked,
            Counted::Waiting => true,
            Counted::Settled => false,
        };
        match (counts(before), counts(now)) {
            (true, false) => self.used.remove(cost),
            (false, true) => self.used.add(cost),
            _ => {}
        }
    }

    fn has(&self, room: Awaited) -> bool {
        self.uses_at_most(room.total)
            && room
                .lane
                .is_none_or(|lane| self.uses_less(lane, EIGHTHS - 1))
    }

    /// Whether the reading thread waits for a change to this state.
    fn is_awaited(&self) -> bool {
        self.awaited.is_some_and(|room| self.has(room))
    }

    /// The lane of a known partition.
    fn lane(&self, topic: &str, partition: i32) -> Option<u32> {
        let mut places = self.places.iter();
        let lane = places
            .position(|place| place.partition == partition && place.topic.as_str() == topic)?;
        u32::try_from(lane).ok()
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
        state.recount(self.lane, self.cost, (self.counted(), Counted::Settled));
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
        let before = self.counted();
        self.is_waiting.store(is_waiting, Ordering::Relaxed);
        state.recount(self.lane, self.cost, (before, self.counted()));
        let is_awaited = state.is_awaited();
        drop(state);
        if is_awaited {
            self.intake.changed.notify_all();
        }
    }
}

impl Settlement {
    fn counted(&self) -> Counted {
        match self.is_waiting.load(Ordering::Relaxed) {
            true => Counted::Waiting,
            false => Counted::Out,
        }
    }
}

#[cfg(test)]
mod tests;
