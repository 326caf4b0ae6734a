//! Authentication, and the answers that need none.

use reqwest::{Method, StatusCode};
use serde_json::json;

use super::harness::{KEY, OTHER_KEY, TestBridge, answer, body, fetch, header, workflow};

#[tokio::test]
async fn health_needs_no_key() {
    let bridge = TestBridge::open().await;
    let response = answer(bridge.bare(Method::GET, "/health")).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(
        body(response).await,
        json!({"status": "healthy", "service": "a2e-server"})
    );
    let response = answer(bridge.bare(Method::POST, "/health")).await;
    assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn an_agent_is_identified_only_by_its_key() {
    let bridge = TestBridge::open().await;
    let ask = || bridge.bare(Method::GET, "/api/v1/capabilities");
    for request in [
        ask(),
        ask().bearer_auth("reporter-key"),
        ask().bearer_auth(""),
        ask().header("x-api-key", "nobody"),
        ask().header("x-agent-id", "reporter"),
        ask().basic_auth("reporter", Some(KEY)),
        ask().bearer_auth("nobody").header("x-api-key", KEY),
    ] {
        let response = answer(request).await;
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(header(&response, "www-authenticate"), "Bearer");
        assert_eq!(header(&response, "x-ratelimit-limit"), "60");
        let error = body(response).await;
        assert_eq!(error["error"]["type"], "PermissionError");
        assert_eq!(error["error"]["code"], "unauthorized");
    }
    for (request, agent) in [
        (ask().bearer_auth(KEY), "reporter"),
        (
            ask().header("authorization", format!("bearer {KEY}")),
            "reporter",
        ),
        (ask().header("x-api-key", KEY), "reporter"),
        (ask().header("x-api-key", OTHER_KEY), "other"),
    ] {
        let (status, answer) = fetch(request).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(answer["agent_id"], agent);
    }
}

#[tokio::test]
async fn capabilities_list_only_what_the_agent_may_use() {
    let bridge = TestBridge::open().await;
    let (_, answer) = fetch(bridge.get("/api/v1/capabilities")).await;
    let base = &bridge.service.base;
    assert_eq!(
        answer,
        json!({
            "agent_id": "reporter",
            "capabilities": {
                "availableApis": [{
                    "id": "svc", "baseUrl": base, "description": "Users and orders.",
                    "endpoints": [{"path": "/users", "method": "GET", "description": "All users with their points.", "parameters": {"limit": {"type": "integer"}}}],
                }],
                "availableCredentials": [{"id": "token", "type": "bearer-token", "description": "The key of the service.", "metadata": {"apis": ["svc"]}}],
                "supportedOperations": ["ApiCall", "FilterData", "TransformData", "Conditional", "Loop", "StoreData", "Wait", "MergeData"],
                "knowledgeBases": [],
                "securityConstraints": {"maxExecutionTime": 30000, "maxOperations": 20, "allowedDomains": ["127.0.0.1"]},
            },
        })
    );
    let other = bridge
        .bare(Method::GET, "/api/v1/capabilities")
        .bearer_auth(OTHER_KEY);
    let (_, answer) = fetch(other).await;
    let capabilities = &answer["capabilities"];
    assert_eq!(capabilities["availableApis"], json!([]));
    assert_eq!(capabilities["availableCredentials"], json!([]));
    assert_eq!(capabilities["supportedOperations"], json!(["Wait"]));
}

#[tokio::test]
async fn a_search_finds_what_the_agent_may_use() {
    let bridge = TestBridge::open().await;
    let search = |body| bridge.post("/api/v1/capabilities/search", &body);
    let (status, answer) = fetch(search(json!({"query": "list all users", "top_k": 2}))).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(answer["query"], "list all users");
    assert_eq!(answer["count"], 2);
    let best = &answer["results"][0];
    assert_eq!(best["kind"], "endpoint", "{answer}");
    assert_eq!(best["id"], "svc GET /users");
    assert_eq!(
        best["schema"]["url"],
        format!("{}/users", bridge.service.base)
    );
    let (_, answer) = fetch(search(json!({"query": "filter an array"}))).await;
    assert_eq!(answer["results"][0]["id"], "FilterData");
    assert_eq!(answer["results"][0]["schema"]["required"][0], "inputPath");
    let (_, answer) = fetch(search(json!({"query": "hidden unseen"}))).await;
    assert_eq!(answer["results"], json!([]), "neither is for this agent");
}

#[tokio::test]
async fn the_schemas_of_operations_accept_what_the_validation_accepts() {
    let bridge = TestBridge::open().await;
    let query = json!({"query": "combine values into one array: union, concat", "top_k": 1});
    let search = bridge.post("/api/v1/capabilities/search", &query);
    let (_, answer) = fetch(search).await;
    assert_eq!(answer["results"][0]["id"], "MergeData", "{answer}");
    let schema = &answer["results"][0]["schema"];
    let schema = jsonschema::options().build(schema).unwrap();
    for (source, output, is_valid) in [
        ("/workflow/a.b[0]", "/workflow/o", true),
        ("/localStorage/a", "/workflow/o", true),
        ("/sessionStorage[\"a/b\"].c", "/workflow/o", true),
        ("/file/a", "/workflow/o", false),
        ("/localStorages/a", "/workflow/o", false),
        ("/workflow/a", "/localStorage/o", false),
    ] {
        let config =
            json!({"sources": [source, "/workflow/x"], "strategy": "concat", "outputPath": output});
        assert_eq!(schema.is_valid(&config), is_valid, "{config}");
        let merge = json!({"MergeData": config});
        let lines = workflow("s-1", &[("m", merge)]);
        let body = json!({"workflow": lines, "input": {"a": {"b": [1]}, "x": 1}});
        let (_, report) = fetch(bridge.post("/api/v1/workflows/validate", &body)).await;
        assert_eq!(report["valid"], is_valid, "{config}: {report}");
    }
}

#[tokio::test]
async fn pages_of_other_sites_are_refused() {
    let bridge = TestBridge::open().await;
    let ask = |origin: &str| bridge.get("/api/v1/capabilities").header("origin", origin);
    let response = answer(ask("https://evil.example.com")).await;
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert_eq!(header(&response, "x-ratelimit-limit"), "1000");
    let response = answer(ask("https://app.example.com")).await;
    assert_eq!(response.status(), StatusCode::OK);
    let exposed = header(&response, "access-control-expose-headers");
    assert!(exposed.contains("x-ratelimit-remaining"), "{exposed}");
    let preflight = bridge
        .bare(Method::OPTIONS, "/api/v1/capabilities")
        .header("origin", "https://app.example.com")
        .header("access-control-request-method", "GET");
    let allowed = header(&answer(preflight).await, "access-control-allow-methods");
    assert!(allowed.contains("GET"), "{allowed}");
}

#[tokio::test]
async fn unknown_calls_are_refused_with_a_reason() {
    let bridge = TestBridge::open().await;
    for path in [
        "/api",
        "/api/",
        "/api/v1",
        "/api/v2/capabilities",
        "/api/v1/executions/",
        "/api/v1/executions/a/b",
    ] {
        let (status, answer) = fetch(bridge.get(path)).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
        assert_eq!(answer["error"]["type"], "RequestError", "{path}");
    }
    for (method, path, allow) in [
        (Method::DELETE, "/api/v1/executions/x", "GET, HEAD"),
        (Method::POST, "/api/v1/capabilities", "GET, HEAD"),
        (Method::GET, "/api/v1/workflows/execute", "POST"),
        (Method::PUT, "/api/v1/capabilities/search", "POST"),
    ] {
        let response = answer(bridge.bare(method, path).bearer_auth(KEY)).await;
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED, "{path}");
        assert_eq!(header(&response, "allow"), allow);
        assert_eq!(header(&response, "x-ratelimit-limit"), "1000");
    }
}

