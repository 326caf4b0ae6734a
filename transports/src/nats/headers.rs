//! Headers of a message to and from NATS.
//!
//! NATS headers are lines of text: names of printable ASCII, and values without line ends, which lose surrounding white
//! space. The client keeps them in a hash map, so the order of different names is lost too; values of one name keep
//! their order.

use std::str::FromStr;

use a2abus_plugin::Text;
use async_nats::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use bytes::BytesMut;
use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;
use serde::de::value::StringDeserializer;

use crate::error::{TransportError, TransportErrorKind};
use crate::message::{HEADER_BYTES, Headers, NATS_REPLY_HEADER, NATS_STATUS_HEADER};

/// Header of a delivery whose subject is not a legal [`Topic`](crate::Topic): the original subject. The delivery's
/// topic then has `_` for illegal characters.
pub const SUBJECT_HEADER: &str = "nats-subject";

/// The first header of nearly every message.
#[expect(clippy::disallowed_methods, reason = "a name of ours, and legal")]
const SPEC_VERSION: HeaderName = HeaderName::from_static("ce-specversion");

/// Writes the headers of a message. Leaves out headers whose value is null, and all whose name starts with `Nats-` in
/// any case: these instruct the server (store once, expect this sequence, roll up), and a peer that put them into a
/// message would instruct it through us. The only such header is the given message id.
///
/// The client's map gets one entry, whose value has the lines of all headers after the first. The client writes
/// `name: value` unchanged, so the bytes are the same, without an allocation and a hash for each header.
///
/// # Errors
/// `BadMessage`, naming the header, when a name or value cannot be a NATS header.
pub(super) fn write(
    headers: &Headers,
    own: Option<(&str, &str)>,
) -> Result<Option<HeaderMap>, TransportError> {
    let size = |name: &str, value: &[u8]| name.len() + value.len() + ": \r\n".len();
    let all = headers
        .iter()
        .map(|header| size(&header.name, header.value.as_deref().unwrap_or_default()));
    let own = own.map(|(name, value)| (name, value.as_bytes()));
    let room = all.sum::<usize>() + own.map_or(0, |(name, value)| size(name, value));
    let mut lines = Vec::with_capacity(room);
    let mut first = None;
    let mut separators = 0;
    for (name, value) in sent(headers).chain(own) {
        if !is_name(name) {
            return Err(bad_name(name));
        }
        if first.is_some() {
            separators += 1;
            for part in ["\r\n", name, ": "] {
                lines.extend_from_slice(part.as_bytes());
            }
        } else if name == "ce-specversion" {
            first = Some(SPEC_VERSION);
        } else {
            let name = HeaderName::from_str(name).map_err(|_| bad_name(name))?;
            first = Some(name);
        }
        lines.extend_from_slice(value);
    }
    // A map without entries would still be written as an empty header block.
    let Some(first) = first else { return Ok(None) };
    // All values at once: the only line ends are those between the lines.
    let line_ends = lines.iter().filter(|byte| is_line_end(byte)).count();
    let Some(lines) = String::from_utf8(lines)
        .ok()
        .filter(|_| line_ends == 2 * separators)
    else {
        return Err(bad_value(sent(headers).chain(own)));
    };
    let mut map = HeaderMap::new();
    map.insert(first, lines_value(lines)?);
    Ok(Some(map))
}

/// The headers that are written.
fn sent(headers: &Headers) -> impl Iterator<Item = (&str, &[u8])> + Clone {
    let sent = headers.iter().filter(|header| !is_reserved(&header.name));
    sent.filter_map(|header| Some((header.name.as_str(), &header.value.as_ref()?[..])))
}

fn is_line_end(byte: &u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

/// The error for headers with a value that NATS cannot carry.
fn bad_value<'h>(mut headers: impl Iterator<Item = (&'h str, &'h [u8])> + Clone) -> TransportError {
    let not_utf8 = headers
        .clone()
        .find(|(_, value)| std::str::from_utf8(value).is_err());
    if let Some((name, _)) = not_utf8 {
        return bad_message(name, "its value is not UTF-8");
    }
    let broken = headers.find(|(_, value)| value.iter().any(is_line_end));
    let name = broken.map_or("", |(name, _)| name);
    bad_message(name, "its value contains a line end")
}

