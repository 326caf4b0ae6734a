//! The tasks that process the messages of a binding. Each lane belongs to one of them, which keeps its order.

use std::panic::resume_unwind;
use std::sync::Arc;

use a2abus_transports::{Consumer, Delivery};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{self, Permit};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::state::Pipeline;

/// Maximum number of messages received at once.
pub(super) const AT_ONCE: usize = 256;

/// The queues of the workers. When they are dropped, the workers finish what they have and end.
pub(super) struct Queues(Vec<mpsc::Sender<Delivery>>);

/// Where a worker gets its messages from.
pub(super) trait Source: Send {
    /// Waits for the next delivery, and appends it and further available ones, at most `most`. Returns how many: 0 at the
    /// end.
    fn recv_many(
        &mut self,
        deliveries: &mut Vec<Delivery>,
        most: usize,
    ) -> impl Future<Output = usize> + Send;

    /// Asks for no further messages.
    fn stop(&mut self);
}

/// Starts the workers. Dropping the tasks aborts them: the source delivers the unfinished messages again.
pub(super) fn start(pipeline: &Arc<Pipeline>, stop: &CancellationToken) -> (Queues, JoinSet<()>) {
    let mut tasks = JoinSet::new();
    let mut start = || {
        let (queue, mut deliveries) = mpsc::channel(AT_ONCE);
        let (pipeline, stop) = (Arc::clone(pipeline), stop.clone());
        tasks.spawn(async move { pipeline.work(&mut deliveries, &stop).await });
        queue
    };
    let queues = (0..pipeline.workers).map(|_| start()).collect();
    (Queues(queues), tasks)
}

/// A worker has ended. Panics if it did.
pub(super) fn ended(worker: Result<(), JoinError>) {
    if let Err(error) = worker
        && let Ok(panic) = error.try_into_panic()
    {
        resume_unwind(panic);
    }
}

// === impl Source ===

impl Source for Consumer {
    async fn recv_many(&mut self, deliveries: &mut Vec<Delivery>, most: usize) -> usize {
        Self::recv_many(self, deliveries, most).await
    }

    fn stop(&mut self) {
        Self::stop(self);
    }
}

impl Source for mpsc::Receiver<Delivery> {
    async fn recv_many(&mut self, deliveries: &mut Vec<Delivery>, most: usize) -> usize {
        Self::recv_many(self, deliveries, most).await
    }

    /// Nothing: the queue ends with the consumer.
    fn stop(&mut self) {}
}

// === impl Queues ===

impl Queues {
    /// Queues a delivery for the worker of its lane. Returns it if that queue is full.
    pub(super) fn push(&self, delivery: Delivery) -> Option<Delivery> {
        match self.of(delivery.lane)?.try_send(delivery) {
            Err(TrySendError::Full(delivery)) => Some(delivery),
            // The worker has panicked, and so will the binding.
            Ok(()) | Err(TrySendError::Closed(_)) => None,
        }
    }

    /// Waits for room in the queue of a lane's worker.
    pub(super) async fn room(&self, lane: u32) -> Option<Permit<'_, Delivery>> {
        self.of(lane)?.reserve().await.ok()
    }

    fn of(&self, lane: u32) -> Option<&mpsc::Sender<Delivery>> {
        self.0.get(lane as usize % self.0.len())
    }
}
