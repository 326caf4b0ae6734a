//! Calls by agent. The number of agents with their own series is limited, because callers choose the names.
//!
//! An agent gets its own series with its first answer, or with its first call if a route names it. At the limit, the
//! agent whose last call was longest ago loses its series, unless that call was recent or it has calls in flight. All
//! agents without their own series count together as `other`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use a2abus_plugin::Text;
use prometheus::{Error, HistogramVec, IntCounterVec, IntGaugeVec};

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
    in_flight: usize,
}

/// One call in flight.
#[derive(Debug)]
pub(crate) struct AgentInFlight {
    of: Arc<AgentMetrics>,
    agent: Text,
    has_own: bool,
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
        }))
    }

    /// Sets the maximum number of agents with their own series.
    pub(crate) fn set_most(&self, most: usize) {
        self.own().most = most;
    }

    /// Counts a call that begins.
    pub(crate) fn begin(self: &Arc<Self>, agent: &Text, is_known: bool) -> AgentInFlight {
        let has_own = self.enter(agent, is_known, Instant::now());
        let label = if has_own { agent.as_str() } else { OTHER };
        self.in_flight.with_label_values(&[label]).inc();
        AgentInFlight {
            of: Arc::clone(self),
            agent: agent.clone(),
            has_own,
        }
    }

    /// Whether the agent has its own series, or gets them now. If so, counts one more call in flight for it.
    fn enter(&self, agent: &Text, may_begin: bool, now: Instant) -> bool {
        let mut own = self.own();
        if !own.agents.contains_key(agent) {
            if !may_begin || agent.is_empty() || agent == OTHER {
                return false;
            }
            if own.agents.len() >= own.most {
                let Some(oldest) = own.oldest(now) else {
                    return false;
                };
                own.agents.remove(&oldest);
                self.forget(&oldest);
            }
        }
        let slot = own.agents.entry(agent.clone()).or_insert(Slot {
            called: now,
            in_flight: 0,
        });
        slot.called = now;
        slot.in_flight += 1;
        true
    }

    fn leave(&self, agent: &Text) {
        if let Some(slot) = self.own().agents.get_mut(agent) {
            slot.in_flight = slot.in_flight.saturating_sub(1);
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
            slot.in_flight == 0 && now.saturating_duration_since(slot.called) >= MIN_RETENTION
        });
        let oldest = idle.min_by_key(|(_, slot)| slot.called);
        oldest.map(|(agent, _)| agent.clone())
    }
}

// === impl AgentInFlight ===

impl AgentInFlight {
    /// Counts the end of the call.
    pub(crate) fn end(self, outcome: CallOutcome, took: Duration) {
        let (of, agent) = (&self.of, &self.agent);
        let label = if self.has_own { agent.as_str() } else { OTHER };
        of.in_flight.with_label_values(&[label]).dec();
        let answered = outcome == CallOutcome::Answered;
        let has_own = self.has_own || of.enter(agent, answered, Instant::now());
        let label = if has_own { agent.as_str() } else { OTHER };
        of.calls.with_label_values(&[label, outcome.as_str()]).inc();
        of.seconds
            .with_label_values(&[label])
            .observe(took.as_secs_f64());
        if has_own {
            of.leave(agent);
        }
    }
}

// === the metrics ===

const AGENT_CALLS: Definition = Definition {
    name: "a2abus_agent_calls_total",
    unit: "calls",
    labels: &["agent", "outcome"],
    help: "Finished calls of an agent, by outcome; agents without their own series count as `other`.",
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
        for (agent, at) in [("a", start), ("b", start + Duration::from_secs(1))] {
            assert!(agents.enter(&agent.into(), true, at));
            agents.calls.with_label_values(&[agent, "answered"]).inc();
        }
        agents.leave(&"b".into());
        assert!(
            !agents.enter(&"c".into(), true, later),
            "b was called a moment ago, a still is"
        );
        agents.leave(&"a".into());
        assert!(agents.enter(&"c".into(), true, later));
        let text = text(&registry);
        assert!(
            text.contains("agent=\"b\"") && !text.contains("agent=\"a\""),
            "{text}"
        );
    }
}
