//! The differences between two configurations, value by value.

use std::fmt;

use serde_json::Value;

use super::path::{Segment, ValuePath};

/// A value, from the file or a variable, that has changed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Change {
    /// The path of the value. List entries with a `name` or `id` are matched by it, whatever their position.
    pub(crate) path: ValuePath,
    before: Option<Value>,
    after: Option<Value>,
}

/// Longer values are cut to this many characters.
const MAX_SHOWN_CHARS: usize = 200;

/// All differences between two documents. A default written out differs from an omitted one.
pub(crate) fn changes(before: &Value, after: &Value) -> Vec<Change> {
    let mut found = Vec::new();
    let root = ValuePath::root();
    compare(&root, Some(before), Some(after), &mut found);
    found
}

// === impl Change ===

impl Change {
    /// Whether the value is in this part of the file, such as `telemetry.log`.
    pub(crate) fn is_in(&self, part: &str) -> bool {
        self.path.starts_with(&ValuePath::root().below(part))
    }

    /// The entry that has changed in a part of the file that is a map, and its member.
    pub(crate) fn member_in(&self, part: &str) -> Option<(&str, &str)> {
        match self.path.steps() {
            [
                Segment::Key(map),
                Segment::Key(entry),
                Segment::Key(member),
                ..,
            ] if map == part => Some((entry, member)),
            _ => None,
        }
    }

    /// The old value, as text.
    pub(crate) fn before(&self) -> impl fmt::Display + use<> {
        shorten(self.before.as_ref())
    }

    /// The new value, as text.
    pub(crate) fn after(&self) -> impl fmt::Display + use<> {
        shorten(self.after.as_ref())
    }
}

fn shorten(value: Option<&Value>) -> String {
    let text = value.map_or_else(|| "not set".to_owned(), Value::to_string);
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{} ...", text.split_at(end).0),
        None => text,
    }
}

/// Compares maps member by member. Compares lists entry by entry if every entry has a name.
fn compare(
    path: &ValuePath,
    before: Option<&Value>,
    after: Option<&Value>,
    found: &mut Vec<Change>,
) {
    if before == after {
        return;
    }
    if let (Some(before), Some(after)) = (members(before), members(after)) {
        for (key, value) in &before {
            compare(&path.key(key), Some(value), find(&after, key), found);
        }
        let added = after.iter().filter(|(key, _)| find(&before, key).is_none());
        for (key, value) in added {
            compare(&path.key(key), None, Some(value), found);
        }
    } else if let (Some(before), Some(after)) = (entries(before), entries(after)) {
        compare_entries(path, &before, &after, found);
    } else if let (Some(Value::Array(before)), Some(Value::Array(after))) = (before, after)
        && before.len() == after.len()
    {
        for (index, (before, after)) in before.iter().zip(after).enumerate() {
            compare(&path.index(index), Some(before), Some(after), found);
        }
    } else {
        found.push(change(path.clone(), before, after));
    }
}

/// Compares two lists whose entries have names. An added or removed entry is one change.
fn compare_entries(
    path: &ValuePath,
    before: &[(&str, &Value)],
    after: &[(&str, &Value)],
    found: &mut Vec<Change>,
) {
    for (name, value) in before {
        match find(after, name) {
            Some(other) => compare(&path.key(name), Some(value), Some(other), found),
            None => found.push(change(path.key(name), Some(value), None)),
        }
    }
    for (name, value) in after
        .iter()
        .filter(|(name, _)| find(before, name).is_none())
    {
        found.push(change(path.key(name), None, Some(value)));
    }
    let order = |these: &[(&str, &Value)], those: &[(&str, &Value)]| -> Value {
        let common = these.iter().filter(|(name, _)| find(those, name).is_some());
        common.map(|(name, _)| *name).collect()
    };
    let (before, after) = (order(before, after), order(after, before));
    if before != after {
        found.push(change(path.clone(), Some(&before), Some(&after)));
    }
}

