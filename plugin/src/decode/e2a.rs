//! Decodes E2A records from their facts. Source: docs/protocols/e2a.md §10.2.

mod inner;

use super::parser::{Parser, integer, is_attribute};
use crate::detect::{MemberPath, Shape};
use crate::error::{DecodeError, DecodeErrorKind};
use crate::extension;
use crate::json::Kind as JsonKind;
use crate::protocol::{Draft, Kind, event_type};
use crate::text::Text;
use crate::time;

/// The members that must not occur twice. Source: docs/protocols/e2a.md §S6.
const MEMBERS: [MemberPath; 15] = [
    MemberPath::ProtocolVersion,
    MemberPath::RequestId,
    MemberPath::ResponseKind,
    MemberPath::Method,
    MemberPath::Params,
    MemberPath::AgentId,
    MemberPath::AgentRef,
    MemberPath::SourceAgentId,
    MemberPath::Channel,
    MemberPath::ChannelId,
    MemberPath::ChannelContext,
    MemberPath::Metadata,
    MemberPath::Sequence,
    MemberPath::IsFinal,
    MemberPath::JsonrpcId,
];

/// The event types of E2A records, without the prefix.
const CATEGORY: &str = "e2a.";

/// The `sequence` of a record that only keeps a stream alive. Source: docs/protocols/e2a.md §3.
const KEEPALIVE: i64 = -1;

/// The JSON-RPC code for errors without an integer code.
const INTERNAL_ERROR: i32 = -32_603;

/// The codes of failures in the older shapes, as records have them. Source: docs/protocols/e2a.md §8.
const AGENT_ERROR: &str = "E2A.AGENT_ERROR";
const CHAT_ERROR: &str = "chat.error";

