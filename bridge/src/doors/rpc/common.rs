//! The state that all units of one HTTP request share: caller, deadline and form of the answer.

use a2abus_plugin::protocol::jsonrpc;
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::protocol::is_target;
use a2abus_plugin::{Hint, Text, Unit};
use a2abus_transports::Header;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::response::Response;
use bytes::Bytes;
use http::{StatusCode, request};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};

use crate::account::{Line, Retry};
use crate::budget::ClientBudget;
use crate::calls::callid::{CallId, ReplyToken};
use crate::calls::failure::{Failure, Recipient};
use crate::calls::pending::Form;
use crate::calls::question::Client;
use crate::calls::{self, Answer, CallError, Calls, NoAnswer, Prepared, RequestState, SentCalls};
use crate::clock;
use crate::doors::door;
use crate::http::negotiate::Accepts;
use crate::http::respond::json_response;
use crate::http::sse;
use crate::registry::request::Method;
use crate::registry::{Registry, RequestOrigin};
use crate::results::{OpenedCall, Results, Skill};

/// The longest id of a conversation that is used as a message key, in bytes.
const MAX_KEY: usize = 256;

/// The state that all units of one HTTP request share.
#[derive(Debug, Clone)]
pub(in crate::doors) struct Common {
    pub(in crate::doors) calls: Arc<Calls>,
    pub(in crate::doors) registry: Arc<Registry>,
    /// Whether the caller may announce agents, or the error if not.
    pub(in crate::doors) may_announce: Result<(), Failure>,
    /// The id of the request, which is also the id of its call if it is one.
    pub(in crate::doors) call: CallId,
    pub(in crate::doors) target: Target,
    pub(in crate::doors) caller: Text,
    /// The headers that are passed to the agent.
    pub(in crate::doors) headers: Vec<Header>,
    /// The budget of the answers.
    pub(in crate::doors) budget: ClientBudget,
    pub(in crate::doors) timeout: Option<Duration>,
    pub(in crate::doors) arrived: Instant,
    pub(in crate::doors) accepts: Accepts,
    /// The properties of the body that the headers declare.
    pub(in crate::doors) hint: Hint,
    /// Whether the headers say that the body contains CloudEvents.
    pub(in crate::doors) is_event: bool,
    /// The dialect of errors about units whose dialect is unknown.
    pub(in crate::doors) dialect: Dialect,
    /// Counts its calls and notifications that an agent may have received.
    pub(in crate::doors) sent_calls: SentCalls,
    pub(in crate::doors) results: Arc<Results>,
    /// The idempotency key that it has claimed, as in the log.
    pub(in crate::doors) key: Option<Text>,
    /// Whether its call lasts for `calls.timeout` longer than its caller waits, who can get the answer later.
    pub(in crate::doors) is_patient: bool,
    /// Whether another replica made its call, and stopped before the answer.
    pub(in crate::doors) is_resumed: bool,
}

/// A request that has been admitted and read.
pub(super) struct AdmittedRequest {
    pub(super) common: Common,
    pub(super) head: request::Parts,
    pub(super) body: Bytes,
}

/// The agent in the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::doors) enum Target {
    /// None: the payload names it.
    InPayload,
    /// This one, which overrides the one in the payload.
    Agent(Text),
    /// A text that is not a legal agent name.
    NotAName,
}

// === impl Target ===

impl Target {
    pub(in crate::doors) fn of_path(path: Result<Path<String>, PathRejection>) -> Self {
        match path {
            Ok(Path(name)) if is_target(&name) => Self::Agent(name.into()),
            // A path that is not UTF-8 after percent-decoding is not a name either.
            Ok(_) | Err(_) => Self::NotAName,
        }
    }

    /// The agent, if the path names one.
    pub(in crate::doors) fn name(&self) -> Option<&str> {
        match self {
            Self::Agent(agent) => Some(agent),
            Self::InPayload | Self::NotAName => None,
        }
    }
}

/// What the timeout of a caller limits.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::doors) enum TimeoutLimits {
    /// The whole answer.
    #[default]
    Answer,
    /// The first part of the answer, see [`calls::Request::bounds_first_part`].
    FirstPart,
    /// Only how long the caller waits.
    Nothing,
}

/// Properties that only some requests have.
#[derive(Debug, Default)]
pub(in crate::doors) struct CallOptions<'a> {
    /// The decoded data of the request, if it is a CloudEvent.
    pub(in crate::doors) data: Option<Unit>,
    /// The task that the answer updates.
    pub(in crate::doors) task: Option<&'a Text>,
    /// The conversation, whose id becomes the message key.
    pub(in crate::doors) conversation: Option<&'a Text>,
    /// The client that answers the questions of the agent. It also reads other messages before the answer.
    pub(in crate::doors) client: Option<Client>,
    /// The log key of the session whose client can resume the answer.
    pub(in crate::doors) session: Option<Text>,
    /// The skill call behind the request, for such a client.
    pub(in crate::doors) skill: Option<Skill>,
    /// What the caller's timeout limits.
    pub(in crate::doors) limits: TimeoutLimits,
    /// Whether the caller accepts parts that are results; `None` if the method decides.
    pub(in crate::doors) accepts_parts: Option<bool>,
}

