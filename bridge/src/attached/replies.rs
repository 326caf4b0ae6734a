//! Publishes the answers of an attached agent to its requesters.

use a2abus_plugin::{Data, Event, EventError, Kind, Text, extension};
use a2abus_transports::{Address, Header, Message, Topic};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::link::Part;
use crate::bus::deadletter::Undeliverable;
use crate::bus::delivery::Publisher;
use crate::bus::headers::{PassedHeaders, spring};
use crate::bus::outbound::RoutingError;
use crate::calls::callid::ReplyId;
use crate::calls::failure::{self, Failure, Recipient};
use crate::calls::reply_address::{AllowedReplyAddresses, Refused, named_by, named_in};
use crate::clock;
use crate::pipeline::intake::Intake;
use crate::results::{StoredResponse, digest_of};

/// Publishes the answers of one agent.
#[derive(Debug)]
pub(crate) struct ReplyPublisher {
    /// The reply addresses that requests may name.
    pub(crate) places: AllowedReplyAddresses,
    /// The headers that answers keep.
    pub(crate) passed: PassedHeaders,
    /// Publishes the answers.
    pub(crate) publisher: Publisher,
    /// The `source` of answers.
    pub(crate) source: Text,
    /// The agent.
    pub(crate) agent: Text,
}

/// Who made a request.
#[derive(Debug, Clone)]
pub(super) struct Requester {
    place: Option<Address>,
    refused: Option<Refused>,
    agent: Option<Text>,
    call: Option<Text>,
    collaboration: Option<Text>,
    correlation: Option<Bytes>,
    trace: Vec<(&'static str, Text)>,
    /// The headers of the request that its answers keep.
    headers: Vec<Header>,
    /// The extensions of A2A that the requester uses.
    extensions: Option<Bytes>,
}

/// An answer for a requester.
pub(super) struct Answer {
    pub(super) body: Bytes,
    /// Why the bridge answered instead of the server: `agent_unavailable`, `answer_lost` or `timeout`.
    pub(super) failure: Option<Text>,
}

/// The header with the extensions that a requester uses, in A2A 1.0 and 0.3.
const EXTENSIONS: [&str; 2] = ["a2a-extensions", "x-a2a-extensions"];

// === impl Answer ===

impl Answer {
    /// An error answer of the bridge itself.
    pub(super) fn failed(failure: &Failure, recipient: &Recipient) -> Self {
        let stands_in = matches!(
            failure.reason(),
            failure::Reason::AgentUnavailable
                | failure::Reason::AnswerLost
                | failure::Reason::Timeout
        );
        Self {
            body: failure.render(recipient),
            failure: stands_in.then_some(Text::from_static(failure.reason_code())),
        }
    }

    /// The answer as stored in the log.
    pub(super) fn stored(&self) -> StoredResponse {
        let failure = self.failure.iter();
        StoredResponse {
            status: 200,
            headers: failure
                .map(|why| (Text::from_static(extension::FAILURE_REASON), why.clone()))
                .collect(),
            body: String::from_utf8_lossy(&self.body).into_owned().into(),
        }
    }
}

impl From<Bytes> for Answer {
    fn from(body: Bytes) -> Self {
        let failure = None;
        Self { body, failure }
    }
}

impl From<&StoredResponse> for Answer {
    fn from(stored: &StoredResponse) -> Self {
        let mut headers = stored.headers.iter();
        let failure = headers.find(|(name, _)| *name == extension::FAILURE_REASON);
        Self {
            body: Bytes::from(stored.body.to_string()),
            failure: failure.map(|(_, why)| why.clone()),
        }
    }
}

// === impl Requester ===

impl Requester {
    /// Whether a bridge made the request for a caller, who receives all messages of the agent.
    pub(super) fn is_call(&self) -> bool {
        self.call.is_some() && self.place.is_some()
    }

    /// Whether the requester waits until a task ends. Callers of a bridge get an unfinished task as their answer, unless
    /// their call follows the task.
    pub(super) fn waits_for_task(&self) -> bool {
        let call = self.call.as_ref().filter(|_| self.is_call());
        let id = call.and_then(|call| call.parse::<ReplyId>().ok());
        id.is_none_or(|id| id.call.follows_task())
    }

    /// Whether a requester waits at a known reply address.
    pub(super) fn waits(&self) -> bool {
        self.place.is_some()
    }

    /// The trace-context headers of the request, for an HTTP server.
    pub(super) fn traced(&self) -> HeaderMap {
        let passed = self.headers.iter().filter_map(|header| {
            let value = HeaderValue::from_bytes(header.value.as_ref()?).ok()?;
            Some((HeaderName::from_bytes(header.name.as_bytes()).ok()?, value))
        });
        let mut headers: HeaderMap = passed.collect();
        for (name, value) in &self.trace {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        headers
    }

    /// The value of the requester's `A2A-Extensions` header.
    pub(super) fn extensions(&self) -> Option<&[u8]> {
        self.extensions.as_deref()
    }

    /// Why the reply address in the request is refused.
    pub(super) fn refused(&self) -> Option<&Refused> {
        self.refused.as_ref()
    }
}

// === impl ReplyPublisher ===

impl ReplyPublisher {
    pub(super) fn agent(&self) -> &Text {
        &self.agent
    }

