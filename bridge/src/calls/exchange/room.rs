//! How much of its budget may a binding spend on requests that wait for their answers?
//!
//! A request is settled only when it is answered, so it holds its part of the budget until then. If it is settled even
//! later, because other copies of its message are unconfirmed, its message counts only towards the whole budget.
//!
//! | | messages and bytes of the budget, at most |
//! |---|---|
//! | one agent | 1/4 |
//! | all agents | 3/4: so there is always room for messages that need no answer |
//! | one agent, while all together hold more than 9/16 | 1/32, or its first request |
//!
//! So agents that do not answer leave room for the first requests of others. Agent names come from payloads: a sender
//! that invents names can use up the common share, but no more.

use std::hash::Hash;
use std::sync::Arc;

use a2abus_plugin::Text;

use crate::calls::error::Bound;
use crate::shares::{Share, Shares};

/// The share of a binding's budget that waiting requests hold.
#[derive(Debug)]
pub struct WaitingRoom {
    of_all: Quota<()>,
    /// The most that all may hold if an agent is to get more than `little`.
    common: Bounds,
    /// Up to this much, an agent gets room even if all hold more than `common`.
    little: Bounds,
    of_agents: Quota<Text>,
}

/// The limits of one holder, in messages and in bytes.
#[derive(Debug)]
struct Quota<K: Eq + Hash> {
    messages: Arc<Shares<K>>,
    bytes: Arc<Shares<K>>,
}

/// A number of messages and of bytes.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    messages: usize,
    bytes: usize,
}

/// The share of one message, for one agent or in total, until it is dropped.
#[derive(Debug)]
struct Hold<K: Eq + Hash> {
    _message: Share<K>,
    _bytes: Share<K>,
}

/// What the requests of one message for one agent hold until the last of them is answered.
#[derive(Debug)]
pub(crate) struct Place {
    _agent: Hold<Text>,
    /// Shared by all requests of the message.
    _message: Arc<Hold<()>>,
}

/// The places of the requests of one message, while it is routed.
#[derive(Debug, Default)]
pub(crate) struct Places {
    message: Option<Arc<Hold<()>>>,
    agents: Vec<(Text, Arc<Place>)>,
}

// === impl WaitingRoom ===

impl WaitingRoom {
    /// The room in a binding with this budget.
    #[must_use]
    pub fn new(messages: usize, bytes: usize) -> Self {
        let all = Bounds {
            messages: messages - messages / 4,
            bytes: bytes - bytes / 4,
        };
        Self {
            of_all: Quota::new(all.messages, all.bytes),
            common: Bounds {
                messages: all.messages - all.messages / 4,
                bytes: all.bytes - all.bytes / 4,
            },
            little: Bounds {
                messages: messages / 32,
                bytes: bytes / 32,
            },
            of_agents: Quota::new(messages / 4, bytes / 4),
        }
    }

    /// Reserves room for a request to this agent in a message of this size. A message counts once for each agent, even
    /// if it has several requests for the agent.
    ///
    /// # Errors
    /// The bound that is reached.
    pub(crate) fn enter(
        &self,
        agent: &Text,
        bytes: usize,
        places: &mut Places,
    ) -> Result<Arc<Place>, Bound> {
        if let Some((_, place)) = places.agents.iter().find(|(known, _)| known == agent) {
            return Ok(Arc::clone(place));
        }
        let is_first = self.of_agents.held_by(agent).messages == 0;
        let hold = self.of_agents.take(agent, bytes);
        let hold = hold.ok_or_else(|| Bound::AgentOfBinding(agent.clone()))?;
        let message = if let Some(message) = &places.message {
            Arc::clone(message)
        } else {
            let message = self.of_all.take(&(), bytes).ok_or(Bound::Binding)?;
            let holds_little = is_first || self.of_agents.held_by(agent).fits(self.little);
            if !holds_little && !self.of_all.held_by(&()).fits(self.common) {
                return Err(Bound::Binding);
            }
            Arc::clone(places.message.insert(Arc::new(message)))
        };
        let place = Arc::new(Place {
            _agent: hold,
            _message: message,
        });
        places.agents.push((agent.clone(), Arc::clone(&place)));
        Ok(place)
    }
}

// === impl Bounds ===

impl Bounds {
    fn fits(self, limit: Self) -> bool {
        self.messages <= limit.messages && self.bytes <= limit.bytes
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

    fn held_by(&self, holder: &K) -> Bounds {
        Bounds {
            messages: self.messages.held_by(holder),
            bytes: self.bytes.held_by(holder),
        }
    }

    /// Reserves room for one message. A message that is larger than the limit takes the whole limit.
    fn take(&self, holder: &K, bytes: usize) -> Option<Hold<K>> {
        let message = self.messages.take(holder)?;
        let mut held = self.bytes.begin(holder);
        held.grow(bytes.min(self.bytes.limit())).then_some(Hold {
            _message: message,
            _bytes: held,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(room: &WaitingRoom, agent: &str, bytes: usize) -> Result<Arc<Place>, Bound> {
        room.enter(&agent.into(), bytes, &mut Places::default())
    }

    #[test]
    fn one_agent_holds_a_quarter_and_all_together_three_quarters() {
        let room = WaitingRoom::new(100, 1_000);
        let mut held = Vec::new();
        // 750 are for all; beyond 563 of them, an agent gets its first request only.
        for (agent, fits) in [("a", 2), ("b", 2), ("c", 1), ("d", 1), ("e", 1), ("f", 0)] {
            let got = (0..3).map(|_| enter(&room, agent, 100));
            let (fit, rest): (Vec<_>, Vec<_>) = got.partition(Result::is_ok);
            assert_eq!(fit.len(), fits, "{agent}");
            for refused in rest {
                let expected = match agent {
                    "a" | "b" => Bound::AgentOfBinding(agent.into()),
                    _ => Bound::Binding,
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
    fn agents_that_hold_little_find_room_when_others_have_used_up_theirs() {
        let room = WaitingRoom::new(1_000, 64_000);
        let mut held = Vec::new();
        for agent in ["dead-1", "dead-2", "dead-3"] {
            held.extend((0..300).filter_map(|_| enter(&room, agent, 0).ok()));
        }
        // 3/4 of 3/4, and for each of the three what is little.
        assert!((563..=656).contains(&held.len()), "{}", held.len());
        for agent in ["x", "y"] {
            let got: Vec<_> = (0..40).map(|_| enter(&room, agent, 0)).collect();
            let fit = got.iter().filter(|got| got.is_ok()).count();
            assert_eq!(fit, 31, "{agent}");
            held.extend(got.into_iter().flatten());
        }
        held.clear();
        assert!(room.of_agents.messages.is_empty() && room.of_all.messages.is_empty());
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
        let mut places = Places::default();
        let held: Vec<_> = (0..50)
            .map(|number| {
                room.enter(&["a", "b"][number % 2].into(), 200, &mut places)
                    .unwrap()
            })
            .collect();
        assert!(enter(&room, "a", 100).is_err());
        assert!(enter(&room, "c", 200).is_ok());
        drop((held, places));
        assert!(room.of_agents.messages.is_empty() && room.of_all.bytes.is_empty());
    }
}
