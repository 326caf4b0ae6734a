//! Messages as a transport carries them, without interpretation: topic, key, headers, body.

use std::fmt;
use std::sync::Arc;

use a2abus_plugin::Text;
use bytes::Bytes;

/// A Kafka topic, a NATS subject or a memory topic: a checked name.
///
/// 1 to 249 characters of `A-Z a-z 0-9 . _ -` (the names that are legal on every transport), not `.` or `..`, no empty
/// word between dots, so that a name has the same meaning on every transport. Source: Apache Kafka topic names, NATS
/// subjects.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Topic(Text);

/// A name that cannot be a topic.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a topic name: {reason}")]
pub struct TopicError {
    name: String,
    reason: &'static str,
}

/// The longest topic name Kafka allows, in bytes.
pub const MAX_TOPIC_BYTES: usize = 249;

/// The classes of bytes in a topic name; all others are letters of a segment.
const DOT: u8 = 1;
const ILLEGAL: u8 = 2;
const CLASSES: [u8; 256] = {
    let mut classes = [ILLEGAL; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-') {
            classes[byte as usize] = 0;
        }
        byte += 1;
    }
    classes[b'.' as usize] = DOT;
    classes
};

// === impl Topic ===

impl Topic {
    /// A name that the compiler checks.
    ///
    /// # Panics
    /// While compiling, when it is empty, too long, or holds other bytes than letters, digits, `.`, `_` and `-`.
    #[must_use]
    #[allow(clippy::panic, clippy::indexing_slicing)] // Evaluated by the compiler.
    pub const fn from_static(name: &'static str) -> Self {
        let bytes = name.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            let allowed =
                bytes[at].is_ascii_alphanumeric() || matches!(bytes[at], b'.' | b'_' | b'-');
            assert!(allowed, "a topic is letters, digits, '.', '_' and '-'");
            let ends_word = bytes[at] == b'.';
            let has_word = at > 0 && bytes[at - 1] != b'.' && at + 1 < bytes.len();
            assert!(
                !ends_word || has_word,
                "no segment between dots may be empty"
            );
            at += 1;
        }
        assert!(
            !bytes.is_empty() && bytes.len() <= MAX_TOPIC_BYTES,
            "a topic is 1 to 249 bytes"
        );
        Self(Text::from_static(name))
    }

    /// Checks a name.
    ///
    /// # Errors
    /// When the name breaks a rule above; the error says which.
    pub fn new(name: impl Into<Text>) -> Result<Self, TopicError> {
        let name = name.into();
        let refuse = |reason| {
            let shown: String = name.chars().take(64).collect();
            Err(TopicError {
                name: shown,
                reason,
            })
        };
        if name.is_empty() {
            return refuse("it is empty");
        }
        if name.len() > MAX_TOPIC_BYTES {
            return refuse("it is longer than 249 characters");
        }
        // One pass without a branch: reply subjects are checked for each call.
        let (mut illegal, mut empty_segment, mut before) = (0, 0, DOT);
        for byte in name.bytes() {
            let class = CLASSES[usize::from(byte)];
            illegal |= class & ILLEGAL;
            empty_segment |= class & before & DOT;
            before = class;
        }
        if illegal != 0 {
            return refuse("only letters, digits, '.', '_' and '-' are allowed");
        }
        if empty_segment != 0 || before == DOT {
            return refuse("no segment between dots may be empty");
        }
        Ok(Self(name))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// FNV-1a of the bytes of names: the same for the same names in every version of this program.
#[cfg(any(feature = "kafka", feature = "nats"))]
pub(crate) fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u32 {
    bytes.into_iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// A header: a name, and a value of raw bytes or Kafka's null.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The name as it was sent.
    pub name: Text,
    /// The value; `None` is Kafka's null.
    pub value: Option<Bytes>,
}

/// Header of a delivery with a status from the NATS server itself: `503` when nobody listens on the subject of a
/// request. Such a delivery has an empty body. A header of this name from a peer is never passed on.
pub const NATS_STATUS_HEADER: &str = "nats-status";

/// Header of a delivery whose NATS reply subject is not a legal [`Topic`]: the original subject. A header of this name
/// from a peer is never passed on.
pub const NATS_REPLY_HEADER: &str = "nats-reply";

/// The overhead of one header in memory, in bytes.
pub(crate) const HEADER_BYTES: usize = size_of::<Header>();

/// Headers in the order they were sent; a name may occur more than once. Clones share them until one is changed.
#[derive(Debug, Clone, Default)]
pub struct Headers(Option<Arc<Vec<Header>>>);

// === impl Headers ===

impl Headers {
    /// No headers.
    #[must_use]
    pub const fn new() -> Self {
        Self(None)
    }

    /// No headers yet, with reserved room.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self(Some(Arc::new(Vec::with_capacity(capacity))))
    }

    /// Appends a header.
    pub fn push(&mut self, name: impl Into<Text>, value: impl Into<Bytes>) {
        self.add(Header {
            name: name.into(),
            value: Some(value.into()),
        });
    }

    /// Sets a header, replacing all headers of that name.
    pub fn put(&mut self, name: impl Into<Text>, value: impl Into<Bytes>) {
        let name = name.into();
        if self.iter().any(|header| header.name == name) {
            self.list_mut().retain(|header| header.name != name);
        }
        self.push(name, value);
    }

    /// Adds a header whose value is null.
    pub fn push_null(&mut self, name: impl Into<Text>) {
        self.add(Header {
            name: name.into(),
            value: None,
        });
    }

    /// The value of the first header of that name (exact case) that has one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Bytes> {
        self.iter()
            .find(|header| header.name == name)
            .and_then(|header| header.value.as_ref())
    }

    /// Appends an existing header.
    pub fn add(&mut self, header: Header) {
        self.list_mut().push(header);
    }

    fn list_mut(&mut self) -> &mut Vec<Header> {
        Arc::make_mut(self.0.get_or_insert_default())
    }

    fn list(&self) -> &[Header] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }

    /// All headers.
    pub fn iter(&self) -> impl Iterator<Item = &Header> + Clone {
        self.list().iter()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list().is_empty()
    }
}

