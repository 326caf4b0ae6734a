//! Decodes A2E workflows from their facts: a document of lines, or a single line. Source:
//! docs/protocols/a2e-workflows.md §11.

use super::parser::Parser;
use crate::detect::{Detection, MemberPath};
use crate::error::{DecodeError, DecodeErrorKind};
use crate::extension;
use crate::hint::Hint;
use crate::json::{Kind as JsonKind, Reader};
use crate::limits::Limits;
use crate::protocol::{Draft, Family, Form, Kind, event_type, is_operation_id};
use crate::text::Text;

/// The agent that executes workflows if neither they nor the binding name one.
const DEFAULT_EXECUTOR: Text = Text::from_static("a2e-executor");

/// The state of the workflow lines read so far.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// How the first of them was detected.
    detection: Option<Detection>,
    execution_id: Option<Text>,
    agent: Option<Text>,
    /// The first fault that refuses the whole workflow.
    pub(super) refusal: Option<DecodeError>,
}

// === impl Lines ===

impl Lines {
    pub(super) fn note(&mut self, parser: &Parser<'_>, detection: Detection) {
        self.detection.get_or_insert(detection);
        if parser.is_begin_line() && self.execution_id.is_none() {
            let id = parser.execution_id().map(|id| self.execution_id = id);
            let agent = parser.executor().map(|agent| self.agent = agent);
            if let Err(error) = id.and(agent) {
                self.refusal.get_or_insert(error);
            }
        }
    }

    /// Refuses the workflow because of a line that may be one of it and cannot be read. `before` is the payload up to
    /// the error; it is read only for the first one, because there may be many.
    pub(super) fn refuse(&mut self, before: &[u8], error: &DecodeError) {
        self.refusal.get_or_insert_with(|| {
            let number = before.split(|byte| *byte == b'\n').count();
            let message = match error.kind() {
                DecodeErrorKind::Unknown => {
                    format!("line {number} of the workflow is neither operationUpdate nor beginExecution")
                }
                _ => format!("line {number} of the workflow: {error}"),
            };
            DecodeError::new(error.kind(), error.offset(), message)
        });
    }

    /// The lines and their detection, if there is at least one of a workflow.
    pub(super) fn into_workflow(self) -> Option<(Self, Detection)> {
        let detection = self.detection?;
        Some((self, detection))
    }

    /// The `collaborationid` of the workflow.
    pub(super) fn collaboration_id(self, hint: &Hint) -> Option<Text> {
        named(self.execution_id, hint)
    }

    /// The event of the whole workflow.
    pub(super) fn draft(self, hint: &Hint) -> Draft {
        let mut draft = request(self.execution_id, self.agent, hint);
        draft.form = Some(Form::Lines);
        draft
    }
}

impl Parser<'_> {
    /// A single line: the begin line requests the execution; a definition is a part of it, and needs a collaboration id
    /// that connects it to the other lines.
    pub(super) fn workflow_line(&self) -> Result<Draft, DecodeError> {
        if self.is_begin_line() {
            return Ok(request(self.execution_id()?, self.executor()?, self.hint));
        }
        let Some(collaboration_id) = self.hint.collaboration_id.clone() else {
            let message = "a single line of a workflow: send the whole workflow as one message, or its lines with a header collaborationid to a binding with role: workflows";
            return Err(self.refused(
                DecodeErrorKind::MissingCollaborationId,
                MemberPath::Root,
                message,
            ));
        };
        let ty = event_type("a2e.", "operation.update", "");
        let mut draft = Draft::new(Kind::Notification, ty);
        draft.put(extension::A2A_METHOD, Text::from_static("operationUpdate"));
        draft.put(extension::COLLABORATION_ID, collaboration_id);
        draft.put(extension::TARGET_AGENT, executor_of(None, self.hint));
        Ok(of_workflow(draft))
    }

    /// Whether the object is detected as a line of a workflow, also if it is refused.
    pub(super) fn is_workflow_line(&self) -> bool {
        let detected = self.facts.family(self.hint).ok().flatten();
        detected.is_some_and(|detection| detection.family == Family::A2eWorkflow)
    }

    /// Whether the object, which no rule of detection matches, is a line of the wrapped dialect that executors ignore.
    /// Source: docs/protocols/a2e-workflows.md §1.
    #[cold]
    pub(super) fn is_ignored_line(&self) -> bool {
        if self.facts.has(MemberPath::Type) {
            return false;
        }
        let limits = Limits {
            max_members: u32::MAX,
            ..Limits::default()
        };
        let line = self.facts.token(self.facts.span);
        let mut is_ignored = false;
        let read = Reader::new(line.as_bytes(), &limits).object(|reader, name| {
            let is_object = reader.value()?.kind() == JsonKind::Object;
            is_ignored |= is_object && name == b"dataModelUpdate";
            Ok(())
        });
        read.is_ok() && is_ignored
    }

    /// Without a `type`, the member that is an object decides, a definition first, as in detection.
    fn is_begin_line(&self) -> bool {
        let is_object = |path| self.facts.is(path, JsonKind::Object);
        self.facts.equals(MemberPath::Type, "beginExecution")
            || (!self.facts.has(MemberPath::Type)
                && is_object(MemberPath::BeginExecution)
                && !is_object(MemberPath::OperationUpdate))
    }

    /// The id of the execution. The executor refuses an invalid one.
    fn execution_id(&self) -> Result<Option<Text>, DecodeError> {
        let paths = [MemberPath::ExecutionId, MemberPath::WrappedExecutionId];
        self.facts.refuse_repeated(&paths)?;
        let id = paths.into_iter().find_map(|path| self.facts.text(path));
        Ok(id.filter(|id| is_operation_id(id)))
    }

    fn executor(&self) -> Result<Option<Text>, DecodeError> {
        match self.target(MemberPath::OwnAgentId)? {
            Some(agent) => Ok(Some(agent)),
            None => self.target(MemberPath::WrappedAgentId),
        }
    }
}

fn request(execution_id: Option<Text>, agent: Option<Text>, hint: &Hint) -> Draft {
    let (name, method) = if hint.validate_workflows {
        ("workflow.validate", "workflows/validate")
    } else {
        ("workflow.execute", "workflows/execute")
    };
    let mut draft = Draft::new(Kind::Request, event_type("a2e.", name, ".req"));
    draft.event.0.id = execution_id.clone().unwrap_or_default();
    draft.put(extension::A2A_METHOD, Text::from_static(method));
    draft.put_if(extension::COLLABORATION_ID, named(execution_id, hint));
    draft.put(extension::TARGET_AGENT, executor_of(agent, hint));
    of_workflow(draft)
}

/// The `collaborationid` of a workflow.
fn named(execution_id: Option<Text>, hint: &Hint) -> Option<Text> {
    execution_id.or_else(|| hint.collaboration_id.clone())
}

fn of_workflow(draft: Draft) -> Draft {
    draft.of_protocol("A2E-EXEC", Some(Text::from_static("1.0")))
}

fn executor_of(agent: Option<Text>, hint: &Hint) -> Text {
    agent
        .or_else(|| hint.executor.clone())
        .unwrap_or(DEFAULT_EXECUTOR)
}
