//! Relays messages between a client on standard input and output and the MCP interface of a bridge.
//!
//! ```text
//! stdin ─┬─ request ──────────────> POST ──> notifications, then the answer ───┐
//!        ├─ notification, answer ─> POST                                       ├─> stdout
//!        └─ cancel ───────────────> POST; the POST of its request is closed    │
//!                  session opened > GET ──> changed lists ─────────────────────┘
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use a2abus_plugin::Text;
use a2abus_plugin::protocol::dialect::Dialect;
use anyhow::Context as _;
use bytes::Bytes;
use futures_util::future::join_all;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::message::Message;
use crate::calls::failure::{Failure, Reason, Recipient};
use crate::cli::bridge_client;
use crate::cli::output::Closed;
use crate::http::messages::Messages;
use crate::http::negotiate::TIMEOUT_HEADER;
use crate::lines::{Line, Lines, on_one_line};
use crate::lock::lock;

/// The relay of one client.
#[derive(Debug)]
pub(super) struct Relay {
    link: Arc<Link>,
    output: mpsc::Receiver<Bytes>,
    /// Notifications and answers, in the order in which they are sent.
    posts: mpsc::Sender<Post>,
    posting: JoinSet<()>,
    /// Requests in progress.
    answers: JoinSet<()>,
    /// Tasks that run until the client ends: subscriptions, and the stream of its session.
    lasting: JoinSet<()>,
    listening: Option<AbortHandle>,
}

/// The connections to the bridge and to the client.
#[derive(Debug)]
struct Link {
    client: Client,
    endpoint: Url,
    output: mpsc::Sender<Bytes>,
    session: Mutex<Option<HeaderValue>>,
    /// The requests in progress, by the JSON token of their id.
    running: Mutex<HashMap<Text, CancellationToken>>,
    questions: Mutex<Questions>,
}

/// The requests of servers that the client has not answered.
#[derive(Debug, Default)]
struct Questions {
    /// Their ids, as JSON, and that of the request during which each was asked; empty outside of a request.
    open: HashMap<Text, Text>,
    /// The client has ended its input, so it answers none of them.
    is_over: bool,
}

/// A notification or an answer: its headers and its body.
type Post = (Vec<(HeaderName, HeaderValue)>, Bytes);

/// A request to the bridge.
struct Request {
    id: Text,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
    cancelled: CancellationToken,
}

/// The longest message, in bytes.
pub(super) const MAX_MESSAGE: usize = 64 << 20;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
/// How long the bridge may take to accept a notification or an answer.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long declining the questions, ending a session, cancelling its requests, or writing the last messages may take.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// The pauses before the stream of a session is opened again, in seconds.
const PAUSES: [u64; 4] = [1, 2, 5, 15];
/// Maximum number of messages that wait for standard output, or for the bridge.
const QUEUE: usize = 64;
/// Maximum number of requests in progress.
const MAX_RUNNING: usize = 1_024;

// === impl Relay ===

impl Relay {
    /// A relay to the MCP interface at `endpoint`. Each request may take `timeout`, or as long as the bridge says.
    ///
    /// # Errors
    /// When the HTTP client cannot be created.
    pub(super) fn new(endpoint: Url, timeout: Option<Duration>) -> anyhow::Result<Self> {
        let mut headers = HeaderMap::new();
        if let Some(timeout) = timeout {
            let milliseconds = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
            headers.insert(TIMEOUT_HEADER.clone(), HeaderValue::from(milliseconds));
        }
        let client = bridge_client::client(&endpoint).default_headers(headers);
        let (sender, output) = mpsc::channel(QUEUE);
        let link = Link {
            client: client.build()?,
            endpoint,
            output: sender,
            session: Mutex::default(),
            running: Mutex::default(),
            questions: Mutex::default(),
        };
        let (link, mut posting) = (Arc::new(link), JoinSet::new());
        let (posts, mut to_send) = mpsc::channel::<Post>(QUEUE);
        let sender = Arc::clone(&link);
        posting.spawn(async move {
            while let Some((headers, body)) = to_send.recv().await {
                sender.forward(headers, body).await;
            }
        });
        Ok(Self {
            link,
            output,
            posts,
            posting,
            answers: JoinSet::new(),
            lasting: JoinSet::new(),
            listening: None,
        })
    }

