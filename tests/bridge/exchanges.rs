//! Requests made on the bus are answered there, in any form of the agent's answer.

use std::sync::Arc;

use a2abus_bridge::config::Config;
use a2abus_bridge::metrics::Metrics;
use a2abus_bridge::readiness::Readiness;
use a2abus_plugin::Limits;
use a2abus_transports::content_mode::{self, Content, ProtocolBinding};
use a2abus_transports::memory::{FaultPlan, Memory};
use a2abus_transports::{
    Address, Consumer, Message, Topic, TopicFilter, Transport as _, TransportErrorKind,
};
use serde_json::{Value, json};
use support::battery::within;
use support::cancels::AgentWork;
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::delivery::Lines;
use crate::set_up::{
    self, Received, body, build, group, publish, read, receive, until, until_counted, until_ready,
};

const CONFIG: &str = "
instance: test
transports: { bus: { type: memory } }
bindings:
  - { name: requests, transport: bus, topics: [requests], reply_topics: ['clients.*'] }
routes: [{ name: agents, when: { targetagent: 'weather*' }, to: [{ transport: bus, topic: 'agents.{targetagent}' }] }]
calls: { timeout: 30s }
http: { enabled: false, drain_grace: 4s }
admin: { enabled: false }
";

struct World {
    memory: Memory,
    metrics: Arc<Metrics>,
    readiness: Arc<Readiness>,
    agent: Consumer,
    inbox: Consumer,
    dead: Consumer,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

fn topic(name: &str) -> Topic {
    Topic::new(name).unwrap()
}

fn text(message: &Message) -> String {
    String::from_utf8(message.body.clone().unwrap_or_default().to_vec()).unwrap()
}

fn header<'a>(message: &'a Message, name: &str) -> &'a str {
    let value = message.headers.get(name).map(AsRef::as_ref);
    std::str::from_utf8(value.unwrap_or_default()).unwrap()
}

fn request(id: &str) -> Message {
    Message::plain(format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"_agentId":"weather","_meta":{{"progressToken":"mine"}}}}}}"#
    ))
}

impl World {
    async fn new() -> Self {
        Self::with(CONFIG).await
    }

    async fn with(config: &str) -> Self {
        let memory = Memory::default();
        let config =
            Config::read("test.yaml", config, []).unwrap_or_else(|problems| panic!("{problems}"));
        let bridge = build(config, |_| &memory).await;
        let (metrics, readiness) = (Arc::clone(bridge.metrics()), Arc::clone(bridge.readiness()));
        let stop = CancellationToken::new();
        let running = tokio::spawn(bridge.run(stop.clone()));
        let agent = read(&memory, "agents.weather").await;
        let inbox = read(&memory, "clients.me").await;
        let dead = read(&memory, "a2abus.dlq").await;
        until_ready(&readiness).await;
        Self {
            memory,
            metrics,
            readiness,
            agent,
            inbox,
            dead,
            stop,
            running,
        }
    }

    async fn publish(&self, address: Address, message: Message) {
        publish(&self.memory, &address, message).await;
    }

    /// Like `request` of a NATS client: the message has a reply subject.
    async fn ask(&self, message: Message) {
        let mut address = Address::topic(topic("requests"));
        address.reply_to = Some(topic("clients.me"));
        self.publish(address, message).await;
    }

    async fn answer(&self, request: &Received, message: Message) {
        let reply_to = request.reply_to.clone().expect("a reply subject");
        self.publish(Address::topic(reply_to), message).await;
    }

    /// The agent answers its next request. Returns what its requester gets.
    async fn served(&mut self) -> Value {
        let agent_request = self.next_request().await;
        self.answer(&agent_request, Message::plain("{}")).await;
        body(&self.reply_message().await)
    }

    /// Makes the bus refuse messages to these topics for this reason, or accept them.
    fn refuse(&self, topics: &str, reason: Option<TransportErrorKind>) {
        let topics = TopicFilter::new(topics).unwrap();
        self.memory.set_refused(topics, reason);
    }

    async fn next_request(&mut self) -> Received {
        receive(&mut self.agent, "the agent has a request").await
    }

    async fn reply_message(&mut self) -> Message {
        receive(&mut self.inbox, "the requester has an answer")
            .await
            .message
    }

    fn count(&self, series: &str) -> u64 {
        set_up::count(&self.metrics, series)
    }

    async fn end(self) {
        self.stop.cancel();
        within("the bridge drains", self.running).await.unwrap();
    }
}

/// The id by which the agent knows a request.
fn id_of(request: &Received) -> String {
    let id = body(&request.message)["id"].clone();
    id.as_str().unwrap().to_owned()
}

/// A JSON-RPC response of the agent with this result.
fn result(request: &Received, result: i64) -> Message {
    let id = id_of(request);
    Message::plain(format!(
        r#"{{"jsonrpc":"2.0","id":"{id}","result":{result}}}"#
    ))
}

#[tokio::test]
async fn a_request_with_the_copied_reply_address_of_another_call_is_answered_at_its_own() {
    let mut world = World::new().await;
    world.ask(request("1")).await;
    let first = world.next_request().await;
    // The agent asks another one, with the headers of the request that it serves.
    let mut second = request("2");
    let copied = header(&first.message, "ce_replyto").to_owned();
    second.headers.push("ce_replyto", copied);
    world.ask(second).await;
    let second = world.next_request().await;
    for (request, id) in [(second, 2), (first, 1)] {
        world.answer(&request, result(&request, id)).await;
        let answer = body(&world.reply_message().await);
        assert_eq!((&answer["id"], &answer["result"]), (&json!(id), &json!(id)));
    }
    world.end().await;
}

#[tokio::test]
async fn without_a_reply_subject_a_copied_reply_address_gives_way_to_the_replies_of_the_binding() {
    let replies = CONFIG.replacen(
        "topics: [requests]",
        "topics: [requests], replies: clients.me",
        1,
    );
    assert_ne!(replies, CONFIG);
    let mut world = World::with(&replies).await;
    let to = || Address::topic(topic("requests"));
    world.publish(to(), request("1")).await;
    let first = world.next_request().await;
    let mut second = request("2");
    for name in ["ce_replyto", "ce_callid"] {
        let copied = header(&first.message, name).to_owned();
        second.headers.push(name, copied);
    }
    world.publish(to(), second).await;
    let second = world.next_request().await;
    for (request, id) in [(second, 2), (first, 1)] {
        let reply_to = topic(header(&request.message, "ce_replyto"));
        let answer = result(&request, id);
        world.publish(Address::topic(reply_to), answer).await;
        let answer = body(&world.reply_message().await);
        assert_eq!((&answer["id"], &answer["result"]), (&json!(id), &json!(id)));
    }
    world.end().await;
}

/// The cancel of the request with this id, as JSON.
fn cancel(id: &str) -> Message {
    Message::plain(format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"_agentId":"weather","requestId":{id}}}}}"#
    ))
}

#[tokio::test]
async fn the_cancel_of_a_requester_reaches_the_agent_with_the_id_that_it_knows() {
    let mut world = World::new().await;
    let requests = || Address::topic(topic("requests"));
    world.ask(request("\"mine\"")).await;
    let mine = world.next_request().await;
    world.ask(request("\"other\"")).await;
    let other = world.next_request().await;
    world.publish(requests(), cancel("\"mine\"")).await;
    let cancelled = body(&world.next_request().await.message);
    assert_eq!(cancelled["method"], "notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], id_of(&mine));
    // Its answer comes too late, and the other one is awaited.
    for request in [mine, other] {
        world.answer(&request, result(&request, 1)).await;
    }
    assert_eq!(body(&world.reply_message().await)["id"], "other");
    // A cancel that comes twice or too late reaches nobody: another request of the agent may have the same id.
    for late in ["\"mine\"", "\"other\""] {
        world.publish(requests(), cancel(late)).await;
    }
    let dropped = r#"a2abus_dropped_total{binding="requests",reason="late_cancel"}"#;
    until("both are dropped", || world.count(dropped) >= 2).await;
    // A cancel of an unknown request goes to the agent unchanged.
    world.publish(requests(), cancel("\"never\"")).await;
    let unknown = body(&world.next_request().await.message);
    assert_eq!(unknown["params"]["requestId"], "never");
    world.end().await;
}

/// The parts that wait have places in the line of the requester, before that of the error.
#[tokio::test]
async fn a_cancel_ends_an_answer_of_which_parts_wait_for_the_requester() {
    let mut world = World::new().await;
    world.refuse("clients.me", Some(TransportErrorKind::TimedOut));
    let prompt = r#"{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"_agentId":"weather","sessionId":"s","prompt":[]}}"#;
    world.ask(Message::plain(prompt)).await;
    let prompt = world.next_request().await;
    let update =
        r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{}}}"#;
    for _ in 0..3 {
        world.answer(&prompt, Message::plain(update)).await;
    }
    let delivered = r#"a2abus_replies_total{outcome="delivered"}"#;
    let have_come = || world.count(delivered) >= 3;
    until("the parts wait for the requester", have_come).await;
    let cancel = r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"_agentId":"weather","requestId":1}}"#;
    let to = Address::topic(topic("requests"));
    world.publish(to, Message::plain(cancel)).await;
    world.refuse("clients.me", None);
    let mut last = body(&world.reply_message().await);
    while last.get("error").is_none() {
        assert_eq!(last["method"], "session/update", "{last}");
        last = body(&world.reply_message().await);
    }
    assert_eq!(last["error"]["code"], -32_800, "{last}");
    let cancelled = body(&world.next_request().await.message);
    assert_eq!(cancelled["method"], "$/cancel_request");
    world.end().await;
}

/// The agent gets both, in order, or none of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_right_after_its_request_follows_it() {
    let mut world = World::new().await;
    let requests = || Address::topic(topic("requests"));
    for number in 0..200 {
        let id = number.to_string();
        world.ask(request(&id)).await;
        world.publish(requests(), cancel(&id)).await;
    }
    let last =
        r#"{"jsonrpc":"2.0","id":"last","method":"tools/list","params":{"_agentId":"weather"}}"#;
    world.ask(Message::plain(last)).await;
    let mut work = AgentWork::default();
    while !work.is_over() {
        work.take(&body(&world.next_request().await.message));
    }
    world.end().await;
}

#[tokio::test]
async fn a_cancel_of_several_requests_with_the_same_id_cancels_none() {
    let mut world = World::new().await;
    for _ in 0..2 {
        world.ask(request("7")).await;
    }
    let both = [world.next_request().await, world.next_request().await];
    let requests = Address::topic(topic("requests"));
    world.publish(requests, cancel("7")).await;
    let dropped = r#"a2abus_dropped_total{binding="requests",reason="ambiguous_cancel"}"#;
    until("the cancel is dropped", || world.count(dropped) > 0).await;
    for request in both {
        world.answer(&request, result(&request, 1)).await;
        assert_eq!(body(&world.reply_message().await)["result"], 1);
    }
    world.end().await;
}

