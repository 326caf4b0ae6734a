//! One dead letter: what its headers say, and the message that it was.

use std::borrow::Cow;
use std::time::SystemTime;

use a2abus_plugin::{extension, redact_secrets};
use a2abus_transports::{Header, Headers, LogRecord, Message};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::super::output::{escaped, plain};
use crate::bus::deadletter::{PREFIX, Stage, original_of};
use crate::bus::headers::PASSED_HOPS;
use crate::bus::outbound::TOO_MANY_HOPS;
use crate::calls::reply_address::is_attribute;
use crate::clock;

/// A record of a dead-letter topic.
#[derive(Debug)]
pub(super) struct Letter {
    /// `k:TOPIC/PARTITION/OFFSET` or `j:STREAM/SEQUENCE`.
    pub(super) position: String,
    record: LogRecord,
}

/// The headers that describe the failure, as members of the JSON form.
const DESCRIPTION: [&str; 10] = [
    "time",
    "binding",
    "reason",
    "stage",
    "topic",
    "partition",
    "origin",
    "unit",
    "omitted",
    "detail",
];
const CONTENT_TYPE: &str = "content-type";
const BATCH: &str = "application/cloudevents-batch+json";
const EVENT: &str = "application/cloudevents+json";

// === impl Letter ===

impl Letter {
    /// `None` if the record is no dead letter.
    pub(super) fn new(position: String, record: LogRecord) -> Option<Self> {
        let letter = Self { position, record };
        letter.reason().is_some().then_some(letter)
    }

    fn ours(&self, name: &str) -> Option<&str> {
        let mut headers = self.record.headers.iter();
        let header = headers.find(|header| {
            header
                .name
                .strip_prefix(PREFIX)
                .is_some_and(|it| it == name)
        })?;
        std::str::from_utf8(header.value.as_ref()?).ok()
    }

    pub(super) fn binding(&self) -> Option<&str> {
        self.ours("binding")
    }

    pub(super) fn reason(&self) -> Option<&str> {
        self.ours("reason")
    }

    pub(super) fn stage(&self) -> Option<&str> {
        self.ours("stage")
    }

    /// Whether it is the answer to a request.
    pub(super) fn is_answer(&self) -> bool {
        self.stage() == Some(Stage::Answer.as_str())
    }

    /// The topic to which it is resent.
    pub(super) fn topic(&self) -> Option<&str> {
        self.ours("topic")
    }

    /// The partition that the requester of an answer has asked for.
    pub(super) fn partition(&self) -> Option<u32> {
        self.ours("partition")?.parse().ok()
    }

    /// Whether its body was too large for the dead-letter topic.
    pub(super) fn is_reduced(&self) -> bool {
        self.ours("omitted").is_some()
    }

    /// Whether its count of hops is in its body, which is never changed.
    pub(super) fn has_hops_in_body(&self) -> bool {
        #[derive(Deserialize)]
        struct Event {
            #[serde(rename = "specversion")]
            _version: IgnoredAny,
            #[serde(rename = "hops")]
            _hops: IgnoredAny,
        }
        let body = self.record.body.as_deref().unwrap_or_default();
        self.reason() == Some(TOO_MANY_HOPS) && serde_json::from_slice::<Event>(body).is_ok()
    }

