//! Renders an agent's messages for the caller.
//!
//! | the agent wrote | a JSON-RPC caller gets |
//! |---|---|
//! | a JSON-RPC response | the same bytes with the caller's own id |
//! | a JSON-RPC notification (progress, logging) | the same bytes with the caller's own progress token, as a part |
//! | an E2A record | see docs/protocols/e2a.md §10.4; the parts are combined for a caller that accepts only one answer |
//! | an A2E message | `error`: an error; an event: a part; else a result. The message is the result, or the error's data |
//! | a legacy message | FAILURE, REFUSE and the like: an error; AGREE: a part; else a result. The `payload` is the result |
//! | a CloudEvent | its data, by this table; parts by `mcptype` and `isfinal` |
//! | any other JSON | a result |
//! | a JSON-RPC request | a question to an MCP client: a part; another question: it is refused; else the call fails |
//!
//! A caller of another family gets the agent's message unchanged, unless it is not valid in its family. It cannot answer
//! a JSON-RPC request, so a question is refused.
//!
//! Source: docs/protocols/e2a.md §10.4, docs/protocols/a2e-messages.md §3, docs/protocols/eventmesh-a2a.md §2.

use std::borrow::Cow;

use a2abus_models::Json;
use a2abus_models::e2a::{
    AgentResponse, AgentResponseChunk, CallMode, Caller, E2aContext, E2aResponse, Fold, FoldLimits,
    FoldStep, FoldStepKind, JsonRpcId, RecordOptions, Trust, encode_agent_chunk_for_wire,
    strip_internal_keys,
};
use a2abus_plugin::json::BYTE_ORDER_MARK;
use a2abus_plugin::protocol::jsonrpc::{self, Id, JsonRpc, code, splice};
use a2abus_plugin::{Event, Family, Kind, Limits, Text, extension};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use smallvec::smallvec;

use super::answer_unit::{AnswerUnit, Body, without_mark};
use super::error::CallError;
use super::part::Part;
use crate::calls::callid::ReplyId;
use crate::calls::pending::{CallRequest, Form, Parts, Progress, Questions};
use crate::calls::question::Abilities;

/// Renders one unit of a message for the caller.
///
/// # Errors
/// [`CallError::BadAnswer`] when the unit cannot be an answer: then the call fails with this error.
pub(crate) fn parts_of(
    request: &CallRequest,
    fold: &mut Option<Fold>,
    unit: &AnswerUnit,
    limits: &Limits,
) -> Result<Parts, CallError> {
    if is_question(request, unit) {
        return Ok(smallvec![Part {
            is_question: true,
            ..Part::new(without_mark(unit.payload.clone()), false)
        }]);
    }
    match &request.form {
        Form::Untouched { has_family } => untouched(request, unit, *has_family),
        Form::JsonRpc {
            id,
            progress,
            accepts_parts,
            ..
        } => {
            let reply = Reply {
                request,
                id,
                progress: progress.as_ref(),
                accepts_parts: *accepts_parts,
                limits,
            };
            reply.parts_of(unit, fold)
        }
    }
}

/// Renders the records that waited for an earlier one, which is given up.
pub(crate) fn released(request: &CallRequest, progress: &mut Progress) -> Parts {
    let Form::JsonRpc { id, .. } = &request.form else {
        return Parts::new();
    };
    let fold = progress.fold.as_mut();
    let steps = fold.map(Fold::release).unwrap_or_default();
    steps
        .into_iter()
        .filter_map(|step| part_of_step(id, step))
        .collect()
}

/// A response with the one of its members `result` and `error` that is not null, because strict clients refuse both.
fn one_member(id: &str, response: &[u8]) -> Option<Bytes> {
    #[derive(Deserialize)]
    struct Members<'a> {
        #[serde(borrow)]
        result: &'a RawValue,
        #[serde(borrow)]
        error: &'a RawValue,
    }
    let response = response.strip_prefix(BYTE_ORDER_MARK).unwrap_or(response);
    let Members { result, error } = serde_json::from_slice(response).ok()?;
    Some(match error.get() {
        "null" => jsonrpc::result(id, result.get()),
        error => jsonrpc::error(id, error),
    })
}

