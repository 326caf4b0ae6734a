//! MCP over streamable HTTP, end to end: sessions, requests that stand alone, one agent and all of them, hostile input.

use a2abus_transports::memory::Memory;
use a2abus_transports::{Address, Message, Outcome, Topic};
use bytes::Bytes;
use futures_util::StreamExt as _;
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant, sleep, timeout};

use crate::a2a::{SseEvent, read_events};
use crate::http::{Front, SOON};
use crate::set_up::{self, read};

mod bounds;
mod drain;
mod inputs;
mod skills;

const CONFIG: &str = r#"
instance: test
transports:
  local: { type: memory }
agents:
  maps: { description: Maps., to: { transport: local, topic: mcp.maps } }
  weather.eu: { description: Weather., to: { transport: local, topic: mcp.weather } }
registry:
  enabled: true
  destinations: [ { to: { transport: local, topic: "agents.{targetagent}" } } ]
calls: { timeout: 60s }
http: { listen: "127.0.0.1:0", drain_grace: 5s }
admin: { listen: "127.0.0.1:0" }
"#;
const NEWEST: &str = "2026-07-28";
/// The servers do not answer the end of a subscription to this resource.
const UNANSWERED: &str = "file:///unanswered";
/// They do not answer subscriptions to resources whose URIs begin with this.
const SILENT: &str = "file:///silent";

/// A bridge, two MCP servers behind it as agents, and the messages they got: topic, body and key.
struct Servers {
    front: Front,
    sent_requests: mpsc::Receiver<(String, String, Option<Bytes>)>,
    /// The key of the last of these that was looked at.
    last_key: Option<Bytes>,
    /// Where the answers to their requests go.
    reply_to: mpsc::Receiver<Topic>,
}

impl Servers {
    async fn open() -> Self {
        Self::open_with(CONFIG).await
    }

    async fn open_with(config: &str) -> Self {
        let front = Front::open_with(config).await;
        let mut consumer = read(&front.memory, "mcp.>").await;
        let (sent_sender, sent_requests) = mpsc::channel(1_000);
        let (reply_sender, reply_to) = mpsc::channel(1_000);
        let memory = front.memory.clone();
        tokio::spawn(async move {
            while let Some(delivery) = consumer.recv().await {
                delivery.acknowledger.settle(Outcome::Settled).unwrap();
                let body = delivery.message.body.clone().unwrap();
                let request: Value = serde_json::from_slice(&body).unwrap();
                let body = String::from_utf8(body.to_vec()).unwrap();
                let topic = delivery.topic.as_str().to_owned();
                let sent = (topic.clone(), body, delivery.message.key.clone());
                sent_sender.send(sent).await.unwrap();
                let Some(reply_to) = delivery.reply_to else {
                    continue;
                };
                reply_sender.send(reply_to.clone()).await.unwrap();
                let replies = match topic.as_str() {
                    skills::TOPIC => skills::answers(&request),
                    _ => answers(&topic, &request),
                };
                for reply in replies {
                    publish(&memory, &Address::topic(reply_to.clone()), reply).await;
                }
            }
        });
        Self {
            front,
            sent_requests,
            last_key: None,
            reply_to,
        }
    }

    fn post(&self, path: &str, body: impl Into<String>) -> RequestBuilder {
        let request = self.front.to(path, body);
        request
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
    }

    /// A request of the newest revision, with the headers that it needs.
    fn alone(&self, path: &str, method: &str, params: Value) -> RequestBuilder {
        let params = with_meta(params);
        let name = params["name"].as_str().or(params["uri"].as_str());
        let name = name.unwrap_or_default().to_owned();
        let body = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
        let request = self.post(path, body.to_string());
        let request = request
            .header("mcp-protocol-version", NEWEST)
            .header("mcp-method", method);
        if name.is_empty() {
            request
        } else {
            request.header("mcp-name", name)
        }
    }

    async fn session(&self, path: &str, revision: &str) -> String {
        let params = json!({ "protocolVersion": revision, "capabilities": { "elicitation": {} }, "clientInfo": { "name": "t", "version": "1" } });
        let response = self.post(path, request(1, "initialize", params));
        let response = response.send().await.unwrap();
        assert_eq!(response.status(), 200);
        let id = response.headers()["mcp-session-id"]
            .to_str()
            .unwrap()
            .to_owned();
        let answer: Value = response.json().await.unwrap();
        assert_eq!(answer["result"]["protocolVersion"], revision, "{answer}");
        id
    }

    /// Where the agent sends its answer to the call with this id.
    async fn address_of(&mut self, id: &str) -> Address {
        loop {
            let at = timeout(SOON, self.reply_to.recv()).await.unwrap().unwrap();
            if at.as_str().ends_with(id) {
                return Address::topic(at);
            }
        }
    }

    /// Waits until an agent has a call, and has learned that it cannot ask the client: its ping is answered, and its
    /// two questions are refused.
    async fn questions_are_refused(&mut self) {
        self.next_request().await;
        for (id, refused) in [(json!(1), false), (json!(2), true), (json!("q.3"), true)] {
            let (_, answer) = self.next_request().await;
            let answer: Value = serde_json::from_str(&answer).unwrap();
            assert_eq!((&answer["id"], answer["error"].is_object()), (&id, refused));
        }
    }

    /// The next message for an agent, except `initialize`.
    async fn next_request(&mut self) -> (String, String) {
        loop {
            let sent = timeout(SOON, self.sent_requests.recv()).await;
            let (topic, body, key) = sent.unwrap().unwrap();
            self.last_key = key;
            if !body.contains(r#""initialize""#) {
                return (topic, body);
            }
        }
    }
}

/// A call in a session, whose agent has asked the client a question.
struct Asked {
    session: String,
    /// Its id for the agent.
    id: String,
    /// Where its answer goes.
    reply_to: Address,
    question: Value,
    /// The stream of its client.
    stream: Changes,
}

impl Asked {
    async fn call(servers: &mut Servers) -> Self {
        Self::call_with(servers, json!({ "name": "ask" })).await
    }

    async fn call_with(servers: &mut Servers, params: Value) -> Self {
        let path = "/mcp/agents/maps";
        let session = servers.session(path, "2025-11-25").await;
        let call = request(5, "tools/call", params);
        let call = servers.post(path, call).header("mcp-session-id", &session);
        let mut stream = Changes(call.send().await.unwrap());
        let question = stream.next().await;
        assert_eq!(question["method"], "elicitation/create", "{question}");
        let (_, call) = servers.next_request().await;
        let call: Value = serde_json::from_str(&call).unwrap();
        // The pong, and the refusal of the other question.
        servers.next_request().await;
        servers.next_request().await;
        let id = call["id"].as_str().unwrap().to_owned();
        Self {
            reply_to: servers.address_of(&id).await,
            session,
            id,
            question,
            stream,
        }
    }

    /// The client's response.
    fn response(&self) -> String {
        let result = json!({ "action": "accept" });
        json!({ "jsonrpc": "2.0", "id": self.question["id"], "result": result }).to_string()
    }
}

async fn publish(memory: &Memory, to: &Address, body: String) {
    set_up::publish(memory, to, Message::plain(body)).await;
}

/// The answers of the servers.
fn answers(topic: &str, request: &Value) -> Vec<String> {
    let id = &request["id"];
    let result =
        |result: Value| json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string();
    let params = &request["params"];
    match request["method"].as_str().unwrap_or_default() {
        "initialize" if topic == "mcp.maps" => vec![result(json!({
            "protocolVersion": "2025-11-25", "serverInfo": { "name": "Maps", "version": "9" },
            "capabilities": { "tools": {}, "prompts": {} }, "instructions": "Ask for places.",
        }))],
        "tools/list" => {
            let tool = |name: &str| json!({ "name": name, "inputSchema": { "type": "object" } });
            match params["cursor"].as_str() {
                None => vec![result(json!({ "tools": [tool("one")], "nextCursor": "more" }))],
                Some(_) => {
                    let mut two = tool("two");
                    two["inputSchema"]["properties"] = json!({
                        "region": { "type": "string", "x-mcp-header": "Region" },
                        "page": { "type": "object", "properties": { "rows": { "type": "integer", "x-mcp-header": "Rows" } } },
                    });
                    vec![result(json!({ "tools": [two] }))]
                }
            }
        }
        "tools/call" if params["name"] == "hang" => Vec::new(),
        "tools/call" if params["name"] == "need" => vec![result(params["arguments"].clone())],
        "tools/call" if params["name"] == "ask" => {
            let ask = |id: Value, method: &str| json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": { "n": 1 } }).to_string();
            vec![ask(json!(1), "ping"), ask(json!(2), "roots/list"), ask(json!("q.3"), "elicitation/create")]
        }
        "tools/call" => vec![
            json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "level": "info", "data": "l" } }).to_string(),
            json!({ "jsonrpc": "2.0", "method": "notifications/progress",
                "params": { "progressToken": params["_meta"]["progressToken"], "progress": 1 } }).to_string(),
            format!(r#"{{"jsonrpc":"2.0", "id":{id}, "result":{{ "content" : [], "n":1.0 }} }}"#),
        ],
        "resources/read" => vec![result(json!({ "contents": [], "uri": params["uri"] }))],
        "resources/unsubscribe" if params["uri"] == UNANSWERED => Vec::new(),
        "resources/subscribe"
            if params["uri"].as_str().is_some_and(|uri| uri.starts_with(SILENT)) => Vec::new(),
        "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => vec![result(json!({}))],
        _ => vec![json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": "no" } }).to_string()],
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "callers write json! in place"
)]
fn request(id: u32, method: &str, params: Value) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

