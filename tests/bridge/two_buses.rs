//! A bridge on two buses: what happens to one does not concern the calls on the other.

use std::sync::Arc;

use a2abus_bridge::calls::{Answer, CallError, Calls};
use a2abus_bridge::config::Config;
use a2abus_transports::memory::Memory;
use a2abus_transports::{
    Address, Consumer, Message, Outcome, Topic, TopicFilter, Transport as _, TransportErrorKind,
};
use serde_json::Value;
use support::battery::within;
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use crate::answers::group;
use crate::set_up::{build, request, until_ready};

const CONFIG: &str = "
instance: test
transports: { near: { type: memory }, far: { type: memory } }
bindings: [{ name: in, transport: near, topics: [in] }]
routes:
  - { name: far, when: { targetagent: far }, to: [{ transport: far, topic: agents.far }] }
  - { name: near, when: { targetagent: near }, to: [{ transport: far, topic: audit }, { transport: near, topic: agents.near, answers: true }] }
calls: { timeout: 20s, max_pending_per_agent: 1000, max_pending_per_caller: 1000 }
http: { enabled: false, drain_grace: 5s }
admin: { enabled: false }
";

struct World {
    near: Memory,
    far: Memory,
    calls: Arc<Calls>,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl World {
    async fn open() -> Self {
        let (near, far) = (Memory::default(), Memory::default());
        let config = Config::read("test.yaml", CONFIG, []).unwrap_or_else(|p| panic!("{p}"));
        let bus = |name: &str| if name == "near" { &near } else { &far };
        let bridge = build(config, bus).await;
        let (calls, readiness) = (Arc::clone(bridge.calls()), Arc::clone(bridge.readiness()));
        let stop = CancellationToken::new();
        let running = tokio::spawn(bridge.run(stop.clone()));
        until_ready(&readiness).await;
        Self {
            near,
            far,
            calls,
            stop,
            running,
        }
    }

    async fn call(&self, agent: &str) -> Answer {
        let payload = format!(
            r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"_agentId":"{agent}"}}}}"#
        );
        let request = request(payload, "test");
        self.calls.call(request).await.unwrap()
    }

    async fn end(self) {
        self.stop.cancel();
        within("the bridge drains", self.running).await.unwrap();
    }
}

/// The body of the next message, and where its answer goes.
async fn next(consumer: &mut Consumer) -> (Value, Option<Topic>) {
    let delivery = within("a message arrives", consumer.recv()).await.unwrap();
    delivery.acknowledger.settle(Outcome::Settled).unwrap();
    let body = delivery.message.body.unwrap();
    (serde_json::from_slice(&body).unwrap(), delivery.reply_to)
}

#[tokio::test(start_paused = true)]
async fn the_outage_of_a_bus_that_only_gets_a_copy_fails_no_call() {
    let world = World::open().await;
    let mut agent = world.near.subscribe(group("agents.near")).await.unwrap();
    let mut audit = world.far.subscribe(group("audit")).await.unwrap();
    let mut before = world.call("near").await;
    let first = next(&mut agent).await;
    next(&mut audit).await;
    let mut on_far = world.call("far").await;
    world.far.set_down("the cable is out");
    let failed = within("the bus is given up", on_far.next()).await.unwrap();
    assert!(
        matches!(failed, Err(CallError::AnswerLost(_))),
        "{failed:?}"
    );
    let mut after = world.call("near").await;
    let second = next(&mut agent).await;
    for (answer, (request, reply_to)) in [(&mut before, first), (&mut after, second)] {
        let id = &request["id"];
        let response = Message::plain(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#));
        let address = Address::topic(reply_to.unwrap());
        let sent = world.near.send(&address, response).await;
        sent.unwrap().await.unwrap();
        let part = within("the answer", answer.next()).await.unwrap();
        assert!(part.unwrap().last);
    }
    // The copy has waited for its bus.
    world.far.set_up();
    next(&mut audit).await;
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn cancels_that_wait_for_one_bus_delay_none_on_another() {
    let world = World::open().await;
    let mut agent = world.near.subscribe(group("agents.near")).await.unwrap();
    let mut on_far = Vec::new();
    // More than are sent concurrently.
    for _ in 0..70 {
        on_far.push(world.call("far").await);
    }
    let on_near = world.call("near").await;
    next(&mut agent).await;
    let filter = TopicFilter::new("agents.far").unwrap();
    let refused = Some(TransportErrorKind::TimedOut);
    world.far.set_refused(filter.clone(), refused);
    let start = Instant::now();
    drop(on_far);
    drop(on_near);
    let (cancel, _) = next(&mut agent).await;
    assert_eq!(cancel["method"], "notifications/cancelled");
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    world.far.set_refused(filter, None);
    let mut agent = world.far.subscribe(group("agents.far")).await.unwrap();
    let mut cancelled = 0;
    while cancelled < 70 {
        let (message, _) = next(&mut agent).await;
        cancelled += usize::from(message["method"] == "notifications/cancelled");
    }
    world.end().await;
}
