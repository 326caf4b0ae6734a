//! Templates, and values that may be references.

use std::fmt;

use crate::a2e_workflow::path::{Path, PathError, RelativePath};
use crate::json::{Json, Object};
use a2abus_plugin::Text;

/// Text with references to the data model in it, such as `t-{/workflow/u.id}`. `Display` writes it.
/// Source: docs/protocols/a2e-workflows.md §2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Part<Path>>);

/// Text with fields of an item in it, such as `{name} <{mail}>`; `{{` and `}}` are braces.
/// `Display` writes it. Source: docs/protocols/a2e-workflows.md §4.2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldTemplate(Vec<Part<RelativePath>>);

/// A part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part<P> {
    /// Literal text; never empty.
    Text(Text),
    /// A placeholder for a value.
    Value(P),
}

/// A literal value, or a reference to the data model.
/// Source: docs/protocols/a2e-workflows.md §2.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// The value itself.
    Literal(Json),
    /// `{"path": ...}`.
    Reference(Path),
}

/// The body of a request, with references to the data model. Source: docs/protocols/a2e-workflows.md §4.8.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// A value without any reference in it.
    Literal(Json),
    /// A value of the data model, with its type.
    Reference(Path),
    /// Text with at least one value in it, other than a single reference.
    Template(Template),
    /// An array that contains a reference at any depth.
    Array(Vec<Body>),
    /// An object that contains a reference at any depth.
    Object(Vec<(Text, Body)>),
}

/// Why a body is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyError {
    Path(PathError),
    Credential,
}

// === impl Template ===

impl Template {
    /// Reads a text; `{workflow/x}` is read as `{/workflow/x}`. Other braces are text.
    ///
    /// # Errors
    /// The fault of a reference in it.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let mut parts = Vec::new();
        let (mut plain, mut rest) = (String::new(), text);
        while let Some((before, after)) = rest.split_once('{') {
            plain.push_str(before);
            let Some(parsed) = Path::parse_in_braces(after) else {
                plain.push('{');
                rest = after;
                continue;
            };
            let (path, end) = parsed?;
            rest = end.strip_prefix('}').ok_or(PathError::BadEnd)?;
            push_text(&mut parts, &mut plain);
            parts.push(Part::Value(path));
        }
        plain.push_str(rest);
        push_text(&mut parts, &mut plain);
        Ok(Self(parts))
    }

    /// The parts in order; none for the empty text.
    #[must_use]
    pub fn parts(&self) -> &[Part<Path>] {
        &self.0
    }

    /// The references in order.
    pub fn references(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Value(path) => Some(path),
        })
    }

    /// The reference, if the text consists of a single one.
    #[must_use]
    pub fn as_reference(&self) -> Option<&Path> {
        match self.0.as_slice() {
            [Part::Value(path)] => Some(path),
            _ => None,
        }
    }
}

fn push_text<P>(parts: &mut Vec<Part<P>>, plain: &mut String) {
    if !plain.is_empty() {
        parts.push(Part::Text(std::mem::take(plain).into()));
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| match part {
            Part::Text(text) => f.write_str(text),
            Part::Value(path) => write!(f, "{{{path}}}"),
        })
    }
}

// === impl FieldTemplate ===

impl FieldTemplate {
    /// Reads a text.
    ///
    /// # Errors
    /// The fault of a field in it; a single brace is a fault as well.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let mut parts = Vec::new();
        let (mut plain, mut rest) = (String::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            let (before, braced) = rest.split_at(at);
            plain.push_str(before);
            if let Some(brace @ ("{{" | "}}")) = braced.get(..2) {
                plain.push_str(brace.get(..1).unwrap_or_default());
                rest = braced.get(2..).unwrap_or_default();
                continue;
            }
            let inside = braced.strip_prefix('{').ok_or(PathError::BadEnd)?;
            let (field, end) = RelativePath::parse_prefix(inside)?;
            rest = end.strip_prefix('}').ok_or(PathError::BadEnd)?;
            push_text(&mut parts, &mut plain);
            parts.push(Part::Value(field));
        }
        plain.push_str(rest);
        push_text(&mut parts, &mut plain);
        Ok(Self(parts))
    }

    /// The parts in order; none for the empty text.
    #[must_use]
    pub fn parts(&self) -> &[Part<RelativePath>] {
        &self.0
    }
}

