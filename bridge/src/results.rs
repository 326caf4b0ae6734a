//! Answers to requests with an `Idempotency-Key`, stored in a log, so that a repeated request is not executed again,
//! whichever replica receives it.
//!
//! ```text
//! request ── claim ──> log ──> Ours ──────> work ── keep ──> log
//!                       ├────> Running ───> wait ──────────> Answered
//!                       └────> Answered, Differs, …
//! ```
//!
//! A replica renews its claim every few seconds while it works on the request. If the renewals stop, other replicas
//! know that it has stopped.
//!
//! The log also records which MCP sessions have ended, which requests their clients have cancelled, what they answer to
//! questions, and which resources they have subscribed to, because any replica may hold the calls and streams.
//!
//! Calls of tasks, and calls whose caller can reconnect, are in the log too. If their replica stops or loses the bus,
//! another one reads the answer at their reply address and records it ([`follower`]).
//!
//! A key belongs to its caller. The order of the log decides which request claimed it first, so every replica sees the
//! same claim and the same answer. Source: docs/design.md §7.5.

mod fold;
pub(crate) mod follower;
mod resources;
mod subscriptions;

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::future::{Future, pending};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use a2abus_plugin::Text;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;
use tracing::Level;

pub(crate) use self::fold::{
    Author, Claim, OpenedCall, ROUND, RecordedPart, Skill, StoredResponse,
};
pub(crate) use self::resources::{MAX_URI, ResourceEvent, Subscription, UpdateSource, containing};

use self::fold::{ClaimOutcome, ClaimedKey, Entry, Event, FollowedCall, ResultFold};
use self::resources::{RESOURCE, SUBSCRIPTION};
use crate::account::Retry;
use crate::calls::callid::CallId;
use crate::calls::pending::CallerMessage;
use crate::calls::question::PassedAnswer;
use crate::calls::{Answer, CallError, Calls, Part, RecordedParts};
use crate::clock;
use crate::lock::lock;
use crate::log_limit::{LogLimit, LogLimits};
use crate::state::body;
use crate::state::{
    ATTENDED, Cursor, Entries, Following, LATEST, Lagged, Logs, Position, RESULTS, Record, STORED,
    StateError, UNATTENDED, View,
};
use crate::tasks::Unfinished;

/// The stored answers.
#[derive(Debug)]
pub(crate) struct Results {
    view: View<ResultFold>,
    work: TaskTracker,
    /// The tasks that read answers of other replicas.
    feeds: TaskTracker,
    /// The calls whose keys are watched over.
    watched: Mutex<HashSet<String>>,
    /// The end of the log when this process opened it, if only this process uses it: nobody works any more on what was
    /// claimed before.
    opened_at: Option<Cursor>,
    lost: LogLimit,
    unfollowed: LogLimit,
    unrenewed: LogLimit,
    unwatched: LogLimit,
    received: LogLimit,
    unclaimed: LogLimit,
}

/// The state of an idempotency key for one request.
#[derive(Debug, Clone)]
pub(crate) enum KeyState {
    /// This request has claimed the key; its call produces the answer.
    Ours,
    /// The key was used for a different request, with this call.
    Differs(Text),
    /// This call is producing the answer.
    Running(Text),
    /// The replica of this call has stopped, and another replica has recorded the answer.
    RecordedElsewhere(CallId),
    /// It was answered.
    Answered(Arc<StoredResponse>),
    /// This call has claimed the key, but its answer is unknown: it was not stored, or its replica has stopped.
    Lost(Text),
    /// It was answered, but the answer has been removed.
    Forgotten,
}

/// How many records a waiting request may lag behind before it reads the state again.
const BEHIND: usize = 8;
/// How many records a follower of all keys may lag behind.
const CROWD: usize = 4_096;
/// How long a call waits until its record is stored.
const OPENED: Duration = Duration::from_secs(2);
/// How long a client waits until a part of its answer is stored. Without the record it cannot resume the stream.
const PART: Duration = Duration::from_secs(30);
/// How often a claim is renewed.
const RENEWAL: Duration = Duration::from_secs(5);
/// How long a claim is not renewed before the log is checked, and how long after that its replica counts as stopped.
const SILENCE: Duration = Duration::from_secs(10);
/// How often a claim is recorded if it loses to an earlier claim that is then released.
const CLAIMS: usize = 3;

