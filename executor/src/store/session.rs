//! sessionStorage: values of agents in memory, for the duration of a session.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::usage::{StorageError, Usage};
use crate::environment::Clock;

/// Values by agent, session and key. A session ends an hour after the last value was stored in it.
pub(super) struct Sessions {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    agents: HashMap<String, Agent>,
    /// When ended sessions were last removed.
    swept: Duration,
}

#[derive(Default)]
struct Agent {
    sessions: HashMap<String, Session>,
    usage: Usage,
}

struct Session {
    values: HashMap<String, Bytes>,
    used: Duration,
}

/// How long a session lasts after the last value was stored in it.
const IDLE: Duration = Duration::from_secs(3600);
/// How long the memory of ended sessions may be held, for agents that do not come back.
const SWEEP: Duration = Duration::from_secs(60);

// === impl Sessions ===

impl Sessions {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            state: Mutex::default(),
        }
    }

    pub(super) fn keep(
        &self,
        agent: &str,
        session: &str,
        key: &str,
        text: Bytes,
    ) -> Result<(), StorageError> {
        let now = self.clock.elapsed();
        let mut state = self.lock();
        state.sweep(now);
        let agent = state.agents.entry(agent.to_owned()).or_default();
        agent.end_idle(now);
        let old = agent.sessions.get(session).and_then(|s| s.values.get(key));
        agent.usage = agent
            .usage
            .replace(old.map(|old| old.len() as u64), text.len() as u64)?;
        let session = agent
            .sessions
            .entry(session.to_owned())
            .or_insert_with(|| Session {
                values: HashMap::new(),
                used: now,
            });
        session.used = now;
        session.values.insert(key.to_owned(), text);
        Ok(())
    }

    pub(super) fn get(&self, agent: &str, session: &str, key: &str) -> Option<Bytes> {
        let now = self.clock.elapsed();
        let state = self.lock();
        let session = state.agents.get(agent)?.sessions.get(session)?;
        let value = session.values.get(key)?;
        (!session.is_idle(now)).then(|| value.clone())
    }

    /// The sessions and keys of an agent in order, each with the size of its value.
    pub(super) fn list(&self, agent: &str) -> Vec<(String, String, usize)> {
        let now = self.clock.elapsed();
        let state = self.lock();
        let sessions = state
            .agents
            .get(agent)
            .into_iter()
            .flat_map(|it| &it.sessions);
        let mut values: Vec<_> = sessions
            .filter(|(_, session)| !session.is_idle(now))
            .flat_map(|(name, session)| {
                let value =
                    |(key, value): (&String, &Bytes)| (name.clone(), key.clone(), value.len());
                session.values.iter().map(value)
            })
            .collect();
        values.sort();
        values
    }

    /// Removes a value. Returns whether there was one.
    pub(super) fn remove(&self, agent: &str, session: &str, key: &str) -> bool {
        let now = self.clock.elapsed();
        let mut state = self.lock();
        let Some(agent) = state.agents.get_mut(agent) else {
            return false;
        };
        agent.end_idle(now);
        let values = agent.sessions.get_mut(session).map(|it| &mut it.values);
        let old = values.and_then(|values| values.remove(key));
        if let Some(old) = &old {
            agent.usage.remove(old.len() as u64);
        }
        old.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    fn sweep(&mut self, now: Duration) {
        if now.saturating_sub(self.swept) < SWEEP {
            return;
        }
        self.swept = now;
        self.agents.retain(|_, agent| {
            agent.end_idle(now);
            !agent.sessions.is_empty()
        });
    }
}

// === impl Agent ===

impl Agent {
    fn end_idle(&mut self, now: Duration) {
        let usage = &mut self.usage;
        self.sessions.retain(|_, session| {
            let ended = session.is_idle(now);
            if ended {
                let values = session.values.values();
                values.for_each(|value| usage.remove(value.len() as u64));
            }
            !ended
        });
    }
}

// === impl Session ===

