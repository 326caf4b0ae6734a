//! The session with an attached MCP server over streamable HTTP.
//!
//! ```text
//! POST initialize ─> POST notifications/initialized ─> up ─┬─ each message of the link: a POST and its response
//!                                                          └─ GET: messages of the server that belong to no request
//! ```
//!
//! Source: docs/protocols/mcp.md §11.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, pending};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Response, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, Timeout, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::lifecycle::{INITIALIZED, Lifecycle, QUEUE, RunEnd, profile};
use super::link::{Line, Link, Log, StartedCall};
use super::web::{SendError, Web, error_text, is_json, is_refusal, messages, no_answer, refused};
use crate::bus::delivery::jittered;
use crate::http::messages::Messages;

/// The sessions with one server, one at a time.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) web: Web,
    /// Maximum number of concurrent calls.
    pub(super) concurrency: usize,
    pub(super) log: Arc<Log>,
}

/// An open session.
struct Running<'s> {
    session: &'s Session,
    /// The headers of its requests: its id, and the revision of MCP.
    headers: HeaderMap,
    link: Arc<Link>,
    pings: AtomicU64,
}

/// The messages of a session that wait, are being posted, or are cancelled.
struct Posts<'s> {
    queue: mpsc::Receiver<Line>,
    posted: FuturesUnordered<BoxFuture<'s, Posted<'s>>>,
    cancelled: FuturesUnordered<Timeout<BoxFuture<'s, Result<(), SessionEnd>>>>,
}

/// The outcome of posting a message.
enum Posted<'s> {
    /// It is done. An error ends the session.
    Over(Result<(), SessionEnd>),
    /// Nobody waits for the answer any more; the future reads the rest of the response.
    Cancelled(BoxFuture<'s, Result<(), SessionEnd>>),
}

/// Why a session has ended. The calls that the server works on go on: it may be shutting down, or slow.
struct SessionEnd(String);

/// The calls of an ended session that its server still works on.
pub(super) type Remaining<'s> = BoxFuture<'s, ()>;

const ID: HeaderName = HeaderName::from_static("mcp-session-id");
const REVISION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The time limits for opening a session, for messages without an answer, for a ping, and for ending a session.
const BEGIN: Duration = Duration::from_secs(20);
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a response may continue after the answer.
const REST: Duration = Duration::from_secs(1);
/// The pauses before the GET stream is opened again.
const PAUSES: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(4),
    Duration::from_secs(15),
];
/// After a GET stream of this length, the bridge may miss changes until the next one is open.
const LONG_STREAM: Duration = Duration::from_secs(10);
/// The shortest time between two reads of the lists because changes may have been missed. Some proxies end every stream
/// that is idle for a minute.
const MISSED_PAUSE: Duration = Duration::from_secs(300);
/// How long to wait for the answer to a cancelled call, which shows that the server is done with it.
const PARTING: Duration = Duration::from_secs(2);
/// Maximum number of cancelled calls whose answers are awaited.
const MAX_CANCELLED: usize = 256;
/// Why a session ends that the server no longer knows.
const LOST: &str = "it no longer knows the session";

// === impl Session ===

