//! Header text of the HTTP and NATS bindings. Source: CloudEvents 1.0.2, HTTP protocol binding section 3.1.3.2.

use std::borrow::Cow;

use a2abus_plugin::{EventError, EventErrorKind, Text};
use bytes::{BufMut as _, Bytes, BytesMut};

/// Reads header text: white space around it goes, quotes go, then one round of percent-decoding.
///
/// # Errors
/// `MalformedPercent`, `InvalidUtf8`.
pub(super) fn decode(name: &str, value: &Bytes) -> Result<Text, EventError> {
    let trimmed = trim(value);
    let unquoted = unquote(trimmed).map_or(Cow::Borrowed(trimmed), Cow::Owned);
    let decoded = unescape(name, &unquoted)?;
    super::utf8(name, decoded.as_deref().unwrap_or(&unquoted))
}

/// Writes header text: a space, `"`, `%` and everything outside U+0021 to U+007E as the percent-encoded bytes of UTF-8.
pub(super) fn encode(value: &str, out: &mut BytesMut) {
    let is_safe = |byte: u8| (0x21..=0x7e).contains(&byte) && byte != b'"' && byte != b'%';
    if value.bytes().all(is_safe) {
        out.extend_from_slice(value.as_bytes());
        return;
    }
    for byte in value.bytes() {
        if is_safe(byte) {
            out.put_u8(byte);
        } else {
            out.extend_from_slice(&[b'%', upper_hex(byte >> 4), upper_hex(byte & 0xf)]);
        }
    }
}

fn upper_hex(digit: u8) -> u8 {
    match digit {
        0..=9 => b'0' + digit,
        _ => b'A' + (digit - 10),
    }
}

fn trim(value: &[u8]) -> &[u8] {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = value.iter().take_while(|byte| is_blank(byte)).count();
    let rest = value.get(start..).unwrap_or_default();
    let blanks = rest.iter().rev().take_while(|byte| is_blank(byte)).count();
    rest.get(..rest.len() - blanks).unwrap_or_default()
}

/// The content of a quoted string; `None` for anything else, which then stands for itself.
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

/// One round of percent-decoding; `None` when there is nothing to decode.
fn unescape(name: &str, value: &[u8]) -> Result<Option<Vec<u8>>, EventError> {
    if !value.contains(&b'%') {
        return Ok(None);
    }
    let hex = |digit: Option<&u8>| -> Result<u8, EventError> {
        match digit {
            Some(digit @ b'0'..=b'9') => Ok(digit - b'0'),
            Some(digit @ b'a'..=b'f') => Ok(digit - b'a' + 10),
            Some(digit @ b'A'..=b'F') => Ok(digit - b'A' + 10),
            _ => Err(EventError::new(EventErrorKind::MalformedPercent, name)
                .because("a percent sign is not followed by two hexadecimal digits")),
        }
    };
    let mut out = Vec::with_capacity(value.len());
    let mut bytes = value.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => out.push(hex(bytes.next())? << 4 | hex(bytes.next())?),
            byte => out.push(*byte),
        }
    }
    Ok(Some(out))
}
