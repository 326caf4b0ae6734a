//! Log lines that are written now and then, with a count of those that were not.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::{Duration, Instant};

/// Lines that are written within one window, at most.
const MOST: u32 = 10;
/// The length of a window.
const WINDOW: Duration = Duration::from_secs(10);

/// Decides whether a line of one kind is written. Safe to share; held for a few instructions.
#[derive(Debug)]
pub(crate) struct Seldom(Mutex<Window>);

#[derive(Debug)]
struct Window {
    began: Instant,
    written: u32,
    suppressed: u64,
}

// === impl Seldom ===

impl Seldom {
    /// Writes the first line at once.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Window {
            began: Instant::now(),
            written: 0,
            suppressed: 0,
        }))
    }

    /// Whether to write the line: `Some` with the number of lines that were suppressed since the last one.
    pub(crate) fn allow(&self) -> Option<u64> {
        let mut window = self.window();
        if window.written < MOST {
            window.written += 1;
            return Some(std::mem::take(&mut window.suppressed));
        }
        window.suppressed += 1;
        None
    }

    /// How many lines were suppressed in a window that is over, and that no later line has reported.
    pub(crate) fn unreported(&self) -> Option<u64> {
        let mut window = self.window();
        if window.written > 0 || window.suppressed == 0 {
            return None;
        }
        Some(std::mem::take(&mut window.suppressed))
    }

    /// The window of this moment. A panic elsewhere leaves it usable.
    fn window(&self) -> MutexGuard<'_, Window> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if window.began.elapsed() >= WINDOW {
            window.began = Instant::now();
            window.written = 0;
        }
        window
    }
}

impl Default for Seldom {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_suppressed_is_counted_and_reported_once() {
        let seldom = Seldom::new();
        for _ in 0..MOST {
            assert_eq!(seldom.allow(), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(seldom.allow(), None);
        }
        assert_eq!(seldom.unreported(), None, "the window is not over");
        tokio::time::advance(WINDOW).await;
        assert_eq!(seldom.unreported(), Some(7));
        assert_eq!(seldom.unreported(), None);
        assert_eq!(seldom.allow(), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_line_of_the_next_window_reports_the_last() {
        let seldom = Seldom::new();
        for _ in 0..MOST + 3 {
            seldom.allow();
        }
        tokio::time::advance(WINDOW).await;
        assert_eq!(seldom.allow(), Some(3));
        assert_eq!(seldom.unreported(), None);
    }
}
