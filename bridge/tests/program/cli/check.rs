//! `a2abus check`: what it counts, and every problem that it prints.

use serde_json::json;

use super::{CONFIG, CommandOutput, command, config, run};

#[test]
fn check_counts_the_parts_of_a_valid_configuration() {
    let (_folder, file) = config(CONFIG);
    let file = file.to_str().unwrap();
    let output = run(&["check", "-c", file], "");
    assert_eq!(output.status, 0, "{}", output.stdout);
    let last = output.stdout.lines().last().unwrap();
    assert!(
        last.starts_with(&format!("{file}: OK: 1 transport, 2 bindings, 4 routes")),
        "{last}"
    );
    let reported = run(&["check", "--json", "-c", file], "").one();
    assert_eq!(
        (&reported["ok"], &reported["bindings"], &reported["errors"]),
        (&json!(true), &json!(2), &json!([]))
    );
    // The verdict counts only what the file has. The binding and the route of an attached agent are not in the file.
    let doors = "transports: { n: { type: memory } }\n";
    let agent = "agents: { sums: { attach: { url: 'http://127.0.0.1:9/', protocol: jsonrpc }, to: { transport: n, topic: agents.sums } } }\n";
    for (text, counts) in [
        (doors.to_owned(), "1 transport"),
        (format!("{doors}{agent}"), "1 transport, 1 agent"),
    ] {
        let (_folder, file) = self::config(&text);
        let file = file.to_str().unwrap();
        let output = run(&["check", "-c", file], "");
        let verdict = format!("{file}: OK: {counts}");
        assert_eq!(output.stdout.trim_end(), verdict, "{}", output.stderr);
    }
}

#[test]
fn check_prints_every_problem_and_ends_with_1() {
    let (_folder, file) = config(
        "instance: t\ntransports: { bus: { type: fax } }\nlimits: { max_hops: 0 }\nroots: []\n",
    );
    let file = file.to_str().unwrap();
    let output = run(&["check", "-c", file], "");
    assert_eq!((output.status, output.stdout.as_str()), (1, ""));
    for expected in ["type", "max_hops", "roots"] {
        let found = output
            .stderr
            .lines()
            .any(|line| line.starts_with(file) && line.contains(expected));
        assert!(found, "{expected}: {}", output.stderr);
    }
    assert!(
        output
            .stderr
            .lines()
            .last()
            .unwrap()
            .ends_with(": 3 errors"),
        "{}",
        output.stderr
    );
    let reported = run(&["check", "--json", "-c", file], "").one();
    assert_eq!(
        (
            &reported["ok"],
            reported["errors"].as_array().unwrap().len()
        ),
        (&json!(false), 3)
    );
}

/// Replicas could share the state on the bus.
#[test]
#[cfg(feature = "nats")]
fn check_notes_that_a_state_in_memory_is_for_one_replica() {
    let bus = "transports: { n: { type: nats, servers: ['nats://h:1'] } }\ndefault_route: [{ transport: n, topic: t }]\n";
    for (more, is_noted) in [("", true), ("state: { log: n }\n", false)] {
        let (_folder, file) = config(&format!("{bus}{more}"));
        let file = file.to_str().unwrap();
        let output = run(&["check", "-c", file], "");
        assert_eq!(output.status, 0, "{}", output.stderr);
        let note = format!("{file}: note: state.log is memory: replicas do not share ");
        let shown = &output.stdout;
        assert_eq!(shown.starts_with(&note), is_noted, "{shown}");
        let verdict = shown.lines().last().unwrap();
        let expected = format!("{file}: OK: 1 transport");
        assert!(verdict.starts_with(&expected), "{shown}");
        let reported = run(&["check", "--json", "-c", file], "").one();
        assert_eq!(reported["note"].is_string(), is_noted, "{reported}");
    }
}

