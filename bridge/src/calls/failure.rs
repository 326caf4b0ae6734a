//! Errors for callers: a JSON-RPC error with the caller's own id, in its dialect, or an error message of the caller's
//! own family.
//!
//! One table defines the code of each reason in each dialect. The message tells a person the cause and the fix.
//! Internals (addresses, errors of bus clients) stay in the logs.
//!
//! Source: docs/protocols/a2a.md §5, JSON-RPC 2.0 section 5.1.

mod http;

use ::http::StatusCode;
use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::protocol::jsonrpc::{self, code, code_of};
use a2abus_plugin::{DecodeError, DecodeErrorKind, Family, Refused, Text, Unit, extension};
use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::calls::error::{Bound, CallError, NoAnswer, RequestState};
use crate::pipeline::adapt::CONVERT_FAILED;

/// Why a request failed, independent of the dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The body is not JSON.
    Parse,
    /// The body is not a JSON-RPC request.
    InvalidRequest,
    /// The parameters, or the data sent with them, are not valid.
    InvalidParams,
    /// The agent is unknown.
    AgentNotFound,
    /// The agent or the bus is unavailable.
    AgentUnavailable,
    /// No answer came in time.
    Timeout,
    /// The bridge has no such task.
    TaskNotFound,
    /// The task has ended, or its agent cannot cancel it.
    TaskNotCancelable,
    /// The client has reached its limit.
    RateLimited,
    /// The bridge has reached a limit, or the request exceeds one.
    Exhausted,
    /// The media type of the body is not supported, or the caller does not accept that of the answer.
    ContentType,
    /// No method has this name.
    MethodNotFound,
    /// The version of the protocol is not supported.
    VersionNotSupported,
    /// The bridge does not support this operation.
    Unsupported,
    /// A request in a batch asks for a stream.
    StreamInBatch,
    /// Push notifications are not supported.
    PushUnsupported,
    /// The idempotency key was used for another request.
    KeyReused,
    /// The request with this idempotency key is still being answered.
    InProgress,
    /// The request was sent, and its answer is not known.
    AnswerLost,
    /// The agent's answer cannot be used.
    BadAgentReply,
    /// The agent answered with an error of its own, whose code has no other reason.
    AgentError,
    /// The agent's answer cannot be published to the requester.
    ReplyUndeliverable,
    /// The client has cancelled the request.
    Cancelled,
    /// A header of an MCP request contradicts its body.
    McpHeader,
    /// An MCP agent needs a capability that the client has not declared.
    McpCapability,
    /// The revision of MCP is not supported.
    McpVersion,
}

/// A failure, as the caller gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    reason: Reason,
    /// The reason code, which may be more specific than that of `reason`.
    reason_code: &'static str,
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
    reason_code: &'static str,
    /// `reason` of the `ErrorInfo` of A2A 1.0.
    error_info: &'static str,
}

/// The advice to a requester on the bus, and to everyone whose request has expired.
const LATER: &str = "give the request a later expirytime to wait longer";
/// The name of the detail with the JSON pointer to the error.
pub(crate) const POINTER: &str = "pointer";
/// How long a caller should wait after it has reached a limit, in seconds. It is unknown when a call will end.
pub(crate) const SOON: u32 = 1;

// === impl Reason ===

impl Reason {
    fn of(error: &CallError) -> Self {
        match error {
            CallError::AgentNotFound(_) => Self::AgentNotFound,
            CallError::Disabled => Self::Unsupported,
            CallError::Timeout(_) => Self::Timeout,
            CallError::DestinationRefused(refused) if refused.is_misnamed() => Self::AgentNotFound,
            CallError::Unavailable(_)
            | CallError::NoSubscriber(_)
            | CallError::DestinationRefused(_)
            | CallError::Moved
            | CallError::Draining => Self::AgentUnavailable,
            CallError::AnswerLost(_)
            | CallError::AnswerDropped
            | CallError::Drained
            | CallError::HandedOff => Self::AnswerLost,
            CallError::Exhausted(_) | CallError::SlowCaller => Self::Exhausted,
            CallError::Refused(_) | CallError::NotConverted(_) | CallError::TooLarge(_) => {
                Self::InvalidParams
            }
            CallError::BadAnswer(_) => Self::BadAgentReply,
            CallError::Undeliverable(_) => Self::ReplyUndeliverable,
        }
    }

