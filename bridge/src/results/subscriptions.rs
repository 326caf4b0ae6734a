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

/// All subscriptions together may take the memory divided by this. They are not removed before their end, so without a
/// limit they would displace everything else.
const ROOM_PART: usize = 4;

// === impl Results ===

impl Results {
    /// The log key of a subscription.
    pub(crate) fn subscription_key(subscription: &Subscription) -> String {
        let parts = [
            &subscription.subscriber,
            &subscription.agent,
            &subscription.uri,
        ];
        let digest = digest_of(parts.map(|part| part.as_bytes()));
        format!("{SUBSCRIPTION}{digest}")
    }

    /// Whether there is room for another subscription. Other entries that cannot be removed count too; there are few of
    /// them.
    pub(crate) fn has_room_for_subscriptions(&self) -> bool {
        let room = self.view.memory_bytes() / ROOM_PART;
        self.view.read(Entries::lasting_bytes) < room
    }

    /// Drops the log keys of subscriptions that have ended.
    pub(crate) fn retain_subscribed(&self, keys: &mut HashSet<String>) {
        self.view.read(|entries| {
            keys.retain(|key| matches!(entries.get(key), Some(Entry::Subscribed(_))));
        });
    }

    /// Records a subscription. Returns when this replica has read the record.
    ///
    /// # Errors
    /// When it is not stored.
    pub(crate) async fn subscribe(&self, subscription: Subscription) -> Result<(), StateError> {
        let key = Self::subscription_key(&subscription);
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
        let key = Self::subscription_key(subscription);
        self.view.commit_again(&key, Some(event), ATTENDED).await?;
        Ok(self.is_subscribed(subscription))
    }

    /// Whether this subscription is recorded.
    pub(crate) fn has_subscription(&self, subscription: &Subscription) -> bool {
        let key = Self::subscription_key(subscription);
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

    /// How many subscriptions of clients there are at an agent.
    pub(crate) fn subscription_count(&self, agent: &str) -> usize {
        self.view.read(|entries| at_agent(entries, agent).count())
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::log_limit::LogLimits;
    use crate::results::{Claim, KeyState, ResultFold};
    use crate::state::{MemoryLog, RESULTS, View};

    const SOON: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn subscriptions_leave_room_for_everything_else() {
        let memory_bytes = 100_000;
        let log = MemoryLog::new(RESULTS, 1 << 20);
        let (view, _task) = View::start(log, ResultFold, memory_bytes);
        let results = Results::new(view, None, &LogLimits::default());
        let subscription = |number: usize| Subscription {
            subscriber: format!("mcp-session-{number}").into(),
            agent: "files".into(),
            uri: "file:///a".into(),
            client_uri: "file:///a".into(),
        };
        let mut count = 0;
        while results.has_room_for_subscriptions() {
            results.subscribe(subscription(count)).await.unwrap();
            count += 1;
        }
        assert!(count > 10, "{count} subscriptions");
        let bytes = results.view.read(Entries::bytes);
        assert!(bytes < memory_bytes / 2, "{bytes} bytes");
        let claim = Claim {
            digest: "d".into(),
            call: "a".into(),
            until: u64::MAX,
        };
        let claimed = results.claim("key-1", &claim, SOON).await.unwrap();
        assert!(matches!(claimed, KeyState::Ours), "{claimed:?}");
        let keys = [0, count].map(|number| Results::subscription_key(&subscription(number)));
        let mut keys = HashSet::from(keys);
        results.retain_subscribed(&mut keys);
        assert_eq!(keys.len(), 1, "the other one is not recorded");
        results.unsubscribe(&subscription(0)).await.unwrap();
        results.retain_subscribed(&mut keys);
        assert!(keys.is_empty());
        results.unsubscribe(&subscription(1)).await.unwrap();
        results.unsubscribe(&subscription(2)).await.unwrap();
        assert!(results.has_room_for_subscriptions(), "some have ended");
    }
}
