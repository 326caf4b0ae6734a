//! The headers of a message that its copies keep.
//!
//! A header may instruct the readers of the copy, so copies keep only the headers on a list, such as a trace context.
//! The headers of CloudEvents, of the transports and of the bridge are never copied; each copy gets new ones. Source:
//! docs/design.md §T5.

use a2abus_plugin::Text;
use a2abus_transports::content_mode::{self, ProtocolBinding};
use a2abus_transports::{Header, Message};
use bytes::Bytes;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use http::HeaderMap;

use crate::names::Pattern;

/// The headers that are kept, by the patterns of their names.
#[derive(Debug, Clone)]
pub(crate) struct PassedHeaders {
    /// Patterns without a wildcard.
    names: Vec<Text>,
    /// The text before the only `*`, which is the last character of its pattern.
    prefixes: Vec<Text>,
    /// All others, which are much slower to match.
    globs: GlobSet,
}

/// The header that counts the routes that a payload of an unknown format has passed.
pub(crate) const PASSED_HOPS: &str = "bus-hops";
/// The header that a request may have several times.
const TRACE_STATE: &str = "tracestate";
/// The prefixes of headers that are never kept, in any case: those of CloudEvents on each transport, of Spring for
/// Kafka, of the NATS server, and of the bridge.
const RESERVED: [&str; 5] = [ATTRIBUTE, ATTRIBUTE_ON_NATS, "kafka_", "nats-", "bus-"];
/// The prefix of the attributes of CloudEvents on Kafka and in memory, and that on NATS and HTTP.
const ATTRIBUTE: &str = "ce_";
const ATTRIBUTE_ON_NATS: &str = "ce-";

/// Names of the headers that Spring's `ReplyingKafkaTemplate` and `@SendTo` use. Source: Spring for Apache Kafka.
pub(crate) mod spring {
    /// The topic of the answer.
    pub(crate) const REPLY_TOPIC: &str = "kafka_replyTopic";
    /// The partition of the answer, 4 bytes, big endian.
    pub(crate) const REPLY_PARTITION: &str = "kafka_replyPartition";
    /// The header that the answer must repeat unchanged.
    pub(crate) const CORRELATION_ID: &str = "kafka_correlationId";
}

/// Maximum number of headers that a message keeps.
const MAX_HEADERS: usize = 64;
/// Maximum number of bytes in their names and values.
const MAX_BYTES: usize = 16 << 10;

// === impl PassedHeaders ===

impl PassedHeaders {
    /// Headers whose names match any of these, in any case.
    ///
    /// # Errors
    /// When a pattern is not a valid glob.
    pub(crate) fn new<'a>(
        patterns: impl IntoIterator<Item = &'a Pattern>,
    ) -> Result<Self, globset::Error> {
        let (mut names, mut prefixes) = (Vec::new(), Vec::new());
        let mut globs = GlobSetBuilder::new();
        for pattern in patterns {
            if !pattern.is_glob() {
                names.push(pattern.text().clone());
            } else if let Some(prefix) = pattern.as_prefix() {
                prefixes.push(Text::from(prefix));
            } else {
                let mut glob = GlobBuilder::new(pattern.text());
                globs.add(glob.case_insensitive(true).build()?);
            }
        }
        Ok(Self {
            names,
            prefixes,
            globs: globs.build()?,
        })
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.prefixes.is_empty() && self.globs.is_empty()
    }

    /// The kept headers of a message, in their order, up to the limits.
    #[must_use]
    pub(crate) fn of(&self, binding: ProtocolBinding, message: &Message) -> Vec<Header> {
        if self.is_empty() {
            return Vec::new();
        }
        let foreign = content_mode::foreign_headers(binding, message);
        bounded(foreign.filter(|header| self.passes(&header.name)).cloned())
    }

    /// The kept headers of an HTTP request.
    #[must_use]
    pub(crate) fn of_request(&self, headers: &HeaderMap) -> Vec<Header> {
        let passing = headers
            .iter()
            .filter(|(name, _)| *name != http::header::CONTENT_TYPE && self.passes(name.as_str()));
        bounded(passing.map(|(name, value)| Header {
            name: Text::from(name.as_str()),
            value: Some(Bytes::copy_from_slice(value.as_bytes())),
        }))
    }

    fn passes(&self, name: &str) -> bool {
        let is_listed = self.names.iter().any(|it| it.eq_ignore_ascii_case(name))
            || self.prefixes.iter().any(|prefix| begins_with(name, prefix))
            || (!self.globs.is_empty() && self.globs.is_match(name));
        is_listed && !RESERVED.iter().any(|prefix| begins_with(name, prefix))
    }
}

