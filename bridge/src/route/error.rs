//! Errors of routing.

use a2abus_plugin::Text;

use crate::names::Attribute;

/// Why an event cannot go to the destination of its route. All errors are permanent: the event becomes a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteError {
    /// The event lacks an attribute that the topic contains.
    #[error("the topic needs the attribute {attribute:?}, which the event does not have")]
    MissingAttribute {
        /// The attribute.
        attribute: Text,
    },
    /// The value of an attribute cannot be part of a topic.
    #[error("the value {value:?} of {attribute:?} cannot be part of a topic: {reason}")]
    BadName {
        /// The attribute.
        attribute: Text,
        /// The value, its first 64 characters.
        value: String,
        /// The rule it breaks.
        reason: &'static str,
    },
    /// The parts are valid, but the whole topic is not.
    #[error("{0}")]
    BadTopic(String),
    /// The event has passed too many routes: a loop.
    #[error(
        "the event has already passed {hops} routes; the limit is {limit}: it is probably in a loop"
    )]
    TooManyHops {
        /// How many it has passed.
        hops: u32,
        /// The limit.
        limit: u32,
    },
    /// A glob cannot be compiled. Occurs only when the table is built.
    #[error("not a glob: {0}")]
    BadGlob(String),
}

// === impl RouteError ===

impl RouteError {
    pub(super) fn missing(attribute: &Attribute) -> Self {
        Self::MissingAttribute {
            attribute: attribute.as_str().into(),
        }
    }

    pub(super) fn bad_name(attribute: &Attribute, value: &str, reason: &'static str) -> Self {
        Self::BadName {
            attribute: attribute.as_str().into(),
            value: value.chars().take(64).collect(),
            reason,
        }
    }
}
