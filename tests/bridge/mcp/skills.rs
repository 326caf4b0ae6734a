//! Agents that speak A2A, as MCP clients see them.

use reqwest::Client;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Servers, continues_after_each_event, json_of, request, status_and_code};
use crate::a2a::read_events;
use crate::http::SOON;

/// Where the agent reads.
pub(super) const TOPIC: &str = "mcp.trips";

const CONFIG: &str = r#"
instance: test
transports:
  local: { type: memory }
agents:
  # An MCP server that also shows a skill.
  maps:
    description: Maps.
    skills: [ { id: look, description: Looks. } ]
    to: { transport: local, topic: mcp.maps }
  trips:
    description: Trips.
    version: "3"
    protocol: a2a
    skills: [ { id: plan, name: Plan, description: Plans a trip., examples: [ Three days in Oslo ] } ]
    to: { transport: local, topic: mcp.trips }
  # It answers tools/list with something else.
  tours:
    description: Tours.
    skills: [ { id: book, description: Books a tour. } ]
    to: { transport: local, topic: mcp.trips }
calls: { timeout: 60s }
http: { listen: "127.0.0.1:0", drain_grace: 5s }
admin: { listen: "127.0.0.1:0" }
"#;

/// What the agent answers, by the text that it is sent.
pub(super) fn answers(request: &Value) -> Vec<String> {
    let message = &request["params"]["message"];
    let agent_message = |text: &str| json!({ "kind": "message", "role": "agent", "messageId": "m", "parts": [{ "kind": "text", "text": text }] });
    let status = |state: &str, is_final: bool| {
        json!({ "kind": "status-update", "taskId": "t-1", "contextId": message["contextId"], "final": is_final,
            "status": { "state": state, "message": agent_message(state) } })
    };
    let artifact = json!({ "kind": "artifact-update", "taskId": "t-1", "artifact": {
        "artifactId": "a", "parts": [{ "kind": "data", "data": { "days": 3 } }] } });
    let results = match message["parts"][0]["text"].as_str().unwrap_or_default() {
        "stream" => vec![
            status("working", false),
            artifact,
            status("completed", true),
        ],
        "ask" => vec![status("input-required", true)],
        "fail" => vec![status("failed", true)],
        "hang" => vec![status("working", false)],
        "refuse" => {
            let error = json!({ "code": -32_004, "message": "not that" });
            return vec![
                json!({ "jsonrpc": "2.0", "id": request["id"], "error": error }).to_string(),
            ];
        }
        _ => vec![agent_message("hello")],
    };
    let response = |result| json!({ "jsonrpc": "2.0", "id": request["id"], "result": result });
    results
        .into_iter()
        .map(|result| response(result).to_string())
        .collect()
}

fn call(name: &str, arguments: &Value) -> String {
    request(
        4,
        "tools/call",
        json!({ "name": name, "arguments": arguments }),
    )
}

async fn result(servers: &Servers, path: &str, name: &str, arguments: Value) -> Value {
    let response = servers.post(path, call(name, &arguments)).send().await;
    json_of(response.unwrap()).await["result"].clone()
}