    /// Relays messages until the input ends, and then finishes the requests in progress. When `stop` ends, or nobody
    /// reads the output any more, it cancels them.
    ///
    /// # Errors
    /// [`Closed`] when the reader has closed the output; otherwise when the input cannot be read.
    pub(super) async fn run<R: AsyncRead + Unpin>(
        mut self,
        mut lines: Lines<R>,
        stop: impl Future<Output = ()>,
    ) -> anyhow::Result<()> {
        let (_, none) = mpsc::channel(1);
        let output = std::mem::replace(&mut self.output, none);
        let mut writing = JoinSet::new();
        writing.spawn(write(output));
        let mut stop = pin!(stop);
        let mut closed = None;
        let relayed = tokio::select! {
            relayed = self.relay(&mut lines) => Some(relayed),
            Some(written) = writing.join_next() => {
                // A client that has crashed leaves its requests and subscriptions behind.
                closed = Some(written);
                None
            }
            () = &mut stop => None,
        };
        if relayed.is_none() {
            // If the bridge does not answer, its own timeouts end the questions.
            drop(timeout(END_TIMEOUT, self.link.decline_questions()).await);
        }
        self.lasting.shutdown().await;
        // This cancels the requests in progress. Without a session, closing their connections cancels them.
        self.link.end_session().await;
        drop(self);
        if let Some(written) = closed {
            return written?;
        }
        let written = async {
            while let Some(written) = writing.join_next().await {
                written??;
            }
            Ok(())
        };
        match relayed {
            // The client may have stopped reading.
            None => timeout(END_TIMEOUT, written).await.unwrap_or(Ok(())),
            Some(relayed) => tokio::select! {
                written = written => written.and(relayed),
                () = stop => relayed,
            },
        }
    }

    async fn relay<R: AsyncRead + Unpin>(&mut self, lines: &mut Lines<R>) -> anyhow::Result<()> {
        loop {
            let line = tokio::select! {
                line = lines.next() => line.context("standard input cannot be read")?,
                Some(ended) = self.answers.join_next() => { ended?; continue }
                Some(ended) = self.lasting.join_next() => { note(ended); continue }
            };
            match line {
                Some(line) => self.receive(line).await,
                None => break,
            }
        }
        self.link.decline_questions().await;
        while let Some(ended) = self.answers.join_next().await {
            ended?;
        }
        (self.posts, _) = mpsc::channel(1);
        if timeout(MESSAGE_TIMEOUT, self.posting.join_next())
            .await
            .is_err()
        {
            tracing::warn!(
                "the bridge does not accept notifications and answers; the last ones are lost"
            );
        }
        Ok(())
    }

