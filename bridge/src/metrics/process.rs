//! Metrics of the process: when it started, and what `/readyz` reports.

use prometheus::{Error, IntCounter, IntGauge};

use super::registrar::{Definition, Registrar, unix_time};

#[derive(Debug)]
pub(super) struct ProcessMetrics {
    ready: IntGauge,
    degraded: IntGauge,
    pub(super) log_lines_lost: IntCounter,
}

// === impl ProcessMetrics ===

impl ProcessMetrics {
    pub(super) fn new(on: &mut Registrar) -> Result<Self, Error> {
        let build = on.gauges(BUILD_INFO)?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        on.gauge(START_TIME)?.set(unix_time());
        Ok(Self {
            ready: on.gauge(READY)?,
            degraded: on.gauge(DEGRADED)?,
            log_lines_lost: on.counter(LOG_LINES_LOST)?,
        })
    }

    pub(super) fn set(&self, is_ready: bool, degraded: usize) {
        self.ready.set(i64::from(is_ready));
        self.degraded
            .set(i64::try_from(degraded).unwrap_or(i64::MAX));
    }
}

const START_TIME: Definition = Definition {
    name: "a2abus_start_time_seconds",
    unit: "seconds",
    labels: &[],
    help: "Unix time at which the process started.",
};
const READY: Definition = Definition {
    name: "a2abus_ready",
    unit: "0 or 1",
    labels: &[],
    help: "1 while `/readyz` returns 200, otherwise 0.",
};
const DEGRADED: Definition = Definition {
    name: "a2abus_degraded",
    unit: "parts",
    labels: &[],
    help: "The entries under `degraded` of `/readyz`: parts that do not work, although the process may be ready.",
};
const BUILD_INFO: Definition = Definition {
    name: "a2abus_build_info",
    unit: "always 1",
    labels: &["version"],
    help: "The version of the bridge.",
};
const LOG_LINES_LOST: Definition = Definition {
    name: "a2abus_log_lines_lost_total",
    unit: "lines",
    labels: &[],
    help: "Lines of the log that were lost, because standard error was not read fast enough, or could not be written.",
};
