//! Is this message the answer to a call, and whose?
//!
//! An agent may answer with a CloudEvent, with headers copied from the request, or with nothing but a JSON-RPC response
//! that repeats the id it was given. All of them lead to the call id. What comes to a place for answers is an answer
//! whatever its headers say; only the request itself is none. Source: docs/design.md §1 and §2.

use a2abus_plugin::{Data, Event, EventError, Kind, Limits, Text, extension, kind_of_event};
use a2abus_transports::content_mode::{self, Binding, Content, ContentMode};
use a2abus_transports::{Delivery, Message, NATS_STATUS_HEADER, Topic};

use crate::bus::BusId;
use crate::calls::answer_outcome::{AnswerOutcome, Unanswerable};
use crate::calls::answer_unit::{self, AnswerUnit, Body};
use crate::calls::callid::{CALL_ID_CHARS, CallId, ReplyId, shown_topic};
use crate::calls::error::CallError;
use crate::calls::pending::{CallRequest, HandOver, Parts, Progress};
use crate::calls::render;
use crate::calls::reply::{FORWARDS, spring};
use crate::calls::reply_place::attribute_header;
use crate::calls::reply_token::Rejection;
use crate::calls::service::Calls;
use crate::rules::Rules;

/// Where a message was read.
#[derive(Debug, Clone, Copy)]
pub struct ReadAt<'a> {
    /// The rules that count for it.
    pub rules: &'a Rules,
    /// The bus.
    pub bus: BusId,
    /// The topic.
    pub topic: &'a Topic,
    /// The position.
    pub origin: Option<&'a Text>,
    /// The message itself.
    pub message: &'a Message,
    /// Where its sender awaits an answer.
    pub reply_to: Option<&'a Topic>,
    /// The reader.
    pub reader: Reader,
}

/// The reader of a topic that may have answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// The reply channel of this replica: what is there is for this replica, or for one that shares the place.
    ReplyChannel,
    /// A binding: what is at the place its call id names is read by the reply channel of that replica as well.
    Binding,
}

// === impl ReadAt ===

impl<'a> ReadAt<'a> {
    /// A delivery that was read, and the rules of that moment.
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
        }
    }
}

// === impl Calls ===

impl Calls {
    /// Takes what a message at a place for answers says to the calls it answers; one outcome for each of its units, in
    /// their order. `binding` is how its bus writes CloudEvents.
    /// Each is counted, and what reaches no caller is logged.
    #[must_use]
    pub fn take_answers(&self, at: ReadAt<'_>, binding: Binding) -> Vec<AnswerOutcome> {
        let answered = self.answers_in(at, binding);
        for answered in &answered {
            self.count_reply(answered.outcome());
            self.log_reply(answered, at.topic);
        }
        answered
    }

    /// What a message says to calls whose answers are followed and that this process has not made. What cannot be read is
    /// for the replica of its call to report.
    pub(crate) fn to_others(&self, at: ReadAt<'_>, binding: Binding) -> Vec<(ReplyId, AnswerUnit)> {
        let is_for_others = |id: &ReplyId| id.call.is_followed() && !self.is_made_here(id.call);
        let named = with_token(ids(of_message(at)));
        let is_status = at.message.headers.get(NATS_STATUS_HEADER).is_some();
        if is_status || named.is_some_and(|named| !is_for_others(&named)) {
            return Vec::new();
        }
        let Ok((_, units)) = said_in(at, binding) else {
            return Vec::new();
        };
        let is_one_of_several = units.len() > 1;
        let said = units.into_iter().filter_map(|said| {
            let id = call_of(at, &said, is_one_of_several)?;
            is_for_others(&id).then_some((id, said))
        });
        said.collect()
    }

    /// Whether this process has made a call, and not long ago.
    fn is_made_here(&self, call: CallId) -> bool {
        self.channels().is_ours(call)
            && (self.pending().contains(call) || self.ended().reply_id(call).is_some())
    }

