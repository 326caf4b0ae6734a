//! Calls by agent. The number of agents with their own series is limited, because callers choose the names.
//!
//! An agent gets its own series with its first answer, or with its first call if a route names it or it has announced
//! itself. At the limit, the agent whose last call was longest ago loses its series, unless that call was recent or it
//! has calls in flight. All agents without their own series count together as `other`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use a2abus_plugin::Text;
use prometheus::{
    Error, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
};

use super::label::CallOutcome;
use super::registrar::{CALL_SECONDS, Definition, Registrar};

/// The label of the agents without their own series.
const OTHER: &str = "other";
/// The minimum time for which an agent without calls keeps its series.
const MIN_RETENTION: Duration = Duration::from_secs(10 * 60);

/// Calls by agent.
#[derive(Debug)]
pub struct AgentMetrics {
    calls: IntCounterVec,
    seconds: HistogramVec,
    in_flight: IntGaugeVec,
    own: Mutex<LabelledAgents>,
    others: OnceLock<Arc<Series>>,
}

/// The agents with their own series.
#[derive(Debug)]
struct LabelledAgents {
    agents: HashMap<Text, Slot>,
    /// None until [`AgentMetrics::set_most`].
    most: usize,
}

#[derive(Debug)]
struct Slot {
    called: Instant,
    series: Arc<Series>,
}

/// The series of one agent, or of the others.
#[derive(Debug)]
struct Series {
    label: Text,
    in_flight: IntGauge,
    seconds: Histogram,
    /// By outcome. A series exists once it counts something.
    calls: [OnceLock<IntCounter>; CallOutcome::ALL.len()],
}

/// One call in flight.
#[derive(Debug)]
pub(crate) struct AgentInFlight {
    of: Arc<AgentMetrics>,
    agent: Text,
    series: Arc<Series>,
}

// === impl AgentMetrics ===

impl AgentMetrics {
    pub(super) fn new(on: &mut Registrar) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self {
            calls: on.counters(AGENT_CALLS)?,
            seconds: on.histograms(AGENT_CALL, &CALL_SECONDS)?,
            in_flight: on.gauges(AGENT_IN_FLIGHT)?,
            own: Mutex::new(LabelledAgents {
                agents: HashMap::new(),
                most: 0,
            }),
            others: OnceLock::new(),
        }))
    }

    /// Sets the maximum number of agents with their own series.
    pub(crate) fn set_most(&self, most: usize) {
        self.own().most = most;
    }

    /// Counts a call that begins.
    pub(crate) fn begin(self: &Arc<Self>, agent: &Text, is_known: bool) -> AgentInFlight {
        let series = self.series(agent, is_known, Instant::now());
        series.in_flight.inc();
        AgentInFlight {
            of: Arc::clone(self),
            agent: agent.clone(),
            series,
        }
    }

    /// The series of an agent that is called. If it has none and may not begin its own: those of the others.
    fn series(&self, agent: &Text, may_begin: bool, now: Instant) -> Arc<Series> {
        let mut own = self.own();
        if let Some(slot) = own.agents.get_mut(agent) {
            slot.called = now;
            return Arc::clone(&slot.series);
        }
        if !may_begin || agent.is_empty() || agent == OTHER {
            return Arc::clone(self.others());
        }
        if own.agents.len() >= own.most {
            let Some(oldest) = own.oldest(now) else {
                return Arc::clone(self.others());
            };
            own.agents.remove(&oldest);
            self.forget(&oldest);
        }
        let series = Arc::new(self.begin_series(agent.clone()));
        let slot = Slot {
            called: now,
            series: Arc::clone(&series),
        };
        own.agents.insert(agent.clone(), slot);
        series
    }

    fn others(&self) -> &Arc<Series> {
        let begin = || Arc::new(self.begin_series(Text::from_static(OTHER)));
        self.others.get_or_init(begin)
    }

    fn begin_series(&self, label: Text) -> Series {
        let labels = &[label.as_str()];
        Series {
            in_flight: self.in_flight.with_label_values(labels),
            seconds: self.seconds.with_label_values(labels),
            calls: Default::default(),
            label,
        }
    }

    fn forget(&self, agent: &Text) {
        let agent = agent.as_str();
        // An error means that the series does not exist.
        for outcome in CallOutcome::ALL {
            let _ = self.calls.remove_label_values(&[agent, outcome.as_str()]);
        }
        let _ = self.seconds.remove_label_values(&[agent]);
        let _ = self.in_flight.remove_label_values(&[agent]);
    }

    // Ignores poisoning: each change leaves the table consistent.
    fn own(&self) -> MutexGuard<'_, LabelledAgents> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl LabelledAgents ===

impl LabelledAgents {
    /// The agent whose last call was longest ago, if it is old enough to be replaced.
    fn oldest(&self, now: Instant) -> Option<Text> {
        let idle = self.agents.iter().filter(|(_, slot)| {
            slot.series.in_flight.get() == 0
                && now.saturating_duration_since(slot.called) >= MIN_RETENTION
        });
        let oldest = idle.min_by_key(|(_, slot)| slot.called);
        oldest.map(|(agent, _)| agent.clone())
    }
}

