//! Answers find their call, in every form an agent may give them, once.

use std::collections::BTreeMap;
use std::sync::Arc;

use a2abus_bridge::calls::{Answer, CallError, Calls, Part};
use a2abus_bridge::config::Config;
use a2abus_bridge::metrics::Metrics;
use a2abus_plugin::{Data, Event, Limits};
use a2abus_transports::content_mode::{self, Content, ContentMode, ProtocolBinding};
use a2abus_transports::memory::Memory;
use a2abus_transports::{Address, Consumer, Message, Topic, TopicFilter, TransportErrorKind};
use bytes::Bytes;
use support::battery::within;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::delivery::Lines;
use crate::set_up::{self, build, next, read, request, until_ready};

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

impl World {
    async fn new() -> Self {
        Self::with(CONFIG).await
    }

    pub(super) async fn with(config: &str) -> Self {
        Self::on(Memory::default(), config, "agents.weather").await
    }

    /// On a bus that others may use too, with an agent that reads this topic.
    async fn on(memory: Memory, config: &str, agent: &str) -> Self {
        let config =
            Config::read("test.yaml", config, []).unwrap_or_else(|problems| panic!("{problems}"));
        let bridge = build(config, |_| &memory).await;
        let (calls, metrics) = (Arc::clone(bridge.calls()), Arc::clone(bridge.metrics()));
        let readiness = Arc::clone(bridge.readiness());
        let stop = CancellationToken::new();
        let running = tokio::spawn(bridge.run(stop.clone()));
        let requests = read(&memory, agent).await;
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
        self.call_from("test", method).await
    }

    pub(super) async fn call_from(&self, caller: &'static str, method: &str) -> Answer {
        let payload = format!(
            r#"{{"jsonrpc":"2.0","id":1.50,"method":"{method}","params":{{"_agentId":"weather"}}}}"#
        );
        let request = request(payload, caller);
        self.calls.call(request).await.unwrap()
    }

    /// A call, and its request as the agent has it.
    async fn asked(&mut self, method: &str) -> (Answer, Received) {
        let answer = self.call(method).await;
        (answer, self.received().await)
    }

    /// Answers a request with this result at its reply address.
    async fn answer(&self, request: &Received, result: &str) {
        let message = response(&request.id, result);
        self.publish(&request.reply_to, message).await;
    }

    /// The next message that the agent reads.
    pub(super) async fn received(&mut self) -> Received {
        let message = next(&mut self.requests).await;
        let content = content_mode::read(ProtocolBinding::Memory, &message, &Limits::default());
        let Content::Event(event) = content.unwrap() else {
            panic!("not a CloudEvent")
        };
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
        set_up::publish(&self.memory, &address, message).await;
    }

    /// The value of a counter.
    pub(super) fn count(&self, series: &str) -> u64 {
        set_up::count(&self.metrics, series)
    }

    pub(super) async fn until_counted(&self, series: &str, expected: u64) {
        set_up::until_counted(&self.metrics, series, expected).await;
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
        let (mut answer, request) = world.asked("tools/call").await;
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
        let (mut answer, request) = world.asked("tools/call").await;
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
    let (mut answer, request) = world.asked("message/stream").await;
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
        world.answer(&request, result).await;
        let part = part(&mut answer).await;
        assert_eq!((part.last, body(&part).contains(result)), (last, true));
    }
    assert!(answer.next().await.is_none());
    world.end().await;
}