#[tokio::test]
async fn bodies_that_cannot_be_used_say_why() {
    let bridge = TestBridge::open().await;
    let workflow = "{}";
    for (path, body, code) in [
        ("workflows/execute", "{".to_owned(), "invalid_json"),
        ("workflows/execute", "[]".to_owned(), "not_an_object"),
        ("workflows/execute", "{}".to_owned(), "missing_field"),
        (
            "workflows/execute",
            json!({"workflow": 7}).to_string(),
            "invalid_field",
        ),
        (
            "workflows/execute",
            json!({"workflow": workflow, "validate": false}).to_string(),
            "invalid_field",
        ),
        (
            "workflows/execute",
            json!({"workflow": workflow, "onerror": "stop"}).to_string(),
            "unknown_field",
        ),
        (
            "workflows/execute",
            json!({"workflow": workflow, "onError": "go"}).to_string(),
            "invalid_field",
        ),
        (
            "workflows/execute",
            json!({"workflow": workflow, "async": 1}).to_string(),
            "invalid_field",
        ),
        (
            "workflows/validate",
            json!({"workflow": workflow, "level": "soft"}).to_string(),
            "invalid_field",
        ),
        (
            "workflows/validate",
            json!({"workflow": workflow, "input": []}).to_string(),
            "invalid_field",
        ),
        (
            "capabilities/search",
            json!({"query": "x", "top_k": 0}).to_string(),
            "invalid_field",
        ),
        (
            "capabilities/search",
            json!({"query": "x".repeat(2_000)}).to_string(),
            "invalid_field",
        ),
    ] {
        let request = bridge.bare(Method::POST, &format!("/api/v1/{path}"));
        let request = request
            .bearer_auth(KEY)
            .header("content-type", "application/json");
        let (status, answer) = fetch(request.body(body.clone())).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path} {body}");
        assert_eq!(answer["error"]["code"], code, "{path} {body}");
        assert_eq!(answer["error"]["type"], "ValidationError", "{path} {body}");
        assert!(
            answer["error"]["suggestions"][0].is_string(),
            "{path} {body}"
        );
    }
    for (body, named) in [
        (r#"{"workflow":"a","workflow":"b"}"#, "workflow"),
        (r#"{"workflow":"a","input":{"b":1,"b":2}}"#, "input.b"),
        (r#"{"workflow":"a","onerror":"stop"}"#, "onerror"),
    ] {
        let request = bridge.bare(Method::POST, "/api/v1/workflows/execute");
        let request = request
            .bearer_auth(KEY)
            .header("content-type", "application/json");
        let (status, answer) = fetch(request.body(body)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(&format!("{named:?}")), "{message}");
    }
    for query in ["limit=0", "limit=1001", "limit=x", "status=done", "page=2"] {
        let (status, _) = fetch(bridge.get(&format!("/api/v1/executions?{query}"))).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}");
    }
    let text = bridge
        .bare(Method::POST, "/api/v1/workflows/execute")
        .bearer_auth(KEY);
    let (status, _) = fetch(text.header("content-type", "text/plain").body("{}")).await;
    assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let large = bridge.execute(&json!({"workflow": " ".repeat(70_000)}));
    assert_eq!(fetch(large).await.0, StatusCode::PAYLOAD_TOO_LARGE);
}
