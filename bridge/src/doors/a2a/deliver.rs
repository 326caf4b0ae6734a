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

use super::webhooks::PushSettings;
use crate::log_limit::{LogLimit, LogLimits};
use crate::metrics::{Metrics, PushOutcome};
use crate::shares::{Share, Shares};
use crate::state::{Lagged, Position};
use crate::tasks::Tasks;
use crate::tasks::push::{CallOwner, RENEW, StoredWebhook, is_set};
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
    retried: LogLimit,
    dropped: LogLimit,
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
    /// It failed, and may go better later.
    Failed,
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
    in_progress: HashSet<Text>,
    /// Webhooks with new events during their step.
    again: HashSet<Text>,
    /// Webhooks that were set again during their step.
    renewed: HashSet<Text>,
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

/// One call.
struct Call {
    body: Bytes,
    /// The event that it reports.
    reached: Position,
    /// Whether it is the last event.
    last: bool,
}

/// Why a call has failed.
enum Refused {
    /// A retry may succeed.
    ForNow(String),
    /// A retry would fail again.
    ForGood(String),
}

type RunningCalls<'a> = FuturesUnordered<BoxFuture<'a, DeliveryStep>>;

/// Maximum number of concurrent calls: in total, to webhooks whose last call failed, and to one host. Without these
/// limits, webhooks that hang would take all calls, and the webhooks of other clients would wait.
const MAX_CALLS: usize = 64;
const MAX_RETRIES: usize = MAX_CALLS / 2;
const MAX_PER_HOST: usize = 8;
/// The first and the longest pause between attempts.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How often to look for webhooks whose owner has stopped.
const CHECK_INTERVAL: Duration = Duration::from_secs(20);
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
            retried: log.limit(
                Level::WARN,
                "more push notifications failed and will be retried",
            ),
            dropped: log.limit(Level::ERROR, "more push notifications were dropped"),
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

    /// One step for a webhook: its next event, if this replica may deliver it. If the webhook is held back, the step
    /// only renews the claim.
    async fn step(
        &self,
        key: Text,
        (failing, is_held_back): (Option<FailedDelivery>, bool),
        share: Share<String>,
    ) -> DeliveryStep {
        let outcome = self.try_step(&key, failing, is_held_back).await;
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
        is_held_back: bool,
    ) -> DeliveryResult {
        let webhooks = &self.push.webhooks;
        let has_news = |it: &StoredWebhook| !it.is_over && self.has_news(&it.task, it.reached);
        if !webhooks.stored(key).is_some_and(|stored| has_news(&stored)) {
            return DeliveryResult::Idle;
        }
        match webhooks.claim(key).await {
            Ok(CallOwner::Ours) => {}
            Ok(CallOwner::Theirs) => return DeliveryResult::Idle,
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
        if is_held_back || failing.is_some_and(|failing| Instant::now() < failing.next) {
            return DeliveryResult::Wait;
        }
        let Some(call) = self.next_call(&stored) else {
            return DeliveryResult::Idle;
        };
        let outcome = match self.send(&stored, call.body).await {
            Ok(()) => PushOutcome::Delivered,
            Err(refused) => {
                let since = failing.and_then(|failing| failing.since);
                let since = since.map_or(Duration::ZERO, |since| since.elapsed());
                let (why, is_over) = match refused {
                    Refused::ForGood(why) => (why, true),
                    Refused::ForNow(why) => (why, since >= self.give_up_after),
                };
                if !is_over {
                    self.metrics.push_delivery(PushOutcome::Retried);
                    if let Some(suppressed) = self.retried.allow() {
                        tracing::warn!(webhook = %key.escape_debug(), why, suppressed, "a push notification failed and will be retried");
                    }
                    return DeliveryResult::Failed;
                }
                if let Some(suppressed) = self.dropped.allow() {
                    tracing::error!(webhook = %key.escape_debug(), event = %call.reached, why, suppressed, "a push notification was dropped");
                }
                PushOutcome::Dropped
            }
        };
        self.done(key, (call.reached, call.last), outcome).await
    }

    /// Gives up a webhook whose task was removed. The webhook has reached this event, which was not the last one.
    async fn lost(&self, key: &Text, reached: Position) -> DeliveryResult {
        if let Some(suppressed) = self.dropped.allow() {
            tracing::error!(webhook = %key.escape_debug(), after = %reached, suppressed, "push notifications were dropped: their task was removed, because the memory for tasks is full (state.memory)");
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

    /// The next event for a webhook.
    fn next_call(&self, stored: &StoredWebhook) -> Option<Call> {
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
            let written = of.step(&step, || None)?;
            return Some(Call {
                body: written.result.into(),
                reached: step.position,
                last,
            });
        }
        let task = self.tasks.get(id)?;
        if !task.has_news(reached) {
            return None;
        }
        if stored.webhook.is_1_0 && task.remembers(reached) {
            // The event has arrived just now.
            return self.next_call(stored);
        }
        // Webhooks of A2A 1.0 get the task, too, if events are no longer stored.
        let body = match stored.webhook.is_1_0 {
            true => {
                let of = WriteContext::task(Dialect::A2a10, id, &task);
                of.first(&task, None).result
            }
            false => WriteContext::task(Dialect::A2a03, id, &task).whole(&task, None, true),
        };
        Some(Call {
            body: body.into(),
            reached: task.position,
            last: task.status.state.is_terminal(),
        })
    }

    async fn send(&self, stored: &StoredWebhook, body: Bytes) -> Result<(), Refused> {
        // A key that was removed by mistake may come back.
        let webhook = self.push.webhooks.opened(stored);
        let webhook = webhook.map_err(|error| {
            Refused::ForNow(format!(
                "its token or credentials cannot be decrypted with a2a.push_notifications.keys: {error}"
            ))
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
                // Redirects are not followed, because they may lead to forbidden URLs.
                200..=299 => Ok(()),
                status @ (408 | 425 | 429 | 500..=599) => {
                    Err(Refused::ForNow(format!("status {status}")))
                }
                status => Err(Refused::ForGood(format!("status {status}"))),
            },
            Err(error @ HttpError::Forbidden) => Err(Refused::ForGood(error.to_string())),
            Err(error) => Err(Refused::ForNow(error.to_string())),
        }
    }
}

// === impl DeliverySchedule ===

impl DeliverySchedule {
    /// A webhook was set, possibly replacing a failing one.
    fn set(&mut self, key: Text) {
        self.failing.remove(&key);
        if self.in_progress.contains(&key) {
            self.renewed.insert(key);
        } else {
            // Even if it waits: it may have another host now.
            self.due.insert((Instant::now(), key));
        }
    }

    /// Schedules a step for these webhooks.
    fn add(&mut self, keys: Vec<Text>) {
        let now = Instant::now();
        for key in keys {
            if self.in_progress.contains(&key) {
                self.again.insert(key);
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
            if self.in_progress.contains(&key) {
                continue;
            }
            let host = deliveries.host_of(&key);
            let Some(share) = self.hosts.take(&host) else {
                self.wait(key, host);
                continue;
            };
            self.waiting.remove(&key);
            let failing = self.failing.get(&key).copied();
            let is_held_back = self.is_held_back(&key, now);
            self.in_progress.insert(key.clone());
            let step = deliveries.step(key, (failing, is_held_back), share);
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

    /// Whether it is time to call a webhook whose last call failed, but the maximum number of such webhooks is already
    /// being called.
    fn is_held_back(&self, key: &Text, now: Instant) -> bool {
        let failing = self.failing.get(key);
        // Before that time, a step only renews the claim.
        failing.is_some_and(|failing| failing.next <= now) && !self.may_retry()
    }

    /// Whether another webhook whose last call failed may be called.
    fn may_retry(&self) -> bool {
        let has_failed = |key: &&Text| self.failing.contains_key(*key);
        self.in_progress.iter().filter(has_failed).count() < MAX_RETRIES
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
        self.in_progress.remove(&key);
        let again = self.again.remove(&key);
        if self.renewed.remove(&key) {
            // The webhook that was called no longer exists.
            self.failing.remove(&key);
            self.due.insert((now, key));
            return;
        }
        match outcome {
            DeliveryResult::Idle => {
                self.failing.remove(&key);
                if again {
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
            DeliveryResult::Failed | DeliveryResult::NotStored => {
                let was_called = matches!(outcome, DeliveryResult::Failed);
                let failing = FailedDelivery::after(self.failing.get(&key), was_called, now);
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
            in_progress: HashSet::new(),
            again: HashSet::new(),
            renewed: HashSet::new(),
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
    /// Counts a failure of the webhook, or of the log before the call.
    fn after(before: Option<&Self>, was_called: bool, now: Instant) -> Self {
        let times = before.map_or(0, |before| before.times + 1);
        let pause = PAUSES.0.saturating_mul(1 << times.min(10)).min(PAUSES.1);
        Self {
            since: before
                .and_then(|before| before.since)
                .or(was_called.then_some(now)),
            times,
            next: now + pause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failures_are_retried_with_growing_pauses() {
        let start = Instant::now();
        let mut failing = None;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let now = Instant::now();
            let next = FailedDelivery::after(failing.as_ref(), true, now);
            assert_eq!(next.since, Some(start));
            pauses.push((next.next - now).as_secs());
            failing = Some(next);
            tokio::time::advance(next.next - now).await;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    }

    fn in_progress(schedule: &mut DeliverySchedule, key: &Text) -> Share<String> {
        schedule.in_progress.insert(key.clone());
        schedule.hosts.take(&"host".to_owned()).unwrap()
    }

    fn finish(schedule: &mut DeliverySchedule, key: &Text, outcome: DeliveryResult) {
        let share = in_progress(schedule, key);
        let key = key.clone();
        let step = DeliveryStep {
            key,
            outcome,
            share,
        };
        schedule.finish(step, |_| "host".to_owned());
    }

    #[tokio::test(start_paused = true)]
    async fn events_during_a_step_are_processed_after_it() {
        let mut schedule = DeliverySchedule::default();
        let key = Text::from("t/c");
        schedule.in_progress.insert(key.clone());
        schedule.add(vec![key.clone()]);
        assert!(schedule.due.is_empty());
        finish(&mut schedule, &key, DeliveryResult::Idle);
        assert_eq!(schedule.due.len(), 1);
        // A delivery that fails waits for its time, whatever else happens.
        schedule.due.clear();
        finish(&mut schedule, &key, DeliveryResult::Failed);
        schedule.add(vec![key]);
        assert_eq!(schedule.due.len(), 1);
        assert!(schedule.due.first().unwrap().0 > Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn a_webhook_is_due_once_for_all_events_before_its_step() {
        let mut schedule = DeliverySchedule::default();
        let key = Text::from("t/c");
        for _ in 0..3 {
            schedule.add(vec![key.clone()]);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(schedule.due.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn webhooks_that_fail_leave_calls_to_the_others() {
        let mut schedule = DeliverySchedule::default();
        let keys: Vec<Text> = (0..=MAX_RETRIES)
            .map(|key| key.to_string().into())
            .collect();
        for key in &keys {
            finish(&mut schedule, key, DeliveryResult::Failed);
        }
        let (last, called) = keys.split_last().unwrap();
        schedule.in_progress.extend(called.iter().cloned());
        let is_held_back = |schedule: &DeliverySchedule, key: &Text| {
            let now = Instant::now();
            schedule.is_held_back(key, now)
        };
        assert!(!is_held_back(&schedule, last), "it only renews its claim");
        tokio::time::advance(PAUSES.0).await;
        assert!(is_held_back(&schedule, last));
        assert!(!is_held_back(&schedule, &"works".into()));
        schedule.in_progress.insert("works".into());
        finish(&mut schedule, &called[0], DeliveryResult::Failed);
        assert!(!is_held_back(&schedule, last));
    }

    #[tokio::test(start_paused = true)]
    async fn webhooks_that_are_held_back_renew_their_claims_and_are_called_in_order() {
        let mut schedule = DeliverySchedule::default();
        let called: Vec<Text> = (0..MAX_RETRIES).map(|key| key.to_string().into()).collect();
        let (first, second) = (Text::from("z"), Text::from("a"));
        for key in called.iter().chain([&first]) {
            finish(&mut schedule, key, DeliveryResult::Failed);
        }
        tokio::time::advance(Duration::from_millis(1)).await;
        finish(&mut schedule, &second, DeliveryResult::Failed);
        schedule.in_progress.extend(called.iter().cloned());
        schedule.due.clear();
        tokio::time::advance(PAUSES.0).await;
        // Steps that only renew the claim.
        for _ in 0..2 {
            for key in [&second, &first] {
                assert!(schedule.is_held_back(key, Instant::now()));
                finish(&mut schedule, key, DeliveryResult::Wait);
            }
            assert_eq!(schedule.next_key(Instant::now()), None);
            tokio::time::advance(RENEW).await;
            for key in [&second, &first] {
                assert_eq!(schedule.next_key(Instant::now()).as_ref(), Some(key));
            }
        }
        for (ended, next) in called.iter().zip([&first, &second]) {
            finish(&mut schedule, ended, DeliveryResult::Idle);
            assert_eq!(schedule.next_key(Instant::now()).as_ref(), Some(next));
            schedule.in_progress.insert(next.clone());
            assert_eq!(schedule.next_key(Instant::now()), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_webhook_that_is_set_again_starts_over() {
        let mut schedule = DeliverySchedule::default();
        let key = Text::from("t/c");
        finish(&mut schedule, &key, DeliveryResult::Failed);
        schedule.set(key.clone());
        assert!(schedule.failing.is_empty());
        assert_eq!(schedule.due.first().unwrap().0, Instant::now());
        // It does not inherit the result of a call to its previous URL either.
        schedule.due.clear();
        let share = in_progress(&mut schedule, &key);
        schedule.set(key.clone());
        let outcome = DeliveryResult::Failed;
        let step = DeliveryStep {
            key,
            outcome,
            share,
        };
        schedule.finish(step, |_| "host".to_owned());
        assert!(schedule.failing.is_empty());
        assert_eq!(schedule.due.first().unwrap().0, Instant::now());
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_limit_of_a_webhook_begins_with_its_own_first_failure() {
        let now = Instant::now();
        let unclaimed = FailedDelivery::after(None, false, now);
        assert_eq!((unclaimed.since, unclaimed.times), (None, 0));
        tokio::time::advance(Duration::from_secs(600)).await;
        let now = Instant::now();
        let failed = FailedDelivery::after(Some(&unclaimed), true, now);
        assert_eq!((failed.since, failed.times), (Some(now), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn one_host_gets_a_limited_part_of_the_calls() {
        let mut schedule = DeliverySchedule::default();
        let keys: Vec<Text> = (0..=MAX_PER_HOST)
            .map(|key| key.to_string().into())
            .collect();
        let mut shares: Vec<_> = keys
            .iter()
            .map_while(|_| schedule.hosts.take(&"a".into()))
            .collect();
        assert_eq!(shares.len(), MAX_PER_HOST);
        assert!(schedule.hosts.take(&"b".into()).is_some());
        let last = keys.last().unwrap().clone();
        schedule.wait(last.clone(), "a".to_owned());
        let share = shares.pop().unwrap();
        schedule.release_share(share, Instant::now(), |_| "a".to_owned());
        assert_eq!(schedule.due.first().unwrap().1, last);
        assert!(schedule.waiting.is_empty() && schedule.queues.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_goes_to_a_webhook_that_still_has_its_host() {
        let mut schedule = DeliverySchedule::default();
        let share = schedule.hosts.take(&"a".to_owned()).unwrap();
        for key in ["deleted", "moved", "next", "waits"] {
            schedule.wait(key.into(), "a".to_owned());
        }
        schedule.release_share(share, Instant::now(), |key| match key.as_str() {
            "deleted" => String::new(),
            "moved" => "b".to_owned(),
            _ => "a".to_owned(),
        });
        let due: Vec<&str> = schedule.due.iter().map(|(_, key)| key.as_str()).collect();
        assert_eq!(due, ["deleted", "moved", "next"]);
        assert_eq!(schedule.queues["a"], ["waits"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_webhook_does_not_wait_while_its_host_has_a_free_slot() {
        let mut schedule = DeliverySchedule::default();
        for key in ["first", "second"] {
            schedule.wait(key.into(), "a".to_owned());
        }
        let taken = (1..MAX_PER_HOST).map(|_| schedule.hosts.take(&"a".to_owned()));
        let taken: Vec<_> = taken.map(Option::unwrap).collect();
        let share = schedule.hosts.take(&"a".to_owned()).unwrap();
        schedule.use_free_slots(|_| "a".to_owned());
        assert!(schedule.due.is_empty(), "all slots are taken");
        drop(share);
        schedule.use_free_slots(|_| "a".to_owned());
        let due: Vec<&str> = schedule.due.iter().map(|(_, key)| key.as_str()).collect();
        assert_eq!(due, ["first"]);
        drop(taken);
    }

    #[tokio::test(start_paused = true)]
    async fn a_webhook_that_waits_for_its_host_is_due_only_if_it_is_set_again() {
        let mut schedule = DeliverySchedule::default();
        let key = Text::from("t/c");
        schedule.wait(key.clone(), "a".to_owned());
        schedule.add(vec![key.clone()]);
        assert!(schedule.due.is_empty());
        schedule.set(key.clone());
        assert_eq!(schedule.due.len(), 1);
        // It waits for one host at a time.
        schedule.wait(key.clone(), "a".to_owned());
        schedule.wait(key.clone(), "b".to_owned());
        assert_eq!(
            (schedule.queues["a"].len(), schedule.queues["b"].len()),
            (1, 1)
        );
        schedule.due.clear();
        let share = schedule.hosts.take(&"a".to_owned()).unwrap();
        schedule.release_share(share, Instant::now(), |_| "b".to_owned());
        assert!(schedule.due.is_empty());
        let share = schedule.hosts.take(&"b".to_owned()).unwrap();
        schedule.release_share(share, Instant::now(), |_| "b".to_owned());
        assert_eq!(schedule.due.first().unwrap().1, key);
    }
}
