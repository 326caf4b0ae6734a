//! The transport of revision 2024-11-05: one stream for all messages of the server, and a URL for POSTs of the client.
//!
//! ```text
//! GET without a session ──> event `endpoint`: PATH?stream=ID, below the path of `a2a.public_url`
//! POST PATH?stream=ID ────> 202, and the answer as events of that stream
//! ```
//!
//! A stream belongs to one replica. Other replicas refuse POSTs for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use a2abus_plugin::Text;
use a2abus_plugin::json::BYTE_ORDER_MARK;
use a2abus_plugin::protocol::dialect::Dialect;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, stream};
use http::Request;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::session::Session;
use crate::budget::ClientBudget;
use crate::calls::failure::Recipient;
use crate::http::sse::read::Events;
use crate::http::sse::{Frame, is_stream};
use crate::lock::lock;

/// The open streams of this replica, by session.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<HashMap<Text, StreamEntry>>);

/// An open stream. It ends when it has no senders any more.
#[derive(Debug)]
struct StreamEntry {
    /// Keeps it open until the bridge drains.
    open: Option<mpsc::Sender<Bytes>>,
    sender: mpsc::WeakSender<Bytes>,
    posts: Arc<Semaphore>,
}

/// The handle of an open stream.
#[derive(Debug)]
pub(super) struct StreamHandle {
    pub(super) sender: mpsc::Sender<Bytes>,
    /// Limits the unanswered POSTs of its client.
    pub(super) posts: Arc<Semaphore>,
}

/// A POST for a stream, until it is answered.
pub(super) struct Post {
    pub(super) sender: mpsc::Sender<Bytes>,
    /// The budget of the messages that wait for the client.
    pub(super) budget: ClientBudget,
    /// The recipient of a refusal, which needs the id because it goes to the stream.
    pub(super) recipient: Recipient,
    pub(super) _room: OwnedSemaphorePermit,
}

/// A stream, until its client disconnects.
struct OpenStream {
    streams: Arc<Streams>,
    session: Text,
    receiver: mpsc::Receiver<Bytes>,
    drain: CancellationToken,
    is_closing: bool,
}

/// The query parameter that names the stream.
const STREAM: &str = "stream";
/// Maximum number of messages that wait for a client.
const QUEUE: usize = 64;
/// Maximum number of unanswered messages of a client.
const POSTS: usize = 64;

/// The stream of a POST.
pub(super) fn stream_of<B>(request: &Request<B>) -> Option<Text> {
    let mut members = request.uri().query()?.split('&');
    members.find_map(|member| {
        let (name, value) = member.split_once('=')?;
        (name == STREAM).then(|| value.into())
    })
}

/// The sender of one message, by its id.
pub(super) fn recipient_of(body: &[u8]) -> Recipient {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        id: &'a RawValue,
    }
    let body = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body);
    let read: Option<Message<'_>> = serde_json::from_slice(body).ok();
    let id = read.map(|message| message.id.get());
    match id.filter(|id| !id.starts_with(['{', '['])) {
        Some(id) => Recipient::new(id.into(), Dialect::Mcp),
        None => Recipient::unknown(Dialect::Mcp),
    }
}

// === impl Streams ===

impl Streams {
    /// Opens a stream at this path, and returns its frames. `notifications` are the frames for changes of lists and
    /// resources. After `drain` the stream ends once all messages are answered. Until then it accepts more: a request
    /// in progress may wait for them.
    pub(super) fn open<C>(
        self: &Arc<Self>,
        path: &str,
        session: &Session,
        notifications: C,
        drain: CancellationToken,
    ) -> impl Stream<Item = Frame> + Send + use<C>
    where
        C: Stream<Item = Frame> + Send,
    {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let entry = StreamEntry {
            sender: sender.downgrade(),
            open: Some(sender),
            posts: Arc::new(Semaphore::new(POSTS)),
        };
        self.all().insert(session.id().clone(), entry);
        let open = OpenStream {
            streams: Arc::clone(self),
            session: session.id().clone(),
            receiver,
            drain,
            is_closing: false,
        };
        let endpoint = Frame::named("endpoint", format!("{path}?{STREAM}={}", session.id()));
        let messages = stream::unfold(open, |mut open| async {
            let data = open.next().await?;
            Some((Frame::of(data), open))
        });
        // Some clients (the SDKs for Java up to 2.0.1, LangChain4j) need the default type to be named.
        let named = stream::select(notifications, messages).map(|frame| Frame {
            event: frame.event.or(Some("message")),
            ..frame
        });
        stream::iter([endpoint]).chain(named)
    }

    /// The handle of an open stream.
    pub(super) fn of(&self, session: &str) -> Option<StreamHandle> {
        let streams = self.all();
        let entry = streams.get(session)?;
        Some(StreamHandle {
            sender: entry.sender.upgrade()?,
            posts: Arc::clone(&entry.posts),
        })
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Text, StreamEntry>> {
        lock(&self.0)
    }
}

// === impl OpenStream ===

impl OpenStream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            tokio::select! {
                message = self.receiver.recv() => return message,
                () = self.drain.cancelled(), if !self.is_closing => {
                    self.is_closing = true;
                    if let Some(entry) = self.streams.all().get_mut(&self.session) {
                        entry.open = None;
                    }
                }
            }
        }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.streams.all().remove(&self.session);
    }
}

/// Forwards a response to the stream: the messages of a stream, or one document.
pub(super) async fn forward(response: Response, Post { sender, budget, .. }: &Post) {
    let mut events = is_stream(response.headers()).then(|| Events::new(usize::MAX));
    let mut document = BytesMut::new();
    let mut body = response.into_body().into_data_stream();
    while let Some(Ok(piece)) = body.next().await {
        let Some(events) = &mut events else {
            document.extend_from_slice(&piece);
            continue;
        };
        for message in events.push(&piece).unwrap_or_default() {
            if sender.send(budget.replace(message)).await.is_err() {
                return;
            }
        }
    }
    if !document.is_empty() {
        // The client may have disconnected.
        let _ = sender.send(budget.replace(document.freeze())).await;
    }
}
