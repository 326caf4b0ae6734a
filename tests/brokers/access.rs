//! `a2abus check --connect` on servers with few permissions: it names the missing ones, and those it prints are enough.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use a2abus_bridge::Bridge;
use a2abus_bridge::config::Config;
use a2abus_bridge::readiness::{Report, UnmetCondition};
use a2abus_bridge::state::RESULTS;
use futures_util::StreamExt as _;
use support::battery::within;
use support::logs::{History, commit};
use support::running::Running;
use support::server::{Kind, Private, program, script};
use tokio::process::Command;

use crate::plain::{Plain, jetstream_of, next, patient};
use crate::tls::logged;

const REQUEST: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_agentId":"weather"}}"#;

/// What `check --connect` says, and its exit status.
async fn check(file: &Path) -> (String, i32) {
    let output = Command::new(program())
        .args(["check", "--connect", "-c"])
        .arg(file)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = within("the check ends", output).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (text, output.status.code().unwrap())
}

/// The output of `topics plan --acls`. `check --connect` prints the same.
async fn planned(file: &Path, checked: &str) -> String {
    let output = Command::new(program())
        .args(["topics", "plan", "--acls", "-c"])
        .arg(file)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = within("the plan ends", output).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let is_there = checked.lines().any(|other| other.trim() == line.trim());
        assert!(is_there, "{line}\n{checked}");
    }
    text
}

/// `topics apply` says which permission is missing and how to get it, and does so at once.
async fn apply_is_refused(file: &Path, expected: &[&str]) {
    let output = Command::new(program())
        .args(["topics", "apply", "-c"])
        .arg(file)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = within("apply ends", output).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(!text.contains("timed_out"), "{text}");
    for expected in expected {
        let line = text.lines().find(|line| line.starts_with(expected));
        let is_refused = line.is_some_and(|line| {
            line.contains("unauthorised")
                && line.contains("lacks a permission")
                && line.contains("a2abus topics plan --acls")
        });
        assert!(is_refused, "{expected}\n{text}");
    }
}

/// The permissions are enough for `topics plan`, and everything is as it says.
async fn is_planned(file: &Path) {
    let output = Command::new(program())
        .args(["topics", "plan", "-c"])
        .arg(file)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = within("the plan ends", output).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let is_right = |line: &str| line.starts_with("ok ") || line.starts_with("unknown ");
    assert!(!text.is_empty() && text.lines().all(is_right), "{text}");
    assert!(output.status.success(), "{text}");
}

fn failed(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| line.starts_with("FAILED"))
        .collect()
}