impl fmt::Display for FieldTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|part| match part {
            Part::Text(text) => f.write_str(&text.replace('{', "{{").replace('}', "}}")),
            Part::Value(field) => write!(f, "{{{field}}}"),
        })
    }
}

// === impl Operand ===

impl Operand {
    /// Parses a value or a reference. An object whose only member `path` does not begin with `/workflow/` is a value.
    ///
    /// # Errors
    /// The fault of the path of a reference.
    pub fn parse(json: &Json) -> Result<Self, PathError> {
        match reference(json) {
            Some(text) => Path::parse(text).map(Self::Reference),
            None => Ok(Self::Literal(json.clone())),
        }
    }
}

/// The text of `{"path": text}`, if it is meant as a path of the data model.
fn reference(json: &Json) -> Option<&Text> {
    let object = json.as_object().filter(|object| object.len() == 1)?;
    let text = object.get("path")?.as_text()?;
    Path::looks_like_path(text).then_some(text)
}

// === impl Body ===

impl Body {
    /// Parses a body and reports its faults. The recursion is bounded by the depth of the line.
    pub(super) fn parse(json: &Json, refuse: &mut dyn FnMut(BodyError)) -> Self {
        let parsed = match reference(json) {
            Some(path) => Some(Path::parse(path).map(Self::Reference)),
            None => json.as_text().map(Self::parse_text),
        };
        if let Some(parsed) = parsed {
            return parsed.unwrap_or_else(|error| {
                refuse(BodyError::Path(error));
                Self::Literal(Json::Null)
            });
        }
        match json {
            Json::Array(elements) => {
                let parsed: Vec<_> = elements.iter().map(|e| Self::parse(e, refuse)).collect();
                if parsed.iter().all(Self::is_literal) {
                    return Self::Literal(json.clone());
                }
                Self::Array(parsed)
            }
            Json::Object(object) => Self::parse_object(object, refuse),
            _ => Self::Literal(json.clone()),
        }
    }

    fn parse_text(text: &Text) -> Result<Self, PathError> {
        if let Ok(path) = Path::parse(text) {
            return Ok(Self::Reference(path));
        }
        let template = Template::parse(text)?;
        Ok(match template.as_reference() {
            Some(path) => Self::Reference(path.clone()),
            None if template.references().next().is_some() => Self::Template(template),
            None => Self::Literal(Json::String(text.clone())),
        })
    }

    fn parse_object(object: &Object, refuse: &mut dyn FnMut(BodyError)) -> Self {
        if object.contains("credentialRef") {
            refuse(BodyError::Credential);
        }
        let parsed: Vec<_> = object
            .iter()
            .map(|(name, value)| (name.clone(), Self::parse(value, refuse)))
            .collect();
        if parsed.iter().all(|(_, value)| value.is_literal()) {
            return Self::Literal(object.clone().into());
        }
        Self::Object(parsed)
    }

    fn is_literal(&self) -> bool {
        matches!(self, Self::Literal(_))
    }

    /// Calls `visit` with every reference, in order.
    pub fn for_each_reference<'a>(&'a self, visit: &mut impl FnMut(&'a Path)) {
        match self {
            Self::Literal(_) => {}
            Self::Reference(path) => visit(path),
            Self::Template(template) => template.references().for_each(visit),
            Self::Array(elements) => elements.iter().for_each(|e| e.for_each_reference(visit)),
            Self::Object(members) => members
                .iter()
                .for_each(|(_, v)| v.for_each_reference(visit)),
        }
    }
}
