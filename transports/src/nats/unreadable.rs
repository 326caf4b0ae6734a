//! Stored messages that the NATS client cannot read.
//!
//! ```text
//! malformed message ──> client closes its connection ──> reconnect ──> unreadable: MSG.GET (JSON) ──> read and settled
//!                   └─> client panics ──> another client ──┘
//! ```
//! A server accepts any bytes as headers and as a subject, but the client closes its connection when they break the
//! format, and panics at a carriage return within the value of a header (nats-io/nats.rs, pull request 1612). JetStream
//! would deliver the message again after each reconnect. So after a lost connection, or with another client in place of
//! one that has panicked, the reader asks the stream for the messages that were delivered and not acknowledged, and takes
//! the malformed ones from its answer. The reader of a log asks whether its next record is malformed, and skips it.

use std::collections::{BTreeSet, HashSet};
use std::str::FromStr as _;

use a2abus_plugin::Text;
use async_nats::{HeaderName, StatusCode, Subject};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use super::api::{Api, api_error};
use super::consumer::{ConsumerRef, filter_of};
use super::core::topic_of;
use super::headers::is_own;
use super::ledger::Info;
use super::subjects::covers;
use crate::error::TransportError;
use crate::message::{Headers, Message, Topic};

/// A message of a stream, as the stream stores it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) subject: String,
    headers: Bytes,
    body: Bytes,
    /// Where the message is settled.
    pub(super) reply: Subject,
    pub(super) info: Info,
}

/// The result of a search.
#[derive(Debug)]
pub(super) struct Found {
    /// Everything up to this sequence is acknowledged.
    pub(super) settled: u64,
    /// The malformed messages after it that were delivered, and are not known.
    pub(super) found: Vec<Stored>,
}

/// The most messages that one search looks at.
const MOST: usize = 16_384;
/// How many are requested at a time.
const AT_ONCE: usize = 16;
/// The `err_code` for a sequence without a message.
const NO_MESSAGE: u32 = 10_037;

/// The sequence of the first message of a stream from `from` on, if the client cannot read that message, or takes it for
/// a status of its own request.
///
/// # Errors
/// When JetStream does not answer, or the user may not ask.
pub(super) async fn next_unreadable(
    api: &Api,
    stream: &str,
    from: u64,
) -> Result<Option<u64>, TransportError> {
    let request = format!("STREAM.MSG.GET.{stream}");
    let first = json!({ "seq": from, "next_by_subj": ">" });
    let answer = match api.ask(&request, &first).await? {
        Ok(answer) => answer,
        Err(error) if error.err_code == NO_MESSAGE => return Ok(None),
        Err(error) => return Err(api_error(&request, error)),
    };
    let message = &answer["message"];
    let sequence = message["seq"].as_u64().filter(|sequence| *sequence >= from);
    let stored =
        sequence.and_then(|sequence| Stored::read(message, sequence, Subject::from_static("")));
    let unreadable = stored.filter(|stored| !stored.is_readable() || stored.has_status());
    Ok(unreadable.map(|stored| stored.info.sequence))
}

// === impl ConsumerRef ===

impl ConsumerRef {
    /// The malformed messages that were delivered and not acknowledged. The `known` ones were read.
    ///
    /// # Errors
    /// When JetStream does not answer, or the user may not ask.
    pub(super) async fn unreadable(self, known: HashSet<u64>) -> Result<Found, TransportError> {
        let Some(info) = self.api.consumer_info(&self.stream, &self.name).await? else {
            // It has delivered nothing.
            return Ok(Found {
                settled: 0,
                found: Vec::new(),
            });
        };
        let number = |of: &str, name: &str| info[of][name].as_u64().unwrap_or_default();
        let settled = number("ack_floor", "stream_seq");
        let delivered = number("delivered", "stream_seq");
        let last = number("delivered", "consumer_seq");
        let is_pending = info["num_ack_pending"] != 0;
        let pending = unknown(settled, delivered, &known).filter(|_| is_pending);
        let asked = stream::iter(pending).map(|sequence| self.stored(sequence, last));
        let mut answers = asked.buffered(AT_ONCE);
        let filter = filter_of(&info["config"]);
        let mut found = Vec::new();
        while let Some(answer) = answers.next().await {
            found.extend(answer?.filter(|stored| stored.passes(&filter) && !stored.is_readable()));
        }
        Ok(Found { settled, found })
    }

