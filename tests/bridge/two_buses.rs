//! A bridge on two buses: what happens to one does not concern the calls on the other.

use std::num::{NonZeroU16, NonZeroUsize};
use std::sync::Arc;

use a2abus_bridge::calls::{Answer, CallError, Calls};
use a2abus_bridge::config::Config;
use a2abus_bridge::metrics::Metrics;
use a2abus_transports::memory::{FaultPlan, Memory, MemoryConfig};
use a2abus_transports::{
    Address, Consumer, Message, Outcome, Topic, TopicFilter, Transport as _, TransportErrorKind,
};
use serde_json::Value;
use support::battery::within;
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::set_up::{body, build, count, group, publish, read, receive, request, until_ready};

const CONFIG: &str = "
instance: test
transports: { near: { type: memory }, far: { type: memory }, slow: { type: memory } }
bindings:
  - { name: in, transport: near, topics: [in], group: g, reply_topics: ['clients.*'] }
  - { name: answers, transport: near, topics: [answers], role: responses }
routes:
  - { name: far, when: { targetagent: far }, to: [{ transport: far, topic: agents.far }] }
  - { name: near, when: { targetagent: near }, to: [{ transport: far, topic: audit }, { transport: near, topic: agents.near, answers: true }] }
  - { name: slow, when: { targetagent: slow }, to: [{ transport: far, topic: audit }, { transport: slow, topic: agents.slow, answers: true }] }
calls: { timeout: 20s, max_pending_per_agent: 1000, max_pending_per_caller: 1000 }
http: { enabled: false, drain_grace: 5s }
admin: { enabled: false }
";

struct World {
    near: Memory,
    far: Memory,
    /// It confirms late.
    slow: Memory,
    calls: Arc<Calls>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl World {
    async fn open() -> Self {
        Self::with(CONFIG, Memory::default()).await
    }

    /// With this far bus.
    async fn with(config: &str, far: Memory) -> Self {
        let (near, slow) = (Memory::default(), late(Duration::from_secs(10)));
        let config = Config::read("test.yaml", config, []).unwrap_or_else(|p| panic!("{p}"));
        let bus = |name: &str| match name {
            "near" => &near,
            "far" => &far,
            _ => &slow,
        };
        let bridge = build(config, bus).await;
        let (calls, readiness) = (Arc::clone(bridge.calls()), Arc::clone(bridge.readiness()));
        let metrics = Arc::clone(bridge.metrics());
        let stop = CancellationToken::new();
        let running = tokio::spawn(bridge.run(stop.clone()));
        until_ready(&readiness).await;
        Self {
            near,
            far,
            slow,
            calls,
            metrics,
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

    /// A request on the near bus, with this id.
    async fn ask(&self, agent: &str, id: u32) {
        let payload = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"_agentId":"{agent}"}}}}"#
        );
        let message = Message {
            key: Some("lane".into()),
            ..Message::plain(payload)
        };
        let to = Address {
            reply_to: Some(Topic::new("clients.me").unwrap()),
            ..Address::topic(Topic::new("in").unwrap())
        };
        publish(&self.near, &to, message).await;
    }

    /// The near agent answers its next request.
    async fn serve(&self, agent: &mut Consumer) {
        serve(&self.near, agent).await;
    }

    /// Asks the near agent, which answers.
    async fn answered(&self, id: u32, agent: &mut Consumer, inbox: &mut Consumer) {
        self.ask("near", id).await;
        self.serve(agent).await;
        let (answer, _) = next(inbox).await;
        assert_eq!(answer["id"], id, "{answer}");
        assert_eq!(answer["result"], 1, "{answer}");
    }

    /// Makes the audit topic refuse its copies for this reason, or accept them.
    fn refuse_audit(&self, reason: Option<TransportErrorKind>) {
        let audit = TopicFilter::new("audit").unwrap();
        self.far.set_refused(audit, reason);
    }

    /// Breaks the far bus, and waits until calls on it fail.
    async fn far_is_given_up(&self) {
        self.far.set_down("the cable is out");
        let request = request(
            r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"_agentId":"far"}}"#,
            "test",
        );
        let failed = match self.calls.call(request).await {
            Ok(mut call) => within("the bus is given up", call.next()).await.unwrap(),
            Err(error) => Err(error),
        };
        let cause = CallError::Unavailable("the cable is out".into());
        assert_eq!(failed.unwrap_err(), cause);
    }

    async fn end(self) {
        self.stop.cancel();
        within("the bridge drains", self.running).await.unwrap();
    }
}

