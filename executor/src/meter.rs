//! The time and memory that one operation may still use.

use std::cell::Cell;
use std::time::Duration;

use a2abus_models::Json;

use crate::environment::Clock;
use crate::failure::{Failure, FailureCode};

/// Bounds the work of one operation. An operation reports its work, and the meter fails when it is too much.
pub(crate) struct Meter<'a> {
    clock: &'a dyn Clock,
    /// The deadline of the execution, by the clock.
    deadline: Duration,
    /// How many more bytes of memory may be allocated.
    room: Cell<usize>,
    max_weight: usize,
    steps: Cell<u32>,
}

/// How many steps are made between two checks of the clock.
const STEPS: u32 = 1024;
/// How many scanned bytes count as one step.
const SCANNED: usize = 1024;

// === impl Meter ===

impl<'a> Meter<'a> {
    pub(crate) fn new(clock: &'a dyn Clock, deadline: Duration, max_weight: usize) -> Self {
        Self {
            clock,
            deadline,
            room: Cell::new(max_weight),
            max_weight,
            steps: Cell::new(0),
        }
    }

    /// Counts one step, such as visiting an element.
    pub(crate) fn step(&self) -> Result<(), Failure> {
        self.steps(1)
    }

    /// Counts reading this many bytes, for example a search in a long text.
    pub(crate) fn scan(&self, bytes: usize) -> Result<(), Failure> {
        self.steps(u32::try_from(bytes / SCANNED).map_or(u32::MAX, |steps| steps.saturating_add(1)))
    }

    fn steps(&self, count: u32) -> Result<(), Failure> {
        let steps = self.steps.get().saturating_add(count);
        if steps < STEPS {
            self.steps.set(steps);
            return Ok(());
        }
        self.steps.set(0);
        if self.clock.elapsed() >= self.deadline {
            return Err(execution_timeout());
        }
        Ok(())
    }

    /// Counts allocated memory.
    pub(crate) fn weigh(&self, bytes: usize) -> Result<(), Failure> {
        match self.room.get().checked_sub(bytes) {
            Some(room) => {
                self.room.set(room);
                Ok(())
            }
            None => Err(too_heavy(self.max_weight)),
        }
    }

    /// Releases memory that was counted before.
    pub(crate) fn release(&self, bytes: usize) {
        self.room.set(self.room.get().saturating_add(bytes));
    }

    /// Counts a value that becomes part of a result.
    pub(crate) fn keep(&self, value: Json) -> Result<Json, Failure> {
        self.weigh(value.weight())?;
        Ok(value)
    }
}

pub(crate) fn execution_timeout() -> Failure {
    Failure::new(
        FailureCode::ExecutionTimeout,
        "the execution exceeded max_execution_time",
    )
}

/// The same failure, when the deadline of the requester was the earlier one.
pub(crate) fn requester_deadline_exceeded(failure: Failure) -> Failure {
    if failure.code != FailureCode::ExecutionTimeout {
        return failure;
    }
    Failure {
        message: "the execution exceeded the time that its requester allows".to_owned(),
        ..failure.suggest("allow more time, or request less")
    }
}

pub(crate) fn too_heavy(max: usize) -> Failure {
    let message = format!("the data model would exceed its limit of {} MiB", max >> 20);
    Failure::new(FailureCode::LimitExceeded, message)
        .with("limit", "data_model_bytes")
        .with("max", max)
}
