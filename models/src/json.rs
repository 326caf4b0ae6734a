//! JSON values for the typed models and for executions. Messages in transit do not use them.
//!
//! Unlike the usual JSON values, these preserve the text: members stay in order, numbers keep their digits, and
//! repeated names are recorded. Arrays and objects are shared, so that cloning copies nothing. Each stores its
//! size, so that memory limits are cheap to check. Equality is by value: docs/protocols/a2e-workflows.md §D11.

mod number;
mod write;

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::ops::Deref;
use std::sync::Arc;

use indexmap::IndexMap;

use a2abus_plugin::Limits;
use a2abus_plugin::Text;
use a2abus_plugin::json::{
    BYTE_ORDER_MARK, Kind, LONE_SURROGATE, Reader, check_utf8, unescape, unescape_lossy,
};
use a2abus_plugin::{DecodeError, DecodeErrorKind};

pub use number::{Number, Rounding};

/// Removes the byte order mark that some writers put before JSON or a stream of lines.
pub(crate) fn without_byte_order_mark(document: &[u8]) -> &[u8] {
    document.strip_prefix(BYTE_ORDER_MARK).unwrap_or(document)
}

/// A JSON value, cheap to clone. Equality is that of JSON: numbers by value, objects regardless of member order and
/// of repeated names. `Display` writes it compactly, `{:#}` with non-ASCII characters escaped.
///
/// ```
/// use a2abus_models::Json;
/// use a2abus_plugin::Limits;
///
/// let value = Json::parse(r#"{"n": 1.50, "list": [true, "é"]}"#.as_bytes(), &Limits::default()).unwrap();
/// assert_eq!(value.to_string(), r#"{"n":1.50,"list":[true,"é"]}"#);
/// assert_eq!(format!("{:#}", value.get("list").unwrap()), r#"[true,"\u00e9"]"#);
/// assert_eq!(value.by_value().to_string(), r#"{"n":1.5,"list":[true,"é"]}"#);
/// ```
#[derive(Clone, Default, PartialEq)]
pub enum Json {
    /// `null`.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number.
    Number(Number),
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
    values: Vec<Json>,
    weight: usize,
    /// The maximum depth of any element so far.
    depth: usize,
}

/// The members of a JSON object in their order; shared. If a name is repeated, the last value counts, at the first
/// position.
#[derive(Clone, Default)]
pub struct Object(Arc<Members>);

#[derive(Clone, Default)]
struct Members {
    values: IndexMap<Text, Json>,
    repeated: Vec<Text>,
    weight: usize,
    /// The maximum depth of any member so far.
    depth: usize,
}

/// What becomes of a lone surrogate, which has no UTF-8 form.
#[derive(Clone, Copy)]
enum LoneSurrogates {
    /// The text is refused.
    Refused,
    /// U+FFFD stands for it.
    Replaced,
}

/// How numbers and escaped strings are read.
#[derive(Clone, Copy)]
struct Scalars {
    number: fn(&str) -> Number,
    string: fn(&[u8]) -> Option<String>,
}

/// Up to this many members, comparing names is faster than hashing.
const MAX_UNHASHED: usize = 8;

// === impl Json ===

impl Json {
    /// The size of a value without its text, in bytes.
    pub const WEIGHT: usize = size_of::<Self>();

    /// Parses one JSON value, with optional white space around it. Numbers keep their digits.
    ///
    /// # Errors
    /// The fault of the text, with its byte offset: not UTF-8, not JSON (including a lone surrogate in a string), or
    /// over one of the limits.
    pub fn parse(text: &[u8], limits: &Limits) -> Result<Self, DecodeError> {
        Self::parse_with(text, limits, Number::read, LoneSurrogates::Refused)
    }

    /// The same with U+FFFD in place of each lone surrogate. For records that pass through: JavaScript programs write
    /// lone surrogates when they truncate text, and a reader that refuses them loses the whole record.
    ///
    /// # Errors
    /// As [`Json::parse`], except for lone surrogates.
    pub fn parse_lossy(text: &[u8], limits: &Limits) -> Result<Self, DecodeError> {
        Self::parse_with(text, limits, Number::read, LoneSurrogates::Replaced)
    }

    /// The same, with numbers in the canonical form of [`Json::by_value`].
    ///
    /// # Errors
    /// As [`Json::parse`].
    pub fn parse_by_value(text: &[u8], limits: &Limits) -> Result<Self, DecodeError> {
        Self::parse_with(text, limits, Number::of_value, LoneSurrogates::Refused)
    }

