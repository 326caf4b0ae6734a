//! Messages that cannot be delivered, stored with the reason.
//!
//! A dead letter has the original body, key and headers, unchanged except for secrets and reply tokens, and headers
//! that begin with `bus-dlq-`. Some of these hold what the bus of the dead letter cannot carry: NATS has no keys, no
//! null bodies, and only headers of visible ASCII. A dead letter can be read, repaired and sent again. Each one is
//! counted, and logged with a rate limit. Source: docs/design.md §6.

use std::sync::Arc;
use std::time::SystemTime;

use a2abus_plugin::{Event, Text, extension, redact_secrets};
use a2abus_transports::content_mode::ProtocolBinding;
use a2abus_transports::{
    Address, Disposition, Guarantee, Header, Headers, Message, Origin, Topic, TransportError,
    TransportErrorKind,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use tracing::Level;

use crate::bus::BusId;
use crate::bus::delivery::Publisher;
use crate::bus::headers::carries;
use crate::bus::outbound::{DeadLetter, Outgoing, RoutingError, fresh_id};
use crate::calls::Calls;
use crate::calls::callid::{self, ReplyId, shown_topic, without_tokens};
use crate::log_limit::{LogLimit, LogLimits};
use crate::metrics::BindingMetrics;
use crate::restart::chain;

/// The destination of the dead letters of a binding.
#[derive(Debug, Clone)]
pub(crate) struct DeadLetters {
    /// The name of the binding.
    pub name: Text,
    /// The consumer group or durable by which it reads.
    pub reader: Text,
    /// The bus.
    pub bus: BusId,
    /// How this bus writes headers.
    pub binding: ProtocolBinding,
    /// The topic.
    pub topic: Topic,
    /// Whether the source stores a message until its dead letter is confirmed. Otherwise (core NATS), a dead letter
    /// that no stream stores is lost.
    pub is_backed: bool,
    /// The calls whose reply tokens are removed from dead letters.
    pub calls: Arc<Calls>,
    /// The counters of the binding.
    pub metrics: BindingMetrics,
    /// Its log lines.
    pub log: Arc<Log>,
}

/// The log lines of one binding. Each kind has its own rate limit.
#[derive(Debug)]
pub(crate) struct Log {
    dead_letters: LogLimit,
    drops: LogLimit,
    reductions: LogLimit,
    losses: LogLimit,
}

/// A message, or one unit of it, that cannot be delivered.
#[derive(Debug, Clone)]
pub(crate) struct Undelivered<'a> {
    /// The message.
    pub message: &'a Message,
    /// Where it was read.
    pub topic: &'a Topic,
    /// Its position there.
    pub origin: Option<&'a Origin>,
    /// Its target agent.
    pub agent: Option<&'a Text>,
    /// The call it belongs to.
    pub call: Option<Text>,
}

/// Why a message, or one unit of it, is a dead letter.
#[derive(Debug, Clone)]
pub(crate) struct Reason {
    /// The stable code.
    pub code: &'static str,
    /// The stage that refused it.
    pub stage: Stage,
    /// A human-readable message.
    pub detail: String,
    /// The unit of the message, if the rest of the message was processed.
    pub unit: Option<usize>,
}

/// Why the answer to a message can never be published. The message becomes a dead letter.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Undeliverable {
    #[error(transparent)]
    Routing(#[from] RoutingError),
    #[error("{}", explained(.0))]
    Transport(TransportError),
}

/// Why a bus does not take an answer. The causes of one that is too large only repeat its size and the limit.
fn explained(error: &TransportError) -> String {
    match error.kind() {
        TransportErrorKind::TooLarge => {
            format!("{error}: raise this limit, or let the agent answer with less")
        }
        _ => chain(error),
    }
}

/// A stage of the pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Reading the headers of the message.
    Receive,
    /// Detecting the payload.
    Detect,
    /// Finding its destination.
    Route,
    /// Sending it there.
    Publish,
    /// Finding the call it answers.
    Resolve,
    /// Executing the workflow it asks for.
    Execute,
    /// Returning the answer to it.
    Answer,
}

