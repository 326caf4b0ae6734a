//! Reads the members of a configuration, and collects their issues.

use crate::a2e_workflow::facts::{Facts, Kind, Read, Requirement};
use crate::a2e_workflow::issue::{Code, Issue, Issues, quote_name};
use crate::a2e_workflow::path::{OutputPath, Path, PathError, RelativePath};
use crate::a2e_workflow::workflow::Dialect;
use crate::json::{Json, Number, Object};
use crate::wire_enum::WireEnum;
use a2abus_plugin::Text;

/// The operation that is being parsed, and the facts collected so far.
#[derive(Debug)]
pub(super) struct Scope<'a> {
    pub(super) id: &'a Text,
    pub(super) line: u32,
    pub(super) dialect: Dialect,
    pub(super) facts: Facts,
    pub(super) issues: &'a mut Issues,
}

/// An object, and its path in the configuration.
#[derive(Debug)]
pub(super) struct Fields<'o> {
    object: &'o Object,
    at: String,
}

// === impl Scope ===

impl Scope<'_> {
    pub(super) fn issue(&mut self, code: Code, message: impl Into<String>) {
        self.suggest(code, message, None);
    }

    pub(super) fn suggest(
        &mut self,
        code: Code,
        message: impl Into<String>,
        suggestion: Option<String>,
    ) {
        let issue = Issue::new(code, message).about(self.id).at(self.line);
        self.issues.push(issue.suggest(suggestion));
    }

    /// A member of the wrong type or value.
    pub(super) fn invalid<T>(&mut self, at: &str, expected: &str) -> Option<T> {
        self.issue(Code::InvalidField, format!("{at}: expected {expected}"));
        None
    }

    /// Returns a parsed path, or reports a malformed one.
    pub(super) fn path_or_issue<T>(&mut self, at: &str, read: Result<T, PathError>) -> Option<T> {
        read.map_err(|error| self.issue(Code::InvalidPath, format!("{at}: {error}")))
            .ok()
    }

    /// Records that the operation reads a path.
    pub(super) fn reads(&mut self, path: &Path, need: Requirement) {
        self.facts.reads.push(Read {
            path: path.clone(),
            need,
        });
    }

    /// Warns about unknown members, and refuses repeated ones.
    pub(super) fn check_members(&mut self, object: &Object, at: &str, known: &[&str]) {
        self.refuse_repeated(object, at);
        for (name, _) in object
            .iter()
            .filter(|(name, _)| !known.contains(&name.as_str()))
        {
            let message = format!("{}: unknown member {}", here(at), quote_name(name));
            let suggestion = self.issues.nearest(name, known.iter().copied());
            self.suggest(Code::UnknownField, message, suggestion);
        }
    }

    /// Refuses duplicate members: another reader of the workflow may use the other value.
    pub(super) fn refuse_repeated(&mut self, object: &Object, at: &str) {
        for name in object.repeated() {
            let message = format!("{}: {}", here(at), repeated(name));
            self.issue(Code::InvalidField, message);
        }
    }
}

/// The message about a repeated member.
pub(super) fn repeated(name: &str) -> String {
    format!("duplicate member {}", quote_name(name))
}

/// The path as shown in messages; that of the configuration itself is empty.
fn here(at: &str) -> &str {
    if at.is_empty() { "configuration" } else { at }
}

// === impl Fields ===

impl<'o> Fields<'o> {
    /// An object with these members; warns about others.
    pub(super) fn open(
        scope: &mut Scope<'_>,
        json: &'o Json,
        at: &str,
        known: &[&str],
    ) -> Option<Self> {
        let Some(object) = json.as_object() else {
            return scope.invalid(here(at), "an object");
        };
        scope.check_members(object, at, known);
        Some(Self::of(object, at))
    }

    /// An object whose member names are checked elsewhere.
    pub(super) fn of(object: &'o Object, at: &str) -> Self {
        Self {
            object,
            at: at.to_owned(),
        }
    }

    pub(super) fn object(&self) -> &'o Object {
        self.object
    }

    pub(super) fn place(&self, name: &str) -> String {
        if self.at.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.at)
        }
    }

    /// Reads a required member.
    pub(super) fn required<T>(
        &self,
        scope: &mut Scope<'_>,
        name: &str,
        read: impl FnOnce(&mut Scope<'_>, &str, &'o Json) -> Option<T>,
    ) -> Option<T> {
        let place = self.place(name);
        let Some(json) = self.object.get(name) else {
            scope.issue(Code::MissingField, format!("{place} is missing"));
            return None;
        };
        read(scope, &place, json)
    }

    /// Reads an optional member; `None` if it is invalid.
    pub(super) fn optional<T>(
        &self,
        scope: &mut Scope<'_>,
        name: &str,
        read: impl FnOnce(&mut Scope<'_>, &str, &'o Json) -> Option<T>,
    ) -> Option<Option<T>> {
        match self.object.get(name) {
            Some(json) => read(scope, &self.place(name), json).map(Some),
            None => Some(None),
        }
    }

    /// The name of the one present member of these.
    pub(super) fn one_of(
        &self,
        scope: &mut Scope<'_>,
        names: &[&'static str],
    ) -> Option<&'static str> {
        let mut there = names.iter().filter(|name| self.object.contains(name));
        match (there.next(), there.next()) {
            (Some(name), None) => Some(name),
            (None, _) => {
                let message = format!("{} needs one of {}", here(&self.at), names.join(", "));
                scope.issue(Code::MissingField, message);
                None
            }
            (Some(_), Some(_)) => {
                scope.invalid(here(&self.at), &format!("only one of {}", names.join(", ")))
            }
        }
    }

    /// Reads the path an operation writes to.
    pub(super) fn writes(&self, scope: &mut Scope<'_>, kind: Kind) -> Option<OutputPath> {
        let path = self.required(scope, OUTPUT_PATH, output_path)?;
        scope.facts.write = Some((path.clone(), kind));
        Some(path)
    }

    /// Reads the path an operation reads from.
    pub(super) fn input(&self, scope: &mut Scope<'_>, need: Requirement) -> Option<Path> {
        let path = self.required(scope, "inputPath", path)?;
        scope.reads(&path, need);
        Some(path)
    }
}

