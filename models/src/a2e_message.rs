//! A2E messages: the messages between an agent and its environment, one JSON object per line.
//!
//! ```text
//! bytes ── Splitter ──> line ── decode ──> Message { Header, Body } ── Display ──> line
//! ```
//!
//! A [`Message`] is typed, for endpoints. A message that only passes through does not need it: its bytes stay
//! unchanged, its type string identifies it ([`a2abus_plugin::protocol::a2e_message`]), and [`CallMatcher`] finds the
//! call that it answers.
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

use std::fmt;

pub use body::{Body, Unknown, members_of};
pub use decode::{Checks, DecodeOptions, Ids, decode, decode_lines};
pub use header::{Embedded, Header, VERSION, VersionKeys};
pub use lines::{Line, Splitter};
pub use record::{Content, Record};
pub use refusal::{LineIds, Reason, Refusal, RefusalKind};
pub use repair::{CallMatcher, Matched, OpenError};
pub use shape::{Member, Shape, WhenAbsent};
pub use value::{Float, Generated, Integer, Problem, Secret, Violation};

use crate::json::Object;
use a2abus_plugin::Kind;

/// A message. `Display` writes its line, without the line end: compact, ASCII only, with all
/// defaults, in the order of the SDK.
///
/// ```
/// use a2abus_models::a2e_message::session::Pong;
/// use a2abus_models::a2e_message::{Float, Header, Message};
///
/// let pong = Pong { req_id: "p1".into(), ..Pong::default() };
/// let message = Message { header: Header::new("p2", Float::new(1.5)), body: pong.into() };
/// let line = r#"{"type":"pong","id":"p2","version":"1.0","a2e":"1.0","ts":1.5,"#.to_owned()
///     + r#""req_id":"p1","uptime_seconds":0.0}"#;
/// assert_eq!(message.to_string(), line);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// The base keys of the message.
    pub header: Header,
    /// The other members.
    pub body: Body,
}

// === impl Message ===

impl Message {
    /// Its role in the exchange.
    #[must_use]
    pub fn kind(&self) -> Kind {
        a2abus_plugin::protocol::a2e_message::kind(self.body.type_name(), self.body.req_id())
    }

    /// The message as an object, in the order of its line.
    #[must_use]
    pub fn to_object(&self) -> Object {
        self.header
            .join(self.body.type_name(), &self.body.to_object())
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.to_object())
    }
}
