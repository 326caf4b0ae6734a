//! Destinations that take nothing at the moment.
//!
//! ```text
//! failed ──> Failing ──turn──> one probe at a time, with back-off ──confirmed──> works: all who wait go on
//!               ^                                        │failed
//!               └────────────────────────────────────────┘
//! ```
//! One for all lanes of a bridge. Nothing here is touched while every destination works, but for one atomic read. What is
//! known of a failing destination is forgotten with the last copy that is held for it ([`Holder`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use a2abus_plugin::Text;
use a2abus_transports::{Disposition, Health, Topic, Transport as _, TransportError};
use tokio::sync::watch;
use tokio::time::{Duration, Instant, sleep_until};
use tracing::Level;

use crate::bus::outbound::Outgoing;
use crate::bus::{BusId, Buses};
use crate::calls::callid::shown_topic;
use crate::readiness::Readiness;
use crate::route::NamedBy;
use crate::seldom::{LogLimits, Seldom};

/// The first and the longest wait before the next probe.
pub(crate) const BACKOFF: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(15));
/// How often the log says that a destination still has to be repaired by a person.
const REMIND_EVERY: Duration = Duration::from_secs(60);

/// The destinations that do not take messages at the moment.
#[derive(Debug)]
pub struct Destinations {
    buses: Buses,
    readiness: Arc<Readiness>,
    table: Mutex<Table>,
    /// How many there are, to be read without the lock.
    count: AtomicUsize,
    failures: Seldom,
    reminders: Seldom,
    recoveries: Seldom,
    losses: Seldom,
}

#[derive(Debug, Default)]
struct Table {
    failing: HashMap<Destination, Failing>,
    /// Of the last destination that began to fail.
    generation: u64,
}

/// A topic of a bus.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Destination {
    bus: BusId,
    topic: Topic,
}

#[derive(Debug)]
struct Failing {
    /// Distinguishes this failure from an earlier one of the same destination.
    generation: u64,
    since: Instant,
    error: TransportError,
    /// Copies that it did not take.
    copies: u64,
    /// Copies that are held for it.
    holders: usize,
    /// Those who wait until it works: lanes, answers of workflows.
    waiting: usize,
    /// The wait before the next probe, since the last one.
    wait: Duration,
    tried: Instant,
    is_probed: bool,
    reminded: Instant,
    changed: watch::Sender<()>,
}

/// A copy that is held for a failing destination. With the last one that is dropped the failure is forgotten, unless a
/// person has to repair a place that the configuration names.
#[derive(Debug)]
#[must_use = "a failure that nobody holds a copy for is forgotten"]
pub struct Holder {
    destinations: Arc<Destinations>,
    destination: Destination,
    generation: u64,
    /// Who named the destination.
    named_by: NamedBy,
}

/// The right to send the one message that finds out whether a destination works again. Dropped without a result it
/// passes to the next who waits.
#[derive(Debug)]
pub(super) struct Probe(Waiting);

/// Counts one who waits for a destination.
#[derive(Debug)]
struct Waiting(Holder);

/// How long a sender waits for a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// Until it works, even if a person has to repair it first.
    Unlimited,
    /// While it may come back by itself. What has to be repaired is tried at once, and may fail.
    UntilRefused,
}

/// A copy that is being sent. One that is given up is counted and logged.
#[derive(Debug)]
pub(super) struct Interest<'a> {
    destinations: &'a Destinations,
    copy: &'a Outgoing,
    /// Why the copy is not published, where nobody else is going to report that.
    pub(super) unreported: Option<TransportError>,
}

