//! Routes: conditions, templates, and loops.

use super::*;

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
fn routes_behind_a_pattern_that_takes_their_agent_are_reported() {
    check_more(
        "
routes:
- {name: a, when: {targetagent: 'a*'}, to: [{transport: k, topic: all}]}
- {name: t, when: {targetagent: 't*', type: z}, to: [{transport: n, topic: all}]}
- {name: same, when: {targetagent: [same, other]}, to: [{transport: k, topic: 'agents.{targetagent}'}]}
- {name: late, when: {targetagent: az}, to: [{transport: k, topic: az}]}
agents:
  a1: {description: A, to: {transport: k, topic: a1}}
  t1: {description: T, to: {transport: k, topic: t1}}
  same: {description: S, to: {transport: k, topic: agents.same}}
  other: {description: O, to: {transport: n, topic: agents.other}}
",
        &[
            "f:5:3: warning: routes[3]: never matches: the earlier route a matches every event that meets its conditions",
            "f:7:7: warning: agents.a1: never matches: the earlier route a matches every event that meets its conditions",
            "f:10:10: warning: agents.other: never matches: the earlier route same matches every event that meets its conditions",
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
fn one_loop_is_one_problem() {
    check_more(
        "
bindings: [{name: b, transport: k, topics: [t], group: g}, {name: b, transport: k, topics: [t], group: h}]
routes: [{name: r, to: [{transport: k, topic: t}]}]
",
        &[
            "f:1:67: bindings[1].name: is already the name of bindings[0]: choose another one",
            "f:1:92: warning: bindings[1].topics: shares a topic with the binding b, and both get every message: each is routed twice; use one binding, or a route with when: {binding: b}",
            "f:2:47: routes[0].to[0].topic: publishes to a topic that binding \"b\" reads (t), and its events take this route again: a loop",
        ],
    );
}
