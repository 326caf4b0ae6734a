//! One message does not stop another: refused messages, messages that a bus does not accept for a while, and the log
//! lines about them.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock, Mutex};

use a2abus_bridge::config::Config;
use a2abus_bridge::metrics::Metrics;
use a2abus_bridge::readiness::Readiness;
use a2abus_transports::memory::{FaultPlan, Memory, MemoryConfig};
use a2abus_transports::{
    Address, Consumer, Message, Outcome, Topic, TopicFilter, Transport as _, TransportErrorKind,
};
use futures_util::FutureExt as _;
use support::battery::within;
use tokio::task::JoinHandle;
use tokio::task::coop::unconstrained;
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

use crate::set_up::{self, body, build, next, publish, until_ready};

const CONFIG: &str = "
instance: test
transports: { source: { type: memory }, sink: { type: memory } }
bindings:
  - { name: in, transport: source, topics: [in], dead_letter: { topic: dead } }
  - { name: pass, transport: source, topics: [pass], on_unknown: pass }
default_route: [{ transport: sink, topic: unknown }]
routes:
  - { name: fixed, when: { targetagent: fixed }, to: [{ transport: sink, topic: fixed }] }
  - { name: agents, when: { targetagent: '*' }, to: [{ transport: sink, topic: 'agents.{targetagent}' }] }
calls: { enabled: false }
http: { enabled: false, drain_grace: 5s }
admin: { enabled: false }
";

/// Lines of the log, as LEVEL MESSAGE, and the stages, as SPAN NAME, of everything that runs on this thread.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<String>>>);

impl<S: tracing_subscriber::registry::LookupSpan<'static> + tracing::Subscriber>
    tracing_subscriber::Layer<S> for Lines
{
    fn on_new_span(
        &self,
        span: &tracing::span::Attributes<'_>,
        _: &tracing::Id,
        _: Context<'_, S>,
    ) {
        if span.metadata().target() == "a2abus::stage" {
            let line = format!("SPAN {}", span.metadata().name());
            self.0.lock().unwrap().push(line);
        }
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!(" {}={value:?}", field.name());
            }
        }
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }
}

impl Lines {
    /// Records until the guard is dropped.
    ///
    /// While only one subscriber exists, `tracing` asks the current thread for its interest in a line and keeps the
    /// answer for all threads: a thread without a subscriber would turn the line off here. So there are always two.
    pub(crate) fn record() -> (Self, tracing::subscriber::DefaultGuard) {
        static OTHER: LazyLock<tracing::Dispatch> =
            LazyLock::new(|| tracing::Dispatch::new(tracing_subscriber::registry()));
        LazyLock::force(&OTHER);
        let lines = Self::default();
        let subscriber = tracing_subscriber::registry().with(lines.clone());
        let guard = tracing::subscriber::set_default(subscriber);
        (lines, guard)
    }

    fn spans(&self) -> BTreeSet<String> {
        let spans = self.of("SPAN", "");
        spans.iter().map(|line| line.replace("SPAN ", "")).collect()
    }

    pub(crate) fn of(&self, level: &str, part: &str) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        let matching = lines
            .iter()
            .filter(|line| line.starts_with(level) && line.contains(part));
        matching.cloned().collect()
    }
}

/// A bridge between two memory buses, and both their other ends.
struct World {
    source: Memory,
    sink: Memory,
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
    lines: Lines,
    _logging: tracing::subscriber::DefaultGuard,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

fn bus(partitions: u16) -> MemoryConfig {
    MemoryConfig {
        partitions: partitions.try_into().unwrap(),
        ..MemoryConfig::default()
    }
}

fn request(agent: &str, id: usize) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"_agentId":"{agent}"}}}}"#
    )
}

/// The id of a request, from its body.
fn id_of(message: &Message) -> usize {
    usize::try_from(body(message)["id"].as_u64().unwrap()).unwrap()
}

impl World {
    async fn new(source: Memory, sink: Memory) -> Self {
        Self::with(CONFIG, source, sink).await
    }

    async fn with(config: &str, source: Memory, sink: Memory) -> Self {
        let (lines, logging) = Lines::record();
        let config = Config::read("test.yaml", config, []).unwrap_or_else(|p| panic!("{p}"));
        let bus = |name: &str| if name == "source" { &source } else { &sink };
        let bridge = build(config, bus).await;
        let (metrics, readiness) = (Arc::clone(bridge.metrics()), Arc::clone(bridge.readiness()));
        let stop = CancellationToken::new();
        let running = tokio::spawn(bridge.run(stop.clone()));
        until_ready(&readiness).await;
        Self {
            source,
            sink,
            metrics,
            readiness,
            lines,
            _logging: logging,
            stop,
            running,
        }
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        set_up::until(what, || holds(self)).await;
    }

