//! Escaping that turns any text into one topic segment.

use std::fmt::Write as _;

/// Writes every byte that is not a letter, a digit, `-` or a plain `_` as `_xHH`. A `_` at the beginning, or one that
/// looks like an escape, is escaped too, so different values never give the same text.
pub(crate) fn escape(topic: &mut String, value: &str) {
    let bytes = value.as_bytes();
    for (at, &byte) in bytes.iter().enumerate() {
        let plain = match byte {
            b'_' => at > 0 && !looks_like_escape(bytes.get(at + 1..).unwrap_or_default()),
            b'-' => at > 0,
            byte => byte.is_ascii_alphanumeric(),
        };
        if plain {
            topic.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(topic, "_x{byte:02X}");
        }
    }
}

fn looks_like_escape(after_underscore: &[u8]) -> bool {
    matches!(after_underscore, [b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit())
}

/// Undoes [`escape`]. `None` if the result is not UTF-8.
#[cfg(any(test, feature = "kafka", feature = "nats"))]
pub(crate) fn unescape(escaped: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = match after {
            [_, high, low, beyond @ ..] if *first == b'_' && looks_like_escape(after) => {
                (digit(*high) << 4 | digit(*low), beyond)
            }
            _ => (*first, after),
        };
        bytes.push(byte);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

/// The value of a hexadecimal digit.
#[cfg(any(test, feature = "kafka", feature = "nats"))]
fn digit(byte: u8) -> u8 {
    match byte {
        b'0'..=b'9' => byte - b'0',
        _ => (byte | 0x20).wrapping_sub(b'a').wrapping_add(10),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn escaped(value: &str) -> String {
        let mut topic = String::new();
        escape(&mut topic, value);
        topic
    }

    #[test]
    fn escaped_values_are_readable_topic_segments() {
        for (value, expected) in [
            ("weather", "weather"),
            ("my_agent-1", "my_agent-1"),
            ("team/weather.v1", "team_x2Fweather_x2Ev1"),
            ("_INBOX", "_x5FINBOX"),
            ("a_x41", "a_x5Fx41"),
            ("a__x41", "a__x5Fx41"),
            ("*", "_x2A"),
            ("é", "_xC3_xA9"),
        ] {
            assert_eq!(escaped(value), expected);
        }
    }

    proptest! {
        #[test]
        fn escaping_can_be_undone(value in ".{1,40}", tricky in "[_xX0-9A-F./]{1,12}") {
            for value in [value, tricky] {
                let topic = escaped(&value);
                prop_assert!(topic.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'));
                prop_assert_eq!(unescape(&topic), Some(value));
            }
        }
    }
}
