//! How does an event's attribute become part of a topic without choosing the topic?

use std::fmt;

use a2abus_plugin::{Event, Text, Value};
use a2abus_transports::Topic;

use super::RouteError;
use crate::config::Names;

/// An attribute that a condition or a template reads: a CloudEvents attribute, or the name of the binding.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attribute(AttributeName);

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum AttributeName {
    Binding,
    Core(CoreAttribute),
    Extension(Text),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum CoreAttribute {
    SpecVersion,
    Id,
    Source,
    Type,
    DataContentType,
    DataSchema,
    Subject,
    Time,
}

/// A name that no attribute can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not an attribute name: write lower-case letters and digits, 20 at most, as targetagent"
)]
pub struct AttributeError {
    name: String,
}

/// Text in which `{attribute}` stands for the value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Template {
    parts: Vec<Part>,
}

/// A piece of a [`Template`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Part {
    /// Text as it is.
    Literal(Text),
    /// The value of an attribute.
    Attribute(Attribute),
}

/// A template that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// There is nothing in it.
    #[error("the template is empty")]
    Empty,
    /// A brace without its partner.
    #[error("a brace at byte {at} has no partner: write {{attribute}}, as {{targetagent}}")]
    Unbalanced {
        /// Where.
        at: usize,
    },
    /// The name between braces is not one.
    #[error(transparent)]
    Attribute(#[from] AttributeError),
}

/// The names CloudEvents recommends are no longer than this.
const MAX_ATTRIBUTE_NAME: usize = 20;

// === impl Attribute ===

