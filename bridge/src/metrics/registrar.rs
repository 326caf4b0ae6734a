//! The registration of metrics, each with its documentation.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::core::Collector;
use prometheus::{
    Error, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

/// One metric as documented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Definition {
    /// The name, as scraped.
    pub name: &'static str,
    /// The unit of the value.
    pub unit: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// Its meaning.
    pub help: &'static str,
}

/// Registers metrics and stores their definitions.
#[derive(Default)]
pub(super) struct Registrar {
    pub(super) registry: Registry,
    pub(super) definitions: Vec<Definition>,
}

/// Upper bounds of the buckets for the time a call takes: from a local agent to the longest timeout.
pub(super) const CALL_SECONDS: [f64; 14] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 30.0, 60.0, 300.0,
];

// === impl Registrar ===

impl Registrar {
    pub(super) fn counter(&mut self, definition: Definition) -> Result<IntCounter, Error> {
        let counter = IntCounter::new(definition.name, definition.help)?;
        self.register(definition, counter)
    }

    pub(super) fn counters(&mut self, definition: Definition) -> Result<IntCounterVec, Error> {
        let opts = Opts::new(definition.name, definition.help);
        self.register(definition, IntCounterVec::new(opts, definition.labels)?)
    }

    pub(super) fn gauge(&mut self, definition: Definition) -> Result<IntGauge, Error> {
        let gauge = IntGauge::new(definition.name, definition.help)?;
        self.register(definition, gauge)
    }

    pub(super) fn gauges(&mut self, definition: Definition) -> Result<IntGaugeVec, Error> {
        let opts = Opts::new(definition.name, definition.help);
        self.register(definition, IntGaugeVec::new(opts, definition.labels)?)
    }

    pub(super) fn histogram(
        &mut self,
        definition: Definition,
        buckets: &[f64],
    ) -> Result<Histogram, Error> {
        let opts = HistogramOpts::new(definition.name, definition.help).buckets(buckets.to_vec());
        self.register(definition, Histogram::with_opts(opts)?)
    }

    pub(super) fn histograms(
        &mut self,
        definition: Definition,
        buckets: &[f64],
    ) -> Result<HistogramVec, Error> {
        let opts = HistogramOpts::new(definition.name, definition.help).buckets(buckets.to_vec());
        self.register(definition, HistogramVec::new(opts, definition.labels)?)
    }

    fn register<C: Collector + Clone + 'static>(
        &mut self,
        definition: Definition,
        collector: C,
    ) -> Result<C, Error> {
        self.registry.register(Box::new(collector.clone()))?;
        self.definitions.push(definition);
        Ok(collector)
    }
}

/// One counter for each label value, so that each is exported as 0 before its first event.
pub(super) fn per_value(
    counters: &IntCounterVec,
    values: &[&str],
) -> Result<Vec<IntCounter>, Error> {
    let counter = |value: &&str| counters.get_metric_with_label_values(&[*value]);
    values.iter().map(counter).collect()
}

/// The time now, in seconds since 1970.
pub(super) fn unix_time() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = now.map_or(0, |since| since.as_secs());
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

pub(super) fn add_one(counters: &[IntCounter], index: usize) {
    debug_assert!(
        index < counters.len(),
        "each value of the enum has its counter"
    );
    if let Some(counter) = counters.get(index) {
        counter.inc();
    }
}
