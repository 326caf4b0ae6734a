//! The reference of the configuration file, generated from the schema that checks it.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write;

use serde_json::Value;

use super::file::json_schema;

/// `CONFIGURATION.md`: one table per section, with the type, default, bounds, effect and risk of every key.
fn reference() -> String {
    let schema = json_schema();
    let mut page = Page {
        schema: &schema,
        text: PREFACE.to_owned(),
        waiting: VecDeque::new(),
        seen: BTreeSet::new(),
    };
    page.sections();
    page.text
}

const PREFACE: &str = include_str!("reference.md");

/// A table that is still to be written.
struct Table<'a> {
    /// The path of its keys, such as `bindings[].mapping`.
    path: String,
    schema: &'a Value,
}

struct Page<'a> {
    schema: &'a Value,
    text: String,
    waiting: VecDeque<Table<'a>>,
    /// Definitions that already have a table. Definitions can be recursive: a condition may contain conditions.
    seen: BTreeSet<&'a str>,
}

impl<'a> Page<'a> {
    fn sections(&mut self) {
        self.waiting.push_back(Table {
            path: String::new(),
            schema: self.schema,
        });
        while let Some(table) = self.waiting.pop_front() {
            let variants = table.schema.get("oneOf").and_then(Value::as_array);
            match variants {
                None => self.table(&table.path, "", table.schema),
                Some(variants) => {
                    for variant in variants {
                        let tag = variant.pointer("/properties/type/const");
                        let tag = tag.and_then(Value::as_str).unwrap_or_default();
                        // Variants of a section share its path, so the tag tells them apart.
                        let path = table.path.replace("<name>", &format!("<{tag}>"));
                        self.table(&path, &format!(" of type `{tag}`"), variant);
                    }
                }
            }
        }
    }

    fn table(&mut self, path: &str, which: &str, schema: &'a Value) {
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
            return;
        };
        let heading = match path {
            "" => "The file".to_owned(),
            path => format!("`{path}`{which}"),
        };
        // Writing to a String cannot fail.
        let _ = write!(self.text, "\n## {heading}\n\n");
        if let Some(description) = schema.get("description").and_then(Value::as_str) {
            let (meaning, _) = meaning(description);
            let _ = write!(self.text, "{meaning}\n\n");
        }
        self.text.push_str(
            "| key | type | default | allowed | what it does | risk |\n|---|---|---|---|---|---|\n",
        );
        for (key, property) in properties {
            let row = self.row(path, key, property, is_required(schema, key));
            self.text.push_str(&row);
        }
    }

    fn row(&mut self, path: &str, key: &str, property: &'a Value, required: bool) -> String {
        let inner = match path {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        };
        let kind = self.kind(&inner, property);
        let description = property.get("description").and_then(Value::as_str);
        let (meaning, wrong) = meaning(description.unwrap_or_default());
        let cells = [
            format!("`{key}`"),
            kind,
            default(property, required),
            self.allowed(property),
            meaning,
            wrong,
        ];
        let cells = cells.map(|cell| cell.replace('|', "\\|"));
        format!("| {} |\n", cells.join(" | "))
    }

    /// The type of a value in words. Queues a table for each section that it meets.
    fn kind(&mut self, path: &str, property: &'a Value) -> String {
        let (name, schema) = self.resolve(property);
        if let Some(items) = schema.get("items") {
            return format!("list of {}", self.kind(&format!("{path}[]"), items));
        }
        if let Some(members) = schema.get("additionalProperties").filter(|m| m.is_object()) {
            return format!(
                "map of name to {}",
                self.kind(&format!("{path}.<name>"), members)
            );
        }
        if !self.allowed(schema).is_empty() && schema.get("type").is_none() {
            return "enum".to_owned();
        }
        if let Some(choices) = schema.get("anyOf").and_then(Value::as_array) {
            let kinds: Vec<_> = choices
                .iter()
                .map(|choice| self.kind(path, choice))
                .collect();
            return kinds.join(" or ");
        }
        if let Some(choices) = single_keys(schema) {
            return choices;
        }
        let is_section = schema.get("properties").is_some() || schema.get("oneOf").is_some();
        if !is_section {
            return scalar(schema);
        }
        if name.is_none_or(|name| self.seen.insert(name)) {
            self.waiting.push_back(Table {
                path: path.to_owned(),
                schema,
            });
        }
        format!("section `{path}`")
    }

    /// The name and schema of the definition that a property refers to, if any. Ignores `null` as an alternative.
    fn resolve(&self, property: &'a Value) -> (Option<&'a str>, &'a Value) {
        let choices = property.get("anyOf").and_then(Value::as_array);
        let mut solid = choices
            .into_iter()
            .flatten()
            .filter(|choice| choice.get("type").is_none_or(|ty| ty != "null"));
        let property = match (solid.next(), solid.next()) {
            (Some(only), None) => only,
            _ => property,
        };
        let mut resolved = (None, property);
        // A definition may be an alias of another.
        while let Some(found) = self.definition(resolved.1) {
            resolved = found;
        }
        resolved
    }

    fn definition(&self, property: &'a Value) -> Option<(Option<&'a str>, &'a Value)> {
        let name = property.get("$ref")?.as_str()?.strip_prefix("#/$defs/")?;
        Some((Some(name), self.schema.get("$defs")?.get(name)?))
    }

    /// The values allowed, as far as they can be listed or bounded.
    fn allowed(&self, property: &'a Value) -> String {
        let (_, schema) = self.resolve(property);
        let number = |key| schema.get(key).filter(|value| value.is_number());
        let enum_values = enum_values(schema);
        if !enum_values.is_empty() {
            return enum_values.join(", ");
        }
        if let Some([smallest, largest]) = schema
            .get("bounds")
            .and_then(Value::as_array)
            .map(Vec::as_slice)
        {
            return format!("{} to {}", bare(smallest), bare(largest));
        }
        let ranges = [
            ("minimum", "maximum", ""),
            ("minLength", "maxLength", " character"),
            ("minItems", "maxItems", " item"),
        ];
        let ranges = ranges.iter().filter_map(|(smallest, largest, unit)| {
            let with_unit = |number: &Value| match (*unit, number.as_u64()) {
                ("", _) => number.to_string(),
                (unit, Some(1)) => format!("1{unit}"),
                (unit, _) => format!("{number}{unit}s"),
            };
            match (number(smallest), number(largest)) {
                (Some(smallest), Some(largest)) => {
                    Some(format!("{smallest} to {}", with_unit(largest)))
                }
                (Some(smallest), None) if smallest.as_u64() != Some(0) => {
                    Some(format!("at least {}", with_unit(smallest)))
                }
                (None, Some(largest)) => Some(format!("at most {}", with_unit(largest))),
                _ => None,
            }
        });
        let pattern = schema.get("pattern").and_then(Value::as_str);
        let pattern = pattern.map(|pattern| format!("`{pattern}`"));
        ranges.chain(pattern).collect::<Vec<_>>().join(", ")
    }
}

