//! Bindings: what they may read, and where their answers and dead letters go.

use super::*;

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

#[test]
fn a_listed_stream_stores_what_bindings_read_from_it() {
    let lacks = "bindings[0].stream: the stream S does not store x: add this to its subjects in transports.n.jetstream.streams, or correct the topics";
    // Without `manage`, the stream on the server may be another one.
    for (manage, severity) in [(true, ""), (false, "warning: ")] {
        let text = format!(
            "
instance: t
transports:
  n: {{type: nats, servers: ['nats://a'], jetstream: {{manage: {manage}, streams: [{{name: S, subjects: [x2, 'a.b']}}]}}}}
bindings:
- {{name: a, transport: n, topics: [x], stream: S, durable: e}}
- {{name: b, transport: n, topics: ['a.*', x2], stream: S, durable: d}}
default_route: [{{transport: n, topic: out}}]
"
        );
        check(&text, &[&format!("f:6:48: {severity}{lacks}")]);
    }
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
fn a_topic_that_is_read_twice_is_a_warning() {
    check_more(
        "
bindings:
- {name: a, transport: k, topics: [x, y, x]}
- {name: b, transport: k, topics: [y], role: responses, group: b}
- {name: c, transport: k, topics: [z], group: c}
- {name: d, transport: k, topics: [z], group: d}
- {name: e, transport: n, topics: [q.>], stream: s, durable: e}
- {name: f, transport: n, topics: [q.x], stream: s, durable: f}
- {name: g, transport: n, topics: [v.x], stream: s, durable: g}
- {name: h, transport: n, topics: [v.*], stream: s, durable: g}
- {name: i, transport: n, topics: [x]}
default_route: [{transport: k, topic: t}]
",
        &[
            "f:2:42: warning: bindings[0].topics[2]: is the same topic as bindings[0].topics[0]: remove it",
            "f:3:35: warning: bindings[1].topics: shares a topic with the binding a, which has another role: each message is processed by both, and one that does not fit a role becomes a dead letter; use one topic per role",
            "f:5:35: warning: bindings[3].topics: shares a topic with the binding c, and both get every message: each is routed twice; use one binding, or a route with when: {binding: c}",
            "f:7:35: warning: bindings[5].topics: shares a topic with the binding e, and both get every message: each is routed twice; use one binding, or a route with when: {binding: e}",
            "f:9:35: warning: bindings[7].topics: shares a topic and the durable g with the binding g: each receives only part of the messages",
        ],
    );
    // A route treats the two differently.
    check_more(
        "
bindings:
- {name: c, transport: k, topics: [z], group: c}
- {name: d, transport: k, topics: [z], group: d}
routes: [{name: r, when: {binding: d}, to: [{transport: n, topic: t}]}]
default_route: [{transport: k, topic: t}]
",
        &[],
    );
}

#[test]
fn one_topic_has_one_binding_for_workflows_and_one_for_answers() {
    check_more(
        "
workflows: {enabled: true, agents: [{id: a}]}
bindings:
- {name: w, transport: k, topics: [w], role: workflows, run_as: a, group: w}
- {name: v, transport: k, topics: [w], role: workflows, run_as: a, group: v}
- {name: r, transport: k, topics: [r], role: responses, group: r}
- {name: s, transport: k, topics: [r], role: responses, group: s}
agents: {e: {to: {transport: k, topic: w}, attach: {command: [/bin/sh]}}}
default_route: [{transport: n, topic: t}]
",
        &[
            "f:4:35: warning: bindings[1].topics: shares a topic with the binding w, and both get every message: each is processed twice; use one binding",
            "f:6:35: warning: bindings[3].topics: shares a topic with the binding r, and both get every message: each is processed twice; use one binding",
            "f:7:40: warning: agents.e.to.topic: shares a topic with the binding w, which has another role: each message is processed by both, and one that does not fit a role becomes a dead letter; use one topic per role",
        ],
    );
}

#[test]
fn bindings_of_different_streams_share_no_topic() {
    check_more(
        "
bindings:
- {name: a, transport: n, topics: [q.>], stream: s, durable: e}
- {name: b, transport: n, topics: [q.x], stream: t, durable: e}
default_route: [{transport: k, topic: t}]
",
        &[],
    );
    // Unless one of them is a mirror of the other, or has it as its source.
    check_more(
        "
bindings:
- {name: a, transport: n, topics: [q.x], stream: s, durable: e}
- {name: b, transport: n, topics: [r.>, q.x], stream: mirror, durable: f}
default_route: [{transport: k, topic: t}]
",
        &[
            "f:3:35: warning: bindings[1].topics: shares a topic with the binding a, and both get every message: each is routed twice; use one binding, or a route with when: {binding: a}",
        ],
    );
}

#[test]
fn a_destination_for_each_binding_routes_them_apart() {
    check_more(
        "
bindings:
- {name: c, transport: k, topics: [z], group: c}
- {name: d, transport: k, topics: [z], group: d}
default_route: [{transport: n, topic: \"o.{binding}\"}]
",
        &[],
    );
}
