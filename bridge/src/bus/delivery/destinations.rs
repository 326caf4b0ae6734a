//! Destinations that do not accept messages at the moment.
//!
//! ```text
//! failed ──> FailureState ─────> one probe at a time, with back-off ──confirmed──> works: all senders continue
//!                 ^                                      │failed
//!                 └──────────────────────────────────────┘
//! ```
//! Senders probe in the order in which they began to wait. A sender whose probe failed goes to the end of the queue,
//! because another partition of the topic may accept what one refuses. If the first has no result, because nobody polls
//! it or its bus does not answer, another one probes as well ([`OVERTAKE_AFTER`]).
//!
//! All lanes of a bridge share one [`Destinations`]. While every destination works, it costs one atomic read. The state
//! of a failing destination is removed with the last copy that is held for it, unless an operator has to repair it:
//! then it stays until it works or the rules change ([`Holder`]).

mod log;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use a2abus_transports::{Health, Topic, Transport as _, TransportError, TransportErrorKind};
use tokio::sync::{Notify, watch};
use tokio::time::{Duration, Instant, sleep_until};

pub(super) use self::log::needs_repair;
use self::log::{DestinationLog, DestinationName, Reminder};
use crate::bus::outbound::Outgoing;
use crate::bus::{BusId, Buses};
use crate::calls::callid::shown_topic;
use crate::lock::lock;
use crate::log_limit::LogLimits;
use crate::readiness::Readiness;
use crate::route::NamedBy;

/// The first and the longest wait before the next probe.
pub(crate) const BACKOFF: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(15));
/// How often the log repeats that a destination fails, if its bus is up or an operator has to repair it.
const REMIND_EVERY: Duration = Duration::from_secs(60);
/// How long after the first sender could have probed another one does. The first may be a call that nobody polls,
/// because its client reads nothing.
const OVERTAKE_AFTER: Duration = Duration::from_secs(15);

/// The destinations that do not accept messages at the moment.
#[derive(Debug)]
pub struct Destinations {
    buses: Buses,
    readiness: Arc<Readiness>,
    table: Mutex<Table>,
    /// How many there are, readable without the lock.
    count: AtomicUsize,
    log: DestinationLog,
}

#[derive(Debug, Default)]
struct Table {
    failing: HashMap<Destination, FailureState>,
    /// The generation of the newest failure.
    generation: u64,
}

/// A topic of a bus.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Destination {
    bus: BusId,
    topic: Topic,
}

#[derive(Debug)]
struct FailureState {
    /// Distinguishes this failure from an earlier one of the same destination.
    generation: u64,
    since: Instant,
    error: TransportError,
    /// The number of copies that it did not accept; those that waited behind them were not sent.
    copies: u64,
    /// The number of copies that are held for it.
    holders: usize,
    /// The senders that wait until it works: lanes, workflow answers, calls. The first one probes; it is notified when
    /// it becomes the first.
    waiting: BTreeMap<u64, Arc<Notify>>,
    /// The number of the next one.
    next: u64,
    /// The wait before the next probe, since the last one.
    wait: Duration,
    /// When the last probe failed, or overtook the first sender.
    tried: Instant,
    reminded: Instant,
    /// Tells the waiting senders that a probe has failed.
    changed: watch::Sender<()>,
}

/// A copy that is held for a failing destination. When the last one is dropped, the failure is forgotten, unless the
/// configuration names the destination and an operator has to repair it.
#[derive(Debug)]
#[must_use = "a failure that nobody holds a copy for is forgotten"]
pub struct Holder {
    destinations: Arc<Destinations>,
    destination: Destination,
    generation: u64,
    /// Whether the event or the configuration named the destination.
    named_by: NamedBy,
}

/// Permission to send the one message that tests whether a destination works again. If it is dropped without a result,
/// the next waiting sender gets it.
#[derive(Debug)]
pub(super) struct Probe(Waiter);

/// One sender that waits for a destination.
#[derive(Debug)]
struct Waiter {
    holder: Holder,
    /// Its place among the others.
    number: u64,
    /// Notified when it becomes the first.
    is_first: Arc<Notify>,
}

