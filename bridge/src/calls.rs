//! Calls: requests that expect an answer, from the HTTP listener over the bus and back.
//!
//! ```text
//! caller ── call ──> register ──> publish ──> … agent … ──> reply channel ── answer ──> pending ──> Answer ──> caller
//! ```
//!
//! The JSON-RPC id of the caller is replaced by the call id on the way out and put back on the way in; nothing else of
//! either body changes. A call is registered before it is published, ends once, and never waits past its deadline.
//!
//! This file only lists the modules. `impl Calls` is in six files: `calls/service.rs` (the interface for other
//! modules), `calls/make.rs` (the start of a call), `calls/open.rs` (everything before a request is published),
//! `calls/publish.rs` (publishing requests, notifications and cancels), [`crate::calls::resolve`] (the answers), and
//! `calls/question.rs` (questions of agents to clients). Source: docs/design.md §1, §2 and §5.

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
pub(crate) mod reply_source;
pub mod reply_token;
pub mod resolve;
mod service;
mod sync;

pub use answer::Answer;
pub(crate) use answer::{GAP_TIMEOUT, Prepared, RecordedParts, SentCalls, TAKEOVER};
pub use answer_outcome::{AnswerOutcome, Unanswerable};
pub use error::{Bound, CallError, DestinationRefused, NoAnswer, RequestState};
pub(crate) use open::{Exchange, OVERRULED, Opened, with_token};
pub use part::Part;
pub use service::{CallLimits, Calls, Request, UNKNOWN_CALLER};
