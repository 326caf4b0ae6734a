//! Runs one binding: subscribes, processes, closes, and starts again when its subscription ends.

use std::sync::Arc;
use std::time::Duration;

use a2abus_plugin::Text;
use a2abus_transports::content_mode::ProtocolBinding;
use a2abus_transports::{
    AnyTransport, Consumer, Reading, Subscription, Transport as _, TransportError,
    TransportErrorKind,
};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::bridge::BindingService;
use crate::log_limit::LogLimit;
use crate::metrics::Metrics;
use crate::readiness::Readiness;
use crate::restart::{CLOSE, not_too_soon, start};

/// The cause until the partitions of a binding are assigned.
const WAITING: &str = "waiting for partitions";

/// How long a process that starts is not ready because a binding waits for partitions. A new group needs about 3 s.
const PATIENCE: Duration = Duration::from_secs(10);

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
        while !stop.is_cancelled() {
            let Some(consumer) = start(&condition, &readiness, &stop, || self.subscribe()).await
            else {
                return;
            };
            let began = Instant::now();
            readiness.set(condition.as_str(), Err(WAITING.to_owned()));
            let (share, lag) = (consumer.has_share(), consumer.lag());
            let paused = consumer.paused();
            let working = self.work.run(consumer, stop.clone());
            let consumer = tokio::select! {
                consumer = working => consumer,
                () = self.watch_share(share, &readiness) => return,
                () = self.watch_lag(lag) => return,
                () = self.watch_paused(paused) => return,
                () = grace_over(&stop, self.grace) => return self.abandon(),
            };
            readiness.restored(&condition);
            self.metrics.source_lag(self.name(), None);
            self.metrics.paused_partitions(self.name(), 0);
            // Waiting requests may settle until then.
            match consumer.close(self.grace.max(CLOSE)).await {
                Err(error) if error.kind() == TransportErrorKind::Fenced => {
                    // This process does not take its place back: two processes that replace each other in turn would
                    // do no work.
                    tracing::error!(binding = %self.name(), %error, "another process has the same instance_id");
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

    /// Logs how many messages were in progress at the deadline: a source that stores messages redelivers them, core
    /// NATS does not.
    fn abandon(&self) {
        let (name, messages) = (self.name(), self.work.in_flight());
        let is_kept = !matches!(self.subscription.reading, Reading::Group(_))
            || self.transport.binding() != ProtocolBinding::Nats;
        match messages {
            0 => {}
            _ if is_kept => tracing::warn!(binding = %name, messages,
                "the grace period is over: messages in progress are abandoned, and will be redelivered"),
            _ => tracing::error!(binding = %name, messages,
                "the grace period is over: messages in progress are lost, because core NATS does not store them"),
        }
    }

    /// Logs and counts partitions that are paused because of one unanswered request. Never ends.
    async fn watch_paused(&self, paused: Option<watch::Receiver<Vec<Text>>>) {
        let name = self.name();
        let mut before = Vec::new();
        if let Some(mut paused) = paused {
            while paused.changed().await.is_ok() {
                let now = paused.borrow_and_update().clone();
                self.metrics.paused_partitions(name, now.len());
                for partition in now.iter().filter(|partition| !before.contains(*partition)) {
                    if let Some(suppressed) = self.pauses.allow() {
                        tracing::warn!(binding = %name, %partition, suppressed,
                            "paused a partition: too many records were read after a request that is still unanswered");
                    }
                }
                for partition in before.iter().filter(|partition| !now.contains(partition)) {
                    if let Some(suppressed) = self.resumptions.allow() {
                        tracing::info!(binding = %name, %partition, suppressed, "resumed a paused partition");
                    }
                }
                before = now;
            }
        }
        std::future::pending().await
    }

    /// Marks the binding as ready once it has its partitions, and as degraded while it waits for them for longer than
    /// [`PATIENCE`]: other parts of the process work. Never ends.
    async fn watch_share(&self, share: Option<watch::Receiver<bool>>, readiness: &Readiness) {
        let (name, condition) = (self.name(), self.condition());
        let Some(mut share) = share else {
            readiness.set(condition, Ok(()));
            return std::future::pending().await;
        };
        loop {
            let assigned = share.wait_for(|assigned| *assigned);
            let is_late = tokio::time::timeout(PATIENCE, assigned).await.is_err();
            readiness.set(condition.as_str(), Ok(()));
            if is_late {
                tracing::warn!(binding = %name, waited = ?PATIENCE, "still waiting for partitions: the broker assigns those of a process that died only after its session_timeout");
                readiness.degraded(condition.as_str(), WAITING.to_owned());
                let assigned = share.wait_for(|assigned| *assigned);
                let is_over = assigned.await.is_err();
                readiness.restored(&condition);
                if !is_over {
                    tracing::info!(binding = %name, "partitions are assigned: the binding is read");
                }
            }
            if share.wait_for(|assigned| !*assigned).await.is_err() {
                return std::future::pending().await;
            }
        }
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

    /// Warns if no stream stores the dead letters of core NATS, which are then lost.
    async fn warn_of_lost_dead_letters(&self, transport: &AnyTransport) {
        #[cfg(feature = "nats")]
        if let AnyTransport::Nats(nats) = transport {
            let (dead_letters, binding) = (&self.work.intake().dead_letters, self.name());
            let topic = dead_letters.topic.as_str();
            if !dead_letters.is_backed && matches!(nats.stream_of(topic).await, Ok(None)) {
                tracing::warn!(%binding, topic, "no JetStream stream stores the dead letters of this binding: they are lost");
            }
        }
        #[cfg(not(feature = "nats"))]
        let _ = transport;
    }

    async fn subscribe(&self) -> Result<Consumer, TransportError> {
        if let Some(transport) = &self.dead_letters {
            transport
                .ensure_topic(&self.work.intake().dead_letters.topic, 1)
                .await?;
            self.warn_of_lost_dead_letters(transport).await;
        }
        self.transport.subscribe(self.subscription.clone()).await
    }
}

async fn grace_over(stop: &CancellationToken, grace: Duration) {
    stop.cancelled().await;
    tokio::time::sleep(grace).await;
}
