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

use std::convert::identity;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use a2abus_plugin::protocol::jsonrpc::{JsonRpc, RpcBody, splice};
use a2abus_plugin::{Hint, Limits, Text, Unit, decode};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _, stream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::envelope::Params;
use super::post::{McpRequest, no_room};
use super::relay::NotRelayed;
use super::round_state::{RoundState, recorded_question};
use super::state::Mcp;
use super::stream::{ResumableStream, is_question};
use crate::account::ANSWERED;
use crate::calls::callid::ReplyId;
use crate::calls::failure::{Failure, Reason, Recipient};
use crate::calls::question::ClientAnswer;
use crate::calls::{Answer, CallError, Part};
use crate::clock;
use crate::doors::rpc::common::Common;
use crate::results::{Author, OpenedCall, RecordedPart, Results};

/// The outcomes in the access log of a call that the bridge has ended, and of one whose client has disconnected.
const FAILED: &str = "failed";
const CANCELLED: &str = "cancelled";

type PartResult = Result<Part, CallError>;

/// What is recorded when the agent asks a question.
pub(super) struct Asked {
    mcp: Arc<Mcp>,
    call: ReplyId,
    agent: Text,
    began: SystemTime,
    /// How long the call had then.
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
    ending: Ending,
}

/// Writes the request to the access log, and cancels the call if the client disconnects.
struct Ending {
    mcp: Arc<Mcp>,
    common: Common,
    agent: Text,
    method: Text,
    /// The log key of the call; `None` once the answer has ended.
    key: Option<Text>,
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
            began: clock::now(),
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
            until: clock::milliseconds(self.began + self.left),
            began: clock::milliseconds(self.began),
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
            Ok(parts) => self.respond(parts, None).await,
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
        let opened = opened.map_err(|error| self.mcp.door.not_read("results", &error))?;
        let target = self.common.target.name();
        let is_same = |opened: &Arc<OpenedCall>| target.is_none_or(|agent| opened.agent == agent);
        let opened = opened.filter(is_same).ok_or_else(unknown)?;
        // Once the bridge drains, the client can send the request again to another replica.
        let drained = self.mcp.drained(self.mcp.has_call(call));
        let mut parts = results.replay_until(call, state.received - 1, identity, drained);
        let asked = match timeout(opened.wait_for_part(), parts.recv()).await {
            Ok(Some(Ok(asked))) => asked,
            Ok(Some(Err(error @ CallError::Draining))) => return Err(Failure::call(&error)),
            _ => return Err(unknown()),
        };
        let asked = Bytes::copy_from_slice(asked.body.as_bytes());
        let Some(response) = state.response_in(&Params::read(&self.unit.bytes)?, &asked)? else {
            let again = state.input_required(&asked, &self.recipient);
            let again = again.ok_or_else(unknown)?;
            self.note(ANSWERED);
            return Ok(stream::iter([Ok(Part::new(again, true))]).boxed());
        };
        self.send_response(&response).await?;
        let agent = opened.agent.clone();
        let next = NextRound {
            parts: Some(parts),
            opened,
            state,
            recipient: self.recipient.clone(),
            progress: progress_of(&self.unit),
            limits: self.common.calls.rules().limits,
            ending: Ending {
                mcp: Arc::clone(self.mcp),
                common: self.common.clone(),
                agent,
                method: self.method.clone(),
                key: Some(state.key()),
            },
        };
        Ok(next.into_stream())
    }

    /// Sends a response to the agent that has asked for it. If its call is over, its last part tells the client.
    async fn send_response(&self, response: &Bytes) -> Result<(), Failure> {
        let calls = &self.common.calls;
        let unit = decode(response, &Hint::default(), &calls.rules().limits).into_only();
        let unit = unit.ok().and_then(Result::ok);
        let unit = unit.ok_or_else(|| Failure::bad_params("params.inputResponses"))?;
        match calls.take_client_answer(&unit, None) {
            ClientAnswer::Taken => return Ok(()),
            ClientAnswer::NoRoom => return Err(no_room()),
            ClientAnswer::Unawaited | ClientAnswer::Foreign => {}
        }
        if let Some(answer) = calls.answer_for_others(&unit, None) {
            let passed = self.mcp.relay.answer(&self.common.caller, answer).await;
            passed.map_err(|error| NotRelayed::refusal(error).1)?;
        }
        Ok(())
    }
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
        let (part, outcome) = loop {
            let parts = self.parts.as_mut()?;
            match timeout(self.opened.wait_for_part(), parts.recv()).await {
                Ok(Some(Ok(part))) => {
                    self.state.received += 1;
                    let outcome = match part.by {
                        Author::Agent => ANSWERED,
                        Author::Bridge => FAILED,
                    };
                    if let Some(part) = self.part(&part) {
                        break (Ok(part), outcome);
                    }
                }
                Ok(Some(Err(error))) => {
                    let outcome = Failure::call(&error).reason_code();
                    break (Err(error), outcome);
                }
                Ok(None) => return None,
                Err(_late) => {
                    let message = "the answer was not recorded in time: the agent may have executed the request";
                    let failure = Failure::new(Reason::AnswerLost, message);
                    let part = Part::new(failure.render(&self.recipient), true);
                    break (Ok(part), failure.reason_code());
                }
            }
        };
        if !matches!(&part, Ok(part) if !part.last) {
            self.parts = None;
            self.ending.end(outcome);
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

// === impl Ending ===

impl Ending {
    /// Writes the outcome to the access log. Returns the log key of the call if it has not ended before.
    fn end(&mut self, outcome: &str) -> Option<Text> {
        let key = self.key.take()?;
        self.common.note(&self.agent, &self.method, outcome);
        Some(key)
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Some(key) = self.end(CANCELLED) else {
            return;
        };
        let (mcp, caller) = (Arc::clone(&self.mcp), self.common.caller.clone());
        let results: &Results = &self.mcp.door.results;
        results.spawn(async move { mcp.cancel(&caller, &key).await });
    }
}