    /// Notes an event that was read where no answers are taken, if it answers a call which waits here. Gives back the
    /// call when the event is an answer under the headers of its request: to route it would ask the agent again.
    pub(crate) fn misplaced_answer(&self, at: ReadAt<'_>, event: &Event) -> Option<CallId> {
        let limits = &at.rules.limits;
        let id_in = |name| event.extension_text(name)?.parse::<ReplyId>().ok();
        let own = id_in(extension::CALL_ID);
        let is_marked = event.extension(extension::MCP_TYPE).is_some();
        match kind_of_event(event) {
            Kind::Response | Kind::Stream => {
                let ids = [own, id_in(extension::COLLABORATION_ID)];
                for id in ids.into_iter().flatten() {
                    if let Some(asked) = self.pending().asked(id.call) {
                        let why = self.tokens().verify(asked.id, id.token).err();
                        let why = why.unwrap_or(Rejection::WrongPlace);
                        self.reject(at, &asked, why);
                        break;
                    }
                }
                None
            }
            Kind::Notification if is_marked => None,
            Kind::Request | Kind::Notification => {
                let id = own?;
                let asked = self.pending().asked(id.call);
                let verified = asked.filter(|asked| self.is_proved(asked, id));
                let is_answer = match &verified {
                    Some(asked) => !is_asking(event, limits) && !asked.is_request(event),
                    None => is_answering(event, limits),
                };
                if let Some(asked) = verified.filter(|_| is_answer) {
                    self.reject(at, &asked, Rejection::WrongPlace);
                }
                is_answer.then_some(id.call)
            }
        }
    }

    /// Whether an event is a request that this process has published for a call which waits.
    pub(crate) fn is_own_request(&self, event: &Event) -> bool {
        let id = event.extension_text(extension::CALL_ID);
        let id = id.and_then(|text| text.parse::<ReplyId>().ok());
        let asked = id.and_then(|id| Some((id, self.pending().asked(id.call)?)));
        asked.is_some_and(|(id, asked)| self.is_proved(&asked, id) && asked.is_request(event))
    }

    fn is_proved(&self, asked: &CallRequest, id: ReplyId) -> bool {
        self.tokens().verify(asked.id, id.token).is_ok()
    }

    /// Counts, logs and remembers that an answer to a call is rejected.
    fn reject(&self, at: ReadAt<'_>, asked: &CallRequest, why: Rejection) {
        asked.note_rejected(why);
        let rejected = AnswerOutcome::Rejected(asked.id.call, why);
        self.count_reply(rejected.outcome());
        self.log_reply(&rejected, at.topic);
    }

