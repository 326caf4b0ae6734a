//! The message format of the bus: a CloudEvent 1.0 whose attributes are valid by construction.

use std::fmt;

use bytes::Bytes;

use crate::error::{EventError, EventErrorKind};
use crate::text::Text;
use extensions::Extensions;
pub use value::Value;

mod extensions;
mod value;

/// The data of an event: bytes, never re-serialised.
///
/// `Data::from` takes any bytes; `datacontenttype` describes them. [`Data::json`] takes one JSON value, which counts as
/// `application/json` if there is no `datacontenttype`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Data {
    bytes: Bytes,
    is_json: bool,
}

impl Data {
    /// Bytes that are one JSON value.
    ///
    /// # Errors
    /// `MalformedData` for anything else.
    pub fn json(bytes: Bytes) -> Result<Self, EventError> {
        if crate::json::is_one_json_value(&bytes) {
            return Ok(Self::known_json(bytes));
        }
        let error = EventError::new(EventErrorKind::MalformedData, "data");
        Err(error.with_detail("not one JSON value in UTF-8"))
    }

    /// Bytes that were parsed as one JSON value, possibly after a byte order mark.
    pub(crate) fn known_json(bytes: Bytes) -> Self {
        Self {
            bytes,
            is_json: true,
        }
    }

    /// The bytes of any data.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Whether the bytes are known to be one JSON value.
    #[must_use]
    pub fn is_json(&self) -> bool {
        self.is_json
    }
}

/// Unchecked bytes.
impl From<Bytes> for Data {
    fn from(bytes: Bytes) -> Self {
        Self {
            bytes,
            is_json: false,
        }
    }
}

/// A CloudEvent 1.0.
///
/// Every attribute that is present is valid: names are lower-case letters and digits, strings contain no control
/// characters, `time` is RFC 3339, `dataschema` is an absolute URI. Cloning shares all bytes.
///
/// Source: CloudEvents 1.0.2 section 3.
#[derive(Clone, PartialEq, Eq)]
pub struct Event(pub(crate) Box<Attributes>);

/// The CloudEvents version that is read and written.
pub const SPEC_VERSION: &str = "1.0";

/// The attributes and the data of an event, all valid; `id`, `source` and `ty` are empty until they are set.
///
/// One allocation, filled in place, so that stages pass an event on by pointer.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) id: Text,
    pub(crate) source: Text,
    pub(crate) ty: Text,
    pub(crate) datacontenttype: Option<Text>,
    pub(crate) dataschema: Option<Text>,
    pub(crate) subject: Option<Text>,
    pub(crate) time: Option<Text>,
    pub(crate) extensions: Extensions,
    pub(crate) data: Option<Data>,
}

// === impl Event ===

impl Event {
    /// An event with the required attributes.
    ///
    /// # Errors
    /// `InvalidAttributeValue` for an empty value or one with control characters.
    pub fn new(id: Text, source: Text, ty: Text) -> Result<Self, EventError> {
        check_required("id", &id)?;
        check_required("source", &source)?;
        check_required("type", &ty)?;
        Ok(Self(Box::new(Attributes {
            id,
            source,
            ty,
            ..Attributes::default()
        })))
    }

    /// The id of the event, unique only within its source.
    #[must_use]
    pub fn id(&self) -> &Text {
        &self.0.id
    }

    /// Where the event happened.
    #[must_use]
    pub fn source(&self) -> &Text {
        &self.0.source
    }

    /// The event type.
    #[must_use]
    pub fn ty(&self) -> &Text {
        &self.0.ty
    }

    /// The media type of the data.
    #[must_use]
    pub fn datacontenttype(&self) -> Option<&Text> {
        self.0.datacontenttype.as_ref()
    }

    /// The subject of the event within its source.
    #[must_use]
    pub fn subject(&self) -> Option<&Text> {
        self.0.subject.as_ref()
    }

    /// When it happened, RFC 3339.
    #[must_use]
    pub fn time(&self) -> Option<&Text> {
        self.0.time.as_ref()
    }

    /// The data, or `None` for an event without any.
    #[must_use]
    pub fn data(&self) -> Option<&Data> {
        self.0.data.as_ref()
    }

    /// The bytes of the data; empty if there are none.
    #[must_use]
    pub fn body(&self) -> Bytes {
        self.0
            .data
            .as_ref()
            .map(|data| data.bytes().clone())
            .unwrap_or_default()
    }

