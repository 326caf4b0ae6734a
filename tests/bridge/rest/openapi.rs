//! Is the OpenAPI document right? Every path, method and status of it is met once, and every answer fits its schema.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use reqwest::{Body, Method, RequestBuilder, Response};
use serde_json::{Value, json};
use support::battery::within;

use super::harness::{BLOCKED_KEY, KEY, TestBridge, answer, call, wait, workflow};
use super::store::Shaky;

/// The document, and which of its responses occurred.
struct Document {
    document: Value,
    covered: BTreeSet<(String, String, String)>,
}

// === impl Document ===

impl Document {
    async fn of(bridge: &TestBridge) -> Self {
        let response = answer(bridge.bare(Method::GET, "/api/v1/openapi.json")).await;
        let mut document = Self {
            document: super::harness::body(response).await,
            covered: BTreeSet::new(),
        };
        let response = answer(bridge.get("/api/v1/openapi.json")).await;
        document
            .check("get", "/api/v1/openapi.json", response)
            .await;
        document
    }

    /// Everything it promises.
    fn promised(&self) -> BTreeSet<(String, String, String)> {
        let mut promised = BTreeSet::new();
        for (path, methods) in self.document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                for status in operation["responses"].as_object().unwrap().keys() {
                    promised.insert((path.clone(), method.clone(), status.clone()));
                }
            }
        }
        promised
    }

    fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        match value["$ref"].as_str() {
            Some(at) => self.document.pointer(at.trim_start_matches('#')).unwrap(),
            None => value,
        }
    }

    /// Checks that the document contains this answer.
    async fn check(&mut self, method: &str, path: &str, response: Response) -> Value {
        let status = response.status().as_str().to_owned();
        let at = format!("{method} {path} {status}");
        let promised = &self.document["paths"][path][method]["responses"][&status];
        assert!(promised.is_object(), "{at} is not in the document");
        let promised = self.resolve(promised).clone();
        for (name, header) in promised["headers"].as_object().into_iter().flatten() {
            let header = self.resolve(header);
            let value = response.headers().get(name.as_str());
            assert!(
                value.is_some() || header["required"] != true,
                "{at}: no {name}"
            );
            let Some(value) = value.map(|value| value.to_str().unwrap()) else {
                continue;
            };
            let value = value
                .parse::<u64>()
                .map_or_else(|_| json!(value), Value::from);
            self.fits(&format!("{at} {name}"), &header["schema"], &value);
        }
        let kind = response.headers()["content-type"]
            .to_str()
            .unwrap()
            .to_owned();
        let schema = &promised["content"][&kind]["schema"];
        let value = super::harness::body(response).await;
        self.fits(&at, schema, &value);
        self.covered
            .insert((path.to_owned(), method.to_owned(), status));
        value
    }

    fn fits(&self, at: &str, schema: &Value, value: &Value) {
        assert!(schema.is_object(), "{at} has no schema");
        let mut schema = schema.clone();
        schema["components"] = self.document["components"].clone();
        let options = jsonschema::options().should_validate_formats(true);
        let validator = options
            .build(&schema)
            .unwrap_or_else(|error| panic!("{at}: {error}"));
        let problems: Vec<_> = validator
            .iter_errors(value)
            .map(|error| error.to_string())
            .collect();
        assert!(problems.is_empty(), "{at}: {problems:?} in {value}");
    }
}

/// The calls, each with a valid body, if it has one.
fn calls() -> Vec<(&'static str, &'static str, Option<Value>)> {
    let body = json!({"workflow": workflow("doc-0", &[("w", wait(0))])});
    vec![
        ("get", "/api/v1/capabilities", None),
        (
            "post",
            "/api/v1/capabilities/search",
            Some(json!({"query": "all users"})),
        ),
        ("post", "/api/v1/workflows/validate", Some(body.clone())),
        ("post", "/api/v1/workflows/execute", Some(body)),
        ("get", "/api/v1/executions", None),
        ("get", "/api/v1/executions/{execution_id}", None),
        ("get", "/api/v1/storage/{storage}", None),
        ("get", "/api/v1/storage/{storage}/{key}", None),
        ("delete", "/api/v1/storage/{storage}/{key}", None),
        ("get", "/api/v1/rate-limit/status", None),
    ]
}

/// A request that is as it should be, but for its key.
fn request(bridge: &TestBridge, method: &str, path: &str, body: Option<&Value>) -> RequestBuilder {
    let path = path.replace("{execution_id}", "doc-0");
    let path = path.replace("{storage}", "localStorage");
    let path = path.replace("{key}", "doc");
    let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
    let request = bridge.bare(method, &path);
    match body {
        Some(body) => request.json(body),
        None => request,
    }
}

