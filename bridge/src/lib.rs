//! The bridge between AI agents and the event bus: binds topics, routes on `targetagent`, makes calls.
//!
//! The path of a message is [`pipeline`]; read that first. [`Bridge`] builds everything from a [`config::Config`] and
//! runs it; [`calls`] turns a synchronous request into correlated events and their answers back into a response or a
//! stream; [`http`] is the HTTP listener.

mod access;
pub(crate) mod account;
pub mod adapt;
pub mod answer;
mod bridge;
pub mod budget;
pub mod bus;
pub mod callid;
pub mod calls;
pub mod cancel;
pub mod claims;
pub mod cli;
mod clock;
pub mod config;
pub mod deadletter;
pub mod delivery;
pub mod exchange;
pub mod headers;
pub mod http;
pub mod metrics;
pub mod names;
pub mod outbound;
pub mod pending;
#[cfg(test)]
mod pending_model;
#[cfg(test)]
mod pending_tests;
pub mod pipeline;
mod recent;
pub mod reply;
pub mod reply_place;
pub mod reply_token;
pub mod route;
mod run;
pub mod seldom;
pub mod shares;
mod stage;
mod sync;
mod topics;
pub mod workflows;

pub use bridge::{Bridge, BridgeError};