/// How long a sender waits for a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitPolicy {
    /// Until it works, even if an operator has to repair it first.
    Unlimited,
    /// While it may recover by itself. If an operator has to repair it, the sender tries at once, and may fail.
    UntilRefused,
}

/// Guards a copy that is being sent: if it is dropped before the end, the copy is counted and logged as given up.
#[derive(Debug)]
pub(super) struct SendGuard<'a> {
    destinations: &'a Destinations,
    copy: &'a Outgoing,
    /// Why the copy is not published, if that is known.
    unreported: Option<TransportError>,
    /// Whether the bus has got it, and has neither confirmed nor refused it yet.
    is_open: AtomicBool,
    /// Whether an attempt may have arrived, although it is not confirmed.
    may_have_arrived: bool,
    /// Whether its agent has answered, so that it has arrived.
    is_answered: Option<&'a AtomicBool>,
}

/// What a sender has to do before it may send to a destination.
enum SendDecision {
    Send,
    Probe(Instant),
    /// Until another sender has probed, but at most until this time.
    Wait(watch::Receiver<()>, Instant),
}

// === impl Destination ===

impl Destination {
    pub(super) fn of(copy: &Outgoing) -> Self {
        Self {
            bus: copy.bus,
            topic: copy.address.topic.clone(),
        }
    }
}

// === impl Destinations ===

impl Destinations {
    /// The destinations of these buses, which are assumed to work. `readiness` shows those that fail.
    #[must_use]
    pub fn new(buses: Buses, readiness: Arc<Readiness>, log: &LogLimits) -> Self {
        Self {
            buses,
            readiness,
            table: Mutex::default(),
            count: AtomicUsize::new(0),
            log: DestinationLog::new(log),
        }
    }

