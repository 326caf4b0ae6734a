//! Reads requests to the executor from events.
//!
//! Source: docs/protocols/a2e-workflows.md §11.

use std::borrow::Cow;

use a2abus_executor::{Json, Object, OnError, Request};
use a2abus_models::a2e_workflow::{Document, Strictness, WorkflowLimits};
use a2abus_plugin::protocol::jsonrpc::{Id, code};
use a2abus_plugin::{Event, Family, Kind, Mapped, Text, extension, kind_of_event};
use bytes::Bytes;

use super::client::{AnswerForm, Envelope, Progress, WorkflowClient, identity, identity_of_call};
use super::refused::{OTHER_AGENT, WorkflowRefusal};
use crate::calls::reply_address;
use crate::pipeline::claims::is_of_http_caller;

/// The request in an event.
#[derive(Debug)]
pub(super) enum Ask {
    /// Execute or validate a workflow.
    Run(Box<Job>),
    /// Store a line of a workflow until the other lines have arrived.
    Line(Box<WorkflowClient>, Bytes),
    /// Cancel the requests with this name by the same requester.
    Cancel(Cancel),
    /// Refuse the request with this reason.
    Refuse(Box<WorkflowClient>, WorkflowRefusal),
    /// Refuse the request because the binding does not allow its reply address.
    Forbidden(Box<WorkflowClient>, reply_address::Refused),
}

/// A cancel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Cancel {
    pub(super) requester: Option<Text>,
    /// The id of the execution, or of the call that requested it.
    pub(super) name: Text,
}

/// A workflow, and the action for it.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) action: Action,
    /// The workflow and its options. Everything that is known from the client is added when it is executed.
    pub(super) request: Request,
    pub(super) client: WorkflowClient,
    /// Whether it consists only of the `beginExecution` line, so other lines may belong to it.
    pub(super) is_begin_line: bool,
    /// The `executionId` in the workflow, if known.
    pub(super) execution_id: Option<Text>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Execute,
    Validate,
}

/// Why an event is not a request to the executor: the reason code of its dead letter, and an explanation.
#[derive(Debug)]
pub(super) struct NotAWorkflow {
    pub(super) code: &'static str,
    pub(super) detail: Cow<'static, str>,
}

/// A message that is not a workflow request, and the client that waits for an answer to it.
#[derive(Debug)]
pub(super) struct Rejected {
    pub(super) why: NotAWorkflow,
    pub(super) client: Option<Box<WorkflowClient>>,
}

/// At most this many characters of a wrong name are shown.
const MAX_SHOWN: usize = 100;

const EXECUTE: &str = "workflows/execute";
const VALIDATE: &str = "workflows/validate";

/// The method of an event without `method`, by the suffix of its type.
const TYPES: [(&str, &str); 4] = [
    ("a2e.workflow.execute.req", EXECUTE),
    ("a2e.workflow.validate.req", VALIDATE),
    ("a2e.operation.update", "operationUpdate"),
    (CANCEL_TYPE, CANCEL_TYPE),
];
const CANCEL_TYPE: &str = "a2e.execution.cancel";

impl NotAWorkflow {
    const ANSWER: Self = Self {
        code: "not_a_workflow",
        detail: Cow::Borrowed(
            "expected a workflow request on this topic, but this message is an answer",
        ),
    };
    const OTHER: Self = Self {
        code: "not_a_workflow",
        detail: Cow::Borrowed("expected a workflow request on this topic"),
    };
    const RPC: Self = Self {
        code: "rpc_not_permitted",
        detail: Cow::Borrowed(
            "callers of POST /rpc send no key, so they may not cancel executions: set workflows.rpc: true to allow it",
        ),
    };
    const NO_ID: Self = Self {
        code: "not_a_request",
        detail: Cow::Borrowed("a call without an id cannot be answered: add an id"),
    };
    const NO_COLLABORATION: Self = Self {
        code: "missing_collaborationid",
        detail: Cow::Borrowed(
            "a single line of a workflow: send the whole workflow, or give its lines a collaborationid",
        ),
    };
    const NO_NAME: Self = Self {
        code: "missing_collaborationid",
        detail: Cow::Borrowed(
            "a cancel needs the collaborationid of the execution, or the callid of its request",
        ),
    };

    /// The request names an agent that is not the executor.
    pub(super) fn other_agent(target: &str, executor: &str) -> Self {
        let target: String = target.chars().take(MAX_SHOWN).collect();
        Self {
            code: OTHER_AGENT,
            detail: Cow::Owned(format!(
                "its targetagent (its _agentId, in a workflow or in JSON-RPC) is {target:?}, and the executor is {executor:?}"
            )),
        }
    }
}

