//! The values of the file, with their positions.
//!
//! A tree of plain values, each with its position. Environment variables are applied before the checks, so a value from
//! a variable is checked like one from the file and reported under the variable's name.

use std::ffi::OsString;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

use super::path::{Segment, ValuePath};
use super::problem::{ConfigErrors, SourceLocation};
use crate::names::Name;

/// A value with its position.
#[derive(Debug, Clone)]
pub(super) struct Node {
    site: SourceLocation,
    pub(super) content: Content,
}

#[derive(Debug, Clone)]
pub(super) enum Content {
    Scalar(Value),
    List(Vec<Node>),
    /// The members, in the order of the file.
    Map(Vec<Member>),
}

/// A key, its position, and its value.
pub(super) type Member = (String, SourceLocation, Node);

/// The prefix of environment variables.
const PREFIX: &str = "A2ABUS_";

/// The keys of a reference to a secret.
const FORMS_OF_SECRETS: [&str; 3] = ["env", "file", "sha256"];

/// Variables with the prefix that are not configuration: those of the command line and of the tests.
const NOT_CONFIGURATION: &[&str] = &[
    "A2ABUS_CONFIG",
    "A2ABUS_LOG",
    "A2ABUS_REQUIRE_BROKERS",
    "A2ABUS_JAVA",
    "A2ABUS_KAFKA_HOME",
    "A2ABUS_NATS_SERVER",
    "A2ABUS_BLESS",
];
const NOT_CONFIGURATION_PREFIX: &str = "A2ABUS_TEST_";

/// What the parser says of a template or pattern without quotes, such as `agents.{targetagent}` or `>` between
/// brackets, `*`, or `*.>`.
const UNQUOTED: [&str; 4] = [
    "parsing a flow ",
    "scanning an anchor or alias",
    "unknown anchor",
    "unexpected character: `>'",
];

/// Reads the file and applies the environment variables. `None` when the file is not YAML; the problem is then
/// reported.
pub(super) fn read(
    text: &str,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    problems: &mut ConfigErrors,
) -> Option<Node> {
    let mut root = match parse(text) {
        Ok(root) => root,
        Err(error) => {
            let site =
                error
                    .location()
                    .map_or(SourceLocation::Whole {}, |at| SourceLocation::File {
                        line: at.line(),
                        column: at.column(),
                    });
            problems.error(site, ValuePath::root(), parser_message(&error));
            return None;
        }
    };
    if matches!(root.content, Content::Scalar(Value::Null)) {
        // A file that contains only comments has no sections.
        root = Node {
            site: SourceLocation::File { line: 1, column: 1 },
            content: Content::Map(Vec::new()),
        };
    }
    let mut variables: Vec<_> = environment.into_iter().collect();
    variables.sort();
    let mut host = None;
    for (name, value) in variables {
        match (name.to_str(), value.into_string()) {
            (Some("HOSTNAME"), Ok(value)) => host = Some(value),
            (Some(name), value) if is_configuration(name) => match value {
                Ok(value) => root.overlay(name, &value, problems),
                Err(_) => problems.error(variable(name), ValuePath::root(), "not UTF-8"),
            },
            _ => {}
        }
    }
    root.fill_instance(host);
    Some(root)
}

fn is_configuration(name: &str) -> bool {
    name.starts_with(PREFIX)
        && !name.starts_with(NOT_CONFIGURATION_PREFIX)
        && !NOT_CONFIGURATION.contains(&name)
        && !is_service_link(name)
}

/// Whether Kubernetes set the variable. For a Service `a2abus` or `a2abus-admin`, every pod of the namespace gets
/// `A2ABUS_SERVICE_HOST`, `A2ABUS_ADMIN_PORT_9090_TCP_ADDR` and the like.
fn is_service_link(name: &str) -> bool {
    let port = name.split_once("_PORT_").map(|(_, after)| after);
    !name.contains("__")
        && (name.ends_with("_SERVICE_HOST")
            || name.contains("_SERVICE_PORT")
            || name.ends_with("_PORT")
            || port.is_some_and(|after| after.starts_with(|c: char| c.is_ascii_digit())))
}

fn variable(name: &str) -> SourceLocation {
    SourceLocation::Environment {
        variable: name.to_owned(),
    }
}

fn parse(text: &str) -> Result<Node, serde_saphyr::Error> {
    let options = serde_saphyr::options! {
        strict_booleans: true,
    };
    serde_saphyr::from_str_with_options::<Spanned<Content>>(text, options).map(Node::from)
}

