//! The state of a failing destination, and when it is removed.

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
        let (named_by, wait_policy) = (NamedBy::Event, WaitPolicy::Unlimited);
        let turn = self
            .destinations
            .turn(&self.destination, named_by, wait_policy);
        turn.await
    }

    /// Its line in `/readyz`.
    fn shown(&self) -> Option<String> {
        let degraded = self.readiness.report().degraded;
        degraded.first().map(|unmet| unmet.cause.clone())
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_forgotten_with_the_last_held_copy() {
    let world = World::new();
    let (first, second) = (world.fails(), world.fails());
    drop(first);
    assert!(world.shown().is_some());
    drop(second);
    assert_eq!(world.shown(), None);
    assert_eq!(world.destinations.count.load(Ordering::Acquire), 0);
    assert!(world.turn().await.is_none(), "it is assumed to work");
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_needs_repair_is_shown_until_the_destination_works() {
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
async fn a_failure_is_forgotten_when_its_copies_have_moved_to_another_replica() {
    let world = World::new();
    let fails = || {
        let destinations = &world.destinations;
        destinations.failed(&world.destination, NamedBy::Config, &world.error)
    };
    let (first, second) = (fails(), fails());
    first.moved();
    assert!(world.shown().is_some());
    second.moved();
    assert_eq!(world.shown(), None);
}

#[tokio::test(start_paused = true)]
async fn a_failed_probe_keeps_the_failure_while_its_copy_is_held() {
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
async fn senders_that_waited_for_an_earlier_failure_do_not_count_for_a_later_one() {
    let world = World::new();
    let first = world.fails();
    let probe = world.turn().await.unwrap();
    // The second sender, whose wait is over by the time it checks.
    let waiting = Waiter::enter(&world.destinations, &world.destination, NamedBy::Event).unwrap();
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
            .next_turn(&waiting.0, WaitPolicy::Unlimited),
        SendDecision::Send
    ));
    drop((first, Probe(waiting)));
    assert_eq!(is_probed(&world), (true, 1, 2), "not that one");
    drop((probe, second));
    assert_eq!(world.shown(), None);
}
