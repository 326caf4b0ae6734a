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
