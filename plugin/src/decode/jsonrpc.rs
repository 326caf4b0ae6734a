//! Decodes JSON-RPC 2.0 from its facts. Source: JSON-RPC 2.0, docs/protocols/eventmesh-a2a.md §1 and §3.

use super::parser::Parser;
use crate::detect::{Facts, MemberPath};
use crate::error::{DecodeError, DecodeErrorKind};
use crate::extension;
use crate::json::{Kind, Span};
use crate::protocol::dialect::{self, Dialect, Method, ParamsHints, Version};
use crate::protocol::jsonrpc::{Id, JsonRpc, Part, RpcBody};
use crate::protocol::{Draft, Kind as Exchange, MAX_ID_BYTES, event_type};
use crate::text::Text;

/// The members that must not occur twice. Source: docs/protocols/eventmesh-a2a.md §D10.
const MEMBERS: [MemberPath; 6] = [
    MemberPath::Jsonrpc,
    MemberPath::Id,
    MemberPath::Method,
    MemberPath::Params,
    MemberPath::Result,
    MemberPath::Error,
];

impl Parser<'_> {
    pub(super) fn json_rpc(&self) -> Result<(JsonRpc, Draft), DecodeError> {
        let facts = self.facts;
        facts.refuse_repeated(&MEMBERS)?;
        let id = self.id()?;
        let (method, mut result, mut error) = (
            facts.has(MemberPath::Method),
            facts.has(MemberPath::Result),
            facts.has(MemberPath::Error),
        );
        let mut has_null_member = false;
        if !method && result && error {
            // Many serializers write absent members as null.
            error = !self.is_null(MemberPath::Error);
            result = !error || !self.is_null(MemberPath::Result);
            has_null_member = result != error;
        }
        let message = match (method, result, error) {
            (true, false, false) => self.call(id),
            (false, true, false) => Ok(self.result(id)),
            (false, false, true) => self.error_response(id),
            (false, true, true) => {
                let kind = DecodeErrorKind::BothResultAndError;
                Err(self.refused(kind, MemberPath::Error, "both result and error"))
            }
            (true, _, _) => {
                let message = "a method together with a result or an error";
                Err(self.refused(DecodeErrorKind::Invalid, MemberPath::Method, message))
            }
            (false, false, false) => {
                let message = "neither method nor result nor error";
                Err(self.refused(DecodeErrorKind::Invalid, MemberPath::Root, message))
            }
        };
        let (mut message, draft) = message?;
        message.has_null_member = has_null_member;
        Ok((message, draft))
    }

    pub(super) fn id(&self) -> Result<Option<Id>, DecodeError> {
        let Some(span) = self.facts.get(MemberPath::Id) else {
            return Ok(None);
        };
        let refuse = |message| Err(self.refused(DecodeErrorKind::BadId, MemberPath::Id, message));
        match span.kind() {
            Kind::String | Kind::Number | Kind::Null => {}
            Kind::Object | Kind::Array | Kind::Boolean => {
                return refuse("an id is a string, a number or null");
            }
        }
        if span.range().len() > MAX_ID_BYTES {
            return refuse("the id is longer than 1024 bytes");
        }
        let token = self.facts.token(span);
        let id = Id::new(token.into(), span.start() - self.base, span.is_escaped());
        let legal = if span.is_escaped() {
            id.text().is_some_and(|text| crate::event::is_string(&text))
        } else {
            crate::event::is_string(token)
        };
        if legal {
            Ok(Some(id))
        } else {
            refuse("the id contains a control character or a lone surrogate")
        }
    }

    fn is_null(&self, path: MemberPath) -> bool {
        let span = self.facts.get(path);
        span.is_some_and(|span| span.kind() == Kind::Null)
    }

    fn call(&self, id: Option<Id>) -> Result<(JsonRpc, Draft), DecodeError> {
        let (method, known) = self.rpc_method()?;
        let dialect = match dialect::of_call(&method, known, || params_hints(self.facts)) {
            Dialect::A2a03 if self.hint.dialect() == Some(Dialect::JafDoc) => Dialect::JafDoc,
            dialect => dialect,
        };
        let legal = match self
            .facts
            .get(MemberPath::Params)
            .map(|params| params.kind())
        {
            None | Some(Kind::Object | Kind::Null) => true,
            Some(Kind::Array) => !dialect.needs_object_params(),
            Some(Kind::String | Kind::Number | Kind::Boolean) => false,
        };
        if !legal {
            let message = "params of this method must be an object";
            return Err(self.refused(DecodeErrorKind::BadParams, MemberPath::Params, message));
        }
        let target = self.target(MemberPath::ParamsAgentId)?;
        let topic = self.topic(MemberPath::ParamsTopic)?;
        let seq = self.seq()?;
        let (kind, ty) = match (id.is_some(), known) {
            (true, Some(known)) => (Exchange::Request, Text::from_static(known.ty.request)),
            (true, None) => (Exchange::Request, event_type("", &method, ".req")),
            (false, Some(known)) => {
                let ty = Text::from_static(known.ty.notification);
                (Exchange::Notification, ty)
            }
            (false, None) => (Exchange::Notification, event_type("", &method, "")),
        };
        let mut draft = Draft::new(kind, ty);
        draft.event.0.id = id.as_ref().and_then(Id::text).unwrap_or_default();
        draft.put(extension::A2A_METHOD, method);
        // A topic already names the destination, so the agent is dropped (docs/protocols/eventmesh-a2a.md §D5).
        if topic.is_none() {
            draft.put_if(extension::TARGET_AGENT, target);
        }
        draft.event.0.subject = topic;
        draft.put_if(extension::SEQ, seq);
        let streaming = known.is_some_and(Method::is_streaming);
        let body = RpcBody::Call { streaming };
        let progress = self.progress_token(if id.is_some() {
            MemberPath::MetaProgressToken
        } else {
            MemberPath::ParamsProgressToken
        });
        let timeout_millis = self.timeout_millis(dialect);
        let json_rpc = JsonRpc {
            body,
            id,
            dialect,
            progress,
            timeout_millis,
            has_null_member: false,
        };
        Ok((json_rpc, of_json_rpc(draft)))
    }

    /// A valid progress token. Any other value, or a repeated member, is left to the agent.
    fn progress_token(&self, path: MemberPath) -> Option<Box<Id>> {
        let span = self.facts.get(path)?;
        let is_token = matches!(span.kind(), Kind::String | Kind::Number);
        if !is_token || self.facts.refuse_repeated(&[path]).is_err() {
            return None;
        }
        let token = self.facts.token(span).into();
        let start = span.start() - self.base;
        Some(Box::new(Id::new(token, start, span.is_escaped())))
    }

    /// The timeout of the caller of an A2A method; any value other than a positive integer is ignored.
    fn timeout_millis(&self, dialect: Dialect) -> Option<u64> {
        if !matches!(dialect, Dialect::JafDoc | Dialect::A2a03 | Dialect::A2a10) {
            return None;
        }
        let span = self.facts.get(MemberPath::ConfigurationTimeout)?;
        let is_number = span.kind() == Kind::Number;
        let millis = is_number.then(|| self.facts.token(span).parse().ok())?;
        millis.filter(|millis| *millis > 0)
    }

    /// The method. Known methods are not checked again.
    fn rpc_method(&self) -> Result<(Text, Option<&'static Method>), DecodeError> {
        let word = self.facts.string(MemberPath::Method);
        if let Some(known) = word.and_then(|word| dialect::find_method(&word)) {
            return Ok((Text::from_static(known.name), Some(known)));
        }
        match self.method(MemberPath::Method)? {
            Some(method) => Ok((method, None)),
            None => {
                let message = "a method is a string, not null";
                Err(self.refused(DecodeErrorKind::BadMethod, MemberPath::Method, message))
            }
        }
    }

    /// A null sequence mark is an error; it does not count as absent.
    fn seq(&self) -> Result<Option<Text>, DecodeError> {
        if self.facts.is(MemberPath::ParamsSeq, Kind::Null) {
            let message = "must be a short string or a number, not null";
            return Err(self.refused(DecodeErrorKind::BadSeq, MemberPath::ParamsSeq, message));
        }
        self.scalar(MemberPath::ParamsSeq, DecodeErrorKind::BadSeq)
    }

    fn result(&self, id: Option<Id>) -> (JsonRpc, Draft) {
        let facts = self.facts;
        let part = part_of(facts);
        // JAF's answer to `tasks/cancel`. Source: docs/protocols/a2a.md §1.
        let cancelled = facts.flag(MemberPath::ResultCancelled) == Some(true)
            && facts.is(MemberPath::ResultId, Kind::String);
        let dialect = if cancelled {
            Dialect::JafDoc
        } else {
            result_dialect(facts)
        };
        let (json_rpc, mut draft) = response(RpcBody::Result(part), id, dialect);
        if is_stream_part(facts) {
            draft.put(extension::IS_FINAL, part == Part::Final);
        }
        if cancelled {
            draft.put_if(extension::TASK_ID, self.attribute(MemberPath::ResultId));
            draft.put(extension::TASK_STATE, Text::from_static("canceled"));
        }
        (json_rpc, of_json_rpc(draft))
    }

    fn error_response(&self, id: Option<Id>) -> Result<(JsonRpc, Draft), DecodeError> {
        let is_number = |span: &Span| span.kind() == Kind::Number;
        let code = self.facts.get(MemberPath::ErrorCode).filter(is_number);
        let code = code.map(|span| self.facts.token(span));
        let has_message = self.facts.is(MemberPath::ErrorMessage, Kind::String);
        match code.filter(|token| !token.contains(['.', 'e', 'E']) && has_message) {
            Some(token) => {
                // A2A 1.0 writes the data of an error as a list.
                let dialect = if self.facts.is(MemberPath::ErrorData, Kind::Array) {
                    Dialect::A2a10
                } else {
                    Dialect::JsonRpc
                };
                let body = RpcBody::Error(token.parse().ok());
                let (json_rpc, draft) = response(body, id, dialect);
                Ok((json_rpc, of_json_rpc(draft)))
            }
            None => {
                let message = "an error has an integer code and a string message";
                Err(self.refused(DecodeErrorKind::BadError, MemberPath::Error, message))
            }
        }
    }
}

