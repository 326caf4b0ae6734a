//! What can be asked of the bridge over HTTP?
//!
//! ```text
//! http: listener, connection ──> router ─┬─> rpc: any JSON-RPC request becomes a call
//!                                        ├─> a2a: agent cards, and A2A in three dialects with tasks
//!                                        ├─> workflows: the REST interface of the executor
//!                                        └─> admin, on a listener of its own: health and metrics
//! ```
//!
//! Source: docs/design.md §7, §8 and §9.

pub(crate) mod a2a;
pub mod admin;
pub(crate) mod permit;
mod rpc;
pub(crate) mod workflows;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Extensions, HeaderName, HeaderValue, Method, Request, StatusCode};
use axum::response::Response;
use axum::routing::any;
use tower_http::cors::{Any, CorsLayer};

use crate::budget::{Charge, Purse};
use crate::bus::headers::PassedHeaders;
use crate::calls::failure::{Failure, Reason, Recipient};
use crate::calls::{CallError, Calls};
use crate::http::respond::refusal;
use crate::http::{Hosts, Peer, negotiate};
use crate::metrics::Metrics;
use crate::readiness::Readiness;

/// The state of the HTTP listener.
#[derive(Debug, Clone)]
pub struct Door {
    /// What makes the calls.
    pub calls: Arc<Calls>,
    /// Where requests are counted.
    pub metrics: Arc<Metrics>,
    /// Whether the bridge is draining: then requests are refused.
    pub readiness: Arc<Readiness>,
    /// The origins of web pages that may send requests.
    pub allowed_origins: Vec<HeaderValue>,
    /// The names by which clients may ask.
    pub hosts: Hosts,
    /// The request headers that reach the agent.
    pub passed: PassedHeaders,
    /// How long the whole body may take to arrive.
    pub body_timeout: Duration,
}

/// What the process mounts beside `/rpc`, under the same rules for web pages.
#[derive(Debug, Default)]
pub struct Mounted {
    /// The paths.
    pub router: Router,
    /// The headers of its responses that pages may read.
    pub exposed: Vec<HeaderName>,
}

/// A request that is refused below JSON-RPC.
type Refusal = (StatusCode, Failure);

// === impl Door ===

impl Door {
    /// Largest request body, in bytes.
    pub(crate) fn largest_body(&self) -> usize {
        self.calls.rules().limits.max_bytes
    }

    /// The share of the sender in the memory for requests.
    pub(crate) fn purse(&self, extensions: &Extensions) -> Purse {
        let peer = extensions.get::<Peer>().map(|Peer(address)| *address);
        self.calls.budget().purse(peer)
    }

    /// Whether a request is for this door, and what its head costs for as long as it is in hand.
    fn check_in(&self, request: &Request<Body>) -> Result<Charge, Refusal> {
        let (version, uri, headers) = (request.version(), request.uri(), request.headers());
        let named = self
            .hosts
            .check(version, uri, headers, "http.allowed_hosts");
        named.map_err(|wrong| {
            let failure = Failure::new(Reason::InvalidRequest, wrong.to_string());
            (wrong.status(), failure)
        })?;
        let each = headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + LINE);
        let charge = self.purse(request.extensions()).charge(each.sum());
        charge.map_err(|spent| {
            let failure = Failure::call(&CallError::Exhausted(spent.into()));
            (StatusCode::TOO_MANY_REQUESTS, failure)
        })
    }

    /// As [`Door::check_in`], with the response to one that is refused.
    #[expect(clippy::result_large_err, reason = "the response is what is sent")]
    pub(crate) fn admit(&self, request: &Request<Body>) -> Result<Charge, Response> {
        self.check_in(request).map_err(|(status, failure)| {
            let recipient = Recipient::unknown(negotiate::dialect(request.headers()));
            refusal(status, &failure, &recipient)
        })
    }
}

/// What a line of a head costs beside its text, in bytes.
const LINE: usize = 64;

/// The HTTP listener: `POST /rpc`, `POST /rpc/{agent}` and what is mounted.
pub fn router(door: Door, mounted: Mounted) -> Router {
    let pages = CorsLayer::new()
        .allow_origin(door.allowed_origins.clone())
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(Any)
        .expose_headers([mounted.exposed, vec![rpc::CALL_ID]].concat());
    Router::new()
        .route("/rpc", any(rpc::to_any_agent))
        .route("/rpc/{agent}", any(rpc::to_agent))
        .fallback(rpc::not_found)
        .with_state(Arc::new(door))
        .merge(mounted.router)
        .layer(pages)
}
