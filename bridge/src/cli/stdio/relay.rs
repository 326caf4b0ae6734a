//! Carries messages between a client on standard input and output and the MCP door of a bridge.
//!
//! ```text
//! stdin ─┬─ request ──────────────> POST ──> answer, and what comes before it ─┐
//!        ├─ notification, answer ─> POST                                       ├─> stdout
//!        └─ cancel ───────────────> POST; that of its request is closed        │
//!                  session opened > GET ──> lists that have changed ───────────┘
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use a2abus_plugin::Text;
use a2abus_plugin::protocol::dialect::Dialect;
use anyhow::Context as _;
use bytes::Bytes;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue};
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
use crate::cli::output::Closed;
use crate::http::messages::Messages;
use crate::lines::{Line, Lines, on_one_line};

/// The relay of one client.
#[derive(Debug)]
pub(super) struct Relay {
    link: Arc<Link>,
    said: mpsc::Receiver<Bytes>,
    /// What has no answer, in the order in which it is sent.
    posts: mpsc::Sender<Post>,
    posting: JoinSet<()>,
    /// Requests that are being answered.
    answers: JoinSet<()>,
    /// What goes on until the client ends: subscriptions, and the stream of its session.
    lasting: JoinSet<()>,
    listening: Option<AbortHandle>,
}

/// The way to the bridge, and back to the client.
#[derive(Debug)]
struct Link {
    client: Client,
    endpoint: Url,
    say: mpsc::Sender<Bytes>,
    session: Mutex<Option<HeaderValue>>,
    /// The requests that are being answered, by their id as its JSON token.
    running: Mutex<HashMap<Text, CancellationToken>>,
}

/// A notification or an answer: its headers and its body.
type Post = (Vec<(HeaderName, HeaderValue)>, Bytes);

/// A request on its way.
struct Request {
    id: Text,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
    cancelled: CancellationToken,
}

/// The longest message, in bytes.
pub(super) const MOST: usize = 64 << 20;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
/// How long a connection may take to open.
const CONNECT: Duration = Duration::from_secs(10);
/// How long the bridge may take to take what has no answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the end of a session may take.
const FAREWELL: Duration = Duration::from_secs(2);
/// The pauses before the stream of a session is opened again, in seconds.
const PAUSES: [u64; 4] = [1, 2, 5, 15];
/// Messages that wait for standard output, or for the bridge to take them.
const QUEUE: usize = 64;
/// Requests under way, at most.
const MOST_RUNNING: usize = 1_024;

// === impl Relay ===

