//! Content negotiation by the head of a request: is the body JSON, which forms may the answer have, and how long does
//! the caller wait?
//!
//! Source: docs/design.md §7.1 and §7.2, docs/protocols/a2a.md §6, RFC 9110 section 12.5.1.

use std::time::Duration;

use a2abus_plugin::Hint;
use a2abus_plugin::protocol::dialect::Dialect;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};

/// The header with the caller's timeout, in milliseconds.
pub(crate) static TIMEOUT_HEADER: HeaderName = HeaderName::from_static("x-a2a-timeout");

/// Longer timeouts are reduced to this one. The limit of calls is far below it.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// The headers that help decoding. Source: docs/protocols/a2a.md §6.
static HINT_HEADERS: [HeaderName; 4] = [
    CONTENT_TYPE,
    HeaderName::from_static("a2a-version"),
    HeaderName::from_static("x-a2a-version"),
    HeaderName::from_static("x-a2a-client"),
];

/// The response types that the caller accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Accepts {
    /// One JSON document only.
    Json,
    /// A stream of events only.
    Events,
    /// Either.
    Both,
}

/// An `X-A2A-Timeout` that is not one positive integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BadTimeout;

// === impl Accepts ===

impl Accepts {
    /// The forms that the `Accept` headers allow; `None` if they allow neither. Without `Accept`, all are allowed. If
    /// `text/event-stream` is named and JSON is allowed only by `*/*`, the caller gets events: the SDK of A2A 0.3 sends
    /// this to ask for a stream. Elements that are not media ranges are ignored.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let lines = headers
            .get_all(ACCEPT)
            .iter()
            .filter_map(|line| line.to_str().ok());
        let ranges: Vec<_> = lines
            .flat_map(|line| line.split(','))
            .filter_map(Range::parse)
            .collect();
        if ranges.is_empty() {
            return Some(Self::Both);
        }
        let names = |main: &str, sub: &str, least: u8| {
            let mut allowed = ranges.iter().filter(|range| !range.refused);
            allowed.any(|range| range.closeness(main, sub) >= least)
        };
        let wants_events =
            names("text", "event-stream", BY_NAME) && !names("application", "json", BY_MAIN_TYPE);
        let json = ranges.iter().any(Range::is_json)
            || (!wants_events && allows(&ranges, "application", "json"));
        match (json, allows(&ranges, "text", "event-stream")) {
            (true, true) => Some(Self::Both),
            (true, false) => Some(Self::Json),
            (false, true) => Some(Self::Events),
            (false, false) => None,
        }
    }

    /// Whether the answer has to be a stream of events.
    pub(crate) fn is_events_only(self) -> bool {
        self == Self::Events
    }

    /// Whether the answer may be a stream of events.
    pub(crate) fn events(self) -> bool {
        match self {
            Self::Events | Self::Both => true,
            Self::Json => false,
        }
    }
}

/// How specifically a media range can match.
const BY_ALL: u8 = 1;
const BY_MAIN_TYPE: u8 = 2;
const BY_NAME: u8 = 3;

/// One media range of an `Accept` header.
#[derive(Debug)]
struct Range<'a> {
    main: &'a str,
    sub: &'a str,
    refused: bool,
}

// === impl Range ===

impl<'a> Range<'a> {
    fn parse(element: &'a str) -> Option<Self> {
        let mut parameters = element.split(';').map(str::trim);
        let (main, sub) = parameters.next()?.split_once('/')?;
        let refused = parameters.any(|parameter| {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            name.trim().eq_ignore_ascii_case("q") && value.trim().parse() == Ok(0.0_f32)
        });
        Some(Self { main, sub, refused })
    }

    /// Whether it names and allows JSON, or a media type that is JSON.
    fn is_json(&self) -> bool {
        !self.refused && is_json_type(self.main, self.sub)
    }

    /// How specifically it matches a media type; 0 if it does not.
    fn closeness(&self, main: &str, sub: &str) -> u8 {
        let same_main = self.main.eq_ignore_ascii_case(main);
        match (self.main, self.sub) {
            ("*", "*") => BY_ALL,
            (_, "*") if same_main => BY_MAIN_TYPE,
            (_, named) if same_main && named.eq_ignore_ascii_case(sub) => BY_NAME,
            _ => 0,
        }
    }
}