    async fn receive(&mut self, line: Line) {
        let body = line.bytes;
        if body.trim_ascii().is_empty() {
            return;
        }
        let no_id = Text::from_static("null");
        if line.is_cut {
            let message = format!("the message has more than {MAX_MESSAGE} bytes");
            let failure = Failure::new(Reason::InvalidRequest, message);
            return self.link.fail(no_id, &failure).await;
        }
        if body.trim_ascii_start().starts_with(b"[") {
            // The bridge answers with one document.
            return self.begin(Request::new(no_id, Vec::new(), body)).await;
        }
        let message: Message<'_> = match serde_json::from_slice(&body) {
            Ok(message) => message,
            Err(error) => {
                let message = format!("this line is not one JSON-RPC message: {error}");
                let failure = Failure::new(Reason::Parse, message);
                return self.link.fail(no_id, &failure).await;
            }
        };
        match (message.method.as_deref(), message.id) {
            (Some("notifications/cancelled"), None) => {
                message.cancelled().inspect(|id| self.link.cancel(id));
                // Closing the connection does not cancel a request whose stream can be resumed.
                let post = (message.headers(), body.clone());
                drop(self.posts.send(post).await);
            }
            (Some("notifications/initialized"), None) => {
                self.link.forward(message.headers(), body.clone()).await;
                // Without a session, the bridge would open one of the legacy transport.
                if lock(&self.link.session).is_some() {
                    self.listen();
                }
            }
            (Some(_), Some(id)) if !is_request_id(id.get()) => {
                let message = "the id of a request must be a string or an integer";
                let failure = Failure::new(Reason::InvalidRequest, message);
                self.link.fail(no_id, &failure).await;
            }
            (Some(method), Some(id)) => {
                let request = Request::new(id.get().into(), message.headers(), body.clone());
                self.requested(method, request).await;
            }
            (method, id) => {
                if let (None, Some(id)) = (method, id) {
                    self.link.questions().open.remove(id.get());
                }
                let post = (message.headers(), body.clone());
                // The receiving task lives longer than this sender.
                drop(self.posts.send(post).await);
            }
        }
    }

    async fn requested(&mut self, method: &str, request: Request) {
        match method {
            // Later messages need the session.
            "initialize" => self.initialize(request).await,
            "subscriptions/listen" => {
                self.lasting.spawn(Arc::clone(&self.link).answer(request));
            }
            _ => self.begin(request).await,
        }
    }

    /// Waits until the session is open, or cannot be opened.
    async fn initialize(&self, request: Request) {
        let id = request.id.clone();
        let answered = timeout(MESSAGE_TIMEOUT, Arc::clone(&self.link).answer(request)).await;
        if answered.is_err() {
            self.link.cancel(&id);
            let failure = self
                .link
                .lost(&format!("it did not answer within {MESSAGE_TIMEOUT:?}"));
            self.link.fail(id, &failure).await;
        }
    }

    async fn begin(&mut self, request: Request) {
        if self.answers.len() < MAX_RUNNING {
            self.answers.spawn(Arc::clone(&self.link).answer(request));
            return;
        }
        let message =
            format!("{MAX_RUNNING} requests are in progress: wait for one of them to end");
        let failure = Failure::new(Reason::Exhausted, message);
        self.link.fail(request.id, &failure).await;
    }

    /// Opens the stream of the session, and closes that of an earlier session.
    fn listen(&mut self) {
        self.listening.take().inspect(AbortHandle::abort);
        let listening = Arc::clone(&self.link).listen();
        self.listening = Some(self.lasting.spawn(listening));
    }
}

fn note(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && !error.is_cancelled()
    {
        tracing::error!(%error, "a stream ended unexpectedly");
    }
}

/// Writes one message on each line.
async fn write(mut messages: mpsc::Receiver<Bytes>) -> anyhow::Result<()> {
    let output = io::stdout().as_fd().try_clone_to_owned();
    let mut output = tokio::fs::File::from_std(File::from(output?));
    while let Some(message) = messages.recv().await {
        let written = match output.write_all(&on_one_line(&message)).await {
            Ok(()) => output.flush().await,
            failed => failed,
        };
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(Closed.into()),
            written => written.context("standard output cannot be written")?,
        }
    }
    Ok(())
}

// === impl Request ===

impl Request {
    fn new(id: Text, headers: Vec<(HeaderName, HeaderValue)>, body: Bytes) -> Self {
        Self {
            id,
            headers,
            body,
            cancelled: CancellationToken::new(),
        }
    }
}

// === impl Link ===

impl Link {
    /// Sends the client the answer of the bridge, or an error if there is none. The request can be cancelled from now
    /// on.
    fn answer(self: Arc<Self>, request: Request) -> impl Future<Output = ()> + Send {
        let (id, cancelled) = (request.id.clone(), request.cancelled.clone());
        self.running().insert(id.clone(), cancelled.clone());
        async move {
            // Dropping the request closes its connection, which cancels it at its replica.
            let answered = cancelled.run_until_cancelled(self.ask(request)).await;
            // The bridge may have closed a cancelled request before this was polled.
            if let Some(Err(failure)) = answered
                && !cancelled.is_cancelled()
            {
                self.fail(id.clone(), &failure).await;
            }
            self.running().remove(&id);
            self.questions().open.retain(|_, of| *of != id);
        }
    }

