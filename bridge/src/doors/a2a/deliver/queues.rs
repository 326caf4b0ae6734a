//! Webhooks that wait for a call to their host to end.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use a2abus_plugin::Text;
use tokio::time::Instant;

/// Webhooks that wait for a slot of their host.
#[derive(Debug, Default)]
pub(super) struct HostQueues {
    waiting: HashMap<Text, Waiting>,
    /// A queue may still contain webhooks that have begun since, or that now wait elsewhere.
    hosts: HashMap<String, HostQueue>,
}

/// Where a webhook waits.
#[derive(Debug)]
struct Waiting {
    host: String,
    is_retry: bool,
    since: Instant,
}

/// The webhooks that wait for one host.
#[derive(Debug, Default)]
struct HostQueue {
    /// Those whose last call failed.
    retries: Turns,
    others: Turns,
}

/// Webhooks in order. Tasks take turns, so that one with many webhooks does not delay the webhooks of others.
#[derive(Debug, Default)]
struct Turns {
    tasks: VecDeque<Text>,
    /// The webhooks of each task.
    keys: HashMap<Text, VecDeque<Text>>,
}

/// How many webhooks wait for a host.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Crowd {
    pub(super) webhooks: usize,
    /// Those whose last call failed.
    pub(super) retries: usize,
    /// How long the first of the others has waited.
    pub(super) longest: Duration,
}

// === impl HostQueues ===

impl HostQueues {
    /// Whether a webhook waits.
    pub(super) fn contains(&self, key: &Text) -> bool {
        self.waiting.contains_key(key)
    }

    /// A webhook no longer waits.
    pub(super) fn remove(&mut self, key: &Text) {
        self.waiting.remove(key);
    }

    /// Lets a webhook wait for this host, since then. `is_retry` says whether its last call failed.
    pub(super) fn push(&mut self, key: Text, host: String, is_retry: bool, since: Instant) {
        let before = self.waiting.get(&key);
        if before.is_some_and(|before| before.is_at(&host, is_retry)) {
            return;
        }
        let since = before.map_or(since, |before| before.since);
        let queue = self.hosts.entry(host.clone()).or_default();
        let turns = match is_retry {
            true => &mut queue.retries,
            false => &mut queue.others,
        };
        turns.push(key.clone());
        let waiting = Waiting {
            host,
            is_retry,
            since,
        };
        self.waiting.insert(key, waiting);
    }

    /// The next webhook that waits for this host, and since when. If `may_retry` is set, those whose last call failed
    /// come first: they have slots of their own.
    pub(super) fn pop(&mut self, host: &str, may_retry: bool) -> Option<(Instant, Text)> {
        let queue = self.hosts.get_mut(host)?;
        let mut next = None;
        while let Some((key, is_retry)) = queue.pop(may_retry) {
            let waiting = self.waiting.get(&key);
            if let Some(waiting) = waiting.filter(|waiting| waiting.is_at(host, is_retry)) {
                next = Some((waiting.since, key));
                break;
            }
        }
        if queue.is_empty() {
            self.hosts.remove(host);
        }
        if let Some((_, key)) = &next {
            self.waiting.remove(key);
        }
        next
    }

    /// The hosts that webhooks wait for.
    pub(super) fn hosts(&self) -> Vec<String> {
        self.hosts.keys().cloned().collect()
    }

    /// The hosts for which a webhook has waited longer than this, although its last call did not fail.
    pub(super) fn crowds(&self, longer_than: Duration) -> Vec<(&str, Crowd)> {
        let mut crowds: HashMap<&str, Crowd> = HashMap::new();
        for waiting in self.waiting.values() {
            let crowd = crowds.entry(&waiting.host).or_default();
            crowd.webhooks += 1;
            if waiting.is_retry {
                crowd.retries += 1;
            } else {
                crowd.longest = crowd.longest.max(waiting.since.elapsed());
            }
        }
        let late = crowds.into_iter();
        late.filter(|(_, crowd)| crowd.longest > longer_than)
            .collect()
    }
}

// === impl Waiting ===

