//! Publishing: a producer that sends batches, and one that sends one message per request, for topics that refuse
//! batches.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::KafkaConfig;
use super::health::Pulse;
use super::singly::{Batched, Single, Singles};
use super::topics::Topics;
use super::writer::{Client, Writer};
use crate::error::TransportError;
use crate::message::Message;
use crate::transport::{Address, Confirmation};

/// The librdkafka producer of batches.
pub(super) type BatchClient = Client<Batched>;

/// The producers of one transport.
#[derive(Debug)]
pub(super) struct Producer {
    batches: Arc<Writer<Batched>>,
    singles: Arc<Singles>,
}

// === impl Producer ===

impl Producer {
    /// Starts the producer of batches; the other one starts when needed. Does not wait for a broker.
    pub(super) fn start(
        config: &Arc<KafkaConfig>,
        pulse: &Arc<Pulse>,
        topics: &Arc<Topics>,
    ) -> Result<Self, TransportError> {
        let parts = || (Arc::clone(config), Arc::clone(pulse), Arc::clone(topics));
        let (config, pulse, topics) = parts();
        let singles = Arc::new(Singles::new(config, pulse, topics));
        let (config, pulse, topics) = parts();
        Ok(Self {
            batches: Writer::start(config, pulse, topics)?,
            singles,
        })
    }

    /// The client of the batch producer, for questions to the cluster.
    pub(super) fn client(&self) -> Result<Arc<BatchClient>, TransportError> {
        self.batches.client()
    }

    /// The known state of the topics that are written to.
    pub(super) fn topics(&self) -> &Topics {
        self.batches.topics()
    }

    /// Queues a message, in the order of the calls.
    pub(super) async fn send(
        &self,
        to: &Address,
        message: &Message,
    ) -> Result<Confirmation, TransportError> {
        let passage = self.singles.pass(&to.topic).await?;
        if passage.is_single {
            let single = |answer| Single { answer, passage };
            self.singles.writer()?.queue(to, message, single).await
        } else {
            let batched = |answer| Batched { answer, passage };
            self.batches.queue(to, message, batched).await
        }
    }

    /// Waits until every queued message has a result, then releases the clients.
    pub(super) async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        let until = Instant::now() + deadline.min(super::FOREVER);
        let batches = self.batches.close(until).await;
        // After the batches, because refused batches are sent here.
        match self.singles.close() {
            Some(singles) => singles.close(until).await.and(batches),
            None => batches,
        }
    }

    /// Releases the clients without waiting. Pending confirmations report that they are closed.
    pub(super) fn stop(&self) {
        self.batches.stop();
        if let Some(singles) = self.singles.close() {
            singles.stop();
        }
    }
}
