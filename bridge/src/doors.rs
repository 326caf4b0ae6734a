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
mod rpc;
pub(crate) mod workflows;

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderName, Method};
use axum::routing::any;
use tower_http::cors::{Any, CorsLayer};

pub(crate) use self::door::Door;

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
    let origins = door.allowed_origins.clone();
    let router = Router::new()
        .route("/rpc", any(rpc::to_any_agent))
        .route("/rpc/{agent}", any(rpc::to_agent))
        .fallback(rpc::not_found)
        .with_state(Arc::new(door))
        .merge(mounted.router);
    if origins.is_empty() {
        return router;
    }
    let pages = CorsLayer::new()
        .allow_origin(origins)
        .allow_methods([Method::GET, Method::POST, Method::PUT, Method::DELETE])
        .allow_headers(Any)
        .expose_headers([mounted.exposed, vec![rpc::head::CALL_ID]].concat());
    router.layer(pages)
}