/// The values of an enumeration.
fn enum_values(schema: &Value) -> Vec<String> {
    let choices = ["oneOf", "anyOf"]
        .iter()
        .find_map(|key| schema.get(*key).and_then(Value::as_array));
    let constants = choices.into_iter().flatten().filter_map(|choice| {
        choice.get("const").map(std::slice::from_ref).or_else(|| {
            choice
                .get("enum")
                .and_then(Value::as_array)
                .map(Vec::as_slice)
        })
    });
    let own = schema.get("enum").and_then(Value::as_array);
    let own = own.map(Vec::as_slice);
    let constant = schema.get("const").map(std::slice::from_ref);
    constants
        .chain(own)
        .chain(constant)
        .flatten()
        .map(|word| format!("`{}`", bare(word)))
        .collect()
}

/// Alternatives with one key each, such as the forms of a secret: `{file: …}` or `{env: …}`.
fn single_keys(schema: &Value) -> Option<String> {
    let variants = schema.get("oneOf")?.as_array()?;
    let keys = variants.iter().map(|variant| {
        let properties = variant.get("properties")?.as_object()?;
        let mut keys = properties.keys().filter(|key| *key != "type");
        match (keys.next(), properties.len()) {
            (Some(key), 1) => Some(format!("`{{{key}: …}}`")),
            _ => None,
        }
    });
    Some(keys.collect::<Option<Vec<_>>>()?.join(" or "))
}

fn scalar(schema: &Value) -> String {
    let format = schema.get("format").and_then(Value::as_str);
    if let Some(format) =
        format.filter(|format| super::value::FORMATS.iter().any(|(name, _)| name == format))
    {
        return format.replace('-', " ");
    }
    let types = match schema.get("type") {
        Some(Value::Array(types)) => types.iter().filter_map(Value::as_str).collect(),
        Some(Value::String(one)) => vec![one.as_str()],
        _ => Vec::new(),
    };
    let types: Vec<_> = types
        .into_iter()
        .filter_map(|name| match name {
            "string" => Some("text"),
            "integer" => Some("whole number"),
            "number" => Some("number"),
            "boolean" => Some("true or false"),
            "array" => Some("list"),
            "object" => Some("section"),
            _ => None,
        })
        .collect();
    types.join(" or ")
}

