//! The executor through its public interface.

// Helpers of tests stand outside `#[test]` functions, where clippy does not know them for tests.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod generated;
mod hostile;
mod records;
mod vectors;
