//! Topics that nobody reads: they keep their messages for a later group, within bounds for all of them together.

use std::time::Duration;

use tokio::time::Instant;

use super::State;

/// The part of all topics that give way at once: finding the oldest takes a look at all of them.
const PART: usize = 16;

/// How often the log reports dropped messages.
const LOGGED_EVERY: Duration = Duration::from_secs(10);

// === impl State ===

impl State {
    /// Makes room for another topic: the oldest ones that nobody reads give way.
    pub(super) fn drop_oldest_topics(&mut self) {
        let some = (self.config.max_topics.get() / PART).max(1);
        for index in self.unread_topics().into_iter().take(some) {
            self.drop_topic(index, "max_topics");
        }
    }

    /// Counts a message that nobody reads, in a topic. All such topics together hold as much as one topic may; beyond
    /// that, the oldest of the others give way, until half of what this topic leaves to them is free.
    pub(super) fn count_unread(&mut self, topic: usize, size: usize) {
        let most = self.config.capacity_bytes.get();
        self.unread.bytes = self.unread.bytes.saturating_add(size);
        if self.unread.bytes <= most {
            return;
        }
        self.recount_unread();
        if self.unread.bytes <= most {
            return;
        }
        let own = self.topics.get(topic).map_or(0, |log| log.bytes).min(most);
        let goal = own + (most - own) / 2;
        for index in self.unread_topics() {
            if self.unread.bytes <= goal {
                break;
            }
            if index != topic {
                self.drop_topic(index, "capacity_bytes");
            }
        }
    }

    /// Counts the bytes of all topics that nobody reads. In between, the count is too high if readers have come.
    pub(super) fn recount_unread(&mut self) {
        let unread = self.topics.iter().filter(|log| log.is_unread());
        self.unread.bytes = unread.map(|log| log.bytes).sum();
    }

    /// The topics that nobody reads, oldest first.
    fn unread_topics(&self) -> Vec<usize> {
        let topics = self.topics.iter().enumerate();
        let unread = topics.filter(|(_, log)| log.is_unread());
        let mut unread: Vec<_> = unread.map(|(index, log)| (log.created, index)).collect();
        unread.sort_unstable();
        unread.into_iter().map(|(_, index)| index).collect()
    }

    /// Drops a topic that nobody reads, with its messages, which count unless live readers have read all of them. At
    /// most once in [`LOGGED_EVERY`] the log names one, with the count since the last line.
    fn drop_topic(&mut self, index: usize, reason: &'static str) {
        let Some(log) = self.topics.get(index) else {
            return;
        };
        let (name, bytes) = (log.name.clone(), log.bytes);
        let messages = if log.was_read { 0 } else { log.messages };
        self.forget(index);
        let unread = &mut self.unread;
        unread.bytes = unread.bytes.saturating_sub(bytes);
        unread.has_given_way = true;
        if messages == 0 {
            return;
        }
        unread.dropped += messages as u64;
        let now = Instant::now();
        if unread.logged_at.is_some_and(|at| now < at + LOGGED_EVERY) {
            return;
        }
        let dropped = unread.dropped - unread.logged;
        (unread.logged_at, unread.logged) = (Some(now), unread.dropped);
        tracing::warn!(
            topic = name.as_str(),
            dropped,
            dropped_total = unread.dropped,
            reason,
            "messages in topics of the memory bus that nobody reads are dropped, because other such topics need the room"
        );
    }
}