// === impl Rejected ===

impl Rejected {
    /// Rejects an event. `inside` describes its data.
    pub(super) fn new(
        why: NotAWorkflow,
        event: &Event,
        inside: Option<&Mapped>,
        envelope: Envelope<'_>,
    ) -> Self {
        let mut client = WorkflowClient::waiting(event, envelope);
        let id = inside.and_then(|mapped| mapped.json_rpc.as_ref()?.id.as_ref());
        if let (Some(client), Some(id)) = (&mut client, id) {
            client.form = AnswerForm::JsonRpc(id.token().clone());
        }
        Self { why, client }
    }
}

// === impl Ask ===

impl Ask {
    /// Reads the request in `event`. `inside` describes its data, if they are a message themselves.
    pub(super) fn of(
        event: &Event,
        inside: Option<&Mapped>,
        envelope: Envelope<'_>,
    ) -> Result<Self, NotAWorkflow> {
        let expiry = event.extension_text(extension::EXPIRY_TIME);
        let ask = Self::read(event, inside, envelope)?;
        if let Some(client) = ask.client()
            && let Some(refused) = client.address_refused.clone()
        {
            return Ok(Self::Forbidden(Box::new(client.clone()), refused));
        }
        if !envelope.rpc && is_of_http_caller(event.source()) {
            let client = ask.client().ok_or(NotAWorkflow::RPC)?;
            return Ok(Self::Refuse(
                Box::new(client.clone()),
                WorkflowRefusal::rpc(),
            ));
        }
        match ask {
            // Refuse an invalid deadline rather than run without one.
            Self::Run(job) if job.client.deadline.is_none() && expiry.is_some() => {
                let refused = WorkflowRefusal::new(
                    code::INVALID_PARAMS,
                    "ValidationError",
                    "invalid_request",
                    "expirytime must be an RFC 3339 time".to_owned(),
                    "send a time such as 2030-01-31T12:00:00Z, or leave it out",
                );
                Ok(Self::Refuse(Box::new(job.client), refused))
            }
            ask => Ok(ask),
        }
    }

    /// The client that waits for an answer.
    fn client(&self) -> Option<&WorkflowClient> {
        match self {
            Self::Run(job) => Some(&job.client),
            Self::Line(client, _) | Self::Refuse(client, _) | Self::Forbidden(client, _) => {
                Some(client)
            }
            Self::Cancel(_) => None,
        }
    }

    fn read(
        event: &Event,
        inside: Option<&Mapped>,
        envelope: Envelope<'_>,
    ) -> Result<Self, NotAWorkflow> {
        if matches!(kind_of_event(event), Kind::Response | Kind::Stream) {
            return Err(NotAWorkflow::ANSWER);
        }
        let mut client = WorkflowClient::of(event, envelope);
        if let Some(mapped) = inside
            && let Some(message) = mapped.json_rpc.as_ref().filter(|message| message.is_call())
        {
            client.identity = identity_of_call(event, envelope.place);
            return call(client, message.id.as_ref(), &mapped.bytes);
        }
        let workflow = inside.filter(|mapped| mapped.detection.family == Family::A2eWorkflow);
        let named = |mapped: &Mapped| {
            mapped
                .event
                .extension_text(extension::COLLABORATION_ID)
                .cloned()
        };
        let execution_id = workflow.and_then(named);
        client.collaboration_id = client.collaboration_id.or_else(|| execution_id.clone());
        let method = method(event).or_else(|| method(&workflow?.event));
        let data = event.body();
        match method.as_deref() {
            // The data may also be the body of a REST request.
            Some(EXECUTE) if workflow.is_none() => Ok(Job::of_data(Action::Execute, client, data)),
            Some(VALIDATE) if workflow.is_none() => {
                Ok(Job::of_data(Action::Validate, client, data))
            }
            Some(EXECUTE) => Ok(Job::of_lines(Action::Execute, client, data, execution_id)),
            Some(VALIDATE) => Ok(Job::of_lines(Action::Validate, client, data, execution_id)),
            Some("operationUpdate") if client.collaboration_id.is_none() => {
                Err(NotAWorkflow::NO_COLLABORATION)
            }
            Some("operationUpdate") => Ok(Self::Line(Box::new(client), event.body())),
            Some(CANCEL_TYPE) => {
                let name = client.collaboration_id.or(client.call_id);
                Ok(Self::Cancel(Cancel {
                    requester: client.requester,
                    name: name.ok_or(NotAWorkflow::NO_NAME)?,
                }))
            }
            _ => Err(NotAWorkflow::OTHER),
        }
    }
}

