//! Is this message the answer to a call, and whose?
//!
//! An agent may answer with a CloudEvent, with headers copied from the request, or with nothing but a JSON-RPC response
//! that repeats the id it was given. All of them lead to the call id. What comes to a place for answers is an answer
//! whatever its headers say; only the request itself is none. Source: docs/design.md §1 and §2.

use std::sync::{Mutex, PoisonError};

use a2abus_plugin::{Event, Limits, Text, extension};
use a2abus_transports::content_mode::{self, Binding, Content};
use a2abus_transports::{Message, NATS_STATUS_HEADER, Topic};
use bytes::Bytes;
use tracing::Level;

use crate::bus::BusId;
use crate::callid::{CallId, ReplyId, shown_topic};
use crate::calls::said::{self, Body, Said};
use crate::calls::{CallError, Calls, render};
use crate::metrics::ReplyOutcome;
use crate::outbound::Outgoing;
use crate::pending::{Asked, Fingerprint, Handed, Parts, Progress};
use crate::recent::Recent;
use crate::reply::spring;
use crate::reply_place::attribute_header;
use crate::reply_token::Forgery;
use crate::seldom::{LogLimits, Seldom};

/// Where a message was read.
#[derive(Debug, Clone, Copy)]
pub struct ReadAt<'a> {
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
    /// Who read it.
    pub reader: Reader,
}

/// Who reads a place where answers may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// The reply leg of this replica: what is there is for this replica, or for one that shares the place.
    ReplyLeg,
    /// A binding: what is at the place its call id names is read by the reply leg of that replica as well.
    Binding,
}

/// What became of one unit of a message that came to a place for answers.
#[derive(Debug)]
pub enum Answered {
    /// Its caller has it.
    Delivered,
    /// It answers a call of this replica that has ended: it comes too late, or a second time.
    Late(CallId),
    /// It answers a call of another replica, which reads this place too.
    Foreign(CallId),
    /// It answers a call of another replica, which reads elsewhere: send it there, then settle.
    Forward(Box<Outgoing>),
    /// It is the request itself.
    Request(CallId),
    /// It is not believed: the call goes on.
    Forged(CallId, Forgery),
    /// It answers no call that can be named.
    Uncorrelated(Unanswerable),
}

/// A unit that answers no call that can be named.
#[derive(Debug)]
pub struct Unanswerable {
    /// A stable word.
    pub code: &'static str,
    /// What is wrong, and the cure.
    pub detail: String,
    /// Which unit of the message, and its bytes; `None` for the message as a whole.
    pub unit: Option<(usize, Bytes)>,
}

impl Answered {
    /// How metrics count it.
    #[must_use]
    pub fn outcome(&self) -> ReplyOutcome {
        match self {
            Self::Delivered => ReplyOutcome::Delivered,
            Self::Late(_) => ReplyOutcome::Late,
            Self::Foreign(_) => ReplyOutcome::Foreign,
            Self::Forward(_) => ReplyOutcome::Forwarded,
            Self::Request(_) | Self::Uncorrelated(_) => ReplyOutcome::Unknown,
            Self::Forged(..) => ReplyOutcome::Forged,
        }
    }
}

// === impl Calls ===

impl Calls {
    /// Takes what a message at a place for answers says to the calls it answers; one outcome for each of its units, in
    /// their order. `binding` is how its bus writes CloudEvents.
    /// Each is counted, and what reaches no caller is logged.
    #[must_use]
    pub fn take_answers(&self, at: ReadAt<'_>, binding: Binding, limits: &Limits) -> Vec<Answered> {
        let answered = self.answers_in(at, binding, limits);
        for answered in &answered {
            self.count_reply(answered.outcome());
            self.log_reply(answered, at.topic);
        }
        answered
    }

    /// Notes an event that was read where no answers are taken, if it names a call which waits here.
    pub(crate) fn misplaced_answer(&self, at: ReadAt<'_>, event: &Event) {
        let names = [extension::CALL_ID, extension::COLLABORATION_ID];
        let texts = names.iter().filter_map(|name| event.extension_text(name));
        let mut ids = texts.filter_map(|text| text.parse::<ReplyId>().ok());
        if let Some(id) = ids.find(|id| self.pending().agent_of(id.call).is_some()) {
            let forged = Answered::Forged(id.call, Forgery::WrongPlace);
            self.count_reply(forged.outcome());
            self.log_reply(&forged, at.topic);
        }
    }

