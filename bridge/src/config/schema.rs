//! Is each value valid on its own?
//!
//! The structs of this folder declare every key once: name, type, default, bounds and documentation. `schemars`
//! generates a schema from them. This module checks the file against it, value by value, and reports every problem with
//! its position. No message repeats a value that could be a secret.
//!
//! To add a key, add a documented field to its struct, and its default to `Default` or `#[serde(default)]`. A range is
//! `#[schemars(range(min = 1))]`, the bounds of a duration or size `#[schemars(extend("bounds" = ["1s", "1h"]))]`, a
//! text with a syntax of its own is an `AsText<T>` (`value.rs`). Rules between several keys are in `validate`.

use std::collections::BTreeSet;
use std::time::Duration;

use bytesize::ByteSize;
use regex::Regex;
use serde_json::{Number, Value};

use super::nearest::nearest;
use super::path::ValuePath;
use super::problem::ConfigErrors;
use super::raw::{Content, Member, Node};
use super::value::{FORMATS, TextFormat};

/// Checks each value against the schema of the file and reports every problem.
pub(super) fn check(root: &Node, schema: &Value, problems: &mut ConfigErrors) {
    for fault in faults(root, schema) {
        let site = match fault.of_key {
            true => root.key_site(&fault.path),
            false => root.site(&fault.path),
        };
        problems.error(site, fault.path, fault.message);
    }
}

/// Checks one section against its schema and returns its first problem.
pub(super) fn check_section(section: Value, schema: &Value) -> Result<(), String> {
    let section = Node::from_json(section);
    let first = faults(&section, schema).into_iter().next();
    first.map_or(Ok(()), |fault| Err(fault.message))
}

fn faults<'a>(root: &'a Node, schema: &'a Value) -> Vec<Fault<'a>> {
    let mut walk = SchemaWalker {
        definitions: schema.get("$defs"),
        faults: Vec::new(),
    };
    walk.value(root, &ValuePath::root(), schema);
    walk.faults
}

/// A value that does not match the schema.
struct Fault<'a> {
    path: ValuePath,
    /// Whether the key is wrong, not its value.
    of_key: bool,
    message: String,
    wants: Expected<'a>,
}

/// What would be valid instead. If several shapes are allowed, it shows which of them the user meant.
enum Expected<'a> {
    /// Another value of the same shape.
    Value,
    /// Another type, in words.
    Type(String),
    /// One of these words.
    OneOf(Vec<&'a str>),
    /// This tag, instead of the given one. Tags distinguish the shapes.
    Tag(Option<&'a str>, &'a str),
}

struct SchemaWalker<'a> {
    definitions: Option<&'a Value>,
    faults: Vec<Fault<'a>>,
}

// === impl SchemaWalker ===

impl<'a> SchemaWalker<'a> {
    fn fault(&mut self, path: &ValuePath, wants: Expected<'a>, message: String) {
        self.faults.push(Fault {
            path: path.clone(),
            of_key: false,
            message,
            wants,
        });
    }

    /// Reports the problem of a value, or of its key, if the check failed.
    fn unless(&mut self, path: &ValuePath, of_key: bool, checked: Result<(), String>) {
        self.faults.extend(checked.err().map(|message| Fault {
            path: path.clone(),
            of_key,
            message,
            wants: Expected::Value,
        }));
    }

    fn value(&mut self, node: &'a Node, path: &ValuePath, schema: &'a Value) {
        let name = schema.get("$ref").and_then(Value::as_str);
        let name = name.and_then(|name| name.strip_prefix("#/$defs/"));
        if let Some(definition) = name.and_then(|name| self.definitions?.get(name)) {
            self.value(node, path, definition);
        }
        for shapes in [schema.get("oneOf"), schema.get("anyOf")] {
            if let Some(Value::Array(shapes)) = shapes {
                self.choice(node, path, shapes);
            }
        }
        let types = texts(schema.get("type"));
        if !types.is_empty() && !types.iter().any(|name| node.is_a(name)) {
            let names = types.iter().filter_map(|name| type_name(name));
            let expected = names.collect::<Vec<_>>().join(" or ");
            let message = unwritten(node, schema).unwrap_or_else(|| wrong_type(node, &expected));
            return self.fault(path, Expected::Type(expected), message);
        }
        match &node.content {
            Content::Map(members) => self.members(members, path, schema),
            Content::List(items) => {
                let (limits, wrong) = (["minItems", "maxItems"], ["too few", "too many"]);
                let checked = in_limits(items.len(), schema, limits, wrong, "");
                self.unless(path, false, checked);
                let schema = schema.get("items").unwrap_or(&Value::Null);
                for (index, item) in items.iter().enumerate() {
                    self.value(item, &path.index(index), schema);
                }
            }
            Content::Scalar(value) => self.scalar(value, path, schema),
        }
    }