fn default(property: &Value, required: bool) -> String {
    if let Some(enum_values) = property.get("default_words") {
        return bare(enum_values);
    }
    match property.get("default") {
        _ if required => "required".to_owned(),
        None | Some(Value::Null) => "none".to_owned(),
        Some(Value::Object(_)) => String::new(),
        Some(Value::Array(items)) if items.is_empty() => "empty".to_owned(),
        Some(value) => format!("`{}`", bare(value)),
    }
}

fn bare(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

fn is_required(schema: &Value, key: &str) -> bool {
    schema
        .get("required")
        .and_then(Value::as_array)
        .is_some_and(|required| required.iter().any(|name| name == key))
}

/// The effect of a key, and its risk: the paragraph that begins with `Wrong:`.
fn meaning(description: &str) -> (String, String) {
    let flat = |text: &str| text.replace('\n', " ");
    let (wrong, meaning): (Vec<_>, Vec<_>) = description
        .split("\n\n")
        .partition(|paragraph| paragraph.starts_with("Wrong:"));
    let wrong = wrong
        .iter()
        .map(|paragraph| capital(&flat(paragraph.trim_start_matches("Wrong:").trim())));
    let meaning = meaning.iter().map(|paragraph| flat(paragraph));
    (
        meaning.collect::<Vec<_>>().join(" "),
        wrong.collect::<Vec<_>>().join(" "),
    )
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(chars).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Map, json};

    use super::*;
    use crate::blessed::assert_written;

    #[test]
    fn the_reference_in_the_tree_is_the_generated_one() {
        assert_written("CONFIGURATION.md", &reference());
    }

    /// The keys of every section, by its path.
    fn keys(
        page: &Page<'_>,
        path: &str,
        value: &Value,
        found: &mut BTreeMap<String, BTreeSet<String>>,
    ) {
        let (_, schema) = page.resolve(value);
        if let Some(items) = schema.get("items") {
            return keys(page, &format!("{path}[]"), items, found);
        }
        if let Some(members) = schema
            .get("additionalProperties")
            .filter(|it| it.is_object())
        {
            return keys(page, &format!("{path}.<name>"), members, found);
        }
        if single_keys(schema).is_some() {
            return;
        }
        let variants = schema.get("oneOf").and_then(Value::as_array);
        for section in variants.map_or(std::slice::from_ref(schema), Vec::as_slice) {
            let properties = section.get("properties").and_then(Value::as_object);
            for (key, property) in properties.into_iter().flatten() {
                found
                    .entry(path.to_owned())
                    .or_default()
                    .insert(key.clone());
                let inner = format!("{path}.{key}");
                keys(page, inner.trim_start_matches('.'), property, found);
            }
        }
    }

    #[test]
    fn the_chart_knows_every_key() {
        let schema = json_schema();
        let page = Page {
            schema: &schema,
            text: String::new(),
            waiting: VecDeque::new(),
            seen: BTreeSet::new(),
        };
        let mut found = BTreeMap::new();
        keys(&page, "", &schema, &mut found);
        let line = |(path, keys)| format!("  {}: {}", json!(path), json!(keys));
        let lines: Vec<_> = found.iter().map(line).collect();
        let file = format!("{{\n{}\n}}\n", lines.join(",\n"));
        assert_written("../helm/a2abus/files/keys.json", &file);
    }

    #[test]
    fn every_key_has_a_description() {
        fn visit(path: &str, schema: &Value) {
            if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
                for (key, property) in properties {
                    // The key of a section of one key, and the tag, are described with their section.
                    let outer = (properties.len() == 1 || key == "type").then_some(schema);
                    let has_description = [Some(property), outer]
                        .into_iter()
                        .flatten()
                        .any(|schema| schema.get("description").is_some());
                    assert!(has_description, "{path}.{key} has no description");
                }
            }
            let variants = schema.get("oneOf").and_then(Value::as_array);
            for variant in variants.into_iter().flatten() {
                visit(path, variant);
            }
        }
        let schema = json_schema();
        visit("", &schema);
        for (name, definition) in schema["$defs"].as_object().unwrap_or(&Map::new()) {
            visit(name, definition);
        }
    }
}
