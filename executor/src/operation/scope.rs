//! What the operations without I/O share: their context, and how they read an array.

use a2abus_models::a2e_workflow::Path;
use a2abus_models::a2e_workflow::transform::Slice;
use a2abus_models::{Array, Json};

use crate::failure::{Failure, FailureCode};
use crate::meter::Meter;
use crate::model::Model;

/// The context of an operation without I/O.
pub(crate) struct Scope<'a> {
    pub(crate) model: &'a Model,
    pub(crate) meter: &'a Meter<'a>,
}

// === impl Scope ===

impl Scope<'_> {
    /// The array at a path.
    pub(super) fn array(&self, path: &Path) -> Result<Array, Failure> {
        match self.model.read(path)? {
            Json::Array(array) => Ok(array),
            other => Err(mismatch(path, &other, "an array")),
        }
    }
}

pub(super) fn mismatch(path: &Path, found: &Json, needed: &str) -> Failure {
    let message = format!("{path} is {}, not {needed}", found.kind());
    Failure::new(FailureCode::TypeMismatch, message).with("path", path.to_string())
}

/// The requested slice of a result.
pub(super) fn slice<T>(elements: &[T], slice: Slice) -> &[T] {
    let index = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let rest = elements.get(index(slice.offset)..).unwrap_or_default();
    slice
        .limit
        .and_then(|limit| rest.get(..index(limit)))
        .unwrap_or(rest)
}