    /// Why the destination of this copy fails, if that is known already.
    pub(super) fn known_failure(&self, copy: &Outgoing) -> Option<TransportError> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let table = self.lock();
        let failing = table.failing.get(&Destination::of(copy));
        failing.map(|failing| failing.error.clone())
    }

    /// Since when the destination of this copy fails.
    pub(super) fn fails_since(&self, copy: &Outgoing) -> Option<Instant> {
        let table = self.lock();
        let failing = table.failing.get(&Destination::of(copy));
        failing.map(|failing| failing.since)
    }

    /// Records that a destination did not accept a copy, which is held and will be sent again.
    pub(super) fn failed(
        self: &Arc<Self>,
        destination: &Destination,
        named_by: NamedBy,
        error: &TransportError,
    ) -> Holder {
        let (generation, is_new) = {
            let mut table = self.lock();
            let new = table.generation + 1;
            let failing = table
                .failing
                .entry(destination.clone())
                .or_insert_with(|| FailureState::new(new, error));
            failing.copies += 1;
            failing.holders += 1;
            self.show(destination, failing);
            let generation = failing.generation;
            table.generation = table.generation.max(generation);
            self.count.store(table.failing.len(), Ordering::Release);
            (generation, generation == new)
        };
        if is_new {
            self.log.failed(&self.destination_name(destination), error);
        }
        Holder {
            destinations: Arc::clone(self),
            destination: destination.clone(),
            generation,
            named_by,
        }
    }

    /// Waits until the caller may send to the destination. Returns at once if it works, and `Some` if the caller must
    /// probe it. After each probe by another sender, it also returns if the copy is no longer wanted: the caller has to
    /// check that.
    pub(super) async fn turn(
        self: &Arc<Self>,
        destination: &Destination,
        named_by: NamedBy,
        wait_policy: WaitPolicy,
        is_wanted: impl Fn() -> bool,
    ) -> Option<Probe> {
        let waiting = Waiter::enter(self, destination, named_by)?;
        loop {
            match self.next_turn(&waiting, wait_policy) {
                SendDecision::Send => return None,
                SendDecision::Probe(at) => {
                    let probe = Probe(waiting);
                    self.until(at, destination.bus).await;
                    return Some(probe);
                }
                SendDecision::Wait(mut changed, late) => {
                    tokio::select! {
                        // An error means that the destination works.
                        _ = changed.changed() => {}
                        () = waiting.is_first.notified() => {}
                        () = sleep_until(late) => {}
                    }
                    if !is_wanted() {
                        return None;
                    }
                }
            }
        }
    }

    fn next_turn(&self, waiter: &Waiter, wait_policy: WaitPolicy) -> SendDecision {
        match self.lock().held_by(&waiter.holder) {
            None => SendDecision::Send,
            Some(failing)
                if wait_policy == WaitPolicy::UntilRefused && needs_repair(&failing.error) =>
            {
                SendDecision::Send
            }
            Some(failing) if failing.is_first(waiter.number) => {
                SendDecision::Probe(failing.tried + jittered(failing.wait))
            }
            Some(failing) => failing.wait_or_overtake(),
        }
    }

    /// Waits until a time, or until the bus reconnects.
    async fn until(&self, moment: Instant, bus: BusId) {
        let health = self.buses.get(bus).map(|bus| bus.transport.health());
        let comes_back = async {
            match health {
                Some(mut health) if !health.borrow().is_up() => {
                    if health.wait_for(Health::is_up).await.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sleep_until(moment) => {}
            () = comes_back => {}
        }
    }

    /// Removes a destination. Holds the lock, so that no older state is shown afterwards.
    fn remove(&self, table: &mut Table, destination: &Destination) -> Option<FailureState> {
        let failing = table.failing.remove(destination)?;
        self.count.store(table.failing.len(), Ordering::Release);
        self.readiness.restored(&self.name(destination));
        Some(failing)
    }

    /// Logs that no copy waits for a failing destination any more.
    fn note_forgotten(&self, destination: &Destination, failing: Option<FailureState>) {
        if let Some(failing) = failing {
            let shown = self.destination_name(destination);
            self.log.forgotten(&shown, &failing.error);
        }
    }

    /// Forgets the failures that no copy waits for. New rules may no longer name their destinations; if they do, the
    /// next copy finds the failure again.
    pub(super) fn forget_unheld(&self) {
        let mut table = self.lock();
        let is_unheld = |(_, failing): &(&Destination, &FailureState)| failing.holders == 0;
        let unheld = table.failing.iter().filter(is_unheld);
        let unheld: Vec<_> = unheld.map(|(destination, _)| destination.clone()).collect();
        let unheld = unheld.into_iter().map(|destination| {
            let failing = self.remove(&mut table, &destination);
            (destination, failing)
        });
        let forgotten: Vec<_> = unheld.collect();
        drop(table);
        for (destination, failing) in forgotten {
            self.note_forgotten(&destination, failing);
        }
    }

    /// Records that the bus has confirmed a copy: all waiting senders continue.
    pub(super) fn works(&self, destination: &Destination) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let failing = self.remove(&mut self.lock(), destination);
        if let Some(FailureState { copies, since, .. }) = failing {
            self.log
                .works(&self.destination_name(destination), copies, since);
        }
    }

    /// Counts and logs a copy that is not sent again; `is_open` is whether it may have arrived.
    pub(super) fn lost(&self, copy: &Outgoing, error: &TransportError, is_open: bool) {
        self.log.lost(&self.buses, copy, error, is_open);
    }

    /// A sender that retries a copy until it is confirmed.
    pub(super) fn interest<'a>(
        &'a self,
        copy: &'a Outgoing,
        is_answered: Option<&'a AtomicBool>,
    ) -> SendGuard<'a> {
        SendGuard {
            destinations: self,
            copy,
            // The reason to report if it is given up while it waits for its turn.
            unreported: self.known_failure(copy),
            is_open: AtomicBool::new(false),
            may_have_arrived: copy.may_have_arrived,
            is_answered,
        }
    }

    fn probe_failed(&self, holder: &Holder, error: &TransportError) {
        let destination = &holder.destination;
        // While the bus is down, the log says that once a minute, and not for each destination.
        let is_up = self.buses.is_up(destination.bus);
        let reminder = {
            let mut table = self.lock();
            let Some(failing) = table.held_by(holder) else {
                return;
            };
            failing.wait = (failing.wait * 2).min(BACKOFF.1);
            failing.tried = Instant::now();
            let is_news = failing.error.kind() != error.kind();
            failing.error = error.clone();
            failing.changed.send_replace(());
            self.show(destination, failing);
            let is_due =
                (needs_repair(error) || is_up) && failing.reminded.elapsed() >= REMIND_EVERY;
            let allowed = (is_news || is_due).then(|| self.log.allows_reminder());
            // A suppressed reminder is due again at the next probe.
            allowed.flatten().map(|suppressed| {
                failing.reminded = Instant::now();
                Reminder {
                    since: failing.since,
                    waiting: failing.waiting.len(),
                    suppressed,
                }
            })
        };
        if let Some(reminder) = reminder {
            self.log
                .still_fails(&self.destination_name(destination), error, &reminder);
        }
    }

    /// Updates the state that `/readyz` reports, under the lock.
    fn show(&self, destination: &Destination, failing: &FailureState) {
        let FailureState { error, waiting, .. } = failing;
        // One sender of each lane, however many messages wait behind it.
        let cause = format!("{error}; waiting lanes and calls: {}", waiting.len());
        self.readiness.degraded(self.name(destination), cause);
    }

    fn name(&self, destination: &Destination) -> String {
        let DestinationName { transport, topic } = self.destination_name(destination);
        format!("destination {transport}/{topic}")
    }

    fn destination_name(&self, destination: &Destination) -> DestinationName<'_> {
        let bus = self.buses.get(destination.bus);
        DestinationName {
            transport: bus.map_or("", |bus| bus.name.text().as_str()),
            topic: shown_topic(destination.topic.as_str()).to_string(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}

// === impl Table ===

impl Table {
    /// The failure that a copy is held for, if it persists.
    fn held_by(&mut self, holder: &Holder) -> Option<&mut FailureState> {
        let failing = self.failing.get_mut(&holder.destination)?;
        (failing.generation == holder.generation).then_some(failing)
    }
}

// === impl FailureState ===

impl FailureState {
    fn new(generation: u64, error: &TransportError) -> Self {
        let now = Instant::now();
        Self {
            generation,
            since: now,
            error: error.clone(),
            copies: 0,
            holders: 0,
            waiting: BTreeMap::new(),
            next: 0,
            wait: BACKOFF.0,
            tried: now,
            reminded: now,
            changed: watch::Sender::new(()),
        }
    }

    fn is_first(&self, number: u64) -> bool {
        let first = self.waiting.first_key_value();
        first.is_some_and(|(first, _)| *first == number)
    }

    /// What a sender does that is not the first.
    fn wait_or_overtake(&mut self) -> SendDecision {
        let (now, late) = (Instant::now(), self.tried + self.wait + OVERTAKE_AFTER);
        if now < late {
            return SendDecision::Wait(self.changed.subscribe(), late);
        }
        // The next one that overtakes waits as long again.
        self.tried = now;
        SendDecision::Probe(now)
    }
}

// === impl Holder ===

impl Holder {
    /// Counts one more held copy.
    fn another(&self) -> Self {
        if let Some(failing) = self.destinations.lock().held_by(self) {
            failing.holders += 1;
        }
        Self {
            destinations: Arc::clone(&self.destinations),
            destination: self.destination.clone(),
            generation: self.generation,
            named_by: self.named_by,
        }
    }

    /// Drops a copy that another replica sends, because its partition has moved. Without other copies the failure is
    /// forgotten even if an operator has to repair the destination: only a sender learns when it works again.
    pub(crate) fn moved(mut self) {
        self.named_by = NamedBy::Event;
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let mut table = self.destinations.lock();
        let Some(failing) = table.held_by(self) else {
            return;
        };
        failing.holders = failing.holders.saturating_sub(1);
        let stays = self.named_by == NamedBy::Config && needs_repair(&failing.error);
        if failing.holders > 0 || stays {
            return;
        }
        let failing = self.destinations.remove(&mut table, &self.destination);
        drop(table);
        self.destinations.note_forgotten(&self.destination, failing);
    }
}

// === impl Probe ===

impl Probe {
    /// The destination accepted the message.
    pub(super) fn confirmed(self) {
        self.holder().destinations.works(&self.holder().destination);
    }

    /// The destination did not accept it; the next probe waits longer. The copy is still held.
    pub(super) fn failed(self, error: &TransportError) -> Holder {
        self.holder()
            .destinations
            .probe_failed(self.holder(), error);
        self.holder().another()
    }

    /// The destination answers, but refuses this message; others may succeed.
    pub(super) fn refused(self) {
        let Holder {
            destinations,
            destination,
            ..
        } = self.holder();
        drop(destinations.remove(&mut destinations.lock(), destination));
    }

    fn holder(&self) -> &Holder {
        &self.0.holder
    }
}

// === impl WaitPolicy ===

impl WaitPolicy {
    /// How long the sender of a copy waits. With `is_caller`, the sender is the caller itself.
    pub(super) fn of(copy: &Outgoing, is_caller: bool) -> Self {
        if is_caller || copy.is_awaited {
            Self::UntilRefused
        } else {
            Self::Unlimited
        }
    }
}

// === impl SendGuard ===

impl SendGuard<'_> {
    /// The bus has accepted the copy into its queue.
    pub(super) fn handed_over(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }

    /// The copy is not confirmed yet, for this reason.
    pub(super) fn failed(&mut self, error: &TransportError, may_have_arrived: bool) {
        *self.is_open.get_mut() = false;
        self.unreported = Some(error.clone());
        self.may_have_arrived = may_have_arrived;
    }

    /// The copy is published, or its answer will show whether it is.
    pub(super) fn done(mut self) {
        *self.is_open.get_mut() = false;
        self.unreported = None;
    }
}