fn with_meta(mut params: Value) -> Value {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = NEWEST.into();
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    params
}

async fn json_of(response: Response) -> Value {
    let text = response.text().await.unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Makes a call whose answer has so many events, and resumes its stream after each of them.
async fn continues_after_each_event(servers: &Servers, path: &str, params: Value, count: usize) {
    let session = servers.session(path, "2025-11-25").await;
    let called = servers.post(path, request(4, "tools/call", params));
    let called = called.header("mcp-session-id", &session).send().await;
    let events = read_events(&called.unwrap().text().await.unwrap());
    let get = |last: &str| {
        let get = Client::new().get(format!("{}{path}", servers.front.base));
        get.header("accept", "text/event-stream")
            .header("mcp-session-id", &session)
            .header("last-event-id", last)
    };
    let shown = |events: &[SseEvent]| -> Vec<(Option<String>, String)> {
        let events = events.iter();
        events
            .map(|event| (event.id.clone(), event.data.clone()))
            .collect()
    };
    assert_eq!(events.len(), count, "{events:?}");
    // A part that was never sent.
    let last = events.last().unwrap().id.as_ref().unwrap();
    let (call, number) = last.rsplit_once('.').unwrap();
    let unsent = number.parse::<usize>().unwrap() + 1;
    let unsent = get(&format!("{call}.{unsent}")).send().await.unwrap();
    assert_eq!(unsent.status(), 400);
    for (index, event) in events.iter().enumerate() {
        let rest = get(event.id.as_ref().unwrap()).send().await.unwrap();
        assert_eq!(rest.status(), 200);
        let rest = timeout(SOON, rest.text()).await.expect("the stream ends");
        let rest = read_events(&rest.unwrap());
        assert_eq!(shown(&rest), shown(&events[index + 1..]));
    }
}

async fn status_and_code(request: RequestBuilder) -> (u16, Value) {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    (status, json_of(response).await["error"]["code"].clone())
}

#[tokio::test]
async fn a_session_starts_with_the_profile_of_the_agent_and_ends_with_delete() {
    let servers = Servers::open().await;
    let path = "/mcp/agents/maps";
    let response = servers.post(
        path,
        request(1, "initialize", json!({ "protocolVersion": "1999-01-01" })),
    );
    let answer = json_of(response.send().await.unwrap()).await;
    let expected = json!({
        "protocolVersion": "2025-11-25", "serverInfo": { "name": "Maps", "version": "9" },
        "capabilities": { "tools": {}, "prompts": {} }, "instructions": "Ask for places.",
    });
    assert_eq!(answer["result"], expected);

    let session = servers.session(path, "2025-06-18").await;
    let other = servers.session("/rpc/maps/mcp", "2025-11-25").await;
    let in_session = |session: &str, body: String| {
        servers
            .post(path, body)
            .header("mcp-session-id", session)
            .header("mcp-protocol-version", "2025-06-18")
    };
    let initialized =
        json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string();
    assert_eq!(
        in_session(&session, initialized)
            .send()
            .await
            .unwrap()
            .status(),
        202
    );
    let ping = || request(2, "ping", json!({}));
    let pong = json_of(in_session(&session, ping()).send().await.unwrap()).await;
    assert_eq!(pong, json!({ "jsonrpc": "2.0", "id": 2, "result": {} }));

    let url = format!("{}{path}", servers.front.base);
    let end = |session: &str| {
        Client::new()
            .delete(&url)
            .header("mcp-session-id", session)
            .send()
    };
    assert_eq!(end(&session).await.unwrap().status(), 204);
    assert_eq!(end(&session).await.unwrap().status(), 404);
    assert_eq!(
        in_session(&session, ping()).send().await.unwrap().status(),
        404
    );
    assert_eq!(
        in_session(&other, ping()).send().await.unwrap().status(),
        200
    );
}

#[tokio::test]
async fn the_session_of_one_replica_is_known_to_another() {
    let (one, other) = (Servers::open().await, Servers::open().await);
    let session = one.session("/mcp", "2025-11-25").await;
    let ping = other.post("/mcp", request(1, "ping", json!({})));
    let response = ping.header("mcp-session-id", session).send().await.unwrap();
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn nothing_but_the_id_and_the_token_of_a_request_changes() {
    let mut servers = Servers::open().await;
    let call = r#"{ "params":{"_meta":{"progressToken": "p-1"}, "name" : "look","arguments":{"n":1.0}},"id": "a\u0062" , "method":"tools/call","jsonrpc":"2.0"}"#;
    let response = servers.post("/mcp/agents/maps", call).send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let events = read_events(&response.text().await.unwrap());
    let (topic, agent_request) = servers.next_request().await;
    assert_eq!(topic, "mcp.maps");
    let id: Value = serde_json::from_str(&agent_request).unwrap();
    let own = id["id"].to_string();
    let expected = call
        .replacen(r#""p-1""#, &own, 1)
        .replacen(r#""a\u0062""#, &own, 1);
    assert_eq!(agent_request, expected);
    assert_eq!(events.len(), 3, "{events:?}");
    assert_eq!(events[1].json()["params"]["progressToken"], "p-1");
    let last = r#"{"jsonrpc":"2.0", "id":"a\u0062", "result":{ "content" : [], "n":1.0 } }"#;
    assert_eq!(events[2].data, last);

    let only_json = servers
        .post("/mcp/agents/maps", call)
        .header("accept", "application/json");
    let only_json = only_json.send().await.unwrap();
    assert!(
        !only_json.headers()["content-type"]
            .to_str()
            .unwrap()
            .is_empty()
    );
}

#[tokio::test]
async fn a_request_without_a_session_gets_the_answer_of_its_revision() {
    let servers = Servers::open().await;
    let path = "/mcp/agents/maps";
    let discovered = servers
        .alone(path, "server/discover", json!({}))
        .send()
        .await
        .unwrap();
    let discovered = json_of(discovered).await["result"].clone();
    assert_eq!(discovered["supportedVersions"], json!([NEWEST]));
    assert_eq!(discovered["resultType"], "complete");
    let server = &discovered["_meta"]["io.modelcontextprotocol/serverInfo"];
    assert_eq!(server["name"], "Maps");

    // Log messages are sent only to clients that request them.
    let call = json!({ "name": "look", "arguments": {} });
    let response = servers
        .alone(path, "tools/call", call.clone())
        .send()
        .await
        .unwrap();
    let events = read_events(&response.text().await.unwrap());
    let methods: Vec<_> = events
        .iter()
        .map(|event| event.json()["method"].clone())
        .collect();
    assert_eq!(methods, [json!("notifications/progress"), Value::Null]);
    let last = r#"{"jsonrpc":"2.0", "id":7, "result":{"resultType":"complete", "content" : [], "n":1.0 } }"#;
    assert_eq!(events[1].data, last);
    let mut logged = call;
    logged["_meta"]["io.modelcontextprotocol/logLevel"] = "info".into();
    let response = servers
        .alone(path, "tools/call", logged)
        .send()
        .await
        .unwrap();
    assert_eq!(read_events(&response.text().await.unwrap()).len(), 3);

    let list = servers
        .alone(path, "tools/list", json!({}))
        .send()
        .await
        .unwrap();
    let list = json_of(list).await["result"].clone();
    assert_eq!(
        (&list["ttlMs"], &list["cacheScope"]),
        (&json!(0), &json!("private"))
    );
    for method in ["ping", "initialize", "logging/setLevel", "nope/nope"] {
        let gone = servers.alone(path, method, json!({}));
        assert_eq!(
            status_and_code(gone).await,
            (404, json!(-32_601)),
            "{method}"
        );
    }
    // The method is the cause, whatever `_meta` lacks.
    for (method, expected) in [("ping", (404, -32_601)), ("tools/list", (400, -32_602))] {
        let bare = servers.post(path, request(7, method, json!({})));
        let bare = bare.header("mcp-protocol-version", NEWEST);
        let (status, code) = status_and_code(bare.header("mcp-method", method)).await;
        assert_eq!((status, code), (expected.0, json!(expected.1)), "{method}");
    }
    let gone = servers.alone(path, "ping", json!({})).send().await.unwrap();
    let error = json_of(gone).await["error"].clone();
    // An empty list would say that nothing is supported.
    assert!(error["data"]["supported_methods"].is_null(), "{error}");
}

#[tokio::test]
async fn headers_must_match_the_body() {
    let servers = Servers::open().await;
    let path = "/mcp/agents/maps";
    let body = |version: &str| {
        let mut params = with_meta(json!({ "name": "Zürich" }));
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = version.into();
        request(3, "tools/call", params)
    };
    let ask = |headers: &[(&str, &str)], version: &str| {
        let request = servers.post(path, body(version));
        headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, *value)
        })
    };
    let (version, method) = (
        ("mcp-protocol-version", NEWEST),
        ("mcp-method", "tools/call"),
    );
    // `Zürich` in base64.
    let name = ("mcp-name", "=?base64?WsO8cmljaA==?=");
    let mismatch = (400, json!(-32_020));
    for headers in [
        &[method, name][..],
        &[version, name],
        &[version, method],
        &[version, method, ("mcp-name", "Zurich")],
        &[version, method, ("mcp-name", "=?base64?!!?=")],
        &[version, method, name, name],
        &[("mcp-protocol-version", "2025-11-25"), method, name],
    ] {
        assert_eq!(
            status_and_code(ask(headers, NEWEST)).await,
            mismatch,
            "{headers:?}"
        );
    }
    let served = ask(&[version, method, name], NEWEST).send().await.unwrap();
    assert_eq!(served.status(), 200);
    let future = ask(
        &[("mcp-protocol-version", "2099-01-01"), method, name],
        "2099-01-01",
    );
    let refused = future.send().await.unwrap();
    assert_eq!(refused.status(), 400);
    let error = json_of(refused).await["error"].clone();
    assert_eq!(error["code"], -32_022);
    assert_eq!(error["data"]["supported"], json!([NEWEST]));
    assert_eq!(error["data"]["requested"], "2099-01-01");
    let unknown = servers.post(path, request(1, "tools/list", json!({})));
    let unknown = unknown.header("mcp-protocol-version", "1999-01-01");
    assert_eq!(status_and_code(unknown).await, (400, json!(-32_022)));
    let mut params = with_meta(json!({}));
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = "x".into();
    let text = servers.post(path, request(1, "tools/list", params));
    let text = text.header("mcp-protocol-version", NEWEST);
    let text = text.header("mcp-method", "tools/list");
    assert_eq!(status_and_code(text).await, (400, json!(-32_602)));
}

#[tokio::test]
async fn headers_must_match_the_marked_arguments_of_a_tool_that_is_known() {
    let servers = Servers::open().await;
    let call = |(path, name): (&str, &str), arguments: Value, headers: &[(&str, &str)]| {
        let params = json!({ "name": name, "arguments": arguments });
        let request = servers.alone(path, "tools/call", params);
        headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, *value)
        })
    };
    let arguments = || json!({ "region": "Zürich", "page": { "rows": 42 } });
    let agent = ("/mcp/agents/maps", "two");
    let other = [("mcp-param-region", "Bern")];
    let unknown = call(agent, arguments(), &other).send().await.unwrap();
    assert_eq!(unknown.status(), 200, "its tools have not been listed");
    let list = servers.post("/mcp", request(1, "tools/list", json!({})));
    assert_eq!(list.send().await.unwrap().status(), 200);
    // `Zürich` in base64.
    let region = ("MCP-PARAM-REGION", "=?base64?WsO8cmljaA==?=");
    let rows = ("mcp-param-rows", "42");
    for tool in [agent, ("/mcp", "maps.two")] {
        for headers in [
            &[region, rows, rows][..],
            &[region, ("mcp-param-rows", "43")],
            &[("mcp-param-rows", "43")],
            &[region, ("mcp-param-rows", "many")],
            &[rows, ("mcp-param-region", "Zurich")],
            &[rows, ("mcp-param-region", "=?base64?!!?=")],
        ] {
            let refused = status_and_code(call(tool, arguments(), headers)).await;
            assert_eq!(refused, (400, json!(-32_020)), "{tool:?} {headers:?}");
        }
        for headers in [
            &[region, rows][..],
            &[region, ("mcp-param-rows", "42.0")],
            // A client that has not listed the tools does not know the marks.
            &[region],
            &[],
        ] {
            let served = call(tool, arguments(), headers).send().await.unwrap();
            assert_eq!(served.status(), 200, "{tool:?} {headers:?}");
        }
        // An argument that is absent or null has no header.
        let null = json!({ "region": null });
        let refused = status_and_code(call(tool, null.clone(), &[region])).await;
        assert_eq!(refused, (400, json!(-32_020)), "{tool:?}");
        let served = call(tool, null, &[]).send().await.unwrap();
        assert_eq!(served.status(), 200, "{tool:?}");
    }
    let unmarked = call(("/mcp/agents/maps", "one"), arguments(), &other);
    assert_eq!(unmarked.send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn messages_other_than_requests_need_a_known_revision_too() {
    let servers = Servers::open().await;
    let path = "/mcp/agents/maps";
    let session = servers.session(path, "2025-11-25").await;
    let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let url = format!("{}{path}", servers.front.base);
    let listen = Client::new()
        .get(&url)
        .header("accept", "text/event-stream");
    for message in [
        servers.post(path, initialized.to_string()),
        listen,
        Client::new().delete(&url),
    ] {
        let message = message.header("mcp-session-id", &session);
        let message = message.header("mcp-protocol-version", "1999-01-01");
        assert_eq!(status_and_code(message).await, (400, json!(-32_022)));
    }
    let ping = servers.post(path, request(2, "ping", json!({})));
    let ping = ping.header("mcp-session-id", &session).send();
    assert_eq!(
        ping.await.unwrap().status(),
        200,
        "the session has not ended"
    );
}

#[tokio::test]
async fn the_stream_of_a_tool_continues_after_any_event_and_ends() {
    let servers = Servers::open().await;
    let params = json!({ "name": "look", "arguments": {}, "_meta": { "progressToken": 5 } });
    continues_after_each_event(&servers, "/mcp/agents/maps", params, 3).await;
}

#[tokio::test]
async fn a_cancelled_request_is_cancelled_at_its_agent() {
    let mut servers = Servers::open().await;
    let path = "/mcp/agents/maps";
    let session = servers.session(path, "2025-11-25").await;
    let call = request(9, "tools/call", json!({ "name": "hang" }));
    let call = servers.post(path, call).header("mcp-session-id", &session);
    let waiting = tokio::spawn(call.send());
    let (_, agent_request) = servers.next_request().await;
    let agent_request: Value = serde_json::from_str(&agent_request).unwrap();
    let cancel = |id: Value| {
        let body = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } });
        servers
            .post(path, body.to_string())
            .header("mcp-session-id", &session)
            .send()
    };
    // Another id, and another type of it, are other requests.
    for other in [json!(8), json!("9")] {
        assert_eq!(cancel(other).await.unwrap().status(), 202);
    }
    assert_eq!(cancel(json!(9)).await.unwrap().status(), 202);
    let (_, cancelled) = servers.next_request().await;
    let cancelled: Value = serde_json::from_str(&cancelled).unwrap();
    assert_eq!(cancelled["method"], "notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], agent_request["id"]);
    let response = timeout(SOON, waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(
        json_of(response).await["error"]["data"]["reason"],
        "cancelled"
    );
}

#[tokio::test]
async fn a_broken_connection_does_not_cancel_a_request_of_a_session() {
    let mut servers = Servers::open().await;
    let path = "/mcp/agents/maps";
    let session = servers.session(path, "2025-11-25").await;
    let mut calls = Vec::new();
    while servers.reply_to.try_recv().is_ok() {}
    for id in 10..20 {
        let call = request(id, "tools/call", json!({ "name": "hang" }));
        let call = servers.post(path, call).header("mcp-session-id", &session);
        let waiting = tokio::spawn(call.send());
        let (_, agent_request) = servers.next_request().await;
        let agent_request: Value = serde_json::from_str(&agent_request).unwrap();
        let reply_to = servers.reply_to.recv().await.unwrap();
        calls.push((agent_request["id"].clone(), reply_to));
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
    }
    // A later connection can cancel one of them; the others are answered.
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 10 } });
    let cancel = servers.post(path, cancel.to_string());
    let cancel = cancel.header("mcp-session-id", &session);
    assert_eq!(cancel.send().await.unwrap().status(), 202);
    let (_, cancelled) = servers.next_request().await;
    let cancelled: Value = serde_json::from_str(&cancelled).unwrap();
    assert_eq!(cancelled["params"]["requestId"], calls[0].0);
    let delivered = async |servers: &Servers| {
        let metrics = servers.front.admin("/metrics").await;
        let name = "a2abus_replies_total{outcome=\"delivered\"} ";
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(0, |count| count.parse::<u64>().unwrap())
    };
    let before = delivered(&servers).await;
    for (id, reply_to) in calls.drain(1..) {
        let reply = json!({ "jsonrpc": "2.0", "id": id, "result": {} }).to_string();
        publish(&servers.front.memory, &Address::topic(reply_to), reply).await;
    }
    timeout(SOON, async {
        while delivered(&servers).await < before + 9 {}
    })
    .await
    .unwrap();
    assert!(servers.sent_requests.try_recv().is_err(), "a cancel");
}