impl Attribute {
    /// Checks a name.
    ///
    /// # Errors
    /// When it is not lower-case letters and digits, is longer than 20 characters, or is `data`.
    pub fn new(name: &str) -> Result<Self, AttributeError> {
        use CoreAttribute as Core;
        let legal = (1..=MAX_ATTRIBUTE_NAME).contains(&name.len())
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let core = |core| Ok(Self(AttributeName::Core(core)));
        match name {
            "binding" => Ok(Self(AttributeName::Binding)),
            "specversion" => core(Core::SpecVersion),
            "id" => core(Core::Id),
            "source" => core(Core::Source),
            "type" => core(Core::Type),
            "datacontenttype" => core(Core::DataContentType),
            "dataschema" => core(Core::DataSchema),
            "subject" => core(Core::Subject),
            "time" => core(Core::Time),
            extension if legal && extension != "data" => {
                Ok(Self(AttributeName::Extension(Text::from(extension))))
            }
            _ => Err(AttributeError {
                name: name.chars().take(64).collect(),
            }),
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        use CoreAttribute as Core;
        match &self.0 {
            AttributeName::Binding => "binding",
            AttributeName::Core(core) => match core {
                Core::SpecVersion => "specversion",
                Core::Id => "id",
                Core::Source => "source",
                Core::Type => "type",
                Core::DataContentType => "datacontenttype",
                Core::DataSchema => "dataschema",
                Core::Subject => "subject",
                Core::Time => "time",
            },
            AttributeName::Extension(name) => name,
        }
    }

    /// Whether it is the name of the binding, which no event carries.
    #[must_use]
    pub fn is_binding(&self) -> bool {
        self.0 == AttributeName::Binding
    }

    /// Calls `f` with the value as text, or `None` when the event lacks the attribute. Strings are borrowed from the
    /// event, so that looking allocates nothing.
    pub(super) fn with_value<R>(
        &self,
        event: &Event,
        binding: &str,
        f: impl FnOnce(Option<&str>) -> R,
    ) -> R {
        use CoreAttribute as Core;
        let text = match &self.0 {
            AttributeName::Binding => return f(Some(binding)),
            AttributeName::Extension(name) => return with_extension(event.extension(name), f),
            AttributeName::Core(core) => match core {
                Core::Id => Some(event.id()),
                Core::Source => Some(event.source()),
                Core::Type => Some(event.ty()),
                Core::DataContentType => event.datacontenttype(),
                Core::Subject => event.subject(),
                Core::Time => event.time(),
                Core::SpecVersion | Core::DataSchema => {
                    return f(event.attribute(self.as_str()).as_deref());
                }
            },
        };
        f(text.map(Text::as_str))
    }
}

/// Integers are written to the stack: 11 characters hold every 32-bit number.
pub(super) fn with_extension<R>(value: Option<&Value>, f: impl FnOnce(Option<&str>) -> R) -> R {
    match value {
        None => f(None),
        Some(Value::String(text)) => f(Some(text)),
        Some(Value::Boolean(true)) => f(Some("true")),
        Some(Value::Boolean(false)) => f(Some("false")),
        Some(Value::Integer(number)) => {
            use std::io::Write;
            let mut digits = [0u8; 11];
            let mut rest = &mut digits[..];
            let written = write!(rest, "{number}").map(|()| 11 - rest.len());
            f(written
                .ok()
                .and_then(|length| digits.get(..length))
                .and_then(|digits| std::str::from_utf8(digits).ok()))
        }
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl Template ===

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// When it is empty, a brace has no partner, or a name between braces is not an attribute's.
    pub fn new(text: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut at = 0;
        while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
            match rest.find(['{', '}']) {
                None => {
                    parts.push(Part::Literal(rest.into()));
                    break;
                }
                Some(0) => {
                    let name = rest
                        .strip_prefix('{')
                        .and_then(|rest| rest.split_once('}'))
                        .map(|(name, _)| name)
                        .filter(|name| !name.contains('{'))
                        .ok_or(TemplateError::Unbalanced { at })?;
                    parts.push(Part::Attribute(Attribute::new(name)?));
                    at += name.len() + 2;
                }
                Some(brace) => {
                    parts.push(Part::Literal(rest.get(..brace).unwrap_or_default().into()));
                    at += brace;
                }
            }
        }
        if parts.is_empty() {
            return Err(TemplateError::Empty);
        }
        Ok(Self { parts })
    }

    /// The pieces, in order.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The text, when no attribute is part of it.
    #[must_use]
    pub fn as_literal(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [Part::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// The topic for an event.
    ///
    /// # Errors
    /// `MissingAttribute`, or `BadName` for a value that cannot be part of a topic or makes it too long.
    pub(super) fn topic(
        &self,
        event: &Event,
        binding: &str,
        names: Names,
    ) -> Result<Topic, RouteError> {
        let mut topic = String::with_capacity(64);
        for part in &self.parts {
            match part {
                Part::Literal(text) => topic.push_str(text),
                Part::Attribute(attribute) => {
                    attribute.with_value(event, binding, |value| {
                        let value = value.ok_or_else(|| RouteError::missing(attribute))?;
                        push_name(&mut topic, value, names)
                            .map_err(|reason| RouteError::bad_name(attribute, value, reason))
                    })?;
                }
            }
        }
        if topic.starts_with('_') {
            return Err(RouteError::BadTopic(format!(
                "{topic:?} is reserved: a topic must not begin with '_'"
            )));
        }
        Topic::new(topic).map_err(|error| RouteError::BadTopic(error.to_string()))
    }

    /// The text for an event; `None` when it lacks an attribute.
    pub(super) fn text(&self, event: &Event, binding: &str) -> Option<String> {
        let mut text = String::with_capacity(64);
        for part in &self.parts {
            match part {
                Part::Literal(literal) => text.push_str(literal),
                Part::Attribute(attribute) => {
                    attribute.with_value(event, binding, |value| {
                        value.map(|value| text.push_str(value))
                    })?;
                }
            }
        }
        Some(text)
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.iter().try_for_each(|part| match part {
            Part::Literal(text) => f.write_str(text),
            Part::Attribute(attribute) => write!(f, "{{{attribute}}}"),
        })
    }
}

// === names in topics ===

/// Adds a value to a topic, or says why it cannot be part of one.
fn push_name(topic: &mut String, value: &str, names: Names) -> Result<(), &'static str> {
    if value.is_empty() {
        return Err("it is empty");
    }
    match names {
        Names::Refuse => check_word(value)?,
        Names::Dotted => value.split('.').try_for_each(check_word)?,
        Names::Escape => {
            escape(topic, value);
            return Ok(());
        }
    }
    topic.push_str(value);
    Ok(())
}

fn check_word(word: &str) -> Result<(), &'static str> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    if word.is_empty() {
        return Err("a word of it is empty");
    }
    if !word.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err("it does not begin with a letter or digit");
    }
    if !word.bytes().all(legal) {
        return Err("it holds a character other than letters, digits, '_' and '-'");
    }
    Ok(())
}

