//! Is this message the answer to a call, and to which one?
//!
//! An agent may answer with a CloudEvent, with headers copied from the request, or only with a JSON-RPC response that
//! repeats the id of its request. All of these lead to the call id. A message that is read where answers arrive is an
//! answer, whatever its headers say, unless it is the request itself. Source: docs/design.md §1 and §2.

use a2abus_models::e2a::{Fold, Trust};
use a2abus_plugin::{
    Data, Event, EventError, EventErrorKind, Kind, Limits, Text, extension, kind_of_event,
};
use a2abus_transports::content_mode::{self, Content, ContentMode, ProtocolBinding};
use a2abus_transports::{Delivery, Message, NATS_STATUS_HEADER, Origin, Topic};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::bus::BusId;
use crate::bus::headers::spring;
use crate::calls::answer_outcome::{AnswerOutcome, Unanswerable};
use crate::calls::answer_unit::{self, AnswerUnit, Body};
use crate::calls::callid::{CALL_ID_CHARS, CallId, ReplyId, shown_topic};
use crate::calls::cancel::cancelled_by;
use crate::calls::error::CallError;
use crate::calls::pending::{CallRequest, HandOver, Parts, Progress};
use crate::calls::render;
use crate::calls::reply::{FORWARDS, in_place_of_answer, why_not_forwarded};
use crate::calls::reply_address::attribute_header;
use crate::calls::reply_source::AnswerSource;
use crate::calls::reply_token::Rejection;
use crate::calls::service::Calls;
use crate::rules::Rules;

/// The longest error of a NATS service that is shown, in characters.
const SERVICE_ERROR: usize = 1_024;

/// Where a message was read.
#[derive(Debug, Clone, Copy)]
pub struct ReadAt<'a> {
    /// The rules that apply to it.
    pub rules: &'a Rules,
    /// The bus.
    pub bus: BusId,
    /// The topic.
    pub topic: &'a Topic,
    /// Where the source keeps it.
    pub origin: Option<&'a Origin>,
    /// The message itself.
    pub message: &'a Message,
    /// The reply subject of the message.
    pub reply_to: Option<&'a Topic>,
    /// The reader.
    pub reader: Reader,
    /// Whether the reader trusts E2A records that are marked as pushes.
    pub trust: Trust,
}

/// The reader of a topic that may have answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// The reply channel of this replica. Its messages are for this replica, or for one that reads them too.
    ReplyChannel,
    /// A binding. The replica of a call also reads the answers at its reply address, and on the topics that every
    /// replica reads whole, through its reply channel.
    Binding,
}

// === impl ReadAt ===

impl<'a> ReadAt<'a> {
    /// A received delivery, with the current rules. Nothing is trusted: any agent that has got a request may write to a
    /// reply address.
    #[must_use]
    pub fn of(delivery: &'a Delivery, rules: &'a Rules, bus: BusId, reader: Reader) -> Self {
        Self {
            rules,
            bus,
            topic: &delivery.topic,
            origin: delivery.origin.as_ref(),
            message: &delivery.message,
            reply_to: delivery.reply_to.as_ref(),
            reader,
            trust: Trust::Untrusted,
        }
    }

    /// The position of the message at its source.
    #[must_use]
    pub fn position(&self) -> Option<&'a Text> {
        self.origin.map(|origin| &origin.position)
    }

    /// Where a unit of the message was first read, if it may be read again. What a reply channel reads at the address
    /// of its replica comes once.
    fn source_of(&self, unit: usize) -> Option<AnswerSource> {
        if self.message.headers.get(FORWARDS).is_some() {
            return AnswerSource::of_forwarded(self.message);
        }
        let origin = self.origin.filter(|_| self.reader == Reader::Binding)?;
        AnswerSource::new(&origin.identity(), unit)
    }
}

// === impl Calls ===

