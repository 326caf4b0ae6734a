//! A2E messages, by their typed model: lines with each member wrong in turn.

use a2abus_models::Json;
use a2abus_models::a2e_message::{
    Body, DecodeOptions, Member, Shape, WhenAbsent, decode, decode_lines, members_of,
};
use bytes::Bytes;

use super::{
    Accepted, Either, HostileKind, MESSAGE, PROGRESS, Refused, VALUES, kind, replaced, truncated,
    with_bytes,
};

/// Reads lines. Accepted messages are written and read again with the same result.
fn read(document: &[u8]) -> Vec<Result<(), &'static str>> {
    let options = DecodeOptions::default();
    let results = decode_lines(&Bytes::copy_from_slice(document), &options);
    let part = |result: Result<_, a2abus_models::a2e_message::Refusal>| match result {
        Ok(message) => {
            let message: a2abus_models::a2e_message::Message = message;
            let line = message.to_string();
            let again = decode(&line.clone().into(), &options).unwrap().unwrap();
            assert_eq!(again.to_string(), line);
            Ok(())
        }
        Err(refusal) => Err(refusal.reason().as_str()),
    };
    results.into_iter().map(part).collect()
}

/// A value of the shape; records and messages have only their required members.
fn fitting(shape: Shape) -> Json {
    match shape {
        Shape::Text => "a".into(),
        Shape::Boolean => true.into(),
        Shape::Integer | Shape::Float => 1_u64.into(),
        Shape::Any | Shape::Nullable(_) => Json::Null,
        Shape::Object | Shape::Map(_) => Json::Object(Default::default()),
        Shape::OneOf(words) => words[0].into(),
        Shape::List(_) => Json::from(Vec::new()),
        Shape::Pair(element) => Json::from(vec![fitting(*element), fitting(*element)]),
        Shape::Record(members) => required(members()),
        Shape::Message(name, members) => with_type(name, &required(members())),
    }
}

/// A value that no member of the shape accepts.
fn unfitting(shape: Shape) -> Option<Json> {
    match shape {
        Shape::Any => None,
        Shape::Nullable(inner) => unfitting(*inner),
        Shape::Text | Shape::OneOf(_) => Some(Json::from(Vec::new())),
        _ => Some("\u{0}".into()),
    }
}

fn required(members: &[Member]) -> Json {
    let needed = |member: &&Member| {
        matches!(member.presence, WhenAbsent::Required) || member.name == "correction"
    };
    Json::object(
        members
            .iter()
            .filter(needed)
            .map(|member| (member.name, value_of(member))),
    )
}

/// Corrective feedback requires a correction: the only rule that shapes do not express.
fn value_of(member: &Member) -> Json {
    if member.name == "correction" {
        "so".into()
    } else {
        fitting(member.shape)
    }
}

fn with_type(name: &str, members: &Json) -> Json {
    let mut object = members.as_object().cloned().unwrap_or_default();
    object.insert("type", name);
    Json::Object(object)
}

fn good(name: &str) -> Json {
    with_type(name, &required(members_of(name).unwrap()))
}

/// Each type with each of its members changed; `None` leaves a member unchanged.
fn changed(change: impl Fn(&Member, &mut Json) -> Option<()>) -> Vec<String> {
    let mut documents = Vec::new();
    for name in Body::TYPES {
        for member in members_of(name).unwrap() {
            let mut message = good(name);
            if change(member, &mut message).is_some() {
                documents.push(message.to_string());
            }
        }
    }
    documents
}

fn set(message: &mut Json, name: &str, value: Json) {
    if let Json::Object(object) = message {
        object.insert(name, value);
    }
}

pub(super) fn kinds() -> Vec<HostileKind> {
    let samples = [MESSAGE, PROGRESS];
    let base_keys: Vec<String> = ["type", "id", "version", "a2e", "ts"]
        .iter()
        .flat_map(|name| VALUES.map(|value| replaced(MESSAGE, name, value)))
        .collect();
    vec![
        kind(
            "message: the least of every type",
            Accepted,
            read,
            Body::TYPES.iter().map(|name| good(name).to_string()),
        ),
        kind(
            "message: a required member is missing",
            Refused(&["missing_member"]),
            read,
            changed(|member, message| {
                let Json::Object(object) = message else {
                    return None;
                };
                matches!(member.presence, WhenAbsent::Required)
                    .then(|| object.remove(member.name))?;
                Some(())
            }),
        ),
        kind(
            "message: a member is of another type",
            Refused(&["bad_member"]),
            read,
            changed(|member, message| {
                set(message, member.name, unfitting(member.shape)?);
                Some(())
            }),
        ),
        kind(
            "message: a member is what it should be, a hundred times inside itself",
            Either(&["bad_member", "missing_member"]),
            read,
            changed(|member, message| {
                let value = (0..100).fold(value_of(member), |inner, _| Json::from(vec![inner]));
                set(message, member.name, value);
                Some(())
            }),
        ),
        kind(
            "message: any value of the base keys",
            Either(&["bad_base_key", "unsupported_version", "non_finite_number"]),
            read,
            base_keys,
        ),
        kind(
            "message: truncated at every byte",
            Refused(&["not_json"]),
            read,
            truncated(&samples),
        ),
        kind(
            "message: bad UTF-8 at every byte",
            Refused(&["not_utf8"]),
            read,
            with_bytes(&samples, b"\xc0\x80"),
        ),
        kind(
            "message: a lone surrogate escape in every place",
            Either(&["not_json"]),
            read,
            with_bytes(&samples, b"\\udc00"),
        ),
        kind(
            "message: numbers that are none",
            Refused(&["non_finite_number"]),
            read,
            [
                "NaN",
                "Infinity",
                "-Infinity",
                "1e999",
                "-1.0e999",
                "[NaN]",
                "{\"a\":[Infinity]}",
            ]
            .into_iter()
            .flat_map(|value| {
                ["ts", "arguments", "timeout", "odd"].map(|name| {
                    replaced(MESSAGE, name, "0").replacen(
                        &format!("\"{name}\":0"),
                        &format!("\"{name}\":{value}"),
                        1,
                    )
                })
            }),
        ),
        kind(
            "message: JSON-RPC",
            Refused(&["json_rpc"]),
            read,
            [
                replaced(MESSAGE, "jsonrpc", "\"2.0\""),
                r#"{"jsonrpc":"2.0","method":"m"}"#.to_owned(),
            ],
        ),
        kind(
            "message: no object",
            Refused(&["not_an_object"]),
            read,
            ["7", "null", "\"a\"", "[]", "[{}]", "true"],
        ),
    ]
}
