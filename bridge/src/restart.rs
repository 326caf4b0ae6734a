//! Subscriptions that start again until their bus answers, and whenever they end.

use std::time::Duration;

use a2abus_transports::{Consumer, TransportError, TransportErrorKind};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::readiness::Readiness;

/// The wait before something that failed to start is tried again: the first, and the longest.
const RESTART: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// How often the log repeats why something does not start.
const REPEAT: Duration = Duration::from_secs(60);
/// A subscription that ended by itself earlier than this waits as long before it starts again: something ends it each time.
const SHORT_LIFE: Duration = Duration::from_secs(10);
/// The fix for a refused permission.
pub(crate) const GRANT: &str = "`a2abus topics plan --acls` prints the permissions to grant";
/// How long buses and subscriptions may take to flush and close.
pub(crate) const CLOSE: Duration = Duration::from_secs(10);

/// Tries to start something until it works; `None` if `stop` comes first. Reports why it does not start; that it is ready
/// is for the caller to report.
pub(crate) async fn start<F: Future<Output = Result<Consumer, TransportError>>>(
    condition: &str,
    readiness: &Readiness,
    stop: &CancellationToken,
    attempt: impl Fn() -> F,
) -> Option<Consumer> {
    let mut wait = RESTART.0;
    let mut logged: Option<(Instant, String)> = None;
    loop {
        let result = tokio::select! {
            result = attempt() => result,
            () = stop.cancelled() => return None,
        };
        match result {
            Ok(started) => return Some(started),
            Err(error) => {
                let cure = (error.kind() == TransportErrorKind::Unauthorised).then_some(GRANT);
                let error = chain(&error);
                let is_news =
                    |(at, text): &(Instant, String)| *text != error || at.elapsed() >= REPEAT;
                if logged.as_ref().is_none_or(is_news) {
                    tracing::warn!(
                        condition,
                        error,
                        cure,
                        "a part of the bridge did not start; trying again"
                    );
                    logged = Some((Instant::now(), error.clone()));
                }
                readiness.set(condition, Err(error));
            }
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => wait = (wait * 2).min(RESTART.1),
            () = stop.cancelled() => return None,
        }
    }
}

/// Waits before something is started again that ended by itself, soon after it `began`.
pub(crate) async fn not_too_soon(began: Instant, stop: &CancellationToken) {
    if began.elapsed() < SHORT_LIFE {
        tokio::select! {
            () = tokio::time::sleep(SHORT_LIFE) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// An error and its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
