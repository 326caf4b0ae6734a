//! Detects which protocol an AI agent's payload uses and maps it to a CloudEvent, and back.
//!
//! ```text
//! bytes ── decode ──> Unit ── map ──> Event ── format ──> structured JSON
//! ```
//!
//! A payload is one object, a JSON array or one object per line. [`decode`] finds the family of each object, by fixed
//! rules and with the reason, in one pass over the bytes. [`map`] turns each unit into an [`Event`]. Its extensions are
//! those that routing needs (`a2amethod`, `mcptype`, `collaborationid`, `targetagent`), and its data are the original
//! bytes. Typed models of whole messages are in the crate `a2abus-models`. All functions are pure: no I/O, no clock, no
//! random numbers.
//!
//! # JSON-RPC: MCP, A2A, ACP
//!
//! An object with `"jsonrpc":"2.0"`. The id is preserved as its exact token, so that
//! [`splice`](protocol::jsonrpc::splice) can replace it by another and later restore it.
//!
//! ```
//! use a2abus_plugin::protocol::jsonrpc::splice;
//! use a2abus_plugin::{Hint, Limits, decode};
//!
//! let payload = r#"{"jsonrpc":"2.0","id":1.0,"method":"tools/call","params":{"_agentId":"weather"}}"#.into();
//! let unit = decode(&payload, &Hint::default(), &Limits::default()).into_only().unwrap().unwrap();
//! let id = unit.json_rpc.unwrap().id.unwrap();
//! assert_eq!(id.token(), &"1.0");
//! let sent = splice(&payload, id.span(), "\"call-7\"");
//! assert!(sent.starts_with(br#"{"jsonrpc":"2.0","id":"call-7","method""#));
//! ```
//!
//! # Legacy A2A
//!
//! An object with `"protocol":"A2A"` and a FIPA act.
//!
//! ```
//! # use a2abus_plugin::{Event, Hint, Ids, Limits, MapContext, MapOptions, Source, map};
//! # fn event_of(payload: &'static str) -> Event {
//! #     let new_id = MapContext::counting("n");
//! #     let source = Source::new("/docs").unwrap();
//! #     let context = MapContext { source, time: None, ids: Ids::Payload(&new_id) };
//! #     let (hint, limits, options) = (Hint::default(), Limits::default(), MapOptions::default());
//! #     let units = map(&payload.into(), &hint, &limits, &options, &context);
//! #     units.into_only().unwrap().unwrap().event
//! # }
//! let event = event_of(r#"{"protocol":"A2A","messageType":"CFP","targetAgent":{"agentId":"buyer"}}"#);
//! assert_eq!(event.extension_text("a2amethod").unwrap(), "cfp");
//! assert_eq!(event.extension_text("targetagent").unwrap(), "buyer");
//! ```
//!
//! # CloudEvents
//!
//! An event in structured mode stays unchanged. [`mod@format`] reads and writes that mode; JSON data are copied byte
//! for byte.
//!
//! ```
//! use a2abus_plugin::{Limits, format};
//!
//! let text = r#"{"specversion":"1.0","id":"1","source":"/s","type":"t","targetagent":"weather","data":{ "n": 1.50 }}"#;
//! let event = format::read(&text.into(), &Limits::default()).unwrap();
//! assert_eq!(event.body(), r#"{ "n": 1.50 }"#);
//! let mut written = Vec::new();
//! format::write(&event, &mut written);
//! assert_eq!(written, text.as_bytes());
//! ```

mod attribute;
mod decode;
mod detect;
mod error;
pub mod event;
pub mod extension;
pub mod format;
mod hint;
pub mod json;
mod limits;
mod map;
pub mod protocol;
mod sdk;
mod secret;
mod text;
pub mod time;

pub use attribute::{EventId, Source, Time, TypePrefix};
pub use decode::{IntoIter, Refused, RefusedSender, Unit, Units, decode};
pub use detect::{Detection, e2a_class, is_e2a_version_1};
pub use error::{DecodeError, DecodeErrorKind, EventError, EventErrorKind};
pub use event::{Data, Event, Value};
pub use hint::Hint;
pub use limits::Limits;
pub use map::{
    Ids, MapContext, MapOptions, Mapped, Notifications, Streams, map, map_unit, wrap_unknown,
};
pub use protocol::{DEFAULT_TYPE_PREFIX, Family, Kind, kind_of_event};
pub use secret::redact_secrets;
pub use text::Text;

/// Runs the examples of the readme as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
