//! How members are read: the type rules that all messages share. Source: docs/protocols/e2a.md §2.

use crate::e2a::constants::PROTOCOL_VERSION;
use crate::e2a::error::{E2aError, E2aErrorKind as Kind};
use crate::json::{Json, Number, Object};
use a2abus_plugin::Text;
use a2abus_plugin::time;

/// Members that must not be repeated. Source: docs/protocols/e2a.md §S6.
const UNIQUE_MEMBERS: [&str; 15] = [
    "protocol_version",
    "request_id",
    "response_kind",
    "method",
    "params",
    "agent_id",
    "agent_ref",
    "source_agent_id",
    "channel",
    "channel_id",
    "channel_context",
    "metadata",
    "sequence",
    "is_final",
    "jsonrpc_id",
];

/// The members of one object of a message, and the path to it.
#[derive(Clone, Copy)]
pub(super) struct Members<'a> {
    object: &'a Object,
    /// The path with its dot; empty at the top.
    path: &'static str,
}

impl<'a> Members<'a> {
    /// The top level of a message; refuses repeated important members.
    pub(super) fn of_message(value: &'a Json) -> Result<Self, E2aError> {
        let object = value.as_object().ok_or(Kind::NotAnObject)?;
        let twice = |name: &&Text| UNIQUE_MEMBERS.contains(&name.as_str());
        match object.repeated().iter().find(twice) {
            Some(name) => Err(E2aError::new(Kind::DuplicateMember, name.clone())),
            None => Ok(Self { object, path: "" }),
        }
    }

    /// An object inside a message; the path ends with a dot.
    pub(super) fn nested(object: &'a Object, path: &'static str) -> Self {
        Self { object, path }
    }

