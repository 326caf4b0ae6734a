//! The bridge and the transport it runs on in memory: no servers, and mostly a paused clock.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail by panicking and print what they leave out"
)]

mod a2a;
mod adapters;
mod answers;
mod attached;
mod attached_http;
mod binding;
mod calls;
mod delivery;
mod drain;
mod exchanges;
mod hostile_a2a;
mod http;
mod in_kind;
mod keyed;
mod mcp;
mod memory_battery;
mod push;
mod readiness;
mod registry;
mod reload;
mod rest;
mod schedules;
mod set_up;
mod site;
mod state;
mod tasks;
mod trust;
mod two_buses;
mod workflows;
