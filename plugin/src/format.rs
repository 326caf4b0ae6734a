//! The JSON event format of CloudEvents: structured mode. Source: CloudEvents JSON format 1.0.2.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;

use crate::attribute::EventId;
use crate::error::{DecodeErrorKind, EventError, EventErrorKind};
use crate::event::{Data, Event, SPEC_VERSION, Value};
use crate::json::scan::plain_end;
use crate::json::{BYTE_ORDER_MARK, Kind, Reader, Span, is_one_json_value, unescape};
use crate::limits::{Limits, MAX_DOCUMENT_BYTES};
use crate::text::Text;

/// Reads one event in the JSON format. JSON data share the bytes of the event; only text and Base64 data are decoded.
///
/// # Errors
/// `MalformedEvent` for anything that is not a JSON object in UTF-8, and for an event with 1 GiB or more, or with
/// more than `max_members` or 256 attributes; `TooDeep`, `DuplicateAttribute`, `MissingAttribute`,
/// `UnsupportedSpecversion`, `InvalidAttributeName`, `InvalidAttributeValue`, `MalformedData`. The `max_bytes` of the
/// limits are for the data, which [`decode`](crate::decode) checks.
pub fn read(bytes: &Bytes, limits: &Limits) -> Result<Event, EventError> {
    // The reader would not see what follows.
    if bytes.len() > MAX_DOCUMENT_BYTES {
        return Err(malformed("the event has 1 GiB or more"));
    }
    if simdutf8::basic::from_utf8(bytes).is_err() {
        return Err(malformed("the event is not UTF-8"));
    }
    let members = read_members(bytes, limits)?;
    let required = |name: &'static str| -> Result<Text, EventError> {
        let member = members
            .iter()
            .find(|member| member.name == name && member.span.kind() != Kind::Null);
        let member = member.ok_or_else(|| {
            EventError::new(EventErrorKind::MissingAttribute, name)
                .with_detail("a required attribute is missing")
        })?;
        match scalar(bytes, member)? {
            Value::String(text) => Ok(text),
            Value::Integer(_) | Value::Boolean(_) => Err(invalid(name, "not a string")),
        }
    };
    if required("specversion")? != SPEC_VERSION {
        return Err(
            EventError::new(EventErrorKind::UnsupportedSpecversion, "specversion")
                .with_detail("only specversion 1.0 is supported"),
        );
    }
    let mut event = Event::new(required("id")?, required("source")?, required("type")?)?;
    for member in &members {
        match member.name.as_str() {
            "specversion" | "id" | "source" | "type" | "data" | "data_base64" => {}
            name if member.span.kind() != Kind::Null => event.set(name, scalar(bytes, member)?)?,
            _ => {}
        }
    }
    let data = read_data(bytes, &members, event.datacontenttype())?;
    event.set_data(data);
    Ok(event)
}

/// What can be read of an event that [`read`] refuses: its `data` as JSON, and its members with these names, if they
/// are strings that are valid as the `id` of an event. A member that occurs twice counts as absent, because readers
/// disagree about which one counts. Nothing is read after a syntax error.
#[must_use]
#[cold]
pub fn read_refused<const N: usize>(
    bytes: &Bytes,
    names: [&str; N],
    limits: &Limits,
) -> ([Option<Text>; N], Option<Bytes>) {
    let mut found: [Vec<Span>; N] = std::array::from_fn(|_| Vec::new());
    let mut data = Vec::new();
    if bytes.len() <= MAX_DOCUMENT_BYTES {
        let mut reader = Reader::new(bytes, limits).one_deeper();
        reader.skip_white_space();
        // Why the event is refused is known already.
        let _error = reader.object(|reader, name| {
            let span = reader.value()?;
            if name == b"data" {
                data.push(span);
            } else if let Some(at) = names.iter().position(|known| known.as_bytes() == name) {
                found[at].push(span);
            }
            Ok(())
        });
    }
    let only = |spans: &[Span]| match spans {
        [span] => Some(*span),
        _ => None,
    };
    let text = |spans: Vec<Span>| {
        let span = only(&spans).filter(|span| span.kind() == Kind::String)?;
        let text = EventId::new(string(bytes, span).ok()?).ok()?;
        Some(Text::from(text))
    };
    let data = only(&data).map(|span| bytes.slice(span.range()));
    (found.map(text), data)
}