#[tokio::test]
async fn cloudevents_marked_stream_are_parts_and_plain_data_become_results() {
    let mut world = World::new().await;
    let (mut answer, request) = world.asked("tools/call").await;
    for (kind, data, last) in [("stream", "{\"n\":1}", false), ("response", "[2]", true)] {
        let mut event = Event::new("a".into(), "/agent".into(), "t".into()).unwrap();
        event.set("mcptype", kind).unwrap();
        event.set("callid", request.id.as_str()).unwrap();
        event.set_data(Some(Data::from(Bytes::from_static(data.as_bytes()))));
        for mode in [ContentMode::Structured] {
            world
                .publish(
                    "responses",
                    content_mode::write(ProtocolBinding::Memory, &event, mode).unwrap(),
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

/// Their only reference to the call is the id in their body.
#[tokio::test]
async fn answers_that_cannot_be_read_end_their_calls_with_the_reason() {
    let mut world = World::with(&format!("{CONFIG}limits: {{ max_bytes: 64KiB }}\n")).await;
    let large = format!("\"{}\"", "x".repeat(100 << 10));
    let too_large = "larger than the limit of 65536 bytes";
    let cases: [(&str, &[u8], &str); 8] = [
        (
            r#"{"jsonrpc":"2.0","id":"ID","result":"#,
            large.as_bytes(),
            too_large,
        ),
        (
            r#"{"result":"x","id":"ID","jsonrpc":"2.0","_":"#,
            large.as_bytes(),
            too_large,
        ),
        (
            r#"{"version":"0.1","type":"mcp/callTool/resp","req_id":"ID","result":"#,
            large.as_bytes(),
            too_large,
        ),
        (
            r#"{"request_id":"ID","status":"complete","result":"#,
            large.as_bytes(),
            too_large,
        ),
        (
            r#"{"metadata":{"correlationId":"ID"},"messageType":"INFORM","content":"#,
            large.as_bytes(),
            too_large,
        ),
        (
            r#"{"specversion":"1.0","id":"1","callid":"ID","data":"#,
            large.as_bytes(),
            too_large,
        ),
        // Copied from the event of the request: its id has no token.
        (
            r#"{"specversion":"1.0","id":"CALL","callid":"ID","data":"#,
            large.as_bytes(),
            too_large,
        ),
        // Python writes it so.
        (
            r#"{"jsonrpc":"2.0","id":"ID","result":"#,
            b"NaN",
            "expected a JSON value",
        ),
    ];
    let not_utf_8: (&str, &[u8], &str) = (
        r#"{"jsonrpc":"2.0","id":"ID","result":"#,
        b"\"\xff\"",
        "UTF-8",
    );
    // A batch of one, too.
    let cases = cases.into_iter().chain([not_utf_8]);
    for (case, is_batch) in cases.flat_map(|case| [(case, false), (case, true)]) {
        let (beginning, rest, expected) = case;
        let (mut answer, request) = world.asked("tools/call").await;
        let beginning = beginning
            .replace("ID", &request.id)
            .replace("CALL", &request.id[..26]);
        let mut body = [beginning.as_bytes(), rest, b"}"].concat();
        if is_batch {
            body = [b"[".as_slice(), &body, b"]"].concat();
        }
        world.publish("responses", Message::plain(body)).await;
        let error = answer.next().await.unwrap().unwrap_err();
        let why = error.to_string();
        assert!(why.contains(expected), "{beginning}: {why}");
    }
    let (mut answer, request) = world.asked("tools/call").await;
    let event = format!(
        r#"{{"specversion":"1.0","id":"1","source":"/a","type":"t","callid":"{}","data":NaN}}"#,
        request.id
    );
    let mut event = Message::plain(event);
    event
        .headers
        .push("content-type", "application/cloudevents+json");
    world.publish("responses", event).await;
    assert!(answer.next().await.unwrap().is_err());
    world.end().await;
}

/// One message has more parts than any caller reads meanwhile.
#[tokio::test]
async fn thousands_of_parts_at_once_reach_their_caller() {
    const PARTS: usize = 4_000;
    let mut world = World::with(&format!("{CONFIG}limits: {{ max_units: 5000 }}\n")).await;
    let (mut answer, request) = world.asked("message/stream").await;
    let part_of = |number: usize| {
        let state = if number < PARTS {
            "working"
        } else {
            "completed"
        };
        format!(
            r#"{{"jsonrpc":"2.0","id":"{}","result":{{"kind":"status-update","number":{number},"final":{},"status":{{"state":"{state}"}}}}}}"#,
            request.id,
            number == PARTS
        )
    };
    let all: Vec<_> = (1..=PARTS).map(part_of).collect();
    let batch = format!("[{}]", all.join(","));
    world.publish("responses", Message::plain(batch)).await;
    for number in 1..=PARTS {
        let part = part(&mut answer).await;
        let body = body(&part);
        assert!(body.contains(&format!(r#""number":{number},"#)), "{body}");
        assert_eq!(part.last, number == PARTS);
    }
    world.end().await;
}

/// The Python SDK of CloudEvents writes Booleans in headers as `True` and `False`.
#[tokio::test]
async fn the_last_part_is_marked_in_any_case() {
    let mut world = World::new().await;
    let (mut answer, request) = world.asked("tools/call").await;
    for (is_final, last) in [("False", false), ("FALSE", false), ("True", true)] {
        let mut event = Event::new("a".into(), "/agent".into(), "t".into()).unwrap();
        event.set("callid", request.id.as_str()).unwrap();
        event.set("isfinal", is_final).unwrap();
        event.set_data(Some(Data::from(Bytes::from_static(b"{}"))));
        let mode = ContentMode::Binary;
        let message = content_mode::write(ProtocolBinding::Memory, &event, mode).unwrap();
        world.publish("responses", message).await;
        assert_eq!(part(&mut answer).await.last, last, "{is_final}");
    }
    world.end().await;
}

#[tokio::test]
async fn a_second_answer_is_counted_and_dropped() {
    let mut world = World::new().await;
    let (mut answer, request) = world.asked("tools/call").await;
    for result in ["1", "2"] {
        world.answer(&request, result).await;
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
async fn the_log_names_the_agent_of_a_second_answer() {
    let (lines, _logging) = Lines::record();
    let mut world = World::new().await;
    let (mut answer, request) = world.asked("tools/call").await;
    for result in ["1", "2"] {
        world.answer(&request, result).await;
    }
    // The caller has not read the first answer yet.
    world
        .until_counted("a2abus_replies_total{outcome=\"late\"}", 1)
        .await;
    let logged = lines.of("WARN", "an answer reached no caller");
    assert!(logged[0].contains(r#"agent="weather""#), "{logged:?}");
    assert!(body(&part(&mut answer).await).ends_with("\"result\":1}"));
    world.end().await;
}

#[tokio::test]
async fn any_message_to_a_reply_address_answers_the_call() {
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
        let (mut answer, request) = world.asked("tools/call").await;
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
        let (mut answer, request) = world.asked("tools/call").await;
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

fn e2a_record(id: &str, members: &str) -> Message {
    Message::plain(format!(
        r#"{{"protocol_version":"1.0","request_id":"{id}",{members}}}"#
    ))
}

#[tokio::test]
async fn a_push_of_an_e2a_agent_ends_no_call_where_the_binding_trusts_it() {
    const PUSH: &str = r#""response_kind":"cron","sequence":0,"is_final":true,"status":"succeeded","body":{"action":"add"},"metadata":{"_jiuwenswarm_server_push":true}"#;
    const ANSWER: &str = r#""response_kind":"e2a.complete","sequence":0,"is_final":true,"status":"succeeded","body":{"result":{"n":1}}"#;
    let answered = r#"{"n":1}"#;
    let pushed = r#"{"response_kind":"cron","body":{"action":"add"}}"#;
    for (settings, topic, result) in [
        (", protocol: e2a", "responses", answered),
        (", mapping: { e2a_trusted: true }", "responses", answered),
        ("", "responses", pushed),
        (", protocol: e2a", "replyto", pushed),
    ] {
        let topics = "topics: [responses]";
        let config = CONFIG.replace(topics, &format!("{topics}{settings}"));
        let mut world = World::with(&config).await;
        let (mut answer, request) = world.asked("tools/call").await;
        let topic = if topic == "replyto" {
            &request.reply_to
        } else {
            topic
        };
        for record in [PUSH, ANSWER] {
            world.publish(topic, e2a_record(&request.id, record)).await;
        }
        assert_eq!(
            body(&part(&mut answer).await),
            format!(r#"{{"jsonrpc":"2.0","id":1.50,"result":{result}}}"#),
            "{settings} {topic}"
        );
        world.end().await;
    }
}

#[tokio::test]
async fn half_a_surrogate_pair_in_an_e2a_record_does_not_fail_the_call() {
    let mut world = World::new().await;
    let (mut answer, request) = world.asked("tools/call").await;
    for record in [
        r#""response_kind":"e2a.chunk","sequence":0,"is_final":false,"body":{"delta_kind":"text","delta":"ok \ud83d"}"#,
        r#""response_kind":"e2a.complete","sequence":1,"is_final":true,"status":"succeeded","body":{}"#,
    ] {
        let record = e2a_record(&request.id, record);
        world.publish(&request.reply_to, record).await;
    }
    assert_eq!(
        body(&part(&mut answer).await),
        "{\"jsonrpc\":\"2.0\",\"id\":1.50,\"result\":{\"content\":\"ok \u{fffd}\"}}"
    );
    world.end().await;
}

#[tokio::test]
async fn an_answer_without_a_call_on_a_response_topic_is_a_dead_letter() {
    let world = World::new().await;
    let mut dead = read(&world.memory, "a2abus.dlq").await;
    world.publish("responses", response("7", "1")).await;
    let dlq_message = next(&mut dead).await;
    let reason = dlq_message.headers.get("bus-dlq-reason").unwrap();
    assert_eq!(reason, "uncorrelated");
    world.end().await;
}

#[tokio::test]
async fn an_answer_that_breaks_the_rules_of_json_rpc_fails_its_call_at_once() {
    let mut world = World::new().await;
    for broken in [
        r#"{"jsonrpc":"2.0","id":"ID","result":1,"error":{"code":1,"message":"m"}}"#,
        r#"{"jsonrpc":"2.0","id":"ID"}"#,
        r#"{"jsonrpc":"2.0","id":"ID","error":"no object"}"#,
        r#"[{"jsonrpc":"2.0","id":7,"result":1},{"jsonrpc":"2.0","id":"ID"}]"#,
    ] {
        let (mut answer, request) = world.asked("tools/call").await;
        let broken = broken.replace("ID", &request.id);
        world.publish("responses", Message::plain(broken)).await;
        let error = within("the failure", answer.next()).await.unwrap();
        assert!(matches!(error, Err(CallError::BadAnswer(_))), "{error:?}");
    }
    // Without the token it fails nothing.
    let (mut answer, request) = world.asked("tools/call").await;
    let forged = format!(r#"{{"jsonrpc":"2.0","id":"{}"}}"#, &request.id[..26]);
    world.publish("responses", Message::plain(forged)).await;
    let forged = r#"a2abus_replies_total{outcome="forged"}"#;
    world.until_counted(forged, 1).await;
    world.publish("responses", response(&request.id, "1")).await;
    part(&mut answer).await;
    world.end().await;
}

#[tokio::test]
async fn a_bus_that_breaks_fails_its_calls_at_once_with_the_cause() {
    let mut world = World::new().await;
    let mut sent = world.call("tools/call").await;
    world.received().await;
    let agents = TopicFilter::new("agents.>").unwrap();
    world
        .memory
        .set_refused(agents, Some(TransportErrorKind::TimedOut));
    let mut unsent = world.call("tools/call").await;
    world.memory.set_down("the cable is out");
    let cause = || "the cable is out".into();
    for (answer, expected) in [
        // The agent may be at work on it.
        (&mut sent, CallError::AnswerLost(cause())),
        (&mut unsent, CallError::Unavailable(cause())),
    ] {
        let error = within("the failure", answer.next()).await.unwrap();
        assert_eq!(error.unwrap_err(), expected);
    }
    world.memory.set_up();
    world.end().await;
}

#[tokio::test]
async fn a_short_interruption_of_a_bus_fails_only_the_calls_whose_answers_have_parts() {
    let mut world = World::new().await;
    let (mut whole, request) = world.asked("tools/call").await;
    let mut stream = world.call("message/stream").await;
    world.received().await;
    world.memory.set_down("the cable is out");
    // A part might be lost, and nobody would notice.
    let error = within("the failure", stream.next()).await.unwrap();
    let expected = CallError::AnswerLost("the cable is out".into());
    assert_eq!(error.unwrap_err(), expected);
    world.memory.set_up();
    world.answer(&request, "1").await;
    part(&mut whole).await;
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_without_an_answer_ends_at_its_deadline_and_the_agent_gets_a_cancel() {
    let mut world = World::new().await;
    let (mut answer, request) = world.asked("tools/call").await;
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
async fn a_disconnected_caller_cancels_the_task_of_its_stream() {
    let mut world = World::new().await;
    let (mut answer, request) = world.asked("message/stream").await;
    let working =
        r#"{"kind":"status-update","taskId":"t-9","status":{"state":"working"},"final":false}"#;
    world.answer(&request, working).await;
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

/// An agent may answer several calls with one array.
fn batch(answers: &[(&str, &str)]) -> Message {
    let one = |(id, result): &(&str, &str)| {
        format!(r#"{{"jsonrpc":"2.0","id":"{id}","result":"{result}"}}"#)
    };
    let all: Vec<String> = answers.iter().map(one).collect();
    Message::plain(format!("[{}]", all.join(",")))
}

#[tokio::test]
async fn each_answer_of_a_batch_reaches_its_own_caller_whichever_replica_made_the_call() {
    let memory = Memory::default();
    let mut first = World::on(memory.clone(), CONFIG, "agents.weather").await;
    let others = CONFIG.replace("agents.{targetagent}", "others.{targetagent}");
    let mut second = World::on(memory, &others, "others.weather").await;
    let (mut answers, mut ids) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        for world in [&mut first, &mut second] {
            answers.push(world.call("tools/call").await);
            ids.push(world.received().await.id);
        }
    }
    let texts = ["of 0", "of 1", "of 2", "of 3"];
    let results: Vec<(&str, &str)> = ids.iter().map(String::as_str).zip(texts).collect();
    first.publish("responses", batch(&results)).await;
    for (answer, text) in answers.iter_mut().zip(texts) {
        let expected = format!(r#"{{"jsonrpc":"2.0","id":1.50,"result":"{text}"}}"#);
        assert_eq!(body(&part(answer).await), expected);
    }
    first.end().await;
    second.end().await;
}

#[tokio::test]
async fn a_batch_at_the_reply_address_of_one_call_may_answer_others() {
    let mut world = World::new().await;
    let (mut answers, mut requests) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        answers.push(world.call("tools/call").await);
        requests.push(world.received().await);
    }
    let results = [
        (requests[1].id.as_str(), "of 1"),
        (requests[0].id.as_str(), "of 0"),
    ];
    world.publish(&requests[0].reply_to, batch(&results)).await;
    for (answer, text) in answers.iter_mut().zip(["of 0", "of 1"]) {
        let expected = format!(r#"{{"jsonrpc":"2.0","id":1.50,"result":"{text}"}}"#);
        assert_eq!(body(&part(answer).await), expected);
    }
    world.end().await;
}

#[tokio::test]
async fn an_answer_is_sent_on_once() {
    let world = World::new().await;
    let mut forwarded = read(&world.memory, "a2abus.replies.>").await;
    // A call of a replica that is not here.
    world
        .publish("responses", response("aaoiv7hbl4ji3r5ld5gknniz2m", "1"))
        .await;
    let message = next(&mut forwarded).await;
    let header = |name| message.headers.get(name).unwrap();
    assert_eq!(header("bus-forwards"), "1");
    let from = String::from_utf8_lossy(header("bus-forwarded-from"));
    assert!(from.starts_with("m:responses/"), "{from}");
    assert!(from.contains("/0@") && from.ends_with("#0"), "{from}");
    // It comes back, as it does when two replicas disagree about where it belongs.
    world.publish("responses", message).await;
    world
        .until_counted(r#"a2abus_replies_total{outcome="looped"}"#, 1)
        .await;
    assert_eq!(
        world.count(r#"a2abus_replies_total{outcome="forwarded"}"#),
        1
    );
    world.end().await;
}

/// A replica that takes over a partition reads again what its predecessor had not committed.
#[tokio::test]
async fn a_record_that_is_forwarded_again_reaches_its_caller_once() {
    let mut world = World::new().await;
    let (mut answer, request) = world.asked("message/stream").await;
    let update = |text: &str| {
        format!(
            r#"{{"kind":"artifact-update","taskId":"t","artifact":{{"artifactId":"a","parts":[{{"kind":"text","text":"{text}"}}]}}}}"#
        )
    };
    let ended =
        r#"{"kind":"status-update","taskId":"t","status":{"state":"completed"},"final":true}"#;
    let records = [
        (update("one"), "k:responses/0/7#0", true),
        (update("two"), "k:responses/0/9#0", true),
        (update("one"), "k:responses/0/7#0", false),
        (update("two"), "k:responses/0/9#0", false),
        // It was overtaken.
        (update("three"), "k:responses/0/8#0", true),
        (update("four"), "k:responses/1/8#0", true),
        (ended.to_owned(), "k:responses/0/10#0", true),
    ];
    let mut repeated = 0;
    for (result, from, is_new) in &records {
        let mut forwarded = response(&request.id, result);
        forwarded.headers.push("bus-forwards", "1");
        forwarded.headers.push("bus-forwarded-from", *from);
        world.publish(&request.reply_to, forwarded).await;
        if *is_new {
            let part = part(&mut answer).await;
            assert!(body(&part).contains(result), "{result}: {}", body(&part));
        } else {
            repeated += 1;
            world
                .until_counted(r#"a2abus_replies_total{outcome="repeated"}"#, repeated)
                .await;
        }
    }
    assert!(answer.next().await.is_none());
    world.end().await;
}

/// It is larger than an answer may be, or than the bus accepts once it is forwarded.
#[tokio::test]
async fn an_answer_that_cannot_be_forwarded_ends_its_call_with_the_reason() {
    const LARGEST: usize = 1 << 20;
    let memory = Memory::default();
    let first = World::on(memory.clone(), CONFIG, "agents.weather").await;
    let reader = "  - { name: responses, role: responses, transport: bus, topics: [responses] }\n";
    let config = CONFIG.replace(reader, "");
    let config = config.replace("agents.{targetagent}", "others.{targetagent}");
    let mut second = World::on(memory, &config, "others.weather").await;
    let large = |id: &str| response(id, &format!("\"{}\"", "x".repeat(1_000_000)));
    let full = |id: &str| {
        let mut message = response(id, &format!("\"{}\"", "x".repeat(900_000)));
        let used = "pad".len() + message.body.as_ref().unwrap().len();
        message.headers.push("pad", "x".repeat(LARGEST - used));
        message
    };
    let too_large = "larger than the limit of 983040 bytes (limits.max_bytes)";
    let refused = "it cannot be passed on to the replica of the call: send a message of ";
    for expected in [too_large, refused] {
        let (mut answer, request) = second.asked("tools/call").await;
        let message = match expected == refused {
            true => full(&request.id),
            false => large(&request.id),
        };
        first.publish("responses", message).await;
        let error = within("the error", answer.next()).await.unwrap();
        let why = error.unwrap_err().to_string();
        assert!(why.contains(expected), "{why}");
    }
    first.end().await;
    second.end().await;
}

#[tokio::test]
async fn the_request_itself_is_not_an_answer_even_if_its_route_converts_it() {
    let config = CONFIG.replace(
        "'agents.{targetagent}' }]",
        "'agents.{targetagent}' }], convert: envelope_from_jsonrpc_request",
    );
    let mut world = World::with(&config).await;
    let (mut answer, request) = world.asked("session/prompt").await;
    assert!(!String::from_utf8_lossy(&request.event.body()).contains("jsonrpc\":"));
    let echo =
        content_mode::write(ProtocolBinding::Memory, &request.event, ContentMode::Binary).unwrap();
    world.publish(&request.reply_to, echo).await;
    world
        .until_counted(r#"a2abus_replies_total{outcome="unknown"}"#, 1)
        .await;
    world.publish(&request.reply_to, Message::plain("7")).await;
    assert!(body(&part(&mut answer).await).ends_with("\"result\":7}"));
    world.end().await;
}

/// The log says once that an answer names these calls, without their tokens.
fn names_two_calls(lines: &Lines, ids: [&str; 2]) {
    let found = lines.of("WARN", "an answer names two calls");
    assert_eq!(found.len(), 1, "{found:?}");
    for id in ids {
        let (call, token) = id.split_at(26);
        assert!(found[0].contains(call) && !found[0].contains(token));
    }
}

#[tokio::test]
async fn an_answer_whose_body_names_another_call_is_logged_with_both() {
    let (lines, _logging) = Lines::record();
    let mut world = World::new().await;
    let (mut first, to_first) = world.asked("tools/call").await;
    let (mut second, to_second) = world.asked("tools/call").await;
    // The subject comes first.
    let confused = response(&to_second.id, "1");
    world.publish(&to_first.reply_to, confused).await;
    let expected = r#"{"jsonrpc":"2.0","id":1.50,"result":1}"#;
    assert_eq!(body(&part(&mut first).await), expected);
    world.answer(&to_second, "2").await;
    let expected = r#"{"jsonrpc":"2.0","id":1.50,"result":2}"#;
    assert_eq!(body(&part(&mut second).await), expected);
    names_two_calls(&lines, [&to_first.id, &to_second.id]);
    world.end().await;
}

#[tokio::test]
async fn an_answer_whose_header_and_subject_name_two_calls_is_logged_with_both() {
    let (lines, _logging) = Lines::record();
    let mut world = World::new().await;
    let (mut first, to_first) = world.asked("tools/call").await;
    let (mut second, to_second) = world.asked("tools/call").await;
    // The header comes first.
    let mut confused = Message::plain("1");
    confused
        .headers
        .push("kafka_correlationId", to_first.id.clone());
    world.publish(&to_second.reply_to, confused).await;
    let expected = r#"{"jsonrpc":"2.0","id":1.50,"result":1}"#;
    assert_eq!(body(&part(&mut first).await), expected);
    let mut own = Message::plain("2");
    own.headers
        .push("kafka_correlationId", to_second.id.clone());
    world.publish(&to_second.reply_to, own).await;
    let expected = r#"{"jsonrpc":"2.0","id":1.50,"result":2}"#;
    assert_eq!(body(&part(&mut second).await), expected);
    names_two_calls(&lines, [&to_first.id, &to_second.id]);
    world.end().await;
}

#[tokio::test]
async fn a_caller_without_an_answer_learns_that_one_was_rejected() {
    let mut world = World::new().await;
    let mut counts = BTreeMap::new();
    for (outcome, cut, cause) in [
        ("shortened", 32, "the id that it repeats was shortened"),
        ("shortened", 51, "the id that it repeats was shortened"),
        ("forged", 26, "it has no reply token"),
        // Two bits of the last character are always zero.
        ("forged", 52, "its reply token is not the one of the call"),
    ] {
        let (mut answer, request) = world.asked("tools/call").await;
        let mut id = request.id[..cut].to_owned();
        if cut == 52 {
            id.replace_range(51.., "b");
        }
        world.publish("responses", response(&id, "1")).await;
        let count = counts.entry(outcome).or_insert(0);
        *count += 1;
        let series = format!("a2abus_replies_total{{outcome=\"{outcome}\"}}");
        world.until_counted(&series, *count).await;
        tokio::time::pause();
        let Some(Err(error @ CallError::Timeout(_))) = answer.next().await else {
            panic!("{cut}: no timeout");
        };
        tokio::time::resume();
        let error = error.to_string();
        let expected = format!("an answer came but was rejected: {cause}");
        assert!(error.ends_with(&expected), "{error}");
        assert!(!error.contains(&request.id[26..]), "{error}");
        // The cancel.
        world.received().await;
    }
    world.end().await;
}

/// An agent that ignores headers answers every request on one topic, also a `tasks/cancel` of the bridge.
#[tokio::test]
async fn the_answer_to_a_cancel_is_no_dead_letter() {
    let mut world = World::new().await;
    let mut dead = read(&world.memory, "a2abus.dlq").await;
    let (answer, request) = world.asked("tools/call").await;
    drop(answer);
    // The cancel.
    world.received().await;
    let of_cancel = format!("cancel-{}", request.id);
    world.publish("responses", response(&of_cancel, "{}")).await;
    world
        .until_counted(r#"a2abus_replies_total{outcome="late"}"#, 1)
        .await;
    world.publish("responses", response("7", "{}")).await;
    let first = next(&mut dead).await;
    let first = String::from_utf8_lossy(first.body.as_ref().unwrap()).into_owned();
    assert!(first.contains(r#""id":"7""#), "{first}");
    world.end().await;
}

#[tokio::test]
async fn an_answer_with_the_headers_of_its_request_is_not_a_new_request() {
    let mut world = World::new().await;
    let mut dead = read(&world.memory, "a2abus.dlq").await;
    let (mut answer, request) = world.asked("tools/call").await;
    let event_with = |body: String| {
        let mut event = request.event.clone();
        event.set_data(Some(Data::from(Bytes::from(body))));
        content_mode::write(ProtocolBinding::Memory, &event, ContentMode::Binary).unwrap()
    };
    let result = format!(r#"{{"jsonrpc":"2.0","id":"{}","result":1}}"#, request.id);
    for (count, body) in [result, r#"{"celsius":-3}"#.to_owned()]
        .into_iter()
        .enumerate()
    {
        world.publish("events", event_with(body)).await;
        let dlq_message = next(&mut dead).await;
        let reason = dlq_message.headers.get("bus-dlq-reason").unwrap();
        assert_eq!(reason, "answer_on_request_topic");
        // Whoever reads dead letters cannot answer the call.
        let text = format!("{dlq_message:?}");
        let (call, token) = request.id.split_at(26);
        assert!(text.contains(call) && !text.contains(token), "{text}");
        let misplaced = r#"a2abus_replies_total{outcome="misplaced"}"#;
        world.until_counted(misplaced, count as u64 + 1).await;
    }
    // The request itself may take another turn through the bridge.
    world
        .publish(
            "events",
            content_mode::write(ProtocolBinding::Memory, &request.event, ContentMode::Binary)
                .unwrap(),
        )
        .await;
    let again = world.received().await;
    assert_ne!(again.id, request.id);
    world.answer(&again, "2").await;
    assert!(body(&part(&mut answer).await).ends_with("\"result\":2}"));
    world.end().await;
}

#[tokio::test]
async fn an_answer_without_headers_on_a_request_topic_is_named_if_no_route_takes_it() {
    let mut world = World::new().await;
    let mut dead = read(&world.memory, "a2abus.dlq").await;
    let (mut answer, request) = world.asked("tools/call").await;
    for (id, expected) in [
        (request.id.as_str(), "answer_on_request_topic"),
        ("7", "no_route"),
    ] {
        world.publish("events", response(id, "1")).await;
        let dlq_message = next(&mut dead).await;
        let reason = dlq_message.headers.get("bus-dlq-reason").unwrap();
        assert_eq!(reason, expected);
    }
    world.answer(&request, "2").await;
    assert!(body(&part(&mut answer).await).ends_with("\"result\":2}"));
    world.end().await;
}

#[tokio::test]
async fn a_route_for_answers_takes_them() {
    let for_answers = "routes: [{ name: answers, when: { mcptype: response }, to: [{ transport: bus, topic: answers }] }, ";
    let config = CONFIG.replace("routes: [", for_answers);
    let mut world = World::with(&config).await;
    let mut answers = read(&world.memory, "answers").await;
    let (answer, request) = world.asked("tools/call").await;
    world.publish("events", response(&request.id, "1")).await;
    within("the copy", answers.recv()).await.unwrap();
    drop(answer);
    world.end().await;
}

#[tokio::test]
async fn an_answer_that_there_is_no_memory_for_is_lost_and_its_request_is_not_refused() {
    let config = format!("{CONFIG}calls: {{ budget_bytes: 1MiB }}\n");
    let mut world = World::with(&config).await;
    // One client may use half of it.
    let mut answer = world.call_from("10.0.0.1", "tools/call").await;
    let request = world.received().await;
    let large = format!("\"{}\"", "x".repeat(600 << 10));
    world.answer(&request, &large).await;
    let error = within("the failure", answer.next()).await.unwrap();
    assert_eq!(error.unwrap_err(), CallError::AnswerDropped);
    world.end().await;
}

#[tokio::test]
async fn e2a_records_without_a_sequence_arrive_in_order_and_duplicates_are_counted() {
    let chunk = |more: &str| {
        format!(
            r#""response_kind":"e2a.chunk","is_final":false,"body":{{"delta_kind":"text","delta":"a"}}{more}"#
        )
    };
    let last = |more: &str| {
        format!(r#""response_kind":"e2a.complete","is_final":true,"status":"succeeded"{more}"#)
    };
    let (first, second) = (r#","sequence":0"#, r#","sequence":1"#);
    let mut world = World::new().await;
    for [one, two, end] in [
        ["", "", ""],
        [first, second, ""],
        [first, second, r#","sequence":null"#],
    ] {
        let (mut answer, request) = world.asked("tools/call").await;
        for record in [chunk(one), chunk(two), last(end)] {
            let record = e2a_record(&request.id, &record);
            world.publish(&request.reply_to, record).await;
        }
        assert!(body(&part(&mut answer).await).contains(r#"{"content":"aa"}"#));
    }
    let duplicates = r#"a2abus_replies_total{outcome="duplicate"}"#;
    assert_eq!(world.count(duplicates), 0);
    // The call waits for its end.
    let (mut answer, request) = world.asked("tools/call").await;
    for record in [chunk(first), last(first), last(second)] {
        let record = e2a_record(&request.id, &record);
        world.publish(&request.reply_to, record).await;
    }
    assert!(body(&part(&mut answer).await).contains(r#"{"content":"a"}"#));
    assert_eq!(world.count(duplicates), 1);
    world.end().await;
}
