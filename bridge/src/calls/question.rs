//! Questions of agents to the clients whose requests they process: sampling, elicitation, roots.
//!
//! A question arrives at the reply address of its call, as a JSON-RPC request with an id of the agent. The bridge gives
//! it to the client with an id that also names the call, so that the client's answer can be returned to the agent with
//! the agent's own id. Source: docs/protocols/mcp.md §10.

use a2abus_plugin::json::range_of;
use a2abus_plugin::protocol::jsonrpc::{self, Id, code, splice};
use a2abus_plugin::{Hint, Text, Unit, decode};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::service::Calls;
use crate::calls::callid::{CallId, ReplyId, ReplyToken};
use crate::calls::pending::{CallRequest, CallerMessage, Form, Questions};
use crate::calls::reply_token::Rejection;
use crate::metrics::ReplyOutcome;

/// The questions that a client supports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Abilities {
    pub(crate) sampling: bool,
    /// Elicitation by a form.
    pub(crate) elicitation: bool,
    /// Elicitation of the mode `url`.
    pub(crate) url_elicitation: bool,
    pub(crate) roots: bool,
}

/// The client of a call, for the questions of its agent.
#[derive(Debug)]
pub(crate) struct Client {
    /// The questions that it supports.
    pub(crate) abilities: Abilities,
    /// The log key of its session, if it has one. Another session cannot answer for it.
    pub(crate) session: Option<Text>,
}

/// What becomes of a client's answer to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientAnswer {
    /// The agent gets it.
    Taken,
    /// There is no room for it at the moment.
    NoRoom,
    /// No call here waits for it.
    Unawaited,
    /// It is not from the client of the call. That is logged.
    Foreign,
}

/// What to do with a question.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Send this question to the client.
    Client {
        question: Bytes,
        /// The agent's own id, as JSON.
        own: Text,
    },
    /// Send this answer of the bridge to the agent.
    Agent(Bytes),
    /// Nobody can answer it: send this error to the agent.
    Refused {
        error: Bytes,
        /// The method, for the log.
        method: Text,
    },
}

/// A client's answer for the replica that has asked the question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PassedAnswer {
    pub(crate) call: CallId,
    /// The hash of the reply token: whoever reads the log must not be able to answer the call.
    pub(crate) token: Option<Text>,
    /// The log key of the client's session. A replica of an older version does not name it.
    pub(crate) session: Option<Text>,
    /// The answer with the agent's own id.
    pub(crate) body: Bytes,
}

/// The longest method in a log line about a question, in characters.
const MAX_METHOD: usize = 64;

// === impl Abilities ===

impl Abilities {
    const ALL: Self = Self {
        sampling: true,
        elicitation: true,
        url_elicitation: true,
        roots: true,
    };

    /// Whether MCP or ACP defines a question with this method. Source: docs/protocols/mcp.md §2 and
    /// docs/protocols/acp.md §1.
    pub(crate) fn is_question(method: &str) -> bool {
        let is_of_acp = matches!(
            method,
            "session/request_permission"
                | "fs/read_text_file"
                | "fs/write_text_file"
                | "terminal/create"
                | "terminal/output"
                | "terminal/release"
                | "terminal/wait_for_exit"
                | "terminal/kill"
        );
        method == "ping" || is_of_acp || Self::ALL.has(method)
    }

    fn has(self, method: &str) -> bool {
        match method {
            "sampling/createMessage" => self.sampling,
            "elicitation/create" => self.elicitation || self.url_elicitation,
            "roots/list" => self.roots,
            _ => false,
        }
    }

    /// Whether it includes the mode of a question, if that is an elicitation.
    fn has_mode(self, method: &str, unit: &Unit) -> bool {
        match method {
            "elicitation/create" if is_by_url(unit) => self.url_elicitation,
            "elicitation/create" => self.elicitation,
            _ => true,
        }
    }

