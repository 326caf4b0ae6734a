//! The operations without I/O.
//!
//! They read their inputs through the model and return the value; the engine writes it. Values are shared, not copied.
//! All memory is counted before it is allocated, and every loop counts its steps, so that the limits of an execution
//! also apply within one operation. Source: docs/protocols/a2e-workflows.md §4.

mod aggregate;
mod compare;
mod distinct;
mod filter;
mod function;
mod group;
mod merge;
mod project;
mod sort;
#[cfg(test)]
pub(crate) mod testing;
mod text;

use a2abus_models::a2e_workflow::Path;
use a2abus_models::a2e_workflow::transform::{Slice, Transform, TransformData};
use a2abus_models::{Array, Json};

use crate::failure::{Failure, FailureCode};
use crate::meter::Meter;
use crate::model::Model;

pub(crate) use filter::{filter, holds};
pub(crate) use merge::merge;

/// The context of an operation without I/O.
pub(crate) struct Scope<'a> {
    pub(crate) model: &'a Model,
    pub(crate) meter: &'a Meter<'a>,
}

/// Runs a TransformData and gives its value.
pub(crate) fn transform(operation: &TransformData, scope: &Scope<'_>) -> Result<Json, Failure> {
    let input = || scope.array(&operation.input);
    match &operation.transform {
        Transform::Map(projection, slice) => project::map(projection, *slice, &input()?, scope),
        Transform::Sort(keys, slice) => sort::sort(keys, *slice, &input()?, scope.meter),
        Transform::Group(field) => group::group(field, &input()?, scope.meter),
        Transform::Aggregate(config) => aggregate::aggregate(config, &input()?, scope.meter),
        Transform::Select(projection, slice) => match scope.model.read(&operation.input)? {
            Json::Array(array) => project::map(projection, *slice, &array, scope),
            object @ Json::Object(_) => project::select(projection, *slice, &object, scope),
            other => Err(mismatch(&operation.input, &other, "an array or an object")),
        },
    }
}

fn mismatch(path: &Path, found: &Json, needed: &str) -> Failure {
    let message = format!("{path} is {}, not {needed}", found.kind());
    Failure::new(FailureCode::TypeMismatch, message).with("path", path.to_string())
}

/// The requested slice of a result.
fn slice<T>(elements: &[T], slice: Slice) -> &[T] {
    let index = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let rest = elements.get(index(slice.offset)..).unwrap_or_default();
    slice
        .limit
        .and_then(|limit| rest.get(..index(limit)))
        .unwrap_or(rest)
}

// === impl Scope ===

impl Scope<'_> {
    /// The array at a path.
    fn array(&self, path: &Path) -> Result<Array, Failure> {
        match self.model.read(path)? {
            Json::Array(array) => Ok(array),
            other => Err(mismatch(path, &other, "an array")),
        }
    }
}
