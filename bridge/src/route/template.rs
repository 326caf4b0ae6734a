//! Inserts attribute values into topics, so that a value cannot choose the whole topic.

use a2abus_plugin::Event;
use a2abus_transports::Topic;

use super::error::RouteError;
use crate::names::{Names, Template, TemplatePart, escape};

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
            TemplatePart::Literal(text) => topic.push_str(text),
            TemplatePart::Attribute(attribute) => {
                attribute.with_value(event, binding, |value| {
                    let value = value.ok_or_else(|| RouteError::missing(attribute))?;
                    push_name(&mut topic, value, names)
                        .map_err(|reason| RouteError::bad_name(attribute, value, reason))
                })?;
            }
        }
    }
    checked(topic)
}

/// The topic of a template without attributes. `None` for other templates, or if the topic is invalid.
pub(super) fn fixed_topic(template: &Template) -> Option<Topic> {
    match template.parts() {
        [TemplatePart::Literal(text)] => checked(text.to_string()).ok(),
        _ => None,
    }
}

fn checked(topic: String) -> Result<Topic, RouteError> {
    if topic.starts_with('_') {
        return Err(RouteError::BadTopic(format!(
            "{topic:?} is reserved: a topic must not begin with '_'"
        )));
    }
    Topic::new(topic).map_err(|error| RouteError::BadTopic(error.to_string()))
}

/// The text for an event; `None` if the event lacks an attribute.
pub(super) fn text(template: &Template, event: &Event, binding: &str) -> Option<String> {
    let mut text = String::with_capacity(64);
    for part in template.parts() {
        match part {
            TemplatePart::Literal(literal) => text.push_str(literal),
            TemplatePart::Attribute(attribute) => {
                attribute.with_value(event, binding, |value| {
                    value.map(|value| text.push_str(value))
                })?;
            }
        }
    }
    Some(text)
}

/// Adds a value to a topic, or returns why it cannot be part of one.
fn push_name(topic: &mut String, value: &str, names: Names) -> Result<(), &'static str> {
    if value.is_empty() {
        return Err("it is empty");
    }
    match names {
        Names::Refuse => check_word(value).map_err(|fault| match fault {
            WordFault::Empty => "it is empty",
            WordFault::Begins => "it does not begin with a letter or digit",
            WordFault::Contains => {
                "it contains a character other than letters, digits, '_' and '-'; \
                 the destination accepts more with names: escape (or dotted, for dots)"
            }
        })?,
        Names::Dotted => {
            let checked = value.split('.').try_for_each(check_word);
            checked.map_err(|fault| match fault {
                WordFault::Empty => "a word of it is empty",
                WordFault::Begins => "a word of it does not begin with a letter or digit",
                WordFault::Contains => {
                    "it contains a character other than letters, digits, '_', '-' and '.'; \
                     the destination accepts more with names: escape"
                }
            })?;
        }
        Names::Escape => {
            escape(topic, value);
            return Ok(());
        }
    }
    topic.push_str(value);
    Ok(())
}

/// Why a word cannot be part of a topic.
enum WordFault {
    Empty,
    Begins,
    Contains,
}

fn check_word(word: &str) -> Result<(), WordFault> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    if word.is_empty() {
        return Err(WordFault::Empty);
    }
    if !word.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err(WordFault::Begins);
    }
    if !word.bytes().all(legal) {
        return Err(WordFault::Contains);
    }
    Ok(())
}
