//! Validated values of the attributes that mapping sets on every event.

use std::fmt;
use std::ops::Deref;
use std::time::SystemTime;

use crate::error::{EventError, EventErrorKind};
use crate::event::{is_rfc3339, is_string};
use crate::text::Text;

/// Declares validated text types: the attribute, its rule, and the error message for text that breaks the rule.
macro_rules! checked {
    ($($(#[$doc:meta])* $name:ident: $attribute:literal, $rule:expr, $detail:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash)]
        pub struct $name(Text);

        impl $name {
            /// The text, if it follows the rule.
            ///
            /// # Errors
            /// `InvalidAttributeValue`.
            pub fn new(text: impl Into<Text>) -> Result<Self, EventError> {
                let text = text.into();
                let rule: fn(&str) -> bool = $rule;
                if rule(&text) {
                    return Ok(Self(text));
                }
                let error = EventError::new(EventErrorKind::InvalidAttributeValue, $attribute);
                Err(error.with_detail($detail))
            }

            /// The text.
            #[must_use]
            pub fn text(&self) -> &Text {
                &self.0
            }
        }

        impl TryFrom<&str> for $name {
            type Error = EventError;

            fn try_from(text: &str) -> Result<Self, EventError> {
                Self::new(text)
            }
        }

        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl From<$name> for Text {
            fn from(checked: $name) -> Self {
                checked.0
            }
        }
    )*};
}

checked! {
    /// The `id` of an event: not empty, no control characters and no noncharacters.
    EventId: "id", |text| !text.is_empty() && is_string(text),
        "an id must not be empty or contain control characters or noncharacters";

    /// The `source` of an event: a URI reference that is not empty. Source: CloudEvents 1.0.2 section 3.1, RFC 3986.
    Source: "source", |text| !text.is_empty() && is_uri_reference(text),
        "a source must be a non-empty URI reference";

    /// The prefix of the `type` of mapped events: no control characters and no noncharacters.
    TypePrefix: "type", is_string,
        "a type prefix must not contain control characters or noncharacters";

    /// The `time` of an event: RFC 3339, without a leap second, which most programs cannot represent.
    Time: "time", |text| is_rfc3339(text) && !is_leap_second(text),
        "not an RFC 3339 time, or a leap second";
}

// === impl EventId ===

impl EventId {
    /// A UUID in its usual text form.
    #[must_use]
    pub fn of_uuid(uuid: u128) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // Where the two digits of each byte begin.
        const AT: [usize; 16] = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34];
        let mut text = *b"00000000-0000-0000-0000-000000000000";
        for (at, byte) in AT.into_iter().zip(uuid.to_be_bytes()) {
            text[at] = DIGITS[usize::from(byte >> 4)];
            text[at + 1] = DIGITS[usize::from(byte & 15)];
        }
        Self(Text::from_utf8(&text).unwrap_or_default())
    }
}

// === impl Source ===

/// `/`: for events that are only inspected and not published.
impl Default for Source {
    fn default() -> Self {
        Self(Text::from_static("/"))
    }
}

// === impl TypePrefix ===

impl TypePrefix {
    /// A prefix that is known to be valid.
    pub(crate) const fn of_static(text: &'static str) -> Self {
        Self(Text::from_static(text))
    }
}

// === impl Time ===

/// In UTC, with milliseconds. Times before 1970 and after the year 9999 are clamped.
impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        const AFTER: u64 = 253_402_300_800;
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        let (seconds, millis) = match since.map(|since| (since.as_secs(), since.subsec_millis())) {
            Ok((seconds, millis)) if seconds < AFTER => (seconds, u64::from(millis)),
            Ok(_) => (AFTER - 1, 999),
            Err(_) => (0, 0),
        };
        let (year, month, day) = date(seconds / 86_400);
        let mut text = *b"0000-00-00T00:00:00.000Z";
        for (at, number) in [
            (0, year / 100),
            (2, year % 100),
            (5, month),
            (8, day),
            (11, seconds / 3_600 % 24),
            (14, seconds / 60 % 60),
            (17, seconds % 60),
            (20, millis / 10),
        ] {
            if let Some([tens, ones]) = text.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
                *tens = digit(number / 10);
                *ones = digit(number);
            }
        }
        text[22] = digit(millis);
        Self(Text::from_utf8(&text).unwrap_or_default())
    }
}

/// The last digit of a number.
#[allow(clippy::cast_possible_truncation)] // Less than ten.
const fn digit(number: u64) -> u8 {
    b'0' + (number % 10) as u8
}

