//! The values an execution works on: how are they shared, compared and measured?
//!
//! Arrays and objects are shared, so that handing a value from one operation to the next copies
//! nothing. Each knows its weight, so that limits of memory cost nothing to check.
//! Source: docs/protocols/a2e-workflows.md §D11.

mod number;
mod write;

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::Arc;

use a2abus_models::Json;
use a2abus_plugin::{DecodeError, Limits, Text};
use indexmap::IndexMap;

pub(crate) use number::{
    Rounding, absolute, compare_numbers, computed, exact_integer, number, rounded,
};
pub(crate) use write::write_string;

/// A JSON value, cheap to clone. Equal as JSON is: numbers by value, objects whatever the order
/// of their members. `Display` writes it compactly.
///
/// ```
/// use a2abus_executor::Value;
///
/// let value = Value::parse(br#"{"n": 1.0, "list": [true]}"#).unwrap();
/// assert_eq!(value.get("n"), Some(&Value::Integer(1)));
/// assert_eq!(value.get("list").unwrap().to_string(), "[true]");
/// ```
#[derive(Clone, Default)]
pub enum Value {
    /// `null`.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// An integer of 64 bits.
    Integer(i64),
    /// Another number that a double holds exactly as it was written; always finite.
    Float(f64),
    /// A number that neither holds, as its digits.
    Digits(Arc<str>),
    /// A string.
    String(Text),
    /// An array.
    Array(Array),
    /// An object.
    Object(Object),
}

/// The elements of an array; shared.
#[derive(Clone, Default)]
pub struct Array(Arc<Elements>);

#[derive(Clone, Default)]
struct Elements {
    values: Vec<Value>,
    weight: usize,
    /// The most levels an element has had.
    depth: usize,
}

/// The members of an object in their order; shared.
#[derive(Clone, Default)]
pub struct Object(Arc<Members>);

#[derive(Clone, Default)]
struct Members {
    values: IndexMap<Text, Value>,
    weight: usize,
    /// The most levels a member has had.
    depth: usize,
}

/// What a value costs beside its text, in bytes.
pub(crate) const VALUE_WEIGHT: usize = size_of::<Value>();
/// What a member costs beside its value and the text of its name: the name and a place in a hash
/// table.
pub(crate) const MEMBER_WEIGHT: usize = size_of::<Text>() + 2 * size_of::<usize>();

/// Up to how many members comparing names is faster than a hash.
const FEW: usize = 8;

// === impl Value ===

impl Value {
    /// Reads one JSON text of at most 64 MiB and 128 levels.
    ///
    /// # Errors
    /// What is wrong with the text, with its byte offset.
    pub fn parse(text: &[u8]) -> Result<Self, DecodeError> {
        Self::parse_within(text, u32::MAX)
    }

    /// Reads the same as it was written, which tells what members stand twice.
    ///
    /// # Errors
    /// What is wrong with the text, with its byte offset.
    pub fn parse_as_written(text: &[u8]) -> Result<Json, DecodeError> {
        json_within(text, u32::MAX)
    }

    /// The same, with at most so many members and elements in all.
    pub(crate) fn parse_within(text: &[u8], max_members: u32) -> Result<Self, DecodeError> {
        json_within(text, max_members).map(Self::from)
    }

    /// An object of these members.
    pub fn object<N: Into<Text>>(members: impl IntoIterator<Item = (N, Self)>) -> Self {
        Self::Object(
            members
                .into_iter()
                .map(|(name, value)| (name.into(), value))
                .collect(),
        )
    }

    /// The member of an object.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Self> {
        self.as_object()?.get(name)
    }

    /// The elements of an array.
    #[must_use]
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Self::Array(array) => Some(array),
            _ => None,
        }
    }

    /// The members of an object.
    #[must_use]
    pub fn as_object(&self) -> Option<&Object> {
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The text of a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The nearest double of a number.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        number::as_f64(self)
    }

    /// Whether it is `null`.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Whether it is a number.
    #[must_use]
    pub fn is_number(&self) -> bool {
        matches!(self, Self::Integer(_) | Self::Float(_) | Self::Digits(_))
    }

    /// The word of its kind, for messages.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Integer(_) | Self::Float(_) | Self::Digits(_) => "a number",
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
            Self::Object(_) => "an object",
        }
    }

    /// What it weighs, in bytes of memory, as if nothing of it were shared.
    #[must_use]
    pub fn weight(&self) -> usize {
        VALUE_WEIGHT
            + match self {
                Self::Null | Self::Bool(_) | Self::Integer(_) | Self::Float(_) => 0,
                Self::Digits(digits) => digits.len(),
                Self::String(text) => text.len(),
                Self::Array(array) => array.0.weight,
                Self::Object(object) => object.0.weight,
            }
    }

    /// Where an array or an object lies: as long as a clone of it lives, no other has the same
    /// address, and what lies there does not change.
    pub(crate) fn address(&self) -> Option<usize> {
        match self {
            Self::Array(array) => Some(Arc::as_ptr(&array.0).addr()),
            Self::Object(object) => Some(Arc::as_ptr(&object.0).addr()),
            _ => None,
        }
    }

    /// At least how many levels of arrays and objects it has.
    pub(crate) fn depth(&self) -> usize {
        match self {
            Self::Array(array) => 1 + array.0.depth,
            Self::Object(object) => 1 + object.0.depth,
            _ => 0,
        }
    }

    /// Feeds a hasher so that equal values feed the same.
    fn feed(&self, state: &RandomState, hasher: &mut impl Hasher) {
        match self {
            Self::Null => 0_u8.hash(hasher),
            Self::Bool(value) => (1_u8, value).hash(hasher),
            Self::Integer(_) | Self::Float(_) | Self::Digits(_) => {
                2_u8.hash(hasher);
                number::feed(self, hasher);
            }
            Self::String(text) => (3_u8, text.as_str()).hash(hasher),
            Self::Array(array) => {
                (4_u8, array.len()).hash(hasher);
                array.iter().for_each(|value| value.feed(state, hasher));
            }
            Self::Object(object) => {
                let members = object.iter().map(|(name, value)| {
                    let mut hasher = state.build_hasher();
                    name.as_str().hash(&mut hasher);
                    value.feed(state, &mut hasher);
                    hasher.finish()
                });
                // A sum, since the order of members does not count.
                (5_u8, members.fold(0_u64, u64::wrapping_add)).hash(hasher);
            }
        }
    }

    /// A hash under which equal values are equal, of use with the same state alone.
    pub(crate) fn hash_in(&self, state: &RandomState) -> u64 {
        let mut hasher = state.build_hasher();
        self.feed(state, &mut hasher);
        hasher.finish()
    }
}

