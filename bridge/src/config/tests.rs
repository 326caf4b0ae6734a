//! Golden outputs: a file, and every problem that is reported for it. Here: the file as a whole, and its values.

mod agents;
mod bindings;
mod environment;
mod routing;
mod service;
mod workflows;

use std::path::Path;

use super::*;

/// The smallest whole configuration; cases add to it.
const BASE: &str = "
instance: t
transports: {k: {type: kafka, brokers: [a:1]}, n: {type: nats, servers: [\"nats://a\"], jetstream: {manage: true, streams: [{name: D, subjects: [a2abus.dlq]}]}}}
";

fn read(text: &str, environment: &[(&str, &str)]) -> Result<Config, ConfigErrors> {
    let environment = environment
        .iter()
        .map(|(name, value)| (name.into(), value.into()));
    Config::read("f", text, environment)
}

/// All problems of a file, errors and warnings.
fn problems(text: &str, environment: &[(&str, &str)]) -> Vec<String> {
    match read(text, environment) {
        Ok(config) => config
            .warnings
            .iter()
            .chain(&config.unverified)
            .map(|w| w.in_file("f").to_string())
            .collect(),
        Err(errors) => errors.to_string().lines().map(str::to_owned).collect(),
    }
}

fn check(text: &str, expected: &[&str]) {
    assert_eq!(problems(text, &[]), expected, "{text}");
}

/// As [`check`], for text after [`BASE`]; the lines are counted from its first one.
fn check_more(more: &str, expected: &[&str]) {
    let more = more.trim_start_matches('\n');
    let before = BASE.lines().count();
    let messages: Vec<String> = problems(&format!("{BASE}{more}"), &[])
        .iter()
        .map(|line| {
            let mut parts = line.splitn(3, ':');
            let (file, number) = (parts.next().unwrap(), parts.next().unwrap());
            match number.parse::<usize>() {
                Ok(number) if number > before => {
                    format!("{file}:{}:{}", number - before, parts.next().unwrap())
                }
                _ => line.clone(),
            }
        })
        .collect();
    assert_eq!(messages, expected, "{more}");
}

#[test]
fn invalid_yaml_is_reported_with_its_position() {
    check("a: [", &["f:1:4: not YAML: unclosed bracket '['"]);
    check("\nhttp: {}\nhttp: {}\n", &["f:3:1: duplicate key http"]);
    check(
        "a: b: c",
        &["f:1:5: not YAML: mapping values are not allowed in this context"],
    );
    check(": 1", &["f:1:1: a key is empty"]);
    check("- 1", &["f:1:1: expected a section of keys, not a list"]);
    check(
        "a: *b",
        &[
            "f:1:4: not YAML: alias references unknown anchor: close every [ and {, and put values with {, }, * or > in quotes",
        ],
    );
    let cure = "put values with {, }, * or > in quotes";
    for text in [
        "default_route: [{transport: n, topic: agents.{targetagent}}]",
        "when: {targetagent: *}",
        "when:\n  targetagent: *",
        "topics: [agents.*, *]",
        "topics: [*.>]",
        "topics: [agents.>, >]",
        "when: {targetagent: *foo}",
    ] {
        let found = problems(text, &[]);
        assert!(found.len() == 1 && found[0].ends_with(cure), "{found:?}");
    }
    let missing = Config::load(Path::new("/nowhere/a2abus.yaml"), []).unwrap_err();
    assert!(
        missing
            .to_string()
            .starts_with("/nowhere/a2abus.yaml: cannot be read: ")
    );
}

#[test]
fn a_text_that_the_parser_refuses_is_reported_without_the_words_of_the_parser() {
    let bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned()
        + "b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n"
        + "c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b]\n"
        + "d: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c]\n"
        + "e: &e [*d, *d, *d, *d, *d, *d, *d, *d, *d]\n"
        + "f: &f [*e, *e, *e, *e, *e, *e, *e, *e, *e]\n"
        + "g: [*f, *f, *f, *f, *f, *f, *f, *f, *f]\n";
    for (text, end) in [
        (
            "http: {}\n---\nadmin: {}\n",
            "the file has several YAML documents: keep one, and remove the line `---` after it",
        ),
        (
            bomb.as_str(),
            "too many values, or too many levels of values: an alias (`*NAME`) counts as what it repeats",
        ),
    ] {
        let found = problems(text, &[]);
        assert!(found.len() == 1 && found[0].ends_with(end), "{found:?}");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a2abus.yaml");
    std::fs::write(&path, b"http: {}\nadmin: {} # \xe9\n").unwrap();
    let error = Config::load(&path, []).unwrap_err().to_string();
    let end = "a2abus.yaml: cannot be read: line 2 is not UTF-8: save the file as UTF-8";
    assert!(error.ends_with(end), "{error}");
}

#[test]
fn a_whole_number_with_an_exponent_is_refused_with_its_digits() {
    check_more(
        "limits: {max_depth: 1e2, max_hops: 3.0}\n",
        &[
            "f:1:21: limits.max_depth: expected a whole number: write 100",
            "f:1:36: limits.max_hops: expected a whole number: write 3",
        ],
    );
}

#[test]
fn a_file_of_nothing_lacks_a_transport() {
    let expected = [
        "f:1:1: transports: add a transport, of type kafka or nats: calls go to agents through it",
    ];
    check("", &expected);
    check("# a comment", &expected);
    check("calls: {enabled: false}", &[]);
    check(
        "calls: {enabled: false}\nhttp: {enabled: false}",
        &["f:1:1: nothing to do: add a binding, or enable http"],
    );
}

#[test]
fn unknown_keys_are_errors_with_a_guess() {
    check_more(
        "
htp: {}
http: {listn: 1, zzz: 1}
bindings:
- {name: b, transport: k, topic: [a]}
routes:
- name: r
  when: {target_agent: a, targetagent: {exct: a}}
  to: [{transport: k, topics: a}]
",
        &[
            "f:1:1: htp: unknown key: did you mean http?",
            "f:2:8: http.listn: unknown key: did you mean listen?",
            "f:2:18: http.zzz: unknown key: the keys here are allowed_hosts, allowed_origins, drain_grace, enabled, header_timeout, idle_timeout, listen, max_connections, max_connections_per_client, pass_headers",
            "f:4:3: bindings[0].topics: is missing: the topics to read",
            "f:4:27: bindings[0].topic: unknown key: did you mean topics?",
            "f:7:10: routes[0].when.target_agent: \"target_agent\" is not an attribute name: use at most 20 lower-case letters and digits, such as targetagent",
            "f:7:41: routes[0].when.targetagent.exct: unknown key: did you mean exact?",
            "f:8:8: routes[0].to[0].topic: is missing: the topic, in which `{attribute}` stands for the value of an attribute of the event, as in `agents.{targetagent}`",
            "f:8:23: routes[0].to[0].topics: unknown key: did you mean topic?",
        ],
    );
}

#[test]
fn invalid_values_are_reported_with_a_fix() {
    check_more(
        "
admin:
limits: {max_depth: 129, max_hops: 0, max_bytes: x}
telemetry: {log: \"a=b=c\", log_format: jsn}
http: {listen: localhost:80, header_timeout: 10, enabled: yes, max_connections: 1.5}
bindings:
- {name: -b, transport: k, topics: [], role: evnts, group: 7}
- {name: b, transport: k, topics: a, budget_bytes: 1KiB}
- {name: b, transport: k, topics: [\"a..b\", \"a b\"]}
- 5
",
        &[
            "f:2:1: warning: routes: there is no route, so every event becomes a dead letter",
            "f:1:1: admin: is empty: expected a section of keys",
            "f:2:21: limits.max_depth: out of bounds: write 8 to 128",
            "f:2:36: limits.max_hops: out of bounds: write 1 to 1000",
            "f:2:50: limits.max_bytes: not a size: write a number of bytes, or a number and a unit such as 64MiB",
            "f:3:18: telemetry.log: not a log filter: write levels, such as info or info,a2abus_bridge=debug",
            "f:3:39: telemetry.log_format: not allowed: did you mean json? The values are text, json",
            "f:4:16: http.listen: not a socket address: write an IP address and a port, such as 0.0.0.0:8080 or [::]:8080",
            "f:4:46: http.header_timeout: not a duration: write a number and a unit, such as 250ms, 30s or 2m",
            "f:4:59: http.enabled: expected true or false, not a string",
            "f:4:81: http.max_connections: expected a whole number, not a number",
            "f:6:10: bindings[0].name: not a name: write 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit",
            "f:6:36: bindings[0].topics: too few: write at least 1",
            "f:6:46: bindings[0].role: not allowed: did you mean events? The values are events, responses, workflows, discovery",
            "f:6:60: bindings[0].group: expected a string, not a number: put it in quotes",
            "f:7:35: bindings[1].topics: expected a list, not a string: put it in brackets",
            "f:7:52: bindings[1].budget_bytes: out of bounds: write 64KiB to 16GiB",
            "f:8:10: bindings[2].name: is already the name of bindings[1]: choose another one",
            "f:8:36: bindings[2].topics[0]: \"a..b\" is not a topic name: no segment between dots may be empty",
            "f:8:44: bindings[2].topics[1]: \"a b\" is not a topic name: only letters, digits, '.', '_' and '-' are allowed",
            "f:9:3: bindings[3]: expected a section of keys, not a number",
        ],
    );
}

#[test]
fn a_level_that_does_not_exist_is_refused_and_no_host_has_a_scheme() {
    let file = |log: &str, host: &str| {
        format!("\ntelemetry: {{log: '{log}'}}\nhttp: {{allowed_hosts: ['{host}']}}\n")
    };
    let not_a_filter = "f:1:18: telemetry.log: not a log filter: write levels, such as info or info,a2abus_bridge=debug";
    check_more(&file("warn;a2abus=debug", "a.example.com"), &[not_a_filter]);
    for log in ["inf", "verbose", "info,,a2abu"] {
        check_more(
            &file(log, "a.example.com"),
            &[&format!(
                "f:1:18: telemetry.log: there is no level {:?}: write error, warn, info, debug, trace or off; for one target TARGET=LEVEL",
                log.rsplit(',').next().unwrap_or_default()
            )],
        );
    }
    for host in ["*.example.com", "https://b.example.com", "a:8080"] {
        check_more(
            &file("info,a2abus=debug,[span]=off", host),
            &["f:2:24: http.allowed_hosts[0]: must match the pattern ^(\\*|[A-Za-z0-9._-]+)$"],
        );
    }
}

#[test]
fn limits_are_said_with_what_is_beyond_them() {
    check_more(
        "
admin: {listen: 5, allowed_hosts: [\"\"]}
agents: {a: {description: \"\", to: {transport: k, topic: t}}}
calls: {max_pending: 0, timeout: 1us}
routes: [{name: r, to: []}]
workflows: {max_retries: 11, agent: \"a b\"}
",
        &[
            "f:1:17: admin.listen: not a socket address: write an IP address and a port, such as 0.0.0.0:8080 or [::]:8080",
            "f:1:36: admin.allowed_hosts[0]: must not be empty",
            "f:2:27: agents.a.description: must not be empty",
            "f:3:22: calls.max_pending: out of bounds: write 1 to 10000000",
            "f:3:34: calls.timeout: out of bounds: write 1ms to 1h",
            "f:4:24: routes[0].to: too few: write 1 to 64",
            "f:5:26: workflows.max_retries: out of bounds: write 0 to 10",
            "f:5:37: workflows.agent: must match the pattern ^[A-Za-z0-9._/:@+-]+$",
        ],
    );
    check(
        "transports: {a: {type: 5}}",
        &["f:1:24: transports.a.type: expected a string, not a number: put it in quotes"],
    );
}

#[test]
fn transports_are_distinguished_by_their_type() {
    check(
        "
instance: t
transports:
  a: {type: kafak}
  b: {}
  c: {type: memory, partitions: 0, oops: 1}
  _d: {type: memory}
  e: {type: memory}
",
        &[
            "f:4:13: transports.a.type: not allowed: did you mean kafka? The values are kafka, nats, memory",
            "f:5:6: transports.b.type: is missing",
            "f:6:33: transports.c.partitions: out of bounds: write 1 to 65535",
            "f:6:36: transports.c.oops: unknown key: the keys here are max_message_bytes, partitions, type",
            "f:7:3: transports._d: not a name: write 1 to 64 letters, digits, '.', '_' or '-', beginning with a letter or digit",
        ],
    );
}

#[test]
fn names_are_unique_and_refer_to_existing_parts() {
    check_more(
        "
bindings:
- {name: b, transport: kk, topics: [a]}
- {name: b, transport: k, topics: [b], dead_letter: {transport: zzz}}
routes:
- {name: r, when: {binding: c}, to: [{transport: m, topic: t}]}
- {name: r, when: {binding: b}, to: [{transport: k, topic: t}]}
- {name: default, when: {id: b}, to: [{transport: k, topic: t}]}
default_route: [{transport: x, topic: t}]
",
        &[
            "f:2:24: bindings[0].transport: there is no transport kk: did you mean k?",
            "f:3:10: bindings[1].name: is already the name of bindings[0]: choose another one",
            "f:3:65: bindings[1].dead_letter.transport: there is no transport zzz: the transports are k, n",
            "f:5:29: routes[0].when.binding: there is no binding c: did you mean b?",
            "f:5:50: routes[0].to[0].transport: there is no transport m: did you mean k?",
            "f:6:10: routes[1].name: is already the name of routes[0]: choose another one",
            "f:7:10: routes[2].name: is the name of default_route: choose another one",
            "f:8:29: default_route[0].transport: there is no transport x: did you mean k?",
        ],
    );
}

#[test]
fn a_broken_section_makes_no_problems_elsewhere() {
    check(
        "
instance: t
transports: 5
bindings: {}
routes: 7
",
        &[
            "f:3:13: transports: expected a section of keys, not a number",
            "f:4:11: bindings: expected a list, not a section of keys",
            "f:5:9: routes: expected a list, not a number",
        ],
    );
    check(
        "
instance: t
transports: 5
bindings: [{name: b, transport: x, topics: [a]}]
default_route: {}
",
        &[
            "f:3:13: transports: expected a section of keys, not a number",
            "f:5:16: default_route: expected a list, not a section of keys",
        ],
    );
}

#[test]
fn one_bad_value_does_not_hide_the_rest() {
    check_more(
        "
bindings:
- {name: b, transport: k, topics: 5}
- {name: c, transport: q, topics: [a]}
routes:
- {name: r, when: {binding: b}, to: [{transport: k, topic: t}]}
",
        &[
            "f:2:35: bindings[0].topics: expected a list, not a number",
            "f:3:24: bindings[1].transport: there is no transport q: did you mean k?",
        ],
    );
}

#[test]
fn problems_are_written_as_json_too() {
    let errors = read("htp: {}\n", &[("A2ABUS_X", "1")]).unwrap_err();
    assert_eq!(
        serde_json::to_value(&errors).unwrap(),
        serde_json::json!({"file": "f", "problems": [
            {"severity": "error", "line": 1, "column": 1, "path": "htp",
             "message": "unknown key: did you mean http?"},
            {"severity": "error", "line": 1, "column": 1, "path": "transports",
             "message": "add a transport, of type kafka or nats: calls go to agents through it"},
            {"severity": "error", "variable": "A2ABUS_X", "path": "x",
             "message": "unknown key: the keys here are a2a, admin, agents, bindings, calls, default_route, http, instance, limits, mcp, registry, routes, state, telemetry, transports, workflows"},
        ]})
    );
}

#[test]
fn the_sample_is_valid_and_complete() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/a2abus.yaml");
    let config = Config::load(&path, []).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    assert_eq!(config.bindings.len(), 4);
    crate::route::RouteTable::build(&config.routes, &config.default_route).unwrap();
}

#[test]
fn defaults_are_read_as_they_are_written() {
    let config = read(
        "transports: {m: {type: memory}}\nbindings: [{name: b, transport: m, topics: [a]}]",
        &[],
    )
    .unwrap();
    assert_eq!(config.limits.max_bytes.0, bytesize::ByteSize::kib(960));
    assert_eq!(config.bindings[0].dead_letter.topic.as_str(), "a2abus.dlq");
    let written = serde_json::to_value(&config.calls).unwrap();
    let read: CallsConfig = serde_json::from_value(written.clone()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), written);
}

#[test]
fn a_value_that_cannot_be_read_hides_nothing_that_is_wrong_beside_it() {
    check_more(
        "
bindings:
- {name: b, transport: kafka, topics: [in], role: evnts, dead_letter: {transport: q}}
- {name: b, transport: k, topics: 5}
routes:
- name: r
  when: {targetagent: 7}
  to: [{transport: z, topic: t}, {transport: k, topic: _x, stored: true}, {transport: y, topic: 5}]
- {name: r, when: {a: 5}, to: [{transport: n, topic: t}]}
default_route: [{transport: x, topic: t, mode: fast}]
",
        &[
            "f:2:24: bindings[0].transport: there is no transport kafka: the transports are k, n",
            "f:2:51: bindings[0].role: not allowed: did you mean events? The values are events, responses, workflows, discovery",
            "f:2:83: bindings[0].dead_letter.transport: there is no transport q: did you mean k?",
            "f:3:10: bindings[1].name: is already the name of bindings[0]: choose another one",
            "f:3:35: bindings[1].topics: expected a list, not a number",
            "f:6:23: routes[0].when.targetagent: expected a list or a section of keys or a string, not a number",
            "f:7:20: routes[0].to[0].transport: there is no transport z: did you mean k?",
            "f:7:56: routes[0].to[1].topic: is reserved: a topic must not begin with '_'",
            "f:7:68: routes[0].to[1].stored: is only for JetStream, on a transport of type nats",
            "f:7:87: routes[0].to[2].transport: there is no transport y: did you mean k?",
            "f:7:97: routes[0].to[2].topic: expected a string, not a number: put it in quotes",
            "f:8:10: routes[1].name: is already the name of routes[0]: choose another one",
            "f:8:23: routes[1].when.a: expected a list or a section of keys or a string, not a number",
            "f:9:29: default_route[0].transport: there is no transport x: did you mean k?",
            "f:9:48: default_route[0].mode: not allowed: the values are binary, structured",
        ],
    );
}
