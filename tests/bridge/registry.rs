//! Agents that announce themselves, through every interface: a topic, JSON-RPC, REST and the gateway of EventMesh.

use std::num::NonZeroUsize;
use std::time::Duration;

use a2abus_bridge::config::Config;
use a2abus_transports::memory::{Memory, MemoryConfig};
use a2abus_transports::{Address, Consumer, Message, Topic};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use support::battery::until_closed;
use tokio::time::{Instant, sleep, timeout};

use crate::a2a::read_events;
use crate::http::{Front, SOON, request};
use crate::set_up::{self, next, publish, read};

const CONFIG: &str = r#"
instance: test
transports:
  local: { type: memory }
bindings:
  - { name: discovery, transport: local, topics: ["discovery.*", announcements], role: discovery, dead_letter: { topic: letters } }
agents:
  maps: { description: Maps., to: { transport: local, topic: agents.maps } }
registry:
  enabled: true
  destinations: [ { to: { transport: local, topic: "agents.{targetagent}" }, topics: ["agents.team-*", "team.*"] } ]
  unknown_agents: known
  max_agents: 1100
  max_card: 4KiB
default_route: [ { transport: local, topic: "agents.{targetagent}" } ]
calls: { timeout: 60s }
http: { listen: "127.0.0.1:0", drain_grace: 5s }
admin: { listen: "127.0.0.1:0" }
"#;

fn card(name: &str) -> Value {
    json!({
        "name": name, "description": format!("What {name} does."), "version": "2.0",
        "capabilities": { "streaming": true },
        "skills": [{ "id": "main", "name": "Main", "description": "Does it.", "tags": ["t"] }],
    })
}

/// A card whose extension has these parameters.
#[expect(
    clippy::needless_pass_by_value,
    reason = "callers write json! in place"
)]
fn card_with(name: &str, params: Value) -> Value {
    let mut card = card(name);
    card["capabilities"]["extensions"] = json!([{ "uri": "urn:a2abus:bus", "params": params }]);
    card
}

async fn open() -> Front {
    Front::open_with(CONFIG).await
}

fn ask(front: &Front, method: Method, path: &str) -> RequestBuilder {
    let url = format!("{}{path}", front.base);
    Client::new().request(method, url).timeout(SOON)
}

async fn json_of(response: Response) -> Value {
    response.json().await.unwrap()
}

/// The answer to a request to GET this.
async fn get(front: &Front, path: &str) -> Value {
    json_of(ask(front, Method::GET, path).send().await.unwrap()).await
}

/// The answer to a call of an agent by JSON-RPC.
async fn echo(front: &Front, agent: &str) -> Value {
    let call = request("1", "echo", json!({}));
    let sent = front.to(&format!("/rpc/{agent}"), call).send().await;
    json_of(sent.unwrap()).await
}

async fn announce(front: &Front, topic: &str, body: impl Into<String>) {
    let to = Address::topic(Topic::new(topic.to_owned()).unwrap());
    publish(&front.memory, &to, Message::plain(body.into())).await;
}

/// Announces, and returns the answer at an inbox.
async fn announce_and_hear(front: &Front, topic: &str, body: &Value) -> Value {
    let mut inbox = announce_with_inbox(front, topic, body).await;
    set_up::body(&next(&mut inbox).await)
}

/// Announces, and returns the inbox of the answer.
async fn announce_with_inbox(front: &Front, topic: &str, body: &Value) -> Consumer {
    let inbox = read(&front.memory, "inbox.>").await;
    let mut to = Address::topic(Topic::new(topic.to_owned()).unwrap());
    to.reply_to = Some(Topic::new("inbox.me").unwrap());
    publish(&front.memory, &to, Message::plain(body.to_string())).await;
    inbox
}

/// Waits until an agent is known, or is not.
async fn until(front: &Front, agent: &str, is_known: bool) {
    until_within(SOON, front, agent, is_known).await;
}

async fn until_within(most: Duration, front: &Front, agent: &str, is_known: bool) {
    let start = Instant::now();
    loop {
        let found = ask(front, Method::GET, &format!("/a2a/agents/{agent}")).send();
        let expected = if is_known {
            StatusCode::OK
        } else {
            StatusCode::NOT_FOUND
        };
        if found.await.unwrap().status() == expected {
            return;
        }
        assert!(start.elapsed() < most, "{agent}: not {expected} in time");
        sleep(Duration::from_millis(10)).await;
    }
}

async fn put(front: &Front, agent: &str, query: &str, card: &Value) -> Response {
    let path = format!("/a2a/agents/{agent}{query}");
    let request = ask(front, Method::PUT, &path).body(card.to_string());
    request.send().await.unwrap()
}

fn send_message(text: &str) -> String {
    let message = json!({ "kind": "message", "role": "user", "messageId": "m", "parts": [{ "kind": "text", "text": text }] });
    request("1", "message/send", json!({ "message": message }))
}