    /// Replaces the data and keeps the attributes.
    pub fn set_data(&mut self, data: Option<Data>) {
        self.0.data = data;
    }

    /// An extension attribute.
    #[must_use]
    pub fn extension(&self, name: &str) -> Option<&Value> {
        self.0.extensions.get(name)
    }

    /// The text of a string extension.
    #[must_use]
    pub fn extension_text(&self, name: &str) -> Option<&Text> {
        self.extension(name).and_then(Value::as_text)
    }

    /// Any core or extension attribute by its CloudEvents name, as text.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<Text> {
        match name {
            "specversion" => Some(Text::from_static(SPEC_VERSION)),
            "id" => Some(self.0.id.clone()),
            "source" => Some(self.0.source.clone()),
            "type" => Some(self.0.ty.clone()),
            "datacontenttype" => self.0.datacontenttype.clone(),
            "dataschema" => self.0.dataschema.clone(),
            "subject" => self.0.subject.clone(),
            "time" => self.0.time.clone(),
            extension => self.extension(extension).map(Value::to_text),
        }
    }

    /// Sets or replaces any attribute by its CloudEvents name.
    ///
    /// # Errors
    /// `InvalidAttributeName` or `InvalidAttributeValue`; the event is then unchanged.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) -> Result<(), EventError> {
        let value = value.into();
        if let Value::String(text) = &value {
            check_string(name, text)?;
        }
        match name {
            "specversion" => {
                if value
                    .as_text()
                    .is_none_or(|version| version != SPEC_VERSION)
                {
                    return Err(
                        EventError::new(EventErrorKind::UnsupportedSpecversion, name)
                            .with_detail("only specversion 1.0 is supported"),
                    );
                }
            }
            "id" | "source" | "type" => {
                let text = core_text(name, &value)?;
                check_required(name, &text)?;
                match name {
                    "id" => self.0.id = text,
                    "source" => self.0.source = text,
                    _ => self.0.ty = text,
                }
            }
            "datacontenttype" => {
                self.0.datacontenttype = Some(non_empty(name, core_text(name, &value)?)?)
            }
            "subject" => self.0.subject = Some(non_empty(name, core_text(name, &value)?)?),
            "dataschema" => {
                let text = core_text(name, &value)?;
                if !is_absolute_uri(&text) {
                    return Err(invalid_value(name, "not an absolute URI"));
                }
                self.0.dataschema = Some(text);
            }
            "time" => {
                let text = core_text(name, &value)?;
                if !is_rfc3339(&text) {
                    return Err(invalid_value(name, "not an RFC 3339 time"));
                }
                self.0.time = Some(text);
            }
            extension => {
                check_extension_name(extension)?;
                self.put_extension(Text::from(extension), value);
            }
        }
        Ok(())
    }

    /// An event from attributes that are known to be valid.
    pub(crate) fn of(attributes: Box<Attributes>) -> Self {
        debug_assert!(attributes.are_valid());
        Self(attributes)
    }

    fn put_extension(&mut self, name: Text, value: Value) {
        match self.0.extensions.get_mut(&name) {
            Some(old) => *old = value,
            None => self.0.extensions.push(name, value),
        }
    }

    /// Removes an optional attribute; ignores unknown and required names.
    pub fn remove(&mut self, name: &str) {
        match name {
            "datacontenttype" => self.0.datacontenttype = None,
            "dataschema" => self.0.dataschema = None,
            "subject" => self.0.subject = None,
            "time" => self.0.time = None,
            extension => self.0.extensions.remove(extension),
        }
    }

    /// The core attributes that are present, `specversion` first, in the order of the specification.
    pub fn core_attributes(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            ("specversion", Some(SPEC_VERSION)),
            ("id", Some(self.0.id.as_str())),
            ("source", Some(self.0.source.as_str())),
            ("type", Some(self.0.ty.as_str())),
            ("datacontenttype", self.0.datacontenttype.as_deref()),
            ("dataschema", self.0.dataschema.as_deref()),
            ("subject", self.0.subject.as_deref()),
            ("time", self.0.time.as_deref()),
        ]
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| (name, value)))
    }

    /// The extension attributes, in the order in which they were set.
    pub fn extensions(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0
            .extensions
            .iter()
            .map(|(name, value)| (name.as_str(), value))
    }
}

// === impl Attributes ===