impl Calls {
    /// A delivery of a reader of reply addresses. Its trust is that of the binding which also reads the topic, if any.
    #[must_use]
    pub(crate) fn at_reply_address<'a>(
        &self,
        delivery: &'a Delivery,
        rules: &'a Rules,
        bus: BusId,
    ) -> ReadAt<'a> {
        let at = ReadAt::of(delivery, rules, bus, Reader::ReplyChannel);
        ReadAt {
            trust: self.channels().trust_on(bus, at.topic),
            ..at
        }
    }

    /// Hands the units of a message to the calls that they answer. Returns one outcome per unit, in order. `binding` is
    /// how the bus writes CloudEvents. Counts each outcome, and logs answers that reach no caller.
    #[must_use]
    pub fn take_answers(&self, at: ReadAt<'_>, binding: ProtocolBinding) -> Vec<AnswerOutcome> {
        let answered = self.answers_in(at, binding);
        // Two readers of a shared topic read the same record, and one of them counts it. The reply channel counts an
        // answer to a call of this replica. The binding counts an answer that names no call, and makes its dead letter.
        let is_read_twice = |answered: &&AnswerOutcome| match (answered, at.reader) {
            (AnswerOutcome::Foreign(call), Reader::Binding) => self.channels().is_ours(*call),
            (AnswerOutcome::Uncorrelated(_) | AnswerOutcome::OfCancel(_), Reader::ReplyChannel) => {
                self.channels().is_shared(at.bus, at.topic)
            }
            _ => false,
        };
        for answered in answered.iter().filter(|answered| !is_read_twice(answered)) {
            self.count_reply(answered.outcome());
            self.log_reply(answered, at);
        }
        answered
    }

    /// The units of a message that answer followed calls of other processes.
    pub(crate) fn to_others(
        &self,
        at: ReadAt<'_>,
        binding: ProtocolBinding,
    ) -> Vec<(ReplyId, AnswerUnit)> {
        let is_for_others = |id: &ReplyId| id.call.is_followed() && !self.is_made_here(id.call);
        let named = with_token(ids(of_message(at)));
        let is_status = at.message.headers.get(NATS_STATUS_HEADER).is_some();
        if is_status || named.is_some_and(|named| !is_for_others(&named)) {
            return Vec::new();
        }
        let units = match read_units(at, binding) {
            Ok((_, units)) => units,
            Err(error) => {
                let id = call_of_unreadable(at, error.kind().as_str()).filter(is_for_others);
                let body = at.message.body.clone().unwrap_or_default();
                let unit = |id| (id, AnswerUnit::broken(body, error.to_string().into()));
                return id.map(unit).into_iter().collect();
            }
        };
        let is_one_of_several = units.len() > 1;
        let unit = units.into_iter().filter_map(|unit| {
            let id = call_of(at, &unit, is_one_of_several)?;
            if is_of_stream(at.message, &unit, binding) {
                return None;
            }
            let unit = match error_in_headers(at.message, &unit) {
                Some(CallError::BadAnswer(why)) => AnswerUnit::broken(unit.raw, why),
                _ => unit,
            };
            is_for_others(&id).then_some((id, unit))
        });
        unit.collect()
    }

    /// Whether this process made a call that is pending or has ended recently.
    fn is_made_here(&self, call: CallId) -> bool {
        self.channels().is_ours(call)
            && (self.pending().contains(call) || self.ended().reply_id(call).is_some())
    }

    /// Rejects an event that answers a pending call of this process, but was read at a topic that does not accept
    /// answers. Returns the call if the event is an answer with the headers of its request: routing it would send it to
    /// the agent as a request.
    pub(crate) fn misplaced_answer(&self, at: ReadAt<'_>, event: &Event) -> Option<CallId> {
        let limits = &at.rules.limits;
        let id_in = |name| event.extension_text(name)?.parse::<ReplyId>().ok();
        let own = id_in(extension::CALL_ID);
        let is_marked = event.extension(extension::MCP_TYPE).is_some();
        match kind_of_event(event) {
            Kind::Response | Kind::Stream => {
                let ids = [own, id_in(extension::COLLABORATION_ID)];
                for id in ids.into_iter().flatten() {
                    if let Some(request) = self.pending().request(id.call) {
                        let why = self.tokens().verify(request.id, id.token).err();
                        let why = why.unwrap_or(Rejection::WrongTopic);
                        self.reject(at, &request, why);
                        break;
                    }
                }
                None
            }
            Kind::Notification if is_marked => None,
            Kind::Request | Kind::Notification => {
                let id = own?;
                let request = self.pending().request(id.call);
                let verified = request.filter(|request| self.is_proved(request, id));
                let is_answer = match &verified {
                    Some(request) => !contains_request(event, limits) && !request.is_request(event),
                    None => contains_answer(event, limits),
                };
                if let Some(request) = verified.filter(|_| is_answer) {
                    self.reject(at, &request, Rejection::WrongTopic);
                }
                is_answer.then_some(id.call)
            }
        }
    }

    /// Whether this process published this event as the request of a pending call.
    pub(crate) fn is_own_request(&self, event: &Event) -> bool {
        let id = event.extension_text(extension::CALL_ID);
        let id = id.and_then(|text| text.parse::<ReplyId>().ok());
        let request = id.and_then(|id| Some((id, self.pending().request(id.call)?)));
        request
            .is_some_and(|(id, request)| self.is_proved(&request, id) && request.is_request(event))
    }

    fn is_proved(&self, request: &CallRequest, id: ReplyId) -> bool {
        self.tokens().verify(request.id, id.token).is_ok()
    }

    /// Counts, logs and records that an answer to a call is rejected.
    fn reject(&self, at: ReadAt<'_>, request: &CallRequest, why: Rejection) {
        request.note_rejected(why);
        let rejected = AnswerOutcome::Rejected(request.id.call, why);
        self.count_reply(rejected.outcome());
        self.log_reply(&rejected, at);
    }

    fn log_reply(&self, answered: &AnswerOutcome, at: ReadAt<'_>) {
        let topic = at.topic;
        match answered {
            AnswerOutcome::Rejected(call, why) => self.log_rejected(answered, *call, *why, topic),
            AnswerOutcome::Foreign(call) if !self.channels().is_ours(*call) => {
                self.ended().log_foreign(*call, topic);
            }
            AnswerOutcome::Forward(forward) => {
                let call = forward.call.as_ref().and_then(|call| call.parse().ok());
                if let Some(call) = call {
                    self.ended().log_foreign(call, topic);
                }
            }
            _ => {
                // Other replicas read all partitions of the reply topic, and all messages of a whole topic.
                let channels = self.channels();
                let is_read_by_others =
                    channels.is_reply_topic(at.bus, topic) || channels.is_whole(at.bus, topic);
                let is_of_binding = at.reader == Reader::Binding && !is_read_by_others;
                self.ended().log(answered, topic, is_of_binding);
            }
        }
    }

    fn log_rejected(&self, answered: &AnswerOutcome, call: CallId, why: Rejection, topic: &Topic) {
        if let Some(suppressed) = self.ended().rejected.allow() {
            let agent = self.pending().agent_of(call);
            let topic = shown_topic(topic.as_str());
            tracing::warn!(
                %call, agent = agent.as_deref(), %topic, reason = answered.outcome().as_str(),
                why = why.message(), fix = why.fix(), suppressed,
                "an answer was rejected; its call keeps waiting"
            );
        }
    }

    fn answers_in(&self, at: ReadAt<'_>, binding: ProtocolBinding) -> Vec<AnswerOutcome> {
        let (event, units) = match read_units(at, binding) {
            Ok(unit) => unit,
            Err(error) => return vec![self.unreadable(at, error.kind().as_str(), &error)],
        };
        let batch = (units.len() > 1).then_some(Batch {
            event: event.as_ref(),
            binding,
        });
        let take = |unit| self.take_answer((at, binding), unit, batch);
        units.into_iter().map(take).collect()
    }

    fn take_answer(
        &self,
        (at, binding): (ReadAt<'_>, ProtocolBinding),
        unit: AnswerUnit,
        batch: Option<Batch<'_>>,
    ) -> AnswerOutcome {
        let Some(id) = call_of(at, &unit, batch.is_some()) else {
            let known = of_cancel(&unit).or_else(|| self.damaged(at, &unit));
            return known.unwrap_or_else(|| {
                AnswerOutcome::Uncorrelated(uncorrelated(unit, batch.is_some()))
            });
        };
        if is_of_stream(at.message, &unit, binding) {
            if let Some(request) = self.pending().request(id.call) {
                request.note_rejected(Rejection::OfStream);
            }
            return AnswerOutcome::Rejected(id.call, Rejection::OfStream);
        }
        if unit.is_push() && !self.channels().is_ours(id.call) {
            // The mark counts for nothing at the reply address of the other replica: the push would end the call there.
            return AnswerOutcome::Foreign(id.call);
        }
        let limits = &at.rules.limits;
        let message = || match (&unit.body, batch) {
            // The replica of the call could not use it either.
            (Body::Broken { why, .. }, _) if unit.raw.len() > limits.max_bytes => {
                in_place_of_answer(&id.to_string(), why)
            }
            (_, Some(batch)) => batch.alone(at.message, &unit, id),
            (_, None) => at.message.clone(),
        };
        let mut is_duplicate = false;
        let answered = self.resolve(at, (id, unit.index), message, |request, progress| {
            let before = duplicates(progress);
            let parts = rendered(at, &unit, request, progress);
            is_duplicate = duplicates(progress) > before;
            if is_duplicate && unit.is_last(request.streamed) {
                progress.rejected = Some(Rejection::Duplicate);
            }
            parts
        });
        match answered {
            AnswerOutcome::Delivered if is_duplicate => {
                AnswerOutcome::Rejected(id.call, Rejection::Duplicate)
            }
            AnswerOutcome::Delivered if batch.is_none() => {
                let named = (&unit, other_call_in_headers(at, id.call));
                self.ended().log_contradiction(id.call, named, at.topic);
                AnswerOutcome::Delivered
            }
            answered => answered,
        }
    }

    /// Rejects an answer whose id begins with the id of a pending call, but is truncated or changed after it.
    fn damaged(&self, at: ReadAt<'_>, unit: &AnswerUnit) -> Option<AnswerOutcome> {
        let attribute = |name| unit.event.as_ref()?.extension_text(name).map(Text::as_str);
        let attributes = [extension::CALL_ID, extension::COLLABORATION_ID];
        let attributes = attributes.into_iter().filter_map(attribute);
        let own = unit.own_correlation();
        let own = own.as_ref().map(Text::as_str);
        let mut texts = attributes.chain(of_message(at)).chain(own);
        texts.find_map(|text| {
            let call = text.get(..CALL_ID_CHARS)?.parse().ok()?;
            let request = self.pending().request(call)?;
            let why = if text.len() < 2 * CALL_ID_CHARS {
                Rejection::Shortened
            } else {
                Rejection::WrongToken
            };
            request.note_rejected(why);
            Some(AnswerOutcome::Rejected(call, why))
        })
    }

    /// Handles a message whose headers cannot be read, or whose structured event is not JSON: its call fails at once.
    fn unreadable(
        &self,
        at: ReadAt<'_>,
        code: &'static str,
        error: &dyn std::error::Error,
    ) -> AnswerOutcome {
        let detail = error.to_string();
        match call_of_unreadable(at, code) {
            Some(id) => {
                let error = CallError::BadAnswer(detail.into());
                let message = || at.message.clone();
                self.resolve(at, (id, 0), message, |_, _| Some(Err(error)))
            }
            None => AnswerOutcome::Uncorrelated(Unanswerable {
                code,
                detail,
                unit: None,
            }),
        }
    }

    /// Fails the call whose request has no subscribers. NATS reports this once, on the reply subject, to one of the
    /// connection's subscriptions that match.
    pub fn no_responders(&self, at: ReadAt<'_>, binding: ProtocolBinding) -> bool {
        if binding != ProtocolBinding::Nats {
            return false;
        }
        let status = at.message.headers.get(NATS_STATUS_HEADER);
        if status.is_none_or(|status| status != "503") {
            return false;
        }
        let Some(id) = last_word(at.topic) else {
            return false;
        };
        // Whoever waits for the answer knows the subject.
        let error = CallError::NoSubscriber(Text::from_static("its subject"));
        // The NATS server answers on the reply subject, which contains the token. Others do not know it.
        let message = || at.message.clone();
        let answered = self.resolve(at, (id, 0), message, |_, _| Some(Err(error)));
        matches!(answered, AnswerOutcome::Delivered)
    }

    /// Hands an answer, which is this unit of the message, to the call `id`, or forwards `message` to the replica that
    /// made the call.
    fn resolve(
        &self,
        at: ReadAt<'_>,
        (id, unit): (ReplyId, usize),
        message: impl FnOnce() -> Message,
        parts: impl FnOnce(&CallRequest, &mut Progress) -> Option<Result<Parts, CallError>>,
    ) -> AnswerOutcome {
        let (call, channels) = (id.call, self.channels());
        let is_home = channels.is_home(call, at.bus, at.topic, at.position());
        let is_ours = channels.is_ours(call);
        // The reply channel of its replica takes it. Another process may not read a topic that every replica should read
        // whole, and this one does so only while its reply channel reads.
        let is_whole = channels.is_whole(at.bus, at.topic);
        let is_taken_there = match is_whole {
            true => is_ours && channels.is_reading(at.bus),
            false => is_home,
        };
        if is_taken_there && at.reader == Reader::Binding {
            return AnswerOutcome::Foreign(call);
        }
        if is_ours {
            let answered = self.hand_over(id, at.source_of(unit), parts);
            if at.origin.is_some() && matches!(answered, AnswerOutcome::Delivered) {
                self.pending().note_stored_part(call, at.bus);
            }
            return answered;
        }
        if at.reader == Reader::ReplyChannel {
            return match is_home || channels.is_shared(at.bus, at.topic) {
                true => AnswerOutcome::Foreign(call),
                false => AnswerOutcome::Rejected(call, Rejection::WrongTopic),
            };
        }
        channels.note_misplaced(at.bus);
        if at.message.headers.get(FORWARDS).is_some() {
            return AnswerOutcome::Looped(call);
        }
        let read_in = (at.bus, at.topic);
        let from = match at.origin {
            Some(origin) if !is_whole => AnswerSource::header(&origin.identity(), unit),
            // Who reads this topic whole ignores the copy.
            _ => at.topic.to_string(),
        };
        match channels.forward(id, read_in, from, message()) {
            Some(forward) => AnswerOutcome::Forward(Box::new(forward)),
            None => AnswerOutcome::Foreign(call),
        }
    }

    /// Hands an answer to a call of this replica, unless the call has taken it from the same source before.
    fn hand_over(
        &self,
        id: ReplyId,
        source: Option<AnswerSource>,
        parts: impl FnOnce(&CallRequest, &mut Progress) -> Option<Result<Parts, CallError>>,
    ) -> AnswerOutcome {
        let call = id.call;
        let (mut verified, mut is_new, mut made) = (Ok(()), true, None);
        let handed = self.pending().hand_over(call, |request, progress| {
            made = Some((request.id, request.agent.clone()));
            verified = self.tokens().verify(request.id, id.token);
            if let Err(why) = verified {
                progress.rejected = Some(why);
                return None;
            }
            is_new = source.is_none_or(|source| progress.sources.note(source));
            if is_new {
                parts(request, progress)
            } else {
                None
            }
        });
        // A second answer may be read before the task of the caller notes that the call has ended.
        if let Some((id, agent)) = made.filter(|_| !self.pending().contains(call)) {
            self.ended().note(id, &agent);
        }
        match (handed, verified) {
            (_, Err(why)) => AnswerOutcome::Rejected(call, why),
            (HandOver::Over, Ok(())) => AnswerOutcome::Delivered,
            (HandOver::Late, Ok(())) => self.ended().outcome_of(call),
            (HandOver::Nothing, Ok(())) if !is_new => AnswerOutcome::Repeated(call),
            (HandOver::Nothing, Ok(())) => AnswerOutcome::Request(call),
        }
    }
}

