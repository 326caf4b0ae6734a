//! Stored messages that the NATS client cannot read.
//!
//! ```text
//! malformed message ──> client closes its connection ──> reconnect ──> unreadable: MSG.GET (JSON) ──> read and settled
//! ```
//! A server accepts any bytes as headers and as a subject, but the client closes its connection when they break the
//! format. JetStream would deliver the message again after each reconnect. So after a lost connection the reader asks the
//! stream for the messages that were delivered and not acknowledged, and takes the malformed ones from its answer.

use std::collections::HashSet;
use std::str::FromStr as _;

use a2abus_plugin::Text;
use async_nats::{HeaderName, StatusCode, Subject};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use super::api::api_error;
use super::consumer::ConsumerRef;
use super::core::topic_of;
use super::headers::is_own;
use super::ledger::Info;
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

// === impl ConsumerRef ===

impl ConsumerRef {
    /// The malformed messages that were delivered and not acknowledged. The `known` ones were read.
    ///
    /// # Errors
    /// When JetStream does not answer, or the user may not ask.
    pub(super) async fn unreadable(self, known: HashSet<u64>) -> Result<Found, TransportError> {
        let request = format!("CONSUMER.INFO.{}.{}", self.stream, self.name);
        let info = self.api.command(&request, &json!({})).await?;
        let sequence = |of: &str| info[of]["stream_seq"].as_u64().unwrap_or_default();
        let (settled, delivered) = (sequence("ack_floor"), sequence("delivered"));
        let is_pending = info["num_ack_pending"] != 0;
        let pending = (settled + 1..=delivered).take(MOST);
        let pending = pending.filter(|sequence| is_pending && !known.contains(sequence));
        let asked = stream::iter(pending).map(|sequence| self.stored(sequence));
        let mut answers = asked.buffered(AT_ONCE);
        let mut found = Vec::new();
        while let Some(answer) = answers.next().await {
            found.extend(answer?.filter(|stored| !stored.is_readable() && self.reads(stored)));
        }
        Ok(Found { settled, found })
    }

    async fn stored(&self, sequence: u64) -> Result<Option<Stored>, TransportError> {
        let request = format!("STREAM.MSG.GET.{}", self.stream);
        let answer = self.api.ask(&request, &json!({ "seq": sequence })).await?;
        match answer {
            Ok(answer) => Ok(self.read(&answer["message"], sequence)),
            Err(error) if error.err_code == NO_MESSAGE => Ok(None),
            Err(error) => Err(api_error(&request, error)),
        }
    }

    /// Whether its filter accepts a message.
    fn reads(&self, stored: &Stored) -> bool {
        let topic = stored.message().map(|(topic, _)| topic);
        let accepts = |topic: &Topic| self.topics.iter().any(|filter| filter.matches(topic));
        self.topics.is_empty() || topic.as_ref().is_some_and(accepts)
    }

    fn read(&self, message: &Value, sequence: u64) -> Option<Stored> {
        let bytes = |name: &str| {
            let text = message[name].as_str().unwrap_or_default();
            STANDARD.decode(text).map(Bytes::from).ok()
        };
        let subject = message["subject"].as_str()?;
        let time = humantime::parse_rfc3339(message["time"].as_str()?).ok()?;
        let time = time.duration_since(std::time::UNIX_EPOCH).ok()?;
        let (stream, name) = (&self.stream, &self.name);
        Some(Stored {
            subject: subject.to_owned(),
            headers: bytes("hdrs")?,
            body: bytes("data")?,
            // The server finds a delivery by its sequence in the stream alone. Source: NATS ADR-15.
            reply: format!("$JS.ACK.{stream}.{name}.1.{sequence}.{sequence}.0.0").into(),
            info: Info {
                sequence,
                attempt: 1,
                time: i64::try_from(time.as_millis()).ok(),
            },
        })
    }
}

// === impl Stored ===

impl Stored {
    /// The size that counts against the budget.
    pub(super) fn size_bytes(&self) -> usize {
        self.headers.len() + self.body.len()
    }

    /// Whether the client can read it. This mirrors its parser.
    fn is_readable(&self) -> bool {
        // The answer of the stream has this character in place of bytes that are not UTF-8.
        if self.subject.contains(char::REPLACEMENT_CHARACTER) {
            return false;
        }
        if self.headers.is_empty() {
            return true;
        }
        let Ok(text) = std::str::from_utf8(&self.headers) else {
            return false;
        };
        let mut lines = text.lines();
        let status = lines.next().and_then(|line| line.strip_prefix("NATS/1.0"));
        let Some(status) = status.map(str::trim) else {
            return false;
        };
        let code = status.split(' ').next().unwrap_or_default();
        if !code.is_empty() && StatusCode::from_str(code).is_err() {
            return false;
        }
        lines.all(|line| {
            let is_continued = line.starts_with(char::is_whitespace);
            let name = line.split_once(':').map(|(name, _)| name);
            line.is_empty()
                || is_continued
                || name.is_some_and(|name| HeaderName::from_str(name).is_ok())
        })
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
    fn what_the_client_cannot_read_is_recognised() {
        for (headers, is_readable) in [
            (&b""[..], true),
            (b"NATS/1.0\r\na: b\r\n\r\n", true),
            (b"NATS/1.0\r\na: b\r\n c\r\n\r\n", true),
            (b"NATS/1.0 404 No Messages\r\n\r\n", true),
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