/// A top-level member: its unescaped name and the position of its value.
struct Member {
    name: Text,
    span: Span,
}

fn read_members(bytes: &Bytes, limits: &Limits) -> Result<Vec<Member>, EventError> {
    let mut members: Vec<Member> = Vec::with_capacity(16);
    let mut repeated: Option<Text> = None;
    let mut reader = Reader::new(bytes, limits).one_deeper();
    reader.skip_white_space();
    let read = reader.object(|reader, name| {
        let name = Text::from_utf8(name).unwrap_or_default();
        let span = reader.value()?;
        if members.iter().any(|member| member.name == name) {
            repeated.get_or_insert_with(|| name.clone());
        }
        if members.len() == MAX_ATTRIBUTES {
            return Err(reader.error(DecodeErrorKind::TooLarge, "more than 256 attributes"));
        }
        members.push(Member { name, span });
        Ok(())
    });
    read.map_err(|error| match error.kind() {
        DecodeErrorKind::TooDeep => {
            EventError::new(EventErrorKind::TooDeep, "").with_detail(error.to_string())
        }
        _ => malformed(format!("{error} at byte {}", error.offset())),
    })?;
    reader.skip_white_space();
    if reader.peek().is_some() {
        return Err(malformed("more text after the event"));
    }
    match repeated {
        Some(name) => Err(EventError::new(EventErrorKind::DuplicateAttribute, &name)
            .with_detail("the attribute occurs twice")),
        None => Ok(members),
    }
}

/// The maximum number of attributes; bounds the cost of the check for repeated names.
const MAX_ATTRIBUTES: usize = 256;

fn scalar(bytes: &Bytes, member: &Member) -> Result<Value, EventError> {
    let name = &member.name;
    match member.span.kind() {
        Kind::String => string(bytes, member.span).map(Value::String),
        Kind::Boolean => Ok(Value::Boolean(
            bytes.get(member.span.start()) == Some(&b't'),
        )),
        Kind::Number => {
            let token = bytes
                .get(member.span.range())
                .and_then(|raw| std::str::from_utf8(raw).ok());
            let number = token.and_then(|token| token.parse::<i32>().ok());
            number
                .map(Value::Integer)
                .ok_or_else(|| invalid(name, "not a 32-bit integer"))
        }
        Kind::Object | Kind::Array | Kind::Null => {
            Err(invalid(name, "not a string, integer or boolean"))
        }
    }
}

fn string(bytes: &Bytes, span: Span) -> Result<Text, EventError> {
    Text::from_utf8(&string_bytes(bytes, span)?).ok_or_else(|| malformed("the event is not UTF-8"))
}

/// The text of a string; the event's own bytes if nothing is escaped.
fn string_bytes(bytes: &Bytes, span: Span) -> Result<Bytes, EventError> {
    let inside = bytes.slice(span.inside_quotes());
    if !inside.contains(&b'\\') {
        return Ok(inside);
    }
    unescape(&inside)
        .map(Bytes::from)
        .ok_or_else(|| malformed("a lone surrogate in a string"))
}

fn read_data(
    bytes: &Bytes,
    members: &[Member],
    media_type: Option<&Text>,
) -> Result<Option<Data>, EventError> {
    let find = |name: &str| {
        members
            .iter()
            .find(|member| member.name == name)
            .map(|member| member.span)
    };
    let bad = |detail| EventError::new(EventErrorKind::MalformedData, "data").with_detail(detail);
    let data_base64 = find("data_base64").filter(|span| span.kind() != Kind::Null);
    match (find("data"), data_base64) {
        (Some(_), Some(_)) => Err(bad("data and data_base64 exclude each other")),
        (None, None) => Ok(None),
        (None, Some(span)) => {
            let text = if span.kind() == Kind::String {
                string_bytes(bytes, span)?
            } else {
                return Err(bad("not a string"));
            };
            let decoded = BASE64
                .decode(&text)
                .map_err(|_| bad("data_base64 is not Base64"))?;
            Ok(Some(Data::from(Bytes::from(decoded))))
        }
        (Some(span), None) if media_type.is_none_or(|text| is_json(text)) => {
            Ok(Some(Data::known_json(bytes.slice(span.range()))))
        }
        (Some(span), None) if span.kind() == Kind::String => {
            Ok(Some(Data::from(string_bytes(bytes, span)?)))
        }
        (Some(_), None) => Err(bad(
            "data of a media type that is not JSON must be a string",
        )),
    }
}