// === impl Common ===

impl Common {
    /// Sends a request. Dropping the answer cancels the call.
    pub(in crate::doors) async fn call(
        &self,
        unit: Unit,
        call: Option<CallId>,
        CallOptions {
            data,
            task,
            conversation,
            client,
            session,
            skill,
            limits,
            accepts_parts,
        }: CallOptions<'_>,
    ) -> Result<Box<Answer>, CallError> {
        if self.is_resumed && call == Some(self.call) {
            let retry = Retry {
                caller: self.caller.clone(),
                agent: self.target.name().map(Text::from).unwrap_or_default(),
                method: unit.method().map(Text::from).unwrap_or_default(),
                arrived: self.arrived.into_std(),
            };
            let answer = self.results.resume(&self.calls, self.call, 0, Some(retry));
            return Ok(answer.counted_by(&self.sent_calls));
        }
        let mut request = self.request(unit, call)?;
        request.data = data;
        request.accepts_parts = accepts_parts;
        request.key = conversation.and_then(message_key);
        match limits {
            TimeoutLimits::Answer => {}
            TimeoutLimits::FirstPart => request.bounds_first_part = true,
            TimeoutLimits::Nothing => request.timeout = None,
        }
        let has_task = !matches!(limits, TimeoutLimits::FirstPart);
        let budget = Some(self.budget.clone());
        let mut prepared = self.calls.prepare(request, client, budget)?;
        // The client of a resumable stream can only come back once it has an event id.
        let continues_elsewhere = session.is_none();
        let opened = self.opened(call, (task, session, skill), &prepared);
        let has_one_part = opened.as_ref().is_some_and(OpenedCall::has_one_part);
        if let Some(opened) = opened {
            let opening = Box::pin(self.results.open_call(self.call, opened));
            if let Ok(true) = timeout_at(prepared.deadline().into(), opening).await {
                let results = &self.results;
                let recorded = results.recorded_elsewhere(&self.calls, self.call, has_task);
                prepared.set_followed((has_one_part, continues_elsewhere), recorded);
            }
        }
        let answer = prepared.publish().await?;
        Ok(answer.counted_by(&self.sent_calls))
    }

    /// What other replicas need to receive the answer to this call; `None` if no client can ask them for it.
    fn opened(
        &self,
        call: Option<CallId>,
        (task, session, skill): (Option<&Text>, Option<Text>, Option<Skill>),
        prepared: &Prepared,
    ) -> Option<OpenedCall> {
        if call != Some(self.call) || !self.call.is_followed() {
            return None;
        }
        let request = prepared.request()?;
        let Form::JsonRpc { id, progress, .. } = &request.form else {
            return None;
        };
        let now = clock::now();
        Some(OpenedCall {
            key: self.key.clone(),
            task: task.cloned(),
            session,
            skill,
            token: request.id.token.map(ReplyToken::hash),
            id: id.clone(),
            progress: progress.clone(),
            streamed: request.streamed,
            agent: request.agent.clone(),
            until: clock::milliseconds(now + prepared.time_left()),
            began: clock::milliseconds(now),
            part_timeout: prepared.part_timeout().map(clock::whole_milliseconds),
        })
    }

    /// The answer to a request for the registry; `None` for any other request.
    pub(in crate::doors) async fn ask_registry(&self, unit: &Unit) -> Option<Bytes> {
        #[derive(Deserialize)]
        struct RegistryQuery {
            id: Box<RawValue>,
            #[serde(default)]
            params: Option<Box<RawValue>>,
        }
        unit.json_rpc.as_ref()?;
        let method = Method::of(unit.method()?)?;
        let query: RegistryQuery = serde_json::from_slice(&unit.bytes).ok()?;
        let origin = RequestOrigin {
            caller: Some(self.caller.clone()),
            ..RequestOrigin::default()
        };
        let (params, named) = (query.params.as_deref(), self.target.name());
        // Boxed, so that it uses no memory for other requests.
        let answered = match &self.may_announce {
            Err(failure) if method.is_change() => Err(failure.clone()),
            _ => Box::pin(self.registry.answer(method, params, named, origin)).await,
        };
        if let Err(failure) = &answered {
            self.note_refusal_of(unit, failure.reason_code());
        }
        let result = answered.map(|result| jsonrpc::result(query.id.get(), &result));
        let charged = result.and_then(|result| match method.is_change() {
            // Something was done: its result must not be refused.
            true => Ok(self.budget.replace(result)),
            false => self.charged(result),
        });
        Some(charged.unwrap_or_else(|failure| failure.render(&Recipient::of(unit))))
    }

    /// Charges a document, see [`door::charged`]. A small batch may ask for many large ones.
    pub(in crate::doors) fn charged(&self, document: Bytes) -> Result<Bytes, Failure> {
        door::charged(&self.budget, document)
    }

