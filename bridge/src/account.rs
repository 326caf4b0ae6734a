//! The account of a call: its line in the access log, and the metrics of its agent.
//!
//! The log has its own target, `a2abus::access`, so `telemetry.log: "info,a2abus::access=off"` turns it off, and a
//! collector can store it separately. The caller chooses the agent and the method, so they are cut to a length and
//! written as fields, never as part of the message.

use std::sync::Arc;
use std::time::{Duration, Instant};

use a2abus_plugin::{Event, Text, extension};
use tracing::Span;

use crate::calls::callid::CallId;
use crate::calls::error::CallError;
use crate::metrics::{AgentInFlight, CallOutcome, Metrics};
use crate::stage;

/// The target of the access log.
const TARGET: &str = "a2abus::access";
/// The outcome of a request that the bridge answers by itself.
pub(crate) const ANSWERED: &str = "answered";
/// The outcome of a request that gets the answer to an earlier one with its `Idempotency-Key`.
pub(crate) const REPLAYED: &str = "replayed";
/// The longest agent or method in a line, in characters.
const MAX_NAME: usize = 128;

/// A request that is not a call: a notification, or a request that was refused earlier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line<'a> {
    pub(crate) call: CallId,
    pub(crate) caller: &'a str,
    pub(crate) agent: &'a str,
    pub(crate) method: &'a str,
    /// `answered`, `sent`, `cancelled`, or the reason of the error.
    pub(crate) outcome: &'a str,
    pub(crate) took: Duration,
}

/// A request that gets the answer to the call of an earlier one.
#[derive(Debug)]
pub(crate) struct Retry {
    pub(crate) caller: Text,
    /// The agent in its path; empty if that names none.
    pub(crate) agent: Text,
    pub(crate) method: Text,
    pub(crate) arrived: Instant,
}

/// The account of one call. If it is dropped before it is closed, the caller cancelled the call.
#[derive(Debug)]
pub(crate) struct Account {
    call: CallId,
    caller: Text,
    agent: Text,
    method: Text,
    started: Instant,
    metrics: Arc<Metrics>,
    in_flight: Option<AgentInFlight>,
    /// Whether the bridge itself makes the call. Then it has a line only if it fails.
    is_own: bool,
    /// When the request arrived that gets the answer to an earlier one. It has a line, but the call is not its own, so
    /// it is not counted.
    retried: Option<Instant>,
    is_open: bool,
    /// Ends with the account.
    _span: Span,
}

// === impl Line ===

impl Line<'_> {
    pub(crate) fn write(self) {
        tracing::info!(
            target: TARGET,
            call = %self.call,
            caller = self.caller,
            agent = cut(self.agent),
            method = cut(self.method),
            outcome = self.outcome,
            ms = u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX),
            "request"
        );
    }
}

/// The beginning of a name, up to the limit.
fn cut(name: &str) -> &str {
    let end = name.char_indices().nth(MAX_NAME).map(|(end, _)| end);
    end.and_then(|end| name.get(..end)).unwrap_or(name)
}

// === impl Account ===

impl Account {
    /// The account of a call whose request arrived at `arrived`.
    pub(crate) fn open(
        metrics: &Arc<Metrics>,
        call: CallId,
        caller: Text,
        arrived: Instant,
    ) -> Self {
        let span = stage::call(call, &caller);
        Self {
            call,
            caller,
            agent: Text::default(),
            method: Text::default(),
            started: arrived,
            metrics: Arc::clone(metrics),
            in_flight: None,
            is_own: false,
            retried: None,
            is_open: true,
            _span: span,
        }
    }

    /// The account of a request that gets the answer to the call of an earlier one.
    pub(crate) fn of_retry(metrics: &Arc<Metrics>, call: CallId, retry: Retry) -> Self {
        // The limits of the call count from now.
        let mut account = Self::open(metrics, call, retry.caller, Instant::now());
        (account.agent, account.method) = (retry.agent, retry.method);
        account.retried = Some(retry.arrived);
        account
    }

    /// Sets the agent of the call. `is_known`: a route names it. `in_data` is the method that the data of the event
    /// name.
    pub(crate) fn is_for(&mut self, event: &Event, in_data: Option<Text>, is_known: bool) {
        (self.agent, self.method) = (agent_of(event), method_of(event, in_data));
        self.in_flight = Some(self.metrics.agents().begin(&self.agent, is_known));
    }

    /// Sets the agent of a call of another replica; empty if its record is gone.
    pub(crate) fn set_agent(&mut self, agent: Text) {
        if !agent.is_empty() {
            self.agent = agent;
        }
    }

    /// The bridge itself makes the call, on behalf of a request that has a line of its own.
    pub(crate) fn set_own(&mut self) {
        self.is_own = true;
    }

    /// The agent of the call; empty if it names none.
    pub(crate) fn agent(&self) -> &Text {
        &self.agent
    }

    /// When the call began.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// The last part reached the caller.
    pub(crate) fn answered(&mut self, outcome: CallOutcome) {
        let result = match self.retried {
            Some(_) => REPLAYED,
            None => outcome.as_str(),
        };
        self.close(outcome, result);
    }

    /// The call failed.
    pub(crate) fn failed(&mut self, error: &CallError) {
        self.close(error.outcome(), error.reason_code());
    }

    /// The request stays at its source, and another reader sends it.
    pub(crate) fn left(&mut self) {
        self.close(CallOutcome::Left, CallOutcome::Left.as_str());
    }

    /// The caller disconnected.
    pub(crate) fn cancelled(&mut self) {
        self.close(CallOutcome::Cancelled, CallOutcome::Cancelled.as_str());
    }

    fn close(&mut self, outcome: CallOutcome, result: &'static str) {
        if !std::mem::replace(&mut self.is_open, false) {
            return;
        }
        let took = self.retried.unwrap_or(self.started).elapsed();
        if self.retried.is_none() {
            self.metrics.call_ended(outcome, took);
        }
        if let Some(in_flight) = self.in_flight.take() {
            in_flight.end(outcome, took);
        }
        if self.is_own && outcome == CallOutcome::Answered {
            return;
        }
        let line = Line {
            call: self.call,
            caller: &self.caller,
            agent: &self.agent,
            method: &self.method,
            outcome: result,
            took,
        };
        line.write();
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.cancelled();
    }
}

/// The target agent of an event; empty if it names none.
pub(crate) fn agent_of(event: &Event) -> Text {
    let target = event.extension_text(extension::TARGET_AGENT);
    target.cloned().unwrap_or_default()
}

/// The method of an event, else the one that its data name; empty if neither has any.
pub(crate) fn method_of(event: &Event, in_data: Option<Text>) -> Text {
    let method = event.extension_text(extension::A2A_METHOD);
    method.cloned().or(in_data).unwrap_or_default()
}