    fn members(&mut self, members: &'a [Member], path: &ValuePath, schema: &'a Value) {
        let properties = schema.get("properties");
        let others = schema.get("additionalProperties");
        for (key, _, node) in members {
            let path = path.key(key);
            let format = schema.pointer("/propertyNames/format");
            self.unless(&path, true, in_format(format, key));
            match properties.and_then(|known| known.get(key)).or(others) {
                Some(Value::Bool(false)) => self.unless(&path, true, Err(unknown_key(key, schema))),
                Some(schema) => self.value(node, &path, schema),
                None => {}
            }
        }
        for key in texts(schema.get("required")) {
            if !members.iter().any(|(name, ..)| name == key) {
                self.unless(&path.key(key), false, Err(missing_key(key, schema)));
            }
        }
        if members.is_empty() && schema.get("minProperties").is_some() {
            let known = keys(schema).join(", ");
            let message = format!("is empty: write at least one of {known}");
            self.unless(path, false, Err(message));
        }
    }

    fn scalar(&mut self, value: &'a Value, path: &ValuePath, schema: &'a Value) {
        let given = value.as_str();
        if let Some(Value::String(expected)) = schema.get("const")
            && given != Some(expected)
        {
            let message = not_allowed(None, &[expected]);
            return self.fault(path, Expected::Tag(given, expected), message);
        }
        if let Some(Value::Array(values)) = schema.get("enum")
            && !values.contains(value)
        {
            let values = texts(schema.get("enum"));
            let message = not_allowed(given, &values);
            return self.fault(path, Expected::OneOf(values), message);
        }
        let checked = match value {
            Value::String(text) => in_text(text, schema),
            Value::Number(number) => {
                let wrong = ["out of bounds"; 2];
                in_limits(number.clone(), schema, ["minimum", "maximum"], wrong, "")
                    .and_then(|()| in_bounds(&number.to_string(), schema))
            }
            _ => Ok(()),
        };
        self.unless(path, false, checked);
    }

    /// Checks that one of several shapes fits. Otherwise reports the problems of the shape that the user meant, or
    /// lists the shapes.
    fn choice(&mut self, node: &'a Node, path: &ValuePath, shapes: &'a [Value]) {
        // `null` is an alternative only for a value that is null.
        let is_there = !node.is_a("null");
        let is_null = |shape: &Value| shape.get("type").is_some_and(|name| name == "null");
        let mut given = shapes.iter().filter(|shape| !(is_there && is_null(shape)));
        if let (Some(only), None) = (given.next(), given.next()) {
            return self.value(node, path, only);
        }
        let mut tried = Vec::new();
        for shape in shapes {
            let before = std::mem::take(&mut self.faults);
            self.value(node, path, shape);
            let faults = std::mem::replace(&mut self.faults, before);
            if faults.is_empty() {
                return;
            }
            tried.push(faults);
        }
        if let Some(message) = written_secret(node, path, shapes) {
            // Reported as a wrong type, so that it does not hide the other shapes of an outer choice.
            return self.fault(path, Expected::Type(String::new()), message);
        }
        let is_meant = |faults: &&Vec<Fault<'_>>| !faults.iter().any(|it| it.is_of_other(path));
        if let Some(meant) = tried.iter().filter(is_meant).map(Vec::len).min() {
            let at = |faults: &Vec<Fault<'_>>| faults.len() == meant && is_meant(&faults);
            let faults = tried.into_iter().find(at);
            return self.faults.extend(faults.into_iter().flatten());
        }
        let (mut values, mut types, mut at) = (Vec::new(), BTreeSet::new(), None);
        for fault in tried.into_iter().flatten() {
            match fault.wants {
                Expected::Value => {}
                Expected::Type(name) => types.extend((!name.is_empty()).then_some(name)),
                Expected::OneOf(several) => values.extend(several),
                Expected::Tag(given, word) => {
                    values.push(word);
                    at = Some((fault.path, given));
                }
            }
        }
        let (path, given) = at.unwrap_or_else(|| (path.clone(), None));
        let message = match values.is_empty() {
            true => wrong_type(node, &Vec::from_iter(types).join(" or ")),
            false => not_allowed(given, &values),
        };
        self.unless(&path, false, Err(message));
    }
}

