//! Redacts secrets in stored copies of payloads.
//!
//! Two families contain credentials in the message itself: the handshake of A2E (`auth_token`) and the `auth` of an E2A
//! request (`bearer_token`, and the values of `extra_headers`). Source: docs/protocols/a2e-messages.md §8.3,
//! docs/protocols/e2a.md §S5.

use std::borrow::Cow;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;

use crate::error::DecodeError;
use crate::json::{Kind, Reader, Span, unescape};
use crate::limits::Limits;

/// The replacement for a secret.
const REDACTED: &[u8] = b"\"***\"";

/// The payload with `"***"` in place of every secret of a known family: `auth_token`, `auth.bearer_token` and
/// the values of `auth.extra_headers`, in a message, in each message of a batch or of lines, and in the data of a
/// CloudEvent. Data are treated as a payload, whether they are JSON, text or Base64. All other bytes stay unchanged; a
/// payload without secrets is shared, not copied.
///
/// Members with these names elsewhere, such as in the arguments of a tool, are not protocol secrets and stay unchanged.
/// In a payload that is not JSON, whose structure is unknown, they are redacted everywhere.
///
/// ```
/// use a2abus_plugin::redact_secrets;
///
/// let line = r#"{"type":"handshake/req","id":"1","auth_token":"s3cret","agent_caps":[]}"#;
/// let blanked = redact_secrets(&line.into());
/// assert_eq!(blanked, r#"{"type":"handshake/req","id":"1","auth_token":"***","agent_caps":[]}"#);
/// ```
#[must_use]
pub fn redact_secrets(payload: &Bytes) -> Bytes {
    redacted(payload).map_or_else(|| payload.clone(), Bytes::from)
}

/// A part of the payload, and what it is.
type Finding = (Range<usize>, Content);

/// What a part of the payload is.
#[derive(Clone, Copy)]
enum Content {
    /// A secret.
    Secret,
    /// A string that is a payload, with its quotes.
    Text,
    /// The same, in Base64.
    Base64,
}

/// The payload without its secrets; `None` if it has none.
fn redacted(payload: &[u8]) -> Option<Vec<u8>> {
    let mut findings = Vec::new();
    if read(payload, &mut findings).is_err() {
        findings.clear();
        scan(payload, &mut findings);
    }
    // Strings are decoded only here, after the whole payload has been read, so that each is decoded once. Decoding them
    // twice on each level of nested payloads would take exponential time.
    let secrets: Vec<_> = findings
        .into_iter()
        .filter_map(|(place, content)| {
            let token = payload.get(place.clone()).unwrap_or_default();
            content.redacted(token).map(|text| (place, text))
        })
        .collect();
    if secrets.is_empty() {
        return None;
    }
    let mut redacted = Vec::with_capacity(payload.len());
    let mut at = 0;
    for (place, redacted_text) in secrets {
        redacted.extend_from_slice(payload.get(at..place.start).unwrap_or_default());
        redacted.extend_from_slice(&redacted_text);
        at = place.end;
    }
    redacted.extend_from_slice(payload.get(at..).unwrap_or_default());
    Some(redacted)
}

/// Finds the secrets of a payload that consists of whole JSON values, in order.
fn read(payload: &[u8], findings: &mut Vec<Finding>) -> Result<(), DecodeError> {
    let limits = Limits {
        max_bytes: usize::MAX,
        max_members: u32::MAX,
        ..Limits::default()
    };
    // The reader stops at the largest document that it can read.
    limits.check_bytes(payload)?;
    let mut reader = Reader::new(payload, &limits);
    if payload.starts_with(crate::json::BYTE_ORDER_MARK) {
        reader.seek(crate::json::BYTE_ORDER_MARK.len());
    }
    reader.skip_white_space();
    while reader.peek().is_some() {
        messages(&mut reader, findings)?;
        reader.skip_white_space();
    }
    Ok(())
}

/// A message, or a batch of them.
fn messages(reader: &mut Reader<'_>, findings: &mut Vec<Finding>) -> Result<(), DecodeError> {
    match reader.kind()? {
        Kind::Object => message(reader, findings),
        Kind::Array => reader.array(|reader| messages(reader, findings)).map(drop),
        _ => reader.value().map(drop),
    }
}