    /// The table of docs/protocols/a2a.md §5.
    ///
    /// In addition: the rows of JSON-RPC itself; `content_type` for the other dialects, because the dialect of an
    /// unread body is unknown; and a stream in a batch, which is -32004 in every dialect.
    #[rustfmt::skip]
    fn row(self) -> Row {
        use code::{INTERNAL_ERROR as INTERNAL, METHOD_NOT_FOUND as METHOD, INVALID_PARAMS as PARAMS, INVALID_REQUEST as REQUEST, PARSE_ERROR as PARSE};
        //                                jaf-doc   A2A       others    data.reason          ErrorInfo.reason
        let (jaf_doc, a2a, other, reason_code, error_info) = match self {
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
            Self::AgentError       => (INTERNAL, INTERNAL, INTERNAL, "agent_error",       "INTERNAL_ERROR"),
            Self::ReplyUndeliverable => (INTERNAL, INTERNAL, INTERNAL, "reply_undeliverable", "INTERNAL_ERROR"),
            Self::Cancelled        => (INTERNAL, INTERNAL, INTERNAL, "cancelled",         "CANCELLED"),
            Self::McpHeader        => (REQUEST,  REQUEST,  -32_020,  "header_mismatch",   "INVALID_REQUEST"),
            Self::McpCapability    => (REQUEST,  REQUEST,  -32_021,  "capability_not_declared", "INVALID_REQUEST"),
            Self::McpVersion       => (REQUEST,  REQUEST,  -32_022,  "version_not_supported", "INVALID_REQUEST"),
        };
        Row { jaf_doc, a2a, other, reason_code, error_info }
    }
}

// === impl CallError ===

impl CallError {
    /// The reason code of this error: in the access log, and as `data.reason` of a JSON-RPC error.
    #[must_use]
    pub fn reason_code(&self) -> &'static str {
        match self {
            Self::TooLarge(_) => DecodeErrorKind::TooLarge.as_str(),
            Self::NotConverted(_) => CONVERT_FAILED,
            other => Reason::of(other).row().reason_code,
        }
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
                family: unit.detection.family,
                id: unit.extension_text(extension::COLLABORATION_ID).cloned(),
            },
        }
    }

    /// The sender of a unit that was refused.
    pub(crate) fn of_refused(refused: &Refused, dialect: Dialect) -> Self {
        match (&refused.id, &refused.sender) {
            (Some(id), _) => Self::new(id.token().clone(), dialect),
            (None, Some(sender)) => Self::Message {
                family: sender.family,
                id: sender.id.clone(),
            },
            (None, None) => Self::unknown(dialect),
        }
    }

    /// Its dialect of JSON-RPC; the plain one for the sender of another family.
    pub(crate) fn dialect(&self) -> Dialect {
        match self {
            Self::JsonRpc { dialect, .. } => *dialect,
            Self::Message { .. } => Dialect::JsonRpc,
        }
    }

    /// The family of its message.
    pub(crate) fn family(&self) -> Family {
        match self {
            Self::JsonRpc { .. } => Family::JsonRpc,
            Self::Message { family, .. } => *family,
        }
    }

    /// The sender of a message without an id.
    pub(crate) fn unknown(dialect: Dialect) -> Self {
        Self::new(Text::from_static("null"), dialect)
    }
}

// === impl Failure ===

