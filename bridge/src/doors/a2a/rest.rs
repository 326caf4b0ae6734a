//! The HTTP+JSON binding: the methods of A2A as paths. It converts requests to JSON-RPC, and answers without an
//! envelope.
//!
//! | path, below the URL of the server or of an agent | method |
//! |---|---|
//! | `POST /message:send`, `POST /message:stream` | send a message |
//! | `GET /tasks`, `GET /tasks/{id}` | list tasks, read one |
//! | `POST /tasks/{id}:cancel`, `GET` or `POST /tasks/{id}:subscribe` | cancel it, follow it |
//! | `POST` or `GET /tasks/{id}/pushNotificationConfigs` | add or list webhooks |
//! | `GET` or `DELETE /tasks/{id}/pushNotificationConfigs/{config}` | read or remove one |
//! | `GET /extendedAgentCard`, in A2A 0.3 `GET /v1/card` | the card |
//!
//! Paths that begin with `/v1` are those of A2A 0.3. A tenant, as the first segment at the URL of the server, is an
//! agent.
//!
//! Source: docs/protocols/a2a.md §10; A2A 1.0 section 11, A2A 0.3 section 3.2.3.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use a2abus_plugin::json::BYTE_ORDER_MARK;
use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::{Text, Unit};
use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::any;
use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method as Verb, Request, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::form::{Envelope, Form};
use super::method::{Method, Push};
use super::parsed::{ParsedRequest, VERSIONS, Version, name_of};
use super::post;
use super::shared::A2a;
use super::v0_3;
use super::work::{A2aRequest, Reply};
use crate::calls::failure::{Failure, Reason, Recipient};
use crate::doors::door::Refusal;
use crate::doors::rpc::Endpoint;
use crate::doors::rpc::common::{Common, Target};
use crate::http::negotiate;
use crate::http::respond::json_response;
use crate::metrics::HttpPath;
use crate::object::camel;

/// The resource of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resource {
    Send,
    Stream,
    Tasks,
    /// A task, or an operation on it: `{id}:cancel`.
    Task,
    Configs,
    Config,
    Card,
}

/// A request, from its path and verb.
#[derive(Debug, Clone)]
struct RestRequest {
    method: Method,
    task: Option<String>,
    config: Option<String>,
    dialect: Dialect,
}

/// The resources below a URL.
const RESOURCES: [(&str, Resource); 10] = [
    ("/message:send", Resource::Send),
    ("/message:stream", Resource::Stream),
    // Some clients encode the colon. The router decodes the names in a path only.
    ("/message%3Asend", Resource::Send),
    ("/message%3Astream", Resource::Stream),
    ("/message%3asend", Resource::Send),
    ("/message%3astream", Resource::Stream),
    ("/tasks", Resource::Tasks),
    ("/tasks/{task}", Resource::Task),
    ("/tasks/{task}/pushNotificationConfigs", Resource::Configs),
    (
        "/tasks/{task}/pushNotificationConfigs/{config}",
        Resource::Config,
    ),
];

/// The base URLs of A2A 1.0: of the server, a tenant and an agent.
const BASES_1_0: [&str; 3] = ["", "/{agent}", "/a2a/agents/{agent}"];
/// The base URLs of A2A 0.3.
const BASES_0_3: [&str; 2] = ["/v1", "/a2a/agents/{agent}/v1"];

/// The media type of A2A 1.0.
const MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/a2a+json");

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The query parameters: strings, and other types.
const TEXTS: [&str; 5] = [
    "configId",
    "contextId",
    "pageToken",
    "status",
    "statusTimestampAfter",
];
const NUMBERS: [&str; 2] = ["pageSize", "historyLength"];
const FLAGS: [&str; 1] = ["includeArtifacts"];

/// The paths.
pub(super) fn router() -> Router<Arc<A2a>> {
    let mut router = Router::new();
    for (bases, card, dialect) in [
        (&BASES_1_0[..], "/extendedAgentCard", Dialect::A2a10),
        (&BASES_0_3[..], "/card", Dialect::A2a03),
    ] {
        for base in bases {
            for (path, resource) in RESOURCES.into_iter().chain([(card, Resource::Card)]) {
                let serve = move |State(a2a): State<Arc<A2a>>,
                                  names: Result<Path<BTreeMap<String, String>>, PathRejection>,
                                  request: Request<Body>| async move {
                    serve(&a2a, resource, dialect, names, request).await
                };
                router = router.route(&format!("{base}{path}"), any(serve));
            }
        }
    }
    router
}

