//! A clock for tests: a sleep advances it at once.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::environment::Clock;

/// A clock that advances only by sleeps, which end at once, or by [`VirtualClock::advance`]. It begins at the start of
/// 2025.
#[derive(Clone, Default)]
pub struct VirtualClock(Arc<Mutex<Duration>>);

/// 2025-01-01T00:00:00Z, since the epoch.
const START: Duration = Duration::from_secs(1_735_689_600);

// === impl VirtualClock ===

impl VirtualClock {
    /// Advances the clock.
    pub fn advance(&self, duration: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += duration;
    }
}

impl Clock for VirtualClock {
    fn elapsed(&self) -> Duration {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + START + self.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let clock = self.clone();
        async move { clock.advance(duration) }.boxed()
    }
}

impl fmt::Debug for VirtualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VirtualClock")
            .field(&self.elapsed())
            .finish()
    }
}