    fn parse_with(
        text: &[u8],
        limits: &Limits,
        number: fn(&str) -> Number,
        lone_surrogates: LoneSurrogates,
    ) -> Result<Self, DecodeError> {
        limits.check_bytes(text)?;
        let text = check_utf8(text)?;
        let reader = Reader::new(text.as_bytes(), limits);
        let mut reader = match lone_surrogates {
            LoneSurrogates::Refused => reader.refusing_lone_surrogates(),
            LoneSurrogates::Replaced => reader.replacing_lone_surrogates(),
        };
        let string: fn(&[u8]) -> Option<String> = match lone_surrogates {
            LoneSurrogates::Refused => unescape,
            LoneSurrogates::Replaced => unescape_lossy,
        };
        let value = read(&mut reader, text, Scalars { number, string })?;
        reader.skip_white_space();
        match reader.peek() {
            None => Ok(value),
            Some(_) => Err(reader.not_json("more text after the JSON value")),
        }
    }

    /// The same value with each number in canonical form: an integer, else the shortest text of a double, else its
    /// digits.
    #[must_use]
    pub fn by_value(&self) -> Self {
        match self {
            Self::Number(number) => Self::Number(number.by_value()),
            Self::Array(elements) => elements.iter().map(Self::by_value).collect(),
            Self::Object(members) => Self::object(
                members
                    .iter()
                    .map(|(name, value)| (name.clone(), value.by_value())),
            ),
            Self::Null | Self::Bool(_) | Self::String(_) => self.clone(),
        }
    }

    /// An object with these members.
    pub fn object<N: Into<Text>>(members: impl IntoIterator<Item = (N, Self)>) -> Self {
        Self::Object(
            members
                .into_iter()
                .map(|(name, value)| (name.into(), value))
                .collect(),
        )
    }

    /// A member of an object; `None` for anything else.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Self> {
        self.as_object()?.get(name)
    }

    /// The members of an object.
    #[must_use]
    pub fn as_object(&self) -> Option<&Object> {
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }

    /// The elements of an array.
    #[must_use]
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Self::Array(elements) => Some(elements),
            _ => None,
        }
    }

    /// The text of a string.
    #[must_use]
    pub fn as_text(&self) -> Option<&Text> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The text of a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        self.as_text().map(Text::as_str)
    }

    /// A number.
    #[must_use]
    pub fn as_number(&self) -> Option<&Number> {
        match self {
            Self::Number(number) => Some(number),
            _ => None,
        }
    }

    /// The value of a number that is written as a 64-bit integer.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        self.as_number()?.as_i64()
    }

    /// A Boolean.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(flag) => Some(*flag),
            _ => None,
        }
    }

    /// Whether it is `null`.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// The path of the first repeated member, such as `cases[2].expected`.
    #[must_use]
    pub fn first_repeated(&self) -> Option<String> {
        let below = |name: &str, of_value: String| {
            let dot = if of_value.starts_with('[') { "" } else { "." };
            format!("{name}{dot}{of_value}")
        };
        match self {
            Self::Object(object) => match object.repeated().first() {
                Some(name) => Some(name.to_string()),
                None => object
                    .iter()
                    .find_map(|(name, value)| Some(below(name, value.first_repeated()?))),
            },
            Self::Array(elements) => elements.iter().enumerate().find_map(|(index, element)| {
                Some(below(&format!("[{index}]"), element.first_repeated()?))
            }),
            Self::Null | Self::Bool(_) | Self::Number(_) | Self::String(_) => None,
        }
    }

    /// Its type, for messages: `null`, `a boolean`, `a number`, `a string`, `an array` or `an object`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
            Self::Object(_) => "an object",
        }
    }

    /// Its size in memory, in bytes, as if nothing were shared.
    #[must_use]
    pub fn weight(&self) -> usize {
        Self::WEIGHT
            + match self {
                Self::Null | Self::Bool(_) => 0,
                Self::Number(number) => number.weight(),
                Self::String(text) => text.len(),
                Self::Array(array) => array.0.weight,
                Self::Object(object) => object.0.weight,
            }
    }

    /// An upper bound of its nesting depth.
    #[must_use]
    pub fn depth(&self) -> usize {
        match self {
            Self::Array(array) => 1 + array.0.depth,
            Self::Object(object) => 1 + object.0.depth,
            _ => 0,
        }
    }

    /// A hash that is equal for equal values, valid only with the same state.
    #[must_use]
    pub fn hash_in(&self, state: &RandomState) -> u64 {
        let mut hasher = state.build_hasher();
        self.feed(state, &mut hasher);
        hasher.finish()
    }

    /// Feeds a hasher, equally for equal values.
    fn feed(&self, state: &RandomState, hasher: &mut impl Hasher) {
        match self {
            Self::Null => 0_u8.hash(hasher),
            Self::Bool(value) => (1_u8, value).hash(hasher),
            Self::Number(number) => (2_u8, number).hash(hasher),
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
                // A sum, because the order of members does not count.
                (5_u8, members.fold(0_u64, u64::wrapping_add)).hash(hasher);
            }
        }
    }

    /// The address of an array or an object: as long as a clone of it lives, no other has the same address, and its
    /// content does not change.
    #[must_use]
    pub fn address(&self) -> Option<usize> {
        match self {
            Self::Array(array) => Some(Arc::as_ptr(&array.0).addr()),
            Self::Object(object) => Some(Arc::as_ptr(&object.0).addr()),
            _ => None,
        }
    }
}

