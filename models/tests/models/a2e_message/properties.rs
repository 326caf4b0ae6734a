//! Properties of every message, of every type.

use a2abus_models::a2e_message::{
    Body, CallMatcher, DecodeOptions, Line, Matched, Member, Message, Shape, Splitter, WhenAbsent,
    decode, decode_lines, members_of,
};
use a2abus_models::{Json, Object};
use a2abus_plugin::protocol::a2e_message as type_name;
use a2abus_plugin::{Kind, Limits};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

// === messages, generated from the table ===

fn any_json() -> BoxedStrategy<Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        big_integer(),
        any_text(),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Json::from),
            vec((".{0,3}", inner), 0..3).prop_map(Json::object),
        ]
    })
    .boxed()
}

fn any_text() -> BoxedStrategy<Json> {
    prop_oneof![Just(String::new()), ".{0,6}"]
        .prop_map(Json::from)
        .boxed()
}

fn big_integer() -> BoxedStrategy<Json> {
    let digits = prop_oneof![Just("0".to_owned()), "-?[1-9][0-9]{0,40}"];
    digits
        .prop_map(|digits| Json::parse(digits.as_bytes(), &Limits::default()).unwrap())
        .boxed()
}

fn any_object() -> BoxedStrategy<Json> {
    vec((".{0,4}", any_json()), 0..3)
        .prop_map(Json::object)
        .boxed()
}

/// Values a member may hold.
fn of_shape(shape: Shape, depth: u32) -> BoxedStrategy<Json> {
    match shape {
        Shape::Text => any_text(),
        Shape::Boolean => any::<bool>().prop_map(Json::from).boxed(),
        Shape::Integer => big_integer(),
        Shape::Float => prop_oneof![
            Just("0.0"),
            Just("-1.50"),
            Just("1716123456.789"),
            Just("2e-7")
        ]
        .prop_map(|digits| Json::parse(digits.as_bytes(), &Limits::default()).unwrap())
        .boxed(),
        Shape::Any => any_json(),
        Shape::Object => any_object(),
        Shape::OneOf(words) => select(words).prop_map(Json::from).boxed(),
        Shape::List(element) => vec(of_shape(*element, depth), 0..3)
            .prop_map(Json::from)
            .boxed(),
        Shape::Pair(element) => vec(of_shape(*element, depth), 2)
            .prop_map(Json::from)
            .boxed(),
        // Shapes may hold themselves.
        Shape::Map(_) if depth > 2 => Just(Json::from(Object::new())).boxed(),
        Shape::Map(value) => vec((".{1,3}", of_shape(*value, depth)), 0..2)
            .prop_map(Json::object)
            .boxed(),
        Shape::Nullable(value) => prop_oneof![Just(Json::Null), of_shape(*value, depth)].boxed(),
        Shape::Record(members) => of_members(members(), depth + 1)
            .prop_map(Json::from)
            .boxed(),
        Shape::Message(name, members) => of_members(members(), depth + 1)
            .prop_map(move |o| with_base(name, &o).into())
            .boxed(),
    }
}

/// Objects with the required members, some optional ones, and some unknown ones.
fn of_members(members: &'static [Member], depth: u32) -> BoxedStrategy<Object> {
    let known: Vec<BoxedStrategy<Option<Json>>> = members
        .iter()
        .map(|member| {
            let value = of_shape(member.shape, depth);
            match member.presence {
                // Corrective feedback requires a correction: the only rule that shapes do not express.
                _ if member.name == "correction" => Just(Some(Json::from("so"))).boxed(),
                WhenAbsent::Required => value.prop_map(Some).boxed(),
                WhenAbsent::Default(_) => proptest::option::of(value).boxed(),
            }
        })
        .collect();
    (known, vec(("x_[a-z]{1,3}", any_json()), 0..3))
        .prop_map(|(values, extras)| {
            let named = members.iter().zip(values);
            let named = named.filter_map(|(member, value)| Some((member.name.into(), value?)));
            let extras = extras.into_iter().map(|(name, value)| (name.into(), value));
            named.chain(extras).collect()
        })
        .boxed()
}

fn with_base(type_name: &str, members: &Object) -> Object {
    let mut object = Object::new();
    object.insert("type", type_name);
    object.insert("id", "i1");
    object.insert("version", "1.0");
    object.extend(members);
    object
}

fn any_message() -> impl Strategy<Value = (&'static str, Object)> {
    any_message_of(Body::TYPES.to_vec())
}

fn any_answer() -> impl Strategy<Value = (&'static str, Object)> {
    let mut types = Body::TYPES.to_vec();
    types.retain(|name| name.ends_with("/resp"));
    any_message_of(types)
}

fn any_message_of(types: Vec<&'static str>) -> impl Strategy<Value = (&'static str, Object)> {
    select(types).prop_flat_map(|name| {
        of_members(members_of(name).unwrap(), 0)
            .prop_map(move |members| (name, with_base(name, &members)))
    })
}