/// Whether a unit is a JSON-RPC question of the agent. A request with the id of the call is no question: the agent has
/// sent back the request that it got.
fn is_question(request: &CallRequest, unit: &AnswerUnit) -> bool {
    #[derive(Deserialize)]
    struct Call<'a> {
        #[serde(borrow)]
        method: Cow<'a, str>,
    }
    let Body::Rpc(message) = &unit.body else {
        return false;
    };
    let call = request.id.call;
    let is_own = |id: &Id| {
        let id = id.text().and_then(|text| text.parse().ok());
        id.is_some_and(|id: ReplyId| id.call == call)
    };
    let id = message.id.as_ref().filter(|_| message.is_call());
    if id.is_none_or(is_own) {
        return false;
    }
    match &request.form {
        Form::JsonRpc {
            questions: Questions::All(_),
            ..
        } => true,
        Form::JsonRpc { .. } | Form::Untouched { .. } => {
            let body = without_mark(unit.payload.clone());
            let call: Option<Call<'_>> = serde_json::from_slice(&body).ok();
            call.is_some_and(|call| Abilities::is_question(&call.method))
        }
    }
}

/// The agent's message unchanged, for a caller that is not a JSON-RPC client. If the caller's request has a family
/// (`has_family`), a message that is not valid in its own family is an error: a reader could take it for an answer.
fn untouched(
    request: &CallRequest,
    unit: &AnswerUnit,
    has_family: bool,
) -> Result<Parts, CallError> {
    if let Body::Broken {
        why,
        has_family: true,
        ..
    } = &unit.body
        && has_family
    {
        return Err(CallError::BadAnswer(why.clone()));
    }
    if unit.is_request() {
        return Err(bad("expected an answer, but the message is a request"));
    }
    if unit.is_push() && !request.streamed {
        // The caller accepts only a whole answer.
        return Ok(Parts::new());
    }
    Ok(smallvec![Part {
        body: unit.payload.clone(),
        last: unit.is_last(request.streamed),
        is_question: false,
        event: unit.own_event().cloned().map(Box::new),
        outcome: unit.outcome(),
    }])
}

/// The form of the answer to a JSON-RPC caller.
struct Reply<'a> {
    request: &'a CallRequest,
    /// The caller's own id, as its JSON token.
    id: &'a Text,
    /// The caller's own progress token.
    progress: Option<&'a Text>,
    /// Whether the caller accepts parts that are results.
    accepts_parts: bool,
    /// The limits of payloads where the answer was read.
    limits: &'a Limits,
}

// === impl Reply ===

