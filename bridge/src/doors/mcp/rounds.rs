//! Questions of agents to clients of 2026-07-28, which have no stream for them. The question is the answer to the
//! request (`input_required`), and the client sends the request again, with its response.
//!
//! ```text
//! agent ── question, later parts ──> log ──> client: input_required, requestState CALL.N.SECRET
//! client ── inputResponses, requestState ──> any replica ─┬─> replica of the call ──> agent
//!                                                         └─< log: the parts after the Nth
//! ```
//!
//! Source: docs/protocols/mcp.md §10; MCP 2026-07-28, "Multi round-trip requests".

use std::borrow::Cow;
use std::convert::identity;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::json::BYTE_ORDER_MARK;
use a2abus_plugin::protocol::jsonrpc::{self, JsonRpc, RpcBody, splice};
use a2abus_plugin::{Hint, Limits, Text, Unit, decode};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _, stream};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::envelope::{Params, is_object, text};
use super::post::McpRequest;
use super::relay::NotRelayed;
use super::state::Mcp;
use super::stream::{ResumableStream, is_question};
use crate::account::ANSWERED;
use crate::calls::callid::CallId;
use crate::calls::failure::{Failure, Reason, Recipient};
use crate::calls::question::call_of_question;
use crate::calls::{Answer, CallError, Part};
use crate::clock;
use crate::doors::a2a::not_read;
use crate::results::{Author, OpenedCall, RecordedPart, Results, digest_of};

type PartResult = Result<Part, CallError>;

/// What the client repeats as `requestState`. Only the client of the call knows its secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RoundState {
    call: CallId,
    /// How many parts are recorded up to the question, which is the last of them.
    received: usize,
    secret: CallId,
}

/// What is recorded when the agent asks a question.
pub(super) struct Asked {
    mcp: Arc<Mcp>,
    call: CallId,
    agent: Text,
    /// How long the call still has.
    left: Duration,
    recipient: Recipient,
    /// The client's own progress token, as JSON.
    progress: Option<Text>,
}

/// The parts of a call after a question, for the request that its client has sent again.
struct NextRound {
    /// `None` after the last one.
    parts: Option<mpsc::Receiver<Result<RecordedPart, CallError>>>,
    opened: Arc<OpenedCall>,
    state: RoundState,
    recipient: Recipient,
    /// The progress token of the new request, as JSON.
    progress: Option<Text>,
    limits: Limits,
    cancel: CancelOnDrop,
}

/// Cancels the call if the client disconnects.
struct CancelOnDrop {
    mcp: Arc<Mcp>,
    caller: Text,
    /// The log key of the call; `None` once its answer has ended.
    key: Option<Text>,
}

/// Tells a state of the bridge from one of an agent.
const PREFIX: &str = "a2abus.";

// === impl RoundState ===

impl fmt::Display for RoundState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            call,
            received,
            secret,
        } = self;
        write!(f, "{PREFIX}{call}.{received}.{secret}")
    }
}

impl RoundState {
    /// The state in a request that its client has sent again; `None` if it has none, or that of an agent.
    pub(super) fn of(params: &Params<'_>) -> Option<Self> {
        Self::parse(&text(params.request_state)?)
    }

    fn parse(state: &str) -> Option<Self> {
        let mut members = state.strip_prefix(PREFIX)?.split('.');
        let state = Self {
            call: members.next()?.parse().ok()?,
            received: members.next()?.parse().ok().filter(|count| *count > 0)?,
            secret: members.next()?.parse().ok()?,
        };
        members.next().is_none().then_some(state)
    }

    /// The log key of the call for its client. It does not reveal the secret.
    fn key(&self) -> Text {
        format!("mcp-round-{}", digest_of([self.secret.text().as_bytes()])).into()
    }

    /// The answer to a request whose client is asked this question; `None` if the question is unreadable.
    fn input_required(&self, question: &[u8], recipient: &Recipient) -> Option<Bytes> {
        let Question { id, method, params } = Question::read(question)?;
        let (id, method) = (Value::from(id), Value::from(method));
        let params = params.map(|params| format!(r#","params":{}"#, params.get()));
        let params = params.unwrap_or_default();
        let result = format!(
            r#"{{"resultType":"input_required","inputRequests":{{{id}:{{"method":{method}{params}}}}},"requestState":"{self}"}}"#
        );
        Some(jsonrpc::result(recipient.id(), &result))
    }
}

/// A question, with the id that names its call.
#[derive(Deserialize)]
struct Question<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    method: Cow<'a, str>,
    #[serde(default, borrow)]
    params: Option<&'a RawValue>,
}

impl<'a> Question<'a> {
    fn read(question: &'a [u8]) -> Option<Self> {
        let question = question.strip_prefix(BYTE_ORDER_MARK).unwrap_or(question);
        serde_json::from_slice(question).ok()
    }
}

// === impl Asked ===

impl Asked {
    pub(super) fn new(request: &McpRequest<'_>, answer: &Answer) -> Self {
        Self {
            mcp: Arc::clone(request.mcp),
            call: answer.call_id(),
            agent: request
                .common
                .target
                .name()
                .map(Text::from)
                .unwrap_or_default(),
            left: answer.time_left(),
            recipient: request.recipient.clone(),
            progress: progress_of(&request.unit),
        }
    }