impl Attributes {
    fn are_valid(&self) -> bool {
        let is_first = |at: usize, name: &Text| {
            self.extensions.iter().position(|(known, _)| known == name) == Some(at)
        };
        let mut extensions = self.extensions.iter().enumerate();
        let required = [&self.id, &self.source, &self.ty];
        required.iter().all(|text| !text.is_empty())
            && extensions.all(|(at, (name, value))| {
                check_extension_name(name).is_ok()
                    && value.as_text().is_none_or(|text| is_string(text))
                    && is_first(at, name)
            })
    }
}

/// Omits the data, which can be large and confidential.
impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        map.entries(self.core_attributes());
        map.entries(self.extensions());
        map.entry(
            &"data_bytes",
            &self.0.data.as_ref().map(|data| data.bytes().len()),
        );
        map.finish()
    }
}

fn core_text(name: &str, value: &Value) -> Result<Text, EventError> {
    value
        .as_text()
        .cloned()
        .ok_or_else(|| invalid_value(name, "not a string"))
}

fn non_empty(name: &str, text: Text) -> Result<Text, EventError> {
    if text.is_empty() {
        Err(invalid_value(name, "empty"))
    } else {
        Ok(text)
    }
}

fn check_required(name: &str, text: &Text) -> Result<(), EventError> {
    if text.is_empty() {
        return Err(invalid_value(name, "empty"));
    }
    check_string(name, text)
}

fn invalid_value(name: &str, detail: &'static str) -> EventError {
    EventError::new(EventErrorKind::InvalidAttributeValue, name).with_detail(detail)
}

/// The rule for CloudEvents strings: no control characters and no noncharacters.
fn check_string(name: &str, text: &str) -> Result<(), EventError> {
    if is_string(text) {
        return Ok(());
    }
    let detail = "contains a control character or a Unicode noncharacter";
    Err(invalid_value(name, detail))
}

/// Whether the characters of the text are allowed in a string attribute.
pub(crate) fn is_string(text: &str) -> bool {
    is_printable(text.as_bytes()) || text.chars().all(is_string_char)
}

/// Whether all bytes are from 0x20 to 0x7e. Checks eight at a time.
fn is_printable(bytes: &[u8]) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let (words, rest) = bytes.as_chunks();
    let are_printable = |word: &[u8; 8]| {
        let word = u64::from_le_bytes(*word);
        // A high bit is set in the result if it was set before, or if adding 1 or subtracting 0x20 sets it.
        (word | word.wrapping_add(ONES) | word.wrapping_sub(ONES * 0x20)) & (ONES * 0x80) == 0
    };
    words.iter().all(are_printable) && rest.iter().all(|byte| (0x20..0x7f).contains(byte))
}

/// Whether CloudEvents allows the character in a string attribute. Source: CloudEvents 1.0.2 section 3.2.
pub(crate) fn is_string_char(c: char) -> bool {
    let code = u32::from(c);
    !c.is_control() && !(0xfdd0..=0xfdef).contains(&code) && code & 0xfffe != 0xfffe
}

/// The rule for extension names. Source: CloudEvents 1.0.2 section 3.1.
fn check_extension_name(name: &str) -> Result<(), EventError> {
    let well_formed = !name.is_empty()
        && name.len() <= MAX_EXTENSION_NAME
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if !well_formed {
        return Err(EventError::new(EventErrorKind::InvalidAttributeName, name)
            .with_detail("attribute names are lower-case letters and digits"));
    }
    if matches!(name, "data") {
        return Err(EventError::new(EventErrorKind::InvalidAttributeName, name)
            .with_detail("the name is reserved"));
    }
    Ok(())
}

/// CloudEvents recommends at most 20 characters; longer names are accepted up to this limit.
const MAX_EXTENSION_NAME: usize = 128;

fn is_absolute_uri(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once(':') else {
        return false;
    };
    let mut scheme = scheme.bytes();
    scheme.next().is_some_and(|b| b.is_ascii_alphabetic())
        && scheme.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
        && !rest.is_empty()
        && !text.contains(' ')
}

