//! The transports against real servers: Apache Kafka and NATS. `tests/run` starts them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail by panicking and print what they leave out"
)]

mod access;
mod attached;
mod dead_letters;
mod durables;
mod executions;
mod interruptions;
mod kafka;
mod mcp;
mod missing;
mod nats;
mod path;
mod plain;
mod poison;
mod registry;
mod reloads;
mod replicas;
mod requests;
mod rolling;
mod state;
mod streams;
mod tls;
mod topics;
mod trust;
mod workflows;
