//! Topics and streams that are not there: the call that needs them fails at once and names them.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use support::battery::within;
use support::running::Running;
use support::server::{Kind, named, program};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{ChildStderr, Command};
use tokio::time::sleep;

use crate::plain::{Plain, Reply, jetstream_of, nats_client, next, unique};
use crate::tls::logged_by;
use crate::topics::written;

const REQUEST: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}"#;

/// The `reason` and the message of the error that a call of the agent is answered with. The call may take far longer
/// than the test: an answer that comes only at its deadline says so.
async fn failure(bridge: &Running, agent: &str) -> (String, String) {
    let answer = bridge.post(&format!("/rpc/{agent}"), REQUEST).await;
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    let text = |pointer: &str| {
        body.pointer(pointer)
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    let reason = text("/error/data/reason").unwrap_or_else(|| panic!("{}", answer.body));
    (reason, text("/error/message").unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_kafka_topic_fails_the_call_at_once() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let plain = Plain::new(&kafka);
    let (there, prefix) = (unique("fixed"), unique("agents"));
    let bridge = Running::start(&format!(
        "
instance: test
transports: {{ kafka: {{ type: kafka, brokers: ['{kafka}'] }} }}
routes: [{{ name: fixed, when: {{ targetagent: fixed }}, to: [{{ transport: kafka, topic: {there} }}] }}]
default_route: [{{ transport: kafka, topic: '{prefix}.{{targetagent}}' }}]
calls: {{ timeout: 2m, reply_topic: {prefix}.replies, reply_partitions: 1 }}"
    ))
    .await;
    let chosen = failure(&bridge, "k-typo").await;
    assert_eq!(
        chosen,
        (
            "agent_not_found".to_owned(),
            format!(
                "Kafka topic {prefix}.k-typo does not exist: check the name of the agent, or create it"
            )
        )
    );
    let fixed = failure(&bridge, "fixed").await;
    assert_eq!(
        fixed,
        (
            "agent_unavailable".to_owned(),
            format!("Kafka topic {there} does not exist: create it, or change the route")
        )
    );
    // A topic that is there, and an agent that is not: that one was published.
    plain.create(&format!("{prefix}.k-typo"), 1).await;
    let silent = async {
        loop {
            let url = format!("{}/rpc/k-typo", bridge.door);
            let client = reqwest::Client::builder().no_proxy().build().unwrap();
            let request = client.post(url).header("content-type", "application/json");
            let answer = request.header("x-a2a-timeout", "2000").body(REQUEST).send();
            let body = answer.await.unwrap().text().await.unwrap();
            if !body.contains("does not exist") && !body.contains("not sent within") {
                return body;
            }
        }
    };
    let body = within("the topic is found", silent).await;
    let published = format!(
        r#"no answer from agent \"k-typo\" within 2000 ms (published to Kafka topic {prefix}.k-typo)"#
    );
    assert!(body.contains(&published), "{body}");
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_kafka_topic_of_an_attached_agent_is_logged_with_its_fix() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let topic = unique("attached");
    let mut command = Command::new(program());
    command
        .args(["attach", "sums", "--kafka", &kafka, "--topic", &topic])
        .args(["--url", "http://127.0.0.1:9/", "--protocol", "jsonrpc"]);
    let lines = logged_by(command, "a part of the bridge did not start").await;
    let last = lines.last().unwrap();
    let missing = format!("look up the topic {topic}, which does not exist");
    let fix = "create it, or run `a2abus topics apply -c FILE`";
    assert!(last.contains(&missing) && last.contains(fix), "{last}");
}

/// Reads a log until each of these texts was in a line.
async fn until_logged(log: &mut Lines<BufReader<ChildStderr>>, texts: &[&str]) {
    let mut missing = texts.to_vec();
    within("the log has the lines", async {
        while !missing.is_empty() {
            let line = log.next_line().await.unwrap();
            let line = line.expect("the bridge runs");
            missing.retain(|text| !line.contains(*text));
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_says_when_what_was_missing_is_there() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let (directory, u) = (tempfile::tempdir().unwrap(), unique("late"));
    let stream = u.replace('.', "-");
    let config = format!(
        "
instance: test
transports: {{ nats: {{ type: nats, servers: ['{nats}'], jetstream: {{ manage: true }} }} }}
bindings:
  - {{ name: kept, transport: nats, topics: [{u}.kept], stream: {stream}, durable: d, dead_letter: {{ topic: {u}.dlq }} }}
  - {{ name: core, transport: nats, topics: [{u}.core], dead_letter: {{ topic: {u}.dlq }} }}
default_route: [{{ transport: nats, topic: {u}.agents }}]
calls: {{ enabled: false }}
http: {{ listen: '127.0.0.1:0' }}
admin: {{ enabled: false }}
"
    );
    let mut serving = Command::new(program())
        .args(["serve", "-c"])
        .arg(written(&directory, &config))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut log = BufReader::new(serving.stderr.take().unwrap()).lines();
    let missing = [
        "a part of the bridge did not start",
        "no JetStream stream stores the dead letters of this binding",
    ];
    until_logged(&mut log, &missing).await;
    let of_both = async_nats::jetstream::stream::Config {
        name: stream,
        subjects: vec![format!("{u}.kept"), format!("{u}.dlq")],
        ..Default::default()
    };
    let jetstream = jetstream_of(nats_client(&nats).await);
    jetstream.create_stream(of_both).await.unwrap();
    let there = [
        "a part of the bridge that did not start works now",
        "a JetStream stream stores the dead letters of this binding now",
    ];
    until_logged(&mut log, &there).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_subject_without_a_stream_fails_the_call_at_once() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let prefix = unique("stored");
    let bridge = Running::start(&format!(
        "
instance: test
transports: {{ nats: {{ type: nats, servers: ['{nats}'] }} }}
default_route: [{{ transport: nats, topic: '{prefix}.{{targetagent}}', stored: true }}]
calls: {{ timeout: 2m, reply_topic: {prefix}.replies }}"
    ))
    .await;
    let (reason, message) = failure(&bridge, "typo").await;
    assert_eq!(reason, "agent_not_found");
    assert_eq!(
        message,
        format!(
            "no JetStream stream stores NATS subject {prefix}.typo: check the name of the agent, or create it"
        )
    );
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notification_that_no_stream_stored_can_be_sent_again_with_its_key() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let prefix = unique("keyed");
    let bridge = Running::start(&format!(
        "
instance: test
transports: {{ nats: {{ type: nats, servers: ['{nats}'] }} }}
default_route: [{{ transport: nats, topic: {prefix}.late, stored: true }}]
calls: {{ timeout: 2m, reply_topic: {prefix}.replies }}"
    ))
    .await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let notify = async || {
        let sent = http
            .post(format!("{}/rpc/late", bridge.door))
            .header("idempotency-key", "k")
            .json(&json!({ "jsonrpc": "2.0", "method": "note" }));
        sent.send().await.unwrap().status().as_u16()
    };
    assert_eq!(notify().await, 503);
    let jetstream = jetstream_of(nats_client(&nats).await);
    let stream = async_nats::jetstream::stream::Config {
        name: prefix.replace('.', "_"),
        subjects: vec![format!("{prefix}.late")],
        ..Default::default()
    };
    let stream = jetstream.create_stream(stream).await.unwrap();
    // What the bridge knows about the stream may be a second old.
    let repeated = async {
        loop {
            match notify().await {
                503 => tokio::task::yield_now().await,
                status => return status,
            }
        }
    };
    assert_eq!(within("the repeated notification", repeated).await, 202);
    assert_eq!(stream.get_info().await.unwrap().state.messages, 1);
    bridge.stop().await;
}

/// The events that a topic gets: per partition of the source, the numbers of the messages in the order of their
/// arrival.
async fn numbers(
    topic: &rdkafka::consumer::StreamConsumer,
    enough: impl Fn(&BTreeMap<i64, Vec<i64>>) -> bool,
) -> BTreeMap<i64, Vec<i64>> {
    let mut arrived: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    while !enough(&arrived) {
        let record = within("an event", next(topic)).await;
        let body: Value = serde_json::from_slice(&record.body).unwrap();
        let number = |pointer: &str| body.pointer(pointer).and_then(Value::as_i64).unwrap();
        arrived
            .entry(number("/params/partition"))
            .or_default()
            .push(number("/params/number"));
    }
    arrived
}

/// Without repeats, which a rebalance may cause.
fn first_arrivals(numbers: &[i64]) -> Vec<i64> {
    let mut seen = std::collections::BTreeSet::new();
    numbers
        .iter()
        .copied()
        .filter(|number| seen.insert(*number))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_whose_topic_is_missing_leaves_the_budget_to_the_others() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let plain = Plain::new(&kafka);
    let (source, first, second, there) = (
        unique("source"),
        unique("missing"),
        unique("missing"),
        unique("there"),
    );
    plain.create(&source, 3).await;
    plain.create(&there, 1).await;
    let config = |instance: &str| {
        format!(
            "
instance: {instance}
transports: {{ kafka: {{ type: kafka, brokers: ['{kafka}'], session_timeout: 6s }} }}
bindings: [{{ name: in, transport: kafka, topics: [{source}], group: {source}, budget_messages: 40 }}]
routes:
  - {{ name: first, when: {{ targetagent: first }}, to: [{{ transport: kafka, topic: {first} }}] }}
  - {{ name: second, when: {{ targetagent: second }}, to: [{{ transport: kafka, topic: {second} }}] }}
default_route: [{{ transport: kafka, topic: {there} }}]"
        )
    };
    let publish = async |partition: i32, target: &str, numbers: std::ops::Range<i64>| {
        for number in numbers {
            let body = json!({
                "jsonrpc": "2.0",
                "method": "message/send",
                "params": {
                    "partition": partition,
                    "number": number,
                    "_agentId": target,
                },
            });
            plain
                .publish(&source, Some(partition), &body.to_string())
                .await;
        }
    };
    let bridge = Running::start(&config("one")).await;
    publish(0, "first", 0..200).await;
    publish(1, "second", 0..200).await;
    publish(2, "there", 0..200).await;
    let events = plain.read(&there, 1);
    let has = |count: usize| {
        move |arrived: &BTreeMap<i64, Vec<i64>>| {
            arrived
                .get(&2)
                .is_some_and(|numbers| first_arrivals(numbers).len() >= count)
        }
    };
    let all: Vec<i64> = (0..200).collect();
    assert_eq!(first_arrivals(&numbers(&events, has(200)).await[&2]), all);
    // Partitions go to another replica and come back, and messages of the earlier assignment still wait.
    let other = Running::start(&config("two")).await;
    other.stop().await;
    publish(2, "there", 200..400).await;
    let later = numbers(&events, has(200)).await;
    assert_eq!(first_arrivals(&later[&2]), (200..400).collect::<Vec<_>>());
    // Nothing of the others is lost, and they are in order.
    for (partition, topic) in [(0, &first), (1, &second)] {
        plain.create(topic, 1).await;
        let events = plain.read(topic, 1);
        let arrived = numbers(&events, move |arrived| {
            arrived
                .get(&partition)
                .is_some_and(|numbers| first_arrivals(numbers).len() >= 200)
        });
        assert_eq!(first_arrivals(&arrived.await[&partition]), all);
    }
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_topic_that_is_deleted_is_named_until_it_exists_again() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let plain = Plain::new(&kafka);
    let (kept, deleted) = (unique("kept"), unique("deleted"));
    for topic in [&kept, &deleted] {
        plain.create(topic, 2).await;
    }
    let bridge = Running::start(&format!(
        "
instance: test
transports: {{ kafka: {{ type: kafka, brokers: ['{kafka}'] }} }}
bindings:
  - {{ name: both, transport: kafka, topics: [{kept}, {deleted}], group: {kept} }}
  - {{ name: one, transport: kafka, topics: [{deleted}], group: {deleted} }}
default_route: [{{ transport: kafka, topic: '{kept}.{{targetagent}}' }}]
calls: {{ enabled: false }}"
    ))
    .await;
    // Until the report has these parts, by the beginnings of their causes.
    let until = async |expected: &[(&str, String)]| {
        let is_shown = || {
            let report = bridge.report();
            assert!(report.ready, "others work: {report:?}");
            let mut shown = report.degraded.iter().zip(expected);
            report.degraded.len() == expected.len()
                && shown.all(|(part, (name, cause))| {
                    part.name.as_str() == *name && part.cause.starts_with(cause.as_str())
                })
        };
        within("the report says so", async {
            while !is_shown() {
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    };
    until(&[]).await;
    plain.delete(&deleted).await;
    let cause = |others| format!("topics no longer exist: {deleted}; {others}: create it");
    until(&[
        ("binding both", cause("the other topics are read")),
        ("binding one", cause("nothing is read")),
    ])
    .await;
    plain.create(&deleted, 2).await;
    until(&[]).await;
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_topic_that_is_deleted_is_created_again() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let plain = Plain::new(&kafka);
    let (topic, replies) = (unique("agent"), unique("replies"));
    plain.create(&topic, 1).await;
    let bridge = Running::start(&format!(
        "
instance: test
transports: {{ kafka: {{ type: kafka, brokers: ['{kafka}'] }} }}
default_route: [{{ transport: kafka, topic: {topic} }}]
calls: {{ reply_topic: {replies}, reply_partitions: 1 }}"
    ))
    .await;
    let start = || {
        plain.agent(&topic, Reply::AsAsked, |request| {
            let result = json!({ "jsonrpc": "2.0", "id": request["id"], "result": "done" });
            vec![result.to_string()]
        })
    };
    let mut agent = start();
    let is_answered = async || {
        let answer = bridge.post_within("/rpc/any", REQUEST, Some(5000)).await;
        answer.body.contains("done")
    };
    within("the first answer", async { while !is_answered().await {} }).await;
    plain.delete(&replies).await;
    within("calls fail", async { while is_answered().await {} }).await;
    within("calls are answered again", async {
        while !is_answered().await {
            // It fails if it cannot publish its answer for 30 s.
            if agent.is_finished() {
                agent = start();
            }
        }
    })
    .await;
    assert!(bridge.report().ready, "{:?}", bridge.report());
    bridge.stop().await;
}
