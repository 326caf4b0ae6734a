//! Metrics of the state views.

use prometheus::{Error, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::registrar::{Definition, Registrar};

/// The metrics of all views.
#[derive(Debug)]
pub(super) struct StateFamilies {
    records: IntCounterVec,
    unknown: IntCounterVec,
    forgotten: IntCounterVec,
    entries: IntGaugeVec,
    bytes: IntGaugeVec,
    behind: IntGaugeVec,
}

/// The metrics of one view, resolved.
#[derive(Debug, Clone)]
pub struct StateMetrics {
    /// Records that were applied.
    pub records: IntCounter,
    /// Records that were not understood, and skipped.
    pub unknown: IntCounter,
    /// Entries that were forgotten for want of memory.
    pub forgotten: IntCounter,
    /// Entries that are kept.
    pub entries: IntGauge,
    /// What they take in memory, about.
    pub bytes: IntGauge,
    /// Offsets of the log that are still to be applied.
    pub behind: IntGauge,
}

// === impl StateFamilies ===

impl StateFamilies {
    pub(super) fn new(on: &mut Registrar) -> Result<Self, Error> {
        Ok(Self {
            records: on.counters(RECORDS)?,
            unknown: on.counters(UNKNOWN)?,
            forgotten: on.counters(FORGOTTEN)?,
            entries: on.gauges(ENTRIES)?,
            bytes: on.gauges(BYTES)?,
            behind: on.gauges(BEHIND)?,
        })
    }

    pub(super) fn of(&self, state: &str) -> StateMetrics {
        let labels = &[state];
        StateMetrics {
            records: self.records.with_label_values(labels),
            unknown: self.unknown.with_label_values(labels),
            forgotten: self.forgotten.with_label_values(labels),
            entries: self.entries.with_label_values(labels),
            bytes: self.bytes.with_label_values(labels),
            behind: self.behind.with_label_values(labels),
        }
    }
}

const RECORDS: Definition = Definition {
    name: "a2abus_state_records_total",
    unit: "records",
    labels: &["state"],
    help: "Records of the log that were applied to the state.",
};
const UNKNOWN: Definition = Definition {
    name: "a2abus_state_unknown_records_total",
    unit: "records",
    labels: &["state"],
    help: "Unreadable records that were skipped.",
};
const FORGOTTEN: Definition = Definition {
    name: "a2abus_state_forgotten_total",
    unit: "entries",
    labels: &["state"],
    help: "Finished entries that were removed because `state.memory` was full.",
};
const ENTRIES: Definition = Definition {
    name: "a2abus_state_entries",
    unit: "entries",
    labels: &["state"],
    help: "Entries of the state, such as tasks.",
};
const BYTES: Definition = Definition {
    name: "a2abus_state_bytes",
    unit: "bytes",
    labels: &["state"],
    help: "Approximate memory of the entries.",
};
const BEHIND: Definition = Definition {
    name: "a2abus_state_behind",
    unit: "records",
    labels: &["state"],
    help: "Records of the log that have not been applied yet.",
};