    /// The parts of an answer up to the first question of the agent, which becomes the last part.
    pub(super) fn until_question(
        self,
        parts: impl Stream<Item = PartResult> + Send + 'static,
    ) -> impl Stream<Item = PartResult> + Send + Unpin {
        let parts = stream::unfold(Some((self, parts.boxed())), |state| async {
            let (asked, mut parts) = state?;
            match parts.next().await? {
                Ok(part) if part.is_question => {
                    let asked = Box::pin(asked.keep(&part.body, parts)).await;
                    Some((Ok(Part::new(asked, true)), None))
                }
                part => Some((part, Some((asked, parts)))),
            }
        });
        parts.boxed()
    }

    /// Records the question and all later parts, so that the client can send its response to any replica. Returns the
    /// answer for the client. If that fails, the call is cancelled.
    async fn keep(self, question: &Bytes, parts: BoxStream<'static, PartResult>) -> Bytes {
        let results = &self.mcp.door.results;
        let failed = |message: &str| {
            Failure::new(Reason::AgentUnavailable, message.to_owned()).render(&self.recipient)
        };
        let Ok(secret) = self.mcp.door.calls.new_call() else {
            return failed("the system has no random numbers");
        };
        let state = RoundState {
            call: self.call,
            received: 1,
            secret,
        };
        let Some(asked) = state.input_required(question, &self.recipient) else {
            return failed("the agent has asked a question without a usable id or method");
        };
        let recorded = RecordedPart::new(question, false, Author::Agent);
        if !results.open_call(self.call, self.opened(&state)).await
            || !results.keep_part(self.call, 0, recorded).await
        {
            return failed(
                "the agent asks for input, but the bridge cannot record the call (log `results`): try again later",
            );
        }
        let held = self.mcp.running.hold(state.key());
        let parts = parts.take_until(held.token().clone().cancelled_owned());
        // The entry is needed until the last part.
        let parts = parts.inspect(move |_| {
            let _ = &held;
        });
        let recorder =
            ResumableStream::after_question(Arc::clone(results), self.call, self.recipient);
        results.spawn(recorder.record(parts));
        asked
    }

    fn opened(&self, state: &RoundState) -> OpenedCall {
        let now = clock::now();
        OpenedCall {
            key: None,
            task: None,
            token: None,
            session: Some(state.key()),
            skill: None,
            id: self.recipient.id().clone(),
            progress: self.progress.clone(),
            streamed: false,
            agent: self.agent.clone(),
            until: clock::milliseconds(now + self.left),
            began: clock::milliseconds(now),
            part_timeout: None,
        }
    }
}

fn progress_of(unit: &Unit) -> Option<Text> {
    let message = unit.json_rpc.as_ref()?;
    message.progress.as_ref().map(|token| token.token().clone())
}

// === impl McpRequest ===

impl McpRequest<'_> {
    /// Passes the client's responses to the agent that has asked for them, and answers with the rest of the call.
    pub(super) async fn next_round(self, state: RoundState) -> Response {
        match self.parts_after(state).await {
            Ok(parts) => {
                self.note(ANSWERED);
                self.respond(parts, None).await
            }
            Err(failure) => self.failed(&failure),
        }
    }

    async fn parts_after(
        &self,
        state: RoundState,
    ) -> Result<impl Stream<Item = PartResult> + Send + Unpin + 'static, Failure> {
        let results = &self.common.results;
        let opened = results
            .lasting(state.call, state.received, &state.key())
            .await;
        let opened = opened.map_err(|error| not_read("results", &error))?;
        let opened = opened.ok_or_else(|| {
            Failure::bad_params(
                "the call of this requestState is no longer stored: send the request again without requestState and inputResponses",
            )
        })?;
        // A client that sends its response twice gets the same answer twice, and the agent one response.
        let is_answered = results.parts_of(state.call) > state.received;
        let received = if is_answered || self.respond_to_agent(state).await? {
            state.received
        } else {
            state.received - 1
        };
        let next = NextRound {
            parts: Some(results.replay(state.call, received, identity)),
            opened,
            state: RoundState { received, ..state },
            recipient: self.recipient.clone(),
            progress: progress_of(&self.unit),
            limits: self.common.calls.rules().limits,
            cancel: CancelOnDrop {
                mcp: Arc::clone(self.mcp),
                caller: self.common.caller.clone(),
                key: Some(state.key()),
            },
        };
        Ok(next.into_stream())
    }

    /// Returns whether the request has a response to a question of this call.
    async fn respond_to_agent(&self, state: RoundState) -> Result<bool, Failure> {
        #[derive(Deserialize)]
        struct Responses<'a>(
            #[serde(borrow)] std::collections::BTreeMap<Cow<'a, str>, &'a RawValue>,
        );
        let params = Params::read(&self.unit.bytes)?;
        let Some(responses) = params.input_responses.filter(|raw| is_object(raw)) else {
            return Ok(false);
        };
        let Responses(responses) = serde_json::from_str(responses.get())
            .map_err(|error| Failure::bad_params(&format!("params.inputResponses: {error}")))?;
        let calls = &self.common.calls;
        let mut is_given = false;
        for (id, response) in responses {
            let body = jsonrpc::result(&Value::from(id).to_string(), response.get());
            let limits = calls.rules().limits;
            let unit = decode(&body, &Hint::default(), &limits).into_only();
            let Some(Ok(unit)) = unit.ok() else { continue };
            if call_of_question(&unit) != Some(state.call) {
                continue;
            }
            is_given = true;
            if !calls.take_client_answer(&unit)
                && let Some(answer) = calls.answer_for_others(&unit)
            {
                let passed = self.mcp.relay.answer(&self.common.caller, answer).await;
                passed.map_err(|error| NotRelayed::refusal(error).1)?;
            }
        }
        Ok(is_given)
    }
}

