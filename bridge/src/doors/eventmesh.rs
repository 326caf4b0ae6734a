//! The REST gateway of EventMesh, for its clients. It uses the same agents, calls and tasks as A2A.
//!
//! | path | answer |
//! |---|---|
//! | `GET /a2a/cards/list` | the agents, narrowed by `org_id`, `unit_id`, `agent_id` (`+` is any) |
//! | `GET`, `POST`, `DELETE /a2a/cards/card/{org}/{unit}/{agent}` | a card; announces it, removes it |
//! | `POST /a2a/heartbeat` | renews the lease of an agent |
//! | `POST /a2a/tasks`, with `mode=sync` or `async` | a task for an agent |
//! | `GET /a2a/tasks`, `GET` or `DELETE /a2a/tasks/{task}` | lists tasks, reads one, cancels one |
//! | `GET /a2a/tasks/{task}/wait`, `/stream` | waits for its end, follows it |
//!
//! `GET /a2a/agents` and `/a2a/health` are those of [`super::a2a`].
//!
//! Source: docs/protocols/eventmesh-a2a.md §4.

mod cards;
mod tasks;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use http::{HeaderMap, StatusCode};

use super::a2a::A2a;
use crate::calls::failure::{Failure, Reason, Recipient};
use crate::http::negotiate;
use crate::http::respond::json_response;
use crate::metrics::HttpPath;

/// The paths.
pub(crate) fn router(a2a: &Arc<A2a>) -> Router {
    Router::new()
        .route("/a2a/cards/list", get(cards::list))
        .route(
            "/a2a/cards/card/{org}/{unit}/{agent}",
            get(cards::read).post(cards::register).delete(cards::remove),
        )
        .route("/a2a/heartbeat", post(cards::heartbeat))
        .route("/a2a/tasks", get(tasks::list).post(tasks::create))
        .route("/a2a/tasks/{task}", get(tasks::read).delete(tasks::cancel))
        .route("/a2a/tasks/{task}/wait", get(tasks::wait))
        .route("/a2a/tasks/{task}/stream", get(tasks::follow))
        .method_not_allowed_fallback(wrong_method)
        .with_state(Arc::clone(a2a))
}

/// The response to a method that a path does not have. The router adds `Allow`.
async fn wrong_method(State(a2a): State<Arc<A2a>>, headers: HeaderMap) -> Response {
    let message =
        "this path does not support this method; the header Allow lists those that it does";
    let failure = Failure::new(Reason::InvalidRequest, message);
    let status = StatusCode::METHOD_NOT_ALLOWED;
    a2a.door.metrics.http_request(HttpPath::Other, status);
    let recipient = Recipient::unknown(negotiate::dialect(&headers));
    json_response(status, failure.render(&recipient))
}
