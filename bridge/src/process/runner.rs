//! Runs one binding: subscribes, processes, closes, and starts again when its subscription ends.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use a2abus_transports::{
    AnyTransport, Consumer, PauseCause, PausedPartition, Reading, Share, Subscription, Topic,
    TopicFilter, Transport as _, TransportError, TransportErrorKind,
};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::bridge::BindingService;
use crate::log_limit::LogLimit;
use crate::metrics::Metrics;
use crate::readiness::Readiness;
use crate::restart::{CLOSE, missing, not_too_soon, refused, start};

/// The cause until the partitions of a binding are assigned.
const WAITING: &str = "waiting for partitions";

/// How long a binding may wait for partitions before it is degraded, and how long a process that starts is not ready
/// for that reason. A new group needs about 3 s.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often the bus is asked whether a stream now stores the dead letters, which were lost so far.
#[cfg(feature = "nats")]
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// How often the log says what a drain waits for.
pub(super) const REPORT_DRAIN: Duration = Duration::from_secs(5);

/// Runs one binding.
pub(super) struct Runner {
    pub(super) work: BindingService,
    pub(super) subscription: Subscription,
    pub(super) transport: AnyTransport,
    pub(super) dead_letters: Option<AnyTransport>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) grace: Duration,
    pub(super) pauses: LogLimit,
    pub(super) resumptions: LogLimit,
}

/// A binding whose share of its topics is shown in its readiness.
struct ShownShare<'a> {
    name: &'a Text,
    condition: &'a str,
    subscription: &'a Subscription,
    readiness: &'a Readiness,
}

/// Whether a binding reads its topics.
#[derive(Debug, PartialEq)]
enum Reads {
    /// It waits for partitions.
    Soon,
    /// It has waited for longer than [`PATIENCE`].
    Late,
    /// The cluster refuses it a permission.
    Refused,
    /// These topics no longer exist. It reads the others, if there are any.
    Without(Vec<Topic>),
    All,
}

// === impl Runner ===

impl Runner {
    /// The name of the binding.
    fn name(&self) -> &Text {
        &self.work.intake().name
    }

    /// The name of the readiness condition that the topics of the binding are read.
    pub(super) fn condition(&self) -> String {
        format!("binding {}", self.name())
    }

    pub(super) async fn run(self, readiness: Arc<Readiness>, stop: CancellationToken) {
        let condition = self.condition();
        self.metrics.paused_partitions(self.name(), 0);
        while !stop.is_cancelled() {
            let Some(consumer) = start(&condition, &readiness, &stop, || self.subscribe()).await
            else {
                return;
            };
            let began = Instant::now();
            readiness.set(condition.as_str(), Err(WAITING.to_owned()));
            let (share, missing) = (consumer.share(), consumer.missing_topics());
            let (lag, removed) = (consumer.lag(), consumer.removed());
            let paused = consumer.paused();
            let working = self.work.run(consumer, stop.clone());
            let consumer = tokio::select! {
                consumer = working => consumer,
                never = self.watch_share(share, missing, &readiness) => match never {},
                never = self.watch_lag(lag) => match never {},
                never = self.watch_removed(removed) => match never {},
                never = self.watch_paused(paused) => match never {},
                never = self.watch_dead_letters() => match never {},
                never = self.report_drain(&stop) => match never {},
                () = grace_over(&stop, self.grace) => return self.abandon(),
            };
            self.metrics.source_lag(self.name(), None);
            self.metrics.paused_partitions(self.name(), 0);
            // Waiting requests may settle until then.
            let closed = tokio::select! {
                closed = consumer.close(self.grace.max(CLOSE)) => closed,
                never = self.report_drain(&stop) => match never {},
            };
            match closed {
                Err(error) if error.kind() == TransportErrorKind::Fenced => {
                    // This process does not take its place back: two processes that replace each other in turn would
                    // do no work.
                    tracing::error!(binding = %self.name(), %error, "another process has the same instance_id, so this binding reads no more: give each process its own, and restart this one");
                    readiness.set(condition.as_str(), Err(error.to_string()));
                    stop.cancelled().await;
                    return;
                }
                Err(error) => {
                    tracing::warn!(binding = %self.name(), %error, "a subscription was not closed cleanly: some messages may be redelivered");
                }
                Ok(()) => {}
            }
            readiness.set(condition.as_str(), Err("the subscription ended".to_owned()));
            not_too_soon(began, &stop).await;
        }
    }

