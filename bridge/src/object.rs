//! JSON objects in requests.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use a2abus_plugin::json::range_of;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// A JSON object that is read into `T`. A struct with a derived `Deserialize` also accepts an array, whose elements are
/// its members by position; this type refuses such an array.
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) T);

struct ObjectVisitor<T>(PhantomData<T>);

/// Reads an object.
///
/// # Errors
/// When it is not valid JSON, not an object, or not a `T`.
pub(crate) fn from_slice<'de, T: Deserialize<'de>>(json: &'de [u8]) -> serde_json::Result<T> {
    serde_json::from_slice(json).map(|Object(value)| value)
}

/// The range of a member in a JSON document, with the comma between it and the next member, or else the previous one.
/// `value` is its value there. Its name must have no quotation mark.
pub(crate) fn range_of_member(document: &[u8], value: &RawValue) -> Range<usize> {
    let value = range_of(document, value.get());
    let (Some(before), Some(after)) = (document.get(..value.start), document.get(value.end..))
    else {
        return value;
    };
    let last_quote = |text: &[u8]| text.iter().rposition(|it| *it == b'"').unwrap_or(0);
    let name = last_quote(&before[..last_quote(before)]);
    if let Some(next) = after.trim_ascii_start().strip_prefix(b",") {
        return name..document.len() - next.trim_ascii_start().len();
    }
    match before[..name].trim_ascii_end() {
        [previous @ .., b','] => previous.len()..value.end,
        _ => name..value.end,
    }
}

/// A member that is present, even if it is `null`.
pub(crate) fn present<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// A name of Protocol Buffers as in JSON: `page_size` is `pageSize`.
pub(crate) fn camel(name: &str) -> Cow<'_, str> {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default();
    if first.len() == name.len() {
        return Cow::Borrowed(name);
    }
    let mut camel = first.to_owned();
    for word in words {
        let mut letters = word.chars();
        camel.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        camel.push_str(letters.as_str());
    }
    Cow::Owned(camel)
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(members)).map(Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_removed_with_one_comma() {
        #[derive(Deserialize)]
        struct Outer<'a> {
            #[serde(borrow)]
            params: Inner<'a>,
        }
        #[derive(Deserialize)]
        struct Inner<'a> {
            #[serde(borrow)]
            task: &'a RawValue,
        }
        for (params, expected) in [
            (r#"{"task":{}}"#, "{}"),
            (r#"{ "t\u0061sk" : {"ttl":1.0} }"#, "{  }"),
            (r#"{"task": {} , "n":1.0}"#, r#"{"n":1.0}"#),
            (r#"{"n": "a,\"b\"" , "task":1}"#, r#"{"n": "a,\"b\"" }"#),
            (r#"{"a":1,"task":[","],"b":2}"#, r#"{"a":1,"b":2}"#),
        ] {
            let document = format!(r#"{{"id":1, "params":{params},"method":"x"}}"#);
            let Outer { params } = serde_json::from_str(&document).unwrap();
            let range = range_of_member(document.as_bytes(), params.task);
            let (before, after) = (&document[..range.start], &document[range.end..]);
            let expected = format!(r#"{{"id":1, "params":{expected},"method":"x"}}"#);
            assert_eq!(format!("{before}{after}"), expected);
        }
    }
}
