//! Turns, which share a limited resource fairly among agents.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use a2abus_plugin::Text;
use futures_util::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::PollSemaphore;

use crate::lock::lock;

/// Limits how many tasks of one agent run at a time. Tasks run in the order of their requests.
#[derive(Debug)]
pub(super) struct AgentTurns {
    at_a_time: usize,
    /// By agent. The agents of the configuration bound the number of entries.
    agents: Mutex<HashMap<Text, Arc<Semaphore>>>,
}

/// A future that runs only during turns of its agent. Each poll takes a turn and returns it afterwards.
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

    /// Waits for the next turn of an agent. Never `None`, because the semaphores are never closed.
    pub(super) async fn next(&self, agent: &Text) -> Option<OwnedSemaphorePermit> {
        self.of(agent).acquire_owned().await.ok()
    }

    /// Wraps a future so that it runs only in turns of the agent.
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
        let mut agents = lock(&self.agents);
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
