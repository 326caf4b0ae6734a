//! The answers and progress messages of the executor, as events.
//!
//! Source: docs/protocols/a2e-workflows.md §11.

use a2abus_executor::{Failure, FailureCode, Json, Progress, Record};
use a2abus_plugin::{Data, Event, EventError, Kind, Text, extension};
use bytes::Bytes;

use super::ask::{Action, Job};
use super::client::{AnswerForm, WorkflowClient, identity};
use super::refused::WorkflowRefusal;

/// Creates the events of the executor.
#[derive(Debug, Clone)]
pub(super) struct EventFactory {
    /// The `source`.
    pub(super) source: Text,
    /// The `sourceagent`: the name that requests are addressed to.
    pub(super) agent: Text,
    /// The prefix of every `type`.
    pub(super) type_prefix: Text,
    /// The agent as which everything runs, if not as the requester.
    pub(super) run_as: Option<Text>,
}

/// A progress message of a running execution.
#[derive(Debug)]
pub(super) enum ProgressMessage {
    /// It has started.
    Started {
        execution_id: Text,
        operations: usize,
    },
    /// The progress of an operation.
    Operation {
        execution_id: Text,
        seq: i32,
        progress: Box<Progress>,
    },
}

/// The answer to a request.
#[derive(Debug)]
pub(super) struct WorkflowAnswer {
    /// The id of the execution, or the one that the workflow names; `None` if there is none.
    pub(super) execution_id: Option<Text>,
    /// The number of events before it.
    pub(super) seq: i32,
    pub(super) content: Content,
}

/// The outcome of a request.
#[derive(Debug)]
pub(super) enum Disposition {
    /// It has an answer.
    Answered(WorkflowAnswer),
    /// The bridge shut down before its turn.
    GivenUp,
}

#[derive(Debug)]
pub(super) enum Content {
    /// A result: the JSON text, and a short replacement if it is too large for the bus.
    Result {
        whole: Bytes,
        reduced: Bytes,
        /// Distinguishes it from other results.
        digest: Text,
    },
    /// Why there is no result.
    Refused(WorkflowRefusal),
}

/// Whether the complete answer is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerSize {
    Whole,
    /// Without the results.
    Reduced,
}

// === impl Content ===

impl Content {
    /// A result and its replacement. Hashes the whole result, which may be large.
    fn result(whole: String, reduced: String) -> Self {
        Self::Result {
            digest: identity([whole.as_bytes()]),
            whole: whole.into(),
            reduced: reduced.into(),
        }
    }

    /// A hash of the content.
    fn digest(&self) -> Text {
        match self {
            Self::Result { digest, .. } => digest.clone(),
            Self::Refused(refused) => identity([refused.error.to_string().as_bytes()]),
        }
    }
}

// === impl WorkflowAnswer ===

impl WorkflowAnswer {
    /// The answer when nothing was executed.
    pub(super) fn refused(refused: WorkflowRefusal) -> Self {
        Self {
            execution_id: None,
            seq: 0,
            content: Content::Refused(refused),
        }
    }

    /// The answer when nothing was executed because of this failure.
    pub(super) fn failed(failure: &Failure) -> Self {
        Self::refused(WorkflowRefusal::failure(failure))
    }

    /// Adds the execution id.
    pub(super) fn of(self, execution_id: &Text) -> Self {
        Self {
            execution_id: Some(execution_id.clone()),
            ..self
        }
    }

    /// Adds the `executionId` of the workflow, if nothing was executed and the client has named one.
    pub(super) fn of_request(self, job: &Job) -> Self {
        if self.execution_id.is_some() || matches!(self.content, Content::Result { .. }) {
            return self;
        }
        Self {
            execution_id: job.named().cloned(),
            ..self
        }
    }

    /// The result of a validation.
    pub(super) fn report(report: &Json) -> Self {
        let whole = report.to_string();
        let reduced = Json::object([
            ("valid", report.get("valid").cloned().unwrap_or_default()),
            (
                "error",
                too_large(
                    whole.len(),
                    "validate it with POST /api/v1/workflows/validate",
                ),
            ),
        ]);
        Self {
            execution_id: None,
            seq: 0,
            content: Content::result(whole, reduced.to_string()),
        }
    }

