//! The requests in progress, so that a cancel finds them, whichever replica receives it.
//!
//! ```text
//! notifications/cancelled ─┬─> a request that is answered here
//!                          └─> log ──> every replica ──> a request that is answered there
//! answer to a question ─┬─> a call that is here
//!                       └─> log ──> every replica ──> a call that is there
//! DELETE ──> log ──> every replica ──> all requests of the session, and its own stream
//! subscription, change of a resource ──> log ──> every replica ──> the streams of clients
//! ```

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};

use a2abus_plugin::Text;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::session::{KEY, Session};
use crate::calls::Calls;
use crate::calls::question::{ClientAnswer, PassedAnswer};
use crate::lock::lock;
use crate::log_limit::LogLimit;
use crate::results::{ResourceEvent, Results, client_answer_in, resource_event_in};
use crate::state::Lagged;

/// The requests of all sessions in progress on this replica, and the streams of their `GET`s, by log key.
#[derive(Debug, Default)]
pub(super) struct Running {
    entries: Mutex<HashMap<Text, Entry>>,
    /// What the log says about resources, for the streams of clients.
    resources: ResourceEvents,
    /// The number of the next entry.
    next: AtomicU64,
}

#[derive(Debug)]
struct ResourceEvents(broadcast::Sender<Arc<ResourceEvent>>);

#[derive(Debug)]
struct Entry {
    number: u64,
    /// The log key of its session.
    session: Text,
    cancelled: CancellationToken,
}

/// One cancellable request or stream; dropping it removes the entry.
#[derive(Debug)]
pub(super) struct Cancellable {
    /// Its entry; `None` without a session.
    entry: Option<(Arc<Running>, Text, u64)>,
    cancelled: CancellationToken,
}

/// The id of a session's own stream. It is not JSON, so no request has it.
const STREAM: &str = "GET";
/// How many events a stream may lag behind.
const BEHIND: usize = 1_024;

// === impl ResourceEvents ===

impl Default for ResourceEvents {
    fn default() -> Self {
        Self(broadcast::Sender::new(BEHIND))
    }
}

impl ResourceEvents {
    fn send(&self, event: ResourceEvent) {
        // Without a receiver no stream is open.
        let _ = self.0.send(Arc::new(event));
    }
}

// === impl Running ===

impl Running {
    /// Registers a request; `id` is JSON.
    pub(super) fn begin(self: &Arc<Self>, session: Option<&Session>, id: &str) -> Cancellable {
        self.registered(session, id).0
    }

    /// Registers the own stream of a session. It ends the one that the session had at this replica: each message goes
    /// to one stream, and the older connection may be broken.
    pub(super) fn listen(self: &Arc<Self>, session: Option<&Session>) -> Cancellable {
        let (stream, before) = self.registered(session, STREAM);
        if let Some(before) = before {
            before.cancelled.cancel();
        }
        stream
    }

    /// Registers a request or stream. Returns the entry that it replaces.
    fn registered(
        self: &Arc<Self>,
        session: Option<&Session>,
        id: &str,
    ) -> (Cancellable, Option<Entry>) {
        let Some(session) = session else {
            let (entry, cancelled) = (None, CancellationToken::new());
            return (Cancellable { entry, cancelled }, None);
        };
        self.entered(session.key_of(id), session.key())
    }

    /// Registers a call under its log key. It belongs to no session.
    pub(super) fn hold(self: &Arc<Self>, key: Text) -> Cancellable {
        self.entered(key, Text::default()).0
    }

    fn entered(self: &Arc<Self>, key: Text, session: Text) -> (Cancellable, Option<Entry>) {
        let cancelled = CancellationToken::new();
        let number = self.next.fetch_add(1, Relaxed);
        let entry = Entry {
            number,
            session,
            cancelled: cancelled.clone(),
        };
        let before = self.open().insert(key.clone(), entry);
        let entry = Some((Arc::clone(self), key, number));
        (Cancellable { entry, cancelled }, before)
    }

    /// Cancels a request. Returns whether it is on this replica.
    pub(super) fn cancel(&self, key: &str) -> bool {
        let found = self.open().remove(key);
        found.inspect(|found| found.cancelled.cancel()).is_some()
    }

    /// Cancels all requests of a session, and its stream.
    fn end(&self, session: &str) {
        let requests = self.open();
        let of_session = requests.values().filter(|it| it.session == session);
        of_session.for_each(|it| it.cancelled.cancel());
    }

    /// What the log says about resources from now on.
    pub(super) fn resource_events(&self) -> broadcast::Receiver<Arc<ResourceEvent>> {
        self.resources.0.subscribe()
    }

    /// Applies what the log says, until it ends: cancels, answers to questions of calls here, and changes of resources.
    /// `untaken` limits the log lines about answers that do not reach their calls.
    pub(super) async fn follow(
        self: Arc<Self>,
        results: Arc<Results>,
        calls: Arc<Calls>,
        untaken: LogLimit,
    ) {
        let mut following = results.follow_all();
        loop {
            match following.next().await {
                Ok(Some(record)) if record.key.starts_with(KEY) => self.end(&record.key),
                Ok(Some(record)) => {
                    if let Some(event) = resource_event_in(&record) {
                        self.resources.send(event);
                        continue;
                    }
                    self.cancel(&record.key);
                    let is_ours = |call| calls.channels().is_ours(call);
                    if let Some(answer) = client_answer_in(&record, is_ours) {
                        take_answer(&calls, answer, &untaken);
                    }
                }
                Ok(None) => return,
                Err(Lagged) => {
                    tracing::warn!(
                        "cancels and answers that MCP clients sent to other replicas, and changes of resources, may be lost: the log was read too slowly"
                    );
                    following = results.follow_all();
                    self.resources.send(ResourceEvent::Missed);
                }
            }
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<Text, Entry>> {
        lock(&self.entries)
    }
}

/// Delivers to its call an answer that another replica has passed on.
fn take_answer(calls: &Calls, answer: PassedAnswer, untaken: &LogLimit) {
    let call = answer.call;
    let why = match calls.take_passed_answer(answer) {
        ClientAnswer::Taken | ClientAnswer::Foreign => return,
        ClientAnswer::NoRoom => "there is no memory for it (calls.budget_bytes)",
        ClientAnswer::Unawaited if calls.pending().contains(call) => {
            "its token is wrong, or its call cannot be asked"
        }
        ClientAnswer::Unawaited => {
            tracing::debug!(%call, "an answer of an MCP client came too late");
            return;
        }
    };
    if let Some(suppressed) = untaken.allow() {
        tracing::warn!(
            %call, why, suppressed,
            "an answer that an MCP client has sent to another replica did not reach its call"
        );
    }
}

// === impl Cancellable ===

impl Cancellable {
    /// The token that is cancelled when the client cancels the request, or the stream is replaced.
    pub(super) fn token(&self) -> &CancellationToken {
        &self.cancelled
    }
}

impl Drop for Cancellable {
    fn drop(&mut self) {
        if let Some((running, key, number)) = self.entry.take() {
            let mut entries = running.open();
            if entries
                .get(&key)
                .is_some_and(|entry| entry.number == number)
            {
                entries.remove(&key);
            }
        }
    }
}
