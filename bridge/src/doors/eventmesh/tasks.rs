//! The tasks of A2A, in the form of EventMesh.

use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use a2abus_plugin::protocol::dialect::Dialect;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::Response;
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http::{HeaderMap, Method, Request, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::budget::{Charge, ClientBudget};
use crate::calls::failure::{Failure, Reason, Recipient};
use crate::clock;
use crate::doors::a2a::{
    A2a, TaskEvents, at_rest, bad_request, failed, framed, holding, internal, not_found, read_body,
    refusal_of,
};
use crate::doors::door::{self, Refusal};
use crate::doors::permit::{Action, Principal, permit};
use crate::doors::rpc::Endpoint;
use crate::doors::rpc::common::{Common, Target};
use crate::http::negotiate;
use crate::http::respond::{json_response, no_content, refusal};
use crate::http::sse::{Frame, LAST_EVENT, charged_response};
use crate::metrics::HttpPath;
use crate::object;
use crate::shares::Share;
use crate::state::{Lagged, Position};
use crate::tasks::model::{Content, Part, State as TaskState, new_id};
use crate::tasks::{PageStart, Task, Tasks};

/// A request to create a task.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TaskRequest {
    target_agent: String,
    message: Box<RawValue>,
    #[serde(default)]
    parent_task_id: Option<String>,
}

