//! Whether this process can do its work, and if not, why.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use a2abus_plugin::Text;
use serde::Serialize;

/// The prefix of the name of a condition that stands for a connected transport.
pub(crate) const TRANSPORT: &str = "transport ";

/// The readiness of the process: its phase, and the conditions it needs.
///
/// The process is ready while it is running and every condition is met. Writers are rare.
#[derive(Debug, Default)]
pub struct Readiness(RwLock<State>);

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// The conditions that are not met, and the parts that wait, by name.
    problems: BTreeMap<Text, Problem>,
    /// The conditions without which the process stays ready.
    optional: BTreeSet<Text>,
}

#[derive(Debug)]
struct Problem {
    /// The cause, for operators.
    cause: String,
    /// Whether the process stays ready.
    is_degraded: bool,
}

/// The phase of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Starting: not all conditions have been met yet.
    #[default]
    Starting,
    /// Working.
    Running,
    /// Shutting down: it finishes work in progress.
    Draining,
}

/// The content of `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether work should be sent here.
    pub ready: bool,
    /// The phase.
    pub phase: Phase,
    /// The conditions that are not met, by name: those of transports first.
    pub not_ready: Vec<UnmetCondition>,
    /// Parts that do not work, although the process is ready: destinations that accept no messages. Absent if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub degraded: Vec<UnmetCondition>,
}

/// One condition that is not met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnmetCondition {
    /// The name of the condition, for example `transport kafka`.
    pub name: Text,
    /// Why it is not met.
    pub cause: String,
}

// === impl Readiness ===

impl Readiness {
    /// The readiness of a starting process.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets that a condition is met, or why it is not. If it is met, it is not degraded either.
    pub fn set(&self, name: impl Into<Text>, met: Result<(), String>) {
        let name: Text = name.into();
        match met {
            Ok(()) => self.restored(&name),
            Err(cause) => self.add(name, cause, false),
        }
    }

    /// From now on the process is only degraded while this condition is not met.
    pub fn optional(&self, name: impl Into<Text>) {
        self.write().optional.insert(name.into());
    }

    /// Adds a condition that is not met yet.
    pub fn starting(&self, name: impl Into<Text>) {
        self.set(name, Err("starting".to_owned()));
    }

    /// Adds a part that waits, with the cause, or a condition that is met in part. The process stays ready, because its
    /// other parts work.
    pub fn degraded(&self, name: impl Into<Text>, cause: String) {
        self.add(name.into(), cause, true);
    }

    fn add(&self, name: Text, cause: String, is_degraded: bool) {
        let problem = Problem { cause, is_degraded };
        self.write().problems.insert(name, problem);
    }

    /// Removes a part that no longer waits.
    pub fn restored(&self, name: &str) {
        self.write().problems.remove(name);
    }

    /// Ends the start: from now on the process is ready while every condition is met.
    pub fn started(&self) {
        let mut state = self.write();
        if state.phase == Phase::Starting {
            state.phase = Phase::Running;
        }
    }

    /// Begins the shutdown. The process will not be ready again.
    pub fn drain(&self) {
        self.write().phase = Phase::Draining;
    }

    /// Whether the process is shutting down.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.read().phase == Phase::Draining
    }

    /// Whether work should be sent here.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.report().ready
    }

    /// A consistent snapshot.
    #[must_use]
    pub fn report(&self) -> Report {
        let state = self.read();
        let (mut degraded, mut not_ready) = (Vec::new(), Vec::new());
        for (name, Problem { cause, is_degraded }) in &state.problems {
            let list = match *is_degraded || state.optional.contains(name) {
                true => &mut degraded,
                false => &mut not_ready,
            };
            list.push(UnmetCondition {
                name: name.clone(),
                cause: cause.clone(),
            });
        }
        // Other parts need the transports, so the cause of a transport explains theirs.
        not_ready.sort_by_key(|unmet| !unmet.name.starts_with(TRANSPORT));
        Report {
            ready: state.phase == Phase::Running && not_ready.is_empty(),
            phase: state.phase,
            not_ready,
            degraded,
        }
    }

    // Every write leaves the state consistent, so a lock poisoned by a panic elsewhere can be used.
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_means_running_with_every_condition_met() {
        let readiness = Readiness::new();
        readiness.set("transport kafka", Ok(()));
        assert!(!readiness.is_ready(), "it is still starting");
        readiness.started();
        assert!(readiness.is_ready());
        readiness.set("transport kafka", Err("no broker answers".into()));
        assert!(!readiness.is_ready());
        readiness.set("transport kafka", Ok(()));
        assert!(readiness.is_ready());
    }

    #[test]
    fn the_cause_of_a_transport_comes_first() {
        let readiness = Readiness::new();
        for name in ["binding in", "transport kafka", "answers on kafka"] {
            readiness.starting(name);
        }
        let report = readiness.report();
        let names = report.not_ready.iter().map(|unmet| unmet.name.as_str());
        let expected = ["transport kafka", "answers on kafka", "binding in"];
        assert!(names.eq(expected));
    }

    #[test]
    fn a_degraded_part_is_shown_and_the_process_stays_ready() {
        let readiness = Readiness::new();
        readiness.started();
        readiness.degraded("destination kafka/a", "not allowed".into());
        assert!(readiness.is_ready());
        assert_eq!(readiness.report().degraded[0].cause, "not allowed");
        readiness.restored("destination kafka/a");
        assert!(readiness.report().degraded.is_empty());
    }

    #[test]
    fn without_an_optional_condition_the_process_is_degraded() {
        let readiness = Readiness::new();
        readiness.started();
        readiness.set("answers to other replicas", Err("it ended".into()));
        assert!(!readiness.is_ready());
        readiness.optional("answers to other replicas");
        assert!(readiness.is_ready());
        assert_eq!(readiness.report().degraded[0].cause, "it ended");
    }

    #[test]
    fn draining_cannot_be_undone() {
        let readiness = Readiness::new();
        readiness.started();
        readiness.drain();
        readiness.started();
        assert!(readiness.is_draining() && !readiness.is_ready());
    }
}