fn json_within(text: &[u8], max_members: u32) -> Result<Json, DecodeError> {
    let mut limits = Limits::default();
    (limits.max_bytes, limits.max_members) = (64 << 20, max_members);
    Json::parse(text, &limits)
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Integer(a), Self::Integer(b)) => a == b,
            (Self::String(a), Self::String(b)) => a == b,
            (Self::Array(a), Self::Array(b)) => a == b,
            (Self::Object(a), Self::Object(b)) => a == b,
            _ => compare_numbers(self, other).is_some_and(std::cmp::Ordering::is_eq),
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Json> for Value {
    fn from(json: Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(value) => Self::Bool(value),
            Json::Number(digits) => number(digits.as_str()),
            Json::String(text) => Self::String(text),
            Json::Array(elements) => Self::Array(elements.into_iter().map(Self::from).collect()),
            Json::Object(members) => Self::Object(
                members
                    .into_iter()
                    .map(|(name, value)| (name, Self::from(value)))
                    .collect(),
            ),
        }
    }
}

impl From<&Json> for Value {
    fn from(json: &Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(digits) => number(digits.as_str()),
            Json::String(text) => Self::String(text.clone()),
            Json::Array(elements) => Self::Array(elements.iter().map(Self::from).collect()),
            Json::Object(members) => Self::Object(
                members
                    .iter()
                    .map(|(name, value)| (name.clone(), Self::from(value)))
                    .collect(),
            ),
        }
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Integer(number.into())
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        i64::try_from(number).map_or_else(|_| number::number(&number.to_string()), Self::Integer)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text.into())
    }
}

impl From<Text> for Value {
    fn from(text: Text) -> Self {
        Self::String(text)
    }
}

impl From<Vec<Value>> for Value {
    fn from(elements: Vec<Value>) -> Self {
        Self::Array(elements.into_iter().collect())
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Self {
        Self::Array(array)
    }
}

impl From<Object> for Value {
    fn from(object: Object) -> Self {
        Self::Object(object)
    }
}

/// `None` is `null`.
impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

// === impl Array ===

impl Array {
    /// The elements.
    #[must_use]
    pub fn as_slice(&self) -> &[Value] {
        &self.0.values
    }

    /// The number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.values.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.values.is_empty()
    }

    /// The elements in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Value> {
        self.0.values.iter()
    }

    /// The element at this index.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Value> {
        self.0.values.get(index)
    }

    /// Whether it is the same array in memory.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Adds an element. Copies the list of elements, not the elements, if someone else has it too.
    pub(crate) fn push(&mut self, value: Value) {
        let elements = Arc::make_mut(&mut self.0);
        elements.weight += value.weight();
        elements.depth = elements.depth.max(value.depth());
        elements.values.push(value);
    }

    /// Hands an element over to be changed; `None` if it is not there.
    pub(crate) fn change<R>(
        &mut self,
        index: usize,
        change: impl FnOnce(&mut Value) -> R,
    ) -> Option<R> {
        let elements = Arc::make_mut(&mut self.0);
        let value = elements.values.get_mut(index)?;
        elements.weight -= value.weight();
        let result = change(value);
        elements.weight += value.weight();
        elements.depth = elements.depth.max(value.depth());
        Some(result)
    }
}

impl PartialEq for Array {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.values == other.0.values
    }
}

impl FromIterator<Value> for Array {
    fn from_iter<I: IntoIterator<Item = Value>>(elements: I) -> Self {
        let values: Vec<_> = elements.into_iter().collect();
        let weight = values.iter().map(Value::weight).sum();
        let depth = values.iter().map(Value::depth).max().unwrap_or_default();
        Self(Arc::new(Elements {
            values,
            weight,
            depth,
        }))
    }
}