    /// Publishes to the source; all messages of one key are in one lane.
    async fn publish(&self, key: &str, body: String) {
        let message = Message {
            key: Some(key.to_owned().into()),
            ..Message::plain(body)
        };
        let to = Address::topic(Topic::new("in").unwrap());
        publish(&self.source, &to, message).await;
    }

    async fn read(&self, bus: &Memory, topic: &str) -> Consumer {
        set_up::read(bus, topic).await
    }

    fn metric(&self, line: &str) -> Option<String> {
        let text = self.metrics.render().unwrap();
        let found = text.lines().find_map(|found| found.strip_prefix(line));
        found.map(|value| value.trim().to_owned())
    }

    async fn end(self) {
        self.stop.cancel();
        within("the bridge ends", self.running).await.unwrap();
    }
}

fn header(message: &Message, name: &str) -> String {
    String::from_utf8_lossy(message.headers.get(name).unwrap()).into_owned()
}

#[tokio::test]
async fn a_topic_that_an_event_names_and_the_bus_refuses_stops_no_other_message() {
    for kind in [
        TransportErrorKind::Unauthorised,
        TransportErrorKind::UnknownTopic,
        TransportErrorKind::BadConfig,
        TransportErrorKind::Full,
        TransportErrorKind::Other,
    ] {
        let world = World::new(Memory::new(bus(1)), Memory::new(bus(1))).await;
        let secret = TopicFilter::new("agents.secret").unwrap();
        world.sink.set_refused(secret, Some(kind));
        let mut dead = world.read(&world.source, "dead").await;
        let mut good = world.read(&world.sink, "agents.good").await;
        for id in 0..621 {
            let agent = if id % 30 == 0 { "secret" } else { "good" };
            world.publish("k", request(agent, id)).await;
        }
        for id in (0..621).filter(|id| id % 30 != 0) {
            assert_eq!(id_of(&next(&mut good).await), id);
        }
        for id in (0..621).filter(|id| id % 30 == 0) {
            let dlq_message = next(&mut dead).await;
            assert_eq!(id_of(&dlq_message), id);
            assert_eq!(header(&dlq_message, "bus-dlq-reason"), kind.as_str());
            assert_eq!(header(&dlq_message, "bus-dlq-stage"), "publish");
        }
        let report = world.readiness.report();
        assert!(report.ready && report.degraded.is_empty(), "{report:?}");
        let counted = format!(
            "a2abus_dead_lettered_total{{binding=\"in\",reason=\"{}\"}}",
            kind.as_str()
        );
        assert_eq!(world.metric(&counted).as_deref(), Some("21"));
        let lines = world.lines.of("WARN", "a message becomes a dead letter");
        assert!((1..=21).contains(&lines.len()), "{lines:#?}");
        for part in [
            "topic=in",
            "agent=\"secret\"",
            "binding=in",
            "origin=\"m:in/0/0\"",
            kind.as_str(),
        ] {
            assert!(lines[0].contains(part), "{part}: {}", lines[0]);
        }
        world.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_destination_that_does_not_answer_on_a_bus_that_is_up_is_logged_once_a_minute() {
    let world = World::new(Memory::new(bus(1)), Memory::new(bus(1))).await;
    let fixed = TopicFilter::new("fixed").unwrap();
    let silent = Some(TransportErrorKind::TimedOut);
    world.sink.set_refused(fixed.clone(), silent);
    let mut events = world.read(&world.sink, "fixed").await;
    world.publish("k", request("fixed", 0)).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    let reminders = world
        .lines
        .of("WARN", "the destination is still unavailable");
    assert!((7..=10).contains(&reminders.len()), "{reminders:?}");
    world.sink.set_refused(fixed, None);
    assert_eq!(id_of(&next(&mut events).await), 0);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_topic_of_a_route_that_the_bus_refuses_holds_its_lane_and_is_reported() {
    let world = World::new(Memory::new(bus(1)), Memory::new(bus(1))).await;
    let fixed = TopicFilter::new("fixed").unwrap();
    world
        .sink
        .set_refused(fixed.clone(), Some(TransportErrorKind::Unauthorised));
    let mut events = world.read(&world.sink, "fixed").await;
    let mut good = world.read(&world.sink, "agents.good").await;
    world.publish("k", request("fixed", 0)).await;
    world.publish("k", request("good", 1)).await;
    world
        .until("the lane is held", |world| {
            !world.readiness.report().degraded.is_empty()
        })
        .await;
    let held = "a2abus_held_lanes{binding=\"in\",kind=\"unauthorised\"}";
    world
        .until("the lane is counted", |world| {
            world.metric(held).as_deref() == Some("1")
        })
        .await;
    // A gauge whose label is known is there from the start.
    let paused = "a2abus_paused_partitions{binding=\"in\"}";
    assert_eq!(world.metric(paused).as_deref(), Some("0"));
    // Ten minutes of retries with back-off.
    tokio::time::sleep(Duration::from_secs(600)).await;
    let report = world.readiness.report();
    assert!(report.ready, "other work goes on: {report:?}");
    assert_eq!(report.degraded[0].name.as_str(), "destination sink/fixed");
    assert!(
        report.degraded[0].cause.contains("unauthorised"),
        "{report:?}"
    );
    assert!(good.try_recv().is_none(), "nothing overtakes what is held");
    let errors = world.lines.of("ERROR", "topic=fixed").len();
    assert!(
        (2..=11).contains(&errors),
        "once, and then once a minute: {errors}"
    );
    world.sink.set_refused(fixed, None);
    assert_eq!(id_of(&next(&mut events).await), 0);
    assert_eq!(id_of(&next(&mut good).await), 1);
    world
        .until("nothing is held", |world| {
            world.metric(held).as_deref() == Some("0")
        })
        .await;
    assert!(world.readiness.report().degraded.is_empty());
    assert_eq!(world.lines.of("INFO", "accepts messages again").len(), 1);
    world.end().await;
}

/// More topics than lines that are written within one window.
const BAD: u16 = 30;

/// The messages that a binding is sent while its destinations are down.
const HELD: usize = 64;

/// A bridge with this many destinations in this mode, all down, and [`HELD`] messages with bodies of this size.
async fn held_messages(copies: usize, mode: &str, body: usize) -> World {
    let copies: Vec<String> = (0..copies)
        .map(|number| format!("{{ transport: sink, topic: many.{number}, mode: {mode} }}"))
        .collect();
    let many = format!("default_route: [{}]", copies.join(", "));
    let config = CONFIG.replace(
        "default_route: [{ transport: sink, topic: unknown }]",
        &many,
    );
    let config = config.replace("topics: [in],", "topics: [in], budget_bytes: 64MiB,");
    let world = World::with(&config, Memory::new(bus(1)), Memory::new(bus(1))).await;
    world.sink.set_down("it is gone");
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"text":"{}"}}}}"#,
        "x".repeat(body)
    );
    // All of them are there when the binding looks: nothing else runs before this task waits.
    let to = Address::topic(Topic::new("in").unwrap());
    for number in 0..HELD {
        let message = Message {
            key: Some(format!("k-{number}").into()),
            ..Message::plain(body.clone())
        };
        let sent = unconstrained(world.source.send(&to, message));
        drop(sent.now_or_never().unwrap().unwrap());
    }
    world
}