/// At most this many keys are watched over.
const MAX_WATCHED: usize = 4_096;

/// The prefixes of the keys of calls, of answers that are passed on, and of messages for attached agents.
const CALL: &str = "call-";
const CLIENT_ANSWER: &str = "client-";
const FOR_AGENT: &str = "agent-";

// === impl Results ===

impl Results {
    /// Opens the log of answers.
    ///
    /// # Errors
    /// When the log cannot be opened.
    pub(crate) async fn open(logs: &Logs, log: &LogLimits) -> Result<Arc<Self>, StateError> {
        let view = logs.view(RESULTS, ResultFold).await?;
        let opened_at = match logs.is_shared() {
            true => None,
            false => Some(view.end().await?),
        };
        Ok(Arc::new(Self::new(view, opened_at, log)))
    }

    fn new(view: View<ResultFold>, opened_at: Option<Cursor>, log: &LogLimits) -> Self {
        Self {
            view,
            work: TaskTracker::new(),
            feeds: TaskTracker::new(),
            watched: Mutex::default(),
            opened_at,
            lost: log.limit(Level::ERROR, "more answers were not stored"),
            unfollowed: log.limit(Level::WARN, "more calls were not recorded"),
            unrenewed: log.limit(Level::WARN, "more claims were not renewed"),
            unwatched: log.limit(Level::WARN, "more idempotency keys were not watched"),
            received: log.limit(Level::INFO, "more answers were received by other replicas"),
            unclaimed: log.limit(
                Level::WARN,
                "more requests with an Idempotency-Key were refused",
            ),
        }
    }

    /// Logs that a request is refused because its key cannot be looked up.
    pub(crate) fn log_refused(&self, error: &StateError) {
        if let Some(suppressed) = self.unclaimed.allow() {
            tracing::warn!(%error, suppressed, "a request with an Idempotency-Key is refused: its key cannot be looked up");
        }
    }

    /// Claims a key for a request, unless another request has claimed it. Waits while the log elects a leader.
    ///
    /// # Errors
    /// When the log is unavailable until the deadline; then the request must not be executed.
    pub(crate) async fn claim(
        &self,
        key: &str,
        claim: &Claim,
        deadline: Duration,
    ) -> Result<KeyState, StateError> {
        if let Some(key_state) = self.key_state(key, claim) {
            return Ok(key_state);
        }
        self.view.check_read()?;
        let claimed = body::write(&Event::Claimed(claim.clone()));
        let until = Instant::now() + deadline.min(ATTENDED);
        for _ in 0..CLAIMS {
            let left = until.saturating_duration_since(Instant::now());
            let claimed = Some(claimed.clone());
            self.view.commit_again(key, claimed, left).await?;
            if let Some(state) = self.key_state(key, claim) {
                return Ok(state);
            }
            // An earlier claim of the key came first, and was released after this one.
        }
        Ok(KeyState::Forgotten)
    }

    /// The state of a key for a request; `None` if it is not claimed.
    pub(crate) fn key_state(&self, key: &str, claim: &Claim) -> Option<KeyState> {
        let now = clock::milliseconds(clock::now());
        self.view.read(|entries| {
            let Some(claimed) = claimed(entries, key) else {
                return entries.is_forgotten(key).then_some(KeyState::Forgotten);
            };
            let call = &claimed.claim.call;
            let is_recorded_elsewhere =
                followed(entries, call).is_some_and(FollowedCall::is_recorded_elsewhere);
            let recorded = call.parse().ok().filter(|_| is_recorded_elsewhere);
            Some(key_state(claimed, recorded, claim, now))
        })
    }

    /// The state of a key for a request, after all records that other replicas have written so far.
    ///
    /// # Errors
    /// When the log is not read in time.
    pub(crate) async fn latest_state(
        &self,
        key: &str,
        claim: &Claim,
    ) -> Result<Option<KeyState>, StateError> {
        self.view.latest(LATEST).await?;
        Ok(self.key_state(key, claim))
    }

