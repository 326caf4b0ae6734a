//! Is every value, taken alone, what it should be?
//!
//! The JSON Schema generated from the structs is the judge; this module says what it means in words a person can act
//! on. No message repeats a value that could be a secret.

use std::collections::BTreeSet;
use std::time::Duration;

use bytesize::ByteSize;
use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::paths::Location;
use jsonschema::{Keyword, ValidationError, Validator};
use serde_json::{Map, Value};

use super::nearest::nearest;
use super::path::ValuePath;
use super::problem::ConfigErrors;
use super::raw::Node;
use super::value::{FORMATS, TextFormat};

/// Checks every value alone against the schema of the file and notes every problem.
pub(super) fn check(root: &Node, schema: &Value, problems: &mut ConfigErrors) {
    let instance = root.to_json();
    match validator(schema) {
        Ok(validator) => {
            let mut report = Report {
                schema,
                root,
                problems,
            };
            for error in validator.iter_errors(&instance) {
                report.add(&error);
            }
        }
        Err(error) => problems.error(
            root.site(&ValuePath::root()),
            ValuePath::root(),
            format!("the schema of this program is broken: {error}"),
        ),
    }
}

/// Checks one section against its schema; its first problem in words.
pub(super) fn check_section(section: &Value, schema: &Value) -> Result<(), String> {
    let validator = validator(schema).map_err(|error| error.to_string())?;
    let first = validator.iter_errors(section).next();
    first.map_or(Ok(()), |error| Err(error.to_string()))
}

fn validator(schema: &Value) -> Result<Validator, ValidationError<'static>> {
    let mut options = jsonschema::options()
        .should_validate_formats(true)
        .with_keyword("bounds", bounds);
    for (name, check) in FORMATS {
        options = options.with_format(*name, move |text: &str| check(text).is_ok());
    }
    options.build(schema)
}

// === the keyword `bounds` ===

struct Bounds {
    format: String,
    smallest: String,
    largest: String,
}

fn bounds<'a>(
    parent: &'a Map<String, Value>,
    bounds: &'a Value,
    _: Location,
) -> Result<Box<dyn for<'i> Keyword<'i>>, ValidationError<'a>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(Box::new(Bounds {
        format: parent.get("format").map(text).unwrap_or_default(),
        smallest: bounds.get(0).map(text).unwrap_or_default(),
        largest: bounds.get(1).map(text).unwrap_or_default(),
    }))
}

impl Bounds {
    fn holds(&self, value: &Value) -> bool {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => return true,
        };
        if self.format == Duration::FORMAT {
            self.holds_as::<Duration>(&text)
        } else {
            self.holds_as::<ByteSize>(&text)
        }
    }

    /// Text that cannot be read is the business of `format`.
    fn holds_as<T: TextFormat + Ord>(&self, text: &str) -> bool {
        match (
            T::read(&self.smallest),
            T::read(text),
            T::read(&self.largest),
        ) {
            (Ok(smallest), Ok(value), Ok(largest)) => smallest <= value && value <= largest,
            _ => true,
        }
    }
}

impl<'i> Keyword<'i> for Bounds {
    fn validate(&self, instance: &'i Value) -> Result<(), ValidationError<'i>> {
        if self.holds(instance) {
            return Ok(());
        }
        let Self {
            smallest, largest, ..
        } = self;
        Err(ValidationError::custom(format!(
            "out of bounds: write {smallest} to {largest}"
        )))
    }

    fn is_valid(&self, instance: &'i Value) -> bool {
        self.holds(instance)
    }
}

// === what an error means ===

struct Report<'a> {
    schema: &'a Value,
    root: &'a Node,
    problems: &'a mut ConfigErrors,
}

