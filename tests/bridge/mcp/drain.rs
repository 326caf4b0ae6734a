//! What MCP clients can do while the bridge drains.

use a2abus_transports::{Address, Topic};
use reqwest::{Client, Response};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Asked, CONFIG, Changes, Servers, publish, request, round};
use crate::a2a::read_events;
use crate::http::SOON;

const PATH: &str = "/mcp/agents/maps";

/// The configuration with a drain that lasts as long as its calls.
fn patient() -> String {
    let config = CONFIG.replace("drain_grace: 5s", "drain_grace: 60s");
    assert_ne!(config, CONFIG);
    config
}

/// Begins the drain, and waits until new requests are refused.
async fn drain(servers: &Servers) {
    servers.front.stop.cancel();
    let is_open = async || {
        let ping = servers.post(PATH, request(2, "ping", json!({}))).send();
        ping.await.is_ok_and(|pong| pong.status() == 200)
    };
    let refuses = async { while is_open().await {} };
    timeout(SOON, refuses).await.unwrap();
}

/// Waits until the drain is over.
async fn ends(servers: &mut Servers) {
    let ended = timeout(SOON, &mut servers.front.running).await;
    ended.unwrap().unwrap();
}

/// The answer of an agent to the call with this id.
fn result(id: &str) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "result": { "content": [] } }).to_string()
}

/// A call whose agent has sent progress and nothing else.
struct Begun {
    session: String,
    /// Its id for the agent.
    id: String,
    /// Where its answer goes.
    reply_to: Address,
    /// The stream of its client.
    stream: Response,
}

impl Begun {
    async fn call(servers: &mut Servers) -> Self {
        let session = servers.session(PATH, "2025-11-25").await;
        let params = json!({ "name": "hang", "_meta": { "progressToken": "p" } });
        let call = servers.post(PATH, request(9, "tools/call", params));
        let calling = tokio::spawn(call.header("mcp-session-id", &session).send());
        let (_, call) = servers.next_request().await;
        let call: Value = serde_json::from_str(&call).unwrap();
        let id = call["id"].as_str().unwrap().to_owned();
        let reply_to = servers.address_of(&id).await;
        publish(&servers.front.memory, &reply_to, progress(&id, 0)).await;
        let stream = timeout(SOON, calling).await.unwrap().unwrap().unwrap();
        Self {
            session,
            id,
            reply_to,
            stream,
        }
    }
}

fn progress(token: &str, number: u32) -> String {
    let params = json!({ "progressToken": token, "progress": number });
    json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params }).to_string()
}

/// The replicas share no state, so nobody else can receive the answer.
#[tokio::test]
async fn a_stream_ends_with_an_error_and_its_call_is_cancelled_when_the_drain_is_over() {
    let mut servers = Servers::open().await;
    let begun = Begun::call(&mut servers).await;
    servers.front.stop.cancel();
    let events = timeout(SOON, begun.stream.text()).await.unwrap().unwrap();
    let events = read_events(&events);
    assert_eq!(events.len(), 2, "{events:?}");
    let error = events[1].json();
    assert_eq!(error["id"], 9, "{error}");
    assert_eq!(error["error"]["data"]["reason"], "answer_lost", "{error}");
    let (_, cancel) = servers.next_request().await;
    let cancel: Value = serde_json::from_str(&cancel).unwrap();
    assert_eq!(cancel["method"], "notifications/cancelled", "{cancel}");
    assert_eq!(cancel["params"]["requestId"], begun.id, "{cancel}");
}

