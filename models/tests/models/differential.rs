//! Is JSON read as the reference reads it? Compares hundreds of thousands of documents, valid and broken, with
//! serde_json: the same verdict, the same units, the same values.
//!
//! `A2ABUS_DIFFERENTIAL=N` reads N documents instead of 200,000. The documents are the same in every run.

mod documents;
mod spelling;

use a2abus_models::Json;
use a2abus_plugin::protocol::jsonrpc::{JsonRpc, RpcBody};
use a2abus_plugin::{
    DecodeError, DecodeErrorKind, Hint, Ids, Limits, MapContext, MapOptions, Mapped, Source, Text,
    Units, map,
};
use bytes::Bytes;
use documents::{Random, document};
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

/// No limit but that on the depth.
fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.max_bytes = usize::MAX;
    limits.max_members = u32::MAX;
    limits.max_units = usize::MAX;
    limits
}

/// How often each kind occurred, so that no test passes for lack of documents.
#[derive(Debug, Default)]
struct Counts {
    documents: usize,
    valid: usize,
    invalid: usize,
    too_deep: usize,
    lone_surrogates: usize,
    values: usize,
    batches: usize,
    units: usize,
    json_rpc: usize,
    ids: usize,
    methods: usize,
    targets: usize,
    results: usize,
    duplicates: usize,
}

fn number_of_documents() -> usize {
    let given = std::env::var("A2ABUS_DIFFERENTIAL").ok();
    given.map_or(200_000, |number| number.parse().unwrap())
}

#[test]
fn json_is_read_as_the_reference_reads_it() {
    let mut counts = Counts::default();
    let mut random = Random::new(1);
    let mut before = b"{}".to_vec();
    for _ in 0..number_of_documents() {
        let document = document(&mut random);
        counts.documents += 1;
        let valid = counts.valid;
        check_tree(&document, &mut counts);
        if random.one_in(4) {
            check_units(&[&before, &b","[..], &document].concat(), &mut counts);
        } else {
            check_units(&document, &mut counts);
        }
        if counts.valid > valid {
            before = document;
        }
    }
    println!("{counts:?}");
    let share = |count: usize| count * 1_000 / counts.documents.max(1);
    assert!(share(counts.valid) > 200 && share(counts.invalid) > 200);
    assert!(share(counts.too_deep) > 2 && share(counts.lone_surrogates) > 2);
    assert!(share(counts.values) > 200 && share(counts.batches) > 200);
    assert!(share(counts.json_rpc) > 50 && share(counts.ids) > 50);
    assert!(share(counts.methods) > 10 && share(counts.targets) > 10);
    assert!(share(counts.results) > 10 && share(counts.duplicates) > 1);
}

/// The grammar by serde_json, UTF-8 by the standard library.
fn is_json(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok() && serde_json::from_slice::<IgnoredAny>(text).is_ok()
}

// === the tree ===

fn check_tree(document: &[u8], counts: &mut Counts) {
    match Json::parse(document, &limits()) {
        Ok(ours) => {
            assert!(is_json(document), "accepted: {}", excerpt(document));
            counts.valid += 1;
            match serde_json::from_slice::<Value>(document) {
                Ok(theirs) => {
                    counts.values += 1;
                    assert!(same(&ours, &theirs), "{}", excerpt(document));
                }
                // Their tree has fewer levels than ours, and doubles alone for large numbers.
                Err(error) => {
                    let reason = error.to_string();
                    let known = ["recursion limit", "number out of range"];
                    assert!(
                        known.iter().any(|cause| reason.starts_with(cause)),
                        "{reason}"
                    );
                }
            }
        }
        Err(error) => check_refusal(document, &error, counts),
    }
}

