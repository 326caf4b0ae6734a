//! The REST interface of the workflow executor.
//!
//! ```text
//! request ──> who? ──> how often? ──> which call? ──> body ──> call ──> answer, with the standing of the limits
//!             401      429            404, 405        400, 413, 415, …
//! ```
//!
//! The calls, all below `/api/v1` except the first. An agent sends its key as `Authorization: Bearer KEY` or
//! `X-API-Key: KEY`:
//!
//! | call | body | answer |
//! |---|---|---|
//! | `GET /health` | | `{"status":"healthy","service":"a2e-server"}`; no key, no limits |
//! | `GET openapi.json` | | this table for machines; no key |
//! | `GET capabilities` | | the permissions of the agent: APIs with their endpoints, ids of credentials, operations, limits |
//! | `POST capabilities/search` | `{"query", "top_k"?}` | the operations, APIs, endpoints and credentials that fit best, of those the agent may use |
//! | `POST workflows/validate` | `{"workflow", "input"?, "level"?}` | `{"valid","errors","warnings"}`, with 200 for an invalid workflow too |
//! | `POST workflows/execute` | `{"workflow", "input"?, "level"?, "onError"?, "async"?}` | 200 with the results when it has ended, also when it failed; 202 at once if `async`; 400 with all errors if it is not valid |
//! | `GET executions/{id}` | | the record: status, results, operations; 24 hours long; 404 for those of other agents |
//! | `GET executions?limit&status` | | summaries, the newest first |
//! | `GET storage/{storage}` | | the values of the agent in `localStorage` or `sessionStorage`: keys, bytes, sessions |
//! | `GET`, `DELETE storage/{storage}/{key}` | | the value, or its removal; of `sessionStorage` with `?session=` |
//! | `GET rate-limit/status` | | limits, usage and what remains |
//!
//! `workflow` is the JSON Lines as one string. With `Content-Type: application/x-ndjson`, the body of `validate` and
//! `execute` is the lines themselves, without other members. The workflow contains the execution id, which is unique
//! per agent: the same workflow with the same id does not run twice, and its record is the answer, with
//! `Idempotent-Replay: true`; a different workflow with that id gets 409. So does the same one if its record was
//! removed because memory was full. An execution continues if its client disconnects.
//!
//! Every answer below `/api` has `X-RateLimit-Limit`, `-Remaining` and `-Reset` (Unix seconds at which a slot frees) of
//! the last 60 seconds, and a 429 those of the limit that was reached, with `Retry-After` in seconds. Requests without
//! a key, or with a wrong one, are limited per address: 60 in 60 seconds. Errors are
//! `{"error":{"type","code","message","operationId","details","suggestions"}}`, except 429, which is
//! `{"error","message","retry_after"}`.
//!
//! Source: docs/protocols/a2e-workflows.md §8, §10 and §D41 to §D46.

mod answer;
mod capabilities;
mod catalogue;
mod executions;
mod gate;
mod request;
mod search;
mod storage;

use std::sync::Arc;

use a2abus_models::a2e_workflow::operation::Storage;
use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use axum::routing::any;
use bytes::Bytes;
use http::{Method, Request, StatusCode};

pub(crate) use self::answer::EXPOSED;

use self::answer::Problem;
use self::gate::{Caller, Gate};
use super::door::Door;
use super::permit::{Action, permit};
use crate::http::body::{self, BodyError};
use crate::http::negotiate;
use crate::http::respond::json_response;
use crate::metrics::{HttpPath, RefusalReason};
use crate::workflows::{Member, Workflows};

/// The state of the interface.
#[derive(Debug)]
struct RestState {
    door: Door,
    workflows: Workflows,
    gate: Gate,
}