impl Session {
    fn is_idle(&self, now: Duration) -> bool {
        now.saturating_sub(self.used) >= IDLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::ManualClock;

    fn text(bytes: usize) -> Bytes {
        vec![b'x'; bytes].into()
    }

    #[test]
    fn a_session_ends_an_hour_after_its_last_use() {
        let clock = Arc::new(ManualClock::default());
        let sessions = Sessions::new(Arc::<ManualClock>::clone(&clock));
        sessions.keep("a", "s", "k", text(1)).unwrap();
        sessions.keep("a", "other", "k", text(2)).unwrap();
        clock.set(3000);
        sessions.keep("a", "s", "l", text(3)).unwrap();
        clock.set(3599);
        assert_eq!(sessions.get("a", "other", "k"), Some(text(2)));
        clock.set(3600);
        assert_eq!(sessions.get("a", "other", "k"), None);
        assert_eq!(sessions.get("a", "s", "k"), Some(text(1)));
        clock.set(6600);
        assert_eq!(sessions.get("a", "s", "k"), None);
        sessions.keep("a", "s", "l", text(4)).unwrap();
        assert_eq!(sessions.get("a", "s", "k"), None);
        assert_eq!(sessions.get("a", "s", "l"), Some(text(4)));
    }

    #[test]
    fn values_can_be_listed_and_removed() {
        let clock = Arc::new(ManualClock::default());
        let sessions = Sessions::new(Arc::<ManualClock>::clone(&clock));
        sessions.keep("a", "t", "k", text(100 << 20)).unwrap();
        assert!(sessions.keep("a", "s", "l", text(1)).is_err());
        assert!(!sessions.remove("b", "t", "k"));
        assert!(!sessions.remove("a", "s", "k"));
        assert!(sessions.remove("a", "t", "k"));
        assert!(!sessions.remove("a", "t", "k"));
        sessions.keep("a", "s", "l", text(2)).unwrap();
        sessions.keep("a", "s", "k", text(3)).unwrap();
        let value = |key: &str, bytes| ("s".to_owned(), key.to_owned(), bytes);
        assert_eq!(sessions.list("a"), [value("k", 3), value("l", 2)]);
        assert!(sessions.list("b").is_empty());
        clock.set(3600);
        assert!(sessions.list("a").is_empty());
    }

    #[test]
    fn agents_and_sessions_are_isolated() {
        let sessions = Sessions::new(Arc::new(ManualClock::default()));
        sessions.keep("a", "s", "k", text(1)).unwrap();
        assert_eq!(sessions.get("b", "s", "k"), None);
        assert_eq!(sessions.get("a", "t", "k"), None);
        assert_eq!(sessions.get("a", "s", "l"), None);
    }

    #[test]
    fn an_agent_stores_at_most_100_mib_in_all_its_sessions() {
        let clock = Arc::new(ManualClock::default());
        let sessions = Sessions::new(Arc::<ManualClock>::clone(&clock));
        for n in 0..10 {
            let session = n.to_string();
            sessions.keep("a", &session, "k", text(10 << 20)).unwrap();
        }
        let one_more = || sessions.keep("a", "x", "k", text(1));
        assert!(matches!(one_more(), Err(StorageError::TooManyBytes)));
        sessions.keep("b", "x", "k", text(1)).unwrap();
        sessions.keep("a", "3", "k", text((10 << 20) - 1)).unwrap();
        one_more().unwrap();
        assert!(sessions.keep("a", "x", "k", text(2)).is_err());
        clock.set(3600);
        sessions.keep("a", "y", "k", text(10 << 20)).unwrap();
        sessions.keep("a", "x", "k", text(10 << 20)).unwrap();
    }

    #[test]
    fn the_memory_of_idle_agents_is_freed() {
        let clock = Arc::new(ManualClock::default());
        let sessions = Sessions::new(Arc::<ManualClock>::clone(&clock));
        sessions.keep("a", "s", "k", text(1)).unwrap();
        clock.set(4000);
        sessions.keep("b", "s", "k", text(1)).unwrap();
        assert_eq!(sessions.lock().agents.len(), 1);
    }
}