impl Report<'_> {
    fn add(&mut self, error: &ValidationError<'_>) {
        let path = self.root.path(error.instance_path().as_str());
        let keyword = error.schema_path().as_str();
        let parent = keyword.rsplit_once('/').map_or("", |(parent, _)| parent);
        let schema = self.schema.pointer(parent).unwrap_or(&Value::Null);
        match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected } => {
                for key in unexpected {
                    let site = self.root.key_site(&path, key);
                    let message = unknown_key(key, schema);
                    self.problems.error(site, path.key(key), message);
                }
            }
            ValidationErrorKind::Required { property } => {
                let key = property.as_str().unwrap_or_default();
                let message = missing_key(key, schema);
                let site = self.root.site(&path);
                self.problems.error(site, path.key(key), message);
            }
            ValidationErrorKind::PropertyNames { error: name } => {
                let key = name.instance().as_str().unwrap_or_default();
                let site = self.root.key_site(&path, key);
                let message = words(name, &Value::Null);
                self.problems.error(site, path.key(key), message);
            }
            ValidationErrorKind::AnyOf { context }
            | ValidationErrorKind::OneOfNotValid { context } => self.choice(error, context, &path),
            _ => {
                let site = self.root.site(&path);
                self.problems.error(site, path, words(error, schema));
            }
        }
    }

    /// None of several shapes fits: the problems of the one that was meant, or else what the shapes are.
    fn choice(
        &mut self,
        error: &ValidationError<'_>,
        context: &[Vec<ValidationError<'static>>],
        path: &ValuePath,
    ) {
        let here = error.instance_path();
        let parent = error.schema_path().as_str().rsplit_once('/');
        let schema = parent.and_then(|(parent, _)| self.schema.pointer(parent));
        if let Some(message) = schema.and_then(|schema| written_secret(error.instance(), schema)) {
            let site = self.root.site(path);
            return self.problems.error(site, path.clone(), message);
        }
        let meant = context
            .iter()
            .filter(|branch| !branch.iter().any(|error| is_other_shape(error, here)))
            .min_by_key(|branch| branch.len());
        if let Some(branch) = meant {
            for error in branch {
                self.add(error);
            }
            return;
        }
        let constants: Vec<(&Location, &Value)> =
            context.iter().flatten().filter_map(constant).collect();
        let (path, message) = match constants.first() {
            Some((at, _)) => {
                let allowed: Vec<&str> = constants
                    .iter()
                    .filter_map(|(_, value)| value.as_str())
                    .collect();
                let path = self.root.path(at.as_str());
                let given = error
                    .instance()
                    .pointer(at.as_str().strip_prefix(here.as_str()).unwrap_or_default())
                    .and_then(Value::as_str);
                (path, not_allowed(given, &allowed))
            }
            None => {
                let wanted = context.iter().flatten().filter_map(wanted_type);
                let wanted: BTreeSet<_> = wanted.collect();
                (
                    path.clone(),
                    wrong_type(error.instance(), &Vec::from_iter(wanted)),
                )
            }
        };
        let site = self.root.site(&path);
        self.problems.error(site, path, message);
    }
}

/// A secret that stands in the file itself, where a reference to it is needed.
fn written_secret(instance: &Value, schema: &Value) -> Option<String> {
    if instance.is_object() || instance.is_array() || instance.is_null() {
        return None;
    }
    let shapes = schema.get("oneOf")?.as_array()?.iter();
    let shapes = shapes.filter_map(|shape| shape.get("properties")?.as_object()?.keys().next());
    let mut forms = Vec::new();
    for shape in shapes {
        forms.push(match shape.as_str() {
            "env" => "{env: NAME}",
            "file" => "{file: PATH}",
            "sha256" => "{sha256: HEX}",
            _ => return None,
        });
    }
    forms.sort_unstable();
    (forms.len() > 1).then(|| {
        let forms = forms.join(" or ");
        format!("secrets must not be in this file: write {forms}")
    })
}

/// Whether the error says that another shape was meant: another type, or another tag.
fn is_other_shape(error: &ValidationError<'_>, here: &Location) -> bool {
    match error.kind() {
        ValidationErrorKind::Type { .. } | ValidationErrorKind::Enum { .. } => {
            error.instance_path() == here
        }
        ValidationErrorKind::Constant { .. } => true,
        _ => false,
    }
}

fn constant<'a>(error: &'a ValidationError<'_>) -> Option<(&'a Location, &'a Value)> {
    match error.kind() {
        ValidationErrorKind::Constant { expected_value } => {
            Some((error.instance_path(), expected_value))
        }
        _ => None,
    }
}

fn wanted_type(error: &ValidationError<'_>) -> Option<String> {
    match error.kind() {
        ValidationErrorKind::Type { kind } => Some(type_names(kind).join(" or ")),
        _ => None,
    }
}

fn type_names(kind: &TypeKind) -> Vec<&'static str> {
    let name = |name: &str| match name {
        "string" => Some("a text"),
        "integer" => Some("a whole number"),
        "number" => Some("a number"),
        "boolean" => Some("true or false"),
        "array" => Some("a list"),
        "object" => Some("a section of keys"),
        _ => None,
    };
    match kind {
        TypeKind::Single(one) => name(&one.to_string()).into_iter().collect(),
        TypeKind::Multiple(several) => several
            .iter()
            .filter_map(|one| name(&one.to_string()))
            .collect(),
    }
}

