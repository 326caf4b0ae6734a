//! A message: its header and its body.

use std::fmt;

use a2abus_plugin::Kind;

use super::body::Body;
use super::header::Header;
use crate::json::Object;

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
