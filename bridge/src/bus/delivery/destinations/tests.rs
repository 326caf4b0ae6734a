//! The state of a failing destination, when it is removed, and whose turn it is to probe it.

use std::sync::atomic::AtomicBool;

use a2abus_transports::TransportErrorKind;
use a2abus_transports::memory::Memory;
use futures_util::FutureExt as _;

use super::*;
use crate::metrics::Metrics;

struct World {
    readiness: Arc<Readiness>,
    destinations: Arc<Destinations>,
    destination: Destination,
    error: TransportError,
}

impl World {
    fn new() -> Self {
        let buses = Buses::of_test(Memory::default().into(), &Metrics::new().unwrap());
        let readiness = Arc::new(Readiness::new());
        let log = LogLimits::default();
        let destinations = Destinations::new(buses, Arc::clone(&readiness), &log);
        Self {
            readiness,
            destinations: Arc::new(destinations),
            destination: Destination {
                bus: BusId::FIRST,
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
        self.turn_if(|| true).await
    }

    async fn turn_if(&self, is_wanted: impl Fn() -> bool) -> Option<Probe> {
        let (named_by, wait_policy) = (NamedBy::Event, WaitPolicy::Unlimited);
        let turn = self
            .destinations
            .turn(&self.destination, named_by, wait_policy, is_wanted);
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
    let is_shown = |end: &str| world.shown().map(|cause| cause.ends_with(end));
    assert_eq!(is_shown("; waiting lanes and calls: 1"), Some(true));
    let held = probe.failed(&world.error);
    assert_eq!(
        is_shown("; waiting lanes and calls: 0"),
        Some(true),
        "it has left"
    );
    drop(held);
    assert_eq!(world.shown(), None);
}

#[tokio::test(start_paused = true)]
async fn a_sender_whose_probe_failed_probes_again_after_the_others() {
    let world = World::new();
    let held = world.fails();
    let probe = world.turn().await.unwrap();
    let mut second = Box::pin(world.turn());
    assert!(second.as_mut().now_or_never().is_none());
    let again = probe.failed(&world.error);
    let mut first = Box::pin(world.turn());
    assert!(first.as_mut().now_or_never().is_none());
    let probe = tokio::select! {
        biased;
        _ = &mut first => panic!("it overtakes the other sender"),
        probe = &mut second => probe.unwrap(),
    };
    drop(probe.failed(&world.error));
    assert!(first.await.is_some());
    drop((held, again));
}

/// The client of its call reads nothing, so nobody polls it.
#[tokio::test(start_paused = true)]
async fn a_sender_that_is_not_polled_does_not_hold_up_the_others() {
    let world = World::new();
    let held = world.fails();
    let mut first = Box::pin(world.turn());
    assert!(first.as_mut().now_or_never().is_none());
    let began = Instant::now();
    let probe = world.turn().await.unwrap();
    assert!(began.elapsed() >= OVERTAKE_AFTER, "the first one may probe");
    let mut third = Box::pin(world.turn());
    assert!(third.as_mut().now_or_never().is_none());
    probe.confirmed();
    assert!(third.await.is_none());
    assert!(first.await.is_some(), "it was about to probe");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn the_next_sender_probes_when_the_first_one_leaves() {
    let world = World::new();
    let held = world.fails();
    let mut first = Box::pin(world.turn());
    let mut second = Box::pin(world.turn());
    assert!(first.as_mut().now_or_never().is_none());
    assert!(second.as_mut().now_or_never().is_none());
    let began = Instant::now();
    drop(first);
    assert!(second.await.is_some());
    assert!(began.elapsed() < OVERTAKE_AFTER);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_sender_whose_copy_is_no_longer_wanted_leaves_after_the_next_probe() {
    let world = World::new();
    let held = world.fails();
    let probe = world.turn().await.unwrap();
    let wanted = AtomicBool::new(true);
    let mut waiting = Box::pin(world.turn_if(|| wanted.load(Ordering::Relaxed)));
    assert!(waiting.as_mut().now_or_never().is_none());
    wanted.store(false, Ordering::Relaxed);
    drop(probe.failed(&world.error));
    assert!(waiting.await.is_none(), "it does not probe");
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
    let counts = |world: &World| {
        let table = world.destinations.lock();
        let failing = table.failing.get(&world.destination).unwrap();
        (failing.waiting.len(), failing.holders)
    };
    assert_eq!(counts(&world), (1, 2));
    assert!(matches!(
        world
            .destinations
            .next_turn(&waiting, WaitPolicy::Unlimited),
        SendDecision::Send
    ));
    drop((first, Probe(waiting)));
    assert_eq!(counts(&world), (1, 2), "not that one");
    drop((probe, second));
    assert_eq!(world.shown(), None);
}
