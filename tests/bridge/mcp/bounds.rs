//! What MCP clients cannot use up, and what remains when they leave.

use futures_util::StreamExt as _;
use reqwest::{Client, Response};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{CONFIG, Changes, SILENT, Servers, json_of, request, status_and_code};
use crate::a2a::read_events;
use crate::http::SOON;

const PATH: &str = "/mcp/agents/maps";

/// The configuration with other limits of calls.
fn with_calls(calls: &str) -> String {
    let config = CONFIG.replace("calls: { timeout: 60s }", calls);
    assert_ne!(config, CONFIG);
    config
}

/// Opens the stream of a session.
async fn listen(servers: &Servers, path: &str, session: &str) -> Response {
    let get = Client::new().get(format!("{}{path}", servers.front.base));
    let get = get.header("accept", "text/event-stream");
    let get = get.header("mcp-session-id", session).send();
    timeout(SOON, get).await.unwrap().unwrap()
}

/// It would never be answered, so its key would never be free.
#[tokio::test]
async fn a_stream_without_an_end_cannot_have_an_idempotency_key() {
    let servers = Servers::open().await;
    let filter = json!({ "notifications": { "toolsListChanged": true } });
    for _ in 0..2 {
        let keyed = servers.alone("/mcp", "subscriptions/listen", filter.clone());
        let keyed = keyed.header("idempotency-key", "k");
        assert_eq!(status_and_code(keyed).await, (400, json!(-32_600)));
    }
}

/// Every repeated request would get the question again.
#[tokio::test]
async fn a_request_of_a_session_with_an_idempotency_key_cannot_be_asked() {
    let mut servers = Servers::open().await;
    let session = servers.session(PATH, "2025-11-25").await;
    let call = servers
        .post(PATH, request(5, "tools/call", json!({ "name": "ask" })))
        .header("mcp-session-id", &session)
        .header("idempotency-key", "k");
    let calling = tokio::spawn(call.send());
    servers.questions_are_refused().await;
    calling.abort();
}

/// 404 would tell the client that its session has ended.
#[tokio::test]
async fn a_session_has_a_stream_of_all_lists_although_its_agent_is_not_known() {
    let config = with_calls("calls: { timeout: 60s, max_pending_per_agent: 1 }");
    let mut servers = Servers::open_with(&config).await;
    let session = servers.session("/mcp", "2025-11-25").await;
    let hang = servers.post(PATH, request(9, "tools/call", json!({ "name": "hang" })));
    let waiting = tokio::spawn(hang.header("mcp-session-id", &session).send());
    servers.next_request().await;
    // The agent cannot be asked, because it has as many calls as it may have.
    assert_eq!(listen(&servers, PATH, &session).await.status(), 200);
    let unknown = "/mcp/agents/new";
    let mut stream = listen(&servers, unknown, &session).await;
    assert_eq!(stream.status(), 200);
    let card = json!({ "name": "new", "description": "New.", "version": "1", "skills": [] });
    let put = Client::new().put(format!("{}/a2a/agents/new", servers.front.base));
    let put = put.body(card.to_string()).send().await.unwrap();
    assert_eq!(put.status(), 200, "{}", put.text().await.unwrap());
    let mut methods = Vec::new();
    while methods.len() < 3 {
        let chunk = timeout(SOON, stream.chunk()).await.unwrap();
        let chunk = chunk.unwrap().unwrap();
        let events = read_events(std::str::from_utf8(&chunk).unwrap());
        methods.extend(events.iter().map(|event| event.json()["method"].clone()));
    }
    let expected = ["tools", "prompts", "resources"];
    let expected = expected.map(|list| json!(format!("notifications/{list}/list_changed")));
    assert_eq!(methods, expected);
    waiting.abort();

    // Without a session, there is nothing at this path.
    let get = Client::new().get(format!("{}/mcp/agents/nobody", servers.front.base));
    let get = get.header("accept", "text/event-stream").send();
    assert_eq!(get.await.unwrap().status(), 404);
}

#[tokio::test]
async fn a_response_without_room_for_it_can_be_sent_again() {
    let config = with_calls("calls: { timeout: 60s, budget_bytes: 1MiB }");
    let mut servers = Servers::open_with(&config).await;
    let session = servers.session(PATH, "2025-11-25").await;
    let call = request(5, "tools/call", json!({ "name": "ask" }));
    let call = servers.post(PATH, call).header("mcp-session-id", &session);
    let mut stream = call.send().await.unwrap().bytes_stream();
    let question = timeout(SOON, stream.next()).await.unwrap();
    let question = question.unwrap().unwrap();
    let question = read_events(std::str::from_utf8(&question).unwrap())[0].json();
    assert_eq!(question["method"], "elicitation/create");
    let respond = async |servers: &Servers, text: String| {
        let result = json!({ "action": "accept", "content": { "text": text } });
        let body = json!({ "jsonrpc": "2.0", "id": question["id"], "result": result });
        let post = servers.post(PATH, body.to_string());
        let post = post.header("mcp-session-id", &session).send();
        post.await.unwrap()
    };
    // The client may use half of the memory. The body and the message for the agent need more.
    let refused = respond(&servers, "x".repeat(300_000)).await;
    assert_eq!(refused.status(), 429);
    let refused = json_of(refused).await;
    assert_eq!(refused["error"]["data"]["reason"], "exhausted", "{refused}");
    assert_eq!(respond(&servers, "x".to_owned()).await.status(), 202);
    // Before it: the call, a pong, and the refusal of a question.
    for _ in 0..3 {
        servers.next_request().await;
    }
    let (_, answer) = servers.next_request().await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["id"], "q.3", "{answer}");
}

