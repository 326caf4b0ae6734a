//! HTTP servers to attach: MCP, A2A and plain JSON-RPC at one address. They record their requests.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, Response, StatusCode, header};
use axum::routing::{any, get};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::http::SOON;

/// The servers. They end when this is dropped, and so do their connections.
pub(crate) struct Site {
    pub(crate) address: SocketAddr,
    pub(crate) recorder: Arc<Recorder>,
    runtime: Option<Runtime>,
    shutdown: CancellationToken,
}

/// The state of the servers.
#[derive(Default)]
pub(crate) struct Recorder {
    requests: Mutex<Vec<(HeaderMap, Value)>>,
    sessions: Mutex<HashSet<String>>,
    /// Questions that wait for their answers.
    questions: Mutex<HashMap<String, oneshot::Sender<Value>>>,
    /// The stream of each session for messages that belong to no request.
    beside: Mutex<Vec<mpsc::Sender<String>>>,
    pub(crate) task_polls: Mutex<usize>,
    /// Whether the server that changes its version speaks 1.0.
    pub(crate) has_changed: AtomicBool,
    /// Whether the MCP server speaks only the revision without sessions.
    pub(crate) has_no_sessions: AtomicBool,
    /// A further item of each list that has changed.
    pub(crate) changes: Mutex<HashMap<&'static str, String>>,
    /// When the slow task ends.
    slow_until: Mutex<Option<Instant>>,
    /// Whether a poll of the slow task got no answer.
    has_ignored_poll: AtomicBool,
    /// Calls of `hang` whose connections are open, and all of them so far.
    pub(crate) hanging: AtomicUsize,
    pub(crate) hung: AtomicUsize,
    /// How the MCP server treats pings.
    pub(crate) pings: Mutex<Pings>,
    /// The status of the next response of the MCP server to GET or to a method, if it refuses it once.
    pub(crate) refusals: Mutex<HashMap<&'static str, StatusCode>>,
    /// Lets calls of `wait` end.
    pub(crate) released: CancellationToken,
    /// How many bytes each reader of the endless card has read before it disconnected.
    pub(crate) read_of_card: Mutex<Vec<usize>>,
}

type Reply = Response<Body>;

/// How a server treats pings.
#[derive(Default, Clone, Copy)]
pub(crate) enum Pings {
    #[default]
    Answered,
    /// It does not know the method, and says so with 404.
    Unknown,
    /// It never answers them.
    Ignored,
}

// === impl Site ===

impl Site {
    pub(crate) async fn start() -> Self {
        let mut site = Self {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            recorder: Arc::default(),
            runtime: None,
            shutdown: CancellationToken::new(),
        };
        site.begin().await;
        site
    }

    /// Starts again at the same address, with its state except for sessions.
    pub(crate) async fn begin(&mut self) {
        self.end();
        self.recorder.sessions.lock().unwrap().clear();
        let runtime = Runtime::new().unwrap();
        let (address, recorder) = (self.address, Arc::clone(&self.recorder));
        let (sender, receiver) = oneshot::channel();
        self.shutdown = CancellationToken::new();
        let shutdown = self.shutdown.clone().cancelled_owned();
        runtime.spawn(async move {
            let listener = loop {
                // That of the former runtime may not be closed yet.
                match TcpListener::bind(address).await {
                    Ok(listener) => break listener,
                    Err(_) => tokio::task::yield_now().await,
                }
            };
            sender.send(listener.local_addr().unwrap()).unwrap();
            let router = Router::new()
                .route("/mcp", any(mcp))
                .route("/rpc", any(rpc))
                .route("/a2a", any(a2a))
                .route("/.well-known/agent.json", get(card))
                .route("/new", any(only_1_0))
                .route("/new/.well-known/agent-card.json", get(card_1_0))
                .route("/old", any(only_0_3))
                .route("/old/.well-known/agent-card.json", get(card_0_3))
                .route("/changing", any(changing))
                .route("/changing/.well-known/agent-card.json", get(changing_card))
                .route("/endless/.well-known/agent-card.json", get(endless_card))
                .with_state(recorder);
            let serving = axum::serve(listener, router);
            serving.with_graceful_shutdown(shutdown).await.unwrap();
        });
        self.address = timeout(SOON, receiver).await.unwrap().unwrap();
        self.runtime = Some(runtime);
    }