    /// Whether its expiry has passed and is in the body, which is never changed: the bridge would drop the message
    /// again.
    pub(super) fn has_expired_in_body(&self) -> bool {
        #[derive(Deserialize)]
        struct Event<'a> {
            #[serde(rename = "specversion")]
            _version: IgnoredAny,
            #[serde(borrow, rename = "expirytime")]
            expiry: Cow<'a, str>,
        }
        let original = original_of(&self.stored());
        let mut headers = original.headers.iter();
        // In binary mode, the body is only the data.
        if self.is_answer() || headers.any(|header| is_attribute(&header.name, "specversion")) {
            return false;
        }
        let body = self.record.body.as_deref().unwrap_or_default();
        let event = serde_json::from_slice::<Event<'_>>(body).ok();
        let expiry = event.and_then(|event| clock::parse(&event.expiry));
        expiry.is_some_and(clock::is_over)
    }

    /// Whether credentials in its body were replaced.
    pub(super) fn is_redacted(&self) -> bool {
        let body = self.record.body.clone().unwrap_or_default();
        // A payload without credentials is shared, not copied.
        redact_secrets(&body).as_ptr() != body.as_ptr()
    }

    /// When it became a dead letter.
    pub(super) fn time(&self) -> SystemTime {
        let written = || clock::since_1970(self.record.time);
        self.ours("time")
            .and_then(clock::parse)
            .unwrap_or_else(written)
    }

    /// The message as it was, for its topic.
    pub(super) fn message(&self) -> Message {
        let is_unit = self.ours("unit").is_some();
        let was_in_loop = self.reason() == Some(TOO_MANY_HOPS);
        let original = original_of(&self.stored());
        let headers = original.headers.iter();
        let kept = headers.filter(|header| is_kept(header, was_in_loop));
        let headers: Vec<Header> = kept.map(|header| whole_of(header, is_unit)).collect();
        Message {
            headers: Headers::from(headers),
            ..original
        }
    }

    /// The message in the dead-letter topic.
    fn stored(&self) -> Message {
        let LogRecord {
            key, headers, body, ..
        } = &self.record;
        // A stream stores a null body as an empty one; a header of the dead letter tells them apart.
        let is_in_stream = self.position.starts_with("j:");
        Message {
            key: key.clone(),
            headers: headers.clone(),
            body: body.clone().or_else(|| is_in_stream.then(Bytes::new)),
        }
    }

    /// One line for a person.
    pub(super) fn line(&self) -> String {
        let own = |name| plain(self.ours(name).unwrap_or("-"));
        format!(
            "{}  {}  {}  {}  {}  {}: {}",
            clock::rfc3339(self.time()),
            own("binding"),
            own("reason"),
            own("stage"),
            own("topic"),
            plain(&self.position),
            own("detail"),
        )
    }

    /// The failure as JSON.
    pub(super) fn summary(&self) -> Value {
        let mut members = Map::new();
        members.insert("position".to_owned(), json!(self.position));
        for name in DESCRIPTION {
            if let Some(value) = self.ours(name) {
                members.insert(name.to_owned(), json!(value));
            }
        }
        Value::Object(members)
    }

    /// The failure and the message as JSON.
    pub(super) fn whole(&self) -> Value {
        let message = self.message();
        let mut whole = self.summary();
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        whole["key"] = json!(message.key.as_ref().map(text));
        let headers = message.headers.iter();
        let headers =
            headers.map(|header| json!([header.name.as_str(), header.value.as_ref().map(text)]));
        whole["headers"] = headers.collect();
        let body = message.body.unwrap_or_default();
        match std::str::from_utf8(&body) {
            Ok(body) => whole["body"] = json!(body),
            Err(_) => whole["body_base64"] = json!(STANDARD.encode(&body)),
        }
        whole
    }

    /// All of it for a person.
    pub(super) fn lines(&self) -> Vec<String> {
        let record = &self.record;
        let mut lines = vec![format!("position: {}", plain(&self.position))];
        let key = original_of(&self.stored()).key;
        lines.extend(key.iter().map(|key| format!("key: {}", shown(key))));
        lines.extend(record.headers.iter().map(|header| {
            let value = header
                .value
                .as_ref()
                .map_or_else(|| "null".to_owned(), |value| shown(value));
            format!("{}: {value}", escaped(&header.name))
        }));
        lines.push(String::new());
        let body = record.body.as_deref().unwrap_or_default();
        match std::str::from_utf8(body) {
            Ok(body) => lines.extend(body.split('\n').map(escaped)),
            Err(_) => {
                let note = "bytes that are not UTF-8 text (--json prints them as base64):";
                lines.push(format!("{} {note}", body.len()));
                lines.push(shown(body));
            }
        }
        lines
    }
}

/// Bytes as text, with control characters and other bytes escaped.
fn shown(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => escaped(text),
        Err(_) => bytes.escape_ascii().to_string(),
    }
}

/// Whether a header of the message is still right. A message with too many hops was in a loop: it is resent without their
/// count, because the loop has been removed.
fn is_kept(header: &Header, was_in_loop: bool) -> bool {
    let name = header.name.as_str();
    let counts_hops = is_attribute(name, extension::HOPS) || name.eq_ignore_ascii_case(PASSED_HOPS);
    if was_in_loop && counts_hops {
        return false;
    }
    let is_expiry = is_attribute(name, extension::EXPIRY_TIME);
    let value = header
        .value
        .as_deref()
        .and_then(|it| std::str::from_utf8(it).ok());
    let is_over = is_expiry && value.and_then(clock::parse).is_some_and(clock::is_over);
    !name.eq_ignore_ascii_case("Nats-Msg-Id") && !is_over
}

/// The header of the whole message; one element of a batch of CloudEvents is a CloudEvent.
fn whole_of(header: &Header, is_unit: bool) -> Header {
    let is_batch = header
        .value
        .as_ref()
        .is_some_and(|it| it.starts_with(BATCH.as_bytes()));
    let value = match is_unit && is_batch && header.name.eq_ignore_ascii_case(CONTENT_TYPE) {
        true => Some(Bytes::from_static(EVENT.as_bytes())),
        false => header.value.clone(),
    };
    Header {
        name: header.name.clone(),
        value,
    }
}

#[cfg(test)]
mod tests {
    use a2abus_transports::LogPosition;

    use super::*;