    fn log_reply(&self, answered: &AnswerOutcome, topic: &Topic) {
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
            _ => self.ended().log(answered, topic),
        }
    }

    fn log_rejected(&self, answered: &AnswerOutcome, call: CallId, why: Rejection, topic: &Topic) {
        if let Some(suppressed) = self.ended().rejected.allow() {
            let agent = self.pending().agent_of(call);
            let topic = shown_topic(topic.as_str());
            tracing::warn!(
                %call, agent = agent.as_deref(), %topic, reason = answered.outcome().as_str(),
                why = why.what(), cure = why.cure(), suppressed,
                "an answer was rejected; its call keeps waiting"
            );
        }
    }

    fn answers_in(&self, at: ReadAt<'_>, binding: Binding) -> Vec<AnswerOutcome> {
        let (event, units) = match said_in(at, binding) {
            Ok(said) => said,
            Err(error) => return vec![self.unreadable(at, error.kind().as_str(), &error)],
        };
        let batch = (units.len() > 1).then_some(Batch {
            event: event.as_ref(),
            binding,
        });
        let take = |said| self.take_answer(at, said, batch);
        units.into_iter().map(take).collect()
    }

    fn take_answer(
        &self,
        at: ReadAt<'_>,
        said: AnswerUnit,
        batch: Option<Batch<'_>>,
    ) -> AnswerOutcome {
        let Some(id) = call_of(at, &said, batch.is_some()) else {
            let damaged = self.damaged(at, &said);
            return damaged.unwrap_or_else(|| {
                AnswerOutcome::Uncorrelated(uncorrelated(said, batch.is_some()))
            });
        };
        let message = || match batch {
            Some(batch) => batch.alone(at.message, &said, id),
            None => at.message.clone(),
        };
        self.resolve(at, id, message, |asked, progress| {
            if said
                .event
                .as_ref()
                .is_some_and(|event| asked.is_request(event))
            {
                return None;
            }
            let fold = &mut progress.fold;
            Some(render::parts_of(asked, fold, &said, &at.rules.limits))
        })
    }

    /// An answer whose id begins with that of a call which waits here, and is none: its end was cut off, or changed.
    fn damaged(&self, at: ReadAt<'_>, said: &AnswerUnit) -> Option<AnswerOutcome> {
        let attribute = |name| said.event.as_ref()?.extension_text(name).map(Text::as_str);
        let attributes = [extension::CALL_ID, extension::COLLABORATION_ID];
        let attributes = attributes.into_iter().filter_map(attribute);
        let own = said.own_correlation();
        let own = own.as_ref().map(Text::as_str);
        let mut texts = attributes.chain(of_message(at)).chain(own);
        texts.find_map(|text| {
            let call = text.get(..CALL_ID_CHARS)?.parse().ok()?;
            let asked = self.pending().asked(call)?;
            let why = if text.len() < 2 * CALL_ID_CHARS {
                Rejection::Shortened
            } else {
                Rejection::WrongToken
            };
            asked.note_rejected(why);
            Some(AnswerOutcome::Rejected(call, why))
        })
    }

    /// A message whose headers cannot be read: the call that it was sent to fails at once.
    fn unreadable(
        &self,
        at: ReadAt<'_>,
        code: &'static str,
        error: &dyn std::error::Error,
    ) -> AnswerOutcome {
        let detail = error.to_string();
        match with_token(ids(of_message(at))) {
            Some(id) => {
                let error = CallError::BadAnswer(detail.into());
                let message = || at.message.clone();
                self.resolve(at, id, message, |_, _| Some(Err(error)))
            }
            None => AnswerOutcome::Uncorrelated(Unanswerable {
                code,
                detail,
                unit: None,
            }),
        }
    }

    /// Fails the call whose request found nobody listening. NATS says so once, on the reply subject, to any of the
    /// subscriptions that the publishing connection has for it.
    pub fn no_responders(&self, at: ReadAt<'_>, binding: Binding) -> bool {
        if binding != Binding::Nats {
            return false;
        }
        let status = at.message.headers.get(NATS_STATUS_HEADER);
        if status.is_none_or(|status| status != "503") {
            return false;
        }
        let Some(id) = last_word(at.topic) else {
            return false;
        };
        let error = CallError::nobody_there();
        // The server answers on the subject of the request, which has the token; others do not know it.
        let message = || at.message.clone();
        let answered = self.resolve(at, id, message, |_, _| Some(Err(error)));
        matches!(answered, AnswerOutcome::Delivered)
    }

    /// Hands what an answer says to the call `id`, or sends `message` on to the replica that made the call.
    fn resolve(
        &self,
        at: ReadAt<'_>,
        id: ReplyId,
        message: impl FnOnce() -> Message,
        parts: impl FnOnce(&CallRequest, &mut Progress) -> Option<Result<Parts, CallError>>,
    ) -> AnswerOutcome {
        let call = id.call;
        let is_home = self.channels().is_home(call, at.bus, at.topic, at.origin);
        if is_home && at.reader == Reader::Binding {
            return AnswerOutcome::Foreign(call);
        }
        if self.channels().is_ours(call) {
            let mut verified = Ok(());
            let handed = self.pending().hand_over(call, |asked, progress| {
                verified = self.tokens().verify(asked.id, id.token);
                match verified {
                    Ok(()) => parts(asked, progress),
                    Err(why) => {
                        progress.rejected = Some(why);
                        None
                    }
                }
            });
            return match (handed, verified) {
                (_, Err(why)) => AnswerOutcome::Rejected(call, why),
                (HandOver::Over, Ok(())) => AnswerOutcome::Delivered,
                (HandOver::Late, Ok(())) => AnswerOutcome::Late(call),
                (HandOver::Nothing, Ok(())) => AnswerOutcome::Request(call),
            };
        }
        if at.reader == Reader::ReplyChannel && !is_home && !self.channels().is_shared(at.bus) {
            return AnswerOutcome::Rejected(call, Rejection::WrongPlace);
        }
        if is_home || at.reader == Reader::ReplyChannel {
            return AnswerOutcome::Foreign(call);
        }
        self.channels().note_misplaced(at.bus);
        if at.message.headers.get(FORWARDS).is_some() {
            return AnswerOutcome::Looped(call);
        }
        match self.channels().forward(id, at.bus, message()) {
            Some(forward) => AnswerOutcome::Forward(Box::new(forward)),
            None => AnswerOutcome::Foreign(call),
        }
    }
}

/// The units of a message, and the event around them.
fn said_in(
    at: ReadAt<'_>,
    binding: Binding,
) -> Result<(Option<Event>, answer_unit::Units), EventError> {
    let limits = &at.rules.limits;
    let (event, body) = match content_mode::read(binding, at.message, limits)? {
        Content::Event(event) => (Some(event), at.message.body.clone()),
        Content::Plain { body, .. } => (None, Some(body)),
    };
    // An event in structured mode is its own body; in binary mode its data are the body.
    let body = event.as_ref().map_or(body, |event| Some(event.body()));
    let units = answer_unit::units(&body.unwrap_or_default(), event.as_ref(), limits);
    Ok((event, units))
}

