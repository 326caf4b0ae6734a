//! Calls webhooks: one task makes all webhook calls of this replica.
//!
//! ```text
//! an event of a task, a new webhook, or time ──> due ──> claim ──> POST ──> done │ again later │ given up
//! ```
//!
//! Each webhook gets the events of its task in order, one at a time. A failed delivery is retried with growing pauses
//! until it is dropped; then the next event is tried. If this replica stops, another one takes over, so a webhook may
//! see the last event twice.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt;
use std::future::pending;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use a2abus_executor::{HttpClient, HttpError, HttpRequest};
use a2abus_models::a2e_workflow::operation::Method;
use a2abus_models::a2e_workflow::target::Target;
use a2abus_plugin::Text;
use a2abus_plugin::protocol::dialect::Dialect;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::Level;

use super::bodies::{Bodies, Call, NoRoom, Room};
use super::webhooks::PushSettings;
use crate::log_limit::{LogLimit, LogLimits};
use crate::metrics::{Metrics, PushOutcome};
use crate::shares::{Share, Shares};
use crate::state::{Lagged, Position};
use crate::tasks::Tasks;
use crate::tasks::push::{RENEW, StoredWebhook, is_set};
use crate::tasks::write::WriteContext;

/// The task that calls webhooks.
pub(crate) struct Deliveries {
    pub(crate) push: Arc<PushSettings>,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) client: Arc<dyn HttpClient>,
    pub(crate) metrics: Arc<Metrics>,
    /// The time limit of one call.
    pub(crate) timeout: Duration,
    /// How long a delivery is retried.
    pub(crate) give_up_after: Duration,
    bodies: Bodies,
    retried: LogLimit,
    dropped: LogLimit,
    postponed: LogLimit,
}

/// The result of one delivery step.
struct DeliveryStep {
    key: Text,
    outcome: DeliveryResult,
    /// Its host's share of the calls.
    share: Share<String>,
}

enum DeliveryResult {
    /// There is nothing to deliver.
    Idle,
    /// There may be more.
    Done,
    /// It is not time yet.
    Wait,
    /// There is no memory for its body now.
    NoRoom,
    /// It failed. A retry may succeed, after the pause that the receiver asks for.
    Failed(Option<Duration>),
    /// The log failed: nothing is known about the webhook.
    NotStored,
}

/// A delivery that has failed.
#[derive(Debug, Clone, Copy)]
struct FailedDelivery {
    /// When the webhook itself failed first; `None` if it was not called.
    since: Option<Instant>,
    times: u32,
    next: Instant,
}

/// The schedule of deliveries.
struct DeliverySchedule {
    due: BTreeSet<(Instant, Text)>,
    /// Webhooks in `due` because of an event: each is due once, not once for each event.
    added: HashSet<Text>,
    in_progress: HashMap<Text, RunningStep>,
    failing: HashMap<Text, FailedDelivery>,
    /// Webhooks whose retry waits because too many others are being retried, the longest due first. Meanwhile they are
    /// also in `due`, to renew their claims.
    held_back: BTreeSet<(Instant, Text)>,
    /// Calls to each host.
    hosts: Arc<Shares<String>>,
    /// Webhooks that wait because their host is at its limit of calls, each with this host.
    waiting: HashMap<Text, String>,
    /// The same by host, in order. A queue may still contain webhooks that have begun since, or that now wait for
    /// another host.
    queues: HashMap<String, VecDeque<Text>>,
}

/// What is known about the step of a webhook while it runs.
#[derive(Debug, Default)]
struct RunningStep {
    /// Whether it only renews the claim.
    only_renews: bool,
    /// Whether there are new events since it began.
    has_news: bool,
    /// Whether the webhook was set again since it began.
    was_set: bool,
}

/// Why a call has failed.
enum Refused {
    /// A retry may succeed, after the pause that the receiver asks for.
    ForNow(String, Option<Duration>),
    /// A retry would fail again.
    ForGood(String),
}

type RunningCalls<'a> = FuturesUnordered<BoxFuture<'a, DeliveryStep>>;

