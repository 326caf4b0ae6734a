//! How does a caller learn of a failure? As a JSON-RPC error with the caller's own id, in the words of its dialect; who
//! speaks another family gets an error of that family.
//!
//! One table says which code each reason has in each dialect. A message says the cause and the cure to a person; what
//! happened inside (addresses, topics, errors of clients) stays in the logs.
//!
//! Source: docs/protocols/a2a.md §5, JSON-RPC 2.0 section 5.1.

mod http;

use ::http::StatusCode;
use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::protocol::jsonrpc::{self, code, code_of};
use a2abus_plugin::{Family, Refused, Text, Unit, extension};
use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::calls::error::{Bound, CallError, DestinationRefused, NoAnswer};

/// Why a request failed, in no dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The body is not JSON.
    Parse,
    /// The body is no JSON-RPC request.
    InvalidRequest,
    /// The parameters, or what goes with them, cannot be used.
    InvalidParams,
    /// The agent is unknown.
    AgentNotFound,
    /// The agent or the bus is away.
    AgentUnavailable,
    /// No answer came in time.
    Timeout,
    /// The bridge does not keep such a task.
    TaskNotFound,
    /// The task has ended, or its agent cannot end it.
    TaskNotCancelable,
    /// More than one client may have.
    RateLimited,
    /// More than this bridge takes.
    Exhausted,
    /// The body is of a media type that is not served, or the answer would be of one that the caller does not accept.
    ContentType,
    /// No method has this name.
    MethodNotFound,
    /// The version of the protocol is not served.
    VersionNotSupported,
    /// The request is for something that the bridge does not offer.
    Unsupported,
    /// A stream was asked for in a batch.
    StreamInBatch,
    /// Push notifications are not offered.
    PushUnsupported,
    /// The idempotency key was used for another request.
    KeyReused,
    /// The request with this idempotency key is still being answered.
    InProgress,
    /// The answer to the request with this idempotency key is not known.
    AnswerLost,
    /// The agent's answer is no answer.
    BadAgentReply,
    /// The agent's answer cannot be brought to the requester.
    ReplyUndeliverable,
    /// The client has cancelled the request.
    Cancelled,
    /// A header of an MCP request says something else than its body.
    McpHeader,
    /// The revision of MCP is not served.
    McpVersion,
}

/// One failure, ready to be sent to its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    reason: Reason,
    /// The stable word of the cause, where it is finer than the reason's own.
    word: &'static str,
    message: String,
    details: Vec<(&'static str, Value)>,
}

/// The recipient of a request's error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Recipient {
    /// The sender of a JSON-RPC message.
    JsonRpc {
        /// Its own id, as its exact JSON token.
        id: Text,
        dialect: Dialect,
    },
    /// The sender of a message of another family, who gets an error of that family.
    Message {
        family: Family,
        /// The id of its message.
        id: Option<Text>,
    },
}

/// The codes of one reason.
struct Row {
    jaf_doc: i32,
    /// Official A2A; 0.3 and 1.0 agree on all of them.
    a2a: i32,
    /// MCP, ACP and plain JSON-RPC.
    other: i32,
    /// `data.reason`.
    word: &'static str,
    /// `reason` of the `ErrorInfo` of A2A 1.0.
    error_info: &'static str,
}

/// The detail that says where in the unit something is wrong, as a JSON pointer.
const POINTER: &str = "pointer";
/// How long a caller should wait that had one call too many, in seconds. Nobody knows when one will end.
pub(crate) const SOON: u32 = 1;

// === impl Reason ===

