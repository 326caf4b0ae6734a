//! Sends a request to its agent, and the answer to the MCP client.

use std::future::ready;
use std::sync::Arc;

use a2abus_plugin::Text;
use a2abus_plugin::json::range_of;
use a2abus_plugin::protocol::jsonrpc::{self, splice};
use axum::response::Response;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http::StatusCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::continued::Continued;
use super::envelope::{ProtocolMode, is_object};
use super::inputs::InputClient;
use super::post::McpRequest;
use super::revision::Revision;
use super::rounds::Asked;
use super::session::Session;
use super::skill::response::SkillResponse;
use super::stream::{Recorded, ResumableStream};
use crate::account::ANSWERED;
use crate::calls::failure::{Failure, Reason};
use crate::calls::question::{Abilities, Client};
use crate::calls::{Answer, CallError, Part};
use crate::doors::rpc::common::CallOptions;
use crate::doors::rpc::head::{CALL_ID, header_of, status_of};
use crate::doors::rpc::parts::AnswerParts;
use crate::http::respond::refusal;
use crate::http::sse::{self, Frame};
use crate::object::present;
use crate::results::Skill;
use crate::rpc_response::RpcResponse;

/// The methods whose results tell how long they may be cached. Source: MCP 2026-07-28, caching.
const CACHEABLE_METHODS: [&str; 5] = [
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
];

/// The type of a result that is no question, as JSON.
const COMPLETE: &str = r#""complete""#;

type PartResult = Result<Part, CallError>;

/// What a client gets of an answer.
struct PartFilter {
    /// Whether it has asked for log messages.
    logs: bool,
    /// Set if the agent may ask it for input.
    inputs: Option<InputClient>,
}

/// The form of an answer in the client's revision.
#[derive(Debug, Clone, Copy)]
struct AnswerForm {
    is_stateless: bool,
    is_cacheable: bool,
}

// === impl McpRequest ===