#[tokio::test]
async fn a_session_has_one_stream_until_it_ends() {
    let servers = Servers::open().await;
    let path = "/mcp/agents/maps";
    let session = servers.session(path, "2025-11-25").await;
    let url = format!("{}{path}", servers.front.base);
    let listen = || {
        let get = Client::new()
            .get(&url)
            .header("accept", "text/event-stream");
        get.header("mcp-session-id", &session).send()
    };
    let first = listen().await.unwrap();
    let second = listen().await.unwrap();
    let ends = async |stream: Response| timeout(SOON, stream.text()).await.unwrap().unwrap();
    assert_eq!(ends(first).await, "");
    let delete = Client::new()
        .delete(&url)
        .header("mcp-session-id", &session);
    assert_eq!(delete.send().await.unwrap().status(), 204);
    assert_eq!(ends(second).await, "");
}

#[tokio::test]
async fn a_question_of_an_agent_reaches_the_client_and_its_answer_the_agent() {
    let mut servers = Servers::open().await;
    let path = "/mcp/agents/maps";
    let session = servers.session(path, "2025-11-25").await;
    let call = request(5, "tools/call", json!({ "name": "ask" }));
    let call = servers.post(path, call).header("mcp-session-id", &session);
    let response = call.send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut stream = response.bytes_stream();
    let question = timeout(SOON, stream.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let question = read_events(std::str::from_utf8(&question).unwrap())[0].json();
    assert_eq!(question["method"], "elicitation/create");
    assert_eq!(question["params"], json!({ "n": 1 }));

    // The bridge has answered the question that the client does not support.
    let (_, call) = servers.next_request().await;
    let call: Value = serde_json::from_str(&call).unwrap();
    let (_, pong) = servers.next_request().await;
    assert_eq!(
        serde_json::from_str::<Value>(&pong).unwrap(),
        json!({ "jsonrpc": "2.0", "id": 1, "result": {} })
    );
    let (_, refused) = servers.next_request().await;
    let refused: Value = serde_json::from_str(&refused).unwrap();
    assert_eq!(
        (&refused["id"], &refused["error"]["code"]),
        (&json!(2), &json!(-32_601))
    );

    let url = format!("{}{path}", servers.front.base);
    let answer_with = |id: Value| {
        let body = json!({ "jsonrpc": "2.0", "id": id, "result": { "action": "accept" } });
        let post = Client::new().post(&url).header("mcp-session-id", &session);
        post.body(body.to_string()).send()
    };
    let id = question["id"].as_str().unwrap().to_owned();
    let (reply_id, own) = id.split_once('.').unwrap();
    // Without the token of the call, an answer is refused.
    for forged in [
        json!("q.3"),
        json!(2),
        json!(format!("{}.{own}", &reply_id[..26])),
        json!(format!("{reply_id}.!")),
        // Base64 of something that is not an id.
        json!(format!("{reply_id}.fQ")),
    ] {
        assert_eq!(
            answer_with(forged.clone()).await.unwrap().status(),
            400,
            "{forged}"
        );
    }
    assert_eq!(answer_with(json!(id)).await.unwrap().status(), 202);
    let (topic, answer) = servers.next_request().await;
    assert_eq!(topic, "mcp.maps");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(
        answer,
        json!({ "jsonrpc": "2.0", "id": "q.3", "result": { "action": "accept" } })
    );

    // The answer to the call itself.
    let to = call["id"].as_str().unwrap();
    let result = json!({ "jsonrpc": "2.0", "id": to, "result": { "content": [] } });
    let mut at = servers.reply_to.recv().await.unwrap();
    while !at.as_str().ends_with(to) {
        at = servers.reply_to.recv().await.unwrap();
    }
    publish(
        &servers.front.memory,
        &Address::topic(at),
        result.to_string(),
    )
    .await;
    let last = timeout(SOON, stream.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let last = read_events(std::str::from_utf8(&last).unwrap())[0].json();
    assert_eq!(
        last,
        json!({ "jsonrpc": "2.0", "id": 5, "result": { "content": [] } })
    );
    assert_eq!(answer_with(json!(id)).await.unwrap().status(), 400);
}

/// The id of a question is no secret: knowing it is not enough to answer.
#[tokio::test]
async fn a_question_is_answered_only_in_the_session_of_its_call() {
    let mut servers = Servers::open().await;
    let path = "/mcp/agents/maps";
    let asked = Asked::call(&mut servers).await;
    let other = servers.session(path, "2025-11-25").await;
    let respond = async |session: Option<&str>| {
        let mut post = servers.post(path, asked.response());
        if let Some(session) = session {
            post = post.header("mcp-session-id", session);
        }
        post.send().await.unwrap()
    };
    for session in [None, Some(other.as_str())] {
        let refused = respond(session).await;
        assert_eq!(refused.status(), 400, "{session:?}");
        let refused = json_of(refused).await;
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains("another session"), "{message}");
    }
    let metrics = servers.front.admin("/metrics").await;
    let forged = "a2abus_replies_total{outcome=\"forged\"} 2\n";
    assert!(metrics.contains(forged), "{metrics}");
    assert_eq!(respond(Some(&asked.session)).await.status(), 202);
    let (_, answer) = servers.next_request().await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["id"], "q.3", "{answer}");
}

