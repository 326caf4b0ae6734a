//! Turns the facts of one object into the draft of its event.

use std::borrow::Cow;

use bytes::Bytes;

use super::RefusedSender;
use super::a2e_workflow::Lines;
use super::parser::Parser;
use crate::detect::{Detection, MemberPath, Shape};
use crate::error::{DecodeError, DecodeErrorKind};
use crate::event::Event;
use crate::format;
use crate::json::BYTE_ORDER_MARK;
use crate::limits::Limits;
use crate::protocol::a2e_message;
use crate::protocol::jsonrpc::JsonRpc;
use crate::protocol::legacy::Act;
use crate::protocol::{Draft, Family, Kind};

impl Parser<'_> {
    /// The draft of the unit's event. `lines` collects the lines of a workflow, and is cleared by a unit of another
    /// family.
    pub(super) fn draft(
        &self,
        bytes: &Bytes,
        limits: &Limits,
        lines: &mut Option<Lines>,
    ) -> Result<(Detection, Option<JsonRpc>, Draft), DecodeError> {
        let detection = self.family()?;
        if detection.family != Family::A2eWorkflow {
            *lines = None;
        }
        let draft = match detection.family {
            Family::CloudEvent => {
                let event = self.cloud_event(bytes, limits)?;
                return Ok((detection, None, Draft::of_event(event)));
            }
            Family::JsonRpc => {
                let (json_rpc, draft) = self.json_rpc()?;
                return Ok((detection, Some(json_rpc), draft));
            }
            Family::Legacy => self.legacy()?,
            Family::A2eMessage => self.a2e_message()?,
            Family::A2eWorkflow => {
                if let Some(lines) = lines {
                    lines.note(self, detection);
                }
                self.workflow_line()?
            }
            Family::E2a => self.e2a()?,
        };
        Ok((detection, None, draft))
    }

    /// The sender of a refused message, if its family is recognised and has errors of its own.
    pub(super) fn sender(&self) -> Option<Box<RefusedSender>> {
        let text = |path| self.facts.text(path).unwrap_or_default();
        let family = match self.facts.family(self.hint) {
            Ok(detection) => detection?.family,
            // Another version of E2A.
            Err(error) if error.pointer() == "/protocol_version" => Family::E2a,
            Err(_) => return None,
        };
        let (id, expects_answer) = match family {
            Family::A2eMessage => {
                let ty = text(MemberPath::Type);
                let kind = a2e_message::kind(&ty, &text(MemberPath::ReqId));
                let is_answer = matches!(kind, Kind::Response | Kind::Stream);
                (
                    MemberPath::Id,
                    !is_answer && ty != "error" && ty != "shutdown",
                )
            }
            Family::E2a => {
                let shape = self.facts.e2a(self.hint);
                let is_answer = match shape {
                    Ok(shape) => matches!(
                        shape,
                        Some((
                            Shape::Response | Shape::LegacyResponse | Shape::LegacyChunk,
                            _
                        ))
                    ),
                    Err(_) => self.facts.has(MemberPath::ResponseKind),
                };
                (MemberPath::RequestId, !is_answer)
            }
            Family::Legacy => {
                let act = Act::from_message_type(&text(MemberPath::MessageType));
                let expects_answer = act.is_none_or(Act::is_request);
                (MemberPath::MetadataCorrelationId, expects_answer)
            }
            Family::JsonRpc | Family::CloudEvent | Family::A2eWorkflow => return None,
        };
        let is_single = self.facts.refuse_repeated(&[id]).is_ok();
        let id = is_single.then(|| self.attribute(id)).flatten();
        Some(Box::new(RefusedSender {
            family,
            id,
            expects_answer,
        }))
    }

    fn family(&self) -> Result<Detection, DecodeError> {
        let Some(detection) = self.facts.family(self.hint)? else {
            return Err(self.unknown());
        };
        match self.hint.family {
            Some(declared) if self.hint.strict && declared != detection.family => {
                let message = format!(
                    "this binding accepts only {}, but the payload is {}",
                    declared.as_str(),
                    detection.family.as_str()
                );
                Err(self.refused(DecodeErrorKind::WrongFamily, MemberPath::Root, message))
            }
            _ => Ok(detection),
        }
    }

    /// The refusal of an object of no family, with the member that it lacks.
    #[cold]
    fn unknown(&self) -> DecodeError {
        if !self.facts.has(MemberPath::Specversion) && self.facts.is_a2e_message_without_id() {
            const RULE: &str = "unknown message format: the object looks like an A2E message, but has no string \"id\"";
            return self.refused(DecodeErrorKind::Unknown, MemberPath::Id, RULE);
        }
        let is_missing = |path: &MemberPath| self.facts.text(*path).is_none();
        let message = if self.facts.has(MemberPath::Specversion) {
            let of_event = [MemberPath::Id, MemberPath::Source, MemberPath::Type];
            let missing = of_event.iter().find(|path| is_missing(path));
            format!(
                "unknown message format: the object has a \"specversion\", but no string {:?}, so it is no CloudEvent",
                missing.map_or("type", |path| path.name())
            )
            .into()
        } else if self.facts.has(MemberPath::Method) {
            Cow::Borrowed(
                "unknown message format: the object has a \"method\" and no \"jsonrpc\":\"2.0\"",
            )
        } else {
            Cow::Borrowed(
                "unknown message format: the object has no \"jsonrpc\", \"specversion\", \"a2e\", ... member",
            )
        };
        self.refused(DecodeErrorKind::Unknown, MemberPath::Root, message)
    }

    fn cloud_event(&self, bytes: &Bytes, limits: &Limits) -> Result<Event, DecodeError> {
        let trimmed = if bytes.starts_with(BYTE_ORDER_MARK) {
            bytes.slice(BYTE_ORDER_MARK.len()..)
        } else {
            bytes.clone()
        };
        format::read(&trimmed, limits).map_err(|error| {
            let pointer = match error.attribute() {
                "" => String::new(),
                attribute => format!("/{attribute}"),
            };
            let at = self.facts.span.start();
            DecodeError::new(DecodeErrorKind::BadCloudEvent, at, error.to_string()).at(pointer)
        })
    }
}
