//! Starts calls, and resumes calls of other replicas.

use std::sync::Arc;
use std::time::{Duration, Instant};

use a2abus_plugin::Text;
use smallvec::smallvec;
use tokio::sync::mpsc;

use super::answer::{Answer, Prepared};
use super::callid::CallId;
use super::error::CallError;
use super::part::Part;
use super::pending::{CallerMessage, HandOver};
use super::question::Client;
use super::service::{Calls, Request};
use crate::account::{Account, Retry};
use crate::budget::ClientBudget;

// === impl Calls ===

impl Calls {
    /// Publishes a request and returns its answer, which is still to come. Copies that the bus accepts without waiting
    /// have been handed over when this returns.
    ///
    /// # Errors
    /// See [`CallError`]. Later errors are returned by [`Answer::next`].
    pub async fn call(self: &Arc<Self>, request: Request) -> Result<Answer, CallError> {
        Ok(*self.prepare(request, None, None)?.publish().await?)
    }

    /// Registers the call of a request that is to be published. With `client`, the caller accepts other messages before
    /// the answer and answers questions, so the answer may take as long as a streamed one. `budget` is that of the
    /// caller, if it is known; otherwise the call looks it up.
    pub(crate) fn prepare(
        self: &Arc<Self>,
        request: Request,
        client: Option<Client>,
        budget: Option<ClientBudget>,
    ) -> Result<Prepared, CallError> {
        let call = self.id_of(&request)?;
        let mut account =
            Account::open(&self.metrics, call, request.caller.clone(), request.arrived);
        let (opened, copies) = match self.begin(call, request, (client, budget), &mut account) {
            Ok(begun) => begun,
            Err(error) => {
                account.failed(&error);
                return Err(error);
            }
        };
        let mut answer = opened.answer(account, self);
        answer.is_published_here = true;
        Ok(Prepared { answer, copies })
    }

    /// Whether a call waits that survives an outage of its bus.
    pub(crate) fn outlives_outage(&self, call: CallId) -> bool {
        self.pending.is_kept(call)
    }

    /// Hands the answer to a call that outlives an outage to its caller, as another replica has recorded it. Returns whether
    /// the caller still waited.
    pub(crate) fn take_recorded(&self, call: CallId, part: Part) -> bool {
        let mut made = None;
        let handed = self.pending.hand_over(call, |request, _| {
            made = Some((request.id, request.agent.clone()));
            Some(Ok(smallvec![part]))
        });
        if let Some((id, agent)) = made {
            self.ended.note(id, &agent);
        }
        handed == HandOver::Over
    }

    /// Resumes the answer to a call of another replica. `parts` are its recorded parts after the first `consumed`.
    /// `timeouts` limit the time until the next part, and until the last one. `retry` is the request that gets the
    /// answer; without one, this replica itself takes the call over, and accounts for it.
    pub(crate) fn resume(
        self: &Arc<Self>,
        call: CallId,
        agent: Text,
        timeouts: (Duration, Duration),
        consumed: usize,
        parts: mpsc::Receiver<Box<CallerMessage>>,
        retry: Option<Retry>,
    ) -> Box<Answer> {
        let mut account = match retry {
            Some(retry) => Account::of_retry(&self.metrics, call, retry),
            None => Account::open(&self.metrics, call, Text::default(), Instant::now()),
        };
        account.set_agent(agent);
        let mut answer = Answer::resumed(call, timeouts, parts, account, self);
        answer.consumed = u32::try_from(consumed).unwrap_or(u32::MAX);
        answer
    }
}
