//! `a2abus topics`: what a configuration needs is missing, is created, is right, and differs, on real servers.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use support::battery::within;
use support::running::Running;
use support::server::{Kind, named, program};
use tokio::process::Command;

use crate::plain::{Plain, next, unique};

const REQUEST: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_agentId":"weather"}}"#;

/// What `a2abus topics` prints, and its exit status.
async fn topics(arguments: &[&str], file: &Path) -> (String, i32) {
    let output = Command::new(program())
        .arg("topics")
        .args(arguments)
        .arg("-c")
        .arg(file)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = within("the command ends", output).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (text, output.status.code().unwrap())
}

fn written(directory: &tempfile::TempDir, config: &str) -> PathBuf {
    let file = directory.path().join("a2abus.yaml");
    std::fs::write(&file, config).unwrap();
    file
}

/// Each line without what stands after the name: `ok kafka: topic agents`.
fn states(text: &str) -> Vec<String> {
    let line = |line: &str| {
        let head = line.split(" (").next().unwrap_or_default();
        head.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    text.lines().map(line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_are_planned_created_and_compared_on_kafka() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let (directory, u) = (tempfile::tempdir().unwrap(), unique("plan"));
    let config = |partitions: u32| {
        format!(
            "
instance: test
transports: {{ bus: {{ type: kafka, brokers: ['{kafka}'], max_message_bytes: 2000000 }} }}
bindings: [{{ name: in, transport: bus, topics: [{u}.in], group: {u}, dead_letter: {{ topic: {u}.dlq }} }}]
routes: [{{ name: out, when: {{ targetagent: weather }}, to: [{{ transport: bus, topic: {u}.out }}] }}]
default_route: [{{ transport: bus, topic: '{u}.agents.{{targetagent}}' }}]
calls: {{ reply_topic: {u}.replies, reply_partitions: {partitions} }}
"
        )
    };
    let file = written(&directory, &config(2));
    let needed = |state: &str| {
        let mut lines = ["dlq", "in", "out", "replies"]
            .map(|topic| format!("{state} bus: topic {u}.{topic}"))
            .to_vec();
        lines.push(format!("unknown bus: topics {u}.agents.{{targetagent}}"));
        lines
    };

    let (text, status) = topics(&["plan"], &file).await;
    assert_eq!((states(&text), status), (needed("MISSING"), 1), "{text}");
    let (text, status) = topics(&["apply", "--partitions", "3", "--replicas", "1"], &file).await;
    assert_eq!((states(&text), status), (needed("created"), 0), "{text}");
    assert!(text.contains("max.message.bytes=2000000"), "{text}");
    let (text, status) = topics(&["plan"], &file).await;
    assert_eq!((states(&text), status), (needed("ok"), 0), "{text}");

    // The bridge works with what was made.
    let bridge = Running::start(&config(2)).await;
    let plain = Plain::new(&kafka);
    plain.publish(&format!("{u}.in"), None, REQUEST).await;
    let out = plain.read(&format!("{u}.out"), 3);
    let record = within("the record arrives", next(&out)).await;
    assert_eq!(record.body, REQUEST.as_bytes());
    bridge.stop().await;

    // More replicas need more partitions: that is said, and nothing is changed.
    let file = written(&directory, &config(4));
    let differs = "partitions is 2, must be at least 4";
    for command in ["apply", "plan"] {
        let (text, status) = topics(&[command], &file).await;
        assert!(text.contains(differs) && status == 1, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_and_consumers_are_planned_created_and_compared_on_jetstream() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let (directory, dotted) = (tempfile::tempdir().unwrap(), unique("plan"));
    let u = dotted.replace('.', "_");
    let config = |age: &str| {
        format!(
            "
instance: test
transports:
  bus: {{ type: nats, servers: ['{nats}'], jetstream: {{ streams: [{{ name: {u}_kept, subjects: ['{u}.kept.>'], max_age: {age} }}] }} }}
bindings: [{{ name: in, transport: bus, topics: [{u}.in], stream: {u}_in, durable: reader, dead_letter: {{ topic: {u}.dlq }} }}]
default_route: [{{ transport: bus, topic: '{u}.kept.{{targetagent}}', stored: true }}]
calls: {{ reply_topic: {u}.replies }}
"
        )
    };
    let file = written(&directory, &config("1h"));
    let needed = |state: &str, dlq: String| {
        vec![
            format!("{state} bus: stream {u}_kept"),
            format!("{state} bus: stream {u}_in"),
            format!("{state} bus: {dlq}"),
            format!("{state} bus: consumer {u}_in/reader"),
        ]
    };
    let missing = format!("stream {}_DLQ", u.to_uppercase());

    let (text, status) = topics(&["plan"], &file).await;
    let wanted = needed("MISSING", missing.clone());
    assert_eq!((states(&text), status), (wanted, 1), "{text}");
    let (text, status) = topics(&["apply"], &file).await;
    let wanted = needed("created", missing);
    assert_eq!((states(&text), status), (wanted, 0), "{text}");
    let (text, status) = topics(&["plan"], &file).await;
    let wanted = needed("ok", format!("stream of {u}.dlq"));
    assert_eq!((states(&text), status), (wanted, 0), "{text}");

    // The bridge, which may create nothing itself, is ready with what was made.
    Running::start(&config("1h")).await.stop().await;

    let file = written(&directory, &config("2h"));
    for command in ["apply", "plan"] {
        let (text, status) = topics(&[command], &file).await;
        let differs = text.contains("max_age is 1h, must be 2h");
        assert!(differs && status == 1, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn manifests_and_permissions_need_no_broker() {
    let directory = tempfile::tempdir().unwrap();
    let file = written(
        &directory,
        "
transports:
  kafka: { type: kafka, brokers: ['127.0.0.1:1'] }
  nats: { type: nats, servers: ['nats://127.0.0.1:1'] }
bindings:
  - { name: in, transport: kafka, topics: [Agents_in] }
  - { name: edge, transport: nats, topics: [edge], stream: EDGE, durable: a2abus, dead_letter: { transport: kafka, topic: edge.dlq } }
default_route: [{ transport: nats, topic: 'agents.{targetagent}' }]
",
    );
    let (text, status) = topics(&["plan", "--output", "strimzi", "--acls"], &file).await;
    assert_eq!(status, 0, "{text}");
    for wanted in [
        "kind: KafkaTopic",
        "topicName: Agents_in",
        "name: edge.dlq",
        "kind: KafkaUser",
    ] {
        assert!(text.contains(wanted), "{wanted}\n{text}");
    }
    let (text, status) = topics(&["plan", "--output", "nack"], &file).await;
    assert_eq!(status, 0, "{text}");
    for wanted in [
        "kind: Stream",
        "name: EDGE",
        "kind: Consumer",
        "filterSubject: edge",
    ] {
        assert!(text.contains(wanted), "{wanted}\n{text}");
    }
    let (text, status) = topics(&["plan", "--acls"], &file).await;
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("--topic 'Agents_in'"), "{text}");
    assert!(text.contains("$JS.API.CONSUMER.INFO.EDGE.a2abus"), "{text}");
    // Without a broker a plan says why it cannot be made; manifests are not applied.
    let (text, status) = topics(&["plan"], &file).await;
    assert!(
        status == 1 && text.contains("FAILED   kafka: topic Agents_in"),
        "{text}"
    );
    let (_, status) = topics(&["apply", "--output", "nack"], &file).await;
    assert_eq!(status, 2);
}

/// The logs of the state are planned, created, and right afterwards.
async fn logs_are_planned(transport: &str, names: &[String]) {
    let (directory, u) = (tempfile::tempdir().unwrap(), unique("state"));
    let config = format!(
        "
transports: {{ bus: {transport} }}
calls: {{ enabled: false }}
state: {{ log: bus, prefix: {u} }}
"
    );
    let file = written(&directory, &config);
    let needed = |state: &str| -> Vec<String> {
        let name = |name: &String| {
            let upper = u.replace('.', "_").to_uppercase();
            format!(
                "{state} bus: {}",
                name.replace("{u}", &u).replace("{U}", &upper)
            )
        };
        names.iter().map(name).collect()
    };
    let (text, status) = topics(&["plan"], &file).await;
    assert_eq!((states(&text), status), (needed("MISSING"), 1), "{text}");
    let (text, status) = topics(&["apply", "--replicas", "1"], &file).await;
    assert_eq!((states(&text), status), (needed("created"), 0), "{text}");
    let (text, status) = topics(&["plan"], &file).await;
    assert_eq!((states(&text), status), (needed("ok"), 0), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_logs_of_the_state_are_planned_on_kafka() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let names = ["results", "tasks"].map(|log| format!("topic {{u}}.{log}"));
    logs_are_planned(&format!("{{ type: kafka, brokers: ['{kafka}'] }}"), &names).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_logs_of_the_state_are_planned_on_jetstream() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let names = ["TASKS", "RESULTS"].map(|log| format!("stream {{U}}_{log}"));
    logs_are_planned(&format!("{{ type: nats, servers: ['{nats}'] }}"), &names).await;
}
