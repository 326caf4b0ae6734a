//! The MCP interface: streamable HTTP, in all its revisions.
//!
//! ```text
//! POST ── envelope: session, revision ──┬─> handshake: answered here
//!                                       ├─> all_agents: names of all agents, routed by them
//!                                       └─> skill: tools of agents that speak A2A
//!                                            └─> answer: Calls ──> parts ──> JSON │ SSE
//!                                                 └─> rounds: questions to clients without a session
//! GET  ── listen: the lists that have changed ── stream: the rest of an answer ── legacy: the transport of 2024-11-05
//! ```
//!
//! | path | who answers |
//! |---|---|
//! | `/mcp/agents/{agent}`, `/rpc/{agent}/mcp` | one agent, its names untouched |
//! | `/mcp` | all agents, their names as `agent.name` |
//!
//! Sessions are not stored: the session id contains everything that later requests need, so any replica can answer
//! them. Ended sessions and cancelled requests are in the log `results`.
//!
//! Source: docs/protocols/mcp.md §5 to §10.

mod all_agents;
mod answer;
mod continued;
mod envelope;
mod handshake;
mod inputs;
mod legacy;
mod listen;
mod places;
mod post;
mod relay;
mod revision;
mod round_state;
mod rounds;
mod running;
mod session;
mod skill;
mod state;
mod stream;
mod subscriptions;

use std::sync::Arc;

use a2abus_plugin::Text;
use a2abus_plugin::protocol::dialect::Dialect;
use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::any;
use http::header::{ACCEPT, ALLOW, HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method, Request, StatusCode};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use self::legacy::Post;
use self::relay::NotRelayed;
use self::session::{SESSION, Session};
use self::state::Mcp;
use super::door::{Door, Refusal};
use super::permit::{Action, Principal, permit};
use super::rpc::common::Target;
use crate::budget::Charge;
use crate::calls::failure::{Failure, Reason, Recipient};
use crate::config::McpConfig;
use crate::http::respond::{accepted, no_content, refusal};
use crate::log_limit::LogLimits;
use crate::metrics::HttpPath;

/// The response headers that web pages may read.
pub(crate) const EXPOSED: [HeaderName; 1] = [SESSION];

/// The paths for MCP clients.
pub(crate) fn router(
    door: Door,
    config: McpConfig,
    drain: CancellationToken,
    log: &LogLimits,
) -> Router {
    let mcp = Mcp::open(door, config.separator.into(), drain, log);
    Router::new()
        .route("/mcp", any(to_all_agents))
        .route("/mcp/agents/{agent}", any(to_agent))
        // Some clients append `/mcp` to every URL.
        .route("/rpc/{agent}/mcp", any(to_agent))
        .with_state(Arc::new(mcp))
}

/// `/mcp`.
async fn to_all_agents(State(mcp): State<Arc<Mcp>>, request: Request<Body>) -> Response {
    mcp.serve(Target::InPayload, request).await
}