fn change(path: ValuePath, before: Option<&Value>, after: Option<&Value>) -> Change {
    Change {
        path,
        before: before.cloned(),
        after: after.cloned(),
    }
}

/// The members of a map; none if the map is missing.
fn members(value: Option<&Value>) -> Option<Vec<(&str, &Value)>> {
    match value {
        None => Some(Vec::new()),
        Some(Value::Object(map)) => {
            let members = map.iter().map(|(key, value)| (key.as_str(), value));
            Some(members.collect())
        }
        Some(_) => None,
    }
}

/// The entries of a list in which each has a name; none if the list is missing.
fn entries(value: Option<&Value>) -> Option<Vec<(&str, &Value)>> {
    match value {
        None => Some(Vec::new()),
        Some(Value::Array(items)) => {
            let named = |item| Some((name_of(item)?, item));
            items.iter().map(named).collect()
        }
        Some(_) => None,
    }
}

fn name_of(entry: &Value) -> Option<&str> {
    entry.get("name").or_else(|| entry.get("id"))?.as_str()
}

fn find<'a>(among: &[(&str, &'a Value)], key: &str) -> Option<&'a Value> {
    let found = among.iter().find(|(name, _)| *name == key);
    found.map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn change_lines(before: &Value, after: &Value) -> Vec<String> {
        let line = |change: Change| {
            let (before, after) = (change.before(), change.after());
            format!("{}: {before} -> {after}", change.path)
        };
        changes(before, after).into_iter().map(line).collect()
    }

    fn route(name: &str, topic: &str) -> Value {
        json!({"name": name, "to": [{"topic": topic}]})
    }

    #[test]
    fn a_value_is_found_wherever_it_is() {
        let before =
            json!({"limits": {"max_hops": 8}, "routes": [route("a", "x"), route("b", "y")]});
        assert_eq!(change_lines(&before, &before), [""; 0]);
        let after = json!({"limits": {"max_hops": 9, "max_depth": 16}, "routes": [route("new", "z"), route("a", "x2"), route("b", "y")]});
        assert_eq!(
            change_lines(&before, &after),
            [
                "limits.max_hops: 8 -> 9",
                "limits.max_depth: not set -> 16",
                "routes.a.to[0].topic: \"x\" -> \"x2\"",
                "routes.new: not set -> {\"name\":\"new\",\"to\":[{\"topic\":\"z\"}]}",
            ]
        );
    }

    #[test]
    fn the_first_route_that_matches_decides_so_that_order_counts() {
        let before = json!({"routes": [route("a", "x"), route("b", "y")]});
        let after = json!({"routes": [route("b", "y"), route("a", "x")]});
        let other = ["routes: [\"a\",\"b\"] -> [\"b\",\"a\"]"];
        assert_eq!(change_lines(&before, &after), other);
    }

    #[test]
    fn sections_that_come_and_go_are_compared_by_their_members() {
        let before = json!({});
        let after = json!({"telemetry": {"log": "debug"}, "routes": [route("a", "x")]});
        let names = ["routes.a: not set", "telemetry.log: not set -> \"debug\""];
        for (line, name) in change_lines(&before, &after).iter().zip(names) {
            assert!(line.starts_with(name), "{line}");
        }
        let gone = ["routes.a: {", "telemetry.log: \"debug\" -> not set"];
        for (line, name) in change_lines(&after, &before).iter().zip(gone) {
            assert!(line.starts_with(name), "{line}");
        }
    }

    #[test]
    fn a_long_value_is_cut() {
        let long = "ü".repeat(MAX_SHOWN_CHARS);
        let lines = change_lines(&json!({"a": 1}), &json!({"a": long}));
        assert!(lines[0].chars().count() < MAX_SHOWN_CHARS + 20, "{lines:?}");
        assert!(lines[0].ends_with(" ..."), "{lines:?}");
    }
}
