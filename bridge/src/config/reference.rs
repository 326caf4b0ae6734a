//! The reference of the configuration file, generated from the schema that checks it.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use super::file::json_schema;

/// `CONFIGURATION.md`: an index, and one table per section, with the type, default, bounds, effect and risk of every
/// key.
fn reference() -> String {
    let schema = json_schema();
    let mut page = Page::new(&schema);
    let root = Section {
        path: String::new(),
        schema: &schema,
    };
    page.section(&root, 0);
    PREFACE.replace(INDEX, &page.index) + &page.text
}

const PREFACE: &str = include_str!("reference.md");
/// The line of the preface that the index replaces.
const INDEX: &str = "<!-- index -->\n";

/// A section of the file, or one of its entries.
struct Section<'a> {
    /// The path of its keys, such as `bindings[].mapping`.
    path: String,
    schema: &'a Value,
}

/// The keys of a section, or of one of its types.
struct Table<'a> {
    path: String,
    heading: String,
    schema: &'a Value,
}

/// The description of a key or a section.
struct Description {
    /// What it does.
    meaning: String,
    /// The lists that belong to it, which do not fit into a cell.
    details: String,
    /// The paragraph that begins with `Wrong:`.
    risk: String,
}

struct Page<'a> {
    schema: &'a Value,
    /// A link to each table.
    index: String,
    text: String,
    /// The details of the keys of the current table.
    details: String,
    /// The sections in the current table, which follow it.
    inner: Vec<Section<'a>>,
    /// The links to the tables of each definition. Definitions can be recursive: a condition may contain conditions.
    links: BTreeMap<&'a str, String>,
}

impl<'a> Page<'a> {
    fn new(schema: &'a Value) -> Self {
        Self {
            schema,
            index: String::new(),
            text: String::new(),
            details: String::new(),
            inner: Vec::new(),
            links: BTreeMap::new(),
        }
    }

    /// Writes each table of a section, followed by the sections in it.
    fn section(&mut self, section: &Section<'a>, depth: usize) {
        for table in section.tables() {
            self.table(&table, depth);
            for inner in std::mem::take(&mut self.inner) {
                self.section(&inner, depth + 1);
            }
        }
    }

    fn table(&mut self, table: &Table<'a>, depth: usize) {
        let (heading, schema) = (&table.heading, table.schema);
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
            return;
        };
        let indent = "  ".repeat(depth.saturating_sub(1));
        let level = if depth > 1 { "###" } else { "##" };
        // Writing to a String cannot fail.
        let _ = writeln!(self.index, "{indent}- {}", link(heading));
        let _ = write!(self.text, "\n{level} {heading}\n\n");
        if let Some(description) = schema.get("description").and_then(Value::as_str) {
            let Description {
                meaning, details, ..
            } = Description::new(description);
            for paragraph in [meaning, details].iter().filter(|it| !it.is_empty()) {
                let _ = write!(self.text, "{paragraph}\n\n");
            }
        }
        self.text.push_str(
            "| key | type | default | allowed | what it does | risk |\n|---|---|---|---|---|---|\n",
        );
        for (key, property) in properties {
            let row = self.row(&table.path, key, property, is_required(schema, key));
            self.text.push_str(&row);
        }
        let details = std::mem::take(&mut self.details);
        self.text.push_str(&details);
    }

    fn row(&mut self, path: &str, key: &str, property: &'a Value, required: bool) -> String {
        let inner = match path {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        };
        let kind = self.kind(&inner, property);
        let description = property.get("description").and_then(Value::as_str);
        let Description {
            mut meaning,
            details,
            risk,
        } = Description::new(description.unwrap_or_default());
        if !details.is_empty() {
            let heading = format!("`{inner}`");
            let _ = write!(meaning, " [More](#{}).", anchor(&heading));
            let _ = write!(self.details, "\n#### {heading}\n\n{details}\n");
        }
        let cells = [
            format!("`{key}`"),
            kind,
            default(property, required),
            self.allowed(property),
            meaning,
            risk,
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
        if let Some(links) = name.and_then(|name| self.links.get(name)) {
            return links.clone();
        }
        let section = Section {
            path: path.to_owned(),
            schema,
        };
        let links = section.links();
        if let Some(name) = name {
            self.links.insert(name, links.clone());
        }
        self.inner.push(section);
        links
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

// === impl Section ===

impl<'a> Section<'a> {
    /// Its table, or one for each of its types.
    fn tables(&self) -> Vec<Table<'a>> {
        let (path, schema) = (&self.path, self.schema);
        let Some(variants) = schema.get("oneOf").and_then(Value::as_array) else {
            let heading = match path.as_str() {
                "" => "The file".to_owned(),
                path => format!("`{path}`"),
            };
            return vec![Table {
                path: path.clone(),
                heading,
                schema,
            }];
        };
        let table = |variant: &'a Value| {
            let tag = variant.pointer("/properties/type/const");
            let tag = tag.and_then(Value::as_str).unwrap_or_default();
            // Variants of a section share its path, so the tag tells them apart.
            let path = path.replace("<name>", &format!("<{tag}>"));
            Table {
                heading: format!("`{path}` of type `{tag}`"),
                path,
                schema: variant,
            }
        };
        variants.iter().map(table).collect()
    }

    /// The type of a key that has this section as its value.
    fn links(&self) -> String {
        let links = self.tables().into_iter().map(|table| link(&table.heading));
        format!("section {}", links.collect::<Vec<_>>().join(" or "))
    }
}

// === impl Description ===

impl Description {
    /// The parts of a documentation comment. A paragraph that begins with `- ` is a list.
    fn new(text: &str) -> Self {
        let mut parts = (Vec::new(), Vec::new(), Vec::new());
        for paragraph in text.split("\n\n") {
            if let Some(risk) = paragraph.strip_prefix("Wrong:") {
                parts.2.push(capital(&risk.trim().replace('\n', " ")));
            } else if paragraph.starts_with("- ") {
                parts.1.push(paragraph);
            } else {
                parts.0.push(paragraph.replace('\n', " "));
            }
        }
        Self {
            meaning: parts.0.join(" "),
            details: parts.1.join("\n\n"),
            risk: parts.2.join(" "),
        }
    }
}

/// A link to a heading of the page.
fn link(heading: &str) -> String {
    format!("[{heading}](#{})", anchor(heading))
}

/// The anchor of a heading, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let is_kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let kept: String = heading.to_lowercase().chars().filter(is_kept).collect();
    kept.replace(' ', "-")
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(chars).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Map, json};

    use super::*;
    use crate::blessed::assert_written;

    #[test]
    fn the_reference_in_the_tree_is_the_generated_one() {
        assert_written("CONFIGURATION.md", &reference());
    }

    #[test]
    fn a_list_does_not_go_into_a_cell() {
        let schema = json!({
            "properties": { "key": { "description": "What\nit does.\n\n- one\n- two\n\nWrong: bad." } },
        });
        let mut page = Page::new(&schema);
        let section = Section {
            path: "outer[]".to_owned(),
            schema: &schema,
        };
        page.section(&section, 1);
        assert_eq!(page.index, "- [`outer[]`](#outer)\n");
        let cells = "| What it does. [More](#outerkey). | Bad. |\n";
        let details = "\n#### `outer[].key`\n\n- one\n- two\n";
        assert!(
            page.text.ends_with(&format!("{cells}{details}")),
            "{}",
            page.text
        );
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
        let page = Page::new(&schema);
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