/// A message, or an event whose data are a payload.
fn message(reader: &mut Reader<'_>, findings: &mut Vec<Finding>) -> Result<(), DecodeError> {
    let mut of_data = Vec::new();
    let mut is_event = false;
    let before = findings.len();
    reader.object(|reader, name| match name {
        b"specversion" => {
            is_event = true;
            reader.value().map(drop)
        }
        b"data" | b"data_base64" if reader.kind()? == Kind::String => {
            let span = reader.value()?;
            of_data.push((span.range(), Content::of_data(name)));
            Ok(())
        }
        b"data" => messages(reader, &mut of_data),
        name => member(reader, name, findings),
    })?;
    if is_event {
        findings.extend(of_data);
        if let Some(own) = findings.get_mut(before..) {
            own.sort_unstable_by_key(|(place, _)| place.start);
        }
    }
    Ok(())
}

// === impl Content ===

impl Content {
    /// The content of the member `data` or `data_base64`, if it is a string.
    fn of_data(name: &[u8]) -> Self {
        if name == b"data" {
            Self::Text
        } else {
            Self::Base64
        }
    }

    /// The replacement for `token`; `None` if it contains no secret. An unreadable string is redacted as a whole.
    fn redacted(self, token: &[u8]) -> Option<Cow<'static, [u8]>> {
        let unreadable = Some(Cow::Borrowed(REDACTED));
        let inside = token.strip_prefix(b"\"").unwrap_or(token);
        let inside = inside.strip_suffix(b"\"").unwrap_or(inside);
        let redacted_text = match self {
            Self::Secret => None,
            Self::Text => match unescape(inside) {
                Some(text) => String::from_utf8(redacted(text.as_bytes())?).ok(),
                None => None,
            },
            Self::Base64 => match unescape(inside).map(|text| BASE64.decode(text)) {
                Some(Ok(data)) => Some(BASE64.encode(redacted(&data)?)),
                Some(Err(_)) | None => None,
            },
        };
        redacted_text
            .and_then(|redacted_text| serde_json::to_vec(&redacted_text).ok())
            .map_or(unreadable, |redacted_text| Some(Cow::Owned(redacted_text)))
    }
}

/// A member of a message.
fn member(
    reader: &mut Reader<'_>,
    name: &[u8],
    findings: &mut Vec<Finding>,
) -> Result<(), DecodeError> {
    match name {
        b"auth_token" => secret(reader, findings),
        b"auth" if reader.kind()? == Kind::Object => {
            reader.object(|reader, name| match name {
                b"bearer_token" => secret(reader, findings),
                b"extra_headers" if reader.kind()? == Kind::Object => {
                    reader.object(|reader, _| secret(reader, findings))?;
                    Ok(())
                }
                b"extra_headers" => secret(reader, findings),
                _ => reader.value().map(drop),
            })?;
            Ok(())
        }
        _ => reader.value().map(drop),
    }
}

/// A value that is a secret, unless it is null or empty.
fn secret(reader: &mut Reader<'_>, findings: &mut Vec<Finding>) -> Result<(), DecodeError> {
    let span: Span = reader.value()?;
    let is_empty = span.kind() == Kind::Null || reader.token(span) == b"\"\"";
    if !is_empty {
        findings.push((span.range(), Content::Secret));
    }
    Ok(())
}

/// The same for bytes that are not JSON: redacts the value after the name of a secret, on a best-effort basis. One
/// pass; strings also end at a line end, because no JSON string contains one.
fn scan(payload: &[u8], findings: &mut Vec<Finding>) {
    let mut at = 0;
    // The depth inside the value of `extra_headers`, where every value is a secret.
    let mut headers: Option<usize> = None;
    while let Some(byte) = payload.get(at) {
        match (byte, &mut headers) {
            (b'"', _) => {}
            (b'{' | b'[', Some(depth)) => *depth += 1,
            (b'}' | b']', Some(depth)) if *depth > 1 => *depth -= 1,
            (b'}' | b']', _) => headers = None,
            _ => {}
        }
        if *byte != b'"' {
            at += 1;
            continue;
        }
        let end = string_end(payload, at);
        let name = payload.get(at + 1..end.max(at + 2) - 1).unwrap_or_default();
        let value = value_start(payload, end);
        at = end;
        let Some(value) = value else {
            continue;
        };
        let unescaped = unescape(name);
        let name = unescaped.as_ref().map_or(name, String::as_bytes);
        let is_headers = name == b"extra_headers";
        let is_open = matches!(payload.get(value), Some(b'{' | b'['));
        if is_headers && is_open {
            headers = Some(0);
        } else if is_headers || headers.is_some() || matches!(name, b"auth_token" | b"bearer_token")
        {
            at = value_end(payload, value);
            findings.push((value..at, Content::Secret));
        } else if matches!(name, b"data" | b"data_base64") && payload.get(value) == Some(&b'"') {
            at = string_end(payload, value);
            findings.push((value..at, Content::of_data(name)));
        }
    }
}