async fn serve(
    a2a: &Arc<A2a>,
    resource: Resource,
    dialect: Dialect,
    names: Result<Path<BTreeMap<String, String>>, PathRejection>,
    request: Request<Body>,
) -> Response {
    let mut names = names.map(|Path(names)| names);
    let target = match &mut names {
        Err(_) => Target::NotAName,
        Ok(names) => names
            .remove("agent")
            .map_or(Target::InPayload, |name| Target::of_path(Ok(Path(name)))),
    };
    let is_named = names_media_type(request.headers());
    let mut names = names.unwrap_or_default();
    let parsed = resource
        .parsed(request.method(), names.remove("task"))
        .map(|(method, task)| RestRequest {
            method,
            task,
            config: names.remove("config"),
            dialect,
        });
    let parsed = match parsed {
        Ok(parsed) => parsed,
        Err(allowed) => {
            let message = format!("this path takes {allowed}");
            let failure = Failure::new(Reason::InvalidRequest, message);
            let recipient = Recipient::unknown(dialect);
            let mut response = refusal(StatusCode::METHOD_NOT_ALLOWED, &failure, &recipient);
            let allowed = HeaderValue::from_static(allowed);
            response.headers_mut().insert(ALLOW, allowed);
            a2a.door
                .metrics
                .http_request(HttpPath::A2aRest, response.status());
            return with_media_type(response, is_named);
        }
    };
    let endpoint = Endpoint {
        path: HttpPath::A2aRest,
        target,
        methods: &[Verb::GET, Verb::POST, Verb::DELETE],
        hint: negotiate::hint(request.headers()),
        recipient: Recipient::unknown(dialect),
        refusal,
    };
    let shared = Arc::clone(a2a);
    let response = post::framed(a2a, endpoint, request, |common, head, body| {
        respond(shared, common, parsed, head, body).boxed()
    })
    .await;
    with_media_type(response, is_named)
}

/// A response to a request that names the media type of A2A 1.0, or does not.
fn with_media_type(mut response: Response, is_named: bool) -> Response {
    if !is_named && response.headers().get(CONTENT_TYPE) == Some(&MEDIA_TYPE) {
        response.headers_mut().insert(CONTENT_TYPE, JSON);
    }
    response
}

/// Whether a request has or accepts the media type of A2A 1.0. Others are answered with plain JSON.
/// Source: A2A 1.0 section 11.1.
fn names_media_type(headers: &HeaderMap) -> bool {
    let named = headers
        .get_all(ACCEPT)
        .iter()
        .chain(headers.get(CONTENT_TYPE));
    let mut named = named.filter_map(|value| value.to_str().ok());
    named.any(|value| value.to_ascii_lowercase().contains("application/a2a+json"))
}

/// An error before the request could be read.
fn refusal(status: StatusCode, failure: &Failure, recipient: &Recipient) -> Response {
    let dialect = recipient.dialect();
    let mut response = crate::http::respond::refusal(status, failure, recipient);
    *response.body_mut() = Body::from(failure.document(status, dialect));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, media_type(dialect));
    response
}

fn media_type(dialect: Dialect) -> HeaderValue {
    match dialect {
        Dialect::A2a10 => MEDIA_TYPE,
        _ => JSON,
    }
}

async fn respond(
    a2a: Arc<A2a>,
    common: Common,
    parsed: RestRequest,
    parts: Parts,
    mut payload: Bytes,
) -> Result<Response, Refusal> {
    let a2a = &a2a;
    if payload.starts_with(BYTE_ORDER_MARK) {
        payload.advance(BYTE_ORDER_MARK.len());
    }
    let version = Version::of(&parts);
    let dialect = match (&version, parsed.dialect) {
        // A client of 1.0 may use a URL that ends with /v1.
        (Version::V1_0, _) => Dialect::A2a10,
        (_, dialect) => dialect,
    };
    let parsed = RestRequest { dialect, ..parsed };
    let form = Form {
        envelope: Envelope::Http,
        method: parsed.method,
        id: Text::from_static("null"),
        dialect,
    };
    let parsed = parsed
        .check(&version)
        .and_then(|()| parsed.parsed(a2a, &common, &parts, &payload));
    drop(payload);
    let done = match parsed {
        Ok((parsed, unit)) => {
            let head = post::head_of(a2a, &parts, version, dialect)?;
            let request = A2aRequest {
                a2a,
                common: Cow::Owned(common),
                head: &head,
                parsed,
                in_batch: false,
            };
            let done = Box::pin(request.done(unit)).await;
            done.map_err(|failure| post::of_request(failure, "null", &head))
        }
        Err(failure) => {
            common.note_refusal(failure.reason_code());
            Err(failure)
        }
    };
    Ok(post::of_dialect(response_to(done, &form), dialect))
}

