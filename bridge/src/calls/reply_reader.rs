//! Reads the answers at the reply address of this replica on one bus.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use a2abus_transports::{
    Consumer, Delivery, Outcome, Share, Topic, Transport as _, TransportError, TransportErrorKind,
};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::reply::{ReplyChannel, is_forwarded_within};
use super::service::Calls;
use crate::bus::Bus;
use crate::readiness::Readiness;
use crate::restart::{CLOSE, not_too_soon, refused, start};
use crate::stage;

/// How often to count the partitions of the reply topic.
pub(crate) const RECOUNT_EVERY: Duration = Duration::from_secs(60);
/// The shortest time between two counts, however many answers are misplaced.
const RECOUNT_PAUSE: Duration = Duration::from_secs(5);

/// Reads the answers of one bus.
pub(crate) struct ReplyReader {
    pub(crate) channel: ReplyChannel,
    pub(crate) bus: Bus,
    pub(crate) calls: Arc<Calls>,
}

/// Why a subscription to the reply topic cannot go on as it is.
enum Ended {
    /// The reader was stopped, or has ended by itself.
    Subscription,
    /// The reply topic has this number of partitions now.
    Resized(u32),
    /// The reply topic no longer exists.
    Topic(Topic),
}

// === impl ReplyReader ===

impl ReplyReader {
    /// The name of the readiness condition.
    pub(crate) fn condition(&self) -> String {
        format!("answers on {}", self.bus.name.text())
    }

    pub(crate) async fn run(self, readiness: Arc<Readiness>, stop: CancellationToken) {
        let condition = self.condition();
        while !stop.is_cancelled() {
            let Some(mut consumer) =
                start(&condition, &readiness, &stop, || self.subscribe()).await
            else {
                return;
            };
            let began = Instant::now();
            readiness.set(condition.as_str(), Ok(()));
            self.channel.set_reading(true);
            let ended = loop {
                match self.read_all(&mut consumer, &readiness, &stop).await {
                    Ended::Resized(partitions) => {
                        let moving = self.read_among(partitions, &mut consumer);
                        stop.run_until_cancelled(moving).await;
                    }
                    Ended::Subscription => break "the subscription ended".to_owned(),
                    // It is created again before the next subscription.
                    Ended::Topic(gone) => {
                        break format!(
                            "the topic {gone} no longer exists: it is created again, and calls wait"
                        );
                    }
                }
            };
            self.channel.set_reading(false);
            if let Err(error) = consumer.close(CLOSE).await {
                tracing::warn!(transport = %self.bus.name.text(), %error, "the reader of answers did not close cleanly");
            }
            readiness.set(condition.as_str(), Err(ended));
            not_too_soon(began, &stop).await;
        }
    }

    /// Reads answers until the subscription cannot go on as it is.
    async fn read_all(
        &self,
        consumer: &mut Consumer,
        readiness: &Readiness,
        stop: &CancellationToken,
    ) -> Ended {
        let mut resized = pin!(self.until_resized());
        let mut gone = pin!(self.until_missing(consumer.missing_topics()));
        // As long as this replica may not read its answers, no call is made.
        let mut watched = pin!(watch_refusals(consumer.share(), |met| {
            self.channel.set_reading(met.is_ok());
            readiness.set(self.condition(), met);
        }));
        loop {
            tokio::select! {
                biased;
                never = &mut watched => match never {},
                delivery = consumer.recv() => match delivery {
                    Some(delivery) => self.read(delivery),
                    None => return Ended::Subscription,
                },
                () = stop.cancelled() => return Ended::Subscription,
                partitions = &mut resized => return Ended::Resized(partitions),
                topic = &mut gone => return Ended::Topic(topic),
            }
        }
    }