/// The call that a response, or a part of one, names; `None` if it does not repeat the id of a bridge's request.
pub(crate) fn answered_call(event: &Event) -> Option<CallId> {
    let is_answer = matches!(kind_of_event(event), Kind::Response | Kind::Stream);
    let id_in = |name| event.extension_text(name)?.parse::<ReplyId>().ok();
    let id = id_in(extension::CALL_ID).or_else(|| id_in(extension::COLLABORATION_ID))?;
    is_answer.then_some(id.call)
}

/// Whether a message of one unit names the call that it answers, in its headers or in its body.
pub(crate) fn names_call(at: ReadAt<'_>, binding: ProtocolBinding) -> bool {
    let units = read_units(at, binding).map(|(_, units)| units);
    units.is_ok_and(|units| units.iter().any(|unit| call_of(at, unit, false).is_some()))
}

/// The units of a message, and the CloudEvent around them.
fn read_units(
    at: ReadAt<'_>,
    binding: ProtocolBinding,
) -> Result<(Option<Event>, answer_unit::Units), EventError> {
    let limits = &at.rules.limits;
    let (event, body) = match content_mode::read(binding, at.message, limits)? {
        Content::Event(event) => (Some(event), at.message.body.clone()),
        Content::Plain { body, .. } => (None, Some(body)),
    };
    // In structured mode the body is the event itself; in binary mode it is the data.
    let body = event.as_ref().map_or(body, |event| Some(event.body()));
    let units = answer_unit::units(&body.unwrap_or_default(), event.as_ref(), at.trust, limits);
    Ok((event, units))
}