fn read(reader: &mut Reader<'_>, text: &str, scalars: Scalars) -> Result<Json, DecodeError> {
    match reader.kind()? {
        Kind::Object => {
            let mut members = Members::default();
            reader.object(|reader, name| {
                let name = Text::from_utf8(name).unwrap_or_default();
                let value = read(reader, text, scalars)?;
                if members.insert(name.clone(), value).is_some() {
                    members.repeated.push(name);
                }
                Ok(())
            })?;
            Ok(Json::Object(Object(Arc::new(members))))
        }
        Kind::Array => {
            let mut elements = Elements::default();
            reader.array(|reader| {
                elements.push(read(reader, text, scalars)?);
                Ok(())
            })?;
            Ok(Json::Array(Array(Arc::new(elements))))
        }
        Kind::String => {
            let span = reader.value()?;
            let raw = text.get(span.inside_quotes()).unwrap_or_default();
            if !span.is_escaped() {
                return Ok(raw.into());
            }
            let unescaped = (scalars.string)(raw.as_bytes()).ok_or_else(|| {
                DecodeError::new(DecodeErrorKind::NotJson, span.start(), LONE_SURROGATE)
            })?;
            Ok(unescaped.into())
        }
        Kind::Number => {
            let span = reader.value()?;
            let digits = text.get(span.range()).unwrap_or_default();
            Ok((scalars.number)(digits).into())
        }
        Kind::Boolean => {
            let span = reader.value()?;
            Ok(Json::Bool(reader.token(span) == b"true"))
        }
        Kind::Null => reader.value().map(|_| Json::Null),
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Declares conversions into values.
macro_rules! from {
    ($($type:ty: $variant:ident,)*) => {$(
        impl From<$type> for Json {
            fn from(value: $type) -> Self {
                Self::$variant(value.into())
            }
        }
    )*};
}

from! {
    bool: Bool,
    i32: Number,
    u32: Number,
    i64: Number,
    u64: Number,
    usize: Number,
    i128: Number,
    Number: Number,
    &str: String,
    String: String,
    Text: String,
    Vec<Json>: Array,
    Array: Array,
    Object: Object,
}

/// `null` if it is not finite.
impl From<f64> for Json {
    fn from(number: f64) -> Self {
        Number::from_f64(number).into()
    }
}

/// `None` is `null`.
impl<T: Into<Json>> From<Option<T>> for Json {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// An array.
impl FromIterator<Json> for Json {
    fn from_iter<I: IntoIterator<Item = Json>>(elements: I) -> Self {
        Self::Array(elements.into_iter().collect())
    }
}

// === impl Array ===

impl Array {
    /// Whether both are the same array in memory.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Adds an element. If it is shared, copies the list of elements, but not the elements.
    pub fn push(&mut self, value: Json) {
        Arc::make_mut(&mut self.0).push(value);
    }

    /// Mutable access to an element; `None` if it does not exist.
    pub fn change<R>(&mut self, index: usize, change: impl FnOnce(&mut Json) -> R) -> Option<R> {
        let elements = Arc::make_mut(&mut self.0);
        let value = elements.values.get_mut(index)?;
        elements.weight -= value.weight();
        let result = change(value);
        elements.weight += value.weight();
        elements.depth = elements.depth.max(value.depth());
        Some(result)
    }
}

impl Elements {
    fn push(&mut self, value: Json) {
        self.weight += value.weight();
        self.depth = self.depth.max(value.depth());
        self.values.push(value);
    }
}

impl Deref for Array {
    type Target = [Json];

    fn deref(&self) -> &[Json] {
        &self.0.values
    }
}

impl PartialEq for Array {
    fn eq(&self, other: &Self) -> bool {
        self.is(other) || self.0.values == other.0.values
    }
}

impl From<Vec<Json>> for Array {
    fn from(values: Vec<Json>) -> Self {
        Self(Arc::new(Elements {
            weight: values.iter().map(Json::weight).sum(),
            depth: values.iter().map(Json::depth).max().unwrap_or_default(),
            values,
        }))
    }
}

impl FromIterator<Json> for Array {
    fn from_iter<I: IntoIterator<Item = Json>>(elements: I) -> Self {
        Self::from(elements.into_iter().collect::<Vec<_>>())
    }
}

impl<'a> IntoIterator for &'a Array {
    type Item = &'a Json;
    type IntoIter = std::slice::Iter<'a, Json>;

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
    /// The overhead of a member, without its value and the text of its name.
    pub const MEMBER_WEIGHT: usize = size_of::<Text>() + 2 * size_of::<usize>();

    /// The size of a member with its value.
    #[must_use]
    pub fn member_weight(name: &str, value: &Json) -> usize {
        Self::MEMBER_WEIGHT + name.len() + value.weight()
    }

    /// An empty object.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A member.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Json> {
        if self.len() <= MAX_UNHASHED {
            let mut members = self.iter();
            return members
                .find(|(known, _)| **known == *name)
                .map(|(_, value)| value);
        }
        self.0.values.get(name)
    }

    /// Whether the member exists.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Sets a member, in place if it exists and at the end if not, and returns the old value. If it is shared, copies
    /// the list of members, but not their values.
    pub fn insert(&mut self, name: impl Into<Text>, value: impl Into<Json>) -> Option<Json> {
        Arc::make_mut(&mut self.0).insert(name.into(), value.into())
    }

    /// Removes a member, and its mark as repeated; the others keep their order.
    pub fn remove(&mut self, name: &str) -> Option<Json> {
        if !self.contains(name) {
            return None;
        }
        let members = Arc::make_mut(&mut self.0);
        members.repeated.retain(|repeated| repeated != name);
        let value = members.values.shift_remove(name)?;
        members.weight -= Self::member_weight(name, &value);
        Some(value)
    }

    /// Mutable access to a member, `null` if it does not exist.
    pub fn change<R>(&mut self, name: &Text, change: impl FnOnce(&mut Json) -> R) -> R {
        let members = Arc::make_mut(&mut self.0);
        let mut value = match members.values.get_mut(name) {
            Some(value) => {
                members.weight -= Self::member_weight(name, value);
                std::mem::take(value)
            }
            None => Json::Null,
        };
        let result = change(&mut value);
        members.weight += Self::member_weight(name, &value);
        members.depth = members.depth.max(value.depth());
        members.values.insert(name.clone(), value);
        result
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
    pub fn iter(&self) -> indexmap::map::Iter<'_, Text, Json> {
        self.0.values.iter()
    }

    /// The names that were repeated in the parsed text.
    #[must_use]
    pub fn repeated(&self) -> &[Text] {
        &self.0.repeated
    }
}

impl Members {
    fn insert(&mut self, name: Text, value: Json) -> Option<Json> {
        let of_name = Object::MEMBER_WEIGHT + name.len();
        self.weight += of_name + value.weight();
        self.depth = self.depth.max(value.depth());
        let old = self.values.insert(name, value);
        if let Some(old) = &old {
            self.weight -= of_name + old.weight();
        }
        old
    }
}

impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.values == other.0.values
    }
}

impl FromIterator<(Text, Json)> for Object {
    fn from_iter<I: IntoIterator<Item = (Text, Json)>>(members: I) -> Self {
        let mut object = Self::default();
        object.extend(members);
        object
    }
}

impl Extend<(Text, Json)> for Object {
    fn extend<I: IntoIterator<Item = (Text, Json)>>(&mut self, added: I) {
        let (added, members) = (added.into_iter(), Arc::make_mut(&mut self.0));
        members.values.reserve(added.size_hint().0);
        for (name, value) in added {
            members.insert(name, value);
        }
    }
}

impl<'a> Extend<(&'a Text, &'a Json)> for Object {
    fn extend<I: IntoIterator<Item = (&'a Text, &'a Json)>>(&mut self, added: I) {
        let added = added.into_iter();
        self.extend(added.map(|(name, value)| (name.clone(), value.clone())));
    }
}

impl<'a> IntoIterator for &'a Object {
    type Item = (&'a Text, &'a Json);
    type IntoIter = indexmap::map::Iter<'a, Text, Json>;

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
mod tests;
