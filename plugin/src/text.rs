//! Short immutable UTF-8 text, cheap to clone.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;

use bytes::Bytes;
use smol_str::{SmolStr, SmolStrBuilder};

/// UTF-8 text, cheap to clone: up to 23 bytes are stored inline, longer text is shared, a constant is static.
///
/// Text never borrows from a payload, so a short name does not keep a large payload in memory.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Text(SmolStr);

/// The number of bytes that a [`Text`] stores inline.
const INLINE: usize = 23;

impl Text {
    /// Text over static memory; never allocates.
    #[must_use]
    pub const fn from_static(text: &'static str) -> Self {
        Self(SmolStr::new_static(text))
    }

    /// Concatenates parts, on the stack if they are short enough.
    #[must_use]
    pub fn concat(parts: &[&str]) -> Self {
        if parts.iter().map(|part| part.len()).sum::<usize>() <= INLINE {
            let mut text = SmolStrBuilder::new();
            parts.iter().for_each(|part| text.push_str(part));
            return Self(text.finish());
        }
        let mut buffer = [0_u8; 128];
        let mut at = 0;
        for part in parts {
            let Some(room) = buffer.get_mut(at..at + part.len()) else {
                return Self::from(parts.concat());
            };
            room.copy_from_slice(part.as_bytes());
            at += part.len();
        }
        let text = buffer.get(..at).and_then(Self::from_utf8);
        text.unwrap_or_default()
    }

    /// The bytes as UTF-8 text; `None` if they are not UTF-8.
    #[must_use]
    pub fn from_utf8(bytes: &[u8]) -> Option<Self> {
        std::str::from_utf8(bytes).ok().map(Self::from)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The bytes of the text.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        Bytes::copy_from_slice(self.0.as_bytes())
    }
}

// === impl Text ===

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Text {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(SmolStr::from(text))
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Self(SmolStr::from(text))
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl serde::Serialize for Text {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> serde::Deserialize<'de> for Text {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor)
    }
}

struct TextVisitor;

impl serde::de::Visitor<'_> for TextVisitor {
    type Value = Text;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a string")
    }

    fn visit_str<E>(self, text: &str) -> Result<Text, E> {
        Ok(Text::from(text))
    }
}
