//! Is this message the answer to a call, and whose?
//!
//! An agent may answer with a CloudEvent, with headers that echo the request's, or with nothing but a JSON-RPC
//! response that repeats the id it was given. All of them lead to the call id. Source: `design` sections 3 and 4.

use a2abus_plugin::protocol::jsonrpc::{self, Id, JsonRpc, RpcBody, splice};
use a2abus_plugin::{
    DecodeErrorKind, Event, Family, Hint, Kind, Limits, Mapped, Refused, Text, Value, decode,
    extension, kind_of_event,
};
use a2abus_transports::{Message, NATS_STATUS_HEADER, Topic};
use bytes::Bytes;

use crate::bus::BusId;
use crate::callid::CallId;
use crate::calls::{CallError, Calls, Part};
use crate::metrics::ReplyOutcome;
use crate::outbound::Outgoing;
use crate::pending::{Entry, Handed};
use crate::reply::spring;

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

/// What became of a message that may be an answer.
#[derive(Debug)]
pub enum Answered {
    /// Its caller has it.
    Delivered,
    /// It answers a call of this replica that has ended: it comes too late, or a second time.
    Late,
    /// It answers a call of another replica, which reads this place too.
    Foreign,
    /// It answers a call of another replica, which reads elsewhere: send it there, then settle.
    Forward(Box<Outgoing>),
    /// It is an answer, to no call that can be told.
    Uncorrelated,
    /// It is no answer.
    NotAnAnswer,
}

impl Answered {
    /// How metrics count it; `None` for what is no answer.
    #[must_use]
    pub fn outcome(&self) -> Option<ReplyOutcome> {
        Some(match self {
            Self::Delivered => ReplyOutcome::Delivered,
            Self::Late => ReplyOutcome::Late,
            Self::Foreign => ReplyOutcome::Foreign,
            Self::Forward(_) => ReplyOutcome::Forwarded,
            Self::Uncorrelated => ReplyOutcome::Unknown,
            Self::NotAnAnswer => return None,
        })
    }
}

// === impl Calls ===

impl Calls {
    /// Resolves an event that came as a CloudEvent. Its data may be a JSON-RPC response or any JSON.
    #[must_use]
    pub fn answer_event(&self, at: ReadAt<'_>, event: &Event, limits: &Limits) -> Answered {
        let kind = kind_of_event(event);
        let unit = decode(&event.body(), &Hint::default(), limits).into_only();
        let inside = match &unit {
            Ok(Ok(unit)) => Response::new(&unit.bytes, unit.json_rpc.as_ref()),
            _ => None,
        };
        let answers = matches!(kind, Kind::Response | Kind::Stream);
        // An event that does not say what it is answers when it was sent to where an answer is awaited.
        let is_unmarked = event.extension(extension::MCP_TYPE).is_none();
        let is_addressed = is_unmarked && addressed(at, Some(event)).is_some();
        if !answers && !is_addressed && (inside.is_none() || kind == Kind::Request) {
            return Answered::NotAnAnswer;
        }
        let Some(call) = call_id(at, event, inside) else {
            return Answered::Uncorrelated;
        };
        self.resolve(at, call, |entry| answer_part(entry, event, inside))
    }

    /// Resolves a mapped unit of a plain payload.
    #[must_use]
    pub fn answer_mapped(&self, at: ReadAt<'_>, mapped: &Mapped, limits: &Limits) -> Answered {
        if mapped.because.family == Family::CloudEvent {
            return self.answer_event(at, &mapped.event, limits);
        }
        let response = Response::new(&mapped.bytes, mapped.json_rpc.as_ref());
        if response.is_none() {
            return Answered::NotAnAnswer;
        }
        let Some(call) = call_id(at, &mapped.event, response) else {
            return Answered::Uncorrelated;
        };
        self.resolve(at, call, |entry| {
            answer_part(entry, &mapped.event, response)
        })
    }

    /// Resolves a payload that is no message of any protocol, but was sent to where an answer is awaited: other JSON is
    /// the result, and what is broken fails the call at once.
    #[must_use]
    pub fn answer_refused(&self, at: ReadAt<'_>, refused: &Refused) -> Answered {
        let Some(call) = addressed(at, None) else {
            return Answered::NotAnAnswer;
        };
        let is_other_json = matches!(
            refused.error.kind(),
            DecodeErrorKind::Unknown | DecodeErrorKind::NotAnObject
        );
        self.resolve(at, call, |entry| {
            if !is_other_json {
                return Err(CallError::BadAnswer(refused.error.to_string().into()));
            }
            let body = wrapped(&refused.bytes, &entry.token)?;
            Ok(Part { body, last: true })
        })
    }

    /// Fails the call whose request found nobody listening (NATS says so on the reply subject).
    pub fn no_responders(&self, at: ReadAt<'_>) -> bool {
        let status = at.message.headers.get(NATS_STATUS_HEADER);
        let Some(call) =
            last_word(at.topic).filter(|_| status.is_some_and(|status| status == "503"))
        else {
            return false;
        };
        let error = CallError::Unavailable(Text::from_static("no agent listens on its subject"));
        self.pending().hand_over(call, |_| Err(error)) == Handed::Over
    }