// === impl Fault ===

impl Fault<'_> {
    /// Whether the fault shows that the user meant another shape for the value at the path: its type or tag differs.
    fn is_of_other(&self, path: &ValuePath) -> bool {
        match self.wants {
            Expected::Value => false,
            Expected::Type(_) | Expected::OneOf(_) => self.path == *path,
            Expected::Tag(..) => true,
        }
    }
}

// === impl Node ===

impl Node {
    /// Its type, as JSON Schema names it.
    fn json_type(&self) -> &'static str {
        match &self.content {
            Content::List(_) => "array",
            Content::Map(_) => "object",
            Content::Scalar(Value::Null) => "null",
            Content::Scalar(Value::Bool(_)) => "boolean",
            Content::Scalar(Value::Number(number)) if number.is_f64() => "number",
            Content::Scalar(Value::Number(_)) => "integer",
            Content::Scalar(_) => "string",
        }
    }

    /// The whole number that is written as a fraction or with an exponent, such as `1e3`.
    fn whole_number(&self) -> Option<String> {
        let Content::Scalar(Value::Number(number)) = &self.content else {
            return None;
        };
        let value = number.as_f64().filter(|value| value.fract() == 0.0)?;
        // Larger ones are no longer exact.
        (value.abs() < 1e15).then(|| format!("{value:.0}"))
    }

    fn is_a(&self, name: &str) -> bool {
        let own = self.json_type();
        own == name || name == "number" && own == "integer"
    }
}

// === one value ===

fn in_text(text: &str, schema: &Value) -> Result<(), String> {
    in_format(schema.get("format"), text)?;
    in_bounds(text, schema)?;
    if text.is_empty() && schema.get("minLength").is_some_and(|least| *least == 1) {
        return Err("must not be empty".to_owned());
    }
    let (limits, wrong) = (["minLength", "maxLength"], ["too short", "too long"]);
    in_limits(text.chars().count(), schema, limits, wrong, " characters")?;
    match schema.get("pattern").and_then(Value::as_str) {
        Some(pattern) if !Regex::new(pattern).is_ok_and(|regex| regex.is_match(text)) => {
            Err(format!("must match the pattern {pattern}"))
        }
        _ => Ok(()),
    }
}

fn in_format(format: Option<&Value>, text: &str) -> Result<(), String> {
    let format = format.and_then(Value::as_str);
    let known = FORMATS.iter().find(|(name, _)| Some(*name) == format);
    known.map_or(Ok(()), |(_, check)| check(text))
}

/// Checks that a duration or size is between the two values of the keyword `bounds`.
fn in_bounds(text: &str, schema: &Value) -> Result<(), String> {
    let [smallest, largest] = texts(schema.get("bounds"))[..] else {
        return Ok(());
    };
    let holds = if schema
        .get("format")
        .is_some_and(|it| it == Duration::FORMAT)
    {
        is_between::<Duration>(smallest, text, largest)?
    } else {
        is_between::<ByteSize>(smallest, text, largest)?
    };
    holds
        .then_some(())
        .ok_or_else(|| format!("out of bounds: write {smallest} to {largest}"))
}

fn is_between<T: TextFormat + Ord>(from: &str, text: &str, to: &str) -> Result<bool, String> {
    let value = T::read(text)?;
    Ok(T::read(from)? <= value && value <= T::read(to)?)
}

/// Checks that a number or length is within two limits, which are keywords of the schema.
fn in_limits(
    value: impl Into<Number>,
    schema: &Value,
    limits: [&str; 2],
    wrong: [&str; 2],
    unit: &str,
) -> Result<(), String> {
    let value = value.into().as_f64();
    let [least, most] = limits.map(|limit| schema.get(limit));
    let wrong = if least.is_some_and(|least| value < least.as_f64()) {
        wrong[0]
    } else if most.is_some_and(|most| value > most.as_f64()) {
        wrong[1]
    } else {
        return Ok(());
    };
    let allowed = match (least, most) {
        (Some(least), Some(most)) => format!("{least} to {most}"),
        (Some(least), None) => format!("at least {least}"),
        (None, most) => format!("at most {}", most.unwrap_or(&Value::Null)),
    };
    Err(format!("{wrong}: write {allowed}{unit}"))
}

