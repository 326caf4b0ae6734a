//! The program as its users start it.

// Helpers of tests stand outside `#[test]` functions, where clippy does not know them for tests.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod cli;
mod readme;
mod serve;
mod stdio;
mod storage;
mod vectors;
mod workflow;

use std::process::Command;

/// The program, without the variables that would change its configuration.
fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_a2abus"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("A2ABUS_") {
            command.env_remove(name);
        }
    }
    command
}