#[test]
#[cfg(all(feature = "kafka", feature = "nats"))]
fn check_names_the_servers_that_cannot_be_reached() {
    // Nobody listens on this port.
    let (_folder, file) = config(
        "
transports:
  k: { type: kafka, brokers: ['127.0.0.1:1'] }
  n: { type: nats, servers: ['nats://127.0.0.1:1'] }
routes: [{ name: n, when: { targetagent: 'n-*' }, to: [{ transport: n, topic: 'a.{targetagent}.x' }] }]
default_route: [{ transport: k, topic: 'agents.{targetagent}' }]
",
    );
    let file = file.to_str().unwrap();
    let output = run(&["check", "--connect", "-c", file], "");
    assert_eq!(output.status, 1, "{}", output.stdout);
    for name in ["k", "n"] {
        let failed =
            format!("FAILED   {name}: connect: no connection: 127.0.0.1:1: connection refused\n");
        assert!(output.stdout.contains(&failed), "{}", output.stdout);
    }
    let verdict = format!("{file}: 2 connection tests failed\n");
    assert!(output.stdout.ends_with(&verdict), "{}", output.stdout);
    // What the bridge needs is known without a connection.
    for line in [
        "kafka-acls.sh --bootstrap-server 127.0.0.1:1 --add --allow-principal 'User:PRINCIPAL' --operation Describe --operation Write --resource-pattern-type prefixed --topic 'agents.'\n",
        // For answers that arrive in the wrong partition.
        "kafka-acls.sh --bootstrap-server 127.0.0.1:1 --add --allow-principal 'User:PRINCIPAL' --operation Create --operation Describe --operation DescribeConfigs --operation Write --topic 'a2abus.dlq'\n",
        "  subscribe: { allow: [\"_INBOX.>\", \"a2abus.replies.>\"] }\n",
    ] {
        assert!(output.stdout.contains(line), "{}", output.stdout);
    }
    let reported = run(&["check", "--connect", "--json", "-c", file], "").one();
    assert_eq!(reported["ok"], false);
    assert_eq!(reported["tests"][0]["outcome"], "failed");
    assert_eq!(reported["rights"][1]["transport"], "n");
}

#[test]
fn check_counts_the_environment_and_a_missing_file() {
    let (_folder, file) = config(CONFIG);
    let mut command = command(&["check", "-c", file.to_str().unwrap()]);
    let output: CommandOutput = command
        .env("A2ABUS_LIMITS__MAX_HOPS", "0")
        .output()
        .unwrap()
        .into();
    assert_eq!(output.status, 1);
    assert!(
        output.stderr.starts_with("A2ABUS_LIMITS__MAX_HOPS: "),
        "{}",
        output.stderr
    );
    let missing = run(&["check", "-c", "/nowhere/a2abus.yaml"], "");
    assert_eq!(missing.status, 1);
    assert!(
        missing
            .stderr
            .starts_with("/nowhere/a2abus.yaml: cannot be read"),
        "{}",
        missing.stderr
    );
}