#[tokio::test]
async fn a_request_is_answered_at_its_own_address_with_its_own_id() {
    let mut world = World::new().await;
    world.ask(request("1.50")).await;
    let agent_request = world.next_request().await;
    let call = id_of(&agent_request);
    assert_eq!(header(&agent_request.message, "ce_callid"), call);
    assert_eq!(header(&agent_request.message, "ce_collaborationid"), call);
    assert_eq!(
        body(&agent_request.message)["params"]["_meta"]["progressToken"],
        call.as_str()
    );
    world
        .answer(
            &agent_request,
            Message::plain(format!(
                r#"{{"jsonrpc":"2.0","id":"{call}","result":{{ "a" : 1.0 }}}}"#
            )),
        )
        .await;
    let reply_message = world.reply_message().await;
    assert_eq!(
        text(&reply_message),
        r#"{"jsonrpc":"2.0","id":1.50,"result":{ "a" : 1.0 }}"#
    );
    assert_eq!(header(&reply_message, "ce_mcptype"), "response");
    assert_eq!(header(&reply_message, "ce_collaborationid"), "1.50");
    assert_eq!(header(&reply_message, "ce_callid"), "");
    let Ok(Content::Event(_)) =
        content_mode::read(ProtocolBinding::Memory, &reply_message, &Limits::default())
    else {
        panic!("not a CloudEvent")
    };
    world.end().await;
}

#[tokio::test]
async fn requests_with_equal_ids_never_get_each_others_answers() {
    let mut world = World::new().await;
    for _ in 0..50 {
        world.ask(request("1")).await;
    }
    let mut agent_requests = Vec::new();
    for _ in 0..50 {
        agent_requests.push(world.next_request().await);
    }
    // Plain agents that answer at the reply address with the given id, the last request first.
    for request in agent_requests.iter().rev() {
        let (call, reply) = (
            id_of(request),
            header(&request.message, "ce_replyto").to_owned(),
        );
        let answer = Message::plain(format!(
            r#"{{"jsonrpc":"2.0","id":"{call}","result":"{call}"}}"#
        ));
        world.publish(Address::topic(topic(&reply)), answer).await;
    }
    let mut results = std::collections::BTreeSet::new();
    for _ in 0..50 {
        let reply_message = body(&world.reply_message().await);
        assert_eq!(reply_message["id"], 1);
        results.insert(reply_message["result"].as_str().unwrap().to_owned());
    }
    assert_eq!(results.len(), 50);
    world.end().await;
}

/// Each request has a task of its own, and tasks run in any order.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn answers_to_one_requester_keep_the_order_in_which_they_arrive() {
    const REQUESTS: usize = 500;
    let mut world = World::new().await;
    for id in 0..REQUESTS {
        let mut request = request(&id.to_string());
        request.key = Some("mine".into());
        world.ask(request).await;
    }
    let mut answers = Vec::new();
    for _ in 0..REQUESTS {
        let request = world.next_request().await;
        let answer = result(&request, 1);
        answers.push((request, answer));
    }
    for (request, answer) in answers {
        world.answer(&request, answer).await;
    }
    let mut ids = Vec::new();
    for _ in 0..REQUESTS {
        ids.push(body(&world.reply_message().await)["id"].as_u64().unwrap());
    }
    assert!(ids.is_sorted(), "{ids:?}");
    world.end().await;
}

#[tokio::test]
async fn an_answer_with_the_headers_of_the_request_is_accepted() {
    let mut world = World::new().await;
    world.ask(request("7")).await;
    let agent_request = world.next_request().await;
    let mut answer = agent_request.message.clone();
    answer.body = Some(r#"{"celsius":-3}"#.into());
    // The request itself is no answer, wherever it turns up.
    world
        .answer(&agent_request, agent_request.message.clone())
        .await;
    world.answer(&agent_request, answer).await;
    assert_eq!(
        text(&world.reply_message().await),
        r#"{"jsonrpc":"2.0","id":7,"result":{"celsius":-3}}"#
    );
    world.end().await;
}

#[tokio::test]
async fn answers_in_every_family_become_json_rpc() {
    let mut world = World::new().await;
    let e2a = |kind: &str, status: &str, body: Value| {
        json!({"protocol_version": "1.0", "response_id": "r", "request_id": "x", "sequence": 0, "is_final": true,
               "status": status, "response_kind": kind, "body": body})
    };
    let cases = [
        (
            e2a(
                "e2a.complete",
                "succeeded",
                json!({"result": {"celsius": -3}}),
            ),
            json!({"result": {"celsius": -3}}),
        ),
        (
            e2a(
                "e2a.error",
                "failed",
                json!({"code": "E2A.AGENT_ERROR", "message": "no"}),
            ),
            json!({"error": {"message": "no"}}),
        ),
        (
            json!({"request_id": "x", "channel_id": "web", "ok": true, "payload": {"celsius": -3}}),
            json!({"result": {"celsius": -3}}),
        ),
        (
            json!({"type": "tool/call/resp", "id": "b", "version": "1.0", "ts": 1, "req_id": "a", "data": {"success": true}}),
            json!({"result": {"type": "tool/call/resp", "data": {"success": true}}}),
        ),
        (
            json!({"type": "error", "id": "b", "version": "1.0", "ts": 1, "req_id": "a", "code": "tool_error", "message": "broken"}),
            json!({"error": {"code": -32603, "message": "broken", "data": {"code": "tool_error"}}}),
        ),
        (
            json!({"protocol": "A2A", "messageType": "INFORM", "payload": {"celsius": -3}}),
            json!({"result": {"celsius": -3}}),
        ),
        (
            json!({"protocol": "A2A", "messageType": "REFUSE", "payload": {"why": "busy"}}),
            json!({"error": {"message": "the agent answered REFUSE", "data": {"why": "busy"}}}),
        ),
        (
            json!({"specversion": "1.0", "id": "1", "source": "/a", "type": "t", "mcptype": "response", "data": {"celsius": -3}}),
            json!({"result": {"celsius": -3}}),
        ),
        (json!([1, 2]), json!({"result": [1, 2]})),
    ];
    for (answer, expected) in cases {
        world.ask(request("7")).await;
        let agent_request = world.next_request().await;
        world
            .answer(&agent_request, Message::plain(answer.to_string()))
            .await;
        let reply_message = body(&world.reply_message().await);
        assert_eq!(
            (&reply_message["jsonrpc"], &reply_message["id"]),
            (&json!("2.0"), &json!(7)),
            "{answer}"
        );
        assert!(
            contains(&reply_message, &expected),
            "{answer}: {reply_message}"
        );
    }
    world.end().await;
}

/// Whether every member of `part` is in `whole`.
fn contains(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(name, value)| whole.get(name).is_some_and(|found| contains(found, value))),
        (whole, part) => whole == part,
    }
}