    /// The requester of an event.
    pub(super) fn requester(
        &self,
        intake: &Intake,
        event: &Event,
        message: &Message,
        inbox: Option<&Topic>,
    ) -> Requester {
        let text = |name| event.extension_text(name).cloned();
        let named = named_by(event, message);
        let refused = named
            .as_ref()
            .and_then(|(name, _)| self.places.named(name, inbox).err());
        let traced = [extension::TRACE_PARENT, extension::TRACE_STATE].into_iter();
        Requester {
            place: self.places.of_refused(named, inbox),
            refused,
            agent: text(extension::SOURCE_AGENT),
            call: text(extension::CALL_ID),
            collaboration: text(extension::COLLABORATION_ID),
            correlation: message.headers.get(spring::CORRELATION_ID).cloned(),
            trace: traced
                .filter_map(|name| Some((name, text(name)?)))
                .collect(),
            headers: self.passed.of(intake.binding, message),
            extensions: EXTENSIONS
                .iter()
                .find_map(|name| message.headers.get(name).cloned()),
        }
    }

    /// The requester of a message that does not become an event.
    pub(super) fn unread(&self, message: &Message, inbox: Option<&Topic>) -> Requester {
        Requester {
            place: self.places.of_refused(named_in(message), inbox),
            refused: None,
            agent: None,
            call: None,
            collaboration: None,
            correlation: message.headers.get(spring::CORRELATION_ID).cloned(),
            trace: Vec::new(),
            headers: Vec::new(),
            extensions: None,
        }
    }

    /// Publishes an answer and waits for the confirmation. `identity` is the identity of the request. The id of the
    /// answer is derived from it, so it stays the same if the answer is published again and differs for other requests.
    pub(super) async fn answer(
        &self,
        intake: &Intake,
        requester: &Requester,
        (identity, Answer { body, failure }): (Option<&Text>, Answer),
    ) -> Result<(), Undeliverable> {
        let id = match identity {
            Some(identity) => digest_of([identity.as_bytes(), &body]),
            None => clock::new_event_id().into(),
        };
        let mut event = self.event(intake, requester, (id, Kind::Response), body);
        if let Ok(event) = &mut event {
            let last = event.set(extension::IS_FINAL, true);
            last.map_err(RoutingError::Unwritable)?;
            if let Some(why) = failure {
                let failed = event.set(extension::FAILURE_REASON, why);
                failed.map_err(RoutingError::Unwritable)?;
            }
        }
        self.publish(intake, requester, event).await
    }

    /// Publishes a message that precedes the answer.
    pub(super) async fn part(
        &self,
        intake: &Intake,
        requester: &Requester,
        part: Part,
    ) -> Result<(), Undeliverable> {
        let id = clock::new_event_id().into();
        let event = self.event(intake, requester, (id, part.kind), part.body);
        self.publish(intake, requester, event).await
    }

    async fn publish(
        &self,
        intake: &Intake,
        requester: &Requester,
        event: Result<Event, EventError>,
    ) -> Result<(), Undeliverable> {
        let event = event.map_err(RoutingError::Unwritable)?;
        let outbound = self.publisher.outbound();
        let copies = match &requester.place {
            Some(place) => {
                // The reply address of a call is its own, and no stream stores it.
                let may_be_stored = intake.reads_jetstream && !requester.is_call();
                let headers = (requester.correlation.as_ref(), &*requester.headers);
                vec![outbound.to_address(&event, (intake.bus, place), headers, may_be_stored)?]
            }
            None => outbound.route_own(&event, &intake.name, &requester.headers)?,
        };
        for copy in copies {
            let sent = self.publisher.until_confirmed(&copy).await;
            sent.map_err(Undeliverable::Transport)?;
        }
        Ok(())
    }

    fn event(
        &self,
        intake: &Intake,
        requester: &Requester,
        (id, kind): (Text, Kind),
        body: Bytes,
    ) -> Result<Event, EventError> {
        let prefix = intake.options.type_prefix.text();
        let ty = match kind {
            Kind::Response | Kind::Stream => format!("{prefix}common.response"),
            Kind::Request | Kind::Notification => format!("{prefix}common.notification"),
        };
        let mut event = Event::new(id, self.source.clone(), ty.into())?;
        event.set("time", clock::rfc3339(clock::now()))?;
        event.set("datacontenttype", "application/json")?;
        event.set(extension::SOURCE_AGENT, self.agent.clone())?;
        event.set(extension::MCP_TYPE, kind.as_str())?;
        event.set(extension::PROTOCOL, "A2A")?;
        event.set(extension::PROTOCOL_VERSION, "2.0")?;
        if kind == Kind::Stream {
            event.set(extension::IS_FINAL, false)?;
        }
        let of_requester = [
            (extension::TARGET_AGENT, &requester.agent),
            (extension::CALL_ID, &requester.call),
            (extension::COLLABORATION_ID, &requester.collaboration),
        ];
        for (name, value) in of_requester {
            if let Some(value) = value {
                event.set(name, value.clone())?;
            }
        }
        for (name, value) in &requester.trace {
            event.set(name, value.clone())?;
        }
        event.set_data(Some(Data::from(body)));
        Ok(event)
    }
}
