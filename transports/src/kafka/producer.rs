//! Publishing: a producer for messages that are sent at once, one for messages that wait for others, and one that sends
//! one message per request, for topics that refuse batches.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::KafkaConfig;
use super::health::Pulse;
use super::singly::{Batched, Single, Singles};
use super::topics::Topics;
use super::window::Windows;
use super::writer::{Client, LazyWriter, Setup, Writer};
use crate::error::TransportError;
use crate::message::Message;
use crate::transport::{Address, Confirmation, QUEUE_DEADLINE};

/// The librdkafka producer of batches.
pub(super) type BatchClient = Client<Batched>;

/// Longer than any useful deadline, but short enough that sums of times do not overflow.
const FOREVER: Duration = Duration::from_secs(24 * 60 * 60);

/// The producers of one transport.
#[derive(Debug)]
pub(super) struct Producer {
    prompt: Arc<Windows<Batched>>,
    /// For messages that may linger, if the configuration lets them.
    lingering: Option<LazyWriter<Batched>>,
    singles: Arc<Singles>,
}

// === impl Producer ===

impl Producer {
    /// Starts the producer that sends at once; the others start when needed. Does not wait for a broker.
    pub(super) fn start(
        config: &Arc<KafkaConfig>,
        pulse: &Arc<Pulse>,
        topics: &Arc<Topics>,
    ) -> Result<Self, TransportError> {
        let setup = |linger| Setup {
            config: Arc::clone(config),
            pulse: Arc::clone(pulse),
            topics: Arc::clone(topics),
            linger,
        };
        let lingers = !config.linger.is_zero();
        Ok(Self {
            prompt: Windows::new(Writer::start(setup(Duration::ZERO))?),
            lingering: lingers.then(|| LazyWriter::new(setup(config.linger))),
            singles: Arc::new(Singles::new(setup(Duration::ZERO))),
        })
    }

    /// The client of the producer that sends at once, for questions to the cluster.
    pub(super) fn client(&self) -> Result<Arc<BatchClient>, TransportError> {
        self.prompt.writer().client()
    }

    /// How many more bytes of messages may wait for earlier ones.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.prompt.room()
    }

    /// The known state of the topics that are written to.
    pub(super) fn topics(&self) -> &Topics {
        self.prompt.writer().topics()
    }

    /// Queues a message, in the order of the calls. `partitions` is how many the topic has.
    pub(super) async fn send(
        &self,
        to: &Address,
        partitions: usize,
        message: &Message,
    ) -> Result<Confirmation, TransportError> {
        // One deadline for every wait.
        let until = tokio::time::Instant::now() + QUEUE_DEADLINE;
        let passage = self.singles.pass(&to.topic, until).await?;
        if passage.is_single {
            let single = |answer| Single { answer, passage };
            let writer = self.singles.writer().get()?;
            return writer.queue(to, message, until, single).await;
        }
        match &self.lingering {
            Some(lingering) if to.may_linger => {
                let batched = |answer| Batched {
                    answer,
                    passage,
                    in_window: None,
                };
                let writer = lingering.get()?;
                writer.queue(to, message, until, batched).await
            }
            _ => {
                let batched = |answer, in_window| Batched {
                    answer,
                    passage,
                    in_window: Some(in_window),
                };
                let prompt = &self.prompt;
                prompt.send((to, partitions), message, until, batched).await
            }
        }
    }

    /// Waits until every queued message has a result, then releases the clients.
    pub(super) async fn close(&self, deadline: Duration) -> Result<(), TransportError> {
        let until = Instant::now() + deadline.min(FOREVER);
        let lingering = async {
            match &self.lingering {
                Some(lingering) => lingering.close(until).await,
                None => Ok(()),
            }
        };
        self.prompt.release_all();
        let (prompt, lingering) = tokio::join!(self.prompt.writer().close(until), lingering);
        // After the batches, because refused batches are sent here.
        let singles = self.singles.writer().close(until).await;
        singles.and(lingering).and(prompt)
    }

    /// Releases the clients without waiting. Pending confirmations report that they are closed.
    pub(super) fn stop(&self) {
        self.prompt.writer().stop();
        if let Some(lingering) = &self.lingering {
            lingering.stop();
        }
        self.singles.writer().stop();
    }
}
