//! How many subscriptions to resources each client has at this replica. A client may have only its share, however many
//! sessions and streams it opens. The share is a number, not memory: long URIs can use up the room of all clients.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use a2abus_plugin::Text;
use tokio::time::Instant;

/// The subscriptions that this replica has recorded for its clients.
#[derive(Debug, Default)]
pub(super) struct Places(HashMap<Text, Taken>);

/// Those of one client.
#[derive(Debug, Default)]
struct Taken {
    /// Their log keys. Some may have ended since: because of their age, or at another replica.
    keys: HashSet<String>,
    /// When the ended ones were last dropped.
    swept: Option<Instant>,
}

/// Maximum number of subscriptions of one client at one replica: half of those that one server can have.
pub(super) const MAX: usize = 5_000;
/// The shortest time between two searches for the ended ones of a client.
const SWEEP: Duration = Duration::from_secs(1);

// === impl Places ===

impl Places {
    /// Takes a place for the subscription with this log key, unless the client has too many. `retain` drops the keys of
    /// subscriptions that have ended.
    pub(super) fn take(
        &mut self,
        client: &Text,
        key: &str,
        retain: impl Fn(&mut HashSet<String>),
    ) -> bool {
        // Before the table grows, clients without subscriptions leave it.
        if !self.0.contains_key(client) && self.0.len() == self.0.capacity() {
            self.0.retain(|_, taken| {
                retain(&mut taken.keys);
                !taken.keys.is_empty()
            });
        }
        let taken = self.0.entry(client.clone()).or_default();
        if taken.keys.len() >= MAX && taken.swept.is_none_or(|swept| swept.elapsed() >= SWEEP) {
            taken.swept = Some(Instant::now());
            retain(&mut taken.keys);
        }
        let has_room = taken.keys.len() < MAX || taken.keys.contains(key);
        if has_room {
            taken.keys.insert(key.to_owned());
        }
        has_room
    }

    /// Keeps the place of a recorded subscription, which may have counted as ended while it was being recorded.
    pub(super) fn keep(&mut self, client: Text, key: String) {
        self.0.entry(client).or_default().keys.insert(key);
    }

    /// Gives a place back.
    pub(super) fn give_back(&mut self, client: &Text, key: &str) {
        if let Some(taken) = self.0.get_mut(client) {
            taken.keys.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_has_a_share_and_gets_places_back() {
        let (one, other) = (Text::from_static("a"), Text::from_static("b"));
        let mut places = Places::default();
        let all = |_: &mut HashSet<String>| {};
        for number in 0..MAX {
            assert!(places.take(&one, &number.to_string(), all));
        }
        assert!(!places.take(&one, "more", all));
        assert!(places.take(&one, "0", all), "it is renewed");
        assert!(places.take(&other, "more", all), "another client");
        places.give_back(&one, "0");
        assert!(places.take(&one, "more", all));
        // One has ended at another replica, which is noticed a moment later.
        let ended = |keys: &mut HashSet<String>| keys.retain(|key| key != "1");
        assert!(!places.take(&one, "most", ended));
        tokio::time::advance(SWEEP).await;
        assert!(places.take(&one, "most", ended));
        assert!(!places.take(&one, "last", ended));
    }

    #[test]
    fn clients_without_subscriptions_are_forgotten() {
        let mut places = Places::default();
        let none = |keys: &mut HashSet<String>| keys.clear();
        for number in 0..10_000 {
            let client = Text::from(number.to_string());
            assert!(places.take(&client, "key", none));
        }
        assert!(places.0.len() < 100, "{} clients", places.0.len());
    }
}