impl Failure {
    /// A failure with a message that names the cause and, if there is one, the fix.
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            reason_code: reason.row().reason_code,
            message: message.into(),
            details: Vec::new(),
        }
    }

    /// The reason code.
    pub(crate) fn reason_code(&self) -> &'static str {
        self.reason_code
    }

    /// Adds a member to `data`.
    pub(crate) fn detail(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.details.push((name, value.into()));
        self
    }

    /// The failure of a unit that cannot be decoded.
    pub(crate) fn refused(error: &DecodeError) -> Self {
        let reason = match code_of(error.kind()) {
            code::PARSE_ERROR => Reason::Parse,
            code::INVALID_PARAMS => Reason::InvalidParams,
            _ => Reason::InvalidRequest,
        };
        let message = error.to_string();
        let message = match error.pointer().strip_prefix('/') {
            Some(member) if message.starts_with("must ") => {
                format!("{} {message}", member.replace('/', "."))
            }
            _ => message,
        };
        let failure = Self {
            reason_code: error.kind().as_str(),
            ..Self::new(reason, message)
        };
        let failure = failure.detail("offset", error.offset());
        match error.pointer() {
            "" => failure,
            pointer => failure.detail(POINTER, pointer),
        }
    }

    /// The failure of a request that exceeds a limit on its size: it has the code of `Exhausted`, but no retry helps.
    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self {
            reason_code: DecodeErrorKind::TooLarge.as_str(),
            ..Self::new(Reason::Exhausted, message)
        }
    }

    /// The failure of a body that is not JSON.
    pub(crate) fn not_json(error: &serde_json::Error) -> Self {
        Self {
            reason_code: DecodeErrorKind::NotJson.as_str(),
            ..Self::new(Reason::Parse, format!("the body is not JSON: {error}"))
        }
    }

    /// The failure of a unit whose family is not supported here.
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
            reason_code: "wrong_family",
            ..Self::new(Reason::InvalidRequest, message)
        }
    }

    /// The failure of a call without an answer.
    pub(crate) fn call(error: &CallError) -> Self {
        let reason = Reason::of(error);
        match error {
            CallError::AgentNotFound(agent) => Self::no_agent(agent),
            CallError::Timeout(timeout) => {
                Self::no_answer(timeout, "raise X-A2A-Timeout to wait longer")
            }
            CallError::DestinationRefused(refused) => {
                Self::new(reason, format!("{refused}: {}", refused.fix()))
            }
            CallError::Disabled
            | CallError::Refused(_)
            | CallError::BadAnswer(_)
            | CallError::Undeliverable(_) => Self::new(reason, error.to_string()),
            CallError::NotConverted(_) | CallError::TooLarge(_) => Self {
                reason_code: error.reason_code(),
                ..Self::new(reason, error.to_string())
            },
            // The cause may reveal internals. The log has it.
            CallError::Unavailable(_) => Self::new(
                reason,
                "the agent cannot be reached: its bus is unavailable (/readyz of the bridge names the transport); try again later",
            ),
            CallError::NoSubscriber(_) => Self::new(
                reason,
                format!("{error}; start the agent, or correct its subject or the route"),
            ),
            CallError::AnswerLost(_) => Self::new(
                reason,
                "the bus became unavailable after the request was sent and before the answer arrived; the agent may have executed the request",
            ),
            CallError::Exhausted(bound) => {
                Self::new(reason, format!("{bound}; try again in a moment"))
                    .detail("retryAfterSeconds", SOON)
            }
            CallError::Drained => Self::new(
                reason,
                "the bridge shut down before the agent's answer arrived; the agent may have executed the request",
            ),
            CallError::HandedOff => Self::new(
                reason,
                "the bridge shut down before the agent's answer arrived; if the task has begun, or if the request had an Idempotency-Key, another replica receives the answer if one runs: ask there for the task, or send the request again with its key; without a key the agent would do the work again",
            ),
            CallError::Moved => Self::new(reason, format!("{error}; send it again")),
            CallError::Draining => Self::new(
                reason,
                "the bridge is shutting down; send the request again to another replica",
            ),
            CallError::SlowCaller => Self::new(
                reason,
                "the answer was dropped because its parts were not read as fast as they arrived",
            ),
            CallError::AnswerDropped => Self::new(
                reason,
                "the agent has answered, but there was no memory for its answer (calls.budget_bytes); sending the request again makes the agent execute it again",
            ),
        }
    }

    /// The failure of a call that a caller at `/rpc` has made with a message of this family.
    pub(crate) fn of_message(error: &CallError, family: Family) -> Self {
        match error {
            CallError::AgentNotFound(agent) if agent.is_empty() && family != Family::JsonRpc => {
                let place = place_of_agent(family);
                Self::unnamed(&format!("{place} or in the path, /rpc/{{agent}}"))
            }
            other => Self::call(other),
        }
    }

    fn no_agent(agent: &str) -> Self {
        if agent.is_empty() {
            return Self::unnamed(
                "params._agentId or in the path, /rpc/{agent} or /a2a/agents/{agent}",
            );
        }
        let message = format!(
            "there is no agent {agent:?}: check its name, list it in `agents`, or add a route that names it (with `registry.unknown_agents: known`, a pattern does not count)"
        );
        Self::new(Reason::AgentNotFound, message).detail("agentName", agent)
    }

    /// The failure of a request that names no agent; `places` is where it may name one.
    fn unnamed(places: &str) -> Self {
        let message = format!("the request names no agent: name it in {places}");
        Self::new(Reason::AgentNotFound, message)
    }

    /// The failure of a request whose text in this place is not a valid name of an agent.
    pub(crate) fn not_a_name(place: &str) -> Self {
        let message = format!(
            "{place} does not name an agent: a name has 1 to 256 of A-Z a-z 0-9 . _ - / : @ +"
        );
        Self::new(Reason::AgentNotFound, message)
    }

    /// The failure for invalid parameters.
    pub(crate) fn bad_params(why: &str) -> Self {
        Self::new(Reason::InvalidParams, why)
    }

    /// The failure for an unknown method; `known` are the supported ones, if they can be listed.
    pub(crate) fn unknown_method(name: &str, known: Vec<&str>) -> Self {
        let name: String = name.chars().take(128).collect();
        let message = format!("there is no method {name:?}");
        let failure = Self::new(Reason::MethodNotFound, message);
        match known.is_empty() {
            // An empty list would say that nothing is supported.
            true => failure,
            false => failure.detail("supported_methods", known),
        }
    }

    /// The failure for an unsupported version; `served` are the supported ones.
    pub(crate) fn version(why: &str, served: &[&str]) -> Self {
        let served = served.to_vec();
        Self::new(Reason::VersionNotSupported, why).detail("supportedVersions", served)
    }

    /// The failure of an A2A client's call without an answer. The limit per client has its own reason. A request whose
    /// answer was not read fast enough has been executed, so it gets no status that asks the client to repeat it.
    pub(crate) fn of_client(error: &CallError) -> Self {
        let failure = Self::call(error);
        match error {
            CallError::Exhausted(Bound::Caller) => Self {
                reason: Reason::RateLimited,
                reason_code: Reason::RateLimited.row().reason_code,
                ..failure
            },
            CallError::SlowCaller => Self::new(Reason::AnswerLost, failure.message),
            _ => failure,
        }
    }

    /// The HTTP status of a refusal after which a retry may succeed.
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
    pub(crate) fn is_transient(&self) -> bool {
        self.reason == Reason::AgentUnavailable
    }

    /// The failure at the A2A paths for an agent that is not one of the `known` agents. A route to this agent does not
    /// help, because it has no card.
    pub(crate) fn unknown_agent(agent: &str, known: Vec<&str>) -> Self {
        let failure = match agent {
            "" => Self::no_agent(agent),
            agent => {
                let message = format!(
                    "there is no agent {agent:?} here: check its name, list it in the section `agents`, or let it announce itself; POST /rpc/{{agent}} also follows the routes"
                );
                Self::new(Reason::AgentNotFound, message).detail("agentName", agent)
            }
        };
        failure.detail("availableAgents", known)
    }

    /// The failure of a call of a requester on the bus, whose options differ from those of an HTTP caller.
    pub(crate) fn on_bus(error: &CallError) -> Self {
        match error {
            CallError::Timeout(timeout) => Self::no_answer(timeout, LATER),
            other => Self::call(other),
        }
    }

    /// The same, for a request that was not published. `sender` has sent the message, or the data if the message is a
    /// CloudEvent.
    pub(crate) fn unpublished_on_bus(error: &CallError, sender: &Recipient) -> Self {
        match error {
            CallError::AgentNotFound(agent) if agent.is_empty() => {
                let place = match sender.family() {
                    Family::CloudEvent => String::new(),
                    family => format!(
                        " or, if the message is not a CloudEvent, in {}",
                        place_of_agent(family)
                    ),
                };
                Self::unnamed(&format!("the attribute targetagent{place}"))
            }
            other => Self::on_bus(other),
        }
    }

    fn no_answer(timeout: &NoAnswer, advice: &str) -> Self {
        let millis = timeout.after.as_micros().div_ceil(1_000);
        let millis = u64::try_from(millis).unwrap_or(u64::MAX);
        let advice = match timeout.request {
            // Only a later expirytime makes it valid, over HTTP too.
            RequestState::Expired => LATER,
            _ => advice,
        };
        // To wait longer does not help against an agent that has stopped, and no caller can lengthen the longest time.
        let is_fixed = matches!(
            timeout.request,
            RequestState::Begun { .. }
                | RequestState::Asked
                | RequestState::Unended {
                    is_longest: true,
                    ..
                }
        );
        let message = if timeout.rejected.is_some() || is_fixed {
            timeout.to_string()
        } else {
            format!("{timeout}; {advice}")
        };
        Self::new(Reason::Timeout, message).detail("timeoutMs", millis)
    }

    /// The same failure, with more of the fix in its message.
    pub(crate) fn and(mut self, fix: &str) -> Self {
        self.message = format!("{}; {fix}", self.message);
        self
    }

    /// The cause and the fix.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The error for its recipient: a JSON-RPC response, or a message of the recipient's own family.
    pub(crate) fn render(&self, recipient: &Recipient) -> Bytes {
        let now = crate::clock::rfc3339(crate::clock::now());
        match recipient {
            Recipient::JsonRpc { id, dialect } => self.json_rpc(id, *dialect, &now),
            Recipient::Message { family, id } => self.message_of(*family, id.as_ref(), &now),
        }
    }

    fn message_of(&self, family: Family, request: Option<&Text>, now: &str) -> Bytes {
        let request = request.map(Text::as_str);
        let (reason_code, message) = (self.reason_code(), self.message());
        let id = crate::clock::new_event_id();
        let body = match family {
            Family::E2a => json!({
                "protocol_version": "1.0", "response_id": &*id, "request_id": request, "sequence": 0,
                "is_final": true, "status": "failed", "response_kind": "e2a.error", "timestamp": now,
                "body": {"code": format!("E2A.{}", reason_code.to_uppercase()), "message": message},
            }),
            Family::A2eMessage => json!({
                "type": "error", "id": &*id, "version": "1.0", "a2e": "1.0", "ts": crate::clock::seconds(),
                "req_id": request, "code": self.a2e_code(), "message": message,
                "detail": {"reason": reason_code}, "retryable": matches!(reason_code, "timeout" | "exhausted" | "agent_unavailable"),
            }),
            Family::Legacy => json!({
                "protocol": "A2A", "messageType": "FAILURE", "metadata": {"correlationId": request},
                "payload": {"reason": reason_code, "message": message},
            }),
            Family::JsonRpc | Family::CloudEvent | Family::A2eWorkflow => {
                return self.json_rpc("null", Dialect::JsonRpc, now);
            }
        };
        body.to_string().into()
    }

    /// The code of an A2E error. Source: docs/protocols/a2e-messages.md §3.
    fn a2e_code(&self) -> &'static str {
        match (self.reason, self.reason_code) {
            (_, "unsupported_version") => "version_mismatch",
            (Reason::Parse, _) => "parse_error",
            (Reason::InvalidRequest | Reason::InvalidParams, _) => "invalid_message",
            (Reason::Timeout, _) => "timeout",
            _ => "runtime_error",
        }
    }

    /// Inserts the id unchanged: as a JSON value, a number might lose digits.
    fn json_rpc(&self, id: &str, dialect: Dialect, now: &str) -> Bytes {
        let row = self.reason.row();
        let (code, data) = match dialect {
            Dialect::JafDoc => (row.jaf_doc, self.data_object(now)),
            Dialect::A2a03 => (row.a2a, self.data_object(now)),
            Dialect::A2a10 => (row.a2a, self.data_array(row.error_info, now)),
            // ACP has a code of its own for this.
            Dialect::Acp if self.reason == Reason::Cancelled => (-32_800, self.data_object(now)),
            Dialect::Mcp | Dialect::Acp | Dialect::JsonRpc => (row.other, self.data_object(now)),
        };
        let message = Value::from(self.message.as_str());
        let error = format!(r#"{{"code":{code},"message":{message},"data":{data}}}"#);
        jsonrpc::error(id, &error)
    }

    fn data_object(&self, now: &str) -> Value {
        let mut data = Map::from_iter([
            ("reason".to_owned(), Value::from(self.reason_code)),
            ("timestamp".to_owned(), Value::from(now)),
        ]);
        let details = self.details.iter();
        data.extend(details.map(|(name, value)| ((*name).to_owned(), value.clone())));
        Value::Object(data)
    }

    /// An array of typed objects instead of one plain object. Source: A2A 1.0 section 9.5, docs/protocols/a2a.md §5.
    fn data_array(&self, error_info: &str, now: &str) -> Value {
        let mut metadata = Map::from_iter([
            ("cause".to_owned(), Value::from(self.reason_code)),
            ("timestamp".to_owned(), Value::from(now)),
        ]);
        // The values are strings. Source: google.rpc.ErrorInfo.
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

/// Where a message of this family names its agent.
fn place_of_agent(family: Family) -> &'static str {
    match family {
        Family::JsonRpc => "params._agentId",
        Family::CloudEvent => "the attribute targetagent",
        Family::Legacy => "targetAgent.agentId",
        Family::A2eMessage => "_agentId",
        Family::A2eWorkflow => "_agentId of its line beginExecution",
        Family::E2a => "params._agentId, agent_id or agent_ref.id",
    }
}

fn as_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
