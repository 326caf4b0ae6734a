//! Reads requests to an attached agent.

use std::time::Duration;

use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::protocol::jsonrpc::{Id, JsonRpc, splice};
use a2abus_plugin::{Event, Hint, Limits, Mapped, Text, Unit, decode, extension};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::members::{WithMeta, WithParams};
use super::replies::Requester;
use crate::bus::deadletter::{Reason, Stage};
use crate::calls::failure::{self, Failure, POINTER, Recipient};
use crate::clock;
use crate::config::AttachProtocol;
use crate::object::{self, present};
use crate::pipeline::intake::Refusal;
use crate::results::{Claim, digest_of, key_of};

/// The requested action.
#[derive(Debug)]
pub(super) enum Ask {
    Request(Box<Request>),
    /// Cancel the request with this id (as JSON).
    Cancel(Text),
    /// A request whose deadline has passed.
    Expired(Box<Request>),
    /// An answer to a question of the server, and its id.
    Answer(Bytes, Option<Id>),
    /// A message without an id for the server: its method and its bytes.
    Message(String, Bytes),
    /// A message about a session, which does not concern the agent.
    Nothing,
}

/// One request.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) body: Bytes,
    pub(super) message: JsonRpc,
    pub(super) method: String,
    /// The requester's own id, as JSON.
    pub(super) id: Text,
    pub(super) requester: Requester,
    /// How long the requester still waits; `None` if the request does not say.
    pub(super) left: Option<Duration>,
    /// Identifies this request, also when it is redelivered. `None` if the message has no position; such messages are
    /// not redelivered.
    pub(super) identity: Option<Text>,
    /// Distinguishes this delivery from others in progress; set when it begins.
    pub(super) delivery: u64,
    /// For the call of a tool that an A2A message stands for: the context of the message, or a new one.
    pub(super) message_context: Option<Text>,
}

/// A message that is not a request for the agent.
#[derive(Debug)]
pub(super) struct Rejected {
    pub(super) reason: Reason,
    pub(super) body: Option<Bytes>,
    pub(super) requester: Requester,
    pub(super) id: Option<Text>,
    pub(super) failure: Failure,
}

/// The members of a message that are read.
#[derive(Debug, Deserialize)]
struct Message<'a> {
    #[serde(default)]
    method: Option<String>,
    #[serde(default, borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
struct Params<'a> {
    #[serde(default)]
    name: Option<String>,
    #[serde(rename = "requestId", default, borrow)]
    request: Option<&'a RawValue>,
}

/// A2A methods that only read.
const REPEATABLE_IN_A2A: [&str; 12] = [
    "agent/getAuthenticatedExtendedCard",
    "tasks/get",
    "tasks/list",
    "tasks/pushNotificationConfig/get",
    "tasks/pushNotificationConfig/list",
    "tasks/resubscribe",
    "GetExtendedAgentCard",
    "GetTask",
    "GetTaskPushNotificationConfig",
    "ListTaskPushNotificationConfigs",
    "ListTasks",
    "SubscribeToTask",
];
/// MCP methods that are safe to repeat: they change at most what the server displays.
const REPEATABLE: [&str; 15] = [
    "completion/complete",
    "initialize",
    "logging/setLevel",
    "ping",
    "prompts/get",
    "prompts/list",
    "resources/list",
    "resources/read",
    "resources/subscribe",
    "resources/templates/list",
    "resources/unsubscribe",
    "server/discover",
    "tasks/get",
    "tasks/list",
    "tools/list",
];

// === impl Ask ===

