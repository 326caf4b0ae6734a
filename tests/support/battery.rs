//! The named cases that every transport passes, so that the rest of the system need not know which one it has.
//!
//! An [`Environment`] says how to reach a transport and what it can do; [`run`] runs one [`Case`] against it. Every
//! wait is on a condition, with a deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use a2abus_plugin::Text;
use a2abus_transports::{
    Address, Confirmation, Consumer, Delivery, Disposition, Guarantee, Headers, Health, Message,
    Outcome, Reading, Subscription, Topic, TopicFilter, Transport, TransportError,
    TransportErrorKind,
};
use bytes::Bytes;
use tokio::time::{sleep, timeout};

/// How long a condition may take to come true: far more than it should, since brokers elect and rebalance, and machines
/// are slow at times.
pub const DEADLINE: Duration = Duration::from_secs(180);

/// How long nothing has to happen before it counts as not happening.
const QUIET: Duration = Duration::from_secs(1);

/// Gives access to a transport, and lists its features.
pub trait Environment: Sync {
    /// The transport.
    type Transport: Transport;

    /// A connection of its own to the same bus.
    fn connect(&self) -> impl Future<Output = Self::Transport> + Send;

    /// How to read a topic at least once, sharing the position under that name.
    fn durable(&self, topic: &Topic, name: &str) -> Reading;

    /// The guarantee that a confirmation needs so that a durable reader surely gets the message.
    fn guarantee(&self) -> Guarantee {
        Guarantee::Default
    }

    /// Whether messages may wait for others, which a transport may send in another way.
    fn may_linger(&self) -> bool {
        true
    }

    /// A topic name that no other case uses. On NATS, a stream must cover it.
    fn topic_name(&self, case: &str) -> String {
        format!("battery.{case}.{}", unique())
    }

    /// Whether the transport has this feature.
    fn has(&self, feature: Feature) -> bool;

    /// The size of a body that is too large for the transport, in bytes.
    fn oversize_bytes(&self) -> usize;

    /// Makes the bus unreachable; only with [`Feature::Outage`].
    fn stop(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Makes it reachable again, with its stored data.
    fn start(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// What not every transport can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Headers without a value.
    NullHeaders,
    /// Header values that are not text.
    BinaryHeaders,
    /// Keys and partitions.
    Keys,
    /// `*` and `>` in subscriptions.
    Wildcards,
    /// Unsettled messages of a crashed reader are redelivered in order. JetStream sends each message again after a
    /// delay of its own.
    OrderedRedelivery,
    /// It reports the lag of a reader.
    Lag,
    /// The environment can stop and start the bus.
    Outage,
}

/// One case of the battery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the names are the sentences; the functions below tell the rest"
)]
pub enum Case {
    OpenClose,
    HeadersSurvive,
    OrderPerKey,
    ParallelPublish,
    Batch,
    SaturatedUnacked,
    Lag,
    AtLeastOnceAfterCrash,
    SettledIsNotRedelivered,
    OutOfOrderSettlement,
    GroupShares,
    LiveSeesWhatComesAfter,
    Oversize,
    ReconnectMidFlight,
    ShutdownDrains,
    Wildcards,
}

/// All cases.
pub const CASES: [Case; 16] = [
    Case::OpenClose,
    Case::HeadersSurvive,
    Case::OrderPerKey,
    Case::ParallelPublish,
    Case::Batch,
    Case::SaturatedUnacked,
    Case::Lag,
    Case::AtLeastOnceAfterCrash,
    Case::SettledIsNotRedelivered,
    Case::OutOfOrderSettlement,
    Case::GroupShares,
    Case::LiveSeesWhatComesAfter,
    Case::Oversize,
    Case::ReconnectMidFlight,
    Case::ShutdownDrains,
    Case::Wildcards,
];