/// Renders the result in this form.
fn response_to(done: Result<Reply, Failure>, form: &Form) -> Response {
    let (status, body) = match done {
        Ok(Reply::Stream(response)) => return *response,
        Ok(Reply::Whole(body) | Reply::Failed(body, _)) => (StatusCode::OK, body),
        Ok(Reply::WithStatus(status, body)) => (status, body),
        Err(failure) => {
            let (status, body) = form.failure(&failure);
            (status.unwrap_or(StatusCode::OK), body)
        }
    };
    let mut response = json_response(status, body);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, media_type(form.dialect));
    response
}

// === impl Resource ===

impl Resource {
    /// The method of a verb on this resource and the task id, or else the allowed verbs.
    fn parsed(
        self,
        verb: &Verb,
        task: Option<String>,
    ) -> Result<(Method, Option<String>), &'static str> {
        let verb = match *verb {
            Verb::GET => "GET",
            Verb::POST => "POST",
            Verb::DELETE => "DELETE",
            _ => "",
        };
        let of_task = |suffix| task.as_deref().and_then(|task| task.strip_suffix(suffix));
        if self == Self::Task {
            if let Some(id) = of_task(":cancel") {
                return match verb {
                    "POST" => Ok((Method::Cancel, Some(id.to_owned()))),
                    _ => Err("POST"),
                };
            }
            if let Some(id) = of_task(":subscribe") {
                return match verb {
                    "GET" | "POST" => Ok((Method::Follow, Some(id.to_owned()))),
                    _ => Err("GET, POST"),
                };
            }
        }
        let method = match (self, verb) {
            (Self::Send, "POST") => Method::Send,
            (Self::Stream, "POST") => Method::Stream,
            (Self::Tasks, "GET") => Method::List,
            (Self::Task, "GET") => Method::Get,
            (Self::Configs, "POST") => Method::Push(Push::Set),
            (Self::Configs, "GET") => Method::Push(Push::List),
            (Self::Config, "GET") => Method::Push(Push::Get),
            (Self::Config, "DELETE") => Method::Push(Push::Delete),
            (Self::Card, "GET") => Method::Card,
            (Self::Send | Self::Stream, _) => return Err("POST"),
            (Self::Tasks | Self::Task | Self::Card, _) => return Err("GET"),
            (Self::Configs, _) => return Err("GET, POST"),
            (Self::Config, _) => return Err("GET, DELETE"),
        };
        Ok((method, task))
    }
}

// === impl RestRequest ===

impl RestRequest {
    /// Checks that the version in the header matches the path.
    fn check(&self, version: &Version) -> Result<(), Failure> {
        match (version, self.dialect) {
            (Version::Other(version), _) => Err(Failure::version(
                &format!(
                    "A2A {version} is not served: send A2A-Version: 1.0, or 0.3 to the paths below /v1"
                ),
                &VERSIONS,
            )),
            (Version::V0_3, Dialect::A2a10) => Err(Failure::version(
                "this is a path of A2A 1.0: those of A2A 0.3 begin with /v1",
                &VERSIONS,
            )),
            _ => Ok(()),
        }
    }

    /// The request as JSON-RPC.
    fn parsed(
        &self,
        a2a: &A2a,
        common: &Common,
        head: &Parts,
        payload: &Bytes,
    ) -> Result<(ParsedRequest, Unit), Failure> {
        let name = name_of(self.method, self.dialect);
        let request = match self.method {
            Method::Send | Method::Stream if self.dialect == Dialect::A2a10 => {
                request(name, object(payload)?.get())
            }
            Method::Send | Method::Stream => request(name, &v0_3::params(payload)?.to_string()),
            _ => request(
                name,
                &Value::Object(self.params(head, payload)?).to_string(),
            ),
        };
        let unit = a2a.door.calls.unit_of(&request, &common.hint)?;
        let parsed = ParsedRequest {
            bytes: request,
            id: Text::from_static("null"),
            method: self.method,
            name,
            dialect: self.dialect,
            envelope: Envelope::Http,
        };
        Ok((parsed, unit))
    }

