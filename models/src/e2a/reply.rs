//! The reply to a JSON-RPC caller for a record. Source: docs/protocols/e2a.md §10.4.

use crate::e2a::a2a::e2a_response_to_a2a_stream_payload;
use crate::e2a::acp::{acp_projection, error_of_body, is_integer, response};
use crate::e2a::constants::{
    CODE_RESPONSE_TOO_LARGE, DELTA_TEXT, EVENT_CHAT_FINAL, KIND_A2A_MESSAGE, KIND_A2A_STREAM_EVENT,
    KIND_A2A_TASK, KIND_ACP_JSONRPC_ERROR, KIND_ACP_PROMPT_RESULT, KIND_ACP_SESSION_UPDATE,
    KIND_CHUNK, KIND_COMPLETE, KIND_ERROR, STATUS_FAILED,
};
use crate::e2a::error::{E2aError, E2aErrorKind as Kind};
use crate::e2a::parts::JsonRpcId;
use crate::e2a::read::Members;
use crate::e2a::response::E2aResponse;
use crate::e2a::write::json_bytes;
use crate::json::{Json, Object};

/// The caller that waits for the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Caller {
    /// The caller's own id, which every answer carries; `None` is null.
    pub id: Option<JsonRpcId>,
    /// Whether the caller accepts parts.
    pub mode: CallMode,
}

/// Whether a caller accepts parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallMode {
    /// No: the caller gets the questions of the agent, and one response.
    Unary,
    /// Yes: parts as they arrive, then a response.
    Streaming,
}

/// The reply to a caller for one record.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// Nothing: the caller accepts no parts, and the record asks nothing.
    Nothing,
    /// A part: a notification, a response that is not final, or a request of the agent.
    Part(Object),
    /// The response that ends the call.
    Answer(Object),
}

/// The collected content of the parts of an exchange, up to a limit. Needed because the last record is often empty.
#[derive(Debug, Clone, PartialEq)]
pub struct Folded {
    text: Bounded<String>,
    whole: Bounded<Json>,
    /// The size of the whole answer, in bytes of JSON.
    whole_bytes: usize,
    max_bytes: usize,
}

#[derive(Debug, Clone, PartialEq)]
enum Bounded<T> {
    Nothing,
    Value(T),
    TooLarge,
}

impl Caller {
    /// Reads `id` and `mode`, which is `unary` (also when absent) or `stream`.
    ///
    /// # Errors
    /// `not_an_object`; `bad_type` and `bad_value` with the member.
    pub fn parse(value: &Json) -> Result<Self, E2aError> {
        let object = value.as_object().ok_or(Kind::NotAnObject)?;
        let members = Members::nested(object, "");
        let mode = match members.string("mode")?.as_deref() {
            None | Some("unary") => CallMode::Unary,
            Some("stream") => CallMode::Streaming,
            Some(_) => return Err(members.error(Kind::BadValue, "mode")),
        };
        Ok(Self {
            id: members.jsonrpc_id("id")?,
            mode,
        })
    }

    fn answer(&self, outcome: Completion) -> Reply {
        Reply::Answer(match outcome {
            Completion::Result(result) => response(self.id.clone(), "result", result),
            Completion::Error(error) => response(self.id.clone(), "error", error),
        })
    }
}

enum Completion {
    Result(Json),
    Error(Object),
}

impl Folded {
    /// No content yet. `max_bytes` limits the text, and the JSON of a whole answer.
    #[must_use]
    pub fn new(max_bytes: usize) -> Self {
        Self {
            text: Bounded::Nothing,
            whole: Bounded::Nothing,
            whole_bytes: 0,
            max_bytes,
        }
    }

    /// The size of the content, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let text = match &self.text {
            Bounded::Value(text) => text.len(),
            Bounded::Nothing | Bounded::TooLarge => 0,
        };
        text + self.whole_bytes
    }

    /// Adds the content of a part: text for the user, or the whole answer.
    pub fn absorb(&mut self, record: &E2aResponse) {
        if record.response_kind != KIND_CHUNK {
            return;
        }
        let Some(delta) = record.body.get("delta") else {
            return;
        };
        let word = |name| record.body.get(name).and_then(Json::as_str);
        let inner_event = delta.get("event_type").and_then(Json::as_str);
        if [word("event_type"), inner_event].contains(&Some(EVENT_CHAT_FINAL)) {
            let bytes = json_bytes(delta);
            (self.whole, self.whole_bytes) = if bytes > self.max_bytes {
                (Bounded::TooLarge, 0)
            } else {
                (Bounded::Value(delta.clone()), bytes)
            };
        } else if let (Some(DELTA_TEXT), Some(text)) = (word("delta_kind"), delta.as_str()) {
            self.add_text(text);
        }
    }

    fn add_text(&mut self, text: &str) {
        match &mut self.text {
            Bounded::Nothing if text.len() <= self.max_bytes => {
                self.text = Bounded::Value(text.to_owned());
            }
            Bounded::Value(all) if all.len() + text.len() <= self.max_bytes => all.push_str(text),
            kept => *kept = Bounded::TooLarge,
        }
    }

    /// The answer assembled from the parts.
    fn outcome(&self) -> Completion {
        match (&self.whole, &self.text) {
            (Bounded::Value(whole), _) => Completion::Result(whole.clone()),
            (Bounded::TooLarge, _) | (Bounded::Nothing, Bounded::TooLarge) => self.too_large(),
            (Bounded::Nothing, Bounded::Value(text)) => {
                Completion::Result(Json::object([("content", text.as_str().into())]))
            }
            (Bounded::Nothing, Bounded::Nothing) => Completion::Result(Object::new().into()),
        }
    }

    fn too_large(&self) -> Completion {
        let mut body = Object::new();
        body.insert("code", CODE_RESPONSE_TOO_LARGE);
        body.insert(
            "message",
            "the parts of the answer are too large to collect",
        );
        let bound = u64::try_from(self.max_bytes).unwrap_or(u64::MAX);
        body.insert("details", Json::object([("max_bytes", bound.into())]));
        Completion::Error(error_of_body(&body))
    }
}

