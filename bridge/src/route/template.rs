//! How does an event's attribute become part of a topic without choosing the topic?

use a2abus_plugin::Event;
use a2abus_transports::Topic;

use super::error::RouteError;
use crate::names::{Names, Part, Template};

/// The topic for an event.
///
/// # Errors
/// `MissingAttribute`, or `BadName` for a value that cannot be part of a topic or makes it too long.
pub(super) fn topic(
    template: &Template,
    event: &Event,
    binding: &str,
    names: Names,
) -> Result<Topic, RouteError> {
    let mut topic = String::with_capacity(64);
    for part in template.parts() {
        match part {
            Part::Literal(text) => topic.push_str(text),
            Part::Attribute(attribute) => {
                attribute.with_value(event, binding, |value| {
                    let value = value.ok_or_else(|| RouteError::missing(attribute))?;
                    push_name(&mut topic, value, names)
                        .map_err(|reason| RouteError::bad_name(attribute, value, reason))
                })?;
            }
        }
    }
    if topic.starts_with('_') {
        return Err(RouteError::BadTopic(format!(
            "{topic:?} is reserved: a topic must not begin with '_'"
        )));
    }
    Topic::new(topic).map_err(|error| RouteError::BadTopic(error.to_string()))
}

/// The text for an event; `None` when it lacks an attribute.
pub(super) fn text(template: &Template, event: &Event, binding: &str) -> Option<String> {
    let mut text = String::with_capacity(64);
    for part in template.parts() {
        match part {
            Part::Literal(literal) => text.push_str(literal),
            Part::Attribute(attribute) => {
                attribute.with_value(event, binding, |value| {
                    value.map(|value| text.push_str(value))
                })?;
            }
        }
    }
    Some(text)
}

/// Adds a value to a topic, or says why it cannot be part of one.
fn push_name(topic: &mut String, value: &str, names: Names) -> Result<(), &'static str> {
    if value.is_empty() {
        return Err("it is empty");
    }
    match names {
        Names::Refuse => check_word(value)?,
        Names::Dotted => value.split('.').try_for_each(check_word)?,
        Names::Escape => {
            escape(topic, value);
            return Ok(());
        }
    }
    topic.push_str(value);
    Ok(())
}

fn check_word(word: &str) -> Result<(), &'static str> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    if word.is_empty() {
        return Err("a word of it is empty");
    }
    if !word.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err("it does not begin with a letter or digit");
    }
    if !word.bytes().all(legal) {
        return Err("it contains a character other than letters, digits, '_' and '-'");
    }
    Ok(())
}

/// Writes every byte that is not a letter, a digit, `-` or a plain `_` as `_xHH`. A `_` that begins the value, or that
/// would read as an escape, is escaped itself, so that different values never become the same text.
fn escape(topic: &mut String, value: &str) {
    use std::fmt::Write;
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unescape(text: &str) -> Vec<u8> {
        let bytes = text.as_bytes();
        let (mut out, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            if bytes[at] == b'_' && looks_like_escape(&bytes[at + 1..]) {
                out.push(u8::from_str_radix(&text[at + 2..at + 4], 16).unwrap());
                at += 4;
            } else {
                out.push(bytes[at]);
                at += 1;
            }
        }
        out
    }

    fn escaped(value: &str) -> String {
        let mut topic = String::new();
        escape(&mut topic, value);
        topic
    }

    #[test]
    fn escapes_are_readable_and_topic_words() {
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
                prop_assert_eq!(unescape(&topic), value.into_bytes());
            }
        }
    }
}