impl Reason {
    /// The table of docs/protocols/a2a.md §5.
    ///
    /// Beyond it: the rows that are JSON-RPC's own; `content_type` for the others, since the dialect of a body that is
    /// not read is not known; and a stream in a batch, which is -32004 in any dialect.
    #[rustfmt::skip]
    fn row(self) -> Row {
        use code::{INTERNAL_ERROR as INTERNAL, METHOD_NOT_FOUND as METHOD, INVALID_PARAMS as PARAMS, INVALID_REQUEST as REQUEST, PARSE_ERROR as PARSE};
        //                                jaf-doc   A2A       others    data.reason          ErrorInfo.reason
        let (jaf_doc, a2a, other, word, error_info) = match self {
            Self::Parse            => (PARSE,    PARSE,    PARSE,    "parse_error",       "PARSE_ERROR"),
            Self::InvalidRequest   => (REQUEST,  REQUEST,  REQUEST,  "invalid_request",   "INVALID_REQUEST"),
            Self::InvalidParams    => (PARAMS,   PARAMS,   PARAMS,   "invalid_params",    "INVALID_PARAMS"),
            Self::AgentNotFound    => (-32_000,  PARAMS,   PARAMS,   "agent_not_found",   "INVALID_PARAMS"),
            Self::AgentUnavailable => (-32_002,  INTERNAL, INTERNAL, "agent_unavailable", "UNAVAILABLE"),
            Self::Timeout          => (-32_006,  INTERNAL, INTERNAL, "timeout",           "DEADLINE_EXCEEDED"),
            Self::TaskNotFound     => (-32_001,  -32_001,  PARAMS,   "task_not_found",    "TASK_NOT_FOUND"),
            Self::TaskNotCancelable => (PARAMS,  -32_002,  PARAMS,   "task_not_cancelable", "TASK_NOT_CANCELABLE"),
            Self::RateLimited      => (-32_003,  INTERNAL, INTERNAL, "rate_limited",      "RESOURCE_EXHAUSTED"),
            Self::Exhausted        => (-32_007,  INTERNAL, INTERNAL, "exhausted",         "RESOURCE_EXHAUSTED"),
            Self::ContentType      => (PARAMS,   -32_005,  -32_005,  "content_type",      "CONTENT_TYPE_NOT_SUPPORTED"),
            Self::MethodNotFound   => (METHOD,   METHOD,   METHOD,   "method_not_found",  "METHOD_NOT_FOUND"),
            Self::VersionNotSupported => (-32_009, -32_009, -32_009, "version_not_supported", "VERSION_NOT_SUPPORTED"),
            Self::Unsupported      => (METHOD,   -32_004,  METHOD,   "unsupported",       "UNSUPPORTED_OPERATION"),
            Self::StreamInBatch    => (-32_004,  -32_004,  -32_004,  "unsupported",       "UNSUPPORTED_OPERATION"),
            Self::PushUnsupported  => (METHOD,   -32_003,  METHOD,   "push_unsupported",  "PUSH_NOTIFICATION_NOT_SUPPORTED"),
            Self::KeyReused        => (REQUEST,  REQUEST,  REQUEST,  "idempotency_key_reused", "FAILED_PRECONDITION"),
            Self::InProgress       => (-32_002,  INTERNAL, INTERNAL, "in_progress",       "ABORTED"),
            Self::AnswerLost       => (-32_006,  INTERNAL, INTERNAL, "answer_lost",       "UNKNOWN"),
            Self::BadAgentReply    => (INTERNAL, -32_006,  INTERNAL, "bad_agent_reply",   "INVALID_AGENT_RESPONSE"),
            Self::ReplyUndeliverable => (INTERNAL, INTERNAL, INTERNAL, "reply_undeliverable", "INTERNAL"),
            Self::Cancelled        => (INTERNAL, INTERNAL, INTERNAL, "cancelled",         "CANCELLED"),
            Self::McpHeader        => (REQUEST,  REQUEST,  -32_020,  "header_mismatch",   "INVALID_REQUEST"),
            Self::McpVersion       => (REQUEST,  REQUEST,  -32_022,  "version_not_supported", "INVALID_REQUEST"),
        };
        Row { jaf_doc, a2a, other, word, error_info }
    }
}

// === impl Recipient ===

impl Recipient {
    /// The sender of a request.
    pub(crate) fn new(id: Text, dialect: Dialect) -> Self {
        Self::JsonRpc { id, dialect }
    }

    /// Its id, as its exact JSON token; null for the sender of another family.
    pub(crate) fn id(&self) -> &Text {
        static NULL: Text = Text::from_static("null");
        match self {
            Self::JsonRpc { id, .. } => id,
            Self::Message { .. } => &NULL,
        }
    }