/// Even with a progress token it cannot fetch the answer: it has no id of an event.
#[tokio::test]
async fn a_client_that_leaves_with_an_open_question_cancels_its_request() {
    let mut servers = Servers::open().await;
    for meta in [json!({}), json!({ "progressToken": "p" })] {
        let params = json!({ "name": "ask", "_meta": meta });
        let asked = Asked::call_with(&mut servers, params).await;
        let response = asked.response();
        drop(asked.stream);
        let (_, cancel) = servers.next_request().await;
        let cancel: Value = serde_json::from_str(&cancel).unwrap();
        assert_eq!(cancel["method"], "notifications/cancelled", "{cancel}");
        assert_eq!(cancel["params"]["requestId"], asked.id.as_str(), "{cancel}");
        let late = servers.post("/mcp/agents/maps", response);
        let late = late.header("mcp-session-id", &asked.session);
        assert_eq!(late.send().await.unwrap().status(), 400);
    }
}

#[tokio::test]
async fn the_cancel_of_a_question_has_the_id_that_the_client_knows() {
    let mut servers = Servers::open().await;
    let path = "/mcp/agents/maps";
    let session = servers.session(path, "2025-11-25").await;
    let call = request(5, "tools/call", json!({ "name": "ask" }));
    let call = servers.post(path, call).header("mcp-session-id", &session);
    let mut stream = call.send().await.unwrap().bytes_stream();
    let question = timeout(SOON, stream.next()).await.unwrap();
    let question = question.unwrap().unwrap();
    let question = read_events(std::str::from_utf8(&question).unwrap())[0].json();
    assert_eq!(question["method"], "elicitation/create");
    let (_, call) = servers.next_request().await;
    let call: Value = serde_json::from_str(&call).unwrap();
    let to = call["id"].as_str().unwrap();
    let mut at = servers.reply_to.recv().await.unwrap();
    while !at.as_str().ends_with(to) {
        at = servers.reply_to.recv().await.unwrap();
    }
    let at = Address::topic(at);
    let params = json!({ "requestId": "q.3" });
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
    publish(&servers.front.memory, &at, cancel.to_string()).await;
    let cancel = timeout(SOON, stream.next()).await.unwrap();
    let cancel = cancel.unwrap().unwrap();
    let cancel = read_events(std::str::from_utf8(&cancel).unwrap())[0].json();
    assert_eq!(cancel["method"], "notifications/cancelled", "{cancel}");
    assert_eq!(cancel["params"]["requestId"], question["id"], "{cancel}");
}

/// A caller who is no client of MCP cannot be asked. The agent learns that at once, and can still answer.
#[tokio::test]
async fn a_question_to_a_caller_of_rpc_is_refused_and_the_call_goes_on() {
    let mut servers = Servers::open().await;
    let call = request(5, "tools/call", json!({ "name": "ask" }));
    let sent = tokio::spawn(servers.post("/rpc/maps", call).send());
    let (_, call) = servers.next_request().await;
    let call: Value = serde_json::from_str(&call).unwrap();
    let mut answers = Vec::new();
    for _ in 0..3 {
        let (_, answer) = servers.next_request().await;
        let answer: Value = serde_json::from_str(&answer).unwrap();
        answers.push((answer["id"].clone(), answer["error"]["code"].clone()));
    }
    let refused = json!(-32_601);
    assert_eq!(
        answers,
        [
            (json!(1), json!(null)),
            (json!(2), refused.clone()),
            (json!("q.3"), refused)
        ]
    );
    let to = call["id"].as_str().unwrap();
    let mut at = servers.reply_to.recv().await.unwrap();
    while !at.as_str().ends_with(to) {
        at = servers.reply_to.recv().await.unwrap();
    }
    let result = json!({ "jsonrpc": "2.0", "id": to, "result": { "content": [] } });
    let at = Address::topic(at);
    publish(&servers.front.memory, &at, result.to_string()).await;
    let response = timeout(SOON, sent).await.unwrap().unwrap().unwrap();
    let answer = json_of(response).await;
    assert_eq!(answer["result"], json!({ "content": [] }), "{answer}");
}