impl Ask {
    /// Reads the request in an event for `agent`. `inside` describes the event's data, `place` is the position of the
    /// event.
    pub(super) fn of(
        event: &Event,
        inside: Option<Mapped>,
        requester: Requester,
        (agent, place): (&Text, Option<&str>),
    ) -> Result<Self, Box<Rejected>> {
        let found = inside.and_then(|it| Some((it.json_rpc?, it.bytes, it.index)));
        let found = found.map(|(message, body, index)| {
            let (message, body) = without_mark(message, body);
            (message, body, index)
        });
        let Some((message, body, index)) = found else {
            let why = "expected a JSON-RPC request on this topic";
            return Err(Rejected::new(
                "not_json_rpc",
                why,
                event.body(),
                requester,
                None,
            ));
        };
        let id = message.id.as_ref().map(|id| id.token().clone());
        let target = event.extension_text(extension::TARGET_AGENT);
        if target.is_some_and(|target| target != agent) {
            let why = "its targetagent is not the agent of this topic";
            return Err(Rejected::new("other_agent", why, body, requester, id));
        }
        if !message.is_call() {
            return Ok(Self::Answer(body, message.id));
        }
        let read: Message<'_> = serde_json::from_slice(&body).unwrap_or(Message {
            method: None,
            params: None,
        });
        let method = read.method.unwrap_or_default();
        let Some(id) = id else {
            return Ok(Self::notified(&method, read.params, body.clone()));
        };
        if let Some(refused) = requester.refused() {
            let why = refused.to_string();
            let code = crate::calls::reply_address::Refused::REASON;
            return Err(Rejected::new(code, &why, body, requester, Some(id)));
        }
        let request = Box::new(Request {
            identity: place.map(|place| identity(agent, event, &format!("{place}/{index}"))),
            left: clock::time_left(event),
            body,
            message,
            method,
            id,
            requester,
            delivery: 0,
            message_context: None,
        });
        if clock::is_expired(event) {
            return Ok(Self::Expired(request));
        }
        Ok(Self::Request(request))
    }

    /// The id of the request that a message cancels (as JSON), if it does.
    pub(super) fn cancelled_by(unit: &Unit) -> Option<Text> {
        let read: Message<'_> = serde_json::from_slice(&unit.bytes).ok()?;
        match Self::notified(&read.method?, read.params, Bytes::new()) {
            Self::Cancel(id) => Some(id),
            _ => None,
        }
    }

    fn notified(method: &str, raw: Option<&RawValue>, body: Bytes) -> Self {
        match method {
            "notifications/cancelled" => match params(raw).request {
                Some(request) => Self::Cancel(request.get().into()),
                None => Self::Nothing,
            },
            "notifications/initialized" | "notifications/roots/list_changed" => Self::Nothing,
            _ => Self::Message(method.to_owned(), body),
        }
    }
}

/// The JSON-RPC message in these bytes, if they contain one. Its size and the number of its members are not limited: they
/// were checked when the message, or the one that it is made from, was read.
pub(super) fn json_rpc(body: &Bytes) -> Option<JsonRpc> {
    let mut limits = Limits::default();
    limits.max_bytes = usize::MAX;
    limits.max_members = u32::MAX;
    let unit = decode(body, &Hint::default(), &limits).into_only();
    unit.ok()?.ok()?.json_rpc
}

/// The message without a byte order mark, which few servers accept.
fn without_mark(message: JsonRpc, body: Bytes) -> (JsonRpc, Bytes) {
    const MARK: &[u8] = b"\xEF\xBB\xBF";
    if !body.starts_with(MARK) {
        return (message, body);
    }
    let rest = body.slice(MARK.len()..);
    match json_rpc(&rest) {
        Some(mut again) => {
            again.dialect = message.dialect;
            (again, rest)
        }
        None => (message, body),
    }
}

/// The identity of a request to an agent, the same for every bridge that reads it. `place` identifies the delivery and the
/// unit in it; a position in the message itself cannot be trusted. The `source` and the `id` of an event that a bridge has
/// made name that bridge.
fn identity(agent: &Text, event: &Event, place: &str) -> Text {
    let call = event.extension_text(extension::CALL_ID);
    let call = call.map_or(&b""[..], |call| call.as_bytes());
    digest_of([agent.as_bytes(), call, place.as_bytes()])
}

fn is_text_or_integer(json: &str) -> bool {
    json.starts_with('"') || json.bytes().all(|it| it == b'-' || it.is_ascii_digit())
}

fn params(raw: Option<&RawValue>) -> Params<'_> {
    let params = raw.map(|raw| serde_json::from_str(raw.get()));
    params.and_then(Result::ok).unwrap_or_default()
}

// === impl Request ===

impl Request {
    pub(super) fn recipient(&self) -> Recipient {
        Recipient::new(self.id.clone(), self.message.dialect)
    }

    /// Whether it is an A2A request.
    pub(super) fn is_a2a(&self) -> bool {
        match self.message.dialect {
            Dialect::JafDoc | Dialect::A2a03 | Dialect::A2a10 => true,
            Dialect::Mcp | Dialect::Acp | Dialect::JsonRpc => false,
        }
    }