    /// Takes no more requests, and answers those that it has.
    pub(crate) fn shut_down(&self) {
        self.shutdown.cancel();
    }

    /// Ends at once: connections break.
    pub(crate) fn end(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        self.recorder.beside.lock().unwrap().clear();
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.end();
    }
}

// === impl Notes ===

impl Recorder {
    /// The messages of a method that came, with their headers.
    pub(crate) fn of(&self, method: &str) -> Vec<(HeaderMap, Value)> {
        let requests = self.requests.lock().unwrap();
        let of = requests.iter().filter(|(_, body)| body["method"] == method);
        of.cloned().collect()
    }

    /// How often a tool was called.
    pub(crate) fn calls(&self, tool: &str) -> usize {
        let calls = self.of("tools/call").into_iter();
        calls
            .filter(|(_, body)| body["params"]["name"] == tool)
            .count()
    }

    /// Forgets all sessions; requests that name one get 404.
    pub(crate) fn forget_sessions(&self) {
        self.sessions.lock().unwrap().clear();
    }

    /// Sends every session a message outside its requests.
    pub(crate) async fn say_beside(&self, message: &Value) {
        let beside = self.beside.lock().unwrap().clone();
        for session in beside {
            // An ended one gets nothing.
            let _ = session.send(event(message)).await;
        }
    }

    /// The response to GET or to a method, if it is refused this time.
    fn refusal(&self, of: &str) -> Option<Reply> {
        let status = self.refusals.lock().unwrap().remove(of)?;
        Some(reply(status, "text/html", "<html>"))
    }

    fn added(&self, list: &str) -> impl Iterator<Item = String> {
        self.changes.lock().unwrap().get(list).cloned().into_iter()
    }

    fn record(&self, headers: &HeaderMap, body: &[u8]) -> Value {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let record = (headers.clone(), body.clone());
        self.requests.lock().unwrap().push(record);
        body
    }
}

fn event(message: &Value) -> String {
    format!("event: message\ndata: {message}\n\n")
}

fn reply(status: StatusCode, kind: &str, body: impl Into<Body>) -> Reply {
    let mut reply = Response::new(body.into());
    *reply.status_mut() = status;
    let kind = kind.parse().unwrap();
    reply.headers_mut().insert(header::CONTENT_TYPE, kind);
    reply
}

fn json_reply(body: &impl ToString) -> Reply {
    reply(StatusCode::OK, "application/json", body.to_string())
}

/// A stream of the events from the channel.
fn events() -> (mpsc::Sender<String>, Reply) {
    let (sender, receiver) = mpsc::channel::<String>(64);
    let body = stream::unfold(receiver, |mut receiver| async move {
        let event = receiver.recv().await?;
        Some((Ok::<_, Infallible>(Bytes::from(event)), receiver))
    });
    let reply = reply(StatusCode::OK, "text/event-stream", Body::from_stream(body));
    (sender, reply)
}

fn stream_of(messages: &[Value]) -> Reply {
    let events: String = messages.iter().map(event).collect();
    reply(StatusCode::OK, "text/event-stream", events)
}

/// How many messages precede a slow answer, and how long the server takes for each. They are many, so that a call may
/// have a long timeout and still take longer.
pub(crate) const SLOW_STEPS: u32 = 19;
pub(crate) const SLOW_STEP: Duration = Duration::from_secs(1);

/// A stream whose messages come one by one.
fn slowly(messages: Vec<Value>) -> Reply {
    let (sender, reply) = events();
    tokio::spawn(async move {
        for message in messages {
            if sender.send(event(&message)).await.is_err() {
                return;
            }
            sleep(SLOW_STEP).await;
        }
    });
    reply
}

fn answer(id: &Value, result: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "result": result })
}