/// The reply to the caller of an exchange for a record, with the caller's own id. For an `e2a.complete` without a
/// result, a unary caller gets the content of the parts.
#[must_use]
pub fn reply_for(caller: &Caller, record: &E2aResponse, folded: &Folded) -> Reply {
    if !record.is_final {
        return part_for(caller, record);
    }
    if let Some(outcome) = projected(caller, record) {
        return caller.answer(outcome);
    }
    let body = || Json::Object(record.body.clone());
    let kind = record.response_kind.as_str();
    let failed = record.status == STATUS_FAILED;
    caller.answer(match kind {
        KIND_ACP_JSONRPC_ERROR => Completion::Error(valid_error(&record.body)),
        KIND_ERROR => Completion::Error(error_of_body(&record.body)),
        _ if failed => Completion::Error(error_of_body(&record.body)),
        KIND_ACP_PROMPT_RESULT | KIND_A2A_TASK | KIND_A2A_MESSAGE => Completion::Result(body()),
        KIND_COMPLETE => completion(caller, record, folded),
        KIND_A2A_STREAM_EVENT => {
            let payload = record.body.get("payload").cloned();
            Completion::Result(payload.unwrap_or_else(body))
        }
        _ => Completion::Result(kind_and_body(record)),
    })
}

/// The part for a record that does not end the call. A caller of one answer gets only the questions of the agent,
/// because the agent waits for their answers.
pub(super) fn part_for(caller: &Caller, record: &E2aResponse) -> Reply {
    let is_question = record.is_question();
    if caller.mode == CallMode::Unary && !is_question {
        return Reply::Nothing;
    }
    Reply::Part(match record.response_kind.as_str() {
        KIND_ACP_SESSION_UPDATE => session_update(record),
        // Already a JSON-RPC request with an id of the agent.
        _ if is_question => record.body.clone(),
        _ => {
            let event = e2a_response_to_a2a_stream_payload(record).map(Json::Object);
            let result = event.unwrap_or_else(|| kind_and_body(record));
            response(caller.id.clone(), "result", result)
        }
    })
}

/// The `session/update` of a record, which contains the params, or only their `update`.
fn session_update(record: &E2aResponse) -> Object {
    let mut params = Object::new();
    if record.body.contains("update") {
        params.clone_from(&record.body);
    } else {
        params.insert("sessionId", record.session_id.clone());
        params.insert("update", record.body.clone());
    }
    let mut notification = Object::new();
    notification.insert("jsonrpc", "2.0");
    notification.insert("method", "session/update");
    notification.insert("params", params);
    notification
}

/// The outcome from the ACP projection of the record, unless it answers another call.
fn projected(caller: &Caller, record: &E2aResponse) -> Option<Completion> {
    let projection = acp_projection(record)?;
    let id = projection.get("id").filter(|id| !id.is_null());
    if id.is_some() && id.and_then(JsonRpcId::from_json) != caller.id {
        return None;
    }
    match (projection.get("result"), projection.get("error")) {
        (Some(result), None | Some(Json::Null)) => Some(Completion::Result(result.clone())),
        (_, error) => {
            let body = error.and_then(Json::as_object).cloned();
            Some(Completion::Error(valid_error(&body.unwrap_or_default())))
        }
    }
}

/// A valid JSON-RPC error unchanged; otherwise an error built from its content.
fn valid_error(body: &Object) -> Object {
    let has_code = body.get("code").is_some_and(is_integer);
    let has_message = body.get("message").is_some_and(|m| m.as_text().is_some());
    if has_code && has_message {
        body.clone()
    } else {
        error_of_body(body)
    }
}

fn completion(caller: &Caller, record: &E2aResponse, folded: &Folded) -> Completion {
    let says_nothing =
        |result: &Json| result.is_null() || result.as_object().is_some_and(Object::is_empty);
    let result = record.body.get("result");
    match result.filter(|result| !says_nothing(result)) {
        Some(result) => Completion::Result(result.clone()),
        None if caller.mode == CallMode::Unary => folded.outcome(),
        None => Completion::Result(Object::new().into()),
    }
}

fn kind_and_body(record: &E2aResponse) -> Json {
    Json::object([
        ("response_kind", record.response_kind.clone().into()),
        ("body", record.body.clone().into()),
    ])
}
