//! Who may answer a call, and which attributes a writer of a topic may set.

use a2abus_transports::{Address, Message, Topic, TopicFilter, Transport as _, TransportErrorKind};
use bytes::Bytes;

use crate::answers::{Received, World, body, part, response};
use crate::set_up::{group, next, publish, read, receive};

/// The first 26 characters of the id that an agent repeats are the call id, the rest is the token.
const CALL_ID: usize = 26;

fn config(to: &str, calls: &str) -> String {
    format!(
        "
instance: test
transports: {{ bus: {{ type: memory }} }}
bindings:
  - {{ name: responses, role: responses, transport: bus, topics: [responses] }}
  - {{ name: events, transport: bus, topics: [events] }}
routes: [{{ name: agents, when: {{ targetagent: '*' }}, to: [{to}] }}]
calls: {{ {calls} }}
http: {{ enabled: false, drain_grace: 5s }}
admin: {{ enabled: false }}
"
    )
}

const AGENT: &str = "{ transport: bus, topic: 'agents.{targetagent}' }";
const REQUEST: &str =
    r#"{"jsonrpc":"2.0","id":1.50,"method":"tools/call","params":{"_agentId":"weather"}}"#;

/// Everything a reader of a copy sees.
fn all_of(message: &Message) -> String {
    let headers = message.headers.iter();
    let headers: Vec<String> = headers
        .map(|header| format!("{}: {:?}", header.name, header.value))
        .collect();
    format!("{headers:?} {:?} {:?}", message.key, message.body)
}

