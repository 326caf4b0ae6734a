//! What holds for every message, of every type.

use a2abus_models::a2e_message::{
    Body, DecodeOptions, Member, Message, Presence, Shape, decode, decode_lines, members_of,
};
use a2abus_models::{Json, Object};
use a2abus_plugin::Limits;
use a2abus_plugin::protocol::a2e_message as type_name;
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
        Shape::Word(words) => select(words).prop_map(Json::from).boxed(),
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

/// Objects with the required members, some of the others, and some that no type names.
fn of_members(members: &'static [Member], depth: u32) -> BoxedStrategy<Object> {
    let known: Vec<BoxedStrategy<Option<Json>>> = members
        .iter()
        .map(|member| {
            let value = of_shape(member.shape, depth);
            match member.presence {
                // Corrective feedback demands a correction: the one rule that no shape tells.
                _ if member.name == "correction" => Just(Some(Json::from("so"))).boxed(),
                Presence::Required => value.prop_map(Some).boxed(),
                Presence::Default(_) => proptest::option::of(value).boxed(),
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

fn any_message_of(types: Vec<&'static str>) -> impl Strategy<Value = (&'static str, Object)> {
    select(types).prop_flat_map(|name| {
        of_members(members_of(name).unwrap(), 0)
            .prop_map(move |members| (name, with_base(name, &members)))
    })
}

/// Whether a member was kept: as it was, or, where shapes inside got their defaults, more than
/// that.
fn kept(written: &Json, read: &Json) -> bool {
    match (written, read) {
        (Json::Object(written), Json::Object(read)) => written
            .iter()
            .all(|(name, value)| read.get(name).is_some_and(|read| kept(value, read))),
        (Json::Array(written), Json::Array(read)) => {
            written.len() == read.len() && written.iter().zip(read).all(|(w, r)| kept(w, r))
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

    /// Nothing that was written is lost, and what is written reads back as the same.
    #[test]
    fn messages_read_back((name, object) in any_message()) {
        let message = super::read(&Json::from(object.clone()).to_string()).unwrap();
        let req_id = object.get("req_id").and_then(Json::as_str).unwrap_or_default();
        if name == "mcp/sample/req" && !req_id.is_empty() {
            prop_assert_eq!(message.body.type_name(), "mcp/sample/resp");
        } else {
            prop_assert_eq!(message.body.type_name(), name);
            let read = message.to_object();
            prop_assert!(kept(&object.clone().into(), &read.into()), "{object} {message}");
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

    /// A wrong value anywhere gives a message or a refusal with a word.
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
}
