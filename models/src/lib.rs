//! Typed models of A2E messages, A2E workflows and E2A, for programs that write, check or execute them.
//!
//! A message in transit needs none of this: the crate `a2abus-plugin` detects and maps it from its bytes.
//! [`convert`] runs the conversions between the models by name; [`faults_of`] lists every fault of a message. The
//! results depend only on the arguments: no input or output, no clock, no random numbers.
//!
//! # A2E messages
//!
//! A message between an agent and its environment. The event has a few attributes; the typed model has all members.
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
//! use a2abus_models::a2e_message::{Body, DecodeOptions, decode};
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
//! Lines that define operations, and the order in which they run. All lines are one event;
//! [`Document::validate`](a2e_workflow::Document::validate) decides whether the workflow may run.
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
//! use a2abus_models::a2e_workflow::{Document, Policy, Strictness, WorkflowLimits};
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
//! Requests to agents and the records of their answers, in the current and the legacy shapes. The typed models read
//! all shapes, and the adapters convert to and from ACP and A2A.
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
//! use a2abus_models::Json;
//! use a2abus_models::e2a::{
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

#[doc(hidden)]
#[macro_use]
pub mod wire_enum;

pub mod a2e_message;
pub mod a2e_workflow;
pub mod convert;
pub mod e2a;
mod faults;
mod json;

pub use faults::{Fault, faults_of};
pub use json::{Array, Json, Number, Object, Rounding};

/// Compiles and runs the examples of the readme as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
