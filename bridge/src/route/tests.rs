//! Routes as tables: rules and events in, names and destinations out.

use a2abus_plugin::Event;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const TARGET: &str = extension::TARGET_AGENT;

fn event(attributes: &[(&str, &str)]) -> Event {
    let mut event = Event::new("1".into(), "/s".into(), "t.req".into()).unwrap();
    for (name, value) in attributes {
        event.set(name, *value).unwrap();
    }
    event
}

fn rule(name: &str, when: &Value) -> RouteConfig {
    serde_json::from_value(json!({
        "name": name, "when": when, "to": [{"transport": "k", "topic": format!("to.{name}")}]
    }))
    .unwrap()
}

fn destination(config: Value) -> Destination {
    Destination::new(&serde_json::from_value(config).unwrap())
}

/// A table of rules `0`, `1`, … with these conditions.
fn table(conditions: &[Value]) -> RouteTable {
    let rules: Vec<_> = conditions
        .iter()
        .enumerate()
        .map(|(index, when)| rule(&index.to_string(), when))
        .collect();
    RouteTable::build(&rules, &[]).unwrap()
}

fn matched_route<'a>(table: &'a RouteTable, attributes: &[(&str, &str)]) -> Option<&'a str> {
    table
        .route(&event(attributes), "b")
        .map(|route| route.name().as_str())
}

#[test]
fn the_first_rule_that_matches_wins() {
    let table = table(&[
        json!({"targetagent": "a", "mcptype": "request"}),
        json!({"targetagent": "team-*"}),
        json!({"targetagent": ["a", "b", "team-1"]}),
        json!({"type": {"suffix": ".stream"}}),
        json!({"targetagent": "b"}),
        json!({"targetagent": {"not": "z"}, "binding": "b", "subject": "s"}),
    ]);
    type Case<'a> = (&'a [(&'a str, &'a str)], Option<&'a str>);
    let cases: &[Case<'_>] = &[
        (&[(TARGET, "a"), ("mcptype", "request")], Some("0")),
        (&[(TARGET, "a"), ("mcptype", "response")], Some("2")),
        (&[(TARGET, "a")], Some("2")),
        (&[(TARGET, "b"), ("type", "x.stream")], Some("2")),
        (&[(TARGET, "team-1")], Some("1")),
        (&[(TARGET, "c"), ("type", "x.stream")], Some("3")),
        (&[("type", "x.stream")], Some("3")),
        (&[("subject", "s")], Some("5")),
        (&[("subject", "s"), (TARGET, "z")], None),
        (&[(TARGET, "c")], None),
        (&[], None),
    ];
    for (attributes, expected) in cases {
        assert_eq!(
            matched_route(&table, attributes),
            *expected,
            "{attributes:?}"
        );
    }
}

#[test]
fn a_choice_alone_is_a_glob() {
    let table = table(&[
        json!({"targetagent": "prio-{ab,cd}"}),
        json!({"targetagent": ["x{y}", "prio-*"]}),
    ]);
    for (target, expected) in [
        ("prio-ab", Some("0")),
        ("prio-cd", Some("0")),
        ("prio-ef", Some("1")),
        ("x{y}", Some("1")),
        ("xy", None),
    ] {
        assert_eq!(matched_route(&table, &[(TARGET, target)]), expected);
    }
}

#[test]
fn a_rule_without_conditions_takes_everything() {
    let table = table(&[
        json!({"targetagent": "a"}),
        json!({}),
        json!({"targetagent": "b"}),
    ]);
    for (target, expected) in [("a", "0"), ("b", "1"), ("c", "1")] {
        assert_eq!(matched_route(&table, &[(TARGET, target)]), Some(expected));
    }
}

#[test]
fn the_binding_and_attributes_that_are_not_text_can_be_asked_for() {
    let table = table(&[
        json!({"binding": "other"}),
        json!({"rpcerrorcode": "-32603"}),
        json!({"isfinal": "true"}),
        json!({"targetagent": "5"}),
        json!({"specversion": "1.0", "dataschema": "x:y"}),
    ]);
    let with = |name: &str, value: Value| {
        let mut event = event(&[]);
        match value {
            Value::Number(number) => {
                event
                    .set(name, i32::try_from(number.as_i64().unwrap()).unwrap())
                    .unwrap();
            }
            Value::Bool(flag) => event.set(name, flag).unwrap(),
            text => event.set(name, text.as_str().unwrap()).unwrap(),
        }
        event
    };
    let cases = [
        (with("x", json!("y")), "other", "0"),
        (with("rpcerrorcode", json!(-32603)), "b", "1"),
        (with("isfinal", json!(true)), "b", "2"),
        (with(TARGET, json!(5)), "b", "3"),
        (with("dataschema", json!("x:y")), "b", "4"),
    ];
    for (event, binding, expected) in cases {
        assert_eq!(
            table.route(&event, binding).unwrap().name().as_str(),
            expected
        );
    }
}

