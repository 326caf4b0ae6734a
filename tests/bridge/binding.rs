//! The HTTP+JSON binding of A2A 1.0 and 0.3: the same tasks as through JSON-RPC, as paths.

use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};

use crate::http::SOON;
use crate::tasks::{Bus, Stream};

const AGENT: &str = "/a2a/agents/weather";

impl Bus {
    fn at(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("{}{path}", self.front.base);
        Client::new().request(method, url).timeout(SOON)
    }

    async fn posted(&self, path: &str, body: &Value) -> Response {
        let sent = self.at(Method::POST, path).json(body);
        sent.header("a2a-version", version(path))
            .send()
            .await
            .unwrap()
    }

    /// The answer to a request with a body.
    pub(crate) async fn post_to(&self, path: &str, body: &Value) -> Value {
        answer(self.posted(path, body).await).await
    }

    /// The answer to one without.
    pub(crate) async fn get_from(&self, path: &str) -> Value {
        let sent = self.at(Method::GET, path);
        let response = sent.header("a2a-version", version(path)).send().await;
        answer(response.unwrap()).await
    }

    pub(crate) async fn delete_at(&self, path: &str) -> Value {
        let sent = self.at(Method::DELETE, path).send().await.unwrap();
        answer(sent).await
    }

    async fn refused(&self, method: Method, path: &str, body: Option<&str>) -> (u16, Value) {
        let mut sent = self.at(method, path);
        if let Some(body) = body {
            sent = sent
                .body(body.to_owned())
                .header("content-type", "application/json");
        }
        let response = sent.send().await.unwrap();
        let status = response.status();
        assert!(!status.is_success(), "{path}: {status}");
        (status.as_u16(), response.json().await.unwrap())
    }
}

fn version(path: &str) -> &'static str {
    if path.contains("/v1/") { "0.3" } else { "1.0" }
}

async fn answer(response: Response) -> Value {
    let status = response.status();
    let text = response.text().await.unwrap();
    assert_eq!(status, StatusCode::OK, "{text}");
    serde_json::from_str(&text).unwrap()
}

fn user_message(text: &str) -> Value {
    json!({ "message": {
        "role": "ROLE_USER", "messageId": format!("m-{text}"), "contextId": "c-1", "parts": [{ "text": text }],
    }})
}

/// The same as a message of protocol buffers.
fn message_0_3(text: &str) -> Value {
    json!({ "message": {
        "role": "ROLE_USER", "messageId": format!("m-{text}"), "contextId": "c-1", "content": [{ "text": text }],
    }})
}

#[tokio::test]
async fn a_message_is_sent_and_its_task_is_read_listed_and_cancelled() {
    let mut bus = Bus::open().await;
    let sent = bus
        .posted(&format!("{AGENT}/message:send"), &user_message("task"))
        .await;
    assert_eq!(sent.headers()["content-type"], "application/json");
    let named = bus.at(Method::GET, &format!("{AGENT}/tasks/none"));
    let named = named.header("accept", "application/a2a+json");
    let named = named.send().await.unwrap();
    assert_eq!(named.headers()["content-type"], "application/a2a+json");
    assert_eq!(sent.headers()["a2a-version"], "1.0");
    assert!(sent.headers().contains_key("x-a2abus-call-id"));
    let sent = answer(sent).await;
    let task = &sent["task"];
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED");
    assert_eq!(task["artifacts"][0]["parts"][0], json!({ "text": "sun" }));
    let request = bus.next_request().await;
    assert_eq!(request["method"], "SendMessage");
    assert_eq!(request["params"], user_message("task"), "it is unchanged");
    let id = task["id"].as_str().unwrap();
    let read = bus
        .get_from(&format!("{AGENT}/tasks/{id}?historyLength=1"))
        .await;
    assert_eq!(read["id"], task["id"]);
    assert_eq!(read["history"].as_array().unwrap().len(), 1);
    // A task that is read in another way is the same.
    let as_rpc = bus.ask("tasks/get", json!({ "id": id })).await;
    assert_eq!(as_rpc["result"]["artifacts"][0]["artifactId"], "a");
    bus.post_to(&format!("{AGENT}/message:send"), &user_message("snapshot"))
        .await;
    let path = format!(
        "{AGENT}/tasks?contextId=c-1&pageSize=1&status=TASK_STATE_COMPLETED&includeArtifacts=true"
    );
    let listed = bus.get_from(&path).await;
    assert_eq!(listed["totalSize"], 2);
    assert_eq!(listed["pageSize"], 1);
    assert_eq!(listed["tasks"].as_array().unwrap().len(), 1);
    assert!(listed["tasks"][0]["artifacts"].is_array());
    let next = listed["nextPageToken"].as_str().unwrap();
    let listed = bus.get_from(&format!("{path}&pageToken={next}")).await;
    assert_eq!(listed["tasks"][0]["id"], task["id"]);
    assert_eq!(listed["nextPageToken"], "");
    let held = bus
        .post_to(
            &format!("{AGENT}/message:send"),
            &json!({ "message": user_message("hold")["message"], "configuration": { "returnImmediately": true } }),
        )
        .await;
    let id = held["task"]["id"].as_str().unwrap();
    let cancelled = bus
        .post_to(&format!("{AGENT}/tasks/{id}:cancel"), &json!({}))
        .await;
    assert_eq!(cancelled["status"]["state"], "TASK_STATE_CANCELED");
    let metrics = bus.front.admin("/metrics").await;
    let line = r#"a2abus_a2a_requests_total{binding="http+json",method="cancel",outcome="ok",version="1.0"} 1"#;
    assert!(metrics.contains(line), "{metrics}");
    let line = r#"a2abus_tasks_ended_total{state="canceled"} 1"#;
    assert!(metrics.contains(line), "{metrics}");
}

