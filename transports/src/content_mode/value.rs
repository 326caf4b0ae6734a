//! Faults in the value of an attribute.

use a2abus_plugin::{EventError, EventErrorKind, Text};

pub(super) fn utf8(name: &str, value: &[u8]) -> Result<Text, EventError> {
    Text::from_utf8(value).ok_or_else(|| {
        EventError::new(EventErrorKind::InvalidUtf8, name).with_detail("the value is not UTF-8")
    })
}

pub(super) fn duplicate(name: &str) -> EventError {
    EventError::new(EventErrorKind::DuplicateAttribute, name)
        .with_detail("the attribute occurs twice")
}