#[test]
fn the_default_takes_what_no_rule_takes() {
    let default = [serde_json::from_value(json!({"transport": "k", "topic": "rest"})).unwrap()];
    let table = RouteTable::build(&[rule("a", &json!({"targetagent": "a"}))], &default).unwrap();
    assert_eq!(matched_route(&table, &[(TARGET, "a")]), Some("a"));
    assert_eq!(matched_route(&table, &[(TARGET, "b")]), Some(DEFAULT_ROUTE));
    assert_eq!(table.explain(&event(&[]), "b").chosen, RouteMatch::Default);
}

#[test]
fn explain_says_why_the_earlier_rules_did_not_match() {
    let table = table(&[
        json!({"targetagent": "a"}),
        json!({"targetagent": ["b", "c*"], "type": {"prefix": "x"}}),
        json!({"subject": {"not": {"glob": "[a]"}}, "targetagent": {"all": [{"prefix": "b"}, {"suffix": "z"}]}}),
        json!({"targetagent": "b"}),
        json!({}),
    ]);
    let explanation = table.explain(&event(&[(TARGET, "b"), ("subject", "a")]), "in");
    assert_eq!(
        explanation.to_string(),
        "route 0: no, targetagent is \"b\", not \"a\"\n\
         route 1: no, type is \"t.req\", not prefix \"x\"\n\
         route 2: no, subject is \"a\", not not glob \"[a]\"\n\
         route 3: matches\n\
         goes to route 3"
    );
    let lost = super::tests::table(&[json!({"targetagent": "a"})]).explain(&event(&[]), "in");
    assert_eq!(
        lost.to_string(),
        "route 0: no, targetagent is absent, not \"a\"\ngoes to no route: it becomes a dead letter (no_route)"
    );
    assert_eq!(
        serde_json::to_value(&lost).unwrap(),
        json!({"steps": [{"route": "0", "mismatch": {"attribute": "targetagent", "condition": "\"a\"", "value": null}}],
               "chosen": "nothing"})
    );
}

#[test]
fn a_loop_is_ended_by_the_limit_of_hops() {
    let mut passing = event(&[]);
    for expected in 1..=3 {
        let next = next_hops(&passing, 3).unwrap();
        assert_eq!(next, expected);
        passing.set(extension::HOPS, next).unwrap();
    }
    assert_eq!(
        next_hops(&passing, 3),
        Err(RouteError::TooManyHops { hops: 3, limit: 3 })
    );
    // Kafka and NATS headers carry text; an agent may write anything.
    for (written, expected) in [("2", Ok(3)), ("x", Ok(1)), ("-1", Ok(1)), ("", Ok(1))] {
        let event = event(&[(extension::HOPS, written)]);
        assert_eq!(next_hops(&event, 3), expected);
    }
    assert!(next_hops(&event(&[(extension::HOPS, "4294967295")]), 3).is_err());
}

#[test]
fn destinations_are_spelt_out() {
    let event = event(&[
        (TARGET, "weather"),
        (extension::COLLABORATION_ID, "c-1"),
        ("subject", "stock.updates"),
    ]);
    let source = Bytes::from_static(b"source");
    let check = |config: Value, key: Option<&Bytes>, topic: &str, expected: Option<&str>| {
        let destination = destination(config);
        let resolved = destination.resolve(&event, "in", key).unwrap();
        assert_eq!(resolved.address.topic.as_str(), topic);
        assert_eq!(resolved.key.as_deref(), expected.map(str::as_bytes));
    };
    let to = |topic: &str| json!({"transport": "k", "topic": topic});
    check(
        to("agents.{targetagent}"),
        Some(&source),
        "agents.weather",
        Some("source"),
    );
    check(
        to("{binding}-{targetagent}.x"),
        None,
        "in-weather.x",
        Some("c-1"),
    );
    check(
        json!({"transport": "k", "topic": "t", "key": "{targetagent}/{subject}"}),
        Some(&source),
        "t",
        Some("weather/stock.updates"),
    );
    check(
        json!({"transport": "k", "topic": "t", "key": "{seq}"}),
        Some(&source),
        "t",
        Some("source"),
    );
    check(
        json!({"transport": "k", "topic": "topics.{subject}", "names": "dotted"}),
        None,
        "topics.stock.updates",
        Some("c-1"),
    );
    check(
        json!({"transport": "k", "topic": "topics.{subject}", "names": "escape"}),
        None,
        "topics.stock_x2Eupdates",
        Some("c-1"),
    );
    let stored =
        destination(json!({"transport": "n", "topic": "t", "stored": true, "mode": "structured"}));
    let resolved = stored.resolve(&event, "in", None).unwrap();
    assert_eq!(
        resolved.address.guarantee,
        Guarantee::Stored { message_id: None }
    );
    assert_eq!(resolved.mode, Mode::Structured);
    assert_eq!(resolved.transport.as_str(), "n");
    let nameless = super::tests::event(&[]);
    let plain = destination(to("t"));
    assert_eq!(plain.resolve(&nameless, "in", None).unwrap().key, None);
}

