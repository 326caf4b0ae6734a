//! Rate limits with sliding windows.
//!
//! Source: docs/protocols/a2e-workflows.md §8.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use a2abus_models::wire_enum;
use a2abus_plugin::Text;

use crate::environment::Clock;

/// Counts actions by key. Refused attempts are not counted.
///
/// For each key it keeps at most as many times as the largest limit used with it, and none older than the longest
/// window. The number of keys is bounded; the most recently used half is never dropped.
pub struct Quotas {
    clock: Arc<dyn Clock>,
    max_keys: usize,
    logs: Mutex<Logs>,
}

/// The maximum within a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// The maximum number of actions.
    pub max: u32,
    /// The time span in which they are counted.
    pub window: Window,
}

wire_enum! {
    /// A time span that ends now. `Display` writes `minute`, `hour` or `day`.
    Window {
        /// 60 seconds.
        Minute = "minute",
        /// 60 minutes.
        Hour = "hour",
        /// 24 hours.
        Day = "day",
    }
}

/// An action that was counted, with the state of the first limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admitted {
    /// The maximum within the window.
    pub limit: u32,
    /// The window.
    pub window: Window,
    /// How many are left.
    pub remaining: u32,
    /// When the next slot frees.
    pub reset: SystemTime,
}

/// An action that was refused because a limit is reached. If several are reached, the one with the longest wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exceeded {
    /// The maximum within the window.
    pub limit: u32,
    /// The window.
    pub window: Window,
    /// When a slot frees.
    pub reset: SystemTime,
    /// The time until then, in whole seconds, rounded up and at least 1.
    pub retry_after: u32,
}

/// Recent counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// In the last 60 seconds.
    pub minute: usize,
    /// In the last hour.
    pub hour: usize,
    /// In the last day.
    pub day: usize,
}

/// Two generations of logs. Using a log moves it to the young generation. When the young generation is old enough, the
/// old one is dropped, because its keys have not been used for all that time.
#[derive(Default)]
struct Logs {
    young: HashMap<Text, Log>,
    old: HashMap<Text, Log>,
    /// When the young generation began.
    since: Duration,
    /// The longest window used so far.
    longest: Duration,
}

/// The times of the counted actions, by the clock, in order.
#[derive(Default)]
struct Log(VecDeque<Duration>);

// === impl Quotas ===

impl Quotas {
    /// A counter with this clock, for at most this many keys.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, max_keys: usize) -> Self {
        Self {
            clock,
            max_keys,
            logs: Mutex::default(),
        }
    }

    /// Counts one more action for a key, if all limits permit it.
    ///
    /// # Errors
    /// The limit that is reached.
    pub fn admit(&self, key: &str, limits: &[Limit]) -> Result<Admitted, Exceeded> {
        let (now, time) = (self.clock.elapsed(), self.clock.now());
        let mut logs = self.lock();
        let longest = limits.iter().map(|limit| limit.window.length()).max();
        logs.longest = logs.longest.max(longest.unwrap_or_default());
        logs.age(now, self.max_keys);
        let log = logs.touch(key);
        log.forget(now, longest.unwrap_or_default());
        let waits = limits.iter().filter_map(|limit| {
            let wait = log.wait(now, *limit)?;
            Some((wait, limit))
        });
        if let Some((wait, limit)) = waits.rev().max_by_key(|(wait, _)| *wait) {
            return Err(Exceeded {
                limit: limit.max,
                window: limit.window,
                reset: time + wait,
                retry_after: whole_seconds(wait),
            });
        }
        log.0.push_back(now);
        let first = limits.first().copied().unwrap_or(Limit::NONE);
        let used = log.since(now, first.window);
        let oldest = used.first().copied().unwrap_or(now);
        let used = u32::try_from(used.len()).unwrap_or(u32::MAX);
        Ok(Admitted {
            limit: first.max,
            window: first.window,
            remaining: first.max.saturating_sub(used),
            reset: time + (oldest + first.window.length()).saturating_sub(now),
        })
    }

    /// How often a key was counted, as far back as its log reaches.
    #[must_use]
    pub fn usage(&self, key: &str) -> Usage {
        let now = self.clock.elapsed();
        let mut logs = self.lock();
        let logs = &mut *logs;
        let Some(log) = logs.young.get_mut(key).or_else(|| logs.old.get_mut(key)) else {
            return Usage::default();
        };
        Usage {
            minute: log.since(now, Window::Minute).len(),
            hour: log.since(now, Window::Hour).len(),
            day: log.since(now, Window::Day).len(),
        }
    }

    /// Every change is complete before its lock is released, so a panic elsewhere leaves it usable.
    fn lock(&self) -> MutexGuard<'_, Logs> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Quotas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quotas").finish_non_exhaustive()
    }
}

