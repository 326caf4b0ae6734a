//! Parses JSON into the values of an execution, with numbers in one form. Source: docs/protocols/a2e-workflows.md §D11.

use a2abus_models::Json;
use a2abus_plugin::{DecodeError, Limits};

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
    (limits.max_bytes, limits.max_members) = (64 << 20, max_members);
    Json::parse_by_value(text, &limits)
}