impl Reply<'_> {
    fn parts_of(&self, unit: &AnswerUnit, fold: &mut Option<Fold>) -> Result<Parts, CallError> {
        let last = unit.is_last(self.request.streamed);
        if unit.is_progress() && !self.accepts_parts && !self.request.streamed {
            // It is not a JSON-RPC message, and the caller accepts only a whole answer.
            return Ok(Parts::new());
        }
        let body = match &unit.body {
            Body::Broken { why, .. } => return Err(CallError::BadAnswer(why.clone())),
            Body::Rpc(message) if message.is_call() => self.notification(&unit.payload, message)?,
            Body::Rpc(message) => self.response(&unit.payload, message),
            Body::Json => result(self.id, &unit.payload),
            Body::Mapped {
                family,
                kind,
                event,
                trust,
            } => match family {
                Family::E2a => return self.record(&unit.payload, *trust, fold),
                Family::A2eMessage => self.a2e_message(&unit.payload, *kind, event)?,
                Family::Legacy => self.legacy(&unit.payload, *kind, event)?,
                Family::A2eWorkflow => {
                    return Err(bad("expected an answer, but the message is a workflow"));
                }
                Family::CloudEvent | Family::JsonRpc => result(self.id, &unit.payload),
            },
        };
        Ok(smallvec![Part {
            outcome: unit.outcome(),
            ..Part::new(without_mark(body), last)
        }])
    }

    fn response(&self, bytes: &Bytes, message: &JsonRpc) -> Bytes {
        if message.has_null_member
            && let Some(response) = one_member(self.id, bytes)
        {
            return response;
        }
        match &message.id {
            Some(id) => splice(bytes, id.span(), self.id),
            None => with_id(bytes, self.id),
        }
    }

    /// A notification of the agent about the call, with the caller's own progress token, else its own id.
    fn notification(&self, bytes: &Bytes, message: &JsonRpc) -> Result<Bytes, CallError> {
        if message.id.is_some() {
            return Err(bad(
                "expected a response, but the message is a JSON-RPC request",
            ));
        }
        let call = self.request.id.call;
        let is_it = |id: ReplyId| id.call == call;
        let ours = |id: &&Id| id.text().is_some_and(|text| text.parse().is_ok_and(is_it));
        Ok(match message.progress.as_deref().filter(ours) {
            // A caller that gave no token knows its own id. It never sees the reply id, which contains the reply token.
            Some(token) => splice(bytes, token.span(), self.progress.unwrap_or(self.id)),
            None => bytes.clone(),
        })
    }

    /// Source: docs/protocols/a2e-messages.md §3 and §8.2.
    fn a2e_message(&self, bytes: &Bytes, kind: Kind, event: &Event) -> Result<Bytes, CallError> {
        let is_error = event
            .extension_text(extension::A2E_TYPE)
            .is_some_and(|ty| ty == "error");
        match kind {
            _ if is_error => {
                let error: A2eError<'_> = read(bytes)?;
                let message = error.message.filter(|text| !text.is_empty());
                let message = message
                    .or(error.code)
                    .unwrap_or_else(|| "the agent failed".into());
                Ok(self.error(&message, bytes))
            }
            Kind::Response | Kind::Stream => Ok(result(self.id, bytes)),
            Kind::Request | Kind::Notification => {
                let ty = event.extension_text(extension::A2E_TYPE);
                let ty = ty.map_or("", |ty| ty.as_str());
                Err(bad(format!(
                    "an A2E message of type {ty:?} is not an answer"
                )))
            }
        }
    }

    /// Source: FIPA ACL, docs/protocols/eventmesh-a2a.md §2. A message that was read where answers arrive is an answer,
    /// even if it repeats no correlation id.
    fn legacy(&self, bytes: &Bytes, kind: Kind, event: &Event) -> Result<Bytes, CallError> {
        let act = event.extension_text(extension::A2A_METHOD);
        let act = act.map(|act| act.replace('-', "_")).unwrap_or_default();
        if kind == Kind::Request {
            return Err(bad(format!(
                "a legacy message of type {act:?} is not an answer"
            )));
        }
        let answer: LegacyAnswer<'_> = read(bytes)?;
        let payload = answer
            .payload
            .map_or(bytes.as_ref(), |payload| payload.get().as_bytes());
        let failed = [
            "failure",
            "refuse",
            "not_understood",
            "reject_proposal",
            "disconfirm",
        ];
        if !failed.contains(&act.as_str()) {
            return Ok(result(self.id, payload));
        }
        let message = format!("the agent answered {}", act.to_uppercase());
        Ok(self.error(&message, payload))
    }

    /// The error of an agent with another protocol; its message becomes `data`.
    fn error(&self, message: &str, data: &[u8]) -> Bytes {
        let message = serde_json::Value::from(message).to_string();
        let code = code::INTERNAL_ERROR;
        joined(&[
            b"{\"jsonrpc\":\"2.0\",\"id\":",
            self.id.as_bytes(),
            format!(",\"error\":{{\"code\":{code},\"message\":{message},\"data\":").as_bytes(),
            data,
            b"}}",
        ])
    }

    /// An E2A record, in the order of its sequence.
    fn record(
        &self,
        bytes: &Bytes,
        trust: Trust,
        fold: &mut Option<Fold>,
    ) -> Result<Parts, CallError> {
        let unusable = |error: &dyn std::fmt::Display| bad(format!("the E2A record: {error}"));
        let json = Json::parse_lossy(bytes, self.limits).map_err(|error| unusable(&error))?;
        if let Some(part) = self.pre_e2a_answer(&json) {
            return Ok(smallvec![part]);
        }
        let chunk = pre_e2a_chunk(&json);
        let has_sequence = chunk.is_none() && E2aResponse::has_sequence(&json);
        let mut record = match chunk.map_or_else(|| E2aResponse::parse(&json), Ok) {
            Ok(record) if !record.response_kind.is_empty() => record,
            Ok(_) => return Err(bad("expected a response, but the record is an E2A request")),
            Err(error) => return Err(unusable(&error)),
        };
        // The records of one answer may have readers of different trust, so each record is judged, not the exchange.
        if trust == Trust::Untrusted {
            strip_internal_keys(&mut record.metadata);
        }
        let fold = fold
            .get_or_insert_with(|| Fold::new(self.caller(), Trust::Trusted, FoldLimits::default()));
        let steps = match has_sequence {
            true => fold.take(record),
            false => fold.append(record),
        };
        Ok(steps
            .into_iter()
            .filter_map(|step| part_of_step(self.id, step))
            .collect())
    }

    /// A whole answer in the format that preceded E2A. Source: docs/protocols/e2a.md §8.
    fn pre_e2a_answer(&self, json: &Json) -> Option<Part> {
        if json.get("response_kind").is_some() || json.get("is_complete").is_some() {
            return None;
        }
        let AgentResponse { payload, ok, .. } = AgentResponse::parse(json).ok()?;
        let data = payload.to_string();
        let body = if ok {
            result(self.id, data.as_bytes())
        } else {
            let text = |name| payload.get(name).and_then(Json::as_str);
            let message = text("error").or_else(|| text("message"));
            self.error(message.unwrap_or("Agent error"), data.as_bytes())
        };
        Some(Part::new(body, true))
    }

    /// The caller in the records of the agent, by the id that the agent repeats.
    fn caller(&self) -> Caller {
        Caller {
            id: JsonRpcId::from_json(&Json::from(self.request.id.to_string())),
            mode: if self.accepts_parts {
                CallMode::Streaming
            } else {
                CallMode::Unary
            },
        }
    }
}

