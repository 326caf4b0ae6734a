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
mod scope;
mod sort;
#[cfg(test)]
pub(crate) mod testing;
mod text;

use a2abus_models::Json;
use a2abus_models::a2e_workflow::transform::{Transform, TransformData};

use crate::failure::Failure;

pub(crate) use filter::{filter, holds};
pub(crate) use merge::merge;
pub(crate) use scope::Scope;
use scope::mismatch;

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