/// What somebody who wants to send to a destination does next.
enum Turn {
    Send,
    Probe(Instant),
    Wait(watch::Receiver<()>),
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
    /// All of these buses' destinations, which work as far as is known. Those that do not are shown by `readiness`.
    #[must_use]
    pub fn new(buses: Buses, readiness: Arc<Readiness>, log: &LogLimits) -> Self {
        Self {
            buses,
            readiness,
            table: Mutex::default(),
            count: AtomicUsize::new(0),
            failures: log.seldom(Level::WARN, "more destinations began to fail"),
            reminders: log.seldom(
                Level::WARN,
                "more reminders of destinations that still fail",
            ),
            recoveries: log.seldom(Level::INFO, "more destinations accept messages again"),
            losses: log.seldom(Level::WARN, "more messages of callers were not published"),
        }
    }

    /// Why the destination of this copy does not take it, if that is known without asking.
    pub(super) fn known_failure(&self, copy: &Outgoing) -> Option<TransportError> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let table = self.lock();
        let failing = table.failing.get(&Destination::of(copy));
        failing.map(|failing| failing.error.clone())
    }

    /// Notes that a destination did not take a copy, which is held and will be sent again.
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
                .or_insert_with(|| Failing::new(new, error));
            failing.copies += 1;
            failing.holders += 1;
            self.show(destination, failing);
            let generation = failing.generation;
            table.generation = table.generation.max(generation);
            self.count.store(table.failing.len(), Ordering::Release);
            (generation, generation == new)
        };
        if is_new {
            self.log_failure(destination, error);
        }
        Holder {
            destinations: Arc::clone(self),
            destination: destination.clone(),
            generation,
            named_by,
        }
    }

    /// Waits until somebody may send to the destination: at once when it works. `Some` when it is the one to find out.
    pub(super) async fn turn(
        self: &Arc<Self>,
        destination: &Destination,
        named_by: NamedBy,
        patience: Patience,
    ) -> Option<Probe> {
        let waiting = Waiting::enter(self, destination, named_by)?;
        loop {
            match self.next_turn(&waiting.0, patience) {
                Turn::Send => return None,
                Turn::Probe(at) => {
                    let probe = Probe(waiting);
                    self.until(at, destination.bus).await;
                    return Some(probe);
                }
                // An error means that the destination works.
                Turn::Wait(mut changed) => drop(changed.changed().await),
            }
        }
    }

    fn next_turn(&self, holder: &Holder, patience: Patience) -> Turn {
        match self.lock().held_by(holder) {
            None => Turn::Send,
            Some(failing)
                if patience == Patience::UntilRefused && needs_a_person(&failing.error) =>
            {
                Turn::Send
            }
            Some(failing) if failing.is_probed => Turn::Wait(failing.changed.subscribe()),
            Some(failing) => {
                failing.is_probed = true;
                Turn::Probe(failing.tried + jittered(failing.wait))
            }
        }
    }

    /// Waits for a moment, or for the bus to come back, if it is away.
    async fn until(&self, moment: Instant, bus: BusId) {
        let health = self.buses.get(bus).map(|bus| bus.transport.health());
        let comes_back = async {
            match health {
                Some(mut health) if *health.borrow() != Health::Up => {
                    if health.wait_for(|now| *now == Health::Up).await.is_err() {
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

    /// Takes a destination out. Under the lock, so that nobody shows an earlier state after this.
    fn remove(&self, table: &mut Table, destination: &Destination) -> Option<Failing> {
        let failing = table.failing.remove(destination)?;
        self.count.store(table.failing.len(), Ordering::Release);
        self.readiness.restored(&self.name(destination));
        Some(failing)
    }

    /// Notes that the bus has confirmed a copy: everybody who waits goes on.
    pub(super) fn works(&self, destination: &Destination) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let failing = self.remove(&mut self.lock(), destination);
        if let Some(failing) = failing
            && let Some(suppressed) = self.recoveries.allow()
        {
            tracing::info!(
                transport = self.bus_name(destination), topic = %shown_topic(destination.topic.as_str()),
                copies = failing.copies, seconds = failing.since.elapsed().as_secs_f64(), suppressed,
                "the destination accepts messages again: waiting messages are sent"
            );
        }
    }

    /// Logs that a failure is forgotten.
    fn log_abandoned(&self, destination: &Destination, error: &TransportError) {
        if let Some(suppressed) = self.recoveries.allow() {
            tracing::info!(
                transport = self.bus_name(destination), topic = %shown_topic(destination.topic.as_str()), %error, suppressed,
                "no message is waiting for this destination any more; it will be tried again with the next one"
            );
        }
    }

    /// A sender that retries a copy until it is confirmed.
    pub(super) fn interest<'a>(&'a self, copy: &'a Outgoing) -> Interest<'a> {
        Interest {
            destinations: self,
            copy,
            unreported: None,
        }
    }

    /// Counts and logs a copy that was given up.
    fn given_up(&self, copy: &Outgoing, error: &TransportError) {
        let Some(bus) = self.buses.get(copy.bus) else {
            return;
        };
        bus.metrics.given_up(error.kind());
        if let Some(suppressed) = self.losses.allow() {
            tracing::warn!(
                transport = %bus.name.text(), topic = %shown_topic(copy.address.topic.as_str()), %error, suppressed,
                call = copy.call.as_ref().map(Text::as_str), agent = copy.agent.as_ref().map(Text::as_str),
                "a message of a caller was not published"
            );
        }
    }

    fn probe_failed(&self, holder: &Holder, error: &TransportError) {
        let destination = &holder.destination;
        let reminder = {
            let mut table = self.lock();
            let Some(failing) = table.held_by(holder) else {
                return;
            };
            failing.wait = (failing.wait * 2).min(BACKOFF.1);
            failing.tried = Instant::now();
            let is_news = failing.error.kind() != error.kind();
            failing.error = error.clone();
            self.show(destination, failing);
            let is_due = needs_a_person(error) && failing.reminded.elapsed() >= REMIND_EVERY;
            let allowed = (is_news || is_due).then(|| self.reminders.allow());
            // One that is not written now is due again at the next probe.
            allowed.flatten().map(|suppressed| {
                failing.reminded = Instant::now();
                (failing.since, failing.waiting, suppressed)
            })
        };
        if let Some(reminder) = reminder {
            self.log_still(destination, error, reminder);
        }
    }

    /// Lets the next who waits probe.
    fn release(&self, holder: &Holder) {
        if let Some(failing) = self.lock().held_by(holder) {
            failing.is_probed = false;
            failing.changed.send_replace(());
        }
    }

    fn log_failure(&self, destination: &Destination, error: &TransportError) {
        let Some(suppressed) = self.failures.allow() else {
            return;
        };
        let (transport, topic) = (
            self.bus_name(destination),
            shown_topic(destination.topic.as_str()),
        );
        if needs_a_person(error) {
            tracing::error!(transport, %topic, %error, suppressed,
                "the destination refuses messages: repair the topic, its permissions or its space; lanes wait, and nothing is lost");
        } else {
            tracing::warn!(transport, %topic, %error, suppressed,
                "the destination does not accept messages: lanes wait and try again");
        }
    }

    fn log_still(
        &self,
        destination: &Destination,
        error: &TransportError,
        (since, waiting, suppressed): (Instant, usize, u64),
    ) {
        let (transport, topic) = (
            self.bus_name(destination),
            shown_topic(destination.topic.as_str()),
        );
        let seconds = since.elapsed().as_secs();
        if needs_a_person(error) {
            tracing::error!(transport, %topic, %error, waiting, seconds, suppressed,
                "the destination still refuses messages: repair the topic, its permissions or its space");
        } else {
            tracing::warn!(transport, %topic, %error, waiting, seconds, suppressed,
                "the destination still does not accept messages");
        }
    }

    /// Brings what `/readyz` says up to date, under the lock.
    fn show(&self, destination: &Destination, failing: &Failing) {
        let Failing { error, waiting, .. } = failing;
        let cause = format!("{error}; {waiting} waiting");
        self.readiness.degraded(self.name(destination), cause);
    }

    fn name(&self, destination: &Destination) -> String {
        let transport = self.bus_name(destination);
        format!(
            "destination {transport}/{}",
            shown_topic(destination.topic.as_str())
        )
    }

    fn bus_name(&self, destination: &Destination) -> &str {
        self.buses
            .get(destination.bus)
            .map_or("", |bus| bus.name.text().as_str())
    }

    /// Every change is complete before the lock is released, so a panic elsewhere leaves it usable.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Table ===

impl Table {
    /// The failure that somebody holds a copy for, if it goes on.
    fn held_by(&mut self, holder: &Holder) -> Option<&mut Failing> {
        let failing = self.failing.get_mut(&holder.destination)?;
        (failing.generation == holder.generation).then_some(failing)
    }
}

// === impl Failing ===

impl Failing {
    fn new(generation: u64, error: &TransportError) -> Self {
        let now = Instant::now();
        Self {
            generation,
            since: now,
            error: error.clone(),
            copies: 0,
            holders: 0,
            waiting: 0,
            wait: BACKOFF.0,
            tried: now,
            is_probed: false,
            reminded: now,
            changed: watch::Sender::new(()),
        }
    }
}

// === impl Holder ===

impl Holder {
    /// One more copy that is held.
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
}

impl Drop for Holder {
    fn drop(&mut self) {
        let mut table = self.destinations.lock();
        let Some(failing) = table.held_by(self) else {
            return;
        };
        failing.holders = failing.holders.saturating_sub(1);
        let stays = self.named_by == NamedBy::Config && needs_a_person(&failing.error);
        if failing.holders > 0 || stays {
            return;
        }
        let failing = self.destinations.remove(&mut table, &self.destination);
        drop(table);
        if let Some(failing) = failing {
            self.destinations
                .log_abandoned(&self.destination, &failing.error);
        }
    }
}

// === impl Probe ===

impl Probe {
    /// The destination took the message.
    pub(super) fn confirmed(self) {
        self.holder().destinations.works(&self.holder().destination);
    }

    /// It did not; the next probe waits longer. The copy is still held.
    pub(super) fn failed(self, error: &TransportError) -> Holder {
        self.holder()
            .destinations
            .probe_failed(self.holder(), error);
        self.holder().another()
    }

    /// It answers, and refuses this very message: others may have more luck.
    pub(super) fn refused(self) {
        let Holder {
            destinations,
            destination,
            ..
        } = self.holder();
        drop(destinations.remove(&mut destinations.lock(), destination));
    }

    fn holder(&self) -> &Holder {
        &self.0.0
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.holder().destinations.release(self.holder());
    }
}

// === impl Interest ===

impl Drop for Interest<'_> {
    fn drop(&mut self) {
        if let Some(error) = &self.unreported {
            self.destinations.given_up(self.copy, error);
        }
    }
}

// === impl Waiting ===

impl Waiting {
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
        failing.holders += 1;
        failing.waiting += 1;
        destinations.show(destination, failing);
        Some(Self(Holder {
            destinations: Arc::clone(destinations),
            destination: destination.clone(),
            generation: failing.generation,
            named_by,
        }))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(failing) = self.0.destinations.lock().held_by(&self.0) {
            failing.waiting = failing.waiting.saturating_sub(1);
        }
    }
}

/// Whether time alone does not help.
pub(super) fn needs_a_person(error: &TransportError) -> bool {
    error.disposition() == Disposition::Pause
}

/// The wait, shortened at random by up to half, so that many do not wake at once.
pub(crate) fn jittered(wait: Duration) -> Duration {
    let mut byte = [0];
    // Without randomness the full wait is as good.
    let random = getrandom::fill(&mut byte).map_or(0, |()| u32::from(byte[0]));
    wait - wait * random / 512
}

#[cfg(test)]
mod tests {
    use a2abus_transports::memory::Memory;
    use a2abus_transports::{AnyTransport, TransportErrorKind};

    use super::*;
    use crate::bus::Bus;
    use crate::config::Name;
    use crate::metrics::Metrics;

    struct World {
        readiness: Arc<Readiness>,
        destinations: Arc<Destinations>,
        destination: Destination,
        error: TransportError,
    }

    impl World {
        fn new() -> Self {
            let name: Name = serde_json::from_str("\"bus\"").unwrap();
            let metrics = Metrics::new().unwrap().transport(name.text());
            let transport = AnyTransport::Memory(Memory::default());
            let bus = Bus {
                name: name.clone(),
                transport,
                metrics,
            };
            let buses = Buses::new(vec![bus]);
            let readiness = Arc::new(Readiness::new());
            let bus = buses.find(&name).unwrap();
            let log = LogLimits::default();
            let destinations = Destinations::new(buses, Arc::clone(&readiness), &log);
            Self {
                readiness,
                destinations: Arc::new(destinations),
                destination: Destination {
                    bus,
                    topic: Topic::new("t").unwrap(),
                },
                error: TransportError::new(TransportErrorKind::Full, "send"),
            }
        }

        fn fails(&self) -> Holder {
            self.destinations
                .failed(&self.destination, NamedBy::Event, &self.error)
        }

        async fn turn(&self) -> Option<Probe> {
            let (named_by, patience) = (NamedBy::Event, Patience::Unlimited);
            let turn = self
                .destinations
                .turn(&self.destination, named_by, patience);
            turn.await
        }

        /// What `/readyz` says of it.
        fn shown(&self) -> Option<String> {
            let degraded = self.readiness.report().degraded;
            degraded.first().map(|unmet| unmet.cause.clone())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_forgotten_with_the_last_copy_that_is_held() {
        let world = World::new();
        let (first, second) = (world.fails(), world.fails());
        drop(first);
        assert!(world.shown().is_some());
        drop(second);
        assert_eq!(world.shown(), None);
        assert_eq!(world.destinations.count.load(Ordering::Acquire), 0);
        assert!(world.turn().await.is_none(), "it works as far as is known");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_person_has_to_repair_is_shown_until_it_works() {
        let world = World::new();
        let fail = |named_by| {
            let destinations = &world.destinations;
            drop(destinations.failed(&world.destination, named_by, &world.error));
        };
        fail(NamedBy::Config);
        assert!(world.shown().is_some());
        world.destinations.works(&world.destination);
        assert_eq!(world.shown(), None);
        fail(NamedBy::Event);
        assert_eq!(world.shown(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_fails_keeps_what_is_known_as_long_as_its_copy_is_held() {
        let world = World::new();
        let held = world.fails();
        let probe = world.turn().await.unwrap();
        drop(held);
        let held = probe.failed(&world.error);
        assert_eq!(
            world
                .shown()
                .as_deref()
                .map(|cause| cause.ends_with("1 waiting")),
            Some(true)
        );
        drop(held);
        assert_eq!(world.shown(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waited_for_an_earlier_failure_counts_for_no_later_one() {
        let world = World::new();
        let first = world.fails();
        let probe = world.turn().await.unwrap();
        // The second who waits, and whose wait is over by the time it looks.
        let waiting =
            Waiting::enter(&world.destinations, &world.destination, NamedBy::Event).unwrap();
        probe.confirmed();
        let second = world.fails();
        let probe = world.turn().await.unwrap();
        let is_probed = |world: &World| {
            let mut table = world.destinations.lock();
            let failing = table.failing.get_mut(&world.destination).unwrap();
            (failing.is_probed, failing.waiting, failing.holders)
        };
        assert_eq!(is_probed(&world), (true, 1, 2));
        assert!(matches!(
            world
                .destinations
                .next_turn(&waiting.0, Patience::Unlimited),
            Turn::Send
        ));
        drop((first, Probe(waiting)));
        assert_eq!(is_probed(&world), (true, 1, 2), "not that one");
        drop((probe, second));
        assert_eq!(world.shown(), None);
    }
}