/// The tree refuses only text that is not JSON, is too deep, or cannot be UTF-8.
fn check_refusal(document: &[u8], error: &DecodeError, counts: &mut Counts) {
    let context = || format!("{error} at {}: {}", error.offset(), excerpt(document));
    assert!(error.offset() <= document.len(), "{}", context());
    counts.invalid += 1;
    match error.kind() {
        DecodeErrorKind::NotUtf8 => {
            let valid = std::str::from_utf8(document).unwrap_err().valid_up_to();
            assert_eq!(error.offset(), valid, "{}", context());
        }
        DecodeErrorKind::TooDeep => {
            counts.too_deep += 1;
            assert_eq!(depth_before(document, error.offset()), 128, "{}", context());
            assert!(b"[{".contains(&document[error.offset()]), "{}", context());
        }
        DecodeErrorKind::NotJson if is_json(document) => {
            counts.lone_surrogates += 1;
            assert!(
                error.to_string().contains("lone surrogate"),
                "{}",
                context()
            );
            assert_eq!(document[error.offset()], b'"', "{}", context());
            assert!(serde_json::from_slice::<Value>(document).is_err());
        }
        DecodeErrorKind::NotJson => {}
        _ => panic!("{}", context()),
    }
}

/// The brackets that are open before this place.
fn depth_before(document: &[u8], end: usize) -> i32 {
    let (mut depth, mut in_string, mut at) = (0, false, 0);
    while at < end {
        match document[at] {
            b'\\' => at += 1,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    depth
}

fn same(ours: &Json, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Json::Null, Value::Null) => true,
        (Json::Bool(ours), Value::Bool(theirs)) => ours == theirs,
        (Json::Number(ours), Value::Number(theirs)) => {
            // The reference's `-0` is not an integer.
            let whole = theirs.is_i64() || theirs.is_u64();
            (!whole || (ours.as_i64(), ours.as_u64()) == (theirs.as_i64(), theirs.as_u64()))
                && Some(ours.as_f64().to_bits()) == theirs.as_f64().map(f64::to_bits)
        }
        (Json::String(ours), Value::String(theirs)) => ours.as_str() == theirs,
        (Json::Array(ours), Value::Array(theirs)) => {
            ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(o, t)| same(o, t))
        }
        (Json::Object(ours), Value::Object(theirs)) => {
            let found = |(name, value): (&Text, &Json)| {
                theirs.get(name.as_str()).is_some_and(|t| same(value, t))
            };
            ours.len() == theirs.len() && ours.iter().all(found)
        }
        _ => false,
    }
}

// === the units of a batch ===

/// A batch of these elements is split as the reference splits it, with the same values.
fn check_units(elements: &[u8], counts: &mut Counts) {
    let payload = Bytes::from([b"[", elements, b"]"].concat());
    let new_id = MapContext::counting("new");
    let context = MapContext {
        source: Source::new("/test").unwrap(),
        time: None,
        ids: Ids::Payload(&new_id),
    };
    let options = MapOptions::default();
    let units = map(&payload, &Hint::default(), &limits(), &options, &context);
    let whole = units[0].as_ref().err().map(|refused| refused.error.kind());
    match whole {
        Some(DecodeErrorKind::NotUtf8 | DecodeErrorKind::NotJson) => {
            assert!(!is_json(&payload), "refused: {}", excerpt(&payload));
        }
        Some(DecodeErrorKind::TooDeep) => {
            let offset = units[0].as_ref().unwrap_err().error.offset();
            assert_eq!(depth_before(&payload, offset), 128, "{}", excerpt(&payload));
        }
        Some(DecodeErrorKind::EmptyBatch) => {
            assert!(elements.trim_ascii().is_empty());
        }
        _ => {
            assert!(is_json(&payload), "accepted: {}", excerpt(&payload));
            counts.batches += 1;
            check_elements(&payload, units, counts);
        }
    }
}

