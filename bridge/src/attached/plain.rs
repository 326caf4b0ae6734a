//! An attached HTTP server that receives JSON-RPC requests: an A2A server, or any other.
//!
//! Each request is one POST. Its bytes are unchanged, unless an A2A server speaks only the other version of A2A. Messages
//! that precede the answer in the response are passed on as they arrive.

use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use a2abus_plugin::protocol::dialect::Dialect;
use a2abus_plugin::protocol::jsonrpc::{self, JsonRpc, RpcBody, result};
use a2abus_plugin::{Kind, Text};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Method, StatusCode, Uri};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::ask::{Request, json_rpc};
use super::health::Health;
use super::link::{Log, Part, Parts};
use super::version;
use super::web::{SendError, Web, error_text, is_refusal, messages, no_answer, refused};
use crate::bus::delivery::jittered;
use crate::calls::failure::{Failure, Reason};
use crate::config::AttachProtocol;
use crate::http::messages::Messages;
use crate::lock::lock;
use crate::registry::Registry;
use crate::registry::card::Card;
use crate::rpc_response::RpcResponse;
use crate::tasks::model::TASK_NOT_FOUND;

/// The server.
#[derive(Debug)]
pub(crate) struct Plain {
    pub(super) web: Web,
    pub(super) protocol: AttachProtocol,
    pub(super) registry: Arc<Registry>,
    pub(super) health: Health,
    pub(super) log: Arc<Log>,
    /// The only version of A2A that the server speaks, by its card.
    pub(super) single_version: Mutex<Option<Dialect>>,
    pub(super) card_state: tokio::sync::Mutex<CardState>,
}

/// What is known of the card of the server.
#[derive(Debug, Default)]
pub(super) struct CardState {
    /// When the last attempt to read it started.
    tried: Option<Instant>,
    /// When the last successful one started.
    read: Option<Instant>,
    /// Why the last attempt failed, if it did.
    failure: Option<String>,
}

/// A request as the server gets it.
struct Posted<'a> {
    body: Bytes,
    message: Cow<'a, JsonRpc>,
    request: &'a Request,
    parts: &'a Parts,
    /// The version of the requester, if it is not that of the server.
    translated_from: Option<Dialect>,
}

/// The kind of a message in a response.
enum MessageKind {
    Answer,
    Part(Kind),
    /// An unfinished task, in the answer to a request that does not stream.
    Unfinished,
    /// An unexpected message.
    Strange,
}

/// The pauses before a request that did not reach the server is posted again.
const AGAIN: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_millis(1_500),
];
/// The time limit for notifications and for reading the card, and the longest one of a poll.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// The pauses between polls of an unfinished task.
const POLL_PAUSES: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(3),
];
/// The shortest time limit of a poll.
const MIN_POLL: Duration = Duration::from_secs(1);
/// The longest time before an unchanged state is published again.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How often to read the card and to check whether the server can be reached.
const CHECK_INTERVAL: Duration = Duration::from_secs(300);
const PROBE: Duration = Duration::from_secs(30);
/// The same, while the server cannot be reached or its card is missing.
const MISSING: Duration = Duration::from_secs(10);
/// The largest card.
const MAX_CARD: usize = 1 << 20;
/// The paths of a card, below the URL of the server or at its root.
const CARDS: [&str; 2] = ["/.well-known/agent-card.json", "/.well-known/agent.json"];
/// The errors of a server that speaks another version. Source: JSON-RPC 2.0 section 5.1, A2A 1.0 section 9.5.
const METHOD_NOT_FOUND: i64 = -32_601;
const VERSION_NOT_SUPPORTED: i64 = -32_009;
const VERSION: HeaderName = HeaderName::from_static("a2a-version");

// === impl Plain ===

