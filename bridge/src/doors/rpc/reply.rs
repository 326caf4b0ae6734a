//! The form of an answer, which is that of its request.
//!
//! | the request | its answer |
//! |---|---|
//! | JSON-RPC | JSON-RPC with the caller's own id |
//! | a message of another family | the agent's message, unchanged; an error is a message of that family |
//! | a CloudEvent in binary mode | a CloudEvent in binary mode, but in structured mode in a stream or a batch |
//! | a CloudEvent in structured mode | a CloudEvent in structured mode |
//! | a refused element of a batch of CloudEvents | a CloudEvent in structured mode, unless all are refused |

use a2abus_plugin::{Event, Family, Unit, extension, format};
use a2abus_transports::content_mode::{self, ContentMode, ProtocolBinding};
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, StatusCode};

use super::common::Common;
use crate::calls::callid::CallId;
use crate::calls::failure::{Failure, Recipient};
use crate::calls::reply_form::ReplyForm;
use crate::calls::{CallError, Part, SentCalls};
use crate::http::negotiate::Accepts;
use crate::http::respond::{refusal, with_status};

const EVENT_TYPE: HeaderValue = HeaderValue::from_static("application/cloudevents+json");
pub(super) const BATCH_TYPE: HeaderValue =
    HeaderValue::from_static("application/cloudevents-batch+json");

/// The form of the answer to one request.
#[derive(Debug)]
pub(super) enum Reply {
    /// Messages.
    Message(Recipient),
    /// CloudEvents.
    Event(Box<Envelope>),
}

/// The events that answer an event.
#[derive(Debug)]
pub(super) struct Envelope {
    form: ReplyForm,
    mode: ContentMode,
    call: CallId,
    /// How many parts the answer has had.
    parts: u32,
}

// === impl Reply ===

impl Reply {
    /// The form of the answer to a unit. If the unit is an event, `data` is its decoded data and `mode` its content
    /// mode.
    pub(super) fn to(common: &Common, unit: &Unit, data: Option<&Unit>, mode: ContentMode) -> Self {
        let Some(event) = unit.event() else {
            let is_notification = unit.json_rpc.as_ref().is_some_and(|rpc| rpc.id.is_none());
            return Self::Message(if is_notification {
                Recipient::unknown(common.dialect)
            } else {
                Recipient::of(unit)
            });
        };
        let recipient = Recipient::of(data.unwrap_or(unit));
        Self::Event(Box::new(Envelope {
            form: common.calls.reply_form(Some(event), recipient),
            mode,
            call: common.call,
            parts: 0,
        }))
    }

    /// The form of the error for a refused element of a batch of CloudEvents: an event with the ids of the element, as
    /// far as they can be read.
    pub(super) fn in_event(self, common: &Common, element: &Bytes) -> Self {
        let recipient = match self {
            Self::Message(recipient) => recipient,
            event @ Self::Event(_) => return event,
        };
        let limits = common.calls.rules().limits;
        let names = ["id", extension::COLLABORATION_ID];
        let ([request_id, collaboration_id], _) = format::read_refused(element, names, &limits);
        Self::Event(Box::new(Envelope {
            form: ReplyForm {
                collaboration_id,
                request_id,
                ..common.calls.reply_form(None, recipient)
            },
            mode: ContentMode::Structured,
            call: common.call,
            parts: 0,
        }))
    }

    /// Whether the answers are CloudEvents.
    pub(super) fn is_event(&self) -> bool {
        matches!(self, Self::Event(_))
    }

    /// Sets the call of a request in a batch, whose answers are numbered by it.
    pub(super) fn set_call(&mut self, call: CallId) {
        if let Self::Event(envelope) = self {
            envelope.call = call;
        }
    }

    /// A part of the answer, or the error in place of it, in this form. `kept` are the calls of a request with an
    /// idempotency key.
    pub(super) fn part(&mut self, part: Result<Part, CallError>, kept: Option<&SentCalls>) -> Part {
        match part {
            Err(error @ CallError::Timeout(_)) if kept.is_some_and(|calls| !calls.is_empty()) => {
                let failure = self.failure_of(&error);
                self.failure(
                    &failure.and("send the request with a new Idempotency-Key to try again"),
                )
            }
            Err(error) => self.failure(&self.failure_of(&error)),
            Ok(part) => match self {
                Self::Message(_) => part,
                Self::Event(envelope) => envelope.part(&part),
            },
        }
    }

    /// The failure of the call, which fits the family of its request.
    fn failure_of(&self, error: &CallError) -> Failure {
        let family = match self {
            Self::Message(recipient) => recipient.family(),
            Self::Event(_) => Family::CloudEvent,
        };
        Failure::of_message(error, family)
    }

    /// An error in this form.
    pub(super) fn failure(&self, failure: &Failure) -> Part {
        match self {
            Self::Message(recipient) => Part::new(failure.render(recipient), true),
            Self::Event(envelope) => written(envelope.form.failure(failure), true),
        }
    }

    /// A response with a single part.
    pub(super) fn whole(&self, common: &Common, part: Part) -> Response {
        let (Self::Event(envelope), Accepts::Json | Accepts::Both) = (self, common.accepts) else {
            return common.whole(part.body);
        };
        let event = part.event.filter(|_| envelope.mode == ContentMode::Binary);
        let response = event.and_then(|event| binary(&event));
        response.unwrap_or_else(|| {
            let mut response = common.whole(part.body);
            response.headers_mut().insert(CONTENT_TYPE, EVENT_TYPE);
            response
        })
    }

    /// The refusal of a request, with an HTTP status.
    pub(super) fn refusal(
        &self,
        common: &Common,
        status: StatusCode,
        error: &CallError,
    ) -> Response {
        let failure = self.failure_of(error);
        match self {
            Self::Message(recipient) => refusal(status, &failure, recipient),
            Self::Event(_) => with_status(self.whole(common, self.failure(&failure)), status),
        }
    }
}

// === impl Envelope ===

impl Envelope {
    fn part(&mut self, part: &Part) -> Part {
        let event = self.form.event(part, self.call, self.parts);
        self.parts += 1;
        written(event, part.last)
    }
}

/// An event as a part, in structured mode.
fn written(event: Event, last: bool) -> Part {
    let mut body = Vec::new();
    format::write(&event, &mut body);
    Part {
        event: Some(Box::new(event)),
        ..Part::new(body.into(), last)
    }
}

/// A response in binary mode; `None` for an event that no header can carry.
fn binary(event: &Event) -> Option<Response> {
    let message = content_mode::write(ProtocolBinding::Http, event, ContentMode::Binary).ok()?;
    let mut response = Response::new(Body::from(message.body.unwrap_or_default()));
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    for header in message.headers.iter() {
        let name = HeaderName::try_from(header.name.as_str()).ok()?;
        let value = HeaderValue::from_maybe_shared(header.value.clone()?).ok()?;
        headers.insert(name, value);
    }
    Some(response)
}
