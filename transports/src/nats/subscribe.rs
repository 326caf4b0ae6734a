//! One subscription of the client, and whether the server refuses it, now or later.

use a2abus_plugin::Text;
use async_nats::{Client, Subscriber};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::link::{Link, REFUSAL_GRACE, Refusal, unauthorised};
use crate::error::{TransportError, TransportErrorKind};
use crate::transport::QUEUE_DEADLINE;

/// Listens for refusals of some subscriptions. It must exist before they are made.
pub(super) struct RefusalListener {
    refusals: broadcast::Receiver<Refusal>,
    subjects: Vec<Text>,
    group: Option<Text>,
}

pub(super) async fn subscribe_one(
    client: &Client,
    subject: String,
    group: Option<&Text>,
) -> Result<Subscriber, TransportError> {
    let what = format!("subscribe to {subject}");
    let subscribing = async {
        match group {
            Some(group) => client.queue_subscribe(subject, group.to_string()).await,
            None => client.subscribe(subject).await,
        }
    };
    match tokio::time::timeout(QUEUE_DEADLINE, subscribing).await {
        Ok(Ok(subscriber)) => Ok(subscriber),
        Ok(Err(error)) => {
            let kind = match error.kind() {
                async_nats::SubscribeErrorKind::InvalidSubject
                | async_nats::SubscribeErrorKind::InvalidQueueName => TransportErrorKind::BadConfig,
                // As for a publication: the client's task has just ended.
                async_nats::SubscribeErrorKind::Other => TransportErrorKind::Disconnected,
            };
            Err(TransportError::new(kind, what).caused_by(error))
        }
        Err(_) => Err(TransportError::new(TransportErrorKind::Saturated, what)),
    }
}

// === impl RefusalListener ===

impl RefusalListener {
    pub(super) fn new(link: &Link, subjects: Vec<Text>, group: Option<&Text>) -> Self {
        Self {
            refusals: link.refusals(),
            subjects,
            group: group.cloned(),
        }
    }

    /// Fails if the server, which has read the subscriptions, refused one of them.
    pub(super) async fn check(&mut self, user: &str) -> Result<(), TransportError> {
        match tokio::time::timeout(REFUSAL_GRACE, self.refused()).await {
            Ok(subject) => Err(unauthorised(&format!("subscribe to {subject}"), user)),
            Err(_) => Ok(()),
        }
    }

    /// Ends the subscriptions when the server refuses one of them. After a change of its permissions, a server refuses
    /// them when it applies the change, or when the client connects again; a refusal may also come too late for
    /// [`RefusalListener::check`]. Nothing arrives on a refused subscription any more, so its owner has to subscribe
    /// again, until that is permitted. `lost` is cancelled first: messages may be lost by then.
    pub(super) async fn end_when_refused(
        mut self,
        subscription: String,
        (lost, leave): (CancellationToken, CancellationToken),
        stop: CancellationToken,
    ) {
        if let Some(subject) = stop.run_until_cancelled(self.refused()).await {
            tracing::warn!(%subject, subscription, "NATS no longer permits a subscription: it ends, and is tried again");
            lost.cancel();
            leave.cancel();
        }
    }

    /// Waits until the server refuses one of them, and returns its subject.
    async fn refused(&mut self) -> Text {
        loop {
            match self.refusals.recv().await {
                Ok(Refusal::Subscribe { subject, queue })
                    if queue.may_be(self.group.as_ref()) && self.subjects.contains(&subject) =>
                {
                    return subject;
                }
                // Others, and refusals missed among many others.
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}