/// Writes every byte that is not a letter, a digit, `-` or a plain `_` as `_xHH`. A `_` that begins the value, or that
/// would read as an escape, is escaped itself, so that different values never become the same text.
fn escape(topic: &mut String, value: &str) {
    use fmt::Write;
    let bytes = value.as_bytes();
    for (at, &byte) in bytes.iter().enumerate() {
        let plain = match byte {
            b'_' => at > 0 && !looks_like_escape(bytes.get(at + 1..).unwrap_or_default()),
            b'-' => at > 0,
            byte => byte.is_ascii_alphanumeric(),
        };
        if plain {
            topic.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(topic, "_x{byte:02X}");
        }
    }
}

fn looks_like_escape(after_underscore: &[u8]) -> bool {
    matches!(after_underscore, [b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unescape(text: &str) -> Vec<u8> {
        let bytes = text.as_bytes();
        let (mut out, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            if bytes[at] == b'_' && looks_like_escape(&bytes[at + 1..]) {
                out.push(u8::from_str_radix(&text[at + 2..at + 4], 16).unwrap());
                at += 4;
            } else {
                out.push(bytes[at]);
                at += 1;
            }
        }
        out
    }

    fn escaped(value: &str) -> String {
        let mut topic = String::new();
        escape(&mut topic, value);
        topic
    }

    #[test]
    fn templates_are_read_and_written_back() {
        for good in [
            "agents",
            "agents.{targetagent}",
            "{type}",
            "{a}{b}",
            "a-{id}.b",
        ] {
            assert_eq!(Template::new(good).unwrap().to_string(), good);
        }
        for bad in [
            "",
            "{",
            "}",
            "a.{",
            "a.}",
            "{}",
            "{a",
            "{{a}}",
            "{A}",
            "{a b}",
            "{data}",
            "x{a}}",
            "{targét}",
        ] {
            assert!(Template::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn escapes_are_readable_and_topic_words() {
        for (value, expected) in [
            ("weather", "weather"),
            ("my_agent-1", "my_agent-1"),
            ("team/weather.v1", "team_x2Fweather_x2Ev1"),
            ("_INBOX", "_x5FINBOX"),
            ("a_x41", "a_x5Fx41"),
            ("a__x41", "a__x5Fx41"),
            ("*", "_x2A"),
            ("é", "_xC3_xA9"),
        ] {
            assert_eq!(escaped(value), expected);
        }
    }

    proptest! {
        #[test]
        fn escaping_can_be_undone(value in ".{1,40}", tricky in "[_xX0-9A-F./]{1,12}") {
            for value in [value, tricky] {
                let topic = escaped(&value);
                prop_assert!(topic.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'));
                prop_assert_eq!(unescape(&topic), value.into_bytes());
            }
        }

        #[test]
        fn reading_a_template_never_panics(text in ".*") {
            if let Ok(template) = Template::new(&text) {
                prop_assert_eq!(template.to_string(), text);
            }
        }

        #[test]
        fn integers_are_written_as_the_bindings_write_them(number: i32) {
            let value = Value::Integer(number);
            with_extension(Some(&value), |text| assert_eq!(text.unwrap(), value.to_text().as_str()));
        }
    }
}
