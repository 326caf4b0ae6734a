//! Calls webhooks: one task makes all webhook calls of this replica.
//!
//! ```text
//! an event of a task, a new webhook, or time ──> due ──> claim ──> POST ──> done │ again later │ given up
//! ```
//!
//! Each webhook gets the events of its task in order, one at a time. A failed delivery is retried with growing pauses
//! until it is dropped; then the next event is tried. If this replica stops, another one takes over, so a webhook may
//! see the last event twice.

mod queues;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::future::pending;
use std::iter;
use std::mem;
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

use self::queues::HostQueues;
use super::bodies::{Bodies, Call, NoRoom, Room};
use super::webhooks::PushSettings;
use crate::log_limit::{LogLimit, LogLimits};
use crate::metrics::{Metrics, PushOutcome};
use crate::shares::{Share, Shares};
use crate::state::{Lagged, Position};
use crate::tasks::Tasks;
use crate::tasks::push::{
    LEASE, RENEW_FOR_CALL, RENEW_WAITING, StoredWebhook, Webhook, is_deleted, is_released, is_set,
};
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
    crowded: LogLimit,
    unclaimed: LogLimit,
}

/// The result of one delivery step.
struct DeliveryStep {
    key: Text,
    outcome: DeliveryResult,
    /// Its host's share of the calls, unless it only renewed the claim.
    share: Option<Share<String>>,
}

enum DeliveryResult {
    /// There is nothing to deliver.
    Idle,
    /// There may be more.
    Done,
    /// The step was only to renew the claim.
    Wait,
    /// There is no memory for its body now.
    NoRoom,
    /// It failed. A retry may succeed, after the pause that the receiver asks for.
    Failed {
        /// When the call began.
        began: Instant,
        pause: Option<Duration>,
    },
    /// The log failed: nothing is known about the webhook.
    NotStored,
}

/// A delivery that has failed.
#[derive(Debug, Clone, Copy)]
struct FailedDelivery {
    /// When the first call began; `None` if the webhook was not called.
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
    /// Failing webhooks whose claims must be renewed, wherever they wait: a retry may come later than a claim lasts.
    to_renew: Vec<Text>,
    /// Webhooks whose retry waits because too many others are being retried, the longest due first.
    held_back: BTreeSet<(Instant, Text)>,
    /// Calls to each host.
    hosts: Arc<Shares<String>>,
    /// Webhooks that wait because their host is at its limit of calls.
    queues: HostQueues,
}