    fn resolve(
        &self,
        at: ReadAt<'_>,
        call: CallId,
        part: impl FnOnce(&Entry) -> Result<Part, CallError>,
    ) -> Answered {
        let is_home = self.legs().is_home(call, at.bus, at.topic, at.origin);
        if is_home && at.reader == Reader::Binding {
            return Answered::Foreign;
        }
        if self.legs().is_ours(call) {
            return match self.pending().hand_over(call, part) {
                Handed::Over => Answered::Delivered,
                Handed::Late => Answered::Late,
            };
        }
        if is_home {
            return Answered::Foreign;
        }
        let forward = self.legs().forward(call, at.bus, at.message.clone());
        forward.map_or(Answered::Uncorrelated, |forward| {
            Answered::Forward(Box::new(forward))
        })
    }
}

/// A JSON-RPC response and its bytes.
#[derive(Clone, Copy)]
struct Response<'a> {
    bytes: &'a Bytes,
    message: &'a JsonRpc,
}

impl<'a> Response<'a> {
    fn new(bytes: &'a Bytes, message: Option<&'a JsonRpc>) -> Option<Self> {
        let message = message.filter(|message| !message.is_call())?;
        Some(Self { bytes, message })
    }
}

/// The call id of an answer: from the attributes of its event, the headers of its message, the subject it came on, or
/// the id inside it, in this order.
fn call_id(at: ReadAt<'_>, event: &Event, inside: Option<Response<'_>>) -> Option<CallId> {
    let collaboration_id = event.extension_text(extension::COLLABORATION_ID);
    let own_id = || inside?.message.id.as_ref().and_then(Id::text)?.parse().ok();
    addressed(at, Some(event))
        .or_else(|| collaboration_id?.parse().ok())
        .or_else(own_id)
}

/// The call that a message was sent to, whatever it says: by its attributes, its headers or the subject it came on.
fn addressed(at: ReadAt<'_>, event: Option<&Event>) -> Option<CallId> {
    let attribute = event.and_then(|event| event.extension_text(extension::CALL_ID));
    let header = || {
        let value = at.message.headers.get(spring::CORRELATION_ID)?;
        std::str::from_utf8(value).ok()?.parse().ok()
    };
    attribute
        .and_then(|text| text.parse().ok())
        .or_else(header)
        .or_else(|| last_word(at.topic))
}

fn last_word(topic: &Topic) -> Option<CallId> {
    topic
        .as_str()
        .rsplit('.')
        .next()
        .and_then(|word| word.parse().ok())
}

/// The part as its caller gets it: a JSON-RPC response with the caller's own id.
fn answer_part(
    entry: &Entry,
    event: &Event,
    inside: Option<Response<'_>>,
) -> Result<Part, CallError> {
    let last = is_last(entry, event, inside);
    let body = match inside {
        Some(Response { bytes, message }) => match &message.id {
            Some(id) => splice(bytes, id.span(), &entry.token),
            None => with_id(bytes, &entry.token),
        },
        None => wrapped(&event.body(), &entry.token)?,
    };
    Ok(Part { body, last })
}

/// Whether nothing follows. What the event says wins over what its payload says.
fn is_last(entry: &Entry, event: &Event, inside: Option<Response<'_>>) -> bool {
    if kind_of_event(event) == Kind::Stream {
        return false;
    }
    match event.extension(extension::IS_FINAL) {
        Some(Value::Boolean(is_final)) => return *is_final,
        Some(Value::String(text)) if text == "false" => return false,
        _ => {}
    }
    match inside.map(|response| &response.message.body) {
        Some(RpcBody::Result(jsonrpc::Part::Partial)) => false,
        Some(RpcBody::Result(jsonrpc::Part::Snapshot)) => !entry.streamed,
        Some(RpcBody::Result(jsonrpc::Part::Final) | RpcBody::Error(_) | RpcBody::Call { .. })
        | None => true,
    }
}

/// A response that lacks an id (an error about an unreadable request), with the caller's.
fn with_id(bytes: &Bytes, token: &str) -> Bytes {
    let start = bytes
        .iter()
        .position(|byte| *byte == b'{')
        .map_or(0, |at| at + 1);
    splice(bytes, start..start, &format!("\"id\":{token},"))
}

/// Data that are no JSON-RPC response, as the result of one.
fn wrapped(data: &Bytes, token: &str) -> Result<Bytes, CallError> {
    if serde_json::from_slice::<serde::de::IgnoredAny>(data).is_err() {
        return Err(CallError::BadAnswer(Text::from_static(
            "its data are not JSON",
        )));
    }
    let mut body = Vec::with_capacity(data.len() + token.len() + 40);
    body.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    body.extend_from_slice(token.as_bytes());
    body.extend_from_slice(b",\"result\":");
    body.extend_from_slice(data);
    body.push(b'}');
    Ok(Bytes::from(body))
}