pub(super) const OUTPUT_PATH: &str = "outputPath";

// === readers of single values ===

pub(super) fn text<'o>(scope: &mut Scope<'_>, at: &str, json: &'o Json) -> Option<&'o Text> {
    json.as_text().or_else(|| scope.invalid(at, "a string"))
}

pub(super) fn flag(scope: &mut Scope<'_>, at: &str, json: &Json) -> Option<bool> {
    json.as_bool()
        .or_else(|| scope.invalid(at, "true or false"))
}

pub(super) fn path(scope: &mut Scope<'_>, at: &str, json: &Json) -> Option<Path> {
    let text = text(scope, at, json)?;
    scope.path_or_issue(at, Path::parse(text))
}

pub(super) fn output_path(scope: &mut Scope<'_>, at: &str, json: &Json) -> Option<OutputPath> {
    let text = text(scope, at, json)?;
    scope.path_or_issue(at, OutputPath::parse(text))
}

pub(super) fn field(scope: &mut Scope<'_>, at: &str, json: &Json) -> Option<RelativePath> {
    let text = text(scope, at, json)?;
    scope.path_or_issue(at, RelativePath::parse(text))
}

pub(super) fn parse_name<W: WireEnum>(scope: &mut Scope<'_>, at: &str, json: &Json) -> Option<W> {
    parse_name_with_aliases(scope, at, json, &[])
}

/// A value of an enumeration, or an old name of one.
pub(super) fn parse_name_with_aliases<W: WireEnum>(
    scope: &mut Scope<'_>,
    at: &str,
    json: &Json,
    aliases: &[(&str, W)],
) -> Option<W> {
    let text = text(scope, at, json)?;
    if let Some(value) = W::parse(text) {
        return Some(value);
    }
    if let Some((alias, value)) = aliases.iter().find(|(alias, _)| text == alias) {
        let message = format!("{at}: {alias:?} is an old name of {:?}", value.as_str());
        scope.issue(Code::DeprecatedAlias, message);
        return Some(*value);
    }
    unknown_name(scope, at, text, W::NAMES)
}

/// Reports an unknown name, and suggests a similar known one.
pub(super) fn unknown_name<T>(
    scope: &mut Scope<'_>,
    at: &str,
    text: &str,
    known: &[&str],
) -> Option<T> {
    let message = format!("{at}: expected one of {}", known.join(", "));
    let suggestion = scope.issues.nearest(text, known.iter().copied());
    scope.suggest(Code::InvalidField, message, suggestion);
    None
}

/// An integer by value; `10.0` counts as one.
pub(super) fn integer(
    scope: &mut Scope<'_>,
    at: &str,
    json: &Json,
    range: std::ops::RangeInclusive<u64>,
) -> Option<u64> {
    let value = json.as_number().and_then(integral);
    value.filter(|value| range.contains(value)).or_else(|| {
        scope.invalid(
            at,
            &format!("an integer of {} to {}", range.start(), range.end()),
        )
    })
}

fn integral(number: &Number) -> Option<u64> {
    // Up to this bound every integer is one double.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    number.as_u64().or_else(|| {
        let value = number.as_f64();
        let exact = (0.0..=EXACT).contains(&value) && value.fract() == 0.0;
        exact.then_some(value as u64)
    })
}

/// The elements of an array, each parsed; `None` if any is invalid.
pub(super) fn list<'o, T>(
    scope: &mut Scope<'_>,
    at: &str,
    json: &'o Json,
    mut read: impl FnMut(&mut Scope<'_>, &str, &'o Json) -> Option<T>,
) -> Option<Vec<T>> {
    let Some(elements) = json.as_array() else {
        return scope.invalid(at, "an array");
    };
    // Reads every element, even after an invalid one.
    let read: Vec<_> = elements
        .iter()
        .enumerate()
        .map(|(index, element)| read(scope, &format!("{at}[{index}]"), element))
        .collect();
    read.into_iter().collect()
}

/// The members of an object, each parsed; `None` if any is invalid.
pub(super) fn members<T>(
    scope: &mut Scope<'_>,
    at: &str,
    object: &Object,
    mut read: impl FnMut(&mut Scope<'_>, &str, &Json) -> Option<T>,
) -> Option<Vec<(Text, T)>> {
    scope.refuse_repeated(object, at);
    let read: Vec<_> = object
        .iter()
        .map(|(name, json)| {
            let value = read(scope, &format!("{at}[{}]", quote_name(name)), json)?;
            Some((name.clone(), value))
        })
        .collect();
    read.into_iter().collect()
}
