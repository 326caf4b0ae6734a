//! The log entries about resources. Any replica may have the stream of a client.
//!
//! Source: docs/protocols/mcp.md §9.

use std::collections::{BTreeSet, HashSet};

use a2abus_plugin::Text;

use super::fold::{Entry, Event};
use super::resources::{RESOURCE, SUBSCRIPTION, Subscription, UpdateSource, containing};
use super::{Results, digest_of, is_over};
use crate::clock;
use crate::state::{ATTENDED, Entries, LATEST, StateError, body};

// === impl Results ===

impl Results {
    /// Records a subscription. Returns when this replica has read the record.
    ///
    /// # Errors
    /// When it is not stored.
    pub(crate) async fn subscribe(&self, subscription: Subscription) -> Result<(), StateError> {
        let key = key_of_subscription(&subscription);
        let event = body::write(&Event::Subscribed(subscription));
        self.view
            .commit_again(&key, Some(event), ATTENDED)
            .await
            .map(drop)
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
        self.view.commit_again(&key, Some(event), ATTENDED).await?;
        Ok(self.is_subscribed(subscription))
    }

    /// Whether this subscription is recorded.
    pub(crate) fn has_subscription(&self, subscription: &Subscription) -> bool {
        let key = key_of_subscription(subscription);
        self.view
            .read(|entries| matches!(entries.get(&key), Some(Entry::Subscribed(_))))
    }

    /// The subscriptions of a session that has not ended.
    pub(crate) fn subscriptions_of(&self, session: &str) -> Vec<Subscription> {
        self.view.read(|entries| {
            if is_over(entries, session) {
                return Vec::new();
            }
            let entries = entries.group(session);
            let all = entries.filter_map(|(_, entry)| entry.subscription());
            let of_session = all.filter(|it| *it.subscriber == *session);
            of_session.cloned().collect()
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
        self.view.read(|entries| {
            let mut of_agent = at_agent(entries, &subscription.agent);
            of_agent.any(|other| other.uri == subscription.uri)
        })
    }

    fn is_watched(&self, agent: &str, uri: &str) -> bool {
        let containers: HashSet<&str> = containing(uri).map(|(container, _)| container).collect();
        self.view.read(|entries| {
            let mut of_agent = at_agent(entries, agent);
            of_agent.any(|it| containers.contains(&*it.uri))
        })
    }

    /// The resources of an agent that clients have subscribed to, once the log has been read.
    pub(crate) async fn watched_resources(&self, agent: &str) -> BTreeSet<Text> {
        if self.view.caught_up().await.is_err() {
            return BTreeSet::new();
        }
        self.view
            .read(|entries| at_agent(entries, agent).map(|it| it.uri.clone()).collect())
    }

    /// Records for all replicas that a resource has changed, if a client has subscribed to it or to one that contains it.
    /// A change that was recorded before, with the same source, reaches nobody again.
    ///
    /// # Errors
    /// When it is not stored.
    pub(crate) async fn note_updated(
        &self,
        agent: &Text,
        uri: Text,
        from: Option<UpdateSource>,
    ) -> Result<(), StateError> {
        if !self.is_watched(agent, &uri) {
            // Another replica may have just recorded a subscription.
            self.view.latest(LATEST).await?;
            if !self.is_watched(agent, &uri) {
                tracing::debug!(%agent, %uri, "no client has subscribed to a resource that has changed");
                return Ok(());
            }
        }
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
        self.append(&format!("{RESOURCE}{digest}"), &event, ATTENDED)
            .await
    }
}

/// The subscriptions at an agent whose session has not ended.
fn at_agent<'a>(
    entries: &'a Entries<Entry>,
    agent: &'a str,
) -> impl Iterator<Item = &'a Subscription> {
    let all = entries.group(agent);
    let all = all.filter_map(|(_, entry)| entry.subscription());
    all.filter(move |it| *it.agent == *agent)
        .filter(move |it| !is_over(entries, &it.subscriber))
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