impl Session {
    /// Runs one session from start to end. Also returns the calls that its server still works on.
    pub(super) async fn once(
        &self,
        lifecycle: &Lifecycle,
        stop: &CancellationToken,
    ) -> (RunEnd, Option<Remaining<'_>>) {
        let beginning = timeout(BEGIN, self.begin());
        let (headers, profile) = match stop.run_until_cancelled(beginning).await {
            None => return (lifecycle.down(None), None),
            Some(Ok(Ok(begun))) => begun,
            Some(Ok(Err(why))) => return (lifecycle.down(Some(why)), None),
            Some(Err(_)) => {
                let why = format!("it did not answer initialize within {BEGIN:?}");
                return (lifecycle.down(Some(why)), None);
            }
        };
        // With room for a cancel of every call.
        let (input, queue) = mpsc::channel(self.concurrency + QUEUE);
        let link = Arc::new(Link::new(
            input,
            lifecycle.is_single,
            Arc::clone(&lifecycle.watched),
            Arc::clone(&self.log),
        ));
        let running = Arc::new(Running {
            session: self,
            headers,
            link: Arc::clone(&link),
            pings: AtomicU64::default(),
        });
        let mut posts = Posts {
            queue,
            posted: FuturesUnordered::new(),
            cancelled: FuturesUnordered::new(),
        };
        let end = tokio::select! {
            () = stop.cancelled() => None,
            end = running.carry(&mut posts) => Some(end),
            end = running.listen() => Some(end),
            end = lifecycle.serve(&link, profile) => Some(end),
        };
        let Some(SessionEnd(why)) = end else {
            let ended = lifecycle.down(None);
            running.end().await;
            return (ended, None);
        };
        let ended = lifecycle.down(Some(why));
        link.close_to_new_calls();
        (ended, Some(running.finish(posts).boxed()))
    }

    /// Opens a session. Returns the headers of its requests, and the server's answer to `initialize`.
    async fn begin(&self) -> Result<(HeaderMap, Box<RawValue>), String> {
        #[derive(Deserialize)]
        struct Profile {
            #[serde(rename = "protocolVersion", default)]
            revision: Option<String>,
        }
        // Each question arrives on the response of its call, so the bridge knows the call.
        let params = Lifecycle::introduction(true);
        let body = format!(r#"{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{params}}}"#);
        let response = self.web.post(body.into(), HeaderMap::new()).await;
        let response = response.map_err(|error| error.why)?;
        let status = response.status();
        let mut headers = HeaderMap::new();
        headers.extend(response.headers().get(&ID).map(|id| (ID, id.clone())));
        let answer = answer_to(&mut messages(response), "0").await;
        let answer = answer.ok_or_else(|| unanswered(status))?;
        let profile = profile(&answer)?;
        let read: Result<Profile, _> = serde_json::from_str(profile.get());
        let revision = read.ok().and_then(|it| it.revision);
        let revision = revision.and_then(|it| HeaderValue::from_str(&it).ok());
        headers.extend(revision.map(|revision| (REVISION, revision)));
        let initialized = Bytes::from_static(INITIALIZED.as_bytes());
        let response = self.web.post(initialized, headers.clone()).await;
        match response.map_err(|error| error.why)?.status() {
            status if status.is_success() => Ok((headers, profile)),
            status => Err(format!(
                "it answered notifications/initialized with HTTP {status}"
            )),
        }
    }
}

/// Why a session is not opened: the server refused `initialize` with this status. A server that has only the transport
/// of 2024-11-05, which the bridge does not use, answers 404 or 405. Source: MCP 2025-11-25, "Transports", "Backwards
/// compatibility".
fn unanswered(status: StatusCode) -> String {
    let cure = match status {
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
            ": `url` must lead to streamable HTTP; a server that has only HTTP+SSE (2024-11-05) cannot be attached"
        }
        _ => "",
    };
    format!("it answered initialize with HTTP {status}{cure}")
}

/// Calls `reread` when changes may have been missed, but at most once per [`MISSED_PAUSE`].
async fn reread_after(missed: &Notify, reread: impl Fn()) -> Infallible {
    loop {
        // A notification that arrives during the pause is kept until its end.
        missed.notified().await;
        reread();
        sleep(MISSED_PAUSE).await;
    }
}

/// The answer to the request with this id, as JSON, among the messages of a response, if any.
async fn answer_to(messages: &mut Messages<Incoming>, own: &str) -> Option<Bytes> {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(default, borrow)]
        method: Option<&'a RawValue>,
        #[serde(default, borrow)]
        id: Option<&'a RawValue>,
    }
    while let Ok(Some(message)) = messages.next().await {
        let read: Result<Message<'_>, _> = serde_json::from_slice(&message);
        let is_it =
            read.is_ok_and(|it| it.method.is_none() && it.id.is_some_and(|id| id.get() == own));
        if is_it {
            return Some(message);
        }
    }
    None
}

