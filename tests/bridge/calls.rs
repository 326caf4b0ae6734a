//! What callers send goes by the one delivery policy: known failures, refusals at once, retries until the deadline.

use std::sync::Arc;

use a2abus_bridge::calls::{Answer, CallError, Calls, Request};
use a2abus_bridge::config::Config;
use a2abus_bridge::metrics::Metrics;
use a2abus_bridge::readiness::Readiness;
use a2abus_transports::memory::{Memory, MemoryConfig};
use a2abus_transports::{Address, Consumer, Message, Topic, TopicFilter, TransportErrorKind};
use bytes::Bytes;
use support::battery::within;
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::delivery::Lines;
use crate::set_up::{self, Received, body, build, next, publish, receive, until_ready};

const CONFIG: &str = "
instance: test
transports: { bus: { type: memory } }
bindings: [{ name: in, transport: bus, topics: [in], dead_letter: { topic: dead } }]
routes:
  - { name: fixed, when: { targetagent: fixed }, to: [{ transport: bus, topic: fixed }] }
  - { name: pair, when: { targetagent: pair }, to: [{ transport: bus, topic: 'one.{targetagent}' }, { transport: bus, topic: 'two.{targetagent}', answers: true }] }
  - { name: agents, when: { targetagent: '*' }, to: [{ transport: bus, topic: 'agents.{targetagent}' }] }
calls: { timeout: 10s, max_pending_per_agent: 10000, max_pending_per_caller: 10000 }
http: { enabled: false, drain_grace: 5s }
admin: { enabled: false }
";

/// A bridge on a memory bus, its log, and the other end of the bus.
struct World {
    memory: Memory,
    calls: Arc<Calls>,
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
    lines: Lines,
    _logging: tracing::subscriber::DefaultGuard,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

fn filter(topic: &str) -> TopicFilter {
    TopicFilter::new(topic).unwrap()
}

fn to(topic: &str) -> Address {
    Address::topic(Topic::new(topic).unwrap())
}

fn message(method: &str, agent: &str, id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0",{id}"method":"{method}","params":{{"_agentId":"{agent}"}}}}"#)
}

/// A request, or without an id a notification.
fn request(agent: &str, id: &str) -> Request {
    set_up::request(message("message/send", agent, id), "test")
}

impl World {
    async fn new(memory: Memory) -> Self {
        let (lines, logging) = Lines::record();
        let config = Config::read("test.yaml", CONFIG, []).unwrap_or_else(|p| panic!("{p}"));
        let bridge = build(config, |_| &memory).await;
        let (metrics, readiness) = (Arc::clone(bridge.metrics()), Arc::clone(bridge.readiness()));
        let calls = Arc::clone(bridge.calls());
        let stop = CancellationToken::new();
        let running = tokio::spawn(bridge.run(stop.clone()));
        until_ready(&readiness).await;
        Self {
            memory,
            calls,
            metrics,
            readiness,
            lines,
            _logging: logging,
            stop,
            running,
        }
    }

    async fn read(&self, topic: &str) -> Consumer {
        set_up::read(&self.memory, topic).await
    }

    fn refuse(&self, topic: &str, kind: Option<TransportErrorKind>) {
        self.memory.set_refused(filter(topic), kind);
    }

    async fn call(&self, agent: &str) -> Answer {
        self.calls.call(request(agent, r#""id":7,"#)).await.unwrap()
    }

    /// How a call to an agent ends: its one answer.
    async fn answer(&self, agent: &str) -> Result<Bytes, CallError> {
        let mut answer = self.call(agent).await;
        answer.next().await.unwrap().map(|part| part.body)
    }

    async fn notify(&self, agent: &str) -> Result<(), CallError> {
        self.calls.notify(request(agent, "")).await
    }

    /// Answers a request as an agent does.
    async fn reply(&self, request: &Received) {
        let id = body(&request.message)["id"].clone();
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"done"}}"#);
        let address = Address::topic(request.reply_to.clone().unwrap());
        publish(&self.memory, &address, Message::plain(answer)).await;
    }

    fn metric(&self, series: &str) -> f64 {
        let text = self.metrics.render().unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(series));
        value.map_or(0.0, |value| value.trim().parse().unwrap())
    }

    fn given_up(&self, kind: &str) -> f64 {
        self.metric(&format!(
            "a2abus_given_up_total{{kind=\"{kind}\",transport=\"bus\"}}"
        ))
    }

    fn degraded(&self) -> Vec<String> {
        let degraded = self.readiness.report().degraded;
        degraded
            .iter()
            .map(|condition| condition.name.to_string())
            .collect()
    }

    async fn end(self) {
        self.stop.cancel();
        within("the bridge drains", self.running).await.unwrap();
    }
}

