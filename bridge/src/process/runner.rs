//! Runs one binding: subscribes, processes, closes, and starts again when its subscription ends.

use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use a2abus_transports::content_mode::ProtocolBinding;
use a2abus_transports::{
    AnyTransport, Consumer, PauseCause, PausedPartition, Reading, Share, Subscription,
    Transport as _, TransportError, TransportErrorKind,
};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::bridge::BindingService;
use crate::log_limit::LogLimit;
use crate::metrics::Metrics;
use crate::readiness::Readiness;
use crate::restart::{CLOSE, not_too_soon, refused, start};

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
            let (share, lag) = (consumer.share(), consumer.lag());
            let paused = consumer.paused();
            let working = self.work.run(consumer, stop.clone());
            let consumer = tokio::select! {
                consumer = working => consumer,
                () = self.watch_share(share, &readiness) => return,
                () = self.watch_lag(lag) => return,
                () = self.watch_paused(paused) => return,
                () = self.watch_dead_letters() => return,
                () = self.report_drain(&stop) => return,
                () = grace_over(&stop, self.grace) => return self.abandon(),
            };
            readiness.restored(&condition);
            self.metrics.source_lag(self.name(), None);
            self.metrics.paused_partitions(self.name(), 0);
            // Waiting requests may settle until then.
            let closed = tokio::select! {
                closed = consumer.close(self.grace.max(CLOSE)) => closed,
                () = self.report_drain(&stop) => return,
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

    /// Logs during a drain what it waits for. Never ends.
    async fn report_drain(&self, stop: &CancellationToken) {
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
        let is_group = matches!(
            self.subscription.reading,
            Reading::Group(_) | Reading::PromptGroup(_)
        );
        let is_kept = !is_group || self.transport.binding() != ProtocolBinding::Nats;
        match messages {
            0 => {}
            _ if is_kept => tracing::warn!(binding = %name, messages,
                "the grace period is over: messages in progress are abandoned, and will be redelivered"),
            _ => tracing::error!(binding = %name, messages,
                "the grace period is over: messages in progress are lost, because core NATS does not store them"),
        }
    }

    /// Logs and counts partitions that are paused because of their own messages. Never ends.
    async fn watch_paused(&self, paused: Option<watch::Receiver<Vec<PausedPartition>>>) {
        let name = self.name();
        let mut before = Vec::new();
        if let Some(mut paused) = paused {
            while paused.changed().await.is_ok() {
                let now = paused.borrow_and_update().clone();
                self.metrics.paused_partitions(name, now.len());
                for paused in now.iter().filter(|paused| !before.contains(*paused)) {
                    if let Some(suppressed) = self.pauses.allow() {
                        let why = match paused.cause {
                            PauseCause::Behind => {
                                "too many records were read after a request that is still unanswered"
                            }
                            PauseCause::Blocked => {
                                "its messages use the budget, and wait for a destination that accepts none; other partitions are read"
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
            }
        }
        std::future::pending().await
    }

    /// Marks the binding as ready once it has its partitions, and as degraded while it waits for them for longer than
    /// [`PATIENCE`]: other parts of the process work. It is not ready while the cluster refuses it a permission. Never
    /// ends.
    async fn watch_share(&self, share: Option<watch::Receiver<Share>>, readiness: &Readiness) {
        let condition = self.condition();
        match share {
            None => readiness.set(condition, Ok(())),
            Some(share) => watch_share(share, self.name(), &condition, readiness).await,
        }
        std::future::pending().await
    }

    /// Records the lag of the binding whenever it is reported. Never ends.
    async fn watch_lag(&self, lag: Option<watch::Receiver<Option<u64>>>) {
        if let Some(mut lag) = lag {
            while lag.changed().await.is_ok() {
                let known = *lag.borrow_and_update();
                self.metrics.source_lag(self.name(), known);
            }
        }
        std::future::pending().await
    }

    /// Warns if no stream stores the dead letters of core NATS: they are lost. Logs when one stores them. Never ends.
    async fn watch_dead_letters(&self) {
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
                        tracing::warn!(%binding, topic, "no JetStream stream stores the dead letters of this binding: they are lost");
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

/// Reports whether a binding has its partitions until its reader ends.
async fn watch_share(
    mut share: watch::Receiver<Share>,
    name: &Text,
    condition: &str,
    readiness: &Readiness,
) {
    let mut is_late = false;
    let mut before = Share::Waiting;
    loop {
        let now = *share.borrow_and_update();
        let was_refused = std::mem::replace(&mut before, now) == Share::Refused;
        match now {
            // That is reported already.
            Share::Waiting if is_late => {}
            Share::Waiting => {
                if was_refused {
                    // The permission is granted, and only the partitions are missing.
                    readiness.set(condition, Err(WAITING.to_owned()));
                }
                // A client that is replaced reports again that it waits: the wait goes on.
                let over = share.wait_for(|share| *share != Share::Waiting);
                match timeout(PATIENCE, over).await.map(|over| over.is_ok()) {
                    Ok(true) => continue,
                    // The reader has ended.
                    Ok(false) => return,
                    Err(_) => {
                        is_late = true;
                        tracing::warn!(binding = %name, waited = ?PATIENCE, "still waiting for partitions: the group waits for its other members, or for the session_timeout of one that died");
                        readiness.set(condition, Ok(()));
                        readiness.degraded(condition, WAITING.to_owned());
                    }
                }
            }
            Share::Refused => {
                is_late = false;
                readiness.restored(condition);
                readiness.set(condition, Err(refused()));
            }
            Share::Assigned => {
                if std::mem::take(&mut is_late) {
                    tracing::info!(binding = %name, "partitions are assigned: the binding is read");
                }
                readiness.restored(condition);
                readiness.set(condition, Ok(()));
            }
        }
        if share.changed().await.is_err() {
            return;
        }
    }
}

async fn grace_over(stop: &CancellationToken, grace: Duration) {
    stop.cancelled().await;
    tokio::time::sleep(grace).await;
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let watching = tokio::spawn({
            let readiness = Arc::clone(&readiness);
            async move { watch_share(share, &"b".into(), "b", &readiness).await }
        });
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