/// The answers of every call without permission, over a rate limit, or with an unreadable body.
async fn refusals(bridge: &TestBridge, document: &mut Document) {
    for (method, path, body) in calls() {
        let ask = || request(bridge, method, path, body.as_ref());
        let foreign = || {
            ask()
                .bearer_auth(KEY)
                .header("origin", "https://evil.example.com")
        };
        for request in [
            ask().bearer_auth(KEY),
            ask(),
            ask().bearer_auth(BLOCKED_KEY),
            foreign(),
        ] {
            document.check(method, path, answer(request).await).await;
        }
        if body.is_none() {
            continue;
        }
        let ask = || request(bridge, method, path, None).bearer_auth(KEY);
        let endless = Body::wrap_stream(
            stream::once(async { Ok::<_, std::io::Error>("{") }).chain(stream::pending()),
        );
        for request in [
            ask().header("content-type", "application/json").body("{"),
            ask().header("content-type", "text/plain").body("{}"),
            ask().json(&json!({"workflow": " ".repeat(70_000)})),
            ask()
                .header("content-type", "application/json")
                .body(endless),
        ] {
            document.check(method, path, answer(request).await).await;
        }
    }
}

/// Executions of every kind, and their records.
async fn executions(bridge: &TestBridge, document: &mut Document) {
    let base = &bridge.service.base;
    let filter = json!({"FilterData": {"inputPath": "/workflow/answer", "conditions": [], "outputPath": "/workflow/all"}});
    let decide = json!({"Conditional": {"condition": {"path": "/workflow/answer", "operator": "empty"}, "ifTrue": ["never"], "ifFalse": ["each"]}});
    let each = json!({"Loop": {"inputPath": "/workflow/all", "operations": ["again"], "outputPath": "/workflow/turns"}});
    let full = workflow(
        "doc-full",
        &[
            ("fetch", call(base, "GET", "/users")),
            ("all", filter),
            ("decide", decide),
            ("each", each),
            ("never", wait(1)),
            ("again", wait(2)),
        ],
    );
    let failing = workflow(
        "doc-fail",
        &[("a", call(base, "GET", "/fail")), ("b", wait(0))],
    );
    let path = "/api/v1/workflows/execute";
    let bodies = [
        json!({"workflow": full}),
        json!({"workflow": full}),
        json!({"workflow": workflow("doc-full", &[("w", wait(0))])}),
        json!({"workflow": failing, "onError": "continue"}),
        json!({"workflow": failing.replace("doc-fail", "doc-stop")}),
        json!({"workflow": workflow("doc-async", &[("w", wait(0))]), "async": true}),
        json!({"workflow": workflow("doc-bad", &[("x", json!({"Fly": {}}))])}),
    ];
    for body in bodies {
        document
            .check("post", path, answer(bridge.execute(&body)).await)
            .await;
    }
    for id in ["doc-full", "doc-fail", "doc-stop", "doc-none"] {
        let response = answer(bridge.get(&format!("/api/v1/executions/{id}"))).await;
        document
            .check("get", "/api/v1/executions/{execution_id}", response)
            .await;
    }
    for query in ["limit=2&status=success", "limit=0"] {
        let response = answer(bridge.get(&format!("/api/v1/executions?{query}"))).await;
        document.check("get", "/api/v1/executions", response).await;
    }
    let invalid =
        json!({"workflow": workflow("doc-bad", &[("x", json!({"Fly": {}})), ("y", wait(1))])});
    let request = bridge.post("/api/v1/workflows/validate", &invalid);
    let report = document
        .check("post", "/api/v1/workflows/validate", answer(request).await)
        .await;
    assert_eq!(report["valid"], false);
}

/// The values of every storage.
async fn storages(bridge: &TestBridge, document: &mut Document) {
    let store = |storage: &str| json!({"StoreData": {"inputPath": "/workflow/x", "storage": storage, "key": "a b/ö"}});
    let lines = workflow(
        "doc-store-1",
        &[
            ("local", store("localStorage")),
            ("session", store("sessionStorage")),
        ],
    );
    let body = json!({"workflow": lines, "input": {"x": [{"y": 1}]}, "session": "s 1"});
    let (_, execution) = super::harness::fetch(bridge.execute(&body)).await;
    assert_eq!(execution["status"], "success", "{execution}");
    let one = "/api/v1/storage/{storage}/{key}";
    let key = "a%20b/%C3%B6";
    for (storage, query) in [("localStorage", ""), ("sessionStorage", "?session=s%201")] {
        let all = "/api/v1/storage/{storage}";
        let response = answer(bridge.get(&format!("/api/v1/storage/{storage}"))).await;
        let listed = document.check("get", all, response).await;
        assert_eq!(listed["values"][0]["key"], "a b/ö", "{listed}");
        assert_eq!(listed["count"], 1);
        let path = format!("/api/v1/storage/{storage}/{key}{query}");
        let value = document
            .check("get", one, answer(bridge.get(&path)).await)
            .await;
        assert_eq!(value, json!([{"y": 1}]));
        // Another agent may not look, and would find nothing.
        let other = bridge
            .bare(Method::GET, &path)
            .bearer_auth(super::harness::OTHER_KEY);
        let refused = document.check("get", one, answer(other).await).await;
        assert_eq!(refused["error"]["code"], "storage_not_permitted");
        let remove = || bridge.bare(Method::DELETE, &path).bearer_auth(KEY);
        let removed = document.check("delete", one, answer(remove()).await).await;
        assert_eq!(removed, json!({"removed": true}));
        document.check("delete", one, answer(remove()).await).await;
        document
            .check("get", one, answer(bridge.get(&path)).await)
            .await;
    }
    for wrong in [
        "sessionStorage/k",
        "localStorage/k?session=s",
        "localStorage/%FF",
    ] {
        let path = format!("/api/v1/storage/{wrong}");
        document
            .check("get", one, answer(bridge.get(&path)).await)
            .await;
        let remove = bridge.bare(Method::DELETE, &path).bearer_auth(KEY);
        document.check("delete", one, answer(remove).await).await;
    }
    let nowhere = answer(bridge.get("/api/v1/storage/file")).await;
    document
        .check("get", "/api/v1/storage/{storage}", nowhere)
        .await;
}

