//! Where answers and progress go, and where no request can make them go.

use a2abus_transports::{Address, Consumer, Message, Topic};
use serde_json::json;

use super::{INBOX, ReplyEvent, World, event, publish, wait, workflow};
use crate::set_up::{self, body, next, read};

const EXECUTE: (&str, &str) = ("a2amethod", "workflows/execute");
const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Makes a request that names an address for its answer, or for progress.
type Naming = fn(&str) -> Message;

/// The replies, up to the answer.
async fn reply_read(consumer: &mut Consumer) -> Vec<ReplyEvent> {
    let mut reply_read = Vec::new();
    loop {
        reply_read.push(ReplyEvent::of(&next(consumer).await));
        if reply_read.last().is_some_and(ReplyEvent::is_answer) {
            return reply_read;
        }
    }
}

/// Sends a request as a NATS client does, with an inbox of its own.
async fn request(world: &World, inbox: &str, message: Message) {
    let address = Address {
        reply_to: Some(Topic::new(inbox.to_owned()).unwrap()),
        ..Address::topic(Topic::new(INBOX.to_owned()).unwrap())
    };
    set_up::publish(&world.memory, &address, message).await;
}

fn lines(execution: &str) -> String {
    workflow(execution, &[("w", wait(1))])
}

fn call(execution: &str) -> String {
    let params = json!({"_agentId": "a2e-executor", "workflow": lines(execution)});
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "workflows/execute", "params": params});
    call.to_string()
}

#[tokio::test]
async fn a_requester_with_an_inbox_gets_the_result_as_its_only_reply() {
    let world = World::new().await;
    let mut inbox = read(&world.memory, "_INBOX.>").await;
    for execution in ["e-1", "e-2"] {
        request(&world, "_INBOX.me", Message::plain(lines(execution))).await;
        let reply = ReplyEvent::of(&next(&mut inbox).await);
        assert_eq!(reply.ty, "a2e.execution.resp");
        assert_eq!(reply.data["execution_id"], execution);
        assert_eq!(reply.data["status"], "success");
        // Earlier events are counted, but are not sent to this address.
        assert_eq!(reply.attribute("seq"), "3");
    }
    let mut keyed = Message::plain(call("e-3"));
    keyed.key = Some("mine".into());
    request(&world, "_INBOX.me", keyed).await;
    let answer = next(&mut inbox).await;
    assert_eq!(answer.key.as_deref(), Some(&b"mine"[..]));
    let header = |name: &str| answer.headers.get(name).map(|value| &value[..]);
    assert_eq!(header("ce_collaborationid"), Some(&b"7"[..]));
    assert_eq!(header("ce_a2amethod"), None);
    let reply = body(&answer);
    assert_eq!(reply["id"], 7);
    assert_eq!(reply["result"]["status"], "success", "{reply}");
    world.end().await;
}

#[tokio::test]
async fn a_requester_that_sends_no_workflow_gets_the_reason_at_once() {
    let mut world = World::new().await;
    let mut inbox = read(&world.memory, "_INBOX.>").await;
    let other = [EXECUTE, ("targetagent", "weather")];
    let cases = [
        (Message::plain("hello"), "not_json"),
        (Message::plain("{}"), "unknown"),
        (event("1", &[], "{}"), "not_a_workflow"),
        (event("2", &other, "{}"), "other_agent"),
    ];
    for (message, reason) in cases {
        request(&world, "_INBOX.me", message).await;
        let reply = ReplyEvent::of(&next(&mut inbox).await);
        assert!(reply.is_answer(), "{reply:?}");
        assert!(
            reply.data.to_string().contains(reason),
            "{reason}: {reply:?}"
        );
        let dlq_message = world.dead_letter().await;
        assert_eq!(dlq_message.headers.get("bus-dlq-reason").unwrap(), reason);
    }
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": "workflows/execute", "params": {"_agentId": "weather"}});
    request(&world, "_INBOX.me", Message::plain(call.to_string())).await;
    let reply = body(&next(&mut inbox).await);
    assert_eq!(
        (&reply["id"], reply["error"].is_object()),
        (&json!(7), true)
    );
    let error = reply["error"].to_string();
    for text in ["weather", "a2e-executor", "_agentId"] {
        assert!(error.contains(text), "{text}: {error}");
    }
    // Nobody waits for an answer to an answer.
    let answer = event("3", &[EXECUTE, ("mcptype", "response")], "{}");
    request(&world, "_INBOX.me", answer).await;
    request(&world, "_INBOX.me", Message::plain(lines("e-1"))).await;
    let reply = ReplyEvent::of(&next(&mut inbox).await);
    assert_eq!(reply.data["status"], "success", "{reply:?}");
    world.end().await;
}

