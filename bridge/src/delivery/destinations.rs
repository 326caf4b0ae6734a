//! Destinations that take nothing at the moment.
//!
//! ```text
//! failed ──> Failing ──turn──> one probe at a time, with back-off ──confirmed──> works: all who wait go on
//!               ^                                        │failed
//!               └────────────────────────────────────────┘
//! ```
//! One for all lanes of a bridge. Nothing here is touched while every destination works, but for one atomic read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use a2abus_plugin::Text;
use a2abus_transports::{Disposition, Health, Topic, Transport as _, TransportError};
use tokio::sync::watch;
use tokio::time::{Duration, Instant, sleep_until};

use crate::bus::{BusId, Buses};
use crate::http::Readiness;
use crate::outbound::{Outgoing, Place};
use crate::seldom::Seldom;

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
    failing: Mutex<HashMap<Destination, Failing>>,
    /// How many there are, to be read without the lock.
    count: AtomicUsize,
    failures: Seldom,
    recoveries: Seldom,
    losses: Seldom,
}

/// A topic of a bus.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Destination {
    bus: BusId,
    topic: Topic,
}

#[derive(Debug)]
struct Failing {
    since: Instant,
    error: TransportError,
    /// Copies that it did not take.
    copies: u64,
    /// Those who wait until it works: lanes, answers of workflows.
    waiting: usize,
    /// The wait before the next probe, since the last one.
    wait: Duration,
    tried: Instant,
    is_probed: bool,
    reminded: Instant,
    changed: watch::Sender<()>,
}

/// The right to send the one message that finds out whether a destination works again. Dropped without a result it
/// passes to the next who waits.
#[derive(Debug)]
pub(super) struct Probe<'a>(Waiting<'a>);

/// Counts one who waits for a destination.
#[derive(Debug)]
struct Waiting<'a> {
    destinations: &'a Destinations,
    destination: &'a Destination,
}

/// How long a sender waits for a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// Until it works, even if a person has to repair it first.
    Unlimited,
    /// While it may come back by itself. What has to be repaired is tried at once, and may fail.
    UntilRefused,
}