    /// Waits until the number of partitions of the reply topic changes. The address of an answer depends on this
    /// number, so all replicas must use the same one.
    async fn until_resized(&self) -> u32 {
        let Some((topic, _)) = self.channel.required_topic() else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(RECOUNT_PAUSE).await;
            drop(tokio::time::timeout(RECOUNT_EVERY, self.channel.until_misplaced()).await);
            // On an error, the number is unknown: try again later.
            if let Ok(partitions) = self.bus.transport.partitions(topic).await
                && self.channel.has_changed(partitions)
            {
                return partitions;
            }
        }
    }

    /// Waits until a topic of a reader no longer exists. A single lookup may come from a broker that does not know them
    /// yet, and a new subscription would miss the answers that are stored meanwhile.
    async fn until_missing(&self, missing: Option<watch::Receiver<Vec<Topic>>>) -> Topic {
        let Some(mut missing) = missing else {
            return std::future::pending().await;
        };
        loop {
            let gone = missing.wait_for(|gone| !gone.is_empty()).await;
            let Ok(gone) = gone.map(|gone| gone.clone()) else {
                return std::future::pending().await;
            };
            for topic in gone {
                let found = self.bus.transport.partitions(&topic).await;
                if found.is_err_and(|error| error.kind() == TransportErrorKind::UnknownTopic) {
                    return topic;
                }
            }
            tokio::time::sleep(RECOUNT_PAUSE).await;
        }
    }

    /// Switches to the partition of this replica among this many, before any call names it. Answers that still arrive
    /// in the old one are forwarded as misplaced.
    async fn read_among(&self, partitions: u32, consumer: &mut Consumer) {
        let transport = self.bus.name.text();
        let new = match self.subscribe_among(partitions).await {
            Ok(new) => new,
            Err(error) => {
                tracing::warn!(%transport, partitions, %error, "the number of partitions of the reply topic has changed, and this replica cannot read its new partition yet");
                return;
            }
        };
        self.channel.found(partitions);
        tracing::info!(%transport, partitions, "the number of partitions of the reply topic has changed: this replica reads its answers from another partition");
        let mut old = std::mem::replace(consumer, new);
        old.stop();
        while let Some(delivery) = old.recv().await {
            self.read(delivery);
        }
        if let Err(error) = old.close(CLOSE).await {
            tracing::warn!(%transport, %error, "the reader of answers did not close cleanly");
        }
    }

    async fn subscribe(&self) -> Result<Consumer, TransportError> {
        let mut count = 1;
        if let Some((topic, partitions)) = self.channel.required_topic() {
            self.bus.transport.ensure_topic(topic, partitions).await?;
            count = self.bus.transport.partitions(topic).await?;
            self.channel.found(count);
        }
        self.subscribe_among(count).await
    }

    async fn subscribe_among(&self, partitions: u32) -> Result<Consumer, TransportError> {
        let subscription = self
            .calls
            .channels()
            .subscription(&self.channel, partitions);
        let subscription = subscription.map_err(|error| {
            TransportError::new(TransportErrorKind::BadConfig, error.to_string())
        })?;
        self.bus.transport.subscribe(subscription).await
    }

    /// Hands one message to the calls that it answers. An answer without a caller is counted, logged and dropped,
    /// because nothing waits for it.
    fn read(&self, delivery: Delivery) {
        let span = stage::receive(
            self.bus.name.text(),
            &delivery.topic,
            delivery.origin.as_ref(),
        );
        let _receive = span.entered();
        let rules = self.calls.rules();
        let bus = self.channel.bus;
        let at = self.calls.at_reply_address(&delivery, &rules, bus);
        let binding = self.bus.transport.binding();
        let channels = self.calls.channels();
        let is_within = is_forwarded_within(at.message) && channels.is_reading_every_partition();
        let is_second_copy = is_within || channels.is_read_here(bus, at.message);
        if !is_second_copy && !self.calls.no_responders(at, binding) {
            // The outcomes are counted and logged, and none of them needs forwarding.
            drop(self.calls.take_answers(at, binding));
        }
        if let Err(error) = delivery.acknowledger.settle(Outcome::Settled) {
            tracing::warn!(%error, "an answer was not acknowledged: it may be redelivered");
        }
    }
}

/// Reports whether the cluster lets a reader read, now and whenever that changes.
pub(crate) async fn watch_refusals(
    share: Option<watch::Receiver<Share>>,
    report: impl Fn(Result<(), String>),
) -> Infallible {
    if let Some(mut share) = share {
        loop {
            let is_refused = *share.borrow_and_update() == Share::Refused;
            report(match is_refused {
                true => Err(refused()),
                false => Ok(()),
            });
            if share.changed().await.is_err() {
                break;
            }
        }
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reader_that_is_refused_from_the_start_reports_it_and_its_end() {
        let (sender, share) = watch::channel(Share::Refused);
        let (reports, mut reported) = tokio::sync::mpsc::channel(1);
        let report = move |met: Result<(), String>| reports.try_send(met.is_ok()).unwrap();
        let watching = watch_refusals(Some(share), report);
        let expected = async {
            assert_eq!(reported.recv().await, Some(false));
            sender.send_replace(Share::Assigned);
            assert_eq!(reported.recv().await, Some(true));
            sender.send_replace(Share::Refused);
            assert_eq!(reported.recv().await, Some(false));
        };
        tokio::select! {
            never = watching => match never {},
            () = expected => {}
        }
    }
}