impl Parser<'_> {
    pub(super) fn e2a(&self) -> Result<Draft, DecodeError> {
        self.facts.refuse_repeated(&MEMBERS)?;
        let shape = self.facts.e2a(self.hint)?.map(|(shape, _)| shape);
        let mut draft = match shape {
            None | Some(Shape::Request | Shape::LegacyRequest) => {
                self.check_inner_request()?;
                self.e2a_request()?
            }
            Some(Shape::Response) => {
                self.check_inner_answer()?;
                self.e2a_response()?
            }
            Some(Shape::LegacyResponse | Shape::LegacyChunk) => self.e2a_legacy_response()?,
            Some(Shape::Control) => self.e2a_control()?,
        };
        let version = match shape {
            Some(Shape::LegacyRequest | Shape::LegacyResponse | Shape::LegacyChunk) => {
                Some(Text::from_static("0"))
            }
            _ => self.attribute(MemberPath::ProtocolVersion),
        };
        let version = version.unwrap_or(Text::from_static("1.0"));
        for (name, path) in [
            (extension::SESSION_ID, MemberPath::SessionId),
            (extension::TASK_ID, MemberPath::TaskId),
            (extension::CONTEXT_ID, MemberPath::ContextId),
            (extension::CORRELATION_ID, MemberPath::CorrelationId),
        ] {
            draft.put_if(name, self.e2a_text(path));
        }
        let channel = match self.facts.non_null(MemberPath::Channel) {
            Some(_) => self.e2a_text(MemberPath::Channel),
            None => self.e2a_text(MemberPath::ChannelId),
        };
        draft.put_if(extension::E2A_CHANNEL, channel);
        let source_protocol = self.e2a_text(MemberPath::SourceProtocol);
        draft.put_if(
            extension::SOURCE_PROTOCOL,
            source_protocol.filter(|protocol| protocol != "e2a"),
        );
        let trace_parent = self.attribute(MemberPath::ContextTraceparent);
        if let Some(trace_parent) = trace_parent.filter(|text| is_trace_parent(text)) {
            draft.put(extension::TRACE_PARENT, trace_parent);
            draft.put_if(
                extension::TRACE_STATE,
                self.attribute(MemberPath::ContextTracestate),
            );
        }
        draft.event.0.time = self.e2a_time();
        Ok(draft.of_protocol("E2A", Some(version)))
    }

    fn e2a_request(&self) -> Result<Draft, DecodeError> {
        let request_id = self.e2a_id(MemberPath::RequestId)?;
        // Used, and therefore checked, only in place of the `request_id`.
        let jsonrpc_id = match request_id {
            Some(_) => None,
            None => self.e2a_id(MemberPath::JsonrpcId)?,
        };
        let method = self.e2a_method()?;
        let kind = match method.as_deref() {
            Some("acp.tool_response") => Kind::Response,
            Some("session/cancel" | "session/update" | "session/elicitation/complete")
                if !self.e2a_has_jsonrpc_id() =>
            {
                Kind::Notification
            }
            _ if request_id.is_none() && jsonrpc_id.is_none() => Kind::Notification,
            _ => Kind::Request,
        };
        let name = match &method {
            Some(method) if self.e2a_is_named_ext() => Text::from(format!("ext.{method}")),
            Some(method) => method.clone(),
            None => Text::from_static("unnamed"),
        };
        let suffix = match kind {
            Kind::Notification => "",
            _ if self.e2a_flag(MemberPath::IsStream)?.unwrap_or(false) => ".stream",
            _ => ".req",
        };
        let mut draft = Draft::new(kind, event_type(CATEGORY, &name, suffix));
        draft.put_if(extension::A2A_METHOD, method);
        let collaboration_id = if kind == Kind::Response {
            self.e2a_id(MemberPath::ParamsJsonrpcId)?
        } else {
            request_id.clone().or_else(|| jsonrpc_id.clone())
        };
        draft.put_if(extension::COLLABORATION_ID, collaboration_id);
        draft.event.0.id = request_id.or(jsonrpc_id).unwrap_or_default();
        let target = self.e2a_target()?;
        let topic = self.topic(MemberPath::ParamsTopic)?;
        if topic.is_none() {
            draft.put_if(extension::TARGET_AGENT, target);
        }
        draft.event.0.subject = topic;
        draft.put_if(
            extension::SOURCE_AGENT,
            self.e2a_text(MemberPath::SourceAgentId),
        );
        let seq = self.scalar(MemberPath::ParamsSeq, DecodeErrorKind::BadSeq)?;
        draft.put_if(extension::SEQ, seq);
        Ok(draft)
    }

    fn e2a_response(&self) -> Result<Draft, DecodeError> {
        let response_kind = self.method(MemberPath::ResponseKind)?.unwrap_or_default();
        let is_final = self.e2a_flag(MemberPath::IsFinal)?.unwrap_or(false);
        let is_push = self.e2a_is_push();
        let is_request = response_kind == "acp.output_request";
        let kind = match () {
            () if is_request => Kind::Request,
            () if is_push => Kind::Notification,
            () if is_final => Kind::Response,
            () => Kind::Stream,
        };
        let name = Text::from(response_kind.strip_prefix("e2a.").unwrap_or(&response_kind));
        let suffix = match (is_push, is_final) {
            (true, _) => "",
            (false, true) => ".resp",
            (false, false) => ".stream",
        };
        let mut draft = Draft::new(kind, event_type(CATEGORY, &name, suffix));
        let request_id = self.e2a_id(MemberPath::RequestId)?;
        let sequence = self.e2a_sequence()?;
        let keeps_alive = sequence == Some(KEEPALIVE)
            || self.facts.equals(MemberPath::BodyEventType, "keepalive");
        let sequence = sequence.filter(|_| !is_push && !keeps_alive);
        let place = sequence.filter(|number| *number >= 0);
        let id = self.e2a_record_id(request_id.as_ref(), place)?;
        draft.event.0.id = id.unwrap_or_default();
        if is_request {
            draft.put_if(extension::A2A_METHOD, self.method(MemberPath::BodyMethod)?);
            draft.put_if(
                extension::COLLABORATION_ID,
                self.e2a_id(MemberPath::BodyId)?,
            );
        } else {
            draft.put_if(extension::A2A_METHOD, self.method(MemberPath::Method)?);
            draft.put_if(extension::COLLABORATION_ID, request_id);
        }
        draft.put_if(extension::SOURCE_AGENT, self.e2a_source());
        draft.put_if(
            extension::SEQ,
            sequence.map(|number| Text::from(number.to_string())),
        );
        draft.put_if(extension::IS_FINAL, (!is_push).then_some(is_final));
        draft.put_if(extension::E2A_STATUS, self.e2a_text(MemberPath::Status));
        if matches!(response_kind.as_str(), "e2a.error" | "acp.jsonrpc_error") {
            let code = self.e2a_code();
            draft.put(extension::RPC_ERROR_CODE, code.unwrap_or(INTERNAL_ERROR));
            draft.put_if(extension::E2A_CODE, self.attribute(MemberPath::BodyCode));
        }
        draft.put(extension::E2A_KIND, response_kind);
        Ok(draft)
    }

    /// The id of the event of a record; `None` for a new one. A missing `sequence` is not 0 here, because the parts of
    /// an answer without it would all have the same id.
    fn e2a_record_id(
        &self,
        request_id: Option<&Text>,
        sequence: Option<i64>,
    ) -> Result<Option<Text>, DecodeError> {
        let response_id = self.e2a_id(MemberPath::ResponseId)?;
        let own = response_id.filter(|id| Some(id) != request_id);
        let numbered = || Some(Text::from(format!("{}:{}", request_id?, sequence?)));
        Ok(own.or_else(numbered))
    }

    /// An answer in a legacy shape, as the encoders would write it. Source: docs/protocols/e2a.md §8.
    fn e2a_legacy_response(&self) -> Result<Draft, DecodeError> {
        let is_unary = self.facts.has(MemberPath::Ok);
        let complete = is_unary || self.e2a_flag(MemberPath::IsComplete)?.unwrap_or(false);
        let failed = if is_unary {
            !self.e2a_flag(MemberPath::Ok)?.unwrap_or(false)
        } else {
            complete && self.facts.equals(MemberPath::PayloadEventType, CHAT_ERROR)
        };
        let (kind, name, suffix) = match (complete, failed) {
            (false, _) => (Kind::Stream, "chunk", ".stream"),
            (true, false) => (Kind::Response, "complete", ".resp"),
            (true, true) => (Kind::Response, "error", ".resp"),
        };
        let mut draft = Draft::new(kind, event_type(CATEGORY, name, suffix));
        draft.put_if(
            extension::COLLABORATION_ID,
            self.e2a_id(MemberPath::RequestId)?,
        );
        draft.put_if(extension::SOURCE_AGENT, self.e2a_source());
        draft.put(extension::IS_FINAL, complete);
        if failed {
            let code = if is_unary { AGENT_ERROR } else { CHAT_ERROR };
            draft.put(extension::RPC_ERROR_CODE, INTERNAL_ERROR);
            draft.put(extension::E2A_CODE, Text::from_static(code));
        }
        Ok(draft)
    }

    /// A frame about the connection.
    fn e2a_control(&self) -> Result<Draft, DecodeError> {
        let name = self.method(MemberPath::Event)?.unwrap_or_default();
        let mut draft = Draft::new(Kind::Notification, event_type(CATEGORY, &name, ""));
        draft.put(extension::A2A_METHOD, name);
        Ok(draft)
    }

    /// Whether the method is `ext`, and `ext_method` replaces it.
    fn e2a_is_named_ext(&self) -> bool {
        self.facts.equals(MemberPath::Method, "ext") && !self.e2a_is_blank(MemberPath::ExtMethod)
    }

    /// Whether it is absent, null or a blank string.
    fn e2a_is_blank(&self, path: MemberPath) -> bool {
        let word = self.facts.string(path);
        self.facts.non_null(path).is_none() || word.is_some_and(|word| word.trim_ascii().is_empty())
    }

    /// Whether there is a `jsonrpc_id`, which need not be a valid id; the empty string counts as absent.
    fn e2a_has_jsonrpc_id(&self) -> bool {
        let path = MemberPath::JsonrpcId;
        self.facts.non_null(path).is_some() && !self.facts.equals(path, "")
    }

    /// A string, or the digits of a number, if it is valid for an attribute. Source: docs/protocols/e2a.md §2.
    fn e2a_text(&self, path: MemberPath) -> Option<Text> {
        let span = self.facts.get(path)?;
        if span.kind() != JsonKind::Number {
            return self.attribute(path);
        }
        Some(Text::from(self.facts.token(span))).filter(|text| is_attribute(text))
    }

    /// `method`, or the member that replaces it; a blank one counts as absent. Source: docs/protocols/e2a.md §2.
    fn e2a_method(&self) -> Result<Option<Text>, DecodeError> {
        if self.e2a_is_named_ext() {
            return self.method(MemberPath::ExtMethod);
        }
        if !self.e2a_is_blank(MemberPath::Method) {
            return self.method(MemberPath::Method);
        }
        let has_other = self.facts.is(MemberPath::ReqMethod, JsonKind::String);
        if has_other && !self.e2a_is_blank(MemberPath::ReqMethod) {
            return self.method(MemberPath::ReqMethod);
        }
        Ok(None)
    }

    /// A string or number used as an id; null and the empty string count as absent.
    fn e2a_id(&self, path: MemberPath) -> Result<Option<Text>, DecodeError> {
        let is_empty = self.facts.string(path).is_some_and(|word| word.is_empty());
        let id = if is_empty {
            None
        } else {
            self.scalar(path, DecodeErrorKind::BadId)?
        };
        if id.as_ref().is_some_and(|id| !is_attribute(id)) {
            let message = "longer than 256 characters";
            return Err(self.refused(DecodeErrorKind::BadId, path, message));
        }
        Ok(id)
    }

    /// The target of a request.
    fn e2a_target(&self) -> Result<Option<Text>, DecodeError> {
        let named = self.target(MemberPath::ParamsAgentId)?;
        let is_blank = self
            .facts
            .string(MemberPath::AgentId)
            .is_none_or(|word| word.trim_ascii().is_empty());
        let agent = if is_blank {
            None
        } else {
            self.target(MemberPath::AgentId)?
        };
        match (named, agent) {
            (Some(named), Some(agent)) if named != agent => {
                let message = "params._agentId and agent_id name different agents";
                Err(self.refused(DecodeErrorKind::BadTarget, MemberPath::AgentId, message))
            }
            (Some(target), _) | (None, Some(target)) => Ok(Some(target)),
            (None, None) => self.e2a_agent_ref(),
        }
    }

    fn e2a_agent_ref(&self) -> Result<Option<Text>, DecodeError> {
        let word = self
            .facts
            .string(MemberPath::AgentRefId)
            .unwrap_or_default();
        if word.trim_ascii().is_empty() || word == "default" {
            return Ok(None);
        }
        self.target(MemberPath::AgentRefId)
    }

    fn e2a_source(&self) -> Option<Text> {
        self.e2a_text(MemberPath::SourceAgentId).or_else(|| {
            let agent = self.attribute(MemberPath::AgentRefId);
            agent.filter(|agent| agent != "default")
        })
    }

    /// Source: docs/protocols/e2a.md §2.
    fn e2a_flag(&self, path: MemberPath) -> Result<Option<bool>, DecodeError> {
        let Some(span) = self.facts.non_null(path) else {
            return Ok(None);
        };
        let flag = match span.kind() {
            JsonKind::Boolean => self.facts.flag(path),
            JsonKind::Number => self.number(path).map(|number| number != 0.0),
            JsonKind::String => self.facts.string(path).and_then(|word| match word {
                word if word.eq_ignore_ascii_case("true") => Some(true),
                word if word.eq_ignore_ascii_case("false") => Some(false),
                _ => None,
            }),
            JsonKind::Object | JsonKind::Array | JsonKind::Null => None,
        };
        match flag {
            Some(flag) => Ok(Some(flag)),
            None => Err(self.refused(DecodeErrorKind::BadMember, path, "must be true or false")),
        }
    }

    /// Source: docs/protocols/e2a.md §3.
    fn e2a_sequence(&self) -> Result<Option<i64>, DecodeError> {
        let Some(text) = self.scalar(MemberPath::Sequence, DecodeErrorKind::BadSeq)? else {
            return Ok(None);
        };
        match integer(&text) {
            Some(number) => Ok(Some(number)),
            None => {
                let message = "must be a 64-bit integer";
                Err(self.refused(DecodeErrorKind::BadSeq, MemberPath::Sequence, message))
            }
        }
    }

    fn e2a_code(&self) -> Option<i32> {
        let span = self.facts.get(MemberPath::BodyCode)?;
        self.facts.token(span).parse().ok()
    }

    /// Trusted only on a server's own connection. Source: docs/protocols/e2a.md §S3.
    fn e2a_is_push(&self) -> bool {
        self.hint.trusts_e2a() && self.facts.flag(MemberPath::MetadataServerPush) == Some(true)
    }

    /// The epoch means no time. Source: docs/protocols/e2a.md §5.
    fn e2a_time(&self) -> Option<Text> {
        let time = match self.number(MemberPath::Timestamp) {
            Some(number) => time::of_e2a_number(number),
            None => time::of_text(&self.facts.text(MemberPath::Timestamp)?),
        };
        time.filter(|time| time.timestamp_micros() != 0)
            .map(time::with_z)
    }
}

/// A W3C trace parent with the members of version 00, of any version but `ff`. Source: W3C Trace Context section 3.2.
fn is_trace_parent(text: &str) -> bool {
    let is_hex = |part: &str, length| {
        part.len() == length && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let mut parts = text.split('-');
    let mut next = |length| parts.next().is_some_and(|part| is_hex(part, length));
    let well_formed = next(2) && next(32) && next(16) && next(2);
    well_formed
        && parts.next().is_none()
        && !text.starts_with("ff")
        && !text.contains("-00000000000000000000000000000000-")
        && !text.contains("-0000000000000000-")
}
