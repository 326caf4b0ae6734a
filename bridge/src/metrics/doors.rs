//! Metrics of HTTP requests, besides their status codes.

use prometheus::{Error, IntCounter};

use super::registrar::{Definition, Registrar, add_one, per_word};

/// The outcome of a request with an `Idempotency-Key`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdempotencyOutcome {
    /// Its key was new: it was done.
    First,
    /// It got the answer of an earlier one.
    Replayed,
    /// It got the answer that an earlier one was to get from a replica that has stopped.
    Resumed,
    /// Its key was used for another request.
    Differs,
    /// An earlier one was still being answered.
    Running,
    /// The answer to an earlier one is not known.
    Lost,
    /// The log of keys could not be asked.
    Unavailable,
}

/// A limit of clients of the A2A interface, or of MCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitScope {
    /// Requests of one client.
    Client,
    /// Tasks of one context.
    Context,
    /// Cancels and ends of sessions of one client of MCP.
    Over,
}

#[derive(Debug)]
pub(super) struct DoorMetrics {
    keyed: Vec<IntCounter>,
    limited: Vec<IntCounter>,
}

const KEYED: Definition = Definition {
    name: "a2abus_keyed_requests_total",
    unit: "requests",
    labels: &["outcome"],
    help: "Requests with an Idempotency-Key: first, replayed, resumed (its first replica has stopped), differs (the key was used for another request), running (an earlier one was still being answered), lost (its answer is not known), unavailable (the log of keys could not be asked).",
};

const LIMITED: Definition = Definition {
    name: "a2abus_limited_requests_total",
    unit: "requests",
    labels: &["limit"],
    help: "A2A requests refused because their client (a2a.max_requests_per_client) or their context (a2a.max_tasks_per_context) was at its limit; cancels and ends of sessions of MCP clients that are not passed on to other replicas because their client sends too many (over).",
};

// === impl DoorMetrics ===

impl DoorMetrics {
    pub(super) fn new(on: &mut Registrar) -> Result<Self, Error> {
        let words: Vec<_> = IdempotencyOutcome::ALL
            .iter()
            .map(|keyed| keyed.as_str())
            .collect();
        Ok(Self {
            keyed: per_word(&on.counters(KEYED)?, &words)?,
            limited: per_word(&on.counters(LIMITED)?, &["client", "context", "over"])?,
        })
    }

    pub(super) fn keyed(&self, outcome: IdempotencyOutcome) {
        add_one(&self.keyed, outcome as usize);
    }

    pub(super) fn limited(&self, limit: LimitScope) {
        add_one(&self.limited, limit as usize);
    }
}

// === impl IdempotencyOutcome ===

impl IdempotencyOutcome {
    /// Every outcome, in the order of declaration.
    const ALL: [Self; 7] = [
        Self::First,
        Self::Replayed,
        Self::Resumed,
        Self::Differs,
        Self::Running,
        Self::Lost,
        Self::Unavailable,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Replayed => "replayed",
            Self::Resumed => "resumed",
            Self::Differs => "differs",
            Self::Running => "running",
            Self::Lost => "lost",
            Self::Unavailable => "unavailable",
        }
    }
}
