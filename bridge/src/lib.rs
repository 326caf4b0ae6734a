//! The bridge between AI agents and event buses: reads topics, routes on `targetagent`, makes calls.
//!
//! The path of a message is in `pipeline`; read that first. [`Bridge`] builds everything from a [`config::Config`] and
//! runs it; [`calls`] turns a synchronous request into correlated events and their answers back into a response or a
//! stream; `http` is the HTTP listener.

#[cfg(any(feature = "kafka", feature = "nats"))]
mod access;
pub(crate) mod account;
mod attached;
#[cfg(test)]
mod blessed;
mod bridge;
mod budget;
mod bus;
pub mod calls;
pub mod cli;
mod clock;
pub mod config;
mod count;
mod doors;
mod http;
mod lines;
mod lock;
mod log_limit;
pub mod metrics;
mod names;
mod object;
mod pipeline;
mod process;
pub mod readiness;
mod recent;
mod registry;
mod reload;
mod restart;
mod results;
pub mod route;
mod rpc_response;
mod rules;
mod shares;
mod stage;
pub mod state;
mod tasks;
#[cfg(any(feature = "kafka", feature = "nats"))]
mod topics;
pub mod workflows;

/// The fold of tasks, for benchmarks.
#[doc(hidden)]
#[must_use]
pub fn task_fold() -> impl state::Fold {
    tasks::fold::TaskFold
}

pub use bridge::{Bridge, BridgeError};
pub use reload::{LogLevels, Reloads};
