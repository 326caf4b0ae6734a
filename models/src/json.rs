//! JSON as a value: for the typed models, off the path of a message.
//!
//! Unlike the usual trees it keeps what was written: members stay in order, numbers keep their digits, and names that
//! stand twice are known.

use std::fmt::{self, Write as _};

use indexmap::IndexMap;

use a2abus_plugin::Limits;
use a2abus_plugin::Text;
use a2abus_plugin::json::{Kind, LONE_SURROGATE, Reader, check_utf8, unescape};
use a2abus_plugin::{DecodeError, DecodeErrorKind};

/// A JSON value. `Display` writes it compactly, `{:#}` with every character above ASCII as an escape.
///
/// ```
/// use a2abus_models::Json;
/// use a2abus_plugin::Limits;
///
/// let value = Json::parse(r#"{"n": 1.50, "list": [true, "é"]}"#.as_bytes(), &Limits::default()).unwrap();
/// assert_eq!(value.to_string(), r#"{"n":1.50,"list":[true,"é"]}"#);
/// assert_eq!(format!("{:#}", value.get("list").unwrap()), r#"[true,"\u00e9"]"#);
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Json {
    /// `null`.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as its digits.
    Number(Number),
    /// A string.
    String(Text),
    /// An array.
    Array(Vec<Json>),
    /// An object.
    Object(Object),
}

/// A JSON number as it was written. Equal when the digits are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Number(Text);

/// The members of a JSON object in their order. Where a name stands twice, the last value holds, in the first place.
/// Equal when the members are, whatever their order and whether a name stood twice.
#[derive(Debug, Clone, Default)]
pub struct Object {
    members: IndexMap<Text, Json>,
    repeated: Vec<Text>,
}

// === impl Json ===