/// The answer ends the drain, and most of it still waits to be stored.
#[tokio::test]
async fn an_answer_that_arrives_during_the_drain_reaches_its_client() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().display();
    let config = format!(
        "{}state: {{ log: embedded, directory: {state} }}\n",
        patient()
    );
    let mut servers = Servers::open_with(&config).await;
    let begun = Begun::call(&mut servers).await;
    drain(&servers).await;
    let memory = servers.front.memory.clone();
    for number in 1..9 {
        publish(&memory, &begun.reply_to, progress(&begun.id, number)).await;
    }
    publish(&memory, &begun.reply_to, result(&begun.id)).await;
    let events = timeout(SOON, begun.stream.text()).await.unwrap().unwrap();
    let events = read_events(&events);
    assert_eq!(events.len(), 10, "{events:?}");
    let result = json!({ "jsonrpc": "2.0", "id": 9, "result": { "content": [] } });
    assert_eq!(events[9].json(), result);
    ends(&mut servers).await;
    // The agent gets no cancel before this.
    let last = Address::topic(Topic::new("mcp.maps").unwrap());
    publish(&memory, &last, json!({ "method": "last" }).to_string()).await;
    let (_, next) = servers.next_request().await;
    assert_eq!(next, r#"{"method":"last"}"#);
}

/// Its call would wait for it until the drain is over.
#[tokio::test]
async fn a_response_to_a_question_reaches_the_agent_during_the_drain() {
    let mut servers = Servers::open_with(&patient()).await;
    let mut asked = Asked::call(&mut servers).await;
    drain(&servers).await;
    let params = json!({ "progressToken": "t", "progress": 1 });
    let progress =
        json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params });
    let call = request(6, "tools/call", json!({ "name": "look" }));
    for refused in [progress.to_string(), call.clone(), format!("[{call}]")] {
        let sent = servers.post(PATH, refused.clone());
        let sent = sent.header("mcp-protocol-version", "2025-03-26");
        let answer = sent.send().await.unwrap();
        assert_eq!(answer.status(), 503, "{refused}");
        assert!(answer.headers().contains_key("retry-after"), "{refused}");
    }
    let response = servers.post(PATH, asked.response());
    let response = response.header("mcp-session-id", &asked.session);
    assert_eq!(response.send().await.unwrap().status(), 202);
    let (_, answer) = servers.next_request().await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["id"], "q.3", "{answer}");
    publish(&servers.front.memory, &asked.reply_to, result(&asked.id)).await;
    let last = asked.stream.next().await;
    let expected = json!({ "jsonrpc": "2.0", "id": 5, "result": { "content": [] } });
    assert_eq!(last, expected);
    ends(&mut servers).await;
}

#[tokio::test]
async fn a_client_without_a_session_continues_its_call_during_the_drain() {
    let mut servers = Servers::open_with(&patient()).await;
    let url = format!("{}{PATH}", servers.front.base);
    let asked = round(url.clone(), 1, json!({})).await;
    let asked = &asked[0]["result"];
    let questions = asked["inputRequests"].as_object().unwrap();
    let key = questions.keys().next().unwrap();
    let (_, call) = servers.next_request().await;
    let call: Value = serde_json::from_str(&call).unwrap();
    // The pong, and the refusal of the other question.
    servers.next_request().await;
    servers.next_request().await;
    let id = call["id"].as_str().unwrap();
    let reply_to = servers.address_of(id).await;
    drain(&servers).await;
    let refused = round(url.clone(), 2, json!({})).await;
    assert!(refused[0]["error"].is_object(), "{refused:?}");
    let state = &asked["requestState"];
    let response =
        json!({ "requestState": state, "inputResponses": { key: { "action": "accept" } } });
    let waiting = tokio::spawn(round(url, 3, response));
    let (_, answer) = servers.next_request().await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["id"], "q.3", "{answer}");
    publish(&servers.front.memory, &reply_to, result(id)).await;
    let last = timeout(SOON, waiting).await.unwrap().unwrap();
    let expected =
        json!({ "jsonrpc": "2.0", "id": 3, "result": { "resultType": "complete", "content": [] } });
    assert_eq!(last, [expected]);
    ends(&mut servers).await;
}