// === impl NextRound ===

impl NextRound {
    fn into_stream(self) -> impl Stream<Item = PartResult> + Send + Unpin {
        let parts = stream::unfold(self, |mut rest| async {
            let part = rest.next().await?;
            Some((part, rest))
        });
        parts.boxed()
    }

    async fn next(&mut self) -> Option<PartResult> {
        let part = loop {
            let parts = self.parts.as_mut()?;
            match timeout(self.opened.wait_for_part(), parts.recv()).await {
                Ok(Some(Ok(part))) => {
                    self.state.received += 1;
                    if let Some(part) = self.part(&part) {
                        break Ok(part);
                    }
                }
                Ok(Some(Err(error))) => break Err(error),
                Ok(None) => return None,
                Err(_late) => {
                    let message = "the answer was not recorded in time: the agent may have executed the request";
                    let failure = Failure::new(Reason::AnswerLost, message);
                    break Ok(Part::new(failure.render(&self.recipient), true));
                }
            }
        };
        if !matches!(&part, Ok(part) if !part.last) {
            self.parts = None;
            self.cancel.key = None;
        }
        Some(part)
    }

    /// A recorded part in the form of the new request; `None` if its client does not ask for it.
    fn part(&self, part: &RecordedPart) -> Option<Part> {
        let body = Bytes::copy_from_slice(part.body.as_bytes());
        if is_question(&body) {
            let asked = self.state.input_required(&body, &self.recipient)?;
            return Some(Part::new(asked, true));
        }
        let unit = decode(&body, &Hint::default(), &self.limits).into_only();
        let message = unit.ok().and_then(Result::ok).and_then(|it| it.json_rpc);
        let body = match message {
            Some(JsonRpc {
                id: Some(id),
                body: RpcBody::Result(_) | RpcBody::Error(_),
                ..
            }) => splice(&body, id.span(), self.recipient.id()),
            Some(JsonRpc {
                progress: Some(token),
                ..
            }) if Some(token.token()) == self.opened.progress.as_ref() => {
                splice(&body, token.span(), self.progress.as_ref()?)
            }
            _ => body,
        };
        Some(Part::new(body, part.last))
    }
}

// === impl CancelOnDrop ===

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        let Some(key) = self.key.take() else { return };
        let (mcp, caller) = (Arc::clone(&self.mcp), self.caller.clone());
        let results: &Results = &self.mcp.door.results;
        results.spawn(async move { mcp.cancel(&caller, &key).await });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::callid::Replica;

    #[test]
    fn a_state_is_read_back_and_nothing_else_is() {
        let state = RoundState {
            call: CallId::new(Replica(3)).unwrap(),
            received: 2,
            secret: CallId::new(Replica(4)).unwrap(),
        };
        let text = state.to_string();
        assert_eq!(RoundState::parse(&text), Some(state));
        assert!(!state.key().contains(&state.secret.to_string()));
        for bad in [
            "",
            "sealed",
            "a2abus.",
            &format!("{text}.1"),
            &text.replacen(".2.", ".0.", 1),
            &text.replacen(".2.", ".-1.", 1),
            &text.replacen(PREFIX, "", 1),
        ] {
            assert_eq!(RoundState::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_question_keeps_the_bytes_of_its_params() {
        let state = RoundState {
            call: CallId::new(Replica(3)).unwrap(),
            received: 1,
            secret: CallId::new(Replica(4)).unwrap(),
        };
        let recipient = Recipient::new("7".into(), a2abus_plugin::protocol::dialect::Dialect::Mcp);
        let asked = |question: &str| state.input_required(question.as_bytes(), &recipient);
        let answer =
            asked(r#"{"jsonrpc":"2.0","id":"q","method":"roots/list","params":{ "n":1.0 }}"#);
        let expected = format!(
            r#"{{"jsonrpc":"2.0","id":7,"result":{{"resultType":"input_required","inputRequests":{{"q":{{"method":"roots/list","params":{{ "n":1.0 }}}}}},"requestState":"{state}"}}}}"#
        );
        assert_eq!(answer.unwrap(), expected);
        let without = asked(r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#).unwrap();
        assert!(serde_json::from_slice::<Value>(&without).is_ok());
        assert_eq!(asked("{}"), None);
    }
}
