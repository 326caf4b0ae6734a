//! The typed models through their public interface.

// Helpers of tests stand outside `#[test]` functions, where clippy does not know them for tests.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used
)]

mod a2e_message;
mod a2e_workflow;
mod differential;
mod e2a;
mod faults;
mod hostile;