/// Maximum number of concurrent calls: in total, to webhooks whose last call failed, and to one host. Without these
/// limits, webhooks that hang would take all calls, and the webhooks of other clients would wait.
const MAX_CALLS: usize = 64;
const MAX_RETRIES: usize = MAX_CALLS / 2;
/// Maximum number of concurrent steps that only renew the claim of a webhook whose last call failed.
const MAX_RENEWALS: usize = MAX_CALLS / 4;
const MAX_PER_HOST: usize = 8;
/// The first and the longest pause between attempts.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How long a step that may not begin yet waits: for another renewal to end, or for room for its body.
const POSTPONED: Duration = Duration::from_secs(1);
/// How often to look for webhooks whose owner has stopped.
const CHECK_INTERVAL: Duration = Duration::from_secs(20);
/// The header with which a receiver asks for a pause. The client returns the names of headers in lower case.
const RETRY_AFTER: &str = "retry-after";
/// The header by which a client recognises calls that it has requested.
const TOKEN: &str = "X-A2A-Notification-Token";

// === impl Deliveries ===

impl fmt::Debug for Deliveries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deliveries").finish_non_exhaustive()
    }
}

impl Deliveries {
    /// The deliveries of one bridge.
    pub(crate) fn new(
        (push, tasks): (Arc<PushSettings>, Arc<Tasks>),
        client: Arc<dyn HttpClient>,
        metrics: &Arc<Metrics>,
        log: &LogLimits,
        (timeout, give_up_after): (Duration, Duration),
    ) -> Self {
        Self {
            push,
            tasks,
            client,
            metrics: Arc::clone(metrics),
            timeout,
            give_up_after,
            bodies: Bodies::default(),
            retried: log.limit(
                Level::WARN,
                "more push notifications failed and will be retried",
            ),
            // Clients choose the receivers, so this needs no operator.
            dropped: log.limit(Level::WARN, "more push notifications were dropped"),
            postponed: log.limit(Level::WARN, "more push notifications wait for memory"),
        }
    }