#[tokio::test]
async fn a_skill_is_a_tool() {
    let mut servers = Servers::open_with(CONFIG).await;
    let list = async |path: &str| {
        let response = servers
            .post(path, request(1, "tools/list", json!({})))
            .send()
            .await;
        json_of(response.unwrap()).await["result"]["tools"].clone()
    };
    let all = list("/mcp").await;
    let names = all.as_array().unwrap().iter().map(|tool| &tool["name"]);
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["maps.one", "maps.two", "tours.book", "trips.plan"]
    );
    let own = list("/mcp/agents/trips").await;
    assert_eq!(own.as_array().unwrap().len(), 1);
    let tool = &own[0];
    assert_eq!(
        (&tool["name"], &tool["title"]),
        (&json!("plan"), &json!("Plan"))
    );
    assert_eq!(
        tool["description"],
        "Plans a trip.\nExample: Three days in Oslo"
    );
    assert_eq!(tool["inputSchema"]["required"], json!(["text"]));
    let response = servers.post("/mcp/agents/trips", request(2, "initialize", json!({})));
    let response = json_of(response.send().await.unwrap()).await["result"].clone();
    assert_eq!(
        response["serverInfo"],
        json!({ "name": "trips", "version": "3" })
    );
    assert_eq!(response["instructions"], "Trips.");
    let prompts = servers.post("/mcp/agents/trips", request(3, "prompts/list", json!({})));
    assert_eq!(status_and_code(prompts).await.1, -32_601);
    let unknown = servers.post("/mcp/agents/trips", call("nope", &json!({ "text": "x" })));
    assert_eq!(status_and_code(unknown).await.1, -32_602);

    let tours = result(
        &servers,
        "/mcp/agents/tours",
        "book",
        json!({ "text": "hi" }),
    )
    .await;
    assert_eq!(tours["content"][0]["text"], "hello");
    let arguments = json!({ "text": "hi", "data": { "n": 1.0 }, "contextId": "c-7",
        "files": [{ "uri": "https://example.com/a.pdf", "mimeType": "application/pdf" }] });
    let answer = result(&servers, "/mcp", "trips.plan", arguments).await;
    let content = json!([{ "type": "text", "text": "hello" }]);
    assert_eq!(
        (&answer["content"], &answer["isError"]),
        (&content, &json!(false))
    );
    assert_eq!(
        answer["structuredContent"],
        json!({ "state": "completed", "contextId": "c-7" })
    );
    let mut agent_request = next_of_trips(&mut servers).await;
    while agent_request["params"]["message"]["contextId"] != "c-7" {
        // The request to the agent without `protocol`.
        assert_ne!(
            agent_request["params"]["message"]["metadata"]["skillId"],
            "plan"
        );
        agent_request = next_of_trips(&mut servers).await;
    }
    assert_eq!(agent_request["method"], "message/send");
    let message = &agent_request["params"]["message"];
    let parts = json!([
        { "kind": "text", "text": "hi" },
        { "kind": "data", "data": { "n": 1.0 } },
        { "kind": "file", "file": { "uri": "https://example.com/a.pdf", "mimeType": "application/pdf" } },
    ]);
    assert_eq!(
        (&message["parts"], &message["contextId"]),
        (&parts, &json!("c-7"))
    );
    assert_eq!(servers.last_key.as_deref(), Some(&b"c-7"[..]));
    assert_eq!(
        (&message["role"], &message["metadata"]),
        (&json!("user"), &json!({ "skillId": "plan" }))
    );
}

async fn next_of_trips(servers: &mut Servers) -> Value {
    loop {
        let (topic, body) = servers.next_request().await;
        if topic == TOPIC {
            return serde_json::from_str(&body).unwrap();
        }
    }
}

#[tokio::test]
async fn a_task_becomes_progress_and_a_result() {
    let mut servers = Servers::open_with(CONFIG).await;
    let path = "/mcp/agents/trips";
    let params = json!({ "name": "plan", "arguments": { "text": "stream" }, "_meta": { "progressToken": 5 } });
    let response = servers
        .post(path, request(4, "tools/call", params))
        .send()
        .await;
    let events = read_events(&response.unwrap().text().await.unwrap());
    assert_eq!(
        next_of_trips(&mut servers).await["method"],
        "message/stream"
    );
    let progress = |event: usize| events[event].json()["params"].clone();
    assert_eq!(
        progress(0),
        json!({ "progressToken": 5, "progress": 1, "message": "working" })
    );
    assert_eq!(
        progress(1),
        json!({ "progressToken": 5, "progress": 2, "message": "" })
    );
    let last = events[2].json();
    assert_eq!(last["id"], 4);
    let structured = &last["result"]["structuredContent"];
    assert_eq!(structured["data"], json!([{ "days": 3 }]));
    assert_eq!(
        (&structured["state"], &structured["taskId"]),
        (&json!("completed"), &json!("t-1"))
    );

    // Without a token, one document.
    let whole = result(&servers, path, "plan", json!({ "text": "stream" })).await;
    assert_eq!(whole["structuredContent"]["data"], json!([{ "days": 3 }]));

    let plan = result(&servers, path, "plan", json!({ "text": "ask" })).await;
    assert_eq!(
        (&plan["structuredContent"]["state"], &plan["isError"]),
        (&json!("input-required"), &json!(false))
    );
    let context = plan["structuredContent"]["contextId"].clone();
    let task = plan["structuredContent"]["taskId"].clone();
    let goes_on = json!({ "text": "Friday", "contextId": context, "taskId": task });
    let answer = result(&servers, path, "plan", goes_on).await;
    assert_eq!(answer["content"][0]["text"], "hello");
    let mut agent_request = next_of_trips(&mut servers).await;
    while agent_request["params"]["message"]["parts"][0]["text"] != "Friday" {
        agent_request = next_of_trips(&mut servers).await;
    }
    let message = &agent_request["params"]["message"];
    assert_eq!(
        (&message["contextId"], &message["taskId"]),
        (&context, &json!("t-1"))
    );

    let failed = result(&servers, path, "plan", json!({ "text": "fail" })).await;
    assert_eq!(
        (&failed["isError"], &failed["content"][0]["text"]),
        (&json!(true), &json!("failed"))
    );
    let refused = result(&servers, path, "plan", json!({ "text": "refuse" })).await;
    assert_eq!(
        (&refused["isError"], &refused["content"][0]["text"]),
        (&json!(true), &json!("not that"))
    );
    for wrong in [
        json!({}),
        json!({ "text": "x", "more": 1 }),
        json!({ "text": "x", "files": [{}] }),
        json!({ "text": "x", "files": [{ "bytes": "aGk!" }] }),
        json!({ "text": "x", "files": [["aGk=", null, null, null]] }),
        json!(["x"]),
    ] {
        let refused = result(&servers, path, "plan", wrong).await;
        assert_eq!(refused["isError"], true, "{refused}");
    }
}