    /// The answer of an ended execution, after `seq` events.
    pub(super) fn ended(record: &Record, seq: i32) -> Self {
        let id = record.execution_id();
        let whole = record.answer().to_string();
        let error = record.not_stored().cloned().unwrap_or_else(|| {
            let cure = format!(
                "let the workflow return less, or let the bus accept larger messages; an agent with an API key gets the record, with the results if they could be stored, from GET /api/v1/executions/{id}"
            );
            too_large(whole.len(), &cure)
        });
        let reduced = Json::object([
            ("execution_id", Json::from(id.clone())),
            ("status", record.status().as_str().into()),
            ("error", error),
        ]);
        Self {
            execution_id: Some(id.clone()),
            seq,
            content: Content::result(whole, reduced.to_string()),
        }
    }

    /// The answer of a workflow that was cancelled before all its lines had arrived.
    pub(super) fn cancelled(job: &Job) -> Self {
        let execution_id = job.named();
        let failure = Failure::new(
            FailureCode::Cancelled,
            "cancelled before all its lines had arrived",
        );
        let result = Json::object([
            ("execution_id", Json::from(execution_id.cloned())),
            ("status", "cancelled".into()),
            ("results", Json::object::<Text>([])),
            ("error", failure.to_value()),
        ]);
        let whole = result.to_string();
        Self {
            execution_id: execution_id.cloned(),
            seq: 0,
            content: Content::result(whole.clone(), whole),
        }
    }
}

fn too_large(bytes: usize, suggestion: &str) -> Json {
    let message = format!("the answer of {bytes} bytes is too large for the bus");
    WorkflowRefusal::new(0, "DataError", "response_too_large", message, suggestion).error
}

// === impl EventFactory ===

impl EventFactory {
    /// The event of a progress message.
    pub(super) fn progress(
        &self,
        client: &WorkflowClient,
        progress: &ProgressMessage,
    ) -> Result<Event, EventError> {
        let (name, execution_id, seq, value) = match progress {
            ProgressMessage::Started {
                execution_id,
                operations,
            } => {
                let members = [
                    ("execution_id", Json::from(execution_id.clone())),
                    ("status", "running".into()),
                    ("operations", (*operations).into()),
                ];
                ("execution.started", execution_id, 0, Json::object(members))
            }
            ProgressMessage::Operation {
                execution_id,
                seq,
                progress,
            } => {
                let id = (
                    Text::from_static("execution_id"),
                    execution_id.clone().into(),
                );
                let value = progress.to_value();
                let rest = value.as_object().into_iter().flatten();
                let rest = rest.map(|(name, value)| (name.clone(), value.clone()));
                let value = Json::object(std::iter::once(id).chain(rest));
                ("operation.progress", execution_id, *seq, value)
            }
        };
        let ty = format!("{}a2e.{name}", self.type_prefix);
        let mut event = self.event(crate::clock::new_event_id().into(), ty.into(), client)?;
        event.set(extension::MCP_TYPE, Kind::Notification.as_str())?;
        event.set(extension::COLLABORATION_ID, execution_id.clone())?;
        self.sign_as_executor(&mut event, seq)?;
        event.set_data(Some(Data::from(Bytes::from(value.to_string()))));
        Ok(event)
    }