    /// The sender of a unit of any family.
    pub(crate) fn of(unit: &Unit) -> Self {
        let call = unit.json_rpc.as_ref().filter(|message| message.is_call());
        match call.and_then(|message| Some((message, message.id.as_ref()?))) {
            Some((message, id)) => Self::new(id.token().clone(), message.dialect),
            None => Self::Message {
                family: unit.because.family,
                id: unit.extension_text(extension::COLLABORATION_ID).cloned(),
            },
        }
    }

    /// Its dialect of JSON-RPC; the plain one for the sender of another family.
    pub(crate) fn dialect(&self) -> Dialect {
        match self {
            Self::JsonRpc { dialect, .. } => *dialect,
            Self::Message { .. } => Dialect::JsonRpc,
        }
    }

    /// The sender of something without an id.
    pub(crate) fn unknown(dialect: Dialect) -> Self {
        Self::new(Text::from_static("null"), dialect)
    }
}

// === impl Failure ===

impl Failure {
    /// A failure with a message that names the cause and, where there is one, the cure.
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            word: reason.row().word,
            message: message.into(),
            details: Vec::new(),
        }
    }

    /// The stable word of the cause.
    pub(crate) fn word(&self) -> &'static str {
        self.word
    }

    /// With one more member of `data`.
    pub(crate) fn detail(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.details.push((name, value.into()));
        self
    }

    /// A unit that cannot be decoded.
    pub(crate) fn refused(refused: &Refused) -> Self {
        let error = &refused.error;
        let reason = match code_of(error.kind()) {
            code::PARSE_ERROR => Reason::Parse,
            code::INVALID_PARAMS => Reason::InvalidParams,
            _ => Reason::InvalidRequest,
        };
        let failure = Self {
            word: error.kind().as_str(),
            ..Self::new(reason, error.to_string())
        };
        let failure = failure.detail("offset", error.offset());
        match error.pointer() {
            "" => failure,
            pointer => failure.detail(POINTER, pointer),
        }
    }

    /// A unit of a family that is not served here.
    pub(crate) fn other_family(family: Family) -> Self {
        let what = match family {
            Family::JsonRpc => "JSON-RPC",
            Family::CloudEvent => "a CloudEvent",
            Family::Legacy => "a legacy A2A message",
            Family::A2eMessage => "an A2E message",
            Family::A2eWorkflow => "an A2E workflow",
            Family::E2a => "an E2A message",
        };
        let message = format!("this is {what}; expected a JSON-RPC 2.0 request");
        Self {
            word: "wrong_family",
            ..Self::new(Reason::InvalidRequest, message)
        }
    }

    /// A call without an answer.
    pub(crate) fn call(error: &CallError) -> Self {
        use Reason::{AgentUnavailable, BadAgentReply, Exhausted, InvalidParams};
        match error {
            CallError::AgentNotFound(agent) => Self::no_agent(agent),
            CallError::Timeout(silence) => {
                Self::no_answer(silence, "raise X-A2A-Timeout to wait longer")
            }
            CallError::NotTaken(place) => Self::not_taken(place),
            // The cause is about the inside; the log has it.
            CallError::Unavailable(_) => Self::new(
                AgentUnavailable,
                "the agent cannot be reached: nothing listens on its subject, or the bus is unavailable; try again later",
            ),
            CallError::Exhausted(bound) => {
                Self::new(Exhausted, format!("{bound}; try again in a moment"))
                    .detail("retryAfterSeconds", SOON)
            }
            CallError::Draining => Self::new(
                AgentUnavailable,
                "the bridge is shutting down; send the request again to another replica",
            ),
            CallError::Refused(why) => {
                Self::new(InvalidParams, format!("the request cannot be sent: {why}"))
            }
            CallError::SlowCaller => Self::new(
                Exhausted,
                "the answer arrived faster than it was read and was given up; read it faster",
            ),
            CallError::BadAnswer(why) => Self::new(
                BadAgentReply,
                format!("the agent's answer cannot be used: {why}"),
            ),
            undeliverable @ CallError::Undeliverable(_) => {
                Self::new(Reason::ReplyUndeliverable, undeliverable.to_string())
            }
        }
    }

    fn no_agent(agent: &str) -> Self {
        if agent.is_empty() {
            let message = "the request names no agent: name it in params._agentId or in the path, /rpc/{agent}";
            return Self::new(Reason::AgentNotFound, message);
        }
        let message = format!("there is no agent {agent:?}: check its name, or add a route for it");
        Self::new(Reason::AgentNotFound, message).detail("agentName", agent)
    }

    /// Parameters that cannot be used.
    pub(crate) fn bad_params(why: &str) -> Self {
        Self::new(Reason::InvalidParams, why)
    }

    /// A method that nobody defines; `known` are those that are served.
    pub(crate) fn unknown_method(name: &str, known: Vec<&str>) -> Self {
        let name: String = name.chars().take(128).collect();
        let message = format!("there is no method {name:?}");
        Self::new(Reason::MethodNotFound, message).detail("supported_methods", known)
    }

    /// A version that is not served; `served` are those that are.
    pub(crate) fn version(why: &str, served: &[&str]) -> Self {
        let served = served.to_vec();
        Self::new(Reason::VersionNotSupported, why).detail("supportedVersions", served)
    }

    /// A call of an A2A client without an answer: it has a bound of its own.
    pub(crate) fn of_client(error: &CallError) -> Self {
        let failure = Self::call(error);
        match error {
            CallError::Exhausted(Bound::Caller) => Self {
                reason: Reason::RateLimited,
                word: Reason::RateLimited.row().word,
                ..failure
            },
            _ => failure,
        }
    }

    /// The HTTP status of a refusal after which another try may go better.
    pub(crate) fn status(&self) -> Option<StatusCode> {
        match self.reason {
            Reason::Exhausted | Reason::RateLimited => Some(StatusCode::TOO_MANY_REQUESTS),
            _ => None,
        }
    }

    /// Why it failed, in no dialect.
    pub(crate) fn reason(&self) -> Reason {
        self.reason
    }

    /// Whether the same request may succeed later.
    pub(crate) fn is_passing(&self) -> bool {
        self.reason == Reason::AgentUnavailable
    }

    /// An agent that is not one of those that are `known`.
    pub(crate) fn unknown_agent(agent: &str, known: Vec<&str>) -> Self {
        Self::no_agent(agent).detail("availableAgents", known)
    }

    /// Which place takes nothing is for whoever has to repair it; a name that the request chose may be a mistake of it.
    fn not_taken(place: &DestinationRefused) -> Self {
        let reason = if place.is_misnamed() {
            Reason::AgentNotFound
        } else {
            Reason::AgentUnavailable
        };
        Self::new(reason, format!("{place}: {}", place.cure()))
    }

    /// The same for a requester on the bus, who has other ways to say what he wants than a caller over HTTP.
    pub(crate) fn on_bus(error: &CallError) -> Self {
        match error {
            CallError::Timeout(silence) => Self::no_answer(
                silence,
                "give the request a later expirytime to wait longer",
            ),
            CallError::AgentNotFound(agent) if agent.is_empty() => Self::new(
                Reason::AgentNotFound,
                "the request names no agent: name it in params._agentId or in the attribute targetagent",
            ),
            other => Self::call(other),
        }
    }

    fn no_answer(silence: &NoAnswer, advice: &str) -> Self {
        let millis = silence.after.as_micros().div_ceil(1_000);
        let millis = u64::try_from(millis).unwrap_or(u64::MAX);
        let message = if silence.rejected.is_some() {
            silence.to_string()
        } else {
            format!("{silence}; {advice}")
        };
        Self::new(Reason::Timeout, message).detail("timeoutMs", millis)
    }

    /// The cause and the cure.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The error as its recipient reads it: a JSON-RPC response, or a message of the recipient's own family.
    pub(crate) fn render(&self, recipient: &Recipient) -> Bytes {
        let now = crate::clock::rfc3339(crate::clock::now());
        match recipient {
            Recipient::JsonRpc { id, dialect } => self.json_rpc(id, *dialect, &now),
            Recipient::Message { family, id } => self.message_of(*family, id.as_ref(), &now),
        }
    }

    fn message_of(&self, family: Family, request: Option<&Text>, now: &str) -> Bytes {
        let request = request.map(Text::as_str);
        let (word, message) = (self.word(), self.message());
        let id = crate::clock::new_event_id();
        let body = match family {
            Family::E2a => json!({
                "protocol_version": "1.0", "response_id": &*id, "request_id": request, "sequence": 0,
                "is_final": true, "status": "failed", "response_kind": "e2a.error", "timestamp": now,
                "body": {"code": format!("E2A.{}", word.to_uppercase()), "message": message},
            }),
            Family::A2eMessage => json!({
                "type": "error", "id": &*id, "version": "1.0", "ts": crate::clock::seconds(), "req_id": request,
                "code": if word == "timeout" { "timeout" } else { "runtime_error" }, "message": message,
                "detail": {"reason": word}, "retryable": matches!(word, "timeout" | "exhausted" | "agent_unavailable"),
            }),
            Family::Legacy => json!({
                "protocol": "A2A", "messageType": "FAILURE", "metadata": {"correlationId": request},
                "payload": {"reason": word, "message": message},
            }),
            Family::JsonRpc | Family::CloudEvent | Family::A2eWorkflow => {
                return self.json_rpc("null", Dialect::JsonRpc, now);
            }
        };
        body.to_string().into()
    }

    /// The id goes in as it came: a number keeps its digits, which a JSON value would not promise.
    fn json_rpc(&self, id: &str, dialect: Dialect, now: &str) -> Bytes {
        let row = self.reason.row();
        let (code, data) = match dialect {
            Dialect::JafDoc => (row.jaf_doc, self.data_object(now)),
            Dialect::A2a03 => (row.a2a, self.data_object(now)),
            Dialect::A2a10 => (row.a2a, self.data_array(row.error_info, now)),
            Dialect::Mcp | Dialect::Acp | Dialect::JsonRpc => (row.other, self.data_object(now)),
        };
        let message = Value::from(self.message.as_str());
        let error = format!(r#"{{"code":{code},"message":{message},"data":{data}}}"#);
        jsonrpc::error(id, &error)
    }

    fn data_object(&self, now: &str) -> Value {
        let mut data = Map::from_iter([
            ("reason".to_owned(), Value::from(self.word)),
            ("timestamp".to_owned(), Value::from(now)),
        ]);
        let details = self.details.iter();
        data.extend(details.map(|(name, value)| ((*name).to_owned(), value.clone())));
        Value::Object(data)
    }

    /// Typed objects instead of one plain one. Source: A2A 1.0 section 9.5, docs/protocols/a2a.md §5.
    fn data_array(&self, error_info: &str, now: &str) -> Value {
        let mut metadata = Map::from_iter([
            ("cause".to_owned(), Value::from(self.word)),
            ("timestamp".to_owned(), Value::from(now)),
        ]);
        // Its values are strings. Source: google.rpc.ErrorInfo.
        let details = self.details.iter();
        metadata.extend(details.map(|(name, value)| ((*name).to_owned(), as_text(value).into())));
        let info = json!({
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": error_info,
            "domain": "a2a-protocol.org",
            "metadata": metadata,
        });
        if self.reason != Reason::InvalidParams {
            return Value::Array(vec![info]);
        }
        let pointer = self.details.iter().find(|(name, _)| *name == POINTER);
        let field = pointer.map_or("params".to_owned(), |(_, pointer)| as_text(pointer));
        let request = json!({
            "@type": "type.googleapis.com/google.rpc.BadRequest",
            "fieldViolations": [{ "field": field, "description": self.message }],
        });
        Value::Array(vec![info, request])
    }
}