/// A part of an answer in the format that preceded E2A, as a record. Source: docs/protocols/e2a.md §8.
fn pre_e2a_chunk(json: &Json) -> Option<E2aResponse> {
    if json.get("response_kind").is_some() || json.get("is_complete").is_none() {
        return None;
    }
    let chunk = AgentResponseChunk::parse(json).ok()?;
    // Nobody sees these.
    let none = Text::default();
    let context = E2aContext {
        now: &none,
        converter: &none,
        new_id: &none,
    };
    let options = RecordOptions::default();
    Some(encode_agent_chunk_for_wire(&chunk, options, &context))
}

fn part_of_step(id: &Text, step: FoldStep) -> Option<Part> {
    let message = step.message?;
    let last = step.kind == FoldStepKind::Answer;
    let is_question = message.get("method").is_some() && message.get("id").is_some();
    let body = match (message.get("result"), message.get("error")) {
        (Some(value), _) => jsonrpc::result(id, &value.to_string()),
        (None, Some(error)) => jsonrpc::error(id, &error.to_string()),
        // A notification, or a question with an id of the agent.
        (None, None) => message.to_string().into(),
    };
    Some(Part {
        is_question,
        ..Part::new(body, last)
    })
}

#[derive(Deserialize)]
struct A2eError<'a> {
    #[serde(default, borrow)]
    code: Option<std::borrow::Cow<'a, str>>,
    #[serde(default, borrow)]
    message: Option<std::borrow::Cow<'a, str>>,
}

#[derive(Deserialize)]
struct LegacyAnswer<'a> {
    #[serde(default, borrow)]
    payload: Option<&'a RawValue>,
}

fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, CallError> {
    serde_json::from_slice(bytes).map_err(|error| bad(error.to_string()))
}

fn bad(why: impl Into<Text>) -> CallError {
    CallError::BadAnswer(why.into())
}

/// Adds the caller's id to a response without one (an error about an unreadable request).
fn with_id(bytes: &Bytes, id: &str) -> Bytes {
    let start = bytes
        .iter()
        .position(|byte| *byte == b'{')
        .map_or(0, |at| at + 1);
    splice(bytes, start..start, &format!("\"id\":{id},"))
}

/// A JSON value as the result of a JSON-RPC response.
fn result(id: &str, value: &[u8]) -> Bytes {
    joined(&[
        b"{\"jsonrpc\":\"2.0\",\"id\":",
        id.as_bytes(),
        b",\"result\":",
        value,
        b"}",
    ])
}

fn joined(pieces: &[&[u8]]) -> Bytes {
    pieces.concat().into()
}
