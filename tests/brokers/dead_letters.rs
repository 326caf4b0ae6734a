//! `a2abus dead-letters` on real servers: they are listed, shown and resent.

use async_nats::jetstream::stream;
use serde_json::{Value, json};
use support::battery::within;
use support::running::Running;
use support::server::{Kind, Private, named};

use crate::durables::publish_raw;
use crate::plain::{Plain, jetstream_of, nats_client, next, unique};
use crate::topics::{a2abus, written};

fn request(agent: &str) -> String {
    json!({"jsonrpc": "2.0", "id": 1, "method": "m", "params": {"_agentId": agent}}).to_string()
}

/// The lines that a command prints, as JSON.
async fn json_lines(arguments: &[&str], file: &std::path::Path) -> (Vec<Value>, i32) {
    let arguments = [&["dead-letters"], arguments, &["--json"]].concat();
    let (text, stderr, status) = a2abus(&arguments, file).await;
    println!("{arguments:?}: {text}{stderr}");
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    (lines.collect(), status)
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_listed_although_another_bus_is_down() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let (plain, u) = (Plain::new(&kafka), unique("letters"));
    let (input, dlq) = (format!("{u}.in"), format!("{u}.dlq"));
    for topic in [&input, &dlq] {
        plain.create(topic, 1).await;
    }
    let config = |down_transport: &str, down_binding: &str| {
        format!(
            "
instance: test
transports: {{ {down_transport} k: {{ type: kafka, brokers: ['{kafka}'] }} }}
bindings: [{down_binding} {{ name: k, transport: k, topics: [{input}], group: {u}, dead_letter: {{ topic: {dlq} }} }}]
default_route: [{{ transport: k, topic: {u}.out }}]
calls: {{ enabled: false }}"
        )
    };
    let bridge = Running::start(&config("", "")).await;
    plain.publish(&input, None, "no JSON").await;
    within("a dead letter", next(&plain.read(&dlq, 1))).await;
    bridge.stop().await;

    let directory = tempfile::tempdir().unwrap();
    let down = (
        "n: { type: nats, servers: ['nats://127.0.0.1:1'] },",
        "{ name: n, transport: n, topics: [in], dead_letter: { topic: dlq } },",
    );
    let file = written(&directory, &config(down.0, down.1));
    let (text, stderr, status) = a2abus(&["dead-letters", "ls", "--json"], &file).await;
    assert_eq!((text.lines().count(), status), (1, 1), "{text}{stderr}");
    assert!(text.contains(&format!("k:{dlq}/0/0")), "{text}");
    assert!(stderr.contains("transport n: "), "{stderr}");
    let position = format!("k:{dlq}/0/0");
    // All that were named are found.
    for command in ["show", "ls"] {
        let (shown, status) = json_lines(&[command, &position], &file).await;
        assert_eq!((shown.len(), status), (1, 0), "{command}");
    }
    let missing = format!("k:{dlq}/0/999");
    let (found, status) = json_lines(&["ls", &position, &missing], &file).await;
    assert_eq!((found.len(), status), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_on_kafka_are_listed_shown_and_resent() {
    let Some(kafka) = named(Kind::Kafka) else {
        return;
    };
    let (plain, u) = (Plain::new(&kafka), unique("letters"));
    for (topic, partitions) in [("in", 1), ("dlq", 2), ("out", 1)] {
        plain.create(&format!("{u}.{topic}"), partitions).await;
    }
    let (input, dlq) = (format!("{u}.in"), format!("{u}.dlq"));
    let config = |agent: &str| {
        format!(
            "
instance: test
transports: {{ bus: {{ type: kafka, brokers: ['{kafka}'] }} }}
bindings: [{{ name: in, transport: bus, topics: [{input}], group: {u}, dead_letter: {{ topic: {dlq} }} }}]
routes: [{{ name: out, when: {{ targetagent: '{agent}' }}, to: [{{ transport: bus, topic: {u}.out }}] }}]
calls: {{ enabled: false }}"
        )
    };
    let directory = tempfile::tempdir().unwrap();
    let file = written(&directory, &config("weather"));
    let (none, status) = json_lines(&["ls"], &file).await;
    assert_eq!((none.len(), status), (0, 0));

    let bridge = Running::start(&config("weather")).await;
    plain.publish_key(&input, "k", &request("unknown")).await;
    plain.publish(&input, None, "no JSON").await;
    let dead = plain.read(&dlq, 2);
    for _ in 0..2 {
        within("a dead letter", next(&dead)).await;
    }
    bridge.stop().await;

    let (all, status) = json_lines(&["ls"], &file).await;
    assert_eq!((all.len(), status), (2, 0));
    let (found, _) = json_lines(&["ls", "--reason", "no_route", "--since", "1h"], &file).await;
    let [letter] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(letter["binding"], "in");
    assert_eq!(letter["topic"], input);
    assert_eq!(letter["origin"], format!("k:{input}/0/0"));
    // A binding that was renamed still has its dead letters, which have no destination any more.
    let renamed = tempfile::tempdir().unwrap();
    let text = config("weather").replace("name: in,", "name: renamed,");
    let renamed_file = written(&renamed, &text);
    let (of_it, status) = json_lines(&["ls", "--binding", "in"], &renamed_file).await;
    assert_eq!((of_it.len(), status), (2, 0));
    let arguments = ["dead-letters", "resend", "--binding", "in"];
    let (_, stderr, status) = a2abus(&arguments, &renamed_file).await;
    assert!(status == 2 && stderr.contains("no destination"), "{stderr}");
    let arguments = ["dead-letters", "ls", "--binding", "inn"];
    let (_, stderr, status) = a2abus(&arguments, &file).await;
    let is_told =
        stderr.contains("no binding inn") && stderr.contains("there are dead letters of in");
    assert!(status == 2 && is_told, "{stderr}");
    let position = letter["position"].as_str().unwrap();
    let (shown, status) = json_lines(&["show", position], &file).await;
    assert_eq!((shown[0]["key"].as_str(), status), (Some("k"), 0));
    assert_eq!(shown[0]["body"], request("unknown"));
    let (shown, stderr, _) = a2abus(&["dead-letters", "show", position], &file).await;
    assert!(
        shown.contains("bus-dlq-reason: no_route"),
        "{shown}{stderr}"
    );
    let none = format!("k:{dlq}/0/999");
    let (_, stderr, status) = a2abus(&["dead-letters", "show", &none], &file).await;
    assert_eq!(status, 1, "{stderr}");

    let (_, stderr, status) = a2abus(&["dead-letters", "show", "k:nope/0/0"], &file).await;
    assert!(status == 2 && stderr.contains(&dlq), "{stderr}");
    let (_, stderr, status) = a2abus(&["dead-letters", "resend", &none], &file).await;
    assert!(status == 1 && stderr.contains(&none), "{stderr}");
    // Without a choice, nothing is resent.
    let (_, stderr, status) = a2abus(&["dead-letters", "resend"], &file).await;
    assert!(status == 2 && stderr.contains("--all"), "{stderr}");
    let (dry, status) = json_lines(&["resend", "--reason", "no_route", "--dry-run"], &file).await;
    assert_eq!((&dry[0]["result"], status), (&json!("would be resent"), 0));
    let (resent, status) = json_lines(&["resend", position], &file).await;
    assert_eq!((resent.len(), status), (1, 0));
    assert_eq!(resent[0]["result"], "resent");

    // Now it has a route.
    let bridge = Running::start(&config("unknown")).await;
    let out = plain.read(&format!("{u}.out"), 1);
    let event = within("the resent message", next(&out)).await;
    assert_eq!(event.body, request("unknown").as_bytes());
    assert!(
        !event
            .headers
            .keys()
            .any(|name| name.starts_with("bus-dlq-"))
    );
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_in_jetstream_are_resent_to_the_subject_they_came_from() {
    let Some(nats) = named(Kind::Nats) else {
        return;
    };
    let u = unique("letters");
    let client = nats_client(&nats).await;
    let jetstream = jetstream_of(client.clone());
    let stream = u.replace('.', "-");
    let of_stream = |name: &str, subject: &str| stream::Config {
        name: format!("{stream}-{name}"),
        subjects: vec![format!("{u}.{subject}")],
        ..stream::Config::default()
    };
    for config in [of_stream("in", "in.>"), of_stream("dlq", "dlq.>")] {
        jetstream.create_stream(config).await.unwrap();
    }
    let config = format!(
        "
instance: test
transports: {{ bus: {{ type: nats, servers: ['{nats}'], jetstream: {{ manage: true }} }} }}
bindings: [{{ name: in, transport: bus, topics: ['{u}.in.>'], stream: {stream}-in, durable: d, dead_letter: {{ topic: {u}.dlq.a }} }}]
routes: [{{ name: out, when: {{ targetagent: weather }}, to: [{{ transport: bus, topic: {u}.out }}] }}]
calls: {{ enabled: false }}"
    );
    let directory = tempfile::tempdir().unwrap();
    let file = written(&directory, &config);
    let bridge = Running::start(&config).await;
    let subject = format!("{u}.in.x");
    let sent = jetstream
        .publish(subject.clone(), request("unknown").into())
        .await;
    sent.unwrap().await.unwrap();
    // Of another deployment, and no dead letter at all.
    for (headers, subject) in [
        (
            vec![("bus-dlq-reason", "no_route"), ("bus-dlq-binding", "other")],
            "dlq.a",
        ),
        (vec![("x", "y")], "dlq.a"),
        (
            vec![("bus-dlq-reason", "no_route"), ("bus-dlq-binding", "in")],
            "dlq.b",
        ),
    ] {
        let mut all = async_nats::HeaderMap::new();
        for (name, value) in headers {
            all.append(name, value);
        }
        let sent = jetstream.publish_with_headers(format!("{u}.{subject}"), all, "".into());
        sent.await.unwrap().await.unwrap();
    }
    let state = async || {
        let mut dlq = jetstream.get_stream(format!("{stream}-dlq")).await.unwrap();
        dlq.info().await.unwrap().state.messages
    };
    within("the dead letter is stored", async {
        while state().await < 4 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    bridge.stop().await;
    let (all, _) = json_lines(&["ls"], &file).await;
    assert_eq!(all.len(), 2, "{all:?}");
    let other = all.iter().find(|letter| letter["binding"] == "other");
    let other = other.unwrap()["position"].as_str().unwrap();
    let (skipped, status) = json_lines(&["resend", other], &file).await;
    assert_eq!((&skipped[0]["result"], status), (&json!("skipped"), 1));
    let (resent, status) = json_lines(&["resend", "--all"], &file).await;
    assert_eq!((resent.len(), status), (1, 0), "{resent:?}");
    assert_eq!(resent[0]["topic"], subject);
    let mut input = jetstream.get_stream(format!("{stream}-in")).await.unwrap();
    let messages = input.info().await.unwrap().state.messages;
    assert_eq!(messages, 2);
    let again = input.get_raw_message(2).await.unwrap();
    assert_eq!(again.payload, request("unknown").as_bytes());
    assert!(
        again
            .headers
            .iter()
            .all(|(name, _)| !name.to_string().starts_with("bus-dlq-"))
    );
}

/// The client closes its connection when it gets such a message.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_the_nats_client_cannot_read_is_named() {
    let accounts = r#"accounts { A { jetstream: enabled, users: [ { user: admin, password: admin }, { user: bridge, password: secret, permissions: { publish: { deny: ["$JS.API.STREAM.MSG.GET.>"] } } } ] } }"#;
    let settings = [accounts, "no_auth_user: admin"];
    let Some(server) = Private::start_with(Kind::Nats, &settings).await else {
        return;
    };
    let nats = format!("nats://{}", server.address());
    let jetstream = jetstream_of(nats_client(&nats).await);
    let letters = stream::Config {
        name: "DLQ".to_owned(),
        subjects: vec!["a2abus.dlq".to_owned()],
        ..stream::Config::default()
    };
    jetstream.create_stream(letters).await.unwrap();
    let malformed = b"NATS/1.0\r\nno colon\r\n\r\n";
    publish_raw(&nats, b"a2abus.dlq", malformed, "bad").await;
    let directory = tempfile::tempdir().unwrap();
    let password = directory.path().join("password");
    std::fs::write(&password, "secret").unwrap();
    let config = |auth: &str| {
        format!(
            "
instance: test
transports: {{ bus: {{ type: nats, servers: ['{nats}'], {auth} }} }}
bindings: [{{ name: in, transport: bus, topics: [in] }}]
default_route: [{{ transport: bus, topic: out }}]
calls: {{ enabled: false }}"
        )
    };

    let limited = config(&format!(
        "auth: {{ user: bridge, password: {{ file: {} }} }}",
        password.display()
    ));
    let file = written(&directory, &limited);
    let (_, stderr, status) = a2abus(&["dead-letters", "ls"], &file).await;
    assert_eq!(status, 1, "{stderr}");
    for named in ["STREAM.MSG.GET", "nats stream rmm DLQ 1"] {
        assert!(stderr.contains(named), "{stderr}");
    }

    let file = written(&directory, &config(""));
    let (_, stderr, status) = a2abus(&["dead-letters", "ls"], &file).await;
    assert_eq!(status, 0, "{stderr}");
    assert!(stderr.contains("j:DLQ/1 is skipped"), "{stderr}");
    let (_, stderr, status) = a2abus(&["dead-letters", "show", "j:DLQ/1"], &file).await;
    assert_eq!(status, 1, "{stderr}");
    // A stream without dead letters is refused, and the error names those that have some.
    for command in ["show", "ls", "resend"] {
        let (_, stderr, status) = a2abus(&["dead-letters", command, "j:NOPE/1"], &file).await;
        assert!(
            status == 2 && stderr.contains("name one of DLQ"),
            "{command}: {stderr}"
        );
    }
}
