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
use std::collections::BTreeMap;
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
use crate::calls::callid::{CallId, ReplyId};
use crate::calls::failure::{Failure, Reason, Recipient};
use crate::calls::question::{question_id, split_question_id};
use crate::calls::{Answer, CallError, Part};
use crate::clock;
use crate::doors::a2a::not_read;
use crate::results::{Author, OpenedCall, RecordedPart, Results, digest_of};

type PartResult = Result<Part, CallError>;

/// What the client repeats as `requestState`. Only the client of the call knows its secret.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoundState {
    /// The call, with the token that proves that a response is for it. The log has no token.
    call: ReplyId,
    /// How many parts are recorded up to the question, which is the last of them.
    received: usize,
    secret: CallId,
}

/// What is recorded when the agent asks a question.
pub(super) struct Asked {
    mcp: Arc<Mcp>,
    call: ReplyId,
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

    /// The answer to a request whose client is asked this recorded question; `None` if the question is unreadable.
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

/// A question.
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
            call: answer.reply_id(),
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
        let limits = self.mcp.door.calls.rules().limits;
        let question = recorded_question(question, &limits);
        let Some(asked) = state.input_required(&question, &self.recipient) else {
            return failed("the agent has asked a question without a usable id or method");
        };
        let recorded = RecordedPart::new(&question, false, Author::Agent);
        let call = self.call.call;
        if !results.open_call(call, self.opened(&state)).await
            || !results.keep_part(call, 0, recorded).await
        {
            return failed(
                "the agent asks for input, but the bridge cannot record the call (log `results`): try again later",
            );
        }
        let held = self.mcp.running.hold(state.key());
        let parts = parts.take_until(held.token().clone().cancelled_owned());
        let parts = parts.map(move |part| {
            // The call can be cancelled until its answer ends.
            let _ = &held;
            part.map(|part| match part.is_question {
                true => Part {
                    body: recorded_question(&part.body, &limits),
                    ..part
                },
                false => part,
            })
        });
        let recorder = ResumableStream::after_question(Arc::clone(results), call, self.recipient);
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
    ) -> Result<BoxStream<'static, PartResult>, Failure> {
        let (results, call) = (&self.common.results, state.call.call);
        let unknown = || {
            Failure::bad_params(
                "the call of this requestState is no longer stored: send the request again without requestState and inputResponses",
            )
        };
        let opened = results.lasting(call, state.received, &state.key()).await;
        let opened = opened.map_err(|error| not_read("results", &error))?;
        let opened = opened.ok_or_else(unknown)?;
        let mut parts = results.replay(call, state.received - 1, identity);
        let asked = timeout(opened.wait_for_part(), parts.recv()).await;
        let Ok(Some(Ok(asked))) = asked else {
            return Err(unknown());
        };
        let asked = Bytes::copy_from_slice(asked.body.as_bytes());
        let Some(response) = self.response_to(state, &asked)? else {
            let again = state.input_required(&asked, &self.recipient);
            let again = again.ok_or_else(unknown)?;
            return Ok(stream::iter([Ok(Part::new(again, true))]).boxed());
        };
        // The agent gets one response, also if the client sends it twice.
        if results.parts_of(call) == state.received {
            self.send_response(&response).await?;
        }
        let next = NextRound {
            parts: Some(parts),
            opened,
            state,
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

    /// The client's response to a question, as JSON-RPC; `None` if the request has none.
    fn response_to(&self, state: RoundState, question: &[u8]) -> Result<Option<Bytes>, Failure> {
        let params = Params::read(&self.unit.bytes)?;
        let responses = params.input_responses.filter(|raw| is_object(raw));
        let responses = responses.map_or("{}", |raw| raw.get());
        let responses: BTreeMap<Cow<'_, str>, &RawValue> = serde_json::from_str(responses)
            .map_err(|error| Failure::bad_params(&format!("params.inputResponses: {error}")))?;
        let name = Question::read(question).map(|question| question.id);
        let response = name.and_then(|name| Some((responses.get(&name)?, name)));
        Ok(response.map(|(response, name)| {
            let id = Value::from(question_id(state.call, &name));
            jsonrpc::result(&id.to_string(), response.get())
        }))
    }

    /// Sends a response to the agent that has asked for it. If its call is over, its last part tells the client.
    async fn send_response(&self, response: &Bytes) -> Result<(), Failure> {
        let calls = &self.common.calls;
        let unit = decode(response, &Hint::default(), &calls.rules().limits).into_only();
        let unit = unit.ok().and_then(Result::ok);
        let unit = unit.ok_or_else(|| Failure::bad_params("params.inputResponses"))?;
        if !calls.take_client_answer(&unit)
            && let Some(answer) = calls.answer_for_others(&unit)
        {
            let passed = self.mcp.relay.answer(&self.common.caller, answer).await;
            passed.map_err(|error| NotRelayed::refusal(error).1)?;
        }
        Ok(())
    }
}

/// A question as it is recorded, without the call in its id.
fn recorded_question(question: &Bytes, limits: &Limits) -> Bytes {
    let unit = decode(question, &Hint::default(), limits).into_only();
    let unit = unit.ok().and_then(Result::ok);
    let recorded = unit.and_then(|unit| {
        let id = unit.json_rpc?.id?;
        let (_, name) = split_question_id(&id)?;
        Some(splice(
            &unit.bytes,
            id.span(),
            &Value::from(name).to_string(),
        ))
    });
    recorded.unwrap_or_else(|| question.clone())
}

// === impl NextRound ===

impl NextRound {
    fn into_stream(self) -> BoxStream<'static, PartResult> {
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
            call: ReplyId {
                call: CallId::new(Replica(3)).unwrap(),
                token: None,
            },
            received: 2,
            secret: CallId::new(Replica(4)).unwrap(),
        };
        let text = state.to_string();
        let parse = |text: &str| RoundState::parse(text).map(|state| state.to_string());
        assert_eq!(parse(&text).as_ref(), Some(&text));
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
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_recorded_question_does_not_name_its_call() {
        let call = CallId::new(Replica(3)).unwrap();
        let question = |id: &str| {
            Bytes::from(format!(
                r#"{{ "id":"{id}","method":"roots/list","jsonrpc":"2.0" }}"#
            ))
        };
        let recorded = recorded_question(&question(&format!("{call}.cQ")), &Limits::default());
        assert_eq!(recorded, question("cQ"));
    }

    #[test]
    fn a_question_keeps_the_bytes_of_its_params() {
        let state = RoundState {
            call: ReplyId {
                call: CallId::new(Replica(3)).unwrap(),
                token: None,
            },
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
