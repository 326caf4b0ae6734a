//! What one JSON object is: one pass that notes the members that decide, then the ordered rules.
//!
//! The pass never stops at a member that is wrong for a family, since only the rules know the family: it notes where
//! the member stands and of which type it is. Rules look at top-level members only, never at text inside strings.
//!
//! Source: `detection` section 2.

use crate::error::{DecodeError, DecodeErrorKind};
use crate::json::{Kind, Reader, Span};
use crate::protocol::Family;
use crate::protocol::dialect::{ParamsMarks, Version};

/// Top-level members that decide something for some family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Member {
    Jsonrpc,
    Id,
    Method,
    Params,
    Result,
    Error,
    Protocol,
    MessageType,
    SourceAgent,
    TargetAgent,
    Metadata,
    Specversion,
    Source,
    Type,
}

/// How many [`Member`]s there are.
const MEMBERS: usize = 14;

impl Member {
    fn of(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"jsonrpc" => Self::Jsonrpc,
            b"id" => Self::Id,
            b"method" => Self::Method,
            b"params" => Self::Params,
            b"result" => Self::Result,
            b"error" => Self::Error,
            b"protocol" => Self::Protocol,
            b"messageType" => Self::MessageType,
            b"sourceAgent" => Self::SourceAgent,
            b"targetAgent" => Self::TargetAgent,
            b"metadata" => Self::Metadata,
            b"specversion" => Self::Specversion,
            b"source" => Self::Source,
            b"type" => Self::Type,
            _ => return None,
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Jsonrpc => "jsonrpc",
            Self::Id => "id",
            Self::Method => "method",
            Self::Params => "params",
            Self::Result => "result",
            Self::Error => "error",
            Self::Protocol => "protocol",
            Self::MessageType => "messageType",
            Self::SourceAgent => "sourceAgent",
            Self::TargetAgent => "targetAgent",
            Self::Metadata => "metadata",
            Self::Specversion => "specversion",
            Self::Source => "source",
            Self::Type => "type",
        }
    }

    fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// A nested member of interest, or that it stands there twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Nested {
    #[default]
    Absent,
    Once(Span),
    Twice(Span),
}

impl Nested {
    fn note(&mut self, span: Span) {
        *self = match self {
            Self::Absent => Self::Once(span),
            Self::Once(_) | Self::Twice(_) => Self::Twice(span),
        };
    }
}

/// What the result of a response says about itself. Source: `a2a-http` sections 1, 3.2, 6.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ResultMarks {
    /// `kind`.
    pub(crate) kind: Option<Span>,
    /// `final`, when it is a boolean.
    pub(crate) is_final: Option<bool>,
    /// `status.state`, of the result itself or of the member that names its type in A2A 1.0.
    pub(crate) state: Option<Span>,
    /// The A2A 1.0 member that names the type.
    pub(crate) wrapped: Option<Wrapped>,
    /// A member that only MCP results have.
    pub(crate) mcp: bool,
}

/// The types of an A2A 1.0 result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wrapped {
    Task,
    Message,
    StatusUpdate,
    ArtifactUpdate,
}

/// What one pass over an object noted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    pub(crate) span: Span,
    members: [Option<Span>; MEMBERS],
    repeated: u32,
    pub(crate) agent_id: Nested,
    pub(crate) topic: Nested,
    pub(crate) seq: Nested,
    pub(crate) params: ParamsMarks,
    pub(crate) result: ResultMarks,
    pub(crate) error_code: Option<Span>,
    pub(crate) error_message: Option<Span>,
    /// `error.data` is a list, as A2A 1.0 writes it.
    pub(crate) error_data_is_list: bool,
    pub(crate) source_agent_id: Nested,
    pub(crate) target_agent_id: Nested,
    pub(crate) correlation_id: Nested,
}

/// The rule that decided a family, and the member that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Because {
    /// The family.
    pub family: Family,
    /// The rule of `detection` section 2.
    pub rule: u8,
    /// The top-level member that decided.
    pub member: &'static str,
}

// === impl Facts ===