    async fn ask(&self, request: Request) -> Result<(), Failure> {
        let id = request.id;
        let mut post = self.client.post(self.endpoint.clone()).body(request.body);
        for (name, value) in request.headers {
            post = post.header(name, value);
        }
        let response = self.send(post.header(ACCEPT, BOTH)).await?;
        let status = response.status();
        if let Some(session) = response.headers().get(SESSION) {
            *lock(&self.session) = Some(session.clone());
        }
        let mut messages = Messages::of(response, MAX_MESSAGE);
        let mut is_answered = status == StatusCode::ACCEPTED;
        loop {
            match messages.next().await {
                Ok(Some(message)) if messages.is_stream() || is_response(&message, &id) => {
                    is_answered |= is_response(&message, &id);
                    self.pass(message, &id).await;
                }
                Ok(Some(message)) => return self.refused(id, status, &message).await,
                Ok(None) if is_answered => return Ok(()),
                Err(_) if is_answered => return Ok(()),
                Ok(None) => return Err(self.lost("it sent no answer")),
                Err(error) => return Err(self.lost(&error.to_string())),
            }
        }
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let session = lock(&self.session).clone();
        let request = match session {
            Some(session) => request.header(SESSION, session),
            None => request,
        };
        let sent = request.header(CONTENT_TYPE, JSON).send().await;
        sent.map_err(|error| {
            let is_unsent = error.is_connect() || error.is_builder();
            let why = crate::restart::chain(&error.without_url());
            if !is_unsent {
                return self.lost(&why);
            }
            let message = format!(
                "the bridge at {} cannot be reached: {why}; start it, or give its address as --url",
                self.endpoint
            );
            Failure::new(Reason::AgentUnavailable, message)
        })
    }