impl McpRequest<'_> {
    /// Sends the request to its agent, and the answer to the client, converted by `skill_response` if given.
    pub(super) async fn called(mut self, skill_response: Option<SkillResponse>) -> Response {
        let skill = skill_response.as_ref().map(SkillResponse::skill);
        let context = skill.as_ref().map(|skill| skill.context.clone());
        let options = CallOptions {
            conversation: context.as_ref(),
            // An A2A agent asks through the state of its task instead.
            client: skill.is_none().then(|| self.client()),
            session: self.resumable(skill.as_ref()),
            skill,
            ..CallOptions::default()
        };
        if options.session.is_none() {
            return Box::pin(self.answered(options, skill_response)).await;
        }
        let Ok(call) = self.common.calls.channels().new_call() else {
            return self.failed(&Failure::call(&CallError::Unavailable(Text::default())));
        };
        let call = call.followed();
        (self.common.call, self.call) = (call, Some(call));
        let mut response = Box::pin(self.answered(options, skill_response)).await;
        let headers = response.headers_mut();
        headers.insert(CALL_ID, header_of(&[call]));
        response
    }

    /// The log key of the session, if the client can resume the answer: it asks for progress and accepts a stream.
    fn resumable(&self, skill: Option<&Skill>) -> Option<Text> {
        let session = self.session.filter(|_| self.is_in_lasting_session())?;
        let message = self.unit.json_rpc.as_ref();
        let has_progress = match skill {
            Some(skill) => skill.progress.is_some(),
            None => message.is_some_and(|message| message.progress.is_some()),
        };
        let is_whole = self.call.is_some() && self.common.key.is_none();
        let lasts = has_progress && is_whole && self.common.accepts.events();
        lasts.then(|| session.key())
    }

    async fn answered(
        self,
        options: CallOptions<'_>,
        mut skill_response: Option<SkillResponse>,
    ) -> Response {
        let (running, is_shared) = (Arc::clone(&self.running), self.common.results.is_shared());
        if running.token().is_cancelled() {
            return self.failed(&cancelled());
        }
        let called = Box::pin(self.common.call(self.unit.clone(), self.call, options)).await;
        if let Err(error) = &called
            && let Some(status) = status_of(error)
        {
            return refusal(status, &Failure::call(error), &self.recipient);
        }
        let asks = |answer: &Answer| Arc::clone(answer.has_question());
        let has_question = called.as_deref().map(asks).unwrap_or_default();
        let resumable = called.as_ref().ok().and_then(|answer| {
            let continues_elsewhere = answer.continues_elsewhere()?;
            Some(Recorded {
                call: answer.call_id(),
                // The log records the unconverted parts of the agent.
                skill_response: skill_response.take(),
                has_event_id: match is_shared {
                    true => Arc::clone(continues_elsewhere),
                    // No other replica has the rest.
                    false => Arc::default(),
                },
                has_question: Arc::clone(&has_question),
            })
        });
        let is_askable = self.mode.is_stateless() && self.abilities() != Abilities::default();
        let asked = called.as_ref().ok().filter(|_| is_askable);
        let asked = asked.map(|answer| Asked::new(&self, answer));
        let filter = PartFilter::of(&self);
        let until_cancelled = running.token().clone().cancelled_owned();
        let recipient = self.recipient.clone();
        let parts = AnswerParts::of(called)
            .into_stream()
            .filter_map(move |part| {
                let part = match (&mut skill_response, part) {
                    (Some(skill_response), Ok(part)) => {
                        skill_response.part(part, &recipient).map(Ok)
                    }
                    (_, part) => Some(part),
                };
                ready(part.and_then(|part| filter.part(part)))
            })
            // The request can be cancelled until its answer ends.
            .inspect(move |_| {
                let _ = &running;
            })
            .take_until(until_cancelled);
        let results = self.is_in_lasting_session().then_some(&self.common.results);
        let parts = Continued::new(parts, results.map(|it| (Arc::clone(it), has_question)));
        match asked {
            Some(asked) => self.respond(asked.until_question(parts), resumable).await,
            None => self.respond(parts, resumable).await,
        }
    }

    /// Whether the request is in a session that does not end with its connection.
    fn is_in_lasting_session(&self) -> bool {
        let session = self.session.filter(|_| !self.mode.is_stateless());
        session.is_some_and(|session| session.revision() >= Revision::V2025_03_26)
    }

    /// The client, for the questions of the agent. Without a session, it responds with its next request.
    fn client(&self) -> Client {
        let abilities = self.abilities();
        let is_asked = abilities != Abilities::default() && !self.mode.is_stateless();
        let session = self.session.filter(|_| is_asked);
        Client {
            abilities,
            session: session.map(Session::key),
        }
    }

    /// What the agent can ask the client during its request. In a session this needs a stream; a stateless request gets
    /// the question as its answer.
    fn abilities(&self) -> Abilities {
        // The question would be stored with the answer, and every repeated request would ask it again.
        if self.common.key.is_some() {
            return Abilities::default();
        }
        if let ProtocolMode::Stateless { abilities, .. } = self.mode {
            return abilities;
        }
        let session = self.session.filter(|_| self.common.accepts.events());
        session.map(Session::abilities).unwrap_or_default()
    }

    pub(super) async fn respond(
        self,
        mut parts: impl Stream<Item = PartResult> + Send + Unpin + 'static,
        resumable: Option<Recorded>,
    ) -> Response {
        let events = self.common.accepts.events();
        let first = if events {
            match timeout(sse::UNTIL_STREAM, parts.next()).await {
                Err(_silence) => return self.silent(parts, resumable),
                Ok(first) => first,
            }
        } else {
            parts.next().await
        };
        if events && matches!(&first, Some(Ok(part)) if !part.last) {
            return self.streamed(
                futures_util::stream::iter(first).chain(parts),
                (resumable, None),
            );
        }
        let mut part = first;
        while matches!(&part, Some(Ok(part)) if !part.last) {
            part = parts.next().await;
        }
        match part {
            Some(Ok(part)) => match resumable.and_then(|resumable| resumable.skill_response) {
                Some(mut skill_response) => {
                    let skill_response = skill_response.part(part, &self.recipient);
                    self.whole(skill_response.map(|part| part.body).unwrap_or_default())
                }
                None => self.whole(part.body),
            },
            Some(Err(error)) => match status_of(&error) {
                Some(status) => refusal(status, &Failure::call(&error), &self.recipient),
                None => self.error(&Failure::call(&error)),
            },
            None => self.error(&cancelled()),
        }
    }

    /// A stream without an initial message. Clients of revisions with resumable streams get an event id.
    fn silent(
        self,
        parts: impl Stream<Item = PartResult> + Send + 'static,
        resumable: Option<Recorded>,
    ) -> Response {
        let revision = self.session.map(Session::revision);
        let knows = revision.is_some_and(|revision| revision >= Revision::V2025_11_25);
        let recorded = resumable.as_ref().filter(|_| knows);
        let beginning = recorded.map(Recorded::beginning);
        self.streamed(parts, (resumable, beginning))
    }

    fn streamed(
        self,
        parts: impl Stream<Item = PartResult> + Send + 'static,
        (resumable, beginning): (Option<Recorded>, Option<Frame>),
    ) -> Response {
        let form = AnswerForm::of(&self);
        let recipient = self.recipient;
        if let Some(recorded) = resumable {
            let frames = ResumableStream::frames(self.common.results, recorded, recipient, parts);
            let frames = futures_util::stream::iter(beginning).chain(frames);
            return sse::frames_response(frames, self.common.budget);
        }
        let texts = parts.map(move |part| match part {
            Ok(part) if part.last => form.of_answer(part.body).0,
            Ok(part) => part.body,
            Err(error) => Failure::call(&error).render(&recipient),
        });
        sse::texts_response(texts, self.common.budget)
    }

    /// The response for a failure without a call.
    pub(super) fn failed(&self, failure: &Failure) -> Response {
        self.note(failure.reason_code());
        self.error(failure)
    }

    /// The response for a failure. That of a call is in the access log already.
    fn error(&self, failure: &Failure) -> Response {
        self.whole(failure.render(&self.recipient))
    }

    /// Records the request in the access log, which has one line for each.
    pub(super) fn note(&self, outcome: &str) {
        let agent = self.common.target.name().unwrap_or_default();
        self.common.note(agent, &self.method, outcome);
    }

    /// A response with one message. For a stateless request, errors have an HTTP status.
    fn whole(&self, body: Bytes) -> Response {
        let (body, status) = AnswerForm::of(self).of_answer(body);
        let mut response = self.common.whole(body);
        if status != StatusCode::OK && !self.common.accepts.is_events_only() {
            *response.status_mut() = status;
        }
        response
    }

    /// The response for a result without a call.
    pub(super) fn result(&self, result: &str) -> Response {
        match self.common.charged(self.body_of(result)) {
            Ok(body) => self.without_call(body),
            Err(failure) => self.failed(&failure),
        }
    }

    /// The same after something was done: its result must not be refused.
    pub(super) fn result_of_change(&self, result: &str) -> Response {
        self.without_call(self.common.budget.replace(self.body_of(result)))
    }

    fn without_call(&self, body: Bytes) -> Response {
        self.note(ANSWERED);
        self.common.whole(body)
    }

    /// A response with this result, in the form of the client's revision.
    fn body_of(&self, result: &str) -> Bytes {
        let body = jsonrpc::result(self.recipient.id(), result);
        AnswerForm::of(self).of_answer(body).0
    }
}