/// Appends the event in the JSON format to `out`.
///
/// JSON data are copied byte for byte; text is written as a string, anything else as `data_base64`. If the media type
/// is JSON, the data are checked first, and written as `data_base64` if they are not JSON.
pub fn write(event: &Event, out: &mut Vec<u8>) {
    out.reserve(512 + event.data().map_or(0, |data| data.bytes().len()));
    out.push(b'{');
    for (index, (name, value)) in event.core_attributes().enumerate() {
        write_name(index, name, out);
        write_string(value, out);
    }
    for (name, value) in event.extensions() {
        write_name(1, name, out);
        match value {
            Value::String(text) => write_string(text, out),
            Value::Integer(_) | Value::Boolean(_) => {
                out.extend_from_slice(value.to_string().as_bytes())
            }
        }
    }
    if let Some(data) = event.data() {
        write_data(data, event.datacontenttype(), out);
    }
    out.push(b'}');
}

fn write_name(index: usize, name: &str, out: &mut Vec<u8>) {
    if index > 0 {
        out.push(b',');
    }
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}

fn write_data(data: &Data, media_type: Option<&Text>, out: &mut Vec<u8>) {
    let bytes = data.bytes();
    let promised = media_type.is_some_and(|text| is_json(text));
    let json = if data.is_json() {
        Some(bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes))
    } else {
        (promised && is_one_json_value(bytes)).then_some(bytes.as_ref())
    };
    if let Some(json) = json.filter(|_| media_type.is_none() || promised) {
        write_name(1, "data", out);
        out.extend_from_slice(json);
        return;
    }
    let text = media_type
        .filter(|media_type| is_text(media_type))
        .and_then(|_| std::str::from_utf8(bytes).ok());
    if let Some(text) = text {
        write_name(1, "data", out);
        write_string(text, out);
    } else {
        write_name(1, "data_base64", out);
        write_string(&BASE64.encode(bytes), out);
    }
}

/// Writes text as a JSON string.
pub(crate) fn write_string(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    loop {
        let plain = plain_end(rest, 0);
        let (head, tail) = rest.split_at(plain);
        out.extend_from_slice(head);
        let Some((special, tail)) = tail.split_first() else {
            break;
        };
        match special {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            control => out.extend_from_slice(format!("\\u{control:04x}").as_bytes()),
        }
        rest = tail;
    }
    out.push(b'"');
}

/// Whether a media type is JSON: `*/json` or `*/*+json`, ignoring parameters and case.
#[must_use]
pub fn is_json(media_type: &str) -> bool {
    subtype(media_type).is_some_and(|subtype| ends_with_word(subtype, "json"))
}

/// Whether a media type is text: `text/*`, `*/xml`, `*/*+xml`, in UTF-8.
fn is_text(media_type: &str) -> bool {
    let is_text = media_type
        .get(..5)
        .is_some_and(|top| top.eq_ignore_ascii_case("text/"));
    let is_xml = subtype(media_type).is_some_and(|subtype| ends_with_word(subtype, "xml"));
    let parameters = media_type.split(';').skip(1);
    let other_charset = parameters
        .filter_map(|parameter| parameter.split_once('='))
        .any(|(name, value)| {
            let value = value.trim().trim_matches('"');
            name.trim().eq_ignore_ascii_case("charset")
                && !value.eq_ignore_ascii_case("utf-8")
                && !value.eq_ignore_ascii_case("us-ascii")
        });
    (is_text || is_xml) && !other_charset
}

fn subtype(media_type: &str) -> Option<&str> {
    media_type
        .split(';')
        .next()
        .and_then(|essence| essence.split_once('/'))
        .map(|(_, subtype)| subtype.trim())
}

/// Whether a subtype is `word`, or ends in `+word`.
fn ends_with_word(subtype: &str, word: &str) -> bool {
    subtype.eq_ignore_ascii_case(word)
        || subtype
            .rsplit_once('+')
            .is_some_and(|(_, suffix)| suffix.eq_ignore_ascii_case(word))
}

fn malformed(detail: impl Into<std::borrow::Cow<'static, str>>) -> EventError {
    EventError::new(EventErrorKind::MalformedEvent, "").with_detail(detail)
}

