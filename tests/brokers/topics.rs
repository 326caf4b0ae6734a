//! `a2abus topics` on real servers: the needed topics are missing, are created, are as needed, and differ.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use async_nats::jetstream::{self, stream::StorageType};
use support::battery::within;
use support::running::Running;
use support::server::{Kind, Private, named, program};
use tokio::process::Command;

use crate::plain::{Plain, jetstream_of, nats_client, next, unique};
use crate::tls::logged;

const REQUEST: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_agentId":"weather"}}"#;

/// What `a2abus topics` prints, and its exit status.
async fn topics(arguments: &[&str], file: &Path) -> (String, i32) {
    let (text, _, status) = a2abus(&[&["topics"], arguments].concat(), file).await;
    (text, status)
}

/// What `a2abus topics` says of a wrong use.
async fn misuse(arguments: &[&str], file: &Path) -> String {
    let (text, stderr, status) = a2abus(&[&["topics"], arguments].concat(), file).await;
    assert_eq!((text.as_str(), status), ("", 2), "{stderr}");
    stderr
}

/// What `a2abus check --connect` prints, and its exit status.
async fn check(file: &Path) -> (String, i32) {
    let (text, _, status) = a2abus(&["check", "--connect"], file).await;
    (text, status)
}

/// Standard output and standard error of a command, and its exit status.
pub(crate) async fn a2abus(arguments: &[&str], file: &Path) -> (String, String, i32) {
    let output = Command::new(program())
        .args(arguments)
        .arg("-c")
        .arg(file)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = within("the command ends", output).await.unwrap();
    let [text, stderr] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    (text, stderr, output.status.code().unwrap())
}

pub(crate) fn written(directory: &tempfile::TempDir, config: &str) -> PathBuf {
    let file = directory.path().join("a2abus.yaml");
    std::fs::write(&file, config).unwrap();
    file
}

