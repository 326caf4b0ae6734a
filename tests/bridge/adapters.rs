//! What a binding does with payloads on their way: refuses, converts, validates, names.

use std::collections::BTreeMap;

use a2abus_bridge::Bridge;
use a2abus_bridge::config::Config;
use a2abus_plugin::{Event, Limits};
use a2abus_transports::content_mode::{self, Binding, Content};
use a2abus_transports::memory::Memory;
use a2abus_transports::{
    Address, AnyTransport, Consumer, Delivery, Message, Outcome, Reading, Subscription, Topic,
    TopicFilter, Transport as _,
};
use support::battery::within;
use tokio::task::{JoinHandle, yield_now};
use tokio_util::sync::CancellationToken;

/// A bridge that reads `in` and writes `out`.
struct World {
    memory: Memory,
    out: Consumer,
    dead: Consumer,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

fn group(topic: &str) -> Subscription {
    Subscription {
        topics: vec![TopicFilter::new(topic).unwrap()],
        reading: Reading::Group("test".into()),
        budget_bytes: 1 << 20,
        budget_messages: 100,
    }
}

/// The configuration, with more keys for the binding and for the route.
fn config(binding: &str, route: &str) -> String {
    format!(
        "instance: test\n\
         transports: {{ bus: {{ type: memory }} }}\n\
         bindings: [{{ name: in, transport: bus, topics: [in] {binding} }}]\n\
         routes: [{{ name: out, to: [{{ transport: bus, topic: out }}] {route} }}]\n\
         http: {{ enabled: false }}\nadmin: {{ enabled: false }}\n"
    )
}

impl World {
    async fn new(binding: &str, route: &str) -> Self {
        let memory = Memory::default();
        let text = config(binding, route);
        let config =
            Config::read("test.yaml", &text, []).unwrap_or_else(|problems| panic!("{problems}"));
        let name = config.transports.keys().next().unwrap().clone();
        let transports = BTreeMap::from([(name, AnyTransport::Memory(memory.connect()))]);
        let bridge = Bridge::build_on(config, transports).await.unwrap();
        let readiness = std::sync::Arc::clone(bridge.readiness());
        let stop = CancellationToken::new();
        let running = tokio::spawn(bridge.run(stop.clone()));
        let out = memory.subscribe(group("out")).await.unwrap();
        let dead = memory.subscribe(group("a2abus.dlq")).await.unwrap();
        within("the bridge is ready", async {
            while !readiness.is_ready() {
                yield_now().await;
            }
        })
        .await;
        Self {
            memory,
            out,
            dead,
            stop,
            running,
        }
    }

    async fn publish(&self, message: Message) {
        let address = Address::topic(Topic::from_static("in"));
        let sent = self.memory.send(&address, message).await.unwrap();
        sent.await.unwrap();
    }

    /// The event that is routed next.
    async fn event(&mut self) -> Event {
        let message = taken(self.out.recv(), "an event").await;
        match content_mode::read(Binding::Memory, &message, &Limits::default()).unwrap() {
            Content::Event(event) => event,
            Content::Plain { .. } => panic!("not a CloudEvent"),
        }
    }

    /// The next dead letter: its reason, its detail and its body.
    async fn dead_letter(&mut self) -> (String, String, String) {
        let message = taken(self.dead.recv(), "a dead letter").await;
        let header = |name| {
            let value = message.headers.get(name).unwrap();
            String::from_utf8(value.to_vec()).unwrap()
        };
        let body = String::from_utf8(message.body.clone().unwrap().to_vec()).unwrap();
        (header("bus-dlq-reason"), header("bus-dlq-detail"), body)
    }

    async fn end(self) {
        self.stop.cancel();
        within("the bridge drains", self.running).await.unwrap();
    }
}

async fn taken(next: impl Future<Output = Option<Delivery>>, what: &'static str) -> Message {
    let delivery = within(what, next).await.unwrap();
    delivery.acknowledger.settle(Outcome::Settled).unwrap();
    delivery.message
}

#[tokio::test]
async fn a_handshake_is_not_published_and_its_token_is_blanked() {
    let mut world = World::new("", "").await;
    let handshake = r#"{"type":"handshake/req","id":"1", "version":"1.0","ts":1.50,"auth_token":"s3cret","agent_id":"a"}"#;
    world.publish(Message::plain(handshake)).await;
    let (reason, detail, body) = world.dead_letter().await;
    assert_eq!(reason, "link_local");
    assert!(detail.contains("handshake"), "{detail}");
    assert_eq!(body, handshake.replace("s3cret", "***"));
    // Broken, and a line among others.
    let lines = format!("{handshake}\n{handshake} x\n");
    world.publish(Message::plain(lines)).await;
    for reason in ["link_local", "not_json"] {
        let (found, _, body) = world.dead_letter().await;
        assert_eq!(found, reason);
        assert!(body.contains("***") && !body.contains("s3cret"), "{body}");
    }
    for ty in ["ping", "pong", "shutdown"] {
        let message = format!(r#"{{"type":"{ty}","id":"1","version":"1.0","ts":1}}"#);
        world.publish(Message::plain(message)).await;
        assert_eq!(world.dead_letter().await.0, "link_local");
    }
    world.end().await;
}

#[tokio::test]
async fn the_credentials_of_an_e2a_request_reach_its_agent_and_no_dead_letter() {
    let auth = r#""auth":{"bearer_token":"s3cret","extra_headers":{"X-Key":"s3cret"}}"#;
    let request = |more: &str| {
        format!(r#"{{"protocol_version":"1.0","request_id":"r","method":"m",{auth}{more}}}"#)
    };
    let mut world = World::new("", "").await;
    world.publish(Message::plain(request(""))).await;
    assert_eq!(world.event().await.body(), request(""));
    let refused = request(r#","params":{"_agentId":{}}"#);
    world.publish(Message::plain(refused.clone())).await;
    let (reason, detail, body) = world.dead_letter().await;
    assert_eq!(reason, "bad_target");
    assert_eq!(body, refused.replace("s3cret", "***"));
    assert!(!detail.contains("s3cret"));
    world.end().await;
}
