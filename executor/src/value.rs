//! Parses JSON into the values of an execution, with numbers in one form. Source: docs/protocols/a2e-workflows.md §D11.

use std::fmt::{self, Write};

use a2abus_models::Json;
use a2abus_plugin::{DecodeError, Limits};
use bytes::Bytes;

/// The longest text that is read.
pub(crate) const MAX_BYTES: usize = 64 << 20;

/// Reads one JSON text of at most 64 MiB and 128 levels.
///
/// # Errors
/// The fault of the text, with its byte offset.
///
/// ```
/// let value = a2abus_executor::parse(br#"{"n": 1.50, "list": [true]}"#).unwrap();
/// assert_eq!(value.to_string(), r#"{"n":1.5,"list":[true]}"#);
/// ```
pub fn parse(text: &[u8]) -> Result<Json, DecodeError> {
    parse_within(text, u32::MAX)
}

/// The same, with a maximum number of members and elements in total.
pub(crate) fn parse_within(text: &[u8], max_members: u32) -> Result<Json, DecodeError> {
    let mut limits = Limits::default();
    (limits.max_bytes, limits.max_members) = (MAX_BYTES, max_members);
    Json::parse_by_value(text, &limits)
}

/// The value as compact JSON; `None` if that is longer than `max` bytes.
pub(crate) fn write_within(value: &Json, max: usize) -> Option<Bytes> {
    struct Bounded {
        text: String,
        max: usize,
    }

    impl Write for Bounded {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            if self.text.len() + text.len() > self.max {
                return Err(fmt::Error);
            }
            self.text.push_str(text);
            Ok(())
        }
    }

    let text = String::new();
    let mut bounded = Bounded { text, max };
    write!(bounded, "{value}").ok()?;
    // Unused capacity of the string would be kept too.
    let text = bounded.text.into_boxed_str();
    Some(Bytes::from(text.into_boxed_bytes()))
}
