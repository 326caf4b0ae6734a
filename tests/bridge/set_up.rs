//! What most tests begin with: a bridge on buses in memory, the other end of a bus, and the request of a caller.

use a2abus_bridge::Bridge;
use a2abus_bridge::calls::Request;
use a2abus_bridge::config::Config;
use a2abus_bridge::metrics::Metrics;
use a2abus_bridge::readiness::Readiness;
use a2abus_plugin::{Hint, Limits, decode};
use a2abus_transports::memory::Memory;
use a2abus_transports::{
    Address, AnyTransport, Consumer, Message, Outcome, Reading, Subscription, Topic, TopicFilter,
    Transport as _,
};
use bytes::Bytes;
use serde_json::Value;
use support::battery::within;
use tokio::task::yield_now;
use tokio::time::{Duration, sleep};

/// A bridge; `bus` is the bus of the transport with this name.
pub(crate) async fn build<'a>(config: Config, bus: impl Fn(&str) -> &'a Memory) -> Bridge {
    let transports = config.transports.keys();
    let transports = transports.map(|name| {
        let memory = bus(name.as_str()).connect();
        (name.clone(), AnyTransport::Memory(memory))
    });
    let transports = transports.collect();
    Bridge::build_on(config, transports).await.unwrap()
}

pub(crate) async fn until_ready(readiness: &Readiness) {
    until("the bridge is ready", || readiness.is_ready()).await;
}

/// Waits until something holds; a paused clock does not move.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    within(what, async {
        while !holds() {
            yield_now().await;
        }
    })
    .await;
}

/// The value of a counter or a gauge.
pub(crate) fn count(metrics: &Metrics, series: &str) -> u64 {
    let text = metrics.render().unwrap();
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    value.unwrap_or_default()
}

/// Waits until a counter has this value; a paused clock moves.
pub(crate) async fn until_counted(metrics: &Metrics, series: &str, expected: u64) {
    within(series, async {
        while count(metrics, series) != expected {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// What a group reads from a topic, with room for everything that a test sends.
pub(crate) fn group(topic: &str, name: &str) -> Subscription {
    Subscription {
        topics: vec![TopicFilter::new(topic).unwrap()],
        reading: Reading::Group(name.into()),
        budget_bytes: 64 << 20,
        budget_messages: 100_000,
    }
}

/// Reads a topic in the group `test`.
pub(crate) async fn read(bus: &Memory, topic: &str) -> Consumer {
    bus.subscribe(group(topic, "test")).await.unwrap()
}

/// A message and its reply address.
pub(crate) struct Received {
    pub(crate) message: Message,
    pub(crate) reply_to: Option<Topic>,
}

/// The next message, settled.
pub(crate) async fn receive(consumer: &mut Consumer, what: &str) -> Received {
    let delivery = within(what, consumer.recv()).await.unwrap();
    delivery.acknowledger.settle(Outcome::Settled).unwrap();
    Received {
        message: delivery.message,
        reply_to: delivery.reply_to,
    }
}

/// The same without its reply address.
pub(crate) async fn next(consumer: &mut Consumer) -> Message {
    receive(consumer, "a message arrives").await.message
}

/// The body of a message, which is JSON.
pub(crate) fn body(message: &Message) -> Value {
    serde_json::from_slice(message.body.as_ref().unwrap()).unwrap()
}

/// Publishes a message, and waits for the confirmation.
pub(crate) async fn publish(bus: &Memory, to: &Address, message: Message) {
    bus.send(to, message).await.unwrap().await.unwrap();
}

/// A request as the bridge itself makes it, with this payload.
pub(crate) fn request(payload: impl Into<Bytes>, caller: &'static str) -> Request {
    let unit = decode(&payload.into(), &Hint::default(), &Limits::default());
    Request {
        unit: unit.into_only().unwrap().unwrap(),
        data: None,
        call: None,
        target: None,
        timeout: None,
        bounds_first_part: false,
        accepts_parts: None,
        key: None,
        arrived: std::time::Instant::now(),
        caller: caller.into(),
        headers: Vec::new(),
    }
}
