//! Detects what an AI agent wrote and maps it to a CloudEvent, and back.
//!
//! ```text
//! bytes ── decode ──> Unit ── map ──> Event ── format ──> structured JSON
//! ```
//!
//! A payload is JSON-RPC (MCP, A2A, ACP), a legacy FIPA-style A2A message or a CloudEvent; [`decode`] tells which, by
//! fixed rules and with the reason, in one pass over the bytes. [`map`] makes of each unit an [`Event`] whose
//! extensions routing needs (`a2amethod`, `mcptype`, `collaborationid`, `targetagent`) and whose data are the very
//! bytes that came in. The crate is a function of its arguments: no input or output, no clock, no random numbers.

pub mod convert;
mod decode;
mod detect;
pub mod error;
pub mod event;
pub mod extension;
pub mod format;
mod json;
mod limits;
mod map;
pub mod protocol;
mod sdk;
mod text;
mod time;
mod tree;

pub use decode::{Hint, IntoIter, Refused, Unit, Units, decode};
pub use detect::Because;
pub use error::{DecodeError, DecodeErrorKind, EventError, EventErrorKind};
pub use event::{Data, Event, Value};
pub use limits::Limits;
pub use map::{
    DEFAULT_TYPE_PREFIX, MapContext, MapOptions, Mapped, Notifications, Streams, kind_of_event,
    map, map_unit, wrap_unknown,
};
pub use protocol::{Family, Kind};
pub use text::Text;
pub use tree::{Json, Number, Object};