    /// What to do with a part of an answer that is a question; `None` for any other part.
    pub(crate) fn question_in(
        self,
        call: ReplyId,
        part: &Bytes,
        limits: &a2abus_plugin::Limits,
    ) -> Option<Question> {
        let unit = decode_one(part, limits)?;
        let (message, method) = (unit.json_rpc.as_ref()?, unit.method()?);
        let id = message.id.as_ref().filter(|_| message.is_call())?;
        let own = id.token();
        if self.has(method) && self.has_mode(method, &unit) {
            let named = splice(&unit.bytes, id.span(), &id_for_client(call, own));
            let own = own.clone();
            return Some(Question::Client {
                question: named,
                own,
            });
        }
        if method == "ping" {
            return Some(Question::Agent(jsonrpc::result(own, "{}")));
        }
        let (code, why) = self.why_refused(method);
        let error = format!(r#"{{"code":{code},"message":{}}}"#, json!(why));
        Some(Question::Refused {
            error: jsonrpc::error(own, &error),
            method: method.chars().take(MAX_METHOD).collect::<String>().into(),
        })
    }

    /// The code and the message of the error for an agent whose question cannot be answered.
    fn why_refused(self, method: &str) -> (i32, String) {
        if self.has(method) {
            let mode = if self.url_elicitation { "form" } else { "url" };
            let why =
                format!("the client of this call does not support elicitation of the mode {mode}");
            // Source: MCP 2025-11-25, elicitation.
            return (code::INVALID_PARAMS, why);
        }
        let why = if Self::ALL.has(method) {
            format!(
                "the client of this call cannot be asked ({method}): it must declare support for this method, use Streamable HTTP (revision 2026-07-28, or a session whose requests accept a stream), and send no Idempotency-Key"
            )
        } else {
            format!(
                "the caller cannot be asked ({method}): the bridge passes on only the questions of MCP (sampling, elicitation, roots), and only to clients of MCP"
            )
        };
        (code::METHOD_NOT_FOUND, why)
    }
}

/// Whether an elicitation asks the client to open a URL.
fn is_by_url(unit: &Unit) -> bool {
    #[derive(Deserialize)]
    struct Elicitation {
        params: Params,
    }
    #[derive(Deserialize)]
    struct Params {
        mode: String,
    }
    let elicitation: Result<Elicitation, _> = serde_json::from_slice(&unit.bytes);
    elicitation.is_ok_and(|elicitation| elicitation.params.mode == "url")
}

/// The id of a client's answer, as the agent's own id.
pub(crate) fn answered_question(answer: &Bytes, limits: &a2abus_plugin::Limits) -> Option<Text> {
    let unit = decode_one(answer, limits)?;
    Some(unit.json_rpc?.id?.token().clone())
}

/// The agent's cancel of a question: the agent's own id of the question, and the cancel with the id that the client
/// knows; `None` for any other part.
pub(crate) fn cancelled_question(
    call: ReplyId,
    part: &Bytes,
    limits: &a2abus_plugin::Limits,
) -> Option<(Text, Bytes)> {
    #[derive(Deserialize)]
    struct Cancel<'a> {
        #[serde(borrow)]
        params: CancelParams<'a>,
    }
    #[derive(Deserialize)]
    struct CancelParams<'a> {
        #[serde(rename = "requestId", borrow)]
        request: &'a RawValue,
    }
    let unit = decode_one(part, limits)?;
    if unit.method()? != "notifications/cancelled" {
        return None;
    }
    let cancel: Cancel<'_> = serde_json::from_slice(&unit.bytes).ok()?;
    let own = cancel.params.request.get();
    let span = range_of(&unit.bytes, own);
    let cancel = splice(&unit.bytes, span, &id_for_client(call, own));
    Some((own.into(), cancel))
}

fn decode_one(bytes: &Bytes, limits: &a2abus_plugin::Limits) -> Option<Unit> {
    decode(bytes, &Hint::default(), limits)
        .into_only()
        .ok()?
        .ok()
}

/// The id of a question for the client.
pub(crate) fn question_id(call: ReplyId, name: &str) -> String {
    format!("{call}.{name}")
}

/// The id of a question for the client, as JSON, from the agent's own id.
fn id_for_client(call: ReplyId, own: &str) -> String {
    let name = URL_SAFE_NO_PAD.encode(own.as_bytes());
    format!("\"{}\"", question_id(call, &name))
}

/// The call of a question, and the name of the question in it, from the id that the client repeats.
pub(crate) fn split_question_id(id: &Id) -> Option<(ReplyId, String)> {
    let text = id.text()?;
    let (call, name) = text.split_once('.')?;
    Some((call.parse().ok()?, name.to_owned()))
}

/// The call of a question, and the agent's own id.
fn parse_question_id(id: &Id) -> Option<(ReplyId, String)> {
    let (call, name) = split_question_id(id)?;
    let own = String::from_utf8(URL_SAFE_NO_PAD.decode(name).ok()?).ok()?;
    let is_id =
        serde_json::from_str(&own).is_ok_and(|own: Value| own.is_string() || own.is_number());
    is_id.then_some((call, own))
}