/// Runs the lines of `kafka-acls.sh`, as the anonymous user of the plaintext listener, who may do anything.
async fn grant(text: &str, from: &str, to: &str) {
    let lines: Vec<String> = text
        .lines()
        .filter(|line| line.starts_with("kafka-acls.sh "))
        .map(|line| line.replace(from, to))
        .collect();
    let program = format!(
        "set -e; kafka-acls.sh() {{ '{}' tool org.apache.kafka.tools.AclCommand \"$@\"; }}\n{}",
        script(Kind::Kafka).display(),
        lines.join("\n")
    );
    let status = Command::new("bash")
        .args(["-c", &program])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .status();
    let status = within("the rights are given", status).await.unwrap();
    assert!(status.success(), "{program}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_acls_are_what_the_bridge_needs_on_kafka() {
    let Some((broker, sasl)) = Private::start_kafka_with_user("bridge").await else {
        return;
    };
    let plain = Plain::new(&broker.address());
    for topic in ["in", "out", "agents.weather", "a2abus.results"] {
        plain.create(topic, 1).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let (password, file) = (
        directory.path().join("password"),
        directory.path().join("a2abus.yaml"),
    );
    std::fs::write(&password, "secret").unwrap();
    let transports = |brokers: &str| {
        format!(
            "
instance: test
transports:
  bus: {{ type: kafka, brokers: ['{brokers}'], sasl: {{ mechanism: SCRAM-SHA-256, username: bridge, password: {{ file: {} }} }} }}
bindings: [{{ name: in, transport: bus, topics: [in], group: readers, dead_letter: {{ topic: in.dlq }} }}]
routes: [{{ name: out, when: {{ binding: in }}, to: [{{ transport: bus, topic: out }}] }}]
default_route: [{{ transport: bus, topic: 'agents.{{targetagent}}' }}]
calls: {{ reply_partitions: 1 }}
state: {{ log: bus }}
",
            password.display()
        )
    };
    let config = transports(&sasl);
    std::fs::write(&file, &config).unwrap();

    let (text, status) = check(&file).await;
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("ok       bus: connect\n"), "{text}");
    let cure = ": `a2abus topics plan --acls` prints the permissions to grant";
    for expected in [
        "FAILED   bus: read topic in in group readers (binding in): ",
        "FAILED   bus: find topic in.dlq (dead letters of binding in): ",
        "FAILED   bus: find topic a2abus.dlq (dead letters of binding replies-bus): ",
        "FAILED   bus: find topic out (route out): ",
        "FAILED   bus: read topic a2abus.replies (answers): ",
    ] {
        let line = text.lines().find(|line| line.starts_with(expected));
        assert!(
            line.is_some_and(|line| line.contains("unauthorised") && line.ends_with(cure)),
            "{expected}\n{text}"
        );
    }
    assert!(
        text.contains("untested bus: topics agents.{targetagent} (route default): "),
        "{text}"
    );

    let refused = [
        "FAILED   bus: topic a2abus.dlq (",
        "FAILED   bus: topic in (",
    ];
    apply_is_refused(&file, &refused).await;

    let (plaintext, plan) = (broker.address(), planned(&file, &text).await);
    // The bridge itself does not read the settings of topics.
    let fewer = plan.replace("--operation DescribeConfigs ", "");
    grant(&fewer, &sasl, &plaintext).await;
    let (text, status) = check(&file).await;
    assert_eq!((failed(&text), status), (Vec::new(), 0), "{text}");
    let untested = "untested bus: settings of topic in (binding in): read the settings of the topic in, which needs the permission DescribeConfigs";
    assert!(text.contains(untested), "{text}");
    grant(&plan, &sasl, &plaintext).await;
    let (text, status) = check(&file).await;
    assert_eq!((failed(&text), status), (Vec::new(), 0), "{text}");
    assert!(!text.contains("untested bus: settings"), "{text}");

    // And with them the bridge does its work.
    let bridge = Running::start(&config).await;
    plain.publish("in", None, REQUEST).await;
    let record = within("the record arrives", next(&plain.read("out", 1))).await;
    assert_eq!(record.body, REQUEST.as_bytes());
    let agent = plain.read("agents.weather", 1);
    let answered = async {
        let request = next(&agent).await;
        let call = String::from_utf8(request.headers["ce_callid"].clone()).unwrap();
        let answer = format!(r#"{{"jsonrpc":"2.0","id":"{call}","result":7}}"#);
        plain.publish("a2abus.replies", None, &answer).await;
    };
    let (answer, ()) = tokio::join!(bridge.post("/rpc/weather", REQUEST), answered);
    assert_eq!(answer.body, r#"{"jsonrpc":"2.0","id":1,"result":7}"#);
    for (topic, part) in [("in", "binding in"), ("a2abus.replies", "answers on bus")] {
        needs_to_read(&broker, &bridge, topic, part).await;
    }
    bridge.stop().await;
    is_planned(&file).await;

    // A listener without SASL says so.
    std::fs::write(&file, transports(&plaintext)).unwrap();
    let (text, status) = check(&file).await;
    assert_eq!(status, 1, "{text}");
    assert!(text.contains("this listener has no SASL"), "{text}");
}

/// While the user `bridge` may not read this topic, the bridge is not ready, because of this part.
async fn needs_to_read(broker: &Private, bridge: &Running, topic: &str, part: &str) {
    let change = async |how: &[&str]| {
        let user = ["--allow-principal", "User:bridge"];
        let acl = ["--operation", "Read", "--topic", topic];
        let arguments = [how, &user[..], &acl[..]].concat();
        broker
            .kafka_tool("org.apache.kafka.tools.AclCommand", &arguments)
            .await;
    };
    let is_refused =
        |unmet: &UnmetCondition| unmet.name == part && unmet.cause.contains("topics plan --acls");
    change(&["--remove", "--force"]).await;
    until_reported(bridge, "it is not ready", |report| {
        report.not_ready.iter().any(is_refused)
    })
    .await;
    // The bridge asks every 10 s whether it may read the topic: the metadata, which it may see, do not tell that.
    let ready = until_reported(bridge, "it is ready", |report| report.ready);
    let early = tokio::time::timeout(Duration::from_secs(12), ready).await;
    assert!(early.is_err(), "it is ready without the permission");
    change(&["--add"]).await;
    until_reported(bridge, "it is ready", |report| report.ready).await;
}

/// Waits until what `/readyz` reports is as expected.
pub(crate) async fn until_reported(bridge: &Running, what: &str, is_so: impl Fn(&Report) -> bool) {
    within(what, async {
        while !is_so(&bridge.report()) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

fn accounts(permissions: &str) -> String {
    format!(
        "accounts {{ A {{ jetstream: enabled, users: [ {{ user: admin, password: admin }}, {{ user: bridge, password: secret, {permissions} }} ] }} }}"
    )
}

/// A NATS server that permits its user `bridge` little, and a directory with the password of this user.
struct Guarded {
    server: Private,
    directory: tempfile::TempDir,
    /// Where the configuration of the bridge is written.
    file: PathBuf,
}

impl Guarded {
    async fn start() -> Option<Self> {
        let little = r#"permissions: { publish: { allow: ["_INBOX.>", "$SYS.REQ.USER.INFO", "$JS.API.>"] }, subscribe: { allow: ["_INBOX.>"] } }"#;
        let server = Private::start_with(Kind::Nats, &[&accounts(little)]).await?;
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("password"), "secret").unwrap();
        let file = directory.path().join("a2abus.yaml");
        Some(Self {
            server,
            directory,
            file,
        })
    }
}

/// The block for the configuration of a NATS server, from the output of `topics plan --acls`.
fn permissions_of(plan: &str) -> String {
    let block: Vec<&str> = plan
        .lines()
        .skip_while(|line| *line != "permissions: {")
        .collect();
    let end = block.iter().position(|line| *line == "}").unwrap();
    block[..=end].join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_permissions_are_what_the_bridge_needs_on_nats() {
    let Some(Guarded {
        server,
        directory,
        file,
    }) = Guarded::start().await
    else {
        return;
    };
    let password = directory.path().join("password");
    let config = |address: &str| {
        format!(
            "
instance: test
transports:
  bus: {{ type: nats, servers: ['nats://{address}'], auth: {{ user: bridge, password: {{ file: {} }} }} }}
bindings:
  - {{ name: core, transport: bus, topics: ['in.*'] }}
  - {{ name: kept, transport: bus, topics: [kept], stream: KEPT, durable: readers }}
routes:
  - {{ name: stored, when: {{ binding: kept }}, to: [{{ transport: bus, topic: stored, stored: true }}] }}
default_route: [{{ transport: bus, topic: 'agents.{{targetagent}}' }}]
",
            password.display()
        )
    };
    std::fs::write(&file, config(&server.address())).unwrap();
    let (text, status) = check(&file).await;
    assert_eq!(status, 1, "{text}");
    for expected in [
        "ok       bus: connect",
        "FAILED   bus: permission to publish agents.*: not permitted to user bridge",
        "FAILED   bus: permission to subscribe in.*: not permitted to user bridge",
        "FAILED   bus: subscribe to in.* (binding core): subscribe to in.*: NATS does not permit it to user bridge (unauthorised): `a2abus topics plan --acls` prints the permissions to grant",
        "WARNING  bus: stream for a2abus.dlq (dead letters of binding core): no JetStream stream stores it: dead letters are lost",
        "FAILED   bus: stream for a2abus.dlq (dead letters of binding kept): no stream stores it: `a2abus topics apply` creates one",
        "FAILED   bus: consumer readers of stream KEPT (binding kept): find the JetStream stream KEPT (unknown_topic): `a2abus topics apply` creates it",
        "FAILED   bus: stream for stored (route stored): no stream stores it: `a2abus topics apply` creates one",
    ] {
        assert!(
            text.lines().any(|line| line == expected),
            "{expected}\n{text}"
        );
    }

    let plan = planned(&file, &text).await;
    let permissions = permissions_of(&plan);
    let server = Private::start_with(Kind::Nats, &[&accounts(&permissions)])
        .await
        .unwrap();
    let address = server.address();
    let admin = async_nats::ConnectOptions::with_user_and_password("admin".into(), "admin".into());
    let admin = patient(admin).connect(format!("nats://{address}"));
    let admin = admin.await.unwrap();
    let jetstream = jetstream_of(admin.clone());
    for (name, subjects) in [("KEPT", ["kept", "x"]), ("OUT", ["stored", "a2abus.dlq"])] {
        let stream = async_nats::jetstream::stream::Config {
            name: name.to_owned(),
            subjects: subjects.map(str::to_owned).to_vec(),
            ..Default::default()
        };
        let stream = jetstream.create_stream(stream).await.unwrap();
        if name == "KEPT" {
            let durable = async_nats::jetstream::consumer::pull::Config {
                durable_name: Some("readers".to_owned()),
                filter_subject: "kept".to_owned(),
                ..Default::default()
            };
            stream.create_consumer(durable).await.unwrap();
        }
    }
    std::fs::write(&file, config(&address)).unwrap();
    let (text, status) = check(&file).await;
    assert_eq!((failed(&text), status), (Vec::new(), 0), "{text}");
    assert!(text.contains("ok       bus: permissions\n"), "{text}");
    is_planned(&file).await;
    // They are not enough to create.
    let more = config(&address).replace("topic: stored,", "topic: new,");
    std::fs::write(&file, more).unwrap();
    let refused = "FAILED   bus: stream NEW (route stored): ask JetStream for STREAM.CREATE.NEW: NATS does not permit user bridge to publish $JS.API.STREAM.CREATE.NEW (";
    apply_is_refused(&file, &[refused]).await;

    let bridge = Running::start(&config(&address)).await;
    let mut agents = admin.subscribe("agents.weather").await.unwrap();
    let mut stored = admin.subscribe("stored").await.unwrap();
    admin.flush().await.unwrap();
    admin.publish("in.x", REQUEST.into()).await.unwrap();
    let message = within("the message arrives", agents.next()).await.unwrap();
    assert_eq!(message.payload, REQUEST.as_bytes());
    admin.publish("kept", REQUEST.into()).await.unwrap();
    let message = within("the event is stored", stored.next()).await.unwrap();
    assert_eq!(message.payload, REQUEST.as_bytes());
    let answered = async {
        let request = agents.next().await.unwrap();
        let answer = r#"{"result":7}"#;
        admin
            .publish(request.reply.unwrap(), answer.into())
            .await
            .unwrap();
    };
    let (answer, ()) = tokio::join!(bridge.post("/rpc/weather", REQUEST), answered);
    assert!(answer.body.contains(r#""result":"#), "{}", answer.body);
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_nats_is_reported_once_with_its_fix() {
    let Some(Guarded {
        server,
        directory,
        file,
    }) = Guarded::start().await
    else {
        return;
    };
    let password = directory.path().join("password");
    let address = server.address();
    let config = format!(
        "
instance: test
transports:
  bus: {{ type: nats, servers: ['nats://{address}'], auth: {{ user: bridge, password: {{ file: {} }} }} }}
bindings: [{{ name: core, transport: bus, topics: ['in.*'] }}]
default_route: [{{ transport: bus, topic: 'agents.{{targetagent}}' }}]
",
        password.display()
    );
    let lines = logged(&config, "Subscription to \"in.*").await;
    let last = lines.last().unwrap();
    let cure = "`a2abus topics plan --acls` prints the permissions to grant";
    assert!(last.contains("ERROR") && last.contains(cure), "{lines:?}");

    std::fs::write(&password, "wrong").unwrap();
    std::fs::write(&file, &config).unwrap();
    let (text, _) = check(&file).await;
    let cause = format!(
        "{address}: authorization violation for user bridge: check `auth`, and the users of the server"
    );
    let refused = format!("FAILED   bus: connect: no connection: {cause}");
    assert!(text.lines().any(|line| line == refused), "{text}");
    // The client tries some times before this line.
    let lines = logged(&config, "a part of the bridge did not start").await;
    let before = lines.split_last().unwrap().1.iter();
    let reported = before.filter(|line| line.contains("authorization violation"));
    let reported: Vec<&String> = reported.collect();
    assert!(
        reported.len() == 1 && reported[0].contains("WARN") && reported[0].contains(&cause),
        "{lines:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_on_jetstream_needs_no_more_than_the_printed_permissions() {
    let Some(Guarded {
        server,
        directory,
        file,
    }) = Guarded::start().await
    else {
        return;
    };
    let password = directory.path().join("password");
    let config = |address: &str| {
        format!(
            "
transports:
  bus: {{ type: nats, servers: ['nats://{address}'], auth: {{ user: bridge, password: {{ file: {} }} }} }}
http: {{ listen: '127.0.0.1:0' }}
admin: {{ enabled: false }}
state: {{ log: bus, create: true }}
",
            password.display()
        )
    };
    std::fs::write(&file, config(&server.address())).unwrap();
    let (text, _) = check(&file).await;
    let permissions = permissions_of(&planned(&file, &text).await);
    let server = Private::start_with(Kind::Nats, &[&accounts(&permissions)])
        .await
        .unwrap();
    let config = Config::read("test", &config(&server.address()), std::iter::empty()).unwrap();
    let bridge = Box::pin(Bridge::build(config)).await.unwrap();
    let results = bridge.state().view(RESULTS, History).await.unwrap();
    within("the log is made and read", results.caught_up())
        .await
        .unwrap();
    // Only a view that reads the log gets it.
    commit(&results, "key", "part one").await;
}