/// A bus that confirms within this time.
fn late(at_most: Duration) -> Memory {
    let plan = FaultPlan {
        late_confirmation: 1.0,
        late_at_most: at_most,
        ..FaultPlan::default()
    };
    Memory::with_faults(1, plan)
}

/// An agent on this bus answers its next request.
async fn serve(bus: &Memory, agent: &mut Consumer) {
    let (request, reply_to) = next(agent).await;
    let response = response(&request["id"]);
    publish(bus, &Address::topic(reply_to.unwrap()), response).await;
}

/// The response to a request with this id.
fn response(id: &Value) -> Message {
    Message::plain(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#))
}

/// The body of the next message, and where its answer goes.
async fn next(consumer: &mut Consumer) -> (Value, Option<Topic>) {
    let received = receive(consumer, "a message arrives").await;
    (body(&received.message), received.reply_to)
}

#[tokio::test(start_paused = true)]
async fn the_outage_of_a_bus_that_only_gets_a_copy_fails_no_call() {
    let world = World::open().await;
    let mut agent = read(&world.near, "agents.near").await;
    let mut audit = read(&world.far, "audit").await;
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
        publish(&world.near, &address, response).await;
        let part = within("the answer", answer.next()).await.unwrap();
        assert!(part.unwrap().last);
    }
    // The copy has waited for its bus.
    world.far.set_up();
    next(&mut audit).await;
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_for_an_agent_on_a_bus_that_is_down_fails_soon_and_delays_no_other() {
    let world = World::open().await;
    let mut agent = read(&world.near, "agents.near").await;
    let mut inbox = read(&world.near, "clients.me").await;
    world.far.set_down("the cable is out");
    // The first one waits until the bus is given up.
    for (id, seconds) in [(1, 5), (3, 1)] {
        let start = Instant::now();
        world.ask("far", id).await;
        world.ask("near", id + 1).await;
        let (failed, _) = next(&mut inbox).await;
        assert_eq!(failed["id"], id);
        let reason = &failed["error"]["data"]["reason"];
        assert_eq!(reason, "agent_unavailable", "{failed}");
        world.serve(&mut agent).await;
        let (answered, _) = next(&mut inbox).await;
        assert_eq!(answered["id"], id + 1);
        assert_eq!(answered["result"], 1);
        assert!(start.elapsed() < Duration::from_secs(seconds));
    }
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn copies_beside_requests_whose_agent_is_on_a_bus_that_is_down_are_sent() {
    let world = World::open().await;
    let mut inbox = read(&world.near, "clients.me").await;
    let mut audit = read(&world.far, "audit").await;
    world.slow.set_down("the cable is out");
    // The first one waits until the bus is given up.
    for id in 1..=3 {
        world.ask("slow", id).await;
        let (failed, _) = next(&mut inbox).await;
        assert_eq!(failed["id"], id);
        let reason = &failed["error"]["data"]["reason"];
        assert_eq!(reason, "agent_unavailable", "{failed}");
        assert_eq!(next(&mut audit).await.0["id"], id);
    }
    world.end().await;
}

/// The agent has received the request, although its bus has not confirmed that yet.
#[tokio::test(start_paused = true)]
async fn a_request_with_an_unusable_answer_does_not_count_as_unconfirmed() {
    let world = World::open().await;
    let mut agent = read(&world.slow, "agents.slow").await;
    let mut call = world.call("slow").await;
    let (request, reply_to) = next(&mut agent).await;
    let unusable = format!(
        r#"{{"jsonrpc":"2.0","id":{},"result":1,"error":1}}"#,
        request["id"]
    );
    let to = Address::topic(reply_to.unwrap());
    publish(&world.slow, &to, Message::plain(unusable)).await;
    let failed = within("the answer", call.next()).await.unwrap();
    assert!(matches!(failed, Err(CallError::BadAnswer(_))), "{failed:?}");
    drop(call);
    let series = r#"a2abus_given_up_total{kind="timed_out"}"#;
    assert_eq!(count(&world.metrics, series), 0);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn copies_beside_requests_wait_for_their_bus_in_order_and_hold_up_no_request() {
    let world = World::open().await;
    let mut agent = read(&world.near, "agents.near").await;
    let mut inbox = read(&world.near, "clients.me").await;
    let mut audit = read(&world.far, "audit").await;
    for id in 1..=6 {
        match id {
            // Its own copy is the first that fails.
            3 => world.far.set_down("the cable is out"),
            5 => world.far_is_given_up().await,
            _ => {}
        }
        let start = Instant::now();
        world.ask("near", id).await;
        world.serve(&mut agent).await;
        assert_eq!(next(&mut inbox).await.0["id"], id);
        assert!(start.elapsed() < Duration::from_secs(1), "{id}");
    }
    world.far.set_up();
    for id in 1..=6 {
        assert_eq!(next(&mut audit).await.0["id"], id);
    }
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn copies_that_wait_for_a_failed_one_are_not_confirmed_one_by_one() {
    let world = World::with(CONFIG, late(Duration::from_secs(1))).await;
    let mut agent = read(&world.near, "agents.near").await;
    let mut inbox = read(&world.near, "clients.me").await;
    let mut audit = read(&world.far, "audit").await;
    world.refuse_audit(Some(TransportErrorKind::TimedOut));
    for id in 1..=200 {
        world.answered(id, &mut agent, &mut inbox).await;
    }
    world.refuse_audit(None);
    let start = Instant::now();
    for id in 1..=200 {
        assert_eq!(next(&mut audit).await.0["id"], id);
    }
    assert!(start.elapsed() < Duration::from_secs(30), "not 200 times");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn copies_of_answered_requests_leave_the_share_of_waiting_requests_free() {
    let config = CONFIG.replace("topics: [in],", "topics: [in], budget_messages: 16,");
    let world = World::with(&config, Memory::default()).await;
    let mut agent = read(&world.near, "agents.near").await;
    let mut inbox = read(&world.near, "clients.me").await;
    let mut audit = read(&world.far, "audit").await;
    world.far_is_given_up().await;
    for id in 1..=15 {
        world.answered(id, &mut agent, &mut inbox).await;
    }
    world.far.set_up();
    for id in 1..=15 {
        assert_eq!(next(&mut audit).await.0["id"], id);
    }
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_waits_for_that_of_an_earlier_request_that_is_not_confirmed() {
    let world = World::open().await;
    let mut near = read(&world.near, "agents.near").await;
    let mut slow = read(&world.slow, "agents.slow").await;
    let mut inbox = read(&world.near, "clients.me").await;
    let mut audit = read(&world.far, "audit").await;
    world.far_is_given_up().await;
    world.ask("slow", 1).await;
    world.answered(2, &mut near, &mut inbox).await;
    world.far.set_up();
    serve(&world.slow, &mut slow).await;
    assert_eq!(next(&mut inbox).await.0["id"], 1);
    for id in 1..=2 {
        assert_eq!(next(&mut audit).await.0["id"], id);
    }
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_topic_beside_requests_does_not_make_them_wait_for_each_other() {
    let world = World::open().await;
    let mut near = read(&world.near, "agents.near").await;
    let mut slow = read(&world.slow, "agents.slow").await;
    let mut inbox = read(&world.near, "clients.me").await;
    world.refuse_audit(Some(TransportErrorKind::Full));
    world.answered(1, &mut near, &mut inbox).await;
    let start = Instant::now();
    world.ask("slow", 2).await;
    world.answered(3, &mut near, &mut inbox).await;
    assert!(start.elapsed() < Duration::from_millis(100), "no wait");
    world.refuse_audit(None);
    serve(&world.slow, &mut slow).await;
    assert_eq!(next(&mut inbox).await.0["id"], 2);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_bridge_that_stops_finishes_copies_beside_requests_if_their_destination_works() {
    let mut world = World::with(CONFIG, late(Duration::from_secs(1))).await;
    let mut agent = read(&world.near, "agents.near").await;
    let mut inbox = read(&world.near, "clients.me").await;
    let mut audit = read(&world.far, "audit").await;
    world.refuse_audit(Some(TransportErrorKind::TimedOut));
    for id in 1..=20 {
        world.answered(id, &mut agent, &mut inbox).await;
    }
    world.refuse_audit(None);
    for id in 1..=2 {
        assert_eq!(next(&mut audit).await.0["id"], id);
    }
    world.stop.cancel();
    let running = &mut world.running;
    within("the bridge drains", running).await.unwrap();
    for id in 3..=20 {
        assert_eq!(next(&mut audit).await.0["id"], id);
    }
    // No request is read again.
    let mut again = world.near.subscribe(group("in", "g")).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert!(again.try_recv().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_sent_after_its_bus_was_given_up_is_cancelled() {
    let config = MemoryConfig {
        partitions: NonZeroU16::MIN,
        capacity_messages: NonZeroUsize::MIN,
        ..MemoryConfig::default()
    };
    let far = Memory::with_config_and_faults(config, 1, FaultPlan::default());
    let world = World::with(CONFIG, far).await;
    let mut agent = read(&world.far, "agents.far").await;
    let mut inbox = read(&world.near, "clients.me").await;
    world.ask("far", 1).await;
    let first = within("a request", agent.recv()).await.unwrap();
    // It waits for room, and its lane looks once a second whether it is still wanted.
    world.ask("far", 2).await;
    sleep(Duration::from_millis(500)).await;
    world.far.set_down("the cable is out");
    loop {
        let (failed, _) = next(&mut inbox).await;
        if failed["id"] == 2 {
            let reason = &failed["error"]["data"]["reason"];
            assert_eq!(reason, "agent_unavailable", "{failed}");
            break;
        }
    }
    world.far.set_up();
    first.acknowledger.settle(Outcome::Settled).unwrap();
    for method in ["tools/call", "notifications/cancelled"] {
        assert_eq!(next(&mut agent).await.0["method"], method);
    }
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_notification_fails_at_once_only_if_the_bus_of_its_agent_is_down() {
    let world = World::open().await;
    let mut agent = read(&world.near, "agents.near").await;
    let mut audit = read(&world.far, "audit").await;
    world.far_is_given_up().await;
    let notify = |agent: &str| {
        let payload = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/x","params":{{"_agentId":"{agent}"}}}}"#
        );
        world.calls.notify(request(payload, "test"))
    };
    let start = Instant::now();
    let failed = notify("far").await.unwrap_err();
    assert_eq!(failed, CallError::Unavailable("the cable is out".into()));
    notify("near").await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "at once");
    assert_eq!(next(&mut agent).await.0["method"], "notifications/x");
    // The copy has waited for its bus.
    world.far.set_up();
    assert_eq!(next(&mut audit).await.0["method"], "notifications/x");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_request_on_a_lost_bus_continues_if_a_binding_reads_it_on_another() {
    let world = World::open().await;
    let mut agent = read(&world.far, "agents.far").await;
    let payload = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"_agentId":"far","_meta":{"progressToken":"mine"}}}"#;
    let call = world.calls.call(request(payload, "test"));
    let mut answer = call.await.unwrap();
    let (agent_request, _) = next(&mut agent).await;
    let id = &agent_request["id"];
    let progress = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{id},"progress":1}}}}"#
    );
    let mut progress = Message::plain(progress);
    let call_id = id.as_str().unwrap().to_owned();
    progress.headers.push("ce_callid", call_id);
    let answers = Address::topic(Topic::new("answers").unwrap());
    publish(&world.near, &answers, progress).await;
    let part = within("a part", answer.next()).await.unwrap();
    assert!(!part.unwrap().last);
    world.far_is_given_up().await;
    publish(&world.near, &answers, response(id)).await;
    let part = within("the answer", answer.next()).await.unwrap();
    assert!(part.unwrap().last);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn cancels_that_wait_for_one_bus_delay_none_on_another() {
    let world = World::open().await;
    let mut agent = read(&world.near, "agents.near").await;
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
    let mut agent = read(&world.far, "agents.far").await;
    let mut cancelled = 0;
    while cancelled < 70 {
        let (message, _) = next(&mut agent).await;
        cancelled += usize::from(message["method"] == "notifications/cancelled");
    }
    world.end().await;
}