#[test]
fn values_that_cannot_be_part_of_a_topic_are_refused_by_name() {
    let to = destination(json!({"transport": "k", "topic": "agents.{targetagent}"}));
    let error = |attributes: &[(&str, &str)]| {
        to.resolve(&event(attributes), "in", None)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        error(&[]),
        "the topic needs the attribute \"targetagent\", which the event does not have"
    );
    assert_eq!(
        error(&[(TARGET, "team/weather.v1")]),
        "the value \"team/weather.v1\" of \"targetagent\" cannot be part of a topic: \
         it contains a character other than letters, digits, '_' and '-'; \
         the destination accepts more with names: escape (or dotted, for dots)"
    );
    assert_eq!(
        error(&[(TARGET, "_INBOX")]),
        "the value \"_INBOX\" of \"targetagent\" cannot be part of a topic: \
         it does not begin with a letter or digit"
    );
    assert!(error(&[(TARGET, &"x".repeat(250))]).contains("longer than 249"));
    let dotted =
        destination(json!({"transport": "k", "topic": "agents.{targetagent}", "names": "dotted"}));
    for (value, why) in [
        ("N..x", "a word of it is empty"),
        ("N._x", "a word of it does not begin with a letter or digit"),
        (
            "N.x/y",
            "digits, '_', '-' and '.'; the destination accepts more with names: escape",
        ),
    ] {
        let event = event(&[(TARGET, value)]);
        let error = dotted.resolve(&event, "in", None).unwrap_err().to_string();
        assert!(error.ends_with(why), "{error}");
    }
}

/// Agent ids an attacker would try, and 2,000 made of the same characters.
fn hostile() -> impl Iterator<Item = String> {
    let written = [
        "",
        ".",
        "..",
        "...",
        "a.b",
        ".a",
        "a.",
        "a..b",
        "*",
        ">",
        "a.*",
        "a.>",
        "$",
        "$SYS.REQ",
        "$JS.API.>",
        "_INBOX",
        "_INBOX.abc",
        "_",
        "__consumer_offsets",
        "__transaction_state",
        "-",
        "-x",
        "/",
        "a/b",
        "../../etc/passwd",
        " ",
        "a b",
        "\u{a0}",
        "wеather",
        "ｗeather",
        "weather\u{200b}",
        "é",
        "\u{202e}x",
        "{targetagent}",
        "a%2eb",
        "a_x2Eb",
        "orders\\",
        "a:b",
        "a@b",
        "a+b",
        "a,b",
        "\"",
        "'",
        "#",
        "?",
        "[a]",
        "~",
        "|",
        ";",
        "a=b",
        "0",
        "NULL",
        "💥",
    ];
    let alphabet: Vec<char> = "aZ09_-.*>$/ {}:@+%\\é\u{200b}x".chars().collect();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 33).unwrap() % below
    };
    let made: Vec<String> = (0..2000)
        .map(|_| {
            let length = if next(50) == 0 { 1024 } else { 1 + next(12) };
            (0..length)
                .map(|_| alphabet[next(alphabet.len())])
                .collect()
        })
        .collect();
    written.into_iter().map(str::to_owned).chain(made)
}

#[test]
fn no_agent_id_reaches_a_topic_as_anything_but_one_word() {
    let to = |topic: &str, names: &str| {
        destination(json!({"transport": "k", "topic": topic, "names": names}))
    };
    let (refuse, escape) = (
        to("agents.{targetagent}", "refuse"),
        to("agents.{targetagent}", "escape"),
    );
    let (bare, dotted) = (
        to("{targetagent}", "escape"),
        to("agents.{targetagent}.in", "dotted"),
    );
    let mut topics = std::collections::HashMap::new();
    let is_word = |word: &str| {
        !word.is_empty()
            && word
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    };
    for id in hostile() {
        let event = event(&[(TARGET, id.as_str())]);
        let topic = |to: &Destination| {
            to.resolve(&event, "in", None)
                .ok()
                .map(|resolved| resolved.address.topic.to_string())
        };
        if let Some(topic) = topic(&refuse) {
            assert_eq!(topic, format!("agents.{id}"));
            assert!(
                is_word(&id) && id.starts_with(|c: char| c.is_ascii_alphanumeric()),
                "{id:?}"
            );
        }
        if let Some(topic) = topic(&escape) {
            assert!(is_word(topic.strip_prefix("agents.").unwrap()), "{id:?}");
            let other = topics.insert(topic, id.clone());
            assert!(
                other.is_none_or(|other| other == id),
                "two ids share a topic"
            );
        }
        if let Some(topic) = topic(&bare) {
            assert!(is_word(&topic) && !topic.starts_with('_'), "{id:?}");
        }
        if let Some(topic) = topic(&dotted) {
            assert!(
                topic.starts_with("agents.") && topic.split('.').all(is_word),
                "{id:?}"
            );
            assert!(
                !topic.split('.').any(|word| word.starts_with('_')),
                "{id:?}"
            );
        }
    }
}

