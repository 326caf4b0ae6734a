//! Decodes A2E messages from their facts. Source: docs/protocols/a2e-messages.md §8.2.

use super::parser::{Parser, integer, is_attribute};
use crate::detect::MemberPath;
use crate::error::{DecodeError, DecodeErrorKind};
use crate::extension;
use crate::json::Kind as JsonKind;
use crate::protocol::a2e_message::{
    self, capability, is_event, is_link_local, is_version_1, operation,
};
use crate::protocol::{Draft, Kind, event_type};
use crate::text::Text;
use crate::time;

/// The members that must not occur twice. Source: docs/protocols/a2e-messages.md §1.3.
const MEMBERS: [MemberPath; 8] = [
    MemberPath::Type,
    MemberPath::Id,
    MemberPath::ReqId,
    MemberPath::Version,
    MemberPath::A2e,
    MemberPath::SessionId,
    MemberPath::OwnAgentId,
    MemberPath::OwnTopic,
];

/// The members that can name the object of a request: the first non-empty string becomes `a2eobject`.
const OBJECTS: [MemberPath; 12] = [
    MemberPath::ToolName,
    MemberPath::Name,
    MemberPath::ToolkitName,
    MemberPath::ProcId,
    MemberPath::MemoryId,
    MemberPath::EpisodeId,
    MemberPath::EnvName,
    MemberPath::PlanId,
    MemberPath::SubagentId,
    MemberPath::ServerId,
    MemberPath::ChainId,
    MemberPath::ComponentName,
];