fn text(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

async fn mcp(
    State(recorder): State<Arc<Recorder>>,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Reply {
    let session = headers.get("mcp-session-id");
    let session = session.and_then(|session| session.to_str().ok());
    let is_known = session.is_some_and(|it| recorder.sessions.lock().unwrap().contains(it));
    if method == Method::GET && is_known {
        if let Some(refusal) = recorder.refusal("GET") {
            return refusal;
        }
        let (sender, reply) = events();
        recorder.beside.lock().unwrap().push(sender);
        return reply;
    }
    let body = recorder.record(&headers, &body);
    if body["method"] == "initialize" {
        return initialize(&recorder, &body);
    }
    if !is_known {
        return reply(StatusCode::NOT_FOUND, "text/plain", "no such session");
    }
    if body["method"].is_null() {
        let waiting = recorder
            .questions
            .lock()
            .unwrap()
            .remove(body["id"].as_str().unwrap_or_default());
        if let Some(waiting) = waiting {
            waiting.send(body).unwrap();
        }
    } else if !body["id"].is_null() {
        return called(&recorder, &body).await;
    }
    reply(StatusCode::ACCEPTED, "text/plain", "")
}

fn initialize(recorder: &Recorder, body: &Value) -> Reply {
    if recorder.has_no_sessions.load(Ordering::SeqCst) {
        let supported = json!({ "supported": ["2026-07-28"] });
        let error = json!({ "code": -32_022, "message": "Unsupported", "data": supported });
        let refusal = json!({ "jsonrpc": "2.0", "id": body["id"], "error": error }).to_string();
        return reply(StatusCode::BAD_REQUEST, "application/json", refusal);
    }
    let mut sessions = recorder.sessions.lock().unwrap();
    let number = recorder.of("initialize").len();
    let session = format!("s-{number}");
    sessions.insert(session.clone());
    let info = json!({ "name": "site", "version": "7" });
    let profile = json!({ "protocolVersion": "2025-06-18", "capabilities": { "tools": {}, "prompts": {}, "resources": {} }, "serverInfo": info, "instructions": "Does what tests need." });
    let mut reply = json_reply(&answer(&body["id"], &profile));
    let session = session.parse().unwrap();
    reply.headers_mut().insert("mcp-session-id", session);
    reply
}

async fn called(recorder: &Arc<Recorder>, body: &Value) -> Reply {
    let (id, params) = (&body["id"], &body["params"]);
    let method = body["method"].as_str().unwrap();
    if let Some(refusal) = recorder.refusal(method) {
        return refusal;
    }
    match method {
        "tools/call" => tool(recorder, id, params).await,
        "tools/list" => {
            let tool = |name: &str, reads: bool| json!({ "name": name, "description": format!("Does {name}."), "inputSchema": { "type": "object" }, "annotations": { "readOnlyHint": reads } });
            let mut tools = vec![
                tool("echo", true),
                tool("effect", false),
                tool("hang", false),
                tool("echo", true),
                tool("bad\n", true),
            ];
            tools.extend(recorder.added("tools").map(|name| tool(&name, true)));
            json_reply(&answer(id, &json!({ "tools": tools })))
        }
        "prompts/list" => {
            let prompts: Vec<Value> = recorder
                .added("prompts")
                .map(|name| json!({ "name": name }))
                .collect();
            json_reply(&answer(id, &json!({ "prompts": prompts })))
        }
        "resources/list" => {
            let resources: Vec<Value> = recorder
                .added("resources")
                .map(|name| json!({ "name": name, "uri": format!("site:{name}") }))
                .collect();
            json_reply(&answer(id, &json!({ "resources": resources })))
        }
        "ping" => {
            let pings = *recorder.pings.lock().unwrap();
            match pings {
                Pings::Answered => json_reply(&answer(id, &json!({}))),
                Pings::Unknown => unknown(id),
                Pings::Ignored => std::future::pending().await,
            }
        }
        _ => json_reply(&answer(id, &json!({}))),
    }
}

/// Some servers answer a method that they do not know with the status 404.
fn unknown(id: &Value) -> Reply {
    let error = json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32_601, "message": "what is that?" } });
    reply(StatusCode::NOT_FOUND, "application/json", error.to_string())
}