    /// Forwards an error of the bridge to a request whose id it did not read.
    async fn refused(&self, id: Text, status: StatusCode, body: &[u8]) -> Result<(), Failure> {
        #[derive(Deserialize)]
        struct Response<'a> {
            #[serde(borrow)]
            error: &'a RawValue,
        }
        let Ok(Response { error }) = serde_json::from_slice(body) else {
            return Err(self.lost(&format!("it answered {status} without JSON-RPC")));
        };
        let message = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#);
        self.write(message.into()).await;
        Ok(())
    }

    fn lost(&self, why: &str) -> Failure {
        let message = format!(
            "no answer from the bridge at {}: {why}; the request may have been executed",
            self.endpoint
        );
        Failure::new(Reason::AnswerLost, message)
    }

    /// Sends a notification or an answer.
    async fn forward(&self, headers: Vec<(HeaderName, HeaderValue)>, body: Bytes) {
        let mut post = self.client.post(self.endpoint.clone()).body(body);
        for (name, value) in headers {
            post = post.header(name, value);
        }
        let post = post.header(ACCEPT, BOTH).timeout(MESSAGE_TIMEOUT);
        match self.send(post).await {
            Ok(response) if response.status().is_success() => {}
            Ok(response) => {
                let status = response.status();
                let why = response.text().await.unwrap_or_default();
                tracing::warn!(%status, why, "the bridge refused a notification or an answer");
            }
            Err(failure) => {
                tracing::warn!(
                    why = failure.message(),
                    "a notification or an answer was lost"
                );
            }
        }
    }

    /// Forwards messages of the bridge that belong to no request, until the client ends.
    async fn listen(self: Arc<Self>) {
        let mut failed = 0;
        let mut is_refused = false;
        loop {
            let get = self.client.get(self.endpoint.clone());
            match self.send(get.header(ACCEPT, EVENTS)).await {
                Ok(response) if has_no_stream(response.status()) => {
                    tracing::warn!(status = %response.status(), "the bridge has no stream for this session: the client does not learn of changed lists");
                    return;
                }
                Ok(response) if response.status().is_success() => {
                    (failed, is_refused) = (0, false);
                    let mut messages = Messages::of(response, MAX_MESSAGE);
                    while let Ok(Some(message)) = messages.next().await {
                        self.pass(message, &Text::default()).await;
                    }
                }
                Ok(response) if !is_refused => {
                    is_refused = true;
                    tracing::warn!(status = %response.status(), "the bridge does not open the stream of this session at the moment: trying again");
                }
                Ok(_) | Err(_) => {}
            }
            let pause = PAUSES[failed.min(PAUSES.len() - 1)];
            sleep(Duration::from_secs(pause)).await;
            failed += 1;
        }
    }

    /// Passes a message of the bridge to the client; `of` is the request to which it belongs. Declines a question that
    /// the client no longer answers, and one too many.
    async fn pass(&self, message: Bytes, of: &Text) {
        if let Some(id) = question_id(&message) {
            let is_declined = {
                let mut questions = self.questions();
                let is_declined = questions.is_over || questions.open.len() >= MAX_RUNNING;
                if !is_declined {
                    questions.open.insert(id.clone(), of.clone());
                }
                is_declined
            };
            if is_declined {
                return self.decline(id).await;
            }
        }
        self.write(message).await;
    }

    /// Declines the open questions, and those that follow: the client has ended its input.
    async fn decline_questions(&self) {
        let open = {
            let mut questions = self.questions();
            questions.is_over = true;
            std::mem::take(&mut questions.open)
        };
        join_all(open.into_keys().map(|id| self.decline(id))).await;
    }

    async fn decline(&self, id: Text) {
        let failure = Failure::new(
            Reason::Cancelled,
            "the client does not answer this question",
        );
        let body = failure.render(&Recipient::new(id, Dialect::Mcp));
        self.forward(Vec::new(), body).await;
    }

    fn cancel(&self, id: &str) {
        let found = self.running().remove(id);
        found.inspect(CancellationToken::cancel);
    }

    /// Ends the session, with which the bridge cancels its requests. If the bridge does not end it, for example because
    /// its log does not answer, it may still cancel each request.
    async fn end_session(&self) {
        if lock(&self.session).is_none() {
            return;
        }
        let delete = self.client.delete(self.endpoint.clone());
        let ended = timeout(END_TIMEOUT, self.send(delete)).await;
        let is_ended = matches!(&ended, Ok(Ok(response)) if response.status().is_success());
        if !is_ended {
            // A session that stays open costs the bridge nothing, and the timeouts of its calls end the rest.
            drop(timeout(END_TIMEOUT, self.cancel_all()).await);
        }
    }

    /// Cancels all requests in progress.
    async fn cancel_all(&self) {
        let ids: Vec<Text> = self.running().keys().cloned().collect();
        let cancels = ids.iter().map(|id| {
            let cancel = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"the client has ended"}}}}"#
            );
            self.forward(Vec::new(), cancel.into())
        });
        join_all(cancels).await;
    }

    async fn fail(&self, id: Text, failure: &Failure) {
        let recipient = Recipient::new(id, Dialect::Mcp);
        self.write(failure.render(&recipient)).await;
    }

    async fn write(&self, message: Bytes) {
        // Without a reader, the relay ends.
        let _ = self.output.send(message).await;
    }

    fn running(&self) -> MutexGuard<'_, HashMap<Text, CancellationToken>> {
        lock(&self.running)
    }

    fn questions(&self) -> MutexGuard<'_, Questions> {
        lock(&self.questions)
    }
}

/// Whether this answer to GET says that there is no stream: the bridge has none, or no longer knows the session. Other
/// errors, such as 401 and 429, may pass.
fn has_no_stream(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED | StatusCode::NOT_FOUND
    )
}

/// Whether a message answers the request with this id. A batch has no id: any array answers it.
fn is_response(message: &[u8], id: &str) -> bool {
    if message.trim_ascii_start().starts_with(b"[") {
        return true;
    }
    let message: Result<Message<'_>, _> = serde_json::from_slice(message);
    message.is_ok_and(|message| {
        message.method.is_none() && message.id.is_some_and(|own| own.get() == id)
    })
}

/// Whether a JSON token may be the id of a request. Source: MCP 2025-11-25, "Requests".
fn is_request_id(token: &str) -> bool {
    let is_number = token.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    token.starts_with('"') || (is_number && !token.contains(['.', 'e', 'E']))
}

/// The id of a request of the server.
fn question_id(message: &[u8]) -> Option<Text> {
    let message: Message<'_> = serde_json::from_slice(message).ok()?;
    let id = message.id.filter(|_| message.method.is_some())?;
    Some(id.get().into())
}
