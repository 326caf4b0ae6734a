//! Time and randomness of the machine.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::BoxFuture;
use sha2::{Digest, Sha256};

use crate::environment::{Clock, Random};

/// The clock of the machine; its sleeps need the runtime of tokio.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    start: Instant,
}

/// Random bits from a generator that the operating system has seeded once.
pub struct SystemRandom {
    seed: [u8; 32],
    drawn: AtomicU64,
}

// === impl SystemClock ===

impl SystemClock {
    /// A clock that starts now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

// === impl SystemRandom ===

impl SystemRandom {
    /// Asks the operating system for a seed.
    ///
    /// # Errors
    /// If the system has none.
    pub fn new() -> Result<Self, getrandom::Error> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed)?;
        Ok(Self {
            seed,
            drawn: AtomicU64::new(0),
        })
    }
}

impl Random for SystemRandom {
    fn bits(&self) -> u128 {
        let number = self.drawn.fetch_add(1, Ordering::Relaxed);
        let hash = Sha256::new()
            .chain_update(self.seed)
            .chain_update(number.to_le_bytes())
            .finalize();
        let bits = hash.iter().take(size_of::<u128>());
        bits.fold(0, |bits, byte| bits << 8 | u128::from(*byte))
    }
}

/// Shows no seed.
impl fmt::Debug for SystemRandom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemRandom").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn bits_differ_from_draw_to_draw_and_from_seed_to_seed() {
        let (a, b) = (SystemRandom::new().unwrap(), SystemRandom::new().unwrap());
        let bits: HashSet<u128> = (0..1_000).flat_map(|_| [a.bits(), b.bits()]).collect();
        assert_eq!(bits.len(), 2_000);
        let all = bits.iter().fold(0, |all, bits| all | bits);
        assert_eq!(all, u128::MAX);
    }

    #[tokio::test]
    async fn sleeping_advances_the_clock() {
        let clock = SystemClock::new();
        clock.sleep(Duration::from_millis(5)).await;
        assert!(clock.elapsed() >= Duration::from_millis(5));
    }
}