    /// The event of an answer. Its id is derived from the answer, so consumers can drop duplicates by source and id
    /// without losing other answers.
    pub(super) fn answer(
        &self,
        client: &WorkflowClient,
        action: Action,
        answer: &WorkflowAnswer,
        size: AnswerSize,
    ) -> Result<Event, EventError> {
        let id = identity([
            client.identity.as_bytes(),
            answer.content.digest().as_bytes(),
        ]);
        let ty = match client.form {
            AnswerForm::Events => format!("{}a2e.execution.resp", self.type_prefix),
            AnswerForm::JsonRpc(_) => format!("{}common.response", self.type_prefix),
        };
        let mut event = self.event(id, ty.into(), client)?;
        event.set(extension::MCP_TYPE, Kind::Response.as_str())?;
        let body = match &client.form {
            AnswerForm::Events => {
                event.set(extension::A2A_METHOD, action.method())?;
                let execution = answer.execution_id.as_ref();
                let correlation = execution.or(client.collaboration_id.as_ref());
                let correlation = correlation.unwrap_or(&client.identity);
                event.set(extension::COLLABORATION_ID, correlation.clone())?;
                self.sign_as_executor(&mut event, answer.seq)?;
                as_data(answer, execution.or(client.named()), size)
            }
            AnswerForm::JsonRpc(token) => {
                event.set(extension::PROTOCOL, "A2A")?;
                event.set(extension::PROTOCOL_VERSION, "2.0")?;
                event.set(extension::IS_FINAL, true)?;
                let id = || serde_json::from_str(token).unwrap_or_else(|_| token.clone());
                let id = client.collaboration_id.clone().unwrap_or_else(id);
                event.set(extension::COLLABORATION_ID, id)?;
                if let Content::Refused(refused) = &answer.content {
                    event.set(extension::RPC_ERROR_CODE, refused.rpc_code)?;
                }
                as_json_rpc(answer, token, size)
            }
        };
        event.set_data(Some(Data::from(body)));
        Ok(event)
    }

    /// An event for the client.
    fn event(&self, id: Text, ty: Text, client: &WorkflowClient) -> Result<Event, EventError> {
        let mut event = Event::new(id, self.source.clone(), ty)?;
        event.set("time", crate::clock::rfc3339(crate::clock::now()))?;
        event.set("datacontenttype", "application/json")?;
        event.set(extension::SOURCE_AGENT, self.agent.clone())?;
        if let Some(requester) = client.requester.as_ref().or(self.run_as.as_ref()) {
            event.set(extension::TARGET_AGENT, requester.clone())?;
        }
        if let Some(call) = &client.call_id {
            event.set(extension::CALL_ID, call.clone())?;
        }
        for (name, value) in &client.trace {
            event.set(name, value.clone())?;
        }
        Ok(event)
    }

    fn sign_as_executor(&self, event: &mut Event, seq: i32) -> Result<(), EventError> {
        event.set(extension::PROTOCOL, "A2E-EXEC")?;
        event.set(extension::PROTOCOL_VERSION, "1.0")?;
        event.set(extension::SEQ, seq)
    }
}

fn as_data(answer: &WorkflowAnswer, execution_id: Option<&Text>, size: AnswerSize) -> Bytes {
    match (&answer.content, size) {
        (Content::Result { whole, .. }, AnswerSize::Whole) => whole.clone(),
        (Content::Result { reduced, .. }, AnswerSize::Reduced) => reduced.clone(),
        (Content::Refused(refused), _) => {
            let members = [
                ("execution_id", Json::from(execution_id.cloned())),
                ("status", "failed".into()),
                ("error", refused.error.clone()),
            ];
            Json::object(members).to_string().into()
        }
    }
}

/// A JSON-RPC response to the request with this id.
fn as_json_rpc(answer: &WorkflowAnswer, id: &Text, size: AnswerSize) -> Bytes {
    let (name, body) = match (&answer.content, size) {
        (Content::Result { whole, .. }, AnswerSize::Whole) => ("result", whole.clone()),
        (Content::Result { reduced, .. }, AnswerSize::Reduced) => ("result", reduced.clone()),
        (Content::Refused(refused), _) => {
            let message = refused.error.get("message").cloned().unwrap_or_default();
            let members = [
                ("code", Json::from(i64::from(refused.rpc_code))),
                ("message", message),
                ("data", refused.error.clone()),
            ];
            ("error", Json::object(members).to_string().into())
        }
    };
    let mut text = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"{name}\":").into_bytes();
    text.extend_from_slice(&body);
    text.push(b'}');
    text.into()
}