/// What is known about the step of a webhook while it runs.
#[derive(Debug, Default)]
struct RunningStep {
    /// Whether it only renews the claim.
    only_renews: bool,
    /// Its host, if it calls a webhook whose last call failed.
    retries_at: Option<String>,
    /// Since when the webhook is due, if its turn came while the step ran.
    due: Option<Instant>,
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

/// Maximum number of concurrent calls, in total and to one host. At most half of each number are retries: calls to
/// webhooks whose last call failed. Without these limits, webhooks that hang would take all calls, and the webhooks of
/// other clients would wait.
const MAX_CALLS: usize = 64;
const MAX_RETRIES: usize = MAX_CALLS / 2;
/// Maximum number of concurrent steps that only renew a claim. They make no calls, so they are not among those.
const MAX_RENEWALS: usize = MAX_CALLS / 4;
const MAX_PER_HOST: usize = 8;
const MAX_RETRIES_PER_HOST: usize = MAX_PER_HOST / 2;
/// The first and the longest pause between attempts.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How long a step waits that has no room for its body.
const POSTPONED: Duration = Duration::from_secs(1);
/// How often to look for webhooks whose owner has stopped, and to renew the claims of failing ones.
const CHECK_INTERVAL: Duration = Duration::from_secs(15);
/// The longest `a2a.push_notifications.timeout`.
const LONGEST_CALL: Duration = Duration::from_secs(30);
/// A claim must not end during a call or before the next check after it, nor while a webhook waits between two checks.
const _: () = {
    let check = CHECK_INTERVAL.as_secs();
    let (call, lease) = (LONGEST_CALL.as_secs(), LEASE.as_secs());
    assert!(RENEW_FOR_CALL.as_secs() + call + check < lease);
    assert!(RENEW_WAITING.as_secs() + check < lease);
};
/// Why a retry that waited for its turn is dropped.
const TOO_LATE: &str = "a2a.push_notifications.give_up_after passed while its retry waited for its turn: too many other webhooks fail or are slow";
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
            crowded: log.limit(Level::WARN, "more hosts have push notifications that wait"),
            unclaimed: log.limit(Level::WARN, "more webhooks could not be claimed"),
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
                tokio::select! {
                    event = events.next() => match event {
                        Ok(Some(record)) => schedule.add(self.push.webhooks.keys_of(&record.key)),
                        Ok(None) => return,
                        Err(Lagged) => break,
                    },
                    webhook = webhooks.next() => match webhook {
                        Ok(Some(record)) if is_set(&record) => schedule.set(record.key),
                        Ok(Some(record)) if is_released(&record) => schedule.add(vec![record.key]),
                        Ok(Some(record)) if is_deleted(&record) => schedule.delete(&record.key),
                        Ok(Some(_)) => {}
                        Ok(None) => return,
                        Err(Lagged) => break,
                    },
                    _ = checks.tick() => {
                        schedule.use_free_slots(|key| self.host_of(key));
                        self.report_crowds(&schedule.queues);
                        schedule.renew_claims();
                        schedule.add(self.keys_with_news());
                    }
                    Some(finished) = calls.next() => {
                        schedule.finish(finished, |key| self.host_of(key));
                    }
                    () = schedule.next_due() => {}
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

    /// One step for a webhook: its next event, if this replica may deliver it; or without a share, the renewal of its
    /// claim.
    async fn step(
        &self,
        key: Text,
        failing: Option<FailedDelivery>,
        share: Option<Share<String>>,
    ) -> DeliveryStep {
        let outcome = match self.try_step(&key, failing, share.is_none()).await {
            // The claim lasts until its next renewal.
            DeliveryResult::NotStored if share.is_none() => DeliveryResult::Wait,
            outcome => outcome,
        };
        DeliveryStep {
            key,
            outcome,
            share,
        }
    }

    /// The host of a webhook, which shares a limit of calls.
    fn host_of(&self, key: &Text) -> String {
        let stored = self.push.webhooks.stored(key);
        stored.map_or_else(String::new, |stored| host(&stored.webhook))
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
        let renew = match only_renews {
            true => RENEW_WAITING,
            false => RENEW_FOR_CALL,
        };
        match webhooks.claim(key, renew).await {
            Ok(true) => {}
            Ok(false) => return DeliveryResult::Idle,
            Err(error) => {
                if let Some(suppressed) = self.unclaimed.allow() {
                    tracing::warn!(webhook = %key.escape_debug(), %error, suppressed, "a webhook could not be claimed: trying again");
                }
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
        let began = Instant::now();
        let is_too_late =
            failing.is_some_and(|failing| failing.is_too_late(self.give_up_after, self.timeout));
        let sent = match is_too_late {
            true => Err(Refused::ForGood(TOO_LATE.to_owned())),
            false => self.send(&stored, call.body.clone()).await,
        };
        let outcome = match sent {
            Ok(()) => PushOutcome::Delivered,
            Err(refused) => {
                match self.refused((key, &stored, call.reached), refused, (began, failing)) {
                    Some(kept) => return kept,
                    None => PushOutcome::Dropped,
                }
            }
        };
        self.done(key, (call.reached, call.last), outcome).await
    }

    /// Reports that a call failed. Returns `None` if the event is dropped: because the time for retries has passed, or
    /// because a retry would fail again.
    fn refused(
        &self,
        (key, called, event): (&Text, &StoredWebhook, Position),
        refused: Refused,
        (began, failing): (Instant, Option<FailedDelivery>),
    ) -> Option<DeliveryResult> {
        let Some(now) = self.push.webhooks.stored(key) else {
            // It was deleted meanwhile.
            return Some(DeliveryResult::Idle);
        };
        let age = failing.map_or(Duration::ZERO, |failing| failing.age());
        // It was set again meanwhile: the event goes to its new URL. But who changes it all the time does not keep the
        // event for ever.
        let is_new = !self.is_same(&now, called) && age < 2 * self.give_up_after;
        // The time for retries begins with the first call, so at least one retry follows, unless that time is zero.
        let is_over = age >= self.give_up_after;
        let host = host(&called.webhook);
        let (why, pause, is_retried) = match refused {
            Refused::ForNow(why, pause) => (why, pause, is_new || !is_over),
            Refused::ForGood(why) => (why, None, is_new),
        };
        if is_retried {
            self.metrics.push_delivery(PushOutcome::Retried);
            if let Some(suppressed) = self.retried.allow() {
                tracing::warn!(webhook = %key.escape_debug(), %host, why, suppressed, "a push notification failed and will be retried");
            }
            return Some(DeliveryResult::Failed { began, pause });
        }
        if let Some(suppressed) = self.dropped.allow() {
            tracing::warn!(webhook = %key.escape_debug(), %host, %event, why, suppressed, "a push notification was dropped");
        }
        None
    }

    /// Whether a webhook is still as it was called. Its secrets are sealed anew each time it is set.
    fn is_same(&self, now: &StoredWebhook, called: &StoredWebhook) -> bool {
        let webhooks = &self.push.webhooks;
        now.webhook == called.webhook
            || (now.webhook.url == called.webhook.url
                && webhooks.opened(now) == webhooks.opened(called))
    }

    /// Reports that a call waits for memory.
    fn postpone(&self, key: &Text) -> DeliveryResult {
        self.metrics.push_delivery(PushOutcome::Postponed);
        if let Some(suppressed) = self.postponed.allow() {
            tracing::warn!(webhook = %key.escape_debug(), suppressed, "a push notification waits, because others use the memory for large bodies");
        }
        DeliveryResult::NoRoom
    }

    /// Reports the hosts for which webhooks have waited longer than a call may take.
    fn report_crowds(&self, queues: &HostQueues) {
        for (host, crowd) in queues.crowds(self.timeout) {
            if let Some(suppressed) = self.crowded.allow() {
                tracing::warn!(
                    host,
                    webhooks = crowd.webhooks,
                    after_failure = crowd.retries,
                    longest_seconds = crowd.longest.as_secs(),
                    suppressed,
                    "push notifications wait, because their host is at its limit of calls: its receivers are slow or fail"
                );
            }
        }
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
                // Only its client removes a webhook: the next event is tried.
                410 => Err(Refused::ForGood(
                    "status 410: the receiver says that the URL is gone for good; the webhook stays until its client deletes it"
                        .to_owned(),
                )),
                status => Err(Refused::ForGood(format!("status {status}"))),
            },
            Err(error @ HttpError::Forbidden) => Err(Refused::ForGood(error.to_string())),
            Err(error) => Err(Refused::ForNow(error.to_string(), None)),
        }
    }
}

/// The host that a webhook calls.
fn host(webhook: &Webhook) -> String {
    let target = Target::parse(&webhook.url).ok();
    let host = target.as_ref().and_then(Target::host);
    host.unwrap_or_default().to_owned()
}

/// The pause that a receiver asks for in seconds, see RFC 9110 section 10.2.3. A date is ignored: its clock may differ.
fn pause_in(headers: &[(String, String)]) -> Option<Duration> {
    let (_, value) = headers.iter().find(|(name, _)| name == RETRY_AFTER)?;
    value.trim().parse().ok().map(Duration::from_secs)
}

// === impl DeliverySchedule ===

impl DeliverySchedule {
    /// A webhook was set. If it fails, its retry is due now, but its failures still count: some clients set the same
    /// webhook with each message, and its event must be dropped in time all the same.
    fn set(&mut self, key: Text) {
        let now = Instant::now();
        let failing = self.failing.get_mut(&key);
        let retry = failing.map(|failing| mem::replace(&mut failing.next, now));
        if let Some(step) = self.in_progress.get_mut(&key) {
            step.was_set = true;
        } else if retry.is_none_or(|next| next > now) || self.queues.contains(&key) {
            // Even if it waits for its host: it may have another one now.
            self.due.insert((now, key));
        }
    }

