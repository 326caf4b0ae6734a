//! Turns a delivery into events.
//!
//! ```text
//! delivery ─> content mode ─┬─ CloudEvent ───────────────────────────────┬─> Read::CloudEvent
//!                           ├─ plain body ─> detect ─> parse ─> map ─────┼─> Read::Mapped
//!                           └─ neither                └─ not decodable ──┴─> Read::Refused
//! ```
//!
//! Bindings for events and for workflows read their messages here. Answers are parsed but not mapped:
//! [`crate::calls::Calls::take_answers`] does that for bindings and for the reader of a reply address.

use std::sync::Arc;

use a2abus_models::e2a::Trust;
use a2abus_plugin::{
    DecodeErrorKind, Event, EventError, Family, Hint, Ids, Limits, MapContext, MapOptions, Mapped,
    Refused, Source, Text, extension, map, wrap_unknown,
};
use a2abus_transports::content_mode::{self, Content, ProtocolBinding};
use a2abus_transports::{Delivery, Message};
use bytes::Bytes;
use tracing::Span;

use super::copies::repeats_too_much;
use crate::bus::BusId;
use crate::bus::deadletter::{DeadLetters, Reason, Stage};
use crate::bus::outbound::Unit;
use crate::calls::reply_address;
use crate::calls::resolve::{ReadAt, Reader};
use crate::metrics::{BindingMetrics, Metrics};
use crate::names::put;
use crate::rules::Rules;
use crate::stage;

/// Reads the messages of one binding.
#[derive(Debug)]
pub(crate) struct Intake {
    /// The name of the binding.
    pub(crate) name: Text,
    /// The consumer group or durable by which it reads.
    pub(crate) reader: Text,
    /// The bus it reads.
    pub(crate) bus: BusId,
    /// How this bus carries CloudEvents.
    pub(crate) binding: ProtocolBinding,
    /// Whether it reads JetStream. Its requesters may let a stream store their answers, which then has to confirm them.
    pub(crate) reads_jetstream: bool,
    /// The declared properties of its payloads.
    pub(crate) hint: Hint,
    /// How payloads are mapped.
    pub(crate) options: MapOptions,
    /// The `source` of mapped events.
    pub(crate) source: Source,
    /// The destination of its dead letters.
    pub(crate) dead_letters: Arc<DeadLetters>,
    /// Its counters.
    pub(crate) metrics: BindingMetrics,
    /// The counters of the bridge.
    pub(crate) counts: Arc<Metrics>,
}

/// The content of a message: one of these, or one for each unit of its body.
#[derive(Debug)]
pub(crate) enum Read {
    /// A CloudEvent: the message itself, or a unit of its body.
    CloudEvent(Event, Option<Unit>),
    /// A unit of the body of another family.
    Mapped(Mapped),
    /// A message or unit that does not become an event.
    Refused(Refusal),
}

/// What an unreadable CloudEvent says about its sender, in headers or, in structured mode, in its body.
#[derive(Debug, Default)]
pub(crate) struct UnreadSender {
    pub(crate) id: Option<Text>,
    pub(crate) collaboration_id: Option<Text>,
    pub(crate) call_id: Option<Text>,
    /// Its `mcptype`.
    pub(crate) kind: Option<Text>,
    /// The reply address that it names, and its partition. It is not checked yet.
    pub(crate) reply_to: Option<(Text, Option<u32>)>,
    /// Its data, as far as they can be read.
    pub(crate) data: Option<Bytes>,
}

/// Why a message, or one unit of it, was refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The message is marked as a CloudEvent, but is not valid.
    Unreadable(EventError, Box<UnreadSender>),
    /// The unit cannot be decoded.
    Undecoded(Refused),
    /// The message has so many units that the copies of its key and headers would be too large; the reason as text.
    Repeats(String),
}

/// The reason of a message whose units would repeat its key and headers too often.
const REPEATS: &str = "repeats_too_much";

// === impl Intake ===

impl Intake {
    /// Whether messages that are not settled come again.
    pub(crate) fn is_redelivered(&self) -> bool {
        self.binding != ProtocolBinding::Nats || self.reads_jetstream
    }

    /// Counts a delivery as in flight until it is settled. Returns its span.
    pub(crate) fn receive(&self, delivery: &Delivery) -> Span {
        self.metrics.received.inc();
        self.metrics.in_flight.inc();
        stage::receive(&self.name, &delivery.topic, delivery.origin.as_ref())
    }

    /// A received delivery, with the current rules.
    pub(crate) fn at<'d>(&self, delivery: &'d Delivery, rules: &'d Rules) -> ReadAt<'d> {
        ReadAt {
            trust: Trust::from(&self.hint),
            ..ReadAt::of(delivery, rules, self.bus, Reader::Binding)
        }
    }

