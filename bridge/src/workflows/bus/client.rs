//! The client of a request to the executor, and its reply address.
//!
//! Source: docs/protocols/a2e-workflows.md §11.

use std::time::SystemTime;

use a2abus_plugin::{Event, Kind, Limits, Text, extension, kind_of_event};
use a2abus_transports::{Address, Header, Message, Topic};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::bus::headers::spring;
use crate::calls::callid::ReplyId;
use crate::calls::reply_address::{self, AllowedReplyAddresses, attribute_header};

/// The client of a request, and the form of its answers.
#[derive(Debug, Clone)]
pub(super) struct WorkflowClient {
    /// Identifies the request, also when it is redelivered.
    pub(super) identity: Text,
    /// The `source` of the request.
    pub(super) source: Text,
    /// The `sourceagent`.
    pub(super) requester: Option<Text>,
    /// The reply address; `None` if the routes decide.
    pub(super) reply_to: Option<Address>,
    pub(super) progress: Progress,
    /// Why its reply or progress address is refused.
    pub(super) address_refused: Option<reply_address::Refused>,
    pub(super) form: AnswerForm,
    pub(super) collaboration_id: Option<Text>,
    pub(super) call_id: Option<Text>,
    /// The key of the request.
    pub(super) key: Option<Bytes>,
    /// The correlation header that Spring clients expect in the answer.
    pub(super) correlation: Option<Bytes>,
    /// When the client stops waiting.
    pub(super) deadline: Option<SystemTime>,
    /// The number of a line in its workflow.
    pub(super) seq: Option<i64>,
    /// Whether it has a `seq` that is not a number.
    pub(super) has_bad_seq: bool,
    /// The trace context of the event.
    pub(super) trace: Vec<(&'static str, Text)>,
    /// The headers of the request that its answers keep.
    pub(super) headers: Vec<Header>,
}

/// The destination of progress messages.
#[derive(Debug, Clone)]
pub(super) enum Progress {
    /// None: the requester expects only the answer.
    Nowhere,
    /// The reply address.
    BesideTheAnswer,
    /// A separate address.
    At(Address),
}

/// The form of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AnswerForm {
    /// As events of the executor.
    Events,
    /// As a JSON-RPC response to the request with this id, which is the exact JSON text.
    JsonRpc(Text),
}

/// The topics for answers and progress of a binding: which ones requests may name, and the defaults.
#[derive(Debug)]
pub(super) struct AnswerTopics {
    /// The topics that requests may name.
    pub(super) named: AllowedReplyAddresses,
    /// The topic for answers if the request names none.
    pub(super) replies: Option<Topic>,
    /// The topic for progress if the request names none.
    pub(super) progress: Option<Topic>,
}

/// The parts of a message outside its event.
#[derive(Debug, Clone, Copy)]
pub(super) struct Envelope<'a> {
    pub(super) message: &'a Message,
    /// The limits of its payload.
    pub(super) limits: &'a Limits,
    /// The headers that answers keep.
    pub(super) headers: &'a [Header],
    /// The reply subject of the message.
    pub(super) reply_to: Option<&'a Topic>,
    pub(super) places: &'a AnswerTopics,
    /// Whether callers of `/rpc`, who send no key, may execute workflows.
    pub(super) rpc: bool,
    /// The `collaborationid` of a plain line.
    pub(super) collaboration_id: Option<&'a Text>,
    /// The position of the message, if it is not an event.
    pub(super) place: Option<&'a Text>,
}

// === impl WorkflowClient ===

impl WorkflowClient {
    pub(super) fn of(event: &Event, envelope: Envelope<'_>) -> Self {
        let text = |name| event.extension_text(name).cloned();
        let number = |name| event.attribute(name).and_then(|value| value.parse().ok());
        let traced = [extension::TRACE_PARENT, extension::TRACE_STATE];
        let trace = traced
            .into_iter()
            .filter_map(|name| Some((name, text(name)?)));
        let deadline = text(extension::EXPIRY_TIME);
        let seq = number(extension::SEQ).or_else(|| seq_header(envelope));
        let has_seq = event.attribute(extension::SEQ).is_some()
            || header_of_line(envelope.message, extension::SEQ).is_some();
        let (reply_to, progress, address_refused) = match places(event, envelope) {
            Ok((reply_to, progress)) => (reply_to, progress, None),
            // A requester at the inbox of the message gets the reason, if the binding allows that address.
            Err(refused) => {
                let places = &envelope.places.named;
                let inbox = envelope
                    .reply_to
                    .and_then(|inbox| places.inbox(inbox).ok())
                    .map(Address::topic);
                (inbox, Progress::Nowhere, Some(refused))
            }
        };
        Self {
            identity: identity([event.source().as_bytes(), event.id().as_bytes()]),
            source: event.source().clone(),
            requester: text(extension::SOURCE_AGENT),
            reply_to,
            progress,
            address_refused,
            form: AnswerForm::Events,
            collaboration_id: envelope
                .collaboration_id
                .cloned()
                .or_else(|| text(extension::COLLABORATION_ID)),
            call_id: text(extension::CALL_ID),
            key: envelope.message.key.clone(),
            correlation: envelope
                .message
                .headers
                .get(spring::CORRELATION_ID)
                .cloned(),
            deadline: deadline.and_then(|text| crate::clock::parse(&text)),
            seq,
            has_bad_seq: has_seq && seq.is_none(),
            trace: trace.collect(),
            headers: envelope.headers.to_vec(),
        }
    }