    /// Runs `work`, and renews its claim until it ends.
    pub(crate) async fn renewing<T>(
        &self,
        key: &str,
        call: &Text,
        work: impl Future<Output = T>,
    ) -> T {
        tokio::select! {
            done = work => done,
            never = self.renew(key, call) => match never {},
        }
    }

    async fn renew(&self, key: &str, call: &Text) -> Infallible {
        loop {
            sleep(RENEWAL).await;
            self.renew_once(key, call).await;
        }
    }

    async fn renew_once(&self, key: &str, call: &Text) {
        let renewed = Event::Renewed { call: call.clone() };
        if let Err(error) = self.append(key, &renewed, UNATTENDED).await
            && let Some(suppressed) = self.unrenewed.allow()
        {
            tracing::warn!(%call, %error, suppressed, "the claim of an idempotency key was not renewed: if this lasts for 20 s or more, another replica may report the answer as lost");
        }
    }

    /// Renews the claim of another replica's call, because the agent is still sending parts and that replica may have
    /// stopped.
    fn renew_for(self: &Arc<Self>, key: &Text, call: CallId) {
        let (results, key, call) = (Arc::clone(self), key.clone(), Text::from(call.to_string()));
        self.feeds
            .spawn(async move { results.renew_once(&key, &call).await });
    }

    /// Waits in the background as [`Results::until_settled`] does, so that an answer counts as lost in time even if
    /// every client that asks for it waits only for a moment.
    pub(crate) fn watch_over(self: &Arc<Self>, key: &str, call: &Text) {
        let mut watched = self.watched();
        if watched.contains(call.as_str()) {
            return;
        }
        if watched.len() >= MAX_WATCHED {
            drop(watched);
            if let Some(suppressed) = self.unwatched.allow() {
                tracing::warn!(%call, max = MAX_WATCHED, suppressed, "too many idempotency keys are watched: if the replica of this call stops, its key answers 409 until a client sends the request again");
            }
            return;
        }
        watched.insert(call.to_string());
        let (results, key, call) = (Arc::clone(self), key.to_owned(), call.clone());
        self.feeds.spawn(async move {
            results.until_settled(&key, &call).await;
            results.watched().remove(call.as_str());
        });
    }

