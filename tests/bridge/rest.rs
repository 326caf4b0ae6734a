//! The executor over HTTP, end to end: a real client, the whole bridge, and a service that workflows call.

mod executions;
mod harness;
mod limits;
mod openapi;
mod reload;
mod secrets;
mod store;
mod who;