impl Facts {
    /// Reads the value that starts at the reader's place. What is not an object has a span and no facts.
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let nowhere = Span::new(0, 0, Kind::Null);
        let mut facts = Self {
            span: nowhere,
            members: [None; MEMBERS],
            repeated: 0,
            agent_id: Nested::Absent,
            topic: Nested::Absent,
            seq: Nested::Absent,
            params: ParamsMarks::default(),
            result: ResultMarks::default(),
            error_code: None,
            error_message: None,
            error_data_is_list: false,
            source_agent_id: Nested::Absent,
            target_agent_id: Nested::Absent,
            correlation_id: Nested::Absent,
        };
        if reader.kind()? != Kind::Object {
            facts.span = reader.value()?;
            return Ok(facts);
        }
        facts.span = reader.object(|reader, name| {
            let Some(member) = Member::of(name) else {
                return reader.value().map(drop);
            };
            let span = facts.read_member(reader, member)?;
            if let Some(slot) = facts.members.get_mut(member as usize)
                && slot.replace(span).is_some()
            {
                facts.repeated |= member.bit();
            }
            Ok(())
        })?;
        Ok(facts)
    }

    fn read_member(
        &mut self,
        reader: &mut Reader<'_>,
        member: Member,
    ) -> Result<Span, DecodeError> {
        if reader.kind()? != Kind::Object {
            return reader.value();
        }
        match member {
            Member::Params => self.read_params(reader),
            Member::Result => self.read_result(reader),
            Member::Error => self.read_error(reader),
            Member::SourceAgent => read_one(reader, b"agentId", &mut self.source_agent_id),
            Member::TargetAgent => read_one(reader, b"agentId", &mut self.target_agent_id),
            Member::Metadata => read_one(reader, b"correlationId", &mut self.correlation_id),
            Member::Jsonrpc
            | Member::Id
            | Member::Method
            | Member::Protocol
            | Member::MessageType
            | Member::Specversion
            | Member::Source
            | Member::Type => reader.value(),
        }
    }

    fn read_params(&mut self, reader: &mut Reader<'_>) -> Result<Span, DecodeError> {
        reader.object(|reader, name| {
            let marks = &mut self.params;
            match name {
                b"_agentId" => self.agent_id.note(reader.value()?),
                b"_topic" => self.topic.note(reader.value()?),
                b"_seq" => self.seq.note(reader.value()?),
                b"protocolVersion" => {
                    let number = reader.value()?.kind == Kind::Number;
                    marks.protocol_version = if number {
                        Version::Number
                    } else {
                        Version::Other
                    };
                }
                b"id" => marks.has_id = is_present(reader.value()?),
                b"taskId" => marks.has_task_id = is_present(reader.value()?),
                b"sessionId" => marks.has_session_id = is_present(reader.value()?),
                b"reason" => marks.has_reason = is_present(reader.value()?),
                b"configuration" if reader.kind()? == Kind::Object => {
                    reader.object(|reader, name| {
                        marks.jaf |= matches!(name, b"maxTurns" | b"timeout" | b"priority");
                        reader.value().map(drop)
                    })?;
                }
                b"message" if reader.kind()? == Kind::Object => {
                    reader.object(|reader, name| {
                        let value = reader.value()?;
                        marks.jaf |= name == b"role" && reader.token(value) == b"\"system\"";
                        Ok(())
                    })?;
                }
                _ => {
                    reader.value()?;
                }
            }
            Ok(())
        })
    }

    fn read_result(&mut self, reader: &mut Reader<'_>) -> Result<Span, DecodeError> {
        let marks = &mut self.result;
        reader.object(|reader, name| {
            let wrapped = match name {
                b"task" => Some(Wrapped::Task),
                b"message" => Some(Wrapped::Message),
                b"statusUpdate" => Some(Wrapped::StatusUpdate),
                b"artifactUpdate" => Some(Wrapped::ArtifactUpdate),
                _ => None,
            };
            match name {
                b"status" if reader.kind()? == Kind::Object => {
                    read_state(reader, &mut marks.state)?
                }
                b"kind" => marks.kind = Some(reader.value()?),
                b"final" => {
                    let value = reader.value()?;
                    marks.is_final =
                        (value.kind == Kind::Boolean).then(|| reader.token(value) == b"true");
                }
                b"resultType" | b"content" | b"protocolVersion" => {
                    marks.mcp = true;
                    reader.value()?;
                }
                _ if wrapped.is_some() && reader.kind()? == Kind::Object => {
                    marks.wrapped = wrapped;
                    reader.object(|reader, name| match name {
                        b"status" if reader.kind()? == Kind::Object => {
                            read_state(reader, &mut marks.state)
                        }
                        _ => reader.value().map(drop),
                    })?;
                }
                _ => {
                    reader.value()?;
                }
            }
            Ok(())
        })
    }

    fn read_error(&mut self, reader: &mut Reader<'_>) -> Result<Span, DecodeError> {
        reader.object(|reader, name| {
            let value = reader.value()?;
            match name {
                b"code" => self.error_code = Some(value),
                b"message" => self.error_message = Some(value),
                b"data" => self.error_data_is_list = value.kind == Kind::Array,
                _ => {}
            }
            Ok(())
        })
    }

    pub(crate) fn member(&self, member: Member) -> Option<Span> {
        self.members.get(member as usize).copied().flatten()
    }

    fn is_string(&self, member: Member) -> bool {
        self.member(member)
            .is_some_and(|span| span.kind == Kind::String)
    }

    fn equals(&self, document: &[u8], member: Member, text: &str) -> bool {
        self.member(member).is_some_and(|span| {
            let raw = document.get(span.range()).unwrap_or_default();
            let inside = raw
                .strip_prefix(b"\"")
                .and_then(|rest| rest.strip_suffix(b"\""));
            inside.is_some_and(|inside| {
                inside == text.as_bytes()
                    || (inside.contains(&b'\\')
                        && crate::json::unescape(inside).as_deref() == Some(text))
            })
        })
    }

    /// Refuses the object when one of the members stands there twice.
    pub(crate) fn refuse_repeated(&self, members: &[Member]) -> Result<(), DecodeError> {
        match members
            .iter()
            .find(|member| self.repeated & member.bit() != 0)
        {
            Some(member) => Err(repeated(
                member.name(),
                format!("/{}", member.name()),
                self.member(*member),
            )),
            None => Ok(()),
        }
    }

    /// The family of the object; `None` when no rule matches.
    ///
    /// # Errors
    /// `UnsupportedVersion` where `specversion` or `jsonrpc` names a version that is not spoken.
    pub(crate) fn family(&self, document: &[u8]) -> Result<Option<Because>, DecodeError> {
        if let Some(specversion) = self.member(Member::Specversion) {
            if !self.equals(document, Member::Specversion, crate::event::SPEC_VERSION) {
                return Err(unsupported(
                    specversion,
                    "specversion",
                    "only specversion \"1.0\" is supported",
                ));
            }
            let required = [Member::Id, Member::Source, Member::Type];
            if required.into_iter().all(|member| self.is_string(member)) {
                return Ok(Some(Because {
                    family: Family::CloudEvent,
                    rule: 1,
                    member: "specversion",
                }));
            }
        }
        if let Some(jsonrpc) = self.member(Member::Jsonrpc) {
            if !self.equals(document, Member::Jsonrpc, "2.0") {
                return Err(unsupported(
                    jsonrpc,
                    "jsonrpc",
                    "jsonrpc must be the string \"2.0\"",
                ));
            }
            return Ok(Some(Because {
                family: Family::JsonRpc,
                rule: 2,
                member: "jsonrpc",
            }));
        }
        if self.equals(document, Member::Protocol, "A2A") {
            return Ok(Some(Because {
                family: Family::Legacy,
                rule: 3,
                member: "protocol",
            }));
        }
        Ok(None)
    }
}