fn received(world: &World) -> usize {
    let read = world.metric("a2abus_received_total{binding=\"in\"}");
    read.map_or(0, |read| read.parse::<usize>().unwrap())
}

#[tokio::test]
async fn no_more_is_read_than_its_copies_have_memory_for() {
    const BODY: usize = 256 << 10;
    const COPIES: usize = 16;
    let world = held_messages(COPIES, "structured", BODY).await;
    let most = (64 << 20) / (BODY * COPIES);
    world
        .until("as many are read as have room", |world| {
            received(world) >= most
        })
        .await;
    assert!(
        received(&world) <= most + 1,
        "{} are read",
        received(&world)
    );
    world.sink.set_up();
    world
        .until("all of them are delivered", |world| received(world) == HELD)
        .await;
    world.end().await;
}

/// Copies that share the bytes of their message use no memory of their own. Otherwise a partition whose destination is
/// missing would stop all others before its share of the budget is used up.
#[tokio::test]
async fn copies_that_share_the_body_of_their_message_do_not_stop_the_binding() {
    let world = held_messages(2, "binary", 900 << 10).await;
    world
        .until("all of them are read", |world| received(world) == HELD)
        .await;
    world.sink.set_up();
    world.end().await;
}

/// The copies of one partition use all memory for copies, because their topics are missing.
#[tokio::test]
async fn a_lane_that_is_held_does_not_stop_the_lanes_of_other_partitions() {
    const BODY: usize = 256 << 10;
    const COPIES: usize = 16;
    const MESSAGES: usize = 24;
    let copies = (0..COPIES)
        .map(|number| format!("{{ transport: sink, topic: many.{number}, mode: structured }}"));
    let many = format!("default_route: [{}]", copies.collect::<Vec<_>>().join(", "));
    let config = CONFIG.replace(
        "default_route: [{ transport: sink, topic: unknown }]",
        &many,
    );
    let config = config.replace("topics: [in],", "topics: [in], budget_bytes: 64MiB,");
    let world = World::with(&config, Memory::new(bus(2)), Memory::new(bus(1))).await;
    let missing = TopicFilter::new("many.*").unwrap();
    let unknown = Some(TransportErrorKind::UnknownTopic);
    world.sink.set_refused(missing.clone(), unknown);
    let mut good = world.read(&world.sink, "agents.good").await;
    let publish = async |partition: u32, body: String| {
        let to = Address {
            partition: Some(partition),
            ..Address::topic(Topic::new("in").unwrap())
        };
        set_up::publish(&world.source, &to, Message::plain(body)).await;
    };
    let large = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"text":"{}"}}}}"#,
        "x".repeat(BODY)
    );
    for _ in 0..MESSAGES {
        publish(0, large.clone()).await;
    }
    let most = (64 << 20) / (BODY * COPIES);
    world
        .until("as many are read as have room", |world| {
            received(world) >= most
        })
        .await;
    for id in 0..3 {
        publish(1, request("good", id)).await;
        assert_eq!(id_of(&next(&mut good).await), id);
    }
    assert!(
        received(&world) <= most + 4,
        "{} are read",
        received(&world)
    );
    world.sink.set_refused(missing, None);
    world
        .until("all of them are delivered", |world| {
            received(world) == MESSAGES + 3
        })
        .await;
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn each_of_many_failing_topics_is_logged_every_minute() {
    let routes: String = (0..BAD)
        .map(|number| {
            format!("  - {{ name: bad-{number}, when: {{ targetagent: bad-{number} }}, to: [{{ transport: sink, topic: bad.{number} }}] }}\n")
        })
        .collect();
    let config = CONFIG.replace("routes:\n", &format!("routes:\n{routes}"));
    let world = World::with(&config, Memory::new(bus(BAD)), Memory::new(bus(1))).await;
    let bad = TopicFilter::new("bad.*").unwrap();
    let refused = Some(TransportErrorKind::Unauthorised);
    world.sink.set_refused(bad.clone(), refused);
    for number in 0..BAD {
        // Each in a lane of its own.
        let to = Address {
            partition: Some(number.into()),
            ..Address::topic(Topic::new("in").unwrap())
        };
        let message = Message::plain(request(&format!("bad-{number}"), number.into()));
        publish(&world.source, &to, message).await;
    }
    world
        .until("all lanes are held", |world| {
            world.readiness.report().degraded.len() == usize::from(BAD)
        })
        .await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    for number in 0..BAD {
        let reminders = world.lines.of("ERROR", &format!("topic=bad.{number} "));
        let reminders = reminders.iter().filter(|line| line.contains("still"));
        let reminders = reminders.count();
        assert!((7..=10).contains(&reminders), "{number}: {reminders}");
    }
    // The first lines of the others were suppressed, and no later line of their kind came.
    let more = world.lines.of("WARN", "more destinations started to fail");
    assert_eq!(more.len(), 1);
    assert!(more[0].contains("suppressed=20"), "{more:?}");
    world.sink.set_refused(bad, None);
    // Longer than the longest back-off.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(world.readiness.report().degraded.is_empty());
    world.end().await;
}

