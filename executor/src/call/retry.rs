//! Decides whether a failed call is retried, and after how long.
//!
//! Source: docs/protocols/a2e-workflows.md §5.

use std::time::{Duration, SystemTime};

use a2abus_models::a2e_workflow::operation::Method;

use crate::environment::Random;

/// Whether a non-idempotent request is retried after it may have acted. Source: docs/protocols/a2e-workflows.md §D19.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum RetryUnsafe {
    /// Repeat a POST or PATCH without an `Idempotency-Key` only if it has not acted: no connection, 408, 429 and 503.
    #[default]
    WhenRefused,
    /// Repeat it like any other request.
    Always,
}

/// Why an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// Nothing was sent.
    NotConnected,
    /// The connection broke, or the response is late: the service may have acted.
    NoResponse,
    /// The service responded with this status.
    Status(u16),
    /// Another attempt would fail in the same way.
    Final,
}

/// The decision after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryDecision {
    /// Another attempt, after this time.
    After(Duration),
    /// No retry: the service asked for too long a wait.
    WaitTooLong(Duration),
    /// No retry: the attempts or the time are used up.
    GiveUp,
}

const FIRST_DELAY: Duration = Duration::from_secs(1);
pub(super) const MAX_DELAY: Duration = Duration::from_secs(60);

// === impl RetryUnsafe ===

impl RetryUnsafe {
    pub(super) fn is_always(self) -> bool {
        self == Self::Always
    }
}

// === impl Cause ===

impl Cause {
    /// `may_repeat` says whether the request may act twice.
    pub(super) fn permits_retry(self, may_repeat: bool) -> bool {
        match self {
            Self::NotConnected | Self::Status(408 | 429 | 503) => true,
            Self::NoResponse => may_repeat,
            Self::Status(status) => may_repeat && (500..600).contains(&status),
            Self::Final => false,
        }
    }
}

/// Whether repeating a request has the same effect as sending it once.
pub(super) fn may_repeat(method: Method, has_idempotency_key: bool) -> bool {
    match method {
        Method::Get | Method::Put | Method::Delete => true,
        Method::Post | Method::Patch => has_idempotency_key,
    }
}

/// The decision after this many attempts, given the service's `Retry-After` and the time left for the execution.
pub(super) fn next(
    (attempts, max_retries): (u32, u32),
    retry_after: Option<&str>,
    left: Duration,
    now: SystemTime,
    random: &dyn Random,
) -> RetryDecision {
    let Some(retries) = attempts.checked_sub(1).filter(|it| *it < max_retries) else {
        return RetryDecision::GiveUp;
    };
    let doubled = (FIRST_DELAY * 2_u32.saturating_pow(retries)).min(MAX_DELAY);
    let requested = retry_after
        .and_then(|text| read_retry_after(text, now))
        .unwrap_or_default();
    let base = doubled.max(requested);
    if base <= MAX_DELAY {
        let fraction = f64::from((random.bits() & 0xffff_ffff) as u32) / f64::from(u32::MAX);
        let delay = base.mul_f64(1.0 + fraction / 10.0).min(MAX_DELAY);
        if delay < left {
            return RetryDecision::After(delay);
        }
    }
    if requested > doubled {
        RetryDecision::WaitTooLong(requested)
    } else {
        RetryDecision::GiveUp
    }
}

/// Seconds, or a date; `None` when it is neither.
fn read_retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(text.parse().map_or(Duration::MAX, Duration::from_secs));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::FixedBits;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn wait(attempts: u32, retry_after: Option<&str>, bits: u128) -> Option<u128> {
        let now = NOW + Duration::from_secs(1_800_000_000);
        match next(
            (attempts, 3),
            retry_after,
            Duration::MAX,
            now,
            &FixedBits(bits),
        ) {
            RetryDecision::After(delay) => Some(delay.as_millis()),
            RetryDecision::WaitTooLong(_) | RetryDecision::GiveUp => None,
        }
    }

    #[test]
    fn retry_delays_double_with_jitter_of_at_most_a_tenth() {
        for (attempts, least, most) in [(1, 1_000, 1_100), (2, 2_000, 2_200), (3, 4_000, 4_400)] {
            assert_eq!(wait(attempts, None, 0), Some(least));
            assert_eq!(wait(attempts, None, u128::MAX), Some(most));
        }
        assert_eq!(wait(4, None, 0), None);
    }

    #[test]
    fn a_service_may_ask_for_a_longer_wait_within_a_minute() {
        for (requested, expected) in [
            ("5", Some(5_000)),
            (" 5 ", Some(5_000)),
            ("0", Some(1_000)),
            ("60", Some(60_000)),
            ("61", None),
            ("99999999999999999999999", None),
            ("Fri, 15 Jan 2027 08:00:30 GMT", Some(30_000)),
            ("Friday, 15-Jan-27 08:00:30 GMT", Some(30_000)),
            ("Fri Jan 15 08:00:30 2027", Some(30_000)),
            ("Fri, 15 Jan 2027 08:01:01 GMT", None),
            ("Fri, 15 Jan 2027 07:00:00 GMT", Some(1_000)),
            ("-5", Some(1_000)),
            ("1.5", Some(1_000)),
            ("soon", Some(1_000)),
            ("", Some(1_000)),
        ] {
            assert_eq!(wait(1, Some(requested), 0), expected, "{requested:?}");
        }
        assert_eq!(wait(1, Some("58"), u128::MAX), Some(60_000));
        assert_eq!(wait(3, Some("2"), 0), Some(4_000), "it never shortens");
    }

    #[test]
    fn calls_that_may_have_acted_are_not_repeated() {
        let permits =
            |cause: Cause, method, has_key| cause.permits_retry(may_repeat(method, has_key));
        let safe = [
            (Method::Get, false),
            (Method::Put, false),
            (Method::Delete, false),
            (Method::Post, true),
            (Method::Patch, true),
        ];
        let unsafe_ones = [(Method::Post, false), (Method::Patch, false)];
        for (cause, repeatable, other) in [
            (Cause::NotConnected, true, true),
            (Cause::NoResponse, true, false),
            (Cause::Status(408), true, true),
            (Cause::Status(429), true, true),
            (Cause::Status(503), true, true),
            (Cause::Status(500), true, false),
            (Cause::Status(502), true, false),
            (Cause::Status(504), true, false),
            (Cause::Status(599), true, false),
            (Cause::Status(600), false, false),
            (Cause::Status(400), false, false),
            (Cause::Status(404), false, false),
            (Cause::Status(409), false, false),
            (Cause::Final, false, false),
        ] {
            for (method, has_key) in safe {
                assert_eq!(
                    permits(cause, method, has_key),
                    repeatable,
                    "{cause:?} {method:?}"
                );
            }
            for (method, has_key) in unsafe_ones {
                assert_eq!(
                    permits(cause, method, has_key),
                    other,
                    "{cause:?} {method:?}"
                );
            }
        }
    }
}