    fn log_reply(&self, answered: &Answered, topic: &Topic) {
        let Answered::Forged(call, why) = answered else {
            return self.ended().log(answered, topic);
        };
        if let Some(suppressed) = self.ended().alarms.allow() {
            let agent = self.pending().agent_of(*call);
            let topic = shown_topic(topic.as_str());
            tracing::warn!(
                %call, agent = agent.as_deref(), %topic, reason = answered.outcome().as_str(), why = why.detail(),
                suppressed, "an answer was rejected as forged; its call keeps waiting"
            );
        }
    }

    fn answers_in(&self, at: ReadAt<'_>, binding: Binding, limits: &Limits) -> Vec<Answered> {
        let (event, body) = match content_mode::read(binding, at.message, limits) {
            Ok(Content::Event(event)) => (Some(event), at.message.body.clone()),
            Ok(Content::Plain { body, .. }) => (None, Some(body)),
            Err(error) => return vec![self.unreadable(at, error.kind().as_str(), &error)],
        };
        // An event in structured mode is its own body; in binary mode its data are the body.
        let body = event.as_ref().map_or(body, |event| Some(event.body()));
        let units = said::units(&body.unwrap_or_default(), event.as_ref(), limits);
        let mut outcomes: Vec<Answered> = Vec::with_capacity(units.len());
        for said in units {
            let outcome = self.take_answer(at, said, limits);
            // The whole message is sent on, once.
            let is_sent = matches!(outcome, Answered::Forward(_))
                && outcomes
                    .iter()
                    .any(|earlier| matches!(earlier, Answered::Forward(_)));
            if !is_sent {
                outcomes.push(outcome);
            }
        }
        outcomes
    }

    fn take_answer(&self, at: ReadAt<'_>, said: Said, limits: &Limits) -> Answered {
        let Some(id) = call_of(at, &said) else {
            return Answered::Uncorrelated(uncorrelated(said));
        };
        self.resolve(at, id, |asked, progress| {
            let is_request = |event| Fingerprint::of(event) == asked.request;
            if said.event.as_ref().is_some_and(is_request) {
                return None;
            }
            let fold = &mut progress.fold;
            Some(render::parts_of(asked, fold, &said, limits))
        })
    }

    /// A message whose headers cannot be read: the call that it was sent to fails at once.
    fn unreadable(
        &self,
        at: ReadAt<'_>,
        code: &'static str,
        error: &dyn std::error::Error,
    ) -> Answered {
        let detail = error.to_string();
        match addressed(at, None) {
            Some(id) => {
                let error = CallError::BadAnswer(detail.into());
                self.resolve(at, id, |_, _| Some(Err(error)))
            }
            None => Answered::Uncorrelated(Unanswerable {
                code,
                detail,
                unit: None,
            }),
        }
    }

    /// Fails the call whose request found nobody listening (NATS says so on the reply subject).
    pub fn no_responders(&self, at: ReadAt<'_>) -> bool {
        let status = at.message.headers.get(NATS_STATUS_HEADER);
        let Some(id) = last_word(at.topic).filter(|_| status.is_some_and(|status| status == "503"))
        else {
            return false;
        };
        let error = CallError::Unavailable(Text::from_static("no agent listens on its subject"));
        // The server answers on the subject of the request, which has the token; others do not know it.
        let answered = self.resolve(at, id, |_, _| Some(Err(error)));
        matches!(answered, Answered::Delivered)
    }

    fn resolve(
        &self,
        at: ReadAt<'_>,
        id: ReplyId,
        parts: impl FnOnce(&Asked, &mut Progress) -> Option<Result<Parts, CallError>>,
    ) -> Answered {
        let call = id.call;
        let is_home = self.legs().is_home(call, at.bus, at.topic, at.origin);
        if is_home && at.reader == Reader::Binding {
            return Answered::Foreign(call);
        }
        if self.legs().is_ours(call) {
            let mut verified = Ok(());
            let handed = self.pending().hand_over(call, |asked, progress| {
                verified = self.tokens().verify(asked.id, id.token);
                verified.ok().and_then(|()| parts(asked, progress))
            });
            return match (handed, verified) {
                (_, Err(forgery)) => Answered::Forged(call, forgery),
                (Handed::Over, Ok(())) => Answered::Delivered,
                (Handed::Late, Ok(())) => Answered::Late(call),
                (Handed::Nothing, Ok(())) => Answered::Request(call),
            };
        }
        if at.reader == Reader::ReplyLeg && !is_home && !self.legs().is_shared(at.bus) {
            return Answered::Forged(call, Forgery::WrongPlace);
        }
        if is_home || at.reader == Reader::ReplyLeg {
            return Answered::Foreign(call);
        }
        match self.legs().forward(id, at.bus, at.message.clone()) {
            Some(forward) => Answered::Forward(Box::new(forward)),
            None => Answered::Foreign(call),
        }
    }
}