/// `/mcp/agents/{agent}` and `/rpc/{agent}/mcp`.
async fn to_agent(
    State(mcp): State<Arc<Mcp>>,
    path: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Response {
    mcp.serve(Target::of_path(path), request).await
}

/// The `Accept` header of clients of 2024-11-05.
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE");

// === impl Mcp ===

impl Mcp {
    async fn serve(self: Arc<Self>, target: Target, request: Request<Body>) -> Response {
        let path = match target {
            Target::InPayload => HttpPath::Mcp,
            Target::Agent(_) | Target::NotAName => HttpPath::McpAgent,
        };
        if *request.method() == Method::POST {
            return match legacy::stream_of(&request) {
                // The futures of rare requests are boxed, so that they do not enlarge the one of all others.
                Some(stream) => Box::pin(self.posted(stream, (path, target), request)).await,
                None => {
                    let recipient = Recipient::unknown(Dialect::Mcp);
                    post::serve(&self, (path, target), recipient, request).await
                }
            };
        }
        let done = match self.admitted(&target, &request) {
            Ok((principal, _charge)) => {
                let (head, _) = request.into_parts();
                Box::pin(self.without_body(&target, principal, head)).await
            }
            Err(refusal) => Err(refusal),
        };
        let response = done.unwrap_or_else(|(status, failure)| {
            let mut response = refusal(status, &failure, &Recipient::unknown(Dialect::Mcp));
            if status == StatusCode::METHOD_NOT_ALLOWED {
                response.headers_mut().insert(ALLOW, METHODS);
            }
            response
        });
        self.door.metrics.http_request(path, response.status());
        response
    }

    /// Processes a POST of a 2024-11-05 client. The answer goes to the client's stream.
    async fn posted(
        self: Arc<Self>,
        stream: Text,
        (path, target): (HttpPath, Target),
        request: Request<Body>,
    ) -> Response {
        match self.whole(&stream, &target, request).await {
            Ok((post, request)) => {
                let results = Arc::clone(&self.door.results);
                results.spawn(async move {
                    let answered = async {
                        let (at, recipient) = ((path, target), post.recipient.clone());
                        let response = post::serve(&self, at, recipient, request).await;
                        legacy::forward(response, &post).await;
                    };
                    tokio::select! {
                        () = answered => {}
                        () = post.sender.closed() => {}
                    }
                });
                accepted()
            }
            Err((status, failure)) => {
                self.door.metrics.http_request(path, status);
                refusal(status, &failure, &Recipient::unknown(Dialect::Mcp))
            }
        }
    }

    /// Reads the body of a request, and finds the session and the handle of its stream.
    async fn whole(
        &self,
        stream: &Text,
        target: &Target,
        request: Request<Body>,
    ) -> Result<(Post, Request<Body>), Refusal> {
        let (_, _charge) = self.admitted(target, &request)?;
        let session = HeaderValue::try_from(stream.as_str()).ok();
        let Some((way, session)) = self.streams.of(stream).zip(session) else {
            let message = "this stream has ended, or is open on another replica: send GET again";
            let failure = Failure::new(Reason::InvalidRequest, message);
            return Err((StatusCode::NOT_FOUND, failure));
        };
        let room = way.posts.try_acquire_owned().map_err(|_| {
            let message = "too many unanswered messages on this stream: send fewer at a time";
            let failure = Failure::new(Reason::Exhausted, message);
            (StatusCode::TOO_MANY_REQUESTS, failure)
        })?;
        let (mut head, body) = request.into_parts();
        let budget = self.door.client_budget(&head.extensions);
        let body = self.door.read_body(&head.headers, body, &budget).await?;
        head.headers.insert(SESSION, session);
        head.headers.insert(ACCEPT, BOTH);
        let post = Post {
            sender: way.sender,
            budget,
            recipient: legacy::recipient_of(&body),
            _room: room,
        };
        Ok((post, Request::from_parts(head, Body::from(body))))
    }

    /// The sender of a request without a body, and the charge for its head.
    fn admitted(
        &self,
        target: &Target,
        request: &Request<Body>,
    ) -> Result<(Principal, Charge), Refusal> {
        let charge = self.door.check_in(request)?;
        self.door.check_origin(request.uri(), request.headers())?;
        let principal = permit(request.extensions(), Action::Call(target.name()))
            .map_err(|failure| (StatusCode::FORBIDDEN, failure))?;
        Ok((principal, charge))
    }

    async fn without_body(
        self: &Arc<Self>,
        target: &Target,
        principal: Principal,
        head: Parts,
    ) -> Result<Response, Refusal> {
        envelope::check_revision(&head.headers)?;
        match head.method {
            Method::GET => self.listen(target, principal, head).await,
            Method::DELETE => self.end(&principal.name, &head.headers).await,
            _ => {
                let message = "use POST, GET or DELETE";
                let failure = Failure::new(Reason::InvalidRequest, message);
                Err((StatusCode::METHOD_NOT_ALLOWED, failure))
            }
        }
    }

    /// `DELETE`: ends a session, and cancels its requests.
    async fn end(
        self: &Arc<Self>,
        caller: &Text,
        headers: &HeaderMap,
    ) -> Result<Response, Refusal> {
        let session = Session::of(headers, &self.door.results)?.ok_or_else(|| {
            let message = "DELETE ends a session: name it in Mcp-Session-Id";
            let failure = Failure::new(Reason::InvalidRequest, message);
            (StatusCode::BAD_REQUEST, failure)
        })?;
        let subscriptions = self.door.results.subscriptions_of(&session.key());
        if !subscriptions.is_empty() {
            // Their agents must be told, but a bridge that drains makes no calls. The client can end the session at
            // another replica.
            self.door.check_running()?;
        }
        let (mcp, caller) = (Arc::clone(self), caller.clone());
        let (ended, is_ended) = oneshot::channel();
        // The client may disconnect meanwhile. Its subscriptions end anyway.
        self.door.results.spawn(async move {
            let noted = mcp.relay.end(&caller, &session.key()).await;
            let is_over = noted.is_ok();
            drop(ended.send(noted));
            if is_over {
                mcp.unsubscribe_all(&caller, subscriptions).await;
            }
        });
        let noted = relay::recorded(is_ended).await;
        noted.map(|()| no_content()).map_err(NotRelayed::refusal)
    }
}