    fn letter(headers: &[(&str, &str)]) -> Letter {
        let mut all = Headers::new();
        for (name, value) in headers {
            all.push(*name, value.as_bytes().to_vec());
        }
        let record = LogRecord {
            position: LogPosition {
                partition: 0,
                offset: 7,
            },
            time: 0,
            topic: None,
            key: Some("k".into()),
            headers: all,
            body: Some("{\"a\":\u{1}1}\nsecond".into()),
        };
        Letter::new("k:dlq/0/7".to_owned(), record).expect("a dead letter")
    }

    #[test]
    fn a_message_is_resent_without_what_the_bridge_added_and_what_is_over() {
        let own = [
            ("bus-dlq-reason", "no_route"),
            ("bus-dlq-unit", "1"),
            ("nats-msg-id", "1"),
            ("ce_expirytime", "2020-01-01T00:00:00Z"),
            ("Ce-ExpiryTime", "2020-01-01T00:00:00Z"),
            ("ce-expirytime", "2999-01-01T00:00:00Z"),
            (
                "content-type",
                "application/cloudevents-batch+json; charset=utf-8",
            ),
            ("traceparent", "t"),
        ];
        let message = letter(&own).message();
        let left: Vec<_> = message.headers.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(left, ["ce-expirytime", "content-type", "traceparent"]);
        let content_type = message.headers.get("content-type").unwrap();
        assert_eq!(content_type, EVENT);
        assert_eq!(message.key.as_deref(), Some(b"k".as_slice()));
        // The whole message is still a batch.
        let whole = [("bus-dlq-reason", "no_route"), ("content-type", BATCH)];
        let message = letter(&whole).message();
        assert_eq!(message.headers.get("content-type").unwrap(), BATCH);
    }

    #[test]
    fn a_message_of_a_loop_that_is_gone_begins_to_count_again() {
        let hops = [("ce_hops", "8"), ("CE-Hops", "8"), ("bus-hops", "8")];
        let of = |reason| letter(&[&[("bus-dlq-reason", reason)], &hops[..]].concat());
        assert_eq!(of("too_many_hops").message().headers.len(), 0);
        assert_eq!(of("no_route").message().headers.len(), 3);
        assert!(!of("too_many_hops").has_hops_in_body());
        let mut structured = of("too_many_hops");
        structured.record.body = Some(r#"{"specversion":"1.0","hops":9}"#.into());
        assert!(structured.has_hops_in_body());
    }

    #[test]
    fn what_a_stream_cannot_hold_comes_from_the_headers_of_the_bridge() {
        let packed = |name: &str, value: &str| {
            let (name, value) = (STANDARD.encode(name), STANDARD.encode(value));
            format!("{name} {value}")
        };
        let (expired, kept) = (
            packed("ce_expirytime", "2020-01-01T00:00:00Z"),
            packed("\u{e9}", "\n"),
        );
        let key = STANDARD.encode("own");
        let own = [
            ("bus-dlq-reason", "no_route"),
            ("bus-dlq-key", key.as_str()),
            ("bus-dlq-header", expired.as_str()),
            ("bus-dlq-header", kept.as_str()),
        ];
        let mut letter = letter(&own);
        letter.position = "j:dlq/7".to_owned();
        (letter.record.key, letter.record.body) = (None, None);
        let message = letter.message();
        assert_eq!(message.key.as_deref(), Some(&b"own"[..]));
        assert_eq!(message.headers.len(), 1);
        assert_eq!(message.headers.get("\u{e9}").unwrap(), "\n");
        assert_eq!(message.body.as_deref(), Some(&b""[..]), "it is empty");
        assert!(letter.lines().contains(&"key: own".to_owned()));
        letter.record.headers.push("bus-dlq-null", "true");
        assert_eq!(letter.message().body, None);
    }

    #[test]
    fn what_a_person_reads_hides_nothing() {
        let mut letter = letter(&[("bus-dlq-reason", "not_json")]);
        letter.record.body = Some("\0\0\0\u{1}*{\n  \"a\": 1}".into());
        assert_eq!(letter.lines()[4..], ["\\0\\0\\0\\u{1}*{", "  \"a\": 1}"]);
        letter.record.body = Some(Bytes::from_static(b"\x1f\x8b\n"));
        let note = "3 bytes that are not UTF-8 text (--json prints them as base64):";
        assert_eq!(letter.lines()[4..], [note, "\\x1f\\x8b\\n"]);
    }

    #[test]
    fn what_a_stranger_wrote_does_not_act_on_a_terminal() {
        let letter = letter(&[
            ("bus-dlq-reason", "no_route"),
            ("bus-dlq-detail", "a\u{1b}[2J\nb"),
            ("x\u{1b}", "\u{202e}y"),
        ]);
        let shown = [letter.lines(), vec![letter.line()]].concat();
        let acts = |c: char| c.is_control() || c == '\u{202e}';
        assert!(!shown.iter().any(|line| line.contains(acts)), "{shown:?}");
        assert!(
            letter.line().ends_with("k:dlq/0/7: a [2J b"),
            "{}",
            letter.line()
        );
        assert_eq!(letter.whole()["body"], "{\"a\":\u{1}1}\nsecond");
    }
}
