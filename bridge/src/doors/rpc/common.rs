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
use http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::account::Line;
use crate::budget::ClientBudget;
use crate::calls::callid::{CallId, ReplyToken};
use crate::calls::failure::{Failure, Recipient};
use crate::calls::pending::Form;
use crate::calls::question::Abilities;
use crate::calls::{self, Answer, CallError, Calls, NoAnswer, Prepared, SentCalls};
use crate::clock;
use crate::http::negotiate::Accepts;
use crate::http::respond::json_response;
use crate::http::sse;
use crate::registry::request::Method;
use crate::registry::{Registry, RequestOrigin};
use crate::results::{OpenedCall, Results, Skill};

/// The state that all units of one HTTP request share.
#[derive(Debug, Clone)]
pub(in crate::doors) struct Common {
    pub(in crate::doors) calls: Arc<Calls>,
    pub(in crate::doors) registry: Arc<Registry>,
    /// Whether the caller may say which agents there are.
    pub(in crate::doors) may_announce: Result<(), Failure>,
    /// The id of the request, which is that of its call where it is one.
    pub(in crate::doors) call: CallId,
    pub(in crate::doors) target: Target,
    pub(in crate::doors) caller: Text,
    /// The headers that reach the agent.
    pub(in crate::doors) headers: Vec<Header>,
    /// The budget of the answers.
    pub(in crate::doors) purse: ClientBudget,
    pub(in crate::doors) timeout: Option<Duration>,
    pub(in crate::doors) arrived: Instant,
    pub(in crate::doors) accepts: Accepts,
    /// The headers that describe the body.
    pub(in crate::doors) hint: Hint,
    /// The dialect of errors about units whose dialect is unknown.
    pub(in crate::doors) dialect: Dialect,
    /// How many of its calls and notifications an agent may have got.
    pub(in crate::doors) reached: SentCalls,
    pub(in crate::doors) results: Arc<Results>,
    /// The key that it has claimed, as the log has it.
    pub(in crate::doors) key: Option<Text>,
    /// Whether its call was made by another replica, which does not take the answer.
    pub(in crate::doors) is_resumed: bool,
}

/// The agent that the path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::doors) enum Target {
    /// Nothing: the payload names it.
    InPayload,
    /// This one, which wins over the one in the payload.
    Agent(Text),
    /// Something that cannot be the name of an agent.
    NotAName,
}

// === impl Target ===

impl Target {
    pub(in crate::doors) fn of_path(path: Result<Path<String>, PathRejection>) -> Self {
        match path {
            Ok(Path(name)) if is_target(&name) => Self::Agent(name.into()),
            // What is not UTF-8 once its escapes are undone is no name either.
            Ok(_) | Err(_) => Self::NotAName,
        }
    }

    /// The agent, where the path names one.
    pub(in crate::doors) fn name(&self) -> Option<&str> {
        match self {
            Self::Agent(agent) => Some(agent),
            Self::InPayload | Self::NotAName => None,
        }
    }
}

/// Properties that only some requests have.
#[derive(Debug, Default)]
pub(in crate::doors) struct With<'a> {
    /// What the data of the request are, where it is a CloudEvent.
    pub(in crate::doors) data: Option<Unit>,
    /// The task that follows the answer.
    pub(in crate::doors) task: Option<&'a Text>,
    /// The questions that the client supports. It also reads other messages before the answer.
    pub(in crate::doors) client: Option<Abilities>,
    /// The session whose client can come back for the answer, as the log has it.
    pub(in crate::doors) session: Option<Text>,
    /// The skill that is called for that client.
    pub(in crate::doors) skill: Option<Skill>,
}

// === impl Common ===

impl Common {
    /// Sends a request. Dropping the answer cancels the call.
    pub(in crate::doors) async fn call(
        &self,
        unit: Unit,
        call: Option<CallId>,
        With {
            data,
            task,
            client,
            session,
            skill,
        }: With<'_>,
    ) -> Result<Answer, CallError> {
        if self.is_resumed && call == Some(self.call) {
            let answer = self.results.resume(&self.calls, self.call, 0);
            return Ok(answer.counted_by(&self.reached));
        }
        let mut request = self.request(unit, call)?;
        request.data = data;
        let mut prepared = self.calls.prepare(request, client)?;
        if let Some(opened) = self.opened(call, (task, session, skill), &prepared)
            && Box::pin(self.results.open_call(self.call, opened)).await
        {
            prepared.followed();
        }
        let answer = prepared.publish().await?;
        Ok(answer.counted_by(&self.reached))
    }