#[tokio::test]
async fn an_announced_agent_has_a_card_a_url_and_a_route() {
    let mut front = open().await;
    announce(&front, "discovery.weather", card("weather").to_string()).await;
    until(&front, "weather", true).await;
    for path in [
        "/card",
        "/.well-known/agent-card.json",
        "/.well-known/agent-card",
    ] {
        let path = format!("/a2a/agents/weather{path}");
        let found = get(&front, &path).await;
        assert_eq!(found["name"], "weather", "{path}");
        assert_eq!(found["skills"][0]["id"], "main");
        assert_eq!(found["capabilities"]["streaming"], true);
    }
    let list = get(&front, "/a2a/agents").await;
    let names: Vec<&str> = list["agents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| a["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["maps", "weather"]);
    let answer = front
        .to("/a2a/agents/weather", send_message("Oslo"))
        .send()
        .await
        .unwrap();
    assert!(json_of(answer).await.get("result").is_some());
    assert_eq!(front.next_request().await["topic"], "agents.weather");
    assert!(echo(&front, "weather").await.get("result").is_some());
}

#[tokio::test]
async fn an_unknown_agent_is_refused_at_once_with_the_existing_ones() {
    let front = open().await;
    let answer = front
        .to("/a2a/agents/nobody", send_message("Oslo"))
        .send()
        .await
        .unwrap();
    let error = json_of(answer).await;
    assert_eq!(error["error"]["data"]["availableAgents"], json!(["maps"]));
    // The default route would publish it.
    let error = echo(&front, "nobody").await;
    assert_eq!(
        error["error"]["data"]["reason"], "agent_not_found",
        "{error}"
    );
    assert!(echo(&front, "maps").await.get("result").is_some());
}

#[tokio::test]
async fn a_lease_runs_out_unless_it_is_renewed() {
    let front = open().await;
    let params = json!({ "lease": "15s" });
    announce(
        &front,
        "discovery.short",
        card_with("short", params).to_string(),
    )
    .await;
    until(&front, "short", true).await;
    assert_eq!(
        put(&front, "long", "?lease=1h", &card("long"))
            .await
            .status(),
        StatusCode::OK
    );
    until(&front, "short", false).await;
    until(&front, "long", true).await;
    assert_eq!(
        echo(&front, "short").await["error"]["data"]["reason"],
        "agent_not_found"
    );
    let metrics = front.admin("/metrics").await;
    assert!(
        metrics.contains("a2abus_agent_announcements_total{outcome=\"expired\"} 1"),
        "{metrics}"
    );
    assert!(metrics.contains("a2abus_announced_agents 1"));
    // It comes back.
    announce(&front, "discovery.short", card("short").to_string()).await;
    until(&front, "short", true).await;
}

#[tokio::test]
async fn a_bad_card_is_refused_with_every_reason() {
    let front = open().await;
    let bad = json!({ "name": "bad", "version": 7, "skills": [{ "id": "a" }], "capabilities": [] });
    let mut dlq_messages = read(&front.memory, "letters").await;
    let expected = [
        "/description: is missing",
        "/version:",
        "/skills/0/description: is missing",
        "/capabilities: is not an object",
    ];
    let answer = announce_and_hear(&front, "discovery.bad", &bad).await;
    let over_http = put(&front, "bad", "", &bad).await;
    assert_eq!(over_http.status(), StatusCode::BAD_REQUEST);
    let over_http = json_of(over_http).await;
    for answer in [&answer, &over_http] {
        let reasons = answer["error"]["data"]["reasons"].to_string();
        for reason in expected {
            assert!(reasons.contains(reason), "{reason}: {answer}");
        }
    }
    let dlq_message = timeout(SOON, dlq_messages.recv())
        .await
        .unwrap()
        .unwrap()
        .message;
    assert_eq!(
        dlq_message.body.as_deref(),
        Some(bad.to_string().as_bytes())
    );
    let detail = dlq_message.headers.get("bus-dlq-detail").unwrap();
    for reason in expected {
        assert!(String::from_utf8_lossy(detail).contains(reason), "{reason}");
    }
    let metrics = front.admin("/metrics").await;
    assert!(
        metrics.contains("a2abus_agent_announcements_total{outcome=\"refused\"} 2"),
        "{metrics}"
    );
    until(&front, "bad", false).await;
}

#[tokio::test]
async fn the_faults_of_a_card_and_the_reasons_of_the_bridge_are_one_answer() {
    let front = open().await;
    let mut bad = card("another");
    bad["version"] = json!(7);
    bad["capabilities"]["extensions"] = json!([
        { "uri": "urn:other" },
        { "uri": "urn:a2abus:bus", "params": { "topic": "letters", "lease": "soon" } },
    ]);
    let answer = announce_and_hear(&front, "discovery.bad", &bad).await;
    let long_name = "n".repeat(60);
    let mut unnamed = bad.clone();
    unnamed["name"] = json!(long_name);
    let refused = json_of(put(&front, &long_name, "", &unnamed).await).await;
    let own = [
        "/version: must be a string",
        "/capabilities/extensions/1/params/lease: is not a duration",
    ];
    let cases = [
        (answer, vec!["the key or subject", "topic letters"]),
        (refused, vec!["at most 58 characters"]),
    ];
    for (answer, reasons) in cases {
        let all = &answer["error"]["data"]["reasons"];
        for reason in reasons.iter().chain(&own) {
            assert!(all.to_string().contains(reason), "{reason}: {answer}");
        }
        let expected = own.len() + reasons.len();
        assert_eq!(all.as_array().unwrap().len(), expected, "{answer}");
    }
    // A topic is of its transport: if that cannot be read, nothing is said about the topic.
    let params = json!({ "transport": "/", "topic": "letters" });
    let refused = json_of(put(&front, "x", "", &card_with("x", params)).await).await;
    let reasons = refused["error"]["data"]["reasons"].as_array().unwrap();
    assert_eq!(reasons.len(), 1, "{reasons:?}");
}

