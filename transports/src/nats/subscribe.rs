//! One subscription of the client, and whether the server refused it.

use std::time::Duration;

use a2abus_plugin::Text;
use async_nats::{Client, Subscriber};
use tokio::sync::broadcast;

use super::jetstream::unauthorised;
use super::link::Refusal;
use crate::error::{TransportError, TransportErrorKind};
use crate::transport::QUEUE_DEADLINE;

/// How long a refused subscription may take to be reported after the server has read it: the client reports refusals
/// and messages separately.
const REFUSAL_GRACE: Duration = Duration::from_millis(10);

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
                async_nats::SubscribeErrorKind::Other => TransportErrorKind::Closed,
            };
            Err(TransportError::new(kind, what).caused_by(error))
        }
        Err(_) => Err(TransportError::new(TransportErrorKind::Saturated, what)),
    }
}

/// Fails if the server refused one of the subscriptions.
pub(super) async fn refused(
    mut refusals: broadcast::Receiver<Refusal>,
    subjects: &[&str],
    user: &str,
) -> Result<(), TransportError> {
    let listen = async {
        loop {
            match refusals.recv().await {
                Ok(Refusal::Subscribe(subject)) if subjects.contains(&subject.as_str()) => {
                    return Some(subject);
                }
                // Other subjects, and refusals missed among many others.
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    };
    match tokio::time::timeout(REFUSAL_GRACE, listen).await {
        Ok(Some(subject)) => Err(unauthorised(&format!("subscribe to {subject}"), user)),
        Ok(None) | Err(_) => Ok(()),
    }
}
