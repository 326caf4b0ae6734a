//! Header text of the HTTP and NATS bindings. Source: CloudEvents 1.0.2, HTTP protocol binding section 3.1.3.2.

use std::borrow::Cow;

use a2abus_plugin::{EventError, EventErrorKind, Text};
use bytes::{Bytes, BytesMut};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode, utf8_percent_encode};

use super::value::utf8;

/// Reads header text: removes surrounding white space and quotes, then percent-decodes once.
///
/// # Errors
/// `MalformedPercent`, `InvalidUtf8`.
pub(super) fn decode(name: &str, value: &Bytes) -> Result<Text, EventError> {
    let trimmed = trim(value);
    let unquoted = unquote(trimmed).map_or(Cow::Borrowed(trimmed), Cow::Owned);
    utf8(name, &unescape(name, &unquoted)?)
}

/// The characters that are written unchanged: U+0021 to U+007E without `"` and `%`.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

/// Writes header text: a space, `"`, `%` and everything outside U+0021 to U+007E as the percent-encoded bytes of UTF-8.
pub(super) fn encode(value: &str, out: &mut BytesMut) {
    if is_plain(value) {
        return out.extend_from_slice(value.as_bytes());
    }
    for part in utf8_percent_encode(value, ENCODED) {
        out.extend_from_slice(part.as_bytes());
    }
}

/// Whether nothing has to be encoded, as in nearly every value. Checks all bytes at once instead of stopping at the
/// first that needs encoding.
fn is_plain(value: &str) -> bool {
    let is_plain = |byte| matches!(byte, b'!' | b'#' | b'$' | b'&'..=b'~');
    value.bytes().fold(true, |all, byte| all & is_plain(byte))
}

fn trim(value: &[u8]) -> &[u8] {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = value.iter().take_while(|byte| is_blank(byte)).count();
    let rest = value.get(start..).unwrap_or_default();
    let blanks = rest.iter().rev().take_while(|byte| is_blank(byte)).count();
    rest.get(..rest.len() - blanks).unwrap_or_default()
}

/// The content of a quoted string; `None` for text without quotes.
fn unquote(value: &[u8]) -> Option<Vec<u8>> {
    let inner = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let mut out = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => out.push(*bytes.next()?),
            b'"' => return None,
            byte => out.push(*byte),
        }
    }
    Some(out)
}

/// Percent-decodes once. The decoder keeps a `%` without two digits; here that is an error.
fn unescape<'a>(name: &str, value: &'a [u8]) -> Result<Cow<'a, [u8]>, EventError> {
    let mut escapes = value.split(|byte| *byte == b'%').skip(1);
    let is_escape = |after: &[u8]| {
        let digits = after.get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if !escapes.all(is_escape) {
        return Err(EventError::new(EventErrorKind::MalformedPercent, name)
            .with_detail("a percent sign is not followed by two hexadecimal digits"));
    }
    Ok(percent_decode(value).into())
}