impl Relay {
    /// A relay to the door at `endpoint`.
    ///
    /// # Errors
    /// When there can be no HTTP client.
    pub(super) fn new(endpoint: Url) -> anyhow::Result<Self> {
        let mut client = Client::builder().connect_timeout(CONNECT);
        if endpoint.host_str().is_some_and(is_here) {
            client = client.no_proxy();
        }
        let (say, said) = mpsc::channel(QUEUE);
        let link = Link {
            client: client.build()?,
            endpoint,
            say,
            session: Mutex::default(),
            running: Mutex::default(),
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
            said,
            posts,
            posting,
            answers: JoinSet::new(),
            lasting: JoinSet::new(),
            listening: None,
        })
    }

    /// Carries messages until the input ends; requests that are being answered then are finished.
    ///
    /// # Errors
    /// [`Closed`] when nobody reads the output; else when the input cannot be read.
    pub(super) async fn run<R: AsyncRead + Unpin>(
        mut self,
        mut lines: Lines<R>,
    ) -> anyhow::Result<()> {
        let (_, none) = mpsc::channel(1);
        let said = std::mem::replace(&mut self.said, none);
        let mut writing = JoinSet::new();
        writing.spawn(write(said));
        let carried = tokio::select! {
            carried = self.carry(&mut lines) => carried,
            Some(written) = writing.join_next() => return written?,
        };
        self.lasting.shutdown().await;
        self.link.end_session().await;
        drop(self);
        while let Some(written) = writing.join_next().await {
            written??;
        }
        carried
    }

    async fn carry<R: AsyncRead + Unpin>(&mut self, lines: &mut Lines<R>) -> anyhow::Result<()> {
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
        while let Some(ended) = self.answers.join_next().await {
            ended?;
        }
        (self.posts, _) = mpsc::channel(1);
        if timeout(PATIENCE, self.posting.join_next()).await.is_err() {
            tracing::warn!("the bridge does not take notifications and answers: the last are lost");
        }
        Ok(())
    }

    async fn receive(&mut self, line: Line) {
        let body = line.bytes;
        if body.trim_ascii().is_empty() {
            return;
        }
        let nobody = Text::from_static("null");
        if line.is_cut {
            let message = format!("the message has more than {MOST} bytes");
            let failure = Failure::new(Reason::InvalidRequest, message);
            return self.link.fail(nobody, &failure).await;
        }
        if body.trim_ascii_start().starts_with(b"[") {
            // Its answers come as one document.
            return self.begin(Request::new(nobody, Vec::new(), body)).await;
        }
        let message: Message<'_> = match serde_json::from_slice(&body) {
            Ok(message) => message,
            Err(error) => {
                let message = format!("this line is not one JSON-RPC message: {error}");
                let failure = Failure::new(Reason::Parse, message);
                return self.link.fail(nobody, &failure).await;
            }
        };
        match (message.method.as_deref(), message.id) {
            (Some("notifications/cancelled"), None) => {
                message.cancelled().inspect(|id| self.link.cancel(id));
                // One that could come back for its answer is not cancelled by the end of its connection.
                let post = (message.headers(), body.clone());
                drop(self.posts.send(post).await);
            }
            (Some("notifications/initialized"), None) => {
                self.link.forward(message.headers(), body.clone()).await;
                self.listen();
            }
            (Some(method), Some(id)) => {
                let request = Request::new(id.get().into(), message.headers(), body.clone());
                match method {
                    // What follows needs its session.
                    "initialize" => self.initialize(request).await,
                    "subscriptions/listen" => {
                        self.lasting.spawn(Arc::clone(&self.link).answer(request));
                    }
                    _ => self.begin(request).await,
                }
            }
            _ => {
                let post = (message.headers(), body.clone());
                // The task ends after this side only.
                drop(self.posts.send(post).await);
            }
        }
    }

    /// Reads nothing more until the session is there, or is not to be had.
    async fn initialize(&self, request: Request) {
        let id = request.id.clone();
        let answered = timeout(PATIENCE, Arc::clone(&self.link).answer(request)).await;
        if answered.is_err() {
            self.link.cancel(&id);
            let failure = self.link.lost(&format!("nothing came within {PATIENCE:?}"));
            self.link.fail(id, &failure).await;
        }
    }

    async fn begin(&mut self, request: Request) {
        if self.answers.len() < MOST_RUNNING {
            self.answers.spawn(Arc::clone(&self.link).answer(request));
            return;
        }
        let message = format!("{MOST_RUNNING} requests are being answered: wait for one of them");
        let failure = Failure::new(Reason::Exhausted, message);
        self.link.fail(request.id, &failure).await;
    }

    /// Opens the stream of the session, in place of that of an earlier one.
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