    /// Logs during a drain what it waits for.
    async fn report_drain(&self, stop: &CancellationToken) -> Infallible {
        stop.cancelled().await;
        loop {
            sleep(REPORT_DRAIN).await;
            let messages = self.work.in_flight();
            if messages > 0 {
                tracing::info!(binding = %self.name(), messages, "draining: messages are still in progress");
            }
        }
    }

    /// Logs how many messages were in progress at the deadline: a source that stores messages redelivers them, core
    /// NATS does not.
    fn abandon(&self) {
        let (name, messages) = (self.name(), self.work.in_flight());
        match messages {
            0 => {}
            _ if self.work.intake().is_redelivered() => tracing::warn!(binding = %name, messages,
                "the grace period is over: messages in progress are abandoned, and will be redelivered"),
            _ => tracing::error!(binding = %name, messages,
                "the grace period is over: messages in progress are lost, because core NATS does not store them"),
        }
    }

    /// Logs and counts partitions that are paused because of their own messages.
    async fn watch_paused(
        &self,
        paused: Option<watch::Receiver<Vec<PausedPartition>>>,
    ) -> Infallible {
        let name = self.name();
        let mut before = Vec::new();
        let report = |now: Vec<PausedPartition>| {
            self.metrics.paused_partitions(name, now.len());
            for paused in now.iter().filter(|paused| !before.contains(*paused)) {
                if let Some(suppressed) = self.pauses.allow() {
                    let why = match paused.cause {
                        PauseCause::Behind => {
                            "too many records were read after a request that is still unanswered"
                        }
                        PauseCause::Blocked => {
                            "its messages use its share of the budget, and none of them has been settled for seconds: they wait for a destination that accepts none, or their work is slow; other partitions are read unless they wait too"
                        }
                    };
                    tracing::warn!(binding = %name, partition = %paused.partition, suppressed, "paused a partition: {why}");
                }
            }
            for paused in before.iter().filter(|paused| !now.contains(paused)) {
                if let Some(suppressed) = self.resumptions.allow() {
                    tracing::info!(binding = %name, partition = %paused.partition, suppressed, "resumed a paused partition");
                }
            }
            before = now;
        };
        on_change(paused, report).await
    }

    /// Marks the binding as ready once it has its partitions, and as degraded while it waits for them for longer than
    /// [`PATIENCE`], or while topics no longer exist: other parts of the process work. It is not ready while the
    /// cluster refuses it a permission.
    async fn watch_share(
        &self,
        share: Option<watch::Receiver<Share>>,
        missing: Option<watch::Receiver<Vec<Topic>>>,
        readiness: &Readiness,
    ) -> Infallible {
        let condition = self.condition();
        match (share, missing) {
            (Some(share), Some(missing)) => {
                let shown = ShownShare {
                    name: self.name(),
                    condition: &condition,
                    subscription: &self.subscription,
                    readiness,
                };
                shown.watch(share, missing).await;
            }
            _ => readiness.set(condition, Ok(())),
        }
        std::future::pending().await
    }

    /// Counts the messages that the source removed before they were read.
    async fn watch_removed(&self, removed: Option<watch::Receiver<u64>>) -> Infallible {
        if removed.is_some() {
            // The series exists before its first event.
            self.metrics.removed_unread(self.name(), 0);
        }
        let mut before = 0;
        let report = |now: u64| {
            self.metrics.removed_unread(self.name(), now - before);
            before = now;
        };
        on_change(removed, report).await
    }

    /// Records the lag of the binding whenever it is reported.
    async fn watch_lag(&self, lag: Option<watch::Receiver<Option<u64>>>) -> Infallible {
        on_change(lag, |known| self.metrics.source_lag(self.name(), known)).await
    }

    /// Warns if no stream stores the dead letters of core NATS: they are lost. Logs when one stores them.
    async fn watch_dead_letters(&self) -> Infallible {
        #[cfg(feature = "nats")]
        if let Some(AnyTransport::Nats(nats)) = &self.dead_letters
            && !self.work.intake().dead_letters.is_backed
        {
            let (binding, topic) = (self.name(), self.work.intake().dead_letters.topic.as_str());
            let mut are_lost = false;
            loop {
                match nats.stream_of(topic).await {
                    Ok(None) if !are_lost => {
                        are_lost = true;
                        tracing::warn!(%binding, topic, "no JetStream stream stores the dead letters of this binding: they are lost (`a2abus topics apply` creates one)");
                    }
                    Ok(Some(stream)) if are_lost => {
                        tracing::info!(%binding, topic, %stream, "a JetStream stream stores the dead letters of this binding now");
                        break;
                    }
                    // They are stored, or it is unknown.
                    Ok(Some(_)) | Err(_) if !are_lost => break,
                    Ok(_) | Err(_) => {}
                }
                sleep(ASK_AGAIN).await;
            }
        }
        std::future::pending().await
    }