impl Plain {
    /// The server's answer to a request. Messages that precede it go into `parts`.
    pub(super) async fn request(&self, request: &Request, parts: &Parts) -> Result<Bytes, Failure> {
        let began = Instant::now();
        let first = posted(request, parts, self.single_version());
        let answer = Box::pin(self.asked(&first)).await?;
        let is_a2a = matches!(request.message.dialect, Dialect::A2a03 | Dialect::A2a10);
        if self.protocol != AttachProtocol::A2a || !is_a2a || !is_other_version(&answer) {
            return Ok(answer);
        }
        // The server may have changed its version since its card was read, or the card has not been read yet. It has
        // not executed the request, so the request can be sent again.
        parts.reached.store(false, Ordering::Release);
        Box::pin(self.read_card_since(began)).await;
        let single = self.single_version();
        let second = posted(request, parts, single);
        let answer = match second.body == first.body {
            true => answer,
            false => Box::pin(self.asked(&second)).await?,
        };
        match single {
            Some(only) if has_no_equivalent(request, only) => {
                let (method, only) = (&request.method, version_name(only));
                let message = format!(
                    "the server of this agent speaks only A2A {only} (see its card), which has no equivalent of {method}: use a method of A2A {only}"
                );
                Err(Failure::new(Reason::Unsupported, message))
            }
            _ => Ok(answer),
        }
    }

    async fn asked(&self, posted: &Posted<'_>) -> Result<Bytes, Failure> {
        let Posted { request, parts, .. } = posted;
        let response = self.post(posted).await?;
        let status = response.status();
        let content_type = response.headers().get(CONTENT_TYPE).cloned();
        if is_refusal(status) {
            parts.reached.store(false, Ordering::Release);
        }
        let mut messages = messages(response);
        loop {
            match messages.next().await {
                Ok(Some(message)) => match kind_of(&message, &posted.message) {
                    MessageKind::Answer => return Ok(posted.returned(message)),
                    MessageKind::Unfinished if self.follows(request) => {
                        return self.finished(posted, message).await;
                    }
                    MessageKind::Unfinished => return Ok(posted.returned(message)),
                    MessageKind::Part(kind) => posted.part(kind, message).await,
                    MessageKind::Strange if status.is_success() => {
                        self.strange("a message that does not answer the request")
                    }
                    MessageKind::Strange => {
                        return Err(refused(status, error_text(&message).as_deref()));
                    }
                },
                Ok(None) if status.is_success() => {
                    return Err(no_answer(status, content_type.as_ref()));
                }
                Ok(None) => return Err(refused(status, None)),
                Err(error) => {
                    let why = error.to_string();
                    return Err(SendError {
                        may_be_sent: true,
                        why,
                    }
                    .failure());
                }
            }
        }
    }

    /// Whether to poll the task in the answer until it ends, because the requester waits for that.
    fn follows(&self, request: &Request) -> bool {
        let sends = matches!(request.method.as_str(), "message/send" | "SendMessage");
        self.protocol == AttachProtocol::A2a && sends && request.requester.waits_for_task()
    }

    fn single_version(&self) -> Option<Dialect> {
        *lock(&self.single_version)
    }

