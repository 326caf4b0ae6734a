//! Accounting of calls: a line in the access log, and the metrics of the agent.
//!
//! The log has a target of its own, `a2abus::access`, so that `telemetry.log: "info,a2abus::access=off"` switches it off
//! and a collector can send it elsewhere. Agent and method are names that a caller chose: they are cut to a length and
//! written as values, never as text of the line.

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
/// The longest agent or method that is written out, in characters.
const MAX_NAME: usize = 128;

/// One request that is not a call: a notification, or what was refused before it became one.
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

/// The account of one call. It is closed once; one that is dropped before was cancelled by its caller.
#[derive(Debug)]
pub(crate) struct Account {
    call: CallId,
    caller: Text,
    agent: Text,
    method: Text,
    started: Instant,
    metrics: Arc<Metrics>,
    in_flight: Option<AgentInFlight>,
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

/// The beginning of a name, as far as it is written out.
fn cut(name: &str) -> &str {
    let end = name.char_indices().nth(MAX_NAME).map(|(end, _)| end);
    end.and_then(|end| name.get(..end)).unwrap_or(name)
}

// === impl Account ===

impl Account {
    /// Of a call whose request came at `arrived`.
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
            is_open: true,
            _span: span,
        }
    }

    /// Notes the agent of the call; `is_known` says that a route names it.
    pub(crate) fn is_for(&mut self, event: &Event, is_known: bool) {
        (self.agent, self.method) = (agent_of(event), method_of(event));
        self.in_flight = Some(self.metrics.agents().begin(&self.agent, is_known));
    }

    /// The agent the call is for; empty where it names none.
    pub(crate) fn agent(&self) -> &Text {
        &self.agent
    }

    /// When the call began.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// The last part reached the caller.
    pub(crate) fn answered(&mut self, outcome: CallOutcome) {
        self.close(outcome, outcome.as_str());
    }

    /// The call failed.
    pub(crate) fn failed(&mut self, error: &CallError) {
        self.close(error.outcome(), error.word());
    }

    /// The caller went away.
    pub(crate) fn cancelled(&mut self) {
        self.close(CallOutcome::Cancelled, CallOutcome::Cancelled.as_str());
    }

    fn close(&mut self, outcome: CallOutcome, word: &'static str) {
        if !std::mem::replace(&mut self.is_open, false) {
            return;
        }
        let took = self.started.elapsed();
        self.metrics.call_ended(outcome, took);
        if let Some(in_flight) = self.in_flight.take() {
            in_flight.end(outcome, took);
        }
        let line = Line {
            call: self.call,
            caller: &self.caller,
            agent: &self.agent,
            method: &self.method,
            outcome: word,
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

/// The agent an event is for; empty where it names none.
pub(crate) fn agent_of(event: &Event) -> Text {
    let target = event.extension_text(extension::TARGET_AGENT);
    target.cloned().unwrap_or_default()
}

/// The method an event carries.
pub(crate) fn method_of(event: &Event) -> Text {
    let method = event.extension_text(extension::A2A_METHOD);
    method.cloned().unwrap_or_default()
}