/// How many E2A records of an answer were dropped as duplicates.
fn duplicates(progress: &Progress) -> u64 {
    progress.fold.as_ref().map_or(0, Fold::duplicates)
}

/// Renders a unit for its call; `None` if it is the request itself.
fn rendered(
    at: ReadAt<'_>,
    unit: &AnswerUnit,
    request: &CallRequest,
    progress: &mut Progress,
) -> Option<Result<Parts, CallError>> {
    let event = unit.event.as_ref();
    if event.is_some_and(|event| request.is_request(event)) {
        return None;
    }
    if let Some(error) = error_in_headers(at.message, unit) {
        return Some(Err(error));
    }
    let (fold, limits) = (&mut progress.fold, &at.rules.limits);
    Some(render::parts_of(request, fold, unit, limits))
}

/// Whether the data of an event contain a request, whatever its headers say.
fn contains_request(event: &Event, limits: &Limits) -> bool {
    let units = answer_unit::units(&event.body(), None, Trust::Untrusted, limits);
    units.iter().any(AnswerUnit::is_request)
}

/// Whether the data of an event contain an answer, whatever its headers say.
fn contains_answer(event: &Event, limits: &Limits) -> bool {
    let units = answer_unit::units(&event.body(), None, Trust::Untrusted, limits);
    units.iter().any(AnswerUnit::is_answer)
}