fn invalid(name: &str, detail: &'static str) -> EventError {
    EventError::new(EventErrorKind::InvalidAttributeValue, name).with_detail(detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(text: &'static str) -> String {
        let event = read(&Bytes::from_static(text.as_bytes()), &Limits::default()).unwrap();
        let mut out = Vec::new();
        write(&event, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn events_that_the_reader_would_cut_are_refused() {
        let event = Bytes::from(vec![0u8; MAX_DOCUMENT_BYTES + 1]);
        let error = read(&event, &Limits::default()).unwrap_err();
        assert_eq!(error.kind(), EventErrorKind::MalformedEvent);
        assert!(error.to_string().contains("1 GiB"), "{error}");
    }

    #[test]
    fn a_refused_event_shows_what_can_be_read_of_it() {
        let remains = |text: &'static str| {
            let bytes = Bytes::from_static(text.as_bytes());
            assert!(read(&bytes, &Limits::default()).is_err(), "{text}");
            let (texts, data) = read_refused(&bytes, ["id", "replyto"], &Limits::default());
            let text = |text: Option<Text>| text.map(|text| text.to_string());
            let data = data.map(|data| String::from_utf8(data.to_vec()).unwrap());
            (texts.map(text), data)
        };
        let some = |text: &str| Some(text.to_owned());
        let bad_time = r#"{"id":"\u0061","time":"x","replyto":"desk","data":{"a":1},"Big":1}"#;
        assert_eq!(
            remains(bad_time),
            ([some("a"), some("desk")], some(r#"{"a":1}"#))
        );
        for (text, texts) in [
            (r#"{"id":1,"replyto":{"id":"a"}}"#, [None, None]),
            (r#"{"id":"","replyto":"a\nb"}"#, [None, None]),
            (
                r#"{"id":"a","id":"b","replyto":"desk"}"#,
                [None, some("desk")],
            ),
            (r#"{"id":"a",,"replyto":"desk"}"#, [some("a"), None]),
            (r#"[{"id":"a"}]"#, [None, None]),
            ("", [None, None]),
        ] {
            assert_eq!(remains(text), (texts, None), "{text}");
        }
    }

    #[test]
    fn data_of_any_accepted_depth_round_trip() {
        let data = format!("{}{}", "[".repeat(128), "]".repeat(128));
        let mut event = Event::new("1".into(), "/s".into(), "t".into()).unwrap();
        event.set_data(Some(Data::json(data.into()).unwrap()));
        let mut structured = Vec::new();
        write(&event, &mut structured);
        assert_eq!(read(&structured.into(), &Limits::default()).unwrap(), event);
    }

    #[test]
    fn json_data_are_copied_byte_for_byte() {
        let text = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","n":-7,"f":true,"data":{ "a" : 1.50 }}"#;
        assert_eq!(round_trip(text), text);
    }

    #[test]
    fn text_and_binary_data_keep_their_form() {
        let text = r#"{"specversion":"1.0","id":"\"é\\","source":"/s","type":"t","datacontenttype":"text/plain","data":"a\n\u0001"}"#;
        assert_eq!(round_trip(text), text);
        let binary =
            r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","data_base64":"AP8="}"#;
        assert_eq!(round_trip(binary), binary);
    }

    #[test]
    fn data_at_the_maximum_depth_round_trip() {
        for depth in [127, 128, 129] {
            let data = Bytes::from("[".repeat(depth) + &"]".repeat(depth));
            let mut event = Event::new("1".into(), "/s".into(), "t".into()).unwrap();
            event.set("datacontenttype", "application/json").unwrap();
            event.set_data(Some(Data::from(data.clone())));
            let mut out = Vec::new();
            write(&event, &mut out);
            let again = read(&out.into(), &Limits::default()).unwrap();
            assert_eq!(again.body(), data, "{depth}");
        }
    }

    #[test]
    fn media_types() {
        for json in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/vnd.x+json",
            "text/json",
        ] {
            assert!(is_json(json), "{json}");
        }
        for other in [
            "",
            "json",
            "text/plain",
            "application/jsonx",
            "application/json-seq",
        ] {
            assert!(!is_json(other), "{other}");
        }
        assert!(is_text("text/plain; charset=\"UTF-8\"") && is_text("application/atom+xml"));
        assert!(!is_text("text/plain; charset=latin1") && !is_text("application/octet-stream"));
    }
}