/// Otherwise an agent could hold a call open without progress, while the tasks of other replicas count it as silent.
#[tokio::test]
async fn a_question_that_the_bridge_answers_does_not_extend_the_deadline() {
    let config = CONFIG.replace("timeout: 60s", "timeout: 2s");
    let mut servers = Servers::open_with(&config).await;
    let call = request(5, "tools/call", json!({ "name": "hang" }));
    let call = servers.front.to("/rpc/maps", call);
    let call = call.header("content-type", "application/json");
    let mut sent = tokio::spawn(call.header("accept", "application/json").send());
    servers.next_request().await;
    let to = Address::topic(servers.reply_to.recv().await.unwrap());
    let asks = async {
        loop {
            let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
            publish(&servers.front.memory, &to, ping.to_string()).await;
            // Its answer is the next message for the agent. After the end there is only the cancel.
            servers.next_request().await;
        }
    };
    let response = tokio::select! {
        response = &mut sent => response.unwrap().unwrap(),
        () = asks => unreachable!("it asks for ever"),
        () = tokio::time::sleep(SOON) => panic!("the call does not end"),
    };
    let answer = json_of(response).await;
    let why = answer["error"]["data"]["reason"].as_str();
    assert_eq!(why, Some("timeout"), "{answer}");
}

#[tokio::test]
async fn names_at_all_agents_have_the_separator_of_the_configuration() {
    let mut servers = Servers::open_with(&format!("{CONFIG}\nmcp: {{ separator: __ }}\n")).await;
    let list = servers.post("/mcp", request(1, "tools/list", json!({})));
    let list = json_of(list.send().await.unwrap()).await;
    assert_eq!(list["result"]["tools"][0]["name"], "maps__one", "{list}");
    while let Ok(Some(_)) = timeout(std::time::Duration::ZERO, servers.sent_requests.recv()).await {
    }
    let name = json!({ "name": "weather.eu__one" });
    let call = servers.post("/mcp", request(2, "tools/call", name));
    assert_eq!(call.send().await.unwrap().status(), 200);
    let (topic, agent_request) = servers.next_request().await;
    assert_eq!(topic, "mcp.weather");
    assert!(agent_request.contains(r#""one""#), "{agent_request}");
    let other = servers.post(
        "/mcp",
        request(3, "tools/call", json!({ "name": "maps.one" })),
    );
    let other = json_of(other.send().await.unwrap()).await;
    let why = other["error"]["message"].as_str().unwrap_or_default();
    assert!(why.contains("AGENT__NAME"), "{other}");
}

#[tokio::test]
async fn an_announced_agent_does_not_take_over_the_tools_of_a_configured_one() {
    let config = format!("{CONFIG}\nmcp: {{ separator: \"_\" }}\n");
    let mut servers = Servers::open_with(&config).await;
    let card = json!({ "name": "maps_get", "description": "Not maps." });
    let put = Client::new().put(format!("{}/a2a/agents/maps_get", servers.front.base));
    let put = put.body(card.to_string()).send().await.unwrap();
    assert_eq!(put.status(), 200, "{}", put.text().await.unwrap());
    let name = json!({ "name": "maps_get_weather" });
    let call = servers.post("/mcp", request(2, "tools/call", name));
    let call = tokio::spawn(call.send());
    let (topic, agent_request) = servers.next_request().await;
    assert_eq!(topic, "mcp.maps");
    let params = &serde_json::from_str::<Value>(&agent_request).unwrap()["params"];
    assert_eq!(params["name"], "get_weather");
    assert_eq!(call.await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn the_default_agent_gets_only_names_that_name_no_agent() {
    let config = format!("{CONFIG}\na2a: {{ default_agent: maps }}\n");
    let mut servers = Servers::open_with(&config).await;
    for (method, params) in [
        ("tools/call", json!({ "name": "one" })),
        ("tools/call", json!({ "name": "maps.gone.one" })),
        ("resources/read", json!({ "uri": "file:///etc/motd" })),
    ] {
        let served = servers.post("/mcp", request(2, method, params.clone()));
        assert_eq!(served.send().await.unwrap().status(), 200, "{params}");
        let (topic, agent_request) = servers.next_request().await;
        assert_eq!(topic, "mcp.maps", "{agent_request}");
    }
    for (method, params) in [
        ("tools/call", json!({ "name": "gone.one" })),
        ("prompts/get", json!({ "name": "gone.one" })),
        ("resources/read", json!({ "uri": "a2abus://gone/x" })),
    ] {
        let unknown = servers.post("/mcp", request(3, method, params.clone()));
        let expected = (200, json!(-32_602));
        assert_eq!(status_and_code(unknown).await, expected, "{params}");
    }
}

#[tokio::test]
async fn all_agents_are_one_server_with_their_names_in_front() {
    let mut servers = Servers::open().await;
    let list = servers
        .post("/mcp", request(1, "tools/list", json!({})))
        .send()
        .await
        .unwrap();
    let list = json_of(list).await;
    let names = list["result"]["tools"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["maps.one", "maps.two", "weather.eu.one", "weather.eu.two"]
    );
    while let Ok(Some(_)) = timeout(std::time::Duration::ZERO, servers.sent_requests.recv()).await {
    }

    let call = servers.post(
        "/mcp",
        request(2, "tools/call", json!({ "name": "weather.eu.one" })),
    );
    assert_eq!(call.send().await.unwrap().status(), 200);
    let (topic, agent_request) = servers.next_request().await;
    assert_eq!(topic, "mcp.weather");
    assert_eq!(
        serde_json::from_str::<Value>(&agent_request).unwrap()["params"]["name"],
        "one"
    );

    let uri = json!({ "uri": "a2abus://maps/file:///etc/motd" });
    let read = servers
        .post("/mcp", request(3, "resources/read", uri))
        .send()
        .await
        .unwrap();
    assert_eq!(json_of(read).await["result"]["uri"], "file:///etc/motd");

    for (method, params) in [
        ("tools/call", json!({ "name": "nobody.one" })),
        ("tools/call", json!({})),
        ("tools/call", json!({ "name": 5 })),
        ("prompts/get", json!({ "name": "maps" })),
        ("resources/read", json!({ "uri": "file:///etc/motd" })),
        ("completion/complete", json!({ "ref": "maps.x" })),
        ("tools/list", json!({ "cursor": "-1" })),
        ("tools/list", json!({ "cursor": 1 })),
    ] {
        let unsupported = servers.post("/mcp", request(4, method, params.clone()));
        assert_eq!(
            status_and_code(unsupported).await,
            (200, json!(-32_602)),
            "{method} {params}"
        );
    }
    let unsupported = servers.post(
        "/mcp",
        request(4, "logging/setLevel", json!({ "level": "info" })),
    );
    assert_eq!(status_and_code(unsupported).await, (200, json!(-32_601)));
}

/// A server that has not declared tasks processes the request normally.
#[tokio::test]
async fn all_agents_as_one_server_ignore_that_a_client_asks_for_a_task() {
    let mut servers = Servers::open().await;
    let task = r#", "task" : {"ttl":1.0}"#;
    for (path, name, sent) in [
        ("/mcp", "maps.look", ""),
        ("/mcp/agents/maps", "look", task),
    ] {
        let call = format!(
            r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"{name}"{task} }}}}"#
        );
        let called = servers.post(path, call).send().await.unwrap();
        assert_eq!(called.status(), 200, "{path}");
        let mut request = String::new();
        while !request.contains("tools/call") {
            request = servers.next_request().await.1;
        }
        let params = format!(r#""params":{{"name":"look"{sent} }}}}"#);
        assert!(request.ends_with(&params), "{path}: {request}");
    }
}

/// Anywhere else, such a request is one of A2A.
#[tokio::test]
async fn a_request_about_a_task_must_name_it() {
    let mut servers = Servers::open().await;
    let path = "/mcp/agents/maps";
    for method in ["tasks/get", "tasks/cancel"] {
        let unnamed = servers.post(path, request(3, method, json!({})));
        let response = json_of(unnamed.send().await.unwrap()).await;
        assert_eq!(response["error"]["code"], -32_602, "{response}");
        let message = response["error"]["message"].as_str().unwrap();
        assert!(message.contains("params.taskId"), "{response}");
        let named = servers.post(path, request(4, method, json!({ "taskId": "t" })));
        named.send().await.unwrap();
        let (_, sent) = servers.next_request().await;
        assert!(sent.contains(r#""taskId":"t""#), "{sent}");
    }
}

#[tokio::test]
async fn rule_violations_are_refused_with_a_reason() {
    let servers = Servers::open().await;
    let path = "/mcp/agents/maps";
    let check = async |body: &str, status: u16, code: i64| {
        let found = status_and_code(servers.post(path, body)).await;
        assert_eq!(found, (status, json!(code)), "{body}");
    };
    check("{", 400, -32_700).await;
    check("[]", 400, -32_600).await;
    check("1", 400, -32_600).await;
    check(r#"{"a":1}"#, 400, -32_600).await;
    check(
        r#"{"jsonrpc":"2.0","id":1,"method":"ping"} {}"#,
        400,
        -32_700,
    )
    .await;
    check(
        r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
        400,
        -32_600,
    )
    .await;
    check(
        r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
        400,
        -32_600,
    )
    .await;
    check(
        r#"{"jsonrpc":"2.0","id":1,"method":"notifications/initialized"}"#,
        400,
        -32_600,
    )
    .await;
    check(r#"{"jsonrpc":"2.0","id":"x","result":{}}"#, 400, -32_600).await;
    check(
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","name":"b"}}"#,
        400,
        -32_602,
    )
    .await;
    check(
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[1]}"#,
        400,
        -32_602,
    )
    .await;
    let nobody = servers.post("/mcp/agents/no%20name", request(1, "initialize", json!({})));
    assert_eq!(status_and_code(nobody).await, (200, json!(-32_602)));

    let ping = || servers.post(path, request(1, "ping", json!({})));
    for session in [
        "nope",
        "2025-11-25.",
        "2026-07-28..aaaaaaaaaaaaaaaaaaaaaaaaaa",
    ] {
        let refused = ping()
            .header("mcp-session-id", session)
            .send()
            .await
            .unwrap();
        assert_eq!(refused.status(), 404, "{session}");
    }
    for (header, value, status) in [
        ("origin", "http://evil.example", 403),
        ("host", "evil.example", 421),
        ("content-type", "text/plain", 415),
        ("accept", "text/html", 406),
    ] {
        let request = Client::new().post(format!("{}{path}", servers.front.base));
        let request = request.header(header, value).body(request_body());
        assert_eq!(request.send().await.unwrap().status(), status, "{header}");
    }
    // A page of this server itself.
    let own = ping()
        .header("origin", &servers.front.base)
        .send()
        .await
        .unwrap();
    assert_eq!(own.status(), 200);
    for method in [Method::PUT, Method::PATCH] {
        let url = format!("{}{path}", servers.front.base);
        let response = Client::new().request(method, url).send().await.unwrap();
        assert_eq!(response.status(), 405);
        assert_eq!(response.headers()["allow"], "GET, POST, DELETE");
    }
}

fn request_body() -> String {
    request(1, "ping", json!({}))
}

#[tokio::test]
async fn only_the_first_revision_has_batches() {
    let servers = Servers::open().await;
    let batch = json!([
        { "jsonrpc": "2.0", "method": "notifications/initialized" },
        { "jsonrpc": "2.0", "id": 1, "method": "ping" },
        { "jsonrpc": "2.0", "id": 2, "method": "tools/list" },
        { "jsonrpc": "2.0", "id": 3, "method": "tools/list" },
        { "jsonrpc": "2.0", "id": null, "method": "ping" },
    ]);
    let ask = |revision: &str| {
        let request = servers.post("/mcp/agents/maps", batch.to_string());
        request.header("mcp-protocol-version", revision)
    };
    let response = ask("2025-03-26").send().await.unwrap();
    assert_eq!(response.status(), 200);
    let answers = json_of(response).await;
    assert_eq!(
        answers[0],
        json!({ "jsonrpc": "2.0", "id": 1, "result": {} })
    );
    // Each is a call of its own.
    for (answer, id) in [(&answers[1], 2), (&answers[2], 3)] {
        assert_eq!(answer["id"], id);
        assert_eq!(answer["result"]["tools"][0]["name"], "one", "{answer}");
    }
    assert_eq!(answers[3]["error"]["code"], -32_600);
    assert_eq!(answers.as_array().unwrap().len(), 4);
    assert_eq!(
        status_and_code(ask("2025-06-18")).await,
        (400, json!(-32_600))
    );
}

#[tokio::test]
async fn clients_are_notified_that_the_lists_have_changed() {
    let servers = Servers::open().await;
    let url = format!("{}/mcp", servers.front.base);
    for accept in ["application/json", "text/html,*/*;q=0.8"] {
        let plain = Client::new().get(&url).header("accept", accept);
        assert_eq!(plain.send().await.unwrap().status(), 405, "{accept}");
    }
    let events = Client::new()
        .get(&url)
        .header("accept", "text/event-stream")
        .header(
            "mcp-session-id",
            servers.session("/mcp", "2025-06-18").await,
        )
        .header("mcp-protocol-version", "2025-06-18");
    let mut of_session = events.send().await.unwrap().bytes_stream();
    let filter =
        json!({ "notifications": { "toolsListChanged": true, "resourcesListChanged": false } });
    let listen = servers
        .alone("/mcp", "subscriptions/listen", filter)
        .send()
        .await
        .unwrap();
    let mut alone = listen.bytes_stream();
    let acknowledged = timeout(SOON, alone.next()).await.unwrap().unwrap().unwrap();
    let acknowledged = read_events(std::str::from_utf8(&acknowledged).unwrap());
    let expected = json!({
        "jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged",
        "params": {
            "notifications": { "toolsListChanged": true },
            "_meta": { "io.modelcontextprotocol/subscriptionId": 7 },
        },
    });
    assert_eq!(acknowledged[0].json(), expected);

    let card = json!({ "name": "new", "description": "New.", "version": "1", "skills": [] });
    let put = Client::new().put(format!("{}/a2a/agents/new", servers.front.base));
    let put = put.body(card.to_string()).send().await.unwrap();
    assert_eq!(put.status(), 200, "{}", put.text().await.unwrap());
    let received = timeout(SOON, of_session.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let received = read_events(std::str::from_utf8(&received).unwrap());
    assert_eq!(
        received[0].json(),
        json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {} })
    );
    let received = timeout(SOON, alone.next()).await.unwrap().unwrap().unwrap();
    let received = read_events(std::str::from_utf8(&received).unwrap());
    assert_eq!(
        received[0].json()["method"],
        "notifications/tools/list_changed"
    );
    assert_eq!(
        received[0].json()["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"],
        7
    );

    // The end of the bridge is the end of both, and no reason to wait.
    servers.front.stop.cancel();
    let last = timeout(SOON, alone.next()).await.unwrap().unwrap().unwrap();
    let last = read_events(std::str::from_utf8(&last).unwrap());
    assert_eq!(last[0].json()["result"]["resultType"], "complete");
    while timeout(SOON, of_session.next()).await.unwrap().is_some() {}
}

/// A stream, and the URIs of changed resources that it has reported.
struct Changes(Response);

impl Changes {
    async fn next(&mut self) -> Value {
        let chunk = timeout(SOON, self.0.chunk()).await.unwrap();
        let chunk = chunk.unwrap().unwrap();
        read_events(std::str::from_utf8(&chunk).unwrap())[0].json()
    }

    async fn next_uri(&mut self) -> Value {
        let event = self.next().await;
        assert_eq!(
            event["method"], "notifications/resources/updated",
            "{event}"
        );
        event["params"]["uri"].clone()
    }
}

#[tokio::test]
async fn an_agent_announces_that_a_resource_has_changed() {
    let bindings = r#"
bindings:
  - { name: discovery, transport: local, topics: ["discovery.*"], role: discovery, dead_letter: { topic: letters } }
registry:"#;
    let mut servers = Servers::open_with(&CONFIG.replace("\nregistry:", bindings)).await;
    let path = "/mcp";
    let session = servers.session(path, "2025-11-25").await;
    let url = format!("{}{path}", servers.front.base);
    let in_session = async |servers: &Servers, body: String| {
        let post = servers.post(path, body).header("mcp-session-id", &session);
        json_of(post.send().await.unwrap()).await
    };
    let uri = "a2abus://maps/file:///a";
    let subscribe = request(1, "resources/subscribe", json!({ "uri": uri }));
    let subscribed = in_session(&servers, subscribe).await;
    assert_eq!(subscribed["result"], json!({}), "{subscribed}");
    let get = Client::new()
        .get(&url)
        .header("accept", "text/event-stream");
    let get = get.header("mcp-session-id", &session).send();
    let mut of_session = Changes(get.await.unwrap());
    let filter = json!({ "notifications": {
        "resourceSubscriptions": ["file:///b", "file:///a"], "toolsListChanged": false,
    } });
    let listen = servers.alone("/mcp/agents/maps", "subscriptions/listen", filter);
    let mut alone = Changes(listen.send().await.unwrap());
    let agreed = alone.next().await;
    assert_eq!(
        agreed["params"]["notifications"],
        json!({ "resourceSubscriptions": ["file:///b", "file:///a"] })
    );
    for expected in ["file:///a", "file:///b", "file:///a"] {
        let (topic, body) = servers.next_request().await;
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (topic.as_str(), &body["method"]),
            ("mcp.maps", &json!("resources/subscribe"))
        );
        assert_eq!(body["params"]["uri"], expected);
    }

    let memory = servers.front.memory.clone();
    let announce = async |agent: &str, uri: &str| {
        let params = json!({ "uri": uri, "_meta": { "io.a2abus/agent": agent } });
        let body = json!({ "jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params });
        let to = Address::topic(Topic::new(format!("discovery.{agent}")).unwrap());
        publish(&memory, &to, body.to_string()).await;
    };
    // The same URI of another agent, and another URI, before the one that counts.
    announce("weather.eu", "file:///a").await;
    announce("maps", "file:///c").await;
    announce("maps", "file:///a").await;
    announce("maps", "file:///b?part=1").await;
    assert_eq!(of_session.next_uri().await, uri);
    assert_eq!(alone.next_uri().await, "file:///a");
    assert_eq!(alone.next_uri().await, "file:///b?part=1");

    // The stream without a session ends its subscriptions when it ends. The session keeps its own.
    drop(alone);
    let (_, body) = servers.next_request().await;
    assert!(
        body.contains("resources/unsubscribe") && body.contains("file:///b"),
        "{body}"
    );
    let unsubscribe = request(2, "resources/unsubscribe", json!({ "uri": uri }));
    let unsubscribed = in_session(&servers, unsubscribe).await;
    assert_eq!(unsubscribed["result"], json!({}), "{unsubscribed}");
    let (_, body) = servers.next_request().await;
    assert!(
        body.contains("resources/unsubscribe") && body.contains("file:///a"),
        "{body}"
    );

    // Without a session no stream can report changes, and a URI has a limit.
    let alone = servers.post(
        path,
        request(3, "resources/subscribe", json!({ "uri": uri })),
    );
    let refused = json_of(alone.send().await.unwrap()).await;
    assert!(refused.to_string().contains("needs a session"), "{refused}");
    let long = request(
        4,
        "resources/subscribe",
        json!({ "uri": "u".repeat(4_097) }),
    );
    let refused = in_session(&servers, long).await;
    assert_eq!(refused["error"]["code"], -32602, "{refused}");

    // An announcement that cannot be used becomes a dead letter.
    let mut letters = read(&memory, "letters").await;
    announce("nobody", "file:///a").await;
    let letter = timeout(SOON, letters.recv()).await.unwrap().unwrap();
    let headers = format!("{:?}", letter.message.headers);
    assert!(headers.contains("nobody"), "{headers}");
}

/// The agent knows only one client, the bridge, and may get the two requests in this order.
#[tokio::test]
async fn a_client_that_leaves_while_it_unsubscribes_does_not_end_the_subscription_of_another() {
    let mut servers = Servers::open().await;
    let path = "/mcp/agents/maps";
    let leaving = servers.session(path, "2025-11-25").await;
    let staying = servers.session(path, "2025-11-25").await;
    let ask = |servers: &Servers, session: &str, method: &str| {
        let body = request(1, method, json!({ "uri": UNANSWERED }));
        let post = servers.post(path, body).header("mcp-session-id", session);
        post.send()
    };
    let subscribed = ask(&servers, &leaving, "resources/subscribe").await;
    assert_eq!(json_of(subscribed.unwrap()).await["result"], json!({}));
    let (_, body) = servers.next_request().await;
    assert!(body.contains("resources/subscribe"), "{body}");
    let unsubscribing = tokio::spawn(ask(&servers, &leaving, "resources/unsubscribe"));
    let (_, body) = servers.next_request().await;
    assert!(body.contains("resources/unsubscribe"), "{body}");
    let subscribed = ask(&servers, &staying, "resources/subscribe").await;
    assert_eq!(json_of(subscribed.unwrap()).await["result"], json!({}));
    let (_, body) = servers.next_request().await;
    assert!(body.contains("resources/subscribe"), "{body}");
    unsubscribing.abort();
    let mut sent = String::new();
    // There may be a cancel before it.
    while !sent.contains("resources/subscribe") {
        (_, sent) = servers.next_request().await;
    }
}

/// The room of the client becomes smaller, until the request itself is refused.
#[tokio::test]
async fn what_was_done_is_answered_although_the_budget_is_used_up() {
    let calls = "calls: { timeout: 300s, budget_bytes: 1MiB }";
    let mut servers = Servers::open_with(&CONFIG.replace("calls: { timeout: 60s }", calls)).await;
    let owner = json!({
        "org_id": "acme", "unit_id": "web", "agent_id": "shop",
        "card": {
            "name": "shop", "description": "Sells.", "version": "1", "capabilities": {},
            "skills": [{ "id": "main", "name": "Main", "description": "Does it.", "tags": ["t"] }],
        },
    });
    let register = servers.post("/rpc", request(1, "agent/card/register", owner.clone()));
    let registered = json_of(register.send().await.unwrap()).await;
    assert_eq!(registered["result"]["status"], "registered", "{registered}");

    let mut waiting = Vec::new();
    loop {
        let hang = request(1, "tools/call", json!({ "name": "hang" }));
        let call = servers.post("/mcp/agents/maps", hang).timeout(10 * SOON);
        let mut call = tokio::spawn(call.send());
        tokio::select! {
            _ = servers.next_request() => waiting.push(call),
            _ = &mut call => break,
        }
    }
    assert!(waiting.len() > 2, "{}", waiting.len());
    for call in waiting.drain(..2) {
        call.abort();
    }

    let send = async |path: &str, body: &str, padding: usize| {
        let post = servers.post(path, body);
        let post = post.header("x-padding", "x".repeat(padding));
        post.send().await.unwrap()
    };
    let initialize = request(1, "initialize", json!({ "protocolVersion": "2025-11-25" }));
    let update = request(1, "agent/card/update", owner);
    let begun = Instant::now();
    // The bridge notices that two callers are gone.
    while send("/rpc", update.as_str(), 0).await.status() != 200 {
        assert!(begun.elapsed() < SOON, "there is never any room");
        sleep(Duration::from_millis(10)).await;
    }
    for (path, body) in [("/mcp", initialize.as_str()), ("/rpc", update.as_str())] {
        let mut padding = 0;
        loop {
            let response = send(path, body, padding).await;
            if response.status() == 429 {
                break;
            }
            let answer = json_of(response).await;
            let is_done = answer["result"].is_object();
            assert!(is_done, "{path}, padding {padding}: {answer}");
            padding += 128;
        }
    }
}

/// The transport of 2024-11-05, as its clients use it.
#[tokio::test]
async fn a_client_that_knows_only_the_first_transport_has_a_stream_and_a_url() {
    let mut servers = Servers::open().await;
    let url = format!("{}/mcp/agents/maps", servers.front.base);
    // The AI SDK names the revision that it knows, also on this transport.
    let get = Client::new()
        .get(&url)
        .header("mcp-protocol-version", "2025-11-25")
        .header("accept", "text/event-stream");
    let mut stream = get.send().await.unwrap().bytes_stream();
    let mut next = async || {
        let piece = timeout(SOON, stream.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        String::from_utf8(piece.to_vec()).unwrap()
    };
    let endpoint = next().await;
    let endpoint = endpoint.strip_prefix("event: endpoint\ndata: ").unwrap();
    let path = endpoint.trim().to_owned();
    assert!(path.starts_with("/mcp/agents/maps?stream="), "{path}");
    let post = async |path: &str, body: String| {
        let post = servers
            .front
            .to(path, body)
            .header("content-type", "application/json");
        post.send().await.unwrap().status().as_u16()
    };
    let begin = request(1, "initialize", json!({ "protocolVersion": "2024-11-05" }));
    assert_eq!(post(&path, begin).await, 202);
    let event = next().await;
    // Clients in Java need the name of the default type.
    assert!(event.starts_with("event: message\n"), "{event}");
    let event = read_events(&event)[0].json();
    assert_eq!(event["result"]["protocolVersion"], "2024-11-05");
    let call = json!({ "name": "look", "_meta": { "progressToken": "p" } });
    assert_eq!(post(&path, request(2, "tools/call", call)).await, 202);
    let mut events = Vec::new();
    while events.len() < 3 {
        events.extend(read_events(&next().await));
    }
    assert_eq!(events[1].json()["params"]["progressToken"], "p");
    assert_eq!(events[2].json()["id"], 2);
    // Errors of a message also arrive on the stream.
    assert_eq!(post(&path, "{".into()).await, 202);
    assert_eq!(
        read_events(&next().await)[0].json()["error"]["code"],
        -32_700
    );

    // So is a message that is refused before it is looked at, under its id.
    let text = servers
        .front
        .to(&path, request(9, "ping", json!({})))
        .header("content-type", "text/plain");
    assert_eq!(text.send().await.unwrap().status(), 202);
    let refused = read_events(&next().await)[0].json();
    assert_eq!(refused["id"], 9, "{refused}");
    assert_eq!(
        refused["error"]["data"]["reason"], "content_type",
        "{refused}"
    );

    let hang = request(3, "tools/call", json!({ "name": "hang" }));
    assert_eq!(post(&path, hang).await, 202);
    while !servers.next_request().await.1.contains("hang") {}
    // Its client leaves.
    drop(stream);
    let (_, cancelled) = servers.next_request().await;
    assert!(cancelled.contains("notifications/cancelled"), "{cancelled}");
    let ping = request(4, "ping", json!({}));
    let unknown = servers
        .front
        .to(&path, ping)
        .header("content-type", "application/json");
    assert_eq!(status_and_code(unknown).await, (404, json!(-32_600)));
}

/// A call of a client of 2026-07-28 that can be asked, and the messages that it gets.
async fn round(url: String, id: u32, more: Value) -> Vec<Value> {
    let mut params = json!({ "name": "ask", "_meta": { "progressToken": id } });
    let more = more.as_object().unwrap().clone();
    params.as_object_mut().unwrap().extend(more);
    let mut params = with_meta(params);
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({ "elicitation": {} });
    let request = Client::new()
        .post(url)
        .header("content-type", "application/json")
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", NEWEST)
        .header("mcp-method", "tools/call")
        .header("mcp-name", "ask")
        .body(request(id, "tools/call", params));
    let response = timeout(SOON, request.send()).await.unwrap().unwrap();
    let text = timeout(SOON, response.text()).await.unwrap().unwrap();
    match text.starts_with('{') {
        true => vec![serde_json::from_str(&text).unwrap()],
        false => read_events(&text).iter().map(SseEvent::json).collect(),
    }
}

/// In revision 2026-07-28 a client has no stream for questions.
#[tokio::test]
async fn a_question_is_the_answer_to_a_stateless_request_until_its_client_has_responded() {
    let mut servers = Servers::open().await;
    let url = format!("{}/mcp/agents/maps", servers.front.base);
    let ask = |id, more| round(url.clone(), id, more);
    let asked: Vec<Value> = ask(1, json!({})).await;
    let [asked] = &asked[..] else {
        panic!("{asked:?}")
    };
    assert_eq!(
        (&asked["id"], &asked["result"]["resultType"]),
        (&json!(1), &json!("input_required"))
    );
    let questions = asked["result"]["inputRequests"].as_object().unwrap();
    let (key, question) = questions.iter().next().unwrap();
    assert_eq!(
        question,
        &json!({ "method": "elicitation/create", "params": { "n": 1 } })
    );
    let state = &asked["result"]["requestState"];
    let (_, call) = servers.next_request().await;
    let call: Value = serde_json::from_str(&call).unwrap();
    // The pong, and the refusal of the other question.
    servers.next_request().await;
    servers.next_request().await;

    // Without a usable response, the client is asked again.
    for responses in [
        json!({}),
        json!({ "q.3": {} }),
        json!({ format!("{key}x"): {} }),
    ] {
        let again = ask(
            2,
            json!({ "requestState": state, "inputResponses": responses }),
        )
        .await;
        assert_eq!(again.len(), 1, "{again:?}");
        assert_eq!(
            (&again[0]["id"], &again[0]["result"]),
            (&json!(2), &asked["result"])
        );
    }
    // Nobody else can continue the call, and the agent does not get it again.
    let state_text = state.as_str().unwrap();
    let mut forged = state_text.to_owned();
    forged.replace_range(forged.len() - 2.., "aa");
    let malformed = &state_text[..state_text.len() - 1];
    for forged in [forged.as_str(), malformed, "a2abus."] {
        let refused = ask(
            3,
            json!({ "requestState": forged, "inputResponses": { key: {} } }),
        )
        .await;
        assert_eq!(refused[0]["error"]["code"], -32_602, "{refused:?}");
    }

    // A response of a wrong type does not reach the agent.
    let wrong = json!({ "requestState": state, "inputResponses": { key: "yes" } });
    let refused = ask(3, wrong).await;
    assert_eq!(refused[0]["error"]["code"], -32_602, "{refused:?}");

    // Progress, a second question and then the answer.
    let to = call["id"].as_str().unwrap();
    let mut at = servers.reply_to.recv().await.unwrap();
    while !at.as_str().ends_with(to) {
        at = servers.reply_to.recv().await.unwrap();
    }
    let at = Address::topic(at);
    let progress = |n: u32| json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": { "progressToken": to, "progress": n } });
    let second = json!({ "jsonrpc": "2.0", "id": 4, "method": "elicitation/create" });
    let response =
        json!({ "requestState": state, "inputResponses": { key: { "action": "accept" } } });
    let memory = servers.front.memory.clone();
    // The agent may go on while its question is open.
    publish(&memory, &at, progress(0).to_string()).await;
    let waiting = tokio::spawn(ask(8, response.clone()));
    let (topic, answer) = servers.next_request().await;
    assert_eq!(topic, "mcp.maps");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(
        answer,
        json!({ "jsonrpc": "2.0", "id": "q.3", "result": { "action": "accept" } })
    );
    for message in [progress(1), second] {
        publish(&memory, &at, message.to_string()).await;
    }
    let asked = waiting.await.unwrap();
    assert_eq!(asked.len(), 3, "{asked:?}");
    assert_eq!(
        asked[0]["params"],
        json!({ "progressToken": 8, "progress": 0 })
    );
    assert_eq!(
        asked[1]["params"],
        json!({ "progressToken": 8, "progress": 1 })
    );
    assert_eq!(asked[2]["id"], 8);
    let next = asked[2]["result"]["requestState"].clone();
    let (key, question) = asked[2]["result"]["inputRequests"]
        .as_object()
        .unwrap()
        .iter()
        .next()
        .unwrap();
    assert_eq!(
        question,
        &json!({ "method": "elicitation/create", "params": {} })
    );
    // A client that has missed that gets it again, and the agent no second response.
    assert_eq!(ask(9, response).await[2]["result"], asked[2]["result"]);
    let response =
        json!({ "requestState": next, "inputResponses": { key: { "action": "decline" } } });
    let waiting = tokio::spawn(ask(10, response));
    let (_, answer) = servers.next_request().await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(
        answer,
        json!({ "jsonrpc": "2.0", "id": 4, "result": { "action": "decline" } })
    );
    let result = json!({ "jsonrpc": "2.0", "id": to, "result": { "content": [] } });
    publish(&memory, &at, result.to_string()).await;
    let last = waiting.await.unwrap();
    let expected = json!({ "jsonrpc": "2.0", "id": 10, "result": { "resultType": "complete", "content": [] } });
    assert_eq!(last, [expected]);
}

#[tokio::test]
async fn a_request_with_an_idempotency_key_cannot_be_asked() {
    let mut servers = Servers::open().await;
    let mut params = json!({ "name": "ask" });
    params = with_meta(params);
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({ "elicitation": {} });
    let call = servers
        .post("/mcp/agents/maps", request(1, "tools/call", params))
        .header("mcp-protocol-version", NEWEST)
        .header("mcp-method", "tools/call")
        .header("mcp-name", "ask")
        .header("idempotency-key", "k");
    let calling = tokio::spawn(call.send());
    servers.questions_are_refused().await;
    calling.abort();
}

#[tokio::test]
async fn a_client_that_does_not_answer_ends_the_call() {
    // The call ends with its own timeout: that of a question can only be later.
    let calls = "calls: { question_timeout: 100ms, timeout: 10s }";
    let config = CONFIG.replace("calls: { timeout: 60s }", calls);
    assert_ne!(config, CONFIG);
    let mut servers = Servers::open_with(&config).await;
    let url = format!("{}/mcp/agents/maps", servers.front.base);
    let asked = round(url.clone(), 1, json!({})).await;
    let (_, call) = servers.next_request().await;
    let call: Value = serde_json::from_str(&call).unwrap();
    // The pong, and the refusal of the other question.
    servers.next_request().await;
    servers.next_request().await;
    let (_, cancel) = servers.next_request().await;
    let cancel: Value = serde_json::from_str(&cancel).unwrap();
    assert_eq!(cancel["method"], "notifications/cancelled");
    assert_eq!(cancel["params"]["requestId"], call["id"]);
    let state = &asked[0]["result"]["requestState"];
    let key = asked[0]["result"]["inputRequests"].as_object().unwrap();
    let key = key.keys().next().unwrap();
    let late = json!({ "requestState": state, "inputResponses": { key: {} } });
    let late = round(url, 2, late).await;
    let error = &late[0]["error"];
    assert_eq!(error["data"]["reason"], "timeout", "{late:?}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("calls.question_timeout"), "{message}");
}

#[tokio::test]
async fn an_answer_of_a_client_within_the_configured_limits_reaches_the_agent() {
    let config = format!("{CONFIG}limits: {{ max_members: 300000 }}\n");
    let mut servers = Servers::open_with(&config).await;
    let path = "/mcp/agents/maps";
    let session = servers.session(path, "2025-11-25").await;
    let call = request(5, "tools/call", json!({ "name": "ask" }));
    let call = servers.post(path, call).header("mcp-session-id", &session);
    let mut stream = call.send().await.unwrap().bytes_stream();
    let question = timeout(SOON, stream.next()).await.unwrap();
    let question = question.unwrap().unwrap();
    let question = read_events(std::str::from_utf8(&question).unwrap())[0].json();
    // More members than the default allows.
    let content = json!({ "n": vec![0; 250_000] });
    let result = json!({ "action": "accept", "content": content });
    let body = json!({ "jsonrpc": "2.0", "id": question["id"], "result": result });
    let post = servers.post(path, body.to_string());
    let posted = post.header("mcp-session-id", &session).send().await;
    assert_eq!(posted.unwrap().status(), 202);
    // Before it: the call, a pong, and the refusal of a question.
    for _ in 0..3 {
        servers.next_request().await;
    }
    let (_, answer) = servers.next_request().await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((&answer["id"], &answer["result"]), (&json!("q.3"), &result));
}

#[tokio::test]
async fn the_url_of_the_first_transport_is_below_the_path_of_the_public_url() {
    let config = format!("{CONFIG}a2a: {{ public_url: 'https://agents.example.com/bus' }}\n");
    let servers = Servers::open_with(&config).await;
    let get = Client::new().get(format!("{}/mcp/agents/maps", servers.front.base));
    let get = get.header("accept", "text/event-stream");
    let mut stream = get.send().await.unwrap().bytes_stream();
    let endpoint = timeout(SOON, stream.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let endpoint = String::from_utf8(endpoint.to_vec()).unwrap();
    let path = "data: /bus/mcp/agents/maps?stream=";
    assert!(endpoint.contains(path), "{endpoint}");
    // A client that has not come through the proxy sends its messages there too.
    let (_, path) = endpoint.split_once("data: ").unwrap();
    let url = format!("{}{}", servers.front.base, path.trim_end());
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    let sent = Client::new().post(url).json(&ping).send().await.unwrap();
    assert_eq!(sent.status(), 202);
}