#[tokio::test]
async fn forged_cards_are_refused() {
    let front = open().await;
    let long = "x".repeat(5_000);
    let mut large = card("large");
    large["comment"] = long.into();
    let cases = [
        ("discovery.weather", card("forged"), "forged"),
        ("discovery.large", large, "registry.max_card"),
        ("discovery.x", card("../maps"), "not a name"),
        ("discovery.x", card(&"n".repeat(60)), "at most 58"),
        (
            "discovery.x",
            card_with("x", json!({ "topic": "letters" })),
            "does not allow",
        ),
        (
            "discovery.x",
            card_with("x", json!({ "topic": "agents.maps" })),
            "does not allow",
        ),
        (
            "discovery.x",
            card_with("x", json!({ "topic": "a2abus.replies" })),
            "does not allow",
        ),
        (
            "discovery.x",
            card_with("x", json!({ "transport": "other" })),
            "registry.destinations",
        ),
        ("discovery.x", json!([card("x")]), "not a JSON object"),
        (
            "discovery.x",
            json!({ "jsonrpc": "2.0", "id": 1, "method": "agent/card/steal" }),
            "agent/card/register",
        ),
    ];
    for (topic, card, reason) in cases {
        let answer = announce_and_hear(&front, topic, &card).await;
        let error = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(error.contains(reason), "{reason}: {answer}");
    }
    let list = get(&front, "/a2a/agents").await;
    assert_eq!(list["agents"].as_array().unwrap().len(), 1, "{list}");
}

#[tokio::test]
async fn the_configuration_wins_over_announcements() {
    let mut front = open().await;
    let other = card_with("maps", json!({ "topic": "agents.team-x" }));
    let receipt = json_of(put(&front, "maps", "", &other).await).await;
    assert_eq!(receipt["status"], "listed");
    let found = get(&front, "/a2a/agents/maps").await;
    assert_eq!(found["description"], "Maps.");
    assert!(echo(&front, "maps").await.get("result").is_some());
    assert_eq!(front.next_request().await["topic"], "agents.maps");
    // A topic that the configuration allows.
    assert_eq!(
        put(
            &front,
            "own",
            "",
            &card_with("own", json!({ "topic": "agents.team-x" }))
        )
        .await
        .status(),
        200
    );
    assert!(echo(&front, "own").await.get("result").is_some());
    assert_eq!(front.next_request().await["topic"], "agents.team-x");
}

#[tokio::test]
async fn an_agent_of_the_configuration_is_not_removed_here() {
    let front = open().await;
    let removal = ask(&front, Method::DELETE, "/a2a/agents/maps").send();
    let refused = removal.await.unwrap();
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    let refused = json_of(refused).await;
    let why = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(why.contains("listed in the configuration"), "{refused}");
    // An announcement of the same name is removed, and changes nothing.
    assert_eq!(put(&front, "maps", "", &card("maps")).await.status(), 200);
    let removal = ask(&front, Method::DELETE, "/a2a/agents/maps").send();
    assert_eq!(removal.await.unwrap().status(), StatusCode::NO_CONTENT);
    until(&front, "maps", true).await;
}

#[tokio::test]
async fn an_agent_announced_over_http_is_listed_with_the_transport_of_its_requests() {
    let front = open().await;
    let short = put(&front, "weather", "?lease=1ns", &card("weather")).await;
    assert_eq!(short.status(), StatusCode::BAD_REQUEST);
    let short = short.text().await.unwrap();
    assert!(short.contains("at least 1s"), "{short}");
    let response = put(&front, "weather", "", &card("weather")).await;
    assert_eq!(response.status(), StatusCode::OK);
    let list = get(&front, "/a2a/cards/list?agent_id=weather").await;
    assert_eq!(list["cards"][0]["transport"], "local", "{list}");
}