/// They last for a day, and nothing else could be recorded until then.
#[tokio::test]
async fn subscriptions_leave_room_in_the_log() {
    let config = format!("{CONFIG}\nstate: {{ memory: 1MiB }}\n");
    let servers = Servers::open_with(&config).await;
    let session = servers.session(PATH, "2025-11-25").await;
    let subscribe = async |number: usize| {
        let uri = format!("{number:04096}");
        let subscribe = request(1, "resources/subscribe", json!({ "uri": uri }));
        let post = servers.post(PATH, subscribe);
        let post = post.header("mcp-session-id", &session).send();
        json_of(post.await.unwrap()).await
    };
    // Each takes more than 8 KiB, and all together may take 256 KiB.
    let mut accepted = 0;
    let refused = loop {
        let answer = subscribe(accepted).await;
        if answer["error"].is_object() {
            break answer;
        }
        accepted += 1;
        assert!(accepted < 40, "subscriptions fill the log");
    };
    assert!(accepted > 20, "{refused}");
    assert_eq!(refused["error"]["data"]["reason"], "exhausted", "{refused}");
    let renewed = subscribe(0).await;
    assert_eq!(renewed["result"], json!({}), "{renewed}");
    let keyed = servers.post(PATH, request(2, "ping", json!({})));
    let keyed = keyed.header("idempotency-key", "k").send().await.unwrap();
    assert_eq!(keyed.status(), 200);
}

#[tokio::test]
async fn an_agent_that_does_not_answer_delays_no_resources_of_other_agents() {
    let servers = Servers::open().await;
    let mut uris: Vec<String> = (0..40)
        .map(|number| format!("a2abus://weather.eu/{SILENT}/{number}"))
        .collect();
    let answered = "a2abus://maps/file:///a";
    uris.push(answered.to_owned());
    let filter = json!({ "notifications": { "resourceSubscriptions": uris } });
    let stream = servers.alone("/mcp", "subscriptions/listen", filter).send();
    let agreed = Changes(stream.await.unwrap()).next().await;
    let expected = json!({ "resourceSubscriptions": [answered] });
    assert_eq!(agreed["params"]["notifications"], expected, "{agreed}");
}

#[tokio::test]
async fn a_resource_that_is_listed_twice_is_acknowledged_and_counted_once() {
    let servers = Servers::open().await;
    let uris = json!(["file:///a", "file:///a"]);
    let filter = json!({ "notifications": { "resourceSubscriptions": uris } });
    let stream = servers.alone(PATH, "subscriptions/listen", filter).send();
    let mut stream = Changes(stream.await.unwrap());
    let agreed = stream.next().await;
    let expected = json!({ "resourceSubscriptions": ["file:///a"] });
    assert_eq!(agreed["params"]["notifications"], expected, "{agreed}");
    let counted = async |number: u32| {
        let lines = ["a2abus_mcp_streams", "a2abus_mcp_subscriptions"];
        let lines = lines.map(|name| format!("\n{name} {number}\n"));
        let all = async || {
            let metrics = servers.front.admin("/metrics").await;
            lines.iter().all(|line| metrics.contains(line))
        };
        let counted = async { while !all().await {} };
        timeout(SOON, counted).await.unwrap();
    };
    counted(1).await;
    drop(stream);
    counted(0).await;
}

/// The bridge asks the agent again, which does not accept it.
#[tokio::test]
async fn a_subscription_whose_client_has_left_ends_if_its_agent_refuses_it() {
    let mut servers = Servers::open().await;
    let session = servers.session(PATH, "2025-11-25").await;
    let subscribe = request(1, "resources/subscribe", json!({ "uri": SILENT }));
    let subscribe = servers.post(PATH, subscribe);
    let subscribing = tokio::spawn(subscribe.header("mcp-session-id", &session).send());
    let (_, sent) = servers.next_request().await;
    assert!(sent.contains("resources/subscribe"), "{sent}");
    subscribing.abort();
    let mut sent = String::new();
    while !sent.contains("resources/unsubscribe") {
        (_, sent) = servers.next_request().await;
    }
    assert!(sent.contains(SILENT), "{sent}");
}

#[tokio::test]
async fn a_notification_to_all_agents_reaches_the_one_that_it_names() {
    let mut servers = Servers::open().await;
    for params in [
        json!({ "progressToken": "t", "progress": 1 }),
        json!({ "progressToken": "t", "progress": 2, "_agentId": "maps" }),
    ] {
        let body =
            json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params });
        let sent = servers.post("/mcp", body.to_string()).send().await;
        assert_eq!(sent.unwrap().status(), 202);
    }
    let (topic, body) = servers.next_request().await;
    assert_eq!(topic, "mcp.maps");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["params"]["progress"], 2, "{body}");
}
