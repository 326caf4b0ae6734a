//! Times in the notation of the protocols: Unix seconds as numbers, RFC 3339 as text, in UTC with six decimals or none.

use chrono::{DateTime, Datelike as _, SecondsFormat, Timelike as _, Utc};

use crate::text::Text;

/// From this magnitude on, an E2A number counts milliseconds. Source: docs/protocols/e2a.md §5.
const MILLISECONDS_FROM: f64 = 1e11;

/// The time of a Unix time in seconds; `None` outside the years 1 to 9999.
///
/// Converts seconds and fraction separately, with microseconds rounded half to even. Source: docs/protocols/e2a.md §5.
pub(crate) fn of_seconds(seconds: f64) -> Option<DateTime<Utc>> {
    if !seconds.is_finite() || seconds.abs() > 1e12 {
        return None;
    }
    // In range, and integral because of `trunc`.
    #[allow(clippy::cast_possible_truncation)]
    let (whole, micros) = (
        seconds.trunc() as i64,
        (seconds.fract() * 1e6).round_ties_even() as i64,
    );
    let time = DateTime::from_timestamp_micros(whole * 1_000_000 + micros)?;
    (1..=9999).contains(&time.year()).then_some(time)
}

/// The time of an E2A number: seconds, or milliseconds if it is that large.
#[must_use]
pub fn of_e2a_number(number: f64) -> Option<DateTime<Utc>> {
    if number.abs() < MILLISECONDS_FROM {
        return of_seconds(number);
    }
    // Converts via microseconds, so that no fraction of a second is lost.
    let millis = number.trunc();
    let seconds = of_seconds((millis / 1e3).trunc())?;
    // Less than a second either way.
    #[allow(clippy::cast_possible_truncation)]
    let rest = ((number - (millis / 1e3).trunc() * 1e3) * 1e3).round_ties_even() as i64;
    let time = DateTime::from_timestamp_micros(seconds.timestamp_micros() + rest)?;
    (1..=9999).contains(&time.year()).then_some(time)
}

/// The instant of an RFC 3339 time with an offset.
#[must_use]
pub fn of_text(text: &str) -> Option<DateTime<Utc>> {
    let time = DateTime::parse_from_rfc3339(text).ok()?.to_utc();
    // A leap second becomes the second after it.
    let time = DateTime::from_timestamp_micros(time.timestamp_micros())?;
    (1..=9999).contains(&time.year()).then_some(time)
}

/// In the form of the attribute `time`, which ends in `Z`.
pub(crate) fn with_z(time: DateTime<Utc>) -> Text {
    Text::from(time.to_rfc3339_opts(decimals(time), true))
}

/// In the form of E2A, which ends in `+00:00`.
#[must_use]
pub fn with_offset(time: DateTime<Utc>) -> Text {
    Text::from(time.to_rfc3339_opts(decimals(time), false))
}

/// Seconds since 1970.
#[allow(clippy::cast_precision_loss)] // A double distinguishes microseconds in the years 1 to 9999.
#[must_use]
pub fn seconds(time: DateTime<Utc>) -> f64 {
    time.timestamp_micros() as f64 / 1e6
}

fn decimals(time: DateTime<Utc>) -> SecondsFormat {
    if time.nanosecond() < 1_000 {
        SecondsFormat::Secs
    } else {
        SecondsFormat::Micros
    }
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
            assert_eq!(with_z(of_seconds(seconds).unwrap()), text);
        }
        for bad in [f64::NAN, f64::INFINITY, 1e300, 3e11, -1e11] {
            assert_eq!(of_seconds(bad), None);
        }
    }

    #[test]
    fn large_numbers_of_e2a_are_milliseconds() {
        for (number, text) in [
            (1_774_524_781_150.0, "2026-03-26T11:33:01.150000+00:00"),
            (-100_000_000_000.0, "1966-10-31T14:13:20+00:00"),
            (1_774_524_781.15, "2026-03-26T11:33:01.150000+00:00"),
        ] {
            assert_eq!(with_offset(of_e2a_number(number).unwrap()), text);
        }
        assert_eq!(of_e2a_number(1e15), None);
    }

    #[test]
    fn offsets_become_utc() {
        let time = of_text("2026-03-28T14:00:00+02:00").unwrap();
        assert_eq!(with_z(time), "2026-03-28T12:00:00Z");
        assert_eq!(of_text("2026-03-28T12:00:00"), None);
    }
}