#[tokio::test]
async fn lines_suppressed_when_a_bridge_ends_are_counted_in_the_log() {
    let world = World::new(Memory::new(bus(1)), Memory::new(bus(1))).await;
    let lines = world.lines.clone();
    for number in 0..30 {
        world.publish("k", format!("no JSON {number}")).await;
    }
    let dead_lettered = "a2abus_dead_lettered_total{binding=\"in\",reason=\"not_json\"}";
    world
        .until("all are dead letters", |world| {
            world.metric(dead_lettered).as_deref() == Some("30")
        })
        .await;
    world.end().await;
    let written = lines.of("WARN", "a message becomes a dead letter").len();
    let more = lines.of("WARN", "more messages became dead letters");
    let suppressed = |line: &String| {
        let count = line.split("suppressed=").nth(1)?.split(' ').next()?;
        count.parse::<usize>().ok()
    };
    let suppressed: usize = more.iter().filter_map(suppressed).sum();
    assert_eq!(written + suppressed, 30, "{more:?}");
}

#[tokio::test]
async fn dead_letters_that_are_too_large_do_not_flood_the_log() {
    let small = MemoryConfig {
        max_message_bytes: 2_000.try_into().unwrap(),
        ..bus(1)
    };
    let world = World::new(Memory::new(small), Memory::new(bus(1))).await;
    let mut dead = world.read(&world.source, "dead").await;
    for _ in 0..30 {
        world.publish("k", "x".repeat(1_900)).await;
    }
    for _ in 0..30 {
        assert!(next(&mut dead).await.body.is_none());
    }
    let errors = world.lines.of("ERROR", "which is stored without its body");
    assert!((1..30).contains(&errors.len()), "{}", errors.len());
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_held_request_is_not_published_after_its_deadline() {
    let config = CONFIG.replace("calls: { enabled: false }", "calls: { timeout: 30s }");
    let world = World::with(&config, Memory::new(bus(1)), Memory::new(bus(1))).await;
    let fixed = TopicFilter::new("fixed").unwrap();
    let refused = Some(TransportErrorKind::TimedOut);
    world.sink.set_refused(fixed.clone(), refused);
    let mut agent = world.read(&world.sink, "fixed").await;
    let mut inbox = world.read(&world.source, "clients.me").await;
    let to = Address {
        reply_to: Some(Topic::new("clients.me").unwrap()),
        ..Address::topic(Topic::new("in").unwrap())
    };
    publish(&world.source, &to, Message::plain(request("fixed", 0))).await;
    let answer = next(&mut inbox).await;
    assert_eq!(id_of(&answer), 0);
    let body = String::from_utf8(answer.body.unwrap().to_vec()).unwrap();
    assert!(body.contains("\"timeout\""), "{body}");
    world.sink.set_refused(fixed, None);
    world.publish("k", request("fixed", 3)).await;
    assert_eq!(id_of(&next(&mut agent).await), 3);
    let dropped = "a2abus_dropped_total{binding=\"in\",reason=\"call_ended\"}";
    assert_eq!(world.metric(dropped).as_deref(), Some("1"));
    world.end().await;
}

#[tokio::test]
async fn every_stage_of_the_path_is_a_span() {
    let config = CONFIG.replace("calls: { enabled: false }", "calls: { timeout: 30s }");
    let world = World::with(&config, Memory::new(bus(1)), Memory::new(bus(1))).await;
    let mut agent = world.read(&world.sink, "agents.good").await;
    world.publish("k", request("good", 1)).await;
    next(&mut agent).await;
    let settled = "a2abus_settled_total{binding=\"in\"}";
    world
        .until("the message is settled", |world| {
            world.metric(settled).as_deref() == Some("1")
        })
        .await;
    let stages = ["receive", "map", "route", "publish", "settle"].map(str::to_owned);
    assert_eq!(world.lines.spans(), BTreeSet::from(stages));
    // The same, with a caller that waits for the answer.
    let to = Address {
        reply_to: Some(Topic::new("clients.me").unwrap()),
        ..Address::topic(Topic::new("in").unwrap())
    };
    let message = Message::plain(request("good", 2));
    publish(&world.source, &to, message).await;
    next(&mut agent).await;
    assert!(world.lines.spans().contains("call"));
    world.end().await;
}

#[tokio::test]
async fn an_invalid_or_negative_hop_count_counts_as_zero() {
    let world = World::new(Memory::default(), Memory::default()).await;
    let mut events = world.read(&world.sink, "unknown").await;
    for (hops, expected) in [("-20000", "1"), ("no number", "1"), ("7", "8")] {
        let mut message = Message::plain("{}");
        message.headers.push("bus-hops", hops.to_owned());
        let to = Address::topic(Topic::new("pass").unwrap());
        publish(&world.source, &to, message).await;
        assert_eq!(header(&next(&mut events).await, "bus-hops"), expected);
    }
    world.end().await;
}

/// Another kind of bus reads other headers as attributes, and the bridge has not checked those.
#[tokio::test]
async fn a_payload_that_passes_to_another_bus_takes_no_attributes_with_it() {
    let world = World::new(Memory::default(), Memory::default()).await;
    let mut events = world.read(&world.sink, "unknown").await;
    let mut message = Message::plain("{}");
    for name in ["ce-specversion", "CE-source", "ce_x", "x-ce-id", "trace"] {
        message.headers.push(name, "x");
    }
    let to = Address::topic(Topic::new("pass").unwrap());
    publish(&world.source, &to, message).await;
    let passed = next(&mut events).await;
    let names: Vec<_> = passed.headers.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["x-ce-id", "trace", "bus-hops"]);
    world.end().await;
}

