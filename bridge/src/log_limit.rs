//! Rate-limited log lines, with a count of the suppressed ones.
//!
//! ```text
//! LogLimits ── LogLimit: one kind of line ── allow ──> written, with the number suppressed before it
//!     └── report, flush ──> the number suppressed, if no later line contains it
//! ```

use std::sync::{Arc, Mutex, MutexGuard};

use a2abus_plugin::Text;
use tokio::time::{Duration, Instant};
use tracing::Level;

use crate::lock::lock;

/// Maximum number of lines in one window.
const MAX_LINES: u32 = 10;
/// The length of a window.
const WINDOW: Duration = Duration::from_secs(10);

/// The rate-limited lines of one bridge. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct LogLimits(Arc<Mutex<Vec<Arc<Line>>>>);

/// Decides whether a line of one kind is written. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct LogLimit(Arc<Line>);

/// One kind of line.
#[derive(Debug)]
struct Line {
    level: Level,
    binding: Option<Text>,
    /// The message of the line that reports the suppressed ones.
    more: &'static str,
    window: Mutex<Window>,
}

#[derive(Debug)]
struct Window {
    began: Instant,
    written: u32,
    suppressed: u64,
}

// === impl LogLimits ===

impl LogLimits {
    /// Adds a kind of line. `more` is the message of the line that reports how many were suppressed.
    pub(crate) fn limit(&self, level: Level, more: &'static str) -> LogLimit {
        self.add(level, None, more)
    }

    /// The same, for one binding.
    pub(crate) fn limit_of(&self, binding: &Text, level: Level, more: &'static str) -> LogLimit {
        self.add(level, Some(binding.clone()), more)
    }

    fn add(&self, level: Level, binding: Option<Text>, more: &'static str) -> LogLimit {
        let line = Arc::new(Line {
            level,
            binding,
            more,
            window: Mutex::new(Window {
                began: Instant::now(),
                written: 0,
                suppressed: 0,
            }),
        });
        lock(&self.0).push(Arc::clone(&line));
        LogLimit(line)
    }

    /// Reports how many lines were suppressed in past windows, unless a later line has reported them.
    pub(crate) fn report(&self) {
        self.write_all(Line::unreported);
    }

    /// Reports how many lines were suppressed so far. Call it before the process ends.
    pub(crate) fn flush(&self) {
        self.write_all(|line| Some(std::mem::take(&mut line.window().suppressed)));
    }

    fn write_all(&self, count: impl Fn(&Line) -> Option<u64>) {
        let lines = lock(&self.0).clone();
        for line in lines {
            if let Some(suppressed) = count(&line).filter(|suppressed| *suppressed > 0) {
                line.write(suppressed);
            }
        }
    }
}

// === impl LogLimit ===

impl LogLimit {
    /// Whether to write the line: `Some` with the number of lines that were suppressed since the last one.
    pub(crate) fn allow(&self) -> Option<u64> {
        let mut window = self.0.window();
        if window.written < MAX_LINES {
            window.written += 1;
            return Some(std::mem::take(&mut window.suppressed));
        }
        window.suppressed += 1;
        None
    }
}

// === impl Line ===

impl Line {
    fn unreported(&self) -> Option<u64> {
        let mut window = self.window();
        (window.written == 0).then(|| std::mem::take(&mut window.suppressed))
    }

    fn write(&self, suppressed: u64) {
        let (binding, more) = (self.binding.as_ref().map(Text::as_str), self.more);
        match self.level {
            Level::ERROR => tracing::error!(binding, suppressed, "{more}"),
            Level::WARN => tracing::warn!(binding, suppressed, "{more}"),
            _ => tracing::info!(binding, suppressed, "{more}"),
        }
    }

    /// The current window.
    fn window(&self) -> MutexGuard<'_, Window> {
        let mut window = lock(&self.window);
        if window.began.elapsed() >= WINDOW {
            window.began = Instant::now();
            window.written = 0;
        }
        window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit() -> LogLimit {
        LogLimits::default().limit(Level::WARN, "more")
    }

    #[tokio::test(start_paused = true)]
    async fn suppressed_lines_are_counted_and_reported_once() {
        let limit = limit();
        for _ in 0..MAX_LINES {
            assert_eq!(limit.allow(), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(limit.allow(), None);
        }
        assert_eq!(limit.0.unreported(), None, "the window is not over");
        tokio::time::advance(WINDOW).await;
        assert_eq!(limit.0.unreported(), Some(7));
        assert_eq!(limit.0.unreported(), Some(0));
        assert_eq!(limit.allow(), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_line_of_the_next_window_reports_the_last() {
        let limit = limit();
        for _ in 0..MAX_LINES + 3 {
            limit.allow();
        }
        tokio::time::advance(WINDOW).await;
        assert_eq!(limit.allow(), Some(3));
        assert_eq!(limit.0.unreported(), None);
    }
}