#[tokio::test]
async fn requests_to_the_registry_are_answered_on_every_interface() {
    let front = open().await;
    let identity = json!({ "org_id": "acme", "unit_id": "web", "agent_id": "shop" });
    let with = |more: Value| {
        let mut params = identity.clone();
        params
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        params
    };
    let rpc = async |path: &str, method: &str, params: Value| {
        json_of(
            front
                .to(path, request("9", method, params))
                .send()
                .await
                .unwrap(),
        )
        .await
    };
    let absent = rpc(
        "/rpc",
        "agent/card/update",
        with(json!({ "card": card("shop") })),
    )
    .await;
    assert_eq!(
        absent["error"]["data"]["reason"], "agent_not_found",
        "{absent}"
    );
    let registered = rpc(
        "/rpc",
        "agent/card/register",
        with(json!({ "card": card("Shop of Acme") })),
    )
    .await;
    assert_eq!(registered["result"]["status"], "registered", "{registered}");
    let response = rpc("/a2a", "agent/card/get", identity.clone()).await;
    assert_eq!(
        response["result"]["card"]["name"], "Shop of Acme",
        "{response}"
    );
    assert_eq!(response["id"], 9);
    // The agent exists, but not there.
    let elsewhere = json!({ "org_id": "acme", "unit_id": "till", "agent_id": "shop" });
    let elsewhere = rpc("/a2a", "agent/card/get", elsewhere).await;
    let message = elsewhere["error"]["message"].as_str().unwrap();
    assert!(message.contains("\"acme/till\""), "{elsewhere}");
    let other = rpc(
        "/a2a/agents/shop",
        "agent/card/register",
        json!({ "org_id": "evil", "unit_id": "x", "card": card("shop") }),
    )
    .await;
    assert!(
        other["error"]["message"]
            .as_str()
            .unwrap()
            .contains("acme/web"),
        "{other}"
    );
    let list = rpc(
        "/rpc",
        "agent/card/list",
        json!({ "org_id": "acme", "unit_id": "+", "agent_id": "+" }),
    )
    .await;
    assert_eq!(list["result"]["total"], 1, "{list}");
    let all = rpc("/rpc", "agent/card/list", json!({})).await;
    assert_eq!(all["result"]["total"], 2, "{all}");
    // Over the bus.
    let beat =
        json!({ "jsonrpc": "2.0", "id": "u-1", "method": "agent/card/get", "params": identity });
    let received = announce_and_hear(&front, "discovery.anything", &beat).await;
    assert_eq!(
        (&received["id"], &received["result"]["agent_id"]),
        (&json!("u-1"), &json!("shop"))
    );
    let gone = rpc("/rpc", "agent/card/delete", identity.clone()).await;
    assert_eq!(gone["result"]["deleted"], true, "{gone}");
    until(&front, "shop", false).await;
}

#[tokio::test]
async fn methods_list_has_skills_and_tools() {
    let front = open().await;
    assert_eq!(
        put(&front, "weather", "", &card("weather")).await.status(),
        200
    );
    let mut requests = read(&front.memory, "team.tools").await;
    let card = card_with("tools", json!({ "topic": "team.tools" }));
    assert_eq!(put(&front, "tools", "", &card).await.status(), 200);
    let memory = front.memory.connect();
    tokio::spawn(async move {
        let mut count = 0;
        while let Some(delivery) = requests.recv().await {
            let request = set_up::body(&delivery.message);
            assert_eq!(request["method"], "tools/list");
            count += 1;
            let tool =
                json!({ "name": format!("get-{count}"), "inputSchema": { "type": "object" } });
            let answer =
                json!({ "jsonrpc": "2.0", "id": request["id"], "result": { "tools": [tool] } });
            let to = Address::topic(delivery.reply_to.unwrap());
            publish(&memory, &to, Message::plain(answer.to_string())).await;
        }
    });
    let list = || async {
        let list = request("1", "methods/list", json!({}));
        json_of(front.to("/rpc/tools", list).send().await.unwrap()).await
    };
    // Many concurrent requests need only one query to the agent.
    let mut lists = futures_util::future::join_all((0..8).map(|_| list())).await;
    lists.push(list().await);
    for one in lists {
        let methods = one["result"]["methods"].as_array().unwrap();
        let of = |method: &str| methods.iter().find(|it| it["method"] == method).unwrap();
        assert_eq!(of("message/send")["skill"]["id"], "main", "{one}");
        assert!(
            methods.iter().any(|it| it["tool"]["name"] == "get-1"),
            "{one}"
        );
    }
    let all = json_of(
        front
            .to("/rpc", request("1", "methods/list", json!({})))
            .send()
            .await
            .unwrap(),
    )
    .await;
    for agent in ["maps", "tools", "weather"] {
        let is_there = all["result"]["methods"]
            .as_array()
            .unwrap()
            .iter()
            .any(|it| it["agent"] == agent);
        assert!(is_there, "{agent}: {all}");
    }
}

/// Opens the stream of agents.
async fn watch(front: &Front) -> reqwest::Response {
    let request = ask(front, Method::GET, "/a2a/agents");
    let request = request.header("accept", "text/event-stream");
    request.send().await.unwrap()
}