#[tokio::test]
async fn a_cancel_and_the_end_of_a_session_shorten_the_drain() {
    for is_delete in [false, true] {
        let mut servers = Servers::open_with(&patient()).await;
        let session = servers.session(PATH, "2025-11-25").await;
        let call = request(9, "tools/call", json!({ "name": "hang" }));
        let call = servers.post(PATH, call).header("mcp-session-id", &session);
        let waiting = tokio::spawn(call.send());
        servers.next_request().await;
        drain(&servers).await;
        let params = json!({ "requestId": 9 });
        let cancel =
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
        let (sent, status) = match is_delete {
            true => (
                Client::new().delete(format!("{}{PATH}", servers.front.base)),
                204,
            ),
            false => (servers.post(PATH, cancel.to_string()), 202),
        };
        let done = sent.header("mcp-session-id", &session).send().await;
        assert_eq!(done.unwrap().status(), status);
        let (_, cancelled) = servers.next_request().await;
        assert!(cancelled.contains("notifications/cancelled"), "{cancelled}");
        let response = timeout(SOON, waiting).await.unwrap().unwrap().unwrap();
        let text = timeout(SOON, response.text()).await.unwrap().unwrap();
        // On a slow machine it is a stream.
        let response: Value = match text.starts_with('{') {
            true => serde_json::from_str(&text).unwrap(),
            false => read_events(&text).pop().unwrap().json(),
        };
        assert_eq!(
            response["error"]["data"]["reason"], "cancelled",
            "{response}"
        );
        ends(&mut servers).await;
    }
}

/// The state is in memory, so no other replica has the rest.
#[tokio::test]
async fn a_stream_is_resumed_during_the_drain() {
    let mut servers = Servers::open_with(&patient()).await;
    let mut begun = Begun::call(&mut servers).await;
    let first = timeout(SOON, begun.stream.chunk()).await.unwrap();
    let first = first.unwrap().unwrap();
    let first = read_events(std::str::from_utf8(&first).unwrap()).remove(0);
    drain(&servers).await;
    drop(begun.stream);
    let get = || {
        let get = Client::new().get(format!("{}{PATH}", servers.front.base));
        let get = get.header("accept", "text/event-stream");
        get.header("mcp-session-id", &begun.session)
    };
    assert_eq!(get().send().await.unwrap().status(), 503);
    let rest = get().header("last-event-id", first.id.unwrap());
    let rest = rest.send().await.unwrap();
    assert_eq!(rest.status(), 200);
    publish(&servers.front.memory, &begun.reply_to, result(&begun.id)).await;
    let rest = timeout(SOON, rest.text()).await.unwrap().unwrap();
    let rest = read_events(&rest);
    assert_eq!(rest.len(), 1, "{rest:?}");
    assert_eq!(rest[0].json()["id"], 9, "{rest:?}");
    ends(&mut servers).await;
}

/// On the transport of 2024-11-05, the cancel belongs to the stream that waits for the answer.
#[tokio::test]
async fn a_stream_of_the_first_transport_takes_messages_until_its_requests_are_answered() {
    let mut servers = Servers::open_with(&patient()).await;
    let get = Client::new().get(format!("{}{PATH}", servers.front.base));
    let get = get.header("accept", "text/event-stream").send();
    let mut stream = get.await.unwrap();
    let endpoint = timeout(SOON, stream.chunk()).await.unwrap();
    let endpoint = endpoint.unwrap().unwrap();
    let endpoint = read_events(std::str::from_utf8(&endpoint).unwrap()).remove(0);
    let post = async |servers: &Servers, body: String| {
        let post = servers.post(&endpoint.data, body);
        post.send().await.unwrap().status().as_u16()
    };
    let hang = request(3, "tools/call", json!({ "name": "hang" }));
    assert_eq!(post(&servers, hang).await, 202);
    while !servers.next_request().await.1.contains("hang") {}
    drain(&servers).await;
    let params = json!({ "requestId": 3 });
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
    assert_eq!(post(&servers, cancel.to_string()).await, 202);
    let (_, cancelled) = servers.next_request().await;
    assert!(cancelled.contains("notifications/cancelled"), "{cancelled}");
    let mut stream = Changes(stream);
    let answer = stream.next().await;
    assert_eq!(answer["id"], 3, "{answer}");
    assert_eq!(answer["error"]["data"]["reason"], "cancelled", "{answer}");
    let Changes(stream) = stream;
    assert_eq!(timeout(SOON, stream.text()).await.unwrap().unwrap(), "");
    ends(&mut servers).await;
}