/// The id of a client's answer, and what it says about the question.
fn question_of(unit: &Unit) -> Option<(&Id, (ReplyId, String))> {
    let id = unit.json_rpc.as_ref()?.id.as_ref()?;
    Some((id, parse_question_id(id)?))
}

// === impl Calls ===

impl Calls {
    /// Passes the answer of a client, in the session with this log key, to the agent that has asked the question.
    pub(crate) fn take_client_answer(&self, unit: &Unit, session: Option<&str>) -> ClientAnswer {
        let Some((id, (reply_id, own))) = question_of(unit) else {
            return ClientAnswer::Unawaited;
        };
        let answer = splice(&unit.bytes, id.span(), &own);
        let verify = |asked| self.tokens().verify(asked, reply_id.token);
        let is_client = |asked: &str| session == Some(asked);
        self.take_verified(reply_id.call, answer, (verify, is_client))
    }

    /// The same for an answer that another replica has passed on.
    pub(crate) fn take_passed_answer(&self, passed: PassedAnswer) -> ClientAnswer {
        let PassedAnswer {
            call,
            token,
            session,
            body,
        } = passed;
        let verify = |asked| self.tokens().verify_passed(asked, token.as_deref());
        let is_client = |asked: &str| session.as_deref().is_none_or(|session| session == asked);
        self.take_verified(call, body, (verify, is_client))
    }

    /// Takes an answer that has the token of its call, and is from the session of the call, if the call has one.
    fn take_verified(
        &self,
        call: CallId,
        answer: Bytes,
        (verify, is_client): (
            impl Fn(ReplyId) -> Result<(), Rejection>,
            impl Fn(&str) -> bool,
        ),
    ) -> ClientAnswer {
        let request = self.pending().request(call);
        let Some(request) = request.filter(|request| verify(request.id).is_ok()) else {
            return ClientAnswer::Unawaited;
        };
        let Form::JsonRpc {
            questions: Questions::All(session),
            ..
        } = &request.form
        else {
            return ClientAnswer::Unawaited;
        };
        if session.as_deref().is_some_and(|asked| !is_client(asked)) {
            self.note_other_client(&request);
            return ClientAnswer::Foreign;
        }
        let pending = self.pending();
        match pending.send(call, CallerMessage::ClientAnswer, answer) {
            true => ClientAnswer::Taken,
            false if pending.contains(call) => ClientAnswer::NoRoom,
            false => ClientAnswer::Unawaited,
        }
    }

    /// Counts and logs a question that nobody can answer.
    pub(super) fn note_refused_question(
        &self,
        (call, agent): (CallId, Option<&str>),
        method: &Text,
    ) {
        self.metrics.question_refused();
        if let Some(suppressed) = self.refused_questions.allow() {
            tracing::warn!(
                %call, agent, %method, suppressed,
                "a question of an agent was refused: its caller cannot be asked, so the agent gets an error"
            );
        }
    }

    /// Counts and logs an answer that is not from the client that was asked.
    fn note_other_client(&self, request: &CallRequest) {
        self.count_reply(ReplyOutcome::Forged);
        if let Some(suppressed) = self.ended().rejected.allow() {
            let (call, agent) = (request.id.call, &request.agent);
            tracing::warn!(
                %call, %agent, reason = ReplyOutcome::Forged.as_str(), suppressed,
                "the answer of an MCP client to a question was rejected: it came in another session than that of its call, which still waits"
            );
        }
    }