    /// Publishes a notification. All notifications of a batch share one deadline, but each can set an earlier one.
    /// `data` are the decoded data of a notification that is a CloudEvent.
    pub(in crate::doors) async fn notify(
        &self,
        unit: Unit,
        data: Option<Unit>,
    ) -> Result<(), CallError> {
        let mut request = self.request(unit, Some(self.call))?;
        request.data = data;
        // It may arrive although it is not confirmed, or not everywhere.
        let may_arrive = |may_arrive| match may_arrive {
            true => self.sent_calls.add(),
            false => self.sent_calls.take_back(),
        };
        self.calls.notify_with(request, may_arrive).await
    }

    fn request(&self, unit: Unit, call: Option<CallId>) -> Result<calls::Request, CallError> {
        let admitted = self.target_and_timeout(&unit);
        let (target, timeout) =
            admitted.inspect_err(|error| self.note_refusal_of(&unit, error.reason_code()))?;
        Ok(calls::Request {
            arrived: self.arrived.into_std(),
            unit,
            data: None,
            call,
            target,
            timeout: match self.is_patient {
                true => Some(self.calls.patience(timeout)),
                false => timeout,
            },
            // Unless the caller sets a timeout, an agent that sends parts gets more time: it is at work.
            bounds_first_part: self.is_patient && timeout.is_none(),
            accepts_parts: None,
            caller: self.caller.clone(),
            key: None,
            headers: self.headers.clone(),
        })
    }

    /// The agent that the path names, and the timeout that the caller sets, if any.
    fn target_and_timeout(
        &self,
        unit: &Unit,
    ) -> Result<(Option<Text>, Option<Duration>), CallError> {
        let target = match &self.target {
            Target::InPayload => None,
            Target::Agent(agent) => Some(agent.clone()),
            Target::NotAName => {
                let message = "the path does not name an agent: a name has 1 to 256 of A-Z a-z 0-9 . _ - / : @ +";
                return Err(CallError::Refused(Text::from_static(message)));
            }
        };
        Ok((target, self.in_time(self.timeout_of(unit))?))
    }

    /// The timeout that the caller of a unit sets, if any.
    pub(super) fn timeout_of(&self, unit: &Unit) -> Option<Duration> {
        // The header is meant for the bridge; the configuration in the payload is meant for the agent.
        let in_payload = unit.json_rpc.as_ref().and_then(|rpc| rpc.timeout_millis);
        self.timeout.or(in_payload.map(Duration::from_millis))
    }

    /// The timeout that the caller sets, if any; an error if it has passed already, because the later units of a
    /// long batch start late.
    fn in_time(&self, requested: Option<Duration>) -> Result<Option<Duration>, CallError> {
        let timeout = self.calls.timeout_for(requested);
        if self.arrived.elapsed() < timeout {
            return Ok(requested);
        }
        Err(CallError::Timeout(Box::new(NoAnswer {
            after: timeout,
            agent: Text::default(),
            request: RequestState::Unsent,
            rejected: None,
        })))
    }

    /// Its calls, if it has an idempotency key. Their errors are stored as its answer, unless no agent can have
    /// received them.
    pub(super) fn kept_calls(&self) -> Option<&SentCalls> {
        self.key.as_ref().map(|_| &self.sent_calls)
    }

    /// Records in the access log a request, or a unit of one, that is refused before it becomes a call.
    pub(in crate::doors) fn note_refusal(&self, reason: &'static str) {
        self.note(self.target.name().unwrap_or_default(), "", reason);
    }

    /// The same, for a unit whose method is known.
    pub(in crate::doors) fn note_refusal_of(&self, unit: &Unit, reason: &'static str) {
        let agent = self.target.name().unwrap_or_default();
        self.note(agent, unit.method().unwrap_or_default(), reason);
    }

    /// Records a request that is not a call in the access log.
    pub(in crate::doors) fn note(&self, agent: &str, method: &str, outcome: &str) {
        let line = Line {
            call: self.call,
            caller: &self.caller,
            agent,
            method,
            outcome,
            took: self.arrived.elapsed(),
        };
        line.write();
    }

    /// A response of one document, in a form that the caller accepts.
    pub(in crate::doors) fn whole(&self, body: Bytes) -> Response {
        self.whole_of_type(body, None)
    }

    /// The response to a payload that is refused as a whole. Senders of CloudEvents read only the status, and take 200
    /// as an acknowledgement.
    pub(super) fn refused(&self, body: Bytes) -> Response {
        let mut response = self.whole(body);
        if self.is_event {
            *response.status_mut() = StatusCode::BAD_REQUEST;
        }
        response
    }

    /// A response of one document. If it is sent as an event, this is its type.
    pub(in crate::doors) fn whole_of_type(
        &self,
        body: Bytes,
        event: Option<&'static str>,
    ) -> Response {
        match self.accepts {
            Accepts::Json | Accepts::Both => json_response(StatusCode::OK, body),
            Accepts::Events => sse::whole_response(&body, event, &self.budget),
        }
    }
}

/// The message key of a conversation; `None` if its id is too long for a key.
fn message_key(conversation: &Text) -> Option<Bytes> {
    (conversation.len() <= MAX_KEY).then(|| Bytes::copy_from_slice(conversation.as_bytes()))
}