/// The method of an event, from its attribute or its type.
fn method(event: &Event) -> Option<Text> {
    let named = event.extension_text(extension::A2A_METHOD).cloned();
    named.or_else(|| {
        let of_type = TYPES.iter().find(|(end, _)| event.ty().ends_with(end));
        of_type.map(|(_, method)| Text::from_static(method))
    })
}

/// Whether the data is a single `beginExecution` line.
fn is_begin_line(data: &[u8]) -> bool {
    let line = data.trim_ascii();
    if line.contains(&b'\n') {
        return false;
    }
    let Ok(value) = a2abus_executor::parse(line) else {
        return false;
    };
    match value.get("type") {
        Some(name) => name.as_str() == Some("beginExecution"),
        None => value.get("beginExecution").is_some() && value.get("operationUpdate").is_none(),
    }
}

/// Reads a JSON-RPC call.
fn call(mut client: WorkflowClient, id: Option<&Id>, bytes: &Bytes) -> Result<Ask, NotAWorkflow> {
    let Ok(value) = a2abus_executor::parse(bytes) else {
        return Err(NotAWorkflow::OTHER);
    };
    let method = value
        .get("method")
        .and_then(Json::as_str)
        .unwrap_or_default();
    let params = value.get("params").cloned().unwrap_or_default();
    if let Some(id) = id {
        client.form = AnswerForm::JsonRpc(id.token().clone());
        if matches!(client.progress, Progress::BesideTheAnswer) {
            // The caller would mistake progress for the response.
            client.progress = Progress::Nowhere;
        }
    }
    match (method, id) {
        ("notifications/cancelled", None) => {
            let name = params.get("requestId").and_then(name_of_call);
            Ok(Ask::Cancel(Cancel {
                requester: client.requester,
                name: name.ok_or(NotAWorkflow::OTHER)?,
            }))
        }
        (EXECUTE, Some(_)) => Ok(Job::of_params(Action::Execute, client, &params)),
        (VALIDATE, Some(_)) => Ok(Job::of_params(Action::Validate, client, &params)),
        (EXECUTE | VALIDATE, None) => Err(NotAWorkflow::NO_ID),
        (_, Some(_)) => {
            let message = format!("the executor knows the methods {EXECUTE} and {VALIDATE}");
            let refused = WorkflowRefusal::new(
                code::METHOD_NOT_FOUND,
                "ValidationError",
                "unknown_method",
                message,
                "call one of these methods",
            );
            Ok(Ask::Refuse(Box::new(client), refused))
        }
        (_, None) => Err(NotAWorkflow::OTHER),
    }
}

/// The name that cancels a call: its id, a string or a number.
fn name_of_call(id: &Json) -> Option<Text> {
    match id {
        Json::String(text) => Some(text.clone()),
        number if number.as_number().is_some() => Some(number.to_string().into()),
        _ => None,
    }
}

// === impl Cancel ===

impl Cancel {
    /// The name under which other replicas find the request of this cancel. It depends on the binding, because a cancel
    /// must not end a request of another binding.
    pub(super) fn shared_name(&self, binding: &str) -> Text {
        let names = [binding, self.name.as_str()].into_iter();
        let names = names.chain(self.requester.as_deref());
        identity(names.map(str::as_bytes))
    }
}

// === impl Action ===

impl Action {
    /// The method of the action.
    pub(super) fn method(self) -> &'static str {
        match self {
            Self::Execute => EXECUTE,
            Self::Validate => VALIDATE,
        }
    }
}

// === impl Job ===

impl Job {
    /// A request to run the data as a workflow.
    fn of_lines(
        action: Action,
        client: WorkflowClient,
        workflow: Bytes,
        execution_id: Option<Text>,
    ) -> Ask {
        let is_begin_line = is_begin_line(&workflow);
        Ask::Run(Box::new(Self {
            action,
            request: Request {
                workflow,
                ..Request::default()
            },
            client,
            is_begin_line,
            execution_id,
        }))
    }

    /// A request from the body of a REST request, or the reason why it is not valid.
    fn of_data(action: Action, client: WorkflowClient, data: Bytes) -> Ask {
        match a2abus_executor::parse(&data) {
            Ok(value) if value.get("workflow").is_some() => Self::of_params(action, client, &value),
            _ => Self::of_lines(action, client, data, None),
        }
    }