    fn watched(&self) -> MutexGuard<'_, HashSet<String>> {
        lock(&self.watched)
    }

    /// Waits until the call that claimed a key has answered or released it, or until another replica has recorded its
    /// answer. If no replica renews the claim any more, and the agent has been silent for longer than it may be, the
    /// answer is recorded as lost; at once if the process that claimed the key has certainly ended.
    pub(crate) async fn until_settled(&self, key: &str, call: &Text) {
        let longest_silence = |entries: &Entries<Entry>| {
            let (_, followed) = running(entries, key, call)?;
            Some(followed.map_or(Duration::ZERO, |call| call.opened.wait_for_part()))
        };
        self.give_up_left(key, call).await;
        let call_key = call_key(call);
        loop {
            let (_, mut recorded) = self.view.follow(Some(&call_key), BEHIND, |_| ());
            let (wait, mut claim) = self.view.follow(Some(key), BEHIND, longest_silence);
            let Some(wait) = wait else {
                return;
            };
            let next = tokio::select! {
                next = claim.next() => next,
                next = recorded.next() => next,
                () = sleep(SILENCE.max(wait)) => {
                    // If the log cannot be read, the replica may not have been able to renew its claim.
                    if self.view.latest(LATEST).await.is_err() {
                        continue;
                    }
                    tokio::select! {
                        next = claim.next() => next,
                        next = recorded.next() => next,
                        () = sleep(SILENCE) => {
                            self.give_up(key, call).await;
                            continue;
                        }
                    }
                }
            };
            if matches!(next, Ok(None)) {
                return;
            }
        }
    }

    /// Gives up a key that an earlier process has claimed and not answered, if only this process uses the log.
    async fn give_up_left(&self, key: &str, call: &Text) {
        let Some(opened_at) = &self.opened_at else {
            return;
        };
        let is_left = || {
            self.view.read(|entries| {
                let running = running(entries, key, call);
                running.is_some_and(|(claimed, _)| opened_at.has_passed(claimed.at))
            })
        };
        // This process may not have read all records of the earlier one.
        if is_left() && self.view.latest(LATEST).await.is_ok() && is_left() {
            self.give_up(key, call).await;
        }
    }

    /// Whether the request with this key was answered.
    fn is_settled(&self, key: &str) -> bool {
        self.view
            .read(|entries| claimed(entries, key).is_none_or(|claimed| claimed.outcome.is_some()))
    }

    /// Stores the answer to a claimed request. If the log refuses it, it is not stored.
    pub(crate) async fn keep(&self, key: &str, call: &Text, response: StoredResponse) {
        let answered = Event::Answered {
            call: call.clone(),
            response,
        };
        let answered = Some(body::write(&answered));
        match self.view.append_again(key, answered, UNATTENDED).await {
            // Once this replica has read it, repeated requests get it here too.
            Ok(position) => drop(self.view.applied(position, ATTENDED).await),
            Err(error) => {
                self.report(call, &error);
                self.give_up(key, call).await;
            }
        }
    }

    /// Stores the answer to a claimed request, or releases the key if there is none. Returns once that is done, or if
    /// it takes long: a log that does not answer must not hold up the answer.
    pub(crate) async fn keep_in_background(
        self: &Arc<Self>,
        key: &str,
        call: &Text,
        response: Option<StoredResponse>,
    ) {
        let (results, key, call) = (Arc::clone(self), key.to_owned(), call.clone());
        let (done, is_done) = oneshot::channel();
        self.spawn(async move {
            match response {
                Some(response) => results.keep(&key, &call, response).await,
                None => results.release(&key, &call).await,
            }
            // The caller may have left.
            let _: Result<(), ()> = done.send(());
        });
        let _: Result<_, _> = timeout(STORED, is_done).await;
    }

    /// Records that the answer to a claimed request is not stored.
    pub(crate) async fn give_up(&self, key: &str, call: &Text) {
        let call = call.clone();
        self.note(key, Event::Unkept { call }).await;
    }

    /// Releases a key, because no agent can have received its request.
    pub(crate) async fn release(&self, key: &str, call: &Text) {
        let call = call.clone();
        self.note(key, Event::Released { call }).await;
    }

    async fn note(&self, key: &str, event: Event) {
        let appended = self
            .view
            .append_again(key, Some(body::write(&event)), UNATTENDED);
        let Err(error) = appended.await else {
            return;
        };
        match &event {
            Event::Released { call } => {
                if let Some(suppressed) = self.unrenewed.allow() {
                    tracing::warn!(%call, %error, suppressed, "the release of an idempotency key was not stored: the key answers 409 for up to 20 s, then 504");
                }
            }
            Event::Unkept { call } => self.report(call, &error),
            _ => {}
        }
    }

    async fn append(&self, key: &str, event: &Event, deadline: Duration) -> Result<(), StateError> {
        let event = Some(body::write(event));
        let appended = self.view.append_within(key, event, deadline);
        appended.await.map(drop)
    }

    fn report(&self, call: &Text, error: &StateError) {
        if let Some(suppressed) = self.lost.allow() {
            tracing::error!(
                %call, %error, suppressed,
                "an answer was not stored: if the same request comes again, it gets an error"
            );
        }
    }

    /// Whether other replicas share this log.
    pub(crate) fn is_shared(&self) -> bool {
        self.opened_at.is_none()
    }

    /// Records a call before it is published, so that other replicas can follow its answer. Returns whether that
    /// succeeded; the call continues either way.
    pub(crate) async fn open_call(&self, call: CallId, opened: OpenedCall) -> bool {
        let event = Event::Opened(Box::new(opened));
        let key = call_key(&call.to_string());
        let Err(error) = self.append(&key, &event, OPENED).await else {
            return true;
        };
        if let Some(suppressed) = self.unfollowed.allow() {
            tracing::warn!(%call, %error, suppressed, "a call was not recorded: if this replica stops or loses the bus, no other replica can receive its answer");
        }
        false
    }

    /// A recorded call, and the position of its record.
    fn opened(&self, call: CallId) -> Option<(Arc<OpenedCall>, Position)> {
        let call = call.to_string();
        self.view.read(|entries| {
            let followed = followed(entries, &call)?;
            Some((Arc::clone(&followed.opened), followed.at))
        })
    }

    /// Whether the answer to a recorded call is a single message.
    fn has_one_part(&self, call: CallId) -> bool {
        let opened = self.opened(call);
        opened.is_some_and(|(opened, _)| opened.has_one_part())
    }

    /// The latest deadline of the recorded calls of each of these tasks, in milliseconds since 1970. A task whose last
    /// call is not recorded has none, because that call may have a later deadline. No task has one if the log is not
    /// read in time.
    pub(crate) async fn deadlines(&self, tasks: &HashMap<Text, Unfinished>) -> HashMap<Text, u64> {
        // A call is recorded before its message becomes part of its task.
        if self.view.latest(LATEST).await.is_err() {
            return HashMap::new();
        }
        let mut deadlines: HashMap<Text, u64> = HashMap::new();
        self.view.read(|entries| {
            for call in entries.iter().filter_map(|(_, entry)| entry.call()) {
                let id = call.opened.task.as_ref();
                if let Some((id, task)) = id.and_then(|id| tasks.get_key_value(id)) {
                    let deadline = deadlines.entry(id.clone()).or_default();
                    *deadline = call.opened.deadline_after(task.last_record).max(*deadline);
                }
            }
            deadlines.retain(|id, _| {
                let task = tasks.get(id);
                task.is_some_and(|task| followed(entries, &task.last_call).is_some())
            });
        });
        deadlines
    }

    /// The end of the log.
    async fn end(&self) -> Result<Cursor, StateError> {
        self.view.end().await
    }

    async fn record_part(
        &self,
        call: CallId,
        index: usize,
        part: RecordedPart,
        deadline: Duration,
    ) -> Result<(), StateError> {
        let event = Event::Part { index, part };
        self.append(&call_key(&call.to_string()), &event, deadline)
            .await
    }

    /// The answer to a call of another replica after its first `consumed` parts: the recorded parts, then new ones as
    /// they are recorded. `retry` is the request that gets it, if there is one.
    pub(crate) fn resume(
        self: &Arc<Self>,
        calls: &Arc<Calls>,
        call: CallId,
        consumed: usize,
        retry: Option<Retry>,
    ) -> Box<Answer> {
        let opened = self.opened(call);
        let (agent, timeouts) = opened.map_or_else(Default::default, |(opened, _)| {
            let timeouts = (opened.wait_for_part(), opened.time_left());
            (opened.agent.clone(), timeouts)
        });
        let messages = self.messages(calls, call, consumed);
        calls.resume(call, agent, timeouts, consumed, messages, retry)
    }

    /// What a task's call of this replica receives instead of its answer once it has lost the bus: the parts that other
    /// replicas record. Of a message without a key they record nothing until its task exists: `has_task`, or the agent
    /// has sent a part.
    pub(crate) fn recorded_elsewhere(
        self: &Arc<Self>,
        calls: &Arc<Calls>,
        call: CallId,
        has_task: bool,
    ) -> Box<RecordedParts> {
        let (results, calls) = (Arc::clone(self), Arc::clone(calls));
        Box::new(move |consumed| {
            let (opened, _) = results.opened(call)?;
            let is_recorded = opened.key.is_some() || has_task || consumed > 0;
            let is_recorded = is_recorded && opened.task.is_some();
            let consumed = usize::try_from(consumed).unwrap_or(usize::MAX);
            is_recorded.then(|| results.messages(&calls, call, consumed))
        })
    }

    /// The recorded parts of the answer to a call after its first `consumed`, then new ones as they are recorded.
    /// `made` converts each part for its receiver.
    pub(crate) fn replay<T: Send + 'static>(
        self: &Arc<Self>,
        call: CallId,
        consumed: usize,
        made: fn(Result<RecordedPart, CallError>) -> T,
    ) -> mpsc::Receiver<T> {
        self.replay_until(call, consumed, made, pending())
    }

    /// The same for a call of this process, which ends with the drain.
    fn messages(
        self: &Arc<Self>,
        calls: &Arc<Calls>,
        call: CallId,
        consumed: usize,
    ) -> mpsc::Receiver<Box<CallerMessage>> {
        let calls = Arc::clone(calls);
        let given_up = async move { calls.given_up().await };
        self.replay_until(call, consumed, as_message, given_up)
    }

    /// The same until `given_up`: then the receiver gets [`CallError::Draining`].
    pub(crate) fn replay_until<T: Send + 'static>(
        self: &Arc<Self>,
        call: CallId,
        consumed: usize,
        made: fn(Result<RecordedPart, CallError>) -> T,
        given_up: impl Future<Output = ()> + Send + 'static,
    ) -> mpsc::Receiver<T> {
        let (parts, receiver) = mpsc::channel(BEHIND);
        let results = Arc::clone(self);
        self.feeds.spawn(async move {
            tokio::select! {
                () = results.feed(call, consumed, &parts, made) => {}
                () = parts.closed() => {}
                () = given_up => drop(parts.send(made(Err(CallError::Draining))).await),
            }
        });
        receiver
    }

    /// A call whose answer the client with this log key (of a session, or of the call) can resume once it has
    /// `received` this many parts. A part is recorded before the client gets it.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub(crate) async fn lasting(
        &self,
        call: CallId,
        received: usize,
        session: &str,
    ) -> Result<Option<Arc<OpenedCall>>, StateError> {
        let name = call.to_string();
        let recorded = || {
            self.view.read(|entries| {
                let call = followed(entries, &name).filter(|call| call.has(received))?;
                Some(Arc::clone(&call.opened))
            })
        };
        let opened = match recorded() {
            Some(opened) => Some(opened),
            None => {
                // Another replica may have just recorded it.
                self.view.latest(LATEST).await?;
                recorded()
            }
        };
        Ok(opened.filter(|opened| opened.session.as_deref() == Some(session)))
    }

    /// Whether no other replica has the answer to a call, which is pending here or recorded to its end.
    pub(crate) fn has_alone(&self, call: CallId, is_pending: bool) -> bool {
        !self.is_shared() && (is_pending || self.has_ended(call))
    }

    /// Whether the answer to a call is recorded to its end.
    pub(crate) fn has_ended(&self, call: CallId) -> bool {
        self.parts_of(call) == usize::MAX
    }

    /// How many consecutive parts of the answer to a call are recorded, from the first.
    fn parts_of(&self, call: CallId) -> usize {
        let call = call.to_string();
        self.view
            .read(|entries| followed(entries, &call).map_or(0, FollowedCall::count))
    }

    /// Records a part for a client that may reconnect. Returns whether it is recorded.
    pub(crate) async fn keep_part(&self, call: CallId, index: usize, part: RecordedPart) -> bool {
        let recorded = self.record_part(call, index, part, PART).await;
        if let Err(error) = &recorded
            && let Some(suppressed) = self.unfollowed.allow()
        {
            tracing::warn!(%call, %error, suppressed, "a part of an answer was not recorded: its client cannot get the rest from the log");
        }
        recorded.is_ok()
    }

    /// Records for all replicas that a session, or a request of a session, is over. Returns when this replica has read
    /// the record.
    ///
    /// # Errors
    /// When it is not stored.
    pub(crate) async fn note_over(&self, key: &str) -> Result<(), StateError> {
        let over = body::write(&Event::Over);
        self.view
            .commit_again(key, Some(over), ATTENDED)
            .await
            .map(drop)
    }

    /// Passes the answer of an MCP client on to the replica of its call.
    ///
    /// # Errors
    /// When it is not stored.
    pub(crate) async fn pass_client_answer(&self, answer: PassedAnswer) -> Result<(), StateError> {
        // A key for each answer: an entry of an earlier one may have been forgotten, and then takes no records.
        let digest = digest_of([&answer.body[..]]);
        let key = format!("{CLIENT_ANSWER}{}-{digest}", answer.call);
        let event = Event::ClientAnswer {
            token: answer.token,
            session: answer.session,
            body: String::from_utf8_lossy(&answer.body).into_owned().into(),
        };
        self.append(&key, &event, ATTENDED).await
    }

    /// Passes a message for an attached agent on to the other bridges that have the server.
    ///
    /// # Errors
    /// When it is not stored.
    pub(crate) async fn pass_to_agent(&self, agent: &Text, body: &[u8]) -> Result<(), StateError> {
        let key = format!("{FOR_AGENT}{}", clock::new_event_id());
        let event = Event::ForAgent {
            agent: agent.clone(),
            body: String::from_utf8_lossy(body).into_owned().into(),
        };
        self.append(&key, &event, ATTENDED).await
    }

    /// Whether a session or request is recorded as over.
    pub(crate) fn is_over(&self, key: &str) -> bool {
        self.view.read(|entries| is_over(entries, key))
    }

    /// Follows all records that are stored from now on.
    pub(crate) async fn follow_new(&self) -> Following {
        // If the log cannot be read now, there is nothing that would be taken for new.
        drop(self.view.caught_up().await);
        self.follow_all()
    }

    /// Follows all records from now on.
    pub(crate) fn follow_all(&self) -> Following {
        self.view.follow(None, CROWD, |_| ()).1
    }

    /// Delivers the parts of an answer as they are recorded, up to the last.
    async fn feed<T>(
        &self,
        call: CallId,
        mut next: usize,
        receiver: &mpsc::Sender<T>,
        made: fn(Result<RecordedPart, CallError>) -> T,
    ) {
        let call = call.to_string();
        let key = call_key(&call);
        loop {
            let (parts, mut following) = self.view.follow(Some(&key), BEHIND, |entries| {
                let call = followed(entries, &call)?;
                Some((call.parts_from(next), call.ends_before(next)))
            });
            let Some((parts, is_over)) = parts else {
                let why = CallError::BadAnswer(Text::from_static("it is no longer stored"));
                return drop(receiver.send(made(Err(why))).await);
            };
            for part in parts {
                let last = part.last;
                if receiver.send(made(Ok(part))).await.is_err() || last {
                    return;
                }
                next += 1;
            }
            if is_over {
                return;
            }
            if matches!(following.next().await, Ok(None)) {
                return drop(receiver.send(made(Err(CallError::Draining))).await);
            }
        }
    }

    /// Hands answers that other replicas have recorded to the callers of this replica, which may have lost the bus of
    /// the agent. Runs until the log ends.
    pub(crate) async fn deliver_recorded(self: Arc<Self>, calls: Arc<Calls>) {
        let mut following = self.follow_new().await;
        loop {
            match following.next().await {
                Ok(Some(record)) => {
                    // The parts of a longer answer may arrive here after the outage.
                    let is_wanted = |call| calls.outlives_outage(call) && self.has_one_part(call);
                    if let Some((call, part)) = recorded_part_in(&record, is_wanted)
                        && calls.take_recorded(call, part)
                        && let Some(suppressed) = self.received.allow()
                    {
                        tracing::info!(%call, suppressed, "another replica has received the answer to a call");
                    }
                }
                Ok(None) => return,
                Err(Lagged) => {
                    tracing::warn!(
                        "callers whose answers other replicas have received may wait until their deadlines: the log was read too slowly"
                    );
                    following = self.follow_new().await;
                }
            }
        }
    }

    /// Runs a task that continues when its caller disconnects, and drops the handle.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.work.spawn(work)
    }

    /// Waits until everything claimed by this process is answered and stored.
    pub(crate) async fn until_kept(&self) {
        self.work.close();
        self.work.wait().await;
    }
}

