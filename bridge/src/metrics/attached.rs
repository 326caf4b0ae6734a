//! Metrics of attached agents.

use prometheus::{Error, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::registrar::{Definition, Registrar};

/// The metrics of attached agents.
#[derive(Debug)]
pub(crate) struct AttachedMetrics {
    starts: IntCounterVec,
    drops: IntCounterVec,
    passed_on: IntCounterVec,
    unusable_skills: IntGaugeVec,
}

// === impl AttachedMetrics ===

impl AttachedMetrics {
    pub(super) fn new(on: &mut Registrar) -> Result<Self, Error> {
        Ok(Self {
            starts: on.counters(STARTS)?,
            drops: on.counters(DROPS)?,
            passed_on: on.counters(PASSED_ON)?,
            unusable_skills: on.gauges(UNUSABLE_SKILLS)?,
        })
    }

    /// How often the program of an agent was started.
    pub(crate) fn starts(&self, agent: &str) -> IntCounter {
        self.starts.with_label_values(&[agent])
    }

    /// Messages of its server that were dropped.
    pub(crate) fn drops(&self, agent: &str) -> IntCounter {
        self.drops.with_label_values(&[agent])
    }

    /// Messages that were passed on to other bridges.
    pub(crate) fn passed_on(&self, agent: &str) -> IntCounter {
        self.passed_on.with_label_values(&[agent])
    }

    /// Skills that its card leaves out.
    pub(crate) fn unusable_skills(&self, agent: &str) -> IntGauge {
        self.unusable_skills.with_label_values(&[agent])
    }
}

const STARTS: Definition = Definition {
    name: "a2abus_attached_starts_total",
    unit: "starts",
    labels: &["agent"],
    help: "Attempts to start the program of an attached agent, or to open a session with its server.",
};
const DROPS: Definition = Definition {
    name: "a2abus_attached_dropped_total",
    unit: "messages",
    labels: &["agent"],
    help: "Dropped messages between an attached agent and its server: late answers, messages that cannot be assigned to a call, messages sent ahead of an answer, if the bus does not accept them (for example because of their size) or its queue has no room for them, and cancels while too many messages wait for the server.",
};
const PASSED_ON: Definition = Definition {
    name: "a2abus_attached_passed_on_total",
    unit: "messages",
    labels: &["agent"],
    help: "Answers to questions, and cancels, that belong to no request of this bridge, and were passed on to the other bridges that attach the same server.",
};
const UNUSABLE_SKILLS: Definition = Definition {
    name: "a2abus_attached_unusable_skills",
    unit: "skills",
    labels: &["agent"],
    help: "Unusable skills or tools of an attached server, which are missing from its card; the log contains the cause.",
};