/// Whether the closest range allows the media type. Source: RFC 9110 section 12.5.1.
fn allows(ranges: &[Range<'_>], main: &str, sub: &str) -> bool {
    let closest = ranges.iter().max_by_key(|range| range.closeness(main, sub));
    closest.is_some_and(|range| range.closeness(main, sub) > 0 && !range.refused)
}

/// Whether the headers declare the body as JSON. Without a `Content-Type` it may be JSON. Source: docs/design.md §7.1.
pub(crate) fn is_json_body(headers: &HeaderMap) -> bool {
    let is_json = |(main, sub)| is_json_type(main, sub);
    !headers.contains_key(CONTENT_TYPE) || media_type(headers).is_some_and(is_json)
}

/// Whether the headers declare the body as lines of JSON, such as those of a workflow. Source:
/// docs/protocols/detection.md §1.
pub(crate) fn is_lines_body(headers: &HeaderMap) -> bool {
    const LINES: [&str; 4] = ["x-ndjson", "ndjson", "jsonl", "x-jsonlines"];
    media_type(headers).is_some_and(|(main, sub)| {
        let is_sub = |known: &&str| sub.eq_ignore_ascii_case(known);
        main.eq_ignore_ascii_case("application") && LINES.iter().any(is_sub)
    })
}

/// The two parts of the `Content-Type`.
fn media_type(headers: &HeaderMap) -> Option<(&str, &str)> {
    let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    value.split(';').next()?.trim().split_once('/')
}

/// Whether the head is that of a CloudEvent in binary mode, and not in structured mode. Source: CloudEvents 1.0.2, HTTP
/// protocol binding section 3.
pub(crate) fn is_binary_event(headers: &HeaderMap) -> bool {
    headers.contains_key("ce-specversion") && !is_structured_event(headers)
}

/// Whether the body contains CloudEvents, one or a batch, according to its type.
pub(crate) fn is_structured_event(headers: &HeaderMap) -> bool {
    const STRUCTURED: &[u8] = b"application/cloudevents";
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let start = content_type.and_then(|value| value.get(..STRUCTURED.len()));
    start.is_some_and(|start| start.eq_ignore_ascii_case(STRUCTURED))
}

fn is_json_type(main: &str, sub: &str) -> bool {
    let sub = sub.to_ascii_lowercase();
    let named = main.eq_ignore_ascii_case("application") && (sub == "json" || sub == "json-rpc");
    named || sub.ends_with("+json")
}

/// The caller's timeout, if it sends one.
pub(crate) fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, BadTimeout> {
    let mut values = headers.get_all(&TIMEOUT_HEADER).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(BadTimeout);
    }
    let digits = value.to_str().map_err(|_| BadTimeout)?.trim();
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(BadTimeout);
    }
    // Parsing fails only for a number that is too large for 64 bits, which means a long timeout.
    match digits.parse().unwrap_or(u64::MAX) {
        0 => Err(BadTimeout),
        millis => Ok(Some(Duration::from_millis(millis).min(MAX_TIMEOUT))),
    }
}

/// Reads the headers that describe the payload. A message about the sender's own connection is not for an agent.
pub(crate) fn hint(headers: &HeaderMap) -> Hint {
    let mut hint = Hint::default();
    hint.refuse_link_local = true;
    for name in &HINT_HEADERS {
        if let Some(value) = headers.get(name).and_then(|value| value.to_str().ok()) {
            hint.header(name.as_str(), value);
        }
    }
    hint
}

/// The dialect of errors about a request that cannot be read: the version of A2A that its headers announce.
pub(crate) fn dialect(headers: &HeaderMap) -> Dialect {
    dialect_of(&hint(headers))
}