/// Whether a host is this machine: no proxy leads there.
fn is_here(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Writes one message on each line.
async fn write(mut said: mpsc::Receiver<Bytes>) -> anyhow::Result<()> {
    let output = io::stdout().as_fd().try_clone_to_owned();
    let mut output = tokio::fs::File::from_std(File::from(output?));
    while let Some(message) = said.recv().await {
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
    /// Gets the client its answer: that of the bridge, or why there is none. It can be cancelled from now on.
    fn answer(self: Arc<Self>, request: Request) -> impl Future<Output = ()> + Send {
        let (id, cancelled) = (request.id.clone(), request.cancelled.clone());
        self.running().insert(id.clone(), cancelled.clone());
        async move {
            // A request that is dropped closes its connection, which cancels it at whichever replica has it.
            let answered = cancelled.run_until_cancelled(self.ask(request)).await;
            if let Some(Err(failure)) = answered {
                self.fail(id.clone(), &failure).await;
            }
            self.running().remove(&id);
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
        let mut messages = Messages::of(response, MOST);
        let mut is_answered = status == StatusCode::ACCEPTED;
        loop {
            match messages.next().await {
                Ok(Some(message)) if messages.is_stream() || is_response(&message, &id) => {
                    is_answered |= is_response(&message, &id);
                    self.say(message).await;
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
            let message = format!(
                "the bridge at {} cannot be reached: {}; start it, or give its address as --url",
                self.endpoint,
                crate::cli::reach::chain(&error.without_url())
            );
            Failure::new(Reason::AgentUnavailable, message)
        })
    }

    /// The answer of the bridge to a request of which it did not read the id.
    async fn refused(&self, id: Text, status: StatusCode, body: &[u8]) -> Result<(), Failure> {
        #[derive(Deserialize)]
        struct Response<'a> {
            #[serde(borrow)]
            error: &'a RawValue,
        }
        let Ok(Response { error }) = serde_json::from_slice(body) else {
            return Err(self.lost(&format!("it answered {status}, and no JSON-RPC")));
        };
        let said = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#);
        self.say(said.into()).await;
        Ok(())
    }

    fn lost(&self, why: &str) -> Failure {
        let message = format!(
            "no answer from the bridge at {}: {why}; the request may have been executed",
            self.endpoint
        );
        Failure::new(Reason::AgentUnavailable, message)
    }

    /// Sends what has no answer.
    async fn forward(&self, headers: Vec<(HeaderName, HeaderValue)>, body: Bytes) {
        let mut post = self.client.post(self.endpoint.clone()).body(body);
        for (name, value) in headers {
            post = post.header(name, value);
        }
        let post = post.header(ACCEPT, BOTH).timeout(PATIENCE);
        match self.send(post).await {
            Ok(response) if response.status().is_success() => {}
            Ok(response) => {
                let status = response.status();
                let why = response.text().await.unwrap_or_default();
                tracing::warn!(%status, why, "the bridge refuses a notification or an answer");
            }
            Err(failure) => {
                tracing::warn!(
                    why = failure.message(),
                    "a notification or an answer is lost"
                );
            }
        }
    }

    /// Passes on what the bridge says beside any request, for as long as the client is there.
    async fn listen(self: Arc<Self>) {
        let mut failed = 0;
        loop {
            let get = self.client.get(self.endpoint.clone());
            match self.send(get.header(ACCEPT, EVENTS)).await {
                Ok(response) if response.status().is_client_error() => {
                    tracing::warn!(status = %response.status(), "the bridge has no stream for this session: changes of its lists are not heard of");
                    return;
                }
                Ok(response) if response.status().is_success() => {
                    failed = 0;
                    let mut messages = Messages::of(response, MOST);
                    while let Ok(Some(message)) = messages.next().await {
                        self.say(message).await;
                    }
                }
                Ok(_) | Err(_) => {}
            }
            let pause = PAUSES[failed.min(PAUSES.len() - 1)];
            sleep(Duration::from_secs(pause)).await;
            failed += 1;
        }
    }

    fn cancel(&self, id: &str) {
        let found = self.running().remove(id);
        found.inspect(CancellationToken::cancel);
    }

    async fn end_session(&self) {
        if lock(&self.session).is_some() {
            let delete = self.client.delete(self.endpoint.clone());
            // A session that is not ended costs nothing.
            drop(timeout(FAREWELL, self.send(delete)).await);
        }
    }

    async fn fail(&self, id: Text, failure: &Failure) {
        let recipient = Recipient::new(id, Dialect::Mcp);
        self.say(failure.render(&recipient)).await;
    }

    async fn say(&self, message: Bytes) {
        // Without a reader the relay ends.
        let _ = self.say.send(message).await;
    }

    fn running(&self) -> MutexGuard<'_, HashMap<Text, CancellationToken>> {
        lock(&self.running)
    }
}

/// Whether a message answers the request of this id. A batch has none: any array answers it.
fn is_response(message: &[u8], id: &str) -> bool {
    if message.trim_ascii_start().starts_with(b"[") {
        return true;
    }
    let message: Result<Message<'_>, _> = serde_json::from_slice(message);
    message.is_ok_and(|message| {
        message.method.is_none() && message.id.is_some_and(|own| own.get() == id)
    })
}

/// Every change leaves it whole, so that a lock poisoned by a panic elsewhere is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