#[tokio::test]
async fn answers_of_common_serializers_are_accepted() {
    const MARK: &str = "\u{feff}";
    let mut world = World::new().await;
    let error = r#"{"code":-1,"message":"no"}"#;
    for (mark, answer, expected) in [
        (
            "",
            r#""result":{"n":1},"error":null"#,
            r#""result":{"n":1}"#.to_owned(),
        ),
        (
            "",
            r#""error":null,"result":null"#,
            r#""result":null"#.to_owned(),
        ),
        (
            "",
            &format!(r#""result":null,"error":{error}"#),
            format!(r#""error":{error}"#),
        ),
        (
            MARK,
            r#""result":{"n":1}"#,
            r#""result":{"n":1}"#.to_owned(),
        ),
    ] {
        world.ask(request("7")).await;
        let request = world.next_request().await;
        let id = id_of(&request);
        let answer = Message::plain(format!(r#"{mark}{{"jsonrpc":"2.0","id":"{id}",{answer}}}"#));
        world.answer(&request, answer).await;
        let reply_message = world.reply_message().await;
        let text = text(&reply_message);
        assert_eq!(text, format!(r#"{{"jsonrpc":"2.0","id":7,{expected}}}"#));
    }
    // JSON that is no JSON-RPC.
    world.ask(request("7")).await;
    let request = world.next_request().await;
    let mut answer = request.message.clone();
    answer.body = Some(format!("{MARK}{{}}").into());
    world.answer(&request, answer).await;
    let reply_message = world.reply_message().await;
    assert_eq!(
        text(&reply_message),
        r#"{"jsonrpc":"2.0","id":7,"result":{}}"#
    );
    world.end().await;
}

#[tokio::test]
async fn an_invalid_answer_fails_the_request_at_once() {
    let mut world = World::new().await;
    for answer in [
        "hello",
        r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{}}"#,
        r#"{"type":"tool/call/req","id":"b","version":"1.0","ts":1,"tool_name":"x","arguments":{}}"#,
    ] {
        world.ask(request("7")).await;
        let agent_request = world.next_request().await;
        world.answer(&agent_request, Message::plain(answer)).await;
        let reply_message = body(&world.reply_message().await);
        assert_eq!(
            reply_message["error"]["data"]["reason"], "bad_agent_reply",
            "{answer}: {reply_message}"
        );
    }
    world.end().await;
}

#[tokio::test]
async fn parts_of_e2a_are_folded_for_a_requester_of_one_answer() {
    let mut world = World::new().await;
    world.ask(request("7")).await;
    let agent_request = world.next_request().await;
    let record = |sequence: i64, is_final: bool, kind: &str, body: Value| {
        let status = if is_final { "succeeded" } else { "in_progress" };
        Message::plain(
            json!({"protocol_version": "1.0", "request_id": "x", "sequence": sequence, "is_final": is_final,
                   "status": status, "response_kind": kind, "body": body})
            .to_string(),
        )
    };
    let delta = |text: &str| json!({"delta_kind": "text", "delta": text});
    // Out of order: the first record comes second.
    world
        .answer(&agent_request, record(1, false, "e2a.chunk", delta("cold")))
        .await;
    world
        .answer(
            &agent_request,
            record(0, false, "e2a.chunk", delta("it is ")),
        )
        .await;
    world
        .answer(
            &agent_request,
            record(2, true, "e2a.complete", json!({"result": {}})),
        )
        .await;
    assert_eq!(
        body(&world.reply_message().await)["result"],
        json!({"content": "it is cold"})
    );
    world.end().await;
}

#[tokio::test]
async fn parts_and_progress_arrive_in_order_with_the_requesters_own_tokens() {
    let mut world = World::new().await;
    world.ask(request("7")).await;
    let agent_request = world.next_request().await;
    let call = id_of(&agent_request);
    let progress = format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":"{call}","progress":1}}}}"#
    );
    world.answer(&agent_request, Message::plain(progress)).await;
    for n in 0..4 {
        let part = format!(
            r#"{{"jsonrpc":"2.0","id":"{call}","result":{{"kind":"artifact-update","n":{n}}}}}"#
        );
        world.answer(&agent_request, Message::plain(part)).await;
    }
    world
        .answer(
            &agent_request,
            Message::plain(format!(
                r#"{{"jsonrpc":"2.0","id":"{call}","result":{{"n":4}}}}"#
            )),
        )
        .await;
    let progress = world.reply_message().await;
    assert_eq!(body(&progress)["params"]["progressToken"], "mine");
    // Kafka keeps the order of messages with one key.
    assert_eq!(progress.key.as_deref(), Some(&b"7"[..]));
    for n in 0..5 {
        let part = world.reply_message().await;
        assert_eq!(part.key, progress.key);
        assert_eq!(body(&part)["result"]["n"], n);
        let kind = if n == 4 { "response" } else { "stream" };
        assert_eq!(header(&part, "ce_mcptype"), kind);
    }
    world.end().await;
}

/// The reply id contains the reply token, which only the agent may know.
#[tokio::test]
async fn progress_that_nobody_asked_for_has_the_id_of_the_requester() {
    let mut world = World::new().await;
    let plain = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"_agentId":"weather"}}"#;
    world.ask(Message::plain(plain)).await;
    let agent_request = world.next_request().await;
    let call = id_of(&agent_request);
    let params = json!({ "progressToken": call, "progress": 1 });
    let progress =
        json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params });
    let progress = Message::plain(progress.to_string());
    world.answer(&agent_request, progress).await;
    let answer = json!({ "jsonrpc": "2.0", "id": call, "result": 1 });
    let answer = Message::plain(answer.to_string());
    world.answer(&agent_request, answer).await;
    let progress = body(&world.reply_message().await);
    assert_eq!(progress["params"]["progressToken"], 7, "{progress}");
    assert_eq!(body(&world.reply_message().await)["result"], 1);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn silence_is_an_error_at_the_deadline_and_a_late_answer_is_counted() {
    let mut world = World::new().await;
    world.ask(request("7")).await;
    let agent_request = world.next_request().await;
    let reply_message = body(&world.reply_message().await);
    assert_eq!(
        (
            &reply_message["id"],
            &reply_message["error"]["data"]["reason"]
        ),
        (&json!(7), &json!("timeout"))
    );
    world.answer(&agent_request, Message::plain("{}")).await;
    let late = "a2abus_replies_total{outcome=\"late\"}";
    until_counted(&world.metrics, late, 1).await;
    world.end().await;
}

#[tokio::test]
async fn a_request_without_a_receiver_gets_an_error_and_becomes_a_dead_letter() {
    let mut world = World::new().await;
    let payload = r#"{"jsonrpc":"2.0","id":"a","method":"x","params":{"_agentId":"nobody"}}"#;
    world.ask(Message::plain(payload)).await;
    let reply_message = body(&world.reply_message().await);
    assert_eq!(
        (
            &reply_message["id"],
            &reply_message["error"]["data"]["reason"]
        ),
        (&json!("a"), &json!("agent_not_found"))
    );
    let dead = receive(&mut world.dead, "the dead letter").await.message;
    assert_eq!(header(&dead, "bus-dlq-reason"), "no_route");
    assert_eq!(text(&dead), payload);
    world.end().await;
}

#[tokio::test]
async fn nothing_is_published_to_a_forbidden_reply_address() {
    let mut world = World::new().await;
    for (address, allowed) in [
        ("clients.me", true),
        ("a2abus.dlq", false),
        ("_INBOX.x", false),
    ] {
        let mut message = request("7");
        message.headers.push("ce_replyto", address);
        message.headers.push("kafka_correlationId", "spring-7");
        message.key = Some("k".into());
        world
            .publish(Address::topic(topic("requests")), message)
            .await;
        if allowed {
            let agent_request = world.next_request().await;
            world.answer(&agent_request, Message::plain("{}")).await;
            let reply_message = world.reply_message().await;
            assert_eq!(header(&reply_message, "kafka_correlationId"), "spring-7");
            assert_eq!(reply_message.key.unwrap(), "k");
        } else {
            let dead = receive(&mut world.dead, "the dead letter").await.message;
            assert_eq!(header(&dead, "bus-dlq-reason"), "reply_topic_refused");
        }
    }
    world.end().await;
}

/// A request of another family than JSON-RPC.
fn tool_call(id: &str, agent: &str) -> Value {
    json!({"type": "tool/call/req", "id": id, "version": "1.0", "ts": 1, "tool_name": "ls",
           "arguments": {}, "_agentId": agent})
}

#[tokio::test]
async fn a_requester_of_another_family_gets_the_unchanged_answer() {
    let mut world = World::new().await;
    let request = tool_call("a-1", "weather");
    world.ask(Message::plain(request.to_string())).await;
    let agent_request = world.next_request().await;
    assert_eq!(text(&agent_request.message), request.to_string());
    let answer =
        r#"{"type":"tool/call/resp","id":"b","version":"1.0","ts":2,"req_id":"a-1","data":{}}"#;
    world.answer(&agent_request, Message::plain(answer)).await;
    let reply_message = world.reply_message().await;
    assert_eq!(text(&reply_message), answer);
    assert_eq!(header(&reply_message, "ce_collaborationid"), "a-1");

    let unknown = tool_call("a-2", "nobody");
    world.ask(Message::plain(unknown.to_string())).await;
    let reply_message = body(&world.reply_message().await);
    assert_eq!(
        (&reply_message["type"], &reply_message["req_id"]),
        (&json!("error"), &json!("a-2"))
    );
    world.end().await;
}

/// A request of E2A with the id `r-1`.
const E2A_REQUEST: &str = r#"{"protocol_version":"1.0","request_id":"r-1","channel":"web","method":"chat.send","params":{"_agentId":"weather","query":"hi"}}"#;

/// A CloudEvent of no family, a request with the id `e-1`.
const EVENT_REQUEST: &str = r#"{"specversion":"1.0","id":"e-1","source":"/me","type":"x","mcptype":"request","targetagent":"weather","data":{}}"#;

/// A record of the answer to it, which has these members besides.
fn e2a_record(members: &str) -> Message {
    Message::plain(format!(
        r#"{{"protocol_version":"1.0","request_id":"r-1",{members}}}"#
    ))
}

/// The requester can answer it, so the call goes on.
#[tokio::test]
async fn a_question_in_a_record_is_a_part_for_a_requester_of_e2a() {
    let mut world = World::new().await;
    world.ask(Message::plain(E2A_REQUEST)).await;
    let agent_request = world.next_request().await;
    let question = e2a_record(
        r#""sequence":0,"is_final":false,"status":"in_progress","response_kind":"acp.output_request","body":{"jsonrpc":"2.0","id":"q-1","method":"session/request_permission","params":{}}"#,
    );
    let last = e2a_record(
        r#""sequence":1,"is_final":true,"status":"succeeded","response_kind":"e2a.complete","body":{"result":{"n":1}}"#,
    );
    for (answer, ty, kind, is_final) in [
        (
            question,
            "e2a.acp.output_request.stream",
            "request",
            "false",
        ),
        (last, "e2a.complete.resp", "response", "true"),
    ] {
        world.answer(&agent_request, answer.clone()).await;
        let part = world.reply_message().await;
        assert_eq!(text(&part), text(&answer));
        assert!(header(&part, "ce_type").ends_with(ty), "{part:?}");
        assert_eq!(header(&part, "ce_mcptype"), kind);
        assert_eq!(header(&part, "ce_isfinal"), is_final);
        assert_eq!(header(&part, "ce_collaborationid"), "r-1");
    }
    world.end().await;
}

/// Like a JSON-RPC requester, it cannot answer: the call goes on.
#[tokio::test]
async fn a_json_rpc_question_to_a_requester_of_another_family_is_refused() {
    let mut world = World::new().await;
    let a2e = tool_call("a-1", "weather").to_string();
    let legacy = r#"{"protocol":"A2A","messageType":"REQUEST","targetAgent":{"agentId":"weather"},"payload":{},"metadata":{"correlationId":"c-1"}}"#;
    let question = |method: &str| {
        let question = json!({"jsonrpc": "2.0", "id": "q-9", "method": method, "params": {}});
        Message::plain(question.to_string())
    };
    for request in [E2A_REQUEST, a2e.as_str(), legacy, EVENT_REQUEST] {
        world.ask(Message::plain(request.to_owned())).await;
        let agent_request = world.next_request().await;
        let asked = question("session/request_permission");
        world.answer(&agent_request, asked).await;
        let refused = body(&world.next_request().await.message);
        assert_eq!(
            (&refused["id"], &refused["error"]["code"]),
            (&json!("q-9"), &json!(-32601)),
            "{request}"
        );
        // Many serializers of .NET write a byte order mark.
        let ping = text(&question("ping"));
        let ping = Message::plain(format!("\u{feff}{ping}"));
        world.answer(&agent_request, ping).await;
        let pong = body(&world.next_request().await.message);
        assert_eq!((&pong["id"], &pong["result"]), (&json!("q-9"), &json!({})));
        let id = header(&agent_request.message, "ce_callid");
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": "after"}).to_string();
        let message = Message::plain(answer.clone());
        world.answer(&agent_request, message).await;
        let reply_message = world.reply_message().await;
        assert_eq!(text(&reply_message), answer, "{request}");
        assert_eq!(header(&reply_message, "ce_isfinal"), "true");
    }
    assert_eq!(world.count("a2abus_questions_refused_total"), 4);
    world.end().await;
}

/// The `collaborationid` of a record with a question is the id of the question.
#[tokio::test]
async fn every_part_of_the_answer_to_an_event_names_the_event() {
    let mut world = World::new().await;
    world.ask(Message::plain(EVENT_REQUEST)).await;
    let agent_request = world.next_request().await;
    for is_final in [false, true] {
        let sequence = u8::from(is_final);
        let record = e2a_record(&format!(
            r#""sequence":{sequence},"is_final":{is_final},"status":"in_progress","response_kind":"acp.output_request","body":{{"jsonrpc":"2.0","id":"q-1","method":"session/request_permission","params":{{}}}}"#
        ));
        world.answer(&agent_request, record).await;
        let part = world.reply_message().await;
        assert_eq!(header(&part, "ce_collaborationid"), "e-1", "{part:?}");
        assert_eq!(header(&part, "ce_isfinal"), is_final.to_string());
    }
    world.end().await;
}

/// A notification contains no id of its request.
#[tokio::test]
async fn a_notification_in_an_answer_names_its_request() {
    let mut world = World::new().await;
    world.ask(request("7")).await;
    let agent_request = world.next_request().await;
    let note = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"x"}}"#;
    world.answer(&agent_request, Message::plain(note)).await;
    let part = world.reply_message().await;
    assert_eq!(text(&part), note);
    assert_eq!(header(&part, "ce_collaborationid"), "7");
    let last = result(&agent_request, 1);
    world.answer(&agent_request, last).await;
    let part = world.reply_message().await;
    assert_eq!(header(&part, "ce_collaborationid"), "7");
    world.end().await;
}

