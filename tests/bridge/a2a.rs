//! What A2A clients find over HTTP: cards, lists of agents, and the cases of `tests/vectors/a2a.json`.

use reqwest::{Client, Method, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use support::battery::within;

use crate::http::{Front, SOON};

pub(crate) const CONFIG: &str = r#"
instance: test
transports:
  local: { type: memory }
agents:
  weather:
    description: The weather of a city.
    version: "2.1"
    to: { transport: local, topic: agents.weather }
    skills:
      - { id: forecast, description: Tomorrow's weather., tags: [rain], examples: ["Oslo?"] }
  maps:
    description: Where a city is.
    to: { transport: local, topic: agents.maps }
    streaming: false
    output_modes: [image/png]
calls: { timeout: 60s }
http: { listen: "127.0.0.1:0", drain_grace: 5s }
admin: { listen: "127.0.0.1:0" }
"#;

#[derive(Deserialize)]
struct Vectors {
    http_cases: Vec<HttpCase>,
    sse_cases: Vec<SseCase>,
}

#[derive(Deserialize)]
struct HttpCase {
    name: String,
    request: HttpRequest,
    expect: HttpExpect,
}

#[derive(Deserialize)]
struct HttpRequest {
    method: String,
    path: String,
    #[serde(default)]
    headers: Map<String, Value>,
    #[serde(default)]
    body: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpExpect {
    status: u16,
    content_type: Option<String>,
    #[serde(default)]
    json_has: Vec<String>,
    #[serde(default)]
    json_subset: Map<String, Value>,
    #[serde(default)]
    headers_present: Vec<String>,
    same_body_as: Option<String>,
    error_code: Option<i64>,
    id_raw: Option<String>,
}

#[derive(Deserialize)]
struct SseCase {
    name: String,
    bytes: String,
    expect: SseExpect,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SseExpect {
    events: usize,
    types: Vec<String>,
    last_final: Option<bool>,
    ids: Option<Vec<String>>,
}

/// One event of a stream, as a reader that follows the specification takes it. Source: WHATWG HTML section 9.2.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct SseEvent {
    pub(crate) ty: String,
    pub(crate) id: Option<String>,
    pub(crate) data: String,
}

impl SseEvent {
    /// The JSON in it.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

pub(crate) fn read_events(stream: &str) -> Vec<SseEvent> {
    let stream = stream.replace("\r\n", "\n").replace('\r', "\n");
    let (mut events, mut event, mut data) = (Vec::new(), SseEvent::default(), Vec::new());
    for line in stream.split('\n') {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value).to_owned();
        match field {
            "" if line.is_empty() => {
                let complete = std::mem::take(&mut event);
                if !data.is_empty() {
                    let ty = Some(complete.ty).filter(|ty| !ty.is_empty());
                    events.push(SseEvent {
                        ty: ty.unwrap_or_else(|| "message".to_owned()),
                        data: std::mem::take(&mut data).join("\n"),
                        ..complete
                    });
                }
            }
            "event" => event.ty = value,
            "id" => event.id = Some(value),
            "data" => data.push(value),
            _ => assert!(line.starts_with(':'), "{line:?} is no field"),
        }
    }
    assert_eq!(
        data,
        Vec::<String>::new(),
        "the stream ends within an event"
    );
    events
}

fn vectors() -> Vectors {
    serde_json::from_str(include_str!("../vectors/a2a.json")).unwrap()
}

async fn get(front: &Front, path: &str) -> Response {
    let request = Client::new().get(format!("{}{path}", front.base));
    request.timeout(SOON).send().await.unwrap()
}

async fn json_of(front: &Front, path: &str) -> Value {
    let response = get(front, path).await;
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    response.json().await.unwrap()
}

#[tokio::test]
async fn the_http_cases_of_the_vectors() {
    let front = Front::open_with(CONFIG).await;
    let cases = vectors().http_cases;
    assert_eq!(cases.len(), 10);
    for case in cases {
        check_http(&front, case).await;
    }
}

async fn check_http(front: &Front, case: HttpCase) {
    let HttpCase {
        name,
        request,
        expect,
    } = case;
    let method: Method = request.method.parse().unwrap();
    let url = format!("{}{}", front.base, request.path);
    let mut sent = Client::new().request(method, url).timeout(SOON);
    for (header, value) in &request.headers {
        sent = sent.header(header, value.as_str().unwrap());
    }
    let response = sent.body(request.body).send().await.unwrap();
    assert_eq!(response.status().as_u16(), expect.status, "{name}");
    for header in &expect.headers_present {
        assert!(response.headers().contains_key(header), "{name}: {header}");
    }
    if let Some(content_type) = &expect.content_type {
        let found = response.headers()["content-type"].to_str().unwrap();
        assert_eq!(found, content_type, "{name}");
    }
    let body = response.text().await.unwrap();
    if let Some(other) = &expect.same_body_as {
        let other = get(front, other).await.text().await.unwrap();
        assert_eq!(body, other, "{name}");
    }
    let json: Value = serde_json::from_str(&body).unwrap();
    for member in &expect.json_has {
        assert!(json.get(member).is_some(), "{name}: {member} in {body}");
    }
    for (member, value) in &expect.json_subset {
        assert_eq!(&json[member], value, "{name}");
    }
    if let Some(code) = expect.error_code {
        assert_eq!(json["error"]["code"], code, "{name}: {body}");
    }
    if let Some(id) = &expect.id_raw {
        assert!(body.contains(&format!(r#""id":{id},"#)), "{name}: {body}");
    }
}

#[test]
fn the_sse_cases_of_the_vectors() {
    let cases = vectors().sse_cases;
    assert_eq!(cases.len(), 3);
    for SseCase {
        name,
        bytes,
        expect,
    } in cases
    {
        let events = read_events(&bytes);
        assert_eq!(events.len(), expect.events, "{name}");
        let types: Vec<_> = events.iter().map(|event| event.ty.clone()).collect();
        assert_eq!(types, expect.types, "{name}");
        let last = events.last().unwrap();
        if let Some(last_final) = expect.last_final {
            assert_eq!(last.json()["result"]["final"], last_final, "{name}");
        }
        if let Some(ids) = expect.ids {
            let found: Vec<_> = events.iter().filter_map(|event| event.id.clone()).collect();
            assert_eq!(found, ids, "{name}");
        }
    }
}

#[tokio::test]
async fn a_card_has_the_members_of_every_generation() {
    let front = Front::open_with(CONFIG).await;
    let card = json_of(&front, "/a2a/agents/weather/card").await;
    for path in [
        "/a2a/agents/weather/.well-known/agent-card.json",
        "/a2a/agents/weather/.well-known/agent-card",
        "/a2a/agents/weather/.well-known/agent.json",
        "/rpc/weather/card",
        "/rpc/weather/.well-known/agent-card.json",
        "/rpc/weather/.well-known/agent-card",
    ] {
        assert_eq!(json_of(&front, path).await, card, "{path}");
    }
    assert_eq!(card["name"], "weather");
    assert_eq!(card["version"], "2.1");
    let url = card["url"].as_str().unwrap();
    assert!(url.starts_with(&front.base), "{url}");
    assert!(url.ends_with("/a2a/agents/weather"), "{url}");
    // A2A 0.3 reads `url` and `preferredTransport`, A2A 1.0 `supportedInterfaces`, best first.
    assert_eq!(card["preferredTransport"], "JSONRPC");
    let interfaces = &card["supportedInterfaces"];
    let all = [
        "JSONRPC 1.0",
        "HTTP+JSON 1.0",
        "JSONRPC 0.3",
        "HTTP+JSON 0.3",
    ];
    for (interface, expected) in interfaces.as_array().unwrap().iter().zip(all) {
        let (binding, version) = (&interface["protocolBinding"], &interface["protocolVersion"]);
        let found = format!(
            "{} {}",
            binding.as_str().unwrap(),
            version.as_str().unwrap()
        );
        assert_eq!(found, expected);
        assert_eq!(interface["url"], url);
    }
    let additional = json!([
        { "url": url, "transport": "JSONRPC" },
        { "url": url, "transport": "HTTP+JSON" },
    ]);
    assert_eq!(card["additionalInterfaces"], additional);
    assert_eq!(card["capabilities"]["streaming"], true);
    assert_eq!(card["skills"][0]["id"], "forecast");
    assert_eq!(card["skills"][0]["name"], "forecast");
    assert_eq!(card["skills"][0]["examples"], json!(["Oslo?"]));
    assert_eq!(card["inputModes"], json!(["text", "data"]));
    // Members of the JAF document.
    assert_eq!(
        card["authentication"],
        json!({ "required": false, "schemes": [] })
    );
    let limit = json!({ "requests": 10, "window": 1, "burst": 10 });
    assert_eq!(card["rateLimit"], limit);
    let maps = json_of(&front, "/a2a/agents/maps/card").await;
    assert_eq!(maps["capabilities"]["streaming"], false);
    assert_eq!(maps["outputModes"], json!(["file"]));
}

#[tokio::test]
async fn the_server_has_the_skills_of_all_its_agents() {
    let front = Front::open_with(CONFIG).await;
    let card = json_of(&front, "/.well-known/agent-card.json").await;
    assert_eq!(card["name"], "test");
    let skills: Vec<_> = card["skills"].as_array().unwrap().iter().collect();
    let ids: Vec<_> = skills.iter().map(|skill| skill["id"].clone()).collect();
    assert_eq!(ids, ["maps-main", "weather-forecast"]);
    let list = json_of(&front, "/a2a/agents").await;
    let names: Vec<_> = list["agents"].as_array().unwrap().iter().collect();
    assert_eq!(names[0]["name"], "maps");
    assert_eq!(names[1]["name"], "weather");
    let weather = json_of(&front, "/a2a/agents/weather").await;
    assert_eq!(weather["description"], "The weather of a city.");
    assert_eq!(weather["card"]["name"], "weather");
    let card_url = weather["cardUrl"].as_str().unwrap();
    let card: Value = reqwest::get(card_url).await.unwrap().json().await.unwrap();
    assert_eq!(card, weather["card"]);
}

#[tokio::test]
async fn a_client_that_has_the_current_card_gets_304() {
    let front = Front::open_with(CONFIG).await;
    let path = "/a2a/agents/weather/card";
    let response = get(&front, path).await;
    let tag = response.headers()["etag"].clone();
    assert_eq!(response.headers()["cache-control"], "public, max-age=60");
    let changed = response.headers()["last-modified"].to_str().unwrap();
    assert!(changed.ends_with(" GMT"), "{changed}");
    let again = |known: &str| {
        let request = Client::new().get(format!("{}{path}", front.base));
        request.header("if-none-match", known).send()
    };
    let tag = tag.to_str().unwrap();
    for known in [tag, &format!("\"other\", W/{tag}"), "*"] {
        let response = again(known).await.unwrap();
        assert_eq!(response.status(), StatusCode::NOT_MODIFIED, "{known}");
        assert_eq!(response.headers()["etag"], tag);
        assert_eq!(response.text().await.unwrap(), "");
    }
    assert_eq!(again("\"other\"").await.unwrap().status(), StatusCode::OK);
}

/// A cache must not answer a client that asks for a stream with the list.
#[tokio::test]
async fn a_page_names_what_it_depends_on_and_the_methods_of_its_path() {
    let front = Front::open_with(CONFIG).await;
    for (path, varies_by, methods) in [
        ("/a2a/agents", "Host, Accept", "GET, HEAD"),
        (
            "/a2a/agents/weather",
            "Host",
            "GET, HEAD, POST, PUT, DELETE",
        ),
        ("/a2a/agents/weather/card", "Host", "GET, HEAD"),
    ] {
        let page = get(&front, path).await;
        assert_eq!(page.headers()["vary"], varies_by, "{path}");
        let wrong = Client::new().patch(format!("{}{path}", front.base)).send();
        let wrong = wrong.await.unwrap();
        assert_eq!(wrong.status(), StatusCode::METHOD_NOT_ALLOWED, "{path}");
        assert_eq!(wrong.headers()["allow"], methods, "{path}");
    }
}

#[tokio::test]
async fn an_unknown_agent_is_not_found_and_the_known_ones_are_named() {
    let front = Front::open_with(CONFIG).await;
    for path in ["/a2a/agents/nobody", "/a2a/agents/nobody/card"] {
        let response = get(&front, path).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        let error: Value = response.json().await.unwrap();
        let data = &error["error"]["data"];
        assert_eq!(data["reason"], "agent_not_found");
        assert_eq!(data["agentName"], "nobody");
        assert_eq!(data["availableAgents"], json!(["maps", "weather"]));
    }
}

#[tokio::test]
async fn the_urls_of_cards_are_the_public_ones() {
    let config = format!("{CONFIG}a2a: {{ public_url: 'https://agents.example.com/bus' }}\n");
    let front = Front::open_with(&config).await;
    let card = json_of(&front, "/a2a/agents/weather/card").await;
    let url = card["url"].as_str().unwrap();
    assert!(url.starts_with("https://agents.example.com/bus/"), "{url}");
    // A host name that is not listed is not used for URLs.
    let request = Client::new().get(format!("{}/a2a/agents/weather/card", front.base));
    let refused = request.header("host", "evil.example").send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::MISDIRECTED_REQUEST);
}

#[tokio::test]
async fn an_agent_needs_no_route_and_without_agents_there_is_no_card() {
    let mut front = Front::open_with(CONFIG).await;
    let body = crate::http::request("7", "tools/list", json!({}));
    let answer = front.to("/rpc/weather", body).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(front.next_request().await["topic"], "agents.weather");
    let start = CONFIG.find("agents:").unwrap();
    let end = CONFIG.find("calls:").unwrap();
    let without = format!("{}{}", &CONFIG[..start], &CONFIG[end..]);
    let front = Front::open_with(&without).await;
    let response = get(&front, "/.well-known/agent-card.json").await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn an_invalid_number_is_refused_with_a_clear_message() {
    let front = Front::open_with(CONFIG).await;
    let part = json!({ "kind": "text", "text": "hello" });
    let message = json!({ "kind": "message", "role": "user", "messageId": "m", "parts": [part] });
    for (configuration, expected) in [
        (
            json!({ "timeout": -5 }),
            "params.configuration.timeout: invalid type",
        ),
        (json!({ "timeout": -5 }), "a whole number from 0"),
        (json!({ "timeout": 0 }), "a positive number of milliseconds"),
        (
            json!({ "historyLength": "two" }),
            "params.configuration.historyLength: invalid type: string \"two\", expected a whole number from 0",
        ),
    ] {
        let params = json!({ "message": message, "configuration": configuration });
        let body = crate::http::request("1", "message/send", params);
        let sent = front.to("/a2a/agents/weather", body).send().await.unwrap();
        let answer: Value = sent.json().await.unwrap();
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        let error = &answer["error"];
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(expected), "{error}");
        assert!(!message.contains("line"), "{error}");
        let pointer = error["data"]["pointer"].as_str().unwrap();
        assert!(pointer.starts_with("/params/configuration/"), "{error}");
    }
    // An array in place of an object is refused.
    let mut listed = message.clone();
    listed["parts"] = json!([{ "kind": "file", "file": ["aGk=", null, null, null] }]);
    for params in [
        json!({ "message": message, "configuration": [null, false] }),
        json!({ "message": message, "configuration": [] }),
        json!({ "message": listed }),
        json!([message]),
    ] {
        let body = crate::http::request("1", "message/send", params);
        let sent = front.to("/a2a/agents/weather", body).send().await.unwrap();
        let answer: Value = sent.json().await.unwrap();
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
    }
    let wrong = Client::new()
        .put(format!("{}/a2a/tasks/x", front.base))
        .send();
    let wrong = wrong.await.unwrap();
    assert_eq!(wrong.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert!(
        wrong.headers()["allow"]
            .to_str()
            .unwrap()
            .contains("DELETE")
    );
    let answer: Value = wrong.json().await.unwrap();
    assert_eq!(
        answer["error"]["data"]["reason"], "invalid_request",
        "{answer}"
    );
    let nowhere = front.to("/a2a/nowhere", "{}").send().await.unwrap();
    assert_eq!(nowhere.status(), StatusCode::NOT_FOUND);
    let answer = nowhere.text().await.unwrap();
    assert!(answer.contains("/a2a/agents/{agent}"), "{answer}");
    let broken = front.to("/a2a/agents/weather/v1/message:send", "{");
    let broken = broken.header("content-type", "application/json").send();
    assert_eq!(broken.await.unwrap().status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_byte_order_mark_before_http_json_is_skipped() {
    let front = Front::open_with(CONFIG).await;
    let part = json!({ "text": "hello" });
    let message = json!({ "role": "ROLE_USER", "messageId": "m", "parts": [part] });
    let task = json!({ "targetAgent": "weather", "message": "hello" });
    for (path, body) in [
        (
            "/a2a/agents/weather/message:send",
            json!({ "message": message }),
        ),
        ("/a2a/tasks", task),
    ] {
        let request = front.to(path, format!("\u{feff}{body}"));
        let request = request.header("content-type", "application/json");
        let sent = request.header("a2a-version", "1.0").send().await.unwrap();
        let (status, text) = (sent.status(), sent.text().await.unwrap());
        assert_eq!(status, StatusCode::OK, "{path}: {text}");
    }
}

#[tokio::test]
async fn the_health_says_that_the_bridge_drains() {
    let config = CONFIG.replace("drain_grace: 5s", "drain_grace: 60s");
    let front = Front::open_with(&config).await;
    let health = json_of(&front, "/a2a/health").await;
    assert_eq!(health["status"], "healthy", "{health}");
    let body = crate::http::request("1", "echo", json!({ "held": true }));
    let answer = tokio::spawn(front.to("/rpc/weather", body).send());
    front.meet_agent().await;
    front.stop.cancel();
    let health = within("the bridge is no longer healthy", async {
        loop {
            let health = get(&front, "/a2a/health").await;
            if health.status() != StatusCode::OK {
                break health;
            }
        }
    })
    .await;
    assert_eq!(health.status(), StatusCode::SERVICE_UNAVAILABLE);
    let health: Value = health.json().await.unwrap();
    assert_eq!(health["status"], "draining", "{health}");
    assert_eq!(health["agents"], json!(["maps", "weather"]), "{health}");
    front.meet_agent().await;
    assert_eq!(answer.await.unwrap().unwrap().status(), StatusCode::OK);
}
