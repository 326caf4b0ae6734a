//! The rules of the specifications, from the vectors in `tests/vectors`, and whether cited sections exist; no
//! network, no clock.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail by panicking and print what they leave out"
)]

mod citations;
mod cloudevents;
mod decisions;
mod hostile;
mod links;
mod payloads;
mod structure;