/// Year, month and day from the days since 1970. Counts days since 0000-03-01, in years that end with February.
fn date(since_1970: u64) -> (u64, u64, u64) {
    let days = since_1970 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    // Five months have 153 days, both from March and from August.
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (400 * era + year + later, month, day)
}

/// Whether an RFC 3339 time names a leap second.
pub(crate) fn is_leap_second(time: &str) -> bool {
    time.get(17..19) == Some("60")
}

/// Source: RFC 3986 section 4.1.
fn is_uri_reference(text: &str) -> bool {
    let scheme_end = text.find([':', '/', '?', '#']);
    let rest = match scheme_end.map(|at| text.split_at(at)) {
        Some((scheme, rest)) if rest.starts_with(':') => {
            let mut bytes = scheme.bytes();
            let is_scheme = bytes.next().is_some_and(|b| b.is_ascii_alphabetic())
                && bytes.all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
            if !is_scheme {
                return false;
            }
            rest.get(1..).unwrap_or_default()
        }
        _ => text,
    };
    let (authority, path) = match rest.strip_prefix("//") {
        None => ("", rest),
        Some(rest) => rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len())),
    };
    let (path, fragment) = path.split_once('#').unwrap_or((path, ""));
    are_uri_characters(authority, b"[]@:")
        && are_uri_characters(path, b"/?@:")
        && are_uri_characters(fragment, b"/?@:")
}

/// Whether all characters may be in any part of a URI, including percent escapes and the given characters.
fn are_uri_characters(text: &str, more: &[u8]) -> bool {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let legal = match byte {
            b'%' => {
                let mut is_hex = || bytes.next().is_some_and(|b| b.is_ascii_hexdigit());
                is_hex() && is_hex()
            }
            b'-' | b'.' | b'_' | b'~' => true,
            b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=' => true,
            other => other.is_ascii_alphanumeric() || more.contains(&other),
        };
        if !legal {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_uri_references() {
        for good in [
            "/a2abus/host-1/requests",
            "/a2abus/x/http/::1",
            "eventmesh-a2a",
            "https://example.com:8080/a?b=c#d",
            "https://[2001:db8::1]/a",
            "urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66",
            "mailto:a@example.com",
            "//host/path",
            "a/b:c",
            "/%C3%A9",
        ] {
            assert!(Source::new(good).is_ok(), "{good}");
        }
        for bad in [
            "", "a b", "/a\nb", "/é", "1a:b", ":a", "/%C", "/%zz", "/[a]", "/a#b#c", "<x>", "a\\b",
        ] {
            assert!(Source::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_prefixes_and_times_are_checked() {
        assert!(EventId::new("").is_err() && EventId::new("a\u{7}").is_err());
        assert!(TypePrefix::new("a.\n").is_err() && TypePrefix::new("").is_ok());
        for bad in ["yesterday", "2016-12-31T23:59:60Z", ""] {
            assert!(Time::new(bad).is_err(), "{bad}");
        }
        let uuid = EventId::of_uuid(0x0192_3456_789a_7bcd_8ef0_1234_5678_9abc);
        assert_eq!(&*uuid, "01923456-789a-7bcd-8ef0-123456789abc");
        let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(1_770_000_000_123);
        assert_eq!(&*Time::from(at), "2026-02-02T02:40:00.123Z");
    }

    proptest::proptest! {
        #[test]
        fn times_are_formatted_like_chrono(millis in 0..=253_402_300_799_999_i64) {
            let time = SystemTime::UNIX_EPOCH
                + std::time::Duration::from_millis(u64::try_from(millis).unwrap());
            let expected = chrono::DateTime::from_timestamp_millis(millis).unwrap();
            let expected = expected.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
            proptest::prop_assert_eq!(&*Time::from(time), expected);
        }

        #[test]
        fn dates_match_chrono(day in 0..2_932_897_u64) {
            use chrono::Datelike as _;
            let days = i32::try_from(day).unwrap() + 719_163;
            let expected = chrono::NaiveDate::from_num_days_from_ce_opt(days).unwrap();
            let (year, month, day) = date(day);
            proptest::prop_assert_eq!(year, u64::try_from(expected.year()).unwrap());
            proptest::prop_assert_eq!((month, day), (expected.month().into(), expected.day().into()));
        }
    }

    #[test]
    fn times_out_of_range_are_clamped() {
        use std::time::Duration;
        let epoch = SystemTime::UNIX_EPOCH;
        for (time, text) in [
            (epoch - Duration::from_secs(1), "1970-01-01T00:00:00.000Z"),
            (
                epoch + Duration::from_secs(1 << 40),
                "9999-12-31T23:59:59.999Z",
            ),
        ] {
            assert_eq!(&*Time::from(time), text);
        }
    }
}