    /// A webhook was deleted. If it is set later, its events are others.
    fn delete(&mut self, key: &Text) {
        self.failing.remove(key);
    }

    /// Schedules a step for these webhooks.
    fn add(&mut self, keys: Vec<Text>) {
        let now = Instant::now();
        for key in keys {
            if let Some(step) = self.in_progress.get_mut(&key) {
                step.has_news = true;
            } else if !self.failing.contains_key(&key)
                && !self.queues.contains(&key)
                && self.added.insert(key.clone())
            {
                self.due.insert((now, key));
            }
        }
    }

    /// Schedules the renewal of the claims of all failing webhooks.
    fn renew_claims(&mut self) {
        // Each webhook has its turn, also if a round takes longer than the interval.
        if self.to_renew.is_empty() {
            self.to_renew = self.failing.keys().cloned().collect();
        }
    }

    /// Starts due steps, up to the limits.
    fn start<'a>(&mut self, deliveries: &'a Deliveries, calls: &mut RunningCalls<'a>) {
        while let Some(key) = self.next_renewal() {
            calls.push(Box::pin(deliveries.step(key, None, None)));
        }
        let now = Instant::now();
        while self.in_progress.len() - self.renewals() < MAX_CALLS {
            let Some((since, key)) = self.next_key(now) else {
                return;
            };
            let failing = self.failing.get(&key).copied();
            let host = deliveries.host_of(&key);
            let is_retry = self.is_retry(&key);
            let host_of = |key: &Text| deliveries.host_of(key);
            let Some(share) = self.take((&key, since), &host, is_retry, host_of) else {
                continue;
            };
            let running = RunningStep {
                retries_at: is_retry.then_some(host),
                ..RunningStep::default()
            };
            self.in_progress.insert(key.clone(), running);
            calls.push(Box::pin(deliveries.step(key, failing, Some(share))));
        }
    }