// === impl Undeliverable ===

impl Undeliverable {
    pub(crate) fn reason(&self) -> Reason {
        let (code, stage) = match self {
            Self::Routing(error) => (error.reason(), Stage::Route),
            Self::Transport(error) => (error.kind().as_str(), Stage::Publish),
        };
        Reason {
            code,
            stage,
            detail: format!("the answer: {self}"),
            unit: None,
        }
    }

    pub(crate) fn is_too_large(&self) -> bool {
        matches!(self, Self::Transport(error) if error.kind() == TransportErrorKind::TooLarge)
    }
}

// === impl Stage ===

impl Stage {
    /// Every stage, in the order of the path.
    #[cfg(any(feature = "kafka", feature = "nats"))]
    pub(crate) const ALL: [Self; 7] = [
        Self::Receive,
        Self::Detect,
        Self::Resolve,
        Self::Route,
        Self::Publish,
        Self::Execute,
        Self::Answer,
    ];

    /// The name of this stage.
    #[must_use]
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::Detect => "detect",
            Self::Route => "route",
            Self::Publish => "publish",
            Self::Resolve => "resolve",
            Self::Execute => "execute",
            Self::Answer => "answer",
        }
    }
}

/// The prefix of the headers that the bridge adds.
pub(crate) const PREFIX: &str = "bus-dlq-";
/// The header that names the removed parts, if the dead-letter topic refused them.
const OMITTED: &str = "bus-dlq-omitted";
/// The key of the original in base64, if its dead letter has none.
const KEY: &str = "bus-dlq-key";
/// A header of the original that its dead letter cannot have: its name in base64 and, unless it is null, a space and
/// its value in base64.
const HEADER: &str = "bus-dlq-header";
/// Set if the original has a null body, and its dead letter therefore an empty one.
const NULL: &str = "bus-dlq-null";