fn unknown_key(key: &str, schema: &Value) -> String {
    let known: Vec<&str> = schema
        .get("properties")
        .and_then(Value::as_object)
        .map(|properties| properties.keys().map(String::as_str).collect())
        .unwrap_or_default();
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

/// The first sentence of a description, as the end of another one.
fn first_sentence(text: &str) -> String {
    let line = text
        .split("\n\n")
        .next()
        .unwrap_or_default()
        .replace('\n', " ");
    let sentence = line.split(". ").next().unwrap_or_default();
    let sentence = sentence.trim_end_matches('.');
    let mut chars = sentence.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => String::new(),
    }
}

fn not_allowed(given: Option<&str>, allowed: &[&str]) -> String {
    let list = allowed.join(", ");
    match given.and_then(|given| nearest(given, allowed)) {
        Some(near) => format!("not allowed: did you mean {near}? The values are {list}"),
        None => format!("not allowed: the values are {list}"),
    }
}

fn wrong_type(instance: &Value, wanted: &[impl AsRef<str>]) -> String {
    let wanted: Vec<&str> = wanted
        .iter()
        .map(AsRef::as_ref)
        .filter(|wanted| !wanted.is_empty())
        .collect();
    let given = match instance {
        Value::Null => return format!("is empty: {} is wanted", wanted.join(" or ")),
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a section of keys",
    };
    let scalar = matches!(instance, Value::Number(_) | Value::Bool(_));
    let hint = match wanted.as_slice() {
        ["a text"] if scalar => ": put it in quotes",
        ["a list"] if instance.is_string() => ": put it in brackets",
        _ => "",
    };
    format!("{} is wanted, not {given}{hint}", wanted.join(" or "))
}

/// What an error of a single keyword means. `schema` is the object that the keyword is in.
fn words(error: &ValidationError<'_>, schema: &Value) -> String {
    use ValidationErrorKind as Kind;
    match error.kind() {
        Kind::Type { kind } => unwritten(error.instance(), schema)
            .unwrap_or_else(|| wrong_type(error.instance(), &type_names(kind))),
        Kind::Format { format } => format_message(format, error.instance()),
        Kind::Custom { message, .. } => message.clone(),
        Kind::Minimum { .. } | Kind::Maximum { .. } => range(schema),
        Kind::MinItems { limit } => format!("too few: write at least {limit}"),
        Kind::MaxItems { limit } => format!("too many: write at most {limit}"),
        Kind::MinLength { limit: 1 } => "must not be empty".to_owned(),
        Kind::MinLength { limit } => format!("too short: write at least {limit} characters"),
        Kind::MaxLength { limit } => format!("too long: write at most {limit} characters"),
        Kind::MinProperties { .. } => {
            let known = schema.get("properties").and_then(Value::as_object);
            let known: Vec<&str> = known
                .map(|known| known.keys().map(String::as_str).collect())
                .unwrap_or_default();
            format!("is empty: write at least one of {}", known.join(", "))
        }
        Kind::Constant { expected_value } => not_allowed(
            None,
            &expected_value.as_str().into_iter().collect::<Vec<_>>(),
        ),
        Kind::Enum { options } => {
            let options = options.as_array().map(Vec::as_slice).unwrap_or_default();
            let allowed: Vec<&str> = options.iter().filter_map(Value::as_str).collect();
            not_allowed(error.instance().as_str(), &allowed)
        }
        Kind::Pattern { pattern } => format!("must match the pattern {pattern}"),
        _ => error.masked_with("the value").to_string(),
    }
}

/// A plain number where a duration or the like is wanted.
fn unwritten(instance: &Value, schema: &Value) -> Option<String> {
    let format = schema.get("format")?.as_str()?;
    let number = instance.as_number()?.to_string();
    let (_, check) = FORMATS.iter().find(|(name, _)| *name == format)?;
    check(&number).err()
}

fn format_message(format: &str, instance: &Value) -> String {
    let text = instance.as_str().unwrap_or_default();
    FORMATS
        .iter()
        .find(|(name, _)| *name == format)
        .and_then(|(_, check)| check(text).err())
        .unwrap_or_else(|| format!("not a {format}"))
}

fn range(schema: &Value) -> String {
    match (schema.get("minimum"), schema.get("maximum")) {
        (Some(smallest), Some(largest)) => {
            format!("out of bounds: write {smallest} to {largest}")
        }
        (Some(smallest), None) => format!("too small: write at least {smallest}"),
        (None, Some(largest)) => format!("too large: write at most {largest}"),
        (None, None) => "out of bounds".to_owned(),
    }
}
