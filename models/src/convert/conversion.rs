//! One conversion: what it takes, and why it refuses.

use std::borrow::Cow;

use a2abus_plugin::{DecodeError, Text};

use crate::json::Json;

/// One conversion.
#[derive(Debug, Clone, Copy)]
pub struct Conversion {
    /// Its name.
    pub name: &'static str,
    /// Input and output, in one line.
    pub about: &'static str,
    pub(super) run: fn(&Json, &ConvertContext) -> Result<Json, ConvertError>,
}

/// Values that a conversion needs from its caller.
#[derive(Debug, Clone)]
pub struct ConvertContext {
    /// The current time, RFC 3339.
    pub now: Text,
    /// The name of the converter.
    pub converter: Text,
    /// A new, unique identifier.
    pub new_id: Text,
}

/// Why a conversion refused its input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct ConvertError {
    /// The stable name of the error.
    pub kind: &'static str,
    /// The dotted path of the invalid member; empty for the input as a whole.
    pub field: Text,
    /// A message for people.
    pub message: Cow<'static, str>,
}

/// Names are unique.
impl PartialEq for Conversion {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Conversion {}

// === impl Conversion ===

impl Conversion {
    /// Runs it.
    ///
    /// # Errors
    /// The family's own error; `bad_input` if the input lacks members that the conversion needs.
    pub fn run(&self, input: &Json, context: &ConvertContext) -> Result<Json, ConvertError> {
        (self.run)(input, context)
    }
}

impl From<DecodeError> for ConvertError {
    fn from(error: DecodeError) -> Self {
        Self {
            kind: error.kind().as_str(),
            field: Text::default(),
            message: Cow::Owned(error.to_string()),
        }
    }
}