/// A value of several lines, each of which is checked. The client accepts one only when it deserialises.
fn lines_value(lines: String) -> Result<HeaderValue, TransportError> {
    let lines: StringDeserializer<serde::de::value::Error> = lines.into_deserializer();
    HeaderValue::deserialize(lines).map_err(|error| {
        TransportError::new(TransportErrorKind::Other, "write headers to NATS").caused_by(error)
    })
}

/// Reads the headers of a message, sorted by name, the values of one name in the order they were sent.
pub(super) fn read(map: Option<&HeaderMap>, status: Option<StatusCode>) -> Headers {
    let Some(map) = map.filter(|map| !map.is_empty()) else {
        return with_status(Headers::new(), status);
    };
    let mut fields: Vec<(&str, &str)> = map
        .iter()
        .flat_map(|(name, values)| {
            let name: &str = name.as_ref();
            values.iter().map(move |value| (name, value.as_str()))
        })
        .filter(|(name, _)| !is_own(name))
        .collect();
    // Stable: the order within a name stays.
    fields.sort_by_key(|(name, _)| *name);
    // One block of memory for all names and values, which then share it.
    let bytes: usize = fields
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum();
    let mut block = BytesMut::with_capacity(bytes);
    let mut headers = Headers::with_capacity(fields.len() + 1);
    for (name, value) in fields {
        block.extend_from_slice(name.as_bytes());
        let name = block.split().freeze();
        block.extend_from_slice(value.as_bytes());
        if let Some(name) = Text::from_utf8(&name) {
            headers.push(name, block.split().freeze());
        }
    }
    with_status(headers, status)
}

/// Whether only the bridge itself sets this header.
pub(super) fn is_own(name: &str) -> bool {
    let own = [NATS_STATUS_HEADER, NATS_REPLY_HEADER, SUBJECT_HEADER];
    own.iter().any(|own| name.eq_ignore_ascii_case(own))
}

/// The memory of the headers of a message beyond their text, in bytes.
pub(super) fn memory(map: Option<&HeaderMap>) -> usize {
    map.map_or(0, |map| {
        map.iter().map(|(_, values)| values.len()).sum::<usize>() * HEADER_BYTES
    })
}

fn with_status(mut headers: Headers, status: Option<StatusCode>) -> Headers {
    if let Some(status) = status {
        headers.push(
            Text::from_static(NATS_STATUS_HEADER),
            status.as_u16().to_string(),
        );
    }
    headers
}

fn is_reserved(name: &str) -> bool {
    name.as_bytes()
        .get(..5)
        .is_some_and(|start| start.eq_ignore_ascii_case(b"nats-"))
}

/// What every NATS client can read: visible ASCII without the colon that ends a name.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic() && b != b':')
}

fn bad_name(name: &str) -> TransportError {
    bad_message(name, "its name is not printable ASCII")
}