/// The same, from headers that have been read.
pub(crate) fn dialect_of(hint: &Hint) -> Dialect {
    hint.dialect().unwrap_or(Dialect::JsonRpc)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let value = HeaderValue::from_str(value).unwrap();
        HeaderMap::from_iter([(http::HeaderName::from_static(name), value)])
    }

    #[test]
    fn accept_is_negotiated_by_the_closest_range() {
        let check = |accept: &str, expected| {
            assert_eq!(
                Accepts::of(&headers("accept", accept)),
                expected,
                "{accept:?}"
            );
        };
        use Accepts::{Both, Events, Json};
        assert_eq!(Accepts::of(&HeaderMap::new()), Some(Both));
        check("*/*", Some(Both));
        check("", Some(Both));
        check("nonsense", Some(Both));
        check("application/json", Some(Json));
        check("APPLICATION/JSON;charset=utf-8", Some(Json));
        check("application/*", Some(Json));
        check("application/a2a+json", Some(Json));
        check("text/event-stream", Some(Events));
        check("text/*;q=0.1", Some(Events));
        check("application/json, text/event-stream", Some(Both));
        check(
            "application/json;q=0.9, text/event-stream;q=0.001",
            Some(Both),
        );
        check("application/json, text/plain, */*", Some(Both));
        check("text/event-stream;q=0, */*", Some(Json));
        check("*/*, application/json;q=0.0", Some(Events));
        check("*/*;q=0", None);
        check("application/json ; q=0", None);
        check("text/html", None);
        check("image/png;q=1, text/html", None);
        check("text/event-stream;q=oops", Some(Events));
        check("*/*, text/event-stream", Some(Events));
        check("application/*, text/event-stream", Some(Both));
        check("application/a2a+json, */*, text/event-stream", Some(Both));
        check("text/*, */*", Some(Both));
    }

    #[test]
    fn several_accept_lines_are_one_list() {
        let mut headers = headers("accept", "text/html");
        headers.append("accept", HeaderValue::from_static("text/event-stream"));
        assert_eq!(Accepts::of(&headers), Some(Accepts::Events));
    }

    #[test]
    fn json_bodies_are_recognised_by_their_content_type() {
        let check = |value: &str, json| {
            assert_eq!(
                is_json_body(&headers("content-type", value)),
                json,
                "{value:?}"
            );
        };
        assert!(is_json_body(&HeaderMap::new()));
        check("application/json", true);
        check("Application/JSON; charset=UTF-8", true);
        check("application/a2a+json", true);
        check("application/json-rpc", true);
        check("application/vnd.x+json", true);
        check("text/plain", false);
        check("application/x-ndjson", false);
        let ndjson = headers("content-type", "Application/X-NDJSON; charset=utf-8");
        assert!(is_lines_body(&ndjson));
        assert!(!is_lines_body(&headers("content-type", "application/json")));
        check("text/json-rpc", false);
        check("json", false);
        check("", false);
    }

    #[test]
    fn the_timeout_is_a_positive_integer_of_milliseconds() {
        let check = |value: &str, expected| {
            assert_eq!(
                timeout(&headers("x-a2a-timeout", value)),
                expected,
                "{value:?}"
            );
        };
        assert_eq!(timeout(&HeaderMap::new()), Ok(None));
        check("1", Ok(Some(Duration::from_millis(1))));
        check(" 2500 ", Ok(Some(Duration::from_millis(2500))));
        check("99999999999999999999999", Ok(Some(MAX_TIMEOUT)));
        for bad in ["0", "000", "-1", "+1", "1.5", "1s", "", "ten"] {
            check(bad, Err(BadTimeout));
        }
        let mut twice = headers("x-a2a-timeout", "1");
        twice.append(&TIMEOUT_HEADER, HeaderValue::from_static("2"));
        assert_eq!(timeout(&twice), Err(BadTimeout));
    }

    #[test]
    fn errors_have_the_shape_of_the_announced_version() {
        let of = |value: &str| dialect(&headers("a2a-version", value));
        assert_eq!(dialect(&HeaderMap::new()), Dialect::JsonRpc);
        assert_eq!(of("1.0"), Dialect::A2a10);
        assert_eq!(of("0.3"), Dialect::A2a03);
        assert_eq!(of("10.0"), Dialect::JsonRpc);
        let jaf = |name, value| dialect(&headers(name, value));
        assert_eq!(jaf("x-a2a-version", "0.3.0"), Dialect::JafDoc);
        assert_eq!(jaf("x-a2a-client", "jaf-py/2"), Dialect::JafDoc);
        assert_eq!(jaf("x-a2a-client", "other"), Dialect::JsonRpc);
    }
}
