//! How much of its budget may a binding spend on requests that wait for their answers?
//!
//! A request is settled when it is answered, so that it holds its part of the budget for as long as its agent takes. One
//! agent may hold a quarter of the budget, all of them together three quarters: an agent that does not answer stops no
//! other, and messages that need no answer always find room.

use std::hash::Hash;
use std::sync::Arc;

use a2abus_plugin::Text;

use crate::calls::Bound;
use crate::shares::{Share, Shares};

/// What the waiting requests of one binding hold of its budget.
#[derive(Debug)]
pub struct WaitingRoom {
    of_all: Quota<()>,
    of_agents: Quota<Text>,
}

/// What each of many may hold, in messages and in bytes.
#[derive(Debug)]
struct Quota<K: Eq + Hash> {
    messages: Arc<Shares<K>>,
    bytes: Arc<Shares<K>>,
}

/// What one message holds, for one agent or for all together, until it is dropped.
#[derive(Debug)]
pub(crate) struct Part<K: Eq + Hash> {
    _message: Share<K>,
    _bytes: Share<K>,
}

/// What the requests of one message hold so far.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    message: Option<Part<()>>,
    /// Shared by the requests for one agent.
    agents: Vec<(Text, Arc<Part<Text>>)>,
}

// === impl WaitingRoom ===

impl WaitingRoom {
    /// The room in a binding with this budget.
    #[must_use]
    pub fn new(messages: usize, bytes: usize) -> Self {
        Self {
            of_all: Quota::new(messages - messages / 4, bytes - bytes / 4),
            of_agents: Quota::new(messages / 4, bytes / 4),
        }
    }

    /// Room for one more request of a message of this size, for this agent. A message counts once for each agent that it
    /// has requests for.
    ///
    /// # Errors
    /// The bound that is reached.
    pub(crate) fn enter(
        &self,
        agent: &Text,
        bytes: usize,
        parts: &mut Parts,
    ) -> Result<Arc<Part<Text>>, Bound> {
        if let Some((_, part)) = parts.agents.iter().find(|(known, _)| known == agent) {
            return Ok(Arc::clone(part));
        }
        let part = self.of_agents.take(agent, bytes);
        let part = part.ok_or_else(|| Bound::AgentOfBinding(agent.clone()))?;
        if parts.message.is_none() {
            parts.message = Some(self.of_all.take(&(), bytes).ok_or(Bound::Binding)?);
        }
        let part = Arc::new(part);
        parts.agents.push((agent.clone(), Arc::clone(&part)));
        Ok(part)
    }
}

// === impl Quota ===

impl<K: Eq + Hash + Clone> Quota<K> {
    fn new(messages: usize, bytes: usize) -> Self {
        Self {
            messages: Shares::new(messages.max(1)),
            bytes: Shares::new(bytes),
        }
    }

    /// One message; a larger one than anybody may hold takes all there is.
    fn take(&self, holder: &K, bytes: usize) -> Option<Part<K>> {
        let message = self.messages.take(holder)?;
        let mut held = self.bytes.begin(holder);
        held.grow(bytes.min(self.bytes.most())).then_some(Part {
            _message: message,
            _bytes: held,
        })
    }
}

// === impl Parts ===

impl Parts {
    /// What the message as a whole holds, until it is settled.
    pub(crate) fn message(self) -> Option<Part<()>> {
        self.message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(
        room: &WaitingRoom,
        agent: &str,
        bytes: usize,
    ) -> Result<(Arc<Part<Text>>, Parts), Bound> {
        let mut parts = Parts::default();
        let part = room.enter(&agent.into(), bytes, &mut parts)?;
        Ok((part, parts))
    }

    #[test]
    fn one_agent_holds_a_quarter_and_all_together_three_quarters() {
        let room = WaitingRoom::new(100, 1_000);
        let mut held = Vec::new();
        for agent in ["a", "b", "c", "d"] {
            let got = (0..3).map(|_| enter(&room, agent, 100));
            let (fit, rest): (Vec<_>, Vec<_>) = got.partition(Result::is_ok);
            let expected = if agent == "d" { 1 } else { 2 };
            assert_eq!(fit.len(), expected, "{agent}");
            for refused in rest {
                let of_agent = Bound::AgentOfBinding(agent.into());
                let expected = if agent == "d" {
                    Bound::Binding
                } else {
                    of_agent
                };
                assert_eq!(refused.unwrap_err(), expected);
            }
            held.extend(fit);
        }
        held.clear();
        assert!(enter(&room, "a", 250).is_ok());
        assert!(room.of_agents.bytes.is_empty() && room.of_all.messages.is_empty());
    }

    #[test]
    fn the_number_of_messages_is_a_bound_too() {
        let room = WaitingRoom::new(8, 1_000);
        let held = [enter(&room, "a", 0).unwrap(), enter(&room, "a", 0).unwrap()];
        let refused = enter(&room, "a", 0).unwrap_err();
        assert_eq!(refused, Bound::AgentOfBinding("a".into()));
        drop(held);
    }

    #[test]
    fn a_message_that_is_larger_than_the_bound_waits_alone() {
        let room = WaitingRoom::new(1, 100);
        let held = enter(&room, "a", 1_000_000).unwrap();
        assert!(enter(&room, "a", 1).is_err());
        drop(held);
        assert!(enter(&room, "a", 1_000_000).is_ok());
    }

    #[test]
    fn the_requests_of_a_batch_count_once_for_each_agent() {
        let room = WaitingRoom::new(100, 1_000);
        let mut parts = Parts::default();
        let held: Vec<_> = (0..50)
            .map(|number| {
                room.enter(&["a", "b"][number % 2].into(), 200, &mut parts)
                    .unwrap()
            })
            .collect();
        assert!(enter(&room, "a", 100).is_err());
        assert!(enter(&room, "c", 200).is_ok());
        drop((held, parts));
        assert!(room.of_agents.messages.is_empty() && room.of_all.bytes.is_empty());
    }
}
