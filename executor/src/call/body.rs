//! The body of a call, with its values.
//!
//! Source: docs/protocols/a2e-workflows.md §D18.

use std::fmt::{self, Write};

use a2abus_models::Json;
use a2abus_models::a2e_workflow::{Body, Part, Template};
use bytes::Bytes;

use crate::call::text::BoundedText;
use crate::failure::{Failure, FailureCode};
use crate::model::Model;

/// The largest body that is sent, in bytes; the data model has the same limit.
const MAX_BODY_BYTES: usize = 32 << 20;

/// Why a body cannot be written.
enum BodyError {
    Failed(Failure),
    TooLarge,
}

/// The bytes to send; `None` for `null`.
pub(super) fn resolve(body: &Body, model: &Model) -> Result<Option<Bytes>, Failure> {
    let is_null = match body {
        Body::Literal(json) => *json == Json::Null,
        Body::Reference(path) => model.read(path)?.is_null(),
        Body::Template(_) | Body::Array(_) | Body::Object(_) => false,
    };
    if is_null {
        return Ok(None);
    }
    let mut out = BoundedText::new(MAX_BODY_BYTES);
    match write(body, model, &mut out) {
        Ok(()) => Ok(Some(out.into_text().into())),
        Err(BodyError::Failed(failure)) => Err(failure),
        Err(BodyError::TooLarge) => {
            let message = format!("the body is larger than {} MiB", MAX_BODY_BYTES >> 20);
            let failure = Failure::new(FailureCode::LimitExceeded, message);
            Err(failure
                .with("limit", "request_body_bytes")
                .with("max", MAX_BODY_BYTES))
        }
    }
}

/// The recursion is bounded by the depth of the line it was read from.
fn write(body: &Body, model: &Model, out: &mut BoundedText) -> Result<(), BodyError> {
    match body {
        Body::Literal(json) => write!(out, "{}", json.by_value())?,
        Body::Reference(path) => write!(out, "{}", model.read(path)?)?,
        Body::Template(template) => {
            let text = render(template, model, out.room())?;
            write!(out, "{}", Json::from(text))?;
        }
        Body::Array(elements) => {
            out.write_char('[')?;
            for (index, element) in elements.iter().enumerate() {
                if index > 0 {
                    out.write_char(',')?;
                }
                write(element, model, out)?;
            }
            out.write_char(']')?;
        }
        Body::Object(members) => {
            out.write_char('{')?;
            for (index, (name, member)) in members.iter().enumerate() {
                if index > 0 {
                    out.write_char(',')?;
                }
                write!(out, "{}", Json::from(name.clone()))?;
                out.write_char(':')?;
                write(member, model, out)?;
            }
            out.write_char('}')?;
        }
    }
    Ok(())
}

/// Strings are written as they are, everything else as compact JSON.
fn render(template: &Template, model: &Model, max: usize) -> Result<String, BodyError> {
    let mut text = BoundedText::new(max);
    for part in template.parts() {
        match part {
            Part::Text(literal) => text.write_str(literal)?,
            Part::Value(path) => match model.read(path)? {
                Json::String(value) => text.write_str(&value)?,
                other => write!(text, "{other}")?,
            },
        }
    }
    Ok(text.into_text())
}

// === impl BodyError ===

impl From<Failure> for BodyError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Writing text fails only at the limit.
impl From<fmt::Error> for BodyError {
    fn from(_: fmt::Error) -> Self {
        Self::TooLarge
    }
}