async fn tool(recorder: &Arc<Recorder>, id: &Value, params: &Value) -> Reply {
    match params["name"].as_str().unwrap() {
        "echo" => json_reply(&answer(id, &text(&params["arguments"].to_string()))),
        "exact" => json_reply(&format!(
            "{{ \"result\" : {{\"n\":1.0e2,  \"s\":\"\\u00e9\"}}, \"id\":{id}, \"jsonrpc\":\"2.0\" }}"
        )),
        "progress" => {
            let token = &params["_meta"]["progressToken"];
            let step = |step: u32| json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": { "progressToken": token, "progress": step } });
            stream_of(&[step(1), step(2), answer(id, &text("done"))])
        }
        ask @ ("ask" | "ask_beside") => {
            let (sender, receiver) = oneshot::channel();
            recorder
                .questions
                .lock()
                .unwrap()
                .insert("q".to_owned(), sender);
            let (say, reply) = events();
            let (id, recorder, is_beside) = (id.clone(), Arc::clone(recorder), ask == "ask_beside");
            tokio::spawn(async move {
                let question = json!({ "jsonrpc": "2.0", "id": "q", "method": "sampling/createMessage", "params": { "messages": [], "maxTokens": 5 } });
                match is_beside {
                    true => recorder.say_beside(&question).await,
                    false => say.send(event(&question)).await.unwrap(),
                }
                let answer_message: Value = receiver.await.unwrap();
                let refused = answer_message["error"]["message"].as_str();
                let answer_text = answer_message["result"]["content"]["text"]
                    .as_str()
                    .or(refused);
                let result = text(answer_text.unwrap());
                say.send(event(&answer(&id, &result))).await.unwrap();
            });
            reply
        }
        "obey" => {
            let is_over = || {
                let cancels = recorder.of("notifications/cancelled");
                cancels
                    .iter()
                    .any(|(_, it)| it["params"]["requestId"] == *id)
            };
            while !is_over() {
                tokio::task::yield_now().await;
            }
            json_reply(&answer(id, &text("cancelled")))
        }
        "wait" => {
            recorder.released.cancelled().await;
            json_reply(&answer(id, &text("done")))
        }
        "hang" => {
            let _open = Hanging::new(recorder);
            std::future::pending().await
        }
        "unknown" => unknown(id),
        "break" => {
            let broken = stream::iter([Err::<Bytes, _>(std::io::Error::other("broken"))]);
            reply(
                StatusCode::OK,
                "application/json",
                Body::from_stream(broken),
            )
        }
        "garbage" => reply(StatusCode::OK, "text/html", "<html>"),
        "away" => reply(StatusCode::SERVICE_UNAVAILABLE, "text/html", "<html>"),
        "slow" => {
            let token = &params["_meta"]["progressToken"];
            let step = |step: u32| json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": { "progressToken": token, "progress": step } });
            let steps = (0..SLOW_STEPS).map(step);
            slowly(steps.chain([answer(id, &text("done"))]).collect())
        }
        _ => json_reply(&answer(id, &text("done"))),
    }
}

/// A call that is never answered, while its connection is open.
struct Hanging(Arc<Recorder>);

impl Hanging {
    fn new(recorder: &Arc<Recorder>) -> Self {
        recorder.hanging.fetch_add(1, Ordering::SeqCst);
        recorder.hung.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(recorder))
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.hanging.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn rpc(State(recorder): State<Arc<Recorder>>, headers: HeaderMap, body: Bytes) -> Reply {
    let read = recorder.record(&headers, &body);
    let id = &read["id"];
    match read["method"].as_str().unwrap_or_default() {
        // The bytes of the request are in the answer.
        "exact" => json_reply(&format!(
            "{{ \"id\":{id}, \"result\" : {}, \"jsonrpc\":\"2.0\" }}",
            String::from_utf8_lossy(&body)
        )),
        "parts" => {
            let log = json!({ "jsonrpc": "2.0", "method": "log", "params": { "text": "begun" } });
            stream_of(&[log, answer(id, &json!(7))])
        }
        "refuse" => {
            let error = json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32_000, "message": "no" } });
            reply(
                StatusCode::BAD_REQUEST,
                "application/json",
                error.to_string(),
            )
        }
        "secret" if headers["authorization"] != "Bearer new" => {
            reply(StatusCode::UNAUTHORIZED, "text/plain", "who are you?")
        }
        "garbage" => reply(StatusCode::OK, "text/html", "<html>"),
        "away" => reply(StatusCode::SERVICE_UNAVAILABLE, "text/html", "<html>"),
        _ => json_reply(&answer(id, &json!("done"))),
    }
}