fn response(body: RpcBody, id: Option<Id>, dialect: Dialect) -> (JsonRpc, Draft) {
    let kind = match body {
        RpcBody::Result(Part::Partial) => Exchange::Stream,
        RpcBody::Result(Part::Final | Part::Snapshot)
        | RpcBody::Error(_)
        | RpcBody::Call { .. } => Exchange::Response,
    };
    let mut draft = Draft::new(kind, Text::from_static(dialect::RESPONSE));
    let answered = id
        .as_ref()
        .and_then(Id::text)
        .filter(|text| !text.is_empty());
    draft.put_if(extension::COLLABORATION_ID, answered);
    if let RpcBody::Error(code) = body {
        draft.put_if(extension::RPC_ERROR_CODE, code);
    }
    let json_rpc = JsonRpc {
        body,
        id,
        dialect,
        progress: None,
        timeout_millis: None,
        has_null_member: false,
    };
    (json_rpc, draft)
}

fn of_json_rpc(draft: Draft) -> Draft {
    draft.of_protocol("A2A", Some(Text::from_static("2.0")))
}

fn params_hints(facts: &Facts<'_>) -> ParamsHints {
    let configuration = [
        MemberPath::ConfigurationMaxTurns,
        MemberPath::ConfigurationTimeout,
        MemberPath::ConfigurationPriority,
    ];
    ParamsHints {
        protocol_version: match facts
            .get(MemberPath::ParamsProtocolVersion)
            .map(|span| span.kind())
        {
            None => Version::Absent,
            Some(Kind::Number) => Version::Number,
            Some(_) => Version::Other,
        },
        has_id: facts.non_null(MemberPath::ParamsId).is_some(),
        has_task_id: facts.non_null(MemberPath::ParamsTaskId).is_some(),
        has_session_id: facts.non_null(MemberPath::ParamsSessionId).is_some(),
        has_reason: facts.non_null(MemberPath::ParamsReason).is_some(),
        jaf: configuration.into_iter().any(|path| facts.has(path))
            || facts.equals(MemberPath::MessageRole, "system"),
    }
}