    /// Posts a request, with a few retries while the server cannot be reached.
    async fn post(
        &self,
        posted: &Posted<'_>,
    ) -> Result<http::Response<hyper::body::Incoming>, Failure> {
        let Posted { request, parts, .. } = posted;
        let mut headers = request.requester.traced();
        if self.protocol == AttachProtocol::A2a {
            let dialect = posted.message.dialect;
            headers.extend(version_header(dialect));
            headers.extend(extensions_header(dialect, request));
        }
        let mut pauses = AGAIN.into_iter();
        loop {
            parts.reached.store(true, Ordering::Release);
            let response = self.web.post(posted.body.clone(), headers.clone()).await;
            self.note(&response);
            let error = match response {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            parts.reached.store(error.may_be_sent, Ordering::Release);
            match pauses.next().filter(|_| !error.may_be_sent) {
                Some(pause) => sleep(jittered(pause)).await,
                None => return Err(error.failure()),
            }
        }
    }

    /// Polls an unfinished task until it ends. `shown` is the last answer of the server about it.
    async fn finished(&self, posted: &Posted<'_>, shown: Bytes) -> Result<Bytes, Failure> {
        let Some(task) = task_of(&shown) else {
            return Ok(posted.returned(shown));
        };
        let dialect = posted.message.dialect;
        let is_1_0 = dialect == Dialect::A2a10;
        let method = if is_1_0 { "GetTask" } else { "tasks/get" };
        let ask = json!({ "jsonrpc": "2.0", "id": 0, "method": method, "params": { "id": task } });
        let ask = Bytes::from(ask.to_string());
        let keep_alive = keep_alive(posted.request);
        posted.part(Kind::Response, shown.clone()).await;
        let (mut shown, mut shown_at) = (shown, Instant::now());
        let mut pauses = POLL_PAUSES.into_iter();
        let mut pause = Duration::ZERO;
        // A poll that hangs must not delay the states of the task for too long.
        let shortest = keep_alive.max(MIN_POLL);
        let mut limit = shortest;
        loop {
            pause = pauses.next().unwrap_or(pause).min(keep_alive);
            sleep(jittered(pause)).await;
            let headers = version_header(dialect).into_iter().collect();
            let poll = async {
                let response = self.web.post(ask.clone(), headers).await.ok()?;
                messages(response).next().await.ok()?
            };
            let begun = Instant::now();
            let polled = timeout(limit, poll).await;
            // If the server is slow, the next poll gets more time.
            limit = (2 * begun.elapsed()).clamp(shortest, REQUEST_TIMEOUT);
            let Ok(Some(answer)) = polled else {
                continue;
            };
            let Some(now) = as_answer(&answer, &posted.request.id, is_1_0) else {
                if RpcResponse::of(&answer).code() == Some(TASK_NOT_FOUND) {
                    let why = "the server of this agent no longer knows the task";
                    return Err(Failure::new(Reason::AnswerLost, why));
                }
                // The server or a proxy is overloaded: poll again until the deadline.
                continue;
            };
            match kind_of(&now, &posted.message) {
                MessageKind::Unfinished if posted.parts.takes_all => {
                    if now != shown || shown_at.elapsed() >= keep_alive {
                        posted.part(Kind::Response, now.clone()).await;
                        (shown, shown_at) = (now, Instant::now());
                    }
                }
                MessageKind::Unfinished | MessageKind::Part(_) => {}
                MessageKind::Answer | MessageKind::Strange => return Ok(posted.returned(now)),
            }
        }
    }

    /// Posts a notification, or a request whose sender does not wait for the answer.
    pub(super) async fn notify(&self, method: &str, body: Bytes) {
        let version = self.single_version();
        let translated = version.and_then(|version| version::request(&body, method, version));
        let body = translated.unwrap_or(body);
        let header = json_rpc(&body).and_then(|message| version_header(message.dialect));
        let headers = header.into_iter().collect();
        let posted = timeout(REQUEST_TIMEOUT, self.web.post(body, headers)).await;
        match posted.map(|posted| posted.map(|response| response.status())) {
            Ok(Ok(status)) if status.is_success() => {}
            Ok(Ok(status)) => self.strange(&format!("HTTP {status} to a notification")),
            Ok(Err(error)) => self.unheard(&error.why),
            Err(_) => self.unheard("no response in time"),
        }
    }

    fn unheard(&self, why: &str) {
        if let Some(suppressed) = self.log.strange.allow() {
            let agent = &self.log.agent;
            tracing::warn!(%agent, suppressed, "an attached server did not get a notification: {why}");
        }
    }

    fn strange(&self, what: &str) {
        if let Some(suppressed) = self.log.strange.allow() {
            let agent = &self.log.agent;
            tracing::warn!(%agent, suppressed, "an attached server has answered {what}");
        }
    }

    /// Records whether the server can be reached, which only depends on the connection.
    fn note<T>(&self, response: &Result<T, SendError>) {
        let agent = &self.log.agent;
        match response {
            Err(error) if !error.may_be_sent => {
                if self.health.away(&error.why)
                    && let Some(suppressed) = self.log.ends.allow()
                {
                    tracing::error!(%agent, why = error.why, suppressed, "the server of an attached agent cannot be reached: its calls fail until it can");
                }
            }
            Ok(_) | Err(_) => {
                if self.health.up() {
                    tracing::info!(%agent, "the server of an attached agent is up");
                }
            }
        }
    }

    /// Reads the card of an A2A server, or checks whether any other server can be reached, until `stop`.
    pub(super) async fn run(&self, stop: CancellationToken) {
        let has_card = self.protocol == AttachProtocol::A2a;
        loop {
            let looking = async {
                self.probe().await;
                let is_read = !has_card || self.card().await;
                let is_well = self.health.is_up() && is_read;
                sleep(jittered(if is_well { PROBE } else { MISSING })).await;
            };
            if stop.run_until_cancelled(looking).await.is_none() {
                return;
            }
        }
    }

    /// Reads the card if that is due. Returns whether a card is known.
    async fn card(&self) -> bool {
        let mut state = self.card_state.lock().await;
        if state
            .read
            .is_none_or(|read| read.elapsed() >= CHECK_INTERVAL)
        {
            self.read_card(&mut state).await;
        }
        state.read.is_some()
    }

    /// Reads the card, unless somebody has tried to since then.
    async fn read_card_since(&self, since: Instant) {
        let mut state = self.card_state.lock().await;
        if state.tried.is_none_or(|tried| tried < since) {
            self.read_card(&mut state).await;
        }
    }

    /// Reads the card. If that fails, logs why.
    async fn read_card(&self, state: &mut CardState) {
        let started = Some(Instant::now());
        state.tried = started;
        let looked = timeout(REQUEST_TIMEOUT, self.look()).await;
        let looked = looked.unwrap_or_else(|_| Err("no response in time".to_owned()));
        // It is tried every few seconds, so only a new cause is logged.
        if let Err(why) = &looked
            && state.failure.as_ref() != Some(why)
            && let Some(suppressed) = self.log.ends.allow()
        {
            tracing::warn!(agent = %self.log.agent, why, suppressed, "the card of an attached A2A server cannot be read: trying again");
        }
        if looked.is_ok() {
            state.read = started;
        }
        state.failure = looked.err();
    }

    /// Checks whether the server can be reached.
    async fn probe(&self) {
        let reached = timeout(REQUEST_TIMEOUT, self.web.reach()).await;
        self.note(&reached.unwrap_or_else(|_| {
            Err(SendError {
                may_be_sent: false,
                why: "no connection in time".to_owned(),
            })
        }));
    }

    /// Reads the card and makes it the agent's card. Returns why that failed.
    async fn look(&self) -> Result<(), String> {
        let mut why = "there is no card".to_owned();
        for url in self.places() {
            let headers = version_header(Dialect::A2a10).into_iter().collect();
            let response = self.web.ask(Method::GET, url, headers).await;
            self.note(&response);
            let response = response.map_err(|error| error.why)?;
            if response.status() != StatusCode::OK {
                why = format!("HTTP {}", response.status());
                continue;
            }
            let document = Messages::of(response, MAX_CARD).next().await;
            let document = document.map_err(|error| error.to_string())?;
            let document = document.unwrap_or_default();
            match Card::read_usable(&document, MAX_CARD) {
                Ok((card, left_out)) => {
                    self.speaks(version::single_version(&document));
                    self.log.leaves_out(&left_out);
                    self.registry.describe(&self.log.agent, card.shown);
                    return Ok(());
                }
                Err(faults) => why = faults.to_string(),
            }
        }
        Err(why)
    }

    /// Records the only version of A2A that the server speaks.
    fn speaks(&self, version: Option<Dialect>) {
        let mut single = lock(&self.single_version);
        if *single != version {
            *single = version;
            let agent = &self.log.agent;
            match version.map(version_name) {
                Some(version) => {
                    tracing::info!(%agent, version, "an attached A2A server speaks only this version: requests in the other version are translated");
                }
                None => {
                    tracing::info!(%agent, "requests to an attached A2A server are no longer translated: its card names both versions, or none");
                }
            }
        }
    }

    /// The possible URLs of its card.
    fn places(&self) -> Vec<Uri> {
        let url = self.web.url();
        let below = url.path().trim_end_matches('/');
        let mut bases = vec![below, ""];
        bases.dedup();
        let at = |base: &str, name: &str| {
            let mut parts = url.clone().into_parts();
            parts.path_and_query = format!("{base}{name}").parse().ok();
            Uri::from_parts(parts).ok()
        };
        let places = bases
            .iter()
            .flat_map(|base| CARDS.map(|name| at(base, name)));
        places.flatten().collect()
    }
}

// === impl Posted ===

impl Posted<'_> {
    /// A message of the server in the version of the requester.
    fn returned(&self, message: Bytes) -> Bytes {
        match self.translated_from {
            Some(version) => version::response(&message, &self.request.method, version),
            None => message,
        }
    }