#[tokio::test]
async fn a_record_with_a_reply_topic_is_answered_once_there() {
    let world = World::with("run_as: reporter, reply_topics: ['inbox.*']", "").await;
    let mut inbox = read(&world.memory, "inbox.7").await;
    let attributes = [EXECUTE, ("replyto", "inbox.7"), ("callid", "call-7")];
    let mut message = event("1", &attributes, &lines("e-1"));
    message.headers.put("traceparent", TRACE);
    world.publish(message).await;
    let answer = ReplyEvent::of(&next(&mut inbox).await);
    assert!(answer.is_answer(), "{answer:?}");
    assert_eq!(answer.data["status"], "success");
    assert_eq!(answer.attribute("callid"), "call-7");
    assert_eq!(answer.trace.as_deref(), Some(TRACE.as_bytes()));

    let mut message = Message::plain(lines("e-2"));
    message.headers.put("kafka_replyTopic", "inbox.7");
    message.headers.put("kafka_correlationId", "c-7");
    world.publish(message).await;
    let answer = next(&mut inbox).await;
    assert_eq!(answer.headers.get("kafka_correlationId").unwrap(), "c-7");
    assert_eq!(ReplyEvent::of(&answer).data["execution_id"], "e-2");
    world.end().await;
}

#[tokio::test]
async fn a_call_that_is_answered_by_the_routes_gets_only_its_response() {
    let mut world = World::new().await;
    world.publish(Message::plain(call("e-1"))).await;
    let reply_event = world.until_answer().await;
    assert_eq!(reply_event.len(), 1, "{reply_event:?}");
    assert_eq!(reply_event[0].data["result"]["status"], "success");
    world.end().await;
}

#[tokio::test]
async fn progress_goes_to_the_address_in_the_request() {
    let world = World::with("run_as: reporter, reply_topics: [desk, news]", "").await;
    let mut desk = read(&world.memory, "desk").await;
    let mut progress = read(&world.memory, "news").await;
    let mut inbox = read(&world.memory, "_INBOX.>").await;

    let places = [EXECUTE, ("replyto", "desk"), ("progressto", "news")];
    world.publish(event("1", &places, &lines("e-1"))).await;
    let output: Vec<String> = [
        next(&mut progress).await,
        next(&mut progress).await,
        next(&mut progress).await,
    ]
    .iter()
    .map(|message| ReplyEvent::of(message).ty)
    .collect();
    let progress = "a2e.operation.progress";
    assert_eq!(output, ["a2e.execution.started", progress, progress]);
    assert!(ReplyEvent::of(&next(&mut desk).await).is_answer());

    // Progress can go to the reply address too, before the answer.
    let places = [EXECUTE, ("replyto", "desk"), ("progressto", "desk")];
    world.publish(event("2", &places, &lines("e-2"))).await;
    assert_eq!(reply_read(&mut desk).await.len(), 4);

    // Plain lines name both in headers.
    for (number, prefix) in ["", "ce_", "ce-"].into_iter().enumerate() {
        let mut message = Message::plain(lines(&format!("e-plain-{number}")));
        for name in ["replyto", "progressto"] {
            message.headers.push(format!("{prefix}{name}"), "desk");
        }
        world.publish(message).await;
        assert_eq!(reply_read(&mut desk).await.len(), 4, "{prefix}");
    }

    // So does a client of NATS that listens to its inbox, with plain lines.
    let mut message = Message::plain(lines("e-3"));
    message.headers.put("progressto", "_INBOX.me");
    request(&world, "_INBOX.me", message).await;
    assert_eq!(reply_read(&mut inbox).await.len(), 4);
    world.end().await;
}

