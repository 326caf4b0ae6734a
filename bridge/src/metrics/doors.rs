//! Metrics of HTTP requests, in addition to their status codes, and of questions to callers.

use prometheus::{Error, IntCounter, IntGauge};

use super::registrar::{Definition, Registrar, add_one, per_value};

/// The outcome of a request with an `Idempotency-Key`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdempotencyOutcome {
    /// Its key was new, and it was executed.
    First,
    /// It got the stored answer of an earlier request.
    Replayed,
    /// It got the answer to an earlier request whose replica has stopped.
    Resumed,
    /// Its key was used for a different request.
    Differs,
    /// An earlier request was still in progress.
    Running,
    /// The answer to an earlier request is unknown.
    Lost,
    /// The log of keys could not be read.
    Unavailable,
    /// The caller stopped waiting, and the call went on. This request is counted by another outcome too.
    TimedOut,
}

/// A limit of A2A or MCP clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitScope {
    /// Requests of one client.
    Client,
    /// Tasks of one context.
    Context,
    /// What one MCP client sends for other replicas: cancels, ends of sessions, answers to questions.
    Over,
}

#[derive(Debug)]
pub(super) struct DoorMetrics {
    keyed: Vec<IntCounter>,
    limited: Vec<IntCounter>,
    pub(super) mcp_streams: IntGauge,
    pub(super) mcp_subscriptions: IntGauge,
    pub(super) questions_refused: IntCounter,
}

const KEYED: Definition = Definition {
    name: "a2abus_keyed_requests_total",
    unit: "requests",
    labels: &["outcome"],
    help: "Requests with an Idempotency-Key, by outcome; once more as `timeout` if the caller got that error while the call went on.",
};

const LIMITED: Definition = Definition {
    name: "a2abus_limited_requests_total",
    unit: "requests",
    labels: &["limit"],
    help: "Requests that were refused because of a limit: client (a2a.max_requests_per_client), context (a2a.max_tasks_per_context), or mcp_client (an MCP client sent too many cancels, session ends, subscriptions and answers to questions, or has too many subscriptions).",
};

const MCP_STREAMS: Definition = Definition {
    name: "a2abus_mcp_streams",
    unit: "streams",
    labels: &[],
    help: "Open streams of MCP clients for notifications: of sessions, of `subscriptions/listen`, and of HTTP+SSE.",
};

const MCP_SUBSCRIPTIONS: Definition = Definition {
    name: "a2abus_mcp_subscriptions",
    unit: "subscriptions",
    labels: &[],
    help: "Subscriptions of MCP clients to resources of agents that this replica knows, counted every 5 s. Replicas that share the state count the same ones, so do not add their numbers.",
};

const QUESTIONS_REFUSED: Definition = Definition {
    name: "a2abus_questions_refused_total",
    unit: "questions",
    labels: &[],
    help: "Questions of agents that were refused with an error, because the caller cannot be asked.",
};

// === impl DoorMetrics ===

impl DoorMetrics {
    pub(super) fn new(on: &mut Registrar) -> Result<Self, Error> {
        let outcomes: Vec<_> = IdempotencyOutcome::ALL
            .iter()
            .map(|keyed| keyed.as_str())
            .collect();
        Ok(Self {
            keyed: per_value(&on.counters(KEYED)?, &outcomes)?,
            limited: per_value(&on.counters(LIMITED)?, &["client", "context", "mcp_client"])?,
            mcp_streams: on.gauge(MCP_STREAMS)?,
            mcp_subscriptions: on.gauge(MCP_SUBSCRIPTIONS)?,
            questions_refused: on.counter(QUESTIONS_REFUSED)?,
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
    const ALL: [Self; 8] = [
        Self::First,
        Self::Replayed,
        Self::Resumed,
        Self::Differs,
        Self::Running,
        Self::Lost,
        Self::Unavailable,
        Self::TimedOut,
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
            Self::TimedOut => "timeout",
        }
    }
}