#[tokio::test]
async fn the_time_to_the_confirmation_is_observed_for_callers() {
    let world = World::new(Memory::default()).await;
    let mut agent = world.read("agents.weather").await;
    let count = |world: &World| {
        (
            world.metric("a2abus_publish_seconds_count{transport=\"bus\"}"),
            world.metric("a2abus_published_total{transport=\"bus\"}"),
        )
    };
    world.notify("weather").await.unwrap();
    assert_eq!(count(&world), (1.0, 1.0));
    let (answer, ()) = tokio::join!(world.answer("weather"), async {
        next(&mut agent).await;
        world.reply(&receive(&mut agent, "the request").await).await;
    });
    assert_eq!(
        answer.unwrap(),
        r#"{"jsonrpc":"2.0","id":7,"result":"done"}"#
    );
    assert_eq!(count(&world), (2.0, 2.0));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_configured_topic_that_refuses_fails_calls_at_once_and_is_reported_until_it_works() {
    let world = World::new(Memory::default()).await;
    let mut agent = world.read("fixed").await;
    world.refuse("fixed", Some(TransportErrorKind::Unauthorised));
    let start = Instant::now();
    let error = world.answer("fixed").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the bridge may not publish to topic fixed"
    );
    assert_eq!(error.reason_code(), "agent_unavailable");
    assert_eq!(world.degraded(), ["destination bus/fixed"]);
    assert_eq!(world.notify("fixed").await.unwrap_err(), error);
    assert_eq!(world.answer("fixed").await.unwrap_err(), error);
    assert!(start.elapsed() < Duration::from_secs(1), "at once");
    assert_eq!(world.lines.of("ERROR", "topic=fixed").len(), 1);
    assert_eq!(
        world
            .lines
            .of("WARN", "a message of a caller was not published")
            .len(),
        3
    );
    assert_eq!(world.given_up("unauthorised"), 3.0);
    assert_eq!(world.lines.of("INFO", "accepts messages again").len(), 0);

    world.refuse("fixed", None);
    world.notify("fixed").await.unwrap();
    assert!(body(&next(&mut agent).await).get("id").is_none());
    assert_eq!(world.lines.of("INFO", "accepts messages again").len(), 1);
    assert_eq!(world.lines.of("ERROR", "").len(), 1);
    assert!(world.degraded().is_empty());
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_bus_fails_the_call_at_once_and_names_the_topic() {
    use TransportErrorKind::{BadMessage, Full, Other, TooLarge, Unauthorised, UnknownTopic};
    let world = World::new(Memory::default()).await;
    let start = Instant::now();
    for (kind, reason, message) in [
        (
            UnknownTopic,
            "agent_not_found",
            "topic agents.a does not exist",
        ),
        (
            Unauthorised,
            "agent_unavailable",
            "the bridge may not publish to topic agents.a",
        ),
        (Full, "agent_unavailable", "topic agents.a is full"),
        (
            Other,
            "agent_unavailable",
            "topic agents.a accepts no messages (other)",
        ),
        (
            TooLarge,
            "too_large",
            "the request cannot be sent: topic agents.a: ",
        ),
        (
            BadMessage,
            "invalid_params",
            "the request cannot be sent: topic agents.a: ",
        ),
    ] {
        world.refuse("agents.a", Some(kind));
        let error = world.answer("a").await.unwrap_err();
        assert_eq!(error.reason_code(), reason);
        assert!(error.to_string().starts_with(message), "{error}");
        assert_eq!(world.notify("a").await.unwrap_err(), error);
        assert_eq!(world.given_up(kind.as_str()), 2.0);
    }
    assert!(start.elapsed() < Duration::from_secs(1), "at once");
    assert!(world.degraded().is_empty(), "the request named the topic");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn transient_failures_are_retried_until_the_deadline_of_the_call() {
    let world = World::new(Memory::default()).await;
    let mut agent = world.read("agents.weather").await;
    world.refuse("agents.weather", Some(TransportErrorKind::TimedOut));
    let repair = async {
        // The pauses are 0.1 s, 0.2 s, ... 3.2 s at most by then: one more ends before the deadline of 10 s.
        sleep(Duration::from_secs(3)).await;
        assert_eq!(world.degraded(), ["destination bus/agents.weather"]);
        world.refuse("agents.weather", None);
        let request = receive(&mut agent, "the request").await;
        world.reply(&request).await;
    };
    let (answer, ()) = tokio::join!(world.answer("weather"), repair);
    answer.unwrap();
    assert_eq!(world.given_up("timed_out"), 0.0);
    assert_eq!(world.lines.of("INFO", "accepts messages again").len(), 1);

    world.refuse("agents.weather", Some(TransportErrorKind::TimedOut));
    for error in [
        world.answer("weather").await.map(drop),
        world.notify("weather").await,
    ] {
        assert_eq!(
            error.unwrap_err().to_string(),
            "not sent within 10000 ms: the bus did not accept the request (topic agents.weather: timed_out)"
        );
    }
    assert_eq!(world.given_up("timed_out"), 2.0);
    assert!(world.degraded().is_empty(), "nobody waits any more");
    world.refuse("agents.weather", None);
    sleep(Duration::from_secs(60)).await;
    assert!(agent.try_recv().is_none(), "it is over");
    // An earlier failure does not delay later calls.
    let start = Instant::now();
    world.notify("weather").await.unwrap();
    next(&mut agent).await;
    assert!(start.elapsed() < Duration::from_secs(1));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_continues_while_the_copy_to_be_answered_may_reach_its_agent() {
    let world = World::new(Memory::default()).await;
    let mut agent = world.read("two.pair").await;
    world.refuse("one.pair", Some(TransportErrorKind::Unauthorised));
    let (answer, ()) = tokio::join!(world.answer("pair"), async {
        world.reply(&receive(&mut agent, "the request").await).await;
    });
    answer.unwrap();
    assert_eq!(world.given_up("unauthorised"), 1.0);
    assert_eq!(world.lines.of("WARN", "topic=one.pair").len(), 1);

    world.refuse("two.pair", Some(TransportErrorKind::UnknownTopic));
    let start = Instant::now();
    let error = world.answer("pair").await.unwrap_err();
    assert_eq!(error.to_string(), "topic two.pair does not exist");
    assert!(start.elapsed() < Duration::from_secs(1), "at once");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_on_the_bus_that_its_agent_cannot_get_fails_at_once() {
    let world = World::new(Memory::default()).await;
    let (mut inbox, mut dead) = (world.read("inbox").await, world.read("dead").await);
    world.refuse("one.pair", Some(TransportErrorKind::Unauthorised));
    world.refuse("two.pair", Some(TransportErrorKind::UnknownTopic));
    let start = Instant::now();
    let address = Address {
        reply_to: Some(Topic::new("inbox").unwrap()),
        ..to("in")
    };
    let request = Message::plain(message("message/send", "pair", r#""id":7,"#));
    publish(&world.memory, &address, request).await;
    let answer = body(&next(&mut inbox).await);
    assert_eq!(answer["id"], 7);
    let why = answer["error"]["message"].as_str().unwrap();
    assert!(why.contains("topic two.pair does not exist"), "{why}");
    assert!(start.elapsed() < Duration::from_secs(1), "at once");
    next(&mut dead).await;
    next(&mut dead).await;
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_cancel_of_one_agent_waits_for_no_other() {
    let one = std::num::NonZeroUsize::MIN;
    let memory = Memory::new(MemoryConfig {
        partitions: std::num::NonZeroU16::MIN,
        capacity_messages: one,
        ..MemoryConfig::default()
    });
    let world = World::new(memory).await;
    let mut agent = world.read("agents.quick").await;
    // Nothing reads this agent's topic: after one request it is full.
    let slow = world.call("slow").await;
    let quick = world.call("quick").await;
    next(&mut agent).await;
    let start = Instant::now();
    drop(slow);
    drop(quick);
    let cancel = body(&next(&mut agent).await);
    assert_eq!(cancel["method"], "notifications/cancelled");
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn cancels_that_find_no_room_are_counted_and_logged() {
    let world = World::new(Memory::default()).await;
    let mut answers = Vec::new();
    for _ in 0..1_200 {
        answers.push(world.call("weather").await);
    }
    // All at once, so that the caller has had no time to read any.
    drop(answers);
    assert_eq!(world.metric("a2abus_cancels_dropped_total"), 176.0);
    let lines = world.lines.of("WARN", "a cancel message was dropped");
    assert_eq!(lines.len(), 10, "{lines:#?}");
    assert!(lines[0].contains("agent=\"weather\""), "{}", lines[0]);
    world.end().await;
}

#[tokio::test]
async fn a_request_whose_time_is_over_before_it_is_sent_reaches_no_agent() {
    let world = World::new(Memory::default()).await;
    let mut agent = world.read("agents.weather").await;
    let mut late = request("weather", r#""id":7,"#);
    late.timeout = Some(Duration::from_millis(500));
    late.arrived = late.arrived.checked_sub(Duration::from_secs(1)).unwrap();
    let error = world.calls.call(late).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "not sent within 500 ms: earlier requests of the batch, or waiting for the shared state, used up the time"
    );
    world.notify("weather").await.unwrap();
    assert!(body(&next(&mut agent).await).get("id").is_none());
    world.end().await;
}