#[tokio::test]
async fn agents_are_watched_and_removed_over_rest() {
    let front = open().await;
    let mut watched = watch(&front).await;
    let mut text = String::new();
    let mut next = async || loop {
        let end = text.find("\n\n").map(|end| end + 2);
        if let Some(end) = end {
            let event: String = text.drain(..end).collect();
            if let Some(event) = read_events(&event).first() {
                return serde_json::from_str::<Value>(&event.data).unwrap();
            }
            continue;
        }
        let chunk = timeout(SOON, watched.chunk())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    };
    let first = next().await;
    assert_eq!(first["changes"][0]["agent"]["name"], "maps");
    // Nobody knows whether an agent on the bus is available.
    assert_eq!(first["changes"][0]["agent"].get("available"), None);
    assert_eq!(
        put(&front, "weather", "", &card("weather")).await.status(),
        200
    );
    let change = next().await;
    assert_eq!(change["changes"][0]["change"], "registered", "{change}");
    let gone = ask(&front, Method::DELETE, "/a2a/agents/weather")
        .send()
        .await
        .unwrap();
    assert_eq!(gone.status(), StatusCode::NO_CONTENT);
    assert_eq!(next().await["changes"][0]["change"], "removed");
    let again = ask(&front, Method::DELETE, "/a2a/agents/weather")
        .send()
        .await
        .unwrap();
    assert_eq!(again.status(), StatusCode::NOT_FOUND);
    // A page of another site changes nothing.
    let foreign = ask(&front, Method::PUT, "/a2a/agents/x")
        .header("origin", "https://evil.example")
        .body("{}");
    assert_eq!(
        foreign.send().await.unwrap().status(),
        StatusCode::FORBIDDEN
    );
}

#[tokio::test]
async fn the_stream_of_agents_ends_when_the_bridge_stops() {
    let front = open().await;
    let mut watched = watch(&front).await;
    let first = timeout(SOON, watched.chunk()).await.unwrap().unwrap();
    assert!(first.is_some());
    front.stop.cancel();
    // Connections that are open after the grace period are cut off: that would be an error.
    while timeout(SOON, watched.chunk())
        .await
        .unwrap()
        .unwrap()
        .is_some()
    {}
    front.running.await.unwrap();
}

#[tokio::test]
async fn an_attached_agent_may_announce_its_own_topic() {
    let mine = "  mine:\n    description: Mine.\n    to: { transport: local, topic: agents.team-mine }\n    attach: { url: 'http://127.0.0.1:9/', protocol: jsonrpc }\n";
    let config = CONFIG.replace("agents:\n", &format!("agents:\n{mine}"));
    let front = Front::open_with(&config).await;
    // Another replica, which has not attached it, gets the record.
    let own = card_with("mine", json!({ "topic": "agents.team-mine" }));
    assert_eq!(put(&front, "mine", "", &own).await.status(), 200);
    let other = card_with("other", json!({ "topic": "agents.team-mine" }));
    let refused = put(&front, "other", "", &other).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn an_agent_that_is_named_as_a_topic_of_the_bridge_gets_no_requests_there() {
    let config = CONFIG.replace(
        r#"["discovery.*", announcements]"#,
        r#"["agents.announce"]"#,
    );
    let front = Front::open_with(&config).await;
    let refused = put(&front, "announce", "", &card("announce")).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    let refused = refused.text().await.unwrap();
    assert!(refused.contains("one of the bridge's own"), "{refused}");
    let response = put(&front, "weather", "", &card("weather")).await;
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_thousand_agents_announce_themselves() {
    let front = open().await;
    for number in 0..1_000 {
        let name = format!("agent-{number}");
        announce(&front, "announcements", card(&name).to_string()).await;
    }
    until_within(6 * SOON, &front, "agent-999", true).await;
    let list = get(&front, "/a2a/agents").await;
    assert_eq!(list["agents"].as_array().unwrap().len(), 1_001);
    assert!(echo(&front, "agent-500").await.get("result").is_some());
    // There is room for a hundred more.
    for number in 0..100 {
        let name = format!("more-{number}");
        assert_eq!(put(&front, &name, "", &card(&name)).await.status(), 200);
    }
    let full = put(&front, "last", "", &card("last")).await;
    assert_eq!(full.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        put(&front, "more-1", "", &card("more-1")).await.status(),
        200
    );
}

/// The agents do not answer, so the query lasts for some seconds.
#[tokio::test]
async fn an_announcement_does_not_wait_for_a_query_before_it() {
    let front = open().await;
    let last = 70;
    for number in 0..=last {
        let name = format!("silent-{number:02}");
        let card = card_with(&name, json!({ "topic": "team.silent" }));
        announce(&front, "announcements", card.to_string()).await;
    }
    until(&front, &format!("silent-{last}"), true).await;
    let mut requests = read(&front.memory, "team.silent").await;
    let query = json!({ "jsonrpc": "2.0", "id": 1, "method": "methods/list" });
    let mut inbox = announce_with_inbox(&front, "announcements", &query).await;
    let _asked = timeout(SOON, requests.recv()).await.unwrap().unwrap();
    announce(&front, "announcements", card("weather").to_string()).await;
    until(&front, "weather", true).await;
    assert!(inbox.try_recv().is_none(), "the query is answered already");
    let answer = timeout(SOON, inbox.recv()).await.unwrap().unwrap();
    let answer = set_up::body(&answer.message);
    let unavailable = answer["result"]["unavailable"].as_array().unwrap();
    assert!(unavailable.len() > last, "{answer}");
}

#[tokio::test]
async fn agents_whose_lease_is_over_make_room_for_others() {
    let front = Front::open_with(&CONFIG.replace("max_agents: 1100", "max_agents: 1")).await;
    for number in 0..5 {
        let name = format!("short-{number}");
        let response = put(&front, &name, "?lease=1s", &card(&name)).await;
        assert_eq!(response.status(), StatusCode::OK, "{name}");
        until(&front, &name, false).await;
    }
}

#[tokio::test]
async fn lists_of_agents_count_against_the_limits_of_their_client() {
    let config = CONFIG.replace("calls: {", "calls: { budget_bytes: 1MiB,");
    let front = Front::open_with(&config).await;
    let last = 200;
    for number in 0..=last {
        let mut card = card(&format!("large-{number:03}"));
        card["description"] = "d".repeat(3_000).into();
        announce(&front, "announcements", card.to_string()).await;
    }
    until(&front, &format!("large-{last}"), true).await;
    let list = get(&front, "/a2a/cards/list?limit=2&offset=1").await;
    assert_eq!(list["cards"][0]["agent_id"], "large-001", "{list}");
    assert_eq!(
        (&list["total"], &list["next_offset"]),
        (&json!(202), &json!(3))
    );
    // A client gets a list that exceeds its half of the budget, but only one at a time.
    for (path, member) in [
        ("/a2a/cards/list?limit=1000", "cards"),
        ("/a2a/agents", "agents"),
    ] {
        let list = timeout(SOON, async {
            loop {
                let list = ask(&front, Method::GET, path).send().await.unwrap();
                if list.status() != StatusCode::TOO_MANY_REQUESTS {
                    return json_of(list).await;
                }
            }
        });
        let list = list.await.unwrap();
        assert!(list[member].as_array().unwrap().len() > last, "{path}");
    }
    // A stream of the list is a request in progress.
    let front = Front::open_with(&format!("{CONFIG}a2a: {{ max_requests_per_client: 1 }}\n")).await;
    let _watched = watch(&front).await;
    for path in ["/a2a/cards/list", "/a2a/agents"] {
        let refused = get(&front, path).await;
        let reason = &refused["error"]["data"]["reason"];
        assert_eq!(reason, "rate_limited", "{path}: {refused}");
    }
}

/// Announces agents with large cards.
async fn announce_large(front: &Front, count: usize) {
    for number in 0..count {
        let mut card = card(&format!("large-{number:03}"));
        card["description"] = "d".repeat(3_500).into();
        announce(front, "announcements", card.to_string()).await;
    }
    until(front, &format!("large-{:03}", count - 1), true).await;
}

fn list_from(offset: u64, limit: u64) -> Value {
    let params = json!({ "offset": offset, "limit": limit });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "agent/card/list", "params": params })
}