/// `YYYY-MM-DDThh:mm:ss[.fraction](Z|±hh:mm)` with a valid date. Source: RFC 3339 section 5.6.
pub(crate) fn is_rfc3339(text: &str) -> bool {
    let bytes = text.as_bytes();
    let digits = |from: usize, to: usize| -> Option<u32> {
        bytes.get(from..to)?.iter().try_fold(0u32, |sum, b| {
            b.is_ascii_digit().then(|| sum * 10 + u32::from(b - b'0'))
        })
    };
    let is = |at: usize, any: &[u8]| bytes.get(at).is_some_and(|b| any.contains(b));
    let (Some(year), Some(month), Some(day)) = (digits(0, 4), digits(5, 7), digits(8, 10)) else {
        return false;
    };
    let (Some(hour), Some(minute), Some(second)) = (digits(11, 13), digits(14, 16), digits(17, 19))
    else {
        return false;
    };
    let separators = is(4, b"-") && is(7, b"-") && is(10, b"Tt") && is(13, b":") && is(16, b":");
    let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let days = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return false,
    };
    let mut at = 19;
    if is(at, b".") {
        let fraction = bytes.get(20..).map_or(0, |rest| {
            rest.iter().take_while(|b| b.is_ascii_digit()).count()
        });
        if fraction == 0 {
            return false;
        }
        at = 20 + fraction;
    }
    let zone = if is(at, b"Zz") {
        bytes.len() == at + 1
    } else {
        let (hours, minutes) = (digits(at + 1, at + 3), digits(at + 4, at + 6));
        is(at, b"+-")
            && is(at + 3, b":")
            && hours.is_some_and(|h| h < 24)
            && minutes.is_some_and(|m| m < 60)
            && bytes.len() == at + 6
    };
    separators && zone && (1..=days).contains(&day) && hour < 24 && minute < 60 && second <= 60
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3339_is_checked_by_the_calendar() {
        for good in [
            "2026-02-03T04:05:06Z",
            "2024-02-29t23:59:60.5z",
            "2026-02-03T04:05:06.123456+05:30",
        ] {
            assert!(is_rfc3339(good), "{good}");
        }
        for bad in [
            "",
            "yesterday",
            "2026-02-30T00:00:00Z",
            "2026-02-03 04:05:06Z",
            "2026-02-03T04:05:06",
            "2026-02-03T04:05:06.Z",
            "2026-02-03T24:00:00Z",
            "2026-02-03T04:05:06+5:30",
        ] {
            assert!(!is_rfc3339(bad), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn is_printable_matches_a_simple_loop(
            bytes in proptest::collection::vec(
                proptest::prop_oneof![9 => 0x1eu8..0x81, 1 => proptest::num::u8::ANY], 0..20),
        ) {
            let expected = bytes.iter().all(|byte| (0x20..0x7f).contains(byte));
            proptest::prop_assert_eq!(is_printable(&bytes), expected);
        }
    }

    #[test]
    fn attributes_are_checked_and_replaced() {
        let mut event = Event::new("1".into(), "/s".into(), "t".into()).unwrap();
        event.set("targetagent", "a").unwrap();
        event.set("targetagent", "b").unwrap();
        assert_eq!(event.extension_text("targetagent").unwrap(), "b");
        for (name, value) in [
            ("Target", "x"),
            ("data", "x"),
            ("", "x"),
            ("a", "x\r\ny"),
            ("time", "now"),
            ("dataschema", "x.json"),
            ("id", ""),
            ("subject", ""),
        ] {
            assert!(event.set(name, value).is_err(), "{name}={value}");
        }
        event.remove("targetagent");
        assert_eq!(event.extension("targetagent"), None);
    }

    #[test]
    fn any_number_of_extensions_keeps_its_order() {
        let names: Vec<String> = (0..30).map(|number| format!("x{number}")).collect();
        let mut event = Event::new("1".into(), "/s".into(), "t".into()).unwrap();
        let mut expected = Vec::new();
        for (at, name) in names.iter().enumerate() {
            event.set(name, name.as_str()).unwrap();
            expected.push(name.as_str());
            // One of the first kind, one of the last kind, or none.
            if at % 4 == 3 {
                for name in [expected.remove(at / 4), "x99"] {
                    event.remove(name);
                    assert_eq!(event.extension(name), None);
                }
                event.remove(expected.pop().unwrap());
            }
            let held: Vec<&str> = event.extensions().map(|(name, _)| name).collect();
            assert_eq!(held, expected);
            assert!(
                event
                    .extensions()
                    .all(|(name, value)| *value == name.into())
            );
        }
        assert!(expected.len() > 12, "{expected:?}");
    }
}