/// The calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call<'a> {
    OpenApi,
    Capabilities,
    Search,
    Validate,
    Execute,
    Executions,
    Execution(&'a str),
    /// The content of a storage.
    Storage(Storage),
    /// One value of a storage; its key as in the path.
    Stored(Storage, &'a str),
    RateLimit,
}

/// The description of the calls for machines.
const OPENAPI: &str = include_str!("workflows/openapi.json");

/// The calls of the executor, and `/health`.
pub(crate) fn router(door: Door, workflows: Workflows) -> Router {
    let clock = &workflows.environment().clock;
    let rest = RestState {
        gate: Gate::new(clock),
        door,
        workflows,
    };
    Router::new()
        .route("/health", any(health))
        .route("/api", any(api))
        .route("/api/", any(api))
        .route("/api/{*call}", any(api))
        .with_state(Arc::new(rest))
}

async fn health(State(rest): State<Arc<RestState>>, method: Method) -> Response {
    let response = if is_read(&method) {
        let body = r#"{"status":"healthy","service":"a2e-server"}"#;
        json_response(StatusCode::OK, Bytes::from_static(body.as_bytes()))
    } else {
        Problem::method_not_allowed(READ).into_response()
    };
    rest.door
        .metrics
        .http_request(HttpPath::Health, response.status());
    response
}

fn openapi() -> Response {
    json_response(StatusCode::OK, Bytes::from_static(OPENAPI.as_bytes()))
}

async fn api(State(rest): State<Arc<RestState>>, request: Request<Body>) -> Response {
    let response = match rest.door.admit(&request) {
        Ok(_charge) => rest.respond(request).await,
        Err(refused) => refused,
    };
    rest.door
        .metrics
        .http_request(HttpPath::Api, response.status());
    response
}

// === impl RestState ===

impl RestState {
    async fn respond(&self, request: Request<Body>) -> Response {
        let (head, body) = request.into_parts();
        let caller = Caller::of(&head.headers, &self.workflows.directory());
        let admitted = match self.gate.admit(&caller, &head) {
            Ok(admitted) => admitted,
            Err(exceeded) => {
                self.workflows.refused(RefusalReason::RateLimited);
                return answer::too_many(&exceeded, "requests");
            }
        };
        let answered = self.answer(&caller, &head, body).await;
        let mut response = answered.unwrap_or_else(|problem| {
            if let Some(why) = problem.counts_as() {
                self.workflows.refused(why);
            }
            problem.into_response()
        });
        answer::put_standing(&admitted, response.headers_mut());
        response
    }

    async fn answer(
        &self,
        caller: &Caller,
        head: &http::request::Parts,
        body: Body,
    ) -> Result<Response, Problem> {
        // Web pages must not use their visitors' position in the network, as for all other doors.
        if self.door.check_origin(&head.uri, &head.headers).is_err() {
            return Err(Problem::foreign_origin());
        }
        permit(&head.extensions, Action::Execute)
            .map_err(|failure| Problem::not_permitted(failure.message()))?;
        let call = Call::of(head.uri.path());
        let member = match (caller, call) {
            (Caller::Member(member), _) => Some(member),
            (_, Some(Call::OpenApi)) => None,
            (Caller::Unknown | Caller::WrongKey, _) => return Err(Problem::unauthorized()),
        };
        let call = call.ok_or_else(Problem::no_such_call)?;
        call.check(&head.method)?;
        let Some(member) = member else {
            return Ok(openapi());
        };
        let body = if call.has_body() {
            self.read(call, head, body).await?
        } else {
            Bytes::new()
        };
        match call {
            Call::Stored(storage, key) if head.method == Method::DELETE => {
                let query = head.uri.query();
                self.remove(member.agent(), storage, key, query).await
            }
            _ => self.call(call, member, head.uri.query(), &body).await,
        }
    }

    async fn call(
        &self,
        call: Call<'_>,
        member: &Arc<Member>,
        query: Option<&str>,
        body: &Bytes,
    ) -> Result<Response, Problem> {
        match call {
            Call::OpenApi => Ok(openapi()),
            Call::Capabilities => Ok(capabilities::all(member)),
            Call::Search => capabilities::search(member, body),
            Call::Validate => self.validate(member.agent(), body).await,
            Call::Execute => self.execute(member.agent(), body).await,
            Call::Executions => self.executions(member.agent(), query).await,
            Call::Execution(id) => self.execution(member.agent(), id).await,
            Call::Storage(storage) => self.list(member.agent(), storage).await,
            Call::Stored(storage, key) => self.stored(member.agent(), storage, key, query).await,
            Call::RateLimit => Ok(self.rate_limit(member.agent())),
        }
    }

    async fn read(
        &self,
        call: Call<'_>,
        head: &http::request::Parts,
        body: Body,
    ) -> Result<Bytes, Problem> {
        let headers = &head.headers;
        let is_lines = call.takes_lines() && negotiate::is_lines_body(headers);
        if !is_lines && !negotiate::is_json_body(headers) {
            return Err(Problem::unsupported_media_type(call.takes_lines()));
        }
        let (limit, deadline) = (self.door.largest_body(), self.door.body_timeout);
        let budget = self.door.client_budget(&head.extensions);
        let read = body::read(headers, body, limit, deadline, &budget).await;
        let read = read.map_err(|error| match error {
            BodyError::TooLarge => Problem::too_large(limit),
            BodyError::NoRoom => Problem::no_room(),
            BodyError::TooSlow => Problem::too_slow(deadline),
            BodyError::Broken => Problem::malformed("invalid_json", "the body was incomplete"),
        })?;
        if !is_lines {
            return Ok(read);
        }
        let body = request::of_lines(&read)?;
        // The body takes its place in the memory.
        drop(read);
        budget.hold(body).map_err(|_| Problem::no_room())
    }
}

// === impl Call ===

const READ: &str = "GET, HEAD";
const WRITE: &str = "POST";
const READ_OR_REMOVE: &str = "GET, HEAD, DELETE";

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

impl<'a> Call<'a> {
    fn of(path: &'a str) -> Option<Self> {
        Some(match path.strip_prefix("/api/v1/")? {
            "openapi.json" => Self::OpenApi,
            "capabilities" => Self::Capabilities,
            "capabilities/search" => Self::Search,
            "workflows/validate" => Self::Validate,
            "workflows/execute" => Self::Execute,
            "executions" => Self::Executions,
            "rate-limit/status" => Self::RateLimit,
            other => match other.split_once('/')? {
                ("executions", id) if !id.is_empty() && !id.contains('/') => Self::Execution(id),
                ("storage", place) => match place.split_once('/') {
                    None => Self::Storage(storage_of(place)?),
                    Some((_, "")) => return None,
                    Some((place, key)) => Self::Stored(storage_of(place)?, key),
                },
                _ => return None,
            },
        })
    }

    fn has_body(self) -> bool {
        matches!(self, Self::Search | Self::Validate | Self::Execute)
    }

    /// Whether the body may be the lines of a workflow.
    fn takes_lines(self) -> bool {
        matches!(self, Self::Validate | Self::Execute)
    }

    fn check(self, method: &Method) -> Result<(), Problem> {
        let (right, allowed) = if self.has_body() {
            (*method == Method::POST, WRITE)
        } else if matches!(self, Self::Stored(..)) {
            let right = is_read(method) || *method == Method::DELETE;
            (right, READ_OR_REMOVE)
        } else {
            (is_read(method), READ)
        };
        if right {
            Ok(())
        } else {
            Err(Problem::method_not_allowed(allowed))
        }
    }
}

/// The storage of a name, of those that are read here: files are where the operator put them.
fn storage_of(name: &str) -> Option<Storage> {
    [Storage::Local, Storage::Session]
        .into_iter()
        .find(|storage| storage.as_str() == name)
}