    /// What other replicas need to take the answer to this call; `None` where nobody can ask them for it.
    fn opened(
        &self,
        call: Option<CallId>,
        (task, session, skill): (Option<&Text>, Option<Text>, Option<Skill>),
        prepared: &Prepared,
    ) -> Option<OpenedCall> {
        if call != Some(self.call) || !self.call.is_followed() {
            return None;
        }
        let asked = prepared.asked()?;
        let Form::JsonRpc { id, progress, .. } = &asked.form else {
            return None;
        };
        let now = clock::now();
        Some(OpenedCall {
            key: self.key.clone(),
            task: task.cloned(),
            session,
            skill,
            token: asked.id.token.map(ReplyToken::hash),
            id: id.clone(),
            progress: progress.clone(),
            streamed: asked.streamed,
            agent: asked.agent.clone(),
            until: clock::milliseconds(now + prepared.time_left()),
            began: clock::milliseconds(now),
        })
    }

    /// The answer to a request that is for the registry and not for an agent; `None` for any other.
    pub(in crate::doors) async fn ask_registry(&self, unit: &Unit) -> Option<Bytes> {
        #[derive(Deserialize)]
        struct Asked {
            id: Box<RawValue>,
            #[serde(default)]
            params: Option<Box<RawValue>>,
        }
        unit.json_rpc.as_ref()?;
        let method = Method::of(unit.method()?)?;
        let asked: Asked = serde_json::from_slice(&unit.bytes).ok()?;
        let origin = RequestOrigin {
            caller: Some(self.caller.clone()),
            ..RequestOrigin::default()
        };
        let (params, named) = (asked.params.as_deref(), self.target.name());
        // In a box, so that the requests that are not for the registry have no room for it.
        let answered = match &self.may_announce {
            Err(failure) if method.is_change() => Err(failure.clone()),
            _ => Box::pin(self.registry.answer(method, params, named, origin)).await,
        };
        if let Err(failure) = &answered {
            self.note_refusal(failure.word());
        }
        Some(match answered {
            Ok(result) => jsonrpc::result(asked.id.get(), &result),
            Err(failure) => failure.render(&Recipient::of(unit)),
        })
    }

    /// Publishes a notification. All those of a batch have one deadline, where their own is not earlier.
    pub(in crate::doors) async fn notify(&self, unit: Unit) -> Result<(), CallError> {
        let mut request = self.request(unit, Some(self.call))?;
        if request.timeout.is_none() {
            let left = self.time_left(Some(self.calls.patience(None)));
            request.timeout = left.inspect_err(|error| self.note_refusal(error.word()))?;
        }
        self.calls.notify(request).await?;
        self.reached.add();
        Ok(())
    }

    fn request(&self, unit: Unit, call: Option<CallId>) -> Result<calls::Request, CallError> {
        let request = self.try_request(unit, call);
        request.inspect_err(|error| self.note_refusal(error.word()))
    }

    fn try_request(&self, unit: Unit, call: Option<CallId>) -> Result<calls::Request, CallError> {
        let target = match &self.target {
            Target::InPayload => None,
            Target::Agent(agent) => Some(agent.clone()),
            Target::NotAName => {
                let message =
                    "the path does not name an agent: 1 to 256 of A-Z a-z 0-9 . _ - / : @ +";
                return Err(CallError::Refused(Text::from_static(message)));
            }
        };
        // The header is nearer to the bridge than the configuration that is meant for the agent.
        let in_payload = unit.json_rpc.as_ref().and_then(|rpc| rpc.timeout_millis);
        let timeout = self.timeout.or(in_payload.map(Duration::from_millis));
        Ok(calls::Request {
            arrived: self.arrived.into_std(),
            unit,
            data: None,
            call,
            target,
            timeout: self.time_left(timeout)?,
            caller: self.caller.clone(),
            headers: self.headers.clone(),
        })
    }

    /// What is left of the time that the caller waits: the later units of a long batch start late.
    fn time_left(&self, timeout: Option<Duration>) -> Result<Option<Duration>, CallError> {
        let Some(timeout) = timeout else {
            return Ok(None);
        };
        let timeout = self.calls.patience(Some(timeout));
        match timeout.saturating_sub(self.arrived.elapsed()) {
            Duration::ZERO => Err(CallError::Timeout(Box::new(NoAnswer {
                after: timeout,
                agent: Text::default(),
                published: None,
                cause: None,
                rejected: None,
            }))),
            left => Ok(Some(left)),
        }
    }

    /// Writes down a request, or a unit of one, that is refused before it becomes a call.
    pub(in crate::doors) fn note_refusal(&self, reason: &'static str) {
        let line = Line {
            call: self.call,
            caller: &self.caller,
            agent: "",
            method: "",
            outcome: reason,
            took: self.arrived.elapsed(),
        };
        line.write();
    }

    /// One document, in the form that the caller accepts.
    pub(in crate::doors) fn whole(&self, body: Bytes) -> Response {
        match self.accepts {
            Accepts::Json | Accepts::Both => json_response(StatusCode::OK, body),
            Accepts::Events => sse::whole_response(&body, &self.purse),
        }
    }
}