/// Values that meet often: three agents, a family, and an id that looks like a number.
fn any_value() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["a", "b", "c", "team-1", "team-2", "5", ""]).prop_map(str::to_owned)
}

fn any_condition() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        4 => any_value().prop_map(Value::from),
        1 => Just(json!("team-*")),
        1 => Just(json!("te*-1")),
        1 => Just(json!("te*-2")),
        1 => Just(json!("?")),
        1 => prop::collection::vec(any_value(), 1..3).prop_map(Value::from),
        1 => Just(json!(["a", "team-*"])),
        1 => Just(json!({"prefix": "te"})),
        1 => Just(json!({"suffix": "2"})),
        1 => any_value().prop_map(|value| json!({"exact": value})),
    ];
    leaf.prop_recursive(2, 6, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..3).prop_map(|list| json!({"any": list})),
            prop::collection::vec(inner.clone(), 1..3).prop_map(|list| json!({"all": list})),
            inner.prop_map(|condition| json!({"not": condition})),
        ]
    })
}

fn any_when() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(vec!["targetagent", "targetagent", "type", "binding", "seq"]);
    prop::collection::btree_map(name.prop_map(str::to_owned), any_condition(), 0..3)
        .prop_map(|when| json!(when))
}

/// What a rule means, read from its JSON: the model that the table is compared with.
fn meets(condition: &Value, value: Option<&str>) -> bool {
    let text = |expected: &str| match (expected, value) {
        ("team-*", Some(value)) => value.starts_with("team-"),
        ("te*-1", Some(value)) => value.starts_with("te") && value.ends_with("-1"),
        ("te*-2", Some(value)) => value.starts_with("te") && value.ends_with("-2"),
        ("?", Some(value)) => value.len() == 1,
        (expected, value) => value == Some(expected),
    };
    match condition {
        Value::String(expected) => text(expected),
        Value::Array(expected) => expected
            .iter()
            .any(|expected| text(expected.as_str().unwrap())),
        Value::Object(members) => members
            .iter()
            .all(|(dialect, inner)| match dialect.as_str() {
                "exact" => value == inner.as_str(),
                "prefix" => value.is_some_and(|value| value.starts_with(inner.as_str().unwrap())),
                "suffix" => value.is_some_and(|value| value.ends_with(inner.as_str().unwrap())),
                "any" => inner
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|inner| meets(inner, value)),
                "all" => inner
                    .as_array()
                    .unwrap()
                    .iter()
                    .all(|inner| meets(inner, value)),
                "not" => !meets(inner, value),
                other => unreachable!("{other}"),
            }),
        _ => unreachable!(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_table_decides_as_the_first_match_of_a_scan(
        rules in prop::collection::vec(any_when(), 0..12),
        events in prop::collection::vec(
            (prop::option::of(any_value()), any_value(), prop::option::of(0..6i32)), 1..12),
    ) {
        let table = table(&rules);
        for (target, binding, seq) in events {
            let mut event = event(&[("type", "a")]);
            if let Some(target) = &target {
                event.set(TARGET, target.as_str()).unwrap();
            }
            if let Some(seq) = seq {
                event.set("seq", seq).unwrap();
            }
            let seq = seq.map(|seq| seq.to_string());
            let expected = rules.iter().position(|rule| {
                rule.as_object().unwrap().iter().all(|(name, condition)| {
                    let value = match name.as_str() {
                        "targetagent" => target.as_deref(),
                        "type" => Some("a"),
                        "binding" => Some(binding.as_str()),
                        _ => seq.as_deref(),
                    };
                    meets(condition, value)
                })
            });
            let got = table.route(&event, &binding).map(|route| route.name().to_string());
            prop_assert_eq!(&got, &expected.map(|index| index.to_string()));
            let chosen = match table.explain(&event, &binding).chosen {
                RouteMatch::Route(name) => Some(name.to_string()),
                _ => None,
            };
            prop_assert_eq!(chosen, got);
        }
    }
}
