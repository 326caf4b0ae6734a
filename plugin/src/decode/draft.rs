//! Turns the facts of one object into the draft of its event.

use bytes::Bytes;

use super::a2e_workflow::Lines;
use super::parser::Parser;
use crate::detect::{Detection, MemberPath};
use crate::error::{DecodeError, DecodeErrorKind};
use crate::event::Event;
use crate::format;
use crate::json::BYTE_ORDER_MARK;
use crate::limits::Limits;
use crate::protocol::jsonrpc::JsonRpc;
use crate::protocol::{Draft, Family};

impl Parser<'_> {
    /// The draft of the unit's event. `lines` collects the lines of a workflow, and is cleared by any other unit.
    pub(super) fn draft(
        &self,
        bytes: &Bytes,
        limits: &Limits,
        lines: &mut Option<Lines>,
    ) -> Result<(Detection, Option<JsonRpc>, Draft), DecodeError> {
        let detection = self.family().inspect_err(|_| *lines = None)?;
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

    fn family(&self) -> Result<Detection, DecodeError> {
        let Some(detection) = self.facts.family(self.hint)? else {
            let message = if self.facts.has(MemberPath::Method) {
                "unknown message format: the object has a \"method\" and no \"jsonrpc\":\"2.0\""
            } else {
                "unknown message format: the object has no \"jsonrpc\", \"specversion\", \"a2e\", ... member"
            };
            return Err(self.refused(DecodeErrorKind::Unknown, MemberPath::Root, message));
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