    /// Passes the content of a message to `take`, in order. `collaboration_id` is the one in the message for the lines
    /// of its body; `context` is called only if there is something to map.
    pub(crate) fn read<'c>(
        &self,
        message: &Message,
        limits: &Limits,
        collaboration_id: Option<&Text>,
        context: impl FnOnce() -> MapContext<'c>,
        mut take: impl FnMut(Read),
    ) {
        let (content_type, body) = match content_mode::read(self.binding, message, limits) {
            Ok(Content::Plain { content_type, body }) => (content_type, body),
            Ok(Content::Event(event)) => return take(Read::CloudEvent(event, None)),
            Err(error) => {
                let sender = UnreadSender::of(self.binding, message, limits);
                return take(Read::Refused(Refusal::Unreadable(error, Box::new(sender))));
            }
        };
        let mut hint = self.hint.clone();
        if let Some(content_type) = content_type {
            hint.header("content-type", &content_type);
        }
        if let Some(id) = collaboration_id {
            hint.collaboration_id = Some(id.clone());
        }
        let context = context();
        let map = || map(&body, &hint, limits, &self.options, &context);
        let units = stage::map().in_scope(map);
        if let Some(why) = repeats_too_much(message, units.len()) {
            return take(Read::Refused(Refusal::Repeats(why)));
        }
        for unit in units {
            take(self.unit(message, unit));
        }
    }

    fn unit(&self, message: &Message, unit: Result<Mapped, Refused>) -> Read {
        match unit {
            Ok(mut mapped) => {
                self.counts.unit(mapped.detection.family, mapped.kind);
                if mapped.detection.family == Family::CloudEvent {
                    let unit = Unit {
                        index: mapped.index,
                        bytes: mapped.bytes,
                    };
                    return Read::CloudEvent(mapped.event, Some(unit));
                }
                reply_address::take_deadline(message, &mut mapped.event);
                Read::Mapped(mapped)
            }
            Err(refused) => {
                self.counts.refused(refused.error.kind());
                Read::Refused(Refusal::Undecoded(refused))
            }
        }
    }

    /// The data of an event, mapped, if they are one message of a known family.
    pub(crate) fn inside(&self, event: &Event, hint: &Hint, limits: &Limits) -> Option<Mapped> {
        let context = MapContext {
            source: self.source.clone(),
            time: None,
            ids: Ids::Payload(&crate::clock::new_event_id),
        };
        let units = map(&event.body(), hint, limits, &self.options, &context);
        units.into_only().ok()?.ok()
    }

    /// An event that wraps unknown bytes.
    pub(crate) fn wrapped(&self, body: &Bytes, index: usize, context: &MapContext<'_>) -> Event {
        wrap_unknown(body, index, &self.options, context)
    }
}

// === impl UnreadSender ===

impl UnreadSender {
    #[cold]
    fn of(binding: ProtocolBinding, message: &Message, limits: &Limits) -> Self {
        let names = [
            "id",
            extension::COLLABORATION_ID,
            extension::CALL_ID,
            extension::MCP_TYPE,
            extension::REPLY_TO,
            extension::REPLY_PARTITION,
        ];
        let (texts, data) = content_mode::read_refused(binding, message, names, limits);
        let [id, collaboration_id, call_id, kind, reply_to, partition] = texts;
        let partition = partition.and_then(|text| text.parse().ok());
        Self {
            id,
            collaboration_id,
            call_id,
            kind,
            reply_to: reply_to.map(|topic| (topic, partition)),
            data,
        }
    }

    /// Sets what it says on an event that stands for the message.
    pub(crate) fn describe(&self, event: &mut Event) {
        let (reply_to, partition) = self.reply_to.clone().unzip();
        let partition = partition.flatten().map(|number| number.to_string().into());
        let correlation = self.collaboration_id.as_ref().or(self.id.as_ref());
        for (name, value) in [
            (extension::COLLABORATION_ID, correlation.cloned()),
            (extension::CALL_ID, self.call_id.clone()),
            (extension::MCP_TYPE, self.kind.clone()),
            (extension::REPLY_TO, reply_to),
            (extension::REPLY_PARTITION, partition),
        ] {
            if let Some(value) = value {
                put(event, name, value);
            }
        }
    }
}

// === impl Refusal ===

impl Refusal {
    /// The reason of its dead letter.
    pub(crate) fn reason(&self) -> Reason {
        let (code, stage, detail) = match self {
            Self::Unreadable(error, _) => {
                (error.kind().as_str(), Stage::Receive, error.to_string())
            }
            Self::Undecoded(refused) => {
                let error = &refused.error;
                let pointer = match error.pointer() {
                    "" => String::new(),
                    pointer => format!(" ({pointer})"),
                };
                let place = match error.offset() {
                    0 => String::new(),
                    offset => format!(" at byte {offset}"),
                };
                let detail = format!("{error}{place}{pointer}");
                (error.kind().as_str(), Stage::Detect, detail)
            }
            Self::Repeats(why) => (REPEATS, Stage::Detect, why.clone()),
        };
        Reason {
            code,
            stage,
            detail,
            unit: self.unit().map(|refused| refused.index),
        }
    }

    /// The refused unit; `None` if the whole message is refused.
    pub(crate) fn unit(&self) -> Option<&Refused> {
        match self {
            Self::Undecoded(refused) => Some(refused),
            Self::Unreadable(..) | Self::Repeats(_) => None,
        }
    }

    /// The unit, if its format is unknown.
    pub(crate) fn unknown(&self) -> Option<&Refused> {
        // A workflow is refused because of a line of no known family; its own family is known.
        let is_unknown = |refused: &&Refused| {
            refused.error.kind() == DecodeErrorKind::Unknown && refused.sender.is_none()
        };
        self.unit().filter(is_unknown)
    }
}