// === impl PartFilter ===

impl PartFilter {
    fn of(request: &McpRequest<'_>) -> Self {
        Self {
            logs: match request.mode {
                ProtocolMode::Sessions => true,
                ProtocolMode::Stateless { logs, .. } => logs,
            },
            inputs: InputClient::of(request),
        }
    }

    /// A part that the client may get; `None` if it has not asked for it.
    fn part(&self, part: PartResult) -> Option<PartResult> {
        match (part, &self.inputs) {
            (Ok(part), Some(client)) if part.last => Some(Ok(client.checked(part))),
            (Ok(part), _) if !self.logs && !part.last && is_log(&part.body) => None,
            (part, _) => Some(part),
        }
    }
}

// === impl AnswerForm ===

impl AnswerForm {
    fn of(request: &McpRequest<'_>) -> Self {
        Self {
            is_stateless: request.mode.is_stateless(),
            is_cacheable: CACHEABLE_METHODS.contains(&request.method.as_str()),
        }
    }

    /// An answer in this form, and its HTTP status if it is sent without a stream.
    fn of_answer(self, body: Bytes) -> (Bytes, StatusCode) {
        if !self.is_stateless {
            return (body, StatusCode::OK);
        }
        let response = RpcResponse::of(&body);
        let status = status_of_error(response.code());
        let result = response.result.filter(|result| is_object(result));
        let completed = result.and_then(|result| completed(&body, result, self.is_cacheable));
        (completed.unwrap_or(body), status)
    }
}