/// The answer of an MCP client in a record, if it is for a call that `is_ours`.
pub(crate) fn client_answer_in(
    record: &Record,
    is_ours: impl Fn(CallId) -> bool,
) -> Option<PassedAnswer> {
    let (call, _) = record.key.strip_prefix(CLIENT_ANSWER)?.split_once('-')?;
    let call = call.parse().ok().filter(|call| is_ours(*call))?;
    match body::read(record)? {
        Event::ClientAnswer {
            token,
            session,
            body,
        } => Some(PassedAnswer {
            call,
            token,
            session,
            body: Bytes::copy_from_slice(body.as_bytes()),
        }),
        _ => None,
    }
}

/// The last part of the answer to a call in a record, if `is_wanted`.
fn recorded_part_in(record: &Record, is_wanted: impl Fn(CallId) -> bool) -> Option<(CallId, Part)> {
    let call = record.key.strip_prefix(CALL)?.parse().ok();
    let call = call.filter(|call| is_wanted(*call))?;
    match body::read(record)? {
        Event::Part { part, .. } if part.last => Some((call, part.into())),
        _ => None,
    }
}

/// The message for this attached agent in a record, if there is one.
pub(crate) fn message_for_agent(record: &Record, agent: &str) -> Option<Bytes> {
    if !record.key.starts_with(FOR_AGENT) {
        return None;
    }
    match body::read(record)? {
        Event::ForAgent { agent: of, body } if *of == *agent => {
            Some(Bytes::copy_from_slice(body.as_bytes()))
        }
        _ => None,
    }
}

