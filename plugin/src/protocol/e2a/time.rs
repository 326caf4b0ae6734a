//! Times as E2A writes them. Source: `e2a` section 5.

use crate::text::Text;
use crate::tree::Number;

/// From this magnitude on a number counts milliseconds.
const MILLISECONDS_FROM: u64 = 100_000_000_000;
const SECONDS_PER_DAY: i64 = 86_400;
/// 0001-01-01T00:00:00Z and 9999-12-31T23:59:59Z, in seconds since 1970.
const YEARS_1_TO_9999: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// The UTC time of a number of seconds since 1970, or of milliseconds when it is as large as that;
/// nothing outside the years 1 to 9999.
pub(super) fn from_number(number: &Number) -> Option<Text> {
    let (seconds, micros) = match number.as_i64() {
        Some(n) if n.unsigned_abs() >= MILLISECONDS_FROM => {
            (n.div_euclid(1_000), n.rem_euclid(1_000) * 1_000)
        }
        Some(n) => (n, 0),
        None => split(number.as_f64()),
    };
    YEARS_1_TO_9999
        .contains(&seconds)
        .then(|| write(seconds, micros))
}

/// Whole seconds and microseconds; half a microsecond goes to the even neighbour.
fn split(value: f64) -> (i64, i64) {
    let seconds = if value.abs() >= MILLISECONDS_FROM as f64 {
        value / 1_000.0
    } else {
        value
    };
    let whole = seconds.trunc();
    // Casts saturate, and what saturates is far outside the years allowed.
    let micros = ((seconds - whole) * 1e6).round_ties_even() as i64;
    let carry = micros.div_euclid(1_000_000);
    (
        (whole as i64).saturating_add(carry),
        micros.rem_euclid(1_000_000),
    )
}

fn write(seconds: i64, micros: i64) -> Text {
    let (year, month, day) = civil(seconds.div_euclid(SECONDS_PER_DAY));
    let of_day = seconds.rem_euclid(SECONDS_PER_DAY);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    let date = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    Text::from(match micros {
        0 => format!("{date}+00:00"),
        micros => format!("{date}.{micros:06}+00:00"),
    })
}

/// Year, month and day of a count of days since 1970, in the Gregorian calendar.
fn civil(days: i64) -> (i64, i64, i64) {
    // Eras of 400 years that start on the first of March, so that the leap day comes last.
    let days = days + 719_468;
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = (shifted_month + 2) % 12 + 1;
    let year = year_of_era + days.div_euclid(146_097) * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// Days since 1970 of a date, or nothing when the calendar has no such day.
fn days_of(year: i64, month: i64, day: i64) -> Option<i64> {
    let shifted_year = year - i64::from(month <= 2);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let year_of_era = shifted_year.rem_euclid(400);
    let of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
    let days = shifted_year.div_euclid(400) * 146_097 + of_era - 719_468;
    (civil(days) == (year, month, day)).then_some(days)
}

/// Seconds since 1970 of an RFC 3339 time with its offset; nothing when the text is not one.
pub(super) fn unix_seconds(text: &str) -> Option<f64> {
    let (date_time, rest) = (text.get(..19)?, text.get(19..)?);
    let days = days_of(
        digits(date_time, 0, 4)?,
        digits(date_time, 5, 7)?,
        digits(date_time, 8, 10)?,
    )?;
    let hour = digits(date_time, 11, 13).filter(|hour| *hour < 24)?;
    let minute = digits(date_time, 14, 16).filter(|minute| *minute < 60)?;
    let second = digits(date_time, 17, 19).filter(|second| *second < 60)?;
    let separators = [(4, "-"), (7, "-"), (13, ":"), (16, ":")];
    let separated = separators
        .iter()
        .all(|(at, mark)| date_time.get(*at..=*at) == Some(mark));
    if !separated || !matches!(date_time.get(10..11), Some("T" | "t" | " ")) {
        return None;
    }
    let zone_at = rest.find(['Z', 'z', '+', '-'])?;
    let (fraction, zone) = rest.split_at(zone_at);
    let whole = days * SECONDS_PER_DAY + hour * 3_600 + minute * 60 + second - offset(zone)?;
    Some(whole as f64 + self::fraction(fraction)?)
}

fn digits(text: &str, from: usize, to: usize) -> Option<i64> {
    let digits = text.get(from..to)?;
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

/// The offset from UTC in seconds: `Z` or `±hh:mm`.
fn offset(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let hours = digits(zone, 1, 3).filter(|hours| *hours < 24)?;
    let minutes = digits(zone, 4, 6).filter(|minutes| *minutes < 60)?;
    let seconds = hours * 3_600 + minutes * 60;
    match (zone.len(), zone.get(..1)?, zone.get(3..4)?) {
        (6, "+", ":") => Some(seconds),
        (6, "-", ":") => Some(-seconds),
        _ => None,
    }
}

/// `""` or `.` and digits, as a part of a second.
fn fraction(text: &str) -> Option<f64> {
    match text.strip_prefix('.') {
        None => text.is_empty().then_some(0.0),
        Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
            format!("0{text}").parse().ok()
        }
        Some(_) => None,
    }
}