    /// The next webhook whose claim must be renewed, if the limit allows it. The step begins.
    fn next_renewal(&mut self) -> Option<Text> {
        while self.renewals() < MAX_RENEWALS {
            let key = self.to_renew.pop()?;
            if self.failing.contains_key(&key) && !self.in_progress.contains_key(&key) {
                let running = RunningStep {
                    only_renews: true,
                    ..RunningStep::default()
                };
                self.in_progress.insert(key.clone(), running);
                return Some(key);
            }
        }
        None
    }

    /// The next webhook with a due step, and since when it is due. Webhooks that were held back come first, as soon as
    /// they may be called.
    fn next_key(&mut self, now: Instant) -> Option<(Instant, Text)> {
        loop {
            let (due, key) = if !self.held_back.is_empty() && self.may_retry() {
                self.held_back.pop_first()?
            } else {
                self.due.first().filter(|(due, _)| *due <= now)?;
                let (due, key) = self.due.pop_first()?;
                self.added.remove(&key);
                (due, key)
            };
            let pauses = |failing: &FailedDelivery| now < failing.next;
            if let Some(step) = self.in_progress.get_mut(&key) {
                step.due = Some(due);
            } else if self.failing.get(&key).is_some_and(pauses) {
                // It was due twice. Its next step is due when the pause is over.
            } else if self.is_held_back(&key) {
                self.held_back.insert((due, key));
            } else {
                return Some((due, key));
            }
        }
    }

    /// Whether the last call to a webhook failed.
    fn is_retry(&self, key: &Text) -> bool {
        self.failing
            .get(key)
            .is_some_and(FailedDelivery::was_called)
    }

    /// Whether the last call to a webhook failed, and the maximum number of such webhooks is already being called.
    fn is_held_back(&self, key: &Text) -> bool {
        self.is_retry(key) && !self.may_retry()
    }

    /// Whether another webhook whose last call failed may be called.
    fn may_retry(&self) -> bool {
        let steps = self.in_progress.values();
        let retries = steps.filter(|step| step.retries_at.is_some());
        retries.count() < MAX_RETRIES
    }

    /// How many running steps only renew a claim.
    fn renewals(&self) -> usize {
        let steps = self.in_progress.values();
        steps.filter(|step| step.only_renews).count()
    }

    /// A slot of this host for a webhook that is due since then, or `None` if it must wait for one. `is_retry` says
    /// whether its last call failed.
    fn take(
        &mut self,
        (key, since): (&Text, Instant),
        host: &str,
        is_retry: bool,
        host_of: impl Fn(&Text) -> String,
    ) -> Option<Share<String>> {
        let share = self.hosts.take(&host.to_owned());
        if share.is_some() && !(is_retry && self.retries_at(host) >= MAX_RETRIES_PER_HOST) {
            self.queues.remove(key);
            return share;
        }
        self.queues
            .push(key.clone(), host.to_owned(), is_retry, since);
        if let Some(share) = share {
            // A retry may not use it, but a webhook whose last call did not fail may.
            self.release_share(share, Instant::now(), host_of);
        }
        None
    }