/// Each line up to the name: `ok kafka: topic agents`.
fn states(text: &str) -> Vec<String> {
    let line = |line: &str| {
        let head = line.split(" (").next().unwrap_or_default();
        head.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    text.lines().map(line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_are_planned_created_and_compared_on_kafka() {
    // All bridges on a broker have the topic `a2abus.dlq`.
    let Some(broker) = Private::start_new(Kind::Kafka).await else {
        return;
    };
    let kafka = broker.address();
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
        let mut lines = vec![format!("{state} bus: topic a2abus.dlq")];
        let ours = ["dlq", "in", "out", "replies"];
        lines.extend(ours.map(|topic| format!("{state} bus: topic {u}.{topic}")));
        lines.push(format!("unknown bus: topics {u}.agents.{{targetagent}}"));
        lines
    };

    let (text, status) = topics(&["plan"], &file).await;
    assert_eq!((states(&text), status), (needed("MISSING"), 1), "{text}");
    // The bridge would create three of them, but not for messages as large as its own.
    let without = "the bridge would create it without max.message.bytes=2000000";
    assert_eq!(text.matches(without).count(), 3, "{text}");
    let (stderr, status) = check(&file).await;
    assert!(status == 1, "{stderr}");
    for topic in [
        "a2abus.dlq (dead letters of binding replies-bus)",
        &format!("{u}.dlq (dead letters of binding in)"),
        &format!("{u}.replies (answers)"),
    ] {
        let failed = format!("FAILED   bus: settings of topic {topic}: {without}");
        assert!(stderr.contains(&failed), "{failed}\n{stderr}");
    }
    let (text, status) = topics(&["apply", "--partitions", "3", "--replicas", "1"], &file).await;
    assert_eq!((states(&text), status), (needed("created"), 0), "{text}");
    assert!(text.contains("max.message.bytes=2000000"), "{text}");
    let (text, status) = topics(&["plan"], &file).await;
    assert_eq!((states(&text), status), (needed("ok"), 0), "{text}");

    // An existing topic with fewer partitions or replicas is reported, and not changed.
    for (options, differs) in [
        (["--partitions", "4"], "partitions is 3, must be at least 4"),
        (["--replicas", "2"], "replicas is 1, must be at least 2"),
    ] {
        for command in ["plan", "apply"] {
            let (text, status) = topics(&[&[command], &options[..]].concat(), &file).await;
            let line = text.lines().find(|line| line.contains(&format!("{u}.in ")));
            let is_reported =
                line.is_some_and(|line| line.starts_with("DIFFERS") && line.ends_with(differs));
            assert!(is_reported && status == 1, "{text}");
        }
    }
    let (text, status) = topics(&["plan", "--partitions", "2", "--replicas", "1"], &file).await;
    assert_eq!((states(&text), status), (needed("ok"), 0), "{text}");

    // The bridge works with the created topics and streams.
    let bridge = Running::start(&config(2)).await;
    let plain = Plain::new(&kafka);
    plain.publish(&format!("{u}.in"), None, REQUEST).await;
    let out = plain.read(&format!("{u}.out"), 3);
    let record = within("the record arrives", next(&out)).await;
    assert_eq!(record.body, REQUEST.as_bytes());
    bridge.stop().await;

    // More replicas need more partitions: that is reported, and nothing is changed.
    let file = written(&directory, &config(4));
    let differs = "partitions is 2, must be at least 4";
    for command in ["apply", "plan"] {
        let (text, status) = topics(&[command], &file).await;
        assert!(text.contains(differs) && status == 1, "{text}");
    }
    let (text, status) = check(&file).await;
    let failed = format!("FAILED   bus: settings of topic {u}.replies (answers): {differs}\n");
    assert!(text.contains(&failed) && status == 1, "{text}");
    let same = format!("ok       bus: settings of topic {u}.in (binding in)\n");
    assert!(text.contains(&same), "{text}");
}

/// Topics that the bridge creates itself are not reported as missing: plan, check and the bridge agree.
#[tokio::test(flavor = "multi_thread")]
async fn topics_that_the_bridge_creates_at_start_are_planned_as_such_on_kafka() {
    let Some(broker) = Private::start_new(Kind::Kafka).await else {
        return;
    };
    let kafka = broker.address();
    let (directory, u) = (tempfile::tempdir().unwrap(), unique("start"));
    let config = format!(
        "
instance: test
transports: {{ bus: {{ type: kafka, brokers: ['{kafka}'] }} }}
bindings: [{{ name: in, transport: bus, topics: [{u}.in], group: {u}, dead_letter: {{ topic: {u}.dlq }} }}]
default_route: [{{ transport: bus, topic: '{u}.agents.{{targetagent}}' }}]
calls: {{ reply_topic: {u}.replies, reply_partitions: 2 }}
state: {{ log: bus, create: true, prefix: {u} }}
"
    );
    Plain::new(&kafka).create(&format!("{u}.in"), 1).await;
    let file = written(&directory, &config);
    let needed = |state: &str| {
        let ours = |topic: &str| format!("{state} bus: topic {u}.{topic}");
        vec![
            format!("{state} bus: topic a2abus.dlq"),
            ours("dlq"),
            format!("ok bus: topic {u}.in"),
            ours("replies"),
            // Without an agent that A2A clients know there are no tasks.
            ours("results"),
            format!("unknown bus: topics {u}.agents.{{targetagent}}"),
        ]
    };
    let (text, status) = topics(&["plan"], &file).await;
    assert_eq!((states(&text), status), (needed("at start"), 0), "{text}");
    let line = text
        .lines()
        .find(|line| line.contains(&format!("{u}.replies")));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    assert!(
        line.ends_with("; the bridge creates it when it starts"),
        "{text}"
    );
    let (text, status) = check(&file).await;
    assert_eq!(status, 0, "{text}");
    // More replicas than the broker's default must be configured.
    let (text, status) = topics(&["plan", "--replicas", "1"], &file).await;
    assert!(text.contains("MISSING") && status == 1, "{text}");

    let bridge = Running::start(&config).await;
    bridge.stop().await;
    let (text, status) = topics(&["plan"], &file).await;
    assert_eq!((states(&text), status), (needed("ok"), 0), "{text}");
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
    let expected = needed("MISSING", missing.clone());
    assert_eq!((states(&text), status), (expected, 1), "{text}");
    let (text, status) = topics(&["apply"], &file).await;
    let expected = needed("created", missing);
    assert_eq!((states(&text), status), (expected, 0), "{text}");
    let (text, status) = topics(&["plan"], &file).await;
    let expected = needed("ok", format!("stream of {u}.dlq"));
    assert_eq!((states(&text), status), (expected, 0), "{text}");

    // The bridge, which may not create anything itself, is ready with the created topics and streams.
    Running::start(&config("1h")).await.stop().await;

    let file = written(&directory, &config("2h"));
    for command in ["apply", "plan"] {
        let (text, status) = topics(&[command], &file).await;
        let differs = text.contains("max_age is 1h, must be 2h");
        assert!(differs && status == 1, "{text}");
    }
    let test = format!("bus: settings of stream {u}_kept (jetstream.streams, route default): ");
    let (text, status) = check(&file).await;
    let failed = format!("FAILED   {test}max_age is 1h, must be 2h\n");
    assert!(text.contains(&failed) && status == 1, "{text}");
    // A bridge that manages its streams changes what can be changed.
    let managed = config("2h").replace("jetstream: {", "jetstream: { manage: true,");
    let new = managed.replace("_kept, subjects: ['", "_new, subjects: ['new.");
    let (text, _) = topics(&["plan"], &written(&directory, &new)).await;
    let made = format!("at start bus: stream {u}_new");
    assert!(states(&text).contains(&made), "{made}\n{text}");
    let (text, status) = check(&written(&directory, &managed)).await;
    let warning = format!("WARNING  {test}max_age is 1h, must be 2h: the bridge updates it");
    assert!(text.contains(&warning) && status == 0, "{text}");
    let memory = managed.replace("max_age: 2h", "max_age: 2h, storage: memory");
    let (text, status) = check(&written(&directory, &memory)).await;
    let failed = format!("FAILED   {test}storage is file, must be memory");
    assert!(text.contains(&failed) && status == 1, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_dead_letters_that_is_there_is_not_warned_about() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let (directory, u) = (tempfile::tempdir().unwrap(), unique("letters"));
    let config = format!(
        "
instance: test
transports: {{ bus: {{ type: nats, servers: ['{nats}'] }} }}
bindings: [{{ name: requests, transport: bus, topics: ['{u}.requests'], dead_letter: {{ topic: '{u}.dlq' }} }}]
default_route: [{{ transport: bus, topic: {u}.agents }}]
"
    );
    let file = written(&directory, &config);
    let lost = "dead letters of core NATS are lost unless";
    let (_, stderr, status) = a2abus(&["check"], &file).await;
    assert_eq!((stderr.contains(lost), status), (true, 0), "{stderr}");
    let (text, _) = check(&file).await;
    assert!(text.contains("WARNING  bus: stream for"), "{text}");
    for command in [&["topics", "apply"][..], &["check", "--connect"]] {
        let (text, stderr, status) = a2abus(command, &file).await;
        assert_eq!((stderr.as_str(), status), ("", 0), "{text}");
        assert!(!text.contains("warning"), "{text}");
    }
    let lines = logged(&config, "connected transport=bus").await;
    assert!(!lines.iter().any(|line| line.contains("WARN")), "{lines:?}");
}

/// Creates a stream of this subject, with this storage.
async fn stream(nats: &str, name: &str, subject: &str, storage: StorageType) -> jetstream::Context {
    let client = nats_client(nats).await;
    let jetstream = jetstream_of(client);
    let config = jetstream::stream::Config {
        name: name.to_owned(),
        subjects: vec![subject.to_owned()],
        storage,
        ..Default::default()
    };
    jetstream.create_stream(config).await.unwrap();
    jetstream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_is_not_created_in_a_stream_without_its_subject() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let (directory, dotted) = (tempfile::tempdir().unwrap(), unique("filter"));
    let u = dotted.replace('.', "_");
    let jetstream = stream(&nats, &u, &format!("{u}.other"), StorageType::File).await;
    let file = written(
        &directory,
        &format!(
            "
transports: {{ bus: {{ type: nats, servers: ['{nats}'] }} }}
bindings: [{{ name: in, transport: bus, topics: [{u}.in], stream: {u}, durable: reader, dead_letter: {{ topic: {u}.other }} }}]
default_route: [{{ transport: bus, topic: '{u}.agents.{{targetagent}}' }}]
calls: {{ enabled: false }}
"
        ),
    );
    let (text, status) = topics(&["apply"], &file).await;
    let lacks = format!("subjects is {u}.other, lacks {u}.in");
    assert!(text.contains(&lacks) && status == 1, "{text}");
    let refused = format!(
        "FAILED   bus: consumer {u}/reader (binding in): create the consumer: the stream {u} does not store {u}.in"
    );
    assert!(text.contains(&refused), "{text}");
    let stream = jetstream.get_stream(&u).await.unwrap();
    assert!(stream.consumer_info("reader").await.is_err());
    // A subject of core NATS needs nothing.
    assert!(!text.contains("{targetagent}"), "{text}");
    let (text, status) = check(&file).await;
    assert!(text.contains(&lacks) && status == 1, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wildcard_on_a_stream_that_lists_some_of_its_subjects_is_no_difference() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let (directory, dotted) = (tempfile::tempdir().unwrap(), unique("half"));
    let u = dotted.replace('.', "_");
    stream(&nats, &u, &format!("{u}.a"), StorageType::File).await;
    let dead = format!("{u}_dlq");
    stream(&nats, &dead, &dead, StorageType::File).await;
    let file = written(
        &directory,
        &format!(
            "
transports: {{ bus: {{ type: nats, servers: ['{nats}'], jetstream: {{ manage: true, streams: [{{ name: {u}, subjects: ['{u}.a'] }}] }} }} }}
bindings: [{{ name: in, transport: bus, topics: ['{u}.*'], stream: {u}, durable: reader, dead_letter: {{ topic: {dead} }} }}]
default_route: [{{ transport: bus, topic: '{u}_agents.{{targetagent}}' }}]
calls: {{ enabled: false }}
"
        ),
    );
    let (text, status) = check(&file).await;
    let same = format!("ok       bus: settings of stream {u} (binding in, jetstream.streams)\n");
    assert!(text.contains(&same) && status == 0, "{text}");
    let (text, _) = topics(&["plan"], &file).await;
    let same = format!("ok bus: stream {u}");
    assert!(states(&text).contains(&same), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_subjects_another_one_stores_is_not_planned_at_start() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let (directory, dotted) = (tempfile::tempdir().unwrap(), unique("taken"));
    let u = dotted.replace('.', "_");
    stream(&nats, &u, &format!("{u}.a"), StorageType::File).await;
    let file = written(
        &directory,
        &format!(
            "
transports: {{ bus: {{ type: nats, servers: ['{nats}'], jetstream: {{ manage: true, streams: [{{ name: {u}_new, subjects: ['{u}.*'] }}] }} }} }}
default_route: [{{ transport: bus, topic: '{u}_agents.{{targetagent}}' }}]
calls: {{ enabled: false }}
"
        ),
    );
    let cause = format!(
        "the stream cannot be created: the stream {u} stores some of {u}.*: use that stream"
    );
    for (text, status) in [
        topics(&["plan"], &file).await,
        topics(&["apply"], &file).await,
        check(&file).await,
    ] {
        assert!(text.contains(&cause) && status == 1, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_another_kind_is_named_as_the_cause() {
    let (Some(kafka), Some(nats)) = (named(Kind::Kafka), named(Kind::Nats)) else {
        return;
    };
    let (directory, address) = (
        tempfile::tempdir().unwrap(),
        nats.strip_prefix("nats://").unwrap(),
    );
    let file = written(
        &directory,
        &format!(
            "
transports:
  k: {{ type: kafka, brokers: ['{address}'] }}
  n: {{ type: nats, servers: ['nats://{kafka}'] }}
default_route: [{{ transport: k, topic: a }}, {{ transport: n, topic: a }}]
"
        ),
    );
    let (text, status) = check(&file).await;
    for cause in [
        "this is a NATS server, not a Kafka broker: correct `brokers`",
        "no greeting: is this a NATS server?",
    ] {
        assert!(text.contains(cause) && status == 1, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_a_bus_is_reported_with_its_fix() {
    let (Some(kafka), Some(nats)) = (named(Kind::Kafka), named(Kind::Nats)) else {
        return;
    };
    let (directory, u) = (tempfile::tempdir().unwrap(), unique("refused"));
    let stream = u.to_uppercase().replace('.', "_");
    let file = written(
        &directory,
        &format!(
            "
instance: test
transports:
  kafka: {{ type: kafka, brokers: ['{kafka}'] }}
  nats: {{ type: nats, servers: ['{nats}'], jetstream: {{ streams: [{{ name: '{stream}', subjects: [{u}.in], replicas: 3 }}] }} }}
  far: {{ type: nats, servers: ['{nats}'], jetstream: {{ domain: nowhere }} }}
bindings:
  - {{ name: in, transport: nats, topics: [{u}.in], stream: '{stream}', durable: in, dead_letter: {{ transport: kafka, topic: {u}.dlq }} }}
routes: [{{ name: far, when: {{ targetagent: far }}, to: [{{ transport: far, topic: {u}.far, stored: true }}] }}]
default_route: [{{ transport: kafka, topic: {u}.out }}]
"
        ),
    );
    // One broker and one server, which both keep no three copies.
    let (text, status) = topics(&["apply", "--replicas", "3"], &file).await;
    assert_eq!(status, 1, "{text}");
    for (item, reported) in [
        (
            format!("FAILED   kafka: topic {u}.out ("),
            "the replication factor exceeds the number of brokers: lower it, or add brokers (InvalidReplicationFactor)",
        ),
        (
            format!("FAILED   nats: stream {stream} ("),
            "a single server supports only replicas: 1 (500, 10074)",
        ),
        (
            "FAILED   far: stream ".to_owned(),
            "no server has JetStream for this user: correct jetstream.domain, which is nowhere (bad_config)",
        ),
    ] {
        let line = text.lines().find(|line| line.starts_with(&item));
        assert!(
            line.is_some_and(|line| line.ends_with(reported)),
            "{item}\n{text}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_is_not_kept_in_memory_of_the_server() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let (directory, prefix) = (tempfile::tempdir().unwrap(), unique("memory"));
    let name = format!("{}_RESULTS", prefix.replace('.', "_").to_uppercase());
    stream(
        &nats,
        &name,
        &format!("{prefix}.results.>"),
        StorageType::Memory,
    )
    .await;
    let config = format!(
        "
transports: {{ bus: {{ type: nats, servers: ['{nats}'] }} }}
calls: {{ enabled: false }}
state: {{ log: bus, create: true, prefix: {prefix} }}
"
    );
    let file = written(&directory, &config);
    let (text, status) = topics(&["plan"], &file).await;
    let line = text.lines().find(|line| line.contains(&name)).unwrap();
    assert!(line.starts_with("DIFFERS") && status == 1, "{text}");
    assert!(line.contains("storage is memory, must be file"), "{text}");
    let (text, status) = check(&file).await;
    let failed = format!("FAILED   bus: settings of stream {name} (state results): ");
    assert!(text.contains(&failed) && status == 1, "{text}");
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
    for expected in [
        "kind: KafkaTopic",
        "topicName: Agents_in",
        "name: edge.dlq",
        "kind: KafkaUser",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    let (text, status) = topics(&["plan", "--output", "nack"], &file).await;
    assert_eq!(status, 0, "{text}");
    for expected in [
        "kind: Stream",
        "name: EDGE",
        "kind: Consumer",
        "filterSubject: edge",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
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
    for (arguments, expected) in [
        (
            &["apply", "--output", "nack"][..],
            "[possible values: human, json]",
        ),
        (
            &["plan", "--output", "nack", "--acls"],
            "NACK has no resource for users",
        ),
        (
            &["plan", "--output", "strimzi", "--transport", "nats"],
            "--output strimzi is for transports of type Kafka, not for nats",
        ),
        (
            &["plan", "--output", "nack", "--transport", "kafka"],
            "--output nack is for transports of type NATS, not for kafka",
        ),
    ] {
        let stderr = misuse(arguments, &file).await;
        assert!(stderr.contains(expected), "{stderr}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn manifests_name_what_they_leave_out_and_contain_the_logs_of_the_state() {
    let directory = tempfile::tempdir().unwrap();
    let file = written(
        &directory,
        "
transports:
  kafka: { type: kafka, brokers: ['127.0.0.1:1'] }
  nats: { type: nats, servers: ['nats://127.0.0.1:1'] }
routes: [{ name: out, when: { targetagent: a }, to: [{ transport: nats, topic: out }] }]
default_route: [{ transport: kafka, topic: 'agents.{targetagent}' }]
registry: { enabled: true }
state: { log: nats }
",
    );
    let (text, _) = topics(&["plan", "--output", "strimzi"], &file).await;
    for line in [
        "# not of type Kafka, and left out: nats",
        "# kafka: topics agents.{targetagent} (route default): their names come from events: create them when you deploy the agents",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}\n{text}");
    }
    let (text, status) = topics(&["plan", "--output", "nack"], &file).await;
    assert_eq!(status, 0, "{text}");
    // The last record of each agent, and in a stream that no reader empties.
    for line in [
        "  maxMsgsPerSubject: 1",
        "  retention: limits",
        "  storage: file",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}\n{text}");
    }
}

/// The logs of the state are planned, created, and right afterwards.
async fn logs_are_planned(transport: &str, names: &[String]) {
    let (directory, u) = (tempfile::tempdir().unwrap(), unique("state"));
    let config = format!(
        "
transports: {{ bus: {transport}, inside: {{ type: memory }} }}
agents: {{ weather: {{ description: The weather., to: {{ transport: inside, topic: weather }} }} }}
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