    /// The answer of a client, in the session with this log key, as it is passed on; `None` if this replica has asked
    /// the question.
    pub(crate) fn answer_for_others(
        &self,
        unit: &Unit,
        session: Option<Text>,
    ) -> Option<PassedAnswer> {
        let (id, (reply_id, own)) = question_of(unit)?;
        (!self.channels().is_ours(reply_id.call)).then(|| PassedAnswer {
            call: reply_id.call,
            token: reply_id.token.map(ReplyToken::hash),
            session,
            body: splice(&unit.bytes, id.span(), &own),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::callid::Replica;
    use a2abus_plugin::Limits;

    #[test]
    fn an_answer_finds_its_question() {
        let call = ReplyId {
            call: CallId::new(Replica(3)).unwrap(),
            token: None,
        };
        let limits = Limits::default();
        let able = Abilities {
            elicitation: true,
            ..Abilities::default()
        };
        let ask = |method: &str, id: &str| {
            let body = format!(r#"{{ "method":"{method}","id": {id},"jsonrpc":"2.0"}}"#);
            able.question_in(call, &Bytes::from(body), &limits)
        };
        for own in ["1", r#""q.1""#, r#""\u00e9""#] {
            let Some(Question::Client { question, .. }) = ask("elicitation/create", own) else {
                panic!("{own}: the client is not asked")
            };
            let unit = decode_one(&question, &limits).unwrap();
            let id = unit.json_rpc.unwrap().id.unwrap();
            let (of, found) = parse_question_id(&id).unwrap();
            assert_eq!((of.call, found.as_str()), (call.call, own));
        }
        let Some(Question::Refused { error: refused, .. }) = ask("sampling/createMessage", "7")
        else {
            panic!("the client is asked what it cannot do")
        };
        let refused: Value = serde_json::from_slice(&refused).unwrap();
        assert_eq!(
            (&refused["id"], &refused["error"]["code"]),
            (&json!(7), &json!(-32_601))
        );
        let by_url = br#"{"jsonrpc":"2.0","method":"elicitation/create","id":9,"params":{"mode":"url","url":"https://x"}}"#;
        let by_url = Bytes::from_static(by_url);
        let asked = able.question_in(call, &by_url, &limits);
        let Some(Question::Refused { error: refused, .. }) = asked else {
            panic!("the client is asked to open a URL")
        };
        let refused: Value = serde_json::from_slice(&refused).unwrap();
        assert_eq!(refused["error"]["code"], -32_602);
        let opens = Abilities {
            url_elicitation: true,
            ..able
        };
        let asked = opens.question_in(call, &by_url, &limits);
        assert!(matches!(asked, Some(Question::Client { .. })), "{asked:?}");
        let Some(Question::Refused { error, method }) = ask("session/request_permission", "5")
        else {
            panic!("a client of MCP gets a question of ACP")
        };
        assert_eq!(method.as_str(), "session/request_permission");
        let error: Value = serde_json::from_slice(&error).unwrap();
        assert_eq!(
            (&error["id"], &error["error"]["code"]),
            (&json!(5), &json!(-32_601))
        );
        let pong = Bytes::from_static(br#"{"jsonrpc":"2.0","id":8,"result":{}}"#);
        assert_eq!(ask("ping", "8"), Some(Question::Agent(pong)));
        let progress =
            Bytes::from_static(br#"{"jsonrpc":"2.0","method":"notifications/progress"}"#);
        assert_eq!(able.question_in(call, &progress, &limits), None);
    }

    #[test]
    fn a_client_that_only_opens_urls_gets_no_form() {
        let call = ReplyId {
            call: CallId::new(Replica(3)).unwrap(),
            token: None,
        };
        let able = Abilities {
            url_elicitation: true,
            ..Abilities::default()
        };
        let ask = |params: &str| {
            let question = format!(
                r#"{{"jsonrpc":"2.0","method":"elicitation/create","id":9,"params":{params}}}"#
            );
            able.question_in(call, &Bytes::from(question), &Limits::default())
        };
        let asked = ask(r#"{"mode":"url","url":"https://x"}"#);
        assert!(matches!(asked, Some(Question::Client { .. })), "{asked:?}");
        let Some(Question::Refused { error, .. }) = ask(r#"{"message":"Who?"}"#) else {
            panic!("the client gets a form")
        };
        let error: Value = serde_json::from_slice(&error).unwrap();
        assert_eq!(error["error"]["code"], -32_602);
    }

    #[test]
    fn the_cancel_of_a_question_gets_the_id_of_the_question() {
        let call = ReplyId {
            call: CallId::new(Replica(3)).unwrap(),
            token: None,
        };
        let limits = Limits::default();
        let cancel = |method: &str, own: &str| {
            let body = format!(
                r#"{{"jsonrpc":"2.0","method":"{method}","params":{{ "requestId": {own},"reason":"late"}}}}"#
            );
            cancelled_question(call, &Bytes::from(body), &limits)
        };
        for own in ["1", r#""q.1""#, r#""\u00e9""#] {
            let (found, cancel) = cancel("notifications/cancelled", own).unwrap();
            assert_eq!(found.as_str(), own);
            let cancel: Value = serde_json::from_slice(&cancel).unwrap();
            assert_eq!(cancel["params"]["reason"], "late", "{cancel}");
            let id = format!("\"{}\"", cancel["params"]["requestId"].as_str().unwrap());
            assert_eq!(id, id_for_client(call, own));
        }
        assert_eq!(cancel("notifications/progress", "1"), None);
        assert_eq!(cancel("notifications/cancelled", "}"), None);
    }
}