fn bad_message(name: &str, reason: &str) -> TransportError {
    let shown: String = name.chars().take(64).collect();
    TransportError::new(
        TransportErrorKind::BadMessage,
        format!("write header {shown:?} to NATS: {reason}"),
    )
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn headers(fields: &[(&str, &[u8])]) -> Headers {
        let mut headers = Headers::new();
        for (name, value) in fields {
            headers.push(*name, Bytes::copy_from_slice(value));
        }
        headers
    }

    /// What a client reads of headers written by this file.
    fn sent(headers: &Headers, id: Option<&Text>) -> Result<Option<HeaderMap>, TransportError> {
        let own = id.map(|id| ("Nats-Msg-Id", id.as_str()));
        let Some(written) = write(headers, own)? else {
            return Ok(None);
        };
        let mut map = HeaderMap::new();
        for (name, values) in written.iter() {
            for value in values {
                let lines = format!("{name}: {value}");
                for line in lines.split("\r\n") {
                    let (name, value) = line.split_once(": ").unwrap();
                    map.append(HeaderName::from_str(name).unwrap(), value);
                }
            }
        }
        Ok(Some(map))
    }

    fn round_trip(fields: &[(&str, &[u8])]) -> Vec<(String, Bytes)> {
        let map = sent(&headers(fields), None).unwrap();
        let read = read(map.as_ref(), None);
        read.iter()
            .map(|h| (h.name.to_string(), h.value.clone().unwrap()))
            .collect()
    }

    #[test]
    fn all_values_of_a_name_come_back_in_order() {
        assert_eq!(
            round_trip(&[("b", b"1"), ("a", b"x"), ("b", b"2"), ("B", b"3")]),
            [("B", "3"), ("a", "x"), ("b", "1"), ("b", "2")]
                .map(|(n, v)| (n.to_owned(), Bytes::from(v)))
        );
    }

    #[test]
    fn a_header_that_nats_cannot_carry_is_an_error_that_names_it() {
        for (name, value) in [
            ("a", &b"x\r\nNats-Msg-Id: 1"[..]),
            ("a", b"x\ny"),
            ("a", b"x\ry"),
            ("a", b"\xff\xfe"),
            ("a\r\nb", b"x"),
            ("a b", b"x"),
            ("a:b", b"x"),
            ("", b"x"),
            ("\u{e9}", b"x"),
            ("a\0", b"x"),
            ("a\t", b"x"),
        ] {
            let error = write(&headers(&[(name, value)]), None).unwrap_err();
            assert_eq!(error.kind(), TransportErrorKind::BadMessage, "{name:?}");
            assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
        }
        let error = write(&Headers::new(), Some(("Nats-Msg-Id", "a\r\nb"))).unwrap_err();
        assert_eq!(error.kind(), TransportErrorKind::BadMessage);
    }

    #[test]
    fn instructions_to_the_server_are_never_copied_from_a_message() {
        let smuggled = headers(&[
            ("Nats-Msg-Id", b"forged"),
            ("nats-msg-id", b"forged"),
            ("NATS-Rollup", b"all"),
            ("Nats-Expected-Last-Sequence", b"0"),
            ("nats-", b"x"),
            // Not a valid name, but still dropped, because a lenient server could take it for an instruction.
            ("nats-x\r\ny", b"x"),
            ("nats", b"kept"),
        ]);
        let map = sent(&smuggled, Some(&Text::from("ours"))).unwrap().unwrap();
        assert_eq!(map.len(), 2);
        assert_eq!(map.get("Nats-Msg-Id").unwrap().as_str(), "ours");
        let map = sent(&smuggled, None).unwrap().unwrap();
        assert_eq!(map.len(), 1);
    }

    #[test]
    fn null_values_are_left_out_and_empty_ones_are_not() {
        let mut headers = headers(&[("empty", b"")]);
        headers.push_null("null");
        headers.push_null("null\r\n");
        let map = sent(&headers, None).unwrap().unwrap();
        assert_eq!(map.len(), 1);
        assert_eq!(map.get("empty").unwrap().as_str(), "");
    }

    #[test]
    fn without_headers_there_is_no_header_block() {
        assert!(write(&Headers::new(), None).unwrap().is_none());
        assert!(
            write(&headers(&[("nats-x", b"1")]), None)
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn a_status_is_a_header_that_no_peer_can_forge() {
        let forged = headers(&[("x", b"1")]);
        let mut map = sent(&forged, None).unwrap().unwrap();
        map.insert("Nats-Status", "503");
        map.insert("nats-subject", "elsewhere");
        assert_eq!(read(Some(&map), None).len(), 1);
        let read = read(Some(&map), Some(StatusCode::NO_RESPONDERS));
        assert_eq!(read.get(NATS_STATUS_HEADER).unwrap(), "503");
        assert_eq!(read.len(), 2);
    }

    #[test]
    fn a_thousand_headers_survive() {
        let names: Vec<String> = (0..1000).map(|n| format!("h{n:04}")).collect();
        let fields: Vec<(&str, &[u8])> = names
            .iter()
            .map(|name| (name.as_str(), name.as_bytes()))
            .collect();
        let read = round_trip(&fields);
        assert_eq!(read.len(), 1000);
        assert!(
            read.iter()
                .zip(&names)
                .all(|((n, v), name)| n == name && v == name)
        );
    }

    #[test]
    fn unicode_values_pass() {
        assert_eq!(
            round_trip(&[("a", "\u{e9}\u{1f600}".as_bytes())])[0].1,
            "\u{e9}\u{1f600}"
        );
    }

    proptest! {
        #[test]
        fn any_header_is_written_or_refused_and_what_is_written_is_read_again(
            name in ".{0,8}", value in proptest::collection::vec(any::<u8>(), 0..16),
        ) {
            let fields = headers(&[(&name, &value)]);
            if let Ok(Some(map)) = sent(&fields, None) {
                let read = read(Some(&map), None);
                prop_assert_eq!(read.get(&name).map(|v| &v[..]), Some(&value[..]));
            }
        }
    }
}