/// The answers while the store fails, and while the bridge is shutting down.
async fn troubles(bridge: &TestBridge, store: &Shaky, document: &mut Document) {
    store.fails.store(true, Ordering::SeqCst);
    let execute = json!({"workflow": workflow("doc-store", &[("w", wait(0))])});
    for (method, path, request) in [
        (
            "post",
            "/api/v1/workflows/execute",
            bridge.execute(&execute),
        ),
        (
            "get",
            "/api/v1/executions",
            bridge.get("/api/v1/executions"),
        ),
        (
            "get",
            "/api/v1/executions/{execution_id}",
            bridge.get("/api/v1/executions/doc-full"),
        ),
        (
            "get",
            "/api/v1/storage/{storage}",
            bridge.get("/api/v1/storage/localStorage"),
        ),
        (
            "get",
            "/api/v1/storage/{storage}/{key}",
            bridge.get("/api/v1/storage/localStorage/k"),
        ),
        (
            "delete",
            "/api/v1/storage/{storage}/{key}",
            bridge
                .bare(Method::DELETE, "/api/v1/storage/localStorage/k")
                .bearer_auth(KEY),
        ),
    ] {
        let error = document.check(method, path, answer(request).await).await;
        assert_eq!(error["error"]["code"], "storage_failed", "{path}");
        let suggestion = error["error"]["suggestions"][0].as_str().unwrap();
        assert!(suggestion.contains("/readyz"), "{suggestion}");
        assert!(
            !error.to_string().contains("fails as configured"),
            "{error}"
        );
    }
    store.fails.store(false, Ordering::SeqCst);
    store.forgets.store(true, Ordering::SeqCst);
    let path = "/api/v1/workflows/execute";
    let forgotten = answer(bridge.execute(&execute)).await;
    let error = document.check("post", path, forgotten).await;
    assert_eq!(error["error"]["code"], "record_removed", "{error}");
    store.forgets.store(false, Ordering::SeqCst);
    let slow = workflow(
        "doc-slow",
        &[("slow", call(&bridge.service.base, "GET", "/slow"))],
    );
    let accepted = bridge.execute(&json!({"workflow": slow, "async": true}));
    document
        .check("post", "/api/v1/workflows/execute", answer(accepted).await)
        .await;
    bridge.stop.cancel();
    within("nothing is judged any more", async {
        loop {
            let request = bridge.post("/api/v1/workflows/validate", &execute);
            let response = answer(request).await;
            let status = response.status();
            document
                .check("post", "/api/v1/workflows/validate", response)
                .await;
            if status == 503 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    bridge.service.gate.add_permits(1);
}

#[tokio::test]
async fn the_openapi_document_matches_the_answers() {
    let store = Arc::new(Shaky::with_gate(1));
    let bridge = TestBridge::open_in(Some(store.environment())).await;
    let mut document = Document::of(&bridge).await;
    let health = answer(bridge.bare(Method::GET, "/health")).await;
    document.check("get", "/health", health).await;
    refusals(&bridge, &mut document).await;
    let path = "/api/v1/openapi.json";
    for request in [
        bridge.bare(Method::GET, path).bearer_auth(BLOCKED_KEY),
        bridge
            .get(path)
            .header("origin", "https://evil.example.com"),
    ] {
        document.check("get", path, answer(request).await).await;
    }
    executions(&bridge, &mut document).await;
    storages(&bridge, &mut document).await;
    troubles(&bridge, &store, &mut document).await;
    let uncovered: Vec<_> = document
        .promised()
        .difference(&document.covered)
        .cloned()
        .collect();
    assert!(
        uncovered.is_empty(),
        "promised and not covered: {uncovered:?}"
    );
    within("the bridge ends", bridge.running).await.unwrap();
}
