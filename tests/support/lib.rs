//! Helpers for the tests of several crates.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "this crate is tests: it fails by panicking and prints what it leaves out"
)]

pub mod battery;
pub mod cancels;
pub mod logs;
pub mod proxy;
pub mod running;
pub mod server;
pub mod service;