/// Whether a member was kept: unchanged, or with added defaults inside.
fn is_preserved(written: &Json, read: &Json) -> bool {
    match (written, read) {
        (Json::Object(written), Json::Object(read)) => written
            .iter()
            .all(|(name, value)| read.get(name).is_some_and(|read| is_preserved(value, read))),
        (Json::Array(written), Json::Array(read)) => {
            written.len() == read.len() && written.iter().zip(read).all(|(w, r)| is_preserved(w, r))
        }
        (written, read) => written == read,
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// No written member is lost, and the output parses to the same message.
    #[test]
    fn messages_read_back((name, object) in any_message()) {
        let message = super::read(&Json::from(object.clone()).to_string()).unwrap();
        let req_id = object.get("req_id").and_then(Json::as_str).unwrap_or_default();
        if name == "mcp/sample/req" && !req_id.is_empty() {
            prop_assert_eq!(message.body.type_name(), "mcp/sample/resp");
        } else {
            prop_assert_eq!(message.body.type_name(), name);
            let read = message.to_object();
            prop_assert!(is_preserved(&object.clone().into(), &read.into()), "{object} {message}");
        }
        prop_assert_eq!(message.body.req_id(), req_id);
        let line = message.to_string();
        prop_assert!(line.is_ascii());
        let again = super::read(&line).unwrap();
        prop_assert_eq!(again.to_string(), line);
        prop_assert_eq!(again, message);
    }

    #[test]
    fn decoding_is_total(bytes: Vec<u8>) {
        let _ = decode(&bytes.clone().into(), &DecodeOptions::default());
        let _ = decode_lines(&bytes.into(), &DecodeOptions::default());
    }

    /// A wrong value anywhere gives a message, or a refusal with a name.
    #[test]
    fn any_members_get_a_verdict(name in select(Body::TYPES), members in vec(any_json(), 24)) {
        let table = members_of(name).unwrap();
        let named = table.iter().zip(members).map(|(member, value)| (member.name.into(), value));
        let object = with_base(name, &named.collect());
        if let Err(refusal) = Message::from_json(object.into(), &DecodeOptions::default()) {
            prop_assert_eq!(refusal.kind().as_str(), "schema_violation");
            let top = refusal.field().split('.').next().unwrap();
            prop_assert!(table.iter().any(|member| member.name == top), "{}", top);
        }
    }

    #[test]
    fn helpers_are_total(name in "[a-z/_]{0,20}|.{0,20}", req_id in ".{0,3}") {
        prop_assert!(name.starts_with(type_name::operation(&name)) || name == "pong");
        let _ = (type_name::kind(&name, &req_id), type_name::capability(&name));
        prop_assert_eq!(type_name::is_known(&name), Body::TYPES.contains(&name.as_str()));
    }

    /// The division of a stream into pieces makes no difference.
    #[test]
    fn lines_do_not_depend_on_chunk_boundaries(
        stream in "[ab{}\r\n\u{feff}]{0,60}",
        cuts in vec(0_usize..200, 0..6),
        max_bytes in 1_usize..20,
    ) {
        let mut whole = Splitter::new(max_bytes);
        let expected = lines(&mut whole, [Bytes::from(stream.clone())]);
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(stream.len())).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let bytes = Bytes::from(stream);
        let pieces = cuts.windows(2).map(|cut| bytes.slice(cut[0]..cut[1]));
        let mut pieced = Splitter::new(max_bytes);
        prop_assert_eq!(lines(&mut pieced, pieces), expected);
    }

    /// The repair gives each answer the oldest open call of its operation, as a plain list would.
    #[test]
    fn repair_equals_a_list(steps in vec((0_usize..3, 0_usize..2, 0_usize..6), 0..60)) {
        const OPERATIONS: [&str; 2] = ["env/close", "env/render"];
        let mut matcher = CallMatcher::new(4);
        let mut list: Vec<(usize, String)> = Vec::new();
        for (step, operation, id) in steps {
            let id = format!("c{id}");
            let answer = format!("{}/resp", OPERATIONS[operation]);
            match step {
                0 => {
                    let fits = list.len() < 4 && list.iter().all(|(_, open)| *open != id);
                    let request = format!("{}/req", OPERATIONS[operation]);
                    let opened = matcher.open(&request, &id.as_str().into());
                    prop_assert_eq!(opened.is_ok(), fits);
                    if fits {
                        list.push((operation, id));
                    }
                }
                1 => {
                    let matched = matcher.match_message(&answer, &id, &"{}".into()).unwrap();
                    prop_assert_eq!(matched, Matched::Unchanged);
                    list.retain(|(_, open)| *open != id);
                }
                _ => {
                    let line = Bytes::from(format!("{{\"type\":\"{answer}\"}} "));
                    let place = list.iter().position(|(open, _)| *open == operation);
                    let expected = place.map(|place| list.remove(place).1);
                    let matched = matcher.match_message(&answer, "", &line).unwrap();
                    let expected = expected.map_or(Matched::Unmatched, |id| Matched::Completed {
                        line: format!("{{\"type\":\"{answer}\",\"req_id\":\"{id}\"}} ").into(),
                        req_id: id.into(),
                    });
                    prop_assert_eq!(matched, expected);
                }
            }
            prop_assert_eq!(matcher.open_calls(), list.len());
        }
    }

    /// The line with a `req_id` parses to the same message with it.
    #[test]
    fn a_repaired_line_is_the_message((name, object) in any_answer(), id in ".{1,8}") {
        let mut object = object;
        object.remove("req_id");
        let mut matcher = CallMatcher::new(1);
        matcher.open(name, &id.as_str().into()).unwrap();
        let line = Json::from(object.clone()).to_string();
        let Matched::Completed { line, .. } = matcher.match_message(name, "", &line.into()).unwrap() else {
            panic!("an open call");
        };
        object.insert("req_id", id.as_str());
        let repaired = Json::parse(&line, &Limits::default()).unwrap();
        prop_assert_eq!(&repaired, &Json::from(object));
        let message = super::read(std::str::from_utf8(&line).unwrap()).unwrap();
        prop_assert_eq!((message.kind(), message.body.req_id()), (Kind::Response, id.as_str()));
    }
}

fn lines(splitter: &mut Splitter, pieces: impl IntoIterator<Item = Bytes>) -> Vec<Line> {
    let mut lines = Vec::new();
    for mut piece in pieces {
        while let Some(line) = splitter.next_line(&mut piece) {
            lines.push(line);
        }
    }
    lines.extend(splitter.finish());
    lines
}