    /// A request from the body of a REST request, or from the parameters of a call. Source:
    /// docs/protocols/a2e-workflows.md §10.
    fn of_params(action: Action, client: WorkflowClient, params: &Json) -> Ask {
        let refuse = |client, message: &str| {
            let refused =
                WorkflowRefusal::request(code::INVALID_PARAMS, "invalid_request", message.into());
            Ask::Refuse(Box::new(client), refused)
        };
        if let Some(name) = unknown_member(params) {
            let known = MEMBERS.join(", ");
            return refuse(client, &format!("unknown member {name}; known are {known}"));
        }
        let workflow = match params.get("workflow") {
            Some(Json::String(workflow)) => workflow,
            None | Some(Json::Null) => {
                return refuse(client, "workflow is missing: the JSON Lines, as one string");
            }
            Some(_) => return refuse(client, "workflow must be a string: the JSON Lines"),
        };
        let input = match params.get("input") {
            None | Some(Json::Null) => Object::default(),
            Some(Json::Object(input)) => input.clone(),
            Some(_) => return refuse(client, "input must be an object"),
        };
        let Some(on_error) = named_value(params, "onError", OnError::from_name) else {
            return refuse(client, "onError must be stop or continue");
        };
        let Some(strictness) = named_value(params, "level", Strictness::from_name) else {
            return refuse(client, "level must be strict, moderate or lenient");
        };
        if params.get("validate") == Some(&Json::Bool(false)) {
            return refuse(
                client,
                "a workflow is always validated before it is executed",
            );
        }
        Ask::Run(Box::new(Self {
            action,
            request: Request {
                workflow: Bytes::copy_from_slice(workflow.as_bytes()),
                input,
                on_error,
                strictness,
                ..Request::default()
            },
            client,
            is_begin_line: false,
            execution_id: None,
        }))
    }
}

/// The members of a request. `async` and `session` are only for REST.
const MEMBERS: [&str; 5] = ["workflow", "input", "level", "onError", "validate"];

/// The first unknown member, shortened for a message. Unknown members are refused, because a misspelt one would run the
/// workflow differently than intended. Members that begin with `_`, such as `_agentId` and `_meta`, are for others.
fn unknown_member(params: &Json) -> Option<String> {
    let mut names = params.as_object()?.iter().map(|(name, _)| name.as_str());
    let is_unknown = |name: &&str| !MEMBERS.contains(name) && !name.starts_with('_');
    let name = names.find(is_unknown)?;
    let shown: String = name.chars().take(MAX_SHOWN).collect();
    Some(format!("{shown:?}"))
}

/// The value of a member that must be one of several words; the default if it is absent.
fn named_value<T: Default>(
    params: &Json,
    name: &str,
    from_name: impl Fn(&str) -> Option<T>,
) -> Option<T> {
    match params.get(name) {
        None | Some(Json::Null) => Some(T::default()),
        Some(value) => from_name(value.as_str()?),
    }
}

impl Job {
    /// Reads the `executionId` in the workflow, unless it is known already. A cancel may name it.
    pub(super) fn read_execution_id(&mut self, limits: &WorkflowLimits) {
        if self.execution_id.is_none() && self.action == Action::Execute {
            // `beginExecution` is the last line. The rest is parsed later, on the threads of the executor.
            let workflow = &self.request.workflow;
            let lines = workflow.trim_ascii_end();
            let begins = lines.iter().rposition(|byte| *byte == b'\n');
            let begin = workflow.slice_ref(&lines[begins.map_or(0, |end| end + 1)..]);
            self.execution_id = Document::parse(&begin, limits).execution_id().cloned();
        }
    }

    /// The id in an answer if nothing is executed: the `executionId` of the workflow, else the `collaborationid`.
    pub(super) fn named(&self) -> Option<&Text> {
        let collaboration_id = self.client.collaboration_id.as_ref();
        let own = self.execution_id.as_ref();
        own.filter(|id| Some(*id) != collaboration_id)
            .or(self.client.named())
    }

    /// The names that can cancel it.
    pub(super) fn names(&self) -> impl Iterator<Item = Cancel> {
        let client = &self.client;
        let call = match &client.form {
            AnswerForm::JsonRpc(token) => a2abus_executor::parse(token.as_bytes()).ok(),
            AnswerForm::Events => None,
        };
        let call = call.as_ref().and_then(name_of_call);
        let names = [
            self.execution_id.clone(),
            client.collaboration_id.clone(),
            client.call_id.clone(),
            call,
            Some(client.execution_id()),
        ];
        let requester = client.requester.clone();
        let cancel = move |name| Cancel {
            requester: requester.clone(),
            name,
        };
        names.into_iter().flatten().map(cancel)
    }
}
