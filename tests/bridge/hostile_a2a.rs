//! What clients of `/a2a` do that no client should: bodies that never end, connections that are half closed, bodies and
//! heads that are too large. Each is answered or closed, and the next client is served.

use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::http::{Front, SOON, request};

const CONFIG: &str = r#"
instance: test
transports:
  local: { type: memory }
agents:
  weather: { description: The weather., to: { transport: local, topic: agents.weather } }
calls: { timeout: 60s }
http: { listen: "127.0.0.1:0", drain_grace: 5s, header_timeout: 500ms }
admin: { listen: "127.0.0.1:0" }
limits: { max_bytes: 100KiB }
"#;

/// The paths of JSON-RPC for A2A clients.
const PATHS: [&str; 3] = ["/a2a", "/", "/a2a/agents/weather"];

async fn connect(front: &Front) -> TcpStream {
    let address = front.base.trim_start_matches("http://");
    TcpStream::connect(address).await.unwrap()
}

fn head(path: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )
}

fn call() -> String {
    let message =
        json!({"role": "user", "messageId": "m-1", "parts": [{"kind": "text", "text": "Oslo"}]});
    request("7", "message/send", json!({ "message": message }))
}

/// Status and JSON of an answer; the connection is read to its end.
async fn answer(mut client: TcpStream) -> (StatusCode, Value) {
    let mut bytes = Vec::new();
    let read = timeout(SOON, client.read_to_end(&mut bytes)).await;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    // A client that still writes may find the connection reset after the answer.
    read.expect("the connection is closed in time")
        .map_or_else(|error| assert!(!text.is_empty(), "{error}"), drop);
    let (head, body) = text.split_once("\r\n\r\n").expect("an answer");
    assert!(head.contains("connection: close"), "{head}");
    let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body = body.trim();
    (
        StatusCode::from_u16(status).unwrap(),
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {text}")),
    )
}