    /// The parameters from the path, the query and, for a configuration, the body.
    fn params(&self, head: &Parts, payload: &Bytes) -> Result<Map<String, Value>, Failure> {
        let mut params = match self.method {
            Method::Push(Push::Set) => {
                let mut params: Map<_, _> = serde_json::from_str(object(payload)?.get())
                    .map_err(|error| Failure::bad_params(&error.to_string()))?;
                // A2A 0.3 has it in the query.
                if let Some(id) = of_query(head)?.remove("configId") {
                    params.remove("config_id");
                    params.insert("configId".to_owned(), id);
                }
                params
            }
            _ => of_query(head)?,
        };
        let is_push = matches!(self.method, Method::Push(_));
        let task = if is_push { "taskId" } else { "id" };
        if let Some(id) = &self.task {
            // The name in the `.proto`, which would be a second one.
            params.remove("task_id");
            params.insert(task.to_owned(), id.as_str().into());
        }
        if let Some(id) = &self.config {
            params.insert("id".to_owned(), id.as_str().into());
        }
        Ok(params)
    }
}

fn of_query(head: &Parts) -> Result<Map<String, Value>, Failure> {
    let mut params = Map::new();
    let members = head.uri.query().unwrap_or_default().split('&');
    for (name, text) in members.filter_map(|member| member.split_once('=')) {
        // A plus sign is a space, as in forms.
        let spaced = text.replace('+', " ");
        let text = percent_decode_str(&spaced).decode_utf8().map_err(|_| {
            Failure::bad_params(&format!("{name} is not UTF-8 after percent-decoding"))
        })?;
        let name = &*camel(name);
        let bad = |what| Failure::bad_params(&format!("{name} must be {what}, not {text:?}"));
        let value = match name {
            known if TEXTS.contains(&known) => Value::from(&*text),
            known if NUMBERS.contains(&known) => {
                let number: u64 = text.parse().map_err(|_| bad("a number of at least 0"))?;
                number.into()
            }
            known if FLAGS.contains(&known) => {
                let flag: bool = text.parse().map_err(|_| bad("true or false"))?;
                flag.into()
            }
            _ => continue,
        };
        params.insert(name.to_owned(), value);
    }
    Ok(params)
}

/// A body that is one JSON object, unchanged.
fn object(payload: &[u8]) -> Result<&RawValue, Failure> {
    let body: &RawValue = serde_json::from_slice(payload)
        .map_err(|error| Failure::new(Reason::Parse, format!("the body is not JSON: {error}")))?;
    if !body.get().starts_with('{') {
        return Err(Failure::bad_params("the body must be an object"));
    }
    Ok(body)
}

/// A JSON-RPC request that contains the bytes of `params` unchanged.
fn request(method: &str, params: &str) -> Bytes {
    let head = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":"#);
    let mut request = BytesMut::with_capacity(head.len() + params.len() + 1);
    request.extend_from_slice(head.as_bytes());
    request.extend_from_slice(params.as_bytes());
    request.extend_from_slice(b"}");
    request.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_and_a_verb_make_a_method() {
        let parsed = |resource: Resource, verb: Verb, task: &str| {
            let parsed = resource.parsed(&verb, Some(task.to_owned()));
            parsed.map(|(method, task)| (method, task.unwrap()))
        };
        let method = |method, task: &str| Ok((method, task.to_owned()));
        assert_eq!(
            parsed(Resource::Task, Verb::GET, "a:b"),
            method(Method::Get, "a:b")
        );
        assert_eq!(
            parsed(Resource::Task, Verb::POST, "a:cancel"),
            method(Method::Cancel, "a")
        );
        for verb in [Verb::GET, Verb::POST] {
            assert_eq!(
                parsed(Resource::Task, verb, "a:subscribe"),
                method(Method::Follow, "a")
            );
        }
        assert_eq!(parsed(Resource::Task, Verb::GET, "a:cancel"), Err("POST"));
        assert_eq!(parsed(Resource::Task, Verb::POST, "a"), Err("GET"));
        assert_eq!(parsed(Resource::Config, Verb::PUT, "a"), Err("GET, DELETE"));
        assert_eq!(
            parsed(Resource::Config, Verb::DELETE, "a"),
            method(Method::Push(Push::Delete), "a")
        );
    }
}