fn uncorrelated(said: Said) -> Unanswerable {
    let (code, detail) = match &said.body {
        Body::Broken(why) => ("unreadable", why.to_string()),
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
        unit: Some((said.index, said.bytes)),
    }
}

/// The call that an answer names: by the attributes of its event, the headers of its message, the subject it came on, or
/// what its body repeats, in this order. Any of those that name the same call may bring the token.
fn call_of(at: ReadAt<'_>, said: &Said) -> Option<ReplyId> {
    let event = said.event.as_ref();
    let collaboration = || {
        event?
            .extension_text(extension::COLLABORATION_ID)?
            .parse()
            .ok()
    };
    let own = || said.own_correlation()?.parse().ok();
    let named = addressed(at, event);
    if named.is_some_and(|id| id.token.is_some()) {
        return named;
    }
    let all = [named, collaboration(), own()];
    with_token(all.into_iter().flatten())
}

/// The call that a message was sent to, whatever it says: by its attributes, its headers or the subject it came on.
fn addressed(at: ReadAt<'_>, event: Option<&Event>) -> Option<ReplyId> {
    let attribute = event.and_then(|event| event.extension_text(extension::CALL_ID));
    // A message that is no CloudEvent may repeat this one header all the same.
    let headers = [
        at.message.headers.get(spring::CORRELATION_ID),
        attribute_header(at.message, extension::CALL_ID),
    ];
    let headers = headers.into_iter().flatten();
    let headers = headers.filter_map(|value| std::str::from_utf8(value).ok());
    let texts = attribute.map(Text::as_str).into_iter().chain(headers);
    with_token(
        texts
            .filter_map(|text| text.parse().ok())
            .chain(last_word(at.topic)),
    )
}

/// The first, with the token of another one for the same call where it has none itself.
fn with_token(mut ids: impl Iterator<Item = ReplyId>) -> Option<ReplyId> {
    let first = ids.next()?;
    let of_same = |id: ReplyId| id.token.filter(|_| id.call == first.call);
    let token = first.token.or_else(|| ids.find_map(of_same));
    Some(ReplyId { token, ..first })
}

fn last_word(topic: &Topic) -> Option<ReplyId> {
    topic
        .as_str()
        .rsplit('.')
        .next()
        .and_then(|word| word.parse().ok())
}

/// The calls that ended lately with their agents, and the log of answers that reached no caller.
#[derive(Debug)]
pub(crate) struct Ended {
    calls: Mutex<Recent<CallId, Text>>,
    log: Seldom,
    alarms: Seldom,
}

/// The most calls that are remembered once they have ended.
const MAX_ENDED: usize = 4_096;

// === impl Ended ===

impl Ended {
    pub(crate) fn new(log: &LogLimits) -> Self {
        Self {
            calls: Mutex::new(Recent::new(MAX_ENDED)),
            log: log.seldom(Level::WARN, "more answers reached no caller"),
            alarms: log.seldom(Level::WARN, "more answers were not believed"),
        }
    }

    /// Notes that a call for this agent has ended.
    pub(crate) fn note(&self, call: CallId, agent: &Text) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.insert(call, agent.clone());
    }

    /// Logs what reached no caller, and why.
    fn log(&self, answered: &Answered, topic: &Topic) {
        let (call, why) = match answered {
            // Replicas that share a reply partition read each other's answers.
            Answered::Delivered
            | Answered::Forward(_)
            | Answered::Foreign(_)
            | Answered::Forged(..) => return,
            Answered::Late(call) => (
                Some(*call),
                "its call has ended: it came after the deadline, or a second time",
            ),
            Answered::Request(call) => (
                Some(*call),
                "it is the request itself: something echoes requests to the reply address",
            ),
            Answered::Uncorrelated(unit) => (None, unit.detail.as_str()),
        };
        let Some(suppressed) = self.log.allow() else {
            return;
        };
        let topic = shown_topic(topic.as_str());
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let agent = call.and_then(|call| calls.get(&call));
        let call = call.map(|call| call.to_string());
        tracing::warn!(
            call, agent = agent.map(Text::as_str), %topic,
            reason = answered.outcome().as_str(), why, suppressed,
            "an answer reached no caller"
        );
    }
}
