//! Environment variables that override the file, and secrets.

use super::*;

#[test]
fn the_environment_is_put_over_the_file() {
    let config = read(
        "
instance: t
transports: {my-bus: {type: memory}}
bindings: [{name: b, transport: my-bus, topics: [a]}]
",
        &[
            ("A2ABUS_HTTP__LISTEN", "0.0.0.0:81"),
            ("A2ABUS_TRANSPORTS__MY_BUS__PARTITIONS", "7"),
            ("A2ABUS_BINDINGS__0__TOPICS", "[\"x\", \"y\"]"),
            ("A2ABUS_BINDINGS__0__GROUP", "\"7\""),
            ("A2ABUS_TELEMETRY__LOG", "info,a2abus_bridge=debug"),
            ("A2ABUS_CALLS__TIMEOUT", "5s"),
            ("A2ABUS_ADMIN__LISTEN", "[::1]:9"),
            ("A2ABUS_TEST_KAFKA", "localhost:1"),
            ("A2ABUS_CONFIG", "x"),
            ("A2ABUS_LOG", "x"),
            ("PATH", "x"),
            // What Kubernetes adds for the Services a2abus and a2abus-admin.
            ("A2ABUS_SERVICE_HOST", "10.0.0.1"),
            ("A2ABUS_SERVICE_PORT_HTTP", "8080"),
            ("A2ABUS_PORT", "tcp://10.0.0.1:8080"),
            ("A2ABUS_PORT_8080_TCP_ADDR", "10.0.0.1"),
            ("A2ABUS_ADMIN_PORT_9090_TCP", "tcp://10.0.0.2:9090"),
        ],
    )
    .unwrap();
    assert_eq!(config.http.listen.to_string(), "0.0.0.0:81");
    assert_eq!(config.admin.listen.to_string(), "[::1]:9");
    assert_eq!(config.bindings[0].topics[1].as_str(), "y");
    assert_eq!(config.bindings[0].group.as_str(), "7");
    assert_eq!(config.calls.timeout.as_secs(), 5);
    assert_eq!(config.telemetry.log.as_str(), "info,a2abus_bridge=debug");
    let TransportConfig::Memory(memory) = &config.transports["my-bus"] else {
        panic!("not memory");
    };
    assert_eq!(memory.partitions.get(), 7);
}

#[test]
fn problems_of_the_environment_name_the_variable() {
    let messages = problems(
        BASE,
        &[
            ("A2ABUS_HTP__LISTEN", "x"),
            ("A2ABUS_HTTP__LISTEN", "x"),
            ("A2ABUS_HTTP____LISTEN", "x"),
            ("A2ABUS_INSTANCE__X", "x"),
            ("A2ABUS_ROUTES", "[{\"name\": 5}]"),
            ("A2ABUS_DEFAULT_ROUTE__0__TOPIC", "x"),
        ],
    );
    assert_eq!(
        messages,
        [
            "A2ABUS_DEFAULT_ROUTE__0__TOPIC: default_route: expected a list, not a section of keys",
            "A2ABUS_HTP__LISTEN: htp: unknown key: did you mean http?",
            "A2ABUS_HTTP__LISTEN: http.listen: not a socket address: write an IP address and a port, such as 0.0.0.0:8080 or [::]:8080",
            "A2ABUS_HTTP____LISTEN: http: does not name a configuration key: write A2ABUS_SECTION__KEY, such as A2ABUS_HTTP__LISTEN",
            "A2ABUS_INSTANCE__X: instance: the file has a plain value here, which has no keys",
            "A2ABUS_ROUTES: routes[0].name: expected a string, not a number: put it in quotes",
            "A2ABUS_ROUTES: routes[0].to: is missing: the destinations: a matching event goes to all of them",
        ]
    );
}

