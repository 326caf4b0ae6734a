//! Turns of agents, so that none takes what all of them need.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use a2abus_plugin::Text;
use futures_util::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::PollSemaphore;

/// Limits how many tasks of one agent run at a time; they run in the order of their requests.
#[derive(Debug)]
pub(super) struct AgentTurns {
    at_a_time: usize,
    /// By agent; agents are those of the configuration.
    agents: Mutex<HashMap<Text, Arc<Semaphore>>>,
}

/// Work that goes on only in turns of its agent: each time it is polled it takes one, and gives it back before it waits.
pub(super) struct TurnTaking<T> {
    turns: PollSemaphore,
    work: BoxFuture<'static, T>,
}

// === impl AgentTurns ===

impl AgentTurns {
    pub(super) fn new(at_a_time: usize) -> Self {
        Self {
            at_a_time,
            agents: Mutex::default(),
        }
    }

    /// The next turn of an agent. `None` is for nobody: turns are never closed.
    pub(super) async fn next(&self, agent: &Text) -> Option<OwnedSemaphorePermit> {
        self.of(agent).acquire_owned().await.ok()
    }

    /// The same work, in turns of the agent.
    pub(super) fn take<T>(
        &self,
        agent: &Text,
        work: impl Future<Output = T> + Send + 'static,
    ) -> TurnTaking<T> {
        TurnTaking {
            turns: PollSemaphore::new(self.of(agent)),
            work: Box::pin(work),
        }
    }

    fn of(&self, agent: &Text) -> Arc<Semaphore> {
        // Nothing that holds the lock can leave the map half changed.
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        let turns = agents.entry(agent.clone());
        Arc::clone(turns.or_insert_with(|| Arc::new(Semaphore::new(self.at_a_time))))
    }
}

// === impl TurnTaking ===

impl<T> Future for TurnTaking<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let _turn = ready!(self.turns.poll_acquire(context));
        self.work.as_mut().poll(context)
    }
}