/// The start of the value of the member whose name ends at `at`; `None` if it is not a name.
fn value_start(payload: &[u8], at: usize) -> Option<usize> {
    let blank = |at: usize| {
        let rest = payload.get(at..).unwrap_or_default();
        at + rest.iter().take_while(|b| b.is_ascii_whitespace()).count()
    };
    let colon = blank(at);
    (payload.get(colon) == Some(&b':')).then(|| blank(colon + 1))
}

/// The end of the string that begins at `at`, including its closing quote.
fn string_end(payload: &[u8], at: usize) -> usize {
    let mut escaped = false;
    let inside = payload.get(at + 1..).unwrap_or_default();
    for (length, byte) in inside.iter().enumerate() {
        match byte {
            b'\n' => return at + 1 + length,
            b'"' if !escaped => return at + 2 + length,
            _ => escaped = *byte == b'\\' && !escaped,
        }
    }
    payload.len()
}

/// The end of a value: a string ends at its quote, an object or array at the end of its line, anything else at the next
/// comma or bracket.
fn value_end(payload: &[u8], at: usize) -> usize {
    let ends: &[u8] = match payload.get(at) {
        Some(b'"') => return string_end(payload, at),
        Some(b'{' | b'[') => b"\n",
        _ => b",}]\n",
    };
    let rest = payload.get(at..).unwrap_or_default();
    let end = rest.iter().position(|byte| ends.contains(byte));
    at + end.unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(payload: &str, redacted: &str) {
        let payload = Bytes::copy_from_slice(payload.as_bytes());
        let found = redact_secrets(&payload);
        assert_eq!(String::from_utf8_lossy(&found), redacted);
    }

    #[test]
    fn only_secrets_of_protocols_are_redacted() {
        for (payload, redacted) in [
            (
                " {\"type\" : \"handshake/req\", \"auth_token\" :\"s\\\"x\" ,\"n\": 1.50}\n",
                " {\"type\" : \"handshake/req\", \"auth_token\" :\"***\" ,\"n\": 1.50}\n",
            ),
            (
                r#"{"auth_tok\u0065n":{"a":["s"]},"auth":{"extra_headers":["s"]}}"#,
                r#"{"auth_tok\u0065n":"***","auth":{"extra_headers":"***"}}"#,
            ),
            (
                r#"{"auth":{"bearer_token":"s","method_id":"m","extra_headers":{"X-Key":"s","Y":7}},"params":{}}"#,
                r#"{"auth":{"bearer_token":"***","method_id":"m","extra_headers":{"X-Key":"***","Y":"***"}},"params":{}}"#,
            ),
            (
                r#"[{"auth_token":"a"},7,{"auth_token":"b"}]"#,
                r#"[{"auth_token":"***"},7,{"auth_token":"***"}]"#,
            ),
            (
                "\u{feff}{\"auth_token\":\"a\"}\r\n{\"auth_token\":\"b\"}",
                "\u{feff}{\"auth_token\":\"***\"}\r\n{\"auth_token\":\"***\"}",
            ),
            (
                r#"{"data":{"auth_token":"a"},"specversion":"1.0","auth_token":"b"}"#,
                r#"{"data":{"auth_token":"***"},"specversion":"1.0","auth_token":"***"}"#,
            ),
            (
                r#"{"specversion":"1.0","data":[{"type":"handshake/req","auth_token":"a"},7,{"auth_token":"b"}]}"#,
                r#"{"specversion":"1.0","data":[{"type":"handshake/req","auth_token":"***"},7,{"auth_token":"***"}]}"#,
            ),
            (
                r#"[{"data":{"specversion":"1.0","data":[{"auth":{"bearer_token":"s"}}]},"specversion":"1.0"}]"#,
                r#"[{"data":{"specversion":"1.0","data":[{"auth":{"bearer_token":"***"}}]},"specversion":"1.0"}]"#,
            ),
            (
                r#"{"specversion":"1.0","data":"{\"auth_token\":\"a\"}\n{\"id\":\"\u00e9\"}"}"#,
                r#"{"specversion":"1.0","data":"{\"auth_token\":\"***\"}\n{\"id\":\"é\"}"}"#,
            ),
            // {"auth_token":"a"}, and the same with ***.
            (
                r#"{"specversion":"1.0","data_base64":"eyJhdXRoX3Rva2VuIjoiYSJ9"}"#,
                r#"{"specversion":"1.0","data_base64":"eyJhdXRoX3Rva2VuIjoiKioqIn0="}"#,
            ),
            (
                r#"{"data":"{\"auth_token\":\"a\"}\ud800","data_base64":"not Base64","specversion":"1.0"}"#,
                r#"{"data":"***","data_base64":"***","specversion":"1.0"}"#,
            ),
        ] {
            check(payload, redacted);
        }
    }

    #[test]
    fn data_without_secrets_is_not_copied() {
        for payload in [
            "",
            "7",
            r#"{"auth_token":"","auth":{"bearer_token":null}}"#,
            r#"{"jsonrpc":"2.0","params":{"arguments":{"auth_token":"mine"}}}"#,
            r#"{"type":"tool/call/resp","data":{"auth_token":"mine"}}"#,
            r#"{"text":"\"auth_token\":\"mine\""}"#,
            r#"{"data":"{\"auth_token\":\"mine\"}","data_base64":"eyJhdXRoX3Rva2VuIjoiYSJ9"}"#,
            r#"{"specversion":"1.0","data":"\u00e9 [1]","id":"1"}"#,
            r#"{"specversion":"1.0","data_base64":"AP8="}"#,
        ] {
            let payload = Bytes::from_static(payload.as_bytes());
            let found = redact_secrets(&payload);
            assert_eq!(found, payload);
            assert_eq!(found.as_ptr(), payload.as_ptr());
        }
    }

    #[test]
    fn secrets_are_redacted_in_bytes_that_are_not_json() {
        for (payload, redacted) in [
            (
                r#"{"type":"handshake/req","auth_token":"s"#,
                r#"{"type":"handshake/req","auth_token":"***""#,
            ),
            (
                r#"{"auth_token": s3cret, "x": NaN}"#,
                r#"{"auth_token": "***", "x": NaN}"#,
            ),
            (
                "{\"a\":[\n{\"auth\":{\"extra_headers\":{\"X\":\"s\",\"Y\":7},\"n\":\"m\"}}",
                "{\"a\":[\n{\"auth\":{\"extra_headers\":{\"X\":\"***\",\"Y\":\"***\"},\"n\":\"m\"}}",
            ),
            (
                "{\"auth_token\":{\"a\":\"x,y\"},\n\"b\":1",
                "{\"auth_token\":\"***\"\n\"b\":1",
            ),
            (
                r#"{"data":"{\"auth_token\":\"a\"}","data_base64":"eyJhdXRoX3Rva2VuIjoiYSJ9","n":NaN}"#,
                r#"{"data":"{\"auth_token\":\"***\"}","data_base64":"eyJhdXRoX3Rva2VuIjoiKioqIn0=","n":NaN}"#,
            ),
            (
                r#"{"data":"{\"auth_token\":\"a"#,
                r#"{"data":"{\"auth_token\":\"***\"""#,
            ),
            ("\"data\":\"\\", "\"data\":\"***\""),
            // {"data":"{\"auth_token\":\"a\"}x"}x, and the same with ***.
            (
                r#"{"data_base64":"eyJkYXRhIjoie1wiYXV0aF90b2tlblwiOlwiYVwifXgifXg="}x"#,
                r#"{"data_base64":"eyJkYXRhIjoie1wiYXV0aF90b2tlblwiOlwiKioqXCJ9eCJ9eA=="}x"#,
            ),
            ("\"auth_token\"", "\"auth_token\""),
        ] {
            check(payload, redacted);
        }
    }
}