/// The dialect, derived from the shape of a result. Source: docs/protocols/a2a.md §3.
fn result_dialect(facts: &Facts<'_>) -> Dialect {
    let mcp = [
        MemberPath::ResultType,
        MemberPath::ResultContent,
        MemberPath::ResultProtocolVersion,
    ];
    match facts.string(MemberPath::ResultKind).as_deref() {
        Some("completion" | "partial-completion" | "error") => Dialect::JafDoc,
        Some("task" | "message" | "status-update" | "artifact-update") => Dialect::A2a03,
        _ if mcp.into_iter().any(|path| facts.has(path)) => Dialect::Mcp,
        _ if wrapped(facts).is_some() => Dialect::A2a10,
        _ => Dialect::JsonRpc,
    }
}

/// The member that names the type of an A2A 1.0 result.
fn wrapped(facts: &Facts<'_>) -> Option<MemberPath> {
    let wrappers = [
        MemberPath::ResultTask,
        MemberPath::ResultMessage,
        MemberPath::ResultStatusUpdate,
        MemberPath::ResultArtifactUpdate,
    ];
    wrappers
        .into_iter()
        .find(|path| facts.is(*path, Kind::Object))
}

/// Whether more parts follow a result. Source: docs/protocols/a2a.md §4.
fn part_of(facts: &Facts<'_>) -> Part {
    let states = [
        MemberPath::ResultState,
        MemberPath::TaskState,
        MemberPath::UpdateState,
    ];
    let state = states.into_iter().find_map(|path| facts.string(path));
    let is_last = || state.as_deref().is_some_and(is_last_state);
    if let Some(is_final) = facts.flag(MemberPath::ResultFinal) {
        // The SDK for Python writes `"final": false` when it asks for input.
        return if is_final || is_last() {
            Part::Final
        } else {
            Part::Partial
        };
    }
    let unless_last = |part| if is_last() { Part::Final } else { part };
    match (
        facts.string(MemberPath::ResultKind).as_deref(),
        wrapped(facts),
    ) {
        (Some("artifact-update" | "partial-completion"), _)
        | (_, Some(MemberPath::ResultArtifactUpdate)) => Part::Partial,
        (Some("status-update"), _) | (_, Some(MemberPath::ResultStatusUpdate)) => {
            unless_last(Part::Partial)
        }
        (Some("task"), _) | (_, Some(MemberPath::ResultTask)) => unless_last(Part::Snapshot),
        _ => Part::Final,
    }
}