impl Drop for SendGuard<'_> {
    fn drop(&mut self) {
        let is_answered = self
            .is_answered
            .is_some_and(|it| it.load(Ordering::Relaxed));
        let is_open = *self.is_open.get_mut();
        let open = || TransportError::new(TransportErrorKind::TimedOut, "confirm it in time");
        let error = self.unreported.take();
        let error = error.or_else(|| is_open.then(open));
        let Some(error) = error.filter(|_| !is_answered) else {
            return;
        };
        let is_open = self.may_have_arrived || is_open;
        self.destinations.lost(self.copy, &error, is_open);
    }
}

// === impl Waiter ===

impl Waiter {
    /// `None` when the destination works.
    fn enter(
        destinations: &Arc<Destinations>,
        destination: &Destination,
        named_by: NamedBy,
    ) -> Option<Self> {
        if destinations.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut table = destinations.lock();
        let failing = table.failing.get_mut(destination)?;
        let number = failing.next;
        failing.next += 1;
        failing.holders += 1;
        let is_first = Arc::new(Notify::new());
        failing.waiting.insert(number, Arc::clone(&is_first));
        destinations.show(destination, failing);
        let holder = Holder {
            destinations: Arc::clone(destinations),
            destination: destination.clone(),
            generation: failing.generation,
            named_by,
        };
        Some(Self {
            holder,
            number,
            is_first,
        })
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let Holder {
            destinations,
            destination,
            ..
        } = &self.holder;
        if let Some(failing) = destinations.lock().held_by(&self.holder) {
            let was_first = failing.is_first(self.number);
            failing.waiting.remove(&self.number);
            destinations.show(destination, failing);
            // Only that one: many callers may leave at their deadlines.
            let first = failing.waiting.first_key_value();
            if let Some((_, first)) = first.filter(|_| was_first) {
                first.notify_one();
            }
        }
    }
}

/// The wait, shortened at random by up to half, so that not all senders wake up at once.
pub(crate) fn jittered(wait: Duration) -> Duration {
    let mut byte = [0];
    // Without randomness, the full wait also works.
    let random = getrandom::fill(&mut byte).map_or(0, |()| u32::from(byte[0]));
    wait - wait * random / 512
}