#[tokio::test]
async fn the_stream_of_a_skill_continues_where_it_was_cut_off() {
    let servers = Servers::open_with(CONFIG).await;
    let params = json!({ "name": "plan", "arguments": { "text": "stream" }, "_meta": { "progressToken": 5 } });
    continues_after_each_event(&servers, "/mcp/agents/trips", params, 3).await;
}

#[tokio::test]
async fn a_skill_without_an_answer_fails_with_an_error_of_the_bridge() {
    let servers = Servers::open_with(CONFIG).await;
    let path = "/mcp/agents/trips";
    let session = servers.session(path, "2025-11-25").await;
    let timed_out = |answer: &Value| {
        assert_eq!(answer["error"]["code"], -32_603, "{answer}");
        assert_eq!(answer["error"]["data"]["reason"], "timeout", "{answer}");
        assert_eq!(answer["id"], 4, "{answer}");
    };
    let called = async |params: Value| {
        let called = servers.post(path, request(4, "tools/call", params));
        let called = called.header("mcp-session-id", &session);
        let called = called.header("x-a2a-timeout", "3000").send().await;
        called.unwrap().text().await.unwrap()
    };
    let arguments = json!({ "text": "hang" });
    let params = json!({ "name": "plan", "arguments": arguments, "_meta": { "progressToken": 5 } });
    let events = read_events(&called(params).await);
    assert_eq!(events.len(), 2, "{events:?}");
    timed_out(&events[1].json());
    // A client that comes back gets the same.
    let get = Client::new()
        .get(format!("{}{path}", servers.front.base))
        .header("accept", "text/event-stream")
        .header("mcp-session-id", &session)
        .header("last-event-id", events[0].id.as_ref().unwrap());
    let rest = read_events(&get.send().await.unwrap().text().await.unwrap());
    assert_eq!(rest.len(), 1, "{rest:?}");
    timed_out(&rest[0].json());
    assert_eq!(rest[0].id, events[1].id);
    // So does a client that cannot.
    let whole = called(json!({ "name": "plan", "arguments": arguments })).await;
    timed_out(&serde_json::from_str(&whole).unwrap());
}

#[tokio::test]
async fn answers_of_the_bridge_have_the_members_of_the_revision() {
    let servers = Servers::open_with(CONFIG).await;
    let ask = async |method: &str, params: Value| {
        let response = servers
            .alone("/mcp/agents/trips", method, params)
            .send()
            .await;
        json_of(response.unwrap()).await["result"].clone()
    };
    let refused = ask("tools/call", json!({ "name": "plan", "arguments": {} })).await;
    assert_eq!(
        (&refused["isError"], &refused["resultType"]),
        (&json!(true), &json!("complete"))
    );
    let list = ask("tools/list", json!({})).await;
    assert_eq!(
        (&list["resultType"], &list["ttlMs"]),
        (&json!("complete"), &json!(0))
    );
    let answer = ask(
        "tools/call",
        json!({ "name": "plan", "arguments": { "text": "hi" } }),
    )
    .await;
    assert_eq!(answer["resultType"], "complete");
}

#[tokio::test]
async fn a_cancelled_call_cancels_the_task() {
    let mut servers = Servers::open_with(CONFIG).await;
    let path = "/mcp/agents/trips";
    let session = servers.session(path, "2025-11-25").await;
    let params = json!({ "name": "plan", "arguments": { "text": "hang" }, "_meta": { "progressToken": "p" } });
    let called = servers.post(path, request(4, "tools/call", params));
    let called = called
        .header("mcp-session-id", &session)
        .send()
        .await
        .unwrap();
    assert_eq!(
        next_of_trips(&mut servers).await["method"],
        "message/stream"
    );
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 4 } });
    let cancelled = servers
        .post(path, cancel.to_string())
        .header("mcp-session-id", &session);
    assert_eq!(cancelled.send().await.unwrap().status(), 202);
    let agent_request = next_of_trips(&mut servers).await;
    assert_eq!(
        (&agent_request["method"], &agent_request["params"]["id"]),
        (&json!("tasks/cancel"), &json!("t-1"))
    );
    assert!(timeout(SOON, called.text()).await.is_ok());
}