    /// Runs until the bridge stops, then releases its webhooks so that other replicas continue at once.
    pub(crate) async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.deliver()).await;
        self.push.webhooks.release().await;
    }

    async fn deliver(&self) {
        let mut schedule = DeliverySchedule::default();
        let mut calls = RunningCalls::new();
        let mut checks = interval(CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut events = self.tasks.follow_all();
            let mut webhooks = self.push.webhooks.follow();
            schedule.add(self.keys_with_news());
            loop {
                schedule.start(self, &mut calls);
                let in_progress = calls.len();
                tokio::select! {
                    event = events.next() => match event {
                        Ok(Some(record)) => schedule.add(self.push.webhooks.keys_of(&record.key)),
                        Ok(None) => return,
                        Err(Lagged) => break,
                    },
                    webhook = webhooks.next() => match webhook {
                        Ok(Some(record)) if is_set(&record) => schedule.set(record.key),
                        Ok(Some(_)) => {}
                        Ok(None) => return,
                        Err(Lagged) => break,
                    },
                    _ = checks.tick() => {
                        schedule.use_free_slots(|key| self.host_of(key));
                        schedule.add(self.keys_with_news());
                    }
                    Some(finished) = calls.next() => {
                        schedule.finish(finished, |key| self.host_of(key));
                    }
                    () = schedule.next_due(in_progress) => {}
                }
            }
        }
    }

    /// The webhooks with undelivered events.
    fn keys_with_news(&self) -> Vec<Text> {
        let unfinished = self.push.webhooks.unfinished().into_iter();
        let with_news = unfinished.filter(|(_, task, reached)| self.has_news(task, *reached));
        with_news.map(|(key, ..)| key).collect()
    }

    /// Whether there are undelivered events for an unfinished webhook of this task that has reached this event. They
    /// may be lost with their task: the webhook has not received the last one.
    fn has_news(&self, task: &Text, reached: Position) -> bool {
        self.tasks.has_news(task, reached) || self.tasks.is_forgotten(task)
    }

    /// One step for a webhook: its next event, if this replica may deliver it; or if `only_renews` is set, the renewal
    /// of its claim.
    async fn step(
        &self,
        key: Text,
        (failing, only_renews): (Option<FailedDelivery>, bool),
        share: Share<String>,
    ) -> DeliveryStep {
        let outcome = self.try_step(&key, failing, only_renews).await;
        DeliveryStep {
            key,
            outcome,
            share,
        }
    }

    /// The host of a webhook, which shares a limit of calls.
    fn host_of(&self, key: &Text) -> String {
        let stored = self.push.webhooks.stored(key);
        let target = stored.and_then(|stored| Target::parse(&stored.webhook.url).ok());
        let host = target.as_ref().and_then(Target::host);
        host.unwrap_or_default().to_owned()
    }

    async fn try_step(
        &self,
        key: &Text,
        failing: Option<FailedDelivery>,
        only_renews: bool,
    ) -> DeliveryResult {
        let webhooks = &self.push.webhooks;
        let has_news = |it: &StoredWebhook| !it.is_over && self.has_news(&it.task, it.reached);
        if !webhooks.stored(key).is_some_and(|stored| has_news(&stored)) {
            return DeliveryResult::Idle;
        }
        match webhooks.claim(key).await {
            Ok(true) => {}
            Ok(false) => return DeliveryResult::Idle,
            Err(error) => {
                tracing::warn!(webhook = %key.escape_debug(), %error, "a webhook could not be claimed: trying again");
                return DeliveryResult::NotStored;
            }
        }
        // Only the claim shows which events another replica has delivered.
        let Some(stored) = webhooks.stored(key).filter(|stored| !stored.is_over) else {
            return DeliveryResult::Idle;
        };
        if self.tasks.is_forgotten(&stored.task) {
            return self.lost(key, stored.reached).await;
        }
        if only_renews {
            return DeliveryResult::Wait;
        }
        let call = match self.next_call(key, &stored) {
            Ok(Some(call)) => call,
            Ok(None) => return DeliveryResult::Idle,
            Err(NoRoom) => return self.postpone(key),
        };
        let outcome = match self.send(&stored, call.body.clone()).await {
            Ok(()) => PushOutcome::Delivered,
            Err(refused) => {
                let since = failing.and_then(|failing| failing.since);
                let since = since.map_or(Duration::ZERO, |since| since.elapsed());
                let is_over = since >= self.give_up_after;
                match self.refused((key, call.reached), refused, is_over) {
                    Some(retried) => return retried,
                    None => PushOutcome::Dropped,
                }
            }
        };
        self.done(key, (call.reached, call.last), outcome).await
    }

    /// Reports that a call failed. Returns `None` if it is not retried: because `is_over`, or because it would fail
    /// again.
    fn refused(
        &self,
        (key, event): (&Text, Position),
        refused: Refused,
        is_over: bool,
    ) -> Option<DeliveryResult> {
        let host = self.host_of(key);
        let why = match refused {
            Refused::ForNow(why, pause) if !is_over => {
                self.metrics.push_delivery(PushOutcome::Retried);
                if let Some(suppressed) = self.retried.allow() {
                    tracing::warn!(webhook = %key.escape_debug(), %host, why, suppressed, "a push notification failed and will be retried");
                }
                return Some(DeliveryResult::Failed(pause));
            }
            Refused::ForNow(why, _) | Refused::ForGood(why) => why,
        };
        if let Some(suppressed) = self.dropped.allow() {
            tracing::warn!(webhook = %key.escape_debug(), %host, %event, why, suppressed, "a push notification was dropped");
        }
        None
    }

    /// Reports that a call waits for memory.
    fn postpone(&self, key: &Text) -> DeliveryResult {
        self.metrics.push_delivery(PushOutcome::Postponed);
        if let Some(suppressed) = self.postponed.allow() {
            tracing::warn!(webhook = %key.escape_debug(), suppressed, "a push notification waits, because others use the memory for large bodies");
        }
        DeliveryResult::NoRoom
    }

    /// Gives up a webhook whose task was removed. The webhook has reached this event, which was not the last one.
    async fn lost(&self, key: &Text, reached: Position) -> DeliveryResult {
        if let Some(suppressed) = self.dropped.allow() {
            tracing::warn!(webhook = %key.escape_debug(), after = %reached, suppressed, "push notifications were dropped: their task was removed, because the memory for tasks is full (state.memory)");
        }
        self.done(key, (reached, true), PushOutcome::Dropped).await
    }

    /// Records that an event was delivered or dropped, and whether it was the last one.
    async fn done(
        &self,
        key: &Text,
        (reached, last): (Position, bool),
        outcome: PushOutcome,
    ) -> DeliveryResult {
        match self.push.webhooks.done(key, reached, last).await {
            Ok(()) => {
                self.metrics.push_delivery(outcome);
                DeliveryResult::Done
            }
            Err(error) => {
                tracing::warn!(webhook = %key.escape_debug(), %error, "a delivery could not be recorded: it is repeated");
                DeliveryResult::NotStored
            }
        }
    }

    /// The next event for a webhook, if there is one and memory for it.
    fn next_call(&self, key: &Text, stored: &StoredWebhook) -> Result<Option<Arc<Call>>, NoRoom> {
        let (id, reached) = (&stored.task, stored.reached);
        if stored.webhook.is_1_0
            && let Some((context, step, last)) = self.tasks.step_after(id, reached)
        {
            let of = WriteContext {
                dialect: Dialect::A2a10,
                task: Some(id),
                context: Some(&context),
            };
            // Only the JAF document needs the task.
            let Some(written) = of.step(&step, || None) else {
                return Ok(None);
            };
            let room = self.room(key, written.result.len())?;
            let body = (written.result.into(), room);
            return Ok(Some(Arc::new(Call::new(body, step.position, last))));
        }
        if !self.tasks.has_news(id, reached) {
            return Ok(None);
        }
        let Some((position, bytes)) = self.tasks.extent(id) else {
            return Ok(None);
        };
        let is_1_0 = stored.webhook.is_1_0;
        let shared = (!is_1_0).then(|| self.bodies.shared(id, position));
        if let Some(call) = shared.flatten() {
            return Ok(Some(call));
        }
        // Reserved before the task is copied and written.
        let room = self.room(key, bytes)?;
        let Some(task) = self.tasks.get(id) else {
            return Ok(None);
        };
        if is_1_0 && task.remembers(reached) {
            // The event has arrived just now.
            drop(room);
            return self.next_call(key, stored);
        }
        // Webhooks of A2A 1.0 get the task, too, if events are no longer stored.
        let body = match is_1_0 {
            true => {
                let of = WriteContext::task(Dialect::A2a10, id, &task);
                of.first(&task, None).result
            }
            false => WriteContext::task(Dialect::A2a03, id, &task).whole(&task, None, true),
        };
        let last = task.status.state.is_terminal();
        let call = Arc::new(Call::new((body.into(), room), task.position, last));
        if !is_1_0 {
            self.bodies.share(id.clone(), &call);
        }
        Ok(Some(call))
    }

    /// Room for a body of about this many bytes.
    fn room(&self, key: &Text, bytes: usize) -> Result<Room, NoRoom> {
        self.bodies.room(|| self.host_of(key), bytes)
    }

    async fn send(&self, stored: &StoredWebhook, body: Bytes) -> Result<(), Refused> {
        // A key that was removed by mistake may come back.
        let webhook = self.push.webhooks.opened(stored);
        let webhook = webhook.map_err(|error| {
            let why = format!(
                "its token or credentials cannot be decrypted with a2a.push_notifications.keys: {error}"
            );
            Refused::ForNow(why, None)
        })?;
        // The URL may have been forbidden since it was set.
        let target =
            Target::parse(&webhook.url).map_err(|error| Refused::ForGood(error.to_string()))?;
        let reach = self.push.allowed.reach(&target).map_err(Refused::ForGood)?;
        let media_type = match webhook.is_1_0 {
            true => "application/a2a+json",
            false => "application/json",
        };
        let mut headers = vec![("Content-Type".to_owned(), media_type.to_owned())];
        if let Some(token) = &webhook.token {
            headers.push((TOKEN.to_owned(), token.clone()));
        }
        if let Some(it) = &webhook.authentication
            && let Some(credentials) = &it.credentials
        {
            let value = format!("{} {credentials}", it.scheme);
            headers.push(("Authorization".to_owned(), value));
        }
        let request = HttpRequest {
            method: Method::Post,
            target,
            headers,
            body: Some(body),
            timeout: self.timeout,
            // Only the status counts. A receiver might never end its response.
            max_response_bytes: 0,
            reach,
        };
        match self.client.send(request).await {
            Ok(response) => match response.status {
                200..=299 => Ok(()),
                status @ (408 | 425 | 429 | 500..=599) => {
                    let pause = pause_in(&response.headers);
                    Err(Refused::ForNow(format!("status {status}"), pause))
                }
                // They may lead to forbidden URLs.
                status @ 300..=399 => Err(Refused::ForGood(format!(
                    "status {status}: redirects are not followed"
                ))),
                status => Err(Refused::ForGood(format!("status {status}"))),
            },
            Err(error @ HttpError::Forbidden) => Err(Refused::ForGood(error.to_string())),
            Err(error) => Err(Refused::ForNow(error.to_string(), None)),
        }
    }
}