    /// A message of the stream, to be settled as one that the consumer delivered. `last` is the consumer's own sequence
    /// of its last delivery.
    async fn stored(&self, sequence: u64, last: u64) -> Result<Option<Stored>, TransportError> {
        let request = format!("STREAM.MSG.GET.{}", self.stream);
        let answer = self.api.ask(&request, &json!({ "seq": sequence })).await?;
        match answer {
            Ok(answer) => Ok(self.read(&answer["message"], sequence, last)),
            Err(error) if error.err_code == NO_MESSAGE => Ok(None),
            Err(error) => Err(api_error(&request, error)),
        }
    }

    fn read(&self, message: &Value, sequence: u64, last: u64) -> Option<Stored> {
        let (stream, name) = (&self.stream, &self.name);
        // The server finds a delivery by its sequence in the stream. It ignores a -NAK whose consumer sequence is
        // acknowledged or was never used; that of the last delivery is neither. Source: NATS ADR-15, and
        // `processNak` of nats-server 2.15.
        let reply = format!("$JS.ACK.{stream}.{name}.1.{sequence}.{last}.0.0");
        Stored::read(message, sequence, reply.into())
    }
}

/// The sequences after the settled ones, without the known ones. Some of them may be settled too.
fn unknown(settled: u64, delivered: u64, known: &HashSet<u64>) -> impl Iterator<Item = u64> {
    let sequences = settled + 1..=delivered;
    let unknown = sequences.filter(move |sequence| !known.contains(sequence));
    unknown.take(MOST)
}

// === impl Stored ===

impl Stored {
    /// A message, from the answer of the API. `reply` is where it is settled.
    fn read(message: &Value, sequence: u64, reply: Subject) -> Option<Self> {
        let bytes = |name: &str| {
            let text = message[name].as_str().unwrap_or_default();
            STANDARD.decode(text).map(Bytes::from).ok()
        };
        let subject = message["subject"].as_str()?;
        let time = humantime::parse_rfc3339(message["time"].as_str()?).ok()?;
        let time = time.duration_since(std::time::UNIX_EPOCH).ok()?;
        Some(Self {
            subject: subject.to_owned(),
            headers: bytes("hdrs")?,
            body: bytes("data")?,
            reply,
            info: Info {
                sequence,
                attempt: 1,
                time: i64::try_from(time.as_millis()).ok(),
            },
        })
    }

    /// The size that counts against the budget.
    pub(super) fn size_bytes(&self) -> usize {
        self.headers.len() + self.body.len()
    }

    /// Whether a filter of a consumer, which is empty for all subjects, accepts it.
    fn passes(&self, filter: &BTreeSet<&str>) -> bool {
        filter.is_empty() || filter.iter().any(|pattern| covers(pattern, &self.subject))
    }

    /// Whether the client takes it for a status of its own request for messages, and not for one of them.
    fn has_status(&self) -> bool {
        let line = self.headers.split(|byte| *byte == b'\n').next();
        let status = line.and_then(|line| line.strip_prefix(b"NATS/1.0"));
        status.is_some_and(|status| !status.trim_ascii().is_empty())
    }

    /// Whether the client can read it. This mirrors `Connection::try_read_op` of async-nats 0.51, which divides the line
    /// of a message with headers at every white space of Unicode, and that of one without headers only at spaces.
    fn is_readable(&self) -> bool {
        // The answer of the stream has this character in place of bytes that are not UTF-8.
        if self.subject.contains(char::REPLACEMENT_CHARACTER) {
            return false;
        }
        if self.headers.is_empty() {
            return true;
        }
        if self.subject.split_whitespace().count() != 1 {
            return false;
        }
        let Ok(text) = std::str::from_utf8(&self.headers) else {
            return false;
        };
        let mut lines = text.lines().peekable();
        let status = lines.next().and_then(|line| line.strip_prefix("NATS/1.0"));
        let Some(status) = status.map(str::trim) else {
            return false;
        };
        let code = status.split(' ').next().unwrap_or_default().trim();
        if !code.is_empty() && StatusCode::from_str(code).is_err() {
            return false;
        }
        while let Some(line) = lines.next() {
            if line.is_empty() {
                continue;
            }
            let Some((name, value)) = line.split_once(':') else {
                return false;
            };
            // Lines that begin with white space continue the value of the header before them, and only that.
            let mut value = value.trim_start().to_owned();
            while let Some(more) = lines.next_if(|line| line.starts_with(char::is_whitespace)) {
                value.push_str(more);
            }
            // The client panics at a carriage return that ends no line.
            if HeaderName::from_str(name).is_err() || value.trim_end().contains('\r') {
                return false;
            }
        }
        true
    }