// === impl AgentInFlight ===

impl AgentInFlight {
    /// Counts the end of the call.
    pub(crate) fn end(self, outcome: CallOutcome, took: Duration) {
        let mut series = self.series;
        series.in_flight.dec();
        if series.label == OTHER {
            let is_answered = outcome == CallOutcome::Answered;
            series = self.of.series(&self.agent, is_answered, Instant::now());
        }
        series.count(outcome, &self.of.calls);
        series.seconds.observe(took.as_secs_f64());
    }
}

// === impl Series ===

impl Series {
    fn count(&self, outcome: CallOutcome, calls: &IntCounterVec) {
        let labels = &[self.label.as_str(), outcome.as_str()];
        if let Some(series) = self.calls.get(outcome as usize) {
            series.get_or_init(|| calls.with_label_values(labels)).inc();
        }
    }
}

// === the metrics ===

const AGENT_CALLS: Definition = Definition {
    name: "a2abus_agent_calls_total",
    unit: "calls",
    labels: &["agent", "outcome"],
    help: "Finished calls to an agent, by outcome; agents without their own series count as `other`.",
};
const AGENT_CALL: Definition = Definition {
    name: "a2abus_agent_call_seconds",
    unit: "seconds",
    labels: &["agent"],
    help: "Time from a request for an agent to the end of its call, however it ended.",
};
const AGENT_IN_FLIGHT: Definition = Definition {
    name: "a2abus_agent_calls_in_flight",
    unit: "calls",
    labels: &["agent"],
    help: "Calls of an agent in progress.",
};

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK: Duration = Duration::from_millis(3);

    fn agents(most: usize) -> (Arc<AgentMetrics>, prometheus::Registry) {
        let mut on = Registrar::default();
        let agents = AgentMetrics::new(&mut on).unwrap();
        agents.set_most(most);
        (agents, on.registry)
    }

    fn text(registry: &prometheus::Registry) -> String {
        let families = registry.gather();
        prometheus::TextEncoder::new()
            .encode_to_string(&families)
            .unwrap()
    }

    fn call(agents: &Arc<AgentMetrics>, agent: &str, is_known: bool, outcome: CallOutcome) {
        agents.begin(&agent.into(), is_known).end(outcome, TOOK);
    }

    #[test]
    fn an_agent_has_its_own_series_once_it_answers_or_when_a_route_names_it() {
        let (agents, registry) = agents(10);
        call(&agents, "weather", false, CallOutcome::Timeout);
        call(&agents, "weather", false, CallOutcome::Answered);
        call(&agents, "weather", false, CallOutcome::Timeout);
        call(&agents, "named", true, CallOutcome::Timeout);
        let still = agents.begin(&"weather".into(), false);
        let text = text(&registry);
        for line in [
            "a2abus_agent_calls_total{agent=\"other\",outcome=\"timeout\"} 1",
            "a2abus_agent_calls_total{agent=\"weather\",outcome=\"answered\"} 1",
            "a2abus_agent_calls_total{agent=\"weather\",outcome=\"timeout\"} 1",
            "a2abus_agent_calls_total{agent=\"named\",outcome=\"timeout\"} 1",
            "a2abus_agent_calls_in_flight{agent=\"weather\"} 1",
            "a2abus_agent_calls_in_flight{agent=\"other\"} 0",
            "a2abus_agent_call_seconds_count{agent=\"weather\"} 2",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        still.end(CallOutcome::Answered, TOOK);
    }

    #[test]
    fn made_up_names_make_no_series() {
        let (agents, registry) = agents(3);
        for n in 0..1_000 {
            call(&agents, &format!("made-up-{n}"), false, CallOutcome::Failed);
        }
        for n in 0..10 {
            call(&agents, &format!("real-{n}"), false, CallOutcome::Answered);
        }
        call(&agents, "other", true, CallOutcome::Answered);
        call(&agents, "", true, CallOutcome::Answered);
        let text = text(&registry);
        assert!(!text.contains("made-up"), "{text}");
        let real = text.matches("a2abus_agent_call_seconds_count{").count();
        assert_eq!(real, 4, "three agents and `other`: {text}");
        assert!(
            text.contains("a2abus_agent_calls_total{agent=\"other\",outcome=\"answered\"} 9"),
            "{text}"
        );
    }

    #[test]
    fn the_agent_that_was_called_longest_ago_makes_room() {
        let (agents, registry) = agents(2);
        let (start, later) = (Instant::now(), Instant::now() + MIN_RETENTION);
        let [a, b] = [("a", start), ("b", start + Duration::from_secs(1))].map(|(agent, at)| {
            let series = agents.series(&agent.into(), true, at);
            series.in_flight.inc();
            series.count(CallOutcome::Answered, &agents.calls);
            series
        });
        b.in_flight.dec();
        let c = || agents.series(&"c".into(), true, later).label.clone();
        assert_eq!(c(), OTHER, "b was called a moment ago, a still is");
        a.in_flight.dec();
        assert_eq!(c(), "c");
        let text = text(&registry);
        assert!(
            text.contains("agent=\"b\"") && !text.contains("agent=\"a\""),
            "{text}"
        );
    }
}