    pub(super) fn object(self) -> &'a Object {
        self.object
    }

    /// A member that is present and not null.
    pub(super) fn get(self, name: &str) -> Option<&'a Json> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn error(self, kind: Kind, name: &str) -> E2aError {
        E2aError::new(kind, format!("{}{name}", self.path))
    }

    /// A string unchanged, a number as its digits.
    pub(super) fn text(self, name: &str) -> Result<Option<Text>, E2aError> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => match scalar_text(value) {
                Some(text) => Ok(Some(text)),
                None => Err(self.error(Kind::BadType, name)),
            },
        }
    }

    /// A string; refuses other types.
    pub(super) fn string(self, name: &str) -> Result<Option<Text>, E2aError> {
        match self.get(name) {
            None => Ok(None),
            Some(Json::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(self.error(Kind::BadType, name)),
        }
    }

    /// A trimmed string; nothing if it is blank or not a string.
    pub(super) fn trimmed(self, name: &str) -> Option<Text> {
        self.get(name).and_then(Json::as_text).and_then(trim)
    }

    /// An object; absent, null, `false`, `0`, `""` and `[]` read as an empty one.
    pub(super) fn free_object(self, name: &str) -> Result<Object, E2aError> {
        falsy_object(self.get(name)).ok_or_else(|| self.error(Kind::BadType, name))
    }

    /// An object or nothing.
    pub(super) fn optional_object(self, name: &str) -> Result<Option<Object>, E2aError> {
        match self.get(name) {
            None => Ok(None),
            Some(Json::Object(object)) => Ok(Some(object.clone())),
            Some(_) => Err(self.error(Kind::BadType, name)),
        }
    }

    /// An array; falsy values read as an empty one.
    pub(super) fn array(self, name: &str) -> Result<Vec<Json>, E2aError> {
        match self.get(name) {
            None => Ok(Vec::new()),
            Some(Json::Array(elements)) => Ok(elements.to_vec()),
            Some(value) if !is_truthy(value) => Ok(Vec::new()),
            Some(_) => Err(self.error(Kind::BadType, name)),
        }
    }

    /// A Boolean, a number (0 is false), or the strings `true` and `false`.
    pub(super) fn flag(self, name: &str) -> Result<Option<bool>, E2aError> {
        match self.get(name) {
            None => Ok(None),
            Some(Json::Bool(flag)) => Ok(Some(*flag)),
            Some(Json::Number(number)) => Ok(Some(number.as_f64() != 0.0)),
            Some(Json::String(word)) if word.eq_ignore_ascii_case("true") => Ok(Some(true)),
            Some(Json::String(word)) if word.eq_ignore_ascii_case("false") => Ok(Some(false)),
            Some(_) => Err(self.error(Kind::BadType, name)),
        }
    }

    /// An integer, written as a number (`3` or `3.0`) or as text.
    pub(super) fn integer(self, name: &str) -> Result<Option<i64>, E2aError> {
        let read = match self.get(name) {
            None => return Ok(None),
            Some(Json::Number(number)) => integer(number),
            Some(Json::String(text)) => {
                let text = text.trim();
                let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
                if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                    Err(Kind::BadType)
                } else {
                    text.parse().map_err(|_| Kind::OutOfRange)
                }
            }
            Some(_) => Err(Kind::BadType),
        };
        read.map(Some).map_err(|kind| self.error(kind, name))
    }

    /// A finite number.
    pub(super) fn double(self, name: &str) -> Result<Option<f64>, E2aError> {
        match self.get(name) {
            None => Ok(None),
            Some(Json::Number(number)) if number.as_f64().is_finite() => Ok(Some(number.as_f64())),
            Some(Json::Number(_)) => Err(self.error(Kind::OutOfRange, name)),
            Some(_) => Err(self.error(Kind::BadType, name)),
        }
    }

    /// A string unchanged, a number as seconds or milliseconds since 1970. Source: docs/protocols/e2a.md §5.
    pub(super) fn timestamp(self) -> Result<Option<Text>, E2aError> {
        match self.get("timestamp") {
            None => Ok(None),
            Some(Json::String(text)) => Ok(Some(text.clone())),
            Some(Json::Number(number)) => {
                match time::of_e2a_number(number.as_f64()).map(time::with_offset) {
                    Some(text) => Ok(Some(text)),
                    None => Err(self.error(Kind::OutOfRange, "timestamp")),
                }
            }
            Some(_) => Err(self.error(Kind::BadType, "timestamp")),
        }
    }

    /// `channel`, or else `channel_id`.
    pub(super) fn channel(self) -> Result<Option<Text>, E2aError> {
        match self.text("channel")? {
            Some(channel) => Ok(Some(channel)),
            None => self.text("channel_id"),
        }
    }

    /// The members that are neither current nor legacy ones.
    pub(super) fn extras(self, written: &[&str], older: &[&str]) -> Object {
        let is_known = |name: &str| written.contains(&name) || older.contains(&name);
        self.object
            .iter()
            .filter(|(name, _)| !is_known(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }

    pub(super) fn protocol_version(self) -> Result<Text, E2aError> {
        let version = self.string("protocol_version")?;
        Ok(version.unwrap_or(Text::from_static(PROTOCOL_VERSION)))
    }
}

fn integer(number: &Number) -> Result<i64, Kind> {
    /// 2^63: the smallest double that does not fit into 64 bits.
    const END: f64 = 9_223_372_036_854_775_808.0;
    let value = number.as_f64();
    match number.as_i64() {
        Some(integer) => Ok(integer),
        None if !(-END..END).contains(&value) => Err(Kind::OutOfRange),
        None if value.fract() != 0.0 => Err(Kind::BadType),
        None => Ok(value as i64),
    }
}

/// The trimmed text; `None` if it is blank.
pub(super) fn trim(text: &Text) -> Option<Text> {
    let trimmed = text.trim();
    match trimmed.len() {
        0 => None,
        length if length == text.len() => Some(text.clone()),
        _ => Some(Text::from(trimmed)),
    }
}

/// A string unchanged, a number as its digits; nothing for other values.
pub(super) fn scalar_text(value: &Json) -> Option<Text> {
    match value {
        Json::String(text) => Some(text.clone()),
        Json::Number(number) => Some(Text::from(number.to_string())),
        Json::Null | Json::Bool(_) | Json::Array(_) | Json::Object(_) => None,
    }
}

/// Any value as text: null is empty, a structure is its JSON.
pub(crate) fn text_of(value: &Json) -> Text {
    match value {
        Json::Null => Text::default(),
        Json::String(text) => text.clone(),
        other => Text::from(other.to_string()),
    }
}

/// An object; falsy values read as an empty one, and other values are refused.
pub(crate) fn falsy_object(value: Option<&Json>) -> Option<Object> {
    match value {
        None => Some(Object::new()),
        Some(Json::Object(object)) => Some(object.clone()),
        Some(value) => (!is_truthy(value)).then(Object::new),
    }
}

/// Whether it is truthy: not null, `false`, zero, or an empty string, array or object.
pub(super) fn is_truthy(value: &Json) -> bool {
    match value {
        Json::Null => false,
        Json::Bool(flag) => *flag,
        Json::Number(number) => number.as_f64() != 0.0,
        Json::String(text) => !text.is_empty(),
        Json::Array(elements) => !elements.is_empty(),
        Json::Object(object) => !object.is_empty(),
    }
}

/// A non-empty id; some writers use `""` for null. Source: docs/protocols/e2a.md §9.
pub(super) fn non_empty(text: Option<&Text>) -> Option<&Text> {
    text.filter(|text| !text.is_empty())
}