/// All cards together are larger than a message may be.
#[tokio::test]
async fn a_list_on_a_topic_comes_in_pages_that_fit_into_messages() {
    let front = open().await;
    announce_large(&front, 320).await;
    let (mut found, mut offset) = (0, 0);
    loop {
        let list = list_from(offset, 1_000);
        let answer = announce_and_hear(&front, "discovery.anything", &list).await;
        let page = &answer["result"];
        let cards = page["cards"].as_array();
        found += cards.unwrap_or_else(|| panic!("{answer}")).len();
        match page["next_offset"].as_u64() {
            Some(next) => offset = next,
            None => break,
        }
    }
    assert_eq!(found, 321);
}

#[tokio::test]
async fn an_answer_that_is_too_large_for_its_bus_is_an_error() {
    let small = MemoryConfig {
        max_message_bytes: NonZeroUsize::new(16 << 10).unwrap(),
        ..MemoryConfig::default()
    };
    let front = Front::open_on(Memory::new(small), CONFIG).await;
    announce_large(&front, 6).await;
    let all = list_from(0, 1_000);
    let refused = announce_and_hear(&front, "discovery.anything", &all).await;
    let error = &refused["error"];
    assert_eq!(error["data"]["reason"], "reply_undeliverable", "{refused}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("with limit and offset"), "{message}");
    let some = list_from(0, 2);
    let page = announce_and_hear(&front, "discovery.anything", &some).await;
    assert_eq!(page["result"]["next_offset"], 2, "{page}");
    let metrics = front.admin("/metrics").await;
    let dropped = r#"a2abus_dropped_total{binding="discovery",reason="reply_undeliverable"} 1"#;
    assert!(metrics.contains(dropped), "{metrics}");
}

#[tokio::test]
async fn requests_over_rest_that_cannot_be_read_say_why() {
    let front = open().await;
    let check = async |method: Method, path: &str, body: &str, expected: (i64, &str)| {
        let sent = ask(&front, method, path).header("content-type", "application/json");
        let refused = sent.body(body.to_owned()).send().await.unwrap();
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST, "{path}");
        let error = json_of(refused).await["error"].clone();
        assert_eq!(error["code"], expected.0, "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(expected.1), "{error}");
    };
    let not_json = (-32700, "not JSON");
    check(Method::PUT, "/a2a/agents/x", "{", not_json).await;
    check(Method::POST, "/a2a/cards/card/a/b/x", "{", not_json).await;
    let not_an_object = (-32602, "not a JSON object");
    check(Method::PUT, "/a2a/agents/x", "[]", not_an_object).await;
    let owner = (-32602, "org_id is not 1 to 64 letters");
    let forged = "/a2a/agents/x?org_id=a%0Ab";
    check(Method::PUT, forged, &card("x").to_string(), owner).await;
    for message in ["null", "[\"Oslo\"]"] {
        let body = format!(r#"{{"targetAgent":"maps","message":{message}}}"#);
        let expected = (-32602, "message must be a string");
        check(Method::POST, "/a2a/tasks", &body, expected).await;
    }
}

#[tokio::test]
async fn a_task_for_no_known_agent_is_refused_with_the_cure() {
    let front = open().await;
    for (agent, cure) in [
        ("zz zz", "targetAgent does not name an agent"),
        ("nobody", "list it in the section `agents`"),
    ] {
        let body = json!({"targetAgent": agent, "message": "Oslo"}).to_string();
        let sent =
            ask(&front, Method::POST, "/a2a/tasks").header("content-type", "application/json");
        let refused = sent.body(body).send().await.unwrap();
        assert_eq!(refused.status(), StatusCode::NOT_FOUND);
        let error = json_of(refused).await["error"].clone();
        assert_eq!(error["data"]["reason"], "agent_not_found", "{error}");
        assert!(error["message"].as_str().unwrap().contains(cure), "{error}");
    }
}

#[tokio::test]
async fn clients_of_eventmesh_find_their_gateway() {
    let front = open().await;
    let path = "/a2a/cards/card/acme/web/shop";
    let posted = ask(&front, Method::POST, path)
        .body(card("shop").to_string())
        .send()
        .await
        .unwrap();
    assert_eq!(posted.status(), StatusCode::NO_CONTENT);
    let found = get(&front, path).await;
    assert_eq!(found, card("shop"));
    let list = get(&front, "/a2a/cards/list?org_id=acme&unit_id=+&agent_id=+").await;
    assert_eq!(list["total"], 1);
    let beat = json!({ "orgId": "acme", "unitId": "web", "agentId": "shop" }).to_string();
    let heartbeat = ask(&front, Method::POST, "/a2a/heartbeat")
        .body(beat)
        .send()
        .await
        .unwrap();
    assert_eq!(json_of(heartbeat).await["status"], "ok");
    let stranger = json!({ "orgId": "evil", "unitId": "web", "agentId": "shop" }).to_string();
    let heartbeat = ask(&front, Method::POST, "/a2a/heartbeat")
        .body(stranger)
        .send()
        .await
        .unwrap();
    assert_eq!(heartbeat.status(), StatusCode::BAD_REQUEST);
    assert_eq!(
        ask(&front, Method::DELETE, path)
            .send()
            .await
            .unwrap()
            .status(),
        StatusCode::NO_CONTENT
    );
    assert_eq!(
        ask(&front, Method::GET, path)
            .send()
            .await
            .unwrap()
            .status(),
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn tasks_of_eventmesh_are_those_of_a2a() {
    let front = open().await;
    let create = |mode: &str, agent: &str, message: Value| {
        let body = json!({ "targetAgent": agent, "message": message }).to_string();
        ask(&front, Method::POST, &format!("/a2a/tasks{mode}"))
            .header("content-type", "application/json")
            .body(body)
            .send()
    };
    let response = create("?mode=sync", "maps", json!("Oslo")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let response = json_of(response).await;
    assert_eq!(
        (&response["state"], &response["targetAgent"]),
        (&json!("COMPLETED"), &json!("maps")),
        "{response}"
    );
    let accepted = create("?mode=async", "maps", json!({ "city": "Oslo" }))
        .await
        .unwrap();
    assert_eq!(accepted.status(), StatusCode::ACCEPTED);
    let accepted = json_of(accepted).await;
    assert_eq!(accepted["status"], "accepted");
    let id = accepted["taskId"].as_str().unwrap().to_owned();
    let waited = get(&front, &format!("/a2a/tasks/{id}/wait?timeout=60000")).await;
    assert_eq!(waited["state"], "COMPLETED");
    let streamed = ask(&front, Method::GET, &format!("/a2a/tasks/{id}/stream"))
        .send()
        .await
        .unwrap();
    let events = read_events(&streamed.text().await.unwrap());
    let last: Value = serde_json::from_str(&events.last().unwrap().data).unwrap();
    assert_eq!(
        (&last["taskId"], &last["state"]),
        (&json!(id), &json!("COMPLETED"))
    );
    // A client that reconnects after the last event is told to stop.
    let again = ask(&front, Method::GET, &format!("/a2a/tasks/{id}/stream"))
        .header("last-event-id", events.last().unwrap().id.clone().unwrap())
        .send()
        .await
        .unwrap();
    assert_eq!(again.status(), StatusCode::NO_CONTENT);
    assert_eq!(again.text().await.unwrap(), "");
    let list = get(&front, "/a2a/tasks?state=COMPLETED&limit=1").await;
    assert_eq!(
        (&list["total"], &list["count"], &list["hasMore"]),
        (&json!(2), &json!(1), &json!(true)),
        "{list}"
    );
    // The same task through A2A.
    let get = front
        .to(
            "/a2a/agents/maps",
            request("1", "tasks/get", json!({ "id": id })),
        )
        .send()
        .await
        .unwrap();
    assert_eq!(json_of(get).await["result"]["status"]["state"], "completed");
    let over = ask(&front, Method::DELETE, &format!("/a2a/tasks/{id}"))
        .send()
        .await
        .unwrap();
    assert_eq!(over.status(), StatusCode::CONFLICT);
    for (path, status) in [
        ("/a2a/tasks/none", 404),
        ("/a2a/tasks?limit=0", 400),
        ("/a2a/tasks?state=odd", 400),
        ("/a2a/tasks?status=working", 400),
        ("/a2a/tasks/none/wait?time=1", 400),
    ] {
        assert_eq!(
            ask(&front, Method::GET, path)
                .send()
                .await
                .unwrap()
                .status(),
            status,
            "{path}"
        );
    }
    let mistyped = create("?modus=async", "weather", json!("x"));
    let mistyped = mistyped.await.unwrap();
    assert_eq!(mistyped.status(), StatusCode::BAD_REQUEST);
    let mistyped = mistyped.text().await.unwrap();
    assert!(
        mistyped.contains("unknown field `modus`, expected `mode`"),
        "{mistyped}"
    );
    let unknown = create("", "nobody", json!("x")).await.unwrap();
    assert_eq!(unknown.status(), StatusCode::NOT_FOUND);
    assert_eq!(
        json_of(unknown).await["error"]["data"]["availableAgents"],
        json!(["maps"])
    );
}

#[test]
fn discovery_needs_the_registry() {
    let without = CONFIG.replace("enabled: true", "enabled: false");
    let problems = Config::read("test.yaml", &without, [])
        .unwrap_err()
        .to_string();
    assert!(
        problems.contains("needs registry.enabled: true"),
        "{problems}"
    );
    let short = CONFIG.replace("max_card: 4KiB", "max_lease: 10s");
    let problems = Config::read("test.yaml", &short, [])
        .unwrap_err()
        .to_string();
    assert!(
        problems.contains("is longer than registry.max_lease"),
        "{problems}"
    );
    let elsewhere = CONFIG.replace(
        "destinations: [ { to: { transport: local",
        "destinations: [ { to: { transport: locl",
    );
    let problems = Config::read("test.yaml", &elsewhere, [])
        .unwrap_err()
        .to_string();
    assert!(problems.contains("did you mean local"), "{problems}");
}

#[tokio::test]
async fn of_two_owners_of_one_name_the_first_has_it() {
    let front = open().await;
    for round in 0..20 {
        let agent = format!("twice-{round}");
        let card = card(&agent);
        let owners = ["one", "two"];
        let sent = owners.map(|owner| {
            let query = format!("?org_id={owner}");
            let (front, agent, card) = (&front, &agent, &card);
            async move { put(front, agent, &query, card).await.status() }
        });
        let statuses = futures_util::future::join_all(sent).await;
        let won = statuses.iter().position(|status| *status == 200).unwrap();
        assert_eq!(statuses[1 - won], 400, "{statuses:?}");
        let get = request("1", "agent/card/get", json!({ "agent_id": agent }));
        let found = front.to("/rpc", get).send().await.unwrap();
        let found = json_of(found).await;
        assert_eq!(found["result"]["org_id"], owners[won], "{found}");
    }
}

/// A bridge with a lower limit has the same log.
#[tokio::test]
async fn an_agent_that_is_known_may_announce_itself_above_the_limit() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().display();
    let config = format!("{CONFIG}state: {{ log: embedded, directory: {state} }}\n");
    let first = Front::open_with(&config).await;
    for agent in ["storms", "weather"] {
        let response = put(&first, agent, "", &card(agent)).await;
        assert!(response.status().is_success(), "{response:?}");
    }
    first.stop.cancel();
    timeout(SOON, first.running).await.unwrap().unwrap();
    until_closed(directory.path()).await;
    let second = Front::open_with(&config.replace("max_agents: 1100", "max_agents: 1")).await;
    let response = put(&second, "storms", "", &card("storms")).await;
    assert!(response.status().is_success(), "{response:?}");
    until(&second, "storms", true).await;
    // A new one has no place.
    let response = put(&second, "tides", "", &card("tides")).await;
    assert!(!response.status().is_success(), "{response:?}");
    until(&second, "storms", true).await;
}
