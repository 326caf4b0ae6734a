//! Metrics of A2A clients: requests, tasks and webhooks.

use prometheus::{Error, IntCounter, IntCounterVec};

use super::registrar::{Definition, Registrar, add_one, per_value};

/// The metrics of A2A clients.
#[derive(Debug)]
pub(super) struct A2aMetrics {
    requests: IntCounterVec,
    started: IntCounter,
    ended: IntCounterVec,
    deliveries: Vec<IntCounter>,
}

/// The result of one webhook call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushOutcome {
    /// The webhook accepted it.
    Delivered,
    /// It failed and will be retried.
    Retried,
    /// It failed and will not be retried.
    Dropped,
    /// It waits, because the bodies of other calls use all the memory for large bodies.
    Postponed,
}

// === impl A2aMetrics ===

impl A2aMetrics {
    pub(super) fn new(on: &mut Registrar) -> Result<Self, Error> {
        let deliveries = on.counters(DELIVERIES)?;
        Ok(Self {
            requests: on.counters(REQUESTS)?,
            started: on.counter(STARTED)?,
            ended: on.counters(ENDED)?,
            deliveries: per_value(&deliveries, &PushOutcome::ALL.map(PushOutcome::as_str))?,
        })
    }

    pub(super) fn request(&self, labels: [&'static str; 4]) {
        self.requests.with_label_values(&labels).inc();
    }

    pub(super) fn task_started(&self) {
        self.started.inc();
    }

    pub(super) fn task_ended(&self, state: &'static str) {
        self.ended.with_label_values(&[state]).inc();
    }

    pub(super) fn push_delivery(&self, outcome: PushOutcome) {
        add_one(&self.deliveries, outcome as usize);
    }
}

// === impl PushOutcome ===

impl PushOutcome {
    /// Every outcome, in the order of declaration.
    pub const ALL: [Self; 4] = [
        Self::Delivered,
        Self::Retried,
        Self::Dropped,
        Self::Postponed,
    ];

    /// The label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Retried => "retried",
            Self::Dropped => "dropped",
            Self::Postponed => "postponed",
        }
    }
}

const REQUESTS: Definition = Definition {
    name: "a2abus_a2a_requests_total",
    unit: "requests",
    labels: &["method", "version", "binding", "outcome"],
    help: "Requests of A2A clients: `send`, `get` and so on, with `ok` or the reason of the refusal. `binding` is the protocol binding of A2A (`jsonrpc`, `http+json`), not one of the configuration; `version` is `1.0`, `0.3` or `jaf`. A stream counts when it begins.",
};
const STARTED: Definition = Definition {
    name: "a2abus_tasks_started_total",
    unit: "tasks",
    labels: &[],
    help: "Tasks that began with a message at this replica.",
};
const ENDED: Definition = Definition {
    name: "a2abus_tasks_ended_total",
    unit: "tasks",
    labels: &["state"],
    help: "Tasks that this replica ended, by their final state (`state`), such as `completed`.",
};
const DELIVERIES: Definition = Definition {
    name: "a2abus_push_deliveries_total",
    unit: "deliveries",
    labels: &["outcome"],
    help: "Push notifications: delivered, to be retried (`retried`), given up (`dropped`), and delayed because others use the memory for large bodies (`postponed`).",
};
