//! Calls: requests that expect an answer, from the HTTP listener over the bus and back.
//!
//! ```text
//! caller ── call ──> register ──> publish ──> … agent … ──> reply channel ── answer ──> pending ──> Answer ──> caller
//! ```
//!
//! The JSON-RPC id of the caller is replaced by the call id on the way out and put back on the way in; nothing else of
//! either body changes. A call is registered before it is published, ends once, and never waits past its deadline.
//!
//! This file only lists them. `impl Calls` is in six files: `calls/service.rs` has what others may ask of it,
//! `calls/make.rs` how a call begins, `calls/open.rs` what comes before a request is published, `calls/publish.rs`
//! requests, notifications and cancels on their way to the bus, [`crate::calls::resolve`] what comes back, and
//! `calls/question.rs` what a client is asked meanwhile. Source: docs/design.md §1, §2 and §5.

mod answer;
mod answer_outcome;
pub(crate) mod answer_unit;
pub mod callid;
pub mod cancel;
pub(crate) mod error;
pub mod exchange;
pub(crate) mod failure;
mod make;
mod open;
mod part;
pub mod pending;
#[cfg(test)]
mod pending_model;
#[cfg(test)]
mod pending_tests;
mod publish;
pub(crate) mod question;
pub(crate) mod render;
pub mod reply;
pub mod reply_address;
pub(crate) mod reply_form;
pub(crate) mod reply_reader;
pub mod reply_token;
pub mod resolve;
mod service;
mod sync;

pub use answer::Answer;
pub(crate) use answer::{Prepared, SentCalls};
pub use answer_outcome::{AnswerOutcome, Unanswerable};
pub use error::{Bound, CallError, DestinationRefused, NoAnswer, RequestState};
pub(crate) use open::{Exchange, Opened, with_token};
pub use part::Part;
pub use service::{CallLimits, Calls, DOOR, Request, UNKNOWN_CALLER};
