//! The A2A interface: agent cards, messages and tasks.
//!
//! ```text
//! POST ── parsed: method, dialect ── work ──> Calls ──> Answer ──> Tasks ── write ──> JSON │ follow: SSE
//! GET  ── card, page
//! ```
//!
//! | path | answer |
//! |---|---|
//! | `GET /.well-known/agent-card.json`, `/.well-known/agent-card`, `/.well-known/agent.json` | the card of the server |
//! | `GET /a2a/agents` | the agents |
//! | `GET /a2a/agents`, with `Accept: text/event-stream` | the agents, and every change of them |
//! | `GET /a2a/agents/{agent}` | one of them, with its card |
//! | `PUT` or `DELETE /a2a/agents/{agent}` | announces an agent, removes it |
//! | `GET /a2a/agents/{agent}/card`, and below it and `/rpc/{agent}` the three paths of cards | its card |
//! | `GET /a2a/health`, `/a2a/capabilities` | the state and the abilities of the server |
//! | `POST /`, `/a2a`, `/a2a/agents/{name}` | JSON-RPC of A2A 0.3, A2A 1.0 and the JAF document |
//! | `/message:send`, `/tasks`, … at the root and below `/a2a/agents/{name}`, and below `/v1` there | HTTP+JSON, see `rest` |
//!
//! Source: docs/protocols/a2a.md §8 and §9.

mod agents;
mod bodies;
mod card;
mod deliver;
mod follow;
mod form;
pub(in crate::doors) mod internal;
mod limits;
mod method;
mod page;
mod parsed;
mod post;
mod push;
mod rest;
mod send;
mod shared;
mod task_methods;
mod v0_3;
mod webhooks;
mod work;

pub(in crate::doors) use self::agents::{
    announce_agent, bad_request, failed, read_body, refusal_of, remove_agent,
};
pub(crate) use self::deliver::Deliveries;
pub(in crate::doors) use self::follow::{TaskEvents, at_rest};
pub(crate) use self::limits::Limits;
pub(in crate::doors) use self::limits::{holding, holding_bytes};
pub(crate) use self::post::EXPOSED;
pub(in crate::doors) use self::post::framed;
pub(crate) use self::shared::{A2a, LiveSettings, Settings};
pub(crate) use self::webhooks::{AllowedUrls, PushSettings};
pub(in crate::doors) use self::work::not_found;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{MethodRouter, any};
use bytes::Bytes;
use http::header::{ALLOW, HeaderValue};
use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::door::{Door, Refusal};
use super::permit::{Action, permit};
use super::rpc::common::Target;
use crate::calls::failure::{Failure, Reason, Recipient};
use crate::clock;
use crate::http::negotiate;
use crate::http::respond::{json_response, refusal};
use crate::metrics::HttpPath;
use crate::readiness::Phase;
use crate::registry::Agents;

/// A document that clients can read.
#[derive(Debug, Clone)]
enum Page {
    ServerCard,
    Agents,
    Agent(String),
    Card(String),
    Health,
    Capabilities,
}

/// The paths of a card, below the URL of an agent or of the server. Clients of different versions try different ones.
const CARD_PATHS: [&str; 3] = [
    "/.well-known/agent-card.json",
    "/.well-known/agent-card",
    "/.well-known/agent.json",
];

/// Creates the state that the A2A interface and the EventMesh gateway share.
/// When `drain` is cancelled, the streams of agents end.
pub(crate) fn open(door: Door, settings: Settings, drain: CancellationToken) -> Arc<A2a> {
    Arc::new(A2a {
        door,
        settings,
        drain,
        changed: clock::now(),
    })
}

/// The paths for A2A clients.
pub(crate) fn router(a2a: &Arc<A2a>) -> Router {
    let mut router = Router::new()
        .route("/", any(to_default_agent))
        .route("/a2a", any(to_default_agent))
        // Some clients join a base URL and an empty path.
        .route("/a2a/agents", page(|_| Page::Agents))
        .route(
            "/a2a/agents/{agent}",
            page(Page::Agent)
                .post(to_agent)
                .put(agents::put)
                .delete(agents::delete),
        )
        .route("/a2a/agents/{agent}/card", page(Page::Card))
        .route("/rpc/{agent}/card", page(Page::Card))
        .route("/a2a/health", page(|_| Page::Health))
        .route("/a2a/capabilities", page(|_| Page::Capabilities));
    for path in CARD_PATHS {
        router = router
            .route(path, page(|_| Page::ServerCard))
            .route(&format!("/a2a{path}"), page(|_| Page::ServerCard))
            .route(&format!("/a2a/agents/{{agent}}{path}"), page(Page::Card))
            .route(&format!("/rpc/{{agent}}{path}"), page(Page::Card));
    }
    router.merge(rest::router()).with_state(Arc::clone(a2a))
}

/// `POST /` and `POST /a2a`.
async fn to_default_agent(State(a2a): State<Arc<A2a>>, request: Request<Body>) -> Response {
    post::serve(&a2a, Target::InPayload, request).await
}