    /// How many webhooks of this host are being called whose last call failed.
    fn retries_at(&self, host: &str) -> usize {
        let steps = self.in_progress.values();
        let retries = steps.filter(|step| step.retries_at.as_deref() == Some(host));
        retries.count()
    }

    /// Waits until a step is due and within the limits.
    async fn next_due(&self) {
        let has_room = self.in_progress.len() - self.renewals() < MAX_CALLS;
        match self.due.first() {
            Some((due, _)) if has_room => sleep_until(*due).await,
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
        let step = self.in_progress.remove(&key).unwrap_or_default();
        if let Some(share) = share {
            self.release_share(share, now, host_of);
        }
        match outcome {
            DeliveryResult::Idle => {
                self.failing.remove(&key);
                self.queues.remove(&key);
                if step.has_news || step.was_set {
                    self.due.insert((now, key));
                }
            }
            DeliveryResult::Done => {
                self.failing.remove(&key);
                self.due.insert((now, key));
            }
            DeliveryResult::Wait => {
                // Otherwise it waits where it did.
                if let Some(due) = step.due.or(step.was_set.then_some(now)) {
                    self.due.insert((due, key));
                }
            }
            DeliveryResult::NoRoom => {
                // An event that comes meanwhile must not make it due once more.
                if self.added.insert(key.clone()) {
                    self.due.insert((now + POSTPONED, key));
                }
            }
            DeliveryResult::Failed { .. } | DeliveryResult::NotStored => {
                let called = match outcome {
                    DeliveryResult::Failed { began, pause } => {
                        Some((began, pause.unwrap_or_default()))
                    }
                    _ => None,
                };
                let mut failing = FailedDelivery::after(self.failing.get(&key), called, now);
                if step.was_set {
                    failing.next = now;
                }
                self.due.insert((failing.next, key.clone()));
                self.failing.insert(key, failing);
            }
        }
    }

    /// Releases a slot to the next webhook of the same host. Webhooks before it that cannot use the slot are due too:
    /// they have another host now, were deleted, are held back, or their claim is being renewed. They are due before
    /// webhooks that have not waited.
    fn release_share(
        &mut self,
        share: Share<String>,
        now: Instant,
        host_of: impl Fn(&Text) -> String,
    ) {
        let host = share.holder().clone();
        drop(share);
        let may_retry = self.retries_at(&host) < MAX_RETRIES_PER_HOST;
        while let Some((since, key)) = self.queues.pop(&host, may_retry) {
            let can_start = !self.in_progress.contains_key(&key) && !self.is_held_back(&key);
            let uses_slot = can_start && host_of(&key) == host;
            self.due.insert((since.min(now), key));
            if uses_slot {
                break;
            }
        }
    }

    /// Releases free slots to webhooks that wait for them. A webhook that got a slot may have been deleted, or may have
    /// another host, before its step began.
    fn use_free_slots(&mut self, host_of: impl Fn(&Text) -> String) {
        let now = Instant::now();
        for host in self.queues.hosts() {
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
            to_renew: Vec::new(),
            held_back: BTreeSet::new(),
            hosts: Shares::new(MAX_PER_HOST),
            queues: HostQueues::default(),
        }
    }
}

// === impl FailedDelivery ===

impl FailedDelivery {
    /// Counts a failure. `called` is when the call began, and the pause that the webhook asks for; `None` if the log
    /// failed before the call.
    fn after(before: Option<&Self>, called: Option<(Instant, Duration)>, now: Instant) -> Self {
        let times = before.map_or(0, |before| before.times + 1);
        let pause = PAUSES.0.saturating_mul(1 << times.min(10));
        let (began, asked) = called.unzip();
        let pause = pause.max(asked.unwrap_or_default()).min(PAUSES.1);
        Self {
            since: before.and_then(|before| before.since).or(began),
            times,
            next: now + pause,
        }
    }

    /// Whether the webhook was called. Otherwise only the log failed.
    fn was_called(&self) -> bool {
        self.since.is_some()
    }

    /// How long ago the first call began.
    fn age(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Whether the time for retries passed while its retry waited for its turn. A retry that begins at most this
    /// `delay` after it became due is not too late. (Its last call may have succeeded, if the log failed after it.)
    fn is_too_late(&self, give_up_after: Duration, delay: Duration) -> bool {
        self.was_called() && self.age() >= give_up_after && self.next.elapsed() > delay
    }
}

#[cfg(test)]
mod tests;
