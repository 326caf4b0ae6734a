//! Starts subscriptions, and retries until their bus answers.

use std::time::Duration;

use a2abus_transports::{Topic, TransportError, TransportErrorKind};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::readiness::Readiness;

/// The first and the longest wait before a retry.
const RESTART: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// How often the log repeats why a part does not start.
const REPEAT: Duration = Duration::from_secs(60);
/// A subscription that ended by itself sooner than this waits this long before it starts again, because the cause
/// probably persists.
const SHORT_LIFE: Duration = Duration::from_secs(10);
/// The fix for a refused permission.
pub(crate) const GRANT: &str = "`a2abus topics plan --acls` prints the permissions to grant";
/// The fix for a missing topic, stream or consumer.
const CREATE: &str = "create it, or run `a2abus topics apply -c FILE`, which creates everything that the file's `agents` and `bindings` need";
/// How long a subscription may take to close.
pub(crate) const CLOSE: Duration = Duration::from_secs(10);

/// Tries to start a part until it works; `None` if `stop` comes first. Reports why it does not start. The caller
/// reports that it is ready.
pub(crate) async fn start<T, F: Future<Output = Result<T, TransportError>>>(
    condition: &str,
    readiness: &Readiness,
    stop: &CancellationToken,
    attempt: impl Fn() -> F,
) -> Option<T> {
    let mut wait = RESTART.0;
    let mut logged: Option<(Instant, String)> = None;
    loop {
        let result = tokio::select! {
            result = attempt() => result,
            () = stop.cancelled() => return None,
        };
        match result {
            Ok(started) => {
                if logged.is_some() {
                    tracing::info!(
                        condition,
                        "a part of the bridge that did not start works now"
                    );
                }
                return Some(started);
            }
            Err(error) => {
                let fix = match error.kind() {
                    TransportErrorKind::Unauthorised => Some(GRANT),
                    TransportErrorKind::UnknownTopic => Some(CREATE),
                    _ => None,
                };
                let error = chain(&error);
                let is_news =
                    |(at, text): &(Instant, String)| *text != error || at.elapsed() >= REPEAT;
                if logged.as_ref().is_none_or(is_news) {
                    tracing::warn!(
                        condition,
                        error,
                        fix,
                        "a part of the bridge did not start; retrying"
                    );
                    logged = Some((Instant::now(), error.clone()));
                }
                let cause = match fix {
                    Some(fix) => format!("{error}: {fix}"),
                    None => error,
                };
                readiness.set(condition, Err(cause));
            }
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => wait = (wait * 2).min(RESTART.1),
            () = stop.cancelled() => return None,
        }
    }
}

/// The cause while the cluster refuses a permission to a reader.
pub(crate) fn refused() -> String {
    format!("the cluster denies it a permission: {GRANT}")
}

/// The cause while topics of a reader no longer exist. `others`: what happens to its other topics.
pub(crate) fn missing(topics: &[Topic], others: &str) -> String {
    let names: Vec<&str> = topics.iter().map(Topic::as_str).collect();
    format!(
        "topics no longer exist: {}; {others}: {CREATE}",
        names.join(", ")
    )
}

/// Waits before a part that ended by itself is started again, if it ended soon after it `began`.
pub(crate) async fn not_too_soon(began: Instant, stop: &CancellationToken) {
    if began.elapsed() < SHORT_LIFE {
        tokio::select! {
            () = tokio::time::sleep(SHORT_LIFE) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// An error and its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
