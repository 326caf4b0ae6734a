//! Which parts of the file does a reload replace?
//!
//! Parts of one group are replaced together, or wait for a restart together. The others keep their running values, so
//! the result is a mixture of two files.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::attached::{AGENTS, set};
use crate::config::Change;

/// The log levels.
pub(super) const LOG: &str = "telemetry.log";
/// The A2A interface.
pub(super) const A2A: &str = "a2a";

/// Parts that are replaced together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    /// The routes. Agents have routes of their own.
    Routing,
    A2a,
    Workflows,
    Limits,
    Log,
}

/// The groups that keep their running values, and why.
pub(super) type Held = BTreeMap<Group, String>;

/// The parts, each with its group. A part inside an earlier part is an exception to that part. A part without a group
/// is not replaced.
const PARTS: [(&str, Option<Group>); 11] = [
    ("routes", Some(Group::Routing)),
    ("default_route", Some(Group::Routing)),
    (AGENTS, Some(Group::Routing)),
    (A2A, Some(Group::A2a)),
    ("a2a.default_agent", Some(Group::Routing)),
    ("a2a.push_notifications", None),
    ("workflows.apis", Some(Group::Workflows)),
    ("workflows.credentials", Some(Group::Workflows)),
    ("workflows.agents", Some(Group::Workflows)),
    ("limits", Some(Group::Limits)),
    (LOG, Some(Group::Log)),
];

// === impl Group ===

impl Group {
    /// The group of a change; `None` if it always needs a restart.
    pub(super) fn of(change: &Change) -> Option<Self> {
        let mut parts = PARTS.iter().rev();
        let (_, group) = parts.find(|(part, _)| change.is_in(part))?;
        *group
    }
}

/// Makes groups keep their running values. If a group has several reasons, the first one is reported.
pub(super) fn hold(held: &mut Held, groups: &[Group], why: &str) {
    for group in groups {
        held.entry(*group).or_insert_with(|| why.to_owned());
    }
}

/// The running document, with the parts of the next one that are replaced.
pub(super) fn mixed(running: &Value, next: &Value, held: &Held) -> Value {
    let mut document = running.clone();
    for (part, group) in PARTS {
        let is_replaced = group.is_some_and(|group| !held.contains_key(&group));
        let source = if is_replaced { next } else { running };
        adopt(&mut document, source, part);
    }
    document
}

/// Replaces one part of a document, such as `telemetry.log`, by the same part of another.
pub(super) fn adopt(document: &mut Value, other: &Value, part: &str) {
    let value = other.pointer(&format!("/{}", part.replace('.', "/")));
    let Some(sections) = document.as_object_mut() else {
        return;
    };
    let Some((section, key)) = part.split_once('.') else {
        return set(sections, part, value);
    };
    if value.is_some() {
        sections.entry(section).or_insert_with(|| json!({}));
    }
    if let Some(section) = sections.get_mut(section).and_then(Value::as_object_mut) {
        set(section, key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{A2aConfig, changes};

    #[test]
    fn every_setting_of_a2a_except_webhooks_is_replaced() {
        let schema = schemars::schema_for!(A2aConfig).to_value();
        let settings = schema["properties"].as_object().unwrap();
        assert!(settings.contains_key("cancel_timeout"), "{schema}");
        for setting in settings.keys() {
            let next = json!({ A2A: { (setting.as_str()): "new" } });
            let change = changes(&json!({}), &next).remove(0);
            let expected = match setting.as_str() {
                "push_notifications" => None,
                "default_agent" => Some(Group::Routing),
                _ => Some(Group::A2a),
            };
            assert_eq!(Group::of(&change), expected, "{setting}");
        }
    }

    #[test]
    fn held_parts_and_exceptions_keep_their_running_values() {
        let document = |value: &str| {
            json!({
                "limits": value, "bindings": value, "routes": value,
                "a2a": { "max_parts": value, "default_agent": value, "push_notifications": value },
                "telemetry": { "log": value, "log_format": value },
            })
        };
        let (running, mut next) = (document("old"), document("new"));
        next["workflows"] = json!({ "agents": "new", "enabled": "new" });
        let mut held = Held::new();
        hold(&mut held, &[Group::Routing], "first");
        hold(&mut held, &[Group::Routing], "second");
        assert_eq!(held[&Group::Routing], "first");
        let expected = json!({
            "limits": "new", "bindings": "old", "routes": "old",
            "a2a": { "max_parts": "new", "default_agent": "old", "push_notifications": "old" },
            "telemetry": { "log": "new", "log_format": "old" },
            "workflows": { "agents": "new" },
        });
        assert_eq!(mixed(&running, &next, &held), expected);
        // What is not written any more is removed.
        hold(&mut held, &[Group::Workflows], "held");
        assert_eq!(mixed(&expected, &json!({}), &held)["limits"], Value::Null);
        assert_eq!(
            mixed(&expected, &json!({}), &held)["workflows"],
            expected["workflows"]
        );
    }
}
