//! Can this process do its work now, and if not, why?

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use a2abus_plugin::Text;
use serde::Serialize;

/// Whether the process can do its work: where it is in its life, and what it needs.
///
/// Ready means running, with every condition met. Safe to share; writers are rare.
#[derive(Debug, Default)]
pub struct Readiness(RwLock<State>);

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// By name; `Err` holds the cause, for operators.
    conditions: BTreeMap<Text, Result<(), String>>,
    /// By name: why a part of the work waits.
    degraded: BTreeMap<Text, String>,
}

/// Where a process is in its life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Not all parts are up for the first time.
    #[default]
    Starting,
    /// At work.
    Running,
    /// Shutting down: it finishes work in progress.
    Draining,
}

/// The content of `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether work should be sent here.
    pub ready: bool,
    /// Where the process is in its life.
    pub phase: Phase,
    /// The conditions that are not met, by name.
    pub not_ready: Vec<UnmetCondition>,
    /// What does not work while the process as a whole does: destinations that take no messages. Left out when empty.
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
    /// Of a process that starts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes whether a condition is met, and why not. A name not seen before is a new condition.
    pub fn set(&self, name: impl Into<Text>, met: Result<(), String>) {
        self.write().conditions.insert(name.into(), met);
    }

    /// Notes a condition that is not met yet.
    pub fn starting(&self, name: impl Into<Text>) {
        self.set(name, Err("starting".to_owned()));
    }

    /// Notes that a part of the work waits, and why. It does not make the process unready: other work goes on.
    pub fn degraded(&self, name: impl Into<Text>, cause: String) {
        self.write().degraded.insert(name.into(), cause);
    }

    /// Notes that a part that waited goes on.
    pub fn restored(&self, name: &str) {
        self.write()
            .degraded
            .retain(|waiting, _| waiting.as_str() != name);
    }

    /// Everything is up: ready from now on while every condition is met.
    pub fn started(&self) {
        let mut state = self.write();
        if state.phase == Phase::Starting {
            state.phase = Phase::Running;
        }
    }

    /// The process is shutting down: it is not ready again.
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

    /// All of it, as of one moment.
    #[must_use]
    pub fn report(&self) -> Report {
        let state = self.read();
        let unmet = |(name, met): (&Text, &Result<(), String>)| {
            let cause = met.as_ref().err()?.clone();
            Some(UnmetCondition {
                name: name.clone(),
                cause,
            })
        };
        let not_ready: Vec<_> = state.conditions.iter().filter_map(unmet).collect();
        let degraded = state.degraded.iter().map(|(name, cause)| UnmetCondition {
            name: name.clone(),
            cause: cause.clone(),
        });
        Report {
            ready: state.phase == Phase::Running && not_ready.is_empty(),
            phase: state.phase,
            not_ready,
            degraded: degraded.collect(),
        }
    }

    // Every write leaves the state whole, so that a lock poisoned by a panic elsewhere is as good as any.
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
        assert!(!readiness.is_ready(), "it only starts");
        readiness.started();
        assert!(readiness.is_ready());
        readiness.set("transport kafka", Err("no broker answers".into()));
        assert!(!readiness.is_ready());
        readiness.set("transport kafka", Ok(()));
        assert!(readiness.is_ready());
    }

    #[test]
    fn what_is_degraded_is_shown_and_does_not_make_the_process_unready() {
        let readiness = Readiness::new();
        readiness.started();
        readiness.degraded("destination kafka/a", "not allowed".into());
        assert!(readiness.is_ready());
        assert_eq!(readiness.report().degraded[0].cause, "not allowed");
        readiness.restored("destination kafka/a");
        assert!(readiness.report().degraded.is_empty());
    }

    #[test]
    fn draining_is_for_good() {
        let readiness = Readiness::new();
        readiness.started();
        readiness.drain();
        readiness.started();
        assert!(readiness.is_draining() && !readiness.is_ready());
    }
}
