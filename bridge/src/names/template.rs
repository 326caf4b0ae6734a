//! Attribute names, and templates that insert attribute values into text.

use std::fmt;

use a2abus_plugin::{Event, Text, Value};

/// An attribute in a condition or template: a CloudEvents attribute, or `binding`, the name of the binding.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attribute(AttributeName);

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum AttributeName {
    Binding,
    Core(CoreAttribute, &'static str),
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

/// A name that is not valid for an attribute.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} is not an attribute name: use at most 20 lower-case letters and digits, such as targetagent"
)]
pub struct AttributeError {
    name: String,
}

/// Text in which `{attribute}` stands for the value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Template {
    parts: Vec<TemplatePart>,
}

/// A part of a [`Template`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TemplatePart {
    /// Literal text.
    Literal(Text),
    /// The value of an attribute.
    Attribute(Attribute),
}

/// A template that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The text is empty.
    #[error("the template is empty")]
    Empty,
    /// A brace without its counterpart.
    #[error(
        "the brace at byte {at} has no counterpart: write {{attribute}}, such as {{targetagent}}"
    )]
    Unbalanced {
        /// The byte offset of the brace.
        at: usize,
    },
    /// The name between braces is not a valid attribute name.
    #[error(transparent)]
    Attribute(#[from] AttributeError),
}

const CORE: [(CoreAttribute, &str); 8] = [
    (CoreAttribute::SpecVersion, "specversion"),
    (CoreAttribute::Id, "id"),
    (CoreAttribute::Source, "source"),
    (CoreAttribute::Type, "type"),
    (CoreAttribute::DataContentType, "datacontenttype"),
    (CoreAttribute::DataSchema, "dataschema"),
    (CoreAttribute::Subject, "subject"),
    (CoreAttribute::Time, "time"),
];
/// CloudEvents recommends names of at most this length.
const MAX_ATTRIBUTE_NAME: usize = 20;

// === impl Attribute ===

impl Attribute {
    /// Checks a name.
    ///
    /// # Errors
    /// When it is not lower-case letters and digits, is longer than 20 characters, or is `data`.
    pub fn new(name: &str) -> Result<Self, AttributeError> {
        let legal = (1..=MAX_ATTRIBUTE_NAME).contains(&name.len())
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let core = CORE.iter().find(|(_, known)| *known == name);
        match (name, core) {
            ("binding", _) => Ok(Self(AttributeName::Binding)),
            (_, Some(&(core, name))) => Ok(Self(AttributeName::Core(core, name))),
            (extension, None) if legal && extension != "data" => {
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
        match &self.0 {
            AttributeName::Binding => "binding",
            AttributeName::Core(_, name) => name,
            AttributeName::Extension(name) => name,
        }
    }

    /// Whether it is `binding`, which is not an attribute of events.
    #[must_use]
    pub fn is_binding(&self) -> bool {
        self.0 == AttributeName::Binding
    }

    /// Calls `f` with the value as text, or `None` when the event lacks the attribute. Strings are borrowed from the
    /// event, so reading allocates nothing.
    pub(crate) fn with_value<R>(
        &self,
        event: &Event,
        binding: &str,
        f: impl FnOnce(Option<&str>) -> R,
    ) -> R {
        use CoreAttribute as Core;
        let text = match &self.0 {
            AttributeName::Binding => return f(Some(binding)),
            AttributeName::Extension(name) => return with_extension(event.extension(name), f),
            AttributeName::Core(core, _) => match core {
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

/// Integers are formatted on the stack: 11 characters are enough for every 32-bit number.
pub(crate) fn with_extension<R>(value: Option<&Value>, f: impl FnOnce(Option<&str>) -> R) -> R {
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
    /// When it is empty, a brace has no counterpart, or a name between braces is not a valid attribute name.
    pub fn new(text: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut at = 0;
        while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
            match rest.find(['{', '}']) {
                None => {
                    parts.push(TemplatePart::Literal(rest.into()));
                    break;
                }
                Some(0) => {
                    let name = rest
                        .strip_prefix('{')
                        .and_then(|rest| rest.split_once('}'))
                        .map(|(name, _)| name)
                        .filter(|name| !name.contains('{'))
                        .ok_or(TemplateError::Unbalanced { at })?;
                    parts.push(TemplatePart::Attribute(Attribute::new(name)?));
                    at += name.len() + 2;
                }
                Some(brace) => {
                    parts.push(TemplatePart::Literal(
                        rest.get(..brace).unwrap_or_default().into(),
                    ));
                    at += brace;
                }
            }
        }
        if parts.is_empty() {
            return Err(TemplateError::Empty);
        }
        Ok(Self { parts })
    }

    /// The parts, in order.
    #[must_use]
    pub fn parts(&self) -> &[TemplatePart] {
        &self.parts
    }

    /// The text, if it contains no attribute.
    #[must_use]
    pub fn as_literal(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [TemplatePart::Literal(text)] => Some(text),
            _ => None,
        }
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts.iter().try_for_each(|part| match part {
            TemplatePart::Literal(text) => f.write_str(text),
            TemplatePart::Attribute(attribute) => write!(f, "{{{attribute}}}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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

    proptest! {
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