// === impl Running ===

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.link.close();
    }
}

impl<'s> Running<'s> {
    /// Posts the messages of the link until that fails, and returns why.
    async fn carry(self: &Arc<Self>, posts: &mut Posts<'s>) -> SessionEnd {
        loop {
            if let Err(end) = self.step(posts).await {
                return end;
            }
        }
    }

    /// Waits for the calls that the server works on, and posts their cancels.
    async fn finish(self: Arc<Self>, mut posts: Posts<'s>) {
        while !(posts.posted.is_empty() && posts.cancelled.is_empty() && posts.queue.is_empty()) {
            match self.step(&mut posts).await {
                Ok(()) => {}
                // A call that the server did not get is made in the next session.
                Err(_) => self.link.close_to_new_calls(),
            }
        }
    }

    /// Posts a message, or notes the end of one. An error ends the session.
    async fn step(self: &Arc<Self>, posts: &mut Posts<'s>) -> Result<(), SessionEnd> {
        let Posts {
            queue,
            posted,
            cancelled,
        } = posts;
        tokio::select! {
            Some(over) = posted.next() => match over {
                Posted::Over(result) => return result,
                // Other calls need not wait for this one. If there are too many, drop it, which closes its connection.
                Posted::Cancelled(call) if cancelled.len() < MAX_CANCELLED => {
                    cancelled.push(timeout(PARTING, call));
                }
                Posted::Cancelled(_) => {}
            },
            Some(ended) = cancelled.next() => return ended.unwrap_or(Ok(())),
            Some(line) = queue.recv(), if posted.len() < self.session.concurrency + QUEUE => {
                posted.push(Arc::clone(self).deliver(line).boxed());
            }
        }
        Ok(())
    }

