//! The admin interface for operators: liveness, readiness and metrics.
//!
//! It changes nothing and has no authentication. Liveness does not depend on brokers, because restarting this process
//! would not repair a broker. Source: docs/design.md §9 and §10.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};

use crate::http::Hosts;
use crate::metrics::Metrics;
use crate::readiness::Readiness;

/// The state of the admin listener.
#[derive(Debug, Clone)]
pub(crate) struct AdminDoor {
    /// Whether the process is ready.
    pub readiness: Arc<Readiness>,
    /// Its metrics.
    pub metrics: Arc<Metrics>,
    /// The names that clients may send in `Host`.
    pub hosts: Hosts,
}

/// The text format that Prometheus scrapes.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The admin listener: `GET /healthz`, `/readyz` and `/metrics`.
pub(crate) fn router(door: AdminDoor) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(door.hosts.clone(), check_host))
        .with_state(door)
}

async fn check_host(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    let (version, uri, headers) = (request.version(), request.uri(), request.headers());
    match hosts.check(version, uri, headers, "admin.allowed_hosts") {
        Ok(()) => next.run(request).await,
        Err(wrong) => (wrong.status(), format!("{wrong}\n")).into_response(),
    }
}

async fn not_found() -> (StatusCode, &'static str) {
    let text = "this listener serves /healthz, /readyz and /metrics; send calls to http.listen\n";
    (StatusCode::NOT_FOUND, text)
}

async fn wrong_method() -> (StatusCode, &'static str) {
    (StatusCode::METHOD_NOT_ALLOWED, "use GET for this path\n")
}

async fn healthz() -> Response {
    json(StatusCode::OK, r#"{"status":"alive"}"#.to_owned())
}

async fn readyz(State(door): State<AdminDoor>) -> Response {
    let report = door.readiness.report();
    let status = match report.ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    match serde_json::to_string(&report) {
        Ok(body) => json(status, body),
        Err(error) => defect(&error),
    }
}

async fn metrics(State(door): State<AdminDoor>) -> Response {
    let report = door.readiness.report();
    door.metrics.readiness(report.ready, report.degraded.len());
    match door.metrics.render() {
        Ok(text) => ([(CONTENT_TYPE, METRICS_TYPE)], text).into_response(),
        Err(error) => defect(&error),
    }
}

/// A document with a final newline, so that a shell prompt starts on a new line.
fn json(status: StatusCode, mut body: String) -> Response {
    body.push('\n');
    let headers = [
        (CONTENT_TYPE, "application/json"),
        (CACHE_CONTROL, "no-store"),
    ];
    (status, headers, body).into_response()
}

fn defect(error: &(dyn std::error::Error + 'static)) -> Response {
    tracing::error!(error, "the admin listener could not write its response");
    StatusCode::INTERNAL_SERVER_ERROR.into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{Body, to_bytes};
    use http::Request;
    use tower::ServiceExt as _;

    async fn get_text(door: &AdminDoor, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).header("host", "127.0.0.1:9090");
        let request = request.body(Body::empty()).unwrap();
        let response = router(door.clone()).oneshot(request).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    fn door() -> AdminDoor {
        AdminDoor {
            readiness: Arc::new(Readiness::new()),
            metrics: Arc::new(Metrics::new().unwrap()),
            hosts: Hosts::default(),
        }
    }

    #[tokio::test]
    async fn alive_does_not_mean_ready() {
        let door = door();
        let alive = (StatusCode::OK, "{\"status\":\"alive\"}\n".to_owned());
        assert_eq!(get_text(&door, "/healthz").await, alive);
        let (status, body) = get_text(&door, "/readyz").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            body,
            "{\"ready\":false,\"phase\":\"starting\",\"not_ready\":[]}\n"
        );
    }

    #[tokio::test]
    async fn readyz_lists_what_is_not_ready_and_why() {
        let door = door();
        door.readiness.started();
        door.readiness
            .set("transport kafka", Err("no broker answers".into()));
        door.readiness.set("transport nats", Ok(()));
        let (status, body) = get_text(&door, "/readyz").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            body,
            concat!(
                r#"{"ready":false,"phase":"running","not_ready":[{"name":"transport kafka","cause":"no broker answers"}]}"#,
                "\n"
            )
        );
        door.readiness.set("transport kafka", Ok(()));
        let (status, body) = get_text(&door, "/readyz").await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(
            body,
            "{\"ready\":true,\"phase\":\"running\",\"not_ready\":[]}\n"
        );
    }

    #[tokio::test]
    async fn a_host_name_that_is_not_listed_is_refused() {
        let door = AdminDoor {
            hosts: Hosts::new(["a2abus.monitoring".into()]),
            ..door()
        };
        for (host, status) in [
            ("evil.example:9090", StatusCode::MISDIRECTED_REQUEST),
            ("a2abus.monitoring:9090", StatusCode::OK),
            ("localhost:9090", StatusCode::OK),
        ] {
            let request = Request::get("/metrics").header("host", host);
            let request = request.body(Body::empty()).unwrap();
            let response = router(door.clone()).oneshot(request).await.unwrap();
            assert_eq!(response.status(), status, "{host}");
        }
    }

    #[tokio::test]
    async fn a_wrong_path_or_method_is_refused_with_what_is_served() {
        let (status, text) = get_text(&door(), "/rpc").await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        assert!(text.contains("/readyz"), "{text}");
        let request = Request::post("/readyz").header("host", "localhost");
        let request = request.body(Body::empty()).unwrap();
        let refused = router(door()).oneshot(request).await.unwrap();
        assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert!(refused.headers().contains_key("allow"));
        let text = to_bytes(refused.into_body(), usize::MAX).await.unwrap();
        assert_eq!(text, "use GET for this path\n");
    }

    #[tokio::test]
    async fn metrics_are_scraped_as_text() {
        let (status, body) = get_text(&door(), "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert!(body.contains("# HELP a2abus_pending_calls "), "{body}");
    }

    #[tokio::test]
    async fn metrics_show_what_readyz_reports() {
        let door = door();
        let shown = async |ready: u8, degraded: u8| {
            let (_, body) = get_text(&door, "/metrics").await;
            for line in [
                format!("\na2abus_ready {ready}\n"),
                format!("\na2abus_degraded {degraded}\n"),
            ] {
                assert!(body.contains(&line), "{line}\n{body}");
            }
        };
        shown(0, 0).await;
        door.readiness.started();
        door.readiness.degraded("state tasks", "disk full".into());
        shown(1, 1).await;
        door.readiness
            .set("transport kafka", Err("no broker answers".into()));
        shown(0, 1).await;
        door.readiness.set("transport kafka", Ok(()));
        door.readiness.restored("state tasks");
        shown(1, 0).await;
    }
}