/// What a record says about resources.
pub(crate) fn resource_event_in(record: &Record) -> Option<ResourceEvent> {
    if !record.key.starts_with(SUBSCRIPTION) && !record.key.starts_with(RESOURCE) {
        return None;
    }
    match body::read(record)? {
        Event::Subscribed(subscription) => Some(ResourceEvent::Subscribed(subscription)),
        Event::Unsubscribed(subscription) => Some(ResourceEvent::Unsubscribed(subscription)),
        Event::Updated { agent, uri } => Some(ResourceEvent::Updated { agent, uri }),
        _ => None,
    }
}

fn as_message(recorded: Result<RecordedPart, CallError>) -> Box<CallerMessage> {
    Box::new(CallerMessage::Part(recorded.map(Part::from), None))
}

/// The key of a call in the log.
fn call_key(call: &str) -> String {
    format!("{CALL}{call}")
}

fn claimed<'a>(entries: &'a Entries<Entry>, key: &str) -> Option<&'a ClaimedKey> {
    match entries.get(key)? {
        Entry::Key(claimed) => Some(claimed),
        Entry::Call(_) | Entry::Subscribed(_) | Entry::Over | Entry::Passed => None,
    }
}

/// Whether a session or request is recorded as over. Its entry may have been removed for lack of room.
fn is_over(entries: &Entries<Entry>, key: &str) -> bool {
    matches!(entries.get(key), Some(Entry::Over)) || entries.is_forgotten(key)
}