/// The same headers that name the address for the result.
#[tokio::test]
async fn the_reason_goes_to_the_address_in_the_headers_of_lines_that_cannot_be_read() {
    let mut world = World::with("run_as: reporter, reply_topics: [desk]", "").await;
    let mut desk = read(&world.memory, "desk").await;
    for prefix in ["", "ce_", "ce-"] {
        for (body, reason) in [("hello", "not_json"), (r#"{"a":1}"#, "unknown")] {
            let mut message = Message::plain(body);
            message.headers.push(format!("{prefix}replyto"), "desk");
            world.publish(message).await;
            let reply = ReplyEvent::of(&next(&mut desk).await);
            assert!(reply.is_answer(), "{prefix}: {reply:?}");
            let data = reply.data.to_string();
            assert!(data.contains(reason), "{prefix}: {data}");
            let dead_letter = world.dead_letter().await;
            assert_eq!(dead_letter.headers.get("bus-dlq-reason").unwrap(), reason);
        }
    }
    world.end().await;
}

/// On an event, the header may be that of another program.
#[tokio::test]
async fn only_plain_lines_name_an_address_in_a_header_without_a_prefix() {
    let mut world = World::with("run_as: reporter, reply_topics: [desk]", "").await;
    let mut desk = read(&world.memory, "desk").await;
    let events = [
        (
            r#"{"specversion":"2.0","id":"1","source":"/s","type":"t"}"#,
            "unsupported_version",
        ),
        (r#"{"specversion":"1.0","id":"1","#, "not_json"),
        (r#"{"specversion":"1.0","id":"1"}"#, "unknown"),
    ];
    for (body, reason) in events {
        let mut message = Message::plain(body);
        message.headers.push("replyto", "desk");
        world.publish(message).await;
        let dead_letter = world.dead_letter().await;
        assert_eq!(dead_letter.headers.get("bus-dlq-reason").unwrap(), reason);
    }
    let settled = "a2abus_settled_total{binding=\"work\"}";
    world.until_counted(settled, 3).await;
    publish(&world.memory, "desk", Message::plain("the first")).await;
    assert_eq!(next(&mut desk).await.body.unwrap(), "the first");
    world.end().await;
}

#[tokio::test]
async fn progress_has_a_topic_of_the_binding() {
    let world = World::with("run_as: reporter, progress: news", "").await;
    let mut progress = read(&world.memory, "news").await;
    let mut inbox = read(&world.memory, "_INBOX.>").await;
    request(&world, "_INBOX.me", Message::plain(lines("e-1"))).await;
    assert_eq!(
        ReplyEvent::of(&next(&mut progress).await).ty,
        "a2e.execution.started"
    );
    assert!(ReplyEvent::of(&next(&mut inbox).await).is_answer());
    world.end().await;
}

#[tokio::test]
async fn a_request_cannot_choose_where_the_bridge_publishes() {
    let mut world = World::with("run_as: reporter, reply_topics: [desk, '*.public']", "").await;
    let named: [(&str, Naming); 4] = [
        ("replyto", |name| {
            event("1", &[EXECUTE, ("replyto", name)], &lines("e-1"))
        }),
        ("progressto", |name| {
            event("1", &[EXECUTE, ("progressto", name)], &lines("e-1"))
        }),
        ("kafka_replyTopic", |name| {
            let mut message = Message::plain(call("e-1"));
            let name = bytes::Bytes::copy_from_slice(name.as_bytes());
            message.headers.put("kafka_replyTopic", name);
            message
        }),
        // Nor by a message that is refused for another reason.
        ("replyto of nonsense", |name| {
            let nonsense = r#"{"jsonrpc":"2.0","id":1,"method":"workflows/dance"}"#;
            event("1", &[("replyto", name)], nonsense)
        }),
    ];
    for victim in ["agents.weather", "dead", "_INBOX.you", "__consumer_offsets"] {
        let mut reader = read(&world.memory, victim).await;
        for (how, message) in named {
            world.publish(message(victim)).await;
            let dlq_message = world.dead_letter().await;
            let reason = dlq_message.headers.get("bus-dlq-reason").unwrap();
            assert_eq!(reason, "reply_topic_refused", "{how}: {victim}");
            let detail = dlq_message.headers.get("bus-dlq-detail").unwrap();
            let detail = std::str::from_utf8(detail).unwrap();
            assert!(detail.contains(victim), "{detail}");
            let cure = if victim.starts_with('_') {
                "begins with '_'"
            } else {
                "reply_topics"
            };
            assert!(detail.contains(cure), "{detail}");
        }
        // Nothing but the letters themselves was published there.
        publish(&world.memory, victim, Message::plain("the first")).await;
        let dlq_messages = if victim == "dead" { named.len() } else { 0 };
        for _ in 0..dlq_messages {
            let dlq_message = next(&mut reader).await;
            assert!(dlq_message.headers.get("bus-dlq-reason").is_some());
        }
        assert_eq!(next(&mut reader).await.body.unwrap(), "the first");
        if victim == "dead" {
            world.dead_letter().await;
        }
    }
    let refused = "a2abus_dead_lettered_total{binding=\"work\",reason=\"reply_topic_refused\"}";
    assert_eq!(world.count(refused), 16);
    let executions = "a2abus_workflow_executions_started_total";
    assert_eq!(world.count(executions), 0, "nothing ran");
    world.end().await;
}

#[tokio::test]
async fn the_inbox_of_a_requester_gets_the_refusal_of_the_reply_address() {
    let mut world = World::new().await;
    let mut inbox = read(&world.memory, "_INBOX.>").await;
    let message = event(
        "1",
        &[EXECUTE, ("replyto", "agents.weather")],
        &lines("e-1"),
    );
    request(&world, "_INBOX.me", message).await;
    let reply = ReplyEvent::of(&next(&mut inbox).await);
    assert_eq!(reply.data["error"]["code"], "reply_topic_refused");
    let dlq_message = world.dead_letter().await;
    assert_eq!(
        dlq_message.headers.get("bus-dlq-reason").unwrap(),
        "reply_topic_refused"
    );
    world.end().await;
}

#[tokio::test]
async fn a_batch_that_would_repeat_its_headers_too_often_is_one_refusal() {
    let mut world = World::new().await;
    let mut inbox = read(&world.memory, "_INBOX.>").await;
    let mut message = Message::plain(format!("[{}]", vec!["1"; 1_000].join(",")));
    message.headers.put("x-large", "h".repeat(10_000));
    request(&world, "_INBOX.me", message).await;
    let reply = ReplyEvent::of(&next(&mut inbox).await);
    assert_eq!(reply.data["error"]["code"], "repeats_too_much");
    let dlq_message = world.dead_letter().await;
    let reason = dlq_message.headers.get("bus-dlq-reason").unwrap();
    assert_eq!(reason, "repeats_too_much");
    let received = "a2abus_received_total{binding=\"work\"}";
    assert_eq!(world.count(received), 1);
    world.end().await;
}