/// The failure of a request that its client has cancelled.
fn cancelled() -> Failure {
    Failure::new(Reason::Cancelled, "the client has cancelled this request")
}

/// Source: MCP 2026-07-28, streamable HTTP.
fn status_of_error(code: Option<i64>) -> StatusCode {
    match code {
        Some(-32_601) => StatusCode::NOT_FOUND,
        Some(-32_700 | -32_600 | -32_602 | -32_022..=-32_020) => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

fn is_log(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Notification<'a> {
        #[serde(borrow)]
        method: std::borrow::Cow<'a, str>,
    }
    let notification: Option<Notification<'_>> = serde_json::from_slice(body).ok();
    notification.is_some_and(|it| it.method == "notifications/message")
}

/// The response with the members that the newest revision requires in its result; `None` if none is missing. Nothing
/// else changes. A result of another type than `complete`, such as a question, is not completed.
fn completed(body: &Bytes, result: &RawValue, is_cacheable: bool) -> Option<Bytes> {
    #[derive(Deserialize)]
    struct Members<'a> {
        #[serde(rename = "resultType", default, borrow, deserialize_with = "present")]
        kind: Option<&'a RawValue>,
        #[serde(rename = "ttlMs", default, borrow, deserialize_with = "present")]
        ttl: Option<&'a RawValue>,
        #[serde(rename = "cacheScope", default, borrow, deserialize_with = "present")]
        scope: Option<&'a RawValue>,
    }
    let has: Members<'_> = serde_json::from_str(result.get()).ok()?;
    if has.kind.is_some_and(|kind| kind.get() != COMPLETE) {
        return None;
    }
    let missing = [
        (has.kind.is_none(), r#""resultType":"complete""#),
        (is_cacheable && has.ttl.is_none(), r#""ttlMs":0"#),
        (
            is_cacheable && has.scope.is_none(),
            r#""cacheScope":"private""#,
        ),
    ];
    let missing = missing.into_iter().filter(|(is_missing, _)| *is_missing);
    let mut members: Vec<_> = missing.map(|(_, member)| member).collect();
    if members.is_empty() {
        return None;
    }
    let is_empty = result.get()[1..].trim_start().starts_with('}');
    if !is_empty {
        members.push("");
    }
    let start = range_of(body, result.get()).start + 1;
    Some(splice(body, start..start, &members.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_members_are_added() {
        let check = |result: &str, is_cacheable, expected: &str| {
            let body = |result: &str| {
                Bytes::from(format!(r#"{{"id":1, "jsonrpc":"2.0","result":{result}}}"#))
            };
            let form = AnswerForm {
                is_stateless: true,
                is_cacheable,
            };
            let expected = (body(expected), StatusCode::OK);
            assert_eq!(form.of_answer(body(result)), expected, "{result}");
        };
        check("{}", false, r#"{"resultType":"complete"}"#);
        check(
            r#"{ "tools" : [1.0] }"#,
            true,
            r#"{"resultType":"complete","ttlMs":0,"cacheScope":"private", "tools" : [1.0] }"#,
        );
        let has = r#"{"resultType":"input_required","x":{}}"#;
        check(has, false, has);
        // A question cannot be cached.
        check(has, true, has);
        let has = r#"{"ttlMs":5,"resultType" : "complete"}"#;
        let expected = r#"{"cacheScope":"private","ttlMs":5,"resultType" : "complete"}"#;
        check(has, true, expected);
        // `null` is there: a second member of the same name would leave open which one counts.
        let has = r#"{"resultType":null}"#;
        check(has, true, has);
        let has = r#"{"resultType":"complete","ttlMs":null,"cacheScope":null}"#;
        check(has, true, has);
        check("[]", true, "[]");
    }

    #[test]
    fn some_errors_have_a_status() {
        let status = |code: i64| {
            let body =
                format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":""}}}}"#);
            let body = Bytes::from(body);
            let form = AnswerForm {
                is_stateless: true,
                is_cacheable: true,
            };
            let (same, status) = form.of_answer(body.clone());
            assert_eq!(same, body);
            status.as_u16()
        };
        let all = [
            -32_601, -32_602, -32_600, -32_020, -32_021, -32_022, -32_603, -1,
        ];
        assert_eq!(all.map(status), [404, 400, 400, 400, 400, 400, 200, 200]);
    }
}