/// The card of a server that speaks both versions of A2A.
async fn card() -> Reply {
    card_with(&json!({
        "protocolVersion": "0.3.0", "url": "http://elsewhere.invalid/",
        "provider": { "organization": "Tests", "url": "https://example.com" },
        "documentationUrl": "https://example.com/docs", "iconUrl": "https://example.com/icon.png",
        "capabilities": { "streaming": true, "extensions": [{ "uri": "urn:tests:ui", "params": { "n": 1 } }] },
        "supportedInterfaces": [{ "url": "http://elsewhere.invalid/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0" }],
    }))
}

async fn card_1_0() -> Reply {
    card_with(&json!({
        "supportedInterfaces": [{ "url": "http://elsewhere.invalid/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0" }],
    }))
}

async fn card_0_3() -> Reply {
    card_with(&json!({ "protocolVersion": "0.3.0", "url": "http://elsewhere.invalid/" }))
}

async fn changing_card(State(recorder): State<Arc<Recorder>>) -> Reply {
    match recorder.has_changed.load(Ordering::SeqCst) {
        true => card_1_0().await,
        false => card_0_3().await,
    }
}

/// A server of A2A 0.3 that is replaced by one of 1.0.
async fn changing(recorder: State<Arc<Recorder>>, headers: HeaderMap, body: Bytes) -> Reply {
    match recorder.has_changed.load(Ordering::SeqCst) {
        true => only_1_0(recorder, headers, body).await,
        false => only_0_3(recorder, headers, body).await,
    }
}

fn card_with(members: &Value) -> Reply {
    let mut card = json!({
        "name": "Site", "description": "A site of tests.", "version": "3.1", "capabilities": { "streaming": true },
        "skills": [
            { "id": "add", "name": "Add", "description": "Adds.", "tags": ["sums"] },
            { "id": "add", "description": "Adds again." },
            { "id": "a\u{0}", "description": "Has no name." },
        ],
        "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
    });
    let members = members.as_object().unwrap().clone();
    card.as_object_mut().unwrap().extend(members);
    json_reply(&card)
}

fn unknown_method(id: &Value) -> Reply {
    let error = json!({ "code": -32601, "message": "Method not found" });
    json_reply(&json!({ "jsonrpc": "2.0", "id": id, "error": error }))
}

/// A server of A2A 1.0.
async fn only_1_0(State(recorder): State<Arc<Recorder>>, headers: HeaderMap, body: Bytes) -> Reply {
    let read = recorder.record(&headers, &body);
    let id = &read["id"];
    let status = |state: &str| json!({ "statusUpdate": { "taskId": "t", "contextId": "c", "status": { "state": state } } });
    match read["method"].as_str().unwrap_or_default() {
        "SendMessage" => {
            let message =
                json!({ "messageId": "m", "role": "ROLE_AGENT", "parts": [{ "text": "new" }] });
            json_reply(&answer(id, &json!({ "message": message })))
        }
        "SendStreamingMessage" => stream_of(&[
            answer(
                id,
                &json!({ "task": { "id": "t", "contextId": "c", "status": { "state": "TASK_STATE_SUBMITTED" } } }),
            ),
            answer(id, &status("TASK_STATE_WORKING")),
            answer(id, &status("TASK_STATE_COMPLETED")),
        ]),
        _ => unknown_method(id),
    }
}