/// The properties that all units of one message share.
#[derive(Clone, Copy)]
struct Batch<'a> {
    /// The CloudEvent around them.
    event: Option<&'a Event>,
    /// The protocol binding of its bus.
    binding: ProtocolBinding,
}

// === impl Batch ===

impl Batch<'_> {
    /// One unit as a separate message, which names only its own call.
    fn alone(self, message: &Message, unit: &AnswerUnit, id: ReplyId) -> Message {
        let id = id.to_string();
        let written = self.event.and_then(|event| {
            let mut event = event.clone();
            event
                .set(extension::CALL_ID, Text::from(id.as_str()))
                .ok()?;
            event.set_data(Some(Data::from(unit.raw.clone())));
            content_mode::write(self.binding, &event, ContentMode::Binary).ok()
        });
        let mut alone = written.unwrap_or_else(|| {
            let mut plain = Message::plain(unit.raw.clone());
            plain.headers.push(spring::CORRELATION_ID, id);
            plain
        });
        alone.key.clone_from(&message.key);
        alone
    }
}

/// The outcome of an answer to a cancel, if the cancel was a request, as in A2A. Nothing waits for such an answer,
/// which repeats the id of the cancel.
fn of_cancel(unit: &AnswerUnit) -> Option<AnswerOutcome> {
    let id = unit.own_correlation().filter(|_| unit.is_answer())?;
    cancelled_by(id.as_str()).map(AnswerOutcome::OfCancel)
}