    /// Posts one message and reads the response until its caller no longer waits. An error ends the session.
    async fn deliver(self: Arc<Self>, line: Line) -> Posted<'s> {
        match self.link.written(line) {
            None => Posted::Over(Ok(())),
            Some((bytes, Some(call))) => {
                let over = call.over.clone();
                let mut called = Arc::clone(&self).call(bytes, call).boxed();
                tokio::select! {
                    called = &mut called => Posted::Over(called),
                    () = over.cancelled() => Posted::Cancelled(called),
                }
            }
            Some((bytes, None)) => {
                match timeout(MESSAGE_TIMEOUT, self.post_unanswered(bytes)).await {
                    Ok(posted) => Posted::Over(posted),
                    Err(_) => {
                        let why = "did not accept a message in time";
                        self.link.strange(&format!("an attached server {why}"));
                        Posted::Over(self.still_there(&format!("it {why}")).await)
                    }
                }
            }
        }
    }

    /// Posts a request and reads its answer.
    async fn call(self: Arc<Self>, bytes: Bytes, call: StartedCall) -> Result<(), SessionEnd> {
        let response = match self.post(bytes, call.headers.clone()).await {
            Ok(response) => response,
            Err(error) => return self.unanswered(&call, &error).await,
        };
        let status = response.status();
        let content_type = response.headers().get(CONTENT_TYPE).cloned();
        // Some servers use 400 for an unknown session, and some use 404 for an unknown method. If the server does not know
        // `ping` either, the second session shows which it is.
        let may_be_lost = matches!(status, StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST);
        if may_be_lost && self.has_id() && self.link.may_move(call.number) {
            let why = format!("it answered with HTTP {status}");
            if let Err(end) = self.still_there(&why).await {
                self.link.move_on(call.number);
                return Err(end);
            }
        }
        if is_refusal(status) {
            self.link.unwritten(call.number);
        }
        let mut messages = messages(response);
        let of = Some(call.number);
        let mut text = None;
        loop {
            self.link.until_room(of).await;
            match messages.next().await {
                // The page of a proxy. The failure names the status.
                Ok(Some(message)) if !status.is_success() && !is_json(&message) => {}
                Ok(Some(message)) if self.link.receive(&message, of) == of => {
                    // Read to the end, so that the connection can be reused.
                    let rest = async {
                        while let Ok(Some(message)) = messages.next().await {
                            let _answered = self.link.receive(&message, of);
                        }
                    };
                    let _ = timeout(REST, rest).await;
                    return Ok(());
                }
                Ok(Some(message)) => text = error_text(&message),
                Ok(None) => {
                    let failure = match status.is_success() {
                        true => no_answer(status, content_type.as_ref()),
                        false => refused(status, text.as_deref()),
                    };
                    self.link.fail(call.number, failure);
                    return Ok(());
                }
                Err(error) => {
                    let (may_be_sent, why) = (true, error.to_string());
                    let error = SendError { may_be_sent, why };
                    return self.unanswered(&call, &error).await;
                }
            }
        }
    }

    /// Fails a call without an answer. If the server is gone, the session ends.
    async fn unanswered(&self, call: &StartedCall, error: &SendError) -> Result<(), SessionEnd> {
        if !error.may_be_sent {
            // The next session sends it.
            self.link.unwritten(call.number);
            return Err(SessionEnd(error.why.clone()));
        }
        self.link.fail(call.number, error.failure());
        self.still_there(&error.why).await
    }

    /// Pings the server after a failure (`why`). Ends the session unless it answers.
    async fn still_there(&self, why: &str) -> Result<(), SessionEnd> {
        let pinged = timeout(PING_TIMEOUT, self.ping()).await;
        pinged
            .unwrap_or(Err("it does not answer a ping"))
            .map_err(|ping| SessionEnd(format!("{why}, and {ping}")))
    }

    /// Posts a message that has no answer.
    async fn post_unanswered(&self, bytes: Bytes) -> Result<(), SessionEnd> {
        let response = self.post(bytes, HeaderMap::new()).await;
        match response.map(|response| response.status()) {
            Ok(status) if status.is_success() => Ok(()),
            Ok(StatusCode::NOT_FOUND) if self.has_id() => {
                self.still_there("it answered a notification with HTTP 404")
                    .await
            }
            Ok(status) => {
                let what = format!(
                    "an attached server answered a notification or a response with HTTP {status}"
                );
                self.link.strange(&what);
                Ok(())
            }
            Err(error) if error.may_be_sent => {
                self.link.strange(&format!(
                    "an attached server did not accept a message: {}",
                    error.why
                ));
                Ok(())
            }
            Err(error) => Err(SessionEnd(error.why)),
        }
    }

    /// Reads the GET stream, and the lists after changes that may have been missed. Returns why the session has ended.
    async fn listen(&self) -> SessionEnd {
        let missed = Notify::new();
        tokio::select! {
            end = self.read_stream(&missed) => end,
            never = reread_after(&missed, || self.link.reread_lists()) => match never {},
        }
    }

    /// Reads the GET stream, for messages that belong to no request. Each time it opens after changes may have been
    /// missed, `missed` is notified. Returns why the session has ended.
    async fn read_stream(&self, missed: &Notify) -> SessionEnd {
        let mut failed = 0;
        let (mut is_refused, mut has_missed) = (false, false);
        loop {
            match self.ask(Method::GET).await {
                Ok(response) => match response.status() {
                    status if self.has_no_stream(status) => return pending().await,
                    status if status.is_success() => {
                        let mut messages = messages(response);
                        if !messages.is_stream() {
                            return pending().await;
                        }
                        is_refused = false;
                        if has_missed {
                            missed.notify_one();
                        }
                        let opened = Instant::now();
                        has_missed = loop {
                            match messages.next().await {
                                Ok(Some(message)) => {
                                    failed = 0;
                                    self.link.until_room(None).await;
                                    let _answered = self.link.receive(&message, None);
                                }
                                // Some servers end every stream at once, because they send nothing on it.
                                Ok(None) => break opened.elapsed() > LONG_STREAM,
                                Err(_) => break true,
                            }
                        };
                        if opened.elapsed() > LONG_STREAM {
                            failed = 0;
                        }
                    }
                    status => {
                        if status == StatusCode::NOT_FOUND {
                            let why = "it answered GET with HTTP 404";
                            if let Err(end) = self.still_there(why).await {
                                return end;
                            }
                        }
                        if !is_refused {
                            self.link.strange(&format!("an attached server answered GET with HTTP {status}: it is asked again until it opens the stream"));
                        }
                        (is_refused, has_missed) = (true, true);
                    }
                },
                Err(error) if !error.may_be_sent => return SessionEnd(error.why),
                Err(_) => has_missed = true,
            }
            sleep(jittered(PAUSES[failed.min(PAUSES.len() - 1)])).await;
            failed += 1;
        }
    }

    /// Whether this answer to GET says that the server offers no stream. Other errors, such as 401 and 429, may pass.
    fn has_no_stream(&self, status: StatusCode) -> bool {
        match status {
            StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => true,
            StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST => !self.has_id(),
            _ => false,
        }
    }

    /// Whether the server answers a ping in this session; if not, why.
    async fn ping(&self) -> Result<(), &'static str> {
        // An id must not be used twice in a session, and some servers drop one of two concurrent pings with the same id.
        let number = self.pings.fetch_add(1, Ordering::Relaxed);
        let id = format!(r#""ping-{number}""#);
        let ping = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
        let response = self.post(ping.into(), HeaderMap::new()).await;
        let response = response.map_err(|_| "it cannot be reached for a ping")?;
        if response.status() == StatusCode::NOT_FOUND && self.has_id() {
            return Err(LOST);
        }
        let answer = answer_to(&mut messages(response), &id).await;
        answer.map(drop).ok_or("it does not answer a ping")
    }

    /// Ends the session with DELETE.
    async fn end(&self) {
        if self.has_id() {
            // Errors do not matter: the server drops an unused session anyway.
            drop(timeout(END_TIMEOUT, self.ask(Method::DELETE)).await);
        }
    }

    fn has_id(&self) -> bool {
        self.headers.contains_key(ID)
    }

    async fn post(
        &self,
        body: Bytes,
        mut headers: HeaderMap,
    ) -> Result<Response<Incoming>, SendError> {
        headers.extend(self.headers.clone());
        self.session.web.post(body, headers).await
    }

    async fn ask(&self, method: Method) -> Result<Response<Incoming>, SendError> {
        let mut headers = self.headers.clone();
        let accept = HeaderValue::from_static("text/event-stream");
        headers.insert(http::header::ACCEPT, accept);
        let web = &self.session.web;
        web.ask(method, web.url().clone(), headers).await
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::pin;

    use super::*;

    #[test]
    fn a_server_without_streamable_http_is_named_as_a_cause() {
        for (status, is_named) in [(404, true), (405, true), (400, false), (500, false)] {
            let why = unanswered(StatusCode::from_u16(status).unwrap());
            assert!(why.contains(&format!("HTTP {status}")), "{why}");
            assert_eq!(why.contains("streamable HTTP"), is_named, "{why}");
        }
    }

    /// A proxy ends the stream every minute.
    #[tokio::test(start_paused = true)]
    async fn many_losses_cause_few_reads_and_none_is_forgotten() {
        const MINUTE: Duration = Duration::from_secs(60);
        let (missed, reads) = (Notify::new(), Cell::new(0));
        let mut rereading = pin!(reread_after(&missed, || reads.set(reads.get() + 1)));
        // The next read is due after 5 minutes, then after 10.
        for (minutes, expected) in [(1, 1), (3, 1), (3, 2)] {
            for _ in 0..minutes {
                missed.notify_one();
                assert!(timeout(MINUTE, rereading.as_mut()).await.is_err());
            }
            assert_eq!(reads.get(), expected);
        }
        // The stream stays open from now on.
        for expected in [3, 3] {
            assert!(timeout(10 * MINUTE, rereading.as_mut()).await.is_err());
            assert_eq!(reads.get(), expected);
        }
    }
}