/// Somebody sends a copy until it is confirmed. When the last one gives up, the failure of the destination is forgotten
/// that nobody would look at again.
#[derive(Debug)]
pub(super) struct Interest<'a> {
    destinations: &'a Destinations,
    destination: &'a Destination,
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
    pub fn new(buses: Buses, readiness: Arc<Readiness>) -> Self {
        Self {
            buses,
            readiness,
            failing: Mutex::default(),
            count: AtomicUsize::new(0),
            failures: Seldom::new(),
            recoveries: Seldom::new(),
            losses: Seldom::new(),
        }
    }

    /// Why the destination of this copy does not take it, if that is known without asking.
    pub(super) fn known_failure(&self, copy: &Outgoing) -> Option<TransportError> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let failing = self.lock();
        failing
            .get(&Destination::of(copy))
            .map(|failing| failing.error.clone())
    }

    /// Notes that a destination did not take a copy, which will be sent again.
    pub(super) fn failed(&self, destination: &Destination, error: &TransportError) {
        let is_new = {
            let mut all = self.lock();
            let known = all.get_mut(destination).map(|failing| failing.copies += 1);
            if known.is_none() {
                all.insert(destination.clone(), Failing::new(error));
                self.count.store(all.len(), Ordering::Release);
            }
            known.is_none()
        };
        if is_new {
            self.log_failure(destination, error);
        }
        self.show(destination);
    }

    /// Waits until somebody may send to the destination: at once when it works. `Some` when it is the one to find out.
    pub(super) async fn turn<'a>(
        &'a self,
        destination: &'a Destination,
        patience: Patience,
    ) -> Option<Probe<'a>> {
        let waiting = Waiting::enter(self, destination)?;
        loop {
            match self.next_turn(destination, patience) {
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

    fn next_turn(&self, destination: &Destination, patience: Patience) -> Turn {
        match self.lock().get_mut(destination) {
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

    /// Lets everybody who waits go on. Returns what there was to know of the failure.
    fn forget(&self, destination: &Destination) -> Option<Failing> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut all = self.lock();
        let failing = all.remove(destination)?;
        self.count.store(all.len(), Ordering::Release);
        drop(all);
        self.readiness.restored(&self.name(destination));
        Some(failing)
    }

    /// Notes that the bus has confirmed a copy.
    pub(super) fn works(&self, destination: &Destination) {
        if let Some(failing) = self.forget(destination)
            && let Some(suppressed) = self.recoveries.allow()
        {
            tracing::info!(
                transport = self.bus_name(destination), topic = %destination.topic,
                copies = failing.copies, seconds = failing.since.elapsed().as_secs_f64(), suppressed,
                "the destination takes messages again: what waited is sent"
            );
        }
    }

    fn probe_failed(&self, destination: &Destination, error: &TransportError) {
        let reminder = {
            let mut all = self.lock();
            let Some(failing) = all.get_mut(destination) else {
                return;
            };
            failing.wait = (failing.wait * 2).min(BACKOFF.1);
            failing.tried = Instant::now();
            let is_news = failing.error.kind() != error.kind();
            failing.error = error.clone();
            let is_due = needs_a_person(error) && failing.reminded.elapsed() >= REMIND_EVERY;
            if is_news || is_due {
                failing.reminded = Instant::now();
            }
            (is_news || is_due).then_some((failing.since, failing.waiting))
        };
        if let Some((since, waiting)) = reminder {
            self.log_still(destination, error, since, waiting);
        }
        self.show(destination);
    }

    /// Whoever is about to send a copy to this destination, its own, until that is confirmed.
    pub(super) fn interest<'a>(
        &'a self,
        destination: &'a Destination,
        copy: &'a Outgoing,
    ) -> Interest<'a> {
        Interest {
            destinations: self,
            destination,
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
                transport = %bus.name.text(), topic = %copy.address.topic, %error, suppressed,
                call = copy.call.as_ref().map(Text::as_str), agent = copy.agent.as_ref().map(Text::as_str),
                "a message of a caller was not published"
            );
        }
    }

    /// Whether a failure is of no use any more: nobody waits, and either it mends itself or no configuration names it.
    fn is_abandoned(&self, destination: &Destination, place: Place) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let all = self.lock();
        all.get(destination).is_some_and(|failing| {
            failing.waiting == 0 && (place == Place::FromEvent || !needs_a_person(&failing.error))
        })
    }

    /// Lets the next who waits probe.
    fn release(&self, destination: &Destination) {
        if let Some(failing) = self.lock().get_mut(destination) {
            failing.is_probed = false;
            failing.changed.send_replace(());
        }
    }

    fn log_failure(&self, destination: &Destination, error: &TransportError) {
        let Some(suppressed) = self.failures.allow() else {
            return;
        };
        let (transport, topic) = (self.bus_name(destination), &destination.topic);
        if needs_a_person(error) {
            tracing::error!(transport, %topic, %error, suppressed,
                "the destination refuses messages: repair the topic, its permissions or its space; lanes wait, and nothing is lost");
        } else {
            tracing::warn!(transport, %topic, %error, suppressed,
                "the destination does not take messages: lanes wait and try again");
        }
    }

    fn log_still(
        &self,
        destination: &Destination,
        error: &TransportError,
        since: Instant,
        waiting: usize,
    ) {
        let Some(suppressed) = self.failures.allow() else {
            return;
        };
        let (transport, topic) = (self.bus_name(destination), &destination.topic);
        let seconds = since.elapsed().as_secs();
        if needs_a_person(error) {
            tracing::error!(transport, %topic, %error, waiting, seconds, suppressed,
                "the destination still refuses messages: repair the topic, its permissions or its space");
        } else {
            tracing::warn!(transport, %topic, %error, waiting, seconds, suppressed,
                "the destination still does not take messages");
        }
    }

    /// Brings what `/readyz` says up to date.
    fn show(&self, destination: &Destination) {
        let cause = match self.lock().get(destination) {
            Some(Failing { error, waiting, .. }) => format!("{error}; {waiting} waiting"),
            None => return,
        };
        self.readiness.degraded(self.name(destination), cause);
    }

    fn name(&self, destination: &Destination) -> String {
        let transport = self.bus_name(destination);
        format!("destination {transport}/{}", destination.topic)
    }

    fn bus_name(&self, destination: &Destination) -> &str {
        self.buses
            .get(destination.bus)
            .map_or("", |bus| bus.name.text().as_str())
    }

    /// Every change is complete before the lock is released, so a panic elsewhere leaves it usable.
    fn lock(&self) -> MutexGuard<'_, HashMap<Destination, Failing>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Failing ===

impl Failing {
    fn new(error: &TransportError) -> Self {
        let now = Instant::now();
        Self {
            since: now,
            error: error.clone(),
            copies: 1,
            waiting: 0,
            wait: BACKOFF.0,
            tried: now,
            is_probed: false,
            reminded: now,
            changed: watch::Sender::new(()),
        }
    }
}

// === impl Probe ===

impl Probe<'_> {
    /// The destination took the message.
    pub(super) fn confirmed(self) {
        self.0.destinations.works(self.0.destination);
    }

    /// It did not; the next probe waits longer.
    pub(super) fn failed(self, error: &TransportError) {
        self.0.destinations.probe_failed(self.0.destination, error);
    }

    /// It answers, and refuses this very message: others may have more luck.
    pub(super) fn refused(self) {
        self.0.destinations.forget(self.0.destination);
    }
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        self.0.destinations.release(self.0.destination);
    }
}

// === impl Interest ===

impl Drop for Interest<'_> {
    fn drop(&mut self) {
        let all = self.destinations;
        if let Some(error) = &self.unreported {
            all.given_up(self.copy, error);
        }
        if all.is_abandoned(self.destination, self.copy.place)
            && let Some(failing) = all.forget(self.destination)
            && let Some(suppressed) = all.recoveries.allow()
        {
            tracing::info!(
                transport = all.bus_name(self.destination), topic = %self.destination.topic,
                error = %failing.error, suppressed,
                "nobody waits for the destination any more: the next message shows whether it works"
            );
        }
    }
}

// === impl Waiting ===

impl<'a> Waiting<'a> {
    /// `None` when the destination works.
    fn enter(destinations: &'a Destinations, destination: &'a Destination) -> Option<Self> {
        if destinations.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        destinations.lock().get_mut(destination)?.waiting += 1;
        destinations.show(destination);
        Some(Self {
            destinations,
            destination,
        })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(failing) = self.destinations.lock().get_mut(self.destination) {
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
