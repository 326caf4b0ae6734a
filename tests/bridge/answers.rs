//! Answers find their call, in every form an agent may give them, once.

use std::collections::BTreeMap;
use std::sync::Arc;

use a2abus_bridge::Bridge;
use a2abus_bridge::calls::{Answer, CallError, Calls, Part, Request};
use a2abus_bridge::config::Config;
use a2abus_bridge::http::Readiness;
use a2abus_bridge::metrics::Metrics;
use a2abus_plugin::{Data, Event, Hint, Limits, decode};
use a2abus_transports::content_mode::{self, Binding, Content, ContentMode};
use a2abus_transports::memory::Memory;
use a2abus_transports::{
    Address, AnyTransport, Consumer, Message, Outcome, Reading, Subscription, Topic, TopicFilter,
    Transport as _,
};
use bytes::Bytes;
use support::battery::within;
use tokio::task::{JoinHandle, yield_now};
use tokio_util::sync::CancellationToken;

const CONFIG: &str = "
instance: test
transports: { bus: { type: memory } }
bindings:
  - { name: responses, role: responses, transport: bus, topics: [responses] }
  - { name: events, transport: bus, topics: [events] }
routes: [{ name: agents, when: { targetagent: '*' }, to: [{ transport: bus, topic: 'agents.{targetagent}' }] }]
http: { enabled: false, drain_grace: 5s }
admin: { enabled: false }
";

/// A bridge on a memory bus and an agent's end of it.
pub(super) struct World {
    pub(super) memory: Memory,
    calls: Arc<Calls>,
    metrics: Arc<Metrics>,
    requests: Consumer,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

/// A request as the agent has it.
pub(super) struct Received {
    pub(super) event: Event,
    pub(super) id: String,
    pub(super) reply_to: String,
}

pub(super) fn group(topic: &str) -> Subscription {
    Subscription {
        topics: vec![TopicFilter::new(topic).unwrap()],
        reading: Reading::Group("agent".into()),
        budget_bytes: 1 << 20,
        budget_messages: 100,
    }
}

async fn until_ready(readiness: &Readiness) {
    within("the bridge is ready", async {
        while !readiness.is_ready() {
            yield_now().await;
        }
    })
    .await;
}

impl World {
    async fn new() -> Self {
        Self::with(CONFIG).await
    }

    pub(super) async fn with(config: &str) -> Self {
        let memory = Memory::default();
        let config =
            Config::read("test.yaml", config, []).unwrap_or_else(|problems| panic!("{problems}"));
        let name = config.transports.keys().next().unwrap().clone();
        let transports = BTreeMap::from([(name, AnyTransport::Memory(memory.connect()))]);
        let bridge = Bridge::build_on(config, transports).await.unwrap();
        let (calls, metrics) = (Arc::clone(bridge.calls()), Arc::clone(bridge.metrics()));
        let readiness = Arc::clone(bridge.readiness());
        let stop = CancellationToken::new();
        let running = tokio::spawn(bridge.run(stop.clone()));
        let requests = memory.subscribe(group("agents.weather")).await.unwrap();
        until_ready(&readiness).await;
        Self {
            memory,
            calls,
            metrics,
            requests,
            stop,
            running,
        }
    }

    pub(super) async fn call(&self, method: &str) -> Answer {
        let payload = format!(
            r#"{{"jsonrpc":"2.0","id":1.50,"method":"{method}","params":{{"_agentId":"weather"}}}}"#
        );
        let unit = decode(&Bytes::from(payload), &Hint::default(), &Limits::default())
            .into_only()
            .unwrap()
            .unwrap();
        let request = Request {
            unit,
            call: None,
            target: None,
            timeout: None,
            caller: "test".into(),
            headers: Vec::new(),
        };
        self.calls.call(request).await.unwrap()
    }

    /// What the agent reads next.
    pub(super) async fn received(&mut self) -> Received {
        let delivery = within("a request arrives", self.requests.recv())
            .await
            .unwrap();
        let content =
            content_mode::read(Binding::Memory, &delivery.message, &Limits::default()).unwrap();
        let Content::Event(event) = content else {
            panic!("not a CloudEvent")
        };
        delivery.acknowledger.settle(Outcome::Settled).unwrap();
        let text = |name: &str| {
            event
                .extension_text(name)
                .map(ToString::to_string)
                .unwrap_or_default()
        };
        Received {
            id: text("callid"),
            reply_to: text("replyto"),
            event,
        }
    }

    pub(super) async fn publish(&self, topic: &str, message: Message) {
        let address = Address::topic(Topic::new(topic).unwrap());
        self.memory
            .send(&address, message)
            .await
            .unwrap()
            .await
            .unwrap();
    }

