//! Executes A2E workflows.
mod environment;
mod failure;
mod meter;
mod model;
mod operation;
mod store;
mod value;

pub use environment::{
    Change, Clock, Environment, HttpClient, HttpError, HttpRequest, HttpResponse, Random, Reach,
    Store, StoreError, Table,
};
pub use failure::{Failure, FailureCode};
#[cfg(feature = "redb")]
pub use store::RedbStore;
pub use store::{FileStore, MemoryStore, OpenError};
pub use value::{Array, Object, Value};