#[tokio::test]
async fn a_stream_has_results_without_an_envelope_and_resumes() {
    let bus = Bus::open().await;
    let path = format!("{AGENT}/message:stream");
    let mut stream = Stream::of(bus.posted(&path, &user_message("hold")).await);
    let first = stream.next().await.unwrap();
    let id = first.json()["task"]["id"].as_str().unwrap().to_owned();
    assert_eq!(
        first.json()["task"]["status"]["state"],
        "TASK_STATE_SUBMITTED"
    );
    let working = stream.next().await.unwrap();
    assert_eq!(
        working.json()["statusUpdate"]["status"]["state"],
        "TASK_STATE_WORKING"
    );
    // Others follow it, from now on or from an event on, with either verb.
    let path = format!("{AGENT}/tasks/{id}:subscribe");
    let follow = async |method: Method, last: Option<&str>| {
        let mut sent = bus.at(method, &path).header("a2a-version", "1.0");
        if let Some(last) = last {
            sent = sent.header("last-event-id", last);
        }
        Stream::of(sent.send().await.unwrap())
    };
    let mut again = follow(Method::GET, None).await;
    let task = again.next().await.unwrap();
    assert_eq!(task.json()["task"]["status"]["state"], "TASK_STATE_WORKING");
    let back = follow(Method::POST, Some(&first.id.clone().unwrap())).await;
    bus.gate.add_permits(1);
    let rest = stream.rest().await;
    assert_eq!(rest.len(), 2);
    assert_eq!(
        rest[0].json()["artifactUpdate"]["artifact"]["artifactId"],
        "a"
    );
    assert_eq!(
        rest[1].json()["statusUpdate"]["status"]["state"],
        "TASK_STATE_COMPLETED"
    );
    assert_eq!(again.rest().await, rest);
    let mut whole = vec![working];
    whole.extend(rest);
    assert_eq!(back.rest().await, whole);
    // It has ended.
    let (status, refused) = bus.refused(Method::GET, &path, None).await;
    assert_eq!(status, 400);
    let reason = &refused["error"]["details"][0]["reason"];
    assert_eq!(reason, "UNSUPPORTED_OPERATION");
}

#[tokio::test]
async fn clients_of_0_3_send_messages_of_protocol_buffers() {
    let mut bus = Bus::open().await;
    let path = format!("{AGENT}/v1/message:send");
    let sent = bus.post_to(&path, &message_0_3("task")).await;
    let task = &sent["task"];
    assert_eq!(task.get("kind"), None);
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED");
    assert_eq!(task["history"][0]["content"][0], json!({ "text": "task" }));
    // The agent gets the method and the members of JSON-RPC.
    let request = bus.next_request().await;
    assert_eq!(request["method"], "message/send");
    let message = &request["params"]["message"];
    assert_eq!(message["kind"], "message");
    assert_eq!(message["role"], "user");
    assert_eq!(
        message["parts"],
        json!([{ "kind": "text", "text": "task" }])
    );
    let id = task["id"].as_str().unwrap();
    let read = bus.get_from(&format!("{AGENT}/v1/tasks/{id}")).await;
    assert_eq!(&read, task);
    let sent = bus
        .post_to("/v1/message:send", &message_0_3("message"))
        .await;
    assert_eq!(sent["message"]["role"], "ROLE_AGENT");
    let stream = bus
        .posted(&format!("{AGENT}/v1/message:stream"), &message_0_3("task"))
        .await;
    let events = Stream::of(stream).rest().await;
    assert!(events[0].json()["task"].is_object());
    let last = events.last().unwrap().json();
    assert_eq!(last["statusUpdate"]["final"], true);
    let card = bus.get_from(&format!("{AGENT}/v1/card")).await;
    assert_eq!(card["name"], "weather");
    // Errors are those of 0.3.
    let (status, refused) = bus
        .refused(Method::GET, &format!("{AGENT}/v1/tasks/nope"), None)
        .await;
    assert_eq!(status, 404);
    assert_eq!(refused["code"], -32001);
    assert_eq!(refused["type"], "TaskNotFoundError");
    // For a URL that ends with /v1, the header decides the version.
    let sent = bus.at(Method::GET, &format!("{AGENT}/v1/tasks/{id}"));
    let read = sent.header("a2a-version", "1.0").send().await.unwrap();
    let read = answer(read).await;
    assert_eq!(read["history"][0]["parts"][0], json!({ "text": "task" }));
}