fn check_elements(payload: &Bytes, units: Units<Mapped>, counts: &mut Counts) {
    let elements: Vec<&RawValue> = serde_json::from_slice(payload).unwrap();
    assert_eq!(units.len(), elements.len(), "{}", excerpt(payload));
    for (unit, element) in units.into_iter().zip(elements) {
        counts.units += 1;
        match unit {
            Ok(unit) => {
                assert_eq!(unit.bytes, element.get(), "{}", excerpt(payload));
                check_unit(&unit, element, counts);
            }
            Err(refused) => {
                assert_eq!(refused.bytes, element.get(), "{}", excerpt(payload));
                if refused.error.kind() == DecodeErrorKind::DuplicateMember {
                    counts.duplicates += 1;
                    assert!(repeats(element), "{}", element.get());
                }
            }
        }
    }
}

fn check_unit(unit: &Mapped, element: &RawValue, counts: &mut Counts) {
    // The reference does not read names with half a surrogate pair.
    let Some(members) = Members::of(element) else {
        return;
    };
    assert_eq!(members.count(unit.detection.member), 1, "{}", element.get());
    if let Some(message) = &unit.json_rpc {
        counts.json_rpc += 1;
        assert_eq!(members.text("jsonrpc").as_deref(), Some("2.0"));
        check_json_rpc(message, unit, &members, counts);
    }
}

fn check_json_rpc(message: &JsonRpc, unit: &Mapped, members: &Members<'_>, counts: &mut Counts) {
    let id = members.get("id").map(RawValue::get);
    assert_eq!(message.id.as_ref().map(|id| id.token().as_str()), id);
    if let Some(id) = &message.id {
        counts.ids += 1;
        assert_eq!(&unit.bytes[id.span()], id.token().as_bytes());
        let text = id.text().map(|text| text.to_string());
        match id.token().as_bytes().first() {
            Some(b'"') => assert_eq!(text, serde_json::from_str(id.token()).unwrap()),
            Some(b'n') => assert_eq!(text, None),
            _ => assert_eq!(text.as_deref(), Some(id.token().as_str())),
        }
    }
    match &message.body {
        RpcBody::Call { .. } => {
            counts.methods += 1;
            let event = &unit.event;
            let extension = |name| event.extension_text(name).map(ToString::to_string);
            assert_eq!(extension("a2amethod"), members.text("method"));
            let params = members.get("params").and_then(Members::of);
            let named = |name| params.as_ref().and_then(|params| params.text(name));
            let topic = event.subject().map(ToString::to_string);
            assert_eq!(topic, named("_topic"));
            // A topic names the place itself.
            let target = named("_agentId").filter(|_| topic.is_none());
            counts.targets += usize::from(target.is_some());
            assert_eq!(extension("targetagent"), target);
        }
        RpcBody::Result(_) => {
            counts.results += 1;
            assert!(members.get("result").is_some());
        }
        RpcBody::Error(_) => assert!(members.get("error").is_some()),
    }
}

/// Whether a name is repeated in the object or in a member that is an object.
fn repeats(element: &RawValue) -> bool {
    Members::of(element).is_none_or(|members| {
        let twice = |(name, _): &(String, _)| members.count(name) > 1;
        let inside = |(_, value): &(String, &RawValue)| {
            Members::of(value)
                .is_some_and(|inner| inner.0.iter().any(|(name, _)| inner.count(name) > 1))
        };
        members.0.iter().any(twice) || members.0.iter().any(inside)
    })
}

/// The members of an object as the reference reads them, in order, each as its exact text.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Members<'a> {
    /// `None` for anything but an object.
    fn of(value: &'a RawValue) -> Option<Self> {
        let mut reader = serde_json::Deserializer::from_str(value.get());
        serde::Deserializer::deserialize_map(&mut reader, Visitor).ok()
    }

    fn count(&self, name: &str) -> usize {
        self.0.iter().filter(|(other, _)| other == name).count()
    }

    fn get(&self, name: &str) -> Option<&'a RawValue> {
        let found = self.0.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| *value)
    }

    fn text(&self, name: &str) -> Option<String> {
        self.get(name)
            .and_then(|value| serde_json::from_str(value.get()).ok())
    }
}

struct Visitor;

impl<'de> serde::de::Visitor<'de> for Visitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Members(members))
    }
}

fn excerpt(document: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(document)
}
