//! The library through its public interface.

// Helpers of tests stand outside `#[test]` functions, where clippy does not know them for tests.
#![allow(clippy::needless_pass_by_value, clippy::panic, clippy::unwrap_used)]

mod documents;
mod linear;
mod mapping;
mod properties;