    /// Passes on a message that precedes the answer.
    async fn part(&self, kind: Kind, message: Bytes) {
        // Without a receiver its deadline has just passed.
        let part = Part {
            kind,
            body: self.returned(message),
            is_question: false,
        };
        drop(self.parts.sender.send(part).await);
    }
}

/// How long until an unchanged state is published again, so that the calling bridge keeps waiting.
fn keep_alive(request: &Request) -> Duration {
    let third = request.left.map_or(KEEP_ALIVE, |left| left / 3);
    third.clamp(POLL_PAUSES[0], KEEP_ALIVE)
}

/// The request in a version that the server speaks; `single` is that version if the server speaks only one.
fn posted<'a>(request: &'a Request, parts: &'a Parts, single: Option<Dialect>) -> Posted<'a> {
    let mut posted = Posted {
        body: request.body.clone(),
        message: Cow::Borrowed(&request.message),
        request,
        parts,
        translated_from: None,
    };
    let translated = single.and_then(|version| {
        let body = version::request(&request.body, &request.method, version)?;
        let message = json_rpc(&body)?;
        Some((body, message))
    });
    if let Some((body, message)) = translated {
        posted.translated_from = Some(match message.dialect {
            Dialect::A2a10 => Dialect::A2a03,
            _ => Dialect::A2a10,
        });
        (posted.body, posted.message) = (body, Cow::Owned(message));
    }
    posted
}