#[test]
fn the_instance_is_the_host_name_by_default() {
    let instance = |text: &str, environment: &[(&str, &str)]| {
        read(text, environment).unwrap().instance.to_string()
    };
    let without = "transports: {k: {type: memory}}";
    assert_eq!(instance(without, &[("HOSTNAME", "pod-7")]), "pod-7");
    assert_eq!(instance(without, &[("HOSTNAME", "not a name")]), "a2abus");
    assert_eq!(instance(without, &[("A2ABUS_INSTANCE", "i")]), "i");
    assert_eq!(
        instance(&format!("{without}\ninstance: j"), &[("HOSTNAME", "h")]),
        "j"
    );
}

#[test]
fn a_secret_that_was_written_is_not_repeated() {
    let messages = problems(
        "
transports:
  k:
    type: kafka
    brokers: [a:1]
    sasl: {mechanism: PLAIN, username: u, password: hunter2}
",
        &[],
    );
    assert_eq!(
        messages[0],
        "f:6:53: transports.k.sasl.password: secrets must not be in this file: write {env: NAME} or {file: PATH}"
    );
    assert!(!messages.join("\n").contains("hunter2"), "{messages:?}");

    // An optional secret is reported in the same way.
    let nats = "transports: {n: {type: nats, servers: [a:1], auth: {token: hunter2}}}";
    let messages = problems(nats, &[]);
    assert_eq!(
        messages[0],
        "f:1:60: transports.n.auth.token: secrets must not be in this file: write {env: NAME} or {file: PATH}"
    );

    // Nor is one in a variable.
    let variables = [
        ("A2ABUS_TRANSPORTS__N__AUTH__TOKEN", "hunter2"),
        ("A2ABUS_WORKFLOWS__CREDENTIALS", r#"[{"value": "hunter3"}]"#),
    ];
    let messages = problems(nats, &variables);
    let variable = "A2ABUS_TRANSPORTS__N__AUTH__TOKEN";
    assert_eq!(
        messages[0],
        format!(
            "{variable}: transports.n.auth.token: secrets must not be in {variable}: write {variable}__ENV=NAME or {variable}__FILE=PATH"
        )
    );
    assert!(
        messages.contains(&"A2ABUS_WORKFLOWS__CREDENTIALS: workflows.credentials[0].value: secrets must not be in A2ABUS_WORKFLOWS__CREDENTIALS: write {env: NAME} or {file: PATH}".to_owned()),
        "{messages:?}"
    );
    assert!(!messages.join("\n").contains("hunter"), "{messages:?}");
}

#[test]
fn a_variable_leaves_what_only_looks_like_a_reference_to_a_secret() {
    let file = "
transports: {n: {type: nats, servers: ['nats://a:1']}}
agents:
  x: {to: {transport: n, topic: t}, attach: {command: [x], env: {FILE: /f, sha256: abc}}}
";
    let variable = [("A2ABUS_AGENTS__X__ATTACH__ENV__ENV", "test")];
    let config = read(file, &variable).unwrap();
    let env = &config.document["agents"]["x"]["attach"]["env"];
    assert_eq!(
        *env,
        serde_json::json!({"FILE": "/f", "sha256": "abc", "env": "test"})
    );
}

#[test]
fn a_variable_names_another_place_of_a_secret() {
    let written =
        "transports: {n: {type: nats, servers: ['nats://a:1'], auth: {token: {file: /t}}}}";
    let absent = "transports: {n: {type: nats, servers: ['nats://a:1']}}";
    for (key, value) in [("ENV", "TOKEN"), ("FILE", "/other")] {
        let name = format!("A2ABUS_TRANSPORTS__N__AUTH__TOKEN__{key}");
        for file in [written, absent] {
            let config = read(file, &[(&name, value)]).unwrap();
            let token = &config.document["transports"]["n"]["auth"]["token"];
            let (key, value) = (key.to_ascii_lowercase(), Value::from(value));
            assert_eq!(*token, Value::Object([(key, value)].into_iter().collect()));
        }
    }
    let both = [
        ("A2ABUS_TRANSPORTS__N__AUTH__TOKEN__ENV", "TOKEN"),
        ("A2ABUS_TRANSPORTS__N__AUTH__TOKEN__FILE", "/t"),
    ];
    assert_ne!(problems(absent, &both), Vec::<String>::new());
}