/// The parser's message without its position, which the problem already has.
fn parser_message(error: &serde_saphyr::Error) -> String {
    let error = cause(error);
    match error {
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
            return format!("duplicate key {key}");
        }
        // Only keys are read as text.
        serde_saphyr::Error::NullIntoString { .. } => return "a key is empty".to_owned(),
        serde_saphyr::Error::MultipleDocuments { .. } => {
            return "the file has several YAML documents: keep one, and remove the line `---` after it".to_owned();
        }
        serde_saphyr::Error::Budget { .. }
        | serde_saphyr::Error::AliasReplayCounterOverflow { .. }
        | serde_saphyr::Error::AliasReplayLimitExceeded { .. }
        | serde_saphyr::Error::AliasExpansionLimitExceeded { .. }
        | serde_saphyr::Error::AliasReplayStackDepthExceeded { .. } => {
            return "too many values, or too many levels of values: an alias (`*NAME`) counts as what it repeats".to_owned();
        }
        _ => {}
    }
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    let what = line.rsplit_once(" at line ").map_or(line, |(what, _)| what);
    let cure = match UNQUOTED.iter().any(|fault| what.contains(fault)) {
        true => ": close every [ and {, and put values with {, }, * or > in quotes",
        false => "",
    };
    format!("not YAML: {what}{cure}")
}

/// The error itself, without the lines around it and without the alias through which it was found.
fn cause(error: &serde_saphyr::Error) -> &serde_saphyr::Error {
    match error.without_snippet() {
        serde_saphyr::Error::AliasError { error, .. } => cause(error),
        error => error,
    }
}

// === impl Node ===

impl Node {
    /// The variable that set the value.
    pub(super) fn variable(&self) -> Option<&str> {
        match &self.site {
            SourceLocation::Environment { variable } => Some(variable),
            SourceLocation::File { .. } | SourceLocation::Whole {} => None,
        }
    }

    pub(super) fn is_map(&self) -> bool {
        matches!(self.content, Content::Map(_))
    }

    /// A value that does not come from a file.
    pub(super) fn from_json(value: Value) -> Self {
        let site = SourceLocation::Whole {};
        let content = Content::from_json(value, &site);
        Self { site, content }
    }

    /// The value without positions.
    pub(super) fn to_json(&self) -> Value {
        match &self.content {
            Content::Scalar(value) => value.clone(),
            Content::List(items) => Value::Array(items.iter().map(Self::to_json).collect()),
            Content::Map(members) => Value::Object(
                members
                    .iter()
                    .map(|(key, _, node)| (key.clone(), node.to_json()))
                    .collect::<Map<_, _>>(),
            ),
        }
    }

    /// The position of the value, or of the nearest enclosing value.
    pub(super) fn site(&self, path: &ValuePath) -> SourceLocation {
        let mut node = self;
        let mut site = &self.site;
        for step in path.steps() {
            let Some((at, next)) = node.step(step) else {
                break;
            };
            node = next;
            site = match &node.content {
                // An empty value has no position of its own.
                Content::Scalar(Value::Null) => at,
                _ => &node.site,
            };
        }
        site.clone()
    }

    /// The position of the key of the value at `path`, or of the nearest enclosing value.
    pub(super) fn key_site(&self, path: &ValuePath) -> SourceLocation {
        let mut node = self;
        let mut site = &self.site;
        for step in path.steps() {
            let Some((at, next)) = node.step(step) else {
                return node.site.clone();
            };
            (site, node) = (at, next);
        }
        site.clone()
    }

    fn step(&self, step: &Segment) -> Option<(&SourceLocation, &Self)> {
        match (&self.content, step) {
            (Content::Map(members), Segment::Key(key)) => members
                .iter()
                .find(|(name, _, _)| name == key)
                .map(|(_, at, node)| (at, node)),
            (Content::List(items), Segment::Index(index)) => {
                items.get(*index).map(|node| (&node.site, node))
            }
            _ => None,
        }
    }

    /// Applies one variable.
    fn overlay(&mut self, name: &str, text: &str, problems: &mut ConfigErrors) {
        let site = variable(name);
        let mut node = self;
        let mut path = ValuePath::root();
        let segments = name.strip_prefix(PREFIX).unwrap_or_default();
        for segment in segments.split("__") {
            if segment.is_empty() {
                let example = "write A2ABUS_SECTION__KEY, such as A2ABUS_HTTP__LISTEN";
                return problems.error(
                    site,
                    path,
                    format!("does not name a configuration key: {example}"),
                );
            }
            match node.enter(segment, &path, &site) {
                Ok((step, next)) => {
                    path = path.with(step);
                    node = next;
                }
                Err(message) => return problems.error(site, path, message),
            }
        }
        *node = Self::from_variable(text, &site);
    }

    /// The child that a word of the variable's name refers to; created if it does not exist.
    fn enter(
        &mut self,
        segment: &str,
        path: &ValuePath,
        site: &SourceLocation,
    ) -> Result<(Segment, &mut Self), String> {
        if matches!(self.content, Content::Scalar(Value::Null)) {
            self.content = Content::Map(Vec::new());
        }
        match &mut self.content {
            Content::Scalar(_) => Err("the file has a plain value here, which has no keys".into()),
            Content::List(items) => {
                let count = items.len();
                segment
                    .parse::<usize>()
                    .ok()
                    .and_then(|index| {
                        items
                            .get_mut(index)
                            .map(|node| (Segment::Index(index), node))
                    })
                    .ok_or_else(|| {
                        format!("{segment} is not an index of the list, which has {count} items")
                    })
            }
            Content::Map(members) => {
                // One reference to a secret replaces another: `__ENV` replaces `{file: PATH}`.
                if is_secret(members, path) {
                    members.retain(|(key, at, _)| !is_replaced(key, at, segment));
                }
                let index = members
                    .iter()
                    .position(|(key, _, _)| same_key(key, segment))
                    .unwrap_or_else(|| {
                        members.push((
                            segment.to_ascii_lowercase(),
                            site.clone(),
                            Self::empty(site.clone()),
                        ));
                        members.len() - 1
                    });
                members
                    .get_mut(index)
                    .map(|(key, _, node)| (Segment::Key(key.clone()), node))
                    .ok_or_else(String::new)
            }
        }
    }