#[tokio::test]
async fn the_server_and_a_tenant_have_the_same_paths() {
    let bus = Bus::open().await;
    for path in ["/message:send", "/weather/message:send", "/message%3asend"] {
        let sent = bus.post_to(path, &user_message("message")).await;
        assert_eq!(
            sent["message"]["parts"][0],
            json!({ "text": "sunny" }),
            "{path}"
        );
    }
    let listed = bus.get_from("/tasks").await;
    assert_eq!(listed["totalSize"], 0);
    let card = bus.get_from("/extendedAgentCard").await;
    let interfaces = card["supportedInterfaces"].as_array().unwrap();
    let url = |binding: &str| {
        let is_it = |one: &&Value| one["protocolBinding"] == binding;
        interfaces.iter().find(is_it).unwrap()["url"].clone()
    };
    assert_eq!(url("HTTP+JSON"), bus.front.base);
    assert_eq!(url("JSONRPC"), format!("{}/a2a", bus.front.base));
    let (status, refused) = bus.refused(Method::GET, "/nobody/tasks", None).await;
    assert_eq!(status, 404);
    let metadata = &refused["error"]["details"][0]["metadata"];
    assert_eq!(metadata["availableAgents"], r#"["maps","weather"]"#);
}

#[tokio::test]
async fn errors_have_a_status_and_a_reason() {
    let bus = Bus::open().await;
    let send = format!("{AGENT}/message:send");
    let check =
        async |method: Method, path: &str, body: Option<&str>, status: u16, reason: &str| {
            let (found, refused) = bus.refused(method, path, body).await;
            let error = &refused["error"];
            let details = &error["details"][0];
            assert_eq!(
                (found, &details["reason"]),
                (status, &json!(reason)),
                "{path}: {refused}"
            );
            assert_eq!(error["code"], status);
            assert!(error["message"].is_string());
            assert_eq!(details["domain"], "a2a-protocol.org");
        };
    check(Method::POST, &send, Some("{"), 400, "PARSE_ERROR").await;
    check(
        Method::POST,
        &send,
        Some(r#"{},"method":"x""#),
        400,
        "PARSE_ERROR",
    )
    .await;
    check(Method::POST, &send, Some("[]"), 400, "INVALID_PARAMS").await;
    check(Method::POST, &send, Some("{}"), 400, "INVALID_PARAMS").await;
    check(Method::DELETE, &send, None, 405, "INVALID_REQUEST").await;
    let task = format!("{AGENT}/tasks/nope");
    check(Method::GET, &task, None, 404, "TASK_NOT_FOUND").await;
    check(Method::PUT, &task, None, 405, "INVALID_REQUEST").await;
    for (accept, content_type) in [
        ("application/json", "application/json"),
        ("application/a2a+json", "application/a2a+json"),
    ] {
        let sent = bus.at(Method::PUT, &task).header("accept", accept).send();
        let refused = sent.await.unwrap();
        assert_eq!(refused.headers()["content-type"], content_type);
        assert_eq!(refused.headers()["allow"], "GET");
    }
    check(
        Method::POST,
        &format!("{task}:cancel"),
        None,
        404,
        "TASK_NOT_FOUND",
    )
    .await;
    let list = format!("{AGENT}/tasks?pageSize=many");
    check(Method::GET, &list, None, 400, "INVALID_PARAMS").await;
    let push = format!("{task}/pushNotificationConfigs");
    check(
        Method::GET,
        &push,
        None,
        400,
        "PUSH_NOTIFICATION_NOT_SUPPORTED",
    )
    .await;
    let stream = "/a2a/agents/maps/message:stream";
    let body = user_message("task").to_string();
    check(
        Method::POST,
        stream,
        Some(&body),
        400,
        "UNSUPPORTED_OPERATION",
    )
    .await;
    // An error of the agent keeps its code.
    let (status, refused) = bus
        .refused(
            Method::POST,
            &send,
            Some(&user_message("error").to_string()),
        )
        .await;
    assert_eq!(status, 500);
    assert_eq!(refused["error"]["message"], "no such city");
    assert_eq!(refused["error"]["details"][0]["metadata"]["code"], "-32050");
    let sent = bus
        .at(Method::POST, &send)
        .body("x")
        .header("content-type", "text/plain");
    let refused = sent.send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    for version in ["0.5", "0.3"] {
        let sent = bus.at(Method::GET, &task).header("a2a-version", version);
        let refused = sent.send().await.unwrap();
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
        let refused: Value = refused.json().await.unwrap();
        let reason = &refused["error"]["details"][0]["reason"];
        assert_eq!(reason, "VERSION_NOT_SUPPORTED");
    }
}