fn as_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::calls::error::Bound;
    use crate::route::NamedBy;
    use a2abus_plugin::{Hint, Limits, decode};
    use a2abus_transports::TransportErrorKind;

    const NOW: &str = "2026-02-02T02:40:00.123Z";

    fn silence() -> CallError {
        CallError::Timeout(Box::new(NoAnswer {
            after: Duration::from_secs(30),
            agent: "weather".into(),
            published: Some("Kafka topic agents.weather".into()),
            cause: None,
            rejected: None,
        }))
    }

    fn render(failure: &Failure, id: &str, dialect: Dialect) -> String {
        let body = failure.json_rpc(id, dialect, NOW);
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[test]
    fn the_id_is_echoed_byte_for_byte() {
        let failure = Failure::call(&CallError::Exhausted(Bound::Calls));
        for id in [
            "1",
            "1.0",
            "9007199254740993",
            "\"\"",
            "\"\\u0041\"",
            "null",
            "-0",
            "1e5",
        ] {
            let body = render(&failure, id, Dialect::JsonRpc);
            assert!(
                body.starts_with(&format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"#)),
                "{body}"
            );
            serde_json::from_str::<Value>(&body).unwrap();
        }
    }

    #[test]
    fn every_reason_has_the_code_of_its_dialect() {
        use Dialect::{A2a03, A2a10, Acp, JafDoc, JsonRpc, Mcp};
        let agent = || Text::from("weather");
        let rows = [
            (
                CallError::AgentNotFound(agent()),
                "agent_not_found",
                [-32000, -32602, -32602],
            ),
            (
                CallError::Unavailable(agent()),
                "agent_unavailable",
                [-32002, -32603, -32603],
            ),
            (
                CallError::Draining,
                "agent_unavailable",
                [-32002, -32603, -32603],
            ),
            (silence(), "timeout", [-32006, -32603, -32603]),
            (
                CallError::Exhausted(Bound::Agent(agent())),
                "exhausted",
                [-32007, -32603, -32603],
            ),
            (CallError::SlowCaller, "exhausted", [-32007, -32603, -32603]),
            (
                CallError::Refused(agent()),
                "invalid_params",
                [-32602, -32602, -32602],
            ),
            (
                CallError::BadAnswer(agent()),
                "bad_agent_reply",
                [-32603, -32006, -32603],
            ),
            (
                CallError::Undeliverable(agent()),
                "reply_undeliverable",
                [-32603, -32603, -32603],
            ),
        ];
        for (error, word, [jaf, a2a, other]) in rows {
            let failure = Failure::call(&error);
            for (dialect, code) in [
                (JafDoc, jaf),
                (A2a03, a2a),
                (Mcp, other),
                (Acp, other),
                (JsonRpc, other),
            ] {
                let body: Value = serde_json::from_str(&render(&failure, "1", dialect)).unwrap();
                assert_eq!(body["error"]["code"], code, "{error:?} {dialect:?}");
                assert_eq!(
                    body["error"]["data"]["reason"], word,
                    "{error:?} {dialect:?}"
                );
                assert_eq!(body["error"]["data"]["timestamp"], NOW);
            }
            let body: Value = serde_json::from_str(&render(&failure, "1", A2a10)).unwrap();
            assert_eq!(body["error"]["code"], a2a, "{error:?}");
            assert_eq!(body["error"]["data"][0]["domain"], "a2a-protocol.org");
        }
    }

    #[test]
    fn the_error_table_of_the_vectors() {
        let vectors = include_str!("../../../tests/vectors/a2a.json");
        let vectors: Value = serde_json::from_str(vectors).unwrap();
        let table = vectors["error_table"].as_array().unwrap();
        assert_eq!(table.len(), 4);
        for row in table {
            let failure = match row["reason"].as_str().unwrap() {
                "task_not_cancelable" => Failure::new(Reason::TaskNotCancelable, "it has ended"),
                "rate_limited" => Failure::of_client(&CallError::Exhausted(Bound::Caller)),
                "agent_not_found" => Failure::call(&CallError::AgentNotFound("w".into())),
                "timeout" => Failure::call(&silence()),
                other => panic!("{other} is not built"),
            };
            for (name, dialect) in [
                ("jaf-doc", Dialect::JafDoc),
                ("a2a-0.3", Dialect::A2a03),
                ("a2a-1.0", Dialect::A2a10),
            ] {
                let body: Value = serde_json::from_str(&render(&failure, "1", dialect)).unwrap();
                assert_eq!(body["error"]["code"], row[name], "{row} {name}");
            }
            if let Some(status) = row["http_status"].as_u64() {
                let found = failure.status().map(|status| u64::from(status.as_u16()));
                assert_eq!(found, Some(status), "{row}");
            }
        }
    }

    #[test]
    fn a2a_1_0_gets_an_array_of_typed_objects() {
        let failure = Failure::call(&silence());
        let body: Value = serde_json::from_str(&render(&failure, "7", Dialect::A2a10)).unwrap();
        assert_eq!(
            body["error"]["data"],
            json!([{
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "DEADLINE_EXCEEDED",
                "domain": "a2a-protocol.org",
                "metadata": { "cause": "timeout", "timestamp": NOW, "timeoutMs": "30000" },
            }])
        );
        let failure = Failure::call(&CallError::Refused("the key is too long".into()));
        let body: Value = serde_json::from_str(&render(&failure, "7", Dialect::A2a10)).unwrap();
        let violation = &body["error"]["data"][1]["fieldViolations"][0];
        assert_eq!(violation["field"], "params");
        assert_eq!(
            violation["description"],
            "the request cannot be sent: the key is too long"
        );
    }

    #[test]
    fn a_refused_unit_says_what_and_where() {
        let check = |payload: &'static str, code: i32, word: &str, pointer: Value| {
            let units = decode(&Bytes::from(payload), &Hint::default(), &Limits::default());
            let refused = units[0].as_ref().unwrap_err();
            let body: Value =
                serde_json::from_str(&render(&Failure::refused(refused), "1", Dialect::JsonRpc))
                    .unwrap();
            assert_eq!(body["error"]["code"], code, "{payload} {body}");
            assert_eq!(body["error"]["data"]["reason"], word, "{payload} {body}");
            assert_eq!(
                body["error"]["data"]["pointer"], pointer,
                "{payload} {body}"
            );
        };
        check("{", -32700, "not_json", Value::Null);
        check("", -32700, "empty", Value::Null);
        check("1", -32600, "not_an_object", Value::Null);
        check("[]", -32600, "empty_batch", Value::Null);
        check(
            r#"{"jsonrpc":"2.0","id":1,"method":"m","params":3}"#,
            -32602,
            "bad_params",
            "/params".into(),
        );
        check(
            r#"{"jsonrpc":"2.0","id":{},"method":"m"}"#,
            -32600,
            "bad_id",
            "/id".into(),
        );
    }

    #[test]
    fn what_happened_inside_is_not_told() {
        let failure = Failure::call(&CallError::Unavailable(
            "kafka-3.internal:9092 refused".into(),
        ));
        assert!(!render(&failure, "1", Dialect::JsonRpc).contains("kafka-3"));
    }

    #[test]
    fn a_silent_agent_and_a_missing_topic_are_named() {
        let message = |error| Failure::call(&error).message;
        assert_eq!(
            message(silence()),
            "no answer from agent \"weather\" within 30000 ms (published to Kafka topic agents.weather); \
             raise X-A2A-Timeout to wait longer"
        );
        let unpublished = CallError::Timeout(Box::new(NoAnswer {
            after: Duration::from_micros(1_500),
            agent: "weather".into(),
            published: None,
            cause: None,
            rejected: None,
        }));
        assert_eq!(
            message(unpublished),
            "not sent within 2 ms: the bus did not confirm the request; raise X-A2A-Timeout to wait longer"
        );
        let missing = |named_by| {
            Failure::call(&CallError::NotTaken(Box::new(DestinationRefused {
                what: "Kafka topic agents.k-typo does not exist".into(),
                kind: TransportErrorKind::UnknownTopic,
                named_by,
            })))
        };
        let (chosen, configured) = (missing(NamedBy::Event), missing(NamedBy::Config));
        assert_eq!(chosen.word, "agent_not_found");
        assert_eq!(
            chosen.message,
            "Kafka topic agents.k-typo does not exist: check the name of the agent, or create it"
        );
        assert_eq!(configured.word, "agent_unavailable");
    }

    #[test]
    fn names_in_messages_are_escaped() {
        let failure = Failure::call(&CallError::AgentNotFound("a\"b\n".into()));
        let body: Value = serde_json::from_str(&render(&failure, "1", Dialect::JafDoc)).unwrap();
        assert_eq!(body["error"]["data"]["agentName"], "a\"b\n");
    }
}