/// Whether this version of A2A has no method for a request of the other one.
fn has_no_equivalent(request: &Request, version: Dialect) -> bool {
    let from = request.message.dialect;
    matches!(from, Dialect::A2a03 | Dialect::A2a10)
        && from != version
        && version::method_in(&request.method, version).is_none()
}

fn version_name(version: Dialect) -> &'static str {
    match version {
        Dialect::A2a10 => "1.0",
        _ => "0.3",
    }
}

/// Whether an answer is the error of a server that does not know the method, or does not speak the version.
fn is_other_version(answer: &Bytes) -> bool {
    matches!(
        RpcResponse::of(answer).code(),
        Some(METHOD_NOT_FOUND | VERSION_NOT_SUPPORTED)
    )
}

/// The header with the extensions that the requester uses. Source: A2A 0.3 section 3.2.6, A2A 1.0 section 3.2.6.
fn extensions_header(dialect: Dialect, request: &Request) -> Option<(HeaderName, HeaderValue)> {
    let name = match dialect {
        Dialect::A2a10 => "a2a-extensions",
        _ => "x-a2a-extensions",
    };
    let value = HeaderValue::from_bytes(request.requester.extensions()?).ok()?;
    Some((HeaderName::from_static(name), value))
}

/// The header that A2A 1.0 requires.
fn version_header(dialect: Dialect) -> Option<(HeaderName, HeaderValue)> {
    (dialect == Dialect::A2a10).then_some((VERSION, HeaderValue::from_static("1.0")))
}

/// The kind of a message in the response to this request.
fn kind_of(message: &Bytes, request: &JsonRpc) -> MessageKind {
    let Some(decoded) = json_rpc(message) else {
        return MessageKind::Strange;
    };
    let id = |of: &JsonRpc| of.id.as_ref().map(|id| id.token().clone());
    let is_of_request = id(&decoded) == id(request);
    let streams = matches!(request.body, RpcBody::Call { streaming: true });
    match decoded.body {
        RpcBody::Call { .. } if decoded.id.is_none() => MessageKind::Part(Kind::Notification),
        // A plain server cannot get an answer to its request.
        RpcBody::Call { .. } => MessageKind::Strange,
        // A server that could not read the request does not know its id.
        RpcBody::Error(_)
            if is_of_request || decoded.id.as_ref().is_none_or(jsonrpc::Id::is_null) =>
        {
            MessageKind::Answer
        }
        _ if !is_of_request => MessageKind::Strange,
        RpcBody::Result(jsonrpc::Part::Partial) => MessageKind::Part(Kind::Stream),
        RpcBody::Result(jsonrpc::Part::Snapshot) if streams => MessageKind::Part(Kind::Stream),
        RpcBody::Result(jsonrpc::Part::Snapshot) => MessageKind::Unfinished,
        RpcBody::Result(jsonrpc::Part::Final) | RpcBody::Error(_) => MessageKind::Answer,
    }
}

