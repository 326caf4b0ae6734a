//! Wall time and ids for events; deadlines use the monotonic clock instead.

use std::time::{Duration, SystemTime};

use a2abus_plugin::{Event, EventId, Text, Time, extension};
use jiff::tz::TimeZone;
use jiff::{Timestamp, civil};

/// Now.
#[must_use]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

/// The time in the format of CloudEvents, in UTC with milliseconds.
#[must_use]
pub(crate) fn rfc3339(time: SystemTime) -> Text {
    let timestamp = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
    Text::from(format!("{timestamp:.3}"))
}

/// A time in milliseconds since 1970.
#[must_use]
pub(crate) fn milliseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    whole_milliseconds(since.unwrap_or_default())
}

/// The time from milliseconds since 1970.
#[must_use]
pub(crate) fn since_1970(milliseconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(milliseconds)
}

/// A duration in milliseconds.
#[must_use]
pub(crate) fn whole_milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Now, in seconds since 1970, as in A2E messages.
#[must_use]
pub(crate) fn seconds() -> f64 {
    let since = now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// Now, for the `time` of mapped events.
#[must_use]
pub(crate) fn time() -> Time {
    Time::from(now())
}

/// The time in an attribute; `None` if it is not a time.
#[must_use]
pub(crate) fn parse(text: &str) -> Option<SystemTime> {
    text.parse::<Timestamp>().ok().map(SystemTime::from)
}

/// Parses a time in a message of an agent. A time without a time zone counts as UTC.
#[must_use]
pub(crate) fn parse_loosely(text: &str) -> Option<SystemTime> {
    let in_utc = || {
        let time: civil::DateTime = text.parse().ok()?;
        Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp().into())
    };
    parse(text).or_else(in_utc)
}

/// How far clocks may differ before an event counts as expired.
pub(crate) const SKEW: Duration = Duration::from_secs(2);

/// The time after which an event is no longer wanted, if it has one. Source: CloudEvents expirytime extension.
#[must_use]
pub(crate) fn expiry(event: &Event) -> Option<SystemTime> {
    parse(event.extension_text(extension::EXPIRY_TIME)?)
}

/// How long the sender of an event still waits, if it has an expiry time; a short time if that has passed.
#[must_use]
pub(crate) fn time_left(event: &Event) -> Option<Duration> {
    let left = expiry(event)?.duration_since(now());
    Some(left.unwrap_or(SKEW))
}

/// Whether an event has expired on every clock.
#[must_use]
pub(crate) fn is_expired(event: &Event) -> bool {
    expiry(event).is_some_and(is_over)
}

/// Whether a time has passed on every clock.
#[must_use]
pub(crate) fn is_over(time: SystemTime) -> bool {
    time + SKEW < now()
}

/// A new event id: a UUID version 7, whose text sorts by time.
#[must_use]
pub(crate) fn new_event_id() -> EventId {
    EventId::of_uuid(uuid::Uuid::now_v7().as_u128())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc3339_and_come_back() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_770_000_000_123);
        let text = rfc3339(time);
        assert_eq!(text, "2026-02-02T02:40:00.123Z");
        assert_eq!(parse(&text), Some(time));
        assert_eq!(parse("tomorrow"), None);
        for text in [
            "2026-02-02T02:40:00.123",
            "2026-02-02T04:40:00.123+02:00",
            "2026-02-02 02:40:00.123",
        ] {
            assert_eq!(parse_loosely(text), Some(time), "{text}");
        }
        assert_eq!(parse_loosely("tomorrow"), None);
    }
}