/// Whether an event carries a message that asks for something, whatever its headers say.
fn is_asking(event: &Event, limits: &Limits) -> bool {
    let units = answer_unit::units(&event.body(), None, limits);
    units.iter().any(AnswerUnit::is_request)
}

/// Whether an event carries a message that answers something, whatever its headers say.
fn is_answering(event: &Event, limits: &Limits) -> bool {
    let units = answer_unit::units(&event.body(), None, limits);
    units.iter().any(AnswerUnit::is_answer)
}

/// The properties that all units of one message share.
#[derive(Clone, Copy)]
struct Batch<'a> {
    /// The CloudEvent whose data they are.
    event: Option<&'a Event>,
    /// The protocol binding of its bus.
    binding: Binding,
}

// === impl Batch ===

impl Batch<'_> {
    /// One unit as a message of its own, which names its own call and no other.
    fn alone(self, message: &Message, said: &AnswerUnit, id: ReplyId) -> Message {
        let id = id.to_string();
        let written = self.event.and_then(|event| {
            let mut event = event.clone();
            event
                .set(extension::CALL_ID, Text::from(id.as_str()))
                .ok()?;
            event.set_data(Some(Data::from(said.unit.clone())));
            content_mode::write(self.binding, &event, ContentMode::Binary).ok()
        });
        let mut alone = written.unwrap_or_else(|| {
            let mut plain = Message::plain(said.unit.clone());
            plain.headers.push(spring::CORRELATION_ID, id);
            plain
        });
        alone.key.clone_from(&message.key);
        alone
    }
}

fn uncorrelated(said: AnswerUnit, is_one_of_several: bool) -> Unanswerable {
    let (code, detail) = match &said.body {
        Body::Broken { why, .. } => ("unreadable", why.to_string()),
        _ if said.is_request() => (
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
        unit: is_one_of_several.then_some((said.index, said.unit)),
    }
}

/// The call that an answer names. A message of one unit: by the `callid` of its event, its headers, the subject it came
/// on, the `collaborationid` of its event, or what its body repeats, in this order. In a batch each unit names its own
/// call, so that its body comes first. Any of those that name the same call may bring the token.
fn call_of(at: ReadAt<'_>, said: &AnswerUnit, is_one_of_several: bool) -> Option<ReplyId> {
    let event = said.event.as_ref();
    let attribute = |name| event.and_then(|event| event.extension_text(name));
    let attribute = |name| attribute(name).map(Text::as_str).into_iter();
    let call = attribute(extension::CALL_ID);
    let collaboration = attribute(extension::COLLABORATION_ID);
    let own = std::iter::once_with(|| said.own_correlation()?.parse().ok()).flatten();
    if is_one_of_several {
        with_token(own.chain(ids(call.chain(collaboration).chain(of_message(at)))))
    } else {
        with_token(ids(call.chain(of_message(at)).chain(collaboration)).chain(own))
    }
}

/// The texts by which a message names the call that it was sent to, whatever is in it: headers, then the subject. A
/// message that is no CloudEvent may repeat a header all the same.
fn of_message(at: ReadAt<'_>) -> impl Iterator<Item = &str> {
    let headers = [
        at.message.headers.get(spring::CORRELATION_ID),
        attribute_header(at.message, extension::CALL_ID),
    ];
    let headers = headers.into_iter().flatten();
    let headers = headers.filter_map(|value| std::str::from_utf8(value).ok());
    headers.chain(at.topic.as_str().rsplit('.').next())
}

fn ids<'a>(texts: impl Iterator<Item = &'a str>) -> impl Iterator<Item = ReplyId> {
    texts.filter_map(|text| text.parse().ok())
}

/// The first, with the token of another one for the same call where it has none itself.
fn with_token(mut ids: impl Iterator<Item = ReplyId>) -> Option<ReplyId> {
    let first = ids.next()?;
    let of_same = |id: ReplyId| id.token.filter(|_| id.call == first.call);
    let token = first.token.or_else(|| ids.find_map(of_same));
    Some(ReplyId { token, ..first })
}

fn last_word(topic: &Topic) -> Option<ReplyId> {
    let last = topic.as_str().rsplit('.').next()?;
    last.parse().ok()
}
