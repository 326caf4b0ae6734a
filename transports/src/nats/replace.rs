//! Another client in place of one that has ended by itself, as it does when it panics.

use std::sync::{Arc, PoisonError, RwLockWriteGuard, Weak};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Current, Inner, Shared};

/// The pause before another client starts: the first, and the longest. What ended the last client may be a stored
/// message, which will end the next one too, or a user who keeps sending such messages.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// After a client has lived this long, the pauses begin anew.
const LONG_LIFE: Duration = Duration::from_secs(60);

// === impl Shared ===

impl Shared {
    /// Watches the client, and starts another one when it has ended by itself, until stopped.
    pub(super) async fn replace_ended(shared: Weak<Self>, stop: CancellationToken) {
        let mut pause = PAUSES.0;
        loop {
            let Some(ended) = shared.upgrade().map(|shared| shared.inner()) else {
                return;
            };
            let began = Instant::now();
            if !ended.link.watch(&ended.client, &stop).await {
                return;
            }
            // Its core readers end by themselves, after what they have received; their owners subscribe again.
            if began.elapsed() >= LONG_LIFE {
                pause = PAUSES.0;
            }
            loop {
                let slept = stop.run_until_cancelled(tokio::time::sleep(pause)).await;
                let Some(shared) = shared.upgrade().filter(|_| slept.is_some()) else {
                    return;
                };
                pause = (pause * 2).min(PAUSES.1);
                match Inner::start(&shared.config, Some(&ended.link), &shared.tasks, &stop).await {
                    Ok(inner) => {
                        ended.stop.cancel();
                        break shared.replace(inner);
                    }
                    Err(error) => tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "another NATS client cannot be started: trying again"
                    ),
                }
            }
        }
    }

    /// Puts another client in the place of the one that has ended, unless that was the last one.
    fn replace(&self, inner: Inner) {
        let mut current = self.changed();
        if current.is_last {
            inner.stop.cancel();
        } else {
            current.inner = Arc::new(inner);
        }
    }

    /// The client of this moment. No other one takes its place from now on.
    pub(super) fn last_client(&self) -> Arc<Inner> {
        let mut current = self.changed();
        current.is_last = true;
        Arc::clone(&current.inner)
    }

    /// Never held over an await. A panic while it is held cannot leave it half written.
    fn changed(&self) -> RwLockWriteGuard<'_, Current> {
        self.current.write().unwrap_or_else(PoisonError::into_inner)
    }
}
