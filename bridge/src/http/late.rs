//! Deadlines of connections, for a process that may stand still because its machine or container is frozen, or because
//! it is stopped.
//!
//! When the process goes on, deadlines have passed and bytes have arrived, and the runtime may see the deadlines first.
//! A connection whose request has arrived must not be closed for that. So a deadline that is noticed late is extended
//! for a moment.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// How late a deadline must be noticed to be extended, and for how long.
const LATE: Duration = Duration::from_millis(100);
const EXTENSION: Duration = Duration::from_secs(1);

/// Completes when a deadline has passed.
pub(super) fn passed(at: Instant) -> Deadline {
    Deadline {
        sleep: sleep_until(at),
    }
}

pin_project_lite::pin_project! {
    /// The future of [`passed`].
    pub(super) struct Deadline {
        #[pin]
        sleep: Sleep,
    }
}

impl Future for Deadline {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut sleep = self.project().sleep;
        ready!(sleep.as_mut().poll(context));
        if sleep.deadline().elapsed() <= LATE {
            return Poll::Ready(());
        }
        sleep.as_mut().reset(Instant::now() + EXTENSION);
        sleep.poll(context)
    }
}

impl hyper::rt::Sleep for Deadline {}

/// The timer for hyper.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timer;

impl hyper::rt::Timer for Timer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(passed(Instant::now() + duration))
    }

    fn sleep_until(&self, at: std::time::Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(passed(at.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::{advance, sleep};

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_is_noticed_late_is_extended() {
        for (late, extended) in [(Duration::ZERO, Duration::ZERO), (2 * LATE, EXTENSION)] {
            let at = Instant::now() + Duration::from_secs(10);
            let deadline = tokio::spawn(passed(at));
            tokio::task::yield_now().await;
            // The process stands still.
            advance(Duration::from_secs(10) + late).await;
            deadline.await.unwrap();
            let noticed = at.elapsed().saturating_sub(late);
            assert!(
                noticed >= extended && noticed < extended + LATE,
                "{noticed:?}"
            );
            sleep(LATE).await;
        }
    }
}