/// Its readers would take what is inside for the answer to another request, or could not read it at all.
#[tokio::test]
async fn an_answer_that_is_not_valid_in_its_family_is_an_error_of_the_requesters_family() {
    let mut world = World::new().await;
    let complete = r#""sequence":0,"is_final":true,"status":"succeeded","response_kind":"e2a.complete","body":{"result":{}}"#;
    let inside = r#""metadata":{"_e2a_wire_legacy_agent_response":{"request_id":"other","channel_id":"web","ok":true,"payload":{}}}"#;
    let hidden = e2a_record(&format!("{complete},{inside}"));
    let newer = text(&e2a_record(complete)).replacen("\"1.0\"", "\"2.0\"", 1);
    for (answer, why) in [
        (hidden, "the answer inside has another request_id"),
        (Message::plain(newer), "protocol_version must be"),
        (
            Message::plain(r#"{"jsonrpc":"1.0","id":"r-1","result":1}"#),
            "jsonrpc must be",
        ),
        (
            Message::plain(r#"{"specversion":"1.0","id":"","source":"/s","type":"t","data":{}}"#),
            ": empty",
        ),
    ] {
        world.ask(Message::plain(E2A_REQUEST)).await;
        let agent_request = world.next_request().await;
        world.answer(&agent_request, answer).await;
        let error = body(&world.reply_message().await);
        assert_eq!(error["request_id"], "r-1", "{error}");
        assert_eq!(error["body"]["code"], "E2A.BAD_AGENT_REPLY", "{error}");
        let message = error["body"]["message"].as_str().unwrap();
        assert!(message.contains(why), "{error}");
    }
    let request = tool_call("a-1", "weather");
    world.ask(Message::plain(request.to_string())).await;
    let agent_request = world.next_request().await;
    let newer =
        r#"{"type":"tool/call/resp","id":"b","version":"9.0","ts":2,"req_id":"a-1","data":{}}"#;
    world.answer(&agent_request, Message::plain(newer)).await;
    let error = body(&world.reply_message().await);
    assert_eq!(
        (&error["type"], &error["req_id"]),
        (&json!("error"), &json!("a-1"))
    );
    assert_eq!(error["detail"]["reason"], "bad_agent_reply", "{error}");
    world.end().await;
}

/// The sender of an event of no family reads any answer, and text is of no family.
#[tokio::test]
async fn an_invalid_record_for_an_event_and_text_for_any_family_are_answers_of_an_unknown_type() {
    let mut world = World::new().await;
    let newer = r#"{"protocol_version":"2.0","request_id":"r-1","sequence":0,"is_final":true,"status":"succeeded","response_kind":"e2a.complete","body":{"result":{}}}"#;
    let broken = r#"{"type":"tool/call/req","id":"b","version":"#;
    for (request, answer) in [
        (EVENT_REQUEST, newer),
        (E2A_REQUEST, "sunny"),
        (E2A_REQUEST, broken),
    ] {
        world.ask(Message::plain(request)).await;
        let agent_request = world.next_request().await;
        world.answer(&agent_request, Message::plain(answer)).await;
        let reply_message = world.reply_message().await;
        assert_eq!(text(&reply_message), answer);
        let ty = header(&reply_message, "ce_type");
        assert!(ty.ends_with("unknown"), "{answer}: {ty}");
    }
    world.end().await;
}

/// At a reply address, every act is an answer.
#[tokio::test]
async fn legacy_answers_without_a_correlation_id_have_the_attributes_of_an_answer() {
    let mut world = World::new().await;
    let legacy = r#"{"protocol":"A2A","messageType":"REQUEST","targetAgent":{"agentId":"weather"},"payload":{},"metadata":{"correlationId":"c-1"}}"#;
    for last in ["INFORM", "SHRUG"] {
        world.ask(Message::plain(legacy)).await;
        let agent_request = world.next_request().await;
        for (act, kind, is_final) in [("AGREE", "stream", "false"), (last, "response", "true")] {
            let answer = format!(r#"{{"protocol":"A2A","messageType":"{act}","payload":{{}}}}"#);
            world.answer(&agent_request, Message::plain(answer)).await;
            let part = world.reply_message().await;
            assert_eq!(header(&part, "ce_mcptype"), kind, "{act}");
            assert_eq!(header(&part, "ce_isfinal"), is_final, "{act}");
            assert_eq!(header(&part, "ce_collaborationid"), "c-1", "{act}");
        }
    }
    world.end().await;
}

#[tokio::test]
async fn a_cancel_with_an_id_is_refused_with_the_reason() {
    let mut world = World::new().await;
    for method in ["notifications/cancelled", "$/cancel_request"] {
        for agent in ["", r#""_agentId":"weather","#] {
            let cancel = format!(
                r#"{{"jsonrpc":"2.0","id":8,"method":"{method}","params":{{{agent}"requestId":7}}}}"#
            );
            world.ask(Message::plain(cancel)).await;
            let error = body(&world.reply_message().await);
            assert_eq!(
                (&error["id"], &error["error"]["code"]),
                (&json!(8), &json!(-32602))
            );
            let message = error["error"]["message"].as_str().unwrap();
            assert!(message.contains("send it without one"), "{message}");
        }
    }
    world.end().await;
}

/// nats-py's `respond` and many agents on Kafka copy the headers.
#[tokio::test]
async fn answers_of_any_family_with_the_headers_of_their_request_are_events_of_their_own() {
    let mut world = World::new().await;
    let request = tool_call("a-1", "weather");
    world.ask(Message::plain(request.to_string())).await;
    let agent_request = world.next_request().await;
    let mut seen = Vec::new();
    for answer in [
        r#"{"type":"tool/event","id":"b","version":"1.0","ts":2,"req_id":"a-1","event":"progress","data":{}}"#,
        r#"{"type":"tool/call/resp","id":"c","version":"1.0","ts":2,"req_id":"a-1","data":{}}"#,
    ] {
        let mut message = agent_request.message.clone();
        message.body = Some(answer.into());
        world.answer(&agent_request, message).await;
        let reply_message = world.reply_message().await;
        assert_eq!(text(&reply_message), answer);
        seen.push(header(&reply_message, "ce_id").to_owned());
        let ty = header(&reply_message, "ce_type");
        assert!(!ty.ends_with("req"), "{ty}");
        assert_eq!(header(&reply_message, "ce_targetagent"), "");
    }
    assert_ne!(seen[0], seen[1]);
    assert!(!seen.contains(&header(&agent_request.message, "ce_id").to_owned()));
    world.end().await;
}

/// A binding that may hold 256 KiB: one agent 64 KiB of it, all of them together 192 KiB.
fn small() -> String {
    let small = "topics: [requests], budget_bytes: 256KiB,";
    let limits = "limits: { max_bytes: 128KiB }\n";
    CONFIG.replace("topics: [requests],", small) + limits
}

/// A request of about this many KiB for an agent.
fn large(agent: &str, id: usize, kib: usize) -> Message {
    let padding = "x".repeat(kib << 10);
    let params = json!({"_agentId": agent, "padding": padding});
    let call = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
    Message::plain(call.to_string())
}

#[tokio::test]
async fn an_agent_that_does_not_answer_stops_no_other() {
    let mut world = World::with(&small()).await;
    let mut slow = read(&world.memory, "agents.weather-slow").await;
    // Four times the budget of the binding.
    for id in 0..50 {
        world.ask(large("weather-slow", id, 20)).await;
    }
    for id in 3..50 {
        let reply_message = body(&world.reply_message().await);
        let (error, expected) = (&reply_message["error"], json!(id));
        assert_eq!(reply_message["id"], expected);
        assert_eq!(error["data"]["reason"], "exhausted", "{reply_message}");
        assert_eq!(error["data"]["retryAfterSeconds"], 1, "{reply_message}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("weather-slow"), "{message}");
    }
    let dropped = "a2abus_dropped_total{binding=\"requests\",reason=\"exhausted\"}";
    assert_eq!(world.count(dropped), 47);

    world.ask(request("100")).await;
    assert_eq!(world.served().await["id"], 100);

    // Answered requests make room.
    for _ in 0..3 {
        let agent_request = receive(&mut slow, "a request of the slow agent").await;
        world.answer(&agent_request, Message::plain("{}")).await;
        assert!(body(&world.reply_message().await)["result"].is_object());
    }
    world.ask(large("weather-slow", 200, 20)).await;
    let agent_request = receive(&mut slow, "a later request of the slow agent").await;
    world.answer(&agent_request, Message::plain("{}")).await;
    assert_eq!(body(&world.reply_message().await)["id"], 200);
    world.end().await;
}

#[tokio::test]
async fn all_requests_that_wait_leave_room_for_messages_that_need_no_answer() {
    let mut world = World::with(&small()).await;
    for id in 0..20 {
        world.ask(large(&format!("weather-{id}"), id, 60)).await;
    }
    for id in 3..20 {
        let reply_message = body(&world.reply_message().await);
        assert_eq!(reply_message["id"], id);
        assert_eq!(
            reply_message["error"]["data"]["reason"], "exhausted",
            "{reply_message}"
        );
    }
    for number in 0..20 {
        let params =
            json!({"_agentId": "weather", "number": number, "padding": "x".repeat(40 << 10)});
        let event = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": params});
        let to = Address::topic(topic("requests"));
        world.publish(to, Message::plain(event.to_string())).await;
        let request_body = body(&world.next_request().await.message);
        assert_eq!(request_body["params"]["number"], number);
    }
    world.end().await;
}

#[tokio::test]
async fn three_agents_that_do_not_answer_leave_room_for_every_other() {
    let mut world = World::with(&small()).await;
    for id in 0..30 {
        let agent = format!("weather-dead-{}", id % 3);
        world.ask(large(&agent, id, 20)).await;
    }
    // Three quarters of the share for requests: 7 of 20 KiB.
    for _ in 7..30 {
        let reply_message = body(&world.reply_message().await);
        assert_eq!(
            reply_message["error"]["data"]["reason"], "exhausted",
            "{reply_message}"
        );
    }
    for id in 30..40 {
        world.ask(large("weather", id, 20)).await;
        assert_eq!(world.served().await["id"], id);
    }
    world.end().await;
}

#[tokio::test]
async fn a_request_larger_than_the_share_of_its_agent_waits_for_all_others() {
    let mut world = World::with(&small()).await;
    for id in [1, 2] {
        world.ask(large("weather", id, 100)).await;
    }
    assert_eq!(
        body(&world.reply_message().await)["error"]["data"]["reason"],
        "exhausted"
    );
    assert_eq!(world.served().await["id"], 1);
    world.end().await;
}

#[tokio::test]
async fn an_expired_request_gets_an_error_and_reaches_no_agent() {
    let mut world = World::new().await;
    let mut message = request("7");
    for (name, value) in [
        ("specversion", "1.0"),
        ("id", "a"),
        ("source", "/me"),
        ("type", "t"),
        ("mcptype", "request"),
        ("targetagent", "weather"),
        ("expirytime", "2020-01-01T00:00:00Z"),
    ] {
        message.headers.push(format!("ce_{name}"), value);
    }
    message.headers.push("content-type", "application/json");
    world.ask(message).await;
    let reply_message = body(&world.reply_message().await);
    assert_eq!(
        (
            &reply_message["id"],
            &reply_message["error"]["data"]["reason"]
        ),
        (&json!(7), &json!("timeout"))
    );
    assert!(world.agent.try_recv().is_none());
    world.end().await;
}

#[tokio::test]
async fn a_draining_bridge_answers_its_requests_and_leaves_later_ones_to_others() {
    let mut world = World::new().await;
    world.ask(request("1")).await;
    let agent_request = world.next_request().await;
    world.stop.cancel();
    // The next reader of the topic gets this one: the bridge that drains has left it.
    let other = world.memory.subscribe(group("requests", "a2abus"));
    let mut other = other.await.unwrap();
    let answered = async {
        world.ask(request("2")).await;
        world.answer(&agent_request, Message::plain("{}")).await;
    };
    answered.await;
    assert_eq!(
        text(&world.reply_message().await),
        r#"{"jsonrpc":"2.0","id":1,"result":{}}"#
    );
    within("the bridge drains", world.running).await.unwrap();
    let left = receive(&mut other, "the other request").await;
    assert_eq!(body(&left.message)["id"], 2);
    assert!(world.agent.try_recv().is_none());
}

#[tokio::test]
async fn a_request_without_an_answer_at_the_end_comes_again() {
    let mut world = World::new().await;
    world.ask(request("1")).await;
    world.next_request().await;
    world.stop.cancel();
    within("the bridge drains", world.running).await.unwrap();
    let other = world.memory.subscribe(group("requests", "a2abus"));
    let mut other = other.await.unwrap();
    let again = receive(&mut other, "the request").await;
    assert_eq!(body(&again.message)["id"], 1);
}

const REPLIES: &str = "reply_topics: ['clients.*'], replies: clients.me";

/// A binding that answers at `clients.me` if a request names no address, and small limits.
fn with_replies() -> String {
    let limits = "limits: { max_bytes: 1KiB }\n";
    CONFIG.replace("reply_topics: ['clients.*']", REPLIES) + limits
}

/// Where a request names its reply address.
#[derive(Debug, Clone, Copy)]
enum NamedIn {
    ReplySubject,
    Attribute,
    SpringHeader,
    Nowhere,
}

impl World {
    /// Sends the message with its reply address in this place.
    async fn ask_with(&self, named_in: NamedIn, mut message: Message) {
        let address = "clients.me";
        match named_in {
            NamedIn::ReplySubject => return self.ask(message).await,
            NamedIn::Attribute => message.headers.push("ce_replyto", address),
            NamedIn::SpringHeader => message.headers.push("kafka_replyTopic", address),
            NamedIn::Nowhere => {}
        }
        self.publish(Address::topic(topic("requests")), message)
            .await;
    }
}

#[tokio::test]
async fn an_unreadable_message_gets_an_error_at_once_at_its_reply_address() {
    let large = format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"{}"}}"#,
        "x".repeat(2_000)
    );
    let cases = [
        ("hello", -32_700, Value::Null, "not_json"),
        ("", -32_700, Value::Null, "empty"),
        (r#"{"a":1}"#, -32_600, Value::Null, "unknown"),
        ("[]", -32_600, Value::Null, "empty_batch"),
        (
            r#"{"jsonrpc":"2.0","id":true,"method":"tools/call"}"#,
            -32_600,
            Value::Null,
            "bad_id",
        ),
        (
            r#"{"jsonrpc":"2.0","id":7,"method":5}"#,
            -32_600,
            json!(7),
            "bad_method",
        ),
        (large.as_str(), -32_600, Value::Null, "too_large"),
    ];
    for named_in in [
        NamedIn::ReplySubject,
        NamedIn::Attribute,
        NamedIn::SpringHeader,
        NamedIn::Nowhere,
    ] {
        let config = match named_in {
            NamedIn::Nowhere => with_replies(),
            _ => CONFIG.to_owned() + "limits: { max_bytes: 1KiB }\n",
        };
        let mut world = World::with(&config).await;
        for (payload, code, id, reason) in &cases {
            let mut message = Message::plain((*payload).to_owned());
            message.headers.push("kafka_correlationId", "spring-7");
            message.key = Some("k".into());
            world.ask_with(named_in, message).await;
            let reply_message = world.reply_message().await;
            assert_eq!(header(&reply_message, "ce_mcptype"), "response");
            assert_eq!(header(&reply_message, "kafka_correlationId"), "spring-7");
            assert_eq!(reply_message.key.as_deref(), Some(&b"k"[..]));
            let reply_message = body(&reply_message);
            assert_eq!(
                reply_message["error"]["code"], *code,
                "{named_in:?} {reply_message}"
            );
            assert_eq!(
                (
                    &reply_message["id"],
                    &reply_message["error"]["data"]["reason"]
                ),
                (id, &json!(reason)),
                "{named_in:?} {reply_message}"
            );
            let dead = receive(&mut world.dead, "the dead letter").await.message;
            assert_eq!(header(&dead, "bus-dlq-reason"), *reason);
            assert_eq!(text(&dead), *payload);
        }
        world.end().await;
    }
}

/// Programs that speak another protocol than JSON-RPC understand only its errors.
#[tokio::test]
async fn a_refused_message_of_another_family_gets_an_error_of_that_family() {
    let mut world = World::new().await;
    for (payload, reason, pointer, expected) in [
        (
            r#"{"type":"tool/call/req","id":"a-1","version":"1.0","ts":1,"_agentId":5}"#,
            "bad_target",
            "/detail/reason",
            json!({ "type": "error", "req_id": "a-1", "code": "invalid_message", "retryable": false }),
        ),
        (
            r#"{"protocol_version":"1.0","request_id":"r-1","channel":"web","method":5,"params":{}}"#,
            "bad_method",
            "/body/code",
            json!({ "response_kind": "e2a.error", "request_id": "r-1", "is_final": true }),
        ),
        (
            r#"{"protocol":"A2A","messageType":5,"metadata":{"correlationId":"c-1"}}"#,
            "bad_method",
            "/payload/reason",
            json!({ "messageType": "FAILURE", "metadata": { "correlationId": "c-1" } }),
        ),
    ] {
        world.ask(Message::plain(payload)).await;
        let reply_message = body(&world.reply_message().await);
        for (member, value) in expected.as_object().unwrap() {
            assert_eq!(&reply_message[member], value, "{reply_message}");
        }
        let said = reply_message.pointer(pointer).unwrap().as_str().unwrap();
        let said = said.trim_start_matches("E2A.").to_lowercase();
        assert_eq!(said, reason, "{reply_message}");
        let dead = receive(&mut world.dead, "the dead letter").await.message;
        assert_eq!(text(&dead), payload);
    }
    // An error about an answer could cause an endless exchange. Nobody answers the end of a connection.
    for unanswered in [
        r#"{"type":"tool/call/resp","id":"a-2","req_id":"a-1","version":"1.0","ts":1,"_agentId":5}"#,
        r#"{"type":"shutdown","id":"a-3","version":"1.0","ts":1}"#,
    ] {
        world.ask(Message::plain(unanswered)).await;
        receive(&mut world.dead, "the dead letter").await;
        assert!(world.inbox.try_recv().is_none());
    }
    world.end().await;
}

#[tokio::test]
async fn the_headers_of_a_cloudevent_that_cannot_be_read_get_an_error_too() {
    let mut world = World::new().await;
    let mut message = request("7");
    message.headers.push("ce_specversion", "1.0");
    message.headers.push("ce_id", "");
    world.ask(message).await;
    let reply_message = body(&world.reply_message().await);
    assert_eq!(
        (&reply_message["id"], &reply_message["error"]["code"]),
        (&json!(7), &json!(-32_600))
    );
    let dead = receive(&mut world.dead, "the dead letter").await.message;
    assert_eq!(header(&dead, "bus-dlq-stage"), "receive");
    let mut message = Message::plain(r#"{"a":1}"#);
    message.headers.push("ce_specversion", "1.0");
    message.headers.push("ce_id", "o1");
    message.headers.push("ce_time", "x");
    world.ask(message).await;
    let reply_message = world.reply_message().await;
    assert_eq!(header(&reply_message, "ce_collaborationid"), "o1");
    assert_eq!(reply_message.key.as_deref(), Some(&b"o1"[..]));
    assert_eq!(body(&reply_message)["id"], Value::Null);
    world.end().await;
}

/// An event in structured mode, invalid because of one of these members.
fn structured(members: &str, data: &str) -> Message {
    let mut message = Message::plain(format!(
        r#"{{"specversion":"1.0","id":"o1","source":"/s","type":"t",{members},"data":{data}}}"#
    ));
    let media = "application/cloudevents+json";
    message.headers.push("content-type", media);
    message
}

#[tokio::test]
async fn the_error_for_an_unreadable_structured_event_goes_to_its_reply_address() {
    let mut world = World::new().await;
    let to = Address::topic(topic("requests"));
    let call = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call"}"#;
    for (members, data, correlation, id) in [
        (
            r#""time":"x","replyto":"clients.me""#,
            r#"{"a":1}"#,
            "o1",
            Value::Null,
        ),
        (
            r#""n":2147483648,"mcptype":"request","replyto":"clients.me","collaborationid":"c1","callid":"k1""#,
            call,
            "c1",
            json!(7),
        ),
        (r#""Big":1,"replyto":"clients.me""#, call, "7", json!(7)),
    ] {
        world.publish(to.clone(), structured(members, data)).await;
        let reply_message = world.reply_message().await;
        assert_eq!(header(&reply_message, "ce_mcptype"), "response");
        assert_eq!(
            header(&reply_message, "ce_collaborationid"),
            correlation,
            "{members}"
        );
        assert_eq!(reply_message.key.as_deref(), Some(correlation.as_bytes()));
        if members.contains("callid") {
            assert_eq!(header(&reply_message, "ce_callid"), "k1");
        }
        let error = body(&reply_message);
        assert_eq!(
            (&error["id"], &error["error"]["code"]),
            (&id, &json!(-32_600)),
            "{error}"
        );
        let dead = receive(&mut world.dead, "the dead letter").await.message;
        assert_eq!(header(&dead, "bus-dlq-stage"), "receive", "{members}");
    }
    // The address is checked like any other, and an error about an answer could cause an endless exchange.
    let answer = r#"{"jsonrpc":"2.0","id":7,"result":1}"#;
    for (members, data) in [
        (r#""time":"x","replyto":"a2abus.dlq""#, call),
        (
            r#""time":"x","replyto":"clients.me","replyto":"clients.you""#,
            call,
        ),
        (
            r#""time":"x","replyto":"clients.me","mcptype":"response""#,
            call,
        ),
        (r#""time":"x","replyto":"clients.me""#, answer),
    ] {
        world.publish(to.clone(), structured(members, data)).await;
        let dead = receive(&mut world.dead, "the dead letter").await.message;
        assert_eq!(header(&dead, "bus-dlq-stage"), "receive", "{members}");
    }
    let last = structured(r#""time":"x","replyto":"clients.me""#, call);
    world.publish(to, last).await;
    assert_eq!(body(&world.reply_message().await)["id"], 7);
    assert!(world.inbox.try_recv().is_none());
    world.end().await;
}

#[tokio::test]
async fn answers_and_messages_without_a_reply_address_get_no_reply() {
    let mut world = World::with(&with_replies()).await;
    for payload in [
        r#"{"jsonrpc":"2.0","id":true,"result":1}"#,
        r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":"x"}}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":"x"}}"#,
    ] {
        world.ask(Message::plain(payload)).await;
        let dead = receive(&mut world.dead, "the dead letter").await.message;
        assert_eq!(text(&dead), payload);
    }
    for kind in ["response", "stream", "notification"] {
        let mut message = Message::plain("hello");
        message.headers.push("ce_mcptype", kind);
        world.ask(message).await;
        receive(&mut world.dead, "the dead letter").await;
    }
    // If the bridge's own error comes back, it is treated as an answer.
    world.ask(Message::plain("hello")).await;
    let error_reply = world.reply_message().await;
    world.ask(error_reply).await;
    world
        .ask(Message::plain(
            text(&request("8")).replace("weather", "nobody"),
        ))
        .await;
    assert_eq!(body(&world.reply_message().await)["id"], 8);
    world.end().await;

    let mut world = World::new().await;
    let to = Address::topic(topic("requests"));
    world.publish(to, Message::plain("hello")).await;
    receive(&mut world.dead, "the dead letter").await;
    world.ask(Message::plain("x")).await;
    assert_eq!(body(&world.reply_message().await)["id"], Value::Null);
    assert!(world.inbox.try_recv().is_none());
    world.end().await;
}

#[tokio::test]
async fn a_request_that_is_refused_for_its_reply_address_is_answered_at_another() {
    for config in [CONFIG.to_owned(), with_replies()] {
        let mut world = World::with(&config).await;
        let mut message = request("7");
        message.headers.push("ce_replyto", "a2abus.dlq");
        match config.contains("replies: clients.me") {
            false => world.ask(message).await,
            true => {
                world
                    .publish(Address::topic(topic("requests")), message)
                    .await;
            }
        }
        let reply_message = body(&world.reply_message().await);
        assert_eq!(
            (
                &reply_message["id"],
                &reply_message["error"]["data"]["reason"]
            ),
            (&json!(7), &json!("invalid_params"))
        );
        let why = reply_message["error"]["message"].as_str().unwrap();
        assert!(
            why.contains("a2abus.dlq") && why.contains("reply_topics"),
            "{why}"
        );
        let dead = receive(&mut world.dead, "the dead letter").await.message;
        assert_eq!(header(&dead, "bus-dlq-reason"), "reply_topic_refused");
        assert!(world.agent.try_recv().is_none());
        world.end().await;
    }
}

/// In a compacted topic such a message deletes its key, also when it is sent there again.
#[tokio::test]
async fn the_dead_letter_of_a_message_without_a_body_has_none() {
    let mut world = World::new().await;
    for body in [None, Some("".into())] {
        let mut message = request("1");
        message.body = body.clone();
        world
            .publish(Address::topic(topic("requests")), message)
            .await;
        let dead = receive(&mut world.dead, "a dead letter").await.message;
        assert_eq!(dead.body, body);
    }
    world.end().await;
}

/// An answer that is not a CloudEvent, and repeats this header only.
#[tokio::test]
async fn a_plain_answer_may_name_its_call_in_the_header_collaborationid() {
    let mut world = World::new().await;
    world.ask(request("7")).await;
    let agent_request = world.next_request().await;
    let mut answer = Message::plain(r#"{"hello":3}"#);
    answer
        .headers
        .push("ce_collaborationid", id_of(&agent_request));
    let replies = header(&agent_request.message, "ce_replyto").to_owned();
    world.publish(Address::topic(topic(&replies)), answer).await;
    assert_eq!(body(&world.reply_message().await)["result"]["hello"], 3);
    world.end().await;
}

#[tokio::test]
async fn the_dead_letter_of_a_request_is_the_message_as_it_was_received() {
    let mut world = World::new().await;
    world.refuse("agents.*", Some(TransportErrorKind::UnknownTopic));
    let units = ["1.50", "\"b\""].map(|id| text(&request(id)));
    for payload in [units[0].clone(), format!("[ {}, {} ]", units[0], units[1])] {
        let mut message = Message::plain(payload.clone());
        message.headers.push("ce_callid", "of-the-requester");
        message.headers.push("x-own", "kept");
        world.ask(message).await;
        let count = if payload.starts_with('[') { 2 } else { 1 };
        for (index, unit) in units.iter().enumerate().take(count) {
            let reply_message = body(&world.reply_message().await);
            assert_eq!(
                reply_message["error"]["data"]["reason"], "agent_not_found",
                "{reply_message}"
            );
            let dead = receive(&mut world.dead, "the dead letter").await.message;
            assert_eq!(text(&dead), *unit);
            assert_eq!(header(&dead, "bus-dlq-unit"), index.to_string());
            assert_eq!(header(&dead, "bus-dlq-reason"), "unknown_topic");
            assert_eq!(header(&dead, "ce_callid"), "of-the-requester");
            assert_eq!(header(&dead, "x-own"), "kept");
            assert_eq!(header(&dead, "kafka_correlationId"), "");
        }
    }
    world.refuse("agents.*", None);

    // What somebody sends on of a request has the token; its dead letter does not.
    world.ask(request("7")).await;
    let agent_request = world.next_request().await;
    let reply_id = id_of(&agent_request);
    let mut copied = Message::plain("hello");
    for name in ["ce_callid", "ce_collaborationid", "ce_replyto"] {
        let value = header(&agent_request.message, name).to_owned();
        assert!(value.ends_with(&reply_id), "{name}: {value}");
        copied.headers.push(name, value);
    }
    copied.headers.push("kafka_correlationId", reply_id.clone());
    let to = Address::topic(topic("requests"));
    world.publish(to, copied).await;
    let dead = receive(&mut world.dead, "the dead letter").await.message;
    let shown = dead.headers.iter();
    let shown: Vec<_> = shown.map(|header| format!("{header:?}")).collect();
    let shown = shown.join("\n");
    assert!(shown.contains(&reply_id[..26]), "{shown}");
    assert!(!shown.contains(&reply_id[26..]), "{shown}");
    world.end().await;
}

/// Everything with one key is in one lane.
fn in_lane(message: Message) -> Message {
    Message {
        key: Some("lane".into()),
        ..message
    }
}

/// With two routes to topics that the configuration names.
fn fixed() -> String {
    let routes = "routes: [
  { name: fixed, when: { targetagent: fixed }, to: [{ transport: bus, topic: fixed }] },
  { name: held, when: { targetagent: held }, to: [{ transport: bus, topic: held }] },";
    CONFIG.replace("routes: [", routes)
}

#[tokio::test(start_paused = true)]
async fn a_request_for_a_missing_fixed_topic_fails_at_once_and_stops_no_other() {
    let mut world = World::with(&fixed()).await;
    let mut agent = read(&world.memory, "fixed").await;
    for kind in [
        TransportErrorKind::UnknownTopic,
        TransportErrorKind::Unauthorised,
    ] {
        let start = Instant::now();
        world.refuse("fixed", Some(kind));
        // The second finds that the topic is known to be missing.
        for id in ["7", "8"] {
            let request = text(&request(id)).replace("weather", "fixed");
            world.ask(in_lane(Message::plain(request.clone()))).await;
            let reply_message = body(&world.reply_message().await);
            let id: Value = serde_json::from_str(id).unwrap();
            assert_eq!(
                (
                    &reply_message["id"],
                    &reply_message["error"]["data"]["reason"]
                ),
                (&id, &json!("agent_unavailable"))
            );
            let dead = receive(&mut world.dead, "the dead letter").await.message;
            assert_eq!(header(&dead, "bus-dlq-reason"), kind.as_str());
            assert_eq!(text(&dead), request);
        }
        world.ask(in_lane(request("9"))).await;
        assert_eq!(world.served().await["id"], 9);
        let report = world.readiness.report();
        assert!(report.ready && report.degraded.len() == 1, "{report:?}");
        assert!(start.elapsed() < Duration::from_secs(10), "at once");
        // Once it is repaired, the next request gets there.
        world.refuse("fixed", None);
        let request = text(&request("10")).replace("weather", "fixed");
        world.ask(in_lane(Message::plain(request))).await;
        let agent_request = receive(&mut agent, "a request for the repaired topic").await;
        world.answer(&agent_request, Message::plain("{}")).await;
        assert_eq!(body(&world.reply_message().await)["id"], 10);
        assert!(world.readiness.report().degraded.is_empty());
    }
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_behind_a_held_lane_gets_its_timeout_at_its_deadline() {
    let mut world = World::with(&fixed()).await;
    world.refuse("held", Some(TransportErrorKind::Unauthorised));
    let mut held = read(&world.memory, "held").await;
    let event = r#"{"jsonrpc":"2.0","method":"notifications/x","params":{"_agentId":"held"}}"#;
    world.ask(in_lane(Message::plain(event))).await;
    let is_held = || !world.readiness.report().degraded.is_empty();
    until("the lane is held", is_held).await;
    let start = Instant::now();
    world.ask(in_lane(request("7"))).await;
    let reply_message = body(&world.reply_message().await);
    assert_eq!(
        (
            &reply_message["id"],
            &reply_message["error"]["data"]["reason"]
        ),
        (&json!(7), &json!("timeout"))
    );
    let took = start.elapsed().as_secs();
    assert!((29..=31).contains(&took), "{took}");
    let why = reply_message["error"]["message"].as_str().unwrap();
    assert!(why.contains("it waited in the bridge"), "{why}");
    // Its caller has given up: the agent is spared.
    world.refuse("held", None);
    assert_eq!(text(&receive(&mut held, "the event").await.message), event);
    world.ask(in_lane(request("8"))).await;
    assert_eq!(world.served().await["id"], 8);
    let dropped = "a2abus_dropped_total{binding=\"requests\",reason=\"call_ended\"}";
    assert_eq!(world.count(dropped), 1);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn requests_whose_answers_cannot_be_read_wait_once_and_are_not_published_late() {
    let (near, far) = (Memory::default(), Memory::default());
    let config = CONFIG
        .replace(
            "{ bus: { type: memory } }",
            "{ bus: { type: memory }, far: { type: memory } }",
        )
        .replace("routes: [", "routes: [\n  { name: far, when: { mcptype: request }, to: [{ transport: far, topic: 'agents.{targetagent}' }] },");
    let config = Config::read("test.yaml", &config, []).unwrap_or_else(|p| panic!("{p}"));
    let mut agent = read(&far, "agents.weather").await;
    let mut inbox = read(&near, "clients.me").await;
    let mut events = read(&near, "agents.weather").await;
    far.set_down("not there yet");
    let bus = |name: &str| if name == "bus" { &near } else { &far };
    let bridge = build(config, bus).await;
    let readiness = Arc::clone(bridge.readiness());
    let stop = CancellationToken::new();
    let running = tokio::spawn(bridge.run(stop.clone()));

    let event = r#"{"jsonrpc":"2.0","method":"notifications/x","params":{"_agentId":"weather"}}"#;
    let requests: Vec<_> = (0..20).map(|id| text(&request(&id.to_string()))).collect();
    let batch = format!("[{},{event}]", requests.join(","));
    let start = Instant::now();
    let mut to = Address::topic(topic("requests"));
    to.reply_to = Some(topic("clients.me"));
    for message in [batch.clone(), batch] {
        publish(&near, &to, in_lane(Message::plain(message))).await;
    }
    let first = receive(&mut events, "the event of the message").await;
    assert_eq!(text(&first.message), event);
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "it does not wait"
    );
    for _ in 0..40 {
        let reply_message = receive(&mut inbox, "the error of a request").await;
        assert!(body(&reply_message.message)["error"].is_object());
    }
    receive(&mut events, "the event of the second message").await;
    let took = start.elapsed().as_secs();
    assert!((1..=5).contains(&took), "until the bus is given up: {took}");

    // The agent's bus is up again: new messages arrive, and no old ones.
    far.set_up();
    within("answers are read", async {
        while !readiness.is_ready() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    })
    .await;
    let late = request("99");
    publish(&near, &to, in_lane(late)).await;
    let agent_request = receive(&mut agent, "the new request").await;
    let reply = Address::topic(agent_request.reply_to.unwrap());
    let answer = Message::plain(r#"{"celsius":-3}"#);
    publish(&far, &reply, answer).await;
    assert_eq!(
        body(&receive(&mut inbox, "its answer").await.message)["id"],
        99
    );
    stop.cancel();
    within("the bridge drains", running).await.unwrap();
}

#[tokio::test]
async fn a_plain_request_may_have_a_deadline_and_its_error_names_the_attribute() {
    let mut world = World::new().await;
    let mut late = request("1");
    late.headers.push("ce_expirytime", "2020-01-01T00:00:00Z");
    world.ask(late).await;
    let reply_message = world.reply_message().await;
    let error = &body(&reply_message)["error"];
    assert_eq!(error["data"]["reason"], "timeout");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("expirytime") && !message.contains("X-A2A-Timeout"),
        "{message}"
    );

    let mut in_time = request("2");
    in_time
        .headers
        .push("ce_expirytime", "2100-01-01T00:00:00Z");
    world.ask(in_time).await;
    // Nothing else has come to the agent.
    let agent_request = world.next_request().await;
    world.answer(&agent_request, Message::plain("7")).await;
    assert_eq!(body(&world.reply_message().await)["id"], 2);
    world.end().await;
}

#[tokio::test]
async fn each_of_two_bindings_that_read_a_request_publishes_it() {
    let two = CONFIG.replace(
        "bindings:\n",
        "bindings:\n  - { name: second, transport: bus, topics: [requests], group: second, reply_topics: ['clients.*'] }\n",
    );
    let mut world = World::with(&two).await;
    world.ask(request("7")).await;
    for _ in 0..2 {
        assert_eq!(world.served().await["id"], 7);
    }
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_passes_unchanged_is_not_a_call_of_the_bridge() {
    let passing = CONFIG.replace(
        "topics: [requests],",
        "topics: [requests], on_unknown: pass,",
    );
    let passing = passing + "default_route: [{ transport: bus, topic: agents.weather }]\n";
    let mut world = World::with(&passing).await;
    for named_in in [
        NamedIn::ReplySubject,
        NamedIn::Attribute,
        NamedIn::SpringHeader,
    ] {
        let mut message = Message::plain(r#"{"a":1}"#);
        message.headers.push("kafka_correlationId", "spring-7");
        world.ask_with(named_in, message).await;
        let passed = world.next_request().await;
        assert_eq!(text(&passed.message), r#"{"a":1}"#);
        assert_eq!(header(&passed.message, "kafka_correlationId"), "spring-7");
        let own = match named_in {
            NamedIn::ReplySubject => passed.reply_to.as_ref().map_or("", Topic::as_str),
            NamedIn::Attribute => header(&passed.message, "ce_replyto"),
            _ => header(&passed.message, "kafka_replyTopic"),
        };
        assert_eq!(own, "clients.me", "{named_in:?}");
    }
    within("every message is settled", async {
        while world.count("a2abus_settled_total{binding=\"requests\"}") != 3 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    })
    .await;
    assert!(
        world.inbox.try_recv().is_none(),
        "it is not the bridge's to answer"
    );
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_requester_whose_topic_refuses_everything_stops_no_other() {
    let mut world = World::with(&small()).await;
    world.refuse("clients.stuck", Some(TransportErrorKind::TimedOut));
    let mut stuck = read(&world.memory, "clients.stuck").await;
    let to = Address {
        reply_to: Some(topic("clients.stuck")),
        ..Address::topic(topic("requests"))
    };
    // The share of one agent, and four times the budget of the binding.
    for id in 0..50 {
        let request_message = large("weather", id, 20);
        world.publish(to.clone(), request_message).await;
        if id < 3 {
            let agent_request = world.next_request().await;
            world.answer(&agent_request, Message::plain("{}")).await;
        }
    }
    let undeliverable = r#"a2abus_dropped_total{binding="requests",reason="reply_undeliverable"}"#;
    until_counted(&world.metrics, undeliverable, 47).await;
    let mut other = read(&world.memory, "agents.weather-2").await;
    world.ask(large("weather-2", 100, 1)).await;
    let agent_request = receive(&mut other, "a request for another agent").await;
    world.answer(&agent_request, Message::plain("{}")).await;
    assert_eq!(body(&world.reply_message().await)["id"], 100);

    world.refuse("clients.stuck", None);
    let mut ids = Vec::new();
    for _ in 0..3 {
        let reply_message = receive(&mut stuck, "an answer that has waited")
            .await
            .message;
        ids.extend(body(&reply_message)["id"].as_u64());
    }
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2]);
    world.ask(large("weather", 101, 20)).await;
    assert_eq!(world.served().await["id"], 101);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn one_message_does_not_become_a_thousand_large_ones() {
    let mut world = World::new().await;
    // 1,000 elements that are refused, under a header of 10 kB.
    let payload = format!("[{}]", vec!["1"; 1_000].join(","));
    let mut message = Message::plain(payload.clone());
    message.headers.put("x-large", "h".repeat(10_000));
    world.ask(message).await;
    let error = body(&world.reply_message().await);
    assert_eq!(error["error"]["code"], -32_600, "{error}");
    let dead = receive(&mut world.dead, "the dead letter").await.message;
    assert_eq!(text(&dead), payload);
    assert_eq!(header(&dead, "bus-dlq-reason"), "repeats_too_much");
    // The same without the header: a dead letter for each element, and few errors.
    world.ask(Message::plain(payload)).await;
    for _ in 0..1_000 {
        let dead = receive(&mut world.dead, "a dead letter").await.message;
        assert_eq!(text(&dead), "1");
    }
    let next = request("7");
    world.ask(next).await;
    let agent_request = world.next_request().await;
    let call = id_of(&agent_request);
    let answer = Message::plain(json!({"jsonrpc": "2.0", "id": call, "result": {}}).to_string());
    world.answer(&agent_request, answer).await;
    let mut errors = 0;
    while body(&world.reply_message().await).get("error").is_some() {
        errors += 1;
    }
    assert_eq!(errors, 16);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_requests_for_a_forbidden_reply_address_gets_few_errors() {
    let mut world = World::new().await;
    let element = |id: usize| {
        json!({
            "specversion": "1.0", "id": id.to_string(), "source": "/x", "type": "x", "mcptype": "request",
            "targetagent": "weather", "replyto": "a2abus.dlq", "data": {},
        })
    };
    let batch: Vec<Value> = (0..100).map(element).collect();
    world.ask(Message::plain(json!(batch).to_string())).await;
    for _ in 0..100 {
        let dead = receive(&mut world.dead, "a dead letter").await.message;
        assert_eq!(header(&dead, "bus-dlq-reason"), "reply_topic_refused");
    }
    world.ask(request("7")).await;
    let agent_request = world.next_request().await;
    world.answer(&agent_request, Message::plain("{}")).await;
    let mut errors = 0;
    while body(&world.reply_message().await).get("error").is_some() {
        errors += 1;
    }
    assert_eq!(errors, 16);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn requests_behind_a_held_lane_are_settled_once_their_callers_stop_waiting() {
    let fixed = "routes: [{ name: fixed, when: { targetagent: fixed }, to: [{ transport: bus, topic: fixed }] }, ";
    let mut world = World::with(&CONFIG.replace("routes: [", fixed)).await;
    world.refuse("fixed", Some(TransportErrorKind::UnknownTopic));
    let keyed = |message| Message {
        key: Some("k".into()),
        ..message
    };
    let event =
        r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"_agentId":"fixed"}}"#;
    let requests = Address::topic(topic("requests"));
    world.publish(requests, keyed(Message::plain(event))).await;
    for id in 0..20 {
        world.ask(keyed(request(&id.to_string()))).await;
    }
    for _ in 0..20 {
        assert!(body(&world.reply_message().await).get("error").is_some());
    }
    let in_flight = "a2abus_in_flight{binding=\"requests\"}";
    until_counted(&world.metrics, in_flight, 1).await;
    world.refuse("fixed", None);
    let mut agents = read(&world.memory, "fixed").await;
    receive(&mut agents, "the event").await;
    world.end().await;
}

#[tokio::test]
async fn an_answer_that_the_bus_of_the_requester_refuses_is_not_blamed_on_the_agent() {
    let mut world = World::new().await;
    let mut message = request("7");
    let correlation = "y".repeat(100 << 10);
    message.headers.push("kafka_correlationId", correlation);
    world.ask(message).await;
    let agent_request = world.next_request().await;
    // With the requester's own correlation id it is larger than 1 MiB, which the bus takes at most.
    let answer = json!("x".repeat(950 << 10)).to_string();
    world.answer(&agent_request, Message::plain(answer)).await;
    let reply_message = body(&world.reply_message().await);
    assert_eq!(reply_message["id"], 7);
    let error = &reply_message["error"];
    assert_eq!(error["data"]["reason"], "reply_undeliverable", "{error}");
    let undeliverable = r#"a2abus_dropped_total{binding="requests",reason="reply_undeliverable"}"#;
    assert_eq!(world.count(undeliverable), 1);
    world.end().await;
}

#[tokio::test]
async fn an_answer_to_a_topic_that_does_not_exist_becomes_a_dead_letter() {
    let mut world = World::new().await;
    world.refuse("clients.me", Some(TransportErrorKind::UnknownTopic));
    let mut message = request("7");
    message.key = Some("mine".into());
    message.headers.push("traceparent", "00-1-2-01");
    world.ask(message).await;
    let agent_request = world.next_request().await;
    // The id of a call of another bridge, and the token that proves that an answer is for it.
    let foreign = "a".repeat(52);
    let answer = json!({"jsonrpc": "2.0", "id": id_of(&agent_request), "result": foreign});
    world
        .answer(&agent_request, Message::plain(answer.to_string()))
        .await;
    let dead = receive(&mut world.dead, "the dead letter").await.message;
    assert_eq!(header(&dead, "bus-dlq-reason"), "unknown_topic");
    assert_eq!(header(&dead, "bus-dlq-stage"), "answer");
    assert_eq!(header(&dead, "bus-dlq-topic"), "clients.me");
    let detail = header(&dead, "bus-dlq-detail");
    assert!(
        detail.starts_with("the answer to a request on requests: "),
        "{detail}"
    );
    assert_eq!(dead.key.as_deref(), Some(b"mine".as_slice()));
    assert_eq!(header(&dead, "traceparent"), "00-1-2-01");
    assert_eq!(
        (&body(&dead)["id"], &body(&dead)["result"]),
        (&json!(7), &json!("a".repeat(26)))
    );
    let undeliverable = r#"a2abus_dropped_total{binding="requests",reason="reply_undeliverable"}"#;
    assert_eq!(world.count(undeliverable), 1);
    world.end().await;
}

/// With a lane that is held, because the topic `held` is missing.
async fn held_world() -> World {
    let world = World::with(&fixed()).await;
    world.refuse("held", Some(TransportErrorKind::UnknownTopic));
    let event = r#"{"jsonrpc":"2.0","method":"note","params":{"_agentId":"held"}}"#;
    world.ask(in_lane(Message::plain(event))).await;
    until_counted(&world.metrics, HELD, 1).await;
    world
}

const HELD: &str = r#"a2abus_held_lanes{binding="requests",kind="unknown_topic"}"#;
const IN_FLIGHT: &str = r#"a2abus_in_flight{binding="requests"}"#;

/// Stops the bridge, which has nothing to wait for, and starts the next one.
async fn replace(world: &mut World) {
    let stopped = Instant::now();
    world.stop.cancel();
    let running = std::mem::replace(&mut world.running, tokio::spawn(async {}));
    within("the bridge drains", running).await.unwrap();
    assert!(stopped.elapsed() < Duration::from_secs(2), "it waits");
    assert_eq!(world.count(IN_FLIGHT), 0);
    assert!(world.inbox.try_recv().is_none());
    world.refuse("held", None);
    let config = Config::read("test.yaml", &fixed(), []).unwrap();
    let next = build(config, |_| &world.memory).await;
    world.stop = CancellationToken::new();
    world.running = tokio::spawn(next.run(world.stop.clone()));
}

/// The bridge can neither send it nor answer it, and whoever reads it next makes the call.
#[tokio::test(start_paused = true)]
async fn a_request_behind_a_held_message_is_left_to_the_next_reader_without_an_error() {
    let mut world = held_world().await;
    world.ask(in_lane(request("1"))).await;
    until_counted(&world.metrics, IN_FLIGHT, 2).await;
    replace(&mut world).await;
    let again = world.next_request().await;
    world.answer(&again, Message::plain("{}")).await;
    assert_eq!(body(&world.reply_message().await)["id"], 1);
    assert!(world.inbox.try_recv().is_none());
    world.end().await;
}

/// Its agent may be about to answer, and what it has done must not be cancelled.
#[tokio::test(start_paused = true)]
async fn a_request_that_was_sent_is_answered_although_its_message_is_left_to_the_next_reader() {
    let mut world = World::with(&fixed()).await;
    world.refuse("held", Some(TransportErrorKind::UnknownTopic));
    let sent = text(&request("1"));
    let held = r#"{"jsonrpc":"2.0","method":"note","params":{"_agentId":"held"}}"#;
    world.ask(Message::plain(format!("[{sent},{held}]"))).await;
    let first = world.next_request().await;
    until_counted(&world.metrics, HELD, 1).await;
    world.stop.cancel();
    sleep(Duration::from_millis(500)).await;
    assert!(world.agent.try_recv().is_none(), "it gets no cancel");
    world.answer(&first, Message::plain("{}")).await;
    assert_eq!(body(&world.reply_message().await)["id"], 1);
    within("the bridge drains", &mut world.running)
        .await
        .unwrap();
    assert!(world.agent.try_recv().is_none(), "it gets no cancel");
}

/// A request that a bus has accepted, and confirms late, and a message behind it.
struct Accepted {
    near: Memory,
    far: Memory,
    inbox: Consumer,
    request: Received,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Accepted {
    async fn new() -> Self {
        let late = FaultPlan {
            late_confirmation: 1.0,
            late_at_most: Duration::from_secs(1_000),
            ..FaultPlan::default()
        };
        let (near, far) = (Memory::default(), Memory::with_faults(1, late));
        let far_too = "{ bus: { type: memory }, far: { type: memory } }";
        let to_far = "routes: [{ name: far, when: { targetagent: slow }, to: [{ transport: far, topic: slow }] }, ";
        let config = fixed()
            .replace("{ bus: { type: memory } }", far_too)
            .replace("routes: [", to_far);
        let config = Config::read("test.yaml", &config, []).unwrap_or_else(|p| panic!("{p}"));
        let mut agent = read(&far, "slow").await;
        let inbox = read(&near, "clients.me").await;
        let refuse = |kind| far.set_refused(TopicFilter::new("slow").unwrap(), kind);
        refuse(Some(TransportErrorKind::TimedOut));
        let bridge = build(config, |name| if name == "bus" { &near } else { &far }).await;
        let (metrics, readiness) = (Arc::clone(bridge.metrics()), Arc::clone(bridge.readiness()));
        let stop = CancellationToken::new();
        let running = tokio::spawn(bridge.run(stop.clone()));
        until_ready(&readiness).await;
        let slow = Message::plain(text(&request("1")).replace("weather", "slow"));
        ask(&near, in_lane(slow)).await;
        ask(&near, in_lane(Message::plain(NOTE))).await;
        let held = r#"a2abus_held_lanes{binding="requests",kind="timed_out"}"#;
        until_counted(&metrics, held, 1).await;
        refuse(None);
        let request = receive(&mut agent, "the request, which is not confirmed yet").await;
        Self {
            near,
            far,
            inbox,
            request,
            metrics,
            stop,
            running,
        }
    }
}

const NOTE: &str = r#"{"jsonrpc":"2.0","method":"note","params":{"_agentId":"weather"}}"#;

async fn ask(bus: &Memory, message: Message) {
    let mut to = Address::topic(topic("requests"));
    to.reply_to = Some(topic("clients.me"));
    publish(bus, &to, message).await;
}

/// Its agent may answer, and what is behind it must not be read before it.
#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_a_request_that_a_bus_has_accepted_and_for_no_other_lane() {
    let mut accepted = Accepted::new().await;
    let near = accepted.near.clone();
    near.set_refused(
        TopicFilter::new("held").unwrap(),
        Some(TransportErrorKind::UnknownTopic),
    );
    for body in [NOTE.replace("weather", "held"), text(&request("2"))] {
        let key = Some("another lane".into());
        let message = Message {
            key,
            ..Message::plain(body)
        };
        ask(&near, message).await;
    }
    until_counted(&accepted.metrics, HELD, 1).await;
    until_counted(&accepted.metrics, IN_FLIGHT, 4).await;
    accepted.stop.cancel();
    until_counted(&accepted.metrics, IN_FLIGHT, 2).await;
    let next = near.subscribe(group("requests", "a2abus"));
    let mut next = next.await.unwrap();
    let left = [
        body(&receive(&mut next, "the held message").await.message)["id"].clone(),
        body(&receive(&mut next, "the request behind it").await.message)["id"].clone(),
    ];
    assert_eq!(left, [Value::Null, json!(2)]);
    // It has not failed: the next reader sends it.
    let left_calls = "a2abus_calls_total{outcome=\"left\"}";
    until_counted(&accepted.metrics, left_calls, 1).await;
    sleep(Duration::from_secs(1)).await;
    assert!(accepted.inbox.try_recv().is_none() && next.try_recv().is_none());
    until_counted(&accepted.metrics, IN_FLIGHT, 2).await;
    let reply_to = Address::topic(accepted.request.reply_to.clone().unwrap());
    let answer = accepted.far.send(&reply_to, Message::plain("{}")).await;
    let _unconfirmed = answer.unwrap();
    let answer = receive(&mut accepted.inbox, "its answer").await.message;
    assert_eq!(body(&answer)["id"], 1);
    within("the bridge drains", accepted.running).await.unwrap();
    let again = [
        body(&receive(&mut next, "the request").await.message)["id"].clone(),
        body(&receive(&mut next, "what was behind it").await.message)["id"].clone(),
    ];
    assert_eq!(again, [json!(1), Value::Null]);
}

#[tokio::test(start_paused = true)]
async fn the_timeout_of_a_request_that_its_bus_did_not_confirm_says_so() {
    let mut accepted = Accepted::new().await;
    let error = receive(&mut accepted.inbox, "the timeout").await.message;
    let why = body(&error)["error"]["message"].to_string();
    assert!(why.contains("the bus did not confirm the request"), "{why}");
    accepted.stop.cancel();
    within("the bridge drains", accepted.running).await.unwrap();
}

#[tokio::test]
async fn the_lines_about_an_answer_that_is_refused_name_its_call() {
    let (lines, _logging) = Lines::record();
    let mut world = World::new().await;
    world.refuse("clients.me", Some(TransportErrorKind::UnknownTopic));
    world.ask(request("7")).await;
    let agent_request = world.next_request().await;
    world
        .answer(&agent_request, result(&agent_request, 1))
        .await;
    receive(&mut world.dead, "the dead letter").await;
    let id = id_of(&agent_request);
    let call = format!("call={:?}", id.get(..26).unwrap());
    for line in [
        "an answer did not reach its requester",
        "a message becomes a dead letter",
    ] {
        let found = lines.of("WARN", line);
        assert_eq!(found.len(), 1, "{line}: {found:?}");
        assert!(found[0].contains(&call), "{call}: {found:?}");
    }
    world.end().await;
}