impl Waiting {
    fn is_at(&self, host: &str, is_retry: bool) -> bool {
        self.host == host && self.is_retry == is_retry
    }
}

// === impl HostQueue ===

impl HostQueue {
    /// The next webhook, and whether its last call failed.
    fn pop(&mut self, may_retry: bool) -> Option<(Text, bool)> {
        let retry = may_retry.then(|| self.retries.pop()).flatten();
        match retry {
            Some(key) => Some((key, true)),
            None => self.others.pop().map(|key| (key, false)),
        }
    }

    fn is_empty(&self) -> bool {
        self.retries.tasks.is_empty() && self.others.tasks.is_empty()
    }
}

// === impl Turns ===

impl Turns {
    fn push(&mut self, key: Text) {
        let task = key.split_once('/').map_or(&*key, |(task, _)| task);
        let task = Text::from(task);
        let keys = self.keys.entry(task.clone()).or_default();
        if keys.is_empty() {
            self.tasks.push_back(task);
        }
        keys.push_back(key);
    }

    fn pop(&mut self) -> Option<Text> {
        let task = self.tasks.pop_front()?;
        let keys = self.keys.get_mut(&task)?;
        let key = keys.pop_front();
        if keys.is_empty() {
            self.keys.remove(&task);
        } else {
            self.tasks.push_back(task);
        }
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn popped(queues: &mut HostQueues, may_retry: bool) -> Option<String> {
        let (_, key) = queues.pop("a", may_retry)?;
        Some(key.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_with_waiting_webhooks_take_turns() {
        let mut queues = HostQueues::default();
        for key in ["many/1", "many/2", "many/3", "few/1", "few/2"] {
            queues.push(key.into(), "a".to_owned(), false, Instant::now());
        }
        for expected in ["many/1", "few/1", "many/2", "few/2", "many/3"] {
            assert_eq!(popped(&mut queues, true).as_deref(), Some(expected));
        }
        assert_eq!(popped(&mut queues, true), None);
        assert!(queues.hosts().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn webhooks_whose_last_call_failed_wait_apart() {
        let mut queues = HostQueues::default();
        for (key, is_retry) in [("t/works", false), ("t/fails", true), ("t/again", true)] {
            queues.push(key.into(), "a".to_owned(), is_retry, Instant::now());
        }
        assert_eq!(popped(&mut queues, true).as_deref(), Some("t/fails"));
        assert_eq!(popped(&mut queues, false).as_deref(), Some("t/works"));
        assert_eq!(popped(&mut queues, false), None);
        assert!(queues.contains(&"t/again".into()));
        // A webhook that was set again waits with the others, and only once.
        queues.push("t/again".into(), "a".to_owned(), false, Instant::now());
        assert_eq!(popped(&mut queues, true).as_deref(), Some("t/again"));
        assert_eq!(popped(&mut queues, true), None);
    }

    #[tokio::test(start_paused = true)]
    async fn hosts_that_webhooks_wait_long_for_are_found() {
        let mut queues = HostQueues::default();
        queues.push("t/1".into(), "a".to_owned(), false, Instant::now());
        let limit = Duration::from_secs(10);
        tokio::time::advance(limit).await;
        queues.push("t/2".into(), "a".to_owned(), true, Instant::now());
        queues.push("t/3".into(), "b".to_owned(), true, Instant::now());
        assert!(queues.crowds(limit).is_empty());
        tokio::time::advance(Duration::from_secs(1)).await;
        let crowd = Crowd {
            webhooks: 2,
            retries: 1,
            longest: Duration::from_secs(11),
        };
        assert_eq!(queues.crowds(limit), [("a", crowd)]);
        // A webhook that now waits for another host has waited since the beginning.
        queues.push("t/1".into(), "b".to_owned(), false, Instant::now());
        let crowds = queues.crowds(limit);
        assert_eq!((crowds.len(), crowds[0].0), (1, "b"));
        // Retries wait while others are called.
        queues.remove(&"t/1".into());
        tokio::time::advance(limit).await;
        assert!(queues.crowds(limit).is_empty());
    }
}