impl Parser<'_> {
    pub(super) fn a2e_message(&self) -> Result<Draft, DecodeError> {
        let facts = self.facts;
        facts.refuse_repeated(&MEMBERS)?;
        let ty = self.method(MemberPath::Type)?.unwrap_or_default();
        if self.hint.refuse_link_local && is_link_local(&ty) {
            const RULE: &str = "a message about the connection itself (handshake, ping, pong, shutdown): it is for the \
                                peer at the other end and is not published";
            return Err(self.refused(DecodeErrorKind::LinkLocal, MemberPath::Type, RULE));
        }
        let method = operation(&ty);
        if method.is_empty() {
            const RULE: &str = "a type names an operation before /req or /resp";
            return Err(self.refused(DecodeErrorKind::BadMethod, MemberPath::Type, RULE));
        }
        let version = self.a2e_version()?;
        let id = self.a2e_id()?;
        let req_id = self.attribute(MemberPath::ReqId);
        let kind = a2e_message::kind(&ty, req_id.as_deref().unwrap_or_default());
        let mut draft = Draft::new(kind, event_type("a2e.", &event_name(&ty, kind), ""));
        draft.put(extension::A2A_METHOD, Text::from(method));
        let capability = self
            .attribute(MemberPath::CapabilityName)
            .or_else(|| capability(&ty).map(Text::from_static));
        draft.put_if(extension::A2E_CAPABILITY, capability);
        draft.put_if(extension::SESSION_ID, self.attribute(MemberPath::SessionId));
        draft.put_if(
            extension::CORRELATION_ID,
            self.attribute(MemberPath::CorrelationId),
        );
        self.a2e_routing(&mut draft, id.as_ref(), req_id)?;
        self.a2e_attributes(&mut draft, &ty)?;
        draft.put(extension::A2E_TYPE, ty);
        draft.event.0.id = id.unwrap_or_default();
        draft.event.0.time = self.a2e_time();
        Ok(draft.of_protocol("A2E", Some(version)))
    }

    /// Sets the destination, and the ids that connect requests and answers.
    fn a2e_routing(
        &self,
        draft: &mut Draft,
        id: Option<&Text>,
        req_id: Option<Text>,
    ) -> Result<(), DecodeError> {
        let target = self.target(MemberPath::OwnAgentId)?;
        let topic = self.topic(MemberPath::OwnTopic)?;
        match draft.kind {
            Kind::Request => {
                draft.put_if(extension::COLLABORATION_ID, id.cloned().or(req_id));
                let object = OBJECTS.into_iter().find_map(|path| self.attribute(path));
                draft.put_if(extension::A2E_OBJECT, object);
            }
            Kind::Response | Kind::Stream | Kind::Notification => {
                draft.put_if(extension::COLLABORATION_ID, req_id);
            }
        }
        match draft.kind {
            Kind::Response => draft.put(extension::IS_FINAL, true),
            Kind::Stream => draft.put(extension::IS_FINAL, false),
            Kind::Request | Kind::Notification => {}
        }
        // An answer goes back to where its request came from.
        if topic.is_none() && matches!(draft.kind, Kind::Request | Kind::Notification) {
            draft.put_if(extension::TARGET_AGENT, target);
        }
        draft.event.0.subject = topic;
        Ok(())
    }

    /// Sets the attributes of events and errors.
    fn a2e_attributes(&self, draft: &mut Draft, ty: &str) -> Result<(), DecodeError> {
        if is_event(ty) {
            let word = self.attribute(MemberPath::Kind);
            draft.put(
                extension::A2E_KIND,
                word.unwrap_or(Text::from_static("status")),
            );
            let seq = self.a2e_seq()?;
            draft.put(extension::SEQ, seq.unwrap_or(Text::from_static("0")));
        }
        if ty == "error" {
            draft.put_if(extension::A2E_CODE, self.attribute(MemberPath::Code));
            draft.put_if(extension::RETRYABLE, self.a2e_flag(MemberPath::Retryable));
        }
        Ok(())
    }

    /// `seq` as the integer that the SDK reads; other short texts pass unchanged. Source:
    /// docs/protocols/a2e-messages.md §1.3.
    fn a2e_seq(&self) -> Result<Option<Text>, DecodeError> {
        self.facts.refuse_repeated(&[MemberPath::Seq])?;
        if let Some(flag) = self.facts.flag(MemberPath::Seq) {
            return Ok(Some(Text::from_static(if flag { "1" } else { "0" })));
        }
        let seq = self.scalar(MemberPath::Seq, DecodeErrorKind::BadSeq)?;
        Ok(seq.map(|seq| match integer(seq.trim()) {
            Some(number) => Text::from(number.to_string()),
            None => seq,
        }))
    }

    /// A Boolean, with the coercions of the SDK. Source: docs/protocols/a2e-messages.md §1.3.
    fn a2e_flag(&self, path: MemberPath) -> Option<bool> {
        let of_text = || a2e_message::flag(&self.facts.string(path)?);
        let of_number = || match self.number(path)? {
            0.0 => Some(false),
            1.0 => Some(true),
            _ => None,
        };
        self.facts.flag(path).or_else(of_text).or_else(of_number)
    }

    /// `version` or `a2e`, which must agree, of major version 1. Source: docs/protocols/a2e-messages.md §1.1 and §6.
    fn a2e_version(&self) -> Result<Text, DecodeError> {
        let text = |path| match self.facts.text(path) {
            _ if self.facts.non_null(path).is_none() => Ok(None),
            Some(text) if is_version_1(&text) => Ok(Some(text)),
            _ => Err(self
                .facts
                .unsupported(path, "only major version 1 is supported")),
        };
        match (text(MemberPath::Version)?, text(MemberPath::A2e)?) {
            (Some(version), Some(a2e)) if version != a2e => Err(self
                .facts
                .unsupported(MemberPath::A2e, "version and a2e differ")),
            (Some(version), _) | (None, Some(version)) => Ok(version),
            (None, None) => Ok(Text::from_static("1.0")),
        }
    }

    /// The message's own id. A missing id, or one that is not a valid event id, is replaced by a new one. Source:
    /// docs/protocols/a2e-messages.md §1.2 and §8.2.
    fn a2e_id(&self) -> Result<Option<Text>, DecodeError> {
        let id = match self.facts.non_null(MemberPath::Id) {
            None => None,
            Some(span) if span.kind() == JsonKind::String => self.facts.text(MemberPath::Id),
            Some(_) => {
                let message = "an id is a string";
                return Err(self.refused(DecodeErrorKind::BadId, MemberPath::Id, message));
            }
        };
        let id = id.filter(|id| is_attribute(id));
        if id.is_none() && self.hint.strict_ids {
            let message = "a message without an id that can be answered";
            return Err(self.refused(DecodeErrorKind::MissingId, MemberPath::Id, message));
        }
        Ok(id)
    }

    fn a2e_time(&self) -> Option<Text> {
        let seconds = self.number(MemberPath::Ts)?;
        time::of_seconds(seconds)
            .filter(|_| seconds > 0.0)
            .map(time::with_z)
    }
}

/// The type string from which the event type is made. The SDK writes an answer to `mcp/sample/req` with the type of its
/// request; the event type ends in `resp` as for every answer. Source: docs/protocols/a2e-messages.md §F10.
fn event_name(ty: &Text, kind: Kind) -> Text {
    match (kind, ty.strip_suffix("/req")) {
        (Kind::Response, Some(operation)) => Text::from(format!("{operation}/resp")),
        _ => ty.clone(),
    }
}