    async fn subscribe(&self) -> Result<Consumer, TransportError> {
        if let Some(transport) = &self.dead_letters {
            transport
                .ensure_topic(&self.work.intake().dead_letters.topic, 1)
                .await?;
        }
        self.transport.subscribe(self.subscription.clone()).await
    }
}

// === impl ShownShare ===

impl ShownShare<'_> {
    /// Reports whether the binding has its partitions until its reader ends.
    async fn watch(
        &self,
        mut share: watch::Receiver<Share>,
        mut missing: watch::Receiver<Vec<Topic>>,
    ) {
        let mut before = Reads::Soon;
        // Only while it waits. A client that is replaced reports again that it waits: the wait goes on.
        let mut late_at = None;
        loop {
            let (now, gone) = (
                *share.borrow_and_update(),
                missing.borrow_and_update().clone(),
            );
            let late = match now == Share::Waiting && gone.is_empty() {
                true => *late_at.get_or_insert_with(|| Instant::now() + PATIENCE),
                false => {
                    late_at = None;
                    Instant::now()
                }
            };
            let now = match now {
                Share::Refused => Reads::Refused,
                Share::Assigned | Share::Waiting if !gone.is_empty() => Reads::Without(gone),
                Share::Assigned => Reads::All,
                Share::Waiting if Instant::now() >= late => Reads::Late,
                Share::Waiting => Reads::Soon,
            };
            if now != before {
                self.show(&before, &now);
                before = now;
            }
            tokio::select! {
                changed = share.changed() => if changed.is_err() { return },
                changed = missing.changed() => if changed.is_err() { return },
                () = sleep_until(late), if before == Reads::Soon => {}
            }
        }
    }

    fn show(&self, before: &Reads, now: &Reads) {
        let (binding, condition) = (self.name, self.condition);
        if *before == Reads::Late && *now == Reads::All {
            tracing::info!(%binding, "partitions are assigned: the binding is read");
        }
        let readiness = self.readiness;
        match now {
            // A rebalance is short.
            Reads::Soon if *before == Reads::All => {}
            // The permission is granted, and only the partitions are missing.
            Reads::Soon if !matches!(before, Reads::Without(_)) => {
                readiness.set(condition, Err(WAITING.to_owned()));
            }
            Reads::Soon | Reads::All => readiness.set(condition, Ok(())),
            Reads::Late => {
                tracing::warn!(%binding, waited = ?PATIENCE, "still waiting for partitions: the group waits for its other members, or for the session_timeout of one that died, or its topics have just been created again");
                readiness.degraded(condition, WAITING.to_owned());
            }
            Reads::Refused => readiness.set(condition, Err(self.refusal())),
            Reads::Without(topics) => readiness.degraded(condition, self.without(topics)),
        }
    }

    /// The cause while the cluster refuses it a permission.
    fn refusal(&self) -> String {
        let Subscription {
            topics, reading, ..
        } = self.subscription;
        let topics: Vec<&str> = topics.iter().map(TopicFilter::as_str).collect();
        let group = match reading {
            Reading::Group(group) | Reading::PromptGroup(group) => format!("group {group}, "),
            Reading::Durable { .. } | Reading::Live { .. } => String::new(),
        };
        format!(
            "{} (reads {group}topics {}; the log says which)",
            refused(),
            topics.join(", ")
        )
    }

    /// The cause while these topics no longer exist.
    fn without(&self, gone: &[Topic]) -> String {
        let is_gone = |topic: &TopicFilter| gone.iter().any(|gone| gone.as_str() == topic.as_str());
        let others = match self.subscription.topics.iter().all(is_gone) {
            true => "nothing is read",
            false => "the other topics are read",
        };
        missing(gone, others)
    }
}

/// Reports each new value, if there is one to watch.
async fn on_change<T: Clone>(
    seen: Option<watch::Receiver<T>>,
    mut report: impl FnMut(T),
) -> Infallible {
    if let Some(mut seen) = seen {
        while seen.changed().await.is_ok() {
            let now = seen.borrow_and_update().clone();
            report(now);
        }
    }
    std::future::pending().await
}

