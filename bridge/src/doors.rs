//! The HTTP interfaces of the bridge. Each module is called a door.
//!
//! ```text
//! http: listener, connection ──> router ─┬─> rpc: any JSON-RPC request becomes a call
//!                                        ├─> a2a: agent cards, and A2A in three dialects with tasks
//!                                        ├─> mcp: MCP over streamable HTTP, of one agent or of all
//!                                        ├─> eventmesh: the REST gateway of EventMesh, on the tasks of A2A
//!                                        ├─> workflows: the REST interface of the executor
//!                                        └─> admin, on a listener of its own: health and metrics
//! ```
//!
//! Source: docs/design.md §7, §8 and §9.

pub(crate) mod a2a;
pub(crate) mod admin;
mod door;
pub(crate) mod eventmesh;
pub(crate) mod mcp;
pub(crate) mod permit;
mod public_url;
mod rpc;
pub(crate) mod workflows;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderName, Method, Request, Uri};
use axum::response::Response;
use axum::routing::any;
use tower::ServiceExt as _;
use tower_http::cors::{AllowHeaders, CorsLayer};

pub(crate) use self::door::{Door, DoorSettings, StateLines};
pub(crate) use self::public_url::PublicUrl;
pub(crate) use self::rpc::unit::kind_of_sent;

/// How long a browser may remember which requests a web page may send.
const PREFLIGHT_LASTS: Duration = Duration::from_secs(3600);

/// The routes mounted in addition to `/rpc`, under the same rules for web pages.
#[derive(Debug, Default)]
pub(crate) struct Mounted {
    /// The paths.
    pub router: Router,
    /// The response headers that web pages may read.
    pub exposed: Vec<HeaderName>,
}

/// The HTTP listener: `POST /rpc`, `POST /rpc/{agent}` and the mounted routes.
pub(crate) fn router(door: Door, mounted: Mounted) -> Router {
    let (origins, public_url) = (door.allowed_origins.clone(), door.public_url.clone());
    let door = Arc::new(door);
    let router = Router::new()
        .route("/rpc", any(rpc::to_any_agent))
        .route("/rpc/{agent}", any(rpc::to_agent))
        .with_state(Arc::clone(&door))
        .merge(mounted.router);
    let not_found = any(rpc::not_found).with_state(door);
    let exact = router.clone().fallback_service(not_found);
    let router =
        router.fallback(move |request| elsewhere(exact.clone(), public_url.clone(), request));
    if origins.is_empty() {
        return router;
    }
    let pages = CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST, Method::PUT, Method::DELETE])
        // The wildcard would not allow `Authorization`. Source: Fetch standard, section 4.9.
        .allow_headers(AllowHeaders::mirror_request())
        .max_age(PREFLIGHT_LASTS)
        .expose_headers([mounted.exposed, vec![rpc::head::CALL_ID]].concat());
    router.layer(pages)
}

/// Serves a path that has no route: without the path of the public URL, and without a slash at its end.
async fn elsewhere(exact: Router, public_url: PublicUrl, mut request: Request<Body>) -> Response {
    let path = request.uri().path();
    let below = public_url.path_from(path);
    let known = below.as_deref().unwrap_or(path);
    let known = known.strip_suffix('/').unwrap_or(known);
    let shorter = (known.len() < path.len() && !known.is_empty()).then_some(known);
    let shorter = shorter.and_then(|path| {
        let query = request.uri().query().map(|query| format!("?{query}"));
        let target = format!("{path}{}", query.unwrap_or_default());
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = Some(target.parse().ok()?);
        Uri::from_parts(parts).ok()
    });
    if let Some(shorter) = shorter {
        *request.uri_mut() = shorter;
    }
    let Ok(response) = exact.oneshot(request).await;
    response
}
