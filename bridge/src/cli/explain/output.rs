//! The members of a JSON line of `a2abus explain` that `a2abus map` does not print.

use std::collections::HashMap;

use a2abus_plugin::event::SPEC_VERSION;
use a2abus_plugin::json::BYTE_ORDER_MARK;
use a2abus_plugin::{Family, Mapped, Text};
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::origins::{self, Changes, Origin};
use super::routing::{RouteOutput, Routing};

/// The members of a mapped unit that `map` does not print.
#[derive(Debug, Serialize)]
pub(super) struct ExplainOutput {
    pub(super) because: DetectionOutput,
    #[serde(serialize_with = "as_object")]
    pub(super) origins: Vec<(String, Origin)>,
    /// The attributes that its sender may not set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) removed: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) route: Option<RouteOutput>,
}

/// The detection rule that decided, and the member that it is based on.
#[derive(Debug, Serialize)]
pub(super) struct DetectionOutput {
    pub(super) rule: u8,
    pub(super) member: &'static str,
    pub(super) value: Value,
}

// === impl ExplainOutput ===

impl ExplainOutput {
    /// `changes` are those of its entry point; `reply_address` is the one that the event or its message names.
    pub(super) fn of(
        mapped: &Mapped,
        changes: Changes,
        reply_address: Option<&Text>,
        routing: Option<&Routing<'_>>,
    ) -> Self {
        let route =
            |routing: &Routing<'_>| routing.output(&mapped.event, mapped.kind, reply_address);
        let detection = mapped.detection;
        Self {
            because: DetectionOutput {
                rule: detection.rule,
                member: detection.member,
                value: deciding_value(mapped),
            },
            origins: origins::of(mapped, &changes, routing.is_some_and(Routing::is_http)),
            removed: changes.removed,
            route: routing.map(route),
        }
    }

    pub(super) fn goes_nowhere(&self) -> bool {
        self.route.as_ref().is_some_and(RouteOutput::goes_nowhere)
    }
}

/// The value of the member that decided.
fn deciding_value(mapped: &Mapped) -> Value {
    let detection = mapped.detection;
    if detection.family == Family::CloudEvent {
        return SPEC_VERSION.into();
    }
    let bytes = mapped
        .bytes
        .strip_prefix(BYTE_ORDER_MARK)
        .unwrap_or(&mapped.bytes);
    let members: HashMap<String, &RawValue> = serde_json::from_slice(bytes).unwrap_or_default();
    // serde_json refuses documents that are nested more deeply than its limit; the value is then missing.
    members
        .get(detection.member)
        .and_then(|raw| serde_json::from_str(raw.get()).ok())
        .unwrap_or_default()
}

fn as_object<S: Serializer>(
    origins: &[(String, Origin)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(origins.iter().map(|(name, origin)| (name, origin)))
}