/// Waiting messages, for the recovery of a sink.
const WAITING: usize = 50_000;

#[tokio::test(start_paused = true)]
async fn messages_that_wait_for_a_sink_are_sent_at_full_speed_in_order_when_it_is_back() {
    let world = World::new(Memory::new(bus(1)), Memory::new(bus(1))).await;
    let mut events = world.read(&world.sink, "agents.good").await;
    let drain = async |events: &mut Consumer| {
        let start = std::time::Instant::now();
        for id in 0..WAITING {
            assert_eq!(id_of(&next(events).await), id);
        }
        start.elapsed()
    };
    // The normal rate: everything is there when the bridge begins to read.
    world.source.set_down("the test");
    world.source.set_up();
    let publishing = async {
        for id in 0..WAITING {
            world.publish("k", request("good", id)).await;
        }
    };
    let (normal, ()) = tokio::join!(drain(&mut events), publishing);

    world.sink.set_down("the test");
    for id in 0..WAITING {
        world.publish("k", request("good", id)).await;
    }
    let held = "a2abus_held_lanes{binding=\"in\",kind=\"disconnected\"}";
    world
        .until("the lane is held", |world| {
            world.metric(held).as_deref() == Some("1")
        })
        .await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    let back = Instant::now();
    world.sink.set_up();
    let recovery = drain(&mut events).await;
    // No time is spent in waits: the clock of this test moves only when everything waits.
    assert!(
        back.elapsed() < Duration::from_secs(1),
        "{:?}",
        back.elapsed()
    );
    println!("{WAITING} messages: {normal:?} normally, {recovery:?} after the sink was back");
    assert_eq!(world.lines.of("WARN", "topic=agents.good").len(), 1);
    // That the bus is away, and nothing else; and so again each minute.
    assert_eq!(world.lines.of("WARN", "the transport is down").len(), 1);
    let reminders = world.lines.of("WARN", "the transport is not connected");
    assert!((4..=5).contains(&reminders.len()), "{reminders:?}");
    assert!(
        reminders.iter().all(|line| line.contains("the test")),
        "{reminders:?}"
    );
    // Nothing is lost, and no operator has to act.
    assert_eq!(world.lines.of("ERROR", "").len(), 0);
    assert_eq!(world.lines.of("INFO", "accepts messages again").len(), 1);
    assert!(world.readiness.report().degraded.is_empty());
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn order_holds_in_each_lane_whatever_fails() {
    for seed in 0..20 {
        let plan = FaultPlan {
            refuse: 0.1,
            drop_confirmation: 0.1,
            late_confirmation: 0.3,
            disconnect: 0.01,
            ..FaultPlan::default()
        };
        let sink = Memory::with_config_and_faults(bus(1), seed, plan);
        let world = World::new(Memory::new(bus(4)), sink).await;
        let keys = ["a", "b", "c", "d", "e"];
        let mut events: Vec<Consumer> = Vec::new();
        for key in keys {
            events.push(world.read(&world.sink, &format!("agents.{key}")).await);
        }
        for id in 0..100 {
            for key in keys {
                world.publish(key, request(key, id)).await;
            }
        }
        for (key, consumer) in keys.iter().zip(&mut events) {
            let mut ids = BTreeSet::new();
            while ids.len() < 100 {
                let delivery = within("a message arrives", consumer.recv()).await.unwrap();
                let id = id_of(&delivery.message);
                // It may arrive twice if its confirmation was lost. The first arrivals are in order.
                assert!(
                    ids.contains(&id) || id == ids.len(),
                    "{seed} {key}: {id} after {ids:?}"
                );
                ids.insert(id);
                // The bus may be down at this moment, and deliver it again.
                let _ = delivery.acknowledger.settle(Outcome::Settled);
            }
        }
        world.end().await;
    }
}