fn uncorrelated(unit: AnswerUnit, is_one_of_several: bool) -> Unanswerable {
    let (code, detail) = match &unit.body {
        Body::Broken { why, .. } => ("unreadable", why.to_string()),
        _ if unit.is_request() => (
            "not_an_answer",
            "expected an answer, but the message is a request".to_owned(),
        ),
        _ => (
            "uncorrelated",
            "the answer names no call: repeat the callid attribute, or the id of the request"
                .to_owned(),
        ),
    };
    Unanswerable {
        code,
        detail,
        unit: is_one_of_several.then_some((unit.index, unit.raw)),
    }
}

/// Whether a unit is what JetStream publishes to the reply subject of a message that a stream takes: that it is stored,
/// or why it is not.
fn is_of_stream(message: &Message, unit: &AnswerUnit, binding: ProtocolBinding) -> bool {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Confirmation {
        stream: Option<IgnoredAny>,
        seq: Option<u64>,
        error: Option<StreamError>,
        #[serde(rename = "domain")]
        _domain: Option<IgnoredAny>,
        #[serde(rename = "duplicate")]
        _duplicate: Option<IgnoredAny>,
        #[serde(rename = "val")]
        _value: Option<IgnoredAny>,
    }
    #[derive(Deserialize)]
    struct StreamError {
        #[serde(rename = "err_code")]
        _code: u32,
    }
    binding == ProtocolBinding::Nats
        && matches!(unit.body, Body::Json)
        && message.headers.is_empty()
        && serde_json::from_slice::<Confirmation>(&unit.payload).is_ok_and(|confirmation| {
            let is_stored = confirmation.stream.is_some() && confirmation.seq.is_some();
            is_stored || confirmation.error.is_some()
        })
}

