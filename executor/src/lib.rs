//! Executes A2E workflows.
mod agent;
mod cache;
mod call;
#[cfg(feature = "client")]
mod client;
mod environment;
mod failure;
mod meter;
mod model;
mod quota;
#[cfg(test)]
mod testing;
mod value;

pub use agent::{Agent, Credential, CredentialKind, Rates, Secret};
pub use cache::Cache;
pub use call::RetryUnsafe;
#[cfg(feature = "client")]
pub use client::{Client, ClientError, ClientOptions, Resolve, SystemResolver};
pub use environment::{
    Change, Clock, Environment, HttpClient, HttpError, HttpRequest, HttpResponse, Random, Reach,
    Store, StoreError, SystemClock, SystemRandom, Table,
};
pub use failure::{Failure, FailureCode};
pub use quota::{Admitted, Exceeded, Limit, Quotas, Usage, Window};
pub use value::{Array, Object, Value};