impl Json {
    /// Reads one JSON value, white space around it allowed.
    ///
    /// # Errors
    /// What is wrong with the text, with its byte offset: not UTF-8, not JSON (a lone surrogate in a string included),
    /// or over one of the limits.
    pub fn parse(text: &[u8], limits: &Limits) -> Result<Self, DecodeError> {
        limits.check_bytes(text)?;
        let text = check_utf8(text)?;
        let mut reader = Reader::new(text.as_bytes(), limits).refusing_lone_surrogates();
        let value = read(&mut reader, text)?;
        reader.skip_white_space();
        match reader.peek() {
            None => Ok(value),
            Some(_) => Err(reader.not_json("more text after the JSON value")),
        }
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
    pub fn as_array(&self) -> Option<&[Self]> {
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

    /// Where the first member is whose name stands twice in its object, such as `cases[2].expected`.
    #[must_use]
    pub fn first_repeated(&self) -> Option<String> {
        let below = |name: &str, of_value: String| {
            let dot = if of_value.starts_with('[') { "" } else { "." };
            format!("{name}{dot}{of_value}")
        };
        match self {
            Self::Object(object) => match object.repeated.first() {
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

    /// The JSON name of its type: `null`, `boolean`, `number`, `string`, `array` or `object`.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "boolean",
            Self::Number(_) => "number",
            Self::String(_) => "string",
            Self::Array(_) => "array",
            Self::Object(_) => "object",
        }
    }
}

fn read(reader: &mut Reader<'_>, text: &str) -> Result<Json, DecodeError> {
    match reader.kind()? {
        Kind::Object => {
            let mut object = Object::default();
            reader.object(|reader, name| {
                let name = Text::from_utf8(name).unwrap_or_default();
                let value = read(reader, text)?;
                if object.insert(name.clone(), value).is_some() {
                    object.repeated.push(name);
                }
                Ok(())
            })?;
            Ok(Json::Object(object))
        }
        Kind::Array => {
            let mut elements = Vec::new();
            reader.array(|reader| {
                elements.push(read(reader, text)?);
                Ok(())
            })?;
            Ok(Json::Array(elements))
        }
        Kind::String => {
            let span = reader.value()?;
            let raw = text.get(span.inside_quotes()).unwrap_or_default();
            if !span.is_escaped() {
                return Ok(Json::String(raw.into()));
            }
            let unescaped = unescape(raw.as_bytes()).ok_or_else(|| {
                DecodeError::new(DecodeErrorKind::NotJson, span.start(), LONE_SURROGATE)
            })?;
            Ok(Json::String(Text::from(unescaped)))
        }
        Kind::Number => {
            let span = reader.value()?;
            let digits = text.get(span.range()).unwrap_or_default();
            Ok(Json::Number(Number(digits.into())))
        }
        Kind::Boolean => {
            let span = reader.value()?;
            Ok(Json::Bool(reader.token(span) == b"true"))
        }
        Kind::Null => reader.value().map(|_| Json::Null),
    }
}

impl From<bool> for Json {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

impl From<i64> for Json {
    fn from(number: i64) -> Self {
        Self::Number(number.into())
    }
}

impl From<u64> for Json {
    fn from(number: u64) -> Self {
        Self::Number(number.into())
    }
}

impl From<Number> for Json {
    fn from(number: Number) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::String(text.into())
    }
}

impl From<String> for Json {
    fn from(text: String) -> Self {
        Self::String(text.into())
    }
}

impl From<Text> for Json {
    fn from(text: Text) -> Self {
        Self::String(text)
    }
}

impl From<Vec<Json>> for Json {
    fn from(elements: Vec<Json>) -> Self {
        Self::Array(elements)
    }
}

impl From<Object> for Json {
    fn from(object: Object) -> Self {
        Self::Object(object)
    }
}

/// `None` is `null`.
impl<T: Into<Json>> From<Option<T>> for Json {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(flag) => write!(f, "{flag}"),
            Self::Number(number) => f.write_str(&number.0),
            Self::String(text) => write_string(f, text),
            Self::Array(elements) => {
                f.write_char('[')?;
                for (index, element) in elements.iter().enumerate() {
                    if index > 0 {
                        f.write_char(',')?;
                    }
                    element.fmt(f)?;
                }
                f.write_char(']')
            }
            Self::Object(object) => object.fmt(f),
        }
    }
}

fn write_string(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            '\u{8}' => f.write_str("\\b")?,
            '\u{c}' => f.write_str("\\f")?,
            c if c < ' ' => write!(f, "\\u{:04x}", u32::from(c))?,
            c if c > '~' && f.alternate() => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(f, "\\u{unit:04x}")?;
                }
            }
            c => f.write_char(c)?,
        }
    }
    f.write_char('"')
}

// === impl Number ===

impl Number {
    /// A number that is finite; `None` for the others, which JSON cannot write.
    #[must_use]
    pub fn from_f64(number: f64) -> Option<Self> {
        // `Debug` is the shortest text that reads back as the same number.
        number
            .is_finite()
            .then(|| Self(format!("{number:?}").into()))
    }

    /// The digits as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The value when it is written as an integer (no fraction, no exponent) of 64 bits.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        self.0.parse().ok()
    }

    /// The value when it is written as an integer of 64 bits without sign.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        self.0.parse().ok()
    }

    /// The nearest double; infinite when it is out of range.
    #[must_use]
    pub fn as_f64(&self) -> f64 {
        // Every JSON number is one that the standard library reads.
        self.0.parse().unwrap_or(f64::NAN)
    }
}

impl From<i64> for Number {
    fn from(number: i64) -> Self {
        Self(number.to_string().into())
    }
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Self(number.to_string().into())
    }
}

// === impl Object ===

impl Object {
    /// An empty object.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A member.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Json> {
        self.members.get(name)
    }

    /// A member, to change it.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Json> {
        self.members.get_mut(name)
    }

    /// Whether there is such a member.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.members.contains_key(name)
    }

    /// Sets a member, at its place if it is there and at the end if not, and gives the old value.
    pub fn insert(&mut self, name: impl Into<Text>, value: impl Into<Json>) -> Option<Json> {
        self.members.insert(name.into(), value.into())
    }

    /// Takes a member away; the others keep their order.
    pub fn remove(&mut self, name: &str) -> Option<Json> {
        self.members.shift_remove(name)
    }

    /// The number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The members in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&Text, &Json)> + ExactSizeIterator {
        self.members.iter()
    }

    /// The names that stood more than once in the text this was read from.
    #[must_use]
    pub fn repeated(&self) -> &[Text] {
        &self.repeated
    }
}

impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        self.members == other.members
    }
}

impl FromIterator<(Text, Json)> for Object {
    fn from_iter<I: IntoIterator<Item = (Text, Json)>>(members: I) -> Self {
        Self {
            members: members.into_iter().collect(),
            repeated: Vec::new(),
        }
    }
}

impl Extend<(Text, Json)> for Object {
    fn extend<I: IntoIterator<Item = (Text, Json)>>(&mut self, members: I) {
        self.members.extend(members);
    }
}

impl IntoIterator for Object {
    type Item = (Text, Json);
    type IntoIter = std::vec::IntoIter<(Text, Json)>;

    fn into_iter(self) -> Self::IntoIter {
        self.members.into_iter().collect::<Vec<_>>().into_iter()
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('{')?;
        for (index, (name, value)) in self.members.iter().enumerate() {
            if index > 0 {
                f.write_char(',')?;
            }
            write_string(f, name)?;
            f.write_char(':')?;
            value.fmt(f)?;
        }
        f.write_char('}')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Json, DecodeError> {
        Json::parse(text.as_bytes(), &Limits::default())
    }

    fn any_json() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<bool>().prop_map(Json::from),
            any::<i64>().prop_map(Json::from),
            any::<f64>().prop_filter_map("finite", |n| Number::from_f64(n).map(Json::from)),
            any::<String>().prop_map(Json::from),
        ];
        leaf.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Json::from),
                prop::collection::vec((any::<String>(), inner), 0..8).prop_map(Json::object),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(value in any_json()) {
            prop_assert_eq!(&parse(&value.to_string()).unwrap(), &value);
            let ascii = format!("{value:#}");
            prop_assert!(ascii.is_ascii());
            prop_assert_eq!(&parse(&ascii).unwrap(), &value);
        }

        #[test]
        fn it_reads_what_serde_json_reads(text in "[\\[\\]{}:,\"\\\\u0-9eE+.\\-tfnrualse aé]{0,40}") {
            let reference = serde_json::from_str::<serde_json::Value>(&text);
            if let Ok(reference) = reference {
                let ours = serde_json::from_str::<serde_json::Value>(&parse(&text).unwrap().to_string()).unwrap();
                prop_assert_eq!(ours, reference);
            }
        }
    }

    #[test]
    fn what_was_written_is_kept() {
        let text = r#"{"b":1.50,"a":12345678901234567890123,"e":1E+2,"b2":-0}"#;
        assert_eq!(parse(text).unwrap().to_string(), text);
        let twice = parse(r#"{"a":1,"b":2,"a":3}"#).unwrap();
        assert_eq!(twice.to_string(), r#"{"a":3,"b":2}"#);
        assert_eq!(twice.as_object().unwrap().repeated(), ["a"]);
        assert_eq!(twice, parse(r#"{"b":2,"a":3}"#).unwrap());
    }

    #[test]
    fn a_member_that_stands_twice_is_found_wherever_it_is() {
        for (text, expected) in [
            (r#"{"a":1,"a":1}"#, Some("a")),
            (
                r#"{"a":[1,{"b":[[{"c":1,"d":2,"c":3}]]}]}"#,
                Some("a[1].b[0][0].c"),
            ),
            (r#"[{},{"a":{},"a":{}}]"#, Some("[1].a")),
            (r#"{"a":{"b":1},"b":[{"a":1},{"a":1}]}"#, None),
            ("7", None),
        ] {
            let found = parse(text).unwrap().first_repeated();
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn what_no_text_can_hold_is_refused() {
        for bad in [r#""\ud800""#, r#"{"\ud800":1}"#, "{} {}", "", "[1,]"] {
            assert_eq!(
                parse(bad).unwrap_err().kind(),
                DecodeErrorKind::NotJson,
                "{bad}"
            );
        }
    }
}
