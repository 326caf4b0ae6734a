//! A2E messages: the messages between an agent and its environment, one JSON object per line.
//!
//! ```text
//! bytes ── Splitter ──> line ── decode ──> Message { Header, Body } ── Display ──> line
//! ```
//!
//! A [`Message`] is typed, for endpoints; [`CallMatcher`] finds the call that it answers. The bridge parses
//! neither for messages that pass through: their bytes stay unchanged, and their type string identifies them
//! ([`a2abus_plugin::protocol::a2e_message`]).
//!
//! Source: docs/protocols/a2e-messages.md.

#[macro_use]
mod record;

mod body;
pub mod chains;
mod decode;
pub mod env;
pub mod error_code;
mod header;
pub mod learn;
mod lines;
pub mod mcp;
pub mod memory;
mod message;
pub mod multi_agent;
pub mod planning;
pub mod proc;
mod refusal;
mod repair;
pub mod session;
mod shape;
pub mod skills;
pub mod toolkits;
pub mod tools;
mod value;

pub use body::{Body, Unknown, members_of};
pub use decode::{Checks, DecodeOptions, Ids, decode, decode_lines};
pub use header::{Embedded, Header, VERSION, VersionKeys};
pub use lines::{Line, Splitter};
pub use message::Message;
pub use record::{Content, Record};
pub use refusal::{LineIds, Reason, Refusal, RefusalKind};
pub use repair::{CallMatcher, Matched, OpenError};
pub use shape::{Member, Shape, WhenAbsent};
pub use value::{Float, Generated, Integer, Problem, Secret, Violation};