pub(crate) fn repeated(name: &str, pointer: String, span: Option<Span>) -> DecodeError {
    let offset = span.map_or(0, |span| span.start());
    DecodeError::new(
        DecodeErrorKind::DuplicateMember,
        offset,
        format!("the member {name:?} occurs twice"),
    )
    .at(pointer)
}

fn unsupported(span: Span, name: &'static str, message: &'static str) -> DecodeError {
    DecodeError::new(DecodeErrorKind::UnsupportedVersion, span.start(), message)
        .at(format!("/{name}"))
}

fn is_present(span: Span) -> bool {
    span.kind != Kind::Null
}

/// Reads an object for one member.
fn read_one(
    reader: &mut Reader<'_>,
    wanted: &[u8],
    found: &mut Nested,
) -> Result<Span, DecodeError> {
    reader.object(|reader, name| {
        let value = reader.value()?;
        if name == wanted {
            found.note(value);
        }
        Ok(())
    })
}

/// Reads a `status` object for its `state`.
fn read_state(reader: &mut Reader<'_>, state: &mut Option<Span>) -> Result<(), DecodeError> {
    reader.object(|reader, name| {
        let value = reader.value()?;
        if name == b"state" {
            *state = Some(value);
        }
        Ok(())
    })?;
    Ok(())
}
