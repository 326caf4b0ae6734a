//! The spans of the pipeline, one for each stage. Their names are stable, so an exporter may rely on them.
//!
//! They have the level TRACE and the target `a2abus::stage`, so a filter has to enable them
//! (`A2ABUS_LOG=info,a2abus::stage=trace`). A disabled span costs one atomic read.
//!
//! | span | lasts |
//! |---|---|
//! | `receive` | from the delivery of a message until its copies are handed to their buses |
//! | `map` | while a payload is parsed and mapped to events |
//! | `route` | while the destinations of an event are looked up |
//! | `publish` | while a copy is handed to its bus |
//! | `settle` | while a message is acknowledged to its source |
//! | `call` | from the request until its last answer, its deadline or its cancel |

use a2abus_plugin::Text;
use a2abus_transports::{Origin, Topic};
use tracing::{Span, trace_span};

use crate::calls::callid::{CallId, shown_topic};

const TARGET: &str = "a2abus::stage";

pub(crate) fn receive(binding: &Text, topic: &Topic, origin: Option<&Origin>) -> Span {
    let origin = origin.map(|origin| origin.position.as_str());
    trace_span!(target: TARGET, "receive", %binding, topic = %shown_topic(topic.as_str()), origin)
}

pub(crate) fn map() -> Span {
    trace_span!(target: TARGET, "map")
}

pub(crate) fn route() -> Span {
    trace_span!(target: TARGET, "route")
}

pub(crate) fn publish(topic: &Topic) -> Span {
    trace_span!(target: TARGET, "publish", topic = %shown_topic(topic.as_str()))
}

pub(crate) fn settle() -> Span {
    trace_span!(target: TARGET, "settle")
}

pub(crate) fn call(call: CallId, caller: &str) -> Span {
    trace_span!(target: TARGET, "call", %call, caller)
}