    /// The message, with every header that has a name. `None` never happens.
    pub(super) fn message(&self) -> Option<(Topic, Message)> {
        let mut headers = Headers::new();
        for line in self.headers.split(|byte| *byte == b'\n').skip(1) {
            let Some(colon) = line.iter().position(|byte| *byte == b':') else {
                continue;
            };
            let (name, value) = line.split_at(colon);
            let name = String::from_utf8_lossy(name.trim_ascii());
            let value = value[1..].trim_ascii();
            if !name.is_empty() && !is_own(&name) {
                headers.push(Text::from(&*name), self.headers.slice_ref(value));
            }
        }
        let topic = topic_of(&self.subject, &mut headers)?;
        Some((
            topic,
            Message {
                key: None,
                headers,
                body: Some(self.body.clone()),
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(subject: &str, headers: &[u8]) -> Stored {
        Stored {
            subject: subject.to_owned(),
            headers: Bytes::copy_from_slice(headers),
            body: Bytes::from_static(b"body"),
            reply: "r".into(),
            info: Info {
                sequence: 1,
                attempt: 1,
                time: None,
            },
        }
    }

    #[test]
    fn headers_that_begin_with_a_status_are_recognised() {
        for (headers, has_status) in [
            (&b""[..], false),
            (b"NATS/1.0\r\n\r\n", false),
            (b"NATS/1.0\r\na: 404\r\n\r\n", false),
            (b"NATS/1.0 404\r\n\r\n", true),
            (b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", true),
        ] {
            let stored = stored("a", headers);
            assert_eq!(stored.has_status(), has_status, "{headers:?}");
        }
    }

    #[test]
    fn what_the_client_cannot_read_is_recognised() {
        for (headers, is_readable) in [
            (&b""[..], true),
            (b"NATS/1.0\r\na: b\r\n\r\n", true),
            (b"NATS/1.0\r\na: b\r\n c\r\n\r\n", true),
            (b"NATS/1.0\r\na: b\r\n c: d\r\n \r\n\r\nb: c\r\n\r\n", true),
            (b"NATS/1.0\r\na: b\r\r\n\r\n", true),
            (b"NATS/1.0 404 No Messages\r\n\r\n", true),
            (b"NATS/1.0 404\t No Messages\r\n\r\n", true),
            (b"NATS/1.0\r\n x\r\n\r\n", false),
            (b"NATS/1.0\r\n x: a\r\n\r\n", false),
            (b"NATS/1.0\r\na: b\r\n\r\n c\r\n\r\n", false),
            (b"NATS/1.0\r\na: b\rc\r\n\r\n", false),
            (b"NATS/1.0\r\nx-file: caf\xe9.txt\r\n\r\n", false),
            (b"NATS/1.0\r\n\xe9: a\r\n\r\n", false),
            (b"NATS/1.0\r\na b: c\r\n\r\n", false),
            (b"NATS/1.0\r\nno colon\r\n\r\n", false),
            (b"NATS/2.0\r\n\r\n", false),
            (b"\n", false),
            (b"NATS/1.0 abc\r\n\r\n", false),
        ] {
            let found = stored("a", headers).is_readable();
            assert_eq!(found, is_readable, "{}", String::from_utf8_lossy(headers));
        }
        assert!(!stored("a.\u{fffd}", b"").is_readable());
        assert!(!stored("a\u{3000}b", b"NATS/1.0\r\n\r\n").is_readable());
        assert!(stored("ab\u{3000}", b"NATS/1.0\r\n\r\n").is_readable());
        assert!(stored("a\u{3000}b", b"").is_readable());
    }

    #[test]
    fn known_messages_do_not_use_up_a_search() {
        let most = MOST as u64;
        let known: HashSet<u64> = (1..=most).collect();
        let found: Vec<u64> = unknown(0, most + 2, &known).collect();
        assert_eq!(found, [most + 1, most + 2]);
        let all = unknown(5, 2 * most, &HashSet::new()).count();
        assert_eq!(all, MOST);
    }

    #[test]
    fn every_header_with_a_name_is_kept() {
        let message = stored(
            "a",
            b"NATS/1.0\r\nx-file: caf\xe9.txt\r\nno colon\r\nb:c\r\n\r\n",
        );
        let (topic, message) = message.message().unwrap();
        assert_eq!(topic.as_str(), "a");
        let headers: Vec<_> = message.headers.iter().collect();
        assert_eq!(headers.len(), 2);
        assert_eq!(headers[0].name.as_str(), "x-file");
        assert_eq!(headers[0].value.as_deref(), Some(&b"caf\xe9.txt"[..]));
        assert_eq!(message.body.as_deref(), Some(&b"body"[..]));
        let (topic, _) = stored("a.\u{fffd}", b"").message().unwrap();
        assert_eq!(topic.as_str(), "a._");
    }
}