// === what a fault means ===

/// One text, or a list of texts.
fn texts(value: Option<&Value>) -> Vec<&str> {
    match value {
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        one => one.and_then(Value::as_str).into_iter().collect(),
    }
}

/// The keys of a section.
fn keys(schema: &Value) -> Vec<&str> {
    let keys = schema.get("properties").and_then(Value::as_object);
    keys.map(|keys| keys.keys().map(String::as_str).collect())
        .unwrap_or_default()
}

/// The message for a secret that is written in the file, or in a variable of the configuration, instead of a reference
/// to it.
fn written_secret(node: &Node, path: &ValuePath, shapes: &[Value]) -> Option<String> {
    if !matches!(&node.content, Content::Scalar(value) if !value.is_null()) {
        return None;
    }
    let mut forms = Vec::new();
    for shape in shapes {
        forms.push(match *keys(shape).first()? {
            "env" => ("env", "NAME"),
            "file" => ("file", "PATH"),
            "sha256" => ("sha256", "HEX"),
            _ => return None,
        });
    }
    forms.sort_unstable();
    // The variable may set this value, or a section or list around it.
    let is_own = |name: &&str| name.split("__").count() == path.steps().len();
    let form = |(key, value): (&str, &str)| match node.variable().filter(is_own) {
        Some(name) => format!("{name}__{}={value}", key.to_ascii_uppercase()),
        None => format!("{{{key}: {value}}}"),
    };
    let forms = Vec::from_iter(forms.into_iter().map(form)).join(" or ");
    let place = node.variable().unwrap_or("this file");
    Some(format!("secrets must not be in {place}: write {forms}"))
}

fn type_name(json_type: &str) -> Option<&'static str> {
    match json_type {
        "string" => Some("a string"),
        "integer" => Some("a whole number"),
        "number" => Some("a number"),
        "boolean" => Some("true or false"),
        "array" => Some("a list"),
        "object" => Some("a section of keys"),
        _ => None,
    }
}

fn unknown_key(key: &str, schema: &Value) -> String {
    let known = keys(schema);
    match nearest(key, &known) {
        Some(near) => format!("unknown key: did you mean {near}?"),
        None => format!("unknown key: the keys here are {}", known.join(", ")),
    }
}

fn missing_key(key: &str, schema: &Value) -> String {
    let description = schema
        .pointer(&format!("/properties/{key}/description"))
        .and_then(Value::as_str)
        .map(first_sentence)
        .filter(|sentence| !sentence.is_empty());
    match description {
        Some(description) => format!("is missing: {description}"),
        None => "is missing".to_owned(),
    }
}

/// The first sentence of a description, to complete another sentence.
fn first_sentence(text: &str) -> String {
    let line = text
        .split("\n\n")
        .next()
        .unwrap_or_default()
        .replace('\n', " ");
    let sentence = line.split(". ").next().unwrap_or_default();
    let mut chars = sentence.trim_end_matches('.').chars();
    chars.next().map_or_else(String::new, |first| {
        first.to_lowercase().chain(chars).collect()
    })
}

fn not_allowed(given: Option<&str>, allowed: &[&str]) -> String {
    let list = allowed.join(", ");
    match given.and_then(|given| nearest(given, allowed)) {
        Some(near) => format!("not allowed: did you mean {near}? The values are {list}"),
        None => format!("not allowed: the values are {list}"),
    }
}

fn wrong_type(node: &Node, expected: &str) -> String {
    if expected == "a whole number"
        && let Some(whole) = node.whole_number()
    {
        return format!("expected a whole number: write {whole}");
    }
    let own = if node.is_a("number") {
        "number"
    } else {
        node.json_type()
    };
    let Some(given) = type_name(own) else {
        return format!("is empty: expected {expected}");
    };
    let hint = match (expected, own) {
        ("a string", "number" | "boolean") => ": put it in quotes",
        ("a list", "string") => ": put it in brackets",
        _ => "",
    };
    format!("expected {expected}, not {given}{hint}")
}

/// The message for a plain number where a duration or size is expected.
fn unwritten(node: &Node, schema: &Value) -> Option<String> {
    match &node.content {
        Content::Scalar(Value::Number(number)) => {
            in_format(schema.get("format"), &number.to_string()).err()
        }
        _ => None,
    }
}