/// In this order. Cheaper than adding them one by one.
impl From<Vec<Header>> for Headers {
    fn from(headers: Vec<Header>) -> Self {
        Self((!headers.is_empty()).then(|| Arc::new(headers)))
    }
}

impl PartialEq for Headers {
    fn eq(&self, other: &Self) -> bool {
        self.list() == other.list()
    }
}

impl Eq for Headers {}

/// One message as a transport carries it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// The key that orders messages; `None` leaves the partition to the transport.
    pub key: Option<Bytes>,
    /// The headers.
    pub headers: Headers,
    /// The body; `None` is Kafka's null value, which is an empty payload on NATS.
    pub body: Option<Bytes>,
}

// === impl Message ===

impl Message {
    /// A message with only a body.
    #[must_use]
    pub fn plain(body: impl Into<Bytes>) -> Self {
        Self {
            key: None,
            headers: Headers::new(),
            body: Some(body.into()),
        }
    }

    /// The cost of the message for a budget, in bytes: its content, and the memory of each header, which is much larger
    /// than the text of a small header.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.content_bytes() + self.headers.len() * HEADER_BYTES
    }

    /// The bytes that were sent: key, names and values of headers, body.
    pub(crate) fn content_bytes(&self) -> usize {
        let headers = self
            .headers
            .iter()
            .map(|h| h.name.len() + h.value.as_ref().map_or(0, Bytes::len))
            .sum::<usize>();
        self.key.as_ref().map_or(0, Bytes::len) + headers + self.body.as_ref().map_or(0, Bytes::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiny_headers_cost_their_memory() {
        let mut message = Message::plain("body");
        assert_eq!(message.size_bytes(), 4);
        for _ in 0..100_000 {
            message.headers.push_null(Text::from_static("a"));
        }
        let least = 100_000 * size_of::<Header>();
        assert!(message.size_bytes() >= least, "{}", message.size_bytes());
        assert_eq!(message.content_bytes(), 100_004);
    }
}