/// Runs one case. Panics if the transport fails it; prints a line if the transport lacks a feature that the case needs.
pub async fn run<E: Environment>(case: Case, env: &E) {
    let needs = match case {
        Case::ReconnectMidFlight => Some(Feature::Outage),
        Case::Wildcards => Some(Feature::Wildcards),
        Case::Lag => Some(Feature::Lag),
        _ => None,
    };
    if let Some(feature) = needs.filter(|feature| !env.has(*feature)) {
        println!("{case} does not apply: this transport has no {feature:?}");
        return;
    }
    let bench = Bench::open(env, case).await;
    match case {
        Case::OpenClose => open_close(&bench).await,
        Case::HeadersSurvive => headers_survive(&bench).await,
        Case::OrderPerKey => order_per_key(&bench).await,
        Case::ParallelPublish => parallel_publish(&bench).await,
        Case::Batch => batch(&bench).await,
        Case::SaturatedUnacked => saturated_unacked(&bench).await,
        Case::Lag => lag(&bench).await,
        Case::AtLeastOnceAfterCrash => at_least_once_after_crash(&bench).await,
        Case::SettledIsNotRedelivered => settled_is_not_redelivered(&bench).await,
        Case::OutOfOrderSettlement => out_of_order_settlement(&bench).await,
        Case::GroupShares => group_shares(&bench).await,
        Case::LiveSeesWhatComesAfter => live_subscriptions_see_only_later_messages(&bench).await,
        Case::Oversize => oversize(&bench).await,
        Case::ReconnectMidFlight => reconnect_mid_flight(&bench).await,
        Case::ShutdownDrains => shutdown_drains(&bench).await,
        Case::Wildcards => wildcards(&bench).await,
    }
}

/// A name that nothing else has.
#[must_use]
pub fn unique() -> String {
    let random = getrandom::u64().expect("the system has random numbers");
    format!("{random:016x}")
}

/// Waits for a condition.
///
/// # Panics
/// When it does not come true in time.
pub async fn within<T>(what: &str, condition: impl Future<Output = T>) -> T {
    timeout(DEADLINE, condition)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within {DEADLINE:?}"))
}

