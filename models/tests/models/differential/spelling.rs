//! Does a payload mean the same, whatever its escapes and white space? Source: RFC 8259 sections 2 and 8.3.

use a2abus_plugin::{
    Family, Hint, Ids, Limits, MapContext, MapOptions, Mapped, Refused, Source, Units, decode, map,
};
use bytes::Bytes;
use serde_json::Value;

use super::documents::{Random, spelt};

const VECTORS: [&str; 5] = [
    include_str!("../../../../tests/vectors/a2a.json"),
    include_str!("../../../../tests/vectors/a2e_execution.json"),
    include_str!("../../../../tests/vectors/a2e_message.json"),
    include_str!("../../../../tests/vectors/cloudevents_bindings.json"),
    include_str!("../../../../tests/vectors/e2a.json"),
];

/// Every object of the vectors, however deep, that a family recognises.
fn payloads() -> Vec<String> {
    let mut payloads = Vec::new();
    let mut rest: Vec<Value> = VECTORS
        .iter()
        .map(|text| serde_json::from_str(text).unwrap())
        .collect();
    while let Some(value) = rest.pop() {
        match value {
            Value::Object(members) => {
                let text = Value::Object(members.clone()).to_string();
                if is_payload(&text) {
                    payloads.push(text);
                }
                rest.extend(members.into_iter().map(|(_, value)| value));
            }
            Value::Array(elements) => rest.extend(elements),
            Value::String(text) if text.len() < 10_000 && is_payload(&text) => payloads.push(text),
            _ => {}
        }
    }
    payloads
}

fn is_payload(text: &str) -> bool {
    let payload = Bytes::copy_from_slice(text.as_bytes());
    let units = decode(&payload, &Hint::default(), &Limits::default());
    units.iter().any(Result::is_ok)
}

/// The text with some characters of its strings as escapes, and more white space between its tokens.
fn respelt(random: &mut Random, text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('"') {
        out.push_str(&before.replace(',', " ,\t").replace(':', "\t:  "));
        let mut escaped = false;
        let end = after.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let Some(end) = end else {
            rest = &rest[before.len()..];
            break;
        };
        if after[..end].contains('\\') {
            out.push_str(&rest[before.len()..=before.len() + 1 + end]);
        } else {
            spelt(random, &mut out, &after[..end]);
        }
        rest = &after[end + 1..];
    }
    out + rest
}

fn mapped(text: &str, hint: &Hint) -> Units<Mapped> {
    let new_id = MapContext::counting("new");
    let context = MapContext {
        source: Source::new("/test").unwrap(),
        time: None,
        ids: Ids::Payload(&new_id),
    };
    let payload = Bytes::copy_from_slice(text.as_bytes());
    map(
        &payload,
        hint,
        &Limits::default(),
        &MapOptions::default(),
        &context,
    )
}

/// The meaning of a unit: everything except its bytes.
fn meaning(unit: &Result<Mapped, Refused>) -> String {
    match unit {
        Ok(unit) => {
            let mut event = unit.event.clone();
            event.set_data(None);
            let body = unit
                .json_rpc
                .as_ref()
                .map(|message| (&message.body, message.dialect));
            let attributes: Vec<_> = event.core_attributes().collect();
            let extensions: Vec<_> = event.extensions().collect();
            format!(
                "{:?} {:?} {attributes:?} {extensions:?} {body:?}",
                unit.detection, unit.kind
            )
        }
        Err(refused) => format!("{} {}", refused.error.kind(), refused.error.pointer()),
    }
}

#[test]
fn escapes_and_white_space_change_nothing() {
    let mut random = Random::new(7);
    let payloads = payloads();
    assert!(payloads.len() > 300, "{} payloads", payloads.len());
    for family in Family::ALL {
        let mut declared = Hint::default();
        declared.family = Some(family);
        for text in &payloads {
            for hint in [&Hint::default(), &declared] {
                let expected = mapped(text, hint);
                let spelt = respelt(&mut random, text);
                let found = mapped(&spelt, hint);
                let expected: Vec<String> = expected.iter().map(meaning).collect();
                let found: Vec<String> = found.iter().map(meaning).collect();
                assert_eq!(found, expected, "{spelt}");
            }
        }
    }
}

#[test]
fn a_known_type_of_a2e_may_have_escaped_slashes() {
    let payload = Bytes::from_static(br#"{"type":"tool\/call\/req","id":"1","tool_name":"ls"}"#);
    let units = decode(&payload, &Hint::default(), &Limits::default());
    let unit = units[0].as_ref().unwrap();
    assert_eq!(unit.detection.family, Family::A2eMessage);
}