fn followed<'a>(entries: &'a Entries<Entry>, call: &str) -> Option<&'a FollowedCall> {
    entries.get(&call_key(call))?.call()
}

/// The claim of this call on a key, and the record of the call, until it has an outcome or a part of its answer is
/// recorded.
fn running<'a>(
    entries: &'a Entries<Entry>,
    key: &str,
    call: &str,
) -> Option<(&'a ClaimedKey, Option<&'a FollowedCall>)> {
    let claimed = claimed(entries, key).filter(|claimed| claimed.is_open(call))?;
    let followed = followed(entries, call);
    let is_recorded = followed.is_some_and(FollowedCall::is_recorded_elsewhere);
    (!is_recorded).then_some((claimed, followed))
}

fn key_state(claimed: &ClaimedKey, recorded: Option<CallId>, claim: &Claim, now: u64) -> KeyState {
    let ClaimedKey { claim: first, .. } = claimed;
    if first.digest != claim.digest {
        return KeyState::Differs(first.call.clone());
    }
    match &claimed.outcome {
        Some(ClaimOutcome::Answered(stored)) => KeyState::Answered(Arc::clone(stored)),
        Some(ClaimOutcome::Unkept) => KeyState::Lost(first.call.clone()),
        None if first.call == claim.call => KeyState::Ours,
        None => match recorded {
            Some(call) => KeyState::RecordedElsewhere(call),
            None if first.until < now => KeyState::Lost(first.call.clone()),
            None => KeyState::Running(first.call.clone()),
        },
    }
}

/// The key of a request in the log, from its caller and the caller's own key.
pub(crate) fn key_of(caller: &str, key: &str) -> String {
    format!("key-{}", digest_of([caller.as_bytes(), key.as_bytes()]))
}

/// The hash of several texts.
pub(crate) fn digest_of<const N: usize>(texts: [&[u8]; N]) -> Text {
    let mut hash = Sha256::new();
    for text in texts {
        // Each text is prefixed with its length, so different lists never have the same input.
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    let bytes = hash.finalize();
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    Text::from(digits.collect::<String>())
}

#[cfg(test)]
mod tests;
