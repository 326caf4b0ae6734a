//! The log entries about resources. Any replica may have the stream of a client.
//!
//! Source: docs/protocols/mcp.md §9.

use a2abus_plugin::Text;

use super::fold::{Entry, Event};
use super::resources::{RESOURCE, SUBSCRIPTION, Subscription, UpdateSource};
use super::{APPLIED, LATEST, Results, digest_of};
use crate::clock;
use crate::state::{StateError, body};

// === impl Results ===

impl Results {
    /// Records a subscription. Returns when this replica has read the record.
    ///
    /// # Errors
    /// When it is not stored.
    pub(crate) async fn subscribe(&self, subscription: Subscription) -> Result<(), StateError> {
        let key = key_of_subscription(&subscription);
        let event = body::write(&Event::Subscribed(subscription));
        self.view.commit(&key, Some(event), APPLIED).await.map(drop)
    }

    /// Records the end of a subscription. Returns whether other clients still have a subscription to the resource.
    ///
    /// # Errors
    /// When it is not stored.
    pub(crate) async fn unsubscribe(
        &self,
        subscription: &Subscription,
    ) -> Result<bool, StateError> {
        let event = body::write(&Event::Unsubscribed(subscription.clone()));
        let key = key_of_subscription(subscription);
        self.view.commit(&key, Some(event), APPLIED).await?;
        Ok(self.is_subscribed(subscription))
    }

    /// The subscriptions of a session that has not ended.
    pub(crate) fn subscriptions_of(&self, session: &str) -> Vec<Subscription> {
        self.view.read(|entries| {
            if matches!(entries.get(session), Some(Entry::Over)) {
                return Vec::new();
            }
            let entries = entries.group(session);
            let all = entries.filter_map(|(_, entry)| entry.subscription());
            all.cloned().collect()
        })
    }

    /// The same, once this replica has read everything that is in the log now.
    pub(crate) async fn latest_subscriptions_of(&self, session: &str) -> Vec<Subscription> {
        // Without the end of the log, those that were read are all that is known.
        let _ = self.view.latest(LATEST).await;
        self.subscriptions_of(session)
    }

    /// Whether a client has subscribed to a resource.
    pub(crate) fn is_subscribed(&self, subscription: &Subscription) -> bool {
        !self
            .subscriptions(|other| other.is_of_same_resource(subscription))
            .is_empty()
    }

    /// The resources of an agent that clients have subscribed to, once the log has been read.
    pub(crate) async fn watched_resources(&self, agent: &str) -> Vec<Text> {
        if self.view.caught_up().await.is_err() {
            return Vec::new();
        }
        let subscriptions = self.subscriptions(|subscription| *subscription.agent == *agent);
        subscriptions.into_iter().map(|it| it.uri).collect()
    }

    /// The recorded subscriptions whose session has not ended.
    fn subscriptions(&self, is_sought: impl Fn(&Subscription) -> bool) -> Vec<Subscription> {
        self.view.read(|entries| {
            let all = entries.iter();
            let all = all.filter_map(|(_, entry)| entry.subscription());
            let sought = all.filter(|it| is_sought(it)).filter(|it| {
                let session = entries.get(&it.subscriber);
                !matches!(session, Some(Entry::Over))
            });
            sought.cloned().collect()
        })
    }

    /// Records for all replicas that a resource has changed. A change that was recorded before, with the same source,
    /// reaches nobody again.
    ///
    /// # Errors
    /// When it is not stored.
    pub(crate) async fn note_updated(
        &self,
        agent: &Text,
        uri: Text,
        from: Option<UpdateSource>,
    ) -> Result<(), StateError> {
        // A key for each change: an entry of an earlier one may have been forgotten, and then takes no records.
        let from = from.unwrap_or_else(|| UpdateSource {
            run: Text::from(&*clock::new_event_id()),
            number: 0,
        });
        let number = from.number.to_be_bytes();
        let (of, run) = (agent.as_bytes(), from.run.as_bytes());
        let digest = digest_of([of, uri.as_bytes(), run, &number]);
        let agent = agent.clone();
        let event = Event::Updated { agent, uri };
        self.append(&format!("{RESOURCE}{digest}"), &event).await
    }
}

/// The log key of a subscription.
fn key_of_subscription(subscription: &Subscription) -> String {
    let parts = [
        &subscription.subscriber,
        &subscription.agent,
        &subscription.uri,
    ];
    let digest = digest_of(parts.map(|part| part.as_bytes()));
    format!("{SUBSCRIPTION}{digest}")
}
