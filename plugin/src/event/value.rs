//! The value of an extension attribute.

use std::fmt;

use crate::text::Text;

/// The value of an extension attribute.
///
/// CloudEvents binary, URI and timestamp values are stored as the canonical text of their type. Source: CloudEvents
/// 1.0.2 section 3.2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// CloudEvents String: no control characters, no noncharacters.
    String(Text),
    /// CloudEvents Integer, signed 32 bit.
    Integer(i32),
    /// CloudEvents Boolean.
    Boolean(bool),
}

impl Value {
    /// The text of a string value.
    #[must_use]
    pub fn as_text(&self) -> Option<&Text> {
        match self {
            Self::String(text) => Some(text),
            Self::Integer(_) | Self::Boolean(_) => None,
        }
    }

    /// The canonical text, as the protocol bindings write it.
    #[must_use]
    pub fn to_text(&self) -> Text {
        match self {
            Self::String(text) => text.clone(),
            Self::Integer(number) => Text::from(itoa::Buffer::new().format(*number)),
            Self::Boolean(true) => Text::from_static("true"),
            Self::Boolean(false) => Text::from_static("false"),
        }
    }
}

impl From<Text> for Value {
    fn from(text: Text) -> Self {
        Self::String(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(Text::from(text))
    }
}

impl From<i32> for Value {
    fn from(number: i32) -> Self {
        Self::Integer(number)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Boolean(flag)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::String(text) => fmt::Display::fmt(text, f),
            Self::Integer(number) => fmt::Display::fmt(number, f),
            Self::Boolean(flag) => fmt::Display::fmt(flag, f),
        }
    }
}
