//! Requests on real buses that are refused, that come again, and whose callers go away.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, consumer, stream};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use support::battery::within;
use support::cancels::AgentWork;
use support::running::Running;
use support::server::{Kind, Private, named};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::plain::{Plain, jetstream_of, nats_client, next, subscribed, unique};

/// The longest that "at once" may take on a slow machine; every deadline in these tests is later.
const AT_ONCE: Duration = Duration::from_secs(60);

fn request(id: u64, agent: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"_agentId": agent}})
        .to_string()
}

fn notification(number: u64, agent: &str) -> String {
    json!({"jsonrpc": "2.0", "method": "notifications/x", "params": {"_agentId": agent, "number": number}})
        .to_string()
}

/// A bridge that reads requests from `NAME.in`, with the agent `weather` at `NAME.agents.weather`, and the agent `fixed`
/// at a topic that does not exist.
async fn on_kafka(kafka: &str, name: &str) -> (Plain, Running) {
    let plain = Plain::new(kafka);
    for topic in ["in", "dlq", "answers", "agents.weather"] {
        plain.create(&format!("{name}.{topic}"), 1).await;
    }
    let bridge = Running::start(&format!(
        "
instance: test
transports: {{ bus: {{ type: kafka, brokers: ['{kafka}'] }} }}
bindings: [{{ name: in, transport: bus, topics: [{name}.in], group: {name}, reply_topics: ['{name}.answers'], dead_letter: {{ topic: {name}.dlq }} }}]
routes: [{{ name: fixed, when: {{ targetagent: fixed }}, to: [{{ transport: bus, topic: {name}.missing }}] }}]
default_route: [{{ transport: bus, topic: '{name}.agents.{{targetagent}}' }}]
calls: {{ timeout: 5m, reply_topic: {name}.replies, reply_partitions: 1 }}"
    ))
    .await;
    (plain, bridge)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kafka_request_that_is_refused_or_has_no_topic_is_answered_at_once() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let name = unique("requests");
    let (plain, bridge) = on_kafka(&kafka, &name).await;
    let (input, place) = (format!("{name}.in"), format!("{name}.answers"));
    let answers = plain.read(&place, 1);
    let dlq_messages = plain.read(&format!("{name}.dlq"), 1);
    let agent = plain.read(&format!("{name}.agents.weather"), 1);
    let fixed = request(7, "fixed");
    let cases = [
        ("kafka_replyTopic", "hello", Value::Null, "not_json"),
        ("ce_replyto", r#"{"a":1}"#, Value::Null, "unknown"),
        ("kafka_replyTopic", &fixed, json!(7), "agent_unavailable"),
        ("ce_replyto", &fixed, json!(7), "agent_unavailable"),
    ];
    let start = Instant::now();
    for (header, body, id, reason) in cases {
        let headers = [
            (header, Some(place.as_str())),
            ("kafka_correlationId", Some("c-1")),
        ];
        plain.publish_with(&input, &headers, body).await;
        let answer = within("the error", next(&answers)).await;
        assert_eq!(answer.headers["kafka_correlationId"], b"c-1");
        let error: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(
            (&error["id"], &error["error"]["data"]["reason"]),
            (&id, &json!(reason)),
            "{error}"
        );
        let dlq_message = within("the dead letter", next(&dlq_messages)).await;
        assert_eq!(dlq_message.body, body.as_bytes());
        assert_eq!(dlq_message.headers[header], place.as_bytes());
    }
    // One lane: later messages are not held up.
    let headers = [
        ("ce_replyto", Some(place.as_str())),
        ("ce_replypartition", Some("99")),
    ];
    plain
        .publish_with(&input, &headers, &request(8, "weather"))
        .await;
    let message = within("the next request", next(&agent)).await;
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    let call: Value = serde_json::from_slice(&message.body).unwrap();
    let answer = json!({"jsonrpc": "2.0", "id": call["id"], "result": {}}).to_string();
    plain
        .publish(&format!("{name}.replies"), Some(0), &answer)
        .await;
    let received = within("its answer", next(&answers)).await;
    let received: Value = serde_json::from_slice(&received.body).unwrap();
    assert_eq!(received, json!({"jsonrpc": "2.0", "id": 8, "result": {}}));
    bridge.stop().await;
}

/// The requester's Kafka is away for longer than the client tries; the agent is on NATS.
#[tokio::test(flavor = "multi_thread")]
async fn answers_arrive_in_order_after_an_outage_of_their_bus() {
    const REQUESTS: u64 = 200;
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let Some(kafka) = Private::start_new(Kind::Kafka).await else {
        return;
    };
    let plain = Plain::new(&kafka.address());
    for topic in ["in", "dlq", "answers"] {
        plain.create(topic, 1).await;
    }
    let name = unique("outage");
    let client = nats_client(&nats).await;
    let agent = client.subscribe(format!("{name}.weather")).await;
    let mut agent = agent.unwrap();
    let bridge = Running::start(&format!(
        "
instance: test
transports:
  bus: {{ type: kafka, brokers: ['{}'], message_timeout: 5s }}
  agents: {{ type: nats, servers: ['{nats}'] }}
bindings: [{{ name: in, transport: bus, topics: [in], group: in, reply_topics: [answers], dead_letter: {{ topic: dlq }} }}]
default_route: [{{ transport: agents, topic: '{name}.{{targetagent}}' }}]
calls: {{ timeout: 5m, reply_topic: replies, reply_partitions: 1 }}",
        kafka.address()
    ))
    .await;
    for id in 0..REQUESTS {
        let headers = [("ce_replyto", Some("answers"))];
        plain
            .publish_with("in", &headers, &request(id, "weather"))
            .await;
    }
    let mut requests = Vec::new();
    for _ in 0..REQUESTS {
        requests.push(within("a request", agent.next()).await.unwrap());
    }
    kafka.kill().await;
    for request in requests {
        let call: Value = serde_json::from_slice(&request.payload).unwrap();
        let answer = json!({"jsonrpc": "2.0", "id": call["id"], "result": {}}).to_string();
        let inbox = request.reply.unwrap();
        client.publish(inbox, answer.into()).await.unwrap();
    }
    let retries = || {
        let text = bridge.metrics.render().unwrap();
        let counts = text
            .lines()
            .filter(|line| line.starts_with("a2abus_retries_total{"));
        let counts = counts.map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        counts.flatten().sum::<u64>()
    };
    within("answers have failed", async {
        // Those that follow wait for them.
        while retries() < REQUESTS / 4 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    kafka.start().await;
    let answers = plain.read("answers", 1);
    let all: Vec<u64> = (0..REQUESTS).collect();
    let mut ids = Vec::new();
    while ids.len() < all.len() {
        let answer = within("an answer", next(&answers)).await;
        let answer: Value = serde_json::from_slice(&answer.body).unwrap();
        let id = answer["id"].as_u64().unwrap();
        // An answer that a slow broker has stored, but confirmed too late, comes again.
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    assert_eq!(ids, all);
    bridge.stop().await;
}

/// Requests wait for others (`linger`), and so must their cancels.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_on_kafka_does_not_overtake_its_request() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let name = unique("cancels");
    let (plain, bridge) = on_kafka(&kafka, &name).await;
    let (input, place) = (format!("{name}.in"), format!("{name}.answers"));
    let agent = plain.read(&format!("{name}.agents.weather"), 1);
    let headers = [("kafka_replyTopic", Some(place.as_str()))];
    for id in 0..50 {
        let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
        let (request, cancel) = (request(id, "weather"), cancel.to_string());
        tokio::join!(
            plain.publish_with(&input, &headers, &request),
            plain.publish_with(&input, &[], &cancel)
        );
    }
    let last = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_agentId": "weather"}});
    plain
        .publish_with(&input, &headers, &last.to_string())
        .await;
    let mut work = AgentWork::default();
    while !work.is_over() {
        let message = within("a request or a cancel", next(&agent)).await;
        work.take(&serde_json::from_slice(&message.body).unwrap());
    }
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nats_request_that_is_refused_is_answered_at_once() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let name = unique("requests");
    let client = nats_client(&nats).await;
    let bridge = Running::start(&format!(
        "
instance: test
transports: {{ bus: {{ type: nats, servers: ['{nats}'] }} }}
bindings: [{{ name: in, transport: bus, topics: [{name}.in], group: {name}, dead_letter: {{ topic: {name}.dlq }} }}]
default_route: [{{ transport: bus, topic: '{name}.agents.{{targetagent}}' }}]
calls: {{ timeout: 5m, reply_topic: {name}.replies }}"
    ))
    .await;
    for (body, code) in [
        ("hello", -32_700),
        ("", -32_700),
        (r#"{"a":1}"#, -32_600),
        (r#"{"jsonrpc":"2.0","id":true,"method":"x"}"#, -32_600),
        ("[]", -32_600),
    ] {
        let answer = client.request(format!("{name}.in"), body.into());
        let answer = within("the error", answer).await.unwrap();
        let error: Value = serde_json::from_slice(&answer.payload).unwrap();
        assert_eq!(
            (&error["id"], &error["error"]["code"]),
            (&Value::Null, &json!(code)),
            "{body}: {error}"
        );
    }
    // Nothing but the event itself names it: it has no header, and core NATS no position.
    let expired = r#"{"specversion":"1.0","id":"evt-90","source":"/s","type":"t","mcptype":"request","targetagent":"weather","expirytime":"2001-01-01T00:00:00Z","data":{"a":1}}"#;
    for body in [expired.to_owned(), format!("[{expired}]")] {
        let answer = client.request(format!("{name}.in"), body.clone().into());
        let answer = within("the error", answer).await.unwrap();
        assert_eq!(header(&answer, "ce-collaborationid"), "evt-90", "{body}");
    }
    bridge.stop().await;
}

/// A bridge whose agents are on NATS, below `NAME.agents`.
async fn on_nats(nats: &str, name: &str) -> Running {
    Running::start(&format!(
        "
instance: test
transports: {{ bus: {{ type: nats, servers: ['{nats}'] }} }}
default_route: [{{ transport: bus, topic: '{name}.agents.{{targetagent}}' }}]
calls: {{ timeout: 5m, reply_topic: {name}.replies }}"
    ))
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_of_a_nats_service_fails_the_call_at_once() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let name = unique("service");
    let client = nats_client(&nats).await;
    let mut agent = client.subscribe(format!("{name}.agents.>")).await.unwrap();
    subscribed(&client).await;
    let bridge = on_nats(&nats, &name).await;
    let rpc = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"full"}}"#;
    for (body, reported) in [
        ("", true),
        ("no such city", true),
        ("{}", true),
        (rpc, false),
    ] {
        let answers = async {
            let request = within("the request", agent.next()).await.unwrap();
            let sent: Value = serde_json::from_slice(&request.payload).unwrap();
            let mut headers = async_nats::HeaderMap::new();
            headers.insert("Nats-Service-Error", "unknown city");
            headers.insert("Nats-Service-Error-Code", "404");
            let body = body.replace("\"id\":1", &format!("\"id\":{}", sent["id"]));
            let reply = request.reply.unwrap();
            let sent = client.publish_with_headers(reply, headers, body.into());
            sent.await.unwrap();
        };
        let call = bridge.post("/rpc/weather", request(9, "weather"));
        let (answer, ()) = tokio::join!(within("the answer", call), answers);
        let why = "the NATS service reports error 404: unknown city";
        assert_eq!(answer.body.contains(why), reported, "{}", answer.body);
        assert_eq!(answer.body.contains("full"), !reported, "{}", answer.body);
    }
    bridge.stop().await;
}

/// A stream, and everything in it from the beginning.
async fn stored(
    jetstream: &jetstream::Context,
    name: &str,
    subject: String,
) -> consumer::pull::Stream {
    let config = stream::Config {
        name: name.to_owned(),
        subjects: vec![subject],
        ..stream::Config::default()
    };
    let stream = jetstream.create_stream(config).await.unwrap();
    let reader = consumer::pull::Config::default();
    let reader = stream.create_consumer(reader).await.unwrap();
    reader.messages().await.unwrap()
}

fn header(copy: &async_nats::Message, name: &str) -> String {
    let headers = copy.headers.as_ref().unwrap();
    let value = headers.get(name);
    value
        .unwrap_or_else(|| panic!("no {name} in {headers:?}"))
        .to_string()
}

fn method(copy: &async_nats::Message) -> String {
    let body: Value = serde_json::from_slice(&copy.payload).unwrap();
    body["method"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redelivered_request_and_a_cancel_are_not_duplicates_for_a_stream() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let name = unique("again");
    let flat = name.replace('.', "-");
    let client = nats_client(&nats).await;
    let jetstream = jetstream_of(client.clone());
    let requests = format!("{flat}-requests");
    let mut agent = stored(
        &jetstream,
        &format!("{flat}-agents"),
        format!("{name}.agents.>"),
    )
    .await;
    drop(stored(&jetstream, &requests, format!("{name}.in")).await);
    let durable = consumer::pull::Config {
        durable_name: Some("bridge".to_owned()),
        ..consumer::pull::Config::default()
    };
    let source = jetstream.get_stream(&requests).await.unwrap();
    source.create_consumer(durable).await.unwrap();
    let dlq_messages = format!("{flat}-letters");
    drop(stored(&jetstream, &dlq_messages, format!("{name}.dlq")).await);
    let config = format!(
        "
instance: test
transports: {{ bus: {{ type: nats, servers: ['{nats}'] }} }}
bindings: [{{ name: in, transport: bus, topics: [{name}.in], stream: {requests}, durable: bridge, reply_topics: ['{name}.answers'], dead_letter: {{ topic: {name}.dlq }} }}]
default_route: [{{ transport: bus, topic: '{name}.agents.{{targetagent}}', stored: true }}]
calls: {{ timeout: 5m, reply_topic: {name}.replies }}"
    );
    let mut answers = client.subscribe(format!("{name}.answers")).await.unwrap();
    let first = Running::start(&config).await;
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("ce-replyto", format!("{name}.answers").as_str());
    let sent =
        jetstream.publish_with_headers(format!("{name}.in"), headers, request(7, "weather").into());
    sent.await.unwrap().await.unwrap();
    let mut ids = Vec::new();
    let mut copy = within("the request", agent.next()).await.unwrap().unwrap();
    ids.push(header(&copy, "Nats-Msg-Id"));
    // It ends without the answer and cancels its call; the next one reads the request again.
    first.stop().await;
    let cancel = within("the cancel", agent.next()).await.unwrap().unwrap();
    assert_eq!(header(&cancel, "ce-callid"), header(&copy, "ce-callid"));
    assert_eq!(method(&cancel), "notifications/cancelled");
    let second = Running::start(&config).await;
    copy = within("the request again", agent.next())
        .await
        .unwrap()
        .unwrap();
    ids.push(header(&copy, "Nats-Msg-Id"));
    assert_ne!(ids[0], ids[1]);
    let call: Value = serde_json::from_slice(&copy.payload).unwrap();
    let answer = json!({"jsonrpc": "2.0", "id": call["id"], "result": {}}).to_string();
    let reply = header(&copy, "ce-replyto");
    client.publish(reply, answer.into()).await.unwrap();
    let received = within("the answer", answers.next()).await.unwrap();
    let received: Value = serde_json::from_slice(&received.payload).unwrap();
    assert_eq!(received, json!({"jsonrpc": "2.0", "id": 7, "result": {}}));

    // A caller of HTTP that goes away.
    let post = second.post("/rpc/weather", request(9, "weather"));
    let next_call = async { within("the call", agent.next()).await.unwrap().unwrap() };
    tokio::select! {
        _ = post => panic!("nobody answers"),
        copy = next_call => drop(copy),
    }
    let cancel = within("the cancel", agent.next()).await.unwrap().unwrap();
    assert_eq!(method(&cancel), "notifications/cancelled");
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_message_of_a_topic_that_was_created_again_is_a_duplicate_for_a_stream() {
    let (Some(kafka), Some(nats)) = (named(Kind::Kafka), named(Kind::Nats)) else {
        return;
    };
    let (plain, name) = (Plain::new(&kafka), unique("recreated"));
    let input = format!("{name}.in");
    let client = nats_client(&nats).await;
    let jetstream = jetstream_of(client);
    let flat = name.replace('.', "-");
    let mut agent = stored(&jetstream, &flat, format!("{name}.agents.>")).await;
    plain.create(&input, 1).await;
    plain.create(&format!("{name}.dlq"), 1).await;
    let bridge = Running::start(&format!(
        "
instance: test
transports:
  kafka: {{ type: kafka, brokers: ['{kafka}'] }}
  nats: {{ type: nats, servers: ['{nats}'] }}
bindings: [{{ name: in, transport: kafka, topics: [{input}], group: {name}, dead_letter: {{ topic: {name}.dlq }} }}]
default_route: [{{ transport: nats, topic: '{name}.agents.{{targetagent}}', stored: true }}]
calls: {{ enabled: false }}"
    ))
    .await;
    let mut ids = HashSet::new();
    // Fewer each time: a client of Kafka notices a new topic only if its position is beyond the end.
    for number in [0..20, 20..30, 30..35] {
        let count = i64::try_from(number.end - number.start).unwrap();
        for number in number.clone() {
            plain
                .publish(&input, None, &notification(number, "weather"))
                .await;
        }
        for _ in number {
            let copy = within("the message", agent.next()).await.unwrap().unwrap();
            copy.ack().await.unwrap();
            assert!(ids.insert(header(&copy, "Nats-Msg-Id")));
        }
        // Also if the last commit was of the old topic, and higher.
        plain.committed(&name, &input, count).await;
        plain.delete(&input).await;
        plain.create(&input, 1).await;
    }
    bridge.stop().await;
}

/// Publishes a status line as only a server should: that a subject has no subscribers.
async fn publish_no_responders(address: &str, subject: &str) {
    let address = address.trim_start_matches("nats://");
    let mut stream = BufReader::new(TcpStream::connect(address).await.unwrap());
    let mut info = String::new();
    stream.read_line(&mut info).await.unwrap();
    let status = "NATS/1.0 503\r\n\r\n";
    let publish = format!(
        "CONNECT {{\"headers\":true,\"no_responders\":true,\"verbose\":false}}\r\n\
         HPUB {subject} {size} {size}\r\n{status}\r\nPING\r\n",
        size = status.len()
    );
    stream.write_all(publish.as_bytes()).await.unwrap();
    let mut pong = String::new();
    while !pong.starts_with("PONG") {
        pong.clear();
        assert_ne!(stream.read_line(&mut pong).await.unwrap(), 0, "{pong}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_status_of_nats_without_the_token_ends_no_call() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let name = unique("forged");
    let client = nats_client(&nats).await;
    let bridge = on_nats(&nats, &name).await;
    let mut agent = client.subscribe(format!("{name}.agents.>")).await.unwrap();
    subscribed(&client).await;
    let others = async {
        let message = within("the request", agent.next()).await.unwrap();
        let reply = message.reply.unwrap();
        let (place, id) = reply.rsplit_once('.').unwrap();
        // The call id alone.
        publish_no_responders(&nats, &format!("{place}.{}", &id[..26])).await;
        within("the forgery is counted", async {
            let forged = "a2abus_replies_total{outcome=\"forged\"} 1";
            while !bridge.metrics.render().unwrap().contains(forged) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        let answer = json!({"jsonrpc": "2.0", "id": id, "result": 7}).to_string();
        client.publish(reply.clone(), answer.into()).await.unwrap();
    };
    let post = bridge.post("/rpc/weather", request(1, "weather"));
    let (answered, ()) = tokio::join!(post, others);
    let answered: Value = serde_json::from_str(&answered.body).unwrap();
    assert_eq!(answered, json!({"jsonrpc": "2.0", "id": 1, "result": 7}));
    bridge.stop().await;
}