/// Whether the response waits for the task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    /// Wait for the result, with a time limit.
    #[default]
    Sync,
    /// Respond at once.
    Async,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct CreateQuery {
    mode: Mode,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct List {
    state: Option<String>,
    limit: Option<usize>,
    offset: Option<usize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct WaitQuery {
    /// In milliseconds.
    timeout: Option<u64>,
}

/// How long a client waits for a result: the default and the maximum.
const WAIT: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(300));
/// A task without an answer fails after this time.
const SILENCE: Duration = Duration::from_secs(120);
/// Tasks of one list: the default and the maximum.
const PAGE: (usize, usize) = (100, 1_000);

/// `POST /a2a/tasks`.
pub(super) async fn create(
    State(a2a): State<Arc<A2a>>,
    query: Result<Query<CreateQuery>, QueryRejection>,
    request: Request<Body>,
) -> Response {
    let shared = Arc::clone(&a2a);
    let respond = move |common, _head, body: Bytes| {
        async move {
            let Query(CreateQuery { mode }) = query.map_err(|error| bad_request(&error))?;
            let request: TaskRequest = read_body(&body)?;
            drop(body);
            created(&shared, common, &request, mode).await
        }
        .boxed()
    };
    let path = HttpPath::A2aTasks;
    let endpoint = Endpoint::json_rpc(path, Target::InPayload, request.headers());
    framed(&a2a, endpoint, request, respond).await
}

async fn created(
    a2a: &Arc<A2a>,
    mut common: Common,
    request: &TaskRequest,
    mode: Mode,
) -> Result<Response, Refusal> {
    common.target = Target::of_path(Ok(Path(request.target_agent.clone())));
    if common.target == Target::NotAName {
        return Err(refusal_of(Failure::not_a_name("targetAgent")));
    }
    common.timeout = Some(common.timeout.unwrap_or(SILENCE));
    let budget = common.budget.clone();
    let message = message_of(request)?;
    let params = format!(r#"{{"message":{message},"configuration":{{"blocking":false}}}}"#);
    let dialect = common.dialect;
    let task = match internal::call(a2a, common, "message/send", &params).await {
        Ok(task) => task,
        Err(failure) => return Ok(unsuccessful(failure, dialect)),
    };
    let Some(id) = task.get("id").and_then(Value::as_str).map(Text::from) else {
        let failure = Failure::new(Reason::BadAgentReply, "no task was created");
        return Ok(unsuccessful(failure, dialect));
    };
    if mode == Mode::Sync
        && let Some(Some(task)) = at_rest(a2a, &id, Instant::now() + WAIT.0).await
    {
        let shown = Bytes::from(task_json(&id, &task).to_string());
        return Ok(match door::charged_if_large(&budget, shown) {
            Ok(body) => json_response(StatusCode::OK, body),
            Err(_) => unsuccessful(no_room(&id), dialect),
        });
    }
    let accepted = json!({
        "taskId": id.as_str(),
        "status": "accepted",
        "message": format!("the task is still running: GET /a2a/tasks/{id}"),
    });
    Ok(document(StatusCode::ACCEPTED, &accepted, &budget))
}

/// The error when a task that a client waits for has ended, but is too large for the memory for answers.
fn no_room(id: &Text) -> Failure {
    let message = format!(
        "the task {id} has ended, but it is large, and there is no memory for it now (calls.budget_bytes): GET /a2a/tasks/{id} later"
    );
    Failure::new(Reason::AnswerLost, message).detail("taskId", id.as_str())
}

/// The response to a request that has failed, although an agent may have it. For an idempotency key it counts as an
/// answer, so the agent does not get the request again.
fn unsuccessful(failure: Failure, dialect: Dialect) -> Response {
    let (status, failure) = refusal_of(failure);
    refusal(status, &failure, &Recipient::unknown(dialect))
}

/// The message for the agent: the client's text or JSON as one part, or its A2A message.
fn message_of(request: &TaskRequest) -> Result<String, Refusal> {
    #[derive(Deserialize)]
    struct A2aMessage {
        #[serde(rename = "parts")]
        _parts: Vec<Value>,
        #[serde(rename = "role")]
        _role: String,
    }
    let raw = request.message.get();
    if object::from_slice::<A2aMessage>(raw.as_bytes()).is_ok() {
        return Ok(raw.to_owned());
    }
    let part = match raw.as_bytes().first() {
        Some(b'n' | b'[') => {
            let message = "message must be a string, an object or an A2A message";
            return Err(bad_request(&message));
        }
        Some(b'"') => format!(r#"{{"kind":"text","text":{raw}}}"#),
        Some(b'{') => format!(r#"{{"kind":"data","data":{raw}}}"#),
        // The data of a data part must be an object.
        _ => json!({ "kind": "text", "text": raw }).to_string(),
    };
    let parents: Vec<&String> = request.parent_task_id.iter().collect();
    Ok(format!(
        r#"{{"kind":"message","role":"user","messageId":"{}","referenceTaskIds":{},"parts":[{part}]}}"#,
        new_id(),
        json!(parents)
    ))
}

/// `GET /a2a/tasks`.
pub(super) async fn list(
    State(a2a): State<Arc<A2a>>,
    query: Result<Query<List>, QueryRejection>,
    request: Request<Body>,
) -> Response {
    let admitted = admit(&a2a, &request);
    let budget = a2a.door.client_budget(request.extensions());
    let listed = async {
        let _held = admitted?;
        let Query(list) = query.map_err(|error| bad_request(&error))?;
        let latest = a2a.settings.tasks.latest().await;
        latest.map_err(|error| refusal_of(a2a.door.not_read("tasks", &error)))?;
        listed(&a2a.settings.tasks, &list, &budget)
    };
    let response = listed.await;
    answered(&a2a, &request, response)
}

fn listed(tasks: &Tasks, list: &List, budget: &ClientBudget) -> Result<Response, Refusal> {
    let (limit, offset) = (list.limit.unwrap_or(PAGE.0), list.offset.unwrap_or(0));
    if !(1..=PAGE.1).contains(&limit) {
        return Err(bad_request(&format!("limit must be 1 to {}", PAGE.1)));
    }
    let state = list.state.as_deref().filter(|state| !state.is_empty());
    let state = state.map(|name| match TaskState::read(name) {
        TaskState::Unknown => Err(bad_request(
            &"state must be SUBMITTED, WORKING, COMPLETED, FAILED or CANCELLED",
        )),
        state => Ok(state_name(state)),
    });
    let state = state.transpose()?;
    let request = |task: &Task| state.is_none_or(|state| state_name(task.status.state) == state);
    let start = PageStart::Offset(offset);
    let page = tasks.list(None, request, (start, limit), |id, task| {
        task_json(id, task).to_string()
    });
    let count = page.tasks.len();
    let list = format!(
        r#"{{"count":{count},"hasMore":{},"limit":{limit},"offset":{offset},"tasks":[{}],"total":{}}}"#,
        page.continues_after.is_some(),
        page.tasks.join(","),
        page.total
    );
    let list = Bytes::from(list);
    let body = match count {
        // Otherwise a client could not get past a large task.
        1 => door::charged_large(budget, list),
        _ => door::charged(budget, list),
    };
    Ok(json_response(StatusCode::OK, body.map_err(refusal_of)?))
}

/// `GET /a2a/tasks/{task}`.
pub(super) async fn read(
    State(a2a): State<Arc<A2a>>,
    name: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Response {
    let admitted = admit(&a2a, &request);
    let budget = a2a.door.client_budget(request.extensions());
    let found = async {
        let _held = admitted?;
        let (id, task) = task(&a2a, name).await?;
        one_task(StatusCode::OK, &task_json(&id, &task), &budget)
    };
    let response = found.await;
    answered(&a2a, &request, response)
}

/// `GET /a2a/tasks/{task}/wait`: 200 with the task once it has ended or waits for its caller; 202 if that takes longer.
pub(super) async fn wait(
    State(a2a): State<Arc<A2a>>,
    name: Result<Path<String>, PathRejection>,
    query: Result<Query<WaitQuery>, QueryRejection>,
    request: Request<Body>,
) -> Response {
    let dialect = negotiate::dialect(request.headers());
    let admitted = admit(&a2a, &request);
    let budget = a2a.door.client_budget(request.extensions());
    let waited = async {
        let _held = admitted?;
        let Query(WaitQuery { timeout: max_wait }) = query.map_err(|error| bad_request(&error))?;
        let max_wait = max_wait.map_or(WAIT.0, Duration::from_millis).min(WAIT.1);
        let (id, task) = task(&a2a, name).await?;
        let (status, task) = match at_rest(&a2a, &id, Instant::now() + max_wait).await {
            Some(Some(task)) => (StatusCode::OK, task),
            Some(None) => return Err(refusal_of(not_found(&id))),
            None => {
                let task = a2a.settings.tasks.get(&id).unwrap_or(task);
                (StatusCode::ACCEPTED, task)
            }
        };
        one_task(status, &task_json(&id, &task), &budget)
    };
    a2a.answered(HttpPath::A2aTasks, waited.await, dialect)
}

/// `GET /a2a/tasks/{task}/stream`.
pub(super) async fn follow(
    State(a2a): State<Arc<A2a>>,
    name: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Response {
    let admitted = admit(&a2a, &request);
    let budget = a2a.door.client_budget(request.extensions());
    let dialect = negotiate::dialect(request.headers());
    let last = last_event(request.headers());
    let followed = async {
        let (_charge, share) = admitted?;
        let last = last?;
        let (id, _) = task(&a2a, name).await?;
        let tasks = Arc::clone(&a2a.settings.tasks);
        let subscribed = tasks.follow(&id, None);
        let (current, subscription) = subscribed.ok_or_else(|| refusal_of(not_found(&id)))?;
        let state = current.status.state;
        let is_known = last.is_some_and(|last| {
            let now = current.position;
            (now.partition, now.offset <= last.offset) == (last.partition, true)
        });
        if is_known && state.is_terminal() {
            // This stops an `EventSource`, which otherwise reconnects for ever. Source: WHATWG HTML section 9.2.
            return Ok(no_content());
        }
        let following = Following {
            tasks,
            events: TaskEvents::new(&a2a.door.calls, subscription),
            sent: current.position,
            budget,
            dialect,
            id,
        };
        let first = match is_known {
            true => None,
            false => Some(following.first(&current).map_err(refusal_of)?),
        };
        let is_over = !is_known && state.is_at_rest();
        let rest = stream::unfold((!is_over).then_some(following), |following| async move {
            following?.next().await
        });
        let response = charged_response(stream::iter(first).chain(rest));
        Ok(holding(Some(share), response))
    };
    let response = followed.await;
    answered(&a2a, &request, response)
}

/// The last state that a client which reconnects has received.
fn last_event(headers: &HeaderMap) -> Result<Option<Position>, Refusal> {
    let id = headers.get(LAST_EVENT).filter(|id| !id.is_empty());
    let position = id.map(|id| id.to_str().ok().and_then(|id| id.parse().ok()));
    let unreadable = "Last-Event-ID is not an event id: send the id of the last event you received, or omit the header";
    position
        .map(|position| position.ok_or_else(|| bad_request(&unreadable)))
        .transpose()
}

/// A task as a stream.
struct Following {
    tasks: Arc<Tasks>,
    events: TaskEvents,
    /// The last event of the task that the client has seen.
    sent: Position,
    budget: ClientBudget,
    /// The dialect of errors.
    dialect: Dialect,
    id: Text,
}

// === impl Following ===

impl Following {
    /// The task after its next change, charged. The stream ends with the last one, or with the bridge: then the client
    /// reconnects.
    async fn next(mut self) -> Option<(Bytes, Option<Self>)> {
        let task = self.changed().await?;
        self.sent = task.position;
        let event = match door::charged_if_large(&self.budget, self.event(&task)) {
            Ok(event) => event,
            Err(failure) => {
                let last = failed(&failure, self.dialect).text();
                return Some((self.budget.replace(last), None));
            }
        };
        let goes_on = !task.status.state.is_at_rest();
        Some((event, goes_on.then_some(self)))
    }

    /// The task after its next change. Changes that arrive while the last one is being sent count as one.
    async fn changed(&mut self) -> Option<Task> {
        loop {
            match self.events.next().await.ok()? {
                // The last event that was sent already shows this change.
                Ok(update) if update.position <= self.sent => {}
                Ok(_) => return self.tasks.get(&self.id),
                Err(Lagged) => {
                    let (task, again) = self.tasks.follow(&self.id, None)?;
                    self.events.subscription = again;
                    return Some(task);
                }
            }
        }
    }

    /// The first event, charged.
    fn first(&self, task: &Task) -> Result<Bytes, Failure> {
        door::charged_large(&self.budget, self.event(task))
    }

    fn event(&self, task: &Task) -> Bytes {
        let data = task_json(&self.id, task).to_string();
        Frame::with_id(task.position.to_string(), data).text()
    }
}

/// `DELETE /a2a/tasks/{task}`.
pub(super) async fn cancel(
    State(a2a): State<Arc<A2a>>,
    name: Result<Path<String>, PathRejection>,
    mut request: Request<Body>,
) -> Response {
    // Check and count it like every request to an agent.
    *request.method_mut() = Method::POST;
    let shared = Arc::clone(&a2a);
    let respond = move |common: Common, _head, _body: Bytes| {
        async move {
            let (id, _) = task(&shared, name).await?;
            let params = json!({ "id": id.as_str() }).to_string();
            let (budget, dialect) = (common.budget.clone(), common.dialect);
            let cancelled = internal::call(&shared, common, "tasks/cancel", &params).await;
            if let Err(failure) = cancelled {
                return Ok(unsuccessful(failure, dialect));
            }
            let task = shared.settings.tasks.get(&id);
            let task = task.ok_or_else(|| refusal_of(not_found(&id)))?;
            Ok(document(StatusCode::OK, &task_json(&id, &task), &budget))
        }
        .boxed()
    };
    let path = HttpPath::A2aTasks;
    let endpoint = Endpoint::json_rpc(path, Target::InPayload, request.headers());
    framed(&a2a, endpoint, request, respond).await
}

/// The task in a path.
async fn task(
    a2a: &A2a,
    name: Result<Path<String>, PathRejection>,
) -> Result<(Text, Task), Refusal> {
    let Path(name) = name.map_err(|error| bad_request(&error))?;
    let task = a2a.settings.tasks.find(&name).await;
    let task = task.map_err(|error| refusal_of(a2a.door.not_read("tasks", &error)))?;
    let task = task.ok_or_else(|| refusal_of(not_found(&name)))?;
    Ok((name.into(), task))
}

/// Checks that a request may read tasks. Returns the charge for its head, and its share of the client's limit.
fn admit(a2a: &A2a, request: &Request<Body>) -> Result<(Charge, Share<Text>), Refusal> {
    let charge = a2a.door.check_in(request)?;
    let permitted = permit(request.extensions(), Action::Call(None));
    let Principal { name } = permitted.map_err(|failure| (StatusCode::FORBIDDEN, failure))?;
    let (limits, metrics) = (&a2a.settings.at_a_time, &a2a.door.metrics);
    Ok((charge, limits.request(&name, 1, metrics)?))
}

fn answered(a2a: &A2a, request: &Request<Body>, response: Result<Response, Refusal>) -> Response {
    let dialect = negotiate::dialect(request.headers());
    a2a.answered(HttpPath::A2aTasks, response, dialect)
}

/// A task in the form of EventMesh.
fn task_json(id: &str, task: &Task) -> Value {
    let state = task.status.state;
    let updated = clock::rfc3339(clock::since_1970(task.updated));
    let mut shown = json!({
        "taskId": id,
        "targetAgent": task.agent.as_str(),
        "contextId": task.context.as_str(),
        "state": state_name(state),
        "updatedAt": updated.as_str(),
        "data": data(task),
    });
    let parts = task
        .status
        .message
        .iter()
        .flat_map(|message| &message.parts);
    if matches!(state, TaskState::Failed | TaskState::Rejected) {
        let parts: Vec<&str> = parts.filter_map(text).collect();
        shown["error"] = parts.join(" ").into();
    }
    shown
}

/// The artifacts of the agent, else its message: the content of a single part, or the contents of all parts.
fn data(task: &Task) -> Value {
    let made: Vec<&Part> = task.artifacts.iter().flat_map(|made| &made.parts).collect();
    let parts = task
        .status
        .message
        .iter()
        .flat_map(|message| &message.parts);
    let parts = if made.is_empty() {
        parts.collect()
    } else {
        made
    };
    match parts.as_slice() {
        [] => Value::Null,
        [one] => content(one),
        several => several.iter().map(|part| content(part)).collect(),
    }
}

fn content(part: &Part) -> Value {
    match &part.content {
        Content::Text(text) => text.as_str().into(),
        Content::Bytes(bytes) => json!({ "bytes": bytes }),
        Content::Url(url) => json!({ "url": url }),
        Content::Data(raw) | Content::Other(raw) => {
            serde_json::from_str(raw.get()).unwrap_or_default()
        }
    }
}

fn text(part: &Part) -> Option<&str> {
    match &part.content {
        Content::Text(text) => Some(text),
        _ => None,
    }
}

/// EventMesh has five states.
fn state_name(state: TaskState) -> &'static str {
    match state {
        TaskState::Submitted => "SUBMITTED",
        TaskState::Working
        | TaskState::InputRequired
        | TaskState::AuthRequired
        | TaskState::Unknown => "WORKING",
        TaskState::Completed => "COMPLETED",
        TaskState::Failed | TaskState::Rejected => "FAILED",
        TaskState::Canceled => "CANCELLED",
    }
}

/// The response to a request that reads one task.
fn one_task(status: StatusCode, task: &Value, budget: &ClientBudget) -> Result<Response, Refusal> {
    let body = door::charged_large(budget, Bytes::from(task.to_string()));
    Ok(json_response(status, body.map_err(refusal_of)?))
}

/// The response to a request that has done something. Its body is charged also if it exceeds the budget.
fn document(status: StatusCode, value: &Value, budget: &ClientBudget) -> Response {
    let body = Bytes::from(value.to_string());
    json_response(status, budget.replace(body))
}