fn is_ours(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// The longest detail, in bytes.
const MAX_DETAIL_BYTES: usize = 4_096;

// === impl Log ===

impl Log {
    /// The lines of this binding.
    #[must_use]
    pub(crate) fn new(binding: &Text, limits: &LogLimits) -> Self {
        let limit = |level, more| limits.limit_of(binding, level, more);
        Self {
            dead_letters: limit(Level::WARN, "more messages became dead letters"),
            drops: limit(Level::WARN, "more messages were dropped"),
            reductions: limit(
                Level::ERROR,
                "more dead letters were stored without their bodies",
            ),
            losses: limit(Level::ERROR, "more dead letters were lost"),
        }
    }
}

// === impl DeadLetters ===

impl DeadLetters {
    /// The dead letter of a message, or of one unit of it whose bytes are `body`. Counts and logs it.
    #[must_use]
    pub(crate) fn dead_letter(
        &self,
        of: &Undelivered<'_>,
        body: Option<Bytes>,
        reason: &Reason,
    ) -> Outgoing {
        self.metrics.dead_lettered(reason.code);
        self.log_dead_letter(of, reason);
        let original = of.message;
        // The readers of dead letters must not be able to answer a call, so reply tokens are removed: from answers,
        // which repeat the reply id of a call of some replica, and from requests of this replica. Other ids do not
        // change.
        let is_answer = matches!(reason.stage, Stage::Resolve | Stage::Answer);
        let is_secret = |id: ReplyId| is_answer || self.calls.has_made(id);
        let blank_tokens = |bytes: &Bytes| without_tokens(bytes, is_secret);
        let mut message = Message {
            key: original.key.as_ref().map(blank_tokens),
            headers: headers_of(self.binding, original, blank_tokens),
            body: body_of(original, body).map(|body| blank_tokens(&redact_secrets(&body))),
        };
        let mut put =
            |name: &'static str, value: &str| message.headers.push(name, self.header_text(value));
        put("bus-dlq-reason", reason.code);
        put("bus-dlq-stage", reason.stage.as_str());
        put("bus-dlq-detail", cut(&reason.detail));
        put("bus-dlq-binding", &self.name);
        // A position on JetStream does not name the subject, and core NATS has no positions.
        put("bus-dlq-topic", &shown_topic(of.topic.as_str()));
        put("bus-dlq-time", &crate::clock::rfc3339(SystemTime::now()));
        put("bus-dlq-bridge", env!("CARGO_PKG_VERSION"));
        if let Some(origin) = of.origin {
            put("bus-dlq-origin", &origin.position);
        }
        if let Some(unit) = reason.unit {
            put("bus-dlq-unit", &unit.to_string());
        }
        let mut address = Address::topic(self.topic.clone());
        let id = |origin: &Origin| self.dead_letter_id(origin, reason);
        // Only JetStream uses it.
        address.guarantee = Guarantee::Stored {
            message_id: Some(of.origin.map_or_else(fresh_id, id)),
        };
        Outgoing {
            agent: of.agent.cloned(),
            call: of.call.clone(),
            dead_letter: Some(DeadLetter {
                is_reduced: false,
                is_backed: self.is_backed,
            }),
            ..Outgoing::new(self.bus, address, message)
        }
    }

    /// The same for the same failure of the same message, so that the stream keeps one dead letter.
    fn dead_letter_id(&self, origin: &Origin, reason: &Reason) -> Text {
        let unit = reason.unit.unwrap_or_default();
        let (name, reader, topic) = (&self.name, &self.reader, self.topic.as_str());
        let (message, code, stage) = (origin.identity(), reason.code, reason.stage.as_str());
        Text::from(format!(
            "{name}/{reader}/{message}/{unit}/{stage}/{code}/{topic}"
        ))
    }

    fn log_dead_letter(&self, of: &Undelivered<'_>, reason: &Reason) {
        if let Some(suppressed) = self.log.dead_letters.allow() {
            tracing::warn!(
                binding = %self.name, topic = %shown_topic(of.topic.as_str()), agent = of.agent.map(Text::as_str),
                call = of.call.as_deref(), origin = of.position(),
                reason = reason.code, stage = reason.stage.as_str(), detail = cut(&reason.detail), suppressed,
                "a message becomes a dead letter"
            );
        }
    }

    /// Counts and logs a message that is dropped without a dead letter.
    pub(crate) fn dropped(&self, of: &Undelivered<'_>, reason: &'static str) {
        self.metrics.dropped(reason);
        if let Some(suppressed) = self.log.drops.allow() {
            tracing::warn!(
                binding = %self.name, topic = %shown_topic(of.topic.as_str()), agent = of.agent.map(Text::as_str),
                call = of.call.as_deref(), origin = of.position(), reason, suppressed,
                "dropped a message"
            );
        }
    }

    /// The replacement for a dead letter that its own topic refuses: a smaller one, or `None`. Then it is lost, and
    /// logged.
    #[must_use]
    pub(crate) fn replacement(
        &self,
        dead_letter: Outgoing,
        error: &TransportError,
    ) -> Option<Outgoing> {
        let state = dead_letter.dead_letter?;
        if error.disposition() == Disposition::DeadLetter && !state.is_reduced {
            if let Some(suppressed) = self.log.reductions.allow() {
                tracing::error!(
                    binding = %self.name, topic = %dead_letter.address.topic, %error, suppressed,
                    "its topic cannot take the dead letter, which is stored without its body"
                );
            }
            return Some(self.reduced(dead_letter, error));
        }
        self.metrics.dead_letters_lost.inc();
        if let Some(suppressed) = self.log.losses.allow() {
            tracing::error!(
                binding = %self.name, topic = %dead_letter.address.topic, agent = dead_letter.agent.as_deref(),
                call = dead_letter.call.as_deref(), %error, suppressed,
                "a dead letter is lost: its topic has not confirmed it, and core NATS does not store the message either (`a2abus topics apply` creates a missing stream)"
            );
        }
        None
    }

    /// Publishes a dead letter, or its replacement, and waits for the confirmation. One that is lost is counted and
    /// logged.
    pub(crate) async fn store(&self, mut dead_letter: Outgoing, publisher: &Publisher) {
        while let Err(error) = publisher.until_confirmed(&dead_letter).await {
            let Some(smaller) = self.replacement(dead_letter, &error) else {
                return;
            };
            dead_letter = smaller;
        }
    }

    /// A dead letter without its body, its key and the headers of the original, for a topic that cannot take it.
    fn reduced(&self, dead_letter: Outgoing, error: &TransportError) -> Outgoing {
        let mut headers = Headers::new();
        for header in dead_letter
            .message
            .headers
            .iter()
            .filter(|header| is_ours(&header.name) && !is_of_original(&header.name))
        {
            headers.push(
                header.name.clone(),
                header.value.clone().unwrap_or_default(),
            );
        }
        let size = dead_letter.message.body.as_ref().map_or(0, Bytes::len);
        let omitted = format!("{size} bytes: {}", chain(error));
        headers.push(OMITTED, self.header_text(&omitted));
        Outgoing {
            message: Message {
                key: None,
                headers,
                body: None,
            },
            dead_letter: Some(DeadLetter {
                is_reduced: true,
                is_backed: self.is_backed,
            }),
            ..dead_letter
        }
    }

    /// The text as a header value: it may quote foreign text, and NATS headers may only contain visible ASCII.
    fn header_text(&self, value: &str) -> Bytes {
        match self.binding {
            ProtocolBinding::Kafka | ProtocolBinding::Memory => {
                Bytes::copy_from_slice(value.as_bytes())
            }
            ProtocolBinding::Nats | ProtocolBinding::Http => {
                let plain = |c: char| if matches!(c, ' '..='~') { c } else { '?' };
                Bytes::from(value.chars().map(plain).collect::<String>())
            }
        }
    }
}

/// The headers of the original, without those of an earlier dead letter. If the bus of the dead letters cannot carry a
/// header, the key or a null body, a header of the bridge holds it instead. `blank_tokens` removes
/// tokens from a value.
fn headers_of(
    binding: ProtocolBinding,
    original: &Message,
    blank_tokens: impl Fn(&Bytes) -> Bytes,
) -> Headers {
    let mut headers = Headers::new();
    for Header { name, value } in original.headers.iter().filter(|it| !is_ours(&it.name)) {
        let header = Header {
            name: name.clone(),
            value: value.as_ref().map(&blank_tokens),
        };
        if carries(binding, &header) {
            headers.add(header);
        } else {
            headers.push(HEADER, packed(&header));
        }
    }
    match binding {
        ProtocolBinding::Kafka | ProtocolBinding::Memory => {}
        ProtocolBinding::Nats | ProtocolBinding::Http => {
            if let Some(key) = &original.key {
                headers.push(KEY, STANDARD.encode(blank_tokens(key)));
            }
            if original.body.is_none() {
                headers.push(NULL, "true");
            }
        }
    }
    headers
}

/// Whether a header of the bridge holds a part of the original.
fn is_of_original(name: &str) -> bool {
    matches!(name, KEY | HEADER | NULL)
}

/// The value of [`HEADER`] for a header.
fn packed(header: &Header) -> String {
    let name = STANDARD.encode(header.name.as_bytes());
    match &header.value {
        Some(value) => format!("{name} {}", STANDARD.encode(value)),
        None => name,
    }
}

/// The header in a value of [`HEADER`]; `None` if it is damaged.
#[cfg(any(feature = "kafka", feature = "nats"))]
fn unpacked(packed: &Bytes) -> Option<Header> {
    let packed = std::str::from_utf8(packed).ok()?;
    let (name, value) = match packed.split_once(' ') {
        Some((name, value)) => (name, Some(value)),
        None => (packed, None),
    };
    let value = value.map(|value| STANDARD.decode(value)).transpose().ok()?;
    Some(Header {
        name: Text::from_utf8(&STANDARD.decode(name).ok()?)?,
        value: value.map(Bytes::from),
    })
}

/// The message of a dead letter as it was: the inverse of [`headers_of`].
#[cfg(any(feature = "kafka", feature = "nats"))]
pub(crate) fn original_of(dead_letter: &Message) -> Message {
    let ours = |name: &str| dead_letter.headers.get(name);
    let key = ours(KEY).and_then(|key| STANDARD.decode(key).ok());
    let original = |header: &Header| match header.name.as_str() {
        HEADER => unpacked(header.value.as_ref()?),
        name => (!is_ours(name)).then(|| header.clone()),
    };
    let headers: Vec<Header> = dead_letter.headers.iter().filter_map(original).collect();
    Message {
        key: key.map(Bytes::from).or_else(|| dead_letter.key.clone()),
        headers: Headers::from(headers),
        body: dead_letter.body.clone().filter(|_| ours(NULL).is_none()),
    }
}

/// The body of a dead letter. A message without one stays so: in a compacted topic it means that its key is deleted.
fn body_of(original: &Message, body: Option<Bytes>) -> Option<Bytes> {
    let whole = original.body.as_ref()?;
    Some(body.unwrap_or_else(|| whole.clone()))
}

// === impl Undelivered ===

impl<'a> Undelivered<'a> {
    /// A message of no known agent or call.
    #[must_use]
    pub(crate) fn new(message: &'a Message, topic: &'a Topic, origin: Option<&'a Origin>) -> Self {
        Self {
            message,
            topic,
            origin,
            agent: None,
            call: None,
        }
    }

    fn position(&self) -> Option<&str> {
        self.origin.map(|origin| origin.position.as_str())
    }

    /// The same, with the agent and the call of its event.
    #[must_use]
    pub(crate) fn with_event(self, event: Option<&'a Event>) -> Self {
        let attribute = |name| event.and_then(|event| event.extension_text(name));
        Self {
            agent: attribute(extension::TARGET_AGENT),
            call: event.and_then(callid::logged_call_id),
            ..self
        }
    }
}

fn cut(detail: &str) -> &str {
    let end = (0..=MAX_DETAIL_BYTES.min(detail.len()))
        .rev()
        .find(|end| detail.is_char_boundary(*end));
    detail.get(..end.unwrap_or(0)).unwrap_or_default()
}

#[cfg(test)]
#[cfg(any(feature = "kafka", feature = "nats"))]
mod tests {
    use super::*;

    #[test]
    fn a_dead_letter_on_nats_holds_what_nats_cannot_carry() {
        let mut headers = Headers::new();
        headers.push("traceparent", "t");
        headers.push("bytes", vec![0xfe_u8]);
        headers.push("a name", "\u{e9}");
        headers.push_null("null");
        let original = Message {
            key: Some(Bytes::from_static(b"\xff")),
            headers: headers.clone(),
            body: None,
        };
        let written = |binding| headers_of(binding, &original, Bytes::clone);
        assert_eq!(written(ProtocolBinding::Kafka), headers);
        let nats = ProtocolBinding::Nats;
        let headers = written(nats);
        assert!(headers.iter().all(|header| carries(nats, header)));
        let dead_letter = Message {
            key: None,
            headers,
            body: Some(Bytes::new()),
        };
        assert_eq!(original_of(&dead_letter), original);
    }

    #[test]
    fn headers_of_an_earlier_dead_letter_are_not_those_of_the_original() {
        let mut original = Message::plain("a message");
        original.headers.push(KEY, STANDARD.encode("forged"));
        let headers = headers_of(ProtocolBinding::Nats, &original, Bytes::clone);
        assert!(headers.is_empty());
    }
}