/// The call that an answer names. In a message of one unit, the sources in order are: the `callid` of its event, its
/// headers, its subject, the `collaborationid` of its event, and the id that its body repeats. In a batch each unit
/// names its own call, so its body comes first. Any source that names the same call may contribute the token.
fn call_of(at: ReadAt<'_>, unit: &AnswerUnit, is_one_of_several: bool) -> Option<ReplyId> {
    let event = unit.event.as_ref();
    let attribute = |name| event.and_then(|event| event.extension_text(name));
    let attribute = |name| attribute(name).map(Text::as_str).into_iter();
    let call = attribute(extension::CALL_ID);
    let collaboration = attribute(extension::COLLABORATION_ID);
    let own = std::iter::once_with(|| unit.own_correlation()?.parse().ok()).flatten();
    if is_one_of_several {
        with_token(own.chain(ids(call.chain(collaboration).chain(of_message(at)))))
    } else {
        with_token(ids(call.chain(of_message(at)).chain(collaboration)).chain(own))
    }
}

/// The call of an answer whose headers cannot be read, or whose structured event is not JSON.
fn call_of_unreadable(at: ReadAt<'_>, code: &str) -> Option<ReplyId> {
    let own = || {
        let body = at.message.body.as_deref();
        let body = body.filter(|_| code == EventErrorKind::MalformedEvent.as_str());
        answer_unit::call_in_broken(body?, &at.rules.limits)?
            .parse()
            .ok()
    };
    let own = std::iter::once_with(own).flatten();
    with_token(ids(of_message(at)).chain(own))
}