#[test]
#[cfg(all(feature = "kafka", feature = "nats"))]
fn check_reports_every_missing_secret_and_file() {
    let (folder, file) = config("");
    let place = folder.path().display();
    std::fs::write(folder.path().join("empty"), "\n").unwrap();
    std::fs::write(folder.path().join("key"), "canary-key").unwrap();
    let text = format!(
        "
transports:
  bus: {{type: memory}}
  k: {{type: kafka, brokers: ['h:1'], tls: {{cert_file: c, key_file: k, key_password: {{env: NOT_SET}}}},
       sasl: {{mechanism: PLAIN, username: u, password: {{file: {place}/missing}}}}}}
  n: {{type: nats, servers: ['nats://h:1'], auth: {{token: {{file: {place}/empty}}}}}}
default_route: [{{transport: bus, topic: t}}, {{transport: k, topic: t}}, {{transport: n, topic: t}}]
workflows:
  enabled: true
  apis: [{{id: x, base_url: 'https://x.example.com'}}]
  credentials:
    - {{id: good, type: custom, apis: [x], value: {{file: {place}/key}}}}
    - {{id: bad, type: custom, apis: [x], value: {{file: {place}/missing}}}}
  agents:
    - {{id: a, keys: [{{file: {place}/key}}, {{env: NOT_SET}}]}}
    - {{id: b, keys: [{{file: {place}/empty}}, {{file: {place}/key}}]}}
a2a: {{push_notifications: {{enabled: true, keys: [{{file: {place}/key}}, {{env: NOT_SET}}]}}}}
"
    );
    std::fs::write(&file, text).unwrap();
    let file = file.to_str().unwrap();
    let output = run(&["check", "-c", file], "");
    let gone = "No such file or directory (os error 2)";
    let unset = "the environment variable NOT_SET is not set";
    let missing = format!("cannot read the secret file {place}/missing: {gone}");
    let empty = format!("the secret in {place}/empty is empty");
    let duplicate = "is the same key as workflows.agents[0].keys[0]";
    let short = "must have at least 32 bytes: `openssl rand -hex 32` prints a suitable one";
    let [no_cert, no_key] = ["c", "k"]
        .map(|it| format!("{it} does not exist: correct the path, or put the file there"));
    let expected = [
        (4, "transports.k.tls.cert_file", no_cert.as_str()),
        (4, "transports.k.tls.key_file", &no_key),
        (4, "transports.k.tls.key_password", unset),
        (5, "transports.k.sasl.password", &missing),
        (6, "transports.n.auth.token", &empty),
        (13, "workflows.credentials[1].value", &missing),
        (15, "workflows.agents[0].keys[1]", unset),
        (16, "workflows.agents[1].keys[0]", &empty),
        (16, "workflows.agents[1].keys[1]", duplicate),
        (17, "a2a.push_notifications.keys[0]", short),
        (17, "a2a.push_notifications.keys[1]", unset),
    ];
    let lines: Vec<&str> = output.stderr.lines().collect();
    for (reported, (line, path, message)) in lines.iter().zip(expected) {
        assert!(
            reported.starts_with(&format!("{file}:{line}:")),
            "{reported}"
        );
        assert!(
            reported.ends_with(&format!(" {path}: {message}")),
            "{reported}"
        );
    }
    let verdict = format!(
        "{file}: 11 errors, all in secrets and TLS files. Everything else is OK (--without-secrets skips this check)."
    );
    assert_eq!((output.status, lines.len()), (1, 12), "{}", output.stderr);
    assert_eq!(lines[11], verdict);
    assert!(!output.stderr.contains("canary"), "{}", output.stderr);
    let alone = run(&["check", "-c", file, "--without-secrets"], "");
    assert_eq!(alone.status, 0, "{}", alone.stderr);

    // What is switched off needs none.
    let text = std::fs::read_to_string(file).unwrap();
    std::fs::write(file, text.replace("enabled: true", "enabled: false")).unwrap();
    let reported = run(&["check", "--json", "-c", file], "").one();
    assert_eq!(
        reported["errors"].as_array().unwrap().len(),
        5,
        "{reported}"
    );
}

