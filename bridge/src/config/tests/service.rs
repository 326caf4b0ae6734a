//! Listeners, calls, limits and the state.

use super::*;

#[test]
fn calls_and_doors_fit_together() {
    check(
        "
instance: t
transports: {a: {type: memory}, b: {type: memory}}
calls: {timeout: 6m}
http: {listen: \"127.0.0.1:1\"}
admin: {listen: \"127.0.0.1:1\"}
",
        &[
            "f:4:18: calls.timeout: is longer than calls.max_timeout",
            "f:6:17: admin.listen: is also the address of http.listen: choose another port",
        ],
    );
}

#[test]
fn the_state_is_in_memory_in_files_or_on_a_transport_that_stores_it() {
    let check = |keys: &str, problems: &[&str]| {
        let route = "default_route: [{transport: n, topic: t}, {transport: k, topic: t}]";
        check_more(&format!("state: {{{keys}}}\n{route}\n"), problems);
    };
    for right in [
        "",
        "log: memory",
        "log: embedded, directory: /var/lib/a2abus",
        "log: k, create: true",
        "log: n, prefix: acme.a2abus, memory: 1GiB",
    ] {
        check(right, &[]);
    }
    check(
        "log: kafka",
        &["f:1:14: state.log: there is no transport kafka: the transports are k, n"],
    );
    check(
        "log: embedded",
        &["f:1:8: state.directory: log: embedded needs the directory of its files"],
    );
    check(
        "log: k, directory: /tmp",
        &["f:1:28: warning: state.directory: has no effect without log: embedded"],
    );
    check(
        "create: true",
        &[
            "f:1:17: warning: state.create: has no effect: only logs on a transport are topics or streams",
        ],
    );
}

#[test]
fn payload_limits_above_the_message_limit_cause_a_warning() {
    let base = "
transports: {k: {type: kafka, brokers: [\"k:9092\"]}, m: {type: memory, max_message_bytes: 4000000}}
default_route: [{transport: k, topic: a}, {transport: m, topic: a}]
";
    check(&format!("{base}limits: {{max_bytes: 900KiB}}\n"), &[]);
    check(
        &format!("{base}limits: {{max_bytes: 2MiB}}\n"),
        &[
            "f:2:17: warning: transports.k.max_message_bytes: 1000000 bytes are less than limits.max_bytes (2097152 bytes): larger payloads become dead letters; raise it, or lower limits.max_bytes",
        ],
    );
    check(
        &base.replace("4000000", "1000"),
        &[
            "f:2:90: warning: transports.m.max_message_bytes: 1000 bytes are less than limits.max_bytes (983040 bytes): larger payloads become dead letters; raise it, or lower limits.max_bytes",
        ],
    );
}

#[test]
fn a_listener_that_is_open_to_everyone_is_a_warning() {
    check(
        "
instance: t
transports:
  n: {type: nats, servers: [\"nats://n.example.com\"], auth: {user: u, password: {env: P}}, tls: {required: false}}
  l: {type: nats, servers: [\"nats://127.0.0.1\"], auth: {token: {env: P}}}
http: {listen: \"0.0.0.0:80\"}
admin: {listen: \"[::]:90\"}
bindings:
- {name: a, transport: n, topics: [a]}
- {name: b, transport: n, topics: [b], stream: S, durable: D}
default_route: [{transport: l, topic: t}]
",
        &[
            "f:4:107: warning: transports.n.tls.required: false sends the password or token in clear to servers without TLS",
            "f:6:16: warning: http.listen: listens on every address, without authentication: anyone who can reach it can call every agent; write 127.0.0.1:80 and put an authenticating proxy in front of it",
            "f:7:17: warning: admin.listen: listens on every address, without authentication: anyone who can reach it sees metrics and topic names",
            "f:9:3: warning: bindings[0].dead_letter.topic: dead letters of core NATS are lost unless a JetStream stream stores a2abus.dlq: `a2abus topics apply` creates one, and `a2abus check --connect` looks for it",
        ],
    );
}

#[test]
fn webhooks_need_a_key_if_the_state_leaves_the_process() {
    let text = |push: &str, log: &str| {
        format!(
            "a2a: {{push_notifications: {{{push}}}}}\nstate: {{log: {log}}}\ndefault_route: [{{transport: n, topic: t}}]\n"
        )
    };
    let warning = "warning: a2a.push_notifications.keys: is missing: webhooks with a token or credentials are refused, because the state would hold them unencrypted";
    let is_warned = |text: String| {
        let messages = problems(&format!("{BASE}{text}"), &[]);
        messages.iter().any(|message| message.ends_with(warning))
    };
    assert!(is_warned(text("enabled: true", "k")));
    assert!(!is_warned(text("enabled: true", "memory")));
    assert!(!is_warned(text("enabled: false", "k")));
}

#[test]
fn librdkafka_refuses_properties_without_a_connection() {
    check(
        "\
instance: t
transports: {k: {type: kafka, brokers: [a:1], properties: {client.rack: r, foo: x}}}
",
        &["f:2:81: transports.k.properties.foo: librdkafka has no such property"],
    );
}
