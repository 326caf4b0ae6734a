//! Text with values of the data model in it, of bounded length.

use std::fmt::{self, Write};

use a2abus_models::Json;
use a2abus_models::a2e_workflow::Path;

use crate::failure::{Failure, FailureCode};
use crate::model::Model;

/// Text with a maximum length.
pub(super) struct BoundedText {
    text: String,
    max: usize,
}

/// The text of a string, a number or a boolean.
pub(super) fn scalar(model: &Model, path: &Path) -> Result<String, Failure> {
    let value = model.read(path)?;
    match value {
        Json::String(text) => Ok(text.as_str().to_owned()),
        Json::Bool(_) | Json::Number(_) => Ok(value.to_string()),
        Json::Null | Json::Array(_) | Json::Object(_) => {
            let message = format!(
                "{path} is {}, which cannot be used as text here",
                value.kind()
            );
            Err(invalid(message).with("path", path.to_string()))
        }
    }
}

/// A value of a kind that cannot be used here.
pub(super) fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(FailureCode::InvalidValue, message)
}

// === impl BoundedText ===

impl BoundedText {
    pub(super) fn new(max: usize) -> Self {
        Self {
            text: String::new(),
            max,
        }
    }

    /// How many bytes it may still grow.
    pub(super) fn room(&self) -> usize {
        self.max - self.text.len()
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }
}

impl Write for BoundedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if text.len() > self.room() {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}