// === impl Limit ===

impl Limit {
    const NONE: Self = Self::new(u32::MAX, Window::Minute);

    /// At most this many actions within a window.
    #[must_use]
    pub const fn new(max: u32, window: Window) -> Self {
        Self { max, window }
    }
}

// === impl Window ===

impl Window {
    /// How long it is.
    #[must_use]
    pub const fn length(self) -> Duration {
        Duration::from_secs(match self {
            Self::Minute => 60,
            Self::Hour => 60 * 60,
            Self::Day => 24 * 60 * 60,
        })
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl Admitted, Exceeded ===

impl Admitted {
    /// When the next slot frees, in Unix seconds, rounded up.
    #[must_use]
    pub fn reset_unix_seconds(&self) -> u64 {
        unix_seconds(self.reset)
    }
}

impl Exceeded {
    /// When a slot frees, in Unix seconds, rounded up.
    #[must_use]
    pub fn reset_unix_seconds(&self) -> u64 {
        unix_seconds(self.reset)
    }
}

fn unix_seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() + u64::from(since.subsec_nanos() > 0)
}

/// At least one, and rounded up, so that a client that waits this long has waited long enough.
pub(crate) fn whole_seconds(wait: Duration) -> u32 {
    let begun = u64::from(wait.subsec_nanos() > 0);
    let seconds = wait.as_secs().saturating_add(begun);
    u32::try_from(seconds).unwrap_or(u32::MAX).max(1)
}

// === impl Logs ===

impl Logs {
    /// Drops the old generation when its entries are outside all windows, or when the young one is too large.
    fn age(&mut self, now: Duration, max_keys: usize) {
        let crowded = self.young.len() >= (max_keys / 2).max(1);
        if crowded || now.saturating_sub(self.since) >= self.longest {
            self.old = std::mem::take(&mut self.young);
            self.since = now;
        }
    }

    fn touch(&mut self, key: &str) -> &mut Log {
        let old = self.old.remove(key);
        self.young
            .entry(key.into())
            .or_insert_with(|| old.unwrap_or_default())
    }
}

// === impl Log ===

impl Log {
    /// Drops the times outside a window of this length.
    fn forget(&mut self, now: Duration, longest: Duration) {
        let gone = self.0.partition_point(|time| *time + longest <= now);
        self.0.drain(..gone);
    }

    /// The times within a window.
    fn since(&mut self, now: Duration, window: Window) -> &[Duration] {
        let times = self.0.make_contiguous();
        let first = times.partition_point(|time| *time + window.length() <= now);
        times.get(first..).unwrap_or_default()
    }

    /// How long until the limit permits another action; `None` if it does now.
    fn wait(&mut self, now: Duration, limit: Limit) -> Option<Duration> {
        let length = limit.window.length();
        let times = self.since(now, limit.window);
        let max = usize::try_from(limit.max).unwrap_or(usize::MAX);
        let excess = times.len().checked_sub(max)?;
        // A limit of zero never frees a slot; it is enough to ask again after the window.
        let frees = times
            .get(excess)
            .map_or(now + length, |time| *time + length);
        Some(frees.saturating_sub(now))
    }
}
