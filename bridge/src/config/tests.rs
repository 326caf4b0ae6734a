//! Golden outputs: a file, and every problem that is reported for it.

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
        &["f:1:4: not YAML: alias references unknown anchor"],
    );
    let missing = Config::load(Path::new("/nowhere/a2abus.yaml"), []).unwrap_err();
    assert!(
        missing
            .to_string()
            .starts_with("/nowhere/a2abus.yaml: cannot be read: ")
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
fn conditions_have_three_shapes() {
    check_more(
        "
routes:
- name: r
  when: {a: 5, b: {}, c: {glob: \"[\"}, d: [\"x\", {y: z}, \"*[\"], e: {any: [5]}, f: [], g: {not: \"?[\"}}
  to: [{transport: k, topic: t}]
",
        &[
            "f:3:13: routes[0].when.a: expected a list or a section of keys or a string, not a number",
            "f:3:19: routes[0].when.b: is empty: write at least one of all, any, exact, glob, not, prefix, suffix",
            "f:3:33: routes[0].when.c.glob: not a glob: unclosed character class; missing ']'",
            "f:3:48: routes[0].when.d[1]: expected a string, not a section of keys",
            "f:3:56: routes[0].when.d[2]: not a glob: unclosed character class; missing ']'",
            "f:3:73: routes[0].when.e.any[0]: expected a list or a section of keys or a string, not a number",
            "f:3:81: routes[0].when.f: too few: write at least 1",
            "f:3:94: routes[0].when.g.not: not a glob: unclosed character class; missing ']'",
        ],
    );
}

#[test]
fn templates_are_checked() {
    check_more(
        "
routes:
- name: r
  when: {targetagent: a}
  to:
  - {transport: k, topic: \"a.{b\"}
  - {transport: k, topic: \"a.{B}\"}
  - {transport: k, topic: \"a b.{type}\"}
  - {transport: k, topic: \".{type}\"}
  - {transport: k, topic: _x}
  - {transport: k, topic: \"{type}\"}
  - {transport: k, topic: \"{subject}\", names: dotted}
  - {transport: k, topic: \"a.{subject}\", names: dotted, key: \"\"}
  - {transport: k, topic: a, key: \"{}\", names: any}
  - {transport: k, topic: \"{binding}.{subject}\", names: dotted}
",
        &[
            "f:5:27: routes[0].to[0].topic: the brace at byte 2 has no counterpart: write {attribute}, such as {targetagent}",
            "f:6:27: routes[0].to[1].topic: \"B\" is not an attribute name: use at most 20 lower-case letters and digits, such as targetagent",
            "f:7:27: routes[0].to[2].topic: \"a b.x\" is not a topic name: only letters, digits, '.', '_' and '-' are allowed",
            "f:8:27: routes[0].to[3].topic: \".x\" is not a topic name: no segment between dots may be empty",
            "f:9:27: routes[0].to[4].topic: is reserved: a topic must not begin with '_'",
            "f:10:27: warning: routes[0].to[5].topic: begins with an attribute, so a payload can choose any topic without dots: put a fixed prefix before it",
            "f:11:27: routes[0].to[6].topic: begins with an attribute, and with names: dotted a payload can choose any topic: put a fixed prefix before it",
            "f:12:62: routes[0].to[7].key: the template is empty",
            "f:13:35: routes[0].to[8].key: \"\" is not an attribute name: use at most 20 lower-case letters and digits, such as targetagent",
            "f:13:48: routes[0].to[8].names: not allowed: the values are refuse, escape, dotted",
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
fn one_destination_of_a_route_answers() {
    check_more(
        "
routes:
- {name: r, to: [{transport: k, topic: t, answers: true}, {transport: k, topic: u}, {transport: k, topic: v, answers: true}]}
default_route: [{transport: k, topic: t}, {transport: k, topic: u, answers: true}, {transport: k, topic: v, answers: true}]
",
        &[
            "f:2:119: routes[0].to[2].answers: only one destination of a route may have answers: true",
            "f:3:118: default_route[2].answers: only one destination of a route may have answers: true",
        ],
    );
}

#[test]
fn bindings_fit_their_transport() {
    check_more(
        "
bindings:
- {name: a, transport: k, topics: [\"x.*\"], strict: true, budget_bytes: 64KiB}
- {name: b, transport: k, topics: [b], stream: S, durable: D}
- {name: c, transport: n, topics: [c], stream: S}
- {name: d, transport: n, topics: [d], durable: D}
- {name: e, transport: n, topics: [d.>], group: g}
- {name: f, transport: n, topics: [d.x], group: g}
routes:
- {name: r, to: [{transport: k, topic: t, stored: true}, {transport: n, topic: t, stored: true}]}
",
        &[
            "f:2:36: bindings[0].topics[0]: Kafka topics are read by name: wildcards are not supported",
            "f:2:52: bindings[0].strict: needs protocol: the only family that is accepted",
            "f:2:72: bindings[0].budget_bytes: is less than limits.max_bytes: the largest message would never fit",
            "f:3:48: bindings[1].stream: is only for JetStream, on a transport of type nats",
            "f:3:60: bindings[1].durable: is only for JetStream, on a transport of type nats",
            "f:4:3: bindings[2].durable: is missing: stream needs it",
            "f:5:3: bindings[3].stream: is missing: durable needs it",
            "f:7:35: warning: bindings[5].topics: shares a topic and the group g with the binding e: each receives only part of the messages",
            "f:9:51: routes[0].to[0].stored: is only for JetStream, on a transport of type nats",
        ],
    );
}

#[test]
fn dead_letters_and_replies_do_not_come_back() {
    check_more(
        "
bindings:
- {name: a, transport: n, topics: [\"a2abus.*\"], dead_letter: {topic: a2abus.dead}}
- {name: b, transport: k, topics: [b, a2abus.replies], dead_letter: {transport: n}}
routes:
- {name: r, to: [{transport: k, topic: t}]}
",
        &[
            "f:2:1: calls.reply_topic: is read by the binding b: the bridge already reads it",
            "f:2:70: bindings[0].dead_letter.topic: a2abus.dead is read by the binding a: its dead letters would loop forever",
            "f:2:70: warning: bindings[0].dead_letter.topic: dead letters of core NATS are lost unless a JetStream stream stores a2abus.dead: `a2abus topics apply` creates one, and `a2abus check --connect` looks for it",
            "f:3:69: bindings[1].dead_letter.topic: a2abus.dlq is read by the binding a: its dead letters would loop forever",
        ],
    );
}

/// On buses other than Kafka, each answer has its own topic below the reply topic.
#[test]
fn only_the_bridge_reads_answers() {
    let reads = |transport: &str, topic: &str| {
        let text = format!(
            "instance: t\ntransports: {{b: {transport}}}\nbindings: [{{name: a, transport: b, topics: ['{topic}'], role: responses}}]\n"
        );
        let reads = |text: &str| problems(text, &[]).join(" ").contains("calls.reply_topic");
        // Without a route, the bridge makes no calls there.
        assert!(!reads(&text), "{text}");
        reads(&format!(
            "{text}default_route: [{{transport: b, topic: t}}]\n"
        ))
    };
    let kafka = "{type: kafka, brokers: [a:1]}";
    assert!(reads(kafka, "a2abus.replies"));
    assert!(!reads(kafka, "a2abus.replies.x"));
    for other in ["{type: nats, servers: ['nats://a']}", "{type: memory}"] {
        for topic in ["a2abus.replies.>", "a2abus.replies.*.x", "a2abus.>", ">"] {
            assert!(reads(other, topic), "{topic}");
        }
        for topic in ["a2abus.replies", "a2abus.*", "a2abus.*.x", "a2abus.other.>"] {
            assert!(!reads(other, topic), "{topic}");
        }
    }
}

#[test]
fn names_of_bindings_that_the_bridge_adds_are_taken() {
    let long = "k".repeat(57);
    let text = format!(
        "
transports: {{{long}: {{type: kafka, brokers: [a:1]}}, k: {{type: kafka, brokers: [a:1]}}, m: {{type: memory}}}}
bindings:
- {{name: replies-k, transport: k, topics: [a]}}
- {{name: replies-m, transport: m, topics: [b]}}
- {{name: agent-w, transport: m, topics: [c]}}
- {{name: agent-v, transport: {long}, topics: [d]}}
agents:
  w: {{to: {{transport: m, topic: w}}, attach: {{command: [x]}}}}
  v: {{description: V, to: {{transport: m, topic: v}}}}
"
    );
    let called = format!(
        "{text}routes: [{{name: r, to: [{{transport: {long}, topic: t}}]}}]
default_route: [{{transport: m, topic: t}}, {{transport: k, topic: t, answers: true}}]
"
    );
    let taken = |name: &str, of: &str| {
        format!(
            "{name}: is the name of the binding that the bridge adds for {of}: choose another one"
        )
    };
    let too_long =
        "at most 56 characters are allowed, because the bridge adds the binding replies-NAME";
    let too_long = format!("transports.{long}: its name is too long: {too_long}");
    let found = |text: &str| {
        let lines = problems(text, &[]);
        let errors = lines
            .into_iter()
            .filter(|line| !line.contains(": warning: "));
        let errors = errors.map(|line| line.splitn(4, ':').nth(3).unwrap().trim().to_owned());
        errors.collect::<Vec<_>>()
    };
    let of_agent = taken("bindings[2].name", "agents.w.attach");
    let of_replies = taken("bindings[0].name", "transports.k");
    assert_eq!(found(&called), [too_long, of_replies, of_agent.clone()]);
    // Without calls, no answers are read.
    assert_eq!(found(&text), std::slice::from_ref(&of_agent));
    let without = format!("{called}calls: {{enabled: false}}\n");
    assert_eq!(found(&without), [of_agent]);
}

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
fn unreachable_routes_are_reported() {
    check_more(
        "
routes:
- {name: a, when: {targetagent: x}, to: [{transport: k, topic: t}]}
- {name: b, when: {targetagent: y}, to: [{transport: n, topic: t}]}
- {name: c, when: {targetagent: x}, to: [{transport: k, topic: t}]}
- {name: d, when: {targetagent: x, type: z}, to: [{transport: k, topic: t}]}
- {name: e, to: [{transport: k, topic: t}]}
- {name: f, when: {type: z}, to: [{transport: k, topic: t}]}
",
        &[
            "f:4:3: warning: routes[2]: never matches: the earlier route a matches every event that meets its conditions",
            "f:5:3: warning: routes[3]: never matches: the earlier route a matches every event that meets its conditions",
            "f:7:3: warning: routes[5]: never matches: the earlier route e matches every event that meets its conditions",
        ],
    );
}

#[test]
fn loops_of_one_route() {
    check_more(
        "
bindings: [{name: b, transport: n, topics: [\"a.>\"]}]
routes:
- {name: static, when: {targetagent: x}, to: [{transport: n, topic: a.x}, {transport: k, topic: a.x}]}
- {name: template, when: {targetagent: y}, to: [{transport: n, topic: \"a.{targetagent}\"}]}
- {name: elsewhere, when: {targetagent: z}, to: [{transport: n, topic: \"b.{targetagent}\"}]}
- {name: from-outside, when: {binding: {not: b}}, to: [{transport: n, topic: a.y}]}
default_route: [{transport: n, topic: \"{id}.x\"}, {transport: n, topic: a.z}]
",
        &[
            "f:3:69: routes[0].to[0].topic: publishes to a topic that binding \"b\" reads (a.>), and its events take this route again: a loop",
            "f:4:71: warning: routes[1].to[0].topic: can publish to a topic that binding \"b\" reads (a.>): possible loop, stopped after limits.max_hops",
            "f:7:39: warning: default_route[0].topic: begins with an attribute, so a payload can choose any topic without dots: put a fixed prefix before it",
            "f:7:39: warning: default_route[0].topic: can publish to a topic that binding \"b\" reads (a.>): possible loop, stopped after limits.max_hops",
            "f:7:72: default_route[1].topic: publishes to a topic that binding \"b\" reads (a.>), and its events take this route again: a loop",
        ],
    );
}

#[test]
fn an_executor_that_callers_reach_without_a_key_is_a_warning() {
    let text = |rpc: bool, run_as: &str| {
        format!(
            "workflows: {{enabled: true, rpc: {rpc}, agents: [{{id: a}}]}}\nbindings: [{{name: w, transport: k, topics: [w], role: workflows{run_as}}}]\ndefault_route: [{{transport: n, topic: t}}]\n"
        )
    };
    let warning = "f:1:33: warning: workflows.rpc: anyone who can reach http.listen can execute workflows as a without a key, by POST /rpc";
    check_more(&text(true, ", run_as: a"), &[warning]);
    check_more(&text(false, ", run_as: a"), &[]);
    check_more(&text(true, ", trusts: [sourceagent]"), &[]);
    let off = format!("{}http: {{enabled: false}}\n", text(true, ", run_as: a"));
    check_more(&off, &[]);
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
fn a_workflow_binding_says_whose_permissions_requests_have() {
    let check = |keys: &str, problems: &[&str]| {
        let text = format!(
            "workflows: {{enabled: true, agents: [{{id: a}}]}}\nbindings: [{{name: w, transport: k, topics: [w], role: workflows{keys}}}]\ndefault_route: [{{transport: n, topic: t}}]\n"
        );
        check_more(&text, problems);
    };
    check(", run_as: a", &[]);
    check(", trusts: [sourceagent]", &[]);
    let missing = "f:2:12: bindings[0].run_as: is missing: write the agent with whose permissions all requests run, or trusts: [sourceagent] if every writer of the topics may act for any agent";
    check("", &[missing]);
    check(
        ", trusts: [source]",
        &[
            missing,
            "f:2:74: bindings[0].trusts: source is only for role: events: requests for workflows are not forwarded",
        ],
    );
    check(
        ", run_as: a, trusts: [sourceagent]",
        &[
            "f:2:74: bindings[0].run_as: cannot be combined with trusts: [sourceagent]: keep one of them",
        ],
    );
}

#[test]
fn loops_that_a_condition_rules_out_are_none() {
    let routes = |routes: &str| {
        format!(
            "bindings: [{{name: b, transport: k, topics: [agents.requests]}}, {{name: c, transport: n, topics: [\"a.requests.*\"]}}]\nroutes:\n{routes}\n"
        )
    };
    let none = [
        r#"- {name: r, when: {targetagent: "k-*"}, to: [{transport: k, topic: "agents.{targetagent}"}]}"#,
        r#"- {name: r, when: {targetagent: {not: requests}}, to: [{transport: k, topic: "agents.{targetagent}"}]}"#,
        r#"- {name: r, when: {targetagent: [a, b]}, to: [{transport: k, topic: "agents.{targetagent}", names: escape}]}"#,
        r#"- {name: r, when: {subject: "x.*"}, to: [{transport: k, topic: "agents.{subject}", names: dotted}]}"#,
        r#"- {name: r, when: {targetagent: "k-*"}, to: [{transport: n, topic: "a.{targetagent}.{type}"}]}"#,
        r#"- {name: r, when: {targetagent: x}, to: [{transport: k, topic: "agents.{targetagent}-{type}"}]}"#,
    ];
    for route in none {
        check_more(&routes(route), &[]);
    }
    let possible = [
        r#"- {name: r, when: {targetagent: "r*"}, to: [{transport: k, topic: "agents.{targetagent}"}]}"#,
        r#"- {name: r, when: {type: x}, to: [{transport: k, topic: "agents.{targetagent}"}]}"#,
        r#"- {name: r, when: {subject: "re*"}, to: [{transport: k, topic: "agents.{subject}", names: dotted}]}"#,
        r#"- {name: r, when: {targetagent: "r*"}, to: [{transport: k, topic: "agents.{targetagent}{type}"}]}"#,
    ];
    for route in possible {
        let messages = problems(&format!("{BASE}{}", routes(route)), &[]);
        assert_eq!(messages.len(), 1, "{route}: {messages:?}");
        let loops = "can publish to a topic that binding \"b\" reads (agents.requests): possible loop, stopped after limits.max_hops";
        assert!(messages[0].ends_with(loops), "{messages:?}");
    }
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
fn attributes_that_are_nearly_known_ones_are_questioned() {
    check_more(
        "
routes:
- name: r
  when: {targetagnt: a, tenant: b, mcptypes: c, targetagent: d, seq: e, sec: f, team: g}
  to: [{transport: k, topic: \"t.{targetagentt}\", key: \"{colaborationid}{team}\"}]
",
        &[
            "f:3:51: warning: transports.n: is not used",
            "f:3:10: warning: routes[0].when.targetagnt: a2abus sets no attribute targetagnt: did you mean targetagent?",
            "f:3:36: warning: routes[0].when.mcptypes: a2abus sets no attribute mcptypes: did you mean mcptype?",
            "f:3:73: warning: routes[0].when.sec: a2abus sets no attribute sec: did you mean seq?",
            "f:4:30: warning: routes[0].to[0].topic: a2abus sets no attribute targetagentt: did you mean targetagent?",
            "f:4:55: warning: routes[0].to[0].key: a2abus sets no attribute colaborationid: did you mean collaborationid?",
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
fn loops_of_several_routes() {
    check_more(
        "
bindings:
- {name: b1, transport: k, topics: [t1], group: g1}
- {name: b2, transport: k, topics: [t2], group: g2}
routes:
- {name: r1, when: {binding: b1}, to: [{transport: k, topic: t2}]}
- {name: r2, when: {binding: b2}, to: [{transport: k, topic: t1}]}
",
        &["f:5:62: routes[0].to[0].topic: is part of a loop of the bindings b1 -> b2 -> b1"],
    );
    check_more(
        "
bindings:
- {name: b1, transport: k, topics: [t1], group: g1}
- {name: b2, transport: k, topics: [t2], group: g2}
routes:
- {name: r1, when: {binding: b1, targetagent: x}, to: [{transport: k, topic: t2}]}
- {name: r2, when: {binding: b2}, to: [{transport: n, topic: t1}]}
- {name: r3, when: {binding: b2, type: x}, to: [{transport: n, topic: t1}, {transport: k, topic: t1}]}
",
        &[
            "f:5:78: warning: routes[0].to[0].topic: can be part of a loop of the bindings b1 -> b2 -> b1: stopped after limits.max_hops",
            "f:7:3: warning: routes[2]: never matches: the earlier route r2 matches every event that meets its conditions",
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

#[test]
fn workflows_refer_to_existing_parts() {
    check_more(
        "
workflows:
  enabled: true
  apis:
  - {id: users, base_url: \"https://api.example.com/v1\"}
  - {id: users, base_url: \"https://b.example.com\"}
  credentials:
  - {id: key, type: api-key, value: {env: KEY}, apis: [user]}
  - {id: key, type: basic, value: {file: /k}}
  agents:
  - {id: a, operations: [ApiCal], apis: [zzz, \"*\"], credentials: [key, kee], storages: [file, local]}
  - {id: a, operations: [\"*\"]}
bindings:
- {name: w, transport: k, topics: [w], role: workflows, run_as: b}
- {name: e, transport: k, topics: [e], run_as: a}
default_route: [{transport: n, topic: t}]
",
        &[
            "f:5:10: workflows.apis[1].id: is already the id of workflows.apis[0]: choose another one",
            "f:7:56: workflows.credentials[0].apis[0]: there is no API user: did you mean users?",
            "f:8:5: warning: workflows.credentials[1].apis: is empty, so the credential is never sent: list the APIs it is for",
            "f:8:10: workflows.credentials[1].id: is already the id of workflows.credentials[0]: choose another one",
            "f:10:26: workflows.agents[0].operations[0]: there is no operation ApiCal: did you mean ApiCall?",
            "f:10:42: workflows.agents[0].apis[0]: there is no API zzz: the APIs are users, users",
            "f:10:72: workflows.agents[0].credentials[1]: there is no credential kee: did you mean key?",
            "f:10:89: workflows.agents[0].storages[0]: needs workflows.file_directory, the directory of the files",
            "f:10:95: workflows.agents[0].storages[1]: there is no storage local: the storages are localStorage, sessionStorage, file",
            "f:11:10: workflows.agents[1].id: is already the id of workflows.agents[0]: choose another one",
            "f:13:65: bindings[0].run_as: there is no agent b: did you mean a?",
            "f:14:48: bindings[1].run_as: is only for bindings with role: workflows",
        ],
    );
}

#[test]
fn invalid_workflow_values_are_reported_with_a_fix() {
    check_more(
        "
workflows:
  workers: 0
  apis: [{id: a, base_url: api.example.com}, {id: b, base_url: \"ftp://b\"}, {id: c, base_url: \"https://u@c?q=1\"}]
  credentials: [{id: k, type: bearer, value: hunter2}, {id: l, type: custom}]
  agents: [{id: a, keys: [{sha256: abc}, {key: x}, hunter2], max_execution_time: 2h, max_operations: 101}]
",
        &[
            "f:2:12: workflows.workers: out of bounds: write 1 to 256",
            "f:3:28: workflows.apis[0].base_url: not a base URL: write http or https, a host and a path, such as https://api.example.com/v1, without user, query or fragment",
            "f:3:64: workflows.apis[1].base_url: not a base URL: write http or https, a host and a path, such as https://api.example.com/v1, without user, query or fragment",
            "f:3:94: workflows.apis[2].base_url: not a base URL: write http or https, a host and a path, such as https://api.example.com/v1, without user, query or fragment",
            "f:4:31: workflows.credentials[0].type: not allowed: the values are bearer-token, basic, api-key, password, custom",
            "f:4:46: workflows.credentials[0].value: secrets must not be in this file: write {env: NAME} or {file: PATH}",
            "f:4:56: workflows.credentials[1].value: is missing: the secret: a file or an environment variable",
            "f:5:36: workflows.agents[0].keys[0].sha256: must match the pattern ^[0-9a-fA-F]{64}$",
            "f:5:42: workflows.agents[0].keys[1].sha256: is missing",
            "f:5:43: workflows.agents[0].keys[1].key: unknown key: the keys here are sha256",
            "f:5:52: workflows.agents[0].keys[2]: secrets must not be in this file: write {env: NAME} or {file: PATH} or {sha256: HEX}",
            "f:5:82: workflows.agents[0].max_execution_time: out of bounds: write 1ms to 1h",
            "f:5:102: workflows.agents[0].max_operations: out of bounds: write 1 to 100",
        ],
    );
}

#[test]
fn unusable_workflows_are_reported() {
    let twice = "a".repeat(64);
    let agents = format!(
        "agents: [{{id: a, keys: [{{sha256: {twice}}}]}}, {{id: b, keys: [{{sha256: {}}}]}}]",
        twice.to_uppercase()
    );
    check_more(
        &format!(
            "workflows: {{{agents}}}\nbindings: [{{name: w, transport: k, topics: [w], role: workflows, trusts: [sourceagent]}}]\ndefault_route: [{{transport: n, topic: t}}]\n"
        ),
        &[
            "f:1:130: workflows.agents[1].keys[0]: is the same key as workflows.agents[0].keys[0]",
            "f:2:55: bindings[0].role: needs workflows.enabled: true",
        ],
    );
    check_more(
        "http: {enabled: false}\nworkflows: {enabled: true}\ncalls: {enabled: false}\n",
        &[
            "f:2:1: nothing to do: add a binding, or enable http",
            "f:2:12: warning: workflows.agents: is empty, so no agent may execute a workflow",
            "f:2:22: warning: workflows.enabled: the executor cannot be reached: enable http, or write a binding with role: workflows",
        ],
    );
}

#[test]
fn agents_are_reached_and_their_cards_can_be_served() {
    let agents = "
agents:
  weather: {description: W, to: {transport: k, topic: agents.weather}}
  maps: {description: M, skills: [{id: a, description: A}, {id: a, description: B}]}
";
    check_more(
        &format!(
            "{agents}\nroutes: [{{name: agent-weather, to: [{{transport: k, topic: a}}]}}]\na2a: {{default_agent: wether}}\nhttp: {{allowed_hosts: ['*']}}\n"
        ),
        &[
            "f:2:12: warning: agents.weather: never matches: the earlier route agent-weather matches every event that meets its conditions",
            "f:2:33: agents.weather.to: its route is named agent-weather, as routes[0].name is already: rename that one",
            "f:3:65: agents.maps.skills[1].id: is already the id of agents.maps.skills[0]: choose another one",
            "f:6:6: a2a.public_url: is missing: http.allowed_hosts accepts any name, so the URLs of agent cards cannot be built from Host",
            "f:6:22: a2a.default_agent: there is no agent wether: did you mean weather?",
        ],
    );
    let config = read(
        &format!(
            "{BASE}agents: {{weather: {{description: W, to: {{transport: k, topic: agents.weather}}}}}}\n"
        ),
        &[],
    );
    let routes = config.unwrap().routes;
    assert_eq!(routes.len(), 1);
    assert_eq!(routes[0].name.as_str(), "agent-weather");
    check_more(
        "agents: {w: {description: W, to: {transport: x, topic: a}}}\n",
        &["f:1:46: agents.w.to.transport: there is no transport x: did you mean k?"],
    );
    // Agents that announce themselves have cards too.
    check_more(
        "http: {allowed_hosts: ['*']}\nregistry: {enabled: true, destinations: [{to: {transport: k, topic: a}}]}\n",
        &[
            "f:2:1: a2a.public_url: is missing: http.allowed_hosts accepts any name, so the URLs of agent cards cannot be built from Host",
        ],
    );
}

#[test]
fn an_attached_agent_is_a_program_or_a_server() {
    check_more(
        "
agents:
  a: {to: {transport: k, topic: a}, attach: {}}
  b: {to: {transport: k, topic: b}, attach: {command: [x], url: 'http://b/'}}
  c: {to: {transport: k, topic: c}, attach: {command: [x], protocol: a2a, headers: {x-a: b}}}
  d: {to: {transport: k, topic: d}, attach: {url: 'http://d/', env: {A: b}, directory: /d}}
  e: {to: {transport: k, topic: e}, attach: {url: 'ftp://e/'}}
  f: {to: {transport: k, topic: f}, attach: {url: 'http://f/', headers: {host: f, 'a b': c}}}
  g: {to: {transport: k, topic: g}}
  h: {to: {transport: k, topic: h}, attach: {url: 'https://h/mcp', headers: {authorization: {env: T}, x-h: h}}}
  i: {to: {transport: k, topic: i}, attach: {command: [x], env: {'A=B': c, D: e}}}
",
        &[
            "f:2:45: agents.a.attach: needs either command or url",
            "f:3:45: agents.b.attach: needs either command or url",
            "f:4:70: agents.c.attach.protocol: needs url: a program is an MCP server",
            "f:4:84: agents.c.attach.headers: needs url: a program takes no headers",
            "f:5:69: agents.d.attach.env: needs command: an HTTP server is not started by the bridge",
            "f:5:88: agents.d.attach.directory: needs command: an HTTP server is not started by the bridge",
            "f:6:51: agents.e.attach.url: not a base URL: write http or https, a host and a path, such as https://api.example.com/v1, without user, query or fragment",
            "f:7:80: agents.f.attach.headers.host: is set by the bridge itself",
            "f:7:90: agents.f.attach.headers[\"a b\"]: is not a valid header name",
            "f:8:6: agents.g.description: is missing: what the agent does, for people and for models that choose an agent",
            "f:10:73: agents.i.attach.env[\"A=B\"]: is not the name of an environment variable: it is empty, or has '=' or a NUL",
        ],
    );
}

#[test]
fn reply_topics_are_names_that_a_topic_can_have() {
    const RESERVED: &str =
        "is reserved: a request may not name a topic that begins with '_' or '$'";
    const UNUSABLE: &str = "matches no topic: topics have only letters, digits, '.', '_' and '-'; '*' stands for any text, including dots";
    check_more(
        "
bindings:
- {name: a, transport: k, topics: [t], reply_topics: [a, 'a.*', 'a-[0-9]?', '[!x]*', '{a,b}.*', '_a', '[!_$]*', 'c\\.*', '[]>-]*']}
- {name: b, transport: n, topics: [u], stream: s, durable: d, reply_topics: ['a.>', 'a b', 'a..b', '*.>', '$a*', '*\\>']}
agents:
  c: {to: {transport: k, topic: c}, attach: {command: [x], reply_topics: [a, 'x.>', '_x.*']}}
",
        &[
            &format!("f:2:97: bindings[0].reply_topics[5]: {RESERVED}"),
            &format!("f:3:78: bindings[1].reply_topics[0]: {UNUSABLE}"),
            &format!("f:3:85: bindings[1].reply_topics[1]: {UNUSABLE}"),
            &format!("f:3:92: bindings[1].reply_topics[2]: {UNUSABLE}"),
            &format!("f:3:100: bindings[1].reply_topics[3]: {UNUSABLE}"),
            &format!("f:3:107: bindings[1].reply_topics[4]: {RESERVED}"),
            &format!("f:3:114: bindings[1].reply_topics[5]: {UNUSABLE}"),
            &format!("f:5:78: agents.c.attach.reply_topics[1]: {UNUSABLE}"),
            &format!("f:5:85: agents.c.attach.reply_topics[2]: {RESERVED}"),
        ],
    );
}

#[test]
fn environment_values_and_headers_of_attached_servers_are_text() {
    check_more(
        "
agents:
  a: {to: {transport: k, topic: a}, attach: {command: [x], env: {PORT: 80, ON: true, KEY: {env: K}}}}
  b: {to: {transport: k, topic: b}, attach: {url: 'http://b/', headers: {x-tenant: 1.10}}}
",
        &[
            "f:2:72: agents.a.attach.env.PORT: expected a string, not a number: put it in quotes",
            "f:2:80: agents.a.attach.env.ON: expected a string, not true or false: put it in quotes",
            "f:3:84: agents.b.attach.headers.x-tenant: expected a string, not a number: put it in quotes",
        ],
    );
}

#[test]
fn a_card_is_not_announced_where_something_else_is_read() {
    check(
        "\
transports:
  k: {type: kafka, brokers: ['b:1']}
  n: {type: nats, servers: ['nats://b:1']}
calls: {reply_topic: answers}
agents:
  a: {to: {transport: k, topic: t.a}, attach: {command: [x], announce: t.a}}
  b: {to: {transport: k, topic: t.b}, attach: {command: [x], announce: t.a}}
  c: {to: {transport: k, topic: t.c}, attach: {command: [x], announce: answers}}
  d: {to: {transport: k, topic: t.d}, attach: {command: [x], announce: mine.d, reply_topics: ['mine.*']}}
  e: {to: {transport: n, topic: t.e}, attach: {command: [x], announce: answers.e}}
  f: {to: {transport: n, topic: t.f}, attach: {command: [x], announce: t.a}}
  g: {to: {transport: k, topic: t.g}, attach: {command: [x], announce: answers.g}}
",
        &[
            "f:6:72: agents.a.attach.announce: is the request topic of agent a, which reads no cards: use a topic for cards only, such as agents.discovery",
            "f:7:72: agents.b.attach.announce: is the request topic of agent a, which reads no cards: use a topic for cards only, such as agents.discovery",
            "f:8:72: agents.c.attach.announce: is a topic for answers (reply_topics or calls.reply_topic): use a topic for cards only, such as agents.discovery",
            "f:9:72: agents.d.attach.announce: is a topic for answers (reply_topics or calls.reply_topic): use a topic for cards only, such as agents.discovery",
            "f:10:72: agents.e.attach.announce: is a topic for answers (reply_topics or calls.reply_topic): use a topic for cards only, such as agents.discovery",
        ],
    );
}

#[test]
fn an_agent_on_the_topic_of_an_attached_agent_is_a_warning() {
    check_more(
        "
agents:
  a: {to: {transport: k, topic: t.a}, attach: {command: [x]}}
  b: {description: B, to: {transport: k, topic: t.a}}
  c: {description: C, to: {transport: n, topic: t.a}}
",
        &[
            "f:3:49: warning: agents.b.to.topic: is the request topic of the attached agent a, so its server also receives these requests: use one topic per agent",
        ],
    );
}

#[test]
fn nothing_else_goes_to_the_topic_of_an_attached_agent() {
    check_more(
        "
bindings: [{name: in, transport: k, topics: [in], dead_letter: {topic: t.a}}]
default_route: [{transport: k, topic: out}]
agents:
  a: {to: {transport: k, topic: t.a}, attach: {command: [x], dead_letter: t.a}}
  b: {to: {transport: k, topic: t.a}, attach: {command: [x], dead_letter: t.b}}
  c: {to: {transport: n, topic: t.a}, attach: {command: [x], dead_letter: a2abus.dlq}}
",
        &[
            "f:1:72: bindings[0].dead_letter.topic: t.a is read by the binding agent-a: its dead letters would loop forever",
            "f:4:75: agents.a.attach.dead_letter: t.a is read by the binding agent-a: its dead letters would loop forever",
            "f:5:33: agents.b.to.topic: is also the request topic of the attached agent a, so each would refuse the requests of the other: use one topic per agent",
        ],
    );
}

#[test]
fn an_attached_agent_reads_one_topic() {
    check_more(
        "
agents:
  a: {description: A, attach: {command: [x]}}
  b: {description: B, to: {transport: k, topic: 'agents.{targetagent}'}, attach: {command: [x]}}
  c: {description: C, to: {transport: k, topic: c}, attach: {command: [''], stream: s}}
",
        &[
            "f:2:6: agents.a.to: is missing: an attached agent reads its requests there",
            "f:3:49: agents.b.to.topic: must be one topic: an attached agent reads it",
            "f:4:61: agents.c.attach.durable: is missing: stream needs it",
            "f:4:72: agents.c.attach.command[0]: is empty: write the program",
            "f:4:85: agents.c.attach.stream: is only for JetStream, on a transport of type nats",
        ],
    );
    let config = read(
        &format!(
            "{BASE}agents: {{a: {{description: A, to: {{transport: k, topic: a}}, attach: {{command: [x]}}}}}}\n"
        ),
        &[],
    );
    let bindings = config.unwrap().bindings;
    let attached = bindings.iter().find(|binding| binding.role == Role::Agent);
    let attached = attached.unwrap();
    assert_eq!(attached.name.as_str(), "agent-a");
    assert_eq!(attached.group.as_str(), "agent-a");
    assert_eq!(attached.topics[0].as_str(), "a");
}