/// A server of A2A 0.3.
async fn only_0_3(State(recorder): State<Arc<Recorder>>, headers: HeaderMap, body: Bytes) -> Reply {
    let read = recorder.record(&headers, &body);
    let id = &read["id"];
    match read["method"].as_str().unwrap_or_default() {
        "message/send" => {
            let parts = json!([{ "kind": "text", "text": "old" }]);
            let message =
                json!({ "kind": "message", "messageId": "m", "role": "agent", "parts": parts });
            json_reply(&answer(id, &message))
        }
        _ => unknown_method(id),
    }
}

/// A reader of the endless card: the bytes that it has read.
struct Reading(usize, Arc<Recorder>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.1.read_of_card.lock().unwrap().push(self.0);
    }
}

/// A card without an end.
async fn endless_card(State(recorder): State<Arc<Recorder>>) -> Reply {
    let piece = Bytes::from(vec![b' '; 64 << 10]);
    let reading = Reading(0, recorder);
    let body = stream::unfold(reading, move |mut reading| {
        reading.0 += piece.len();
        std::future::ready(Some((Ok::<_, Infallible>(piece.clone()), reading)))
    });
    reply(StatusCode::OK, "application/json", Body::from_stream(body))
}

async fn a2a(State(recorder): State<Arc<Recorder>>, headers: HeaderMap, body: Bytes) -> Reply {
    let read = recorder.record(&headers, &body);
    let (id, params) = (&read["id"], &read["params"]);
    let task = |state: &str| json!({ "kind": "task", "id": "t-1", "contextId": "c", "status": { "state": state } });
    let status = |state: &str, is_final: bool| json!({ "kind": "status-update", "taskId": "t-1", "contextId": "c", "status": { "state": state }, "final": is_final });
    let is_of_slow_task = recorder.slow_until.lock().unwrap().is_some();
    if read["method"] == "tasks/get"
        && is_of_slow_task
        && !recorder.has_ignored_poll.swap(true, Ordering::SeqCst)
    {
        std::future::pending::<()>().await;
    }
    let is_slow = params["metadata"]["slow"] == true;
    match read["method"].as_str().unwrap_or_default() {
        "message/stream" if is_slow => {
            let steps = (0..SLOW_STEPS).map(|_| answer(id, &status("working", false)));
            let first = std::iter::once(answer(id, &task("submitted")));
            let last = std::iter::once(answer(id, &status("completed", true)));
            slowly(first.chain(steps).chain(last).collect())
        }
        "message/send" if is_slow => {
            *recorder.slow_until.lock().unwrap() = Some(Instant::now() + SLOW_STEP * SLOW_STEPS);
            json_reply(&answer(id, &task("submitted")))
        }
        "tasks/get" if recorder.slow_until.lock().unwrap().is_some() => {
            let is_over = *recorder.slow_until.lock().unwrap() < Some(Instant::now());
            json_reply(&answer(
                id,
                &task(if is_over { "completed" } else { "working" }),
            ))
        }
        "message/stream" => stream_of(&[
            answer(id, &task("submitted")),
            answer(id, &status("working", false)),
            answer(id, &status("completed", true)),
        ]),
        "message/send" if params["configuration"]["blocking"] == false => {
            json_reply(&answer(id, &task("working")))
        }
        "message/send" => json_reply(&answer(id, &task("completed"))),
        "SendMessage" => {
            let message =
                json!({ "messageId": "m", "role": "ROLE_AGENT", "parts": [{ "text": "hello" }] });
            json_reply(&answer(id, &json!({ "message": message })))
        }
        "tasks/get" => {
            let mut task_polls = recorder.task_polls.lock().unwrap();
            *task_polls += 1;
            match *task_polls {
                // A proxy before the server is busy.
                1 => reply(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "text/html",
                    "<p>busy</p>".to_owned(),
                ),
                2 => json_reply(&answer(id, &task("working"))),
                _ => json_reply(&answer(id, &task("completed"))),
            }
        }
        _ => json_reply(&answer(id, &task("canceled"))),
    }
}