/// `POST /a2a/agents/{name}`.
async fn to_agent(
    State(a2a): State<Arc<A2a>>,
    path: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Response {
    post::serve(&a2a, Target::of_path(path), request).await
}

/// The route of a readable path; `which` selects the page from the name in the path.
fn page(which: fn(String) -> Page) -> MethodRouter<Arc<A2a>> {
    let read = move |State(a2a): State<Arc<A2a>>,
                     name: Result<Path<String>, PathRejection>,
                     request: Request<Body>| async move {
        // A path without a name does not need one; a name that is not UTF-8 matches no agent.
        let name = name.map_or_else(|_| String::new(), |Path(name)| name);
        let page = which(name);
        let response = a2a.read(&page, &request);
        let response = response.unwrap_or_else(|(status, failure)| {
            let dialect = negotiate::dialect(request.headers());
            let mut response = refusal(status, &failure, &Recipient::unknown(dialect));
            if status == StatusCode::METHOD_NOT_ALLOWED {
                response.headers_mut().insert(ALLOW, page.allow());
            }
            response
        });
        a2a.door
            .metrics
            .http_request(HttpPath::A2aCards, response.status());
        response
    };
    any(read)
}

// === impl Page ===

impl Page {
    /// The methods that its path allows.
    fn allow(&self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Agent(_) => "GET, HEAD, POST, PUT, DELETE",
            _ => "GET, HEAD",
        })
    }

    fn wrong_method(&self) -> &'static str {
        match self {
            Self::Agent(_) => "use GET, POST, PUT or DELETE for this path",
            _ => "use GET for this path",
        }
    }

    /// The request headers that its content depends on: URLs in it contain the host, and the list of agents is a stream
    /// for clients that accept only that.
    fn varies_by(&self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Agents => "Host, Accept",
            _ => "Host",
        })
    }
}

// === impl A2a ===

impl A2a {
    fn read(&self, page: &Page, request: &Request<Body>) -> Result<Response, Refusal> {
        let _charge = self.door.check_in(request)?;
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let failure = Failure::new(Reason::InvalidRequest, page.wrong_method());
            return Err((StatusCode::METHOD_NOT_ALLOWED, failure));
        }
        let reader = permit(request.extensions(), Action::ReadCards)
            .map_err(|failure| (StatusCode::FORBIDDEN, failure))?;
        let base = self.base(request.uri(), request.headers())?;
        let agents = self.settings.registry.now();
        let (limits, metrics) = (&self.settings.at_a_time, &self.door.metrics);
        let is_list = matches!(page, Page::Agents);
        let share = is_list.then(|| limits.request(&reader.name, 1, metrics));
        let share = share.transpose()?;
        let document = match page {
            Page::Agents if agents::is_watched(request.headers()) => {
                return Ok(holding(share, self.watched(base, request)?));
            }
            Page::ServerCard => card::of_server(
                &self.settings.instance,
                &agents,
                &self.settings.offer(&base),
            ),
            Page::Card(name) => self.card(name, &base)?,
            Page::Agents => {
                let all = agents.iter();
                let all: Vec<_> = all
                    .map(|(name, agent)| agents::entry(&agents, name, agent, &base))
                    .collect();
                json!({ "agents": all })
            }
            Page::Agent(name) => {
                let mut entry = self.entry(name, &base)?;
                entry["card"] = self.card(name, &base)?;
                entry
            }
            Page::Health => return Ok(self.health()),
            Page::Capabilities => return Ok(uncached(StatusCode::OK, &self.capabilities())),
        };
        let changed = agents.changed().unwrap_or(self.changed);
        let budget = self.door.client_budget(request.extensions());
        let about = (changed, page.varies_by());
        page::response(&document, about, request.headers(), &budget, share)
    }

    fn card(&self, name: &str, base: &str) -> Result<Value, Refusal> {
        let agents = self.settings.registry.now();
        let (name, agent) = agents.get(name).ok_or_else(|| unknown(name, &agents))?;
        Ok(card::of_agent(
            name,
            agent,
            &self.settings.offer_of(base, name),
        ))
    }

    /// An agent in the list of agents.
    fn entry(&self, name: &str, base: &str) -> Result<Value, Refusal> {
        let agents = self.settings.registry.now();
        let (name, agent) = agents.get(name).ok_or_else(|| unknown(name, &agents))?;
        let mut entry = agents::entry(&agents, name, agent, base);
        if let Some(announced) = self.settings.registry.announced(name) {
            let expires = clock::since_1970(self.settings.registry.expires(&announced));
            entry["expiresAt"] = clock::rfc3339(expires).as_str().into();
        }
        Ok(entry)
    }

    /// Proxies check it, and must not send requests to a bridge that is not ready for them.
    fn health(&self) -> Response {
        let agents = self.settings.registry.now();
        let names = agents.names();
        let report = self.door.readiness.report();
        let (code, status) = match (report.ready, report.phase) {
            (true, _) => (StatusCode::OK, "healthy"),
            (false, Phase::Starting) => (StatusCode::SERVICE_UNAVAILABLE, "starting"),
            (false, Phase::Running) => (StatusCode::SERVICE_UNAVAILABLE, "unhealthy"),
            (false, Phase::Draining) => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        };
        let document = json!({
            "status": status,
            "protocol": "A2A",
            "version": card::PROTOCOL_VERSION,
            "agents": names,
            "timestamp": crate::clock::rfc3339(crate::clock::now()).as_str(),
        });
        uncached(code, &document)
    }

    fn capabilities(&self) -> Value {
        let agents = self.settings.registry.now();
        let offer = self.settings.offer("");
        let card = card::of_server(&self.settings.instance, &agents, &offer);
        json!({
            "supportedMethods": parsed::methods(),
            "supportedTransports": ["JSONRPC", "HTTP+JSON"],
            "capabilities": card["capabilities"],
            "inputModes": card["inputModes"],
            "outputModes": card["outputModes"],
        })
    }
}

fn unknown(name: &str, agents: &Agents) -> Refusal {
    (
        StatusCode::NOT_FOUND,
        Failure::unknown_agent(name, agents.names()),
    )
}

fn uncached(status: StatusCode, document: &Value) -> Response {
    json_response(status, Bytes::from(document.to_string()))
}