    /// The same tool call without `params.task`, the member that asks for a task; `None` if it has no such member.
    pub(super) fn without_task(&self) -> Option<Self> {
        #[derive(Deserialize)]
        struct Params<'a> {
            #[serde(default, borrow, deserialize_with = "present")]
            task: Option<&'a RawValue>,
        }
        if self.method != "tools/call" {
            return None;
        }
        let WithParams { params } = object::from_slice(&self.body).ok()?;
        let Params { task } = object::from_slice(params?.get().as_bytes()).ok()?;
        let body = splice(&self.body, object::range_of_member(&self.body, task?), "");
        let mut message = json_rpc(&body)?;
        message.dialect = self.message.dialect;
        Some(Self {
            body,
            message,
            ..self.clone()
        })
    }

    /// Checks what MCP servers ignore in silence instead of refusing it: the types of `params`, of its `_meta`, and of
    /// the progress token. Source: docs/protocols/mcp.md §11.
    ///
    /// # Errors
    /// The parameters are not valid.
    pub(super) fn check_params(&self) -> Result<(), Failure> {
        #[derive(Deserialize)]
        struct Meta<'a> {
            #[serde(
                rename = "progressToken",
                default,
                borrow,
                deserialize_with = "present"
            )]
            progress_token: Option<&'a RawValue>,
        }
        let wrong = |pointer: &str, expected: &str| {
            let name = pointer.trim_start_matches('/').replace('/', ".");
            let failure = Failure::bad_params(&format!("{name} must be {expected}"));
            Err(failure.detail(POINTER, pointer))
        };
        let sent: Option<WithParams<'_>> = object::from_slice(&self.body).ok();
        let Some(params) = sent.and_then(|sent| sent.params) else {
            return Ok(());
        };
        let Ok(WithMeta { meta }) = object::from_slice(params.get().as_bytes()) else {
            return wrong("/params", "an object");
        };
        let Some(meta) = meta else { return Ok(()) };
        let Ok(Meta { progress_token }) = object::from_slice(meta.get().as_bytes()) else {
            return wrong("/params/_meta", "an object");
        };
        match progress_token.map(RawValue::get) {
            Some(token) if !is_text_or_integer(token) => {
                wrong("/params/_meta/progressToken", "a string or an integer")
            }
            _ => Ok(()),
        }
    }

    /// Whether it may be executed twice. `is_safe` says whether a tool may be called twice.
    pub(super) fn is_repeatable(
        &self,
        protocol: AttachProtocol,
        is_safe: impl Fn(&str) -> bool,
    ) -> bool {
        let method = self.method.as_str();
        match protocol {
            AttachProtocol::Jsonrpc => return false,
            AttachProtocol::A2a => return REPEATABLE_IN_A2A.contains(&method),
            AttachProtocol::Mcp if method != "tools/call" => return REPEATABLE.contains(&method),
            AttachProtocol::Mcp => {}
        }
        let read: Option<Message<'_>> = serde_json::from_slice(&self.body).ok();
        let name = read.and_then(|read| params(read.params).name);
        name.is_some_and(|name| is_safe(&name))
    }

    /// The log key and the claim of this request. The key is unique and stays the same when the request is redelivered.
    /// `left` is the time limit for its answer.
    pub(super) fn claim(&self, left: Duration) -> Option<(String, Claim)> {
        let key = key_of("attached", self.identity.as_ref()?);
        let claim = Claim {
            digest: digest_of([&self.body]),
            call: Text::from(&*clock::new_event_id()),
            until: clock::milliseconds(clock::now() + left),
        };
        Some((key, claim))
    }
}

// === impl Rejected ===

impl Rejected {
    fn new(
        code: &'static str,
        why: &str,
        body: Bytes,
        requester: Requester,
        id: Option<Text>,
    ) -> Box<Self> {
        Box::new(Self {
            reason: Reason {
                code,
                stage: Stage::Execute,
                detail: why.to_owned(),
                unit: None,
            },
            body: Some(body),
            requester,
            id,
            failure: Failure::new(failure::Reason::InvalidRequest, why),
        })
    }

    /// A message or unit that could not be read.
    pub(super) fn of(requester: Requester, refusal: &Refusal) -> Box<Self> {
        let reason = refusal.reason();
        let unit = refusal.unit();
        let failure = match unit {
            Some(refused) => Failure::refused(&refused.error),
            None => Failure::new(failure::Reason::InvalidRequest, reason.detail.clone()),
        };
        Box::new(Self {
            body: unit.map(|refused| refused.bytes.clone()),
            id: unit.and_then(|refused| Some(refused.id.as_ref()?.token().clone())),
            reason,
            requester,
            failure,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `limits.max_bytes` may be larger than the default of the decoder.
    #[test]
    fn a_byte_order_mark_is_removed_from_a_large_message_too() {
        let text = "x".repeat(2 << 20);
        let body = format!(
            "\u{feff}{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{{\"text\":\"{text}\"}}}}"
        );
        let body = Bytes::from(body);
        let message = json_rpc(&body).unwrap();
        let (_, rest) = without_mark(message, body);
        assert!(rest.starts_with(b"{"));
    }
}