    fn empty(site: SourceLocation) -> Self {
        Self {
            site,
            content: Content::Scalar(Value::Null),
        }
    }

    /// Reads a YAML scalar, or a JSON list or object. Anything else is text.
    fn from_variable(text: &str, site: &SourceLocation) -> Self {
        let content = match serde_json::from_str::<Value>(text) {
            Ok(value @ (Value::Array(_) | Value::Object(_))) => Content::from_json(value, site),
            _ => match parse(text) {
                Ok(Self {
                    content: Content::Scalar(value),
                    ..
                }) => Content::Scalar(value),
                _ => Content::Scalar(Value::String(text.to_owned())),
            },
        };
        Self {
            site: site.clone(),
            content,
        }
    }

    /// Sets `instance` to the host's name, if `instance` is not set and the name is valid.
    fn fill_instance(&mut self, host: Option<String>) {
        let Content::Map(members) = &mut self.content else {
            return;
        };
        if members.iter().any(|(key, _, _)| key == "instance") {
            return;
        }
        let name = host
            .or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok())
            .map(|name| name.trim().to_owned())
            .filter(|name| Name::new(name).is_ok())
            .unwrap_or_else(|| "a2abus".to_owned());
        let site = SourceLocation::Whole {};
        let node = Self {
            site: site.clone(),
            content: Content::Scalar(Value::String(name)),
        };
        members.push(("instance".to_owned(), site, node));
    }
}

/// Whether a section is a reference to a secret. In `attach.env` and `attach.headers` the keys are names chosen by the
/// user.
fn is_secret(members: &[Member], path: &ValuePath) -> bool {
    let is_form = |(key, _, node): &Member| {
        is_form_of_secret(key) && matches!(node.content, Content::Scalar(Value::String(_)))
    };
    let is_users = matches!(path.steps(), [.., Segment::Key(attach), Segment::Key(map)]
        if attach == "attach" && matches!(map.as_str(), "env" | "headers"));
    !is_users && members.iter().all(is_form)
}

/// Whether a member from the file is one form of a secret reference, and the variable sets another form.
fn is_replaced(key: &str, site: &SourceLocation, segment: &str) -> bool {
    let is_file = matches!(site, SourceLocation::File { .. });
    is_file && is_form_of_secret(segment) && !same_key(key, segment)
}

fn is_form_of_secret(segment: &str) -> bool {
    FORMS_OF_SECRETS.iter().any(|form| same_key(form, segment))
}

/// Names of variables are in capitals and cannot contain `-` or `.`.
fn same_key(key: &str, segment: &str) -> bool {
    key.len() == segment.len()
        && key.bytes().zip(segment.bytes()).all(|(key, segment)| {
            let key = if matches!(key, b'-' | b'.') {
                b'_'
            } else {
                key
            };
            key.eq_ignore_ascii_case(&segment)
        })
}

impl From<Spanned<Content>> for Node {
    fn from(spanned: Spanned<Content>) -> Self {
        Self {
            site: SourceLocation::File {
                line: spanned.referenced.line(),
                column: spanned.referenced.column(),
            },
            content: spanned.value,
        }
    }
}

impl Content {
    fn from_json(value: Value, site: &SourceLocation) -> Self {
        let node = |value| Node {
            site: site.clone(),
            content: Self::from_json(value, site),
        };
        match value {
            Value::Array(items) => Self::List(items.into_iter().map(node).collect()),
            Value::Object(members) => Self::Map(
                members
                    .into_iter()
                    .map(|(key, value)| (key, site.clone(), node(value)))
                    .collect(),
            ),
            scalar => Self::Scalar(scalar),
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(Content::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Content, E> {
        Ok(Content::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Content, D::Error> {
        Content::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Content, E> {
        Ok(Content::Scalar(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Content, E> {
        Ok(Content::Scalar(Value::from(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Content, E> {
        Ok(Content::Scalar(Value::from(value)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Content, E> {
        let number = Number::from_f64(value).map_or(Value::Null, Value::Number);
        Ok(Content::Scalar(number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Content, E> {
        Ok(Content::Scalar(Value::String(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Content, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<Spanned<Content>>()? {
            list.push(Node::from(item));
        }
        Ok(Content::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Content, A::Error> {
        let mut map = Vec::new();
        while let Some((key, value)) = members.next_entry::<Spanned<String>, Spanned<Content>>()? {
            let site = SourceLocation::File {
                line: key.referenced.line(),
                column: key.referenced.column(),
            };
            map.push((key.value, site, Node::from(value)));
        }
        Ok(Content::Map(map))
    }
}