/// The texts by which a message as a whole may name its call: headers, the subject, and the `collaborationid`. A
/// message that is not a CloudEvent may still repeat its headers.
fn of_message(at: ReadAt<'_>) -> impl Iterator<Item = &str> {
    let collaboration = move || attribute_header(at.message, extension::COLLABORATION_ID);
    let last = std::iter::once_with(collaboration).flatten();
    let last = last.filter_map(|value| std::str::from_utf8(value).ok());
    of_headers_and_subject(at).chain(last)
}

/// The same without the `collaborationid`.
fn of_headers_and_subject(at: ReadAt<'_>) -> impl Iterator<Item = &str> {
    let headers = [
        at.message.headers.get(spring::CORRELATION_ID),
        attribute_header(at.message, extension::CALL_ID),
    ];
    let headers = headers.into_iter().flatten();
    let headers = headers.filter_map(|value| std::str::from_utf8(value).ok());
    headers.chain(at.topic.as_str().rsplit('.').next())
}

/// The call that the headers or the subject of a message name, if it is [another one](CallId::other_in) than this.
fn other_call_in_headers(at: ReadAt<'_>, call: CallId) -> Option<CallId> {
    of_headers_and_subject(at).find_map(|text| call.other_in(text))
}

fn ids<'a>(texts: impl Iterator<Item = &'a str>) -> impl Iterator<Item = ReplyId> {
    texts.filter_map(|text| text.parse().ok())
}

/// The first id. If it has no token, it gets the token of a later id of the same call.
fn with_token(mut ids: impl Iterator<Item = ReplyId>) -> Option<ReplyId> {
    let first = ids.next()?;
    let of_same = |id: ReplyId| id.token.filter(|_| id.call == first.call);
    let token = first.token.or_else(|| ids.find_map(of_same));
    Some(ReplyId { token, ..first })
}

/// The error in the headers of a message: of a replica that could not forward the answer, or of a NATS service. If the
/// body of the latter is JSON-RPC, it says more. Source: NATS ADR-32.
fn error_in_headers(message: &Message, unit: &AnswerUnit) -> Option<CallError> {
    if let Some(why) = why_not_forwarded(message) {
        return Some(CallError::BadAnswer(why));
    }
    let header = |name| message.headers.get(name);
    let error = header("Nats-Service-Error").filter(|error| !error.is_empty())?;
    if matches!(unit.body, Body::Rpc(_)) {
        return None;
    }
    let code = header("Nats-Service-Error-Code").map_or(&b""[..], |code| code);
    let [code, error] = [code, error].map(|text| String::from_utf8_lossy(text));
    let space = if code.is_empty() { "" } else { " " };
    let why = format!("the NATS service reports error{space}{code}: {error}");
    Some(CallError::BadAnswer(
        why.chars().take(SERVICE_ERROR).collect::<String>().into(),
    ))
}

fn last_word(topic: &Topic) -> Option<ReplyId> {
    let last = topic.as_str().rsplit('.').next()?;
    last.parse().ok()
}