    /// The client that waits for an answer to an event; `None` if the event is itself an answer.
    pub(super) fn waiting(event: &Event, envelope: Envelope<'_>) -> Option<Box<Self>> {
        let is_answer = matches!(kind_of_event(event), Kind::Response | Kind::Stream);
        let waits = envelope.reply_to.is_some() || reply_place_of(event, envelope).is_some();
        let client = (waits && !is_answer).then(|| Box::new(Self::of(event, envelope)));
        client.filter(|client| client.reply_to.is_some())
    }

    /// The `collaborationid` by which the client names its workflow. `None` if it is the reply id of a bridge's call,
    /// because only the agent of the call may know that.
    pub(super) fn named(&self) -> Option<&Text> {
        let own = self.collaboration_id.as_ref();
        own.filter(|id| id.parse::<ReplyId>().is_err())
    }

    /// The id of an execution whose workflow has none. It stays the same when the request is redelivered.
    pub(super) fn execution_id(&self) -> Text {
        self.identity.clone()
    }
}

/// The number of a plain line, from its header.
fn seq_header(envelope: Envelope<'_>) -> Option<i64> {
    let value = header_of_line(envelope.message, extension::SEQ)?;
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

/// The identity of a call. Source and id are not unique, because callers count from 1, so the call id and the original
/// position are part of it. Source: docs/protocols/eventmesh-a2a.md §D4.
pub(super) fn identity_of_call(event: &Event, place: Option<&Text>) -> Text {
    let call = event.extension_text(extension::CALL_ID);
    let place = event.extension_text(extension::ORIGIN).or(place);
    let names = [Some(event.source()), Some(event.id()), call, place];
    identity(names.map(|name| name.map_or(&b""[..], |name| name.as_bytes())))
}

/// A hash of several names, as 32 hexadecimal digits.
pub(super) fn identity<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> Text {
    let mut digest = Sha256::new();
    for name in names {
        digest.update(u64::try_from(name.len()).unwrap_or(u64::MAX).to_be_bytes());
        digest.update(name);
    }
    let digest = digest.finalize();
    digest
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect::<String>()
        .into()
}

/// The addresses for the answer and for progress. The answer goes to the address that the event names, else the one
/// that its message names, else the inbox of its sender, else the topic of the binding.
///
/// # Errors
/// When the request names an address that is not allowed.
fn places(
    event: &Event,
    envelope: Envelope<'_>,
) -> Result<(Option<Address>, Progress), reply_address::Refused> {
    let places = envelope.places;
    let named = |name: &Text| places.named.named(name, envelope.reply_to);
    let own = match reply_place_of(event, envelope) {
        Some((name, partition)) => Some(Address {
            partition,
            ..Address::topic(named(&name)?)
        }),
        None => match envelope.reply_to {
            Some(inbox) => Some(Address::topic(places.named.inbox(inbox)?)),
            None => None,
        },
    };
    let progress = match progress_place_of(event, envelope.message) {
        Some(name) => Some(named(&name)?),
        None => places.progress.clone(),
    };
    let progress = match (progress, &own) {
        // Same topic: use the partition of the answer, which keeps the order.
        (Some(topic), Some(own)) if topic == own.topic => Progress::BesideTheAnswer,
        (Some(topic), _) => Progress::At(Address::topic(topic)),
        // A requester with an inbox would mistake the first message for the answer.
        (None, Some(_)) => Progress::Nowhere,
        (None, None) => Progress::BesideTheAnswer,
    };
    let replies = || places.replies.clone().map(Address::topic);
    Ok((own.or_else(replies), progress))
}

/// The address that a request names for its answer, and its partition.
fn reply_place_of(event: &Event, envelope: Envelope<'_>) -> Option<(Text, Option<u32>)> {
    reply_address::named_by(event, envelope.message).or_else(|| {
        // Only plain lines have a place. On an event, the header may be that of another program.
        let name = envelope
            .place
            .and(envelope.message.headers.get(extension::REPLY_TO))?;
        Some((reply_address::lossy(name), None))
    })
}

/// The address that a request names for progress.
fn progress_place_of(event: &Event, message: &Message) -> Option<Text> {
    let attribute = event.extension_text(extension::PROGRESS_TO).cloned();
    attribute.or_else(|| {
        let header = header_of_line(message, extension::PROGRESS_TO)?;
        Some(reply_address::lossy(header))
    })
}

/// The header of a plain line that stands for an attribute, with or without the prefix of CloudEvents.
pub(super) fn header_of_line<'a>(message: &'a Message, attribute: &str) -> Option<&'a Bytes> {
    attribute_header(message, attribute).or_else(|| message.headers.get(attribute))
}
