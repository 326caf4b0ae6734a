//! Executes A2E workflows.
mod environment;
mod failure;
mod meter;
mod model;
mod operation;
mod value;

pub use environment::{
    Change, Clock, Environment, HttpClient, HttpError, HttpRequest, HttpResponse, Random, Reach,
    Store, StoreError, Table,
};
pub use failure::{Failure, FailureCode};
pub use value::{Array, Object, Value};
