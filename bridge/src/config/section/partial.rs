//! Names and destinations, each read on its own. Their problems are reported even if another value of the same binding
//! or route cannot be read.

use serde_json::Value;

use super::super::path::ValuePath;
use super::super::problem::ConfigErrors;
use super::super::{DestinationConfig, Name};

/// The values that could be read, each with its path.
#[derive(Debug, Default)]
pub(in super::super) struct PartialEntries {
    /// The names of bindings.
    pub(in super::super) bindings: Vec<(ValuePath, Name)>,
    /// The names of routes.
    pub(in super::super) routes: Vec<(ValuePath, Name)>,
    /// The names of transports, wherever the file refers to one.
    pub(in super::super) transports: Vec<(ValuePath, Name)>,
    /// The destinations in `routes`, `default_route`, `agents` and `registry`.
    pub(in super::super) destinations: Vec<(ValuePath, DestinationConfig)>,
}

// === impl PartialEntries ===

impl PartialEntries {
    /// Reads the values in which the schema check found no problem.
    pub(super) fn read(root: &Value, problems: &ConfigErrors) -> Self {
        let mut partial = Self::default();
        for (path, binding) in items(root, &ValuePath::root(), "bindings") {
            partial.bindings.extend(name(binding, &path, "name"));
            partial.transports.extend(name(binding, &path, "transport"));
            if let Some(dead_letter) = binding.get("dead_letter") {
                let path = path.key("dead_letter");
                partial
                    .transports
                    .extend(name(dead_letter, &path, "transport"));
            }
        }
        if let Some(state) = root.get("state") {
            let log = name(state, &ValuePath::root().key("state"), "log");
            // These two values do not name a transport.
            let transport = log.filter(|(_, log)| !["memory", "embedded"].contains(&log.as_str()));
            partial.transports.extend(transport);
        }
        for (path, route) in items(root, &ValuePath::root(), "routes") {
            partial.routes.extend(name(route, &path, "name"));
            for (path, destination) in items(route, &path, "to") {
                partial.destination(path, destination, problems);
            }
        }
        for (path, destination) in items(root, &ValuePath::root(), "default_route") {
            partial.destination(path, destination, problems);
        }
        let agents = root.get("agents").and_then(Value::as_object);
        for (name, agent) in agents.into_iter().flatten() {
            let path = ValuePath::root().key("agents").key(name).key("to");
            if let Some(to) = agent.get("to") {
                partial.destination(path, to, problems);
            }
        }
        if let Some(registry) = root.get("registry") {
            for (path, allowed) in
                items(registry, &ValuePath::root().key("registry"), "destinations")
            {
                if let Some(to) = allowed.get("to") {
                    partial.destination(path.key("to"), to, problems);
                }
            }
        }
        partial
    }

    fn destination(&mut self, path: ValuePath, value: &Value, problems: &ConfigErrors) {
        self.transports.extend(name(value, &path, "transport"));
        if problems.has_error_under(&path) {
            return;
        }
        // A failure is reported when the route is read.
        if let Ok(destination) = serde_json::from_value(value.clone()) {
            self.destinations.push((path, destination));
        }
    }
}

/// The items of the list at this key of a section.
fn items<'a>(
    section: &'a Value,
    path: &ValuePath,
    key: &str,
) -> impl Iterator<Item = (ValuePath, &'a Value)> + use<'a> {
    let path = path.key(key);
    let items = section.get(key).and_then(Value::as_array);
    let items = items.into_iter().flatten().enumerate();
    items.map(move |(index, item)| (path.index(index), item))
}

/// The name at this key of a section, if it is valid.
fn name(section: &Value, path: &ValuePath, key: &str) -> Option<(ValuePath, Name)> {
    let name = Name::new(section.get(key)?.as_str()?).ok()?;
    Some((path.key(key), name))
}