/// The pause that a receiver asks for in seconds, see RFC 9110 section 10.2.3. A date is ignored: its clock may differ.
fn pause_in(headers: &[(String, String)]) -> Option<Duration> {
    let (_, value) = headers.iter().find(|(name, _)| name == RETRY_AFTER)?;
    value.trim().parse().ok().map(Duration::from_secs)
}

// === impl DeliverySchedule ===

impl DeliverySchedule {
    /// A webhook was set, possibly replacing a failing one.
    fn set(&mut self, key: Text) {
        self.failing.remove(&key);
        if let Some(step) = self.in_progress.get_mut(&key) {
            step.was_set = true;
        } else {
            // Even if it waits: it may have another host now.
            self.due.insert((Instant::now(), key));
        }
    }

    /// Schedules a step for these webhooks.
    fn add(&mut self, keys: Vec<Text>) {
        let now = Instant::now();
        for key in keys {
            if let Some(step) = self.in_progress.get_mut(&key) {
                step.has_news = true;
            } else if !self.failing.contains_key(&key)
                && !self.waiting.contains_key(&key)
                && self.added.insert(key.clone())
            {
                self.due.insert((now, key));
            }
        }
    }

    /// Starts due steps, up to the limits.
    fn start<'a>(&mut self, deliveries: &'a Deliveries, calls: &mut RunningCalls<'a>) {
        let now = Instant::now();
        while calls.len() < MAX_CALLS {
            let Some(key) = self.next_key(now) else {
                return;
            };
            if self.in_progress.contains_key(&key) {
                continue;
            }
            let only_renews = self.only_renews(&key, now);
            if only_renews && self.renewals() >= MAX_RENEWALS {
                // The claim lasts longer than that.
                self.due.insert((now + POSTPONED, key));
                continue;
            }
            let host = deliveries.host_of(&key);
            let Some(share) = self.hosts.take(&host) else {
                self.wait(key, host);
                continue;
            };
            self.waiting.remove(&key);
            let failing = self.failing.get(&key).copied();
            let running = RunningStep {
                only_renews,
                ..RunningStep::default()
            };
            self.in_progress.insert(key.clone(), running);
            let step = deliveries.step(key, (failing, only_renews), share);
            calls.push(Box::pin(step));
        }
    }

    /// The next webhook with a due step. Webhooks that were held back come first, as soon as they may be called.
    fn next_key(&mut self, now: Instant) -> Option<Text> {
        if !self.held_back.is_empty() && self.may_retry() {
            return self.held_back.pop_first().map(|(_, key)| key);
        }
        self.due.first().filter(|(due, _)| *due <= now)?;
        let (_, key) = self.due.pop_first()?;
        self.added.remove(&key);
        Some(key)
    }

    /// Whether the next step of a webhook only renews its claim: its last call failed, and it may not be called yet.
    fn only_renews(&self, key: &Text, now: Instant) -> bool {
        let failing = self.failing.get(key);
        failing.is_some_and(|failing| now < failing.next) || self.is_held_back(key, now)
    }

    /// Whether it is time to call a webhook whose last call failed, but the maximum number of such webhooks is already
    /// being called.
    fn is_held_back(&self, key: &Text, now: Instant) -> bool {
        let failing = self.failing.get(key);
        // Before that time, a step only renews the claim.
        failing.is_some_and(|failing| failing.next <= now) && !self.may_retry()
    }

    /// Whether another webhook whose last call failed may be called.
    fn may_retry(&self) -> bool {
        let retries = self
            .in_progress
            .iter()
            .filter(|(key, step)| !step.only_renews && self.failing.contains_key(*key));
        retries.count() < MAX_RETRIES
    }

    /// How many running steps only renew a claim.
    fn renewals(&self) -> usize {
        let steps = self.in_progress.values();
        steps.filter(|step| step.only_renews).count()
    }

    /// Lets a webhook wait for a call to this host to end.
    fn wait(&mut self, key: Text, host: String) {
        let before = self.waiting.insert(key.clone(), host.clone());
        if before.as_ref() != Some(&host) {
            self.queues.entry(host).or_default().push_back(key);
        }
    }

    /// Waits until a step is due and within the limits.
    async fn next_due(&self, in_progress: usize) {
        match self.due.first() {
            Some((due, _)) if in_progress < MAX_CALLS => sleep_until(*due).await,
            _ => pending().await,
        }
    }

    fn finish(
        &mut self,
        DeliveryStep {
            key,
            outcome,
            share,
        }: DeliveryStep,
        host_of: impl Fn(&Text) -> String,
    ) {
        let now = Instant::now();
        self.release_share(share, now, host_of);
        let step = self.in_progress.remove(&key).unwrap_or_default();
        if step.was_set {
            // The webhook that was called no longer exists.
            self.failing.remove(&key);
            self.due.insert((now, key));
            return;
        }
        match outcome {
            DeliveryResult::Idle => {
                self.failing.remove(&key);
                if step.has_news {
                    self.due.insert((now, key));
                }
            }
            DeliveryResult::Done => {
                self.failing.remove(&key);
                self.due.insert((now, key));
            }
            DeliveryResult::Wait => {
                let next = match self.failing.get(&key).map_or(now, |failing| failing.next) {
                    // It is held back.
                    due if due <= now => {
                        self.held_back.insert((due, key.clone()));
                        now + RENEW
                    }
                    next => next,
                };
                self.due.insert((next.min(now + RENEW), key));
            }
            DeliveryResult::NoRoom => {
                // An event that comes meanwhile must not make it due once more.
                if self.added.insert(key.clone()) {
                    self.due.insert((now + POSTPONED, key));
                }
            }
            DeliveryResult::Failed(_) | DeliveryResult::NotStored => {
                let called = match outcome {
                    DeliveryResult::Failed(pause) => Some(pause.unwrap_or_default()),
                    _ => None,
                };
                let failing = FailedDelivery::after(self.failing.get(&key), called, now);
                self.due
                    .insert((failing.next.min(now + RENEW), key.clone()));
                self.failing.insert(key, failing);
            }
        }
    }

    /// Releases a slot to the next webhook of the same host. Webhooks before it that have another host now, or were
    /// deleted, do not use the slot, but are due too.
    fn release_share(
        &mut self,
        share: Share<String>,
        now: Instant,
        host_of: impl Fn(&Text) -> String,
    ) {
        let host = share.holder().clone();
        drop(share);
        let Some(queue) = self.queues.get_mut(&host) else {
            return;
        };
        while let Some(key) = queue.pop_front() {
            if self.waiting.get(&key) != Some(&host) {
                continue;
            }
            self.waiting.remove(&key);
            let uses_slot = host_of(&key) == host;
            self.due.insert((now, key));
            if uses_slot {
                break;
            }
        }
        if queue.is_empty() {
            self.queues.remove(&host);
        }
    }

    /// Releases free slots to webhooks that wait for them. A webhook that got a slot may have been deleted, or may have
    /// another host, before its step began.
    fn use_free_slots(&mut self, host_of: impl Fn(&Text) -> String) {
        let now = Instant::now();
        let hosts: Vec<String> = self.queues.keys().cloned().collect();
        for host in hosts {
            let free: Vec<_> = iter::from_fn(|| self.hosts.take(&host)).collect();
            for share in free {
                self.release_share(share, now, &host_of);
            }
        }
    }
}

impl Default for DeliverySchedule {
    fn default() -> Self {
        Self {
            due: BTreeSet::new(),
            added: HashSet::new(),
            in_progress: HashMap::new(),
            failing: HashMap::new(),
            held_back: BTreeSet::new(),
            hosts: Shares::new(MAX_PER_HOST),
            waiting: HashMap::new(),
            queues: HashMap::new(),
        }
    }
}

// === impl FailedDelivery ===

impl FailedDelivery {
    /// Counts a failure. `called` is the pause that the webhook asks for; `None` if the log failed before the call.
    fn after(before: Option<&Self>, called: Option<Duration>, now: Instant) -> Self {
        let times = before.map_or(0, |before| before.times + 1);
        let pause = PAUSES.0.saturating_mul(1 << times.min(10));
        let pause = pause.max(called.unwrap_or_default()).min(PAUSES.1);
        Self {
            since: before
                .and_then(|before| before.since)
                .or(called.map(|_| now)),
            times,
            next: now + pause,
        }
    }
}

#[cfg(test)]
mod tests;