async fn grace_over(stop: &CancellationToken, grace: Duration) {
    stop.cancelled().await;
    tokio::time::sleep(grace).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows the readiness of a binding that reads `t` and `u` in the group `g`.
    async fn watch(
        share: watch::Receiver<Share>,
        missing: watch::Receiver<Vec<Topic>>,
        readiness: Arc<Readiness>,
    ) {
        let topics = ["t", "u"].map(|topic| TopicFilter::from(Topic::from_static(topic)));
        let shown = ShownShare {
            name: &"b".into(),
            condition: "b",
            subscription: &Subscription {
                topics: topics.to_vec(),
                reading: Reading::Group("g".into()),
                budget_bytes: 1,
                budget_messages: 1,
            },
            readiness: &readiness,
        };
        shown.watch(share, missing).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_binding_whose_topics_no_longer_exist_is_degraded_with_their_names() {
        let readiness = Arc::new(Readiness::new());
        readiness.started();
        let (sender, share) = watch::channel(Share::Assigned);
        let (topics, missing) = watch::channel(Vec::new());
        let watching = tokio::spawn(watch(share, missing, Arc::clone(&readiness)));
        let gone = async |names: &[&'static str]| {
            let names = names.iter().copied().map(Topic::from_static);
            topics.send_replace(names.collect());
            tokio::time::sleep(PATIENCE / 2).await;
            let report = readiness.report();
            assert!(report.ready, "others work");
            let causes = report.degraded.into_iter().map(|part| part.cause);
            causes.collect::<Vec<_>>().join(", ")
        };
        assert_eq!(gone(&[]).await, "");
        let cause = gone(&["t"]).await;
        assert!(
            cause.starts_with("topics no longer exist: t; the other topics are read: create it"),
            "{cause}"
        );
        let both = "topics no longer exist: t, u; nothing is read: create it";
        for share in [Share::Assigned, Share::Waiting] {
            sender.send_replace(share);
            let cause = gone(&["t", "u"]).await;
            assert!(cause.starts_with(both), "{cause}");
        }
        tokio::time::sleep(PATIENCE * 2).await;
        let cause = gone(&["t", "u"]).await;
        assert!(cause.starts_with(both), "no member is missing: {cause}");
        assert_eq!(gone(&[]).await, "", "it waits for its partitions");
        sender.send_replace(Share::Assigned);
        assert_eq!(gone(&[]).await, "");
        sender.send_replace(Share::Refused);
        tokio::time::sleep(PATIENCE).await;
        let cause = readiness.report().not_ready[0].cause.clone();
        assert!(cause.contains("group g, topics t, u"), "{cause}");
        drop(sender);
        watching.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_binding_without_partitions_is_degraded_and_one_that_is_refused_is_not_ready() {
        let readiness = Arc::new(Readiness::new());
        readiness.started();
        readiness.set("b", Err(WAITING.to_owned()));
        let report = || {
            let report = readiness.report();
            (report.ready, report.degraded.len())
        };
        let (sender, share) = watch::channel(Share::Waiting);
        let (_topics, missing) = watch::channel(Vec::new());
        let watching = tokio::spawn(watch(share, missing, Arc::clone(&readiness)));
        let become_ = async |share, after: Duration| {
            sender.send_replace(share);
            tokio::time::sleep(after).await;
        };
        let (soon, late) = (PATIENCE / 2, PATIENCE * 2);
        become_(Share::Waiting, soon).await;
        assert_eq!(report(), (false, 0));
        become_(Share::Refused, late).await;
        assert_eq!(report(), (false, 0), "it can never read");
        become_(Share::Assigned, soon).await;
        assert_eq!(report(), (true, 0));
        become_(Share::Waiting, soon).await;
        assert_eq!(report(), (true, 0), "a rebalance is short");
        become_(Share::Refused, soon).await;
        assert_eq!(report(), (false, 0), "it can no longer read");
        become_(Share::Waiting, soon).await;
        assert_eq!(report(), (false, 0));
        assert_eq!(readiness.report().not_ready[0].cause, WAITING);
        become_(Share::Assigned, soon).await;
        assert_eq!(report(), (true, 0));
        become_(Share::Waiting, late).await;
        assert_eq!(report(), (true, 1), "others work");
        become_(Share::Assigned, soon).await;
        for _ in 0..4 {
            become_(Share::Waiting, soon).await;
        }
        assert_eq!(report(), (true, 1), "it waits, however often it says so");
        become_(Share::Refused, soon).await;
        assert_eq!(report(), (false, 0));
        become_(Share::Assigned, soon).await;
        assert_eq!(report(), (true, 0));
        become_(Share::Waiting, soon).await;
        drop(sender);
        watching.await.unwrap();
        assert_eq!(report(), (true, 0));
    }
}
