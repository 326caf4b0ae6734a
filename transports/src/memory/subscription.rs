//! The life of one subscription: joins its group, is tended by one task, and leaves.

use std::sync::Arc;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::store::{Budget, Member, MemberId, Role, Store};
use crate::delivery::Delivery;
use crate::error::{TransportError, TransportErrorKind};
use crate::transport::{Consumer, Reader, Reading, Subscription};

/// Joins, and leaves the rest to a task that ends with the consumer or its connection.
pub(super) fn open(
    store: &Arc<Store>,
    connection: &CancellationToken,
    subscription: Subscription,
) -> Result<Consumer, TransportError> {
    let bad = |what: &str| Err(TransportError::new(TransportErrorKind::BadConfig, what));
    let Subscription {
        topics,
        reading,
        budget_bytes,
        budget_messages,
    } = subscription;
    let role = match reading {
        Reading::Group(name) | Reading::PromptGroup(name) => Role::Group(name),
        Reading::Live { partition } => Role::Live { partition },
        Reading::Durable { .. } => {
            return bad("read a JetStream consumer from the memory bus");
        }
    };
    if topics.is_empty() {
        return bad("subscribe to no topic of the memory bus");
    }
    if budget_messages == 0 || budget_bytes == 0 {
        return bad("subscribe to the memory bus with an empty budget");
    }
    let budget = Budget {
        messages: budget_messages.min(tokio::sync::Semaphore::MAX_PERMITS),
        bytes: budget_bytes,
    };
    // Deliveries in the channel are in flight, so the budget limits them; the capacity is not allocated ahead.
    let (deliver, deliveries) = mpsc::channel(budget.messages);
    let wake = Arc::new(Notify::new());
    let member = Member::new(topics.clone(), deliver.clone(), Arc::clone(&wake), budget);
    let seat = store.join(&role, &topics, member)?;
    let (ended, end) = oneshot::channel();
    let stop = CancellationToken::new();
    let tender = SubscriptionTask {
        store: Arc::clone(store),
        seat,
        deliver,
        wake,
        connection: connection.clone(),
        stop: stop.clone(),
        ended,
    };
    tokio::spawn(tender.run());
    Ok(Consumer::new(deliveries, Reader { stop, ended: end }))
}

/// The task of one subscription.
struct SubscriptionTask {
    store: Arc<Store>,
    seat: MemberId,
    /// Resolves when the consumer no longer receives.
    deliver: mpsc::Sender<Delivery>,
    wake: Arc<Notify>,
    connection: CancellationToken,
    stop: CancellationToken,
    ended: oneshot::Sender<Result<(), TransportError>>,
}

// === impl SubscriptionTask ===

impl SubscriptionTask {
    async fn run(mut self) {
        self.receiving().await;
        self.store.pause(self.seat);
        self.stopped().await;
        self.settling().await;
        let Self {
            store,
            seat,
            deliver,
            ended,
            ..
        } = self;
        // The member goes without the lock; with the last sender the consumer sees the end.
        drop((store.leave(seat), deliver));
        // Nobody waits when the consumer was dropped rather than closed.
        let _ = ended.send(Ok(()));
    }

    /// Until the consumer stops, is dropped, or loses its connection.
    async fn receiving(&self) {
        loop {
            let next = self.store.release(self.seat);
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = self.connection.cancelled() => return,
                () = self.deliver.closed() => return,
                () = self.wake.notified() => {}
                () = due(next) => {}
            }
        }
    }

    /// After [`Consumer::stop`]: until it is closed or dropped.
    async fn stopped(&self) {
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = self.connection.cancelled() => {}
        }
    }

    /// Waits until everything is settled, or until the caller no longer waits.
    async fn settling(&mut self) {
        while !self.connection.is_cancelled() && self.store.in_flight(self.seat) > 0 {
            tokio::select! {
                () = self.wake.notified() => {}
                () = self.ended.closed() => return,
                () = self.connection.cancelled() => return,
            }
        }
    }
}

async fn due(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