    /// The value of a counter.
    fn count(&self, series: &str) -> u64 {
        let text = self.metrics.render().unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
        line.unwrap_or_default()
    }

    pub(super) async fn until_counted(&self, series: &str, wanted: u64) {
        within("the count", async {
            while self.count(series) != wanted {
                yield_now().await;
            }
        })
        .await;
    }

    pub(super) async fn end(self) {
        self.stop.cancel();
        within("the bridge drains", self.running).await.unwrap();
    }
}

pub(super) fn response(id: &str, result: &str) -> Message {
    Message::plain(format!(
        r#"{{"jsonrpc":"2.0","id":"{id}","result":{result}}}"#
    ))
}

pub(super) async fn part(answer: &mut Answer) -> Part {
    within("a part", answer.next()).await.unwrap().unwrap()
}

pub(super) fn body(part: &Part) -> &str {
    std::str::from_utf8(&part.body).unwrap()
}

#[tokio::test]
async fn plain_json_rpc_with_the_id_it_was_given_correlates_where_answers_belong() {
    let mut world = World::new().await;
    for topic in ["replyto", "responses"] {
        let mut answer = world.call("tools/call").await;
        let request = world.received().await;
        assert_eq!(request.event.extension_text("mcptype").unwrap(), "request");
        assert!(String::from_utf8_lossy(&request.event.body()).contains(&request.id));
        let topic = if topic == "replyto" {
            &request.reply_to
        } else {
            topic
        };
        world
            .publish(topic, response(&request.id, r#"{ "a" : 1.0 }"#))
            .await;
        let part = part(&mut answer).await;
        assert_eq!(
            body(&part),
            r#"{"jsonrpc":"2.0","id":1.50,"result":{ "a" : 1.0 }}"#
        );
        assert!(part.last && answer.next().await.is_none());
    }
    world.end().await;
}

#[tokio::test]
async fn headers_that_echo_the_request_correlate_whatever_the_id_inside() {
    let mut world = World::new().await;
    for header in ["kafka_correlationId", "ce_callid"] {
        let mut answer = world.call("tools/call").await;
        let request = world.received().await;
        let mut message = response("something else", "1");
        if header == "ce_callid" {
            for (name, value) in [
                ("specversion", "1.0"),
                ("id", "a"),
                ("source", "/agent"),
                ("type", "t"),
            ] {
                message.headers.push(format!("ce_{name}"), value);
            }
        }
        message.headers.push(header, request.id.clone());
        world.publish("responses", message).await;
        assert_eq!(
            body(&part(&mut answer).await),
            r#"{"jsonrpc":"2.0","id":1.50,"result":1}"#
        );
    }
    world.end().await;
}

#[tokio::test]
async fn parts_come_as_they_are_published_until_the_last() {
    let mut world = World::new().await;
    let mut answer = world.call("message/stream").await;
    let request = world.received().await;
    for (result, last) in [
        (
            r#"{"kind":"task","id":"t","status":{"state":"submitted"}}"#,
            false,
        ),
        (r#"{"kind":"artifact-update","taskId":"t"}"#, false),
        (
            r#"{"kind":"status-update","taskId":"t","status":{"state":"completed"},"final":true}"#,
            true,
        ),
    ] {
        world
            .publish(&request.reply_to, response(&request.id, result))
            .await;
        let part = part(&mut answer).await;
        assert_eq!((part.last, body(&part).contains(result)), (last, true));
    }
    assert!(answer.next().await.is_none());
    world.end().await;
}

#[tokio::test]
async fn cloudevents_marked_stream_are_parts_and_plain_data_become_results() {
    let mut world = World::new().await;
    let mut answer = world.call("tools/call").await;
    let request = world.received().await;
    for (kind, data, last) in [("stream", "{\"n\":1}", false), ("response", "[2]", true)] {
        let mut event = Event::new("a".into(), "/agent".into(), "t".into()).unwrap();
        event.set("mcptype", kind).unwrap();
        event.set("callid", request.id.as_str()).unwrap();
        event.set_data(Some(Data::from(Bytes::from_static(data.as_bytes()))));
        for mode in [ContentMode::Structured] {
            world
                .publish(
                    "responses",
                    content_mode::write(Binding::Memory, &event, mode).unwrap(),
                )
                .await;
        }
        let part = part(&mut answer).await;
        assert_eq!(
            body(&part),
            format!(r#"{{"jsonrpc":"2.0","id":1.50,"result":{data}}}"#)
        );
        assert_eq!(part.last, last);
    }
    world.end().await;
}

#[tokio::test]
async fn a_second_answer_is_counted_and_dropped() {
    let mut world = World::new().await;
    let mut answer = world.call("tools/call").await;
    let request = world.received().await;
    for result in ["1", "2"] {
        world
            .publish(&request.reply_to, response(&request.id, result))
            .await;
    }
    assert!(body(&part(&mut answer).await).ends_with("\"result\":1}"));
    assert!(answer.next().await.is_none());
    world
        .until_counted("a2abus_replies_total{outcome=\"late\"}", 1)
        .await;
    assert_eq!(
        world.count("a2abus_replies_total{outcome=\"delivered\"}"),
        1
    );
    world.end().await;
}

#[tokio::test]
async fn what_is_sent_to_where_an_answer_is_awaited_answers_whatever_it_is() {
    let mut world = World::new().await;
    let event = |headers: &[(&'static str, &'static str)], body: &'static str| {
        let mut message = Message::plain(body);
        for (name, value) in headers {
            message.headers.push(*name, *value);
        }
        message
    };
    let required = [
        ("ce_specversion", "1.0"),
        ("ce_id", "1"),
        ("ce_source", "/agent"),
        ("ce_type", "anything"),
        ("content-type", "application/json"),
    ];
    for message in [
        Message::plain(r#"{"celsius":3}"#),
        Message::plain(r#"[3]"#),
        event(&required, r#"{"celsius":3}"#),
    ] {
        let mut answer = world.call("tools/call").await;
        let request = world.received().await;
        world.publish(&request.reply_to, message).await;
        let part = part(&mut answer).await;
        assert!(
            body(&part).starts_with(r#"{"jsonrpc":"2.0","id":1.50,"result":"#),
            "{}",
            body(&part)
        );
        assert!(part.last);
    }
    for broken in [
        "hello",
        "{\"a\":",
        r#"{"jsonrpc":"2.0","id":"x","result":1,"error":{}}"#,
    ] {
        let mut answer = world.call("tools/call").await;
        let request = world.received().await;
        world
            .publish(&request.reply_to, Message::plain(broken))
            .await;
        let error = within("the call fails", answer.next())
            .await
            .unwrap()
            .unwrap_err();
        assert!(
            matches!(error, CallError::BadAnswer(_)),
            "{broken}: {error:?}"
        );
    }
    world.end().await;
}

#[tokio::test]
async fn an_answer_without_a_call_on_a_response_topic_is_a_dead_letter() {
    let world = World::new().await;
    let mut dead = world.memory.subscribe(group("a2abus.dlq")).await.unwrap();
    world.publish("responses", response("7", "1")).await;
    let letter = within("the dead letter", dead.recv()).await.unwrap();
    assert_eq!(
        letter.message.headers.get("bus-dlq-reason").unwrap(),
        "uncorrelated"
    );
    letter.acknowledger.settle(Outcome::Settled).unwrap();
    world.end().await;
}

#[tokio::test]
async fn a_bus_that_breaks_fails_its_calls_at_once_with_the_cause() {
    let mut world = World::new().await;
    let mut answer = world.call("tools/call").await;
    world.received().await;
    world.memory.set_down("the cable is out");
    let error = within("the failure", answer.next())
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(error, CallError::Unavailable("the cable is out".into()));
    world.memory.set_up();
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_without_an_answer_ends_at_its_deadline_and_the_agent_is_told() {
    let mut world = World::new().await;
    let mut answer = world.call("tools/call").await;
    let request = world.received().await;
    assert!(request.event.extension("expirytime").is_some());
    assert!(matches!(
        answer.next().await,
        Some(Err(CallError::Timeout(_)))
    ));
    let cancel = world.received().await;
    let text = String::from_utf8(cancel.event.body().to_vec()).unwrap();
    assert!(
        text.contains("notifications/cancelled") && text.contains(&request.id),
        "{text}"
    );
    world.end().await;
}

#[tokio::test]
async fn a_caller_that_goes_away_cancels_the_task_of_its_stream() {
    let mut world = World::new().await;
    let mut answer = world.call("message/stream").await;
    let request = world.received().await;
    let working =
        r#"{"kind":"status-update","taskId":"t-9","status":{"state":"working"},"final":false}"#;
    world
        .publish(&request.reply_to, response(&request.id, working))
        .await;
    part(&mut answer).await;
    drop(answer);
    let cancel = world.received().await;
    assert_eq!(
        cancel.event.extension_text("a2amethod").unwrap(),
        "tasks/cancel"
    );
    assert!(String::from_utf8_lossy(&cancel.event.body()).contains("t-9"));
    world.end().await;
}