/// Whether a result has the shape of a part of an answer with several parts. Source: docs/protocols/a2a.md §4.
fn is_stream_part(facts: &Facts<'_>) -> bool {
    let updates = [
        MemberPath::ResultStatusUpdate,
        MemberPath::ResultArtifactUpdate,
    ];
    let kinds = ["status-update", "artifact-update", "partial-completion"];
    facts.flag(MemberPath::ResultFinal).is_some()
        || wrapped(facts).is_some_and(|path| updates.contains(&path))
        || facts
            .string(MemberPath::ResultKind)
            .is_some_and(|kind| kinds.contains(&kind.as_ref()))
}

/// States after which an agent sends nothing until it is asked: terminal, or waiting for the caller.
fn is_last_state(state: &str) -> bool {
    const LAST: [&str; 7] = [
        "completed",
        "canceled",
        "cancelled",
        "failed",
        "rejected",
        "input_required",
        "auth_required",
    ];
    let state = state.strip_prefix("TASK_STATE_").unwrap_or(state);
    let same = |word: &&str| {
        let mut pairs = word.bytes().zip(state.bytes());
        word.len() == state.len()
            && pairs.all(|(a, b)| a == b.to_ascii_lowercase() || (a == b'_' && b == b'-'))
    };
    LAST.iter().any(same)
}