/// Waits until no state is open in the files of a directory: a process lets go of them when it ends, a bridge inside of
/// the test a moment after it has stopped.
///
/// # Panics
/// When they cannot be read, or stay open.
pub async fn until_closed(directory: &Path) {
    for entry in std::fs::read_dir(directory).expect("the directory of the state") {
        let path = entry.expect("the directory of the state").path();
        let file = File::open(&path).expect("a file of the state");
        within("the state is closed", async {
            while file.try_lock().is_err() {
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

/// One connection and one topic of a case.
struct Bench<'a, E: Environment> {
    env: &'a E,
    transport: E::Transport,
    topic: Topic,
}

const PARTITIONS: u32 = 4;

async fn open_close<E: Environment>(bench: &Bench<'_, E>) {
    let mut consumer = bench.read(&bench.transport, "g").await;
    bench.publish(0..3).await;
    receive_all(&mut consumer, 0..3).await;
    consumer.close(DEADLINE).await.expect("the consumer closes");
    bench
        .transport
        .close(DEADLINE)
        .await
        .expect("the transport closes");
    let sent = bench.send(&bench.transport, numbered("k", 9)).await;
    let refused = match sent {
        Ok(confirmation) => confirmation.await.map(drop),
        Err(error) => Err(error),
    };
    assert!(refused.is_err(), "a closed transport confirms nothing");

    let again = bench.connect().await;
    let mut consumer = bench.read(&again, "g").await;
    confirm(bench.send(&again, numbered("k", 3)).await).await;
    receive_all(&mut consumer, 3..4).await;
}

async fn headers_survive<E: Environment>(bench: &Bench<'_, E>) {
    let mut headers = Headers::new();
    headers.push("t-text", "plain");
    headers.push("t-twice", "first");
    headers.push("t-twice", "second");
    headers.push("t-unicode", "Ω € 🚀");
    headers.push("t-empty", "");
    let binary = Bytes::from_static(&[0, 159, 146, 150, 10, 255]);
    if bench.env.has(Feature::BinaryHeaders) {
        headers.push("t-binary", binary.clone());
    }
    if bench.env.has(Feature::NullHeaders) {
        headers.push_null("t-null");
    }
    let body = Bytes::from((0..=255).cycle().take(100_000).collect::<Vec<u8>>());
    let message = Message {
        key: Some(Bytes::from_static(b"the key")),
        headers,
        body: Some(body),
    };
    let mut consumer = bench.read(&bench.transport, "g").await;
    confirm(bench.send(&bench.transport, message.clone()).await).await;
    let delivery = receive(&mut consumer).await;
    assert_eq!(
        by_name(&delivery.message.headers),
        by_name(&message.headers)
    );
    assert_eq!(delivery.message.body, message.body);
    if bench.env.has(Feature::Keys) {
        assert_eq!(delivery.message.key, message.key);
    }
    assert_eq!(delivery.topic, bench.topic);
    assert!(delivery.origin.is_some() && delivery.attempt == 1);
    settle(delivery);

    if !bench.env.has(Feature::BinaryHeaders) {
        let mut message = Message::plain("x");
        message.headers.push("t-binary", binary);
        let sent = bench.send(&bench.transport, message).await;
        let error = sent.expect_err("a header that cannot be written is refused");
        assert_eq!(error.kind(), TransportErrorKind::BadMessage);
    }
}

async fn order_per_key<E: Environment>(bench: &Bench<'_, E>) {
    let mut consumer = bench.read(&bench.transport, "g").await;
    let (keys, each) = (10, 50);
    let mut confirmations = Vec::new();
    for number in 0..each {
        for key in 0..keys {
            let sent = bench
                .send(&bench.transport, numbered(&format!("k{key}"), number))
                .await;
            confirmations.push(sent.expect("queued"));
        }
    }
    confirm_all(confirmations).await;
    let mut next: BTreeMap<String, u32> = BTreeMap::new();
    let mut lanes: BTreeMap<String, u32> = BTreeMap::new();
    for _ in 0..keys * each {
        let delivery = receive(&mut consumer).await;
        let (key, number) = parts(&delivery);
        let next = next.entry(key.clone()).or_default();
        assert_eq!(number, *next, "the order of {key}");
        *next += 1;
        let lane = *lanes.entry(key.clone()).or_insert(delivery.lane);
        assert_eq!(lane, delivery.lane, "the lane of {key}");
        settle(delivery);
    }
}

async fn parallel_publish<E: Environment>(bench: &Bench<'_, E>) {
    let mut consumer = bench.read(&bench.transport, "g").await;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8 {
        let (transport, to) = (bench.transport.clone(), bench.address());
        tasks.spawn(async move {
            for number in 0..50 {
                let message = numbered(&format!("k{task}"), task * 50 + number);
                confirm(transport.send(&to, message).await).await;
            }
        });
    }
    receive_all(&mut consumer, 0..400).await;
    while let Some(task) = tasks.join_next().await {
        task.expect("the publisher does not panic");
    }
}

async fn batch<E: Environment>(bench: &Bench<'_, E>) {
    let mut consumer = bench.read(&bench.transport, "g").await;
    let publish = bench.publish(0..2_000);
    let receive = receive_all(&mut consumer, 0..2_000);
    tokio::join!(publish, receive);
}

/// A reader that settles nothing gets as much as its budget allows. After it settles, it gets the rest; nothing is
/// lost.
async fn saturated_unacked<E: Environment>(bench: &Bench<'_, E>) {
    const BUDGET: usize = 5;
    let mut subscription = bench.subscription("g");
    subscription.budget_messages = BUDGET;
    let mut consumer = subscribe(&bench.transport, subscription).await;
    bench.publish(0..50).await;
    let mut held = Vec::new();
    for _ in 0..BUDGET {
        held.push(receive(&mut consumer).await);
    }
    let more = timeout(QUIET, consumer.recv()).await;
    assert!(more.is_err(), "nothing comes beyond the budget: {more:?}");
    let mut received: BTreeSet<u32> = held.iter().map(|delivery| parts(delivery).1).collect();
    held.into_iter().for_each(settle);
    while received.len() < 50 {
        let delivery = receive(&mut consumer).await;
        received.insert(parts(&delivery).1);
        settle(delivery);
    }
}

/// A reader that is slow can tell how far behind it is, and that it has caught up.
async fn lag<E: Environment>(bench: &Bench<'_, E>) {
    let mut subscription = bench.subscription("g");
    subscription.budget_messages = 2;
    let mut consumer = subscribe(&bench.transport, subscription).await;
    let mut lag = consumer.lag().expect("a lag");
    for number in 0..10 {
        confirm(bench.send(&bench.transport, numbered("k", number)).await).await;
    }
    settle(receive(&mut consumer).await);
    within("nine are left", lag.wait_for(|lag| *lag == Some(9)))
        .await
        .expect("the reader lives");
    // Also while the reader is paused.
    for number in 10..15 {
        confirm(bench.send(&bench.transport, numbered("k", number)).await).await;
    }
    within("fourteen are left", lag.wait_for(|lag| *lag == Some(14)))
        .await
        .expect("the reader lives");
    receive_all(&mut consumer, 1..15).await;
    within("none is left", lag.wait_for(|lag| *lag == Some(0)))
        .await
        .expect("the reader lives");
}

async fn at_least_once_after_crash<E: Environment>(bench: &Bench<'_, E>) {
    let crashing = bench.connect().await;
    let mut consumer = bench.read(&crashing, "g").await;
    bench.publish(0..20).await;
    let mut held = Vec::new();
    for number in 0..10 {
        let delivery = receive(&mut consumer).await;
        assert_eq!(parts(&delivery).1, number);
        if number < 4 {
            settle(delivery);
        } else {
            held.push(delivery);
        }
    }
    drop(consumer);
    drop(crashing);
    drop(held);
    let mut consumer = bench.read(&bench.transport, "g").await;
    let received = receive_all(&mut consumer, 4..20).await;
    let mut firsts = Vec::new();
    for number in received.into_iter().filter(|number| *number >= 4) {
        if !firsts.contains(&number) {
            firsts.push(number);
        }
    }
    assert!(
        firsts.is_sorted() || !bench.env.has(Feature::OrderedRedelivery),
        "what comes again comes in order: {firsts:?}"
    );
}

async fn settled_is_not_redelivered<E: Environment>(bench: &Bench<'_, E>) {
    let mut consumer = bench.read(&bench.transport, "g").await;
    bench.publish(0..20).await;
    receive_all(&mut consumer, 0..20).await;
    consumer.close(DEADLINE).await.expect("the consumer closes");
    let mut consumer = bench.read(&bench.transport, "g").await;
    bench.publish(20..21).await;
    let delivery = receive(&mut consumer).await;
    assert_eq!(
        parts(&delivery).1,
        20,
        "what was settled does not come again"
    );
    settle(delivery);
}

/// Only messages that are settled without a gap are forgotten: a gap is redelivered, and nothing before it.
async fn out_of_order_settlement<E: Environment>(bench: &Bench<'_, E>) {
    let mut consumer = bench.read(&bench.transport, "g").await;
    bench.publish(0..10).await;
    let mut held = Vec::new();
    for _ in 0..10 {
        held.push(receive(&mut consumer).await);
    }
    for delivery in held.into_iter().rev() {
        if parts(&delivery).1 == 3 {
            let outcome = delivery.acknowledger.settle(Outcome::Abandoned);
            outcome.expect("abandoned");
        } else {
            settle(delivery);
        }
    }
    // An abandoned message may be redelivered to this reader at once. It is not settled there either.
    consumer.close(DEADLINE).await.expect("the consumer closes");
    let mut consumer = bench.read(&bench.transport, "g").await;
    bench.publish(10..11).await;
    let received = receive_all(&mut consumer, [3, 10]).await;
    assert!(received.iter().all(|number| *number >= 3), "{received:?}");
}

/// Two members get messages while both are there, and all messages between them.
async fn group_shares<E: Environment>(bench: &Bench<'_, E>) {
    let other = bench.connect().await;
    let (mut first, mut second) =
        tokio::join!(bench.read(&bench.transport, "g"), bench.read(&other, "g"));
    let mut received: [BTreeSet<u32>; 2] = Default::default();
    let mut published = 0;
    within("both members receive", async {
        while received.iter().any(BTreeSet::is_empty) {
            for _ in 0..40 {
                let key = format!("k{published}");
                confirm(
                    bench
                        .send(&bench.transport, numbered(&key, published))
                        .await,
                )
                .await;
                published += 1;
            }
            receive_from_both(&mut first, &mut second, &mut received, published).await;
        }
    })
    .await;
}

async fn receive_from_both(
    first: &mut Consumer,
    second: &mut Consumer,
    received: &mut [BTreeSet<u32>; 2],
    published: u32,
) {
    while received[0].union(&received[1]).count() < published as usize {
        let (member, delivery) = within("the group receives all", async {
            tokio::select! {
                delivery = first.recv() => (0, delivery),
                delivery = second.recv() => (1, delivery),
            }
        })
        .await;
        let delivery = delivery.expect("the subscription goes on");
        received[member].insert(parts(&delivery).1);
        settle(delivery);
    }
}

async fn live_subscriptions_see_only_later_messages<E: Environment>(bench: &Bench<'_, E>) {
    // With partitions, a live reader has one of them.
    let partition = bench.env.has(Feature::Keys).then_some(0);
    let to = Address {
        partition,
        ..bench.address()
    };
    let live = || async {
        let subscription = Subscription {
            reading: Reading::Live { partition },
            ..bench.subscription("unused")
        };
        subscribe(&bench.transport, subscription).await
    };
    confirm(bench.transport.send(&to, numbered("k", 0)).await).await;
    let (mut first, mut second) = (live().await, live().await);
    confirm(bench.transport.send(&to, numbered("k", 1)).await).await;
    for consumer in [&mut first, &mut second] {
        let delivery = receive(consumer).await;
        assert_eq!(
            parts(&delivery).1,
            1,
            "a live reader sees what comes after it"
        );
        settle(delivery);
    }
}

async fn oversize<E: Environment>(bench: &Bench<'_, E>) {
    let size = bench.env.oversize_bytes();
    let large = Message::plain(vec![b'x'; size]);
    let refused = match bench.send(&bench.transport, large).await {
        Ok(confirmation) => within("the verdict on a large message", confirmation).await,
        Err(error) => Err(error),
    };
    let error = refused.expect_err("too large");
    assert_eq!(error.kind(), TransportErrorKind::TooLarge, "{error}");
    assert_eq!(error.disposition(), Disposition::DeadLetter);
    let message = error.to_string();
    assert!(message.contains(&format!(" {size} bytes: ")), "{message}");
    let mut consumer = bench.read(&bench.transport, "g").await;
    bench.publish(0..1).await;
    receive_all(&mut consumer, 0..1).await;
}

/// The bus goes down and comes back while messages are in flight: the confirmed ones arrive.
async fn reconnect_mid_flight<E: Environment>(bench: &Bench<'_, E>) {
    let mut consumer = bench.read(&bench.transport, "g").await;
    let (halfway, mut reached) = tokio::sync::watch::channel(0);
    let publish = async {
        for number in 0..100 {
            bench.publish_surely(numbered("k", number)).await;
            halfway.send_replace(number);
        }
    };
    let interrupt = async {
        let mut health = bench.transport.health();
        reached
            .wait_for(|number| *number >= 30)
            .await
            .expect("the publisher lives");
        bench.env.stop().await;
        let down = health.wait_for(|health| *health != Health::Up);
        within("the outage is noticed", down)
            .await
            .expect("the transport lives");
        bench.env.start().await;
        let up = health.wait_for(|health| *health == Health::Up);
        within("the connection comes back", up)
            .await
            .expect("the transport lives");
    };
    let receive = receive_all(&mut consumer, 0..100);
    tokio::join!(publish, interrupt, receive);
}

async fn shutdown_drains<E: Environment>(bench: &Bench<'_, E>) {
    let closing = bench.connect().await;
    let mut confirmations = Vec::new();
    for number in 0..500 {
        confirmations.push(
            bench
                .send(&closing, numbered("k", number))
                .await
                .expect("queued"),
        );
    }
    closing
        .close(DEADLINE)
        .await
        .expect("everything is confirmed");
    confirm_all(confirmations).await;
    let mut consumer = bench.read(&bench.transport, "g").await;
    receive_all(&mut consumer, 0..500).await;
}

async fn wildcards<E: Environment>(bench: &Bench<'_, E>) {
    let base = &bench.topic;
    let live = |pattern: String| async {
        let topics = vec![TopicFilter::new(pattern).expect("a filter")];
        let reading = Reading::Live { partition: None };
        let subscription = Subscription {
            topics,
            reading,
            ..bench.subscription("unused")
        };
        subscribe(&bench.transport, subscription).await
    };
    let mut one = live(format!("{base}.*.in")).await;
    let mut rest = live(format!("{base}.>")).await;
    for (number, name) in ["a.in", "a.out", "b.in", "b.c.in"].into_iter().enumerate() {
        let to = Address {
            topic: Topic::new(format!("{base}.{name}")).expect("a topic"),
            ..bench.address()
        };
        let number = u32::try_from(number).expect("small");
        confirm(bench.transport.send(&to, numbered("k", number)).await).await;
    }
    assert_eq!(receive_all(&mut one, [0, 2]).await, [0, 2]);
    receive_all(&mut rest, 0..4).await;
}

// === impl Bench ===

impl<'a, E: Environment> Bench<'a, E> {
    async fn open(env: &'a E, case: Case) -> Self {
        let name = env.topic_name(&case.to_string().replace('_', "-"));
        let topic = Topic::new(name).expect("a topic name");
        let transport = connect(env).await;
        let ensured = transport.ensure_topic(&topic, PARTITIONS);
        within("the topic is created", ensured)
            .await
            .expect("the topic is created");
        Self {
            env,
            transport,
            topic,
        }
    }

    async fn connect(&self) -> E::Transport {
        connect(self.env).await
    }

    fn address(&self) -> Address {
        Address {
            guarantee: self.env.guarantee(),
            may_linger: self.env.may_linger(),
            ..Address::topic(self.topic.clone())
        }
    }

    fn subscription(&self, name: &str) -> Subscription {
        Subscription {
            topics: vec![self.topic.clone().into()],
            reading: self.env.durable(&self.topic, name),
            budget_bytes: 64 << 20,
            budget_messages: 5_000,
        }
    }

    /// Reads the topic at least once.
    async fn read(&self, transport: &E::Transport, name: &str) -> Consumer {
        subscribe(transport, self.subscription(name)).await
    }

    async fn send(
        &self,
        transport: &E::Transport,
        message: Message,
    ) -> Result<Confirmation, TransportError> {
        within("a send", transport.send(&self.address(), message)).await
    }

    /// Publishes numbers under one key, many at once, and waits until all are confirmed.
    async fn publish(&self, numbers: std::ops::Range<u32>) {
        let mut confirmations = Vec::new();
        for number in numbers {
            let sent = self.send(&self.transport, numbered("k", number)).await;
            confirmations.push(sent.expect("queued"));
        }
        confirm_all(confirmations).await;
    }

    /// Publishes until it is confirmed, as the pipeline does.
    async fn publish_surely(&self, message: Message) {
        within("a message is confirmed in spite of an outage", async {
            loop {
                let confirmed = match self.transport.send(&self.address(), message.clone()).await {
                    Ok(confirmation) => confirmation.await,
                    Err(error) => Err(error),
                };
                match confirmed {
                    Ok(_) => return,
                    Err(error) => assert_eq!(error.disposition(), Disposition::Retry, "{error}"),
                }
                sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
    }
}

impl fmt::Display for Case {
    /// The name in lower case with underscores, as in a list of tests.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, c) in format!("{self:?}").char_indices() {
            if c.is_ascii_uppercase() && index > 0 {
                f.write_str("_")?;
            }
            write!(f, "{}", c.to_ascii_lowercase())?;
        }
        Ok(())
    }
}

async fn connect<E: Environment>(env: &E) -> E::Transport {
    let transport = env.connect().await;
    let mut health = transport.health();
    let up = health.wait_for(|health| *health == Health::Up);
    within("the transport is up", up)
        .await
        .expect("the transport lives");
    transport
}

async fn subscribe(transport: &impl Transport, subscription: Subscription) -> Consumer {
    within("a subscription", transport.subscribe(subscription))
        .await
        .expect("subscribed")
}

async fn confirm(sent: Result<Confirmation, TransportError>) {
    let confirmation = sent.expect("queued");
    within("a confirmation", confirmation)
        .await
        .expect("confirmed");
}

async fn confirm_all(confirmations: Vec<Confirmation>) {
    for confirmation in confirmations {
        within("a confirmation", confirmation)
            .await
            .expect("confirmed");
    }
}

async fn receive(consumer: &mut Consumer) -> Delivery {
    within("a delivery", consumer.recv())
        .await
        .expect("the subscription goes on")
}

/// Receives and settles until all these numbers have arrived. Returns the received messages, with repetitions.
async fn receive_all(consumer: &mut Consumer, numbers: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut missing: BTreeSet<u32> = numbers.into_iter().collect();
    let mut received = Vec::new();
    while !missing.is_empty() {
        let delivery = timeout(DEADLINE, consumer.recv()).await;
        let delivery = delivery.unwrap_or_else(|_| panic!("never came: {missing:?}"));
        let delivery = delivery.expect("the subscription goes on");
        let number = parts(&delivery).1;
        missing.remove(&number);
        received.push(number);
        // During an outage a verdict can be refused; the message then comes again.
        let _ = delivery.acknowledger.settle(Outcome::Settled);
    }
    received
}

fn settle(delivery: Delivery) {
    let settled = delivery.acknowledger.settle(Outcome::Settled);
    settled.expect("the verdict is taken");
}

/// A message with its number and key in the body, because some transports have no keys.
fn numbered(key: &str, number: u32) -> Message {
    Message {
        key: Some(key.to_owned().into()),
        ..Message::plain(format!("{key} {number}"))
    }
}

fn parts(delivery: &Delivery) -> (String, u32) {
    let body = delivery.message.body.as_deref().unwrap_or_default();
    let text = std::str::from_utf8(body).expect("a body of ours");
    let (key, number) = text.split_once(' ').expect("a body of ours");
    (key.to_owned(), number.parse().expect("a body of ours"))
}

/// The headers of a case by name, the values of one name in their order.
fn by_name(headers: &Headers) -> BTreeMap<Text, Vec<Option<Bytes>>> {
    let mut by_name: BTreeMap<Text, Vec<Option<Bytes>>> = BTreeMap::new();
    for header in headers
        .iter()
        .filter(|header| header.name.starts_with("t-"))
    {
        let values = by_name.entry(header.name.clone()).or_default();
        values.push(header.value.clone());
    }
    by_name
}
