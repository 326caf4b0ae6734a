//! Detects what an AI agent wrote and maps it to a CloudEvent, and back.
//!
//! ```text
//! bytes ── decode ──> Unit ── map ──> Event ── format ──> structured JSON
//! ```
//!
//! A payload is one object, a JSON array or one object per line; [`decode`] tells the family of each, by fixed rules and
//! with the reason, in one pass over the bytes. [`map`] makes of each unit an [`Event`] whose extensions routing needs
//! (`a2amethod`, `mcptype`, `collaborationid`, `targetagent`) and whose data are the very bytes that came in. The typed
//! models of the families are in [`protocol`]; [`convert`] has the adapters between them by name. The crate is a
//! function of its arguments: no input or output, no clock, no random numbers.
//!
//! # JSON-RPC: MCP, A2A, ACP
//!
//! An object with `"jsonrpc":"2.0"`. The id is kept as its exact token, so that [`splice`](protocol::jsonrpc::splice) can
//! put another in its place and later the first one back.
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
//! # A2E messages
//!
//! What an agent and its environment say to each other. The event needs a few members; the typed model has all.
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
//! use a2abus_plugin::protocol::a2e_message::{Body, DecodeOptions, decode};
//!
//! let line = r#"{"type":"tool/call/req","id":"a1","a2e":"1.0","tool_name":"ls","arguments":{"path":"/"}}"#;
//! let event = event_of(line);
//! assert_eq!(event.extension_text("a2etype").unwrap(), "tool/call/req");
//! assert_eq!(event.extension_text("a2eobject").unwrap(), "ls");
//!
//! let message = decode(&line.into(), &DecodeOptions::default()).unwrap().unwrap();
//! let Body::ToolCallRequest(call) = message.body else { panic!() };
//! assert_eq!(call.timeout.as_i64(), Some(30));
//! ```
//!
//! # A2E workflows
//!
//! Lines that define operations and say in which order they run. All lines are one event; whether the workflow may run,
//! [`Document::validate`](protocol::a2e_workflow::Document::validate) tells.
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
//! use a2abus_plugin::protocol::a2e_workflow::{Document, Policy, Strictness, WorkflowLimits};
//!
//! let lines = r#"{"type":"operationUpdate","operationId":"w","operation":{"Wait":{"duration":5}}}
//! {"type":"beginExecution","executionId":"run-1","operationOrder":["w"]}"#;
//! let event = event_of(lines);
//! assert_eq!(event.extension_text("a2amethod").unwrap(), "workflows/execute");
//! assert_eq!(event.id(), &"run-1");
//!
//! let document = Document::parse(&lines.into(), &WorkflowLimits::default());
//! let report = document.validate(&Policy::default(), None, Strictness::Moderate);
//! assert_eq!(report.errors[0].code.as_str(), "operation_not_permitted");
//! ```
//!
//! # E2A
//!
//! Requests to agents and the records of their answers, with the shapes of before E2A. The typed models read each
//! shape, and the adapters speak ACP and A2A.
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
//! use a2abus_plugin::Json;
//! use a2abus_plugin::protocol::e2a::{
//!     AcpOptions, E2aEnvelope, Trust, envelope_to_acp_jsonrpc_call,
//! };
//!
//! let request = r#"{"protocol_version":"1.0","request_id":"r1","method":"session/prompt","agent_id":"coder","params":{"text":"Hi"}}"#;
//! let event = event_of(request);
//! assert_eq!(event.ty(), "org.apache.eventmesh.a2a.e2a.session.prompt.req");
//! assert_eq!(event.extension_text("collaborationid").unwrap(), "r1");
//!
//! let json = Json::parse(request.as_bytes(), &Limits::default()).unwrap();
//! let envelope = E2aEnvelope::parse(&json, Trust::Untrusted).unwrap();
//! let call = envelope_to_acp_jsonrpc_call(&envelope, AcpOptions::default()).unwrap();
//! assert_eq!(call.get("method").unwrap().as_str(), Some("session/prompt"));
//! ```
//!
//! # CloudEvents
//!
//! An event in structured mode stays the event it is. [`mod@format`] reads and writes that mode; JSON data are spliced in
//! byte for byte.
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
pub mod convert;
mod decode;
mod detect;
pub mod error;
pub mod event;
pub mod extension;
mod faults;
pub mod format;
mod json;
mod limits;
mod map;
pub mod protocol;
mod sdk;
mod secret;
mod text;
mod time;
mod tree;

pub use attribute::{EventId, Source, Time, TypePrefix};
pub use decode::{Hint, IntoIter, Refused, Unit, Units, decode};
pub use detect::Because;
pub use error::{DecodeError, DecodeErrorKind, EventError, EventErrorKind};
pub use event::{Data, Event, Value};
pub use faults::{Fault, faults_of};
pub use limits::Limits;
pub use map::{
    DEFAULT_TYPE_PREFIX, Ids, MapContext, MapOptions, Mapped, Notifications, Streams,
    kind_of_event, map, map_unit, wrap_unknown,
};
pub use protocol::{Family, Kind};
pub use secret::blank_secrets;
pub use text::Text;
pub use tree::{Json, Number, Object};

/// The examples of the readme are tests too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