#[test]
#[cfg(all(feature = "kafka", feature = "nats"))]
fn check_reads_the_tls_files() {
    let (folder, file) = config("");
    let place = folder.path();
    let pair = |name: &str, until: i32| {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(place.join(format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(place.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    };
    pair("good", 2999);
    pair("old", 2020);
    let checked = |tls: &str| {
        let tls = tls.replace("DIR", &place.display().to_string());
        let text = format!(
            "
transports:
  k: {{type: kafka, brokers: ['h:1'], tls: {{{tls}}}}}
  n: {{type: nats, servers: ['nats://h:1'], tls: {{{tls}}}}}
default_route: [{{transport: k, topic: t}}, {{transport: n, topic: t}}]
"
        );
        std::fs::write(&file, text).unwrap();
        run(&["check", "-c", file.to_str().unwrap()], "")
    };
    let good = "ca_file: DIR/good.pem, cert_file: DIR/good.pem, key_file: DIR/good.key";
    let output = checked(good);
    assert_eq!(output.status, 0, "{}", output.stdout);
    for (tls, key, message) in [
        ("ca_file: DIR/none", "ca_file", "/none does not exist: "),
        (
            "ca_file: DIR/good.key",
            "ca_file",
            "/good.key holds no certificate in PEM",
        ),
        (
            "ca_file: DIR/old.pem",
            "ca_file",
            "/old.pem expired on 2020-01-01T00:00:00Z: renew it",
        ),
        (
            "cert_file: DIR/good.pem, key_file: DIR/old.key",
            "key_file",
            "/good.pem: use the two that were issued together",
        ),
        (
            "cert_file: DIR/good.pem, key_file: DIR/good.pem",
            "key_file",
            "/good.pem holds no private key in PEM",
        ),
    ] {
        let output = checked(tls);
        assert_eq!(output.status, 1, "{}", output.stderr);
        for bus in ["k", "n"] {
            let path = format!(" transports.{bus}.tls.{key}: ");
            let mut lines = output.stderr.lines();
            let line = lines.find(|line| line.contains(&path) && line.contains(message));
            assert!(line.is_some(), "{path}{message}\n{}", output.stderr);
        }
    }
    // The client of Kafka reads its files once.
    let output = checked("ca_file: DIR/old.pem").stderr;
    for (bus, cure) in [("k", "renew it, and restart the bridge"), ("n", "renew it")] {
        let path = format!(" transports.{bus}.tls.ca_file: ");
        let line = output.lines().find(|line| line.contains(&path)).unwrap();
        assert!(line.ends_with(cure), "{line}");
    }
}

#[test]
#[cfg(feature = "kafka")]
fn check_finds_properties_that_librdkafka_does_not_accept_together() {
    let (_folder, file) = config(
        "
transports:
  k: { type: kafka, brokers: ['h:1'], properties: { reconnect.backoff.ms: '5000' } }
default_route: [{ transport: k, topic: t }]
",
    );
    let file = file.to_str().unwrap();
    let output = run(&["check", "-c", file], "");
    assert_eq!((output.status, output.stdout.as_str()), (1, ""));
    let expected = " transports.k.properties.reconnect.backoff.ms: librdkafka refuses the client: `reconnect.backoff.max.ms` must be >= `reconnect.backoff.ms`";
    let mut lines = output.stderr.lines();
    let problem = lines.find(|line| line.ends_with(expected));
    let is_located = problem.is_some_and(|line| line.starts_with(&format!("{file}:3:")));
    assert!(is_located, "{}", output.stderr);
    let verdict = output.stderr.lines().last().unwrap();
    let is_alone = verdict.starts_with(&format!("{file}: 1 error"));
    assert!(is_alone && !verdict.contains("secret"), "{verdict}");
    let without = run(&["check", "-c", file, "--without-secrets"], "");
    assert_eq!(without.status, 0, "{}", without.stderr);
}

#[cfg(feature = "nats")]
#[test]
fn check_reads_the_credentials_of_nats() {
    let folder = tempfile::tempdir().unwrap();
    let login = folder.path().join("login");
    std::fs::write(&login, "no credentials\n").unwrap();
    let login = login.display();
    for (auth, key, message) in [
        (
            format!("creds_file: {login}"),
            "creds_file",
            format!("{login} holds no user JWT with its seed"),
        ),
        (
            format!("nkey: {{file: {login}}}"),
            "nkey",
            "it is not the seed of a user".to_owned(),
        ),
    ] {
        let text = format!(
            "
transports: {{ n: {{ type: nats, servers: ['nats://127.0.0.1:1'], auth: {{ {auth} }} }} }}
default_route: [{{ transport: n, topic: t }}]
"
        );
        let (_folder, file) = config(&text);
        let output = run(&["check", "-c", file.to_str().unwrap()], "");
        assert_eq!(output.status, 1, "{}", output.stdout);
        let expected = format!(" transports.n.auth.{key}: {message}");
        assert!(output.stderr.contains(&expected), "{}", output.stderr);
    }
}

#[test]
fn check_warns_of_programs_that_are_not_on_this_machine() {
    let text = |attach: &str| {
        format!(
            "transports: {{ m: {{ type: memory }} }}\nagents: {{ a: {{ to: {{ transport: m, topic: a }}, attach: {{ {attach} }} }} }}\n"
        )
    };
    let missing = ".command[0]: is not on this machine: there is no such program in PATH: install it, or give its path";
    for (attach, expected) in [
        ("command: [sh]", None),
        ("command: [sh], env: { PATH: { env: NOT_SET } }", None),
        ("command: [sh], env: { PATH: /nowhere }", Some(missing)),
        ("command: [no-such-program]", Some(missing)),
        (
            "command: [/bin/no-such-program]",
            Some(".command[0]: is not on this machine: no such program"),
        ),
        (
            "command: [sh], directory: /nowhere",
            Some(".directory: is not a directory here: create it before the bridge starts"),
        ),
    ] {
        let (_folder, file) = config(&text(attach));
        let file = file.to_str().unwrap();
        let output = run(&["check", "--json", "-c", file], "").one();
        let warnings = output["warnings"].as_array().unwrap();
        let paths = warnings.iter().map(|it| {
            let path = it["path"].as_str().unwrap();
            format!("{path}: {}", it["message"].as_str().unwrap())
        });
        let expected = expected.map(|expected| format!("agents.a.attach{expected}"));
        assert!(paths.eq(expected), "{attach}: {output}");
        let without = run(&["check", "--without-secrets", "-c", file], "");
        assert_eq!((without.status, without.stderr.as_str()), (0, ""));
    }
}
