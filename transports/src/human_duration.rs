//! Durations in the configuration, in a form that people write: `500us`, `120s`, `5m`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de};

/// For `#[serde(with = "crate::human_duration")]`.
pub(crate) fn serialize<S: Serializer>(
    duration: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_duration(*duration))
}

/// For `#[serde(with = "crate::human_duration")]`.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    humantime::parse_duration(&text)
        .map_err(|error| de::Error::custom(format_args!("{text:?} is not a duration: {error}")))
}
