//! Injected faults, decided by a seed so that a failing test can be repeated.

use std::time::Duration;

/// How often each fault happens, as a probability from 0 (never) to 1 (always). All are 0 by default.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FaultPlan {
    /// A send fails with `Disconnected`; the message is not stored.
    pub refuse: f64,
    /// A message is stored, but its confirmation fails with `Disconnected`.
    pub drop_confirmation: f64,
    /// A confirmation comes later than those of other messages.
    pub late_confirmation: f64,
    /// How late a confirmation is, at most (default 100 ms).
    pub late_at_most: Duration,
    /// A settled message is delivered once more, as after an acknowledgement that was lost.
    pub duplicate: f64,
    /// A message is held back, and its lane behind it; other lanes overtake.
    pub delay: f64,
    /// How long a message is held back, at most (default 100 ms).
    pub delay_at_most: Duration,
    /// A send brings the whole bus down and fails, before or after its message was stored.
    pub disconnect: f64,
    /// How long the bus stays down, at most (default 500 ms).
    pub outage_at_most: Duration,
}

impl Default for FaultPlan {
    fn default() -> Self {
        Self {
            refuse: 0.0,
            drop_confirmation: 0.0,
            late_confirmation: 0.0,
            late_at_most: Duration::from_millis(100),
            duplicate: 0.0,
            delay: 0.0,
            delay_at_most: Duration::from_millis(100),
            disconnect: 0.0,
            outage_at_most: Duration::from_millis(500),
        }
    }
}

/// The fault of one send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendFault {
    Refuse,
    DropConfirmation,
    /// The bus goes down for that long.
    DisconnectBefore(Duration),
    DisconnectAfter(Duration),
}

/// The plan and the state of its random numbers.
#[derive(Debug)]
pub(super) struct Faults {
    plan: FaultPlan,
    state: u64,
}

// === impl Faults ===

impl Faults {
    pub(super) fn none() -> Self {
        Self::seeded(0, FaultPlan::default())
    }

    pub(super) fn seeded(seed: u64, plan: FaultPlan) -> Self {
        Self { plan, state: seed }
    }

    /// The fault of the next send, if it has one.
    pub(super) fn of_send(&mut self) -> Option<SendFault> {
        if self.happens(self.plan.disconnect) {
            let outage = self.up_to(self.plan.outage_at_most);
            return Some(if self.happens(0.5) {
                SendFault::DisconnectBefore(outage)
            } else {
                SendFault::DisconnectAfter(outage)
            });
        }
        if self.happens(self.plan.refuse) {
            return Some(SendFault::Refuse);
        }
        self.happens(self.plan.drop_confirmation)
            .then_some(SendFault::DropConfirmation)
    }

    /// How late the confirmation of the next message is.
    pub(super) fn lateness(&mut self) -> Option<Duration> {
        self.happens(self.plan.late_confirmation)
            .then(|| self.up_to(self.plan.late_at_most))
    }

    /// How long the next message is held back.
    pub(super) fn delay(&mut self) -> Option<Duration> {
        self.happens(self.plan.delay)
            .then(|| self.up_to(self.plan.delay_at_most))
    }

    /// Whether the next settled message is delivered once more.
    pub(super) fn duplicates(&mut self) -> bool {
        self.happens(self.plan.duplicate)
    }

    fn happens(&mut self, probability: f64) -> bool {
        // An impossible fault draws no number, so that adding one to a plan does not move the others of a seed.
        probability > 0.0 && self.unit() < probability
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.unit())
    }

    /// A number from 0 up to, not including, 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Splitmix64 of Steele, Lea and Flood: enough for faults, and no dependency.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
