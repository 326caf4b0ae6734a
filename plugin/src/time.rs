//! Times of events: RFC 3339 in UTC, with six decimals or none.

use chrono::{DateTime, Datelike as _, SecondsFormat, Timelike as _, Utc};

use crate::text::Text;

/// The time of a Unix time in seconds; `None` outside the years 1 to 9999.
///
/// Source: `e2a` section 5: whole seconds and fraction apart, microseconds rounded half to even.
pub(crate) fn of_unix_seconds(seconds: f64) -> Option<Text> {
    if !seconds.is_finite() || seconds.abs() > 1e12 {
        return None;
    }
    // Bounded above, and whole by `trunc`.
    #[allow(clippy::cast_possible_truncation)]
    let (whole, micros) = (
        seconds.trunc() as i64,
        (seconds.fract() * 1e6).round_ties_even() as i64,
    );
    written(DateTime::from_timestamp_micros(whole * 1_000_000 + micros)?)
}

/// The same instant in UTC; `None` for what is not an RFC 3339 time with an offset.
pub(crate) fn in_utc(text: &str) -> Option<Text> {
    written(DateTime::parse_from_rfc3339(text).ok()?.to_utc())
}

fn written(time: DateTime<Utc>) -> Option<Text> {
    let format = if time.nanosecond() == 0 {
        SecondsFormat::Secs
    } else {
        SecondsFormat::Micros
    };
    (1..=9999)
        .contains(&time.year())
        .then(|| Text::from(time.to_rfc3339_opts(format, true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_times_are_rounded_to_microseconds() {
        for (seconds, text) in [
            (1.5, "1970-01-01T00:00:01.500000Z"),
            (2.0, "1970-01-01T00:00:02Z"),
            (-1.5, "1969-12-31T23:59:58.500000Z"),
            (1_700_000_000.999_999_6, "2023-11-14T22:13:21Z"),
            (1_716_123_456.789, "2024-05-19T12:57:36.789000Z"),
        ] {
            assert_eq!(of_unix_seconds(seconds).unwrap(), text);
        }
        for bad in [f64::NAN, f64::INFINITY, 1e300, 3e11, -1e11] {
            assert_eq!(of_unix_seconds(bad), None);
        }
    }

    #[test]
    fn offsets_become_utc() {
        assert_eq!(
            in_utc("2026-03-28T14:00:00+02:00").unwrap(),
            "2026-03-28T12:00:00Z"
        );
        assert_eq!(in_utc("2026-03-28T12:00:00"), None);
    }
}
