//! The lanes of one binding.

use std::collections::HashMap;

use prometheus::IntGauge;

use super::Received;
use super::lane::{Lane, Task};
use super::send::Unconfirmed;

/// The lanes of one binding, by number.
#[derive(Default)]
pub(super) struct Lanes(pub(super) HashMap<u32, BindingLane>);

#[derive(Default)]
pub(super) struct BindingLane {
    pub(super) order: Lane<Received, Unconfirmed>,
    /// Counts the lane as held.
    pub(super) held: Option<Held>,
}

// === impl Lanes ===

impl Lanes {
    pub(super) fn get(&mut self, lane: u32) -> &mut BindingLane {
        self.0.entry(lane).or_default()
    }

    /// The next task of a lane, when it may do one now.
    pub(super) fn next(&mut self, lane: u32) -> Option<Task<Received, Unconfirmed>> {
        let lane = self.get(lane);
        let task = lane.order.next();
        if !lane.order.is_held() {
            lane.held = None;
        }
        task
    }
}

/// A lane that waits for a destination; it is counted until this is dropped.
pub(super) struct Held(IntGauge);

// === impl Held ===

impl Held {
    pub(super) fn new(lanes: IntGauge) -> Self {
        lanes.inc();
        Self(lanes)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.dec();
    }
}