#[tokio::test]
async fn only_the_destination_that_answers_can_answer_a_call() {
    for to in [
        format!("{AGENT}, {{ transport: bus, topic: audit }}"),
        format!(
            "{{ transport: bus, topic: audit }}, {}",
            AGENT.replace(" }", ", answers: true }")
        ),
        format!("{AGENT}, {{ transport: bus, topic: audit, mode: structured }}"),
    ] {
        let mut world = World::with(&config(&to, "")).await;
        let mut audit = read(&world.memory, "audit").await;
        let mut answer = world.call("tools/call").await;
        let request = world.received().await;
        let copy = receive(&mut audit, "the copy").await;
        assert!(copy.reply_to.is_none());
        let copy_text = all_of(&copy.message);
        assert!(!copy_text.contains(&request.id[..CALL_ID]), "{copy_text}");
        for attribute in [
            "callid",
            "replyto",
            "replypartition",
            "collaborationid",
            "kafka_",
        ] {
            assert!(!copy_text.contains(attribute), "{attribute} in {copy_text}");
        }
        // It has the request as its caller wrote it.
        assert!(copy_text.contains(r#"\"id\":1.50"#), "{copy_text}");
        // What its reader knows answers nothing.
        world
            .publish(
                "responses",
                Message::plain(r#"{"jsonrpc":"2.0","id":1.50,"result":"forged"}"#),
            )
            .await;
        world
            .until_counted(r#"a2abus_replies_total{outcome="unknown"}"#, 1)
            .await;
        world
            .publish(&request.reply_to, response(&request.id, "1"))
            .await;
        assert_eq!(
            body(&part(&mut answer).await),
            r#"{"jsonrpc":"2.0","id":1.50,"result":1}"#
        );
        world.end().await;
    }
}

#[tokio::test]
async fn only_the_destination_that_answers_can_answer_a_request_on_the_bus() {
    let to = format!("{AGENT}, {{ transport: bus, topic: audit }}");
    let mut world = World::with(&config(&to, "")).await;
    let mut audit = read(&world.memory, "audit").await;
    let mut inbox = read(&world.memory, "clients.me").await;
    let mut address = Address::topic(Topic::new("events").unwrap());
    address.reply_to = Some(Topic::new("clients.me").unwrap());
    let mut message = Message::plain(REQUEST);
    message.headers.push("ce_callid", "of-the-requester");
    publish(&world.memory, &address, message).await;
    let request = world.received().await;
    let copy = receive(&mut audit, "the copy").await;
    assert!(copy.reply_to.is_none());
    let copy = copy.message;
    assert_eq!(copy.body, Some(Bytes::from_static(REQUEST.as_bytes())));
    let copy = all_of(&copy);
    for text in [
        &request.id[..CALL_ID],
        "of-the-requester",
        "callid",
        "replyto",
        "clients.me",
    ] {
        assert!(!copy.contains(text), "{text} in {copy}");
    }
    world
        .publish(&request.reply_to, response(&request.id, "1"))
        .await;
    let reply_read = next(&mut inbox).await;
    assert_eq!(
        reply_read.headers.get("ce_callid").unwrap(),
        "of-the-requester"
    );
    assert!(!all_of(&reply_read).contains(&request.id[CALL_ID..]));
    world.end().await;
}

#[tokio::test]
async fn a_request_that_cannot_reach_its_answering_destination_fails_although_others_have_it() {
    let to = format!("{AGENT}, {{ transport: bus, topic: audit }}");
    let world = World::with(&config(&to, "")).await;
    let secret = TopicFilter::new("agents.weather").unwrap();
    world
        .memory
        .set_refused(secret, Some(TransportErrorKind::Unauthorised));
    let mut inbox = read(&world.memory, "clients.me").await;
    let mut audit = read(&world.memory, "audit").await;
    let mut address = Address::topic(Topic::new("events").unwrap());
    address.reply_to = Some(Topic::new("clients.me").unwrap());
    publish(&world.memory, &address, Message::plain(REQUEST)).await;
    next(&mut audit).await;
    let reply_read = all_of(&next(&mut inbox).await);
    assert!(reply_read.contains("agent_unavailable"), "{reply_read}");
    world.end().await;
}

/// Ways to name the call that an answer belongs to, each by the id alone.
fn forgeries(id: &str) -> Vec<Message> {
    let by_header = |name: &'static str| {
        let mut message = Message::plain(r#"{"result":"forged"}"#);
        message.headers.push(name, id.to_owned());
        message
    };
    let mut event = by_header("ce_callid");
    for (name, value) in [
        ("specversion", "1.0"),
        ("id", "a"),
        ("source", "/a"),
        ("type", "t"),
    ] {
        event.headers.push(format!("ce_{name}"), value);
    }
    let mut broken = by_header("kafka_correlationId");
    broken.body = Some("{".into());
    vec![
        response(id, r#""forged""#),
        by_header("kafka_correlationId"),
        by_header("ce_callid"),
        event,
        broken,
    ]
}

/// The id of the call with a token of another call.
fn with_another_token(request: &Received, other: &Received) -> String {
    format!("{}{}", &request.id[..CALL_ID], &other.id[CALL_ID..])
}

#[tokio::test]
async fn an_answer_without_the_token_ends_no_call() {
    let mut world = World::with(&config(AGENT, "")).await;
    let mut answer = world.call("tools/call").await;
    let request = world.received().await;
    let mut other_answer = world.call("tools/call").await;
    let other = world.received().await;
    let call = &request.id[..CALL_ID];
    let subject = request.reply_to.replace(&request.id, call);
    assert_ne!(subject, request.reply_to);
    let mut forged = 0;
    for id in [call, &with_another_token(&request, &other)] {
        for topic in ["responses", subject.as_str()] {
            for message in forgeries(id) {
                world.publish(topic, message).await;
                forged += 1;
                world
                    .until_counted(r#"a2abus_replies_total{outcome="forged"}"#, forged)
                    .await;
            }
        }
    }
    // Any one value that the agent repeats brings the token.
    world.publish(&request.reply_to, Message::plain("7")).await;
    assert_eq!(
        body(&part(&mut answer).await),
        r#"{"jsonrpc":"2.0","id":1.50,"result":7}"#
    );
    world.publish("responses", response(&other.id, "8")).await;
    assert_eq!(
        body(&part(&mut other_answer).await),
        r#"{"jsonrpc":"2.0","id":1.50,"result":8}"#
    );
    world.end().await;
}

#[tokio::test]
async fn the_required_token_of_answers_is_configurable() {
    let mut world = World::with(&config(AGENT, "reply_token: off")).await;
    let mut answer = world.call("tools/call").await;
    let request = world.received().await;
    assert_eq!(request.id.len(), CALL_ID);
    world.publish("responses", response(&request.id, "1")).await;
    part(&mut answer).await;
    world.end().await;

    let mut world = World::with(&config(AGENT, "reply_token: if_present")).await;
    let mut answer = world.call("tools/call").await;
    let request = world.received().await;
    let mut other_answer = world.call("tools/call").await;
    let other = world.received().await;
    world
        .publish(
            "responses",
            response(&with_another_token(&request, &other), "0"),
        )
        .await;
    world
        .until_counted(r#"a2abus_replies_total{outcome="forged"}"#, 1)
        .await;
    world
        .publish("responses", response(&request.id[..CALL_ID], "1"))
        .await;
    assert_eq!(
        body(&part(&mut answer).await),
        r#"{"jsonrpc":"2.0","id":1.50,"result":1}"#
    );
    world.publish("responses", response(&other.id, "2")).await;
    part(&mut other_answer).await;
    world.end().await;
}

#[tokio::test]
async fn an_answer_on_a_topic_for_events_ends_no_call() {
    let mut world = World::with(&config(AGENT, "")).await;
    let mut answer = world.call("tools/call").await;
    let request = world.received().await;
    // Even with the token: answers have their own places.
    world
        .publish("events", response(&request.id, r#""misplaced""#))
        .await;
    world
        .until_counted(r#"a2abus_replies_total{outcome="misplaced"}"#, 1)
        .await;
    // An event with the id of the call is not an answer to it.
    let id = request.id.clone();
    let mut progress = event(&[
        ("id", "9"),
        ("source", "/weather"),
        ("mcptype", "notification"),
    ]);
    progress.headers.push("ce_callid", id.clone());
    progress.headers.push("ce_collaborationid", id);
    world.publish("events", progress).await;
    assert_eq!(world.received().await.event.id(), "9");
    let forged = r#"a2abus_replies_total{outcome="forged"}"#;
    assert_eq!(world.count(forged), 0);
    world
        .publish("events", response(&request.id[..CALL_ID], r#""forged""#))
        .await;
    world.until_counted(forged, 1).await;
    assert_eq!(
        world.count(r#"a2abus_replies_total{outcome="misplaced"}"#),
        1
    );
    world.publish("responses", response(&request.id, "1")).await;
    assert_eq!(
        body(&part(&mut answer).await),
        r#"{"jsonrpc":"2.0","id":1.50,"result":1}"#
    );
    world.end().await;
}

/// A CloudEvent with these attributes in addition to the required ones.
fn event(attributes: &[(&'static str, &'static str)]) -> Message {
    let mut message = Message::plain(r#"{"a":1}"#);
    for (name, value) in [
        ("specversion", "1.0"),
        ("type", "t"),
        ("targetagent", "weather"),
    ] {
        message.headers.push(format!("ce_{name}"), value);
    }
    for (name, value) in attributes {
        message.headers.push(format!("ce_{name}"), *value);
    }
    message
}

fn attributes_of(request: &Received, names: &[&str]) -> Vec<Option<String>> {
    let attribute = |name: &&str| request.event.attribute(name).map(|text| text.to_string());
    names.iter().map(attribute).collect()
}

/// The claims of a writer that impersonates the bridge or another agent, or that forges the answer to a call.
const CLAIMS: [(&str, &str); 10] = [
    ("id", "k:agents.requests/0/42#0"),
    ("source", "/a2abus/test/other"),
    ("mcptype", "notification"),
    ("origin", "k:agents.requests/0/42"),
    ("sourceagent", "treasurer"),
    ("callid", "aaoiv7hbl4ji3r5ld5gknniz2m"),
    ("replyto", "a2abus.dlq"),
    ("replypartition", "7"),
    ("progressto", "agents.other"),
    ("expirytime", "tomorrow"),
];
const CHECKED: [&str; 8] = [
    "source",
    "sourceagent",
    "callid",
    "replyto",
    "replypartition",
    "progressto",
    "origin",
    "expirytime",
];

#[tokio::test]
async fn a_writer_is_not_believed_where_an_event_comes_from_or_its_answer_goes() {
    let mut world = World::with(&config(AGENT, "")).await;
    for round in 1..=2 {
        world.publish("events", event(&CLAIMS)).await;
        let agent_request = world.received().await;
        let origin = agent_request.event.attribute("origin").unwrap();
        assert_ne!(origin, "k:agents.requests/0/42");
        assert_eq!(agent_request.event.id().to_string(), format!("{origin}#0"));
        let of_the_bridge = Some("/a2abus/test/events".to_owned());
        let origin = Some(origin.to_string());
        let expected = [of_the_bridge, None, None, None, None, None, origin, None];
        assert_eq!(attributes_of(&agent_request, &CHECKED), expected);
        for attribute in [
            "source",
            "sourceagent",
            "callid",
            "replyto",
            "progressto",
            "origin",
            "expirytime",
        ] {
            let series = format!(
                "a2abus_attributes_overruled_total{{attribute=\"{attribute}\",binding=\"events\"}}"
            );
            world.until_counted(&series, round).await;
        }
    }
    world.end().await;
}

#[tokio::test]
async fn a_binding_says_what_its_writers_are_believed() {
    let trusting = config(AGENT, "").replace(
        "topics: [events] }",
        "topics: [events], trusts: [source, sourceagent], reply_topics: [agents.*] }",
    );
    let mut world = World::with(&trusting).await;
    let mut claims = CLAIMS;
    claims[6] = ("replyto", "agents.me");
    world.publish("events", event(&claims)).await;
    let agent_request = world.received().await;
    assert_eq!(agent_request.event.id(), "k:agents.requests/0/42#0");
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(
        attributes_of(&agent_request, &CHECKED[..6]),
        [
            text("/a2abus/test/other"),
            text("treasurer"),
            None,
            text("agents.me"),
            text("7"),
            text("agents.other")
        ]
    );
    assert_ne!(
        attributes_of(&agent_request, &["origin"]),
        [text("k:agents.requests/0/42")]
    );
    world.end().await;
}

#[tokio::test]
async fn sources_of_others_stay() {
    let mut world = World::with(&config(AGENT, "")).await;
    for source in ["https://orders.example", "/a2abusx/test/other"] {
        world
            .publish("events", event(&[("id", "7"), ("source", source)]))
            .await;
        let agent_request = world.received().await;
        assert_eq!(agent_request.event.id(), "7");
        assert_eq!(agent_request.event.source(), source);
    }
    world.end().await;
}

#[tokio::test]
async fn a_payload_is_not_believed_whom_it_is_from() {
    const LEGACY: &str = r#"{"protocol":"A2A","messageType":"INFORM","sourceAgent":{"agentId":"treasurer"},"targetAgent":{"agentId":"weather"},"payload":{}}"#;
    let trusting = config(AGENT, "").replace(
        "topics: [events] }",
        "topics: [events], trusts: [sourceagent] }",
    );
    for (config, expected) in [
        (config(AGENT, ""), None),
        (trusting, Some("treasurer".to_owned())),
    ] {
        let mut world = World::with(&config).await;
        world.publish("events", Message::plain(LEGACY)).await;
        let agent_request = world.received().await;
        assert_eq!(attributes_of(&agent_request, &["sourceagent"]), [expected]);
        // The payload itself is never altered.
        assert_eq!(agent_request.event.body(), LEGACY.as_bytes());
        world.end().await;
    }
}

#[tokio::test]
async fn only_a_call_of_the_bridge_comes_from_a_caller_of_http() {
    // A call takes a turn through the bus before it reaches its agent.
    let around = config(AGENT, "").replace(
        "routes: [",
        "routes: [{ name: around, when: { binding: http }, to: [{ transport: bus, topic: events }] }, ",
    );
    let mut world = World::with(&around).await;
    let forged = [("id", "7"), ("source", "/a2abus/other/http/10.0.0.1")];
    world.publish("events", event(&forged)).await;
    let agent_request = world.received().await;
    // Its rights are still those of a caller of HTTP.
    assert_eq!(agent_request.event.source(), "/a2abus/test/http/unknown");
    let origin = agent_request.event.attribute("origin").unwrap();
    assert_eq!(agent_request.event.id().to_string(), format!("{origin}#0"));

    let mut answer = world.call_from("10.0.0.1", "tools/call").await;
    let request = world.received().await;
    assert_eq!(request.event.source(), "/a2abus/test/http/10.0.0.1");
    world
        .publish(&request.reply_to, response(&request.id, "1"))
        .await;
    part(&mut answer).await;
    world.end().await;
}

#[tokio::test]
async fn a_request_that_cannot_be_answered_has_no_call() {
    let mut world = World::with(&config(AGENT, "")).await;
    let mut claims = CLAIMS;
    claims[2] = ("mcptype", "request");
    claims[6] = ("progressto", "agents.other");
    world.publish("events", event(&claims[..7])).await;
    let agent_request = world.received().await;
    assert_eq!(
        attributes_of(&agent_request, &["mcptype", "callid"]),
        [Some("request".to_owned()), None]
    );
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn copies_for_other_destinations_outlive_their_call() {
    let to = format!("{AGENT}, {{ transport: bus, topic: audit }}");
    let mut world = World::with(&config(&to, "")).await;
    let mut audit = read(&world.memory, "audit").await;
    let place = TopicFilter::new("audit").unwrap();
    let refused = Some(TransportErrorKind::TimedOut);
    world.memory.set_refused(place.clone(), refused);
    let mut answer = world.call("tools/call").await;
    let request = world.received().await;
    world
        .publish(&request.reply_to, response(&request.id, "1"))
        .await;
    assert!(part(&mut answer).await.last);
    drop(answer);
    assert!(audit.try_recv().is_none());
    world.memory.set_refused(place, None);
    let copy = next(&mut audit).await;
    assert!(all_of(&copy).contains("tools/call"), "{copy:?}");
    world.end().await;
}

#[tokio::test]
async fn an_unroutable_request_with_a_call_id_does_not_end_that_call() {
    let mut world = World::with(&config(AGENT, "")).await;
    let mut dead = read(&world.memory, "a2abus.dlq").await;
    let nobody = TopicFilter::new("agents.nobody").unwrap();
    let refused = Some(TransportErrorKind::UnknownTopic);
    world.memory.set_refused(nobody, refused);
    let mut answer = world.call("tools/call").await;
    let request = world.received().await;
    // The call id in the log, and the reply id that the agent has.
    for named in [&request.id[..CALL_ID], &request.id] {
        let mut message = Message::plain("{}");
        for (name, value) in [
            ("specversion", "1.0"),
            ("id", "a"),
            ("source", "/me"),
            ("type", "t"),
            ("mcptype", "request"),
            ("targetagent", "nobody"),
            ("callid", named),
        ] {
            message.headers.push(format!("ce_{name}"), value.to_owned());
        }
        world.publish("events", message).await;
        let dlq_message = next(&mut dead).await;
        assert!(!all_of(&dlq_message).contains(&request.id[CALL_ID..]));
    }
    world
        .publish(&request.reply_to, response(&request.id, "1"))
        .await;
    assert_eq!(
        body(&part(&mut answer).await),
        r#"{"jsonrpc":"2.0","id":1.50,"result":1}"#
    );
    world.end().await;
}

/// Messages that go nowhere, with `ID` where the call is named.
const UNDELIVERABLE: [(&str, &str, &str); 8] = [
    (
        "events",
        "",
        r#"{"jsonrpc":"2.0","id":"ID","result":1,"error":{"code":1,"message":"m"}}"#,
    ),
    (
        "events",
        "",
        r#"[{"jsonrpc":"2.0","id":"ID","result":1},{"jsonrpc":"2.0","id":"\nID","#,
    ),
    (
        "events",
        "",
        r#"{"message_type":"tool/call/resp","req_id":"ID","#,
    ),
    (
        "events",
        "",
        r#"{"protocol":"acp","request_id":"ID","kind":"#,
    ),
    ("events", "", "no JSON: ID"),
    (
        "events",
        "application/cloudevents+json",
        r#"{"specversion":"1.0","id":"1","source":"/a","callid":"ID","collaborationid":"ID","replyto":"replies.ID"}"#,
    ),
    (
        "events",
        "application/cloudevents+json",
        r#"{"specversion":"1.0","id":"1","source":"/a","type":"t","mcptype":"request","callid":"ID","data":{"jsonrpc":"2.0","id":"ID","result":1}}"#,
    ),
    (
        "responses",
        "application/cloudevents+json",
        r#"{"specversion":"1.0","id":"1","source":"/a","callid":"ID"}"#,
    ),
];

#[tokio::test]
async fn a_dead_letter_of_any_family_holds_no_token() {
    let mut world = World::with(&config(AGENT, "")).await;
    let mut dead = read(&world.memory, "a2abus.dlq").await;
    let mut answer = world.call("tools/call").await;
    let request = world.received().await;
    let (call, token) = request.id.split_at(CALL_ID);
    for (topic, content_type, body) in UNDELIVERABLE {
        let mut message = Message::plain(body.replace("ID", &request.id));
        message.key = Some(request.id.clone().into());
        message.headers.push("x-own", format!("of {}", request.id));
        if !content_type.is_empty() {
            message.headers.push("content-type", content_type);
        }
        world.publish(topic, message).await;
        let dlq_message = next(&mut dead).await;
        let text = all_of(&dlq_message);
        assert!(!text.contains(token), "{text}");
        let expected = body.replace("ID", call);
        assert_eq!(dlq_message.body, Some(expected.into()));
        assert_eq!(dlq_message.key, Some(call.to_owned().into()));
        assert_eq!(
            dlq_message.headers.get("x-own").unwrap(),
            &format!("of {call}")
        );
    }
    world.publish("responses", response(&request.id, "1")).await;
    part(&mut answer).await;
    world.end().await;
}

#[tokio::test]
async fn a_dead_letter_keeps_text_that_only_looks_like_a_token() {
    let mut world = World::with(&config(AGENT, "")).await;
    let mut dead = read(&world.memory, "a2abus.dlq").await;
    let _answer = world.call("tools/call").await;
    let request = world.received().await;
    let _other_answer = world.call("tools/call").await;
    let other = world.received().await;
    // Like a request of another bridge, or of a sender that forges call ids.
    let id = with_another_token(&request, &other);
    let body = format!(r#"{{"jsonrpc":"2.0","id":"{id}","method":"tools/call"}}"#);
    let mut message = Message::plain(body.clone());
    message.key = Some(id.clone().into());
    message.headers.push("kafka_correlationId", id.clone());
    world.publish("events", message).await;
    let dlq_message = next(&mut dead).await;
    assert_eq!(
        dlq_message.headers.get("bus-dlq-reason").unwrap(),
        "no_route"
    );
    assert_eq!(dlq_message.body, Some(body.into()));
    assert_eq!(dlq_message.key, Some(id.clone().into()));
    assert_eq!(dlq_message.headers.get("kafka_correlationId").unwrap(), &id);
    world.end().await;
}

#[tokio::test]
async fn the_key_of_a_request_holds_no_token() {
    let world = World::with(&config(AGENT, "")).await;
    let beside = world.memory.subscribe(group("agents.weather", "beside"));
    let mut agent = beside.await.unwrap();
    let _answer = world.call("tools/call").await;
    let request = next(&mut agent).await;
    let id = std::str::from_utf8(request.headers.get("ce_callid").unwrap()).unwrap();
    assert_eq!(id.len(), 2 * CALL_ID);
    assert_eq!(request.key, Some(id[..CALL_ID].to_owned().into()));
    world.end().await;
}