/// Whether the name of a header begins with a prefix, in any case.
fn begins_with(name: &str, prefix: &str) -> bool {
    let start = name.get(..prefix.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// Whether a header is an attribute of CloudEvents on any bus.
#[must_use]
pub(crate) fn is_attribute(name: &str) -> bool {
    begins_with(name, ATTRIBUTE) || begins_with(name, ATTRIBUTE_ON_NATS)
}

/// Whether a header is an attribute of CloudEvents on a bus of this kind.
#[must_use]
pub(crate) fn is_attribute_on(binding: ProtocolBinding, name: &str) -> bool {
    let prefix = match binding {
        ProtocolBinding::Kafka | ProtocolBinding::Memory => ATTRIBUTE,
        ProtocolBinding::Nats | ProtocolBinding::Http => ATTRIBUTE_ON_NATS,
    };
    begins_with(name, prefix)
}

/// The headers up to the limits. Several `tracestate` headers become one list. Source: W3C Trace Context, section
/// 3.3.1.
fn bounded(headers: impl Iterator<Item = Header>) -> Vec<Header> {
    let mut left = MAX_BYTES;
    let mut passed = Vec::new();
    for header in headers {
        let size = header.name.len() + header.value.as_ref().map_or(0, Bytes::len);
        let is_state = header.name.eq_ignore_ascii_case(TRACE_STATE);
        if size > left || passed.len() == MAX_HEADERS {
            tracing::debug!(header = %header.name, size, "dropped a header: too many headers, or too large");
            continue;
        }
        left -= size;
        let mut earlier = passed.iter_mut();
        match earlier.find(|it: &&mut Header| is_state && it.name.eq_ignore_ascii_case(TRACE_STATE))
        {
            Some(list) => join(list, header),
            None => passed.push(header),
        }
    }
    passed
}

fn join(list: &mut Header, next: Header) {
    list.value = match (list.value.take(), next.value) {
        (Some(first), Some(next)) => Some([&first[..], b",", &next[..]].concat().into()),
        (first, next) => first.or(next),
    };
}

/// Whether a bus can carry a header: NATS and HTTP accept only one line of visible ASCII, and no null.
#[must_use]
pub(crate) fn carries(binding: ProtocolBinding, header: &Header) -> bool {
    let is_visible = |bytes: &[u8]| bytes.iter().all(|b| matches!(b, b' '..=b'~' | b'\t'));
    match binding {
        ProtocolBinding::Kafka | ProtocolBinding::Memory => true,
        ProtocolBinding::Nats | ProtocolBinding::Http => {
            let name = header.name.as_bytes();
            let is_token = name.iter().all(|b| matches!(b, b'!'..=b'~') && *b != b':');
            is_token && !name.is_empty() && header.value.as_deref().is_some_and(is_visible)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TextFormat as _;
    use crate::names::TRACE_HEADERS;

    fn passed(patterns: &[&str], headers: &[(&str, &str)]) -> Vec<String> {
        let patterns: Vec<_> = patterns
            .iter()
            .map(|text| Pattern::read(text).unwrap())
            .collect();
        let mut message = Message::plain("x");
        for (name, value) in headers {
            let value = Bytes::copy_from_slice(value.as_bytes());
            message.headers.push(*name, value);
        }
        let passed = PassedHeaders::new(&patterns).unwrap();
        let passed = passed.of(ProtocolBinding::Kafka, &message);
        passed.into_iter().map(|h| h.name.to_string()).collect()
    }

    #[test]
    fn headers_are_copied_by_name_in_any_case() {
        let headers = [("TraceParent", "a"), ("x-b3-spanid", "b"), ("tenant", "c")];
        assert_eq!(
            passed(&TRACE_HEADERS, &headers),
            ["TraceParent", "x-b3-spanid"]
        );
        assert_eq!(passed(&["tenant", "[x"], &headers), ["tenant"]);
        assert!(passed(&[], &headers).is_empty());
    }

    #[test]
    fn patterns_match_names_in_any_case() {
        let names = [
            "X-B3-TraceId",
            "x-b3-spanid",
            "x-b3-",
            "X-b3",
            "x-93-y",
            "ab",
            "aXb",
            "a*b",
            "abc",
        ];
        let headers = names.map(|name| (name, "x"));
        let cases: [(&str, &[&str]); 9] = [
            ("X-B3-*", &["X-B3-TraceId", "x-b3-spanid", "x-b3-"]),
            (
                "x-?3-*",
                &["X-B3-TraceId", "x-b3-spanid", "x-b3-", "x-93-y"],
            ),
            ("x-[a-c]3-*", &["X-B3-TraceId", "x-b3-spanid", "x-b3-"]),
            ("*-SpanId", &["x-b3-spanid"]),
            ("a*b", &["ab", "aXb", "a*b"]),
            ("A?B", &["aXb", "a*b"]),
            ("a*b*", &["ab", "aXb", "a*b", "abc"]),
            (
                "{ab,x-b}*",
                &["X-B3-TraceId", "x-b3-spanid", "x-b3-", "X-b3", "ab", "abc"],
            ),
            ("*", &names),
        ];
        for (pattern, expected) in cases {
            assert_eq!(passed(&[pattern], &headers), expected, "{pattern}");
        }
    }

    #[test]
    fn several_tracestate_headers_become_one_list() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("b3", "1"),
            ("tracestate", "a=1,b=2"),
            ("b3", "2"),
            ("tracestate", "c=3"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        let patterns = TRACE_HEADERS.map(|text| Pattern::read(text).unwrap());
        let passed = PassedHeaders::new(&patterns).unwrap().of_request(&headers);
        let passed: Vec<_> = passed
            .iter()
            .map(|header| (header.name.as_str(), header.value.as_deref().unwrap()))
            .collect();
        let expected: [(_, &[u8]); 3] =
            [("b3", b"1"), ("b3", b"2"), ("tracestate", b"a=1,b=2,c=3")];
        assert_eq!(passed, expected);
        let mut message = Message::plain("x");
        message
            .headers
            .push("Tracestate", Bytes::from_static(b"a=1"));
        message
            .headers
            .push("tracestate", Bytes::from_static(b"b=2"));
        let passed = PassedHeaders::new(&patterns)
            .unwrap()
            .of(ProtocolBinding::Kafka, &message);
        assert_eq!(passed.len(), 1);
        assert_eq!(passed[0].value.as_deref(), Some(&b"a=1,b=2"[..]));
    }

    #[test]
    fn reserved_headers_are_never_copied() {
        let reserved = [
            "ce_id",
            "CE-Id",
            "content-type",
            "Content-Type",
            "kafka_replyTopic",
            "Nats-Rollup",
            "nats-status",
            "bus-dlq-reason",
            "bus-hops",
        ];
        let headers = reserved.map(|name| (name, "x"));
        assert!(passed(&["*"], &headers).is_empty());
        assert_eq!(passed(&["*"], &[("é", "x"), ("b", "x")]), ["é", "b"]);
    }

    #[test]
    fn attributes_are_known_on_each_kind_of_bus() {
        for (name, anywhere, on_kafka, on_nats) in [
            ("ce_id", true, true, false),
            ("CE-Id", true, false, true),
            ("ce", false, false, false),
            ("x-ce_id", false, false, false),
        ] {
            assert_eq!(is_attribute(name), anywhere, "{name}");
            let on = |binding| is_attribute_on(binding, name);
            assert_eq!(on(ProtocolBinding::Kafka), on_kafka, "{name}");
            assert_eq!(on(ProtocolBinding::Nats), on_nats, "{name}");
        }
    }

    #[test]
    fn headers_beyond_the_limits_are_dropped() {
        let large = "x".repeat(MAX_BYTES);
        assert_eq!(passed(&["*"], &[("a", &large), ("b", "x")]), ["b"]);
        let many = [("a", "x"); MAX_HEADERS + 1];
        assert_eq!(passed(&["*"], &many).len(), MAX_HEADERS);
    }

    #[test]
    fn nats_carries_lines_of_visible_ascii() {
        let header = |name: &'static str, value: Option<&'static str>| Header {
            name: name.into(),
            value: value.map(Bytes::from),
        };
        for (name, value, expected) in [
            ("a", Some("b c"), true),
            ("a", None, false),
            ("a", Some("b\r\nNats-Rollup: all"), false),
            ("a", Some("é"), false),
            ("a b", Some("c"), false),
            ("a\tb", Some("c"), false),
            ("", Some("c"), false),
        ] {
            let header = header(name, value);
            assert_eq!(
                carries(ProtocolBinding::Nats, &header),
                expected,
                "{header:?}"
            );
            assert!(carries(ProtocolBinding::Kafka, &header));
        }
    }
}
