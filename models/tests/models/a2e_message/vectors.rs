//! The shared vectors: every case of the groups `encode`, `decode` and `exchange`. Those of `detect` and `map` are
//! tested with the detector and the mapping.

use std::collections::BTreeMap;

use a2abus_models::Json;
use a2abus_models::a2e_message::{DecodeOptions, Message, RefusalKind, decode};
use a2abus_models::convert::{Conversion, ConvertContext, ConvertError};
use a2abus_plugin::{Kind, Limits};
use serde_json::{Value, json};

use super::is_registered;

const VECTORS: &str = include_str!("../../../../tests/vectors/a2e_message.json");

fn cases(group: &str) -> Vec<Value> {
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    let all = vectors["cases"].as_array().unwrap().iter();
    all.filter(|case| case["group"] == group).cloned().collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn name(case: &Value) -> &str {
    text(&case["name"])
}

/// The line of a case, spelled out or by its recipe.
fn wire(case: &Value) -> String {
    let recipe = &case["wire_recipe"];
    if recipe.is_null() {
        return text(&case["wire"]).to_owned();
    }
    let repeated = |part: &str, count: &str| {
        text(&recipe[part]).repeat(usize::try_from(recipe[count].as_u64().unwrap()).unwrap())
    };
    let wire = [
        text(&recipe["prefix"]),
        &repeated("repeat", "count"),
        &repeated("suffix_repeat", "suffix_count"),
        text(&recipe["suffix"]),
    ]
    .concat();
    assert_eq!(wire.len() as u64, case["wire_bytes"].as_u64().unwrap());
    wire
}

fn convert(name: &str, input: &Json) -> Result<Json, ConvertError> {
    let context = ConvertContext {
        now: "2026-01-01T00:00:00Z".into(),
        converter: "test".into(),
        new_id: "generated-id".into(),
    };
    Conversion::find(name).unwrap().run(input, &context)
}

fn tree(text: &str) -> Json {
    Json::parse(text.as_bytes(), &Limits::default()).unwrap()
}

/// Compares JSON as values, numbers of any size by their digits.
fn same(ours: &Json, expected: &Value) -> bool {
    match expected {
        Value::Object(marked) if marked.contains_key("$int") => {
            ours.as_number().map(ToString::to_string).as_deref() == marked["$int"].as_str()
        }
        Value::Object(marked) if marked.contains_key("$len") => {
            ours.as_str().map(|text| text.chars().count() as u64) == marked["$len"].as_u64()
        }
        Value::Object(members) => ours.as_object().is_some_and(|object| {
            object.len() == members.len()
                && members
                    .iter()
                    .all(|(name, value)| object.get(name).is_some_and(|ours| same(ours, value)))
        }),
        Value::Array(elements) => ours.as_array().is_some_and(|ours| {
            ours.len() == elements.len()
                && ours
                    .iter()
                    .zip(elements)
                    .all(|(ours, value)| same(ours, value))
        }),
        expected => serde_json::from_str::<Value>(&ours.to_string()).unwrap() == *expected,
    }
}

#[test]
fn every_case_belongs_to_a_known_group() {
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    let mut groups = BTreeMap::new();
    for case in vectors["cases"].as_array().unwrap() {
        *groups.entry(text(&case["group"]).to_owned()).or_insert(0) += 1;
    }
    let expected = [
        ("decode", 35),
        ("detect", 12),
        ("encode", 71),
        ("exchange", 5),
        ("map", 7),
    ];
    let expected = expected.map(|(group, count)| (group.to_owned(), count));
    assert_eq!(groups, BTreeMap::from(expected));
}

/// A line of the SDK parses as its type, and is written again byte for byte.
#[test]
fn events_of_the_sdk_are_written_the_same() {
    for case in cases("encode") {
        let (name, wire) = (name(&case), wire(&case));
        let line = Json::from(wire.as_str());
        let read = convert("a2e_message_decode", &line).unwrap();
        assert_eq!(
            read.get("type").unwrap().as_str(),
            case["declared_type"].as_str(),
            "{name}"
        );
        // The SDK cannot read one case, and keeps the base keys alone of another; ours keeps all.
        let expected: Value = serde_json::from_str(&wire).unwrap();
        let lossless = case["model"] != "A2EMessage" && case["error"].is_null();
        assert!(
            same(&read, if lossless { &case["parsed"] } else { &expected }),
            "{name}: {read}"
        );
        for input in [&line, &read, &tree(&wire)] {
            let written = convert("a2e_message_encode", input).unwrap();
            assert_eq!(written.as_str(), Some(wire.as_str()), "{name}");
        }
        let message = super::read(&wire).unwrap();
        assert_eq!(
            message.body.type_name(),
            text(&case["declared_type"]),
            "{name}"
        );
    }
}

#[test]
fn lines_are_decoded_as_decided() {
    for case in cases("decode") {
        let (name, wire, ours) = (name(&case), wire(&case), &case["ours"]);
        let decoded = decode(&wire.clone().into(), &DecodeOptions::default());
        let converted = convert("a2e_message_decode", &Json::from(wire.as_str()));
        match text(&ours["outcome"]) {
            "skip" => {
                assert_eq!(decoded, Ok(None), "{name}");
                assert_eq!(converted, Ok(Json::Null), "{name}");
            }
            "not_a2e" => {
                let refusal = decoded.unwrap_err();
                assert_eq!(refusal.kind(), RefusalKind::NotA2e, "{name}");
                assert_eq!(refusal.to_error(), None, "{name}");
                assert_eq!(converted.unwrap_err().kind, "not_a2e", "{name}");
            }
            "reject" => {
                let refusal = decoded.unwrap_err();
                let code = text(&ours["code"]);
                assert_eq!(refusal.kind().as_str(), code, "{name}");
                assert_eq!(converted.unwrap_err().kind, code, "{name}");
                assert_eq!(
                    code == "schema_violation",
                    ours["level"] == "schema",
                    "{name}"
                );
                if let Some(reason) = ours["reason"].as_str() {
                    assert_eq!(refusal.reason().as_str(), reason, "{name}");
                }
                let req_id = ours["req_id"]
                    .as_str()
                    .or(ours["req_id_best_effort"].as_str());
                let error = refusal.to_error().unwrap();
                assert_eq!(Some(error.req_id.as_str()), req_id, "{name}");
                assert_eq!(error.code, code, "{name}");
            }
            outcome @ ("accept" | "degrade" | "drop") => {
                let message = decoded.unwrap().unwrap();
                check_accepted(&case, outcome, &message, &converted.unwrap());
            }
            other => panic!("{name}: no such outcome: {other}"),
        }
    }
}

/// A message with what the SDK reads from it, without generated values, and with everything that was written.
fn check_accepted(case: &Value, outcome: &str, message: &Message, read: &Json) {
    let (name, ours) = (name(case), &case["ours"]);
    let type_name = message.body.type_name();
    assert_eq!(outcome == "degrade", !is_registered(type_name), "{name}");
    // An endpoint drops messages of unknown calls.
    let belongs = matches!(message.kind(), Kind::Response | Kind::Stream);
    assert!(outcome != "drop" || belongs, "{name}");

    let generated = case["generated"].as_array().cloned().unwrap_or_default();
    for (member, value) in case["parsed"].as_object().unwrap() {
        match read.get(member) {
            Some(id) if generated.contains(&json!(member)) => {
                assert_eq!(id.as_str(), Some("generated-id"), "{name}");
            }
            Some(found) => assert!(same(found, value), "{name}: {member}"),
            // Absent stays absent.
            None => assert!(generated.contains(&json!(member)), "{name}: {member}"),
        }
    }
    let written = tree(&wire(case));
    for (member, value) in written.as_object().unwrap().iter() {
        let found = read.get(member).unwrap();
        let is_float = member == "ts";
        assert!(found == value || is_float, "{name}: {member} is lossless");
    }
    for (member, value) in ours.as_object().unwrap() {
        match member.as_str() {
            "outcome" | "keep_all_keys" | "lossless" => {}
            "req_id" => assert_eq!(message.body.req_id(), value, "{name}"),
            "id" => assert_eq!(
                (value, &message.header.id),
                (&json!("generated"), &None),
                "{name}"
            ),
            "version" => assert_eq!(message.header.version.as_str(), value, "{name}"),
            "kind" => assert!(same(read.get("kind").unwrap(), value), "{name}"),
            other => panic!("{name}: not judged: {other}"),
        }
    }
}

/// The output of a host of the SDK, with fixed values for those that differ in each run.
fn host_message(reply: &Value) -> String {
    fn settle(member: &str, value: &mut Value) {
        match value {
            Value::String(text) if text.starts_with('<') => {
                *value = match member {
                    "id" | "session_id" => json!("ab"),
                    "req_id" => json!("generated-id"),
                    "seq" | "duration_ms" => json!(1_716_123_456_789_u64),
                    _ => json!(1.5),
                }
            }
            Value::Object(members) if members.contains_key("$int") => {
                *value = serde_json::from_str(text(&members["$int"])).unwrap();
            }
            Value::Object(members) => members
                .iter_mut()
                .for_each(|(name, value)| settle(name, value)),
            Value::Array(elements) => elements.iter_mut().for_each(|value| settle(member, value)),
            _ => {}
        }
    }
    let mut reply = reply.clone();
    settle("", &mut reply);
    reply.to_string()
}

/// Every answer of the SDK's host reads as its type, names the call it belongs to, and is its
/// answer or its progress.
#[test]
fn answers_of_the_sdk_are_read() {
    let decoded = cases("decode");
    let replies = decoded.iter().map(|case| (case, &case["host_replies"]));
    let exchanges = cases("exchange");
    let replies = replies.chain(exchanges.iter().map(|case| (case, &case["replies"])));
    let mut judged = 0;
    for (case, replies) in replies {
        let name = name(case);
        let replies = replies.as_array().into_iter().flatten();
        for reply in replies.filter(|reply| reply.get("crash").is_none()) {
            let message = super::read(&host_message(reply)).unwrap();
            let lossless: Value = serde_json::from_str(&message.to_string()).unwrap();
            let sent: Value = serde_json::from_str(&host_message(reply)).unwrap();
            assert_eq!(lossless, sent, "{name}");
            let is_event = text(&reply["type"]).ends_with("/event");
            let expected = match (is_event, text(&reply["req_id"])) {
                (true, _) => Kind::Stream,
                (false, "") => Kind::Notification,
                (false, _) => Kind::Response,
            };
            assert_eq!(message.kind(), expected, "{name}");
            judged += 1;
        }
    }
    assert!(judged > 20, "{judged}");
}

/// The requests of the exchanges are calls whose id the answers name.
#[test]
fn exchanges_are_calls_and_answers() {
    for case in cases("exchange") {
        let name = name(&case);
        let lines = case["wire"].as_array().unwrap().iter();
        let requests: Vec<_> = lines.map(|line| super::read(text(line)).unwrap()).collect();
        let kinds: Vec<_> = requests.iter().map(Message::kind).collect();
        let expected: &[_] = match name {
            "exchange.shutdown-then-ping" => &[Kind::Notification, Kind::Request],
            _ => &[Kind::Request],
        };
        assert_eq!(kinds, expected, "{name}");
        for reply in case["replies"].as_array().unwrap() {
            let id = requests[0].header.id.as_ref().unwrap();
            assert_eq!(id.as_str(), reply["req_id"], "{name}");
        }
    }
}