impl<'a> IntoIterator for &'a Array {
    type Item = &'a Value;
    type IntoIter = std::slice::Iter<'a, Value>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

// === impl Object ===

impl Object {
    /// The member of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        if self.len() <= FEW {
            let mut members = self.iter();
            return members
                .find(|(known, _)| **known == *name)
                .map(|(_, value)| value);
        }
        self.0.values.get(name)
    }

    /// The number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.values.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.values.is_empty()
    }

    /// The members in order.
    pub fn iter(&self) -> indexmap::map::Iter<'_, Text, Value> {
        self.0.values.iter()
    }

    /// Sets a member, at its place if it is there and at the end if not. Copies the list of
    /// members, not their values, if someone else has it too.
    pub fn insert(&mut self, name: Text, value: Value) {
        let members = Arc::make_mut(&mut self.0);
        members.weight += member_weight(&name, &value);
        members.depth = members.depth.max(value.depth());
        let name_weight = name.len();
        if let Some(old) = members.values.insert(name, value) {
            members.weight -= MEMBER_WEIGHT + name_weight + old.weight();
        }
    }

    /// Hands a member over to be changed, `null` if it is not there.
    pub(crate) fn change<R>(&mut self, name: &Text, change: impl FnOnce(&mut Value) -> R) -> R {
        let members = Arc::make_mut(&mut self.0);
        let mut value = match members.values.get_mut(name) {
            Some(value) => {
                members.weight -= member_weight(name, value);
                std::mem::take(value)
            }
            None => Value::Null,
        };
        let result = change(&mut value);
        members.weight += member_weight(name, &value);
        members.depth = members.depth.max(value.depth());
        members.values.insert(name.clone(), value);
        result
    }
}

/// What a member weighs with its value.
pub(crate) fn member_weight(name: &Text, value: &Value) -> usize {
    MEMBER_WEIGHT + name.len() + value.weight()
}

impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.values == other.0.values
    }
}

impl FromIterator<(Text, Value)> for Object {
    fn from_iter<I: IntoIterator<Item = (Text, Value)>>(members: I) -> Self {
        let values: IndexMap<_, _> = members.into_iter().collect();
        let weight = values
            .iter()
            .map(|(name, value)| member_weight(name, value))
            .sum();
        let depth = values.values().map(Value::depth).max().unwrap_or_default();
        Self(Arc::new(Members {
            values,
            weight,
            depth,
        }))
    }
}

impl<'a> IntoIterator for &'a Object {
    type Item = (&'a Text, &'a Value);
    type IntoIter = indexmap::map::Iter<'a, Text, Value>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Value {
        Value::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_value_is_three_words() {
        assert_eq!(size_of::<Value>(), 24);
    }

    #[test]
    fn numbers_are_equal_by_value_and_no_other_kinds_are() {
        for (a, b, equal) in [
            ("1", "1.0", true),
            ("1", "1e0", true),
            ("0", "-0.0", true),
            ("1", "true", false),
            ("1", "\"1\"", false),
            ("0", "null", false),
            ("12345678901234567890", "12345678901234567890.0", true),
            ("12345678901234567890", "12345678901234567891", false),
            ("9007199254740993", "9007199254740992.0", false),
            ("1e400", "10e399", true),
            ("1e400", "1e401", false),
            ("0.1", "1e-1", true),
            ("0.1", "0.1000000000000000055511151231257827", false),
            (r#"{"a":1,"b":[2]}"#, r#"{"b":[2.0],"a":1}"#, true),
            (r#"{"a":1}"#, r#"{"a":1,"b":null}"#, false),
            ("[1,2]", "[2,1]", false),
        ] {
            let (a, b) = (parse(a), parse(b));
            assert_eq!(a == b, equal, "{a} and {b}");
            let state = RandomState::new();
            assert!(
                !equal || a.hash_in(&state) == b.hash_in(&state),
                "{a} and {b}"
            );
        }
    }

    #[test]
    fn weight_follows_every_change() {
        let mut object = Object::default();
        object.insert("a".into(), parse("[1,2,3]"));
        object.insert("a".into(), parse(r#""text""#));
        object.insert("b".into(), Value::Null);
        object.change(&"b".into(), |value| *value = parse(r#"{"deep":[{}]}"#));
        object.change(&"c".into(), |value| *value = Value::Bool(true));
        let text = Value::from(object.clone()).to_string();
        assert_eq!(text, r#"{"a":"text","b":{"deep":[{}]},"c":true}"#);
        assert_eq!(Value::from(object).weight(), parse(&text).weight());
    }

    #[test]
    fn digits_are_written_as_they_were_read() {
        for text in ["12345678901234567890123", "1e400", "-0.5", "100", "1.5e-7"] {
            assert_eq!(parse(text), parse(&parse(text).to_string()), "{text}");
        }
        assert_eq!(
            parse("12345678901234567890123").to_string(),
            "12345678901234567890123"
        );
    }
}