/// What comes back if a client sends a call, with this as its length, and then closes its sending side.
async fn half_closed(front: &Front, path: &str, length: usize) -> String {
    let mut client = connect(front).await;
    let sent = format!("{}{}", head(path, length), call());
    client.write_all(sent.as_bytes()).await.unwrap();
    client.shutdown().await.unwrap();
    let mut bytes = Vec::new();
    timeout(SOON, client.read_to_end(&mut bytes))
        .await
        .expect("the connection is closed in time")
        .unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The reason of an error, and its code.
fn error(answer: &Value) -> (i64, &str) {
    let error = &answer["error"];
    (
        error["code"].as_i64().unwrap(),
        error["data"]["reason"].as_str().unwrap(),
    )
}

async fn is_served(front: &Front) {
    let served = front
        .to("/a2a", call())
        .header("content-type", "application/json");
    let served = served.send().await.unwrap();
    assert_eq!(served.status(), StatusCode::OK);
    assert_eq!(served.json::<Value>().await.unwrap()["id"], 7);
}

#[tokio::test]
async fn a_body_that_comes_too_slowly_is_refused() {
    let front = Front::open_with(CONFIG).await;
    for path in PATHS {
        let mut client = connect(&front).await;
        let sent = format!("{}{{", head(path, 1_000));
        client.write_all(sent.as_bytes()).await.unwrap();
        let (status, answer) = answer(client).await;
        assert_eq!(status, StatusCode::REQUEST_TIMEOUT, "{path}: {answer}");
        assert_eq!(error(&answer), (-32603, "timeout"), "{path}: {answer}");
    }
    is_served(&front).await;
}

#[tokio::test]
async fn a_client_that_closes_its_sending_side_has_gone_away() {
    let front = Front::open_with(CONFIG).await;
    for path in PATHS {
        // The answer may have been faster.
        let text = half_closed(&front, path, call().len()).await;
        assert!(
            text.is_empty() || text.starts_with("HTTP/1.1 200"),
            "{path}: {text}"
        );
    }
    is_served(&front).await;
}

#[tokio::test]
async fn a_truncated_body_is_not_a_request() {
    let mut front = Front::open_with(CONFIG).await;
    for path in PATHS {
        let text = half_closed(&front, path, call().len() + 1).await;
        assert!(
            text.is_empty() || text.starts_with("HTTP/1.1 400"),
            "{path}: {text}"
        );
    }
    is_served(&front).await;
    // The agent has seen that one call, and none of the others.
    front.next_request().await;
    assert!(front.requests.try_recv().is_err());
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_with_and_without_a_length() {
    let front = Front::open_with(CONFIG).await;
    for path in PATHS {
        let mut client = connect(&front).await;
        client
            .write_all(head(path, 1 << 30).as_bytes())
            .await
            .unwrap();
        let (status, body) = answer(client).await;
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{path}: {body}");
        assert!(
            body["error"]["message"]
                .as_str()
                .unwrap()
                .contains("102400")
        );

        let mut client = connect(&front).await;
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        client.write_all(head.as_bytes()).await.unwrap();
        let chunk = format!("4000\r\n{}\r\n", " ".repeat(0x4000));
        for _ in 0..8 {
            // It may have been answered already.
            if client.write_all(chunk.as_bytes()).await.is_err() {
                break;
            }
        }
        let (status, body) = answer(client).await;
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{path}: {body}");
    }
    is_served(&front).await;
}

#[tokio::test]
async fn a_body_in_an_unknown_transfer_coding_is_refused() {
    let front = Front::open_with(CONFIG).await;
    let mut client = connect(&front).await;
    let head = "POST /a2a HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip, chunked\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    let (status, body) = answer(client).await;
    assert_eq!(status, StatusCode::NOT_IMPLEMENTED, "{body}");
    is_served(&front).await;
}

#[tokio::test]
async fn a_head_that_is_too_large_ends_the_connection() {
    let front = Front::open_with(CONFIG).await;
    for line in [
        format!("x-flood: {}\r\n", "v".repeat(1 << 20)),
        "x-flood: v\r\n".repeat(10_000),
    ] {
        let mut client = connect(&front).await;
        let head = format!("POST /a2a HTTP/1.1\r\nhost: localhost\r\n{line}\r\n");
        // The server may close before it has read all.
        drop(client.write_all(head.as_bytes()).await);
        let mut bytes = Vec::new();
        drop(
            timeout(SOON, client.read_to_end(&mut bytes))
                .await
                .expect("the connection is closed in time"),
        );
        let text = String::from_utf8_lossy(&bytes);
        assert!(
            text.is_empty() || text.starts_with("HTTP/1.1 431"),
            "{text}"
        );
    }
    is_served(&front).await;
}

/// What a client sends, and why its connection is closed: none of it reaches the router.
fn refused_by_hyper() -> [(Vec<u8>, &'static str); 5] {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".as_slice();
    // `GET http://localhost/`, and its reset.
    let request = |stream: u32| {
        let id = stream.to_be_bytes();
        let head = [
            b"\0\0\x0e\x01\x05".as_slice(),
            &id,
            b"\x82\x84\x86A\x09localhost",
        ]
        .concat();
        [&head, b"\0\0\x04\x03\0".as_slice(), &id, &[0, 0, 0, 8]].concat()
    };
    let resets = (0..500).flat_map(|at| request(2 * at + 1));
    [
        (b"\x16\x03\x01\x02\0\x01\r\n\r\n".to_vec(), "malformed"),
        (
            format!("GET /{} HTTP/1.1\r\n\r\n", "p".repeat(1 << 17)).into(),
            "head_too_large",
        ),
        (
            format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "v".repeat(1 << 17)).into(),
            "head_too_large",
        ),
        // Data outside any request.
        ([preface, b"\0\0\x01\0\0\0\0\0\0x"].concat(), "malformed"),
        (preface.iter().copied().chain(resets).collect(), "flood"),
    ]
}

#[tokio::test]
async fn what_never_becomes_a_request_is_counted() {
    // After a refusal the bridge still reads for a moment, and that must not be too long for the timeout.
    let front =
        Front::open_with(&CONFIG.replace("header_timeout: 500ms", "header_timeout: 30s")).await;
    let mut counts = std::collections::BTreeMap::new();
    for (sent, why) in refused_by_hyper() {
        let mut client = connect(&front).await;
        // The server may close before it has read all.
        drop(client.write_all(&sent).await);
        let read = timeout(SOON, client.read_to_end(&mut Vec::new())).await;
        drop(read.expect("the connection is closed in time"));
        let count = counts.entry(why).or_insert(0);
        *count += 1;
        let line = format!(
            "a2abus_http_connections_closed_total{{door=\"http\",why=\"{why}\"}} {count}\n"
        );
        let start = std::time::Instant::now();
        while !front.admin("/metrics").await.contains(&line) {
            assert!(start.elapsed() < SOON, "no {line}");
            tokio::task::yield_now().await;
        }
    }
    is_served(&front).await;
}

// === clients that are only unusual ===

#[tokio::test]
async fn every_form_of_the_url_takes_requests() {
    let front = Front::open_with(CONFIG).await;
    for path in [
        "/",
        "/a2a",
        "/a2a/",
        "/a2a/agents/weather",
        "/a2a/agents/weather/",
    ] {
        let sent = front
            .to(path, call())
            .header("content-type", "application/json");
        let answer: Value = sent.send().await.unwrap().json().await.unwrap();
        assert!(answer["result"].is_object(), "{path}: {answer}");
    }
}

#[tokio::test]
async fn a_byte_order_mark_is_skipped() {
    let front = Front::open_with(CONFIG).await;
    let sent = front
        .to("/a2a", format!("\u{feff}{}", call()))
        .header("content-type", "application/json");
    let answer: Value = sent.send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["id"], 7, "{answer}");
    assert!(answer["result"].is_object(), "{answer}");
}

#[tokio::test]
async fn members_may_be_named_as_in_the_proto_of_1_0() {
    let front = Front::open_with(CONFIG).await;
    let ask = async |method: &str, params: Value| {
        let sent = front
            .to("/a2a", request("1", method, params))
            .header("content-type", "application/json")
            .header("a2a-version", "1.0");
        sent.send().await.unwrap().json::<Value>().await.unwrap()
    };
    let message = json!({"role": "ROLE_USER", "message_id": "m-1", "context_id": "c-1", "parts": [{"text": "Oslo"}]});
    let configuration = json!({"return_immediately": true});
    let sent = ask(
        "SendMessage",
        json!({"message": message, "configuration": configuration}),
    )
    .await;
    let task = &sent["result"]["task"];
    assert_eq!(task["contextId"], "c-1", "{sent}");
    let stored = ask("GetTask", json!({"id": task["id"], "history_length": 0})).await;
    assert_eq!(stored["result"]["id"], task["id"], "{stored}");
    assert!(stored["result"].get("history").is_none(), "{stored}");
    let listed = ask("ListTasks", json!({"context_id": "c-2", "page_size": 5})).await;
    assert_eq!(listed["result"]["totalSize"], 0, "{listed}");
    assert_eq!(listed["result"]["pageSize"], 5, "{listed}");
}

#[tokio::test]
async fn a_stream_that_fails_before_it_begins_is_json_in_1_0_and_an_event_in_0_3() {
    let front = Front::open_with(CONFIG).await;
    for (version, method, content_type) in [
        ("1.0", "SubscribeToTask", "application/json"),
        ("0.3", "tasks/resubscribe", "text/event-stream"),
    ] {
        let sent = front
            .to("/a2a", request("1", method, json!({"id": "nobody"})))
            .header("content-type", "application/json")
            .header("accept", "text/event-stream")
            .header("a2a-version", version);
        let response = sent.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(
            response.headers()["content-type"],
            content_type,
            "{version}"
        );
        let text = response.text().await.unwrap();
        assert!(
            text.contains("-32001") && text.contains("task not found"),
            "{text}"
        );
    }
}