/// The id of the task in an answer.
fn task_of(answer: &Bytes) -> Option<String> {
    #[derive(Deserialize)]
    struct Answer {
        result: Shown,
    }
    #[derive(Deserialize)]
    struct Shown {
        #[serde(default)]
        task: Option<Task>,
        #[serde(default)]
        id: Option<String>,
    }
    #[derive(Deserialize)]
    struct Task {
        id: String,
    }
    let Answer { result: shown } = serde_json::from_slice(answer).ok()?;
    shown.task.map(|task| task.id).or(shown.id)
}

/// Turns the result of `tasks/get` into the answer to the request with this id; `None` if the result is an error.
fn as_answer(answer: &Bytes, id: &Text, is_1_0: bool) -> Option<Bytes> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        result: &'a RawValue,
    }
    let Answer { result: task } = serde_json::from_slice(answer).ok()?;
    let task = task.get();
    Some(match is_1_0 {
        true => result(id, &format!(r#"{{"task":{task}}}"#)),
        false => result(id, task),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str) -> JsonRpc {
        let body = format!(r#"{{"jsonrpc":"2.0","id":"a","method":"{method}","params":{{}}}}"#);
        json_rpc(&Bytes::from(body)).unwrap()
    }

    fn action(message: &str, method: &str) -> &'static str {
        match kind_of(&Bytes::from(message.to_owned()), &request(method)) {
            MessageKind::Answer => "answer",
            MessageKind::Part(Kind::Stream) => "part",
            MessageKind::Part(_) => "notification",
            MessageKind::Unfinished => "unfinished",
            MessageKind::Strange => "strange",
        }
    }

    #[test]
    fn a_message_of_a_response_is_a_part_or_the_answer() {
        let task = |state| {
            format!(
                r#"{{"jsonrpc":"2.0","id":"a","result":{{"kind":"task","id":"t","contextId":"c","status":{{"state":"{state}"}}}}}}"#
            )
        };
        let (working, completed) = (task("working"), task("completed"));
        let status = r#"{"jsonrpc":"2.0","id":"a","result":{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}}"#;
        let other = r#"{"jsonrpc":"2.0","id":"b","result":{}}"#;
        for (message, method, expected) in [
            (working.as_str(), "message/stream", "part"),
            (working.as_str(), "message/send", "unfinished"),
            (completed.as_str(), "message/stream", "answer"),
            (status, "SendStreamingMessage", "part"),
            (r#"{"jsonrpc":"2.0","id":"a","result":7}"#, "add", "answer"),
            (
                r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"m"}}"#,
                "add",
                "answer",
            ),
            (
                r#"{"jsonrpc":"2.0","method":"log","params":{}}"#,
                "add",
                "notification",
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"ask","params":{}}"#,
                "add",
                "strange",
            ),
            (other, "add", "strange"),
            ("<html>", "add", "strange"),
        ] {
            assert_eq!(action(message, method), expected, "{message} to {method}");
        }
    }

    #[test]
    fn the_task_of_an_answer_is_looked_at_again() {
        let sent = Bytes::from_static(br#"{"id":1,"result":{"task":{"id":"t"}}}"#);
        assert_eq!(task_of(&sent).as_deref(), Some("t"));
        let old = Bytes::from_static(br#"{"id":1,"result":{"kind":"task","id":"u"}}"#);
        assert_eq!(task_of(&old).as_deref(), Some("u"));
        let got = Bytes::from_static(br#"{"id":0,"result":{ "id":"t"}}"#);
        let answer = as_answer(&got, &"\"a\"".into(), true).unwrap();
        assert_eq!(
            answer,
            r#"{"jsonrpc":"2.0","id":"a","result":{"task":{ "id":"t"}}}"#
        );
        let gone = Bytes::from_static(br#"{"id":0,"error":{"code":-32001}}"#);
        assert_eq!(as_answer(&gone, &"1".into(), true), None);
    }
}
